// Declares an op as other folders see it: its number, attributes, tensors and numerics.
#ifndef MZ_OP_H
#define MZ_OP_H

#include <math.h>

#include "base/base.h"
#include "base/precision.h"
#include "graph/kinds.h"
#include "graph/storage.h"
#include "mezzo/graph.h"

#define MZ_MAX_IN  16
#define MZ_MAX_OUT 16

typedef enum mz_op {
#define OP(name, ...)          MZ_OP_##name,
#define OP_BACKWARD(name, ...) MZ_OP_##name,
#define OP_STATE(name, ...)    MZ_OP_##name,
#include "graph/ops.def"
#undef OP
#undef OP_BACKWARD
#undef OP_STATE
    MZ_OP_COUNT
} mz_op;

typedef enum mz_cast_class {
    MZ_CAST_LOW,
    MZ_CAST_FP32,
    MZ_CAST_WIDEST,
    MZ_CAST_FOLLOW,
    MZ_CAST_INT,
    MZ_CAST_EXPLICIT,
    MZ_CAST_NONE
} mz_cast_class;
typedef enum mz_tolerance { MZ_TOL_EXACT, MZ_TOL_ROUND, MZ_TOL_ELEMENT, MZ_TOL_REDUCE, MZ_TOL_MATMUL } mz_tolerance;

// The words with which ops.def describes a slot, as bits.
enum {
    MZ_SLOT_OPTIONAL = 1,   // may be absent
    MZ_SLOT_REPEATED = 2,   // the last slot: any number of tensors
    MZ_SLOT_GRADIENT = 4,   // an output that may be a parameter's FP32 gradient, which the op adds to
    MZ_SLOT_REPLACED = 8,   // an input whose bytes an output may take
    MZ_SLOT_STATE = 16,     // an FP32 input that the op writes
    MZ_SLOT_INTEGER = 32,   // its numbers are I32
    MZ_SLOT_BYTES = 64,     // its data are bytes, U8
    MZ_SLOT_SCALED = 128,   // an input that is stored with scales in a precision that has them
    MZ_SLOT_REPLACES = 256, // the output that takes a REPLACED input's bytes; without one the first output does
    MZ_SLOT_WHOLE = 512,    // with SCALED: only one scale a tensor is possible
    MZ_SLOT_WIDE = 1024,    // an input that every precision leaves in FP32 or wider
};
typedef struct mz_slot {
    const char *name; // "x", "db"; "" after the last one
    unsigned is;      // bits of MZ_SLOT_…
} mz_slot;

// A slot's number: MZ_IN(linear, bias) is 2, MZ_OUT(linear, preact) is 1. A name that the op lacks does not compile:
// every op has structs with one byte a slot, so that a slot's offset is its number.
#define MZ_SLOT(name, is) char name;
#define OP_SLOTS(op, inputs, outputs)                                                                                  \
    struct mz_in_##op {                                                                                                \
        inputs char end;                                                                                               \
    };                                                                                                                 \
    struct mz_out_##op {                                                                                               \
        outputs char end;                                                                                              \
    };
#define OP(op, inputs, outputs, ...)          OP_SLOTS(op, inputs, outputs)
#define OP_BACKWARD(op, inputs, outputs, ...) OP_SLOTS(op, inputs, outputs)
#define OP_STATE(op, inputs, outputs, ...)    OP_SLOTS(op, inputs, outputs)
#include "graph/ops.def"
#undef OP
#undef OP_BACKWARD
#undef OP_STATE
#undef OP_SLOTS
#undef MZ_SLOT
#define MZ_IN(op, slot)  ((int)offsetof(struct mz_in_##op, slot))
#define MZ_OUT(op, slot) ((int)offsetof(struct mz_out_##op, slot))

