// Applies the names, keys and formats of gguf.def in both directions.
#include "weights/gguf.h"

#include <math.h>
#include <stdlib.h>

#include "base/names.h"
#include "io/number.h"
#include "io/quote.h"
#include "models/decoder.h"

static const mz_gguf_family families[] = {
#define GGUF(family, name, ...) {.model = #family, .arch = (name), __VA_ARGS__},
#include "weights/gguf.def"
};

static const struct name_row {
    const char *theirs, *ours, *families;
} names[] = {
#define NAME(from, to, of) {from, to, of},
#include "weights/gguf.def"
};

static const struct key_row {
    const char *key, *field, *absent, *families;
} keys[] = {
#define KEY(name, member, value, of) {name, #member, value, of},
#include "weights/gguf.def"
};

static const struct only_row {
    const char *key;
    double value;
} only[] = {
#define ONLY(name, number) {name, number},
#include "weights/gguf.def"
};

// Keys that other functions read.
static const char *const others[] = {"vocab_size",
                                     "rope.dimension_count",
                                     "attention.value_length",
                                     "attention.layer_norm_rms_epsilon",
                                     "attention.layer_norm_epsilon",
                                     "attention.sliding_window",
                                     "expert_gating_func",
                                     "tensor_data_layout",
                                     "rope.scaling.type",
                                     "rope.scaling.factor",
                                     "rope.scaling.original_context_length",
                                     "rope.scaling.attn_factor",
                                     "rope.scaling.yarn_beta_fast",
                                     "rope.scaling.yarn_beta_slow"};
enum { SOFTMAX = 1, SIGMOID = 2 }; // values of expert_gating_func
enum { LLAMA3_ORIGINAL = 8192 };   // Llama 3's context length, for files that give none
enum { GEMMA2_WINDOW = 4096 };     // Gemma 2's window, for files that give none

const mz_gguf_family *mz_gguf_by_model(const char *model) {
    return MZ_FIND(families, MZ_COUNT(families), model, model);
}

mezzo_status mz_gguf_family_of(const char *where, const mz_gguf *file, const mz_gguf_family **out) {
    const char *arch;
    size_t n;
    MEZZO_TRY(mz_gguf_get_text(file, "general.architecture", &arch, &n));
    mz_text known = {0};
    int64_t experts = 0;
    char key[80];
    snprintf(key, sizeof key, "%.*s.expert_count", (int)(n < 64 ? n : 64), arch);
    if (mz_gguf_find(file, key) != NULL)
        MEZZO_TRY(mz_gguf_get_int(file, key, 0, INT32_MAX, &experts));
    const mz_gguf_family *other = mz_gguf_by_model("mixtral");
    if (experts > 0 && strlen(other->arch) == n && memcmp(other->arch, arch, n) == 0) {
        *out = other;
        return MEZZO_OK;
    }
    for (size_t i = 0; i < MZ_COUNT(families); i++) {
        if (strlen(families[i].arch) == n && memcmp(families[i].arch, arch, n) == 0) {
            *out = &families[i];
            mz_text_free(&known);
            return MEZZO_OK;
        }
        if (!families[i].mixture && (i == 0 || strcmp(families[i - 1].arch, families[i].arch) != 0))
            mz_text_addf(&known, "%s%s", i > 0 ? ", " : "", families[i].arch);
    }
    mezzo_status status = known.status == MEZZO_OK
                              ? mz_fail(MEZZO_ERR_FORMAT, "%s: general.architecture is %s; import supports %s",
                                        mz_quote(where).text, mz_quote_bytes(arch, n).text, known.data)
                              : known.status;
    mz_text_free(&known);
    return status;
}

// --- names ---------------------------------------------------------------------------------------------------------
static const char *name_of(const char *model, const char *module) {
    for (size_t i = 0; i < MZ_COUNT(names); i++)
        if (strcmp(names[i].theirs, module) == 0 &&
            (names[i].families[0] == '\0' || mz_is_listed(names[i].families, model)))
            return names[i].ours;
    return NULL;
}

// Removes the number from "mlp.experts.3.up_proj" and sets *slice to it; -1: there is none.
static void cut_expert(char *module, int64_t *slice) {
    static const char word[] = "experts.";
    char *at = strstr(module, word), *end;
    *slice = -1;
    if (at == NULL)
        return;
    at += strlen(word);
    const long long number = strtoll(at, &end, 10);
    if (end == at || *end != '.')
        return;
    *slice = number;
    memmove(at, end + 1, strlen(end));
}

