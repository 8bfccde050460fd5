// Each function computes one lesson's answer with the conversions that training uses.
#ifndef MZ_STUDY_LAB_H
#define MZ_STUDY_LAB_H

#include <jansson.h>

#include "base/blocks.h"
#include "mezzo/train.h"
#include "train/trial.h"

// --- formats (lab_formats.c) ---------------------------------------------------------------------------------------
// Says how a format treats numbers beyond its largest value, and which codes are no numbers.
typedef enum mz_specials {
    MZ_SPECIALS_IEEE, // infinities and NaNs have the largest exponent field
    MZ_SPECIALS_NAN,  // OCP E4M3FN: no infinity, one NaN of each sign
    MZ_SPECIALS_NONE, // OCP E2M1: every code is a number; conversion saturates
} mz_specials;

// Describes a binary format: sign, exponent and fraction, most significant bit first. `block` elements of a block
// format (mxfp8, mxfp4, nvfp4) share a scale.
typedef struct mz_lab_format {
    const char *name, *title;
    int exponent, fraction; // bits of the fields, besides one sign bit
    mz_specials specials;
    mezzo_dtype dtype;   // the dtype whose conversion training uses; MEZZO_DTYPE_COUNT for block formats
    mezzo_blocks blocks; // the definition of a block format
    int block;           // 0: no scale is shared
    const char *scale;   // the format of the shared scale, in words; NULL
} mz_lab_format;

enum { MZ_LAB_FORMATS = 10 };
extern const mz_lab_format mz_lab_formats[MZ_LAB_FORMATS];
const mz_lab_format *mz_lab_format_find(const char *name); // NULL: there is none of this name

// Holds facts of one element, exactly, since each fits in FP64.
typedef struct mz_lab_format_facts {
    mz_lab_format format;
    int bits, bias;
    double largest, smallest_normal, smallest_subnormal;
    double epsilon;      // distance from 1 to the next value
    double digits;       // decimal: (fraction + 1)·log10(2)
    double zero;         // the largest magnitude that rounds to zero: half of the smallest subnormal, with ties to even
    uint64_t finite;     // number of distinct finite values; +0 and -0 count once
    double bits_a_value; // with the element's share of the block's scale
} mz_lab_format_facts;
mz_lab_format_facts mz_lab_format_describe(const mz_lab_format *format);

// Says what happened to a value that was stored in a format.
typedef enum mz_fate {
    MZ_FATE_EXACT,
    MZ_FATE_ROUNDED,
    MZ_FATE_SUBNORMAL, // it kept a value with fewer significant bits, exact or rounded
    MZ_FATE_UNDERFLOW, // it was rounded to zero
    MZ_FATE_OVERFLOW,  // it became infinite; E4M3: NaN; blocks: the largest value
    MZ_FATE_NAN,
} mz_fate;
const char *mz_fate_name(mz_fate fate); // "exact", "rounded", …

typedef struct mz_stored {
    uint64_t code; // the element's bits
    uint64_t exponent, fraction;
    int sign;
    double value;    // the number that the code (times the block's scale) represents
    double relative; // |value - x| / |x|; 0 where x is 0; NaN where value is not finite
    double scale;    // of the block, in which the value is the largest; 1 without blocks
    mz_fate fate;
} mz_stored;
mz_stored mz_lab_format_store(const mz_lab_format *format, double x);

// --- accumulate (lab_accumulate.c) ---------------------------------------------------------------------------------
// A way to add one term `count` times: the formats of term and sum, and the method.
typedef struct mz_sum_way {
    const char *name, *title;
    mezzo_dtype term, sum;
    enum { MZ_SUM_PLAIN, MZ_SUM_WIDENED, MZ_SUM_KAHAN, MZ_SUM_PAIRWISE, MZ_SUM_STOCHASTIC } how;
} mz_sum_way;

enum { MZ_SUM_WAYS = 11 };
extern const mz_sum_way mz_sum_ways[MZ_SUM_WAYS];

typedef struct mz_sum_result {
    const char *way, *title;
    double sum;
    double term;     // x as the term's format holds it
    double exact;    // count · x, with x as given
    double relative; // |sum - exact| / |exact|; 0 where exact is 0
    int64_t
        stalled; // the addition after which a plain sum stopped changing; 0: it did not stall, or the method is another
} mz_sum_result;

