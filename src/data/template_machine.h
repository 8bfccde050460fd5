// Declares the stages of template.c: a chat template becomes tokens (template_lex.c), a tree (template_parse.c), names
// that are bound to scopes as Jinja's compiler binds them (template_scope.c), and is rendered (template.c,
// template_expression.c). Values are Python's: template_value.c, template_text.c; what is called by name:
// template_method.c, template_filter.c, template_test.c.
#ifndef MZ_DATA_TEMPLATE_MACHINE_H
#define MZ_DATA_TEMPLATE_MACHINE_H

#include "data/template.h"

#include "io/quote.h"
#include "io/utf8.h"

#ifdef MZ_FUZZING // fuzzing then reaches the limits, within a millisecond
enum { MOST_WORK = 1 << 13 };
#define MOST_BYTES ((size_t)1 << 20)
#else
enum { MOST_WORK = 1 << 21 };
#define MOST_BYTES ((size_t)64 << 20)
#endif
// The limits grow by this much for each byte of the conversation's texts, and the memory also for each of its values.
enum { WORK_A_BYTE = 64, BYTES_A_BYTE = 256, BYTES_A_VALUE = 1024 };
enum { BYTES_A_WORK = 256 }; // bytes that are searched or compared for one unit of work
enum { MOST_SOURCE = 1 << 20, MOST_NESTING = 150, MOST_DEPTH = 400, MOST_ARGS = 6, MOST_RANGE = 100000 };

typedef struct value value;
typedef struct node node;
typedef struct scope scope;
typedef struct machine machine;

// --- values ---------------------------------------------------------------------------------------------------------
typedef enum value_kind {
    UNDEFINED,
    NONE,
    BOOLEAN,
    INTEGER,
    REAL,
    STRING,
    LIST,
    TUPLE,
    RANGE,
    VIEW,     // a view of a map: items(), keys(), values()
    ITERATOR, // what a generator yields, once
    MAP,
    NAMESPACE,
    MACRO,
    FUNCTION,
    METHOD,
    LOOP
} value_kind;

typedef struct environment { // a scope's variables while it runs; NULL: not assigned
    struct environment *up;
    const value *slot[];
} environment;

typedef struct arguments {
    const value **at;
    const char **name; // NULL: by position
    size_t *length;
    size_t n, space;
} arguments;

typedef const value *called(machine *m, const value *self, const value **a);
typedef struct callee { // a filter, a test, a method or a function
    const char *name;   // or several: "eq equalto =="
    const char *params; // "a b c"; "/…": by position only; NULL: any, which it binds itself
    size_t required;
    called *run; // one of the next three runs it; if all are NULL it is not supported
    const value *(*run_as)(machine *m, const value *self, const value **a, int how);  // one function for several rows
    const value *(*bind)(machine *m, const value *self, const arguments *a, int how); // used where params is NULL
    int how;
} callee;
#define RUNS(name_, params_, required_, run_)                                                                          \
    { .name = (name_), .params = (params_), .required = (required_), .run = (run_) }
#define RUNS_AS(name_, params_, required_, run_as_, how_)                                                              \
    { .name = (name_), .params = (params_), .required = (required_), .run_as = (run_as_), .how = (how_) }
#define BINDS(name_, bind_, how_)                                                                                      \
    { .name = (name_), .bind = (bind_), .how = (how_) }
#define NOT_SUPPORTED(name_)                                                                                           \
    { .name = (name_), .params = "" }

typedef struct loop {
    const value **at; // the items that are still to come
    int64_t n, p;
    int64_t index0, length, depth; // length -1: it was not asked for
    const value *before, *current, *after, *changed;
    const node *of;
    environment *scope, *test; // scope: where a recursive loop is called; test: that of the loop's condition
} loop;

struct value {
    value_kind kind;
    bool used;    // of an ITERATOR
    bool ascii;   // of a STRING
    int message;  // of a MAP: the number of its message in the conversation, from 1; 0: none
    int64_t n;    // the value of a BOOLEAN or INTEGER; the number of elements
    double real;  // of a REAL
    size_t space; // of a MAP or NAMESPACE: the capacity
    union {
        const char *text; // of a STRING
        const value **at; // the elements
        const node *macro;
        const callee *callee; // of a FUNCTION or METHOD
        loop *loop;
    };
    union {
        const char *told;   // of a STRING: the marks of its bytes
        const value **key;  // of a MAP or NAMESPACE
        environment *scope; // of a MACRO: the scope of its definition
        const value *self;  // of a METHOD; what a function remembers
    };
    size_t length; // of a STRING, in bytes
};

// --- the tree -------------------------------------------------------------------------------------------------------
typedef enum node_kind {
    // statements
    OUTPUT,
    FOR,
    IF,
    MACRO_DEF,
    CALL_BLOCK,
    FILTER_BLOCK,
    WITH,
    SET,
    SET_BLOCK,
    GENERATION,
    BREAK,
    CONTINUE,
    // expressions
    CONSTANT,
    NAME,
    ATTRIBUTE_OF,
    TUPLE_OF,
    LIST_OF,
    MAP_OF,
    CONDITION,
    OR,
    AND,
    NOT,
    COMPARE,
    ARITHMETIC,
    CONCAT,
    NEGATE,
    CALL,
    FILTER,
    TEST,
    GETATTR,
    GETITEM,
    SLICE
} node_kind;

