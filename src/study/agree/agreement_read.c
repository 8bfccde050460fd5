// Reads what one configuration file asks for. The frameworks document these keys; docs/doctor.md has the table.
#include <ctype.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "base/precision.h"
#include "base/scope.h"
#include "io/file.h"
#include "io/yaml.h"
#include "mezzo/train.h"
#include "study/agree/agreement.h"

static const char *const ask_names[MZ_ASK_COUNT] = {"nothing", "fp32", "tf32", "fp16", "bf16", "fp8", "fp64", "auto"};
static const char *const asker_names[] = {"no precision settings",
                                          "mezzo",
                                          "accelerate",
                                          "deepspeed",
                                          "lightning",
                                          "mmengine",
                                          "detectron2",
                                          "nanogpt",
                                          "trainer"};

const char *mz_ask_name(mz_ask ask) {
    return ask_names[ask];
}

const char *mz_asker_name(mz_asker asker) {
    return asker_names[asker];
}

// --- words ---------------------------------------------------------------------------------------------------------
typedef struct word {
    const char *text;
    mz_ask ask;
    bool pure;
} word;

// Words of the frameworks, in lower case and without "torch.", that name no single precision: no mixed precision, "amp"
// with its tool's own meaning, and parameters in a low format. precisions.def has all others.
static const word words[] = {
    {"no", MZ_ASK_FP32, false},
    {"none", MZ_ASK_FP32, false},
    {"null", MZ_ASK_FP32, false},
    {"off", MZ_ASK_FP32, false},
    {"false", MZ_ASK_FP32, false},
    {"disabled", MZ_ASK_FP32, false},
    {"o0", MZ_ASK_FP32, false},
    {"o1", MZ_ASK_FP16, false},
    {"o2", MZ_ASK_FP16, false},
    {"o3", MZ_ASK_FP16, true},
    {"16-true", MZ_ASK_FP16, true},
    {"bf16-true", MZ_ASK_BF16, true},
    {"amp", MZ_ASK_FP16, false}, // OpenCLIP's word
    {"pure_fp16", MZ_ASK_FP16, true},
    {"pure_bf16", MZ_ASK_BF16, true},
    {"transformer-engine", MZ_ASK_FP8, false},
    {"transformer-engine-float16", MZ_ASK_FP8, false},
};

static void lower(const char *text, char *out, size_t size) {
    if (strncmp(text, "torch.", 6) == 0)
        text += 6;
    size_t i = 0;
    for (; text[i] != '\0' && i + 1 < size; i++)
        out[i] = (char)tolower((unsigned char)text[i]);
    out[i] = '\0';
}

static bool find_word(const char *text, word *out) {
    char low[64];
    mezzo_precision precision;
    lower(text, low, sizeof low);
    const word *found = MZ_FIND(words, MZ_COUNT(words), text, low);
    if (found != NULL) {
        *out = *found;
        return true;
    }
    if (mezzo_precision_parse(low, &precision) != MEZZO_OK)
        return false;
    const size_t ask = MZ_INDEX_WORD(ask_names, MZ_ASK_COUNT, mezzo_precision_name(precision));
    if (ask < MZ_ASK_COUNT) {
        *out = (word){ask_names[ask], (mz_ask)ask, false};
        return true;
    }
    *out = (word){ask_names[MZ_ASK_FP8], MZ_ASK_FP8, false};
    return mz_precision(precision) != NULL && mz_precision(precision)->scaling != MZ_SCALING_NONE;
}

// Reads a truth value as YAML 1.1 and users write it, quoted or not: accelerate's own files quote 'no'. -1: neither.
static int truth(const char *text) {
    static const char *const yes[] = {"true", "yes", "on", "1", "y"}, *const no[] = {"false", "no", "off", "0", "n"};
    char low[16];
    lower(text, low, sizeof low);
    return MZ_INDEX_WORD(yes, MZ_COUNT(yes), low) < MZ_COUNT(yes) ? 1
           : MZ_INDEX_WORD(no, MZ_COUNT(no), low) < MZ_COUNT(no)  ? 0
                                                                  : -1;
}

static bool one_of(const char *name, const char *list) { // `list` is " a b c "
    char padded[96];
    snprintf(padded, sizeof padded, " %s ", name);
    return strstr(list, padded) != NULL;
}

