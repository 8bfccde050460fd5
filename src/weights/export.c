// mezzo_export turns a checkpoint into a folder that transformers loads, or a GGUF file.
#include <stdlib.h>

#include "graph/graph.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "checkpoint/checkpoint.h"
#include "data/tokenizer.h"
#include "weights/gguf.h"
#include "weights/hf.h"
#include "mezzo/data.h"
#include "session/session.h"
#include "train/folder.h"

typedef struct exporter {
    char checkpoint[4096], run[4096]; // paths of these folders
    mezzo_checkpoint state;
    const char *file; // the name of the weights' file
    const mz_hf_family *family;
    const mz_gguf_family *gguf; // NULL: the export writes Hugging Face's files
    mz_gguf_format format;
    float *factors[MZ_GGUF_FACTORS]; // of scaled positions
    mezzo_dtype dtype;
    int64_t shard_bytes;
    mz_safetensors *weights;
    mezzo_graph *graph;
    mz_hf_list list;
    float **merged; // weights with their adapters added
    size_t n_merged, cap_merged;
    mz_model model;
} exporter;

static void close_exporter(exporter *e) {
    mz_safetensors_close(e->weights);
    mezzo_graph_free(e->graph);
    mz_hf_list_free(&e->list);
    for (size_t i = 0; i < e->n_merged; i++)
        mz_free(e->merged[i]);
    mz_free(e->merged);
    for (int i = 0; i < MZ_GGUF_FACTORS; i++)
        mz_free(e->factors[i]);
}

static mezzo_status open_found(const mezzo_export_options *o, exporter *e) {
    mz_checkpoint_state state;
    const int parts = o->no_ema ? MZ_CHECKPOINT_WEIGHTS : MZ_CHECKPOINT_WEIGHTS | MZ_CHECKPOINT_EMA;
    MEZZO_TRY(mz_find_checkpoint(o->path, o->best, parts, e->checkpoint, sizeof e->checkpoint));
    MEZZO_TRY(mz_checkpoint_verify(e->checkpoint, parts, &e->state, &state));
    e->file = mz_checkpoint_files[e->state.has_ema && !o->no_ema ? 2 : 0];
    MEZZO_TRY(mz_run_folder(e->checkpoint, e->run, sizeof e->run));
    MEZZO_TRY(mz_description_read(e->checkpoint, e->state.model, &e->model));
    e->model.config.seq_len = mz_model_positions(&e->model.config); // the file has no other context length
    MEZZO_TRY(mz_model_compare_hash(&e->model, e->state.graph, e->checkpoint));
    if (o->onnx != (e->model.maker->save != NULL))
        return mz_fail(MEZZO_ERR_INVALID, "%s: the model %s an ONNX file: export it %s", e->checkpoint,
                       o->onnx ? "is not of" : "is of", o->onnx ? "without --onnx" : "with --onnx FILE");
    if (o->onnx)
        return MEZZO_OK;
    e->family = mz_hf_by_model(e->model.maker->name);
    if (e->family == NULL)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "%s: neither transformers nor diffusers has an equivalent of %s, so it cannot be exported",
                       e->checkpoint, e->model.maker->name);
    return mz_safetensors_open(mz_path_of("%s/%s", e->checkpoint, e->file).text, &e->weights);
}

static mezzo_status open_checkpoint(const mezzo_export_options *o, exporter *e) {
    const exporter fresh = *e;
    int tries = 0;
    mezzo_status status = open_found(o, e);
    while (mz_checkpoint_find_again(status, e->checkpoint, &tries)) {
        close_exporter(e);
        *e = fresh;
        status = open_found(o, e);
    }
    return status;
}

// --- tensors -------------------------------------------------------------------------------------------------------
static mezzo_status check_param(const exporter *e, const mz_param_spec *spec, const mz_safetensors_tensor **out) {
    MEZZO_TRY(mz_safetensors_get(e->weights, spec->name, out));
    const mz_safetensors_tensor *t = *out;
    if (t->dtype == MEZZO_F32 && t->rank == (size_t)spec->shape.rank &&
        memcmp(t->shape, spec->shape.dim, t->rank * sizeof *t->shape) == 0)
        return MEZZO_OK;
    char text[96];
    return mz_fail(MEZZO_ERR_FORMAT, "%s/%s: tensor '%s' is not fp32 of shape %s, as its state.json says",
                   e->checkpoint, e->file, spec->name, mz_shape_text(&spec->shape, text, sizeof text));
}

