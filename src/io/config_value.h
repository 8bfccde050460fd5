// Parses, checks and stores the value of one key of a configuration, for config*.c only.
#ifndef MZ_IO_CONFIG_VALUE_H
#define MZ_IO_CONFIG_VALUE_H

#include "io/config.h"

typedef struct mz_config_pair {
    char *key, *value;
} mz_config_pair;

typedef struct mz_config_pairs {
    mz_config_pair *items;
    size_t count, cap;
} mz_config_pairs;

typedef struct mz_config_entry {
    const mz_config_row *row;
    mz_config_origin_kind origin;
    char *where;
    unsigned mark; // the last YAML load that had this key
    int64_t i;     // int, bool, enum (index)
    double f;
    char *text;  // of a string or enum; owned by the entry
    char *shown; // the last result of mz_config_get_text; owned by the entry
    mz_config_pairs pairs;
} mz_config_entry;

struct mz_config {
    mz_config_entry *entries;
    size_t count;
    unsigned marks;
};

mz_config_entry *mz_config_find(const mz_config *cfg, const char *path); // of exactly this path; NULL: none
// Finds likewise the entry of mz_config_row_of.
mz_config_entry *mz_config_entry_of(const mz_config *cfg, const char *name, size_t n, const char **pattern);
void mz_config_entry_free(mz_config_entry *entry);

// Checks `text` against the row and stores it, unless a stronger origin has set the key already (then it only checks).
// MEZZO_ERR_INVALID: "WHERE: PATH: expected …, got …".
mezzo_status mz_config_set_text(mz_config_entry *entry, const char *text, mz_config_origin_kind kind,
                                const char *where);
// Stores a map that is parsed already; takes over the pairs when it returns MEZZO_OK.
mezzo_status mz_config_set_pairs(mz_config_entry *entry, mz_config_pairs *pairs, mz_config_origin_kind kind,
                                 const char *where);
// Sets one entry of a map: it replaces the entry of the same pattern, else it comes last. Entries of weaker origin
// stay.
mezzo_status mz_config_set_pair(mz_config_entry *entry, const char *key, size_t key_size, const char *value,
                                mz_config_origin_kind kind, const char *where);
mezzo_status mz_config_pairs_add(mz_config_pairs *pairs, const char *key, size_t key_size, const char *value);
void mz_config_pairs_free(mz_config_pairs *pairs);

// Describes what a row accepts: "a number from 0 to 1", "one of fp32, bf16". The caller frees it; NULL when memory runs
// out.
char *mz_config_expected(const mz_config_row *row);

#endif
