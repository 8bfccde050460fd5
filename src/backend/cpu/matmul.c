// Runs the matrix product's loops around a microkernel.
//
//   pack whole operands that would be packed again and again     all threads together, then they wait for each other:
//   see plan_shared items: columns in blocks of nb, rows in parts of mb         a free thread takes the next
//     for pk in k by kp                                         nearly always once
//       for i in rows, a few panels at a time
//         pack A (kp × mr, a few times): stays in L2
//         for j in nb by nr, a few at a time                    the first time pack B (kp × nr): it stays in L2 for all
//         rows
//           for i in these rows by mr, ks in kp by kc, j        microkernel; the epilogue after the last k
//
// Other panels are the thread's own. k is summed in the same order by one thread whatever item a tile is part of:
// bitwise repeatable. docs/dev/MATMUL.md has the measurements.
#include "backend/cpu/matmul.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define LINE         64
#define MAX_TILE     (32 * 32) // floats of the largest microkernel's tile
#define MAX_TEAM     256       // threads with a range of items of their own, at most
#define PACK_PANELS  8         // panels packed side by side, and how deep (see pack); a multiple of every k_unit
#define PACK_DEPTH   64
#define F32_PANELS   16 // the same for FP32: lines side by side that the core prefetches by itself
#define F32_DEPTH    16
#define PANEL_SHORT  512         // in k: A's panels shorter than this are packed several at a time
#define A_BYTES      (256 << 10) // of A's packed panels at a time, at most, unless one is larger
#define MAX_PANELS_B 64
// The least limit of B's packed panels in FP32: a tile takes long enough for a panel to come from L3, and A is packed
// fewer times.
#define F32_B_BYTES  ((size_t)1200 << 10)

static int64_t round_up(int64_t a, int64_t to) {
    return ceil_div(a, to) * to;
}

// --- blocking ------------------------------------------------------------------------------------------------------
typedef struct blocking {
    int64_t kc, kp;              // k of a call and of a packed block; kc divides kp
    int64_t k_blocks;            // packed blocks of one product
    int64_t m_panels, n_panels;  // of one product
    int64_t nb, mb;              // an item's columns and rows, in whole panels
    int64_t a_group;             // panels of A packed together
    int64_t across, down, items; // of one product; items: of all products
    bool epilogue;               // sums are not only stored
    bool direct;                 // whole tiles of sums are made in y
    bool rows;                   // A's whole panels are read without packing
    bool in_blocks;              // several packed blocks add to y, one after another
    size_t a_panel, b_panel;     // bytes of one packed panel
    size_t shared_a, shared_b;   // bytes of all panels, [batch][block of k][panel], where threads share them; or 0
    size_t a_bytes, b_bytes, sum_bytes; // of a thread's packed panels and tiles of sums
    size_t bytes;                       // of one thread
} blocking;

static bool has_epilogue(const mz_matmul_epilogue *e) {
    return e->y_dtype != MEZZO_F32 || e->bias != NULL || e->preact != NULL || e->act != MZ_ACT_NONE ||
           e->residual != NULL || (e->via != MEZZO_F32 && e->via != MEZZO_F64);
}

// Returns the size of equal blocks of at most `most`, a multiple of `unit`.
static int64_t equal_blocks(int64_t total, int64_t most, int64_t unit) {
    return round_up(ceil_div(total, ceil_div(total, most)), unit);
}

static size_t operand_size(mz_panel format) {
    switch (format) {
    case MZ_PANEL_F32:
    case MZ_PANEL_SPLIT_A: // two parts of two bytes
    case MZ_PANEL_SPLIT_B:
        return sizeof(float);
    default:
        return sizeof(uint16_t);
    }
}

static bool is_f32(const mz_microkernel *mk) {
    return mk->b_panel == MZ_PANEL_F32;
}

static int64_t band_panels(const mz_microkernel *mk) {
    return is_f32(mk) ? F32_PANELS : PACK_PANELS;
}

static int64_t band_depth(const mz_microkernel *mk) {
    return is_f32(mk) ? F32_DEPTH : PACK_DEPTH;
}

static size_t l2_bytes;

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

static void ask_l2(void) {
    long bytes = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    l2_bytes = (size_t)(bytes >= 1 << 18 ? bytes : 1 << 20);
}

// Weights for the time of a grid, in units of a tile's products, to find the blocks of columns and parts of rows with
// which `team` threads finish soonest. A panel that one more thread packs or reads costs PANEL: it comes from another
// core's cache, or from memory. Cores differ: a virtual one may be up to four times as slow as its neighbour for a
// while, and a thread that is done takes over, so that the last item decides.
#define PANEL        3
#define PANEL_SHARED 2
#define ITEM         4   // the cost of starting an item
#define LAST_ITEM    1.5 // how many times longer it takes than on the average core
static int64_t next_count(int64_t n) {
    return n + 1 + n / 4;
}

