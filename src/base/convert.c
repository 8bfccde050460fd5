// Implements the number formats: names, sizes and the conversions. They use integer arithmetic on the bits, so that
// neither the rounding mode nor flush-to-zero of the calling thread can change a result.
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/sort.h"

// --- names ---------------------------------------------------------------------------------------------------------
static const struct {
    const char *name;
    size_t size;
} dtypes[MEZZO_DTYPE_COUNT] = {
    [MEZZO_F64] = {"fp64", 8},        [MEZZO_F32] = {"fp32", 4}, [MEZZO_TF32] = {"tf32", 4},
    [MEZZO_BF16] = {"bf16", 2},       [MEZZO_F16] = {"fp16", 2}, [MEZZO_F8E4M3] = {"fp8_e4m3", 1},
    [MEZZO_F8E5M2] = {"fp8_e5m2", 1}, [MEZZO_I64] = {"i64", 8},  [MEZZO_I32] = {"i32", 4},
    [MEZZO_U16] = {"u16", 2},         [MEZZO_U8] = {"u8", 1},
};

static bool dtype_is_valid(mezzo_dtype dtype) {
    return (unsigned)dtype < MEZZO_DTYPE_COUNT;
}

size_t mezzo_dtype_size(mezzo_dtype dtype) {
    return dtype_is_valid(dtype) ? dtypes[dtype].size : 0;
}

const char *mezzo_dtype_name(mezzo_dtype dtype) {
    return dtype_is_valid(dtype) ? dtypes[dtype].name : "unknown dtype";
}

double mz_unit_roundoff(mezzo_dtype dtype) {
    static const double units[MEZZO_DTYPE_COUNT] = {
        [MEZZO_F64] = 0x1p-53, [MEZZO_F32] = 0x1p-24,   [MEZZO_TF32] = 0x1p-11,  [MEZZO_F16] = 0x1p-11,
        [MEZZO_BF16] = 0x1p-8, [MEZZO_F8E4M3] = 0x1p-4, [MEZZO_F8E5M2] = 0x1p-3,
    };
    return dtype_is_valid(dtype) ? units[dtype] : 0;
}

double mz_dtype_largest(mezzo_dtype dtype) {
    static const double largest[MEZZO_DTYPE_COUNT] = {
        [MEZZO_F64] = 0x1.fffffffffffffp1023,
        [MEZZO_F32] = 0x1.fffffep127,
        [MEZZO_TF32] = 0x1.ffcp127,
        [MEZZO_BF16] = 0x1.fep127,
        [MEZZO_F16] = 65504,
        [MEZZO_F8E4M3] = 448,
        [MEZZO_F8E5M2] = 57344,
    };
    return dtype_is_valid(dtype) ? largest[dtype] : 0;
}

// --- bits ----------------------------------------------------------------------------------------------------------
static uint32_t f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float f32_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t f64_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// Returns v / 2^shift, rounded to nearest, ties to even; 1 <= shift <= 63, v < 2^63.
static inline uint64_t shift_nearest_even(uint64_t v, unsigned shift) {
    return (v + ((UINT64_C(1) << (shift - 1)) - 1) + ((v >> shift) & 1)) >> shift;
}

// Describes a binary format with a sign bit, `exponent` bits and `fraction` bits. `overflow` is the code for every
// number that is too large: infinity, or E4M3's only NaN. Values are in the order of their codes, so a carry out of the
// fraction rounds to the next exponent, and the code after the largest value is the first to overflow.
typedef struct format {
    unsigned exponent, fraction;
    uint64_t overflow, nan;
} format;

static const format f16_format = {5, 10, 0x7C00, 0x7E00};
static const format bf16_format = {8, 7, 0x7F80, 0x7FC0};
static const format tf32_format = {8, 10, 0xFF << 10, 0xFF << 10 | 1 << 9};
static const format e4m3_format = {4, 3, 0x7F, 0x7F};
static const format e5m2_format = {5, 2, 0x7C, 0x7E};
// In this format every number that is too large becomes the largest.
static const format e4m3_saturating = {4, 3, 0x7E, 0x7F};
static const format e5m2_saturating = {5, 2, 0x7B, 0x7E};
static const format e2m1_saturating = {2, 1, 0x7, 0x7};

