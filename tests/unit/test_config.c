// A configuration takes values from defaults, file and command line, says what is wrong where, and writes itself back.
#include <locale.h>
#include <math.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "base/precision.h"
#include "graph/graph.h"
#include "io/config.h"
#include "io/file.h"
#include "io/number.h"
#include "test.h"

static const mz_config_row schema[] = {
    {"seed", MZ_CONFIG_INT, "1", 0, 9223372036854775807.0, NULL, NULL, "seed of every random draw", 0},
    {"config", MZ_CONFIG_STRING, "", 0, 0, NULL, NULL, "a YAML file", MZ_CONFIG_NOT_SAVED},
    {"model.layers", MZ_CONFIG_INT, "4", 1, 1000, NULL, "layers n-layer", "blocks", 0},
    {"model.d_model", MZ_CONFIG_INT, "128", 1, 65536, NULL, "d-model", "width", 0},
    {"optimizer.lr", MZ_CONFIG_FLOAT, "1e-3", 0, 10, NULL, "lr", "peak learning rate", 0},
    {"optimizer.eps", MZ_CONFIG_FLOAT, "1e-8", 0, HUGE_VAL, NULL, NULL, "AdamW's epsilon", 0},
    {"scaler.max_scale", MZ_CONFIG_FLOAT, "inf", 0, 0, NULL, NULL, "largest loss scale", MZ_CONFIG_NON_FINITE},
    {"train.steps", MZ_CONFIG_INT, "100", 0, 1e12, NULL, "steps", "optimizer steps", 0},
    {"train.recompute", MZ_CONFIG_BOOL, "false", 0, 0, NULL, "recompute", "save memory", 0},
    {"precision.name", MZ_CONFIG_ENUM, "auto", 0, 0, "fp32|tf32|bf16|fp16|auto", "precision", "formats", 0},
    {"model.scales", MZ_CONFIG_LIST, "", 0, 4, NULL, NULL, "factors", 0},
    {"precision.overrides", MZ_CONFIG_MAP, "", 0, 0, "fp32|bf16|fp16", "overrides", "by module", 0},
    {"data.train.path", MZ_CONFIG_STRING, "", 0, 0, NULL, "data", "text or shards", 0},
};

static mz_config *make(void) {
    mz_config *cfg;
    assert_int_equal(mz_config_create(schema, MZ_COUNT(schema), &cfg), MEZZO_OK);
    return cfg;
}

static mezzo_status yaml(mz_config *cfg, const char *text) {
    return mz_config_parse_yaml(cfg, "c.yaml", text, strlen(text));
}

#define ARGS(cfg, rest, count, ...)                                                                                    \
    mz_config_parse_args(cfg, (int)MZ_COUNT(((const char *[]){__VA_ARGS__})), (const char *[]){__VA_ARGS__}, rest,     \
                         count)

static void assert_error_has(mezzo_status got, const char *part) {
    assert_int_not_equal(got, MEZZO_OK);
    if (!strstr(mezzo_error_message(), part))
        fail_msg("'%s' does not say '%s'", mezzo_error_message(), part);
    assert_null(strchr(mezzo_error_message(), '\n'));
}

static int64_t get_int(const mz_config *cfg, const char *path) {
    int64_t value;
    assert_int_equal(mz_config_get_int(cfg, path, &value), MEZZO_OK);
    return value;
}

static double get_float(const mz_config *cfg, const char *path) {
    double value;
    assert_int_equal(mz_config_get_float(cfg, path, &value), MEZZO_OK);
    return value;
}

static const char *get_string(const mz_config *cfg, const char *path) {
    const char *value;
    assert_int_equal(mz_config_get_string(cfg, path, &value), MEZZO_OK);
    return value;
}

