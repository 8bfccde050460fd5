// The facts that ops.def states: slots' numbers and words, what may be replaced, and operations.

#include "graph/op.h"
#include "test.h"

TEST(slots_are_numbered_in_order) {
    assert_int_equal(MZ_IN(linear, x), 0);
    assert_int_equal(MZ_IN(linear, residual), 3);
    assert_int_equal(MZ_OUT(linear, preact), 1);
    assert_int_equal(MZ_IN(attention_cached, positions), mz_op_find_slot(MZ_OP_attention_cached, false, "positions"));
    assert_int_equal(MZ_OUT(layernorm_bwd, linear_dbias), mz_op_find_slot(MZ_OP_layernorm_bwd, true, "linear_dbias"));
    assert_int_equal(mz_op_find_slot(MZ_OP_linear, false, "y"), -1);
    assert_int_equal(mz_op_table[MZ_OP_arange].n_in, 0);
    assert_string_equal(mz_op_slot(MZ_OP_concat, false, 7).name, "x");
    assert_string_equal(mz_op_slot(MZ_OP_linear, false, 7).name, "");
}

// Words that stand where they mean nothing: a repeated slot before others, a replaced output, a gradient that is an
// input.
TEST(words_stand_where_they_mean_something) {
    for (int op = 0; op < MZ_OP_COUNT; op++) {
        const mz_op_info *info = &mz_op_table[op];
        int replaced = 0;
        for (int i = 0; i < info->n_in; i++) {
            unsigned is = info->in[i].is;
            replaced += (is & MZ_SLOT_REPLACED) != 0;
            if (is & MZ_SLOT_GRADIENT || (is & MZ_SLOT_REPEATED && i + 1 < info->n_in))
                fail_msg("%s: input %s", info->name, info->in[i].name);
        }
        for (int i = 0; i < info->n_out; i++)
            if (info->out[i].is & (MZ_SLOT_REPLACED | MZ_SLOT_STATE) ||
                (info->out[i].is & MZ_SLOT_REPEATED && i + 1 < info->n_out))
                fail_msg("%s: output %s", info->name, info->out[i].name);
        if (replaced > 1 || (replaced == 1 && info->n_out == 0))
            fail_msg("%s: its first output can replace one input", info->name);
    }
    assert_int_equal(mz_op_reuses(MZ_OP_cross_entropy_dx), MZ_IN(cross_entropy_dx, logits));
    assert_int_equal(mz_op_reuses(MZ_OP_swiglu), -1);
}

TEST(every_saved_name_is_a_slot) {
    for (int op = 0; op < MZ_OP_COUNT; op++) {
        const char *s = mz_op_table[op].saved;
        while (*s != '\0') {
            char name[32];
            size_t length = strcspn(s, " ");
            assert_in_range(length, 1, sizeof name - 1);
            memcpy(name, s, length);
            name[length] = '\0';
            if (mz_op_find_slot((mz_op)op, false, name) < 0 && mz_op_find_slot((mz_op)op, true, name) < 0)
                fail_msg("%s saves %s, which it has not", mz_op_table[op].name, name);
            s += length;
            s += strspn(s, " ");
        }
    }
}

