// Reads and writes adapters in PEFT's files, adapter_model.safetensors and adapter_config.json: exports write a run's
// adapters, and imports read PEFT's beside imported weights. A is the same in both; B's rows are the layer's rows, and
// are reordered with them.
#include <math.h>
#include <stdlib.h>

#include "graph/graph.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "data/pattern.h"
#include "checkpoint/checkpoint.h"
#include "weights/import.h"

#define MAX_CONFIG ((size_t)1 << 20)

// Returns the module's name in PEFT, which the caller frees. For "layers.0.attn.q_proj" and its part
// "layers.0.self_attn.q_proj.weight" of a Hugging Face model it is "base_model.model.model.layers.0.self_attn.q_proj".
static char *their_module(const mz_hf_family *family, const mz_hf_part *part) {
    const int n = (int)(strlen(part->name) - strlen(".weight"));
    return mz_format("base_model.model.%s%.*s", part->bare ? "" : family->prefix, n, part->name);
}

// Says where the two tensors of one adapter belong, in Mezzo and in PEFT.
typedef struct place {
    char ours[512];
    char *theirs;
    int64_t rows, cols;
    mz_hf_order order;
} place;

// Is called for every adapter that a model can have; `user` is the caller's.
typedef mezzo_status (*visit)(void *user, const place *p);

static mezzo_status visit_weight(const mz_hf_family *family, const mz_model *model, const mz_param_spec *spec,
                                 visit each, void *user) {
    mz_hf_parts parts = {0};
    place p;
    int64_t first;
    mezzo_status status = family->map(family, model, spec->name, &spec->shape, &parts);
    for (size_t i = 0; status == MEZZO_OK && i < parts.count; i++) {
        if (!mz_adapted_module(spec->name, spec->shape.dim[0], &spec->parts, (int)i, p.ours, &first, &p.rows))
            break;
        if (p.rows != parts.items[i].rows) {
            status = mz_fail(MEZZO_ERR_UNSUPPORTED, "%s: part %zu has %lld rows here and %lld in a %s folder",
                             spec->name, i, (long long)p.rows, (long long)parts.items[i].rows, family->model_type);
            break;
        }
        p.cols = spec->shape.dim[1];
        p.order = parts.items[i].order;
        p.theirs = their_module(family, &parts.items[i]);
        status = p.theirs != NULL ? each(user, &p) : MEZZO_ERR_MEMORY;
        mz_free(p.theirs);
    }
    mz_free(parts.items);
    return status;
}

// Visits all linear layers: matrices called weight. Other matrices (an embedding) have no adapters.
static mezzo_status visit_all(const mz_hf_family *family, const mz_model *model, const mezzo_graph *graph, visit each,
                              void *user) {
    for (size_t i = 0; i < graph->n_params; i++) {
        const mz_param_spec *spec = &graph->params[i];
        if (spec->shape.rank == 2 && mz_ends_with(spec->name, ".weight"))
            MEZZO_TRY(visit_weight(family, model, spec, each, user));
    }
    return MEZZO_OK;
}

// Adds a tensor to the list, from consecutive rows.
static mezzo_status add(mz_hf_list *list, const char *module, char which, const mz_safetensors_tensor *t,
                        mz_hf_order order, bool ours) {
    const mz_shape shape = {2, {t->shape[0], t->shape[1]}};
    mz_hf_block *block = mz_alloc(1, sizeof *block);
    char *name = mz_format("%s.lora_%c.weight", module, which);
    if (block == NULL || name == NULL) {
        MZ_FREE(block, name);
        return MEZZO_ERR_MEMORY;
    }
    *block = (mz_hf_block){.data = t->data, .dtype = t->dtype, .rows = t->shape[0], .stride = t->shape[1]};
    if (which == 'B')
        block->order = order;
    block->order.ours = ours;
    mezzo_status status = mz_hf_list_add(list, name, &shape, MEZZO_F32, block, 1);
    mz_free(name);
    return status;
}

