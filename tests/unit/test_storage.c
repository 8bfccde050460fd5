// Storage is not shape: padding of axes changes no bit on ref, stays zero, is not read where the op must know the
// logical extent, and nothing above the backend sees it.
#include <math.h>

#include "fixture.h"
#include "graph/graph.h"
#include "optim/optimizer.h"
#include "runtime/program.h"
#include "backend/inspect.h"

// --- where elements lie --------------------------------------------------------------------------------------------
// [2, 3·5, 7] with heads of 5 stored as 8 and 7 columns as 9.
static const mz_shape shape = {3, {2, 15, 7}};
static const mz_storage heads = {true, {0, 5, 7}, {0, 8, 9}};

TEST(test_elements_lie_where_padding_leaves_them) {
    mz_layout layout;
    assert_int_equal(mz_stored_count(&shape, &heads), 2 * 24 * 9);
    assert_true(mz_layout_of(&shape, &heads, &layout));
    int64_t i = 0;
    for (int64_t a = 0; a < 2; a++)
        for (int64_t b = 0; b < 15; b++)
            for (int64_t c = 0; c < 7; c++, i++) {
                int64_t at = (a * 24 + b / 5 * 8 + b % 5) * 9 + c;
                assert_int_equal(mz_stored_index(&shape, &heads, i), at);
                assert_int_equal(mz_layout_index(&layout, i), at);
                assert_int_equal(mz_layout_run(&layout, i, 100), 7 - c);
            }
    mz_storage three = {true, {1, 5, 7}, {2, 8, 9}};
    assert_false(mz_layout_of(&shape, &three, &layout));
}

TEST(test_views_share_places) {
    mz_shape flat = {2, {30, 7}}, cut = {4, {2, 3, 5, 7}}, wrong = {2, {2, 105}};
    mz_storage of_flat = {true, {5, 7}, {8, 9}}, of_cut = {true, {0, 0, 5, 7}, {0, 0, 8, 9}};
    mz_storage of_wrong = {true, {0, 7}, {0, 9}}, none = {0};
    assert_true(mz_storage_same_places(&shape, &heads, &flat, &of_flat));
    assert_true(mz_storage_same_places(&shape, &heads, &cut, &of_cut));
    assert_false(mz_storage_same_places(&shape, &heads, &wrong, &of_wrong));
    assert_false(mz_storage_same_places(&shape, &heads, &flat, &none));
}

TEST(test_policies_are_read) {
    mz_storage_policy p;
    assert_true(mz_policy_parse("vocabulary=64,head=8+3,physical", &p));
    assert_int_equal(mz_policy_extent(&p, MZ_AXIS_VOCABULARY, 257), 320);
    assert_int_equal(mz_policy_extent(&p, MZ_AXIS_HEAD, 5), 11);
    assert_int_equal(mz_policy_extent(&p, MZ_AXIS_WIDTH, 5), 5);
    assert_true(p.physical && mz_policy_pads(&p));
    p = (mz_storage_policy){.multiple[MZ_AXIS_VOCABULARY] = 8, .up_to[MZ_AXIS_VOCABULARY] = 128};
    static const int64_t vocabularies[][2] = {{65, 72},   {50257, 50304}, {50304, 50304},
                                              {257, 264}, {1000, 1024},   {4000, 4096}};
    for (size_t i = 0; i < MZ_COUNT(vocabularies); i++)
        assert_int_equal(mz_policy_extent(&p, MZ_AXIS_VOCABULARY, vocabularies[i][0]), vocabularies[i][1]);
    assert_true(mz_policy_parse("+1", &p));
    assert_int_equal(mz_policy_extent(&p, MZ_AXIS_EXPERT, 7), 8);
    static const char *const bad[] = {"x", "head", "heads=8", "head=", "8;", "-1", "head=8 "};
    for (size_t i = 0; i < MZ_COUNT(bad); i++)
        assert_false(mz_policy_parse(bad[i], &p));
}

// --- models at odd axes --------------------------------------------------------------------------------------------
typedef enum which { GPT2, CS336, GLM4_MOE, MODELS } which;