static void search_grid(blocking *b, int64_t most_panels, int64_t team, int64_t batches) {
    const int64_t m_panels = b->m_panels, n_panels = b->n_panels;
    const bool kept = b->k_blocks == 1;
    double best = 0;
    const double a_cost = b->shared_a > 0 ? PANEL_SHARED : PANEL, b_cost = b->shared_b > 0 ? PANEL_SHARED : PANEL;
    for (int64_t across = ceil_div(n_panels, most_panels); across <= n_panels; across = next_count(across)) {
        const int64_t n = ceil_div(n_panels, across), blocks = ceil_div(n_panels, n) * batches;
        for (int64_t m = 1; m <= m_panels; m = m < m_panels ? min64(m_panels, next_count(m)) : m + 1) {
            const int64_t items = ceil_div(m_panels, m) * blocks;
            const int64_t packed = kept ? min64(items, team + blocks - 1) : items; // blocks of B that all threads pack
            const double all = (double)(m_panels * n_panels * batches + ITEM * items) +
                               a_cost * (double)(m_panels * blocks) + b_cost * (double)(n * packed);
            const double last = team > 1 ? LAST_ITEM * ((double)(n * m) + b_cost * (double)n + a_cost * (double)m) : 0;
            const double cost = all / (double)min64(team, items) + last;
            if (best == 0 || cost < best) {
                best = cost;
                b->nb = n;
                b->mb = m;
            }
        }
    }
}

// Plans the grid. The same few products repeat where a program has thousands of blocks of rows, so their grids are
// kept.
static void plan_grid(blocking *b, int64_t most_panels, int64_t team, int64_t batches) {
    enum { KEPT = 8, KEY = 8 };
    static _Thread_local struct { int64_t key[KEY], nb, mb; } known[KEPT];
    static _Thread_local int next;
    const int64_t key[KEY] = {b->m_panels, b->n_panels, b->k_blocks == 1, b->shared_a > 0, b->shared_b > 0,
                              most_panels, team,        batches};
    int i = 0;
    while (i < KEPT && memcmp(known[i].key, key, sizeof key) != 0)
        i++;
    if (i == KEPT) {
        search_grid(b, most_panels, team, batches);
        i = next;
        next = (next + 1) % KEPT;
        memcpy(known[i].key, key, sizeof key);
        known[i].nb = b->nb;
        known[i].mb = b->mb;
    }
    b->nb = known[i].nb;
    b->mb = known[i].mb;
    b->across = ceil_div(b->n_panels, b->nb);
    b->down = ceil_div(b->m_panels, b->mb);
}

// An operand that would be packed SHARE_TIMES times or more is packed once before the first item, by all threads
// together; the smaller one first, and the grid is then chosen for the other. With fewer times sharing does not pay:
// shared panels are in other cores' caches, and are read from there at least as slowly as the operand itself. Nor does
// it pay below SHARE_GAIN elements of packing saved a thread, some microseconds of waiting for each other.
#define SHARE_TIMES  4
#define SHARE_GAIN   16384
#define SHARED_BYTES ((size_t)14 << 20)
#define SHARED_F32   ((size_t)64 << 20) // with products that take so long that shared panels may come from memory

// Returns how often panels are packed, all of them taken together, where every thread packs what it multiplies.
static double times_packed(const blocking *b, bool left, int64_t team, int64_t batches) {
    const int64_t blocks = b->across * batches, items = b->down * blocks;
    if (left)
        return b->rows ? 0 : (double)b->across;
    return (double)(b->k_blocks == 1 ? min64(items, team + blocks - 1) : items) / (double)blocks;
}

static void plan_shared(blocking *b, const mz_microkernel *mk, const mz_matmul_problem *p, int64_t most_panels,
                        int64_t team) {
    const int64_t blocks = b->k_blocks * p->batches;
    const size_t all_a = (size_t)(b->m_panels * blocks) * b->a_panel;
    const size_t all_b = (size_t)(b->n_panels * blocks) * b->b_panel;
    const size_t most = is_f32(mk) ? SHARED_F32 : SHARED_BYTES;
    for (int turn = 0; turn < 2; turn++) {
        const bool left = turn == (all_a < all_b ? 0 : 1);
        const double elements = (double)((left ? b->m_panels * mk->mr : b->n_panels * mk->nr) * blocks * b->kp);
        const double times = times_packed(b, left, team, p->batches);
        if (times < SHARE_TIMES || (times - 1) * elements / (double)team < SHARE_GAIN ||
            (left ? all_a : all_b) > most - b->shared_a - b->shared_b)
            continue;
        if (left)
            b->shared_a = all_a;
        else
            b->shared_b = all_b;
        plan_grid(b, most_panels, team, p->batches);
    }
}