struct mz_shape {
    int rank;
    int64_t dim[MEZZO_MAX_RANK];
};
typedef struct mz_attrs mz_attrs;
// Returns the operations of one run; a multiply-add counts two. Shapes by slot; NULL: absent.
typedef double mz_flops_fn(const mz_attrs *attrs, const mz_shape *const in[MZ_MAX_IN],
                           const mz_shape *const out[MZ_MAX_OUT]);

// Says what an op does with padding; ops.def describes the three ways.
typedef enum mz_padding { MZ_PADDING_REFUSES, MZ_PADDING_ZERO, MZ_PADDING_LOGICAL } mz_padding;

struct mz_composition;
// A row of ops.def.
typedef struct mz_op_info {
    const char *name;
    enum { MZ_KIND_FORWARD, MZ_KIND_BACKWARD, MZ_KIND_STATE } kind;
    const mz_slot *in, *out; // n_in and n_out of them, as listed, and one more with an empty name
    int n_in, n_out;
    const char *saved; // names, separated by spaces
    mz_cast_class cast_class;
    mz_tolerance tolerance;
    bool moves, cheap;
    mz_padding padding;
    const char *axes;                          // the dimensions that share an axis (axes.c); NULL: none
    mz_flops_fn *flops;                        // NULL: its operations are not counted
    void (*compose)(struct mz_composition *c); // NULL for a primitive, a gradient, or an op without a composition
                                               // (compose.h)
    bool is_gradient;                          // its composition is the gradient of the composition of `gradient_of`
    mz_op gradient_of;
} mz_op_info;
extern const mz_op_info mz_op_table[MZ_OP_COUNT];

// Returns the entry of slot `index`: after a repeated slot the repeated one, after the last of other ops {"", 0}.
mz_slot mz_op_slot(mz_op op, bool output, int index);
int mz_op_find_slot(mz_op op, bool output, const char *name); // the slot's number; -1: the op has no slot of this name
// mz_op_reuses returns the input slot whose bytes an output may take (same size and dtype, last use), or -1;
// mz_op_replaces returns that output.
int mz_op_reuses(mz_op op);
int mz_op_replaces(mz_op op);
// Returns whether the op is the update of a kind of optimizer (optimizers.def).
static inline bool mz_op_is_kind(mz_op op) {
    switch (op) {
#define KIND(name, ...) case MZ_OP_##name:
#include "mezzo/optimizers.def"
#undef KIND
        return true;
    default:
        return false;
    }
}
// Returns whether the op is a primitive: a device has kernels for these, and compositions of them replace all other
// ops.
static inline bool mz_op_is_primitive(mz_op op) {
    switch (op) {
#define PRIMITIVE(name) case MZ_OP_##name:
#include "graph/primitives.def"
#undef PRIMITIVE
        return true;
    default:
        return false;
    }
}
// Returns whether the op is a product: a matrix multiplication, a convolution or attention.
static inline bool mz_op_is_product(mz_op op) {
    return mz_op_table[op].tolerance == MZ_TOL_MATMUL;
}

int64_t mz_shape_count(const mz_shape *s); // the number of elements; 1 for rank 0
bool mz_shape_equal(const mz_shape *a, const mz_shape *b);
// Broadcasts two shapes by NumPy's rules: last dimensions are aligned, and a dimension that is 1 or absent repeats.
// Returns false where they do not fit.
bool mz_shape_broadcast(const mz_shape *a, const mz_shape *b, mz_shape *out);
// The loops of a broadcast op over its output, without dimensions of 1. Neighbours that repeat alike are one loop;
// there is at least one. Each operand's strides are in elements, 0 where it repeats; the last is 0 or 1.
enum { MZ_OPERANDS = 3 };
typedef struct mz_broadcast {
    int rank;
    int64_t dim[MEZZO_MAX_RANK], step[MZ_OPERANDS][MEZZO_MAX_RANK];
} mz_broadcast;
mz_broadcast mz_broadcast_loops(const mz_shape *const in[], int n, const mz_shape *out); // n is at most MZ_OPERANDS
// Returns the number of the second operand's elements where it repeats as a whole and the first does not repeat, else
// 0.
int64_t mz_broadcast_whole(const mz_broadcast *r);
// The loops of a permutation in the output's order, without dimensions of 1. Dimensions that stay neighbours are one
// loop; there is at least one. stride: in elements of the input.
typedef struct mz_permuted {
    int rank;
    int64_t dim[MEZZO_MAX_RANK], stride[MEZZO_MAX_RANK];
} mz_permuted;
mz_permuted mz_shape_permute(const mz_shape *from, const int *permutation);
const char *mz_shape_text(const mz_shape *s, char *buf, size_t size); // writes "12x64x384"
int64_t mz_shape_rows(const mz_shape *s);                             // the product of all dimensions but the last

