// Products of narrow operands against ref's: within what sums in FP32 may be off by, and exactly where every sum is an
// integer that FP32 holds.
//
// Every product is then run with what a kernel may get wrong, given wrong on purpose, and must be seen to differ: a
// scale forgotten, a scale of the other operand, an operand of which one block lies somewhere else, and an expert whose
// rows begin one too late.
#include "call_cases.h"
#include "test.h"

typedef struct kind {
    mz_op op;
    int64_t m, n, k; // of linear: x [m, k], w [n, k]
    bool whole;      // bias, GELU, residual or what the op has of these
    bool integers;   // every sum is exact
    mezzo_blocks blocks;
    mezzo_dtype result;
    bool plain;            // a gradient's operands are not turned
    bool random, hadamard; // of blocks
    bool in_blocks;        // scales for 128 of what is summed over: of weights 128 by 128
    const int64_t *rows;   // grouped: of each expert, m together
    int64_t experts;
} kind;

static bool on_cpu(void) {
    return strncmp(test_device(), "cpu", 3) == 0;
}

static bool is_dw(const kind *p) {
    return p->op == MZ_OP_linear_dw || p->op == MZ_OP_grouped_linear_dw;
}

static bool is_dx(const kind *p) {
    return p->op == MZ_OP_linear_dx || p->op == MZ_OP_grouped_linear_dx;
}

