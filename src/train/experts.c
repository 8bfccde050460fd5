// Measures how evenly a mixture of experts is used, from where each expert's rows begin (the program's output
// "experts").
#include <math.h>

#include "train/report.h"

// Rows of each expert of each layer are written up to this number of values; the summaries always are.
enum { MOST_LOADS = 1024, SUMMARIES = 4 };

struct mz_expert_load {
    int64_t layers, experts;
    int32_t *offsets; // [layers, experts + 1]
    mz_metric *row;   // the summaries, then [layers, experts] where those are written
    size_t count;
    char **names; // of the values by expert
};

static mezzo_status name_loads(mz_expert_load *load, int64_t first_layer) {
    for (int64_t i = 0; i < load->layers * load->experts; i++) {
        load->names[i] = mz_format("experts/layers.%lld/load.%lld", (long long)(first_layer + i / load->experts),
                                   (long long)(i % load->experts));
        if (load->names[i] == NULL)
            return MEZZO_ERR_MEMORY;
    }
    return MEZZO_OK;
}

mezzo_status mz_expert_load_create(const mz_model *model, mz_expert_load **out) {
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    int64_t first;
    const int64_t mixtures = mz_model_mixtures(model, &first);
    if (mixtures == 0)
        return MEZZO_OK;
    mz_expert_load *load;
    MEZZO_TRY(MZ_NEW(load, 1));
    load->layers = mixtures;
    load->experts = model->config.experts;
    size_t loads = (size_t)(load->layers * load->experts);
    bool each = loads <= MOST_LOADS;
    load->count = SUMMARIES + (each ? loads : 0);
    load->offsets = mz_alloc(loads + (size_t)load->layers, sizeof *load->offsets);
    load->row = mz_alloc(load->count, sizeof *load->row);
    load->names = mz_alloc(loads, sizeof *load->names);
    if (load->offsets == NULL || load->row == NULL || load->names == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    if (each)
        MEZZO_TRY_GOTO(status, name_loads(load, first));
    *out = load;
    return MEZZO_OK;
fail:
    mz_expert_load_free(load);
    return status;
}

void mz_expert_load_free(mz_expert_load *load) {
    if (load == NULL)
        return;
    for (int64_t i = 0; load->names != NULL && i < load->layers * load->experts; i++)
        mz_free(load->names[i]);
    MZ_FREE(load->names, load->row, load->offsets, load);
}

// Logs the use of experts. A share is an expert's part of a layer's rows. Entropy is -Σ share·ln(share) / ln(experts):
// 1 when all have the same share, 0 when one expert has all rows.
mezzo_status mz_expert_load_log(mz_expert_load *load, mezzo_program *program, int64_t rows, mz_metrics *metrics,
                                int64_t step) {
    int64_t dropped = 0, experts = load->experts;
    double entropy = 0, least = 1, most = 0;
    size_t numbers = (size_t)(load->layers * (experts + 1));
    MEZZO_TRY(mezzo_program_read(program, "experts", load->offsets, numbers * sizeof *load->offsets));
    for (int64_t layer = 0; layer < load->layers; layer++) {
        const int32_t *offsets = load->offsets + layer * (experts + 1);
        dropped += rows - offsets[experts];
        for (int64_t e = 0; e < experts; e++) {
            double share = (double)(offsets[e + 1] - offsets[e]) / (double)rows;
            entropy -= share > 0 ? share * log(share) : 0;
            least = fmin(least, share);
            most = fmax(most, share);
            size_t at = SUMMARIES + (size_t)(layer * experts + e);
            if (at < load->count)
                load->row[at] = mz_metric_number(load->names[at - SUMMARIES], share);
        }
    }
    entropy = experts > 1 ? entropy / ((double)load->layers * log((double)experts)) : 1;
    load->row[0] = mz_metric_int("experts/dropped_tokens", dropped);
    load->row[1] = mz_metric_number("experts/load_entropy", entropy);
    load->row[2] = mz_metric_number("experts/load_min", least);
    load->row[3] = mz_metric_number("experts/load_max", most);
    return mz_metrics_write(metrics, step, load->row, load->count);
}
