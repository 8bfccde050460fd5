// The graph builder: a model is written once, without dtypes and without a device.
//
// Op functions return a value, or MEZZO_NONE after an error; the graph keeps its first error (naming the op, the values
// and both shapes) and later calls do nothing, so model code need not test each result. mezzo_graph_status returns the
// error at the end, and mezzo_program_create returns it, too. All errors of a builder call are INVALID (a shape, an
// absent value, a range, an integer value where numbers are expected, a value of another graph) or MEMORY. Names and
// arrays are copied. A graph is host memory, independent of devices, and each is used by one thread at a time. All
// else: mezzo.h.
#ifndef MEZZO_GRAPH_H
#define MEZZO_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "mezzo/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MEZZO_MAX_RANK 6

typedef struct mezzo_graph mezzo_graph;
typedef struct mezzo_value { // a handle, valid as long as its graph
    int32_t id;
} mezzo_value;
// Stands for an absent optional input, or for the result after an error.
#ifdef __cplusplus
#define MEZZO_NONE (mezzo_value{-1})
#else
#define MEZZO_NONE ((mezzo_value){-1})
#endif

// Makes a graph. The caller owns *out. Making programs from a graph does not change it, and it may be freed once they
// are made.
MEZZO_API mezzo_status mezzo_graph_create(mezzo_graph **out);
MEZZO_API void mezzo_graph_free(mezzo_graph *graph); // NULL is allowed
// Returns OK or the first error, and sets its message again.
MEZZO_API mezzo_status mezzo_graph_status(const mezzo_graph *graph);

// Says how a parameter is initialized. Values are drawn by Philox keyed by (seed, hash of the parameter's name,
// element).
typedef enum mezzo_init_kind {
    MEZZO_INIT_ZERO,
    MEZZO_INIT_CONSTANT,
    MEZZO_INIT_NORMAL,
    MEZZO_INIT_UNIFORM,
    MEZZO_INIT_TRUNCATED
} mezzo_init_kind;
typedef struct mezzo_init {
    mezzo_init_kind kind;
    float a; // CONSTANT: the value; NORMAL: the standard deviation (mean 0); TRUNCATED: as NORMAL, drawn again beyond
             // 3·a; UNIFORM: drawn from [-a, a)
} mezzo_init;

// Make sources, of 1 to MEZZO_MAX_RANK dimensions. Names are unique in a graph; a parameter's full name is the module
// path, a dot and its name ("h.0.ln_1.weight"). A parameter's master is FP32.
MEZZO_API mezzo_value mezzo_input(mezzo_graph *g, const char *name, mezzo_dtype dtype, int rank,
                                  const int64_t *shape); // F32 or I32
MEZZO_API mezzo_value mezzo_param(mezzo_graph *g, const char *name, mezzo_init init, int rank, const int64_t *shape);
MEZZO_API mezzo_value mezzo_arange(mezzo_graph *g, int64_t n); // 0, 1, … n-1 as I32 [n]
MEZZO_API mezzo_value mezzo_range(mezzo_graph *g, int64_t begin, int64_t step,
                                  int64_t n); // begin, begin + step, … as I32 [n]
// Makes a tensor of one number, F32 or I32 (a whole number). A constant of a single element does not influence the
// format of an op that reads it.
MEZZO_API mezzo_value mezzo_constant(mezzo_graph *g, mezzo_dtype dtype, float value, int rank, const int64_t *shape);

// The ops follow. Values are numbers whose dtype the autocast pass decides; I32 in a comment means integers.
MEZZO_API mezzo_value mezzo_linear(mezzo_graph *g, mezzo_value x, mezzo_value w,
                                   mezzo_value bias); // [… K], [N, K], [N]|NONE → [… N]
MEZZO_API mezzo_value mezzo_matmul(mezzo_graph *g, mezzo_value a, mezzo_value b, bool transpose_a,
                                   bool transpose_b); // [… M K]·[… K N]; leading dimensions by NumPy's rules
