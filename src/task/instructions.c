#include "task/instructions.h"

#include <math.h>

#include "io/file.h"
#include "task/pack.h"

// Philox's `tensor` word for these draws; loaders count theirs from 0xDA7A0000 on.
#define PHILOX_INSTRUCTIONS 0xDA7B0000u

// The records of one file.
typedef struct part {
    uint64_t first, count; // indices into the set's records
    uint64_t before;       // number of records in earlier parts
    double weight;         // of all records of this part and the earlier ones
} part;

struct mz_instructions {
    const mz_record_set *set;
    part *parts;
    size_t n_parts;
    uint64_t count;
    double weight; // of all records
    bool even;     // all records have equal weight
};

void mz_instructions_free(mz_instructions *x) {
    if (x == NULL)
        return;
    MZ_FREE(x->parts, x);
}

mezzo_status mz_instructions_create(const mz_record_set *set, double from, double to, bool weighted,
                                    mz_instructions **out) {
    *out = NULL;
    mz_instructions *x;
    MEZZO_TRY(MZ_NEW(x, 1));
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
    while (high - low > 1) { // finds the last part that begins at or before i; parts without records are skipped
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
    const uint64_t n = ((uint64_t)ceil(x->weight) + (uint64_t)rows - 1) / (uint64_t)rows;
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
    while (x->parts[i].count == 0) // the sum of weights was rounded
        i--;
    return x->parts[i].before + uniform(words, x->parts[i].count);
}

// Returns the index of a record among those that count, by the number of its draw; `count`: there is none.
static uint64_t drawn(const mz_instructions *x, const mz_instruction_order *o, uint64_t draw) {
    return o->random ? pick(x, o, draw) : draw < x->count ? draw : x->count;
}

// Copies a record into the columns from tokens[0] on.
static void copy_record(const mz_instructions *x, uint64_t which, int64_t columns, int32_t *tokens, int32_t *targets) {
    const mz_chat_tokens *all = &x->set->all;
    const mz_record_range *e = record(x, which);
    for (uint64_t i = 0, n = e->end - e->begin; i < n && i < (uint64_t)columns; i++) {
        const uint64_t at = e->begin + i;
        tokens[i] = all->tokens[at];
        if (at + 1 < e->end && all->counts[at + 1])
            targets[i] = all->tokens[at + 1];
    }
}

struct mz_instruction_rows {
    const mz_instructions *x;
    mz_instruction_order order;
    mz_packer *packer;
    uint64_t batches; // of one pass
    mz_packed pieces[MZ_PACK_BLOCK];
};

static int64_t packed_size(const void *user, uint64_t draw) {
    const mz_instruction_rows *rows = user;
    const mz_instructions *x = rows->x;
    const uint64_t which = drawn(x, &rows->order, draw);
    if (which >= x->count)
        return 0;
    const mz_record_range *e = record(x, which);
    const uint64_t n = e->end - e->begin;
    if (n < 2)
        return 0;
    const uint64_t columns = n - 1 < (uint64_t)rows->order.length ? n - 1 : (uint64_t)rows->order.length;
    return memchr(x->set->all.counts + e->begin + 1, true, columns) != NULL ? (int64_t)columns : 0;
}

void mz_instruction_rows_free(mz_instruction_rows *rows) {
    if (rows == NULL)
        return;
    mz_packer_free(rows->packer);
    mz_free(rows);
}

// Opens the packer. A pass of random draws is as long as an ordered pass.
static mezzo_status open_packer(mz_instruction_rows *rows) {
    const mz_instruction_order *o = &rows->order;
    const uint64_t pass = mz_instructions_batches(rows->x, 1);
    uint64_t all, positions;
    MEZZO_TRY(mz_packer_create(packed_size, rows, o->random ? UINT64_MAX : rows->x->count, o->length, &rows->packer));
    MEZZO_TRY(mz_packer_count(rows->packer, pass, &all, &positions));
    rows->batches = (all + (uint64_t)o->rows - 1) / (uint64_t)o->rows;
    return MEZZO_OK;
}

mezzo_status mz_instruction_rows_create(const mz_instructions *x, const mz_instruction_order *order,
                                        mz_instruction_rows **out) {
    mz_instruction_rows *rows = *out = mz_alloc(1, sizeof *rows);
    if (rows == NULL)
        return MEZZO_ERR_MEMORY;
    rows->x = x;
    rows->order = *order;
    rows->batches = mz_instructions_batches(x, order->rows);
    mezzo_status status = order->packed ? open_packer(rows) : MEZZO_OK;
    if (status != MEZZO_OK) {
        mz_instruction_rows_free(rows);
        *out = NULL;
    }
    return status;
}

uint64_t mz_instruction_rows_batches(const mz_instruction_rows *rows) {
    return rows->batches > 0 ? rows->batches : 1;
}

static mezzo_status pack_row(mz_instruction_rows *rows, uint64_t row, int32_t *tokens, int32_t *targets,
                             int32_t *positions) {
    size_t n;
    MEZZO_TRY(mz_packer_row(rows->packer, row, rows->pieces, &n));
    for (size_t i = 0; i < n; i++) {
        const int64_t from = rows->pieces[i].column, columns = packed_size(rows, rows->pieces[i].piece);
        copy_record(rows->x, drawn(rows->x, &rows->order, rows->pieces[i].piece), columns, tokens + from,
                    targets + from);
        for (int64_t t = 0; t < columns; t++)
            positions[from + t] = (int32_t)t;
    }
    return MEZZO_OK;
}

mezzo_status mz_instruction_rows_batch(mz_instruction_rows *rows, uint64_t k, int32_t *tokens, int32_t *targets,
                                       int32_t *positions) {
    const mz_instruction_order *o = &rows->order;
    const uint64_t n = (uint64_t)o->rows, length = (uint64_t)o->length;
    if (!o->random)
        k %= mz_instruction_rows_batches(rows);
    memset(tokens, 0, n * length * sizeof *tokens);
    memset(targets, -1, n * length * sizeof *targets);
    if (o->packed)
        memset(positions, 0, n * length * sizeof *positions);
    for (uint64_t r = 0; r < n; r++) {
        const uint64_t at = r * length;
        if (o->packed) {
            MEZZO_TRY(pack_row(rows, k * n + r, tokens + at, targets + at, positions + at));
            continue;
        }
        const uint64_t which = drawn(rows->x, o, k * n + r);
        if (which < rows->x->count)
            copy_record(rows->x, which, o->length, tokens + at, targets + at);
    }
    return MEZZO_OK;
}

mezzo_status mz_instructions_padding(const mz_instructions *x, int64_t length, double *alone, double *packed) {
    const mz_instruction_order order = {.packed = true, .rows = 1, .length = length};
    mz_instruction_rows *rows;
    uint64_t n, used;
    MEZZO_TRY(mz_instruction_rows_create(x, &order, &rows));
    mezzo_status status = mz_packer_count(rows->packer, x->count, &n, &used);
    *alone = x->count > 0 ? 1 - (double)used / ((double)x->count * (double)length) : 0;
    *packed = n > 0 ? 1 - (double)used / ((double)n * (double)length) : 0;
    mz_instruction_rows_free(rows);
    return status;
}
