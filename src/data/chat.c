#include "data/chat.h"

#include <ctype.h>

#include "data/template.h"
#include "data/tokenizer.h"
#include "io/file.h"
#include "io/json.h"

#define MOST_TEMPLATE ((size_t)1 << 20)
#define MOST_CONFIG   ((size_t)16 << 20)

static const char chatml[] = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
                             "message['content'] + '<|im_end|>\\n' }}{% endfor %}"
                             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

void mz_chat_free(mz_chat *chat) {
    mz_free(chat->source);
    mz_free(chat->bos);
    mz_free(chat->eos);
    *chat = (mz_chat){0};
}

// --- where templates are kept --------------------------------------------------------------------------------------
static mezzo_status copy(const json_t *text, char **out) {
    if (!json_is_string(text))
        return MEZZO_OK;
    *out = mz_strdup(json_string_value(text));
    return *out != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

// "<s>" or {"content": "<s>", …}.
static mezzo_status copy_token(const json_t *token, char **out) {
    return copy(json_is_object(token) ? json_object_get(token, "content") : token, out);
}

// A text, or [{"name": …, "template": …}], of which the one called default is meant.
static const json_t *chosen_template(const json_t *value) {
    const json_t *entry;
    size_t i;
    json_array_foreach(value, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name != NULL && strcmp(name, "default") == 0)
            return json_object_get(entry, "template");
    }
    return value;
}

static mezzo_status from_config(const json_t *config, mz_chat *out) {
    if (out->source == NULL)
        MEZZO_TRY(copy(chosen_template(json_object_get(config, "chat_template")), &out->source));
    MEZZO_TRY(copy_token(json_object_get(config, "bos_token"), &out->bos));
    return copy_token(json_object_get(config, "eos_token"), &out->eos);
}

// {"number": {"content": "token", …}} of tokenizer_config.json.
static mezzo_status find_added(const json_t *config, json_t **out) {
    json_t *decoder = json_object_get(config, "added_tokens_decoder"), *entry;
    const char *number;
    *out = mz_json_new();
    json_object_foreach(decoder, number, entry) {
        json_t *token = json_object_get(entry, "content");
        if (json_is_string(token))
            (void)json_object_set(*out, number, token);
    }
    if (*out != NULL && !mz_json_ran_out())
        return MEZZO_OK;
    json_decref(*out);
    *out = NULL;
    return mz_fail(MEZZO_ERR_MEMORY, "no memory for the tokens of tokenizer_config.json");
}

mezzo_status mz_chat_read(const char *folder, mz_chat *out, json_t **added) {
    char *jinja = mz_format("%s/chat_template.jinja", folder), *config = mz_format("%s/tokenizer_config.json", folder);
    mezzo_status status = jinja != NULL && config != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    json_t *object = NULL;
    size_t n;
    *out = (mz_chat){0};
    if (status == MEZZO_OK && mz_path_exists(jinja))
        status = mz_file_read_text(jinja, MOST_TEMPLATE, &out->source, &n);
    if (status == MEZZO_OK && mz_path_exists(config))
        status = mz_json_load(config, MOST_CONFIG, &object);
    if (status == MEZZO_OK && object != NULL)
        status = from_config(object, out);
    if (added != NULL)
        *added = NULL;
    if (status == MEZZO_OK && added != NULL)
        status = find_added(object, added);
    json_decref(object);
    mz_free(jinja);
    mz_free(config);
    if (status != MEZZO_OK)
        mz_chat_free(out);
    return status;
}

static const char *const keys[] = {"chat_template", "bos_token", "eos_token"};

mezzo_status mz_chat_to_json(const mz_chat *chat, json_t *object) {
    const char *const texts[] = {chat->source, chat->bos, chat->eos};
    for (size_t i = 0; i < MZ_COUNT(keys); i++)
        if (texts[i] != NULL && json_object_set_new(object, keys[i], json_string(texts[i])) != 0)
            return mz_fail(MEZZO_ERR_MEMORY, "out of memory while making a tokenizer's JSON");
    return MEZZO_OK;
}

