// Models that transformers saved (make/hf_gpt2.py, make/hf_rotary.py), imported from every form of file, give
// transformers' logits; exported again they have the same tensors, bit for bit.
//
// The logits may be off by 1e-5 of the largest: the terms of all sums on the longest path, for gpt2 2·(16·8 + 8 + 64 +
// 24) + 32 < 512 (see test_gpt2.c), make 3.1e-5 in the worst case, and rounding errors, whose signs are random, add up
// to the root of that. glm4_moe's path has three layers of 16 + 16 + 8 + 24 + 32 + 16 + 16 + 16 + 24 terms and 32: 536;
// llama's is shorter.
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "golden.h"
#include "io/file.h"
#include "mezzo/train.h"

// What the source is called ("hf_gpt2", then perhaps more) says the model.
static const struct model {
    const char *name, *ours;
    int64_t parameters;
} models[] = {{"hf_gpt2", "gpt2", 7952}, {"hf_glm4_moe", "glm4_moe", 15880}, {"hf_llama", "llama", 7920}};

static const struct model *model_of(const char *source) {
    for (size_t i = 0; i < MZ_COUNT(models); i++)
        if (strncmp(source, models[i].name, strlen(models[i].name)) == 0)
            return &models[i];
    fail_msg("no model %s", source);
    return NULL;
}

static const char *import_to(const char *source, const char *name, mezzo_model_config *model) {
    char path[4096];
    mezzo_import_result r;
    must(mz_dir_remove(name));
    must(mezzo_import(&(mezzo_import_options){.path = golden_path(source, path, sizeof path), .out = name}, &r));
    assert_int_equal(r.parameters, model_of(source)->parameters);
    assert_string_equal(r.model.name, model_of(source)->ours);
    assert_int_equal(r.model.seq_len, 24);
    if (model != NULL)
        *model = r.model;
    return name;
}

static void expect_logits(const char *source, const char *run, const mezzo_model_config *config, const char *device,
                          const char *stored) {
    mezzo_device *d;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    char path[4096], folder[64];
    snprintf(path, sizeof path, "%s_logits.safetensors", model_of(source)->name);
    mz_safetensors *file = golden_tensors(path);
    golden_values tokens = golden_get(file, "tokens"), want = golden_get(file, "%s", stored);
    int32_t *ids = golden_ints(&tokens);
    float *got = calloc(want.count, sizeof *got);
    must(mezzo_device_open(device, 2, &d));
    must(mezzo_graph_create(&graph));
    must(mezzo_model_build(graph, config, tokens.dim[0], tokens.dim[1], true));
    must(mezzo_params_create(d, graph, 1, &params));
    mezzo_checkpoint c = {.params = params};
    snprintf(folder, sizeof folder, "%s/checkpoints", run);
    must(mezzo_checkpoint_find(folder, false, path, sizeof path));
    must(mezzo_checkpoint_load(path, &c));
    must(mezzo_program_create(graph, params, &(mezzo_program_options){.forward_only = true}, &program));
    must(mezzo_program_write(program, "tokens", ids, tokens.count * sizeof *ids));
    must(mezzo_program_write(program, "targets", ids, tokens.count * sizeof *ids));
    must(mezzo_program_run(program, NULL, 0, 0));
    must(mezzo_program_read(program, "logits", got, want.count * sizeof *got));
    golden_close(run, got, &want, 1e-5 * golden_max(&want), 0);
    golden_would_notice(run, &want, 0.001, 1e-5 * golden_max(&want));
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(graph);
    mezzo_device_close(d);
    free(ids);
    free(got);
    golden_free(&tokens);
    golden_free(&want);
    mz_safetensors_close(file);
}

// The exported weights are those that transformers saved, rounded to `dtype` (and to `first` before, where the source
// was).
static void expect_tensors(const char *source, const char *run, mezzo_dtype dtype, mezzo_dtype first) {
    char path[4096];
    mezzo_export_result r;
    snprintf(path, sizeof path, "%s/model.safetensors", model_of(source)->name);
    mz_safetensors *ours, *theirs = golden_tensors(path);
    snprintf(path, sizeof path, "%s-exported", run);
    must(mz_dir_remove(path));
    must(mezzo_export(&(mezzo_export_options){.path = run, .out = path, .dtype = dtype}, &r));
    strcat(path, "/model.safetensors");
    must(mz_safetensors_open(path, &ours));
    assert_int_equal(mz_safetensors_count(ours), mz_safetensors_count(theirs));
    for (size_t i = 0; i < mz_safetensors_count(theirs); i++) {
        const mz_safetensors_tensor *want = mz_safetensors_at(theirs, i), *got;
        must(mz_safetensors_get(ours, want->name, &got));
        // The router's correction bias stays FP32, as it does in transformers.
        mezzo_dtype stored = strstr(want->name, "e_score_correction_bias") != NULL ? MEZZO_F32 : dtype;
        assert_int_equal(got->dtype, stored);
        assert_int_equal(got->rank, want->rank);
        assert_memory_equal(got->shape, want->shape, want->rank * sizeof *want->shape);
        unsigned char *low = calloc(want->count, 4), *bits = calloc(want->count, 4);
        float *wide = calloc(want->count, sizeof *wide);
        must(mezzo_convert(want->data, MEZZO_F32, low, first, want->count));
        must(mezzo_convert(low, first, wide, MEZZO_F32, want->count));
        must(mezzo_convert(wide, MEZZO_F32, bits, stored, want->count));
        assert_memory_equal(got->data, bits, got->bytes);
        free(low);
        free(bits);
        free(wide);
    }
    mz_safetensors_close(ours);
    mz_safetensors_close(theirs);
}

