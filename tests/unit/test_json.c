// JSON of files that may come from anywhere: bounded, strict, and errors that name file and key.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/file.h"
#include "io/json.h"

static void assert_error_has(mezzo_status got, mezzo_status expected, const char *part) {
    assert_int_equal(got, expected);
    if (!strstr(mezzo_error_message(), part))
        fail_msg("'%s' does not say '%s'", mezzo_error_message(), part);
    assert_null(strchr(mezzo_error_message(), '\n'));
}

static json_t *parse(const char *text) {
    json_t *value;
    if (mz_json_parse("s.json", text, strlen(text), MZ_JSON_DEPTH, &value) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    return value;
}

static void what_is_saved_is_loaded_bit_for_bit(void **state) {
    (void)state;
    json_t *value = json_pack("{s:f, s:I, s:b, s:s, s:[i,i]}", "third", 1.0 / 3, "large", (json_int_t)INT64_MAX, "yes",
                              1, "text", "é\n\"", "list", 1, 2);
    assert_int_equal(mz_json_save("saved.json", value), MEZZO_OK);
    json_decref(value);
    assert_int_equal(mz_json_load("saved.json", 1 << 20, &value), MEZZO_OK);
    double third;
    int64_t large;
    bool yes;
    const char *text;
    json_t *list;
    assert_int_equal(mz_json_get_double("f", value, "third", &third), MEZZO_OK);
    assert_true(third == 1.0 / 3);
    assert_int_equal(mz_json_get_int("f", value, "large", 0, INT64_MAX, &large), MEZZO_OK);
    assert_int_equal(large, INT64_MAX);
    assert_int_equal(mz_json_get_bool("f", value, "yes", &yes), MEZZO_OK);
    assert_true(yes);
    assert_int_equal(mz_json_get_string("f", value, "text", &text), MEZZO_OK);
    assert_string_equal(text, "é\n\"");
    assert_int_equal(mz_json_get_array("f", value, "list", &list), MEZZO_OK);
    assert_int_equal(json_array_size(list), 2);
    json_decref(value);
    // A failed save keeps what was there.
    mz_io_fail_after(MZ_IO_WRITE, 0);
    assert_error_has(mz_json_save("saved.json", NULL), MEZZO_ERR_MEMORY, "'saved.json'");
    value = json_object();
    assert_error_has(mz_json_save("saved.json", value), MEZZO_ERR_IO, "'saved.json': No space left");
    json_decref(value);
    assert_int_equal(mz_json_load("saved.json", 1 << 20, &value), MEZZO_OK);
    assert_int_equal(json_object_size(value), 5);
    json_decref(value);
}

static void bad_text_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "s.json: not valid JSON at line 1"},
        {"{\n\"a\": 1,\n}", "s.json: not valid JSON at line 3"},
        {"{} x", "end of file expected"},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"{\"a\": NaN}", "not valid JSON"},
        {"{\"a\": 1e999}", "not valid JSON"},
        {"{\"a\": 123456789012345678901}", "not valid JSON"},
        {"\"\xC3\x28\"", "not valid JSON"},
        {"[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "nested deeper than 16"},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        json_t *value;
        assert_error_has(mz_json_parse("s.json", rows[i].text, strlen(rows[i].text), MZ_JSON_DEPTH, &value),
                         MEZZO_ERR_FORMAT, rows[i].says);
        assert_null(value);
    }
    json_decref(parse("[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]"));
    json_decref(parse("[\"[[[[[[[[[[[[[[[[[[[[[[[\\\"[\"]")); // brackets inside a string are no nesting
}

static void a_wrong_key_is_named(void **state) {
    (void)state;
    json_t *object = parse("{\"i\": 5, \"d\": 1.5, \"s\": \"a\\u0000b\", \"n\": null, \"t\": true}");
    int64_t i;
    double d;
    bool b;
    const char *s;
    json_t *o;
    assert_error_has(mz_json_get_int("f", object, "i", 6, 9, &i), MEZZO_ERR_FORMAT, "f: key 'i': 5 is not in 6 … 9");
    assert_error_has(mz_json_get_int("f", object, "d", 0, 9, &i), MEZZO_ERR_FORMAT,
                     "f: key 'd': expected an integer, got a number");
    assert_error_has(mz_json_get_int("f", object, "x", 0, 9, &i), MEZZO_ERR_FORMAT, "expected an integer, got nothing");
    assert_error_has(mz_json_get_double("f", object, "n", &d), MEZZO_ERR_FORMAT, "expected a number, got null");
    assert_int_equal(mz_json_get_double("f", object, "i", &d), MEZZO_OK);
    assert_true(d == 5);
    assert_error_has(mz_json_get_bool("f", object, "i", &b), MEZZO_ERR_FORMAT,
                     "expected true or false, got an integer");
    assert_error_has(mz_json_get_string("f", object, "t", &s), MEZZO_ERR_FORMAT, "expected a string, got true");
    assert_error_has(mz_json_get_string("f", object, "s", &s), MEZZO_ERR_FORMAT, "has a NUL");
    assert_error_has(mz_json_get_object("f", object, "i", &o), MEZZO_ERR_FORMAT, "expected an object");
    assert_error_has(mz_json_get_array("f", object, "i", &o), MEZZO_ERR_FORMAT, "expected an array");
    json_decref(object);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_is_loaded_bit_for_bit),
        cmocka_unit_test(bad_text_is_refused),
        cmocka_unit_test(a_wrong_key_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
