// Shows which of a model's gradients FP16 would lose: it counts one step of training in FP32, tensor by tensor.
#include <stdlib.h>
#include <unistd.h>

#include "io/fields.h"
#include "study/lab/lab.h"
#include "train/folder.h"
#include "backend/inspect.h"

// --- the counted step -----------------------------------------------------------------------------------------------
static mezzo_status configure(const mz_underflow_options *o, const char *folder, const char *text,
                              mezzo_config *config) {
    char threads[16], seed[32];
    const char *const small[][2] = {{"model.name", "gpt2"},     {"model.layers", "2"},        {"model.heads", "2"},
                                    {"model.d_model", "64"},    {"model.seq_len", "64"},      {"train.batch_size", "8"},
                                    {"data.tokenizer", "byte"}, {"model.vocab", "256"},       {"optimizer.lr", "3e-3"},
                                    {"schedule.warmup", "2"},   {"schedule.kind", "constant"}};
    snprintf(threads, sizeof threads, "%d", o->threads);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
    const char *const always[][2] = {{"amp.precision", o->precision != NULL ? o->precision : "fp32"},
                                     {"amp.scaler.enabled", "false"},
                                     {"train.histograms_every", "1"},
                                     {"train.sample_every", "-1"},
                                     {"device.name", o->device != NULL ? o->device : "cpu"},
                                     {"device.threads", threads}};
    if (folder != NULL) {
        MEZZO_TRY(mezzo_config_load(config, mz_path_of("%s/config.yaml", folder).text));
    } else {
        MEZZO_TRY(mz_lab_set(config, small, MZ_COUNT(small)));
        MEZZO_TRY(mezzo_config_set(config, "train.seed", seed, "lab underflow"));
    }
    if (text != NULL)
        MEZZO_TRY(mezzo_config_set(config, "data.path", text, "lab underflow"));
    return mz_lab_set(config, always, MZ_COUNT(always));
}

static mezzo_status look(const mz_underflow_options *o, mz_underflow *u) {
    char folder[4096] = "", found[4096];
    const mz_step_report *report;
    if (o->run != NULL) {
        MEZZO_TRY(mz_find_checkpoint(o->run, false, MZ_CHECKPOINT_WEIGHTS, found, sizeof found));
        MEZZO_TRY(mz_run_folder(found, folder, sizeof folder));
    }
    char *text = NULL;
    mezzo_status status = MEZZO_OK;
    if (o->run == NULL && o->data == NULL)
        status = mz_lab_text(&text);
    if (status == MEZZO_OK)
        status = configure(o, o->run != NULL ? folder : NULL, text != NULL ? text : o->data, u->config);
    if (status == MEZZO_OK)
        status = mz_trial_open(NULL, u->config, NULL, &u->trial);
    if (text != NULL)
        unlink(text); // it has been read into memory
    mz_free(text);
    MEZZO_TRY(status);
    u->step = o->steps;
    if (o->run != NULL)
        MEZZO_TRY(mz_trial_load(u->trial, o->run, &u->step));
    for (int64_t i = 1; o->run == NULL && i < o->steps; i++) {
        mz_work("training", i - 1, o->steps);
        MEZZO_TRY(mz_trial_step(u->trial, false, &report));
    }
    mz_work("training", o->steps - 1, o->steps);
    MEZZO_TRY(mz_trial_count_step(u->trial, &u->magnitudes));
    mz_work("training", o->steps, o->steps);
    return MEZZO_OK;
}

mezzo_status mz_underflow_look(const mz_underflow_options *options, mz_underflow *u) {
    *u = (mz_underflow){0};
    MEZZO_TRY(mezzo_config_create(&u->config));
    mezzo_status status = look(options, u);
    if (status != MEZZO_OK)
        mz_underflow_close(u);
    MEZZO_TRY(status);
    return MEZZO_OK;
}

void mz_underflow_close(mz_underflow *u) {
    mz_trial_close(u->trial);
    mezzo_config_free(u->config);
    *u = (mz_underflow){0};
}

// --- conclusions from the counts -----------------------------------------------------------------------------------
enum { FIRST = 1, LAST = MZ_HISTOGRAM_BUCKETS - 3 }; // buckets of the finite magnitudes other than zero
enum { ZERO = -25, NORMAL = -14, LARGEST = 16 };     // FP16: 2^-25 rounds to zero, 2^-14 is the smallest normal number

