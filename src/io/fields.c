#include "io/fields.h"

#include <math.h>
#include <stdarg.h>

enum { TEXT_BYTES = 8192, NAME_BYTES = 64 };

// --- words and numbers of a line --------------------------------------------------------------------
int mz_columns_of(const char *text, size_t bytes) {
    int n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

void mz_text_wrap(mz_text *t, const char *text, int at, int indent, int most) {
    bool starts = true; // at the beginning of a line, where no blank precedes the word
    for (const char *word = text; *word != '\0';) {
        size_t n = strcspn(word, " \n");
        int width = mz_columns_of(word, n);
        if (!starts && at + 1 + width > most) {
            mz_text_addf(t, "\n%*s", indent, "");
            at = indent;
        } else if (!starts) {
            mz_text_add(t, " ", 1);
            at++;
        }
        mz_text_add(t, word, n);
        at += width;
        starts = false;
        word += n;
        bool sentence = *word == '\n' && n > 0 && strchr(".:", word[-1]) != NULL;
        word += *word != '\0';
        if (sentence && *word != '\0') {
            mz_text_addf(t, "\n%*s", indent, "");
            at = indent;
            starts = true;
        }
    }
}

void mz_text_tell(mz_text *t, const char *fmt, ...) {
    char text[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const size_t lines = strspn(text, "\n");
    mz_text_add(t, text, lines);
    mz_text_wrap(t, text + lines, 0, 0, MZ_TEXT_COLUMNS);
    mz_text_add(t, "\n", 1);
}

mz_shown mz_show(const char *name) {
    mz_shown shown;
    snprintf(shown.text, sizeof shown.text, "%s", name);
    mz_text_tame(shown.text);
    return shown;
}

mz_short mz_duration_text(double seconds) {
    mz_short out = {"-"};
    if (!(seconds >= 0 && seconds < 1e9)) // also for NaN: the time is not known yet
        return out;
    const long long s = llround(seconds);
    if (s >= 3600)
        snprintf(out.text, sizeof out.text, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out.text, sizeof out.text, "%lld:%02lld", s / 60, s % 60);
    return out;
}

mz_short mz_bytes_text(double bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    mz_short out;
    size_t unit = 0;
    for (; bytes >= 1000 && unit + 1 < MZ_COUNT(units); unit++)
        bytes /= 1000;
    snprintf(out.text, sizeof out.text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return out;
}

mz_short mz_count_text(double number) {
    mz_short out = {"-"};
    char digits[32];
    if (!(fabs(number) < 1e15))
        return out;
    const int n = snprintf(digits, sizeof digits, "%.0f", fabs(number));
    size_t used = number < 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            out.text[used++] = ',';
        out.text[used++] = digits[i];
    }
    out.text[used] = '\0';
    return out;
}

// --- a field's value --------------------------------------------------------------------------------
double mz_field_number(const mz_row_field *f, const void *row) {
    const void *at = (const char *)row + f->offset;
    const double factor = f->factor != 0 ? f->factor : 1;
    switch (f->kind) {
    case MZ_FIELD_F64:
        return factor * *(const double *)at;
    case MZ_FIELD_I64:
        return factor * (double)*(const int64_t *)at;
    case MZ_FIELD_U64:
        return factor * (double)*(const uint64_t *)at;
    case MZ_FIELD_I32:
        return factor * (double)*(const int *)at;
    case MZ_FIELD_BOOL:
        return (double)*(const bool *)at;
    default:
        return (double)NAN;
    }
}

static const char *words_of(const mz_row_field *f, const void *row) {
    const void *at = (const char *)row + f->offset;
    switch (f->kind) {
    case MZ_FIELD_CHARS:
        return at;
    case MZ_FIELD_POINTER:
        return *(const char *const *)at;
    case MZ_FIELD_PRECISION:
        return mezzo_precision_name(*(const mezzo_precision *)at);
    case MZ_FIELD_DTYPE:
        return *(const mezzo_dtype *)at < MEZZO_DTYPE_COUNT ? mezzo_dtype_name(*(const mezzo_dtype *)at) : "-";
    case MZ_FIELD_MASTER:
        return mezzo_master_name(*(const mezzo_master *)at);
    case MZ_FIELD_BOOL:
        return f->words[1] != NULL ? f->words[*(const bool *)at] : *(const bool *)at ? "yes" : "no";
    default:
        return NULL;
    }
}

static bool is_text(const mz_row_field *f) {
    return f->kind >= MZ_FIELD_BOOL;
}

static bool shown(const mz_row_field *f, const void *row, const char *word) {
    if (f->only != NULL && (word == NULL || strcmp(f->only, word) != 0))
        return false;
    return (f->flags & MZ_KNOWN) == 0 || !isnan(mz_field_number(f, row));
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
static json_t *value_json(const mz_row_field *f, const void *row) {
    const void *at = (const char *)row + f->offset;
    if ((f->flags & MZ_NULL) != 0 && (is_text(f) ? words_of(f, row)[0] == '\0' : mz_field_number(f, row) == 0))
        return json_null();
    if ((f->flags & MZ_WHOLE) != 0 && isfinite(mz_field_number(f, row)))
        return json_integer((json_int_t)mz_field_number(f, row));
    if (f->kind == MZ_FIELD_F64 || f->factor != 0)
        return mz_json_number(mz_field_number(f, row));
    if (f->kind == MZ_FIELD_U64 && *(const uint64_t *)at > (uint64_t)INT64_MAX) // JSON's integers cannot hold it
        return mz_json_number(mz_field_number(f, row));
    if (f->kind == MZ_FIELD_U64)
        return json_integer((json_int_t) * (const uint64_t *)at);
    if (f->kind == MZ_FIELD_BOOL && f->words[1] == NULL)
        return json_boolean(*(const bool *)at);
    if (!is_text(f))
        return json_integer(f->kind == MZ_FIELD_I64 ? (json_int_t) * (const int64_t *)at
                                                    : (json_int_t) * (const int *)at);
    const char *words = words_of(f, row);
    return words != NULL ? mz_json_text(words) : json_null();
}

json_t *mz_fields_json(const mz_row_field *fields, size_t n, const void *row, const char *word, json_t *into) {
    json_t *o = into != NULL ? into : json_object();
    char key[NAME_BYTES];
    for (size_t i = 0; i < n; i++)
        if (fields[i].key != NULL && shown(&fields[i], row, word))
            json_object_set_new(o, with_word(fields[i].key, word, key), value_json(&fields[i], row));
    return o;
}

// --- text -----------------------------------------------------------------------------------------
static mz_short mib(double bytes) {
    mz_short out;
    const double x = bytes / 1048576;
    const double shown_as = x < 1024 ? x : x / 1024;
    snprintf(out.text, sizeof out.text, x < 1024 || shown_as >= 100 ? "%.1f%c" : "%.2f%c", shown_as,
             x < 1024 ? 'M' : 'G');
    return out;
}

// Finds the function of a named form; NULL: the form is printf's.
static mz_short (*named_form(const char *form))(double) {
    static const struct {
        const char *name;
        mz_short (*make)(double x);
    } named[] = {{"count", mz_count_text}, {"bytes", mz_bytes_text}, {"mib", mib}, {"duration", mz_duration_text}};
    const size_t n = strcspn(form, " ");
    for (size_t i = 0; i < MZ_COUNT(named); i++)
        if (strlen(named[i].name) == n && memcmp(form, named[i].name, n) == 0)
            return named[i].make;
    return NULL;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" // the tables have the formats
static const char *value_text(const mz_row_field *f, const void *row, const char *word, char *buf, size_t size) {
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
        const bool usual = (f->flags & MZ_LOW) != 0 && strcmp(words, mezzo_dtype_name(MEZZO_F32)) == 0;
        snprintf(buf, size, filled, words != NULL && !usual ? words : "-");
        mz_text_tame(buf);
        return buf;
    }
    const double x = mz_field_number(f, row);
    mz_short (*named)(double) = named_form(filled);
    if (((f->flags & MZ_DASH) != 0 && x == 0) || ((f->flags & (MZ_DASH | MZ_SOME)) != 0 && isnan(x)))
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

void mz_fields_lines(const mz_row_field *fields, size_t n, const void *row, const char *word, const char *indent,
                     int width, mz_text *t) {
    static _Thread_local char buf[TEXT_BYTES]; // static, because it is too large for a small stack
    char title[NAME_BYTES];
    for (size_t i = 0; i < n; i++) {
        if (fields[i].title == NULL || !shown(&fields[i], row, word))
            continue;
        const char *value = value_text(&fields[i], row, word, buf, sizeof buf);
        if (value != NULL)
            mz_text_addf(t, "%s%-*s%s\n", indent, width, with_word(fields[i].title, word, title), value);
    }
}

json_t *mz_fields_list(const mz_row_field *fields, size_t n, const void *rows, size_t stride, size_t count,
                       const char *word) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, mz_fields_json(fields, n, (const char *)rows + i * stride, word, NULL));
    return list;
}

// --- tables ---------------------------------------------------------------------------------------
// FOLDED: indent of cells that do not fit on a row's first line; WRAPPED: the least columns for a last text.
enum { COLUMNS_MOST = 32, FOLDED = 4, WRAPPED = 24 };

typedef struct table {
    const mz_row_field *fields;
    size_t n, stride, count;
    const void *rows;
    const char *word;
    int width[COLUMNS_MOST]; // -1: the column is left out
    int last;                // index of the last column
    int gap, most;           // blanks between columns; columns of the terminal
} table;

// Returns a cell's text; line 0 has the titles.
static const char *cell_of(const table *t, size_t column, size_t line) {
    static _Thread_local char buf[TEXT_BYTES];
    const mz_row_field *f = &t->fields[column];
    if (line == 0)
        return with_word(f->title, t->word, buf);
    const char *cell = value_text(f, (const char *)t->rows + (line - 1) * t->stride, t->word, buf, sizeof buf);
    return cell != NULL ? cell : "-";
}

static void measure(table *t, int columns_most) {
    int sum = 0, shown_columns = 0;
    t->last = -1;
    for (size_t c = 0; c < t->n; c++) {
        bool some = (t->fields[c].flags & MZ_SOME) == 0;
        t->width[c] = -1;
        if (t->fields[c].title == NULL || (t->count > 0 && !shown(&t->fields[c], t->rows, t->word)))
            continue;
        int most = 0;
        for (size_t i = 0; i <= t->count; i++) {
            const char *cell = cell_of(t, c, i);
            const int columns = mz_columns_of(cell, strlen(cell));
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
    t->most = columns_most;
    t->gap = sum + 2 * (shown_columns - 1) <= t->most ? 2 : 1;
}

// Adds a line: numbers end at their column and texts begin there. A text in the last column wraps, and no line ends
// in blanks.
static void add_row(const table *t, size_t line, mz_text *out) {
    int at = 0, blanks = 0;
    for (int c = 0; c <= t->last; c++) {
        if (t->width[c] < 0)
            continue;
        const char *cell = cell_of(t, (size_t)c, line);
        const bool text = is_text(&t->fields[c]), ends = text && c == t->last;
        const int columns = mz_columns_of(cell, strlen(cell));
        const int width = !ends ? t->width[c] : columns < WRAPPED ? columns : WRAPPED;
        if (at > 0 && at + t->gap + width > t->most) {
            mz_text_addf(out, "\n%*s", FOLDED, "");
            at = FOLDED;
            blanks = 0;
        } else if (at > 0) {
            at += t->gap;
            blanks += t->gap;
        }
        const int before = text ? 0 : width - columns;
        if (columns > 0)
            mz_text_addf(out, "%*s", blanks + before, "");
        if (ends)
            mz_text_wrap(out, cell, at, at, t->most);
        else
            mz_text_add(out, cell, strlen(cell));
        blanks = columns > 0 ? width - columns - before : blanks + width;
        at += width;
    }
    mz_text_add(out, "\n", 1);
}

void mz_fields_table(const mz_row_field *fields, size_t n, const void *rows, size_t stride, size_t count,
                     const char *word, int columns, mz_text *out) {
    table t = {.fields = fields, .n = n, .rows = rows, .stride = stride, .count = count, .word = word};
    bool legend = false;
    measure(&t, columns);
    for (size_t i = 0; i <= count; i++)
        add_row(&t, i, out);
    for (size_t c = 0; c < n; c++)
        if (t.width[c] >= 0 && fields[c].legend != NULL) {
            char line[TEXT_BYTES / 8];
            snprintf(line, sizeof line, "%s: %s", fields[c].title, fields[c].legend);
            mz_text_add(out, "\n", legend ? 0 : 1);
            mz_text_wrap(out, line, 0, 2, MZ_TEXT_COLUMNS);
            mz_text_add(out, "\n", 1);
            legend = true;
        }
}
