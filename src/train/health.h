// Judges in words and by stated rules whether a run is healthy, from the rows of metrics.jsonl, while it trains or
// afterwards. docs/guard.md lists the rules.
#ifndef MZ_TRAIN_HEALTH_H
#define MZ_TRAIN_HEALTH_H

#include "io/record.h"
#include "train/spike.h"

// Holds the facts of one row; NaN where the row lacks one.
typedef struct mz_health_row {
    int64_t step;
    double loss, val_loss, scale, skipped, underflow; // skipped: steps since the run began; underflow: a share
    double saturated;                                 // share of the steps in which the largest number of `tensor` was
                                                      // clipped
    char tensor[160];                                 // "h.3.mlp.c_fc.dy"
    double lr, chance;                                // chance: run/chance_loss
    bool has_loss, has_val;                           // the row has a train/loss or a validation's loss, which may be
                                                      // NaN
    bool scaling;                                     // the loss scale is not 1
} mz_health_row;

enum { MZ_HEALTH_KEPT = 256 }; // number of losses and of skip counts that verdicts use
typedef struct mz_health {
    int64_t rows, step, first_step; // rows: number of rows with a loss
    double losses[MZ_HEALTH_KEPT];  // ring buffers, by row
    int64_t steps[MZ_HEALTH_KEPT];
    double skipped[MZ_HEALTH_KEPT];
    double scale, largest_scale, underflow; // newest values; underflow is averaged over about ten rows
    double saturated;                       // the newest value
    char tensor[160];
    double first_loss; // of the run's first report with a finite loss
    double chance;     // the loss of a uniform guess: ln(vocabulary), ln(classes); NaN: not known
    double val_loss;   // of the last validation of either kind; NaN: none, or not finite
    bool val_bad;      // the last validation's loss was not finite
    double lr;
    bool warming; // the learning rate is still rising
    bool scaling;
    int64_t jumps; // total jumps of the loss
    mz_spikes spikes;
} mz_health;

mezzo_status mz_health_begin(mz_health *health);
void mz_health_end(mz_health *health); // a zeroed one is allowed
void mz_health_add(mz_health *health, const mz_health_row *row);
// Returns true where nothing is wrong. `line` of `size` bytes gets one line: "healthy: …" or "not healthy: what; what
// to try".
bool mz_health_verdict(const mz_health *health, char *line, size_t size);

void mz_health_add_record(mz_health *health, const mz_record *record);
// Adds every row of a run's metrics.jsonl; a missing file has none. Lines that are no records are skipped.
mezzo_status mz_health_read(mz_health *health, const char *folder);

#endif
