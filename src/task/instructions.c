#include "task/instructions.h"

#include <math.h>

#include "data/chat.h"
#include "io/file.h"
#include "io/json.h"

// Philox's `tensor` word of these draws: no loader's, which count parts from 0xDA7A0000 on.
#define PHILOX_INSTRUCTIONS 0xDA7B0000u

typedef struct example {
    uint64_t begin, end; // into tokens
} example;

struct mz_instructions {
    char *path;
    mz_chat_tokens all;
    example *examples;
    size_t count, cap;
    bool converse;
};

bool mz_is_instructions(const char *path) {
    const char *dot = path != NULL ? strrchr(path, '.') : NULL;
    return dot != NULL && dot > path && (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".json") == 0);
}

void mz_instructions_free(mz_instructions *x) {
    if (x == NULL)
        return;
    mz_chat_tokens_free(&x->all);
    mz_free(x->examples);
    mz_free(x->path);
    mz_free(x);
}

bool mz_instructions_converse(const mz_instructions *x) {
    return x->converse;
}

uint64_t mz_instructions_count(const mz_instructions *x) {
    return x->count;
}

mezzo_data_mark mz_instructions_mark(const mz_instructions *x) {
    mezzo_data_mark mark = {0};
    for (size_t i = 0; i < x->count; i++) {
        const example *e = &x->examples[i];
        const uint64_t n = e->end - e->begin;
        mark.bytes += n * (sizeof *x->all.tokens + sizeof *x->all.counts);
        mark.crc32c = mz_crc32c(mark.crc32c, &n, sizeof n);
        mark.crc32c = mz_crc32c(mark.crc32c, x->all.tokens + e->begin, n * sizeof *x->all.tokens);
        mark.crc32c = mz_crc32c(mark.crc32c, x->all.counts + e->begin, n * sizeof *x->all.counts);
    }
    return mark;
}

// --- reading -------------------------------------------------------------------------------------------------------
static mezzo_status add_pair(mz_instructions *x, const mezzo_tokenizer *tokenizer, const char *prompt,
                             const char *completion) {
    MEZZO_TRY(mz_chat_tokens_add(&x->all, tokenizer, prompt, strlen(prompt), MZ_PLACE_BEGINS, false));
    MEZZO_TRY(mz_chat_tokens_add(&x->all, tokenizer, completion, strlen(completion), MZ_PLACE_CONTINUES, true));
    return mz_chat_end_token(&x->all, tokenizer);
}

static mezzo_status add_record(mz_instructions *x, const mezzo_tokenizer *tokenizer, const char *where,
                               const json_t *record) {
    const json_t *messages = json_object_get(record, "messages");
    const char *prompt, *completion;
    MEZZO_TRY(MZ_RESERVE(x->examples, x->cap, x->count + 1));
    x->examples[x->count].begin = x->all.n;
    if (messages != NULL) {
        if (!json_is_array(messages))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: \"messages\" is not a list", where);
        MEZZO_TRY(mz_json_refuse_marks(where, "messages", messages));
        x->converse = true;
        MEZZO_TRY(mz_chat_encode(tokenizer, where, messages, false, &x->all));
    } else if (json_object_get(record, "prompt") != NULL) {
        MEZZO_TRY(mz_json_get_string(where, record, "prompt", &prompt));
        MEZZO_TRY(mz_json_get_string(where, record, "completion", &completion));
        mezzo_status status = add_pair(x, tokenizer, prompt, completion);
        MEZZO_TRY(status == MEZZO_ERR_INVALID ? mz_context(status, "%s", where) : status);
    } else {
        return mz_fail(MEZZO_ERR_FORMAT, "%s: a record is {\"prompt\": …, \"completion\": …} or {\"messages\": […]}",
                       where);
    }
    x->examples[x->count++].end = x->all.n;
    return MEZZO_OK;
}

static mezzo_status check_stop(const char *where, const volatile sig_atomic_t *stop) {
    return stop != NULL && *stop ? mz_fail(MEZZO_ERR_INTERRUPTED, "%s: stopped while it was tokenized", where)
                                 : MEZZO_OK;
}

static mezzo_status add_value(mz_instructions *x, const mezzo_tokenizer *tokenizer, const char *where,
                              const json_t *record) {
    return json_is_object(record) ? add_record(x, tokenizer, where, record)
                                  : mz_fail(MEZZO_ERR_FORMAT, "%s: no object", where);
}

