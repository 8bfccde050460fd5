// The matrix product's driver: BLIS's loops around a microkernel.
//
//   for jc in n by nc                      columns of the right operand
//     for pc in k by kc                    both operands' depth; always in this order, by one tile's owner: bitwise repeatable
//       for ic in m by ms                  as many rows as all threads' L2 caches hold
//         pack A (ms × kc) and, once for all ic, B (kc × nc)      all threads
//         for items of mc × nb             all threads, whoever is free
//           for jr by nr, ir by mr         microkernel, and the epilogue after the last pc
//
// Partial sums between pc blocks are FP32: in y where y is FP32, else in the workspace.
#include "backend/cpu/matmul.h"

#include <omp.h>
#include <stdatomic.h>

#define LINE        64
#define MAX_TILE    (32 * 32) // floats of the largest microkernel's tile
#define NB_PANELS   8         // panels of B in one item of work, at most
#define PACK_PANELS 8         // panels packed side by side, and how deep: see pack_panels. A multiple of every k_unit.
#define PACK_DEPTH  64

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t round_up(int64_t a, int64_t to) {
    return ceil_div(a, to) * to;
}

// --- blocking -----------------------------------------------------------------------------------------------------------
typedef struct blocking {
    int64_t kc, ms, mc, nc, nb;     // nb: columns of one item
    bool in_y;                      // partial sums live in y
    bool by_batch;                  // threads take whole products
    size_t a_panel, b_panel;        // bytes of one packed panel
    size_t a_bytes, b_bytes, bytes; // of the workspace's parts, and of one product's whole
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
    return format == MZ_PANEL_F32 ? sizeof(float) : sizeof(uint16_t);
}

// kc depends on k alone, never on threads: it is what decides the order of summation.
static blocking plan_blocks(const mz_microkernel *mk, const mz_matmul_problem *p, int threads) {
    blocking b;
    b.kc = equal_blocks(p->k, mk->kc, mk->k_unit);
    b.nc = equal_blocks(p->n, mk->nc, mk->nr);
    b.by_batch = threads > 1 && p->batches >= threads;
    int team = b.by_batch ? 1 : threads;
    // Small problems: enough items that every thread gets about four.
    int64_t m_panels = ceil_div(p->m, mk->mr), n_panels = ceil_div(b.nc, mk->nr);
    int64_t mc_panels = min64(mk->mc / mk->mr, m_panels), nb_panels = min64(NB_PANELS, n_panels);
    while (team > 1 && ceil_div(m_panels, mc_panels) * ceil_div(n_panels, nb_panels) < 4 * team &&
           mc_panels * nb_panels > 1) {
        if (mc_panels >= nb_panels)
            mc_panels = ceil_div(mc_panels, 2);
        else
            nb_panels = ceil_div(nb_panels, 2);
    }
    b.nb = nb_panels * mk->nr;
    b.mc = mc_panels * mk->mr;
    b.ms = round_up(min64(p->m, (int64_t)mk->mc * 2 * team), b.mc);
    b.in_y = p->out.y_dtype == MEZZO_F32;
    b.a_panel = mz_align_up((size_t)(b.kc * mk->mr) * operand_size(mk->a_panel) + MZ_PANEL_SLACK, LINE);
    b.b_panel = mz_align_up((size_t)(b.kc * mk->nr) * operand_size(mk->b_panel) + MZ_PANEL_SLACK, LINE);
    b.a_bytes = (size_t)(b.ms / mk->mr) * b.a_panel;
    b.b_bytes = (size_t)(b.nc / mk->nr) * b.b_panel;
    size_t partial = 0;
    if (!b.in_y && b.kc < p->k)
        partial = (size_t)(round_up(p->m, mk->mr) * b.nc) * sizeof(float);
    b.bytes = mz_align_up(b.a_bytes + b.b_bytes + partial, LINE);
    return b;
}

size_t mz_matmul_workspace(mz_matmul_path path, const mz_matmul_problem *problem, int threads) {
    blocking b = plan_blocks(path.kernel, problem, threads);
    return b.bytes * (size_t)(b.by_batch ? threads : 1);
}

// --- a team of threads on one product ---------------------------------------------------------------------------------------
typedef struct team {
    int threads;             // 1: no barrier is met
    atomic_llong counter[2]; // items taken in the phase under way; the other one is zeroed for the next
} team;

typedef struct product {
    const mz_matmul_problem *p;
    const mz_microkernel *mk;
    const mz_matmul_isa *isa;
    blocking b;
    mz_matmul_operand a_op, b_op; // this batch's
    mz_matmul_epilogue out;
    bool epilogue;
    char *a_pack, *b_pack;
    float *partial; // tiles in order of (column panel, row panel) of the jc block
    team *team;
} product;

// Where the loops are.
typedef struct place {
    int64_t jc, nj, pc, nk, nk_padded, ic, ni;
    bool first, last; // of k
} place;

static int64_t take(team *t, int phase, int64_t *own) {
    return t->threads == 1 ? (*own)++ : atomic_fetch_add_explicit(&t->counter[phase & 1], 1, memory_order_relaxed);
}

