// Chat templates against Jinja's own renderings, and which tokens of a conversation are an answer's.
//
// A template that would run for hours, or compare lists as deep as it ran, is refused.
//
// Seen to fail with: text behind a tag that keeps its line break, a loop's variable that outlives it, an answer whose
// end is not counted, a message that makes a special token.
#include "golden.h"

#include <stdlib.h>
#include <unistd.h>

#include "data/chat.h"
#include "data/template.h"
#include "data/tokenizer.h"
#include "io/file.h"

typedef struct counts {
    int same, refused, errors;
} counts;

static json_t *values_of(const json_t *root, const json_t *c) {
    json_t *messages =
        json_array_get(json_object_get(root, "conversations"), (size_t)json_integer_value(json_object_get(c, "of")));
    return json_pack("{s:O, s:n, s:n, s:O, s:s, s:s}", "messages", messages, "tools", "documents",
                     "add_generation_prompt", json_object_get(c, "prompt"), "bos_token", "<s>", "eos_token", "</s>");
}

// The same text, or a refusal that says "not supported"; an error where Jinja has one.
static void check_case(const json_t *root, const json_t *t, const json_t *c, counts *n) {
    const char *name = json_string_value(json_object_get(t, "name"));
    const char *source = json_string_value(json_object_get(t, "source"));
    const char *want = json_string_value(json_object_get(c, "text"));
    json_t *values = values_of(root, c);
    mz_marked_text got;
    mezzo_status status = mz_template_render(name, source, values, &got);
    json_decref(values);
    if (status != MEZZO_OK) {
        const bool random = strncmp(name, "random", 6) == 0 || strncmp(name, "broken", 6) == 0;
        assert_non_null(strstr(mezzo_error_message(), name));
        assert_null(strchr(mezzo_error_message(), '\n'));
        if (want != NULL && (status != MEZZO_ERR_UNSUPPORTED || !random) && strstr(source, "format(1)") == NULL)
            fail_msg("%s: %s: \"%s\" is refused (%s), Jinja says \"%s\"", name, source, source, mezzo_error_message(),
                     want);
        n->refused += want != NULL;
        n->errors += want == NULL;
        return;
    }
    if (want == NULL || strcmp(got.text.data != NULL ? got.text.data : "", want) != 0)
        fail_msg("%s: %s: \"%s\", Jinja says %s", name, source, got.text.data, want != NULL ? want : "it is wrong");
    assert_int_equal(got.text.len, got.told.len);
    mz_marked_text_free(&got);
    n->same++;
}

// MEZZO_CHAT: a file of chat_templates.py with other random templates.
static void templates_are_jinjas(void **state) {
    (void)state;
    const char *other = getenv("MEZZO_CHAT");
    json_t *root = other != NULL ? json_load_file(other, 0, NULL) : golden_json("chat.json"), *t, *c;
    counts n = {0};
    size_t i, k;
    assert_non_null(root);
    setenv("SOURCE_DATE_EPOCH", json_string_value(json_object_get(root, "now")), 1);
    json_array_foreach(json_object_get(root, "templates"), i, t) json_array_foreach(json_object_get(t, "cases"), k, c)
        check_case(root, t, c, &n);
    unsetenv("SOURCE_DATE_EPOCH");
    print_message("%zu templates: %d renderings the same, %d refused as not supported, %d errors that Jinja has too\n",
                  i, n.same, n.refused, n.errors);
    if (other == NULL)
        assert_true(n.same > 1500 && n.refused < n.same / 10 && n.errors > 500);
    json_decref(root);
}

// One line, which names the construct and its line.
static void what_is_not_known_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *source, *says;
    } wrong[] = {
        {"x\n{% include 'a' %}", "include"},
        {"{{ 'a'.format(1) }}", "format"},
        {"{{ messages.append(1) }}", "append"},
        {"{{ 'a' | e }}", "filter e is not supported"},
        {"{{ '\\N{BULLET}' }}", "escape"},
        {"{{ 9223372036854775807 + 1 }}", "64 bits"},
        {"{{ 9223372036854775808 }}", "64 bits"},
        {"{{ nope.nope }}", "undefined"},
        {"{{ 'a' + 1 }}", "+"},
        {"{% macro a(x) %}{% endmacro %}{{ a(1, 2) }}", "takes 1"},
        {"{% macro a(x) %}{% endmacro %}{{ a(y=2) }}", "'y'"},
        {"{{ 'a' | replace('a') }}", "missing"},
        {"{{ 'a' | trim('a', 'b') }}", "too many"},
        {"{% if true %}", "endif"},
        {"{% endfor %}", "'endfor'"},
        {"{% if true %}{% endfor %}", "'endfor'"},
        {"{{ 'a }}", "end"},
        {"{{ 'a' 1 }}", "tag"},
        {"{{ raise_exception('not so') }}", "not so"},
        {"{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "deep"},
        {"{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor %}"
         "{% endfor %}",
         "the template"}};
    json_t *values = json_pack("{s:[{s:s}]}", "messages", "role", "user");
    for (size_t i = 0; i < MZ_COUNT(wrong); i++) {
        mz_marked_text got;
        assert_int_not_equal(mz_template_render("there", wrong[i].source, values, &got), MEZZO_OK);
        const char *says = mezzo_error_message();
        if (strstr(says, wrong[i].says) == NULL || strstr(says, "there: line ") == NULL || strchr(says, '\n') != NULL)
            fail_msg("%s: \"%s\" does not say %s", wrong[i].source, says, wrong[i].says);
    }
    json_decref(values);
}

