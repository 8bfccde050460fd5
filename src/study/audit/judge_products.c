// Checks the rules about operations: which format each had, the region that it was in, and its shape.
#include <math.h>

#include "study/audit/judge.h"

// Products with smaller shares of the forward FLOPs are not reported: position encodings, routers and gates are FP32 on
// purpose, most of all where a region is disabled for them.
static const double LEAST_SHARE = 0.01, LEAST_DISABLED_SHARE = 0.05;

static double flops_of(const mz_torch_op *op) {
    return op->flops * (double)op->count;
}

static const mz_torch_region *region_of(const mz_torch_trace *t, const mz_torch_op *op) {
    return op->region >= 0 ? &t->regions[op->region] : NULL;
}

static bool asks_for_16_bits(const mz_torch_region *r) {
    return r->enabled && (strcmp(r->dtype, "bf16") == 0 || strcmp(r->dtype, "fp16") == 0);
}

static bool is_forward_product(const mz_torch_op *op) {
    return op->phase == MZ_TORCH_FORWARD && mz_torch_is_product(op) && op->flops > 0;
}

static void sum_flops(mz_judge *j) {
    const mz_torch_trace *t = j->trace;
    double all = 0;
    j->forward = j->low = 0;
    for (size_t i = 0; i < t->n_ops; i++) {
        const mz_torch_op *op = &t->ops[i];
        all += flops_of(op);
        j->forward += is_forward_product(op) ? flops_of(op) : 0;
        j->low += is_forward_product(op) && mz_torch_is_low(op->output) ? flops_of(op) : 0;
    }
    const double steps = t->steps > 0 ? t->steps : 1;
    if (t == j->traces) { // the first rank represents all
        j->out->flops = all / steps;
        j->out->low_share = j->forward > 0 ? j->low / j->forward : 0;
    }
    for (size_t i = 0; i < t->n_regions && j->out->asked == MEZZO_DTYPE_COUNT; i++)
        if (asks_for_16_bits(&t->regions[i]))
            j->out->asked = strcmp(t->regions[i].dtype, "bf16") == 0 ? MEZZO_BF16 : MEZZO_F16;
}

// --- products that stayed wide -------------------------------------------------------------------------------------
typedef enum reason {
    NONE,
    OUTSIDE,
    DISABLED,
    OTHER_DEVICE,
    WIDER_INPUT,
    IN_PLACE,
    NO_FUSED_KERNEL,
    NOT_LISTED
} reason;

// Returns whether it is the FP32 softmax of scaled_dot_product_attention without a fused kernel, which is two products
// and this softmax.
static bool is_plain_attention(const mz_torch_trace *t, const mz_torch_op *op) {
    for (size_t i = 0; i < t->n_ops; i++)
        if (strcmp(t->ops[i].name, "aten._safe_softmax") == 0 && t->ops[i].at == op->at &&
            t->ops[i].region == op->region)
            return true;
    return false;
}

static reason reason_of(const mz_torch_trace *t, const mz_torch_op *op) {
    const mz_torch_region *r = region_of(t, op);
    if (mz_torch_is_low(op->output) || op->output == MEZZO_DTYPE_COUNT)
        return NONE;
    if (r == NULL)
        return OUTSIDE;
    if (!r->enabled)
        return DISABLED;
    if (!asks_for_16_bits(r))
        return NONE;
    if (strcmp(r->device, t->device) != 0)
        return OTHER_DEVICE;
    if (op->output == MEZZO_F64)
        return WIDER_INPUT;
    return op->in_place || op->into ? IN_PLACE : is_plain_attention(t, op) ? NO_FUSED_KERNEL : NOT_LISTED;
}

static const char *const reason_text[] = {
    [OUTSIDE] = "no autocast region is open there",
    [DISABLED] = "a region with enabled=False is open there",
    [OTHER_DEVICE] = "the region is for another type of device",
    [WIDER_INPUT] = "autocast leaves FP64 numbers as they are",
    [IN_PLACE] = "autocast leaves in-place and out= forms as they are",
    [NO_FUSED_KERNEL] = "scaled_dot_product_attention found no fused kernel and computes in FP32",
    [NOT_LISTED] =
        "the region does not reach it: a custom autograd function, or an operation that autocast does not list",
};
static const char *const reason_change[] = {
    [OUTSIDE] = "move these lines into the autocast region",
    [DISABLED] = "remove the inner region, or keep only what needs FP32 in it",
    [OTHER_DEVICE] = "open the region for the device of the tensors: torch.autocast(device_type=tensor.device.type)",
    [WIDER_INPUT] = "convert the FP64 tensor to FP32 where it is made (NumPy's numbers are FP64)",
    [IN_PLACE] = "use the form that returns its result: torch.addmm(c, a, b), torch.mm(a, b)",
    [NO_FUSED_KERNEL] =
        "let a fused kernel serve it: no dropout on a CPU, no mask that it refuses, a head width that it takes",
    [NOT_LISTED] = "decorate forward with torch.amp.custom_fwd and let its products see 16-bit tensors",
};