// [record, …]: a list of records as one JSON value.
static mezzo_status read_list(mz_instructions *x, const mezzo_tokenizer *tokenizer, const char *path, const char *text,
                              size_t size, const volatile sig_atomic_t *stop) {
    mezzo_status status = MEZZO_OK;
    json_t *list, *record;
    size_t i;
    char where[512];
    MEZZO_TRY(mz_json_parse(path, text, size, MZ_JSON_DEPTH + 1, &list));
    json_array_foreach(list, i, record) {
        snprintf(where, sizeof where, "%.400s: record %zu", path, i + 1);
        MEZZO_TRY_GOTO(status, check_stop(where, stop));
        MEZZO_TRY_GOTO(status, add_value(x, tokenizer, where, record));
    }
fail:
    json_decref(list);
    return status;
}

// A record a line.
static mezzo_status read_lines(mz_instructions *x, const mezzo_tokenizer *tokenizer, const char *path, const char *text,
                               size_t size, const volatile sig_atomic_t *stop) {
    mezzo_status status = MEZZO_OK;
    long long number = 0;
    char where[512];
    for (size_t at = 0, n; at < size && status == MEZZO_OK; at += n + 1) {
        const char *line = text + at, *end = memchr(line, '\n', size - at);
        json_t *record = NULL;
        n = end != NULL ? (size_t)(end - line) : size - at;
        snprintf(where, sizeof where, "%.400s:%lld", path, ++number);
        status = check_stop(where, stop);
        if (status != MEZZO_OK || strspn(line, " \t\r") == n)
            continue;
        status = mz_json_parse(where, line, n, MZ_JSON_DEPTH, &record);
        if (status == MEZZO_OK)
            status = add_value(x, tokenizer, where, record);
        json_decref(record);
    }
    return status;
}

static mezzo_status read_file(mz_instructions *x, const char *path, const mezzo_tokenizer *tokenizer,
                              const volatile sig_atomic_t *stop) {
    char *text;
    size_t size;
    const char *dot = strrchr(path, '.');
    MEZZO_TRY(mz_file_read_text(path, (size_t)2 << 30, &text, &size));
    const bool list = dot != NULL && strcmp(dot, ".json") == 0 && text[strspn(text, " \t\r\n")] == '[';
    mezzo_status status = (list ? read_list : read_lines)(x, tokenizer, path, text, size, stop);
    mz_free(text);
    return status;
}

// The examples that are asked for stay; their tokens too.
static void keep(mz_instructions *x, double from, double to) {
    size_t first = (size_t)floor(from * (double)x->count + 0.5), last = (size_t)floor(to * (double)x->count + 0.5);
    x->count = last > first ? last - first : 0;
    memmove(x->examples, x->examples + first, x->count * sizeof *x->examples);
    x->all.n = 0;
    for (size_t i = 0; i < x->count; i++)
        x->all.n += x->examples[i].end - x->examples[i].begin;
}

mezzo_status mz_instructions_open(const char *path, const mezzo_tokenizer *tokenizer, double from, double to,
                                  const volatile sig_atomic_t *stop, mz_instructions **out) {
    *out = NULL;
    mz_instructions *x = mz_alloc(1, sizeof *x);
    if (x == NULL)
        return MEZZO_ERR_MEMORY;
    x->path = mz_strdup(path);
    mezzo_status status = x->path != NULL ? read_file(x, path, tokenizer, stop) : MEZZO_ERR_MEMORY;
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

uint64_t mz_instructions_targets(const mz_instructions *x, int64_t length) {
    uint64_t n = 0;
    for (size_t i = 0; i < x->count; i++) {
        const example *e = &x->examples[i];
        const uint64_t end = e->end - e->begin <= (uint64_t)length ? e->end : e->begin + (uint64_t)length + 1;
        n += end > e->begin && memchr(x->all.counts + e->begin + 1, true, end - e->begin - 1) != NULL;
    }
    return n;
}

const char *mz_instructions_path(const mz_instructions *x) {
    return x->path;
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
            tokens[r * length + i] = x->all.tokens[at];
            if (at + 1 < e->end && x->all.counts[at + 1])
                targets[r * length + i] = x->all.tokens[at + 1];
        }
    }
}