mezzo_status mz_chat_write(const mz_chat *chat, const char *folder) {
    json_t *object = mz_json_new();
    char *path = mz_format("%s/tokenizer_config.json", folder);
    mezzo_status status = object != NULL && path != NULL ? mz_chat_to_json(chat, object) : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK && json_object_size(object) > 0)
        status = mz_json_save(path, object);
    json_decref(object);
    mz_free(path);
    return status;
}

mezzo_status mz_chat_from_json(const char *where, const json_t *object, mz_chat *out) {
    char **const texts[] = {&out->source, &out->bos, &out->eos};
    *out = (mz_chat){0};
    for (size_t i = 0; i < MZ_COUNT(keys); i++) {
        const json_t *text = json_object_get(object, keys[i]);
        if (text != NULL && (!json_is_string(text) || json_string_length(text) > MOST_TEMPLATE)) {
            mz_chat_free(out);
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s': expected a text of at most %zu bytes", where, keys[i],
                           MOST_TEMPLATE);
        }
        mezzo_status status = copy(text, texts[i]);
        if (status != MEZZO_OK) {
            mz_chat_free(out);
            return status;
        }
    }
    return MEZZO_OK;
}

// --- tokens --------------------------------------------------------------------------------------------------------
void mz_chat_tokens_free(mz_chat_tokens *t) {
    mz_free(t->tokens);
    mz_free(t->counts);
    *t = (mz_chat_tokens){0};
}

static mezzo_status make_room(mz_chat_tokens *t, size_t n) {
    MEZZO_TRY(MZ_RESERVE(t->tokens, t->cap_tokens, t->n + n));
    return MZ_RESERVE(t->counts, t->cap_counts, t->n + n);
}

mezzo_status mz_chat_tokens_add(mz_chat_tokens *t, const mezzo_tokenizer *tok, const char *text, size_t n,
                                bool counts) {
    size_t made = 0;
    MEZZO_TRY(make_room(t, n + 1));
    MEZZO_TRY(mezzo_tokenizer_encode(tok, text, n, t->tokens + t->n, &made));
    memset(t->counts + t->n, counts, made);
    t->n += made;
    return MEZZO_OK;
}

static mezzo_status add_token(mz_chat_tokens *t, int32_t token, bool counts) {
    MEZZO_TRY(make_room(t, 1));
    t->tokens[t->n] = token;
    t->counts[t->n++] = counts;
    return MEZZO_OK;
}

static int32_t special(const mezzo_tokenizer *tok, const char *text, size_t n) {
    return tok->kind->special != NULL && n > 0 ? tok->kind->special(tok, text, n) : -1;
}

mezzo_status mz_chat_end_token(mz_chat_tokens *t, const mezzo_tokenizer *tok) {
    static const char end_of_text[] = "<|endoftext|>";
    const char *eos = tok->chat.eos != NULL ? tok->chat.eos : end_of_text;
    const int32_t token = special(tok, eos, strlen(eos));
    return token >= 0 ? add_token(t, token, true) : MEZZO_OK;
}

// The length of the marker that begins at text[0], of n bytes; 0: none. *token: its own, or -1.
static size_t marker(const mezzo_tokenizer *tok, const char *text, size_t n, int32_t *token) {
    enum { LONGEST = 64 };
    const char close = text[0] == '<' ? '>' : text[0] == '[' ? ']' : '\0';
    *token = -1;
    if (close == '\0')
        return 0;
    for (size_t i = 1; i < n && i < LONGEST; i++) {
        if (isspace((unsigned char)text[i]))
            return 0;
        if (text[i] != close)
            continue;
        *token = special(tok, text, i + 1);
        const bool bars = close == '>' && i > 3 && text[1] == '|' && text[i - 1] == '|';
        if (*token >= 0 || bars)
            return i + 1;
    }
    return 0;
}

