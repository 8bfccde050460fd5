// Declares a typed configuration with the keys of a table of rows. Values come from the table's defaults, a YAML file
// and the command line; the later source in this list wins, whatever the order of the calls. The resolved whole is
// written as YAML.
#ifndef MZ_IO_CONFIG_H
#define MZ_IO_CONFIG_H

#include "base/base.h"

typedef enum mz_config_type {
    MZ_CONFIG_INT,    // int64; "1e3" is 1000, "1.5" is an error
    MZ_CONFIG_FLOAT,  // a double
    MZ_CONFIG_BOOL,   // true | false
    MZ_CONFIG_STRING, // any text, also ""
    MZ_CONFIG_ENUM,   // one of `names`
    MZ_CONFIG_LIST,   // up to `max` numbers above 0: 1,1.5, or in a file [1, 1.5]
    MZ_CONFIG_MAP,    // pattern → one of `names` (any text where names is NULL), in the order of the text
} mz_config_type;

enum {
    MZ_CONFIG_NOT_SAVED = 1,  // not part of the resolved configuration (--config, --resume, --json …)
    MZ_CONFIG_NON_FINITE = 2, // a float that may be inf or nan
    MZ_CONFIG_DIGITS = 8,     // an int of digits that may also be written as a list: 1,2,4,4
    MZ_CONFIG_PRECISION = 4,  // names are precisions: other tools' words for them are accepted and replaced by the name
};

// Describes one key. Rows live as long as the configuration; the first path component is the row's group in help and
// file.
typedef struct mz_config_row {
    const char *path; // "optimizer.lr"
    mz_config_type type;
    const char *fallback; // the default as text; a map's is "pattern=name,pattern=name" or ""
    double min, max;      // of int and float, both included; both 0: unbounded
    const char *names;    // enum, map: "fp32|bf16|fp16"; int: the names of its values from 0 on, or NULL
    const char *alias;    // short options without dashes, separated by ' ' or '|': "lr learning-rate"; NULL or "": none
    const char *help;     // one line
    unsigned flags;
} mz_config_row;

typedef struct mz_config mz_config;

// Finds the row that `name` (n bytes) names: by path or alias, where '-' and '_' are the same, or as "MAP.PATTERN" an
// entry of a map, whose pattern *pattern then is. NULL: none.
const mz_config_row *mz_config_row_of(const mz_config_row *rows, size_t count, const char *name, size_t n,
                                      const char **pattern);
bool mz_config_same_name(const char *a, size_t an, const char *b, size_t bn);
// Returns the alias after `after` (NULL: the first) and its length; NULL at the end.
const char *mz_config_next_alias(const char *aliases, const char *after, size_t *n);

// Creates a configuration. MEZZO_ERR_INVALID names a row whose default is not valid, or a path or alias that two rows
// have. `schema` is borrowed.
mezzo_status mz_config_create(const mz_config_row *schema, size_t n, mz_config **out);
void mz_config_free(mz_config *cfg); // NULL is allowed

// --- setting -------------------------------------------------------------------------------------------------------
// Loads nested maps or dotted keys. MEZZO_ERR_INVALID, "FILE:LINE: KEY: …", for an unknown key (with the nearest known
// one), a wrong type (expected and got), a value out of range, a key set twice. MEZZO_ERR_FORMAT and MEZZO_ERR_IO as
// mz_yaml_load. A file's "base" names another file, relative to it, whose values it replaces (INVALID: a file that
// builds upon itself, more than 8 in a row); its "recipe" is skipped. FORMAT also for a file of mz_config_write_yaml
// that was changed. Values that the command line set stay.
mezzo_status mz_config_load_yaml(mz_config *cfg, const char *path);
mezzo_status mz_config_parse_yaml(mz_config *cfg, const char *where, const char *text, size_t n);

// Parses --KEY VALUE, --KEY=VALUE with a path or an alias ('-' and '_' are the same); --KEY and --no-KEY for truth
// values. A map takes "pattern=name,pattern=name" and is replaced as a whole; --MAP.PATTERN NAME sets one of its
// entries. "--" ends the options. Arguments that are no options go into rest[] (space for argc entries, borrowed from
// argv), *rest_count of them. argv starts at the first argument. MEZZO_ERR_INVALID names the option and, where it is
// unknown, the nearest one.
mezzo_status mz_config_parse_args(mz_config *cfg, int argc, const char *const *argv, const char **rest,
                                  int *rest_count);

typedef enum mz_config_origin_kind { MZ_CONFIG_DEFAULT, MZ_CONFIG_FILE, MZ_CONFIG_COMMAND_LINE } mz_config_origin_kind;
// Sets one value from text, by path, alias or MAP.PATTERN; `where` names the source for errors and mz_config_origin
// ("--lr", "config.yaml:3").
mezzo_status mz_config_set(mz_config *cfg, const char *key, const char *text, mz_config_origin_kind kind,
                           const char *where);

// --- getting -------------------------------------------------------------------------------------------------------
// These return MEZZO_ERR_INVALID where the path does not exist or has another type, which is a fault of the program,
// not of its input.
mezzo_status mz_config_get_int(const mz_config *cfg, const char *path, int64_t *out);
mezzo_status mz_config_get_float(const mz_config *cfg, const char *path, double *out); // of an int row, too
mezzo_status mz_config_get_bool(const mz_config *cfg, const char *path, bool *out);
mezzo_status mz_config_get_string(const mz_config *cfg, const char *path,
                                  const char **out); // of a string or enum; cfg owns it
mezzo_status mz_config_get_list(const mz_config *cfg, const char *path, float *out, size_t *n); // out[max]
mezzo_status mz_config_get_enum(const mz_config *cfg, const char *path, int *index);            // the index in `names`
// Gets entry i of a map; after the last, *key is NULL. cfg owns the texts, which are valid until the map is set again.
mezzo_status mz_config_map_get(const mz_config *cfg, const char *path, size_t i, const char **key, const char **value);

// Returns the value as text, by path or alias, as mz_config_set accepts it; valid until the next call for this key or
// until it is set. NULL: no such key, or memory ran out.
const char *mz_config_get_text(mz_config *cfg, const char *key);

// Returns where a value came from, for messages: "default", "config.yaml:12", "--lr". NULL: no such path.
const char *mz_config_origin(const mz_config *cfg, const char *path);

// --- writing -------------------------------------------------------------------------------------------------------
// Appends the resolved configuration as YAML that loads to the same values, bit for bit. Free the result with
// mz_text_free.
void mz_config_add_yaml(const mz_config *cfg, mz_text *out);
// Writes it atomically; a comment in the first line has the checksum of the rest.
mezzo_status mz_config_write_yaml(const mz_config *cfg, const char *path);
// Returns FORMAT where the first line is such a comment with another checksum.
mezzo_status mz_config_check_seal(const char *path, const char *text, size_t n);

#endif
