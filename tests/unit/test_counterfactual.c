// What a format would do to a product's operands is what it does to them in a run that uses it: the same rounded
// numbers, scales and statistics, and the run that is looked at keeps its bits.
// Seen to fail with: blocks along the other dimension; weights of their 16-bit copy; split masters without their low
// halves; NVFP4 without its tensor's scale; an underflow counted for zeros; an output that the measuring changes.
#include <math.h>

#include "tiny_run.h"
#include "runtime/calls.h"
#include "train/counterfactual.h"

static fixture_options options(mezzo_precision precision, mezzo_blocks blocks) {
    fixture_options o = {.device = "cpu", .batch = 4};
    must(mezzo_model_defaults("gpt2", &o.model));
    o.model.layers = 4, o.model.heads = 2, o.model.d_model = 64, o.model.d_ff = 160, o.model.vocab = 96;
    o.model.seq_len = 24, o.model.dropout = 0;
    o.program.precision = precision;
    o.program.emulate = blocks;
    return o;
}

static void run(fixture *f, const fixture_options *o) {
    must(fixture_batch(f->program, (int)(o->batch * o->model.seq_len), (int)o->model.vocab, 0));
    must(mezzo_program_run(f->program, NULL, 1, 0));
}

static float *numbers(const mz_tensor *t) {
    const int64_t n = mz_shape_count(&t->shape);
    float *x = malloc((size_t)n * sizeof *x);
    must(mezzo_convert(t->data, t->dtype, x, MEZZO_F32, (size_t)n));
    return x;
}

// x of n numbers, rounded on the device `cpu` as the operand of a product is.
static mz_rounding round_all(const mz_rounding_how *how, bool columnwise, const float *x, int64_t n, int64_t columns,
                             float *rounded) {
    const mz_rounding_attrs formats = {.n = 1, .columnwise = columnwise, .via = MEZZO_F32, .how = {*how}};
    const mz_shape shape = {2, {n / columns, columns}};
    mz_rounding_sums found;
    mezzo_device *device;
    must(mezzo_device_open("cpu", 0, &device));
    mz_call call = {.op = MZ_OP_rounding,
                    .attrs.rounding = &formats,
                    .n_in = 1,
                    .in = {{.data = (float *)(uintptr_t)x, .dtype = MEZZO_F32, .shape = shape}},
                    .n_out = 2,
                    .out = {mz_tensor_bytes(&found, sizeof found),
                            rounded == NULL ? mz_tensor_absent()
                                            : (mz_tensor){.data = rounded, .dtype = MEZZO_F32, .shape = shape}}};
    must(mz_run_once(device, &call));
    mezzo_device_close(device);
    return mz_rounding_of(how, &found, n);
}

// The same numbers as a plain loop finds them. A difference in FP32 is off by at most 2^-24 of itself.
static void assert_statistics(const float *x, const float *q, int64_t n, const mz_rounding *r) {
    double squares = 0, error = 0;
    int64_t nonzero = 0, underflow = 0;
    for (int64_t i = 0; i < n; i++) {
        squares += (double)x[i] * (double)x[i];
        error += ((double)q[i] - (double)x[i]) * ((double)q[i] - (double)x[i]);
        nonzero += x[i] != 0;
        underflow += x[i] != 0 && q[i] == 0;
    }
    assert_true(r->elements == n && r->nonzero == nonzero && r->underflow == underflow && r->not_finite == 0);
    assert_true(fabs(r->squares - squares) <= 1e-12 * squares && fabs(r->error - error) <= 0x1p-22 * error);
}