static mezzo_graph *build(which model) {
    static const char *const names[] = {"gpt2", "cs336", "glm4_moe"};
    mezzo_graph *g;
    mezzo_model_config c;
    must(mezzo_model_defaults(names[model], &c));
    c.layers = 2, c.heads = 3, c.d_model = 15, c.d_ff = 13, c.vocab = 257, c.seq_len = 6;
    if (model == CS336)
        c.heads = 3, c.d_model = 18; // heads of 6
    if (model == GLM4_MOE) {
        c.heads = 4, c.kv_heads = 2, c.d_model = 20, c.d_expert = 7, c.experts = 4, c.experts_per_token = 2;
        c.head_dim = 0;
    }
    must(mezzo_graph_create(&g));
    must(mezzo_model_build(g, &c, 2, 6, true));
    return g;
}

static mezzo_blocks emulated; // of the next runs, with all that can be done to gradients
static mezzo_moments moments; // the same
static bool single;           // the same: a step has one micro batch

typedef struct run {
    double loss[3];
    double norm;
    float
        *numbers; // logits of the first step; each parameter's gradient of the first step, value and moments at the end
    size_t count, padded_calls;
} run;

typedef struct inspector {
    bool poison; // NaN into the padding of what the next call reads
    size_t padded_calls;
} inspector;

// Sets a tensor's padding to a byte, or checks that it is zero.
static void each_padding(mezzo_device *device, const mz_tensor *t, bool check, int byte, const char *of) {
    if (!t->storage.padded || t->data == NULL)
        return;
    size_t size = mezzo_dtype_size(t->dtype), bytes = mz_tensor_bytes_stored(t);
    unsigned char *host = malloc(bytes);
    assert_non_null(host);
    must(device->backend->read(device, host, t->data, bytes));
    unsigned char *element = calloc(bytes, 1);
    assert_non_null(element);
    for (int64_t i = 0; i < mz_shape_count(&t->shape); i++)
        memset(element + (size_t)mz_tensor_index(t, i) * size, 1, size);
    for (size_t b = 0; b < bytes; b++) {
        if (element[b])
            continue;
        if (check && host[b] != 0)
            fail_msg("padding is not zero: %s", of);
        host[b] = (unsigned char)byte;
    }
    free(element);
    if (!check)
        must(device->backend->write(device, t->data, host, bytes));
    free(host);
}

static void each_input(mezzo_program *p, size_t call, int byte) {
    const mz_node *n = &p->c.graph->nodes[p->c.node[call]];
    for (int k = 0; k < n->n_in; k++) {
        mz_tensor t = mz_program_tensor(p, n->in[k]);
        each_padding(p->device, &t, false, byte, "");
    }
}

static mezzo_status after_call(void *user, mezzo_program *p, size_t call) {
    inspector *look = user;
    const mz_node *n = &p->c.graph->nodes[p->c.node[call]];
    for (int k = 0; k < n->n_out; k++) {
        mz_tensor t = mz_program_tensor(p, n->out[k]);
        each_padding(p->device, &t, true, 0, mz_op_table[n->op].name);
        look->padded_calls += t.storage.padded;
    }
    if (look->poison) {
        each_input(p, call, 0);
        if (call + 1 < p->c.n_calls)
            each_input(p, call + 1, 0xFF); // NaN in every float format
    }
    return MEZZO_OK;
}

static void append(run *r, const float *numbers, size_t n) {
    r->numbers = realloc(r->numbers, (r->count + n) * sizeof *numbers);
    assert_non_null(r->numbers);
    memcpy(r->numbers + r->count, numbers, n * sizeof *numbers);
    r->count += n;
}

static void append_params(run *r, const mezzo_params *params, const mezzo_optimizer *opt, bool gradients) {
    for (int i = 0; i < mezzo_params_count(params); i++) {
        size_t n = (size_t)params->list[i].count;
        float *x = malloc(n * sizeof *x);
        assert_non_null(x);
        if (gradients)
            must(mezzo_params_read_grad(params, i, x));
        else
            must(mezzo_params_read(params, i, x));
        append(r, x, n);
        for (int m = 0; !gradients && m < opt->n_moments; m++) {
            must(mz_optimizer_read_moment(opt, m, i, 0, (int64_t)n, x));
            append(r, x, n);
        }
        free(x);
    }
}

