// Reads YAML as a tree of nodes with line numbers: as much as a configuration needs, and everything is limited in size.
#ifndef MZ_IO_YAML_H
#define MZ_IO_YAML_H

#include "base/scope.h"

#define MZ_YAML_MAX_BYTES ((size_t)1 << 20)
#define MZ_YAML_MAX_DEPTH 32
#define MZ_YAML_MAX_KEYS  4096 // of one map
// Every alias counts as the nodes that it repeats, and a text as one more for each 16 bytes, which stops a "billion
// laughs".
#define MZ_YAML_MAX_NODES 100000

typedef enum mz_yaml_kind { MZ_YAML_SCALAR, MZ_YAML_LIST, MZ_YAML_MAP } mz_yaml_kind;

typedef struct mz_yaml_node mz_yaml_node;
struct mz_yaml_node {
    mz_yaml_kind kind;
    int line;                // from 1
    char *text;              // of a scalar: NUL-terminated UTF-8 without NUL inside
    bool quoted;             // of a scalar: in quotes or as a block, so that "true" is text and not a truth value
    char **keys;             // of a map: one for each child, all different
    int *key_lines;          // of a map
    mz_yaml_node **children; // of a list or map; an alias repeats the same node
    size_t count, keys_cap, lines_cap, children_cap, weight;
};

typedef struct mz_yaml mz_yaml;

// Parses one document. MEZZO_ERR_FORMAT, "WHERE:LINE: …": not YAML, a repeated key in a map, more than one document,
// tags, keys that are not text, an alias without anchor or inside its own anchor, or a limit of this file.
mezzo_status mz_yaml_parse(const char *where, const char *text, size_t n, mz_yaml **out);
mezzo_status mz_yaml_load(const char *path, mz_yaml **out);
const mz_yaml_node *mz_yaml_root(const mz_yaml *yaml); // NULL: an empty document
void mz_yaml_free(mz_yaml *yaml);                      // NULL is allowed
MZ_FREE_AT(mz_yaml_free_at, mz_yaml, mz_yaml_free)
const mz_yaml_node *mz_yaml_get(const mz_yaml_node *map, const char *key); // NULL: not a map, or no such key

// Returns whether the node is a null scalar: ~, null, or empty, not quoted.
bool mz_yaml_is_null(const mz_yaml_node *node);
// Appends "text" as a scalar that reads back as itself: plain where that is safe, else in double quotes.
void mz_yaml_add_scalar(mz_text *out, const char *text);

#endif
