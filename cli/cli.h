// The subcommands share this interface: their table, options, exit codes, errors and results.
#ifndef CLI_H
#define CLI_H

#include <signal.h>
#include <stdarg.h>

#include <jansson.h>

#include "base/base.h"
#include "fields.h"
#include "mezzo/train.h"

enum {
    CLI_DONE = 0,
    CLI_CHECK_FAILED = 1,
    CLI_USAGE = 2,  // what was given is wrong: an option, a key, a file's contents
    CLI_FAILED = 3, // runtime failure: memory, files, device, numbers
    CLI_INTERRUPTED = 130,
};

typedef struct cli_option {
    const char *name;  // without the dashes
    const char *value; // what it takes ("N", "FILE"); NULL: a flag
    const char *help;  // NULL: not listed; "{precisions}" stands for the names of those that every device runs
} cli_option;

typedef struct cli_command {
    const char *name, *summary;
    const char *usage;         // after "mezzo NAME "
    const char *details;       // one paragraph for --help, "" if none
    const cli_option *options; // ended by a NULL name
    const char *config;        // it takes the configuration keys that start with one of these words; NULL: none
    int max_operands;
    const char *operand; // what it cannot do without ("a text file"); NULL: nothing
    int (*run)(void);    // returns an exit code
} cli_command;

extern const cli_command cli_train, cli_recipes, cli_eval, cli_sample, cli_chat, cli_data, cli_import, cli_export,
    cli_explain, cli_bench, cli_analyze, cli_advise, cli_sweep, cli_lab, cli_memory, cli_verify, cli_diff, cli_doctor,
    cli_report, cli_watch, cli_launch, cli_audit;

// --- options (options.c) -------------------------------------------------------------------------------------------
typedef struct cli_given {
    const char *name;  // as in the table, or the configuration key
    const char *value; // "" for a flag
    const char *typed; // as the user wrote it, for messages
    bool config;
} cli_given;

// The command line of this process, until its end. Every function of the command reads it here.
typedef struct cli_args {
    const cli_command *command; // NULL: help, or nothing yet
    const char *program;        // argv[0], for commands that are shown to be typed
    cli_given *given;
    int n_given;
    const char **operands;
    int n_operands;
} cli_args;
extern cli_args cli_line;

// Fills cli_line from the words after the subcommand; CLI_DONE, or CLI_USAGE after telling what is wrong.
int cli_parse(const cli_command *command, const char *program, int argc, char **argv);

// The command as it was typed, for rows and reports; allocated, NULL when out of memory.
char *cli_command_line(void);

// The exit codes of a function's steps: the first that is not CLI_DONE is the function's.
#define CLI_TRY(expr)                                                                                                  \
    do {                                                                                                               \
        const int cli_step = (expr);                                                                                   \
        if (cli_step != CLI_DONE)                                                                                      \
            return cli_step;                                                                                           \
    } while (0)

bool cli_has(const char *name);
// "--NAME why" for the first of these options that was given, and CLI_USAGE; CLI_DONE where none was.
int cli_refuse(const char *why, const char *const *names, size_t n);
#define CLI_REFUSE(why, ...)                                                                                           \
    cli_refuse((why), (const char *const[]){__VA_ARGS__}, MZ_COUNT(((const char *const[]){__VA_ARGS__})))
