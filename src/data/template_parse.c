// Builds the tree of a chat template by the grammar of Jinja's parser.
#include "data/template_machine.h"

static node *expression(machine *m);
static node *unary(machine *m, bool filters);
static node *chain(machine *m, node *x, bool filters);
static nodes statements(machine *m, const char *const *ends);

// --- tokens ---------------------------------------------------------------------------------------------------------
static const token *look(const machine *m, size_t ahead) {
    static const token end;
    return m->status == MEZZO_OK && m->p + ahead < m->n_tokens ? &m->tokens[m->p + ahead] : &end;
}

static token_kind kind(const machine *m) {
    return look(m, 0)->kind;
}

static const token *next(machine *m) {
    const token *t = look(m, 0);
    m->line = t->line > 0 ? t->line : m->line;
    m->p += t->kind != T_END;
    return t;
}

static bool named(const token *t, const char *name) {
    return t->kind == T_NAME && t->length == strlen(name) && memcmp(t->text, name, t->length) == 0;
}

static bool skip(machine *m, token_kind what) {
    if (kind(m) != what || what == T_END)
        return false;
    next(m);
    return true;
}

static bool skip_word(machine *m, const char *word) {
    if (!named(look(m, 0), word))
        return false;
    next(m);
    return true;
}

static void unexpected(machine *m, const char *wanted) {
    const token *t = look(m, 0);
    m->line = t->line > 0 ? t->line : m->line;
    if (t->text != NULL)
        refuse(m, MEZZO_ERR_FORMAT, "%s expected at %s", wanted, mz_quote_bytes(t->text, t->length).text);
    else
        refuse(m, MEZZO_ERR_FORMAT, "%s expected %s", wanted,
               t->kind == T_TAG_END || t->kind == T_PRINT_END ? "before the end of the tag"
               : t->kind == T_END                             ? "before the end of the template"
                                                              : "before a value");
}

static void need(machine *m, token_kind what, const char *sign) {
    if (!skip(m, what))
        unexpected(m, sign);
}

static void need_name(machine *m, node *x) {
    if (kind(m) != T_NAME)
        unexpected(m, "a name");
    const token *t = next(m);
    x->name = t->text;
    x->length = t->length;
}

// --- nodes ----------------------------------------------------------------------------------------------------------
static node *add_node(machine *m, node_kind what) {
    static _Thread_local node none; // after an error it is returned but not read
    node *x = mz_tpl_room(m, sizeof *x);
    if (x == NULL) {
        none = (node){.kind = CONSTANT, .is = &mz_tpl_undefined};
        return &none;
    }
    x->kind = what;
    x->line = m->line;
    return x;
}

static void push(machine *m, nodes *list, node *x) {
    if (m->status == MEZZO_OK && MZ_TPL_GROW(m, list->at, list->n, list->cap))
        list->at[list->n++] = x;
}

static node *constant(machine *m, const value *is) {
    node *x = add_node(m, CONSTANT);
    x->is = is != NULL ? is : &mz_tpl_undefined;
    return x;
}

static node *operation(machine *m, node_kind what, int op, node *a, node *b) {
    node *x = add_node(m, what);
    x->op = op;
    x->a = a;
    x->b = b;
    return x;
}

static bool deeper(machine *m) {
    if (++m->nesting > MOST_NESTING)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template is nested too deep");
    return m->status == MEZZO_OK;
}

// --- expressions ----------------------------------------------------------------------------------------------------
static void check_keywords(machine *m, const nodes *args) {
    for (size_t i = 0; i < args->n && m->status == MEZZO_OK; i++) {
        mz_tpl_spend(m, i * sizeof *args->at);
        for (size_t k = 0; k < i; k++)
            if (args->at[i]->name != NULL && args->at[k]->name != NULL && args->at[i]->length == args->at[k]->length &&
                memcmp(args->at[i]->name, args->at[k]->name, args->at[i]->length) == 0)
                refuse(m, MEZZO_ERR_FORMAT, "the argument %s is given twice",
                       mz_quote_bytes(args->at[i]->name, args->at[i]->length).text);
    }
}

