// JSON of files that may come from anywhere: bounded, strict, and errors that name file and key.
#include <float.h>
#include <math.h>

#include "io/file.h"
#include "io/json.h"
#include "test.h"

static json_t *parse(const char *text) {
    json_t *value;
    if (mz_json_parse("s.json", text, strlen(text), MZ_JSON_DEPTH, &value) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    return value;
}

TEST(what_is_saved_is_loaded_bit_for_bit) {
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
    must_fail(mz_json_save("saved.json", NULL), MEZZO_ERR_MEMORY, "'saved.json'");
    value = json_object();
    must_fail(mz_json_save("saved.json", value), MEZZO_ERR_IO, "'saved.json': No space left");
    json_decref(value);
    assert_int_equal(mz_json_load("saved.json", 1 << 20, &value), MEZZO_OK);
    assert_int_equal(json_object_size(value), 5);
    json_decref(value);
}

TEST(bad_text_is_refused) {
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "s.json: not valid JSON at line 1"},
        {"{\n\"a\": 1,\n}", "s.json: not valid JSON at line 3"},
        {"{} x", "end of file expected"},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"{\"a\": nan}", "not valid JSON"},
        {"{\"a\": +1}", "not valid JSON"},
        {"{\"a\": 0123456789012345678901}", "not valid JSON"},
        {"{\"a\": \"\\ud83", "not valid JSON"},
        {"{\"a\": -Infinit}", "not valid JSON"},
        {"\"\xC3\x28\"", "not valid JSON"},
        {"[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "nested deeper than 16"},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        json_t *value;
        must_fail(mz_json_parse("s.json", rows[i].text, strlen(rows[i].text), MZ_JSON_DEPTH, &value), MEZZO_ERR_FORMAT,
                  rows[i].says);
        assert_null(value);
    }
    json_t *none;
    must_fail(mz_json_parse("s.json", "[0,4\0]", 6, MZ_JSON_DEPTH, &none), MEZZO_ERR_FORMAT, "NUL byte");
    json_decref(parse("[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]"));
    json_decref(parse("[\"[[[[[[[[[[[[[[[[[[[[[[[\\\"[\"]")); // brackets inside a string are no nesting
}

// Written as short as it reads back, and never as another number.
TEST(numbers_read_back_exactly) {
    static const double numbers[] = {0.1,     0x1p-83, DBL_MAX, -DBL_MIN, 4.9406564584124654e-324,
                                     FLT_MAX, 1.0 / 3, 100000,  1e22,     3758096384};
    json_t *list = json_array(), *text = json_array();
    for (size_t i = 0; i < MZ_COUNT(numbers); i++)
        json_array_append_new(list, json_real(numbers[i]));
    json_array_append_new(text, json_string("kept: 0.10000000000000001 \" 0.10000000000000001"));
    char *written, *kept;
    assert_int_equal(mz_json_dump(list, 0, &written), MEZZO_OK);
    assert_int_equal(mz_json_dump(text, 0, &kept), MEZZO_OK);
    assert_non_null(strstr(written, "[0.1, "));
    assert_non_null(strstr(written, ", 100000.0, "));
    assert_non_null(strstr(written, ", 3758096384.0]"));
    json_t *read = parse(written);
    for (size_t i = 0; i < MZ_COUNT(numbers); i++)
        assert_true(json_real_value(json_array_get(read, i)) == numbers[i]);
    assert_string_equal(kept, "[\"kept: 0.10000000000000001 \\\" 0.10000000000000001\"]");
    free(written);
    free(kept);
    json_decref(list);
    json_decref(text);
    json_decref(read);
}

TEST(a_wrong_key_is_named) {
    json_t *object = parse("{\"i\": 5, \"d\": 1.5, \"s\": \"a\\u0000b\", \"n\": null, \"t\": true}");
    int64_t i;
    double d;
    bool b;
    const char *s;
    json_t *o;
    must_fail(mz_json_get_int("f", object, "i", 6, 9, &i), MEZZO_ERR_FORMAT, "f: key 'i': 5 is not in 6 … 9");
    must_fail(mz_json_get_int("f", object, "d", 0, 9, &i), MEZZO_ERR_FORMAT,
              "f: key 'd': expected an integer, got a number");
    must_fail(mz_json_get_int("f", object, "x", 0, 9, &i), MEZZO_ERR_FORMAT, "expected an integer, got nothing");
    must_fail(mz_json_get_double("f", object, "n", &d), MEZZO_ERR_FORMAT, "expected a number, got null");
    assert_int_equal(mz_json_get_double("f", object, "i", &d), MEZZO_OK);
    assert_true(d == 5);
    must_fail(mz_json_get_bool("f", object, "i", &b), MEZZO_ERR_FORMAT, "expected true or false, got an integer");
    must_fail(mz_json_get_string("f", object, "t", &s), MEZZO_ERR_FORMAT, "expected a string, got true");
    must_fail(mz_json_get_string("f", object, "s", &s), MEZZO_ERR_FORMAT, "has a NUL");
    must_fail(mz_json_get_object("f", object, "i", &o), MEZZO_ERR_FORMAT, "expected an object");
    must_fail(mz_json_get_array("f", object, "i", &o), MEZZO_ERR_FORMAT, "expected an array");
    json_decref(object);
}