static bool is_padded(const exporter *e, int64_t cols) { // whether rows of this width cannot be Q8_0
    return e->format.q8_0 && cols % MZ_Q8_0_VALUES != 0;
}

// Adds a tensor in the format of the export, and takes over its blocks.
static mezzo_status add_blocks(exporter *e, const mz_hf_part *part, const char *name, const mz_shape *shape,
                               bool vector, mz_hf_block *blocks, size_t n) {
    mezzo_dtype dtype = part->fp32 ? MEZZO_F32 : e->dtype;
    bool q8_0 = false;
    if (e->gguf != NULL)
        mz_gguf_format_of(&e->format, part, vector, shape->dim[shape->rank - 1], &dtype, &q8_0);
    MEZZO_TRY(mz_hf_list_add(&e->list, name, shape, dtype, blocks, n));
    e->list.tensors[e->list.count - 1].q8_0 = q8_0;
    return MEZZO_OK;
}

static mezzo_status add_tensor(exporter *e, const mz_hf_part *part, const unsigned char *data, int64_t cols,
                               bool vector) {
    mz_shape shape = {1, {part->rows}};
    if (!vector)
        shape = part->transposed ? (mz_shape){2, {cols, part->rows}} : (mz_shape){2, {part->rows, cols}};
    char *name = mz_format("%s%s", part->bare ? "" : e->family->prefix, part->name);
    mz_hf_block *block = mz_alloc(1, sizeof *block);
    if (name == NULL || block == NULL) {
        MZ_FREE(name, block);
        return MEZZO_ERR_MEMORY;
    }
    mz_hf_order order = part->order;
    order.ours = true;
    // This transposes the parameter's rows, not the tensor's.
    *block = (mz_hf_block){.data = data,
                           .dtype = MEZZO_F32,
                           .rows = shape.dim[0],
                           .stride = cols,
                           .transposed = part->transposed,
                           .order = order,
                           .plus = part->plus};
    mezzo_status status = add_blocks(e, part, name, &shape, vector, block, 1);
    mz_free(name);
    return status;
}

// Adds a convolution: a block for each of its results, whose [in, pixels] is our [pixels, in].
static mezzo_status add_planes(exporter *e, const mz_hf_part *part, const unsigned char *data, const mz_shape *ours) {
    const int64_t *d = ours->dim, each = part->pixels * d[3];
    const mz_shape shape = {4, {d[0], d[3], d[1], d[2]}};
    mz_hf_block *blocks;
    MEZZO_TRY(MZ_NEW(blocks, (size_t)d[0]));
    for (int64_t i = 0; i < d[0]; i++)
        blocks[i] = (mz_hf_block){.data = data + i * each * (int64_t)sizeof(float),
                                  .dtype = MEZZO_F32,
                                  .rows = d[3],
                                  .stride = d[3],
                                  .transposed = true};
    MEZZO_TRY(mz_hf_list_add(&e->list, part->name, &shape, e->dtype, blocks, (size_t)d[0]));
    e->list.tensors[e->list.count - 1].cols = part->pixels;
    return MEZZO_OK;
}

// Adds the parts of a parameter that are slices of the same tensor as part `first`.
static mezzo_status add_slices(exporter *e, const mz_hf_parts *parts, size_t first, const unsigned char *data,
                               int64_t cols) {
    const mz_hf_part *part = &parts->items[first];
    const mz_shape shape = {3, {part->slices, part->rows, cols}};
    mz_hf_block *blocks = mz_alloc((size_t)part->slices, sizeof *blocks);
    int64_t row = 0;
    if (blocks == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < parts->count; row += parts->items[i++].rows)
        if (strcmp(parts->items[i].name, part->name) == 0)
            blocks[parts->items[i].slice] = (mz_hf_block){.data = data + row * cols * (int64_t)sizeof(float),
                                                          .dtype = MEZZO_F32,
                                                          .rows = part->rows,
                                                          .stride = cols};
    return add_blocks(e, part, part->name, &shape, false, blocks, (size_t)part->slices);
}

// Lists the tensors of a parameter, by the names in the files that the export writes.
static mezzo_status map_parts(const exporter *e, const mz_param_spec *spec, mz_hf_parts *parts) {
    MEZZO_TRY(e->family->map(e->family, &e->model, spec->name, &spec->shape, parts));
    return e->gguf != NULL ? mz_gguf_rename(e->gguf, &e->model.config, parts) : MEZZO_OK;
}