static void arguments_of(machine *m, nodes *out) {
    bool star = false, stars = false, keyword = false;
    need(m, T_LPAREN, "(");
    while (m->status == MEZZO_OK && kind(m) != T_RPAREN) {
        if (out->n > 0) {
            need(m, T_COMMA, ", or )");
            if (kind(m) == T_RPAREN)
                break;
        }
        node *x = add_node(m, CONSTANT);
        if (skip(m, T_MUL)) {
            x->star = true;
        } else if (skip(m, T_POW)) {
            x->stars = true;
        } else if (kind(m) == T_NAME && look(m, 1)->kind == T_ASSIGN) {
            need_name(m, x);
            next(m);
        }
        const bool plain = !x->star && !x->stars && x->name == NULL;
        if (stars || (x->star && star) || (plain && (star || keyword)))
            refuse(m, MEZZO_ERR_FORMAT, "an argument by place after one by name");
        star |= x->star;
        stars |= x->stars;
        keyword |= x->name != NULL;
        x->a = expression(m);
        push(m, out, x);
    }
    need(m, T_RPAREN, ")");
    check_keywords(m, out);
}

static bool tuple_ends(const machine *m, const char *word) {
    const token_kind k = kind(m);
    return k == T_PRINT_END || k == T_TAG_END || k == T_RPAREN || (word != NULL && named(look(m, 0), word));
}

static node *disjunction(machine *m);

// Parses a list with commas as a tuple. `word` ends it, too; with_condition: "if" may belong to it; nothing: () is a
// tuple.
static node *tuple(machine *m, bool with_condition, const char *word, bool nothing) {
    nodes kids = {0};
    bool is_tuple = false;
    while (m->status == MEZZO_OK) {
        if (kids.n > 0)
            need(m, T_COMMA, ",");
        if (tuple_ends(m, word))
            break;
        push(m, &kids, with_condition ? expression(m) : disjunction(m));
        if (kind(m) != T_COMMA)
            break;
        is_tuple = true;
    }
    if (!is_tuple && kids.n > 0)
        return kids.at[0];
    if (!is_tuple && !nothing)
        unexpected(m, "an expression");
    node *x = add_node(m, TUPLE_OF);
    x->kids = kids;
    return x;
}

static node *elements(machine *m, node_kind what, token_kind close, const char *sign) {
    node *x = add_node(m, what);
    next(m);
    while (m->status == MEZZO_OK && kind(m) != close) {
        if (x->kids.n > 0)
            need(m, T_COMMA, sign);
        if (kind(m) == close)
            break;
        push(m, &x->kids, expression(m));
        if (what != MAP_OF)
            continue;
        need(m, T_COLON, ":");
        push(m, &x->kids, expression(m));
    }
    need(m, close, sign);
    return x;
}

static node *strings(machine *m) {
    const value *v = next(m)->is;
    while (kind(m) == T_STRING && m->status == MEZZO_OK)
        v = mz_tpl_joined(m, v, next(m)->is);
    return constant(m, v);
}

static node *name_node(machine *m) {
    static const struct {
        const char *name;
        const value *is;
    } constants[] = {{"true", &mz_tpl_yes}, {"True", &mz_tpl_yes},  {"false", &mz_tpl_no},
                     {"False", &mz_tpl_no}, {"none", &mz_tpl_none}, {"None", &mz_tpl_none}};
    for (size_t i = 0; i < MZ_COUNT(constants); i++)
        if (skip_word(m, constants[i].name))
            return constant(m, constants[i].is);
    if (named(look(m, 0), "self"))
        refuse(m, MEZZO_ERR_UNSUPPORTED, "self is not supported");
    node *x = add_node(m, NAME);
    need_name(m, x);
    x->line = m->line;
    return x;
}

static node *primary(machine *m) {
    node *x;
    if (m->status == MEZZO_OK)
        m->line = look(m, 0)->line;
    switch (kind(m)) {
    case T_NAME:
        return name_node(m);
    case T_STRING:
        return strings(m);
    case T_INTEGER:
    case T_REAL:
        return constant(m, next(m)->is);
    case T_LBRACKET:
        return elements(m, LIST_OF, T_RBRACKET, ", or ]");
    case T_LBRACE:
        return elements(m, MAP_OF, T_RBRACE, ", or }");
    case T_LPAREN:
        next(m);
        x = tuple(m, true, NULL, true);
        need(m, T_RPAREN, ")");
        return x;
    default:
        unexpected(m, "a value");
        return add_node(m, CONSTANT);
    }
}

