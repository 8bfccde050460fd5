// Builds the configuration of a command line from defaults, recipe, files and keys.
#include <stdlib.h>

#include "cli.h"

// Errors name the option as it was typed.
static mezzo_status set_key(mezzo_config *config, const cli_given *given) {
    char source[130];
    snprintf(source, sizeof source, "--%s", given->typed);
    return mezzo_config_set(config, given->name, given->value, source);
}

const char *cli_key(const mezzo_config *config, const char *key) {
    const char *value = mezzo_config_get(config, key);
    if (value != NULL)
        return value;
    cli_error(MEZZO_ERR_MEMORY);
    cli_leave(CLI_FAILED);
}

const char *cli_given_key(const char *key) {
    for (int i = cli_line.n_given - 1; i >= 0; i--)
        if (cli_line.given[i].config && strcmp(cli_line.given[i].name, key) == 0)
            return cli_line.given[i].value;
    return NULL;
}

mezzo_status cli_set_defaults(mezzo_config *config, const cli_default *defaults, size_t n) {
    const bool named = cli_given_key("model.name") != NULL;
    for (size_t i = 0; i < n; i++)
        if (cli_given_key(defaults[i].key) == NULL && !(named && strncmp(defaults[i].key, "model.", 6) == 0))
            MEZZO_TRY(mezzo_config_set(config, defaults[i].key, defaults[i].value, cli_line.command->name));
    return MEZZO_OK;
}

int cli_open_device(const char *initial, mezzo_device **out) {
    int64_t threads;
    CLI_TRY(cli_integer("threads", 0, 1024, 0, &threads));
    return cli_code(mezzo_device_open(cli_text("device", initial), (int)threads, out));
}

int cli_config(mezzo_config **out) {
    mezzo_config *config = NULL;
    mezzo_status status = mezzo_config_create(&config);
    const char *recipe = cli_text("recipe", NULL);
    char path[4096];
    if (recipe != NULL) {
        int code = cli_recipe_path(recipe, path, sizeof path);
        if (code != CLI_DONE) {
            mezzo_config_free(config);
            return code;
        }
        status = mezzo_config_load(config, path);
    }
    for (int i = 0; i < cli_line.n_given && status == MEZZO_OK; i++)
        if (!cli_line.given[i].config && strcmp(cli_line.given[i].name, "config") == 0)
            status = mezzo_config_load(config, cli_line.given[i].value);
    for (int i = 0; i < cli_line.n_given && status == MEZZO_OK; i++)
        if (cli_line.given[i].config)
            status = set_key(config, &cli_line.given[i]);
    if (status != MEZZO_OK) {
        mezzo_config_free(config);
        return cli_error(status);
    }
    *out = config;
    return CLI_DONE;
}
