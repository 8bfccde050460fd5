// Writes the resolved configuration as YAML.
#include "io/config_value.h"
#include "io/file.h"
#include "io/number.h"
#include "io/quote.h"
#include "io/yaml.h"

static void add_value(const mz_config_entry *entry, mz_text *out) {
    char number[MZ_NUMBER_MAX];
    switch (entry->row->type) {
    case MZ_CONFIG_INT:
        mz_text_addf(out, "%lld", (long long)entry->i);
        break;
    case MZ_CONFIG_FLOAT:
        // In YAML the names of numbers that are not finite begin with a dot.
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
    case MZ_CONFIG_LIST:
        mz_text_addf(out, "[%s]", entry->text);
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

// Returns whether the row is written and its path starts with the first n bytes of `path`.
static bool in_group(const mz_config_entry *entry, const char *path, size_t n) {
    return !(entry->row->flags & MZ_CONFIG_NOT_SAVED) && strncmp(entry->row->path, path, n) == 0;
}

// Adds all keys whose path starts with the n bytes of `prefix`, each group once, at the place of its first row.
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

// The first line of a file that Mezzo writes is a comment with the checksum of the rest. A file without that line has
// another author and is read as it is.
#define SEAL      "# crc32c "
#define SEAL_REST " of all lines below; remove this line when you edit the file\n"

mezzo_status mz_config_write_yaml(const mz_config *cfg, const char *path) {
    mz_text body = {0}, text = {0};
    mz_config_add_yaml(cfg, &body);
    mz_text_addf(&text, SEAL "%08x" SEAL_REST, mz_crc32c(0, body.data, body.len));
    mz_text_add(&text, body.data, body.len);
    text.status = body.status != MEZZO_OK ? body.status : text.status;
    mz_text_free(&body);
    return mz_text_save(&text, path);
}

mezzo_status mz_config_check_seal(const char *path, const char *text, size_t n) {
    const size_t begin = sizeof SEAL - 1;
    const char *newline = memchr(text, '\n', n);
    char seal[9];
    if (newline == NULL || n < begin + 8 || memcmp(text, SEAL, begin) != 0)
        return MEZZO_OK;
    snprintf(seal, sizeof seal, "%08x", mz_crc32c(0, newline + 1, n - (size_t)(newline + 1 - text)));
    if (memcmp(text + begin, seal, 8) == 0)
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_FORMAT,
                   "%s was modified (its checksum is %s, its first line says %s): if you edited it, remove the first "
                   "line; if not, the file is damaged",
                   mz_quote(path).text, seal, mz_quote_bytes(text + begin, 8).text);
}

const char *mz_config_get_text(mz_config *cfg, const char *key) {
    const char *pattern;
    mz_config_entry *entry = mz_config_entry_of(cfg, key, strlen(key), &pattern);
    if (!entry || pattern)
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
