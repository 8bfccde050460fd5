// Draws a model's answer to a conversation: the chat template's prompt within the model's context, and the text up to
// what ends an answer.
#ifndef MZ_TASK_ANSWER_H
#define MZ_TASK_ANSWER_H

#include "task/sampler.h"
#include "task/task.h"

// Draws the answer to the messages from draw->answer->first on, with a system message that is the first of all. The
// prompt leaves a quarter of the context (or draw->length tokens) for the answer: where it would not, the oldest
// question with its answer is left out, and `first` moves on by two. INVALID: the last message alone does not fit; as
// mz_chat_encode.
mezzo_status mz_answer_draw(mz_sampler *sampler, const mz_sample_draw *draw, const volatile sig_atomic_t *stop,
                            mezzo_text_fn write, void *user);

#endif
