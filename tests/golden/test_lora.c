// Adapters beside PEFT's (make/lora_gpt2.py, make/lora_rotary.py): the same logits and gradients for the same numbers,
// PEFT's files, and merged weights that give what unmerged ones give. Seen to fail with: the scale left out; A and B
// exchanged; the base trained along; rows
// of q left as halves; a part merged into the first part's rows; a part replaced, not added to; alpha over rank where
// it is over its root; a scale that is not compared.
//
// The logits may be off by 1e-5 of the largest, as in test_hf.c: adapters add sums of 16 + 3 and 64 + 3 terms to a path
// of 512. Gradients go through the same sums twice. Merging rounds a weight once more, 2^-24 of it: within the same.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "golden.h"
#include "io/file.h"
#include "mezzo/step.h"
#include "mezzo/train.h"
#include "runtime/params.h"

typedef struct adapted_case {
    const char *name; // of hf_NAME, hf_NAME_lora and lora_NAME.safetensors
    const char *prefix;
    int64_t rank;
    double alpha;
    const char *modules;
    const char *first; // an adapter's module, of ours
} adapted_case;

// Llama's alpha is scaled by √rank, as its use_rslora says: ours over the rank is the same.
static const adapted_case cases[] = {
    {"gpt2", "base_model.model.transformer.", 3, 6, "attn.c_attn,mlp.c_proj", "h.0.attn.c_attn"},
    {"llama", "base_model.model.model.", 3, 6.928203230275509, "q_proj,v_proj,o_proj,down_proj,up_proj",
     "layers.0.self_attn.q_proj"},
    {"glm4_moe", "base_model.model.model.", 2, 5, "qkv_proj,o_proj", "layers.0.self_attn.q_proj"},
};

typedef struct adapted {
    const adapted_case *is;
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_model_config model;
} adapted;

static const char *data_path(const char *fmt, const char *name, char path[4096]) {
    char file[200];
    snprintf(file, sizeof file, fmt, name);
    return golden_path(file, path, 4096);
}

static mz_safetensors *stored_of(const adapted_case *c) {
    char file[200];
    snprintf(file, sizeof file, "lora_%s.safetensors", c->name);
    return golden_tensors(file);
}

// The name that PEFT has for a parameter: "layers.0.attn.q_proj.lora_A.weight".
static void their_name(const adapted_case *c, const char *name, char out[300]) {
    snprintf(out, 300, "%s%s", c->prefix, name);
}

static void open_adapted(adapted *m, const adapted_case *c, int64_t rows, int64_t length) {
    const mezzo_lora lora = {.rank = c->rank, .alpha = c->alpha, .modules = c->modules};
    char path[4096], adapter[4096];
    mezzo_import_result r;
    must(mz_dir_remove("base"));
    must(mezzo_import(&(mezzo_import_options){.path = data_path("hf_%s", c->name, path),
                                              .adapter = data_path("hf_%s_lora", c->name, adapter),
                                              .out = "base"},
                      &r));
    m->is = c;
    m->model = r.model;
    assert_int_equal(r.lora_rank, c->rank);
    assert_true(fabs(r.lora_alpha - c->alpha) < 1e-12);
    must(mezzo_device_open(test_device(), 2, &m->device));
    must(mezzo_graph_create(&m->graph));
    must(mezzo_graph_adapt(m->graph, &lora));
    must(mezzo_model_build(m->graph, &m->model, rows, length, true));
    must(mezzo_graph_freeze_base(m->graph));
    must(mezzo_params_create(m->device, m->graph, 1, &m->params));
    mezzo_checkpoint read = {.params = m->params};
    must(mezzo_checkpoint_find("base/checkpoints", false, path, sizeof path));
    must(mezzo_checkpoint_load(path, &read));
    must(mezzo_program_create(m->graph, m->params, &(mezzo_program_options){0}, &m->program));
}

