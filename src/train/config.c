// The configuration's public face, and its translation into the options of models, programs, optimizers and scalers.
#include "train/config.h"

#include "base/precision.h"
#include "models/keys.h"

struct mz_override_list {
    mezzo_override *items;
    size_t count, cap;
};

static const mz_config_row schema[] = {
#define CONFIG(path, type, fallback, min, max, names, alias, help, flags)                                              \
    {path, MZ_CONFIG_##type, fallback, min, max, names, alias, help, flags},
#include "train/config.def"
#undef CONFIG
};

// --- setting and getting -------------------------------------------------------------------------
mezzo_status mezzo_config_create(mezzo_config **out) {
    MZ_REQUIRE(out);
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    mezzo_config *config = mz_alloc(1, sizeof *config);
    if (config == NULL)
        return MEZZO_ERR_MEMORY;
    config->overrides = mz_alloc(1, sizeof *config->overrides);
    if (config->overrides == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    MEZZO_TRY_GOTO(status, mz_config_create(schema, MZ_COUNT(schema), &config->values));
    *out = config;
    return MEZZO_OK;
fail:
    mezzo_config_free(config);
    return status;
}

void mezzo_config_free(mezzo_config *config) {
    if (!mz_free_once(config, "configuration"))
        return;
    if (config->overrides != NULL)
        mz_free(config->overrides->items);
    mz_free(config->overrides);
    mz_config_free(config->values);
    mz_free(config);
}

mezzo_status mezzo_config_load(mezzo_config *config, const char *path) {
    MZ_REQUIRE(config, path);
    return mz_config_load_yaml(config->values, path);
}

mezzo_status mezzo_config_set(mezzo_config *config, const char *key, const char *value, const char *source) {
    MZ_REQUIRE(config, key, value);
    return mz_config_set(config->values, key, value, MZ_CONFIG_COMMAND_LINE, source);
}

mezzo_status mezzo_config_args(mezzo_config *config, int argc, const char *const *argv, const char **rest,
                               int *n_rest) {
    MZ_REQUIRE(config, n_rest);
    if (argc > 0)
        MZ_REQUIRE(argv, rest);
    return mz_config_parse_args(config->values, argc, argv, rest, n_rest);
}

const char *mezzo_config_get(const mezzo_config *config, const char *key) {
    if (config == NULL || key == NULL)
        return NULL;
    return mz_config_get_text(config->values, key);
}

int mezzo_config_count(void) {
    return (int)MZ_COUNT(schema);
}

mezzo_config_key mezzo_config_describe(int index) {
    static const char *const types[] = {
        [MZ_CONFIG_INT] = "integer", [MZ_CONFIG_FLOAT] = "number", [MZ_CONFIG_BOOL] = "true|false",
        [MZ_CONFIG_STRING] = "text", [MZ_CONFIG_ENUM] = NULL,      [MZ_CONFIG_MAP] = "map"};
    if (index < 0 || index >= (int)MZ_COUNT(schema))
        return (mezzo_config_key){0};
    const mz_config_row *row = &schema[index];
    return (mezzo_config_key){.key = row->path,
                              .initial = row->fallback,
                              .help = row->help,
                              .type = row->type == MZ_CONFIG_ENUM ? row->names : types[row->type],
                              .aliases = row->alias != NULL ? row->alias : ""};
}

mezzo_status mezzo_config_save(const mezzo_config *config, const char *path) {
    MZ_REQUIRE(config, path);
    return mz_config_write_yaml(config->values, path);
}

// --- what the keys mean --------------------------------------------------------------------------
static mezzo_status key_value(const mz_config *values, const mz_model_key *key, double *out) {
    int64_t integer = 0;
    bool truth = false;
    mezzo_status status = MEZZO_OK;
    if (key->type == MZ_KEY_FLOAT)
        return mz_config_get_float(values, key->path, out);
    if (key->type == MZ_KEY_INT)
        status = mz_config_get_int(values, key->path, &integer);
    else
        status = mz_config_get_bool(values, key->path, &truth);
    *out = key->type == MZ_KEY_INT ? (double)integer : (double)truth;
    return status;
}

// What the data decides of the model, where nobody else does; 0 = nothing.
static double size_of_data(const mz_data_sizes *data, const mz_model_key *key) {
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"vocab", data->vocab},
                 {"features", data->features},
                 {"classes", data->classes},
                 {"image_size", data->image_size},
                 {"channels", data->channels},
                 {"condition_size", data->condition_size},
                 {"condition_channels", data->condition_channels}};
    for (size_t i = 0; i < MZ_COUNT(sizes); i++)
        if (strcmp(sizes[i].name, key->name) == 0)
            return (double)sizes[i].value;
    return 0;
}

