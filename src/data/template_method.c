// Implements the members and methods of strings, maps and lists in chat templates, and binds a call's arguments to
// their names.
#include <ctype.h>

#include "data/template_machine.h"

// --- arguments ------------------------------------------------------------------------------------------------------
static void wrong_arguments(machine *m, const char *what, const callee *row, const char *why) {
    refuse(m, MEZZO_ERR_FORMAT, "%s %s: %s", what, row->name, why);
}

// Returns the index of a name in "a b c"; -1: none.
static int place_of(const char *names, const char *name, size_t n) {
    int i = 0;
    for (const char *p = names; *p != '\0'; i++) {
        size_t k = strcspn(p, " ");
        if (k == n && memcmp(p, name, n) == 0)
            return i;
        p += k + (p[k] == ' ');
    }
    return -1;
}

const callee *mz_tpl_row(machine *m, const callee *rows, const char *name, size_t n) {
    for (; rows->name != NULL; rows++)
        if (place_of(rows->name, name, n) >= 0) {
            callee *own = rows->name[n] != '\0' ? mz_tpl_room(m, sizeof *own + n) : NULL;
            if (own == NULL)
                return rows;
            *own = *rows;
            own->name = memcpy(own + 1, name, n);
            return own;
        }
    return NULL;
}

const value *mz_tpl_call_row(machine *m, const char *what, const callee *row, const value *self, const arguments *a) {
    const value *at[MOST_ARGS] = {0};
    if (m->status != MEZZO_OK)
        return &mz_tpl_undefined;
    mz_tpl_spend(m, 0);
    if (row->bind != NULL)
        return row->bind(m, self, a, row->how);
    if (row->run == NULL && row->run_as == NULL) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the %s %s is not supported", what, row->name);
        return &mz_tpl_undefined;
    }
    const bool by_place = row->params[0] == '/';
    const char *params = row->params + by_place;
    size_t most = params[0] != '\0';
    for (const char *p = params; *p != '\0'; p++)
        most += *p == ' ';
    for (size_t i = 0; i < a->n; i++) {
        const int place = a->name[i] == NULL ? (int)i : by_place ? -1 : place_of(params, a->name[i], a->length[i]);
        if (place < 0 || (size_t)place >= most)
            wrong_arguments(m, what, row, a->name[i] == NULL ? "too many arguments" : "an argument of no such name");
        else if (at[place] != NULL)
            wrong_arguments(m, what, row, "an argument is given twice");
        else
            at[place] = a->at[i];
        if (m->status != MEZZO_OK)
            return &mz_tpl_undefined;
    }
    for (size_t i = 0; i < row->required; i++)
        if (at[i] == NULL)
            wrong_arguments(m, what, row, "an argument is missing");
    if (m->status != MEZZO_OK)
        return &mz_tpl_undefined;
    const value *v = row->run != NULL ? row->run(m, self, at) : row->run_as(m, self, at, row->how);
    return v != NULL && m->status == MEZZO_OK ? v : &mz_tpl_undefined;
}

int64_t mz_tpl_int(machine *m, const value *v, int64_t other) {
    if (v == NULL)
        return other;
    if (v->kind != INTEGER && v->kind != BOOLEAN)
        refuse(m, MEZZO_ERR_FORMAT, "%s where an integer is expected", mz_tpl_kind_name(v));
    return v->n;
}

static bool text_wanted(machine *m, const value *v) {
    if (v->kind != STRING)
        refuse(m, MEZZO_ERR_FORMAT, "%s where a string is expected", mz_tpl_kind_name(v));
    return v->kind == STRING;
}

// --- strings --------------------------------------------------------------------------------------------------------
// Charges the bytes that are read, during the search, because a set may be as long as the text.
static void charge(machine *m, size_t bytes, size_t *seen) {
    enum { AT_ONCE = 1 << 16 };
    *seen += bytes;
    if (*seen < AT_ONCE)
        return;
    mz_tpl_spend(m, *seen);
    *seen = 0;
}

