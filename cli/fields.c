#include <math.h>

#include "cli.h"

enum { TEXT_BYTES = 8192, NAME_BYTES = 64 };

static double number_of(const cli_field *f, const void *row) {
    const void *at = (const char *)row + f->offset;
    const double factor = f->factor != 0 ? f->factor : 1;
    switch (f->kind) {
    case CLI_F64:
        return factor * *(const double *)at;
    case CLI_I64:
        return factor * (double)*(const int64_t *)at;
    case CLI_U64:
        return factor * (double)*(const uint64_t *)at;
    case CLI_I32:
        return factor * (double)*(const int *)at;
    case CLI_BOOL:
        return (double)*(const bool *)at;
    default:
        return (double)NAN;
    }
}

static const char *words_of(const cli_field *f, const void *row) {
    const void *at = (const char *)row + f->offset;
    switch (f->kind) {
    case CLI_CHARS:
        return at;
    case CLI_POINTER:
        return *(const char *const *)at;
    case CLI_PRECISION:
        return mezzo_precision_name(*(const mezzo_precision *)at);
    case CLI_DTYPE:
        return *(const mezzo_dtype *)at < MEZZO_DTYPE_COUNT ? mezzo_dtype_name(*(const mezzo_dtype *)at) : "-";
    case CLI_MASTER:
        return mezzo_master_name(*(const mezzo_master *)at);
    case CLI_BOOL:
        return f->words[1] != NULL ? f->words[*(const bool *)at] : *(const bool *)at ? "yes" : "no";
    default:
        return NULL;
    }
}

static bool is_text(const cli_field *f) {
    return f->kind >= CLI_BOOL;
}

static bool shown(const cli_field *f, const void *row, const char *word) {
    if (f->only != NULL && (word == NULL || strcmp(f->only, word) != 0))
        return false;
    return (f->flags & CLI_KNOWN) == 0 || !isnan(number_of(f, row));
}

// `text` with the word for its '*'.
static const char *with_word(const char *text, const char *word, char out[NAME_BYTES]) {
    const char *star = text != NULL ? strchr(text, '*') : NULL;
    if (star == NULL || word == NULL)
        return text;
    snprintf(out, NAME_BYTES, "%.*s%s%s", (int)(star - text), text, word, star + 1);
    return out;
}

// --- JSON -----------------------------------------------------------------------------------------
static json_t *value_json(const cli_field *f, const void *row) {
    const void *at = (const char *)row + f->offset;
    if ((f->flags & CLI_NULL) != 0 && (is_text(f) ? words_of(f, row)[0] == '\0' : number_of(f, row) == 0))
        return json_null();
    if ((f->flags & CLI_WHOLE) != 0 && isfinite(number_of(f, row)))
        return json_integer((json_int_t)number_of(f, row));
    if (f->kind == CLI_F64 || f->factor != 0)
        return cli_json_number(number_of(f, row));
    if (f->kind == CLI_U64 && *(const uint64_t *)at > (uint64_t)INT64_MAX) // more than JSON's integers hold
        return cli_json_number(number_of(f, row));
    if (f->kind == CLI_U64)
        return json_integer((json_int_t) * (const uint64_t *)at);
    if (f->kind == CLI_BOOL && f->words[1] == NULL)
        return json_boolean(*(const bool *)at);
    if (!is_text(f))
        return json_integer(f->kind == CLI_I64 ? (json_int_t) * (const int64_t *)at : (json_int_t) * (const int *)at);
    const char *words = words_of(f, row);
    return words != NULL ? cli_json_text(words, strlen(words)) : json_null();
}

json_t *cli_fields_json(const cli_field *fields, size_t n, const void *row, const char *word, json_t *into) {
    json_t *o = into != NULL ? into : json_object();
    char key[NAME_BYTES];
    for (size_t i = 0; i < n; i++)
        if (fields[i].key != NULL && shown(&fields[i], row, word))
            json_object_set_new(o, with_word(fields[i].key, word, key), value_json(&fields[i], row));
    return o;
}

// --- text -----------------------------------------------------------------------------------------
static const char *mib(double bytes, char *buf, size_t size) {
    const double x = bytes / 1048576;
    snprintf(buf, size, x < 1024 ? "%.1f MiB" : "%.2f GiB", x < 1024 ? x : x / 1024);
    return buf;
}