static const mz_safetensors_tensor *find(const mz_safetensors *file, const char *module, char which) {
    MZ_SCOPED(mz_free_at) char *name = mz_format("%s.lora_%c.weight", module, which);
    return name != NULL ? mz_safetensors_find(file, name) : NULL;
}

static bool matrix(const mz_safetensors_tensor *t) {
    return t->rank == 2 && (t->dtype == MEZZO_F32 || t->dtype == MEZZO_BF16 || t->dtype == MEZZO_F16);
}

// --- writing -------------------------------------------------------------------------------------------------------
typedef struct writer {
    const mz_safetensors *weights;
    const mz_hf_family *family;
    mz_hf_list list;
    json_t *modules; // each module once
    int64_t rank;
} writer;

static mezzo_status write_one(void *user, const place *p) {
    writer *w = user;
    const mz_safetensors_tensor *a = find(w->weights, p->ours, 'A'), *b = find(w->weights, p->ours, 'B');
    if (a == NULL && b == NULL)
        return MEZZO_OK;
    if (a == NULL || b == NULL || !matrix(a) || !matrix(b))
        return mz_fail(MEZZO_ERR_FORMAT, "the adapter of '%s' is not two matrices", p->ours);
    if (strcmp(w->family->model, "glm4_moe") == 0 && strstr(p->ours, ".mlp.") != NULL)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "the adapter of '%s' has no form that PEFT reads: it takes layers of this name for the "
                       "experts'; export the whole model, or train --lora-modules 'self_attn.*'",
                       p->ours);
    w->rank = a->shape[0];
    MEZZO_TRY(add(&w->list, p->theirs, 'A', a, p->order, true));
    MEZZO_TRY(add(&w->list, p->theirs, 'B', b, p->order, true));
    return json_array_append_new(w->modules, json_string(p->theirs + strlen("base_model.model."))) == 0
               ? MEZZO_OK
               : MEZZO_ERR_MEMORY;
}

static mezzo_status write_config(const writer *w, const char *folder) {
    json_t *config = json_pack("{ss ss sn sI sf sf sb ss sb sO}", "peft_type", "LORA", "task_type", "CAUSAL_LM",
                               "base_model_name_or_path", "r", (json_int_t)w->rank, "lora_alpha",
                               mz_lora_scale(w->weights) * (double)w->rank, "lora_dropout", 0.0, "fan_in_fan_out",
                               w->family == &mz_hf_gpt2, // its layers are Conv1D
                               "bias", "none", "inference_mode", 1, "target_modules", w->modules);
    return mz_json_save_owned(config, mz_path_of("%s/adapter_config.json", folder).text);
}