// Only `quantize` takes SWIGLU.
typedef enum mz_act { MZ_ACT_NONE, MZ_ACT_RELU, MZ_ACT_GELU, MZ_ACT_GELU_TANH, MZ_ACT_SILU, MZ_ACT_SWIGLU } mz_act;
// Returns the op that computes an activation, or its gradient.
mz_op mz_act_op(mz_act act, bool gradient);
// Returns the activation of SwiGLU's gate: attrs.act, where NONE means SiLU.
static inline mz_act mz_act_of_gate(mz_act act) {
    return act == MZ_ACT_NONE ? MZ_ACT_SILU : act;
}

// The constants of the update ops, set on the host when they change (never per step).
typedef struct mz_update_attrs {
    mz_update_rule rule; // of the op of an optimizer's kind
    int n_groups;        // step_control: the optimizer's groups, with the betas of each
    double betas[MZ_GROUPS][2];
    int schedule; // mezzo_schedule.kind
    double lr, min_lr, power;
    int64_t warmup, steps;
    double max_norm;
    int64_t elements; // of a kind's op: elements of all its segments; 0: as many as there are gradients
    bool keeps_scale; // grad_stats: gradients stay unscaled, and the state holds their factor
    bool overlaps;    // of a kind's op: it leaves part of the device to other streams
    bool enabled;     // scaler_update
    double growth_factor, backoff_factor, min_scale, max_scale;
    int64_t growth_interval;
    int hysteresis, floor_patience;
} mz_update_attrs;

// rope_table: a frequency f of number i becomes f·kept + f/divisor·(1 - kept), kept = offset + slope·(by_index ? i :
// f), limited to 0 … 1, in FP32; cosines and sines are multiplied by `amplitude`. divisor 0: frequencies stay.
typedef struct mz_rope_scaling {
    float divisor, offset, slope, amplitude;
    bool by_index;
} mz_rope_scaling;

