// Prints results as text, tables and JSON, each from a table of its fields.
#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "io/json.h"
#include "io/utf8.h"

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

// Replaces the '*' of `text` by the word.
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
        return mz_json_number(number_of(f, row));
    if (f->kind == CLI_U64 && *(const uint64_t *)at > (uint64_t)INT64_MAX) // JSON's integers cannot hold it
        return mz_json_number(number_of(f, row));
    if (f->kind == CLI_U64)
        return json_integer((json_int_t) * (const uint64_t *)at);
    if (f->kind == CLI_BOOL && f->words[1] == NULL)
        return json_boolean(*(const bool *)at);
    if (!is_text(f))
        return json_integer(f->kind == CLI_I64 ? (json_int_t) * (const int64_t *)at : (json_int_t) * (const int *)at);
    const char *words = words_of(f, row);
    return words != NULL ? cli_json_text(words) : json_null();
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
static cli_short mib(double bytes) {
    cli_short out;
    const double x = bytes / 1048576;
    const double shown_as = x < 1024 ? x : x / 1024;
    snprintf(out.text, sizeof out.text, x < 1024 || shown_as >= 100 ? "%.1f%c" : "%.2f%c", shown_as,
             x < 1024 ? 'M' : 'G');
    return out;
}

// Finds the function of a named form; NULL: the form is printf's.
static cli_short (*named_form(const char *form))(double) {
    static const struct {
        const char *name;
        cli_short (*make)(double x);
    } named[] = {{"count", cli_count}, {"bytes", cli_bytes}, {"mib", mib}, {"duration", cli_duration}};
    const size_t n = strcspn(form, " ");
    for (size_t i = 0; i < MZ_COUNT(named); i++)
        if (strlen(named[i].name) == n && memcmp(form, named[i].name, n) == 0)
            return named[i].make;
    return NULL;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" // the tables have the formats
static const char *value_text(const cli_field *f, const void *row, const char *word, char *buf, size_t size) {
    char form[NAME_BYTES];
    if (f->text != NULL) {
        const char *made = f->text(row, buf, size);
        if (made == buf)
            mz_text_tame(buf);
        return made;
    }
    const char *filled = with_word(f->form != NULL ? f->form : is_text(f) ? "%s" : "%g", word, form);
    if (is_text(f)) {
        const char *words = words_of(f, row);
        const bool usual = (f->flags & CLI_LOW) != 0 && strcmp(words, mezzo_dtype_name(MEZZO_F32)) == 0;
        snprintf(buf, size, filled, words != NULL && !usual ? words : "-");
        mz_text_tame(buf);
        return buf;
    }
    const double x = number_of(f, row);
    cli_short (*named)(double) = named_form(filled);
    if (((f->flags & CLI_DASH) != 0 && x == 0) || ((f->flags & (CLI_DASH | CLI_SOME)) != 0 && isnan(x)))
        return "-";
    if (isnan(x)) // printf's "-nan" would show the meaningless sign bit of a NaN
        return "nan";
    if (named != NULL)
        snprintf(buf, size, "%s%s", named(x).text, filled + strcspn(filled, " "));
    else
        snprintf(buf, size, filled, x);
    return buf;
}
#pragma GCC diagnostic pop

void cli_fields_lines(const cli_field *fields, size_t n, const void *row, const char *word, const char *indent,
                      int width) {
    static char buf[TEXT_BYTES]; // static, because it is too large for a small stack
    char title[NAME_BYTES];
    for (size_t i = 0; i < n; i++) {
        if (fields[i].title == NULL || !shown(&fields[i], row, word))
            continue;
        const char *value = value_text(&fields[i], row, word, buf, sizeof buf);
        if (value != NULL)
            printf("%s%-*s%s\n", indent, width, with_word(fields[i].title, word, title), value);
    }
}

json_t *cli_fields_list(const cli_field *fields, size_t n, const void *rows, size_t stride, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, cli_fields_json(fields, n, (const char *)rows + i * stride, NULL, NULL));
    return list;
}

// --- tables ---------------------------------------------------------------------------------------
// FOLDED: indent of cells that do not fit on a row's first line; WRAPPED: the least columns for a last text.
enum { COLUMNS_MOST = 32, FOLDED = 4, WRAPPED = 24 };

typedef struct table {
    const cli_field *fields;
    size_t n, stride, count;
    const void *rows;
    const char *word;
    int width[COLUMNS_MOST]; // -1: the column is left out
    int last;                // index of the last column
    int gap, most;           // blanks between columns; columns of the terminal
} table;

// Returns a cell's text; line 0 has the titles.
static const char *cell_of(const table *t, size_t column, size_t line) {
    static char buf[TEXT_BYTES];
    const cli_field *f = &t->fields[column];
    if (line == 0)
        return with_word(f->title, t->word, buf);
    const char *cell = value_text(f, (const char *)t->rows + (line - 1) * t->stride, t->word, buf, sizeof buf);
    return cell != NULL ? cell : "-";
}

