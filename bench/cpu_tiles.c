// What AMX tile instructions cost by the number of tiles in use and by what the core's other hardware thread does, all
// data in L1. CSV on stdout: nanoseconds a product of 16 × 16 × 32 (or a load, where there are no products), medians
// and quartiles.
//
//   cc -O2 -pthread -Isrc -mamx-tile -mamx-bf16 -mavx512f bench/cpu_tiles.c -o cpu_tiles && ./cpu_tiles [SECONDS
//   [CPUS]]
//
// A virtual machine does not say which of its cpus share a core, and the host moves them: two cpus that pass a cache
// line to and fro in under 70 ns are taken for a core's two threads. One runs the pieces while the other idles
// (`nothing`), spins on PAUSE, decodes no-operations or multiplies tiles. Before and after each piece runs the 2 × 2
// loop: over 16 ns both times, the thread had company; under 10 ns both times it was alone, whatever was meant; other
// readings do not count. `someone else`: company while our own pair's other thread idled.
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/kernels/amx_config.h"

enum { STEPS = 8, TIMES = 24, TILE = 1024, MOST_CPUS = 64, MOST_READINGS = 400 };

static char panels[MOST_CPUS][40 * TILE] __attribute__((aligned(4096))); // random BF16 of magnitude 0.5 to 1

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool pin(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
}

// --- pieces --------------------------------------------------------------------------------------------------------
// a<tile>, b<tile>: a load of the operand's i-th KiB into the tile; DOT: a product.
#define A(tile, i)   _tile_loadd(tile, a + (i)*TILE, 64);
#define B(tile, i)   _tile_loadd(tile, b + (i)*TILE, 64);
#define DOT(c, x, y) _tile_dpbf16ps(c, x, y);
#define PIECE(name, before, step)                                                                                      \
    static void name(const char *from_a, const char *from_b) {                                                         \
        for (int turn = 0; turn < TIMES; turn++) {                                                                     \
            const char *a = from_a, *b = from_b;                                                                       \
            before for (int k = 0; k < STEPS; k++, a += 2 * TILE, b += 2 * TILE) {                                     \
                step __asm__ volatile("" ::: "memory");                                                                \
            }                                                                                                          \
        }                                                                                                              \
    }
PIECE(two_by_two, , A(4, 0) B(6, 0) DOT(0, 4, 6) B(7, 1) DOT(1, 4, 7) A(5, 1) DOT(2, 5, 6) DOT(3, 5, 7))
PIECE(two_by_two_7, , A(5, 0) B(6, 0) DOT(0, 5, 6) B(7, 1) DOT(1, 5, 7) A(5, 1) DOT(2, 5, 6) DOT(3, 5, 7))
PIECE(two_by_two_6, , A(6, 0) B(7, 0) DOT(0, 6, 7) B(7, 1) DOT(1, 6, 7) A(6, 1) DOT(2, 6, 7) B(7, 0) DOT(3, 6, 7))
PIECE(three_by_one, , B(7, 0) A(6, 0) DOT(0, 6, 7) A(6, 1) DOT(1, 6, 7) A(6, 2) DOT(2, 6, 7))
PIECE(two_by_one, , B(7, 0) A(6, 0) DOT(0, 6, 7) A(6, 1) DOT(1, 6, 7))
PIECE(two_by_one_5, , B(7, 0) A(5, 0) A(6, 1) DOT(0, 5, 7) DOT(1, 6, 7))
PIECE(two_by_one_6, A(5, 0) A(6, 1) B(7, 0) B(4, 0),
      DOT(0, 5, 7) A(5, 0) DOT(1, 6, 7) A(6, 1) B(7, 0) DOT(0, 5, 4) A(5, 2) DOT(1, 6, 4) A(6, 3) B(4, 1))
PIECE(one_by_one, , A(6, 0) B(7, 0) DOT(0, 6, 7))
PIECE(parts_8, ,
      A(4, 0) B(6, 2) DOT(0, 4, 6) B(7, 3) DOT(1, 4, 7) A(5, 1) DOT(2, 5, 6) DOT(3, 5, 7) B(6, 0) DOT(0, 4, 6) B(7, 1)
          DOT(1, 4, 7) DOT(2, 5, 6) DOT(3, 5, 7) A(4, 2) DOT(0, 4, 6) DOT(1, 4, 7) A(5, 3) DOT(2, 5, 6) DOT(3, 5, 7)
              B(6, 2) DOT(0, 4, 6) B(7, 3) DOT(1, 4, 7) DOT(2, 5, 6) DOT(3, 5, 7))
