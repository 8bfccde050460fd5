// Formats by slot and scales as data: what autocast writes, what autodiff and the selection of kernels make of it, and
// a precision with scaled operands as the ref device runs it.
#include <math.h>

#include "fixture.h"
#include "backend/backend.h"
#include "graph/graph.h"
#include "mezzo/optimizer.h"
#include "mezzo/program.h"
#include "quant/entry.h"

enum { ROWS = 6, IN = 16, HIDDEN = 32, OUT = 8 };

// A layer with bias and GELU, and one without, in modules of their own; the loss is mean(y·(y + c)).
static mezzo_graph *two_layers(void) {
    mezzo_graph *g;
    const mezzo_init normal = {.kind = MEZZO_INIT_NORMAL, .a = 0.3F};
    must(mezzo_graph_create(&g));
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, (int64_t[]){ROWS, IN});
    mezzo_value c = mezzo_input(g, "c", MEZZO_F32, 2, (int64_t[]){ROWS, OUT});
    mezzo_recompute_begin(g);
    mezzo_module_begin(g, "up");
    mezzo_value w1 = mezzo_param(g, "weight", normal, 2, (int64_t[]){HIDDEN, IN});
    mezzo_value b1 = mezzo_param(g, "bias", normal, 1, (int64_t[]){HIDDEN});
    mezzo_value h = mezzo_gelu(g, mezzo_linear(g, x, w1, b1), true);
    mezzo_module_end(g);
    mezzo_module_begin(g, "down");
    mezzo_value w2 = mezzo_param(g, "weight", normal, 2, (int64_t[]){OUT, HIDDEN});
    mezzo_value y = mezzo_linear(g, h, w2, MEZZO_NONE);
    mezzo_module_end(g);
    mezzo_recompute_end(g);
    must(mezzo_graph_loss(g, mezzo_mean(g, mezzo_mul(g, y, mezzo_add(g, y, c)), -1)));
    must(mezzo_graph_status(g));
    return g;
}

static mezzo_precision precision_of(const char *name) {
    mezzo_precision p;
    must(mezzo_precision_parse(name, &p));
    return p;
}

// --- what explain shows --------------------------------------------------------------------------------------------
typedef struct seen {
    const char *op, *module, *phase;
    mezzo_explain_row row;
    char inputs[128], scale[16];
    int count;
} seen;

static void look(void *user, const mezzo_explain_row *row) {
    seen *s = user;
    if (strcmp(row->op, s->op) != 0 || strcmp(row->module, s->module) != 0 || strcmp(row->phase, s->phase) != 0)
        return;
    if (s->count++ > 0)
        return;
    s->row = *row;
    snprintf(s->inputs, sizeof s->inputs, "%s", row->inputs);
    snprintf(s->scale, sizeof s->scale, "%s", row->scale);
}

static seen find(const mezzo_graph *g, const mezzo_program_options *o, const char *op, const char *module,
                 const char *phase) {
    seen s = {.op = op, .module = module, .phase = phase};
    must(mezzo_graph_explain(g, o, "autodiff", look, &s));
    if (s.count == 0)
        fail_msg("no %s of %s in %s", op, module, phase);
    return s;
}

static void count_op(void *user, const mezzo_explain_row *row) {
    seen *s = user;
    s->count += strcmp(row->op, s->op) == 0;
}

static mezzo_graph *mixture_of_experts(void) {
    mezzo_model_config c;
    mezzo_graph *g;
    must(mezzo_model_defaults("glm4_moe", &c));
    c.layers = 4, c.heads = 2, c.d_model = 32, c.d_ff = 64, c.vocab = 48, c.seq_len = 16, c.dropout = 0;
    must(mezzo_graph_create(&g));
    must(mezzo_model_build(g, &c, 2, 16, false));
    return g;
}

static const char middle[] = "layers.1.mlp.experts", outer[] = "layers.3.mlp.experts";

