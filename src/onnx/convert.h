// Declares the functions of ops.def, each of which makes the outputs of one node, and what they share.
#ifndef MZ_ONNX_CONVERT_H
#define MZ_ONNX_CONVERT_H

#include "onnx/onnx.h"

#define UNARY(...)
#define MADE(...)
#define BINARY(...)
#define COMPARE(...)
#define OP(name, function, ...) mezzo_status function(mz_onnx_call *call);
#include "onnx/ops.def"

// elements.c
typedef enum mz_onnx_act {
    MZ_ONNX_LEAKY_RELU,
    MZ_ONNX_ELU,
    MZ_ONNX_SELU,
    MZ_ONNX_CELU,
    MZ_ONNX_THRESHOLDED_RELU,
    MZ_ONNX_GELU,
    MZ_ONNX_SWISH,
    MZ_ONNX_HARD_SIGMOID,
    MZ_ONNX_HARD_SWISH,
} mz_onnx_act;
mezzo_value mz_onnx_neg(mezzo_graph *g, mezzo_value x);
mezzo_value mz_onnx_tan(mezzo_graph *g, mezzo_value x);
mezzo_value mz_onnx_mish(mezzo_graph *g, mezzo_value x);
mezzo_value mz_onnx_softsign(mezzo_graph *g, mezzo_value x);
mezzo_value mz_onnx_greater(mezzo_graph *g, mezzo_value a, mezzo_value b);
mezzo_value mz_onnx_greater_equal(mezzo_graph *g, mezzo_value a, mezzo_value b);
mezzo_value mz_onnx_mod(mezzo_graph *g, mezzo_value a, mezzo_value b);
mezzo_status mz_onnx_unary(mz_onnx_call *call);
mezzo_status mz_onnx_binary(mz_onnx_call *call);
int64_t mz_onnx_repeated(const mz_onnx_value *value, int rank, const int64_t *dim, int64_t index);

// layers.c
mezzo_status mz_onnx_linear(mz_onnx_call *call, mz_onnx_value *x, mz_onnx_value *w,
                            mezzo_value bias); // makes x·w + bias
enum {
    MZ_ONNX_L1 = 16,
    MZ_ONNX_L2,
    MZ_ONNX_SUM_SQUARE,
    MZ_ONNX_LOG_SUM,
    MZ_ONNX_LOG_SUM_EXP
}; // these follow the values of mezzo_reduction

// attention.c
typedef struct mz_onnx_attention {
    mz_onnx_value *q, *k, *v; // [B, H, T, D], [B, Hkv, S, D], [B, Hkv, S, E]
    bool k_turned;            // k is transposed: [B, Hkv, D, S]
    double scale, cap;        // cap 0: none
    mz_onnx_value *mask;      // NULL: none; a truth value says what is seen, a number is added to the scores; it
                              // broadcasts to [B, H, T, S]
    bool causal;
    bool guarded; // a query that sees no key gets zeros
} mz_onnx_attention;
// Makes output 0, [B, H, T, E]. *done false: Mezzo has no op for this form, and nothing was made.
mezzo_status mz_onnx_attend(mz_onnx_call *call, const mz_onnx_attention *a, bool *done);
// Rotates x [B, H, T, D] by known tables of angles. *done false: no theta gives these tables.
mezzo_status mz_onnx_rope(mz_onnx_call *call, mz_onnx_value *x, const mz_onnx_value *cosines,
                          const mz_onnx_value *sines, bool *done);

// Returns an axis counted from the front; -1 where the value does not have it.
int mz_onnx_axis(int64_t axis, int rank);
mezzo_status mz_onnx_bad_axis(mz_onnx_call *call, int64_t axis);
// Reads the attribute "axis" so; `initial` where the node has none.
mezzo_status mz_onnx_axis_of(mz_onnx_call *call, int64_t initial, int rank, int *axis);
// Takes every step-th of `count` elements from `begin` on along an axis of a value of the graph.
mezzo_value mz_onnx_strided(mezzo_graph *g, mezzo_value v, int axis, int64_t begin, int64_t count, int64_t step);

#endif
