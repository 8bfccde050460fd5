#include "study/measure/difference.h"

#include <math.h>

#include "base/scope.h"
#include "io/fields.h"
#include "runtime/program.h"
#include "train/folder.h"
#include "train/trial.h"

#define MOST 65536 // numbers kept of a tensor

typedef struct result { // the result of an op
    char op[32], module[128], phase[16];
    int turn; // index among the results with the same op, module and phase
    mezzo_dtype dtype;
    int digits;       // of the significand, in the narrower of the formats in which it is computed and stored
    int64_t count, n; // elements, and how many of them are kept
    float *values;
} result;

typedef struct results {
    result *list;
    size_t n, cap;
} results;

// --- what a run computes -------------------------------------------------------------------------------------------
static bool same_name(const result *a, const result *b) {
    return strcmp(a->op, b->op) == 0 && strcmp(a->module, b->module) == 0 && strcmp(a->phase, b->phase) == 0;
}

static int digits_of(mezzo_dtype dtype) { // of the significand, with the hidden bit
    static const int digits[MEZZO_DTYPE_COUNT + 1] = {[MEZZO_F64] = 53, [MEZZO_F16] = 11,   [MEZZO_TF32] = 11,
                                                      [MEZZO_BF16] = 8, [MEZZO_F8E4M3] = 4, [MEZZO_F8E5M2] = 3};
    return digits[dtype] != 0 ? digits[dtype] : 24;
}

static mezzo_status read_values(mezzo_program *p, const mz_tensor *t, result *r) {
    const size_t bytes = mz_tensor_bytes_stored(t);
    MZ_SCOPED(mz_free_at) char *host = mz_alloc(bytes + 1, 1);
    r->count = mz_shape_count(&t->shape);
    r->n = r->count < MOST ? r->count : MOST;
    r->values = mz_alloc((size_t)r->n + 1, sizeof *r->values);
    MEZZO_TRY(host != NULL && r->values != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY);
    MEZZO_TRY(mezzo_device_sync(p->device));
    MEZZO_TRY(p->device->backend->read(p->device, host, t->data, bytes));
    for (int64_t i = 0; i < r->n; i++)
        MEZZO_TRY(mezzo_convert(host + (size_t)mz_tensor_index(t, i * (r->count / r->n)) * mezzo_dtype_size(t->dtype),
                                t->dtype, &r->values[i], MEZZO_F32, 1));
    return MEZZO_OK;
}

// Keeps, as a program's hook, the first result of the call that has just run.
static mezzo_status keep_result(void *user, mezzo_program *p, size_t call) {
    results *all = user;
    const mz_node *n = &p->c.graph->nodes[p->c.node[call]];
    const mz_tensor t = n->n_out > 0 ? mz_program_tensor(p, n->out[0]) : (mz_tensor){0};
    if (!mz_present(&t) || t.data == NULL || t.dtype >= MEZZO_I64 || mezzo_dtype_size(t.dtype) == 1)
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(all->list, all->cap, all->n + 1));
    result *r = &all->list[all->n];
    const int stored = digits_of(t.dtype), computed = digits_of(n->numerics.compute);
    *r = (result){.dtype = t.dtype, .digits = stored < computed ? stored : computed};
    snprintf(r->op, sizeof r->op, "%s", mz_op_table[n->op].name);
    snprintf(r->module, sizeof r->module, "%s", p->c.graph->modules[n->module]);
    snprintf(r->phase, sizeof r->phase, "%s", mz_phase_name(n->phase));
    for (size_t i = 0; i < all->n; i++)
        r->turn += same_name(&all->list[i], r);
    all->n++;
    return read_values(p, &t, r);
}

