// Computes the BF16 microkernel on AMX tiles: 2 × 1 tiles of 16 × 16 sums, 32 of k a step, twice for 32 × 32. Palette
// 1: 8 tiles of 16 rows × 64 bytes. TDPBF16PS takes subnormals as zero and rounds to nearest even whatever MXCSR says
// (Intel SDM).
//
// Four tiles of eight are in use, and that is the point: while the core's other hardware thread does anything at all,
// this one has about nine physical tiles. Every tile that holds something takes one, and so does every tile instruction
// under way until it retires: with eight in use each waits for the one before it (docs/dev/MATMUL.md). So a tile is
// loaded again rather than kept, and the renaming of registers does what a second set of operands would. Alone on its
// core it is as fast as 2 × 2.
//
// MZ_AMX_EMULATE replaces the six instructions by plain C with the same results, so that the logic is tested on any
// machine.
#include "backend/cpu/kernels/amx_tile.h"
#include "backend/cpu/matmul.h"

#define TILE 32 // rows and columns of the whole tile of sums; also the k of one step

#if defined(MZ_AMX_EMULATE)
#define amx_load_once  amx_load
#define amx_finish     NULL
#define amx_pack_split NULL
#define amx_conv       NULL
#else
#define amx_load_once(t, p, stride) _tile_stream_loadd(t, p, stride) // it does not displace data in L1

#define amx_finish mz_matmul_finish_32
#define amx_conv   (&mz_conv_amx)

void mz_matmul_pack_split__avx512bf16(mz_panel format, void *dst, const mz_matmul_operand *src, int64_t i0, int ni,
                                      int64_t k0, int64_t nk, int64_t k_padded);
static void amx_pack_split(mz_panel format, int width, void *dst, const mz_matmul_operand *src, int64_t i0, int ni,
                           int64_t k0, int64_t nk, int64_t k_padded) {
    (void)width;
    mz_matmul_pack_split__avx512bf16(format, dst, src, i0, ni, k0, nk, k_padded);
}
#endif

// Opens the sums: c, 16 columns wide, and the 16 rows below it become tiles 0 and 1.
static inline __attribute__((always_inline)) void open_sums(const float *c, size_t row, bool add) {
    if (add) {
        amx_load(0, c, row);
        amx_load(1, (const char *)c + AMX_ROWS * row, row);
    } else {
        amx_zero(0);
        amx_zero(1);
    }
}

static inline __attribute__((always_inline)) void close_sums(float *c, size_t row) {
    amx_store(0, c, row);
    amx_store(1, (char *)c + AMX_ROWS * row, row);
}

// Multiplies. A's rows are a_row bytes apart, and its steps of k a_step bytes.
static inline __attribute__((always_inline)) void multiply_tiles(int64_t k, const char *a, size_t a_row, size_t a_step,
                                                                 const char *b, float *c, int64_t ldc, bool add) {
    const size_t row = (size_t)ldc * sizeof(float), below = AMX_ROWS * a_row;
    for (int half = 0; half < 2; half++, b += AMX_BYTES, c += AMX_ROWS) {
        const char *from_a = a, *from_b = b;
        open_sums(c, row, add);
        for (int64_t left = k; left > 0; left -= TILE, from_a += a_step, from_b += 2 * AMX_BYTES) {
            amx_load_once(3, from_b, 64);
            amx_load(2, from_a, a_row);
            amx_dot(0, 2, 3);
            amx_load(2, from_a + below, a_row);
            amx_dot(1, 2, 3);
        }
        close_sums(c, row);
    }
}

#define PACKED_STEP (TILE * 64)
static void multiply_amx(int64_t k, const void *a, const void *b, float *c, int64_t ldc, bool add) {
    multiply_tiles(k, a, 64, PACKED_STEP, b, c, ldc, add);
}
static void multiply_amx_rows(int64_t k, const void *a, size_t a_row, const void *b, float *c, int64_t ldc, bool add) {
    multiply_tiles(k, a, a_row, 64, b, c, ldc, add);
}

const mz_microkernel mz_microkernel_amx = {.name = "amx_2x1",
                                           .mr = TILE,
                                           .nr = TILE,
                                           .k_unit = TILE,
                                           .kc = 512,
                                           .depth = 3072,
                                           .depth_across = 1024,
                                           .piece = 1024,
                                           .a_panel = MZ_PANEL_TILE_A,
                                           .b_panel = MZ_PANEL_TILE_B,
                                           .run = multiply_amx,
                                           .run_rows = multiply_amx_rows,
                                           .begin = amx_begin,
                                           .end = amx_end,
                                           .finish = amx_finish,
                                           .conv = amx_conv};

// --- values of two BF16 parts --------------------------------------------------------------------------------------
// Multiplies (a + a')·(b + b'), the parts of matmul_split.c: a·b + a·b' + a'·b and, for FP16, whose parts are the whole
// value, a'·b'. TF32 leaves that product out: |a'·b'| ≤ 2^-16·|a·b|. Two rows of tiles by one column, as above.
static inline __attribute__((always_inline)) void multiply_parts(int64_t k, const char *a, const char *b, float *c,
                                                                 int64_t ldc, bool add, const bool all_four) {
    const size_t row = (size_t)ldc * sizeof(float);
    for (int half = 0; half < 2; half++, b += AMX_BYTES, c += AMX_ROWS) {
        const char *upper = a, *from_b = b;
        open_sums(c, row, add);
        for (int64_t left = k; left > 0; left -= TILE, upper += 4 * AMX_BYTES, from_b += 4 * AMX_BYTES) {
            const char *lower = upper + AMX_BYTES, *upper_low = upper + 2 * AMX_BYTES,
                       *lower_low = upper_low + AMX_BYTES;
            amx_load_once(3, from_b, 64);
            amx_load(2, upper_low, 64);
            amx_dot(0, 2, 3);
            amx_load(2, upper, 64);
            amx_dot(0, 2, 3);
            amx_load(2, lower_low, 64);
            amx_dot(1, 2, 3);
            amx_load(2, lower, 64);
            amx_dot(1, 2, 3);
            amx_load_once(3, from_b + 2 * AMX_BYTES, 64); // loads the lower parts
            amx_dot(1, 2, 3);
            if (all_four) {
                amx_load(2, lower_low, 64);
                amx_dot(1, 2, 3);
            }
            amx_load(2, upper, 64);
            amx_dot(0, 2, 3);
            if (all_four) {
                amx_load(2, upper_low, 64);
                amx_dot(0, 2, 3);
            }
        }
        close_sums(c, row);
    }
}

#define PARTS(name, all_four)                                                                                          \
    static void name(int64_t k, const void *a, const void *b, float *c, int64_t ldc, bool add) {                       \
        multiply_parts(k, a, b, c, ldc, add, all_four);                                                                \
    }
PARTS(multiply_f16, true)
PARTS(multiply_tf32, false)

#define SPLIT(kernel_name, multiply)                                                                                   \
    {                                                                                                                  \
        .name = kernel_name, .mr = TILE, .nr = TILE, .k_unit = TILE, .kc = 256, .depth = 512, .depth_across = 512,     \
        .piece = 512, .a_panel = MZ_PANEL_SPLIT_A, .b_panel = MZ_PANEL_SPLIT_B, .run = multiply, .begin = amx_begin,   \
        .end = amx_end, .finish = amx_finish, .pack = amx_pack_split                                                   \
    }
const mz_microkernel mz_microkernel_amx_f16 = SPLIT("amx_f16_2x1", multiply_f16);
const mz_microkernel mz_microkernel_amx_tf32 = SPLIT("amx_tf32_2x1", multiply_tf32);
