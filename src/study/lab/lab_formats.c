// Describes number formats, and stores a value in each. Facts follow from the widths of the fields; a value is stored
// by the conversion that training uses, and its fields are read from the result.
#include <math.h>

#include "study/lab/lab.h"

const mz_lab_format mz_lab_formats[MZ_LAB_FORMATS] = {
    {"fp64", "IEEE binary64, double", 11, 52, MZ_SPECIALS_IEEE, MEZZO_F64, MEZZO_BLOCKS_NONE, 0, NULL},
    {"fp32", "IEEE binary32, single", 8, 23, MZ_SPECIALS_IEEE, MEZZO_F32, MEZZO_BLOCKS_NONE, 0, NULL},
    {"tf32", "TensorFloat-32, fp32 as a tensor core reads it", 8, 10, MZ_SPECIALS_IEEE, MEZZO_TF32, MEZZO_BLOCKS_NONE,
     0, NULL},
    {"bf16", "bfloat16, the upper half of fp32", 8, 7, MZ_SPECIALS_IEEE, MEZZO_BF16, MEZZO_BLOCKS_NONE, 0, NULL},
    {"fp16", "IEEE binary16, half", 5, 10, MZ_SPECIALS_IEEE, MEZZO_F16, MEZZO_BLOCKS_NONE, 0, NULL},
    {"fp8_e5m2", "OCP FP8 E5M2", 5, 2, MZ_SPECIALS_IEEE, MEZZO_F8E5M2, MEZZO_BLOCKS_NONE, 0, NULL},
    {"fp8_e4m3", "OCP FP8 E4M3FN", 4, 3, MZ_SPECIALS_NAN, MEZZO_F8E4M3, MEZZO_BLOCKS_NONE, 0, NULL},
    {"mxfp8", "OCP MXFP8: E4M3, one power of two per 32", 4, 3, MZ_SPECIALS_NAN, MEZZO_DTYPE_COUNT, MEZZO_BLOCKS_MXFP8,
     32, "8-bit power of two (E8M0)"},
    {"mxfp4", "OCP MXFP4: E2M1, one power of two per 32", 2, 1, MZ_SPECIALS_NONE, MEZZO_DTYPE_COUNT, MEZZO_BLOCKS_MXFP4,
     32, "8-bit power of two (E8M0)"},
    {"nvfp4", "NVFP4: E2M1, one E4M3 scale per 16", 2, 1, MZ_SPECIALS_NONE, MEZZO_DTYPE_COUNT, MEZZO_BLOCKS_NVFP4, 16,
     "FP8 E4M3"},
};

const mz_lab_format *mz_lab_format_find(const char *name) {
    return MZ_FIND(mz_lab_formats, MZ_LAB_FORMATS, name, name);
}

// --- facts ---------------------------------------------------------------------------------------------------------
static int bias_of(const mz_lab_format *f) {
    return (1 << (f->exponent - 1)) - 1;
}

static double largest_of(const mz_lab_format *f) {
    int top = (1 << f->exponent) - 1 - bias_of(f); // exponent of the largest field
    double ulps = ldexp(1, -f->fraction);
    switch (f->specials) {
    case MZ_SPECIALS_IEEE:
        return ldexp(2 - ulps, top - 1); // the largest field means infinity and NaN
    case MZ_SPECIALS_NAN:
        return ldexp(2 - 2 * ulps, top); // only the last code is NaN
    default:
        return ldexp(2 - ulps, top);
    }
}

mz_lab_format_facts mz_lab_format_describe(const mz_lab_format *f) {
    int bits = 1 + f->exponent + f->fraction;
    uint64_t half = UINT64_C(1) << (bits - 1); // number of codes with one sign
    uint64_t none = f->specials == MZ_SPECIALS_IEEE ? UINT64_C(1) << f->fraction : f->specials == MZ_SPECIALS_NAN;
    double subnormal = ldexp(1, 1 - bias_of(f) - f->fraction);
    // NVFP4's FP32 scale of the whole tensor is negligible beside its elements.
    return (mz_lab_format_facts){.format = *f,
                                 .bits = bits,
                                 .bias = bias_of(f),
                                 .largest = largest_of(f),
                                 .smallest_normal = ldexp(1, 1 - bias_of(f)),
                                 .smallest_subnormal = subnormal,
                                 .epsilon = ldexp(1, -f->fraction),
                                 .digits = (f->fraction + 1) * log10(2),
                                 .zero = subnormal / 2,
                                 .finite = 2 * (half - none) - 1,
                                 .bits_a_value = bits + (f->block > 0 ? 8.0 / f->block : 0)};
}