static void close_adapted(adapted *m) {
    mezzo_program_free(m->program);
    mezzo_params_free(m->params);
    mezzo_graph_free(m->graph);
    mezzo_device_close(m->device);
}

static void run_stored(mezzo_program *program, const mz_safetensors *stored) {
    golden_values tokens = golden_get(stored, "tokens"), targets = golden_get(stored, "targets");
    int32_t *ids = golden_ints(&tokens), *next = golden_ints(&targets);
    must(mezzo_program_write(program, "tokens", ids, tokens.count * sizeof *ids));
    must(mezzo_program_write(program, "targets", next, targets.count * sizeof *next));
    must(mezzo_program_run(program, NULL, 0, 0));
    free(ids);
    free(next);
    golden_free(&tokens);
    golden_free(&targets);
}

static void expect_logits(mezzo_program *program, const mz_safetensors *stored, const char *what) {
    golden_values want = golden_get(stored, "logits");
    float *got = calloc(want.count, sizeof *got);
    must(mezzo_program_read(program, "logits", got, want.count * sizeof *got));
    golden_close(what, got, &want, 1e-5 * golden_max(&want), 0);
    golden_would_notice(what, &want, 0.001, 1e-5 * golden_max(&want));
    free(got);
    golden_free(&want);
}

static void expect_gradients(const adapted *m, const mz_safetensors *stored) {
    size_t found = 0, there = 0;
    for (int i = 0; i < mezzo_params_count(m->params); i++) {
        const char *name = mezzo_params_name(m->params, i);
        char theirs[300];
        if (strstr(name, ".lora_") == NULL) {
            assert_true(mezzo_params_frozen(m->params, i));
            continue;
        }
        their_name(m->is, name, theirs);
        golden_values want = golden_get(stored, "grad.%s", theirs);
        float *got = calloc(want.count, sizeof *got);
        must(mezzo_params_read_grad(m->params, i, got));
        golden_close(name, got, &want, 2e-5 * golden_max(&want), 0);
        golden_would_notice(name, &want, 0.001, 2e-5 * golden_max(&want));
        free(got);
        golden_free(&want);
        found++;
    }
    for (size_t i = 0; i < mz_safetensors_count(stored); i++)
        there += strncmp(mz_safetensors_at(stored, i)->name, "grad.", 5) == 0;
    assert_int_equal(found, there);
}

// A checkpoint, read by a model without adapters: they are merged.
static void expect_merged(const adapted *m, const char *path, const mz_safetensors *stored) {
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    must(mezzo_graph_create(&graph));
    must(mezzo_model_build(graph, &m->model, 2, 12, true));
    must(mezzo_params_create(m->device, graph, 1, &params));
    mezzo_checkpoint merged = {.params = params};
    must(mezzo_checkpoint_load(path, &merged));
    must(mezzo_program_create(graph, params, &(mezzo_program_options){.forward_only = true}, &program));
    run_stored(program, stored);
    expect_logits(program, stored, "merged");
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(graph);
}

// Trained with one scale, they do not go on with another.
static void expect_other_scale(const adapted *m, const char *path) {
    mezzo_graph *graph;
    mezzo_params *params;
    must(mezzo_graph_create(&graph));
    must(mezzo_graph_adapt(graph, &(mezzo_lora){m->is->rank, 2 * m->is->alpha, m->is->modules}));
    must(mezzo_model_build(graph, &m->model, 2, 12, true));
    must(mezzo_params_create(m->device, graph, 1, &params));
    must_fail(mezzo_checkpoint_load(path, &(mezzo_checkpoint){.params = params}), MEZZO_ERR_FORMAT, "lora.alpha");
    mezzo_params_free(params);
    mezzo_graph_free(graph);
}

static void same_file(const char *a, const char *b);