TEST(shapes_come_together_by_numpys_rules) {
    mz_shape out;
    const mz_shape a = {3, {2, 1, 4}}, b = {2, {3, 1}}, c = {1, {4}}, wrong = {2, {2, 4}};
    assert_true(mz_shape_broadcast(&a, &b, &out));
    assert_true(mz_shape_equal(&out, &(mz_shape){3, {2, 3, 4}}));
    assert_true(mz_shape_broadcast(&c, &a, &out));
    assert_true(mz_shape_equal(&out, &a));
    assert_false(mz_shape_broadcast(&wrong, &(mz_shape){2, {3, 4}}, &out));
    // [2 1 4] and [3 1]: three loops, for neighbours repeat differently.
    static const int dims[] = {2, 3, 4}, strides[2][3] = {{4, 0, 1}, {0, 1, 0}};
    mz_broadcast r = mz_broadcast_loops((const mz_shape *const[]){&a, &b}, 2, &(mz_shape){3, {2, 3, 4}});
    assert_int_equal(r.rank, 3);
    assert_int_equal(mz_broadcast_whole(&r), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r.dim[i], dims[i]);
        assert_int_equal(r.step[0][i], strides[0][i]);
        assert_int_equal(r.step[1][i], strides[1][i]);
    }
    // [5 6 7 8] and [7 8]: two loops, b repeats as a whole; [5 6 7 8] with itself: one.
    const mz_shape four = {4, {5, 6, 7, 8}}, two = {2, {7, 8}}, one = {1, {1}};
    r = mz_broadcast_loops((const mz_shape *const[]){&four, &two}, 2, &four);
    assert_int_equal(r.rank, 2);
    assert_int_equal(mz_broadcast_whole(&r), 56);
    r = mz_broadcast_loops((const mz_shape *const[]){&two, &four}, 2, &four);
    assert_int_equal(mz_broadcast_whole(&r), 0);
    r = mz_broadcast_loops((const mz_shape *const[]){&four, &four}, 2, &four);
    assert_int_equal(r.rank, 1);
    assert_int_equal(mz_broadcast_whole(&r), 5 * 6 * 7 * 8);
    r = mz_broadcast_loops((const mz_shape *const[]){&four, &one}, 2, &four);
    assert_int_equal(mz_broadcast_whole(&r), 1);
    r = mz_broadcast_loops((const mz_shape *const[]){&one, &one}, 2, &one);
    assert_int_equal(mz_broadcast_whole(&r), 1);
}

static double flops_of(mz_op op, const mz_attrs *attrs, mz_shape first, mz_shape second, mz_shape out) {
    const mz_shape *ins[MZ_MAX_IN] = {&first, &second}, *outs[MZ_MAX_OUT] = {&out};
    return mz_op_table[op].flops(attrs, ins, outs);
}

TEST(every_product_counts_its_operations) {
    for (int op = 0; op < MZ_OP_COUNT; op++)
        if (mz_op_is_product((mz_op)op) != (mz_op_table[op].flops != NULL))
            fail_msg("%s: .flops and the class MATMUL go together", mz_op_table[op].name);
    const mz_shape x = {3, {2, 5, 7}}, w = {2, {11, 7}}, y = {3, {2, 5, 11}}; // 10 rows of 7 by 11
    const mz_attrs plain = {0}, transposed = {.transpose_a = true};
    assert_true(flops_of(MZ_OP_linear, &plain, x, w, y) == 2 * 10 * 7 * 11);
    assert_true(flops_of(MZ_OP_linear_dx, &plain, y, w, x) == 2 * 10 * 7 * 11);
    assert_true(flops_of(MZ_OP_linear_dw, &plain, y, x, w) == 2 * 10 * 7 * 11);
    assert_true(flops_of(MZ_OP_matmul, &transposed, (mz_shape){2, {7, 3}}, (mz_shape){2, {7, 5}},
                         (mz_shape){2, {3, 5}}) == 2 * 3 * 5 * 7);
    const mz_shape experts = {3, {4, 11, 7}}, rows = {2, {10, 7}}, wide = {2, {10, 11}};
    assert_true(flops_of(MZ_OP_grouped_linear, &plain, rows, experts, wide) == 2 * 10 * 7 * 11);
    assert_true(flops_of(MZ_OP_grouped_linear_dx, &plain, wide, experts, rows) == 2 * 10 * 7 * 11);
    assert_true(flops_of(MZ_OP_grouped_linear_dw, &plain, wide, rows, experts) == 2 * 10 * 7 * 11);
    // T = 5: 15 pairs of positions, each a product of 7 and a sum of 7, in 2 batches.
    const mz_attrs causal = {.causal = true};
    assert_true(flops_of(MZ_OP_attention, &causal, x, x, x) == 2 * 2 * 15 * (7 + 7));
    assert_true(flops_of(MZ_OP_attention_bwd, &causal, x, x, x) == 2.5 * (2 * 2 * 15 * (7 + 7)));
    assert_true(flops_of(MZ_OP_attention, &plain, x, (mz_shape){3, {2, 9, 7}}, x) == 2 * 2 * 45 * (7 + 7));
    assert_true(flops_of(MZ_OP_attention, &causal, x, (mz_shape){3, {2, 3, 7}}, x) == 2 * 2 * 12 * (7 + 7));
    assert_true(flops_of(MZ_OP_attention_bwd, &plain, x, x, x) == 2.5 * (2 * 2 * 25 * (7 + 7)));
}
