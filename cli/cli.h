// Declares what the subcommands share: their table, options, exit codes, errors and results.
#ifndef CLI_H
#define CLI_H

#include <signal.h>
#include <stdarg.h>

#include "base/scope.h"
#include "io/fields.h"
#include "mezzo/train.h"
#include "study/measure/choose.h"

enum {
    CLI_DONE = 0,
    CLI_CHECK_FAILED = 1,
    CLI_USAGE = 2,  // wrong usage or input: an option, a key, a file's contents
    CLI_FAILED = 3, // a runtime failure: memory, files, device, numbers
    CLI_INTERRUPTED = 130,
};

typedef struct cli_option {
    const char *name;  // without the dashes
    const char *value; // the word for its value ("N", "FILE"); NULL: it is a flag
    const char *help;  // NULL: help does not list it; "{precisions}" is replaced by the names of those that every
                       // device runs
} cli_option;

typedef struct cli_command {
    const char *name, *summary;
    const char *group;         // a user's aim, of which it is the first; NULL: that of the one before
    const char *usage;         // follows "mezzo NAME "; each line is a form
    const char *details;       // one paragraph for --help; "" if there is none
    const cli_option *options; // the last one has a NULL name
    const char *config;        // it takes configuration keys that start with one of these words; NULL: none
    const char *defaults;      // keys with values that are its own defaults, "KEY VALUE KEY VALUE"; NULL: none
    int max_operands;
    const char *operand; // the operand that it needs ("a text file"); NULL: none
    int (*run)(void);    // returns an exit code
} cli_command;

int cli_train(void), cli_recipes(void), cli_data(void), cli_import(void), cli_launch(void), cli_eval(void),
    cli_sample(void), cli_chat(void), cli_export(void), cli_report(void), cli_watch(void), cli_advise(void),
    cli_verify(void), cli_diff(void), cli_sweep(void), cli_analyze(void), cli_bench(void), cli_doctor(void),
    cli_audit(void), cli_memory(void), cli_explain(void), cli_lab(void);

mezzo_status cli_commands(const cli_command **all, size_t *n); // reads the table; is called once
const char *cli_usage(void); // "usage: mezzo NAME …", of this command line's subcommand

// --- options (options.c) -------------------------------------------------------------------------------------------
typedef struct cli_given {
    const char *name;  // as in the table, or the configuration key
    const char *value; // "" for a flag
    const char *typed; // as the user typed it, for messages
    bool config;
} cli_given;

// The command line of this process until its end. Every function of the command reads it here.
typedef struct cli_args {
    const cli_command *command; // NULL: help, or not known yet
    const char *program;        // argv[0], for commands that output shows
    cli_given *given;
    int n_given;
    const char **operands;
    int n_operands;
} cli_args;
extern cli_args cli_line;

// Fills cli_line from the words after the subcommand; returns CLI_DONE, or CLI_USAGE after it reported what is wrong.
int cli_parse(const cli_command *command, const char *program, int argc, char **argv);

// Returns the command as it was typed, for rows and reports; allocated, NULL when out of memory.
char *cli_command_line(void);

// Runs a step, and returns its exit code from the function unless that is CLI_DONE.
#define CLI_TRY(expr)                                                                                                  \
    do {                                                                                                               \
        const int cli_step = (expr);                                                                                   \
        if (cli_step != CLI_DONE)                                                                                      \
            return cli_step;                                                                                           \
    } while (0)

// Likewise runs a step of the library, and reports its error.
#define CLI_DO(expr) CLI_TRY(cli_code(expr))
MZ_FREE_AT(cli_free_config, mezzo_config, mezzo_config_free)
MZ_FREE_AT(cli_close_device, mezzo_device, mezzo_device_close)

bool cli_has(const char *name);
// Reports "--NAME why" for the first of these options on the command line and returns CLI_USAGE; CLI_DONE where there
// is none.
int cli_refuse(const char *why, const char *const *names, size_t n);
#define CLI_REFUSE(why, ...)                                                                                           \
    cli_refuse((why), (const char *const[]){__VA_ARGS__}, MZ_COUNT(((const char *const[]){__VA_ARGS__})))
