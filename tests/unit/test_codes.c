// Kernels that round to 8 bits what they make, beside the two kernels for which they stand: every bit, on a device that
// has such kernels; and on any what a program must see to so that two calls can run in one piece. Each fails with what
// it is about left out (docs/dev/CUDA.md).
#include "call_cases.h"

#include "mezzo/model.h"
#include "mezzo/step.h"
#include "optim/optimizer.h"
#include "pieces.h"
#include "runtime/program.h"
#include "test.h"

enum { TENSORS = MZ_MAX_IN + MZ_MAX_OUT };

// Two calls with all their tensors in the device's memory; the second one's x is the first one's.
typedef struct duo {
    mezzo_device *device;
    mz_call first, second;
    mz_prepared prepared[2];
    void *memory[2 * TENSORS + 2];
    int n;
} duo;

static void *room(duo *d, size_t bytes, const void *from) {
    const mz_backend *b = d->device->backend;
    void *filled = malloc(bytes + 1);
    memset(filled, PATTERN, bytes);
    must(b->alloc(d->device, bytes, &d->memory[d->n]));
    must(b->write(d->device, d->memory[d->n], from != NULL ? from : filled, bytes));
    free(filled);
    return d->memory[d->n++];
}

static void give(duo *d, mz_tensor *t, mezzo_dtype dtype, mz_shape shape, const void *from) {
    *t = (mz_tensor){.dtype = dtype, .shape = shape};
    t->data = room(d, bytes_of(t), from);
}

static mz_call empty_call(mz_op op, int n_in, int n_out) {
    bench b = new_bench(op, n_in, n_out);
    return b.call;
}

enum { BOTH, ROWS, COLUMNWISE };
typedef struct kind {
    mz_op op;
    int64_t rows, columns;
    mezzo_dtype low; // of what is rounded
    bool plain;      // no weights, no residual, no second result
    bool not_finite;
    int codes;             // which layouts: BOTH, ROWS or TURNED
    bool sums, accumulate; // backward: the quantize's column sums
    float scale;
} kind;

