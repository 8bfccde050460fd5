// The table of scales: what a step puts into it, and what leaves no trace there.
#include <math.h>

#include "fixture.h"
#include "runtime/program.h"

enum { BATCH = 2, LENGTH = 16, VOCAB = 48, MICRO = 2, MOST = 64 };

typedef struct run {
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program, *forward;
    mezzo_optimizer *optimizer[2];
    mezzo_step *step;
    int n;
    mz_scale_entry table[MOST];
} run;

static fixture_options filled = {.batch = BATCH};

static void open_run_of(run *r, const char *const *patterns, int n_optimizers) {
    filled.model = fixture_model("gpt2", 32, 64, VOCAB, LENGTH);
    *r = (run){0};
    must(mezzo_device_open(test_device(), 2, &r->device));
    r->graph = fixture_graph(&filled.model, BATCH, LENGTH, false);
    mezzo_program_options options = {.precision = MEZZO_PRECISION_FP8, .loss_weight = 1.0f / MICRO};
    must(mezzo_params_create_as(r->device, r->graph, &options, 7, MEZZO_MASTER_FP32, &r->params));
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    must(mezzo_program_create(r->graph, r->params, &options, &r->program));
    options.forward_only = true;
    must(mezzo_program_create(r->graph, r->params, &options, &r->forward));
    for (int i = 0; i < n_optimizers; i++) {
        adamw.patterns = patterns != NULL ? &patterns[i] : NULL;
        adamw.n_patterns = patterns != NULL ? 1 : 0;
        must(mezzo_optimizer_create(r->params, &adamw, &r->optimizer[i]));
    }
    must(mezzo_step_create(r->program, r->optimizer, n_optimizers, NULL, &(mezzo_step_options){.micro_batches = MICRO},
                           &r->step));
}

static void open_run(run *r) {
    open_run_of(r, NULL, 1);
}

static void close_run(run *r) {
    mezzo_step_free(r->step);
    for (int i = 0; i < 2; i++)
        mezzo_optimizer_free(r->optimizer[i]);
    mezzo_program_free(r->forward);
    mezzo_program_free(r->program);
    mezzo_params_free(r->params);
    mezzo_graph_free(r->graph);
    mezzo_device_close(r->device);
}

static void take_step(run *r, uint64_t index) {
    must(mezzo_step_run(r->step, 3, index * MICRO, fixture_fill, &filled));
}

static void read_table(run *r) {
    r->n = r->params->scales.n;
    assert_in_range(r->n, 1, MOST);
    must(mz_scales_read(r->device, &r->params->scales));
    memcpy(r->table, r->params->scales.host, (size_t)r->n * sizeof *r->table);
    for (int i = 0; i < r->n; i++) // the weights', which stay until these move
        r->table[i].weight_amax = 0;
}

static int find(const run *r, const char *name) {
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->params->scales.names[i], name) == 0)
            return i;
    fail_msg("no entry is called %s", name);
    return -1;
}

// The least power of two that brings the largest of the last steps to at most the format's largest number.
static float scale_of(const mz_scale_entry *e) {
    float amax = 0, scale = 0x1p-120F;
    for (int i = 0; i < MZ_SCALE_HISTORY && i < e->n; i++) {
        float magnitude;
        memcpy(&magnitude, &e->history[i], sizeof magnitude);
        amax = fmaxf(amax, magnitude);
    }
    while (amax / scale > (e->dtype == MEZZO_F8E4M3 ? 448.0F : 57344.0F))
        scale *= 2;
    return scale;
}

// --- what a step does ----------------------------------------------------------------------------------------------
TEST(a_step_is_one_entry_of_each_history) {
    run r;
    open_run(&r);
    for (int s = 0; s < MZ_SCALE_HISTORY + 3; s++) {
        take_step(&r, (uint64_t)s);
        read_table(&r);
        for (int i = 0; i < r.n; i++) {
            const mz_scale_entry *e = &r.table[i];
            if (e->n != s + 1 || e->amax != 0 || e->scale != scale_of(e))
                fail_msg("%s behind step %d: %d steps, magnitude %#x, scale %g, not %g", r.params->scales.names[i],
                         s + 1, e->n, e->amax, (double)e->scale, (double)scale_of(e));
        }
    }
    assert_true(r.params->scales.unknown == 0);
    assert_int_equal(r.table[find(&r, "h.1.mlp.c_fc.x")].dtype, MEZZO_F8E4M3);
    assert_int_equal(r.table[find(&r, "h.1.mlp.c_fc.w")].dtype, MEZZO_F8E4M3);
    assert_int_equal(r.table[find(&r, "h.1.mlp.c_fc.dy")].dtype, MEZZO_F8E5M2);
    close_run(&r);
}