static void fill_operand(bench *b, int slot, mezzo_dtype dtype, mz_shape shape, const kind *p) {
    void *data = put(b, false, slot, dtype, shape);
    int64_t n = mz_shape_count(&shape);
    float *x = calloc((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = p->integers ? roundf(3 * uniform()) : uniform() * ldexpf(1, (int)(i % 7) - 3);
    must(mezzo_convert(x, MEZZO_F32, data, dtype, (size_t)n));
    if (p->blocks == MEZZO_BLOCKS_NONE) {
        b->call.in[slot].scaling = MZ_SCALING_TENSOR;
        if (!p->plain && (is_dw(p) || (is_dx(p) && slot == MZ_IN(linear_dx, w))))
            put_columnwise(b, false, slot);
        mz_tensor *t = &b->call.in[slot];
        if (p->in_blocks)
            t->scaling = slot == 1 && p->op != MZ_OP_linear_dw ? MZ_SCALING_TILE128 : MZ_SCALING_BLOCK128;
        b->scale[slot] = calloc(scales_in(t), sizeof *b->scale[slot]);
        for (size_t i = 0; i < scales_in(t); i++) // neighbours differ, and none is 1
            b->scale[slot][i] = ldexpf(slot == 0 ? 0x1p-5F : 0x1p3F, p->in_blocks ? (int)(i % 5) - 1 : 0);
    }
    free(x);
}

static void fill_plain(bench *b, int slot, mezzo_dtype dtype, mz_shape shape) {
    void *data = put(b, false, slot, dtype, shape);
    for (int64_t i = 0; i < mz_shape_count(&shape); i++) {
        float x = mezzo_bf16_to_f32(mezzo_f32_to_bf16(uniform()));
        must(mezzo_convert(&x, MEZZO_F32, (char *)data + (size_t)i * mezzo_dtype_size(dtype), dtype, 1));
    }
}

// x [m, k], w [experts, n, k], y [m, n]; rows in order of expert.
static bench make_grouped(const kind *p) {
    const mz_shape x = SHAPE(p->m, p->k), w = SHAPE(p->experts, p->n, p->k), y = SHAPE(p->m, p->n);
    bench b = new_bench(p->op, 3, 1);
    b.call.numerics.compute = MEZZO_F8E4M3;
    fill_operand(&b, 0, p->op == MZ_OP_grouped_linear ? MEZZO_F8E4M3 : MEZZO_F8E5M2,
                 p->op == MZ_OP_grouped_linear ? x : y, p);
    fill_operand(&b, 1, MEZZO_F8E4M3, is_dw(p) ? x : w, p);
    int32_t *offsets = put(&b, false, 2, MEZZO_I32, SHAPE(p->experts + 1));
    for (int64_t e = 0; e < p->experts; e++)
        offsets[e + 1] = offsets[e] + (int32_t)p->rows[e];
    assert_int_equal(offsets[p->experts], p->m);
    float *out = put(&b, true, 0, p->result, is_dw(p) ? w : is_dx(p) ? x : y);
    b.call.attrs.accumulate = is_dw(p) && p->whole;
    for (int64_t i = 0; is_dw(p) && i < p->experts * p->n * p->k; i++) // what is there already, or is not read
        out[i] = p->integers ? 0.25F * roundf(8 * uniform()) : uniform();
    return b;
}

static bench make(const kind *p) {
    if (p->experts > 0)
        return make_grouped(p);
    const bool blocks = p->blocks != MEZZO_BLOCKS_NONE;
    const mezzo_dtype forward = blocks ? MEZZO_BF16 : MEZZO_F8E4M3;
    const mezzo_dtype gradient = blocks || p->in_blocks ? forward : MEZZO_F8E5M2;
    const mz_shape x = SHAPE(p->m, p->k), w = SHAPE(p->n, p->k), y = SHAPE(p->m, p->n);
    bench b = new_bench(p->op, p->op == MZ_OP_linear ? 4 : p->op == MZ_OP_linear_dx ? 3 : 2, 2);
    b.call.numerics.compute = blocks ? MEZZO_BF16 : MEZZO_F8E4M3;
    b.call.attrs.blocks = p->blocks;
    b.call.attrs.random_gradients = p->random;
    b.call.attrs.hadamard = p->hadamard;
    b.call.attrs.rng = 3;
    if (p->op == MZ_OP_linear) {
        fill_operand(&b, 0, forward, x, p);
        fill_operand(&b, 1, forward, w, p);
        put(&b, true, 0, p->result, y);
        b.call.attrs.via = MEZZO_BF16;
        if (p->whole) {
            fill_plain(&b, 2, MEZZO_BF16, SHAPE(p->n));
            fill_plain(&b, 3, p->result, y);
            b.call.attrs.act = MZ_ACT_GELU_TANH;
            put(&b, true, 1, MEZZO_BF16, y);
        }
    } else if (p->op == MZ_OP_linear_dx) {
        fill_operand(&b, 0, gradient, y, p);
        fill_operand(&b, 1, forward, w, p);
        put(&b, true, 0, p->result, x);
        b.call.attrs.act = MZ_ACT_GELU_TANH;
        if (p->whole) {
            fill_plain(&b, 2, MEZZO_BF16, x);
            put(&b, true, 1, MEZZO_F32, SHAPE(p->k));
        }
    } else {
        fill_operand(&b, 0, gradient, y, p);
        fill_operand(&b, 1, forward, x, p);
        float *dw = put(&b, true, 0, MEZZO_F32, w);
        b.call.attrs.accumulate = p->whole;
        for (int64_t i = 0; i < p->n * p->k; i++)
            dw[i] = p->integers ? 0.25F * roundf(8 * uniform()) : uniform();
    }
    return b;
}

static float *result_of(const char *device, const bench *b) {
    void *out[MZ_MAX_OUT] = {NULL};
    for (int k = 0; k < b->call.n_out; k++)
        out[k] = mz_present(&b->call.out[k]) ? calloc(1, bytes_of(&b->call.out[k]) + 1) : NULL;
    run_on(device, b, out);
    size_t n = (size_t)mz_shape_count(&b->call.out[0].shape);
    float *y = calloc(n, sizeof *y);
    must(mezzo_convert(out[0], b->call.out[0].dtype, y, MEZZO_F32, n));
    for (int k = 0; k < b->call.n_out; k++)
        free(out[k]);
    return y;
}

// ‖a - b‖ / ‖b‖
static double apart(const float *a, const float *b, int64_t n) {
    double off = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return norm > 0 ? sqrt(off / norm) : sqrt(off);
}

static void off_by_a_block(bench *b, int slot) {
    const mz_tensor *t = &b->call.in[slot];
    const mz_tensor *offsets = &b->call.in[2]; // grouped: inside of the first expert's matrix
    const bool grouped = mz_present(offsets) && offsets->dtype == MEZZO_I32;
    const size_t parts = grouped ? 4 * (size_t)(mz_shape_count(&offsets->shape) - 1) : 16;
    const size_t least = 16 * mezzo_dtype_size(t->dtype), part = bytes_of(t) / parts, run = part > least ? part : least;
    char *data = b->data[slot];
    memmove(data + 2 * run, data + run, run);
}

// The scales of blocks as if there were no room for a multiple of 128 rows; false: it makes no difference.
static bool scales_without_room(const bench *b, int slot, float *out) {
    const mz_tensor *t = &b->call.in[slot];
    const int64_t columns = t->shape.dim[1], rows = t->columnwise ? columns : t->shape.dim[0];
    const int64_t pitch = mz_scale_pitch(rows), blocks = (int64_t)scales_in(t) / pitch;
    if (t->scaling != MZ_SCALING_BLOCK128 || blocks < 2 || rows % 128 == 0)
        return false;
    for (size_t i = 0; i < scales_in(t); i++)
        out[i] = 1;
    for (int64_t i = 0; i < blocks * rows; i++)
        out[i] = b->scale[slot][i / rows * pitch + i % rows];
    return true;
}

static void must_differ(const bench *wrong, const char *how, const float *want, int64_t n, double bound) {
    float *seen = result_of(test_device(), wrong);
    const double off = apart(seen, want, n);
    char shape[96];
    if (!(off > bound))
        fail_msg("%s, %s: %s is not seen: off by %g", mz_op_table[wrong->call.op].name,
                 mz_shape_text(&wrong->call.in[0].shape, shape, sizeof shape), how, off);
    free(seen);
}

static void check(const kind *p) {
    bench b = make(p);
    int64_t n = mz_shape_count(&b.call.out[0].shape);
    float *want = result_of("ref", &b), *got = result_of(test_device(), &b);
    // Results in BF16 are rounded once, or twice where a kernel finishes a rounded sum; fast accumulation keeps about
    // 14 bits of each sum. Integers leave nothing to round.
    const bool exact = p->result == MEZZO_F32 && p->op != MZ_OP_linear && p->op != MZ_OP_grouped_linear;
    const double bound = p->integers ? 0 : exact ? 0x1p-11 : 0x1p-8;
    double off = apart(got, want, n);
    if (!(off <= bound))
        fail_msg("%s %lldx%lldx%lld %s%s: off by %g, may be %g", mz_op_table[p->op].name, (long long)p->m,
                 (long long)p->n, (long long)p->k, mezzo_blocks_name(p->blocks), p->whole ? " whole" : "", off, bound);
    for (int slot = 0; slot < 2 && p->m > 1; slot++) {
        bench wrong = make(p);
        for (int i = 0; i < MZ_MAX_IN + MZ_MAX_OUT; i++) // the same numbers elsewhere
            if (b.data[i] != NULL)
                memcpy(wrong.data[i], b.data[i], bytes_of(i < MZ_MAX_IN ? &b.call.in[i] : &b.call.out[i - MZ_MAX_IN]));
        off_by_a_block(&wrong, slot);
        must_differ(&wrong, "a block elsewhere", want, n, 2 * bound);
        memcpy(wrong.data[slot], b.data[slot], bytes_of(&b.call.in[slot]));
        for (size_t i = 0; p->blocks == MEZZO_BLOCKS_NONE && i < scales_in(&b.call.in[slot]); i++)
            wrong.scale[slot][i] = 1; // forgotten
        if (p->blocks == MEZZO_BLOCKS_NONE)
            must_differ(&wrong, "a scale that was forgotten", want, n, 2 * bound);
        if (p->in_blocks && scales_without_room(&b, slot, wrong.scale[slot]))
            must_differ(&wrong, "another number of rows with scales", want, n, 2 * bound);
        if (p->experts > 1 && slot == 0) {
            memcpy(wrong.scale[slot], b.scale[slot], sizeof *b.scale[slot]);
            int e = 1;
            while (p->rows[e] == 0)
                e++;
            ((int32_t *)wrong.data[2])[e]++;
            must_differ(&wrong, "an expert whose rows begin one too late", want, n, 2 * bound);
        }
        free_bench(&wrong);
    }
    free(want);
    free(got);
    free_bench(&b);
}

// A device with units for 8 bits emulates neither rows that the storage pass would pad, nor operands that are not
// transposed as its products read them.
static bool has_units(void) {
    mezzo_device_info info;
    must(mezzo_device_describe(device_of(test_device()), &info));
    return info.compute_capability >= 89;
}

static bool left_to_the_storage_pass(int64_t n, int64_t k) {
    return has_units() && (n % 16 != 0 || k % 16 != 0);
}

TEST(rows_that_could_be_padded_are_not_emulated) {
    if (!left_to_the_storage_pass(7, 19))
        skip();
    kind p = {.op = MZ_OP_linear, .m = 33, .n = 7, .k = 19, .result = MEZZO_BF16};
    bench b = make(&p);
    mz_prepared prepared;
    assert_int_equal(mz_prepare(device_of(test_device()), &b.call, &prepared), MEZZO_ERR_UNSUPPORTED);
    free_bench(&b);
}

TEST(products_are_refs) {
    static const mz_op ops[] = {MZ_OP_linear, MZ_OP_linear_dx, MZ_OP_linear_dw};
    static const int64_t sizes[][3] = {{64, 48, 32},  {33, 7, 19},   {128, 96, 160},
                                       {16, 272, 80}, {77, 48, 112}, {1, 16, 32}};
    for (size_t o = 0; o < MZ_COUNT(ops); o++)
        for (size_t s = 0; s < MZ_COUNT(sizes); s++)
            for (int whole = 0; whole < 2; whole++) {
                if (left_to_the_storage_pass(sizes[s][1], sizes[s][2]))
                    continue;
                kind p = {.op = ops[o], .m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2], .whole = whole};
                p.result = p.op == MZ_OP_linear_dw ? MEZZO_F32 : MEZZO_BF16;
                check(&p);
                if (p.op == MZ_OP_linear) { // onto an FP32 residual stream
                    p.result = MEZZO_F32;
                    check(&p);
                }
                p.plain = true;
                if (p.op != MZ_OP_linear && !has_units())
                    check(&p);
                p.plain = false;
                p.result = MEZZO_F32;
                p.integers = !whole || p.op == MZ_OP_linear_dw;
                if (p.integers && p.op != MZ_OP_linear) // linear rounds to BF16 first
                    check(&p);
            }
}

// Shares of the rows that end beside, on and after the edges of tiles and of what is copied at a time, and none; then
// more rows than are asked for ahead, and numbers of columns and rows that no wide copy fits.
static const int64_t shares[][8] = {{17, 129, 0, 127, 15, 7, 1, 8},
                                    {128, 0, 0, 112, 16, 0, 0, 0},
                                    {130, 0, 1, 1500, 3, 0, 0, 14},
                                    {5, 3, 0, 9, 0, 0, 1, 0}};
static const mz_op grouped_ops[] = {MZ_OP_grouped_linear, MZ_OP_grouped_linear_dx, MZ_OP_grouped_linear_dw};

static kind grouped_kind(mz_op op, const int64_t *rows, int64_t n, int64_t k) {
    kind p = {.op = op, .n = n, .k = k, .rows = rows, .experts = 8};
    for (int64_t e = 0; e < p.experts; e++)
        p.m += rows[e];
    p.result = op == MZ_OP_grouped_linear_dw ? MEZZO_F32 : MEZZO_BF16;
    return p;
}

TEST(products_of_experts_are_refs) {
    static const int64_t sizes[][2] = {{48, 32}, {272, 144}, {128, 256}, {7, 19}, {80, 16}};
    for (size_t o = 0; o < MZ_COUNT(grouped_ops); o++)
        for (size_t r = 0; r < MZ_COUNT(shares); r++)
            for (size_t s = 0; s < MZ_COUNT(sizes); s++) {
                kind p = grouped_kind(grouped_ops[o], shares[r], sizes[s][0], sizes[s][1]);
                // ref takes long, and a CPU's kernels have no tiles.
                if ((p.n * p.k > 2000 && p.m > (on_cpu() ? 100 : 1000)) || left_to_the_storage_pass(p.n, p.k))
                    continue;
                p.whole = s % 2;
                check(&p);
                p.result = MEZZO_F32;
                p.integers = true;
                check(&p);
                p.whole = !p.whole;
                if (is_dw(&p))
                    check(&p);
                p.plain = true;
                if (s == 0 && !has_units())
                    check(&p);
            }
}

// More tiles than there are multiprocessors, which go from one to the next; a CPU has neither.
TEST(many_tiles_of_experts_are_refs) {
    static const int64_t sizes[][2] = {{2048, 16}, {16, 2048}, {1152, 144}};
    if (on_cpu())
        skip();
    for (size_t o = 0; o < MZ_COUNT(grouped_ops); o++) {
        kind p = grouped_kind(grouped_ops[o], shares[0], sizes[o][0], sizes[o][1]);
        p.result = MEZZO_F32;
        p.integers = true;
        check(&p);
    }
}

// A code that is no number spoils the results of its row, or of its expert's matrix, and no other.
TEST(an_experts_nan_stays_its_own) {
    for (size_t o = 0; o < MZ_COUNT(grouped_ops); o++)
        for (int which = 0; which < 4; which++) {
            const int slot = which % 2, last = which / 2;
            kind p = grouped_kind(grouped_ops[o], shares[0], 48, 80);
            p.result = MEZZO_F32;
            p.integers = true;
            bench b = make(&p);
            const mz_tensor *t = &b.call.in[slot]; // of the second expert's rows, or its matrix's, the first or last
            const int64_t columns = t->shape.dim[t->shape.rank - 1];
            const int64_t row =
                t->shape.rank == 3 ? (last ? 2 * p.n - 1 : p.n) : p.rows[0] + (last ? p.rows[1] - 1 : 0);
            ((uint8_t *)b.data[slot])[mz_tensor_index(t, row * columns)] = 0x7F;
            float *want = result_of("ref", &b), *got = result_of(test_device(), &b);
            int64_t n = mz_shape_count(&b.call.out[0].shape), nans = 0;
            for (int64_t i = 0; i < n; i++) {
                nans += isnan(want[i]);
                if (isnan(want[i]) ? !isnan(got[i]) : got[i] != want[i])
                    fail_msg("%s: result %lld is %g, not %g", mz_op_table[p.op].name, (long long)i, (double)got[i],
                             (double)want[i]);
            }
            assert_in_range(nans, 1, n / 2);
            free(want);
            free(got);
            free_bench(&b);
        }
}

// E4M3 in blocks: around the edges of tiles in every dimension.
TEST(products_in_blocks_are_refs) {
    static const mz_op ops[] = {MZ_OP_linear, MZ_OP_linear_dx, MZ_OP_linear_dw};
    static const int64_t sizes[][3] = {{64, 48, 32},   {1, 1, 1},       {15, 17, 7},     {33, 7, 19},
                                       {128, 96, 160}, {129, 257, 127}, {16, 272, 400},  {300, 130, 257},
                                       {7, 129, 15},   {127, 128, 129}, {256, 256, 256}, {130, 272, 144}};
    for (size_t o = 0; o < MZ_COUNT(ops); o++)
        for (size_t s = 0; s < MZ_COUNT(sizes); s++)
            for (int whole = 0; whole < 2; whole++) {
                kind p = {.op = ops[o], .m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2], .whole = whole};
                if (on_cpu() && p.m * p.n * p.k > 5000000) // a smaller shape has blocks and a rest in each dimension
                    continue;
                p.in_blocks = true;
                p.result = p.op == MZ_OP_linear_dw ? MEZZO_F32 : MEZZO_BF16;
                check(&p);
                p.result = MEZZO_F32;
                p.integers = !whole || p.op == MZ_OP_linear_dw;
                if (p.integers && p.op != MZ_OP_linear) // linear rounds to BF16 first
                    check(&p);
            }
}