// --- one file ------------------------------------------------------------------------------------------------------
typedef struct reader {
    mz_asked *out;
    bool amp_on;
    mz_said amp_said;
    bool dtype_pure; // its name says that it is the parameters': torch_dtype, params_dtype
    mz_vote dtype;   // the value of dtype:, which is a format only where amp is on, and else the parameters' own
} reader;

static void say(mz_said *said, const char *key, const mz_yaml_node *node) {
    snprintf(said->key, sizeof said->key, "%s", key);
    snprintf(said->value, sizeof said->value, "%s", node->kind == MZ_YAML_SCALAR ? node->text : "…");
    said->line = node->line;
}

static void vote(mz_asked *out, mz_ask ask, bool weak, bool pure, const char *key, const mz_yaml_node *node) {
    if (out->n_votes == MZ_VOTES_MAX)
        return; // the first two dozen suffice
    mz_vote *v = &out->votes[out->n_votes++];
    *v = (mz_vote){.ask = ask, .weak = weak, .pure = pure};
    say(&v->said, key, node);
}

// Reads a key whose value is a precision's name. The caller handles "true".
static void vote_word(reader *r, const char *key, const mz_yaml_node *node) {
    word w;
    if (find_word(mz_yaml_is_null(node) ? "null" : node->text, &w))
        vote(r->out, w.ask, false, w.pure, key, node);
    else if (r->out->unknown.line == 0)
        say(&r->out->unknown, key, node);
}

static void switch_amp(reader *r, bool on, const char *key, const mz_yaml_node *node) {
    if (!on) {
        vote(r->out, MZ_ASK_FP32, false, false, key, node);
        return;
    }
    r->amp_on = true;
    say(&r->amp_said, key, node);
}

// Reads fp16: and bf16: as a truth value, or as DeepSpeed's map with `enabled`, which may be "auto".
static void read_switch(reader *r, mz_ask ask, const char *path, const mz_yaml_node *node) {
    const mz_yaml_node *value = node;
    char key[96];
    snprintf(key, sizeof key, "%s", path);
    if (node->kind == MZ_YAML_MAP) {
        value = mz_yaml_get(node, "enabled");
        if (value == NULL && r->out->asker != MZ_ASKER_DEEPSPEED && mz_yaml_get(node, "loss_scale") != NULL)
            vote(r->out, ask, false, false, key,
                 mz_yaml_get(node, "loss_scale")); // MMCV writes fp16 = dict(loss_scale=512.)
        if (value == NULL || value->kind != MZ_YAML_SCALAR)
            return;
        snprintf(key, sizeof key, "%.80s.enabled", path);
    }
    if (value->kind != MZ_YAML_SCALAR || mz_yaml_is_null(value))
        return;
    char low[16];
    lower(value->text, low, sizeof low);
    int on = truth(value->text);
    if (strcmp(low, "auto") == 0)
        vote(r->out, MZ_ASK_AUTO, true, false, key, value);
    else if (on < 0 && r->out->unknown.line == 0)
        say(&r->out->unknown, key, value);
    else if (on >= 0)
        vote(r->out, on ? ask : MZ_ASK_FP32, !on, false, key, value);
}

static void set_scaler(reader *r, bool on, const char *key, const mz_yaml_node *node) {
    r->out->scaler = on ? MZ_SCALER_ON : MZ_SCALER_OFF;
    say(&r->out->scaler_said, key, node);
}

// Reads a scaler's switch. A number is a scale: in DeepSpeed 0 is dynamic, 1 is none, any other is fixed.
static void read_scaler(reader *r, const char *key, const mz_yaml_node *node) {
    if (node->kind == MZ_YAML_MAP) {
        const mz_yaml_node *enabled = mz_yaml_get(node, "enabled");
        if (enabled != NULL && enabled->kind == MZ_YAML_SCALAR && truth(enabled->text) >= 0)
            set_scaler(r, truth(enabled->text) == 1, key, enabled);
        else if (mz_yaml_get(node, "init_scale") != NULL)
            set_scaler(r, true, key, node);
        return;
    }
    if (node->kind != MZ_YAML_SCALAR)
        return;
    char low[24], *end;
    lower(node->text, low, sizeof low);
    double scale = mz_strtod(node->text, &end);
    bool number = end != node->text && *end == '\0';
    if (number && strstr(key, "loss_scal") != NULL)
        set_scaler(r, scale != 1, key, node);
    else if (truth(node->text) >= 0)
        set_scaler(r, truth(node->text) == 1, key, node);
    else if (strcmp(low, "none") == 0 || mz_yaml_is_null(node))
        set_scaler(r, false, key, node);
    else
        set_scaler(r, true, key, node); // values such as "dynamic" and "grad_scaler" mean a scaler
}

