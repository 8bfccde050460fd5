// Turns instructions (records of data/record_set.h) into rows of a batch; the loss counts only a model's answers.
// docs/finetune.md has the forms.
#ifndef MZ_TASK_INSTRUCTIONS_H
#define MZ_TASK_INSTRUCTIONS_H

#include "data/record_set.h"
#include "task/task.h"

// Holds some records of a set, which is borrowed.
typedef struct mz_instructions mz_instructions;

// Takes the records `from` to `to` of every file, as shares of their number, both in [0, 1]. `weighted`: random draws
// follow the files' weights; else every record is drawn equally often.
mezzo_status mz_instructions_create(const mz_record_set *set, double from, double to, bool weighted,
                                    mz_instructions **out);
void mz_instructions_free(mz_instructions *instructions); // NULL is allowed
uint64_t mz_instructions_count(const mz_instructions *instructions);
mezzo_data_mark mz_instructions_mark(const mz_instructions *instructions);

// Says how rows of batches are made, of one record each or, packed, of several: records are drawn in the same order,
// and mz_packer says which row has them. Random: the content of row r of batch k is a pure function of (seed, stream, k
// · rows + r). Sequential: each record once; rows after the last are empty. A record is cut at `length`; the rest of a
// row is filled up with token 0, target -1 and position 0. Targets of the prompt are -1. Packed, a record's last token,
// which has no target, takes no position unless the record is cut, and records without a target are left out.
typedef struct mz_instruction_order {
    bool random, packed;
    int64_t rows, length;
    uint64_t seed;
    uint32_t stream;
} mz_instruction_order;
typedef struct mz_instruction_rows mz_instruction_rows;
// Makes rows; `instructions` are borrowed.
mezzo_status mz_instruction_rows_create(const mz_instructions *instructions, const mz_instruction_order *order,
                                        mz_instruction_rows **out);
void mz_instruction_rows_free(mz_instruction_rows *rows);              // NULL is allowed
uint64_t mz_instruction_rows_batches(const mz_instruction_rows *rows); // of one pass, as mz_instructions_batches
// Makes batch k. `positions`, those of each token in its record, may be NULL where nothing is packed. MEMORY.
mezzo_status mz_instruction_rows_batch(mz_instruction_rows *rows, uint64_t k, int32_t *tokens, int32_t *targets,
                                       int32_t *positions);
// Computes the shares of a pass's positions that are padding: with a record a row, and packed. MEMORY.
mezzo_status mz_instructions_padding(const mz_instructions *instructions, int64_t length, double *alone,
                                     double *packed);
// Returns the batches of one pass: each record occurs once, or as often as its weight says.
uint64_t mz_instructions_batches(const mz_instructions *instructions, int64_t rows);
// Returns how many examples have a target among the first `length`.
uint64_t mz_instructions_targets(const mz_instructions *instructions, int64_t length);
const char *mz_instructions_path(const mz_instructions *instructions);
uint64_t mz_instructions_longer(const mz_instructions *instructions, int64_t length); // returns how many are cut

#endif
