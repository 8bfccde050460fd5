// The inside of template.c: a machine that reads a template and evaluates it at once. template_value.c has its values,
// template_expression.c what stands in a tag. A template is short, and so are conversations.
#ifndef MZ_DATA_TEMPLATE_MACHINE_H
#define MZ_DATA_TEMPLATE_MACHINE_H

#include "data/template.h"

#include "io/quote.h"

#ifdef MZ_FUZZING // reaches the bounds, and within a millisecond
enum { MOST_WORK = 1 << 12 };
#define MOST_BYTES ((size_t)1 << 20)
#else
enum { MOST_WORK = 1 << 21 };
#define MOST_BYTES ((size_t)64 << 20)
#endif
enum { BYTES_A_WORK = 256 }; // that are searched or compared
enum { MOST_SOURCE = 1 << 20, MOST_DEPTH = 64, MOST_ARGS = 8, MOST_VARS = 256 };

typedef enum type { UNDEFINED, NONE, BOOLEAN, NUMBER, STRING, LIST, MAP, MACRO } type;

typedef struct value value;
struct value {
    type kind;
    int64_t n;         // BOOLEAN, NUMBER; elements of LIST and MAP; the body of a MACRO: its first piece
    const char *text;  // STRING
    const char *told;  // STRING: as mz_marked_text
    size_t length;     // STRING
    const value **at;  // LIST, MAP
    const value **key; // MAP: strings
    size_t space;      // MAP that can grow (a namespace)
};

typedef struct block { // of the arena
    struct block *next;
} block;

typedef enum piece_kind { TEXT, EXPRESSION, STATEMENT } piece_kind;
typedef struct piece { // of the template: text, {{ an expression }}, {% a statement %}
    piece_kind kind;
    size_t from, to;
} piece;

typedef struct variable {
    const char *name;
    size_t length;
    const value *is;
} variable;

typedef struct arguments {
    const value *at[MOST_ARGS];
    const char *name[MOST_ARGS]; // NULL: by place
    size_t length[MOST_ARGS];
    int n;
} arguments;

typedef struct machine {
    const char *where, *source;
    size_t n;
    piece *pieces;
    size_t n_pieces, cap_pieces, at; // at: the piece under way
    size_t p, end;                   // in the expression under way
    int skip, dead, depth;           // skip: expressions are read, not evaluated; dead: so are pieces
    int64_t work;
    variable vars[MOST_VARS];
    int n_vars, frame; // frame: where this loop's or macro's begin
    block *blocks;
    size_t bytes;
    mz_marked_text *out;
    mezzo_status status;
} machine;

extern const value mz_tpl_undefined, mz_tpl_none, mz_tpl_yes, mz_tpl_no;

// The first error stays. Values after it are undefined.
#define refuse(m, code, ...)                                                                                           \
    do {                                                                                                               \
        if ((m)->status == MEZZO_OK) {                                                                                 \
            mz_fail((code), __VA_ARGS__);                                                                              \
            (m)->status = mz_context((code), "%s: line %d", (m)->where, mz_tpl_line_of(m));                            \
        }                                                                                                              \
    } while (0)

// What looking at so many bytes, or so many members, costs; an error where the template has looked at too many.
void mz_tpl_spend(machine *m, size_t bytes);

// --- values
int mz_tpl_line_of(const machine *m);
// Zeroed, until the rendering is over; NULL where there is none, or an error came before.
void *mz_tpl_room(machine *m, size_t bytes);
value *mz_tpl_new_value(machine *m, type kind);
const value *mz_tpl_truth(bool is);
const value *mz_tpl_number(machine *m, int64_t n);
// told NULL: the template's own.
const value *mz_tpl_string(machine *m, const char *text, const char *told, size_t n);
// Bytes from … to of a string.
const value *mz_tpl_part(machine *m, const value *v, size_t from, size_t to);
// LIST or MAP of n values, with room for `space`; NULL: an error.
value *mz_tpl_list(machine *m, type kind, size_t n, size_t space);
const value *mz_tpl_from_json(machine *m, const json_t *j, bool told, int depth);
bool mz_tpl_is_text(const value *v, const char *text, size_t n);
// NULL: none of that name.
const value *mz_tpl_member(machine *m, const value *v, const char *name, size_t n);
bool mz_tpl_is_true(const value *v);
bool mz_tpl_is_number(const value *v);
bool mz_tpl_equal(machine *m, const value *a, const value *b);
// Where `what` begins in `in`, from `from` on; -1.
int64_t mz_tpl_find(machine *m, const value *in, const value *what, size_t from);
const value *mz_tpl_joined(machine *m, const value *a, const value *b);
// What {{ }} prints of a value, a string.
const value *mz_tpl_printed(machine *m, const value *v);
// To m->out.
void mz_tpl_print(machine *m, const value *v);
// Undefined where there is none.
const value *mz_tpl_lookup(const machine *m, const char *name, size_t n);
// In the loop or macro under way.
void mz_tpl_assign(machine *m, const char *name, size_t n, const value *is);

// --- expressions
char mz_tpl_peek(machine *m);
// Reads it where it comes next.
bool mz_tpl_take(machine *m, const char *sign);
bool mz_tpl_take_word(machine *m, const char *word);
// … into the template; n 0 and an error where none comes.
const char *mz_tpl_take_name(machine *m, size_t *n);
// … or is refused.
void mz_tpl_need(machine *m, const char *sign);
void mz_tpl_unexpected(machine *m, const char *wanted);
// A name of n letters is `is`.
bool mz_tpl_named(const char *name, size_t n, const char *is);
// Undefined behind an error, and where m->skip is set.
const value *mz_tpl_expression(machine *m);
void mz_tpl_at_end(machine *m);

// --- pieces
// From m->at to the statement that ends or divides its block, unread.
void mz_tpl_run(machine *m);

#endif
