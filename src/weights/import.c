// mezzo_import turns published weights into a run folder with one checkpoint, which sampling, evaluation and export
// read like any other.
#include <math.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "graph/graph.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "checkpoint/checkpoint.h"
#include "models/decoder.h"
#include "train/config.h"
#include "weights/import.h"

#define MAX_CONFIG ((size_t)16 << 20)
#define MAX_INDEX  ((size_t)256 << 20)

// --- opening Hugging Face's files ----------------------------------------------------------------------------------
static void close_source(mz_import *in) {
    for (size_t i = 0; i < in->n_files && in->gguf == NULL; i++) {
        mz_safetensors_close(in->files[i]);
        mz_free(in->file_names[i]);
    }
    mz_gguf_close(in->gguf);
    MZ_FREE(in->files, in->file_names);
    mz_map_close(&in->map);
    mz_free(in->folder);
    mz_safetensors_close(in->adapter);
    json_decref(in->adapter_config);
    mezzo_graph_free(in->graph);
    mz_hf_list_free(&in->list);
}

static mezzo_status add_file(mz_import *in, const char *name) {
    if (MZ_INDEX_WORD(in->file_names, in->n_files, name) < in->n_files)
        return MEZZO_OK;
    size_t names = in->cap_names;
    MEZZO_TRY(MZ_RESERVE(in->file_names, names, in->n_files + 1));
    in->cap_names = names;
    MEZZO_TRY(MZ_RESERVE(in->files, in->cap_files, in->n_files + 1));
    char *copy = mz_strdup(name);
    mezzo_status status = copy != NULL
                              ? mz_safetensors_open(mz_path_of("%s/%s", in->folder, name).text, &in->files[in->n_files])
                              : MEZZO_ERR_MEMORY;
    if (status != MEZZO_OK) {
        mz_free(copy);
        return status;
    }
    in->file_names[in->n_files++] = copy;
    return MEZZO_OK;
}

// Reads {"weight_map": {tensor: file}}; every tensor must be in the file that is named for it.
static mezzo_status read_index(mz_import *in, const char *path, const json_t *index) {
    json_t *map, *value;
    const char *tensor;
    MEZZO_TRY(mz_json_get_object(path, index, "weight_map", &map));
    json_object_foreach(map, tensor, value) {
        const char *file = json_string_value(value);
        if (file == NULL || *file == '\0' || strchr(file, '/') != NULL)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s: %s is not the name of a file next to the index", path,
                           mz_quote(tensor).text, mz_quote(file).text);
        MEZZO_TRY(add_file(in, file));
        for (size_t i = 0; i < in->n_files; i++)
            if (strcmp(in->file_names[i], file) == 0 && mz_safetensors_find(in->files[i], tensor) == NULL)
                return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s is not in %s, where the index says it is", path,
                               mz_quote(tensor).text, mz_quote(file).text);
    }
    return in->n_files > 0 ? MEZZO_OK : mz_fail(MEZZO_ERR_FORMAT, "%s: key 'weight_map' names no tensor", path);
}

static mezzo_status open_index(mz_import *in, const char *name) {
    MZ_SCOPED(mz_json_free_at) json_t *index = NULL;
    const mz_path path = mz_path_of("%s/%s", in->folder, name);
    MEZZO_TRY(mz_json_load(path.text, MAX_INDEX, &index));
    return read_index(in, path.text, index);
}

static bool in_folder(const mz_import *in, const char *name) {
    return mz_path_exists(mz_path_of("%s/%s", in->folder, name).text);
}

static mezzo_status open_folder(mz_import *in) {
    const char *base = in->family->file;
    char name[96], index[128], pickle[96];
    snprintf(name, sizeof name, "%s.safetensors", base);
    snprintf(index, sizeof index, "%s.index.json", name);
    snprintf(pickle, sizeof pickle, "%s.bin", strcmp(base, "model") == 0 ? "pytorch_model" : base);
    if (in_folder(in, name))
        return add_file(in, name);
    if (in_folder(in, index))
        return open_index(in, index);
    if (in_folder(in, pickle))
        return mz_fail(MEZZO_ERR_INVALID,
                       "folder %s has its weights in %s, a pickle, which Mezzo does not read: save them with "
                       "save_pretrained(…, safe_serialization=True)",
                       mz_quote(in->folder).text, pickle);
    return mz_fail(MEZZO_ERR_INVALID, "folder %s has neither %s nor %s", mz_quote(in->folder).text, name, index);
}

