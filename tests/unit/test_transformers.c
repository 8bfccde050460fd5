// cs336, glm4_moe and the decoders of others: the published sizes, names, starts, which ops stay in FP32, what is
// refused.
#include "model_cases.h"
#include "runtime/passes.h"
#include "test.h"

// 2Vd + L(4d² + 3·d·d_ff + 2d) + d: the head is untied, there is no bias, and no position has a parameter.
TEST(cs336_has_the_assignments_parameter_counts) {
    static const struct {
        const char *name;
        int64_t count;
    } rows[] = {{"cs336", 128625408},
                {"cs336-small", 128625408},
                {"cs336-medium", 423183360},
                {"cs336-large", 969411840},
                {"cs336-xl", 1998235200},
                {"cs336-2.7B", 3406809600},
                {"cs336-xl-2026", 3406809600},
                {"cs336-10B", INT64_C(2) * 10000 * 4608 +
                                  50 * (INT64_C(4) * 4608 * 4608 + INT64_C(3) * 4608 * 12288 + 2 * 4608) + 4608}};
    for (size_t i = 0; i < MZ_COUNT(rows); i++)
        assert_int_equal(count_parameters(rows[i].name), rows[i].count);
}

// transformers' Glm4MoeForCausalLM with the study's configuration counts these; the router's correction bias, a buffer
// there, is 8 numbers in each of the blocks but the first.
TEST(glm4_moe_has_transformers_parameter_counts) {
    static const struct {
        const char *name;
        int64_t count;
        int layers;
    } rows[] = {{"glm4_moe-4x128", 9982080, 4},     {"glm4_moe-4x256", 23535872, 4},
                {"glm4_moe-4x512", 61358592, 4},    {"glm4_moe-8x128", 12018816, 8},
                {"glm4_moe-8x256", 31672576, 8},    {"glm4_moe-8x512", 93884928, 8},
                {"glm4_moe-12x128", 14055552, 12},  {"glm4_moe-12x256", 39809280, 12},
                {"glm4_moe-12x512", 126411264, 12}, {"glm4_moe", 23535872, 4}};
    for (size_t i = 0; i < MZ_COUNT(rows); i++)
        assert_int_equal(count_parameters(rows[i].name), rows[i].count + 8 * (rows[i].layers - 1));
}

// What Hugging Face shows as the number of parameters of the published models.
TEST(published_models_have_their_parameter_counts) {
    static const struct {
        const char *name;
        int64_t count;
    } rows[] = {{"smollm2-135M", INT64_C(134515008)},
                {"smollm2-360M", INT64_C(361821120)},
                {"smollm2-1.7B", INT64_C(1711376384)},
                {"llama-3-8B", INT64_C(8030261248)},
                {"llama-3.2-1B", INT64_C(1235814400)},
                {"llama-3.2-3B", INT64_C(3212749824)},
                {"llama-3.1-8B", INT64_C(8030261248)},
                {"llama-3.1-70B", INT64_C(70553706496)},
                {"qwen2.5-0.5B", INT64_C(494032768)},
                {"qwen2.5-1.5B", INT64_C(1543714304)},
                {"qwen2.5-3B", INT64_C(3085938688)},
                {"qwen2.5-7B", INT64_C(7615616512)},
                {"qwen3-0.6B", INT64_C(596049920)},
                {"qwen3-1.7B", INT64_C(1720574976)},
                {"qwen3-4B", INT64_C(4022468096)},
                {"qwen3-8B", INT64_C(8190735360)},
                {"mistral-7B-v0.1", INT64_C(7241732096)},
                {"phi-3-mini", INT64_C(3821079552)},
                {"mistral-7B-v0.3", INT64_C(7248023552)},
                {"smollm3-3B", INT64_C(3075098624)},
                {"phi3", INT64_C(3821079552)},
                {"olmo2-1B", INT64_C(1484916736)},
                {"olmo2-7B", INT64_C(7298617344)},
                {"mixtral-8x7B", INT64_C(46702792704)},
                {"mixtral-8x22B", INT64_C(140630071296)},
                {"qwen3-30B-A3B", INT64_C(30532122624)},
                {"qwen3-235B-A22B", INT64_C(235093634560)},
                {"gemma-2B", INT64_C(2506172416)},
                {"gemma-7B", INT64_C(8537680896)},
                {"gemma-2-2B", INT64_C(2614341888)},
                {"gemma-2-9B", INT64_C(9241705984)},
                {"gemma-2-27B", INT64_C(27227128320)},
                {"gemma-3-270M", INT64_C(268098176)},
                {"gemma-3-1B", INT64_C(999885952)},
                {"gemma-3-4B", INT64_C(3880263168)},
                {"gemma-3-12B", INT64_C(11766034176)},
                {"pythia-70M", INT64_C(70426624)},
                {"pythia-160M", INT64_C(162322944)},
                {"pythia-410M", INT64_C(405334016)},
                {"pythia-1B", INT64_C(1011781632)},
                {"pythia-1.4B", INT64_C(1414647808)}};
    for (size_t i = 0; i < MZ_COUNT(rows); i++)
        assert_int_equal(count_parameters(rows[i].name), rows[i].count);
}

