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
    MZ_FREE(chat->source, chat->bos, chat->eos);
    *chat = (mz_chat){0};
}

// --- files with templates -------------------------------------------------------------------------------------------
static mezzo_status copy(const json_t *text, char **out) {
    if (!json_is_string(text))
        return MEZZO_OK;
    *out = mz_strdup(json_string_value(text));
    return *out != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

// Copies a token from "<s>" or {"content": "<s>", …}.
static mezzo_status copy_token(const json_t *token, char **out) {
    return copy(json_is_object(token) ? json_object_get(token, "content") : token, out);
}

// Returns the template of a text, or of [{"name": …, "template": …}], where the one called "default" counts.
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

static mezzo_status copy_template(const char *where, const json_t *value, char **out) {
    const json_t *text = chosen_template(value);
    if (value != NULL && !json_is_null(value) && !json_is_string(text))
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: key 'chat_template': expected a text, or a list of which one is named default: name one, "
                       "or remove the key",
                       where);
    return copy(text, out);
}

static mezzo_status from_config(const char *where, const json_t *config, mz_chat *out) {
    if (out->source == NULL)
        MEZZO_TRY(copy_template(where, json_object_get(config, "chat_template"), &out->source));
    MEZZO_TRY(copy_token(json_object_get(config, "bos_token"), &out->bos));
    return copy_token(json_object_get(config, "eos_token"), &out->eos);
}

// Finds the added tokens {"number": {"content": "token", …}} in tokenizer_config.json.
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
    const mz_path jinja = mz_path_of("%s/chat_template.jinja", folder),
                  config = mz_path_of("%s/tokenizer_config.json", folder);
    mezzo_status status = MEZZO_OK;
    json_t *object = NULL;
    size_t n;
    *out = (mz_chat){0};
    if (mz_path_exists(jinja.text))
        status = mz_file_read_text(jinja.text, MOST_TEMPLATE, &out->source, &n);
    if (status == MEZZO_OK && mz_path_exists(config.text))
        status = mz_json_load(config.text, MOST_CONFIG, &object);
    if (status == MEZZO_OK && object != NULL)
        status = from_config(config.text, object, out);
    if (added != NULL)
        *added = NULL;
    if (status == MEZZO_OK && added != NULL)
        status = find_added(object, added);
    json_decref(object);
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

mezzo_status mz_chat_keep_default(mz_chat *chat) {
    if (chat->source == NULL)
        chat->source = mz_strdup(chatml);
    return chat->source != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
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
    MZ_FREE(t->tokens, t->counts);
    *t = (mz_chat_tokens){0};
}

static mezzo_status make_room(mz_chat_tokens *t, size_t n) {
    MEZZO_TRY(MZ_RESERVE(t->tokens, t->cap_tokens, t->n + n));
    return MZ_RESERVE(t->counts, t->cap_counts, t->n + n);
}

