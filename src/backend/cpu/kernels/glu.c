// Computes SwiGLU and GeGLU (Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202) on rows that hold gate and
// up side by side, and their gradients.
#include "backend/cpu/kernels/act.h"
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

// A task is one block of one row of F numbers: its gates start at `gate`, and their partners F numbers further.
typedef struct place {
    int64_t at, gate;
    int n;
} place;

static int64_t blocks_of(int64_t width) {
    return (width + MZ_BLOCK - 1) / MZ_BLOCK;
}

static place place_of(int64_t task, int64_t width) {
    int64_t row = task / blocks_of(width), from = task % blocks_of(width) * MZ_BLOCK;
    return (place){row * width + from, row * 2 * width + from, (int)min64(MZ_BLOCK, width - from)};
}

static mezzo_status run_swiglu(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, swiglu, x), *y = mz_out(call, swiglu, y); // [… 2F], [… F]
    int64_t width = last_dim(&y->shape), n = mz_shape_count(&y->shape);
    const mz_act act = mz_act_of_gate(call->attrs.act);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.6 * (double)n))
    for (int64_t task = 0; task < n / width * blocks_of(width); task++) {
        float gate_buffer[MZ_BLOCK], up_buffer[MZ_BLOCK], y_buffer[MZ_BLOCK];
        place p = place_of(task, width);
        const float *gate = block_in(x, p.gate, p.n, gate_buffer), *up = block_in(x, p.gate + width, p.n, up_buffer);
        float *out = block_out(y, p.at, y_buffer);
        FOR_LANES(i, lanes, p.n)
        vstore_lanes(out + i, vact(act, vload_lanes(gate + i, lanes, 0)) * vload_lanes(up + i, lanes, 0), lanes);
        block_done(y, p.at, p.n, out);
    }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(swiglu, "a", "a", NULL, NULL)

// Computes d gate = dy·up·act'(gate), d up = dy·act(gate).
static mezzo_status run_swiglu_dx(mezzo_device *device, const mz_call *call) {
    const mz_tensor *dy = mz_in(call, swiglu_dx, dy), *x = mz_in(call, swiglu_dx, x),
                    *dx = mz_out(call, swiglu_dx, dx); // [… F], [… 2F], [… 2F]
    int64_t width = last_dim(&dy->shape), n = mz_shape_count(&dy->shape);
    const mz_act act = mz_act_of_gate(call->attrs.act);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 1.0 * (double)n))
    for (int64_t task = 0; task < n / width * blocks_of(width); task++) {
        float dy_buffer[MZ_BLOCK], gate_buffer[MZ_BLOCK], up_buffer[MZ_BLOCK], out_buffer[2][MZ_BLOCK];
        place p = place_of(task, width);
        const float *d = block_in(dy, p.at, p.n, dy_buffer), *gate = block_in(x, p.gate, p.n, gate_buffer);
        const float *up = block_in(x, p.gate + width, p.n, up_buffer);
        float *d_gate = block_out(dx, p.gate, out_buffer[0]), *d_up = block_out(dx, p.gate + width, out_buffer[1]);
        FOR_LANES(i, lanes, p.n) {
            vf grad = vload_lanes(d + i, lanes, 0), g = vload_lanes(gate + i, lanes, 0);
            vstore_lanes(d_gate + i, vact_dx(act, grad * vload_lanes(up + i, lanes, 0), g), lanes);
            vstore_lanes(d_up + i, grad * vact(act, g), lanes);
        }
        block_done(dx, p.gate, p.n, d_gate);
        block_done(dx, p.gate + width, p.n, d_up);
    }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(swiglu_dx, "a", "a", NULL, NULL)