static mezzo_status rename_part(const mz_gguf_family *g, const mezzo_model_config *m, mz_hf_part *part) {
    char module[sizeof part->name];
    const char *suffix = "";
    long long layer;
    int used = 0;
    if (sscanf(part->name, "layers.%lld.%n", &layer, &used) != 1)
        used = 0;
    if (used == 0 && sscanf(part->name, "h.%lld.%n", &layer, &used) != 1)
        used = 0;
    snprintf(module, sizeof module, "%s", part->name + used);
    char *dot = strrchr(module, '.');
    if (dot != NULL && (strcmp(dot, ".weight") == 0 || strcmp(dot, ".bias") == 0)) {
        suffix = strcmp(dot, ".bias") == 0 ? ".bias" : ".weight";
        *dot = '\0';
    }
    cut_expert(module, &part->slice);
    const char *name = name_of(g->model, module);
    if (name == NULL)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "llama.cpp has no tensor for %s of %s", part->name, g->model);
    if (used > 0)
        snprintf(part->name, sizeof part->name, "blk.%lld.%s%s", layer, name, suffix);
    else
        snprintf(part->name, sizeof part->name, "%s%s", name, suffix);
    const bool rotary = strcmp(name, "attn_q") == 0 || strcmp(name, "attn_k") == 0;
    const bool interleaved = mz_decoder_find(g->model)->interleaved;
    part->slices = part->slice >= 0 ? m->experts : 0;
    part->transposed = false;
    part->bare = true;
    part->order = (mz_hf_order){0};
    if (rotary && interleaved != g->pairs)
        part->order = (mz_hf_order){.head = m->head_dim, .pairs = g->pairs};
    const size_t end = strlen(name);
    const bool norm = end >= 4 && strcmp(name + end - 4, "norm") == 0;
    part->plus = norm ? mz_decoder_find(g->model)->norm_offset : 0;
    part->fp32 = part->fp32 || strcmp(name, "ffn_gate_inp") == 0 || strcmp(name, "position_embd") == 0;
    return MEZZO_OK;
}

mezzo_status mz_gguf_rename(const mz_gguf_family *g, const mezzo_model_config *model, mz_hf_parts *parts) {
    const mezzo_model_config m = mz_decoder_resolve(mz_decoder_find(g->model), model);
    for (size_t i = 0; i < parts->count; i++)
        MEZZO_TRY(rename_part(g, &m, &parts->items[i]));
    return MEZZO_OK;
}

// --- scaled positions ----------------------------------------------------------------------------------------------
// Returns the factor as Llama 3.1 defines it: it divides long wavelengths, leaves short ones, and is interpolated
// linearly between them.
static double llama3_factor(const mezzo_model_config *m, double frequency) {
    const double turns = (double)m->rope_original * frequency / (2 * M_PI); // turns within the original context
    if (turns > m->rope_high)
        return 1;
    if (turns < m->rope_low)
        return m->rope_factor;
    const double smooth = (turns - m->rope_low) / (m->rope_high - m->rope_low);
    return 1 / ((1 - smooth) / m->rope_factor + smooth);
}

static const char llama3_tensor[] = "rope_freqs.weight";
static const char *const long_tensors[MZ_GGUF_FACTORS] = {"rope_factors_long.weight", "rope_factors_short.weight"};

bool mz_gguf_is_factors(const char *name) {
    return strcmp(name, llama3_tensor) == 0 || strcmp(name, long_tensors[0]) == 0 || strcmp(name, long_tensors[1]) == 0;
}

mezzo_status mz_gguf_factors(const mezzo_model_config *model, int which, const char **name, float **out, int64_t *n) {
    const mezzo_model_config m = mz_decoder_resolve(mz_decoder_find(model->name), model);
    const bool is_long = m.rope_scaling == MZ_ROPE_LONG;
    *out = NULL;
    *name = is_long ? long_tensors[which] : llama3_tensor;
    *n = is_long ? mz_list_count(&m.rope_long) : m.head_dim / 2;
    if (!is_long && (m.rope_scaling != MZ_ROPE_LLAMA3 || which > 0))
        return MEZZO_OK;
    MEZZO_TRY(MZ_NEW(*out, (size_t)*n));
    for (int64_t i = 0; i < *n; i++)
        (*out)[i] = is_long ? (which == 0 ? &m.rope_long : &m.rope_short)->at[i]
                            : (float)llama3_factor(&m, pow(m.rope_theta, -2.0 * (double)i / (double)m.head_dim));
    return MEZZO_OK;
}