static void add_gpu(mz_asked *out, long gpu) {
    if (out->n_gpus < MZ_GPUS_MAX && gpu >= 0 && gpu < 100000)
        out->gpus[out->n_gpus++] = (int)gpu;
}

// Reads "0,1", [0, 1], "cuda:3", 4 (a number of GPUs), -1, "all", "auto". `count`: a bare number is the number of GPUs.
static void read_gpus(reader *r, const char *key, const mz_yaml_node *node, bool count) {
    mz_asked *out = r->out;
    if (node->kind == MZ_YAML_LIST) {
        say(&out->gpus_said, key, node);
        snprintf(out->gpus_said.value, sizeof out->gpus_said.value, "[");
        for (size_t i = 0; i < node->count; i++) {
            const mz_yaml_node *child = node->children[i];
            if (child->kind != MZ_YAML_SCALAR)
                continue;
            const char *colon = strchr(child->text, ':');
            char *end;
            long gpu = strtol(colon != NULL ? colon + 1 : child->text, &end, 10);
            if (*end == '\0')
                add_gpu(out, gpu);
            size_t used = strlen(out->gpus_said.value);
            snprintf(out->gpus_said.value + used, sizeof out->gpus_said.value - used, "%s%s", i > 0 ? ", " : "",
                     child->text);
        }
        size_t used = strlen(out->gpus_said.value);
        snprintf(out->gpus_said.value + used, sizeof out->gpus_said.value - used, "]");
        return;
    }
    if (node->kind != MZ_YAML_SCALAR)
        return;
    bool list = strchr(node->text, ',') != NULL;
    char *end;
    long number = strtol(node->text, &end, 10);
    if (!list && count && end != node->text && *end == '\0') {
        if (number > 0 && number < 100000) {
            out->processes = (int)number;
            say(&out->processes_said, key, node);
        }
        return;
    }
    say(&out->gpus_said, key, node);
    for (const char *p = node->text; *p != '\0';) {
        long gpu = strtol(p, &end, 10);
        if (end == p) {
            p++;
            continue;
        }
        if (p == node->text || p[-1] != '-')
            add_gpu(out, gpu);
        p = end;
    }
}

// Reads the order of a step as a list: [backward, clip, unscale, step].
static void read_order(reader *r, const char *key, const mz_yaml_node *node) {
    size_t clip = SIZE_MAX, unscale = SIZE_MAX;
    for (size_t i = 0; node->kind == MZ_YAML_LIST && i < node->count; i++) {
        const mz_yaml_node *child = node->children[i];
        if (child->kind != MZ_YAML_SCALAR)
            continue;
        if (strstr(child->text, "clip") != NULL && clip == SIZE_MAX)
            clip = i;
        if (strstr(child->text, "unscale") != NULL && unscale == SIZE_MAX)
            unscale = i;
    }
    if (clip != SIZE_MAX && unscale != SIZE_MAX && clip < unscale) {
        say(&r->out->clip_first, key, node);
        snprintf(r->out->clip_first.value, sizeof r->out->clip_first.value, "[…, clip, …, unscale, …]");
    }
}

// Reads kinds of processes that accelerate and Lightning have besides CUDA GPUs.
static void read_kind(mz_asked *out, const char *key, const mz_yaml_node *node) {
    char low[32];
    lower(node->text, low, sizeof low);
    if (one_of(low, " cpu multi_cpu ")) {
        out->cpu = true;
        say(&out->cpu_said, key, node);
    } else if (one_of(low, " xla tpu multi_xpu multi_npu multi_mlu multi_musa multi_hpu multi_sdaa multi_neuron mps "
                           "hpu xpu npu mlu neuron ")) {
        say(&out->elsewhere, key, node);
    }
}