// --- what leaves no trace ------------------------------------------------------------------------------------------
TEST(an_evaluation_leaves_the_table_alone) {
    run r;
    open_run(&r);
    for (int s = 0; s < 3; s++)
        take_step(&r, (uint64_t)s);
    read_table(&r);
    run before = r;
    for (uint64_t i = 0; i < 3; i++) {
        must(fixture_fill(&filled, r.forward, 100 + i));
        must(mezzo_program_run(r.forward, NULL, 3, i));
    }
    read_table(&r);
    assert_int_equal(r.n, before.n);
    assert_memory_equal(r.table, before.table, (size_t)r.n * sizeof *r.table);
    close_run(&r);
}

TEST(a_skipped_step_leaves_no_trace) {
    run r;
    mezzo_step_report report;
    open_run(&r);
    for (int s = 0; s < 3; s++)
        take_step(&r, (uint64_t)s);
    read_table(&r);
    run before = r;
    const int weight = mezzo_params_find(r.params, "h.0.mlp.c_fc.weight");
    assert_true(weight >= 0);
    float *good = calloc(64 * 32, sizeof *good), *bad = calloc(64 * 32, sizeof *bad);
    must(mezzo_params_read(r.params, weight, good));
    memcpy(bad, good, 64 * 32 * sizeof *bad);
    bad[100] = NAN;
    must(mezzo_params_write(r.params, weight, bad));
    take_step(&r, 3);
    must(mezzo_step_read(r.step, true, &report));
    assert_true(report.found_inf);
    read_table(&r);
    assert_memory_equal(r.table, before.table, (size_t)r.n * sizeof *r.table);
    must(mezzo_params_write(r.params, weight, good));
    take_step(&r, 3);
    read_table(&r);
    assert_int_equal(r.table[0].n, before.table[0].n + 1);
    free(good);
    free(bad);
    close_run(&r);
}

TEST(a_dropped_step_leaves_no_trace) {
    run r;
    open_run(&r);
    take_step(&r, 0);
    read_table(&r);
    run before = r;
    must(fixture_fill(&filled, r.program, 50));
    must(mezzo_step_micro(r.step, 3, 50));
    must(mezzo_step_drop(r.step));
    read_table(&r);
    assert_memory_equal(r.table, before.table, (size_t)r.n * sizeof *r.table);
    close_run(&r);
}

// --- weights' codes, which the update keeps ------------------------------------------------------------------------
enum { LARGEST_WEIGHT = 96 * 64 };

static uint8_t code_of(float x, float scale) {
    return mezzo_f32_to_e4m3(fminf(fmaxf(x / scale, -448), 448));
}

// Both layouts of all, as the masters and the table are now.
static void check_quantized(const run *r, const char *when) {
    const mezzo_params *p = r->params;
    float master[LARGEST_WEIGHT];
    uint8_t codes[LARGEST_WEIGHT], columnwise[LARGEST_WEIGHT];
    assert_int_equal(p->quantized.n, 9);
    for (int i = 0; i < p->quantized.n; i++) {
        const mz_quantized *c = &p->quantized.list[i];
        const int64_t rows = p->list[c->param].shape.dim[0], columns = p->list[c->param].shape.dim[1];
        const size_t n = (size_t)(rows * columns);
        mz_scale_entry e;
        assert_in_range(n, 1, LARGEST_WEIGHT);
        must(mezzo_params_read(p, c->param, master));
        must(r->device->backend->read(r->device, &e, &p->scales.entries[c->entry], sizeof e));
        must(r->device->backend->read(r->device, codes, c->rowwise, n));
        must(r->device->backend->read(r->device, columnwise, c->columnwise, n));
        float amax = 0;
        for (int64_t k = 0; k < (int64_t)n; k++) {
            const uint8_t code = code_of(master[k], e.scale);
            amax = fmaxf(amax, fabsf(master[k]));
            if (codes[k] != code || columnwise[k % columns * rows + k / columns] != code)
                fail_msg("%s: element %lld of %s is %g with scale %g: %#x, codes %#x and turned %#x", when,
                         (long long)k, p->list[c->param].name, (double)master[k], (double)e.scale, code, codes[k],
                         columnwise[k % columns * rows + k / columns]);
        }
        if (amax > 0 && (amax / e.scale < 448 / 4 || amax / e.scale > 448 * 2))
            fail_msg("%s: scale %g for %s, of at most %g", when, (double)e.scale, p->list[c->param].name, (double)amax);
        if (memcmp(&amax, &e.weight_amax, sizeof amax) != 0)
            fail_msg("%s: of %s the largest is %g, kept %#x", when, p->list[c->param].name, (double)amax,
                     e.weight_amax);
    }
}

