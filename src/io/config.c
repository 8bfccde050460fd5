#include "io/config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/scope.h"
#include "io/config_value.h"
#include "io/file.h"
#include "io/number.h"
#include "io/quote.h"
#include "io/yaml.h"

// --- finding keys --------------------------------------------------------------------------------------------------
bool mz_config_same_name(const char *a, size_t an, const char *b, size_t bn) {
    if (an != bn)
        return false;
    for (size_t i = 0; i < an; i++)
        if ((a[i] == '_' ? '-' : a[i]) != (b[i] == '_' ? '-' : b[i]))
            return false;
    return true;
}

const char *mz_config_next_alias(const char *aliases, const char *after, size_t *n) {
    const char *at = after ? after + strcspn(after, " |") : aliases;
    if (!at)
        return NULL;
    at += strspn(at, " |");
    *n = strcspn(at, " |");
    return *n ? at : NULL;
}

// Returns whether `name` (n bytes) is the row's path or one of its aliases.
static bool has_name(const mz_config_row *row, const char *path, const char *name, size_t n) {
    size_t size = strlen(path);
    bool has = mz_config_same_name(path, size, name, n);
    for (const char *at = NULL; !has && (at = mz_config_next_alias(row->alias, at, &size)) != NULL;)
        has = mz_config_same_name(at, size, name, n);
    return has;
}

const mz_config_row *mz_config_row_of(const mz_config_row *rows, size_t count, const char *name, size_t n,
                                      const char **pattern) {
    *pattern = NULL;
    for (size_t i = 0; i < count; i++)
        if (has_name(&rows[i], rows[i].path, name, n))
            return &rows[i];
    for (size_t i = 0; i < count; i++) {
        const size_t path = strlen(rows[i].path);
        if (rows[i].type == MZ_CONFIG_MAP && n > path + 1 && name[path] == '.' &&
            mz_config_same_name(rows[i].path, path, name, path)) {
            *pattern = name + path + 1;
            return &rows[i];
        }
    }
    return NULL;
}

mz_config_entry *mz_config_entry_of(const mz_config *cfg, const char *name, size_t n, const char **pattern) {
    const mz_config_row *rows = cfg->entries[0].row, *row = mz_config_row_of(rows, cfg->count, name, n, pattern);
    return row ? &cfg->entries[row - rows] : NULL;
}

mz_config_entry *mz_config_find(const mz_config *cfg, const char *path) {
    for (size_t i = 0; i < cfg->count; i++)
        if (strcmp(cfg->entries[i].row->path, path) == 0)
            return &cfg->entries[i];
    return NULL;
}

