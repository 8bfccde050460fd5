// Copies values from memory to a file piece by piece, so that no tensor has a second copy in memory.
#include <math.h>

#include "io/gguf.h"
#include "io/quote.h"
#include "weights/hf.h"

static float element(const unsigned char *at, mezzo_dtype dtype) {
    float single;
    uint16_t half;
    if (dtype == MEZZO_F32) {
        memcpy(&single, at, sizeof single); // files of other programs do not promise alignment
        return single;
    }
    memcpy(&half, at, sizeof half);
    return dtype == MEZZO_BF16 ? mezzo_bf16_to_f32(half) : mezzo_f16_to_f32(half);
}

static void store(unsigned char *to, mezzo_dtype dtype, float x) {
    if (dtype == MEZZO_F32) {
        memcpy(to, &x, sizeof x);
        return;
    }
    uint16_t half = dtype == MEZZO_BF16 ? mezzo_f32_to_bf16(x) : mezzo_f32_to_f16(x);
    memcpy(to, &half, sizeof half);
}

// Returns where in the data a row comes from. Of a head's D rows, pair p is rows 2p and 2p + 1 in pairs, and rows p and
// D/2 + p in halves. Row d of part j of head h is j·H·D + h·D + d in Mezzo, and h·3·D + j·D + d where a head's parts
// are together.
static int64_t source_row(const mz_hf_block *b, int64_t row) {
    const mz_hf_order o = b->order;
    if (o.heads > 0) {
        const int64_t d = b->rows / (3 * o.heads), outer = o.ours ? 3 : o.heads, inner = o.ours ? o.heads : 3;
        return (row / d % outer * inner + row / d / outer) * d + row % d;
    }
    if (o.head == 0)
        return row;
    const int64_t i = row % o.head, half = o.head / 2;
    return row - i + (o.ours != o.pairs ? i % half * 2 + i / half : i % 2 * half + i / 2);
}

// Copies `n` elements of a block's row from column `col` on.
static void copy_run(const mz_hf_block *b, int64_t row, int64_t col, int64_t n, unsigned char *to, mezzo_dtype dtype) {
    int64_t size = (int64_t)mezzo_dtype_size(b->dtype), width = (int64_t)mezzo_dtype_size(dtype);
    row = source_row(b, row);
    int64_t first = b->transposed ? col * b->stride + row : row * b->stride + col;
    int64_t step = (b->transposed ? b->stride : 1) * size;
    if (b->data == NULL) {
        memset(to, 0, (size_t)(n * width)); // zero has the same bits in every format
        return;
    }
    if (b->q8_0) {
        for (int64_t i = 0; i < n; i++, to += width)
            store(to, dtype, mz_q8_0_value(b->data, first + i));
        return;
    }
    const unsigned char *from = b->data + first * size;
    if (b->dtype == dtype && !b->transposed && b->plus == 0) { // bits are copied unchanged
        memcpy(to, from, (size_t)(n * size));
        return;
    }
    for (int64_t i = 0; i < n; i++, from += step, to += width) {
        if (b->dtype == dtype && b->plus == 0)
            memcpy(to, from, (size_t)size);
        else
            store(to, dtype, element(from, b->dtype) + b->plus);
    }
}

// Refuses NaN, from which no run can start, and numbers above 65,504, which FP16 cannot hold.
static mezzo_status check_finite(const mz_hf_tensor *t, const mz_hf_block *b, int64_t row, int64_t col, int64_t n,
                                 const unsigned char *written) {
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(element(written + i * (int64_t)mezzo_dtype_size(t->dtype), t->dtype)))
            continue;
        float value;
        copy_run(b, row, col + i, 1, (unsigned char *)&value, MEZZO_F32);
        if (isfinite(value))
            return mz_fail(MEZZO_ERR_NUMERIC, "tensor %s: %g is too large for %s: export in %s instead",
                           mz_quote(t->name).text, (double)value, mezzo_dtype_name(t->dtype),
                           t->dtype == MEZZO_F16 ? "bf16 or fp32" : "fp32");
        return mz_fail(MEZZO_ERR_NUMERIC, "tensor %s: element [%lld, %lld] is %g: weights must be finite",
                       mz_quote(t->name).text, (long long)row, (long long)(col + i), (double)value);
    }
    return MEZZO_OK;
}