mezzo_status mz_adapter_write(const mz_safetensors *weights, const mz_hf_family *family, const mz_model *model,
                              const char *checkpoint, const char *folder, int64_t *tensors) {
    static const mz_safetensors_meta meta[] = {{"format", "pt"}};
    writer w = {.weights = weights, .family = family, .modules = json_array()};
    mezzo_graph *graph = NULL;
    mezzo_status status = MEZZO_OK;
    const mz_path path = mz_path_of("%s/adapter_model.safetensors", folder);
    if (mz_lora_scale(weights) == 0)
        MEZZO_TRY_GOTO(status,
                       mz_fail(MEZZO_ERR_INVALID, "%s has no adapters: it was not trained with lora.rank", checkpoint));
    if (w.modules == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    MEZZO_TRY_GOTO(status, mz_model_graph(model, &graph));
    MEZZO_TRY_GOTO(status, mz_hf_list_create(mz_safetensors_count(weights), &w.list));
    MEZZO_TRY_GOTO(status, visit_all(family, model, graph, write_one, &w));
    MEZZO_TRY_GOTO(status, mz_safetensors_write(path.text, w.list.items, w.list.count, meta, MZ_COUNT(meta), NULL));
    MEZZO_TRY_GOTO(status, write_config(&w, folder));
    *tensors = (int64_t)w.list.count;
fail:
    json_decref(w.modules);
    mz_hf_list_free(&w.list);
    mezzo_graph_free(graph);
    return status;
}

// --- reading -------------------------------------------------------------------------------------------------------
static mezzo_status read_config(mz_import *in, const char *path, const json_t *config) {
    bool by_root = false;
    double alpha = 8; // these are LoraConfig's defaults
    in->lora_rank = 8;
    MEZZO_TRY(mz_hf_check_keys(path, "LoraConfig", config));
    if (json_object_get(config, "peft_type") == NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'peft_type' is missing", path);
    if (json_object_get(config, "r") != NULL)
        MEZZO_TRY(mz_json_get_int(path, config, "r", 1, 65536, &in->lora_rank));
    if (json_object_get(config, "lora_alpha") != NULL)
        MEZZO_TRY(mz_json_get_double(path, config, "lora_alpha", &alpha));
    if (json_object_get(config, "use_rslora") != NULL)
        MEZZO_TRY(mz_json_get_bool(path, config, "use_rslora", &by_root));
    if (!(alpha > 0 && alpha <= 1e6))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'lora_alpha' is %g: it must be above 0, and at most 1000000", path,
                       alpha);
    in->lora_scale = alpha / (by_root ? sqrt((double)in->lora_rank) : (double)in->lora_rank);
    return MEZZO_OK;
}

mezzo_status mz_adapter_open(mz_import *in, const char *folder) {
    const mz_path config = mz_path_of("%s/adapter_config.json", folder);
    MZ_SCOPED(mz_json_free_at) json_t *json = NULL;
    in->adapter_folder = folder;
    if (!mz_path_exists(config.text))
        return mz_fail(MEZZO_ERR_INVALID, "there is no %s: an adapter is a folder of PEFT's save_pretrained",
                       mz_quote(config.text).text);
    MEZZO_TRY(mz_json_load(config.text, MAX_CONFIG, &json));
    MEZZO_TRY(read_config(in, config.text, json));
    in->adapter_config = json_incref(json);
    return mz_safetensors_open(mz_path_of("%s/adapter_model.safetensors", folder).text, &in->adapter);
}

static mezzo_status check_shapes(const mz_import *in, const place *p, const mz_safetensors_tensor *a,
                                 const mz_safetensors_tensor *b) {
    if (a != NULL && b != NULL && matrix(a) && matrix(b) && a->shape[0] == in->lora_rank && a->shape[1] == p->cols &&
        b->shape[1] == in->lora_rank && b->shape[0] == p->rows)
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_FORMAT,
                   "%s: the adapter of %s is not lora_A [%lld, %lld] and lora_B [%lld, %lld] in fp32, bf16 or fp16",
                   mz_quote(in->adapter_folder).text, mz_quote(p->theirs).text, (long long)in->lora_rank,
                   (long long)p->cols, (long long)p->rows, (long long)in->lora_rank);
}

MZ_FREE_AT(mz_pattern_free_at, mz_pattern, mz_pattern_free)
MZ_FREE_AT(mz_match_room_free_at, void, mz_match_room_free)

// Matches like Python's re.fullmatch.
static mezzo_status match_whole(const char *folder, const char *pattern, const char *text, bool *matches) {
    MZ_SCOPED(mz_pattern_free_at) mz_pattern *alone = NULL, *whole = NULL;
    MZ_SCOPED(mz_match_room_free_at) void *room = NULL;
    size_t from, to;
    MZ_SCOPED(mz_free_at) char *where = mz_format("%s/adapter_config.json: key 'target_modules'", folder);
    MZ_SCOPED(mz_free_at) char *anchored = mz_format("\\A(?:%s)\\z", pattern);
    *matches = false;
    if (where == NULL || anchored == NULL)
        MEZZO_TRY(mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__));
    MEZZO_TRY(mz_pattern_create(where, MZ_PATTERN_PCRE2, pattern, strlen(pattern),
                                &alone)); // checks the whole pattern alone
    MEZZO_TRY(mz_pattern_create(where, MZ_PATTERN_PCRE2, anchored, strlen(anchored), &whole));
    MEZZO_TRY(mz_match_room(&room));
    mz_matches walk = mz_matches_of(whole, room, text, strlen(text));
    return mz_matches_next(&walk, matches, &from, &to);
}