static void read_machines(mz_asked *out, const mz_yaml_node *node) {
    char *end;
    long number = strtol(node->text, &end, 10);
    if (end != node->text && *end == '\0' && number > 0 && number < 100000)
        out->machines = (int)number;
}

// Reads AMP's switch: a truth value, a map with `enabled`, or a word.
static void read_amp(reader *r, const char *name, const char *key, const mz_yaml_node *node) {
    bool scalar = node->kind == MZ_YAML_SCALAR;
    int on = scalar ? truth(node->text) : -1;
    const mz_yaml_node *enabled = mz_yaml_get(node, "enabled");
    if (enabled == NULL)
        enabled = mz_yaml_get(node, "ENABLED");
    if (enabled != NULL && enabled->kind == MZ_YAML_SCALAR && truth(enabled->text) >= 0)
        switch_amp(r, truth(enabled->text) == 1, key, enabled);
    else if (on >= 0 && !(r->out->asker == MZ_ASKER_ACCELERATE || strcmp(name, "precision") == 0))
        switch_amp(r, on == 1, key, node);
    else if (scalar)
        vote_word(r, key, node);
    word w;
    if (r->out->asker == MZ_ASKER_TRAINER && strcmp(name, "mixed_precision") == 0 && strstr(key, "accelerat") != NULL &&
        scalar && find_word(node->text, &w) && w.ask == MZ_ASK_FP32)
        say(&r->out->accelerator_no, key, node);
}

static void read_dtype(reader *r, const char *name, const char *key, const mz_yaml_node *node) {
    word w;
    if (find_word(node->text, &w)) {
        r->dtype = (mz_vote){.ask = w.ask};
        r->dtype_pure = one_of(name, " torch_dtype params_dtype param_dtype model_dtype ");
        say(&r->dtype.said, key, node);
    } else if (r->out->unknown.line == 0) {
        say(&r->out->unknown, key, node);
    }
}

// Reads MMEngine's optim_wrapper: AmpOptimWrapper autocasts and has a scaler, OptimWrapper does not.
static void read_wrapper(reader *r, const char *key, const mz_yaml_node *node) {
    const mz_yaml_node *type = mz_yaml_get(node, "type");
    if (type == NULL || type->kind != MZ_YAML_SCALAR)
        return;
    char path[96];
    snprintf(path, sizeof path, "%.80s.type", key);
    if (strstr(type->text, "Amp") != NULL)
        switch_amp(r, true, path, type);
    else if (strcmp(type->text, "OptimWrapper") == 0)
        vote(r->out, MZ_ASK_FP32, true, false, path, type);
}

