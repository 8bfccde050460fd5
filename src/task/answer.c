#include "task/answer.h"

#include <ctype.h>

#include "data/chat.h"
#include "data/tokenizer.h"
#include "io/json.h"

enum { ENDS = 2 };

// Holds an answer during output: it loses white space at its beginning, and goes up to a text that ends it.
typedef struct outgoing {
    mezzo_text_fn write;
    void *user;
    const char *ends[ENDS]; // NULL or "": there is none
    mz_text held;           // text that waits, because it may be the beginning of an end
    bool begun, over;
} outgoing;

static void hand_on(outgoing *a, int index, size_t n) {
    size_t from = 0;
    while (!a->begun && from < n && isspace((unsigned char)a->held.data[from]))
        from++;
    if (n > from) {
        a->begun = true;
        a->write(a->user, index, a->held.data + from, n - from);
    }
    memmove(a->held.data, a->held.data + n, a->held.len - n + 1);
    a->held.len -= n;
}

static bool ends_at(const outgoing *a, size_t i) {
    for (size_t k = 0; k < ENDS; k++) {
        const size_t n = a->ends[k] != NULL ? strlen(a->ends[k]) : 0;
        if (n > 0 && i + n <= a->held.len && memcmp(a->held.data + i, a->ends[k], n) == 0)
            return true;
    }
    return false;
}

static void hear(void *user, int index, const char *text, size_t bytes) {
    outgoing *a = user;
    size_t longest = 1;
    mz_text_add(&a->held, text, bytes);
    if (a->over || a->held.status != MEZZO_OK || a->held.len == 0)
        return;
    for (size_t i = 0; i < a->held.len && !a->over; i++)
        if (ends_at(a, i)) {
            hand_on(a, index, i);
            a->over = true;
        }
    for (size_t k = 0; k < ENDS; k++)
        if (a->ends[k] != NULL && strlen(a->ends[k]) > longest)
            longest = strlen(a->ends[k]);
    if (!a->over && a->held.len >= longest)
        hand_on(a, index, a->held.len - (longest - 1));
}

// --- the prompt ----------------------------------------------------------------------------------------------------
static bool is_system(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role != NULL && strcmp(role, "system") == 0;
}

// Encodes the system's message and the messages from `first` on.
static mezzo_status encode_from(const mezzo_tokenizer *tok, const json_t *messages, size_t first, mz_chat_tokens *out) {
    const json_t *head = json_array_get(messages, 0);
    MZ_SCOPED(mz_json_free_at) json_t *some = json_array();
    json_t *message;
    bool fits = some != NULL;
    size_t i;
    if (first > 0 && is_system(head))
        fits = fits && json_array_append(some, (json_t *)head) == 0;
    json_array_foreach(messages, i, message) if (i >= first) fits = fits && json_array_append(some, message) == 0;
    out->n = 0;
    return fits ? mz_chat_encode(tok, "the conversation", some, true, out)
                : mz_fail(MEZZO_ERR_MEMORY, "no memory for a conversation");
}

static mezzo_status make_prompt(const mz_sampler *s, const mz_sample_draw *d, mz_chat_tokens *out) {
    const size_t count = json_array_size(d->messages), context = (size_t)s->length;
    const size_t length = d->length > 0 ? (size_t)d->length : 1, room = length < context / 4 ? length : context / 4;
    size_t *first = &d->answer->first;
    for (;;) {
        MEZZO_TRY(encode_from(s->tokenizer, d->messages, *first, out));
        if (out->n + room <= context)
            return MEZZO_OK;
        const size_t next = *first == 0 && is_system(json_array_get(d->messages, 0)) ? 3 : *first + 2;
        if (next >= count)
            break;
        *first = next;
    }
    if (out->n < context)
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_INVALID,
                   "the message takes %zu tokens with its template, and the model's context is %zu tokens: shorten it",
                   out->n, context);
}

mezzo_status mz_answer_draw(mz_sampler *s, const mz_sample_draw *d, const volatile sig_atomic_t *stop,
                            mezzo_text_fn write, void *user) {
    const mz_draw how = {.temperature = d->temperature,
                         .top_p = d->top_p,
                         .top_k = d->top_k,
                         .seed = d->seed,
                         .index = d->index,
                         .same_weights = true};
    outgoing a = {.write = write, .user = user, .ends = {NULL, s->tokenizer->chat.eos}};
    mz_chat_tokens prompt = {0};
    char *end = NULL;
    mezzo_status status = make_prompt(s, d, &prompt);
    if (status == MEZZO_OK)
        status = mz_chat_find_end(s->tokenizer, &end);
    if (status == MEZZO_OK) {
        const int64_t room = s->length - (int64_t)prompt.n + 1; // the model does not read the last token
        mz_draw until = how;
        a.ends[0] = end;
        until.enough = &a.over;
        write(user, d->which, "", 0); // because an answer may be empty
        status = mz_sampler_run_on(s, prompt.tokens, prompt.n, d->length < room ? d->length : room, until, d->which,
                                   stop, hear, &a);
    }
    if (status == MEZZO_OK && !a.over && a.held.len > 0)
        hand_on(&a, d->which, a.held.len);
    if (status == MEZZO_OK)
        status = a.held.status;
    d->answer->prompt = (int64_t)prompt.n;
    d->answer->ended = a.over;
    mz_text_free(&a.held);
    mz_chat_tokens_free(&prompt);
    mz_free(end);
    return status;
}