// rows, columns and what is summed over: long sums of few; sums long enough for turns, several bands of tiles, more
// than the multiprocessors have at a time, and such sums of many tiles: the CPU, which has no tiles, is spared these.
TEST(many_tiles_and_long_sums_in_blocks_are_refs) {
    static const mz_op ops[] = {MZ_OP_linear, MZ_OP_linear_dx, MZ_OP_linear_dw};
    static const int64_t sizes[][3] = {{30, 136, 2100}, {300, 136, 2100}, {4600, 2056, 16}, {17000, 16, 1936}};
    for (size_t s = 0; s < (on_cpu() ? 1 : MZ_COUNT(sizes)); s++)
        for (size_t o = 0; o < MZ_COUNT(ops); o++) {
            const int64_t rows = sizes[s][0], cols = sizes[s][1], inner = sizes[s][2];
            kind p = {.op = ops[o], .in_blocks = true, .integers = true};
            p.result = p.op == MZ_OP_linear ? MEZZO_BF16 : MEZZO_F32; // what the exact sum is rounded to
            const bool dw = ops[o] == MZ_OP_linear_dw, dx = ops[o] == MZ_OP_linear_dx;
            p.m = dw ? inner : rows;
            p.n = dw ? rows : dx ? inner : cols;
            p.k = dw || dx ? cols : inner;
            check(&p);
            if (dw)
                continue;
            p.integers = false;
            p.result = MEZZO_BF16;
            check(&p);
        }
}