static void read_key(reader *r, const char *written, const char *key, const mz_yaml_node *node) {
    mz_asked *out = r->out;
    bool scalar = node->kind == MZ_YAML_SCALAR;
    int on = scalar ? truth(node->text) : -1;
    char name[64];
    lower(written, name, sizeof name);
    if (one_of(name, " fp16 use_fp16 float16 ")) {
        read_switch(r, MZ_ASK_FP16, key, node);
    } else if (one_of(name, " bf16 use_bf16 bfloat16 ")) {
        read_switch(r, MZ_ASK_BF16, key, node);
    } else if (one_of(name, " fp8 use_fp8 ")) {
        read_switch(r, MZ_ASK_FP8, key, node);
    } else if (one_of(name, " tf32 allow_tf32 ") && on == 1) {
        vote(out, MZ_ASK_TF32, true, false, key, node);
    } else if (one_of(name, " amp use_amp autocast enable_amp auto_mix_prec torch_autocast mixed_precision precision "
                            "amp_level ")) {
        read_amp(r, name, key, node);
    } else if (one_of(name, " pure_bf16 pure_fp16 full_bf16 full_fp16 ") && on == 1) {
        vote(out, strstr(name, "bf16") != NULL ? MZ_ASK_BF16 : MZ_ASK_FP16, false, true, key, node);
    } else if (strcmp(name, "optim_wrapper") == 0) {
        read_wrapper(r, key, node);
    } else if (one_of(name, " dtype amp_dtype autocast_dtype torch_dtype params_dtype param_dtype model_dtype ") &&
               scalar && !mz_yaml_is_null(node)) {
        read_dtype(r, name, key, node);
    } else if (one_of(name, " deepspeed_config_file deepspeed ") && scalar && on < 0 && !mz_yaml_is_null(node)) {
        say(&out->follows, key, node);
        snprintf(out->followed, sizeof out->followed, "%s", node->text);
    } else if (one_of(name, " num_machines ") && scalar) {
        read_machines(out, node);
    } else if (one_of(name, " distributed_type ") && scalar) {
        read_kind(out, key, node);
    } else if (one_of(name, " grad_scaler use_grad_scaler use_scaler scaler loss_scaling loss_scale loss_scaler "
                            "use_dynamic_loss_scaling ")) {
        read_scaler(r, key, node);
    } else if (one_of(name, " clip_before_unscale clip_grad_before_unscale ") && on == 1) {
        say(&out->clip_first, key, node);
    } else if (one_of(name, " unscale_before_clip unscale_before_clipping unscale_gradients ") && on == 0) {
        say(&out->clip_first, key, node);
    } else if (one_of(name, " zero_nan_grad zero_nan_grads zero_nan_gradients nan_grad_to_zero nan_grads_to_zero "
                            "nan_to_num nan_to_num_grad nan_to_num_grads grad_nan_to_num replace_nan_grads ") &&
               on == 1) {
        say(&out->nan_zeroed, key, node);
    } else if (one_of(name, " step_order order ")) {
        read_order(r, key, node);
    } else if (one_of(name, " gpu_ids gpus device_ids cuda_visible_devices CUDA_VISIBLE_DEVICES ")) {
        read_gpus(r, key, node, strcmp(name, "gpus") == 0);
    } else if (one_of(name, " devices num_gpus nproc_per_node ")) {
        read_gpus(r, key, node, true);
    } else if (one_of(name, " num_processes ")) {
        read_gpus(r, key, node, true);
    } else if ((one_of(name, " device accelerator ") || strcmp(key, "device.name") == 0) && scalar) {
        if (strncmp(node->text, "cuda:", 5) == 0)
            read_gpus(r, key, node, false);
        else
            read_kind(out, key, node);
    } else if (one_of(name, " use_cpu no_cuda ") && on == 1) {
        out->cpu = true;
        say(&out->cpu_said, key, node);
    }
}

// Reads every key of the maps, the outer ones first. Lists of maps have other meanings (callbacks, data sets).
static void walk(reader *r, const mz_yaml_node *map, const char *prefix, int depth) {
    for (size_t i = 0; i < map->count; i++) {
        char key[96];
        snprintf(key, sizeof key, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", map->keys[i]);
        const char *dot = strrchr(map->keys[i], '.');
        read_key(r, dot != NULL ? dot + 1 : map->keys[i], key, map->children[i]);
        if (map->children[i]->kind == MZ_YAML_MAP && depth < 6)
            walk(r, map->children[i], key, depth + 1);
    }
}

static bool has(const mz_yaml_node *map, const char *key) {
    return mz_yaml_get(map, key) != NULL;
}

static bool has_all(const mz_yaml_node *map, const char *const *keys) {
    for (; *keys != NULL; keys++)
        if (!has(map, *keys))
            return false;
    return true;
}

static bool is_nanogpt(const mz_yaml_node *root) {
    static const char *const marks[][4] = {{"block_size", "gradient_accumulation_steps", NULL},
                                           {"block_size", "n_embd", NULL},
                                           {"init_from", "eval_iters", NULL},
                                           {"wandb_log", "eval_iters", NULL}};
    for (size_t i = 0; i < MZ_COUNT(marks); i++)
        if (has_all(root, marks[i]))
            return true;
    return false;
}

static mz_asker asker_of(const mz_yaml_node *root) {
    static const char *const accelerate[] = {"compute_environment", "distributed_type",       "num_machines",
                                             "machine_rank",        "main_training_function", "downcast_bf16",
                                             "rdzv_backend",        "num_processes"};
    static const char *const deepspeed[] = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization",
                                            "zero_allow_untested_optimizer"};
    const mz_yaml_node *amp = mz_yaml_get(root, "amp"), *trainer = mz_yaml_get(root, "trainer");
    if (mz_yaml_get(amp, "precision") != NULL || has(root, "amp.precision") ||
        (mz_yaml_get(amp, "scaler") != NULL && mz_yaml_get(mz_yaml_get(amp, "scaler"), "init_scale") != NULL))
        return MZ_ASKER_MEZZO;
    if (has(root, "optim_wrapper") || has(root, "default_hooks"))
        return MZ_ASKER_MMENGINE;
    if (mz_yaml_get(root, "SOLVER") != NULL)
        return MZ_ASKER_DETECTRON2;
    if (is_nanogpt(root))
        return MZ_ASKER_NANOGPT;
    for (size_t i = 0; i < MZ_COUNT(deepspeed); i++)
        if (has(root, deepspeed[i]))
            return MZ_ASKER_DEEPSPEED;
    for (size_t i = 0; i < MZ_COUNT(accelerate); i++)
        if (has(root, accelerate[i]))
            return MZ_ASKER_ACCELERATE;
    if (mz_yaml_get(mz_yaml_get(root, "fp16"), "enabled") != NULL ||
        mz_yaml_get(mz_yaml_get(root, "bf16"), "enabled") != NULL)
        return MZ_ASKER_DEEPSPEED;
    const mz_yaml_node *settings = trainer != NULL && trainer->kind == MZ_YAML_MAP ? trainer : root;
    if (has(settings, "precision") && (has(settings, "accelerator") || has(settings, "strategy") ||
                                       has(settings, "max_epochs") || settings == trainer))
        return MZ_ASKER_LIGHTNING;
    return MZ_ASKER_TRAINER;
}

