// Stores a tile of sums through its post-ops (mz_matmul_epilogue in matmul.h), and sums columns.
#include "backend/cpu/kernels/matmul_isa.h"

#include "backend/cpu/kernels/act.h"

// --- the epilogue --------------------------------------------------------------------------------------------------
static size_t size_of(mezzo_dtype dtype) {
    return dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t);
}

// Stores up to VW columns of one row; `n` < VW touches only n elements of every matrix. `plain`: no activation, preact
// or residual.
ALWAYS_INLINE void finish(const mz_matmul_epilogue *e, vf x, int64_t at, int64_t row, int64_t column, int64_t n,
                          bool plain, mezzo_dtype y_dtype, mezzo_dtype via) {
#define ADDRESS(p, dtype, index) ((char *)(uintptr_t)(p) + (size_t)(index)*size_of(dtype))
#define LOAD(p, dtype, index)                                                                                          \
    (n == VW ? load_as_f32(ADDRESS(p, dtype, index), dtype) : load_as_f32_part(ADDRESS(p, dtype, index), dtype, n))
#define STORE(p, dtype, index, value)                                                                                  \
    (n == VW ? store_as(ADDRESS(p, dtype, index), value, dtype)                                                        \
             : store_as_part(ADDRESS(p, dtype, index), value, dtype, n))
    if (e->add)
        x += LOAD(e->y, MEZZO_F32, at);
    if (!plain && e->act_gradient) {
        if (e->preact != NULL)
            x = vact_dx(e->act, x, LOAD(e->preact, e->preact_dtype, at));
        STORE(e->y, y_dtype, at, x);
        return;
    }
    if (e->bias != NULL)
        x += LOAD(e->bias, e->bias_dtype, column);
    x = round_to(x, via);
    if (!plain) {
        if (e->preact != NULL)
            STORE(e->preact, e->preact_dtype, at, x);
        if (e->act != MZ_ACT_NONE)
            x = round_to(vact(e->act, x), via);
        if (e->factors != NULL) {
            x = e->factors[0] * x + e->factors[1] * LOAD(e->residual, e->residual_dtype, at);
            if (e->factors[2] != 0 && row >= column && row < column + VW) {
                float one[VW] = {0};
                one[row - column] = e->factors[2];
                x += load_f32(one);
            }
        } else if (e->residual != NULL)
            x += LOAD(e->residual, e->residual_dtype, at);
    }
    STORE(e->y, y_dtype, at, x);
}

ALWAYS_INLINE void finish_tile(const mz_matmul_epilogue *e, const float *tile, int64_t ld_tile, int64_t row,
                               int64_t column, int rows, int columns, bool plain, mezzo_dtype y_dtype,
                               mezzo_dtype via) {
    for (int i = 0; i < rows; i++) {
        const float *sums = tile + i * ld_tile;
        int64_t at = (row + i) * e->ld + column;
        int j = 0;
        for (; j + VW <= columns; j += VW)
            finish(e, load_f32(sums + j), at + j, row + i, column + j, VW, plain, y_dtype, via);
        if (j < columns)
            finish(e, load_f32_part(sums + j, columns - j), at + j, row + i, column + j, columns - j, plain, y_dtype,
                   via);
    }
}

void FOR_LEVEL(mz_matmul_epilogue)(const mz_matmul_epilogue *e, const float *tile, int64_t ld_tile, int64_t row,
                                   int64_t column, int rows, int columns) {
    bool plain = e->preact == NULL && e->act == MZ_ACT_NONE && e->residual == NULL;
    mezzo_dtype via = e->via == MEZZO_BF16 || e->via == MEZZO_F16 ? e->via : MEZZO_F32;
    // The common cases have constant formats. A value that is already in the stored format is not rounded again.
    if (plain && (via == MEZZO_F32 || via == e->y_dtype)) {
        switch (e->y_dtype) {
        case MEZZO_BF16:
            finish_tile(e, tile, ld_tile, row, column, rows, columns, true, MEZZO_BF16, MEZZO_F32);
            return;
        case MEZZO_F16:
            finish_tile(e, tile, ld_tile, row, column, rows, columns, true, MEZZO_F16, MEZZO_F32);
            return;
        default:
            finish_tile(e, tile, ld_tile, row, column, rows, columns, true, MEZZO_F32, MEZZO_F32);
            return;
        }
    }
    finish_tile(e, tile, ld_tile, row, column, rows, columns, false, e->y_dtype, via);
}

