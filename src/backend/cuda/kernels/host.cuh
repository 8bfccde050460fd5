// Host code beside device code includes this. A kernel of kernels.def is one line:
//   MZ_CUDA_KERNEL(softmax, launch_softmax, storages<"a", "a", narrow_output>)
// `launch` enqueues on cuda->stream, allocates nothing and waits for nothing; the last argument is its `prepare`.
#ifndef MZ_HOST_CUH
#define MZ_HOST_CUH

#include "launch.h"

extern "C" {
#include "backend/cuda/storage.h"
}

// The letters of mz_storages_refusal as an argument of a template.
template <size_t N> struct storage_letters {
    char text[N];
    constexpr storage_letters(const char (&letters)[N]) {
        for (size_t i = 0; i < N; i++)
            text[i] = letters[i];
    }
};

// A prepare that refuses storages other than IN and OUT, and what each of CHECKS refuses.
template <storage_letters IN, storage_letters OUT, const char *(*...CHECKS)(const mz_call *call)>
const char *storages(mezzo_device *, const mz_call *call, mz_prepared *) {
    const char *reason = mz_cuda_storages(call, IN.text, OUT.text);
    ((reason = reason != nullptr ? reason : CHECKS(call)), ...);
    return reason;
}
inline const char *narrow_input(const mz_call *call) {
    return mz_cuda_narrow(&call->in[0]);
}
inline const char *narrow_output(const mz_call *call) {
    return mz_cuda_narrow(&call->out[0]);
}

template <void (*LAUNCH)(const mz_cuda_device *cuda, const mz_call *call)>
mezzo_status enqueue(mezzo_device *device, const mz_call *call) {
    LAUNCH(mz_cuda(device), call);
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess
               ? MEZZO_OK
               : mz_trace(mz_cuda_error(error, mz_op_table[call->op].name), __FILE__, __LINE__, __func__);
}

#define MZ_CUDA_KERNEL(name, launch, ...)                                                                              \
    const mz_kernel mz_cuda_##name = {#name "__cuda", __VA_ARGS__, enqueue<launch>};

// Returns NULL, or why a kernel of compute capability 9.0a cannot run. `prepared`: what asking for its shared memory
// returned.
inline const char *refusal_of_90a(cudaError_t prepared) {
#ifdef MZ_CU_90A
    const bool built = true;
#else
    const bool built = false;
#endif
    (void)cudaGetLastError();
    return built && prepared == cudaSuccess ? NULL : "this build has no code for compute capability 9.0a";
}

inline unsigned blocks_of(int64_t items, int64_t each) {
    return static_cast<unsigned>((items + each - 1) / each);
}
inline unsigned blocks_at_most_2_20(int64_t items, int64_t each) { // of kernels that stride over the grid
    const int64_t blocks = (items + each - 1) / each;
    return static_cast<unsigned>(blocks < 1 << 20 ? blocks : 1 << 20);
}
// Launches a thread for each of the items, in blocks of BLOCK; with no items nothing.
template <int BLOCK, class... P, class... A>
void launch_threads(const mz_cuda_device *cuda, void (*kernel)(P...), int64_t items, const A &...args) {
    if (items > 0)
        kernel<<<blocks_of(items, BLOCK), BLOCK, 0, cuda->stream>>>(args...);
}
// The kernel of work that is f(i) for each of n items: [=] __device__(int64_t i) { … }
template <int BLOCK, class F> __global__ void __launch_bounds__(BLOCK) items_kernel(F f, int64_t n) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x;
    if (i < n)
        f(i);
}
template <int BLOCK = 256, class F> void launch_items(const mz_cuda_device *cuda, int64_t n, const F &f) {
    launch_threads<BLOCK>(cuda, items_kernel<BLOCK, F>, n, f, n);
}
// The same with 8 items side by side, where `width` is in eights, or 1, f(lanes, i): as many as the type of `lanes`
// says, from i on.
template <int N> struct lanes {
    __device__ constexpr operator int() const { return N; }
};
template <int N, int BLOCK, class F> __global__ void __launch_bounds__(BLOCK) vectors_kernel(F f, int64_t n) {
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x) * N;
    if (i < n)
        f(lanes<N>(), i);
}
template <int BLOCK = 256, class F>
void launch_vectors(const mz_cuda_device *cuda, int64_t n, int64_t width, const F &f) {
    if (width % 8 == 0)
        launch_threads<BLOCK>(cuda, vectors_kernel<8, BLOCK, F>, n / 8, f, n);
    else
        launch_threads<BLOCK>(cuda, vectors_kernel<1, BLOCK, F>, n, f, n);
}
template <class T> T *data_of(const mz_tensor *t) { // NULL: absent
    return mz_present(t) ? static_cast<T *>(t->data) : nullptr;
}

// A shape seen as [outer, axis, inner]. Axis -1: one axis of all elements.
struct axis_view {
    int64_t outer = 1, axis = 1, inner = 1;
    axis_view(const mz_shape *shape, int along) {
        if (along < 0)
            axis = mz_shape_count(shape);
        for (int d = 0; along >= 0 && d < shape->rank; d++)
            (d < along ? outer : d == along ? axis : inner) *= shape->dim[d];
    }
};

#endif
