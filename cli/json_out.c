// Prints results as JSON on stdout.
#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "io/json.h"
#include "io/utf8.h"

json_t *cli_json_text(const char *bytes, size_t n) {
    json_t *text = json_stringn(bytes, n); // NULL: not UTF-8, or no memory, which the dump remembers
    if (text != NULL)
        return text;
    mz_text clean = {0};
    mz_text_add(&clean, "", 0);
    for (size_t i = 0; i < n;) {
        uint32_t code;
        size_t width = mz_utf8_decode(bytes + i, n - i, &code);
        if (width == 0)
            mz_text_add(&clean, "\xEF\xBF\xBD", 3);
        else
            mz_text_add(&clean, bytes + i, width);
        i += width == 0 ? 1 : width;
    }
    if (clean.status != MEZZO_OK) { // a result without the key would be wrong in silence
        cli_error(MEZZO_ERR_MEMORY);
        cli_leave(CLI_FAILED);
    }
    text = json_stringn(clean.data, clean.len);
    mz_text_free(&clean);
    return text;
}

int cli_json_print(json_t *result) {
    int code = CLI_DONE;
    char *text;
    mezzo_status status = mz_json_dump(result, JSON_INDENT(2), &text);
    if (status == MEZZO_OK)
        printf("%s\n", text);
    else
        code = cli_error(status);
    free(text);
    json_decref(result);
    return code;
}

int cli_print_fields(const cli_field *fields, size_t n, const void *row, const char *word, int width) {
    if (cli_has("json"))
        return cli_json_print(cli_fields_json(fields, n, row, word, NULL));
    cli_fields_lines(fields, n, row, word, "", width);
    return CLI_DONE;
}

int cli_print_made(mz_text *text) {
    const mezzo_status status = text->status;
    if (status == MEZZO_OK)
        printf("%s", text->data);
    mz_text_free(text);
    return cli_code(status);
}