static run train(const char *name, which model, mezzo_precision precision, mezzo_master master, const char *policy,
                 bool poison) {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *opt;
    run r = {0};
    inspector look = {.poison = poison};
    int32_t tokens[12], targets[12];
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    const bool blocks = emulated != MEZZO_BLOCKS_NONE;
    mezzo_program_options options = {.precision = precision,
                                     .loss_weight = 1,
                                     .logits_rows = 6,
                                     .single_micro_batch = single,
                                     .emulate = emulated,
                                     .emulate_stochastic = blocks,
                                     .emulate_hadamard = blocks};
    adamw.moments = moments;
    mezzo_graph *g = build(model);
    must(mezzo_device_open(name, 1, &device));
    assert_true(mz_policy_parse(policy, &device->storage));
    must(mezzo_params_create_as(device, g, &options, 3, master, &params));
    must(mezzo_program_create(g, params, &options, &program));
    must(mezzo_optimizer_create(params, &adamw, &opt));
    program->hook = after_call;
    program->hook_user = &look;
    for (int i = 0; i < 12; i++) {
        tokens[i] = i * 89 % 257;
        targets[i] = i % 5 == 4 ? -1 : (i * 151 + 256) % 257;
    }
    for (int step = 0; step < 3; step++) {
        must(mezzo_program_write(program, "tokens", tokens, sizeof tokens));
        must(mezzo_program_write(program, "targets", targets, sizeof targets));
        if (poison)
            each_input(program, 0, 0xFF);
        must(mezzo_program_run(program, NULL, 5, (uint64_t)step));
        must(mezzo_program_read(program, "loss", &r.loss[step], sizeof r.loss[step]));
        if (step == 0) {
            float logits[12 * 257];
            must(mezzo_program_read(program, "logits", logits, sizeof logits));
            append(&r, logits, 12 * 257);
            append_params(&r, params, opt, true);
        }
        must(mezzo_optimizer_clip(opt, 0.5));
        must(mezzo_optimizer_step(opt));
        must(mezzo_optimizer_zero_grad(opt));
    }
    mezzo_step_info info;
    must(mezzo_optimizer_info(opt, &info));
    r.norm = info.grad_norm;
    append_params(&r, params, opt, false);
    for (int i = 0; i < mezzo_params_count(params); i++) {
        mz_tensor t = mz_params_tensor(params, i);
        each_padding(device, &t, true, 0, params->list[i].name);
    }
    r.padded_calls = look.padded_calls;
    mezzo_optimizer_free(opt);
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(g);
    mezzo_device_close(device);
    return r;
}

static void same_bits(const run *a, run b) {
    assert_memory_equal(a->loss, b.loss, sizeof b.loss);
    assert_memory_equal(&a->norm, &b.norm, sizeof b.norm);
    assert_int_equal(a->count, b.count);
    for (size_t i = 0; i < b.count; i++)
        if (memcmp(&a->numbers[i], &b.numbers[i], sizeof b.numbers[i]) != 0)
            fail_msg("number %zu: %.9g without padding, %.9g with it", i, (double)a->numbers[i], (double)b.numbers[i]);
    assert_true(b.padded_calls > 20);
    free(b.numbers);
}

TEST(test_padding_changes_no_bit_on_ref) {
    static const mezzo_precision precisions[] = {MEZZO_PRECISION_FP32, MEZZO_PRECISION_BF16, MEZZO_PRECISION_FP16};
    for (int m = 0; m < MODELS; m++)
        for (size_t p = 0; p < MZ_COUNT(precisions); p++) {
            run plain = train("ref", (which)m, precisions[p], MEZZO_MASTER_FP32, "", false);
            assert_true(isfinite(plain.loss[2]) && plain.padded_calls == 0);
            same_bits(&plain, train("ref", (which)m, precisions[p], MEZZO_MASTER_FP32, "8", true));
            if (p == 1)
                same_bits(&plain, train("ref", (which)m, precisions[p], MEZZO_MASTER_FP32, "+3", true));
            free(plain.numbers);
        }
}