PIECE(parts_4, ,
      B(3, 0) A(2, 2) DOT(0, 2, 3) A(2, 0) DOT(0, 2, 3) A(2, 3) DOT(1, 2, 3) A(2, 1) DOT(1, 2, 3) B(3, 2) DOT(1, 2, 3)
          A(2, 3) DOT(1, 2, 3) A(2, 0) DOT(0, 2, 3) A(2, 2) DOT(0, 2, 3))
#define OPERANDS A(6, 0) B(7, 0)
PIECE(one_sum, OPERANDS, DOT(0, 6, 7))
PIECE(four_sums, OPERANDS, DOT(0, 6, 7) DOT(1, 6, 7) DOT(2, 6, 7) DOT(3, 6, 7))
PIECE(six_sums, OPERANDS, DOT(0, 6, 7) DOT(1, 6, 7) DOT(2, 6, 7) DOT(3, 6, 7) DOT(4, 6, 7) DOT(5, 6, 7))
PIECE(loads_2, , A(0, 0) A(1, 1))
PIECE(loads_8, , A(0, 0) A(1, 1) A(2, 0) A(3, 1) A(4, 0) A(5, 1) A(6, 0) A(7, 1))

typedef void piece_fn(const char *a, const char *b);
static const struct {
    const char *name;
    int tiles;  // in use
    int counts; // products of a step, or loads
    piece_fn *run;
} pieces[] = {
    {"2x2 sums, 2 + 2 operand tiles", 8, 4, two_by_two}, // the reference
    {"2x2 sums, 1 + 2 operand tiles", 7, 4, two_by_two_7},
    {"2x2 sums, 1 + 1 operand tiles, 5 loads", 6, 4, two_by_two_6},
    {"3x1 sums, 1 + 1 operand tiles", 5, 3, three_by_one},
    {"2x1 sums, 1 + 1 operand tiles", 4, 2, two_by_one},
    {"2x1 sums, 2 + 1 operand tiles", 5, 2, two_by_one_5},
    {"2x1 sums, 2 + 2 operand tiles, loaded ahead", 6, 4, two_by_one_6},
    {"1x1 sum, 1 + 1 operand tiles", 3, 1, one_by_one},
    {"two parts, four products: 2x2 sums", 8, 16, parts_8},
    {"two parts, four products: 2x1 sums", 4, 8, parts_4},
    {"products alone: 1 sum", 3, 1, one_sum},
    {"products alone: 4 sums", 6, 4, four_sums},
    {"products alone: 6 sums", 8, 6, six_sums},
    {"loads alone, to 2 tiles", 2, 2, loads_2},
    {"loads alone, to 8 tiles", 8, 8, loads_8},
};
enum { PIECES = sizeof pieces / sizeof *pieces };

static double time_of(int piece, int cpu) { // ns a product or load
    const char *a = panels[cpu], *b = a + 18 * TILE;
    _tile_loadconfig(&mz_amx_config);
    pieces[piece].run(a, b);
    double start = now();
    for (int i = 0; i < 4; i++)
        pieces[piece].run(a, b);
    double ns = (now() - start) * 1e9;
    _tile_release();
    return ns / (4.0 * TIMES * STEPS * pieces[piece].counts);
}

// --- the other thread ----------------------------------------------------------------------------------------------
enum company { NOTHING, PAUSE, NO_OPERATIONS, TILES_8, TILES_4, COMPANIES };
static const char *const company_name[] = {"someone else",       "PAUSE", "no-operations", "2x2 loop (8 tiles)",
                                           "2x1 loop (4 tiles)", "nobody"};

typedef struct other {
    enum company company;
    int cpu;
    atomic_bool there, over;
} other;

static void *keep_company(void *with) {
    other *o = with;
    pin(o->cpu);
    atomic_store(&o->there, true);
    while (!atomic_load(&o->over))
        switch (o->company) {
        case PAUSE:
            for (int i = 0; i < 200; i++)
                _mm_pause();
            break;
        case NO_OPERATIONS:
            for (int i = 0; i < 100; i++)
                __asm__ volatile(".rept 128\n\tnop\n\t.endr");
            break;
        case TILES_8:
            (void)time_of(0, o->cpu);
            break;
        case TILES_4:
            (void)time_of(4, o->cpu);
            break;
        default:
            usleep(500);
        }
    return NULL;
}

