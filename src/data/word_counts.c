// Counts words. Texts are read one after another, in pieces that end between two words; every thread counts the words
// of a piece in a table of its own and then adds them to the shards, each of which has a lock.
#include "data/word_counts.h"

#include <omp.h>
#include <sys/stat.h>

#include "data/bpe.h"
#include "data/record_forms.h"
#include "data/record_split.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"

#define PIECE ((size_t)1 << 20) // bytes

void mz_word_table_free(mz_word_table *table) {
    MZ_FREE(table->bytes, table->slots);
    *table = (mz_word_table){0};
}

void mz_word_counts_free(mz_word_counts *counts) {
    for (size_t i = 0; i < MZ_WORD_SHARDS; i++)
        mz_word_table_free(&counts->shards[i]);
}

static mz_word_count *find_slot(const mz_word_table *t, const char *word, size_t n, uint32_t hash) {
    for (size_t at = hash & (t->size - 1);; at = (at + 1) & (t->size - 1)) {
        mz_word_count *s = &t->slots[at];
        if (s->count == 0 || (s->hash == hash && s->n == n && memcmp(t->bytes + s->at, word, n) == 0))
            return s;
    }
}

static mezzo_status grow_table(mz_word_table *t) {
    const mz_word_table old = *t;
    mz_word_count *slots;
    MEZZO_TRY(MZ_NEW(slots, old.size > 0 ? 2 * old.size : 1024));
    t->slots = slots;
    t->size = old.size > 0 ? 2 * old.size : 1024;
    for (size_t i = 0; i < old.size; i++)
        if (old.slots[i].count > 0)
            *find_slot(t, t->bytes + old.slots[i].at, old.slots[i].n, old.slots[i].hash) = old.slots[i];
    mz_free(old.slots);
    return MEZZO_OK;
}

static mezzo_status add_word(mz_word_table *t, const char *word, size_t n, uint32_t hash, uint64_t count) {
    if (2 * (t->n + 1) > t->size)
        MEZZO_TRY(grow_table(t));
    mz_word_count *slot = find_slot(t, word, n, hash);
    if (slot->count == 0) {
        MEZZO_TRY(MZ_RESERVE(t->bytes, t->cap_bytes, t->n_bytes + n));
        memcpy(t->bytes + t->n_bytes, word, n);
        *slot = (mz_word_count){.at = t->n_bytes, .n = (uint32_t)n, .hash = hash};
        t->n_bytes += n;
        t->n++;
    }
    slot->count += count;
    return MEZZO_OK;
}

// --- pieces --------------------------------------------------------------------------------------------------------
typedef struct piece {
    char *text;
    size_t n, cap;
    size_t *ends; // where its texts end
    size_t texts, cap_ends;
    mz_word_table words;
    mz_word_room room;
    mezzo_status status;
    char *message; // of a failure, because messages belong to threads; NULL: memory ran out
} piece;

typedef struct counting {
    const mz_word_sources *sources;
    mz_word_counts *out;
    omp_lock_t locks[MZ_WORD_SHARDS];
    piece *pieces; // [threads]
    size_t filled;
    uint64_t expected; // bytes of all files
} counting;

static mezzo_status count_word(void *user, const char *word, size_t n) {
    if (n > UINT32_MAX)
        return mz_fail(MEZZO_ERR_INVALID, "a word of %zu bytes", n);
    return add_word(user, word, n, (uint32_t)mz_bpe_hash(word, n), 1);
}

// Counts a text as a tokenizer reads it: each longest run of bytes that are not UTF-8 is a word.
static mezzo_status count_text(const counting *c, piece *p, const char *text, size_t n) {
    for (size_t at = 0, end = 0; at < n; at = end) {
        end = mz_valid_until(text, at, n);
        if (end > at) {
            MEZZO_TRY(
                mz_words(c->sources->steps, &p->room, text + at, end - at, MZ_PLACE_BEGINS, count_word, &p->words));
        } else {
            end = mz_invalid_until(text, at, n);
            MEZZO_TRY(count_word(&p->words, text + at, end - at));
        }
    }
    return MEZZO_OK;
}

static mezzo_status add_to_shards(counting *c, const mz_word_table *words) {
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; i < words->size && status == MEZZO_OK; i++) {
        const mz_word_count *w = &words->slots[i];
        const uint32_t shard = w->hash >> 16 & (MZ_WORD_SHARDS - 1);
        if (w->count == 0)
            continue;
        omp_set_lock(&c->locks[shard]);
        status = add_word(&c->out->shards[shard], words->bytes + w->at, w->n, w->hash, w->count);
        omp_unset_lock(&c->locks[shard]);
    }
    return status;
}

