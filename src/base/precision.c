// Finds precisions by name: the table of precisions.def, and the words that users write.
#include "base/precision.h"

#include <ctype.h>

#include "base/names.h"

static const mz_precision_info table[] = {
#define PRECISION(id, name, aliases, operand, gradient, dw, output, compute, wide, scaling, loss_scale, automatic,     \
                  capability, without, instead, why, text)                                                             \
    [MEZZO_PRECISION_##id] = {name,                                                                                    \
                              aliases,                                                                                 \
                              MEZZO_##operand,                                                                         \
                              MEZZO_##gradient,                                                                        \
                              MEZZO_##dw,                                                                              \
                              MEZZO_##output,                                                                          \
                              MEZZO_##compute,                                                                         \
                              MEZZO_##wide,                                                                            \
                              MZ_SCALING_##scaling,                                                                    \
                              loss_scale,                                                                              \
                              automatic,                                                                               \
                              capability,                                                                              \
                              MZ_WITHOUT_##without,                                                                    \
                              MEZZO_PRECISION_##instead,                                                               \
                              why,                                                                                     \
                              text},
#define PRECISION_UNCLEAR(word, advice)
#include "base/precisions.def"
#undef PRECISION
#undef PRECISION_UNCLEAR
};

// Checks that the public enum and the list agree: every row has its place, none is left out, and auto comes last.
enum {
#define PRECISION(id, ...) PLACE_##id,
#define PRECISION_UNCLEAR(word, advice)
#include "base/precisions.def"
#undef PRECISION
    ROWS
};
#define PRECISION(id, ...)                                                                                             \
    _Static_assert((int)PLACE_##id == (int)MEZZO_PRECISION_##id,                                                       \
                   #id ": precisions.def and mezzo/dtype.h have one order");
#include "base/precisions.def"
#undef PRECISION
#undef PRECISION_UNCLEAR
_Static_assert((int)ROWS == (int)MEZZO_PRECISION_AUTO && MEZZO_PRECISION_COUNT == MEZZO_PRECISION_AUTO + 1,
               "mezzo/dtype.h has a precision that precisions.def has not");

static const struct {
    const char *word, *advice;
} unclear[] = {
#define PRECISION(id, ...)
#define PRECISION_UNCLEAR(word, advice) {word, advice},
#include "base/precisions.def"
#undef PRECISION
#undef PRECISION_UNCLEAR
};

#define PRECISION(id, name, ...) "|" name
#define PRECISION_UNCLEAR(word, advice)
const char mz_precision_bars[] =
#include "base/precisions.def"
    ;
const char mz_precision_bars_auto[] =
#include "base/precisions.def"
    "|auto";
#undef PRECISION
#undef PRECISION_UNCLEAR

const mz_scaling_info mz_scalings[MZ_SCALING_COUNT] = {
#define SCALING(id, name, rows, columns, history, weight) {name, rows, columns, history, MZ_SCALING_##weight},
#include "base/scalings.def"
#undef SCALING
};

const mz_precision_info *mz_precision(mezzo_precision precision) {
    return (unsigned)precision < ROWS ? &table[precision] : NULL;
}

bool mz_precision_is_everywhere(mezzo_precision precision) {
    const mz_precision_info *info = mz_precision(precision);
    return info != NULL && info->without == MZ_WITHOUT_STORE;
}

bool mz_precision_is_low(mezzo_precision precision) {
    const mz_precision_info *info = mz_precision(precision);
    return info != NULL && mezzo_dtype_size(info->output) < sizeof(float);
}

bool mezzo_precision_needs_loss_scale(mezzo_precision precision) {
    const mz_precision_info *info = mz_precision(precision);
    return info != NULL && info->loss_scale;
}

int mz_precision_common(mezzo_precision out[MEZZO_PRECISION_COUNT]) {
    int n = 0;
    for (int p = 0; p < (int)ROWS; p++)
        if (mz_precision_is_everywhere((mezzo_precision)p))
            out[n++] = (mezzo_precision)p;
    return n;
}

int mz_precision_automatic(mezzo_precision out[MEZZO_PRECISION_COUNT]) {
    int n = 0;
    for (int rank = 1; rank <= (int)ROWS; rank++)
        for (int p = 0; p < (int)ROWS; p++)
            if (table[p].automatic == rank)
                out[n++] = (mezzo_precision)p;
    return n;
}

const char *mz_precision_list(void) {
    static const char list[] =
#define PRECISION(id, name, ...) ", " name
#define PRECISION_UNCLEAR(word, advice)
#include "base/precisions.def"
#undef PRECISION
#undef PRECISION_UNCLEAR
        ;
    return list + 2;
}

const char *mezzo_precision_name(mezzo_precision precision) {
    const mz_precision_info *info = mz_precision(precision);
    return info != NULL ? info->name : precision == MEZZO_PRECISION_AUTO ? "auto" : "unknown precision";
}

// --- reading -----------------------------------------------------------------------------------------------------
enum { WORD_BYTES = 40 };

// Normalizes a word: "torch.BFloat16" → "bfloat16", "BF16_mixed" → "bf16-mixed".
static void plain(const char *text, char word[WORD_BYTES]) {
    size_t n = 0;
    if (strncmp(text, "torch.", 6) == 0)
        text += 6;
    for (; text[n] != '\0' && n + 1 < WORD_BYTES; n++)
        word[n] = text[n] == '_' ? '-' : (char)tolower((unsigned char)text[n]);
    word[n] = '\0';
}

static mezzo_status unknown(const char *name, const char *word) {
    const char *names[ROWS + 1] = {[ROWS] = "auto"};
    const size_t i = MZ_INDEX(unclear, MZ_COUNT(unclear), word, word);
    if (i < MZ_COUNT(unclear))
        return mz_fail(MEZZO_ERR_INVALID, "precision \"%s\": %s", name, unclear[i].advice);
    for (int p = 0; p < (int)ROWS; p++)
        names[p] = table[p].name;
    const char *near = mz_nearest(word, names, MZ_COUNT(names));
    return mz_fail(MEZZO_ERR_INVALID, "unknown precision \"%s\"%s%s%s: use %s or auto", name,
                   near != NULL ? "; did you mean \"" : "", near != NULL ? near : "", near != NULL ? "\"" : "",
                   mz_precision_list());
}

mezzo_status mezzo_precision_parse(const char *name, mezzo_precision *out) {
    MZ_REQUIRE(name, out);
    char word[WORD_BYTES];
    plain(name, word);
    for (int p = 0; p < (int)ROWS; p++)
        if (strcmp(table[p].name, word) == 0 || mz_is_listed(table[p].aliases, word)) {
            *out = (mezzo_precision)p;
            return MEZZO_OK;
        }
    if (strcmp(word, "auto") != 0)
        return unknown(name, word);
    *out = MEZZO_PRECISION_AUTO;
    return MEZZO_OK;
}