// --- reading keys --------------------------------------------------------------------------------------------------
typedef struct reader {
    const mz_gguf_family *g;
    const mz_decoder *decoder;
    const char *where;
    const mz_gguf *file;
    mezzo_model_config *out;
    char key[160];
} reader;

static const char *full(reader *r, const char *key) {
    snprintf(r->key, sizeof r->key, "%s.%s", r->g->arch, key);
    return r->key;
}

static bool has(reader *r, const char *key) {
    return mz_gguf_find(r->file, full(r, key)) != NULL;
}

static mezzo_status refuse(reader *r, const char *key, double value, const char *rest) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is %g; %s", r->where, full(r, key), value, rest);
}

static const mz_model_key *field_of(const char *name) {
    return MZ_FIND(mz_model_keys, mz_model_key_count, name, name);
}

static mezzo_status get_number(reader *r, const char *key, mz_key_type type, double *out) {
    bool truth;
    int64_t whole;
    if (type == MZ_KEY_FLOAT)
        return mz_gguf_get_double(r->file, full(r, key), out);
    if (type == MZ_KEY_BOOL) {
        MEZZO_TRY(mz_gguf_get_bool(r->file, full(r, key), &truth));
        *out = truth;
        return MEZZO_OK;
    }
    MEZZO_TRY(mz_gguf_get_int(r->file, full(r, key), 0, INT32_MAX, &whole));
    *out = (double)whole;
    return MEZZO_OK;
}

// Returns whether a row belongs to the family. Of several rows of a key it is the first one that lists the family, or
// that lists none.
static bool belongs(const mz_gguf_family *g, const struct key_row *row) {
    for (const struct key_row *one = keys; one < row; one++)
        if (strcmp(one->key, row->key) == 0 && mz_is_listed(one->families, g->model))
            return false;
    return row->families[0] == '\0' || mz_is_listed(row->families, g->model);
}

static mezzo_status read_row(reader *r, const struct key_row *row) {
    const mz_model_key *key = field_of(row->field);
    double value = 0;
    if (!mz_model_takes(key, r->g->model) || !belongs(r->g, row))
        return MEZZO_OK;
    if (row->absent == NULL || has(r, row->key))
        MEZZO_TRY(get_number(r, row->key, key->type, &value));
    else
        (void)mz_number_parse(row->absent, &value);
    mz_model_key_set(key, r->out, value);
    return MEZZO_OK;
}

// Checks a key for which the family has no choice: its value must be what the family computes.
static mezzo_status check_row(reader *r, const struct key_row *row, const mezzo_model_config *resolved) {
    const mz_model_key *key = field_of(row->field);
    double value;
    if (mz_model_takes(key, r->g->model) || !belongs(r->g, row) || !has(r, row->key))
        return MEZZO_OK;
    MEZZO_TRY(get_number(r, row->key, key->type, &value));
    const bool none = value == 0 && strncmp(row->key, "expert", 6) == 0;
    return none || value == mz_model_key_get(key, resolved)
               ? MEZZO_OK
               : refuse(r, row->key, value, "this architecture is not computed so here");
}

static mezzo_status check_known(reader *r) {
    const size_t n = strlen(r->g->arch);
    for (size_t i = 0; i < mz_gguf_count(r->file); i++) {
        const char *key = mz_gguf_at(r->file, i)->key;
        if (strncmp(key, r->g->arch, n) != 0 || key[n] != '.')
            continue;
        const char *own = key + n + 1;
        if (MZ_FIND(keys, MZ_COUNT(keys), key, own) == NULL && MZ_FIND(only, MZ_COUNT(only), key, own) == NULL &&
            MZ_INDEX_WORD(others, MZ_COUNT(others), own) == MZ_COUNT(others))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: Mezzo does not know the key %s, which may change results", r->where,
                           mz_quote(key).text);
    }
    return MEZZO_OK;
}