TEST(the_command_line_beats_the_file_beats_the_default) {
    const char *rest[16];
    int count;
    for (int args_first = 0; args_first < 2; args_first++) {
        mz_config *cfg = make();
        for (int turn = 0; turn < 2; turn++) {
            if (turn == args_first)
                assert_int_equal(yaml(cfg, "optimizer:\n  lr: 3e-4\n  eps: 1e-7\ntrain.steps: 7\n"), MEZZO_OK);
            else
                assert_int_equal(ARGS(cfg, rest, &count, "--lr", "0.5", "file.txt", "--d_model=64"), MEZZO_OK);
        }
        assert_true(get_float(cfg, "optimizer.lr") == 0.5);
        assert_true(get_float(cfg, "optimizer.eps") == 1e-7);
        assert_int_equal(get_int(cfg, "train.steps"), 7);
        assert_int_equal(get_int(cfg, "model.d_model"), 64);
        assert_int_equal(get_int(cfg, "model.layers"), 4);
        assert_int_equal(count, 1);
        assert_string_equal(rest[0], "file.txt");
        assert_string_equal(mz_config_origin(cfg, "optimizer.lr"), "--lr");
        assert_string_equal(mz_config_origin(cfg, "optimizer.eps"), "c.yaml:3");
        assert_string_equal(mz_config_origin(cfg, "model.layers"), "default");
        mz_config_free(cfg);
    }
}

TEST(options_come_in_every_usual_form) {
    const char *rest[16];
    int count;
    mz_config *cfg = make();
    assert_int_equal(ARGS(cfg, rest, &count, "--optimizer.lr=1e-2", "--n-layer", "2", "--recompute", "--data", "",
                          "--precision", "bf16", "--overrides", "h.*.mlp*=fp32,ln_f=bf16", "a", "-", "--", "--b"),
                     MEZZO_OK);
    assert_true(get_float(cfg, "optimizer.lr") == 0.01);
    assert_int_equal(get_int(cfg, "model.layers"), 2);
    bool recompute;
    assert_int_equal(mz_config_get_bool(cfg, "train.recompute", &recompute), MEZZO_OK);
    assert_true(recompute);
    assert_string_equal(get_string(cfg, "data.train.path"), "");
    int index;
    assert_int_equal(mz_config_get_enum(cfg, "precision.name", &index), MEZZO_OK);
    assert_int_equal(index, 2);
    assert_string_equal(get_string(cfg, "precision.name"), "bf16");
    const char *key, *value;
    assert_int_equal(mz_config_map_get(cfg, "precision.overrides", 1, &key, &value), MEZZO_OK);
    assert_string_equal(key, "ln_f");
    assert_string_equal(value, "bf16");
    assert_int_equal(mz_config_map_get(cfg, "precision.overrides", 2, &key, &value), MEZZO_OK);
    assert_null(key);
    assert_int_equal(count, 3);
    assert_string_equal(rest[2], "--b");

    assert_int_equal(ARGS(cfg, rest, &count, "--no-recompute", "--lr", "0"), MEZZO_OK);
    assert_int_equal(mz_config_get_bool(cfg, "train.recompute", &recompute), MEZZO_OK);
    assert_false(recompute);
    assert_int_equal(ARGS(cfg, rest, &count, "--recompute", "true", "--recompute", "false", "x"), MEZZO_OK);
    assert_int_equal(mz_config_get_bool(cfg, "train.recompute", &recompute), MEZZO_OK);
    assert_false(recompute);
    assert_int_equal(count, 1);
    assert_int_equal(ARGS(cfg, rest, &count, "--recompute", "x"), MEZZO_OK); // a word after a flag is not its value
    assert_int_equal(count, 1);
    mz_config_free(cfg);
}

TEST(a_map_takes_single_entries_too) {
    const char *rest[4];
    int count;
    mz_config *cfg = make();
    assert_int_equal(yaml(cfg, "precision:\n  overrides: {\"h.*\": fp16, ln_f: fp32}\n"), MEZZO_OK);
    assert_int_equal(ARGS(cfg, rest, &count, "--precision.overrides.h.*", "bf16", "--precision.overrides.h.0.mlp=fp32"),
                     MEZZO_OK);
    assert_string_equal(mz_config_get_text(cfg, "overrides"), "h.*=bf16,ln_f=fp32,h.0.mlp=fp32");
    assert_int_equal(mz_config_set(cfg, "precision.overrides.ln_f", "bf16", MZ_CONFIG_COMMAND_LINE, "call"), MEZZO_OK);
    assert_string_equal(mz_config_get_text(cfg, "precision.overrides"), "h.*=bf16,ln_f=bf16,h.0.mlp=fp32");
    assert_error_has(ARGS(cfg, rest, &count, "--precision.overrides.x", "fp8"),
                     "'x': expected one of fp32, bf16, fp16");
    assert_int_equal(mz_config_set(cfg, "lr", "2", MZ_CONFIG_COMMAND_LINE, "call"), MEZZO_OK);
    assert_string_equal(mz_config_get_text(cfg, "optimizer.lr"), "2.0");
    assert_string_equal(mz_config_get_text(cfg, "n_layer"), "4");
    assert_string_equal(mz_config_get_text(cfg, "data"), "");
    assert_null(mz_config_get_text(cfg, "nothing"));
    mz_config_free(cfg);
}