// As many as gpt2's formula says: V·d + T·d + L(12d² + 13d) + 2d.
TEST(gpt2_comes_in_cs336s_sizes) {
    static const struct {
        const char *name;
        int64_t d, layers;
    } rows[] = {{"gpt2-cs336-small", 768, 12},
                {"gpt2-cs336-medium", 1024, 24},
                {"gpt2-cs336-large", 1280, 36},
                {"gpt2-cs336-xl", 1600, 48},
                {"gpt2-cs336-2.7B", 2560, 32}};
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        int64_t d = rows[i].d;
        assert_int_equal(count_parameters(rows[i].name),
                         (10000 + 512) * d + rows[i].layers * (12 * d * d + 13 * d) + 2 * d);
    }
}

static mezzo_model_config small(const char *name) {
    mezzo_model_config config = defaults(name);
    config.layers = 2, config.heads = 4, config.d_model = 16, config.vocab = 11, config.seq_len = 6;
    return config;
}

TEST(parameters_have_the_names_other_programs_know) {
    mezzo_model_config config = small("cs336");
    config.layers = 1;
    mezzo_graph *g = build(&config, 3, 4);
    const named_shape cs336[] = {{"token_embeddings.weight", {2, {11, 16}}},
                                 {"layers.0.ln1.weight", {1, {16}}},
                                 {"layers.0.attn.qkv_proj.weight", {2, {48, 16}}},
                                 {"layers.0.attn.output_proj.weight", {2, {16, 16}}},
                                 {"layers.0.ln2.weight", {1, {16}}},
                                 {"layers.0.ffn.w13.weight", {2, {128, 16}}},
                                 {"layers.0.ffn.w2.weight", {2, {16, 64}}},
                                 {"ln_final.weight", {1, {16}}},
                                 {"lm_head.weight", {2, {11, 16}}}};
    assert_int_equal(g->n_params, MZ_COUNT(cs336));
    expect_shapes(g, cs336, MZ_COUNT(cs336));
    mezzo_graph_free(g);

    config = small("glm4_moe");
    config.kv_heads = 2, config.head_dim = 8, config.attention_bias = true, config.qk_norm = true;
    config.d_expert = 12, config.shared_experts = 2, config.d_ff = 20;
    g = build(&config, 3, 4);
    const named_shape glm[] = {{"embed_tokens.weight", {2, {11, 16}}},
                               {"layers.0.input_layernorm.weight", {1, {16}}},
                               {"layers.0.self_attn.qkv_proj.weight", {2, {64, 16}}}, // (4 + 2·2)·8
                               {"layers.0.self_attn.qkv_proj.bias", {1, {64}}},
                               {"layers.0.self_attn.q_norm.weight", {1, {8}}},
                               {"layers.0.self_attn.k_norm.weight", {1, {8}}},
                               {"layers.0.self_attn.o_proj.weight", {2, {16, 32}}},
                               {"layers.0.post_attention_layernorm.weight", {1, {16}}},
                               {"layers.0.mlp.gate_up_proj.weight", {2, {40, 16}}},
                               {"layers.0.mlp.down_proj.weight", {2, {16, 20}}},
                               {"layers.1.input_layernorm.weight", {1, {16}}},
                               {"layers.1.self_attn.qkv_proj.weight", {2, {64, 16}}},
                               {"layers.1.self_attn.qkv_proj.bias", {1, {64}}},
                               {"layers.1.self_attn.q_norm.weight", {1, {8}}},
                               {"layers.1.self_attn.k_norm.weight", {1, {8}}},
                               {"layers.1.self_attn.o_proj.weight", {2, {16, 32}}},
                               {"layers.1.post_attention_layernorm.weight", {1, {16}}},
                               {"layers.1.mlp.gate.weight", {2, {8, 16}}},
                               {"layers.1.mlp.gate.e_score_correction_bias", {1, {8}}},
                               {"layers.1.mlp.experts.gate_up_proj", {3, {8, 24, 16}}},
                               {"layers.1.mlp.experts.down_proj", {3, {8, 16, 12}}},
                               {"layers.1.mlp.shared_experts.gate_up_proj.weight", {2, {48, 16}}},
                               {"layers.1.mlp.shared_experts.down_proj.weight", {2, {16, 24}}},
                               {"norm.weight", {1, {16}}},
                               {"lm_head.weight", {2, {11, 16}}}};
    assert_int_equal(g->n_params, MZ_COUNT(glm));
    expect_shapes(g, glm, MZ_COUNT(glm));
    mezzo_graph_free(g);
}

