// Times the cpu backend's matrix products beside the machine's measured peak and the libraries that happen to be
// installed, and checks them: `bench/cpu_matmul.sh` builds it. One CSV row a (shape, path, threads).
//
//   cpu_matmul [--op linear|dx|dw] [--shapes MxNxK,…] [--threads 1,2] [--rounds N] [--paths WORD,…] [--csv FILE]
//              [--clock cpu] [--kc N] [--depth N] [--check | --parts]
//
// --kc and --depth replace the microkernels' blocks. --parts times a path's pieces alone (microkernel, packing,
// epilogue). In a round every path of a shape runs once, each after some milliseconds of its arithmetic's peak on as
// many threads, so that all see the same noise and the same clock; a row has the median and the best of the rounds, the
// median of the peaks, and that of the rounds' ratios. Peers are opened by dlopen and measured on the same operands in
// FP32: OpenBLAS (its kernel chosen by OPENBLAS_CORETYPE), BLIS and oneDNN. A peer that cannot be opened is left out.
#include <dlfcn.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <time.h>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/probe.h"
#include "backend/cpu/matmul.h"

#define MAX_PATHS  16
#define MAX_SHAPES 64
#define MAX_ROUNDS 1001

static void die(const char *message) {
    fprintf(stderr, "cpu_matmul: %s\n", message);
    exit(2);
}

// --- peers ---------------------------------------------------------------------------------------------------------
typedef void (*cblas_sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                               const float *b, int ldb, float beta, float *c, int ldc);
typedef int (*dnnl_sgemm_fn)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                             int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
typedef void (*set_threads_fn)(long n);

typedef struct peer {
    const char *name;
    cblas_sgemm_fn cblas;
    dnnl_sgemm_fn dnnl;
    set_threads_fn set_threads;
} peer;

// A function found by name: dlsym gives an object pointer, which C lets be copied only as bytes.
#define FIND(fn, library, symbol)                                                                                      \
    do {                                                                                                               \
        void *address = dlsym(library, symbol);                                                                        \
        memcpy(&(fn), &address, sizeof address);                                                                       \
    } while (0)

static void *open_first(const char *const *names) {
    void *library = NULL;
    for (; library == NULL && *names != NULL; names++)
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    return library;
}

