// YAML becomes a tree with line numbers; what a configuration never needs is refused with one line.

#include "io/yaml.h"
#include "test.h"

static mezzo_status parse(const char *text, mz_yaml **out) {
    return mz_yaml_parse("c.yaml", text, strlen(text), out);
}

TEST(maps_lists_and_scalars_are_read) {
    mz_yaml *yaml;
    assert_int_equal(parse("# a comment\na: 1\nb:\n  c: \"two\"\n  d: [x, ~, {e: 3e-4}]\n'f.*': true\n", &yaml),
                     MEZZO_OK);
    const mz_yaml_node *root = mz_yaml_root(yaml);
    assert_int_equal(root->count, 3);
    const mz_yaml_node *a = mz_yaml_get(root, "a");
    assert_string_equal(a->text, "1");
    assert_int_equal(a->line, 2);
    assert_false(a->quoted);
    const mz_yaml_node *b = mz_yaml_get(root, "b");
    assert_true(mz_yaml_get(b, "c")->quoted);
    const mz_yaml_node *d = mz_yaml_get(b, "d");
    assert_int_equal(d->kind, MZ_YAML_LIST);
    assert_int_equal(d->count, 3);
    assert_true(mz_yaml_is_null(d->children[1]));
    assert_string_equal(mz_yaml_get(d->children[2], "e")->text, "3e-4");
    assert_int_equal(root->key_lines[2], 6);
    assert_null(mz_yaml_get(root, "c"));
    mz_yaml_free(yaml);

    assert_int_equal(parse("", &yaml), MEZZO_OK);
    assert_null(mz_yaml_root(yaml));
    mz_yaml_free(yaml);
}

TEST(an_alias_is_what_it_stands_for) {
    mz_yaml *yaml;
    assert_int_equal(parse("a: &x {k: 1}\nb: *x\nc: &x 5\nd: *x\n", &yaml), MEZZO_OK);
    assert_string_equal(mz_yaml_get(mz_yaml_get(mz_yaml_root(yaml), "b"), "k")->text, "1");
    assert_string_equal(mz_yaml_get(mz_yaml_root(yaml), "d")->text, "5");
    mz_yaml_free(yaml);
}

TEST(what_a_configuration_never_needs_is_refused) {
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"a: 1\nb: 2\na: 3\n", "c.yaml:3: key 'a' was set already on line 1"},
        {"a: 1\n---\nb: 2\n", "c.yaml:2: a second document"},
        {"a: [1, 2\n", "c.yaml:2: not valid YAML"},
        {"a: b: c\n", "c.yaml:1: not valid YAML"},
        {"\tx: 1\n", "not valid YAML"},
        {"a: !!python/object:os.system x\n", "c.yaml:1: tags"},
        {"!!map {a: 1}\n", "c.yaml:1: tags"},
        {"[1]: 2\n", "c.yaml:1: a key must be plain text"},
        {"# a comment\n\n[training]\nsteps = 3\n", "c.yaml:3: this is TOML"},
        {"[[runs]]\na = [\n  1]\n", "c.yaml:1: this is TOML"},
        {"steps = 3\nlr = 0.1\n", "c.yaml:1: this is TOML"},
        {"a: *nobody\n", "alias *nobody has no whole anchor"},
        {"a: &x [*x]\n", "alias *x has no whole anchor"},
        {"a: \"x\\0y\"\n", "NUL"},
        {"a: \xFF\n", "not valid YAML"},
        {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]\n", "nested deeper than 32"},
        // Each line names the one before ten times: a billion values in ten lines.
        {"a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
         "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
         "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n",
         "more than 100000 values"},
        // 100 times a text of 20000 bytes.
        {NULL, "more than 100000 values"},
    };
    mz_text long_text = {0};
    mz_text_addf(&long_text, "a: &a %020000d\nb: [*a", 7);
    for (int i = 0; i < 99; i++)
        mz_text_addf(&long_text, ", *a");
    mz_text_addf(&long_text, "]\n");
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mz_yaml *yaml;
        must_fail(parse(rows[i].text ? rows[i].text : long_text.data, &yaml), MEZZO_ERR_FORMAT, rows[i].says);
        assert_null(yaml);
    }
    mz_text_free(&long_text);
}

TEST(every_text_is_written_so_that_it_reads_back) {
    static const char *const texts[] = {"",
                                        "plain",
                                        "runs/a-1.bin",
                                        "true",
                                        "Null",
                                        "~",
                                        "3e-4",
                                        "- x",
                                        "a: b",
                                        "# no",
                                        " lead",
                                        "trail ",
                                        "\"q\"",
                                        "back\\s",
                                        "two\nlines",
                                        "tab\there",
                                        "é 漢 \U0001F600",
                                        "\u2028\uFEFF\xC2\x85",
                                        "\x01",
                                        "'",
                                        "*",
                                        "h.*.mlp*",
                                        "%x",
                                        "@y"};
    for (size_t i = 0; i < MZ_COUNT(texts); i++) {
        mz_text out = {0};
        mz_yaml_add_scalar(&out, texts[i]);
        mz_text_add(&out, ": ", 2);
        mz_yaml_add_scalar(&out, texts[i]);
        mz_text_add(&out, "\n", 1);
        mz_yaml *yaml;
        if (mz_yaml_parse("out", out.data, out.len, &yaml) != MEZZO_OK)
            fail_msg("%s: %s", out.data, mezzo_error_message());
        const mz_yaml_node *root = mz_yaml_root(yaml);
        assert_string_equal(root->keys[0], texts[i]);
        assert_string_equal(root->children[0]->text, texts[i]);
        assert_false(mz_yaml_is_null(root->children[0]));
        mz_yaml_free(yaml);
        mz_text_free(&out);
    }
}
