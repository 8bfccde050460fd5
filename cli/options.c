// Parses a command line: a subcommand's own options, configuration keys by their full or short names, operands.
#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "io/config.h"
#include "io/number.h"
#include "train/config.h"

cli_args cli_line;

enum { NAME_BYTES = 128, MAX_NAMES = 512 };

static const cli_option *own_option(const cli_command *command, const char *name) {
    for (const cli_option *o = command->options; o->name != NULL; o++)
        if (mz_config_same_name(o->name, strlen(o->name), name, strlen(name)))
            return o;
    return NULL;
}

bool cli_begins(const char *text, const char *words) {
    size_t n;
    for (; (n = strcspn(words, " ")), words[n] != '\0'; words += n + 1)
        if (strncmp(text, words, n) == 0)
            return true;
    return strncmp(text, words, n) == 0;
}

bool cli_takes_key(const cli_command *command, const char *key) {
    return command->config != NULL && cli_begins(key, command->config);
}

// Finds the configuration key of a name, among those that the subcommand takes. An entry of a map is named
// "autocast.PATTERN".
static bool config_key(const cli_command *command, const char *name, mezzo_config_key *out, const char **key) {
    const char *pattern;
    *out = mezzo_config_describe(mz_config_index(name, &pattern));
    *key = pattern != NULL ? name : out->key;
    return out->key != NULL && cli_takes_key(command, out->key);
}

// Reports an unknown option with every similar name: own options, short names and full keys.
static int unknown_option(const cli_command *command, const char *typed) {
    const char *names[MAX_NAMES];
    char words[MAX_NAMES][NAME_BYTES];
    size_t n = 0;
    for (const cli_option *o = command->options; o->name != NULL && n < MAX_NAMES; o++)
        names[n++] = o->name;
    for (int i = 0; i < mezzo_config_count() && command->config != NULL; i++) {
        mezzo_config_key key = mezzo_config_describe(i);
        if (!cli_takes_key(command, key.key))
            continue;
        size_t length;
        for (const char *at = NULL; n < MAX_NAMES && (at = mz_config_next_alias(key.aliases, at, &length)) != NULL;) {
            snprintf(words[n], NAME_BYTES, "%.*s", (int)length, at);
            names[n] = words[n];
            n++;
        }
        if (n < MAX_NAMES)
            names[n++] = key.key;
    }
    const char *nearest = mz_nearest(typed, names, n);
    if (strcmp(typed, "model") == 0 && own_option(command, "family") != NULL) // sweep measures many shapes of a family
        nearest = "family";
    if (nearest != NULL)
        return cli_wrong("there is no option --%s; did you mean --%s?", typed, nearest);
    return cli_wrong("there is no option --%s; mezzo %s --help lists them", typed, command->name);
}

// Parses one option at argv[i], possibly with its value in argv[i + 1]; *used is the number of both words.
static int parse_option(int argc, char **argv, int i, int *used) {
    const cli_command *command = cli_line.command;
    char *typed = argv[i] + (argv[i][1] == '-' ? 2 : 1);
    char *equals = strchr(typed, '=');
    if (equals != NULL)
        *equals = '\0';
    const cli_option *own = own_option(command, typed);
    mezzo_config_key key = {0};
    const char *name = own != NULL ? own->name : NULL;
    bool negated = false; // --no-recompute
    if (own == NULL && !config_key(command, typed, &key, &name)) {
        negated = equals == NULL && strncmp(typed, "no-", 3) == 0 && config_key(command, typed + 3, &key, &name) &&
                  strcmp(key.type, "true|false") == 0;
        if (!negated)
            return unknown_option(command, typed);
    }

    // A switch alone turns on; --switch=false, "--switch false" and --no-switch turn a configuration's switch off.
    const char *next = i + 1 < argc ? argv[i + 1] : NULL;
    bool is_switch = own == NULL && strcmp(key.type, "true|false") == 0;
    bool next_is_truth = next != NULL && (strcmp(next, "true") == 0 || strcmp(next, "false") == 0);
    const char *value = equals != NULL ? equals + 1 : NULL;
    *used = 1;
    if (own != NULL && own->value == NULL) {
        if (value != NULL)
            return cli_wrong("--%s takes no value (\"%s\" was given)", typed, value);
        value = "";
    } else if (negated) {
        value = "false";
    } else if (value == NULL && is_switch && !next_is_truth) {
        value = "true";
    } else if (value == NULL) {
        if (next == NULL || strncmp(next, "--", 2) == 0) // a value that starts like this is written --option=VALUE
            return cli_wrong("--%s needs a value: %s", typed, own != NULL ? own->value : key.help);
        value = next;
        *used = 2;
    }
    cli_line.given[cli_line.n_given++] =
        (cli_given){.name = name, .value = value, .typed = typed, .config = own == NULL};
    return CLI_DONE;
}

