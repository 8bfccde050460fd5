// The matrix product's driver: loops around a microkernel.
//
//   items: columns in blocks of nb, rows in parts of mb         whoever is free takes the next
//     for pk in k by kp                                         nearly always once
//       pack B (kp × nb): it stays in this core's L2 cache
//       for i in rows, a few panels at a time
//         pack A (kp × mr): it stays in L1 while B's panels go by
//         for ks in kp by kc
//           for j in nb by nr                                   microkernel; the epilogue after the last k
//
// Nothing packed is shared, so threads never wait for each other; k is summed in the same order by one thread whatever item a tile
// is part of: bitwise repeatable. docs/dev/MATMUL.md has the measurements behind this.
#include "backend/cpu/matmul.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define LINE         64
#define MAX_TILE     (32 * 32) // floats of the largest microkernel's tile
#define MAX_TEAM     256       // threads with a range of items of their own
#define PACK_PANELS  8         // panels packed side by side, and how deep: see pack_panels. A multiple of every k_unit.
#define PACK_DEPTH   64
#define A_BYTES      (256 << 10) // packed panels of A at a time, at most, unless one is more
#define MAX_PANELS_B 32

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t round_up(int64_t a, int64_t to) {
    return ceil_div(a, to) * to;
}

// --- blocking -----------------------------------------------------------------------------------------------------------
typedef struct blocking {
    int64_t kc, kp;                     // k of a call and of a packed block, kc dividing kp
    int64_t nb, mb;                     // an item's columns and rows: whole panels
    int64_t a_group;                    // panels of A packed together
    int64_t across, down, items;        // of one product; of all
    bool epilogue;                      // more happens to sums than being stored
    bool direct;                        // whole tiles of sums are made in y
    bool in_blocks;                     // several packed blocks add to y, one after another
    size_t a_panel, b_panel;            // bytes of one packed panel
    size_t a_bytes, b_bytes, sum_bytes; // a thread's packed panels and tiles of sums
    size_t bytes;                       // of one thread
} blocking;

static bool has_epilogue(const mz_matmul_epilogue *e) {
    return e->y_dtype != MEZZO_F32 || e->bias != NULL || e->preact != NULL || e->act != MZ_ACT_NONE ||
           e->residual != NULL || (e->via != MEZZO_F32 && e->via != MEZZO_F64);
}

// Equal blocks of at most `most`, each a multiple of `unit`.
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

// What B's block may take of a core's L2 cache: the rest is for A's panels, the sums and what is prefetched.
static size_t b_budget;

static void ask_l2(void) {
    long bytes = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    b_budget = (size_t)(bytes >= 1 << 18 ? bytes : 1 << 20) / 8 * 5;
}

// How many blocks of columns and parts of rows make `team` threads finish soonest. In units of a tile's products, packing a panel
// of B costs about 2 (and 1 for A's), so that dividing rows is no better than dividing columns.
static void plan_grid(blocking *b, int64_t m_panels, int64_t n_panels, int64_t most_panels, int64_t team,
                      int64_t batches) {
    int64_t least = ceil_div(n_panels, most_panels), best = 0;
    for (int64_t across = least; across <= min64(n_panels, max64(least, 4 * team)); across++)
        for (int64_t down = 1; down <= min64(m_panels, 4 * team); down *= 2) {
            int64_t n = ceil_div(n_panels, across), m = ceil_div(m_panels, down);
            int64_t rounds = ceil_div(ceil_div(n_panels, n) * ceil_div(m_panels, m) * batches, team);
            int64_t cost = rounds * (n * m + 2 * n + m);
            if (best == 0 || cost < best) {
                best = cost;
                b->across = ceil_div(n_panels, n);
                b->down = ceil_div(m_panels, m);
                b->nb = n;
                b->mb = m;
            }
        }
}

