// The models that come with Mezzo, by name.
#ifndef MEZZO_MODEL_H
#define MEZZO_MODEL_H

#include "mezzo/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mezzo_model_config {
    char name[32];                        // the family: "toy", "gpt2"
    int64_t layers, heads, d_model, d_ff; // d_ff 0 = 4·d_model
    int64_t vocab, seq_len;               // seq_len: the longest context (rows of the position table)
    double dropout;
    bool bias; // gpt2: biases in linear layers and layer norms
} mezzo_model_config;

// Fills *config with a model's defaults, or a named size's: "toy", "gpt2", "gpt2-124M", "gpt2-355M", "gpt2-774M", "gpt2-1558M".
// A named size becomes its family with those sizes; "gpt2" alone has 124M's. Nothing is allocated.
// Errors: INVALID names the nearest known one.
MEZZO_API mezzo_status mezzo_model_defaults(const char *name, mezzo_model_config *config);
// Heads that do not divide the width, zero sizes, …: INVALID naming the key ("model.heads") and the numbers.
MEZZO_API mezzo_status mezzo_model_check(const mezzo_model_config *config);
// Builds the model for batch × seq_len tokens into an empty graph. gpt2: inputs "tokens" and "targets" I32 [B, T] (target -1 is ignored); outputs
// "logits" [B, T, V] where `keep_logits`, and "loss" [1]. toy: inputs "x" F32 [B, 5] and "targets" I32 [B]; outputs "logits" [B, 3] where
// `keep_logits`, and "loss"; its seq_len is 1. Errors: INVALID as mezzo_model_check, or a batch or seq_len that does not fit; MEMORY.
MEZZO_API mezzo_status mezzo_model_build(mezzo_graph *graph, const mezzo_model_config *config, int64_t batch,
                                         int64_t seq_len, bool keep_logits);
MEZZO_API int mezzo_model_count(void);
MEZZO_API const char *mezzo_model_name(int index); // every name mezzo_model_defaults takes; NULL past the end

#ifdef __cplusplus
}
#endif
#endif