// Returns whether the word is an option like "-n": one whose name is a single letter may have one dash.
static bool is_letter(const cli_command *command, const char *word) {
    return word[0] == '-' && word[1] != '\0' && word[1] != '-' && word[2] == '\0' &&
           own_option(command, word + 1) != NULL;
}

int cli_parse(const cli_command *command, const char *program, int argc, char **argv) {
    cli_line = (cli_args){.command = command, .program = program};
    cli_line.given = mz_alloc((size_t)argc + 1, sizeof *cli_line.given);
    cli_line.operands = mz_alloc((size_t)argc + 1, sizeof *cli_line.operands);
    if (cli_line.given == NULL || cli_line.operands == NULL)
        return cli_error(MEZZO_ERR_MEMORY);
    bool options = true;
    for (int i = 0, used = 1; i < argc; i += used) {
        used = 1;
        if (options && strcmp(argv[i], "--") == 0) {
            options = false;
        } else if (options && (strncmp(argv[i], "--", 2) == 0 || is_letter(command, argv[i]))) {
            CLI_TRY(parse_option(argc, argv, i, &used));
        } else if (options && argv[i][0] == '-' && argv[i][1] != '\0') {
            return cli_wrong("there is no option %s; options have two dashes, mezzo %s --help lists them", argv[i],
                             command->name);
        } else if (cli_line.n_operands == command->max_operands) {
            return cli_wrong("\"%s\" is not expected here; %s", argv[i], cli_usage());
        } else {
            cli_line.operands[cli_line.n_operands++] = argv[i];
        }
    }
    return CLI_DONE;
}

char *cli_command_line(void) {
    mz_text text = {0};
    mz_text_addf(&text, "mezzo %s", cli_line.command->name);
    for (int i = 0; i < cli_line.n_operands; i++)
        mz_text_addf(&text, " %s", cli_line.operands[i]);
    for (int i = 0; i < cli_line.n_given; i++)
        mz_text_addf(&text, " --%s%s%s", cli_line.given[i].name, cli_line.given[i].value[0] != '\0' ? " " : "",
                     cli_line.given[i].value);
    if (text.status != MEZZO_OK)
        mz_text_free(&text);
    return text.data;
}

// Returns the last value given to an own option or to a configuration key; NULL: none.
static const char *last_given(const char *name, bool config) {
    for (int i = cli_line.n_given - 1; i >= 0; i--)
        if (cli_line.given[i].config == config && strcmp(cli_line.given[i].name, name) == 0)
            return cli_line.given[i].value;
    return NULL;
}

bool cli_has(const char *name) {
    return last_given(name, false) != NULL;
}

const char *cli_text(const char *name, const char *initial) {
    const char *value = last_given(name, false);
    return value != NULL ? value : initial;
}

const char *cli_next_value(const char *name, int *at) {
    while (*at < cli_line.n_given) {
        const cli_given *given = &cli_line.given[(*at)++];
        if (!given->config && strcmp(given->name, name) == 0)
            return given->value;
    }
    return NULL;
}

const char *cli_out_file(const char *name, const char *initial) {
    const char *path = cli_text(name, initial);
    return path != NULL && strcmp(path, "-") == 0 ? CLI_STDOUT : path;
}

int cli_refuse(const char *why, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (cli_has(names[i]))
            return cli_wrong("--%s %s", names[i], why);
    return CLI_DONE;
}

bool cli_next_word(const char **list, char *word, size_t size) {
    const size_t n = strcspn(*list, ",");
    if (**list == '\0')
        return false;
    snprintf(word, size, "%.*s", (int)n, *list);
    *list += n + ((*list)[n] == ',');
    return true;
}

int cli_words(const char *name, const char *initial, int most, cli_word *words, int *n) {
    const char *list = cli_text(name, initial);
    cli_word word;
    for (*n = 0; cli_next_word(&list, word, sizeof word); ++*n) {
        if (*n == most)
            return cli_wrong("--%s: more than %d of them", name, most);
        if (MZ_INDEX_WORD(words, *n, word) < (size_t)*n)
            return cli_wrong("--%s: %s occurs twice", name, word);
        memcpy(words[*n], word, sizeof word);
    }
    return *n > 0 ? CLI_DONE : cli_wrong("--%s: name at least one", name);
}

