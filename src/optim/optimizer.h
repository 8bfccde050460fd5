// An optimizer has its slice of the parameters, its state on the device, and the update ops it runs, chosen at
// creation.
#ifndef MZ_TRAIN_OPTIMIZER_H
#define MZ_TRAIN_OPTIMIZER_H

#include "optim/kinds.h"
#include "runtime/params.h"
#include "mezzo/optimizer.h"

// An update op, ready to run again and again.
typedef struct mz_update_op {
    mz_prepared prepared;
    mz_call call;
} mz_update_op;

// Parameters that are updated alike: their kind, and the calls that update them.
typedef struct mz_group {
    const mz_kind *kind;
    mz_update_attrs update; // its rule; the rest is the optimizer's
    mezzo_orthogonal orthogonal;
    int decay_min_rank;
    int first, n;                  // its segments, as the device has them
    mz_update_op whole;            // updates all of them; low copies of the first format too
    mz_update_op update_quantized; // the same, with the 8-bit data of those parameters where it can write them;
                                   // n_quantized 0: none
    void *d_plain,
        *d_quantized; // mz_segment[n_plain], mz_quantized_segment[n_quantized]: what `update_quantized` updates
    int n_plain, n_quantized;
} mz_group;

// The update of some parameters of a group next to each other, a call of its own, so that calls that read them wait for
// it alone.
typedef struct mz_update_bucket {
    mz_call call;
    mz_update_attrs update;
    mz_traffic traffic;
    mz_group *group;
    int first, n; // of the segments as the device has them
} mz_update_bucket;

#define MZ_MOMENTS (MZ_KIND_MOMENTS + 1) // the kinds', and after them, where it is kept, ema

typedef struct mz_quantize_op { // quantizes a parameter after its update
    mz_update_op op;
    int param;
    bool separately; // no group's `update_quantized` writes its data
} mz_quantize_op;

struct mezzo_optimizer {
    mezzo_params *params;   // borrowed
    mezzo_device *device;   // borrowed
    mz_update_attrs update; // of what is common
    mz_group groups[MZ_GROUPS];
    int n_groups;         // the last one has what no other takes; a group may be empty
    int n;                // parameters owned
    int *index;           // [n] into params
    int *group_of;        // [n]
    mz_segment *segments; // [n_segments] host copy; of a parameter one, or one in each region that has some of it
    mz_segment *placed; // the same as the device has them: group by group, ranks' parts in the order in which they lie
    int *owner;         // [n_segments] of those: whose segment it is, 0 … n-1
    size_t n_segments, cap_segments;
    size_t *begin;                       // [n + 1]: a parameter's first segment; the next one's
    int rank;                            // whose part of the parameters it moves and has moments of; -1: all
    mz_tensor norm_blocks;               // where grad_stats leaves sums of squares; absent: it makes the norm itself
    float *whole[MZ_MOMENTS];            // host: moments of all ranks' parts, while they are saved; NULL
    int n_moments;                       // of the kind that keeps most, and ema
    int ema;                             // which moment is the parameters' moving average, FP32; -1: none
    mezzo_moments moments;               // how the others are stored
    int64_t moment_elements[MZ_MOMENTS]; // of a moment's buffer: those of parameters that have it come first
    void *d_segments;                    // U8, device
    mz_opt_state *d_state;               // device
    void *d_moments[MZ_MOMENTS];
    void *scratch; // device, as large as any of the ops asks
    size_t scratch_bytes;
    int n_low_copies; // params' low copy formats that the ops below know of
    // Low copies of the first format are written by the update itself, of a second one by `refresh` after it.
    mz_update_op stats, unscale, clip, control, refresh, reset;
    // The parameters' 8-bit data that the update does not write itself are quantized after it.
    mz_quantize_op *quantize_ops;
    int n_quantize_ops;
    uint64_t quantized_version; // params' that the ops above know of
    struct mz_stacks *stacks;   // of groups whose kind is per matrix (orthogonal.h)
    mz_update_bucket *buckets;  // on a device with streams: the updates in pieces
    size_t n_buckets;
    int64_t bucket_elements; // of a bucket at least, but the last of a group
    mz_span *spans;          // the buckets'
    // The host knows this of the device's numbers without asking.
    uint64_t version;       // grows when a call or a constant of the ops above changes
    uint64_t stats_version; // params' grad_version that norm and found_inf belong to
    double clipped;         // what mezzo_optimizer_clip has multiplied these gradients by
    double clipped_since;   // the same since their norm was taken
    double last_clipped;    // of the last step
    bool touched;           // found_inf or clip may differ from 0 and 1
    mezzo_scaler *pending;  // a scaler that has inspected this optimizer since its last update
};

