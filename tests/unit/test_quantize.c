// Rounding to 8 bits against ref's: codes, scales and magnitudes bit for bit.
#include "call_cases.h"
#include "test.h"

enum { MOST_ROWS = 400, MOST_COLUMNS = 300 };
typedef struct quantized { // what comes out
    uint8_t y[MOST_ROWS * MOST_COLUMNS], columnwise[(MOST_ROWS + 15) * MOST_COLUMNS],
        act_out[(MOST_ROWS + 15) * MOST_COLUMNS];
    mz_scale_entry entry;
    float sums[MOST_COLUMNS];
} quantized;

typedef struct form {
    mezzo_dtype from, to;
    float amplitude;
    enum { SIZES, TIES, NOT_FINITE, ZEROS, FAR, ONE_LARGE } kind; // FAR: also where acts overflow, and not finite
    int64_t rows, columns, row, column;                           // the latter two: where ONE_LARGE has it
    mz_act act;
    bool derivative; // of preact
    float given;     // the scale, where it is not found; 0: it is
    bool accumulate; // onto sums
} form;

static form form_of(mezzo_dtype from, mezzo_dtype to, float amplitude, int64_t rows, int64_t columns) {
    return (form){.from = from, .to = to, .amplitude = amplitude, .rows = rows, .columns = columns};
}

static void put_far_numbers(float *x, int64_t n) {
    static const float far[] = {INFINITY, -INFINITY, NAN, 3e38F, -3e38F, 2e12F, -2e12F, 90, -90, 1e-40F, -0.0F};
    for (int64_t i = 5; i < n; i += 1 + (int64_t)(100 * fabsf(uniform())))
        x[i] = far[i % (int64_t)MZ_COUNT(far)];
}

// Acts of 64 are 64, and their derivatives 1, to the last bit. Of pairs both numbers are large.
static void put_one_large(float *x, const form *f, int64_t width, int64_t pairs, float large) {
    for (int64_t k = 0; k < pairs; k++)
        x[(f->row * pairs + k) * width + f->column % width] = large;
}

static bench make_quantize(const form *f) {
    const int64_t pairs = f->act == MZ_ACT_SWIGLU ? 2 : 1; // numbers for one
    const int64_t columns = f->derivative ? f->columns / pairs : f->columns * pairs, n = f->rows * columns;
    bench b = new_bench(MZ_OP_quantize, 2, MZ_OUT(quantize, act_out) + 1);
    float *x = calloc((size_t)(n * pairs), sizeof *x);
    void *stored = put(&b, false, 0, f->from, SHAPE(f->rows, columns));
    for (int64_t i = 0; i < n; i++) // of all sizes: subnormal codes and what becomes zero too
        x[i] = f->amplitude * uniform() * ldexpf(1, -(int)(i % 24));
    if (f->kind == TIES) // halfway between two codes
        for (int i = 0; i < 2048; i++)
            x[i] = f->amplitude * (f->to == MEZZO_F8E4M3 ? (float)(i % 17 * 2 + 1) / 32 : (float)(i % 9 * 2 + 1) / 16);
    if (f->kind == NOT_FINITE)
        x[7] = NAN, x[99] = -INFINITY, x[100] = 1e5F, x[101] = -3e38F;
    if (f->kind == ZEROS)
        memset(x, 0, (size_t)n * sizeof *x);
    if (f->kind == FAR)
        put_far_numbers(x, n);
    if (f->kind == ONE_LARGE)
        put_one_large(x, f, f->derivative ? columns : f->columns, f->derivative ? 1 : pairs, f->derivative ? -64 : 64);
    must(mezzo_convert(x, MEZZO_F32, stored, f->from, (size_t)n));
    if (f->derivative) {
        void *preact = put(&b, false, 1, f->from, SHAPE(f->rows, f->columns));
        for (int64_t i = 0; i < n * pairs; i++)
            x[i] = 3 * uniform();
        if (f->kind == FAR)
            put_far_numbers(x, n * pairs);
        if (f->kind == ONE_LARGE)
            put_one_large(x, f, columns, pairs, 64);
        must(mezzo_convert(x, MEZZO_F32, preact, f->from, (size_t)(n * pairs)));
    }
    b.call.attrs.act = f->act;
    b.call.attrs.via = MEZZO_BF16;
    b.call.attrs.measure = f->given == 0;
    b.call.attrs.record = true;
    b.call.attrs.accumulate = f->accumulate;
    for (int k = 0; k < 2; k++) {
        put(&b, true, k, f->to, SHAPE(f->rows, f->columns));
        b.call.out[k].scaling = MZ_SCALING_TENSOR;
        if (k == 1)
            put_columnwise(&b, true, k);
    }
    if (f->derivative) { // turned by what a product of gradients needs
        mz_tensor *act_out = &b.call.out[MZ_OUT(quantize, act_out)];
        put(&b, true, MZ_OUT(quantize, act_out), MEZZO_F8E4M3, SHAPE(f->rows, columns));
        act_out->scaling = MZ_SCALING_TENSOR;
        put_columnwise(&b, true, MZ_OUT(quantize, act_out));
        b.act_out = 0x1p-7F;
    }
    mz_scale_entry *entry = put(&b, true, MZ_OUT(quantize, scales), MEZZO_F32, SHAPE(MZ_SCALE_WORDS));
    entry->scale = f->given;
    float *sums = put(&b, true, MZ_OUT(quantize, dbias), MEZZO_F32, SHAPE(f->columns));
    for (int64_t c = 0; c < f->columns; c++)
        sums[c] = uniform();
    free(x);
    return b;
}