// Adds x `count` times (1 … 2³¹). `path`, where not NULL, gets the sum after each of `points` additions at even
// distances, the last included: [points], 2 ≤ points ≤ count. Stochastic rounding draws from Philox (seed, element =
// addition).
mz_sum_result mz_sum(const mz_sum_way *way, double x, int64_t count, uint64_t seed, double *path, int64_t points);

// --- overflow (lab_overflow.c) -------------------------------------------------------------------------------------
// Holds the probability that softmax gives to the first of two logits (x, 0), with every operation rounded to the
// format.
typedef struct mz_softmax_row {
    mezzo_dtype format;
    double x;
    double naive;   // eˣ / (eˣ + 1)
    double shifted; // e⁰ / (e⁰ + e⁻ˣ): with the largest logit subtracted first
    double exact;   // FP64, shifted
} mz_softmax_row;
mz_softmax_row mz_softmax_of(mezzo_dtype dtype, double x);

// Holds what the loss scaler sees and does in one step of a real fp16 training program, whose output gradient is
// `spike` for the first `spiked` steps and 1 afterwards.
typedef struct mz_scale_step {
    double gradient; // before scaling
    double scale;    // in this step
    bool skipped;
} mz_scale_step;
// Fills rows [steps] on `device` with PyTorch's scaler, but with this first scale and a growth interval of `interval`
// steps. Errors: those of making and running a program.
mezzo_status mz_scale_path(mezzo_device *device, double spike, int64_t spiked, double initial, int64_t interval,
                           mz_scale_step *rows, int64_t steps);

// Holds one step of plain SGD with rate 1 on the same program, whose gradient is clipped to a norm of max_norm, after
// unscaling or before.
typedef struct mz_clip_order {
    const char *order; // "unscale, clip, step"
    double norm;       // the norm that clipping used
    double clip;       // its factor
    double update;     // the change of the weight
} mz_clip_order;
mezzo_status mz_clip_in_order(mezzo_device *device, double gradient, double max_norm, double scale, bool unscale_first,
                              mz_clip_order *out);

// --- layernorm (lab_layernorm.c) -----------------------------------------------------------------------------------
// Holds statistics of a row of normal numbers around `center` with deviation 1, stored in a format, and computed in it
// and in FP32.
typedef struct mz_norm_row {
    mezzo_dtype format;
    int64_t width;
    double mean, variance;           // in FP64, of the stored row: the reference
    double low_mean, low_variance;   // by two passes, with every operation rounded to the format
    double low_one_pass;             // the variance as E[x²] - E[x]², in the format
    double fp32_mean, fp32_variance; // two passes in FP32, as training does
    double fp32_one_pass;            // E[x²] - E[x]² in FP32
} mz_norm_row;
mz_norm_row mz_norm_statistics(mezzo_dtype dtype, int64_t width, double center, uint64_t seed);

// --- underflow (lab_underflow.c) -----------------------------------------------------------------------------------
typedef struct mz_underflow_options {
    const char *run;    // a run folder or checkpoint, whose weights and data it uses; NULL: a small GPT
    const char *data;   // text or shards; NULL: the run's, or text of common words
    const char *device; // NULL: cpu
    int threads;        // 0: all cores
    int64_t steps;      // training steps of the small GPT, of which the last is inspected
    uint64_t seed;
    const char *precision; // NULL: fp32; for fp8 and similar ones, losses in 8 bits are counted, too
} mz_underflow_options;
typedef struct mz_underflow {
    mz_trial *trial;      // in FP32, unless asked otherwise, so that nothing has underflowed before
    mezzo_config *config; // of the trial
    const mz_magnitudes *magnitudes;
    int64_t step; // the counted step
} mz_underflow;
// Takes one training step with every gradient and activation counted: u->magnitudes has the tables. Errors: those of
// a run.
mezzo_status mz_underflow_look(const mz_underflow_options *options, mz_underflow *u);
void mz_underflow_close(mz_underflow *u);

