// Parameters and programs: sharing, low copies, refusals, and the search for the first non-finite value.
#include <math.h>
#include <stdio.h>

#include "fixture.h"
#include "runtime/params.h"
#include "graph/graph.h"

typedef struct shared {
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_params *params;
} shared;

static mezzo_graph *gpt_of(int layers, int64_t width, int64_t batch, int64_t time) {
    mezzo_model_config c = fixture_model("gpt2", width, 4 * width, 61, 16);
    c.layers = layers;
    return fixture_graph(&c, batch, time, true);
}

static mezzo_graph *gpt(int64_t width, int64_t batch, int64_t time) {
    return gpt_of(2, width, batch, time);
}

static int setup(void **state) {
    static shared f;
    must(mezzo_device_open("ref", 1, &f.device));
    f.graph = gpt(32, 3, 16);
    must(mezzo_params_create(f.device, f.graph, 7, &f.params));
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    shared *f = *state;
    mezzo_params_free(f->params);
    mezzo_graph_free(f->graph);
    mezzo_device_close(f->device);
    return 0;
}

static mezzo_program *make(shared *f, const mezzo_graph *g, mezzo_program_options o) {
    mezzo_program *p;
    must(mezzo_program_create(g, f->params, &o, &p));
    return p;
}

static void feed(mezzo_program *p, int n) {
    int32_t tokens[48], targets[48];
    for (int i = 0; i < n; ++i) {
        tokens[i] = (i * 7 + 3) % 61;
        targets[i] = (i * 5 + 1) % 61;
    }
    must(mezzo_program_write(p, "tokens", tokens, (size_t)n * 4));
    must(mezzo_program_write(p, "targets", targets, (size_t)n * 4));
}

static float loss_of(mezzo_program *p) {
    float loss;
    must(mezzo_program_run(p, NULL, 1, 0));
    must(mezzo_program_read(p, "loss", &loss, sizeof loss));
    return loss;
}

static void write_one(shared *f, const char *name, int64_t at, float value) {
    int i = mezzo_params_find(f->params, name);
    assert_true(i >= 0);
    int64_t count = f->params->list[i].count;
    float *values = mz_alloc((size_t)count, sizeof *values);
    must(mezzo_params_read(f->params, i, values));
    values[at] = value;
    must(mezzo_params_write(f->params, i, values));
    mz_free(values);
}

// Programs of other shapes, precisions and phases share the parameters.
TEST_WITH(programs_share_parameters, setup, teardown) {
    shared *f = *state;
    mezzo_graph *small = gpt(32, 1, 8);
    mezzo_program *train = make(f, f->graph, (mezzo_program_options){0});
    mezzo_program *bf16 = make(f, f->graph, (mezzo_program_options){.precision = MEZZO_PRECISION_BF16});
    mezzo_program *fp16 =
        make(f, small, (mezzo_program_options){.precision = MEZZO_PRECISION_FP16, .forward_only = true});
    feed(train, 48);
    feed(bf16, 48);
    feed(fp16, 8);
    float before[3] = {loss_of(train), loss_of(bf16), loss_of(fp16)};
    assert_true(fabsf(before[0] - before[1]) < 0.05f); // ln 61 = 4.11 at the start; BF16 rounds products to 3 digits
    write_one(f, "ln_f.weight", 0, 3.0f);
    write_one(f, "h.0.mlp.c_fc.weight", 5, 2.0f); // reaches BF16 and FP16 only through refreshed low copies
    float after[3] = {loss_of(train), loss_of(bf16), loss_of(fp16)};
    for (int i = 0; i < 3; ++i)
        assert_true(after[i] != before[i]);
    assert_true(fabsf(after[0] - after[1]) < 0.05f);
    assert_int_equal(f->params->n_low_copies, 2);
    mezzo_program_free(train);
    mezzo_program_free(bf16);
    mezzo_program_free(fp16);
    mezzo_graph_free(small);
}

