// Chat templates against Jinja's own renderings, and which tokens of a conversation are an answer's.
//
// A template that would run for hours, or compare lists as deep as it ran, is refused.
//
// Seen to fail with: text after a tag that keeps its line break, a loop's variable that outlives it, an answer whose
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
TEST(templates_are_jinjas) {
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
TEST(what_is_not_known_is_refused) {
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

TEST(answers_are_found_by_the_template) {
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

// A conversation of n answers: some short, some alike, one with white space around it.
static json_t *long_conversation(size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        char *asked = mz_format("q%zu", i), *said = mz_format(i % 5 == 3 ? " a%zu\n" : "a%zu", i);
        json_array_append_new(list, json_pack("{s:s, s:s}", "role", "user", "content", asked));
        json_array_append_new(list, json_pack("{s:s, s:s}", "role", "assistant", "content", said));
        mz_free(asked);
        mz_free(said);
    }
    return list;
}

// Bytes that the first n messages take.
static size_t written_by(const char *source, const json_t *messages, size_t n, bool prompt) {
    json_t *some = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(some, json_array_get(messages, i));
    json_t *values =
        json_pack("{s:o, s:n, s:n, s:b}", "messages", some, "tools", "documents", "add_generation_prompt", prompt);
    mz_marked_text text;
    must(mz_template_render("there", source, values, &text));
    const size_t bytes = text.text.len;
    mz_marked_text_free(&text);
    json_decref(values);
    return bytes;
}

// Every byte is a token, and counts where rendering all before an answer, and all up to it, says so.
static void check_long(mezzo_tokenizer *bytes, char *source, size_t n) {
    json_t *messages = long_conversation(n);
    mz_chat_tokens t = {0};
    bytes->chat.source = source;
    must(mz_chat_encode(bytes, "here", messages, false, &t));
    assert_int_equal(t.n, written_by(source, messages, 2 * n, false));
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t from = written_by(source, messages, 2 * i + 1, true);
        const size_t to = written_by(source, messages, 2 * i + 2, false);
        for (; at < to; at++)
            if (t.counts[at] != (at >= from))
                fail_msg("%s: answer %zu: byte %zu of %zu to %zu", source, i, at, from, to);
    }
    for (; at < t.n; at++)
        assert_int_equal(t.counts[at], 0);
    mz_chat_tokens_free(&t);
    json_decref(messages);
    bytes->chat.source = NULL;
}

static size_t allocations_of(mezzo_tokenizer *bytes, size_t n) {
    json_t *messages = long_conversation(n);
    mz_chat_tokens t = {0};
    const uint64_t before = mz_alloc_count();
    must(mz_chat_encode(bytes, "here", messages, false, &t));
    const size_t count = (size_t)(mz_alloc_count() - before);
    mz_chat_tokens_free(&t);
    json_decref(messages);
    return count;
}

// One of 37 answers is cut once others follow it: it is written otherwise than those around it, and found by that.
static void check_one_that_changes(mezzo_tokenizer *bytes) {
    json_t *messages = long_conversation(37), *one = json_array_get(messages, 41);
    mz_chat_tokens t = {0};
    json_object_set_new(one, "content", json_string("think|a"));
    bytes->chat.source = mz_strdup("{% for m in messages %}<|{{ m.role }}|>"
                                   "{{ m.content if loop.last else m.content.split('|')[-1] }}{% endfor %}"
                                   "{% if add_generation_prompt %}<|assistant|>{% endif %}");
    must_fail(mz_chat_encode(bytes, "here", messages, false, &t), MEZZO_ERR_INVALID,
              "here: the chat template writes message 42");
    mz_chat_tokens_free(&t);
    mz_free(bytes->chat.source);
    bytes->chat.source = NULL;
    json_decref(messages);
}

// As rendering each answer finds them; and work that grows with the conversation, not with its square.
TEST(answers_of_long_conversations) {
    static const char *const sources[] = {
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content | trim }}]{% else %} {{ m.content }} .{% endif "
        "%}"
        "{% endfor %}",
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if not loop.last %}\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}\nassistant: {% endif %}",
        "{% for m in messages %}{% if loop.index is divisibleby 12 %}*{% endif %}{{ m.role }}: {{ m.content }};"
        "{% if loop.index is divisibleby 16 %}!{% endif %}\n{% endfor %}",
        "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 "
        "%}"
        "{% endif %}{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}"
        "{% if loop.index0 > ns.last and '<think>' in m.content %}?{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        "{% macro say(m) %}({{ m.role }}){{ m.content }}{% endmacro %}{% for i in range(messages | length) %}"
        "{{ say(messages[i]) }}{% endfor %}{% if add_generation_prompt %}(assistant){% endif %}"};
    mezzo_tokenizer *bytes;
    must(mezzo_tokenizer_create_byte(&bytes));
    for (size_t i = 0; i < MZ_COUNT(sources); i++) {
        char *source = mz_strdup(sources[i]);
        check_long(bytes, source, 37);
        mz_free(source);
    }
    check_one_that_changes(bytes);
    const size_t few = allocations_of(bytes, 200), many = allocations_of(bytes, 1600);
    if (many > 16 * few)
        fail_msg("200 answers take %zu allocations, 1,600 take %zu", few, many);
    mezzo_tokenizer_free(bytes);
}