static node *subscript(machine *m, node *of) {
    node *x = operation(m, GETITEM, 0, of, NULL);
    if (skip(m, T_DOT)) {
        if (kind(m) == T_INTEGER) {
            x->b = constant(m, next(m)->is);
            return x;
        }
        x->kind = GETATTR;
        need_name(m, x);
        return x;
    }
    next(m);
    node *part[3] = {NULL, NULL, NULL};
    int n = 0;
    bool colon = false;
    while (m->status == MEZZO_OK && kind(m) != T_RBRACKET && kind(m) != T_COMMA) {
        if (skip(m, T_COLON)) {
            colon = true;
            if (++n > 2)
                break;
        } else if (part[n] != NULL) {
            break;
        } else {
            part[n] = expression(m);
        }
    }
    if (kind(m) == T_COMMA)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "a subscript of several values is not supported");
    need(m, T_RBRACKET, "]");
    x->b = part[0];
    if (colon) {
        x->b = operation(m, SLICE, 0, part[0], part[1]);
        x->b->c = part[2];
    } else if (part[0] == NULL) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "a subscript of no value is not supported");
    }
    return x;
}

static node *call_of(machine *m, node *of) {
    node *x = operation(m, CALL, 0, of, NULL);
    arguments_of(m, &x->kids);
    return x;
}

static node *filter(machine *m, node *of) {
    node *x = operation(m, FILTER, 0, of, NULL);
    need_name(m, x);
    if (kind(m) == T_DOT)
        refuse(m, MEZZO_ERR_FORMAT, "no filter has a name with dots");
    x->callee = mz_tpl_filter(m, x->name, x->length);
    if (m->status == MEZZO_OK && x->callee == NULL)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "there is no filter %s", mz_quote_bytes(x->name, x->length).text);
    if (kind(m) == T_LPAREN)
        arguments_of(m, &x->kids);
    return x;
}

static node *test(machine *m, node *of) {
    static const char *const ends[] = {"else", "or", "and"};
    next(m);
    const bool negated = skip_word(m, "not");
    node *x = operation(m, TEST, negated, of, NULL);
    need_name(m, x);
    x->callee = mz_tpl_test(m, x->name, x->length);
    if (m->status == MEZZO_OK && x->callee == NULL)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "there is no test %s", mz_quote_bytes(x->name, x->length).text);
    const token_kind k = kind(m);
    if (k == T_LPAREN) {
        arguments_of(m, &x->kids);
        return x;
    }
    bool argument = k == T_NAME || k == T_STRING || k == T_INTEGER || k == T_REAL || k == T_LBRACKET || k == T_LBRACE;
    for (size_t i = 0; i < MZ_COUNT(ends); i++)
        argument &= !named(look(m, 0), ends[i]);
    if (!argument)
        return x;
    if (named(look(m, 0), "is"))
        refuse(m, MEZZO_ERR_FORMAT, "a test of a test");
    push(m, &x->kids, operation(m, CONSTANT, 0, chain(m, primary(m), false), NULL));
    return x;
}

// What follows an operand: subscripts and calls, or filters, tests and calls.
static node *chain(machine *m, node *x, bool filters) {
    int depth = 0;
    for (; m->status == MEZZO_OK; depth++, m->nesting++) {
        if (filters && skip(m, T_PIPE))
            x = filter(m, x);
        else if (filters && named(look(m, 0), "is"))
            x = test(m, x);
        else if (!filters && (kind(m) == T_DOT || kind(m) == T_LBRACKET))
            x = subscript(m, x);
        else if (kind(m) == T_LPAREN)
            x = call_of(m, x);
        else
            break;
        if (m->nesting > MOST_NESTING)
            deeper(m);
    }
    m->nesting -= depth;
    return x;
}

static node *unary(machine *m, bool with_filters) {
    node *x;
    deeper(m);
    const token_kind k = kind(m);
    if (k == T_SUB || k == T_ADD) {
        next(m);
        x = operation(m, NEGATE, (int)k, unary(m, false), NULL);
    } else {
        x = primary(m);
    }
    x = chain(m, x, false);
    if (with_filters)
        x = chain(m, x, true);
    m->nesting--;
    return x;
}

// Parses from left to right operands of `inner`, separated by the operators first … last.
static node *binary(machine *m, node *(*inner)(machine *m), token_kind first, token_kind last) {
    node *x = inner(m);
    int depth = 0;
    for (; m->status == MEZZO_OK && kind(m) >= first && kind(m) <= last; depth++, m->nesting++) {
        const token_kind op = next(m)->kind;
        const int line = m->line;
        x = operation(m, ARITHMETIC, (int)op, x, inner(m));
        x->line = line;
        if (m->nesting > MOST_NESTING)
            deeper(m);
    }
    m->nesting -= depth;
    return x;
}

