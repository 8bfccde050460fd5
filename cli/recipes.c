// mezzo recipes lists the recipes: YAML files of keys for runs with known results.
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"
#include "fields.h"
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
static bool find_folder(char *folder, size_t size) {
    static const char *const places[] = {"../share/mezzo/recipes", "../../recipes", "../recipes"};
    return cli_find_folder(places, MZ_COUNT(places), folder, size);
}

static const char suffix[] = ".yaml";

// Shortens "NAME.yaml" to "NAME"; returns false for other files.
static bool cut_suffix(char *name) {
    const bool is = mz_ends_with(name, suffix);
    if (is)
        name[strlen(name) - strlen(suffix)] = '\0';
    return is;
}

static int list_names(const char *folder, char ***names, size_t *n) {
    size_t kept = 0;
    mezzo_status status = mz_dir_list(folder, names, n);
    if (status != MEZZO_OK)
        return cli_error(status);
    for (size_t i = 0; i < *n; i++)
        if (cut_suffix((*names)[i])) {
            char *name = (*names)[i];
            (*names)[i] = (*names)[kept];
            (*names)[kept++] = name;
        }
    for (size_t i = kept; i < *n; i++)
        (*names)[i][0] = '\0';
    return CLI_DONE;
}

static int no_folder(void) {
    return cli_wrong("no recipes next to this command: install Mezzo, or give a file with --config");
}

int cli_recipe_path(const char *name, char *path, size_t size) {
    char folder[4096 + 64], **names;
    size_t n, whole = 0;
    if (!find_folder(folder, sizeof folder))
        return no_folder();
    if (list_names(folder, &names, &n) != CLI_DONE)
        return CLI_FAILED;
    while (whole < n && names[whole][0] != '\0')
        whole++;
    const bool found = MZ_INDEX_WORD(names, whole, name) < whole;
    const char *near = mz_nearest(name, (const char *const *)names, whole);
    int code = CLI_DONE;
    if (found)
        snprintf(path, size, "%.3800s/%.200s%s", folder, name, suffix);
    else
        code = cli_wrong("there is no recipe \"%s\"%s%s%s", name, near != NULL ? "; did you mean \"" : "",
                         near != NULL ? near : "", near != NULL ? "\"?" : "; mezzo recipes lists them");
    mz_dir_list_free(names, n);
    return code;
}

// --- output ---------------------------------------------------------------------------------------------------------
typedef struct told {
    char name[64], reproduces[256], data[256], device[160], time[160], reached[256];
} told;

static const cli_field fields[] = {
    {CLI_FIELD(told, name), "name"},         {CLI_FIELD(told, reproduces), "reproduces", "reproduces"},
    {CLI_FIELD(told, data), "data", "data"}, {CLI_FIELD(told, device), "device", "device"},
    {CLI_FIELD(told, time), "time", "time"}, {CLI_FIELD(told, reached), "reached", "reached"},
};

static void copy(const mz_yaml_node *recipe, const char *key, char *out, size_t size) {
    const mz_yaml_node *node = mz_yaml_get(recipe, key);
    if (out[0] == '\0' && node != NULL && node->kind == MZ_YAML_SCALAR)
        snprintf(out, size, "%s", node->text);
}

// Reads a recipe's own description; its base has the parts that it leaves out.
static mezzo_status describe(const char *folder, const char *name, int depth, told *out) {
    mz_yaml *yaml;
    MEZZO_TRY(mz_yaml_load(mz_path_of("%s/%s%s", folder, name, suffix).text, &yaml));
    const mz_yaml_node *recipe = mz_yaml_get(mz_yaml_root(yaml), "recipe"),
                       *base = mz_yaml_get(mz_yaml_root(yaml), "base");
    copy(recipe, "reproduces", out->reproduces, sizeof out->reproduces);
    copy(recipe, "data", out->data, sizeof out->data);
    copy(recipe, "device", out->device, sizeof out->device);
    copy(recipe, "time", out->time, sizeof out->time);
    copy(recipe, "reached", out->reached, sizeof out->reached);
    char next[64] = "";
    if (base != NULL && base->kind == MZ_YAML_SCALAR)
        snprintf(next, sizeof next, "%s", base->text);
    mz_yaml_free(yaml);
    return depth < 8 && cut_suffix(next) ? describe(folder, next, depth + 1, out) : MEZZO_OK;
}

static int tell(const told *all, size_t n) {
    if (cli_has("json"))
        return cli_json_print(CLI_LIST(fields, all, n));
    for (size_t i = 0; i < n; i++) {
        printf("%s%s\n", i > 0 ? "\n" : "", all[i].name);
        cli_fields_lines(fields, MZ_COUNT(fields), &all[i], NULL, "  ", 12);
    }
    printf("\nRun one with mezzo train --recipe NAME --data PATH; options override its keys.\n");
    return CLI_DONE;
}

int cli_recipes(void) {
    char folder[4096 + 64], **names;
    size_t n, k = 0;
    if (!find_folder(folder, sizeof folder))
        return no_folder();
    CLI_TRY(list_names(folder, &names, &n));
    told *all = mz_alloc(n + 1, sizeof *all);
    mezzo_status status = all == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
    for (size_t i = 0; i < n && names[i][0] != '\0' && status == MEZZO_OK; i++) {
        snprintf(all[k].name, sizeof all[k].name, "%s", names[i]);
        status = describe(folder, names[i], 0, &all[k++]);
    }
    const int code = status == MEZZO_OK ? tell(all, k) : cli_error(status);
    mz_free(all);
    mz_dir_list_free(names, n);
    return code;
}