// The experts' products have formats and scales as linear has, where a tensor has one scale; their router has none.
TEST(experts_have_operands_of_8_bits) {
    mezzo_graph *g = mixture_of_experts();
    mezzo_program_options o = {.precision = precision_of("fp8")};
    seen y = find(g, &o, "grouped_linear", middle, "forward"),
         dx = find(g, &o, "grouped_linear_dx", middle, "backward");
    seen dw = find(g, &o, "grouped_linear_dw", middle, "backward");
    assert_string_equal(y.inputs, "fp8_e4m3,fp8_e4m3,i32");
    assert_string_equal(dx.inputs, "fp8_e5m2,fp8_e4m3,i32");
    assert_string_equal(dw.inputs, "fp8_e5m2,fp8_e4m3,i32");
    assert_int_equal(y.row.storage, MEZZO_BF16);
    assert_int_equal(dx.row.storage, MEZZO_BF16);
    assert_int_equal(dw.row.storage, MEZZO_F32);
    assert_string_equal(y.scale, "tensor");
    assert_string_equal(y.row.rule, "low: matmul, linear and attention");
    seen made = {.op = "quantize", .module = middle, .phase = "forward"};
    must(mezzo_graph_explain(g, &o, "autodiff", look, &made));
    assert_int_equal(made.count, 4); // x and w of two products
    made = (seen){.op = "quantize", .module = middle, .phase = "backward"};
    must(mezzo_graph_explain(g, &o, "autodiff", look, &made));
    assert_int_equal(made.count, 2);
    y = find(g, &o, "grouped_linear", outer, "forward");
    assert_string_equal(y.inputs, "bf16,bf16,i32");
    assert_string_equal(y.row.rule, "low: outside the numbered blocks, or their first or last");
    assert_string_equal(find(g, &o, "linear", "layers.1.mlp.gate", "forward").inputs, "fp32,fp32");
    o.precision = precision_of("fp8-dw16");
    dx = find(g, &o, "grouped_linear_dx", middle, "backward"),
    dw = find(g, &o, "grouped_linear_dw", middle, "backward");
    assert_string_equal(dx.inputs, "fp8_e5m2,fp8_e4m3,i32");
    assert_string_equal(dw.inputs, "bf16,bf16,i32");
    assert_int_equal(dw.row.compute, MEZZO_BF16);
    mezzo_graph_free(g);
}

// Where a tensor has many scales, of 128 rows or of emulated blocks, an expert's rows would begin inside of one.
TEST(experts_have_no_blocks_of_scales) {
    static const char rule[] = "low: an expert's rows begin inside a block of scales";
    mezzo_graph *g = mixture_of_experts();
    const mezzo_program_options of[] = {{.precision = precision_of("fp8-block")},
                                        {.precision = MEZZO_PRECISION_BF16, .emulate = MEZZO_BLOCKS_MXFP8}};
    for (size_t i = 0; i < MZ_COUNT(of); i++) {
        seen y = find(g, &of[i], "grouped_linear", middle, "forward");
        assert_string_equal(y.inputs, "bf16,bf16,i32");
        assert_string_equal(y.row.rule, rule);
        assert_string_equal(find(g, &of[i], "grouped_linear_dw", middle, "backward").inputs, "bf16,bf16,i32");
        assert_string_not_equal(find(g, &of[i], "linear", "layers.1.self_attn.o_proj", "forward").row.rule, rule);
    }
    mezzo_graph_free(g);
}

// exp has no padding, for exp(0) is 1: the rows that it reads are what they are.
TEST(rows_that_cannot_be_padded_stay_16_bits) {
    static const char rule[] = "low: 8-bit products read rows of multiples of 16, and this axis cannot be padded";
    const mezzo_init normal = {.kind = MEZZO_INIT_NORMAL, .a = 0.3F};
    const mezzo_program_options of[] = {{.precision = precision_of("fp8")}, {.precision = precision_of("fp8-block")}};
    static const int64_t widths[] = {32, 20};
    for (int odd = 0; odd < 2; odd++)
        for (int padded = 0; padded < 2; padded++) {
            mezzo_graph *g;
            must(mezzo_graph_create(&g));
            mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, (int64_t[]){ROWS, IN});
            mezzo_module_begin(g, "up");
            mezzo_value w = mezzo_param(g, "weight", normal, 2, (int64_t[]){widths[odd], IN});
            mezzo_value y = mezzo_linear(g, x, w, MEZZO_NONE);
            mezzo_module_end(g);
            must(mezzo_graph_loss(g, mezzo_mean(g, padded ? mezzo_relu(g, y) : mezzo_exp(g, y), -1)));
            for (size_t i = 0; i < MZ_COUNT(of); i++) {
                const seen s = find(g, &of[i], "linear", "up", "forward");
                if (odd && !padded)
                    assert_string_equal(s.row.rule, rule);
                assert_string_equal(s.inputs, odd && !padded ? "bf16,bf16" : "fp8_e4m3,fp8_e4m3");
            }
            mezzo_graph_free(g);
        }
}

static const char emulated_rule[] = "low: emulated, operands rounded to blocks";

