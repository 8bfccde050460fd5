// Reads the records of one file as text, one after another: a record in each line (JSON Lines), or the elements of one
// JSON list. Memory holds one record at a time.
#ifndef MZ_DATA_RECORD_SPLIT_H
#define MZ_DATA_RECORD_SPLIT_H

#include "io/reader.h"

enum { MZ_RECORD_BYTES = 16 << 20 }; // of one record, at most

typedef struct mz_record_splitter mz_record_splitter;

typedef struct mz_record_span {
    const char *text; // valid until the next call; NULL: the file has ended
    size_t n;
    uint64_t line; // where the record begins; 1 is the first
    bool too_long; // it has more than MZ_RECORD_BYTES, and `text` is only a part of it
} mz_record_span;

// Opens a splitter, which takes over the reader. A file whose first character is "[" is a list. A UTF-8 byte order mark
// is left out; FORMAT: UTF-16 or UTF-32.
mezzo_status mz_record_splitter_open(mz_reader *reader, mz_record_splitter **out);
void mz_record_splitter_close(mz_record_splitter *splitter); // NULL is allowed
// Finds the next record, and skips empty lines. FORMAT, naming file and line: a list without a comma between elements
// or without its end, text after it. It does not check a record's contents.
mezzo_status mz_record_splitter_next(mz_record_splitter *splitter, mz_record_span *out);

#endif
