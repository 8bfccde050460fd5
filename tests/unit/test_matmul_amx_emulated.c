// The AMX microkernel's logic on any machine: its six tile instructions are emulated in C, everything around them (tile
// packing, blocking, epilogue) is what runs on the real ones. The instructions themselves are tested by
// bench/amx_check.sh where they exist.
#define MZ_AMX_EMULATE
#include "backend/cpu/kernels/amx_matmul.c"

#include <float.h>

#include "test.h"
#include "unit/matmul_cases.h"

static const mz_matmul_path path = {&mz_microkernel_amx, &mz_matmul_isa__portable};

TEST(test_sizes) {
    check_sizes(path, MEZZO_BF16, true);
    check_sizes(path, MEZZO_BF16, false);
}

TEST(test_formats) {
    check_formats(path, MEZZO_BF16);
}

TEST(test_epilogues) {
    check_epilogues(path, MEZZO_BF16);
    check_batches(path, MEZZO_BF16);
}

// Products of values in two parts: FP16's exactly as those of its values, TF32's within the bound of what is cut off.
static void check_split(const mz_microkernel *kernel, const mz_matmul_isa *isa, mezzo_dtype compute) {
    const mz_matmul_path split = {kernel, isa};
    check_sizes(split, compute, true);
    check_sizes(split, compute, false);
    check_formats(split, compute);
    check_epilogues(split, compute);
    check_batches(split, compute);
}

TEST(test_split_f16) {
    check_split(&mz_microkernel_amx_f16, &mz_matmul_isa__portable, MEZZO_F16);
}

TEST(test_split_tf32) {
    check_split(&mz_microkernel_amx_tf32, &mz_matmul_isa__portable, MEZZO_TF32);
}

TEST(test_shared) {
    check_shared(path, MEZZO_BF16, 2);
    check_shared((mz_matmul_path){&mz_microkernel_amx_f16, &mz_matmul_isa__portable}, MEZZO_F16, 2);
    check_shared((mz_matmul_path){&mz_microkernel_amx_tf32, &mz_matmul_isa__portable}, MEZZO_TF32, 2);
}

// Both operands across a long k: pieces of it are products of their own, and added.
TEST(test_pieces) {
    const mz_microkernel *kernels[] = {&mz_microkernel_amx, &mz_microkernel_amx_f16, &mz_microkernel_amx_tf32};
    const mezzo_dtype computes[] = {MEZZO_BF16, MEZZO_F16, MEZZO_TF32};
    for (int i = 0; i < 3; i++)
        for (int variant = 0; variant < 4; variant++) {
            matmul_case c = {
                .m = 35, .n = 70, .k = 3 * kernels[i]->piece, .batches = 1, .via = MEZZO_F32, .y = MEZZO_F32};
            c.a = c.b = storage_of(computes[i]);
            c.compute = computes[i];
            c.a_transposed = c.b_transposed = true;
            c.integers = variant & 1;
            c.accumulate = variant >> 1;
            check_case((mz_matmul_path){kernels[i], &mz_matmul_isa__portable}, &c);
        }
}

// The ends of the range. FP16's subnormals are normal BF16s and multiply exactly; what is not finite stays so and stays
// in its row; FP32's largest number, which BF16 would round to infinity, stays finite.
static void multiply_2x2x2(const mz_microkernel *kernel, mezzo_dtype dtype, const float a[4], const float b[4],
                           float y[4]) {
    const mz_matmul_path split = {kernel, &mz_matmul_isa__portable};
    float left[4], right[4];
    assert_int_equal(mezzo_convert(a, MEZZO_F32, left, dtype, 4), MEZZO_OK);
    assert_int_equal(mezzo_convert(b, MEZZO_F32, right, dtype, 4), MEZZO_OK);
    mz_matmul_problem p = {.m = 2, .n = 2, .k = 2, .batches = 1};
    p.a = (mz_matmul_operand){left, dtype, dtype == MEZZO_F32 ? MEZZO_TF32 : dtype, 2, 1, NULL};
    p.b = (mz_matmul_operand){right, dtype, dtype == MEZZO_F32 ? MEZZO_TF32 : dtype, 2, 1, NULL};
    p.out = (mz_matmul_epilogue){.y = y, .y_dtype = MEZZO_F32, .via = MEZZO_F32, .ld = 2};
    void *workspace = mz_alloc(mz_matmul_workspace(split, &p, 1), 1);
    assert_non_null(workspace);
    mz_matmul_run(split, &p, 1, workspace);
    mz_free(workspace);
}

TEST(test_split_at_the_ends) {
    float y[4];
    const float tiny[4] = {0x1p-24f, 0x3p-24f, -0x3FFp-24f, 65504}, ones[4] = {1, 2, 0x1.004p0f, -1};
    multiply_2x2x2(&mz_microkernel_amx_f16, MEZZO_F16, tiny, ones, y);
    assert_true(y[0] == 0x7p-24f && y[1] == 0x1.004p-24f - 0x3p-24f);
    assert_true(y[2] == -0x3FFp-24f + 131008.0f);
    const float ends[4] = {INFINITY, 1, 1, NAN};
    for (int f16 = 0; f16 < 2; f16++) {
        const mz_microkernel *kernel = f16 ? &mz_microkernel_amx_f16 : &mz_microkernel_amx_tf32;
        mezzo_dtype dtype = f16 ? MEZZO_F16 : MEZZO_F32;
        multiply_2x2x2(kernel, dtype, ends, ones, y);
        assert_true(!isfinite(y[0]) && !isfinite(y[1]) && isnan(y[2]) && isnan(y[3]));
        const float one_row[4] = {-INFINITY, 1, 1, 3};
        multiply_2x2x2(kernel, dtype, one_row, ones, y);
        assert_true(!isfinite(y[0]) && !isfinite(y[1]) && y[2] == 7);
    }
    const float largest[4] = {FLT_MAX, 0, -FLT_MAX, 0}, halves[4] = {1, 0, 0.5f, 0};
    multiply_2x2x2(&mz_microkernel_amx_tf32, MEZZO_F32, largest, halves, y);
    assert_true(fabsf(y[0] / FLT_MAX - 1) < 0x1p-15f && fabsf(y[1] / FLT_MAX - 0.5f) < 0x1p-15f);
    assert_true(y[2] == -y[0] && y[3] == -y[1]);
}