// kc and kp depend on k alone, never on threads: they decide the order of summation.
static blocking plan_blocks(const mz_microkernel *mk, const mz_matmul_problem *p, int threads) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask_l2);
    blocking b = {0};
    b.kc = equal_blocks(p->k, mk->kc, mk->k_unit);
    b.kp = equal_blocks(p->k, max64(b.kc, p->a.k_stride == 1 ? mk->depth : mk->depth_across), b.kc);
    b.a_panel = mz_align_up((size_t)(b.kp * mk->mr) * operand_size(mk->a_panel) + MZ_PANEL_SLACK, LINE);
    b.b_panel = mz_align_up((size_t)(b.kp * mk->nr) * operand_size(mk->b_panel) + MZ_PANEL_SLACK, LINE);
    int64_t m_panels = ceil_div(p->m, mk->mr), n_panels = ceil_div(p->n, mk->nr);
    int64_t most = max64(1, min64(MAX_PANELS_B, (int64_t)(b_budget / b.b_panel)));
    plan_grid(&b, m_panels, n_panels, most, threads, p->batches);
    b.items = b.across * b.down * p->batches;
    b.a_group = max64(1, min64(b.mb, (int64_t)(A_BYTES / b.a_panel)));
    b.epilogue = has_epilogue(&p->out);
    b.in_blocks = !b.epilogue && b.kp < p->k;
    b.direct = !b.epilogue && (mk->in_y || b.kc >= p->k);
    b.a_bytes = (size_t)b.a_group * b.a_panel;
    b.b_bytes = (size_t)b.nb * b.b_panel;
    bool kept = b.epilogue && b.kp < p->k; // sums of all rows wait for the next packed block
    b.sum_bytes = (size_t)(b.nb * (kept ? b.mb : 1)) * (size_t)(mk->mr * mk->nr) * sizeof(float);
    b.bytes = mz_align_up(b.a_bytes + b.b_bytes + b.sum_bytes, LINE);
    b.nb *= mk->nr;
    b.mb *= mk->mr;
    return b;
}

size_t mz_matmul_workspace(mz_matmul_path path, const mz_matmul_problem *problem, int threads) {
    return plan_blocks(path.kernel, problem, threads).bytes * (size_t)threads;
}

// --- one thread's work ----------------------------------------------------------------------------------------------------
typedef struct worker {
    const mz_matmul_problem *p;
    const mz_microkernel *mk;
    const mz_matmul_isa *isa;
    const blocking *b;
    mz_matmul_operand a_op, b_op; // this batch's
    mz_matmul_epilogue out;
    char *a_pack, *b_pack;
    float *sums;    // tiles: of the row of tiles under way, or of all of the item
    int64_t packed; // which block of B is there: batch · across + block of columns; -1: none that can be used again
    int64_t i0, i1, j0, j1; // the item
} worker;

// Where the loops over k are: the packed block.
typedef struct place {
    int64_t pk, nk, nk_padded;
    bool first, last; // of k
} place;

// Asks for part `part` of `parts` of what the panel of `rows` rows from i will read.
static void prefetch_panel(const mz_matmul_operand *op, int64_t i, int64_t rows, const place *at, int64_t part,
                           int64_t parts) {
    const int64_t size = (int64_t)mezzo_dtype_size(op->dtype);
    bool along_k = op->k_stride == 1;
    int64_t runs = along_k ? rows : at->nk, run_bytes = (along_k ? at->nk : rows) * size;
    int64_t run_step = (along_k ? op->i_stride : op->k_stride) * size;
    const char *base = (const char *)op->data + (i * op->i_stride + at->pk * op->k_stride) * size;
    for (int64_t run = runs * part / parts; run < runs * (part + 1) / parts; run++)
        for (int64_t line = 0; line < run_bytes; line += LINE)
            __builtin_prefetch(base + run * run_step + line, 0, 2);
}

// `panels` panels of `width` from row `start` of an operand that has `count` rows from there. A source that is contiguous along i is
// read in bands of PACK_DEPTH rows across all the panels: one narrow panel from top to bottom would touch a new page at every row
// or two.
static void pack_panels(const worker *w, const place *at, bool left, int64_t start, int64_t count, int64_t panels,
                        char *packed) {
    const mz_matmul_operand *op = left ? &w->a_op : &w->b_op;
    const mz_panel format = left ? w->mk->a_panel : w->mk->b_panel;
    const int width = left ? w->mk->mr : w->mk->nr;
    const int64_t depth = op->k_stride == 1 ? at->nk_padded : PACK_DEPTH;
    const size_t panel_bytes = left ? w->b->a_panel : w->b->b_panel, row_bytes = (size_t)width * operand_size(format);
    for (int64_t k = 0; k < at->nk_padded; k += depth)
        for (int64_t panel = 0; panel < panels; panel++) {
            int64_t i = panel * width, nk = min64(depth, at->nk - k);
            w->isa->pack(format, width, packed + (size_t)panel * panel_bytes + (size_t)k * row_bytes, op, start + i,
                         (int)min64(width, count - i), at->pk + k, nk, min64(depth, at->nk_padded - k));
        }
}