static mezzo_status check_only(reader *r) {
    for (size_t i = 0; i < MZ_COUNT(only); i++) {
        const mz_gguf_value *v = mz_gguf_find(r->file, full(r, only[i].key));
        double value;
        if (v == NULL)
            continue;
        MEZZO_TRY(get_number(r, only[i].key, v->type == MZ_GGUF_BOOL ? MZ_KEY_BOOL : MZ_KEY_FLOAT, &value));
        if (value != only[i].value)
            return refuse(r, only[i].key, value, only[i].value == 0 ? "only 0 is supported" : "only 1 is supported");
    }
    return MEZZO_OK;
}

static const mz_safetensors_tensor *tensor(const reader *r, const char *name) {
    return mz_safetensors_find(mz_gguf_tensors(r->file), name);
}

static mezzo_status read_vocab(reader *r) {
    const mz_safetensors_tensor *t;
    int64_t said;
    MEZZO_TRY(mz_safetensors_get(mz_gguf_tensors(r->file), MZ_GGUF_EMBEDDING, &t));
    r->out->vocab = t->rank == 2 ? t->shape[0] : 0;
    if (!has(r, "vocab_size"))
        return MEZZO_OK;
    MEZZO_TRY(mz_gguf_get_int(r->file, full(r, "vocab_size"), 0, INT32_MAX, &said));
    return said == r->out->vocab
               ? MEZZO_OK
               : refuse(r, "vocab_size", (double)said, "the token embedding has another number of rows");
}

static const char *norm_key(const mz_decoder *decoder) {
    return decoder->norm == MZ_NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
}

static mezzo_status read_norm(reader *r) {
    double eps;
    MEZZO_TRY(mz_gguf_get_double(r->file, full(r, norm_key(r->decoder)), &eps));
    if (r->decoder->fixed_eps == 0)
        r->out->norm_eps = eps;
    else if ((float)eps != r->decoder->fixed_eps)
        return refuse(r, norm_key(r->decoder), eps, "only 1e-05 is supported");
    return MEZZO_OK;
}

// Reads the number of rotated dimensions of a head, as the share that gives exactly this number.
static mezzo_status read_rotary(reader *r) {
    int64_t dims = r->out->head_dim > 0 ? r->out->head_dim : r->out->d_model / r->out->heads, head = dims;
    if (r->decoder->positions != MZ_POSITIONS_ROTARY)
        return MEZZO_OK;
    if (has(r, "rope.dimension_count"))
        MEZZO_TRY(mz_gguf_get_int(r->file, full(r, "rope.dimension_count"), 0, head, &dims));
    if (!r->decoder->partial)
        return dims == head ? MEZZO_OK
                            : refuse(r, "rope.dimension_count", (double)dims, "it must be the width of a head");
    r->out->rotary = (double)dims / (double)head;
    if ((int64_t)((double)head * r->out->rotary) < dims)
        r->out->rotary = nextafter(r->out->rotary, 1);
    return MEZZO_OK;
}

static mezzo_status read_window(reader *r) {
    int64_t window = 0;
    r->out->window = r->out->window_from = 0;
    if (r->g->windows) {
        r->out->full_every = r->decoder->full_every;
        r->out->window = r->g->capped ? GEMMA2_WINDOW : 0;
    }
    if (!has(r, "attention.sliding_window"))
        return MEZZO_OK;
    MEZZO_TRY(mz_gguf_get_int(r->file, full(r, "attention.sliding_window"), 0, INT32_MAX, &window));
    if (r->g->windows || window >= r->out->seq_len) // one as long as the file's context is kept: a run's may be longer
        r->out->window = window;
    if (r->g->windows || window == 0 || window >= r->out->seq_len)
        return MEZZO_OK;
    return refuse(r, "attention.sliding_window", (double)window, "windows in a GGUF file are not supported");
}

// Reads a number of rope.scaling, or takes `absent` where it is missing.
static mezzo_status get_scaling(reader *r, const char *key, double absent, double *out) {
    *out = absent;
    return has(r, key) ? mz_gguf_get_double(r->file, full(r, key), out) : MEZZO_OK;
}

static mezzo_status read_original(reader *r, int64_t absent) {
    r->out->rope_original = absent;
    return has(r, "rope.scaling.original_context_length")
               ? mz_gguf_get_int(r->file, full(r, "rope.scaling.original_context_length"), 1, INT32_MAX,
                                 &r->out->rope_original)
               : MEZZO_OK;
}

