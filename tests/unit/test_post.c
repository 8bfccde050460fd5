// Post-ops: every row names slots that its op may lack, a row takes what post.def says, and where a device's kernels
// refuse one, the node stays and the numbers are the same.
// Seen to fail with: an add that is taken at the wrong end of a list; a joint that is not kept for its other reader; a
// value that is not rounded between; a device that is not asked; a
// reader of an activation's result that is moved although it is no gradient of a weight.
#include <math.h>

#include "fixture.h"
#include "backend/backend.h"
#include "graph/graph.h"
#include "runtime/passes.h"
#include "runtime/program.h"

static bool may_lack(mz_op op, bool output, int slot) {
    return slot == 0 || mz_op_slot(op, output, slot).is & MZ_SLOT_OPTIONAL;
}

TEST(rows_name_slots_that_their_op_may_lack) {
    for (mz_post post = 0; post < MZ_POST_COUNT; post++) {
        const mz_post_info *p = &mz_post_table[post];
        if (p->op != MZ_OP_COUNT &&
            (!may_lack(p->op, false, p->with) || !may_lack(p->op, true, p->into) || !may_lack(p->op, true, p->keeps)))
            fail_msg("%s of %s: a slot that is always there", p->name, mz_op_table[p->op].name);
    }
}

// --- a device that refuses some post-ops ---------------------------------------------------------------------------
static const mz_backend *whole;
static mz_backend partial;
static uint64_t refused;

static mz_takes takes(const mz_kernel *kernel) {
    mz_takes t = whole->takes(kernel);
    t.refuses |= refused;
    return t;
}

static mezzo_device *open_partial(void) {
    mezzo_device *device;
    must(mezzo_device_open("ref", 1, &device));
    whole = device->backend;
    partial = *whole;
    partial.takes = takes;
    device->backend = &partial;
    return device;
}

typedef struct result {
    float loss, *gradients;
    size_t n;
    uint64_t posts; // of all nodes
} result;