// What the other backends do: products and sums run over padding, all else stands between copies. One micro batch: with
// more, a gradient that a copy brings is rounded to FP32 before it is added.
// `single`: activations lie in the gradients' memory, that of padding included, until these are written.
TEST(test_running_over_padding_changes_no_bit_on_ref) {
    for (int m = 0; m < MODELS; m++) {
        run plain = train("ref", (which)m, MEZZO_PRECISION_BF16, MEZZO_MASTER_FP32, "", false);
        same_bits(&plain, train("ref", (which)m, MEZZO_PRECISION_BF16, MEZZO_MASTER_FP32, "8,physical", false));
        single = true;
        same_bits(&plain, train("ref", (which)m, MEZZO_PRECISION_BF16, MEZZO_MASTER_FP32, "8,physical", false));
        same_bits(&plain, train("ref", (which)m, MEZZO_PRECISION_BF16, MEZZO_MASTER_FP32, "+3", false));
        single = false;
        free(plain.numbers);
    }
}

// Scales and blocks are those of the elements, wherever they lie.
TEST(test_narrow_operands_do_not_see_padding) {
    static const char *const policies[] = {"8,physical", "+3,physical", "8,eight16", "8,eight16,physical"};
    for (int narrow = 0; narrow < 2; narrow++) {
        const mezzo_precision precision = narrow ? MEZZO_PRECISION_BF16 : MEZZO_PRECISION_FP8;
        emulated = narrow ? MEZZO_BLOCKS_NVFP4 : MEZZO_BLOCKS_NONE;
        run plain = train("ref", GPT2, precision, MEZZO_MASTER_FP32, "", false);
        for (size_t i = 0; i < MZ_COUNT(policies); i++) {
            run padded = train("ref", GPT2, precision, MEZZO_MASTER_FP32, policies[i], false);
            assert_memory_equal(plain.loss, padded.loss, sizeof plain.loss);
            assert_memory_equal(plain.numbers, padded.numbers, plain.count * sizeof *plain.numbers);
            free(padded.numbers);
        }
        free(plain.numbers);
    }
    emulated = MEZZO_BLOCKS_NONE;
}

TEST(test_masters_of_every_kind_may_have_padding) {
    static const mezzo_master masters[] = {MEZZO_MASTER_SPLIT, MEZZO_MASTER_STOCHASTIC};
    for (size_t m = 0; m < MZ_COUNT(masters); m++) {
        run plain = train("ref", GPT2, MEZZO_PRECISION_BF16, masters[m], "", false);
        same_bits(&plain, train("ref", GPT2, MEZZO_PRECISION_BF16, masters[m], "4+1", false));
        free(plain.numbers);
    }
    for (moments = MEZZO_MOMENTS_BF16; moments <= MEZZO_MOMENTS_INT8; moments++) { // a block has no padding
        run plain = train("ref", GPT2, MEZZO_PRECISION_BF16, MEZZO_MASTER_SPLIT, "", false);
        same_bits(&plain, train("ref", GPT2, MEZZO_PRECISION_BF16, MEZZO_MASTER_SPLIT, "4+1", false));
        free(plain.numbers);
    }
    moments = MEZZO_MOMENTS_FP32;
}

// Products over 16 or 24 terms, some of them zeros, may be added in another order: FP32 with sums of at most 257 terms.
static void stays_within_bounds(const char *device, const char *policy) {
    for (int m = 0; m < MODELS; m++) {
        run plain = train(device, (which)m, MEZZO_PRECISION_FP32, MEZZO_MASTER_FP32, "", false);
        single = true;
        run padded = train(device, (which)m, MEZZO_PRECISION_FP32, MEZZO_MASTER_FP32, policy, false);
        single = false;
        assert_true(padded.padded_calls > 20);
        for (int s = 0; s < 3; s++)
            assert_true(fabs(plain.loss[s] - padded.loss[s]) <= 257 * 0x1p-24 * plain.loss[s]);
        assert_true(fabs(plain.norm - padded.norm) <= 257 * 0x1p-24 * plain.norm);
        free(plain.numbers);
        free(padded.numbers);
    }
}