// As conversions make them, of which some keep the lower bits and some set them.
TEST(nans_are_one_largest_magnitude) {
    static const uint32_t nans[] = {0x7FC00000u, 0x7FFFFFFFu, 0xFFFF0000u};
    static const char *const devices[] = {"ref", "cpu"};
    const mz_rounding_attrs formats = {.n = 1, .via = MEZZO_F32, .how = {{.blocks = MEZZO_BLOCKS_MXFP8}}};
    for (int i = 0; i < 6; i++) {
        float x[2] = {1};
        mz_rounding_sums found;
        mezzo_device *device;
        memcpy(&x[1], &nans[i / 2], sizeof x[1]);
        must(mezzo_device_open(devices[i % 2], 0, &device));
        mz_call call = {.op = MZ_OP_rounding,
                        .attrs.rounding = &formats,
                        .n_in = 1,
                        .in = {{.data = x, .dtype = MEZZO_F32, .shape = {2, {1, 2}}}},
                        .n_out = 2,
                        .out = {mz_tensor_bytes(&found, sizeof found), mz_tensor_absent()}};
        must(mz_run_once(device, &call));
        mezzo_device_close(device);
        assert_int_equal(found.amax, 0x7FC00000);
        assert_int_equal(found.not_finite, 2); // of one block, whose scale is NaN
    }
}

// --- block formats: the emulated product leaves its rounded operands in its workspace ------------------------------
typedef struct blocks_check {
    mz_counterfactual *c;
    size_t item, products;
} blocks_check;

static mezzo_status compare_blocks(void *user, mezzo_program *p, size_t index) {
    blocks_check *check = user;
    const mz_call *call = &p->c.calls[index];
    const char *at = call->workspace;
    const bool product = call->op == MZ_OP_linear || call->op == MZ_OP_linear_dx || call->op == MZ_OP_linear_dw;
    for (int slot = 0; product && call->attrs.blocks != MEZZO_BLOCKS_NONE && slot < 2; slot++) {
        while (check->c->items[check->item].call != index)
            check->item++;
        const mz_counterfactual_item *item = &check->c->items[check->item++];
        const int64_t n = mz_shape_count(&call->in[slot].shape),
                      columns = call->in[slot].shape.dim[call->in[slot].shape.rank - 1];
        float *x = numbers(&call->in[slot]), *q = malloc((size_t)n * sizeof *q);
        const mz_rounding found = round_all(&item->how, item->columnwise, x, n, columns, q);
        must(mz_counterfactual_read(check->c, p));
        assert_memory_equal(q, at, (size_t)n * sizeof *q);
        assert_memory_equal(&found, &item->found, sizeof found);
        assert_statistics(x, (const float *)(const void *)at, n, &found);
        at += mz_align_up((size_t)n * sizeof *q, 64);
        free(x);
        free(q);
        check->products += slot == 1;
    }
    return MEZZO_OK;
}

TEST(blocks_are_those_of_the_emulated_run) {
    for (int b = MEZZO_BLOCKS_NONE + 1; b < MEZZO_BLOCKS_COUNT; b++) {
        const fixture_options o = options(MEZZO_PRECISION_BF16, (mezzo_blocks)b);
        fixture f = {0};
        blocks_check check = {0};
        fixture_open(&f, &o);
        must(mz_counterfactual_create(f.program, mezzo_blocks_name((mezzo_blocks)b), "*", &check.c));
        f.program->hook = compare_blocks;
        f.program->hook_user = &check;
        mz_counterfactual_begin(check.c, f.program); // runs first
        run(&f, &o);
        mz_counterfactual_end(check.c, f.program);
        assert_int_equal(check.products, 2 * 4 * 3); // two inner blocks, four layers each, three products
        mz_counterfactual_free(check.c);
        fixture_close(&f);
    }
}

// --- 8 bits: the op quantize writes them ---------------------------------------------------------------------------
enum { MOST = 64 };
typedef struct weights {
    char module[MOST][64];
    mz_rounding found[MOST];
    int n, quantized;
} weights;

static const char *module_of(const mezzo_program *p, size_t call) {
    return p->c.graph->modules[p->c.graph->nodes[p->c.node[call]].module];
}

static float code_of(const mz_tensor *t, int64_t i) {
    const uint8_t code = ((const uint8_t *)t->data)[mz_tensor_index(t, i)];
    return (t->dtype == MEZZO_F8E4M3 ? mezzo_e4m3_to_f32(code) : mezzo_e5m2_to_f32(code)) *
           t->scale[mz_scale_index(t, i)];
}