// Copies the next word of a list "a,b,c" and advances; false at the end. A longer word than `size` is truncated.
bool cli_next_word(const char **list, char *word, size_t size);
// Parses a list "a,b,c" of at least one word and at most `most`, each once: returns CLI_DONE or CLI_USAGE.
enum { CLI_WORDS = 32 };
typedef char cli_word[64];
int cli_words(const char *name, const char *initial, int most, cli_word *words, int *n);
// Parses likewise a list of whole numbers from 1 to `greatest`, at most CLI_WORDS of them.
int cli_integers(const char *name, const char *initial, int64_t greatest, int most, int64_t *out, int *n);
const char *cli_text(const char *name, const char *initial); // the last value on the command line
// Returns the next value of an option that may occur several times, from *at (first 0) on; NULL: there are no more.
const char *cli_next_value(const char *name, int *at);
#define CLI_STDOUT "/dev/stdout"
// Returns likewise a file to write; "-" is CLI_STDOUT.
const char *cli_out_file(const char *name, const char *initial);
// Parse integers and numbers within [least, most]: return CLI_DONE, or CLI_USAGE after they named option, value and
// range.
int cli_integer(const char *name, int64_t least, int64_t most, int64_t initial, int64_t *out);
int cli_number(const char *name, double least, double most, double initial, double *out);
// Describes several numbers at once, for a struct's members (io/fields.h has MZ_FIELD), in the table's order; the first
// wrong one ends parsing. A factor multiplies the number, as in memory in GiB.
typedef struct cli_range {
    enum mz_field_kind kind; // MZ_FIELD_F64, MZ_FIELD_I64, MZ_FIELD_U64 or MZ_FIELD_I32
    size_t offset;
    const char *name;
    double least, most, initial, factor;
} cli_range;
int cli_ranges(const cli_range *ranges, size_t n, void *into);
#define CLI_RANGES(ranges, into) cli_ranges((ranges), MZ_COUNT(ranges), (into))
// Builds the configuration: defaults, then every --config file, then the keys of the command line. The caller frees it,
// also after an error.
int cli_config(mezzo_config **out);
// Finds the file of a recipe (recipes.c): returns CLI_DONE, or CLI_USAGE after it listed the recipes.
int cli_recipe_path(const char *name, char *path, size_t size);
// Returns the last value of a configuration key on the command line; NULL: there is none.
const char *cli_given_key(const char *key);
// Reads the next of a subcommand's own defaults from *at; returns false at their end.
typedef struct cli_default {
    char key[40], value[24];
} cli_default;
bool cli_next_default(const char **at, cli_default *out);
// Sets the subcommand's own default of each key that the command line does not set; a model that it names has its own
// sizes.
mezzo_status cli_set_defaults(mezzo_config *config);
// Opens the device of --device (or `initial`), with --threads.
int cli_open_device(const char *initial, mezzo_device **out);
// Returns the text of a key that exists. Out of memory it reports that and leaves with 3.
const char *cli_key(const mezzo_config *config, const char *key);
bool cli_takes_key(const cli_command *command, const char *key);
bool cli_begins(const char *text, const char *words); // whether it begins with one of the words, which blanks separate