TEST(test_padding_stays_within_bounds) {
    mezzo_device *gpu;
    stays_within_bounds("cpu", "8");
    if (mezzo_device_open("cuda", 0, &gpu) != MEZZO_OK) {
        print_message("cuda: %s\n", mezzo_error_message());
        return;
    }
    mezzo_device_close(gpu);
    stays_within_bounds("cuda", "8");
    stays_within_bounds("cuda", "+3"); // pitches that no vector fits
    stays_within_bounds("cuda", "8,physical");
}

// What the host writes is stored without padding, the weights that meet it with: a copy stands between, for products
// that run over padding as for norms that know it.
enum { ROWS = 6, FEATURES = 13, CLASSES = 7, NUMBERS = ROWS * CLASSES + 2 * CLASSES * FEATURES };

static void features(const char *name, const char *policy, float out[NUMBERS]) {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_graph *g;
    inspector look = {.poison = false};
    const mezzo_init normal = {MEZZO_INIT_NORMAL, 0.5f};
    const int64_t rows[] = {ROWS, FEATURES}, weight[] = {CLASSES, FEATURES};
    mezzo_program_options options = {.precision = MEZZO_PRECISION_FP32, .loss_weight = 1};
    float x[ROWS * FEATURES];
    int32_t targets[ROWS];
    for (int i = 0; i < ROWS * FEATURES; i++)
        x[i] = (float)(i * 37 % 29 - 14) * 0.125f;
    for (int i = 0; i < ROWS; i++)
        targets[i] = i * 5 % CLASSES;
    must(mezzo_graph_create(&g));
    mezzo_value in = mezzo_input(g, "x", MEZZO_F32, 2, rows);
    mezzo_value norm = mezzo_layernorm(g, in, MEZZO_NONE, MEZZO_NONE, 1e-5f);
    mezzo_value y = mezzo_linear(g, in, mezzo_param(g, "straight", normal, 2, weight), MEZZO_NONE);
    y = mezzo_add(g, y, mezzo_linear(g, norm, mezzo_param(g, "normed", normal, 2, weight), MEZZO_NONE));
    mezzo_graph_output(g, "logits", y);
    mezzo_graph_loss(g, mezzo_cross_entropy(g, y, mezzo_input(g, "targets", MEZZO_I32, 1, rows), -1));
    must(mezzo_device_open(name, 1, &device));
    assert_true(mz_policy_parse(policy, &device->storage));
    must(mezzo_params_create(device, g, 3, &params));
    must(mezzo_program_create(g, params, &options, &program));
    program->hook = after_call;
    program->hook_user = &look;
    must(mezzo_program_write(program, "x", x, sizeof x));
    must(mezzo_program_write(program, "targets", targets, sizeof targets));
    must(mezzo_program_run(program, NULL, 5, 0));
    must(mezzo_program_read(program, "logits", out, ROWS * CLASSES * sizeof *out));
    for (int i = 0; i < 2; i++)
        must(mezzo_params_read_grad(params, i, out + ROWS * CLASSES + i * CLASSES * FEATURES));
    assert_int_equal(look.padded_calls > 0, *policy != '\0');
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(g);
    mezzo_device_close(device);
}

TEST(test_what_the_host_writes_meets_padded_weights) {
    static const char *const devices[] = {"ref", "cpu", "cuda"}, *const policies[] = {"8", "8,physical"};
    float plain[NUMBERS], padded[NUMBERS];
    for (size_t d = 0; d < MZ_COUNT(devices); d++) {
        mezzo_device *device;
        if (mezzo_device_open(devices[d], 1, &device) != MEZZO_OK) {
            print_message("%s: %s\n", devices[d], mezzo_error_message());
            continue;
        }
        mezzo_device_close(device);
        features(devices[d], "", plain);
        for (size_t p = 0; p < MZ_COUNT(policies); p++) {
            features(devices[d], policies[p], padded);
            // Sums of at most 13 terms of at most 8 in another order: 13·u of 13·8, and a little for the ops after.
            for (int i = 0; i < NUMBERS; i++)
                assert_true(fabsf(plain[i] - padded[i]) <= (d == 0 ? 0 : 13 * 16 * 8 * 0x1p-24f));
        }
    }
}

