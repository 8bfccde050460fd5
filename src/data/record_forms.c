#include "data/record_forms.h"

#include "io/json.h"

const mz_record_form mz_record_forms[MZ_RECORD_FORMS] = {
#define RECORD_FORM(name, kind, key, answer, context) {#name, MZ_RECORD_##kind, key, answer, context},
#include "data/record_forms.def"
};

mezzo_status mz_record_form_named(const char *name, const mz_record_form **out) {
    MZ_SCOPED(mz_text_free) mz_text names = {0};
    *out = NULL;
    if (name == NULL || name[0] == '\0' || strcmp(name, "auto") == 0)
        return MEZZO_OK;
    *out = MZ_FIND(mz_record_forms, MZ_RECORD_FORMS, name, name);
    if (*out != NULL)
        return MEZZO_OK;
    for (size_t i = 0; i < MZ_RECORD_FORMS; i++)
        mz_text_addf(&names, ", %s", mz_record_forms[i].name);
    MEZZO_TRY(names.status);
    return mz_fail(MEZZO_ERR_INVALID, "data.form is %s: choose one of auto%s", name, names.data);
}

void mz_record_release(mz_record_content *content) {
    json_decref(content->messages);
    *content = (mz_record_content){0};
}

// --- which form ----------------------------------------------------------------------------------------------------
static mezzo_status refuse_form(const char *where) {
    MZ_SCOPED(mz_text_free) mz_text keys = {0};
    for (size_t i = 0; i < MZ_RECORD_FORMS; i++) {
        const mz_record_form *f = &mz_record_forms[i];
        mz_text_addf(&keys, "%s%s%s%s", i > 0 ? ", " : "", f->key, f->answer != NULL ? " and " : "",
                     f->answer != NULL ? f->answer : "");
    }
    MEZZO_TRY(keys.status);
    return mz_fail(MEZZO_ERR_FORMAT, "%s: a record has one of these keys: %s", where, keys.data);
}

// Finds the form of a record. For a record with a form's first key alone the error names the second one.
static mezzo_status find_form(const char *where, const json_t *record, const mz_record_form **out) {
    const mz_record_form *half = NULL;
    for (size_t i = 0; i < MZ_RECORD_FORMS; i++) {
        const mz_record_form *f = &mz_record_forms[i];
        if (json_object_get(record, f->key) == NULL)
            continue;
        *out = f;
        if (f->answer == NULL || json_object_get(record, f->answer) != NULL)
            return MEZZO_OK;
        half = half != NULL ? half : f;
    }
    *out = half;
    return half != NULL ? MEZZO_OK : refuse_form(where);
}

// --- messages ------------------------------------------------------------------------------------------------------
// Returns the role for ShareGPT's name of it.
static const char *role_of(const char *from) {
    static const char *const names[][2] = {{"human", "user"},
                                           {"gpt", "assistant"},
                                           {"chatgpt", "assistant"},
                                           {"bot", "assistant"},
                                           {"model", "assistant"}};
    for (size_t i = 0; i < MZ_COUNT(names); i++)
        if (strcmp(from, names[i][0]) == 0)
            return names[i][1];
    return from;
}

// Joins "text", or [{"type": "text", "text": "text"}, …], whose texts follow each other.
static mezzo_status join_content(const char *where, const json_t *content, json_t **out) {
    mz_text joined = {0};
    const json_t *part;
    size_t i;
    *out = NULL;
    json_array_foreach(content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type")),
                   *text = json_string_value(json_is_string(part) ? part : json_object_get(part, "text"));
        if (text == NULL || (type != NULL && strcmp(type, "text") != 0)) {
            mz_text_free(&joined);
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s: a message's content has a part of the type \"%.40s\", and models read "
                           "text alone",
                           where,
                           type != NULL           ? type
                           : json_is_object(part) ? ""
                                                  : "no object");
        }
        mz_text_add(&joined, text, strlen(text));
    }
    mezzo_status status = joined.status;
    if (status == MEZZO_OK) {
        *out = json_string(joined.data != NULL ? joined.data : "");
        status = *out != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    }
    mz_text_free(&joined);
    return status;
}

static mezzo_status no_memory(const char *where) {
    return mz_fail(MEZZO_ERR_MEMORY, "%s: no memory for a record", where);
}

// Appends a message as a chat template reads it, with the other members of `like`. It takes over `content`.
static mezzo_status append(const char *where, const json_t *like, const char *role, json_t *content, bool counts,
                           json_t *to) {
    json_t *message = like != NULL ? json_copy((json_t *)like) : json_object();
    bool fits = message != NULL && json_object_set_new(message, "role", json_string(role)) == 0;
    fits = json_object_set_new(message, "content", content) == 0 && fits;
    if (!counts)
        fits = fits && json_object_set_new(message, "weight", json_integer(0)) == 0;
    return json_array_append_new(to, message) == 0 && fits ? MEZZO_OK : no_memory(where);
}

static mezzo_status append_text(const char *where, const char *role, const char *text, json_t *to) {
    return append(where, NULL, role, json_string(text), true, to);
}

