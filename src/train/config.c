// Translates the public configuration into the options of models, programs, optimizers and scalers.
#include "train/config.h"

#include <limits.h>
#include <math.h>

#include "base/precision.h"
#include "io/number.h"
#include "io/quote.h"
#include "models/keys.h"

struct mz_override_list {
    mezzo_override *items;
    size_t count, cap;
};

enum { GROUP_PATTERNS = 64 };
struct mz_group_list {
    mezzo_optimizer_options items[MZ_GROUPS - 1];
    const char *patterns[GROUP_PATTERNS];
};

static const mz_config_row schema[] = {
#define CONFIG(path, type, ctype, place, fallback, min, max, names, alias, help, flags)                                \
    {path, MZ_CONFIG_##type, fallback, min, max, names, alias, help, flags},
#include "train/config.def"
};

// --- setting and getting -------------------------------------------------------------------------
mezzo_status mezzo_config_create(mezzo_config **out) {
    MZ_REQUIRE(out);
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    mezzo_config *config;
    MEZZO_TRY(MZ_NEW(config, 1));
    config->overrides = mz_alloc(1, sizeof *config->overrides);
    config->groups = mz_alloc(1, sizeof *config->groups);
    if (config->overrides == NULL || config->groups == NULL)
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
    MZ_FREE(config->overrides, config->groups);
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

mezzo_status mz_config_set_int(mezzo_config *config, const char *key, int64_t value, const char *source) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return mezzo_config_set(config, key, text, source);
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

int mz_config_index(const char *name, const char **pattern) {
    const mz_config_row *row = mz_config_row_of(schema, MZ_COUNT(schema), name, strlen(name), pattern);
    return row != NULL ? (int)(row - schema) : -1;
}

int mezzo_config_count(void) {
    return (int)MZ_COUNT(schema);
}

mezzo_config_key mezzo_config_describe(int index) {
    static const char *const types[] = {
        [MZ_CONFIG_INT] = "integer", [MZ_CONFIG_FLOAT] = "number", [MZ_CONFIG_BOOL] = "true|false",
        [MZ_CONFIG_STRING] = "text", [MZ_CONFIG_ENUM] = NULL,      [MZ_CONFIG_MAP] = "map",
        [MZ_CONFIG_LIST] = "numbers"};
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

// --- every key, typed ----------------------------------------------------------------------------
#define MZ_KEY_C_INT   int64_t
#define MZ_KEY_C_FLOAT double
#define MZ_KEY_C_BOOL  bool
#define MZ_KEY_C_LIST  mezzo_list
// Reads one row's value; that of an ENUM is the index of its name among `names`.
#define READ_VALUE(get, as, path, ctype, place)                                                                        \
    {                                                                                                                  \
        as value;                                                                                                      \
        MEZZO_TRY(get(values, path, &value));                                                                          \
        out->place = (ctype)value;                                                                                     \
    }
#define READ_INT(path, ctype, place)    READ_VALUE(mz_config_get_int, int64_t, path, ctype, place)
#define READ_FLOAT(path, ctype, place)  READ_VALUE(mz_config_get_float, double, path, ctype, place)
#define READ_BOOL(path, ctype, place)   READ_VALUE(mz_config_get_bool, bool, path, ctype, place)
#define READ_STRING(path, ctype, place) READ_VALUE(mz_config_get_string, const char *, path, ctype, place)
#define READ_ENUM(path, ctype, place)   READ_VALUE(mz_config_get_enum, int, path, ctype, place)
#define READ_LIST(path, ctype, place)                                                                                  \
    {                                                                                                                  \
        size_t n;                                                                                                      \
        MEZZO_TRY(mz_config_get_list(values, path, out->place.at, &n));                                                \
    }
#define READ_MAP(path, ctype, place) // read_overrides and read_groups read these

static mezzo_status read_rows(const mz_config *values, mz_run_config *out) {
#define CONFIG(path, type, ctype, place, fallback, min, max, names, alias, help, flags) READ_##type(path, ctype, place)
#include "train/config.def"
    return MEZZO_OK;
}

static mezzo_status read_overrides(const mezzo_config *config, mezzo_program_options *out) {
    mz_override_list *list = config->overrides;
    list->count = 0;
    for (size_t i = 0;; i++) {
        const char *pattern, *value;
        MEZZO_TRY(mz_config_map_get(config->values, "autocast", i, &pattern, &value));
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

// --- optimizer groups --------------------------------------------------------------------------------------------
// Holds what a group's settings can name, and whether the kind reads it.
typedef struct group_setting {
    const char *name;
    double *number; // NULL: the setting is nesterov
    bool is_read;
} group_setting;

static mezzo_status bad_group(const char *pattern, const char *word, const char *why) {
    return mz_fail(MEZZO_ERR_INVALID,
                   "optimizer.groups: %s: %s %s: use a kind (%s) and settings, such as \"sgd lr 0.1 weight_decay 0\"",
                   mz_quote(pattern).text, mz_quote(word).text, why, MZ_KIND_NAMES);
}

// Sets one key of a group from a word and its value. lr is a rate, which becomes a factor of the optimizer's.
static mezzo_status set_in_group(mezzo_optimizer_options *o, double *lr, const char *pattern, const char *word,
                                 const char *value) {
    const mz_kind *kind = &mz_kinds[o->kind];
    const group_setting settings[] = {{"lr", lr, true},
                                      {"lr_factor", &o->lr_factor, true},
                                      {"weight_decay", &o->weight_decay, true},
                                      {"beta1", &o->beta1, kind->reads.beta1},
                                      {"beta2", &o->beta2, kind->reads.beta2},
                                      {"eps", &o->eps, kind->reads.eps},
                                      {"momentum", &o->momentum, kind->reads.momentum},
                                      {"nesterov", NULL, kind->reads.nesterov}};
    for (size_t i = 0; i < MZ_COUNT(settings); i++) {
        if (strcmp(settings[i].name, word) != 0)
            continue;
        if (!settings[i].is_read)
            return mz_fail(MEZZO_ERR_INVALID, "optimizer.groups: %s: %s has no %s: remove it", mz_quote(pattern).text,
                           kind->name, word);
        const bool is_on = strcmp(value, "true") == 0;
        if (settings[i].number == NULL && (is_on || strcmp(value, "false") == 0)) {
            o->nesterov = is_on;
            return MEZZO_OK;
        }
        double number = -1;
        if (settings[i].number == NULL || !mz_number_parse(value, &number) || !(number >= 0 && number < HUGE_VAL))
            return bad_group(pattern, word, "needs a value, a number of 0 or more");
        *settings[i].number = number;
        return MEZZO_OK;
    }
    return bad_group(pattern, word, "is neither a kind nor a setting");
}

static mezzo_status read_group(const mezzo_optimizer_options *base, const char *pattern, const char *text,
                               mezzo_optimizer_options *out) {
    double lr = -1;
    char copy[256], *rest = copy;
    *out = *base;
    if (strlen(text) >= sizeof copy)
        return bad_group(pattern, text, "is too long");
    memcpy(copy, text, strlen(text) + 1);
    for (const char *word = strtok_r(rest, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        const int kind = mz_kind_find(word);
        if (kind >= 0) {
            mezzo_optimizer_set_kind(out, (mezzo_optimizer_kind)kind);
            out->orthogonal = base->orthogonal;
            continue;
        }
        const char *value = strtok_r(NULL, " ", &rest);
        MEZZO_TRY(set_in_group(out, &lr, pattern, word, value != NULL ? value : ""));
    }
    if (lr >= 0 && !(base->schedule.lr > 0))
        return bad_group(pattern, "lr", "needs an optimizer.lr above 0, of whose schedule it is a part");
    out->lr_factor = lr >= 0 ? lr / base->schedule.lr : out->lr_factor;
    return MEZZO_OK;
}

// Reads groups; neighbouring patterns with the same settings are one group.
static mezzo_status read_groups(const mezzo_config *config, mezzo_optimizer_options *out) {
    mz_group_list *list = config->groups;
    const char *before = NULL;
    int n = 0;
    for (size_t i = 0;; i++) {
        const char *pattern, *value;
        MEZZO_TRY(mz_config_map_get(config->values, "optimizer.groups", i, &pattern, &value));
        if (pattern == NULL)
            break;
        const bool is_same = before != NULL && strcmp(before, value) == 0;
        if (i == GROUP_PATTERNS || (!is_same && n == (int)MZ_COUNT(list->items)))
            return mz_fail(MEZZO_ERR_INVALID, "optimizer.groups: more than %d patterns or %d groups: join some",
                           GROUP_PATTERNS, (int)MZ_COUNT(list->items));
        list->patterns[i] = pattern;
        if (!is_same) {
            MEZZO_TRY(read_group(out, pattern, value, &list->items[n]));
            list->items[n++].patterns = &list->patterns[i];
            list->items[n - 1].n_patterns = 0;
        }
        list->items[n - 1].n_patterns++;
        before = value;
    }
    out->groups = n > 0 ? list->items : NULL;
    out->n_groups = n;
    return MEZZO_OK;
}

// Splits the optimizer of a kind per matrix: it gets the matrices of blocks, after the groups of the configuration, and
// AdamW the rest.
static mezzo_status split_matrices(const mezzo_config *config, mezzo_optimizer_options *out) {
    mezzo_optimizer_options matrices;
    const bool splits = mz_optimizer_split_matrices(out, &matrices);
    MEZZO_TRY(read_groups(config, out));
    mz_group_list *list = config->groups;
    if (!splits)
        return MEZZO_OK;
    if (out->n_groups == (int)MZ_COUNT(list->items))
        return mz_fail(MEZZO_ERR_INVALID, "optimizer.groups: more than %d groups beside %s: join some",
                       (int)MZ_COUNT(list->items) - 1, mz_kinds[matrices.kind].name);
    list->items[out->n_groups++] = matrices;
    out->groups = list->items;
    return MEZZO_OK;
}

// Replaces keys that mean "usual" by the kind's usual values.
static void fill_optimizer(mz_run_config *c) {
    mezzo_optimizer_options *o = &c->optimizer, usual = mezzo_optimizer_defaults();
    mezzo_optimizer_set_kind(&usual, o->kind);
    if (mz_kinds[o->kind].reads.orthogonal) // they are those of AdamW, which has the other parameters
        usual.beta2 = mezzo_optimizer_defaults().beta2;
    o->beta1 = o->beta1 < 0 ? usual.beta1 : o->beta1;
    o->beta2 = o->beta2 < 0 ? usual.beta2 : o->beta2;
    o->momentum = o->momentum < 0 ? usual.momentum : o->momentum;
    o->dampening = usual.dampening;
    o->orthogonal.whole = !c->ns_split;
    o->nesterov = c->nesterov == MZ_NESTEROV_AUTO ? usual.nesterov : c->nesterov == MZ_NESTEROV_ON;
}

static mezzo_status read_keys(const mezzo_config *config, mz_run_config *out) {
    *out = (mz_run_config){.optimizer = mezzo_optimizer_defaults(), .scaler = mezzo_scaler_defaults()};
    MEZZO_TRY(read_rows(config->values, out));
    MEZZO_TRY(read_overrides(config, &out->program));
    mezzo_schedule *s = &out->optimizer.schedule;
    s->min_lr = s->min_lr < 0 ? s->lr / 10 : s->min_lr;
    s->steps = s->steps == 0 ? out->steps : s->steps;
    out->optimizer.decay_min_rank = 2; // decays matrices and embeddings, not biases and norms
    fill_optimizer(out);
    MEZZO_TRY(split_matrices(config, &out->optimizer));
    out->scaler.floor_patience = 0; // the loop itself counts skipped steps, in every precision (guard.c)
    out->scaler.enabled = out->scaling == MZ_SCALING_ON;
    return MEZZO_OK;
}

mezzo_status mezzo_config_program(const mezzo_config *config, mezzo_program_options *out) {
    MZ_REQUIRE(config, out);
    mz_run_config run;
    MEZZO_TRY(read_keys(config, &run));
    *out = run.program;
    return MEZZO_OK;
}

mezzo_master mz_run_config_master(const mz_run_config *c, mezzo_precision precision) {
    return c->master == MZ_MASTER_AUTO ? mezzo_master_default(precision)
                                       : (mezzo_master)((int)c->master - (int)MZ_MASTER_FIRST);
}

mz_session_options mz_run_config_session(const mz_run_config *c) {
    return (mz_session_options){.form = {.batch = c->batch_size, .documents = c->data.pack},
                                .lora = c->lora,
                                .freeze = c->freeze,
                                .train = c->parameters,
                                .seed = mezzo_seed(c->seed, MEZZO_SEED_PARAMETERS),
                                .program = c->program,
                                .optimizer = c->optimizer,
                                .scaler = c->scaler,
                                .step = {.micro_batches = c->grad_accum, .clip = c->clip},
                                .size = 1,
                                .shard = c->shard,
                                .canonical = c->canonical,
                                .bf16_wire = c->bf16_wire,
                                .exchanges = c->exchange_experts,
                                .bucket = mz_bucket_elements(c->bucket_mib),
                                .replays = c->replay > 0,
                                .replays_update = c->replay_update};
}

// --- the model -----------------------------------------------------------------------------------
// Returns the value that the data gives to a key of the model, where no other source does; 0 = none.
static double size_of_data(const mz_model_sizes *data, const mz_model_key *key) {
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
    const size_t i = MZ_INDEX(sizes, MZ_COUNT(sizes), name, key->name);
    return i < MZ_COUNT(sizes) ? (double)sizes[i].value : 0;
}

// Sets a key that only models of ONNX files have.
static mezzo_status take_text(const char *key, const char *value, bool is_file, char *out, size_t size) {
    if (value[0] != '\0' && !is_file)
        return mz_fail(MEZZO_ERR_INVALID, "%s is set, but the model is no .onnx file: remove it", key);
    if (strlen(value) >= size)
        return mz_fail(MEZZO_ERR_INVALID, "%s has %zu characters: at most %zu work", key, strlen(value), size - 1);
    snprintf(out, size, "%s", value);
    return MEZZO_OK;
}

mezzo_status mz_run_config_model(const mz_run_config *c, const mz_model_sizes *data, mezzo_model_config *out) {
    MEZZO_TRY(mezzo_model_defaults(c->model_name, out));
    const bool is_file = out->graph[0] != '\0';
    MEZZO_TRY(take_text("model.loss", c->loss, is_file, out->loss, sizeof out->loss));
    MEZZO_TRY(take_text("model.dims", c->dims, is_file, out->dims, sizeof out->dims));
    for (size_t i = 0; i < mz_model_key_count; i++) {
        const mz_model_key *key = &mz_model_keys[i];
        const double size = size_of_data(data, key);
        bool given = mz_model_key_get(key, &c->model) != mz_model_key_own(key), takes = mz_model_takes(key, out->name);
        if (given && !takes)
            return mz_fail(MEZZO_ERR_INVALID, "%s is set, but %s has no such key: remove it (it belongs to %s)",
                           key->path, out->name, key->models);
        if (given && !mz_model_key_same(key, &c->model, out))
            out->size[0] = '\0';
        if (given)
            mz_model_key_copy(key, &c->model, out);
        else if (takes && size > 0)
            mz_model_key_set(key, out, size);
    }
    return mezzo_model_check(out);
}

mezzo_status mz_run_config_sketch(const mz_run_config *c, mz_session_options *out) {
    mezzo_model_config model;
    MEZZO_TRY(mezzo_model_defaults(c->model_name, &model));
    MEZZO_TRY(mz_run_config_model(c, &(mz_model_sizes){.vocab = model.vocab}, &model));
    *out = mz_run_config_session(c);
    out->form.outputs = true;
    MEZZO_TRY(mz_model_of(&model, &out->model));
    out->form.length = mz_model_sizes_of(&out->model).length;
    return MEZZO_OK;
}

mezzo_status mezzo_config_model(const mezzo_config *config, int64_t vocab, mezzo_model_config *out) {
    MZ_REQUIRE(config, out);
    mz_run_config run;
    if (vocab < 0)
        return mz_fail(MEZZO_ERR_INVALID, "a vocabulary of %lld tokens: use 0 if it is not known", (long long)vocab);
    MEZZO_TRY(read_keys(config, &run));
    return mz_run_config_model(&run, &(mz_model_sizes){.vocab = vocab}, out);
}

static mezzo_status put_model(mezzo_config *config, const mezzo_model_config *m, bool all) {
    char text[MZ_KEY_TEXT];
    if (m->graph[0] != '\0') { // the texts of other models are empty
        MEZZO_TRY(mezzo_config_set(config, "model.loss", m->loss, "resolved"));
        MEZZO_TRY(mezzo_config_set(config, "model.dims", m->dims, "resolved"));
    }
    for (size_t i = 0; i < mz_model_key_count; i++)
        if (mz_model_takes(&mz_model_keys[i], m->name) &&
            (all || strcmp(mz_config_origin(config->values, mz_model_keys[i].path), "default") == 0))
            MEZZO_TRY(mezzo_config_set(config, mz_model_keys[i].path,
                                       mz_model_key_text(&mz_model_keys[i], m, text, sizeof text), "resolved"));
    return MEZZO_OK;
}

mezzo_status mz_config_set_model(mezzo_config *config, const mezzo_model_config *m) {
    return put_model(config, m, true);
}

mezzo_status mz_config_fill_model(mezzo_config *config, const mezzo_model_config *m) {
    return put_model(config, m, false);
}

mezzo_status mz_config_find_graph(mezzo_config *config) {
    mezzo_model_config m;
    char kept[PATH_MAX];
    const char *name = mezzo_config_get(config, "model.name"), *folder = mezzo_config_get(config, "train.out");
    if (mezzo_model_defaults(name, &m) != MEZZO_OK || m.graph[0] == '\0' ||
        !mz_graph_file_is_kept(name, folder, kept, sizeof kept))
        return MEZZO_OK;
    mz_log("notice", "%s is no longer there: the run's copy %s is its model", mz_quote(name).text, kept);
    return mezzo_config_set(config, "model.name", kept, "resolved");
}

static mezzo_status check_together(const mz_run_config *c) {
    bool pair = c->data.train[0] != '\0' || c->data.validation[0] != '\0';
    if (pair && c->data.path[0] != '\0')
        return mz_fail(MEZZO_ERR_INVALID,
                       "data.path is set together with data.train or data.val: give data.path, or the other two");
    if (c->data.validation[0] != '\0' && c->data.train[0] == '\0')
        return mz_fail(MEZZO_ERR_INVALID, "data.val is set but data.train is not: give both, or data.path");
    if (c->replay_update && c->replay == 0)
        return mz_fail(MEZZO_ERR_INVALID, "train.replay_update is set but train.replay is 0: set it (--replay N)");
    if (c->lora.rank == 0 && strcmp(c->lora.modules, "*") != 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "lora.modules is set but lora.rank is 0, which trains no adapters: set it (--lora-rank 8)");
    if (c->exchange_experts && c->shard != MZ_SHARD_PARAMETERS)
        return mz_fail(MEZZO_ERR_INVALID,
                       "ranks.experts is exchange, which needs ranks.shard parameters: set both, or neither");
    const mezzo_schedule *s = &c->optimizer.schedule;
    if (s->kind != MEZZO_LR_CONSTANT && s->min_lr > s->lr)
        return mz_fail(MEZZO_ERR_INVALID, "optimizer.min_lr is %g, above optimizer.lr, %g: make it smaller", s->min_lr,
                       s->lr);
    if (mz_kinds[c->optimizer.kind].reads.nesterov && c->optimizer.nesterov && c->optimizer.momentum <= 0)
        return mz_fail(MEZZO_ERR_INVALID, "optimizer.nesterov needs an optimizer.momentum above 0");
    const mz_precision_info *p = mz_precision(c->program.precision);
    const mezzo_master master = mz_run_config_master(c, MEZZO_PRECISION_FP32);
    if (master != MEZZO_MASTER_FP32 && (p == NULL || p->operand != MEZZO_BF16))
        return mz_fail(
            MEZZO_ERR_INVALID,
            "optimizer.master is %s, which needs bf16, but amp.precision is %s: use precision bf16, or fp32 masters",
            mezzo_master_name(master), mezzo_precision_name(c->program.precision));
    const mezzo_scaler_options *o = &c->scaler;
    if (o->max_scale > 0 && o->max_scale < o->min_scale)
        return mz_fail(MEZZO_ERR_INVALID, "amp.scaler.max_scale is %g, below amp.scaler.min_scale, %g", o->max_scale,
                       o->min_scale);
    bool goes_back = c->guard_policy == MZ_GUARD_ROLLBACK || c->guard_spike == MZ_SPIKE_ROLLBACK;
    if (goes_back && c->checkpoint_every < 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s is rollback and train.checkpoint_every is -1: a rollback needs "
                       "checkpoints; set train.checkpoint_every",
                       c->guard_policy == MZ_GUARD_ROLLBACK ? "guard.policy" : "guard.spike");
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

// Returns where a key comes from. 0: it is not set; 1: a file; 2: the command line.
static int origin_rank(const mezzo_config *config, const char *key) {
    const char *origin = mz_config_origin(config->values, key);
    return strcmp(origin, "default") == 0 ? 0 : strncmp(origin, "--", 2) == 0 ? 2 : 1;
}

mezzo_status mz_run_config_count_epochs(const mezzo_config *config, uint64_t batches, int ranks, mz_run_config *run) {
    const int steps_from = origin_rank(config, "train.steps"), epochs_from = origin_rank(config, "train.epochs");
    int64_t schedule;
    if (run->epochs == 0 && epochs_from == 2)
        return mz_fail(MEZZO_ERR_INVALID, "--epochs 0 trains nothing: give a number above 0, or --steps instead");
    if (run->epochs == 0 || steps_from > epochs_from)
        return MEZZO_OK;
    if (steps_from == epochs_from)
        return mz_fail(MEZZO_ERR_INVALID,
                       "train.steps (--steps) and train.epochs (--epochs) both say how long to train: remove one");
    const double steps = ceil(run->epochs * (double)batches / (double)(run->grad_accum * ranks));
    if (!(steps <= 1e12))
        return mz_fail(MEZZO_ERR_INVALID, "train.epochs is %g, which are %g steps: use at most 1e12 steps", run->epochs,
                       steps);
    MEZZO_TRY(mz_config_get_int(config->values, "schedule.steps", &schedule));
    run->steps = (int64_t)fmax(steps, 1);
    if (schedule == 0)
        run->optimizer.schedule.steps = run->steps;
    return MEZZO_OK;
}

mezzo_status mz_run_config_read(const mezzo_config *config, mz_run_config *out) {
    MEZZO_TRY(read_keys(config, out));
    return check_together(out);
}

mezzo_status mezzo_config_check(const mezzo_config *config) {
    MZ_REQUIRE(config);
    mz_run_config run;
    mezzo_model_config model;
    MEZZO_TRY(mz_run_config_read(config, &run));
    // A vocabulary that no check refuses, because the data is not read here.
    return mz_run_config_model(&run, &(mz_model_sizes){.vocab = 256}, &model);
}