// --- the update ----------------------------------------------------------------------------------------------------
// Gradients of every size through three steps: the same bits with and without padding on any backend, because sums go
// by logical elements and chance by the parameter's name.
static void update(const char *name, bool sgd, mezzo_master master, const char *policy, run *r) {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_optimizer *opt;
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    mezzo_program_options bf16 = {.precision = MEZZO_PRECISION_BF16, .loss_weight = 1};
    mezzo_graph *g = build(GPT2);
    o.kind = sgd ? MEZZO_SGD : MEZZO_ADAMW;
    o.momentum = 0.9;
    must(mezzo_device_open(name, 2, &device));
    assert_true(mz_policy_parse(policy, &device->storage));
    must(mezzo_params_create_as(device, g, &bf16, 3, master, &params));
    must(mezzo_optimizer_create(params, &o, &opt));
    opt->groups[0].update.rule.eps = 0; // padding would be 0/0, if it were moved
    for (int step = 1; step <= 3; step++) {
        for (int i = 0; i < mezzo_params_count(params); i++) {
            int64_t n = params->list[i].count;
            float *x = malloc((size_t)n * sizeof *x);
            assert_non_null(x);
            for (int64_t k = 0; k < n; k++)
                x[k] = ((float)((k * 7919 + step * 31 + i) % 1009 - 500) + 0.5f) * 0x1p-9f;
            must(mezzo_params_write_grad(params, i, x));
            free(x);
        }
        must(mezzo_optimizer_clip(opt, 3));
        must(mezzo_optimizer_step(opt));
        must(mezzo_optimizer_zero_grad(opt));
    }
    mezzo_step_info info;
    must(mezzo_optimizer_info(opt, &info));
    r->norm = info.grad_norm;
    r->padded_calls = params->padded ? 100 : 0;
    for (int i = 0; i < mezzo_params_count(params); i++) {
        mz_tensor t = mz_params_tensor(params, i);
        each_padding(device, &t, true, 0, params->list[i].name);
    }
    append_params(r, params, opt, false);
    for (int i = 0; i < mezzo_params_count(params); i++) { // from the middle on, as checkpoints read
        int64_t n = params->list[i].count, first = n / 3;
        float *x = malloc((size_t)n * sizeof *x);
        assert_non_null(x);
        must(mz_params_read_range(params, i, first, n - first, x));
        append(r, x, (size_t)(n - first));
        must(mz_optimizer_read_moment(opt, 0, i, first, n - first, x));
        append(r, x, (size_t)(n - first));
        free(x);
    }
    mezzo_optimizer_free(opt);
    mezzo_params_free(params);
    mezzo_graph_free(g);
    mezzo_device_close(device);
}

TEST(test_the_update_goes_by_logical_elements) {
    static const char *const devices[] = {"ref", "cpu"};
    for (size_t d = 0; d < MZ_COUNT(devices); d++)
        for (int kind = 0; kind < 2; kind++)
            for (int m = 0; m < 3; m++) {
                run plain = {0}, padded = {0};
                update(devices[d], kind == 1, (mezzo_master)m, "", &plain);
                update(devices[d], kind == 1, (mezzo_master)m, "8+1", &padded);
                same_bits(&plain, padded);
                free(plain.numbers);
            }
}

// --- looking at padded tensors -------------------------------------------------------------------------------------
static mz_prepared prepare(mezzo_device *device, mz_call *call) {
    mz_prepared prepared;
    must(mz_prepare(device, call, &prepared));
    return prepared;
}

static void call_once(mezzo_device *device, mz_call *call) {
    mz_prepared prepared = prepare(device, call);
    must(mz_run(device, &prepared, call, NULL));
    mz_prepared_free(&prepared);
}

