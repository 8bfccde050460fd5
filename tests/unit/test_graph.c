// The builder: shapes, names, and errors that name the op, the values and both shapes.
#include <math.h>

#include "runtime/passes.h"
#include "test.h"

#define SHAPE(...)                                                                                                     \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) {                                           \
        __VA_ARGS__                                                                                                    \
    }
static const mezzo_init zero = {MEZZO_INIT_ZERO, 0};

static mezzo_graph *new_graph(void) {
    mezzo_graph *g;
    assert_int_equal(mezzo_graph_create(&g), MEZZO_OK);
    return g;
}

// The graph failed, and its message holds each of the words.
static void expect_error(mezzo_graph *g, const char *const *words) {
    assert_int_equal(mezzo_graph_status(g), MEZZO_ERR_INVALID);
    for (; *words; ++words)
        if (!strstr(mezzo_error_message(), *words))
            fail_msg("no '%s' in: %s", *words, mezzo_error_message());
    mezzo_graph_free(g);
}
#define EXPECT_ERROR(g, ...) expect_error((g), (const char *const[]){__VA_ARGS__, NULL})

TEST(shapes_follow_the_ops) {
    mezzo_graph *g = new_graph();
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, SHAPE(2, 3, 8));
    mezzo_value w = mezzo_param(g, "w", zero, SHAPE(12, 8));
    mezzo_value y = mezzo_linear(g, x, w, MEZZO_NONE);
    assert_int_equal(mezzo_value_dim(g, y, -1), 12);
    mezzo_value parts[3];
    assert_int_equal(mezzo_split(g, y, -1, 3, parts), MEZZO_OK);
    assert_int_equal(mezzo_value_dim(g, parts[2], 2), 4);
    mezzo_value back = mezzo_concat(g, parts, 3, 2);
    assert_int_equal(mezzo_value_dim(g, back, 2), 12);
    mezzo_value flat = mezzo_reshape(g, back, SHAPE(-1, 12));
    assert_int_equal(mezzo_value_dim(g, flat, 0), 6);
    mezzo_value scores = mezzo_matmul(g, x, x, false, true);
    assert_int_equal(mezzo_value_dim(g, scores, 2), 3);
    mezzo_value reduced = mezzo_sum(g, x, 1);
    assert_int_equal(mezzo_value_rank(g, reduced), 2);
    assert_int_equal(mezzo_value_dim(g, reduced, 1), 8);
    assert_int_equal(mezzo_value_rank(g, mezzo_mean(g, x, -1)), 1);
    assert_int_equal(mezzo_value_dim(g, mezzo_attention_qkv(g, y, 2, 0), 2), 4);
    assert_int_equal(mezzo_graph_status(g), MEZZO_OK);
    mezzo_graph_free(g);
}

static void expect_shape(const mezzo_graph *g, mezzo_value v, int rank, const int64_t *shape) {
    assert_int_equal(mezzo_value_rank(g, v), rank);
    for (int i = 0; i < rank; i++)
        assert_int_equal(mezzo_value_dim(g, v, i), shape[i]);
}

TEST(pieces_orders_and_repeats_have_their_shapes) {
    mezzo_graph *g = new_graph();
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, SHAPE(2, 3, 8)),
                column = mezzo_input(g, "c", MEZZO_F32, SHAPE(3, 1));
    expect_shape(g, mezzo_sub(g, column, x), SHAPE(2, 3, 8));
    expect_shape(g, mezzo_add(g, x, column), SHAPE(2, 3, 8));
    expect_shape(g, mezzo_mul(g, column, mezzo_input(g, "row", MEZZO_F32, SHAPE(5))), SHAPE(3, 5));
    expect_shape(g, mezzo_slice(g, x, -1, 2, -1), SHAPE(2, 3, 5));
    expect_shape(g, mezzo_permute(g, x, (const int[]){-1, 0, 1}), SHAPE(8, 2, 3));
    expect_shape(g, mezzo_transpose(g, x, 0, -1), SHAPE(8, 3, 2));
    expect_shape(g, mezzo_mse(g, x, x), SHAPE(1));
    mezzo_value six = mezzo_reshape(g, x, SHAPE(2, 1, 3, 2, 2, 2));
    expect_shape(g, mezzo_permute(g, six, (const int[]){5, 4, 3, 2, 1, 0}), SHAPE(2, 2, 2, 3, 1, 2));
    mezzo_value keys = mezzo_input(g, "keys", MEZZO_F32, SHAPE(2, 7, 4));
    expect_shape(g, mezzo_attention_full(g, x, keys, keys, 4, 2, 0), SHAPE(2, 3, 8));
    mezzo_value ids = mezzo_input(g, "ids", MEZZO_I32, SHAPE(2, 3)), transposed = mezzo_transpose(g, ids, 0, 1);
    assert_int_equal(g->values[transposed.id].dtype, MEZZO_I32);
    assert_int_equal(mezzo_graph_status(g), MEZZO_OK);
    mezzo_graph_free(g);
}

