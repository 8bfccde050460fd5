// The models that come with Mezzo, by name.
#ifndef MEZZO_MODEL_H
#define MEZZO_MODEL_H

#include "mezzo/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a model is trained for, which decides what its data is and what is measured.
typedef enum mezzo_model_purpose {
    MEZZO_TASK_LANGUAGE,   // the next token
    MEZZO_TASK_CLASSIFIER, // the class of a row of numbers
} mezzo_model_purpose;

typedef struct mezzo_model_config {
    char name[32];                        // the family: "gpt2", "cs336", "glm4_moe", "toy", "mlp"
    int64_t layers, heads, d_model, d_ff; // d_ff 0 = 4·d_model
    int64_t vocab, seq_len;               // seq_len: the longest context (rows of the position table)
    double dropout;
    bool bias; // gpt2: biases in linear layers and layer norms

    // toy and mlp, which have no tokens
    int64_t features, classes;

    // cs336 and glm4_moe
    double rope_theta, norm_eps;

    // glm4_moe; in brackets what Hugging Face's config.json calls it
    int64_t kv_heads;                          // 0 = heads (num_key_value_heads)
    int64_t head_dim;                          // 0 = d_model / heads
    double rotary;                             // the part of a head's dimensions that turns (partial_rotary_factor)
    bool attention_bias;                       // in q, k and v
    bool qk_norm;                              // an RMS norm on every head of q and k (use_qk_norm)
    int64_t dense_layers;                      // the first so many blocks have one MLP of d_ff (first_k_dense_replace)
    int64_t experts;                           // in each of the others (n_routed_experts)
    int64_t experts_per_token;                 // (num_experts_per_tok)
    int64_t shared_experts;                    // that every token passes; 0 = none (n_shared_experts)
    int64_t d_expert;                          // width inside an expert; 0 = d_model (moe_intermediate_size)
    int64_t expert_groups, expert_groups_used; // (n_group, topk_group)
    bool normalise_weights;                    // (norm_topk_prob)
    double routed_scale;                       // (routed_scaling_factor)
} mezzo_model_config;

// Fills *config with a model's defaults, or a named size's: docs/models.md lists them. A named size becomes its family
// with those sizes; a family's name alone is its smallest size. Nothing is allocated.
// Errors: INVALID names the nearest known one.
MEZZO_API mezzo_status mezzo_model_defaults(const char *name, mezzo_model_config *config);
// Heads that do not divide the width, zero sizes, …: INVALID naming the key ("model.heads") and the numbers.
MEZZO_API mezzo_status mezzo_model_check(const mezzo_model_config *config);
// Builds the model for batch × seq_len tokens into an empty graph. Inputs "tokens" and "targets" I32 [B, T] (target -1
// is ignored); outputs "logits" [B, T, V] where `keep_logits`, and "loss" [1]; glm4_moe also "experts" I32 [layers of
// experts · (experts + 1)]: where, in rows ordered by expert, each expert's begin, layer after layer. toy, mlp: inputs
// "x" F32 [B, features] and "targets" I32 [B]; outputs "logits" [B, classes] where `keep_logits`, and "loss"; their
// seq_len is 1. Errors: INVALID as mezzo_model_check, or a batch or seq_len that does not fit; MEMORY.
MEZZO_API mezzo_status mezzo_model_build(mezzo_graph *graph, const mezzo_model_config *config, int64_t batch,
                                         int64_t seq_len, bool keep_logits);
// The same for generating: `tokens` positions a run, on top of those whose keys and values are in caches of
// config->seq_len positions (mezzo_cache_begin). Inputs "tokens" and "targets" [B, tokens], "positions" [tokens] and
// the caches; output "logits" [B, tokens, V].
MEZZO_API mezzo_status mezzo_model_build_cached(mezzo_graph *graph, const mezzo_model_config *config, int64_t batch,
                                                int64_t tokens);
MEZZO_API mezzo_model_purpose
mezzo_model_task(const mezzo_model_config *config); // by its name; LANGUAGE where it is unknown
MEZZO_API int mezzo_model_count(void);
MEZZO_API const char *mezzo_model_name(int index); // every name mezzo_model_defaults takes; NULL past the end

#ifdef __cplusplus
}
#endif
#endif