// Returns whether the character of n bytes is removed.
static bool stripped(machine *m, const value *v, size_t at, size_t *n, const value *set, size_t *seen) {
    const uint32_t code = mz_tpl_code(v, at, n);
    charge(m, set != NULL ? set->length : 1, seen);
    if (set == NULL || m->status != MEZZO_OK)
        return set == NULL && mz_tpl_is_space(code);
    for (size_t p = 0, k; p < set->length; p += k) {
        (void)mz_tpl_code(set, p, &k);
        if (k == *n && memcmp(set->text + p, v->text + at, *n) == 0)
            return true;
    }
    return false;
}

const value *mz_tpl_strip(machine *m, const value *v, const value *set, bool left, bool right) {
    size_t from = 0, to = v->length, n, seen = 0;
    set = set != NULL && set->kind != NONE ? set : NULL;
    if (set != NULL && !text_wanted(m, set))
        return NULL;
    while (left && from < to && stripped(m, v, from, &n, set, &seen))
        from += n;
    while (right && to > from) {
        size_t p = to - 1;
        while (p > from && ((unsigned char)v->text[p] & 0xC0) == 0x80)
            p--;
        if (!stripped(m, v, p, &n, set, &seen))
            break;
        to = p;
    }
    mz_tpl_spend(m, seen);
    return mz_tpl_part(m, v, from, to);
}

// Values of a row's `how`: the side of a string, or the direction.
enum { LEFT = 1, RIGHT = 2 };

static const value *strip(machine *m, const value *v, const value **a, int sides) {
    return mz_tpl_strip(m, v, a[0], (sides & LEFT) != 0, (sides & RIGHT) != 0);
}

static const value *cased(machine *m, const value *v, const value **a, int how) {
    (void)a;
    return mz_tpl_cased(m, v, how);
}

typedef struct parts { // parts of a string, in the order in which they were cut
    const value **at;
    size_t n, space;
} parts;

static void add_part(machine *m, parts *p, const value *part) {
    if (MZ_TPL_GROW(m, p->at, p->n, p->space))
        p->at[p->n++] = part;
}

static const value *list_of(machine *m, const parts *p, bool backwards) {
    value *list = mz_tpl_list(m, LIST, p->n);
    for (size_t i = 0; list != NULL && i < p->n; i++)
        list->at[i] = p->at[backwards ? p->n - 1 - i : i];
    return list;
}

static const value *split_words(machine *m, const value *v, int64_t most) {
    parts p = {0};
    size_t at = 0, n;
    while (m->status == MEZZO_OK) {
        while (at < v->length && mz_tpl_is_space(mz_tpl_code(v, at, &n)))
            at += n;
        if (at >= v->length)
            break;
        size_t end = at;
        while (end < v->length && !mz_tpl_is_space(mz_tpl_code(v, end, &n)))
            end += n;
        if (most >= 0 && (int64_t)p.n == most) { // the rest, without white space at its end
            add_part(m, &p, mz_tpl_strip(m, mz_tpl_part(m, v, at, v->length), NULL, false, true));
            break;
        }
        add_part(m, &p, mz_tpl_part(m, v, at, end));
        at = end;
    }
    mz_tpl_spend(m, v->length);
    return list_of(m, &p, false);
}

// Returns the last place of `what` that ends at or before `to`; -1: none.
static int64_t find_last(machine *m, const value *v, const value *what, size_t to) {
    size_t seen = to;
    int64_t at = -1;
    for (size_t i = to + 1; i-- > what->length && at < 0 && m->status == MEZZO_OK;) {
        charge(m, what->length, &seen);
        if (memcmp(v->text + i - what->length, what->text, what->length) == 0)
            at = (int64_t)(i - what->length);
    }
    mz_tpl_spend(m, seen);
    return at;
}