// 210 numbers, padding full of NaN: copies move the numbers, and neither inspect nor histogram counts the padding.
static void look_at_padding(const char *name) {
    mezzo_device *device;
    enum { N = 2 * 15 * 7, STORED = 2 * 24 * 9 };
    float host[STORED], plain[N];
    void *x, *y, *z, *found;
    mz_rng_state rng = {0}, *on_device;
    must(mezzo_device_open(name, 2, &device));
    const mz_backend *b = device->backend;
    for (int i = 0; i < STORED; i++)
        host[i] = NAN;
    for (int i = 0; i < N; i++)
        host[mz_stored_index(&shape, &heads, i)] = plain[i] = (float)(i + 1);
    must(b->alloc(device, sizeof host, &x));
    must(b->alloc(device, sizeof plain, &y));
    must(b->alloc(device, sizeof host, &z));
    must(b->alloc(device, 4096, &found));
    must(b->alloc(device, sizeof rng, (void **)&on_device));
    must(b->write(device, x, host, sizeof host));
    mz_tensor padded = {.data = x, .dtype = MEZZO_F32, .shape = shape, .storage = heads};
    mz_tensor without = {.data = y, .dtype = MEZZO_F32, .shape = shape}, again = padded;
    again.data = z;
    call_once(device, &(mz_call){.op = MZ_OP_copy, .n_in = 1, .in = {padded}, .n_out = 1, .out = {without}});
    float got[STORED];
    must(b->read(device, got, y, sizeof plain));
    assert_memory_equal(got, plain, sizeof plain);
    call_once(device, &(mz_call){.op = MZ_OP_copy, .n_in = 1, .in = {without}, .n_out = 1, .out = {again}});
    each_padding(device, &again, true, 0, "a copy");
    must(b->read(device, got, z, sizeof got));
    for (int i = 0; i < N; i++)
        assert_true(got[mz_stored_index(&shape, &heads, i)] == plain[i]);
    mz_inspection seen;
    mz_call inspect = {.op = MZ_OP_inspect, .n_in = 1, .in = {padded}, .n_out = 2, .rng = on_device};
    for (int sample = 0; sample <= 64; sample += 64) {
        inspect.attrs.sample = sample;
        inspect.out[0] = mz_tensor_bytes(found, sizeof seen);
        inspect.out[1] = mz_tensor_absent();
        call_once(device, &inspect);
        must(b->read(device, &seen, found, sizeof seen));
        assert_int_equal(seen.inspected, sample ? 64 : N);
        assert_int_equal(seen.nans, 0);
        assert_true(seen.low == (float)1 && seen.high == (float)(sample ? N / 2 + 32 : N));
    }
    int32_t counts[MZ_HISTOGRAM_BUCKETS] = {0}, sum = 0;
    must(b->write(device, found, counts, sizeof counts));
    call_once(device, &(mz_call){.op = MZ_OP_histogram,
                                 .n_in = 1,
                                 .in = {padded},
                                 .n_out = 1,
                                 .out = {mz_tensor_bytes(found, sizeof counts)}});
    must(b->read(device, counts, found, sizeof counts));
    for (int i = 0; i < MZ_HISTOGRAM_BUCKETS; i++)
        sum += counts[i];
    assert_int_equal(sum, N);
    assert_int_equal(counts[0] + counts[MZ_HISTOGRAM_BUCKETS - 1], 0);
    void *all[] = {x, y, z, found, on_device};
    for (size_t i = 0; i < MZ_COUNT(all); i++)
        b->release(device, all[i]);
    mezzo_device_close(device);
}

TEST(test_looking_skips_padding) {
    look_at_padding("ref");
    look_at_padding("cpu");
}

// A kernel that does not read where storage says is not offered padded tensors.
TEST(test_kernels_that_do_not_know_padding_are_refused) {
    mezzo_device *device;
    mz_prepared prepared;
    mz_tensor x = {.dtype = MEZZO_F32, .shape = shape, .storage = heads};
    must(mezzo_device_open("cpu", 1, &device));
    mz_call call = {
        .op = MZ_OP_relu, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}, .n_in = 1, .in = {x}, .n_out = 1, .out = {x}};
    must_fail(mz_prepare(device, &call, &prepared), MEZZO_ERR_UNSUPPORTED, "stored with padding");
    mz_call_over_padding(&call);
    assert_int_equal(call.in[0].shape.dim[1], 24);
    assert_int_equal(call.in[0].shape.dim[2], 9);
    must(mz_prepare(device, &call, &prepared));
    mz_prepared_free(&prepared);
    mezzo_device_close(device);
}

