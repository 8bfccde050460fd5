// An ONNX file while it becomes a graph: what each name in it stands for.
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

typedef struct mz_onnx_value {
    const char *name;
    mz_onnx_kind kind;
    bool integer; // or a truth value
    int rank;     // 0: a scalar, which a graph has as [1]
    int64_t dim[MEZZO_MAX_RANK];
    double *numbers;            // HOST; of the build
    const MzPb__Tensor *tensor; // WEIGHT
    bool columns;               // WEIGHT, [K, N]: products alone read it, and the parameter is [N, K]
    bool transposed;            // WEIGHT: stands for its transpose
    bool negated;               // VALUE of truth: stands for the opposite
    mezzo_value value;          // VALUE; of a WEIGHT its parameter, once there is one
    struct mz_onnx_value *of;   // WEIGHT that is transposed: the initializer
} mz_onnx_value;

// A parameter of the graph and where its numbers come from.
typedef struct mz_onnx_param {
    char *name;
    const MzPb__Tensor *tensor; // NULL: numbers
    bool columns;
    int64_t rows, count; // of the file's tensor: [rows, count / rows] where columns
    float *numbers;
} mz_onnx_param;

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
};

typedef struct mz_onnx_build {
    mezzo_onnx *onnx;
    mezzo_graph *g;
    void **blocks; // memory of the build
    size_t n_blocks;
} mz_onnx_build;

enum { MZ_ONNX_SLOTS = 64 };
// One node on its way.
typedef struct mz_onnx_call {
    mz_onnx_build *build;
    const MzPb__Node *node;
    int n_in, n_out;
    mz_onnx_value *in[MZ_ONNX_SLOTS], *out[MZ_ONNX_SLOTS]; // NULL: left out
} mz_onnx_call;

typedef struct mz_onnx_op {
    const char *name;
    mezzo_status (*convert)(mz_onnx_call *call, int which);
    int which;                              // of several that one function converts
    int least;                              // inputs
    double (*host)(double, double, double); // element-wise ops: on known numbers; NULL: none
} mz_onnx_op;
const mz_onnx_op *mz_onnx_op_of(const char *name); // NULL: not known

// file.c
mz_onnx_value *mz_onnx_find(const mezzo_onnx *onnx, const char *name); // NULL: no such name
int64_t mz_onnx_elements(int rank, const int64_t *dim);
mezzo_status mz_onnx_floats(const mezzo_onnx *onnx, const MzPb__Tensor *tensor, double *out); // all elements

// Attributes. *_or: the number where the node says nothing.
const MzPb__Attribute *mz_onnx_attribute(const MzPb__Node *node, const char *name);
int64_t mz_onnx_int_or(const MzPb__Node *node, const char *name, int64_t otherwise);
double mz_onnx_float_or(const MzPb__Node *node, const char *name, double otherwise);

// Starts an error about a node: its op and name come first.
#define mz_onnx_fail(call, status, ...)                                                                                \
    mz_context(mz_fail((status), __VA_ARGS__), "%s node '%s'", (call)->node->op_type,                                  \
               (call)->node->name ? (call)->node->name : (call)->node->output[0])

void *mz_onnx_take(mz_onnx_build *build, size_t count, size_t size); // until the build ends; NULL: no memory, error set
// Known numbers as an output, for the caller to fill.
mezzo_status mz_onnx_host(mz_onnx_call *call, int out, bool integer, int rank, const int64_t *dim, double **numbers);
mezzo_status mz_onnx_give(mz_onnx_call *call, int out, bool integer, int rank, mezzo_value value); // of the graph
// Input `in` as a value of the graph: weights become parameters, known numbers constants.
mezzo_status mz_onnx_get(mz_onnx_call *call, int in, mezzo_value *out);
mezzo_status mz_onnx_parameter(mz_onnx_call *call, mz_onnx_value *weight, mezzo_value *out);
mezzo_status mz_onnx_constant(mz_onnx_call *call, bool integer, int rank, const int64_t *dim, const double *numbers,
                              mezzo_value *out);
// An input of integers that must be known: up to `most` of them.
mezzo_status mz_onnx_ints(mz_onnx_call *call, int in, int most, int *n, int64_t *out);
int64_t mz_onnx_integer(double number);                                       // the nearest that there is; 0 for NaN
bool mz_onnx_known(const mz_onnx_call *call);                                 // every input that is there
mezzo_status mz_onnx_numbers(mz_onnx_call *call, int in, const double **out); // of a known input

#endif