static void pack_b(const worker *w, const place *at) {
    const int64_t nr = w->mk->nr, panels = ceil_div(w->j1 - w->j0, nr);
    const bool along_k = w->b_op.k_stride == 1;
    const int64_t group = along_k ? 1 : PACK_PANELS;
    for (int64_t panel = 0; panel < panels; panel += group) {
        int64_t j = w->j0 + panel * nr;
        if (along_k && panel + 1 < panels)
            prefetch_panel(&w->b_op, j + nr, min64(nr, w->j1 - j - nr), at, 0, 1);
        pack_panels(w, at, false, j, w->j1 - j, min64(group, panels - panel),
                    w->b_pack + (size_t)panel * w->b->b_panel);
    }
}

// A tile whose sums are complete and have to be taken to y. That is done after the next tile's microkernel was called, so that a core
// which runs ahead finishes one while it multiplies the other.
typedef struct pending {
    const float *sums; // NULL: nothing to do
    int64_t row, column;
    int rows, columns;
} pending;

static void settle(const worker *w, pending *t) {
    if (t->sums == NULL)
        return;
    const mz_microkernel *mk = w->mk;
    bool whole = t->rows == mk->mr && t->columns == mk->nr;
    if (!(whole && mk->finish != NULL && mk->finish(&w->out, t->sums, mk->nr, t->row, t->column)))
        w->isa->epilogue(&w->out, t->sums, mk->nr, t->row, t->column, t->rows, t->columns);
    t->sums = NULL;
}

typedef struct scratch {
    float tile[2][MAX_TILE] __attribute__((aligned(LINE)));
    int turn;
    pending before;
} scratch;

// One call for the tile of rows from i and columns from j, with k from ks of the packed block on.
static void multiply_tile(const worker *w, const place *at, const char *a_panel, int64_t i, int64_t j, int64_t ks,
                          scratch *s) {
    const mz_microkernel *mk = w->mk;
    const blocking *b = w->b;
    const int64_t nk = min64(b->kc, at->nk_padded - ks), panel = (j - w->j0) / mk->nr;
    const char *a = a_panel + (size_t)(ks * mk->mr) * operand_size(mk->a_panel);
    const char *bp = w->b_pack + (size_t)panel * b->b_panel + (size_t)(ks * mk->nr) * operand_size(mk->b_panel);
    pending t = {.row = i, .column = j};
    t.rows = (int)min64(mk->mr, w->i1 - i);
    t.columns = (int)min64(mk->nr, w->j1 - j);
    if (b->direct && t.rows == mk->mr && t.columns == mk->nr) {
        mk->run(nk, a, bp, (float *)w->out.y + i * w->out.ld + j, w->out.ld, ks > 0 || w->out.add);
        return;
    }
    float *sums = w->sums;
    if (at->nk_padded <= b->kc && (b->in_blocks || (at->first && at->last))) {
        sums = s->tile[s->turn];
        s->turn ^= 1;
    } else {
        int64_t row = b->epilogue && b->kp < w->p->k ? (i - w->i0) / mk->mr : 0;
        sums += (row * (b->nb / mk->nr) + panel) * mk->mr * mk->nr;
    }
    if (s->before.sums == sums)
        settle(w, &s->before);
    mk->run(nk, a, bp, sums, mk->nr, ks > 0 || !(at->first || b->in_blocks));
    settle(w, &s->before);
    if (ks + nk == at->nk_padded && (at->last || b->in_blocks)) {
        t.sums = sums;
        s->before = t;
    }
}

static void multiply_rows(const worker *w, const place *at, int64_t i, int64_t panels, int64_t panels_ahead,
                          scratch *s) {
    const mz_microkernel *mk = w->mk;
    const int64_t nr = mk->nr, tiles = ceil_div(w->j1 - w->j0, nr);
    for (int64_t panel = 0; panel < panels; panel++) {
        int64_t row = i + panel * mk->mr, next = row + panels * mk->mr;
        const char *a = w->a_pack + (size_t)panel * w->b->a_panel;
        for (int64_t ks = 0; ks < at->nk_padded; ks += w->b->kc)
            for (int64_t j = 0; j < tiles; j++) {
                if (ks == 0 && panel < panels_ahead)
                    prefetch_panel(&w->a_op, next, min64(mk->mr, w->i1 - next), at, j, tiles);
                multiply_tile(w, at, a, row, w->j0 + j * nr, ks, s);
            }
    }
}