static void run_quantize(const char *device, const bench *b, quantized *out) {
    run_on(device, b,
           (void *[]){[MZ_OUT(quantize, y)] = out->y,
                      [MZ_OUT(quantize, columnwise)] = out->columnwise,
                      [MZ_OUT(quantize, scales)] = &out->entry,
                      [MZ_OUT(quantize, dbias)] = out->sums,
                      [MZ_OUT(quantize, act_out)] = out->act_out});
}

static bool is_nan(uint8_t code, mezzo_dtype dtype) {
    return (code & 0x7F) > (dtype == MEZZO_F8E4M3 ? 0x7E : 0x7C);
}

// Codes that are neighbours, where devices compute an activation to the last bit but one.
static bool same(const form *f, uint8_t a, uint8_t b) {
    return a == b || (is_nan(a, f->to) && is_nan(b, f->to)) || (f->act != MZ_ACT_NONE && abs((int8_t)(a - b)) == 1);
}

static void check_quantize(form of) {
    const form *f = &of;
    static quantized want, got;
    bench b = make_quantize(f);
    const char *name = mezzo_dtype_name(f->to);
    run_quantize("ref", &b, &want);
    run_quantize(test_device(), &b, &got);
    if (want.entry.scale != got.entry.scale || (f->act == MZ_ACT_NONE && want.entry.amax != got.entry.amax))
        fail_msg("%s of %lldx%lld: scale %a and magnitude %#x, not %a and %#x (amplitude %a)", name, (long long)f->rows,
                 (long long)f->columns, (double)got.entry.scale, got.entry.amax, (double)want.entry.scale,
                 want.entry.amax, (double)f->amplitude);
    int64_t others = 0;
    for (int64_t i = 0; i < f->rows * f->columns; i++) {
        const int64_t at = i % f->columns * mz_columnwise_pitch(f->rows) + i / f->columns;
        if (!same(f, want.y[i], got.y[i]) || got.columnwise[at] != got.y[i])
            fail_msg("%s of %lldx%lld, act %d, amplitude %a, scale %a: code %lld is %#x, turned %#x, not %#x", name,
                     (long long)f->rows, (long long)f->columns, (int)f->act, (double)f->amplitude,
                     (double)got.entry.scale, (long long)i, got.y[i], got.columnwise[at], want.y[i]);
        others += want.y[i] != got.y[i];
    }
    const int64_t beside = f->derivative ? (int64_t)bytes_of(&b.call.out[MZ_OUT(quantize, act_out)]) : 0;
    for (int64_t i = 0; i < beside; i++) {
        if (want.act_out[i] != got.act_out[i] && abs((int8_t)(want.act_out[i] - got.act_out[i])) != 1)
            fail_msg("%lldx%lld, act %d: beside the slope code %lld, turned, is %#x, not %#x", (long long)f->rows,
                     (long long)f->columns, (int)f->act, (long long)i, got.act_out[i], want.act_out[i]);
        others += want.act_out[i] != got.act_out[i];
    }
    assert_true(others <= f->rows * f->columns / 50); // of activations
    for (int64_t c = 0; c < f->columns && f->kind != NOT_FINITE && f->amplitude < 1e30F; c++) {
        const double off = fabs((double)got.sums[c] - (double)want.sums[c]);
        if (!(off <= 1e-4 * ((double)f->amplitude + 1) + (f->act == MZ_ACT_NONE ? 0 : 0x1p-8 * (double)f->rows)))
            fail_msg("%s of %lldx%lld, act %d: sum %lld is %g, not %g", name, (long long)f->rows, (long long)f->columns,
                     (int)f->act, (long long)c, (double)got.sums[c], (double)want.sums[c]);
    }
    free_bench(&b);
}