struct mz_attrs {
    float alpha;  // a factor: of element.def's ops, expand, pad, constant, upsample, pool, time_embedding; route: of
                  // all weights; attention: of the scores, 0: 1/√D
    float eps;    // layernorm, rmsnorm, group_norm, matrix_normalize, matrix_scale_rows
    float offset; // rmsnorm: added to the weight
    float p;      // dropout, attention
    uint32_t rng; // dropout, attention, random_gradients: the random stream's number (Philox "tensor")
    int axis;     // reductions, expand: -1 = all elements; cumsum, gather, scatter_add, split, concat, slice, pad,
                  // max_pool
    int permutation[MEZZO_MAX_RANK];   // permute: y's dimension i is x's dimension permutation[i]
    int64_t begin, end;                // slice, pad: indices along the axis; arange: begin, the first number
    int64_t step;                      // arange: from one number to the next; max_pool: between a window's elements
    bool elementwise;                  // gather, scatter_add: an index for each element, not for the whole axis
    bool reverse, exclusive;           // cumsum: from the end; without the element itself
    bool causal;                       // attention: query i sees keys 0 … i; else all of them
    int64_t window;                    // attention, causal: the number of last keys that a query sees; 0: all
    float score_cap;                   // attention, cross_entropy: scores s become cap·tanh(s/cap); 0: they stay
    int heads, kv_heads;               // attention; rope: heads
    int rotated;                       // rope: the number of heads, from the first, that are rotated
    float theta;                       // rope_table, time_embedding: wavelengths grow from 2π to nearly 2π·theta
    mz_rope_scaling rope;              // rope_table
    bool interleaved, inverse;         // rope: pairs are neighbours, not halves; the rotation is inverse
    int experts, top_k;                // route, dispatch, combine and gradients: top_k; expert_order: experts
    int groups, top_groups;            // route: experts are chosen from the best top_groups of so many groups; conv2d,
                                       // group_norm: groups of channels; track: ranks whose rows
                                       // take turns; 1: the order of batches is that of rows
    int stride, pad_before, pad_after; // conv2d: in both directions; rows and columns of zeros above and left, below
                                       // and right; max_pool: along the axis
    int factor;                        // upsample, pool; max_pool: elements of a window
    float low, high;                   // clamp
    bool normalise;                    // route: a token's weights add up to 1 (times alpha)
    bool softmax;                      // route: scores are softmax(logits), else sigmoid(logits)
    int32_t ignore_index;              // cross_entropy
    int64_t first_row;                 // cross_entropy: logits are rows first_row … of the targets'; linear_dx,
                                       // linear_dw with random_gradients: dy is rows first_row … of what is rounded
    bool transpose_a, transpose_b;     // matmul
    bool symmetric;                    // matmul: a kernel may compute half of the results, because b as multiplied is
                                       // a's transpose, or because both are symmetric and commute; `added` is symmetric
    int64_t chosen_for;                // matmul: the bits of each result are those in a batch of this many matrices; 0:
                                       // of its own batch
    bool tanh;                         // gelu
    bool by_mode;                      // where: selects a in programs that train and b in others, whatever c is
    bool accumulate;                   // the op adds to outputs marked '+'
    bool measure;                      // quantize: the scale comes from this tensor's amax; else from the entry
    bool record;                       // quantize: updates the entry's amax
    bool keeps;                        // quantize, with record: updates `weight_amax` instead of `amax`
    mz_act act; // the activation of linear's epilogue, of linear_dx's derivative, of group_norm, of quantize, or of a
                // gate (NONE: SiLU)
    mezzo_dtype via; // linear: x·Wᵀ + bias is rounded to it before act; so is the result of act before the residual
    mezzo_blocks blocks;           // linear, linear_dx, linear_dw: operands are first rounded to blocks along the
                                   // dimension that the product sums over
    bool random_gradients;         // with blocks: dy is rounded at random, with stream rng
    bool hadamard;                 // with blocks: linear_dw's operands are multiplied by a Hadamard matrix first
    int64_t sample;                // inspect: the number of values to check; 0 = all
    float limit;                   // inspect: magnitudes above it are bad; 0 = none
    int bad_first, bad_rest;       // inspect: MZ_BAD_… of the first input and of the others
    float coefficients[3];         // matmul with `added`, matrix_scale_rows; the third may be other than 0 in a call
                                   // that was prepared with such a one
    const mz_update_attrs *update; // of OP_STATE rows
    const struct mz_rounding_attrs *rounding; // rounding: see backend/inspect.h
};

// The formats of the arithmetic; each tensor has a storage dtype of its own.
typedef struct mz_numerics {
    mezzo_dtype compute;    // operands are rounded to it before multiplication: F64 F32 TF32 BF16 F16
    mezzo_dtype accumulate; // of dot products
    mezzo_dtype reduce;     // of sums, norms and softmax
} mz_numerics;