// Returns whether a module is targeted. A list has modules' names or their ends; a text is a pattern, or means all
// linear layers but the head.
static mezzo_status is_target(const char *folder, const json_t *targets, const char *module, bool *is) {
    const char *text = json_string_value(targets);
    const json_t *one;
    size_t i;
    *is = false;
    if (text != NULL && strcmp(text, "all-linear") == 0)
        *is = strcmp(module, "lm_head") != 0;
    else if (text != NULL)
        return match_whole(folder, text, module, is);
    json_array_foreach(targets, i, one) {
        const char *name = json_string_value(one);
        const size_t n = strlen(module), k = name != NULL ? strlen(name) : n + 1;
        *is = *is || (k <= n && strcmp(module + n - k, name) == 0 && (k == n || module[n - k - 1] == '.'));
    }
    return MEZZO_OK;
}

static bool is_layer(const json_t *layers, long long layer) {
    const json_t *one;
    size_t i;
    bool is = json_is_integer(layers) ? json_integer_value(layers) == layer : json_array_size(layers) == 0;
    json_array_foreach(layers, i, one) is = is || (json_is_integer(one) && json_integer_value(one) == layer);
    return is;
}

// Refuses tensors of modules that the configuration does not target, because PEFT ignores them.
static mezzo_status check_target(const mz_import *in, const char *theirs) {
    const char *module = theirs + strlen("base_model.model."), *number = strpbrk(module, "0123456789");
    const json_t *layers = json_object_get(in->adapter_config, "layers_to_transform");
    bool is;
    MEZZO_TRY(is_target(in->adapter_folder, json_object_get(in->adapter_config, "target_modules"), module, &is));
    const bool layer =
        layers == NULL || json_is_null(layers) || (number != NULL && is_layer(layers, strtoll(number, NULL, 10)));
    if (is && layer)
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_FORMAT,
                   "%s/adapter_config.json: key '%s' leaves out %s, of which the folder has an adapter",
                   in->adapter_folder, is ? "layers_to_transform" : "target_modules", mz_quote(module).text);
}

static mezzo_status read_one(void *user, const place *p) {
    mz_import *in = user;
    const mz_safetensors_tensor *a = find(in->adapter, p->theirs, 'A'), *b = find(in->adapter, p->theirs, 'B');
    if (a == NULL && b == NULL)
        return MEZZO_OK;
    MEZZO_TRY(check_target(in, p->theirs));
    MEZZO_TRY(check_shapes(in, p, a, b));
    MEZZO_TRY(add(&in->list, p->ours, 'A', a, p->order, false));
    MEZZO_TRY(add(&in->list, p->ours, 'B', b, p->order, false));
    in->adapters++;
    return MEZZO_OK;
}

// Refuses tensors that belong to no layer, which would otherwise be lost without a message.
static mezzo_status check_rest(const mz_import *in) {
    for (size_t i = 0; i < mz_safetensors_count(in->adapter); i++) {
        const mz_safetensors_tensor *t = mz_safetensors_at(in->adapter, i);
        bool ours = false;
        for (size_t k = 0; k < in->list.count && !ours; k++)
            ours = in->list.tensors[k].blocks[0].data == t->data;
        if (!ours)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s is the adapter of no linear layer of this %s model",
                           mz_quote(in->adapter_folder).text, mz_quote(t->name).text, in->model.name);
    }
    return in->adapters > 0 ? MEZZO_OK
                            : mz_fail(MEZZO_ERR_FORMAT, "%s has no adapter", mz_quote(in->adapter_folder).text);
}

mezzo_status mz_adapter_list(mz_import *in) {
    if (in->family == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "%s: adapters need the weights of a Hugging Face folder, not llm.c's file",
                       mz_quote(in->adapter_folder).text);
    MEZZO_TRY(visit_all(in->family, &in->object, in->graph, read_one, in));
    return check_rest(in);
}
