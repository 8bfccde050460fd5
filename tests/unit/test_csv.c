// Tables from anywhere: what RFC 4180 allows is read, what is broken is named by file, line and column.
// Seen to fail with: doubled quotes kept; a quoted line end that does not count; the number of fields not compared.
#include <math.h>

#include "io/csv.h"
#include "test.h"

static mz_csv *parsed(const char *text) {
    mz_csv *csv;
    if (mz_csv_parse("t.csv", text, strlen(text), &csv) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    return csv;
}

static void refused(const char *text, const char *words) {
    mz_csv *csv;
    must_fail(mz_csv_parse("t.csv", text, strlen(text), &csv), MEZZO_ERR_FORMAT, words, "t.csv");
    assert_null(csv);
}

TEST(test_reads) {
    mz_csv *csv = parsed("name,\"a, b\"\r\n\r\n\"say \"\"hi\"\"\",\"two\nlines\"\r\nplain, 3.5 \n,-7");
    assert_int_equal(mz_csv_rows(csv), 3);
    assert_int_equal(mz_csv_columns(csv), 2);
    assert_string_equal(mz_csv_name(csv, 0), "name");
    assert_int_equal(mz_csv_find(csv, "a, b"), 1);
    assert_int_equal(mz_csv_find(csv, "b"), -1);
    assert_string_equal(mz_csv_cell(csv, 0, 0), "say \"hi\"");
    assert_string_equal(mz_csv_cell(csv, 0, 1), "two\nlines");
    assert_int_equal(mz_csv_line(csv, 0), 3);
    assert_int_equal(mz_csv_line(csv, 1), 5); // the quoted line end counted
    double x;
    int64_t i;
    assert_int_equal(mz_csv_number(csv, 1, 1, &x), MEZZO_OK);
    assert_true(x == 3.5);
    assert_int_equal(mz_csv_integer(csv, 2, 1, -10, 10, &i), MEZZO_OK);
    assert_int_equal(i, -7);
    assert_int_equal(mz_csv_optional(csv, 2, 0, &x), MEZZO_OK);
    assert_true(isnan(x));
    must_fail(mz_csv_integer(csv, 2, 1, 0, 10, &i), MEZZO_ERR_FORMAT, "t.csv:6");
    must_fail(mz_csv_number(csv, 1, 0, &x), MEZZO_ERR_FORMAT, "'plain'");
    must_fail(mz_csv_number(csv, 2, 0, &x), MEZZO_ERR_FORMAT, "nothing");
    int column;
    must_fail(mz_csv_need(csv, "tps", &column), MEZZO_ERR_FORMAT, "'tps' is missing; there are 'name', 'a, b'");
    mz_csv_free(csv);
}

TEST(test_refuses) {
    refused("a;b\n1;2\n", "t.csv:1: the header has one field, 'a;b': a comma must divide them, not a semicolon");
    refused("a\tb\n1,5\t2\n", "not a tab");
    refused("", "empty");
    refused("\n\r\n", "empty");
    refused("a,b\n1\n", "t.csv:2: 1 field where the header has 2");
    refused("a,b\n1,2\n1,2,3\n", "t.csv:3: 3 fields");
    refused("a,b\n1,\"2\n3,4\n", "t.csv:2: a quote opened here is never closed");
    refused("a,b\n\"1\"x,2\n", "t.csv:2: text after a closing quote");
    refused("a,a\n", "'a' twice");
    refused("a,\n", "column 2 has no name");
    mz_csv *csv;
    must_fail(mz_csv_parse("t.csv", "a\n1\0\n", 5, &csv), MEZZO_ERR_FORMAT, "NUL");
    must_fail(mz_csv_load("no/such.csv", &csv), MEZZO_ERR_INVALID, "no/such.csv");
}

TEST(test_writes) {
    static const char *const fields[] = {"plain", "a,b", "say \"hi\"", "two\nlines", "", "\xEF\xBB\xBFx", " blank "};
    mz_text t = {0};
    for (size_t i = 0; i < MZ_COUNT(fields); i++) { // as names of columns, then as cells
        mz_text_addf(&t, "%s", i > 0 ? "," : "");
        mz_csv_add(&t, i == 4 ? "x" : fields[i]);
    }
    mz_text_addf(&t, "\n");
    for (size_t i = 0; i < MZ_COUNT(fields); i++) {
        mz_text_addf(&t, "%s", i > 0 ? "," : "");
        mz_csv_add(&t, fields[i]);
    }
    mz_csv *csv = parsed(t.data);
    for (size_t i = 0; i < MZ_COUNT(fields); i++)
        assert_string_equal(mz_csv_cell(csv, 0, i), fields[i]);
    mz_csv_free(csv);
    mz_text_free(&t);
}