mz_fp16_fate mz_fp16_fate_of(const int64_t *counts, int scale) {
    mz_fp16_fate f = {0};
    for (int b = FIRST; b <= LAST; b++) {
        int upper = MZ_HISTOGRAM_EXPONENT(b), scaled = upper + scale;
        if (counts[b] == 0)
            continue;
        f.lowest = f.nonzero == 0 ? upper - 1 : f.lowest;
        f.highest = upper;
        f.nonzero += counts[b];
        if (scaled <= ZERO)
            f.lost += counts[b];
        else if (scaled <= NORMAL)
            f.subnormal += counts[b];
        else if (scaled > LARGEST)
            f.overflow += counts[b];
    }
    return f;
}

int mz_fp16_least_scale(const int64_t *counts, double share) {
    for (int scale = 0; scale < 160; scale++) {
        mz_fp16_fate f = mz_fp16_fate_of(counts, scale);
        if ((double)f.lost <= share * (double)f.nonzero)
            return scale;
    }
    return 160;
}

int mz_fp16_most_scale(const int64_t *counts) {
    mz_fp16_fate f = mz_fp16_fate_of(counts, 0);
    return LARGEST - 1 - f.highest; // 2^highest itself is below 65,504
}

void mz_underflow_sum(const mz_underflow *u, mz_magnitude_kind kind, int64_t *counts) {
    const mz_magnitudes *m = u->magnitudes;
    memset(counts, 0, MZ_HISTOGRAM_BUCKETS * sizeof *counts);
    for (size_t i = 0; i < m->n; i++)
        for (int b = 0; b < MZ_HISTOGRAM_BUCKETS && m->list[i].kind == kind; b++)
            counts[b] += m->list[i].counts[b];
}

// --- the report ---------------------------------------------------------------------------------------------------
static const char *const kinds[MZ_MAGNITUDE_KINDS] = {"gradients of weights", "activations",
                                                      "gradients of activations"};

static double percent(int64_t part, int64_t of) {
    return of > 0 ? 100 * (double)part / (double)of : 0;
}

static void widen(const int32_t *counts, int64_t *out) {
    for (int b = 0; b < MZ_HISTOGRAM_BUCKETS; b++)
        out[b] = counts[b];
}

static int64_t not_finite(const int64_t *counts) {
    return counts[MZ_HISTOGRAM_BUCKETS - 2] + counts[MZ_HISTOGRAM_BUCKETS - 1];
}

// --- JSON ----------------------------------------------------------------------------------------------------------
static json_t *fate_json(const int64_t *counts, int scale) {
    mz_fp16_fate plain = mz_fp16_fate_of(counts, 0), scaled = mz_fp16_fate_of(counts, scale);
    json_t *buckets = json_object();
    for (int b = 1; b <= MZ_HISTOGRAM_BUCKETS - 3; b++)
        if (counts[b] > 0) {
            char exponent[16];
            snprintf(exponent, sizeof exponent, "%d", MZ_HISTOGRAM_EXPONENT(b));
            json_object_set_new(buckets, exponent, json_integer((json_int_t)counts[b]));
        }
    return json_pack("{sI sI sI sf sf sf sf sf sf si si so}", "zeros", (json_int_t)counts[0], "nonzero",
                     (json_int_t)plain.nonzero, "not_finite", (json_int_t)not_finite(counts), "lost_percent",
                     percent(plain.lost, plain.nonzero), "subnormal_percent", percent(plain.subnormal, plain.nonzero),
                     "overflow_percent", percent(plain.overflow, plain.nonzero), "scaled_lost_percent",
                     percent(scaled.lost, scaled.nonzero), "scaled_subnormal_percent",
                     percent(scaled.subnormal, scaled.nonzero), "scaled_overflow_percent",
                     percent(scaled.overflow, scaled.nonzero), "lowest_log2", plain.lowest, "highest_log2",
                     plain.highest, "counts_up_to_log2", buckets);
}

