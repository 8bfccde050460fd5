#include "io/yaml.h"

#include <stdlib.h>
#include <strings.h>
#include <yaml.h>

#include "base/scope.h"
#include "io/file.h"
#include "io/quote.h"
#include "io/utf8.h"

typedef struct anchor {
    char *name;
    mz_yaml_node *node;
} anchor;

struct mz_yaml {
    mz_yaml_node **nodes; // all nodes, to free them: with aliases the tree shares nodes
    size_t count, cap;
    anchor *anchors;
    size_t anchor_count, anchor_cap;
    mz_yaml_node *root;
};

// Holds one collection during reading.
typedef struct level {
    mz_yaml_node *node;
    char *anchor;      // its name once the collection is complete; an earlier alias to it would be a loop
    char *pending_key; // of a map: the key whose value comes next
    int pending_line;
} level;

typedef struct reader {
    const char *where;
    mz_yaml *yaml;
    level levels[MZ_YAML_MAX_DEPTH];
    size_t depth;
    bool done; // one document was read
} reader;

void mz_yaml_free(mz_yaml *yaml) {
    if (!yaml)
        return;
    for (size_t i = 0; i < yaml->count; i++) {
        mz_yaml_node *node = yaml->nodes[i];
        for (size_t k = 0; node->keys && k < node->count; k++)
            mz_free(node->keys[k]);
        MZ_FREE(node->keys, node->key_lines, node->children, node->text, node);
    }
    for (size_t i = 0; i < yaml->anchor_count; i++)
        mz_free(yaml->anchors[i].name);
    MZ_FREE(yaml->anchors, yaml->nodes, yaml);
}

const mz_yaml_node *mz_yaml_root(const mz_yaml *yaml) {
    return yaml->root;
}

const mz_yaml_node *mz_yaml_get(const mz_yaml_node *map, const char *key) {
    for (size_t i = 0; map && map->kind == MZ_YAML_MAP && i < map->count; i++)
        if (strcmp(map->keys[i], key) == 0)
            return map->children[i];
    return NULL;
}

bool mz_yaml_is_null(const mz_yaml_node *node) {
    return node->kind == MZ_YAML_SCALAR && !node->quoted &&
           (node->text[0] == '\0' || strcmp(node->text, "~") == 0 || strcasecmp(node->text, "null") == 0);
}

static int line_of(const yaml_event_t *event) {
    return (int)event->start_mark.line + 1;
}

static mezzo_status bad(const reader *r, int line, const char *what) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s:%d: %s", r->where, line, what);
}

static mezzo_status new_node(reader *r, mz_yaml_kind kind, int line, mz_yaml_node **out) {
    mz_yaml *yaml = r->yaml;
    MEZZO_TRY(MZ_RESERVE(yaml->nodes, yaml->cap, yaml->count + 1));
    mz_yaml_node *node;
    MEZZO_TRY(MZ_NEW(node, 1));
    node->kind = kind;
    node->line = line;
    node->weight = 1;
    yaml->nodes[yaml->count++] = node;
    *out = node;
    return MEZZO_OK;
}

static mezzo_status set_anchor(reader *r, const char *name, mz_yaml_node *node) {
    mz_yaml *yaml = r->yaml;
    anchor *earlier = MZ_FIND(yaml->anchors, yaml->anchor_count, name, name);
    if (earlier != NULL) { // a later anchor of the same name replaces it
        earlier->node = node;
        return MEZZO_OK;
    }
    if (yaml->anchor_count == MZ_YAML_MAX_KEYS)
        return bad(r, node->line, "more than 4096 anchors");
    MEZZO_TRY(MZ_RESERVE(yaml->anchors, yaml->anchor_cap, yaml->anchor_count + 1));
    char *copy = mz_strdup(name);
    if (!copy)
        return MEZZO_ERR_MEMORY;
    yaml->anchors[yaml->anchor_count++] = (anchor){copy, node};
    return MEZZO_OK;
}

