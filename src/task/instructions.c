#include "task/instructions.h"

#include <math.h>

#include "io/file.h"

// Philox's `tensor` word of these draws: no loader's, which count parts from 0xDA7A0000 on.
#define PHILOX_INSTRUCTIONS 0xDA7B0000u

// The part of one file.
typedef struct part {
    uint64_t first, count; // of the set's records
    uint64_t before;       // records of the parts before this one
    double weight;         // of all its records, with those of the parts before
} part;

struct mz_instructions {
    const mz_record_set *set;
    part *parts;
    size_t n_parts;
    uint64_t count;
    double weight; // of all records
    bool even;     // all records have the same weight
};

void mz_instructions_free(mz_instructions *x) {
    if (x == NULL)
        return;
    mz_free(x->parts);
    mz_free(x);
}

mezzo_status mz_instructions_create(const mz_record_set *set, double from, double to, bool weighted,
                                    mz_instructions **out) {
    *out = NULL;
    mz_instructions *x = mz_alloc(1, sizeof *x);
    if (x == NULL)
        return MEZZO_ERR_MEMORY;
    *x = (mz_instructions){.set = set, .n_parts = set->n_files, .even = true};
    x->parts = mz_alloc(set->n_files + 1, sizeof *x->parts);
    if (x->parts == NULL) {
        mz_instructions_free(x);
        return MEZZO_ERR_MEMORY;
    }
    for (size_t i = 0; i < set->n_files; i++) {
        const mz_record_range range = mz_record_file_part(&set->files[i], from, to);
        const double weight = weighted ? set->files[i].weight : 1;
        x->weight += weight * (double)(range.end - range.begin);
        x->parts[i] = (part){range.begin, range.end - range.begin, x->count, x->weight};
        x->count += range.end - range.begin;
        x->even = x->even && (!weighted || weight == set->files[0].weight);
    }
    *out = x;
    return MEZZO_OK;
}

uint64_t mz_instructions_count(const mz_instructions *x) {
    return x->count;
}

static const mz_record_range *record(const mz_instructions *x, uint64_t i) {
    size_t low = 0, high = x->n_parts;
    while (high - low > 1) { // the last part that begins at or before i; parts without records are passed over
        const size_t middle = low + (high - low) / 2;
        *(x->parts[middle].before <= i ? &low : &high) = middle;
    }
    return &x->set->records[x->parts[low].first + (i - x->parts[low].before)];
}

mezzo_data_mark mz_instructions_mark(const mz_instructions *x) {
    const mz_chat_tokens *all = &x->set->all;
    mezzo_data_mark mark = {0};
    for (uint64_t i = 0; i < x->count; i++) {
        const mz_record_range *e = record(x, i);
        const uint64_t n = e->end - e->begin;
        mark.bytes += n * (sizeof *all->tokens + sizeof *all->counts);
        mark.crc32c = mz_crc32c(mark.crc32c, &n, sizeof n);
        mark.crc32c = mz_crc32c(mark.crc32c, all->tokens + e->begin, n * sizeof *all->tokens);
        mark.crc32c = mz_crc32c(mark.crc32c, all->counts + e->begin, n * sizeof *all->counts);
    }
    return mark;
}

// --- batches -------------------------------------------------------------------------------------------------------
uint64_t mz_instructions_batches(const mz_instructions *x, int64_t rows) {
    const uint64_t all = x->even ? x->count : (uint64_t)ceil(x->weight),
                   n = (all + (uint64_t)rows - 1) / (uint64_t)rows;
    return n > 0 ? n : 1;
}

uint64_t mz_instructions_targets(const mz_instructions *x, int64_t length) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < x->count; i++) {
        const mz_record_range *e = record(x, i);
        const uint64_t end = e->end - e->begin <= (uint64_t)length ? e->end : e->begin + (uint64_t)length + 1;
        n += end > e->begin && memchr(x->set->all.counts + e->begin + 1, true, end - e->begin - 1) != NULL;
    }
    return n;
}

const char *mz_instructions_path(const mz_instructions *x) {
    return x->set->source;
}

uint64_t mz_instructions_longer(const mz_instructions *x, int64_t length) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < x->count; i++)
        n += record(x, i)->end - record(x, i)->begin > (uint64_t)length + 1;
    return n;
}

static uint64_t uniform(const uint32_t words[2], uint64_t n) {
    return (uint64_t)(((unsigned __int128)((uint64_t)words[1] << 32 | words[0]) * n) >> 64);
}

static uint64_t pick(const mz_instructions *x, const mz_instruction_order *o, uint64_t row) {
    uint32_t words[4];
    mz_philox((mz_philox_key){o->seed, 0, PHILOX_INSTRUCTIONS + o->stream}, row, words);
    if (x->even)
        return uniform(words, x->count);
    const double at = (double)uniform(words + 2, UINT64_C(1) << 53) * 0x1p-53 * x->weight;
    size_t i = 0;
    while (i + 1 < x->n_parts && (at >= x->parts[i].weight || x->parts[i].count == 0))
        i++;
    while (x->parts[i].count == 0) // a sum of weights that was rounded
        i--;
    return x->parts[i].before + uniform(words, x->parts[i].count);
}

void mz_instructions_batch(const mz_instructions *x, const mz_instruction_order *o, uint64_t k, int32_t *tokens,
                           int32_t *targets) {
    const uint64_t rows = (uint64_t)o->rows, length = (uint64_t)o->length;
    const mz_chat_tokens *all = &x->set->all;
    if (!o->random)
        k %= mz_instructions_batches(x, o->rows);
    memset(tokens, 0, rows * length * sizeof *tokens);
    memset(targets, -1, rows * length * sizeof *targets);
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t which = o->random ? pick(x, o, k * rows + r) : k * rows + r;
        if (which >= x->count)
            continue;
        const mz_record_range *e = record(x, which);
        uint64_t n = e->end - e->begin < length ? e->end - e->begin : length;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = e->begin + i;
            tokens[r * length + i] = all->tokens[at];
            if (at + 1 < e->end && all->counts[at + 1])
                targets[r * length + i] = all->tokens[at + 1];
        }
    }
}
