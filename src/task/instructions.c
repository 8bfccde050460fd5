#include "task/instructions.h"

#include <math.h>

#include "io/file.h"
#include "io/json.h"

// Philox's `tensor` word of these draws: no loader's, which count parts from 0xDA7A0000 on.
#define PHILOX_INSTRUCTIONS 0xDA7B0000u

typedef struct example {
    uint64_t begin, end; // into tokens
} example;

struct mz_instructions {
    int32_t *tokens;
    unsigned char *counts; // per token: the loss counts it as a target
    size_t n, cap_tokens, cap_counts;
    example *examples;
    size_t count, cap;
};

bool mz_is_instructions(const char *path) {
    static const char suffix[] = ".jsonl";
    size_t n = path != NULL ? strlen(path) : 0, s = sizeof suffix - 1;
    return n > s && strcmp(path + n - s, suffix) == 0;
}

void mz_instructions_free(mz_instructions *x) {
    if (x == NULL)
        return;
    mz_free(x->tokens);
    mz_free(x->counts);
    mz_free(x->examples);
    mz_free(x);
}

uint64_t mz_instructions_count(const mz_instructions *x) {
    return x->count;
}

// --- reading -------------------------------------------------------------------------------------------------------
static mezzo_status add_text(mz_instructions *x, const mezzo_tokenizer *tokenizer, const char *text, bool counts) {
    size_t bytes = strlen(text), n = 0;
    MEZZO_TRY(MZ_RESERVE(x->tokens, x->cap_tokens, x->n + bytes + 1));
    MEZZO_TRY(MZ_RESERVE(x->counts, x->cap_counts, x->n + bytes + 1));
    MEZZO_TRY(mezzo_tokenizer_encode(tokenizer, text, bytes, x->tokens + x->n, &n));
    memset(x->counts + x->n, counts, n);
    x->n += n;
    return MEZZO_OK;
}

static mezzo_status add_end(mz_instructions *x, const mezzo_tokenizer *tokenizer) {
    if (strcmp(mezzo_tokenizer_kind(tokenizer), "gpt2") != 0)
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(x->tokens, x->cap_tokens, x->n + 1));
    MEZZO_TRY(MZ_RESERVE(x->counts, x->cap_counts, x->n + 1));
    x->tokens[x->n] = mezzo_tokenizer_vocab(tokenizer) - 1; // <|endoftext|>
    x->counts[x->n++] = 1;
    return MEZZO_OK;
}

static mezzo_status add_message(mz_instructions *x, const mezzo_tokenizer *tokenizer, const char *where,
                                const json_t *message) {
    const char *role, *content;
    if (!json_is_object(message))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: a message is no object with \"role\" and \"content\"", where);
    MEZZO_TRY(mz_json_get_string(where, message, "role", &role));
    MEZZO_TRY(mz_json_get_string(where, message, "content", &content));
    bool answer = strcmp(role, "assistant") == 0;
    if (!answer && strcmp(role, "user") != 0 && strcmp(role, "system") != 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: the role \"%.40s\" is none of system, user, assistant", where, role);
    char *head = mz_format(MZ_CHAT_BEGIN "%s\n", role);
    mezzo_status status = head == NULL ? MEZZO_ERR_MEMORY : add_text(x, tokenizer, head, false);
    mz_free(head);
    MEZZO_TRY(status);
    MEZZO_TRY(add_text(x, tokenizer, content, answer));
    return add_text(x, tokenizer, MZ_CHAT_END, answer);
}

static mezzo_status add_record(mz_instructions *x, const mezzo_tokenizer *tokenizer, const char *where,
                               const json_t *record) {
    const json_t *messages = json_object_get(record, "messages"), *message;
    const char *prompt, *completion;
    size_t i;
    MEZZO_TRY(MZ_RESERVE(x->examples, x->cap, x->count + 1));
    x->examples[x->count].begin = x->n;
    if (messages != NULL) {
        if (!json_is_array(messages))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: \"messages\" is no list", where);
        json_array_foreach(messages, i, message) MEZZO_TRY(add_message(x, tokenizer, where, message));
    } else if (json_object_get(record, "prompt") != NULL) {
        MEZZO_TRY(mz_json_get_string(where, record, "prompt", &prompt));
        MEZZO_TRY(mz_json_get_string(where, record, "completion", &completion));
        MEZZO_TRY(add_text(x, tokenizer, prompt, false));
        MEZZO_TRY(add_text(x, tokenizer, completion, true));
        MEZZO_TRY(add_end(x, tokenizer));
    } else {
        return mz_fail(MEZZO_ERR_FORMAT, "%s: a record is {\"prompt\": …, \"completion\": …} or {\"messages\": […]}",
                       where);
    }
    x->examples[x->count++].end = x->n;
    return MEZZO_OK;
}