// --- pieces of k ---------------------------------------------------------------------------------------------------
// Adds all pieces, a few vectors at a time: memory is requested in as many places at once, each in address order.
void FOR_LEVEL(mz_matmul_add_pieces)(const float *sums, int64_t step, int64_t pieces, float *y, int64_t n, bool add) {
    int64_t j = 0;
    for (; j + 4 * VW <= n; j += 4 * VW) {
        vf sum[4];
        for (int v = 0; v < 4; v++)
            sum[v] = load_f32(sums + j + v * VW);
        for (int64_t piece = 1; piece < pieces; piece++)
            for (int v = 0; v < 4; v++)
                sum[v] += load_f32(sums + piece * step + j + v * VW);
        for (int v = 0; v < 4; v++)
            store_f32(y + j + v * VW, add ? load_f32(y + j + v * VW) + sum[v] : sum[v]);
    }
    for (; j < n; j += VW) {
        vf sum = load_f32_part(sums + j, n - j);
        for (int64_t piece = 1; piece < pieces; piece++)
            sum += load_f32_part(sums + piece * step + j, n - j);
        store_f32_part(y + j, add ? load_f32_part(y + j, n - j) + sum : sum, n - j);
    }
}

// --- column sums ---------------------------------------------------------------------------------------------------
#define SUM_ROWS    128 // rows summed before they are added to the total, so that the error grows with 128 + rows/128
#define SUM_VECTORS 4

ALWAYS_INLINE void sum_columns(const char *x, mezzo_dtype dtype, int64_t rows, size_t row_bytes, int64_t columns,
                               float *sums, bool add) {
    const size_t size = size_of(dtype);
    for (int64_t j = 0; j < columns; j += VW * SUM_VECTORS) {
        vf total[SUM_VECTORS];
        for (int v = 0; v < SUM_VECTORS; v++)
            total[v] = add ? load_f32_part(sums + j + v * VW, columns - j - v * VW) : (vf){0};
        for (int64_t r0 = 0; r0 < rows; r0 += SUM_ROWS) {
            vf part[SUM_VECTORS] = {{0}};
            int64_t r1 = r0 + SUM_ROWS < rows ? r0 + SUM_ROWS : rows;
            for (int64_t r = r0; r < r1; r++) {
                const char *p = x + (size_t)r * row_bytes + (size_t)j * size;
                if (columns - j >= VW * SUM_VECTORS)
                    for (int v = 0; v < SUM_VECTORS; v++)
                        part[v] += load_as_f32(p + (size_t)(v * VW) * size, dtype);
                else
                    for (int v = 0; v < SUM_VECTORS; v++)
                        part[v] += load_as_f32_part(p + (size_t)(v * VW) * size, dtype, columns - j - v * VW);
            }
            for (int v = 0; v < SUM_VECTORS; v++)
                total[v] += part[v];
        }
        for (int v = 0; v < SUM_VECTORS; v++)
            store_f32_part(sums + j + v * VW, total[v], columns - j - v * VW);
    }
}

void FOR_LEVEL(mz_matmul_column_sums)(const void *x, mezzo_dtype dtype, int64_t rows, int64_t ld, int64_t first,
                                      int64_t count, float *sums, bool add) {
    const size_t size = size_of(dtype);
    const char *p = (const char *)x + (size_t)first * size;
    if (dtype == MEZZO_F32)
        sum_columns(p, MEZZO_F32, rows, (size_t)ld * size, count, sums, add);
    else if (dtype == MEZZO_BF16)
        sum_columns(p, MEZZO_BF16, rows, (size_t)ld * size, count, sums, add);
    else
        sum_columns(p, MEZZO_F16, rows, (size_t)ld * size, count, sums, add);
}