static inline uint64_t encode(double x, format f) {
    uint64_t bits = f64_bits(x);
    uint64_t sign = (bits >> 63) << (f.exponent + f.fraction);
    uint64_t magnitude = bits & (UINT64_MAX >> 1);
    unsigned drop = 52 - f.fraction;
    int bias = (1 << (f.exponent - 1)) - 1;
    int exponent = (int)(magnitude >> 52) - 1023;
    if (magnitude > UINT64_C(0x7FF) << 52) // NaN: quiet, the payload's top bits kept, as the hardware's conversions do
        return sign | f.nan | ((magnitude >> drop) & ((UINT64_C(1) << f.fraction) - 1));
    if (exponent > bias + 1)
        return sign | f.overflow;
    uint64_t code;
    if (exponent >= 1 - bias) {
        code = shift_nearest_even(magnitude - ((uint64_t)(1023 - bias) << 52), drop);
    } else {
        // Subnormal: the unit is fixed at 2^(1 - bias - fraction).
        unsigned shift = drop + (unsigned)(1 - bias - exponent);
        uint64_t significand = (magnitude & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;
        code = shift >= 54 ? 0 : shift_nearest_even(significand, shift); // from 54 on it is less than half of the
                                                                         // smallest value
    }
    return sign | (code < f.overflow ? code : f.overflow);
}

// Decodes formats of at most 5 exponent bits, all of whose values are normal floats.
static inline float decode_small(uint32_t code, format f) {
    uint32_t sign = (code >> (f.exponent + f.fraction)) << 31;
    uint32_t magnitude = code & ((1u << (f.exponent + f.fraction)) - 1);
    uint32_t bias = (1u << (f.exponent - 1)) - 1, drop = 23 - f.fraction;
    if (magnitude >= f.overflow) {
        uint32_t payload = (magnitude & ((1u << f.fraction) - 1)) << drop;
        bool is_nan = magnitude > f.overflow || f.nan == f.overflow;
        return f32_from_bits(sign | 0x7F800000u | payload | (is_nan ? 0x00400000u : 0));
    }
    if (magnitude >> f.fraction == 0) // it is subnormal or zero: a small integer times a power of two, exactly
        return f32_from_bits(f32_bits((float)magnitude * f32_from_bits((128 - bias - f.fraction) << 23)) | sign);
    return f32_from_bits(sign | ((magnitude << drop) + ((127 - bias) << 23)));
}

// --- single values -------------------------------------------------------------------------------------------------
uint16_t mezzo_f32_to_f16(float x) {
    uint32_t bits = f32_bits(x);
    uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
    if (magnitude >= 0x47800000u) // 2^16; numbers from 65520 to here carry into infinity's code below
        return (uint16_t)(sign | 0x7C00u);
    if (magnitude >= 0x38800000u) { // 2^-14: normal; 112 is the difference of the biases
        uint32_t rebiased = magnitude - (112u << 23);
        return (uint16_t)(sign | ((rebiased + 0xFFFu + ((rebiased >> 13) & 1u)) >> 13));
    }
    uint32_t exponent = magnitude >> 23;
    if (exponent < 102) // x is below 2^-25, half of the smallest subnormal
        return (uint16_t)sign;
    return (uint16_t)(sign | shift_nearest_even((magnitude & 0x7FFFFFu) | 0x800000u, 126 - exponent));
}

uint16_t mezzo_f64_to_f16(double x) {
    return (uint16_t)encode(x, f16_format);
}

float mezzo_f16_to_f32(uint16_t bits) {
    return decode_small(bits, f16_format);
}

static inline uint16_t narrow_bf16(float x) {
    const uint32_t bits = f32_bits(x), nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

static inline float widen_bf16(uint16_t bits) {
    return f32_from_bits((uint32_t)bits << 16);
}

uint16_t mezzo_f32_to_bf16(float x) {
    return narrow_bf16(x);
}

uint16_t mezzo_f64_to_bf16(double x) {
    return (uint16_t)encode(x, bf16_format);
}

float mezzo_bf16_to_f32(uint16_t bits) {
    return widen_bf16(bits);
}

float mezzo_f32_to_tf32(float x) {
    uint32_t bits = f32_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return f32_from_bits((bits | 0x00400000u) & ~0x1FFFu);
    return f32_from_bits((bits + 0xFFFu + ((bits >> 13) & 1u)) & ~0x1FFFu);
}

uint8_t mezzo_f32_to_e4m3(float x) {
    return (uint8_t)encode((double)x, e4m3_format);
}

float mezzo_e4m3_to_f32(uint8_t bits) {
    return decode_small(bits, e4m3_format);
}

uint8_t mezzo_f32_to_e5m2(float x) {
    return (uint8_t)encode((double)x, e5m2_format);
}

float mezzo_e5m2_to_f32(uint8_t bits) {
    return decode_small(bits, e5m2_format);
}

uint8_t mezzo_f32_to_e4m3_saturating(float x) {
    return (uint8_t)encode((double)x, e4m3_saturating);
}

uint8_t mezzo_f32_to_e5m2_saturating(float x) {
    return (uint8_t)encode((double)x, e5m2_saturating);
}

uint8_t mezzo_f32_to_e2m1(float x) {
    return (uint8_t)encode((double)x, e2m1_saturating);
}

float mezzo_e2m1_to_f32(uint8_t bits) {
    static const float values[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    float magnitude = values[bits & 7];
    return (bits & 8) != 0 ? -magnitude : magnitude;
}

uint8_t mezzo_f32_to_e8m0(float x) {
    uint64_t bits = f64_bits((double)x); // every positive float is a normal double
    if (!(x > 0))
        return 0xFF;
    uint64_t code = (bits + (UINT64_C(1) << 51)) >> 52; // of a double, whose normal powers of two begin with 2^-1022
    return (uint8_t)(code < 1023 - 127 ? 0 : code > 1023 + 127 ? 0xFF : code - (1023 - 127));
}

float mezzo_e8m0_to_f32(uint8_t bits) {
    return f32_from_bits(bits == 0xFF ? 0x7FC00000u : bits == 0 ? 0x00400000u : (uint32_t)bits << 23);
}

static double round_to_tf32(double x) {
    return (double)f32_from_bits((uint32_t)(encode(x, tf32_format) << 13));
}

double mezzo_round_to(double x, mezzo_dtype dtype) {
    switch (dtype) {
    case MEZZO_F32:
        return (double)(float)x;
    case MEZZO_TF32:
        return round_to_tf32(x);
    case MEZZO_BF16:
        return (double)mezzo_bf16_to_f32(mezzo_f64_to_bf16(x));
    case MEZZO_F16:
        return (double)mezzo_f16_to_f32(mezzo_f64_to_f16(x));
    case MEZZO_F8E4M3:
        return (double)mezzo_e4m3_to_f32((uint8_t)encode(x, e4m3_format));
    case MEZZO_F8E5M2:
        return (double)mezzo_e5m2_to_f32((uint8_t)encode(x, e5m2_format));
    default:
        return x;
    }
}

uint16_t mezzo_f32_to_bf16_stochastic(float x, uint32_t random) {
    uint32_t bits = f32_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    // The probability of a carry is exactly the discarded 16 bits over 2^16.
    uint16_t rounded = (uint16_t)((bits + (random >> 16)) >> 16);
    bool became_infinite = (rounded & 0x7FFFu) == 0x7F80u && (bits & 0x7FFFFFFFu) != 0x7F800000u;
    return became_infinite ? mezzo_f32_to_bf16(x) : rounded;
}

// --- arrays --------------------------------------------------------------------------------------------------------
// Elements are read and written with memcpy, because a mapped file's tensors may be unaligned.
double mz_load_float(const void *src, mezzo_dtype dtype) {
    double f64;
    float f32;
    uint16_t u16;
    switch (dtype) {
    case MEZZO_F64:
        memcpy(&f64, src, sizeof f64);
        return f64;
    case MEZZO_F32:
    case MEZZO_TF32:
        memcpy(&f32, src, sizeof f32);
        return (double)f32;
    case MEZZO_BF16:
        memcpy(&u16, src, sizeof u16);
        return (double)mezzo_bf16_to_f32(u16);
    case MEZZO_F16:
        memcpy(&u16, src, sizeof u16);
        return (double)mezzo_f16_to_f32(u16);
    case MEZZO_F8E4M3:
        return (double)mezzo_e4m3_to_f32(*(const uint8_t *)src);
    default:
        return (double)mezzo_e5m2_to_f32(*(const uint8_t *)src);
    }
}

static void store_float(char *dst, mezzo_dtype dtype, double x) {
    float f32;
    uint16_t u16;
    uint8_t u8;
    switch (dtype) {
    case MEZZO_F64:
        memcpy(dst, &x, sizeof x);
        return;
    case MEZZO_F32:
    case MEZZO_TF32:
        f32 = dtype == MEZZO_F32 ? (float)x : (float)round_to_tf32(x);
        memcpy(dst, &f32, sizeof f32);
        return;
    case MEZZO_BF16:
    case MEZZO_F16:
        u16 = dtype == MEZZO_BF16 ? mezzo_f64_to_bf16(x) : mezzo_f64_to_f16(x);
        memcpy(dst, &u16, sizeof u16);
        return;
    default:
        u8 = (uint8_t)encode(x, dtype == MEZZO_F8E4M3 ? e4m3_format : e5m2_format);
        memcpy(dst, &u8, sizeof u8);
        return;
    }
}

int64_t mz_load_integer(const void *src, mezzo_dtype dtype) {
    int64_t i64;
    int32_t i32;
    uint16_t u16;
    switch (dtype) {
    case MEZZO_I64:
        memcpy(&i64, src, sizeof i64);
        return i64;
    case MEZZO_I32:
        memcpy(&i32, src, sizeof i32);
        return i32;
    case MEZZO_U16:
        memcpy(&u16, src, sizeof u16);
        return u16;
    default:
        return *(const uint8_t *)src;
    }
}

// Stores an integer; false when the dtype cannot represent the value.
static bool store_integer(char *dst, mezzo_dtype dtype, int64_t v) {
    int32_t i32 = (int32_t)v;
    uint16_t u16 = (uint16_t)v;
    uint8_t u8 = (uint8_t)v;
    switch (dtype) {
    case MEZZO_I64:
        memcpy(dst, &v, sizeof v);
        return true;
    case MEZZO_I32:
        memcpy(dst, &i32, sizeof i32);
        return i32 == v;
    case MEZZO_U16:
        memcpy(dst, &u16, sizeof u16);
        return u16 == v;
    default:
        memcpy(dst, &u8, sizeof u8);
        return u8 == v;
    }
}

// Returns an integer as a double that rounds to any narrower format as the integer itself would: a 64-bit integer has
// more bits than a double, so the excess bits become one sticky bit, far below the rounding position of every format
// (and well inside the double).
static double integer_to_sticky(int64_t v) {
    if (v > -(INT64_C(1) << 53) && v < INT64_C(1) << 53)
        return (double)v;
    uint64_t magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    uint64_t folded = (magnitude & ~UINT64_C(0x7FF)) | ((magnitude & 0x7FF) != 0 ? UINT64_C(0x800) : 0);
    return v < 0 ? -(double)folded : (double)folded;
}

static bool is_float(mezzo_dtype dtype) {
    return dtype < MEZZO_I64;
}

static mezzo_status check_pair(mezzo_dtype src, mezzo_dtype dst) {
    if (!dtype_is_valid(src) || !dtype_is_valid(dst))
        return mz_fail(MEZZO_ERR_INVALID, "cannot convert dtype %d to dtype %d: no such dtype", (int)src, (int)dst);
    bool one_is_tf32 = src == MEZZO_TF32 || dst == MEZZO_TF32;
    if (one_is_tf32 && src != dst && src != MEZZO_F32 && dst != MEZZO_F32)
        return mz_fail(MEZZO_ERR_INVALID, "cannot convert %s to %s: tf32 converts only to and from fp32",
                       mezzo_dtype_name(src), mezzo_dtype_name(dst));
    return MEZZO_OK;
}

static mezzo_status convert_element(const char *src, mezzo_dtype from, char *dst, mezzo_dtype to) {
    if (!is_float(from)) {
        int64_t v = mz_load_integer(src, from);
        if (is_float(to))
            store_float(dst, to, to == MEZZO_F64 ? (double)v : integer_to_sticky(v));
        else if (!store_integer(dst, to, v))
            return mz_fail(MEZZO_ERR_INVALID, "cannot convert %lld to %s: out of range", (long long)v,
                           mezzo_dtype_name(to));
        return MEZZO_OK;
    }
    double x = mz_load_float(src, from);
    if (is_float(to)) {
        store_float(dst, to, x);
        return MEZZO_OK;
    }
    if (!(x >= -0x1p63 && x < 0x1p63) || !store_integer(dst, to, (int64_t)x))
        return mz_fail(MEZZO_ERR_INVALID, "cannot convert %g to %s: out of range", x, mezzo_dtype_name(to));
    return MEZZO_OK;
}

// Converts pairs of formats in bulk, with loops for BF16 that compilers can turn into vectors. False for every other
// pair.
static bool convert_common(const char *src, mezzo_dtype from, char *dst, mezzo_dtype to, size_t n) {
    const bool narrows = from == MEZZO_F32 && (to == MEZZO_BF16 || to == MEZZO_F16);
    const bool widens = to == MEZZO_F32 && (from == MEZZO_BF16 || from == MEZZO_F16);
    const bool brain = from == MEZZO_BF16 || to == MEZZO_BF16;
    float x;
    uint16_t bits;
#pragma omp simd private(x, bits)
    for (size_t i = 0; i < (narrows && brain ? n : 0); i++) {
        memcpy(&x, src + 4 * i, sizeof x);
        bits = narrow_bf16(x);
        memcpy(dst + 2 * i, &bits, sizeof bits);
    }
#pragma omp simd private(x, bits)
    for (size_t i = 0; i < (widens && brain ? n : 0); i++) {
        memcpy(&bits, src + 2 * i, sizeof bits);
        x = widen_bf16(bits);
        memcpy(dst + 4 * i, &x, sizeof x);
    }
    for (size_t i = 0; narrows && !brain && i < n; i++) {
        memcpy(&x, src + 4 * i, sizeof x);
        bits = mezzo_f32_to_f16(x);
        memcpy(dst + 2 * i, &bits, sizeof bits);
    }
    for (size_t i = 0; widens && !brain && i < n; i++) {
        memcpy(&bits, src + 2 * i, sizeof bits);
        x = mezzo_f16_to_f32(bits);
        memcpy(dst + 4 * i, &x, sizeof x);
    }
    return narrows || widens;
}

mezzo_status mezzo_convert(const void *src, mezzo_dtype src_dtype, void *dst, mezzo_dtype dst_dtype, size_t n) {
    MEZZO_TRY(check_pair(src_dtype, dst_dtype));
    if (n > 0)
        MZ_REQUIRE(src, dst);
    size_t src_size = mezzo_dtype_size(src_dtype), dst_size = mezzo_dtype_size(dst_dtype);
    if (src_dtype == dst_dtype || (src_dtype == MEZZO_TF32 && dst_dtype == MEZZO_F32)) {
        if (n > 0)
            memmove(dst, src, n * src_size);
        return MEZZO_OK;
    }
    if (convert_common(src, src_dtype, dst, dst_dtype, n))
        return MEZZO_OK;
    for (size_t i = 0; i < n; i++)
        MEZZO_TRY(convert_element((const char *)src + i * src_size, src_dtype, (char *)dst + i * dst_size, dst_dtype));
    return MEZZO_OK;
}

// Returns whether all numbers are finite: the exponent of others has all its bits set. It takes sixteen numbers at a
// time, for which compilers use vectors.
bool mz_all_finite(const float *x, size_t n) {
    enum { EXPONENT = 0x7F800000, SOME = 16 };
    uint32_t bits[SOME], bad = 0;
    for (; n >= SOME; n -= SOME, x += SOME) {
        memcpy(bits, x, sizeof bits);
        for (int i = 0; i < SOME; i++)
            bad |= (uint32_t)((bits[i] & EXPONENT) == EXPONENT);
    }
    for (size_t i = 0; i < n; i++)
        bad |= (uint32_t)!isfinite(x[i]);
    return bad == 0;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void mz_sort(double *x, size_t n) {
    if (n > 1)
        qsort(x, n, sizeof *x, by_value);
}

double mz_median(double *x, size_t n) {
    mz_sort(x, n);
    return n % 2 == 1 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}