TEST_WITH(gradients_accumulate_with_the_weight, setup, teardown) {
    shared *f = *state;
    mezzo_program *whole = make(f, f->graph, (mezzo_program_options){0});
    mezzo_program *half = make(f, f->graph, (mezzo_program_options){.loss_weight = 0.5f});
    feed(whole, 48);
    feed(half, 48);
    static float a[61 * 32], b[61 * 32];
    int wte = mezzo_params_find(f->params, "wte.weight");
    must(mezzo_params_zero_grad(f->params));
    must(mezzo_program_run(whole, NULL, 1, 0));
    must(mezzo_params_read_grad(f->params, wte, a));
    must(mezzo_params_zero_grad(f->params));
    must(mezzo_program_run(half, NULL, 1, 0));
    must(mezzo_program_run(half, NULL, 1, 0));
    must(mezzo_params_read_grad(f->params, wte, b));
    double largest = 0;
    for (int i = 0; i < 61 * 32; ++i)
        largest = fmax(largest, fabs((double)a[i]));
    assert_true(largest > 1e-3);
    for (int i = 0; i < 61 * 32; ++i) // one FP32 rounding of each of the four additions into the buffer
        assert_true(fabs((double)a[i] - (double)b[i]) <= 4 * 6e-8 * largest);
    mezzo_program_free(whole);
    mezzo_program_free(half);
}

// Infinities of a border and a mask are a graph's own and no fault; a NaN made of them is one, and so is an overflow.
TEST_WITH(infinities_that_are_constants_are_no_fault, setup, teardown) {
    static const char *const wanted[] = {NULL, "sub of ", "linear of "};
    for (int i = 0; i < 3; ++i) {
        mezzo_graph *g;
        must(mezzo_graph_create(&g));
        const mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, (int64_t[]){2, 4});
        const mezzo_value infinity = mezzo_constant(g, MEZZO_F32, -INFINITY, 1, (int64_t[]){1});
        const mezzo_value w = mezzo_param(g, "w", (mezzo_init){MEZZO_INIT_NORMAL, 0.1f}, 2, (int64_t[]){4, 4});
        mezzo_value y = mezzo_linear(g, x, w, MEZZO_NONE);
        y = mezzo_pad(g, y, (int64_t[]){0, 2}, (int64_t[]){0, 1}, -INFINITY);
        y = mezzo_maximum(g, mezzo_slice(g, y, 1, 0, 4), mezzo_slice(g, y, 1, 1, 5));
        y = mezzo_where(g, mezzo_less(g, x, infinity), y, mezzo_add(g, y, y));
        if (i == 1)
            y = mezzo_sub(g, y, y);
        must(mezzo_graph_loss(g, mezzo_mean(g, mezzo_reshape(g, mezzo_exp(g, y), 1, (int64_t[]){8}), 0)));
        shared made = {.device = ((shared *)*state)->device, .graph = g};
        must(mezzo_params_create(made.device, g, 7, &made.params));
        if (i == 2)
            write_one(&made, "w", 3, 3e38f);
        mezzo_program *p = make(&made, g, (mezzo_program_options){0});
        bool found;
        char where[512];
        must(mezzo_program_write(p, "x", (float[]){0, 1, 2, 3, 4, 5, 0, 1}, 8 * sizeof(float)));
        must(mezzo_program_check(p, NULL, 1, 0, &found, where, sizeof where));
        if (found != (i > 0) || (found && strstr(where, wanted[i]) == NULL))
            fail_msg("case %d: %s", i, found ? where : "nothing is found");
        mezzo_program_free(p);
        mezzo_params_free(made.params);
        mezzo_graph_free(g);
    }
}

TEST_WITH(the_first_non_finite_value_is_named, setup, teardown) {
    shared *f = *state;
    mezzo_program *p = make(f, f->graph, (mezzo_program_options){.precision = MEZZO_PRECISION_FP16});
    bool found;
    char where[512];
    feed(p, 48);
    must(mezzo_program_check(p, NULL, 1, 0, &found, where, sizeof where));
    assert_false(found);
    write_one(f, "h.1.mlp.c_fc.weight", 40, 1e6f); // infinite once rounded to FP16
    must(mezzo_program_check(p, NULL, 1, 0, &found, where, sizeof where));
    assert_true(found);
    assert_non_null(strstr(where, "linear of h.1.mlp.c_fc (forward)"));
    assert_non_null(strstr(where, "fp16"));
    write_one(f, "h.1.mlp.c_fc.weight", 40, 0.0f);
    write_one(f, "ln_f.bias", 3, NAN);
    must(mezzo_program_check(p, NULL, 1, 0, &found, where, sizeof where));
    assert_true(found);
    assert_non_null(strstr(where, "layernorm of ln_f"));
    assert_non_null(strstr(where, "NaN"));
    mezzo_program_free(p);
}