TEST(a_wrong_shape_names_op_values_and_shapes) {
    mezzo_graph *g = new_graph();
    mezzo_module_begin(g, "h");
    mezzo_module_begin(g, "0");
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, SHAPE(2, 7));
    mezzo_value w = mezzo_param(g, "fc.weight", zero, SHAPE(12, 8));
    mezzo_value y = mezzo_linear(g, x, w, MEZZO_NONE);
    assert_int_equal(y.id, -1);
    mezzo_value z = mezzo_relu(g, y); // later calls do nothing
    assert_int_equal(z.id, -1);
    EXPECT_ERROR(g, "linear", "h.0", "x", "2x7", "fc.weight", "12x8");
}

TEST(every_builder_mistake_is_named) {
    mezzo_graph *g = new_graph();
    mezzo_input(g, "x", MEZZO_F32, SHAPE(4));
    mezzo_input(g, "x", MEZZO_F32, SHAPE(4));
    EXPECT_ERROR(g, "x is taken");
    g = new_graph();
    mezzo_add(g, mezzo_input(g, "a", MEZZO_F32, SHAPE(4, 3)), mezzo_input(g, "b", MEZZO_F32, SHAPE(4)));
    EXPECT_ERROR(g, "add", "4x3", "b (b, shape 4)");
    g = new_graph();
    mezzo_permute(g, mezzo_input(g, "a", MEZZO_F32, SHAPE(4, 3)), (const int[]){1, -1});
    EXPECT_ERROR(g, "permute", "4x3", "once");
    g = new_graph();
    mezzo_transpose(g, mezzo_input(g, "a", MEZZO_F32, SHAPE(4, 3)), 0, 2);
    EXPECT_ERROR(g, "transpose", "0 and 2", "2 dimensions");
    g = new_graph();
    mezzo_slice(g, mezzo_input(g, "a", MEZZO_F32, SHAPE(4, 3)), 1, 2, 4);
    EXPECT_ERROR(g, "slice", "4x3", "begin and end");
    g = new_graph();
    mezzo_slice(g, mezzo_input(g, "a", MEZZO_F32, SHAPE(4, 3)), 2, 0, 1);
    EXPECT_ERROR(g, "slice", "4x3", "no such axis");
    g = new_graph();
    mezzo_mse(g, mezzo_input(g, "a", MEZZO_F32, SHAPE(4, 3)), mezzo_input(g, "b", MEZZO_F32, SHAPE(3)));
    EXPECT_ERROR(g, "mse", "4x3", "target (b, shape 3)");
    g = new_graph();
    mezzo_attention_full(g, mezzo_input(g, "a", MEZZO_F32, SHAPE(1, 4, 12)), MEZZO_NONE, MEZZO_NONE, 4, 2, 0);
    EXPECT_ERROR(g, "attention", "as many heads");
    g = new_graph();
    mezzo_attention(g, mezzo_input(g, "a", MEZZO_F32, SHAPE(1, 4, 12)), MEZZO_NONE, MEZZO_NONE, 4, 4, 0);
    EXPECT_ERROR(g, "attention", "k and v are missing");
    g = new_graph();
    mezzo_reshape(g, mezzo_input(g, "a", MEZZO_F32, SHAPE(4, 3)), SHAPE(5, -1));
    EXPECT_ERROR(g, "reshape", "4x3", "12");
    g = new_graph();
    mezzo_dropout(g, mezzo_input(g, "a", MEZZO_F32, SHAPE(4)), 1.0f);
    EXPECT_ERROR(g, "dropout", "1");
    g = new_graph();
    mezzo_attention_qkv(g, mezzo_input(g, "a", MEZZO_F32, SHAPE(1, 4, 10)), 3, 0);
    EXPECT_ERROR(g, "attention", "1x4x10", "3 x heads");
    g = new_graph();
    mezzo_relu(g, mezzo_input(g, "ids", MEZZO_I32, SHAPE(4)));
    EXPECT_ERROR(g, "relu", "ids", "integers");
    g = new_graph();
    mezzo_embedding(g, mezzo_param(g, "t", zero, SHAPE(4, 2)), mezzo_input(g, "x", MEZZO_F32, SHAPE(4)));
    EXPECT_ERROR(g, "embedding", "integers");
    g = new_graph();
    mezzo_cross_entropy(g, mezzo_input(g, "l", MEZZO_F32, SHAPE(4, 5)), mezzo_input(g, "t", MEZZO_I32, SHAPE(5)), -1);
    EXPECT_ERROR(g, "cross_entropy", "4x5", "(t, shape 5)");
    g = new_graph();
    mezzo_graph_loss(g, mezzo_input(g, "x", MEZZO_F32, SHAPE(4)));
    EXPECT_ERROR(g, "one number", "4");
    g = new_graph();
    mezzo_module_end(g);
    EXPECT_ERROR(g, "mezzo_module_end");
    g = new_graph();
    mezzo_param(g, "p", zero, SHAPE(1 << 30, 1 << 30, 1 << 30));
    EXPECT_ERROR(g, "p", "dimension 1");
    g = new_graph();
    mezzo_linear(g, mezzo_input(g, "x", MEZZO_F32, SHAPE(4)), MEZZO_NONE, MEZZO_NONE);
    EXPECT_ERROR(g, "linear", "w is missing");
}

