// Runs ops that go down the columns of [outer, axis, inner]: the largest, products, running sums, gathered and added
// slices.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

enum { COLUMNS = 64 };

// Up to COLUMNS columns side by side, or one whose elements are contiguous.
typedef struct columns {
    const mz_call *call;
    axis_view v;
    int64_t outer, first; // they are (outer, first) … (outer, first + n - 1)
    int n;
} columns;
typedef void columns_fn(const columns *c);

static mezzo_status each_columns(mezzo_device *device, const mz_call *call, const mz_tensor *x, columns_fn *fn) {
    const axis_view v = view_along(&x->shape, call->attrs.axis);
    const int64_t parts = (v.inner + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, (double)mz_shape_count(&x->shape)))
    for (int64_t task = 0; task < v.outer * parts; task++) {
        const int64_t first = task % parts * COLUMNS;
        fn(&(columns){call, v, task / parts, first, (int)min64(COLUMNS, v.inner - first)});
    }
    return MEZZO_OK;
}

// A piece of a tensor with these columns: one element of each, or up to a block of the only one.
typedef struct piece {
    int64_t at, axis; // number of the first element in the tensor, and its place along the axis
    int n, step;      // elements, and the distance along the axis from one to the next: 0 or 1
} piece;

static piece piece_from(const columns *c, int64_t length, int64_t axis) {
    const bool contiguous = c->v.inner == 1;
    return (piece){.at = (c->outer * length + axis) * c->v.inner + c->first,
                   .axis = axis,
                   .n = contiguous ? (int)min64(MZ_BLOCK, length - axis) : c->n,
                   .step = contiguous};
}
// Loops over the pieces of an axis of `length`, in order.
#define EACH_PIECE(p, c, length)                                                                                       \
    for (piece p = piece_from(c, length, 0); p.axis < (length);                                                        \
         p = piece_from(c, length, p.axis + (p.step != 0 ? p.n : 1)))
#define COLUMN_OF(p, k) ((p).step != 0 ? 0 : (k))

// Returns a value of each column, [outer, inner].
static const float *of_columns(const columns *c, const mz_tensor *t, float *buffer) {
    return block_in(t, c->outer * c->v.inner + c->first, c->n, buffer);
}

static void put_columns(const columns *c, const float *values) {
    narrow_block(values, element_at(&c->call->out[0], c->outer * c->v.inner + c->first), c->call->out[0].dtype, c->n);
}

#define COLUMNS_KERNEL(name, input)                                                                                    \
    static mezzo_status run_##name(mezzo_device *device, const mz_call *call) {                                        \
        return each_columns(device, call, &call->in[input], name##_columns);                                           \
    }                                                                                                                  \
    MZ_CPU_KERNEL(name, "a", "a", NULL, NULL)

// --- the largest and the smallest ----------------------------------------------------------------------------------
static void find_extremum(const columns *c, float sign, float *best, int64_t *index) {
    const mz_tensor *x = mz_in(c->call, max, x);
    float buffer[MZ_BLOCK];
    EACH_PIECE(p, c, c->v.axis) {
        const float *v = numbers_in(x, p.at, p.n, buffer);
        for (int k = 0; k < p.n; k++) {
            const int j = COLUMN_OF(p, k);
            const int64_t axis = p.axis + k * p.step;
            const bool further = sign * v[k] > sign * best[j] || v[k] != v[k];
            if (axis != 0 && !(further && best[j] == best[j]))
                continue;
            best[j] = v[k];
            index[j] = axis;
        }
    }
}

static void max_columns(const columns *c) {
    float best[COLUMNS];
    int64_t index[COLUMNS];
    find_extremum(c, 1, best, index);
    put_columns(c, best);
}

static void min_columns(const columns *c) {
    float best[COLUMNS];
    int64_t index[COLUMNS];
    find_extremum(c, -1, best, index);
    put_columns(c, best);
}
COLUMNS_KERNEL(max, 0)
COLUMNS_KERNEL(min, 0)

static void argmax_columns(const columns *c) {
    float best[COLUMNS];
    int64_t index[COLUMNS];
    find_extremum(c, 1, best, index);
    for (int j = 0; j < c->n; j++)
        ((int32_t *)mz_out(c->call, argmax, y)->data)[c->outer * c->v.inner + c->first + j] = (int32_t)index[j];
}

static mezzo_status run_argmax(mezzo_device *device, const mz_call *call) {
    return each_columns(device, call, mz_in(call, argmax, x), argmax_columns);
}