static void judge_wide(mz_judge *j) {
    const mz_torch_trace *t = j->trace;
    if (j->out->asked == MEZZO_DTYPE_COUNT)
        return;
    for (size_t i = 0; i < t->n_ops; i++) {
        const mz_torch_op *op = &t->ops[i];
        const reason why = is_forward_product(op) ? reason_of(t, op) : NONE;
        double here = 0;
        int64_t calls = 0;
        if (why == NONE || ((why == OUTSIDE || why == OTHER_DEVICE) && j->low == 0)) // the region covers nothing then
            continue;
        for (size_t k = 0; k < t->n_ops; k++)
            if (t->ops[k].user == op->user && t->ops[k].at == op->at && is_forward_product(&t->ops[k]) &&
                reason_of(t, &t->ops[k]) == why) {
                here += flops_of(&t->ops[k]);
                calls += t->ops[k].count;
            }
        if (here < (why == DISABLED ? LEAST_DISABLED_SHARE : LEAST_SHARE) * j->forward)
            continue;
        mz_judge_add_inner(j, MZ_FINDING_WIDE_PRODUCT, op->user, op->at, reason_change[why],
                           "%s ran in %s in %lld call%s, %.0f %% of the forward FLOPs: %s", op->name,
                           op->output == MEZZO_F32 && t->tf32 && j->capability >= 80 ? "tf32"
                                                                                     : mz_torch_dtype_name(op->output),
                           (long long)calls, calls == 1 ? "" : "s", 100 * here / j->forward, reason_text[why]);
    }
}

static void judge_regions(mz_judge *j) {
    const mz_torch_trace *t = j->trace;
    int64_t outside = 0, low = 0;
    for (size_t i = 0; i < t->n_ops; i++)
        if (is_forward_product(&t->ops[i])) {
            low += mz_torch_is_low(t->ops[i].output) ? t->ops[i].count : 0;
            outside += t->ops[i].region < 0 && !mz_torch_is_low(t->ops[i].output) ? t->ops[i].count : 0;
        }
    for (size_t i = 0; i < t->n_regions; i++) {
        const mz_torch_region *r = &t->regions[i];
        if (!asks_for_16_bits(r) || r->low_products > 0)
            continue;
        if (strcmp(r->device, t->device) != 0 && r->products > 0)
            mz_judge_add(j, MZ_FINDING_EMPTY_REGION, r->at, reason_change[OTHER_DEVICE],
                         "entered %lld times for \"%s\", but its %lld products are on \"%s\"", (long long)r->entered,
                         r->device, (long long)r->products, t->device);
        else if (low == 0 && outside > 0)
            mz_judge_add(j, MZ_FINDING_EMPTY_REGION, r->at, NULL,
                         "entered %lld times with no product in it, and %lld products in FP32 outside",
                         (long long)r->entered, (long long)outside);
    }
}

// --- operations that need FP32 -------------------------------------------------------------------------------------
static void judge_narrow(mz_judge *j) {
    static const struct {
        mz_torch_class class;
        mz_finding_kind rule;
        bool bf16; // it occurs in that format, too
    } rules[] = {{MZ_TORCH_LOSS, MZ_FINDING_LOW_LOSS, true},
                 {MZ_TORCH_NORM, MZ_FINDING_LOW_NORM, false},
                 {MZ_TORCH_SOFTMAX, MZ_FINDING_LOW_SOFTMAX, false}};
    for (size_t i = 0; i < j->trace->n_ops; i++) {
        const mz_torch_op *op = &j->trace->ops[i];
        for (size_t k = 0; k < MZ_COUNT(rules) && op->phase == MZ_TORCH_FORWARD && op->n_inputs > 0; k++)
            if (op->class == rules[k].class &&
                (op->inputs[0].dtype == MEZZO_F16 || (rules[k].bf16 && op->inputs[0].dtype == MEZZO_BF16)))
                mz_judge_add_inner(j, rules[k].rule, op->user, op->at, NULL, "%s of %s numbers, %lld call%s", op->name,
                                   mz_torch_dtype_name(op->inputs[0].dtype), (long long)op->count,
                                   op->count == 1 ? "" : "s");
    }
}

// --- casts, averages -----------------------------------------------------------------------------------------------
static void judge_casts(mz_judge *j) {
    for (size_t i = 0; i < j->trace->n_ops; i++) {
        const mz_torch_op *op = &j->trace->ops[i];
        if (op->returned > 0 && op->n_inputs > 0 && op->inputs[0].rank > 0)
            mz_judge_add_inner(j, MZ_FINDING_CAST_BACK, op->user, op->at, NULL,
                               "%lld conversions from %s back to %s undo the one before, each of %.0f elements",
                               (long long)op->returned, mz_torch_dtype_name(op->inputs[0].dtype),
                               mz_torch_dtype_name(op->output), mz_torch_numel(&op->inputs[0]));
    }
}