static void expect(mezzo_status status, mezzo_status want, const char *word) {
    must_fail(status, want, word);
}

TEST_WITH(wrong_use_is_named, setup, teardown) {
    shared *f = *state;
    mezzo_program *p = make(f, f->graph, (mezzo_program_options){0}), *none;
    float x[4];
    expect(mezzo_program_write(p, "token", x, 4), MEZZO_ERR_INVALID, "token");
    expect(mezzo_program_write(p, "tokens", x, 4), MEZZO_ERR_INVALID, "3x16");
    expect(mezzo_program_read(p, "lo", x, 4), MEZZO_ERR_INVALID, "lo");
    expect(mezzo_program_read(p, "loss", x, 12), MEZZO_ERR_INVALID, "loss");
    mezzo_graph *other = gpt(64, 1, 8);
    mezzo_program_options o = {0};
    expect(mezzo_program_create(other, f->params, &o, &none), MEZZO_ERR_INVALID, "wte.weight has shape 61x32");
    o.precision = MEZZO_PRECISION_AUTO;
    expect(mezzo_program_create(f->graph, f->params, &o, &none), MEZZO_ERR_INVALID, "auto");
    o = (mezzo_program_options){.loss_weight = NAN};
    expect(mezzo_program_create(f->graph, f->params, &o, &none), MEZZO_ERR_INVALID, "loss_weight");
    mezzo_graph_free(other);
    mezzo_program_free(p);
}

// A program larger than the machine is refused before anything is taken, with the parts.
TEST_WITH(a_program_too_large_is_refused, setup, teardown) {
    shared *f = *state;
    mezzo_device_info info;
    must(mezzo_device_describe(f->device, &info));
    if (info.memory_total == 0)
        skip();
    // Four times: a virtual machine's memory may grow while it runs.
    int64_t shape[] = {(int64_t)(info.memory_total / 4096) * 4, 1024};
    mezzo_graph *huge;
    mezzo_program *none;
    mezzo_program_options o = {.forward_only = true};
    must(mezzo_graph_create(&huge));
    must(mezzo_graph_output(huge, "y", mezzo_relu(huge, mezzo_input(huge, "x", MEZZO_F32, 2, shape))));
    expect(mezzo_program_create(huge, f->params, &o, &none), MEZZO_ERR_MEMORY, "MiB for activations");
    mezzo_graph_free(huge);
}

// A device with little room: the real one, which says that it has `room` bytes free and counts what is taken.
static const mz_backend *real;
static size_t room, taken;
static int taken_count;
static mezzo_status small_describe(mezzo_device *device, mezzo_device_info *out) {
    MEZZO_TRY(real->describe(device, out));
    out->memory_free = room - taken;
    out->memory_total = (size_t)1 << 30;
    return MEZZO_OK;
}
static mezzo_status small_alloc(mezzo_device *device, size_t bytes, void **out) {
    taken += bytes;
    taken_count++;
    return real->alloc(device, bytes, out);
}
static double number_before(const char *text, const char *word) { // the number that stands before the first `word`
    const char *at = strstr(text, word);
    assert_non_null(at);
    while (at > text && strchr("0123456789 ", at[-1]))
        at--;
    return atof(at);
}

static mz_takes take_usual(const mz_kernel *kernel) { // no post-ops that are offered: results are not made again
    (void)kernel;
    return (mz_takes){MZ_DTYPES_USUAL, MZ_SCALINGS_NONE, .extras = false};
}

