// Adapters in PEFT's files: adapter_model.safetensors and adapter_config.json.
#include <stdlib.h>

#include "checkpoint/checkpoint.h"
#include "graph/graph.h"
#include "io/json.h"
#include "weights/hf.h"

typedef struct adapter_list {
    mz_safetensors_item *items;
    char **names;
    size_t n;
    json_t *modules; // each once
    int64_t rank;
} adapter_list;

// "h.0.attn.c_attn.lora_A.weight" → "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"
static mezzo_status add(adapter_list *list, const char *prefix, const mz_safetensors_tensor *t) {
    char *name = mz_format("base_model.model.%s%s", prefix, t->name);
    if (name == NULL)
        return MEZZO_ERR_MEMORY;
    list->names[list->n] = name;
    list->items[list->n++] =
        (mz_safetensors_item){.name = name, .dtype = t->dtype, .rank = t->rank, .shape = t->shape, .data = t->data};
    const char *end = strstr(t->name, ".lora_A.");
    if (end == NULL)
        return MEZZO_OK;
    list->rank = t->shape[0];
    char *module = mz_format("%s%.*s", prefix, (int)(end - t->name), t->name);
    if (module == NULL)
        return MEZZO_ERR_MEMORY;
    int failed = json_array_append_new(list->modules, json_string(module));
    mz_free(module);
    return failed == 0 ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

static mezzo_status write_config(const adapter_list *list, double scale, const char *folder) {
    char *path = mz_format("%s/adapter_config.json", folder);
    json_t *config = json_pack("{ss ss sn sI sf sf sb ss sb sO}", "peft_type", "LORA", "task_type", "CAUSAL_LM",
                               "base_model_name_or_path", "r", (json_int_t)list->rank, "lora_alpha",
                               scale * (double)list->rank, "lora_dropout", 0.0, "fan_in_fan_out", 1, "bias", "none",
                               "inference_mode", 1, "target_modules", list->modules);
    mezzo_status status = path != NULL && config != NULL ? mz_json_save(path, config) : MEZZO_ERR_MEMORY;
    json_decref(config);
    mz_free(path);
    return status;
}

mezzo_status mz_adapter_write(const mz_safetensors *weights, const mz_hf_family *family, const char *checkpoint,
                              const char *folder, int64_t *tensors) {
    static const mz_safetensors_meta meta[] = {{"format", "pt"}};
    size_t n = mz_safetensors_count(weights);
    double scale = mz_lora_scale(weights);
    if (scale == 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s has no adapters: it was not trained with lora.rank", checkpoint);
    if (family != &mz_hf_gpt2)
        return mz_fail(
            MEZZO_ERR_UNSUPPORTED,
            "%s: adapters of gpt2 alone are written in PEFT's form; an export of the whole model has them merged",
            checkpoint);
    adapter_list list = {.items = mz_alloc(n + 1, sizeof *list.items),
                         .names = mz_alloc(n + 1, sizeof *list.names),
                         .modules = json_array()};
    char *path = mz_format("%s/adapter_model.safetensors", folder);
    bool there = list.items != NULL && list.names != NULL && list.modules != NULL && path != NULL;
    mezzo_status status = there ? MEZZO_OK : MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++)
        if (mz_is_adapter(mz_safetensors_at(weights, i)->name))
            status = add(&list, family->prefix, mz_safetensors_at(weights, i));
    if (status == MEZZO_OK)
        status = mz_safetensors_write(path, list.items, list.n, meta, MZ_COUNT(meta), NULL);
    if (status == MEZZO_OK)
        status = write_config(&list, scale, folder);
    *tensors = (int64_t)list.n;
    for (size_t i = 0; i < list.n; i++)
        mz_free(list.names[i]);
    mz_free(list.names);
    mz_free(list.items);
    mz_free(path);
    json_decref(list.modules);
    return status;
}