// PEFT's file comes out as it went in; a whole export is imported again and has the adapters in its weights.
static void expect_files(const adapted *m, const char *path, const mz_safetensors *stored) {
    char theirs[4096], whole[4096];
    mezzo_export_result r;
    mezzo_import_result imported;
    const mezzo_export_options alone = {.path = path, .out = "alone", .adapter = true, .dtype = MEZZO_F32};
    const mezzo_export_options all = {.path = path, .out = "whole", .dtype = MEZZO_F32};
    must(mz_dir_remove("alone"));
    must(mz_dir_remove("whole"));
    must(mz_dir_remove("again"));
    must(mezzo_export(&alone, &r));
    same_file("alone/adapter_model.safetensors",
              strcat(strcpy(whole, data_path("hf_%s_lora", m->is->name, theirs)), "/adapter_model.safetensors"));
    assert_true(mz_path_exists("alone/adapter_config.json"));
    must(mezzo_export(&all, &r));
    must(mezzo_import(&(mezzo_import_options){.path = "whole", .out = "again", .tokenizer = "none"}, &imported));
    must(mezzo_checkpoint_find("again/checkpoints", false, whole, sizeof whole));
    expect_merged(m, whole, stored);
}

static void check_as_peft(const adapted_case *c) {
    adapted m;
    char path[4096];
    mz_safetensors *stored = stored_of(c);
    open_adapted(&m, c, 2, 12);
    run_stored(m.program, stored);
    expect_logits(m.program, stored, "with adapters");
    expect_gradients(&m, stored);
    must(mz_dir_remove("tuned"));
    mezzo_checkpoint tuned = {.params = m.params};
    must(mezzo_model_describe(&m.model, tuned.model, sizeof tuned.model));
    must(mezzo_checkpoint_save("tuned", &tuned, 1, path, sizeof path));
    expect_merged(&m, path, stored);
    expect_other_scale(&m, path);
    expect_files(&m, path, stored);
    close_adapted(&m);
    mz_safetensors_close(stored);
}

TEST(test_gpt2_as_peft) {
    check_as_peft(&cases[0]);
}

TEST(test_llama_as_peft) {
    check_as_peft(&cases[1]);
}

TEST(test_glm4_moe_as_peft) {
    check_as_peft(&cases[2]);
}

static void same_file(const char *a, const char *b) {
    mz_safetensors *x = NULL, *y = NULL;
    must(mz_safetensors_open(a, &x));
    must(mz_safetensors_open(b, &y));
    assert_int_equal(mz_safetensors_count(x), mz_safetensors_count(y));
    for (size_t i = 0; i < mz_safetensors_count(x); i++) {
        const mz_safetensors_tensor *p = mz_safetensors_at(x, i), *q;
        must(mz_safetensors_get(y, p->name, &q));
        assert_int_equal(p->bytes, q->bytes);
        assert_memory_equal(p->data, q->data, p->bytes);
    }
    mz_safetensors_close(x);
    mz_safetensors_close(y);
}