TEST(wrong_options_are_named_with_the_nearest) {
    static const struct {
        const char *arg, *value, *says;
    } rows[] = {
        {"--learning.lr", "1", "unknown option '--learning.lr'; did you mean --optimizer.lr"},
        {"--stepz", "1", "unknown option '--stepz'; did you mean --train.steps"},
        {"--optimiser.lr", "1", "did you mean --optimizer.lr"},
        {"--zzzzzzzzz", "1", "unknown option '--zzzzzzzzz'; see --help"},
        {"--no-lr", "1", "unknown option '--no-lr'"},
        {"-lr", "1", "unknown option '-lr'; options start with two dashes"},
        {"--lr", "fast", "--lr: optimizer.lr: expected a number from 0 to 10, got 'fast'"},
        {"--lr", "-1", "--lr: optimizer.lr: expected a number from 0 to 10, got '-1'"},
        {"--lr", "nan", "--lr: optimizer.lr: expected a finite number, got 'nan'"},
        {"--lr", "inf", "expected a finite number"},
        {"--lr", "1e999", "expected a finite number"},
        {"--lr", "", "got ''"},
        {"--lr", "0x1p3", "got '0x1p3'"},
        {"--lr", "1 ", "got '1 '"},
        {"--lr", "--steps", "--lr needs a value: a number from 0 to 10"},
        {"--optimizer.eps", "-1", "expected a number, 0 or more, got '-1'"},
        {"--seed", "-1", "--seed: seed: expected an integer, 0 or more, got '-1'"},
        {"--seed", "1.5", "expected an integer, 0 or more, got '1.5'"},
        {"--seed", "99999999999999999999", "expected an integer"},
        {"--steps", "1e13", "expected an integer from 0 to 1000000000000, got '1e13'"},
        {"--recompute=maybe", NULL, "expected true or false, got 'maybe'"},
        {"--no-recompute=1", NULL, "--no-recompute takes no value"},
        {"--precision", "fp12", "expected one of fp32, tf32, bf16, fp16, auto, got 'fp12'"},
        {"--overrides", "h.*", "expected pattern=name,… with names of fp32, bf16, fp16, got 'h.*'"},
        {"--overrides", "h.*=fp8", "'h.*': expected one of fp32, bf16, fp16, got 'fp8'"},
        {"--overrides", "a=fp32,a=bf16", "pattern 'a' is given twice"},
        {"--data", "\xFF", "is not UTF-8"},
        {"--precision.overrides.a\nb", "x", "--precision.overrides.a?b: precision.overrides: 'a?b': expected one of"},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mz_config *cfg = make();
        const char *args[] = {rows[i].arg, rows[i].value}, *rest[2];
        int count;
        mezzo_status status = mz_config_parse_args(cfg, rows[i].value ? 2 : 1, args, rest, &count);
        assert_int_equal(status, MEZZO_ERR_INVALID);
        assert_error_has(status, rows[i].says);
        mz_config_free(cfg);
    }
}

