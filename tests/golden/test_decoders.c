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

// Files of a sharded folder, whose index names each tensor's: neighbours of one of our parameters lie apart.
static void write_shards(const char *folder, const mz_safetensors_item *items, size_t n, int files) {
    static const mz_safetensors_meta meta[] = {{"format", "pt"}};
    json_t *map = json_object(), *index = json_pack("{s:{}, s:o}", "metadata", "weight_map", map);
    char path[300], file[64];
    for (int k = 0; k < files; k++) {
        mz_safetensors_item some[MOST_TENSORS];
        size_t count = 0;
        snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", k + 1, files);
        for (size_t i = (size_t)k; i < n; i += (size_t)files) {
            some[count++] = items[i];
            json_object_set_new(map, items[i].name, json_string(file));
        }
        snprintf(path, sizeof path, "%s/%s", folder, file);
        must(mz_safetensors_write(path, some, count, meta, 1, NULL));
    }
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    must(mz_json_save(path, index));
    json_decref(index);
}

// A folder as transformers saves one; files > 1: sharded.
static void write_source(const json_t *c, const char *folder, mezzo_dtype dtype, int files) {
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
        const bool whole = ends_with(name, "e_score_correction_bias"); // which is written in FP32 always
        items[n] =
            (mz_safetensors_item){.name = name, .dtype = whole ? MEZZO_F32 : dtype, .rank = rank, .shape = shapes[n]};
        float *x = make_weight(name, json_integer_value(json_object_get(c, "seed")), (int)rank, shapes[n], &count);
        void *stored = calloc(count, sizeof *x);
        must(mezzo_convert(x, MEZZO_F32, stored, items[n].dtype, count));
        free(x);
        items[n++].data = stored;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (files == 1)
        must(mz_safetensors_write(path, items, n, meta, 1, NULL));
    else
        write_shards(folder, items, n, files);
    for (size_t i = 0; i < n; i++)
        free((void *)(uintptr_t)items[i].data);
    snprintf(path, sizeof path, "%s/config.json", folder);
    must(mz_json_save(path, json_object_get(c, "config")));
}

// Both have the same tensors, bit for bit.
static void expect_same(const char *label, const char *got_path, const char *want_path) {
    mz_safetensors *theirs, *ours;
    must(mz_safetensors_open(got_path, &ours));
    must(mz_safetensors_open(want_path, &theirs));
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
}

