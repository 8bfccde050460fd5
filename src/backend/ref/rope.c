// Computes rotary position embedding (Su et al., "RoFormer", arXiv:2104.09864): it rotates pairs of a head's dimensions
// by an angle that grows with the position.
#include <math.h>

#include "backend/ref/ref.h"

static float scaled(const mz_rope_scaling *s, float f, int64_t i) {
    float kept = s->offset + s->slope * (s->by_index ? (float)i : f);
    kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
    return s->divisor > 0 ? f * kept + f / s->divisor * (1 - kept) : f;
}

// Computes the table with FP32 frequencies and angles, as the models' published code does: the rounding of an angle of
// 1,000 is not small, so it is part of the op. freq_i = 1/theta^(2i/R).
void mz_ref_rope_table(const mz_call *call) {
    const mz_tensor *positions = mz_in(call, rope_table, positions),
                    *table = mz_out(call, rope_table, table); // [T], [T, R]
    int64_t length = table->shape.dim[0], dims = table->shape.dim[1], half = dims / 2;
    for (int64_t t = 0; t < length; t++)
        for (int64_t i = 0; i < half; i++) {
            float power = (float)pow((double)call->attrs.theta, (double)((float)(2 * i) / (float)dims));
            float position = (float)(mz_present(positions) ? mz_ref_integer(positions, t) : t);
            float angle = position * scaled(&call->attrs.rope, 1 / power, i);
            double amplitude = call->attrs.rope.divisor > 0 ? (double)call->attrs.rope.amplitude : 1;
            mz_ref_put(table, t * dims + i, amplitude * cos((double)angle));
            mz_ref_put(table, t * dims + half + i, amplitude * sin((double)angle));
        }
}

void mz_ref_rope(const mz_call *call) {
    const mz_tensor *x = mz_in(call, rope, x), *table = mz_in(call, rope, table),
                    *y = mz_out(call, rope, y);                                        // [B, T, W]
    int64_t length = table->shape.dim[0], dims = table->shape.dim[1], half = dims / 2; // [T, R] or [B·T, R]
    int64_t width = x->shape.dim[2] / call->attrs.heads, heads = mz_shape_count(&x->shape) / width;
    for (int64_t h = 0; h < heads; h++) { // visits the heads of all rows
        const int64_t at = h * width, t = h / call->attrs.heads % length;
        int64_t transposed = h % call->attrs.heads < call->attrs.rotated ? dims : 0;
        for (int64_t i = 0; i < transposed / 2; i++) {
            int64_t first = at + (call->attrs.interleaved ? 2 * i : i),
                    second = first + (call->attrs.interleaved ? 1 : half);
            double c = mz_ref_get(table, t * dims + i), s = mz_ref_get(table, t * dims + half + i);
            double a = mz_ref_get(x, first), b = mz_ref_get(x, second);
            s = call->attrs.inverse ? -s : s;
            mz_ref_put(y, first, a * c - b * s);
            mz_ref_put(y, second, b * c + a * s);
        }
        for (int64_t i = transposed; i < width; i++)
            mz_ref_put(y, at + i, mz_ref_get(x, at + i));
    }
}