MZ_CPU_KERNEL(argmax, "n", "i", NULL, NULL)

static void extremum_dx_columns(const columns *c) {
    const mz_tensor *x = mz_in(c->call, extremum_dx, x), *dx = mz_out(c->call, extremum_dx, dx);
    float dy_buffer[COLUMNS], y_buffer[COLUMNS], buffer[MZ_BLOCK], out[MZ_BLOCK], equals[COLUMNS] = {0};
    const float *dy = of_columns(c, mz_in(c->call, extremum_dx, dy), dy_buffer),
                *y = of_columns(c, mz_in(c->call, extremum_dx, y), y_buffer);
    EACH_PIECE(p, c, c->v.axis) {
        const float *v = block_in(x, p.at, p.n, buffer);
        for (int k = 0; k < p.n; k++)
            equals[COLUMN_OF(p, k)] += v[k] == y[COLUMN_OF(p, k)];
    }
    EACH_PIECE(p, c, c->v.axis) {
        const float *v = block_in(x, p.at, p.n, buffer);
        for (int k = 0; k < p.n; k++) {
            const int j = COLUMN_OF(p, k);
            out[k] = v[k] == y[j] ? dy[j] / equals[j] : 0;
        }
        narrow_block(out, element_at(dx, p.at), dx->dtype, p.n);
    }
}
COLUMNS_KERNEL(extremum_dx, 1)

// --- products, running sums ----------------------------------------------------------------------------------------
// Computes the product of the elements other than 0, and the number of zeros.
static void multiply(const columns *c, const mz_tensor *x, double *product, int64_t *zeros) {
    float buffer[MZ_BLOCK];
    for (int j = 0; j < c->n; j++) {
        product[j] = 1;
        zeros[j] = 0;
    }
    EACH_PIECE(p, c, c->v.axis) {
        const float *v = block_in(x, p.at, p.n, buffer);
        for (int k = 0; k < p.n; k++) {
            product[COLUMN_OF(p, k)] *= v[k] == 0 ? 1 : (double)v[k];
            zeros[COLUMN_OF(p, k)] += v[k] == 0;
        }
    }
}

static void prod_columns(const columns *c) {
    double product[COLUMNS];
    int64_t zeros[COLUMNS];
    float y[COLUMNS];
    multiply(c, mz_in(c->call, prod, x), product, zeros);
    for (int j = 0; j < c->n; j++)
        y[j] = zeros[j] > 0 ? (float)product[j] * 0 : (float)product[j]; // infinity times 0 is NaN
    put_columns(c, y);
}
COLUMNS_KERNEL(prod, 0)

static void prod_dx_columns(const columns *c) {
    const mz_tensor *x = mz_in(c->call, prod_dx, x), *dx = mz_out(c->call, prod_dx, dx);
    double product[COLUMNS];
    int64_t zeros[COLUMNS];
    float dy_buffer[COLUMNS], buffer[MZ_BLOCK], out[MZ_BLOCK];
    const float *dy = of_columns(c, mz_in(c->call, prod_dx, dy), dy_buffer);
    multiply(c, x, product, zeros);
    EACH_PIECE(p, c, c->v.axis) {
        const float *v = block_in(x, p.at, p.n, buffer);
        for (int k = 0; k < p.n; k++) {
            const int j = COLUMN_OF(p, k);
            const bool only = zeros[j] == (v[k] == 0); // no other element is 0
            out[k] = only ? (float)((double)dy[j] * (product[j] / (v[k] == 0 ? 1 : (double)v[k]))) : dy[j] * 0;
        }
        narrow_block(out, element_at(dx, p.at), dx->dtype, p.n);
    }
}
COLUMNS_KERNEL(prod_dx, 1)

static void cumsum_columns(const columns *c) {
    const mz_attrs *attrs = &c->call->attrs;
    const mz_tensor *x = mz_in(c->call, cumsum, x), *y = mz_out(c->call, cumsum, y);
    double sum[COLUMNS] = {0};
    for (int64_t done = 0; done < c->v.axis;) {
        const int count = c->v.inner == 1 ? (int)min64(MZ_BLOCK, c->v.axis - done) : c->n,
                  rows = c->v.inner == 1 ? count : 1;
        const int64_t axis = attrs->reverse ? c->v.axis - done - rows : done;
        const int64_t at = (c->outer * c->v.axis + axis) * c->v.inner + c->first;
        float buffer[MZ_BLOCK], out[MZ_BLOCK];
        const float *v = block_in(x, at, count, buffer);
        for (int i = 0; i < count; i++) {
            const int k = attrs->reverse ? count - 1 - i : i, j = c->v.inner == 1 ? 0 : k;
            const double before = sum[j];
            sum[j] += (double)v[k];
            out[k] = (float)(attrs->exclusive ? before : sum[j]);
        }
        narrow_block(out, element_at(y, at), y->dtype, count);
        done += rows;
    }
}
COLUMNS_KERNEL(cumsum, 0)