static int open_peers(peer *peers) {
    static const char *const openblas[] = {"libopenblas.so.0", "libopenblas.so", NULL};
    static const char *const blis[] = {"libblis.so.4", "libblis.so", NULL};
    static const char *const dnnl[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so", NULL};
    int n = 0;
    void *library;
    if ((library = open_first(openblas)) != NULL) {
        peers[n] = (peer){.name = "openblas"};
        FIND(peers[n].cblas, library, "cblas_sgemm");
        FIND(peers[n].set_threads, library, "openblas_set_num_threads");
        n += peers[n].cblas != NULL;
    }
    if ((library = open_first(blis)) != NULL) {
        peers[n] = (peer){.name = "blis"};
        FIND(peers[n].cblas, library, "cblas_sgemm");
        FIND(peers[n].set_threads, library, "bli_thread_set_num_threads");
        n += peers[n].cblas != NULL;
    }
    if ((library = open_first(dnnl)) != NULL) {
        peers[n] = (peer){.name = "onednn"};
        FIND(peers[n].dnnl, library, "dnnl_sgemm");
        n += peers[n].dnnl != NULL;
    }
    return n;
}

// --- shapes and operands -------------------------------------------------------------------------------------------
typedef enum product { LINEAR, DX, DW } product;
static const char *const product_names[] = {"linear", "dx", "dw"};

typedef struct shape {
    int64_t m, n, k;
} shape;

typedef struct operands {
    float *a, *b, *y;          // FP32
    uint16_t *a16[2], *b16[2]; // BF16, FP16
    uint16_t *y16;
    void *workspace;
} operands;

// Stored as the op has them: linear x [M, K], w [N, K]; dx dy [M, K], w [K, N]; dw dy [K, M], x [K, N].
static bool a_transposed(product op) {
    return op == DW;
}
static bool b_transposed(product op) {
    return op != LINEAR;
}

static void *must_alloc(size_t count, size_t size) {
    void *p = mz_alloc(count, size);
    if (p == NULL)
        die("out of memory");
    return p;
}

static float *random_values(int64_t n, uint32_t stream) {
    float *x = must_alloc((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t words[4];
        mz_philox((mz_philox_key){.seed = 1, .tensor = stream}, (uint64_t)i, words);
        for (int64_t j = i; j < n && j < i + 4; j++)
            x[j] = 2 * mz_uniform(words[j - i]) - 1;
    }
    return x;
}

static uint16_t *converted(const float *x, int64_t n, mezzo_dtype dtype) {
    uint16_t *out = must_alloc((size_t)n, sizeof *out);
    if (mezzo_convert(x, MEZZO_F32, out, dtype, (size_t)n) != MEZZO_OK)
        die(mezzo_error_message());
    return out;
}

static operands make_operands(shape s) {
    operands o = {.a = random_values(s.m * s.k, 1), .b = random_values(s.n * s.k, 2)};
    o.y = must_alloc((size_t)(s.m * s.n), sizeof *o.y);
    o.y16 = must_alloc((size_t)(s.m * s.n), sizeof *o.y16);
    o.a16[0] = converted(o.a, s.m * s.k, MEZZO_BF16);
    o.b16[0] = converted(o.b, s.n * s.k, MEZZO_BF16);
    o.a16[1] = converted(o.a, s.m * s.k, MEZZO_F16);
    o.b16[1] = converted(o.b, s.n * s.k, MEZZO_F16);
    return o;
}

static void free_operands(operands *o) {
    mz_free(o->a);
    mz_free(o->b);
    mz_free(o->y);
    mz_free(o->y16);
    for (int i = 0; i < 2; i++) {
        mz_free(o->a16[i]);
        mz_free(o->b16[i]);
    }
}

// --- paths ---------------------------------------------------------------------------------------------------------
typedef struct runner {
    char name[48];
    mezzo_dtype dtype;
    mz_matmul_path path; // ours, or
    const peer *peer;
    double (*probe)(int); // the arithmetic's peak rate, by running this many rounds of it
    int probe_rounds;
    double peak; // GFLOP/s of all threads
    double times[MAX_ROUNDS], peaks[MAX_ROUNDS], ratios[MAX_ROUNDS];
} runner;

static mz_matmul_problem problem_for(const runner *r, product op, shape s, const operands *o) {
    bool f32 = r->dtype == MEZZO_F32;
    int low = r->dtype == MEZZO_F16;
    mz_matmul_problem p = {.m = s.m, .n = s.n, .k = s.k, .batches = 1, .accumulate = op == DW};
    p.a = (mz_matmul_operand){f32 ? (const void *)o->a : o->a16[low],
                              r->dtype,
                              r->dtype,
                              a_transposed(op) ? 1 : s.k,
                              a_transposed(op) ? s.m : 1,
                              NULL};
    p.b = (mz_matmul_operand){f32 ? (const void *)o->b : o->b16[low],
                              r->dtype,
                              r->dtype,
                              b_transposed(op) ? 1 : s.k,
                              b_transposed(op) ? s.n : 1,
                              NULL};
    p.out = (mz_matmul_epilogue){.y = op == DW || f32 ? (void *)o->y : o->y16,
                                 .y_dtype = op == DW ? MEZZO_F32 : r->dtype,
                                 .via = MEZZO_F32,
                                 .ld = s.n};
    return p;
}

static void run_peer(const runner *r, product op, shape s, const operands *o, int threads) {
    float beta = op == DW ? 1 : 0;
    int lda = (int)(a_transposed(op) ? s.m : s.k), ldb = (int)(b_transposed(op) ? s.n : s.k);
    if (r->peer->set_threads != NULL)
        r->peer->set_threads(threads);
    omp_set_num_threads(threads);
    if (r->peer->cblas != NULL) // 101: row-major; 111: as it is; 112: transposed
        r->peer->cblas(101, a_transposed(op) ? 112 : 111, b_transposed(op) ? 111 : 112, (int)s.m, (int)s.n, (int)s.k, 1,
                       o->a, lda, o->b, ldb, beta, o->y, (int)s.n);
    else
        r->peer->dnnl(a_transposed(op) ? 'T' : 'N', b_transposed(op) ? 'N' : 'T', s.m, s.n, s.k, 1, o->a, lda, o->b,
                      ldb, beta, o->y, s.n);
}

// --clock cpu: time that this thread ran, for one thread on a machine that others use too. Wall time otherwise.
static bool cpu_clock;

static double now(void) {
    struct timespec t;
    if (!cpu_clock || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
        return mz_seconds();
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double run_once(const runner *r, product op, shape s, const operands *o, int threads) {
    mz_matmul_problem p = problem_for(r, op, s, o);
    double start = now();
    if (r->peer != NULL)
        run_peer(r, op, s, o, threads);
    else
        mz_matmul_run(r->path, &p, threads, o->workspace);
    return now() - start;
}

static size_t workspace_for(const runner *r, int n, product op, shape s, const operands *o, int threads) {
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        mz_matmul_problem p = problem_for(&r[i], op, s, o);
        size_t bytes = r[i].peer == NULL ? mz_matmul_workspace(r[i].path, &p, threads) : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

// The rate of `threads` cores running the path's arithmetic at once, in GFLOP/s.
static double peak_now(const runner *r, int threads) {
    double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += 2e-9 * r->probe(r->probe_rounds);
    return sum;
}

// The same paths with other blocks: copies that the runners point to.
static void replace_blocks(runner *r, int n, int kc, int depth) {
    static mz_microkernel copies[MAX_PATHS];
    for (int i = 0; i < n; i++) {
        if (r[i].peer != NULL)
            continue;
        copies[i] = *r[i].path.kernel;
        mz_microkernel *mk = &copies[i];
        mk->kc = kc > 0 ? (int)mz_align_up((size_t)kc, (size_t)mk->k_unit) : mk->kc;
        mk->depth = depth > 0 ? depth : mk->depth;
        mk->depth_across = depth > 0 ? depth : mk->depth_across;
        r[i].path.kernel = mk;
    }
}

static bool wanted(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *p = list; p != NULL && *p != '\0'; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0'))
            return true;
    return list == NULL;
}

static int add_runner(runner *r, int n, const char *list, const char *name, mezzo_dtype dtype, mz_matmul_path path,
                      const peer *of, double (*probe)(int), int probe_rounds) {
    if (n == MAX_PATHS || !wanted(list, name))
        return n;
    r[n] = (runner){.dtype = dtype, .path = path, .peer = of, .probe = probe, .probe_rounds = probe_rounds};
    snprintf(r[n].name, sizeof r[n].name, "%s", name);
    return n + 1;
}

static int list_runners(runner *r, const mz_isa *isa, const char *list, const peer *peers, int n_peers) {
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    static const mezzo_dtype stored[] = {MEZZO_F32, MEZZO_BF16, MEZZO_F16};
    double (*best_fma)(int) = mz_probe_fma__portable;
    int n = 0;
    for (int level = isa->level < MZ_LEVEL_AVX512 ? isa->level : MZ_LEVEL_AVX512; level >= 0; level--) {
        const mz_matmul_isa *set = &mz_matmul_isa__portable;
        double (*probe)(int) = mz_probe_fma__portable;
#if defined(__x86_64__)
        set = level == MZ_LEVEL_AVX512 ? &mz_matmul_isa__avx512 : level == MZ_LEVEL_AVX2 ? &mz_matmul_isa__avx2 : set;
        probe = level == MZ_LEVEL_AVX512 ? mz_probe_fma__avx512
                : level == MZ_LEVEL_AVX2 ? mz_probe_fma__avx2
                                         : mz_probe_fma__portable;
        best_fma = best_fma == mz_probe_fma__portable ? probe : best_fma;
#endif
        for (int d = 0; d < 3; d++) {
            char name[48];
            snprintf(name, sizeof name, "%s_%s", dtypes[d], set->name);
            n = add_runner(r, n, list, name, stored[d], (mz_matmul_path){&set->f32, set}, NULL, probe, 250000);
        }
    }
#if defined(__x86_64__)
    if (isa->bf16_dot)
        n = add_runner(r, n, list, "bf16_dot", MEZZO_BF16,
                       (mz_matmul_path){&mz_microkernel_avx512bf16, &mz_matmul_isa__avx512}, NULL, mz_probe_bf16_dot,
                       50000);
    if (isa->level == MZ_LEVEL_AMX) {
        n = add_runner(r, n, list, "bf16_amx", MEZZO_BF16,
                       (mz_matmul_path){&mz_microkernel_amx, &mz_matmul_isa__avx512}, NULL, mz_probe_amx, 60000);
        n = add_runner(r, n, list, "fp16_amx", MEZZO_F16,
                       (mz_matmul_path){&mz_microkernel_amx_f16, &mz_matmul_isa__avx512}, NULL, mz_probe_amx, 60000);
        n = add_runner(r, n, list, "tf32_amx", MEZZO_F32,
                       (mz_matmul_path){&mz_microkernel_amx_tf32, &mz_matmul_isa__avx512}, NULL, mz_probe_amx, 60000);
    }
#endif
    for (int i = 0; i < n_peers; i++)
        n = add_runner(r, n, list, peers[i].name, MEZZO_F32, (mz_matmul_path){0}, &peers[i], best_fma, 250000);
    return n;
}

// --- checking ------------------------------------------------------------------------------------------------------
// 2,000 elements of y against FP64 sums: within (k + 8)·2^-24·Σ|a·b| and one rounding to the stored format.
static bool check_once(const runner *r, product op, shape s, const operands *o, int threads) {
    memset(o->y, 0, (size_t)(s.m * s.n) * sizeof *o->y);
    run_once(r, op, s, o, threads);
    int low = r->dtype == MEZZO_F16, bad = 0;
    double worst = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        uint32_t words[4];
        mz_philox((mz_philox_key){.seed = 2}, i, words);
        int64_t row = words[0] % s.m, column = words[1] % s.n;
        double sum = 0, size = 0;
        for (int64_t k = 0; k < s.k; k++) {
            int64_t ia = a_transposed(op) ? k * s.m + row : row * s.k + k;
            int64_t ib = b_transposed(op) ? k * s.n + column : column * s.k + k;
            double u = o->a[ia], v = o->b[ib];
            if (r->dtype != MEZZO_F32) {
                u = low ? mezzo_f16_to_f32(o->a16[1][ia]) : mezzo_bf16_to_f32(o->a16[0][ia]);
                v = low ? mezzo_f16_to_f32(o->b16[1][ib]) : mezzo_bf16_to_f32(o->b16[0][ib]);
            }
            sum += u * v;
            size += fabs(u * v);
        }
        int64_t at = row * s.n + column;
        bool f32 = op == DW || r->dtype == MEZZO_F32;
        double y = f32 ? o->y[at] : low ? mezzo_f16_to_f32(o->y16[at]) : mezzo_bf16_to_f32(o->y16[at]);
        double bound = ((double)s.k + 8) * 0x1p-24 * size;
        if (strcmp(r->name, "tf32_amx") == 0)
            bound += 0x1p-15 * size;
        bound += (bound + fabs(sum)) * (f32 ? 0x1p-24 : low ? 0x1p-11 : 0x1p-8);
        worst = fmax(worst, fabs(y - sum) / bound);
        bad += !(fabs(y - sum) <= bound);
    }
    printf("check %-6s %5lldx%5lldx%5lld %-14s %d threads: worst error %.3f of the bound, %d of 2000 past it%s\n",
           product_names[op], (long long)s.m, (long long)s.n, (long long)s.k, r->name, threads, worst, bad,
           bad ? "  WRONG" : "");
    return bad == 0;
}

// --- timing --------------------------------------------------------------------------------------------------------
static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct settings {
    product op;
    shape shapes[MAX_SHAPES];
    int n_shapes, rounds, threads[8], n_threads;
    const char *paths, *csv;
    char command[400];
    bool check, parts;
    int kc, depth; // 0: the microkernel's own
} settings;

static void time_shape(const settings *c, const mz_isa *isa, runner *r, int n, shape s, int threads, FILE *csv) {
    operands o = make_operands(s);
    o.workspace = must_alloc(workspace_for(r, n, c->op, s, &o, threads), 1);
    double flops = 2.0 * (double)s.m * (double)s.n * (double)s.k;
    int rounds = c->rounds > 0 ? c->rounds : (int)fmin(301, fmax(11, 3e10 / flops));
    for (int round = -1; round < rounds; round++) // the first is not counted
        for (int i = 0; i < n; i++) {
            double peak = peak_now(&r[i], threads), seconds = run_once(&r[i], c->op, s, &o, threads);
            if (round < 0)
                continue;
            r[i].times[round] = seconds;
            r[i].peaks[round] = peak;
            r[i].ratios[round] = 1e-9 * flops / seconds / peak;
        }
    for (int i = 0; i < n; i++) {
        qsort(r[i].times, (size_t)rounds, sizeof(double), ascending);
        qsort(r[i].peaks, (size_t)rounds, sizeof(double), ascending);
        qsort(r[i].ratios, (size_t)rounds, sizeof(double), ascending);
        r[i].peak = r[i].peaks[rounds / 2];
        double median = r[i].times[rounds / 2], best = r[i].times[0];
        printf("%-6s %5lldx%5lldx%5lld %-14s %d threads: %9.3f ms, %8.1f GFLOP/s (best %8.1f), %5.1f %% of peak %.1f\n",
               product_names[c->op], (long long)s.m, (long long)s.n, (long long)s.k, r[i].name, threads, 1e3 * median,
               1e-9 * flops / median, 1e-9 * flops / best, 100 * r[i].ratios[rounds / 2], r[i].peak);
        if (csv != NULL)
            fprintf(csv, "\"%s\",%s,%s,%lld,%lld,%lld,%s,%s,%d,%d,%.6f,%.6f,%.2f,%.2f,%.2f,%.4f,\"%s\"\n", isa->brand,
                    getenv("MEZZO_COMMIT") ? getenv("MEZZO_COMMIT") : "", product_names[c->op], (long long)s.m,
                    (long long)s.n, (long long)s.k, r[i].name, mezzo_dtype_name(r[i].dtype), threads, rounds,
                    1e3 * median, 1e3 * best, 1e-9 * flops / median, 1e-9 * flops / best, r[i].peak,
                    r[i].ratios[rounds / 2], c->command);
    }
    mz_free(o.workspace);
    free_operands(&o);
}

static bool check_shape(const settings *c, runner *r, int n, shape s, int threads) {
    operands o = make_operands(s);
    bool good = true;
    o.workspace = must_alloc(workspace_for(r, n, c->op, s, &o, threads), 1);
    for (int i = 0; i < n; i++)
        good = check_once(&r[i], c->op, s, &o, threads) && good;
    mz_free(o.workspace);
    free_operands(&o);
    return good;
}

// --- pieces --------------------------------------------------------------------------------------------------------
#define LINE 64

// The best of `rounds` times of `expression`, in seconds.
#define BEST_OF(rounds, out, expression)                                                                               \
    for (int round_ = 0; round_ < (rounds); round_++) {                                                                \
        double start_ = mz_seconds();                                                                                  \
        expression;                                                                                                    \
        double seconds_ = mz_seconds() - start_;                                                                       \
        (out) = round_ == 0 || seconds_ < (out) ? seconds_ : (out);                                                    \
    }

#define ROWS 16 // panels of A

static void multiply_block(const mz_microkernel *mk, const char *a, size_t a_panel, const char *b, size_t b_panel,
                           float *tile) {
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < ROWS; i++)
            mk->run(mk->kc, a + (size_t)i * a_panel, b + (size_t)j * b_panel, tile, mk->nr, false);
}

static void pack_all(const runner *r, bool left, char *dst, size_t panel, const mz_matmul_operand *src, int count) {
    const mz_microkernel *mk = r->path.kernel;
    int width = left ? mk->mr : mk->nr;
    for (int i = 0; i < count; i++)
        r->path.isa->pack(left ? mk->a_panel : mk->b_panel, width, dst + (size_t)i * panel, src, (int64_t)i * width,
                          width, 0, mk->kc, mk->kc);
}

static void finish_all(const runner *r, const mz_matmul_epilogue *e, const float *tile, int64_t tiles) {
    const mz_microkernel *mk = r->path.kernel;
    for (int64_t i = 0; i < tiles; i++)
        r->path.isa->epilogue(e, tile, mk->nr, 0, i * mk->nr, mk->mr, mk->nr);
}

// The microkernel over 16 panels of A and four of B; packing of 16 panels of A and 8 of B from both
// orientations; the epilogue of a row of tiles with bias.
static void time_parts(runner *r) {
    const mz_microkernel *mk = r->path.kernel;
    const int count = ROWS, columns = 8;
    const bool wide = mk->a_panel == MZ_PANEL_F32 || mk->a_panel == MZ_PANEL_SPLIT_A;
    const size_t word = wide ? 4 : 2;
    const size_t a_panel = mz_align_up((size_t)(mk->kc * mk->mr) * word + MZ_PANEL_SLACK, LINE);
    const size_t b_panel = mz_align_up((size_t)(mk->kc * mk->nr) * word + MZ_PANEL_SLACK, LINE);
    const int64_t rows = mk->mr * count > mk->nr * columns ? mk->mr * count : mk->nr * columns;
    float *values = random_values(rows * mk->kc, 1), *tile = must_alloc((size_t)(mk->mr * mk->nr), sizeof *tile);
    uint16_t *low = converted(values, rows * mk->kc, r->dtype == MEZZO_F16 ? MEZZO_F16 : MEZZO_BF16);
    char *a = must_alloc((size_t)count, a_panel), *b = must_alloc((size_t)columns, b_panel);
    const void *data = r->dtype == MEZZO_F32 ? (const void *)values : low;
    const mz_matmul_operand along_k = {data, r->dtype, r->dtype, mk->kc, 1, NULL},
                            along_i = {data, r->dtype, r->dtype, 1, rows, NULL};
    double seconds = 0, pack[4] = {0}, finish = 0;
    if (mk->begin != NULL)
        mk->begin();
    BEST_OF(9, pack[0], pack_all(r, true, a, a_panel, &along_i, count));
    BEST_OF(9, pack[1], pack_all(r, true, a, a_panel, &along_k, count));
    BEST_OF(9, pack[2], pack_all(r, false, b, b_panel, &along_i, columns));
    BEST_OF(9, pack[3], pack_all(r, false, b, b_panel, &along_k, columns));
    BEST_OF(25, seconds, multiply_block(mk, a, a_panel, b, b_panel, tile));
    mz_matmul_epilogue e = {.y = must_alloc((size_t)(mk->mr * mk->nr), 64 * 4), .y_dtype = r->dtype, .via = MEZZO_F32};
    e.ld = 64 * mk->nr;
    e.bias = values;
    e.bias_dtype = MEZZO_F32;
    BEST_OF(25, finish, finish_all(r, &e, tile, 64));
    if (mk->end != NULL)
        mk->end();
    double rate = 8e-9 * mk->mr * mk->nr * (double)mk->kc * count / seconds;
    double ns_a = 1e9 / ((double)mk->kc * mk->mr * count), ns_b = 1e9 / ((double)mk->kc * mk->nr * columns);
    printf("parts  %-14s kc %d: microkernel %.1f GFLOP/s (%.1f %% of peak); ns an element: pack A %.3f rows %.3f "
           "columns, pack B %.3f rows %.3f columns, epilogue %.3f\n",
           r->name, mk->kc, rate, 100 * rate / r->peak, pack[1] * ns_a, pack[0] * ns_a, pack[3] * ns_b, pack[2] * ns_b,
           1e9 * finish / (64.0 * mk->mr * mk->nr));
    mz_free(values);
    mz_free(tile);
    mz_free(low);
    mz_free(a);
    mz_free(b);
    mz_free(e.y);
}

// --- command line --------------------------------------------------------------------------------------------------
static void parse_shapes(settings *c, const char *text) {
    c->n_shapes = 0;
    while (*text != '\0' && c->n_shapes < MAX_SHAPES) {
        long long m, n, k;
        int used = 0;
        if (sscanf(text, "%lldx%lldx%lld%n", &m, &n, &k, &used) != 3 || m < 1 || n < 1 || k < 1)
            die("--shapes takes MxNxK,MxNxK,…");
        c->shapes[c->n_shapes++] = (shape){m, n, k};
        text += used;
        text += *text == ',';
    }
}

static void parse_threads(settings *c, const char *text) {
    c->n_threads = 0;
    while (*text != '\0' && c->n_threads < 8) {
        char *end;
        c->threads[c->n_threads++] = (int)strtol(text, &end, 10);
        if (end == text || c->threads[c->n_threads - 1] < 1)
            die("--threads takes numbers");
        text = end + (*end == ',');
    }
}

static settings parse(int argc, char **argv) {
    settings c = {.op = LINEAR, .n_threads = 1, .threads = {1}};
    parse_shapes(&c, "1024x3072x768,4096x1536x384,2048x2048x2048");
    for (int i = 0; i < argc; i++)
        snprintf(c.command + strlen(c.command), sizeof c.command - strlen(c.command), "%s%s", i ? " " : "",
                 i ? argv[i] : "cpu_matmul");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--check") == 0) {
            c.check = true;
            continue;
        }
        if (strcmp(argv[i], "--parts") == 0) {
            c.parts = true;
            continue;
        }
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value == NULL)
            die("an option without its value");
        if (strcmp(argv[i], "--op") == 0)
            c.op = strcmp(value, "dw") == 0 ? DW : strcmp(value, "dx") == 0 ? DX : LINEAR;
        else if (strcmp(argv[i], "--shapes") == 0)
            parse_shapes(&c, value);
        else if (strcmp(argv[i], "--threads") == 0)
            parse_threads(&c, value);
        else if (strcmp(argv[i], "--rounds") == 0)
            c.rounds = (int)strtol(value, NULL, 10) % MAX_ROUNDS;
        else if (strcmp(argv[i], "--paths") == 0)
            c.paths = value;
        else if (strcmp(argv[i], "--csv") == 0)
            c.csv = value;
        else if (strcmp(argv[i], "--clock") == 0)
            cpu_clock = strcmp(value, "cpu") == 0;
        else if (strcmp(argv[i], "--kc") == 0)
            c.kc = (int)strtol(value, NULL, 10);
        else if (strcmp(argv[i], "--depth") == 0)
            c.depth = (int)strtol(value, NULL, 10);
        else
            die("unknown option; the head of bench/cpu_matmul.c lists them");
        i++;
    }
    return c;
}

