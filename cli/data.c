// mezzo data turns a text, or shards of one format, into token shards for training and validation; it also makes radio
// maps.
#include "cli.h"
#include "mezzo/data.h"

typedef struct written {
    const char *folder, *format, *tokenizer;
    int vocab; // 0: there is no tokenizer
    uint64_t train, validation;
} written;

static const cli_field fields[] = {
    {CLI_FIELD(written, folder), "folder"},       {CLI_FIELD(written, format), "format"},
    {CLI_FIELD(written, tokenizer), "tokenizer"}, {CLI_FIELD(written, vocab), "vocab", .flags = CLI_NULL},
    {CLI_FIELD(written, train), "train_tokens"},  {CLI_FIELD(written, validation), "val_tokens"},
};

static int print_result(const mezzo_corpus *corpus, const char *folder, const char *format) {
    const mezzo_tokenizer *tokenizer = mezzo_corpus_tokenizer(corpus);
    const written w = {folder,
                       format,
                       tokenizer != NULL ? mezzo_tokenizer_kind(tokenizer) : NULL,
                       tokenizer != NULL ? (int)mezzo_tokenizer_vocab(tokenizer) : 0,
                       mezzo_corpus_tokens(corpus, MEZZO_TRAIN),
                       mezzo_corpus_tokens(corpus, MEZZO_VALIDATION)};
    if (cli_has("json"))
        return cli_json_print(CLI_OBJECT(fields, &w));
    char buf[32], program[512], quoted[4200];
    printf("%s/train.bin  %s tokens (%s)\n", cli_show(folder).text, cli_thousands((double)w.train, buf, sizeof buf),
           format);
    printf("%s/val.bin    %s tokens\n", cli_show(folder).text, cli_thousands((double)w.validation, buf, sizeof buf));
    if (tokenizer != NULL)
        printf("%s/tokenizer.json  %s, %d tokens\n", cli_show(folder).text, w.tokenizer, w.vocab);
    printf("next:\n  %s train --data %s\n", cli_quote(cli_line.program, program, sizeof program),
           cli_quote(folder, quoted, sizeof quoted));
    return CLI_DONE;
}

static int run(void) {
    if (cli_line.n_operands == 1 && strcmp(cli_line.operands[0], "radio") == 0)
        return cli_data_radio();
    if (cli_has("train-tokenizer"))
        return cli_data_tokenizer();
    CLI_TRY(CLI_REFUSE("is only for --train-tokenizer", "pattern", "special"));
    CLI_TRY(CLI_REFUSE("is only for radio maps: mezzo data radio", "maps", "transmitters", "size", "extent", "seed",
                       "threads"));
    const char *folder = cli_text("out", NULL), *format = cli_text("format", "llmc");
    mezzo_corpus_options options = {
        .tokenizer = cli_text("tokenizer", NULL), .form = cli_text("form", NULL), .stop = cli_interruptible()};
    CLI_TRY(cli_number("split", 0, 1, 0.9, &options.train_fraction));
    if (options.train_fraction == 0)
        return cli_wrong("--split 0 leaves nothing to train on");
    if (cli_line.n_operands > 1)
        return cli_wrong("%d texts; several are one list with commas, or a folder", cli_line.n_operands);
    CLI_TRY(cli_need_operand());
    if (folder == NULL)
        return cli_wrong("--out is missing: the folder for train.bin, val.bin and tokenizer.json");
    bool llmc = strcmp(format, "llmc") == 0;
    if (!llmc && strcmp(format, "nanogpt") != 0)
        return cli_wrong("--format %s: it must be llmc or nanogpt", format);

    options.path = cli_line.operands[0];
    mezzo_corpus *corpus = NULL;
    mezzo_status status = mezzo_corpus_open(&options, &corpus);
    if (status == MEZZO_OK)
        status = mezzo_corpus_save(corpus, folder, llmc ? MEZZO_SHARD_LLMC : MEZZO_SHARD_NANOGPT);
    const int code = status == MEZZO_OK ? print_result(corpus, folder, format) : cli_error(status);
    mezzo_corpus_free(corpus);
    return code;
}

static const cli_option options_table[] = {
    {"out", "DIR", "folder for train.bin, val.bin and tokenizer.json; for radio maps, a new folder"},
    {"tokenizer", "NAME",
     "auto (of a text its characters, of shards their own), char, byte, gpt2, a tokenizer's folder or file [auto]"},
    {"form", "NAME", "form of records, of which documents alone are written: auto or text [auto]"},
    {"format", "NAME", "llmc (a header, then uint16 or uint32 tokens) or nanogpt (bare uint16) [llmc]"},
    {"split", "X", "fraction of the text to train on; the rest validates [0.9]"},
    {"train-tokenizer", "N", "train a tokenizer of N tokens on the texts; --out names its folder, or its file *.json"},
    {"pattern", "NAME", "how it splits a text into words: gpt2, gpt4, llama3, qwen2 or gpt4o [gpt2]"},
    {"special", "A,B", "its special tokens, or none [<|endoftext|>]"},
    {"maps", "N", "radio: number of cities"},
    {"transmitters", "K", "radio: transmitters per city, each with its own map [1]"},
    {"size", "N", "radio: pixels per side [256]"},
    {"extent", "M", "radio: metres per side [one per pixel]"},
    {"seed", "N", "radio: another seed gives other cities [1]"},
    {"threads", "N", "radio, and training a tokenizer: CPU threads [every core]"},
    {"json", NULL, "the result as JSON"},
    {0},
};

const cli_command cli_data = {
    .name = "data",
    .summary = "tokenize a text into shards; generate cities with radio maps",
    .usage =
        "TEXT --out DIR [--tokenizer auto|char|byte|gpt2|DIR|FILE] [--format llmc|nanogpt] [--split X]\n"
        "       mezzo data TEXT... --train-tokenizer N --out DIR|FILE [--pattern gpt2|gpt4|llama3] [--special A,B]\n"
        "       mezzo data radio --maps N --out DIR [--transmitters K] [--size N] [--extent M] [--seed N]",
    .details = "TEXT is a UTF-8 file, records {\"text\": …} (*.jsonl, *.json, also .gz; a folder or a list), or shards "
               "(a *.bin file, a folder) to convert to the other format. mezzo train --data DIR reads the result. "
               "--train-tokenizer learns byte-pair encoding from texts, records and folders of them, and writes a "
               "tokenizer.json. The word radio instead generates cities and the received power of transmitters in "
               "them, as PNG files in RadioMapSeer's layout (for a text of that name, write ./radio).",
    .options = options_table,
    .max_operands = 4096,
    .operand = "a text file",
    .run = run,
};
