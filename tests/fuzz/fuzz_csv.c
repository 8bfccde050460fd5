// Any bytes as a table: refused with one line, or written back as a table that reads to the same cells.
#include "io/csv.h"
#include "target.h"

static void write_row(const mz_csv *csv, size_t row, mz_text *out) {
    for (size_t c = 0; c < mz_csv_columns(csv); c++) {
        if (c > 0)
            mz_text_add(out, ",", 1);
        const char *cell = row == 0 ? mz_csv_name(csv, c) : mz_csv_cell(csv, row - 1, c);
        if (mz_csv_columns(csv) == 1 && *cell == '\0')
            mz_text_add(out, "\"\"", 2); // an empty line would be skipped
        else
            mz_csv_add(out, cell);
    }
    mz_text_add(out, "\n", 1);
}

static void compare(const mz_csv *a, const mz_csv *b) {
    double x;
    int64_t i;
    if (mz_csv_rows(a) != mz_csv_rows(b) || mz_csv_columns(a) != mz_csv_columns(b))
        __builtin_trap();
    for (size_t r = 0; r < mz_csv_rows(a); r++)
        for (size_t c = 0; c < mz_csv_columns(a); c++) {
            if (strcmp(mz_csv_cell(a, r, c), mz_csv_cell(b, r, c)) != 0)
                __builtin_trap();
            if (mz_csv_number(a, r, (int)c, &x) != MEZZO_OK && strchr(mezzo_error_message(), '\n') != NULL)
                __builtin_trap();
            if (mz_csv_integer(a, r, (int)c, -5, 1000, &i) == MEZZO_OK && (i < -5 || i > 1000))
                __builtin_trap();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_csv *csv, *again;
    if (mz_csv_parse("input", (const char *)data, size, &csv) != MEZZO_OK) {
        fuzz_expect_message();
        return 0;
    }
    mz_text text = {0};
    for (size_t row = 0; row <= mz_csv_rows(csv); row++)
        write_row(csv, row, &text);
    if (mz_csv_parse("again", text.data, text.len, &again) != MEZZO_OK)
        __builtin_trap();
    compare(csv, again);
    mz_text_free(&text);
    mz_csv_free(csv);
    mz_csv_free(again);
    return 0;
}