// Sets the context length that the caller asked for, where it differs from the folder's.
static mezzo_status set_length(mz_import *in, const char *path, int64_t length) {
    in->positions = in->model.seq_len;
    if (length > in->positions && in->family->positions != NULL)
        return mz_fail(
            MEZZO_ERR_FORMAT,
            "%s: the model has %lld positions, fewer than model.seq_len, %lld: its table of positions has no "
            "rows for the others",
            path, (long long)in->positions, (long long)length);
    const mz_decoder *decoder = mz_decoder_find(in->model.name);
    if (decoder == NULL || decoder->positions != MZ_POSITIONS_ROTARY) {
        in->model.seq_len = length > 0 ? length : in->positions;
        return MEZZO_OK;
    }
    in->model.positions = in->positions;
    in->model.seq_len = length > 0 ? length : in->positions < MZ_SEQ_LEN_OWN ? in->positions : MZ_SEQ_LEN_OWN;
    return MEZZO_OK;
}

// Reads config.json; transformers has the key model_type, diffusers _class_name.
static mezzo_status read_config(mz_import *in, const char *path, const json_t *config) {
    const char *type = NULL, *known;
    const bool diffusers =
        json_object_get(config, "model_type") == NULL && json_object_get(config, "_class_name") != NULL;
    const char *key = diffusers ? "_class_name" : "model_type";
    MEZZO_TRY(mz_json_get_string(path, config, key, &type));
    in->family = mz_hf_by_type(type, &known);
    const char *differs = in->family == NULL ? mz_hf_differs(type) : NULL;
    if (differs != NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is %s, a different model from radio_unet: %s (docs/models.md)",
                       path, key, mz_quote(type).text, differs);
    if (in->family == NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is %s; import supports %s", path, key, mz_quote(type).text,
                       known);
    MEZZO_TRY(in->family->read_config(in->family, path, config, &in->model));
    MEZZO_TRY(set_length(in, path, in->length));
    return mz_context(mezzo_model_check(&in->model), "%s: ", path);
}

static mezzo_status open_config(mz_import *in) {
    MZ_SCOPED(mz_json_free_at) json_t *config = NULL;
    const mz_path path = mz_path_of("%s/config.json", in->folder);
    if (!mz_path_exists(path.text))
        return mz_fail(MEZZO_ERR_INVALID,
                       "there is no %s: import reads a Hugging Face folder (config.json and *.safetensors) or llm.c's "
                       "model file; docs/models.md explains how to convert others",
                       mz_quote(path.text).text);
    MEZZO_TRY(mz_json_load(path.text, MAX_CONFIG, &config));
    return read_config(in, path.text, config);
}

// --- tensors to parameters -----------------------------------------------------------------------------------------
static const mz_safetensors_tensor *find(const mz_import *in, const char *name) {
    const mz_safetensors_tensor *found = NULL;
    for (size_t i = 0; i < in->n_files && found == NULL; i++)
        found = mz_safetensors_find(in->files[i], name);
    return found;
}

static mezzo_status missing(const mz_import *in, const char *name) {
    const mz_safetensors_tensor *unused;
    if (in->n_files == 1)
        MEZZO_TRY(mz_safetensors_get(in->files[0], name, &unused)); // its error names the nearest name
    return mz_fail(MEZZO_ERR_FORMAT, "folder %s: no file of the index has tensor %s", mz_quote(in->folder).text,
                   mz_quote(name).text);
}

// Finds a tensor by the name that older versions of its library gave it.
static mezzo_status find_renamed(const mz_import *in, const char *name, const mz_safetensors_tensor **out) {
    for (size_t i = 0; in->family->renamed != NULL && in->family->renamed[i][0] != NULL; i++) {
        const char *now = in->family->renamed[i][0], *at = strstr(name, now);
        if (at == NULL)
            continue;
        char *older = mz_format("%.*s%s%s", (int)(at - name), name, in->family->renamed[i][1], at + strlen(now));
        if (older == NULL)
            return MEZZO_ERR_MEMORY;
        *out = find(in, older);
        mz_free(older);
        return MEZZO_OK;
    }
    return MEZZO_OK;
}

