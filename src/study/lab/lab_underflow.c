// Shows which of a model's gradients FP16 would lose: it counts one step of training in FP32, tensor by tensor.
#include <unistd.h>

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