// mezzo_optimizer_create for one rank's part of cut parameters, -1: all; pieces: mz_tensor_absent() where they are not
// cut.
mezzo_status mz_optimizer_create(mezzo_params *params, const mezzo_optimizer_options *options, int rank,
                                 mz_tensor norm_blocks, mezzo_optimizer **out);
typedef struct mz_optimizer_size {
    size_t bytes;   // mezzo_optimizer_memory
    size_t padding; // what its blocks of host memory leave empty
    size_t moments; // of `bytes`
    size_t replay;  // what a session's replay takes beside it
} mz_optimizer_size;
// Computes the size of the optimizer that mz_optimizer_create would make on parameters that are laid out
// (mz_params_sketch).
mezzo_status mz_optimizer_sketch(mezzo_params *params, const mezzo_optimizer_options *options, int rank,
                                 mz_optimizer_size *out);
// Splits options whose kind is per matrix: that kind gets the matrices of blocks, as the group `matrices`, and AdamW
// the rest. The caller adds the group. False, and nothing, with other kinds.
bool mz_optimizer_split_matrices(mezzo_optimizer_options *options, mezzo_optimizer_options *matrices);
// The number of the group that takes a parameter, the first that matches; n_groups: the optimizer's own settings.
int mz_optimizer_group_for(const mezzo_optimizer_options *options, const char *name, int rank);
// freeze.c. A pattern names parameters, or a module with all of its own: "wte" is wte.weight too.
bool mz_names_parameter(const char *pattern, const char *parameter);
mezzo_status mz_graph_train_alone(mezzo_graph *graph,
                                  const char *patterns); // freezes all others; as mezzo_graph_freeze
// options.c. INVALID names the option that is refused.
mezzo_status mz_check_clip(double max_norm);
mezzo_status mz_check_schedule(const mezzo_schedule *schedule);
mezzo_status mz_check_optimizer(const mezzo_optimizer_options *options); // and its groups'
mezzo_step_info mz_step_info_of(const mz_opt_state *state);
bool mz_optimizer_has_grads(const mezzo_optimizer *optimizer); // of any parameter it owns, since they were zeroed
bool mz_optimizer_fresh(const mezzo_optimizer *optimizer);     // the stats belong to the gradients as they are
// A program made after the optimizer may have added a low-precision format: the step must write that too. Before the
// calls below.
mezzo_status mz_optimizer_follow(mezzo_optimizer *optimizer);
// buckets.c: anew, once the groups' calls are filled; a bucket has bucket_elements at least, but the last of a group.
mezzo_status mz_optimizer_make_buckets(mezzo_optimizer *optimizer);
mezzo_status mz_optimizer_set_bucket(mezzo_optimizer *optimizer, int64_t elements); // makes them of so many

// The calls of a step, added to `into`, or run at once where that is NULL. They change the device's numbers only; what
// the host knows about them is the caller's to keep. grad_stats. `scale`: device FP32 [1] to divide by, NULL = none.
// keeps: gradients stay multiplied by it, and the update divides.
mezzo_status mz_optimizer_issue_stats(mezzo_optimizer *optimizer, mz_sequence *into, float *scale, bool keeps);
mezzo_status mz_optimizer_issue_clip(mezzo_optimizer *optimizer, mz_sequence *into, double max_norm);
mezzo_status mz_optimizer_issue_update(mezzo_optimizer *optimizer, mz_sequence *into); // step_control and the updates
mezzo_status mz_optimizer_issue_reset(mezzo_optimizer *optimizer, mz_sequence *into);  // found_inf = 0, clip = 1