// Finds llama3's numbers from the factors, which state the scaling otherwise: Llama's own numbers, or those that an
// export wrote.
static mezzo_status read_factors(reader *r, const mz_safetensors_tensor *t) {
    static const char *const own[] = {"mezzo.rope_factor", "mezzo.rope_low", "mezzo.rope_high"};
    mezzo_model_config *m = r->out;
    float *factors, given;
    const char *name;
    double most = 1, said[3];
    int64_t n;
    if (t->rank != 1 || t->dtype != MEZZO_F32 || !r->g->frequencies || (int64_t)t->count != m->head_dim / 2)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: tensor %s is no vector in F32 of half a head's width, of an architecture that has it",
                       r->where, t->name);
    for (size_t i = 0; i < t->count; i++) {
        memcpy(&given, (const char *)t->data + 4 * i, sizeof given);
        most = given > most ? given : most;
    }
    const double absent[] = {most, 1, 4};
    for (size_t i = 0; i < MZ_COUNT(own); i++) {
        said[i] = absent[i];
        if (mz_gguf_find(r->file, own[i]) != NULL)
            MEZZO_TRY(mz_gguf_get_double(r->file, own[i], &said[i]));
    }
    m->rope_scaling = MZ_ROPE_LLAMA3;
    m->rope_factor = said[0];
    m->rope_low = said[1];
    m->rope_high = said[2];
    MEZZO_TRY(read_original(r, LLAMA3_ORIGINAL));
    MEZZO_TRY(mz_gguf_factors(m, 0, &name, &factors, &n));
    bool same = true;
    for (int64_t i = 0; same && i < n; i++) {
        memcpy(&given, (const char *)t->data + 4 * i, sizeof given);
        same = fabsf(given - factors[i]) <= 1e-4F * factors[i];
    }
    mz_free(factors);
    return same ? MEZZO_OK
                : mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s: its factors are not those of Llama 3's scaled positions",
                          r->where, t->name);
}

static mezzo_status read_list(reader *r, const char *name, mezzo_list *out) {
    const mz_safetensors_tensor *t;
    MEZZO_TRY(mz_safetensors_get(mz_gguf_tensors(r->file), name, &t));
    bool good = t->rank == 1 && t->dtype == MEZZO_F32 && t->count <= MEZZO_LIST;
    for (size_t i = 0; good && i < t->count; i++) {
        memcpy(&out->at[i], (const char *)t->data + 4 * i, sizeof out->at[i]);
        good = out->at[i] > 0 && !isinf(out->at[i]);
    }
    return good ? MEZZO_OK
                : mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s is no vector of up to %d numbers above 0 in F32", r->where,
                          name, MEZZO_LIST);
}

// Reads LongRoPE's keys: both lists, and the factor on cosines and sines as a number.
static mezzo_status read_long(reader *r) {
    mezzo_model_config *m = r->out;
    MEZZO_TRY(read_list(r, long_tensors[0], &m->rope_long));
    MEZZO_TRY(read_list(r, long_tensors[1], &m->rope_short));
    MEZZO_TRY(get_scaling(r, "rope.scaling.attn_factor", 1, &m->rope_attention));
    m->rope_scaling = MZ_ROPE_LONG;
    m->rope_factor = 1;
    return read_original(r, m->seq_len);
}

static mezzo_status read_scaling(reader *r) {
    mezzo_model_config *m = r->out;
    const mz_safetensors_tensor *factors = tensor(r, llama3_tensor);
    const char *type = "none";
    double attention;
    size_t n = 4;
    if (has(r, "rope.scaling.type"))
        MEZZO_TRY(mz_gguf_get_text(r->file, full(r, "rope.scaling.type"), &type, &n));
    m->rope_scaling = MZ_ROPE_NONE;
    if (r->g->long_factors && tensor(r, long_tensors[0]) != NULL)
        return read_long(r);
    const bool linear = n == 6 && memcmp(type, "linear", n) == 0, yarn = n == 4 && memcmp(type, "yarn", n) == 0;
    if (!linear && !yarn && (n != 4 || memcmp(type, "none", n) != 0))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is %s; only none, linear and yarn are supported", r->where,
                       full(r, "rope.scaling.type"), mz_quote_bytes(type, n).text);
    MEZZO_TRY(get_scaling(r, "rope.scaling.factor", 1, &m->rope_factor));
    MEZZO_TRY(get_scaling(r, "rope.scaling.attn_factor", 1, &attention));
    if (attention != 1)
        return refuse(r, "rope.scaling.attn_factor", attention, "only 1 is supported");
    if (r->decoder->tied != MZ_TIED_BY_KEY)
        return !linear && !yarn && factors == NULL
                   ? MEZZO_OK
                   : mz_fail(MEZZO_ERR_FORMAT, "%s: scaled positions are not supported for %s", r->where, r->g->arch);
    if (factors != NULL)
        return read_factors(r, factors);
    if (!linear && !yarn)
        return MEZZO_OK;
    m->rope_scaling = linear ? MZ_ROPE_LINEAR : MZ_ROPE_YARN;
    if (linear)
        return MEZZO_OK;
    MEZZO_TRY(get_scaling(r, "rope.scaling.yarn_beta_slow", 1, &m->rope_low));
    MEZZO_TRY(get_scaling(r, "rope.scaling.yarn_beta_fast", 32, &m->rope_high));
    return read_original(r, m->seq_len);
}