TEST(codes_are_refs_bit_for_bit) {
    static const mezzo_dtype from[] = {MEZZO_F32, MEZZO_BF16, MEZZO_F16}, to[] = {MEZZO_F8E4M3, MEZZO_F8E5M2};
    static const float amplitudes[] = {1, 1.75F, 1.76F, 448, 57344, 3e-5F, 0.9999F};
    for (size_t i = 0; i < MZ_COUNT(from); i++)
        for (size_t k = 0; k < MZ_COUNT(to); k++) {
            form f;
            for (size_t a = 0; a < 2 * MZ_COUNT(amplitudes); a++) {
                f = form_of(from[i], to[k], amplitudes[a / 2], 64, 48);
                f.kind = a % 2 == 0 ? SIZES : TIES;
                check_quantize(f);
            }
            f.amplitude = 1;
            for (f.kind = NOT_FINITE; f.kind <= ZEROS; f.kind++)
                check_quantize(f);
        }
    for (int e = -126; e <= 127; e += 11) {
        check_quantize(form_of(MEZZO_F32, MEZZO_F8E4M3, ldexpf(1.9F, e), 48, 16));
        check_quantize(form_of(MEZZO_BF16, MEZZO_F8E5M2, ldexpf(1.7F, e), 16, 48));
    }
}

// Rows and columns around tiles' edges, and what no vector fits.
TEST(every_shape_is_turned) {
    static const int64_t sizes[][2] = {{1, 1},     {5, 299},   {33, 7},   {64, 128},  {80, 144},
                                       {400, 272}, {129, 160}, {16, 300}, {399, 256}, {1, 64}};
    for (size_t s = 0; s < MZ_COUNT(sizes); s++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            form f = form_of(MEZZO_BF16, MEZZO_F8E5M2, 1, sizes[s][0], sizes[s][1]);
            f.accumulate = accumulate;
            check_quantize(f);
            f.from = MEZZO_F32, f.to = MEZZO_F8E4M3;
            check_quantize(f);
        }
}

// A scale that is given: what is too large is cut off, infinities and NaNs stay, and the magnitude is recorded.
TEST(given_scales_cut_off) {
    for (int k = 0; k < 2; k++)
        for (int kind = SIZES; kind <= ZEROS; kind += NOT_FINITE)
            for (int e = -130; e <= 30; e += 10) {
                form f = form_of(MEZZO_F32, k == 0 ? MEZZO_F8E4M3 : MEZZO_F8E5M2, 1, 48, 64);
                f.kind = kind == SIZES ? SIZES : NOT_FINITE;
                f.given = ldexpf(1, e < -126 ? -126 : e);
                check_quantize(f);
            }
    form f = form_of(MEZZO_BF16, MEZZO_F8E4M3, 1, 48, 64);
    f.given = 0x1p-12F;
    static quantized got;
    bench b = make_quantize(&f);
    run_quantize(test_device(), &b, &got);
    bool largest = false;
    for (int64_t i = 0; i < f.rows * f.columns; i++) {
        assert_false(is_nan(got.y[i], f.to));
        largest = largest || (got.y[i] & 0x7F) == 0x7E;
    }
    assert_true(largest && got.entry.scale == 0x1p-12F);
    free_bench(&b);
}

