// Adds adapters to the weights: W + scale · B·A.
#include <stdlib.h>

#include "base/decimal.h"
#include "checkpoint/checkpoint.h"

double mz_lora_scale(const mz_safetensors *weights) {
    const char *text = mz_safetensors_meta_get(weights, MZ_LORA_SCALE);
    return text != NULL ? mz_strtod(text, NULL) : 0;
}

static const mz_safetensors_tensor *adapter_of(const mz_safetensors *weights, const char *module, char which) {
    char part[540];
    snprintf(part, sizeof part, "%s.lora_%c.weight", module, which);
    return mz_safetensors_find(weights, part);
}

bool mz_lora_has(const mz_safetensors *weights, const char *name, const mz_parts *parts) {
    char module[512];
    int64_t first, rows;
    for (int i = 0; mz_adapted_module(name, 0, parts, i, module, &first, &rows); i++)
        if (adapter_of(weights, module, 'A') != NULL)
            return true;
    return false;
}

// Adds scale · B·A to w[rows, cols], in double, one row at a time: a sum of `rank` products.
static mezzo_status add_product(const mz_safetensors_tensor *a, const mz_safetensors_tensor *b, double scale, float *w,
                                int64_t rows, int64_t cols) {
    const int64_t rank = a->shape[0];
    float *low = mz_alloc(a->count + b->count, sizeof *low);
    double *row = mz_alloc((size_t)cols, sizeof *row);
    const bool there = low != NULL && row != NULL;
    if (there) {
        float *la = low, *lb = low + a->count; // both are aligned
        memcpy(la, a->data, a->bytes);
        memcpy(lb, b->data, b->bytes);
        for (int64_t i = 0; i < rows; i++) {
            memset(row, 0, (size_t)cols * sizeof *row);
            for (int64_t r = 0; r < rank; r++)
                for (int64_t k = 0; k < cols; k++)
                    row[k] += (double)lb[i * rank + r] * (double)la[r * cols + k];
            for (int64_t k = 0; k < cols; k++)
                w[i * cols + k] = (float)((double)w[i * cols + k] + scale * row[k]);
        }
    }
    MZ_FREE(low, row);
    return there ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

static mezzo_status merge_part(const mz_safetensors *weights, const char *module, float *w, int64_t rows,
                               int64_t cols) {
    const mz_safetensors_tensor *a = adapter_of(weights, module, 'A'), *b = adapter_of(weights, module, 'B');
    if (a == NULL && b == NULL)
        return MEZZO_OK;
    if (a == NULL || b == NULL || a->rank != 2 || b->rank != 2 || a->dtype != MEZZO_F32 || b->dtype != MEZZO_F32 ||
        a->shape[1] != cols || b->shape[0] != rows || a->shape[0] != b->shape[1])
        return mz_fail(MEZZO_ERR_FORMAT,
                       "the adapters of '%s' do not fit it: lora_A is [rank, %lld], lora_B [%lld, rank], both fp32",
                       module, (long long)cols, (long long)rows);
    return add_product(a, b, mz_lora_scale(weights), w, rows, cols);
}

mezzo_status mz_lora_merge(const mz_safetensors *weights, const char *name, const mz_parts *parts, float **out) {
    const mz_safetensors_tensor *w;
    char module[512];
    int64_t first, rows;
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    MEZZO_TRY(mz_safetensors_get(weights, name, &w));
    if (w->rank != 2 || w->dtype != MEZZO_F32)
        return mz_fail(MEZZO_ERR_FORMAT, "'%s' has an adapter but is not an fp32 matrix", name);
    float *merged;
    MEZZO_TRY(MZ_NEW(merged, w->count));
    memcpy(merged, w->data, w->bytes);
    for (int i = 0; status == MEZZO_OK && mz_adapted_module(name, w->shape[0], parts, i, module, &first, &rows); i++) {
        if (first + rows > w->shape[0])
            status = mz_fail(MEZZO_ERR_FORMAT, "'%s' has %lld rows, its parts more", name, (long long)w->shape[0]);
        else
            status = merge_part(weights, module, merged + first * w->shape[1], rows, w->shape[1]);
    }
    if (status != MEZZO_OK)
        mz_free(merged);
    else
        *out = merged;
    return status;
}