// Sums of 128 terms fit in the 14 bits that Hopper's tensor cores keep of an 8-bit product's sum; of 8,000 and more
// they do not, and every one of these is exact.
static void check_promoted(const kind *p) {
    bench b = make(p);
    for (int slot = 0; slot < 2; slot++)
        for (size_t i = 0; i < bytes_of(&b.call.in[slot]); i++)
            ((uint8_t *)b.data[slot])[i] &= 0x7F; // no sign: sums grow
    float *want = result_of("ref", &b), *got = result_of(test_device(), &b);
    float most = 0;
    for (int64_t i = 0; i < mz_shape_count(&b.call.out[0].shape); i++) {
        most = fmaxf(most, want[i]);
        if (got[i] != want[i])
            fail_msg("%s: sum %lld is %.9g, not %.9g", mz_op_table[p->op].name, (long long)i, (double)got[i],
                     (double)want[i]);
    }
    if (!p->in_blocks) // whose units differ; these are 1/4
        assert_true(most > 0x1p15F / 4);
    free(want);
    free(got);
    free_bench(&b);
}

TEST(sums_in_blocks_are_promoted) {
    const kind p = {
        .op = MZ_OP_linear_dw, .m = 8000, .n = 48, .k = 32, .integers = true, .result = MEZZO_F32, .in_blocks = true};
    check_promoted(&p);
}

