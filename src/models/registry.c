// Lists the models by name, their named sizes, and the checks that every model shares.
#include <math.h>

#include "base/base.h"
#include "base/scope.h"
#include "io/file.h"
#include "models/decoder.h"

static int language_inputs(const mz_model *model, const mz_form *form, mz_input out[MZ_MODEL_INPUTS]) {
    (void)model;
    out[0] = MZ_INPUT("tokens", MZ_ROLE_TOKENS, MEZZO_I32, 2, form->batch, form->length);
    out[1] = MZ_INPUT("targets", MZ_ROLE_TARGETS, MEZZO_I32, 2, form->batch, form->length);
    out[2] = MZ_INPUT("positions", MZ_ROLE_POSITIONS, MEZZO_I32, 2, form->batch, form->length);
    return form->documents ? 3 : 2;
}

#define FAMILY(family, ...)                                                                                            \
    {.name = #family, .check = mz_decoder_check, .inputs = language_inputs, .build = mz_decoder_build},
static const mz_maker decoders[] = {
#include "models/families.def"
};
static const mz_maker *const others[] = {&mz_model_toy,    &mz_model_mlp,        &mz_model_cnn,
                                         &mz_model_kl_vae, &mz_model_radio_unet, &mz_model_onnx};

static const struct {
    const char *name;
    mezzo_model_config config;
} sizes[] = {
#include "models/sizes.def"
};

int mezzo_model_count(void) {
    return (int)MZ_COUNT(sizes);
}

const char *mezzo_model_name(int index) {
    return index >= 0 && index < (int)MZ_COUNT(sizes) ? sizes[index].name : NULL;
}

static mezzo_status name_graph_file(const char *path, mezzo_model_config *config) {
    *config = (mezzo_model_config){.name = "onnx", .ignore_index = -100};
    if (strlen(path) >= sizeof config->graph)
        return mz_fail(MEZZO_ERR_INVALID, "model.name has %zu characters: a path of at most %zu works", strlen(path),
                       sizeof config->graph - 1);
    snprintf(config->graph, sizeof config->graph, "%s", path);
    return MEZZO_OK;
}

mezzo_status mezzo_model_defaults(const char *name, mezzo_model_config *config) {
    MZ_REQUIRE(name, config);
    const char *names[MZ_COUNT(sizes)];
    if (mz_ends_with(name, ".onnx"))
        return name_graph_file(name, config);
    for (size_t i = 0; i < MZ_COUNT(sizes); i++) {
        if (strcmp(sizes[i].name, name) == 0) {
            *config = sizes[i].config;
            if (strcmp(name, config->name) != 0)
                snprintf(config->size, sizeof config->size, "%s", name);
            return MEZZO_OK;
        }
        names[i] = sizes[i].name;
    }
    const char *nearest = mz_nearest(name, names, MZ_COUNT(names));
    if (nearest != NULL)
        return mz_fail(MEZZO_ERR_INVALID, "there is no model \"%s\"; did you mean \"%s\"?", name, nearest);
    MZ_SCOPED(mz_text_free) mz_text list = {0};
    for (size_t i = 0; i < MZ_COUNT(names); i++)
        mz_text_addf(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    return list.status != MEZZO_OK
               ? list.status
               : mz_fail(MEZZO_ERR_INVALID, "there is no model \"%s\"; choose one of %s", name, list.data);
}

static const mz_maker *find_maker(const char *name) {
    const mz_maker *decoder = MZ_FIND(decoders, MZ_COUNT(decoders), name, name);
    if (decoder != NULL)
        return decoder;
    for (size_t i = 0; i < MZ_COUNT(others); i++)
        if (strcmp(others[i]->name, name) == 0)
            return others[i];
    return NULL;
}

mezzo_model_purpose mezzo_model_task(const mezzo_model_config *config) {
    if (config == NULL)
        return MEZZO_TASK_LANGUAGE;
    const mz_maker *model = find_maker(config->name);
    return model == NULL || (model == &mz_model_onnx && config->texts) ? MEZZO_TASK_LANGUAGE : model->purpose;
}

mezzo_model_purpose mz_model_purpose(const mz_model *model) {
    return model->maker == &mz_model_onnx ? mezzo_model_task(&model->config) : model->maker->purpose;
}

mezzo_status mezzo_model_check(const mezzo_model_config *config) {
    MZ_REQUIRE(config);
    // The upper bounds keep every product of sizes within 64 bits, and ids within 32.
    const mz_key_range ranges[] = {
        {"layers", config->layers, 1, 4096},
        {"heads", config->heads, 1, 65536},
        {"d_model", config->d_model, 1, INT64_C(1) << 20},
        {"d_ff", config->d_ff, 0, INT64_C(1) << 24},
        {"vocab", config->vocab, 1, INT32_MAX},
        {"seq_len", config->seq_len, 1, INT64_C(1) << 24},
    };
    const mz_maker *model = find_maker(config->name);
    if (model == NULL) {
        mezzo_model_config unused;
        MEZZO_TRY(mezzo_model_defaults(config->name, &unused)); // its error names the nearest one
        return mz_fail(MEZZO_ERR_INVALID, "model.name is the named size \"%s\"; its family is \"%s\"", config->name,
                       unused.name);
    }
    if (model->open == NULL)
        MEZZO_TRY(mz_key_ranges_check(ranges, MZ_COUNT(ranges)));
    if (!(config->dropout >= 0 && config->dropout < 1)) // written so that NaN fails
        return mz_fail(MEZZO_ERR_INVALID, "model.dropout is %g: it must be at least 0 and below 1", config->dropout);
    return model->check(config);
}

// --- the object ----------------------------------------------------------------------------------------------------
mezzo_status mz_model_of(const mezzo_model_config *config, mz_model *out) {
    MEZZO_TRY(mezzo_model_check(config));
    *out = (mz_model){.maker = find_maker(config->name), .config = *config};
    return out->maker->open != NULL ? out->maker->open(out) : MEZZO_OK;
}

mz_model_sizes mz_model_sizes_of(const mz_model *model) {
    const mezzo_model_config *c = &model->config;
    const mezzo_model_purpose purpose = model->maker->purpose;
    mz_model_sizes out = {.length = purpose == MEZZO_TASK_LANGUAGE ? c->seq_len : 1,
                          .vocab = c->vocab,
                          .features = c->features,
                          .image_size = c->image_size,
                          .channels = c->channels,
                          .condition_size = c->condition_size,
                          .condition_channels = c->condition_channels,
                          .objective = (int)c->objective};
    if (purpose != MEZZO_TASK_IMAGES)
        out.classes = purpose == MEZZO_TASK_LANGUAGE ? c->vocab : c->classes;
    if (model->maker->sizes != NULL)
        model->maker->sizes(model, &out);
    return out;
}

const char *mz_model_config_name(const mezzo_model_config *config) {
    const char *slash = strrchr(config->graph, '/');
    return slash != NULL ? slash + 1 : config->graph[0] != '\0' ? config->graph : config->name;
}

const char *mz_model_name(const mz_model *model) {
    const mezzo_model_config *c = &model->config;
    return c->size[0] != '\0' ? c->size : c->graph[0] != '\0' ? mz_model_config_name(c) : model->maker->name;
}

void mz_model_summary(const mz_model *model, char *out, size_t size) {
    const mezzo_model_config *c = &model->config;
    const long long width = (long long)c->d_model;
    char context[64];
    int n = snprintf(context, sizeof context, "%lld", (long long)c->seq_len);
    if (c->positions > c->seq_len)
        snprintf(context + n, sizeof context - (size_t)n, " of %lld", (long long)c->positions);
    if (model->maker->summary != NULL)
        model->maker->summary(model, out, size);
    else if (model->maker->purpose == MEZZO_TASK_LANGUAGE)
        snprintf(out, size, "%lld layers, %lld heads, width %lld, context %s, vocabulary %lld", (long long)c->layers,
                 (long long)c->heads, width, context, (long long)c->vocab);
    else if (model->maker->purpose == MEZZO_TASK_CLASSIFIER)
        snprintf(out, size, "width %lld, %lld classes", width, (long long)c->classes);
    else
        snprintf(out, size, "width %lld", width);
}

int64_t mz_model_positions(const mezzo_model_config *config) {
    return config->positions > config->seq_len ? config->positions : config->seq_len;
}

void mz_model_set_length(mz_model *model, int64_t length) {
    const mz_decoder *decoder = mz_decoder_find(model->maker->name);
    if (decoder != NULL && decoder->positions == MZ_POSITIONS_ROTARY)
        model->config.seq_len = length;
}

bool mz_model_is_long(const mz_model *model, int64_t tokens) {
    const mz_decoder *decoder = mz_decoder_find(model->maker->name);
    const mezzo_model_config c =
        decoder != NULL ? mz_decoder_resolve(decoder, &model->config) : (mezzo_model_config){0};
    return c.rope_scaling == MZ_ROPE_LONG && tokens > c.rope_original;
}

int mz_model_inputs(const mz_model *model, const mz_form *form, mz_input out[MZ_MODEL_INPUTS]) {
    return model->maker->inputs(model, form, out);
}

int mz_classifier_inputs(const mz_model *model, const mz_form *form, mz_input out[MZ_MODEL_INPUTS]) {
    out[0] = MZ_INPUT("x", MZ_ROLE_FEATURES, MEZZO_F32, 2, form->batch, model->config.features);
    out[1] = MZ_INPUT("targets", MZ_ROLE_TARGETS, MEZZO_I32, 1, form->batch);
    return 2;
}

static mezzo_status check_form(const mz_model *model, const mz_form *form) {
    const bool cached = form->part == MZ_PART_CACHED;
    if (form->batch < 1 || form->batch > INT64_C(1) << 24)
        return mz_fail(MEZZO_ERR_INVALID, "the batch size is %lld: it must be from 1 to %d", (long long)form->batch,
                       1 << 24);
    if (form->part != MZ_PART_WHOLE && !cached && !model->maker->has_parts)
        return mz_fail(MEZZO_ERR_INVALID, "%s has no such part: kl_vae has an encoder and a decoder",
                       model->maker->name);
    const int64_t length = mz_model_sizes_of(model).length;
    if (form->length < 1 || form->length > length)
        return mz_fail(MEZZO_ERR_INVALID,
                       "a sequence of %lld tokens does not fit: the model's model.seq_len is %lld positions",
                       (long long)form->length, (long long)length);
    return MEZZO_OK;
}

mezzo_status mz_model_build(const mz_model *model, const mz_form *form, mezzo_graph *graph) {
    mz_input inputs[MZ_MODEL_INPUTS];
    mezzo_value values[MZ_MODEL_INPUTS];
    MEZZO_TRY(check_form(model, form));
    if (form->part == MZ_PART_CACHED)
        mezzo_cache_begin(graph, mz_model_sizes_of(model).length);
    const int n = mz_model_inputs(model, form, inputs);
    for (int i = 0; i < n; i++) {
        values[i] = inputs[i].built
                        ? MEZZO_NONE
                        : mezzo_input(graph, inputs[i].name, inputs[i].dtype, inputs[i].rank, inputs[i].dim);
        if (inputs[i].role == MZ_ROLE_POSITIONS)
            mezzo_documents_begin(graph, values[i]);
    }
    MEZZO_TRY(model->maker->build(model, form, values, graph));
    return mezzo_graph_status(graph);
}

// --- descriptions --------------------------------------------------------------------------------------------------
static mezzo_status describe_keys(const mz_model *model, mz_fact_fn put, void *user) {
    const mezzo_model_config *c = &model->config;
    if (c->size[0] != '\0')
        MEZZO_TRY(put(user, &(mz_fact){.key = "size", .text = c->size}));
    for (size_t i = 0; i < mz_model_key_count; i++) {
        const mz_model_key *key = &mz_model_keys[i];
        if (mz_model_takes(key, c->name))
            MEZZO_TRY(put(user, &(mz_fact){key->name, NULL, key->type, mz_model_key_get(key, c),
                                           key->resumes == MZ_KEY_SAME, mz_model_key_list(key, c)}));
    }
    return MEZZO_OK;
}

mezzo_status mz_model_describe(const mz_model *model, mz_fact_fn put, void *user) {
    MEZZO_TRY(put(user, &(mz_fact){.key = "name", .text = model->maker->name}));
    return model->maker->describe != NULL ? model->maker->describe(model, put, user) : describe_keys(model, put, user);
}

static mezzo_status find_text(mz_fact_find find, void *user, const char *key, char *out, size_t size) {
    mz_fact fact = {.key = key};
    bool found;
    MEZZO_TRY(find(user, true, &fact, &found));
    if (found && strlen(fact.text) >= size)
        return mz_fail(MEZZO_ERR_INVALID, "key '%s' is longer than %zu bytes", key, size - 1);
    snprintf(out, size, "%s", found ? fact.text : "");
    return MEZZO_OK;
}

// Reads keys; it skips keys in older checkpoints that the family does not take.
static mezzo_status read_keys(const char *name, mz_fact_find find, void *user, mz_model *out) {
    mezzo_model_config c;
    MEZZO_TRY(mezzo_model_defaults(name, &c));
    snprintf(c.name, sizeof c.name, "%s", name);
    MEZZO_TRY(find_text(find, user, "size", c.size, sizeof c.size));
    for (size_t i = 0; i < mz_model_key_count; i++) {
        const mz_model_key *key = &mz_model_keys[i];
        mz_fact fact = {.key = key->name, .type = key->type};
        bool found = false;
        if (mz_model_takes(key, name))
            MEZZO_TRY(find(user, false, &fact, &found));
        if (found && key->type == MZ_KEY_LIST)
            memcpy((char *)&c + key->offset, &fact.list, sizeof fact.list);
        else if (found)
            mz_model_key_set(key, &c, fact.number);
    }
    return mz_model_of(&c, out);
}

mezzo_status mz_model_read(mz_fact_find find, void *user, const char *folder, mz_model *out) {
    char name[sizeof out->config.name];
    MEZZO_TRY(find_text(find, user, "name", name, sizeof name));
    const mz_maker *maker = find_maker(name);
    return maker != NULL && maker->read != NULL ? maker->read(find, user, folder, out)
                                                : read_keys(name, find, user, out);
}

// Holds their description and ours during a comparison of one entry after another.
typedef struct comparison {
    const mz_model *theirs;
    const mz_fact *ours; // the entry to find in theirs
    const char *where, *other;
} comparison;

static mezzo_status compare_theirs(void *user, const mz_fact *theirs) {
    const comparison *c = user;
    const mz_fact *ours = c->ours;
    if (strcmp(theirs->key, ours->key) != 0 || !ours->same)
        return MEZZO_OK;
    if (theirs->text == NULL && ours->text == NULL && ours->type != MZ_KEY_LIST && theirs->number != ours->number)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s: the checkpoint's model.%s is %g, this run's is %g: use the checkpoint's, or another %s",
                       c->where, ours->key, theirs->number, ours->number, c->other);
    if (memcmp(&theirs->list, &ours->list, sizeof ours->list) != 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s: the checkpoint's model.%s has other numbers than this run's: use the checkpoint's, or "
                       "another %s",
                       c->where, ours->key, c->other);
    if (theirs->text != NULL && ours->text != NULL && strcmp(theirs->text, ours->text) != 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s: the checkpoint's model.%s is %s, this run's is %s: use the checkpoint's, or another %s",
                       c->where, ours->key, theirs->text, ours->text, c->other);
    return MEZZO_OK;
}

static mezzo_status compare_ours(void *user, const mz_fact *ours) {
    comparison *c = user;
    c->ours = ours;
    return mz_model_describe(c->theirs, compare_theirs, c);
}

mezzo_status mz_model_continues(const mz_model *ours, const mz_model *theirs, const char *where, const char *other) {
    if (ours->maker != theirs->maker)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s: the checkpoint's model is %s, this run's is %s: use the checkpoint's, or another %s", where,
                       theirs->maker->name, ours->maker->name, other);
    return mz_model_describe(ours, compare_ours, &(comparison){theirs, NULL, where, other});
}

