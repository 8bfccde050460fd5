// Weights with their adapters added: W + scale · B·A.
#include <stdlib.h>

#include "checkpoint/checkpoint.h"

double mz_lora_scale(const mz_safetensors *weights) {
    const char *text = mz_safetensors_meta_get(weights, MZ_LORA_SCALE);
    return text != NULL ? strtod(text, NULL) : 0;
}

static const mz_safetensors_tensor *adapter_of(const mz_safetensors *weights, const char *name, char which) {
    size_t n = strlen(name), k = strlen(".weight");
    char part[512];
    if (n < k || strcmp(name + n - k, ".weight") != 0)
        return NULL;
    snprintf(part, sizeof part, "%.*s.lora_%c.weight", (int)(n - k), name, which);
    return mz_safetensors_find(weights, part);
}

bool mz_lora_has(const mz_safetensors *weights, const char *name) {
    return adapter_of(weights, name, 'A') != NULL;
}

// In double, one row at a time: a sum of `rank` products.
mezzo_status mz_lora_merge(const mz_safetensors *weights, const char *name, float **out) {
    const mz_safetensors_tensor *w, *a = adapter_of(weights, name, 'A'), *b = adapter_of(weights, name, 'B');
    double scale = mz_lora_scale(weights);
    *out = NULL;
    MEZZO_TRY(mz_safetensors_get(weights, name, &w));
    if (a == NULL || b == NULL || w->rank != 2 || a->rank != 2 || b->rank != 2 || w->dtype != MEZZO_F32 ||
        a->dtype != MEZZO_F32 || b->dtype != MEZZO_F32 || a->shape[1] != w->shape[1] || b->shape[0] != w->shape[0] ||
        a->shape[0] != b->shape[1])
        return mz_fail(MEZZO_ERR_FORMAT,
                       "the adapters of '%s' do not fit it: lora_A is [rank, %lld], lora_B [%lld, rank]", name,
                       (long long)w->shape[1], (long long)w->shape[0]);
    int64_t rows = w->shape[0], cols = w->shape[1], rank = a->shape[0];
    float *merged = mz_alloc(w->count, sizeof *merged), *low = mz_alloc(a->count + b->count, sizeof *low);
    double *row = mz_alloc((size_t)cols, sizeof *row);
    if (merged != NULL && low != NULL && row != NULL) {
        float *la = low, *lb = low + a->count; // aligned
        memcpy(merged, w->data, w->bytes);
        memcpy(la, a->data, a->bytes);
        memcpy(lb, b->data, b->bytes);
        for (int64_t i = 0; i < rows; i++) {
            memset(row, 0, (size_t)cols * sizeof *row);
            for (int64_t r = 0; r < rank; r++)
                for (int64_t k = 0; k < cols; k++)
                    row[k] += (double)lb[i * rank + r] * (double)la[r * cols + k];
            for (int64_t k = 0; k < cols; k++)
                merged[i * cols + k] = (float)((double)merged[i * cols + k] + scale * row[k]);
        }
        *out = merged;
        merged = NULL;
    }
    mz_free(merged);
    mz_free(low);
    mz_free(row);
    return *out != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}
