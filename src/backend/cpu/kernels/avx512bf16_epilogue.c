// Runs the epilogue of whole rows of 32 columns, for the formats that training stores: 16-bit results, or FP32 ones
// with a residual. Each kind of work, format and activation is compiled separately, and vcvtne2ps2bf16 rounds to BF16:
// two operations for 32 numbers where integer arithmetic takes twenty. An activation must not take longer than the
// tile's products.
//
// It has the bits of matmul_epilogue.c (a NaN may be another NaN). The instruction takes subnormals as zero, so a row
// that has one is rounded by integers.
#include "backend/cpu/kernels/act.h"
#include "backend/cpu/matmul.h"

#define INLINE    static inline __attribute__((always_inline))
#define SUBNORMAL 0x20 // the class of vfpclassps

typedef struct two {
    vf low, high; // columns 0 to 15 and 16 to 31
} two;

INLINE two widened(__m512i x, bool f16) {
    vh low = (vh)_mm512_castsi512_si256(x), high = (vh)_mm512_extracti64x4_epi64(x, 1);
    return f16 ? (two){from_f16(low), from_f16(high)} : (two){from_bf16(low), from_bf16(high)};
}

INLINE __m512i joined(vh low, vh high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)low), (__m256i)high, 1);
}

INLINE __m512i narrowed(two x, bool f16) {
    if (f16)
        return joined(to_f16(x.low), to_f16(x.high));
    __mmask16 any =
        _mm512_fpclass_ps_mask((__m512)x.low, SUBNORMAL) | _mm512_fpclass_ps_mask((__m512)x.high, SUBNORMAL);
    if (__builtin_expect(any != 0, 0))
        return joined(to_bf16(x.low), to_bf16(x.high));
    return (__m512i)_mm512_cvtne2ps_pbh((__m512)x.high, (__m512)x.low);
}

INLINE two load_16(const void *p, bool f16) {
    return widened(_mm512_loadu_si512(p), f16);
}

INLINE two load_32(const void *p) {
    return (two){(vf)_mm512_loadu_ps(p), (vf)_mm512_loadu_ps((const float *)p + VW)};
}

static two load_bias(const mz_matmul_epilogue *e, int64_t column) {
    if (e->bias == NULL)
        return (two){vset(-0.0f), vset(-0.0f)}; // it keeps a sum of -0
    if (e->bias_dtype == MEZZO_F32)
        return load_32((const float *)e->bias + column);
    return load_16((const uint16_t *)e->bias + column, e->bias_dtype == MEZZO_F16);
}

typedef enum work {
    PLAIN,        // y = z, z = sum + bias in 16 bits
    ACTIVATION,   // preact = z where it is kept; y = act(z)
    RESIDUAL,     // y = z + residual, in 16 bits
    RESIDUAL_F32, // y = z + residual, both FP32
    GRADIENT,     // y = sum · act'(preact)
} work;

INLINE void finish(const mz_matmul_epilogue *e, const float *tile, int64_t ld_tile, int64_t row, int64_t column,
                   int rows, work what, bool f16, mz_act act) {
    const two bias = load_bias(e, column);
    for (int i = 0; i < rows; i++, tile += ld_tile) {
        const int64_t at = (row + i) * e->ld + column;
        uint16_t *y = (uint16_t *)e->y + at;
        two x = load_32(tile);
        if (what == GRADIENT) {
            two z = load_16((const uint16_t *)e->preact + at, f16);
            x = (two){vact_dx(act, x.low, z.low), vact_dx(act, x.high, z.high)};
            _mm512_storeu_si512(y, narrowed(x, f16));
            continue;
        }
        __m512i z = narrowed((two){x.low + bias.low, x.high + bias.high}, f16);
        if (what == ACTIVATION) {
            if (e->preact != NULL)
                _mm512_storeu_si512((uint16_t *)e->preact + at, z);
            x = widened(z, f16);
            z = narrowed((two){vact(act, x.low), vact(act, x.high)}, f16);
        } else if (what == RESIDUAL) {
            two r = load_16((const uint16_t *)e->residual + at, f16);
            x = widened(z, f16);
            z = narrowed((two){x.low + r.low, x.high + r.high}, f16);
        } else if (what == RESIDUAL_F32) {
            two r = load_32((const float *)e->residual + at);
            x = widened(z, f16);
            _mm512_storeu_ps((float *)e->y + at, (__m512)(x.low + r.low));
            _mm512_storeu_ps((float *)e->y + at + VW, (__m512)(x.high + r.high));
            continue;
        }
        _mm512_storeu_si512(y, z);
    }
}