// Puts a complete node where it belongs: as the root, into a list, or as the value of the pending key.
static mezzo_status place(reader *r, mz_yaml_node *node, int line) {
    if (r->depth == 0) {
        r->yaml->root = node;
        return MEZZO_OK;
    }
    level *top = &r->levels[r->depth - 1];
    mz_yaml_node *parent = top->node;
    parent->weight += node->weight;
    if (parent->weight > MZ_YAML_MAX_NODES)
        return bad(r, line, "more than 100000 values (aliases count as what they stand for, text by its length)");
    MEZZO_TRY(MZ_RESERVE(parent->children, parent->children_cap, parent->count + 1));
    if (parent->kind == MZ_YAML_MAP) {
        MEZZO_TRY(MZ_RESERVE(parent->keys, parent->keys_cap, parent->count + 1));
        MEZZO_TRY(MZ_RESERVE(parent->key_lines, parent->lines_cap, parent->count + 1));
        parent->keys[parent->count] = top->pending_key;
        parent->key_lines[parent->count] = top->pending_line;
        top->pending_key = NULL;
    }
    parent->children[parent->count++] = node;
    return MEZZO_OK;
}

static bool expects_key(const reader *r) {
    return r->depth > 0 && r->levels[r->depth - 1].node->kind == MZ_YAML_MAP && !r->levels[r->depth - 1].pending_key;
}

