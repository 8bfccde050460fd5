// While an ONNX file becomes a graph, this says what each name in it stands for.
#ifndef MZ_ONNX_H
#define MZ_ONNX_H

#include "base/base.h"
#include "mezzo/onnx.h"
#include "onnx.pb-c.h"

enum { // TensorProto.DataType
    MZ_ONNX_FLOAT = 1,
    MZ_ONNX_UINT8 = 2,
    MZ_ONNX_INT8 = 3,
    MZ_ONNX_INT32 = 6,
    MZ_ONNX_INT64 = 7,
    MZ_ONNX_BOOL = 9,
    MZ_ONNX_FLOAT16 = 10,
    MZ_ONNX_DOUBLE = 11,
    MZ_ONNX_BFLOAT16 = 16,
};

typedef enum mz_onnx_kind {
    MZ_ONNX_ABSENT, // not made yet, or an optional input that is left out
    MZ_ONNX_HOST,   // numbers that are known while the graph is built
    MZ_ONNX_WEIGHT, // an initializer that is trained
    MZ_ONNX_VALUE,  // of the graph
} mz_onnx_kind;

// Elements of a WEIGHT or a VALUE are stored as `base`, of which dimension i is dimension perm[i]: Transpose moves
// nothing, and images stay as the graph's ops want them until an op needs the file's order.
typedef struct mz_onnx_value {
    const char *name;
    mz_onnx_kind kind;
    bool integer; // or a truth value
    bool floats;  // VALUE that is integer: stored as F32, exact up to 2^24
    bool needed;  // an output depends on it
    bool frozen;  // WEIGHT: a buffer, as running statistics
    bool negated; // VALUE of truth: stands for the opposite
    int rank;     // 0: a scalar, which a graph has as [1]
    int64_t dim[MEZZO_MAX_RANK];
    int perm[MEZZO_MAX_RANK];
    double *numbers;            // HOST; of the build
    const MzPb__Tensor *tensor; // WEIGHT
    mezzo_value base, moved;    // moved: `base` in this order, once it was asked for
    struct mz_onnx_value *of;   // WEIGHT that is another's elements: that one, which has the base
    int producer;               // node, -1: none
    struct mz_onnx_conv *conv;  // VALUE: the convolution that made it, of the build (images.c); NULL: none
} mz_onnx_value;

// A parameter of the graph and where its numbers come from.
typedef struct mz_onnx_param {
    char *name;
    const MzPb__Tensor *tensor;  // NULL: numbers
    int rank;                    // of the tensor
    int64_t dim[MEZZO_MAX_RANK]; // of the tensor
    int perm[MEZZO_MAX_RANK];    // the tensor's dimension i is the parameter's perm[i]
    int64_t count;
    float *numbers;
} mz_onnx_param;

// Running statistics of a batch normalization.
typedef struct mz_onnx_statistics {
    const mz_onnx_value *mean, *variance; // weights
    mezzo_value batch;                    // a batch's own, [2, C]: means, then variances
    int64_t channels;
    double momentum; // running = momentum · running + (1 - momentum) · batch
} mz_onnx_statistics;

#define MZ_ONNX_STATISTICS "onnx.statistics" // the output that has those of all, one after the other

struct mezzo_onnx {
    char *path;
    MzPb__Model *model;
    mz_onnx_value *values; // every name
    size_t n_values;
    uint32_t *slots; // of the names' hash table: index + 1
    size_t n_slots;
    int64_t opset;
    mz_onnx_param *params;
    size_t n_params;
    mz_onnx_statistics *statistics;
    size_t n_statistics;
    int *recognized; // of the last build, by idiom
};

// Holds what the variables of a pattern stand for, by letter.
typedef struct mz_onnx_match {
    const struct mz_onnx_idiom *idiom; // NULL: none
    mz_onnx_value *value[26];
    double number[26];
    bool known[26]; // numbers
} mz_onnx_match;

// A table of rotary embeddings, which the layers share.
typedef struct mz_onnx_rope_table {
    int64_t rows, width; // 0: none yet
    double theta;
    mezzo_value made;
} mz_onnx_rope_table;

// A graph is built twice: on a graph that is thrown away, where shapes, known numbers and idioms are found; then with
// what the outputs need.
typedef struct mz_onnx_build {
    mezzo_onnx *onnx;
    mezzo_graph *g;
    bool draft;
    const char *module;      // that is open: the node's name; NULL: none
    mz_onnx_rope_table rope; // the last one of this graph
    mz_onnx_match **matches; // by node; NULL: no idiom ends there
    void **blocks;           // memory of the build
    size_t n_blocks;
} mz_onnx_build;

enum { MZ_ONNX_SLOTS = 64 };
// One node on its way.
typedef struct mz_onnx_call {
    mz_onnx_build *build;
    const MzPb__Node *node;
    const struct mz_onnx_op *op;
    int n_in, n_out;
    mz_onnx_value *in[MZ_ONNX_SLOTS], *out[MZ_ONNX_SLOTS]; // NULL: left out
} mz_onnx_call;

// An op of ops.def. make1, make2: Mezzo's op of an element-wise one; host1, host2: the same on a known number.
typedef struct mz_onnx_op {
    const char *name;
    mezzo_status (*convert)(mz_onnx_call *call, int which);
    int which; // of several that one function converts
    int least; // inputs
    mezzo_value (*make1)(mezzo_graph *, mezzo_value);
    mezzo_value (*make2)(mezzo_graph *, mezzo_value, mezzo_value);
    double (*host1)(double);
    double (*host2)(double, double);
} mz_onnx_op;
const mz_onnx_op *mz_onnx_op_of(const char *name); // NULL: not known

