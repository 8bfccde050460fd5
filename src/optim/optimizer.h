// An optimizer has its share of the parameters, its state on the device, and the update ops that it runs, chosen at
// creation.
#ifndef MZ_TRAIN_OPTIMIZER_H
#define MZ_TRAIN_OPTIMIZER_H

#include "optim/kinds.h"
#include "runtime/params.h"
#include "mezzo/optimizer.h"

// Holds an update op that is prepared to run many times.
typedef struct mz_update_op {
    mz_prepared prepared;
    mz_call call;
} mz_update_op;

// Holds parameters that are updated alike: their kind, and the calls that update them.
typedef struct mz_group {
    const mz_kind *kind;
    mz_update_attrs update; // the group's rule; the rest is the optimizer's
    mezzo_orthogonal orthogonal;
    int decay_min_rank;
    int first, n;                  // its segments in the device's order
    mz_update_op whole;            // updates all segments, and low copies of the first format
    mz_update_op update_quantized; // the same, with the 8-bit data of parameters for which it can write them;
                                   // n_quantized 0: none
    void *d_plain,
        *d_quantized; // the segments that `update_quantized` updates: mz_segment[n_plain],
                      // mz_quantized_segment[n_quantized]
    int n_plain, n_quantized;
} mz_group;

// Holds the update of neighbouring parameters of a group as a call of its own, so that calls that read these parameters
// wait for it alone.
typedef struct mz_update_bucket {
    mz_call call;
    mz_update_attrs update;
    mz_traffic traffic;
    mz_group *group;
    int first, n; // its segments in the device's order
} mz_update_bucket;

#define MZ_MOMENTS (MZ_KIND_MOMENTS + 1) // those of the kinds and, where it is kept, ema after them

typedef struct mz_quantize_op { // quantizes a parameter after its update
    mz_update_op op;
    int param;
    bool separately; // no group's `update_quantized` writes its data
} mz_quantize_op;

struct mezzo_optimizer {
    mezzo_params *params;   // borrowed
    mezzo_device *device;   // borrowed
    mz_update_attrs update; // the constants that all groups share
    mz_group groups[MZ_GROUPS];
    int n_groups;         // the last one has the parameters that no other takes; a group may be empty
    int n;                // number of parameters that it owns
    int *index;           // [n]: their indices in params
    int *group_of;        // [n]: their groups
    mz_segment *segments; // [n_segments] on the host; a parameter has one, or one in each region that has some of it
    mz_segment *placed; // the same segments in the device's order: group by group, ranks' shards in the order of memory
    int *owner;         // [n_segments] of `placed`: which parameter's, 0 … n-1
    size_t n_segments, cap_segments;
    size_t *begin;                       // [n + 1]: the first segment of each parameter and the end of the last
    int rank;                            // the rank whose shards of the parameters it updates and has moments of; -1:
                                         // all
    mz_tensor norm_blocks;               // where grad_stats leaves sums of squares; absent: it computes the norm itself
    float *whole[MZ_MOMENTS];            // on the host: the moments of all ranks' shards, while they are saved; NULL
    int n_moments;                       // moments of the kind that keeps most, and ema
    int ema;                             // the moment that is the parameters' moving average, FP32; -1: none
    mezzo_moments moments;               // how the other moments are stored
    int64_t moment_elements[MZ_MOMENTS]; // of a moment's buffer; parameters that have this moment come first
    void *d_segments;                    // U8, device
    mz_opt_state *d_state;               // device
    void *d_moments[MZ_MOMENTS];
    void *scratch; // on the device, as large as the largest workspace of the ops
    size_t scratch_bytes;
    int n_low_copies; // number of params' low copy formats that the ops below write
    // The update writes low copies of the first format; `refresh` writes a second one after it.
    mz_update_op stats, unscale, clip, control, refresh, reset;
    // quantize, after the update, the parameters whose 8-bit data it does not write.
    mz_quantize_op *quantize_ops;
    int n_quantize_ops;
    uint64_t quantized_version; // the version of params' quantized weights that the ops above know
    struct mz_stacks *stacks;   // of groups whose kind is per matrix (orthogonal.h)
    size_t stacks_begun;        // of the list being made
    mz_update_bucket *buckets;  // on a device with streams: the updates in buckets
    size_t n_buckets;
    int64_t bucket_elements; // the least elements of a bucket, the last of a group excepted
    mz_span *spans;          // the memory of the buckets' spans
    // What the host knows of the device's numbers without reading them.
    uint64_t version;       // grows when a call or a constant of the ops above changes
    uint64_t stats_version; // the params' grad_version that norm and found_inf belong to
    double clipped;         // the factor by which mezzo_optimizer_clip has multiplied these gradients
    double clipped_since;   // the same factor since their norm was computed
    double last_clipped;    // the clip factor of the last step
    bool touched;           // found_inf or clip may differ from 0 and 1
    mezzo_scaler *pending;  // a scaler that has inspected this optimizer since its last update
};

