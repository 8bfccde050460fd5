// Reads llm.c's GPT-2 (train_gpt2.py, write_model): 256 int32 of header, then 16 tensors, those of the layers stacked,
// all in FP32 (version 3) or all in BF16 (version 5). Linear weights are [outputs, inputs]; the token embedding has
// more rows, up to a round number.
#include "weights/import.h"

enum { MAGIC = 20240326, HEADER_INTS = 256, TENSORS = 16 };

typedef struct section {
    const char *name; // of our parameter; it follows "h.N." where the section is stacked
    bool stacked;
    int64_t rows, cols; // of one layer
} section;

static mezzo_status read_header(const char *where, const mz_map *map, mezzo_model_config *model, mezzo_dtype *dtype,
                                int64_t *padded) {
    int32_t h[8];
    memcpy(h, map->data, sizeof h);
    if (h[1] != 3 && h[1] != 5)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: version %d of llm.c's model format; only 3 (fp32) and 5 (bf16) are supported", where,
                       (int)h[1]);
    *dtype = h[1] == 3 ? MEZZO_F32 : MEZZO_BF16;
    MEZZO_TRY(mezzo_model_defaults("gpt2", model));
    model->seq_len = h[2];
    model->vocab = h[3];
    model->layers = h[4];
    model->heads = h[5];
    model->d_model = h[6];
    *padded = h[7];
    MEZZO_TRY(mz_context(mezzo_model_check(model), "%s: ", where));
    if (*padded < model->vocab)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its header says %lld tokens, with padding %lld", where,
                       (long long)model->vocab, (long long)*padded);
    return MEZZO_OK;
}

static void list_sections(const mezzo_model_config *m, int64_t padded, section out[TENSORS]) {
    int64_t c = m->d_model;
    const section all[TENSORS] = {
        {"wte.weight", false, padded, c},
        {"wpe.weight", false, m->seq_len, c},
        {"ln_1.weight", true, c, 1},
        {"ln_1.bias", true, c, 1},
        {"attn.c_attn.weight", true, 3 * c, c},
        {"attn.c_attn.bias", true, 3 * c, 1},
        {"attn.c_proj.weight", true, c, c},
        {"attn.c_proj.bias", true, c, 1},
        {"ln_2.weight", true, c, 1},
        {"ln_2.bias", true, c, 1},
        {"mlp.c_fc.weight", true, 4 * c, c},
        {"mlp.c_fc.bias", true, 4 * c, 1},
        {"mlp.c_proj.weight", true, c, 4 * c},
        {"mlp.c_proj.bias", true, c, 1},
        {"ln_f.weight", false, c, 1},
        {"ln_f.bias", false, c, 1},
    };
    memcpy(out, all, sizeof all);
}

// Checks the file's size, which must be exact: sizes are products of header fields that mezzo_model_check has bounded.
static mezzo_status check_size(const char *where, const mz_map *map, const mezzo_model_config *m,
                               const section sections[TENSORS], mezzo_dtype dtype) {
    size_t total = HEADER_INTS * sizeof(int32_t), n;
    bool over = false;
    for (int i = 0; i < TENSORS; i++) {
        over |= __builtin_mul_overflow((size_t)sections[i].rows, (size_t)sections[i].cols, &n);
        over |= __builtin_mul_overflow(n, sections[i].stacked ? (size_t)m->layers : 1, &n);
        over |= __builtin_mul_overflow(n, mezzo_dtype_size(dtype), &n);
        over |= __builtin_add_overflow(total, n, &total);
    }
    if (over || total != map->size)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its header's sizes make %zu bytes, the file has %zu: %s", where,
                       over ? SIZE_MAX : total, map->size,
                       !over && map->size > total ? "it is damaged" : "it is cut off");
    return MEZZO_OK;
}

// Adds parameter `spec`; its name gives the section's start and its layer.
static mezzo_status add_param(mz_import *in, const mz_param_spec *spec, const section sections[TENSORS],
                              mezzo_dtype dtype) {
    const unsigned char *at = in->map.data + HEADER_INTS * sizeof(int32_t);
    size_t width = mezzo_dtype_size(dtype);
    int layer = 0, used = 0;
    if (sscanf(spec->name, "h.%d.%n", &layer, &used) != 1)
        used = 0;
    for (int i = 0; i < TENSORS; i++) {
        const section *s = &sections[i];
        size_t one = (size_t)(s->rows * s->cols) * width;
        if (s->stacked == (used > 0) && strcmp(spec->name + used, s->name) == 0) {
            mz_hf_block *block;
            MEZZO_TRY(MZ_NEW(block, 1));
            *block = (mz_hf_block){
                .data = at + (size_t)layer * one, .dtype = dtype, .rows = spec->shape.dim[0], .stride = s->cols};
            return mz_hf_list_add(&in->list, spec->name, &spec->shape, MEZZO_F32, block, 1);
        }
        at += one * (s->stacked ? (size_t)in->model.layers : 1);
    }
    return mz_fail(MEZZO_ERR_FORMAT, "%s: llm.c's format has no %s", in->where, spec->name);
}

mezzo_status mz_llmc_open(mz_import *in, bool *found) {
    int32_t magic = 0;
    int64_t padded = 0;
    mezzo_dtype dtype = MEZZO_F32;
    section sections[TENSORS];
    if (in->map.size >= sizeof magic)
        memcpy(&magic, in->map.data, sizeof magic);
    *found = magic == MAGIC;
    if (!*found)
        return MEZZO_OK;
    if (in->map.size < HEADER_INTS * sizeof(int32_t))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %zu bytes, but llm.c's header has %zu: the file is cut off", in->where,
                       in->map.size, HEADER_INTS * sizeof(int32_t));
    MEZZO_TRY(read_header(in->where, &in->map, &in->model, &dtype, &padded));
    list_sections(&in->model, padded, sections);
    MEZZO_TRY(check_size(in->where, &in->map, &in->model, sections, dtype));
    MEZZO_TRY(mz_import_graph(in));
    for (size_t i = 0; i < in->graph->n_params; i++)
        MEZZO_TRY(add_param(in, &in->graph->params[i], sections, dtype));
    return MEZZO_OK;
}
