// Lets kernels work on tensors of any float format: a block of at most MZ_BLOCK elements is converted to FP32,
// processed, and rounded once to the output's format. Three buffers of a block (6 KiB) stay in any L1. FP32 tensors are
// used where they are.
#ifndef MZ_CPU_BLOCK_H
#define MZ_CPU_BLOCK_H

#include <omp.h>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/vec.h"

enum { MZ_BLOCK = 512 };

static inline int mz_thread(void) {
    return omp_get_thread_num();
}
static inline int mz_team(void) {
    return omp_get_num_threads();
}

// Loops over n elements in vectors; `lanes` is VW, or the rest at the end.
#define FOR_LANES(i, lanes, n)                                                                                         \
    for (int i = 0, lanes = (n) < VW ? (int)(n) : VW; i < (n); i += VW, lanes = (int)(n)-i < VW ? (int)(n)-i : VW)

// Loops likewise, with the body written out for whole vectors and for the rest, so that the loop has no test, which
// matters where the body has few instructions. The body is the last argument.
#define EACH_VECTOR(i, lanes, n, ...)                                                                                  \
    do {                                                                                                               \
        int i = 0;                                                                                                     \
        for (const int lanes = VW; i + VW <= (int)(n); i += VW)                                                        \
            __VA_ARGS__                                                                                                \
        if (i < (int)(n)) {                                                                                            \
            const int lanes = (int)(n)-i;                                                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    } while (0)

static inline vf vload_lanes(const float *p, int lanes, float fill) {
    return lanes == VW ? vload(p) : vload_n(p, lanes, fill);
}
static inline void vstore_lanes(float *p, vf x, int lanes) {
    if (lanes == VW)
        vstore(p, x);
    else
        vstore_n(p, x, lanes);
}
static inline vh hload_lanes(const uint16_t *p, int lanes) {
    if (lanes == VW)
        return *(const vh_any *)(const void *)p;
#if VEC_512
    return (vh)_mm256_maskz_loadu_epi16((__mmask16)((1u << lanes) - 1), p);
#else
    vh x = {0};
    for (int i = 0; i < lanes; i++)
        x[i] = p[i];
    return x;
#endif
}
static inline void hstore_lanes(uint16_t *p, vh x, int lanes) {
    if (lanes == VW) {
        *(vh_any *)(void *)p = x;
        return;
    }
#if VEC_512
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << lanes) - 1), (__m256i)x);
#else
    for (int i = 0; i < lanes; i++)
        p[i] = x[i];
#endif
}

static inline void widen_block(const void *src, mezzo_dtype dtype, float *dst, int n) {
    const uint16_t *p = src;
    if (dtype == MEZZO_F32) {
        memcpy(dst, src, 4 * (size_t)n);
    } else if (dtype == MEZZO_BF16) {
        EACH_VECTOR(i, lanes, n, { vstore_lanes(dst + i, from_bf16(hload_lanes(p + i, lanes)), lanes); });
    } else {
        EACH_VECTOR(i, lanes, n, { vstore_lanes(dst + i, from_f16(hload_lanes(p + i, lanes)), lanes); });
    }
}
static inline void narrow_block(const float *src, void *dst, mezzo_dtype dtype, int n) {
    uint16_t *p = dst;
    if (dtype == MEZZO_F32) {
        memcpy(dst, src, 4 * (size_t)n);
    } else if (dtype == MEZZO_BF16) {
        EACH_VECTOR(i, lanes, n, { hstore_lanes(p + i, to_bf16(vload_lanes(src + i, lanes, 0)), lanes); });
    } else {
        EACH_VECTOR(i, lanes, n, { hstore_lanes(p + i, to_f16(vload_lanes(src + i, lanes, 0)), lanes); });
    }
}

static inline char *element_at(const mz_tensor *t, int64_t at) {
    return (char *)t->data + at * (t->dtype == MEZZO_F32 ? 4 : 2);
}
// Hardware prefetchers stop at the end of a page and are only a few lines ahead, so the kernels prefetch what they read
// and write a page later. A prefetch past a tensor's end is harmless.
enum { PREFETCH_AHEAD = 4096 };
static inline void prefetch_reads(const char *from, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(from + PREFETCH_AHEAD + line, 0, 2);
}
static inline void prefetch_writes(const char *from, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(from + PREFETCH_AHEAD + line, 1, 2);
}