static void forward(run *r) {
    must(fixture_fill(&filled, r->forward, 100));
    must(mezzo_program_run(r->forward, NULL, 3, 0));
}

TEST(codes_follow_the_masters) {
    run r;
    float weight[64 * 32];
    open_run(&r);
    for (size_t i = 0; i < r.program->c.n_calls; i++) {
        const mz_node *n = &r.program->c.graph->nodes[r.program->c.node[i]];
        if (n->op == MZ_OP_quantize)
            assert_int_not_equal(r.program->c.graph->values[n->in[0]].kind, MZ_VALUE_PARAM);
    }
    forward(&r);
    check_quantized(&r, "before a step");
    for (int s = 0; s < 4; s++) {
        take_step(&r, (uint64_t)s);
        check_quantized(&r, "behind a step");
        forward(&r);
        check_quantized(&r, "behind an evaluation");
    }
    const int index = mezzo_params_find(r.params, "h.0.mlp.c_fc.weight");
    must(mezzo_params_read(r.params, index, weight));
    for (int i = 0; i < 64 * 32; i++)
        weight[i] *= 1.5F;
    must(mezzo_params_write(r.params, index, weight));
    forward(&r);
    check_quantized(&r, "behind a write");
    close_run(&r);
}

// A weight of zeros has no history: its codes are measured before each run, until the host has seen one.
TEST(zeros_are_measured) {
    run r;
    static const float zeros[64 * 32];
    open_run(&r);
    const int index = mezzo_params_find(r.params, "h.1.mlp.c_fc.weight");
    must(mezzo_params_write(r.params, index, zeros));
    for (int s = 0; s < 5; s++) {
        take_step(&r, (uint64_t)s);
        forward(&r);
        check_quantized(&r, "a weight that was 0");
    }
    read_table(&r);
    const mz_scale_entry *e = &r.table[find(&r, "h.1.mlp.c_fc.w")];
    assert_int_equal(e->n, 4); // not the first step's
    assert_true(e->scale == scale_of(e) && r.params->scales.unknown == 0);
    close_run(&r);
}

// The one that moves first does so before the other makes the scales.
TEST(two_optimizers_write_them) {
    run r;
    const char *patterns[] = {"h.1.*", "wte*"};
    open_run_of(&r, patterns, 2);
    for (int s = 0; s < 4; s++) {
        take_step(&r, (uint64_t)s);
        check_quantized(&r, "of two optimizers");
    }
    close_run(&r);
}

// Parameters made for fp8 have no place for copies that fp8 does not read: a program in bf16 makes its own.
TEST(another_precision_makes_its_copies) {
    run r;
    float loss[2];
    mezzo_params *params;
    open_run(&r);
    const mezzo_program_options bf16 = {.precision = MEZZO_PRECISION_BF16, .loss_weight = 1};
    must(mezzo_params_create_as(r.device, r.graph, &bf16, 7, MEZZO_MASTER_FP32, &params));
    assert_true(r.params->low_copy_elements < params->low_copy_elements);
    for (int i = 0; i < 2; i++) {
        mezzo_program *program;
        must(mezzo_program_create(r.graph, i == 0 ? r.params : params, &bf16, &program));
        must(fixture_fill(&filled, program, 5));
        must(mezzo_program_run(program, NULL, 3, 0));
        must(mezzo_program_read(program, "loss", &loss[i], sizeof loss[i]));
        mezzo_program_free(program);
    }
    assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
    mezzo_params_free(params);
    close_run(&r);
}

// --- what a step quantizes in passes of its own
// ------------------------------------------------------------------------ A layer's, by entry, as docs/dev/CUDA.md
// lists them.
typedef struct pass {
    const char *entry;
    enum { ALONE, ACT, DACT } front; // of x; of an activation; of its derivative, with the activation's turned codes
} pass;

