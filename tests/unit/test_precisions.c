// The list of precisions: names that people use, words that name none, and the table in docs/train.md.
#include <stdlib.h>

#include "base/precision.h"
#include "test.h"

static void parses_as(const char *word, const char *name) {
    mezzo_precision p = MEZZO_PRECISION_COUNT;
    if (mezzo_precision_parse(word, &p) != MEZZO_OK)
        fail_msg("%s: %s", word, mezzo_error_message());
    assert_string_equal(mezzo_precision_name(p), name);
}

TEST(other_tools_names_are_taken) {
    static const char *const words[][2] = {
        {"bfloat16", "bf16"},   {"torch.bfloat16", "bf16"}, {"bf16-mixed", "bf16"}, {"BF16_mixed", "bf16"},
        {"half", "fp16"},       {"float16", "fp16"},        {"16", "fp16"},         {"16-mixed", "fp16"},
        {"fp16-mixed", "fp16"}, {"torch.half", "fp16"},     {"single", "fp32"},     {"float32", "fp32"},
        {"32", "fp32"},         {"32-true", "fp32"},        {"FP32", "fp32"},       {"double", "fp64"},
        {"TF32", "tf32"},       {"auto", "auto"},           {"Auto", "auto"}};
    for (size_t i = 0; i < MZ_COUNT(words); i++)
        parses_as(words[i][0], words[i][1]);
}

// No word means two precisions, and none that names a precision is called unclear.
TEST(every_alias_names_its_own_row) {
    for (int p = 0; p < MEZZO_PRECISION_AUTO; p++) {
        const mz_precision_info *info = mz_precision((mezzo_precision)p);
        char aliases[256], *rest;
        parses_as(info->name, info->name);
        snprintf(aliases, sizeof aliases, "%s", info->aliases);
        for (char *word = strtok_r(aliases, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
            parses_as(word, info->name);
    }
}

static void refused(const char *word, const char *part, const char *another) {
    mezzo_precision unchanged = MEZZO_PRECISION_COUNT;
    assert_int_equal(mezzo_precision_parse(word, &unchanged), MEZZO_ERR_INVALID);
    assert_int_equal(unchanged, MEZZO_PRECISION_COUNT);
    if (strstr(mezzo_error_message(), part) == NULL || strstr(mezzo_error_message(), another) == NULL)
        fail_msg("%s: %s", word, mezzo_error_message());
}

TEST(what_names_no_precision_is_corrected) {
    refused("amp", "name one", "bf16");
    refused("mixed", "name one", "fp16");
    refused("bf61", "did you mean \"bf16\"", "or auto");
    refused("fp17", "did you mean", "tf32");
    refused("16-true", "masters are FP32", "fp16");
    refused("", "unknown precision", "fp32");
    refused("a word that is longer than any precision's name could ever be", "unknown precision", "fp32");
}

TEST(lists_come_from_the_table) {
    mezzo_precision order[MEZZO_PRECISION_COUNT];
    char joined[128] = "";
    for (int p = 0; p < MEZZO_PRECISION_AUTO; p++)
        snprintf(joined + strlen(joined), sizeof joined - strlen(joined), "%s%s", p > 0 ? "|" : "",
                 mezzo_precision_name((mezzo_precision)p));
    assert_string_equal(MZ_PRECISION_NAMES, joined);
    assert_int_equal(mz_precision_automatic(order), 3);
    assert_string_equal(mezzo_precision_name(order[0]), "bf16"); // FP32's range: no scale to be found
    assert_string_equal(mezzo_precision_name(order[2]), "tf32");
    assert_int_equal(mz_precision_common(order), 4);
    assert_string_equal(mezzo_precision_name(order[0]), "fp32");
    for (int p = 0; p < MEZZO_PRECISION_COUNT; p++)
        assert_int_equal(mezzo_precision_needs_loss_scale((mezzo_precision)p),
                         strcmp(mezzo_precision_name((mezzo_precision)p), "fp16") == 0);
}

// "a b" → "`a`, `b`"
static void quoted(const char *words, char *out, size_t size) {
    size_t n = 0;
    out[0] = '\0';
    for (const char *at = words; *at != '\0';) {
        size_t length = strcspn(at, " ");
        n += (size_t)snprintf(out + n, size - n, "%s`%.*s`", n > 0 ? ", " : "", (int)length, at);
        at += length + strspn(at + length, " ");
    }
}

TEST(the_documents_table_says_what_the_list_says) {
    const char *source = getenv("MEZZO_SOURCE");
    char path[4096], line[1024], row[1024], words[512];
    int found[MEZZO_PRECISION_COUNT] = {0};
    snprintf(path, sizeof path, "%s/docs/train.md", source != NULL ? source : ".");
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("cannot open %s", path);
    while (fgets(line, sizeof line, file) != NULL)
        for (int p = 0; p < MEZZO_PRECISION_AUTO; p++) {
            const mz_precision_info *i = mz_precision((mezzo_precision)p);
            quoted(i->aliases, words, sizeof words);
            snprintf(row, sizeof row, "| `%s` | %s | %s, %s, %s | %s | %s | %s |\n", i->name, words,
                     mezzo_dtype_name(i->operand), mezzo_dtype_name(i->gradient), mezzo_dtype_name(i->output),
                     mz_scalings[i->scaling].name, i->loss_scale ? "yes" : "no", i->text);
            found[p] += strcmp(line, row) == 0;
        }
    fclose(file);
    for (int p = 0; p < MEZZO_PRECISION_AUTO; p++)
        if (found[p] != 1)
            fail_msg("docs/train.md: the table of precisions has %d rows for %s as precisions.def has it", found[p],
                     mezzo_precision_name((mezzo_precision)p));
}
