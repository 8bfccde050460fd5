// Reads comma-separated tables that may come from anywhere (RFC 4180): quoted fields with commas, quotes and line ends
// in them, LF or CRLF. The first record is the header. Errors name file, line and column.
#ifndef MZ_IO_CSV_H
#define MZ_IO_CSV_H

#include "base/base.h"

#define MZ_CSV_MAX_BYTES   ((size_t)1 << 28)
#define MZ_CSV_MAX_COLUMNS 1024

typedef struct mz_csv mz_csv;

// Parses a table. MEZZO_ERR_FORMAT: empty, a column without a name or with another's name, a record with more or fewer
// fields than the header, a quote that is not closed or is followed by text, a NUL byte, too large. Empty lines are
// skipped. `where` names the source in errors.
mezzo_status mz_csv_parse(const char *where, const char *text, size_t n, mz_csv **out);
mezzo_status mz_csv_load(const char *path, mz_csv **out); // may also return MEZZO_ERR_IO
void mz_csv_free(mz_csv *csv);                            // NULL is allowed

// Renames columns, once a table: `map` is "theirs=ours,theirs=ours". INVALID: not of this form, no column `theirs`, a
// column `ours` exists already.
mezzo_status mz_csv_rename(mz_csv *csv, const char *map);

const char *mz_csv_where(const mz_csv *csv);
size_t mz_csv_rows(const mz_csv *csv); // without the header
size_t mz_csv_columns(const mz_csv *csv);
const char *mz_csv_name(const mz_csv *csv, size_t column);
int mz_csv_find(const mz_csv *csv, const char *name);                  // the column's index, -1 when absent
const char *mz_csv_cell(const mz_csv *csv, size_t row, size_t column); // owned by the table
int64_t mz_csv_line(const mz_csv *csv, size_t row);                    // the line it starts on; 1 is the first
mezzo_status mz_csv_need(const mz_csv *csv, const char *name,
                         int *out); // FORMAT when absent; the message names all columns
// Appends the names of all columns, quoted, to *out, for messages.
void mz_csv_names(const mz_csv *csv, mz_text *out);

// Reads a cell as a number: FORMAT "FILE:LINE: column 'tps': expected …, got '…'". Surrounding blanks are ignored. An
// integer may be written as a float ("64.0"), as pandas does in a column with blank cells.
mezzo_status mz_csv_number(const mz_csv *csv, size_t row, int column, double *out);
mezzo_status mz_csv_integer(const mz_csv *csv, size_t row, int column, int64_t min, int64_t max, int64_t *out);
// Reads a number, or NaN where the column is absent (-1) or the cell is empty.
mezzo_status mz_csv_optional(const mz_csv *csv, size_t row, int column, double *out);

// Appends one field, quoted where necessary. The caller adds the commas.
void mz_csv_add(mz_text *out, const char *field);
void mz_csv_next(mz_text *out, const char *field); // appends a comma and the field
void mz_csv_next_number(mz_text *out, double x);   // leaves the field empty where x is not finite, because a zero would
                                                   // be false

#endif