// The operand that the command's row names, as an error; CLI_DONE where there is one.
int cli_need_operand(void);
// Copies the next word of a list "a,b,c" and moves on; false at the end. A word longer than `size` is truncated.
bool cli_next_word(const char **list, char *word, size_t size);
const char *cli_text(const char *name, const char *initial); // the last one given
#define CLI_STDOUT "/dev/stdout"
// The same for a file to write; "-" is CLI_STDOUT.
const char *cli_out_file(const char *name, const char *initial);
// Parses whole numbers and numbers within [least, most]: CLI_DONE, or CLI_USAGE after naming option, value and range.
int cli_integer(const char *name, int64_t least, int64_t most, int64_t initial, int64_t *out);
int cli_number(const char *name, double least, double most, double initial, double *out);
// Several of them at once, into a struct's members (fields.h has CLI_FIELD), in the table's order; the first wrong one
// ends it. A factor: a number times it, as memory in GiB.
typedef struct cli_range {
    enum cli_kind kind; // CLI_F64, CLI_I64, CLI_U64 or CLI_I32
    size_t offset;
    const char *name;
    double least, most, initial, factor;
} cli_range;
int cli_ranges(const cli_range *ranges, size_t n, void *into);
#define CLI_RANGES(ranges, into) cli_ranges((ranges), MZ_COUNT(ranges), (into))
// Builds the configuration: defaults, then every --config file, then the keys of the command line.
int cli_config(mezzo_config **out);
// The file of a recipe (recipes.c): CLI_DONE, or CLI_USAGE after telling which there are.
int cli_recipe_path(const char *name, char *path, size_t size);
// The last value that the command line gives a configuration key; NULL: it gives none.
const char *cli_given_key(const char *key);
typedef struct cli_default {
    const char *key, *value;
} cli_default;
// Sets each key that the command line leaves open; a model that it names brings its own sizes.
mezzo_status cli_set_defaults(mezzo_config *config, const cli_default *defaults, size_t n);
// The device that --device names (or `initial`), with --threads.
int cli_open_device(const char *initial, mezzo_device **out);
// The value of a key that there is, as text. Out of memory it says so and leaves with 3.
const char *cli_key(const mezzo_config *config, const char *key);
bool cli_takes_key(const cli_command *command, const char *key);
bool cli_begins(const char *text, const char *words); // with one of the words between blanks

// "fp32,bf16" → precisions, each once: CLI_DONE or CLI_USAGE (bench_models.c). `initial` NULL: every one that all
// devices run.
int cli_precisions(const char *option, const char *initial, mezzo_precision *out, int most, int *n);
void cli_leave_on_interrupt(void); // at the first signal to stop: every command begins so
// The number of a signal to stop once one came (SIGINT, SIGTERM, SIGHUP, SIGPWR); the second leaves at once. It is also
// the flag of this thread (base/stop.h).
const volatile sig_atomic_t *cli_interruptible(void);
// The same for a command that goes on and sets it to zero again. The first signal writes `note` to stderr; NULL: none.
volatile sig_atomic_t *cli_interrupts(const char *note);
int cli_sample_options(mezzo_sample_options *options); // of sample and chat, from options
void cli_ignore_signals(void);             // SIGPIPE and SIGXFSZ: the write that they are about fails instead
int cli_bench_models(const char *command); // the half of bench that is in bench_models.c
int cli_data_radio(void);                  // data radio
int cli_data_tokenizer(void);              // data --train-tokenizer
int cli_doctor_ranks(int threads);         // doctor --ranks
int cli_doctor_audit(void);                // doctor --run, --trace
int cli_explain_toy(void);                 // explain --toy
int cli_lab_underflow(void);               // lab underflow
int cli_lab_speed(void);                   // lab speed

// --- telling (report.c) --------------------------------------------------------------------------------------------
void cli_log(void *user, const char *topic, const char *line);         // the library's log lines, to stderr
void cli_log_quietly(void *user, const char *topic, const char *line); // without notices: what --quiet leaves
int cli_exit_code(mezzo_status status);
// "mezzo NAME: message" on stderr, with the subcommand's name. Returns CLI_USAGE.
int cli_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// The library's message of `status` on stderr, with its trace where MEZZO_VERBOSE names "trace". Returns the exit code.
int cli_error(mezzo_status status);
int cli_code(mezzo_status status); // CLI_DONE, or cli_error's code
// Flushes stdout: a result that did not reach its file is an error.
int cli_finish(int code);
_Noreturn void cli_leave(int code); // from the depth of a command, with this exit code
bool cli_guard_exit(void);          // a library that calls exit(1) ends the command with CLI_FAILED