static const value *split(machine *m, const value *v, const value **a, int from_side) {
    const bool right = from_side == RIGHT;
    const int64_t most = mz_tpl_int(m, a[1], -1);
    const value *by = a[0];
    parts p = {0};
    if (by == NULL || by->kind == NONE) {
        if (right && most >= 0)
            refuse(m, MEZZO_ERR_UNSUPPORTED, "rsplit at white space with a limit is not supported");
        return split_words(m, v, most);
    }
    if (!text_wanted(m, by))
        return NULL;
    if (by->length == 0) {
        refuse(m, MEZZO_ERR_FORMAT, "an empty separator");
        return NULL;
    }
    size_t from = 0, to = v->length;
    for (int64_t at; m->status == MEZZO_OK && (most < 0 || (int64_t)p.n < most);) {
        at = right ? find_last(m, v, by, to) : mz_tpl_find(m, v, by, from);
        if (at < 0)
            break;
        add_part(m, &p, right ? mz_tpl_part(m, v, (size_t)at + by->length, to) : mz_tpl_part(m, v, from, (size_t)at));
        from = right ? 0 : (size_t)at + by->length;
        to = right ? (size_t)at : to;
    }
    add_part(m, &p, mz_tpl_part(m, v, from, to));
    return list_of(m, &p, right);
}

const value *mz_tpl_split_lines(machine *m, const value *v, bool keep) {
    parts p = {0};
    size_t from = 0, n;
    for (size_t at = 0; at < v->length && m->status == MEZZO_OK; at += n) {
        const uint32_t c = mz_tpl_code(v, at, &n);
        if (!((c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029))
            continue;
        if (c == '\r' && at + 1 < v->length && v->text[at + 1] == '\n')
            n = 2;
        add_part(m, &p, mz_tpl_part(m, v, from, at + (keep ? n : 0)));
        from = at + n;
    }
    mz_tpl_spend(m, v->length);
    if (from < v->length)
        add_part(m, &p, mz_tpl_part(m, v, from, v->length));
    return list_of(m, &p, false);
}

static const value *splitlines(machine *m, const value *v, const value **a) {
    return mz_tpl_split_lines(m, v, a[0] != NULL && mz_tpl_is_true(a[0]));
}

const value *mz_tpl_replace(machine *m, const value *v, const value *what, const value *with, int64_t count) {
    mz_marked_text out = {0};
    size_t from = 0;
    if (what->length == 0) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "replacing an empty string is not supported");
        return NULL;
    }
    for (int64_t at; count != 0 && m->status == MEZZO_OK && (at = mz_tpl_find(m, v, what, from)) >= 0; count--) {
        mz_tpl_say(&out, v->text + from, v->told + from, (size_t)at - from);
        mz_tpl_say(&out, with->text, with->told, with->length);
        from = (size_t)at + what->length;
        if (out.text.len > m->most_bytes)
            refuse(m, MEZZO_ERR_UNSUPPORTED, "the template takes more than %zu MiB of memory", m->most_bytes >> 20);
    }
    mz_tpl_say(&out, v->text + from, v->told + from, v->length - from);
    return mz_tpl_said(m, &out);
}

static const value *replace(machine *m, const value *v, const value **a) {
    if (!text_wanted(m, a[0]) || !text_wanted(m, a[1]))
        return NULL;
    return mz_tpl_replace(m, v, a[0], a[1], mz_tpl_int(m, a[2], -1));
}

static bool at_side(const value *v, const value *what, int side) {
    return what->length <= v->length &&
           (what->length == 0 ||
            memcmp(v->text + (side == RIGHT ? v->length - what->length : 0), what->text, what->length) == 0);
}

