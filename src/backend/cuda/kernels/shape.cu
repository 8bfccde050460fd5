// Moves pieces of tensors without reading their values, and counts.
#include "launch.h"
#include "layout.cuh"

enum { COPY_BLOCK = 256 };

// A part is `width` units of every `stride` units of the whole, from `offset`; units are of type U.
template <typename U> __global__ void __launch_bounds__(COPY_BLOCK) parts_kernel(mz_cu_parts p, int size, bool join) {
    int which = blockIdx.y;
    int64_t width = p.width[which] / size, stride = p.stride / size, offset = p.offset[which] / size;
    U *part = static_cast<U *>(p.part[which]), *whole = static_cast<U *>(p.whole);
    int64_t n = p.outer * width;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * COPY_BLOCK + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * COPY_BLOCK) {
        int64_t row = i / width, at = row * stride + offset + (i - row * width);
        if (join)
            whole[at] = part[i];
        else
            part[i] = whole[at];
    }
}

extern "C" cudaError_t mz_cu_copy_parts(cudaStream_t stream, const mz_cu_parts *parts, bool join) {
    mz_cu_parts p = *parts;
    int64_t bits = p.stride, most = 0; // the lowest set bit of any size is the unit; allocations are 64-byte aligned
    for (int i = 0; i < p.n; i++) {
        bits |= p.width[i] | p.offset[i];
        most = p.width[i] > most ? p.width[i] : most;
    }
    if (p.outer * most == 0)
        return cudaSuccess;
    int64_t lowest = bits & -bits;
    int size = lowest >= 16 ? 16 : static_cast<int>(lowest);
    int64_t units = p.outer * most / size, blocks = (units + COPY_BLOCK - 1) / COPY_BLOCK;
    dim3 grid(static_cast<unsigned>(blocks < 1 << 20 ? blocks : 1 << 20), static_cast<unsigned>(p.n));
    if (size == 16)
        parts_kernel<uint4><<<grid, COPY_BLOCK, 0, stream>>>(p, size, join);
    else if (size == 8)
        parts_kernel<uint2><<<grid, COPY_BLOCK, 0, stream>>>(p, size, join);
    else if (size == 4)
        parts_kernel<uint32_t><<<grid, COPY_BLOCK, 0, stream>>>(p, size, join);
    else if (size == 2)
        parts_kernel<uint16_t><<<grid, COPY_BLOCK, 0, stream>>>(p, size, join);
    else
        parts_kernel<uint8_t><<<grid, COPY_BLOCK, 0, stream>>>(p, size, join);
    return cudaGetLastError();
}

template <typename U>
__global__ void __launch_bounds__(COPY_BLOCK) permute_kernel(const U *x, U *y, mz_cu_permuted p, int64_t n) {
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * COPY_BLOCK + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * COPY_BLOCK) {
        int64_t rest = i, at = 0;
        for (int d = p.rank - 1; d >= 0; d--) {
            int64_t next = rest / p.dim[d];
            at += (rest - next * p.dim[d]) * p.stride[d];
            rest = next;
        }
        y[i] = x[at];
    }
}

template <typename U>
static cudaError_t launch_permute(cudaStream_t stream, const void *x, void *y, const mz_cu_permuted &p) {
    int64_t n = 1;
    for (int d = 0; d < p.rank; d++)
        n *= p.dim[d];
    if (n == 0)
        return cudaSuccess;
    int64_t blocks = (n + COPY_BLOCK - 1) / COPY_BLOCK;
    permute_kernel<U><<<static_cast<unsigned>(blocks < 1 << 20 ? blocks : 1 << 20), COPY_BLOCK, 0, stream>>>(
        static_cast<const U *>(x), static_cast<U *>(y), p, n);
    return cudaGetLastError();
}

extern "C" cudaError_t mz_cu_permute(cudaStream_t stream, const void *x, void *y, const mz_cu_permuted *p) {
    switch (p->size) {
    case 16:
        return launch_permute<uint4>(stream, x, y, *p);
    case 8:
        return launch_permute<uint2>(stream, x, y, *p);
    case 4:
        return launch_permute<uint32_t>(stream, x, y, *p);
    case 2:
        return launch_permute<uint16_t>(stream, x, y, *p);
    case 1:
        return launch_permute<uint8_t>(stream, x, y, *p);
    default:
        return cudaErrorInvalidValue;
    }
}

// Returns the element stored at s; -1: padding.
__device__ __forceinline__ int64_t element_at(const mz_cu_layout &l, int64_t s) {
    if (l.width == 0)
        return s;
    int64_t row = s / l.pitch, column = s - row * l.pitch, group = row / l.group_pitch, in_group = row % l.group_pitch;
    return column < l.width && in_group < l.group ? (group * l.group + in_group) * l.width + column : -1;
}

template <typename U>
__global__ void __launch_bounds__(COPY_BLOCK)
    copy_kernel(const U *x, mz_cu_layout from, U *y, mz_cu_layout to, int64_t n, int64_t stored) {
    for (int64_t s = static_cast<int64_t>(blockIdx.x) * COPY_BLOCK + threadIdx.x; s < stored;
         s += static_cast<int64_t>(gridDim.x) * COPY_BLOCK) {
        int64_t i = element_at(to, s);
        y[s] = i >= 0 && i < n ? x[layout_index(from, i)] : U(0);
    }
}

template <typename U>
static void copy_units(cudaStream_t stream, const void *x, mz_cu_layout from, void *y, mz_cu_layout to, int64_t n,
                       int64_t stored) {
    int64_t blocks = (stored + COPY_BLOCK - 1) / COPY_BLOCK;
    copy_kernel<U><<<static_cast<unsigned>(blocks < 1 << 20 ? blocks : 1 << 20), COPY_BLOCK, 0, stream>>>(
        static_cast<const U *>(x), from, static_cast<U *>(y), to, n, stored);
}

extern "C" cudaError_t mz_cu_copy(cudaStream_t stream, const void *x, mz_cu_layout from, void *y, mz_cu_layout to,
                                  int64_t n, int64_t stored, size_t size) {
    if (stored == 0)
        return cudaSuccess;
    if (size == 8)
        copy_units<uint64_t>(stream, x, from, y, to, n, stored);
    else if (size == 4)
        copy_units<uint32_t>(stream, x, from, y, to, n, stored);
    else if (size == 2)
        copy_units<uint16_t>(stream, x, from, y, to, n, stored);
    else
        copy_units<uint8_t>(stream, x, from, y, to, n, stored);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(COPY_BLOCK) arange_kernel(int32_t *y, int64_t n, int64_t begin, int64_t step) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * COPY_BLOCK + threadIdx.x;
    if (i < n)
        y[i] = static_cast<int32_t>(begin + i * step);
}

extern "C" cudaError_t mz_cu_arange(cudaStream_t stream, int32_t *y, int64_t n, int64_t begin, int64_t step) {
    if (n == 0)
        return cudaSuccess;
    arange_kernel<<<static_cast<unsigned>((n + COPY_BLOCK - 1) / COPY_BLOCK), COPY_BLOCK, 0, stream>>>(y, n, begin,
                                                                                                       step);
    return cudaGetLastError();
}
