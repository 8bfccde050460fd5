#include "study/measure/device_report.h"

#include <math.h>

#include "base/precision.h"
#include "base/scope.h"
#include "runtime/calls.h"

// --- cases ---------------------------------------------------------------------------------------------------------
// Shapes by the meaning of an op's dimensions; the second row of each has odd sizes.
static const struct {
    const char *dims, *shape;
} shapes[] = {
    {"MxNxK", "256x384x512"},     {"MxNxK", "77x133x205"}, {"BxTxHxD", "2x128x4x64"},
    {"BxTxHxD", "2x77x3x40"},     {"ROWSxC", "256x768"},   {"ROWSxC", "77x333"},
    {"ROWSxV", "128x1024"},       {"ROWSxV", "77x1003"},   {"TOKENSxVxC", "256x512x256"},
    {"TOKENSxVxC", "77x301x133"}, {"N", "65536"},
};

static const mezzo_precision precisions[] = {MEZZO_PRECISION_FP32, MEZZO_PRECISION_TF32, MEZZO_PRECISION_BF16,
                                             MEZZO_PRECISION_FP16};

// --- one call on one device ----------------------------------------------------------------------------------------
typedef struct side {
    mezzo_device *device;
    mz_call call;
    void *rng, *scratch;
} side;

static void side_free(side *s) {
    const mz_backend *backend = s->device->backend;
    for (int i = 0; i < MZ_MAX_IN; i++)
        backend->release(s->device, s->call.in[i].data);
    for (int i = 0; i < MZ_MAX_OUT; i++)
        backend->release(s->device, s->call.out[i].data);
    backend->release(s->device, s->rng);
    backend->release(s->device, s->scratch);
}

static size_t bytes_of(const mz_tensor *t) {
    return (size_t)mz_shape_count(&t->shape) * mezzo_dtype_size(t->dtype);
}

static mezzo_status fill(side *s, const mz_bench_call *made, bool output, int slot, mz_tensor *t) {
    const mz_tensor *original = output ? &made->call.out[slot] : &made->call.in[slot];
    if (!mz_present(original))
        return MEZZO_OK;
    const size_t n = (size_t)mz_shape_count(&t->shape), stored = bytes_of(original), bytes = bytes_of(t);
    MZ_SCOPED(mz_free_at) char *host = mz_alloc(2, stored > bytes ? stored : bytes);
    if (host == NULL)
        return MEZZO_ERR_MEMORY;
    mz_bench_fill(made, output, slot, host, stored);
    if (t->dtype != original->dtype) {
        MEZZO_TRY(mezzo_convert(host, original->dtype, host + bytes, t->dtype, n));
        memcpy(host, host + bytes, bytes);
    }
    MEZZO_TRY(s->device->backend->alloc(s->device, bytes + 64, &t->data));
    return s->device->backend->write(s->device, t->data, host, bytes);
}

// Fills the tensors of a call. `exact`: floating-point outputs become FP64, so that the ref device does not round its
// results.
static mezzo_status side_fill(side *s, mezzo_device *device, const mz_bench_call *made, bool exact) {
    *s = (side){.device = device, .call = made->call};
    const mz_rng_state rng = {.seed = 1, .step = 1};
    s->call.attrs.update = &made->update;
    MEZZO_TRY(device->backend->alloc(device, sizeof rng, &s->rng));
    MEZZO_TRY(device->backend->write(device, s->rng, &rng, sizeof rng));
    s->call.rng = s->rng;
    const bool state = mz_op_table[made->call.op].kind == MZ_KIND_STATE;
    for (int i = 0; i < s->call.n_in; i++)
        MEZZO_TRY(fill(s, made, false, i, &s->call.in[i]));
    for (int i = 0; i < s->call.n_out; i++) {
        if (exact && !state && (mz_unit_roundoff(s->call.out[i].dtype) > 0))
            s->call.out[i].dtype = MEZZO_F64;
        MEZZO_TRY(fill(s, made, true, i, &s->call.out[i]));
    }
    return MEZZO_OK;
}

// --- comparison ----------------------------------------------------------------------------------------------------
// Returns the tolerance. The root mean square error of rounding operands and a result is below u of each; the additions
// of a sum of 512 terms err in either direction, which makes less than sqrt(512) u of FP32 where the terms do not
// cancel.
static double tolerance_of(const mz_call *call, int slot) {
    double operand = mz_unit_roundoff(call->numerics.compute);
    for (int i = 0; i < call->n_in; i++)
        if (mz_present(&call->in[i]))
            operand = fmax(operand, mz_unit_roundoff(call->in[i].dtype));
    return operand + mz_unit_roundoff(call->out[slot].dtype) + 23 * 0x1p-24;
}

static double relative_error(const double *result, const double *exact, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (result[i] - exact[i]) * (result[i] - exact[i]);
        size += exact[i] * exact[i];
    }
    return difference == 0 ? 0 : sqrt(difference / size);
}