TEST(transformers_weights_give_transformers_logits) {
    for (size_t i = 0; i < MZ_COUNT(models); i++) {
        mezzo_model_config config;
        const char *source = models[i].name, *run = import_to(source, "plain", &config);
        expect_logits(source, run, &config, test_device(), "logits");
        expect_logits(source, run, &config, "ref", "logits");
        expect_tensors(source, run, MEZZO_F32, MEZZO_F32);
        expect_tensors(source, run, MEZZO_F16, MEZZO_F32);
    }
}

// Shards (of glm4_moe with fused experts), names without a prefix, mask buffers, single files, llm.c's.
TEST(every_form_of_a_source_is_the_same_model) {
    static const char *const sources[] = {"hf_gpt2_sharded",
                                          "hf_gpt2_old",
                                          "hf_gpt2/model.safetensors",
                                          "hf_gpt2_sharded/model.safetensors.index.json",
                                          "hf_gpt2_v3.bin",
                                          "hf_glm4_moe_sharded",
                                          "hf_glm4_moe/model.safetensors",
                                          "hf_llama_sharded"};
    mezzo_model_config config;
    for (size_t i = 0; i < MZ_COUNT(sources); i++) {
        const char *run = import_to(sources[i], "other", &config);
        expect_logits(sources[i], run, &config, test_device(), "logits");
        expect_tensors(sources[i], run, MEZZO_F32, MEZZO_F32);
    }
}

TEST(bf16_of_llmc_keeps_its_bits) {
    mezzo_model_config config;
    const char *source = "hf_gpt2_v5.bin", *run = import_to(source, "low", &config);
    expect_logits(source, run, &config, test_device(), "logits_bf16");
    expect_tensors(source, run, MEZZO_BF16, MEZZO_BF16);
    expect_tensors(source, run, MEZZO_F32, MEZZO_BF16);
}

static void expect_same_weights(const char *a, const char *b) {
    mz_map x, y;
    char path[4096];
    snprintf(path, sizeof path, "%s/checkpoints/step-00000000/model.safetensors", a);
    must(mz_map_open(path, &x));
    snprintf(path, sizeof path, "%s/checkpoints/step-00000000/model.safetensors", b);
    must(mz_map_open(path, &y));
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    mz_map_close(&x);
    mz_map_close(&y);
}

static void export_and_import(const char *from, const char *folder, const char *to, mezzo_dtype dtype, int64_t bytes) {
    mezzo_import_result imported;
    mezzo_export_result exported;
    must(mz_dir_remove(folder));
    must(mz_dir_remove(to));
    must(mezzo_export(&(mezzo_export_options){.path = from, .out = folder, .dtype = dtype, .shard_bytes = bytes},
                      &exported));
    assert_int_equal(exported.files > 1, bytes > 0);
    must(mezzo_import(&(mezzo_import_options){.path = folder, .out = to}, &imported));
}

// In one file and in several, and in BF16 once the values are BF16's.
TEST(what_was_exported_is_imported_again_as_it_was) {
    for (size_t i = 0; i < MZ_COUNT(models); i++) {
        mezzo_model_config config;
        import_to(models[i].name, "first", NULL);
        export_and_import("first", "exported", "second", MEZZO_F32, 0);
        expect_same_weights("first", "second");
        export_and_import("first", "sharded", "second", MEZZO_F32, 9000);
        expect_same_weights("first", "second");
        export_and_import("first", "exported", "low", MEZZO_BF16, 0);
        export_and_import("low", "exported", "second", MEZZO_BF16, 0);
        expect_same_weights("low", "second");
        config = (mezzo_model_config){0};
        mezzo_import_result r;
        must(mz_dir_remove("second"));
        must(mezzo_import(&(mezzo_import_options){.path = "exported", .out = "second"}, &r));
        config = r.model;
        expect_logits(models[i].name, "second", &config, test_device(), "logits_bf16");
    }
}

// A shorter context has the first rows of GPT-2's table of positions; a longer one has no rows.
TEST(a_shorter_context_is_cut_from_the_table) {
    char path[4096];
    mezzo_import_result r;
    mezzo_import_options options = {
        .path = golden_path("hf_gpt2", path, sizeof path), .out = "cut", .tokenizer = "none", .seq_len = 16};
    must(mz_dir_remove("cut"));
    must(mezzo_import(&options, &r));
    assert_int_equal(r.model.seq_len, 16);
    mz_safetensors *theirs = golden_tensors("hf_gpt2/model.safetensors"), *ours;
    const mz_safetensors_tensor *whole, *cut;
    must(mz_safetensors_open("cut/checkpoints/step-00000000/model.safetensors", &ours));
    must(mz_safetensors_get(theirs, "transformer.wpe.weight", &whole));
    must(mz_safetensors_get(ours, "wpe.weight", &cut));
    assert_int_equal(cut->shape[0], 16);
    assert_memory_equal(cut->data, whole->data, cut->bytes);
    mz_safetensors_close(theirs);
    mz_safetensors_close(ours);
    options.seq_len = 25;
    options.out = "cut-longer";
    must_fail(mezzo_import(&options, &r), MEZZO_ERR_FORMAT, "config.json: the model has 24 positions");
}