static const char *last_component(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

// Returns the known key that `name` probably means: the same last component in another group, an alias, else the
// nearest text; or NULL.
static const char *nearest_key(const mz_config *cfg, const char *name) {
    for (size_t i = 0; i < cfg->count; i++) {
        const mz_config_row *row = cfg->entries[i].row;
        const char *its = last_component(name);
        if (has_name(row, last_component(row->path), its, strlen(its)))
            return row->path;
    }
    const char **candidates = mz_alloc(2 * cfg->count + 1, sizeof *candidates);
    if (!candidates)
        return NULL;
    for (size_t i = 0; i < cfg->count; i++) {
        candidates[i] = cfg->entries[i].row->path;
        candidates[cfg->count + i] = last_component(candidates[i]);
    }
    const char *near = mz_nearest(name, candidates, cfg->count);
    if (!near) {
        near = mz_nearest(last_component(name), candidates + cfg->count, cfg->count);
        for (size_t i = 0; near && i < cfg->count; i++)
            if (candidates[cfg->count + i] == near)
                near = candidates[i];
    }
    mz_free(candidates);
    return near;
}

// --- from YAML -----------------------------------------------------------------------------------------------------
typedef struct yaml_load {
    mz_config *cfg;
    const char *where;
    unsigned mark; // the number of this load, which finds keys given both nested and dotted
    bool is_file;
} yaml_load;

static const char *kind_name(const mz_yaml_node *node) {
    if (node->kind == MZ_YAML_LIST)
        return "a list";
    if (node->kind == MZ_YAML_MAP)
        return "a group of keys";
    return mz_yaml_is_null(node) ? "nothing" : NULL;
}

static mezzo_status yaml_wrong(const char *at, const mz_config_entry *entry, const mz_yaml_node *node) {
    const char *kind = kind_name(node);
    MZ_SCOPED(mz_free_at) char *expected = mz_config_expected(entry->row);
    if (!expected)
        return MEZZO_ERR_MEMORY;
    return mz_fail(MEZZO_ERR_INVALID, "%s: %s: expected %s, got %s%s", at, entry->row->path, expected,
                   kind ? kind : "the text ", kind ? "" : mz_quote(node->text).text);
}

static mezzo_status yaml_set_map(const char *at, mz_config_entry *entry, const mz_yaml_node *node) {
    mz_config_pairs pairs = {0};
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; i < node->count; i++) {
        const mz_yaml_node *value = node->children[i];
        if (value->kind != MZ_YAML_SCALAR || mz_yaml_is_null(value)) {
            status = mz_fail(MEZZO_ERR_INVALID, "%s: %s: %s: expected one name, got %s", at, entry->row->path,
                             mz_quote(node->keys[i]).text, kind_name(value));
            goto fail;
        }
        MEZZO_TRY_GOTO(status, mz_config_pairs_add(&pairs, node->keys[i], strlen(node->keys[i]), value->text));
    }
    MEZZO_TRY_GOTO(status, mz_config_set_pairs(entry, &pairs, MZ_CONFIG_FILE, at));
    return MEZZO_OK;
fail:
    mz_config_pairs_free(&pairs);
    return status;
}

static mezzo_status yaml_set_list(const char *at, mz_config_entry *entry, const mz_yaml_node *node) {
    MZ_SCOPED(mz_text_free) mz_text text = {0};
    mz_text_add(&text, "", 0);
    for (size_t i = 0; i < node->count; i++)
        mz_text_addf(&text, "%s%s", i > 0 ? "," : "",
                     node->children[i]->kind == MZ_YAML_SCALAR ? node->children[i]->text : "?");
    return text.status == MEZZO_OK ? mz_config_set_text(entry, text.data, MZ_CONFIG_FILE, at) : text.status;
}

static mezzo_status yaml_set(yaml_load *load, mz_config_entry *entry, const mz_yaml_node *node, int line) {
    const mz_path place = mz_path_of("%s:%d", load->where, line);
    const char *at = place.text;
    mezzo_status status;
    mz_config_type type = entry->row->type;
    if (entry->mark == load->mark)
        status = mz_fail(MEZZO_ERR_INVALID, "%s: %s is set twice", at, entry->row->path);
    else if (type == MZ_CONFIG_MAP && node->kind == MZ_YAML_MAP)
        status = yaml_set_map(at, entry, node);
    else if (type == MZ_CONFIG_LIST && node->kind == MZ_YAML_LIST)
        status = yaml_set_list(at, entry, node);
    else if (node->kind != MZ_YAML_SCALAR || type == MZ_CONFIG_MAP || mz_yaml_is_null(node) ||
             (node->quoted && type != MZ_CONFIG_STRING && type != MZ_CONFIG_ENUM))
        status = yaml_wrong(at, entry, node);
    else
        status = mz_config_set_text(entry, node->text, MZ_CONFIG_FILE, at);
    entry->mark = load->mark;
    return status;
}

// Returns the number of keys below "path.".
static size_t group_size(const mz_config *cfg, const char *path) {
    size_t n = strlen(path), found = 0;
    for (size_t i = 0; i < cfg->count; i++)
        found += strncmp(cfg->entries[i].row->path, path, n) == 0 && cfg->entries[i].row->path[n] == '.';
    return found;
}

static mezzo_status unknown_key(const yaml_load *load, const char *path, int line) {
    const char *near = nearest_key(load->cfg, path);
    return mz_fail(MEZZO_ERR_INVALID, "%s:%d: unknown key %s%s%s", load->where, line, mz_quote(path).text,
                   near ? "; did you mean " : "", near ? near : "");
}