// --- texts (text.c) ------------------------------------------------------------------------------------------------
enum { CLI_COLUMNS = 80 };                          // of what is no terminal
int cli_terminal_columns(FILE *to);                 // of `to`, or CLI_COLUMNS
int cli_columns_of(const char *text, size_t bytes); // UTF-8 characters
// Words from column `at` on, at most up to column `most`, later lines indented. A line end after a sentence is kept,
// others are blanks.
void cli_wrap(const char *text, int at, int indent, int most);
void cli_wrap_line(const char *text, int at, int indent); // up to CLI_COLUMNS, with its line end
// A paragraph of at most CLI_COLUMNS on stdout, with its line end; line ends that begin the text are kept.
void cli_tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// Prints a text that a model or a file made: bytes as they are, but on a terminal control characters become "?".
void cli_print_text(FILE *to, const char *text, size_t n);
// A name that was typed or read, for a line of output: what would drive a terminal as blanks, as mz_text_tame has it.
typedef struct cli_shown {
    char text[4200];
} cli_shown;
cli_shown cli_show(const char *name);
// For a shell, quoted only where it must be; what would drive a terminal as $'\033'.
const char *cli_quote(const char *word, char *buf, size_t size);
const char *cli_duration(double seconds, char *buf, size_t size); // "1:02:03", "2:03"
const char *cli_bytes(size_t bytes, char *buf, size_t size);      // "12.3 MB"
const char *cli_thousands(double number, char *buf, size_t size); // "12,345"

// --- guides: help, man pages and shell completion come from one list of options (guides.c, completion.c) -----------
// One option of a subcommand as people type it: its own, or a configuration key by its short name, if it has one.
typedef struct cli_listed {
    const char *name;    // without the dashes
    const char *key;     // the configuration key; NULL: an option of the subcommand
    const char *takes;   // what it takes ("FILE", "N", "fp32|bf16"); "": nothing
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

// --- what is installed (recipes.c) ---------------------------------------------------------------------------------
// The first of these folders that there is, as seen from the command's own: of an installed one, or beside a build of
// the source.
bool cli_find_folder(const char *const *places, size_t n, char *folder, size_t size);

// --- ranks (job.c) -------------------------------------------------------------------------------------------------
void cli_watch_job(void);  // before any group is opened
bool cli_job_failed(void); // this rank or another reported the job's failure: nothing is left to say

// --- JSON results (fields.c) ---------------------------------------------------------------------------------------
json_t *cli_json_text(const char *bytes, size_t n); // bytes that are not UTF-8 become U+FFFD
int cli_json_print(json_t *result);                 // takes the reference; NULL is out of memory

// A result as JSON with --json, or as lines whose titles take `width` columns; `word` as in cli_fields_lines.
int cli_print_fields(const cli_field *fields, size_t n, const void *row, const char *word, int width);
// Prints a text that the library made to stdout, and frees it.
int cli_print_made(mz_text *text);

// --- figures (report.c) --------------------------------------------------------------------------------------------
typedef struct cli_plot {
    bool asked;
    char folder[512], name[128];
} cli_plot;
int cli_plot_parse(cli_plot *plot);                         // --plot FOLDER/NAME.svg or .png
int cli_plotted(mezzo_status status, const cli_plot *plot); // names the files, or the error
// With --plot, calls draw(folder, name, …) and prints the files' names.
#define CLI_PLOT(draw, ...)                                                                                            \
    do {                                                                                                               \
        cli_plot cli_figure;                                                                                           \
        CLI_TRY(cli_plot_parse(&cli_figure));                                                                          \
        if (cli_figure.asked)                                                                                          \
            CLI_TRY(cli_plotted(draw(cli_figure.folder, cli_figure.name, ##__VA_ARGS__), &cli_figure));                \
    } while (0)

// --- progress (progress.c): one line on stderr, of the terminal's width; elsewhere a line each ten seconds ---------
void cli_progress_begin(bool quiet); // listens to the library's work, too
// Prints the line in place of the one before; `must`: even where the last one is new.
void cli_progress_line(const char *line, bool must);
void cli_progress_end(void);                                           // takes the line away: other output follows
void cli_progress_work(const char *what, int64_t done, int64_t total); // a mz_work_fn
void cli_progress_show(const mezzo_progress *progress);

#endif
