// Generates text from a model, one token at a time.
#ifndef MZ_TASK_SAMPLER_H
#define MZ_TASK_SAMPLER_H

#include <signal.h>

#include "mezzo/data.h"
#include "mezzo/train.h"
#include "models/model.h"
#include "task/draw.h"

struct mz_session_options;

typedef struct mz_sampler {
    mezzo_params *params; // borrowed, as is the tokenizer
    mz_model model;
    mezzo_precision precision; // of the programs, with residual and overrides
    mezzo_residual residual;
    mezzo_override *overrides;
    int n_overrides;
    mezzo_program *one,
        *several; // with a cache: of one position, and of `chunk`; NULL where there is no kernel for it, or chunk is 1
    mezzo_program *whole; // of the whole window; NULL until it is needed
    const mezzo_tokenizer *tokenizer;
    int64_t length, vocab, chunk;
    int64_t done;       // positions of the window in the cache; -1: the window has moved
    int64_t reach;      // the length of text for whose positions the programs were made
    int32_t *window;    // [length]
    float *logits;      // [chunk or length, vocab]
    const char *tokens; // the name of the input
    mz_draw_room *room;
} mz_sampler;
mezzo_status mz_sampler_create(mezzo_params *params, const mz_model *model, const mezzo_program_options *options,
                               const mezzo_tokenizer *tokenizer, mz_sampler **out);
void mz_sampler_free(mz_sampler *sampler);
size_t mz_sampler_memory(const mz_sampler *sampler); // bytes of its programs
// Computes the same without programs, for samples of `tokens` tokens.
mezzo_status mz_sampler_sketch(mezzo_device *device, const struct mz_session_options *options, int64_t tokens,
                               size_t *bytes);

// Draws `n` tokens after the prompt and passes their text to `write`, piece by piece. Stops early, without an error, at
// *stop.
mezzo_status mz_sampler_run(mz_sampler *sampler, const char *prompt, int64_t n, mz_draw draw, int index,
                            const volatile sig_atomic_t *stop, mezzo_text_fn write, void *user);
// Draws likewise after a prompt of tokens.
mezzo_status mz_sampler_run_on(mz_sampler *sampler, const int32_t *prompt, size_t count, int64_t n, mz_draw draw,
                               int index, const volatile sig_atomic_t *stop, mezzo_text_fn write, void *user);

#endif
