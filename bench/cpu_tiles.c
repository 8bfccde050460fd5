// What AMX tile instructions cost on a machine whose cores change by the second: pieces of a product's inner loop, all data in L1, each for
// a millisecond and a half in turn on one core after another. CSV on stdout: a row a piece and a state of the core, nanoseconds a product
// (pieces without products: as if their four loads, 64 loads or 72 multiply-adds served four).
//
//   cc -O2 -mamx-tile -mamx-bf16 -mavx512f bench/cpu_tiles.c -o cpu_tiles && ./cpu_tiles [SECONDS [CORES]] > bench/results/cpu-tiles-amx.csv
//
// A round is fast or slow by its first and last 2 × 2 loop: under 11 ns or over 16, where TDPBF16PS takes 16 cycles, 6 ns; others do not count.
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/kernels/amx_config.h"

enum { STEPS = 8, TILE = 1024, PANEL = STEPS * 2 * TILE, MOST_ROUNDS = 4000 };
#define SLICE 1.5e-3

static char panels[2][PANEL + 2 * TILE] __attribute__((aligned(4096))); // random BF16 of magnitude 0.5 to 1
static float sums[1024] __attribute__((aligned(64)));

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void zero(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static void store(void) {
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    _tile_stored(2, sums + 512, 128);
    _tile_stored(3, sums + 528, 128);
}

static void load_operands(const char *a, const char *b) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + TILE, 64);
    _tile_loadd(5, a + TILE, 64);
}

#define FENCE()   __asm__ volatile("" ::: "memory")
#define EACH_STEP for (int k = 0; k < STEPS; k++, a += 2 * TILE, b += 2 * TILE)

static void products(const char *a, const char *b) {
    zero();
    load_operands(a, b);
    EACH_STEP {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        FENCE();
    }
    store();
}

static void loads(const char *a, const char *b) {
    EACH_STEP {
        load_operands(a, b);
        FENCE();
    }
}

// What multiply_tiles of amx_matmul.c does.
static void two_by_two(const char *a, const char *b) {
    zero();
    load_operands(a, b);
    EACH_STEP {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(4, a + 2 * TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(6, b + 2 * TILE, 64);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(7, b + 3 * TILE, 64);
        _tile_loadd(5, a + 3 * TILE, 64);
        FENCE();
    }
    store();
}

static void loads_first(const char *a, const char *b) {
    zero();
    EACH_STEP {
        load_operands(a, b);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        FENCE();
    }
    store();
}

// The loads go to tiles that no product reads.
static void apart(const char *a, const char *b) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_loadd(3, a, 64);
    _tile_loadd(4, b, 64);
    EACH_STEP {
        _tile_dpbf16ps(0, 3, 4);
        _tile_loadd(5, a, 64);
        _tile_dpbf16ps(1, 3, 4);
        _tile_loadd(6, a + TILE, 64);
        _tile_dpbf16ps(2, 3, 4);
        _tile_loadd(7, b, 64);
        _tile_dpbf16ps(0, 3, 4);
        _tile_loadd(5, b + TILE, 64);
        FENCE();
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    _tile_stored(2, sums + 512, 128);
}

static void vector_loads(const char *a, const char *b) {
    EACH_STEP for (int i = 0; i < 2 * TILE; i += 64) {
        __asm__ volatile("vmovdqa64 %0, %%zmm20" ::"m"(*(const __m512i *)(const void *)(a + i)) : "xmm20");
        __asm__ volatile("vmovdqa64 %0, %%zmm21" ::"m"(*(const __m512i *)(const void *)(b + i)) : "xmm21");
    }
}

static void multiply_adds(const char *a, const char *b) {
    __m512 x[12], half = _mm512_set1_ps(0.5f);
    for (int i = 0; i < 12; i++)
        x[i] = half;
    EACH_STEP for (int turn = 0; turn < 6; turn++) {
#pragma GCC unroll 12 // the sums are registers
        for (int i = 0; i < 12; i++) {
            x[i] = _mm512_fmadd_ps(x[i], half, half);
            __asm__ volatile("" : "+v"(x[i]));
        }
    }
}

static const struct {
    const char *name;
    void (*run)(const char *a, const char *b);
} pieces[] = {{"2x2 loop: 4 products and 4 loads a step", two_by_two},
              {"4 products", products},
              {"4 loads", loads},
              {"4 loads then 4 products", loads_first},
              {"4 products and 4 loads that none reads", apart},
              {"64 vector loads", vector_loads},
              {"72 FP32 vector multiply-adds", multiply_adds},
              {"2x2 loop again", two_by_two}};
enum { PIECES = sizeof pieces / sizeof *pieces };

static double time_of(int piece) {
    long n = 0;
    double start = now(), end;
    do {
        for (int i = 0; i < 8; i++)
            pieces[piece].run(panels[0], panels[1]);
        n += 8;
        end = now();
    } while (end - start < SLICE);
    return (end - start) / (double)(n * STEPS * 4) * 1e9;
}

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? strtod(argv[1], NULL) : 10;
    const int cores = argc > 2 ? (int)strtol(argv[2], NULL, 10) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    static float ns[PIECES][MOST_ROUNDS];
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) != 0) {
        fprintf(stderr, "cpu_tiles: this machine has no AMX tiles\n");
        return 1;
    }
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof panels / 2; i++) {
        x = x * 1664525u + 1013904223u;
        ((uint16_t *)(void *)panels)[i] = (uint16_t)(0x3f00 | (x >> 16 & 0x807f));
    }
    _tile_loadconfig(&mz_amx_config);
    int rounds = 0;
    for (double start = now(); now() - start < seconds && rounds < MOST_ROUNDS; rounds++) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)(rounds % cores), &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0)
            continue;
        for (int i = 0; i < PIECES; i++)
            ns[i][rounds] = (float)time_of(i);
    }
    printf("piece,state,rounds,of_rounds,median_ns,first_quartile_ns,third_quartile_ns\n");
    for (int slow = 0; slow < 2; slow++)
        for (int i = 0; i < PIECES; i++) {
            static float of[MOST_ROUNDS];
            int n = 0;
            for (int r = 0; r < rounds; r++) {
                const float first = ns[0][r], last = ns[PIECES - 1][r];
                if (slow ? first > 16 && last > 16 : first < 11 && last < 11)
                    of[n++] = ns[i][r];
            }
            qsort(of, (size_t)n, sizeof *of, by_value);
            if (n > 0)
                printf("\"%s\",%s,%d,%d,%.2f,%.2f,%.2f\n", pieces[i].name, slow ? "slow" : "fast", n, rounds,
                       (double)of[n / 2], (double)of[n / 4], (double)of[n * 3 / 4]);
        }
}