static void count_piece(counting *c, piece *p) {
    p->status = MEZZO_OK;
    for (size_t i = 0, at = 0; i < p->texts && p->status == MEZZO_OK; at = p->ends[i++])
        p->status = count_text(c, p, p->text + at, p->ends[i] - at);
    if (p->status == MEZZO_OK)
        p->status = add_to_shards(c, &p->words);
    if (p->status != MEZZO_OK)
        p->message = mz_strdup(mezzo_error_message());
    mz_word_table_free(&p->words);
}

static mezzo_status count_norm_blocks(counting *c) {
    static const char what[] = "KB of text counted";
    const size_t n = c->filled;
    c->filled = 0;
    if (c->sources->stop != NULL && *c->sources->stop != 0)
        return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped after %llu bytes of text were counted",
                       (unsigned long long)c->out->bytes);
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->sources->threads) if (n > 1)
    for (size_t i = 0; i < n; i++)
        count_piece(c, &c->pieces[i]);
    for (size_t i = 0; i < n; i++) {
        const piece *p = &c->pieces[i];
        if (p->status != MEZZO_OK)
            return mz_fail(p->status, "%s", p->message != NULL ? p->message : "out of memory while counting words");
        c->out->bytes += p->n;
    }
    if (c->out->bytes < c->expected) // a compressed text has more bytes than its file
        mz_work(what, (int64_t)(c->out->bytes / 1000), (int64_t)(c->expected / 1000) + 1);
    return MEZZO_OK;
}

static mezzo_status end_text(piece *p) {
    MEZZO_TRY(MZ_RESERVE(p->ends, p->cap_ends, p->texts + 1));
    p->ends[p->texts++] = p->n;
    return MEZZO_OK;
}

static piece *begin_piece(counting *c) {
    piece *p = &c->pieces[c->filled++];
    p->n = p->texts = 0;
    return p;
}

static mezzo_status end_piece(counting *c) {
    return c->filled == (size_t)c->sources->threads ? count_norm_blocks(c) : MEZZO_OK;
}

// --- plain texts ---------------------------------------------------------------------------------------------------
// Reads on until the piece has a place to cut, or the text ends.
static mezzo_status fill_piece(const counting *c, mz_reader *reader, piece *p, size_t *end, bool *over) {
    for (size_t size = PIECE;; size *= 2) {
        size_t got;
        if (size <= p->n)
            continue;
        MEZZO_TRY(MZ_RESERVE(p->text, p->cap, size + 1));
        MEZZO_TRY(mz_reader_read(reader, p->text + p->n, size - p->n, &got));
        p->n += got;
        *over = p->n < size;
        *end = *over ? p->n : mz_word_cut(p->text, 0, p->n, c->sources->gpt2);
        if (*over || *end < p->n)
            return MEZZO_OK;
    }
}

static mezzo_status read_text(counting *c, mz_reader *reader, mz_text *rest) {
    for (bool over = false; !over;) {
        piece *p = begin_piece(c);
        size_t end = 0;
        MEZZO_TRY(MZ_RESERVE(p->text, p->cap, rest->len + 1));
        if (rest->len > 0)
            memcpy(p->text, rest->data, rest->len);
        p->n = rest->len;
        MEZZO_TRY(fill_piece(c, reader, p, &end, &over));
        rest->len = 0;
        mz_text_add(rest, p->text + end, p->n - end);
        MEZZO_TRY(rest->status);
        p->n = end;
        MEZZO_TRY(end_text(p));
        MEZZO_TRY(end_piece(c));
    }
    c->out->texts++;
    return MEZZO_OK;
}

// --- records -------------------------------------------------------------------------------------------------------
static mezzo_status add_text(counting *c, piece *p, const char *text) {
    const size_t n = text != NULL ? strlen(text) : 0;
    if (n == 0)
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(p->text, p->cap, p->n + n));
    memcpy(p->text + p->n, text, n);
    p->n += n;
    c->out->texts++;
    return end_text(p);
}

static mezzo_status add_record(counting *c, piece *p, const char *where, const mz_record_span *span) {
    mz_record_content content;
    json_t *record;
    const json_t *message;
    size_t i;
    MEZZO_TRY(mz_json_parse(where, span->text, span->n, MZ_JSON_DEPTH, &record));
    mezzo_status status = mz_record_parse(where, record, NULL, &content);
    if (status == MEZZO_OK) {
        status = add_text(c, p, content.prompt);
        if (status == MEZZO_OK)
            status = add_text(c, p, content.answer);
        json_array_foreach(content.messages, i, message) if (status == MEZZO_OK) status =
            add_text(c, p, json_string_value(json_object_get(message, "content")));
        mz_record_release(&content);
    }
    json_decref(record);
    return status;
}