static const mz_act acts[] = {MZ_ACT_RELU, MZ_ACT_GELU, MZ_ACT_GELU_TANH, MZ_ACT_SILU, MZ_ACT_SWIGLU};
static const int64_t act_sizes[][2] = {{33, 14}, {128, 160}, {80, 288}, {77, 96}};

TEST(activations_in_front_are_refs) {
    for (size_t a = 0; a < MZ_COUNT(acts); a++)
        for (int derivative = 0; derivative < 2; derivative++)
            for (size_t s = 0; s < MZ_COUNT(act_sizes); s++) {
                form f =
                    form_of(MEZZO_BF16, derivative ? MEZZO_F8E5M2 : MEZZO_F8E4M3, 4, act_sizes[s][0], act_sizes[s][1]);
                f.act = acts[a];
                f.derivative = derivative;
                check_quantize(f);
            }
}

// The largest number decides about the scale wherever in the tiles it is.
TEST(the_largest_counts_anywhere) {
    static const int64_t columns[] = {0, 1, 40, 71, 79, 80, 127, 128, 152, 159};
    for (size_t a = 0; a <= MZ_COUNT(acts); a++)
        for (int derivative = 0; derivative < (a < MZ_COUNT(acts) ? 2 : 1); derivative++)
            for (size_t c = 0; c < MZ_COUNT(columns); c++) {
                form f = form_of(MEZZO_BF16, derivative ? MEZZO_F8E5M2 : MEZZO_F8E4M3, 4, 128, 160);
                f.kind = ONE_LARGE;
                f.row = columns[c] * 37 % f.rows;
                f.column = columns[c];
                f.act = a < MZ_COUNT(acts) ? acts[a] : MZ_ACT_NONE;
                f.derivative = derivative;
                check_quantize(f);
            }
}

// What an act's own kernel stores, in the place of quantize's x.
static void act_apart(const bench *fused, bench *b) {
    const mz_act act = b->call.attrs.act;
    const bool derivative = mz_present(&b->call.in[1]);
    bench apart = new_bench(mz_act_op(act, derivative), 1 + derivative, 1);
    apart.call.attrs.tanh = act == MZ_ACT_GELU_TANH;
    for (int i = 0; i < apart.call.n_in; i++) {
        apart.call.in[i] = fused->call.in[i];
        apart.data[i] = fused->data[i];
    }
    void *z = put(&apart, true, 0, MEZZO_BF16, fused->call.out[0].shape);
    run_on(test_device(), &apart, &z);
    free(b->data[0]);
    free(b->data[1]);
    b->data[0] = z;
    b->data[1] = NULL;
    b->call.in[0] = apart.call.out[0];
    b->call.in[1].shape.rank = -1;
    b->call.attrs.act = MZ_ACT_NONE;
    b->call.n_out = MZ_OUT(quantize, dbias) + 1;
}

// The same codes; a NaN's sign says nothing.
static bool same_codes(const uint8_t *a, const uint8_t *b, size_t n, mezzo_dtype dtype) {
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i] && !(is_nan(a[i], dtype) && is_nan(b[i], dtype)))
            return false;
    return true;
}