static result run(const mezzo_model_config *c, const mezzo_program_options *o, uint64_t refuses) {
    result r = {0};
    mezzo_device *device = open_partial();
    mezzo_graph *g = fixture_graph(c, 2, c->seq_len, false);
    mezzo_params *params;
    mezzo_program *program;
    refused = refuses;
    must(mezzo_params_create(device, g, 7, &params));
    if (mezzo_program_create(g, params, o, &program) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    for (size_t i = 0; i < program->c.graph->n_nodes; i++)
        r.posts |= mz_node_posts(&program->c.graph->nodes[i]);
    must(fixture_batch(program, (int)(2 * c->seq_len), (int)c->vocab, 0));
    must(mezzo_program_run(program, NULL, 3, 11));
    must(mezzo_program_read(program, "loss", &r.loss, sizeof r.loss));
    r.gradients = calloc((size_t)mezzo_params_elements(params), sizeof *r.gradients);
    for (int i = 0; i < mezzo_params_count(params); i++) {
        size_t n = 1;
        for (int d = 0; d < mezzo_params_rank(params, i); d++)
            n *= (size_t)mezzo_params_shape(params, i)[d];
        must(mezzo_params_read_grad(params, i, r.gradients + r.n));
        r.n += n;
    }
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(g);
    mezzo_device_close(device);
    return r;
}

static void expect_near(const result *a, const result *b, double bound, const char *what) {
    double largest = 0, worst = 0;
    for (size_t i = 0; i < a->n; i++) {
        largest = fmax(largest, fabs((double)a->gradients[i]));
        worst = fmax(worst, fabs((double)a->gradients[i] - (double)b->gradients[i]));
    }
    if (!(worst <= bound * largest))
        fail_msg("%s: gradients differ by %g of the largest, and may by %g", what, worst / largest, bound);
}

// Without a row the separate op rounds its input. An after row without .rounds in backward rounds once, at the end: its
// gradients may differ by a rounding of the format they are stored in, as unit/test_passes derives for FP32 and 16
// bits.
static bool rounds_once(const mz_post_info *p) {
    return !p->before && !p->rounds && (p->kind == MZ_POST_ADD || p->kind == MZ_POST_ACT_DX);
}

static const struct {
    const char *model;
    mezzo_precision precision;
    double bound, dropout;
} programs[] = {{"gpt2", MEZZO_PRECISION_BF16, 4 * 7.8e-3, 0},
                {"gpt2", MEZZO_PRECISION_BF16, 4 * 7.8e-3, 0.1}, // a dropout stands between linear and add
                {"cs336", MEZZO_PRECISION_FP32, 4 * 1.2e-7, 0},
                {"glm4_moe", MEZZO_PRECISION_BF16, 4 * 7.8e-3, 0},
                {"gpt2", MEZZO_PRECISION_FP8, 0.25, 0}, // 4 roundings of E5M2's unit, 1/16
                {"cs336", MEZZO_PRECISION_FP8, 0.25, 0}};

TEST(a_refused_post_op_stays_a_node_and_changes_no_value) {
    uint64_t seen = 0;
    for (size_t m = 0; m < MZ_COUNT(programs); m++) {
        mezzo_model_config c = fixture_model(programs[m].model, 32, 64, 61, 16);
        c.dropout = programs[m].dropout;
        const mezzo_program_options o = {.precision = programs[m].precision};
        const result all = run(&c, &o, 0);
        for (mz_post post = 0; post < MZ_POST_COUNT; post++) {
            const mz_post_info *p = &mz_post_table[post];
            if ((all.posts & MZ_POST_BIT(post)) == 0 || post == MZ_POST_quantize_dbias) // autodiff adds this one
                continue;
            result r = run(&c, &o, MZ_POST_BIT(post));
            char what[96];
            snprintf(what, sizeof what, "%s without %s of %s", programs[m].model, p->name, mz_op_table[p->op].name);
            if (r.posts & MZ_POST_BIT(post))
                fail_msg("%s: it is still there", what);
            if (r.loss != all.loss)
                fail_msg("%s: the loss is %.9g, not %.9g", what, (double)r.loss, (double)all.loss);
            expect_near(&all, &r, rounds_once(p) ? programs[m].bound : 0, what);
            free(r.gradients);
        }
        seen |= all.posts;
        free(all.gradients);
    }
    for (mz_post post = 0; post < MZ_POST_COUNT; post++)
        if (mz_post_table[post].op != MZ_OP_COUNT && mz_post_table[post].kind != MZ_POST_STORE &&
            (seen & MZ_POST_BIT(post)) == 0)
            fail_msg("no program has %s of %s", mz_post_table[post].name, mz_op_table[mz_post_table[post].op].name);
}

// What is no longer a choice of the pass is refused by name when the kernel is asked.
TEST(a_kernel_refuses_a_call_with_such_a_post_op) {
    mezzo_device *device = open_partial();
    const mezzo_model_config c = fixture_model("gpt2", 32, 64, 61, 16);
    const mezzo_program_options o = {.precision = MEZZO_PRECISION_FP8};
    mezzo_graph *g = fixture_graph(&c, 2, c.seq_len, false);
    mezzo_params *params;
    mezzo_program *program;
    must(mezzo_params_create(device, g, 7, &params));
    refused = MZ_POST_BIT(MZ_POST_quantize_dbias);
    must_fail(mezzo_program_create(g, params, &o, &program), MEZZO_ERR_UNSUPPORTED, "does not serve such a post-op");
    refused = 0;
    must(mezzo_program_create(g, params, &o, &program));
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(g);
    mezzo_device_close(device);
}

// --- lists -----------------------------------------------------------------------------------------------------------
static void note(void *user, const mezzo_explain_row *row) {
    char *text = user;
    if (strcmp(row->op, "reshape") != 0 && strcmp(row->op, "cast") != 0)
        snprintf(text + strlen(text), 512 - strlen(text), "%s%s", *text ? " " : "", row->op);
}

// y = loss of f(x·Wᵀ), in FP32.
static void expect_list(mezzo_value (*f)(mezzo_graph *g, mezzo_value x, mezzo_value z), const char *expected) {
    const int64_t shape[] = {4, 8};
    char text[512] = "";
    mezzo_graph *g;
    must(mezzo_graph_create(&g));
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, shape);
    mezzo_value w = mezzo_param(g, "w", (mezzo_init){0}, 2, (const int64_t[]){8, 8});
    must(mezzo_graph_loss(g, mezzo_sum(g, f(g, x, mezzo_linear(g, x, w, MEZZO_NONE)), -1)));
    must(mezzo_graph_explain(g, &(mezzo_program_options){.forward_only = true}, "fuse", note, text));
    assert_string_equal(text, expected);
    mezzo_graph_free(g);
}

static mezzo_value act_then_add(mezzo_graph *g, mezzo_value x, mezzo_value z) {
    return mezzo_add(g, x, mezzo_silu(g, z));
}
static mezzo_value add_then_act(mezzo_graph *g, mezzo_value x, mezzo_value z) {
    return mezzo_silu(g, mezzo_add(g, z, x));
}
static mezzo_value two_adds(mezzo_graph *g, mezzo_value x, mezzo_value z) {
    return mezzo_add(g, mezzo_add(g, z, x), x);
}
static mezzo_value read_twice(mezzo_graph *g, mezzo_value x, mezzo_value z) {
    return mezzo_mul(g, mezzo_add(g, z, x), z);
}
static mezzo_value act_read_twice(mezzo_graph *g, mezzo_value x, mezzo_value z) {
    (void)x;
    return mezzo_mul(g, mezzo_silu(g, z), z);
}
static mezzo_value twice_itself(mezzo_graph *g, mezzo_value x, mezzo_value z) {
    (void)x;
    return mezzo_add(g, z, z);
}

