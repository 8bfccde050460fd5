// Cases of what is found of tensors: histograms, checksums, and what formats make of their numbers.
#include <math.h>

#include "backend/inspect.h"
#include "cases.h"
#include "test.h"

// Every bucket's edges: the powers of two, the numbers just below and above, zeros, infinities, NaN; then many numbers,
// in each format.
void cases_histogram(void) {
    static const int32_t before[MZ_HISTOGRAM_BUCKETS] = {[0] = 7, [150] = 1};
    enum { EDGES = 3 * 277, MANY = 70001 };
    for (int f = 0; f < FLOATS; f++)
        for (int many = 0; many < 2; many++) {
            trial *t = trial_new(MZ_OP_histogram);
            trial_input(t, 0, floats[f], SHAPE(many ? MANY : 2 * EDGES + 4));
            if (many)
                trial_normal(t, 0, 1e-3);
            for (int i = 0; i < EDGES && !many; i++) {
                float power = ldexpf(1, i / 3 - 149),
                      x = i % 3 == 0 ? power : nextafterf(power, i % 3 == 1 ? 0 : INFINITY);
                t->in[0].value[2 * i] = (double)x;
                t->in[0].value[2 * i + 1] = -(double)x;
            }
            if (!many) {
                const double rest[] = {0, -INFINITY, NAN, INFINITY};
                memcpy(&t->in[0].value[2 * EDGES], rest, sizeof rest);
                trial_store(&t->in[0]);
            }
            trial_output(t, 0, MEZZO_U8, SHAPE(sizeof before));
            trial_bytes(t, 0, before, true);
            t->skip_mutations = true; // integers: all of them, or wrong
            trial_finish(t);
        }
}

// Arrays of every length up to three words and of several pieces, in one call and alone; large bytes, so that sums
// wrap.
void cases_checksum(void) {
    enum { LONG = 300007 };
    static const int64_t lengths[][4] = {
        {5, 1, 7, 8}, {9, 15, 16, 17}, {23, 24, LONG, 3}, {LONG - 7, 65536, 65544, 12}};
    static const mz_checksum none[4];
    unsigned char *bytes = mz_alloc(LONG + 4, 1);
    assert_non_null(bytes);
    for (uint32_t i = 0; i < LONG + 4; i++)
        bytes[i] = (unsigned char)(255 - i * i % 97);
    for (size_t c = 0; c < MZ_COUNT(lengths); c++)
        for (int n = 1; n <= 4; n += 3) {
            trial *t = trial_new(MZ_OP_checksum);
            for (int i = 0; i < n; i++) {
                trial_input(t, i, MEZZO_U8, SHAPE(lengths[c][i]));
                trial_bytes(t, i, bytes + i, false);
            }
            trial_output(t, 0, MEZZO_U8, SHAPE((int64_t)((size_t)n * sizeof none[0])));
            trial_bytes(t, 0, none, true);
            t->skip_mutations = true; // integers: all of them, or wrong
            trial_finish(t);
        }
    mz_free(bytes);
}

// Every format, both directions, shapes with whole and cut tiles; zeros, numbers that underflow and saturate, and what
// is not finite; split masters. The statistics and the rounded numbers must be the reference's.
static void rounding_case(mezzo_dtype dtype, mezzo_dtype via, mz_shape shape, bool columnwise, int spoilt, bool split) {
    static const mz_rounding_attrs all = {.n = 8,
                                          .how = {{.blocks = MEZZO_BLOCKS_NVFP4},
                                                  {.blocks = MEZZO_BLOCKS_MXFP8},
                                                  {.blocks = MEZZO_BLOCKS_MXFP4},
                                                  {.dtype = MEZZO_F8E4M3, .scaling = MZ_SCALING_TENSOR},
                                                  {.dtype = MEZZO_F8E5M2, .scaling = MZ_SCALING_TENSOR},
                                                  {.dtype = MEZZO_F8E4M3, .scaling = MZ_SCALING_BLOCK128},
                                                  {.dtype = MEZZO_F8E5M2, .scaling = MZ_SCALING_BLOCK128},
                                                  {.dtype = MEZZO_F8E4M3, .scaling = MZ_SCALING_TILE128}}};
    static const mz_rounding_sums none[MZ_ROUNDING_FORMATS];
    for (int first = 0; first < all.n; first += all.n - 1) { // whose rounded numbers are compared
        mz_rounding_attrs formats = all;
        trial *t = trial_new(MZ_OP_rounding);
        formats.columnwise = columnwise;
        formats.via = via;
        formats.how[0] = all.how[first];
        t->attrs.rounding = &formats;
        trial_input(t, 0, dtype, shape);
        trial_normal(t, 0, 1);
        const int64_t n = trial_count(&t->in[0]);
        for (int64_t i = 0; i < n; i++) // magnitudes from block to block and within one
            t->in[0].value[i] *= ldexp(1, (int)(i / 40 % 23) - 12) * (i % 7 == 0 ? 1e-3 : 1);
        for (int64_t i = n / 3; i < n / 2; i++)
            t->in[0].value[i] = 0;
        if (spoilt > 0)
            t->in[0].value[n - 1] = spoilt > 1 ? NAN : -INFINITY;
        trial_store(&t->in[0]);
        if (split) {
            uint16_t *low = mz_alloc((size_t)n, sizeof *low);
            assert_non_null(low);
            for (int64_t i = 0; i < n; i++)
                low[i] = (uint16_t)(i * 40503); // every number of 16 bits, in no order
            trial_input(t, 1, MEZZO_U8, SHAPE(2 * n));
            trial_bytes(t, 1, low, false);
            mz_free(low);
        }
        trial_output(t, 0, MEZZO_U8, SHAPE(sizeof none));
        trial_bytes(t, 0, none, true);
        trial_output(t, 1, MEZZO_F32, shape);
        t->exact = true;
        t->skip_mutations = true; // counts and sums: all of them, or wrong
        trial_finish(t);
    }
}

void cases_rounding(void) {
    for (int f = 0; f < FLOATS; f++)
        for (int columnwise = 0; columnwise < 2; columnwise++)
            for (int spoilt = 0; spoilt < 3; spoilt++) {
                rounding_case(floats[f], MEZZO_F32, SHAPE(1, 1), columnwise, spoilt, false);
                rounding_case(floats[f], MEZZO_BF16, SHAPE(3, 45, 161), columnwise, spoilt, false);
                rounding_case(floats[f], MEZZO_F32, SHAPE(128, 256), columnwise, spoilt, false);
            }
    for (int columnwise = 0; columnwise < 2; columnwise++)
        for (int spoilt = 0; spoilt < 3; spoilt++) {
            rounding_case(MEZZO_BF16, MEZZO_F32, SHAPE(45, 161), columnwise, spoilt, true);
            rounding_case(MEZZO_BF16, MEZZO_F16, SHAPE(136, 264), columnwise, spoilt, true);
        }
    rounding_case(MEZZO_F32, MEZZO_F16, SHAPE(8400, 16), false, 0, false); // more tiles than lanes of the last sum
    rounding_case(MEZZO_BF16, MEZZO_F32, SHAPE(16, 8400), true, 0, false);
}