// Returns whether the key describes the file and is no setting: "base", another file that it builds upon, or "recipe",
// its subject.
static bool about_the_file(const char *key) {
    return strcmp(key, "base") == 0 || strcmp(key, "recipe") == 0;
}

static mezzo_status yaml_walk(yaml_load *load, const mz_yaml_node *map, const char *prefix) {
    for (size_t i = 0; i < map->count; i++) {
        const mz_yaml_node *node = map->children[i];
        if (load->is_file && prefix[0] == '\0' && about_the_file(map->keys[i]))
            continue;
        char *path = mz_format("%s%s%s", prefix, *prefix ? "." : "", map->keys[i]);
        if (!path)
            return MEZZO_ERR_MEMORY;
        mz_config_entry *entry = mz_config_find(load->cfg, path);
        mezzo_status status = MEZZO_OK;
        if (entry)
            status = yaml_set(load, entry, node, map->key_lines[i]);
        else if (group_size(load->cfg, path) == 0)
            status = unknown_key(load, path, map->key_lines[i]);
        else if (node->kind == MZ_YAML_MAP)
            status = yaml_walk(load, node, path);
        else if (!mz_yaml_is_null(node)) // a group whose keys are all commented out is allowed
            status =
                mz_fail(MEZZO_ERR_INVALID, "%s:%d: %s: expected a group of keys, got %s", load->where,
                        map->key_lines[i], path, node->kind == MZ_YAML_LIST ? "a list" : mz_quote(node->text).text);
        mz_free(path);
        MEZZO_TRY(status);
    }
    return MEZZO_OK;
}

typedef struct yaml_file {
    const char *path;
    struct stat is;
    const struct yaml_file *above; // the file that named it as its base
    int depth;
} yaml_file;
enum { MOST_BASES = 8 };

static mezzo_status load_file(mz_config *cfg, const char *path, const yaml_file *above, const char *named);

static mezzo_status load_base(mz_config *cfg, const yaml_file *file, const mz_yaml_node *base) {
    if (base->kind != MZ_YAML_SCALAR || base->text[0] == '\0' || mz_yaml_is_null(base))
        return mz_fail(MEZZO_ERR_INVALID, "%s:%d: base: expected the path of another file", file->path, base->line);
    const mz_path path = base->text[0] == '/' ? mz_path_of("%s", base->text) : mz_path_beside(file->path, base->text);
    char named[64];
    snprintf(named, sizeof named, "%d: base", base->line);
    mezzo_status status = load_file(cfg, path.text, file, named);
    const bool unread = status == MEZZO_ERR_IO || !mz_path_exists(path.text);
    return unread ? mz_context(status, "%s:%d: base", file->path, base->line) : status;
}

static mezzo_status load_tree(mz_config *cfg, const char *where, const mz_yaml *yaml, const yaml_file *file) {
    const mz_yaml_node *root = mz_yaml_root(yaml);
    if (!root || mz_yaml_is_null(root))
        return MEZZO_OK;
    if (root->kind != MZ_YAML_MAP)
        return mz_fail(MEZZO_ERR_INVALID, "%s:%d: expected \"key: value\" lines, got %s", where, root->line,
                       root->kind == MZ_YAML_LIST ? "a list" : mz_quote(root->text).text);
    const mz_yaml_node *base = file != NULL ? mz_yaml_get(root, "base") : NULL;
    if (base != NULL)
        MEZZO_TRY(load_base(cfg, file, base));
    yaml_load load = {cfg, where, ++cfg->marks, file != NULL};
    return yaml_walk(&load, root, "");
}

mezzo_status mz_config_parse_yaml(mz_config *cfg, const char *where, const char *text, size_t n) {
    MZ_SCOPED(mz_yaml_free_at) mz_yaml *yaml = NULL;
    MEZZO_TRY(mz_yaml_parse(where, text, n, &yaml));
    return load_tree(cfg, where, yaml, NULL);
}