static void multiply_item(worker *w, int64_t block) {
    const mz_matmul_problem *p = w->p;
    const mz_microkernel *mk = w->mk;
    const blocking *b = w->b;
    const bool add = w->out.add;
    scratch s;
    s.turn = 0;
    s.before.sums = NULL;
    for (place at = {0}; at.pk < p->k; at.pk += b->kp) {
        at.nk = min64(b->kp, p->k - at.pk);
        at.nk_padded = round_up(at.nk, mk->k_unit);
        at.first = at.pk == 0;
        at.last = at.pk + at.nk == p->k;
        w->out.add = add || (b->in_blocks && !at.first);
        if (w->packed != block || !at.first || !at.last)
            pack_b(w, &at);
        const int64_t panels = ceil_div(w->i1 - w->i0, mk->mr);
        for (int64_t panel = 0; panel < panels; panel += b->a_group) {
            int64_t count = min64(b->a_group, panels - panel), i = w->i0 + panel * mk->mr;
            pack_panels(w, &at, true, i, w->i1 - i, count, w->a_pack);
            multiply_rows(w, &at, i, count, min64(count, panels - panel - count), &s);
        }
        settle(w, &s.before);
    }
    w->packed = b->kp >= p->k ? block : -1;
    w->out.add = add;
}

// --- items and threads --------------------------------------------------------------------------------------------------------
static const void *offset(const void *data, mezzo_dtype dtype, int64_t elements) {
    return (const char *)data + (size_t)elements * mezzo_dtype_size(dtype);
}

static void run_item(worker *w, int64_t item) {
    const mz_matmul_problem *p = w->p;
    const blocking *b = w->b;
    int64_t batch = item / (b->across * b->down), part = item % b->down, columns = item / b->down % b->across;
    w->a_op.data = offset(p->a.data, p->a.dtype, batch * p->a_step);
    w->b_op.data = offset(p->b.data, p->b.dtype, batch * p->b_step);
    w->out.y = (char *)p->out.y + (size_t)(batch * p->y_step) * mezzo_dtype_size(p->out.y_dtype);
    w->j0 = columns * b->nb;
    w->j1 = min64(p->n, w->j0 + b->nb);
    w->i0 = part * b->mb;
    w->i1 = min64(p->m, w->i0 + b->mb);
    multiply_item(w, item / b->down);
}

// Every thread has a range of items, neighbours sharing B's block; one that is done helps the next ones.
typedef struct ranges {
    int team;
    int64_t items;
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

static void work(mz_matmul_path path, const mz_matmul_problem *p, const blocking *b, ranges *r, int thread,
                 char *workspace) {
    worker w = {.p = p, .mk = path.kernel, .isa = path.isa, .b = b, .a_op = p->a, .b_op = p->b, .out = p->out};
    w.out.add = p->accumulate;
    w.packed = -1;
    w.b_pack = workspace + b->bytes * (size_t)thread;
    w.a_pack = w.b_pack + b->b_bytes;
    w.sums = (float *)(void *)(w.a_pack + b->a_bytes);
    if (w.mk->begin != NULL)
        w.mk->begin();
    int whose = thread, visited = 0;
    for (int64_t item; (item = take(r, &whose, &visited)) >= 0;)
        run_item(&w, item);
    if (w.mk->end != NULL)
        w.mk->end();
}

void mz_matmul_run(mz_matmul_path path, const mz_matmul_problem *problem, int threads, void *workspace) {
    blocking b = plan_blocks(path.kernel, problem, threads);
    ranges r = {.team = (int)min64(min64(threads, b.items), MAX_TEAM), .items = b.items};
#pragma omp parallel num_threads(threads) if (threads > 1)
    if (omp_get_thread_num() < r.team)
        work(path, problem, &b, &r, omp_get_thread_num(), workspace);
}

// --- column sums --------------------------------------------------------------------------------------------------------
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
