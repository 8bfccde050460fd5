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

void cli_add(char *text, size_t size, const char *fmt, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + used, size - used, fmt, args);
    va_end(args);
}

cli_shown cli_show(const char *name) {
    cli_shown shown;
    snprintf(shown.text, sizeof shown.text, "%s", name);
    mz_text_tame(shown.text);
    return shown;
}

// Quotes as $'word', where a byte that is not printable ASCII is \ooo, or as 'word', where a quote inside becomes '\''.
static void quote(const char *word, bool bytes, cli_shown *out) {
    const size_t size = sizeof out->text;
    size_t n = (size_t)snprintf(out->text, size, bytes ? "$'" : "'");
    for (const unsigned char *c = (const unsigned char *)word; *c != '\0' && n + 8 < size; c++) {
        const char *form = bytes && (*c < 0x20 || *c >= 0x7F)    ? "\\%03o"
                           : bytes && (*c == '\'' || *c == '\\') ? "\\%c"
                           : *c == '\''                          ? "'\\%c'"
                                                                 : "%c";
        n += (size_t)snprintf(out->text + n, size - n, form, *c);
    }
    snprintf(out->text + n, size - n, "'");
}

cli_shown cli_quoted(const char *word) {
    cli_shown out = cli_show(word);
    const bool bytes = strcmp(out.text, word) != 0; // some would control a terminal
    bool plain = *word != '\0';
    for (const char *c = word; *c != '\0'; c++)
        plain = plain && (isalnum((unsigned char)*c) || strchr("_-./:=+,@%", *c) != NULL);
    if (bytes || !plain)
        quote(word, bytes, &out);
    return out;
}

cli_short cli_duration(double seconds) {
    cli_short out = {"-"};
    if (!(seconds >= 0 && seconds < 1e9)) // also for NaN: the time is not known yet
        return out;
    const long long s = llround(seconds);
    if (s >= 3600)
        snprintf(out.text, sizeof out.text, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out.text, sizeof out.text, "%lld:%02lld", s / 60, s % 60);
    return out;
}

cli_short cli_bytes(double bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    cli_short out;
    size_t unit = 0;
    for (; bytes >= 1000 && unit + 1 < MZ_COUNT(units); unit++)
        bytes /= 1000;
    snprintf(out.text, sizeof out.text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return out;
}

cli_short cli_count(double number) {
    cli_short out = {"-"};
    char digits[32];
    if (!(fabs(number) < 1e15))
        return out;
    const int n = snprintf(digits, sizeof digits, "%.0f", fabs(number));
    size_t used = number < 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            out.text[used++] = ',';
        out.text[used++] = digits[i];
    }
    out.text[used] = '\0';
    return out;
}
