// Writes completion scripts for bash, zsh and fish from the tables that --help prints.
#include "cli.h"

static void put_without(const char *text, const char *special, const char *instead) {
    for (; *text != '\0'; text++)
        if (strchr(special, *text) != NULL)
            fputs(instead, stdout);
        else
            putchar(*text);
}

static void put_choices(const char *choices) {
    put_without(choices, "|", " ");
}

// Returns the length of a name that is completed: up to the dot where a pattern follows ("--autocast.PATTERN").
static int stem(const char *name) {
    const char *pattern = strstr(name, "PATTERN");
    return pattern != NULL ? (int)(pattern - name) : (int)strlen(name);
}

// --- bash ----------------------------------------------------------------------------------------------------------
static void bash_name(void *user, const cli_listed *o) {
    (void)user;
    printf(" --%.*s", stem(o->name), o->name);
}

static void bash_values(void *user, const cli_listed *o) {
    const cli_command *command = user;
    if (*o->choices == '\0' || *o->takes == '\0')
        return;
    printf("    \"%s --%s\") words=\"", command->name, o->name);
    put_choices(o->choices);
    printf("\" ;;\n");
}

static void bash(const cli_command *commands, size_t n) {
    printf("# bash completion of mezzo, made by: mezzo help --completion bash\n"
           "_mezzo() {\n"
           "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
           "    COMPREPLY=()\n"
           "    if [[ $COMP_CWORD -eq 1 ]]; then\n"
           "        mapfile -t COMPREPLY < <(compgen -W \"");
    for (size_t i = 0; i < n; i++)
        printf("%s ", commands[i].name);
    printf("help --help --version\" -- \"$current\")\n"
           "        return\n"
           "    fi\n"
           "    case \"${COMP_WORDS[1]} $before\" in\n");
    for (size_t i = 0; i < n; i++)
        cli_list_options(&commands[i], bash_values, (void *)(uintptr_t)&commands[i]);
    printf("    \"help help\" | \"help --man\") words=\"");
    for (size_t i = 0; i < n; i++)
        printf("%s ", commands[i].name);
    printf("\" ;;\n"
           "    \"help --completion\") words=\"bash zsh fish\" ;;\n"
           "    esac\n"
           "    if [[ $current == -* && ( -z $words || $before == help ) ]]; then\n"
           "        case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < n; i++) {
        printf("        %s) words=\"", commands[i].name);
        cli_list_options(&commands[i], bash_name, NULL);
        printf("\" ;;\n");
    }
    printf("        help) words=\"--man --completion\" ;;\n"
           "        esac\n"
           "    fi\n"
           "    if [[ -n $words ]]; then\n"
           "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
           "    else\n"
           "        compopt -o filenames 2>/dev/null\n"
           "        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
           "    fi\n"
           "}\n"
           "complete -F _mezzo mezzo\n");
}

// --- zsh -----------------------------------------------------------------------------------------------------------
static void zsh_option(void *user, const cli_listed *o) {
    (void)user;
    printf("            '--%.*s", stem(o->name), o->name);
    printf("%s[", *o->takes != '\0' ? "=" : "");
    for (const char *c = o->help; *c != '\0'; c++)
        if (strchr("[]:\\", *c) != NULL)
            printf("\\%c", *c);
        else
            fputs(*c == '\'' ? "'\\''" : (char[]){*c, '\0'}, stdout);
    printf("]");
    if (*o->takes != '\0') {
        printf(":");
        put_without(o->takes, ":'[]\\", " ");
        printf(":");
        if (*o->choices != '\0') {
            printf("(");
            put_choices(o->choices);
            printf(")");
        } else if (o->files) {
            printf("_files");
        }
    }
    printf("' \\\n");
}

static void zsh(const cli_command *commands, size_t n) {
    printf("#compdef mezzo\n# zsh completion of mezzo, made by: mezzo help --completion zsh\n"
           "_mezzo() {\n    local -a subcommands\n    subcommands=(\n");
    for (size_t i = 0; i < n; i++) {
        printf("        '%s:", commands[i].name);
        put_without(commands[i].summary, "':\\", " ");
        printf("'\n");
    }
    printf("        'help:the options of a subcommand'\n    )\n"
           "    if (( CURRENT == 2 )); then\n        _describe subcommand subcommands\n        return\n    fi\n"
           "    local subcommand=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $subcommand in\n");
    for (size_t i = 0; i < n; i++) {
        printf("    %s)\n        _arguments \\\n", commands[i].name);
        cli_list_options(&commands[i], zsh_option, NULL);
        printf("            '*:file:_files'\n        ;;\n");
    }
    printf("    help)\n        _describe subcommand subcommands\n        ;;\n    esac\n}\n"
           "if [[ $funcstack[1] == _mezzo ]]; then\n    _mezzo \"$@\"\nelse\n    compdef _mezzo mezzo\nfi\n");
}

// --- fish ----------------------------------------------------------------------------------------------------------
static void fish_text(const char *text) {
    putchar('\'');
    for (; *text != '\0'; text++)
        if (*text == '\'' || *text == '\\')
            printf("\\%c", *text);
        else
            putchar(*text);
    putchar('\'');
}

static void fish_option(void *user, const cli_listed *o) {
    const cli_command *command = user;
    printf("complete -c mezzo -n '__fish_seen_subcommand_from %s' -l %.*s", command->name, stem(o->name), o->name);
    if (*o->takes != '\0')
        printf(o->files ? " -r -F" : " -x");
    if (*o->choices != '\0' && *o->takes != '\0') {
        printf(" -a '");
        put_choices(o->choices);
        printf("'");
    }
    printf(" -d ");
    fish_text(o->help);
    putchar('\n');
}

static void fish(const cli_command *commands, size_t n) {
    printf("# fish completion of mezzo, made by: mezzo help --completion fish\n");
    for (size_t i = 0; i < n; i++) {
        printf("complete -c mezzo -n __fish_use_subcommand -f -a %s -d ", commands[i].name);
        fish_text(commands[i].summary);
        putchar('\n');
    }
    for (size_t i = 0; i < n; i++)
        cli_list_options(&commands[i], fish_option, (void *)(uintptr_t)&commands[i]);
}

bool cli_completion(const char *shell, const cli_command *commands, size_t n) {
    static const struct {
        const char *name;
        void (*print)(const cli_command *commands, size_t n);
    } shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    for (size_t i = 0; i < MZ_COUNT(shells); i++)
        if (strcmp(shell, shells[i].name) == 0) {
            shells[i].print(commands, n);
            return true;
        }
    return false;
}
