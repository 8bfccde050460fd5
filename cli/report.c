// Reports errors and log lines, and ends the command.
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"

int cli_exit_code(mezzo_status status) {
    return status == MEZZO_OK                                          ? CLI_DONE
           : status == MEZZO_ERR_INVALID || status == MEZZO_ERR_FORMAT ? CLI_USAGE
           : status == MEZZO_ERR_INTERRUPTED                           ? CLI_INTERRUPTED
                                                                       : CLI_FAILED;
}

void cli_log(void *user, const char *topic, const char *line) {
    (void)user;
    cli_progress_end();
    fprintf(stderr, "mezzo: %s%s%s\n", strcmp(topic, "notice") == 0 ? "" : topic,
            strcmp(topic, "notice") == 0 ? "" : ": ", line);
}

void cli_log_quietly(void *user, const char *topic, const char *line) {
    if (strcmp(topic, "notice") != 0)
        cli_log(user, topic, line);
}

static void print_name(void) {
    const cli_command *command = cli_line.command;
    cli_progress_end();
    fprintf(stderr, "mezzo%s%s: ", command != NULL ? " " : "", command != NULL ? command->name : "");
}

int cli_wrong(const char *fmt, ...) {
    char line[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    mz_text_tame(line);
    print_name();
    fprintf(stderr, "%s\n", line);
    return CLI_USAGE;
}

int cli_error(mezzo_status status) {
    if (status == MEZZO_ERR_IO && cli_job_failed())
        return CLI_FAILED;
    print_name();
    fprintf(stderr, "%s\n", mezzo_error_message());
    if (mz_verbose_names("trace") && *mezzo_error_trace() != '\0')
        fprintf(stderr, "%s\n", mezzo_error_trace());
    return cli_exit_code(status);
}

int cli_code(mezzo_status status) {
    return status == MEZZO_OK ? CLI_DONE : cli_error(status);
}

int cli_finish(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    int error = errno;
    print_name();
    fprintf(stderr, "the results could not be written to standard output: %s\n", strerror(error));
    return code == CLI_DONE ? CLI_FAILED : code;
}

// --- figures: --plot FOLDER/NAME.svg -----------------------------------------------------------------
int cli_plot_parse(cli_plot *plot) {
    const char *path = cli_text("plot", NULL);
    *plot = (cli_plot){.asked = path != NULL};
    if (path == NULL)
        return CLI_DONE;
    const char *slash = strrchr(path, '/'), *file = slash != NULL ? slash + 1 : path, *dot = strrchr(file, '.');
    size_t length = dot != NULL ? (size_t)(dot - file) : 0;
    if (length == 0 || length >= sizeof plot->name || (strcmp(dot, ".svg") != 0 && strcmp(dot, ".png") != 0) ||
        (size_t)(file - path) >= sizeof plot->folder)
        return cli_wrong("--plot %s: name a file that ends in .svg or .png", path);
    snprintf(plot->folder, sizeof plot->folder, "%.*s", slash != NULL ? (int)(slash - path) + 1 : 1,
             slash != NULL ? path : ".");
    snprintf(plot->name, sizeof plot->name, "%.*s", (int)length, file);
    return CLI_DONE;
}

int cli_plotted(mezzo_status status, const cli_plot *plot) {
    CLI_DO(status);
    fprintf(stderr, "wrote %s.svg, %s.png and %s.gp in %s\n", mz_show(plot->name).text, mz_show(plot->name).text,
            mz_show(plot->name).text, mz_show(plot->folder).text);
    return CLI_DONE;
}

// --- the end -------------------------------------------------------------------------------------
static bool leaving;

void cli_leave(int code) {
    leaving = true;
    exit(code);
}

// Ends with the documented code. libgomp calls exit(1) after a line of its own where it cannot start a thread or get
// memory; 1 means a failed check, and this is 3.
static void leave_with_documented_code(void) {
    if (leaving)
        return;
    static const char line[] = "mezzo: a library failed; see the message above\n";
    if (write(STDERR_FILENO, line, sizeof line - 1) >= 0)
        fflush(stdout);
    _exit(CLI_FAILED);
}

bool cli_guard_exit(void) {
    return atexit(leave_with_documented_code) == 0;
}
