// Formats text: columns of a terminal, names, numbers, words for a shell.
#include <ctype.h>
#include <math.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

void cli_print_text(FILE *to, const char *text, size_t n) {
    bool terminal = isatty(fileno(to)) != 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
        fputc(terminal && control ? '?' : c, to);
    }
}

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
    bool starts = true; // at the beginning of a line, where no blank precedes the word
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

void cli_wrap_line(const char *text, int at, int indent) {
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
    cli_wrap_line(text + lines, 0, 0);
}

cli_shown cli_show(const char *name) {
    cli_shown shown;
    snprintf(shown.text, sizeof shown.text, "%s", name);
    mz_text_tame(shown.text);
    return shown;
}

// Quotes as $'word', where a byte that is not printable ASCII is \ooo.
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
    size_t n = 0; // quotes as 'word', where a quote inside becomes '\''
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
    if (!(seconds >= 0 && seconds < 1e9)) { // also for NaN: the time is not known yet
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