// The assignment's starts: N(0, 2/(in + out)) and N(0, 1), cut at three deviations; none beyond, and not cut much
// earlier.
TEST(cs336_starts_as_the_assignment_says) {
    mezzo_model_config config = small("cs336");
    config.vocab = 4000;
    mezzo_graph *g = build(&config, 1, 4);
    mezzo_device *device;
    mezzo_params *params;
    assert_int_equal(mezzo_device_open("cpu", 1, &device), MEZZO_OK);
    assert_int_equal(mezzo_params_create(device, g, 7, &params), MEZZO_OK);
    static const struct {
        const char *name;
        double deviation;
    } rows[] = {{"token_embeddings.weight", 1},
                {"layers.0.attn.qkv_proj.weight", 0.25},          // √(2/32)
                {"layers.1.ffn.w13.weight", 0.15811388300841897}, // √(2/80)
                {"lm_head.weight", 0.022315626764540945}};        // √(2/4016)
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        static float values[64000];
        int index = mezzo_params_find(params, rows[i].name);
        const int64_t *shape = mezzo_params_shape(params, index);
        int64_t n = shape[0] * shape[1];
        double most = 0, squares = 0;
        assert_int_equal(mezzo_params_read(params, index, values), MEZZO_OK);
        for (int64_t k = 0; k < n; k++) {
            most = fmax(most, fabs((double)values[k]) / rows[i].deviation);
            squares += (double)values[k] * (double)values[k] / (rows[i].deviation * rows[i].deviation) / (double)n;
        }
        assert_true(most <= 3 && most > 2.2);
        // A normal number cut at 3 has variance 0.9733; of n of them the mean square is off by √(2/n), 4 times that at
        // most.
        assert_true(fabs(squares - 0.9733) < 4 * sqrt(2 / (double)n));
    }
    mezzo_params_free(params);
    mezzo_device_close(device);
    mezzo_graph_free(g);
}

// Whatever the precision: logits, scores, choice, and their gradients; a half-precision score would choose other
// experts.
TEST(the_router_is_fp32_in_every_precision) {
    static const mezzo_precision precisions[] = {MEZZO_PRECISION_BF16, MEZZO_PRECISION_FP16, MEZZO_PRECISION_TF32};
    mezzo_model_config config = small("glm4_moe");
    mezzo_graph *g = build(&config, 1, 4);
    for (size_t p = 0; p < MZ_COUNT(precisions); p++) {
        mezzo_graph *after = NULL;
        mezzo_program_options options = {.precision = precisions[p], .residual = MEZZO_RESIDUAL_LOW};
        int seen = 0;
        assert_int_equal(mz_passes(g, &(mz_target){.options = &options}, "fuse", &after), MEZZO_OK);
        for (size_t i = 0; i < after->n_nodes; i++) {
            const mz_node *n = &after->nodes[i];
            if (strcmp(after->modules[n->module], "layers.1.mlp.gate") != 0 ||
                (n->op != MZ_OP_linear && n->op != MZ_OP_route && n->op != MZ_OP_route_dx && n->op != MZ_OP_linear_dx))
                continue;
            seen++;
            assert_int_equal(n->numerics.compute, MEZZO_F32);
            assert_int_equal(after->values[n->out[0]].dtype, MEZZO_F32);
            for (int k = 0; k < n->n_in; k++)
                if (n->in[k] >= 0 && after->values[n->in[k]].dtype != MEZZO_I32)
                    assert_int_equal(after->values[n->in[k]].dtype, MEZZO_F32);
        }
        assert_int_equal(seen, 4);
        mezzo_graph_free(after);
    }
    mezzo_graph_free(g);
}