static void measure(table *t) {
    int sum = 0, shown_columns = 0;
    t->last = -1;
    for (size_t c = 0; c < t->n; c++) {
        bool some = (t->fields[c].flags & CLI_SOME) == 0;
        t->width[c] = -1;
        if (t->fields[c].title == NULL || (t->count > 0 && !shown(&t->fields[c], t->rows, t->word)))
            continue;
        int most = 0;
        for (size_t i = 0; i <= t->count; i++) {
            const char *cell = cell_of(t, c, i);
            const int columns = cli_columns_of(cell, strlen(cell));
            most = columns > most ? columns : most;
            some = some || (i > 0 && strcmp(cell, "-") != 0);
        }
        if (!some)
            continue;
        t->width[c] = most;
        t->last = (int)c;
        sum += c + 1 == t->n && is_text(&t->fields[c]) && most > WRAPPED ? WRAPPED : most;
        shown_columns++;
    }
    t->most = cli_terminal_columns(stdout);
    t->gap = sum + 2 * (shown_columns - 1) <= t->most ? 2 : 1;
}

// Prints a line: numbers end at their column and texts begin there. A text in the last column wraps, and no line ends
// in blanks.
static void print_row(const table *t, size_t line) {
    int at = 0, blanks = 0;
    for (int c = 0; c <= t->last; c++) {
        if (t->width[c] < 0)
            continue;
        const char *cell = cell_of(t, (size_t)c, line);
        const bool text = is_text(&t->fields[c]), ends = text && c == t->last;
        const int columns = cli_columns_of(cell, strlen(cell));
        const int width = !ends ? t->width[c] : columns < WRAPPED ? columns : WRAPPED;
        if (at > 0 && at + t->gap + width > t->most) {
            printf("\n%*s", FOLDED, "");
            at = FOLDED;
            blanks = 0;
        } else if (at > 0) {
            at += t->gap;
            blanks += t->gap;
        }
        const int before = text ? 0 : width - columns;
        if (columns > 0)
            printf("%*s", blanks + before, "");
        if (ends)
            cli_wrap(cell, at, at, t->most);
        else
            fputs(cell, stdout);
        blanks = columns > 0 ? width - columns - before : blanks + width;
        at += width;
    }
    putchar('\n');
}

void cli_fields_table(const cli_field *fields, size_t n, const void *rows, size_t stride, size_t count,
                      const char *word) {
    table t = {.fields = fields, .n = n, .rows = rows, .stride = stride, .count = count, .word = word};
    bool legend = false;
    measure(&t);
    for (size_t i = 0; i <= count; i++)
        print_row(&t, i);
    for (size_t c = 0; c < n; c++)
        if (t.width[c] >= 0 && fields[c].legend != NULL) {
            char line[TEXT_BYTES / 8];
            snprintf(line, sizeof line, "%s: %s", fields[c].title, fields[c].legend);
            fputs(legend ? "" : "\n", stdout);
            cli_wrap_line(line, 0, 2);
            legend = true;
        }
}

// --- printing -------------------------------------------------------------------------------------
json_t *cli_json_text(const char *text) {
    return cli_json_bytes(text, strlen(text));
}

json_t *cli_json_bytes(const char *bytes, size_t n) {
    json_t *text = json_stringn(bytes, n); // NULL: it is not UTF-8, or memory ran out, which the dump reports
    if (text != NULL)
        return text;
    mz_text clean = {0};
    mz_text_add(&clean, "", 0);
    for (size_t i = 0; i < n;) {
        uint32_t code;
        size_t width = mz_utf8_decode(bytes + i, n - i, &code);
        if (width == 0)
            mz_text_add(&clean, "\xEF\xBF\xBD", 3);
        else
            mz_text_add(&clean, bytes + i, width);
        i += width == 0 ? 1 : width;
    }
    if (clean.status != MEZZO_OK) { // a result without the key would be silently wrong
        cli_error(MEZZO_ERR_MEMORY);
        cli_leave(CLI_FAILED);
    }
    text = json_stringn(clean.data, clean.len);
    mz_text_free(&clean);
    return text;
}

int cli_json_print(json_t *result) {
    int code = CLI_DONE;
    char *text;
    mezzo_status status = mz_json_dump(result, JSON_INDENT(2), &text);
    if (status == MEZZO_OK)
        printf("%s\n", text);
    else
        code = cli_error(status);
    free(text);
    json_decref(result);
    return code;
}

int cli_print_fields(const cli_field *fields, size_t n, const void *row, const char *word, int width) {
    if (cli_has("json"))
        return cli_json_print(cli_fields_json(fields, n, row, word, NULL));
    cli_fields_lines(fields, n, row, word, "", width);
    return CLI_DONE;
}

int cli_print_made(mz_text *text) {
    const mezzo_status status = text->status;
    if (status == MEZZO_OK)
        printf("%s", text->data);
    mz_text_free(text);
    return cli_code(status);
}