// Returns whether rows are read without packing. Rows must be whole cache lines, and k whole steps, because what lies
// after a row's end may not be finite. Rows a multiple of 2 KiB apart are packed: the same column of 32 rows would have
// only two of L1's sets.
static bool reads_rows(const mz_microkernel *mk, const mz_matmul_problem *p) {
    return mk->run_rows != NULL && p->a.gather == NULL && p->a.dtype == MEZZO_BF16 && p->a.k_stride == 1 &&
           p->k % mk->k_unit == 0 && p->a.i_stride * 2 % LINE == 0 && p->a.i_stride * 2 % 2048 != 0;
}

// Plans blocks. kc and kp depend on k and on the operands' strides, never on threads, because they decide the order of
// summation.
static blocking plan_blocks(const mz_microkernel *mk, const mz_matmul_problem *p, int threads) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask_l2);
    blocking b = {0};
    b.kc = equal_blocks(p->k, mk->kc, mk->k_unit);
    const bool whole = p->a.k_stride == 1 && p->k <= mk->depth;
    b.kp = equal_blocks(p->k, max64(b.kc, whole ? mk->depth : mk->depth_across), b.kc);
    b.a_panel = mz_align_up((size_t)(b.kp * mk->mr) * operand_size(mk->a_panel) + MZ_PANEL_SLACK, LINE);
    b.b_panel = mz_align_up((size_t)(b.kp * mk->nr) * operand_size(mk->b_panel) + MZ_PANEL_SLACK, LINE);
    // Most of a core's L2 cache; the rest is for A's panels and the sums.
    const size_t most_of_l2 = l2_bytes / 8 * 5, b_budget = is_f32(mk) ? max_size(F32_B_BYTES, most_of_l2) : most_of_l2;
    b.k_blocks = ceil_div(p->k, b.kp);
    b.m_panels = ceil_div(p->m, mk->mr);
    b.n_panels = ceil_div(p->n, mk->nr);
    b.rows = reads_rows(mk, p);
    const int64_t most = max64(1, min64(MAX_PANELS_B, (int64_t)(b_budget / b.b_panel)));
    plan_grid(&b, most, threads, p->batches);
    plan_shared(&b, mk, p, most, threads);
    b.items = b.across * b.down * p->batches;
    // Tiles' panels are long, so one is packed at a time, unless rows do not lie along k and one panel would use one
    // line of a page.
    const bool one = mk->kc >= PANEL_SHORT && p->a.k_stride == 1;
    b.a_group = one ? 1 : max64(1, min64(b.mb, (int64_t)(A_BYTES / b.a_panel)));
    b.epilogue = has_epilogue(&p->out);
    b.in_blocks = !b.epilogue && b.kp < p->k;
    b.direct = !b.epilogue && (mk->in_y || b.kc >= p->k);
    b.a_bytes = b.shared_a > 0 ? 0 : (size_t)b.a_group * b.a_panel;
    b.b_bytes = b.shared_b > 0 ? 0 : (size_t)b.nb * b.b_panel;
    bool kept = b.epilogue && b.kp < p->k; // sums of all rows wait for the next packed block
    b.sum_bytes = (size_t)(b.nb * (kept ? b.mb : 1)) * (size_t)(mk->mr * mk->nr) * sizeof(float);
    b.bytes = mz_align_up(b.a_bytes + b.b_bytes + b.sum_bytes, LINE);
    b.nb *= mk->nr;
    b.mb *= mk->mr;
    return b;
}

// --- pieces of k ---------------------------------------------------------------------------------------------------
// Divides long k into pieces where neither operand lies along k (a layer's gradient: every token of a batch): all of k
// does not fit a core's cache, so that B's block would be packed again for every item. Pieces that fit are products of
// their own, into the workspace, and added in order: their number depends on the shape alone.
#define PIECES_BYTES (64 << 20)

static int64_t pieces_of(const mz_microkernel *mk, const mz_matmul_problem *p) {
    const bool plain =
        p->batches == 1 && p->b.gather == NULL && !has_epilogue(&p->out) && p->a.k_stride != 1 && p->b.k_stride != 1;
    if (!plain || mk->piece == 0 || p->k % mk->piece != 0)
        return 1;
    const int64_t pieces = p->k / mk->piece;
    return pieces * p->m * p->n * (int64_t)sizeof(float) <= PIECES_BYTES ? pieces : 1;
}

static mz_matmul_problem in_pieces(const mz_matmul_problem *p, int64_t pieces, float *sums) {
    mz_matmul_problem q = *p;
    q.batches = pieces;
    q.k = p->k / pieces;
    q.a_step = q.k * p->a.k_stride;
    q.b_step = q.k * p->b.k_stride;
    q.y_step = p->m * p->n;
    q.out.y = sums; // [pieces, m, n]
    q.out.ld = p->n;
    q.accumulate = false;
    return q;
}

static size_t bytes_of_pieces(const mz_matmul_problem *p, int64_t pieces) {
    return mz_align_up((size_t)(pieces * p->m * p->n) * sizeof(float), LINE);
}