static bool is_emulated(const mezzo_graph *g, const mezzo_program_options *o, const char *op, const char *module,
                        const char *phase) {
    const seen s = find(g, o, op, module, phase);
    return strcmp(s.row.rule, emulated_rule) == 0;
}

// What is emulated is what a precision of 8 bits narrows: not the router, which a region keeps in fp32, and not a
// module that an override gives another precision. An override to the program's own takes in the outer blocks.
TEST(emulation_leaves_regions_and_overrides_alone) {
    mezzo_graph *g = mixture_of_experts();
    static const char proj[] = "layers.1.self_attn.o_proj", gate[] = "layers.1.mlp.gate";
    const mezzo_precision of[] = {MEZZO_PRECISION_BF16, MEZZO_PRECISION_FP32, MEZZO_PRECISION_FP64};
    for (size_t i = 0; i < MZ_COUNT(of); i++) {
        mezzo_program_options o = {.precision = of[i], .emulate = MEZZO_BLOCKS_NVFP4};
        assert_true(is_emulated(g, &o, "linear", proj, "forward"));
        assert_false(is_emulated(g, &o, "linear", gate, "forward"));
        assert_false(is_emulated(g, &o, "linear", "layers.3.self_attn.o_proj", "forward"));
    }
    mezzo_override override = {proj, MEZZO_PRECISION_FP32};
    mezzo_program_options o = {
        .precision = MEZZO_PRECISION_BF16, .emulate = MEZZO_BLOCKS_MXFP8, .overrides = &override, .n_overrides = 1};
    assert_false(is_emulated(g, &o, "linear", proj, "forward"));
    assert_true(is_emulated(g, &o, "linear", "layers.1.self_attn.qkv_proj", "forward"));
    override.precision = precision_of("fp8"); // narrow by itself, and not twice
    const seen own = find(g, &o, "linear", proj, "forward");
    assert_string_equal(own.inputs, "fp8_e4m3,fp8_e4m3");
    assert_string_equal(own.row.rule, "low: matmul, linear and attention (override)");
    override = (mezzo_override){"*", MEZZO_PRECISION_BF16};
    assert_true(is_emulated(g, &o, "linear", proj, "forward"));
    assert_true(is_emulated(g, &o, "linear", "layers.3.self_attn.o_proj", "forward"));
    assert_true(is_emulated(g, &o, "linear", "lm_head", "forward"));
    mezzo_graph_free(g);
}

// A weight that is rounded for its product has its gradient written by the product, as others: nothing is added after.
TEST(gradients_of_rounded_weights_go_where_they_belong) {
    mezzo_graph *g = two_layers();
    const char *const names[] = {"fp8", "fp8-dw16", "fp8-block", "bf16"};
    for (size_t i = 0; i < MZ_COUNT(names); i++) {
        const mezzo_program_options o = {.precision = precision_of(names[i])};
        seen added = {.op = "accumulate"}, made = {.op = "linear_dw"};
        must(mezzo_graph_explain(g, &o, "autodiff", count_op, &added));
        must(mezzo_graph_explain(g, &o, "autodiff", count_op, &made));
        assert_int_equal(made.count, 2);
        assert_int_equal(added.count, 0);
    }
    mezzo_graph_free(g);
}