// file.c
mz_onnx_value *mz_onnx_find(const mezzo_onnx *onnx, const char *name); // NULL: no such name
int64_t mz_onnx_elements(int rank, const int64_t *dim);
mezzo_status mz_onnx_floats(const mezzo_onnx *onnx, const MzPb__Tensor *tensor, double *out); // all elements
bool mz_onnx_is_integer(int64_t type); // of a tensor: or of truth

// Attributes. *_or: the number where the node says nothing.
const MzPb__Attribute *mz_onnx_attribute(const MzPb__Node *node, const char *name);
int64_t mz_onnx_int_or(const MzPb__Node *node, const char *name, int64_t otherwise);
double mz_onnx_float_or(const MzPb__Node *node, const char *name, double otherwise);
bool mz_onnx_is(const MzPb__Node *node, const char *name, const char *text, bool otherwise); // a text attribute

// Starts an error about a node: its op and name come first.
#define mz_onnx_fail(call, status, ...)                                                                                \
    mz_context(mz_fail((status), __VA_ARGS__), "%s node '%s'", (call)->node->op_type,                                  \
               (call)->node->name ? (call)->node->name : (call)->node->output[0])

// value.c
// The module that ops and parameters belong to, instead of the one that is open; NULL: none. Returns the one that was.
const char *mz_onnx_module(mz_onnx_build *build, const char *name);
void *mz_onnx_take(mz_onnx_build *build, size_t count, size_t size); // until the build ends; NULL: no memory, error set
// Known numbers as an output, for the caller to fill.
mezzo_status mz_onnx_host(mz_onnx_call *call, int out, bool integer, int rank, const int64_t *dim, double **numbers);
// Sets an output of the graph. mz_onnx_give_as: dimension i is the value's perm[i]. mz_onnx_give_integers: F32 stands
// for integers.
mezzo_status mz_onnx_give(mz_onnx_call *call, int out, bool integer, int rank, mezzo_value value);
mezzo_status mz_onnx_give_as(mz_onnx_call *call, int out, bool integer, int rank, mezzo_value value, const int *perm);
mezzo_status mz_onnx_give_same(mz_onnx_call *call, const mz_onnx_value *x); // output 0 is x, whatever it is
// Input `in` as a value of the graph in the file's order: weights become parameters, known numbers constants; integers
// and truth values I32 where they are stored so.
mezzo_status mz_onnx_get(mz_onnx_call *call, int in, mezzo_value *out);
mezzo_status mz_onnx_value_of(mz_onnx_call *call, mz_onnx_value *value, mezzo_value *out); // the same of any value
mezzo_status mz_onnx_number(mz_onnx_call *call, int in, mezzo_value *out);                 // the same, as F32
mezzo_status mz_onnx_index(mz_onnx_call *call, int in, mezzo_value *out);                  // the same, as I32
// Permutes dimensions: dimension i of `value`, brought to `rank` dimensions by ones in front, is dimension perm[i] of
// *out.
mezzo_status mz_onnx_ordered(mz_onnx_call *call, mz_onnx_value *value, int rank, const int *perm, mezzo_value *out);
mezzo_status mz_onnx_base(mz_onnx_call *call, mz_onnx_value *value, mezzo_value *out);
bool mz_onnx_in_order(const mz_onnx_value *value); // stored in the file's order
mezzo_status mz_onnx_constant(mz_onnx_call *call, bool integer, int rank, const int64_t *dim, const double *numbers,
                              mezzo_value *out);
mezzo_value mz_onnx_join(mezzo_graph *g, mezzo_value *parts, int n, int axis); // any number of them
mezzo_value mz_onnx_scalar(mz_onnx_call *call, double number);                 // F32 [1]
// An input of integers that must be known: up to `most` of them.
mezzo_status mz_onnx_ints(mz_onnx_call *call, int in, int most, int *n, int64_t *out);
// The same as an attribute of this name in older opsets. *n -1: neither is there.
mezzo_status mz_onnx_ints_or(mz_onnx_call *call, int in, const char *attribute, int most, int *n, int64_t *out);
int64_t mz_onnx_integer(double number);                                       // the nearest that there is; 0 for NaN
bool mz_onnx_known(const mz_onnx_call *call);                                 // every input that is there
mezzo_status mz_onnx_numbers(mz_onnx_call *call, int in, const double **out); // of a known input
bool mz_onnx_has(const mz_onnx_call *call, int in);
bool mz_onnx_one_number(const mz_onnx_value *value, double *out); // a known value of one element

// moves.c
// x in another shape, a scalar as [1]: the value that x is a reshape of, if it has that shape.
mezzo_value mz_onnx_shaped(mezzo_graph *g, mezzo_value x, int rank, const int64_t *dim);
// The value that x is a reshape of, if both have rows of the same width; else x.
mezzo_value mz_onnx_rows(mezzo_graph *g, mezzo_value x);

// weights.c
mezzo_status mz_onnx_add_param(mz_onnx_call *call, const char *name, int rank, const int64_t *dim, bool frozen,
                               mz_onnx_param **out, mezzo_value *value);
mezzo_status mz_onnx_add_record(mezzo_onnx *onnx, const char *name, mz_onnx_param **out);
void mz_onnx_free_params(mezzo_onnx *onnx);
mezzo_status mz_onnx_add_statistics(mezzo_onnx *onnx, const mz_onnx_statistics *statistics);
int64_t mz_onnx_place(const mz_onnx_param *param, int64_t i); // in the parameter, of the tensor's element i
mezzo_status mz_onnx_find_weights(mz_onnx_build *build);      // decides what initializers are, and in which order

// idioms.c: whether a pattern ends at this node, and, if so, its outputs. *done false: none does.
mezzo_status mz_onnx_recognize(mz_onnx_call *call, int node, bool *done);

#endif
