// Cases of matrix products that are symmetric.
#include <math.h>
#include <stdlib.h>

#include "products.h"
#include "test.h"

// The lower half of the matrices of an input is copied to the upper one.
static void mirror(trial_tensor *x) {
    const int64_t side = x->t.shape.dim[2];
    for (int64_t i = 0; i < trial_count(x); i++) {
        const int64_t row = i / side % side, col = i % side;
        if (col > row)
            x->value[i] = x->value[i + (col - row) * (side - 1)];
    }
    trial_store(x);
}

typedef struct symmetric_shape {
    int64_t matrices, side, inner; // inner 0: of matrices of the side, which one of them is added to
    bool ta, adds;
    fill how;
} symmetric_shape;

// Fills an input with symmetric matrices that commute with those of every other seed: an element depends on how far its
// row and column are apart on a circle of indices in another order.
static void fill_commuting(trial *t, int slot, fill how) {
    trial_tensor *x = &t->in[slot];
    const int64_t side = x->t.shape.dim[2];
    how == FILL_INTEGERS ? trial_integers(t, slot, -1, 1) : trial_normal(t, slot, 1);
    for (int64_t m = 0; m < trial_count(x) / (side * side); m++) {
        double *matrix = x->value + m * side * side, *first = mz_alloc((size_t)side, sizeof *first);
        assert_non_null(first);
        memcpy(first, matrix, (size_t)side * sizeof *first);
        for (int64_t i = 0; i < side * side; i++) {
            const int64_t apart = llabs(i / side * 17 % side - i % side * 17 % side);
            matrix[i] = first[apart < side - apart ? apart : side - apart];
        }
        mz_free(first);
    }
    trial_store(x);
}

// Makes x·xᵀ, xᵀ·x, a·a, or a·b of matrices that commute (two): products of which a kernel may compute one half.
static void symmetric_case(const symmetric_shape *s, bool two, arithmetic a, mezzo_dtype y) {
    const bool square = s->inner == 0;
    const int64_t inner = square ? s->side : s->inner;
    const mz_shape x = s->ta ? SHAPE(s->matrices, inner, s->side) : SHAPE(s->matrices, s->side, inner);
    trial *t = product(MZ_OP_matmul, a);
    t->attrs.symmetric = true;
    t->attrs.transpose_a = s->ta;
    t->attrs.transpose_b = !square && !s->ta;
    t->one_operand = !two;
    trial_input(t, 0, a.storage, x);
    trial_input(t, 1, a.storage, x);
    if (s->adds) {
        trial_input(t, 2, a.storage, SHAPE(s->matrices, s->side, s->side));
        t->attrs.coefficients[0] = s->how == FILL_INTEGERS ? 2 : 2.0315f;
        t->attrs.coefficients[1] = s->how == FILL_INTEGERS ? -3 : -4.775f;
        t->attrs.coefficients[2] = s->how == FILL_INTEGERS ? 5 : square ? 3.4445f : 0;
    }
    trial_output(t, 0, y, SHAPE(s->matrices, s->side, s->side));
    fill_operands(t, inner, s->how);
    t->skip_terms = t->skip_terms || s->matrices > 1; // the reference would be made once more for each
    for (int i = 0; i < 2 && two; i++)
        fill_commuting(t, i, s->how);
    if (square && !two)
        mirror(&t->in[0]);
    if (!two)
        memcpy(t->in[1].value, t->in[0].value, (size_t)trial_count(&t->in[0]) * sizeof(double));
    trial_store(&t->in[1]);
    if (s->adds && square)
        memcpy(t->in[2].value, t->in[1].value, (size_t)trial_count(&t->in[0]) * sizeof(double));
    if (s->adds)
        mirror(&t->in[2]);
    trial_finish(t);
}

// Tiles of a GPU's kernel: fewer than it has blocks, and two turns and more; a part of one at the end; one that is
// divided.
static const symmetric_shape symmetric_shapes[] = {
    {1, 256, 64, false, false, FILL_NORMAL},   {1, 264, 64, true, true, FILL_NORMAL},
    {1, 264, 0, false, true, FILL_NORMAL},     {1, 264, 64, false, false, FILL_NAN},
    {5, 264, 72, true, true, FILL_INTEGERS},   {7, 392, 136, false, true, FILL_NORMAL},
    {7, 392, 136, true, false, FILL_NORMAL},   {7, 264, 0, false, true, FILL_INTEGERS},
    {20, 520, 64, false, true, FILL_INTEGERS}, {20, 520, 72, true, false, FILL_NORMAL},
    {28, 264, 128, true, true, FILL_NORMAL},   {1, 392, 3072, false, false, FILL_NORMAL},
    {1, 264, 3072, true, true, FILL_NORMAL},   {2, 1600, 64, true, true, FILL_NORMAL},
    {1, 1600, 72, false, false, FILL_NORMAL},  {28, 264, 0, false, true, FILL_NORMAL},
    {2, 392, 0, false, false, FILL_NORMAL},
};
enum { FEW_SYMMETRIC = 4 }; // of these, where no kernel of the device has tiles so large

void cases_symmetric(void) {
    const size_t n = devices_have("cuda") ? MZ_COUNT(symmetric_shapes) : FEW_SYMMETRIC;
    for (size_t i = 0; i < 2 * n; i++) {
        const size_t s = i / 2;
        const bool two = i % 2 == 1;
        for (size_t a = 0; a < OWN_ARITHMETICS && (!two || symmetric_shapes[s].inner == 0); a++)
            if (s < FEW_SYMMETRIC && arithmetics[a].storage != MEZZO_F32) {
                symmetric_case(&symmetric_shapes[s], two, arithmetics[a], arithmetics[a].storage);
                symmetric_case(&symmetric_shapes[s], two, arithmetics[a], MEZZO_F32);
            } else if (arithmetics[a].storage == MEZZO_BF16 || (arithmetics[a].storage == MEZZO_F16 && s % 2 == 1)) {
                // the reference of a large case takes seconds, so that FP16 has each form once
                symmetric_case(&symmetric_shapes[s], two, arithmetics[a], arithmetics[a].storage);
            }
    }
}