static const value *has_side(machine *m, const value *v, const value **a, int side) {
    if (a[1] != NULL || a[2] != NULL)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "startswith and endswith of a part are not supported");
    const int64_t n = a[0]->kind == TUPLE ? a[0]->n : 1;
    for (int64_t i = 0; i < n; i++) {
        const value *what = a[0]->kind == TUPLE ? a[0]->at[i] : a[0];
        if (!text_wanted(m, what))
            return NULL;
        mz_tpl_spend(m, what->length);
        if (at_side(v, what, side))
            return &mz_tpl_yes;
    }
    return &mz_tpl_no;
}

static const value *without_side(machine *m, const value *v, const value **a, int side) {
    if (!text_wanted(m, a[0]))
        return NULL;
    const size_t n = a[0]->length, from = side == LEFT ? n : 0;
    return at_side(v, a[0], side) ? mz_tpl_part(m, v, from, from + v->length - n) : v;
}

// Returns the first or the last place, in characters; -1: none. Limits of the search are not supported.
static int64_t place(machine *m, const value *v, const value **a, int side) {
    if (!text_wanted(m, a[0]))
        return -1;
    if (a[1] != NULL || a[2] != NULL)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "searching in a part of a string is not supported");
    const int64_t at = side == RIGHT ? find_last(m, v, a[0], v->length) : mz_tpl_find(m, v, a[0], 0);
    return at > 0 ? (int64_t)mz_tpl_characters(m, mz_tpl_part(m, v, 0, (size_t)at)) : at;
}

static const value *find(machine *m, const value *v, const value **a, int side) {
    return mz_tpl_integer(m, place(m, v, a, side));
}

static const value *found(machine *m, int64_t at) {
    if (at < 0)
        refuse(m, MEZZO_ERR_FORMAT, "what index looks for is not there");
    return mz_tpl_integer(m, at);
}
static const value *text_index(machine *m, const value *v, const value **a, int side) {
    return found(m, place(m, v, a, side));
}

static const value *text_count(machine *m, const value *v, const value **a) {
    int64_t n = 0;
    if (!text_wanted(m, a[0]))
        return NULL;
    if (a[0]->length == 0 || a[1] != NULL || a[2] != NULL)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "counting nothing, or in a part of a string, is not supported");
    for (int64_t at = 0; m->status == MEZZO_OK && (at = mz_tpl_find(m, v, a[0], (size_t)at)) >= 0; n++)
        at += (int64_t)a[0]->length;
    return mz_tpl_integer(m, n);
}

const value *mz_tpl_join(machine *m, const value *by, const value *items, bool any) {
    mz_marked_text out = {0};
    for (int64_t i = 0; i < items->n && m->status == MEZZO_OK; i++) {
        mz_tpl_spend(m, 0);
        if (!any && !text_wanted(m, items->at[i]))
            break;
        if (i > 0)
            mz_tpl_say(&out, by->text, by->told, by->length);
        mz_tpl_say_value(m, &out, items->at[i]);
        if (out.text.len > m->most_bytes)
            refuse(m, MEZZO_ERR_UNSUPPORTED, "the template takes more than %zu MiB of memory", m->most_bytes >> 20);
    }
    return mz_tpl_said(m, &out);
}

static const value *join(machine *m, const value *v, const value **a) {
    return mz_tpl_join(m, v, mz_tpl_items(m, a[0]), false);
}

static const value *partition(machine *m, const value *v, const value **a) {
    if (!text_wanted(m, a[0]))
        return NULL;
    if (a[0]->length == 0)
        refuse(m, MEZZO_ERR_FORMAT, "an empty separator");
    const int64_t at = mz_tpl_find(m, v, a[0], 0);
    value *three = mz_tpl_list(m, TUPLE, 3);
    if (three == NULL || m->status != MEZZO_OK)
        return NULL;
    three->at[0] = at < 0 ? v : mz_tpl_part(m, v, 0, (size_t)at);
    three->at[1] = at < 0 ? mz_tpl_word(m, "") : a[0];
    three->at[2] = at < 0 ? three->at[1] : mz_tpl_part(m, v, (size_t)at + a[0]->length, v->length);
    return three;
}