TEST(wrong_files_are_named_with_line_and_key) {
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"seed: 1\noptimzer:\n  lr: 1\n", "c.yaml:2: unknown key 'optimzer'"},
        {"optimizer:\n  lrr: 1\n", "c.yaml:2: unknown key 'optimizer.lrr'; did you mean optimizer.lr"},
        {"lr: 1\n", "c.yaml:1: unknown key 'lr'; did you mean optimizer.lr"},
        {"optimizer: 3\n", "c.yaml:1: optimizer: expected a group of keys, got '3'"},
        {"optimizer: [lr, 3]\n", "c.yaml:1: optimizer: expected a group of keys, got a list"},
        {"optimizer:\n  lr: abc\n", "c.yaml:2: optimizer.lr: expected a number from 0 to 10, got 'abc'"},
        {"optimizer:\n  lr: \"1\"\n", "c.yaml:2: optimizer.lr: expected a number from 0 to 10, got the text '1'"},
        {"optimizer:\n  lr: .nan\n", "c.yaml:2: optimizer.lr: expected a finite number, got '.nan'"},
        {"optimizer:\n  lr:\n", "c.yaml:2: optimizer.lr: expected a number from 0 to 10, got nothing"},
        {"optimizer:\n  lr: [1]\n", "got a list"},
        {"optimizer:\n  lr: {x: 1}\n", "got a group of keys"},
        {"train: {recompute: yes}\n", "c.yaml:1: train.recompute: expected true or false, got 'yes'"},
        {"model:\n  layers: 2.5\n", "c.yaml:2: model.layers: expected an integer from 1 to 1000, got '2.5'"},
        {"optimizer:\n  lr: 1\noptimizer.lr: 2\n", "c.yaml:3: optimizer.lr is set twice"},
        {"precision:\n  overrides: fp32\n",
         "expected pattern=name,… with names of fp32, bf16, fp16, got the text 'fp32'"},
        {"precision:\n  overrides: {\"h.*\": fp8}\n", "'h.*': expected one of fp32, bf16, fp16, got 'fp8'"},
        {"precision:\n  overrides: {\"h.*\": [fp32]}\n", "'h.*': expected one name, got a list"},
        {"- a\n", "c.yaml:1: expected \"key: value\" lines, got a list"},
        {"just text\n", "c.yaml:1: expected \"key: value\" lines, got 'just text'"},
        {"a: [\n", "c.yaml:2: not valid YAML"},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mz_config *cfg = make();
        assert_error_has(yaml(cfg, rows[i].text), rows[i].says);
        mz_config_free(cfg);
    }
    mz_config *cfg = make();
    assert_error_has(mz_config_load_yaml(cfg, "none.yaml"), "'none.yaml'");
    // A wrong value is an error even where the command line overrides it.
    const char *rest[2];
    int count;
    assert_int_equal(ARGS(cfg, rest, &count, "--lr", "1"), MEZZO_OK);
    assert_error_has(yaml(cfg, "optimizer: {lr: x}\n"), "got 'x'");
    assert_int_equal(yaml(cfg, "optimizer:\n#  lr: 1\n"), MEZZO_OK);
    mz_config_free(cfg);
}

TEST(the_resolved_file_loads_to_the_same_bits) {
    const char *rest[4];
    int count;
    mz_config *cfg = make(), *again = make();
    assert_int_equal(ARGS(cfg, rest, &count, "--lr", "0.1234567890123456789", "--optimizer.eps", "4.9e-324", "--seed",
                          "9223372036854775807", "--data", "a \"b\"\n#é: x", "--overrides", "h.*.mlp*=fp32,?=bf16",
                          "--config", "x.yaml"),
                     MEZZO_OK);
    mz_text text = {0}, second = {0};
    mz_config_add_yaml(cfg, &text);
    assert_int_equal(text.status, MEZZO_OK);
    assert_null(strstr(text.data, "x.yaml"));
    if (mz_config_parse_yaml(again, "again", text.data, text.len) != MEZZO_OK)
        fail_msg("%s\n%s", mezzo_error_message(), text.data);
    double lr = get_float(again, "optimizer.lr"), expected = 0.1234567890123456789;
    assert_memory_equal(&lr, &expected, sizeof lr);
    assert_true(get_float(again, "optimizer.eps") == 4.9e-324);
    assert_true(isinf(get_float(again, "scaler.max_scale")));
    assert_int_equal(get_int(again, "seed"), INT64_MAX);
    assert_string_equal(get_string(again, "data.train.path"), "a \"b\"\n#é: x");
    mz_config_add_yaml(again, &second);
    assert_string_equal(text.data, second.data);
    mz_text_free(&text);
    mz_text_free(&second);

    assert_int_equal(mz_config_write_yaml(cfg, "resolved.yaml"), MEZZO_OK);
    assert_int_equal(mz_config_load_yaml(again, "resolved.yaml"), MEZZO_OK);
    assert_error_has(mz_config_write_yaml(cfg, "no/such/folder.yaml"), "'no/such/folder.yaml'");
    mz_config_free(cfg);
    mz_config_free(again);
}

