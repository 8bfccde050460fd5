// The keys of foreign configurations: docs/dev/GOLDEN.md lists what hf_keys.def has, every row does what its rule says,
// and a key that is in no row is refused by name. Seen to fail with: a row missing in the document; a value compared as
// text; the default of a missing key left out; unknown keys passed over.
#include <stdlib.h>

#include "io/json.h"
#include "models/decoder.h"
#include "test.h"
#include "weights/hf.h"

enum { CELLS = 5, LINE_BYTES = 8192 };

static const char *const rules[] = {[MZ_HF_READ] = "read", [MZ_HF_OWN] = "read",      [MZ_HF_ONLY] = "only",
                                    [MZ_HF_KEPT] = "kept", [MZ_HF_TRAINING] = "told", [MZ_HF_UNUSED] = "unused"};

// Cuts "| a | b |" into its cells, in place. false: no row of a table of so many cells.
static bool split_row(char *line, char *cells[CELLS]) {
    if (*line != '|')
        return false;
    for (int i = 0; i < CELLS; i++) {
        char *end = strchr(++line, '|');
        if (end == NULL)
            return false;
        cells[i] = line + strspn(line, " ");
        for (line = end; line > cells[i] && line[-1] == ' ';)
            line--;
        *line = '\0';
        line = end;
    }
    return true;
}

static const mz_hf_key *find(const char *family, const char *key) {
    size_t n;
    const mz_hf_key *rows = mz_hf_keys(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].family, family) == 0 && strcmp(rows[i].key, key) == 0)
            return &rows[i];
    return NULL;
}

TEST(the_document_lists_every_key) {
    if (getenv("MEZZO_TESTS") == NULL)
        skip();
    char path[1024], line[LINE_BYTES], *cells[CELLS];
    snprintf(path, sizeof path, "%s/../docs/dev/GOLDEN.md", getenv("MEZZO_TESTS"));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t listed = 0, n;
    while (fgets(line, sizeof line, file) != NULL) {
        assert_non_null(strchr(line, '\n'));
        if (!split_row(line, cells) || cells[1][0] != '`' || strstr(cells[4], "test_hf_keys") == NULL)
            continue;
        for (char *key = strtok(cells[1], "` "); key != NULL; key = strtok(NULL, "` "), listed++) {
            const mz_hf_key *row = find(cells[0], key);
            if (row == NULL)
                fail_msg("GOLDEN.md: %s has no key %s", cells[0], key);
            assert_string_equal(cells[2], rules[row->rule]);
            char values[256];
            snprintf(values, sizeof values, "`%s`", row->values != NULL ? row->values : "");
            assert_string_equal(cells[3], row->rule == MZ_HF_ONLY || row->rule == MZ_HF_TRAINING ? values : "");
        }
    }
    fclose(file);
    (void)mz_hf_keys(&n);
    assert_int_equal(listed, n); // each once: a key that is there twice has one row
}

static mezzo_status check(const char *family, const char *key, json_t *value) {
    json_t *config = json_object();
    assert_int_equal(json_object_set_new(config, key, value), 0);
    const mezzo_status status = mz_hf_check_keys("f.json", family, config);
    json_decref(config);
    return status;
}

static void refused(const char *family, const char *key, json_t *value) {
    char words[128];
    snprintf(words, sizeof words, "f.json: key '%s'", key);
    if (check(family, key, value) != MEZZO_ERR_FORMAT || strstr(mezzo_error_message(), words) == NULL)
        fail_msg("%s, %s: \"%s\"", family, key, mezzo_error_message());
}