typedef struct nodes {
    node **at;
    size_t n, cap;
} nodes;

struct node {
    node_kind kind;
    int line;
    int op;           // ARITHMETIC, operands of COMPARE: a token; NAME: 1 if it is assigned; TEST: 1 for "is not"
    const char *name; // of a NAME, GETATTR, keyword argument or method
    size_t length;
    const value *is;      // of a CONSTANT
    const callee *callee; // of a FILTER or TEST
    node *a, *b, *c;      // operands; a loop's target, list and condition
    nodes kids;           // elements, arguments or targets
    nodes body, other;    // the statements inside
    bool recursive, takes_loop;
    bool takes_caller, takes_varargs, takes_kwargs; // of a MACRO_DEF
    bool star, stars;                               // the argument is *a or **a
    scope *scope, *test_scope, *else_scope;
    int up, slot; // NAME: which variable; MACRO_DEF: where it is kept
};

typedef enum load_kind { PARAM, RESOLVE, ALIAS, UNSET } load_kind;
typedef struct symbol {
    const char *name;
    size_t length;
    bool present, stored;
    load_kind load;
    int up, slot; // ALIAS: which outer variable
} symbol;

struct scope {
    scope *parent;
    symbol *at;
    size_t n, cap;
};

typedef enum token_kind {
    T_END,
    T_DATA,
    T_PRINT,
    T_PRINT_END,
    T_TAG,
    T_TAG_END,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_REAL,
    // operators
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
    T_IN,
    T_NOTIN
} token_kind;

typedef struct token {
    token_kind kind;
    int line;
    const char *text; // of a name or of data
    size_t length;
    const value *is; // of a STRING, INTEGER or REAL
} token;

// --- the machine ----------------------------------------------------------------------------------------------------
typedef struct block { // a block of the arena
    struct block *next;
    size_t used, size;
} block;

typedef enum leaving { STAY, LEAVE_LOOP, NEXT_TURN } leaving;

struct machine {
    const char *where;
    char *source; // its line ends are \n
    size_t n;
    int line; // the line that is read or evaluated
    token *tokens;
    size_t n_tokens, cap_tokens, p;
    int nesting, loops; // depths during parsing
    scope *root;
    const value *values; // what the template may name
    const value *input;  // the input of a filter block
    int depth;
    int64_t work, most_work;
    size_t bytes, most_bytes;
    block *blocks;
    struct {
        char *text, *told;
        size_t used, cap;
    } tail; // the string that was joined last, which may grow in place
    mz_marked_text *out, *root_out;
    mz_template_spans *spans;
    mezzo_status status;
};

extern const value mz_tpl_undefined, mz_tpl_none, mz_tpl_yes, mz_tpl_no;

// Reports an error; the first one stays. Later values are undefined.
#define refuse(m, code, ...)                                                                                           \
    do {                                                                                                               \
        if ((m)->status == MEZZO_OK) {                                                                                 \
            mz_fail((code), __VA_ARGS__);                                                                              \
            (m)->status = mz_context((code), "%s: line %d", (m)->where, (m)->line);                                    \
        }                                                                                                              \
    } while (0)

// Charges the reading of some bytes, and fails where the template has read too many.
void mz_tpl_spend(machine *m, size_t bytes);
// Allocates zeroed memory until the rendering is over; NULL without memory, or after an error.
void *mz_tpl_room(machine *m, size_t bytes);
// Grows an array of n elements by one; on an error it returns false, and the array stays.
#define MZ_TPL_GROW(m, at, n, cap) mz_tpl_grow((m), (void **)&(at), (n), &(cap), sizeof *(at))
bool mz_tpl_grow(machine *m, void **at, size_t n, size_t *cap, size_t size);

// --- values: template_value.c
value *mz_tpl_new_value(machine *m, value_kind kind);
const value *mz_tpl_truth(bool is);
const value *mz_tpl_integer(machine *m, int64_t n);
const value *mz_tpl_real(machine *m, double x);
// Makes a LIST, TUPLE, … of n values that the caller sets next; NULL after an error.
value *mz_tpl_list(machine *m, value_kind kind, size_t n);
// Makes a list of that kind with the keys and values of a map as tuples; NULL after an error.
value *mz_tpl_pairs(machine *m, const value *v, value_kind kind);
value *mz_tpl_map(machine *m, value_kind kind, size_t space);
void mz_tpl_put(machine *m, value *map, const value *key, const value *is);
const value *mz_tpl_from_json(machine *m, const json_t *j, bool told, int depth);
bool mz_tpl_is_true(const value *v);
bool mz_tpl_is_number(const value *v);   // true for BOOLEAN, too
bool mz_tpl_is_sequence(const value *v); // a LIST, TUPLE or RANGE
bool mz_tpl_equal(machine *m, const value *a, const value *b);
// Compares in Python's order: the result is below 0, 0, or above 0; values without an order are an error.
int mz_tpl_compare(machine *m, const value *a, const value *b);
bool mz_tpl_contains(machine *m, const value *in, const value *v);
// Returns the value of a key; NULL: there is none.
const value *mz_tpl_member(machine *m, const value *map, const value *key);
const value *mz_tpl_member_named(machine *m, const value *map, const char *name, size_t n);
// Returns what a loop over the value yields, as a LIST; fails for a value that cannot be iterated.
const value *mz_tpl_items(machine *m, const value *v);
const char *mz_tpl_kind_name(const value *v); // the name of its type, for messages
const value *mz_tpl_arithmetic(machine *m, token_kind op, const value *a, const value *b);