// x rounded to the data of t by itself.
static mz_rounding compare_data(const float *x, const mz_tensor *t) {
    const int64_t n = mz_shape_count(&t->shape), columns = t->shape.dim[t->shape.rank - 1];
    const mz_rounding_how how = {.dtype = t->dtype, .scaling = t->scaling};
    float *q = malloc((size_t)n * sizeof *q), *codes = malloc((size_t)n * sizeof *codes);
    const mz_rounding found = round_all(&how, t->columnwise, x, n, columns, q);
    for (int64_t i = 0; i < n; i++) {
        codes[i] = code_of(t, i);
        assert_true(q[i] == codes[i]);
    }
    assert_statistics(x, codes, n, &found);
    free(q);
    free(codes);
    return found;
}

// The parameter whose 8-bit data a value has: the update's, or those of an op of the program.
static int parameter_of(const mezzo_graph *g, int value) {
    const int param = g->values[value].param;
    return param >= 0 ? param : g->values[g->nodes[g->values[value].producer].in[0]].param;
}

// Activations and gradients where an op rounds them, weights where a product reads them.
static mezzo_status compare_quantized(void *user, mezzo_program *p, size_t index) {
    weights *w = user;
    const mz_call *call = &p->c.calls[index];
    const mz_node *node = &p->c.graph->nodes[p->c.node[index]];
    const mz_tensor of_w = mz_program_tensor(p, node->in[1]);
    if (call->op == MZ_OP_linear && of_w.scaling != MZ_SCALING_NONE && w->n < MOST) {
        const int64_t n = mz_shape_count(&of_w.shape);
        float *x = malloc((size_t)n * sizeof *x);
        must(mezzo_params_read(p->params, parameter_of(p->c.graph, node->in[1]), x));
        snprintf(w->module[w->n], sizeof w->module[0], "%s", module_of(p, index));
        w->found[w->n++] = compare_data(x, &of_w);
        free(x);
    }
    if (call->op != MZ_OP_quantize || call->attrs.act != MZ_ACT_NONE)
        return MEZZO_OK;
    float *x = numbers(&call->in[0]);
    for (int slot = MZ_OUT(quantize, y); slot <= MZ_OUT(quantize, columnwise); slot++) {
        const mz_tensor t = mz_program_tensor(p, slot < node->n_out ? node->out[slot] : -1);
        if (!mz_present(&t))
            continue;
        compare_data(x, &t);
        w->quantized++;
    }
    free(x);
    return MEZZO_OK;
}

// A run in bf16 says the same of its weights as the run in 8 bits, which begins with the same ones, however it keeps
// their FP32 numbers.
static void assert_same_weights(const weights *w, const char *format, mezzo_master master) {
    fixture_options o = options(MEZZO_PRECISION_BF16, MEZZO_BLOCKS_NONE);
    o.master = master;
    fixture f = {0};
    mz_counterfactual *c;
    int seen = 0;
    fixture_open(&f, &o);
    must(mz_counterfactual_create(f.program, format, "h.*", &c));
    mz_counterfactual_begin(c, f.program);
    run(&f, &o);
    mz_counterfactual_end(c, f.program);
    must(mz_counterfactual_read(c, f.program));
    for (size_t i = 0; i < c->n; i++)
        for (int k = 0; k < w->n && c->items[i].master >= 0; k++)
            if (strcmp(w->module[k], module_of(f.program, c->items[i].call)) == 0) {
                assert_memory_equal(&w->found[k], &c->items[i].found, sizeof w->found[k]);
                seen++;
            }
    assert_int_equal(seen, w->n);
    mz_counterfactual_free(c);
    fixture_close(&f);
}

TEST(eight_bits_are_those_of_the_emulated_run) {
    static const char *const formats[] = {"fp8", "fp8-block"};
    for (size_t k = 0; k < MZ_COUNT(formats); k++) {
        mezzo_precision precision;
        must(mezzo_precision_parse(formats[k], &precision));
        const fixture_options o = options(precision, MEZZO_BLOCKS_NONE);
        fixture f = {0};
        weights w = {.n = 0};
        fixture_open(&f, &o);
        f.program->hook = compare_quantized;
        f.program->hook_user = &w;
        run(&f, &o);
        fixture_close(&f);
        assert_true(w.quantized >= 20 && w.n == 8); // four layers in each of two inner blocks
        assert_same_weights(&w, formats[k], MEZZO_MASTER_FP32);
        assert_same_weights(&w, formats[k], MEZZO_MASTER_SPLIT);
    }
}

