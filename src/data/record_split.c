#include "data/record_split.h"

enum { PIECE = 1 << 16 };

struct mz_record_splitter {
    mz_reader *reader;
    char *buffer;
    size_t cap, begin, end; // bytes that no record has used yet
    uint64_t line;          // the line of buffer[begin]
    bool over;              // the reader has no more bytes
    bool is_list, began, ended;
};

void mz_record_splitter_close(mz_record_splitter *s) {
    if (s == NULL)
        return;
    mz_reader_close(s->reader);
    MZ_FREE(s->buffer, s);
}

// Reads more bytes after the unused ones, which move to the front.
static mezzo_status read_more(mz_record_splitter *s) {
    const size_t left = s->end - s->begin;
    size_t got;
    if (left > 0)
        memmove(s->buffer, s->buffer + s->begin, left);
    s->begin = 0;
    s->end = left;
    MEZZO_TRY(MZ_RESERVE(s->buffer, s->cap, left + PIECE));
    MEZZO_TRY(mz_reader_read(s->reader, s->buffer + left, PIECE, &got));
    s->end += got;
    s->over = got < PIECE;
    return MEZZO_OK;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Skips blanks; *out is the first other character, which stays; '\0' at the end.
static mezzo_status skip_blanks(mz_record_splitter *s, char *out) {
    *out = '\0';
    for (;;) {
        for (; s->begin < s->end; s->begin++) {
            const char c = s->buffer[s->begin];
            s->line += c == '\n';
            if (is_blank(c))
                continue;
            *out = c == '\0' ? '\1' : c; // a NUL is a character with which no record begins
            return MEZZO_OK;
        }
        if (s->over)
            return MEZZO_OK;
        MEZZO_TRY(read_more(s));
    }
}

static mezzo_status refuse_list(const mz_record_splitter *s, const char *what) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s:%llu: %s", mz_reader_where(s->reader), (unsigned long long)s->line, what);
}

mezzo_status mz_record_splitter_open(mz_reader *reader, mz_record_splitter **out) {
    *out = NULL;
    mz_record_splitter *s = mz_alloc(1, sizeof *s);
    char first = '\0';
    if (s == NULL) {
        mz_reader_close(reader);
        return MEZZO_ERR_MEMORY;
    }
    *s = (mz_record_splitter){.reader = reader, .line = 1};
    mezzo_status status = read_more(s);
    if (status == MEZZO_OK && s->end >= 2 &&
        (memcmp(s->buffer, "\xFF\xFE", 2) == 0 || memcmp(s->buffer, "\xFE\xFF", 2) == 0))
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: its byte order mark says UTF-16 or UTF-32: save it as UTF-8",
                         mz_reader_where(reader));
    if (status == MEZZO_OK && s->end >= 3 && memcmp(s->buffer, "\xEF\xBB\xBF", 3) == 0)
        s->begin = 3;
    if (status == MEZZO_OK)
        status = skip_blanks(s, &first);
    s->is_list = first == '[';
    s->begin += s->is_list;
    if (status == MEZZO_OK)
        *out = s;
    else
        mz_record_splitter_close(s);
    return status;
}

// Holds the state of the scan of one record.
typedef struct scan {
    size_t at, depth;
    uint64_t lines;
    bool in_text, escaped, too_long;
} scan;

// Returns whether the record ends before this byte or, where *with is set, after it.
static bool ends(const mz_record_splitter *s, scan *x, char c, bool *with) {
    *with = false;
    if (!s->is_list)
        return c == '\n';
    if (x->in_text) {
        if (x->escaped || c == '\\')
            x->escaped = !x->escaped;
        else if (c == '"')
            x->in_text = false;
        return false;
    }
    if (x->depth == 0 && (c == ',' || c == ']'))
        return true;
    x->in_text = c == '"';
    x->depth += c == '{' || c == '[';
    x->depth -= (c == '}' || c == ']') && x->depth > 0;
    *with = (c == '}' || c == ']') && x->depth == 0;
    return *with;
}

// Reads on. A record that is too long loses its beginning, to free memory for the rest.
static mezzo_status read_on(mz_record_splitter *s, scan *x) {
    if (x->at - s->begin > MZ_RECORD_BYTES) {
        x->too_long = true;
        s->begin = x->at - PIECE;
    }
    const size_t scanned = x->at - s->begin;
    MEZZO_TRY(read_more(s));
    x->at = s->begin + scanned;
    return MEZZO_OK;
}

static mezzo_status take(mz_record_splitter *s, mz_record_span *out) {
    scan x = {.at = s->begin};
    bool with = false, found = false;
    while (!found) {
        for (; x.at < s->end && !found; x.at += !found || with) {
            found = ends(s, &x, s->buffer[x.at], &with);
            x.lines += s->buffer[x.at] == '\n' && (!found || with);
        }
        if (!found && s->over)
            break;
        if (!found)
            MEZZO_TRY(read_on(s, &x));
    }
    if (!found && s->is_list)
        return refuse_list(s, "the list has no end: the file is cut off");
    *out = (mz_record_span){s->buffer + s->begin, x.at - s->begin, s->line,
                            x.too_long || x.at - s->begin > MZ_RECORD_BYTES};
    s->line += x.lines;
    s->begin = x.at;
    return MEZZO_OK;
}

// Advances to the next element: over its comma, or to the end of the list.
static mezzo_status step_list(mz_record_splitter *s, char *next) {
    MEZZO_TRY(skip_blanks(s, next));
    if (*next == ',' && s->began) {
        s->begin++;
        MEZZO_TRY(skip_blanks(s, next));
        if (*next == ']' || *next == ',')
            return refuse_list(s, "a comma with no record after it");
    } else if (*next != ']' && *next != '\0' && s->began) {
        return refuse_list(s, "no comma between two records");
    }
    if (*next == '\0')
        return refuse_list(s, "the list has no end: the file is cut off");
    s->began = true;
    if (*next != ']')
        return MEZZO_OK;
    s->ended = true;
    s->begin++;
    MEZZO_TRY(skip_blanks(s, next));
    return *next == '\0' ? MEZZO_OK : refuse_list(s, "text after the list");
}

mezzo_status mz_record_splitter_next(mz_record_splitter *s, mz_record_span *out) {
    char next = '\0';
    *out = (mz_record_span){0};
    if (!s->ended)
        MEZZO_TRY(s->is_list ? step_list(s, &next) : skip_blanks(s, &next));
    if (next == '\0' || s->ended) {
        s->ended = true;
        return MEZZO_OK;
    }
    return take(s, out);
}