// Finds a parameter's numbers: in the file, or merged with its adapter.
static mezzo_status data_of(exporter *e, const mz_param_spec *spec, const mz_safetensors_tensor *t,
                            const unsigned char **out) {
    *out = t->data;
    if (!mz_lora_has(e->weights, spec->name, &spec->parts))
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(e->merged, e->cap_merged, e->n_merged + 1));
    MEZZO_TRY(mz_lora_merge(e->weights, spec->name, &spec->parts, &e->merged[e->n_merged]));
    *out = (const unsigned char *)e->merged[e->n_merged++];
    return MEZZO_OK;
}

static mezzo_status add_param(exporter *e, const mz_param_spec *spec) {
    const mz_safetensors_tensor *t;
    mz_hf_parts parts = {0};
    int64_t cols = spec->shape.rank > 1 ? spec->shape.dim[spec->shape.rank - 1] : 1, row = 0;
    const unsigned char *data;
    MEZZO_TRY(check_param(e, spec, &t));
    MEZZO_TRY(data_of(e, spec, t, &data));
    mezzo_status status = map_parts(e, spec, &parts);
    for (size_t i = 0; i < parts.count && status == MEZZO_OK; row += parts.items[i++].rows)
        status = parts.items[i].slice > 0    ? MEZZO_OK // slice 0 has added the tensor
                 : parts.items[i].slices > 0 ? add_slices(e, &parts, i, data, cols)
                 : parts.items[i].pixels > 0
                     ? add_planes(e, &parts.items[i], data, &spec->shape)
                     : add_tensor(e, &parts.items[i], data + row * cols * (int64_t)sizeof(float), cols,
                                  spec->shape.rank == 1);
    mz_free(parts.items);
    return status;
}

// Adds a bias of zeros: transformers' GPT-2 has a bias everywhere, and the model was trained without.
static mezzo_status add_zero_bias(exporter *e, const mz_param_spec *spec) {
    mz_hf_parts parts = {0};
    size_t n = strlen(spec->name), k = strlen(".weight");
    if (strncmp(spec->name, "wte.", 4) == 0 || strncmp(spec->name, "wpe.", 4) == 0 || n < k)
        return MEZZO_OK;
    mezzo_status status = mz_hf_add_part(&parts, spec->shape.dim[0], "%.*s.bias", (int)(n - k), spec->name);
    if (status == MEZZO_OK && e->gguf != NULL)
        status = mz_gguf_rename(e->gguf, &e->model.config, &parts);
    if (status == MEZZO_OK)
        status = add_tensor(e, &parts.items[0], NULL, 1, true);
    mz_free(parts.items);
    return status;
}

static size_t count_parts(const exporter *e) { // an upper bound: a parameter has no more parts than rows
    size_t n = 0;
    for (size_t i = 0; i < e->graph->n_params; i++) {
        mz_hf_parts parts = {0};
        const mz_param_spec *spec = &e->graph->params[i];
        if (e->family->map(e->family, &e->model, spec->name, &spec->shape, &parts) == MEZZO_OK)
            n += parts.count + 1; // one more for a bias
        mz_free(parts.items);
    }
    return n + MZ_GGUF_FACTORS;
}

static mezzo_status add_factors(exporter *e) {
    for (int i = 0; i < MZ_GGUF_FACTORS; i++) {
        const char *name;
        mz_hf_part part = {.bare = true};
        MEZZO_TRY(mz_gguf_factors(&e->model.config, i, &name, &e->factors[i], &part.rows));
        snprintf(part.name, sizeof part.name, "%s", name);
        if (e->factors[i] != NULL)
            MEZZO_TRY(add_tensor(e, &part, (const unsigned char *)e->factors[i], 1, true));
    }
    return MEZZO_OK;
}

static mezzo_status list_tensors(exporter *e) {
    bool zeros = e->family == &mz_hf_gpt2 && !e->model.config.bias;
    MEZZO_TRY(mz_model_graph(&e->model, &e->graph));
    MEZZO_TRY(mz_hf_list_create(count_parts(e), &e->list));
    for (size_t i = 0; i < e->graph->n_params; i++) {
        MEZZO_TRY(add_param(e, &e->graph->params[i]));
        if (zeros)
            MEZZO_TRY(add_zero_bias(e, &e->graph->params[i]));
    }
    return e->gguf != NULL ? add_factors(e) : MEZZO_OK;
}