static mezzo_status read_experts(reader *r) {
    int64_t gate = 0;
    if (r->decoder->router == MZ_ROUTER_NONE)
        return MEZZO_OK;
    const int64_t need = r->decoder->router == MZ_ROUTER_SIGMOID ? SIGMOID : SOFTMAX;
    if (has(r, "expert_gating_func"))
        MEZZO_TRY(mz_gguf_get_int(r->file, full(r, "expert_gating_func"), 0, 8, &gate));
    return gate == 0 || gate == need
               ? MEZZO_OK
               : refuse(r, "expert_gating_func", (double)gate, "this architecture is not computed so here");
}

// Reads facts that only the presence of tensors shows.
static void read_presence(reader *r) {
    mezzo_model_config *m = r->out;
    const struct {
        const char *field, *name;
    } rows[] = {{"attention_bias", "blk.0.attn_q.bias"},
                {"mlp_bias", "blk.0.ffn_up.bias"},
                {"qk_norm", "blk.0.attn_q_norm.weight"}};
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        const mz_model_key *key = field_of(rows[i].field);
        if (mz_model_takes(key, r->g->model))
            mz_model_key_set(key, m, tensor(r, rows[i].name) != NULL);
    }
    if (r->decoder->tied == MZ_TIED_BY_KEY)
        m->tie_head = !r->g->shared_head && tensor(r, MZ_GGUF_HEAD) != NULL ? MZ_HEAD_OWN : MZ_HEAD_TIED;
}

// Returns the number by whose root llama.cpp divides scores, for Gemma 2 and 3; it recognizes 27B by its number of
// blocks.
static int64_t score_divisor(const mezzo_model_config *m) {
    return m->layers == 46 || m->layers == 62 ? m->d_model / m->heads : m->head_dim;
}

mezzo_status mz_gguf_read_config(const mz_gguf_family *g, const mz_hf_family *family, const char *where,
                                 const mz_gguf *file, mezzo_model_config *out) {
    reader r = {.g = g, .decoder = mz_decoder_find(g->model), .where = where, .file = file, .out = out};
    MEZZO_TRY(mezzo_model_defaults(g->model, out));
    out->size[0] = '\0';
    out->rope_theta = family->theta;
    MEZZO_TRY(check_known(&r));
    MEZZO_TRY(check_only(&r));
    for (size_t i = 0; i < MZ_COUNT(keys); i++)
        MEZZO_TRY(read_row(&r, &keys[i]));
    if (out->heads < 1)
        return refuse(&r, "attention.head_count", (double)out->heads, "it must be positive");
    if (!r.decoder->ungrouped && out->kv_heads == 0)
        out->kv_heads = out->heads;
    if (!r.decoder->ungrouped && out->head_dim == 0)
        out->head_dim = out->d_model / out->heads;
    MEZZO_TRY(read_vocab(&r));
    MEZZO_TRY(read_norm(&r));
    MEZZO_TRY(read_rotary(&r));
    MEZZO_TRY(read_window(&r));
    MEZZO_TRY(read_scaling(&r));
    MEZZO_TRY(read_experts(&r));
    if (g->windows)
        out->query_scalar = score_divisor(out);
    if (strcmp(g->model, "smollm3") == 0)
        out->no_rope_every = 4; // llama.cpp's constant, for which it has no key
    read_presence(&r);
    const mezzo_model_config resolved = mz_decoder_resolve(r.decoder, out);
    for (size_t i = 0; i < MZ_COUNT(keys); i++)
        MEZZO_TRY(check_row(&r, &keys[i], &resolved));
    if (has(&r, "attention.value_length")) {
        int64_t value;
        MEZZO_TRY(mz_gguf_get_int(file, full(&r, "attention.value_length"), 0, INT32_MAX, &value));
        if (value != resolved.head_dim)
            return refuse(&r, "attention.value_length", (double)value, "it must be the width of a key's head");
    }
    return MEZZO_OK;
}