// Every bit of a saved file: found, or of no consequence. Without its first line it is a file as any other.
TEST(a_saved_file_that_was_changed_is_told) {
    mz_config *cfg = make();
    mz_text first = {0};
    char *text;
    size_t n, found = 0, edited;
    assert_int_equal(mz_config_write_yaml(cfg, "sealed.yaml"), MEZZO_OK);
    mz_config_add_yaml(cfg, &first);
    assert_int_equal(mz_file_read("sealed.yaml", 1 << 20, &text, &n), MEZZO_OK);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        mz_config *read = make();
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        if (mz_config_check_seal("flipped", text, n) != MEZZO_OK ||
            mz_config_parse_yaml(read, "flipped", text, n) != MEZZO_OK) {
            found++;
        } else {
            mz_text second = {0};
            mz_config_add_yaml(read, &second);
            assert_string_equal(first.data, second.data);
            mz_text_free(&second);
        }
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        mz_config_free(read);
    }
    assert_true(found > 8 * first.len);
    char *seed = strstr(text, "seed: ");
    assert_non_null(seed);
    seed[6] = '7';
    assert_int_equal(mz_file_write_atomic("sealed.yaml", text, n), MEZZO_OK);
    assert_error_has(mz_config_load_yaml(cfg, "sealed.yaml"), "'sealed.yaml' was modified");
    assert_non_null(strstr(mezzo_error_message(), "if you edited it, remove the first line"));
    edited = strcspn(text, "\n") + 1;
    assert_int_equal(mz_file_write_atomic("sealed.yaml", text + edited, n - edited), MEZZO_OK);
    assert_int_equal(mz_config_load_yaml(cfg, "sealed.yaml"), MEZZO_OK);
    assert_int_equal(get_int(cfg, "seed"), 7);
    mz_free(text);
    mz_text_free(&first);
    mz_config_free(cfg);
}

TEST(a_wrong_table_or_getter_is_found) {
    mz_config *cfg;
    const mz_config_row bad_default[] = {{"a", MZ_CONFIG_INT, "x", 0, 0, NULL, NULL, "", 0}};
    assert_error_has(mz_config_create(bad_default, 1, &cfg), "default: a: expected an integer, got 'x'");
    const mz_config_row twice[] = {{"a", MZ_CONFIG_INT, "1", 0, 0, NULL, NULL, "", 0},
                                   {"b", MZ_CONFIG_INT, "1", 0, 0, NULL, "x|a", "", 0}};
    assert_error_has(mz_config_create(twice, 2, &cfg), "b: another row has its alias a");
    cfg = make();
    int64_t value;
    assert_error_has(mz_config_get_int(cfg, "nothing", &value), "has no nothing");
    assert_error_has(mz_config_get_int(cfg, "optimizer.lr", &value), "does not have the requested type");
    assert_error_has(mz_config_set(cfg, "optimizer.lrr", "1", MZ_CONFIG_COMMAND_LINE, "call"),
                     "call: unknown key 'optimizer.lrr'; did you mean optimizer.lr");
    mz_config_free(cfg);
}