static void add_pieces(const mz_matmul_isa *isa, const mz_matmul_problem *p, const float *sums, int64_t pieces,
                       int threads) {
    const int64_t step = p->m * p->n;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t row = 0; row < p->m; row++)
        isa->add_pieces(sums + row * p->n, step, pieces, (float *)p->out.y + row * p->out.ld, p->n, p->accumulate);
}

static size_t bytes_of_panels(mz_matmul_path path, const mz_matmul_problem *problem, int threads) {
    const blocking b = plan_blocks(path.kernel, problem, threads);
    return b.shared_a + b.shared_b + b.bytes * (size_t)threads;
}

size_t mz_matmul_workspace(mz_matmul_path path, const mz_matmul_problem *problem, int threads) {
    const int64_t pieces = pieces_of(path.kernel, problem);
    if (pieces == 1)
        return bytes_of_panels(path, problem, threads);
    const mz_matmul_problem q = in_pieces(problem, pieces, NULL);
    return bytes_of_pieces(problem, pieces) + bytes_of_panels(path, &q, threads);
}

// --- one thread's work ---------------------------------------------------------------------------------------------
typedef struct worker {
    const mz_matmul_problem *p;
    const mz_microkernel *mk;
    const mz_matmul_isa *isa;
    const blocking *b;
    mz_matmul_operand a_op, b_op; // of this batch
    mz_matmul_epilogue out;
    char *shared_a, *shared_b; // all panels: [batch][block of k][panel]
    char *a_pack, *b_pack;     // of this thread, where they are not shared
    const char *b_panels;      // of the item, for this block of k
    float *sums;               // tiles of the present row of tiles, or of the whole item
    int64_t packed; // the packed block of B: batch · across + block of columns; -1: none that can be used again
    int64_t batch, i0, i1, j0, j1; // of the item
} worker;

// Says where the loops over k are: the present packed block.
typedef struct place {
    int64_t pk, nk, nk_padded;
    bool first, last; // blocks of k
} place;

// --- packing -------------------------------------------------------------------------------------------------------
typedef void pack_fn(mz_panel format, int width, void *dst, const mz_matmul_operand *src, int64_t i0, int ni,
                     int64_t k0, int64_t nk, int64_t k_padded);

// Packs an operand that lies in an image: it is copied first, into memory that stays in L1.
static void pack_gathered(pack_fn *packs, mz_panel format, int width, char *dst, const mz_matmul_operand *src,
                          int64_t i0, int ni, int64_t k0, int64_t nk, int64_t k_padded) {
    char block[MZ_GATHER_WIDTH * MZ_GATHER_DEPTH * sizeof(float)] __attribute__((aligned(LINE)));
    mz_matmul_operand here = *src;
    const bool along_k = src->k_stride == 1;
    here.data = block;
    here.gather = NULL;
    here.i_stride = along_k ? MZ_GATHER_DEPTH : 1;
    here.k_stride = along_k ? 1 : MZ_GATHER_WIDTH;
    for (int64_t k = 0; k < k_padded; k += MZ_GATHER_DEPTH) {
        const int64_t n = min64(MZ_GATHER_DEPTH, nk - k);
        mz_gather_copy(src->gather, src->data, mezzo_dtype_size(src->dtype), block, i0, ni, k0 + k, n);
        packs(format, width, dst + (size_t)(k * width) * operand_size(format), &here, 0, ni, 0, n,
              min64(MZ_GATHER_DEPTH, k_padded - k));
    }
}

void mz_matmul_pack_b(mz_matmul_path path, void *panel, const mz_matmul_operand *b, int64_t j0, int nj, int64_t k) {
    pack_fn *const packs = path.kernel->pack != NULL ? path.kernel->pack : path.isa->pack;
    if (b->gather != NULL)
        pack_gathered(packs, path.kernel->b_panel, path.kernel->nr, panel, b, j0, nj, 0, k, k);
    else
        packs(path.kernel->b_panel, path.kernel->nr, panel, b, j0, nj, 0, k, k);
}

// Packs `depth` of k, from k on, of adjacent panels with at most `count` of the operand's rows from `start` on.
static void pack_band(const worker *w, const place *at, bool left, int64_t start, int64_t count, int64_t panels,
                      char *packed, int64_t k, int64_t depth) {
    const mz_matmul_operand *op = left ? &w->a_op : &w->b_op;
    const mz_panel format = left ? w->mk->a_panel : w->mk->b_panel;
    const int width = left ? w->mk->mr : w->mk->nr;
    const size_t panel_bytes = left ? w->b->a_panel : w->b->b_panel, row = (size_t)width * operand_size(format);
    pack_fn *const packs = w->mk->pack != NULL ? w->mk->pack : w->isa->pack;
    for (int64_t panel = 0; panel < panels; panel++) {
        const int64_t i = panel * width;
        char *dst = packed + (size_t)panel * panel_bytes + (size_t)k * row;
        const int rows = (int)min64(width, count - i);
        const int64_t nk = min64(depth, at->nk - k), padded = min64(depth, at->nk_padded - k);
        if (op->gather != NULL)
            pack_gathered(packs, format, width, dst, op, start + i, rows, at->pk + k, nk, padded);
        else
            packs(format, width, dst, op, start + i, rows, at->pk + k, nk, padded);
    }
}