TEST(lists_grow_in_the_order_of_the_rows) {
    expect_list(act_then_add, "linear+silu+residual sum");
    expect_list(add_then_act, "linear+residual silu sum"); // the activation's row stands before the residual's
    expect_list(two_adds, "linear+residual add sum");
    expect_list(read_twice, "linear add mul sum");      // no slot keeps x·Wᵀ
    expect_list(act_read_twice, "linear+silu mul sum"); // preact does
    expect_list(twice_itself, "linear add sum");
}

// --- order ---------------------------------------------------------------------------------------------------------
// One computed weight of two norms in a residual stream: its gradients are added before those of the stream.
static mezzo_graph *shared_weight(bool rms) {
    const int64_t shape[] = {4, 8};
    mezzo_graph *g;
    must(mezzo_graph_create(&g));
    const mezzo_init drawn = {.kind = MEZZO_INIT_NORMAL, .a = 1};
    const mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, shape);
    const mezzo_value gain = mezzo_param(g, "gain", drawn, 1, &shape[1]),
                      w = mezzo_param(g, "w", drawn, 2, (const int64_t[]){8, 8});
    const mezzo_value weight = mezzo_mul(g, gain, gain);
    mezzo_value h = mezzo_linear(g, x, w, MEZZO_NONE);
    for (int i = 0; i < 2; i++)
        h = mezzo_add(
            g, h,
            mezzo_tanh(g, rms ? mezzo_rmsnorm(g, h, weight, 1e-5F) : mezzo_layernorm(g, h, weight, MEZZO_NONE, 1e-5F)));
    must(mezzo_graph_loss(g, mezzo_sum(g, h, -1)));
    return g;
}

TEST(a_node_stays_before_the_readers_of_its_other_outputs) {
    for (int rms = 0; rms < 2; rms++) {
        mezzo_graph *g = shared_weight(rms), *out;
        must(mz_passes(g, &(mz_target){.options = &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32}}, "fuse",
                       &out));
        for (size_t i = 0; i < out->n_nodes; i++)
            for (int k = 0; k < out->nodes[i].n_in; k++) {
                const int v = out->nodes[i].in[k];
                if (v >= 0 && out->values[v].kind == MZ_VALUE_TEMP && out->values[v].producer >= (int)i)
                    fail_msg("%s: node %zu, %s, reads what node %d makes", rms ? "rmsnorm" : "layernorm", i,
                             mz_op_table[out->nodes[i].op].name, out->values[v].producer);
            }
        mezzo_graph_free(out);
        mezzo_graph_free(g);
    }
}

// --- act_out ---------------------------------------------------------------------------------------------------------
// Two activations in one segment: the repeated second layer reads the first one's result before backward writes it.
static void run_segment(bool recompute, float gradient[64]) {
    const int64_t shape[] = {4, 8};
    static const char *const names[] = {"a", "b", "c"};
    float numbers[32];
    mezzo_device *device;
    mezzo_graph *g;
    mezzo_params *params;
    mezzo_program *program;
    must(mezzo_device_open("ref", 1, &device));
    must(mezzo_graph_create(&g));
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, shape);
    mezzo_recompute_begin(g);
    for (int i = 0; i < 3; i++) {
        mezzo_value w = mezzo_param(g, names[i], (mezzo_init){MEZZO_INIT_NORMAL, 0.5F}, 2, (const int64_t[]){8, 8});
        x = mezzo_linear(g, i > 0 ? mezzo_silu(g, x) : x, w, MEZZO_NONE);
    }
    mezzo_recompute_end(g);
    must(mezzo_graph_loss(g, mezzo_sum(g, mezzo_mul(g, x, x), -1)));
    must(mezzo_params_create(device, g, 7, &params));
    must(mezzo_program_create(g, params, &(mezzo_program_options){.recompute = recompute}, &program));
    for (int i = 0; i < 32; i++)
        numbers[i] = (float)(i % 7) / 4 - 0.5F;
    must(mezzo_program_write(program, "x", numbers, sizeof numbers));
    must(mezzo_program_run(program, NULL, 3, 11));
    must(mezzo_params_read_grad(params, 0, gradient));
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(g);
    mezzo_device_close(device);
}

TEST(a_result_that_is_read_before_stays_where_it_is) {
    float kept[64], again[64];
    run_segment(false, kept);
    run_segment(true, again);
    assert_memory_equal(kept, again, sizeof kept);
}