// Finds the tensor of a part, with the prefix of this source's names.
static mezzo_status find_part(const mz_import *in, const char *name, bool bare, const mz_safetensors_tensor **out) {
    char *full = mz_format("%s%s", bare ? "" : in->prefix, name);
    if (full == NULL)
        return MEZZO_ERR_MEMORY;
    *out = find(in, full);
    mezzo_status looked = *out == NULL ? find_renamed(in, full, out) : MEZZO_OK;
    if (looked != MEZZO_OK) {
        mz_free(full);
        return looked;
    }
    mezzo_status status = *out != NULL ? MEZZO_OK : missing(in, full);
    mz_free(full);
    return status;
}

static mezzo_status check_tensor(const mz_import *in, const mz_safetensors_tensor *t, const mz_shape *need) {
    if (t->rank != (size_t)need->rank || memcmp(t->shape, need->dim, t->rank * sizeof *t->shape) != 0) {
        mz_shape have = {.rank = t->rank > MEZZO_MAX_RANK ? MEZZO_MAX_RANK : (int)t->rank};
        char a[96], b[96];
        memcpy(have.dim, t->shape, (size_t)have.rank * sizeof *have.dim);
        return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s has shape %s; %s sizes need %s", mz_quote(in->where).text,
                       mz_quote(t->name).text, mz_shape_text(&have, a, sizeof a),
                       in->gguf != NULL ? "its keys'" : "config.json's", mz_shape_text(need, b, sizeof b));
    }
    if (!t->q8_0 && t->dtype != MEZZO_F32 && t->dtype != MEZZO_BF16 && t->dtype != MEZZO_F16)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s is %s; only fp32, bf16 and fp16 weights are supported",
                       mz_quote(in->where).text, mz_quote(t->name).text, mezzo_dtype_name(t->dtype));
    return MEZZO_OK;
}

static const char *positions_name(const mz_import *in) {
    return in->gguf != NULL ? MZ_GGUF_POSITIONS : in->family->positions;
}

static const char *head_name(const mz_import *in) {
    return in->gguf != NULL ? MZ_GGUF_HEAD : in->family->head;
}

static const char *embedding_name(const mz_import *in) {
    return in->gguf != NULL ? MZ_GGUF_EMBEDDING : in->family->embedding;
}

// Makes a block. `whole`: the tensor has the parameter's own shape.
static mezzo_status make_block(const mz_import *in, const mz_hf_part *part, const mz_shape *shape, bool whole,
                               mz_hf_block *out) {
    const mz_safetensors_tensor *t;
    int64_t rows = part->rows, cols = shape->rank > 1 ? shape->dim[shape->rank - 1] : 1;
    mz_shape need = {1, {rows}};
    if (whole)
        need = *shape;
    else if (in->family->positions != NULL && strcmp(part->name, positions_name(in)) == 0)
        need = (mz_shape){2, {in->positions, cols}}; // the first rows of it are used
    else if (part->slices > 0)
        need = (mz_shape){3, {part->slices, rows, cols}};
    else if (shape->rank > 1)
        need = part->transposed ? (mz_shape){2, {cols, rows}} : (mz_shape){2, {rows, cols}};
    MEZZO_TRY(find_part(in, part->name, part->bare, &t));
    MEZZO_TRY(check_tensor(in, t, &need));
    const int64_t before = part->slice * rows * cols; // slice 0 where the tensor has no slices
    const int64_t bytes =
        t->q8_0 ? before / MZ_Q8_0_VALUES * MZ_Q8_0_BYTES : before * (int64_t)mezzo_dtype_size(t->dtype);
    *out = (mz_hf_block){.data = (const unsigned char *)t->data + (part->slices > 0 ? bytes : 0),
                         .dtype = t->dtype,
                         .q8_0 = t->q8_0,
                         .rows = rows,
                         .stride = part->transposed ? rows : cols,
                         .transposed = part->transposed,
                         .order = part->order,
                         .plus = -part->plus};
    return MEZZO_OK;
}

