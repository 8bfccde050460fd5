// Implements the values of a chat template: Python's truth, equality, order and arithmetic. All live in one arena.
#include <math.h>

#include "data/template_machine.h"

const value mz_tpl_undefined = {.kind = UNDEFINED}, mz_tpl_none = {.kind = NONE},
            mz_tpl_yes = {.kind = BOOLEAN, .n = 1}, mz_tpl_no = {.kind = BOOLEAN};

void *mz_tpl_room(machine *m, size_t bytes) {
    enum { BLOCK = 1 << 14 };
    if (m->status != MEZZO_OK)
        return NULL;
    bytes = mz_align_up(bytes + 1, 16);
    m->bytes += bytes;
    if (m->bytes > m->most_bytes) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template takes more than %zu MiB of memory", m->most_bytes >> 20);
        return NULL;
    }
    block *b = m->blocks;
    if (b == NULL || b->size - b->used < bytes) {
        const size_t size = bytes > BLOCK ? bytes : BLOCK, head = mz_align_up(sizeof *b, 16);
        b = mz_alloc(1, head + size);
        if (b == NULL) {
            m->status = MEZZO_ERR_MEMORY;
            return NULL;
        }
        *b = (block){m->blocks, head, head + size};
        m->blocks = b;
    }
    b->used += bytes;
    return (char *)b + b->used - bytes;
}

bool mz_tpl_grow(machine *m, void **at, size_t n, size_t *cap, size_t size) {
    if (n < *cap)
        return true;
    const size_t more = *cap > 0 ? 2 * *cap : 4;
    void *room = mz_tpl_room(m, more * size);
    if (room == NULL)
        return false;
    if (n > 0)
        memcpy(room, *at, n * size);
    *at = room;
    *cap = more;
    return true;
}

void mz_tpl_spend(machine *m, size_t bytes) {
    m->work += 1 + (int64_t)(bytes / BYTES_A_WORK);
    if (m->work > m->most_work)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template runs too long");
}

value *mz_tpl_new_value(machine *m, value_kind kind) {
    value *v = mz_tpl_room(m, sizeof *v);
    if (v != NULL)
        v->kind = kind;
    return v;
}

const value *mz_tpl_truth(bool is) {
    return is ? &mz_tpl_yes : &mz_tpl_no;
}

const value *mz_tpl_integer(machine *m, int64_t n) {
    value *v = mz_tpl_new_value(m, INTEGER);
    if (v == NULL)
        return &mz_tpl_undefined;
    v->n = n;
    return v;
}

const value *mz_tpl_real(machine *m, double x) {
    value *v = mz_tpl_new_value(m, REAL);
    if (v == NULL)
        return &mz_tpl_undefined;
    v->real = x;
    return v;
}

value *mz_tpl_list(machine *m, value_kind kind, size_t n) {
    value *v = mz_tpl_new_value(m, kind);
    if (v == NULL || (v->at = mz_tpl_room(m, n * sizeof *v->at)) == NULL)
        return NULL;
    v->n = (int64_t)n;
    return v;
}

value *mz_tpl_map(machine *m, value_kind kind, size_t space) {
    value *v = mz_tpl_list(m, kind, space);
    if (v == NULL || (v->key = mz_tpl_room(m, space * sizeof *v->key)) == NULL)
        return NULL;
    v->n = 0;
    v->space = space;
    return v;
}

void mz_tpl_put(machine *m, value *map, const value *key, const value *is) {
    if (m->status != MEZZO_OK)
        return;
    mz_tpl_spend(m, (size_t)map->n * sizeof(value));
    for (int64_t i = 0; i < map->n; i++)
        if (mz_tpl_equal(m, map->key[i], key)) {
            map->at[i] = is;
            return;
        }
    if ((size_t)map->n == map->space) {
        value *more = mz_tpl_map(m, map->kind, 2 * map->space + 4);
        if (more == NULL)
            return;
        if (map->n > 0) {
            memcpy(more->at, map->at, map->space * sizeof *map->at);
            memcpy(more->key, map->key, map->space * sizeof *map->key);
        }
        map->at = more->at;
        map->key = more->key;
        map->space = more->space;
    }
    map->key[map->n] = key;
    map->at[map->n++] = is;
}