// One way to ask for what attention does not do.
static void expect_no_attention(const mezzo_attention_form *form, int64_t keys, const char *why) {
    mezzo_graph *g = new_graph();
    mezzo_value q = mezzo_input(g, "q", MEZZO_F32, SHAPE(2, 4, 12)),
                k = mezzo_input(g, "k", MEZZO_F32, SHAPE(2, keys, 12));
    assert_int_equal(mezzo_attention_of(g, q, k, k, form).id, -1);
    EXPECT_ERROR(g, "attention", why);
}

TEST(windows_caps_and_documents_have_their_bounds) {
    expect_no_attention(&(mezzo_attention_form){.heads = -1}, 4, "-1 heads");
    expect_no_attention(&(mezzo_attention_form){.heads = 3, .window = -1}, 4, "window of -1");
    expect_no_attention(&(mezzo_attention_form){.heads = 3, .window = INT64_C(1) << 32}, 4, "window of 4294967296");
    expect_no_attention(&(mezzo_attention_form){.heads = 3, .score_cap = -2}, 4, "score_cap -2");
    expect_no_attention(&(mezzo_attention_form){.heads = 3, .score_cap = NAN}, 4, "finite");
    expect_no_attention(&(mezzo_attention_form){.heads = 3, .scale = INFINITY}, 4, "scale inf");
    expect_no_attention(&(mezzo_attention_form){.heads = 3, .window = 2, .full = true}, 4, "a window is of causal");
    expect_no_attention(&(mezzo_attention_form){.heads = 3, .window = 2}, 5, "as many keys as queries");
    assert_int_equal(mezzo_attention_of(NULL, (mezzo_value){0}, MEZZO_NONE, MEZZO_NONE, NULL).id, -1);
    mezzo_documents_begin(NULL, (mezzo_value){0});

    mezzo_graph *g = new_graph();
    mezzo_documents_begin(g, mezzo_input(g, "positions", MEZZO_I32, SHAPE(2, 5)));
    mezzo_attention_qkv(g, mezzo_input(g, "x", MEZZO_F32, SHAPE(2, 4, 12)), 2, 0);
    EXPECT_ERROR(g, "attention", "a position for each token", "2x5");
    g = new_graph();
    mezzo_documents_begin(g, mezzo_input(g, "positions", MEZZO_I32, SHAPE(8)));
    EXPECT_ERROR(g, "[batch, time]");
    g = new_graph();
    mezzo_documents_begin(g, mezzo_input(g, "positions", MEZZO_I32, SHAPE(2, 4)));
    mezzo_cache_begin(g, 8);
    EXPECT_ERROR(g, "documents keeps no caches");
    g = new_graph();
    mezzo_cache_begin(g, 8);
    mezzo_documents_begin(g, mezzo_input(g, "positions", MEZZO_I32, SHAPE(2, 4)));
    EXPECT_ERROR(g, "caches has one document");
    g = new_graph(); // a row of the table for each token of each row; attention that is not causal has no documents
    mezzo_documents_begin(g, mezzo_input(g, "positions", MEZZO_I32, SHAPE(2, 4)));
    expect_shape(g, mezzo_positions(g, 4), SHAPE(2, 4));
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, SHAPE(2, 4, 12)), table = mezzo_rope_table(g, MEZZO_NONE, 4, 4, 100);
    expect_shape(g, table, SHAPE(8, 4));
    expect_shape(g, mezzo_rope(g, x, table, 3, 2, false), SHAPE(2, 4, 12));
    expect_shape(g, mezzo_attention_full(g, x, x, x, 3, 3, 0), SHAPE(2, 4, 12));
    assert_int_equal(mezzo_graph_status(g), MEZZO_OK);
    mezzo_graph_free(g);
}

