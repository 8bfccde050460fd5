#include "data/words.h"

#include "data/alphabet.h"
#include "io/utf8.h"

// GPT-2's pattern in encoder.py, with possessive runs, which change no match:
//     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// \p{L} and \p{N} are those of PCRE2's Unicode version.
static const char gpt2_pattern[] = " ?\\p{L}++|'(?:[sdmt]|ll|ve|re)| ?\\p{N}++| ?[^" MZ_WHITE
                                   "\\p{L}\\p{N}]++|[" MZ_WHITE "]+(?![^" MZ_WHITE "])|[" MZ_WHITE "]";

void mz_steps_free(mz_steps *steps) {
    for (size_t i = 0; i < steps->n; i++)
        mz_pattern_free(steps->items[i].pattern);
    steps->n = 0;
}

mezzo_status mz_steps_add(const char *where, mz_steps *steps, mz_step step) {
    if (steps->n == MZ_MAX_STEPS) {
        mz_pattern_free(step.pattern);
        return mz_fail(MEZZO_ERR_FORMAT, "%s: more than %d steps split the text", where, MZ_MAX_STEPS);
    }
    steps->items[steps->n++] = step;
    return MEZZO_OK;
}

mezzo_status mz_steps_add_gpt2(const char *where, mz_steps *steps) {
    mz_step step = {.kind = MZ_STEP_SPLIT, .behaviour = MZ_ISOLATED, .at_space = MZ_SPACE_SPLITS, .gpt2 = true};
    MEZZO_TRY(mz_pattern_create(where, MZ_PATTERN_PCRE2, gpt2_pattern, sizeof gpt2_pattern - 1, &step.pattern));
    return mz_steps_add(where, steps, step);
}

void mz_word_room_free(mz_word_room *room) {
    mz_match_room_free(room->match);
    for (size_t i = 0; i < MZ_MAX_STEPS; i++)
        mz_text_free(&room->text[i]);
    room->match = NULL;
}

typedef struct walk {
    const mz_steps *steps;
    mz_word_room *room;
    mz_place place;
    mz_word_fn each;
    void *user;
} walk;

static mezzo_status run(walk *w, size_t step, const char *text, size_t n, bool first);

// --- splitting -----------------------------------------------------------------------------------------------------
// Makes the pieces of the text for the next step: whole matches and what lies between them, joined as the step says.
typedef struct pieces {
    walk *walk;
    size_t step;
    const char *text;
    bool first;
    size_t from, to; // what waits until the following piece is known
    bool held, match, joined;
} pieces;

static inline mezzo_status give(const pieces *p, size_t from, size_t to) {
    if (p->step + 1 == p->walk->steps->n && to > from)
        return p->walk->each(p->walk->user, p->text + from, to - from);
    return to > from ? run(p->walk, p->step + 1, p->text + from, to - from, p->first && from == 0) : MEZZO_OK;
}

static mezzo_status release(pieces *p) {
    const bool held = p->held;
    p->held = false;
    return held ? give(p, p->from, p->to) : MEZZO_OK;
}

static mezzo_status hold(pieces *p, size_t from, size_t to, bool match) {
    MEZZO_TRY(release(p));
    p->from = from;
    p->to = to;
    p->match = match;
    p->held = true;
    p->joined = false;
    return MEZZO_OK;
}

static mezzo_status add_piece(pieces *p, mz_behaviour behaviour, size_t from, size_t to, bool match) {
    switch (behaviour) {
    case MZ_REMOVED:
        return match ? MEZZO_OK : give(p, from, to);
    case MZ_ISOLATED:
        return give(p, from, to);
    case MZ_CONTIGUOUS:
        if (!p->held || p->match != match)
            return hold(p, from, to, match);
        p->to = to;
        return MEZZO_OK;
    case MZ_MERGED_WITH_PREVIOUS: // a match is joined once to a preceding piece that is none
        if (!match || !p->held || p->match || p->joined)
            return hold(p, from, to, match);
        p->to = to;
        p->joined = true;
        return MEZZO_OK;
    case MZ_MERGED_WITH_NEXT:
        if (match)
            return hold(p, from, to, true);
        if (p->held) {
            p->to = to;
            return release(p);
        }
        return give(p, from, to);
    }
    return MEZZO_OK;
}

enum { OTHER, LETTER, DIGIT, SYMBOL, WHITE }; // kinds of a byte; OTHER: it is no ASCII character
static unsigned char class_of(unsigned char c) {
    if (c >= 0x80)
        return OTHER;
    if (c == ' ' || (c >= '\t' && c <= '\r'))
        return WHITE;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return LETTER;
    return c >= '0' && c <= '9' ? DIGIT : SYMBOL;
}

// Returns the end of the word of GPT-2's pattern that begins at `at`, where ASCII decides it; else `at`.
static size_t ascii_word(const char *text, size_t at, size_t n) {
    size_t end = at + (text[at] == ' ' && at + 1 < n);
    const unsigned char kind = class_of((unsigned char)text[end]);
    if (kind == OTHER || (end == at && text[at] == '\''))
        return at;
    const size_t begun = kind == WHITE ? at : end;
    while (end < n && class_of((unsigned char)text[end]) == kind)
        end++;
    if (end < n && class_of((unsigned char)text[end]) == OTHER)
        return at;
    return kind == WHITE && end < n && end - begun > 1 ? end - 1 : end; // the last space belongs to the next word
}