static const value *map_from_json(machine *m, const json_t *j, bool told, int depth) {
    value *v = mz_tpl_map(m, MAP, json_object_size(j));
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)j, key, member) {
        if (v == NULL)
            break;
        v->key[v->n] = mz_tpl_word(m, key);
        v->at[v->n++] = mz_tpl_from_json(m, member, told && strcmp(key, "role") != 0, depth + 1);
    }
    return v != NULL ? v : &mz_tpl_undefined;
}

const value *mz_tpl_from_json(machine *m, const json_t *j, bool told, int depth) {
    m->most_bytes += BYTES_A_VALUE;
    if (j == NULL || json_is_null(j))
        return &mz_tpl_none;
    if (depth > MOST_NESTING)
        refuse(m, MEZZO_ERR_FORMAT, "the conversation is nested too deep");
    if (json_is_boolean(j))
        return mz_tpl_truth(json_is_true(j));
    if (json_is_integer(j))
        return mz_tpl_integer(m, json_integer_value(j));
    if (json_is_real(j))
        return mz_tpl_real(m, json_real_value(j));
    if (json_is_string(j)) {
        const size_t n = json_string_length(j);
        m->most_bytes += n * BYTES_A_BYTE;
        m->most_work += (int64_t)(n * WORK_A_BYTE);
        char *marks = told ? mz_tpl_room(m, n) : NULL;
        if (told && marks == NULL)
            return &mz_tpl_undefined;
        if (told)
            memset(marks, MZ_MARK_TOLD, n);
        return mz_tpl_string(m, json_string_value(j), marks, n);
    }
    if (json_is_object(j))
        return map_from_json(m, j, told, depth);
    const size_t n = json_array_size(j);
    value *v = mz_tpl_list(m, LIST, n);
    for (size_t i = 0; v != NULL && i < n; i++)
        v->at[i] = mz_tpl_from_json(m, json_array_get(j, i), told, depth + 1);
    return v != NULL ? v : &mz_tpl_undefined;
}

// --- Python's questions ---------------------------------------------------------------------------------------------
const char *mz_tpl_kind_name(const value *v) {
    static const char *const names[] = {[UNDEFINED] = "an undefined value",
                                        [NONE] = "none",
                                        [BOOLEAN] = "a boolean",
                                        [INTEGER] = "an integer",
                                        [REAL] = "a number",
                                        [STRING] = "a string",
                                        [LIST] = "a list",
                                        [TUPLE] = "a tuple",
                                        [RANGE] = "a range",
                                        [VIEW] = "a view of a map",
                                        [ITERATOR] = "an iterator",
                                        [MAP] = "a map",
                                        [NAMESPACE] = "a namespace",
                                        [MACRO] = "a macro",
                                        [FUNCTION] = "a function",
                                        [METHOD] = "a method",
                                        [LOOP] = "a loop"};
    return names[v->kind];
}

bool mz_tpl_is_true(const value *v) {
    switch (v->kind) {
    case UNDEFINED:
    case NONE:
        return false;
    case STRING:
        return v->length > 0;
    case REAL:
        return v->real != 0;
    case BOOLEAN:
    case INTEGER:
    case LIST:
    case TUPLE:
    case RANGE:
    case VIEW:
    case MAP:
        return v->n != 0;
    default:
        return true;
    }
}

bool mz_tpl_is_number(const value *v) {
    return v->kind == INTEGER || v->kind == BOOLEAN || v->kind == REAL;
}

bool mz_tpl_is_sequence(const value *v) {
    return v->kind == LIST || v->kind == TUPLE || v->kind == RANGE;
}

static long double exact(const value *v) { // 64 bits of precision hold both an int64 and a double
    return v->kind == REAL ? (long double)v->real : (long double)v->n;
}