// Combine two values, element by element: a + b, a - b, a · b, a / b, aᵇ (FP32), the larger and the smaller. Shapes
// broadcast by NumPy's rules: aligned at the last dimension, a dimension that is 1 or absent repeats; others must be
// equal. Where either is NaN, so is the result. For equal numbers maximum and minimum give half of the gradient to
// each.
MEZZO_API mezzo_value mezzo_add(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_sub(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_mul(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_div(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_pow(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_maximum(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_minimum(mezzo_graph *g, mezzo_value a, mezzo_value b);
// Test conditions: the result is I32, 1 where the condition holds, else 0; shapes broadcast as above. a and b may be
// integers, which are compared as FP32: exact up to 2^24. logical_and and logical_or treat every number but 0 as true.
// These have no gradient.
MEZZO_API mezzo_value mezzo_less(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_less_equal(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_equal(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_not_equal(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_logical_and(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_logical_or(mezzo_graph *g, mezzo_value a, mezzo_value b);
// Returns a where the I32 condition is not 0, else b; all three broadcast by the same rules.
MEZZO_API mezzo_value mezzo_where(mezzo_graph *g, mezzo_value condition, mezzo_value a, mezzo_value b);
// Apply a function to one value, element by element: the result has x's shape. leaky_relu: factor · x below 0; elu:
// factor · (eˣ - 1) there; squared_relu: relu(x)²; softplus: log(1 + eˣ); sigmoid: 1/(1 + e⁻ˣ); round: half to even.
// sign, floor, ceil and round have the gradient 0. As in torch.amp, exp, log, log1p, rsqrt, reciprocal and softplus
// compute in FP32.
MEZZO_API mezzo_value mezzo_scale(mezzo_graph *g, mezzo_value x, float factor);
MEZZO_API mezzo_value mezzo_clamp(mezzo_graph *g, mezzo_value x, float low, float high); // low <= high
MEZZO_API mezzo_value mezzo_relu(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_squared_relu(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_leaky_relu(mezzo_graph *g, mezzo_value x, float factor);
MEZZO_API mezzo_value mezzo_elu(mezzo_graph *g, mezzo_value x, float factor);
MEZZO_API mezzo_value mezzo_gelu(mezzo_graph *g, mezzo_value x, bool tanh_approximation);
MEZZO_API mezzo_value mezzo_silu(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_softplus(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_sigmoid(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_tanh(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_erf(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_exp(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_log(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_log1p(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_sqrt(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_rsqrt(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_reciprocal(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_sin(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_cos(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_abs(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_sign(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_floor(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_ceil(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_round(mezzo_graph *g, mezzo_value x);
MEZZO_API mezzo_value mezzo_softcap(mezzo_graph *g, mezzo_value x, float cap); // cap·tanh(x/cap); cap not 0
// Returns (x - mean)/√(variance + eps)·weight + bias over the last dimension; weight [C]|NONE, bias [C]|NONE.
MEZZO_API mezzo_value mezzo_layernorm(mezzo_graph *g, mezzo_value x, mezzo_value weight, mezzo_value bias, float eps);
// Returns x·weight/√(mean(x²) + eps) over the last dimension; weight [C]|NONE.
MEZZO_API mezzo_value mezzo_rmsnorm(mezzo_graph *g, mezzo_value x, mezzo_value weight, float eps);
// Is mezzo_rmsnorm with weight + offset for weight (Gemma's offset is 1); without a weight the offset has no effect.
MEZZO_API mezzo_value mezzo_rmsnorm_offset(mezzo_graph *g, mezzo_value x, mezzo_value weight, float offset, float eps);
MEZZO_API mezzo_value mezzo_swiglu(mezzo_graph *g,
                                   mezzo_value x); // silu(gate)·up: [… 2F], of which the first half is the gate → [… F]
// Is mezzo_swiglu with gelu(gate), or its tanh form, for silu(gate).
MEZZO_API mezzo_value mezzo_geglu(mezzo_graph *g, mezzo_value x, bool tanh_form);
// Makes the table of rotary position embedding: cosines and sines of the angles position/theta^(2i/dims), FP32 [length,
// dims]; positions I32 [length], or NONE for 0, 1, … One table serves every layer.
MEZZO_API mezzo_value mezzo_rope_table(mezzo_graph *g, mezzo_value positions, int64_t length, int dims, float theta);
// Says how frequencies are scaled for a longer context. LINEAR divides all by `factor`, any number above 0, and
// multiplies cosines and sines by `attention` (0: by 1). LLAMA3 (Llama 3.1) divides those whose wavelength fits into
// `original` positions less than `low` times, with a smooth transition up to `high` times. YARN (Peng et al.,
// arXiv:2309.00071) does so with `low` and `high` rotations in `original` positions, and multiplies cosines and sines
// by `attention` (0: 0.1·ln(factor) + 1).
typedef enum mezzo_rope_kind {
    MEZZO_ROPE_PLAIN,
    MEZZO_ROPE_LINEAR,
    MEZZO_ROPE_LLAMA3,
    MEZZO_ROPE_YARN
} mezzo_rope_kind;
typedef struct mezzo_rope_scaling {
    mezzo_rope_kind kind;
    double factor, low, high, original, attention;
} mezzo_rope_scaling;
// Makes a table with scaled frequencies; scaling NULL: PLAIN.
MEZZO_API mezzo_value mezzo_rope_table_scaled(mezzo_graph *g, mezzo_value positions, int64_t length, int dims,
                                              float theta, const mezzo_rope_scaling *scaling);
// Rotates the first `dims` dimensions of the first `rotated` of the heads in x [B, T, heads·D] and copies the others,
// so that one tensor may hold q, k and v side by side. A pair is dimensions 2i and 2i+1 where interleaved (CS336), else
// i and i + dims/2 (Hugging Face). For positions I32 [B, length], and for NONE after mezzo_documents_begin, the table
// has one row for each position of each sequence of x [B, length, …].
MEZZO_API mezzo_value mezzo_rope(mezzo_graph *g, mezzo_value x, mezzo_value table, int heads, int rotated,
                                 bool interleaved);

// Describes a mixture of experts that drops no token: every token gets its top_k experts, and the host reads nothing. M
// tokens give R = M·top_k rows.
typedef struct mezzo_routing {
    int top_k;              // experts for each token
    int groups, top_groups; // experts are chosen from the best top_groups of this number of groups; 1, 1: from all
    bool normalise;         // a token's weights are divided by their sum
    float scale;            // factor of the weights after that
    bool softmax;           // scores are softmax(logits) over all experts; else sigmoid(logits)
} mezzo_routing;
// Chooses experts by the scores of logits [… E], plus bias ([E]|NONE; it has no gradient); the scores alone are the
// weights. *weights FP32 and *experts I32 are [M, top_k], in descending order of score + bias.
MEZZO_API mezzo_status mezzo_route(mezzo_graph *g, mezzo_value logits, mezzo_value bias, const mezzo_routing *routing,
                                   mezzo_value *weights, mezzo_value *experts);
// Orders rows by expert: *order and *place I32 [R], a stable sort of the indices and its inverse; *offsets I32 [experts
// + 1], where the rows of each expert begin.
MEZZO_API mezzo_status mezzo_expert_order(mezzo_graph *g, mezzo_value indices, int experts, mezzo_value *order,
                                          mezzo_value *place, mezzo_value *offsets);
// Copies rows to experts, x [M, C] → [R, C]: each token's row, once for each of its experts, in order of expert.
MEZZO_API mezzo_value mezzo_dispatch(mezzo_graph *g, mezzo_value x, mezzo_value order, mezzo_value place, int top_k);
// Adds each token's rows, multiplied by their weights ([M, top_k]|NONE): x [R, C] → [M, C].
MEZZO_API mezzo_value mezzo_combine(mezzo_graph *g, mezzo_value x, mezzo_value order, mezzo_value place,
                                    mezzo_value weights, int top_k);
// Multiplies expert e's rows by its own matrix: x [R, K], w [E, N, K] → [R, N].
MEZZO_API mezzo_value mezzo_grouped_linear(mezzo_graph *g, mezzo_value x, mezzo_value w, mezzo_value offsets);

MEZZO_API mezzo_value mezzo_embedding(mezzo_graph *g, mezzo_value table, mezzo_value ids); // [V, C], I32 […] → [… C]
// Computes causal attention, softmax(q·kᵀ/√D)·v, with no T×T matrix in memory. q [B, Tq, H·D]; k, v [B, Tk, Hkv·D], Hkv
// divides H → [B, Tq, H·D]. Query i sees keys 0 … i, also where there are more or fewer keys than queries (as torch's
// is_causal).
MEZZO_API mezzo_value mezzo_attention(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v, int heads,
                                      int kv_heads, float dropout);
// Computes attention where every query sees every key: q [B, Tq, H·D]; k, v [B, Tk, Hkv·D] of other positions, or both
// MEZZO_NONE and q holds q, k and v side by side, [B, T, 3·H·D]. It keeps no cache (mezzo_cache_begin).
MEZZO_API mezzo_value mezzo_attention_full(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v, int heads,
                                           int kv_heads, float dropout);
// Computes causal attention on one tensor that holds q, k and v side by side: [B, T, 3·H·D] → [B, T, H·D].
MEZZO_API mezzo_value mezzo_attention_qkv(mezzo_graph *g, mezzo_value qkv, int heads, float dropout);
// Says which keys a query sees and how it scores them. If all members are zero, it means mezzo_attention with as many
// key heads as heads.
typedef struct mezzo_attention_form {
    int heads, kv_heads; // kv_heads divides heads; 0: as many as heads
    bool full;           // every query sees every key
    int64_t window;      // a query sees the last `window` positions, its own included (as in Mistral and Gemma); 0: all
    float scale;         // factor of q·kᵀ; 0: 1/√D
    float score_cap;     // a scaled score s becomes score_cap·tanh(s/score_cap) (as in Gemma 2); 0: no cap
    float dropout;       // on the probabilities
} mezzo_attention_form;
// Computes attention of a form. k and v both MEZZO_NONE: q holds q, k and v side by side. Windows and documents require
// causal attention with as many keys as queries.
MEZZO_API mezzo_value mezzo_attention_of(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v,
                                         const mezzo_attention_form *form);
// Adds a mask [1 or B, 1 or H, 1 or Tq, Tk] to the scores, which may be learned: 0 where a query sees a key, a large
// negative number where it does not. form->full: without the causal mask. form->window must be 0, and k and v must be
// given. Where no kernel takes a mask, products and a softmax compute the attention, with the scores of one layer in
// memory at a time.
MEZZO_API mezzo_value mezzo_attention_masked(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v,
                                             mezzo_value mask, const mezzo_attention_form *form);
// Declares that a row holds several documents. positions I32 [B, T]: the position of each token in its document, 0, 1,
// 2 …, and 0 again where the next one begins. After this call causal attention stays within each document, and
// mezzo_positions and mezzo_rope_table without positions use these positions. This excludes mezzo_cache_begin. INVALID:
// another type, or rank.
MEZZO_API void mezzo_documents_begin(mezzo_graph *g, mezzo_value positions);
// Prepares a graph that generates a few positions at a time. After this call every attention of the graph keeps keys
// and values in two inputs of its own, "cache.N.k" and "cache.N.v" F32 [B, length, Hkv·D] (N counts the attentions),
// which a run reads and writes: the T positions of a run are rows positions[0] … positions[0] + T-1, from the input
// "positions" I32 [T], and each sees its own row and all earlier rows. mezzo_rope_table without positions takes them
// from there, too. Such a graph runs forward only.
MEZZO_API void mezzo_cache_begin(mezzo_graph *g, int64_t length);
// Returns the positions of n tokens, I32 [n]: 0, 1, … n-1, or the input "positions" after mezzo_cache_begin. After
// mezzo_documents_begin it returns that function's positions, [B, n].
MEZZO_API mezzo_value mezzo_positions(mezzo_graph *g, int64_t n);
MEZZO_API mezzo_value mezzo_softmax(mezzo_graph *g, mezzo_value x); // over the last dimension
// Returns the mean of -log softmax(logits)[target] over targets that are not `ignore_index`, in FP32. logits [… V],
// targets I32 […] → [1]. With every target ignored the loss is 0 (torch gives NaN).
MEZZO_API mezzo_value mezzo_cross_entropy(mezzo_graph *g, mezzo_value logits, mezzo_value targets,
                                          int32_t ignore_index);
// Returns the cross entropy of the logits cap·tanh(logits/cap), which are not stored; cap 0: of logits.
MEZZO_API mezzo_value mezzo_cross_entropy_capped(mezzo_graph *g, mezzo_value logits, mezzo_value targets,
                                                 int32_t ignore_index, float cap);
// Describes a convolution. Images are [B, height, width, channels] in every op of this header.
typedef struct mezzo_convolution {
    int stride;                // the same in both directions, 1 or more
    int pad_before, pad_after; // rows and columns of zeros above and left, below and right; less than the weight's size
    int groups;                // groups of channels: the outputs of a group read only its part of x. 1: all channels
                               // form one group
} mezzo_convolution;
// Convolves x [B, H, W, C] with w [N, R, S, C/groups], bias [N]|NONE → [B, P, Q, N], P = (H + pad_before + pad_after -
// R)/stride + 1, rounded down. This is cross-correlation, as in torch.
MEZZO_API mezzo_value mezzo_conv2d(mezzo_graph *g, mezzo_value x, mezzo_value w, mezzo_value bias,
                                   const mezzo_convolution *convolution);
// Normalizes x [B … C]; mean and variance are over each of `groups` groups of channels of an image. n = (x -
// mean)/√(variance + eps)·weight + bias; with film [B, 2·C]|NONE, which holds scales and then shifts, n·(1 + scale) +
// shift; then SiLU where `silu`. weight and bias [C]|NONE. It computes in FP32, as in torch.amp.
MEZZO_API mezzo_value mezzo_group_norm(mezzo_graph *g, mezzo_value x, mezzo_value weight, mezzo_value bias,
                                       mezzo_value film, int groups, float eps, bool silu);
// Returns the statistics by which mezzo_group_norm normalized its result y, FP32 [B, groups] each: *mean, and *rstd,
// 1/√(variance + eps). They have no gradient. INVALID: y is no such result.
MEZZO_API mezzo_status mezzo_group_norm_statistics(mezzo_graph *g, mezzo_value y, mezzo_value *mean, mezzo_value *rstd);
MEZZO_API mezzo_value mezzo_upsample(mezzo_graph *g, mezzo_value x,
                                     int factor); // repeats pixels: [B, H, W, C] → [B, factor·H, factor·W, C]
MEZZO_API mezzo_value mezzo_average_pool(mezzo_graph *g, mezzo_value x,
                                         int factor); // averages pixels: [B, H, W, C] → [B, H/factor, W/factor, C]
typedef struct mezzo_windows {
    int size, stride, dilation; // elements of a window; from one's first element to the next's; between its elements
    int pad_before, pad_after;  // elements beside the axis that windows may reach and that do not count
} mezzo_windows;
// The largest of each window along an axis of x: n elements become (n + pad_before + pad_after - (size - 1)·dilation -
// 1)/stride + 1, rounded down. NaN stays NaN; the first of equal ones gets the gradient, as in torch's max_pool.
MEZZO_API mezzo_value mezzo_max_pool(mezzo_graph *g, mezzo_value x, int axis, const mezzo_windows *windows);
// Returns cosines, then sines, of factor · time · longest^(-2i/dims), i = 0 … dims/2 - 1: times F32 [B] → FP32 [B,
// dims], dims even. It has no gradient.
MEZZO_API mezzo_value mezzo_time_embedding(mezzo_graph *g, mezzo_value times, int64_t dims, float factor,
                                           float longest);
// Draws normal numbers of a shape, FP32: Philox draws row b from the key keys[b], two words, and from nothing else.
// keys I32 [shape[0], 2]. It has no gradient.
MEZZO_API mezzo_value mezzo_normal(mezzo_graph *g, mezzo_value keys, int rank, const int64_t *shape);
// Returns the mean of (x - target)² over all elements of two values of one shape → [1], in FP32.
MEZZO_API mezzo_value mezzo_mse(mezzo_graph *g, mezzo_value x, mezzo_value target);
MEZZO_API mezzo_value mezzo_sum(mezzo_graph *g, mezzo_value x,
                                int axis); // axis < 0: all elements → [1]; else that axis is removed
MEZZO_API mezzo_value mezzo_mean(mezzo_graph *g, mezzo_value x, int axis); // axis as in mezzo_sum
// Return, with the axis as in mezzo_sum, the largest or the smallest number (NaN where there is one; equal ones share
// the gradient, as torch's amax), or the product, in FP32; argmax returns the first index of the largest, I32, and has
// no gradient.
MEZZO_API mezzo_value mezzo_max(mezzo_graph *g, mezzo_value x, int axis);
MEZZO_API mezzo_value mezzo_min(mezzo_graph *g, mezzo_value x, int axis);
MEZZO_API mezzo_value mezzo_prod(mezzo_graph *g, mezzo_value x, int axis);
MEZZO_API mezzo_value mezzo_argmax(mezzo_graph *g, mezzo_value x, int axis);
typedef enum mezzo_reduction {
    MEZZO_REDUCE_SUM,
    MEZZO_REDUCE_MEAN,
    MEZZO_REDUCE_MAX,
    MEZZO_REDUCE_MIN,
    MEZZO_REDUCE_PROD
} mezzo_reduction;
// Reduces over n axes, negative ones counted from the end; n 0: over all. keep: the axes stay with 1 element; else they
// are removed.
MEZZO_API mezzo_value mezzo_reduce(mezzo_graph *g, mezzo_reduction reduction, mezzo_value x, int n, const int *axes,
                                   bool keep);
// Returns the sums of all elements up to each one along the axis, in FP32; exclusive: without itself; reverse: of
// itself and those after it.
MEZZO_API mezzo_value mezzo_cumsum(mezzo_graph *g, mezzo_value x, int axis, bool exclusive, bool reverse);
// Returns `training` in programs that train, and `evaluation`, of the same shape, in those that run forward only.
MEZZO_API mezzo_value mezzo_by_mode(mezzo_graph *g, mezzo_value training, mezzo_value evaluation);
// Lets a frozen parameter follow a value of as many elements, as running statistics follow those of batches: each
// micro batch makes it momentum·parameter + (1 - momentum)·value. mezzo_step_finish does this, for the micro batches of
// all ranks in their order, also where the loss scale skips the step; loops without steps call mezzo_program_track. A
// micro batch for which any followed value is not finite changes nothing. INVALID: a trained parameter, other sizes, a
// momentum outside 0 … 1.
MEZZO_API mezzo_status mezzo_graph_track(mezzo_graph *g, mezzo_value parameter, mezzo_value value, double momentum);
MEZZO_API mezzo_value mezzo_dropout(mezzo_graph *g, mezzo_value x,
                                    float p); // kept values are scaled by 1/(1-p); identity in evaluation programs
MEZZO_API mezzo_value mezzo_cast(mezzo_graph *g, mezzo_value x,
                                 mezzo_dtype dtype); // an explicit cast, kept by every pass
MEZZO_API mezzo_value mezzo_reshape(mezzo_graph *g, mezzo_value x, int rank,
                                    const int64_t *shape); // one dimension may be -1
MEZZO_API mezzo_status mezzo_split(mezzo_graph *g, mezzo_value x, int axis, int parts, mezzo_value *out); // equal parts
MEZZO_API mezzo_status mezzo_split_sizes(mezzo_graph *g, mezzo_value x, int axis, int parts, const int64_t *sizes,
                                         mezzo_value *out); // parts of these sizes; sizes NULL: equal parts
// Joins n values, 1 to 16, equal in all dimensions but `axis`, one after another.
MEZZO_API mezzo_value mezzo_concat(mezzo_graph *g, const mezzo_value *xs, int n, int axis);
// Returns elements begin … end - 1 along an axis; a negative axis and negative indices count from the end.
MEZZO_API mezzo_value mezzo_slice(mezzo_graph *g, mezzo_value x, int axis, int64_t begin, int64_t end);
// Repeats x to a shape by NumPy's rules.
MEZZO_API mezzo_value mezzo_expand(mezzo_graph *g, mezzo_value x, int rank, const int64_t *shape);
// Adds before[d] elements of `value` before x along dimension d, and after[d] after it.
MEZZO_API mezzo_value mezzo_pad(mezzo_graph *g, mezzo_value x, const int64_t *before, const int64_t *after,
                                float value);
MEZZO_API mezzo_value mezzo_flip(mezzo_graph *g, mezzo_value x, int axis); // reverses the elements of an axis
// Returns the slices of x at an I32 index of any shape, whose dimensions replace the axis (ONNX's Gather); elementwise:
// an index for each element, of x's rank, as torch.gather. Negative indices count from the end; past either end the
// result is NaN.
MEZZO_API mezzo_value mezzo_gather(mezzo_graph *g, mezzo_value x, int axis, mezzo_value index, bool elementwise);
// Adds src to x at the positions from which mezzo_gather would read it, in order; indices past either end add nothing.
MEZZO_API mezzo_value mezzo_scatter_add(mezzo_graph *g, mezzo_value x, int axis, mezzo_value index, mezzo_value src,
                                        bool elementwise);
// Makes dimension i of the result from dimension axes[i] of x; one axis for each of x's dimensions, negative ones
// counted from the end. The elements are copied in the new order.
MEZZO_API mezzo_value mezzo_permute(mezzo_graph *g, mezzo_value x, const int *axes);
MEZZO_API mezzo_value mezzo_transpose(mezzo_graph *g, mezzo_value x, int a, int b); // exchanges two axes

// Return a value's rank and one of its dimensions; 0 for MEZZO_NONE or an axis that it does not have.
MEZZO_API int mezzo_value_rank(const mezzo_graph *g, mezzo_value v);
MEZZO_API int64_t mezzo_value_dim(const mezzo_graph *g, mezzo_value v, int axis); // axis may be negative, from the end
// Returns the value that v is a reshape of; v itself if it is not a reshape; MEZZO_NONE for MEZZO_NONE.
MEZZO_API mezzo_value mezzo_value_reshaped(const mezzo_graph *g, mezzo_value v);

// Names the module of the next ops and parameters: "h.0", then "attn" → "h.0.attn". Names must not be empty or contain
// '*' or '?'. Each begin must have its end before a program is made.
MEZZO_API void mezzo_module_begin(mezzo_graph *g, const char *name);
MEZZO_API void mezzo_module_end(mezzo_graph *g);

// --- adapters (LoRA: Hu et al., 2021) ---
typedef struct mezzo_lora {
    int64_t rank;        // 0: none
    double alpha;        // the output of an adapter is multiplied by alpha / rank
    const char *modules; // patterns separated by commas, as "c_attn,h.0.mlp.*"; NULL: every linear layer
} mezzo_lora;
// Gives adapters to a graph in which nothing has been built: linear layers of Mezzo's models whose module a pattern
// matches, completely or at its end, return y + alpha/rank · B·A·x. A, MODULE.lora_A.weight [rank, K], starts uniform
// in ±1/√K; B, MODULE.lora_B.weight [N, rank], at zero. INVALID: the graph has parameters already, or a rank or an
// alpha is out of range.
MEZZO_API mezzo_status mezzo_graph_adapt(mezzo_graph *g, const mezzo_lora *lora);
// Adds the adapter of the open module to y, where it has one; this serves layers of one's own. x [… K], y [… N].
MEZZO_API mezzo_value mezzo_adapted(mezzo_graph *g, mezzo_value x, mezzo_value y);
// Adds adapters to the output y of a layer whose weight [N, K] has the rows of several layers, one below the other (q,
// k and v): each has an adapter of its own, under its own name beside the layer's, "h.0.attn.q_proj" beside
// "h.0.attn.qkv_proj". A pattern that matches the layer matches all of its parts. It is called after the end of the
// layer's module. 1 to 4 parts, whose names of at most 31 characters are copied; if all names are NULL, the caller adds
// the layer's own adapter. The graph fails with INVALID where weight is no parameter, or the number of rows is not N.
typedef struct mezzo_part {
    const char *name;
    int64_t rows;
} mezzo_part;
MEZZO_API mezzo_value mezzo_adapted_parts(mezzo_graph *g, mezzo_value x, mezzo_value y, mezzo_value weight, int n,
                                          const mezzo_part *parts);
// Freezes all parameters but those of adapters (as mezzo_graph_freeze does); without adapters it does nothing. INVALID:
// a pattern that matches no linear layer.
MEZZO_API mezzo_status mezzo_graph_freeze_base(mezzo_graph *g);

// Begins an autocast region; regions nest. Inside, `precision` decides ops, and not the program's precision; FP32 is
// torch.autocast(enabled=False). A region decides ops, not parameters: masters are FP32 everywhere.
MEZZO_API void mezzo_autocast_begin(mezzo_graph *g, mezzo_precision precision);
MEZZO_API void mezzo_autocast_end(mezzo_graph *g);

// The ops between these two calls are one recompute segment: with recompute on, only its inputs are kept for backward.
MEZZO_API void mezzo_recompute_begin(mezzo_graph *g);
MEZZO_API void mezzo_recompute_end(mezzo_graph *g);

// Names a value that mezzo_program_read can read after a run; its memory is kept to the program's end. INVALID: the
// name is taken.
MEZZO_API mezzo_status mezzo_graph_output(mezzo_graph *g, const char *name, mezzo_value v);
// Chooses the value of one element whose gradient is taken. It is also an output named "loss".
MEZZO_API mezzo_status mezzo_graph_loss(mezzo_graph *g, mezzo_value v);

#ifdef __cplusplus
}
#endif
#endif