mezzo_status mz_config_model(const mezzo_config *config, const mz_data_sizes *data, mezzo_model_config *out) {
    const char *name;
    MEZZO_TRY(mz_config_get_string(config->values, "model.name", &name));
    MEZZO_TRY(mezzo_model_defaults(name, out));
    for (size_t i = 0; i < mz_model_key_count; i++) {
        const mz_model_key *key = &mz_model_keys[i];
        double value = 0, size = size_of_data(data, key);
        MEZZO_TRY(key_value(config->values, key, &value));
        bool given = value != mz_model_key_own(key), takes = mz_model_takes(key, out->name);
        if (given && !takes)
            return mz_fail(MEZZO_ERR_INVALID, "%s is set, but %s has no such key: remove it (it belongs to %s)",
                           key->path, out->name, key->models);
        if (given && value != mz_model_key_get(key, out))
            out->size[0] = '\0';
        if (given)
            mz_model_key_set(key, out, value);
        else if (takes && size > 0)
            mz_model_key_set(key, out, size);
    }
    return mezzo_model_check(out);
}

mezzo_status mezzo_config_model(const mezzo_config *config, int64_t vocab, mezzo_model_config *out) {
    MZ_REQUIRE(config, out);
    if (vocab < 0)
        return mz_fail(MEZZO_ERR_INVALID, "a vocabulary of %lld tokens: use 0 if it is not known", (long long)vocab);
    return mz_config_model(config, &(mz_data_sizes){.vocab = vocab}, out);
}

mezzo_status mezzo_config_program(const mezzo_config *config, mezzo_program_options *out) {
    MZ_REQUIRE(config, out);
    const mz_config *values = config->values;
    mz_override_list *list = config->overrides;
    const char *precision, *residual, *emulate, *rounding;
    *out = (mezzo_program_options){0};
    MEZZO_TRY(mz_config_get_string(values, "amp.precision", &precision));
    MEZZO_TRY(mezzo_precision_parse(precision, &out->precision));
    MEZZO_TRY(mz_config_get_string(values, "amp.residual", &residual));
    out->residual = strcmp(residual, "low") == 0 ? MEZZO_RESIDUAL_LOW : MEZZO_RESIDUAL_WIDEST;
    MEZZO_TRY(mz_config_get_string(values, "amp.emulate", &emulate));
    for (int b = 0; b < MEZZO_BLOCKS_COUNT; b++)
        if (strcmp(emulate, mezzo_blocks_name((mezzo_blocks)b)) == 0)
            out->emulate = (mezzo_blocks)b;
    MEZZO_TRY(mz_config_get_string(values, "amp.emulate_rounding", &rounding));
    out->emulate_stochastic = strcmp(rounding, "stochastic") == 0;
    MEZZO_TRY(mz_config_get_bool(values, "amp.emulate_hadamard", &out->emulate_hadamard));
    MEZZO_TRY(mz_config_get_bool(values, "amp.recompute", &out->recompute));
    MEZZO_TRY(mz_config_get_bool(values, "amp.recompute_light", &out->recompute_light));
    MEZZO_TRY(mz_config_get_int(values, "amp.logits_rows", &out->logits_rows));
    list->count = 0;
    for (size_t i = 0;; i++) {
        const char *pattern, *value;
        MEZZO_TRY(mz_config_map_get(values, "autocast", i, &pattern, &value));
        if (pattern == NULL)
            break;
        MEZZO_TRY(MZ_RESERVE(list->items, list->cap, list->count + 1));
        mezzo_override *item = &list->items[list->count++];
        item->pattern = pattern;
        MEZZO_TRY(mezzo_precision_parse(value, &item->precision));
    }
    out->overrides = list->items;
    out->n_overrides = (int)list->count;
    return MEZZO_OK;
}