TEST(every_rule_holds) {
    size_t n;
    const mz_hf_key *rows = mz_hf_keys(&n);
    for (size_t i = 0; i < n; i++) {
        const char *family = strcmp(rows[i].family, "transformers") == 0 ? "llama" : rows[i].family;
        if (rows[i].rule != MZ_HF_ONLY) {
            assert_int_equal(check(family, rows[i].key, json_string("anything")), MEZZO_OK);
            continue;
        }
        json_t *values = json_loads(rows[i].values, 0, NULL);
        assert_non_null(values);
        for (size_t k = 0; k < json_array_size(values); k++)
            assert_int_equal(check(family, rows[i].key, json_incref(json_array_get(values, k))), MEZZO_OK);
        json_decref(values);
        refused(family, rows[i].key, json_string("another"));
        refused(family, rows[i].key, json_real(0.5));
        refused(family, rows[i].key, json_pack("[i]", 7));
        refused(family, rows[i].key, json_pack("{s:i}", "x", 1));
    }
    // A number is its value, however it is written.
    assert_int_equal(check("llama", "attention_dropout", json_real(0)), MEZZO_OK);
    assert_int_equal(check("gpt2", "layer_norm_epsilon", json_real(1e-5)), MEZZO_OK);
    refused("gpt2", "layer_norm_epsilon", json_real(1.0000001e-5));
    refused("AutoencoderKL", "mid_block_add_attention", json_null()); // which is false to diffusers
}

TEST(an_unknown_key_is_refused) {
    static const char *const families[] = {"gpt2",     "nanogpt",  "llama",         "qwen3",
                                           "gpt_neox", "glm4_moe", "AutoencoderKL", "LoraConfig"};
    for (size_t i = 0; i < MZ_COUNT(families); i++) {
        refused(families[i], "is_causal_or_not", json_true());
        refused(families[i], "slidings", json_integer(0));
        assert_int_equal(check(families[i], "is_causal_or_not", json_null()), MEZZO_OK);
        assert_int_equal(check(families[i], "_name_or_path", json_string("x")), MEZZO_OK);
        if (strcmp(families[i], "LoraConfig") == 0)
            assert_int_equal(check(families[i], "use_something_new", json_false()), MEZZO_OK);
        else
            refused(families[i], "use_something_new", json_false());
    }
    refused("nanogpt", "bos_token_id", json_integer(1)); // transformers' keys are none of nanoGPT's
    refused("gpt2", "n_laier", json_integer(1));
    assert_non_null(strstr(mezzo_error_message(), "did you mean n_layer"));
}

// Values that only Python's JSON has are named as they are written.
TEST(what_is_no_number_is_named) {
    static const char text[] = "{\"layer_norm_epsilon\": NaN}", other[] = "{\"mystery\": [Infinity]}";
    json_t *config;
    assert_int_equal(mz_json_parse("f.json", text, sizeof text - 1, MZ_JSON_DEPTH, &config), MEZZO_OK);
    assert_int_equal(mz_hf_check_keys("f.json", "gpt2", config), MEZZO_ERR_FORMAT);
    assert_string_equal(mezzo_error_message(), "f.json: key 'layer_norm_epsilon': NaN cannot be used");
    json_decref(config);
    assert_int_equal(mz_json_parse("f.json", other, sizeof other - 1, MZ_JSON_DEPTH, &config), MEZZO_OK);
    assert_int_equal(mz_hf_check_keys("f.json", "gpt2", config), MEZZO_ERR_FORMAT);
    assert_string_equal(mezzo_error_message(), "f.json: key 'mystery': Infinity cannot be used");
    json_decref(config);
}

