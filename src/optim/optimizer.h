// Inside an optimizer: its slice of the parameters, its state on the device, and the update ops it runs, chosen at creation.
#ifndef MZ_TRAIN_OPTIMIZER_H
#define MZ_TRAIN_OPTIMIZER_H

#include "runtime/params.h"
#include "mezzo/optimizer.h"

// An update op, ready to run again and again.
typedef struct mz_update_op {
    mz_prepared prepared;
    mz_call call;
} mz_update_op;

// The move of some parameters next to each other, a call of its own, so that calls that read them wait for it alone.
typedef struct mz_update_bucket {
    mz_call call;
    mz_update_attrs update;
    mz_traffic traffic;
} mz_update_bucket;

#define MZ_MOMENTS 2 // AdamW: exp_avg, exp_avg_sq; SGD: momentum_buffer

struct mezzo_optimizer {
    mezzo_params *params; // borrowed
    mezzo_device *device; // borrowed
    mz_update_attrs update;
    bool sgd;
    int decay_min_rank;
    int n;                // parameters owned
    int *index;           // [n] into params
    mz_segment *segments; // [n] host copy
    int n_moments;
    int64_t moment_elements; // of one moment buffer
    void *d_segments;        // U8, device
    mz_opt_state *d_state;   // device
    float *d_moments[MZ_MOMENTS];
    void *scratch; // device, as large as any of the ops asks
    size_t scratch_bytes;
    int n_shadows; // params' shadow formats that the ops below know of
    // Shadows of the first format are written by the move itself, of a second one by `refresh` after it.
    mz_update_op stats, unscale, clip, control, move, refresh, reset;
    mz_update_bucket *buckets; // on a device with streams: `move` in pieces
    size_t n_buckets;
    int64_t bucket_elements; // of a bucket at least, but the last
    mz_span *spans;          // the buckets'
    // What the host knows about the device's numbers, without asking.
    bool unscales_in_place;  // asked for by who reads gradients after a step; else a step in a batch leaves them scaled
    uint64_t stats_version;  // params' grad_version that norm and found_inf belong to
    uint64_t zeroed_version; // params' grad_version when these gradients were last zeroed
    bool touched;            // found_inf or clip may differ from 0 and 1
    mezzo_scaler *pending;   // a scaler that has looked at this optimizer since its last update
};

bool mz_optimizer_has_grads(const mezzo_optimizer *optimizer);
// The pieces of a step. `scale`: device FP32 [1] to divide by, NULL = none.
mezzo_status mz_optimizer_stats(mezzo_optimizer *optimizer, float *scale);
bool mz_optimizer_fresh(const mezzo_optimizer *optimizer);  // the stats belong to the gradients as they are
mezzo_status mz_optimizer_move(mezzo_optimizer *optimizer); // step_control and adamw or sgd
mezzo_status mz_optimizer_set_bucket(mezzo_optimizer *optimizer, int64_t elements); // of so many parameters at least
mezzo_status mz_optimizer_reset(mezzo_optimizer *optimizer);                        // found_inf = 0, clip = 1
mezzo_status mz_optimizer_fetch(mezzo_optimizer *optimizer, int slot);              // enqueue a read of the state block

// For checkpoints: moment `which` (0 … n_moments-1) of owned parameter `i`, FP32, host side.
const char *mz_optimizer_moment_name(const mezzo_optimizer *optimizer, int which); // "exp_avg"
mezzo_status mz_optimizer_read_moment(const mezzo_optimizer *optimizer, int which, int i, int64_t first, int64_t count,
                                      float *out);
mezzo_status mz_optimizer_write_moment(mezzo_optimizer *optimizer, int which, int i, const float *values);
mezzo_status mz_optimizer_read_state(const mezzo_optimizer *optimizer, mz_opt_state *out);
mezzo_status mz_optimizer_write_state(mezzo_optimizer *optimizer, const mz_opt_state *state);

#endif
