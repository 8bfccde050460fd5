#include "train/rounding.h"

#include <math.h>

#include "base/scope.h"
#include "graph/op.h"

// --- formats -----------------------------------------------------------------------------------------------------
static bool rounds_operands(const mz_precision_info *p) {
    return p != NULL && p->scaling != MZ_SCALING_NONE && p->dw == p->operand;
}

static mezzo_status refuse(const char *name) {
    MZ_SCOPED(mz_text_free) mz_text names = {0};
    for (int b = MEZZO_BLOCKS_NONE + 1; b < MEZZO_BLOCKS_COUNT; b++)
        mz_text_addf(&names, "%s%s", names.len > 0 ? ", " : "", mezzo_blocks_name((mezzo_blocks)b));
    for (int p = 0; p < MEZZO_PRECISION_COUNT; p++)
        if (rounds_operands(mz_precision((mezzo_precision)p)))
            mz_text_addf(&names, ", %s", mezzo_precision_name((mezzo_precision)p));
    return names.status != MEZZO_OK
               ? names.status
               : mz_fail(MEZZO_ERR_INVALID, "\"%s\" is no format of scaled operands: use %s", name, names.data);
}

mezzo_status mz_rounding_parse(const char *name, mz_rounding_format *out) {
    mezzo_precision precision;
    *out = (mz_rounding_format){0};
    for (int b = MEZZO_BLOCKS_NONE + 1; b < MEZZO_BLOCKS_COUNT; b++)
        if (strcmp(name, mezzo_blocks_name((mezzo_blocks)b)) == 0)
            out->blocks = (mezzo_blocks)b;
    if (out->blocks == MEZZO_BLOCKS_NONE) {
        if (mezzo_precision_parse(name, &precision) != MEZZO_OK || !rounds_operands(mz_precision(precision)))
            return refuse(name);
        out->precision = mz_precision(precision);
    }
    snprintf(out->name, sizeof out->name, "%s",
             out->precision != NULL ? out->precision->name : mezzo_blocks_name(out->blocks));
    return MEZZO_OK;
}

// --- statistics --------------------------------------------------------------------------------------------------
static void add_scales(float scale, int64_t n, mz_rounding *out) {
    const double log = log2((double)scale);
    out->scales += n;
    out->log2_sum += (double)n * log;
    out->log2_squares += (double)n * log * log;
    out->counts[mz_histogram_bucket((uint32_t)mz_float_bits(scale))] += n;
}

mz_rounding mz_rounding_of(const mz_rounding_how *how, const mz_rounding_sums *found, int64_t elements) {
    const mz_rounding_form form = mz_rounding_form_of(how);
    mz_rounding out = {.elements = elements,
                       .nonzero = found->nonzero,
                       .not_finite = found->not_finite,
                       .underflow = found->underflow,
                       .saturated = found->saturated,
                       .squares = found->squares,
                       .error = found->error};
    for (int c = 0; c < MZ_SCALE_CODES; c++)
        if (found->scales[c] > 0)
            add_scales(mz_scale_of_code(form.rule, c, mz_scale_of_tensor(found->amax)), found->scales[c], &out);
    return out;
}