// What does not fit is refused before anything is taken; what the message says would fit does fit.
TEST_WITH(what_would_fit_is_said_and_fits, setup, teardown) {
    shared *f = *state;
    enum { ROWS = 64 };
    mezzo_graph *whole = gpt(32, ROWS, 16), *part;
    mezzo_program *p = NULL;
    mezzo_memory all, less;
    mezzo_program_options o = {.precision = MEZZO_PRECISION_FP32}, again = o;
    char message[1024];
    again.recompute = true;
    real = f->device->backend;
    mz_backend small = *real;
    small.describe = small_describe, small.alloc = small_alloc;
    small.takes = take_usual; // then recompute saves more
    f->device->backend = &small;
    must(mezzo_plan_memory(f->device, whole, &o, &all));
    must(mezzo_plan_memory(f->device, whole, &again, &less));
    size_t plain = all.activations + all.workspace + all.inputs, thin = less.activations + less.workspace + less.inputs;
    assert_true(thin < plain * 3 / 4);

    room = thin + (64 << 10), taken = 0, taken_count = 0; // enough with recompute only
    expect(mezzo_program_create(whole, f->params, &o, &p), MEZZO_ERR_MEMORY, ", which fits");
    assert_int_equal(taken_count, 0);
    snprintf(message, sizeof message, "%s", mezzo_error_message());
    assert_true(fabs(number_before(message, "MiB for activations") - (double)all.activations / (1 << 20)) <= 0.5);
    assert_true(fabs(number_before(message, "MiB free") - (double)room / (1 << 20)) <= 0.5);
    double percent = number_before(message, "% of this batch");
    assert_true(percent > 10 && percent < 90);
    must(mezzo_program_create(whole, f->params, &again, &p));
    mezzo_program_free(p);

    taken = 0;
    part = gpt(32, (int64_t)(ROWS * percent / 100), 16);
    must(mezzo_program_create(part, f->params, &o, &p));
    mezzo_program_free(p);
    mezzo_graph_free(part);

    room = 64 << 10, taken = 0;
    expect(mezzo_program_create(whole, f->params, &o, &p), MEZZO_ERR_MEMORY, "use a smaller model or device");
    f->device->backend = real;
    mezzo_graph_free(whole);
}

// A smaller batch may be one of few rows, for which the device keeps activations' results.
TEST_WITH(what_would_fit_keeps_results, setup, teardown) {
    shared *f = *state;
    enum { LAYERS = 16, ROWS = 64 };
    mezzo_graph *whole = gpt_of(LAYERS, 32, ROWS, 16), *part;
    mezzo_params *params;
    mezzo_program *p = NULL;
    mezzo_memory m;
    mezzo_program_options o = {.precision = MEZZO_PRECISION_FP32};
    must(mezzo_params_create(f->device, whole, 7, &params));
    real = f->device->backend;
    mz_backend small = *real;
    small.describe = small_describe, small.alloc = small_alloc, small.few_rows = ROWS * 16 - 1;
    f->device->backend = &small;
    must(mezzo_plan_memory(f->device, whole, &o, &m));
    room = m.activations + m.workspace + m.inputs - (32 << 10), taken = 0;
    expect(mezzo_program_create(whole, params, &o, &p), MEZZO_ERR_MEMORY, "MiB for activations");
    double percent = number_before(mezzo_error_message(), "% of this batch");
    assert_true(percent > 50);
    part = gpt_of(LAYERS, 32, (int64_t)(ROWS * percent / 100), 16);
    must(mezzo_program_create(part, params, &o, &p));
    mezzo_program_free(p);
    mezzo_graph_free(part);
    f->device->backend = real;
    mezzo_params_free(params);
    mezzo_graph_free(whole);
}

TEST_WITH(any_allocation_may_fail, setup, teardown) {
    shared *f = *state;
    int failures = 0;
    for (int n = 0;; ++n) {
        mezzo_params *params = NULL;
        mezzo_program *p = NULL;
        mezzo_program_options o = {.precision = MEZZO_PRECISION_BF16};
        mz_alloc_fail_after(n);
        mezzo_status status = mezzo_params_create(f->device, f->graph, 7, &params);
        if (status == MEZZO_OK)
            status = mezzo_program_create(f->graph, params, &o, &p);
        mz_alloc_fail_after(-1);
        mezzo_program_free(p);
        mezzo_params_free(params);
        if (status == MEZZO_OK)
            break;
        assert_int_equal(status, MEZZO_ERR_MEMORY);
        ++failures;
    }
    assert_true(failures > 20);
}

