// Moves pieces of tensors without reading their values, and counts.
#include "host.cuh"
#include "layout.cuh"
#include "vec.cuh"

enum { COPY_BLOCK = 256, PARTS = 16 };
static_assert(PARTS >= MZ_MAX_IN && PARTS >= MZ_MAX_OUT, "room for every part");

struct part_args { // sizes in bytes: part i is width[i] of every `stride` of the whole, from offset[i]
    void *whole, *part[PARTS];
    int64_t outer, stride, width[PARTS], offset[PARTS];
    int n;
};
// y's loops in order, with their strides in x; units of `size` bytes (1 2 4 8 16).
struct permute_args {
    int rank, size;
    int64_t dim[MEZZO_MAX_RANK], stride[MEZZO_MAX_RANK];
};

// Calls run(U()) with a U of `size` bytes: a power of two up to MOST.
template <int MOST, class RUN> static void for_units(int size, RUN run) {
    if constexpr (MOST >= 16)
        if (size == 16)
            return run(uint4());
    if (size == 8)
        run(uint2());
    else if (size == 4)
        run(uint32_t());
    else if (size == 2)
        run(uint16_t());
    else
        run(uint8_t());
}

// A part is `width` units of every `stride` units of the whole, from `offset`; units are of type U, of which a thread
// moves AT_ONCE at a time.
enum { AT_ONCE = 4 };
template <typename U> __global__ void __launch_bounds__(COPY_BLOCK) parts_kernel(part_args p, int size, bool join) {
    const int which = blockIdx.y;
    const mz_layout part_of = {p.width[which] / size, p.stride / size, 1, 1};
    U *part = static_cast<U *>(p.part[which]), *whole = static_cast<U *>(p.whole) + p.offset[which] / size;
    const int64_t n = p.outer * part_of.width, step = static_cast<int64_t>(gridDim.x) * COPY_BLOCK;
    for (int64_t i = thread_index<COPY_BLOCK>(); i < n; i += AT_ONCE * step) {
        U unit[AT_ONCE];
        int64_t at[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (i + k * step < n) {
                at[k] = layout_index(part_of, i + k * step);
                unit[k] = join ? part[i + k * step] : whole[at[k]];
            }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (i + k * step < n)
                (join ? whole[at[k]] : part[i + k * step]) = unit[k];
    }
}

static void launch_parts(const mz_cuda_device *cuda, const part_args &p, bool join) {
    int64_t bits = p.stride, most = 0; // the lowest set bit of any size is the unit; allocations are 64-byte aligned
    for (int i = 0; i < p.n; i++) {
        bits |= p.width[i] | p.offset[i];
        most = p.width[i] > most ? p.width[i] : most;
    }
    if (p.outer * most == 0)
        return;
    int64_t lowest = bits & -bits;
    int size = lowest >= 16 ? 16 : static_cast<int>(lowest);
    const int64_t most_units = p.outer * most / size;
    dim3 grid(blocks_at_most_2_20((most_units + AT_ONCE - 1) / AT_ONCE, COPY_BLOCK), static_cast<unsigned>(p.n));
    for_units<16>(
        size, [&](auto unit) { parts_kernel<decltype(unit)><<<grid, COPY_BLOCK, 0, cuda->stream>>>(p, size, join); });
}

// Launches all parts of the split or concatenated tensor `whole`.
static void launch_all_parts(const mz_cuda_device *cuda, const mz_call *call) {
    const bool join = call->op == MZ_OP_concat;
    const mz_tensor *whole = join ? mz_out(call, concat, y) : mz_in(call, split, x);
    const mz_tensor *parts = join ? call->in : call->out;
    const axis_view v(&whole->shape, call->attrs.axis);
    const int64_t size = static_cast<int64_t>(mezzo_dtype_size(whole->dtype));
    part_args p = {.whole = whole->data,
                   .outer = v.outer,
                   .stride = v.axis * v.inner * size,
                   .n = join ? call->n_in : call->n_out};
    int64_t from = 0;
    for (int i = 0; i < p.n; i++) {
        p.part[i] = parts[i].data;
        p.width[i] = parts[i].shape.dim[call->attrs.axis] * v.inner * size;
        p.offset[i] = from;
        from += p.width[i];
    }
    launch_parts(cuda, p, join);
}
// One part of `whole`, from attrs.begin to attrs.end.
static void launch_part(const mz_cuda_device *cuda, const mz_call *call, const mz_tensor *whole, void *part,
                        bool join) {
    const axis_view v(&whole->shape, call->attrs.axis);
    const int64_t unit = v.inner * static_cast<int64_t>(mezzo_dtype_size(whole->dtype));
    part_args p = {.whole = whole->data, .outer = v.outer, .stride = v.axis * unit, .n = 1};
    p.part[0] = part;
    p.width[0] = (call->attrs.end - call->attrs.begin) * unit;
    p.offset[0] = call->attrs.begin * unit;
    launch_parts(cuda, p, join);
}
static void launch_slice(const mz_cuda_device *cuda, const mz_call *call) {
    launch_part(cuda, call, mz_in(call, slice, x), mz_out(call, slice, y)->data, false);
}

static void launch_fill(const mz_cuda_device *cuda, const mz_tensor *tensor, float value) {
    const mz_cu_array y = mz_cuda_array(tensor);
    launch_items(cuda, mz_shape_count(&tensor->shape), [=] __device__(int64_t i) { store_number(y, i, value); });
}
static void launch_constant(const mz_cuda_device *cuda, const mz_call *call) {
    launch_fill(cuda, mz_out(call, constant, y), call->attrs.alpha);
}
static void launch_pad(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *y = mz_out(call, pad, y);
    const size_t bytes = static_cast<size_t>(mz_shape_count(&y->shape)) * mezzo_dtype_size(y->dtype);
    if (call->attrs.alpha == 0)
        cudaMemsetAsync(y->data, 0, bytes, cuda->stream);
    else
        launch_fill(cuda, y, call->attrs.alpha);
    launch_part(cuda, call, y, mz_in(call, pad, x)->data, true);
}

template <typename U>
__global__ void __launch_bounds__(COPY_BLOCK) permute_kernel(const U *x, U *y, permute_args p, int64_t n) {
    for (int64_t i = thread_index<COPY_BLOCK>(); i < n; i += static_cast<int64_t>(gridDim.x) * COPY_BLOCK) {
        int64_t rest = i, at = 0;
        for (int d = p.rank - 1; d >= 0; d--) {
            int64_t next = rest / p.dim[d];
            at += (rest - next * p.dim[d]) * p.stride[d];
            rest = next;
        }
        y[i] = x[at];
    }
}

// Where rows stay whole, their bytes are moved in the largest units that fit them.
static void launch_permute(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *x = mz_in(call, permute, x), *y = mz_out(call, permute, y);
    const mz_permuted loops = mz_shape_permute(&x->shape, call->attrs.permutation);
    permute_args p = {.rank = loops.rank, .size = static_cast<int>(mezzo_dtype_size(x->dtype))};
    const int last = p.rank - 1;
    int64_t units = 1, n = 1; // elements in one
    while (loops.stride[last] == 1 && p.size < 16 && loops.dim[last] % (2 * units) == 0) {
        units *= 2;
        p.size *= 2;
    }
    for (int i = 0; i < p.rank; i++) {
        p.dim[i] = i == last ? loops.dim[i] / units : loops.dim[i];
        p.stride[i] = i == last ? loops.stride[i] : loops.stride[i] / units;
        n *= p.dim[i];
    }
    for_units<16>(p.size, [&](auto unit) {
        using U = decltype(unit);
        if (n > 0)
            permute_kernel<<<blocks_at_most_2_20(n, COPY_BLOCK), COPY_BLOCK, 0, cuda->stream>>>(
                static_cast<const U *>(x->data), static_cast<U *>(y->data), p, n);
    });
}

// Returns the element stored at s; -1: padding.
__device__ __forceinline__ int64_t element_at(const mz_layout &l, int64_t s) {
    if (l.width == 0)
        return s;
    int64_t row = s / l.pitch, column = s - row * l.pitch, group = row / l.group_pitch, in_group = row % l.group_pitch;
    return column < l.width && in_group < l.group ? (group * l.group + in_group) * l.width + column : -1;
}

template <typename U>
void copy(const mz_cuda_device *cuda, const U *x, mz_layout from, U *y, mz_layout to, int64_t n, int64_t stored) {
    launch_items(cuda, stored, [=] __device__(int64_t s) {
        const int64_t i = element_at(to, s);
        y[s] = i >= 0 && i < n ? x[layout_index(from, i)] : U{};
    });
}

static void launch_copy(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *x = mz_in(call, copy, x), *y = mz_out(call, copy, y);
    const int64_t n = mz_shape_count(&x->shape), stored = mz_stored_count(&y->shape, &y->storage);
    const mz_layout from = mz_cuda_layout(x), to = mz_cuda_layout(y);
    for_units<8>(static_cast<int>(mezzo_dtype_size(x->dtype)), [&](auto unit) {
        using U = decltype(unit);
        copy(cuda, static_cast<const U *>(x->data), from, static_cast<U *>(y->data), to, n, stored);
    });
}

// Programs let the two values share memory, so this runs only where a caller asks for it by hand.
static void launch_reshape(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *x = mz_in(call, reshape, x);
    cudaMemcpyAsync(mz_out(call, reshape, y)->data, x->data,
                    static_cast<size_t>(mz_shape_count(&x->shape)) * mezzo_dtype_size(x->dtype),
                    cudaMemcpyDeviceToDevice, cuda->stream);
}

static void launch_arange(const mz_cuda_device *cuda, const mz_call *call) {
    int32_t *y = data_of<int32_t>(mz_out(call, arange, y));
    const int64_t begin = call->attrs.begin, step = call->attrs.step;
    launch_items(cuda, mz_shape_count(&mz_out(call, arange, y)->shape),
                 [=] __device__(int64_t i) { y[i] = static_cast<int32_t>(begin + i * step); });
}

// --- supported calls -----------------------------------------------------------------------------------------------
static const char *same_storage(mezzo_device *, const mz_call *call, mz_prepared *) {
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i].dtype != mz_in(call, pad, x)->dtype)
            return "the inputs have different storages";
    for (int i = 0; i < call->n_out; i++)
        if (call->out[i].dtype != mz_in(call, pad, x)->dtype)
            return "the output's storage is not the input's";
    return NULL;
}
static const char *pad_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const char *reason = same_storage(device, call, out);
    return reason != NULL ? reason : mz_cuda_storages(call, "n", "n");
}
static const char *copy_prepare(mezzo_device *, const mz_call *call, mz_prepared *) {
    if (mz_in(call, copy, x)->dtype != mz_out(call, copy, y)->dtype)
        return "copy does not convert";
    const char *reason = mz_cuda_has_layout(mz_in(call, copy, x));
    return reason != NULL ? reason : mz_cuda_has_layout(mz_out(call, copy, y));
}

MZ_CUDA_KERNEL(split, launch_all_parts, same_storage)
MZ_CUDA_KERNEL(concat, launch_all_parts, same_storage)
MZ_CUDA_KERNEL(slice, launch_slice, same_storage)
MZ_CUDA_KERNEL(pad, launch_pad, pad_prepare)
MZ_CUDA_KERNEL(permute, launch_permute, same_storage)
MZ_CUDA_KERNEL(reshape, launch_reshape, same_storage)
MZ_CUDA_KERNEL(copy, launch_copy, copy_prepare)
MZ_CUDA_KERNEL(constant, launch_constant, storages<"n", "n">)
MZ_CUDA_KERNEL(arange, launch_arange, storages<"i", "i">)