enum { DIGIT, ALPHA, ALNUM, UPPER, LOWER };
static int (*const classes[])(int) = {isdigit, isalpha, isalnum, isupper, islower};

static const value *is_class(machine *m, const value *v, const value **a, int which) {
    bool all = v->length > 0;
    (void)a;
    if (!v->ascii)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "asking for the kind of characters that are not ASCII is not supported");
    for (size_t i = 0; i < v->length && all; i++)
        all = classes[which]((unsigned char)v->text[i]) != 0;
    return mz_tpl_truth(all);
}

static const value *is_blank(machine *m, const value *v, const value **a) {
    bool all = v->length > 0;
    (void)a;
    for (size_t p = 0, n; p < v->length && all; p += n)
        all = mz_tpl_is_space(mz_tpl_code(v, p, &n));
    mz_tpl_spend(m, v->length);
    return mz_tpl_truth(all);
}

// Returns whether the string has at least one letter of that case, and none of the other.
static const value *is_cased(machine *m, const value *v, const value **a, int which) {
    bool some = false;
    (void)a;
    if (!v->ascii)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "asking for the kind of characters that are not ASCII is not supported");
    for (size_t i = 0; i < v->length; i++) {
        if (classes[which == UPPER ? LOWER : UPPER]((unsigned char)v->text[i]))
            return &mz_tpl_no;
        some |= classes[which]((unsigned char)v->text[i]) != 0;
    }
    return mz_tpl_truth(some);
}

static const callee text_methods[] = {
    RUNS_AS("strip", "/chars", 0, strip, LEFT | RIGHT),
    RUNS_AS("lstrip", "/chars", 0, strip, LEFT),
    RUNS_AS("rstrip", "/chars", 0, strip, RIGHT),
    RUNS_AS("upper", "", 0, cased, CASE_UPPER),
    RUNS_AS("lower", "", 0, cased, CASE_LOWER),
    RUNS_AS("title", "", 0, cased, CASE_TITLE),
    RUNS_AS("capitalize", "", 0, cased, CASE_CAPITALIZE),
    RUNS_AS("swapcase", "", 0, cased, CASE_SWAP),
    RUNS_AS("split", "sep maxsplit", 0, split, LEFT),
    RUNS_AS("rsplit", "sep maxsplit", 0, split, RIGHT),
    RUNS("splitlines", "keepends", 0, splitlines),
    RUNS("replace", "/old new count", 2, replace),
    RUNS_AS("startswith", "/prefix start end", 1, has_side, LEFT),
    RUNS_AS("endswith", "/suffix start end", 1, has_side, RIGHT),
    RUNS_AS("removeprefix", "/prefix", 1, without_side, LEFT),
    RUNS_AS("removesuffix", "/suffix", 1, without_side, RIGHT),
    RUNS_AS("find", "/sub start end", 1, find, LEFT),
    RUNS_AS("rfind", "/sub start end", 1, find, RIGHT),
    RUNS_AS("index", "/sub start end", 1, text_index, LEFT),
    RUNS_AS("rindex", "/sub start end", 1, text_index, RIGHT),
    RUNS("count", "/sub start end", 1, text_count),
    RUNS("join", "/items", 1, join),
    RUNS("partition", "/sep", 1, partition),
    RUNS_AS("isdigit", "", 0, is_class, DIGIT),
    RUNS_AS("isalpha", "", 0, is_class, ALPHA),
    RUNS_AS("isalnum", "", 0, is_class, ALNUM),
    RUNS("isspace", "", 0, is_blank),
    RUNS_AS("isupper", "", 0, is_cased, UPPER),
    RUNS_AS("islower", "", 0, is_cased, LOWER),
    NOT_SUPPORTED("casefold center encode expandtabs format format_map isascii isdecimal isidentifier isnumeric "
                  "isprintable istitle ljust maketrans rjust rpartition translate zfill"),
    {0}};