// quantized.c. Of several optimizers the one that owns the first trained parameter ends the step for the table of
// scales.
bool mz_optimizer_owns_first(const mezzo_optimizer *optimizer);
mezzo_status mz_optimizer_issue_scales(mezzo_optimizer *optimizer, mz_sequence *into);   // after step_control
mezzo_status mz_optimizer_prepare_quantize(mezzo_optimizer *optimizer, size_t *scratch); // grows to what they ask
void mz_optimizer_free_quantize(mezzo_optimizer *optimizer);
mezzo_status mz_optimizer_issue_quantize(mezzo_optimizer *optimizer,
                                         mz_sequence *into); // after the update and the scales
// Quantizes the same of owned parameters [first, first + n), deferred.
mezzo_status mz_optimizer_defer_quantize(mezzo_optimizer *optimizer, int first, int n, mz_sequence *into);

// grad_stats at once, for the gradients as they are.
mezzo_status mz_optimizer_stats(mezzo_optimizer *optimizer, float *scale);
mezzo_status mz_optimizer_reset(mezzo_optimizer *optimizer);
// Returns the traffic of found_inf and clip of the state, which a reset or a scaler_update writes and no update reads.
mz_traffic mz_optimizer_reset_traffic(const mezzo_optimizer *const *optimizers, int n, mz_span *spans); // spans[2n]

// A parameter's moments, stored so, begin at a multiple of this many elements: a block's, or 16.
int64_t mz_moments_unit(mezzo_moments moments);
size_t mz_moments_bytes(mezzo_moments moments, int64_t elements); // of a moment of so many elements, a multiple of that
mezzo_moments mz_optimizer_moments(const mezzo_optimizer *optimizer, int which); // how one is stored
size_t mz_optimizer_moment_bytes(const mezzo_optimizer *optimizer, int which, int64_t elements);
// Elements [first, first + count) of moment `which` as they lie on the device: FP32, BF16, or the records of whole
// blocks (base/dynamic8.h), U8.
mz_tensor mz_optimizer_moment(const mezzo_optimizer *optimizer, int which, int64_t first, int64_t count);
// Returns what shows whether they are finite, and how large the largest is: themselves, or the scales of their blocks.
mz_tensor mz_optimizer_moment_view(const mezzo_optimizer *optimizer, int which, int64_t first, int64_t count);

// The last group, which has what no other takes.
static inline const mz_group *mz_optimizer_rest(const mezzo_optimizer *optimizer) {
    return &optimizer->groups[optimizer->n_groups - 1];
}
// Returns the name of the kind that whole matrices have, "muon"; where no group is per matrix, "none".
static inline const char *mz_optimizer_matrices(const mezzo_optimizer *optimizer) {
    for (int g = 0; g < optimizer->n_groups; g++)
        if (optimizer->groups[g].n > 0 && optimizer->groups[g].kind->reads.orthogonal)
            return optimizer->groups[g].kind->name;
    return "none";
}
// Returns, for checkpoints, the name of moment `which` (0 … n_moments-1) of owned parameter `i`.
const char *mz_optimizer_moment_name(const mezzo_optimizer *optimizer, int which,
                                     int i);        // "exp_avg"; NULL: it has none
static inline bool mz_moment_is_signed(int which) { // of 8-bit data: m and v of optimizers.def
    return which == 0;
}
mezzo_status mz_optimizer_read_moment(const mezzo_optimizer *optimizer, int which, int i, int64_t first, int64_t count,
                                      float *out);
mezzo_status mz_optimizer_write_moment(mezzo_optimizer *optimizer, int which, int i,
                                       const void *values); // of any alignment
// Of kinds that keep a moving average for each row: how many numbers owned parameter i has, 0: none. FP32, host side,
// the shape without its last dimension; all ranks have them all.
int64_t mz_optimizer_row_count(const mezzo_optimizer *optimizer, int i);
mezzo_status mz_optimizer_read_rows(const mezzo_optimizer *optimizer, int i, float *out);
mezzo_status mz_optimizer_write_rows(mezzo_optimizer *optimizer, int i, const void *values); // of any alignment
mezzo_status mz_optimizer_read_state(const mezzo_optimizer *optimizer, mz_opt_state *out);
mezzo_status mz_optimizer_write_state(mezzo_optimizer *optimizer, const mz_opt_state *state);

#endif