static mezzo_status read_line(mz_instructions *x, const mezzo_tokenizer *tokenizer, const char *path, long long number,
                              const char *line, size_t n) {
    char where[512];
    json_t *record = NULL;
    snprintf(where, sizeof where, "%.400s:%lld", path, number);
    if (strspn(line, " \t\r") == n)
        return MEZZO_OK;
    MEZZO_TRY(mz_json_parse(where, line, n, MZ_JSON_DEPTH, &record));
    mezzo_status status = json_is_object(record) ? add_record(x, tokenizer, where, record)
                                                 : mz_fail(MEZZO_ERR_FORMAT, "%s: no object", where);
    json_decref(record);
    return status == MEZZO_ERR_INVALID ? mz_context(status, "%s", where) : status;
}

static mezzo_status read_file(mz_instructions *x, const char *path, const mezzo_tokenizer *tokenizer) {
    char *text;
    size_t size, at = 0;
    long long number = 0;
    mezzo_status status = MEZZO_OK;
    MEZZO_TRY(mz_file_read(path, (size_t)2 << 30, &text, &size));
    while (at < size && status == MEZZO_OK) {
        char *end = memchr(text + at, '\n', size - at);
        size_t n = end != NULL ? (size_t)(end - text) - at : size - at;
        status = read_line(x, tokenizer, path, ++number, text + at, n);
        at += n + 1;
    }
    mz_free(text);
    return status;
}

// The examples that are asked for stay; their tokens too.
static void keep(mz_instructions *x, double from, double to) {
    size_t first = (size_t)floor(from * (double)x->count + 0.5), last = (size_t)floor(to * (double)x->count + 0.5);
    x->count = last > first ? last - first : 0;
    memmove(x->examples, x->examples + first, x->count * sizeof *x->examples);
    x->n = 0;
    for (size_t i = 0; i < x->count; i++)
        x->n += x->examples[i].end - x->examples[i].begin;
}

mezzo_status mz_instructions_open(const char *path, const mezzo_tokenizer *tokenizer, double from, double to,
                                  mz_instructions **out) {
    *out = NULL;
    mz_instructions *x = mz_alloc(1, sizeof *x);
    if (x == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = read_file(x, path, tokenizer);
    if (status == MEZZO_OK && x->count == 0)
        status = mz_fail(MEZZO_ERR_INVALID, "%s: no record in it", path);
    if (status != MEZZO_OK) {
        mz_instructions_free(x);
        return status;
    }
    keep(x, from, to);
    *out = x;
    return MEZZO_OK;
}

// --- batches -------------------------------------------------------------------------------------------------------
uint64_t mz_instructions_batches(const mz_instructions *x, int64_t rows) {
    uint64_t n = (x->count + (uint64_t)rows - 1) / (uint64_t)rows;
    return n > 0 ? n : 1;
}

uint64_t mz_instructions_longer(const mz_instructions *x, int64_t length) {
    uint64_t n = 0;
    for (size_t i = 0; i < x->count; i++)
        n += x->examples[i].end - x->examples[i].begin > (uint64_t)length + 1;
    return n;
}

static uint64_t pick(const mz_instructions *x, const mz_instruction_order *o, uint64_t row) {
    uint32_t words[4];
    mz_philox((mz_philox_key){o->seed, 0, PHILOX_INSTRUCTIONS + o->stream}, row, words);
    return (uint64_t)(((unsigned __int128)((uint64_t)words[1] << 32 | words[0]) * x->count) >> 64);
}

void mz_instructions_batch(const mz_instructions *x, const mz_instruction_order *o, uint64_t k, int32_t *tokens,
                           int32_t *targets) {
    const uint64_t rows = (uint64_t)o->rows, length = (uint64_t)o->length;
    if (!o->random)
        k %= mz_instructions_batches(x, o->rows);
    memset(tokens, 0, rows * length * sizeof *tokens);
    memset(targets, -1, rows * length * sizeof *targets);
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t which = o->random ? pick(x, o, k * rows + r) : k * rows + r;
        if (which >= x->count)
            continue;
        const example *e = &x->examples[which];
        uint64_t n = e->end - e->begin < length ? e->end - e->begin : length;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = e->begin + i;
            tokens[r * length + i] = x->tokens[at];
            if (at + 1 < e->end && x->counts[at + 1])
                targets[r * length + i] = x->tokens[at + 1];
        }
    }
}

char *mz_chat_prompt(const char *message) {
    return mz_format(MZ_CHAT_BEGIN "user\n%s" MZ_CHAT_END MZ_CHAT_BEGIN "assistant\n", message);
}