// --- writing keys --------------------------------------------------------------------------------------------------
static mezzo_status cannot(const char *where, const mz_gguf_family *g, const char *what) {
    return mz_fail(MEZZO_ERR_UNSUPPORTED, "%s: llama.cpp does not compute %s with %s, so there is no GGUF file of it",
                   where, g->model, what);
}

static bool is_fourth_without_rope(const mezzo_model_config *m) {
    for (int64_t i = 1; i <= m->layers; i++)
        if ((m->no_rope_every > 0 && i % m->no_rope_every == 0) != (i % 4 == 0))
            return false;
    return true;
}

static mezzo_status check_model(const mz_gguf_family *g, const char *where, const mezzo_model_config *m) {
    char key[96];
    for (size_t i = 0; i < mz_model_key_count; i++)
        if (g->off != NULL && mz_is_listed(g->off, mz_model_keys[i].name) &&
            mz_model_key_get(&mz_model_keys[i], m) != 0) {
            snprintf(key, sizeof key, "model.%s", mz_model_keys[i].name);
            return cannot(where, g, key);
        }
    for (size_t i = 0; i < mz_model_key_count; i++)
        if (g->on != NULL && mz_is_listed(g->on, mz_model_keys[i].name) &&
            mz_model_key_get(&mz_model_keys[i], m) == 0) {
            snprintf(key, sizeof key, "model.%s off", mz_model_keys[i].name);
            return cannot(where, g, key);
        }
    if (g->shared_head && m->tie_head != MZ_HEAD_TIED)
        return cannot(where, g, "a head of its own (model.tie_head)");
    if (g->windows && m->query_scalar > 0 && m->query_scalar != score_divisor(m))
        return cannot(where, g, "another query_scalar than head_dim");
    if (g->windows && m->window > 0 && m->full_every != mz_decoder_find(g->model)->full_every)
        return cannot(where, g, "another pattern of windows (model.full_every)");
    if (g->capped && (m->score_cap <= 0 || m->logit_cap <= 0 || m->window <= 0))
        return cannot(where, g, "scores, logits or blocks without their caps and windows");
    if (g->own_head && m->tie_head == MZ_HEAD_TIED)
        return cannot(where, g, "a tied head (model.tie_head)");
    if (g->whole_heads && m->heads * m->head_dim != m->d_model)
        return cannot(where, g, "a head_dim that is not d_model / heads");
    if (!g->windows && m->window > 0 && m->window < m->seq_len)
        return cannot(where, g, "a sliding window (model.window)");
    if (m->rope_scaling == MZ_ROPE_LLAMA3 && !g->frequencies)
        return cannot(where, g, "scaled positions of kind llama3");
    if (m->rope_scaling == MZ_ROPE_LONG && !g->long_factors)
        return cannot(where, g, "scaled positions of kind longrope");
    if (m->rope_scaling == MZ_ROPE_YARN && m->rope_attention > 0 &&
        fabs(m->rope_attention - (0.1 * log(m->rope_factor) + 1)) > 1e-6)
        return cannot(where, g, "an attention factor of its own (model.rope_attention)");
    if (strcmp(g->model, "smollm3") == 0 && !is_fourth_without_rope(m))
        return cannot(where, g, "another no_rope_every than 4");
    return MEZZO_OK;
}

static void put_number(mz_gguf_meta *meta, const char *key, mz_key_type type, double value) {
    if (type == MZ_KEY_FLOAT)
        mz_gguf_put_float(meta, key, (float)value);
    else if (type == MZ_KEY_BOOL)
        mz_gguf_put_bool(meta, key, value != 0);
    else
        mz_gguf_put_int(meta, key, (uint32_t)value);
}