// --- texts: template_text.c
// Makes a string; told NULL: it is the template's own text.
const value *mz_tpl_string(machine *m, const char *text, const char *told, size_t n);
const value *mz_tpl_word(machine *m, const char *text);                       // NUL-terminated
const value *mz_tpl_part(machine *m, const value *v, size_t from, size_t to); // offsets in bytes
size_t mz_tpl_characters(machine *m, const value *v);
size_t mz_tpl_byte_of(machine *m, const value *v, size_t character); // where the character begins
const value *mz_tpl_slice(machine *m, const value *v, const value *from, const value *to, const value *step);
bool mz_tpl_is_text(const value *v, const char *text, size_t n);
// Returns where `what` begins in `in`, from byte `from` on; -1.
int64_t mz_tpl_find(machine *m, const value *in, const value *what, size_t from);
const value *mz_tpl_joined(machine *m, const value *a, const value *b);
bool mz_tpl_is_space(uint32_t code);                        // as str.isspace
uint32_t mz_tpl_code(const value *v, size_t at, size_t *n); // the code point at a byte, and its width
// Append to a text under construction; mz_tpl_said makes it a string and frees it.
void mz_tpl_say(mz_marked_text *out, const char *text, const char *told, size_t n); // told NULL: the template's own
                                                                                    // text
void mz_tpl_say_value(machine *m, mz_marked_text *out, const value *v);             // appends str() of the value
const value *mz_tpl_said(machine *m, mz_marked_text *out);
const value *mz_tpl_printed(machine *m, const value *v);                  // returns str() of the value
const value *mz_tpl_to_json(machine *m, const value *v, const value **a); // the arguments ensure_ascii, indent,
                                                                          // separators, sort_keys
// Returns what strftime writes of the local time.
const value *mz_tpl_time(machine *m, const value *format);

// --- calls: template_method.c, template_filter.c, template_test.c
const callee *mz_tpl_filter(machine *m, const char *name, size_t n); // NULL: there is none of that name
const callee *mz_tpl_test(machine *m, const char *name, size_t n);
const callee *mz_tpl_function(machine *m, const char *name, size_t n);
// Finds the row that has this name among its names, and gives it this one; the last row has none. NULL: there is none.
const callee *mz_tpl_row(machine *m, const callee *rows, const char *name, size_t n);
const value *mz_tpl_call_row(machine *m, const char *what, const callee *row, const value *self, const arguments *a);
const value *mz_tpl_getattr(machine *m, const value *v, const char *name, size_t n);
const value *mz_tpl_getitem(machine *m, const value *v, const value *key);
// Returns the attribute 'a.0.b' for |map, |sort …; `other` (may be NULL or none) replaces an undefined one.
const value *mz_tpl_attribute(machine *m, const value *v, const value *path, const value *other);
int64_t mz_tpl_int(machine *m, const value *v, int64_t other); // NULL: `other`
const value *mz_tpl_cased(machine *m, const value *v, int how);
enum { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_SWAP, CASE_JINJA_TITLE };
const value *mz_tpl_split_lines(machine *m, const value *v, bool keep);
const value *mz_tpl_replace(machine *m, const value *v, const value *what, const value *with, int64_t count);
const value *mz_tpl_strip(machine *m, const value *v, const value *set, bool left, bool right);
const value *mz_tpl_join(machine *m, const value *by, const value *items, bool any);

// --- expressions and statements
bool mz_tpl_lex(machine *m);
nodes mz_tpl_parse(machine *m);
void mz_tpl_bind(machine *m, nodes *body);                                // binds names to scopes
bool mz_tpl_mentions(const nodes *list, const char *name, bool assigned); // whether the list reads, or assigns, a name
const value *mz_tpl_evaluate(machine *m, const node *x, environment *e);
const value *mz_tpl_call(machine *m, const value *f, const arguments *a);
const value *mz_tpl_call_macro(machine *m, const value *macro, const arguments *a);
const value *mz_tpl_loop_again(machine *m, const value *loop, const value *items); // evaluates loop(…)
const value *mz_tpl_loop_member(machine *m, const value *loop, const char *name, size_t n);

#endif
