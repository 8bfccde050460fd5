// A GPT-2 that transformers saved (make/hf_gpt2.py), imported from every form of file, gives transformers' logits; exported again it has
// the same tensors, bit for bit.
//
// The logits may be off by 1e-5 of the largest: the terms of all sums on the longest path, 2·(16·8 + 8 + 64 + 24) + 32 < 512 (see
// test_gpt2.c), make 3.1e-5 in the worst case, and rounding errors, whose signs are random, add up to the root of that.
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "golden.h"
#include "io/file.h"
#include "mezzo/train.h"

static const char *import_to(const char *source, const char *name, mezzo_model_config *model) {
    char path[4096];
    mezzo_import_result r;
    must(mz_dir_remove(name));
    must(mezzo_import(&(mezzo_import_options){.path = golden_path(source, path, sizeof path), .out = name}, &r));
    assert_int_equal(r.parameters, 7952);
    if (model != NULL)
        *model = r.model;
    return name;
}

static void expect_logits(const char *run, const mezzo_model_config *config, const char *device, const char *stored) {
    mezzo_device *d;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    char path[4096], folder[64];
    mz_safetensors *file = golden_tensors("hf_gpt2_logits.safetensors");
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

// The exported weights are those that transformers saved, rounded to `dtype` (and to `first` before, where the source was).
static void expect_tensors(const char *run, mezzo_dtype dtype, mezzo_dtype first) {
    char path[4096];
    mezzo_export_result r;
    mz_safetensors *ours, *theirs = golden_tensors("hf_gpt2/model.safetensors");
    snprintf(path, sizeof path, "%s-exported", run);
    must(mz_dir_remove(path));
    must(mezzo_export(&(mezzo_export_options){.path = run, .out = path, .dtype = dtype}, &r));
    strcat(path, "/model.safetensors");
    must(mz_safetensors_open(path, &ours));
    assert_int_equal(mz_safetensors_count(ours), mz_safetensors_count(theirs));
    for (size_t i = 0; i < mz_safetensors_count(theirs); i++) {
        const mz_safetensors_tensor *want = mz_safetensors_at(theirs, i), *got;
        must(mz_safetensors_get(ours, want->name, &got));
        assert_int_equal(got->dtype, dtype);
        assert_int_equal(got->rank, want->rank);
        assert_memory_equal(got->shape, want->shape, want->rank * sizeof *want->shape);
        unsigned char *low = calloc(want->count, 4), *bits = calloc(want->count, 4);
        float *wide = calloc(want->count, sizeof *wide);
        must(mezzo_convert(want->data, MEZZO_F32, low, first, want->count));
        must(mezzo_convert(low, first, wide, MEZZO_F32, want->count));
        must(mezzo_convert(wide, MEZZO_F32, bits, dtype, want->count));
        assert_memory_equal(got->data, bits, got->bytes);
        free(low);
        free(bits);
        free(wide);
    }
    mz_safetensors_close(ours);
    mz_safetensors_close(theirs);
}

static void transformers_weights_give_transformers_logits(void **state) {
    (void)state;
    mezzo_model_config config;
    const char *run = import_to("hf_gpt2", "plain", &config);
    assert_string_equal(config.name, "gpt2");
    assert_int_equal(config.seq_len, 24);
    expect_logits(run, &config, test_device(), "logits");
    expect_logits(run, &config, "ref", "logits");
    expect_tensors(run, MEZZO_F32, MEZZO_F32);
    expect_tensors(run, MEZZO_F16, MEZZO_F32);
}

static void shards_old_names_and_single_files_are_the_same_model(void **state) {
    (void)state;
    static const char *const sources[] = {"hf_gpt2_sharded", "hf_gpt2_old", "hf_gpt2/model.safetensors",
                                          "hf_gpt2_sharded/model.safetensors.index.json", "hf_gpt2_v3.bin"};
    mezzo_model_config config;
    for (size_t i = 0; i < MZ_COUNT(sources); i++) {
        const char *run = import_to(sources[i], "other", &config);
        expect_logits(run, &config, test_device(), "logits");
        expect_tensors(run, MEZZO_F32, MEZZO_F32);
    }
}

static void bf16_of_llmc_keeps_its_bits(void **state) {
    (void)state;
    mezzo_model_config config;
    const char *run = import_to("hf_gpt2_v5.bin", "low", &config);
    expect_logits(run, &config, test_device(), "logits_bf16");
    expect_tensors(run, MEZZO_BF16, MEZZO_BF16);
    expect_tensors(run, MEZZO_F32, MEZZO_BF16);
}

static void what_was_exported_is_imported_again_as_it_was(void **state) {
    (void)state;
    mezzo_import_result r;
    mz_map a, b;
    import_to("hf_gpt2", "first", NULL);
    expect_tensors("first", MEZZO_F32, MEZZO_F32);
    must(mz_dir_remove("second"));
    must(mezzo_import(&(mezzo_import_options){.path = "first-exported", .out = "second"}, &r));
    must(mz_map_open("first/checkpoints/step-00000000/model.safetensors", &a));
    must(mz_map_open("second/checkpoints/step-00000000/model.safetensors", &b));
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
    mz_map_close(&a);
    mz_map_close(&b);
}

int main(void) {
    if (!test_device_opens())
        return TEST_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transformers_weights_give_transformers_logits),
        cmocka_unit_test(shards_old_names_and_single_files_are_the_same_model),
        cmocka_unit_test(bf16_of_llmc_keeps_its_bits),
        cmocka_unit_test(what_was_exported_is_imported_again_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
