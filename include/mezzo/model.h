// The models that come with Mezzo, by name.
// Ownership, threads and errors that a comment does not name: mezzo.h.
#ifndef MEZZO_MODEL_H
#define MEZZO_MODEL_H

#include "mezzo/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

// Says what a model is trained for, which decides the form of its data and the metrics.
typedef enum mezzo_model_purpose {
    MEZZO_TASK_LANGUAGE,   // predicts the next token
    MEZZO_TASK_CLASSIFIER, // predicts the class of a row of numbers
    MEZZO_TASK_IMAGES,     // predicts an image
} mezzo_model_purpose;

// Holds a key's list of numbers above 0; zeros follow the last one.
enum { MEZZO_LIST = 128 };
typedef struct mezzo_list {
    float at[MEZZO_LIST];
} mezzo_list;

// Holds a family and the value of every key; model_keys.def describes each. Keys that the family does not take are
// ignored.
typedef struct mezzo_model_config {
    char name[32]; // the family: "gpt2", "llama", "mlp", "kl_vae" …
    char size[32]; // the named size from which the values come, as "llama2-70B"; "": none
    // For "onnx", a model from the user's file (docs/onnx.md): the file, its training loss, the sizes of named
    // dimensions ("height=64,x.3=64"), and whether its batches are texts, else examples with labels.
    char graph[512], loss[256], dims[256];
    bool texts;
#define MEZZO_KEY_INT                                                          int64_t
#define MEZZO_KEY_FLOAT                                                        double
#define MEZZO_KEY_BOOL                                                         bool
#define MEZZO_KEY_LIST                                                         mezzo_list
#define MODEL_KEY(type, name, models, own, least, most, option, resumes, help) MEZZO_KEY_##type name;
#include "mezzo/model_keys.def"
#undef MODEL_KEY
#undef MEZZO_KEY_INT
#undef MEZZO_KEY_FLOAT
#undef MEZZO_KEY_BOOL
#undef MEZZO_KEY_LIST
} mezzo_model_config;

// Fills *config with the defaults of a model, or of a named size: docs/models.md lists them. A named size becomes its
// family with those sizes; a family's name alone means its smallest size; the path of an .onnx file means "onnx". This
// call allocates nothing.
// Errors: INVALID names the nearest known name.
MEZZO_API mezzo_status mezzo_model_defaults(const char *name, mezzo_model_config *config);
// Checks the keys: where heads do not divide the width, a size is zero, …, INVALID names the key ("model.heads") and
// the numbers.
MEZZO_API mezzo_status mezzo_model_check(const mezzo_model_config *config);
// Builds the model for batch × seq_len tokens into an empty graph. Inputs "tokens" and "targets" I32 [B, T] (target -1
// is ignored); outputs "logits" [B, T, V] where `keep_logits`, and "loss" [1]; glm4_moe also "experts" I32 [layers of
// experts · (experts + 1)]: where, in rows ordered by expert, each expert's begin, layer after layer. toy, mlp: inputs
// "x" F32 [B, features] and "targets" I32 [B]; outputs "logits" [B, classes] where `keep_logits`, and "loss"; their
// seq_len is 1. kl_vae: inputs "image" F32 [B, S, S, C], "noise" I32 [B, 2] (a key for each row's draw) and "weight"
// F32 [B, 1, 1, 1] (a row's part of the loss); outputs "loss" and, where `keep_logits`, "prediction" [B, S, S, C] and
// "latent" [B, s, s, Z]. radio_unet: "image" (x_0) and "noise" as there, "condition" F32 [B, S', S', D], "time" F32 [B]
// and "schedule" F32 [B, 4, 1, 1], rows of (a, b, weights of the first and the second head's squared error): it makes
// x_t = a·x_0 + b·noise; outputs "loss" and, where `keep_logits`, "prediction" [B, S, S, heads·C]. Their seq_len is 1.
// Errors: INVALID as mezzo_model_check, or a batch or seq_len that does not fit; MEMORY.
MEZZO_API mezzo_status mezzo_model_build(mezzo_graph *graph, const mezzo_model_config *config, int64_t batch,
                                         int64_t seq_len, bool keep_logits);
// Builds the model for generating: each run computes `tokens` positions, which follow those whose keys and values are
// in caches of config->seq_len positions (mezzo_cache_begin). Inputs "tokens" and "targets" [B, tokens], "positions"
// [tokens] and the caches; output "logits" [B, tokens, V]. Only for language models. Errors as mezzo_model_build.
MEZZO_API mezzo_status mezzo_model_build_cached(mezzo_graph *graph, const mezzo_model_config *config, int64_t batch,
                                                int64_t tokens);
// Builds a part of kl_vae: ENCODE has the input "image" and the output "latent" [B, s, s, Z], the mean; DECODE the
// input "latent" and the output "prediction". Parameters have the whole model's names. INVALID: a model without such a
// part.
typedef enum mezzo_model_part { MEZZO_PART_ENCODE, MEZZO_PART_DECODE } mezzo_model_part;
MEZZO_API mezzo_status mezzo_model_build_part(mezzo_graph *graph, const mezzo_model_config *config, int64_t batch,
                                              mezzo_model_part part);
// Returns the purpose of a model; LANGUAGE where its name is unknown.
MEZZO_API mezzo_model_purpose mezzo_model_task(const mezzo_model_config *config);
// Count and return the names that mezzo_model_defaults takes, families and sizes; static; NULL past the last one.
MEZZO_API int mezzo_model_count(void);
MEZZO_API const char *mezzo_model_name(int index);

#ifdef __cplusplus
}
#endif
#endif
