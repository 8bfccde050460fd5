// Holds the defaults of optimizers' options, and refuses values that are not allowed.
#include <math.h>

#include "optim/optimizer.h"

mezzo_optimizer_options mezzo_optimizer_defaults(void) {
    mezzo_optimizer_options o = {
        .schedule = {.kind = MEZZO_LR_CONSTANT, .lr = 1e-3, .min_lr = 0, .power = 1},
        .weight_decay = 0.01,
        .lr_factor = 1,
    };
    mezzo_optimizer_set_kind(&o, MEZZO_ADAMW);
    return o;
}

bool mz_optimizer_split_matrices(mezzo_optimizer_options *o, mezzo_optimizer_options *matrices) {
    static const char *const patterns[] = {MEZZO_MATRICES};
    if (!mz_kinds[o->kind].reads.orthogonal)
        return false;
    *matrices = *o;
    matrices->patterns = patterns;
    matrices->n_patterns = 1;
    mezzo_optimizer_options usual = *o;
    mezzo_optimizer_set_kind(&usual, o->kind); // the options that a run sets are AdamW's
    matrices->beta2 = usual.beta2;
    matrices->eps = usual.eps;
    o->kind = MEZZO_ADAMW;
    return true;
}

static mezzo_status check_at_least(const char *name, double value, double least) {
    if (!(value >= least) || isinf(value))
        return mz_fail(MEZZO_ERR_INVALID, "optimizer: %s is %g: use a finite number of at least %g", name, value,
                       least);
    return MEZZO_OK;
}

mezzo_status mz_check_clip(double max_norm) {
    if (!(max_norm > 0) || isinf(max_norm))
        return mz_fail(MEZZO_ERR_INVALID, "clip: the largest norm is %g: use a finite number above 0", max_norm);
    return MEZZO_OK;
}

mezzo_status mz_check_schedule(const mezzo_schedule *s) {
    MEZZO_TRY(check_at_least("lr", s->lr, 0));
    if ((int)s->kind < MEZZO_LR_CONSTANT || s->kind > MEZZO_LR_POLYNOMIAL)
        return mz_fail(MEZZO_ERR_INVALID, "optimizer: schedule kind %d does not exist", (int)s->kind);
    if (s->warmup < 0)
        return mz_fail(MEZZO_ERR_INVALID, "optimizer: warmup is %lld steps: use 0 or more", (long long)s->warmup);
    if (s->kind == MEZZO_LR_CONSTANT)
        return MEZZO_OK;
    MEZZO_TRY(check_at_least("min_lr", s->min_lr, 0));
    if (s->steps <= 0)
        return mz_fail(MEZZO_ERR_INVALID, "optimizer: the schedule has %lld steps: use 1 or more", (long long)s->steps);
    if (s->kind == MEZZO_LR_POLYNOMIAL)
        MEZZO_TRY(check_at_least("power", s->power, 0));
    return MEZZO_OK;
}

static mezzo_status check_beta(const char *name, double beta) {
    if (!(beta >= 0 && beta < 1))
        return mz_fail(MEZZO_ERR_INVALID, "optimizer: %s is %g: use 0 <= %s < 1", name, beta, name);
    return MEZZO_OK;
}

static mezzo_status check_moments(const mezzo_optimizer_options *o) {
    if ((int)o->moments < MEZZO_MOMENTS_FP32 || o->moments > MEZZO_MOMENTS_INT8)
        return mz_fail(MEZZO_ERR_INVALID,
                       "optimizer: moments %d do not exist: use MEZZO_MOMENTS_FP32, MEZZO_MOMENTS_BF16 or "
                       "MEZZO_MOMENTS_INT8",
                       (int)o->moments);
    return MEZZO_OK;
}

static mezzo_status check_orthogonal(const mezzo_orthogonal *o) {
    if ((unsigned)o->format > MEZZO_ORTHOGONAL_FP32 || (unsigned)o->coefficients > MEZZO_ORTHOGONAL_POLAR_EXPRESS ||
        (unsigned)o->scale > MEZZO_SCALE_ORIGINAL)
        return mz_fail(MEZZO_ERR_INVALID,
                       "optimizer: orthogonal has a format, coefficients or a scale that do not exist");
    if (o->steps < 1 || o->steps > 10)
        return mz_fail(MEZZO_ERR_INVALID, "optimizer: %d Newton-Schulz steps: use 1 to 10", o->steps);
    return MEZZO_OK;
}

// Checks the options of an optimizer or a group that its kind reads.
static mezzo_status check_rule(const mezzo_optimizer_options *o) {
    if ((size_t)o->kind >= MEZZO_OPTIMIZER_KINDS)
        return mz_fail(MEZZO_ERR_INVALID, "optimizer: kind %d does not exist: use one of optimizers.def, MEZZO_ADAMW …",
                       (int)o->kind);
    const mz_kind *kind = &mz_kinds[o->kind];
    MEZZO_TRY(check_at_least("weight_decay", o->weight_decay, 0));
    if (kind->reads.beta1)
        MEZZO_TRY(check_beta("beta1", o->beta1));
    if (kind->reads.beta2)
        MEZZO_TRY(check_beta("beta2", o->beta2));
    if (kind->reads.eps)
        MEZZO_TRY(check_at_least("eps", o->eps, 0));
    if (kind->reads.eps && !(mezzo_round_to(o->eps, MEZZO_F32) > 0)) // formulas divide by √v + eps, and v may be 0
        return mz_fail(MEZZO_ERR_INVALID,
                       "optimizer: eps is %g, which is 0 in fp32: use a number above 0, such as 1e-8", o->eps);
    if (kind->reads.momentum)
        MEZZO_TRY(check_at_least("momentum", o->momentum, 0));
    if (kind->reads.dampening && !isfinite(o->dampening))
        return mz_fail(MEZZO_ERR_INVALID, "optimizer: dampening is %g: use a finite number", o->dampening);
    if (kind->reads.orthogonal)
        MEZZO_TRY(check_orthogonal(&o->orthogonal));
    if (kind->reads.nesterov && o->nesterov && (o->momentum <= 0 || o->dampening != 0)) // as torch.optim.SGD requires
        return mz_fail(MEZZO_ERR_INVALID, "optimizer: Nesterov momentum needs a momentum above 0 and no dampening");
    return MEZZO_OK;
}

mezzo_status mz_check_optimizer(const mezzo_optimizer_options *o) {
    MEZZO_TRY(check_moments(o));
    MEZZO_TRY(mz_check_schedule(&o->schedule));
    MEZZO_TRY(check_beta("ema", o->ema));
    MEZZO_TRY(check_rule(o));
    if (o->n_groups < 0 || o->n_groups >= MZ_GROUPS || (o->n_groups > 0 && o->groups == NULL))
        return mz_fail(MEZZO_ERR_INVALID, "optimizer: %d groups: use 0 to %d", o->n_groups, MZ_GROUPS - 1);
    for (int g = 0; g < o->n_groups; g++) {
        MEZZO_TRY(check_rule(&o->groups[g]));
        MEZZO_TRY(check_at_least("a group's lr_factor", o->groups[g].lr_factor, 0));
    }
    return MEZZO_OK;
}
