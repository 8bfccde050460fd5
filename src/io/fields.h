// Describes a result once, by a table: each field's JSON key, its title in text, its format and its place. Text and
// JSON come from the same table.
#ifndef MZ_IO_FIELDS_H
#define MZ_IO_FIELDS_H

#include "io/json.h"
#include "mezzo/program.h"

typedef enum mz_field_kind {
    MZ_FIELD_F64,
    MZ_FIELD_I64,
    MZ_FIELD_U64, // also size_t
    MZ_FIELD_I32,
    MZ_FIELD_BOOL,
    MZ_FIELD_CHARS,     // a char[N]
    MZ_FIELD_POINTER,   // a const char *; NULL is null
    MZ_FIELD_PRECISION, // a mezzo_precision, shown by name
    MZ_FIELD_DTYPE,     // a mezzo_dtype, shown by name; "-" where it is none
    MZ_FIELD_MASTER,    // a mezzo_master, shown by name
} mz_field_kind;

enum {
    MZ_DASH = 1,  // in text: "-" where it is 0 or NaN
    MZ_NULL = 2,  // in JSON: null where it is 0 or an empty text
    MZ_KNOWN = 4, // left out where it is NaN; in a table, where it is NaN in the first row
    MZ_WHOLE = 8, // a double that JSON shows as an integer
    MZ_SOME = 16, // in a table: left out where every row has "-"; NaN is "-"
    MZ_LOW = 32,  // in text: "-" where the dtype is fp32
};

typedef struct mz_row_field {
    mz_field_kind kind;
    size_t offset;
    const char *key;   // of the JSON object; NULL: the field is in text only
    const char *title; // of its line or column; NULL: the field is in JSON only
    // The format: printf's for a double or text ("%.4f", "%-9s"), or one of "count" (12,345), "bytes", "mib" (12.3M,
    // 1.20G), "duration"; the part after a blank is a suffix. NULL: the text unchanged, or the number as "%g".
    const char *form;
    unsigned flags;       // MZ_DASH … bits
    const char *only;     // shown only where the caller's word equals this; NULL: always
    double factor;        // numbers are multiplied by it; 0 means 1
    const char *words[2]; // names of false and true, in JSON and text; empty: false and true, "no" and "yes"
    // Makes the text instead of `form`, in `buf` or elsewhere; NULL: this line is left out.
    const char *(*text)(const void *row, char *buf, size_t size);
    const char *legend; // of a table: a line below it that explains the column
} mz_row_field;

// Gives the first two members for a struct's member: MZ_FIELD(mezzo_eval_result, loss), "loss", "loss", "%.6f". Where
// Mezzo runs, long and long long have 64 bits; systems differ in which of them int64_t and size_t are.
#define MZ_FIELD(type, member)                                                                                         \
    .kind = _Generic(((type *)NULL)->member,                                                                           \
        double: MZ_FIELD_F64,                                                                                          \
        long: MZ_FIELD_I64,                                                                                            \
        long long: MZ_FIELD_I64,                                                                                       \
        unsigned long: MZ_FIELD_U64,                                                                                   \
        unsigned long long: MZ_FIELD_U64,                                                                              \
        int: MZ_FIELD_I32,                                                                                             \
        bool: MZ_FIELD_BOOL,                                                                                           \
        char *: MZ_FIELD_CHARS,                                                                                        \
        const char *: MZ_FIELD_POINTER,                                                                                \
        mezzo_precision: MZ_FIELD_PRECISION,                                                                           \
        mezzo_dtype: MZ_FIELD_DTYPE,                                                                                   \
        mezzo_master: MZ_FIELD_MASTER),                                                                                \
    .offset = offsetof(type, member)

double mz_field_number(const mz_row_field *f, const void *row); // times the factor; NaN of a text
// Makes an object of the fields that have a key, within `into` or, where that is NULL, a new one. '*' in keys, titles
// and forms is replaced by `word` (NULL: none has one).
json_t *mz_fields_json(const mz_row_field *fields, size_t n, const void *row, const char *word, json_t *into);
// Adds a line for each field with a title: `indent`, the title padded to `width`, the value.
void mz_fields_lines(const mz_row_field *fields, size_t n, const void *row, const char *word, const char *indent,
                     int width, mz_text *t);
// Adds a table of `count` structs of `stride` bytes: titles, rows, then the legend. Columns are as wide as their cells;
// cells that do not fit into so many `columns` of a terminal follow on an indented line of their own.
void mz_fields_table(const mz_row_field *fields, size_t n, const void *rows, size_t stride, size_t count,
                     const char *word, int columns, mz_text *out);
#define MZ_TABLE(fields, rows, count, columns, out)                                                                    \
    mz_fields_table((fields), MZ_COUNT(fields), (rows), sizeof *(rows), (count), NULL, (columns), (out))
// Lists the same rows as a JSON array.
json_t *mz_fields_list(const mz_row_field *fields, size_t n, const void *rows, size_t stride, size_t count,
                       const char *word);
#define MZ_OBJECT(fields, row)       mz_fields_json((fields), MZ_COUNT(fields), (row), NULL, NULL)
#define MZ_LIST(fields, rows, count) mz_fields_list((fields), MZ_COUNT(fields), (rows), sizeof *(rows), (count), NULL)

// --- words and numbers of a line -----------------------------------------------------------------------------------
enum { MZ_TEXT_COLUMNS = 80 };                     // width of output that is no terminal
int mz_columns_of(const char *text, size_t bytes); // number of UTF-8 characters
// Adds words from column `at` on, at most up to column `most`, with later lines indented. A line end after a sentence
// stays, others become blanks.
void mz_text_wrap(mz_text *t, const char *text, int at, int indent, int most);
// Adds a paragraph of at most MZ_TEXT_COLUMNS, with a line end; line ends at the text's beginning stay.
void mz_text_tell(mz_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// A name for a line of output: bytes that would control a terminal become blanks, as in mz_text_tame.
typedef struct mz_shown {
    char text[4200];
} mz_shown;
mz_shown mz_show(const char *name);
typedef struct mz_short {
    char text[40];
} mz_short;
mz_short mz_duration_text(double seconds); // "1:02:03", "2:03"
mz_short mz_bytes_text(double bytes);      // "12.3 MB"
mz_short mz_count_text(double number);     // "12,345"

#endif