// Parses "fp32,bf16" to precisions, each once: returns CLI_DONE or CLI_USAGE (bench_models.c). `initial` NULL: every
// precision that all devices run.
int cli_precisions(const char *option, const char *initial, mezzo_precision *out, int most, int *n);
void cli_leave_on_interrupt(void); // leaves at the first signal to stop, as every command does at first
// Makes the first signal to stop (SIGINT, SIGTERM, SIGHUP, SIGPWR) only set the returned flag to its number and write
// `note` to stderr (NULL: nothing); the second leaves at once, unless the command set the flag to zero again. It is
// also the flag of this thread (base/stop.h).
volatile sig_atomic_t *cli_interrupts(const char *note);
// Reads the list of train's --signal, signals that ask for a checkpoint; NULL: the default ones. Returns CLI_DONE or
// CLI_USAGE.
int cli_save_signals(const char *list, sigset_t *out);
int cli_sample_options(mezzo_sample_options *options); // options of sample and chat
void cli_ignore_signals(void);                         // SIGPIPE and SIGXFSZ: the write then fails instead
int cli_bench_models(const char *command);             // the part of bench in bench_models.c
// The file of bench's --csv, if there is one (bench.c). open: in a mode of fopen, with `head` where the file is empty;
// add: frees the rows; close: returns `code`, or the error where a row is missing.
int cli_csv_open(const char *mode, mz_text *head);
void cli_csv_add(mz_text *rows);
int cli_csv_close(int code);
const char *cli_commit(void); // MEZZO_COMMIT, for rows of results; "" where it is not set
int cli_data_radio(void);     // runs data radio
int cli_data_tokenizer(void); // runs data --train-tokenizer
int cli_doctor_ranks(void);   // runs doctor --ranks
int cli_doctor_audit(void);   // runs doctor --run, --trace
struct mz_where;
int cli_assume(struct mz_where *where);              // reads doctor's --assume, if it is given
mezzo_status cli_advise_shape(mezzo_config *config); // sets the keys of the shape's options
int cli_advise_data(void);                           // runs advise --data
int cli_advise_per_op(void);                         // runs advise --data --per-op
// Chooses by timing, for advise --measure and train --precision auto (choose.c). precisions NULL: fp32 and those for
// which the device has arithmetic. memory 0: all free memory. Unless `quiet`, progress goes to stderr.
mezzo_status cli_choose(const mezzo_auto_request *r, size_t memory, const mezzo_precision *precisions, int n_precisions,
                        bool quiet, mz_choice *out);
int cli_explain_toy(void);   // runs explain --toy
int cli_lab_underflow(void); // runs lab underflow
int cli_lab_speed(void);     // runs lab speed

// --- errors and log lines (report.c) --------------------------------------------------------------------------------
void cli_log(void *user, const char *topic, const char *line);         // prints the library's log lines to stderr
void cli_log_quietly(void *user, const char *topic, const char *line); // prints them without notices, for --quiet
int cli_exit_code(mezzo_status status);
// Prints "mezzo NAME: message" to stderr, with the subcommand's name. Returns CLI_USAGE.
int cli_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// Prints the library's message for `status` to stderr, with its trace where MEZZO_VERBOSE names "trace". Returns the
// exit code.
int cli_error(mezzo_status status);
int cli_code(mezzo_status status); // returns CLI_DONE, or cli_error's code
// Flushes stdout: a result that did not reach its file is an error.
int cli_finish(int code);
_Noreturn void cli_leave(int code); // ends the process with this exit code
bool cli_guard_exit(void);          // a library that calls exit(1) then ends the command with CLI_FAILED

// --- texts (text.c) ------------------------------------------------------------------------------------------------
int cli_terminal_columns(FILE *to); // width of `to`, or MZ_TEXT_COLUMNS
int cli_print_made(mz_text *text);  // prints a text that the library made to stdout, and frees it
int cli_json_print(json_t *result); // takes over the reference; NULL is out of memory
void cli_wrap(const char *text, int at, int indent, int most); // prints what mz_text_wrap makes, with a line end
// Prints the text that write(…, &text) makes; CLI_TELL: mz_text_tell.
#define CLI_PRINT(write, ...)                                                                                          \
    ({                                                                                                                 \
        mz_text cli_made = {0};                                                                                        \
        write(__VA_ARGS__, &cli_made);                                                                                 \
        cli_print_made(&cli_made);                                                                                     \
    })
#define CLI_TELL(...)                                                                                                  \
    ({                                                                                                                 \
        mz_text cli_made = {0};                                                                                        \
        mz_text_tell(&cli_made, __VA_ARGS__);                                                                          \
        cli_print_made(&cli_made);                                                                                     \
    })
// Prints a result as JSON with --json, or as such a text; CLI_FIELDS: lines whose titles take `width` columns.
#define CLI_SHOW(json, ...) (cli_has("json") ? cli_json_print(json) : CLI_PRINT(__VA_ARGS__))
#define CLI_FIELDS(fields, row, word, width)                                                                           \
    CLI_SHOW(mz_fields_json((fields), MZ_COUNT(fields), (row), (word), NULL), mz_fields_lines, (fields),               \
             MZ_COUNT(fields), (row), (word), "", (width))