int main(int argc, char **argv) {
    static runner runners[MAX_PATHS];
    settings c = parse(argc, argv);
    mz_isa isa;
    if (mz_isa_probe(getenv("MEZZO_ISA"), &isa) != MEZZO_OK)
        die(mezzo_error_message());
    peer peers[3];
    int n_peers = open_peers(peers);
    FILE *csv = NULL;
    if (c.csv != NULL) {
        csv = fopen(c.csv, "a");
        if (csv == NULL)
            die("the CSV file cannot be written");
        if (ftell(csv) == 0)
            fprintf(csv, "device,commit,op,m,n,k,path,dtype,threads,rounds,median_ms,best_ms,gflops_median,gflops_best,"
                         "peak_gflops,of_peak,command\n");
    }
    bool good = true;
    for (int t = 0; t < c.n_threads; t++) {
        int n = list_runners(runners, &isa, c.paths, peers, n_peers);
        replace_blocks(runners, n, c.kc, c.depth);
        for (int i = 0; c.parts && i < n; i++)
            if (runners[i].peer == NULL && (runners[i].peak = peak_now(&runners[i], 1)) > 0)
                time_parts(&runners[i]);
        for (int s = 0; s < c.n_shapes && !c.parts; s++)
            if (c.check)
                good = check_shape(&c, runners, n, c.shapes[s], c.threads[t]) && good;
            else
                time_shape(&c, &isa, runners, n, c.shapes[s], c.threads[t], csv);
    }
    if (csv != NULL)
        fclose(csv);
    return good ? 0 : 1;
}
