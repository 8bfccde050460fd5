#include "optim/orthogonal.h"

#include "base/scope.h"

#include <math.h>
#include <stdlib.h>

// A rank makes directions of this many elements orthogonal together, which are enough matrices for one launch to fill a
// GPU several times over.
#define STACK_ELEMENTS ((int64_t)1 << 25)
enum { ALIGN = 64 }; // a stack begins at a multiple of this many elements

// Coefficients of Polar Express (Amsel, Persson, Musco, Gower 2025, arXiv 2505.16932, algorithm 1); steps after these
// repeat the last ones. All but the last are for a norm 1.01 times as large.
static const double polar_express[][3] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                          {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                          {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                          {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                          {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
                                          {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
                                          {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
                                          {1.875, -1.25, 0.375}};
static const double safety = 1.01;

static mezzo_dtype compute_of(mezzo_orthogonal_format format) {
    static const mezzo_dtype dtypes[] = {MEZZO_BF16, MEZZO_F16, MEZZO_TF32, MEZZO_F32};
    return dtypes[format];
}

static mezzo_dtype stored_as(mezzo_orthogonal_format format) {
    return format == MEZZO_ORTHOGONAL_TF32 ? MEZZO_F32 : compute_of(format);
}

// Returns the format of a stack's results, which the last products write over its directions, one after the other from
// its beginning. FP32 where other calls read them as FP32, and where padding between them must stay zero.
static mezzo_dtype result_of(const mezzo_optimizer *opt, const mz_stack *s) {
    const bool is_low = s->is_aligned && !opt->params->padded && !mz_group_keeps_rows(s->group);
    return is_low ? stored_as(s->group->orthogonal.format) : MEZZO_F32;
}

// Returns where an element of the directions has its result, in bytes of the scratch. `place`: in elements.
static int64_t result_at(const mezzo_optimizer *opt, const mz_stack *s, int64_t place) {
    return s->from * (int64_t)sizeof(float) + (place - s->from) * (int64_t)mezzo_dtype_size(result_of(opt, s));
}

void mz_orthogonal_coefficients(const mezzo_orthogonal *o, int step, float out[3]) {
    static const double quintic[3] = {3.4445, -4.7750, 2.0315};
    const int last = (int)MZ_COUNT(polar_express) - 1, row = step < last ? step : last;
    double factor = row < last ? 1 / safety : 1;
    for (int i = 0; i < 3; i++) {
        const bool is_quintic = o->coefficients == MEZZO_ORTHOGONAL_QUINTIC;
        out[i] = (float)(is_quintic ? quintic[i] : polar_express[row][i] * factor);
        factor *= row < last ? 1 / (safety * safety) : 1;
    }
}

// Returns the scale of the update, by the rule that the options name.
static double scale_of(const mezzo_orthogonal *o, int64_t rows, int64_t columns) {
    const double r = (double)rows, c = (double)columns;
    return o->scale == MEZZO_SCALE_ORIGINAL ? sqrt(fmax(1, r / c)) : 0.2 * sqrt(fmax(r, c));
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Returns how many steps are taken at once. Of two, X takes part in two products instead of four, and five instead of
// two are of the small side alone: fewer FLOPs from 3:2 on, whether or not symmetric results are computed by halves. In
// 16 bits the results are nearer to the exact ones than step by step, in FP32 they are not.
static int steps_at_once(const mezzo_orthogonal *o, int64_t rows, int64_t columns) {
    const bool is_long = 2 * larger(rows, columns) > 3 * smaller(rows, columns);
    return is_long && mezzo_dtype_size(stored_as(o->format)) == 2 ? 2 : 1;
}

// --- which matrices --------------------------------------------------------------------------------------------------
static bool has_number(const char *name) {
    for (const char *at = name; *at != '\0'; at += strcspn(at, "."), at += *at == '.') {
        const size_t n = strcspn(at, "."), digits = strspn(at, "0123456789");
        if (n > 0 && digits == n)
            return true;
    }
    return false;
}

bool mz_is_block_matrix(const char *name, int rank) {
    return (rank == 2 || rank == 3) && has_number(name);
}

// Holds some rows of a parameter: all, or those of one of the layers whose weights it has.
typedef struct part {
    int owned, segment;              // indices of the parameter and of its segment
    int64_t first, count;            // in elements of the parameter
    int64_t matrices, rows, columns; // the matrices as they are stored
    double scale, norm;
    int home;                           // the rank that updates most of its elements; 0 where each rank updates all
    int64_t first_row, own_rows, width; // without padding: rows of each matrix, and columns
    bool is_inside; // its moments begin at no allowed offset, so that all parts of the parameter share one pass
} part;

static bool are_alike(const part *a, const part *b) {
    return a->rows == b->rows && a->columns == b->columns && a->scale == b->scale && a->width == b->width &&
           a->norm == b->norm;
}

// Orders stacks by shape, and within a shape by the ranks that update most of them, so that few elements travel to the
// ranks that own the matrices. Parts inside a parameter come last, in the parameters' order.
static int by_shape(const void *x, const void *y) {
    const part *a = x, *b = y;
    if (a->is_inside != b->is_inside)
        return a->is_inside ? 1 : -1;
    if (!a->is_inside && a->rows != b->rows)
        return a->rows < b->rows ? -1 : 1;
    if (!a->is_inside && a->columns != b->columns)
        return a->columns < b->columns ? -1 : 1;
    if (!a->is_inside && a->scale != b->scale)
        return a->scale < b->scale ? -1 : 1;
    if (!a->is_inside && a->home != b->home)
        return a->home < b->home ? -1 : 1;
    if (a->owned != b->owned)
        return a->owned < b->owned ? -1 : 1;
    return (a->first > b->first) - (a->first < b->first);
}

static mezzo_status check_part(const mz_param *p) {
    if (p->shape.rank < 2 || p->shape.rank > 3)
        return mz_fail(MEZZO_ERR_INVALID,
                       "optimizer: %s has %d dimensions, and Muon updates matrices: give it another kind by a group",
                       p->name, p->shape.rank);
    return MEZZO_OK;
}

// Returns where a row of a parameter is stored; for the number of rows, the end of the last one with its padding.
static int64_t stored_row(const mz_param *p, int64_t row) {
    const mz_storage *s = &p->storage;
    const int d = p->shape.rank - 2;
    if (!s->padded || s->pitch[d] == 0)
        return row;
    return row / s->inner[d] * s->pitch[d] + row % s->inner[d];
}

// Returns the rank whose shards have the most of these elements of a parameter.
static int home_of(const mezzo_optimizer *opt, int owned, int64_t from, int64_t to) {
    int64_t most = 0;
    int home = 0;
    for (int rank = 0; opt->rank >= 0 && rank < opt->params->ranks; rank++) {
        int64_t sum = 0, first, count, unused;
        for (int k = 0; k < opt->params->n_regions; k++) {
            mz_params_shard(opt->params, opt->index[owned], rank, k, &first, &count, &unused);
            sum += larger(smaller(first + count, to) - larger(first, from), 0);
        }
        home = sum > most ? rank : home;
        most = larger(sum, most);
    }
    return home;
}

// Finds the parts of owned parameter i and returns their number.
static int parts_of(const mezzo_optimizer *opt, int i, const mezzo_orthogonal *o, part *out) {
    const mz_param *p = &opt->params->list[opt->index[i]];
    const mz_shape stored = mz_stored_shape(&p->shape, &p->storage);
    const int64_t columns = stored.rank > 0 ? stored.dim[stored.rank - 1] : 1;
    const int64_t width = p->shape.rank > 0 ? p->shape.dim[p->shape.rank - 1] : 1;
    const int64_t height = p->shape.rank > 1 ? p->shape.dim[p->shape.rank - 2] : 1;
    const bool is_fused = p->parts.layers > 1 && !o->whole && p->shape.rank == 2;
    part all = {.owned = i, .segment = (int)opt->begin[i], .count = p->count, .columns = columns};
    all.rows = stored.rank > 1 ? stored.dim[stored.rank - 2] : 1;
    all.matrices = p->stored / (all.rows * columns);
    all.scale = scale_of(o, height, width);
    all.norm = sqrt((double)smaller(height, width));
    all.own_rows = height;
    all.width = width;
    if (!is_fused) {
        out[0] = all;
        out[0].home = home_of(opt, i, 0, p->count);
        return 1;
    }
    int64_t row = 0;
    for (int k = 0; k < p->parts.layers; k++) {
        all.is_inside = all.is_inside || row * width % mz_moments_unit(opt->moments) != 0;
        row += p->parts.list[k].rows;
    }
    row = 0;
    for (int k = 0; k < p->parts.layers; k++) {
        const int64_t rows = p->parts.list[k].rows;
        out[k] = all;
        out[k].first = row * width;
        out[k].count = rows * width;
        out[k].rows = stored_row(p, row + rows) - stored_row(p, row); // the rows of zero padding after its last row
                                                                      // belong to it
        out[k].scale = scale_of(o, rows, width);
        out[k].norm = sqrt((double)smaller(rows, width));
        out[k].first_row = row;
        out[k].own_rows = rows;
        out[k].home = home_of(opt, i, out[k].first, out[k].first + out[k].count);
        row += rows;
    }
    return p->parts.layers;
}

bool mz_group_keeps_rows(const mz_group *group) {
    return group->kind->reads.orthogonal && group->kind->reads.beta2;
}

// --- places ---------------------------------------------------------------------------------------------------------
static size_t aligned(size_t bytes) {
    return mz_align_up(bytes, (size_t)ALIGN * 4);
}

mz_places mz_stack_places(const mezzo_optimizer *opt, const mz_stack *s) {
    const mezzo_orthogonal *o = &s->group->orthogonal;
    const size_t width = mezzo_dtype_size(stored_as(o->format));
    const int64_t side = smaller(s->rows, s->columns), each = s->rows * s->columns;
    const size_t all = aligned((size_t)(s->own * each) * width),
                 small = aligned((size_t)(s->own * side * side) * width);
    const size_t directions = (size_t)(s->from + s->own_first * each) * sizeof(float),
                 after = directions + (size_t)(s->own * each) * sizeof(float);
    mz_places p = {.x = aligned((size_t)opt->stacks->elements * sizeof(float))};
    p.end = p.x + all;
    // No call reads the directions after the first one. After an odd number of products with X, it is not in `next`
    // when the last one writes the results, so that `next` may lie there, and what that product does not read after it.
    const bool is_odd = (o->steps + s->at_once - 1) / s->at_once % 2 == 1 && s->is_aligned;
    const size_t spare = is_odd ? aligned(directions + all) : after;
    p.next = is_odd ? directions : p.end;
    p.end += is_odd ? 0 : all;
    p.small[0] = p.end;
    p.end += small;
    const bool is_spare = spare + small <= after;
    p.small[1] = is_spare ? spare : p.end;
    p.end += is_spare ? 0 : small;
    return p;
}

// place, result: where element 0 of the parameter would lie, in elements of the scratch in FP32 and in the results'
// format.
static mezzo_status add_segment(mezzo_optimizer *opt, const mz_segment *from, int64_t first, int64_t count,
                                int64_t place, int64_t result) {
    struct mz_stacks *k = opt->stacks;
    MEZZO_TRY(MZ_RESERVE(k->directions, k->cap_directions, k->n_segments + 1));
    MEZZO_TRY(MZ_RESERVE(k->updates, k->cap_updates, k->n_segments + 1));
    mz_segment direction = *from;
    direction.first = first;
    direction.count = count;
    mz_segment update = direction;
    direction.master = MEZZO_MASTER_FP32;
    direction.master_shift = direction.offset - place;
    update.grad_shift = direction.offset - result;
    direction.low_copy_offset = MZ_NO_LOW_COPY;
    direction.decay = 0;
    k->directions[k->n_segments] = direction;
    k->updates[k->n_segments++] = update;
    return MEZZO_OK;
}

// Adds this rank's segments of a part. `place`: where element 0 of the parameter would lie in the scratch.
static mezzo_status add_segments(mezzo_optimizer *opt, mz_stack *s, const part *one, int64_t place) {
    const int64_t result = result_at(opt, s, place) / (int64_t)mezzo_dtype_size(result_of(opt, s));
    for (size_t k = opt->begin[one->owned]; k < opt->begin[one->owned + 1]; k++) {
        const mz_segment from = opt->segments[k]; // a copy, because the tables may move when they grow
        const int64_t first = larger(from.first, one->first),
                      end = smaller(from.first + from.count, one->first + one->count);
        if (end <= first)
            continue;
        MEZZO_TRY(add_segment(opt, &from, first, end - first, place, result));
        s->n++;
    }
    return MEZZO_OK;
}

// Adds the pieces of a part that ranks update, where each rank has its own shards of parameters.
static mezzo_status add_held(mezzo_optimizer *opt, mz_stack *s, const part *one, int64_t place) {
    const mezzo_params *p = opt->params;
    struct mz_stacks *stacks = opt->stacks;
    for (int k = 0; opt->rank >= 0 && k < p->n_regions; k++)
        for (int rank = 0; rank < p->ranks; rank++) {
            int64_t first, count, unused;
            mz_params_shard(p, opt->index[one->owned], rank, k, &first, &count, &unused);
            const int64_t end = smaller(first + count, one->first + one->count);
            first = larger(first, one->first);
            if (end <= first)
                continue;
            MEZZO_TRY(MZ_RESERVE(stacks->held, stacks->cap_held, stacks->n_held + 1));
            stacks->held[stacks->n_held++] = (mz_held){.rank = rank, .place = place + first, .count = end - first};
            s->n_held++;
        }
    return MEZZO_OK;
}

// --- ranks -----------------------------------------------------------------------------------------------------------
// Returns the first of a stack's matrices that a rank owns; for the number of ranks, the number of matrices. Stacks
// give the larger shares to other ranks in turn.
static int64_t first_owned(const struct mz_stacks *k, const mz_stack *s, int rank) {
    int64_t first = 0;
    for (int r = 0; r < rank; r++) {
        const int64_t turn = (r + (s - k->list)) % k->size;
        first += (turn + 1) * s->count / k->size - turn * s->count / k->size;
    }
    return first;
}

static mezzo_status add_collective(struct mz_stacks *k, const mz_collective *what, mz_move move) {
    MEZZO_TRY(MZ_RESERVE(k->collectives, k->cap_collectives, k->n_collectives + 1));
    MEZZO_TRY(MZ_RESERVE(k->moves, k->cap_moves, k->n_collectives + 1));
    k->collectives[k->n_collectives] = *what;
    k->moves[k->n_collectives++] = move;
    return MEZZO_OK;
}

// Adds broadcasts of what the owners of a stack's matrices have, `each` elements a matrix from byte `at` of the scratch
// on.
static mezzo_status add_broadcasts(struct mz_stacks *k, const mz_stack *s, int64_t at, int64_t each,
                                   mezzo_dtype dtype) {
    const int64_t width = (int64_t)mezzo_dtype_size(dtype);
    for (int rank = 0; rank < k->size; rank++) {
        const int64_t first = first_owned(k, s, rank), n = first_owned(k, s, rank + 1) - first;
        const mz_collective what = {.kind = MZ_BROADCAST, .count = (size_t)(n * each), .dtype = dtype, .root = rank};
        const mz_move move = {at + first * each * width, at + first * each * width};
        if (n > 0)
            MEZZO_TRY(add_collective(k, &what, move));
    }
    return MEZZO_OK;
}

// A transfer of n elements, which have the same place on both ranks: byte `at` of the scratch.
typedef struct transfer {
    int from, to;
    mezzo_dtype dtype;
    int64_t at, n;
} transfer;

// Adds this rank's part of a transfer to the i-th collective after `first`, or to the one before it, which it extends;
// returns the next i. Both ranks of a pair count alike.
static mezzo_status add_transfer(struct mz_stacks *k, size_t first, const transfer *t, size_t *i) {
    const bool sends = t->from == k->rank;
    if (*i > 0) {
        mz_collective *last = &k->collectives[first + *i - 1];
        size_t *n = sends ? &last->count : &last->received;
        const mz_move *move = &k->moves[first + *i - 1];
        if ((sends ? move->send : move->receive) + (int64_t)(*n * mezzo_dtype_size(t->dtype)) == t->at) {
            *n += (size_t)t->n;
            return MEZZO_OK;
        }
    }
    if (first + *i == k->n_collectives) {
        const int distance = (sends ? t->to - k->rank : k->rank - t->from) + k->size;
        const mz_collective none = {.kind = MZ_SEND_RECEIVE,
                                    .dtype = t->dtype,
                                    .root = (k->rank + distance) % k->size,
                                    .from = (k->rank + 2 * k->size - distance) % k->size};
        MEZZO_TRY(add_collective(k, &none, (mz_move){0, 0}));
    }
    *(sends ? &k->collectives[first + *i].count : &k->collectives[first + *i].received) = (size_t)t->n;
    *(sends ? &k->moves[first + *i].send : &k->moves[first + *i].receive) = t->at;
    ++*i;
    return MEZZO_OK;
}

// Adds the transfers between this rank and those at a distance from it: of the pieces that ranks hold in stacks [at,
// end) to the owners of their matrices, or back. `run`: the stack that lists the pieces.
static mezzo_status add_at_distance(const mezzo_optimizer *opt, const mz_stack *run, size_t at, size_t end, bool back,
                                    int distance) {
    struct mz_stacks *k = opt->stacks;
    const size_t first = k->n_collectives;
    size_t sent = 0, received = 0;
    for (size_t h = run->first_held; h < run->first_held + run->n_held; h++)
        for (size_t i = at; i < end; i++)
            for (int owner = 0; owner < k->size; owner++) {
                const mz_stack *s = &k->list[i];
                const mz_held *held = &k->held[h];
                const int64_t each = s->rows * s->columns,
                              begin = larger(held->place, s->from + first_owned(k, s, owner) * each),
                              n = smaller(held->place + held->count, s->from + first_owned(k, s, owner + 1) * each) -
                                  begin;
                const transfer t = {back ? owner : held->rank, back ? held->rank : owner,
                                    back ? result_of(opt, s) : MEZZO_F32,
                                    back ? result_at(opt, s, begin) : begin * (int64_t)sizeof(float), n};
                if (n <= 0 || (t.from + distance) % k->size != t.to)
                    continue;
                if (t.from == k->rank)
                    MEZZO_TRY(add_transfer(k, first, &t, &sent));
                if (t.to == k->rank)
                    MEZZO_TRY(add_transfer(k, first, &t, &received));
            }
    return MEZZO_OK;
}

static mezzo_status add_transfers(const mezzo_optimizer *opt, const mz_stack *run, size_t at, size_t end, bool back) {
    for (int distance = 1; distance < opt->stacks->size; distance++)
        MEZZO_TRY(add_at_distance(opt, run, at, end, back, distance));
    return MEZZO_OK;
}

size_t mz_stacks_end_of_parameters(const struct mz_stacks *k, size_t at) {
    do
        at++;
    while (at < k->n && k->list[at].is_rest);
    return at;
}

// Divides the matrices of stacks [at, end), which have whole parameters, among ranks.
static mezzo_status share_stacks(mezzo_optimizer *opt, size_t at, size_t end) {
    struct mz_stacks *k = opt->stacks;
    const mz_stack *run = &k->list[at];
    for (size_t i = at; i < end; i++) {
        mz_stack *s = &k->list[i];
        s->own_first = first_owned(k, s, k->rank);
        s->own = first_owned(k, s, k->rank + 1) - s->own_first;
        s->first_gather = k->n_collectives;
        if (i == at)
            MEZZO_TRY(add_transfers(opt, run, at, end, false));
        s->n_gathers = k->n_collectives - s->first_gather;
        if (k->size > 1 && mz_group_keeps_rows(s->group))
            MEZZO_TRY(add_broadcasts(k, s, s->rows_at * (int64_t)sizeof(float), s->rows, MEZZO_F32));
        s->n_rows = k->n_collectives - s->first_gather - s->n_gathers;
        if (k->size > 1 && opt->rank < 0)
            MEZZO_TRY(add_broadcasts(k, s, result_at(opt, s, s->from), s->rows * s->columns, result_of(opt, s)));
        MEZZO_TRY(add_transfers(opt, run, i, i + 1, true));
        s->n_returns = k->n_collectives - s->first_gather - s->n_gathers - s->n_rows;
    }
    return MEZZO_OK;
}

// Returns whether a part comes after another one inside a parameter.
static bool follows(const part *one, const part *before) {
    return one->is_inside && one->first > 0 && one->owned == before->owned;
}

// Returns whether a part can extend the last stack: matrices with space between them cannot.
static bool may_join(const struct mz_stacks *k, const part *one, const part *before) {
    const mz_stack *s = &k->list[k->n - 1];
    const int64_t elements = one->matrices * one->rows * one->columns;
    const bool are_neighbours = one->is_inside ? follows(one, before) : (s->rows * s->columns) % ALIGN == 0;
    return are_alike(one, before) && one->is_inside == before->is_inside && are_neighbours &&
           s->count * s->rows * s->columns + elements <= STACK_ELEMENTS * k->size;
}

static mezzo_status add_rows(struct mz_stacks *k, const part *one) {
    MEZZO_TRY(MZ_RESERVE(k->rows, k->cap_rows, k->n_rows + 1));
    k->rows[k->n_rows++] = (mz_row_place){.owned = one->owned,
                                          .first = one->first_row,
                                          .count = one->own_rows,
                                          .matrices = one->matrices,
                                          .at = k->next_row,
                                          .pitch = one->rows};
    k->next_row += one->matrices * one->rows;
    return MEZZO_OK;
}

// Adds the segments and pieces of a part; the first part inside a parameter gets those of the whole parameter.
static mezzo_status add_part(mezzo_optimizer *opt, mz_stack *s, const part *one) {
    const mz_layout *layout = &opt->segments[one->segment].layout;
    const int64_t place = s->from + s->count * s->rows * s->columns - mz_layout_index(layout, one->first);
    part whole = *one;
    s->count += one->matrices;
    if (mz_group_keeps_rows(s->group))
        MEZZO_TRY(add_rows(opt->stacks, one));
    if (one->is_inside && one->first > 0)
        return MEZZO_OK;
    if (one->is_inside)
        whole.count = opt->params->list[opt->index[one->owned]].count;
    s->elements += one->is_inside ? whole.count : one->matrices * one->rows * one->columns;
    MEZZO_TRY(add_segments(opt, s, &whole, place));
    return add_held(opt, s, &whole, place);
}

// Returns for how many matrices the products of a part's stack choose their algorithm, whatever number of ranks divides
// them: for one rank's stack of all matrices of this shape.
static int64_t chosen_for(const part *parts, size_t n, const part *one) {
    int64_t alike = 0;
    for (size_t i = 0; i < n; i++)
        if (parts[i].rows == one->rows && parts[i].columns == one->columns)
            alike += parts[i].matrices;
    return smaller(alike, larger(STACK_ELEMENTS / (one->rows * one->columns), 1));
}

static mezzo_status stack_parts(mezzo_optimizer *opt, mz_group *group, const part *parts, size_t n) {
    struct mz_stacks *k = opt->stacks;
    const int64_t beginning = (int64_t)mz_align_up((size_t)k->row_elements, ALIGN);
    int64_t end = opt->params->padded ? k->elements : beginning; // end of the directions whose memory other directions
                                                                 // may not use
    int64_t after = 0;                                           // the end of the last part
    for (size_t i = 0; i < n; i++) {
        mz_stack *s = k->n > 0 ? &k->list[k->n - 1] : NULL;
        if (i == 0 || !may_join(k, &parts[i], &parts[i - 1])) {
            MEZZO_TRY(MZ_RESERVE(k->list, k->cap, k->n + 1));
            const bool is_rest = i > 0 && follows(&parts[i], &parts[i - 1]);
            const double passes = is_rest ? k->list[k->n - 1].scale / k->list[k->n - 1].gain : parts[i].scale;
            const int64_t from = is_rest ? after : end + k->turn * k->room;
            k->turn = is_rest ? k->turn : (k->turn + 1) % MZ_STACK_PLACES;
            s = &k->list[k->n++];
            *s = (mz_stack){.first_held = k->n_held,
                            .is_rest = is_rest,
                            .is_aligned = !parts[i].is_inside,
                            .gain = parts[i].scale / passes,
                            .group = group,
                            .chosen_for = chosen_for(parts, n, &parts[i]),
                            .at_once = steps_at_once(&group->orthogonal, parts[i].rows, parts[i].columns),
                            .first = (int)k->n_segments,
                            .rows = parts[i].rows,
                            .columns = parts[i].columns,
                            .scale = parts[i].scale,
                            .width = parts[i].width,
                            .norm = parts[i].norm,
                            .rows_at = k->next_row,
                            .from = from};
        }
        MEZZO_TRY(add_part(opt, s, &parts[i]));
        after = s->from + s->count * s->rows * s->columns;
        const int64_t to = (int64_t)mz_align_up((size_t)after, ALIGN);
        k->elements = to > k->elements ? to : k->elements;
        end = opt->params->padded ? to : beginning; // padding stays zero where no other data are written
    }
    return MEZZO_OK;
}

static mezzo_status stack_group(mezzo_optimizer *opt, int g) {
    mz_group *group = &opt->groups[g];
    size_t n = 0;
    MZ_SCOPED(mz_free_at) part *parts = mz_alloc((size_t)opt->n * MZ_MAX_PARTS + 1, sizeof *parts);
    if (parts == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int i = 0; i < opt->n; i++) {
        if (opt->group_of[i] != g)
            continue;
        const int found = parts_of(opt, i, &group->orthogonal, &parts[n]);
        MEZZO_TRY(check_part(&opt->params->list[opt->index[i]]));
        n += (size_t)found;
    }
    qsort(parts, n, sizeof *parts, by_shape);
    return stack_parts(opt, group, parts, n);
}

static void free_calls(struct mz_stacks *stacks) {
    for (size_t i = 0; i < stacks->n; i++) {
        mz_stack *s = &stacks->list[i];
        mz_update_op *const ops[] = {&s->momentum, &s->normalize, &s->gram,       &s->polynomial, &s->product,
                                     &s->advance,  &s->finish,    &s->scale_rows, &s->apply};
        for (size_t k = 0; k < MZ_COUNT(ops); k++)
            mz_prepared_free(&ops[k]->prepared);
    }
}

static int64_t count_rows(const mezzo_optimizer *opt) {
    int64_t rows = 0;
    for (int i = 0; i < opt->n; i++) {
        const mz_param *p = &opt->params->list[opt->index[i]];
        const mz_shape stored = mz_stored_shape(&p->shape, &p->storage);
        if (mz_group_keeps_rows(&opt->groups[opt->group_of[i]]) && stored.rank > 1)
            rows += p->stored / stored.dim[stored.rank - 1];
    }
    return rows;
}

// Lays out the stacks. room: elements between the places that stacks take in turn.
static mezzo_status stack_groups(mezzo_optimizer *opt, int64_t room) {
    struct mz_stacks *k = opt->stacks;
    k->n = k->n_segments = k->n_held = k->n_collectives = k->n_rows = 0;
    k->next_row = 0;
    k->elements = (int64_t)mz_align_up((size_t)k->row_elements, ALIGN);
    k->room = room;
    k->turn = 0;
    for (int g = 0; g < opt->n_groups; g++)
        if (opt->groups[g].kind->reads.orthogonal)
            MEZZO_TRY(stack_group(opt, g));
    for (size_t at = 0, end; at < k->n; at = end) {
        end = mz_stacks_end_of_parameters(k, at);
        MEZZO_TRY(share_stacks(opt, at, end));
    }
    return MEZZO_OK;
}

mezzo_status mz_stacks_lay_out(mezzo_optimizer *opt) {
    if (opt->stacks == NULL)
        opt->stacks = mz_alloc(1, sizeof *opt->stacks);
    if (opt->stacks == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    free_calls(opt->stacks);
    opt->stacks->size = opt->params->ranks > 1 ? opt->params->ranks : 1;
    opt->stacks->rank = opt->device->comm != NULL ? opt->device->comm->rank : 0;
    opt->stacks->bytes = 0;
    opt->stacks->row_elements = count_rows(opt);
    MEZZO_TRY(stack_groups(opt, 0));
    const int64_t beginning = (int64_t)mz_align_up((size_t)opt->stacks->row_elements, ALIGN);
    if (opt->stacks->size > 1 && !opt->params->padded) // padded stacks have separate memory anyway
        MEZZO_TRY(stack_groups(opt, opt->stacks->elements - beginning));
    for (size_t i = 0; i < opt->stacks->n; i++) {
        const size_t end = mz_stack_places(opt, &opt->stacks->list[i]).end;
        opt->stacks->bytes = end > opt->stacks->bytes ? end : opt->stacks->bytes;
    }
    return MEZZO_OK;
}

// --- calls -----------------------------------------------------------------------------------------------------------
static mz_tensor matrices(const mezzo_optimizer *opt, size_t at, mezzo_dtype dtype, int64_t n, int64_t rows,
                          int64_t columns) {
    char *scratch = opt->stacks->scratch; // NULL in a sketch
    return (mz_tensor){.data = scratch != NULL ? scratch + at : NULL, .dtype = dtype, .shape = {3, {n, rows, columns}}};
}

static void fill_product(const mz_stack *s, mz_update_op *op, mz_tensor a, mz_tensor b, mz_tensor added, mz_tensor y) {
    const mezzo_dtype compute = compute_of(s->group->orthogonal.format);
    op->call = (mz_call){.op = MZ_OP_matmul,
                         .attrs.chosen_for = s->chosen_for,
                         .numerics = {compute, MEZZO_F32, MEZZO_F32},
                         .n_in = 3,
                         .in = {a, b, added},
                         .n_out = 1,
                         .out = {y}};
}

static void fill_steps(const mezzo_optimizer *opt, mz_stack *s) {
    const mezzo_dtype dtype = stored_as(s->group->orthogonal.format);
    const bool is_wide = s->rows <= s->columns;
    const int64_t side = is_wide ? s->rows : s->columns;
    const mz_places p = mz_stack_places(opt, s);
    const mz_tensor direction = matrices(opt, (size_t)(s->from + s->own_first * s->rows * s->columns) * sizeof(float),
                                         MEZZO_F32, s->own, s->rows, s->columns);
    const mz_tensor x = matrices(opt, p.x, dtype, s->own, s->rows, s->columns),
                    next = matrices(opt, p.next, dtype, s->own, s->rows, s->columns),
                    small = matrices(opt, p.small[0], dtype, s->own, side, side);
    const bool is_quintic = s->group->orthogonal.coefficients == MEZZO_ORTHOGONAL_QUINTIC;
    s->normalize.call = (mz_call){.op = MZ_OP_matrix_normalize,
                                  .attrs = {.eps = 1e-7f, .alpha = (float)(is_quintic ? 1 : 1 / safety)},
                                  .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F64},
                                  .n_in = 1,
                                  .in = {direction},
                                  .n_out = 1,
                                  .out = {x}};
    fill_product(s, &s->gram, x, x, mz_tensor_absent(), small);
    s->gram.call.attrs.transpose_a = !is_wide;
    s->gram.call.attrs.transpose_b = is_wide;
    fill_product(s, &s->polynomial, small, small, small, small);
    s->polynomial.call.attrs.coefficients[2] = s->at_once == 2 ? 1 : 0; // others when it is issued
    fill_product(s, &s->product, small, small, mz_tensor_absent(), small);
    s->gram.call.attrs.symmetric = s->polynomial.call.attrs.symmetric = s->product.call.attrs.symmetric = true;
    fill_product(s, &s->advance, is_wide ? small : x, is_wide ? x : small, x, next);
    const mz_tensor result = matrices(opt, (size_t)result_at(opt, s, s->from + s->own_first * s->rows * s->columns),
                                      result_of(opt, s), s->own, s->rows, s->columns);
    fill_product(s, &s->finish, is_wide ? small : x, is_wide ? x : small, x, result);
    const mz_tensor averages =
        matrices(opt, (size_t)(s->rows_at + s->own_first * s->rows) * sizeof(float), MEZZO_F32, s->own, s->rows, 1);
    s->scale_rows.call = (mz_call){.op = MZ_OP_matrix_scale_rows,
                                   .attrs = {.eps = (float)s->group->update.rule.eps,
                                             .alpha = (float)(s->norm * s->gain),
                                             .coefficients = {(float)s->group->update.rule.beta2, (float)s->width}},
                                   .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F64},
                                   .n_in = 2,
                                   .in = {direction, s->group->whole.call.in[MZ_IN(adamw, state)]},
                                   .n_out = 2,
                                   .out = {direction, averages}};
}

// Fills the two passes of the kind's formula, whose slots are those of all kinds.
static void fill_passes(const mezzo_optimizer *opt, mz_stack *s) {
    const mz_tensor directions = mz_tensor_f32(opt->stacks->scratch, opt->stacks->elements);
    mz_tensor results = directions; // the same bytes
    results.dtype = result_of(opt, s);
    results.shape.dim[0] *= (int64_t)(sizeof(float) / mezzo_dtype_size(results.dtype));
    mz_segment *table = opt->stacks->d_segments; // NULL in a sketch
    mz_segment *of_directions = table != NULL ? table + s->first : NULL,
               *of_updates = table != NULL ? table + opt->stacks->n_segments + s->first : NULL;
    s->momentum_update = s->apply_update = (mz_update_attrs){.rule = s->group->update.rule, .elements = s->elements};
    s->apply_update.rule.update_scale = s->scale / s->gain;
    s->momentum.call = s->apply.call = s->group->whole.call;
    s->momentum.call.in[MZ_IN(adamw, segments)] = mz_tensor_segments(opt->params, of_directions, (size_t)s->n);
    s->momentum.call.out[MZ_OUT(adamw, master)] = directions;
    s->momentum.call.out[MZ_OUT(adamw, low_copy)] = s->momentum.call.out[MZ_OUT(adamw, ema)] = mz_tensor_absent();
    s->apply.call.in[MZ_IN(adamw, segments)] = mz_tensor_segments(opt->params, of_updates, (size_t)s->n);
    s->apply.call.in[MZ_IN(adamw, grad)] = results;
    for (int i = 0; i < MZ_KIND_MOMENTS; i++)
        s->apply.call.out[MZ_OUT(adamw, m) + i] = mz_tensor_absent();
    mz_update_op *const passes[] = {&s->momentum, &s->apply};
    for (size_t i = 0; i < MZ_COUNT(passes); i++) {
        passes[i]->call.op = s->group->kind->op;
        passes[i]->call.numerics = (mz_numerics){MEZZO_F32, MEZZO_F32, MEZZO_F64};
    }
    s->momentum.call.attrs.update = &s->momentum_update;
    s->apply.call.attrs.update = &s->apply_update;
}

static mezzo_status prepare_stack(mezzo_optimizer *opt, mz_stack *s, size_t *scratch) {
    fill_passes(opt, s);
    fill_steps(opt, s);
    mz_update_op *const ops[] = {&s->momentum, &s->normalize, &s->gram,       &s->polynomial, &s->product,
                                 &s->advance,  &s->finish,    &s->scale_rows, &s->apply};
    for (size_t i = 0; i < MZ_COUNT(ops); i++) {
        const bool is_pass = ops[i] == &s->momentum || ops[i] == &s->apply;
        mz_prepared_free(&ops[i]->prepared);
        if (!is_pass && s->own == 0) // other ranks own these matrices
            continue;
        if ((ops[i] == &s->scale_rows && !mz_group_keeps_rows(s->group)) || (ops[i] == &s->product && s->at_once == 1))
            continue;
        MEZZO_TRY(mz_prepare(opt->device, &ops[i]->call, &ops[i]->prepared));
        *scratch = ops[i]->prepared.workspace > *scratch ? ops[i]->prepared.workspace : *scratch;
    }
    return MEZZO_OK;
}

static mezzo_status add_memory(mezzo_optimizer *opt) {
    struct mz_stacks *k = opt->stacks;
    const mz_backend *b = opt->device->backend;
    const size_t bytes = k->n_segments * sizeof(mz_segment);
    void *scratch = NULL;
    if (k->d_segments == NULL) // a second layout gives the same sizes
        MEZZO_TRY(b->alloc(opt->device, 2 * bytes, &k->d_segments));
    if (k->scratch == NULL)
        MEZZO_TRY(b->alloc(opt->device, k->bytes, &scratch));
    k->scratch = k->scratch == NULL ? scratch : k->scratch;
    MEZZO_TRY(b->write(opt->device, k->d_segments, k->directions, bytes));
    return b->write(opt->device, (char *)k->d_segments + bytes, k->updates, bytes);
}

mezzo_status mz_stacks_prepare(mezzo_optimizer *opt, size_t *scratch) {
    if (opt->stacks->n == 0)
        return MEZZO_OK;
    if (opt->d_segments != NULL) // it is no sketch
        MEZZO_TRY(add_memory(opt));
    for (size_t i = 0; i < opt->stacks->n; i++)
        MEZZO_TRY(prepare_stack(opt, &opt->stacks->list[i], scratch));
    return MEZZO_OK;
}

void mz_stacks_free(mezzo_optimizer *opt) {
    struct mz_stacks *k = opt->stacks;
    if (k == NULL)
        return;
    free_calls(k);
    if (k->d_segments != NULL)
        opt->device->backend->release(opt->device, k->d_segments);
    if (k->scratch != NULL)
        opt->device->backend->release(opt->device, k->scratch);
    MZ_FREE(k->list, k->directions, k->updates, k->collectives, k->moves, k->held, k->rows, k);
    opt->stacks = NULL;
}

size_t mz_stacks_bytes(const mezzo_optimizer *opt) {
    return opt->stacks != NULL ? opt->stacks->bytes + 2 * opt->stacks->n_segments * sizeof(mz_segment) : 0;
}

// --- rows' moving averages -------------------------------------------------------------------------------------------
mz_tensor mz_stacks_rows(const mezzo_optimizer *opt) {
    const struct mz_stacks *k = opt->stacks;
    return mz_tensor_f32(k != NULL ? k->scratch : NULL, k != NULL ? k->row_elements : 0);
}

int64_t mz_optimizer_row_count(const mezzo_optimizer *opt, int i) {
    const mz_shape *shape = &opt->params->list[opt->index[i]].shape;
    return mz_group_keeps_rows(&opt->groups[opt->group_of[i]]) ? mz_shape_count(shape) / shape->dim[shape->rank - 1]
                                                               : 0;
}

// Copies a parameter's numbers, which are consecutive, to or from all rows as they lie on the device.
static void copy_rows(const mezzo_optimizer *opt, int i, float *all, char *own, bool reads) {
    const struct mz_stacks *k = opt->stacks;
    const mz_param *p = &opt->params->list[opt->index[i]];
    const int64_t height = p->shape.dim[p->shape.rank - 2];
    for (size_t n = 0; n < k->n_rows; n++) {
        const mz_row_place *place = &k->rows[n];
        for (int64_t row = 0; place->owned == i && row < place->matrices * place->count; row++) {
            const int64_t matrix = row / place->count, r = place->first + row % place->count;
            float *there = all + place->at + matrix * place->pitch + stored_row(p, r) - stored_row(p, place->first);
            char *here = own + (size_t)(matrix * height + r) * sizeof(float);
            memcpy(reads ? (void *)here : (void *)there, reads ? (void *)there : (void *)here, sizeof(float));
        }
    }
}

// Reads or writes the rows' moving averages of a parameter.
static mezzo_status move_rows(const mezzo_optimizer *opt, int i, char *own, bool reads) {
    const mz_backend *b = opt->device->backend;
    const size_t bytes = (size_t)opt->stacks->row_elements * sizeof(float);
    MZ_SCOPED(mz_free_at) float *all = mz_alloc(1, bytes + 1);
    if (all == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    MEZZO_TRY(b->read(opt->device, all, opt->stacks->scratch, bytes));
    copy_rows(opt, i, all, own, reads);
    return reads ? MEZZO_OK : b->write(opt->device, opt->stacks->scratch, all, bytes);
}

mezzo_status mz_optimizer_read_rows(const mezzo_optimizer *opt, int i, float *out) {
    return move_rows(opt, i, (char *)out, true);
}

mezzo_status mz_optimizer_write_rows(mezzo_optimizer *opt, int i, const void *values) {
    return move_rows(opt, i, (char *)(uintptr_t)values, false);
}
