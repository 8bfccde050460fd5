// Holds what each name of an ONNX file means while the file becomes a graph.
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
    MZ_ONNX_HOST,   // numbers that are known when the graph is built
    MZ_ONNX_WEIGHT, // a trained initializer
    MZ_ONNX_VALUE,  // a value of the graph
} mz_onnx_kind;

// Elements of a WEIGHT or a VALUE are stored as `base`, of which dimension i is dimension perm[i]. So Transpose moves
// no data, and images stay in the order of the graph's ops until an op needs the file's order.
typedef struct mz_onnx_value {
    const char *name;
    mz_onnx_kind kind;
    bool integer; // integers or truth values
    bool floats;  // a VALUE of integers that is stored as F32, exact up to 2^24
    bool needed;  // an output depends on it
    bool frozen;  // a WEIGHT that is a buffer, such as running statistics
    bool negated; // a VALUE of truth that means the opposite of what is stored
    int rank;     // 0: a scalar, which is [1] in a graph
    int64_t dim[MEZZO_MAX_RANK];
    int perm[MEZZO_MAX_RANK];
    double *numbers;            // of a HOST; the build owns them
    const MzPb__Tensor *tensor; // of a WEIGHT
    mezzo_value base, moved;    // moved: `base` in the file's order, once an op needed that
    struct mz_onnx_value *of;   // a WEIGHT with another's elements: that other one, which has the base
    int producer;               // index of its node, -1: none
    struct mz_onnx_conv *conv;  // a VALUE: the convolution that made it, which the build owns (images.c); NULL: none
} mz_onnx_value;

// Holds a parameter of the graph and the source of its numbers.
typedef struct mz_onnx_param {
    char *name;
    const MzPb__Tensor *tensor;  // NULL: `numbers` has them
    int rank;                    // of the tensor
    int64_t dim[MEZZO_MAX_RANK]; // of the tensor
    int perm[MEZZO_MAX_RANK];    // the tensor's dimension i is the parameter's perm[i]
    int64_t count;
    float *numbers;
} mz_onnx_param;

struct mezzo_onnx {
    char *path;
    MzPb__Model *model;
    mz_onnx_value *values; // one for each name
    size_t n_values;
    uint32_t *slots; // hash table of the names: index + 1
    size_t n_slots;
    int64_t opset;
    mz_onnx_param *params;
    size_t n_params;
    int *recognized; // number of each idiom in the last build
    bool told;       // which tables are not trained
};

// Holds what the variables of a pattern match, by letter.
typedef struct mz_onnx_match {
    const struct mz_onnx_idiom *idiom; // NULL: none
    mz_onnx_value *value[26];
    double number[26];
    bool known[26]; // numbers of the pattern's $ letters
} mz_onnx_match;

// A table of rotary embeddings, which the layers share.
typedef struct mz_onnx_rope_table {
    int64_t rows, width; // 0: there is none yet
    double theta;
    mezzo_value made;
} mz_onnx_rope_table;

// State of a build. A graph is built twice: first as a draft that is dropped, in which shapes, known numbers and idioms
// are found; then with the nodes that the outputs need.
typedef struct mz_onnx_build {
    mezzo_onnx *onnx;
    mezzo_graph *g;
    bool draft;
    const char *module;      // the open module, which has the node's name; NULL: none
    mz_onnx_rope_table rope; // the last one of this graph
    mz_onnx_match **matches; // by node; NULL: no idiom ends there
    void **blocks;           // memory that the build owns
    size_t n_blocks;
} mz_onnx_build;

enum { MZ_ONNX_SLOTS = 64 };
// One node during its conversion.
typedef struct mz_onnx_call {
    mz_onnx_build *build;
    const MzPb__Node *node;
    const struct mz_onnx_op *op;
    int n_in, n_out;
    mz_onnx_value *in[MZ_ONNX_SLOTS], *out[MZ_ONNX_SLOTS]; // NULL: it is left out
} mz_onnx_call;

// Describes an op of ops.def. make1, make2: Mezzo's op for an element-wise one; host1, host2: the same on a known
// number.
typedef struct mz_onnx_op {
    const char *name;
    mezzo_status (*convert)(mz_onnx_call *call);
    int which; // selects among several ops that one function converts
    int least; // number of required inputs
    mezzo_value (*make1)(mezzo_graph *, mezzo_value);
    mezzo_value (*make2)(mezzo_graph *, mezzo_value, mezzo_value);
    double (*host1)(double);
    double (*host2)(double, double);
} mz_onnx_op;
const mz_onnx_op *mz_onnx_op_of(const char *name); // NULL: the op is not known

// file.c
mz_onnx_value *mz_onnx_find(const mezzo_onnx *onnx, const char *name); // NULL: there is no such name
// Returns how many inputs of nodes and outputs of the file are this value.
int mz_onnx_readers(const mezzo_onnx *onnx, const char *name);
int64_t mz_onnx_elements(int rank, const int64_t *dim);
mezzo_status mz_onnx_floats(const mezzo_onnx *onnx, const MzPb__Tensor *tensor, double *out); // writes all elements
bool mz_onnx_is_integer(int64_t type); // of a tensor's type: also true for truth values

