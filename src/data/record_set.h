// Files of records are read and tokenized: conversations, prompts with answers, and documents.
#ifndef MZ_DATA_RECORD_SET_H
#define MZ_DATA_RECORD_SET_H

#include "data/chat.h"
#include "mezzo/data.h"

typedef struct mz_record_range {
    uint64_t begin, end; // into the set's tokens
} mz_record_range;

// The records of one file are consecutive.
typedef struct mz_record_file {
    char *path;
    double weight; // how often one of its records is drawn in training, beside one of weight 1
    size_t first, count;
} mz_record_file;

enum { MZ_REFUSED_SHOWN = 3 };
typedef struct mz_record_set {
    char *source;       // as it was named
    mz_chat_tokens all; // with, for each token, whether the loss counts it as a target
    mz_record_range *records;
    size_t count, cap;
    mz_record_file *files;
    size_t n_files, cap_files;
    uint64_t tokens, targets;                 // how many were read; also once `all` is freed
    size_t refused, conversations, documents; // how many; documents and no other records make a text
    char shown[MZ_REFUSED_SHOWN][400];        // why the first ones were refused
} mz_record_set;

// Returns whether a source names records: "a.jsonl", "a.json", either with ".gz" after it; a folder with such files and
// without token shards (*.bin); a pattern; a list of these, "a.jsonl:2,folder/", where a number after a colon is a
// weight.
bool mz_is_records(const char *source);
// Reads all of them with the tokenizer; `form`: record_forms.h. A record that cannot be used is refused: it is counted
// and left out. Errors: FORMAT (a file of which more records are refused than read, naming the first; damaged lists and
// compressed data), INVALID (a form or a weight that there is not, a file without records), IO, INTERRUPTED
// (mz_stop_check).
mezzo_status mz_record_set_open(const char *source, const char *form, const mezzo_tokenizer *tokenizer,
                                mz_record_set *out);
void mz_record_set_close(mz_record_set *set); // zeroed is fine

// Returns which records of every file train, and which validate: the first ones, a share of `split`, and the others.
mz_record_range mz_record_file_part(const mz_record_file *file, double from, double to);
// Logs what was read: records, tokens, the share of targets, and how many were refused, with the reason of the first.
mezzo_status mz_record_set_log(const mz_record_set *set);

#endif