// --- files ---------------------------------------------------------------------------------------------------------
static mezzo_status write_config(const exporter *e, const char *folder, const char *path) {
    MZ_SCOPED(mz_json_free_at) json_t *config = mz_json_new();
    if (config == NULL)
        return mz_fail(MEZZO_ERR_MEMORY, "no memory for %s", path);
    const char *dtype = e->dtype == MEZZO_F32 ? "float32" : e->dtype == MEZZO_BF16 ? "bfloat16" : "float16";
    MEZZO_TRY(e->family->write_config(e->family, &e->model, config));
    if (e->family != &mz_hf_autoencoder)
        MEZZO_TRY(mz_json_set(config, "torch_dtype", json_string(dtype)));
    MEZZO_TRY(mz_hf_settings_give(e->run, config, folder));
    return mz_json_save(path, config);
}

// Writes tokenizer.json, and the files that older programs read for a tokenizer that splits as GPT-2 does. Classes that
// transformers has for a model split texts in their own way, whatever tokenizer.json says: the general one does not.
static mezzo_status write_tokenizer_files(const mezzo_tokenizer *tok, const char *model, const char *folder) {
    const bool as_gpt2 = mz_tokenizer_splits_as_gpt2(tok),
               by_model = as_gpt2 && (strcmp(model, "gpt2") == 0 || strcmp(model, "gpt_neox") == 0);
    MEZZO_TRY(mezzo_tokenizer_save(tok, mz_path_of("%s/tokenizer.json", folder).text));
    if (as_gpt2)
        MEZZO_TRY(mezzo_tokenizer_save_bpe(tok, folder));
    return mz_chat_write(tok, folder, by_model ? NULL : "PreTrainedTokenizerFast");
}

// Loads the run's tokenizer; *out NULL: it has none.
static mezzo_status load_tokenizer(const exporter *e, mezzo_tokenizer **out) {
    *out = NULL;
    if (e->state.tokenizer[0] == '\0')
        return MEZZO_OK;
    const mz_path path = mz_path_of("%s/%s", e->run, e->state.tokenizer);
    // A checkpoint may have been moved out of its run.
    return mz_path_exists(path.text) ? mezzo_tokenizer_load(path.text, out) : MEZZO_OK;
}

static mezzo_status write_tokenizer(const exporter *e, const char *folder) {
    MZ_SCOPED(mz_tokenizer_free_at) mezzo_tokenizer *tokenizer = NULL;
    MEZZO_TRY(load_tokenizer(e, &tokenizer));
    if (tokenizer != NULL)
        MEZZO_TRY(write_tokenizer_files(tokenizer, e->model.config.name, folder));
    return MEZZO_OK;
}

static int64_t item_bytes(const mz_safetensors_item *item) {
    int64_t bytes = (int64_t)mezzo_dtype_size(item->dtype);
    for (size_t i = 0; i < item->rank; i++)
        bytes *= item->shape[i];
    return bytes;
}

// Returns the end of the tensors of the file that begins with tensor `first`.
static size_t shard_end(const exporter *e, size_t first) {
    size_t end = first;
    for (int64_t bytes = 0; end < e->list.count; end++) {
        bytes += item_bytes(&e->list.items[end]);
        if (e->shard_bytes > 0 && bytes > e->shard_bytes && end > first)
            break;
    }
    return end;
}

static mezzo_status write_weights(const exporter *e, const char *folder, const char *name, size_t first, size_t end) {
    static const mz_safetensors_meta meta[] = {{"format", "pt"}};
    return mz_safetensors_write(mz_path_of("%s/%s", folder, name).text, e->list.items + first, end - first, meta,
                                MZ_COUNT(meta), NULL);
}

// Writes the files of a sharded model, and notes in `map` which file has which tensor.
static mezzo_status write_shards(const exporter *e, const char *folder, int64_t files, json_t *map, int64_t *bytes) {
    size_t first = 0;
    for (int64_t k = 1; first < e->list.count; k++) {
        char name[96];
        size_t end = shard_end(e, first);
        snprintf(name, sizeof name, "%s-%05lld-of-%05lld.safetensors", e->family->file, (long long)k, (long long)files);
        for (size_t i = first; i < end; i++) {
            MEZZO_TRY(mz_json_set(map, e->list.items[i].name, json_string(name)));
            *bytes += item_bytes(&e->list.items[i]);
        }
        MEZZO_TRY(write_weights(e, folder, name, first, end));
        first = end;
    }
    return MEZZO_OK;
}

