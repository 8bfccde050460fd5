// Random numbers: the published answers, the range, the moments.
#include <math.h>

#include "base/base.h"
#include "test.h"

// Random123's kat_vectors file, lines "philox4x32 10": counter, key, answer.
TEST(philox_gives_the_published_answers) {
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}},
        {{0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF},
         {0xFFFFFFFF, 0xFFFFFFFF},
         {0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}},
        {{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, // digits of pi
         {0xA4093822, 0x299F31D0},
         {0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mz_philox_key key = {.seed = (uint64_t)rows[i].key[1] << 32 | rows[i].key[0],
                             .tensor = rows[i].counter[2],
                             .step = rows[i].counter[3]};
        uint32_t out[4];
        mz_philox(key, (uint64_t)rows[i].counter[1] << 32 | rows[i].counter[0], out);
        assert_memory_equal(out, rows[i].answer, sizeof out);
    }
}

// A run is repeatable only if every part of the key matters and nothing else does.
TEST(every_part_of_the_key_changes_the_words) {
    mz_philox_key key = {.seed = 7, .step = 3, .tensor = 2};
    mz_philox_key changed[] = {{.seed = 8, .step = 3, .tensor = 2},
                               {.seed = 7 + (UINT64_C(1) << 32), .step = 3, .tensor = 2},
                               {.seed = 7, .step = 4, .tensor = 2},
                               {.seed = 7, .step = 3, .tensor = 1}};
    uint32_t base[4], other[4];
    mz_philox(key, 5, base);
    for (size_t i = 0; i < MZ_COUNT(changed); i++) {
        mz_philox(changed[i], 5, other);
        assert_memory_not_equal(base, other, sizeof base);
    }
    mz_philox(key, 5 + (UINT64_C(1) << 32), other);
    assert_memory_not_equal(base, other, sizeof base);
    mz_philox(key, 5, other);
    assert_memory_equal(base, other, sizeof base);
}

TEST(uniform_covers_zero_to_one_and_never_reaches_one) {
    assert_true(mz_uniform(0) == 0.0f);
    assert_true(mz_uniform(UINT32_MAX) == 1.0f - 0x1p-24f);
    assert_true(mz_uniform(UINT32_C(0x80000000)) == 0.5f);
}

// n samples: the mean of uniforms has standard deviation 1/sqrt(12 n), that of normals 1/sqrt(n), a normal's variance
// estimate sqrt(2/n), its fourth moment's sqrt(96/n). Five of them: a right generator with a fixed seed passes for
// ever, a wrong scale (1%) does not.
TEST(moments_are_those_of_the_distribution) {
    enum { BLOCKS = 65536 };
    const double n = 4.0 * (double)BLOCKS;
    double uniform_sum = 0, sum = 0, square_sum = 0, fourth_sum = 0, largest = 0, pair_sum = 0;
    for (uint64_t i = 0; i < BLOCKS; i++) {
        uint32_t words[4];
        float z[4];
        mz_philox((mz_philox_key){.seed = 1234}, i, words);
        mz_normal4(words, z);
        for (int j = 0; j < 4; j++) {
            double x = (double)z[j];
            uniform_sum += (double)mz_uniform(words[j]);
            sum += x;
            square_sum += x * x;
            fourth_sum += x * x * x * x;
            largest = fmax(largest, fabs(x));
        }
        pair_sum += (double)z[0] * (double)z[1] + (double)z[2] * (double)z[3];
    }
    assert_true(fabs(uniform_sum / n - 0.5) < 5 * sqrt(1 / (12 * n)));
    assert_true(fabs(sum / n) < 5 * sqrt(1 / n));
    assert_true(fabs(square_sum / n - 1) < 5 * sqrt(2 / n));
    assert_true(fabs(fourth_sum / n - 3) < 5 * sqrt(96 / n));
    assert_true(fabs(pair_sum / (n / 2)) < 5 * sqrt(2 / n)); // the two of a Box-Muller pair are uncorrelated
    assert_true(largest > 4 && largest < 7);                 // sqrt(2 ln 2^32) = 6.66 is the bound
}

TEST(normals_are_finite_at_the_extreme_words) {
    const uint32_t zeros[4] = {0}, ones[4] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    float z[4];
    mz_normal4(zeros, z);
    assert_true(fabsf(z[0] - 6.6604359f) < 1e-5f && z[1] == 0.0f); // sqrt(2 ln 2^32)
    mz_normal4(ones, z);
    for (int i = 0; i < 4; i++)
        assert_true(z[i] == 0.0f); // radius sqrt(-2 ln 1)
}
