// Instructions: a JSONL file of prompts and completions, or of conversations, whose loss counts what a model answers
// and nothing else (data/chat.h: which tokens these are). docs/finetune.md has the format.
#ifndef MZ_TASK_INSTRUCTIONS_H
#define MZ_TASK_INSTRUCTIONS_H

#include "task/task.h"

typedef struct mz_instructions mz_instructions;

bool mz_is_instructions(const char *path); // "….jsonl", or "….json": such lines, or one list of records
// Examples `from` to `to` of the file, as shares of their number, both in [0, 1]. Errors name file and line: IO, FORMAT
// (not JSON, a record of neither form), INVALID (text that the tokenizer cannot encode, a file without examples),
// INTERRUPTED (*stop is set; stop may be NULL).
mezzo_status mz_instructions_open(const char *path, const mezzo_tokenizer *tokenizer, double from, double to,
                                  const volatile sig_atomic_t *stop, mz_instructions **out);
void mz_instructions_free(mz_instructions *instructions);           // NULL is fine
bool mz_instructions_converse(const mz_instructions *instructions); // some are conversations
uint64_t mz_instructions_count(const mz_instructions *instructions);
mezzo_data_mark mz_instructions_mark(const mz_instructions *instructions);

// Row r of batch k: one example, cut at `length`, filled up with token 0 and target -1. Targets of the prompt are -1.
// Random: a pure function of (seed, stream, k · rows + r). Sequential: each once; rows behind the last are empty.
typedef struct mz_instruction_order {
    bool random;
    int64_t rows, length;
    uint64_t seed;
    uint32_t stream;
} mz_instruction_order;
void mz_instructions_batch(const mz_instructions *instructions, const mz_instruction_order *order, uint64_t k,
                           int32_t *tokens, int32_t *targets);
uint64_t mz_instructions_batches(const mz_instructions *instructions, int64_t rows);
// How many examples have a target among the first `length`.
uint64_t mz_instructions_targets(const mz_instructions *instructions, int64_t length);
const char *mz_instructions_path(const mz_instructions *instructions);
uint64_t mz_instructions_longer(const mz_instructions *instructions, int64_t length); // how many are cut

#endif