static mezzo_status write_index(const exporter *e, const char *folder, int64_t files) {
    int64_t bytes = 0;
    MZ_SCOPED(mz_json_free_at) json_t *map = json_object(), *index = json_object();
    if (map == NULL || index == NULL)
        MEZZO_TRY(mz_fail(MEZZO_ERR_MEMORY, "no memory for the index of %s", folder));
    MEZZO_TRY(write_shards(e, folder, files, map, &bytes));
    MEZZO_TRY(mz_json_set(index, "metadata", json_pack("{sI}", "total_size", (json_int_t)bytes)));
    MEZZO_TRY(mz_json_set(index, "weight_map", json_incref(map)));
    return mz_json_save(mz_path_of("%s/%s.safetensors.index.json", folder, e->family->file).text, index);
}

static mezzo_status write_all(const exporter *e, const char *folder, int64_t *files) {
    MEZZO_TRY(write_config(e, folder, mz_path_of("%s/config.json", folder).text));
    MEZZO_TRY(write_tokenizer(e, folder));
    *files = 0;
    for (size_t first = 0; first < e->list.count; first = shard_end(e, first))
        ++*files;
    if (*files > 1)
        return write_index(e, folder, *files);
    char name[96];
    snprintf(name, sizeof name, "%s.safetensors", e->family->file);
    return write_weights(e, folder, name, 0, e->list.count);
}

static mezzo_status export_folder(exporter *e, const mezzo_export_options *o, mezzo_export_result *result) {
    mezzo_status status = MEZZO_OK;
    mz_new_folder folder = {0};
    MEZZO_TRY(open_checkpoint(o, e));
    if (!o->adapter)
        MEZZO_TRY(list_tensors(e));
    MEZZO_TRY_GOTO(status, mz_new_folder_begin(o->out, "--out", &folder));
    if (o->adapter)
        MEZZO_TRY_GOTO(
            status, mz_adapter_write(e->weights, e->family, &e->model, e->checkpoint, folder.staged, &result->tensors));
    else
        MEZZO_TRY_GOTO(status, write_all(e, folder.staged, &result->files));
    MEZZO_TRY_GOTO(status, mz_safetensors_check(e->weights));
    status = mz_new_folder_commit(&folder);
fail:
    mz_new_folder_end(&folder);
    return status;
}

// --- GGUF ----------------------------------------------------------------------------------------------------------
static mezzo_status put_tokenizer(const exporter *e, const char *path, mz_gguf_meta *meta) {
    mezzo_tokenizer *tokenizer;
    json_t *ids = mz_json_new();
    mezzo_status status = load_tokenizer(e, &tokenizer);
    if (status == MEZZO_OK)
        status = mz_hf_settings_set(e->run, ids);
    if (status == MEZZO_OK && tokenizer != NULL)
        status = mz_gguf_write_tokenizer(path, tokenizer, e->model.config.vocab, ids, meta);
    if (status == MEZZO_OK && tokenizer == NULL) {
        mz_gguf_put_text(meta, "tokenizer.ggml.model", "none", 4);
        mz_log("notice", "the run has no tokenizer: the file has none either");
    }
    mezzo_tokenizer_free(tokenizer);
    json_decref(ids);
    return status;
}

static mezzo_status write_gguf(const exporter *e, const char *path) {
    mz_gguf_meta meta = {0};
    mz_gguf_item *items = mz_alloc(e->list.count + 1, sizeof *items);
    size_t wide = 0;
    mezzo_status status = items != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    MEZZO_TRY_GOTO(status, status);
    for (size_t i = 0; i < e->list.count; i++) {
        items[i] = (mz_gguf_item){e->list.items[i], e->list.tensors[i].q8_0};
        wide += e->list.items[i].dtype == MEZZO_F16 && is_padded(e, e->list.tensors[i].cols);
    }
    if (wide > 0)
        mz_log("notice", "%zu tensors are written in f16: their rows are no multiple of %d, which q8_0 needs", wide,
               MZ_Q8_0_VALUES);
    MEZZO_TRY_GOTO(status, mz_gguf_write_config(e->gguf, e->checkpoint, &e->model.config, &meta));
    // general.name is left out: llama.cpp takes some tokenizers' rules from it.
    mz_gguf_put_int(&meta, "general.file_type", e->format.file_type);
    mz_gguf_put_int(&meta, "general.quantization_version", 2);
    MEZZO_TRY_GOTO(status, put_tokenizer(e, path, &meta));
    MEZZO_TRY_GOTO(status, mz_safetensors_check(e->weights));
    status = mz_gguf_write(path, &meta, items, e->list.count);
fail:
    mz_text_free(&meta.bytes);
    mz_free(items);
    return status;
}

