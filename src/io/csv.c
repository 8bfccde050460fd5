#include "io/csv.h"

#include <math.h>

#include "base/scope.h"
#include "base/stop.h"
#include "io/file.h"
#include "io/number.h"
#include "io/quote.h"

struct mz_csv {
    char *where;
    char *text;   // the fields, each NUL-terminated, one after the other
    size_t *cell; // offsets into text: header, then records
    size_t n_cells, cap_cells;
    int64_t *line; // of each record
    size_t n_lines, cap_lines;
    size_t columns;
    char *renames;        // a copy of mz_csv_rename's map, divided at its '=' and ','
    const char **renamed; // [columns] new names, NULL where a column keeps its own; NULL: no column was renamed
};

// Reads the bytes; unescaped fields go into csv->text, which is never longer than the bytes.
typedef struct cursor {
    const char *in, *end;
    char *out;
    int64_t line;
} cursor;

static mezzo_status wrong(const mz_csv *csv, int64_t line, const char *what) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s:%lld: %s", csv->where, (long long)line, what);
}

static mezzo_status read_quoted(mz_csv *csv, cursor *c) {
    int64_t start = c->line;
    for (c->in++;; c->in++) {
        if (c->in == c->end)
            return wrong(csv, start, "a quote opened here is never closed");
        if (*c->in == '"') {
            if (c->in + 1 < c->end && c->in[1] == '"')
                c->in++;
            else
                break;
        }
        c->line += *c->in == '\n';
        *c->out++ = *c->in;
    }
    c->in++;
    if (c->in < c->end && *c->in != ',' && *c->in != '\n' && *c->in != '\r')
        return wrong(csv, c->line, "text after a closing quote; a quote inside a field is written twice");
    return MEZZO_OK;
}

static bool at_line_end(const cursor *c) {
    return c->in == c->end || *c->in == '\n' || (*c->in == '\r' && (c->in + 1 == c->end || c->in[1] == '\n'));
}

static void skip_line_end(cursor *c) {
    if (c->in < c->end && *c->in == '\r')
        c->in++;
    if (c->in < c->end && *c->in == '\n') {
        c->in++;
        c->line++;
    }
}

static mezzo_status read_field(mz_csv *csv, cursor *c) {
    MEZZO_TRY(MZ_RESERVE(csv->cell, csv->cap_cells, csv->n_cells + 1));
    csv->cell[csv->n_cells++] = (size_t)(c->out - csv->text);
    if (c->in < c->end && *c->in == '"') {
        MEZZO_TRY(read_quoted(csv, c));
    } else {
        while (!at_line_end(c) && *c->in != ',')
            *c->out++ = *c->in++;
    }
    *c->out++ = '\0';
    return MEZZO_OK;
}

static mezzo_status read_record(mz_csv *csv, cursor *c) {
    size_t first = csv->n_cells;
    int64_t line = c->line;
    for (;;) {
        MEZZO_TRY(read_field(csv, c));
        if (csv->n_cells - first > MZ_CSV_MAX_COLUMNS)
            return wrong(csv, line, "more columns than any Mezzo table has: is this a CSV file?");
        if (c->in == c->end || *c->in != ',')
            break;
        c->in++;
    }
    skip_line_end(c);
    size_t n = csv->n_cells - first;
    if (csv->columns == 0) {
        csv->columns = n;
        const char *only = n == 1 ? strpbrk(csv->text + csv->cell[0], ";\t") : NULL;
        if (only != NULL)
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s:%lld: the header has one field, %s: a comma must divide them, not a %s", csv->where,
                           (long long)line, mz_quote(csv->text + csv->cell[0]).text,
                           *only == ';' ? "semicolon" : "tab");
        return MEZZO_OK;
    }
    if (n != csv->columns)
        return mz_fail(MEZZO_ERR_FORMAT, "%s:%lld: %zu field%s where the header has %zu", csv->where, (long long)line,
                       n, n == 1 ? "" : "s", csv->columns);
    MEZZO_TRY(MZ_RESERVE(csv->line, csv->cap_lines, csv->n_lines + 1));
    csv->line[csv->n_lines++] = line;
    return MEZZO_OK;
}

static mezzo_status check_header(const mz_csv *csv) {
    for (size_t i = 0; i < csv->columns; i++) {
        if (mz_csv_name(csv, i)[0] == '\0')
            return mz_fail(MEZZO_ERR_FORMAT, "%s: column %zu has no name in the header", csv->where, i + 1);
        for (size_t k = 0; k < i; k++)
            if (strcmp(mz_csv_name(csv, i), mz_csv_name(csv, k)) == 0)
                return mz_fail(MEZZO_ERR_FORMAT, "%s: the header names column %s twice", csv->where,
                               mz_quote(mz_csv_name(csv, i)).text);
    }
    return MEZZO_OK;
}

