// A typed configuration has the keys of a table of rows; values come from the table's defaults, a YAML file and the
// command line, in that order of strength whatever the order of the calls; the resolved whole is written back as YAML.
#ifndef MZ_IO_CONFIG_H
#define MZ_IO_CONFIG_H

#include "base/base.h"

typedef enum mz_config_type {
    MZ_CONFIG_INT,    // int64; "1e3" is 1000, "1.5" is an error
    MZ_CONFIG_FLOAT,  // double
    MZ_CONFIG_BOOL,   // true | false
    MZ_CONFIG_STRING, // any text, "" too
    MZ_CONFIG_ENUM,   // one of `names`
    MZ_CONFIG_LIST,   // up to `max` numbers above 0: 1,1.5 or in a file [1, 1.5]
    MZ_CONFIG_MAP,    // pattern → one of `names` (any text where names is NULL), in the order given
} mz_config_type;

enum {
    MZ_CONFIG_NOT_SAVED = 1,  // not part of the resolved configuration (--config, --resume, --json …)
    MZ_CONFIG_NON_FINITE = 2, // a float that may be inf or nan
    MZ_CONFIG_DIGITS = 8,     // an int of digits that is also taken as a list: 1,2,4,4
    MZ_CONFIG_PRECISION = 4,  // names are precisions: other tools' words for them are taken, and kept as the name
};

// One key. Rows live as long as the configuration; the first path component is the row's group in help and file.
typedef struct mz_config_row {
    const char *path; // "optimizer.lr"
    mz_config_type type;
    const char *fallback; // default, as text; a map's is "pattern=name,pattern=name" or ""
    double min, max;      // of int and float, both included; both 0: no bounds
    const char *names;    // enum, map: "fp32|bf16|fp16"; of an int, its values' names from 0 on, or NULL
    const char *alias;    // short options without dashes, divided by ' ' or '|': "lr learning-rate"; NULL or "": none
    const char *help;     // one line
    unsigned flags;
} mz_config_row;

typedef struct mz_config mz_config;

// MEZZO_ERR_INVALID names a row whose default is not valid, or a path or alias given twice. `schema` is borrowed.
mezzo_status mz_config_create(const mz_config_row *schema, size_t n, mz_config **out);
void mz_config_free(mz_config *cfg); // NULL is fine

// --- setting -------------------------------------------------------------------------------------------------------
// Nested maps or dotted keys. MEZZO_ERR_INVALID, "FILE:LINE: KEY: …", for an unknown key (with the nearest known one),
// a wrong type (expected and got), a value out of range, a key set twice. MEZZO_ERR_FORMAT and MEZZO_ERR_IO as
// mz_yaml_load; a file's "base" names another, relative to it, whose values it replaces (INVALID: a file that builds
// upon itself, more than 8 in a row), and its "recipe" is skipped. FORMAT also for a file of mz_config_write_yaml
// that was changed. Values that the command line set stay.
mezzo_status mz_config_load_yaml(mz_config *cfg, const char *path);
mezzo_status mz_config_parse_yaml(mz_config *cfg, const char *where, const char *text, size_t n);

// --KEY VALUE, --KEY=VALUE with a path or an alias ('-' and '_' are the same); --KEY and --no-KEY for truth values; a
// map takes "pattern=name,pattern=name" and is replaced as a whole; --MAP.PATTERN NAME sets one of its entries. "--"
// ends the options. Arguments that are no options go into rest[] (room for argc entries, borrowed from argv),
// *rest_count of them. argv starts at the first argument. MEZZO_ERR_INVALID names the option and, where unknown, the
// nearest one.
mezzo_status mz_config_parse_args(mz_config *cfg, int argc, const char *const *argv, const char **rest,
                                  int *rest_count);

typedef enum mz_config_origin_kind { MZ_CONFIG_DEFAULT, MZ_CONFIG_FILE, MZ_CONFIG_COMMAND_LINE } mz_config_origin_kind;
// Sets one value from text, by path, alias or MAP.PATTERN; `where` is what errors and mz_config_origin call the source
// ("--lr", "config.yaml:3").
mezzo_status mz_config_set(mz_config *cfg, const char *key, const char *text, mz_config_origin_kind kind,
                           const char *where);

// --- getting -------------------------------------------------------------------------------------------------------
// MEZZO_ERR_INVALID where the path does not exist or has another type: a mistake in the program, not in its input.
mezzo_status mz_config_get_int(const mz_config *cfg, const char *path, int64_t *out);
mezzo_status mz_config_get_float(const mz_config *cfg, const char *path, double *out); // of an int row too
mezzo_status mz_config_get_bool(const mz_config *cfg, const char *path, bool *out);
mezzo_status mz_config_get_string(const mz_config *cfg, const char *path,
                                  const char **out); // string, enum; owned by cfg
mezzo_status mz_config_get_list(const mz_config *cfg, const char *path, float *out, size_t *n); // out[max]
mezzo_status mz_config_get_enum(const mz_config *cfg, const char *path, int *index);            // place in `names`
// Entry i of a map; past the last, *key is NULL. Owned by cfg, valid until the map is set again.
mezzo_status mz_config_map_get(const mz_config *cfg, const char *path, size_t i, const char **key, const char **value);

// The value as text, by path or alias, as mz_config_set takes it; valid until the next call for this key or until it is
// set. NULL: no such key, or memory ran out.
const char *mz_config_get_text(mz_config *cfg, const char *key);

// Returns where a value came from, for messages: "default", "config.yaml:12", "--lr". NULL: no such path.
const char *mz_config_origin(const mz_config *cfg, const char *path);

// --- writing -------------------------------------------------------------------------------------------------------
// The resolved configuration as YAML that loads to the same values, bit for bit. mz_text_free the result.
void mz_config_add_yaml(const mz_config *cfg, mz_text *out);
// Atomically, with a comment first that has the checksum of the rest.
mezzo_status mz_config_write_yaml(const mz_config *cfg, const char *path);
// FORMAT where the first line is such a comment and the checksum is another.
mezzo_status mz_config_check_seal(const char *path, const char *text, size_t n);

#endif
