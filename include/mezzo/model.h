// The models that come with Mezzo, by name.
#ifndef MEZZO_MODEL_H
#define MEZZO_MODEL_H

#include "mezzo/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mezzo_model_config {
    char name[32];                        // "toy", "gpt2"
    int64_t layers, heads, d_model, d_ff; // d_ff 0 = 4·d_model
    int64_t vocab, seq_len;               // seq_len: the longest context (rows of the position table)
    double dropout;
    bool bias; // gpt2: biases in linear layers and layer norms
} mezzo_model_config;

// Fills *config with a model's defaults, or a named size's: "toy", "gpt2", "gpt2-124M", "gpt2-355M", "gpt2-774M", "gpt2-1558M".
// INVALID names the nearest known one.
MEZZO_API mezzo_status mezzo_model_defaults(const char *name, mezzo_model_config *config);
// Heads that do not divide the width, zero sizes, …: INVALID naming the key and both numbers.
MEZZO_API mezzo_status mezzo_model_check(const mezzo_model_config *config);
// Builds the model for batch × seq_len tokens into an empty graph. gpt2: inputs "tokens" and "targets" I32 [B, T] (targets < 0 are ignored);
// outputs "logits" [B, T, V] where `keep_logits`, and "loss". toy: inputs "x" F32 [B, 5] and "targets" I32 [B]; outputs "logits" [B, 3], "loss".
MEZZO_API mezzo_status mezzo_model_build(mezzo_graph *graph, const mezzo_model_config *config, int64_t batch,
                                         int64_t seq_len, bool keep_logits);
MEZZO_API int mezzo_model_count(void);
MEZZO_API const char *mezzo_model_name(int index); // every name mezzo_model_defaults takes

#ifdef __cplusplus
}
#endif
#endif