mezzo_status mz_config_set_model(mezzo_config *config, const mezzo_model_config *m) {
    char text[32];
    for (size_t i = 0; i < mz_model_key_count; i++)
        if (mz_model_takes(&mz_model_keys[i], m->name))
            MEZZO_TRY(mezzo_config_set(config, mz_model_keys[i].path,
                                       mz_model_key_text(&mz_model_keys[i], m, text, sizeof text), "resolved"));
    return MEZZO_OK;
}

// First error of a row of reads, so that they read as a list.
typedef struct reader {
    const mz_config *values;
    mezzo_status status;
} reader;

static int64_t integer(reader *r, const char *path) {
    int64_t value = 0;
    if (r->status == MEZZO_OK)
        r->status = mz_config_get_int(r->values, path, &value);
    return value;
}

static double number(reader *r, const char *path) {
    double value = 0;
    if (r->status == MEZZO_OK)
        r->status = mz_config_get_float(r->values, path, &value);
    return value;
}

static bool truth(reader *r, const char *path) {
    bool value = false;
    if (r->status == MEZZO_OK)
        r->status = mz_config_get_bool(r->values, path, &value);
    return value;
}

static const char *text(reader *r, const char *path) {
    const char *value = "";
    if (r->status == MEZZO_OK)
        r->status = mz_config_get_string(r->values, path, &value);
    return value;
}

static int choice(reader *r, const char *path) {
    int value = 0;
    if (r->status == MEZZO_OK)
        r->status = mz_config_get_enum(r->values, path, &value);
    return value;
}

static void read_run(reader *r, mz_run_config *out) {
    out->data.path = text(r, "data.path");
    out->data.train = text(r, "data.train");
    out->data.validation = text(r, "data.val");
    out->data.tokenizer = text(r, "data.tokenizer");
    out->data.features = text(r, "data.features");
    out->data.labels = text(r, "data.labels");
    out->data.latents = text(r, "data.latents");
    out->data.split = number(r, "data.split");
    out->steps = integer(r, "train.steps");
    out->batch_size = integer(r, "train.batch_size");
    out->global_batch = integer(r, "train.global_batch");
    out->grad_accum = integer(r, "train.grad_accum");
    out->freeze = text(r, "train.freeze");
    out->lora = (mezzo_lora){
        .rank = integer(r, "lora.rank"), .alpha = number(r, "lora.alpha"), .modules = text(r, "lora.modules")};
    out->seed = (uint64_t)integer(r, "train.seed");
    out->out = text(r, "train.out");
    out->resume = text(r, "train.resume");
    out->init = text(r, "train.init");
    out->eval_every = integer(r, "train.eval_every");
    out->eval_iters = integer(r, "train.eval_iters");
    out->eval_final = truth(r, "train.eval_final");
    out->sample_every = integer(r, "train.sample_every");
    out->sample_tokens = integer(r, "train.sample_tokens");
    out->log_every = integer(r, "train.log_every");
    out->histograms_every = integer(r, "train.histograms_every");
    out->checkpoint_every = integer(r, "train.checkpoint_every");
    out->keep_last = integer(r, "train.keep_last");
    out->max_skips = integer(r, "train.max_skips");
    out->profile = integer(r, "train.profile");
    out->shard = (mz_shard)choice(r, "ranks.shard");
    out->canonical = choice(r, "ranks.reduce") == 1;
    out->bf16_wire = choice(r, "ranks.reduce_wire") == 1;
    out->bucket_mib = number(r, "ranks.bucket_mib");
    out->device = text(r, "device.name");
    out->threads = (int)integer(r, "device.threads");
    out->peak_tflops = number(r, "device.peak_tflops");
}