static void put_scaling(reader *r, const mezzo_model_config *m, mz_gguf_meta *meta) {
    const bool linear = m->rope_scaling == MZ_ROPE_LINEAR, yarn = m->rope_scaling == MZ_ROPE_YARN;
    if (linear || yarn) {
        mz_gguf_put_text(meta, full(r, "rope.scaling.type"), linear ? "linear" : "yarn", linear ? 6 : 4);
        mz_gguf_put_float(meta, full(r, "rope.scaling.factor"), (float)m->rope_factor);
    }
    if (yarn) {
        mz_gguf_put_float(meta, full(r, "rope.scaling.yarn_beta_fast"), (float)m->rope_high);
        mz_gguf_put_float(meta, full(r, "rope.scaling.yarn_beta_slow"), (float)m->rope_low);
    }
    if (m->rope_scaling == MZ_ROPE_LLAMA3) {
        mz_gguf_put_float(meta, "mezzo.rope_factor", (float)m->rope_factor);
        mz_gguf_put_float(meta, "mezzo.rope_low", (float)m->rope_low);
        mz_gguf_put_float(meta, "mezzo.rope_high", (float)m->rope_high);
    }
    const bool is_long = m->rope_scaling == MZ_ROPE_LONG;
    if (is_long)
        mz_gguf_put_float(meta, full(r, "rope.scaling.attn_factor"), (float)mz_decoder_long_attention(m));
    if (yarn || is_long || m->rope_scaling == MZ_ROPE_LLAMA3)
        mz_gguf_put_int(meta, full(r, "rope.scaling.original_context_length"), (uint32_t)m->rope_original);
}

mezzo_status mz_gguf_write_config(const mz_gguf_family *g, const char *where, const mezzo_model_config *model,
                                  mz_gguf_meta *meta) {
    reader r = {.g = g, .decoder = mz_decoder_find(g->model)};
    const mezzo_model_config m = mz_decoder_resolve(r.decoder, model);
    MEZZO_TRY(check_model(g, where, &m));
    mz_gguf_put_text(meta, "general.architecture", g->arch, strlen(g->arch));
    for (size_t i = 0; i < MZ_COUNT(keys); i++) {
        const mz_model_key *key = field_of(keys[i].field);
        if (mz_model_takes(key, g->model) && belongs(g, &keys[i]))
            put_number(meta, full(&r, keys[i].key), key->type, mz_model_key_get(key, &m));
    }
    mz_gguf_put_int(meta, full(&r, "vocab_size"), (uint32_t)m.vocab);
    mz_gguf_put_float(meta, full(&r, norm_key(r.decoder)),
                      r.decoder->fixed_eps > 0 ? r.decoder->fixed_eps : (float)m.norm_eps);
    if (mz_model_takes(field_of("head_dim"), g->model))
        mz_gguf_put_int(meta, full(&r, "attention.value_length"), (uint32_t)m.head_dim);
    if (r.decoder->positions == MZ_POSITIONS_ROTARY)
        mz_gguf_put_int(meta, full(&r, "rope.dimension_count"), (uint32_t)((double)m.head_dim * m.rotary));
    if (r.decoder->router != MZ_ROUTER_NONE)
        mz_gguf_put_int(meta, full(&r, "expert_gating_func"),
                        r.decoder->router == MZ_ROUTER_SIGMOID ? SIGMOID : SOFTMAX);
    if (g->windows && m.window > 0)
        mz_gguf_put_int(meta, full(&r, "attention.sliding_window"), (uint32_t)m.window);
    put_scaling(&r, &m, meta);
    return meta->bytes.status;
}

// --- formats -------------------------------------------------------------------------------------------------------
mezzo_status mz_gguf_format_named(const char *name, mz_gguf_format *out) {
    static const mz_gguf_format formats[] = {{"f32", MEZZO_F32, false, 0},
                                             {"f16", MEZZO_F16, false, 1},
                                             {"q8_0", MEZZO_F32, true, 7},
                                             {"bf16", MEZZO_BF16, false, 32}};
    const mz_gguf_format *found = MZ_FIND(formats, MZ_COUNT(formats), name, name);
    if (found == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "there is no format %s; it is f32, f16, bf16 or q8_0", mz_quote(name).text);
    *out = *found;
    return MEZZO_OK;
}

void mz_gguf_format_of(const mz_gguf_format *f, const mz_hf_part *part, bool vector, int64_t cols, mezzo_dtype *dtype,
                       bool *q8_0) {
    const bool whole = vector || part->fp32, blocks = cols % MZ_Q8_0_VALUES == 0;
    *q8_0 = f->q8_0 && !whole && blocks;
    *dtype = whole ? MEZZO_F32 : f->q8_0 && !blocks ? MEZZO_F16 : f->dtype;
}
