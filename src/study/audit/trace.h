// Reads what python/mezzo/audit wrote for one rank of a PyTorch program: operations with shapes, dtypes and lines, and
// events.
#ifndef MZ_STUDY_TRACE_H
#define MZ_STUDY_TRACE_H

#include "base/base.h"
#include "io/json.h"

#define MZ_TRACE_BYTES_MAX ((size_t)64 << 20)
#define MZ_TRACE_INPUTS    12
#define MZ_TRACE_DIMS      8
#define MZ_TRACE_RANKS_MAX 1024

typedef enum mz_torch_class {
    MZ_TORCH_OTHER,
    MZ_TORCH_PRODUCT,
    MZ_TORCH_CONVOLUTION,
    MZ_TORCH_ATTENTION,
    MZ_TORCH_LOSS,
    MZ_TORCH_NORM,
    MZ_TORCH_SOFTMAX,
    MZ_TORCH_NATIVE_NORM,
    MZ_TORCH_CAST,
    MZ_TORCH_ATOMIC,
    MZ_TORCH_AVERAGE
} mz_torch_class;
typedef enum mz_torch_phase { MZ_TORCH_FORWARD, MZ_TORCH_BACKWARD, MZ_TORCH_UPDATE } mz_torch_phase;

typedef struct mz_torch_shape {
    mezzo_dtype dtype; // MEZZO_DTYPE_COUNT: it is no float
    int rank;
    int64_t dim[MZ_TRACE_DIMS];
} mz_torch_shape;

enum { MZ_TORCH_FORMATS = 5 };
extern const char *const mz_torch_formats[MZ_TORCH_FORMATS]; // "fp32", "tf32", "bf16", "fp16", "fp8"

// Holds the times of a step's forward and backward, run again in one precision; NaN: not timed.
typedef struct mz_torch_replay {
    double seconds;        // on the device
    double launch_seconds; // on the host, for a GPU
    double spread;         // how much longer the median of its runs takes than the shortest, as a share of that
} mz_torch_replay;

typedef struct mz_torch_op {
    const char *name; // "aten.addmm"; the trace owns it
    mz_torch_class class;
    mz_torch_phase phase;
    bool in_place, into; // "aten.addmm_"; with out=
    int a, b;            // the operands of a product, as indices of its inputs
    int region;          // index into the trace's regions; -1: outside of every region
    int at, user;        // indices of places; -1: not known
    int n_inputs;
    mz_torch_shape inputs[MZ_TRACE_INPUTS];
    mezzo_dtype output;
    int64_t count, returned; // count: calls; returned: casts that undo the cast before
    double seconds;          // of one call; NaN: not timed
    double scalar;           // of an in-place call; NaN: none
    double flops;            // of one call; 0: it is no product
} mz_torch_op;

typedef enum mz_torch_event_kind {
    MZ_EVENT_BACKWARD,
    MZ_EVENT_SCALE,
    MZ_EVENT_UNSCALE,
    MZ_EVENT_SCALER_STEP,
    MZ_EVENT_SCALER_UPDATE,
    MZ_EVENT_CLIP,
    MZ_EVENT_WRITE,
    MZ_EVENT_OPTIMIZER_STEP,
    MZ_EVENT_SCHEDULE,
    MZ_EVENT_ZERO_GRAD,
    MZ_EVENT_PARALLEL,
    MZ_EVENT_REDUCE
} mz_torch_event_kind;

typedef struct mz_torch_event {
    mz_torch_event_kind kind;
    int step, at;
    int optimizer;             // -1: not known
    bool enabled;              // of a scaler
    bool flag;                 // by_step, skipped, sync or sharded, by the kind
    bool scaled_by_step;       // of an optimizer's step: it ran inside scaler.step()
    double scale, norm, limit; // NaN: not known
    double factor, weight;     // of a backward's loss: factor since its mean, and how many elements that mean counted;
                               // NaN
    bool mean;                 // of a backward's loss
    const char *op;            // of a write: "nan_to_num"; ""
    int64_t count, scalers;    // scalers: how many the program has used so far
} mz_torch_event;

typedef struct mz_torch_region {
    int at;
    const char *device, *dtype;
    bool enabled;
    int64_t entered;
    // The reader counts these among the operations.
    int64_t low_products, products;
} mz_torch_region;

typedef struct mz_torch_tensors { // an optimizer's parameters, or one kind of its state
    int optimizer;
    const char *key; // "" for parameters
    mezzo_dtype dtype, of;
    int64_t count, numel;
} mz_torch_tensors;

typedef struct mz_torch_place {
    const char *file;
    int line;
} mz_torch_place;

typedef struct mz_torch_trace {
    json_t *root; // owns every text
    char *path;
    const char *torch, *device, *device_name;
    int rank, world, capability, steps, threads;
    double step_seconds;   // without the hooks; NaN: the program ended before
    double launch_seconds; // of a step on a GPU, until all work is launched; NaN: not timed
    double followed_seconds;
    mz_torch_replay replay[MZ_TORCH_FORMATS], replay_now; // in other precisions, and as the step was
    const char *no_replay;                                // why there is no replay; ""
    int64_t unchanged, compared, dropped;
    bool tf32, deterministic, warn_only, cudnn_deterministic, cudnn_benchmark;
    int benchmark_at;
    mz_torch_op *ops;
    mz_torch_event *events;
    mz_torch_region *regions;
    mz_torch_place *places;
    mz_torch_tensors *tensors;
    int *optimizer_at, *compiled;
    size_t n_ops, n_events, n_regions, n_places, n_tensors, cap_tensors, n_optimizers, n_compiled;
} mz_torch_trace;

// Reads a trace. MEZZO_ERR_IO, MEZZO_ERR_FORMAT "FILE: key …", MEZZO_ERR_UNSUPPORTED where the file says why nothing
// was recorded.
mezzo_status mz_torch_trace_read(const char *path, mz_torch_trace *out);
mezzo_status mz_torch_trace_parse(const char *where, const char *text, size_t n, mz_torch_trace *out);
void mz_torch_trace_free(mz_torch_trace *trace);

const char *mz_torch_dtype_name(mezzo_dtype dtype); // "fp32"; "-" for no float
bool mz_torch_is_low(mezzo_dtype dtype);            // 16 bits or fewer
double mz_torch_numel(const mz_torch_shape *shape);
bool mz_torch_is_product(const mz_torch_op *op); // product, convolution or attention

#endif
