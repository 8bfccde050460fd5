// A line of metrics.jsonl means the same scanned and through the JSON reader; what is no record is refused by both.
// Seen to fail with: a scanner that takes "01" or a key twice, one that cuts integers above 2^31.
#include <math.h>

#include "io/record.h"
#include "test.h"

static bool same(const mz_metric *a, const mz_metric *b) {
    if (strcmp(a->name, b->name) != 0 || a->kind != b->kind)
        return false;
    if (a->kind == MZ_METRIC_TEXT)
        return strcmp(a->text, b->text) == 0;
    const double x = mz_metric_as_number(a), y = mz_metric_as_number(b);
    return a->kind == MZ_METRIC_NUMBER ? x == y || (isnan(x) && isnan(y)) : a->integer == b->integer;
}

// `members` scanned, and with one more member whose escape only the JSON reader takes.
static void reads_both_ways(const char *members, size_t n) {
    mz_record scanned = {0}, parsed = {0};
    char line[512];
    snprintf(line, sizeof line, "{%s}", members);
    assert_int_equal(mz_record_read(&scanned, line, strlen(line)), MEZZO_OK);
    snprintf(line, sizeof line, "{%s, \"last\\u002f\": 1}", members);
    assert_int_equal(mz_record_read(&parsed, line, strlen(line)), MEZZO_OK);
    assert_int_equal(scanned.step, parsed.step);
    assert_int_equal(scanned.n, n);
    assert_int_equal(parsed.n, n + 1);
    assert_string_equal(parsed.values[n].name, "last/");
    for (size_t i = 0; i < n; i++)
        assert_true(same(&scanned.values[i], &parsed.values[i]));
    mz_record_free(&scanned);
    mz_record_free(&parsed);
}

TEST(both_ways_read_the_same) {
    reads_both_ways("\"step\": 0", 0);
    reads_both_ways("\"train/loss\": 3.6412324905395508, \"step\": 9007199254740993, \"n\": -9223372036854775808", 2);
    reads_both_ways("\"step\":7,\"a\":1e-5,\"b\":-0.0,\"c\":12E+3,\"d\":5e-324", 4);
    reads_both_ways(" \"step\" : 7 , \"a\" : true , \"b\" : false , \"c\" : \"text, {\" ", 3);
    reads_both_ways("\"step\": 1, \"a\": \"NaN\", \"b\": \"Infinity\", \"c\": \"-Infinity\", \"d\": \"nan\"", 4);
}

TEST(other_json_is_read) {
    mz_record r = {0};
    static const char line[] =
        "{\"step\": 2, \"list\": [1, 2], \"none\": null, \"sample/text\": \"\\u00e9\\n\xc3\xa9\", \"x\": 1}";
    assert_int_equal(mz_record_read(&r, line, sizeof line - 1), MEZZO_OK);
    assert_int_equal(r.n, 2);
    assert_string_equal(r.wrong, "'list'");
    assert_string_equal(mz_record_find(&r, "sample/text")->text, "\xc3\xa9\n\xc3\xa9");
    assert_int_equal(mz_record_find(&r, "x")->integer, 1);
    assert_true(isnan(mz_metric_as_number(mz_record_find(&r, "none"))));
    mz_record_free(&r);
}

TEST(many_keys_are_read) {
    enum { KEYS = 3000 };
    mz_record r = {0};
    mz_text line = {0};
    mz_text_addf(&line, "{\"step\": 3");
    for (int i = 0; i < KEYS; i++)
        mz_text_addf(&line, ", \"k%d\": %d", i, i);
    const size_t n = line.len;
    mz_text_addf(&line, "}");
    assert_int_equal(line.status, MEZZO_OK);
    assert_int_equal(mz_record_read(&r, line.data, line.len), MEZZO_OK);
    assert_int_equal(r.step, 3);
    assert_int_equal(r.n, KEYS);
    for (int i = 0; i < KEYS; i++)
        assert_int_equal(r.values[i].integer, i);
    line.len = n;
    mz_text_addf(&line, ", \"k%d\": 1}", KEYS - 1);
    assert_int_equal(mz_record_read(&r, line.data, line.len), MEZZO_ERR_FORMAT);
    mz_text_free(&line);
    mz_record_free(&r);
}

TEST(what_is_no_record_is_refused) {
    static const char *const lines[] = {
        "",
        "nonsense",
        "[1]",
        "{}",
        "{\"a\": 1}",
        "{\"step\": -1}",
        "{\"step\": 1.0}",
        "{\"step\": \"1\"}",
        "{\"step\": null}",
        "{\"step\": true}",
        "{\"step\": 99999999999999999999}",
        "{\"step\": 1, \"a\": 01}",
        "{\"step\": 1, \"a\": .5}",
        "{\"step\": 1, \"a\": 1.}",
        "{\"step\": 1, \"a\": 1e}",
        "{\"step\": 1, \"a\": +1}",
        "{\"step\": 1, \"a\": nan}",
        "{\"step\": 1, \"a\": 1,}",
        "{\"step\": 1, \"a\": 1} x",
        "{\"step\": 1, \"a\": 1, \"a\": 2}",
        "{\"step\": 1, \"step\": 2}",
        "{\"step\": 1, \"a\": \"",
        "{\"step\": 1, \"a\": tru}",
        "{\"step\": 1, \"a\": \"\xff\"}",
        "{\"step\": 1, \"a\": [[[[[1]]]]]}",
    };
    mz_record r = {0};
    for (size_t i = 0; i < MZ_COUNT(lines); i++)
        if (mz_record_read(&r, lines[i], strlen(lines[i])) != MEZZO_ERR_FORMAT)
            fail_msg("%s is read", lines[i]);
    mz_record_free(&r);
}