static mezzo_status add_marker(mz_chat_tokens *t, const mezzo_tokenizer *tok, const char *text, size_t n, bool counts) {
    mezzo_status status = mz_chat_tokens_add(t, tok, text, n, counts);
    if (status != MEZZO_ERR_INVALID)
        return status;
    return mz_fail(
        status,
        "the tokenizer (%s, %d tokens) has neither a token for %.*s, which the chat template writes (ChatML, "
        "where there is none), nor its characters: give a prompt, or train on conversations with the "
        "tokenizer gpt2, byte or a published folder's",
        tok->kind->name, (int)tok->vocab, (int)n, text);
}

// Bytes from … to of a conversation.
static mezzo_status add_bytes(mz_chat_tokens *t, const mezzo_tokenizer *tok, const mz_marked_text *x, size_t from,
                              size_t to, bool counts) {
    size_t begun = from;
    for (size_t at = from; at < to;) {
        size_t own = 0;
        int32_t token;
        while (at + own < to && !x->told.data[at + own])
            own++;
        size_t n = own > 0 ? marker(tok, x->text.data + at, own, &token) : 0;
        if (n == 0) {
            at++;
            continue;
        }
        if (at > begun)
            MEZZO_TRY(mz_chat_tokens_add(t, tok, x->text.data + begun, at - begun, counts));
        MEZZO_TRY(token >= 0 ? add_token(t, token, counts) : add_marker(t, tok, x->text.data + at, n, counts));
        begun = at += n;
    }
    return to > begun ? mz_chat_tokens_add(t, tok, x->text.data + begun, to - begun, counts) : MEZZO_OK;
}

// --- conversations -------------------------------------------------------------------------------------------------
static mezzo_status check_messages(const char *where, const json_t *messages) {
    const json_t *message;
    size_t i;
    json_array_foreach(messages, i, message) {
        const char *role, *content;
        if (!json_is_object(message))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: a message is not an object with \"role\" and \"content\"", where);
        MEZZO_TRY(mz_json_get_string(where, message, "role", &role));
        MEZZO_TRY(mz_json_get_string(where, message, "content", &content));
        if (strcmp(role, "assistant") != 0 && strcmp(role, "user") != 0 && strcmp(role, "system") != 0)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: the role \"%.40s\" is not one of system, user, assistant", where,
                           role);
    }
    return MEZZO_OK;
}

// The first n messages.
static mezzo_status write_some(const mezzo_tokenizer *tok, const char *where, const json_t *messages, size_t n,
                               bool prompt, mz_marked_text *out) {
    const mz_chat *chat = &tok->chat;
    json_t *values = mz_json_new(), *some = json_array();
    *out = (mz_marked_text){0};
    for (size_t i = 0; i < n; i++)
        (void)json_array_append(some, json_array_get(messages, i));
    (void)json_object_set_new(values, "messages", some);
    (void)json_object_set_new(values, "add_generation_prompt", json_boolean(prompt));
    (void)json_object_set_new(values, "bos_token", json_string(chat->bos != NULL ? chat->bos : ""));
    (void)json_object_set_new(values, "eos_token", json_string(chat->eos != NULL ? chat->eos : ""));
    mezzo_status status =
        values == NULL || some == NULL || mz_json_ran_out()
            ? mz_fail(MEZZO_ERR_MEMORY, "%s: no memory for a conversation", where)
            : mz_context(mz_template_render("chat template", chat->source != NULL ? chat->source : chatml, values, out),
                         "%s", where);
    json_decref(values);
    return status;
}

static bool begins(const mz_marked_text *x, const mz_marked_text *with) {
    return with->text.len <= x->text.len &&
           (with->text.len == 0 || memcmp(x->text.data, with->text.data, with->text.len) == 0);
}

static bool is_answer(const json_t *message) {
    return strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0;
}

