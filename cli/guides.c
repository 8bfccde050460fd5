// Man pages, from the tables that --help prints.
#include "guides.h"

#include "mezzo/version.h"

enum { NAME_BYTES = 128, HELP_BYTES = 1024 };

static bool takes_files(const char *takes) {
    static const char *const words[] = {"FILE", "DIR", "PATH", "RUN"};
    for (size_t i = 0; i < MZ_COUNT(words); i++)
        if (strncmp(takes, words[i], strlen(words[i])) == 0)
            return true;
    return false;
}

static bool key_takes_files(const char *key) {
    static const char *const keys[] = {"data.path",   "data.train", "data.val",     "data.tokenizer", "data.features",
                                       "data.labels", "train.out",  "train.resume", "train.init"};
    for (size_t i = 0; i < MZ_COUNT(keys); i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

static void list_key(const mezzo_config_key *key, void (*each)(void *, const cli_listed *), void *user) {
    char name[NAME_BYTES];
    const int alias = (int)strcspn(key->aliases, " |");
    const bool map = strcmp(key->type, "map") == 0;
    if (alias > 0)
        snprintf(name, sizeof name, "%.*s", alias, key->aliases);
    else
        snprintf(name, sizeof name, "%s%s", key->key, map ? ".PATTERN" : "");
    const bool names = strchr(key->type, '|') != NULL;
    const char *word = cli_value_word(key->type);
    const cli_listed listed = {.name = name,
                               .key = key->key,
                               .takes = *word != '\0' ? word + 1 : "",
                               .choices = names ? key->type : "",
                               .help = key->help,
                               .initial = key->initial,
                               .files = key_takes_files(key->key)};
    each(user, &listed);
}

void cli_list_options(const cli_command *command, void (*each)(void *user, const cli_listed *option), void *user) {
    for (const cli_option *o = command->options; o->name != NULL; o++) {
        char help[HELP_BYTES];
        const char *takes = o->value != NULL ? o->value : "";
        if (o->help == NULL) // the others are for tests
            continue;
        const cli_listed listed = {.name = o->name,
                                   .takes = takes,
                                   .choices = strstr(takes, "NAME") == NULL && strchr(takes, '|') != NULL ? takes : "",
                                   .help = cli_option_help(o, help, sizeof help),
                                   .initial = "",
                                   .files = takes_files(takes)};
        each(user, &listed);
    }
    each(user, &(cli_listed){.name = "help", .takes = "", .choices = "", .help = "this text", .initial = ""});
    for (int i = 0; i < mezzo_config_count() && command->config != NULL; i++) {
        mezzo_config_key key = mezzo_config_describe(i);
        if (cli_takes_key(command, key.key))
            list_key(&key, each, user);
    }
}

// --- roff ----------------------------------------------------------------------------------------------------------
// Text that roff leaves as it is: no escapes, no requests; a hyphen stays one that can be copied.
static void roff(const char *text) {
    bool starts = true;
    for (; *text != '\0'; text++) {
        if (starts && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
        starts = *text == '\n';
    }
}

static void man_head(const char *name, const char *summary) {
    printf(".TH \"MEZZO%s", *name != '\0' ? "\\-" : "");
    for (const char *c = name; *c != '\0'; c++)
        putchar(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    printf("\" 1 \"\" \"mezzo %s\" \"Mezzo\"\n.nh\n.ad l\n.SH NAME\nmezzo%s%s \\- ", mezzo_version(),
           *name != '\0' ? "\\-" : "", name);
    roff(summary);
    printf("\n.SH SYNOPSIS\n");
}

static void man_option(void *user, const cli_listed *option) {
    char *section = user;
    const size_t n = option->key != NULL ? strcspn(option->key, ".") : 0;
    if (n > 0 && n < NAME_BYTES && (strlen(section) != n || strncmp(section, option->key, n) != 0)) {
        memcpy(section, option->key, n);
        section[n] = '\0';
        printf(".SS \"Keys of %s\"\n", section);
    }
    printf(".TP\n\\fB\\-\\-");
    roff(option->name);
    printf("\\fR");
    if (option->key != NULL && strncmp(option->name, option->key, strlen(option->key)) != 0) {
        printf(", \\fB\\-\\-");
        roff(option->key);
        printf("\\fR");
    }
    if (*option->takes != '\0') {
        printf(" \\fI");
        roff(option->takes);
        printf("\\fR");
    }
    putchar('\n');
    roff(option->help);
    if (*option->choices != '\0' && option->key != NULL && strcmp(option->choices, "true|false") != 0) {
        printf(": ");
        roff(option->choices);
    }
    if (*option->initial != '\0') {
        printf(" [");
        roff(option->initial);
        putchar(']');
    }
    putchar('\n');
}

static void man_tail(void) {
    printf(".SH \"EXIT STATUS\"\n0 done, 1 a check failed, 2 usage or bad input, 3 runtime failure, 130 interrupted.\n"
           "Results go to standard output, progress and messages to standard error.\n"
           ".SH ENVIRONMENT\n.TP\nMEZZO_VERBOSE\n"
           "dispatch,trace prints the kernel chosen for each op, and where errors come from\n");
}

void cli_man(const cli_command *command, const cli_command *const *commands, size_t n) {
    if (command != NULL) {
        char section[NAME_BYTES] = "";
        man_head(command->name, command->summary);
        printf(".B mezzo %s\n", command->name);
        roff(command->usage);
        if (*command->details != '\0') {
            printf("\n.SH DESCRIPTION\n");
            roff(command->details);
        }
        printf("\n.SH OPTIONS\n");
        cli_list_options(command, man_option, section);
        man_tail();
        printf(".SH \"SEE ALSO\"\n.BR mezzo (1)\n");
        return;
    }
    man_head("", "mixed-precision training of Transformers and image models");
    printf(".B mezzo\n.I SUBCOMMAND\n[\\fB\\-\\-option\\fR \\fIvalue\\fR ...]\n.SH SUBCOMMANDS\n");
    for (size_t i = 0; i < n; i++) {
        printf(".TP\n.BR mezzo\\-%s (1)\n", commands[i]->name);
        roff(commands[i]->summary);
        putchar('\n');
    }
    printf(".SH OPTIONS\n.TP\n\\fB\\-\\-help\\fR, \\fBhelp\\fR [\\fISUBCOMMAND\\fR]\nthe options\n"
           ".TP\n\\fBhelp \\-\\-man\\fR [\\fISUBCOMMAND\\fR]\nthis page, or a subcommand's\n"
           ".TP\n\\fBhelp \\-\\-completion\\fR \\fISHELL\\fR\na completion script for bash, zsh or fish\n"
           ".TP\n\\fB\\-\\-version\\fR\nthe version\n");
    man_tail();
}