TEST(numbers_are_shortest_and_exact) {
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0.1, "0.1"},
                {3e-4, "0.0003"},
                {1e-5, "1.0e-05"},
                {65536, "65536.0"},
                {100, "1.0e+02"},
                {-1200, "-1.2e+03"},
                {0.1 + 0.2, "0.30000000000000004"},
                {5e-324, "5.0e-324"},
                {1.5e-310, "1.5e-310"},
                {0, "0.0"},
                {-0.0, "-0.0"},
                {1e22, "1.0e+22"},
                {NAN, "nan"},
                {HUGE_VAL, "inf"},
                {-HUGE_VAL, "-inf"},
                {1.5e-9, "1.5e-09"},
                {1.0 / 3, "0.3333333333333333"}};
    char out[MZ_NUMBER_MAX];
    for (size_t i = 0; i < MZ_COUNT(rows); i++)
        assert_string_equal(mz_number_format(rows[i].value, out), rows[i].text);
    // A xorshift of bit patterns: whatever is written is read back as the same bits.
    uint64_t bits = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
        double value, back;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        assert_true(mz_number_parse(mz_number_format(value, out), &back));
        assert_memory_equal(&value, &back, sizeof value);
    }
    static const struct {
        const char *text;
        bool good;
        int64_t value;
    } ints[] = {{"1e3", true, 1000},
                {"2000.0", true, 2000},
                {"-7", true, -7},
                {"9223372036854775807", true, INT64_MAX},
                {"9223372036854775808", false, 0},
                {"1e18", false, 0},
                {"1.5", false, 0},
                {"1e-3", false, 0},
                {"1e-400", false, 0},
                {"0E5", true, 0},
                {"", false, 0},
                {"--1", false, 0},
                {"1-", false, 0},
                {"nan", false, 0},
                {"0x10", false, 0},
                {" 1", false, 0}};
    for (size_t i = 0; i < MZ_COUNT(ints); i++) {
        int64_t value;
        assert_int_equal(mz_number_parse_int(ints[i].text, &value), ints[i].good);
        if (ints[i].good)
            assert_int_equal(value, ints[i].value);
    }
}

// Gives the process a locale whose decimal point is a comma: one of the system's, or one that localedef makes here.
static bool write_commas(void) {
    static const char make[] = "localedef -i de_DE -f UTF-8 ./de_DE.UTF-8 >/dev/null 2>&1", name[] = "de_DE.UTF-8";
    return setlocale(LC_ALL, name) != NULL ||
           (system(make) == 0 && setenv("LOCPATH", ".", 1) == 0 && setlocale(LC_ALL, name) != NULL);
}

static uint64_t hash_of_scaled(void) {
    mezzo_graph *g;
    uint64_t hash = 0;
    assert_int_equal(mezzo_graph_create(&g), MEZZO_OK);
    mezzo_scale(g, mezzo_input(g, "x", MEZZO_F32, 1, (int64_t[]){3}), 1.5F);
    assert_int_equal(mz_graph_hash(g, &hash), MEZZO_OK);
    mezzo_graph_free(g);
    return hash;
}

TEST(numbers_in_a_program_that_writes_commas) {
    char text[MZ_NUMBER_MAX], *end;
    mz_text buffer = {0};
    const uint64_t hash = hash_of_scaled();
    if (!write_commas())
        skip();
    snprintf(text, sizeof text, "%.2f", 0.25);
    assert_string_equal(text, "0,25"); // so it is such a locale
    mz_snprintf(text, sizeof text, "%.17g", 0.25);
    assert_string_equal(text, "0.25");
    assert_float_equal(mz_strtod("0.25]", &end), 0.25, 0);
    assert_string_equal(end, "]");
    mz_text_addf(&buffer, "%g", 0.25);
    assert_string_equal(buffer.data, "0.25");
    mz_text_free(&buffer);
    assert_string_equal(mz_float_text(0.1F, text), "0.1");
    assert_true(hash_of_scaled() == hash); // that is in checkpoints
    setlocale(LC_ALL, "C");
}

TEST(running_out_of_memory_is_an_error) {
    mezzo_status status = MEZZO_ERR_MEMORY;
    for (int64_t n = 0; status == MEZZO_ERR_MEMORY; n++) {
        const char *rest[4];
        int count;
        mz_config *cfg;
        mz_text text = {0};
        mz_alloc_fail_after(n);
        status = mz_config_create(schema, MZ_COUNT(schema), &cfg);
        if (status == MEZZO_OK)
            status = yaml(cfg, "optimizer: &x {lr: 1, eps: 2}\nprecision: {overrides: {a: fp32, b: bf16}}\n");
        if (status == MEZZO_OK)
            status = ARGS(cfg, rest, &count, "--overrides", "x=fp32,y=bf16", "--data", "d");
        if (status == MEZZO_OK) {
            mz_config_add_yaml(cfg, &text);
            status = text.status;
        }
        mz_text_free(&text);
        mz_config_free(cfg);
    }
    mz_alloc_fail_after(-1);
    assert_int_equal(status, MEZZO_OK);
}