// An adapter whose settings or tensors are not plain LoRA on this model's layers.
TEST(test_adapters_refused) {
    static const struct {
        const char *change, *said;
    } bad[] = {
        {"\"r\": 3, \"use_dora\": true", "use_dora"},
        {"\"r\": 3, \"rank_pattern\": {\"q_proj\": 4}", "rank_pattern"},
        {"\"r\": 3, \"modules_to_save\": [\"lm_head\"]", "modules_to_save"},
        {"\"r\": 3, \"bias\": \"all\"", "bias"},
        {"\"r\": 4", "lora_A [4, 16]"},
        {"\"r\": 3, \"init_lora_weights\": \"pissa\"", "'init_lora_weights' is \"pissa\""},
        {"\"r\": 3, \"init_lora_weights\": \"pissa_niter_16\"", "init_lora_weights"},
        {"\"r\": 3, \"init_lora_weights\": \"olora\"", "init_lora_weights"},
        {"\"r\": 3, \"init_lora_weights\": \"corda\"", "init_lora_weights"},
        {"\"r\": 3, \"init_lora_weights\": \"loftq\"", "init_lora_weights"},
        {"\"r\": 3, \"alpha_pattern\": {\"q_proj\": 4}", "alpha_pattern"},
        {"\"r\": 3, \"exclude_modules\": [\"q_proj\"]", "exclude_modules"},
        {"\"r\": 3, \"layers_to_transform\": 1", "'layers_to_transform' leaves out"},
        {"\"r\": 3, \"layers_to_transform\": [1, 2]", "'layers_to_transform' leaves out"},
        {"\"r\": 3, \"use_a_new_thing\": true", "'use_a_new_thing'"},
        {"\"r\": NaN", "key 'r': expected an integer, got NaN"},
    };
    char path[4096], file[4200];
    mezzo_import_result r;
    mz_safetensors *adapters = golden_tensors("hf_llama_lora/adapter_model.safetensors");
    mezzo_import_options options = {
        .path = golden_path("hf_llama", path, sizeof path), .adapter = "wrong", .out = "nothing"};
    must(mz_dir_create("wrong"));
    must(mz_dir_remove("nothing"));
    snprintf(file, sizeof file, "cp '%s_lora/adapter_model.safetensors' wrong/", path);
    assert_int_equal(system(file), 0);
    for (size_t i = 0; i < MZ_COUNT(bad); i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", \"lora_alpha\": 4, \"target_modules\": \".*\", %s}",
                 bad[i].change);
        must(mz_file_write_atomic("wrong/adapter_config.json", text, strlen(text)));
        must_fail(mezzo_import(&options, &r), MEZZO_ERR_FORMAT, bad[i].said);
        assert_false(mz_path_exists("nothing"));
    }
    // PEFT passes over what its configuration does not target; a list has names' ends, a text is a pattern.
    static const struct {
        const char *targets, *said;
    } targets[] = {{"null", "'target_modules' leaves out"},
                   {"[\"proj\", \"j\"]", "'target_modules' leaves out"},
                   {"\"layers\\\\..*\"", "'target_modules' leaves out"},
                   {"\"(\"", "the pattern '('"},
                   {"\"all-linear\"", NULL},
                   {"\"model\\\\.layers\\\\.\\\\d+\\\\.(self_attn|mlp)\\\\.[a-z]+_proj\"", NULL}};
    for (size_t i = 0; i < MZ_COUNT(targets); i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", \"r\": 3, \"target_modules\": %s}", targets[i].targets);
        must(mz_file_write_atomic("wrong/adapter_config.json", text, strlen(text)));
        must(mz_dir_remove("nothing"));
        const mezzo_status status = mezzo_import(&options, &r);
        if (targets[i].said == NULL ? status != MEZZO_OK
                                    : status != MEZZO_ERR_FORMAT || !strstr(mezzo_error_message(), targets[i].said))
            fail_msg("%s: %s", text, mezzo_error_message());
    }
    // Llama's adapters are no GPT-2's.
    options.path = golden_path("hf_gpt2", path, sizeof path);
    assert_int_equal(mezzo_import(&options, &r), MEZZO_ERR_FORMAT);
    mz_safetensors_close(adapters);
}

TEST(test_what_is_refused) {
    mezzo_graph *graph;
    mezzo_model_config model;
    must(mezzo_model_defaults("gpt2", &model));
    must(mezzo_graph_create(&graph));
    assert_int_equal(mezzo_graph_adapt(graph, &(mezzo_lora){.rank = -1}), MEZZO_ERR_INVALID);
    must(mezzo_graph_adapt(graph, &(mezzo_lora){.rank = 2, .alpha = 4, .modules = "c_attn,q_proj"}));
    model.layers = 1;
    model.vocab = 9;
    must(mezzo_model_build(graph, &model, 1, 4, false));
    must_fail(mezzo_graph_freeze_base(graph), MEZZO_ERR_INVALID, "q_proj");
    assert_int_equal(mezzo_graph_adapt(graph, &(mezzo_lora){.rank = 2, .alpha = 4}), MEZZO_ERR_INVALID);
    mezzo_graph_free(graph);
}