// --- comparing -----------------------------------------------------------------------------------------------------
// Returns the largest difference of two tensors in units of the last place, at the largest finite value of either.
static double compare(const float *a, const float *b, int64_t n, int digits, int64_t *where) {
    double amax = 0, most = 0;
    *where = 0;
    for (int64_t i = 0; i < n; i++) {
        amax = isfinite(a[i]) ? fmax(amax, fabs((double)a[i])) : amax;
        amax = isfinite(b[i]) ? fmax(amax, fabs((double)b[i])) : amax;
    }
    const double ulp = amax > 0 ? ldexp(1, ilogb(amax) - digits + 1) : 1;
    for (int64_t i = 0; i < n; i++) {
        const bool same = a[i] == b[i] || (isnan(a[i]) && isnan(b[i]));
        const bool finite = isfinite(a[i]) && isfinite(b[i]);
        const double by = same ? 0 : finite ? fabs((double)a[i] - (double)b[i]) / ulp : (double)INFINITY;
        if (by > most) {
            most = by;
            *where = i;
        }
    }
    return most;
}

static const result *partner_of(const results *all, const result *r) {
    for (size_t i = 0; i < all->n; i++)
        if (same_name(&all->list[i], r) && all->list[i].turn == r->turn && all->list[i].count == r->count)
            return &all->list[i];
    return NULL;
}

static void compare_results(const results both[2], double ulp, mz_difference *out) {
    int digits = 53; // of the narrowest format so far, because what was rounded to it keeps that error
    for (size_t i = 0; i < both[0].n; i++) {
        const result *a = &both[0].list[i], *b = partner_of(&both[1], a);
        int64_t where;
        if (b == NULL)
            continue;
        out->compared++;
        digits = a->digits < digits ? a->digits : digits;
        digits = b->digits < digits ? b->digits : digits;
        const double by = compare(a->values, b->values, a->n, digits, &where);
        if (out->found || !(by > ulp))
            continue;
        out->found = true;
        out->by = by;
        out->element = where * (a->count / a->n);
        out->elements = a->count;
        out->value[0] = (double)a->values[where];
        out->value[1] = (double)b->values[where];
        snprintf(out->op, sizeof out->op, "%s", a->op);
        snprintf(out->module, sizeof out->module, "%s", a->module);
        snprintf(out->phase, sizeof out->phase, "%s", a->phase);
        snprintf(out->dtype[0], sizeof out->dtype[0], "%s", mezzo_dtype_name(a->dtype));
        snprintf(out->dtype[1], sizeof out->dtype[1], "%s", mezzo_dtype_name(b->dtype));
    }
    out->unmatched = (int)(both[0].n + both[1].n) - 2 * out->compared;
}

static mezzo_status compare_weights(const mezzo_params *a, const mezzo_params *b, mz_difference *out) {
    mezzo_status status = MEZZO_OK;
    bool same = mezzo_params_count(a) == mezzo_params_count(b);
    for (int i = 0; same && i < mezzo_params_count(a); i++)
        same = strcmp(mezzo_params_name(a, i), mezzo_params_name(b, i)) == 0 && a->list[i].count == b->list[i].count;
    if (!same)
        return mz_fail(MEZZO_ERR_INVALID,
                       "the two runs' models differ in their parameters: there is nothing to compare");
    for (int i = 0; i < mezzo_params_count(a) && status == MEZZO_OK; i++) {
        const size_t n = (size_t)a->list[i].count;
        float *x = mz_alloc(2 * n, sizeof *x);
        status = x != NULL ? mezzo_params_read(a, i, x) : MEZZO_ERR_MEMORY;
        if (status == MEZZO_OK)
            status = mezzo_params_read(b, i, x + n);
        out->weights_of++;
        if (status == MEZZO_OK && memcmp(x, x + n, n * sizeof *x) != 0 && out->weights++ == 0)
            snprintf(out->weight, sizeof out->weight, "%s", mezzo_params_name(a, i));
        mz_free(x);
    }
    return status;
}

// --- the two runs --------------------------------------------------------------------------------------------------
typedef struct side {
    mezzo_config *config;
    mz_trial *trial;
    uint32_t batch; // CRC32C of the drawn batch
} side;

static mezzo_status open_side(const mz_difference_options *o, int which, side *s) {
    MEZZO_TRY(mz_run_folder_config(o->runs[which], &s->config));
    if (o->device != NULL)
        MEZZO_TRY(mezzo_config_set(s->config, "device.name", o->device, "diff"));
    MEZZO_TRY(mezzo_config_set(s->config, "train.sample_every", "-1", "diff"));
    MEZZO_TRY(mezzo_config_set(s->config, "train.resume", "", "diff"));
    return mz_trial_open(NULL, s->config, o->stop, &s->trial);
}

