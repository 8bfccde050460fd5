// Reads and tokenizes files of records: conversations, prompts with answers, and documents.
#ifndef MZ_DATA_RECORD_SET_H
#define MZ_DATA_RECORD_SET_H

#include "data/chat.h"
#include "mezzo/data.h"

typedef struct mz_record_range {
    uint64_t begin, end; // indices into the set's tokens
} mz_record_range;

// One file, whose records are consecutive.
typedef struct mz_record_file {
    char *path;
    double weight; // how often training draws one of its records, relative to one of weight 1
    size_t first, count;
} mz_record_file;

enum { MZ_REFUSED_SHOWN = 3 };
typedef struct mz_record_set {
    char *source;       // its name as the user wrote it
    mz_chat_tokens all; // with, for each token, whether the loss counts it as a target
    mz_record_range *records;
    size_t count, cap;
    mz_record_file *files;
    size_t n_files, cap_files;
    uint64_t tokens, targets;                 // how many were read; valid also after `all` is freed
    size_t refused, conversations, documents; // numbers of records; a set of documents alone makes a text
    char shown[MZ_REFUSED_SHOWN][400];        // the reasons for the first refused records
} mz_record_set;

// Returns whether a source names records: "a.jsonl", "a.json", either with ".gz" after it; a folder with such files and
// without token shards (*.bin); a pattern; a list of these, "a.jsonl:2,folder/", where a number after a colon is a
// weight.
bool mz_is_records(const char *source);
// Reads all sources with the tokenizer; `form`: record_forms.h. A record that cannot be used is refused: it is counted
// and left out. Errors: FORMAT (a file with more refused records than others, naming the first; damaged lists and
// compressed data), INVALID (an unknown form or wrong weight, a file without records), IO, INTERRUPTED (mz_stop_check).
mezzo_status mz_record_set_open(const char *source, const char *form, const mezzo_tokenizer *tokenizer,
                                mz_record_set *out);
void mz_record_set_close(mz_record_set *set); // a zeroed one is allowed

// Returns a range of each file's records: the first ones, a share of `split`, train, and the others validate.
mz_record_range mz_record_file_part(const mz_record_file *file, double from, double to);
// Logs what was read: records, tokens, the share of targets, and how many records were refused, with the reason of the
// first.
mezzo_status mz_record_set_log(const mz_record_set *set);

#endif