TEST_WITH(running_allocates_nothing, setup, teardown) {
    shared *f = *state;
    mezzo_program *p = make(f, f->graph, (mezzo_program_options){.precision = MEZZO_PRECISION_BF16, .recompute = true});
    feed(p, 48);
    loss_of(p);
    uint64_t before = mz_alloc_count();
    for (int i = 0; i < 3; ++i)
        loss_of(p);
    assert_int_equal(mz_alloc_count(), before);
    mezzo_program_free(p);
}

// Every element has its own draw by (seed, FNV-1a of the name, element), wherever the pieces that it is written in
// begin. In a graph that only times steps a million values serve for all. Seen to fail with the element's number
// counted from its piece.
TEST(large_parameters_are_drawn_element_by_element) {
    enum { N = 2100000 };
    mezzo_device *device;
    must(mezzo_device_open("cpu", 1, &device));
    float *values = mz_alloc(N, sizeof *values);
    for (int repeats = 0; repeats < 2; ++repeats) {
        mezzo_graph *g;
        mezzo_params *params;
        uint32_t hash = 2166136261U;
        int differ = 0;
        must(mezzo_graph_create(&g));
        mezzo_param(g, "w", (mezzo_init){.kind = MEZZO_INIT_UNIFORM, .a = 2}, 1, (int64_t[]){N});
        g->repeats_init = repeats;
        must(mezzo_params_create(device, g, 9, &params));
        must(mezzo_params_read(params, 0, values));
        hash = (hash ^ 'w') * 16777619U;
        for (uint64_t i = 0; i < N; ++i) {
            uint32_t words[4];
            mz_philox((mz_philox_key){9, 0, hash}, i / 4, words);
            differ += values[i] != 2 * (2 * mz_uniform(words[i % 4]) - 1);
        }
        assert_true(repeats ? differ > N / 3 && differ < 2 * N / 3 : differ == 0);
        mezzo_params_free(params);
        mezzo_graph_free(g);
    }
    mz_free(values);
    mezzo_device_close(device);
}

// Activations in the gradients' memory change no bit of a loss or gradient, and a second run without zeroing is
// refused.
TEST_WITH(a_single_micro_batch_lends_its_gradients_memory, setup, teardown) {
    shared *f = *state;
    const mezzo_precision precisions[] = {MEZZO_PRECISION_FP32, MEZZO_PRECISION_BF16};
    for (int variant = 0; variant < 4; ++variant) {
        mezzo_program_options o = {.precision = precisions[variant & 1], .recompute = variant & 2};
        mezzo_program *apart = make(f, f->graph, o), *p;
        static float want[4 * 32 * 32], got[4 * 32 * 32]; // the largest parameter
        mezzo_memory a, b;
        bool found;
        o.single_micro_batch = true;
        p = make(f, f->graph, o);
        mezzo_program_memory(apart, &a);
        mezzo_program_memory(p, &b);
        assert_true(b.activations < a.activations && b.activations_in_gradients > 0 && !a.activations_in_gradients);
        feed(apart, 48);
        feed(p, 48);
        for (int checked = 0; checked < 2; ++checked) {
            must(mezzo_params_zero_grad(f->params));
            float loss = loss_of(apart);
            for (int i = 0; i < mezzo_params_count(f->params); ++i) {
                size_t bytes = (size_t)f->params->list[i].count * sizeof *want;
                must(mezzo_params_zero_grad(f->params));
                loss_of(apart);
                must(mezzo_params_read_grad(f->params, i, want));
                must(mezzo_params_zero_grad(f->params));
                if (checked)
                    must(mezzo_program_check(p, NULL, 1, 0, &found, NULL, 0));
                else
                    assert_true(loss_of(p) == loss);
                must(mezzo_params_read_grad(f->params, i, got));
                assert_memory_equal(want, got, bytes);
            }
            expect(mezzo_program_run(p, NULL, 1, 0), MEZZO_ERR_INVALID, "single_micro_batch");
            expect(mezzo_program_check(p, NULL, 1, 0, &found, NULL, 0), MEZZO_ERR_INVALID, "single_micro_batch");
        }
        must(mezzo_params_zero_grad(f->params));
        mezzo_program_free(p);
        mezzo_program_free(apart);
    }
}
