// Reads the records of one file as text, one after the other: a record in each line (JSON Lines), or the elements of
// one JSON list. Memory holds one record at a time.
#ifndef MZ_DATA_RECORD_SPLIT_H
#define MZ_DATA_RECORD_SPLIT_H

#include "io/reader.h"

enum { MZ_RECORD_BYTES = 16 << 20 }; // of one record, at most

typedef struct mz_record_splitter mz_record_splitter;

typedef struct mz_record_span {
    const char *text; // valid until the next call; NULL: the file has ended
    size_t n;
    uint64_t line; // where it begins; 1 is the first
    bool too_long; // it has more than MZ_RECORD_BYTES, and `text` is not all of it
} mz_record_span;

// Takes the reader over. A file whose first character is "[" is a list. A UTF-8 byte order mark is left out; FORMAT:
// UTF-16 or UTF-32.
mezzo_status mz_record_splitter_open(mz_reader *reader, mz_record_splitter **out);
void mz_record_splitter_close(mz_record_splitter *splitter); // NULL is fine
// The splitter skips empty lines. FORMAT, naming file and line: a list without a comma between elements or without its
// end, text after it. It does not read a record's contents.
mezzo_status mz_record_splitter_next(mz_record_splitter *splitter, mz_record_span *out);

#endif