static mezzo_status take_key(reader *r, const char *text, int line) {
    level *top = &r->levels[r->depth - 1];
    mz_yaml_node *map = top->node;
    if (map->count == MZ_YAML_MAX_KEYS)
        return bad(r, line, "more than 4096 keys in one map");
    for (size_t i = 0; i < map->count; i++)
        if (strcmp(map->keys[i], text) == 0)
            return mz_fail(MEZZO_ERR_FORMAT, "%s:%d: key %s was set already on line %d", r->where, line,
                           mz_quote(text).text, map->key_lines[i]);
    top->pending_key = mz_strdup(text);
    top->pending_line = line;
    return top->pending_key ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

static mezzo_status take_scalar(reader *r, const yaml_event_t *event) {
    int line = line_of(event);
    const char *text = (const char *)event->data.scalar.value;
    const char *name = (const char *)event->data.scalar.anchor;
    if (strlen(text) != event->data.scalar.length)
        return bad(r, line, "a NUL character in a value");
    if (event->data.scalar.tag)
        return bad(r, line, "tags (!…) are not read here");
    if (expects_key(r)) {
        if (name)
            return bad(r, line, "an anchor on a key is not read here");
        return take_key(r, text, line);
    }
    mz_yaml_node *node = NULL;
    MEZZO_TRY(new_node(r, MZ_YAML_SCALAR, line, &node));
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    node->weight += event->data.scalar.length / 16; // many aliases of a long text are large, too
    node->text = mz_strdup(text);
    if (!node->text)
        return MEZZO_ERR_MEMORY;
    if (name)
        MEZZO_TRY(set_anchor(r, name, node));
    return place(r, node, line);
}

static mezzo_status take_alias(reader *r, const yaml_event_t *event) {
    int line = line_of(event);
    const char *name = (const char *)event->data.alias.anchor;
    if (expects_key(r))
        return bad(r, line, "a key must be plain text");
    const anchor *of = MZ_FIND(r->yaml->anchors, r->yaml->anchor_count, name, name);
    if (of == NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s:%d: alias *%s has no whole anchor before it", r->where, line, name);
    return place(r, of->node, line);
}

static mezzo_status open_level(reader *r, const yaml_event_t *event, mz_yaml_kind kind, const yaml_char_t *name,
                               const yaml_char_t *tag) {
    int line = line_of(event);
    if (tag)
        return bad(r, line, "tags (!…) are not read here");
    if (expects_key(r))
        return bad(r, line, "a key must be plain text");
    if (r->depth == MZ_YAML_MAX_DEPTH)
        return bad(r, line, "nested deeper than 32 levels");
    level *top = &r->levels[r->depth];
    *top = (level){0};
    MEZZO_TRY(new_node(r, kind, line, &top->node));
    if (name && !(top->anchor = mz_strdup((const char *)name)))
        return MEZZO_ERR_MEMORY;
    r->depth++;
    return MEZZO_OK;
}

static mezzo_status close_level(reader *r, int line) {
    level top = r->levels[--r->depth];
    mezzo_status status = top.anchor ? set_anchor(r, top.anchor, top.node) : MEZZO_OK;
    mz_free(top.anchor);
    MEZZO_TRY(status);
    return place(r, top.node, line);
}

static mezzo_status take_event(reader *r, const yaml_event_t *event) {
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (r->done)
            return bad(r, line_of(event), "a second document; one file holds one configuration");
        return MEZZO_OK;
    case YAML_DOCUMENT_END_EVENT:
        r->done = true;
        return MEZZO_OK;
    case YAML_SCALAR_EVENT:
        return take_scalar(r, event);
    case YAML_ALIAS_EVENT:
        return take_alias(r, event);
    case YAML_SEQUENCE_START_EVENT:
        return open_level(r, event, MZ_YAML_LIST, event->data.sequence_start.anchor, event->data.sequence_start.tag);
    case YAML_MAPPING_START_EVENT:
        return open_level(r, event, MZ_YAML_MAP, event->data.mapping_start.anchor, event->data.mapping_start.tag);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return close_level(r, line_of(event));
    default:
        return MEZZO_OK;
    }
}

static mezzo_status read_events(reader *r, yaml_parser_t *parser) {
    for (;;) {
        yaml_event_t event;
        if (!yaml_parser_parse(parser, &event)) {
            if (parser->error == YAML_MEMORY_ERROR)
                return mz_fail(MEZZO_ERR_MEMORY, "%s: out of memory while reading YAML", r->where);
            mz_quoted problem = mz_quote(parser->problem ? parser->problem : "unreadable");
            bool tab = strstr(problem.text, "cannot start any token") != NULL;
            bool indent = strstr(problem.text, "not allowed in this context") != NULL ||
                          strstr(problem.text, "did not find expected") != NULL;
            return mz_fail(MEZZO_ERR_FORMAT, "%s:%zu: not valid YAML: %s%s", r->where, parser->problem_mark.line + 1,
                           problem.text,
                           tab      ? "; YAML is indented with spaces, not tabs"
                           : indent ? "; keys of one section start in the same column, with a space after the colon"
                                    : "");
        }
        bool end = event.type == YAML_STREAM_END_EVENT;
        mezzo_status status = take_event(r, &event);
        yaml_event_delete(&event);
        MEZZO_TRY(status);
        if (end)
            return MEZZO_OK;
    }
}

// Returns the line, from 1, on which a text that is no YAML begins as TOML does: [section], [[section]] or key = value;
// 0: none.
static int toml_line(const char *text, size_t n) {
    static const char name[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.\"";
    for (int line = 1; n > 0; line++) {
        const char *end = memchr(text, '\n', n);
        const size_t size = end != NULL ? (size_t)(end - text) : n;
        char copy[128];
        snprintf(copy, sizeof copy, "%.*s", (int)(size < 127 ? size : 127), text);
        const char *at = copy + strspn(copy, " \t");
        if (*at != '\0' && *at != '#') {
            const size_t open = strspn(at, "["), word = strspn(at + open, name);
            const char *after = at + open + word;
            const char *rest = after + strspn(after, "]"), *last = rest + strspn(rest, " \t");
            const bool section = open > 0 && open < 3 && word > 0 && rest == after + open && (!*last || *last == '#');
            const bool pair = open == 0 && word > 0 && after[strspn(after, " \t")] == '=';
            return section || pair ? line : 0;
        }
        text += end != NULL ? size + 1 : size;
        n -= end != NULL ? size + 1 : size;
    }
    return 0;
}

mezzo_status mz_yaml_parse(const char *where, const char *text, size_t n, mz_yaml **out) {
    *out = NULL;
    if (n > MZ_YAML_MAX_BYTES)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %zu bytes of YAML; at most 1 MiB is read", where, n);
    reader *r;
    MEZZO_TRY(MZ_NEW(r, 1));
    yaml_parser_t parser;
    mezzo_status status = MEZZO_OK;
    r->where = where;
    r->yaml = mz_alloc(1, sizeof *r->yaml);
    if (!r->yaml) {
        mz_free(r);
        return MEZZO_ERR_MEMORY;
    }
    if (!yaml_parser_initialize(&parser)) {
        status = mz_fail(MEZZO_ERR_MEMORY, "%s: out of memory while reading YAML", where);
    } else {
        yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
        status = read_events(r, &parser);
        yaml_parser_delete(&parser);
    }
    const bool words = r->yaml->root != NULL && r->yaml->root->kind == MZ_YAML_SCALAR;
    const int toml = status == MEZZO_ERR_FORMAT || (status == MEZZO_OK && words) ? toml_line(text, n) : 0;
    if (toml > 0)
        status = mz_fail(MEZZO_ERR_FORMAT,
                         "%s:%d: this is TOML, which is not read: write it as YAML, a line \"section:\" with lines "
                         "\"key: value\" indented below it",
                         where, toml);
    for (size_t i = 0; i < r->depth; i++)
        mz_free(r->levels[i].anchor);
    for (size_t i = 0; i < MZ_YAML_MAX_DEPTH; i++)
        mz_free(r->levels[i].pending_key);
    if (status == MEZZO_OK)
        *out = r->yaml;
    else
        mz_yaml_free(r->yaml);
    mz_free(r);
    return status;
}

mezzo_status mz_yaml_load(const char *path, mz_yaml **out) {
    *out = NULL;
    MZ_SCOPED(mz_free_at) char *text = NULL;
    size_t n;
    MEZZO_TRY(mz_file_read_text(path, MZ_YAML_MAX_BYTES, &text, &n));
    return mz_yaml_parse(path, text, n, out);
}

// --- writing -------------------------------------------------------------------------------------------------------
// Returns whether readers of YAML 1.1 or 1.2 take the word for something else than text.
static bool is_word_of_yaml(const char *text) {
    static const char *const words[] = {"true", "false", "yes",  "no",  "on",  "off", "y", "n",     "null", "none",
                                        "~",    ".nan",  ".inf", "nan", "inf", "-",   ".", "-.inf", "+.inf"};
    for (size_t i = 0; i < MZ_COUNT(words); i++)
        if (strcasecmp(text, words[i]) == 0)
            return true;
    return false;
}

void mz_yaml_add_scalar(mz_text *out, const char *text) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    bool starts = text[0] != '\0' && (strchr(letters, text[0]) || (strchr("/.", text[0]) && strchr(letters, text[1])));
    if (starts && text[1] != '\0' && text[strspn(text, plain)] == '\0' && !is_word_of_yaml(text)) {
        mz_text_addf(out, "%s", text);
        return;
    }
    mz_text_add(out, "\"", 1);
    for (size_t i = 0, n = strlen(text); i < n;) {
        uint32_t code;
        size_t width = mz_utf8_decode(text + i, n - i, &code);
        bool valid = width > 0;
        if (!valid) { // a byte that is not UTF-8 becomes a Latin-1 character, the nearest that YAML can hold
            code = (unsigned char)text[i];
            width = 1;
        }
        if (code == '"' || code == '\\')
            mz_text_addf(out, "\\%c", (char)code);
        else if (code == '\n')
            mz_text_add(out, "\\n", 2);
        else if (code == '\t')
            mz_text_add(out, "\\t", 2);
        else if (code < 0x20 || (code >= 0x7F && code < 0xA0) || !valid)
            mz_text_addf(out, "\\x%02X", (unsigned)code);
        else if (code >= 0x10000)
            mz_text_addf(out, "\\U%08X", (unsigned)code);
        // These are line separators and other invisible signs, byte order marks, private characters and non-characters.
        else if ((code >= 0x2000 && code <= 0x3000) || code >= 0xD800)
            mz_text_addf(out, "\\u%04X", (unsigned)code);
        else
            mz_text_add(out, text + i, width);
        i += width;
    }
    mz_text_add(out, "\"", 1);
}