// Find attributes; those called *_or return a default where the node has none.
const MzPb__Attribute *mz_onnx_attribute(const MzPb__Node *node, const char *name);
int64_t mz_onnx_int_or(const MzPb__Node *node, const char *name, int64_t otherwise);
double mz_onnx_float_or(const MzPb__Node *node, const char *name, double otherwise);
bool mz_onnx_is(const MzPb__Node *node, const char *name, const char *text, bool otherwise); // for a text attribute

// Starts an error about a node: its op and name come first.
#define mz_onnx_fail(call, status, ...)                                                                                \
    mz_context(mz_fail((status), __VA_ARGS__), "%s node '%s'", (call)->node->op_type,                                  \
               (call)->node->name ? (call)->node->name : (call)->node->output[0])

// Sets the module that ops and parameters belong to (value.c); NULL: none. Returns the module before.
const char *mz_onnx_module(mz_onnx_build *build, const char *name);
void *mz_onnx_take(mz_onnx_build *build, size_t count, size_t size); // memory until the build ends; NULL: there is
                                                                     // none, and the error is set
// Makes known numbers an output, which the caller fills.
mezzo_status mz_onnx_host(mz_onnx_call *call, int out, bool integer, int rank, const int64_t *dim, double **numbers);
// Set an output of the graph. mz_onnx_give_as: dimension i is the value's perm[i]. mz_onnx_give_integers: F32 holds
// integers.
mezzo_status mz_onnx_give(mz_onnx_call *call, int out, bool integer, int rank, mezzo_value value);
mezzo_status mz_onnx_give_as(mz_onnx_call *call, int out, bool integer, int rank, mezzo_value value, const int *perm);
// Makes output 0, which has floats where x has integers.
mezzo_status mz_onnx_give_floats(mz_onnx_call *call, const mz_onnx_value *x, int rank, mezzo_value value);
mezzo_status mz_onnx_give_same(mz_onnx_call *call, const mz_onnx_value *x); // makes output 0 the same as x
// Gets input `in` as a value of the graph in the file's order: weights become parameters, known numbers constants;
// integers and truth values are I32 where they are stored so.
mezzo_status mz_onnx_get(mz_onnx_call *call, int in, mezzo_value *out);
mezzo_status mz_onnx_value_of(mz_onnx_call *call, mz_onnx_value *value, mezzo_value *out); // gets any value likewise
mezzo_status mz_onnx_number(mz_onnx_call *call, int in, mezzo_value *out);                 // gets it as F32
mezzo_status mz_onnx_index(mz_onnx_call *call, int in, mezzo_value *out);                  // gets it as I32
// Permutes dimensions: dimension i of `value`, extended to `rank` dimensions by ones in front, is dimension perm[i] of
// *out.
mezzo_status mz_onnx_ordered(mz_onnx_call *call, mz_onnx_value *value, int rank, const int *perm, mezzo_value *out);
mezzo_status mz_onnx_base(mz_onnx_call *call, mz_onnx_value *value, mezzo_value *out);
bool mz_onnx_in_order(const mz_onnx_value *value); // it is stored in the file's order
mezzo_status mz_onnx_constant(mz_onnx_call *call, bool integer, int rank, const int64_t *dim, const double *numbers,
                              mezzo_value *out);
mezzo_value mz_onnx_join(mezzo_graph *g, mezzo_value *parts, int n, int axis); // joins any number of parts
mezzo_value mz_onnx_scalar(mz_onnx_call *call, double number);                 // makes F32 [1]
// Gets an input of integers that must be known: up to `most` of them.
mezzo_status mz_onnx_ints(mz_onnx_call *call, int in, int most, int *n, int64_t *out);
// Gets the same as an attribute of this name in older opsets. *n -1: neither exists.
mezzo_status mz_onnx_ints_or(mz_onnx_call *call, int in, const char *attribute, int most, int *n, int64_t *out);
int64_t mz_onnx_integer(double number);                                       // the nearest int64; 0 for NaN
bool mz_onnx_known(const mz_onnx_call *call);                                 // every present input is known
mezzo_status mz_onnx_numbers(mz_onnx_call *call, int in, const double **out); // the numbers of a known input
bool mz_onnx_has(const mz_onnx_call *call, int in);
bool mz_onnx_one_number(const mz_onnx_value *value, double *out); // it is a known value of one element

// Views x in another shape, a scalar as [1] (moves.c); returns the value that x is a reshape of, if it has that shape.
mezzo_value mz_onnx_shaped(mezzo_graph *g, mezzo_value x, int rank, const int64_t *dim);
// Returns the value that x is a reshape of, if both have rows of the same width; else x.
mezzo_value mz_onnx_rows(mezzo_graph *g, mezzo_value x);

// weights.c
mezzo_status mz_onnx_add_param(mz_onnx_call *call, const char *name, int rank, const int64_t *dim, bool frozen,
                               mz_onnx_param **out, mezzo_value *value);
mezzo_status mz_onnx_add_record(mezzo_onnx *onnx, const char *name, mz_onnx_param **out);
void mz_onnx_free_params(mezzo_onnx *onnx);
mezzo_status mz_onnx_find_weights(mz_onnx_build *build); // decides which initializers are weights, and their order

// Makes the outputs of a node where a pattern ends (idioms.c). *done false: no pattern ends there.
mezzo_status mz_onnx_recognize(mz_onnx_call *call, int node, bool *done);

#endif