// Makes the optimizer of one rank's shards of divided parameters, -1: of all parameters. pieces: mz_tensor_absent()
// where they are not divided.
mezzo_status mz_optimizer_create(mezzo_params *params, const mezzo_optimizer_options *options, int rank,
                                 mz_tensor norm_blocks, mezzo_optimizer **out);
typedef struct mz_optimizer_size {
    size_t bytes;   // as mezzo_optimizer_memory counts them
    size_t padding; // bytes that its blocks of host memory leave unused
    size_t moments; // bytes of moments, which `bytes` includes
    size_t replay;  // bytes that a session's replay needs besides
} mz_optimizer_size;
// Computes the size of the optimizer that mz_optimizer_create would make on parameters that are laid out
// (mz_params_sketch).
mezzo_status mz_optimizer_sketch(mezzo_params *params, const mezzo_optimizer_options *options, int rank,
                                 mz_optimizer_size *out);
// Splits options whose kind is per matrix: that kind gets the matrices of blocks, as the group `matrices`, and AdamW
// the rest. The caller adds the group. Returns false, and changes nothing, for other kinds.
bool mz_optimizer_split_matrices(mezzo_optimizer_options *options, mezzo_optimizer_options *matrices);
// Returns the number of the first group that takes a parameter; n_groups: the optimizer's own settings.
int mz_optimizer_group_for(const mezzo_optimizer_options *options, const char *name, int rank);
// Returns whether a pattern names a parameter, or a module with all of its own: "wte" names wte.weight, too (freeze.c).
bool mz_names_parameter(const char *pattern, const char *parameter);
mezzo_status mz_graph_train_alone(mezzo_graph *graph,
                                  const char *patterns); // freezes all others, as mezzo_graph_freeze
// Check options (options.c). INVALID names the option that is refused.
mezzo_status mz_check_clip(double max_norm);
mezzo_status mz_check_schedule(const mezzo_schedule *schedule);
mezzo_status mz_check_optimizer(const mezzo_optimizer_options *options); // checks its groups, too
mezzo_step_info mz_step_info_of(const mz_opt_state *state);
bool mz_optimizer_has_grads(const mezzo_optimizer *optimizer); // whether gradients of any parameter that it owns were
                                                               // written since they were zeroed
// Adds a low-precision format of a program that was made after the optimizer, so that the step writes it, too. Called
// before the functions below.
mezzo_status mz_optimizer_follow(mezzo_optimizer *optimizer);
// Makes the buckets again after the groups' calls are filled (buckets.c); each has at least bucket_elements, but for
// the last of a group.
mezzo_status mz_optimizer_make_buckets(mezzo_optimizer *optimizer);
mezzo_status mz_optimizer_set_bucket(mezzo_optimizer *optimizer, int64_t elements); // makes buckets of at least this
                                                                                    // many elements

// Add the calls of a step to `into`, or run them at once where that is NULL. They change the device's numbers only; the
// caller notes what the host knows of them. The first adds grad_stats. `scale`: device FP32 [1] to divide by, NULL =
// none. keeps: gradients stay multiplied by it, and the update divides.
mezzo_status mz_optimizer_issue_stats(mezzo_optimizer *optimizer, mz_sequence *into, float *scale, bool keeps);
mezzo_status mz_optimizer_issue_clip(mezzo_optimizer *optimizer, mz_sequence *into, double max_norm);
// The first adds step_control and, where ranks share a group per matrix, the updates of all other groups, so that their
// parameters can be gathered during its products; the second adds the updates that are left.
mezzo_status mz_optimizer_begin_update(mezzo_optimizer *optimizer, mz_sequence *into);
mezzo_status mz_optimizer_end_update(mezzo_optimizer *optimizer, mz_sequence *into);
bool mz_optimizer_updates_early(const mezzo_optimizer *optimizer, int i); // owned parameter i, by begin_update
mezzo_status mz_optimizer_issue_reset(mezzo_optimizer *optimizer, mz_sequence *into); // adds found_inf = 0, clip = 1