static node *operand(machine *m) {
    return unary(m, true);
}

static node *powers(machine *m) {
    return binary(m, operand, T_POW, T_POW);
}

static node *products(machine *m) {
    return binary(m, powers, T_MUL, T_MOD);
}

static node *concatenation(machine *m) {
    node *first = products(m);
    if (kind(m) != T_TILDE)
        return first;
    node *x = add_node(m, CONCAT);
    push(m, &x->kids, first);
    while (skip(m, T_TILDE))
        push(m, &x->kids, products(m));
    return x;
}

static node *sums(machine *m) {
    return binary(m, concatenation, T_ADD, T_SUB);
}

static int comparison(machine *m) {
    const token_kind k = kind(m);
    if (k >= T_EQ && k <= T_LE)
        return (int)next(m)->kind;
    if (skip_word(m, "in"))
        return T_IN;
    if (!named(look(m, 0), "not") || !named(look(m, 1), "in"))
        return 0;
    next(m);
    next(m);
    return T_NOTIN;
}

static node *comparisons(machine *m) {
    node *first = sums(m), *x = NULL;
    for (int op; (op = comparison(m)) != 0;) {
        x = x != NULL ? x : operation(m, COMPARE, 0, first, NULL);
        push(m, &x->kids, operation(m, CONSTANT, op, sums(m), NULL));
    }
    return x != NULL ? x : first;
}

static node *negation(machine *m) {
    if (!skip_word(m, "not"))
        return comparisons(m);
    deeper(m);
    node *x = operation(m, NOT, 0, negation(m), NULL);
    m->nesting--;
    return x;
}

static node *words(machine *m, const char *word, node_kind what, node *(*inner)(machine *m)) {
    node *first = inner(m);
    if (!named(look(m, 0), word))
        return first;
    node *x = add_node(m, what);
    push(m, &x->kids, first);
    while (skip_word(m, word))
        push(m, &x->kids, inner(m));
    return x;
}

static node *conjunction(machine *m) {
    return words(m, "and", AND, negation);
}

static node *disjunction(machine *m) {
    return words(m, "or", OR, conjunction);
}

static node *expression(machine *m) {
    if (!deeper(m))
        return add_node(m, CONSTANT);
    node *x = disjunction(m);
    int depth = 0;
    for (; skip_word(m, "if"); depth++, m->nesting++) {
        x = operation(m, CONDITION, 0, disjunction(m), x);
        x->c = skip_word(m, "else") ? expression(m) : NULL;
        if (m->nesting > MOST_NESTING)
            deeper(m);
    }
    m->nesting -= depth + 1;
    return x;
}

// --- statements -----------------------------------------------------------------------------------------------------
static const char *const end_for[] = {"endfor", "else", NULL}, *const end_if[] = {"elif", "else", "endif", NULL};

// Parses the target of an assignment: a name, a member of a name (if `member`), or a tuple of these.
static node *one_target(machine *m, bool member) {
    if (member && kind(m) == T_NAME && look(m, 1)->kind == T_DOT) {
        node *x = add_node(m, ATTRIBUTE_OF);
        x->a = name_node(m);
        next(m);
        need_name(m, x);
        return x;
    }
    if (kind(m) == T_LPAREN) {
        deeper(m);
        next(m);
        node *x = add_node(m, TUPLE_OF);
        bool comma = false;
        while (m->status == MEZZO_OK && kind(m) != T_RPAREN) {
            push(m, &x->kids, one_target(m, false));
            if (!skip(m, T_COMMA))
                break;
            comma = true;
        }
        need(m, T_RPAREN, ")");
        m->nesting--;
        return comma || x->kids.n != 1 ? x : x->kids.at[0];
    }
    node *x = primary(m);
    if (x->kind != NAME)
        refuse(m, MEZZO_ERR_FORMAT, "nothing can be assigned to that");
    x->op = 1;
    return x;
}

static node *target(machine *m, bool member, const char *word) {
    nodes kids = {0};
    bool comma = false;
    while (m->status == MEZZO_OK && !(kids.n > 0 && tuple_ends(m, word))) {
        push(m, &kids, one_target(m, member));
        if (!skip(m, T_COMMA))
            break;
        comma = true;
    }
    if (!comma && kids.n == 1)
        return kids.at[0];
    node *x = add_node(m, TUPLE_OF);
    x->kids = kids;
    return x;
}