// Lists tensors that were rounded to 8 bits: their scale, the numbers that became zero, and the counts of their table
// of scales.
static json_t *narrowed_json(const mz_magnitudes *m) {
    json_t *list = json_array();
    for (size_t i = 0; i < m->n_narrowed; i++) {
        const mz_narrowed *of = &m->narrowed[i];
        json_array_append_new(
            list, json_pack("{ss ss sb sf sI sI sf sI sI}", "name", of->name, "format",
                            mezzo_dtype_name((mezzo_dtype)of->found.dtype), "known", of->known, "scale",
                            (double)of->found.scale, "nonzero", (json_int_t)of->nonzero, "lost", (json_int_t)of->lost,
                            "lost_percent", percent(of->lost, of->nonzero), "saturated_steps",
                            (json_int_t)of->found.saturated, "scale_changes", (json_int_t)of->found.changes));
    }
    return list;
}

json_t *mz_underflow_json(const mz_underflow *u, int scale) {
    json_t *all = json_object(), *tensors = json_array();
    int64_t counts[MZ_HISTOGRAM_BUCKETS];
    for (int k = 0; k < MZ_MAGNITUDE_KINDS; k++) {
        mz_underflow_sum(u, (mz_magnitude_kind)k, counts);
        json_t *o = fate_json(counts, scale);
        json_object_set_new(o, "least_scale_log2", json_integer(mz_fp16_least_scale(counts, 0.001)));
        json_object_set_new(o, "most_scale_log2", json_integer(mz_fp16_most_scale(counts)));
        json_object_set_new(all, kinds[k], o);
    }
    const mz_magnitudes *m = u->magnitudes;
    for (size_t i = 0; i < m->n; i++) {
        widen(m->list[i].counts, counts);
        json_t *o = fate_json(counts, scale);
        json_object_set_new(o, "name", json_string(m->list[i].name));
        json_object_set_new(o, "kind", json_string(kinds[m->list[i].kind]));
        json_array_append_new(tensors, o);
    }
    return json_pack("{sI sI so so so}", "step", (json_int_t)u->step, "loss_scale_log2", (json_int_t)scale, "all", all,
                     "tensors", tensors, "narrowed", narrowed_json(m));
}

// --- text ----------------------------------------------------------------------------------------------------------
// Adds a line. scale -1: activations, which are not scaled.
static void add_line(const char *name, const int64_t *counts, int scale, mz_text *t) {
    mz_fp16_fate plain = mz_fp16_fate_of(counts, 0), scaled = mz_fp16_fate_of(counts, scale > 0 ? scale : 0);
    mz_text_addf(t, "%-44.44s %9lld %5d %5d %8.2f %8.2f %8.2f", name, (long long)plain.nonzero, plain.lowest,
                 plain.highest, percent(plain.lost, plain.nonzero), percent(plain.subnormal, plain.nonzero),
                 percent(plain.overflow, plain.nonzero));
    if (scale >= 0)
        mz_text_addf(t, " %8.2f %8.2f %8.2f", percent(scaled.lost, scaled.nonzero),
                     percent(scaled.subnormal, scaled.nonzero), percent(scaled.overflow, scaled.nonzero));
    mz_text_addf(t, "\n");
}

static void add_head(int scale, mz_text *t) {
    char with[24];
    snprintf(with, sizeof with, "times 2^%d:", scale);
    mz_text_addf(t, "%-44s %9s %11s %26s %26s\n", "", "", "log2 |x|", "as it is, per cent:", with);
    mz_text_addf(t, "%-44s %9s %5s %5s", "", "nonzero", "from", "to");
    for (int i = 0; i < 2; i++)
        mz_text_addf(t, " %8s %8s %8s", "lost", "subnorm.", "infinite");
    mz_text_addf(t, "\n");
}

// Holds at most `most` tensors that lose the largest shares.
typedef struct ranked {
    size_t index;
    double lost;
} ranked;

static int more_lost_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return x->lost != y->lost ? (x->lost < y->lost ? 1 : -1) : x->index < y->index ? -1 : x->index > y->index;
}

static void add_tensors(const mz_underflow *u, int scale, size_t most, ranked *list, mz_text *t) {
    const mz_magnitudes *m = u->magnitudes;
    int64_t counts[MZ_HISTOGRAM_BUCKETS];
    size_t n = 0;
    for (size_t i = 0; i < m->n; i++) {
        widen(m->list[i].counts, counts);
        mz_fp16_fate f = mz_fp16_fate_of(counts, 0);
        if (m->list[i].kind != MZ_OF_ACTIVATION)
            list[n++] = (ranked){i, percent(f.lost, f.nonzero)};
    }
    qsort(list, n, sizeof *list, more_lost_first);
    for (size_t k = 0; k < n && k < most; k++) {
        char name[64];
        const mz_magnitudes_of *of = &m->list[list[k].index];
        snprintf(name, sizeof name, "%s%.60s", of->kind == MZ_OF_GRADIENT ? "" : "d ", of->name);
        widen(of->counts, counts);
        add_line(name, counts, scale, t);
    }
    if (n > most)
        mz_text_addf(t, "... and %zu more: --count %zu shows them\n", n - most, n);
}

