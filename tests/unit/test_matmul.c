// The cpu backend's matrix product on every microkernel this machine can run: any size, orientation, storage format and
// epilogue gives the FP64 product of the rounded operands within the bound of FP32 summation, exactly where every sum
// is exact, and the same bits for every number of threads.
#include <time.h>

#include "backend/cpu/isa.h"
#include "unit/matmul_cases.h"

static const mz_matmul_path portable = {&mz_matmul_isa__portable.f32, &mz_matmul_isa__portable};
#if defined(__x86_64__)
static const mz_matmul_path avx2 = {&mz_matmul_isa__avx2.f32, &mz_matmul_isa__avx2};
static const mz_matmul_path avx512 = {&mz_matmul_isa__avx512.f32, &mz_matmul_isa__avx512};
static const mz_matmul_path bf16_dot = {&mz_microkernel_avx512bf16, &mz_matmul_isa__avx512};
#elif defined(__aarch64__)
static const mz_matmul_path neon = {&mz_matmul_isa__neon.f32, &mz_matmul_isa__neon};
static const mz_matmul_path bf16_dot = {&mz_microkernel_neonbf16, &mz_matmul_isa__neon};
#endif

static void check_f32_path(mz_matmul_path path) {
    check_sizes(path, MEZZO_F64, true);
    check_sizes(path, MEZZO_F64, false);
    check_formats(path, MEZZO_F64);
    for (size_t i = 0; i < MZ_COUNT(stored); i++)
        check_epilogues(path, stored[i]);
    check_batches(path, MEZZO_F32);
    check_shared(path, MEZZO_F32, SHARED_SIZES);
    check_column_sums(path);
    check_add_pieces(path);
    check_few_rows(path);
}

TEST(test_portable) {
    check_f32_path(portable);
}

// Packing in which any thread may be the last: none may multiply before what another packs is there.
static void pack_slowly(mz_panel format, int width, void *dst, const mz_matmul_operand *src, int64_t i0, int ni,
                        int64_t k0, int64_t nk, int64_t k_padded) {
    const struct timespec a_while = {.tv_nsec = 200000};
    nanosleep(&a_while, NULL);
    mz_matmul_isa__portable.pack(format, width, dst, src, i0, ni, k0, nk, k_padded);
}

TEST(test_slow_packing) {
    mz_microkernel slow = mz_matmul_isa__portable.f32;
    slow.pack = pack_slowly;
    matmul_case c = {.m = 75, .n = 290, .k = 600, .batches = 1, .threads = 9, .via = MEZZO_F32, .integers = true};
    c.a = c.b = c.compute = c.y = MEZZO_F32;
    check_case((mz_matmul_path){&slow, &mz_matmul_isa__portable}, &c);
}

#if defined(__x86_64__)
TEST(test_avx2) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        skip();
    check_f32_path(avx2);
}

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

TEST(test_avx512) {
    if (!has_avx512())
        skip();
    check_f32_path(avx512);
}

TEST(test_bf16_dot) {
    if (!has_avx512() || !__builtin_cpu_supports("avx512bf16"))
        skip();
    check_sizes(bf16_dot, MEZZO_BF16, true);
    check_sizes(bf16_dot, MEZZO_BF16, false);
    check_formats(bf16_dot, MEZZO_BF16);
    check_epilogues(bf16_dot, MEZZO_BF16);
    check_batches(bf16_dot, MEZZO_BF16);
    check_shared(bf16_dot, MEZZO_BF16, SHARED_SIZES);
}

// The fast BF16 epilogue's instruction takes subnormals for zero: results must keep them all the same.
TEST(test_bf16_dot_keeps_subnormals) {
    if (!has_avx512() || !__builtin_cpu_supports("avx512bf16"))
        skip();
    enum { M = 14, N = 32 };
    uint16_t zeros[M + N] = {0}, y[M * N];
    float bias[N];
    for (int j = 0; j < N; j++)
        bias[j] = j == 5 ? 0x1p-130f : (float)j;
    mz_matmul_problem p = {.m = M, .n = N, .k = 1, .batches = 1};
    p.a = (mz_matmul_operand){zeros, MEZZO_BF16, MEZZO_BF16, 1, 1, NULL};
    p.b = (mz_matmul_operand){zeros, MEZZO_BF16, MEZZO_BF16, 1, 1, NULL};
    p.out = (mz_matmul_epilogue){.y = y, .y_dtype = MEZZO_BF16, .via = MEZZO_F32, .ld = N, .bias = bias};
    p.out.bias_dtype = MEZZO_F32;
    void *workspace = mz_alloc(mz_matmul_workspace(bf16_dot, &p, 1), 1);
    assert_non_null(workspace);
    mz_matmul_run(bf16_dot, &p, 1, workspace);
    mz_free(workspace);
    for (int i = 0; i < M * N; i++)
        assert_int_equal(y[i], mezzo_f32_to_bf16(bias[i % N]));
}
// The same bits, but for which NaN it is.
static void assert_same(const void *a, const void *b, mezzo_dtype dtype, size_t n) {
    for (size_t i = 0, size = mezzo_dtype_size(dtype); i < n; i++) {
        const char *p = (const char *)a + i * size, *q = (const char *)b + i * size;
        float x, y;
        assert_int_equal(mezzo_convert(p, dtype, &x, MEZZO_F32, 1), MEZZO_OK);
        assert_int_equal(mezzo_convert(q, dtype, &y, MEZZO_F32, 1), MEZZO_OK);
        assert_true(memcmp(p, q, size) == 0 || (isnan(x) && isnan(y)));
    }
}