static node *name_target(machine *m) {
    node *x = add_node(m, NAME);
    need_name(m, x);
    x->op = 1;
    return x;
}

static bool is_named(const node *x, const char *name) {
    return x->kind == NAME && x->length == strlen(name) && memcmp(x->name, name, x->length) == 0;
}

static nodes body_until(machine *m, const char *const *ends) {
    skip(m, T_COLON);
    need(m, T_TAG_END, "the end of the tag");
    return statements(m, ends);
}

static nodes body_to(machine *m, const char *end) {
    const char *const ends[] = {end, NULL};
    nodes body = body_until(m, ends);
    next(m); // `end`
    return body;
}

static node *for_statement(machine *m) {
    node *x = add_node(m, FOR);
    x->a = target(m, false, "in");
    if (!skip_word(m, "in"))
        unexpected(m, "in");
    x->b = tuple(m, false, "recursive", false);
    x->c = skip_word(m, "if") ? expression(m) : NULL;
    x->recursive = skip_word(m, "recursive");
    m->loops++;
    x->body = body_until(m, end_for);
    m->loops--;
    if (!skip_word(m, "endfor")) {
        next(m);
        x->other = body_to(m, "endfor");
    }
    x->takes_loop = x->recursive || mz_tpl_mentions(&x->body, "loop", false);
    nodes targets = {&x->a, 1, 1};
    if (mz_tpl_mentions(&targets, "loop", true) || mz_tpl_mentions(&x->body, "loop", true) ||
        mz_tpl_mentions(&x->other, "loop", true))
        refuse(m, MEZZO_ERR_FORMAT, "the name loop cannot be assigned in a loop");
    return x;
}

static node *if_statement(machine *m) {
    node *first = NULL, *x = NULL;
    do {
        node *each = add_node(m, IF);
        deeper(m);
        each->a = tuple(m, false, NULL, false);
        each->body = body_until(m, end_if);
        m->nesting--;
        if (first == NULL)
            first = each;
        else
            push(m, &first->kids, each); // parses elif
        x = each;
    } while (m->status == MEZZO_OK && x != NULL && skip_word(m, "elif"));
    if (skip_word(m, "else"))
        first->other = body_to(m, "endif");
    else
        next(m);
    return first;
}

static node *set_statement(machine *m) {
    node *x = add_node(m, SET);
    x->a = target(m, true, NULL);
    if (skip(m, T_ASSIGN)) {
        x->b = tuple(m, true, NULL, false);
        return x;
    }
    x->kind = SET_BLOCK;
    while (skip(m, T_PIPE))
        x->b = filter(m, x->b);
    x->body = body_to(m, "endset");
    return x;
}

static void signature(machine *m, node *x) {
    need(m, T_LPAREN, "(");
    bool defaults = false;
    while (m->status == MEZZO_OK && kind(m) != T_RPAREN) {
        if (x->kids.n > 0)
            need(m, T_COMMA, ", or )");
        node *arg = name_target(m);
        if (skip(m, T_ASSIGN)) {
            arg->a = expression(m);
            defaults = true;
        } else if (defaults) {
            refuse(m, MEZZO_ERR_FORMAT, "an argument without a default after one with");
        }
        push(m, &x->kids, arg);
    }
    need(m, T_RPAREN, ")");
    check_keywords(m, &x->kids);
}

static void takes(machine *m, node *x) {
    bool caller = false, varargs = false, kwargs = false;
    for (size_t i = 0; i < x->kids.n; i++) {
        caller |= is_named(x->kids.at[i], "caller");
        varargs |= is_named(x->kids.at[i], "varargs");
        kwargs |= is_named(x->kids.at[i], "kwargs");
    }
    if (caller)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "an argument with the name caller is not supported");
    x->takes_caller = mz_tpl_mentions(&x->body, "caller", false);
    x->takes_varargs = !varargs && mz_tpl_mentions(&x->body, "varargs", false);
    x->takes_kwargs = !kwargs && mz_tpl_mentions(&x->body, "kwargs", false);
    if (mz_tpl_mentions(&x->body, "caller", true) || mz_tpl_mentions(&x->body, "varargs", true) ||
        mz_tpl_mentions(&x->body, "kwargs", true))
        refuse(m, MEZZO_ERR_UNSUPPORTED, "assigning caller, varargs or kwargs in a macro is not supported");
}

