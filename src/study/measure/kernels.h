// Compares each kernel of a device with the device's limits: times calls of given shapes beside the measured peaks.
#ifndef MZ_STUDY_KERNELS_H
#define MZ_STUDY_KERNELS_H

#include "backend/backend.h"

#define MZ_BENCH_DIMS 5

// --- cases (kernel_cases.c) ----------------------------------------------------------------------------------------
// Holds what is timed under a name: an op with its attributes and the tensors that a model gives it ("linear_gelu" is a
// linear layer with its activation in the epilogue, which keeps the value before it).
typedef struct mz_bench_op {
    const char *name;
    mz_op op;
    const char *dims;    // the meaning of --shape for it: "MxNxK"
    const char *tensors; // in the words of kernel_cases.c
    mz_attrs attrs;
} mz_bench_op;

enum { MZ_BENCH_OPS = 28 };
extern const mz_bench_op mz_bench_ops[MZ_BENCH_OPS];
const mz_bench_op *mz_bench_find(const char *name); // NULL: there is none
bool mz_bench_op_scored(const mz_bench_op *op);     // its work is counted in FLOP (ops.def), else in bytes

// One shape of one op. `model` is its source; NULL: the user.
typedef struct mz_bench_case {
    const mz_bench_op *op;
    const char *model;
    int64_t dim[MZ_BENCH_DIMS];
} mz_bench_case;

// Returns the shapes of the models for which results are published; NULL after the last one.
const mz_bench_case *mz_bench_default(int index);
// Parses "1024x3072x768"; INVALID names what the op takes.
mezzo_status mz_bench_shape(const mz_bench_op *op, const char *text, int64_t dim[MZ_BENCH_DIMS]);

const char *mz_bench_shape_text(const mz_bench_case *c, char *buf, size_t size);

// A call without data. `work` is in FLOP where the op is scored, else in bytes that must cross memory once.
typedef struct mz_bench_call {
    mz_call call;
    mz_update_attrs update; // call.attrs.update points to it
    mezzo_dtype low_copy;   // of adamw's low copy; F32: it has none
    double work;
} mz_bench_call;
void mz_bench_make(const mz_bench_case *c, mezzo_precision precision, mz_bench_call *out);
// Returns whether both precisions make the same call (an embedding is FP32 in all of them).
bool mz_bench_same(const mz_bench_case *c, mezzo_precision one, mezzo_precision other);
// Fills the host contents of input or output `slot`, `bytes` long, before the first call.
void mz_bench_fill(const mz_bench_call *c, bool output, int slot, void *data, size_t bytes);

// --- timing (kernels.c) --------------------------------------------------------------------------------------------
typedef struct mz_bench_options {
    const mz_bench_case *cases;
    int n_cases;
    const mezzo_precision *precisions;
    int n_precisions;
    int rounds; // 0: as many as a quarter of a second takes, 5 to 101 (3 where a call takes longer than that)
    bool warm;  // repeats the same tensors; else enough copies alternate that no cache holds them
} mz_bench_options;

typedef struct mz_bench_row {
    const mz_bench_case *of;
    mezzo_precision precision;
    const char *kernel; // borrowed from the device
    int rounds;
    double median, best; // seconds of a call
    double rate, peak;   // FLOP/s or bytes/s: by the median, and the device's peak
} mz_bench_row;
typedef void mz_bench_fn(void *user, const mz_bench_row *row);

// mz_bench_kernels writes one row a case and precision, in order; precisions that make the same call are timed once. It
// logs a case that no kernel serves ("notice") and leaves it out. mz_bench_csv writes a row of the CSV for such rows,
// with its newline; `row` NULL: its header (bench_table.c).
typedef struct mz_bench_context {
    const mezzo_device_info *device;
    const char *commit, *command;
    bool warm;
} mz_bench_context;
void mz_bench_kernel_line(const mz_bench_context *context, const mz_bench_row *row, mz_text *out);
const char *mz_bench_unit(const mz_bench_row *row); // "GFLOP/s", "GB/s"
double mz_bench_of_peak(const mz_bench_row *row);   // NaN: the peak is not known
mezzo_status mz_bench_kernels(mezzo_device *device, const mz_bench_options *options, const mz_peaks *peaks,
                              mz_bench_fn *visit, void *user);

#endif