TEST(wrong_sizes_are_refused_by_key_and_number) {
    mezzo_model_config c = defaults("cs336");
    c.heads = 5, refused(&c, "model.heads (5)", "model.d_model (768)");
    c = defaults("cs336"), c.heads = 768, refused(&c, "model.heads (768)", "even");
    c = defaults("cs336"), c.dropout = 0.1, refused(&c, "model.dropout", "0.1");
    c = defaults("cs336"), c.rope_theta = 0, refused(&c, "model.rope_theta", "0");
    c = defaults("cs336"), c.norm_eps = -1, refused(&c, "model.norm_eps", "-1");
    const mezzo_model_config good = defaults("glm4_moe");
    assert_int_equal(mezzo_model_check(&good), MEZZO_OK);
    c = good, c.kv_heads = 3, refused(&c, "model.kv_heads (3)", "model.heads (8)");
    c = good, c.heads = 3, refused(&c, "model.heads (3)", "model.d_model (256)");
    c = good, c.rotary = 0, refused(&c, "model.rotary", "0");
    c = good, c.rotary = 1.5, refused(&c, "model.rotary", "1.5");
    c = good, c.rotary = 3.0 / 32, refused(&c, "model.rotary", "32"); // 3 dimensions
    c = good, c.dense_layers = 5, refused(&c, "model.dense_layers", "5");
    c = good, c.experts = 0, refused(&c, "model.experts", "0");
    c = good, c.experts_per_token = 9, refused(&c, "model.experts_per_token", "9");
    c = good, c.expert_groups = 3, refused(&c, "model.expert_groups (3)", "model.experts (8)");
    c = good, c.expert_groups = 8, refused(&c, "model.expert_groups (8)", "two or more");
    c = good, c.expert_groups = 4, c.expert_groups_used = 5, refused(&c, "model.expert_groups_used", "5");
    c = good, c.expert_groups = 4, c.experts_per_token = 3, refused(&c, "model.experts_per_token is 3", "2 experts");
    c = good, c.shared_experts = -1, refused(&c, "model.shared_experts", "-1");
    c = good, c.routed_scale = (double)NAN, refused(&c, "model.routed_scale", "nan");
}

// Every token passes as many experts as it should: of each layer's offsets the last is tokens × experts per token, and
// nothing is dropped.
TEST(no_token_is_dropped) {
    mezzo_model_config config = small("glm4_moe");
    config.layers = 19, config.experts = 4; // more layers than one concat takes
    mezzo_graph *g = build(&config, 2, 5);
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *program;
    int32_t tokens[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, offsets[18 * 5];
    assert_int_equal(mezzo_device_open("cpu", 1, &device), MEZZO_OK);
    assert_int_equal(mezzo_params_create(device, g, 3, &params), MEZZO_OK);
    assert_int_equal(mezzo_program_create(g, params, &(mezzo_program_options){.forward_only = true}, &program),
                     MEZZO_OK);
    assert_int_equal(mezzo_program_write(program, "tokens", tokens, sizeof tokens), MEZZO_OK);
    assert_int_equal(mezzo_program_write(program, "targets", tokens, sizeof tokens), MEZZO_OK);
    assert_int_equal(mezzo_program_run(program, NULL, 1, 0), MEZZO_OK);
    assert_int_equal(mezzo_program_read(program, "experts", offsets, sizeof offsets), MEZZO_OK);
    for (int layer = 0; layer < 18; layer++) {
        assert_int_equal(offsets[5 * layer], 0);
        assert_int_equal(offsets[5 * layer + 4], 20);
        for (int e = 0; e < 4; e++) // a token passes an expert once
            assert_in_range(offsets[5 * layer + e + 1] - offsets[5 * layer + e], 0, 10);
    }
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_device_close(device);
    mezzo_graph_free(g);
}