// --- which axes ----------------------------------------------------------------------------------------------------
static void stored_as(const mezzo_params *params, const char *name, int d, int inner, int pitch) {
    const mz_param *p = &params->list[mezzo_params_find(params, name)];
    if (p->storage.pitch[d] != pitch || (pitch != 0 && p->storage.inner[d] != inner))
        fail_msg("%s, dimension %d: runs of %d stored as %d, not %d as %d", name, d, p->storage.inner[d],
                 p->storage.pitch[d], inner, pitch);
}

// Rows that 8-bit products read fill 16 bytes, or whole lines where that adds little.
TEST(test_rows_of_eight_bits_fill_lines) {
    static const struct {
        int64_t width;
        int pitch;
    } rows[] = {{1000, 1024}, {1016, 1024}, {1048, 1056}, {744, 752}, {1024, 0}, {1008, 0}, {40, 48}};
    const mezzo_program_options options = {.precision = MEZZO_PRECISION_FP8};
    mezzo_device *device;
    must(mezzo_device_open("ref", 1, &device));
    assert_true(mz_policy_parse("8,eight16", &device->storage));
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mezzo_graph *g;
        mezzo_params *params;
        must(mezzo_graph_create(&g));
        const mezzo_init normal = {.kind = MEZZO_INIT_NORMAL, .a = 1};
        mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, (int64_t[]){4, rows[i].width});
        mezzo_value scale = mezzo_param(g, "scale", normal, 1, &rows[i].width);
        x = mezzo_layernorm(g, x, scale, MEZZO_NONE, 1e-5f);
        mezzo_value w = mezzo_param(g, "w", normal, 2, (int64_t[]){64, rows[i].width});
        mezzo_graph_output(g, "y", mezzo_linear(g, x, w, MEZZO_NONE));
        must(mezzo_params_create_as(device, g, &options, 1, MEZZO_MASTER_FP32, &params));
        stored_as(params, "w", 1, (int)rows[i].width, rows[i].pitch);
        mezzo_params_free(params);
        mezzo_graph_free(g);
    }
    mezzo_device_close(device);
}

TEST(test_axes_are_found) {
    mezzo_device *device;
    mezzo_params *params;
    must(mezzo_device_open("ref", 1, &device));
    assert_true(mz_policy_parse("vocabulary=64,head=8,width=10,features=7,expert=4", &device->storage));
    mezzo_graph *g = build(GPT2);
    must(mezzo_params_create(device, g, 1, &params));
    stored_as(params, "wte.weight", 0, 257, 320);
    stored_as(params, "wte.weight", 1, 15, 20);
    stored_as(params, "wpe.weight", 0, 0, 0); // positions are no vocabulary
    stored_as(params, "wpe.weight", 1, 15, 20);
    stored_as(params, "h.0.attn.c_attn.weight", 0, 5, 8);
    stored_as(params, "h.0.attn.c_attn.weight", 1, 15, 20);
    stored_as(params, "h.0.attn.c_attn.bias", 0, 5, 8);
    stored_as(params, "h.0.attn.c_proj.weight", 1, 5, 8);
    stored_as(params, "h.0.mlp.c_fc.weight", 0, 13, 14);
    stored_as(params, "ln_f.weight", 0, 15, 20);
    assert_int_equal(mezzo_params_elements(params), // counts are of shapes
                     257 * 15 + 6 * 15 + 2 * (45 * 16 + 15 * 16 + 13 * 16 + 15 * 14 + 4 * 15) + 2 * 15);
    mezzo_params_free(params);
    mezzo_graph_free(g);
    g = build(GLM4_MOE);
    must(mezzo_params_create(device, g, 1, &params));
    for (int i = 0; i < mezzo_params_count(params); i++) {
        const mz_param *p = &params->list[i];
        if (p->shape.rank != 3)
            continue;
        assert_int_equal(p->storage.pitch[0], 0); // experts
        bool up = p->shape.dim[1] == 14;
        stored_as(params, p->name, up ? 1 : 2, 7, 8);
        stored_as(params, p->name, up ? 2 : 1, 20, 0); // 20 is a multiple of 10
    }
    mezzo_params_free(params);
    mezzo_graph_free(g);
    mezzo_device_close(device);
}
