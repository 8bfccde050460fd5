// The prediction keeps each operation's measured time and changes it by the ratio of its times in two formats:
//   step(f) = step + Σ over operations of calls · seconds · (cost(f') / cost(now) − 1) + casts,
// where f' is the format that autocast to f gives the operation. Both costs come from the same short measurement, whose
// caches and clocks differ from the step's; their ratio does not depend on them much.
#include "study/audit/cost.h"

#include <math.h>
#include <stdlib.h>

#include "base/precision.h"
#include "study/measure/kernels.h"

enum { FP32, TF32, BF16, FP16, FP8 }; // FP8: products that have such a kernel; the rest is BF16's
static const double BOUND_BY_LAUNCHES =
    0.8; // of the step's time, that a GPU's operations take at least where they bound it

static const double LEAST_TIMED = 0.5; // of the operations' time: with less there is no prediction

static int format_of(mezzo_dtype dtype, bool tf32) {
    return dtype == MEZZO_BF16 ? BF16 : dtype == MEZZO_F16 ? FP16 : dtype == MEZZO_F32 ? (tf32 ? TF32 : FP32) : -1;
}

// The format of the first operand that is a float.
static int format_now(const mz_torch_trace *t, const mz_torch_op *op) {
    const bool tf32 = t->tf32 && t->capability >= 80 && mz_torch_is_product(op);
    for (int i = 0; i < op->n_inputs; i++)
        if (format_of(op->inputs[i].dtype, tf32) >= 0)
            return format_of(op->inputs[i].dtype, tf32);
    return -1;
}

static bool stays_wide(const mz_torch_trace *t, const mz_torch_op *op) {
    return op->class == MZ_TORCH_LOSS || op->class == MZ_TORCH_NORM || op->class == MZ_TORCH_SOFTMAX ||
           (op->class == MZ_TORCH_NATIVE_NORM && strcmp(t->device, "cuda") == 0);
}

// The format that an operation has where the program asks for `wanted`.
static int format_then(const mz_torch_trace *t, const mz_torch_op *op, int now, int today, int wanted) {
    const bool low = wanted >= BF16;
    if (wanted == today)
        return now;
    if (wanted == FP8 && mz_torch_is_product(op) && op->costs[FP8] > 0)
        return FP8;
    if (wanted == FP8)
        wanted = BF16;
    if (!low)
        return mz_torch_is_product(op) ? wanted : FP32;
    if (now == BF16 || now == FP16)
        return wanted;
    return today == BF16 || today == FP16 || stays_wide(t, op) ? now : wanted;
}

static double calls_of(const mz_torch_trace *t, const mz_torch_op *op) {
    return (double)op->count / (t->steps > 0 ? t->steps : 1);
}

static bool is_cast(const mz_torch_op *op) {
    return op->class == MZ_TORCH_CAST && op->n_inputs > 0 && op->inputs[0].dtype != MEZZO_DTYPE_COUNT &&
           mz_torch_is_low(op->inputs[0].dtype) != mz_torch_is_low(op->output);
}

// Seconds that a call takes more in the other format; false: that is not known.
static bool difference(const mz_torch_trace *t, const mz_torch_op *op, int today, int wanted, double *out) {
    const int now = format_now(t, op), then = now >= 0 ? format_then(t, op, now, today, wanted) : -1;
    *out = 0;
    if (now < 0 || wanted == today)
        return true;
    if (is_cast(op)) {
        *out = wanted == FP32 || wanted == TF32 ? -op->seconds : 0;
        return true;
    }
    if (wanted >= BF16 && today < BF16 && op->cast > 0)
        *out = 2 * op->cast; // the weight, and its gradient back
    if (now == then)
        return true;
    const double cost = op->costs[then], before = op->costs[now];
    if (!(cost > 0) || !(before > 0))
        return !mz_torch_is_product(op) || op->seconds <= 0;
    *out += op->seconds * (cost / before - 1);
    return true;
}

static bool has_fp8(const mz_torch_trace *t) {
    for (size_t i = 0; i < t->n_ops; i++)
        if (t->ops[i].costs[FP8] > 0)
            return true;
    return false;
}

// The format of most of the forward products' FLOPs: what the program has today, whatever it asks for.
static int format_of_program(const mz_torch_trace *t) {
    double flops[MZ_TORCH_FORMATS] = {0};
    int most = FP32;
    for (size_t i = 0; i < t->n_ops; i++) {
        const int now = mz_torch_is_product(&t->ops[i]) ? format_now(t, &t->ops[i]) : -1;
        if (now >= 0 && t->ops[i].phase == MZ_TORCH_FORWARD)
            flops[now] += t->ops[i].flops * (double)t->ops[i].count;
    }
    for (int f = 0; f < MZ_TORCH_FORMATS; f++)
        most = flops[f] > flops[most] ? f : most;
    return most;
}

