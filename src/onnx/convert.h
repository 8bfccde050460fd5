// Declares the functions of ops.def, each of which makes the outputs of one node. `which` is the row's.
#ifndef MZ_ONNX_CONVERT_H
#define MZ_ONNX_CONVERT_H

#include "onnx/onnx.h"

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
double mz_onnx_h_neg(double a);
double mz_onnx_h_reciprocal(double a);
double mz_onnx_h_sign(double a);
double mz_onnx_h_relu(double a);
double mz_onnx_h_sigmoid(double a);
double mz_onnx_h_add(double a, double b);
double mz_onnx_h_sub(double a, double b);
double mz_onnx_h_mul(double a, double b);
double mz_onnx_h_div(double a, double b);
double mz_onnx_h_mod(double a, double b);
double mz_onnx_h_less(double a, double b);
double mz_onnx_h_less_equal(double a, double b);
double mz_onnx_h_greater(double a, double b);
double mz_onnx_h_greater_equal(double a, double b);
double mz_onnx_h_equal(double a, double b);
double mz_onnx_h_and(double a, double b);
double mz_onnx_h_or(double a, double b);
double mz_onnx_h_xor(double a, double b);
mezzo_value mz_onnx_neg(mezzo_graph *g, mezzo_value x);
mezzo_value mz_onnx_tan(mezzo_graph *g, mezzo_value x);
mezzo_value mz_onnx_mish(mezzo_graph *g, mezzo_value x);
mezzo_value mz_onnx_softsign(mezzo_graph *g, mezzo_value x);
mezzo_value mz_onnx_greater(mezzo_graph *g, mezzo_value a, mezzo_value b);
mezzo_value mz_onnx_greater_equal(mezzo_graph *g, mezzo_value a, mezzo_value b);
mezzo_value mz_onnx_mod(mezzo_graph *g, mezzo_value a, mezzo_value b);
mezzo_status mz_onnx_unary(mz_onnx_call *call, int which);
mezzo_status mz_onnx_activation(mz_onnx_call *call, int act);
mezzo_status mz_onnx_clip(mz_onnx_call *call, int which);
mezzo_status mz_onnx_prelu(mz_onnx_call *call, int which);
mezzo_status mz_onnx_same(mz_onnx_call *call, int which);
mezzo_status mz_onnx_dropout(mz_onnx_call *call, int which);
mezzo_status mz_onnx_truth(mz_onnx_call *call, int is_nan);
mezzo_status mz_onnx_binary(mz_onnx_call *call, int truth);
mezzo_status mz_onnx_mean(mz_onnx_call *call, int which);
mezzo_status mz_onnx_where(mz_onnx_call *call, int which);
mezzo_status mz_onnx_cast(mz_onnx_call *call, int like);
int64_t mz_onnx_repeated(const mz_onnx_value *value, int rank, const int64_t *dim, int64_t index);

// made.c: values from shapes and numbers
mezzo_status mz_onnx_constant_node(mz_onnx_call *call, int which);
mezzo_status mz_onnx_constant_of_shape(mz_onnx_call *call, int which);
mezzo_status mz_onnx_range(mz_onnx_call *call, int which);
mezzo_status mz_onnx_shape(mz_onnx_call *call, int which);
mezzo_status mz_onnx_size(mz_onnx_call *call, int which);
mezzo_status mz_onnx_eye(mz_onnx_call *call, int which);
mezzo_status mz_onnx_one_hot(mz_onnx_call *call, int which);

