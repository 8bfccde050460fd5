// Random small decoders as transformers computes them (make/decoders.py): imported, each gives transformers' logits,
// loss, gradients and greedy text of 64 tokens; exported, it has the tensors that came in, bit for bit.
//
// Logits may be off by 1e-5 of the largest, gradients by 2e-5 of their tensor's largest: rounding errors of FP32, over
// sums of up to 3 · (16 + 32 + 28 + 12) terms on the longest path, add up to the root of their number times 6e-8.
//
// MEZZO_EXPORTS=FOLDER leaves there what was exported, for decoders.py --check.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "checkpoint/checkpoint.h"
#include "device.h"
#include "golden.h"
#include "graph/graph.h"
#include "io/file.h"
#include "io/json.h"
#include "mezzo/train.h"
#include "task/sampler.h"
#include "weights/hf.h"

enum { EVERY = 6, PROMPT = 4, MOST_TENSORS = 256 };

// The weights of a case, by the formula of make/decoders.py.
static double number(uint32_t hash, uint32_t i) {
    uint32_t x = hash + i * 2654435761U;
    x = (x ^ x >> 16) * 2246822519U;
    x = (x ^ x >> 13) * 3266489917U;
    return (double)(x ^ x >> 16) * 0x1p-32 - 0.5;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

static float *make_weight(const char *name, long long seed, int rank, const int64_t *shape, size_t *count) {
    char text[256];
    uint32_t hash = 2166136261U;
    snprintf(text, sizeof text, "%s#%lld", name, seed);
    for (const char *c = text; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619U;
    *count = 1;
    for (int i = 0; i < rank; i++)
        *count *= (size_t)shape[i];
    const bool table = strstr(name, "embed") != NULL || strcmp(name, "lm_head.weight") == 0;
    const double scale = rank == 1 ? 0.4 : table ? 3 : 5 / sqrt((double)shape[rank - 1]);
    const double offset = rank == 1 && !ends_with(name, "bias") ? 1 : 0;
    float *out = calloc(*count, sizeof *out);
    for (size_t i = 0; i < *count; i++)
        out[i] = (float)(number(hash, (uint32_t)i) * scale + offset);
    return out;
}

// A folder as transformers saves one.
static void write_source(const json_t *c, const char *folder) {
    static const mz_safetensors_meta meta[] = {{"format", "pt"}};
    mz_safetensors_item items[MOST_TENSORS];
    static int64_t shapes[MOST_TENSORS][4];
    size_t n = 0, count;
    const char *name;
    json_t *shape;
    char path[256];
    must(mz_dir_remove(folder));
    must(mz_dir_create(folder));
    json_object_foreach(json_object_get(c, "tensors"), name, shape) {
        const size_t rank = json_array_size(shape);
        for (size_t i = 0; i < rank; i++)
            shapes[n][i] = json_integer_value(json_array_get(shape, i));
        items[n] = (mz_safetensors_item){.name = name, .dtype = MEZZO_F32, .rank = rank, .shape = shapes[n]};
        items[n].data = make_weight(name, json_integer_value(json_object_get(c, "seed")), (int)rank, shapes[n], &count);
        n++;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    must(mz_safetensors_write(path, items, n, meta, 1, NULL));
    for (size_t i = 0; i < n; i++)
        free((void *)(uintptr_t)items[i].data);
    snprintf(path, sizeof path, "%s/config.json", folder);
    must(mz_json_save(path, json_object_get(c, "config")));
}

static void expect_exported(const json_t *c, const char *label) {
    mezzo_export_result r;
    mz_safetensors *theirs, *ours;
    char path[4096];
    const char *folder = getenv("MEZZO_EXPORTS");
    snprintf(path, sizeof path, "%s/%s", folder != NULL ? folder : ".", label);
    must(mz_dir_remove(path));
    must(mezzo_export(&(mezzo_export_options){.path = "run", .out = path, .dtype = MEZZO_F32}, &r));
    const size_t end = strlen(path);
    strcpy(path + end, "/model.safetensors");
    must(mz_safetensors_open(path, &ours));
    must(mz_safetensors_open("source/model.safetensors", &theirs));
    assert_int_equal(mz_safetensors_count(ours), mz_safetensors_count(theirs));
    for (size_t i = 0; i < mz_safetensors_count(theirs); i++) {
        const mz_safetensors_tensor *want = mz_safetensors_at(theirs, i), *got;
        must(mz_safetensors_get(ours, want->name, &got));
        assert_int_equal(got->bytes, want->bytes);
        assert_int_equal(got->rank, want->rank);
        assert_memory_equal(got->shape, want->shape, want->rank * sizeof *want->shape);
        if (memcmp(got->data, want->data, got->bytes) != 0)
            fail_msg("%s: %s was exported as something else", label, want->name);
    }
    mz_safetensors_close(ours);
    mz_safetensors_close(theirs);
    strcpy(path + end, "/case.json");
    must(mz_json_save(path, c));
    // What was exported comes in again, and describes the same model.
    mezzo_import_result again;
    path[end] = '\0';
    must(mz_dir_remove("again"));
    must(mezzo_import(&(mezzo_import_options){.path = path, .out = "again", .tokenizer = "none"}, &again));
}

// --- values --------------------------------------------------------------------------------------------------------
typedef struct subject {
    const json_t *c;
    const char *label;
    mezzo_device *device;
    mezzo_model_config model;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
} subject;

static int64_t size_of(const json_t *list) {
    return (int64_t)json_array_size(list) * (int64_t)json_array_size(json_array_get(list, 0));
}

static int32_t *ids_of(const json_t *list) {
    int32_t *ids = calloc((size_t)size_of(list), sizeof *ids), *at = ids;
    const json_t *row, *one;
    size_t i, k;
    json_array_foreach(list, i, row) json_array_foreach(row, k, one) *at++ = (int32_t)json_integer_value(one);
    return ids;
}

static void open_subject(subject *s, const json_t *c, const char *label, const char *device) {
    const json_t *tokens = json_object_get(c, "tokens");
    mezzo_import_result r;
    *s = (subject){.c = c, .label = label};
    must(mz_dir_remove("run"));
    must(mezzo_import(&(mezzo_import_options){.path = "source", .out = "run", .tokenizer = "none"}, &r));
    s->model = r.model;
    must(mezzo_device_open(device, 2, &s->device));
    must(mezzo_graph_create(&s->graph));
    must(mezzo_model_build(s->graph, &s->model, (int64_t)json_array_size(tokens),
                           (int64_t)json_array_size(json_array_get(tokens, 0)), true));
    must(mezzo_params_create(s->device, s->graph, 1, &s->params));
    mezzo_checkpoint checkpoint = {.params = s->params};
    must(mezzo_checkpoint_load("run/checkpoints/step-00000000", &checkpoint));
    must(mezzo_program_create(s->graph, s->params, &(mezzo_program_options){0}, &s->program));
}

static void close_subject(subject *s) {
    mezzo_program_free(s->program);
    mezzo_params_free(s->params);
    mezzo_graph_free(s->graph);
    mezzo_device_close(s->device);
}

static void expect_logits(subject *s) {
    const json_t *tokens = json_object_get(s->c, "tokens"), *want = json_object_get(s->c, "logits");
    const int64_t length = (int64_t)json_array_size(json_array_get(tokens, 0)), rows = size_of(tokens);
    int32_t *ids = ids_of(tokens), *targets = ids_of(json_object_get(s->c, "targets"));
    float *logits = calloc((size_t)(rows * s->model.vocab), sizeof *logits), loss;
    must(mezzo_program_write(s->program, "tokens", ids, (size_t)rows * sizeof *ids));
    must(mezzo_program_write(s->program, "targets", targets, (size_t)rows * sizeof *targets));
    must(mezzo_program_run(s->program, NULL, 0, 0));
    must(mezzo_program_read(s->program, "logits", logits, (size_t)(rows * s->model.vocab) * sizeof *logits));
    must(mezzo_program_read(s->program, "loss", &loss, sizeof loss));
    const double allowed = 1e-5 * golden_number(s->c, "largest");
    size_t at = 0;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t v = 0; row % length % EVERY == 0 && v < s->model.vocab; v++, at++) {
            const double exact = golden_real(json_array_get(want, at));
            if (!(fabs((double)logits[row * s->model.vocab + v] - exact) <= allowed))
                fail_msg("%s: logit %lld of row %lld is %.9g, want %.9g", s->label, (long long)v, (long long)row,
                         (double)logits[row * s->model.vocab + v], exact);
        }
    assert_int_equal(at, json_array_size(want));
    assert_true(fabs((double)loss - golden_number(s->c, "loss")) <= allowed);
    free(ids);
    free(targets);
    free(logits);
}

// A parameter's gradient in the tensors that it is exported as: `parts` say which, and how their rows lie.
static void expect_gradient(const subject *s, const mz_hf_family *family, int index, size_t *seen) {
    const mz_param_spec *spec = &s->graph->params[index];
    const int64_t cols = spec->shape.rank > 1 ? spec->shape.dim[spec->shape.rank - 1] : 1;
    const size_t all = (size_t)mz_shape_count(&spec->shape);
    float *grad = calloc(all, sizeof *grad), *theirs = calloc(all, sizeof *theirs);
    mz_hf_parts parts = {0};
    mz_model object;
    must(mz_model_of(&s->model, &object));
    must(mezzo_params_read_grad(s->params, index, grad));
    must(family->map(family, &object, spec->name, &spec->shape, &parts));
    int64_t row = 0;
    for (size_t i = 0; i < parts.count; row += parts.items[i++].rows) {
        char name[256];
        const size_t n = (size_t)(parts.items[i].rows * cols);
        snprintf(name, sizeof name, "%s%s", parts.items[i].bare ? "" : family->prefix, parts.items[i].name);
        mz_hf_block block = {.data = (const unsigned char *)(grad + row * cols),
                             .dtype = MEZZO_F32,
                             .rows = parts.items[i].rows,
                             .stride = cols,
                             .order = parts.items[i].order};
        block.order.ours = true;
        mz_hf_tensor tensor = {.name = name, .blocks = &block, .n_blocks = 1, .cols = cols, .dtype = MEZZO_F32};
        must(mz_hf_fill(&tensor, 0, theirs, n * sizeof *theirs));
        const json_t *want = json_object_get(json_object_get(s->c, "gradients"), name);
        const json_t *some = json_array_get(want, 1);
        assert_non_null(some);
        const double most = golden_real(json_array_get(want, 0));
        const double allowed = most > 1e-6 ? 2e-5 * most : 1e-6; // of a gradient that is zero
        const double count = (double)json_array_size(some);
        double largest = 0;
        for (size_t k = 0; k < n; k++)
            largest = fmax(largest, fabs((double)theirs[k]));
        if (!(fabs(largest - most) <= allowed))
            fail_msg("%s: gradient of %s: the largest is %.9g, want %.9g", s->label, name, largest, most);
        for (size_t k = 0; k < json_array_size(some); k++) {
            const double got = (double)theirs[k * n / (size_t)count], exact = golden_real(json_array_get(some, k));
            if (!(fabs(got - exact) <= allowed))
                fail_msg("%s: gradient of %s, number %zu, is %.9g, want %.9g of at most %.9g", s->label, name, k, got,
                         exact, most);
        }
        ++*seen;
    }
    free(parts.items);
    free(grad);
    free(theirs);
}

static void collect(void *user, int index, const char *text, size_t bytes) {
    (void)index;
    strncat(user, text, bytes);
}

static void expect_greedy(subject *s) {
    const json_t *want = json_object_get(s->c, "text");
    const json_t *prompt = json_array_get(json_object_get(s->c, "tokens"), 0);
    char letters[64] = "", text[256] = "";
    int32_t ids[PROMPT];
    mezzo_tokenizer *tokenizer;
    mz_sampler *sampler;
    for (int64_t i = 0; i < s->model.vocab; i++) // token t is the character '0' + t
        letters[i] = (char)('0' + i);
    for (size_t i = 0; i < PROMPT; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    must(mezzo_tokenizer_create_char(letters, (size_t)s->model.vocab, &tokenizer));
    mz_model object;
    must(mz_model_of(&s->model, &object));
    must(mz_sampler_create(s->params, &object, &(mezzo_program_options){0}, tokenizer, &sampler));
    must(mz_sampler_run_on(sampler, ids, PROMPT, (int64_t)json_array_size(want), (mz_draw){0}, 0, NULL, collect, text));
    for (size_t i = 0; i < json_array_size(want); i++)
        if (text[i] - '0' != json_integer_value(json_array_get(want, i)))
            fail_msg("%s: token %zu of the greedy text is %d", s->label, i, text[i] - '0');
    mz_sampler_free(sampler);
    mezzo_tokenizer_free(tokenizer);
}

static void check_case(const json_t *c, const char *label, const char *device) {
    subject s;
    size_t seen = 0;
    write_source(c, "source");
    open_subject(&s, c, label, device);
    expect_logits(&s);
    const mz_hf_family *family = mz_hf_by_model(s.model.name);
    for (size_t i = 0; i < s.graph->n_params; i++)
        expect_gradient(&s, family, (int)i, &seen);
    assert_int_equal(seen, json_object_size(json_object_get(c, "gradients")));
    expect_greedy(&s);
    close_subject(&s);
    expect_exported(c, label);
}

static void decoders_are_those_of_transformers(void **state) {
    (void)state;
    json_t *root = golden_json("decoders.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        char label[64];
        snprintf(label, sizeof label, "%s-%zu", json_string_value(json_object_get(c, "family")), i % 5);
        check_case(c, label, test_device());
        if (i % 5 == 0)
            check_case(c, label, "ref");
    }
    json_decref(root);
}

int main(void) {
    if (!test_device_opens())
        return TEST_SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(decoders_are_those_of_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
