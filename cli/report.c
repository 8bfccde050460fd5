// How the command tells things: errors, log lines, help, and numbers for people.
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/precision.h"
#include "cli.h"
#include "io/file.h"

int cli_exit_code(mezzo_status status) {
    switch (status) {
    case MEZZO_OK:
        return CLI_DONE;
    case MEZZO_ERR_INVALID: // options, keys, shapes
    case MEZZO_ERR_FORMAT:  // a file that was given is not what it should be
        return CLI_USAGE;
    case MEZZO_ERR_INTERRUPTED:
        return CLI_INTERRUPTED;
    case MEZZO_ERR_MEMORY:
    case MEZZO_ERR_IO:
    case MEZZO_ERR_UNSUPPORTED:
    case MEZZO_ERR_DEVICE:
    case MEZZO_ERR_NUMERIC:
        return CLI_FAILED;
    }
    return CLI_FAILED;
}

static bool verbose(const char *topic) {
    const char *list = getenv("MEZZO_VERBOSE");
    return list != NULL && (strstr(list, topic) != NULL || strstr(list, "all") != NULL);
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

static void print_name(const cli_command *command) {
    cli_progress_end();
    fprintf(stderr, "mezzo%s%s: ", command != NULL ? " " : "", command != NULL ? command->name : "");
}

// A usage of two forms has a line for each; an error is one line.
static void join_forms(char *line) {
    static const char between[] = "\n       mezzo ", instead[] = " or mezzo ";
    for (char *at = line; (at = strstr(at, between)) != NULL;) {
        const char *rest = at + sizeof between - 1;
        memcpy(at, instead, sizeof instead - 1);
        memmove(at + sizeof instead - 1, rest, strlen(rest) + 1);
    }
}

int cli_wrong(const cli_command *command, const char *fmt, ...) {
    char line[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    join_forms(line);
    mz_text_tame(line);
    print_name(command);
    fprintf(stderr, "%s\n", line);
    return CLI_USAGE;
}

int cli_error(const cli_command *command, mezzo_status status) {
    if (status == MEZZO_ERR_IO && cli_job_failed())
        return CLI_FAILED;
    print_name(command);
    fprintf(stderr, "%s\n", mezzo_error_message());
    if (verbose("trace") && *mezzo_error_trace() != '\0')
        fprintf(stderr, "%s\n", mezzo_error_trace());
    return cli_exit_code(status);
}

int cli_finish(const cli_command *command, int code) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    int error = errno;
    print_name(command);
    fprintf(stderr, "the results could not be written to standard output: %s\n", strerror(error));
    return code == CLI_DONE ? CLI_FAILED : code;
}

void cli_print_text(FILE *to, const char *text, size_t n) {
    bool terminal = isatty(fileno(to)) != 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
        fputc(terminal && control ? '?' : c, to);
    }
}

// --- help: at most 80 columns --------------------------------------------------------------------------------------
enum { HELP_COLUMN = 26 }; // where the texts of options begin