// The number of element i of a scaled tensor is its stored data times their scale. Scales are FP32 and lie on the
// device.
typedef struct mz_tensor {
    void *data; // NULL: absent, or unknown during prepare
    mezzo_dtype dtype;
    mz_shape shape;
    mz_scaling scaling;
    const float *scale; // [mz_scale_count]; NULL without scaling, or unknown during prepare
    mz_storage storage;
    bool columnwise; // 8 bits with scales, transposed: element (row, column) is number column ·
                     // mz_columnwise_pitch(rows) + row; zeros follow each column's last row
} mz_tensor;
// Returns the pitch of columns of a columnwise tensor: a multiple of the numbers that 8-bit products read at a time.
static inline int64_t mz_columnwise_pitch(int64_t rows) {
    return (rows + 15) / 16 * 16;
}
static inline int64_t mz_tensor_index(const mz_tensor *t, int64_t i) { // returns the index of logical element i in
                                                                       // storage
    const int64_t at = t->storage.padded ? mz_stored_index(&t->shape, &t->storage, i) : i;
    if (!t->columnwise)
        return at;
    const int64_t columns = mz_stored_dim(&t->shape, &t->storage, t->shape.rank - 1);
    return at % columns * mz_columnwise_pitch(mz_stored_count(&t->shape, &t->storage) / columns) + at / columns;
}
static inline size_t mz_tensor_bytes_stored(const mz_tensor *t) {
    const int64_t n = mz_stored_count(&t->shape, &t->storage);
    const int64_t columns = t->columnwise ? mz_stored_dim(&t->shape, &t->storage, t->shape.rank - 1) : 0;
    return (size_t)(columns > 0 ? columns * mz_columnwise_pitch(n / columns) : n) * mezzo_dtype_size(t->dtype);
}

// Returns the factor of q·kᵀ for heads of width D.
static inline double mz_attention_scale(const mz_attrs *attrs, int64_t width) {
    return attrs->alpha > 0 ? (double)attrs->alpha : 1 / sqrt((double)width);
}
// Returns the first key that query i of a row sees. `positions` are the row's, or NULL. The result does not fall with i
// where positions grow by one or start again at 0.
static inline int64_t mz_attention_first(const mz_attrs *attrs, const int32_t *positions, int64_t i) {
    int64_t before = attrs->window > 0 && attrs->window - 1 < i ? attrs->window - 1 : i;
    if (positions != NULL && positions[i] < before)
        before = positions[i] < 0 ? 0 : positions[i];
    return i - before;
}

// Returns z's shape of `quantize` from those of x and preact (NULL: absent).
mz_shape mz_quantized_shape(mz_act act, const mz_shape *x, const mz_shape *preact);

// The number of scales of a tensor, and the scale of an element. Blocks of one row have the scales of a block for all
// rows side by side, padded to a multiple of 128 rows, because kernels copy 128 at a time: (block, row) is number block
// · mz_scale_pitch(rows) + row, and scales of the padding are 1. Columnwise data have blocks of one column, and (block,
// column) takes their place. Square blocks are in the order of rows in both layouts.
enum { MZ_SCALE_BLOCK = 128 };
static inline int64_t mz_scale_pitch(int64_t rows) {
    return (rows + MZ_SCALE_BLOCK - 1) / MZ_SCALE_BLOCK * MZ_SCALE_BLOCK;
}
int64_t mz_scale_count(const mz_tensor *t);
int64_t mz_scale_index(const mz_tensor *t, int64_t element);
// Returns the rows and columns that share a scale in blocks; columnwise data exchange the two.
void mz_scale_extent(const mz_tensor *t, int64_t *rows, int64_t *columns);
// Returns the output of `quantize` that has the scales of its rowwise or columnwise data.
static inline int mz_scale_slot(mz_scaling scaling, bool columnwise) {
    const bool own = columnwise && mz_scalings[scaling].rows != mz_scalings[scaling].columns;
    return own ? MZ_OUT(quantize, columnwise_scales) : MZ_OUT(quantize, scales);
}

#endif
