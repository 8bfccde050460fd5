// Models: the published sizes, the names other programs know, starts, and what is refused.
#include "model_cases.h"
#include "test.h"

// Hugging Face's gpt2, gpt2-medium, gpt2-large, gpt2-xl have exactly these counts; a missing bias or an untied head
// would show.
TEST(named_sizes_have_the_published_parameter_counts) {
    static const struct {
        const char *name;
        int64_t count;
    } rows[] = {{"gpt2", 124439808},      {"gpt2-124M", 124439808},   {"gpt2-355M", 354823168},
                {"gpt2-774M", 774030080}, {"gpt2-1558M", 1557611200}, {"toy", 5 * 10 + 10 + 10 + 10 * 3}};
    for (size_t i = 0; i < MZ_COUNT(rows); i++)
        assert_int_equal(count_parameters(rows[i].name), rows[i].count);
}

TEST(gpt2_has_hugging_faces_names_and_shapes) {
    mezzo_model_config config = defaults("gpt2");
    config.layers = 2, config.heads = 2, config.d_model = 8, config.vocab = 11, config.seq_len = 6;
    mezzo_graph *g = build(&config, 3, 4);
    static const named_shape rows[] = {
        {"wte.weight", {2, {11, 8}}},
        {"wpe.weight", {2, {6, 8}}},
        {"h.0.ln_1.weight", {1, {8}}},
        {"h.0.ln_1.bias", {1, {8}}},
        {"h.0.attn.c_attn.weight", {2, {24, 8}}},
        {"h.0.attn.c_attn.bias", {1, {24}}},
        {"h.0.attn.c_proj.weight", {2, {8, 8}}},
        {"h.0.attn.c_proj.bias", {1, {8}}},
        {"h.0.ln_2.weight", {1, {8}}},
        {"h.0.ln_2.bias", {1, {8}}},
        {"h.0.mlp.c_fc.weight", {2, {32, 8}}},
        {"h.0.mlp.c_fc.bias", {1, {32}}},
        {"h.0.mlp.c_proj.weight", {2, {8, 32}}},
        {"h.0.mlp.c_proj.bias", {1, {8}}},
        {"h.1.mlp.c_proj.weight", {2, {8, 32}}},
        {"ln_f.weight", {1, {8}}},
        {"ln_f.bias", {1, {8}}},
    };
    expect_shapes(g, rows, MZ_COUNT(rows));
    assert_int_equal(g->n_params, 2 + 2 * 12 + 2); // and nothing else: the head is wte
    mezzo_graph_free(g);

    config.bias = false;
    g = build(&config, 3, 4);
    assert_int_equal(g->n_params, 2 + 2 * 6 + 1);
    assert_null(find_param(g, "h.0.attn.c_attn.bias"));
    mezzo_graph_free(g);
}

// A precision override addresses ops by these paths.
TEST(ops_belong_to_the_modules_their_parameters_are_named_after) {
    mezzo_model_config config = defaults("gpt2");
    config.layers = 1, config.heads = 2, config.d_model = 8, config.vocab = 11, config.seq_len = 6;
    mezzo_graph *g = build(&config, 1, 6);
    static const struct {
        const char *module;
        mz_op op;
    } rows[] = {
        {"wte", MZ_OP_embedding},      {"h.0.ln_1", MZ_OP_layernorm},     {"h.0.attn.c_attn", MZ_OP_linear},
        {"h.0.attn", MZ_OP_attention}, {"h.0.attn.c_proj", MZ_OP_linear}, {"h.0.mlp.c_fc", MZ_OP_linear},
        {"h.0.mlp.act", MZ_OP_gelu},   {"h.0.mlp.c_proj", MZ_OP_linear},  {"ln_f", MZ_OP_layernorm},
        {"lm_head", MZ_OP_linear},     {"loss", MZ_OP_cross_entropy},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        size_t found = 0;
        for (size_t n = 0; n < g->n_nodes; n++)
            found += g->nodes[n].op == rows[i].op && strcmp(g->modules[g->nodes[n].module], rows[i].module) == 0;
        if (found != 1)
            fail_msg("%s in module %s: %zu times", mz_op_table[rows[i].op].name, rows[i].module, found);
    }
    // Each block is one segment: only what lies inside "h.0" is evaluated again.
    for (size_t n = 0; n < g->n_nodes; n++)
        assert_int_equal(g->nodes[n].segment >= 0, strncmp(g->modules[g->nodes[n].module], "h.0", 3) == 0);
    mezzo_graph_free(g);
}