static bool equal(machine *m, const value *a, const value *b, int depth) {
    mz_tpl_spend(m, 0);
    if (m->status != MEZZO_OK)
        return false;
    if (mz_tpl_is_number(a) && mz_tpl_is_number(b))
        return a->kind == REAL || b->kind == REAL ? exact(a) == exact(b) : a->n == b->n;
    if (a->kind != b->kind)
        return false;
    if (a->kind == STRING) {
        mz_tpl_spend(m, a->length == b->length ? a->length : 0);
        return mz_tpl_is_text(a, b->text, b->length);
    }
    if (a->kind == UNDEFINED || a->kind == NONE || a == b)
        return true;
    if (depth > MOST_NESTING)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template compares lists that are too deep");
    if (a->kind == VIEW || a->kind == METHOD)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "comparing %s is not supported", mz_tpl_kind_name(a));
    if ((!mz_tpl_is_sequence(a) && a->kind != MAP) || a->n != b->n)
        return false;
    for (int64_t i = 0; i < a->n; i++) {
        const value *other = a->kind == MAP ? mz_tpl_member(m, b, a->key[i]) : b->at[i];
        if (m->status != MEZZO_OK || other == NULL || !equal(m, a->at[i], other, depth + 1))
            return false;
    }
    return true;
}

bool mz_tpl_equal(machine *m, const value *a, const value *b) {
    return equal(m, a, b, 0);
}

static void no_order(machine *m, const value *a, const value *b) {
    refuse(m, MEZZO_ERR_FORMAT, "%s and %s have no order", mz_tpl_kind_name(a), mz_tpl_kind_name(b));
}

static int compare(machine *m, const value *a, const value *b, int depth) {
    mz_tpl_spend(m, 0);
    if (mz_tpl_is_number(a) && mz_tpl_is_number(b)) {
        if (isnan((double)exact(a)) || isnan((double)exact(b)))
            refuse(m, MEZZO_ERR_UNSUPPORTED, "comparing a value that is not a number is not supported");
        return exact(a) < exact(b) ? -1 : exact(a) > exact(b);
    }
    if (a->kind == STRING && b->kind == STRING) {
        const size_t n = a->length < b->length ? a->length : b->length;
        mz_tpl_spend(m, n);
        const int is = n > 0 ? memcmp(a->text, b->text, n) : 0;
        return is != 0 ? is : a->length < b->length ? -1 : a->length > b->length;
    }
    if (a->kind != b->kind || (a->kind != LIST && a->kind != TUPLE)) {
        no_order(m, a, b);
        return 0;
    }
    if (depth > MOST_NESTING)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template compares lists that are too deep");
    for (int64_t i = 0; i < a->n && i < b->n && m->status == MEZZO_OK; i++)
        if (!equal(m, a->at[i], b->at[i], depth + 1))
            return compare(m, a->at[i], b->at[i], depth + 1);
    return a->n < b->n ? -1 : a->n > b->n;
}

int mz_tpl_compare(machine *m, const value *a, const value *b) {
    return compare(m, a, b, 0);
}

static bool can_be_key(machine *m, const value *key) {
    bool can = key->kind != LIST && key->kind != MAP;
    for (int64_t i = 0; key->kind == TUPLE && i < key->n; i++)
        can &= key->at[i]->kind != LIST && key->at[i]->kind != MAP;
    if (!can)
        refuse(m, MEZZO_ERR_FORMAT, "%s cannot be a key", mz_tpl_kind_name(key));
    return can;
}

const value *mz_tpl_member(machine *m, const value *map, const value *key) {
    if (key->kind == STRING)
        return mz_tpl_member_named(m, map, key->text, key->length);
    if (!can_be_key(m, key))
        return NULL;
    for (int64_t i = 0; i < map->n; i++)
        if (mz_tpl_equal(m, map->key[i], key))
            return map->at[i];
    return NULL;
}

