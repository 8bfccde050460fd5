// Reads the table of subcommands, commands.txt, which is part of the command.
#include <stdlib.h>

#include "cli.h"

extern const unsigned char mz_commands[];
extern const size_t mz_commands_size;

enum { ROWS_MOST = 480 };

#define ROW(name)                                                                                                      \
    { #name, cli_##name }
static const struct {
    const char *name;
    int (*run)(void);
} functions[] = { // in the table's order
    ROW(train),  ROW(recipes), ROW(data),  ROW(import), ROW(launch),  ROW(eval), ROW(sample), ROW(chat),
    ROW(export), ROW(report),  ROW(watch), ROW(advise), ROW(verify),  ROW(diff), ROW(sweep),  ROW(analyze),
    ROW(bench),  ROW(doctor),  ROW(audit), ROW(memory), ROW(explain), ROW(lab)};

static cli_command commands[MZ_COUNT(functions)];
static size_t n_commands;
static cli_option rows[ROWS_MOST]; // of all commands, each followed by one without a name
static size_t n_rows;

static const cli_option *find_option(const cli_option *rows_of, const char *name, size_t n) {
    for (const cli_option *o = rows_of; o->name != NULL; o++)
        if (strlen(o->name) == n && strncmp(o->name, name, n) == 0)
            return o;
    return NULL;
}

// Reads "--NAME VALUE: TEXT", or "--A --B", options that the first section describes.
static bool read_options(char *line) {
    char *colon = strchr(line, ':');
    for (char *at = line; colon == NULL && at != NULL; at = strstr(at + 1, "--")) {
        const cli_option *shared = find_option(rows, at + 2, strcspn(at + 2, " "));
        if (shared == NULL || n_rows + 1 >= ROWS_MOST)
            return false;
        rows[n_rows++] = *shared;
    }
    if (colon == NULL)
        return true;
    cli_option o = {.name = line + 2, .help = colon[1] != '\0' ? colon + 2 : NULL};
    char *blank = strchr(line, ' ');
    *colon = '\0';
    if (blank != NULL && blank < colon) {
        *blank = '\0';
        o.value = blank + 1;
    }
#ifndef MEZZO_INJECT
    if (o.help == NULL)
        return true;
#endif
    rows[n_rows++] = o;
    return n_rows + 1 < ROWS_MOST;
}

static bool begin_command(const char *name, const char *group) {
    if (n_commands == MZ_COUNT(functions) || strcmp(functions[n_commands].name, name) != 0)
        return false;
    n_rows++; // the end of the options before
    commands[n_commands] = (cli_command){.name = name,
                                         .group = group,
                                         .summary = "",
                                         .usage = "",
                                         .details = "",
                                         .options = &rows[n_rows],
                                         .run = functions[n_commands].run};
    n_commands++;
    return true;
}

static bool read_line(char *line, const char **group) {
    cli_command *c = n_commands > 0 ? &commands[n_commands - 1] : NULL;
    char *rest = line + strcspn(line, " ");
    if (*line == '#' || *line == '\0')
        return true;
    if (strncmp(line, "--", 2) == 0)
        return read_options(line);
    if (*rest != '\0')
        *rest++ = '\0';
    if (strcmp(line, "group") == 0)
        *group = rest;
    else if (strcmp(line, "command") == 0 && begin_command(rest, *group))
        *group = NULL;
    else if (c == NULL)
        return false;
    else if (strcmp(line, "summary") == 0)
        c->summary = rest;
    else if (strcmp(line, "usage") == 0)
        c->usage = rest;
    else if (strcmp(line, "details") == 0)
        c->details = rest;
    else if (strcmp(line, "keys") == 0)
        c->config = rest;
    else if (strcmp(line, "defaults") == 0)
        c->defaults = rest;
    else if (strcmp(line, "operands") == 0)
        c->max_operands = (int)strtol(rest, &rest, 10), c->operand = *rest == ' ' ? rest + 1 : NULL;
    else
        return false;
    return true;
}

// Reads the table in place: a line that begins with a blank is a further line of the text before it.
mezzo_status cli_commands(const cli_command **all, size_t *n) {
    char *text = mz_alloc(mz_commands_size + 1, 1), *to = text, *line = text; // it stays until the process ends
    const char *group = NULL;
    *all = commands;
    *n = MZ_COUNT(functions);
    if (text == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < mz_commands_size; i++) {
        const bool ends = mz_commands[i] == '\n',
                   goes_on = ends && i + 1 < mz_commands_size && mz_commands[i + 1] == ' ';
        *to++ = ends && !goes_on ? '\0' : (char)mz_commands[i];
        i += goes_on;
        if (ends && !goes_on) {
            if (!read_line(line, &group))
                return mz_fail(MEZZO_ERR_FORMAT, "commands.txt: \"%s\" is not a line of it, or not in its place", line);
            line = to;
        }
    }
    return n_commands == *n ? MEZZO_OK : mz_fail(MEZZO_ERR_FORMAT, "commands.txt: it has %zu subcommands", n_commands);
}

const char *cli_usage(void) {
    static char line[1024];
    const cli_command *c = cli_line.command;
    line[0] = '\0';
    for (const char *form = c->usage; *form != '\0';) {
        const size_t n = strcspn(form, "\n");
        cli_add(line, sizeof line, "%s mezzo %s %.*s", *line != '\0' ? " or" : "usage:", c->name, (int)n, form);
        form += n + (form[n] == '\n');
    }
    return line;
}