static mezzo_status split(walk *w, size_t step, const char *text, size_t n, bool first) {
    const mz_step *s = &w->steps->items[step];
    mz_matches m = mz_matches_of(s->pattern, w->room->match, text, n);
    pieces p = {.walk = w, .step = step, .text = text, .first = first};
    size_t done = 0;
    for (;;) {
        bool found;
        size_t from = 0, to = 0;
        for (size_t end; s->gpt2 && done < n && (end = ascii_word(text, done, n)) > done; done = end)
            MEZZO_TRY(give(&p, done, end));
        m.at = s->gpt2 ? done : m.at;
        MEZZO_TRY(mz_matches_next(&m, &found, &from, &to));
        if (!found)
            break;
        if (from > done)
            MEZZO_TRY(add_piece(&p, s->behaviour, done, from, s->invert));
        if (s->behaviour == MZ_ISOLATED)
            MEZZO_TRY(give(&p, from, to));
        else
            MEZZO_TRY(add_piece(&p, s->behaviour, from, to, !s->invert));
        done = to;
    }
    if (done < n)
        MEZZO_TRY(add_piece(&p, s->behaviour, done, n, s->invert));
    return release(&p);
}

// --- rewriting -----------------------------------------------------------------------------------------------------
static mezzo_status spaces(walk *w, size_t step, const char *text, size_t n, bool first) {
    const mz_step *s = &w->steps->items[step];
    const size_t width = strlen(s->text);
    mz_text *out = &w->room->text[step];
    const bool has = text[0] == ' ' || (n >= width && memcmp(text, s->text, width) == 0);
    const bool begins =
        s->prepend == MZ_PREPEND_ALWAYS || (s->prepend == MZ_PREPEND_FIRST && first && w->place == MZ_PLACE_BEGINS);
    out->len = 0;
    if (begins && !has && (w->place != MZ_PLACE_CONTINUES || !first))
        mz_text_add(out, s->text, width);
    for (size_t at = 0; at < n;) {
        const char *space = memchr(text + at, ' ', n - at);
        const size_t end = space != NULL ? (size_t)(space - text) : n;
        mz_text_add(out, text + at, end - at);
        if (space != NULL)
            mz_text_add(out, s->text, width);
        at = end + (space != NULL);
    }
    MEZZO_TRY(out->status);
    return run(w, step + 1, out->data, out->len, first);
}

static mezzo_status prefix(walk *w, size_t step, const char *text, size_t n, bool first) {
    mz_text *out = &w->room->text[step];
    if (text[0] == ' ' || (w->place == MZ_PLACE_CONTINUES && first))
        return run(w, step + 1, text, n, first);
    out->len = 0;
    mz_text_add(out, " ", 1);
    mz_text_add(out, text, n);
    MEZZO_TRY(out->status);
    return run(w, step + 1, out->data, out->len, first);
}

static mezzo_status letters(walk *w, size_t step, const char *text, size_t n, bool first) {
    mz_text *out = &w->room->text[step];
    out->len = 0;
    mz_bytes_to_letters(text, n, out);
    MEZZO_TRY(out->status);
    return run(w, step + 1, out->data, out->len, first);
}

static mezzo_status run(walk *w, size_t step, const char *text, size_t n, bool first) {
    if (step == w->steps->n)
        return w->each(w->user, text, n);
    switch (w->steps->items[step].kind) {
    case MZ_STEP_SPLIT:
        return split(w, step, text, n, first);
    case MZ_STEP_SPACES:
        return spaces(w, step, text, n, first);
    case MZ_STEP_PREFIX:
        return prefix(w, step, text, n, first);
    case MZ_STEP_LETTERS:
        return letters(w, step, text, n, first);
    }
    return MEZZO_OK;
}

mezzo_status mz_words(const mz_steps *steps, mz_word_room *room, const char *text, size_t n, mz_place place,
                      mz_word_fn each, void *user) {
    walk w = {.steps = steps, .room = room, .place = place, .each = each, .user = user};
    if (n == 0)
        return MEZZO_OK;
    if (room->match == NULL)
        MEZZO_TRY(mz_match_room(&room->match));
    return run(&w, 0, text, n, true);
}

// --- UTF-8 ---------------------------------------------------------------------------------------------------------
size_t mz_valid_until(const char *text, size_t at, size_t n) {
    while (at < n) {
        uint64_t eight;
        if (n - at >= 8 && (memcpy(&eight, text + at, 8), (eight & UINT64_C(0x8080808080808080)) == 0)) {
            at += 8;
            continue;
        }
        uint32_t code;
        size_t width = mz_utf8_decode(text + at, n - at, &code);
        if (width == 0)
            break;
        at += width;
    }
    return at;
}

size_t mz_invalid_until(const char *text, size_t at, size_t n) {
    uint32_t code;
    while (at < n && mz_utf8_decode(text + at, n - at, &code) == 0)
        at++;
    return at;
}

// --- cutting -------------------------------------------------------------------------------------------------------
static bool is_white(unsigned char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_letter(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Finds a cut. In GPT-2's words white space comes only first, and no lookahead goes beyond the first character that is
// not white.
size_t mz_word_cut(const char *text, size_t from, size_t to, bool gpt2) {
    for (size_t i = to; i > from + 1; i--) {
        const unsigned char before = (unsigned char)text[i - 2], here = (unsigned char)text[i - 1];
        if (gpt2 && is_white(here) && before < 0x80 && !is_white(before))
            return i - 1;
        if (!gpt2 && i < to && here == ' ' && is_letter((unsigned char)text[i]) &&
            (is_letter(before) || (before >= '0' && before <= '9')))
            return i - 1;
    }
    return to;
}