// --- storing -------------------------------------------------------------------------------------------------------
const char *mz_fate_name(mz_fate fate) {
    static const char *const names[] = {"exact", "rounded", "subnormal", "underflow", "overflow", "nan"};
    return names[fate];
}

// Reads sign, exponent and fraction of a value that the format holds.
static void read_fields(const mz_lab_format *f, double v, mz_stored *out) {
    uint64_t top = (UINT64_C(1) << f->exponent) - 1, ones = (UINT64_C(1) << f->fraction) - 1;
    int smallest = 1 - bias_of(f);
    out->sign = signbit(v) != 0;
    if (isnan(v)) {
        out->exponent = top;
        out->fraction = f->specials == MZ_SPECIALS_NAN ? ones : UINT64_C(1) << (f->fraction - 1);
    } else if (isinf(v)) {
        out->exponent = top;
        out->fraction = 0;
    } else if (fabs(v) < ldexp(1, smallest)) {
        out->exponent = 0;
        out->fraction = (uint64_t)ldexp(fabs(v), f->fraction - smallest);
    } else {
        int e = ilogb(v);
        out->exponent = (uint64_t)(e + bias_of(f));
        out->fraction = (uint64_t)ldexp(ldexp(fabs(v), -e) - 1, f->fraction);
    }
    out->code = (uint64_t)out->sign << (f->exponent + f->fraction) | out->exponent << f->fraction | out->fraction;
}

static mz_fate fate_of(const mz_lab_format *f, double x, double element, double stored) {
    double most = largest_of(f);
    if (isnan(x))
        return MZ_FATE_NAN;
    if (!isfinite(x) || !isfinite(stored))
        return MZ_FATE_OVERFLOW;
    if (f->block > 0 && fabs(element) == most &&
        fabs(x) > fabs(stored) * (1 + ldexp(0.5, ilogb(most) - f->fraction) / most))
        return MZ_FATE_OVERFLOW; // a larger scale would have rounded it to the largest value
    if (stored == 0 && x != 0)
        return MZ_FATE_UNDERFLOW;
    if (x != 0 && fabs(element) < ldexp(1, 1 - bias_of(f)))
        return MZ_FATE_SUBNORMAL;
    return stored == x ? MZ_FATE_EXACT : MZ_FATE_ROUNDED;
}

// Stores x as the largest number of its block, and of its tensor.
static double store_block(const mz_lab_format *f, double x, mz_stored *out) {
    uint8_t code, scale;
    float number = isfinite(x) ? (float)fmax(-3e38, fmin(3e38, x)) : (float)x;
    mz_blocks_encode(f->blocks, &number, 1, 1, &code, &scale);
    if (x == 0 || !isfinite(x))
        scale = mz_blocks_scale(f->blocks, (float)largest_of(f), 1); // 1: the rule gives no scale for such a block
    out->scale = (double)mz_blocks_scale_value(f->blocks, scale);
    return (double)mz_blocks_element(f->blocks, code);
}

mz_stored mz_lab_format_store(const mz_lab_format *f, double x) {
    mz_stored out = {.scale = 1};
    double element = f->block > 0 ? store_block(f, x, &out) : mezzo_round_to(x, f->dtype);
    read_fields(f, element, &out);
    out.value = element * out.scale;
    out.relative = x == 0 ? 0 : fabs(out.value - x) / fabs(x);
    if (!isfinite(out.value) || !isfinite(x))
        out.relative = NAN;
    out.fate = fate_of(f, x, element, out.value);
    return out;
}
