// mezzo recipes lists the recipes: YAML files of keys for runs with known results.
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"
#include "io/file.h"
#include "io/yaml.h"

// --- files installed with the command: recipes, documents, the Python module ----------------------------------------
bool cli_find_folder(const char *const *places, size_t n, char *folder, size_t size) {
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return false;
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < n; i++) {
        snprintf(folder, size, "%.4000s/%s", self, places[i]);
        char *whole = realpath(folder, NULL);
        if (whole != NULL)
            snprintf(folder, size, "%s", whole);
        free(whole);
        if (whole != NULL && mz_path_is_dir(folder))
            return true;
    }
    return false;
}

// --- recipes -------------------------------------------------------------------------------------------------------
static const char suffix[] = ".yaml";

// Shortens "NAME.yaml" to "NAME"; returns false for other files.
static bool cut_suffix(char *name) {
    const bool is = mz_ends_with(name, suffix);
    if (is)
        name[strlen(name) - strlen(suffix)] = '\0';
    return is;
}

typedef struct recipes {
    char folder[4096 + 64], **names; // of each recipe, without the suffix
    size_t n;
} recipes;

static void free_recipes(recipes *r) {
    mz_dir_list_free(r->names, r->n);
}

static int list_recipes(recipes *r) {
    static const char *const places[] = {"../share/mezzo/recipes", "../../recipes", "../recipes"};
    size_t all, kept = 0;
    if (!cli_find_folder(places, MZ_COUNT(places), r->folder, sizeof r->folder))
        return cli_wrong("no recipes next to this command: install Mezzo, or give a file with --config");
    CLI_DO(mz_dir_list(r->folder, &r->names, &all));
    for (size_t i = 0; i < all; i++)
        if (cut_suffix(r->names[i]))
            r->names[kept++] = r->names[i];
        else
            mz_free(r->names[i]);
    r->n = kept;
    return CLI_DONE;
}

int cli_recipe_path(const char *name, char *path, size_t size) {
    MZ_SCOPED(free_recipes) recipes r = {.names = NULL};
    CLI_TRY(list_recipes(&r));
    const char *const *names = (const char *const *)r.names, *near = mz_nearest(name, names, r.n);
    if (MZ_INDEX_WORD(r.names, r.n, name) == r.n)
        return cli_wrong("there is no recipe \"%s\"%s%s%s", name, near != NULL ? "; did you mean \"" : "",
                         near != NULL ? near : "", near != NULL ? "\"?" : "; mezzo recipes lists them");
    snprintf(path, size, "%.3800s/%.200s%s", r.folder, name, suffix);
    return CLI_DONE;
}

// --- output ---------------------------------------------------------------------------------------------------------
typedef struct told {
    char name[256], reproduces[256], data[256], device[256], time[256], reached[256];
} told;

static const mz_row_field fields[] = {
    {MZ_FIELD(told, name), "name"},         {MZ_FIELD(told, reproduces), "reproduces", "reproduces"},
    {MZ_FIELD(told, data), "data", "data"}, {MZ_FIELD(told, device), "device", "device"},
    {MZ_FIELD(told, time), "time", "time"}, {MZ_FIELD(told, reached), "reached", "reached"},
};

static void copy(const mz_yaml_node *recipe, const char *key, char out[256]) {
    const mz_yaml_node *node = mz_yaml_get(recipe, key);
    if (out[0] == '\0' && node != NULL && node->kind == MZ_YAML_SCALAR)
        snprintf(out, 256, "%s", node->text);
}

// Reads a recipe's own description; its base has the parts that it leaves out.
static mezzo_status describe(const char *folder, const char *name, int depth, told *out) {
    mz_yaml *yaml;
    MEZZO_TRY(mz_yaml_load(mz_path_of("%s/%s%s", folder, name, suffix).text, &yaml));
    const mz_yaml_node *recipe = mz_yaml_get(mz_yaml_root(yaml), "recipe"),
                       *base = mz_yaml_get(mz_yaml_root(yaml), "base");
    for (size_t i = 1; i < MZ_COUNT(fields); i++) // all but the name
        copy(recipe, fields[i].key, (char *)out + fields[i].offset);
    char next[64] = "";
    if (base != NULL && base->kind == MZ_YAML_SCALAR)
        snprintf(next, sizeof next, "%s", base->text);
    mz_yaml_free(yaml);
    return depth < 8 && cut_suffix(next) ? describe(folder, next, depth + 1, out) : MEZZO_OK;
}

static int tell(const told *all, size_t n) {
    if (cli_has("json"))
        return cli_json_print(MZ_LIST(fields, all, n));
    for (size_t i = 0; i < n; i++) {
        printf("%s%s\n", i > 0 ? "\n" : "", all[i].name);
        CLI_PRINT(mz_fields_lines, fields, MZ_COUNT(fields), &all[i], NULL, "  ", 12);
    }
    printf("\nRun one with mezzo train --recipe NAME --data PATH; options override its keys.\n");
    return CLI_DONE;
}

int cli_recipes(void) {
    MZ_SCOPED(free_recipes) recipes r = {.names = NULL};
    MZ_SCOPED(mz_free_at) told *all = NULL;
    CLI_TRY(list_recipes(&r));
    CLI_DO(MZ_NEW(all, r.n + 1));
    for (size_t i = 0; i < r.n; i++) {
        snprintf(all[i].name, sizeof all[i].name, "%s", r.names[i]);
        CLI_DO(describe(r.folder, r.names[i], 0, &all[i]));
    }
    return tell(all, r.n);
}