// Makes a convolution's planes: a block for each of its results, whose [in, pixels] is our [pixels, in].
static mezzo_status make_planes(const mz_import *in, const mz_hf_part *part, const mz_shape *shape, mz_hf_block *out) {
    const mz_safetensors_tensor *t;
    const int64_t *d = shape->dim, each = part->pixels * d[3];
    MEZZO_TRY(find_part(in, part->name, part->bare, &t));
    MEZZO_TRY(check_tensor(in, t, &(mz_shape){4, {d[0], d[3], d[1], d[2]}}));
    for (int64_t i = 0; i < d[0]; i++)
        out[i] = (mz_hf_block){.data = t->data + i * each * (int64_t)mezzo_dtype_size(t->dtype),
                               .dtype = t->dtype,
                               .rows = part->pixels,
                               .stride = part->pixels,
                               .transposed = true};
    return MEZZO_OK;
}

// Lists the parts of the parameter; *whole where the source has it as one tensor of three dimensions.
static mezzo_status list_parts(const mz_import *in, const mz_param_spec *spec, mz_hf_parts *parts, bool *whole) {
    *whole = false;
    if (spec->shape.rank == 3 && in->gguf == NULL) {
        char *name = mz_format("%s%s", in->prefix, spec->name);
        if (name == NULL)
            return MEZZO_ERR_MEMORY;
        *whole = find(in, name) != NULL;
        mz_free(name);
    }
    if (*whole)
        return mz_hf_add_part(parts, spec->shape.dim[0] * spec->shape.dim[1], "%s", spec->name);
    MEZZO_TRY(in->family->map(in->family, &in->object, spec->name, &spec->shape, parts));
    return in->gguf != NULL ? mz_gguf_rename(in->gguf_family, &in->model, parts) : MEZZO_OK;
}

static mezzo_status add_param(mz_import *in, const mz_param_spec *spec) {
    mezzo_status status = MEZZO_OK;
    mz_hf_parts parts = {0};
    mz_hf_block *blocks = NULL;
    bool whole;
    MEZZO_TRY_GOTO(status, list_parts(in, spec, &parts, &whole));
    const bool planes = parts.items[0].pixels > 0; // a convolution has one part
    const size_t n = planes ? (size_t)spec->shape.dim[0] : parts.count;
    MEZZO_TRY_GOTO(status, MZ_NEW(blocks, n));
    if (planes)
        MEZZO_TRY_GOTO(status, make_planes(in, &parts.items[0], &spec->shape, blocks));
    for (size_t i = 0; !planes && i < parts.count; i++)
        MEZZO_TRY_GOTO(status, make_block(in, &parts.items[i], &spec->shape, whole, &blocks[i]));
    status = mz_hf_list_add(&in->list, spec->name, &spec->shape, MEZZO_F32, blocks, n);
    in->used += parts.count;
    blocks = NULL;
fail:
    MZ_FREE(blocks, parts.items);
    return status;
}

static const char *without_prefix(const mz_import *in, const char *name) {
    size_t n = strlen(in->prefix);
    return strncmp(name, in->prefix, n) == 0 ? name + n : name;
}

static bool is_tied(const mz_import *in) {
    const mz_decoder *decoder = mz_decoder_find(in->model.name);
    return decoder != NULL && mz_decoder_resolve(decoder, &in->model).tie_head == MZ_HEAD_TIED;
}

// Checks that a saved head that shares the embedding's weight equals it.
static mezzo_status check_head(const mz_import *in) {
    const mz_safetensors_tensor *head = is_tied(in) ? find(in, head_name(in)) : NULL;
    const mz_safetensors_tensor *embedding;
    if (head == NULL)
        return MEZZO_OK;
    MEZZO_TRY(find_part(in, embedding_name(in), false, &embedding));
    if (head->dtype == embedding->dtype && head->bytes == embedding->bytes &&
        memcmp(head->data, embedding->data, head->bytes) == 0)
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s is not %s, but this model's head shares it",
                   mz_quote(in->where).text, head->name, embedding->name);
}

static bool is_ours(const mz_import *in, const char *name) {
    const mz_safetensors_tensor *t = find(in, name);
    for (size_t i = 0; i < in->list.count; i++)
        for (size_t k = 0; k < in->list.tensors[i].n_blocks; k++)
            if (t != NULL && in->list.tensors[i].blocks[k].data == t->data)
                return true;
    return false;
}

