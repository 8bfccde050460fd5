// Computes embeddings, the rows of a table by number, and the table's gradient.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

// Writes NaN for an id outside the table, which the guard notices.
static void fill_nan(const mz_tensor *to, int64_t put, int64_t width) {
    float nan = NAN;
    for (int64_t i = 0; i < width; i++)
        narrow_block(&nan, element_at(to, put + i), to->dtype, 1);
}

static mezzo_status run_embedding(mezzo_device *device, const mz_call *call) {
    const mz_tensor *table = mz_in(call, embedding, table), *y = mz_out(call, embedding, y); // [V, C], [… C]
    const int32_t *ids = mz_in(call, embedding, ids)->data;
    int64_t rows = table->shape.dim[0], width = table->shape.dim[1],
            n = mz_shape_count(&mz_in(call, embedding, ids)->shape);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.2 * (double)n * (double)width))
    for (int64_t r = 0; r < n; r++) {
        if (ids[r] >= 0 && ids[r] < rows)
            copy_elements(table, ids[r] * width, y, r * width, width);
        else
            fill_nan(y, r * width, width);
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL(embedding, "ai", "a", NULL, NULL)

// Threads own runs of columns, and each adds its columns of every position in order: no two write the same element, and
// the sums are in the order of positions for any number of threads. 64 columns are four cache lines, so that neighbours
// do not share one.
enum { TABLE_COLUMNS = 64 };

static mezzo_status run_embedding_bwd(mezzo_device *device, const mz_call *call) {
    const mz_tensor *dy = mz_in(call, embedding_bwd, dy),
                    *dtable = mz_out(call, embedding_bwd, dtable); // [… C], [V, C]
    const int32_t *ids = mz_in(call, embedding_bwd, ids)->data;
    int64_t rows = dtable->shape.dim[0], width = dtable->shape.dim[1],
            n = mz_shape_count(&mz_in(call, embedding_bwd, ids)->shape);
    int64_t parts = (width + TABLE_COLUMNS - 1) / TABLE_COLUMNS;
    float *out = dtable->data;
#pragma omp parallel num_threads(mz_cpu_threads(device, 0.4 * (double)n * (double)width))
    {
        // One thread takes neighbouring runs, so that it reads longer pieces of each row.
        int64_t first = parts * mz_thread() / mz_team(), last = parts * (mz_thread() + 1) / mz_team();
        int64_t from = first * TABLE_COLUMNS, to = min64(width, last * TABLE_COLUMNS);
        float buffer[MZ_BLOCK];
        for (int64_t v = 0; !call->attrs.accumulate && from < to && v < rows; v++)
            memset(out + v * width + from, 0, (size_t)(to - from) * sizeof *out);
        for (int64_t r = 0; r < n; r++) {
            if (ids[r] < 0 || ids[r] >= rows)
                continue;
            for (int64_t c = from; c < to; c += MZ_BLOCK) {
                int count = (int)min64(MZ_BLOCK, to - c);
                const float *x = block_in(dy, r * width + c, count, buffer);
                float *sum = out + ids[r] * width + c;
                FOR_LANES(i, lanes, count)
                vstore_lanes(sum + i, vload_lanes(sum + i, lanes, 0) + vload_lanes(x + i, lanes, 0), lanes);
            }
        }
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL(embedding_bwd, "ai", "f", NULL, NULL)