TEST(sums_of_experts_are_promoted) {
    static const int64_t few[8] = {3, 0, 5, 0, 0, 0, 8, 0}, many[8] = {28000, 21, 0, 0, 3, 0, 0, 0};
    static const int64_t sizes[][2] = {{16, 24576}, {24576, 16}, {48, 32}}; // what y, dx and dw sum over is long
    for (size_t o = 0; o < MZ_COUNT(grouped_ops); o++) {
        kind p = grouped_kind(grouped_ops[o], o == 2 ? many : few, sizes[o][0], sizes[o][1]);
        p.integers = true;
        p.result = MEZZO_F32;
        check_promoted(&p);
    }
}

TEST(emulated_products_are_refs) {
    static const mz_op ops[] = {MZ_OP_linear, MZ_OP_linear_dx, MZ_OP_linear_dw};
    static const int64_t sizes[][3] = {{64, 48, 32}, {33, 7, 19}, {80, 96, 112}};
    for (mezzo_blocks b = MEZZO_BLOCKS_MXFP8; b < MEZZO_BLOCKS_COUNT; b++)
        for (size_t o = 0; o < MZ_COUNT(ops); o++)
            for (size_t s = 0; s < MZ_COUNT(sizes); s++) {
                kind p = {.op = ops[o], .m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2], .blocks = b};
                p.result = MEZZO_F32;
                check(&p);
            }
}