// --- cpus of one core ----------------------------------------------------------------------------------------------
enum { BALLS = 1000, THROWN = 300 }; // the first ones are not timed
static _Alignas(128) atomic_int ball;
static int catcher;

static void *throw_back(void *unused) {
    (void)unused;
    pin(catcher);
    for (int i = 0; i < BALLS; i++) {
        while (atomic_load(&ball) != 2 * i + 1) {
        }
        atomic_store(&ball, 2 * i + 2);
    }
    return NULL;
}

static double round_trip(int from, int to) { // ns
    pthread_t thread;
    double start = 0;
    atomic_store(&ball, 0);
    catcher = to;
    if (!pin(from) || pthread_create(&thread, NULL, throw_back, NULL) != 0)
        return 1e9;
    for (int i = 0; i < BALLS; i++) {
        if (i == THROWN)
            start = now();
        atomic_store(&ball, 2 * i + 1);
        while (atomic_load(&ball) != 2 * i + 2) {
        }
    }
    double ns = (now() - start) * 1e9 / (BALLS - THROWN);
    pthread_join(thread, NULL);
    return ns;
}

// The next pair of cpus that share a core, after the one found before; false: none does.
static bool next_pair(int cpus, int *one, int *two) {
    static int at;
    for (int tried = 0; tried < cpus * cpus; tried++, at++) {
        *one = at / cpus % cpus;
        *two = at % cpus;
        if (*one < *two && round_trip(*one, *two) < 70 && round_trip(*one, *two) < 70) {
            at++;
            return true;
        }
    }
    return false;
}

// --- readings ------------------------------------------------------------------------------------------------------
static float readings[COMPANIES + 1][PIECES][MOST_READINGS];
static int n_readings[COMPANIES + 1][PIECES];

static void read_pieces(enum company company, int cpu) {
    double before = time_of(0, cpu);
    for (int i = 0; i < PIECES; i++) {
        double ns = time_of(i, cpu), after = time_of(0, cpu);
        int state = before > 16 && after > 16 ? (int)company : before < 10 && after < 10 ? COMPANIES : -1;
        if (state >= 0 && n_readings[state][i] < MOST_READINGS)
            readings[state][i][n_readings[state][i]++] = (float)ns;
        before = after;
    }
}

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? strtod(argv[1], NULL) : 10;
    int cpus = argc > 2 ? (int)strtol(argv[2], NULL, 10) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    cpus = cpus < MOST_CPUS ? cpus : MOST_CPUS;
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) != 0) {
        fprintf(stderr, "cpu_tiles: this machine has no AMX tiles\n");
        return 1;
    }
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof panels / 2; i++) {
        x = x * 1664525u + 1013904223u;
        ((uint16_t *)(void *)panels)[i] = (uint16_t)(0x3f00 | (x >> 16 & 0x807f));
    }
    int turns = 0;
    for (double start = now(); now() - start < seconds; turns++) {
        int one = turns % cpus, two = -1;
        const bool pair = next_pair(cpus, &one, &two);
        for (int company = NOTHING; company < (pair ? COMPANIES : PAUSE); company++) {
            other o = {.company = (enum company)company, .cpu = pair ? two : one};
            pthread_t thread;
            if (pthread_create(&thread, NULL, keep_company, &o) != 0)
                return 1;
            while (!atomic_load(&o.there))
                usleep(50);
            pin(pair ? one : turns % cpus);
            read_pieces(o.company, pair ? one : turns % cpus);
            atomic_store(&o.over, true);
            pthread_join(thread, NULL);
        }
    }
    printf("piece,tiles,company,readings,median_ns,first_quartile_ns,third_quartile_ns\n");
    for (int state = COMPANIES; state >= 0; state--)
        for (int i = 0; i < PIECES; i++) {
            float *of = readings[state][i];
            const int n = n_readings[state][i];
            qsort(of, (size_t)n, sizeof *of, by_value);
            if (n > 0)
                printf("\"%s\",%d,%s,%d,%.1f,%.1f,%.1f\n", pieces[i].name, pieces[i].tiles, company_name[state], n,
                       (double)of[n / 2], (double)of[n / 4], (double)of[n * 3 / 4]);
        }
}