static void *numbers(int64_t n, mezzo_dtype dtype, float amplitude, const kind *k) {
    float *x = calloc((size_t)n + 1, sizeof *x);
    void *out = calloc((size_t)n + 1, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = amplitude * uniform() * ldexpf(1, -(int)(i % 11));
    if (k->not_finite && n > 100)
        x[5] = NAN, x[n / 2] = -INFINITY, x[n - 3] = 3e38F;
    must(mezzo_convert(x, MEZZO_F32, out, dtype, (size_t)n));
    free(x);
    return out;
}

static void give_numbers(duo *d, mz_tensor *t, mezzo_dtype dtype, mz_shape shape, float amplitude, const kind *k) {
    void *x = numbers(mz_shape_count(&shape), dtype, amplitude, k);
    give(d, t, dtype, shape, x);
    free(x);
}

static void make_norm(duo *d, const kind *k) {
    const mz_shape whole = SHAPE(k->rows, k->columns), row = SHAPE(k->columns), each = SHAPE(k->rows);
    const bool centred = k->op == MZ_OP_layernorm;
    const kind finite = {.not_finite = false};
    d->first = empty_call(k->op, centred ? 4 : 3, centred ? 4 : 3);
    d->first.attrs.eps = 1e-5F;
    give_numbers(d, &d->first.in[0], MEZZO_F32, whole, 3, k);
    if (!k->plain) {
        give_numbers(d, &d->first.in[1], MEZZO_F32, row, 1, &finite);
        if (centred)
            give_numbers(d, &d->first.in[MZ_IN(layernorm, bias)], MEZZO_F32, row, 1, &finite);
        give_numbers(d, &d->first.in[centred ? MZ_IN(layernorm, residual) : MZ_IN(rmsnorm, residual)], MEZZO_BF16,
                     whole, 2, &finite);
        give(d, &d->first.out[centred ? MZ_OUT(layernorm, sum) : MZ_OUT(rmsnorm, sum)], MEZZO_F32, whole, NULL);
    }
    give(d, &d->first.out[0], k->low, whole, NULL);
    if (centred)
        give(d, &d->first.out[MZ_OUT(layernorm, mean)], MEZZO_F32, each, NULL);
    give(d, &d->first.out[centred ? MZ_OUT(layernorm, rstd) : MZ_OUT(rmsnorm, rstd)], MEZZO_F32, each, NULL);
}

static void make_norm_bwd(duo *d, const kind *k) {
    const mz_shape whole = SHAPE(k->rows, k->columns), row = SHAPE(k->columns), each = SHAPE(k->rows);
    const bool centred = k->op == MZ_OP_layernorm_bwd;
    const int rstd = centred ? MZ_IN(layernorm_bwd, rstd) : MZ_IN(rmsnorm_bwd, rstd);
    const kind finite = {.not_finite = false};
    d->first = empty_call(k->op, rstd + 2, centred ? 5 : 3);
    d->first.attrs.accumulate = k->accumulate;
    give_numbers(d, &d->first.in[0], k->low, whole, 1, k);
    give_numbers(d, &d->first.in[1], MEZZO_F32, whole, 2, &finite);
    float *positive = calloc((size_t)k->rows, sizeof *positive);
    for (int64_t i = 0; i < k->rows; i++)
        positive[i] = 1 + fabsf(uniform());
    give(d, &d->first.in[rstd], MEZZO_F32, each, positive);
    free(positive);
    if (centred)
        give_numbers(d, &d->first.in[MZ_IN(layernorm_bwd, mean)], MEZZO_F32, each, 1, &finite);
    give(d, &d->first.out[0], MEZZO_F32, whole, NULL);
    give(d, &d->first.out[centred ? MZ_OUT(layernorm_bwd, low) : MZ_OUT(rmsnorm_bwd, low)], k->low, whole, NULL);
    if (k->plain)
        return;
    give_numbers(d, &d->first.in[2], MEZZO_F32, row, 1, &finite);
    give_numbers(d, &d->first.in[rstd + 1], MEZZO_F32, whole, 1, &finite);
    give_numbers(d, &d->first.out[1], MEZZO_F32, row, 1, &finite);
    if (centred)
        give_numbers(d, &d->first.out[MZ_OUT(layernorm_bwd, dbias)], MEZZO_F32, row, 1, &finite);
    if (centred && !k->sums)
        give_numbers(d, &d->first.out[MZ_OUT(layernorm_bwd, linear_dbias)], MEZZO_F32, row, 1, &finite);
}

// x [rows / 2, columns] FP32 (BF16 where `plain`, without weights), each row twice in an order of its own; or a cast.
static void make_move(duo *d, const kind *k) {
    const mezzo_dtype from = k->plain && k->op == MZ_OP_dispatch ? MEZZO_BF16 : MEZZO_F32;
    const int64_t rows = k->rows, sources = k->op == MZ_OP_dispatch ? rows / 2 : rows;
    int32_t *order = calloc((size_t)rows, sizeof *order);
    const kind finite = {.not_finite = false};
    d->first = empty_call(k->op, k->op == MZ_OP_dispatch ? 4 : 1, 1);
    d->first.attrs.top_k = 2;
    give_numbers(d, &d->first.in[0], from, SHAPE(sources, k->columns), 3, k);
    for (int64_t i = 0; i < rows; i++)
        order[i] = (int32_t)((i * 7 + 3) % rows); // rows are a multiple of 16
    for (int i = 1; i < d->first.n_in && i < 3; i++)
        give(d, &d->first.in[i], MEZZO_I32, SHAPE(rows), order);
    if (d->first.n_in > 3 && !k->plain)
        give_numbers(d, &d->first.in[3], MEZZO_F32, SHAPE(sources, 2), 1, &finite);
    give(d, &d->first.out[0], MEZZO_BF16, SHAPE(rows, k->columns), NULL);
    free(order);
}

static bool is_move(mz_op op) {
    return op == MZ_OP_dispatch || op == MZ_OP_cast;
}

static mz_tensor *rounded(duo *d) {
    switch (d->first.op) {
    case MZ_OP_layernorm_bwd:
        return &d->first.out[MZ_OUT(layernorm_bwd, low)];
    case MZ_OP_rmsnorm_bwd:
        return &d->first.out[MZ_OUT(rmsnorm_bwd, low)];
    default:
        return &d->first.out[0];
    }
}

static void make_quantize(duo *d, const kind *k) {
    const mz_shape whole = SHAPE(k->rows, k->columns);
    const kind finite = {.not_finite = false};
    mz_scale_entry entry = {.scale = k->scale, .amax = 1, .n = 3};
    d->second = empty_call(MZ_OP_quantize, 1, MZ_OUT(quantize, dbias) + 1);
    d->second.attrs.record = true;
    d->second.attrs.accumulate = k->accumulate;
    d->second.in[0] = *rounded(d);
    give(d, &d->second.out[MZ_OUT(quantize, scales)], MEZZO_F32, SHAPE(MZ_SCALE_WORDS), &entry);
    for (int i = 0; i < 2; i++) {
        if (k->codes == (i == 0 ? COLUMNWISE : ROWS))
            continue;
        mz_tensor *t = &d->second.out[i];
        *t =
            (mz_tensor){.dtype = is_forward(k->op) ? MEZZO_F8E4M3 : MEZZO_F8E5M2, .shape = whole, .columnwise = i == 1};
        t->data = room(d, bytes_of(t), NULL);
        t->scaling = MZ_SCALING_TENSOR;
        t->scale = d->second.out[MZ_OUT(quantize, scales)].data;
    }
    if (k->sums)
        give_numbers(d, &d->second.out[MZ_OUT(quantize, dbias)], MEZZO_F32, SHAPE(k->columns), 1, &finite);
}

static void prepare_duo(duo *d) {
    mz_call *calls[] = {&d->first, &d->second};
    for (int i = 0; i < 2; i++) {
        must(mz_prepare(d->device, calls[i], &d->prepared[i]));
        calls[i]->state = d->prepared[i].state;
        calls[i]->workspace = room(d, d->prepared[i].workspace + 64, NULL);
    }
}

static duo make_duo(const kind *k) {
    duo d = {.device = device_of(test_device())};
    seed = 7;
    if (is_move(k->op))
        make_move(&d, k);
    else if (is_forward(k->op))
        make_norm(&d, k);
    else
        make_norm_bwd(&d, k);
    make_quantize(&d, k);
    prepare_duo(&d);
    return d;
}

static void free_duo(duo *d) {
    for (int i = 0; i < 2; i++)
        mz_prepared_free(&d->prepared[i]);
    for (int i = 0; i < d->n; i++)
        d->device->backend->release(d->device, d->memory[i]);
}

static const mz_fused_kernel *pair_of(const duo *d, bool is_private) {
    const mz_backend *b = d->device->backend;
    return b->fuse_calls != NULL ? b->fuse_calls(d->device, &d->first, &d->second, is_private) : NULL;
}

static void run_apart(duo *d) {
    must(d->prepared[0].kernel->run(d->device, &d->first));
    must(d->prepared[1].kernel->run(d->device, &d->second));
}

// --- the two beside the one ----------------------------------------------------------------------------------------
static const char *describe(const kind *k, bool is_private) {
    static char text[200];
    snprintf(text, sizeof text, "%s %lldx%lld, low %s, plain %d, codes %d, sums %d, accumulate %d, alone %d, scale %g",
             mz_op_table[k->op].name, (long long)k->rows, (long long)k->columns, mezzo_dtype_name(k->low), k->plain,
             (int)k->codes, k->sums, k->accumulate, is_private, (double)k->scale);
    return text;
}

// Sums of columns are added up in another order: as near as FP32 sums of so many terms are, all of one magnitude.
static bool is_sum(const duo *d, bool second, int slot) {
    if (second)
        return slot == MZ_OUT(quantize, dbias);
    return !is_forward(d->first.op) && !is_move(d->first.op) && slot > 0 &&
           &d->first.out[slot] != rounded((duo *)(uintptr_t)d);
}

static void compare_sums(const kind *k, bool is_private, const float *want, const float *got, size_t n, int slot) {
    for (size_t i = 0; i < n && !k->not_finite; i++)
        if (!(fabsf(want[i] - got[i]) <= 1e-5F * (float)(k->rows + 16)))
            fail_msg("%s: sum %zu of output %d is %g, not %g", describe(k, is_private), i, slot, (double)got[i],
                     (double)want[i]);
}

static void compare_tensor(const kind *k, bool is_private, const duo *want, const duo *got, bool second, int slot) {
    const mz_tensor *a = second ? &want->second.out[slot] : &want->first.out[slot];
    const mz_tensor *b = second ? &got->second.out[slot] : &got->first.out[slot];
    if (!mz_present(a))
        return;
    const size_t bytes = bytes_of(a);
    unsigned char *x = malloc(bytes), *y = malloc(bytes);
    must(want->device->backend->read(want->device, x, a->data, bytes));
    must(got->device->backend->read(got->device, y, b->data, bytes));
    if (is_private && !second && b == rounded((duo *)(uintptr_t)got)) {
        for (size_t i = 0; i < bytes; i++)
            if (y[i] != PATTERN)
                fail_msg("%s: what nobody reads is written", describe(k, is_private));
    } else if (is_sum(want, second, slot)) {
        compare_sums(k, is_private, (const float *)(void *)x, (const float *)(void *)y, bytes / sizeof(float), slot);
    } else if (memcmp(x, y, bytes) != 0) {
        size_t at = 0;
        while (x[at] == y[at])
            at++;
        fail_msg("%s: output %d of the %s call: byte %zu of %zu is %#x, not %#x", describe(k, is_private), slot,
                 second ? "second" : "first", at, bytes, y[at], x[at]);
    }
    free(x);
    free(y);
}

static void check_duo(kind of) {
    const kind *k = &of;
    for (int is_private = 0; is_private < 2; is_private++) {
        duo want = make_duo(k), got = make_duo(k);
        const mz_fused_kernel *joined = pair_of(&got, is_private);
        if (is_move(k->op) && !is_private) { // which others need has to be written
            assert_null(joined);
            free_duo(&want);
            free_duo(&got);
            continue;
        }
        if (joined == NULL)
            fail_msg("%s: not taken in one piece", describe(k, is_private));
        assert_true(got.device->backend->may_fuse(&got.first, &got.second));
        run_apart(&want);
        must(joined->run(got.device, &got.first, &got.second));
        for (int second = 0; second < 2; second++)
            for (int slot = 0; slot < (second ? want.second.n_out : want.first.n_out); slot++)
                compare_tensor(k, is_private, &want, &got, second, slot);
        free_duo(&want);
        free_duo(&got);
    }
}

// A device without such kernels has nothing to compare; a GPU must have them.
static bool has_pieces(void) {
    mezzo_device *device = device_of(test_device());
    const bool cuda = strcmp(device->backend->name, "cuda") == 0, has = device->backend->may_fuse != NULL;
    assert_true(has || !cuda);
    return has;
}

// Each width has threads and vectors of its own, and 4,256 and 8,480 rows have blocks of 32, the last of which is half
// full.
static const int64_t sizes[][2] = {{16, 16},   {48, 144},   {64, 256},    {80, 512},   {160, 768},
                                   {64, 1008}, {32, 1024},  {4256, 64},   {8480, 768}, {4256, 1024},
                                   {1, 48},    {2331, 768}, {4259, 1024}, {77, 512}};

TEST(norms_write_the_codes_of_two_kernels) {
    static const mz_op ops[] = {MZ_OP_layernorm, MZ_OP_rmsnorm, MZ_OP_layernorm_bwd, MZ_OP_rmsnorm_bwd};
    if (!has_pieces())
        skip();
    for (size_t o = 0; o < MZ_COUNT(ops); o++)
        for (size_t s = 0; s < MZ_COUNT(sizes); s++)
            check_duo((kind){.op = ops[o],
                             .rows = sizes[s][0],
                             .columns = sizes[s][1],
                             .low = MEZZO_BF16,
                             .sums = !is_forward(ops[o]) && s % 2 == 0,
                             .accumulate = s % 3 == 0,
                             .scale = 0x1p-6F});
}

TEST(rows_that_move_become_codes_of_two_kernels) {
    static const mz_op ops[] = {MZ_OP_dispatch, MZ_OP_cast};
    if (!has_pieces())
        skip();
    for (size_t o = 0; o < MZ_COUNT(ops); o++)
        for (size_t s = 0; s < MZ_COUNT(sizes); s++)
            for (int way = 0; way < 4; way++)
                check_duo((kind){.op = ops[o],
                                 .rows = sizes[s][0],
                                 .columns = sizes[s][1],
                                 .low = MEZZO_BF16,
                                 .plain = way % 2 == 1,
                                 .not_finite = way == 2,
                                 .codes = (int)(s % 3),
                                 .scale = 0x1p-5F});
}

TEST(every_way_of_writing_them) {
    static const mz_op ops[] = {MZ_OP_layernorm, MZ_OP_rmsnorm, MZ_OP_layernorm_bwd, MZ_OP_rmsnorm_bwd};
    if (!has_pieces())
        skip();
    for (size_t o = 0; o < MZ_COUNT(ops); o++)
        for (int way = 0; way < 48; way++)
            check_duo((kind){.op = ops[o],
                             .rows = 48,
                             .columns = way % 2 == 0 ? 768 : 1008,
                             .low = way / 2 % 2 == 0 ? MEZZO_BF16 : MEZZO_F16,
                             .plain = way / 4 % 2 == 1,
                             .not_finite = way / 8 % 2 == 1,
                             .codes = way / 16,
                             .scale = way % 5 == 0   ? 1
                                      : way % 5 == 1 ? 0x1p-120F
                                                     : 0x1p-7F});
}

// A scale that is not known yet: the two run in turn.
TEST(a_scale_is_found_before_codes_are_made) {
    if (!has_pieces())
        skip();
    for (int o = 0; o < 2; o++) {
        const kind k = {.op = o == 0 ? MZ_OP_layernorm : MZ_OP_layernorm_bwd,
                        .rows = 64,
                        .columns = 768,
                        .low = MEZZO_BF16,
                        .sums = o == 1};
        duo want = make_duo(&k), got = make_duo(&k);
        want.second.attrs.measure = got.second.attrs.measure = true;
        const mz_fused_kernel *joined = pair_of(&got, true);
        assert_non_null(joined);
        run_apart(&want);
        must(joined->run(got.device, &got.first, &got.second));
        for (int second = 0; second < 2; second++)
            for (int slot = 0; slot < (second ? want.second.n_out : want.first.n_out); slot++)
                compare_tensor(&k, false, &want, &got, second, slot);
        free_duo(&want);
        free_duo(&got);
    }
}

TEST(others_stay_two) {
    if (!has_pieces())
        skip();
    kind k = {.op = MZ_OP_layernorm, .rows = 64, .columns = 768, .low = MEZZO_BF16, .scale = 1};
    duo d = make_duo(&k);
    mz_tensor *y = &d.second.out[MZ_OUT(quantize, y)], kept = *y;
    y->data = d.first.in[0].data; // what the norm reads
    assert_null(pair_of(&d, true));
    y->data = (char *)d.first.out[MZ_OUT(layernorm, rstd)].data; // what it writes
    assert_null(pair_of(&d, true));
    *y = kept;
    assert_non_null(pair_of(&d, true));
    d.second.in[0].data = d.first.in[0].data; // another tensor is rounded
    assert_null(pair_of(&d, true));
    free_duo(&d);
    k.rows = 40; // the last run of 16 rows is not full
    d = make_duo(&k);
    assert_non_null(pair_of(&d, true));
    free_duo(&d);
    k.rows = 64;
    k.columns = 776; // no multiple of 16
    d = make_duo(&k);
    assert_null(pair_of(&d, true));
    free_duo(&d);
    k.columns = 1040; // wider than a block's rows are
    d = make_duo(&k);
    assert_null(pair_of(&d, true));
    free_duo(&d);
}

// --- from one layout to the other ------------------------------------------------------------------------------------
// Every byte, NaN's among them, and zeros after each column's rows.
TEST(codes_move_into_columns_as_they_are) {
    static const int64_t shapes[][2] = {{64, 128}, {70, 48}, {1, 16}, {333, 2064}, {4099, 1040}, {16, 4112}};
    for (size_t s = 0; s < MZ_COUNT(shapes); s++) {
        const int64_t rows = shapes[s][0], columns = shapes[s][1], pitch = mz_columnwise_pitch(rows);
        const size_t n = (size_t)(rows * columns), turned = (size_t)(columns * pitch);
        const float scale = 0x1p-3F;
        duo d = {.device = device_of(test_device())};
        uint8_t *x = malloc(n), *y = malloc(turned);
        for (size_t i = 0; i < n; i++)
            x[i] = (uint8_t)(i * 167 + i / 251);
        mz_call *call = &d.first;
        *call = empty_call(MZ_OP_quantize, 1, MZ_OUT(quantize, columnwise) + 1);
        give(&d, &call->in[0], MEZZO_F8E5M2, (mz_shape)SHAPE(rows, columns), x);
        call->in[0].scaling = MZ_SCALING_TENSOR;
        call->in[0].scale = room(&d, sizeof scale, &scale);
        mz_tensor *columnwise = &call->out[MZ_OUT(quantize, columnwise)];
        *columnwise = call->in[0];
        columnwise->columnwise = true;
        columnwise->data = room(&d, turned, NULL);
        must(mz_prepare(d.device, call, &d.prepared[0]));
        must(d.prepared[0].kernel->run(d.device, call));
        must(d.device->backend->read(d.device, y, columnwise->data, turned));
        for (int64_t c = 0; c < columns; c++)
            for (int64_t r = 0; r < pitch; r++)
                if (y[c * pitch + r] != (r < rows ? x[r * columns + c] : 0))
                    fail_msg("%lld x %lld: row %lld of column %lld", (long long)rows, (long long)columns, (long long)r,
                             (long long)c);
        free(x);
        free(y);
        free_duo(&d);
    }
}

// --- what a program sees to, on the CPU ------------------------------------------------------------------------------
enum { BATCH = 2, LENGTH = 16, VOCAB = 48, MICRO = 2, STEPS = 4 };

static mezzo_status fill(void *user, mezzo_program *p, uint64_t index) {
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
    (void)user;
    for (int i = 0; i < BATCH * LENGTH; i++) {
        tokens[i] = (i * 7 + 3 * (int)index) % VOCAB;
        targets[i] = (i * 5 + (int)index) % VOCAB;
    }
    MEZZO_TRY(mezzo_program_write(p, "tokens", tokens, sizeof tokens));
    return mezzo_program_write(p, "targets", targets, sizeof targets);
}

typedef struct run {
    mezzo_device *device;
    const mz_backend *own; // the device's
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *optimizer;
    mezzo_step *step;
} run;

typedef struct how {
    const char *device, *model;
    const mz_backend *backend; // NULL: the device's own
    int64_t width;
    mezzo_moments moments;
    double ema;
    bool eight;    // every product, the head's included, in 8 bits
    int64_t vocab; // 0: VOCAB
} how;

static run open_run(const how *h) {
    mezzo_model_config c;
    run r = {0};
    must(mezzo_model_defaults(h->model, &c));
    c.layers = h->eight ? 2 : 4, c.heads = h->width < 512 ? 2 : 8, c.d_model = h->width, c.d_ff = 2 * h->width;
    c.vocab = h->vocab > 0 ? h->vocab : VOCAB, c.seq_len = LENGTH;
    c.dropout = 0;
    must(mezzo_device_open(h->device, 2, &r.device));
    r.own = r.device->backend;
    r.device->backend = h->backend != NULL ? h->backend : r.own;
    must(mezzo_graph_create(&r.graph));
    must(mezzo_model_build(r.graph, &c, BATCH, LENGTH, false));
    const mezzo_program_options options = {.precision = MEZZO_PRECISION_FP8, .loss_weight = 1.0F / MICRO};
    must(mezzo_params_create_as(r.device, r.graph, &options, 7, MEZZO_MASTER_FP32, &r.params));
    must(mezzo_program_create(r.graph, r.params, &options, &r.program));
    r.params->overlaps_update = false; // a larger program's move is not in pieces
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    adamw.moments = h->moments;
    adamw.ema = h->ema;
    must(mezzo_optimizer_create(r.params, &adamw, &r.optimizer));
    // Codes are written by a call of their own: this one has none.
    assert_true(h->eight || !mz_present(&r.optimizer->groups[0].whole.call.in[MZ_IN(adamw, quantized)]));
    must(mezzo_step_create(r.program, &r.optimizer, 1, NULL, &(mezzo_step_options){.micro_batches = MICRO}, &r.step));
    return r;
}

static void take_steps(run *r, int from, int to) {
    for (int s = from; s < to; s++)
        must(mezzo_step_run(r->step, 3, (uint64_t)s * MICRO, fill, NULL));
}

static void close_run(run *r) {
    mezzo_step_free(r->step);
    mezzo_optimizer_free(r->optimizer);
    mezzo_program_free(r->program);
    mezzo_params_free(r->params);
    mezzo_graph_free(r->graph);
    r->device->backend = r->own;
    mezzo_device_close(r->device);
}

static void same_bytes(const char *what, const run *a, const void *x, const run *b, const void *y, size_t n) {
    char *p = malloc(n + 1), *q = malloc(n + 1);
    must(a->device->backend->read(a->device, p, x, n));
    must(b->device->backend->read(b->device, q, y, n));
    size_t at = 0;
    while (at < n && p[at] == q[at])
        at++;
    if (at < n)
        fail_msg("%s: byte %zu of %zu is %#x, not %#x", what, at, n, (unsigned char)q[at], (unsigned char)p[at]);
    free(p);
    free(q);
}

// Codes must not lie where the norm in front reads or writes, and gradients of both are written by a step's first micro
// batch and added to by the next.
TEST(a_programs_memory_lets_two_run_as_one) {
    static mz_backend in_pieces;
    in_pieces = mz_backend_cpu;
    in_pieces.may_fuse = may_fuse;
    in_pieces.fuse_calls = fuse_calls;
    pieces = alone_in_pieces = 0;
    const how apart = {"cpu", "gpt2", &mz_backend_cpu, 32, MEZZO_MOMENTS_FP32, 0, false, 0};
    const how joined = {"cpu", "gpt2", &in_pieces, 32, MEZZO_MOMENTS_FP32, 0, false, 0};
    run want = open_run(&apart), got = open_run(&joined);
    take_steps(&want, 0, STEPS);
    assert_int_equal(pieces, 0);
    take_steps(&got, 0, STEPS);
    assert_int_equal(alone_in_pieces, 2 * (2 + 2)); // of two layers in 8 bits: two norms forward, and their ways back
    assert_int_equal(pieces, alone_in_pieces * STEPS * MICRO);
    same_bytes("masters", &want, want.params->master, &got, got.params->master,
               (size_t)want.params->elements * sizeof(float));
    close_run(&want);
    close_run(&got);
}

// A loss, its gradient and the rowwise codes of this in one piece, which writes codes before it has read anything; the
// columnwise ones come after it.
TEST(a_programs_memory_lets_three_run_as_one) {
    static mz_backend in_pieces;
    in_pieces = mz_backend_cpu;
    in_pieces.may_fuse = may_fuse;
    in_pieces.fuse_calls = fuse_calls;
    in_pieces.fuse_three = fuse_three;
    threes = 0;
    const how apart = {"cpu", "gpt2", &mz_backend_cpu, 32, MEZZO_MOMENTS_FP32, 0, true, 0};
    how joined = apart;
    joined.backend = &in_pieces;
    run want = open_run(&apart), got = open_run(&joined);
    take_steps(&want, 0, STEPS);
    take_steps(&got, 0, STEPS);
    assert_int_equal(threes, STEPS * MICRO);
    same_bytes("masters", &want, want.params->master, &got, got.params->master,
               (size_t)want.params->elements * sizeof(float));
    close_run(&want);
    close_run(&got);
}

// Logits of 2 MiB, padded as a GPU does and rounded by one kernel with their gradient: this lies where they lie, its
// rowwise codes beside it, and its columnwise codes where it was.
TEST(columnwise_codes_lie_where_the_gradient_was) {
    static mz_backend in_pieces;
    mezzo_device *device;
    mezzo_model_config c;
    mezzo_graph *g;
    mezzo_memory m;
    const mezzo_program_options options = {.precision = MEZZO_PRECISION_FP8, .loss_weight = 1};
    const size_t logits = (size_t)BATCH * 128 * 4096 * 2;
    must(mezzo_device_open("ref", 1, &device));
    const mz_backend *own = device->backend;
    in_pieces = *own;
    in_pieces.may_fuse = may_fuse;
    device->backend = &in_pieces;
    assert_true(mz_policy_parse("8,vocabulary=128,width=128,eight16", &device->storage));
    must(mezzo_model_defaults("gpt2", &c));
    c.layers = 1, c.heads = 1, c.d_model = 16, c.d_ff = 16, c.vocab = 4090, c.seq_len = 128, c.dropout = 0;
    must(mezzo_graph_create(&g));
    must(mezzo_model_build(g, &c, BATCH, 128, false));
    must(mezzo_plan_memory(device, g, &options, &m));
    assert_true(m.activations > logits + logits / 2 && m.activations < logits * 15 / 8);
    mezzo_graph_free(g);
    device->backend = own;
    mezzo_device_close(device);
}

// --- a program on the device -----------------------------------------------------------------------------------------
static int named(const run *r, const char *name) {
    int n = 0;
    for (size_t i = 0; i < r->program->c.n_calls; i++)
        n += r->program->pairs[i] != NULL && strcmp(r->program->pairs[i]->name, name) == 0;
    return n;
}

static float loss_of(const run *r) {
    float loss;
    must(mezzo_program_read(r->program, "loss", &loss, sizeof loss));
    return loss;
}

// Every value of forward and all largest magnitudes: in the second step, whose scales are known.
static void check_program(const char *model, int64_t width) {
    mz_backend apart = *device_of(test_device())->backend;
    apart.fuse_calls = NULL;
    const how one_by_one = {test_device(), model, &apart, width, MEZZO_MOMENTS_FP32, 0, false, 0};
    const how joined = {test_device(), model, NULL, width, MEZZO_MOMENTS_FP32, 0, false, 0};
    run want = open_run(&one_by_one), got = open_run(&joined);
    take_steps(&want, 0, 2);
    take_steps(&got, 0, 2);
    const float losses[] = {loss_of(&want), loss_of(&got)};
    assert_memory_equal(&losses[0], &losses[1], sizeof losses[0]);
    same_bytes("scales", &want, want.params->scales.entries, &got, got.params->scales.entries,
               (size_t)want.params->scales.n * sizeof(mz_scale_entry));
    const bool gpt2 = strcmp(model, "gpt2") == 0;
    const int norms = named(&got, "norm_fp8__cuda"), bwd = named(&got, "norm_bwd_fp8__cuda");
    if (gpt2 ? norms != 4 || bwd != 4
             : norms == 0 || bwd == 0 || named(&got, "dispatch_fp8__cuda") == 0 || named(&got, "cast_fp8__cuda") == 0)
        fail_msg("%s: %d norms and %d ways back write codes, %d dispatches, %d casts", model, norms, bwd,
                 named(&got, "dispatch_fp8__cuda"), named(&got, "cast_fp8__cuda"));
    close_run(&want);
    close_run(&got);
}

TEST(programs_have_the_values_of_two_kernels) {
    if (!has_pieces())
        skip();
    check_program("gpt2", 64);
    check_program("gpt2", 1024);
    check_program("glm4_moe", 64);
}

static const mz_fused_kernel *fuse_but_losses(mezzo_device *device, const mz_call *first, const mz_call *second,
                                              bool is_private) {
    return first->op == MZ_OP_cross_entropy || first->op == MZ_OP_cross_entropy_dx
               ? NULL
               : device_of(test_device())->backend->fuse_calls(device, first, second, is_private);
}

// With and without columns of padding, and a vocabulary that no block's memory holds.
TEST(losses_write_the_codes_of_three_kernels) {
    static const struct {
        int64_t vocab;
        const char *name;
    } cases[] = {{2064, "cross_entropy_fp8__cuda"},
                 {4090, "cross_entropy_fp8__cuda"},
                 {60016, "cross_entropy_dx_fp8__cuda"},
                 {60001, "cross_entropy_dx_fp8__cuda"}};
    if (!has_pieces())
        skip();
    mz_backend apart = *device_of(test_device())->backend;
    apart.fuse_calls = fuse_but_losses;
    apart.fuse_three = NULL;
    for (size_t i = 0; i < MZ_COUNT(cases); i++) {
        const how one_by_one = {test_device(), "gpt2", &apart, 64, MEZZO_MOMENTS_FP32, 0, true, cases[i].vocab};
        how joined = one_by_one;
        joined.backend = NULL;
        run want = open_run(&one_by_one), got = open_run(&joined);
        take_steps(&want, 0, 3);
        take_steps(&got, 0, 3);
        if (named(&got, cases[i].name) != 1)
            fail_msg("vocabulary %lld: no %s", (long long)cases[i].vocab, cases[i].name);
        const float losses[] = {loss_of(&want), loss_of(&got)};
        if (losses[0] != losses[1])
            fail_msg("vocabulary %lld: loss %.9g, not %.9g", (long long)cases[i].vocab, (double)losses[1],
                     (double)losses[0]);
        same_bytes("scales", &want, want.params->scales.entries, &got, got.params->scales.entries,
                   (size_t)want.params->scales.n * sizeof(mz_scale_entry));
        same_bytes("masters", &want, want.params->master, &got, got.params->master,
                   (size_t)want.params->elements * sizeof(float));
        close_run(&want);
        close_run(&got);
    }
}

// --- the optimizer's move --------------------------------------------------------------------------------------------
static void check_move(const run *want, const run *got) {
    const mezzo_params *a = want->params, *b = got->params;
    same_bytes("masters", want, a->master, got, b->master, (size_t)a->elements * sizeof(float));
    for (int m = 0; m < want->optimizer->n_moments; m++)
        same_bytes("moments", want, want->optimizer->d_moments[m], got, got->optimizer->d_moments[m],
                   mz_optimizer_moment_bytes(want->optimizer, m, want->optimizer->moment_elements[m]));
    assert_int_equal(a->quantized.n, b->quantized.n);
    assert_true(a->quantized.n > 0);
    for (int i = 0; i < a->quantized.n; i++) {
        const size_t n = (size_t)a->list[a->quantized.list[i].param].count;
        same_bytes("codes", want, a->quantized.list[i].rowwise, got, b->quantized.list[i].rowwise, n);
        same_bytes("turned codes", want, a->quantized.list[i].columnwise, got, b->quantized.list[i].columnwise, n);
    }
    same_bytes("scales", want, a->scales.entries, got, b->scales.entries, (size_t)a->scales.n * sizeof(mz_scale_entry));
}

static mz_takes takes_but_quantized(const mz_kernel *kernel) {
    const mezzo_device *device = device_of(test_device());
    mz_takes takes = device->backend->takes(kernel);
    takes.extras = takes.extras && kernel != mz_post_kernel(device, MZ_OP_adamw, MZ_POST_adamw_quantized);
    return takes;
}

TEST(the_move_writes_the_codes_of_two_kernels) {
    static const mezzo_moments moments[] = {MEZZO_MOMENTS_FP32, MEZZO_MOMENTS_BF16, MEZZO_MOMENTS_INT8};
    mz_backend apart = *device_of(test_device())->backend, together = apart;
    if (!has_pieces())
        skip();
    assert_non_null(mz_post_kernel(device_of(test_device()), MZ_OP_adamw, MZ_POST_adamw_quantized));
    apart.fuse_calls = together.fuse_calls = NULL;
    apart.takes = takes_but_quantized;
    for (int i = 0; i < 6; i++) {
        const how one = {test_device(), "gpt2", &apart, 176, moments[i / 2], i % 2 == 0 ? 0 : 0.9, false, 0};
        how other = one;
        other.backend = &together;
        run want = open_run(&one), got = open_run(&other);
        take_steps(&want, 0, STEPS);
        take_steps(&got, 0, STEPS);
        assert_int_equal(want.optimizer->groups[0].n_quantized, 0);
        assert_int_equal(got.optimizer->groups[0].n_quantized, moments[i / 2] == MEZZO_MOMENTS_INT8 ? 0 : 2 * 4);
        assert_int_equal(got.optimizer->groups[0].n_quantized + got.optimizer->groups[0].n_plain,
                         got.optimizer->groups[0].n_quantized > 0 ? got.optimizer->n : 0);
        check_move(&want, &got);
        float bad = NAN; // a step that moves nothing
        run *both[] = {&want, &got};
        for (int k = 0; k < 2; k++) {
            mezzo_params *p = both[k]->params;
            must(both[k]->device->backend->write(both[k]->device, p->master + p->list[0].offset, &bad, sizeof bad));
            take_steps(both[k], STEPS, STEPS + 1);
        }
        check_move(&want, &got);
        close_run(&want);
        close_run(&got);
    }
}

TEST_GROUP(NULL, close_devices)