// Every READ row: its value arrives in its field, a missing key has the value of the table, another type is refused.
TEST(every_field_is_read) {
    size_t n;
    const mz_hf_key *rows = mz_hf_keys(&n);
    for (size_t i = 0; i < n; i++) {
        if (rows[i].kind == MZ_HF_NO_FIELD)
            continue;
        mezzo_model_config model = {0};
        json_t *config = json_object();
        const bool shares = check(rows[i].family, "pretraining_tp", json_integer(1)) == MEZZO_OK; // rows of `decoders`
        for (size_t k = 0; k < n; k++) // all that must be there
            if (rows[k].kind != MZ_HF_NO_FIELD && rows[k].values == NULL &&
                (strcmp(rows[k].family, rows[i].family) == 0 || (shares && strcmp(rows[k].family, "decoders") == 0)))
                json_object_set_new(config, rows[k].key, json_integer(3));
        const char *field = (const char *)&model + rows[i].field;
        const bool number = rows[i].kind == MZ_HF_NUMBER || rows[i].kind == MZ_HF_NUMBER_OR_NULL;
        json_object_set_new(config, rows[i].key,
                            rows[i].kind == MZ_HF_TRUTH || rows[i].kind == MZ_HF_TIED ? json_true()
                            : number                                                  ? json_real(0.25)
                                                                                      : json_integer(77));
        if (mz_hf_read_keys("f.json", rows[i].family, config, &model) != MEZZO_OK)
            fail_msg("%s, %s: %s", rows[i].family, rows[i].key, mezzo_error_message());
        assert_true(rows[i].kind == MZ_HF_TRUTH  ? *(const bool *)field
                    : rows[i].kind == MZ_HF_TIED ? *(const int64_t *)field == MZ_HEAD_TIED
                    : number                     ? *(const double *)field == 0.25
                                                 : *(const int64_t *)field == 77);
        json_object_set_new(config, rows[i].key, json_string("1"));
        must_fail(mz_hf_read_keys("f.json", rows[i].family, config, &model), MEZZO_ERR_FORMAT, rows[i].key);
        json_object_del(config, rows[i].key);
        const mezzo_status status = mz_hf_read_keys("f.json", rows[i].family, config, &model);
        assert_int_equal(status, rows[i].values == NULL ? MEZZO_ERR_FORMAT : MEZZO_OK);
        const double now = rows[i].kind == MZ_HF_TRUTH ? *(const bool *)field
                           : number                    ? *(const double *)field
                                                       : (double)*(const int64_t *)field;
        if (status == MEZZO_OK && rows[i].values[0] != '\0') {
            const double yes = rows[i].kind == MZ_HF_TIED ? MZ_HEAD_TIED : 1,
                         no = rows[i].kind == MZ_HF_TIED ? MZ_HEAD_OWN : 0;
            const double want = strcmp(rows[i].values, "true") == 0    ? yes
                                : strcmp(rows[i].values, "false") == 0 ? no
                                                                       : strtod(rows[i].values, NULL);
            assert_true(now == want);
        }
        json_decref(config);
    }
}

static void rope(const char *text, double theta, double part, const char *says) {
    json_t *config = json_loads(text, 0, NULL);
    double got = 10000, share = 0.5;
    const mezzo_status status = mz_hf_read_rope("f.json", config, &got, part > 0 ? &share : NULL, NULL);
    json_decref(config);
    if (says == NULL && (status != MEZZO_OK || got != theta || (part > 0 && share != part)))
        fail_msg("%s: theta %g, part %g, %s", text, got, share, mezzo_error_message());
    if (says != NULL && (status != MEZZO_ERR_FORMAT || strstr(mezzo_error_message(), says) == NULL))
        fail_msg("%s: \"%s\"", text, mezzo_error_message());
}

TEST(rotary_positions_are_read_wherever_they_stand) {
    rope("{}", 10000, 0.5, NULL);
    rope("{\"rope_theta\": 50}", 50, 0.5, NULL);
    rope("{\"rope_scaling\": {\"rope_type\": \"default\", \"rope_theta\": 50}}", 50, 0.5, NULL);
    rope("{\"rope_scaling\": {\"type\": \"default\", \"rope_theta\": 50}, \"rope_theta\": 50.0}", 50, 0.5, NULL);
    rope("{\"rope_parameters\": {\"rope_theta\": 9, \"partial_rotary_factor\": 1}}", 9, 1, NULL);
    rope("{\"rope_parameters\": null, \"rope_scaling\": null, \"partial_rotary_factor\": 0.25}", 10000, 0.25, NULL);
    rope("{\"partial_rotary_factor\": 1.0}", 10000, 0, NULL);
    rope("{\"partial_rotary_factor\": 0.5}", 0, 0, "'partial_rotary_factor' is 0.5");
    rope("{\"rope_scaling\": {\"rope_type\": \"default\", \"rope_theta\": 50}, \"rope_theta\": 10000}", 0, 1,
         "keep one");
    rope("{\"rope_scaling\": {\"rope_theta\": 50}, \"rope_parameters\": {\"rope_theta\": 60}}", 0, 1, "keep one");
    rope("{\"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 60}}", 60, 0.5, NULL);
    rope("{\"rope_scaling\": {\"type\": \"default\"}, \"rope_parameters\": {\"rope_theta\": 60}}", 0, 1, "keep one");
    rope("{\"rope_scaling\": {\"type\": \"default\"}, \"rope_theta\": 60, \"rope_parameters\": {\"rope_theta\": 60}}",
         60, 0.5, NULL);
    rope("{\"rope_scaling\": {\"type\": \"default\", \"rope_type\": \"linear\"}}", 0, 1, "'linear'");
    rope("{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}}", 0, 1, "'linear'");
    rope("{\"rope_parameters\": {\"rope_type\": \"default\", \"factor\": 2.0}}", 0, 1, "key 'factor'");
    rope("{\"rope_parameters\": [1]}", 0, 1, "not an object");
    rope("{\"rope_theta\": \"big\"}", 0, 1, "'rope_theta': expected a number");
}