typedef void finish_fn(const mz_matmul_epilogue *e, const float *tile, int64_t ld_tile, int64_t row, int64_t column,
                       int rows);

#define FINISH(name, what, f16, act)                                                                                   \
    static void name(const mz_matmul_epilogue *e, const float *tile, int64_t ld_tile, int64_t row, int64_t column,     \
                     int rows) {                                                                                       \
        finish(e, tile, ld_tile, row, column, rows, what, f16, act);                                                   \
    }
#define FORMATS(name, what, act)                                                                                       \
    FINISH(name##_bf16, what, false, act)                                                                              \
    FINISH(name##_f16, what, true, act)
#define ACTIVATIONS(name, what)                                                                                        \
    FORMATS(name##_relu, what, MZ_ACT_RELU)                                                                            \
    FORMATS(name##_gelu, what, MZ_ACT_GELU)                                                                            \
    FORMATS(name##_gelu_tanh, what, MZ_ACT_GELU_TANH)                                                                  \
    FORMATS(name##_silu, what, MZ_ACT_SILU)
FORMATS(plain, PLAIN, MZ_ACT_NONE)
FORMATS(residual, RESIDUAL, MZ_ACT_NONE)
FORMATS(residual_f32, RESIDUAL_F32, MZ_ACT_NONE)
ACTIVATIONS(activation, ACTIVATION)
ACTIVATIONS(gradient, GRADIENT)

#define OF(name) [MZ_ACT_##name]
#define BOTH(name)                                                                                                     \
    { name##_bf16, name##_f16 }
#define EACH(name)                                                                                                     \
    {                                                                                                                  \
        OF(RELU) = BOTH(name##_relu), OF(GELU) = BOTH(name##_gelu), OF(GELU_TANH) = BOTH(name##_gelu_tanh),            \
        OF(SILU) = BOTH(name##_silu)                                                                                   \
    }
static finish_fn *const activations[][2] = EACH(activation), *const gradients[][2] = EACH(gradient);

static finish_fn *choose(const mz_matmul_epilogue *e) {
    static finish_fn *const plains[2] = BOTH(plain), *const residuals[2] = BOTH(residual),
                            *const residuals_f32[2] = BOTH(residual_f32);
    const bool once = e->via == MEZZO_F32 || e->via == MEZZO_F64;
    if (e->add)
        return NULL;
    if (e->y_dtype == MEZZO_F32) {
        bool fits = !once && e->residual != NULL && e->residual_dtype == MEZZO_F32 && e->act == MZ_ACT_NONE &&
                    e->preact == NULL && (e->via == MEZZO_BF16 || e->via == MEZZO_F16);
        return fits ? residuals_f32[e->via == MEZZO_F16] : NULL;
    }
    const int f16 = e->y_dtype == MEZZO_F16;
    if (e->act_gradient) {
        if (e->preact == NULL)
            return e->bias == NULL ? plains[f16] : NULL;
        return e->preact_dtype == e->y_dtype && e->act != MZ_ACT_NONE ? gradients[e->act][f16] : NULL;
    }
    // z is rounded to the stored format, and so are results computed from it.
    if (e->act == MZ_ACT_NONE && e->preact == NULL && e->residual == NULL)
        return once || e->via == e->y_dtype ? plains[f16] : NULL;
    if (e->via != e->y_dtype || (e->preact != NULL && e->preact_dtype != e->y_dtype))
        return NULL;
    if (e->act != MZ_ACT_NONE)
        return e->residual == NULL ? activations[e->act][f16] : NULL;
    return e->preact == NULL && e->residual_dtype == e->y_dtype ? residuals[f16] : NULL;
}

bool mz_matmul_finish_32(const mz_matmul_epilogue *e, const float *tile, int64_t ld_tile, int64_t row, int64_t column,
                         int rows) {
    finish_fn *f = choose(e);
    if (f != NULL)
        f(e, tile, ld_tile, row, column, rows);
    return f != NULL;
}