const value *mz_tpl_member_named(machine *m, const value *map, const char *name, size_t n) {
    mz_tpl_spend(m, (size_t)map->n * 8);
    for (int64_t i = 0; i < map->n; i++)
        if (mz_tpl_is_text(map->key[i], name, n))
            return map->at[i];
    return NULL;
}

static const value *characters(machine *m, const value *v) {
    value *list = mz_tpl_list(m, LIST, mz_tpl_characters(m, v));
    size_t p = 0, n;
    for (int64_t i = 0; list != NULL && i < list->n; i++, p += n) {
        (void)mz_tpl_code(v, p, &n);
        list->at[i] = mz_tpl_part(m, v, p, p + n);
    }
    return list != NULL ? list : &mz_tpl_undefined;
}

const value *mz_tpl_items(machine *m, const value *v) {
    static const value *const nothing[1];
    static const value empty = {.kind = LIST, .at = (const value **)(uintptr_t)nothing};
    switch (v->kind) {
    case UNDEFINED:
        return &empty;
    case STRING:
        return characters(m, v);
    case LIST:
    case TUPLE:
    case RANGE:
    case VIEW:
        return v;
    case ITERATOR:
        if (v->used)
            refuse(m, MEZZO_ERR_UNSUPPORTED, "using what a filter gives one by one a second time is not supported");
        ((value *)(uintptr_t)v)->used = true; // the arena owns it, since no constant is an iterator
        return v;
    case MAP: {
        value *keys = mz_tpl_new_value(m, LIST);
        if (keys == NULL)
            return &mz_tpl_undefined;
        keys->at = v->key;
        keys->n = v->n;
        return keys;
    }
    case LOOP:
        refuse(m, MEZZO_ERR_UNSUPPORTED, "going through a loop is not supported");
        return &empty;
    default:
        refuse(m, MEZZO_ERR_FORMAT, "%s is no list", mz_tpl_kind_name(v));
        return &empty;
    }
}

bool mz_tpl_contains(machine *m, const value *in, const value *v) {
    if (in->kind == STRING) {
        if (v->kind != STRING)
            refuse(m, MEZZO_ERR_FORMAT, "%s in a string", mz_tpl_kind_name(v));
        return v->kind == STRING && mz_tpl_find(m, in, v, 0) >= 0;
    }
    if (in->kind == MAP)
        return mz_tpl_member(m, in, v) != NULL;
    const value *items = mz_tpl_items(m, in);
    for (int64_t i = 0; i < items->n && m->status == MEZZO_OK; i++)
        if (items->at[i] == v || mz_tpl_equal(m, items->at[i], v))
            return m->status == MEZZO_OK;
    return false;
}

// --- arithmetic -----------------------------------------------------------------------------------------------------
static const value *too_large(machine *m) {
    refuse(m, MEZZO_ERR_UNSUPPORTED, "numbers beyond 64 bits are not supported");
    return &mz_tpl_undefined;
}

static const value *power(machine *m, int64_t a, int64_t b) {
    int64_t n = 1;
    if (b < 0) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "a negative exponent is not supported");
        return &mz_tpl_undefined;
    }
    if (a == 0 || a == 1 || a == -1)
        return mz_tpl_integer(m, b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a);
    for (; b > 0; b--)
        if (__builtin_mul_overflow(n, a, &n))
            return too_large(m);
    return mz_tpl_integer(m, n);
}

static const value *quotient(machine *m, token_kind op, int64_t a, int64_t b) {
    const int64_t exactly = INT64_C(1) << 53;
    if (b == 0) {
        refuse(m, MEZZO_ERR_FORMAT, "a division by zero");
        return &mz_tpl_undefined;
    }
    if (op == T_DIV)
        return a > exactly || a < -exactly || b > exactly || b < -exactly ? too_large(m)
                                                                          : mz_tpl_real(m, (double)a / (double)b);
    if (b == -1)
        return a == INT64_MIN ? too_large(m) : mz_tpl_integer(m, op == T_MOD ? 0 : -a);
    const bool down = a % b != 0 && (a % b < 0) != (b < 0);
    return mz_tpl_integer(m, op == T_MOD ? a % b + (down ? b : 0) : a / b - down);
}

