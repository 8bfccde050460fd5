// mezzo bench --kernels: every op it names runs on every storage precision, and rates follow from work and time.

#include "study/measure/kernels.h"
#include "test.h"

static const mezzo_precision precisions[] = {MEZZO_PRECISION_FP32, MEZZO_PRECISION_TF32, MEZZO_PRECISION_BF16,
                                             MEZZO_PRECISION_FP16};

static mezzo_device *open_cpu(void) {
    mezzo_device *device;
    assert_int_equal(mezzo_device_open("cpu", 1, &device), MEZZO_OK);
    return device;
}

static void count_row(void *user, const mz_bench_row *row) {
    int *rows = user;
    ++*rows;
    assert_true(row->median > 0 && row->best > 0 && row->best <= row->median);
    assert_true(row->rate > 0 && row->peak > 0);
    assert_non_null(row->kernel);
}

// Small shapes of every op: as many dimensions as the op says it takes.
TEST(every_op_is_timed) {
    mezzo_device *device = open_cpu();
    mz_peaks peaks = {.copy = 1e10};
    for (int i = 0; i < MEZZO_DTYPE_COUNT; i++)
        peaks.flops[i] = 1e11;
    for (int i = 0; i < MZ_BENCH_OPS; i++) {
        mz_bench_case c = {.op = &mz_bench_ops[i]};
        const char *shapes[] = {"700", "9x33", "9x33x17", "2x9x3x8", "2x9x4x2x8"};
        int dims = 0;
        for (const char *p = c.op->dims; *p != '\0'; p++)
            dims += *p == 'x';
        assert_int_equal(mz_bench_shape(c.op, shapes[dims], c.dim), MEZZO_OK);
        char text[64];
        assert_string_equal(mz_bench_shape_text(&c, text, sizeof text), shapes[dims]);
        int rows = 0;
        mz_bench_options options = {&c, 1, precisions, MZ_COUNT(precisions), 1, i % 2 == 0};
        assert_int_equal(mz_bench_kernels(device, &options, &peaks, count_row, &rows), MEZZO_OK);
        assert_true(rows >= 1);
    }
    mezzo_device_close(device);
}

// What the models' table asks for has a kernel on this machine, in each precision that users train in.
TEST(default_shapes_have_kernels) {
    mezzo_device *device = open_cpu();
    int n = 0;
    for (const mz_bench_case *c; (c = mz_bench_default(n)) != NULL; n++)
        for (size_t p = 0; p < MZ_COUNT(precisions); p++) {
            mz_bench_call made;
            mz_prepared prepared;
            if (precisions[p] == MEZZO_PRECISION_TF32) // a format of devices that have it
                continue;
            mz_bench_make(c, precisions[p], &made);
            assert_int_equal(mz_prepare(device, &made.call, &prepared), MEZZO_OK);
            mz_prepared_free(&prepared);
            assert_true(made.work > 0);
        }
    assert_true(n > 20);
    mezzo_device_close(device);
}

TEST(work_is_counted_by_hand) {
    mz_bench_call b;
    mz_bench_case c = {.op = mz_bench_find("linear"), .dim = {3, 5, 7}};
    mz_bench_make(&c, MEZZO_PRECISION_BF16, &b);
    assert_true(b.work == 2 * 3 * 5 * 7);
    c = (mz_bench_case){.op = mz_bench_find("add"), .dim = {4, 8}};
    mz_bench_make(&c, MEZZO_PRECISION_BF16, &b);
    assert_true(b.work == (4 + 2 + 4) * 32);
    // 3 positions, one head of 5: 6 pairs, two products of 5 multiply-adds each.
    c = (mz_bench_case){.op = mz_bench_find("attention"), .dim = {1, 3, 1, 5}};
    mz_bench_make(&c, MEZZO_PRECISION_BF16, &b);
    assert_true(b.work == 6 * 2 * 2 * 5);
    // Four heads on two of keys: as many products for each, and k is half as wide as q.
    c = (mz_bench_case){.op = mz_bench_find("attention_shared"), .dim = {1, 3, 4, 2, 5}};
    mz_bench_make(&c, MEZZO_PRECISION_BF16, &b);
    assert_true(b.work == 4 * 6 * 2 * 2 * 5);
    assert_true(b.call.attrs.kv_heads == 2 && b.call.in[0].shape.dim[2] == 20 && b.call.in[1].shape.dim[2] == 10);
    assert_true(mz_bench_same(&c, MEZZO_PRECISION_FP32, MEZZO_PRECISION_FP32));
    assert_false(mz_bench_same(&c, MEZZO_PRECISION_FP32, MEZZO_PRECISION_TF32));
}

TEST(peaks_are_there) {
    mezzo_device *device = open_cpu();
    mz_peaks peaks;
    assert_int_equal(mz_device_peaks(device, &peaks), MEZZO_OK);
    assert_true(peaks.flops[MEZZO_F32] > 0 && peaks.copy > 0);
    assert_true(peaks.flops[MEZZO_BF16] >= peaks.flops[MEZZO_F32]);
    mezzo_device_close(device);
}