static mezzo_status parse(mz_csv *csv, const char *text, size_t n) {
    if (n > MZ_CSV_MAX_BYTES)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %zu bytes; a table has at most %zu", csv->where, n, MZ_CSV_MAX_BYTES);
    if (memchr(text, '\0', n) != NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: it contains a NUL byte: not a CSV file", csv->where);
    csv->text = mz_alloc(n + 2, 1); // a comma, a line end or the file's end follows each field, so there is space for
                                    // its NUL
    if (csv->text == NULL)
        return MEZZO_ERR_MEMORY;
    cursor c = {text, text + n, csv->text, 1};
    while (c.in < c.end) {
        if (at_line_end(&c))
            skip_line_end(&c);
        else
            MEZZO_TRY(read_record(csv, &c));
        MEZZO_TRY(mz_stop_check(csv->where));
    }
    if (csv->columns == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: the file is empty", csv->where);
    return check_header(csv);
}

mezzo_status mz_csv_parse(const char *where, const char *text, size_t n, mz_csv **out) {
    *out = NULL;
    mz_csv *csv;
    MEZZO_TRY(MZ_NEW(csv, 1));
    csv->where = mz_strdup(where);
    mezzo_status status = csv->where != NULL ? parse(csv, text, n) : MEZZO_ERR_MEMORY;
    if (status != MEZZO_OK) {
        mz_csv_free(csv);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    *out = csv;
    return MEZZO_OK;
}

mezzo_status mz_csv_load(const char *path, mz_csv **out) {
    MZ_SCOPED(mz_free_at) char *text = NULL;
    size_t n;
    *out = NULL;
    MEZZO_TRY(mz_file_read_text(path, MZ_CSV_MAX_BYTES, &text, &n));
    return mz_csv_parse(path, text, n, out);
}

void mz_csv_free(mz_csv *csv) {
    if (csv == NULL)
        return;
    MZ_FREE(csv->where, csv->text, csv->cell, csv->line, csv->renames, csv->renamed, csv);
}

const char *mz_csv_where(const mz_csv *csv) {
    return csv->where;
}

size_t mz_csv_rows(const mz_csv *csv) {
    return csv->n_lines;
}

size_t mz_csv_columns(const mz_csv *csv) {
    return csv->columns;
}

const char *mz_csv_name(const mz_csv *csv, size_t column) {
    if (csv->renamed != NULL && csv->renamed[column] != NULL)
        return csv->renamed[column];
    return csv->text + csv->cell[column];
}

static mezzo_status rename_one(mz_csv *csv, const char *theirs, const char *ours) {
    int column = mz_csv_find(csv, theirs);
    if (column < 0) {
        mz_text list = {0};
        mz_csv_names(csv, &list);
        mezzo_status status = list.status != MEZZO_OK
                                  ? list.status
                                  : mz_fail(MEZZO_ERR_INVALID, "%s: there is no column %s to rename; there are %s",
                                            csv->where, mz_quote(theirs).text, list.data);
        mz_text_free(&list);
        return status;
    }
    if (mz_csv_find(csv, ours) >= 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s: %s cannot be renamed: there is a column %s already", csv->where,
                       mz_quote(theirs).text, mz_quote(ours).text);
    csv->renamed[column] = ours;
    return MEZZO_OK;
}

mezzo_status mz_csv_rename(mz_csv *csv, const char *map) {
    if (csv->renamed == NULL)
        csv->renamed = mz_alloc(csv->columns, sizeof *csv->renamed);
    char *words = csv->renames = csv->renames == NULL ? mz_strdup(map) : csv->renames;
    if (csv->renamed == NULL || csv->renames == NULL)
        return MEZZO_ERR_MEMORY;
    while (words != NULL) {
        char *next = strchr(words, ','), *equals;
        if (next != NULL)
            *next++ = '\0';
        equals = strchr(words, '=');
        if (equals == NULL || equals == words || equals[1] == '\0')
            return mz_fail(MEZZO_ERR_INVALID, "%s: expected THEIRS=OURS, got %s", csv->where, mz_quote(words).text);
        *equals = '\0';
        MEZZO_TRY(rename_one(csv, words, equals + 1));
        words = next;
    }
    return MEZZO_OK;
}

void mz_csv_names(const mz_csv *csv, mz_text *out) {
    size_t i = 0;
    for (; i < csv->columns && out->len < 400; i++)
        mz_text_addf(out, "%s%s", i > 0 ? ", " : "", mz_quote(mz_csv_name(csv, i)).text);
    if (i < csv->columns)
        mz_text_addf(out, " and %zu more", csv->columns - i);
}

int mz_csv_find(const mz_csv *csv, const char *name) {
    for (size_t i = 0; i < csv->columns; i++)
        if (strcmp(mz_csv_name(csv, i), name) == 0)
            return (int)i;
    return -1;
}

const char *mz_csv_cell(const mz_csv *csv, size_t row, size_t column) {
    return csv->text + csv->cell[(row + 1) * csv->columns + column];
}

int64_t mz_csv_line(const mz_csv *csv, size_t row) {
    return csv->line[row];
}

mezzo_status mz_csv_need(const mz_csv *csv, const char *name, int *out) {
    *out = mz_csv_find(csv, name);
    if (*out >= 0)
        return MEZZO_OK;
    MZ_SCOPED(mz_text_free) mz_text list = {0};
    mz_csv_names(csv, &list);
    MEZZO_TRY(list.status);
    return mz_fail(MEZZO_ERR_FORMAT, "%s: column %s is missing; there are %s", csv->where, mz_quote(name).text,
                   list.data);
}

// --- cells as numbers ----------------------------------------------------------------------------------------------
static mezzo_status not_a(const mz_csv *csv, size_t row, int column, const char *expected) {
    const char *cell = mz_csv_cell(csv, row, (size_t)column);
    return mz_fail(MEZZO_ERR_FORMAT, "%s:%lld: column %s: expected %s, got %s", csv->where, (long long)csv->line[row],
                   mz_quote(mz_csv_name(csv, (size_t)column)).text, expected,
                   *cell != '\0' ? mz_quote(cell).text : "nothing");
}

// Copies the cell without surrounding blanks to buf; returns false when it is too long for a number.
static bool trimmed(const char *cell, char *buf, size_t size) {
    cell += strspn(cell, " \t");
    size_t n = strlen(cell);
    while (n > 0 && (cell[n - 1] == ' ' || cell[n - 1] == '\t'))
        n--;
    if (n >= size)
        return false;
    memcpy(buf, cell, n);
    buf[n] = '\0';
    return true;
}

mezzo_status mz_csv_number(const mz_csv *csv, size_t row, int column, double *out) {
    char buf[512];
    if (!trimmed(mz_csv_cell(csv, row, (size_t)column), buf, sizeof buf) || !mz_number_parse(buf, out))
        return not_a(csv, row, column, "a number");
    return MEZZO_OK;
}

mezzo_status mz_csv_integer(const mz_csv *csv, size_t row, int column, int64_t min, int64_t max, int64_t *out) {
    char buf[512], expected[96];
    double number;
    bool whole = trimmed(mz_csv_cell(csv, row, (size_t)column), buf, sizeof buf);
    if (whole && !mz_number_parse_int(buf, out)) {
        whole = mz_number_parse(buf, &number) && fabs(number) < 0x1p53 && number == trunc(number);
        *out = whole ? (int64_t)number : 0;
    }
    if (whole && *out >= min && *out <= max)
        return MEZZO_OK;
    snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)min, (long long)max);
    return not_a(csv, row, column, expected);
}

mezzo_status mz_csv_optional(const mz_csv *csv, size_t row, int column, double *out) {
    *out = (double)NAN;
    if (column < 0 || mz_csv_cell(csv, row, (size_t)column)[0] == '\0')
        return MEZZO_OK;
    return mz_csv_number(csv, row, column, out);
}

void mz_csv_add(mz_text *out, const char *field) {
    // A field that begins with the bytes of a byte order mark would lose them at the start of a file.
    if (field[strcspn(field, ",\"\r\n")] == '\0' && strncmp(field, "\xEF\xBB\xBF", 3) != 0) {
        mz_text_add(out, field, strlen(field));
        return;
    }
    mz_text_add(out, "\"", 1);
    for (; *field != '\0'; field++)
        mz_text_add(out, *field == '"' ? "\"\"" : field, *field == '"' ? 2 : 1);
    mz_text_add(out, "\"", 1);
}

void mz_csv_next(mz_text *out, const char *field) {
    mz_text_add(out, ",", 1);
    mz_csv_add(out, field);
}

void mz_csv_next_number(mz_text *out, double x) {
    char buf[MZ_NUMBER_MAX];
    mz_csv_next(out, isfinite(x) ? mz_number_format(x, buf) : "");
}