static node *macro_statement(machine *m, node_kind what) {
    const int loops = m->loops;
    node *x = add_node(m, what);
    m->loops = 0;
    if (what == MACRO_DEF) {
        need_name(m, x);
        signature(m, x);
        x->body = body_to(m, "endmacro");
    } else if (what == CALL_BLOCK) {
        if (kind(m) == T_LPAREN)
            signature(m, x);
        x->a = expression(m);
        if (m->status == MEZZO_OK && x->a->kind != CALL)
            refuse(m, MEZZO_ERR_FORMAT, "{%% call %%} without a call");
        x->body = body_to(m, "endcall");
    } else {
        m->spans->generation = true;
        x->body = body_to(m, "endgeneration");
    }
    m->loops = loops;
    takes(m, x);
    return x;
}

static node *filter_statement(machine *m) {
    node *x = add_node(m, FILTER_BLOCK);
    x->b = filter(m, NULL);
    while (skip(m, T_PIPE))
        x->b = filter(m, x->b);
    x->body = body_to(m, "endfilter");
    return x;
}

static node *with_statement(machine *m) {
    node *x = add_node(m, WITH);
    while (m->status == MEZZO_OK && kind(m) != T_TAG_END) {
        if (x->kids.n > 0)
            need(m, T_COMMA, ",");
        node *each = operation(m, SET, 0, target(m, false, NULL), NULL);
        need(m, T_ASSIGN, "=");
        each->b = expression(m);
        push(m, &x->kids, each);
    }
    x->body = body_to(m, "endwith");
    return x;
}

static node *print_statement(machine *m) {
    node *x = add_node(m, OUTPUT);
    while (m->status == MEZZO_OK && kind(m) != T_TAG_END) {
        if (x->kids.n > 0)
            need(m, T_COMMA, ",");
        push(m, &x->kids, expression(m));
    }
    return x;
}

static node *leave(machine *m, node_kind what) {
    if (m->loops == 0)
        refuse(m, MEZZO_ERR_FORMAT, "break or continue outside of a loop");
    return add_node(m, what);
}

static node *statement(machine *m) {
    const token *word = next(m);
    if (named(word, "for"))
        return for_statement(m);
    if (named(word, "if"))
        return if_statement(m);
    if (named(word, "set"))
        return set_statement(m);
    if (named(word, "macro"))
        return macro_statement(m, MACRO_DEF);
    if (named(word, "call"))
        return macro_statement(m, CALL_BLOCK);
    if (named(word, "generation"))
        return macro_statement(m, GENERATION);
    if (named(word, "filter"))
        return filter_statement(m);
    if (named(word, "with"))
        return with_statement(m);
    if (named(word, "print"))
        return print_statement(m);
    if (named(word, "break") || named(word, "continue"))
        return leave(m, named(word, "break") ? BREAK : CONTINUE);
    if (word->kind == T_NAME)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the statement %s is not supported here",
               mz_quote_bytes(word->text, word->length).text);
    else
        refuse(m, MEZZO_ERR_FORMAT, "a statement begins with a name");
    return add_node(m, OUTPUT);
}

static node *output_of(machine *m, nodes *body) {
    if (body->n > 0 && body->at[body->n - 1]->kind == OUTPUT)
        return body->at[body->n - 1];
    node *x = add_node(m, OUTPUT);
    push(m, body, x);
    return x;
}

// Parses statements up to a word of `ends`, which is read next; with NULL, up to the end of the template.
static nodes statements(machine *m, const char *const *ends) {
    nodes body = {0};
    deeper(m);
    while (m->status == MEZZO_OK && kind(m) != T_END) {
        const token *t = next(m);
        if (t->kind == T_DATA) {
            push(m, &output_of(m, &body)->kids, constant(m, mz_tpl_string(m, t->text, NULL, t->length)));
        } else if (t->kind == T_PRINT) {
            node *out = output_of(m, &body);
            push(m, &out->kids, tuple(m, true, NULL, false));
            need(m, T_PRINT_END, "the end of the tag");
        } else {
            for (size_t i = 0; ends != NULL && ends[i] != NULL; i++)
                if (named(look(m, 0), ends[i])) {
                    m->nesting--;
                    return body;
                }
            push(m, &body, statement(m));
            need(m, T_TAG_END, "the end of the tag");
        }
    }
    if (ends != NULL)
        refuse(m, MEZZO_ERR_FORMAT, "{%% %s %%} is missing", ends[ends[1] != NULL && ends[2] != NULL ? 2 : 0]);
    m->nesting--;
    return body;
}

nodes mz_tpl_parse(machine *m) {
    return statements(m, NULL);
}
