// Times forward, backward and step of model sizes in several precisions, for mezzo bench --models.
#ifndef MZ_STUDY_BENCH_H
#define MZ_STUDY_BENCH_H

#include "study/measure/measure.h"

#define MZ_BENCH_PRECISIONS MEZZO_PRECISION_COUNT

typedef struct mz_bench_size { // a size of Stanford CS336's assignment
    const char *name;
    int64_t d_model, d_ff, layers, heads;
} mz_bench_size;
const mz_bench_size *mz_bench_size_at(int index); // NULL after the last one
// Makes a model. `size` is one of these sizes, or "D_MODELxD_FFxLAYERSxHEADS", in the family `family`; or a name that
// mezzo_model_defaults accepts ("gpt2-124M"). vocab 0: 10,000 for the sizes, the model's own for names. INVALID names
// the nearest.
mezzo_status mz_bench_model(const char *family, const char *size, int64_t vocab, int64_t context,
                            mezzo_model_config *out);

typedef struct mz_bench_plan {
    int64_t batch, context;
    mezzo_precision precisions[MZ_BENCH_PRECISIONS]; // as asked for; the first is the baseline
    int n_precisions;
    bool forward, backward, step; // the phases to time
    mezzo_optimizer_kind optimizer;
    mz_repeats repeats;
    size_t memory;       // in bytes; 0: the device's free memory
    const double *peaks; // FLOP/s by mezzo_precision, for MFU; NULL or 0: not known
    uint64_t seed;
    void (*tell)(void *user, const char *size, mezzo_precision precision); // called before each measurement; may be
                                                                           // NULL
    void *user;
} mz_bench_plan;

typedef struct mz_bench_time { // in milliseconds; NaN: not measured
    double mean, deviation;
} mz_bench_time;
typedef struct mz_bench_cell {
    mezzo_precision effective;
    bool measured;                         // false: it did not fit
    mz_bench_time forward, backward, step; // backward: forward and backward minus a forward run directly before
    double total;                          // forward + backward, ms
    double tokens_per_second, mfu;         // of a step, or of forward and backward where steps are not timed
    double memory_mb;                      // planned, in 2^20 bytes; known also where it does not fit
    bool finite;
    char note[256]; // a fallback and its reason, or why there is no measurement; "" otherwise
} mz_bench_cell;
typedef struct mz_bench_result {
    char size[48];
    mezzo_model_config model;
    double params_m;
    mz_bench_cell cells[MZ_BENCH_PRECISIONS];
} mz_bench_result;

// Times every cell. A cell that lacks memory or a kernel becomes NaN with a note, which is logged as a notice.
// INTERRUPTED: *stop was set.
mezzo_status mz_bench_run(mezzo_device *device, const char *size, const mezzo_model_config *model,
                          const mz_bench_plan *plan, mz_bench_result *out);

// --- CSV and chart -------------------------------------------------------------------------------------------------
void mz_bench_header(const mz_bench_plan *plan, mz_text *out);
void mz_bench_line(const mz_bench_plan *plan, const mz_bench_result *r, const char *device, const char *commit,
                   const char *command, mz_text *out);
// Draws the speedup of forward + backward (or of a step) over the baseline, by size: writes FOLDER/NAME.gp, and draws
// it where there is gnuplot.
mezzo_status mz_bench_chart(const mz_bench_plan *plan, const mz_bench_result *rows, size_t n, const char *folder,
                            const char *name);

#endif