// --- the public calls ----------------------------------------------------------------------------------------------
static mezzo_status build(mezzo_graph *graph, const mezzo_model_config *config, const mz_form *form) {
    mz_model model;
    MEZZO_TRY(mz_model_of(config, &model));
    return mz_model_build(&model, form, graph);
}

mezzo_status mezzo_model_build(mezzo_graph *graph, const mezzo_model_config *config, int64_t batch, int64_t seq_len,
                               bool keep_logits) {
    MZ_REQUIRE(graph, config);
    return build(graph, config, &(mz_form){.batch = batch, .length = seq_len, .outputs = keep_logits});
}

mezzo_status mezzo_model_build_part(mezzo_graph *graph, const mezzo_model_config *config, int64_t batch,
                                    mezzo_model_part part) {
    MZ_REQUIRE(graph, config);
    if ((unsigned)part > MEZZO_PART_DECODE)
        return mz_fail(MEZZO_ERR_INVALID, "the part is %d: use MEZZO_PART_ENCODE or MEZZO_PART_DECODE", (int)part);
    const mz_model_part parts[] = {MZ_PART_ENCODER, MZ_PART_DECODER};
    return build(graph, config, &(mz_form){.batch = batch, .length = 1, .part = parts[part]});
}

mezzo_status mezzo_model_build_cached(mezzo_graph *graph, const mezzo_model_config *config, int64_t batch,
                                      int64_t tokens) {
    MZ_REQUIRE(graph, config);
    return build(graph, config, &(mz_form){.batch = batch, .length = tokens, .part = MZ_PART_CACHED, .outputs = true});
}