// Drops accelerate's old fp16: key where mixed_precision is present, as accelerate does.
static void drop_legacy(mz_asked *out) {
    const bool modern = MZ_FIND(out->votes, out->n_votes, said.key, "mixed_precision") != NULL;
    int n = 0;
    for (int i = 0; i < out->n_votes; i++)
        if (strcmp(out->votes[i].said.key, "mixed_precision") == 0 ||
            (!modern && strcmp(out->votes[i].said.key, "fp16") == 0))
            out->votes[n++] = out->votes[i];
    out->n_votes = n;
}

// Settles amp: true. It means its dtype, or float16, which is torch.amp's default on a GPU; where fp16 or bf16 is on,
// it adds nothing.
static void settle_amp(reader *r) {
    mz_asked *out = r->out;
    bool on = false;
    for (int i = 0; i < out->n_votes; i++)
        on = on || (out->votes[i].ask != MZ_ASK_FP32 && out->votes[i].ask != MZ_ASK_TF32);
    if (r->dtype.said.line != 0 && (r->amp_on || out->n_votes == 0)) {
        mz_vote v = r->dtype;
        bool mixed = r->amp_on || out->scaler == MZ_SCALER_ON || out->asker == MZ_ASKER_NANOGPT;
        v.pure = !mixed && (v.ask == MZ_ASK_FP16 || v.ask == MZ_ASK_BF16);
        v.lone = v.pure && !r->dtype_pure;
        v.amp = r->amp_on;
        if (out->n_votes < MZ_VOTES_MAX)
            out->votes[out->n_votes++] = v;
    } else if (r->amp_on && !on && out->n_votes < MZ_VOTES_MAX) {
        out->votes[out->n_votes++] = (mz_vote){.ask = MZ_ASK_FP16, .amp = true, .said = r->amp_said};
    }
}

// Returns the first vote for a lower precision, otherwise the first strong one, otherwise a weak one.
static int deciding(const mz_asked *out) {
    int strong = -1, weak = -1;
    for (int i = 0; i < out->n_votes; i++) {
        const mz_vote *v = &out->votes[i];
        if (!v->weak && v->ask != MZ_ASK_FP32)
            return i;
        if (!v->weak && strong < 0)
            strong = i;
        if (v->weak && (weak < 0 || out->votes[weak].ask == MZ_ASK_FP32))
            weak = i;
    }
    return strong >= 0 ? strong : weak;
}

