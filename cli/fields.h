// A table describes a result once: each field's JSON key, its title in text, its format and its place. Text and JSON
// are made from one table.
#ifndef CLI_FIELDS_H
#define CLI_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mezzo/program.h"

typedef enum cli_kind {
    CLI_F64,
    CLI_I64,
    CLI_U64, // size_t too
    CLI_I32,
    CLI_BOOL,
    CLI_CHARS,     // char[N]
    CLI_POINTER,   // const char *; NULL is null
    CLI_PRECISION, // its name
    CLI_DTYPE,     // its name; "-" where it is none
    CLI_MASTER,    // its name
} cli_kind;

enum {
    CLI_DASH = 1,  // text: "-" where it is 0 or NaN
    CLI_NULL = 2,  // JSON: null where it is 0 or an empty text
    CLI_KNOWN = 4, // left out where it is NaN; of a table, where it is NaN in the first row
    CLI_WHOLE = 8, // a double that is an integer in JSON
    CLI_SOME = 16, // of a table: left out where every row has "-"
};

typedef struct cli_field {
    cli_kind kind;
    size_t offset;
    const char *key;   // of the JSON object; NULL: text only
    const char *title; // of its line or column; NULL: JSON only
    // printf's of a double or of text ("%.4f", "%-9s"), or one of "count" (12,345), "bytes", "mib" (12.3M, 1.20G),
    // "duration"; what follows a blank is put after it. NULL: the text as it is, the number as "%g".
    const char *form;
    unsigned flags;       // CLI_DASH …
    const char *only;     // shown only where the caller's word is this; NULL: always
    double factor;        // numbers are multiplied by it; 0 is 1
    const char *words[2]; // what false and true are called, in JSON and text; none: false and true, "no" and "yes"
    // Instead of `form`: the text, into `buf` or from elsewhere; NULL: this line is left out.
    const char *(*text)(const void *row, char *buf, size_t size);
    const char *legend; // of a table: one line below it says what the column is
} cli_field;

// The first two members, from a struct's member. CLI_FIELD(mezzo_eval_result, loss), "loss", "loss", "%.6f"
#define CLI_FIELD(type, member)                                                                                        \
    .kind = _Generic(((type *)NULL)->member,                                                                           \
        double: CLI_F64,                                                                                               \
        int64_t: CLI_I64,                                                                                              \
        uint64_t: CLI_U64,                                                                                             \
        int: CLI_I32,                                                                                                  \
        bool: CLI_BOOL,                                                                                                \
        char *: CLI_CHARS,                                                                                             \
        const char *: CLI_POINTER,                                                                                     \
        mezzo_precision: CLI_PRECISION,                                                                                \
        mezzo_dtype: CLI_DTYPE,                                                                                        \
        mezzo_master: CLI_MASTER),                                                                                     \
    .offset = offsetof(type, member)

// '*' in keys, titles and forms stands for `word` (NULL: none has one).
// An object with the fields that have a key, added to `into`, or, where it is NULL, to a new one.
json_t *cli_fields_json(const cli_field *fields, size_t n, const void *row, const char *word, json_t *into);
// A line for each field that has a title: `indent`, the title padded to `width`, the value.
void cli_fields_lines(const cli_field *fields, size_t n, const void *row, const char *word, const char *indent,
                      int width);
// A table of `count` structs of `stride` bytes: titles, rows, then the legend. Columns are as wide as their cells; what
// does not fit the terminal (80 columns where stdout is none) follows on an indented line of its own.
void cli_fields_table(const cli_field *fields, size_t n, const void *rows, size_t stride, size_t count,
                      const char *word);
#define CLI_TABLE(fields, rows, count)                                                                                 \
    cli_fields_table((fields), MZ_COUNT(fields), (rows), sizeof *(rows), (count), NULL)
// Lists the same rows as a JSON array.
json_t *cli_fields_list(const cli_field *fields, size_t n, const void *rows, size_t stride, size_t count);
#define CLI_OBJECT(fields, row)       cli_fields_json((fields), MZ_COUNT(fields), (row), NULL, NULL)
#define CLI_LIST(fields, rows, count) cli_fields_list((fields), MZ_COUNT(fields), (rows), sizeof *(rows), (count))

#endif
