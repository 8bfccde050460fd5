// Draws a model's answer to a conversation: it fits the chat template's prompt into the model's context, and returns
// the text up to the end of the answer.
#ifndef MZ_TASK_ANSWER_H
#define MZ_TASK_ANSWER_H

#include "task/sampler.h"
#include "task/task.h"

// Draws the answer to the messages from draw->answer->first on, with a system message if that is the first of all. The
// prompt leaves a quarter of the context (or draw->length tokens) for the answer; where it would not, the oldest
// question and its answer are left out, and `first` grows by two. INVALID: the last message alone does not fit; as
// mz_chat_encode.
mezzo_status mz_answer_draw(mz_sampler *sampler, const mz_sample_draw *draw, const volatile sig_atomic_t *stop,
                            mezzo_text_fn write, void *user);

#endif
