// Reads a study's rows, and makes exact-shape pairs of them: a baseline (fp32) and a candidate (amp, bf16, …) of the
// same shape that also *ran* as the same shape, on the same rung of the out-of-memory ladder. All other rows are listed
// apart.
#ifndef MZ_STUDY_PAIRS_H
#define MZ_STUDY_PAIRS_H

#include "io/csv.h"

#define MZ_STUDY_NAME  24
#define MZ_STUDY_NOISY 0.1

typedef struct mz_shape_key { // the shape that was asked for
    int64_t layers, d_model, bs, seqlen;
} mz_shape_key;

typedef struct mz_study_row {
    mz_shape_key key;
    char prec[MZ_STUDY_NAME];
    char variant[96];         // the columns model, compile and static where they exist: "compile=True static=False"
    char rung[MZ_STUDY_NAME]; // the rung of the ladder: "base", "recompute", …; "none": nothing fitted, and there is no
                              // time
    int64_t ga;                     // micro batches of a step
    int64_t final_bs, final_seqlen; // the shape that ran
    double tps;                     // tokens/s; NaN where no shape ran
    double mem_gb, power_w;         // NaN: not known
    double energy_j;                // of one step; NaN: not known
    double error;                   // relative standard error of the mean of `times`; NaN: there are fewer than two
    int repeats;                    // number of `times`
    int64_t line;
} mz_study_row;

typedef struct mz_pair {
    mz_shape_key key;
    char variant[96];
    double speedup;   // the candidate's tokens/s over the baseline's
    double error;     // relative standard error of the speedup, from both rows' times; NaN: not known
    double errors[2]; // of the baseline's and the candidate's times, from `repeats` times each
    int repeats[2];
    double mem_saving_pct, energy_gain_pct; // 100·(1 - candidate/baseline); NaN: not known
    double tps_fp32, tps_amp;               // NaN where only the quotient is known
    int64_t tokens;                         // per step, as it ran
    char adj_amp[MZ_STUDY_NAME], adj_fp32[MZ_STUDY_NAME];
    int64_t ga_amp, ga_fp32;
} mz_pair;

typedef struct mz_study {
    char *where; // the file's name
    char baseline[MZ_STUDY_NAME], candidate[MZ_STUDY_NAME];
    char others[128]; // further precisions in the file, "" if none
    mz_study_row *rows;
    size_t n_rows, cap_rows;
    mz_pair *pairs, *unequal; // unequal: the same request, but another rung or final shape
    size_t n_pairs, cap_pairs, n_unequal, cap_unequal;
    size_t *alone, n_alone, cap_alone;    // indices of rows of the two precisions that have no partner
    size_t *failed, n_failed, cap_failed; // indices of rows for which no shape ran
    // The file's energy_j is not the power times a step's time, so energies were computed from power and time.
    bool energy_remade;
    double energy_ratio; // the median quotient of the two
    size_t noisy;        // number of rows of either precision whose times have a coefficient of variation above
                         // MZ_STUDY_NOISY
    size_t noisiest;     // the row with the largest one
    size_t inconsistent; // number of rows whose tps differs by over 1 % from bs·seqlen over the mean of times
} mz_study;

// Loads a study. `path` holds a sweep's rows (full_data.csv, Mezzo's or another's) or pairs (pairs_analysis.csv).
// columns: "theirs=ours,…" renames columns of other tables, NULL none. baseline NULL = fp32; candidate NULL = the first
// of amp, bf16, fp16, tf32, fp8, fp8-dw16, fp8-block that the study has. An empty rung is "base". INVALID: `columns`
// names a missing column. FORMAT: a missing column, a cell that is no number, a time, rate or size that is not above 0,
// a repeated key (naming both lines), no pair at all. The caller frees *out.
mezzo_status mz_study_load(const char *path, const char *columns, const char *baseline, const char *candidate,
                           mz_study *out);
void mz_study_free(mz_study *study);       // a zeroed one is allowed
double mz_row_cv(const mz_study_row *row); // coefficient of variation of its times; NaN: there are fewer than two
const char *mz_key_text(const mz_shape_key *key, const char *variant, char *buf,
                        size_t size); // writes "layers 4, d_model 128, …"

int mz_pairs_order(const void *x, const void *y);                    // a comparison for qsort: by width, and then by
                                                                     // tokens
mezzo_status mz_pairs_save(const mz_study *study, const char *path); // pairs_analysis.csv, sorted by key

#endif