// The epilogue for whole rows of 32 columns gives the bits of the one for any columns, subnormal and non-finite sums
// among them.
static void check_rows_of_32(mezzo_dtype dtype, mz_act act, bool gradient, mezzo_dtype residual, bool preact) {
    enum { ROWS = 5, N = 32, LD = 40 };
    float tile[ROWS * N], wide[ROWS * LD];
    uint16_t kept[2][ROWS * LD], low[ROWS * LD];
    char y[2][ROWS * LD * sizeof(float)];
    float bias[LD];
    for (int i = 0; i < ROWS * N; i++)
        tile[i] = i == 70      ? INFINITY
                  : i == 100   ? NAN
                  : i / N == 3 ? 0x1p-130f * (float)i
                               : (float)(i * 37 % 101 - 50) / 9;
    for (int i = 0; i < ROWS * LD; i++) {
        wide[i] = (float)(i % 23) - 7.5f;
        assert_int_equal(mezzo_convert(&wide[i], MEZZO_F32, &low[i], dtype, 1), MEZZO_OK);
    }
    for (int j = 0; j < LD; j++)
        bias[j] = (float)(j % 4) * 0x1p-131f;
    for (int way = 0; way < 2; way++) {
        memset(y[way], WARY, sizeof y[way]);
        memcpy(kept[way], low, sizeof low);
        mz_matmul_epilogue e = {
            .y = y[way], .y_dtype = dtype, .via = gradient ? MEZZO_F32 : dtype, .ld = LD, .act = act};
        e.act_gradient = gradient;
        e.preact = preact ? kept[way] : NULL;
        e.preact_dtype = dtype;
        if (!gradient) {
            e.bias = bias;
            e.bias_dtype = MEZZO_F32;
        }
        if (residual != MEZZO_F64) {
            e.residual = residual == MEZZO_F32 ? (const void *)wide : low;
            e.residual_dtype = residual;
            e.y_dtype = residual;
        }
        if (way == 0)
            mz_matmul_isa__avx512.epilogue(&e, tile, N, 0, 8, ROWS, N);
        else
            assert_true(mz_matmul_finish_32(&e, tile, N, 0, 8, ROWS));
    }
    assert_same(y[0], y[1], residual == MEZZO_F32 ? MEZZO_F32 : dtype, ROWS * LD);
    assert_same(kept[0], kept[1], dtype, ROWS * LD);
}

TEST(test_rows_of_32) {
    if (!has_avx512() || !__builtin_cpu_supports("avx512bf16"))
        skip();
    const mezzo_dtype none = MEZZO_F64, formats[] = {MEZZO_BF16, MEZZO_F16};
    for (int f = 0; f < 2; f++) {
        check_rows_of_32(formats[f], MZ_ACT_NONE, false, none, false);
        check_rows_of_32(formats[f], MZ_ACT_NONE, false, formats[f], false);
        check_rows_of_32(formats[f], MZ_ACT_NONE, false, MEZZO_F32, false);
        for (int act = MZ_ACT_RELU; act <= MZ_ACT_SILU; act++) {
            check_rows_of_32(formats[f], (mz_act)act, false, none, false);
            check_rows_of_32(formats[f], (mz_act)act, false, none, true);
            check_rows_of_32(formats[f], (mz_act)act, true, none, true);
        }
    }
}
#elif defined(__aarch64__)
TEST(test_neon) {
    check_f32_path(neon);
}

TEST(test_bf16_dot) {
    mz_isa isa;
    assert_int_equal(mz_isa_probe(NULL, &isa), MEZZO_OK);
    if (!isa.bf16_dot)
        skip();
    check_sizes(bf16_dot, MEZZO_BF16, true);
    check_sizes(bf16_dot, MEZZO_BF16, false);
    check_formats(bf16_dot, MEZZO_BF16);
    check_epilogues(bf16_dot, MEZZO_BF16);
    check_batches(bf16_dot, MEZZO_BF16);
    check_shared(bf16_dot, MEZZO_BF16, SHARED_SIZES);
}
#endif