// Returns whether this optimizer ends the step for the table of scales: among several, the one that owns the first
// trained parameter does (quantized.c).
bool mz_optimizer_owns_first(const mezzo_optimizer *optimizer);
mezzo_status mz_optimizer_issue_scales(mezzo_optimizer *optimizer, mz_sequence *into);   // follows step_control
mezzo_status mz_optimizer_prepare_quantize(mezzo_optimizer *optimizer, size_t *scratch); // *scratch grows to what the
                                                                                         // calls need
void mz_optimizer_free_quantize(mezzo_optimizer *optimizer);
mezzo_status mz_optimizer_issue_quantize(mezzo_optimizer *optimizer,
                                         mz_sequence *into); // follows the update and the scales
// Quantizes owned parameters [first, first + n) again, deferred.
mezzo_status mz_optimizer_defer_quantize(mezzo_optimizer *optimizer, int first, int n, mz_sequence *into);

// Runs grad_stats at once, for the present gradients.
mezzo_status mz_optimizer_stats(mezzo_optimizer *optimizer, float *scale);
mezzo_status mz_optimizer_reset(mezzo_optimizer *optimizer);
// Returns the traffic of found_inf and clip of the state, which a reset or a scaler_update writes and no update reads.
mz_traffic mz_optimizer_reset_traffic(const mezzo_optimizer *const *optimizers, int n,
                                      mz_span *spans); // at most 2n spans

// Returns the multiple of elements at which a parameter's moments in this format begin: a block's, or 16.
int64_t mz_moments_unit(mezzo_moments moments);
mezzo_moments mz_optimizer_moments(const mezzo_optimizer *optimizer, int which); // how a moment is stored
size_t mz_optimizer_moment_bytes(const mezzo_optimizer *optimizer, int which, int64_t elements);
// Returns elements [first, first + count) of moment `which` as they lie on the device: FP32, BF16, or U8 with the
// records of whole blocks (base/dynamic8.h).
mz_tensor mz_optimizer_moment(const mezzo_optimizer *optimizer, int which, int64_t first, int64_t count);
// Returns a tensor that shows whether moments are finite and how large the largest is: the moments, or the scales of
// their blocks.
mz_tensor mz_optimizer_moment_view(const mezzo_optimizer *optimizer, int which, int64_t first, int64_t count);

// Returns the last group, which has the parameters that no other takes.
static inline const mz_group *mz_optimizer_rest(const mezzo_optimizer *optimizer) {
    return &optimizer->groups[optimizer->n_groups - 1];
}
// Returns the name of the kind that updates whole matrices, "muon"; "none" where no group is per matrix.
static inline const char *mz_optimizer_matrices(const mezzo_optimizer *optimizer) {
    for (int g = 0; g < optimizer->n_groups; g++)
        if (optimizer->groups[g].n > 0 && optimizer->groups[g].kind->reads.orthogonal)
            return optimizer->groups[g].kind->name;
    return "none";
}
// Returns, for checkpoints, the name of moment `which` (0 … n_moments-1) of owned parameter `i`.
const char *mz_optimizer_moment_name(const mezzo_optimizer *optimizer, int which,
                                     int i);        // "exp_avg"; NULL: parameter i does not have it
static inline bool mz_moment_is_signed(int which) { // for 8-bit data: m is signed and v is not (optimizers.def)
    return which == 0;
}
mezzo_status mz_optimizer_read_moment(const mezzo_optimizer *optimizer, int which, int i, int64_t first, int64_t count,
                                      float *out);
mezzo_status mz_optimizer_write_moment(mezzo_optimizer *optimizer, int which, int i,
                                       const void *values); // at any alignment
// Returns, for kinds that keep a moving average for each row, how many numbers owned parameter i has, 0: none. They are
// FP32 on the host, in the shape without its last dimension; every rank has all of them.
int64_t mz_optimizer_row_count(const mezzo_optimizer *optimizer, int i);
mezzo_status mz_optimizer_read_rows(const mezzo_optimizer *optimizer, int i, float *out);
mezzo_status mz_optimizer_write_rows(mezzo_optimizer *optimizer, int i, const void *values); // at any alignment
mezzo_status mz_optimizer_read_state(const mezzo_optimizer *optimizer, mz_opt_state *out);
mezzo_status mz_optimizer_write_state(mezzo_optimizer *optimizer, const mz_opt_state *state);

#endif