static void check_acts_apart(const form *f) {
    static quantized want, got;
    const uint32_t before = seed;
    bench fused = make_quantize(f);
    seed = before;
    bench apart = make_quantize(f);
    act_apart(&fused, &apart);
    run_quantize(test_device(), &fused, &got);
    run_quantize(test_device(), &apart, &want);
    const size_t n = (size_t)(f->rows * f->columns);
    const size_t columnwise = (size_t)(mz_columnwise_pitch(f->rows) * f->columns);
    const bool codes =
        same_codes(want.y, got.y, n, f->to) && same_codes(want.columnwise, got.columnwise, columnwise, f->to);
    const bool entry = memcmp(&want.entry, &got.entry, sizeof want.entry) == 0;
    bool beside = true;
    if (f->derivative) { // what it writes beside is forward's
        form forward =
            form_of(f->from, MEZZO_F8E4M3, 1, f->rows, f->act == MZ_ACT_SWIGLU ? f->columns / 2 : f->columns);
        forward.act = f->act;
        forward.given = fused.act_out;
        bench again = make_quantize(&forward);
        memcpy(again.data[0], fused.data[1], n * mezzo_dtype_size(f->from));
        run_quantize(test_device(), &again, &want);
        beside = same_codes(want.columnwise, got.act_out, (size_t)(mz_columnwise_pitch(forward.rows) * forward.columns),
                            forward.to);
        free_bench(&again);
    }
    if (!codes || !entry || !beside)
        fail_msg("act %d, slope %d, kind %d, %lldx%lld, scale %g: others than of two kernels:%s%s%s", (int)f->act,
                 f->derivative, (int)f->kind, (long long)f->rows, (long long)f->columns, (double)f->given,
                 codes ? "" : " codes", entry ? "" : " the entry", beside ? "" : " codes beside");
    free_bench(&fused);
    free_bench(&apart);
}

// Codes of an act and what is recorded are those of its own kernel's result, bit for bit.
TEST(acts_in_front_are_acts_apart) {
    for (size_t a = 0; a < MZ_COUNT(acts); a++)
        for (int derivative = 0; derivative < 2; derivative++)
            for (size_t s = 0; s < MZ_COUNT(act_sizes); s++)
                for (int given = 0; given < 2; given++)
                    for (int far = 0; far < 2; far++) {
                        form f = form_of(MEZZO_BF16, derivative ? MEZZO_F8E5M2 : MEZZO_F8E4M3, 4, act_sizes[s][0],
                                         act_sizes[s][1]);
                        f.act = acts[a];
                        f.derivative = derivative;
                        f.given = given ? 0x1p-6F : 0;
                        f.kind = far ? FAR : SIZES;
                        check_acts_apart(&f);
                    }
}

// --- quantize in blocks --------------------------------------------------------------------------------------------
typedef struct in_blocks { // what comes out; scales of at most 4 × 512 rows
    uint8_t codes[2][(MOST_ROWS + 15) * MOST_COLUMNS];
    float scales[2][2048];
    float sums[MOST_COLUMNS];
} in_blocks;

static void run_in_blocks(const char *device, const bench *b, in_blocks *out) {
    void *to[MZ_MAX_OUT] = {out->codes[0], out->codes[1]};
    to[MZ_OUT(quantize, scales)] = out->scales[0];
    to[MZ_OUT(quantize, columnwise_scales)] = out->scales[1];
    to[MZ_OUT(quantize, dbias)] = out->sums;
    memset(out, 0, sizeof *out);
    run_on(device, b, to);
}

// The same numbers as a tensor's case, with an outlier, so that blocks differ.
static bench make_in_blocks(const form *f, mz_scaling scaling) {
    bench b = make_quantize(f);
    const int absent[] = {MZ_OUT(quantize, scales), MZ_OUT(quantize, act_out)};
    b.call.n_out = MZ_OUT(quantize, dbias) + 1;
    for (size_t i = 0; i < MZ_COUNT(absent); i++) {
        free(b.data[MZ_MAX_IN + absent[i]]);
        b.data[MZ_MAX_IN + absent[i]] = NULL;
        b.call.out[absent[i]] = (mz_tensor){.shape.rank = -1};
    }
    b.call.attrs.measure = b.call.attrs.record = false;
    for (int k = 0; k < 2; k++) {
        mz_tensor *codes = &b.call.out[k];
        codes->scaling = scaling;
        const int slot = mz_scale_slot(scaling, codes->columnwise);
        if (!mz_present(&b.call.out[slot]))
            put(&b, true, slot, MEZZO_F32, SHAPE((int64_t)scales_in(codes)));
    }
    return b;
}