// Reads a file of Mezzo's own with Mezzo's reader, which finds wrong keys.
static mezzo_status check_mezzo(const char *path) {
    mezzo_config *config;
    MEZZO_TRY(mezzo_config_create(&config));
    mezzo_status status = mezzo_config_load(config, path);
    mezzo_config_free(config);
    return status;
}

static mezzo_status load(const char *path, mz_yaml **out) {
    if (!mz_ends_with(path, ".py"))
        return mz_yaml_load(path, out);
    MZ_SCOPED(mz_free_at) char *text = NULL;
    size_t n;
    MZ_SCOPED(mz_text_free) mz_text yaml = {0};
    MEZZO_TRY(mz_file_read_text(path, MZ_YAML_MAX_BYTES, &text, &n));
    MEZZO_TRY(mz_python_to_yaml(text, n, &yaml));
    return mz_yaml_parse(path, yaml.data, yaml.len, out);
}

static mezzo_status read_root(const mz_yaml_node *root, mz_asked *out) {
    out->asker = asker_of(root);
    reader r = {.out = out};
    walk(&r, root, "", 0);
    if (out->asker == MZ_ASKER_ACCELERATE)
        drop_legacy(out);
    else
        settle_amp(&r);
    out->decides = deciding(out);
    if (out->asker == MZ_ASKER_TRAINER && out->decides < 0 && out->unknown.line == 0)
        out->asker = MZ_ASKER_NONE;
    return out->asker == MZ_ASKER_MEZZO ? check_mezzo(out->path) : MEZZO_OK;
}

mezzo_status mz_asked_read(const char *path, mz_asked *out) {
    *out = (mz_asked){.path = path, .decides = -1};
    mz_yaml *yaml;
    MEZZO_TRY(load(path, &yaml));
    const mz_yaml_node *root = mz_yaml_root(yaml);
    mezzo_status status = MEZZO_OK;
    if (root != NULL && root->kind != MZ_YAML_MAP)
        status =
            mz_fail(MEZZO_ERR_FORMAT, "%s:%d: expected keys and values, as in a configuration file", path, root->line);
    else if (root != NULL)
        status = read_root(root, out);
    mz_yaml_free(yaml);
    return status;
}

// --- several files -------------------------------------------------------------------------------------------------
void mz_asked_set_free(mz_asked_set *set) {
    for (size_t i = 0; i < set->n; i++)
        mz_free(set->paths[i]);
    MZ_FREE(set->paths, set->files);
    *set = (mz_asked_set){0};
}

// Reads a file into the set, which takes over `path`.
static mezzo_status read_into(mz_asked_set *set, char *path) {
    mezzo_status status = path != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = MZ_RESERVE(set->files, set->cap_files, set->n + 1);
    if (status == MEZZO_OK)
        status = MZ_RESERVE(set->paths, set->cap_paths, set->n + 1);
    if (status == MEZZO_OK)
        status = mz_asked_read(path, &set->files[set->n]);
    if (status != MEZZO_OK) {
        mz_free(path);
        return status;
    }
    set->paths[set->n++] = path;
    return MEZZO_OK;
}

static bool is_in(const mz_asked_set *set, const char *path) {
    return MZ_INDEX_WORD(set->paths, set->n, path) < set->n;
}

// Adds the file that another one names. A path is relative to the folder where the job starts, which is the current
// one, or else to the file that names it.
static mezzo_status follow(mz_asked_set *set, size_t i) {
    const char *path = set->files[i].followed;
    const mz_path beside = path[0] != '/' ? mz_path_beside(set->paths[i], path) : mz_path_of("%s", path);
    const char *found = mz_path_exists(path) ? path : beside.text;
    if (!mz_path_exists(found))
        return MEZZO_OK;
    set->files[i].follows.line = 0;
    return is_in(set, found) ? MEZZO_OK : read_into(set, mz_strdup(found));
}

mezzo_status mz_asked_read_all(const char *const *paths, int n, mz_asked_set *out) {
    *out = (mz_asked_set){0};
    for (int i = 0; i < n; i++)
        MEZZO_TRY(read_into(out, mz_strdup(paths[i])));
    for (size_t i = 0; i < (size_t)n; i++)
        if (out->files[i].follows.line != 0)
            MEZZO_TRY(follow(out, i));
    return MEZZO_OK;
}
