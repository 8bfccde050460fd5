// A model of the stored runs on a device: the small GPT-2 of gpt2_small.*, the toy model of toy_sgd.*,
// or those of transformers_small.py.
#ifndef GOLDEN_MODEL_H
#define GOLDEN_MODEL_H

#include "golden.h"
#include "mezzo/model.h"
#include "mezzo/optimizer.h"

typedef struct golden_model {
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    mz_safetensors *file;
} golden_model;

void golden_gpt2_open(golden_model *m, const char *device, mezzo_precision precision);
void golden_gpt2_open_with(golden_model *m, const char *device, const mezzo_program_options *options);
// cs336_small, glm4_moe_plain or glm4_moe_full, from its two files.
void golden_transformer_open(golden_model *m, const char *device, const mezzo_program_options *options,
                             const char *name);
void golden_toy_open(golden_model *m, const char *device, mezzo_precision precision);
void golden_model_close(golden_model *m);

void golden_model_restart(golden_model *m);                           // the parameters of "init.NAME"
float *golden_param(const golden_model *m, int index, bool gradient); // free() it
size_t golden_param_count(const golden_model *m, int index);          // elements
// Writes batch `step` of the stored ones.
void golden_gpt2_batch(golden_model *m, size_t step);
void golden_toy_batch(golden_model *m, size_t step);
double golden_loss(golden_model *m);             // of the last run
bool golden_without_gradient(const char *param); // a correction bias decides, and has no gradient: exactly none

// Batch 0 in a low precision: `entry` has the loss scale and, in "tensors", PyTorch's error and size of each. A tensor
// of n elements may have most(n) times PyTorch's error, all together 1.25 times; closes the model.
void golden_as_good_as_torch(golden_model *m, const char *where, const json_t *entry, double loss,
                             double (*most)(size_t n));

typedef struct golden_wrong {
    const char *name;
    float factor;
} golden_wrong;
// Gradients of batch 0 are within `bound` times their largest value; one wrong parameter puts over half of them
// outside. Closes the model.
void golden_would_fail(golden_model *m, const golden_wrong *wrong, size_t n, double bound);

#endif
