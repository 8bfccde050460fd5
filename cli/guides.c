// Prints help and man pages from one list of options.
#include "cli.h"

#include "base/precision.h"
#include "mezzo/version.h"

enum { NAME_BYTES = 128, HELP_BYTES = 1024 };

// Returns an option's help, with the names of all common precisions for "{precisions}": in buf, or the option's own
// text.
static const char *option_help(const cli_option *option, char *buf, size_t size) {
    static const char word[] = "{precisions}";
    const char *help = option->help;
    const char *at = strstr(help, word);
    if (at == NULL)
        return help;
    mezzo_precision all[MEZZO_PRECISION_COUNT];
    char names[160] = "";
    int n = mz_precision_common(all);
    for (int i = 0; i < n; i++)
        cli_add(names, sizeof names, "%s%s", i > 0 ? "," : "", mezzo_precision_name(all[i]));
    snprintf(buf, size, "%.*s%s%s", (int)(at - help), help, names, at + sizeof word - 1);
    return buf;
}

// Returns the word for a configuration key's value; "" for a switch.
static const char *value_word(const char *type) {
    static const struct {
        const char *type, *word;
    } words[] = {{"integer", "N"}, {"number", "X"}, {"text", "TEXT"}, {"map", "NAME"}, {"true|false", ""}};
    const size_t i = MZ_INDEX(words, MZ_COUNT(words), type, type);
    return i < MZ_COUNT(words) ? words[i].word : "NAME";
}

static const char file_words[] = "FILE DIR FOLDER PATH RUN", // words for values that are files, and keys whose values
                                                             // are
    file_keys[] = "model.name data.path data.train data.val data.tokenizer data.features data.labels data.latents "
                  "train.out train.resume train.init";

static void list_key(const cli_command *command, const mezzo_config_key *key, void (*each)(void *, const cli_listed *),
                     void *user) {
    char name[NAME_BYTES];
    const char *own = command->defaults;
    cli_default d = {.key = ""};
    while (cli_next_default(&own, &d) && strcmp(d.key, key->key) != 0)
        continue;
    const int alias = (int)strcspn(key->aliases, " |");
    const bool map = strcmp(key->type, "map") == 0;
    if (alias > 0)
        snprintf(name, sizeof name, "%.*s", alias, key->aliases);
    else
        snprintf(name, sizeof name, "%s%s", key->key, map ? ".PATTERN" : "");
    const bool names = strchr(key->type, '|') != NULL;
    const cli_listed listed = {.name = name,
                               .key = key->key,
                               .takes = value_word(key->type),
                               .choices = names ? key->type : "",
                               .help = key->help,
                               .initial = strcmp(d.key, key->key) == 0 ? d.value : key->initial,
                               .is_map = map,
                               .files = cli_begins(key->key, file_keys)};
    each(user, &listed);
}

void cli_list_options(const cli_command *command, void (*each)(void *user, const cli_listed *option), void *user) {
    for (const cli_option *o = command->options; o->name != NULL; o++) {
        char help[HELP_BYTES];
        const char *takes = o->value != NULL ? o->value : "";
        if (o->help == NULL) // options without help are for tests
            continue;
        const cli_listed listed = {.name = o->name,
                                   .takes = takes,
                                   .choices = strstr(takes, "NAME") == NULL && strchr(takes, '|') != NULL ? takes : "",
                                   .help = option_help(o, help, sizeof help),
                                   .initial = "",
                                   .files = cli_begins(takes, file_words)};
        each(user, &listed);
    }
    each(user, &(cli_listed){.name = "help", .takes = "", .choices = "", .help = "this text", .initial = ""});
    for (int i = 0; i < mezzo_config_count() && command->config != NULL; i++) {
        mezzo_config_key key = mezzo_config_describe(i);
        if (cli_takes_key(command, key.key))
            list_key(command, &key, each, user);
    }
}

// --- help: at most 80 columns --------------------------------------------------------------------------------------
enum { HELP_COLUMN = 26 }; // the column where the texts of options begin

static void print_option(const char *left, const char *text) {
    int width = 2 + mz_columns_of(left, strlen(left));
    printf("  %s", left);
    if (width < HELP_COLUMN)
        printf("%*s", HELP_COLUMN - width, "");
    else
        printf("\n%*s", HELP_COLUMN, "");
    cli_wrap(text, HELP_COLUMN, HELP_COLUMN, MZ_TEXT_COLUMNS);
}

// Prints the documents that a help names, with their paths.
static void print_documents(const char *details) {
    static const char *const places[] = {"../share/doc/mezzo/docs", "../../docs", "../docs"};
    char folder[4096 + 64];
    if (strstr(details, "docs/") != NULL && cli_find_folder(places, MZ_COUNT(places), folder, sizeof folder))
        printf("docs/ is %s\n", folder);
}