int cli_terminal_columns(FILE *to) {
    struct winsize w;
    return isatty(fileno(to)) && ioctl(fileno(to), TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : CLI_COLUMNS;
}

int cli_columns_of(const char *text, size_t bytes) {
    int n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

void cli_wrap(const char *text, int at, int indent, int most) {
    bool starts = true; // a line: no blank before the word
    for (const char *word = text; *word != '\0';) {
        size_t n = strcspn(word, " \n");
        int width = cli_columns_of(word, n);
        if (!starts && at + 1 + width > most) {
            printf("\n%*s", indent, "");
            at = indent;
        } else if (!starts) {
            putchar(' ');
            at++;
        }
        printf("%.*s", (int)n, word);
        at += width;
        starts = false;
        word += n;
        bool sentence = *word == '\n' && n > 0 && strchr(".:", word[-1]) != NULL;
        word += *word != '\0';
        if (sentence && *word != '\0') {
            printf("\n%*s", indent, "");
            at = indent;
            starts = true;
        }
    }
}

static void wrap(const char *text, int at, int indent) {
    cli_wrap(text, at, indent, CLI_COLUMNS);
    putchar('\n');
}

void cli_tell(const char *fmt, ...) {
    char text[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const size_t lines = strspn(text, "\n");
    printf("%.*s", (int)lines, text);
    wrap(text + lines, 0, 0);
}

const char *cli_option_help(const cli_option *option, char *buf, size_t size) {
    static const char word[] = "{precisions}";
    const char *help = option->help;
    const char *at = strstr(help, word);
    if (at == NULL)
        return help;
    mezzo_precision all[MEZZO_PRECISION_COUNT];
    char names[160] = "";
    int n = mz_precision_common(all);
    for (int i = 0; i < n; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i > 0 ? "," : "",
                 mezzo_precision_name(all[i]));
    snprintf(buf, size, "%.*s%s%s", (int)(at - help), help, names, at + sizeof word - 1);
    return buf;
}

static void print_option(const char *left, const char *text) {
    int width = 2 + cli_columns_of(left, strlen(left));
    printf("  %s", left);
    if (width < HELP_COLUMN)
        printf("%*s", HELP_COLUMN - width, "");
    else
        printf("\n%*s", HELP_COLUMN, "");
    wrap(text, HELP_COLUMN, HELP_COLUMN);
}

const char *cli_value_word(const char *type) {
    static const struct {
        const char *type, *word;
    } words[] = {{"integer", " N"}, {"number", " X"}, {"text", " TEXT"}, {"map", " NAME"}, {"true|false", ""}};
    for (size_t i = 0; i < MZ_COUNT(words); i++)
        if (strcmp(words[i].type, type) == 0)
            return words[i].word;
    return " NAME";
}

static void print_keys(const cli_command *command) {
    const char *previous = "";
    for (int i = 0; i < mezzo_config_count(); i++) {
        mezzo_config_key key = mezzo_config_describe(i);
        if (!cli_takes_key(command, key.key))
            continue;
        const size_t section = strcspn(key.key, ".");
        if (section != strcspn(previous, ".") || strncmp(key.key, previous, section) != 0)
            printf("\n%.*s:\n", (int)section, key.key);
        previous = key.key;
        const int alias = (int)strcspn(key.aliases, " |");
        const char *value = cli_value_word(key.type);
        printf("  --%s%s%s%.*s%s\n        ", key.key, strcmp(key.type, "map") == 0 ? ".PATTERN" : "",
               alias > 0 ? ", --" : "", alias, key.aliases, value);
        bool names = strcmp(value, " NAME") == 0 && strchr(key.type, '|') != NULL;
        char text[1024];
        snprintf(text, sizeof text, "%s%s%s%s%s%s", key.help, names ? ": " : "", names ? key.type : "",
                 *key.initial != '\0' ? " [" : "", key.initial, *key.initial != '\0' ? "]" : "");
        wrap(text, 8, 8);
    }
}

bool cli_find_folder(const char *const *places, size_t n, char *folder, size_t size) {
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return false;
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < n; i++) {
        snprintf(folder, size, "%.4000s/%s", self, places[i]);
        char *whole = realpath(folder, NULL);
        if (whole != NULL)
            snprintf(folder, size, "%s", whole);
        free(whole);
        if (whole != NULL && mz_path_is_dir(folder))
            return true;
    }
    return false;
}

// The documents that a help names, and where they are.
static void cite(const char *details) {
    static const char *const places[] = {"../share/doc/mezzo/docs", "../../docs", "../docs"};
    char folder[4096 + 64];
    if (strstr(details, "docs/") != NULL && cli_find_folder(places, MZ_COUNT(places), folder, sizeof folder))
        printf("docs/ is %s\n", folder);
}

void cli_help(const cli_command *command) {
    char line[1024];
    snprintf(line, sizeof line, "mezzo %s: %s", command->name, command->summary);
    wrap(line, 0, 4);
    snprintf(line, sizeof line, "usage: mezzo %s %s", command->name, command->usage);
    putchar('\n');
    for (char *form = line; form != NULL;) { // each form of the call begins a line
        char *end = strchr(form, '\n');
        if (end != NULL)
            *end++ = '\0';
        wrap(form, 0, 11);
        form = end;
    }
    if (*command->details != '\0') {
        putchar('\n');
        wrap(command->details, 0, 0);
        cite(command->details);
    }
    printf("\noptions:\n");
    for (const cli_option *o = command->options; o->name != NULL; o++) {
        char left[128], text[512];
        snprintf(left, sizeof left, "%s%s%s%s", o->name[1] != '\0' ? "--" : "-", o->name, o->value != NULL ? " " : "",
                 o->value != NULL ? o->value : "");
        if (o->help != NULL) // the others are for tests
            print_option(left, cli_option_help(o, text, sizeof text));
    }
    print_option("--help", "this text");
    if (command->config != NULL)
        print_keys(command);
}

cli_shown cli_show(const char *name) {
    cli_shown shown;
    snprintf(shown.text, sizeof shown.text, "%s", name);
    mz_text_tame(shown.text);
    return shown;
}

// $'word', where a byte that is not printable ASCII is \ooo.
static const char *quote_bytes(const char *word, char *buf, size_t size) {
    size_t n = (size_t)snprintf(buf, size, "$'");
    for (const unsigned char *c = (const unsigned char *)word; *c != '\0' && n + 8 < size; c++)
        n += (size_t)snprintf(buf + n, size - n,
                              *c < 0x20 || *c >= 0x7F    ? "\\%03o"
                              : *c == '\'' || *c == '\\' ? "\\%c"
                                                         : "%c",
                              *c);
    snprintf(buf + n, size - n, "'");
    return buf;
}

const char *cli_quote(const char *word, char *buf, size_t size) {
    bool plain = *word != '\0';
    if (strcmp(cli_show(word).text, word) != 0)
        return quote_bytes(word, buf, size);
    for (const char *c = word; *c != '\0'; c++)
        plain = plain && (isalnum((unsigned char)*c) || strchr("_-./:=+,@%", *c) != NULL);
    if (plain) {
        snprintf(buf, size, "%s", word);
        return buf;
    }
    size_t n = 0; // 'word', where a quote inside is '\''
    const char *piece = "'";
    for (const char *c = word;; c++) {
        for (; *piece != '\0' && n + 1 < size; piece++)
            buf[n++] = *piece;
        if (*c == '\0')
            break;
        char one[2] = {*c, '\0'};
        piece = *c == '\'' ? "'\\''" : one;
        for (; *piece != '\0' && n + 1 < size; piece++)
            buf[n++] = *piece;
        piece = "";
    }
    if (n + 1 < size)
        buf[n++] = '\'';
    buf[n < size ? n : size - 1] = '\0';
    return buf;
}

const char *cli_duration(double seconds, char *buf, size_t size) {
    if (!(seconds >= 0 && seconds < 1e9)) { // also NaN: not known yet
        snprintf(buf, size, "-");
        return buf;
    }
    long long s = llround(seconds);
    if (s >= 3600)
        snprintf(buf, size, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, size, "%lld:%02lld", s / 60, s % 60);
    return buf;
}

const char *cli_bytes(size_t bytes, char *buf, size_t size) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double x = (double)bytes;
    size_t unit = 0;
    while (x >= 1000 && unit + 1 < MZ_COUNT(units)) {
        x /= 1000;
        unit++;
    }
    snprintf(buf, size, unit == 0 ? "%.0f %s" : "%.1f %s", x, units[unit]);
    return buf;
}

const char *cli_thousands(double number, char *buf, size_t size) {
    if (!(fabs(number) < 1e15)) {
        snprintf(buf, size, "-");
        return buf;
    }
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%.0f", fabs(number));
    size_t used = 0;
    if (number < 0 && used + 1 < size)
        buf[used++] = '-';
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0 && used + 1 < size)
            buf[used++] = ',';
        if (used + 1 < size)
            buf[used++] = digits[i];
    }
    buf[used] = '\0';
    return buf;
}