// --- what a rounding says by itself --------------------------------------------------------------------------------
TEST(extremes_are_counted) {
    mz_rounding r;
    float x[32] = {448, 1e-6F, -1e-6F, 0, 3, INFINITY, -2};
    const mz_rounding_how tensor = {.dtype = MEZZO_F8E4M3, .scaling = MZ_SCALING_TENSOR};
    r = round_all(&tensor, false, x, 5, 5, NULL);
    assert_true(r.elements == 5 && r.nonzero == 4 && r.underflow == 2 && r.saturated == 0 && r.scales == 1);
    assert_true(r.log2_sum == 0 && r.not_finite == 0);
    r = round_all(&tensor, false, x, 7, 7, NULL); // no scale is that of an infinity
    assert_true(r.not_finite == 1 && r.scales == 0);
    const mz_rounding_how mx = {.blocks = MEZZO_BLOCKS_MXFP8};
    memset(x, 0, sizeof x);
    x[0] = 1.9F; // its block's scale brings it to 486
    r = round_all(&mx, false, x, 32, 32, NULL);
    assert_true(r.saturated == 1 && r.scales == 1 && r.log2_sum == -8 && r.counts[150 - 8] == 1);
    memset(x, 0, sizeof x);
    r = round_all(&mx, false, x, 32, 32, NULL);
    assert_true(r.scales == 0 && r.nonzero == 0 && r.error == 0);
}

TEST(names_are_checked) {
    const fixture_options o = options(MEZZO_PRECISION_BF16, MEZZO_BLOCKS_NONE),
                          eight = options(MEZZO_PRECISION_FP8, MEZZO_BLOCKS_NONE);
    fixture f = {0}, g = {0};
    mz_counterfactual *c;
    fixture_open(&f, &o);
    fixture_open(&g, &eight);
    static const struct {
        const char *formats, *modules, *says;
    } wrong[] = {{"bf16", "*", "\"bf16\" is no format of scaled operands: use mxfp8, mxfp4, nvfp4, fp8, fp8-block"},
                 {"fp8-dw16", "*", "is no format of scaled operands"},
                 {"mxfp8,fp8,mxfp8", "*", "mxfp8 stands there twice"},
                 {"mxfp8", "c_attn,wte", "no linear layer is called \"wte\""}};
    for (size_t i = 0; i < MZ_COUNT(wrong); i++) {
        must_fail(mz_counterfactual_create(f.program, wrong[i].formats, wrong[i].modules, &c), MEZZO_ERR_INVALID,
                  wrong[i].says);
        assert_null(c);
    }
    must_fail(mz_counterfactual_create(g.program, "mxfp8", "*", &c), MEZZO_ERR_INVALID, "fp8 rounds operands itself");
    must(mz_counterfactual_create(f.program, "nvfp4", "h.1.mlp.c_fc,attn.c_proj", &c));
    assert_int_equal(c->n, 5 * 3 * 2); // one and four layers, three products of two operands
    mz_counterfactual_free(c);
    fixture_close(&f);
    fixture_close(&g);
}

// Weights after some steps are the same bits with and without.
TEST(training_keeps_its_bits) {
    static const char *const precisions[] = {"--precision=bf16", "--precision=fp16", "--precision=fp32"};
    tiny_text();
    for (size_t k = 0; k < MZ_COUNT(precisions); k++) {
        const char *const plain[] = {"--steps=6", "--grad-accum=2", precisions[k], NULL};
        const char *const with[] = {"--steps=6",
                                    "--grad-accum=2",
                                    precisions[k],
                                    "--counterfactual=fp8,fp8-block,mxfp8,mxfp4,nvfp4",
                                    "--counterfactual-every=2",
                                    NULL};
        tiny_log log = {.stop_after = 0};
        mezzo_train_result a, b;
        must(tiny_run("plain", plain, &log, &a));
        must(tiny_run("with", with, &log, &b));
        tiny_same(a.checkpoint, b.checkpoint);
        tiny_clean("plain");
        tiny_clean("with");
    }
}