// Prints a line for each option and key; a key's section begins with its name.
static void print_listed(void *user, const cli_listed *o) {
    const char **section = user;
    char left[128], text[1024];
    const bool names = *o->choices != '\0' && *o->takes != '\0' && o->key != NULL;
    snprintf(text, sizeof text, "%s%s%s%s%s%s", o->help, names ? ": " : "", names ? o->choices : "",
             *o->initial != '\0' ? " [" : "", o->initial, *o->initial != '\0' ? "]" : "");
    if (o->key == NULL) {
        snprintf(left, sizeof left, "%s%s%s%s", o->name[1] != '\0' ? "--" : "-", o->name, *o->takes != '\0' ? " " : "",
                 o->takes);
        print_option(left, text);
        return;
    }
    const size_t n = strcspn(o->key, ".");
    if (strcspn(*section, ".") != n || strncmp(*section, o->key, n) != 0)
        printf("\n%.*s:\n", (int)n, o->key);
    *section = o->key;
    const bool alias = strncmp(o->name, o->key, strlen(o->key)) != 0;
    printf("  --%s%s%s%s%s%s\n        ", o->key, o->is_map ? ".PATTERN" : "", alias ? ", --" : "", alias ? o->name : "",
           *o->takes != '\0' ? " " : "", o->takes);
    cli_wrap(text, 8, 8, MZ_TEXT_COLUMNS);
}

void cli_help(const cli_command *command) {
    const char *section = "";
    char line[1024];
    snprintf(line, sizeof line, "mezzo %s: %s", command->name, command->summary);
    cli_wrap(line, 0, 4, MZ_TEXT_COLUMNS);
    putchar('\n');
    for (const char *form = command->usage; *form != '\0';) { // each form of the call begins a line
        const size_t n = strcspn(form, "\n");
        snprintf(line, sizeof line, "%s mezzo %s %.*s", form == command->usage ? "usage:" : "      ", command->name,
                 (int)n, form);
        cli_wrap(line, 0, 11, MZ_TEXT_COLUMNS);
        form += n + (form[n] == '\n');
    }
    if (*command->details != '\0') {
        putchar('\n');
        cli_wrap(command->details, 0, 0, MZ_TEXT_COLUMNS);
        print_documents(command->details);
    }
    printf("\noptions:\n");
    cli_list_options(command, print_listed, &section);
}

// --- roff ----------------------------------------------------------------------------------------------------------
// Prints a line that roff leaves unchanged: without escapes and requests; a hyphen stays one that can be copied.
// Returns the next line.
static const char *roff_line(const char *text) {
    bool starts = true;
    for (; *text != '\0' && *text != '\n'; text++) {
        if (starts && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
        starts = false;
    }
    return text + (*text == '\n');
}

static void roff(const char *text) {
    while (*text != '\0') {
        text = roff_line(text);
        fputs(*text != '\0' ? "\n" : "", stdout);
    }
}

// Prints `text` between two texts that are roff already.
static void roff_between(const char *before, const char *text, const char *after) {
    fputs(before, stdout);
    roff(text);
    fputs(after, stdout);
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
    roff_between(".TP\n\\fB\\-\\-", option->name, "\\fR");
    if (option->key != NULL && strncmp(option->name, option->key, strlen(option->key)) != 0)
        roff_between(", \\fB\\-\\-", option->key, "\\fR");
    if (*option->takes != '\0')
        roff_between(" \\fI", option->takes, "\\fR");
    roff_between("\n", option->help, "");
    if (*option->choices != '\0' && option->key != NULL && strcmp(option->choices, "true|false") != 0)
        roff_between(": ", option->choices, "");
    if (*option->initial != '\0')
        roff_between(" [", option->initial, "]");
    putchar('\n');
}

static void man_tail(void) {
    printf(".SH \"EXIT STATUS\"\n0 done, 1 a check failed, 2 usage or bad input, 3 runtime failure, 130 interrupted.\n"
           "Results go to standard output, progress and messages to standard error.\n"
           ".SH ENVIRONMENT\n.TP\nMEZZO_VERBOSE\n"
           "dispatch,trace prints the kernel chosen for each op, and where errors come from\n");
}

void cli_man(const cli_command *command, const cli_command *commands, size_t n) {
    if (command != NULL) {
        char section[NAME_BYTES] = "";
        man_head(command->name, command->summary);
        for (const char *form = command->usage; *form != '\0';) {
            printf(".B mezzo %s\n", command->name);
            form = roff_line(form);
            fputs(*form != '\0' ? "\n.br\n" : "", stdout);
        }
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
        printf(".TP\n.BR mezzo\\-%s (1)\n", commands[i].name);
        roff(commands[i].summary);
        putchar('\n');
    }
    printf(".SH OPTIONS\n.TP\n\\fB\\-\\-help\\fR, \\fBhelp\\fR [\\fISUBCOMMAND\\fR]\nthe options\n"
           ".TP\n\\fBhelp \\-\\-man\\fR [\\fISUBCOMMAND\\fR]\nthis page, or a subcommand's\n"
           ".TP\n\\fBhelp \\-\\-completion\\fR \\fISHELL\\fR\na completion script for bash, zsh or fish\n"
           ".TP\n\\fB\\-\\-version\\fR\nthe version\n");
    man_tail();
}