static void read_optimizer(reader *r, mz_run_config *out) {
    mezzo_optimizer_options *o = &out->optimizer;
    *o = mezzo_optimizer_defaults();
    o->kind = choice(r, "optimizer.kind") == 0 ? MEZZO_ADAMW : MEZZO_SGD;
    o->beta1 = number(r, "optimizer.beta1");
    o->beta2 = number(r, "optimizer.beta2");
    o->eps = number(r, "optimizer.eps");
    o->weight_decay = number(r, "optimizer.weight_decay");
    o->momentum = number(r, "optimizer.momentum");
    o->nesterov = truth(r, "optimizer.nesterov");
    o->ema = number(r, "optimizer.ema");
    o->moments = (mezzo_moments)choice(r, "optimizer.moments"); // the order of config.def's names
    const int master = choice(r, "optimizer.master"); // the order of config.def's names: auto, then the enum's
    out->master_auto = master == 0;
    out->master = master == 0 ? MEZZO_MASTER_FP32 : (mezzo_master)(master - 1);
    o->decay_min_rank = 2; // matrices and embeddings, not biases and norms
    out->clip = number(r, "optimizer.clip");
    // The order of names in config.def and of mezzo_schedule.kind is the same.
    static const int kinds[] = {MEZZO_LR_CONSTANT, MEZZO_LR_LINEAR, MEZZO_LR_COSINE, MEZZO_LR_POLYNOMIAL};
    int kind = kinds[choice(r, "schedule.kind")];
    memcpy(&o->schedule.kind, &kind, sizeof kind);
    o->schedule.lr = number(r, "optimizer.lr");
    o->schedule.min_lr = number(r, "optimizer.min_lr");
    if (o->schedule.min_lr < 0)
        o->schedule.min_lr = o->schedule.lr / 10;
    o->schedule.power = number(r, "schedule.power");
    o->schedule.warmup = integer(r, "schedule.warmup");
    o->schedule.steps = integer(r, "schedule.steps");
    if (o->schedule.steps == 0)
        o->schedule.steps = out->steps;
}

static void read_scaler(reader *r, mz_run_config *out) {
    int enabled = choice(r, "amp.scaler.enabled"); // auto, true, false
    mezzo_scaler_options *o = &out->scaler.options;
    *o = mezzo_scaler_defaults();
    out->scaler.automatic = enabled == 0;
    o->enabled = enabled == 1;
    o->init_scale = number(r, "amp.scaler.init_scale");
    o->growth_factor = number(r, "amp.scaler.growth_factor");
    o->backoff_factor = number(r, "amp.scaler.backoff_factor");
    o->growth_interval = integer(r, "amp.scaler.growth_interval");
    o->min_scale = number(r, "amp.scaler.min_scale");
    o->max_scale = number(r, "amp.scaler.max_scale");
    o->hysteresis = (int)integer(r, "amp.scaler.hysteresis");
    o->floor_patience = 0; // the loop counts skips itself, for every precision (guard.c)
}

static void read_guard(reader *r, mz_guard_config *g) {
    // The order of names in config.def and of the enums is the same.
    int policy = choice(r, "guard.policy"), spike = choice(r, "guard.spike");
    memcpy(&g->policy, &policy, sizeof policy);
    memcpy(&g->spike, &spike, sizeof spike);
    g->activations = integer(r, "guard.activations");
    g->sample = integer(r, "guard.sample");
    g->limit = number(r, "guard.limit");
    g->parameters_every = integer(r, "guard.parameters_every");
    g->spike_score = number(r, "guard.spike_score");
    g->spike_window = integer(r, "guard.spike_window");
    g->max_rollbacks = integer(r, "guard.max_rollbacks");
}

