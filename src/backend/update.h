// Declares what the update ops read and write: segments of the flat buffers, masters and moments in their storage, and
// the states of an optimizer and a scaler.
#ifndef MZ_UPDATE_H
#define MZ_UPDATE_H

#include "backend/backend.h"
#include "quant/entry.h"

// Describes a part of a flat buffer. Parameters' FP32 masters and gradients are one flat buffer each; a parameter is a
// segment of it, starting at a multiple of 16 elements, and its padding is always zero. An optimizer's moments are flat
// buffers of its own. `segments` is an array of these, as a U8 tensor on the device. A low copy buffer is a U8 tensor,
// too: each segment has its format.
typedef struct mz_segment {
    int64_t offset;          // elements into master and gradient buffers, of the parameter's first element
    int64_t grad_shift;      // elements that it is earlier in the gradient buffer, where that has only a rank's shards
    int64_t master_shift;    // elements that it is earlier in the master buffer
    int64_t first;           // element of the parameter at which the segment begins: 0 unless ranks share the update
    int64_t count;           // elements of the segment, without padding
    int64_t state_offset;    // elements into the moments, of the parameter's first element: negative if it precedes a
                             // rank's shard
    int64_t low_copy_offset; // bytes into the low copy buffer; negative if it precedes a rank's shard; or
                             // MZ_NO_LOW_COPY
    int32_t low_copy_dtype;  // mezzo_dtype
    int32_t decay;           // 1: weight decay applies
    int64_t low_offset;      // split masters: bytes into the master buffer, of their low halves (U16)
    int32_t master;          // mezzo_master: how the segment's masters are stored
    uint32_t key;            // mz_param.key: the parameter's random stream
    mz_layout
        layout; // position of element i of the parameter, added to offset, state_offset, low_copy_offset and low_offset
} mz_segment;

#define MZ_NO_LOW_COPY INT64_MIN

// Describes a parameter whose 8-bit data an update writes directly, as `quantize` with attrs.keeps would after it. Its
// master is FP32 and not sharded, and has no low copy; rows and columns are those stored, padding included, and
// multiples of 16.
typedef struct mz_quantized_segment {
    mz_segment segment;
    int64_t rows, columns;
    void *rowwise, *columnwise; // NULL: not written
    mz_scale_entry *entry;
    int32_t dtype;
} mz_quantized_segment;

// A split master is a BF16 low copy, the FP32 number rounded to nearest (ties away from zero), and the number's low 16
// bits, which say what the rounding did: together they are the FP32 number, bit for bit. (Ties to even would leave one
// number too many for 16 bits.) A stochastic master is its BF16 low copy alone, rounded up or down with the
// probabilities that make the mean right; element i's random bits are the high half of word i mod 4 of Philox block i/4
// of mz_master_key. Both kinds have BF16 low copies, and refresh leaves them alone.
static inline float mz_master_join(uint16_t high, uint16_t low) {
    uint32_t bits = ((uint32_t)high << 16) + (uint32_t)(int32_t)(int16_t)low;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline void mz_master_split(float x, uint16_t *high, uint16_t *low) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    *high = (uint16_t)((bits + 0x8000u) >> 16);
    *low = (uint16_t)bits;
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) { // NaN stays NaN, whatever its payload
        *high = (uint16_t)(bits >> 16 | 0x40u);
        *low = 0;
    }
}
static inline mz_philox_key mz_master_key(const mz_update_attrs *update, int64_t step, const mz_segment *segment) {
    return (mz_philox_key){.seed = update->rule.seed,
                           .step = (uint32_t)(step ^ step >> 32),
                           .tensor = 0x80000000u | segment->key}; // dropout uses small numbers of streams
}

// Moments in BF16 are rounded stochastically, too: element i's 32 bits are word i mod 4 of Philox block i/4, offset to
// high blocks that no other code uses, of mz_master_key; the upper half is for the first moment, the lower for the
// second. The update reads the stored moments, and changes the master by the new moments before they are rounded.
static inline uint64_t mz_moments_block(int64_t element) {
    return (uint64_t)element >> 2 | (uint64_t)1 << 62;
}
static inline void mz_moments_round(float m, float v, uint32_t random, uint16_t *m_out, uint16_t *v_out) {
    *m_out = mezzo_f32_to_bf16_stochastic(m, random);
    *v_out = mezzo_f32_to_bf16_stochastic(v, random << 16);
}