// Ends a phase: all its items are done when this returns.
static void meet(team *t, int phase) {
    if (t->threads == 1)
        return;
    if (omp_get_thread_num() == 0)
        atomic_store_explicit(&t->counter[~phase & 1], 0, memory_order_relaxed);
#pragma omp barrier
}

// Panels [first, last) of one operand. A source that is contiguous along i is read in bands of PACK_DEPTH rows across all the
// panels: one narrow panel from top to bottom would touch a new page at every row or two.
static void pack_panels(const product *q, const place *at, bool left, int64_t first, int64_t last) {
    const mz_microkernel *mk = q->mk;
    const mz_matmul_operand *op = left ? &q->a_op : &q->b_op;
    const mz_panel format = left ? mk->a_panel : mk->b_panel;
    const int width = left ? mk->mr : mk->nr;
    const int64_t start = left ? at->ic : at->jc, count = left ? at->ni : at->nj;
    const int64_t depth = op->k_stride == 1 ? at->nk_padded : PACK_DEPTH;
    char *packed = left ? q->a_pack : q->b_pack;
    const size_t panel_bytes = left ? q->b.a_panel : q->b.b_panel, row_bytes = (size_t)width * operand_size(format);
    for (int64_t k = 0; k < at->nk_padded; k += depth)
        for (int64_t panel = first; panel < last; panel++) {
            int64_t i = panel * width, nk = min64(depth, at->nk - k);
            q->isa->pack(format, width, packed + (size_t)panel * panel_bytes + (size_t)k * row_bytes, op, start + i,
                         (int)min64(width, count - i), at->pc + k, nk, min64(depth, at->nk_padded - k));
        }
}

static int64_t pack_group(const product *q, const mz_matmul_operand *op, int64_t panels) {
    int64_t most = op->k_stride == 1 ? 1 : PACK_PANELS;
    return q->team->threads == 1 ? most : min64(most, ceil_div(panels, 2 * q->team->threads));
}

// B's panels come first: they are longer.
static void pack_phase(const product *q, const place *at, int phase) {
    int64_t a_panels = ceil_div(at->ni, q->mk->mr), b_panels = at->ic == 0 ? ceil_div(at->nj, q->mk->nr) : 0, own = 0;
    int64_t a_group = pack_group(q, &q->a_op, a_panels), b_group = pack_group(q, &q->b_op, ceil_div(at->nj, q->mk->nr));
    int64_t b_items = ceil_div(b_panels, b_group), items = b_items + ceil_div(a_panels, a_group);
    for (int64_t item; (item = take(q->team, phase, &own)) < items;) {
        bool left = item >= b_items;
        int64_t group = left ? a_group : b_group, first = (left ? item - b_items : item) * group;
        pack_panels(q, at, left, first, min64(first + group, left ? a_panels : b_panels));
    }
}

static void copy_tile(float *dst, int64_t ld_dst, const float *src, int64_t ld_src, int rows, int columns) {
    for (int i = 0; i < rows; i++)
        memcpy(dst + i * ld_dst, src + i * ld_src, (size_t)columns * sizeof(float));
}

// A tile whose sums are complete (or, between blocks of k, as far as they go) and have to be taken to y. That is done after the
// next tile's microkernel was called, so that a core which runs ahead finishes one while it multiplies the other.
typedef struct pending {
    const float *sums; // NULL: nothing to do
    int64_t ld, row, column;
    int rows, columns;
    bool copy; // no epilogue yet: to y as they are
} pending;

static void settle(const product *q, pending *t) {
    if (t->sums == NULL)
        return;
    const mz_microkernel *mk = q->mk;
    bool whole = t->rows == mk->mr && t->columns == mk->nr;
    if (t->copy)
        copy_tile((float *)q->out.y + t->row * q->out.ld + t->column, q->out.ld, t->sums, t->ld, t->rows, t->columns);
    else if (!(whole && mk->finish != NULL && mk->finish(&q->out, t->sums, t->ld, t->row, t->column)))
        q->isa->epilogue(&q->out, t->sums, t->ld, t->row, t->column, t->rows, t->columns);
    t->sums = NULL;
}

// One microkernel call for the tile at (i, j) of the block, whose partial sums live in y.
static pending tile_in_y(const product *q, const place *at, const char *a, const char *b, pending t, float *local) {
    const mz_microkernel *mk = q->mk;
    bool add = !at->first || q->p->accumulate, whole = t.rows == mk->mr && t.columns == mk->nr;
    float *y = (float *)q->out.y + t.row * q->out.ld + t.column;
    bool finish = q->epilogue && at->last;
    if (whole && !(finish && at->first)) {
        mk->run(at->nk_padded, a, b, y, q->out.ld, add);
        t.sums = finish ? y : NULL;
        t.ld = q->out.ld;
        return t;
    }
    if (add)
        copy_tile(local, mk->nr, y, q->out.ld, t.rows, t.columns);
    mk->run(at->nk_padded, a, b, local, mk->nr, add);
    t.sums = local;
    t.copy = !finish;
    return t;
}

