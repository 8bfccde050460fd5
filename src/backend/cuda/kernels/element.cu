// Runs ops of element.def with operands that repeat, of one to three operands, integers among them: one element a
// thread.
#include "element.cuh"
#include "vec.cuh"

enum { THREADS = 256 };

struct operands {
    mz_cu_array in[MZ_CU_OPERANDS], y;
    mz_cu_broadcast loops;
};

__device__ __forceinline__ float load_number(mz_cu_array x, int64_t i) {
    return x.dtype == MZ_CU_I32 ? static_cast<float>(static_cast<const int32_t *>(x.data)[i])
                                : load1(x.data, x.dtype, i);
}

template <class ELEMENT, int N> __global__ void __launch_bounds__(THREADS) operands_kernel(operands o, int64_t n) {
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * THREADS) {
        int64_t rest = i, at[MZ_CU_OPERANDS] = {0, 0, 0};
        for (int d = o.loops.rank - 1; d >= 0; d--) {
            // The outermost index is what is left; 32 bits divide several times as fast.
            const int64_t next = d == 0            ? 0
                                 : rest >> 31 == 0 ? static_cast<uint32_t>(rest) / static_cast<uint32_t>(o.loops.dim[d])
                                                   : rest / o.loops.dim[d];
            const int64_t k = rest - next * o.loops.dim[d];
#pragma unroll
            for (int j = 0; j < N; j++)
                at[j] += k * o.loops.step[j][d];
            rest = next;
        }
        float v[MZ_CU_OPERANDS] = {0, 0, 0};
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = load_number(o.in[j], at[j]);
        const float y = ELEMENT::of(v[0], v[1], v[2], mz_cu_told{});
        if (o.y.dtype == MZ_CU_I32)
            static_cast<int32_t *>(o.y.data)[i] = static_cast<int32_t>(y);
        else
            store1(o.y.data, o.y.dtype, i, y);
    }
}

extern "C" cudaError_t mz_cu_operands(cudaStream_t stream, int op, const mz_cu_array *in, mz_cu_array y,
                                      const mz_cu_broadcast *repeats) {
    operands o = {{}, y, *repeats};
    int64_t n = 1;
    for (int d = 0; d < repeats->rank; d++)
        n *= repeats->dim[d];
    if (n == 0)
        return cudaSuccess;
    const int64_t blocks = (n + THREADS - 1) / THREADS;
    const unsigned grid = static_cast<unsigned>(blocks < 1 << 20 ? blocks : 1 << 20);
    switch (op) {
#define CASE(name, n_in)                                                                                               \
    case MZ_CU_##name:                                                                                                 \
        for (int j = 0; j < n_in; j++)                                                                                 \
            o.in[j] = in[j];                                                                                           \
        operands_kernel<element_##name, n_in><<<grid, THREADS, 0, stream>>>(o, n);                                     \
        break;
#define UNARY(...)
#define UNARY_OWN(...)
#define UNARY_FLAT(...)
#define BINARY(name, ...) CASE(name, 2) CASE(name##_da, 3) CASE(name##_db, 3)
#define BINARY_OWN(...)
#define COMPARE(name, ...) CASE(name, 2)
#define TERNARY(name, ...) CASE(name, 3) CASE(name##_da, 2) CASE(name##_db, 2)
#include "graph/element.def"
        CASE(CAST, 1)
    default:
        return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