// Holds the optimizer's state, as a U8 tensor [sizeof].
typedef struct mz_opt_state {
    int64_t step, skipped;
    double norm; // of the last grad_stats, after its unscaling, before clipping; not finite where found_inf is set
    double clip; // factor by which the update multiplies gradients; 1 at the start of every step
    double lr;   // the schedule's rate of the last step taken
    double bias[MZ_GROUPS][2]; // 1 - beta^step of the last step taken, of each group's beta1 and beta2
    double last_clip;          // clip of the last step_control, which the update uses and reports
    int32_t found_inf;         // OR of every grad_stats since the last scaler_update
    int32_t skip;              // the present step changes nothing
    int32_t last_found_inf;
    int32_t guard;  // MZ_GUARD_…, set by the host
    int32_t bad;    // MZ_BAD_…: what inspect found in the present step
    int32_t halted; // MZ_BAD_… of the step that halted training, until the host clears it
    float scale;    // factor that the gradients of the last grad_stats still have; 0: none
} mz_opt_state;
enum {
    MZ_GUARD_ON = 1,        // a bad step halts
    MZ_GUARD_GRADIENTS = 2, // non-finite gradients make a step bad, because no loss scale can be the cause
};
enum {
    MZ_BAD_BATCH = 1,
    MZ_BAD_LOSS = 2,
    MZ_BAD_ACTIVATION = 4,
    MZ_BAD_GRADIENTS = 8,
    MZ_BAD_PARAMETERS = 16,
    MZ_BAD_MOMENTS = 32
};
// One step runs, in order: grad_stats, clip_control?, step_control, the kinds' updates, and (once for all optimizers)
// scaler_update. grad_stats: g ×= 1/scale in place (no write when scale is absent, 0 or 1), state.scale = 0; with
// update->keeps_scale g stays as it is, state.scale = scale,
//   and the update takes round(g/scale): the same numbers without a pass that writes. norm = ‖g‖₂; found_inf |= any g
//   non-finite. Partial sums are over fixed chunks of 4096 elements of one parameter, in FP64, added in order of
//   segments: neither threads nor where a parameter is stored change a bit.
//   Where `pieces` are asked for, chunk sums go there and norm and found_inf are norm_across_ranks': the sum of a chunk
//   that begins at element e of a parameter to pieces[(offset + e) / 4096], an FP64 each. Segments then have no padding
//   between their elements and begin at multiples of 4096; pieces that no chunk begins in stay as they are.
// norm_across_ranks: norm = √Σ pieces, added in an order that their number alone decides; found_inf |= it is not
// finite; bad |= bad of each of `states`, those of all ranks. clip_control: clip ×= min(1, max_norm/(norm·clip +
// 1e-6)); untouched when norm is not finite. step_control: where the guard is on and nothing is halted yet, halted =
// bad, and MZ_BAD_GRADIENTS where found_inf and the guard's flags say so;
//   bad = 0. Halted: skip, and nothing is counted: step and all after it leave parameters, moments, counters and scaler
//   as they were. Else skip = found_inf. Skipped: ++skipped. Else lr = mz_schedule_lr(update, step), ++step, bias[k] =
//   1 - beta^step of betas[k]. last_clip = clip, last_found_inf = found_inf.
// a kind (optimizers.def): `quantized` are mz_quantized_segment of parameters that are not in `segments`; they are
// updated too.
//   Nothing is when skip. The gradient used is (g/scale)·last_clip; low copies are rounded in the same pass. It reads
//   nothing of the state that the ops after them change, so that they may be deferred until the next step_control.
//   Where `ema` is asked for: ema += fresh·(master - ema) with what the master has become, before it is rounded to how
//   it is stored; fresh = mz_ema_fresh; at the first step ema = master.
// scaler_update: found = OR of the states' found_inf; torch's rule on the block (where present and update->enabled),
// `skipped`
//   counted, unless a state is halted; then every state's found_inf = 0 and clip = 1.
static inline mz_update_rates mz_update_rates_of(const mz_opt_state *s, const mz_update_rule *rule) {
    return (mz_update_rates){s->lr * rule->lr_factor, s->bias[rule->group][0], s->bias[rule->group][1], s->step};
}
// Returns the inverse scale of gradients. The gradient of an orthogonal kind's second pass is the result of the passes
// before it, FP32, BF16 or FP16, and is not scaled.
static inline float mz_update_inverse(const mz_opt_state *s, const mz_update_rule *rule) {
    return s->scale != 0 && rule->update_scale == 0 ? (float)(1 / (double)s->scale) : 1;
}
static inline float mz_update_clip(const mz_opt_state *s, const mz_update_rule *rule) {
    return rule->update_scale == 0 ? (float)s->last_clip : 1;
}
double mz_schedule_lr(const mz_update_attrs *update, int64_t step);
// control.c: these ops on the host.
void mz_norm_across_ranks(const mz_call *call);
void mz_clip_control(const mz_call *call);
void mz_step_control(const mz_call *call);
void mz_scales_update(const mz_call *call);
void mz_scaler_update(const mz_call *call);
// Returns 1 - min(ema, step / (step + 9)), and 1 at step 1: the usual warm-up, where `step` is the present one.
static inline double mz_ema_fresh(double ema, int64_t step) {
    const double warm = step <= 1 ? 0 : (double)step / (double)(step + 9);
    return 1 - (warm < ema ? warm : ema);
}

// Says where one number of a batch's statistics goes: the parameter's element x becomes
// momentum·x + (1 - momentum)·number, in FP64, rounded once (track).
typedef struct mz_tracked {
    int64_t place; // of the element, from the beginning of the buffer; -1: the entry is another's `next`
    int64_t next;  // the number that moves the same element after this one; -1: none
    double momentum;
} mz_tracked;
void mz_track(const mz_call *call); // the op on the host (track.c)

typedef struct mz_scaler_block {
    float scale;        // first member: programs and grad_stats read it
    int32_t tracker;    // growth tracker
    int32_t hysteresis; // consecutive found-inf updates
    int32_t floor_hits; // consecutive skips with the scale at its floor
    int64_t skipped;    // updates that saw found_inf
} mz_scaler_block;

#endif