// Answer i of the conversation `all`: bytes *from to *to.
static mezzo_status find_answer(const mezzo_tokenizer *tok, const char *where, const json_t *messages, size_t i,
                                const mz_marked_text *all, size_t *from, size_t *to) {
    mz_marked_text before = {0}, with = {0};
    mezzo_status status = write_some(tok, where, messages, i, true, &before);
    if (status == MEZZO_OK)
        status = write_some(tok, where, messages, i + 1, false, &with);
    if (status == MEZZO_OK && (!begins(&with, &before) || !begins(all, &with)))
        status = mz_fail(MEZZO_ERR_INVALID,
                         "%s: the chat template writes message %zu differently once others follow it, or its beginning "
                         "differently from its prompt: the answer cannot be separated from the rest",
                         where, i + 1);
    *from = before.text.len;
    *to = with.text.len;
    mz_marked_text_free(&before);
    mz_marked_text_free(&with);
    return status;
}

static mezzo_status add_all(const mezzo_tokenizer *tok, const char *where, const json_t *messages,
                            const mz_marked_text *all, mz_chat_tokens *out) {
    size_t done = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        size_t from, to;
        if (!is_answer(json_array_get(messages, i)))
            continue;
        MEZZO_TRY(find_answer(tok, where, messages, i, all, &from, &to));
        MEZZO_TRY(mz_context(add_bytes(out, tok, all, done, from, false), "%s", where));
        MEZZO_TRY(mz_context(add_bytes(out, tok, all, from, to, true), "%s", where));
        done = to;
    }
    return mz_context(add_bytes(out, tok, all, done, all->text.len, false), "%s", where);
}

mezzo_status mz_chat_encode(const mezzo_tokenizer *tok, const char *where, const json_t *messages, bool prompt,
                            mz_chat_tokens *out) {
    mz_marked_text all;
    MEZZO_TRY(check_messages(where, messages));
    MEZZO_TRY(write_some(tok, where, messages, json_array_size(messages), prompt, &all));
    mezzo_status status = add_all(tok, where, messages, &all, out);
    mz_marked_text_free(&all);
    return status;
}

// --- a question ----------------------------------------------------------------------------------------------------
// The word that the template writes behind an answer; where it writes none, the one that the next message begins with.
static mezzo_status find_end(const mezzo_tokenizer *tok, const char *where, json_t *messages, char **end) {
    static const char answer[] = "4f9c1e";
    mz_marked_text x = {0};
    *end = NULL;
    for (size_t n = 2; n <= 3 && *end == NULL; n++) {
        MEZZO_TRY(write_some(tok, where, messages, n, false, &x));
        const char *at = x.text.data != NULL ? strstr(x.text.data, answer) : NULL;
        size_t i = at != NULL ? (size_t)(at - x.text.data) + sizeof answer - 1 : x.text.len, to;
        while (i < x.text.len && isspace((unsigned char)x.text.data[i]))
            i++;
        for (to = i; to < x.text.len && !x.told.data[to] && !isspace((unsigned char)x.text.data[to]);)
            to++;
        if (to > i || n == 3)
            *end = mz_format("%.*s", (int)(to - i), to > i ? x.text.data + i : "");
        mz_marked_text_free(&x);
        if ((to > i || n == 3) && *end == NULL)
            return MEZZO_ERR_MEMORY;
    }
    return MEZZO_OK;
}

mezzo_status mz_chat_ask(const mezzo_tokenizer *tok, const char *message, mz_chat_tokens *out, char **end) {
    mz_json_begin();
    json_t *asked = json_pack("[{s:s, s:s}]", "role", "user", "content", message);
    json_t *told = json_pack("[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "x", "role",
                             "assistant", "content", "4f9c1e", "role", "user", "content", "x");
    mezzo_status status = MEZZO_OK;
    *end = NULL;
    if (asked == NULL || told == NULL)
        status = mz_fail(MEZZO_ERR_INVALID, "the message is not UTF-8");
    if (status == MEZZO_OK)
        status = mz_chat_encode(tok, "the message", asked, true, out);
    if (status == MEZZO_OK)
        status = find_end(tok, "the end of an answer", told, end);
    json_decref(asked);
    json_decref(told);
    return status;
}