static mezzo_status check_chain(const yaml_file *file, const char *named) {
    for (const yaml_file *f = file->above; f != NULL; f = f->above)
        if (f->is.st_dev == file->is.st_dev && f->is.st_ino == file->is.st_ino)
            return mz_fail(MEZZO_ERR_INVALID, "%s:%s: %s is its own base: name another file", file->above->path, named,
                           file->path);
    if (file->depth > MOST_BASES)
        return mz_fail(MEZZO_ERR_INVALID, "%s:%s: more than %d nested base files", file->above->path, named,
                       MOST_BASES);
    return MEZZO_OK;
}

static mezzo_status load_file(mz_config *cfg, const char *path, const yaml_file *above, const char *named) {
    yaml_file file = {.path = path, .above = above, .depth = above != NULL ? above->depth + 1 : 0};
    MZ_SCOPED(mz_free_at) char *text = NULL;
    size_t n;
    MEZZO_TRY(mz_file_read_text(path, MZ_YAML_MAX_BYTES, &text, &n));
    MZ_SCOPED(mz_yaml_free_at) mz_yaml *yaml = NULL;
    MEZZO_TRY(mz_config_check_seal(path, text, n));
    if (stat(path, &file.is) != 0)
        MEZZO_TRY(mz_fail(MEZZO_ERR_IO, "%s: %s", path, strerror(errno)));
    MEZZO_TRY(check_chain(&file, named));
    MEZZO_TRY(mz_yaml_parse(path, text, n, &yaml));
    return load_tree(cfg, path, yaml, &file);
}

mezzo_status mz_config_load_yaml(mz_config *cfg, const char *path) {
    return load_file(cfg, path, NULL, "");
}

// --- from the command line -----------------------------------------------------------------------------------------
// An option "--name" without its dashes and without "=…".
typedef struct option {
    const char *name;
    size_t name_size;
    const char *value; // the text after '=', or NULL
    char shown[64];    // "--name", for messages
} option;

static option split_option(const char *arg) {
    option o = {.name = arg + 2};
    o.name_size = strcspn(o.name, "=");
    if (o.name[o.name_size] == '=')
        o.value = o.name + o.name_size + 1;
    size_t shown = o.name_size + 2;
    if (shown > sizeof o.shown - 1) {
        shown = sizeof o.shown - 1;
        while (((unsigned char)arg[shown] & 0xC0) == 0x80) // a cut must not divide a character
            shown--;
    }
    for (size_t i = 0; i < shown; i++)
        o.shown[i] = (unsigned char)arg[i] < 0x20 || arg[i] == 0x7F ? '?' : arg[i];
    return o;
}

static mezzo_status unknown_option(const mz_config *cfg, const option *o) {
    const char *near = nearest_key(cfg, o->shown + 2);
    return mz_fail(MEZZO_ERR_INVALID, "unknown option %s%s%s%s", mz_quote(o->shown).text,
                   near ? "; did you mean --" : "", near ? near : "", near ? "" : "; see --help");
}

// Takes argv[*i] and, where the option needs one, its value from argv[*i + 1].
static mezzo_status take_option(mz_config *cfg, int argc, const char *const *argv, int *i) {
    option o = split_option(argv[*i]);
    const char *pattern, *unused;
    mz_config_entry *entry = mz_config_entry_of(cfg, o.name, o.name_size, &pattern);
    if (!entry && o.name_size > 3 && strncmp(o.name, "no-", 3) == 0) {
        entry = mz_config_entry_of(cfg, o.name + 3, o.name_size - 3, &unused);
        if (entry && entry->row->type == MZ_CONFIG_BOOL) {
            if (o.value)
                return mz_fail(MEZZO_ERR_INVALID, "%s takes no value", o.shown);
            return mz_config_set_text(entry, "false", MZ_CONFIG_COMMAND_LINE, o.shown);
        }
        entry = NULL;
    }
    if (!entry)
        return unknown_option(cfg, &o);
    const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    if (!o.value && entry->row->type == MZ_CONFIG_BOOL) {
        bool names_it = next && (strcmp(next, "true") == 0 || strcmp(next, "false") == 0);
        o.value = names_it ? next : "true";
        *i += names_it;
    } else if (!o.value) {
        if (!next || strncmp(next, "--", 2) == 0) {
            char *expected = mz_config_expected(entry->row);
            mezzo_status status =
                expected ? mz_fail(MEZZO_ERR_INVALID, "%s needs a value: %s", o.shown, expected) : MEZZO_ERR_MEMORY;
            mz_free(expected);
            return status;
        }
        o.value = next;
        *i += 1;
    }
    if (pattern)
        return mz_config_set_pair(entry, pattern, o.name_size - (size_t)(pattern - o.name), o.value,
                                  MZ_CONFIG_COMMAND_LINE, o.shown);
    return mz_config_set_text(entry, o.value, MZ_CONFIG_COMMAND_LINE, o.shown);
}