// The forms that have a name; NULL: none of them.
static const char *named_form(const char *form, double x, char *buf, size_t size) {
    const size_t n = strcspn(form, " ");
    if (n == 5 && memcmp(form, "count", n) == 0)
        return cli_thousands(x, buf, size);
    if (n == 5 && memcmp(form, "bytes", n) == 0)
        return cli_bytes((size_t)x, buf, size);
    if (n == 3 && memcmp(form, "mib", n) == 0)
        return mib(x, buf, size);
    if (n == 8 && memcmp(form, "duration", n) == 0)
        return cli_duration(x, buf, size);
    return NULL;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" // the tables hold the formats
static const char *value_text(const cli_field *f, const void *row, const char *word, char *buf, size_t size) {
    char form[NAME_BYTES], number[NAME_BYTES];
    if (f->text != NULL)
        return f->text(row, buf, size);
    const char *filled = with_word(f->form, word, form);
    if (is_text(f)) {
        const char *words = words_of(f, row);
        snprintf(buf, size, filled, words != NULL ? words : "-");
        return buf;
    }
    const double x = number_of(f, row);
    const char *named = named_form(filled, x, number, sizeof number);
    if ((f->flags & CLI_DASH) != 0 && (x == 0 || isnan(x)))
        return "-";
    if (isnan(x)) // printf's "-nan" is the sign of a bit that nobody asked for
        return "nan";
    if (named != NULL)
        snprintf(buf, size, "%s%s", named, filled + strcspn(filled, " "));
    else
        snprintf(buf, size, filled, x);
    return buf;
}
#pragma GCC diagnostic pop

void cli_fields_lines(const cli_field *fields, size_t n, const void *row, const char *word, const char *indent,
                      int width) {
    static char buf[TEXT_BYTES]; // too large for a small stack
    char title[NAME_BYTES];
    for (size_t i = 0; i < n; i++) {
        if (fields[i].title == NULL || !shown(&fields[i], row, word))
            continue;
        const char *value = value_text(&fields[i], row, word, buf, sizeof buf);
        if (value != NULL)
            printf("%s%-*s%s\n", indent, width, with_word(fields[i].title, word, title), value);
    }
}

// The titles, where `row` is NULL. No blanks at the end of a line.
static void print_cells(const cli_field *fields, size_t n, const void *row, const void *first_row) {
    char buf[256], line[1024] = "";
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        const cli_field *f = &fields[i];
        if (f->title == NULL || (first_row != NULL && !shown(f, first_row, NULL)))
            continue;
        const char *cell = row == NULL ? f->title : value_text(f, row, NULL, buf, sizeof buf);
        int wrote = snprintf(line + used, sizeof line - used, "%s%*s", used > 0 ? " " : "", f->width,
                             cell != NULL ? cell : "-");
        used = (size_t)wrote < sizeof line - used ? used + (size_t)wrote : sizeof line - 1;
    }
    while (used > 0 && line[used - 1] == ' ')
        used--;
    printf("%.*s\n", (int)used, line);
}

void cli_fields_table(const cli_field *fields, size_t n, const void *rows, size_t stride, size_t count) {
    print_cells(fields, n, NULL, count > 0 ? rows : NULL);
    for (size_t i = 0; i < count; i++)
        print_cells(fields, n, (const char *)rows + i * stride, rows);
}

json_t *cli_fields_list(const cli_field *fields, size_t n, const void *rows, size_t stride, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, cli_fields_json(fields, n, (const char *)rows + i * stride, NULL, NULL));
    return list;
}

void cli_fields_columns(const cli_field *fields, size_t n, const void *rows, size_t stride, size_t count,
                        const char *word) {
    enum { COLUMNS_MOST = 32 };
    static char buf[TEXT_BYTES];
    int width[COLUMNS_MOST], last = -1;
    for (size_t c = 0; c < n; c++) {
        bool some = (fields[c].flags & CLI_SOME) == 0;
        width[c] = -1; // left out
        if (fields[c].title == NULL || (fields[c].only != NULL && strcmp(fields[c].only, word) != 0))
            continue;
        int most = fields[c].width;
        for (size_t i = 0; i <= count; i++) {
            const char *cell =
                i == 0 ? fields[c].title
                       : value_text(&fields[c], (const char *)rows + (i - 1) * stride, word, buf, sizeof buf);
            most = (int)strlen(cell) > most ? (int)strlen(cell) : most;
            some = some || (i > 0 && strcmp(cell, "-") != 0);
        }
        if (some)
            width[last = (int)c] = most;
    }
    for (size_t i = 0; i <= count; i++) {
        for (int c = 0; c <= last; c++)
            if (width[c] >= 0)
                printf("%-*s", c == last ? 0 : width[c] + 2,
                       i == 0 ? fields[c].title
                              : value_text(&fields[c], (const char *)rows + (i - 1) * stride, word, buf, sizeof buf));
        putchar('\n');
    }
}