// --- maps and lists -------------------------------------------------------------------------------------------------
static const value *get(machine *m, const value *v, const value **a) {
    const value *is = mz_tpl_member(m, v, a[0]);
    return is != NULL ? is : a[1] != NULL ? a[1] : &mz_tpl_none;
}

static const value *view(machine *m, const value *v, const value **of) {
    value *list = mz_tpl_list(m, VIEW, (size_t)v->n);
    for (int64_t i = 0; list != NULL && i < v->n; i++)
        list->at[i] = of[i];
    return list;
}

static const value *keys(machine *m, const value *v, const value **a) {
    (void)a;
    return view(m, v, v->key);
}
static const value *values(machine *m, const value *v, const value **a) {
    (void)a;
    return view(m, v, v->at);
}

value *mz_tpl_pairs(machine *m, const value *v, value_kind kind) {
    value *list = mz_tpl_list(m, kind, (size_t)v->n);
    for (int64_t i = 0; list != NULL && i < v->n; i++) {
        value *pair = mz_tpl_list(m, TUPLE, 2);
        if (pair == NULL)
            return NULL;
        pair->at[0] = v->key[i];
        pair->at[1] = v->at[i];
        list->at[i] = pair;
    }
    return list;
}

static const value *items(machine *m, const value *v, const value **a) {
    (void)a;
    return mz_tpl_pairs(m, v, VIEW);
}

static const value *same(machine *m, const value *v, const value **a) {
    (void)m;
    (void)a;
    return v;
}

static const callee map_methods[] = {RUNS("get", "/key default", 1, get),
                                     RUNS("items", "", 0, items),
                                     RUNS("keys", "", 0, keys),
                                     RUNS("values", "", 0, values),
                                     RUNS("copy", "", 0, same),
                                     NOT_SUPPORTED("clear fromkeys pop popitem setdefault update"),
                                     {0}};

static int64_t list_place(machine *m, const value *v, const value *what, int64_t *count) {
    int64_t first = -1;
    *count = 0;
    for (int64_t i = 0; i < v->n && m->status == MEZZO_OK; i++)
        if (v->at[i] == what || mz_tpl_equal(m, v->at[i], what)) {
            first = first < 0 ? i : first;
            ++*count;
        }
    return first;
}

static const value *list_index(machine *m, const value *v, const value **a) {
    int64_t count;
    if (a[1] != NULL || a[2] != NULL)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "searching in a part of a list is not supported");
    return found(m, list_place(m, v, a[0], &count));
}
static const value *list_count(machine *m, const value *v, const value **a) {
    int64_t count;
    (void)list_place(m, v, a[0], &count);
    return mz_tpl_integer(m, count);
}

static const callee list_methods[] = {RUNS("index", "/value start end", 1, list_index),
                                      RUNS("count", "/value", 1, list_count),
                                      RUNS("copy", "", 0, same),
                                      NOT_SUPPORTED("append clear extend insert pop remove reverse sort"),
                                      {0}};

// --- members --------------------------------------------------------------------------------------------------------
static const value *method_of(machine *m, const value *v, const char *name, size_t n) {
    static const char of_numbers[] = "real imag numerator denominator conjugate bit_length hex to_bytes from_bytes "
                                     "fromhex is_integer bit_count as_integer_ratio";
    static const callee none[1];
    const callee *row = mz_tpl_row(m,
                                   v->kind == STRING       ? text_methods
                                   : v->kind == MAP        ? map_methods
                                   : mz_tpl_is_sequence(v) ? list_methods
                                                           : none,
                                   name, n);
    if (mz_tpl_is_number(v) && place_of(of_numbers, name, n) >= 0)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the member %.*s of a number is not supported", (int)n, name);
    if (row == NULL || (v->kind == TUPLE && row->run != list_index && row->run != list_count))
        return NULL;
    value *method = mz_tpl_new_value(m, METHOD);
    if (method == NULL)
        return &mz_tpl_undefined;
    method->callee = row;
    method->self = v;
    return method;
}