// Phi-3's longrope with the names that it had; its factor is the ratio of the contexts where nothing says it.
static void scaled(const char *family, const char *text, double factor, double attention, const char *says) {
    json_t *config = json_loads(text, 0, NULL);
    mezzo_model_config got;
    double theta = 10000, part = 1;
    assert_int_equal(mezzo_model_defaults(family, &got), MEZZO_OK);
    got.seq_len = 96;
    const mezzo_status status = mz_hf_read_rope("f.json", config, &theta, &part, &got);
    json_decref(config);
    if (says != NULL) {
        if (status != MEZZO_ERR_FORMAT || strstr(mezzo_error_message(), says) == NULL)
            fail_msg("%s: \"%s\"", text, mezzo_error_message());
        return;
    }
    assert_int_equal(status, MEZZO_OK);
    assert_true(got.rope_scaling == MZ_ROPE_LONG && got.rope_original == 8);
    assert_true(got.rope_factor == factor && got.rope_attention == attention);
    assert_true(got.rope_short.at[1] == 1.5F && got.rope_long.at[0] == 4 && got.rope_long.at[2] == 0);
}

TEST(longrope_is_read) {
#define LISTS "\"short_factor\": [1, 1.5], \"long_factor\": [4, 5.5]"
#define PHI3(kind, more)                                                                                               \
    "{\"original_max_position_embeddings\": 8, \"rope_scaling\": {\"type\": \"" kind "\", " LISTS more "}}"
    scaled("phi3", PHI3("longrope", ""), 12, 0, NULL);
    scaled("phi3", PHI3("su", ""), 12, 0, NULL);
    scaled("phi3", PHI3("yarn", ", \"factor\": 3, \"attention_factor\": 1.25"), 3, 1.25, NULL);
    scaled("llama",
           "{\"rope_parameters\": {\"rope_type\": \"longrope\", \"original_max_position_embeddings\": 8, " LISTS "}}",
           12, 0, NULL);
    scaled("llama", PHI3("su", ""), 0, 0, "default, linear, llama3, yarn or longrope");
    scaled("llama",
           "{\"rope_scaling\": {\"rope_type\": \"longrope\", \"original_max_position_embeddings\": 8, " LISTS "}, "
           "\"rope_parameters\": {\"rope_type\": \"longrope\", \"original_max_position_embeddings\": 8, " LISTS "}}",
           12, 0, NULL);
    scaled("llama",
           "{\"rope_scaling\": {\"rope_type\": \"longrope\", \"original_max_position_embeddings\": 8, " LISTS "}, "
           "\"rope_parameters\": {\"rope_type\": \"longrope\", \"original_max_position_embeddings\": 9, " LISTS "}}",
           0, 0, "keep one");
    scaled("phi3", PHI3("longrope", ", \"attention_factor\": 0"), 0, 0, "'attention_factor' is 0");
    scaled("phi3", PHI3("linear", ""), 0, 0, "default or longrope");
    scaled("phi3", "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1]}}", 0, 0, "'long_factor'");
    scaled("phi3", PHI3("longrope", ", \"beta_fast\": 32"), 0, 0, "'beta_fast'");
    scaled("phi3", "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 0], \"long_factor\": [1]}}", 0, 0,
           "'short_factor' is not a list");
#undef LISTS
#undef PHI3
}