#define CLI_TABLE(fields, rows, count)                                                                                 \
    CLI_PRINT(mz_fields_table, (fields), MZ_COUNT(fields), (rows), sizeof *(rows), (count), NULL,                      \
              cli_terminal_columns(stdout))
// Appends to a text; what does not fit into its `size` bytes is left out.
void cli_add(char *text, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
// Prints a text of a model or a file: bytes unchanged, but on a terminal control characters become "?".
void cli_print_text(FILE *to, const char *text, size_t n);
// Quotes a word for a shell, only where necessary; bytes that would control a terminal become $'\033'.
mz_shown cli_quoted(const char *word);

// --- guides: help, man pages and shell completion come from one list of options (guides.c, completion.c) -----------
// An option of a subcommand as users type it: its own, or a configuration key by its short name, if it has one.
typedef struct cli_listed {
    const char *name;    // without dashes
    const char *key;     // the configuration key; NULL: it is the subcommand's own option
    const char *takes;   // the word for its value ("FILE", "N", "fp32|bf16"); "": it takes none
    const char *choices; // its allowed names, separated by "|"; "" if it takes other values
    const char *help;
    const char *initial; // the default of a key; "" if none
    bool is_map;         // a pattern follows the key: "autocast.PATTERN"
    bool files;          // its value is a file or a folder
} cli_listed;

// Calls `each` for every option that --help lists, in order, with `--help` last.
void cli_list_options(const cli_command *command, void (*each)(void *user, const cli_listed *option), void *user);
void cli_help(const cli_command *command);
// Prints the man page of `command`; NULL: of mezzo itself.
void cli_man(const cli_command *command, const cli_command *commands, size_t n);
// Prints the completion script of "bash", "zsh" or "fish"; returns false for another shell.
bool cli_completion(const char *shell);
// Prints what may stand in the place of the last of the words after "mezzo": a line for each word, with a tab and its
// help; a line "*": the names of files.
void cli_offer_words(int n, char **words, const cli_command *commands, size_t n_commands);

// --- what is installed (recipes.c) ---------------------------------------------------------------------------------
// Finds the first of these folders that exists, relative to the command's own: that of an installation, or one beside a
// build of the source.
bool cli_find_folder(const char *const *places, size_t n, char *folder, size_t size);

// --- ranks (job.c) -------------------------------------------------------------------------------------------------
void cli_watch_job(void);  // called before any group is opened
bool cli_job_failed(void); // a rank has reported the job's failure, so nothing more is printed

// --- figures (report.c) --------------------------------------------------------------------------------------------
typedef struct cli_plot {
    bool asked;
    char folder[512], name[128];
} cli_plot;
int cli_plot_parse(cli_plot *plot);                         // parses --plot FOLDER/NAME.svg or .png
int cli_plotted(mezzo_status status, const cli_plot *plot); // prints the files' names, or the error
// With --plot, calls draw(folder, name, …) and prints the files' names.
#define CLI_PLOT(draw, ...)                                                                                            \
    do {                                                                                                               \
        cli_plot cli_figure;                                                                                           \
        CLI_TRY(cli_plot_parse(&cli_figure));                                                                          \
        if (cli_figure.asked)                                                                                          \
            CLI_TRY(cli_plotted(draw(cli_figure.folder, cli_figure.name, ##__VA_ARGS__), &cli_figure));                \
    } while (0)

// --- progress (progress.c): one line on stderr, of the terminal's width; without a terminal a line each ten seconds -
void cli_progress_begin(bool quiet); // reports the library's work, too
// Prints the line in place of the one before; `must`: even where the last one was just printed.
void cli_progress_line(bool must, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cli_progress_end(void);                                           // removes the line before other output
void cli_progress_work(const char *what, int64_t done, int64_t total); // is a mz_work_fn
void cli_progress_show(const mezzo_progress *progress);

#endif