static mezzo_status check_new_file(const char *path) {
    if (mz_path_exists(path))
        return mz_fail(MEZZO_ERR_INVALID, "%s is there already: choose another file", mz_quote(path).text);
    return MEZZO_OK;
}

static mezzo_status export_gguf(exporter *e, const mezzo_export_options *o) {
    MEZZO_TRY(mz_gguf_format_named(o->gguf, &e->format));
    if (o->adapter || o->shard_bytes > 0)
        return mz_fail(MEZZO_ERR_INVALID, "export in GGUF: %s not written so",
                       o->adapter ? "adapters alone are" : "more than one file is");
    MEZZO_TRY(check_new_file(o->out));
    MEZZO_TRY(open_checkpoint(o, e));
    e->gguf = mz_gguf_by_model(e->model.maker->name);
    if (e->gguf == NULL)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "%s: llama.cpp has no architecture for %s, so there is no GGUF file of it", e->checkpoint,
                       e->model.maker->name);
    MEZZO_TRY(list_tensors(e));
    return write_gguf(e, o->out);
}

// --- ONNX ----------------------------------------------------------------------------------------------------------
MZ_FREE_AT(mz_device_close_at, mezzo_device, mezzo_device_close)

// Exports the imported file with the checkpoint's weights, adapters added.
static mezzo_status export_onnx(exporter *e, const mezzo_export_options *o, mezzo_export_result *result) {
    MZ_SCOPED(mz_device_close_at) mezzo_device *device = NULL;
    MZ_SCOPED(mz_session_close) mz_session session = {0};
    if (o->adapter || o->shard_bytes > 0 || o->gguf != NULL || o->dtype != MEZZO_F32)
        return mz_fail(MEZZO_ERR_INVALID, "export in ONNX: one file in fp32, without adapters, is what there is");
    MEZZO_TRY(check_new_file(o->out));
    MEZZO_TRY(open_checkpoint(o, e));
    const mz_session_options options = {.model = e->model,
                                        .form = {.batch = 1, .length = mz_model_sizes_of(&e->model).length},
                                        .step = {.micro_batches = 1},
                                        .size = 1};
    MEZZO_TRY(mezzo_device_open("cpu", 0, &device));
    MEZZO_TRY(mz_session_open(device, &options, MZ_SESSION_PARAMS, &session));
    mezzo_checkpoint read = {.params = session.params, .ema = e->state.has_ema && !o->no_ema};
    MEZZO_TRY(mezzo_checkpoint_load(e->checkpoint, &read));
    MEZZO_TRY(e->model.maker->save(&e->model, session.params, o->evaluation, o->out));
    result->tensors = mezzo_params_count(session.params);
    return MEZZO_OK;
}

mezzo_status mezzo_export(const mezzo_export_options *options, mezzo_export_result *result) {
    MZ_REQUIRE(options, result);
    MZ_REQUIRE(options->path, options->out);
    mezzo_status status = MEZZO_OK;
    exporter e = {.dtype = options->dtype, .shard_bytes = options->shard_bytes};
    *result = (mezzo_export_result){0};
    if (e.dtype != MEZZO_F32 && e.dtype != MEZZO_BF16 && e.dtype != MEZZO_F16)
        return mz_fail(MEZZO_ERR_INVALID, "export in %s: weights are written in fp32, bf16 or fp16",
                       mezzo_dtype_name(e.dtype));
    if (e.shard_bytes < 0)
        return mz_fail(MEZZO_ERR_INVALID, "export in files of %lld bytes", (long long)e.shard_bytes);
    if (options->onnx)
        MEZZO_TRY_GOTO(status, export_onnx(&e, options, result));
    else if (options->gguf != NULL)
        MEZZO_TRY_GOTO(status, export_gguf(&e, options));
    else
        MEZZO_TRY_GOTO(status, export_folder(&e, options, result));
    snprintf(result->checkpoint, sizeof result->checkpoint, "%s", e.checkpoint);
    result->model = e.model.config;
    result->ema = e.state.has_ema && !options->no_ema;
    if (options->adapter || options->gguf != NULL || options->onnx)
        result->files = 1;
    if (!options->adapter && !options->onnx)
        result->tensors = (int64_t)e.list.count;
fail:
    close_exporter(&e);
    return status;
}