static mezzo_status read_config(const char *type, const char *more, mezzo_model_config *out) {
    const char *list;
    const mz_hf_family *family = mz_hf_by_type(type, &list);
    char *text = mz_format("{\"num_hidden_layers\": 4, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, "
                           "\"head_dim\": 8, \"hidden_size\": 16, \"intermediate_size\": 24, \"vocab_size\": 41, "
                           "\"max_position_embeddings\": 8192%s}",
                           more);
    json_t *config = json_loads(text, 0, NULL);
    assert_non_null(config);
    const mezzo_status status = family->read_config(family, "f.json", config, out);
    json_decref(config);
    mz_free(text);
    return status;
}

static void windows(const char *type, const char *more, int64_t window, int64_t from) {
    mezzo_model_config got;
    if (read_config(type, more, &got) != MEZZO_OK || got.window != window || got.window_from != from)
        fail_msg("%s%s: window %d from %d, %s", type, more, (int)got.window, (int)got.window_from,
                 mezzo_error_message());
}

// What a missing key means is what its class in transformers has.
TEST(windows_are_those_of_the_class) {
    static const char uses[] = ", \"use_sliding_window\": true";
    mezzo_model_config got;
    windows("mistral", "", 4096, 0);
    windows("mistral", ", \"sliding_window\": null", 0, 0);
    windows("mistral", ", \"sliding_window\": 8192", 8192, 0); // as long as the context: a run's may be longer
    windows("phi3", ", \"sliding_window\": 262144", 262144, 0);
    windows("mixtral", "", 0, 0);
    windows("phi3", "", 0, 0);
    windows("qwen2", "", 0, 0);
    windows("qwen2", ", \"sliding_window\": 6", 0, 0);
    windows("qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 6", 0, 0); // from block 28 on
    windows("qwen3", ", \"use_sliding_window\": true, \"sliding_window\": 6, \"max_window_layers\": 1", 6, 1);
    windows("qwen3", ", \"use_sliding_window\": true, \"max_window_layers\": 1", 4096, 1);
    windows("smollm3", uses, 0, 0);
    must_fail(read_config("smollm3", ", \"use_sliding_window\": true, \"sliding_window\": 6", &got), MEZZO_ERR_FORMAT,
              "'use_sliding_window' is true");
#define TYPES(one, two)                                                                                                \
    ", \"layer_types\": [\"" one "_attention\", \"" one "_attention\", \"" two "_attention\", \"" two "_attention\"]"
    windows("smollm3", TYPES("full", "sliding") ", \"use_sliding_window\": true, \"sliding_window\": 6", 6, 2);
    windows("mistral", TYPES("sliding", "sliding") ", \"sliding_window\": 6", 6, 0);
    windows("mistral", TYPES("full", "full") ", \"sliding_window\": null", 0, 0);
    must_fail(read_config("mistral", TYPES("full", "sliding") ", \"sliding_window\": 6", &got), MEZZO_ERR_FORMAT,
              "'layer_types' has full_attention beside");
    must_fail(read_config("mistral", TYPES("full", "full"), &got), MEZZO_ERR_FORMAT,
              "'layer_types' has full_attention beside");
#undef TYPES
}

TEST(rotary_positions_of_phi3_and_gemma3) {
    mezzo_model_config got;
    assert_int_equal(read_config("phi3",
                                 ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], "
                                 "\"long_factor\": [2, 2, 2, 2], \"original_max_position_embeddings\": 8}",
                                 &got),
                     MEZZO_OK);
    assert_true(got.rope_original == 4096 && got.rope_factor == 2); // Phi3Config has it outside
    assert_int_equal(read_config("gemma3_text", ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}", &got),
                     MEZZO_OK);
    assert_true(got.rope_factor == 8 && got.rope_theta == 1e6 && got.rope_local == 1e4);
    must_fail(read_config("gemma3_text", ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 8}", &got),
              MEZZO_ERR_FORMAT, "name it rope_type");
    must_fail(
        read_config("gemma3_text", ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 50}", &got),
        MEZZO_ERR_FORMAT, "other members");
}