// Returns an object's own member of that name, which precedes its keys; NULL: none.
static const value *own(machine *m, const value *v, const char *name, size_t n) {
    const mz_quoted quoted = mz_quote_bytes(name, n);
    if (v->kind == UNDEFINED) {
        refuse(m, MEZZO_ERR_FORMAT, "the member %s of an undefined value", quoted.text);
    } else if (n >= 2 && memcmp(name, "__", 2) == 0) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the member %s is not supported", quoted.text);
    } else if (v->kind == LOOP) {
        return mz_tpl_loop_member(m, v, name, n);
    } else if (v->kind == NAMESPACE) {
        return mz_tpl_member_named(m, v, name, n);
    } else if (v->kind == MACRO || v->kind == FUNCTION || v->kind == METHOD || v->kind == VIEW || v->kind == ITERATOR ||
               v->kind == RANGE) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the member %s of %s is not supported", quoted.text, mz_tpl_kind_name(v));
    } else {
        return method_of(m, v, name, n);
    }
    return &mz_tpl_undefined;
}

const value *mz_tpl_getattr(machine *m, const value *v, const char *name, size_t n) {
    const value *is = own(m, v, name, n);
    if (is == NULL && v->kind == MAP)
        is = mz_tpl_member_named(m, v, name, n);
    return is != NULL && m->status == MEZZO_OK ? is : &mz_tpl_undefined;
}

const value *mz_tpl_getitem(machine *m, const value *v, const value *key) {
    if (m->status != MEZZO_OK)
        return &mz_tpl_undefined;
    if (v->kind == UNDEFINED)
        refuse(m, MEZZO_ERR_FORMAT, "a member of an undefined value");
    if ((v->kind == STRING || mz_tpl_is_sequence(v)) && (key->kind == INTEGER || key->kind == BOOLEAN)) {
        const int64_t n = v->kind == STRING ? (int64_t)mz_tpl_characters(m, v) : v->n,
                      i = key->n + (key->n < 0 ? n : 0);
        if (i < 0 || i >= n)
            return &mz_tpl_undefined;
        if (v->kind != STRING)
            return v->at[i];
        size_t at = mz_tpl_byte_of(m, v, (size_t)i), width;
        (void)mz_tpl_code(v, at, &width);
        return mz_tpl_part(m, v, at, at + width);
    }
    const value *is = NULL;
    if (v->kind == MAP && key->kind != LIST && key->kind != MAP)
        is = mz_tpl_member(m, v, key);
    if (is == NULL && key->kind == STRING && m->status == MEZZO_OK)
        is = own(m, v, key->text, key->length);
    return is != NULL && m->status == MEZZO_OK ? is : &mz_tpl_undefined;
}

const value *mz_tpl_attribute(machine *m, const value *v, const value *path, const value *other) {
    if (path->kind == NONE)
        return v;
    if (path->kind != STRING)
        return mz_tpl_getitem(m, v, path);
    for (size_t from = 0; from <= path->length && m->status == MEZZO_OK;) {
        size_t to = from;
        bool number = true;
        while (to < path->length && path->text[to] != '.')
            number &= isdigit((unsigned char)path->text[to++]) != 0;
        const value *part = mz_tpl_part(m, path, from, to);
        if (number && to > from && to - from < 10) {
            int64_t n = 0;
            for (size_t i = from; i < to; i++)
                n = 10 * n + path->text[i] - '0';
            part = mz_tpl_integer(m, n);
        }
        v = mz_tpl_getitem(m, v, part);
        v = v->kind == UNDEFINED && other != NULL && other->kind != NONE ? other : v;
        from = to + 1;
    }
    return v;
}