static void check_in_blocks(const form *f, mz_scaling scaling) {
    static in_blocks want, got;
    bench b = make_in_blocks(f, scaling);
    const char *name = mz_scalings[scaling].name;
    run_in_blocks("ref", &b, &want);
    run_in_blocks(test_device(), &b, &got);
    for (int k = 0; k < 2; k++) {
        const mz_tensor *t = &b.call.out[k];
        for (size_t i = 0; i < scales_in(t) && f->act == MZ_ACT_NONE; i++)
            if (want.scales[k][i] != got.scales[k][i])
                fail_msg("%s of %lldx%lld, %s: scale %zu is %a, not %a", name, (long long)f->rows,
                         (long long)f->columns, k == 0 ? "rows" : "turned", i, (double)got.scales[k][i],
                         (double)want.scales[k][i]);
        int64_t others = 0;
        for (size_t i = 0; i < bytes_of(t); i++) {
            const uint8_t a = want.codes[k][i], g = got.codes[k][i];
            others += a != g;
            if (f->act == MZ_ACT_NONE && a != g && !(is_nan(a, f->to) && is_nan(g, f->to)))
                fail_msg("%s of %lldx%lld, %s: code %zu is %#x, not %#x", name, (long long)f->rows,
                         (long long)f->columns, k == 0 ? "rows" : "turned", i, g, a);
        }
        assert_true(others <= (int64_t)bytes_of(t) / 20 + 1); // of activations: another rounding, another scale
    }
    for (int64_t c = 0; c < f->columns && f->kind != NOT_FINITE; c++)
        if (!(fabs((double)got.sums[c] - (double)want.sums[c]) <=
              1e-4 * ((double)f->amplitude + 1) + (f->act == MZ_ACT_NONE ? 0 : 0x1p-8 * (double)f->rows)))
            fail_msg("%s of %lldx%lld: sum %lld is %g, not %g", name, (long long)f->rows, (long long)f->columns,
                     (long long)c, (double)got.sums[c], (double)want.sums[c]);
    free_bench(&b);
}

TEST(blocks_are_refs_bit_for_bit) {
    static const int64_t sizes[][2] = {{1, 1},     {7, 15},   {17, 127},  {128, 128}, {129, 257}, {257, 129},
                                       {400, 272}, {16, 300}, {144, 160}, {256, 256}, {333, 144}};
    static const mezzo_dtype from[] = {MEZZO_F32, MEZZO_BF16, MEZZO_F16};
    for (mz_scaling scaling = MZ_SCALING_BLOCK128; scaling <= MZ_SCALING_TILE128;
         scaling += MZ_SCALING_TILE128 - MZ_SCALING_BLOCK128) {
        for (size_t s = 0; s < MZ_COUNT(sizes); s++)
            for (size_t i = 0; i < MZ_COUNT(from); i++) {
                form f = form_of(from[i], MEZZO_F8E4M3, 1, sizes[s][0], sizes[s][1]);
                f.accumulate = s % 2;
                check_in_blocks(&f, scaling);
            }
        for (int kind = NOT_FINITE; kind <= ZEROS; kind++) {
            form f = form_of(MEZZO_BF16, MEZZO_F8E4M3, 1, 144, 160);
            f.kind = kind == NOT_FINITE ? NOT_FINITE : ZEROS;
            check_in_blocks(&f, scaling);
            f.rows = 33, f.columns = 131;
            check_in_blocks(&f, scaling);
        }
        for (int e = -126; e <= 127; e += 23) {
            form f = form_of(MEZZO_F32, MEZZO_F8E4M3, ldexpf(1.9F, e), 48, 144);
            if (e < 60) // sums of larger ones are infinite
                check_in_blocks(&f, scaling);
        }
    }
    for (int act = MZ_ACT_RELU; act <= MZ_ACT_SILU; act++)
        for (int derivative = 0; derivative < 2; derivative++)
            for (int size = 0; size < 2; size++) {
                form f = form_of(MEZZO_BF16, MEZZO_F8E4M3, 4, size ? 128 : 33, size ? 144 : 7);
                f.act = (mz_act)act;
                f.derivative = derivative;
                check_in_blocks(&f, MZ_SCALING_BLOCK128);
            }
}

TEST_GROUP(NULL, close_devices)