void mz_torch_costs_predict(const mz_torch_trace *t, mz_torch_costs *out) {
    *out = (mz_torch_costs){.with_hooks = isnan(t->step_seconds)};
    const int now = format_of_program(t);
    double all = 0, timed = 0;
    out->step = out->with_hooks ? t->followed_seconds : t->step_seconds;
    for (size_t i = 0; i < t->n_ops; i++)
        if (t->ops[i].seconds > 0) {
            all += calls_of(t, &t->ops[i]) * t->ops[i].seconds;
            timed += t->ops[i].costs[FP32] > 0 || is_cast(&t->ops[i]) ? calls_of(t, &t->ops[i]) * t->ops[i].seconds : 0;
        }
    out->timed_share = all > 0 ? timed / all : 0;
    out->launch_bound = strcmp(t->device, "cuda") == 0 && all < BOUND_BY_LAUNCHES * out->step;
    for (int f = 0; f < MZ_TORCH_FORMATS; f++) {
        double change = 0, unknown = 0;
        for (size_t i = 0; i < t->n_ops; i++) {
            const mz_torch_op *op = &t->ops[i];
            double of_call;
            if (!(op->seconds > 0))
                continue;
            if (!difference(t, op, now, f, &of_call))
                unknown += calls_of(t, op) * op->seconds;
            change += calls_of(t, op) * of_call;
        }
        const double seconds = out->launch_bound ? fmax(out->step, all + change) : out->step + change;
        const bool exists = f == TF32 ? t->capability >= 80 : f != FP8 || has_fp8(t);
        out->rows[f] = (mz_torch_cost){
            mz_torch_formats[f],
            f == now || (exists && unknown <= 0.1 * all && out->timed_share >= LEAST_TIMED && seconds > 0), f == now,
            seconds, out->step / seconds};
    }
}

// --- Mezzo's kernels -----------------------------------------------------------------------------------------------
typedef struct shape {
    int64_t dim[MZ_BENCH_DIMS]; // M×N×K, batches in M
    double flops, seconds;      // of a step
} shape;

// A batched product with a matrix for each batch is none of a linear layer.
static bool shape_of(const mz_torch_op *op, shape *out) {
    const mz_torch_shape *a = &op->inputs[op->a], *b = &op->inputs[op->b];
    if (op->class != MZ_TORCH_PRODUCT || op->flops <= 0 || b->rank != 2 || a->rank != 2)
        return false;
    *out = (shape){.dim = {a->dim[0], b->dim[1], a->dim[1]}};
    return out->dim[0] > 0 && out->dim[1] > 0 && out->dim[2] > 0 && out->dim[0] < (1 << 24) &&
           out->dim[1] < (1 << 24) && out->dim[2] < (1 << 24);
}

static void add_shape(shape *shapes, int *n, const shape *s) {
    for (int i = 0; i < *n; i++)
        if (memcmp(shapes[i].dim, s->dim, sizeof s->dim) == 0) {
            shapes[i].flops += s->flops;
            shapes[i].seconds += s->seconds;
            return;
        }
    if (*n < 512)
        shapes[(*n)++] = *s;
}

typedef struct sink {
    mz_torch_kernels *out;
    const shape *shapes;
    int counts[MEZZO_PRECISION_COUNT];
} sink;

static void keep_time(void *user, const mz_bench_row *row) {
    sink *s = user;
    for (int i = 0; i < s->out->n_shapes; i++)
        if (memcmp(row->of->dim, s->shapes[i].dim, sizeof row->of->dim) == 0) {
            const double work = 2.0 * (double)row->of->dim[0] * (double)row->of->dim[1] * (double)row->of->dim[2];
            s->out->seconds[row->precision] += row->median * s->shapes[i].flops / work;
            s->counts[row->precision]++;
        }
}

static int larger(const void *a, const void *b) {
    const double x = ((const shape *)a)->flops, y = ((const shape *)b)->flops;
    return (x < y) - (x > y);
}

mezzo_status mz_torch_kernels_time(mezzo_device *device, const mz_torch_trace *t, mz_torch_kernels *out) {
    static const mezzo_precision precisions[] = {MEZZO_PRECISION_FP32, MEZZO_PRECISION_TF32, MEZZO_PRECISION_BF16,
                                                 MEZZO_PRECISION_FP16};
    shape *shapes = mz_alloc(512, sizeof *shapes);
    mz_bench_case cases[MZ_TORCH_SHAPES];
    double all = 0;
    int n = 0;
    *out = (mz_torch_kernels){0};
    if (shapes == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < t->n_ops; i++) {
        shape s;
        all += calls_of(t, &t->ops[i]) * t->ops[i].flops;
        if (!shape_of(&t->ops[i], &s))
            continue;
        s.flops = calls_of(t, &t->ops[i]) * t->ops[i].flops;
        s.seconds = calls_of(t, &t->ops[i]) * t->ops[i].seconds;
        add_shape(shapes, &n, &s);
    }
    qsort(shapes, (size_t)n, sizeof *shapes, larger);
    out->n_shapes = n < MZ_TORCH_SHAPES ? n : MZ_TORCH_SHAPES;
    for (int i = 0; i < out->n_shapes; i++) {
        cases[i] = (mz_bench_case){.op = mz_bench_find("linear")};
        memcpy(cases[i].dim, shapes[i].dim, sizeof cases[i].dim);
        out->share += shapes[i].flops / all;
        out->torch_seconds += shapes[i].seconds;
    }
    const mz_bench_options options = {.cases = cases,
                                      .n_cases = out->n_shapes,
                                      .precisions = precisions,
                                      .n_precisions = MZ_COUNT(precisions),
                                      .rounds = 5};
    const mz_peaks peaks = {0}; // shares of the peak are not needed
    sink s = {.out = out, .shapes = shapes};
    mezzo_status status = mz_bench_kernels(device, &options, &peaks, keep_time, &s);
    for (int p = 0; p < MEZZO_PRECISION_COUNT; p++)
        if (s.counts[p] < out->n_shapes || out->n_shapes == 0)
            out->seconds[p] = NAN;
    mz_free(shapes);
    return status;
}