static mezzo_status read_records(counting *c, const char *path, mz_record_splitter *splitter) {
    for (bool over = false; !over;) {
        piece *p = begin_piece(c);
        while (p->n < PIECE && !over) {
            mz_record_span span;
            MEZZO_TRY(mz_record_splitter_next(splitter, &span));
            over = span.text == NULL;
            if (over)
                break;
            const mz_path where = mz_path_of("%s:%llu", path, (unsigned long long)span.line);
            if (span.too_long)
                return mz_fail(MEZZO_ERR_FORMAT, "%s: a record of more than %d bytes", where.text, MZ_RECORD_BYTES);
            MEZZO_TRY(add_record(c, p, where.text, &span));
        }
        MEZZO_TRY(end_piece(c));
    }
    return MEZZO_OK;
}

// --- files ---------------------------------------------------------------------------------------------------------
static bool has_records(const char *path) {
    size_t n = strlen(path);
    n -= n > 3 && strcmp(path + n - 3, ".gz") == 0 ? 3 : 0;
    return (n > 6 && memcmp(path + n - 6, ".jsonl", 6) == 0) || (n > 5 && memcmp(path + n - 5, ".json", 5) == 0);
}

static mezzo_status read_file(counting *c, const char *path) {
    mz_reader *reader;
    mz_record_splitter *splitter = NULL;
    mz_text rest = {0};
    MEZZO_TRY(mz_reader_open(path, &reader));
    if (has_records(path)) {
        MEZZO_TRY(mz_record_splitter_open(reader, &splitter));
        mezzo_status status = read_records(c, path, splitter);
        mz_record_splitter_close(splitter);
        return status;
    }
    mezzo_status status = read_text(c, reader, &rest);
    mz_text_free(&rest);
    mz_reader_close(reader);
    return status;
}

static mezzo_status expect_file(counting *c, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0)
        return mz_fail(MEZZO_ERR_INVALID, "cannot read %s: there is no such file or folder", mz_quote(path).text);
    c->expected += (uint64_t)info.st_size;
    return MEZZO_OK;
}

// Calls `each` for a file, or for all files of a folder in the order of names, except names that begin with a dot.
static mezzo_status walk(counting *c, const char *path, mezzo_status (*each)(counting *, const char *), int depth) {
    char **names;
    size_t n;
    if (!mz_path_is_dir(path))
        return each(c, path);
    if (depth == 32)
        return mz_fail(MEZZO_ERR_INVALID, "%s: folders are nested more than 32 deep", mz_quote(path).text);
    MEZZO_TRY(mz_dir_list(path, &names, &n));
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++)
        if (names[i][0] != '.')
            status = walk(c, mz_path_of("%s/%s", path, names[i]).text, each, depth + 1);
    mz_dir_list_free(names, n);
    return status;
}

static mezzo_status count_all(counting *c) {
    for (size_t i = 0; i < c->sources->n_paths; i++)
        MEZZO_TRY(walk(c, c->sources->paths[i], expect_file, 0));
    for (size_t i = 0; i < c->sources->n_paths; i++)
        MEZZO_TRY(walk(c, c->sources->paths[i], read_file, 0));
    MEZZO_TRY(count_norm_blocks(c));
    mz_work("KB of text counted", 1, 1);
    return c->out->bytes > 0 ? MEZZO_OK
                             : mz_fail(MEZZO_ERR_INVALID, "%s has no text to train a tokenizer on",
                                       mz_quote(c->sources->n_paths > 0 ? c->sources->paths[0] : "").text);
}

mezzo_status mz_words_count(const mz_word_sources *sources, mz_word_counts *out) {
    counting c = {.sources = sources, .out = out};
    *out = (mz_word_counts){0};
    MEZZO_TRY(MZ_NEW(c.pieces, sources->threads));
    for (size_t i = 0; i < MZ_WORD_SHARDS; i++)
        omp_init_lock(&c.locks[i]);
    const mezzo_status status = count_all(&c);
    for (size_t i = 0; i < MZ_WORD_SHARDS; i++)
        omp_destroy_lock(&c.locks[i]);
    for (int i = 0; i < sources->threads; i++) {
        piece *p = &c.pieces[i];
        MZ_FREE(p->text, p->ends, p->message);
        mz_word_room_free(&p->room);
        mz_word_table_free(&p->words);
    }
    mz_free(c.pieces);
    if (status != MEZZO_OK)
        mz_word_counts_free(out);
    return status;
}