// Returns whether the tensor belongs to a layer that predicts later tokens, which the model does not include.
static bool is_later_layer(const mz_import *in, const char *name) {
    long long layer;
    if (in->family->later_mark == NULL || sscanf(name, "layers.%lld.", &layer) != 1 || layer < in->model.layers)
        return false;
    MZ_SCOPED(mz_free_at) char *mark = mz_format("%slayers.%lld.%s", in->prefix, layer, in->family->later_mark);
    return mark != NULL && find(in, mark) != NULL;
}

// Refuses weights that no parameter takes, which would otherwise be lost without a message.
static mezzo_status check_rest(const mz_import *in) {
    size_t extra = 0;
    for (size_t f = 0; f < in->n_files; f++)
        extra += mz_safetensors_count(in->files[f]);
    for (size_t f = 0; f < in->n_files && (extra > in->used || in->gguf != NULL); f++)
        for (size_t i = 0; i < mz_safetensors_count(in->files[f]); i++) {
            const char *name = mz_safetensors_at(in->files[f], i)->name, *short_name = without_prefix(in, name);
            bool head = is_tied(in) && strcmp(name, head_name(in)) == 0;
            bool other = in->gguf != NULL ? mz_gguf_is_factors(name)
                                          : in->family->is_buffer(short_name) || is_later_layer(in, short_name);
            if (!head && !other && !is_ours(in, name))
                return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s is not part of this %s model", mz_quote(in->where).text,
                               mz_quote(name).text, in->family->model);
        }
    return check_head(in);
}

mezzo_status mz_import_graph(mz_import *in) {
    MEZZO_TRY(mz_model_of(&in->model, &in->object));
    MEZZO_TRY(mz_model_graph(&in->object, &in->graph));
    return mz_hf_list_create(in->graph->n_params + (in->adapter != NULL ? mz_safetensors_count(in->adapter) : 0),
                             &in->list);
}

static mezzo_status list_params(mz_import *in) {
    MEZZO_TRY(mz_import_graph(in));
    for (size_t i = 0; i < in->graph->n_params; i++)
        MEZZO_TRY(add_param(in, &in->graph->params[i]));
    return check_rest(in);
}

static bool has_biases(const mz_import *in) {
    for (size_t f = 0; f < in->n_files; f++)
        for (size_t i = 0; i < mz_safetensors_count(in->files[f]); i++) {
            const char *name = mz_safetensors_at(in->files[f], i)->name;
            if (mz_ends_with(name, ".bias") && !in->family->is_buffer(without_prefix(in, name)))
                return true;
        }
    return false;
}

static mezzo_status list_tensors(mz_import *in) {
    if (in->gguf != NULL)
        return list_params(in);
    char *probe = mz_format("%s%s", in->family->prefix, in->family->embedding);
    if (probe == NULL)
        return MEZZO_ERR_MEMORY;
    in->prefix = find(in, probe) != NULL ? in->family->prefix : "";
    mz_free(probe);
    if (in->family->biases_optional && !has_biases(in))
        in->model.bias = false;
    return list_params(in);
}

static mezzo_status open_gguf(mz_import *in, const char *path) {
    mz_map_close(&in->map);
    in->map = (mz_map){0};
    MEZZO_TRY(MZ_RESERVE(in->files, in->cap_files, 1));
    MEZZO_TRY(mz_gguf_open(path, &in->gguf));
    in->files[in->n_files++] = mz_gguf_tensors(in->gguf);
    MEZZO_TRY(mz_gguf_family_of(path, in->gguf, &in->gguf_family));
    in->family = mz_hf_by_model(in->gguf_family->model);
    MEZZO_TRY(mz_gguf_read_config(in->gguf_family, in->family, path, in->gguf, &in->model));
    MEZZO_TRY(set_length(in, path, in->length));
    MEZZO_TRY(mz_context(mezzo_model_check(&in->model), "%s: ", path));
    return list_tensors(in);
}