// GPT-2's tokenizer with three tokens more, and a template, as a folder that is published.
static mezzo_tokenizer *published(const char *source) {
    mezzo_tokenizer *gpt2, *tok;
    must(mz_dir_create("published"));
    must(mezzo_tokenizer_create_gpt2(&gpt2));
    must(mezzo_tokenizer_save_bpe(gpt2, "published"));
    mezzo_tokenizer_free(gpt2);
    json_t *config = json_pack("{s:s, s:{s:s}, s:s, s:{s:{s:s}, s:{s:s}, s:{s:s}}}", "chat_template", source,
                               "bos_token", "content", "<s>", "eos_token", "</s>", "added_tokens_decoder", "50258",
                               "content", "</s>", "50257", "content", "<s>", "50300", "content", "<far>");
    assert_int_equal(json_dump_file(config, "published/tokenizer_config.json", 0), 0);
    json_decref(config);
    must(mezzo_tokenizer_load("published", &tok));
    assert_int_equal(mezzo_tokenizer_vocab(tok), 50259); // 50300 has a hole before it
    return tok;
}

// The text of the tokens that count, and of the others as dots: one a token.
static void answers_of(const mezzo_tokenizer *tok, const mz_chat_tokens *t, mz_text *out) {
    for (size_t i = 0; i < t->n; i++) {
        size_t n;
        const char *bytes = mezzo_tokenizer_bytes(tok, t->tokens[i], &n);
        mz_text_add(out, t->counts[i] ? bytes : ".", t->counts[i] ? n : 1);
    }
    must(out->status);
}

static void check_answers(const mezzo_tokenizer *tok, const char *messages, const char *wanted) {
    json_t *list = json_loads(messages, 0, NULL);
    mz_chat_tokens t = {0};
    mz_text text = {0};
    must(mz_chat_encode(tok, "here", list, false, &t));
    answers_of(tok, &t, &text);
    const char *from = text.data + strspn(text.data, ".");
    if (strcmp(from, wanted) != 0)
        fail_msg("\"%s\" is what counts, not \"%s\"", from, wanted);
    mz_text_free(&text);
    mz_chat_tokens_free(&t);
    json_decref(list);
}

static const char inst[] =
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}";

static void answers_are_found_by_the_template(void **state) {
    (void)state;
    mezzo_tokenizer *tok = published(inst), *bytes;
    check_answers(tok, "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b c\"}]",
                  " b c </s>");
    check_answers(tok,
                  "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, "
                  "{\"role\": \"user\", \"content\": \"\"}, {\"role\": \"assistant\", \"content\": \"c\"}]",
                  " b </s>........ c </s>"); // <s> [ INST ], a space, [/ INST ]
    must(mezzo_tokenizer_create_byte(&bytes));
    check_answers(bytes, "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]",
                  "b<|im_end|>\n");
    mezzo_tokenizer_free(bytes);
    mezzo_tokenizer_free(tok);
}

static void messages_make_no_special_token(void **state) {
    (void)state;
    mezzo_tokenizer *tok = published(inst), *again;
    mz_chat_tokens t = {0};
    char *end;
    must(mz_chat_ask(tok, "a</s><s>b", &t, &end));
    assert_string_equal(end, "</s>");
    assert_int_equal(t.tokens[0], 50257);
    for (size_t i = 1; i < t.n; i++)
        assert_true(t.tokens[i] < 50256);
    mz_free(end);
    // A saved tokenizer keeps the template and its tokens.
    must(mezzo_tokenizer_save(tok, "kept.json"));
    must(mezzo_tokenizer_load("kept.json", &again));
    mz_chat_tokens u = {0};
    must(mz_chat_ask(again, "a</s><s>b", &u, &end));
    assert_string_equal(end, "</s>");
    assert_int_equal(t.n, u.n);
    assert_memory_equal(t.tokens, u.tokens, t.n * sizeof *t.tokens);
    mz_free(end);
    mz_chat_tokens_free(&t);
    mz_chat_tokens_free(&u);
    mezzo_tokenizer_free(again);
    mezzo_tokenizer_free(tok);
}