// Packs whole panels or, where rows do not lie along k, bands of a few of k across all panels: one narrow panel from
// top to bottom would touch a new page at every row or two.
static void pack(const worker *w, const place *at, bool left, int64_t start, int64_t count, int64_t panels,
                 char *packed) {
    const int64_t depth = (left ? w->a_op : w->b_op).k_stride == 1 ? at->nk_padded : band_depth(w->mk);
    for (int64_t k = 0; k < at->nk_padded; k += depth)
        pack_band(w, at, left, start, count, panels, packed, k, depth);
}

static place place_of(const worker *w, int64_t k_block) {
    const int64_t k = w->p->k, pk = k_block * w->b->kp, nk = min64(w->b->kp, k - pk);
    return (place){pk, nk, round_up(nk, w->mk->k_unit), pk == 0, pk + nk == k};
}

static char *shared_panel(const worker *w, bool left, int64_t batch, int64_t pk, int64_t panel) {
    const blocking *b = w->b;
    const int64_t before = (batch * b->k_blocks + pk / b->kp) * (left ? b->m_panels : b->n_panels) + panel;
    return left ? w->shared_a + (size_t)before * b->a_panel : w->shared_b + (size_t)before * b->b_panel;
}

static const void *offset(const void *data, mezzo_dtype dtype, int64_t elements) {
    return (const char *)data + (size_t)elements * mezzo_dtype_size(dtype);
}

static void go_to_batch(worker *w, int64_t batch) {
    const mz_matmul_problem *p = w->p;
    w->batch = batch;
    w->a_op.data = offset(p->a.data, p->a.dtype, batch * p->a_step);
    w->b_op.data = offset(p->b.data, p->b.dtype, batch * p->b_step);
    w->out.y = (char *)p->out.y + (size_t)(batch * p->y_step) * mezzo_dtype_size(p->out.y_dtype);
    if (p->out.residual != NULL)
        w->out.residual = offset(p->out.residual, p->out.residual_dtype, batch * p->y_step);
}

// Chunks of some thousand elements in which free threads pack a shared operand. A store of a partial vector writes past
// its row's end and the next row's store overwrites it, so one thread packs such a panel from top to bottom.
typedef struct chunks {
    int64_t panels, depth; // of one chunk
    int64_t across, down;  // chunks of a packed block
    int64_t all;           // number of all chunks
} chunks;

static chunks chunks_of(const mz_matmul_problem *p, const mz_microkernel *mk, const blocking *b, bool left) {
    const bool along_k = (left ? p->a : p->b).k_stride == 1, whole_vectors = (left ? mk->mr : mk->nr) % 16 == 0;
    chunks t = {.panels = along_k ? 1 : band_panels(mk), .depth = along_k ? PACK_PANELS * PACK_DEPTH : PACK_DEPTH};
    if (!whole_vectors)
        t.depth = round_up(b->kp, mk->k_unit);
    t.across = ceil_div(left ? b->m_panels : b->n_panels, t.panels);
    t.down = ceil_div(b->kp, t.depth);
    t.all = (left ? b->shared_a > 0 : b->shared_b > 0) ? t.across * t.down * b->k_blocks * p->batches : 0;
    return t;
}

static void pack_chunk(worker *w, bool left, const chunks *t, int64_t chunk) {
    const int64_t down = chunk % t->down, across = chunk / t->down % t->across, block = chunk / t->down / t->across;
    const place at = place_of(w, block % w->b->k_blocks);
    const int64_t width = left ? w->mk->mr : w->mk->nr, panel = across * t->panels, rows = left ? w->p->m : w->p->n;
    const int64_t panels = min64(t->panels, (left ? w->b->m_panels : w->b->n_panels) - panel);
    go_to_batch(w, block / w->b->k_blocks);
    char *packed = shared_panel(w, left, w->batch, at.pk, panel);
    const int64_t end = min64(at.nk_padded, (down + 1) * t->depth),
                  step = t->panels == 1 ? t->depth : band_depth(w->mk);
    for (int64_t k = down * t->depth; k < end; k += step)
        pack_band(w, &at, left, panel * width, rows - panel * width, panels, packed, k, min64(step, end - k));
}

// --- products ------------------------------------------------------------------------------------------------------
// Finishes a tile whose sums are complete, on their way to y.
static void finish_tile(const worker *w, const float *sums, int64_t row, int64_t column, int rows, int columns) {
    const mz_microkernel *mk = w->mk;
    if (!(columns == mk->nr && mk->finish != NULL && mk->finish(&w->out, sums, mk->nr, row, column, rows)))
        w->isa->epilogue(&w->out, sums, mk->nr, row, column, rows, columns);
}