// --- the kind of `path` --------------------------------------------------------------------------------------------
static mezzo_status set_folder(mz_import *in, const char *path, const char **file) {
    const char *slash = strrchr(path, '/');
    *file = slash != NULL ? slash + 1 : path;
    in->folder = mz_strdup(mz_path_folder(path).text);
    return in->folder != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

// Returns whether torch.save wrote the file: a zip archive or, before PyTorch 1.6, a bare pickle.
static bool is_pickle(const mz_map *map) {
    static const unsigned char zip[] = {'P', 'K', 3, 4};
    return map->size > 4 && (memcmp(map->data, zip, 4) == 0 || (map->data[0] == 0x80 && map->data[1] <= 5));
}

static mezzo_status open_source(mz_import *in, const char *path) {
    const char *file = NULL;
    in->where = path;
    in->prefix = "";
    if (mz_path_is_dir(path)) {
        in->folder = mz_strdup(path);
        if (in->folder == NULL)
            return MEZZO_ERR_MEMORY;
        MEZZO_TRY(open_config(in));
        MEZZO_TRY(open_folder(in));
        return list_tensors(in);
    }
    bool llmc = false;
    MEZZO_TRY(set_folder(in, path, &file));
    MEZZO_TRY(mz_map_open(path, &in->map));
    MEZZO_TRY(mz_llmc_open(in, &llmc));
    if (llmc)
        return MEZZO_OK;
    if (mz_is_gguf(in->map.data, in->map.size))
        return open_gguf(in, path);
    if (is_pickle(&in->map))
        return mz_fail(
            MEZZO_ERR_FORMAT,
            "%s is a pickle of torch.save, which Mezzo does not read because loading one runs code: save its tensors "
            "with safetensors.torch.save_file next to a config.json; docs/models.md has the lines for nanoGPT",
            mz_quote(path).text);
    mz_map_close(&in->map);
    in->map = (mz_map){0};
    if (!mz_ends_with(file, ".safetensors") && !mz_ends_with(file, ".index.json"))
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: weights are read from a Hugging Face folder, a .safetensors file or its .index.json, a "
                       "GGUF file, or llm.c's model file",
                       mz_quote(path).text);
    MEZZO_TRY(open_config(in));
    MEZZO_TRY(mz_ends_with(file, ".index.json") ? open_index(in, file) : add_file(in, file));
    return list_tensors(in);
}

// --- writing -------------------------------------------------------------------------------------------------------
// Takes GPT-2's tokenizer, where the source has no other one.
static mezzo_status assume_gpt2(const mz_import *in, mezzo_tokenizer **out) {
    if (strcmp(in->model.name, "gpt2") == 0 && in->model.vocab == 50257) {
        mz_log("notice", "there is no tokenizer next to the weights: taking GPT-2's, as the model is a GPT-2 with its "
                         "50257 tokens; --tokenizer names another one, or none");
        return mezzo_tokenizer_create_gpt2(out);
    }
    mz_log("notice", "there is no tokenizer next to the weights: the run cannot turn text into tokens; add one "
                     "with import --tokenizer NAME");
    return MEZZO_OK;
}

// Recognizes GPT-2's tokenizer, which the library has built in, so that it is kept by its name.
static mezzo_status name_gpt2(mezzo_tokenizer **tok) {
    mezzo_tokenizer *gpt2;
    if (*tok == NULL || mezzo_tokenizer_vocab(*tok) != 50257)
        return MEZZO_OK;
    MEZZO_TRY(mezzo_tokenizer_create_gpt2(&gpt2));
    if (mz_tokenizer_same(*tok, gpt2)) {
        const mz_chat chat = (*tok)->chat;
        mezzo_tokenizer *other = *tok;
        other->chat = gpt2->chat;
        gpt2->chat = chat;
        *tok = gpt2;
        gpt2 = other;
    }
    mezzo_tokenizer_free(gpt2);
    return MEZZO_OK;
}

// Opens the file's own tokenizer, which must equal a named one.
static mezzo_status open_gguf_tokenizer(const mz_import *in, const char *name, mezzo_tokenizer **out) {
    MZ_SCOPED(mz_tokenizer_free_at) mezzo_tokenizer *named = NULL;
    MZ_SCOPED(mz_json_free_at) json_t *ids = mz_json_new();
    MEZZO_TRY(mz_gguf_read_tokenizer(in->where, in->gguf, out, ids));
    if (name != NULL)
        MEZZO_TRY(mz_tokenizer_named(name, &named));
    if (*out == NULL) {
        *out = named;
        named = NULL;
    }
    if (named != NULL && !mz_tokenizer_same(named, *out))
        MEZZO_TRY(mz_fail(MEZZO_ERR_INVALID, "%s has a tokenizer of its own, which is not %s", mz_quote(in->where).text,
                          mz_quote(name).text));
    MEZZO_TRY(name_gpt2(out));
    return *out == NULL ? assume_gpt2(in, out) : MEZZO_OK;
}

