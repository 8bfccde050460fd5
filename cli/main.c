// mezzo: one command, a subcommand for each thing it does.
#include <stdio.h>

#include "cli.h"

static const cli_command *const commands[] = {
    &cli_train,  &cli_eval,  &cli_sample, &cli_data,   &cli_import, &cli_export, &cli_explain, &cli_bench, &cli_analyze,
    &cli_advise, &cli_sweep, &cli_lab,    &cli_memory, &cli_verify, &cli_doctor, &cli_report,  &cli_watch};

static void print_help(void) {
    printf("mezzo: mixed-precision training of Transformers, with measurements\n\n"
           "usage: mezzo SUBCOMMAND [--option value …]\n\n");
    for (size_t i = 0; i < MZ_COUNT(commands); i++)
        printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    printf("\n  mezzo SUBCOMMAND --help   its options\n"
           "  mezzo help SUBCOMMAND     the same\n"
           "  mezzo --version           the version\n\n"
           "results go to stdout, progress and messages to stderr\n"
           "exit codes: 0 done, 1 a check failed, 2 usage or bad input, 3 runtime failure,\n"
           "130 interrupted\n"
           "MEZZO_VERBOSE=dispatch,trace prints the kernel chosen for each op, and where\n"
           "errors come from\n");
}

static int unknown(const char *name) {
    const char *names[MZ_COUNT(commands)];
    for (size_t i = 0; i < MZ_COUNT(commands); i++)
        names[i] = commands[i]->name;
    const char *nearest = mz_nearest(name, names, MZ_COUNT(names));
    if (nearest != NULL)
        fprintf(stderr, "mezzo: there is no subcommand \"%s\"; did you mean \"%s\"?\n", name, nearest);
    else
        fprintf(stderr, "mezzo: there is no subcommand \"%s\"; mezzo --help lists them\n", name);
    return CLI_USAGE;
}

static int help_of(const char *name) {
    for (size_t i = 0; i < MZ_COUNT(commands); i++)
        if (strcmp(commands[i]->name, name) == 0) {
            cli_help(commands[i]);
            return cli_finish(commands[i], CLI_DONE);
        }
    return unknown(name);
}

static int dispatch(const cli_command *command, int argc, char **argv) {
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            cli_help(command);
            return cli_finish(command, CLI_DONE);
        }
    cli_args args;
    int code = cli_parse(command, argv[0], argc - 2, argv + 2, &args);
    if (code == CLI_DONE)
        code = command->run(&args);
    cli_args_free(&args);
    return cli_finish(command, code);
}

int main(int argc, char **argv) {
    mezzo_log_set(cli_log, NULL);
    if (argc < 2) {
        fprintf(stderr, "mezzo: a subcommand is missing; mezzo --help lists them\n");
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2)
        return help_of(argv[2]);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help();
        return cli_finish(NULL, CLI_DONE);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("mezzo %s\n", MEZZO_VERSION);
        return cli_finish(NULL, CLI_DONE);
    }
    for (size_t i = 0; i < MZ_COUNT(commands); i++)
        if (strcmp(argv[1], commands[i]->name) == 0)
            return dispatch(commands[i], argc, argv);
    return unknown(argv[1]);
}
