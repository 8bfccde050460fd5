// The graph builder: a model is written once, with no dtype and no device in it.
//
// Op functions return a value, or MEZZO_NONE after an error; the graph keeps its first error (naming the op, the values
// and both shapes) and later calls do nothing, so model code reads straight through. Ask mezzo_graph_status at the end;
// mezzo_program_create asks it too. All errors of a builder call are INVALID (a shape, an absent value, a range, an
// integer value where numbers are asked, a value of another graph) or MEMORY. Names and arrays are copied. A graph
// lives on the host: it knows no device, and each is used by one thread at a time. The rest: mezzo.h.
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
// An absent optional input, or the result after an error.
#ifdef __cplusplus
#define MEZZO_NONE (mezzo_value{-1})
#else
#define MEZZO_NONE ((mezzo_value){-1})
#endif

// The caller owns *out. A graph is not changed by making programs from it, and may be freed once they are made.
MEZZO_API mezzo_status mezzo_graph_create(mezzo_graph **out);
MEZZO_API void mezzo_graph_free(mezzo_graph *graph); // NULL is fine
// OK, or the first error, whose message is set again.
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
    float a; // CONSTANT: the value; NORMAL: the standard deviation (mean 0); TRUNCATED: the same, drawn again beyond
             // 3·a; UNIFORM: drawn from [-a, a)
} mezzo_init;

// Sources, of 1 to MEZZO_MAX_RANK dimensions. Names are unique in a graph; a parameter's full name is the module path,
// a dot and its name ("h.0.ln_1.weight"). A parameter's master is FP32.
MEZZO_API mezzo_value mezzo_input(mezzo_graph *g, const char *name, mezzo_dtype dtype, int rank,
                                  const int64_t *shape); // F32 or I32
MEZZO_API mezzo_value mezzo_param(mezzo_graph *g, const char *name, mezzo_init init, int rank, const int64_t *shape);
MEZZO_API mezzo_value mezzo_arange(mezzo_graph *g, int64_t n); // 0, 1, … n-1 as I32 [n]
MEZZO_API mezzo_value mezzo_range(mezzo_graph *g, int64_t begin, int64_t step,
                                  int64_t n); // begin, begin + step, … as I32 [n]
// One number everywhere, F32 or I32 (a whole number). One of a single element does not decide the format of an op that
// reads it.
MEZZO_API mezzo_value mezzo_constant(mezzo_graph *g, mezzo_dtype dtype, float value, int rank, const int64_t *shape);

// Ops. Values are numbers whose dtype the autocast pass decides; I32 is said where integers are meant.
MEZZO_API mezzo_value mezzo_linear(mezzo_graph *g, mezzo_value x, mezzo_value w,
                                   mezzo_value bias); // [… K], [N, K], [N]|NONE → [… N]
MEZZO_API mezzo_value mezzo_matmul(mezzo_graph *g, mezzo_value a, mezzo_value b, bool transpose_a,
                                   bool transpose_b); // [… M K]·[… K N]; leading dimensions by NumPy's rules
