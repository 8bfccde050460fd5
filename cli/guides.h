// Help, man pages and shell completion come from one list of options.
#ifndef CLI_GUIDES_H
#define CLI_GUIDES_H

#include "cli.h"

// One option of a subcommand as people type it: its own, or a configuration key by its short name, if it has one.
typedef struct cli_listed {
    const char *name;    // without the dashes
    const char *key;     // the configuration key; NULL: an option of the subcommand
    const char *takes;   // what it takes ("FILE", "N", "fp32|bf16"); "" where it stands alone
    const char *choices; // names it takes, separated by "|"; "" if it takes others
    const char *help;
    const char *initial; // of a key; "" if none
    bool is_map;         // a key that goes on with a pattern: "autocast.PATTERN"
    bool files;          // its value is a file or a folder
} cli_listed;

// Calls `each` for every option that --help lists, in its order, `--help` last.
void cli_list_options(const cli_command *command, void (*each)(void *user, const cli_listed *option), void *user);
void cli_help(const cli_command *command);
// The man page of `command`; NULL: of mezzo itself.
void cli_man(const cli_command *command, const cli_command *const *commands, size_t n);
// The completion script of "bash", "zsh" or "fish"; false: no such shell.
bool cli_completion(const char *shell, const cli_command *const *commands, size_t n);

#endif