// {% generation %} says itself what counts.
TEST(generation_blocks_are_answers) {
    mezzo_tokenizer *bytes;
    must(mezzo_tokenizer_create_byte(&bytes));
    bytes->chat.source = mz_strdup("{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ "
                                   "m.content | upper }}.{% endgeneration %}"
                                   "\n{% else %}{{ m.content }}{% endif %}{% endfor %}");
    check_answers(bytes, "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]",
                  "B.");
    mezzo_tokenizer_free(bytes);
}

TEST(messages_make_no_special_token) {
    mezzo_tokenizer *tok = published(inst), *again;
    mz_chat_tokens t = {0};
    char *end;
    json_t *asked = json_pack("[{s:s, s:s}]", "role", "user", "content", "a</s><s>b");
    must(mz_chat_encode(tok, "asked", asked, true, &t));
    must(mz_chat_find_end(tok, &end));
    assert_string_equal(end, "</s>");
    assert_int_equal(t.tokens[0], 50257);
    for (size_t i = 1; i < t.n; i++)
        assert_true(t.tokens[i] < 50256);
    mz_free(end);
    // A saved tokenizer keeps the template and its tokens.
    must(mezzo_tokenizer_save(tok, "kept.json"));
    must(mezzo_tokenizer_load("kept.json", &again));
    mz_chat_tokens u = {0};
    must(mz_chat_encode(again, "asked", asked, true, &u));
    must(mz_chat_find_end(again, &end));
    json_decref(asked);
    assert_string_equal(end, "</s>");
    assert_int_equal(t.n, u.n);
    assert_memory_equal(t.tokens, u.tokens, t.n * sizeof *t.tokens);
    mz_free(end);
    mz_chat_tokens_free(&t);
    mz_chat_tokens_free(&u);
    mezzo_tokenizer_free(again);
    mezzo_tokenizer_free(tok);
}

// transformers' apply_chat_template (make/chat_prompts.py): the same tokens, of whole conversations and of prompts.
// Seen to fail with: markers left in the text around them; add_generation_prompt ignored.
TEST(prompts_are_those_of_transformers) {
    mezzo_tokenizer *tok;
    json_t *root = golden_json("chat_prompts.json"), *templates = json_object_get(root, "templates"), *c, *token;
    size_t i, k;
    must(mz_tokenizer_from_json("chat_prompts.json", json_object_get(root, "tokenizer"), false, &tok));
    tok->chat.bos = mz_strdup(json_string_value(json_object_get(root, "bos_token")));
    tok->chat.eos = mz_strdup(json_string_value(json_object_get(root, "eos_token")));
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        const json_t *want = json_object_get(c, "tokens");
        const char *name = json_string_value(json_object_get(c, "template"));
        mz_chat_tokens got = {0};
        mz_free(tok->chat.source);
        tok->chat.source = mz_strdup(json_string_value(json_object_get(templates, name)));
        must(mz_chat_encode(tok, name, json_object_get(c, "messages"), json_is_true(json_object_get(c, "prompt")),
                            &got));
        if (got.n != json_array_size(want))
            fail_msg("%s, case %zu: %zu tokens, transformers has %zu", name, i, got.n, json_array_size(want));
        json_array_foreach(want, k, token) if (got.tokens[k] != json_integer_value(token))
            fail_msg("%s, case %zu: token %zu is %d, not %lld", name, i, k, (int)got.tokens[k],
                     (long long)json_integer_value(token));
        mz_chat_tokens_free(&got);
    }
    assert_int_equal(i, 24);
    json_decref(root);
    mezzo_tokenizer_free(tok);
}

// A template that leaves an earlier answer's reasoning out: what would count is not what was asked for.
TEST(an_answer_that_changes_is_refused) {
    mezzo_tokenizer *tok = published(
        "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last or m.role == 'user' else 'cut' }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}");
    json_t *list =
        json_loads("[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, "
                   "{\"role\": \"user\", \"content\": \"c\"}]",
                   0, NULL);
    mz_chat_tokens t = {0};
    char *end;
    must_fail(mz_chat_encode(tok, "here", list, false, &t), MEZZO_ERR_INVALID,
              "here: the chat template writes message 2");
    json_decref(list);
    mezzo_tokenizer_free(tok);
    tok = published("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
                    "{% if add_generation_prompt %}<|assistant|>{% endif %}");
    t.n = 0;
    must(mz_chat_find_end(tok, &end));
    assert_string_equal(end, "<|user|>"); // no end of its own: the next message begins
    mz_free(end);
    mz_chat_tokens_free(&t);
    mezzo_tokenizer_free(tok);
}

// Each allocation fails in turn: told, nothing kept.
TEST(memory_may_run_out_anywhere) {
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

static void refuses_too_long(const char *source) {
    json_t *values = json_object();
    mz_marked_text got;
    alarm(60); // not a second
    assert_int_equal(mz_template_render("there", source, values, &got), MEZZO_ERR_UNSUPPORTED);
    alarm(0);
    assert_non_null(strstr(mezzo_error_message(), "too long"));
    json_decref(values);
}

TEST(long_texts_and_calls_are_refused) {
    mz_text call = {0};
    refuses_too_long("{{ ('a' * 4000000).strip('b' * 4000000 + 'a') }}");
    refuses_too_long("{{ ('a' * 4000000).rfind('a' * 2000000 + 'b') }}");
    mz_text_addf(&call, "{{ f(1");
    for (int i = 0; i < 100000; i++)
        mz_text_addf(&call, ", a%d=1", i);
    mz_text_addf(&call, ") }}");
    assert_int_equal(call.status, MEZZO_OK);
    refuses_too_long(call.data);
    mz_text_free(&call);
}

TEST(long_work_is_refused) {
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
