// Describes a result once, by a table: each field's JSON key, its title in text, its format and its place. Text and
// JSON come from the same table.
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
    CLI_U64, // also size_t
    CLI_I32,
    CLI_BOOL,
    CLI_CHARS,     // a char[N]
    CLI_POINTER,   // a const char *; NULL is null
    CLI_PRECISION, // a mezzo_precision, shown by name
    CLI_DTYPE,     // a mezzo_dtype, shown by name; "-" where it is none
    CLI_MASTER,    // a mezzo_master, shown by name
} cli_kind;

enum {
    CLI_DASH = 1,  // in text: "-" where it is 0 or NaN
    CLI_NULL = 2,  // in JSON: null where it is 0 or an empty text
    CLI_KNOWN = 4, // left out where it is NaN; in a table, where it is NaN in the first row
    CLI_WHOLE = 8, // a double that JSON shows as an integer
    CLI_SOME = 16, // in a table: left out where every row has "-"; NaN is "-"
    CLI_LOW = 32,  // in text: "-" where the dtype is fp32
};

typedef struct cli_field {
    cli_kind kind;
    size_t offset;
    const char *key;   // of the JSON object; NULL: the field is in text only
    const char *title; // of its line or column; NULL: the field is in JSON only
    // The format: printf's for a double or text ("%.4f", "%-9s"), or one of "count" (12,345), "bytes", "mib" (12.3M,
    // 1.20G), "duration"; the part after a blank is a suffix. NULL: the text unchanged, or the number as "%g".
    const char *form;
    unsigned flags;       // CLI_DASH … bits
    const char *only;     // shown only where the caller's word equals this; NULL: always
    double factor;        // numbers are multiplied by it; 0 means 1
    const char *words[2]; // names of false and true, in JSON and text; empty: false and true, "no" and "yes"
    // Makes the text instead of `form`, in `buf` or elsewhere; NULL: this line is left out.
    const char *(*text)(const void *row, char *buf, size_t size);
    const char *legend; // of a table: a line below it that explains the column
} cli_field;

// Gives the first two members for a struct's member: CLI_FIELD(mezzo_eval_result, loss), "loss", "loss", "%.6f"
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

// Makes an object of the fields that have a key, within `into` or, where that is NULL, a new one. '*' in keys, titles
// and forms is replaced by `word` (NULL: none has one).
json_t *cli_fields_json(const cli_field *fields, size_t n, const void *row, const char *word, json_t *into);
// Prints a line for each field with a title: `indent`, the title padded to `width`, the value.
void cli_fields_lines(const cli_field *fields, size_t n, const void *row, const char *word, const char *indent,
                      int width);
// Prints a table of `count` structs of `stride` bytes: titles, rows, then the legend. Columns are as wide as their
// cells; cells that do not fit the terminal (80 columns where stdout is none) follow on an indented line of their own.
void cli_fields_table(const cli_field *fields, size_t n, const void *rows, size_t stride, size_t count,
                      const char *word);
#define CLI_TABLE(fields, rows, count)                                                                                 \
    cli_fields_table((fields), MZ_COUNT(fields), (rows), sizeof *(rows), (count), NULL)
// Lists the same rows as a JSON array.
json_t *cli_fields_list(const cli_field *fields, size_t n, const void *rows, size_t stride, size_t count);
#define CLI_OBJECT(fields, row)       cli_fields_json((fields), MZ_COUNT(fields), (row), NULL, NULL)
#define CLI_LIST(fields, rows, count) cli_fields_list((fields), MZ_COUNT(fields), (rows), sizeof *(rows), (count))

#endif