// A template that leaves an earlier answer's reasoning out: what would count is not what was asked for.
static void an_answer_that_changes_is_refused(void **state) {
    (void)state;
    mezzo_tokenizer *tok = published(
        "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last or m.role == 'user' else 'cut' }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}");
    json_t *list =
        json_loads("[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, "
                   "{\"role\": \"user\", \"content\": \"c\"}]",
                   0, NULL);
    mz_chat_tokens t = {0};
    char *end;
    assert_int_equal(mz_chat_encode(tok, "here", list, false, &t), MEZZO_ERR_INVALID);
    assert_non_null(strstr(mezzo_error_message(), "here: the chat template writes message 2"));
    json_decref(list);
    mezzo_tokenizer_free(tok);
    tok = published("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
                    "{% if add_generation_prompt %}<|assistant|>{% endif %}");
    t.n = 0;
    must(mz_chat_ask(tok, "x", &t, &end));
    assert_string_equal(end, "<|user|>"); // no end of its own: the next message begins
    mz_free(end);
    mz_chat_tokens_free(&t);
    mezzo_tokenizer_free(tok);
}

// Each allocation fails in turn: told, nothing kept.
static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    json_t *root = golden_json("chat.json");
    mezzo_tokenizer *tok = published(json_string_value(
        json_object_get(json_array_get(json_object_get(root, "templates"), 3), "source"))); // GLM's: it has a macro
    json_t *list = json_loads(
        "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]", 0, NULL);
    mezzo_status status = MEZZO_ERR_MEMORY;
    int n = 0;
    for (; status == MEZZO_ERR_MEMORY; n++) {
        mz_chat_tokens t = {0};
        mz_alloc_fail_after(n);
        status = mz_chat_encode(tok, "here", list, true, &t);
        mz_alloc_fail_after(-1);
        mz_chat_tokens_free(&t);
    }
    must(status);
    assert_true(n > 20);
    json_decref(list);
    json_decref(root);
    mezzo_tokenizer_free(tok);
}

// 4,096 turns of `body`, after a text of a megabyte, two lists that double 16 times and two that are 4,096 deep.
static char *much_work(const char *body) {
#define LOOP   "{% for a in [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16] %}"
#define ENDS   "{% endfor %}{% endfor %}{% endfor %}"
#define DOUBLE "{% set n.x = n.x ~ n.x %}{% set n.y = [n.y, n.y] %}{% set n.z = [n.z, n.z] %}"
#define DEEPER "{% set n.p = [n.p] %}{% set n.q = [n.q] %}"
    return mz_format("{%% set n = namespace(x='0123456789abcdef', y=[1], z=[1], p=[1], q=[1]) %%}%s%s%s",
                     LOOP DOUBLE "{% endfor %}" LOOP LOOP LOOP DEEPER ENDS LOOP LOOP LOOP, body, ENDS);
}

static void long_work_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *body, *says;
    } bodies[] = {{"{% if 'g' in n.x %}{% endif %}", "too long"},
                  {"{% if n.y == n.z %}{% endif %}", "too long"},
                  {"{% if n.p == n.q %}{% endif %}", "too deep"},
                  {"{% if n.x.startswith(n.x) %}{% endif %}", "too long"}};
    json_t *values = json_object();
    for (size_t i = 0; i < MZ_COUNT(bodies); i++) {
        char *source = much_work(bodies[i].body);
        mz_marked_text got;
        assert_non_null(source);
        alarm(60); // not a second
        assert_int_not_equal(mz_template_render("there", source, values, &got), MEZZO_OK);
        alarm(0);
        if (strstr(mezzo_error_message(), bodies[i].says) == NULL)
            fail_msg("%s: %s", bodies[i].body, mezzo_error_message());
        mz_free(source);
    }
    json_decref(values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_are_jinjas),           cmocka_unit_test(what_is_not_known_is_refused),
        cmocka_unit_test(long_work_is_refused),           cmocka_unit_test(answers_are_found_by_the_template),
        cmocka_unit_test(messages_make_no_special_token), cmocka_unit_test(an_answer_that_changes_is_refused),
        cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests_name("chat", tests, NULL, NULL);
}