TEST(starts_are_gpt2s) {
    mezzo_model_config config = defaults("gpt2");
    config.layers = 8, config.heads = 2, config.d_model = 8, config.vocab = 11, config.seq_len = 6;
    mezzo_graph *g = build(&config, 1, 6);
    for (size_t i = 0; i < g->n_params; i++) {
        const mz_param_spec *p = &g->params[i];
        const size_t n = strlen(p->name);
        const bool residual = strstr(p->name, "c_proj.weight") != NULL;
        if (n > 5 && strcmp(p->name + n - 5, ".bias") == 0) {
            assert_int_equal(p->init.kind, MEZZO_INIT_ZERO);
        } else if (p->shape.rank == 1) { // a norm's scale
            assert_int_equal(p->init.kind, MEZZO_INIT_CONSTANT);
            assert_float_equal(p->init.a, 1, 0);
        } else { // 8 layers: 0.02/√16 = 0.005 where a branch ends in the residual stream
            assert_int_equal(p->init.kind, MEZZO_INIT_NORMAL);
            assert_float_equal(p->init.a, (residual ? 0.005F : 0.02F), 1e-8F);
        }
    }
    mezzo_graph_free(g);

    config = defaults("toy");
    g = build(&config, 4, 1);
    assert_int_equal(param(g, "fc1.weight")->init.kind, MEZZO_INIT_UNIFORM);
    assert_float_equal(param(g, "fc1.weight")->init.a, 1 / sqrtf(5), 1e-7F);
    assert_float_equal(param(g, "fc2.weight")->init.a, 1 / sqrtf(10), 1e-7F);
    mezzo_graph_free(g);
}

// Dropout sits on the embeddings, inside attention and on both branches of each block; without it no op is left behind.
TEST(dropout_is_where_gpt2_has_it) {
    mezzo_model_config config = defaults("gpt2");
    config.layers = 3, config.heads = 2, config.d_model = 8, config.vocab = 11, config.seq_len = 6;
    for (int on = 0; on < 2; on++) {
        config.dropout = on ? 0.25 : 0;
        mezzo_graph *g = build(&config, 1, 6);
        size_t dropouts = 0;
        for (size_t n = 0; n < g->n_nodes; n++) {
            dropouts += g->nodes[n].op == MZ_OP_dropout;
            if (g->nodes[n].op == MZ_OP_attention)
                assert_float_equal(g->nodes[n].attrs.p, (float)config.dropout, 0);
        }
        assert_int_equal(dropouts, on ? 1 + 2 * 3 : 0);
        mezzo_graph_free(g);
    }
}

TEST(wrong_sizes_are_refused_by_key_and_number) {
    const mezzo_model_config good = defaults("gpt2");
    assert_int_equal(mezzo_model_check(&good), MEZZO_OK);
    mezzo_model_config c;
    c = good, c.heads = 5, refused(&c, "model.heads (5)", "model.d_model (768)");
    c = good, c.heads = 0, refused(&c, "model.heads", "0");
    c = good, c.layers = 0, refused(&c, "model.layers", "0");
    c = good, c.layers = -3, refused(&c, "model.layers", "-3");
    c = good, c.d_model = INT64_MAX, refused(&c, "model.d_model", "9223372036854775807");
    c = good, c.d_ff = -1, refused(&c, "model.d_ff", "-1");
    c = good, c.vocab = 0, refused(&c, "model.vocab", "0");
    c = good, c.vocab = INT64_C(1) << 31, refused(&c, "model.vocab", "2147483648");
    c = good, c.seq_len = 0, refused(&c, "model.seq_len", "0");
    c = good, c.dropout = 1, refused(&c, "model.dropout", "1");
    c = good, c.dropout = (double)NAN, refused(&c, "model.dropout", "nan");
    c = defaults("toy"), c.d_model = 64, refused(&c, "model.d_model", "64");
    c = good, snprintf(c.name, sizeof c.name, "gtp2"), refused(&c, "gtp2", "gpt2");
}

TEST(names_are_found_and_near_misses_named) {
    mezzo_model_config config;
    assert_true(mezzo_model_count() >= 6);
    for (int i = 0; i < mezzo_model_count(); i++)
        assert_int_equal(mezzo_model_defaults(mezzo_model_name(i), &config), MEZZO_OK);
    assert_null(mezzo_model_name(-1));
    assert_null(mezzo_model_name(mezzo_model_count()));
    must_fail(mezzo_model_defaults("gpt2-124m", &config), MEZZO_ERR_INVALID, "gpt2-124M");
    assert_int_equal(mezzo_model_defaults("a model of another kind", &config), MEZZO_ERR_INVALID);
    assert_non_null(strstr(mezzo_error_message(), "gpt2-1558M")); // no near one: all are listed
}

TEST(sequences_longer_than_the_position_table_are_refused) {
    mezzo_model_config config = defaults("gpt2");
    config.seq_len = 16;
    mezzo_graph *g = NULL;
    assert_int_equal(mezzo_graph_create(&g), MEZZO_OK);
    must_fail(mezzo_model_build(g, &config, 1, 17, false), MEZZO_ERR_INVALID, "17", "16");
    assert_int_equal(mezzo_model_build(g, &config, 0, 16, false), MEZZO_ERR_INVALID);
    mezzo_graph_free(g);
}
