// Reads a line of metrics.jsonl, as io/metrics.h writes it. Lines that Mezzo writes are scanned in one pass; JSON that
// others write (escapes, bytes beyond ASCII, nesting) goes through the JSON reader, with the same result.
#ifndef MZ_IO_RECORD_H
#define MZ_IO_RECORD_H

#include "io/metrics.h"

enum { MZ_RECORD_BYTES_MAX = 1 << 22 };

// Holds one record. It is zeroed before the first line and reused for the next ones. Names and texts live until the
// next line is read.
typedef struct mz_record {
    int64_t step;
    mz_metric *values; // without "step", in the line's order; "NaN", "Infinity" and "-Infinity" are numbers
    size_t n, cap;
    char wrong[128]; // the first key whose value is neither number, truth value nor text; "" where none is
    char *bytes;     // memory of names and texts, each with its NUL
    size_t bytes_cap;
} mz_record;

// Reads one line. MEZZO_ERR_FORMAT, whose message names no place: not one JSON object, a repeated key, no step, or a
// step that is no integer from 0 on. Members with other types of values are left out.
mezzo_status mz_record_read(mz_record *record, const char *line, size_t n);
void mz_record_free(mz_record *record);

// Returns the value of a name, NULL where the line lacks it.
const mz_metric *mz_record_find(const mz_record *record, const char *name);
// Returns a number, an integer or a truth value as a number; NaN for NULL or a text.
double mz_metric_as_number(const mz_metric *value);

#endif