static mezzo_status open_tokenizer(const mz_import *in, const char *name, mezzo_tokenizer **out) {
    *out = NULL;
    if (name != NULL && strcmp(name, "none") == 0)
        return MEZZO_OK;
    if (in->gguf != NULL)
        return open_gguf_tokenizer(in, name, out);
    const bool has = in->family != NULL && mz_tokenizer_in_folder(in->folder);
    const mz_tokenizer_sources from = {.own = has ? in->folder : NULL, .named = name};
    MEZZO_TRY(mz_tokenizer_choose(&from, out));
    MEZZO_TRY(name_gpt2(out));
    if (*out != NULL && has)
        mz_log("notice", "the tokenizer is that of %s: %s, %d tokens", in->folder, mezzo_tokenizer_kind(*out),
               (int)mezzo_tokenizer_vocab(*out));
    return *out == NULL && mezzo_model_task(&in->model) != MEZZO_TASK_IMAGES ? assume_gpt2(in, out) : MEZZO_OK;
}

static mezzo_status write_config(const mz_import *in, const char *out, const char *path) {
    MZ_SCOPED(mz_config_free_at) mezzo_config *config = NULL;
    MEZZO_TRY(mezzo_config_create(&config));
    MEZZO_TRY(mezzo_config_set(config, "model.name", in->model.name, "import"));
    MEZZO_TRY(mz_config_set_model(config, &in->model));
    MEZZO_TRY(mezzo_config_set(config, "amp.precision", "fp32", "import"));
    MEZZO_TRY(mezzo_config_set(config, "train.out", out, "import"));
    return mezzo_config_save(config, path);
}

static mezzo_status write_checkpoint(const mz_import *in, const char *checkpoints, bool tokenizer) {
    char scale[40];
    const mz_safetensors_meta meta[] = {{"format", "pt"}, {MZ_LORA_SCALE, scale}};
    mz_file_mark marks[MZ_CHECKPOINT_FILES] = {{0}};
    mz_manifest_entry entry = {.name = "step-00000000", .val_loss = (double)NAN};
    mz_manifest manifest = {.entries = &entry, .count = 1};
    mz_written written = {0};
    mezzo_checkpoint c = {.val_loss = (double)NAN, .best_val_loss = (double)NAN, .precision = "fp32"};
    const mz_path folder = mz_path_of("%s/%s", checkpoints, entry.name),
                  weights = mz_path_of("%s/%s", folder.text, mz_checkpoint_files[0]),
                  state = mz_path_of("%s/state.json", folder.text);
    MEZZO_TRY(mz_description_write(&in->object, c.model));
    if (tokenizer)
        snprintf(c.tokenizer, sizeof c.tokenizer, "tokenizer.json");
    mz_snprintf(scale, sizeof scale, "%.17g", in->lora_scale);
    MEZZO_TRY(mz_dir_create(folder.text));
    MEZZO_TRY(
        mz_safetensors_write(weights.text, in->list.items, in->list.count, meta, in->adapters > 0 ? 2 : 1, &written));
    MEZZO_TRY(mz_file_read_back(weights.text, written));
    marks[0] = (mz_file_mark){true, written.bytes, written.crc};
    MEZZO_TRY(mz_state_save(state.text, &c, marks, &written));
    MEZZO_TRY(mz_file_read_back(state.text, written));
    entry.state_crc = written.crc;
    entry.state_bytes = written.bytes;
    return mz_manifest_save(checkpoints, &manifest);
}