static mezzo_status check_together(const mz_run_config *c) {
    bool pair = c->data.train[0] != '\0' || c->data.validation[0] != '\0';
    if (pair && c->data.path[0] != '\0')
        return mz_fail(MEZZO_ERR_INVALID,
                       "data.path is set together with data.train or data.val: give data.path, or the other two");
    if (c->data.validation[0] != '\0' && c->data.train[0] == '\0')
        return mz_fail(MEZZO_ERR_INVALID, "data.val is set but data.train is not: give both, or data.path");
    const mezzo_schedule *s = &c->optimizer.schedule;
    if (s->kind != MEZZO_LR_CONSTANT && s->min_lr > s->lr)
        return mz_fail(MEZZO_ERR_INVALID, "optimizer.min_lr is %g, above optimizer.lr, %g: make it smaller", s->min_lr,
                       s->lr);
    if (c->optimizer.nesterov && c->optimizer.kind == MEZZO_SGD && c->optimizer.momentum <= 0)
        return mz_fail(MEZZO_ERR_INVALID, "optimizer.nesterov needs an optimizer.momentum above 0");
    if (c->optimizer.moments != MEZZO_MOMENTS_FP32 && c->optimizer.kind != MEZZO_ADAMW)
        return mz_fail(
            MEZZO_ERR_INVALID,
            "optimizer.moments is %s, but optimizer.kind is sgd: only adamw supports it; remove optimizer.moments",
            mezzo_moments_name(c->optimizer.moments));
    const mz_precision_info *p = mz_precision(c->program.precision);
    if (c->master != MEZZO_MASTER_FP32 && (p == NULL || p->operand != MEZZO_BF16))
        return mz_fail(
            MEZZO_ERR_INVALID,
            "optimizer.master is %s, which needs bf16, but amp.precision is %s: use precision bf16, or fp32 masters",
            mezzo_master_name(c->master), mezzo_precision_name(c->program.precision));
    const mezzo_scaler_options *o = &c->scaler.options;
    if (o->max_scale > 0 && o->max_scale < o->min_scale)
        return mz_fail(MEZZO_ERR_INVALID, "amp.scaler.max_scale is %g, below amp.scaler.min_scale, %g", o->max_scale,
                       o->min_scale);
    bool goes_back = c->guard.policy == MZ_GUARD_ROLLBACK || c->guard.spike == MZ_SPIKE_ROLLBACK;
    if (goes_back && c->checkpoint_every < 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s is rollback and train.checkpoint_every is -1: a rollback needs "
                       "checkpoints; set train.checkpoint_every",
                       c->guard.policy == MZ_GUARD_ROLLBACK ? "guard.policy" : "guard.spike");
    if (c->out[0] == '\0')
        return mz_fail(MEZZO_ERR_INVALID, "train.out is empty: name the run folder");
    return MEZZO_OK;
}

mezzo_status mz_run_config_share(mz_run_config *c, int ranks) {
    const int64_t together = c->batch_size * ranks;
    if (c->global_batch == 0)
        return MEZZO_OK;
    if (c->global_batch % together != 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "train.global_batch is %lld, not a multiple of the micro batches of %lld on %d rank%s (%lld "
                       "together): change train.batch_size or the number of ranks",
                       (long long)c->global_batch, (long long)c->batch_size, ranks, ranks == 1 ? "" : "s",
                       (long long)together);
    const int64_t accum = c->global_batch / together;
    if (c->grad_accum != 1 && c->grad_accum != accum)
        return mz_fail(MEZZO_ERR_INVALID,
                       "train.global_batch is %lld, which means %lld micro batches per step on %d rank%s, but "
                       "train.grad_accum is %lld: remove one of them",
                       (long long)c->global_batch, (long long)accum, ranks, ranks == 1 ? "" : "s",
                       (long long)c->grad_accum);
    c->grad_accum = accum;
    return MEZZO_OK;
}

mezzo_status mz_run_config_read(const mezzo_config *config, mz_run_config *out) {
    reader r = {config->values, MEZZO_OK};
    *out = (mz_run_config){0};
    read_run(&r, out);
    read_optimizer(&r, out);
    read_scaler(&r, out);
    read_guard(&r, &out->guard);
    MEZZO_TRY(r.status);
    MEZZO_TRY(mezzo_config_program(config, &out->program));
    return check_together(out);
}

mezzo_status mezzo_config_check(const mezzo_config *config) {
    MZ_REQUIRE(config);
    mz_run_config run;
    mezzo_model_config model;
    MEZZO_TRY(mz_run_config_read(config, &run));
    // A vocabulary that no check refuses: the data is not looked at here.
    return mezzo_config_model(config, 256, &model);
}
