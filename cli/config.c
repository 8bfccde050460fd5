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
    cli_error(NULL, MEZZO_ERR_MEMORY);
    cli_leave(CLI_FAILED);
}

const char *cli_given_key(const cli_args *args, const char *key) {
    for (int i = args->n_given - 1; i >= 0; i--)
        if (args->given[i].config && strcmp(args->given[i].name, key) == 0)
            return args->given[i].value;
    return NULL;
}

mezzo_status cli_set_defaults(const cli_args *args, mezzo_config *config, const cli_default *defaults, size_t n) {
    const bool named = cli_given_key(args, "model.name") != NULL;
    for (size_t i = 0; i < n; i++)
        if (cli_given_key(args, defaults[i].key) == NULL && !(named && strncmp(defaults[i].key, "model.", 6) == 0))
            MEZZO_TRY(mezzo_config_set(config, defaults[i].key, defaults[i].value, args->command->name));
    return MEZZO_OK;
}

int cli_open_device(const cli_args *args, const char *initial, mezzo_device **out) {
    int64_t threads;
    CLI_TRY(cli_integer(args, "threads", 0, 1024, 0, &threads));
    return cli_code(args, mezzo_device_open(cli_text(args, "device", initial), (int)threads, out));
}

int cli_config(const cli_args *args, mezzo_config **out) {
    mezzo_config *config = NULL;
    mezzo_status status = mezzo_config_create(&config);
    const char *recipe = cli_text(args, "recipe", NULL);
    char path[4096];
    if (recipe != NULL) {
        int code = cli_recipe_path(args->command, recipe, path, sizeof path);
        if (code != CLI_DONE) {
            mezzo_config_free(config);
            return code;
        }
        status = mezzo_config_load(config, path);
    }
    for (int i = 0; i < args->n_given && status == MEZZO_OK; i++)
        if (!args->given[i].config && strcmp(args->given[i].name, "config") == 0)
            status = mezzo_config_load(config, args->given[i].value);
    for (int i = 0; i < args->n_given && status == MEZZO_OK; i++)
        if (args->given[i].config)
            status = set_key(config, &args->given[i]);
    if (status != MEZZO_OK) {
        mezzo_config_free(config);
        return cli_error(args->command, status);
    }
    *out = config;
    return CLI_DONE;
}