// Prefetches what the epilogue of a tile reads from memory, before the tile's products, so that it is in cache after
// them (docs/dev/MATMUL.md).
static void ask_for(const void *data, mezzo_dtype dtype, int64_t ld, int64_t i, int64_t j, int rows, int columns) {
    const size_t size = mezzo_dtype_size(dtype);
    const char *first = data;
    for (int row = 0; data != NULL && row < rows; row++)
        for (size_t line = 0; line < (size_t)columns * size; line += LINE)
            __builtin_prefetch(first + (size_t)((i + row) * ld + j) * size + line, 0, 2);
}

static void ask_for_epilogue(const worker *w, int64_t i, int64_t j, int rows, int columns) {
    const mz_matmul_epilogue *e = &w->out;
    ask_for(e->act_gradient ? e->preact : NULL, e->preact_dtype, e->ld, i, j, rows, columns);
    ask_for(e->residual, e->residual_dtype, e->ld, i, j, rows, columns);
}

// Multiplies the tile of rows from i and columns from j by one call, with k from ks of the packed block on.
static void multiply_tile(const worker *w, const place *at, const char *a_panel, int64_t i, int64_t j, int64_t ks) {
    const mz_microkernel *mk = w->mk;
    const blocking *b = w->b;
    const int64_t nk = min64(b->kc, at->nk_padded - ks), panel = (j - w->j0) / mk->nr;
    const int rows = (int)min64(mk->mr, w->i1 - i), columns = (int)min64(mk->nr, w->j1 - j);
    const bool stored = ks + nk == at->nk_padded && (at->last || b->in_blocks);
    float tile[MAX_TILE] __attribute__((aligned(LINE))), *sums = tile;
    int64_t ld = mk->nr;
    bool add = ks > 0 || !(at->first || b->in_blocks), direct = false;
    if (b->direct && rows == mk->mr && columns == mk->nr) {
        direct = true;
        sums = (float *)w->out.y + i * w->out.ld + j;
        ld = w->out.ld;
        add = ks > 0 || w->out.add;
    } else if (at->nk_padded > b->kc || !(b->in_blocks || (at->first && at->last))) {
        int64_t row = b->epilogue && b->kp < w->p->k ? (i - w->i0) / mk->mr : 0;
        sums = w->sums + (row * (b->nb / mk->nr) + panel) * mk->mr * mk->nr;
    }
    const char *bp = w->b_panels + (size_t)panel * b->b_panel + (size_t)(ks * mk->nr) * operand_size(mk->b_panel);
    if (stored && b->epilogue)
        ask_for_epilogue(w, i, j, rows, columns);
    if (b->rows && rows == mk->mr) {
        const size_t a_row = (size_t)w->a_op.i_stride * sizeof(uint16_t);
        const char *a = (const char *)w->a_op.data + (size_t)i * a_row + (size_t)(at->pk + ks) * sizeof(uint16_t);
        mk->run_rows(nk, a, a_row, bp, sums, ld, add);
    } else {
        mk->run(nk, a_panel + (size_t)(ks * mk->mr) * operand_size(mk->a_panel), bp, sums, ld, add);
    }
    if (stored && !direct)
        finish_tile(w, sums, i, j, rows, columns);
}

// Multiplies `rows` panels of A from row i on, packed at `a`, by `columns` panels of B from the j-th on.
static void multiply_panels(const worker *w, const place *at, const char *a, int64_t i, int64_t rows, int64_t j,
                            int64_t columns) {
    const mz_microkernel *mk = w->mk;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t ks = 0; ks < at->nk_padded; ks += w->b->kc)
            for (int64_t column = j; column < j + columns; column++)
                multiply_tile(w, at, a + (size_t)row * w->b->a_panel, i + row * mk->mr, w->j0 + column * mk->nr, ks);
}

// Multiplies rows of a few panels from i on, which are packed unless they are read directly. With `pack_b` B's panels
// are packed when they are needed, in bands of several where their rows do not lie along k.
static void multiply_rows(const worker *w, const place *at, int64_t i, int64_t panels, bool pack_b) {
    const mz_microkernel *mk = w->mk;
    const int64_t columns = ceil_div(w->j1 - w->j0, mk->nr);
    const int64_t group = !pack_b ? columns : w->b_op.k_stride == 1 ? 1 : band_panels(mk);
    const int64_t as_they_lie = w->b->rows ? min64(panels, (w->i1 - i) / mk->mr) : 0, from = i + as_they_lie * mk->mr;
    const char *a = w->b->shared_a > 0 ? shared_panel(w, true, w->batch, at->pk, i / mk->mr) : w->a_pack;
    if (w->b->shared_a == 0)
        pack(w, at, true, from, w->i1 - from, panels - as_they_lie, w->a_pack + (size_t)as_they_lie * w->b->a_panel);
    for (int64_t column = 0; column < columns; column += group) {
        int64_t n = min64(group, columns - column), j = w->j0 + column * mk->nr;
        if (pack_b)
            pack(w, at, false, j, w->j1 - j, n, w->b_pack + (size_t)column * w->b->b_panel);
        multiply_panels(w, at, a, i, panels, column, n);
    }
}

