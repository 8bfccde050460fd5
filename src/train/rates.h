// Measures what a run makes of its device: model FLOPs and their share of the peak (MFU), energy, and the time the
// device waits.
#ifndef MZ_TRAIN_RATES_H
#define MZ_TRAIN_RATES_H

#include "base/base.h"
#include "mezzo/device.h"
#include "mezzo/program.h"
#include "models/model.h"

// Operations of a micro batch's products and attention that training needs, a multiply-add counting two: forward, and
// gradients of what is trained. Recomputation does not count, in attention's backward either. *attention: those of
// causal attention without a window, of rows that are one document each.
double mz_model_flops(const mezzo_program *program, double *attention);

// FLOP/s that MFU is a share of: `tflops` where it is above 0; at -1 measured now; at 0 the data sheet's, of dense
// products in the format, where the device's description names a card that is known. 0: not known.
mezzo_status mz_peak_flops(mezzo_device *device, const char *description, mezzo_dtype compute, double tflops,
                           double *out);

// Joules an item, from a counter that moves in jumps: over windows of a second or more.
typedef struct mz_energy_meter {
    bool open;
    double joules, seconds, items; // at the window's beginning
    double each;                   // of the last window; NaN: none yet
    double sum_joules, sum_items;  // of all windows
} mz_energy_meter;
void mz_energy_begin(mz_energy_meter *meter); // closes the window: what follows is not a step
// joules: the counter now, NaN: none; range: where it starts again, 0: nowhere. Opens a window where none is open.
void mz_energy_add(mz_energy_meter *meter, double joules, double range, double seconds, double items);
// The device's counter, or that of the host's processors (RAPL) for a device that has none and computes there.
double mz_read_joules(mezzo_device *device, double *range);

// Steps on the host's cores whose wall time is far above the CPU time of all threads wait for cores that others use.
typedef struct mz_core_meter {
    double seconds, cpu; // of the window's steps
    bool lost;           // seen once
} mz_core_meter;
// Returns true once, after a window of 5 s of steps that computed for less than half of it; `seconds` and `cpu` are
// then the window's.
bool mz_cores_lost(mz_core_meter *meter, double seconds, double cpu);

typedef struct mz_rates {
    double flops, attention, peak; // of a step, as mz_model_flops; FLOP/s, 0: not known
    double pairs, pairs_of_rows;   // of a query and a key that it sees: in the documents so far, and in whole rows
    double waits, reported_waits;  // seconds that the device waited for data, so far, and at the last report
    mz_energy_meter energy;
    mz_core_meter cores;
} mz_rates;
void mz_rates_count(mz_rates *rates, const mz_input *positions); // the documents of a batch
double mz_rates_flops(const mz_rates *rates);                    // of a step, attention as far as documents see

#endif