// Returns n elements from `at` as FP32: in place, or converted into `buffer`.
static inline const float *block_in(const mz_tensor *t, int64_t at, int n, float *buffer) {
    prefetch_reads(element_at(t, at), (size_t)n * (t->dtype == MEZZO_F32 ? 4 : 2));
    if (t->dtype == MEZZO_F32)
        return (const float *)t->data + at;
    widen_block(element_at(t, at), t->dtype, buffer, n);
    return buffer;
}
// Returns the same, also for integers.
static inline const float *numbers_in(const mz_tensor *t, int64_t at, int n, float *buffer) {
    if (t->dtype != MEZZO_I32)
        return block_in(t, at, n, buffer);
    for (int i = 0; i < n; i++)
        buffer[i] = (float)((const int32_t *)t->data)[at + i];
    return buffer;
}
// Returns where a block's FP32 results are written; block_done rounds them into the tensor.
static inline float *block_out(const mz_tensor *t, int64_t at, float *buffer) {
    return t->dtype == MEZZO_F32 ? (float *)t->data + at : buffer;
}
static inline void block_done(const mz_tensor *t, int64_t at, int n, const float *buffer) {
    prefetch_writes(element_at(t, at), (size_t)n * (t->dtype == MEZZO_F32 ? 4 : 2));
    if (t->dtype != MEZZO_F32)
        narrow_block(buffer, element_at(t, at), t->dtype, n);
}

// Copies n elements from one float format to another; the same format is copied bit for bit.
static inline void copy_elements(const mz_tensor *from, int64_t at, const mz_tensor *to, int64_t put, int64_t n) {
    if (from->dtype == to->dtype) {
        size_t size = mezzo_dtype_size(from->dtype);
        memcpy((char *)to->data + (size_t)put * size, (const char *)from->data + (size_t)at * size, (size_t)n * size);
        return;
    }
    float buffer[MZ_BLOCK];
    for (int64_t i = 0; i < n; i += MZ_BLOCK) {
        int count = n - i < MZ_BLOCK ? (int)(n - i) : MZ_BLOCK;
        const float *x = block_in(from, at + i, count, buffer);
        narrow_block(x, element_at(to, put + i), to->dtype, count);
    }
}

// Defines a kernel by what it needs (mz_cpu_needs).
#define MZ_CPU_KERNEL(op, in, out, workspace, refuses)                                                                 \
    MZ_CPU_KERNEL_NAMED(MZ_SYMBOL(op), op, #op "__" MZ_LEVEL_TEXT, in, out, workspace, refuses)
#define MZ_CPU_KERNEL_NAMED(symbol, op, name, in, out, workspace, refuses)                                             \
    static const char *prepare_##op(mezzo_device *device, const mz_call *call, mz_prepared *prepared) {                \
        return mz_cpu_prepare(device, call, &(mz_cpu_needs){in, out, workspace, refuses}, prepared);                   \
    }                                                                                                                  \
    const mz_kernel symbol = {name, prepare_##op, run_##op};

// --- rows ----------------------------------------------------------------------------------------------------------
static inline int64_t last_dim(const mz_shape *s) {
    return s->rank > 0 ? s->dim[s->rank - 1] : 1;
}
// A shape viewed as [outer, axis, inner]; axis -1: one axis of all elements.
typedef struct axis_view {
    int64_t outer, axis, inner;
} axis_view;
static inline axis_view view_along(const mz_shape *shape, int axis) {
    axis_view v = {1, 1, 1};
    if (axis < 0) {
        v.axis = mz_shape_count(shape);
        return v;
    }
    for (int d = 0; d < shape->rank; d++)
        *(d < axis ? &v.outer : d == axis ? &v.axis : &v.inner) *= shape->dim[d];
    return v;
}
static inline int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

#endif
