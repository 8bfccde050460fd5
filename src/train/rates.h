// Measures how well a run uses its device: model FLOPs and their share of the peak (MFU), energy, and the time that the
// device waits.
#ifndef MZ_TRAIN_RATES_H
#define MZ_TRAIN_RATES_H

#include "base/base.h"
#include "mezzo/device.h"
#include "mezzo/program.h"
#include "models/model.h"

// Counts the operations of a micro batch's products and attention that training needs, a multiply-add as two: forward,
// and gradients of what is trained. Recomputation does not count, nor that in attention's backward. *attention: those
// of causal attention without a window, with one document in each row.
double mz_model_flops(const mezzo_program *program, double *attention);

// Finds the FLOP/s that MFU is a share of: `tflops` where it is above 0; at -1 a measurement; at 0 the data sheet's
// number for dense products in the format, where the device's description names a known card. 0: not known.
mezzo_status mz_peak_flops(mezzo_device *device, const char *description, mezzo_dtype compute, double tflops,
                           double *out);

// Measures joules an item from a counter that changes in jumps, over windows of a second or more.
typedef struct mz_energy_meter {
    bool open;
    double joules, seconds, items; // at the window's beginning
    double each;                   // of the last window; NaN: none yet
    double sum_joules, sum_items;  // of all windows
} mz_energy_meter;
void mz_energy_begin(mz_energy_meter *meter); // closes the window, because what follows is no step
// Adds a reading, and opens a window where none is open. joules: the counter, NaN: none; range: where it starts again
// from 0, 0: never.
void mz_energy_add(mz_energy_meter *meter, double joules, double range, double seconds, double items);
// Reads the device's counter, or that of the host's processors (RAPL) for a device that computes there and has none.
double mz_read_joules(mezzo_device *device, double *range);

// Detects steps that wait for cores that other processes use: their wall time is far above the CPU time of all threads.
typedef struct mz_core_meter {
    double seconds, cpu; // of the window's steps
    bool lost;           // it was reported once
} mz_core_meter;
// Returns true once, after a window of 5 s of steps that computed for less than half of it; `seconds` and `cpu` are
// then the window's.
bool mz_cores_lost(mz_core_meter *meter, double seconds, double cpu);

typedef struct mz_rates {
    double flops, attention, peak; // of a step, as mz_model_flops counts them; peak: FLOP/s, 0: not known
    double pairs, pairs_of_rows;   // pairs of a query and a key that it sees: in the documents so far, and in whole
                                   // rows
    double waits, reported_waits;  // seconds that the device has waited for data, and how many of them are reported
    mz_energy_meter energy;
    mz_core_meter cores;
} mz_rates;
void mz_rates_count(mz_rates *rates, const mz_input *positions); // counts the documents of a batch
double mz_rates_flops(const mz_rates *rates);                    // of a step, with attention as far as documents see

#endif