// moves.c: the same elements elsewhere
mezzo_status mz_onnx_reshape(mz_onnx_call *call, int which);
mezzo_status mz_onnx_flatten(mz_onnx_call *call, int which);
mezzo_status mz_onnx_squeeze(mz_onnx_call *call, int unsqueeze);
mezzo_status mz_onnx_transpose(mz_onnx_call *call, int which);
mezzo_status mz_onnx_concat(mz_onnx_call *call, int which);
mezzo_status mz_onnx_split(mz_onnx_call *call, int which);
mezzo_status mz_onnx_slice(mz_onnx_call *call, int which);
mezzo_status mz_onnx_expand(mz_onnx_call *call, int tile);
mezzo_status mz_onnx_pad(mz_onnx_call *call, int which);
mezzo_status mz_onnx_depth(mz_onnx_call *call, int to_space);
mezzo_status mz_onnx_trilu(mz_onnx_call *call, int which);

// gathers.c: elements by index
mezzo_status mz_onnx_gather(mz_onnx_call *call, int which);
mezzo_status mz_onnx_gather_elements(mz_onnx_call *call, int which);
mezzo_status mz_onnx_gather_nd(mz_onnx_call *call, int which);
mezzo_status mz_onnx_scatter(mz_onnx_call *call, int nd);

// layers.c
mezzo_status mz_onnx_matmul(mz_onnx_call *call, int which);
mezzo_status mz_onnx_gemm(mz_onnx_call *call, int which);
mezzo_status mz_onnx_linear(mz_onnx_call *call, mz_onnx_value *x, mz_onnx_value *w,
                            mezzo_value bias); // makes x·w + bias
mezzo_status mz_onnx_einsum(mz_onnx_call *call, int which);
mezzo_status mz_onnx_layer_norm(mz_onnx_call *call, int rms);
mezzo_status mz_onnx_softmax(mz_onnx_call *call, int logarithm);
mezzo_status mz_onnx_reduce(mz_onnx_call *call, int which);
mezzo_status mz_onnx_argmax(mz_onnx_call *call, int which);
mezzo_status mz_onnx_cumsum(mz_onnx_call *call, int which);
mezzo_status mz_onnx_cross_entropy(mz_onnx_call *call, int which);
enum {
    MZ_ONNX_L1 = 16,
    MZ_ONNX_L2,
    MZ_ONNX_SUM_SQUARE,
    MZ_ONNX_LOG_SUM,
    MZ_ONNX_LOG_SUM_EXP
}; // these follow the values of mezzo_reduction

// images.c
mezzo_status mz_onnx_conv(mz_onnx_call *call, int which);
mezzo_status mz_onnx_conv_transpose(mz_onnx_call *call, int which);
mezzo_status mz_onnx_pool(mz_onnx_call *call, int largest);
mezzo_status mz_onnx_global_pool(mz_onnx_call *call, int largest);
mezzo_status mz_onnx_resize(mz_onnx_call *call, int which);
mezzo_status mz_onnx_batch_norm(mz_onnx_call *call, int which);
mezzo_status mz_onnx_group_norm(mz_onnx_call *call, int instance);

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
mezzo_status mz_onnx_attention_node(mz_onnx_call *call, int which);
mezzo_status mz_onnx_rotary(mz_onnx_call *call, int which);
// Rotates x [B, H, T, D] by known tables of angles. *done false: no theta gives these tables.
mezzo_status mz_onnx_rope(mz_onnx_call *call, mz_onnx_value *x, const mz_onnx_value *cosines,
                          const mz_onnx_value *sines, bool *done);

// Returns an axis counted from the front; -1 where the value does not have it.
int mz_onnx_axis(int64_t axis, int rank);
mezzo_status mz_onnx_bad_axis(mz_onnx_call *call, int64_t axis);
// Reads the attribute "axis" so; `initial` where the node has none.
mezzo_status mz_onnx_axis_of(mz_onnx_call *call, int64_t initial, int rank, int *axis);
// Makes output 0 of input 0, in another shape with as many elements.
mezzo_status mz_onnx_give_shape(mz_onnx_call *call, int rank, const int64_t *dim);
// Takes every step-th of `count` elements from `begin` on along an axis of a value of the graph.
mezzo_value mz_onnx_strided(mezzo_graph *g, mezzo_value v, int axis, int64_t begin, int64_t count, int64_t step);

#endif