static const value *of_integers(machine *m, token_kind op, int64_t a, int64_t b) {
    int64_t n = 0;
    if (op == T_POW)
        return power(m, a, b);
    if (op == T_DIV || op == T_FLOORDIV || op == T_MOD)
        return quotient(m, op, a, b);
    const bool over = op == T_ADD   ? __builtin_add_overflow(a, b, &n)
                      : op == T_SUB ? __builtin_sub_overflow(a, b, &n)
                                    : __builtin_mul_overflow(a, b, &n);
    return over ? too_large(m) : mz_tpl_integer(m, n);
}

static const value *of_reals(machine *m, token_kind op, const value *x, const value *y) {
    const double a = x->kind == REAL ? x->real : (double)x->n, b = y->kind == REAL ? y->real : (double)y->n;
    if (op == T_ADD || op == T_SUB || op == T_MUL)
        return mz_tpl_real(m, op == T_ADD ? a + b : op == T_SUB ? a - b : a * b);
    if (op == T_DIV && b != 0)
        return mz_tpl_real(m, a / b);
    if (b == 0 && op != T_POW)
        refuse(m, MEZZO_ERR_FORMAT, "a division by zero");
    refuse(m, MEZZO_ERR_UNSUPPORTED, "//, %% and ** of numbers with a point are not supported");
    return &mz_tpl_undefined;
}

static const value *repeated(machine *m, const value *v, int64_t times) {
    const size_t n = v->kind == STRING ? v->length : (size_t)v->n, k = times > 0 ? (size_t)times : 0;
    if (n > 0 && k > m->most_bytes / n) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template takes more than %zu MiB of memory", m->most_bytes >> 20);
        return &mz_tpl_undefined;
    }
    if (v->kind == STRING) {
        mz_marked_text out = {0};
        for (size_t i = 0; i < k && n > 0; i++)
            mz_tpl_say(&out, v->text, v->told, v->length);
        return mz_tpl_said(m, &out);
    }
    value *list = mz_tpl_list(m, v->kind, n * k);
    for (size_t i = 0; list != NULL && i < n * k; i++)
        list->at[i] = v->at[i % n];
    return list != NULL ? list : &mz_tpl_undefined;
}

static const value *chained(machine *m, const value *a, const value *b) {
    value *list = mz_tpl_list(m, a->kind, (size_t)(a->n + b->n));
    for (int64_t i = 0; list != NULL && i < list->n; i++)
        list->at[i] = i < a->n ? a->at[i] : b->at[i - a->n];
    return list != NULL ? list : &mz_tpl_undefined;
}

const value *mz_tpl_arithmetic(machine *m, token_kind op, const value *a, const value *b) {
    if (m->status != MEZZO_OK)
        return &mz_tpl_undefined;
    if (mz_tpl_is_number(a) && mz_tpl_is_number(b))
        return a->kind == REAL || b->kind == REAL ? of_reals(m, op, a, b) : of_integers(m, op, a->n, b->n);
    if (op == T_ADD && a->kind == STRING && b->kind == STRING)
        return mz_tpl_joined(m, a, b);
    if (op == T_ADD && a->kind == b->kind && (a->kind == LIST || a->kind == TUPLE))
        return chained(m, a, b);
    if (op == T_MUL && (b->kind == STRING || b->kind == LIST || b->kind == TUPLE)) {
        const value *other = a;
        a = b;
        b = other;
    }
    if (op == T_MUL && (b->kind == INTEGER || b->kind == BOOLEAN) &&
        (a->kind == STRING || a->kind == LIST || a->kind == TUPLE))
        return repeated(m, a, b->n);
    if (op == T_MOD && a->kind == STRING)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "%% of a string is not supported");
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};
    refuse(m, MEZZO_ERR_FORMAT, "%s between %s and %s", signs[op - T_ADD], mz_tpl_kind_name(a), mz_tpl_kind_name(b));
    return &mz_tpl_undefined;
}