// x and dy of products; weights are quantized by the update. All but an activation's result are turned for backward.
static const pass gpt2_passes[] = {{"attn.c_attn.x", ALONE},  {"attn.c_proj.x", ALONE}, {"mlp.c_fc.x", ALONE},
                                   {"mlp.c_proj.x", ACT},     {"mlp.c_proj.dy", ALONE}, {"mlp.c_fc.dy", DACT},
                                   {"attn.c_proj.dy", ALONE}, {"attn.c_attn.dy", ALONE}};
static const pass cs336_passes[] = {{"attn.qkv_proj.x", ALONE},     {"attn.output_proj.x", ALONE},
                                    {"ffn.w13.x", ALONE},           {"ffn.w2.x", ACT},
                                    {"ffn.w2.dy", ALONE},           {"ffn.w13.dy", DACT},
                                    {"attn.output_proj.dy", ALONE}, {"attn.qkv_proj.dy", ALONE}};
static const pass glm4_moe_passes[] = {{"self_attn.qkv_proj.x", ALONE},
                                       {"self_attn.o_proj.x", ALONE},
                                       {"mlp.shared_experts.gate_up_proj.x", ALONE},
                                       {"mlp.shared_experts.down_proj.x", ACT},
                                       {"mlp.shared_experts.down_proj.dy", ALONE},
                                       {"mlp.shared_experts.gate_up_proj.dy", DACT},
                                       {"mlp.experts.x", ALONE},
                                       {"mlp.experts.x#2", ACT},
                                       {"mlp.experts.dy", ALONE},
                                       {"mlp.experts.dy#2", DACT},
                                       {"self_attn.o_proj.dy", ALONE},
                                       {"self_attn.qkv_proj.dy", ALONE}};

static bool has_output(const mz_node *n, int slot) {
    return n->n_out > slot && n->out[slot] >= 0;
}

static void check_pass(const char *model, const mezzo_graph *g, const mz_node *n, const pass *want, size_t count) {
    const char *entry = g->values[n->out[MZ_OUT(quantize, scales)]].name, *in_layer = strstr(entry, ".1.");
    const bool acts = n->attrs.act != MZ_ACT_NONE, columnwise = has_output(n, MZ_OUT(quantize, columnwise)),
               act_out = has_output(n, MZ_OUT(quantize, act_out));
    for (size_t k = 0; k < count; k++)
        if (in_layer != NULL && strcmp(in_layer + 3, want[k].entry) == 0 && acts == (want[k].front != ALONE) &&
            columnwise == (want[k].front != ACT) && act_out == (want[k].front == DACT))
            return;
    fail_msg("%s: %s is quantized in a pass of its own: an activation %d, turned %d, beside a slope %d", model, entry,
             acts, columnwise, act_out);
}

static void check_passes(const char *model, const pass *want, size_t count) {
    mezzo_model_config c;
    mezzo_graph *graph;
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *program;
    size_t found = 0;
    must(mezzo_model_defaults(model, &c));
    c.layers = 3, c.heads = 2, c.d_model = 64, c.d_ff = 128, c.vocab = VOCAB, c.seq_len = LENGTH, c.dropout = 0;
    must(mezzo_device_open(test_device(), 2, &device));
    must(mezzo_graph_create(&graph));
    must(mezzo_model_build(graph, &c, BATCH, LENGTH, false));
    const mezzo_program_options options = {.precision = MEZZO_PRECISION_FP8, .loss_weight = 1};
    must(mezzo_params_create_as(device, graph, &options, 7, MEZZO_MASTER_FP32, &params));
    must(mezzo_program_create(graph, params, &options, &program));
    for (size_t i = 0; i < program->c.n_calls; i++) {
        const mz_node *n = &program->c.graph->nodes[program->c.node[i]];
        for (int k = 0; k < n->n_in; k++) // written before it is read
            if (n->in[k] >= 0 && program->c.graph->values[n->in[k]].kind == MZ_VALUE_TEMP)
                assert_true(program->c.graph->values[n->in[k]].producer < program->c.node[i]);
        if (n->op != MZ_OP_quantize)
            continue;
        check_pass(model, program->c.graph, n, want, count);
        found++;
    }
    assert_int_equal(found, count);
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(graph);
    mezzo_device_close(device);
}

TEST(a_layers_passes_are_those_listed) {
    check_passes("gpt2", gpt2_passes, MZ_COUNT(gpt2_passes));
    check_passes("cs336", cs336_passes, MZ_COUNT(cs336_passes));
    check_passes("glm4_moe", glm4_moe_passes, MZ_COUNT(glm4_moe_passes));
}
