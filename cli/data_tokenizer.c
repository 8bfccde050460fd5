// mezzo data --train-tokenizer learns byte-pair encoding from texts.
#include "cli.h"
#include "io/file.h"
#include "mezzo/data.h"

enum { MOST_SPECIAL = 64 };

typedef struct shown {
    const char *file, *pattern;
    int64_t vocab;
    mezzo_tokenizer_trained trained;
    double seconds;
} shown;

static const mz_row_field fields[] = {
    {MZ_FIELD(shown, file), "file"},           {MZ_FIELD(shown, vocab), "vocab"},
    {MZ_FIELD(shown, pattern), "pattern"},     {MZ_FIELD(shown, trained.bytes), "bytes"},
    {MZ_FIELD(shown, trained.texts), "texts"}, {MZ_FIELD(shown, trained.words), "words"},
    {MZ_FIELD(shown, seconds), "seconds"},
};

// Splits "A,B" in place into its parts.
static int split_special(char *list, const char **parts, size_t *n) {
    *n = 0;
    if (strcmp(list, "none") == 0)
        return CLI_DONE;
    for (char *at = list; at != NULL; *n += 1) {
        char *comma = strchr(at, ',');
        if (*n == MOST_SPECIAL)
            return cli_wrong("--special: more than %d tokens", MOST_SPECIAL);
        parts[*n] = at;
        if (comma != NULL)
            *comma = '\0';
        at = comma != NULL ? comma + 1 : NULL;
    }
    return CLI_DONE;
}

static mezzo_status save(const mezzo_tokenizer *tok, const char *out, char **path) {
    const bool is_file = mz_ends_with(out, ".json") && !mz_path_is_dir(out);
    *path = is_file ? mz_strdup(out) : mz_format("%s/tokenizer.json", out);
    if (*path == NULL)
        return MEZZO_ERR_MEMORY;
    if (!is_file)
        MEZZO_TRY(mz_dir_create(out));
    return mezzo_tokenizer_save(tok, *path);
}

static int print_result(const shown *s, int64_t asked) {
    if (cli_has("json"))
        return cli_json_print(MZ_OBJECT(fields, s));
    printf("%s: %lld tokens from %s bytes in %s text%s, %s distinct words, in %.1f s\n", mz_show(s->file).text,
           (long long)s->vocab, mz_count_text((double)s->trained.bytes).text,
           mz_count_text((double)s->trained.texts).text, s->trained.texts == 1 ? "" : "s",
           mz_count_text((double)s->trained.words).text, s->seconds);
    if (s->vocab < asked)
        printf("these texts have no more pairs: the vocabulary is smaller than the %lld tokens asked for\n",
               (long long)asked);
    printf("next:\n  %s data TEXT --out DIR --tokenizer %s\n", cli_line.program, cli_quoted(s->file).text);
    return CLI_DONE;
}

MZ_FREE_AT(free_tokenizer, mezzo_tokenizer, mezzo_tokenizer_free)

static int train(const mezzo_tokenizer_training *options, const char *out) {
    MZ_SCOPED(free_tokenizer) mezzo_tokenizer *tok = NULL;
    MZ_SCOPED(mz_free_at) char *path = NULL;
    shown s = {.pattern = options->pattern};
    const double begun = mz_seconds();
    CLI_DO(mezzo_tokenizer_train(options, &tok, &s.trained));
    CLI_DO(save(tok, out, &path));
    s.file = path;
    s.vocab = mezzo_tokenizer_vocab(tok);
    s.seconds = mz_seconds() - begun;
    return print_result(&s, options->vocab);
}

int cli_data_tokenizer(void) {
    const char *out = cli_text("out", NULL), *parts[MOST_SPECIAL];
    int64_t vocab, threads;
    CLI_TRY(CLI_REFUSE("is not for --train-tokenizer", "tokenizer", "form", "format", "split", "maps", "transmitters",
                       "size", "extent", "seed"));
    CLI_TRY(cli_integer("train-tokenizer", 256, 1 << 24, 0, &vocab));
    CLI_TRY(cli_integer("threads", 1, 4096, 0, &threads));
    if (out == NULL)
        return cli_wrong("--out is missing: the folder for tokenizer.json, or a file *.json");
    mezzo_tokenizer_training options = {.paths = cli_line.operands,
                                        .n_paths = (size_t)cli_line.n_operands,
                                        .vocab = (int32_t)vocab,
                                        .pattern = cli_text("pattern", "gpt2"),
                                        .special = parts,
                                        .threads = (int)threads,
                                        .stop = cli_interrupts(NULL)};
    MZ_SCOPED(mz_free_at) char *list = mz_strdup(cli_text("special", "<|endoftext|>"));
    if (list == NULL)
        return cli_error(MEZZO_ERR_MEMORY);
    CLI_TRY(split_special(list, parts, &options.n_special));
    return train(&options, out);
}