static mezzo_status read_doubles(const side *s, int slot, double *out) {
    const mz_tensor *t = &s->call.out[slot];
    MZ_SCOPED(mz_free_at) void *host = mz_alloc(1, bytes_of(t));
    if (host == NULL)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(s->device->backend->read(s->device, host, t->data, bytes_of(t)));
    return mezzo_convert(host, t->dtype, out, MEZZO_F64, (size_t)mz_shape_count(&t->shape));
}

static mezzo_status compare(const side *here, const side *exact, mz_check *check) {
    check->tolerance = 1;
    for (int i = 0; i < here->call.n_out; i++) {
        const mz_tensor *t = &here->call.out[i];
        if (!mz_present(t) || !(mz_unit_roundoff(t->dtype) > 0))
            continue;
        const size_t n = (size_t)mz_shape_count(&t->shape);
        double *values;
        MEZZO_TRY(MZ_NEW(values, 2 * n));
        mezzo_status status = read_doubles(here, i, values);
        if (status == MEZZO_OK)
            status = read_doubles(exact, i, values + n);
        const double error = relative_error(values, values + n, n), tolerance = tolerance_of(&here->call, i);
        if (!(error / tolerance <= check->error / check->tolerance)) { // NaN counts as the worst
            check->error = error;
            check->tolerance = tolerance;
        }
        mz_free(values);
        MEZZO_TRY(status);
        if (isnan(error))
            break;
    }
    check->passed = check->error <= check->tolerance;
    return MEZZO_OK;
}

// --- every kernel --------------------------------------------------------------------------------------------------
static mezzo_status check_kernel(mezzo_device *device, const mz_bench_call *made, const side *exact,
                                 mz_prepared *prepared, mz_check *check) {
    side here;
    mezzo_status status;
    MEZZO_TRY_GOTO(status, side_fill(&here, device, made, false));
    here.call.state = prepared->state;
    MEZZO_TRY_GOTO(status, device->backend->alloc(device, prepared->workspace + 64, &here.scratch));
    here.call.workspace = here.scratch;
    MEZZO_TRY_GOTO(status, prepared->kernel->run(device, &here.call));
    MEZZO_TRY_GOTO(status, device->backend->sync(device));
    MEZZO_TRY_GOTO(status, compare(&here, exact, check));
fail:
    side_free(&here);
    return status;
}

typedef struct checking {
    mezzo_device *device, *ref;
    const volatile sig_atomic_t *stop;
    mz_check_fn *visit;
    void *user;
} checking;

static mezzo_status check_call(const checking *c, const mz_bench_case *of, mezzo_precision precision) {
    size_t n = 0;
    mz_bench_call made;
    side exact;
    mz_bench_make(of, precision, &made);
    made.call.attrs.update = &made.update;
    const mz_kernel *const *kernels = c->device->backend->kernels(c->device, made.call.op, &n);
    mezzo_status status = side_fill(&exact, c->ref, &made, true);
    if (status == MEZZO_OK)
        status = mz_run_once(c->ref, &exact.call);
    for (size_t i = 0; i < n && status == MEZZO_OK; i++) {
        mz_prepared prepared;
        const char *refusal = mz_prepare_kernel(c->device, kernels[i], &made.call, &prepared);
        if (refusal == mz_out_of_memory)
            status = MEZZO_ERR_MEMORY;
        if (refusal != NULL)
            continue;
        mz_check check = {.op = of->op->name, .kernel = kernels[i]->name, .precision = precision};
        mz_bench_shape_text(of, check.shape, sizeof check.shape);
        status = check_kernel(c->device, &made, &exact, &prepared, &check);
        mz_prepared_free(&prepared);
        if (status == MEZZO_OK)
            c->visit(c->user, &check);
    }
    side_free(&exact);
    return status;
}

static mezzo_status check_op(const checking *c, const mz_bench_op *op) {
    for (size_t s = 0; s < MZ_COUNT(shapes); s++) {
        mz_bench_case of = {.op = op};
        if (strcmp(shapes[s].dims, op->dims) != 0)
            continue;
        MEZZO_TRY(mz_bench_shape(op, shapes[s].shape, of.dim));
        for (size_t p = 0; p < MZ_COUNT(precisions); p++) {
            bool done = false;
            for (size_t before = 0; before < p; before++)
                done = done || mz_bench_same(&of, precisions[before], precisions[p]);
            if (!done)
                MEZZO_TRY(check_call(c, &of, precisions[p]));
        }
    }
    return MEZZO_OK;
}

mezzo_status mz_check_kernels(mezzo_device *device, const volatile sig_atomic_t *stop, mz_check_fn *visit, void *user) {
    checking c = {.device = device, .stop = stop, .visit = visit, .user = user};
    MEZZO_TRY(mezzo_device_open("ref", 1, &c.ref));
    mezzo_status status = MEZZO_OK;
    for (int i = 0; i < MZ_BENCH_OPS && status == MEZZO_OK; i++) {
        mz_work("kernels beside ref", i, MZ_BENCH_OPS);
        if (stop != NULL && *stop)
            status = mz_fail(MEZZO_ERR_INTERRUPTED, "stopped while kernels were compared");
        else
            status = check_op(&c, &mz_bench_ops[i]);
    }
    mezzo_device_close(c.ref);
    return status;
}
