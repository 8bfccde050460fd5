// Instructions: records (data/record_set.h) as rows of a batch, of which the loss counts what a model answers and
// nothing else. docs/finetune.md has the forms.
#ifndef MZ_TASK_INSTRUCTIONS_H
#define MZ_TASK_INSTRUCTIONS_H

#include "data/record_set.h"
#include "task/task.h"

// Some records of a set, which is borrowed.
typedef struct mz_instructions mz_instructions;

// Of every file its records `from` to `to`, as shares of their number, both in [0, 1]. `weighted`: random draws follow
// the files' weights; else every record is drawn as often as any other.
mezzo_status mz_instructions_create(const mz_record_set *set, double from, double to, bool weighted,
                                    mz_instructions **out);
void mz_instructions_free(mz_instructions *instructions); // NULL is fine
uint64_t mz_instructions_count(const mz_instructions *instructions);
mezzo_data_mark mz_instructions_mark(const mz_instructions *instructions);

// Row r of batch k: one example, cut at `length`, filled up with token 0 and target -1. Targets of the prompt are -1.
// Random: a pure function of (seed, stream, k · rows + r). Sequential: each once; rows after the last are empty.
typedef struct mz_instruction_order {
    bool random;
    int64_t rows, length;
    uint64_t seed;
    uint32_t stream;
} mz_instruction_order;
void mz_instructions_batch(const mz_instructions *instructions, const mz_instruction_order *order, uint64_t k,
                           int32_t *tokens, int32_t *targets);
// Of one pass: each record once, or as often as its weight says.
uint64_t mz_instructions_batches(const mz_instructions *instructions, int64_t rows);
// How many examples have a target among the first `length`.
uint64_t mz_instructions_targets(const mz_instructions *instructions, int64_t length);
const char *mz_instructions_path(const mz_instructions *instructions);
uint64_t mz_instructions_longer(const mz_instructions *instructions, int64_t length); // how many are cut

#endif
