// Predicts a step's time in another precision by how much longer or shorter forward and backward take, run again in it:
//     device(f) = device + replay(f) − replay(now)
//     host(f)   = host + launches(f) − launches(now)
//     step(f)   = max(device(f), host(f)) + what the step takes beyond both today.
#include "study/audit/cost.h"

#include <math.h>
#include <stdlib.h>

#include "study/measure/kernels.h"

enum { FP32, TF32, BF16, FP16, FP8 }; // FP8: products that have such a kernel; other operations are in BF16

static const double BOUND_BY_DEVICE = 0.9; // a step is bound by the device where the host's launches take less than
                                           // this share of its time
static const double UNSTEADY = 0.15;       // a prediction is unsteady where its bounds are further away than this share
                                           // of it
// Bounds of the error: a processor's time for the same work differs between processes, and a replay's own Python adds
// to it.
static const double HOST_LESS = 0.35, HOST_MORE = 0.2, DEVICE_OFF = 0.05;

static int format_of(mezzo_dtype dtype, bool tf32) {
    return dtype == MEZZO_BF16 ? BF16 : dtype == MEZZO_F16 ? FP16 : dtype == MEZZO_F32 ? (tf32 ? TF32 : FP32) : -1;
}

// Returns the format of the first operand that is a float.
static int format_now(const mz_torch_trace *t, const mz_torch_op *op) {
    const bool tf32 = t->tf32 && t->capability >= 80;
    for (int i = 0; i < op->n_inputs; i++)
        if (format_of(op->inputs[i].dtype, tf32) >= 0)
            return format_of(op->inputs[i].dtype, tf32);
    return -1;
}

static double calls_of(const mz_torch_trace *t, const mz_torch_op *op) {
    return (double)op->count / (t->steps > 0 ? t->steps : 1);
}

// Returns the format of most of the forward products' FLOPs, which the program uses today, whatever it asks for.
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

static double positive(double x) { // x may be NaN
    return x > 0 ? x : 0;
}

static double update_seconds(const mz_torch_trace *t) {
    double sum = 0;
    for (size_t i = 0; i < t->n_ops; i++)
        if (t->ops[i].phase == MZ_TORCH_UPDATE)
            sum += calls_of(t, &t->ops[i]) * positive(t->ops[i].seconds);
    return sum;
}

// Holds a step's times: of the device, of the host, and beyond both. A program that waits for a result within its step
// has that wait in its launches, so launches count only where they are clearly less than the step.
typedef struct times {
    double device, host, rest;
} times;

static times times_of(const mz_torch_trace *t, double step) {
    const bool gpu = strcmp(t->device, "cuda") == 0;
    const double replayed = positive(t->replay_now.seconds);
    if (!gpu)
        return (times){.device = step};
    const double device = fmin(step, replayed + update_seconds(t));
    const double launches =
        positive(t->launch_seconds) > 0 ? t->launch_seconds : positive(t->replay_now.launch_seconds);
    const bool waits = device > BOUND_BY_DEVICE * step && launches > BOUND_BY_DEVICE * step;
    const double host = fmin(step, waits ? positive(t->replay_now.launch_seconds) : launches);
    return (times){device, host, step - fmax(device, host)};
}

// Predicts with the factors `a` on the time of the step's replay and `b` on the time of the other one.
static double predict(const mz_torch_trace *t, const times *now, const mz_torch_replay *then, double a, double b) {
    const double device = now->device + b * then->seconds - a * t->replay_now.seconds;
    if (strcmp(t->device, "cuda") != 0)
        return device;
    const double host = now->host + b * positive(then->launch_seconds) - a * positive(t->replay_now.launch_seconds);
    return fmax(device, host) + now->rest;
}

// Predicts from the shortest runs. The bounds combine one replay's shortest run and the other's median, or are the
// usual error of such predictions if that is larger.
static mz_torch_cost cost_in(const mz_torch_trace *t, const times *now, const mz_torch_replay *then) {
    const double a = 1 + positive(t->replay_now.spread), b = 1 + positive(then->spread);
    const double seconds = predict(t, now, then, 1, 1), launched = then->launch_seconds - t->replay_now.launch_seconds;
    const bool on_device =
        now->device + then->seconds - t->replay_now.seconds > now->host + launched; // no number is NaN here
    const double less = on_device ? DEVICE_OFF : HOST_LESS, more = on_device ? DEVICE_OFF : HOST_MORE;
    return (mz_torch_cost){.seconds = seconds,
                           .least = fmin(predict(t, now, then, a, 1), (1 - less) * seconds),
                           .most = fmax(predict(t, now, then, 1, b), (1 + more) * seconds)};
}

void mz_torch_costs_predict(const mz_torch_trace *t, mz_torch_costs *out) {
    *out = (mz_torch_costs){.with_hooks = isnan(t->step_seconds)};
    const int now = format_of_program(t);
    out->step = out->with_hooks ? t->followed_seconds : t->step_seconds;
    const times today = times_of(t, out->step);
    out->launch_bound = t->replay_now.seconds > 0 && today.host > today.device;
    const bool timed = t->replay_now.seconds > 0 && !out->with_hooks;
    for (int f = 0; f < MZ_TORCH_FORMATS; f++) {
        mz_torch_cost *c = &out->rows[f];
        *c = (mz_torch_cost){.seconds = out->step, .least = out->step, .most = out->step, .known = true};
        if (f != now) {
            *c = timed && t->replay[f].seconds > 0 ? cost_in(t, &today, &t->replay[f]) : (mz_torch_cost){0};
            c->known = c->least > 0;
            out->unsteady |= c->known && fmax(c->most - c->seconds, c->seconds - c->least) > UNSTEADY * c->seconds;
        }
        c->format = mz_torch_formats[f];
        c->now = f == now;
        c->speedup = out->step / c->seconds;
    }
}

// --- Mezzo's kernels -----------------------------------------------------------------------------------------------
typedef struct shape {
    int64_t dim[MZ_BENCH_DIMS]; // M×N×K; batches are part of M
    double flops, seconds;      // sums over a step
} shape;

// Finds the shape of a product; a batched product with a matrix for each batch is no linear layer.
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