// json.load's values: https://docs.python.org/3/library/json.html, "standard compliance and interoperability".
TEST(what_python_writes_is_read) {
    json_t *object =
        parse("{\"limit\": 1000000000000000019884624838656, \"least\": -9223372036854775808, \"below\": "
              "-9223372036854775809, \"n\": NaN, \"i\": Infinity, \"m\": [-Infinity, 1e400, -1E+999], "
              "\"half\": \"a\\ud83d!\", \"pair\": \"\\uD83D\\ude00\", \"\\udc00\" : \"NaN Infinity 1e999\"}");
    double d;
    int64_t i;
    bool b;
    const char *s;
    json_t *o;
    assert_int_equal(json_object_size(object), 9);
    assert_int_equal(mz_json_get_double("f", object, "limit", &d), MEZZO_OK);
    assert_true(d == 1e30);
    must_fail(mz_json_get_int("f", object, "limit", 0, 9, &i), MEZZO_ERR_FORMAT,
              "f: key 'limit': expected an integer, got a number");
    assert_int_equal(mz_json_get_int("f", object, "least", INT64_MIN, 0, &i), MEZZO_OK);
    assert_true(i == INT64_MIN);
    assert_int_equal(mz_json_get_double("f", object, "below", &d), MEZZO_OK);
    assert_true(d == -0x1p63);
    must_fail(mz_json_get_double("f", object, "n", &d), MEZZO_ERR_FORMAT, "f: key 'n': expected a number, got NaN");
    must_fail(mz_json_get_int("f", object, "i", 0, 9, &i), MEZZO_ERR_FORMAT, "expected an integer, got Infinity");
    must_fail(mz_json_get_bool("f", object, "n", &b), MEZZO_ERR_FORMAT, "expected true or false, got NaN");
    must_fail(mz_json_get_object("f", object, "n", &o), MEZZO_ERR_FORMAT, "expected an object, got NaN");
    must_fail(mz_json_get_string("f", object, "half", &s), MEZZO_ERR_FORMAT,
              "f: key 'half': expected a string, got text with half of a surrogate pair");
    assert_int_equal(mz_json_get_string("f", object, "pair", &s), MEZZO_OK);
    assert_string_equal(s, "\xF0\x9F\x98\x80");
    assert_int_equal(mz_json_get_string("f", object, "\xEF\xBF\xBD", &s), MEZZO_OK);
    assert_string_equal(s, "NaN Infinity 1e999");
    must_fail(mz_json_refuse_marks("f", "all", object), MEZZO_ERR_FORMAT, "f: key 'n': NaN cannot be used");
    must_fail(mz_json_refuse_marks("f", "m", json_object_get(object, "m")), MEZZO_ERR_FORMAT,
              "f: key 'm': -Infinity cannot be used");
    json_decref(object);
    char digits[402];
    memset(digits, '7', 400);
    digits[0] = '[', digits[400] = ']', digits[401] = '\0';
    object = parse(digits);
    must_fail(mz_json_refuse_marks("f", "k", object), MEZZO_ERR_FORMAT, "an integer beyond a double's range");
    json_decref(object);
}

TEST(text_files_of_windows_are_read) {
    static const char text[] = "\xEF\xBB\xBF{\r\n\"a\":\r\n1}\r\n", wide[] = "\xFF\xFE{\0}\0";
    json_t *value;
    assert_int_equal(mz_file_write_atomic("bom.json", text, sizeof text - 1), MEZZO_OK);
    assert_int_equal(mz_json_load("bom.json", 1 << 20, &value), MEZZO_OK);
    assert_int_equal(json_integer_value(json_object_get(value, "a")), 1);
    json_decref(value);
    bool sealed; // tokenizer.json may be somebody's, without a seal
    assert_int_equal(mz_json_load_sealed("bom.json", 1 << 20, &value, &sealed), MEZZO_OK);
    assert_false(sealed);
    json_decref(value);
    assert_int_equal(mz_file_write_atomic("wide.json", wide, sizeof wide - 1), MEZZO_OK);
    must_fail(mz_json_load("wide.json", 1 << 20, &value), MEZZO_ERR_FORMAT,
              "'wide.json': its byte order mark says UTF-16");
}