// Other tools' words for a precision are kept as Mezzo's name, from every source; a word for none is told as such.
TEST(precisions_are_taken_by_any_name) {
    static const mz_config_row rows[] = {
        {"amp.precision", MZ_CONFIG_ENUM, "auto", 0, 0, MZ_PRECISION_NAMES_AUTO, "precision", "formats",
         MZ_CONFIG_PRECISION},
        {"autocast", MZ_CONFIG_MAP, "", 0, 0, MZ_PRECISION_NAMES, NULL, "by module", MZ_CONFIG_PRECISION},
    };
    mz_config *cfg;
    const char *name, *key, *rest[4];
    int count;
    assert_int_equal(mz_config_create(rows, MZ_COUNT(rows), &cfg), MEZZO_OK);
    assert_int_equal(yaml(cfg, "amp: {precision: bfloat16}\nautocast: {h.*: half}\n"), MEZZO_OK);
    assert_int_equal(mz_config_get_string(cfg, "amp.precision", &name), MEZZO_OK);
    assert_string_equal(name, "bf16");
    assert_int_equal(mz_config_map_get(cfg, "autocast", 0, &key, &name), MEZZO_OK);
    assert_string_equal(key, "h.*");
    assert_string_equal(name, "fp16");
    assert_int_equal(ARGS(cfg, rest, &count, "--precision", "16-mixed", "--autocast", "a=float32,b=TF32"), MEZZO_OK);
    assert_int_equal(mz_config_get_string(cfg, "amp.precision", &name), MEZZO_OK);
    assert_string_equal(name, "fp16");
    assert_int_equal(mz_config_map_get(cfg, "autocast", 1, &key, &name), MEZZO_OK);
    assert_string_equal(name, "tf32");
    assert_error_has(ARGS(cfg, rest, &count, "--precision", "amp"), "--precision: amp.precision: precision \"amp\"");
    assert_error_has(ARGS(cfg, rest, &count, "--precision", "bf17"), "did you mean \"bf16\"");
    assert_error_has(ARGS(cfg, rest, &count, "--autocast", "a=auto"), "expected one of fp32");
    mz_config_free(cfg);
}

// A list is numbers above 0, in a file and on the command line, and is written so that it loads again.
TEST(test_lists) {
    mz_config *cfg = make();
    float got[4];
    size_t n;
    assert_int_equal(mz_config_get_list(cfg, "model.scales", got, &n), MEZZO_OK);
    assert_int_equal(n, 0);
    assert_int_equal(yaml(cfg, "model:\n  scales: [1, 1.5, 2e3]\n"), MEZZO_OK);
    assert_int_equal(mz_config_get_list(cfg, "model.scales", got, &n), MEZZO_OK);
    assert_true(n == 3 && got[0] == 1 && got[1] == 1.5F && got[2] == 2000);
    mz_text text = {0};
    mz_config *again = make();
    mz_config_add_yaml(cfg, &text);
    assert_int_equal(yaml(again, text.data), MEZZO_OK);
    assert_string_equal(mz_config_get_text(again, "model.scales"), "1,1.5,2e3");
    mz_text_free(&text);
    assert_int_equal(mz_config_set(cfg, "model.scales", "4, 5", MZ_CONFIG_COMMAND_LINE, "--scales"), MEZZO_OK);
    assert_int_equal(mz_config_get_list(cfg, "model.scales", got, &n), MEZZO_OK);
    assert_true(n == 2 && got[0] == 4 && got[1] == 5);
    static const char *const bad[] = {"0", "1,,2", "1,", "-1", "nan", "inf", "1e60", "1,2,3,4,5", "1 2", "x"};
    for (size_t i = 0; i < MZ_COUNT(bad); i++)
        assert_error_has(mz_config_set(cfg, "model.scales", bad[i], MZ_CONFIG_COMMAND_LINE, "--scales"),
                         "up to 4 numbers above 0");
    assert_error_has(yaml(again, "model:\n  scales: [1, [2]]\n"), "numbers above 0");
    assert_error_has(yaml(again, "model:\n  scales: {a: 1}\n"), "a group of keys");
    mz_config_free(again);
    mz_config_free(cfg);
}