// The same where y is not FP32 and partial sums, if there are any, live in the workspace.
static pending tile_in_workspace(const product *q, const place *at, const char *a, const char *b, pending t,
                                 float *local) {
    const mz_microkernel *mk = q->mk;
    float *sums = local;
    if (!(at->first && at->last)) {
        int64_t index = (t.column - at->jc) / mk->nr * ceil_div(q->p->m, mk->mr) + t.row / mk->mr;
        sums = q->partial + index * mk->mr * mk->nr;
    }
    mk->run(at->nk_padded, a, b, sums, mk->nr, !at->first);
    t.sums = at->last ? sums : NULL;
    return t;
}

static void compute_phase(const product *q, const place *at, int phase) {
    const mz_microkernel *mk = q->mk;
    int64_t across = ceil_div(at->nj, q->b.nb), items = ceil_div(at->ni, q->b.mc) * across, own = 0;
    float local[2][MAX_TILE] __attribute__((aligned(LINE)));
    int turn = 0;
    pending before = {0};
    for (int64_t item; (item = take(q->team, phase, &own)) < items;) {
        int64_t i0 = item / across * q->b.mc, i1 = min64(at->ni, i0 + q->b.mc);
        int64_t j0 = item % across * q->b.nb, j1 = min64(at->nj, j0 + q->b.nb);
        for (int64_t j = j0; j < j1; j += mk->nr) {
            const char *b = q->b_pack + (size_t)(j / mk->nr) * q->b.b_panel;
            for (int64_t i = i0; i < i1; i += mk->mr, turn ^= 1) {
                const char *a = q->a_pack + (size_t)(i / mk->mr) * q->b.a_panel;
                pending t = {.ld = mk->nr, .row = at->ic + i, .column = at->jc + j};
                t.rows = (int)min64(mk->mr, at->ni - i);
                t.columns = (int)min64(mk->nr, at->nj - j);
                t = q->b.in_y ? tile_in_y(q, at, a, b, t, local[turn]) : tile_in_workspace(q, at, a, b, t, local[turn]);
                settle(q, &before);
                before = t;
            }
        }
    }
    settle(q, &before);
}

// What every thread of the team runs.
static void multiply(const product *q) {
    const mz_matmul_problem *p = q->p;
    place at;
    int phase = 0;
    for (at.jc = 0; at.jc < p->n; at.jc += q->b.nc) {
        at.nj = min64(q->b.nc, p->n - at.jc);
        for (at.pc = 0; at.pc < p->k; at.pc += q->b.kc) {
            at.nk = min64(q->b.kc, p->k - at.pc);
            at.nk_padded = round_up(at.nk, q->mk->k_unit);
            at.first = at.pc == 0;
            at.last = at.pc + at.nk == p->k;
            for (at.ic = 0; at.ic < p->m; at.ic += q->b.ms) {
                at.ni = min64(q->b.ms, p->m - at.ic);
                pack_phase(q, &at, phase);
                meet(q->team, phase++);
                compute_phase(q, &at, phase);
                meet(q->team, phase++);
            }
        }
    }
}

static const void *offset(const void *data, mezzo_dtype dtype, int64_t elements) {
    return (const char *)data + (size_t)elements * mezzo_dtype_size(dtype);
}

static product make_product(mz_matmul_path path, const mz_matmul_problem *p, blocking b, int64_t batch, char *workspace,
                            team *t) {
    product q = {.p = p, .mk = path.kernel, .isa = path.isa, .b = b, .a_op = p->a, .b_op = p->b, .out = p->out};
    q.a_op.data = offset(p->a.data, p->a.dtype, batch * p->a_step);
    q.b_op.data = offset(p->b.data, p->b.dtype, batch * p->b_step);
    q.out.y = (char *)p->out.y + (size_t)(batch * p->y_step) * mezzo_dtype_size(p->out.y_dtype);
    q.epilogue = has_epilogue(&p->out);
    q.a_pack = workspace;
    q.b_pack = workspace + b.a_bytes;
    q.partial = (float *)(void *)(workspace + b.a_bytes + b.b_bytes);
    q.team = t;
    return q;
}

void mz_matmul_run(mz_matmul_path path, const mz_matmul_problem *problem, int threads, void *workspace) {
    blocking b = plan_blocks(path.kernel, problem, threads);
    team together = {.threads = threads};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        if (path.kernel->begin != NULL)
            path.kernel->begin();
        if (b.by_batch) {
            team alone = {.threads = 1};
            char *own = (char *)workspace + b.bytes * (size_t)omp_get_thread_num();
#pragma omp for schedule(dynamic)
            for (int64_t batch = 0; batch < problem->batches; batch++) {
                product q = make_product(path, problem, b, batch, own, &alone);
                multiply(&q);
            }
        } else {
            for (int64_t batch = 0; batch < problem->batches; batch++) {
                product q = make_product(path, problem, b, batch, workspace, &together);
                multiply(&q);
            }
        }
        if (path.kernel->end != NULL)
            path.kernel->end();
    }
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