static mezzo_status fill_values(const mz_hf_tensor *t, uint64_t offset, void *bytes, size_t n) {
    size_t width = mezzo_dtype_size(t->dtype), block = 0;
    int64_t at = (int64_t)(offset / width), end = at + (int64_t)(n / width), before = 0; // before: rows of the blocks
                                                                                         // that were passed
    unsigned char *to = bytes;
    while (at < end) {
        int64_t row = at / t->cols, col = at % t->cols;
        while (row >= before + t->blocks[block].rows)
            before += t->blocks[block++].rows;
        int64_t run = t->cols - col < end - at ? t->cols - col : end - at;
        copy_run(&t->blocks[block], row - before, col, run, to, t->dtype);
        MEZZO_TRY(check_finite(t, &t->blocks[block], row - before, col, run, to));
        to += (size_t)run * width;
        at += run;
    }
    return MEZZO_OK;
}

// Fills blocks of a row, as many as a buffer holds, from their FP32 values.
static mezzo_status fill_blocks(const mz_hf_tensor *t, uint64_t offset, unsigned char *to, size_t n) {
    float values[64 * MZ_Q8_0_VALUES];
    uint64_t at = offset / MZ_Q8_0_BYTES, end = at + n / MZ_Q8_0_BYTES;
    while (at < end) {
        const uint64_t blocks = end - at < 64 ? end - at : 64;
        MEZZO_TRY(fill_values(t, at * sizeof values / 64, values, (size_t)blocks * sizeof values / 64));
        for (uint64_t i = 0; i < blocks; i++, to += MZ_Q8_0_BYTES)
            if (!mz_q8_0_pack(values + i * MZ_Q8_0_VALUES, to))
                return mz_fail(MEZZO_ERR_NUMERIC, "tensor %s: a value is too large for q8_0: export in bf16 or f32",
                               mz_quote(t->name).text);
        at += blocks;
    }
    return MEZZO_OK;
}

mezzo_status mz_hf_fill(void *user, uint64_t offset, void *bytes, size_t n) {
    const mz_hf_tensor *t = user;
    return t->q8_0 ? fill_blocks(t, offset, bytes, n) : fill_values(t, offset, bytes, n);
}

mezzo_status mz_hf_list_create(size_t cap, mz_hf_list *out) {
    *out = (mz_hf_list){.cap = cap};
    out->items = mz_alloc(cap + 1, sizeof *out->items);
    out->tensors = mz_alloc(cap + 1, sizeof *out->tensors);
    out->names = mz_alloc(cap + 1, sizeof *out->names);
    out->shapes = mz_alloc(cap + 1, sizeof *out->shapes);
    return out->items && out->tensors && out->names && out->shapes ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

void mz_hf_list_free(mz_hf_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        MZ_FREE(list->tensors[i].blocks, list->names[i]);
    }
    MZ_FREE(list->items, list->tensors, list->names, list->shapes);
    *list = (mz_hf_list){0};
}

mezzo_status mz_hf_list_add(mz_hf_list *list, const char *name, const mz_shape *shape, mezzo_dtype dtype,
                            mz_hf_block *blocks, size_t n_blocks) {
    size_t i = list->count;
    char *copy = i < list->cap ? mz_strdup(name) : NULL;
    if (blocks == NULL || copy == NULL) {
        MZ_FREE(blocks, copy);
        return i < list->cap ? MEZZO_ERR_MEMORY : mz_fail(MEZZO_ERR_INVALID, "%s: no room for it in the list", name);
    }
    list->count++;
    list->names[i] = copy;
    memcpy(list->shapes[i], shape->dim, sizeof list->shapes[i]);
    list->tensors[i] =
        (mz_hf_tensor){copy, blocks, n_blocks, shape->rank > 1 ? shape->dim[shape->rank - 1] : 1, dtype, false};
    list->items[i] = (mz_safetensors_item){.name = copy,
                                           .dtype = dtype,
                                           .rank = (size_t)shape->rank,
                                           .shape = list->shapes[i],
                                           .fill = mz_hf_fill,
                                           .user = &list->tensors[i]};
    return MEZZO_OK;
}