// Keeps the ids of tokens that begin and end a text, like those of a Hugging Face folder.
static mezzo_status keep_ids(const mz_import *in, const char *run) {
    static const char *const ids[][2] = {{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                         {"tokenizer.ggml.eos_token_id", "eos_token_id"}};
    MZ_SCOPED(mz_json_free_at) json_t *kept = mz_json_new();
    if (kept == NULL)
        return mz_fail(MEZZO_ERR_MEMORY, "no memory for token ids");
    for (size_t i = 0; i < MZ_COUNT(ids); i++) {
        int64_t id;
        if (mz_gguf_find(in->gguf, ids[i][0]) == NULL)
            continue;
        MEZZO_TRY(mz_gguf_get_int(in->gguf, ids[i][0], 0, UINT32_MAX, &id));
        if (id < in->model.vocab) // llama.cpp ignores any other
            MEZZO_TRY(mz_json_set(kept, ids[i][1], json_integer(id)));
    }
    return mz_hf_settings_save(kept, run);
}

static mezzo_status write_run(const mz_import *in, const mezzo_import_options *o, const char *staged,
                              bool *has_tokenizer) {
    MZ_SCOPED(mz_tokenizer_free_at) mezzo_tokenizer *tokenizer = NULL;
    const mz_path checkpoints = mz_path_of("%s/checkpoints", staged);
    MEZZO_TRY(open_tokenizer(in, o->tokenizer, &tokenizer));
    if (tokenizer != NULL && mezzo_tokenizer_vocab(tokenizer) > in->model.vocab)
        MEZZO_TRY(mz_fail(MEZZO_ERR_INVALID, "the tokenizer has %d tokens, but the model has %lld: they do not match",
                          (int)mezzo_tokenizer_vocab(tokenizer), (long long)in->model.vocab));
    if (tokenizer != NULL)
        MEZZO_TRY(mezzo_tokenizer_save(tokenizer, mz_path_of("%s/tokenizer.json", staged).text));
    MEZZO_TRY(write_config(in, o->out, mz_path_of("%s/config.yaml", staged).text));
    if (in->gguf != NULL)
        MEZZO_TRY(keep_ids(in, staged));
    else if (in->family != NULL)
        MEZZO_TRY(mz_hf_settings_keep(in->family, in->folder, staged));
    MEZZO_TRY(mz_context(write_checkpoint(in, checkpoints.text, tokenizer != NULL), "%s: ", mz_quote(in->where).text));
    *has_tokenizer = tokenizer != NULL;
    return MEZZO_OK;
}

// Checks that every file was complete until its last tensor was read.
static mezzo_status check_sources(const mz_import *in) {
    for (size_t i = 0; i < in->n_files; i++)
        MEZZO_TRY(mz_safetensors_check(in->files[i]));
    if (in->adapter != NULL)
        MEZZO_TRY(mz_safetensors_check(in->adapter));
    return mz_map_check(in->map.data);
}

mezzo_status mezzo_import(const mezzo_import_options *options, mezzo_import_result *result) {
    MZ_REQUIRE(options, result);
    MZ_REQUIRE(options->path, options->out);
    mezzo_status status = MEZZO_OK;
    mz_import in = {0};
    mz_new_folder folder = {0};
    mezzo_model_config named;
    *result = (mezzo_import_result){0};
    if (mezzo_model_defaults(options->path, &named) == MEZZO_OK && named.graph[0] != '\0')
        return mz_fail(MEZZO_ERR_INVALID, "%s: an ONNX file needs no import: mezzo train --model %s reads it",
                       options->path, options->path);
    if (options->adapter != NULL)
        MEZZO_TRY_GOTO(status, mz_adapter_open(&in, options->adapter));
    in.length = options->seq_len;
    MEZZO_TRY_GOTO(status, open_source(&in, options->path));
    if (in.family == NULL && options->seq_len > 0)
        MEZZO_TRY_GOTO(status, mz_fail(MEZZO_ERR_INVALID, "%s: another context needs a Hugging Face folder",
                                       mz_quote(options->path).text));
    if (options->adapter != NULL)
        MEZZO_TRY_GOTO(status, mz_adapter_list(&in));
    MEZZO_TRY_GOTO(status, mz_new_folder_begin(options->out, "--out", &folder));
    MEZZO_TRY_GOTO(status, write_run(&in, options, folder.staged, &result->tokenizer));
    MEZZO_TRY_GOTO(status, check_sources(&in));
    MEZZO_TRY_GOTO(status, mz_new_folder_commit(&folder));
    result->model = in.model;
    result->adapters = in.adapters;
    result->lora_rank = in.lora_rank;
    result->lora_alpha = in.lora_scale * (double)in.lora_rank;
    for (size_t i = 0; i < in.graph->n_params; i++)
        result->parameters += mz_shape_count(&in.graph->params[i].shape);
fail:
    mz_new_folder_end(&folder);
    close_source(&in);
    return status;
}