TEST(explain_shows_operand_gradient_and_output_formats) {
    mezzo_graph *g = two_layers();
    const mezzo_program_options o = {.precision = precision_of("fp8")};
    seen up = find(g, &o, "linear", "up", "forward");
    assert_string_equal(up.inputs, "fp8_e4m3,fp8_e4m3,bf16"); // x, w, bias
    assert_int_equal(up.row.operand, MEZZO_F8E4M3);
    assert_int_equal(up.row.gradient, MEZZO_F8E5M2);
    assert_int_equal(up.row.storage, MEZZO_BF16);
    assert_string_equal(up.scale, "tensor");
    seen dx = find(g, &o, "linear_dx", "down", "backward"), dw = find(g, &o, "linear_dw", "down", "backward");
    assert_string_equal(dx.inputs, "fp8_e5m2,fp8_e4m3");
    assert_string_equal(dw.inputs, "fp8_e5m2,fp8_e4m3");
    assert_int_equal(dx.row.storage, MEZZO_BF16); // the gradient of an operand in E4M3 is not in E4M3
    assert_int_equal(dw.row.storage, MEZZO_F32);
    assert_string_equal(dw.scale, "tensor");
    seen gelu = find(g, &o, "gelu", "up", "forward");
    assert_string_equal(gelu.scale, "-");
    const mezzo_program_options dw16 = {.precision = precision_of("fp8-dw16")};
    dx = find(g, &dw16, "linear_dx", "down", "backward"), dw = find(g, &dw16, "linear_dw", "down", "backward");
    assert_string_equal(dx.inputs, "fp8_e5m2,fp8_e4m3");
    assert_string_equal(dw.inputs, "bf16,bf16"); // and what runs is bf16's product
    assert_int_equal(dw.row.operand, MEZZO_BF16);
    assert_int_equal(dw.row.compute, MEZZO_BF16);
    assert_string_equal(dw.scale, "-");
    seen made = {.op = "quantize"};
    must(mezzo_graph_explain(g, &dw16, "autodiff", count_op, &made));
    assert_int_equal(made.count, 5); // x, w of both layers, and dy of the one that makes a dx
    const mezzo_program_options block = {.precision = precision_of("fp8-block")};
    dx = find(g, &block, "linear_dx", "down", "backward"), dw = find(g, &block, "linear_dw", "down", "backward");
    assert_string_equal(dx.inputs, "fp8_e4m3,fp8_e4m3");
    assert_string_equal(dw.inputs, "fp8_e4m3,fp8_e4m3");
    assert_string_equal(dw.scale, "block 128");
    assert_string_equal(find(g, &block, "quantize", "down", "forward").scale, "block 128"); // x; then w
    const mezzo_program_options bf16 = {.precision = precision_of("bf16")};
    up = find(g, &bf16, "linear", "up", "forward");
    assert_int_equal(up.row.operand, MEZZO_BF16);
    assert_int_equal(up.row.gradient, MEZZO_BF16);
    assert_string_equal(up.scale, "-");
    mezzo_graph_free(g);
}

// --- a step on ref -------------------------------------------------------------------------------------------------
typedef struct result {
    float loss, up[HIDDEN * IN], down[OUT * HIDDEN], bias[HIDDEN];
} result;

static void fill(float *x, int n, float amplitude, unsigned seed) {
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = amplitude * ((float)(seed >> 8) / (float)(1 << 23) - 1);
    }
}

static void run_on(const char *where, mezzo_program_options o, result *r) {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *p;
    float x[ROWS * IN], c[ROWS * OUT];
    mezzo_graph *g = two_layers();
    fill(x, ROWS * IN, 3, 1);
    fill(c, ROWS * OUT, 1e-3F, 2); // gradients far below what E5M2 holds without a scale: 2^-16 is its smallest number
    must(mezzo_device_open(where, 1, &device));
    must(mezzo_params_create(device, g, 5, &params));
    must(mezzo_program_create(g, params, &o, &p));
    must(mezzo_program_write(p, "x", x, sizeof x));
    must(mezzo_program_write(p, "c", c, sizeof c));
    must(mezzo_program_run(p, NULL, 1, 0));
    must(mezzo_program_read(p, "loss", &r->loss, sizeof r->loss));
    must(mezzo_params_read_grad(params, mezzo_params_find(params, "up.weight"), r->up));
    must(mezzo_params_read_grad(params, mezzo_params_find(params, "up.bias"), r->bias));
    must(mezzo_params_read_grad(params, mezzo_params_find(params, "down.weight"), r->down));
    mezzo_program_free(p);
    mezzo_params_free(params);
    mezzo_device_close(device);
    mezzo_graph_free(g);
}

static void run_step(const char *precision, bool recompute, result *r) {
    run_on("ref", (mezzo_program_options){.precision = precision_of(precision), .recompute = recompute}, r);
}

