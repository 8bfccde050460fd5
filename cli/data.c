// mezzo data turns a text, or shards of one format, into token shards for training and validation; it also makes radio
// maps.
#include "cli.h"
#include "mezzo/data.h"

typedef struct written {
    const char *folder, *format, *tokenizer;
    int vocab; // 0: there is no tokenizer
    uint64_t train, validation;
} written;

static const mz_row_field fields[] = {
    {MZ_FIELD(written, folder), "folder"},       {MZ_FIELD(written, format), "format"},
    {MZ_FIELD(written, tokenizer), "tokenizer"}, {MZ_FIELD(written, vocab), "vocab", .flags = MZ_NULL},
    {MZ_FIELD(written, train), "train_tokens"},  {MZ_FIELD(written, validation), "val_tokens"},
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
        return cli_json_print(MZ_OBJECT(fields, &w));
    printf("%s/train.bin  %s tokens (%s)\n", mz_show(folder).text, mz_count_text((double)w.train).text, format);
    printf("%s/val.bin    %s tokens\n", mz_show(folder).text, mz_count_text((double)w.validation).text);
    if (tokenizer != NULL)
        printf("%s/tokenizer.json  %s, %d tokens\n", mz_show(folder).text, w.tokenizer, w.vocab);
    printf("next:\n  %s train --data %s\n", cli_quoted(cli_line.program).text, cli_quoted(folder).text);
    return CLI_DONE;
}

MZ_FREE_AT(free_corpus, mezzo_corpus, mezzo_corpus_free)

int cli_data(void) {
    if (cli_line.n_operands == 1 && strcmp(cli_line.operands[0], "radio") == 0)
        return cli_data_radio();
    if (cli_has("train-tokenizer"))
        return cli_data_tokenizer();
    CLI_TRY(CLI_REFUSE("is only for --train-tokenizer", "pattern", "special"));
    CLI_TRY(CLI_REFUSE("is only for radio maps: mezzo data radio", "maps", "transmitters", "size", "extent", "seed",
                       "threads"));
    const char *folder = cli_text("out", NULL), *format = cli_text("format", "llmc");
    mezzo_corpus_options options = {
        .tokenizer = cli_text("tokenizer", NULL), .form = cli_text("form", NULL), .stop = cli_interrupts(NULL)};
    CLI_TRY(cli_number("split", 0, 1, 0.9, &options.train_fraction));
    if (options.train_fraction == 0)
        return cli_wrong("--split 0 leaves nothing to train on");
    if (cli_line.n_operands > 1)
        return cli_wrong(
            "%d texts: join them in one file; of records or shards, give one list with commas, or a folder",
            cli_line.n_operands);
    if (folder == NULL)
        return cli_wrong("--out is missing: the folder for train.bin, val.bin and tokenizer.json");
    bool llmc = strcmp(format, "llmc") == 0;
    if (!llmc && strcmp(format, "nanogpt") != 0)
        return cli_wrong("--format %s: it must be llmc or nanogpt", format);

    options.path = cli_line.operands[0];
    MZ_SCOPED(free_corpus) mezzo_corpus *corpus = NULL;
    CLI_DO(mezzo_corpus_open(&options, &corpus));
    CLI_DO(mezzo_corpus_save(corpus, folder, llmc ? MEZZO_SHARD_LLMC : MEZZO_SHARD_NANOGPT));
    return print_result(corpus, folder, format);
}
