// Prints results as text and JSON, in the columns of a terminal; quotes words for a shell.
#include <ctype.h>
#include <stdlib.h>
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
    return isatty(fileno(to)) && ioctl(fileno(to), TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : MZ_TEXT_COLUMNS;
}

int cli_print_made(mz_text *text) {
    if (text->status != MEZZO_OK)
        cli_leave(cli_error(text->status));
    printf("%s", text->data != NULL ? text->data : "");
    mz_text_free(text);
    return CLI_DONE;
}

void cli_wrap(const char *text, int at, int indent, int most) {
    mz_text wrapped = {0};
    mz_text_wrap(&wrapped, text, at, indent, most);
    mz_text_add(&wrapped, "\n", 1);
    cli_print_made(&wrapped);
}

int cli_json_print(json_t *result) {
    char *text;
    const mezzo_status status = mz_json_dump(result, JSON_INDENT(2), &text);
    if (status == MEZZO_OK)
        printf("%s\n", text);
    free(text);
    json_decref(result);
    return cli_code(status);
}

void cli_add(char *text, size_t size, const char *fmt, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + used, size - used, fmt, args);
    va_end(args);
}

// Quotes as $'word', where a byte that is not printable ASCII is \ooo, or as 'word', where a quote inside becomes '\''.
static void quote(const char *word, bool bytes, mz_shown *out) {
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

mz_shown cli_quoted(const char *word) {
    mz_shown out = mz_show(word);
    const bool bytes = strcmp(out.text, word) != 0; // some would control a terminal
    bool plain = *word != '\0';
    for (const char *c = word; *c != '\0'; c++)
        plain = plain && (isalnum((unsigned char)*c) || strchr("_-./:=+,@%", *c) != NULL);
    if (bytes || !plain)
        quote(word, bytes, &out);
    return out;
}