mezzo_status mz_chat_tokens_add(mz_chat_tokens *t, const mezzo_tokenizer *tok, const char *text, size_t n,
                                mz_place place, bool counts) {
    mz_token_list made = {0};
    mezzo_status status = mz_tokenizer_encode_piece(tok, text, n, 0, place, &made);
    if (status == MEZZO_OK)
        status = make_room(t, made.n + 1);
    if (status == MEZZO_OK && made.n > 0) {
        memcpy(t->tokens + t->n, made.tokens, made.n * sizeof *made.tokens);
        memset(t->counts + t->n, counts, made.n);
        t->n += made.n;
    }
    mz_token_list_free(&made);
    return status;
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

int32_t mz_chat_end_id(const mezzo_tokenizer *tok) {
    static const char end_of_text[] = "<|endoftext|>";
    const char *eos = tok->chat.eos != NULL ? tok->chat.eos : end_of_text;
    return special(tok, eos, strlen(eos));
}

bool mz_chat_has_end(const mezzo_tokenizer *tok) {
    return mz_chat_end_id(tok) >= 0;
}

mezzo_status mz_chat_end_token(mz_chat_tokens *t, const mezzo_tokenizer *tok) {
    const int32_t token = mz_chat_end_id(tok);
    return token >= 0 ? add_token(t, token, true) : MEZZO_OK;
}

enum { LONGEST_MARKER = 64 };

// Returns the length of the marker that begins at text[0], of n bytes; 0: none. *token: its own, or -1.
static size_t marker(const mezzo_tokenizer *tok, const char *text, size_t n, int32_t *token) {
    const char close = text[0] == '<' ? '>' : text[0] == '[' ? ']' : '\0';
    *token = -1;
    if (close == '\0')
        return 0;
    for (size_t i = 1; i < n && i < LONGEST_MARKER; i++) {
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

static mezzo_status add_marker(mz_chat_tokens *t, const mezzo_tokenizer *tok, const char *text, size_t n,
                               mz_place place, bool counts) {
    mezzo_status status = mz_chat_tokens_add(t, tok, text, n, place, counts);
    if (status != MEZZO_ERR_INVALID)
        return status;
    return mz_fail(
        status,
        "the tokenizer (%s, %d tokens) has neither a token for %.*s, which the chat template writes (ChatML, "
        "where there is none), nor its characters: give a prompt, or train on conversations with the "
        "tokenizer gpt2, byte or a published folder's",
        tok->kind->name, (int)tok->vocab, (int)n, text);
}

// Adds bytes [from, to) of a conversation.
static mezzo_status add_bytes(mz_chat_tokens *t, const mezzo_tokenizer *tok, const mz_marked_text *x, size_t from,
                              size_t to, bool counts) {
    size_t begun = from;
    mz_place place = from == 0 ? MZ_PLACE_BEGINS : MZ_PLACE_CONTINUES;
    for (size_t at = from; at < to;) {
        size_t own = 0;
        int32_t token;
        while (at + own < to && own < LONGEST_MARKER && !(x->told.data[at + own] & MZ_MARK_TOLD))
            own++;
        size_t n = own > 0 ? marker(tok, x->text.data + at, own, &token) : 0;
        if (n == 0) {
            at++;
            continue;
        }
        if (at > begun) {
            MEZZO_TRY(mz_chat_tokens_add(t, tok, x->text.data + begun, at - begun, place, counts));
            place = MZ_PLACE_CONTINUES;
        }
        MEZZO_TRY(token >= 0 ? add_token(t, token, counts) : add_marker(t, tok, x->text.data + at, n, place, counts));
        place = token >= 0 ? MZ_PLACE_FOLLOWS : MZ_PLACE_CONTINUES;
        begun = at += n;
    }
    return to > begun ? mz_chat_tokens_add(t, tok, x->text.data + begun, to - begun, place, counts) : MEZZO_OK;
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

// Holds what the chat template writes for a conversation.
typedef struct written {
    mz_marked_text text;
    mz_template_spans spans;
} written;

static void written_free(written *w) {
    mz_marked_text_free(&w->text);
    mz_free(w->spans.at);
    *w = (written){0};
}

// Returns the values that transformers passes to a template. A token that the tokenizer lacks is undefined.
static json_t *values_of(const mz_chat *chat, const json_t *messages, size_t n, bool prompt) {
    json_t *values = mz_json_new(), *some = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append(some, json_array_get(messages, i));
    (void)json_object_set_new(values, "messages", some);
    (void)json_object_set_new(values, "tools", json_null());
    (void)json_object_set_new(values, "documents", json_null());
    (void)json_object_set_new(values, "add_generation_prompt", json_boolean(prompt));
    if (chat->bos != NULL)
        (void)json_object_set_new(values, "bos_token", json_string(chat->bos));
    if (chat->eos != NULL)
        (void)json_object_set_new(values, "eos_token", json_string(chat->eos));
    if (some != NULL && !mz_json_ran_out())
        return values;
    json_decref(values);
    return NULL;
}

// Writes the first n messages.
static mezzo_status write_some(const mezzo_tokenizer *tok, const char *where, const json_t *messages, size_t n,
                               bool prompt, written *out) {
    const mz_chat *chat = &tok->chat;
    json_t *values = values_of(chat, messages, n, prompt);
    *out = (written){0};
    if (values == NULL)
        return mz_fail(MEZZO_ERR_MEMORY, "%s: no memory for a conversation", where);
    mezzo_status status =
        mz_context(mz_template_render_spans("chat template", chat->source != NULL ? chat->source : chatml, values,
                                            &out->text, &out->spans),
                   "%s", where);
    json_decref(values);
    if (status != MEZZO_OK)
        written_free(out);
    return status;
}

static bool begins(const mz_marked_text *x, const mz_marked_text *with) {
    return with->text.len <= x->text.len &&
           (with->text.len == 0 || memcmp(x->text.data, with->text.data, with->text.len) == 0);
}

static const char *content_of(const json_t *message) {
    return json_string_value(json_object_get(message, "content"));
}

// Returns whether an answer has weight 0, as in OpenAI's form of records: it is read, but not learned.
static bool is_left_out(const json_t *message) {
    const json_t *weight = json_object_get(message, "weight");
    return json_is_number(weight) && json_number_value(weight) == 0;
}

static bool is_answer(const json_t *message) {
    return strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0 && !is_left_out(message);
}

// --- answers -------------------------------------------------------------------------------------------------------
// An answer is what its prompt and the next message leave between them, which takes two renderings of all earlier
// messages. To render a conversation of n answers n times would take n² steps, so answers are distinguished by what the
// template itself wrote around their contents in the turn of its loop over the messages: where that is the same, the
// answer begins and ends at the same places of it. Rendering finds the first answer of each such form, and also the
// second, the fourth, the eighth …, which together cost as much as one rendering or two, and the last; if one of these
// is not where its form says, rendering finds all.
typedef struct form { // the form of a turn
    size_t span;      // the turn that was found first
    bool whole;       // all of the content was written
    bool usable;      // the answer begins before the content, and ends after it
    size_t head, tail;
    size_t count; // number of turns of this form
} form;

typedef struct search {
    const mezzo_tokenizer *tok;
    const char *where;
    const json_t *messages;
    const written *all;
    size_t *turns; // per message: its span; SIZE_MAX: none
    form *forms;
    size_t n_forms, cap_forms;
    bool each; // rendering finds every answer
} search;

typedef struct range {
    size_t from, to; // in bytes
} range;

// Finds answer i by rendering.
static mezzo_status render_answer(const search *s, size_t i, range *out) {
    written before = {0}, with = {0};
    mezzo_status status = write_some(s->tok, s->where, s->messages, i, true, &before);
    if (status == MEZZO_OK)
        status = write_some(s->tok, s->where, s->messages, i + 1, false, &with);
    if (status == MEZZO_OK && (!begins(&with.text, &before.text) || !begins(&s->all->text, &with.text)))
        status = mz_fail(MEZZO_ERR_INVALID,
                         "%s: the chat template writes message %zu differently once others follow it, or its beginning "
                         "differently from its prompt: the answer cannot be separated from the rest",
                         s->where, i + 1);
    *out = (range){before.text.text.len, with.text.text.len};
    written_free(&before);
    written_free(&with);
    return status;
}

static bool told(const search *s, size_t at) {
    return (s->all->text.told.data[at] & MZ_MARK_TOLD) != 0;
}

// Returns whether the template's own text of two turns is the same, with messages' text at the same places.
static bool same_form(const search *s, const mz_template_span *a, const mz_template_span *b) {
    const char *text = s->all->text.text.data;
    size_t i = a->from, k = b->from;
    while (i < a->to && k < b->to) {
        if (told(s, i) != told(s, k) || (!told(s, i) && text[i] != text[k]))
            return false;
        const bool run = told(s, i);
        for (i++; run && i < a->to && told(s, i);)
            i++;
        for (k++; run && k < b->to && told(s, k);)
            k++;
    }
    return i == a->to && k == b->to;
}

// Returns whether the turn has as many bytes of messages as the content without surrounding white space.
static bool is_whole(const search *s, size_t i, const mz_template_span *turn) {
    const char *content = content_of(json_array_get(s->messages, i));
    size_t n = strlen(content), written_bytes = 0;
    const size_t spaces = strspn(content, " \t\r\n");
    while (n > spaces && strchr(" \t\r\n", content[n - 1]) != NULL)
        n--;
    for (size_t at = turn->from; at < turn->to; at++)
        written_bytes += told(s, at);
    return written_bytes >= n - (spaces < n ? spaces : n);
}

static form *find_form(search *s, size_t i, size_t turn, mezzo_status *status) {
    enum { MOST_FORMS = 16 }; // the last forms, with which a turn is compared
    const mz_template_span *spans = s->all->spans.at;
    const bool whole = is_whole(s, i, &spans[turn]);
    for (size_t k = s->n_forms; k > 0 && k + MOST_FORMS > s->n_forms; k--) {
        form *f = &s->forms[k - 1];
        if (f->whole == whole && same_form(s, &spans[f->span], &spans[turn]))
            return f;
    }
    *status = MZ_RESERVE(s->forms, s->cap_forms, s->n_forms + 1);
    if (*status != MEZZO_OK)
        return NULL;
    s->forms[s->n_forms] = (form){.span = turn, .whole = whole};
    return &s->forms[s->n_forms++];
}

// Measures what a form's first answer implies for the others.
static void measure(const search *s, form *f, const mz_template_span *turn, range is) {
    size_t first = turn->from, last = turn->to;
    while (first < turn->to && !told(s, first))
        first++;
    while (last > turn->from && !told(s, last - 1))
        last--;
    f->usable = is.from >= turn->from && is.from <= first && is.to >= last && is.to <= turn->to && first < last;
    f->head = f->usable ? is.from - turn->from : 0;
    f->tail = f->usable ? turn->to - is.to : 0;
}

static mezzo_status find_answer(search *s, size_t i, bool last, range *out) {
    if (s->each || s->turns[i] == SIZE_MAX)
        return render_answer(s, i, out);
    const mz_template_span *turn = &s->all->spans.at[s->turns[i]];
    mezzo_status status = MEZZO_OK;
    form *f = find_form(s, i, s->turns[i], &status);
    if (f == NULL)
        return status;
    const size_t count = ++f->count;
    const range expected = {turn->from + f->head, turn->to - f->tail};
    if (count > 1 && f->usable && !last && (count & (count - 1)) != 0) {
        *out = expected;
        return MEZZO_OK;
    }
    MEZZO_TRY(render_answer(s, i, out));
    if (count == 1)
        measure(s, f, turn, *out);
    else if (f->usable && (out->from != expected.from || out->to != expected.to))
        s->each = true;
    return MEZZO_OK;
}

// Finds all answers by their forms, in order; *n: their number.
static mezzo_status find_by_turns(search *s, range *out, size_t *n) {
    size_t count = json_array_size(s->messages), last = count;
    while (last > 0 && !is_answer(json_array_get(s->messages, last - 1)))
        last--;
    const bool each = s->each;
    *n = 0;
    for (size_t i = 0; i < count && s->each == each; i++)
        if (is_answer(json_array_get(s->messages, i)))
            MEZZO_TRY(find_answer(s, i, i + 1 == last, &out[(*n)++]));
    return s->each == each ? MEZZO_OK : find_by_turns(s, out, n);
}

// Finds what the template marks as generated by the model.
static void find_generated(const mz_marked_text *all, range *out, size_t *n) {
    *n = 0;
    for (size_t at = 0; at < all->text.len; at++) {
        if (!(all->told.data[at] & MZ_MARK_GENERATED))
            continue;
        const size_t from = at;
        while (at < all->text.len && (all->told.data[at] & MZ_MARK_GENERATED))
            at++;
        if (out != NULL)
            out[*n] = (range){from, at};
        ++*n;
    }
}

static mezzo_status find_answers(search *s, range **out, size_t *n) {
    const size_t count = json_array_size(s->messages);
    const mz_template_spans *spans = &s->all->spans;
    size_t most = count;
    if (spans->generation)
        find_generated(&s->all->text, NULL, &most);
    MEZZO_TRY(MZ_NEW(*out, most + 1));
    MEZZO_TRY(MZ_NEW(s->turns, count + 1));
    for (size_t i = 0; i < count && spans->generation; i++)
        if (is_left_out(json_array_get(s->messages, i)))
            return mz_fail(MEZZO_ERR_INVALID,
                           "%s: message %zu has a weight of 0, but the chat template marks by itself what counts",
                           s->where, i + 1);
    if (spans->generation) {
        find_generated(&s->all->text, *out, n);
        return MEZZO_OK;
    }
    memset(s->turns, 0xFF, count * sizeof *s->turns);
    for (size_t i = 0; i < spans->n; i++)
        if (spans->at[i].to > spans->at[i].from)
            s->turns[spans->at[i].message] = i;
    return find_by_turns(s, *out, n);
}

static mezzo_status add_all(const mezzo_tokenizer *tok, const char *where, const json_t *messages, const written *all,
                            mz_chat_tokens *out) {
    search s = {.tok = tok, .where = where, .messages = messages, .all = all};
    range *answers = NULL;
    size_t n = 0, done = 0;
    mezzo_status status = find_answers(&s, &answers, &n);
    for (size_t i = 0; i < n && status == MEZZO_OK; i++) {
        status = mz_context(add_bytes(out, tok, &all->text, done, answers[i].from, false), "%s", where);
        if (status == MEZZO_OK)
            status = mz_context(add_bytes(out, tok, &all->text, answers[i].from, answers[i].to, true), "%s", where);
        done = answers[i].to;
    }
    MZ_FREE(answers, s.turns, s.forms);
    MEZZO_TRY(status);
    return mz_context(add_bytes(out, tok, &all->text, done, all->text.text.len, false), "%s", where);
}

mezzo_status mz_chat_encode(const mezzo_tokenizer *tok, const char *where, const json_t *messages, bool prompt,
                            mz_chat_tokens *out) {
    written all;
    MEZZO_TRY(check_messages(where, messages));
    MEZZO_TRY(write_some(tok, where, messages, json_array_size(messages), prompt, &all));
    mezzo_status status = add_all(tok, where, messages, &all, out);
    written_free(&all);
    return status;
}

// --- ends of answers -----------------------------------------------------------------------------------------------
// Finds the word that the template writes after an answer; where it writes none, the word with which the next message
// begins.
static mezzo_status find_end(const mezzo_tokenizer *tok, const json_t *messages, char **end) {
    static const char answer[] = "4f9c1e";
    *end = NULL;
    for (size_t n = 2; n <= 3 && *end == NULL; n++) {
        written some;
        MEZZO_TRY(write_some(tok, "the end of an answer", messages, n, false, &some));
        const mz_marked_text x = some.text;
        const char *at = x.text.data != NULL ? strstr(x.text.data, answer) : NULL;
        size_t i = at != NULL ? (size_t)(at - x.text.data) + sizeof answer - 1 : x.text.len, to;
        while (i < x.text.len && isspace((unsigned char)x.text.data[i]))
            i++;
        for (to = i; to < x.text.len && !(x.told.data[to] & MZ_MARK_TOLD) && !isspace((unsigned char)x.text.data[to]);)
            to++;
        if (to > i || n == 3)
            *end = mz_format("%.*s", (int)(to - i), to > i ? x.text.data + i : "");
        written_free(&some);
        if ((to > i || n == 3) && *end == NULL)
            return MEZZO_ERR_MEMORY;
    }
    return MEZZO_OK;
}

mezzo_status mz_chat_find_end(const mezzo_tokenizer *tok, char **end) {
    mz_json_begin();
    json_t *told = json_pack("[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "x", "role",
                             "assistant", "content", "4f9c1e", "role", "user", "content", "x");
    *end = NULL;
    if (told == NULL)
        return mz_fail(MEZZO_ERR_MEMORY, "no memory for a conversation");
    mezzo_status status = find_end(tok, told, end);
    json_decref(told);
    return status;
}

// --- exports -------------------------------------------------------------------------------------------------------
static mezzo_status write_config(const mz_chat *chat, const char *folder, const char *reader) {
    MZ_SCOPED(mz_json_free_at) json_t *object = mz_json_new();
    MEZZO_TRY(object != NULL ? mz_chat_to_json(chat, object) : MEZZO_ERR_MEMORY);
    if (reader != NULL && json_object_set_new(object, "tokenizer_class", json_string(reader)) != 0)
        MEZZO_TRY(mz_fail(MEZZO_ERR_MEMORY, "no memory for tokenizer_config.json"));
    if (json_object_size(object) > 0)
        MEZZO_TRY(mz_json_save(mz_path_of("%s/tokenizer_config.json", folder).text, object));
    return MEZZO_OK;
}

static int32_t special_named(const mezzo_tokenizer *tok, const char *text) {
    return text != NULL ? special(tok, text, strlen(text)) : -1;
}

mezzo_status mz_chat_generation(const mezzo_tokenizer *tok, json_t **out) {
    char *end = NULL;
    mezzo_status status = MEZZO_OK;
    if (tok->chat.source != NULL) // the template may refuse this test conversation; then the end is unknown
        status = mz_chat_find_end(tok, &end);
    const int32_t bos = special_named(tok, tok->chat.bos), eos = special_named(tok, tok->chat.eos);
    const int32_t stop = status == MEZZO_OK ? special_named(tok, end) : -1;
    *out = status != MEZZO_ERR_MEMORY ? mz_json_new() : NULL;
    if (status == MEZZO_OK && stop < 0 && end != NULL && end[0] != '\0') // it is a word of the text, not a token
        (void)json_object_set_new(*out, "stop_strings", json_pack("[s]", end));
    mz_free(end);
    if (status == MEZZO_ERR_MEMORY)
        return status;
    if (bos >= 0)
        (void)json_object_set_new(*out, "bos_token_id", json_integer(bos));
    if (stop >= 0 && eos >= 0 && stop != eos)
        (void)json_object_set_new(*out, "eos_token_id", json_pack("[i, i]", stop, eos));
    else if (stop >= 0 || eos >= 0)
        (void)json_object_set_new(*out, "eos_token_id", json_integer(stop >= 0 ? stop : eos));
    return *out != NULL && !mz_json_ran_out() ? MEZZO_OK : mz_fail(MEZZO_ERR_MEMORY, "no memory for how texts end");
}

mezzo_status mz_chat_write(const mezzo_tokenizer *tok, const char *folder, const char *reader) {
    MEZZO_TRY(write_config(&tok->chat, folder, reader));
    MZ_SCOPED(mz_json_free_at) json_t *generation = NULL;
    const mz_path path = mz_path_of("%s/generation_config.json", folder);
    MEZZO_TRY(mz_path_exists(path.text) ? MEZZO_OK : mz_chat_generation(tok, &generation));
    if (json_object_size(generation) > 0)
        MEZZO_TRY(mz_json_save(path.text, generation));
    return MEZZO_OK;
}