static mezzo_status run_side(side *s, uint64_t number, results *out) {
    MEZZO_TRY(mz_trial_replay(s->trial, number, keep_result, out));
    const mz_examples *examples = mz_trial_examples(s->trial);
    for (int i = 0; i < examples->n; i++)
        s->batch = mz_crc32c(s->batch, examples->input[i].data, examples->input[i].bytes);
    return MEZZO_OK;
}

static mezzo_status find(const mz_difference_options *o, side sides[2], results both[2], mz_difference *out) {
    int64_t step;
    for (int i = 0; i < 2; i++) {
        MEZZO_TRY(open_side(o, i, &sides[i]));
        MEZZO_TRY(mz_trial_load(sides[i].trial, o->runs[i], &step));
    }
    MEZZO_TRY(compare_weights(mz_trial_params(sides[0].trial), mz_trial_params(sides[1].trial), out));
    MEZZO_TRY(mz_trial_load(sides[1].trial, o->runs[0], &step));
    out->step = step - 1;
    const uint64_t number = mz_trial_position(sides[0].trial);
    for (int i = 0; i < 2; i++)
        MEZZO_TRY(run_side(&sides[i], number, &both[i]));
    if (sides[0].batch != sides[1].batch)
        return mz_fail(MEZZO_ERR_INVALID, "the two runs draw different batches: their data, batch size or seed differ");
    compare_results(both, o->ulp, out);
    return MEZZO_OK;
}

mezzo_status mz_difference_find(const mz_difference_options *o, mz_difference *out) {
    side sides[2] = {0};
    results both[2] = {0};
    *out = (mz_difference){0};
    mezzo_status status = find(o, sides, both, out);
    for (int i = 0; i < 2; i++) {
        mz_trial_close(sides[i].trial);
        mezzo_config_free(sides[i].config);
        for (size_t k = 0; k < both[i].n; k++)
            mz_free(both[i].list[k].values);
        mz_free(both[i].list);
    }
    return status;
}

static const mz_row_field fields[] = {
    {MZ_FIELD(mz_difference, step), "checkpoint_step"},
    {MZ_FIELD(mz_difference, weights), "weights_that_differ"},
    {MZ_FIELD(mz_difference, weights_of), "weights"},
    {MZ_FIELD(mz_difference, weight), "first_weight", .flags = MZ_NULL},
    {MZ_FIELD(mz_difference, compared), "results_compared"},
    {MZ_FIELD(mz_difference, unmatched), "results_of_one_run_only"},
    {MZ_FIELD(mz_difference, found), "found"},
    {MZ_FIELD(mz_difference, op), "op", .flags = MZ_NULL},
    {MZ_FIELD(mz_difference, module), "module", .flags = MZ_NULL},
    {MZ_FIELD(mz_difference, phase), "phase", .flags = MZ_NULL},
    {MZ_FIELD(mz_difference, by), "ulp"},
    {MZ_FIELD(mz_difference, element), "element"},
};

void mz_difference_text(const mz_difference *d, double ulp, mz_text *t) {
    if (d->weights > 0)
        mz_text_addf(t, "weights   %d of %d differ between the checkpoints, first %s\n", d->weights, d->weights_of,
                     d->weight);
    else
        mz_text_addf(t, "weights   all %d are equal in both checkpoints\n", d->weights_of);
    mz_text_addf(t, "results   %d compared, from the first run's weights after step %lld\n", d->compared,
                 (long long)d->step);
    if (!d->found) {
        mz_text_addf(t, "None differs by more than %g ulp.\n", ulp);
        return;
    }
    mz_text_tell(
        t,
        "first to differ by more than %g ulp: %s of %s (%s), stored in %s and %s: by %.4g ulp at element %lld of "
        "%lld, %.9g and %.9g",
        ulp, d->op, d->module[0] != '\0' ? d->module : "the model", d->phase, d->dtype[0], d->dtype[1], d->by,
        (long long)d->element, (long long)d->elements, d->value[0], d->value[1]);
}

json_t *mz_difference_json(const mz_difference *d) {
    return MZ_OBJECT(fields, d);
}