static void expect_exported(const json_t *c, const char *label) {
    mezzo_export_result r;
    char path[4096];
    const char *folder = getenv("MEZZO_EXPORTS");
    snprintf(path, sizeof path, "%s/%s", folder != NULL ? folder : ".", label);
    must(mz_dir_remove(path));
    must(mezzo_export(&(mezzo_export_options){.path = "run", .out = path, .dtype = MEZZO_F32}, &r));
    const size_t end = strlen(path);
    strcpy(path + end, "/model.safetensors");
    expect_same(label, path, "source/model.safetensors");
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

static void open_subject(subject *s, const json_t *c, const char *label, const char *device,
                         mezzo_precision precision) {
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
    must(mezzo_program_create(s->graph, s->params, &(mezzo_program_options){.precision = precision}, &s->program));
}

static void close_subject(subject *s) {
    mezzo_program_free(s->program);
    mezzo_params_free(s->params);
    mezzo_graph_free(s->graph);
    mezzo_device_close(s->device);
}

// Forward and backward on the case's batch; the logits [rows, vocab].
static float *run_batch(subject *s, float *loss) {
    const int64_t rows = size_of(json_object_get(s->c, "tokens"));
    const size_t count = (size_t)(rows * s->model.vocab);
    int32_t *ids = ids_of(json_object_get(s->c, "tokens")), *targets = ids_of(json_object_get(s->c, "targets"));
    float *logits = calloc(count, sizeof *logits);
    must(mezzo_program_write(s->program, "tokens", ids, (size_t)rows * sizeof *ids));
    must(mezzo_program_write(s->program, "targets", targets, (size_t)rows * sizeof *targets));
    must(mezzo_program_run(s->program, NULL, 0, 0));
    must(mezzo_program_read(s->program, "logits", logits, count * sizeof *logits));
    must(mezzo_program_read(s->program, "loss", loss, sizeof *loss));
    free(ids);
    free(targets);
    return logits;
}

static void expect_logits(subject *s) {
    const json_t *tokens = json_object_get(s->c, "tokens"), *want = json_object_get(s->c, "logits");
    const int64_t length = (int64_t)json_array_size(json_array_get(tokens, 0)), rows = size_of(tokens);
    float loss, *logits = run_batch(s, &loss);
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
    free(logits);
}

// One tensor's gradient beside its golden numbers: the largest of all, and some.
typedef void gradient_fn(const subject *s, const char *name, const float *got, size_t n, const json_t *want,
                         void *user);

static void expect_gradient(const subject *s, const char *name, const float *got, size_t n, const json_t *want,
                            void *user) {
    const json_t *some = json_array_get(want, 1);
    const double most = golden_real(json_array_get(want, 0));
    const double allowed = most > 1e-6 ? 2e-5 * most : 1e-6; // of a gradient that is zero
    const double count = (double)json_array_size(some);
    double largest = 0;
    for (size_t k = 0; k < n; k++)
        largest = fmax(largest, fabs((double)got[k]));
    if (!(fabs(largest - most) <= allowed))
        fail_msg("%s: gradient of %s: the largest is %.9g, want %.9g", s->label, name, largest, most);
    for (size_t k = 0; k < json_array_size(some); k++) {
        const double x = (double)got[k * n / (size_t)count], exact = golden_real(json_array_get(some, k));
        if (!(fabs(x - exact) <= allowed))
            fail_msg("%s: gradient of %s, number %zu, is %.9g, want %.9g of at most %.9g", s->label, name, k, x, exact,
                     most);
    }
    ++*(size_t *)user;
}

// A parameter's gradient in the tensors that it is exported as: `parts` say which, and how their rows lie.
static void each_gradient(const subject *s, const mz_hf_family *family, int index, gradient_fn *look, void *user) {
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
        const bool transposed = parts.items[i].transposed;
        mz_hf_block block = {.data = (const unsigned char *)(grad + row * cols),
                             .dtype = MEZZO_F32,
                             .rows = transposed ? cols : parts.items[i].rows,
                             .stride = cols,
                             .transposed = transposed,
                             .order = parts.items[i].order};
        block.order.ours = true;
        mz_hf_tensor tensor = {.name = name,
                               .blocks = &block,
                               .n_blocks = 1,
                               .cols = transposed ? parts.items[i].rows : cols,
                               .dtype = MEZZO_F32};
        if (strstr(name, "e_score_correction_bias") != NULL)
            continue; // which no gradient trains
        must(mz_hf_fill(&tensor, 0, theirs, n * sizeof *theirs));
        const json_t *want = json_object_get(json_object_get(s->c, "gradients"), name);
        assert_non_null(json_array_get(want, 1));
        look(s, name, theirs, n, want, user);
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
    write_source(c, "source", MEZZO_F32, 1);
    open_subject(&s, c, label, device, MEZZO_PRECISION_FP32);
    expect_logits(&s);
    const mz_hf_family *family = mz_hf_by_model(s.model.name);
    for (size_t i = 0; i < s.graph->n_params; i++)
        each_gradient(&s, family, (int)i, expect_gradient, &seen);
    assert_int_equal(seen, json_object_size(json_object_get(c, "gradients")));
    expect_greedy(&s);
    close_subject(&s);
    expect_exported(c, label);
}

TEST(decoders_are_those_of_transformers) {
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

// --- BF16 ----------------------------------------------------------------------------------------------------------
typedef struct mean_square {
    double sum, count;
} mean_square;

static void add_off(mean_square *m, double off) {
    m->sum += off * off;
    m->count++;
}

static void add_gradient(const subject *s, const char *name, const float *got, size_t n, const json_t *want,
                         void *user) {
    (void)s, (void)name;
    const json_t *some = json_array_get(want, 1);
    const double most = golden_real(json_array_get(want, 0));
    for (size_t k = 0; most > 1e-6 && k < json_array_size(some); k++)
        add_off(user, ((double)got[k * n / json_array_size(some)] - golden_real(json_array_get(some, k))) / most);
}

// Squared distances of a case's logits and gradients from FP64, in BF16.
static void distances_in_bf16(const json_t *c, const char *label, double out[2]) {
    subject s;
    mean_square logits = {0}, gradients = {0};
    float loss;
    size_t at = 0;
    write_source(c, "source", MEZZO_F32, 1);
    open_subject(&s, c, label, test_device(), MEZZO_PRECISION_BF16);
    float *got = run_batch(&s, &loss);
    const json_t *tokens = json_object_get(c, "tokens"), *want = json_object_get(c, "logits");
    const int64_t length = (int64_t)json_array_size(json_array_get(tokens, 0));
    for (int64_t row = 0; row < size_of(tokens); row++)
        for (int64_t v = 0; row % length % EVERY == 0 && v < s.model.vocab; v++, at++)
            add_off(&logits, ((double)got[row * s.model.vocab + v] - golden_real(json_array_get(want, at))) /
                                 golden_number(c, "largest"));
    const mz_hf_family *family = mz_hf_by_model(s.model.name);
    for (size_t i = 0; i < s.graph->n_params; i++)
        each_gradient(&s, family, (int)i, add_gradient, &gradients);
    out[0] = logits.sum / logits.count;
    out[1] = gradients.sum / gradients.count;
    free(got);
    close_subject(&s);
}

// BF16 is as near to FP64 as torch.autocast in bfloat16: the ratio of distances, which roundings in other places make
// random, is 1 in the geometric mean of the families, to 5 %, and below 2 for each family's five models.
TEST(bf16_is_as_near_to_fp64_as_autocast) {
    json_t *root = golden_json("decoders.json"), *c;
    double ours[2] = {0}, theirs[2] = {0}, logs[2] = {0}, families = 0;
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        double one[2];
        const char *label = json_string_value(json_object_get(c, "family"));
        distances_in_bf16(c, label, one);
        for (int k = 0; k < 2; k++) {
            ours[k] += one[k];
            theirs[k] += pow(golden_real(json_array_get(json_object_get(c, "autocast"), (size_t)k)), 2);
        }
        if (i % 5 < 4)
            continue;
        print_message("%-16s logits %.2e (autocast %.2e)  gradients %.2e (autocast %.2e)\n", label, sqrt(ours[0] / 5),
                      sqrt(theirs[0] / 5), sqrt(ours[1] / 5), sqrt(theirs[1] / 5));
        for (int k = 0; k < 2; k++) {
            logs[k] += log(ours[k] / theirs[k]) / 2;
            if (!(ours[k] < 4 * theirs[k]))
                fail_msg("%s: %s in BF16 are %.2g off, autocast's %.2g", label, k == 0 ? "logits" : "gradients",
                         sqrt(ours[k] / 5), sqrt(theirs[k] / 5));
            ours[k] = theirs[k] = 0;
        }
        families++;
    }
    print_message("geometric mean of the ratios: logits %.3f, gradients %.3f\n", exp(logs[0] / families),
                  exp(logs[1] / families));
    assert_true(exp(logs[0] / families) < 1.05 && exp(logs[1] / families) < 1.05);
    json_decref(root);
}

// --- sources ---------------------------------------------------------------------------------------------------------
static void import_to(const char *path, const char *out) {
    mezzo_import_result r;
    must(mz_dir_remove(out));
    must(mezzo_import(&(mezzo_import_options){.path = path, .out = out, .tokenizer = "none"}, &r));
}

static void export_to(const char *run, const char *out, mezzo_dtype dtype, int64_t most) {
    mezzo_export_result r;
    must(mz_dir_remove(out));
    must(mezzo_export(&(mezzo_export_options){.path = run, .out = out, .dtype = dtype, .shard_bytes = most}, &r));
}

// Sharded sources in 16 bits, whose parts of a parameter lie in several files, come out as they came in: whole, and in
// several files, which come in again.
TEST(sharded_and_16_bit_sources_keep_their_bits) {
    json_t *root = golden_json("decoders.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        const mezzo_dtype dtype = i % 2 == 0 ? MEZZO_BF16 : MEZZO_F16;
        const char *label = json_string_value(json_object_get(c, "family"));
        if (i % 5 > 1)
            continue;
        write_source(c, "source", dtype, 1);
        write_source(c, "shards", dtype, 3);
        import_to("shards", "run");
        export_to("run", "whole", dtype, 0);
        expect_same(label, "whole/model.safetensors", "source/model.safetensors");
        export_to("run", "parts", dtype, 3000);
        assert_false(mz_path_exists("parts/model.safetensors"));
        import_to("parts", "again");
        export_to("again", "second", dtype, 0);
        expect_same(label, "second/model.safetensors", "source/model.safetensors");
    }
    json_decref(root);
}