TEST(open_scopes_are_refused) {
    mezzo_graph *g = new_graph(), *out;
    mezzo_program_options options = {0};
    mezzo_module_begin(g, "m");
    must_fail(mz_passes(g, &(mz_target){.options = &options}, "autocast", &out), MEZZO_ERR_INVALID, "open module");
    mezzo_module_end(g);
    mezzo_autocast_begin(g, MEZZO_PRECISION_BF16);
    must_fail(mz_passes(g, &(mz_target){.options = &options}, "autocast", &out), MEZZO_ERR_INVALID, "autocast region");
    mezzo_graph_free(g);
}

// Every allocation of building and of every pass fails in turn: an error, no crash, nothing leaked (the sanitizers
// look).
static mezzo_status build_and_pass(void) {
    mezzo_graph *g = NULL, *out = NULL;
    mezzo_status status = mezzo_graph_create(&g);
    if (status != MEZZO_OK)
        return status;
    mezzo_recompute_begin(g);
    mezzo_module_begin(g, "m");
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, SHAPE(2, 8));
    mezzo_value w = mezzo_param(g, "w", zero, SHAPE(8, 8));
    mezzo_value h = mezzo_gelu(g, mezzo_linear(g, x, w, MEZZO_NONE), true);
    mezzo_value n = mezzo_layernorm(g, mezzo_add(g, x, h), mezzo_param(g, "g", zero, SHAPE(8)), MEZZO_NONE, 1e-5f);
    mezzo_module_end(g);
    mezzo_recompute_end(g);
    mezzo_graph_loss(g, mezzo_mean(g, mezzo_linear(g, n, w, MEZZO_NONE), -1));
    mezzo_program_options options = {.precision = MEZZO_PRECISION_BF16, .recompute = true};
    status = mz_passes(g, &(mz_target){.options = &options}, "fuse", &out);
    if (status == MEZZO_OK) {
        mz_plan plan;
        status = mz_graph_plan(out, NULL, NULL, &plan);
        if (status == MEZZO_OK)
            mz_plan_free(&plan);
    }
    mezzo_graph_free(out);
    mezzo_graph_free(g);
    return status;
}

TEST(any_allocation_may_fail) {
    assert_int_equal(build_and_pass(), MEZZO_OK);
    int failures = 0;
    for (int n = 0;; ++n) {
        mz_alloc_fail_after(n);
        mezzo_status status = build_and_pass();
        mz_alloc_fail_after(-1);
        if (status == MEZZO_OK)
            break;
        assert_int_equal(status, MEZZO_ERR_MEMORY);
        ++failures;
    }
    assert_true(failures > 20);
}