static void add_narrowed(const mz_magnitudes *m, size_t most, ranked *list, mz_text *t) {
    size_t n = 0;
    for (size_t i = 0; i < m->n_narrowed; i++)
        if (m->narrowed[i].known)
            list[n++] = (ranked){i, percent(m->narrowed[i].lost, m->narrowed[i].nonzero)};
    qsort(list, n, sizeof *list, more_lost_first);
    mz_text_addf(t, "\n%-44s %-9s %9s %9s %8s %10s %10s\n", "rounded to 8 bits", "format", "scale", "nonzero", "lost %",
                 "saturated", "changes");
    for (size_t k = 0; k < n && k < most; k++) {
        const mz_narrowed *of = &m->narrowed[list[k].index];
        mz_text_addf(t, "%-44.44s %-9s %9.3g %9lld %8.3f %10d %10d\n", of->name,
                     mezzo_dtype_name((mezzo_dtype)of->found.dtype), (double)of->found.scale, (long long)of->nonzero,
                     list[k].lost, of->found.saturated, of->found.changes);
    }
    if (n > most)
        mz_text_addf(t, "... and %zu more\n", n - most);
    mz_text_tell(t,
                 "lost: non-zero values that became zero in 8 bits. saturated: steps so far in which the largest value "
                 "saturated;\nchanges: steps after which the scale changed.");
}

static void add_conclusion(const mz_underflow *u, mz_text *t) {
    int64_t weights[MZ_HISTOGRAM_BUCKETS], flowing[MZ_HISTOGRAM_BUCKETS], activations[MZ_HISTOGRAM_BUCKETS];
    mz_underflow_sum(u, MZ_OF_GRADIENT, weights);
    mz_underflow_sum(u, MZ_OF_ACTIVATION_GRADIENT, flowing);
    mz_underflow_sum(u, MZ_OF_ACTIVATION, activations);
    int one = mz_fp16_least_scale(weights, 0.001), two = mz_fp16_least_scale(flowing, 0.001);
    int top = mz_fp16_most_scale(weights) < mz_fp16_most_scale(flowing) ? mz_fp16_most_scale(weights)
                                                                        : mz_fp16_most_scale(flowing);
    mz_fp16_fate a = mz_fp16_fate_of(activations, 0);
    mz_text_tell(
        t,
        "\nlost: |x| is at most 2^-25, and FP16 stores zero. subnorm.: up to 2^-14, stored with fewer digits.\nA "
        "loss scale of 2^%d keeps 99.9 %% of the weight gradients, and 2^%d of the activation gradients, which "
        "backward stores in FP16;\nup to 2^%d nothing overflows. Activations are not scaled: they reach 2^%d "
        "here, and FP16 ends at 2^16.\nBF16 has FP32's exponents and loses none of these values.",
        one, two, top, a.highest);
}

void mz_underflow_text(const mz_underflow *u, const char *model, const char *precision, int scale, size_t most,
                       mz_text *t) {
    int64_t counts[MZ_HISTOGRAM_BUCKETS];
    MZ_SCOPED(mz_free_at) ranked *list = NULL;
    if (MZ_NEW(list, u->magnitudes->n + u->magnitudes->n_narrowed + 1) != MEZZO_OK) {
        t->status = MEZZO_ERR_MEMORY;
        return;
    }
    mz_text_addf(t, "step %lld of %s, in %s\n\n", (long long)u->step, model, precision);
    add_head(scale, t);
    for (int k = 0; k < MZ_MAGNITUDE_KINDS; k++) {
        mz_underflow_sum(u, (mz_magnitude_kind)k, counts);
        add_line(kinds[k], counts, k == MZ_OF_ACTIVATION ? -1 : scale, t);
    }
    mz_text_add(t, "\n", 1);
    add_tensors(u, scale, most, list, t);
    add_conclusion(u, t);
    if (u->magnitudes->n_narrowed > 0)
        add_narrowed(u->magnitudes, most, list, t);
}