static mezzo_status append_message(const char *where, const json_t *message, bool counts, json_t *to) {
    if (!json_is_object(message))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: a message is not an object with \"role\" and \"content\"", where);
    const bool shared = json_object_get(message, "from") != NULL && json_object_get(message, "role") == NULL;
    const char *role, *text, *key = shared ? "value" : "content";
    json_t *content = json_object_get(message, key), *joined;
    MEZZO_TRY(mz_json_get_string(where, message, shared ? "from" : "role", &role));
    if (!json_is_array(content)) {
        MEZZO_TRY(mz_json_get_string(where, message, key, &text));
        return append(where, message, role_of(role), json_incref(content), counts, to);
    }
    MEZZO_TRY(join_content(where, content, &joined));
    return append(where, message, role_of(role), joined, counts, to);
}

static mezzo_status append_list(const char *where, const char *key, const json_t *list, bool counts, json_t *to) {
    const json_t *message;
    size_t i;
    if (!json_is_array(list))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: \"%s\" is not a list", where, key);
    MEZZO_TRY(mz_json_refuse_marks(where, key, list));
    if (json_array_size(list) == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: \"%s\" is an empty list", where, key);
    json_array_foreach(list, i, message) MEZZO_TRY(append_message(where, message, counts, to));
    return MEZZO_OK;
}

// --- forms ---------------------------------------------------------------------------------------------------------
// Gets a text that may be missing, null or empty, which then is "".
static mezzo_status get_optional(const char *where, const json_t *record, const char *key, const char **out) {
    const json_t *value = key != NULL ? json_object_get(record, key) : NULL;
    *out = "";
    return value == NULL || json_is_null(value) ? MEZZO_OK : mz_json_get_string(where, record, key, out);
}

static mezzo_status append_system(const char *where, const json_t *record, json_t *to) {
    const char *text;
    MEZZO_TRY(get_optional(where, record, "system", &text));
    return text[0] != '\0' ? append_text(where, "system", text, to) : MEZZO_OK;
}

static mezzo_status parse_list(const char *where, const json_t *record, mz_record_content *out) {
    const mz_record_form *f = out->form;
    const json_t *list = json_object_get(record, f->key);
    const char *first = json_string_value(json_object_get(json_array_get(list, 0), "role"));
    if (first == NULL || strcmp(first, "system") != 0)
        MEZZO_TRY(append_system(where, record, out->messages));
    return append_list(where, f->key, list, true, out->messages);
}

static mezzo_status append_history(const char *where, const json_t *record, json_t *to) {
    const json_t *history = json_object_get(record, "history"), *turn;
    size_t i;
    if (history != NULL && !json_is_null(history) && !json_is_array(history))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: \"history\" is not a list", where);
    json_array_foreach(history, i, turn) {
        const char *ask = json_string_value(json_array_get(turn, 0)),
                   *answer = json_string_value(json_array_get(turn, 1));
        if (ask == NULL || answer == NULL || json_array_size(turn) != 2)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: element %zu of \"history\" is not [question, answer]", where, i + 1);
        MEZZO_TRY(append_text(where, "user", ask, to));
        MEZZO_TRY(append_text(where, "assistant", answer, to));
    }
    return MEZZO_OK;
}

static mezzo_status parse_turn(const char *where, const json_t *record, mz_record_content *out) {
    const mz_record_form *f = out->form;
    const char *ask, *answer, *context;
    MEZZO_TRY(mz_json_get_string(where, record, f->key, &ask));
    MEZZO_TRY(mz_json_get_string(where, record, f->answer, &answer));
    MEZZO_TRY(get_optional(where, record, f->context, &context));
    MEZZO_TRY(append_system(where, record, out->messages));
    MEZZO_TRY(append_history(where, record, out->messages));
    char *whole = mz_format("%s%s%s", ask, ask[0] != '\0' && context[0] != '\0' ? "\n" : "", context);
    if (whole == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = append_text(where, "user", whole, out->messages);
    mz_free(whole);
    return status == MEZZO_OK ? append_text(where, "assistant", answer, out->messages) : status;
}

static mezzo_status parse_pair(const char *where, const json_t *record, mz_record_content *out) {
    const mz_record_form *f = out->form;
    const json_t *ask = json_object_get(record, f->key), *answer = json_object_get(record, f->answer);
    if (json_is_array(ask) && json_is_array(answer)) {
        MEZZO_TRY(append_list(where, f->key, ask, false, out->messages));
        return append_list(where, f->answer, answer, true, out->messages);
    }
    MEZZO_TRY(mz_json_get_string(where, record, f->key, &out->prompt));
    return mz_json_get_string(where, record, f->answer, &out->answer);
}

mezzo_status mz_record_parse(const char *where, const json_t *record, const mz_record_form *form,
                             mz_record_content *out) {
    *out = (mz_record_content){.form = form};
    if (!json_is_object(record))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: no object", where);
    if (form == NULL)
        MEZZO_TRY(find_form(where, record, &out->form));
    out->messages = json_array();
    if (out->messages == NULL)
        return no_memory(where);
    mezzo_status status = MEZZO_OK;
    switch (out->form->kind) {
    case MZ_RECORD_LIST:
        status = parse_list(where, record, out);
        break;
    case MZ_RECORD_TURN:
        status = parse_turn(where, record, out);
        break;
    case MZ_RECORD_PAIR:
        status = parse_pair(where, record, out);
        break;
    case MZ_RECORD_TEXT:
        status = mz_json_get_string(where, record, out->form->key, &out->answer);
        break;
    }
    if (status == MEZZO_OK && out->answer != NULL) {
        json_decref(out->messages);
        out->messages = NULL;
    }
    return status;
}