// --- gathered and added --------------------------------------------------------------------------------------------
static int64_t indices_along(const mz_call *call) {
    const mz_shape *index = &mz_in(call, gather, index)->shape;
    return call->attrs.elementwise ? index->dim[call->attrs.axis] : mz_shape_count(index);
}

// Returns the place along the axis that the index names; -1: past either end.
static int64_t indexed(const columns *c, int64_t j, int64_t n, int column) {
    const int32_t *index = mz_in(c->call, gather, index)->data;
    int64_t at = index[c->call->attrs.elementwise ? (c->outer * n + j) * c->v.inner + c->first + column : j];
    at += at < 0 ? c->v.axis : 0;
    return at < 0 || at >= c->v.axis ? -1 : at;
}

static void gather_columns(const columns *c) {
    const mz_tensor *x = mz_in(c->call, gather, x), *y = mz_out(c->call, gather, y);
    const int64_t n = indices_along(c->call);
    const int run = c->call->attrs.elementwise ? 1 : c->n; // columns that share an index
    for (int64_t j = 0; j < n; j++)
        for (int k = 0; k < c->n; k += run) {
            const int64_t from = indexed(c, j, n, k), to = (c->outer * n + j) * c->v.inner + c->first + k;
            float buffer[COLUMNS];
            const float *v = from >= 0
                                 ? block_in(x, (c->outer * c->v.axis + from) * c->v.inner + c->first + k, run, buffer)
                                 : buffer;
            for (int i = 0; from < 0 && i < run; i++)
                buffer[i] = NAN;
            narrow_block(v, element_at(y, to), y->dtype, run);
        }
}

static mezzo_status run_gather(mezzo_device *device, const mz_call *call) {
    return each_columns(device, call, mz_in(call, gather, x), gather_columns);
}
MZ_CPU_KERNEL(gather, "ai", "a", NULL, NULL)

// Adds in FP32: in y, or in a buffer where y has fewer bits.
static void scatter_add_columns(const columns *c) {
    const mz_tensor *x = mz_in(c->call, scatter_add, x), *src = mz_in(c->call, scatter_add, src),
                    *y = mz_out(c->call, scatter_add, y);
    const bool wide = y->dtype == MEZZO_F32;
    const int64_t n = indices_along(c->call);
    float *sum = wide ? y->data : c->call->workspace, buffer[MZ_BLOCK];
    EACH_PIECE(p, c, c->v.axis) {
        const float *v = mz_present(x) ? block_in(x, p.at, p.n, buffer) : memset(buffer, 0, sizeof buffer);
        if (v != sum + p.at)
            memcpy(sum + p.at, v, 4 * (size_t)p.n);
    }
    EACH_PIECE(p, c, n) {
        const float *v = block_in(src, p.at, p.n, buffer);
        for (int k = 0; k < p.n; k++) {
            const int64_t to = indexed(c, p.axis + k * p.step, n, COLUMN_OF(p, k));
            if (to >= 0)
                sum[(c->outer * c->v.axis + to) * c->v.inner + c->first + COLUMN_OF(p, k)] += v[k];
        }
    }
    EACH_PIECE(p, c, c->v.axis)
    if (!wide)
        narrow_block(sum + p.at, element_at(y, p.at), y->dtype, p.n);
}

static size_t scatter_add_workspace(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const mz_tensor *y = mz_out(call, scatter_add, y);
    return y->dtype == MEZZO_F32 ? 0 : (size_t)mz_shape_count(&y->shape) * sizeof(float);
}

static mezzo_status run_scatter_add(mezzo_device *device, const mz_call *call) {
    return each_columns(device, call, mz_out(call, scatter_add, y), scatter_add_columns);
}
MZ_CPU_KERNEL(scatter_add, "aia", "a", scatter_add_workspace, NULL)
