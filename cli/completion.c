// Completes words of a command line. A shell's script passes the words to `mezzo help --words`, which reads the tables
// of --help.
#include "cli.h"

extern const unsigned char mz_bash[], mz_zsh[], mz_fish[];
extern const size_t mz_bash_size, mz_zsh_size, mz_fish_size;

bool cli_completion(const char *shell) {
    if (strcmp(shell, "bash") == 0)
        fwrite(mz_bash, 1, mz_bash_size, stdout);
    else if (strcmp(shell, "zsh") == 0)
        fwrite(mz_zsh, 1, mz_zsh_size, stdout);
    else if (strcmp(shell, "fish") == 0)
        fwrite(mz_fish, 1, mz_fish_size, stdout);
    else
        return false;
    return true;
}

// Offers a word with its help; a name ends where a pattern follows ("--autocast.PATTERN").
static void offer(const char *dashes, const char *name, const char *help) {
    const char *pattern = strstr(name, "PATTERN");
    printf("%s%.*s\t", dashes, (int)(pattern != NULL ? (size_t)(pattern - name) : strlen(name)), name);
    for (; *help != '\0'; help++)
        putchar(*help == '\n' ? ' ' : *help);
    putchar('\n');
}

static void offer_option(void *user, const cli_listed *o) {
    (void)user;
    offer("--", o->name, o->help);
}

// Offers the values of the option before the word; `user` is that option, NULL once it was found.
static void offer_values(void *user, const cli_listed *o) {
    const char **before = user;
    if (*before == NULL || *o->takes == '\0' || strcmp(*before, o->name) != 0)
        return;
    *before = NULL;
    if (o->files)
        puts("*");
    for (const char *c = o->choices; *c != '\0'; c += *c == '|') {
        const int n = (int)strcspn(c, "|");
        printf("%.*s\n", n, c);
        c += n;
    }
}

void cli_offer_words(int n, char **words, const cli_command *commands, size_t n_commands) {
    const char *current = n > 0 ? words[n - 1] : "", *before = n > 1 ? words[n - 2] : "";
    const bool help = n > 1 && strcmp(words[0], "help") == 0;
    if (n < 2 || (help && (n == 2 || strcmp(before, "--man") == 0)))
        for (size_t i = 0; i < n_commands; i++)
            offer("", commands[i].name, commands[i].summary);
    if (n < 2)
        puts("help\tthe options of a subcommand\n--help\n--version");
    else if (help && n == 2)
        puts("--man\n--completion");
    else if (help && strcmp(before, "--completion") == 0)
        puts("bash\nzsh\nfish");
    for (size_t i = 0; i < n_commands && n > 1; i++) {
        if (strcmp(words[0], commands[i].name) != 0)
            continue;
        before += strncmp(before, "--", 2) == 0 ? 2 : strlen(before);
        cli_list_options(&commands[i], offer_values, &before);
        if (before != NULL && *current == '-')
            cli_list_options(&commands[i], offer_option, NULL);
        else if (before != NULL)
            puts("*");
    }
}