// A thread that leaves tiles configured would have them saved and restored at every switch.
TEST(test_tiles_are_released) {
    matmul_case c = {.m = 40, .n = 40, .k = 40, .batches = 1, .via = MEZZO_F32};
    c.a = c.b = c.compute = MEZZO_BF16;
    c.y = MEZZO_F32;
    check_case(path, &c);
    assert_false(amx_configured);
}

// The instruction set that packs for the real instructions packs the same tiles.
TEST(test_avx512_packs_the_same) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        skip();
    const mz_matmul_path fast = {&mz_microkernel_amx, &mz_matmul_isa__avx512};
    check_sizes(fast, MEZZO_BF16, true);
    check_formats(fast, MEZZO_BF16);
    check_split(&mz_microkernel_amx_f16, &mz_matmul_isa__avx512, MEZZO_F16);
    check_split(&mz_microkernel_amx_tf32, &mz_matmul_isa__avx512, MEZZO_TF32);
#else
    skip();
#endif
}

#if defined(__x86_64__)
void mz_matmul_pack_split__avx512bf16(mz_panel format, void *dst, const mz_matmul_operand *src, int64_t i0, int ni,
                                      int64_t k0, int64_t nk, int64_t k_padded);
static void pack_by_instruction(mz_panel format, int width, void *dst, const mz_matmul_operand *src, int64_t i0, int ni,
                                int64_t k0, int64_t nk, int64_t k_padded) {
    (void)width;
    mz_matmul_pack_split__avx512bf16(format, dst, src, i0, ni, k0, nk, k_padded);
}

static mz_microkernel with_pack(const mz_microkernel *of) {
    mz_microkernel own = *of;
    own.pack = pack_by_instruction;
    return own;
}

static void fill_with(float *values, int n) {
    for (int i = 0; i < n; i++)
        values[i] = (float)((i * 7919) % 20011 - 10000) * 0x1.01p-7f;
    values[3] = INFINITY;
    values[700] = NAN;
    values[1200] = FLT_MAX;
    values[1500] = -FLT_MAX;
    values[1600] = 0x1p-24f;
    values[1900] = -0.0f;
}

// Two parts by the instruction that rounds: TF32's are those of integer arithmetic, what is not finite or would become
// so among them; FP16's have the same sum.
static void check_parts(mz_panel format, mezzo_dtype dtype, bool along_k) {
    enum { N = 32, K = 64, WORDS = 2 * N * K / 2 };
    float values[N * K];
    uint16_t low[N * K], parts[2][2 * WORDS];
    fill_with(values, N * K);
    assert_int_equal(mezzo_convert(values, MEZZO_F32, low, MEZZO_F16, N * K), MEZZO_OK);
    const bool f16 = dtype == MEZZO_F16;
    const mz_matmul_operand op = {
        f16 ? (const void *)low : values, dtype, f16 ? MEZZO_F16 : MEZZO_TF32, along_k ? K : 1, along_k ? 1 : N, NULL};
    mz_matmul_isa__avx512.pack(format, N, parts[0], &op, 0, N, 0, K, K);
    pack_by_instruction(format, N, parts[1], &op, 0, N, 0, K, K);
    for (int i = 0; i < 2 * WORDS; i++) {
        int step = i / (2 * N * 32), at = i % (2 * N * 32);
        if (at >= N * 32 || !f16) { // second parts are looked at with the first
            if (!f16)
                assert_int_equal(parts[0][i], parts[1][i]);
            continue;
        }
        float sum[2];
        for (int way = 0; way < 2; way++)
            sum[way] =
                mezzo_bf16_to_f32(parts[way][i]) + mezzo_bf16_to_f32(parts[way][step * 2 * N * 32 + N * 32 + at]);
        assert_true(sum[0] == sum[1] || (isnan(sum[0]) && isnan(sum[1])));
    }
}
#endif

TEST(test_parts_by_instruction) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw"))
        skip();
    for (int f16 = 0; f16 < 2; f16++)
        for (int along_k = 0; along_k < 2; along_k++)
            for (int left = 0; left < 2; left++)
                check_parts(left ? MZ_PANEL_SPLIT_A : MZ_PANEL_SPLIT_B, f16 ? MEZZO_F16 : MEZZO_F32, along_k);
    const mz_microkernel f16 = with_pack(&mz_microkernel_amx_f16), tf32 = with_pack(&mz_microkernel_amx_tf32);
    check_split(&f16, &mz_matmul_isa__avx512, MEZZO_F16);
    check_split(&tf32, &mz_matmul_isa__avx512, MEZZO_TF32);
#else
    skip();
#endif
}