// ‖a - b‖ / ‖b‖
static double apart(const float *a, const float *b, int n) {
    double off = 0, norm = 0;
    for (int i = 0; i < n; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(off / norm);
}

static const char *const narrow[] = {"fp8", "fp8-dw16", "fp8-block"};

// A product of operands that are each off by at most u has terms that are off by at most u_a + u_b (and their product),
// and so is their norm where the terms do not cancel: E5M2 · E4M3 is 2^-3 + 2^-4 for a weight's gradient. Three
// products lie between the input and a gradient; twice the bound of one leaves room for that, and a lost scale is off
// by all of it.
TEST(a_step_with_scaled_operands_is_near_fp32s) {
    result exact, low;
    run_step("fp32", false, &exact);
    const double bound = 2 * (0x1p-3 + 0x1p-4);
    for (size_t i = 0; i < MZ_COUNT(narrow); i++) {
        run_step(narrow[i], false, &low);
        assert_true(fabs((double)low.loss - (double)exact.loss) <= bound * fabs((double)exact.loss));
        double down = apart(low.down, exact.down, OUT * HIDDEN), up = apart(low.up, exact.up, HIDDEN * IN);
        double bias = apart(low.bias, exact.bias, HIDDEN);
        if (!(down <= bound && up <= bound && bias <= bound))
            fail_msg("%s: off by %g (down), %g (up), %g (bias), may be %g", narrow[i], down, up, bias, bound);
        assert_true(down > 0x1p-8 && up > 0x1p-8); // and BF16 it is not
    }
}

TEST(recompute_repeats_the_scales_too) {
    result kept, repeated;
    for (size_t i = 0; i < MZ_COUNT(narrow); i++) {
        run_step(narrow[i], false, &kept);
        run_step(narrow[i], true, &repeated);
        assert_memory_equal(&kept, &repeated, sizeof kept);
    }
}

// Operands are the same numbers on both; what differs are sums in FP32, and BF16 results that fall on the other side of
// a rounding, which the next operand's rounding to 3 bits may magnify.
TEST(cpu_is_near_ref) {
    result ref, cpu, again;
    for (size_t i = 0; i < MZ_COUNT(narrow); i++) {
        const mezzo_precision p = precision_of(narrow[i]);
        run_step(narrow[i], false, &ref);
        run_on("cpu", (mezzo_program_options){.precision = p}, &cpu);
        run_on("cpu", (mezzo_program_options){.precision = p, .recompute = true}, &again);
        assert_memory_equal(&cpu, &again, sizeof cpu);
        assert_true(apart(cpu.down, ref.down, OUT * HIDDEN) <= 0x1p-6 && apart(cpu.up, ref.up, HIDDEN * IN) <= 0x1p-6);
    }
}

// Block formats: as far from FP32 as their elements' rounding, and not nearer than the next finer one.
TEST(emulated_blocks_cost_what_they_cost) {
    // E4M3 2^-4 an operand, E2M1 2^-2: three products, as above.
    static const double bound[MEZZO_BLOCKS_COUNT] = {0x1p-7, 2 * 0x1p-3, 2 * 0x1p-1, 2 * 0x1p-1};
    result exact, ref, cpu;
    run_step("fp32", false, &exact);
    for (int b = 1; b < MEZZO_BLOCKS_COUNT; b++) {
        const mezzo_program_options o = {.precision = precision_of("fp32"), .emulate = (mezzo_blocks)b};
        run_on("ref", o, &ref);
        run_on("cpu", o, &cpu);
        double down = apart(ref.down, exact.down, OUT * HIDDEN), up = apart(ref.up, exact.up, HIDDEN * IN);
        if (!(down <= bound[b] && up <= bound[b] && down > bound[b] / 64 && up > bound[b] / 64))
            fail_msg("%s: off by %g (down), %g (up), may be %g", mezzo_blocks_name((mezzo_blocks)b), down, up,
                     bound[b]);
        assert_true(apart(cpu.down, ref.down, OUT * HIDDEN) <= 0x1p-6);
        assert_true(apart(cpu.up, ref.up, HIDDEN * IN) <= 0x1p-6);
    }
}

TEST(a_precision_with_scales_trains_on_ref) {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *p;
    mezzo_optimizer *opt;
    float x[ROWS * IN], c[ROWS * OUT], first = 0, last = 0;
    mezzo_graph *g = two_layers();
    const mezzo_program_options o = {.precision = precision_of("fp8")};
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    adamw.schedule.lr = 1e-2;
    fill(x, ROWS * IN, 1, 3);
    fill(c, ROWS * OUT, 2, 4);
    must(mezzo_device_open("ref", 1, &device));
    must(mezzo_params_create(device, g, 5, &params));
    must(mezzo_program_create(g, params, &o, &p));
    must(mezzo_optimizer_create(params, &adamw, &opt));
    must(mezzo_program_write(p, "x", x, sizeof x));
    must(mezzo_program_write(p, "c", c, sizeof c));
    for (int step = 0; step < 60; step++) {
        must(mezzo_program_run(p, NULL, 1, (uint64_t)step));
        must(mezzo_program_read(p, "loss", step == 0 ? &first : &last, sizeof last));
        must(mezzo_optimizer_step(opt));
        must(mezzo_optimizer_zero_grad(opt));
    }
    assert_true(isfinite((double)last) && last < first - 0.1F); // the least is mean(-c²/4), -1/3
    mezzo_optimizer_free(opt);
    mezzo_program_free(p);
    mezzo_params_free(params);
    mezzo_device_close(device);
    mezzo_graph_free(g);
}

// --- scales --------------------------------------------------------------------------------------------------------
static int64_t count_of(mz_scaling scaling, bool columnwise) {
    return mz_scale_count(&(mz_tensor){.shape = {2, {3, 200}}, .scaling = scaling, .columnwise = columnwise});
}

static int64_t index_of(mz_scaling scaling, bool columnwise, int64_t element) {
    return mz_scale_index(&(mz_tensor){.shape = {2, {3, 200}}, .scaling = scaling, .columnwise = columnwise}, element);
}

TEST(scales_have_their_places) {
    assert_int_equal(count_of(MZ_SCALING_NONE, false), 0);
    assert_int_equal(count_of(MZ_SCALING_TENSOR, false), 1);
    assert_int_equal(count_of(MZ_SCALING_BLOCK128, false), 2 * 128); // three rows have room for 128
    assert_int_equal(count_of(MZ_SCALING_BLOCK128, true), 256);      // and 200 columns for 256
    assert_int_equal(count_of(MZ_SCALING_TILE128, true), 2);
    assert_int_equal(index_of(MZ_SCALING_TENSOR, false, 599), 0);
    assert_int_equal(index_of(MZ_SCALING_BLOCK128, false, 127), 0);
    assert_int_equal(index_of(MZ_SCALING_BLOCK128, false, 199), 128);
    assert_int_equal(index_of(MZ_SCALING_BLOCK128, false, 200), 1);
    assert_int_equal(index_of(MZ_SCALING_BLOCK128, true, 399), 199);
    assert_int_equal(index_of(MZ_SCALING_TILE128, false, 399), 1);
}

static mz_call cast_call(const float *x, void *y, mezzo_dtype dtype, mz_scaling scaling, float *scale, mz_shape shape) {
    mz_call call = {.op = MZ_OP_cast, .n_in = 1, .n_out = 1};
    for (int i = 0; i < MZ_MAX_IN; i++)
        call.in[i].shape.rank = -1;
    for (int i = 0; i < MZ_MAX_OUT; i++)
        call.out[i].shape.rank = -1;
    call.in[0] = (mz_tensor){.data = (void *)(uintptr_t)x, .dtype = MEZZO_F32, .shape = shape};
    call.out[0] = (mz_tensor){.data = y, .dtype = dtype, .shape = shape, .scaling = scaling, .scale = scale};
    return call;
}

static void run_call(const char *name, mz_call *call) {
    mezzo_device *device;
    mz_prepared prepared;
    must(mezzo_device_open(name, 1, &device));
    must(mz_prepare(device, call, &prepared));
    call->state = prepared.state;
    must(prepared.kernel->run(device, call));
    mz_prepared_free(&prepared);
    mezzo_device_close(device);
}

// A scale is the least power of two that brings the amax to at most the format's largest number.
TEST(scales_are_least_powers_of_two) {
    for (int exponent = -149; exponent < 128; exponent++)
        for (int k = 0; k < 16; k++)
            for (int wide = 0; wide < 2; wide++) {
                const mezzo_dtype dtype = wide ? MEZZO_F8E5M2 : MEZZO_F8E4M3;
                const float amax = ldexpf((float)(16 + k) / 16, exponent);
                const double largest = mz_dtype_largest(dtype), scale = (double)mz_scale_for(amax, dtype);
                int unused;
                assert_true(frexp(scale, &unused) == 0.5 && (double)amax <= largest * scale);
                assert_true(scale == 0x1p-126 || (double)amax > largest * scale / 2);
            }
    assert_true(mz_scale_for(0, MEZZO_F8E4M3) == 1 && mz_scale_for(INFINITY, MEZZO_F8E4M3) == 1);
    assert_true(mz_scale_for(NAN, MEZZO_F8E5M2) == 1);
}

TEST(what_is_not_finite_stays_so) {
    const mz_shape shape = {2, {2, 2}};
    const float x[] = {1, NAN, 2, INFINITY};
    float scale = 1;
    uint8_t y[4];
    mz_call call = cast_call(x, y, MEZZO_F8E5M2, MZ_SCALING_TENSOR, &scale, shape);
    run_call("ref", &call);
    assert_true(isnan((double)mezzo_e5m2_to_f32(y[1])) && isinf((double)mezzo_e5m2_to_f32(y[3])));
    assert_true(mezzo_e5m2_to_f32(y[0]) == 1 && mezzo_e5m2_to_f32(y[2]) == 2);
}

// A scale is a value like any other: here an input, which a run reads where the host wrote it.
TEST(scales_may_live_anywhere) {
    enum { N = 5 };
    mezzo_graph *g;
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *p;
    const float x[N] = {1, -3.3F, 1000, 0.01F, 447}, scales[] = {4, 0.5F};
    float y[N], loss;
    const mezzo_program_options o = {.precision = MEZZO_PRECISION_FP32, .forward_only = true};
    must(mezzo_graph_create(&g));
    mezzo_value in = mezzo_input(g, "x", MEZZO_F32, 1, (int64_t[]){N});
    mezzo_value scale = mezzo_input(g, "scale", MEZZO_F32, 1, (int64_t[]){1});
    mezzo_value w = mezzo_param(g, "w", (mezzo_init){.kind = MEZZO_INIT_ZERO}, 1, (int64_t[]){N});
    mezzo_value low = mezzo_cast(g, in, MEZZO_BF16); // models may not ask for 8 bits; passes do
    g->values[low.id].dtype = MEZZO_F8E4M3;
    g->values[low.id].scaling = MZ_SCALING_TENSOR;
    g->values[low.id].scale = scale.id;
    mezzo_value back = mezzo_cast(g, low, MEZZO_F32);
    must(mezzo_graph_output(g, "back", back));
    must(mezzo_graph_loss(g, mezzo_mean(g, mezzo_mul(g, back, w), -1)));
    must(mezzo_device_open("ref", 1, &device));
    must(mezzo_params_create(device, g, 1, &params));
    must(mezzo_program_create(g, params, &o, &p));
    must(mezzo_program_write(p, "x", x, sizeof x));
    for (size_t s = 0; s < MZ_COUNT(scales); s++) {
        must(mezzo_program_write(p, "scale", &scales[s], sizeof scales[s]));
        must(mezzo_program_run(p, NULL, 1, 0));
        must(mezzo_program_read(p, "back", y, sizeof y));
        must(mezzo_program_read(p, "loss", &loss, sizeof loss));
        for (int i = 0; i < N; i++) {
            double scaled = fmin((double)x[i] / (double)scales[s], 448); // 1000 / 0.5 is more: it is cut off
            double expected = mezzo_round_to(scaled, MEZZO_F8E4M3) * (double)scales[s];
            if ((double)y[i] != expected)
                fail_msg("%g at scale %g is %g, not %g", (double)x[i], (double)scales[s], (double)y[i], expected);
        }
    }
    mezzo_program_free(p);
    mezzo_params_free(params);
    mezzo_device_close(device);
    mezzo_graph_free(g);
}

// --- who may take them ---------------------------------------------------------------------------------------------
TEST(a_kernel_that_does_not_take_a_format_never_sees_it) {
    mezzo_device *device;
    mz_prepared prepared;
    float x[4] = {1, 2, 3, 4}, scale[1];
    uint8_t y[16];
    const mz_shape shape = {1, {4}};
    mz_call plain = cast_call(x, y, MEZZO_F8E4M3, MZ_SCALING_NONE, scale, shape);
    mz_call scaled = cast_call(x, y, MEZZO_BF16, MZ_SCALING_TENSOR, scale, shape);
    must(mezzo_device_open("cpu", 1, &device));
    must_fail(mz_prepare(device, &plain, &prepared), MEZZO_ERR_UNSUPPORTED, "its formats are fp32, bf16, fp16");
    must_fail(mz_prepare(device, &scaled, &prepared), MEZZO_ERR_UNSUPPORTED, "scales", "bf16 scaled by tensor");
    mezzo_device_close(device);
}

TEST(cpu_emulates_fp8_and_says_so) {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *p;
    mezzo_precision effective;
    char reason[160];
    mezzo_graph *g = two_layers();
    const mezzo_program_options o = {.precision = precision_of("fp8")};
    must(mezzo_device_open("cpu", 1, &device));
    must(mezzo_precision_resolve(device, o.precision, &effective, reason, sizeof reason));
    assert_int_equal(effective, o.precision);
    assert_non_null(strstr(reason, "emulated"));
    must(mezzo_params_create(device, g, 5, &params));
    must(mezzo_program_create(g, params, &o, &p));
    mezzo_program_free(p);
    mezzo_params_free(params);
    mezzo_device_close(device);
    must(mezzo_device_open("ref", 1, &device));
    must(mezzo_precision_resolve(device, o.precision, &effective, reason, sizeof reason));
    assert_int_equal(effective, o.precision);
    mezzo_device_close(device);
    mezzo_graph_free(g);
}

// --- masters -------------------------------------------------------------------------------------------------------
typedef struct kept {
    mezzo_master up, down, bias;
    mezzo_dtype copy;
} kept;

static void see_param(void *user, const mezzo_explain_param *row) {
    kept *k = user;
    if (strcmp(row->name, "up.weight") == 0)
        k->up = row->master, k->copy = row->copy;
    else if (strcmp(row->name, "up.bias") == 0)
        k->bias = row->master;
    else
        k->down = row->master;
}

// An override that lets a module read its master keeps it in FP32, and the program that was asked for runs.
TEST(an_override_decides_how_its_masters_are_kept) {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *p;
    mezzo_graph *g = two_layers();
    const mezzo_override fp32 = {"up", MEZZO_PRECISION_FP32};
    mezzo_program_options o = {.precision = precision_of("bf16")};
    kept k;
    must(mezzo_graph_explain_params(g, &o, MEZZO_MASTER_SPLIT, see_param, &k));
    assert_int_equal(k.up, MEZZO_MASTER_SPLIT);
    assert_int_equal(k.bias, MEZZO_MASTER_SPLIT);
    assert_int_equal(k.down, MEZZO_MASTER_SPLIT);
    assert_int_equal(k.copy, MEZZO_BF16);
    o.overrides = &fp32, o.n_overrides = 1;
    must(mezzo_graph_explain_params(g, &o, MEZZO_MASTER_SPLIT, see_param, &k));
    assert_int_equal(k.up, MEZZO_MASTER_FP32);
    assert_int_equal(k.bias, MEZZO_MASTER_FP32);
    assert_int_equal(k.down, MEZZO_MASTER_SPLIT);
    assert_int_equal(k.copy, MEZZO_DTYPE_COUNT);
    must(mezzo_device_open("ref", 1, &device));
    must(mezzo_params_create_as(device, g, &o, 5, MEZZO_MASTER_SPLIT, &params));
    must(mezzo_program_create(g, params, &o, &p)); // the override's linear finds the FP32 master that it reads
    mezzo_program_free(p);
    mezzo_params_free(params);
    assert_int_equal(mezzo_params_create_as(device, g, NULL, 5, MEZZO_MASTER_SPLIT, &params), MEZZO_ERR_INVALID);
    o.precision = precision_of("fp16");
    o.n_overrides = 0;
    must(mezzo_graph_explain_params(g, &o, MEZZO_MASTER_SPLIT, see_param, &k));
    assert_int_equal(k.down, MEZZO_MASTER_FP32); // an FP16 copy is no half of an FP32 number
    mezzo_device_close(device);
    mezzo_graph_free(g);
}

// A weight that one module reads as its copy and another as its master has to have both.
TEST(a_master_that_is_read_is_kept) {
    mezzo_graph *g;
    const mezzo_override fp32 = {"b", MEZZO_PRECISION_FP32};
    const mezzo_program_options plain = {.precision = precision_of("bf16")};
    mezzo_program_options o = plain;
    kept k = {0};
    must(mezzo_graph_create(&g));
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, (int64_t[]){4, 8});
    mezzo_value w = mezzo_param(g, "up.weight", (mezzo_init){.kind = MEZZO_INIT_NORMAL, .a = 1}, 2, (int64_t[]){8, 8});
    mezzo_module_begin(g, "a");
    x = mezzo_linear(g, x, w, MEZZO_NONE);
    mezzo_module_end(g);
    mezzo_module_begin(g, "b");
    x = mezzo_linear(g, x, w, MEZZO_NONE);
    mezzo_module_end(g);
    must(mezzo_graph_loss(g, mezzo_mean(g, x, -1)));
    must(mezzo_graph_explain_params(g, &plain, MEZZO_MASTER_STOCHASTIC, see_param, &k));
    assert_int_equal(k.up, MEZZO_MASTER_STOCHASTIC);
    o.overrides = &fp32, o.n_overrides = 1;
    must(mezzo_graph_explain_params(g, &o, MEZZO_MASTER_STOCHASTIC, see_param, &k));
    assert_int_equal(k.up, MEZZO_MASTER_FP32);
    assert_int_equal(k.copy, MEZZO_BF16);
    mezzo_graph_free(g);
}