// Holds what FP16 would make of numbers that are first multiplied by 2^scale.
typedef struct mz_fp16_fate {
    int64_t nonzero;     // number of finite ones other than zero
    int64_t lost;        // number that become zero
    int64_t subnormal;   // number that keep fewer than 11 significant bits
    int64_t overflow;    // number above 65,536 (those from 65,520 on would become infinite, too)
    int lowest, highest; // 2^lowest < |x| ≤ 2^highest, unscaled; both 0 where all are zero
} mz_fp16_fate;
mz_fp16_fate mz_fp16_fate_of(const int64_t *counts, int scale); // counts [MZ_HISTOGRAM_BUCKETS]
// Return the exponents of the smallest power of two that leaves at most `share` of the numbers zero, and of the largest
// that overflows none.
int mz_fp16_least_scale(const int64_t *counts, double share);
int mz_fp16_most_scale(const int64_t *counts);
void mz_underflow_sum(const mz_underflow *u, mz_magnitude_kind kind, int64_t *counts); // over all tensors of a kind

// Write the tables with losses as they are and times 2^scale; the text names model and
// precision, and has the `most` tensors that lose the largest shares.
json_t *mz_underflow_json(const mz_underflow *u, int scale); // NULL: out of memory
void mz_underflow_text(const mz_underflow *u, const char *model, const char *precision, int scale, size_t most,
                       mz_text *t);

// --- speed (lab_speed.c) -------------------------------------------------------------------------------------------
#define MZ_SPEED_MOST MEZZO_PRECISION_COUNT
typedef struct mz_speed_options {
    const char *data, *device; // NULL: made-up text; auto
    int threads;               // 0: all cores
    mezzo_precision precisions[MZ_SPEED_MOST];
    int n_precisions;
    int64_t layers, d_model, batch, steps; // of a GPT with 4 heads and a context of 128 tokens; at least 10 steps
    double target;                         // a loss; 0: the largest of the final losses, which all reach
    const volatile sig_atomic_t *stop;     // may be NULL
} mz_speed_options;
typedef struct mz_speed_row {
    mezzo_precision asked, effective;
    double ms, tokens_per_second; // of a step, in the second half of the steps
    double final_loss;            // smoothed over about ten steps, like every loss here
    int64_t steps;                // until the target; 0: it was not reached
    double seconds;               // time in steps, until the target; NaN
    double times;                 // how many times as fast as the first row to the target; NaN
    int64_t skipped;
    size_t memory; // in bytes
    char reason[256];
} mz_speed_row;
typedef struct mz_speed_result {
    double target;
    int64_t parameters;
    char device[160];
} mz_speed_result;
// Trains the same model from the same seed on the same batches in each precision, a few steps of each in turn. Errors:
// those of a run.
mezzo_status mz_speed_race(const mz_speed_options *options, mz_speed_row *rows, mz_speed_result *result);

// --- figures (lab_figures.c): FOLDER/NAME.gp, drawn as NAME.png and NAME.svg. Errors: UNSUPPORTED (no gnuplot), IO
// ------------------
mezzo_status mz_lab_draw_formats(const char *folder, const char *name); // draws sign, exponent and fraction as bars
// Draws the sum of every way against the number of additions.
mezzo_status mz_lab_draw_sums(const char *folder, const char *name, double x, int64_t count, uint64_t seed);
mezzo_status mz_lab_draw_scale(const char *folder, const char *name, const mz_scale_step *rows, int64_t steps);
// Draws the mean's relative error against the row's width: rows [n] of each of two formats.
mezzo_status mz_lab_draw_norms(const char *folder, const char *name, const mz_norm_row *fp16, const mz_norm_row *bf16,
                               int n);

// Draws gradients (of parameters and activations) by log2, with FP16's thresholds shaded, and the same multiplied by
// 2^scale; activations are beside them.
mezzo_status mz_lab_draw_underflow(const char *folder, const char *name, const mz_underflow *u, int scale);

// Draws seconds to the target as bars.
mezzo_status mz_lab_draw_speed(const char *folder, const char *name, const mz_speed_row *rows, int n,
                               const mz_speed_result *result);

// --- what the lessons that train share (lab_text.c) ------------------------------------------------------------------
// Writes 40 kB of made-up text, which the lessons that train a model share and which is the same everywhere, to a
// temporary file; *path names it, and the caller removes it and calls mz_free.
mezzo_status mz_lab_text(char **path);
mezzo_status mz_lab_set(mezzo_config *config, const char *const (*keys)[2], size_t n); // pairs {key, value}

#endif