static void multiply_item(worker *w, int64_t block) {
    const mz_microkernel *mk = w->mk;
    const blocking *b = w->b;
    const bool add = w->out.add;
    for (int64_t k_block = 0; k_block < b->k_blocks; k_block++) {
        const place at = place_of(w, k_block);
        w->out.add = add || (b->in_blocks && !at.first);
        w->b_panels = b->shared_b > 0 ? shared_panel(w, false, w->batch, at.pk, w->j0 / mk->nr) : w->b_pack;
        bool pack_b = b->shared_b == 0 && (w->packed != block || !at.first || !at.last);
        for (int64_t i = w->i0; i < w->i1; i += b->a_group * mk->mr, pack_b = false)
            multiply_rows(w, &at, i, min64(b->a_group, ceil_div(w->i1 - i, mk->mr)), pack_b);
    }
    w->packed = b->k_blocks == 1 ? block : -1;
    w->out.add = add;
}

// --- items and threads ---------------------------------------------------------------------------------------------
static void run_item(worker *w, int64_t item) {
    const mz_matmul_problem *p = w->p;
    const blocking *b = w->b;
    int64_t batch = item / (b->across * b->down), part = item % b->down, columns = item / b->down % b->across;
    go_to_batch(w, batch);
    w->j0 = columns * b->nb;
    w->j1 = min64(p->n, w->j0 + b->nb);
    w->i0 = part * b->mb;
    w->i1 = min64(p->m, w->i0 + b->mb);
    multiply_item(w, item / b->down);
}

// Ranges of items, one for every thread, whose neighbours share B's block; a thread that is done helps the next ones.
typedef struct ranges {
    int team;
    int64_t items;
    _Alignas(LINE) atomic_llong chunks; // chunks of packing that are taken
    _Alignas(LINE) atomic_llong packed; // chunks that are done
    struct {
        _Alignas(LINE) atomic_llong taken;
    } of[MAX_TEAM];
} ranges;

static int64_t take(ranges *r, int *whose, int *visited) {
    while (*visited < r->team) {
        int64_t first = r->items * *whose / r->team, last = r->items * (*whose + 1) / r->team;
        int64_t item = first + atomic_fetch_add_explicit(&r->of[*whose].taken, 1, memory_order_relaxed);
        if (item < last)
            return item;
        *whose = (*whose + 1) % r->team;
        ++*visited;
    }
    return -1;
}

#define SPINS 2000 // about 50 µs
static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Packs what is shared, and returns when all is packed: a late thread finds nothing to do, and no thread waits for it.
static void pack_shared(worker *w, ranges *r) {
    const chunks a = chunks_of(w->p, w->mk, w->b, true), b = chunks_of(w->p, w->mk, w->b, false);
    int64_t chunk, mine = 0;
    for (; (chunk = atomic_fetch_add_explicit(&r->chunks, 1, memory_order_relaxed)) < a.all + b.all; mine++)
        if (chunk < b.all)
            pack_chunk(w, false, &b, chunk);
        else
            pack_chunk(w, true, &a, chunk - b.all);
    atomic_fetch_add_explicit(&r->packed, mine, memory_order_release);
    for (int turns = 0; atomic_load_explicit(&r->packed, memory_order_acquire) < a.all + b.all; turns++)
        if (turns < SPINS)
            relax();
        else
            sched_yield();
}

static void multiply_items(worker *w, ranges *r, int thread) {
    if (w->mk->begin != NULL)
        w->mk->begin();
    int whose = thread, visited = 0;
    for (int64_t item; (item = take(r, &whose, &visited)) >= 0;)
        run_item(w, item);
    if (w->mk->end != NULL)
        w->mk->end();
}

static void run_items(mz_matmul_path path, const mz_matmul_problem *p, int threads, char *workspace) {
    const blocking b = plan_blocks(path.kernel, p, threads);
    ranges r = {.team = (int)min64(min64(threads, b.items), MAX_TEAM), .items = b.items};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int thread = omp_get_thread_num();
        worker w = {.p = p, .mk = path.kernel, .isa = path.isa, .b = &b, .a_op = p->a, .b_op = p->b, .out = p->out};
        w.out.add = p->accumulate;
        w.packed = -1;
        w.shared_a = workspace;
        w.shared_b = w.shared_a + b.shared_a;
        w.b_pack = w.shared_b + b.shared_b + b.bytes * (size_t)thread;
        w.a_pack = w.b_pack + b.b_bytes;
        w.sums = (float *)(void *)(w.a_pack + b.a_bytes);
        if (b.shared_a > 0 || b.shared_b > 0)
            pack_shared(&w, &r);
        if (thread < r.team)
            multiply_items(&w, &r, thread);
    }
}