mezzo_status mz_config_parse_args(mz_config *cfg, int argc, const char *const *argv, const char **rest,
                                  int *rest_count) {
    *rest_count = 0;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            while (++i < argc)
                rest[(*rest_count)++] = argv[i];
            break;
        }
        if (strncmp(argv[i], "--", 2) == 0)
            MEZZO_TRY(take_option(cfg, argc, argv, &i));
        else if (argv[i][0] == '-' && argv[i][1] != '\0')
            return mz_fail(MEZZO_ERR_INVALID, "unknown option %s; options start with two dashes, see --help",
                           mz_quote(argv[i]).text);
        else
            rest[(*rest_count)++] = argv[i];
    }
    return MEZZO_OK;
}

// --- creation -------------------------------------------------------------------------------------------------------
void mz_config_free(mz_config *cfg) {
    if (!cfg)
        return;
    for (size_t i = 0; i < cfg->count; i++)
        mz_config_entry_free(&cfg->entries[i]);
    MZ_FREE(cfg->entries, cfg);
}

// Checks that every path and alias of the row finds this row and no earlier one.
static mezzo_status check_names(const mz_config *cfg, const mz_config_entry *entry) {
#ifdef MZ_FUZZING // the table is constant, and the check would take two thirds of a small file's time
    return MEZZO_OK;
#endif
    const mz_config_row *row = entry->row;
    const char *pattern;
    if (mz_config_entry_of(cfg, row->path, strlen(row->path), &pattern) != entry)
        return mz_fail(MEZZO_ERR_INVALID, "configuration table: %s occurs twice", row->path);
    size_t n;
    for (const char *at = NULL; (at = mz_config_next_alias(row->alias, at, &n)) != NULL;)
        if (mz_config_entry_of(cfg, at, n, &pattern) != entry)
            return mz_fail(MEZZO_ERR_INVALID, "configuration table: %s: another row has its alias %.*s", row->path,
                           (int)n, at);
    return MEZZO_OK;
}

mezzo_status mz_config_create(const mz_config_row *schema, size_t n, mz_config **out) {
    *out = NULL;
    mezzo_status status = MEZZO_OK;
    mz_config *cfg;
    MEZZO_TRY(MZ_NEW(cfg, 1));
    MEZZO_TRY_GOTO(status, MZ_NEW(cfg->entries, n + 1));
    for (size_t i = 0; i < n; i++)
        cfg->entries[i].row = &schema[i];
    cfg->count = n;
    for (size_t i = 0; i < n; i++) {
        MEZZO_TRY_GOTO(status, check_names(cfg, &cfg->entries[i]));
        MEZZO_TRY_GOTO(status, mz_config_set_text(&cfg->entries[i], schema[i].fallback, MZ_CONFIG_DEFAULT, "default"));
    }
    *out = cfg;
    return MEZZO_OK;
fail:
    mz_config_free(cfg);
    return status;
}

mezzo_status mz_config_set(mz_config *cfg, const char *key, const char *text, mz_config_origin_kind kind,
                           const char *where) {
    const char *pattern;
    mz_config_entry *entry = mz_config_entry_of(cfg, key, strlen(key), &pattern);
    if (entry)
        return pattern ? mz_config_set_pair(entry, pattern, strlen(pattern), text, kind, where)
                       : mz_config_set_text(entry, text, kind, where);
    const char *near = nearest_key(cfg, key);
    return mz_fail(MEZZO_ERR_INVALID, "%s: unknown key %s%s%s", where, mz_quote(key).text,
                   near ? "; did you mean " : "", near ? near : "");
}