// Gradients rounded at random, and operands that are turned first: ref's numbers on every device.
TEST(emulated_gradients_are_refs) {
    static const mz_op ops[] = {MZ_OP_linear_dx, MZ_OP_linear_dw};
    static const int64_t sizes[][3] = {{64, 48, 32}, {33, 7, 19}, {80, 96, 112}};
    for (mezzo_blocks b = MEZZO_BLOCKS_MXFP8; b < MEZZO_BLOCKS_COUNT; b++)
        for (size_t o = 0; o < MZ_COUNT(ops); o++)
            for (size_t s = 0; s < MZ_COUNT(sizes); s++)
                for (int how = 1; how < 4; how++) {
                    kind p = {.op = ops[o], .m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2], .blocks = b};
                    p.result = MEZZO_F32;
                    p.random = how & 1;
                    p.hadamard = how & 2;
                    check(&p);
                }
}

// dy·1 is dy as it was rounded: bit for bit ref's, another one with another stream, and dy's on average over streams.
TEST(random_rounding_is_refs_bit_for_bit) {
    enum { M = 48, N = 64, STREAMS = 400 };
    for (mezzo_blocks f = MEZZO_BLOCKS_MXFP8; f < MEZZO_BLOCKS_COUNT; f++) {
        kind p = {.op = MZ_OP_linear_dx, .m = M, .n = N, .k = N, .blocks = f, .result = MEZZO_F32, .random = true};
        bench b = make(&p);
        uint16_t *dy = b.data[0], *w = b.data[1];
        double sum[M * N] = {0}, gap = 0;
        for (int64_t i = 0; i < M * N; i++) // numbers that no format holds; 6 times a power of two in each block
            dy[i] = mezzo_f32_to_bf16(i % 16 == 0 ? 6 : 3 * uniform());
        for (int64_t i = 0; i < N * N; i++)
            w[i] = mezzo_f32_to_bf16(i % (N + 1) == 0 ? 1 : 0);
        float *first = NULL;
        for (uint32_t stream = 0; stream < STREAMS; stream++) {
            b.call.attrs.rng = stream;
            float *got = result_of(stream < 2 ? test_device() : "ref", &b),
                  *want = stream < 2 ? result_of("ref", &b) : NULL;
            for (int64_t i = 0; i < M * N; i++) {
                sum[i] += (double)got[i] / STREAMS;
                gap = fmax(gap, fabs((double)got[i] - (double)mezzo_bf16_to_f32(dy[i])));
                if (want != NULL && (f == MEZZO_BLOCKS_NVFP4 ? fabsf(got[i] - want[i]) > 0x1p-20F * fabsf(want[i])
                                                             : got[i] != want[i])) // 1 is no number of NVFP4's
                    fail_msg("%s: %a became %a, not %a", mezzo_blocks_name(f), (double)mezzo_bf16_to_f32(dy[i]),
                             (double)got[i], (double)want[i]);
            }
            assert_true(stream != 1 || memcmp(first, got, M * N * sizeof *got) != 0);
            free(want);
            if (stream == 0)
                first = got;
            else
                free(got);
        }
        free(first);
        assert_true(gap <= (f == MEZZO_BLOCKS_MXFP8 ? 0.5 : 2.01) && gap > (f == MEZZO_BLOCKS_MXFP8 ? 0.05 : 0.5));
        double off = 0; // a mean of 400 with a deviation of at most half a gap each
        for (int64_t i = 0; i < M * N; i++)
            off = fmax(off, fabs(sum[i] - (double)mezzo_bf16_to_f32(dy[i])));
        assert_true(off < 6 * gap / 2 / sqrt(STREAMS));
        free_bench(&b);
    }
}

TEST_GROUP(NULL, close_devices)