// Returns the share of the new weights in an average: lerp's weight, or 1 minus a factor of mul_.
static double share_of(const mz_torch_op *op) {
    return strstr(op->name, "lerp") != NULL ? op->scalar : 1 - op->scalar;
}

static void judge_averages(mz_judge *j) {
    for (size_t i = 0; i < j->trace->n_ops; i++) {
        const mz_torch_op *op = &j->trace->ops[i];
        const double share = op->class == MZ_TORCH_AVERAGE ? share_of(op) : NAN;
        if (op->phase != MZ_TORCH_FORWARD || op->n_inputs == 0 || !mz_torch_is_low(op->inputs[0].dtype) ||
            op->inputs[0].rank == 0 || !(share > 0 && share <= 0.1))
            continue;
        mz_judge_add(
            j, MZ_FINDING_LOW_AVERAGE, op->user, NULL,
            "%s on %s tensors gives each step a share of %.3g; half a unit in the last place is %.3g of a weight",
            op->name, mz_torch_dtype_name(op->inputs[0].dtype), share, mz_unit_roundoff(op->inputs[0].dtype));
    }
}

// --- shapes --------------------------------------------------------------------------------------------------------
static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

typedef struct axis {
    const char *what;
    int64_t size;
} axis;

// Finds the axes along which rows of 16-bit numbers lie in memory.
static int axes_of(const mz_torch_op *op, axis out[2]) {
    const mz_torch_shape *a = &op->inputs[op->a], *b = &op->inputs[op->b];
    switch (op->class) {
    case MZ_TORCH_PRODUCT:
        out[0] = (axis){"K", a->dim[a->rank - 1]};
        out[1] = (axis){"N", b->dim[b->rank - 1]};
        return 2;
    case MZ_TORCH_CONVOLUTION:
        out[0] = (axis){"input channels", b->dim[1] > 4 ? b->dim[1] : 8}; // pictures have few channels, which no kernel
                                                                          // pads to be faster
        out[1] = (axis){"output channels", b->dim[0]};
        return 2;
    case MZ_TORCH_ATTENTION:
        out[0] = (axis){"head width", a->dim[a->rank - 1]};
        return 1;
    default:
        return 0;
    }
}

static void judge_shapes(mz_judge *j) {
    const mz_torch_trace *t = j->trace;
    for (size_t i = 0; i < t->n_ops && j->capability >= 70; i++) {
        const mz_torch_op *op = &t->ops[i];
        axis axes[2];
        if (!is_forward_product(op) || !mz_torch_is_low(op->output) || flops_of(op) < LEAST_SHARE * j->forward)
            continue;
        const bool grouped = op->class == MZ_TORCH_CONVOLUTION && op->inputs[op->b].dim[1] != op->inputs[op->a].dim[1];
        const int n = grouped ? 0 : axes_of(op, axes);
        for (int k = 0; k < n; k++) {
            const int64_t size = axes[k].size, least = round_up(size, 8), whole = round_up(size, 64);
            char change[200];
            if (size % 8 == 0 || size <= 1)
                continue;
            snprintf(change, sizeof change,
                     whole != least && size >= 1024 ? "pad %s from %lld to %lld, or to %lld for whole tiles of 64"
                                                    : "pad %s from %lld to %lld",
                     axes[k].what, (long long)size, (long long)least, (long long)whole);
            mz_judge_add_inner(j, MZ_FINDING_OFF_GRID, op->user, op->at, change,
                               "%s in %s has %s = %lld, no multiple of 8; %.0f %% of the forward FLOPs", op->name,
                               mz_torch_dtype_name(op->output), axes[k].what, (long long)size,
                               100 * flops_of(op) / j->forward);
        }
    }
}

// --- determinism ---------------------------------------------------------------------------------------------------
static void judge_determinism(mz_judge *j) {
    const mz_torch_trace *t = j->trace;
    const bool asked = t->deterministic || t->cudnn_deterministic;
    if (asked && t->cudnn_benchmark)
        mz_judge_add(j, MZ_FINDING_NOT_DETERMINISTIC, t->benchmark_at, "set torch.backends.cudnn.benchmark = False",
                     "cudnn.benchmark is on: cuDNN chooses kernels by their times, which differ from run to run");
    if (!asked || (t->deterministic && !t->warn_only) || j->capability == 0)
        return;
    for (size_t i = 0; i < t->n_ops; i++)
        if (t->ops[i].class == MZ_TORCH_ATOMIC && t->ops[i].phase != MZ_TORCH_UPDATE)
            mz_judge_add_inner(j, MZ_FINDING_NOT_DETERMINISTIC, t->ops[i].user, t->ops[i].at,
                               "call torch.use_deterministic_algorithms(True) and set CUBLAS_WORKSPACE_CONFIG=:4096:8",
                               "%s adds on a GPU in an order that changes from run to run", t->ops[i].name);
}

void mz_judge_products(mz_judge *j) {
    sum_flops(j);
    judge_wide(j);
    judge_regions(j);
    judge_narrow(j);
    judge_casts(j);
    judge_averages(j);
    judge_shapes(j);
    judge_determinism(j);
}
