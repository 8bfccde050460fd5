// Computes rotary position embedding: the table of cosines and sines, and the rotation of pairs of a head's dimensions.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

#include <math.h>

#if defined(MZ_ISA_PORTABLE)
static float scaled(const mz_rope_scaling *s, float f, int64_t i) {
    float kept = s->offset + s->slope * (s->by_index ? (float)i : f);
    kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
    return s->divisor > 0 ? f * kept + f / s->divisor * (1 - kept) : f;
}

// Computes the table once a step for all layers, with functions in FP64, so that a result is the nearest FP32 number
// (docs/dev/NUMERICS.md).
static mezzo_status run_rope_table(mezzo_device *device, const mz_call *call) {
    const mz_tensor *table = mz_out(call, rope_table, table); // [T, R]
    const int32_t *positions =
        mz_present(mz_in(call, rope_table, positions)) ? mz_in(call, rope_table, positions)->data : NULL;
    float *out = table->data;
    int64_t length = table->shape.dim[0], dims = table->shape.dim[1], half = dims / 2;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 40.0 * (double)(length * half)))
    for (int64_t i = 0; i < half; i++) {
        float frequency = 1 / (float)pow((double)call->attrs.theta, (double)((float)(2 * i) / (float)dims));
        const double amplitude = call->attrs.rope.divisor > 0 ? (double)call->attrs.rope.amplitude : 1;
        frequency = scaled(&call->attrs.rope, frequency, i);
        for (int64_t t = 0; t < length; t++) {
            float angle = (float)(positions != NULL ? positions[t] : t) * frequency;
            out[t * dims + i] = (float)(amplitude * cos((double)angle));
            out[t * dims + half + i] = (float)(amplitude * sin((double)angle));
        }
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL(rope_table, "i", "f", NULL, NULL)
#endif

// Rotates n pairs: y1 = x1·c - x2·s, y2 = x2·c + x1·s. The members of a pair are `step` apart, and pairs `stride`. y
// may be x.
static void turn_halves(const float *x, float *y, const float *c, const float *s, float sign, int half) {
    FOR_LANES(i, lanes, half) {
        vf a = vload_lanes(x + i, lanes, 0), b = vload_lanes(x + half + i, lanes, 0);
        vf cosine = vload_lanes(c + i, lanes, 0), sine = vload_lanes(s + i, lanes, 0) * sign;
        vstore_lanes(y + i, a * cosine - b * sine, lanes);
        vstore_lanes(y + half + i, b * cosine + a * sine, lanes);
    }
}

static void turn_neighbours(const float *x, float *y, const float *c, const float *s, float sign, int half) {
    for (int i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1], sine = s[i] * sign;
        y[2 * i] = a * c[i] - b * sine;
        y[2 * i + 1] = b * c[i] + a * sine;
    }
}

// Returns the workspace: one head at a time goes through FP32 buffers of a head's width where a format is low.
static size_t rope_workspace(const mezzo_device *device, const mz_call *call) {
    int64_t width = mz_in(call, rope, x)->shape.dim[2] / call->attrs.heads;
    return sizeof(float) * mz_align_up((size_t)width, 16) * 2 * (size_t)device->threads;
}

static mezzo_status run_rope(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, rope, x), *y = mz_out(call, rope, y); // [B, T, W]
    const float *table = mz_in(call, rope, table)->data;                   // [T, R] or [B·T, R]
    int64_t length = mz_in(call, rope, table)->shape.dim[0], heads = call->attrs.heads,
            rows = x->shape.dim[0] * x->shape.dim[1];
    int dims = (int)mz_in(call, rope, table)->shape.dim[1], half = dims / 2, width = (int)(x->shape.dim[2] / heads);
    size_t stride = mz_align_up((size_t)width, 16);
    bool copied = x->data == y->data; // in place: dimensions that are not rotated are there already
    float sign = call->attrs.inverse ? -1.0f : 1.0f;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.5 * (double)(rows * heads) * width))
    for (int64_t row = 0; row < rows; row++) {
        float *in_buffer = (float *)call->workspace + (size_t)mz_thread() * 2 * stride,
              *out_buffer = in_buffer + stride;
        const float *c = table + row % length * dims;
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = (row * heads + h) * width;
            if (h >= call->attrs.rotated) {
                if (!copied)
                    copy_elements(x, at, y, at, (heads - h) * width);
                break;
            }
            const float *from = block_in(x, at, width, in_buffer);
            float *to = block_out(y, at, out_buffer);
            (call->attrs.interleaved ? turn_neighbours : turn_halves)(from, to, c, c + half, sign, half);
            if (to != from)
                memcpy(to + dims, from + dims, sizeof(float) * (size_t)(width - dims));
            block_done(y, at, width, to);
        }
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL(rope, "af", "a", rope_workspace, NULL)