// Two values, element by element: a + b, a - b, a · b, a / b, aᵇ (FP32), the larger and the smaller. Shapes are brought
// together by NumPy's rules: side by side from the last dimension, a dimension that is 1 or absent repeats; others must
// be equal. NaN of either is the result. Of equal numbers maximum and minimum give half of the gradient to each.
MEZZO_API mezzo_value mezzo_add(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_sub(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_mul(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_div(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_pow(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_maximum(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_minimum(mezzo_graph *g, mezzo_value a, mezzo_value b);
// Conditions, I32: 1 where it holds, else 0; shapes as above. a and b may be integers, which are compared as FP32:
// exact up to 2^24. logical_and and logical_or take what is not 0 as true. No gradient.
MEZZO_API mezzo_value mezzo_less(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_less_equal(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_equal(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_not_equal(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_logical_and(mezzo_graph *g, mezzo_value a, mezzo_value b);
MEZZO_API mezzo_value mezzo_logical_or(mezzo_graph *g, mezzo_value a, mezzo_value b);
// a where the I32 condition is not 0, else b; all three repeat by the same rules.
MEZZO_API mezzo_value mezzo_where(mezzo_graph *g, mezzo_value condition, mezzo_value a, mezzo_value b);
// One value, element by element: the result has x's shape. leaky_relu: factor · x below 0; elu: factor · (eˣ - 1)
// there; squared_relu: relu(x)²; softplus: log(1 + eˣ); sigmoid: 1/(1 + e⁻ˣ); round: half to even. sign, floor, ceil
// and round have the gradient 0. FP32, as torch.amp has it: exp, log, log1p, rsqrt, reciprocal, softplus.
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
// (x - mean)/√(variance + eps)·weight + bias over the last dimension; weight [C]|NONE, bias [C]|NONE.
MEZZO_API mezzo_value mezzo_layernorm(mezzo_graph *g, mezzo_value x, mezzo_value weight, mezzo_value bias, float eps);
// x·weight/√(mean(x²) + eps) over the last dimension; weight [C]|NONE.
MEZZO_API mezzo_value mezzo_rmsnorm(mezzo_graph *g, mezzo_value x, mezzo_value weight, float eps);
// The same with weight + offset in the weight's place (Gemma's offset is 1); nothing without a weight.
MEZZO_API mezzo_value mezzo_rmsnorm_offset(mezzo_graph *g, mezzo_value x, mezzo_value weight, float offset, float eps);
MEZZO_API mezzo_value mezzo_swiglu(mezzo_graph *g,
                                   mezzo_value x); // silu(gate)·up: [… 2F], the gate's half first → [… F]
// The same with gelu(gate), or its tanh form.
MEZZO_API mezzo_value mezzo_geglu(mezzo_graph *g, mezzo_value x, bool tanh_form);
// Rotary position embedding. The table: cosines and sines of the angles position/theta^(2i/dims), FP32 [length, dims];
// positions I32 [length], or NONE for 0, 1, … Made once, read by every layer.
MEZZO_API mezzo_value mezzo_rope_table(mezzo_graph *g, mezzo_value positions, int64_t length, int dims, float theta);
// The same with frequencies scaled for a longer context: LINEAR divides all by `factor`, any number above 0, and
// cosines and sines grow by `attention` (0: not at all); LLAMA3 (Llama 3.1) those whose wavelength goes into `original`
// positions less than `low` times, and fewer and fewer up to `high` times; YARN (Peng et al., arXiv:2309.00071) the
// same with `low` and `high` turns in `original` positions, and cosines and sines grow by `attention` (0:
// 0.1·ln(factor) + 1).
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
// scaling NULL: PLAIN.
MEZZO_API mezzo_value mezzo_rope_table_scaled(mezzo_graph *g, mezzo_value positions, int64_t length, int dims,
                                              float theta, const mezzo_rope_scaling *scaling);
// After mezzo_documents_begin NONE stands for its positions; these, or other I32 [B, length], have a row of the table
// each, for x [B, length, …].
// Turns the first `dims` dimensions of the first `rotated` of the heads in x [B, T, heads·D] and copies the rest: q, k
// and v side by side in one tensor can be given whole. A pair is dimensions 2i and 2i+1 where interleaved (CS336), else
// i and i + dims/2 (Hugging Face).
MEZZO_API mezzo_value mezzo_rope(mezzo_graph *g, mezzo_value x, mezzo_value table, int heads, int rotated,
                                 bool interleaved);

// Mixture of experts, dropless: every token gets its top_k experts, and nothing is read by the host. For M tokens, R =
// M·top_k rows.
typedef struct mezzo_routing {
    int top_k;              // experts for each token
    int groups, top_groups; // experts are chosen from the best top_groups of so many groups; 1, 1: from all
    bool normalise;         // a token's weights are divided by their sum
    float scale;            // and multiplied by this
    bool softmax;           // scores are softmax(logits) over all experts; else sigmoid(logits)
} mezzo_routing;
// Scores are of logits [… E]; experts are chosen by score + bias ([E]|NONE; it has no gradient), weighed
// by score. *weights FP32 and *experts I32 are [M, top_k], in falling order of what chose them.
MEZZO_API mezzo_status mezzo_route(mezzo_graph *g, mezzo_value logits, mezzo_value bias, const mezzo_routing *routing,
                                   mezzo_value *weights, mezzo_value *experts);
// Rows by expert: *order and *place I32 [R], a stable sort of the indices and its inverse; *offsets I32 [experts + 1],
// where each expert's begin.
MEZZO_API mezzo_status mezzo_expert_order(mezzo_graph *g, mezzo_value indices, int experts, mezzo_value *order,
                                          mezzo_value *place, mezzo_value *offsets);
// x [M, C] → [R, C]: each token's row, once for each of its experts, in order of expert.
MEZZO_API mezzo_value mezzo_dispatch(mezzo_graph *g, mezzo_value x, mezzo_value order, mezzo_value place, int top_k);
// x [R, C] → [M, C]: each token's rows, weighed ([M, top_k]|NONE) and added.
MEZZO_API mezzo_value mezzo_combine(mezzo_graph *g, mezzo_value x, mezzo_value order, mezzo_value place,
                                    mezzo_value weights, int top_k);
// Expert e's rows times its own matrix: x [R, K], w [E, N, K] → [R, N].
MEZZO_API mezzo_value mezzo_grouped_linear(mezzo_graph *g, mezzo_value x, mezzo_value w, mezzo_value offsets);

MEZZO_API mezzo_value mezzo_embedding(mezzo_graph *g, mezzo_value table, mezzo_value ids); // [V, C], I32 […] → [… C]
// Causal softmax(q·kᵀ/√D)·v, with no T×T matrix in memory. q [B, Tq, H·D]; k, v [B, Tk, Hkv·D], Hkv divides H → [B, Tq,
// H·D]. Query i sees keys 0 … i, also where there are more or fewer keys than queries (as torch's is_causal).
MEZZO_API mezzo_value mezzo_attention(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v, int heads,
                                      int kv_heads, float dropout);
// The same where every query sees every key: q [B, Tq, H·D]; k, v [B, Tk, Hkv·D] of other positions, or both MEZZO_NONE
// and q holds q, k and v side by side, [B, T, 3·H·D]. It keeps no cache (mezzo_cache_begin).
MEZZO_API mezzo_value mezzo_attention_full(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v, int heads,
                                           int kv_heads, float dropout);
// The same on one tensor that holds q, k and v side by side: [B, T, 3·H·D] → [B, T, H·D].
MEZZO_API mezzo_value mezzo_attention_qkv(mezzo_graph *g, mezzo_value qkv, int heads, float dropout);
// Says which keys a query sees and how it scores them. All zero, it is mezzo_attention with as many key heads as heads.
typedef struct mezzo_attention_form {
    int heads, kv_heads; // kv_heads divides heads; 0: as many as heads
    bool full;           // every query sees every key
    int64_t window;      // a query sees the last `window` positions, its own included (as Mistral and Gemma); 0: all
    float scale;         // of q·kᵀ; 0: 1/√D
    float score_cap;     // a scaled score s becomes score_cap·tanh(s/score_cap) (as Gemma 2's); 0: it stays
    float dropout;       // on the probabilities
} mezzo_attention_form;
// k and v both MEZZO_NONE: q holds q, k and v side by side. A window, and documents, are of causal attention with as
// many keys as queries.
MEZZO_API mezzo_value mezzo_attention_of(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v,
                                         const mezzo_attention_form *form);
// The same with a mask [1 or B, 1 or H, 1 or Tq, Tk] that is added to the scores, which may be learned: 0 where a query
// sees a key, a large negative number where it does not. form->full: no causal mask besides. No window; k and v are
// values of their own. Where no kernel takes a mask, products and a softmax compute it, with the scores of one layer in
// memory at a time.
MEZZO_API mezzo_value mezzo_attention_masked(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v,
                                             mezzo_value mask, const mezzo_attention_form *form);
// Several documents in a row. positions I32 [B, T]: the place of each token in its document, 0, 1, 2 …, and 0 again
// where the next one begins. After this call every causal attention sees its own document alone, and mezzo_positions
// and mezzo_rope_table without positions take these. Not together with mezzo_cache_begin. INVALID: another type, or
// rank.
MEZZO_API void mezzo_documents_begin(mezzo_graph *g, mezzo_value positions);
// Generating a few positions at a time. After this call every attention of the graph keeps keys and values in two
// inputs of its own, "cache.N.k" and "cache.N.v" F32 [B, length, Hkv·D] (N counts the attentions), which a run reads
// and writes: the T positions of a run are rows positions[0] … positions[0] + T-1, from the input "positions" I32 [T],
// and each sees its row and all before it. mezzo_rope_table without positions takes them from there too. Such a graph
// runs forward only.
MEZZO_API void mezzo_cache_begin(mezzo_graph *g, int64_t length);
// The positions of n tokens, I32 [n]: 0, 1, … n-1, or the input "positions" after mezzo_cache_begin. After
// mezzo_documents_begin: its positions, [B, n].
MEZZO_API mezzo_value mezzo_positions(mezzo_graph *g, int64_t n);
MEZZO_API mezzo_value mezzo_softmax(mezzo_graph *g, mezzo_value x); // over the last dimension
// Mean of -log softmax(logits)[target] over targets that are not `ignore_index`. logits [… V], targets I32 […] → [1].
// FP32. With every target ignored the loss is 0 (torch gives NaN).
MEZZO_API mezzo_value mezzo_cross_entropy(mezzo_graph *g, mezzo_value logits, mezzo_value targets,
                                          int32_t ignore_index);
// The same of logits cap·tanh(logits/cap), which are not stored; cap 0: of logits.
MEZZO_API mezzo_value mezzo_cross_entropy_capped(mezzo_graph *g, mezzo_value logits, mezzo_value targets,
                                                 int32_t ignore_index, float cap);
// Images are [B, height, width, channels], as every op here takes them.
typedef struct mezzo_convolution {
    int stride;                // of both directions, 1 or more
    int pad_before, pad_after; // rows and columns of zeros above and left, below and right; less than the weight's size
    int groups;                // of channels: each sees its own part of x. 1: all
} mezzo_convolution;
// x [B, H, W, C], w [N, R, S, C/groups], bias [N]|NONE → [B, P, Q, N], P = (H + pad_before + pad_after - R)/stride + 1,
// rounded down. Cross-correlation, as torch's.
MEZZO_API mezzo_value mezzo_conv2d(mezzo_graph *g, mezzo_value x, mezzo_value w, mezzo_value bias,
                                   const mezzo_convolution *convolution);
// x [B … C]; mean and variance over each of `groups` groups of channels of an image. n = (x - mean)/√(variance +
// eps)·weight + bias; with film [B, 2·C]|NONE, scales and then shifts, n·(1 + scale) + shift; then SiLU where `silu`.
// weight and bias [C]|NONE. FP32 inside, as torch.amp has it.
MEZZO_API mezzo_value mezzo_group_norm(mezzo_graph *g, mezzo_value x, mezzo_value weight, mezzo_value bias,
                                       mezzo_value film, int groups, float eps, bool silu);
// What a result y of mezzo_group_norm was normalised by, FP32 [B, groups] each: *mean, and *rstd, 1/√(variance + eps).
// They have no gradient. INVALID: y is no such result.
MEZZO_API mezzo_status mezzo_group_norm_statistics(mezzo_graph *g, mezzo_value y, mezzo_value *mean, mezzo_value *rstd);
MEZZO_API mezzo_value mezzo_upsample(mezzo_graph *g, mezzo_value x,
                                     int factor); // nearest: [B, H, W, C] → [B, factor·H, factor·W, C]
MEZZO_API mezzo_value mezzo_average_pool(mezzo_graph *g, mezzo_value x,
                                         int factor); // [B, H, W, C] → [B, H/factor, W/factor, C]
typedef struct mezzo_windows {
    int size, stride, dilation; // elements of a window; from one's first element to the next's; between its elements
    int pad_before, pad_after;  // elements beside the axis that windows may reach and that do not count
} mezzo_windows;
// The largest of each window along an axis of x: n elements become (n + pad_before + pad_after - (size - 1)·dilation -
// 1)/stride + 1, rounded down. NaN stays NaN; the first of equal ones gets the gradient, as in torch's max_pool.
MEZZO_API mezzo_value mezzo_max_pool(mezzo_graph *g, mezzo_value x, int axis, const mezzo_windows *windows);
// Cosines, then sines, of factor · time · longest^(-2i/dims), i = 0 … dims/2 - 1: times F32 [B] → FP32 [B, dims], dims
// even. Has no gradient.
MEZZO_API mezzo_value mezzo_time_embedding(mezzo_graph *g, mezzo_value times, int64_t dims, float factor,
                                           float longest);
// Normal numbers of a shape, FP32: row b's are drawn by Philox from the key keys[b], two words, and depend on nothing
// else. keys I32 [shape[0], 2]. Has no gradient.
MEZZO_API mezzo_value mezzo_normal(mezzo_graph *g, mezzo_value keys, int rank, const int64_t *shape);
// Mean of (x - target)² over all elements of two values of one shape → [1]. FP32.
MEZZO_API mezzo_value mezzo_mse(mezzo_graph *g, mezzo_value x, mezzo_value target);
MEZZO_API mezzo_value mezzo_sum(mezzo_graph *g, mezzo_value x,
                                int axis); // axis < 0: all elements → [1]; else that axis is removed
MEZZO_API mezzo_value mezzo_mean(mezzo_graph *g, mezzo_value x, int axis); // likewise
// Likewise: the largest, the smallest (NaN where there is one; equal ones share the gradient, as torch's amax), and the
// product, FP32; and the first index of the largest, I32, with no gradient.
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
// Over n axes, below 0 from the end; n 0: over all. keep: they stay, with 1 element, else they go.
MEZZO_API mezzo_value mezzo_reduce(mezzo_graph *g, mezzo_reduction reduction, mezzo_value x, int n, const int *axes,
                                   bool keep);
// Sums of all elements up to each one along the axis, FP32; exclusive: without itself; reverse: of those from it on.
MEZZO_API mezzo_value mezzo_cumsum(mezzo_graph *g, mezzo_value x, int axis, bool exclusive, bool reverse);
// `training` in programs that train, `evaluation`, of the same shape, in those that run forward only.
MEZZO_API mezzo_value mezzo_by_mode(mezzo_graph *g, mezzo_value training, mezzo_value evaluation);
MEZZO_API mezzo_value mezzo_dropout(mezzo_graph *g, mezzo_value x,
                                    float p); // kept values are scaled by 1/(1-p); identity in evaluation programs
MEZZO_API mezzo_value mezzo_cast(mezzo_graph *g, mezzo_value x,
                                 mezzo_dtype dtype); // an explicit cast, kept by every pass
MEZZO_API mezzo_value mezzo_reshape(mezzo_graph *g, mezzo_value x, int rank,
                                    const int64_t *shape); // one dimension may be -1
MEZZO_API mezzo_status mezzo_split(mezzo_graph *g, mezzo_value x, int axis, int parts, mezzo_value *out); // equal parts
MEZZO_API mezzo_status mezzo_split_sizes(mezzo_graph *g, mezzo_value x, int axis, int parts, const int64_t *sizes,
                                         mezzo_value *out); // sizes NULL: equal parts
// n values, 1 to 16, equal in all dimensions but `axis`, consecutive.
MEZZO_API mezzo_value mezzo_concat(mezzo_graph *g, const mezzo_value *xs, int n, int axis);
// Pieces begin … end - 1 along an axis; an axis and indices below 0 count from the end.
MEZZO_API mezzo_value mezzo_slice(mezzo_graph *g, mezzo_value x, int axis, int64_t begin, int64_t end);
// x repeated to a shape by NumPy's rules.
MEZZO_API mezzo_value mezzo_expand(mezzo_graph *g, mezzo_value x, int rank, const int64_t *shape);
// before[d] elements of `value` before x along dimension d, and after[d] after it.
MEZZO_API mezzo_value mezzo_pad(mezzo_graph *g, mezzo_value x, const int64_t *before, const int64_t *after,
                                float value);
MEZZO_API mezzo_value mezzo_flip(mezzo_graph *g, mezzo_value x, int axis); // the elements of an axis in reverse
// Slices of x by an I32 index of any shape, which takes the axis' place (ONNX's Gather); elementwise: an index for each
// element, of x's rank, as torch.gather. Indices below 0 count from the end; past either end the result is NaN.
MEZZO_API mezzo_value mezzo_gather(mezzo_graph *g, mezzo_value x, int axis, mezzo_value index, bool elementwise);
// x with src added at the places from which mezzo_gather would read it, in order; indices past either end add nothing.
MEZZO_API mezzo_value mezzo_scatter_add(mezzo_graph *g, mezzo_value x, int axis, mezzo_value index, mezzo_value src,
                                        bool elementwise);
// Dimension i of the result is dimension axes[i] of x; one axis for each of x's dimensions, below 0 from the end. The
// elements are moved: what follows reads them in order.
MEZZO_API mezzo_value mezzo_permute(mezzo_graph *g, mezzo_value x, const int *axes);
MEZZO_API mezzo_value mezzo_transpose(mezzo_graph *g, mezzo_value x, int a, int b); // two axes change places

// Return a value's rank and one of its dimensions; 0 for MEZZO_NONE or an axis that it does not have.
MEZZO_API int mezzo_value_rank(const mezzo_graph *g, mezzo_value v);
MEZZO_API int64_t mezzo_value_dim(const mezzo_graph *g, mezzo_value v, int axis); // axis may be negative, from the end
// Returns the value that v is a reshape of; v itself where it is none; MEZZO_NONE for MEZZO_NONE.
MEZZO_API mezzo_value mezzo_value_reshaped(const mezzo_graph *g, mezzo_value v);

// Names the module of the next ops and parameters: "h.0", then "attn" → "h.0.attn". Names must not be empty or hold '*'
// or '?'. Each begin has its end before a program is made.
MEZZO_API void mezzo_module_begin(mezzo_graph *g, const char *name);
MEZZO_API void mezzo_module_end(mezzo_graph *g);

// --- adapters (LoRA: Hu et al., 2021) ---
typedef struct mezzo_lora {
    int64_t rank;        // 0: none
    double alpha;        // what an adapter adds is multiplied by alpha / rank
    const char *modules; // patterns with commas between, as "c_attn,h.0.mlp.*"; NULL: every linear layer
} mezzo_lora;
// Before anything is built: linear layers of Mezzo's models whose module a pattern names, whole or by its end, give
// y + alpha/rank · B·A·x. A, MODULE.lora_A.weight [rank, K], starts uniform in ±1/√K; B, MODULE.lora_B.weight
// [N, rank], at zero. INVALID: parameters are there already, a rank or an alpha that makes no sense.
MEZZO_API mezzo_status mezzo_graph_adapt(mezzo_graph *g, const mezzo_lora *lora);
// y with the adapter of the module that is open added, where it has one: for layers of one's own. x [… K], y [… N].
MEZZO_API mezzo_value mezzo_adapted(mezzo_graph *g, mezzo_value x, mezzo_value y);
// The same for a layer whose weight [N, K] has the rows of several layers, one below the other (q, k and v): each has
// an adapter of its own, under its own name beside the layer's, "h.0.attn.q_proj" beside "h.0.attn.qkv_proj". A pattern
// that names the layer names all of its parts. Called where the layer's module has ended. 1 to 4 parts, whose names of
// at most 31 characters are copied; without names, all of them NULL, the layer's own adapter is the caller's. The graph
// fails with INVALID where weight is no parameter, or the rows are not N.
typedef struct mezzo_part {
    const char *name;
    int64_t rows;
} mezzo_part;
MEZZO_API mezzo_value mezzo_adapted_parts(mezzo_graph *g, mezzo_value x, mezzo_value y, mezzo_value weight, int n,
                                          const mezzo_part *parts);
// Freezes all parameters but adapters' (mezzo_graph_freeze says what that means); nothing without adapters. INVALID: a
// pattern that names no linear layer.
MEZZO_API mezzo_status mezzo_graph_freeze_base(mezzo_graph *g);

// Autocast regions, nested: inside, ops are decided by `precision` whatever the program's precision is; FP32 is
// torch.autocast(enabled=False). A region decides ops, not parameters: masters are FP32 everywhere.
MEZZO_API void mezzo_autocast_begin(mezzo_graph *g, mezzo_precision precision);
MEZZO_API void mezzo_autocast_end(mezzo_graph *g);

// Ops between these are one recompute segment: with recompute on, only its inputs are kept for backward.
MEZZO_API void mezzo_recompute_begin(mezzo_graph *g);
MEZZO_API void mezzo_recompute_end(mezzo_graph *g);

// Names a value so that mezzo_program_read gives it after a run; it is then kept to the program's end. INVALID: the
// name is taken.
MEZZO_API mezzo_status mezzo_graph_output(mezzo_graph *g, const char *name, mezzo_value v);
// The value of one element whose gradient is taken. It is an output named "loss" too.
MEZZO_API mezzo_status mezzo_graph_loss(mezzo_graph *g, mezzo_value v);

#ifdef __cplusplus
}
#endif
#endif
