// What the registry (registry.c) knows of a model: its sizes, its own checks, how it is built.
#ifndef MZ_MODELS_H
#define MZ_MODELS_H

#include "mezzo/model.h"

typedef struct mz_model {
    const char *name;
    mezzo_model_purpose task;
    // Errors name the key and the numbers; sizes that every model has were checked before.
    mezzo_status (*check)(const mezzo_model_config *config);
    // Builds into an empty graph; the caller asks mezzo_graph_status afterwards.
    mezzo_status (*build)(mezzo_graph *g, const mezzo_model_config *config, int64_t batch, int64_t seq_len,
                          bool keep_logits);
    // A part of it alone; NULL: it has none.
    mezzo_status (*build_part)(mezzo_graph *g, const mezzo_model_config *config, int64_t batch, mezzo_model_part part);
} mz_model;

extern const mz_model mz_model_toy, mz_model_gpt2, mz_model_cs336, mz_model_glm4_moe, mz_model_mlp, mz_model_kl_vae,
    mz_model_radio_unet;

#endif