void mz_matmul_run(mz_matmul_path path, const mz_matmul_problem *problem, int threads, void *workspace) {
    const int64_t pieces = pieces_of(path.kernel, problem);
    if (pieces == 1) {
        run_items(path, problem, threads, workspace);
        return;
    }
    const mz_matmul_problem q = in_pieces(problem, pieces, workspace);
    run_items(path, &q, threads, (char *)workspace + bytes_of_pieces(problem, pieces));
    add_pieces(path.isa, problem, workspace, pieces, threads);
}

// --- a few rows ----------------------------------------------------------------------------------------------------
// For a few rows, a thread reads one stretch of the weights from end to end, and a thread that is done helps the next
// ones. A tile is so small that no thread waits long for the last one.
#define TILE_COLUMNS 16
#define TILE_WEIGHTS (24 << 10) // bytes of a tile

size_t mz_matmul_rows_workspace(const mz_matmul_problem *p) {
    return mz_align_up((size_t)(p->m * p->k) * sizeof(float), LINE);
}

static float float_at(const char *x, mezzo_dtype dtype, int64_t i) {
    uint16_t half;
    float whole;
    if (dtype == MEZZO_F32) {
        memcpy(&whole, x + 4 * i, sizeof whole);
        return whole;
    }
    memcpy(&half, x + 2 * i, sizeof half);
    return dtype == MEZZO_BF16 ? mezzo_bf16_to_f32(half) : mezzo_f16_to_f32(half);
}

// Arranges a row of x as the kernel needs it with BF16 weights, two of which are in a word: numbers at even places
// first.
static void arrange_row(const char *x, mezzo_dtype dtype, int64_t k, float *to) {
    const int64_t pairs = dtype == MEZZO_BF16 ? k / 2 : 0, even = k - k / 2;
#pragma omp simd
    for (int64_t i = 0; i < pairs; i++) {
        uint32_t word;
        memcpy(&word, x + 4 * i, sizeof word);
        const uint32_t low = word << 16, high = word & 0xFFFF0000u;
        memcpy(to + i, &low, sizeof low);
        memcpy(to + even + i, &high, sizeof high);
    }
    for (int64_t i = 2 * pairs; i < k; i++)
        to[(i % 2) * even + i / 2] = float_at(x, dtype, i);
}

static const float *arrange(const mz_matmul_problem *p, float *workspace) {
    if (p->b.dtype != MEZZO_BF16 && p->a.dtype == MEZZO_F32)
        return p->a.data;
    if (p->b.dtype != MEZZO_BF16)
        (void)mezzo_convert(p->a.data, p->a.dtype, workspace, MEZZO_F32, // floats always convert to floats
                            (size_t)(p->m * p->k));
    for (int64_t i = 0; p->b.dtype == MEZZO_BF16 && i < p->m; i++)
        arrange_row(offset(p->a.data, p->a.dtype, i * p->k), p->a.dtype, p->k, workspace + i * p->k);
    return workspace;
}

void mz_matmul_rows_run(const mz_matmul_isa *isa, const mz_matmul_problem *p, int threads, void *workspace) {
    const float *x = arrange(p, workspace);
    const int64_t row = p->k * (int64_t)mezzo_dtype_size(p->b.dtype);
    const int64_t width = max64(1, min64(TILE_COLUMNS, TILE_WEIGHTS / row)), tiles = ceil_div(p->n, width);
    ranges r = {.team = (int)min64(min64(threads, tiles), MAX_TEAM), .items = tiles};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float tile[MZ_MATMUL_ROWS * TILE_COLUMNS];
        int whose = omp_get_thread_num(), visited = whose < r.team ? 0 : r.team;
        for (int64_t t; (t = take(&r, &whose, &visited)) >= 0;) {
            const int64_t j = t * width;
            const int columns = (int)min64(width, p->n - j);
            isa->rows(x, p->m, p->k, offset(p->b.data, p->b.dtype, j * p->k), p->b.dtype, columns, tile, TILE_COLUMNS);
            isa->epilogue(&p->out, tile, TILE_COLUMNS, 0, j, (int)p->m, columns);
        }
    }
}

// --- column sums ---------------------------------------------------------------------------------------------------
#define COLUMNS_AT_ONCE 64

void mz_matmul_column_sums(mz_matmul_path path, const void *x, mezzo_dtype dtype, int64_t rows, int64_t columns,
                           float *sums, bool add, int threads) {
    int64_t groups = ceil_div(columns, COLUMNS_AT_ONCE);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t g = 0; g < groups; g++) {
        int64_t first = g * COLUMNS_AT_ONCE;
        path.isa->column_sums(x, dtype, rows, columns, first, min64(COLUMNS_AT_ONCE, columns - first), sums + first,
                              add);
    }
}
