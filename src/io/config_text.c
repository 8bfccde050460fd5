// A configuration as text: the resolved YAML, and the help.
#include "io/config_value.h"
#include "io/file.h"
#include "io/number.h"
#include "io/yaml.h"

static void add_value(const mz_config_entry *entry, mz_text *out) {
    char number[MZ_NUMBER_MAX];
    switch (entry->row->type) {
    case MZ_CONFIG_INT:
        mz_text_addf(out, "%lld", (long long)entry->i);
        break;
    case MZ_CONFIG_FLOAT:
        // YAML's names for what is not finite start with a dot.
        mz_number_format(entry->f, number);
        mz_text_addf(out, "%s",
                     strcmp(number, "nan") == 0    ? ".nan"
                     : strcmp(number, "inf") == 0  ? ".inf"
                     : strcmp(number, "-inf") == 0 ? "-.inf"
                                                   : number);
        break;
    case MZ_CONFIG_BOOL:
        mz_text_addf(out, "%s", entry->i ? "true" : "false");
        break;
    default:
        mz_yaml_add_scalar(out, entry->text);
        break;
    }
}

static void add_leaf(const mz_config_entry *entry, const char *name, int depth, mz_text *out) {
    if (entry->row->type != MZ_CONFIG_MAP) {
        mz_text_addf(out, "%*s%s: ", 2 * depth, "", name);
        add_value(entry, out);
        mz_text_add(out, "\n", 1);
        return;
    }
    mz_text_addf(out, "%*s%s:%s\n", 2 * depth, "", name, entry->pairs.count ? "" : " {}");
    for (size_t i = 0; i < entry->pairs.count; i++) {
        mz_text_addf(out, "%*s", 2 * depth + 2, "");
        mz_yaml_add_scalar(out, entry->pairs.items[i].key);
        mz_text_add(out, ": ", 2);
        mz_yaml_add_scalar(out, entry->pairs.items[i].value);
        mz_text_add(out, "\n", 1);
    }
}

// Whether the row is written and its path starts with the first n bytes of `path`.
static bool in_group(const mz_config_entry *entry, const char *path, size_t n) {
    return !(entry->row->flags & MZ_CONFIG_NOT_SAVED) && strncmp(entry->row->path, path, n) == 0;
}

// All keys whose path starts with the n bytes of `prefix`, each group once, at the place of its first row.
static void add_group(const mz_config *cfg, const char *prefix, size_t n, int depth, mz_text *out) {
    for (size_t i = 0; i < cfg->count; i++) {
        const char *path = cfg->entries[i].row->path;
        if (!in_group(&cfg->entries[i], prefix, n))
            continue;
        size_t name = strcspn(path + n, ".");
        if (path[n + name] == '\0') {
            add_leaf(&cfg->entries[i], path + n, depth, out);
            continue;
        }
        bool first = true;
        for (size_t j = 0; j < i; j++)
            first &= !in_group(&cfg->entries[j], path, n + name + 1);
        if (!first)
            continue;
        mz_text_addf(out, "%*s%.*s:\n", 2 * depth, "", (int)name, path + n);
        add_group(cfg, path, n + name + 1, depth + 1, out);
    }
}

void mz_config_add_yaml(const mz_config *cfg, mz_text *out) {
    add_group(cfg, "", 0, 0, out);
}

mezzo_status mz_config_write_yaml(const mz_config *cfg, const char *path) {
    mz_text text = {0};
    mz_config_add_yaml(cfg, &text);
    mezzo_status status = text.status;
    if (status == MEZZO_OK)
        status = mz_file_write_atomic(path, text.data ? text.data : "", text.len);
    mz_text_free(&text);
    return status;
}

const char *mz_config_get_text(mz_config *cfg, const char *key) {
    mz_config_entry *entry = mz_config_find_option(cfg, key);
    if (!entry)
        return NULL;
    mz_text out = {0};
    mz_text_add(&out, "", 0);
    if (entry->row->type == MZ_CONFIG_MAP)
        for (size_t i = 0; i < entry->pairs.count; i++)
            mz_text_addf(&out, "%s%s=%s", i ? "," : "", entry->pairs.items[i].key, entry->pairs.items[i].value);
    else if (entry->text)
        mz_text_addf(&out, "%s", entry->text);
    else
        add_value(entry, &out);
    if (out.status != MEZZO_OK) {
        mz_text_free(&out);
        return NULL;
    }
    mz_free(entry->shown);
    entry->shown = out.data;
    return entry->shown;
}

// --- help ----------------------------------------------------------------------------------------------------------
static const char *type_word(const mz_config_row *row) {
    static const char *const words[] = {"INT", "FLOAT", "", "TEXT", "", "PATTERN=NAME,…"};
    return words[row->type];
}

static void add_default(const mz_config_row *row, mz_text *out) {
    char number[MZ_NUMBER_MAX];
    double value;
    const char *text = row->fallback;
    if (row->type == MZ_CONFIG_FLOAT && mz_number_parse(row->fallback, &value))
        text = mz_number_format(value, number);
    if (*text)
        mz_text_addf(out, " [%s]", text);
}

static void add_help_row(const mz_config_row *row, mz_text *out) {
    size_t start = out->len;
    mz_text_addf(out, "  --%s", row->path);
    size_t n;
    for (const char *at = NULL; (at = mz_config_next_alias(row, at, &n)) != NULL;)
        mz_text_addf(out, ", --%.*s", (int)n, at);
    if (row->type == MZ_CONFIG_ENUM)
        mz_text_addf(out, " %s", row->names);
    else if (row->type != MZ_CONFIG_BOOL)
        mz_text_addf(out, " %s", type_word(row));
    enum { HELP_COLUMN = 46 };
    size_t width = out->len - start;
    if (width < HELP_COLUMN)
        mz_text_addf(out, "%*s", (int)(HELP_COLUMN - width), "");
    else
        mz_text_addf(out, "\n%*s", HELP_COLUMN, "");
    mz_text_addf(out, "%s", row->help);
    add_default(row, out);
    mz_text_add(out, "\n", 1);
}

void mz_config_help(const mz_config *cfg, mz_text *out) {
    const char *group = "";
    size_t group_size = (size_t)-1;
    for (size_t i = 0; i < cfg->count; i++) {
        const mz_config_row *row = cfg->entries[i].row;
        size_t n = strchr(row->path, '.') ? strcspn(row->path, ".") : 0;
        if (n != group_size || strncmp(row->path, group, n) != 0) {
            mz_text_addf(out, "%s%.*s:\n", i ? "\n" : "", n ? (int)n : 7, n ? row->path : "general");
            group = row->path;
            group_size = n;
        }
        add_help_row(row, out);
    }
}