// Parses a whole number of an option's value; `what` names it in an error.
static int parse_integer(const char *name, const char *what, const char *text, int64_t least, int64_t most,
                         int64_t *out) {
    int64_t value;
    if (!mz_number_parse_int(text, &value) || value < least || value > most)
        return cli_wrong("%s%s %s: %s must be a whole number from %lld to %lld", name[1] == '\0' ? "-" : "--", name,
                         cli_text(name, text), what, (long long)least, (long long)most);
    *out = value;
    return CLI_DONE;
}

int cli_integer(const char *name, int64_t least, int64_t most, int64_t initial, int64_t *out) {
    const char *text = cli_text(name, NULL);
    *out = initial;
    return text == NULL ? CLI_DONE : parse_integer(name, "it", text, least, most, out);
}

int cli_integers(const char *name, const char *initial, int64_t greatest, int most, int64_t *out, int *n) {
    cli_word words[CLI_WORDS];
    CLI_TRY(cli_words(name, initial, most < CLI_WORDS ? most : CLI_WORDS, words, n));
    for (int i = 0; i < *n; i++)
        CLI_TRY(parse_integer(name, words[i], words[i], 1, greatest, &out[i]));
    return CLI_DONE;
}

int cli_number(const char *name, double least, double most, double initial, double *out) {
    const char *text = cli_text(name, NULL);
    *out = initial;
    if (text == NULL)
        return CLI_DONE;
    double value;
    if (!mz_number_parse(text, &value) || !(value >= least && value <= most)) // written so that NaN fails
        return cli_wrong("--%s %s: it must be a number from %g to %g", name, text, least, most);
    *out = value;
    return CLI_DONE;
}

int cli_ranges(const cli_range *ranges, size_t n, void *into) {
    for (size_t i = 0; i < n; i++) {
        const cli_range *r = &ranges[i];
        void *to = (char *)into + r->offset;
        double number = 0;
        int64_t integer = 0;
        if (r->kind == MZ_FIELD_F64 || r->factor != 0) {
            CLI_TRY(cli_number(r->name, r->least, r->most, r->initial, &number));
            integer = r->factor != 0 ? (int64_t)(number * r->factor) : 0;
        } else {
            const int64_t most = r->most < 0x1p63 ? (int64_t)r->most : INT64_MAX;
            CLI_TRY(cli_integer(r->name, (int64_t)r->least, most, (int64_t)r->initial, &integer));
        }
        if (r->kind == MZ_FIELD_F64)
            *(double *)to = number;
        else if (r->kind == MZ_FIELD_I32)
            *(int *)to = (int)integer;
        else
            memcpy(to, &integer, sizeof integer); // the number may have either sign
    }
    return CLI_DONE;
}

// --- configurations: defaults, recipe, files, keys ----------------------------------------------------
// Sets a key; errors name the option as it was typed.
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
    return last_given(key, true);
}

bool cli_next_default(const char **at, cli_default *out) {
    int n = 0;
    if (*at == NULL || sscanf(*at, "%39s %23s %n", out->key, out->value, &n) != 2)
        return false;
    *at += n;
    return true;
}

mezzo_status cli_set_defaults(mezzo_config *config) {
    const bool named = cli_given_key("model.name") != NULL;
    const char *at = cli_line.command->defaults;
    for (cli_default d; cli_next_default(&at, &d);)
        if (cli_given_key(d.key) == NULL && !(named && strncmp(d.key, "model.", 6) == 0))
            MEZZO_TRY(mezzo_config_set(config, d.key, d.value, cli_line.command->name));
    return MEZZO_OK;
}

int cli_open_device(const char *initial, mezzo_device **out) {
    int64_t threads;
    CLI_TRY(cli_integer("threads", 0, 4096, 0, &threads));
    return cli_code(mezzo_device_open(cli_text("device", initial), (int)threads, out));
}

int cli_config(mezzo_config **out) {
    const char *recipe = cli_text("recipe", NULL);
    char path[4096];
    CLI_DO(mezzo_config_create(out));
    if (recipe != NULL) {
        CLI_TRY(cli_recipe_path(recipe, path, sizeof path));
        CLI_DO(mezzo_config_load(*out, path));
    }
    int at = 0;
    for (const char *file; (file = cli_next_value("config", &at)) != NULL;)
        CLI_DO(mezzo_config_load(*out, file));
    for (int i = 0; i < cli_line.n_given; i++)
        if (cli_line.given[i].config)
            CLI_DO(set_key(*out, &cli_line.given[i]));
    return CLI_DONE;
}
