// Properties of the op checksum: single bits, swaps, the sign of a zero, contents that differ in several words; and
// that address, neighbours and threads change nothing. Seen to fail with: halves that are not weighted, words that are
// not mixed, and one of the two rounds of mixing.
#include <stdlib.h>

#include "backend/inspect.h"
#include "runtime/calls.h"
#include "runtime/params.h"
#include "test.h"

static mezzo_device *devices[4]; // ref, and cpu with 1 and 3 threads

static int open_all(void **state) {
    (void)state;
    must(mezzo_device_open("ref", 1, &devices[0]));
    must(mezzo_device_open("cpu", 1, &devices[1]));
    must(mezzo_device_open("cpu", 3, &devices[2]));
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int d = 0; devices[d] != NULL; d++)
        mezzo_device_close(devices[d]);
    return 0;
}

static mz_checksum sum_on(mezzo_device *device, const void *bytes, size_t n) {
    mz_checksum sum = {1, 1}; // what was there before does not count
    mz_call call = {.op = MZ_OP_checksum, .n_in = 1, .n_out = 1};
    call.in[0] = mz_tensor_bytes((void *)(uintptr_t)bytes, n);
    call.out[0] = mz_tensor_bytes(&sum, sizeof sum);
    must(mz_run_once(device, &call));
    return sum;
}

static bool equal(mz_checksum a, mz_checksum b) {
    return a.weighted == b.weighted && a.mixed == b.mixed;
}

static mz_checksum sum_of(const void *bytes, size_t n) {
    const mz_checksum sum = sum_on(devices[1], bytes, n);
    for (int d = 0; devices[d] != NULL; d++)
        assert_true(equal(sum, sum_on(devices[d], bytes, n)));
    return sum;
}

// The formula, by hand.
TEST(sums_are_those_of_the_definition) {
    const uint32_t halves[] = {7, 0xFFFFFFFF, 5, 9};
    assert_int_equal(sum_of(halves, sizeof halves).weighted, 7 + 2 * UINT64_C(0xFFFFFFFF) + 3 * 5 + 4 * 9);
    assert_int_equal(sum_of(halves, 9).weighted, 7 + 2 * UINT64_C(0xFFFFFFFF) + 3 * 5);
    assert_true(equal(sum_of(halves, 0), (mz_checksum){0}));
}

TEST(every_bit_counts_at_every_length) {
    unsigned char bytes[33];
    for (size_t n = 1; n <= sizeof bytes; n++)
        for (size_t bit = 0; bit < 8 * n; bit++) {
            memset(bytes, (int)n, sizeof bytes);
            const mz_checksum before = sum_of(bytes, n);
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
            const mz_checksum after = sum_of(bytes, n);
            assert_true(before.weighted != after.weighted && before.mixed != after.mixed);
        }
    const float zeros[] = {0, -0.0F};
    assert_false(equal(sum_of(&zeros[0], sizeof zeros[0]), sum_of(&zeros[1], sizeof zeros[1])));
}

// Words with few different values, whose differences have many factors of two.
TEST(every_swap_counts) {
    enum { WORDS = 66 };
    uint32_t words[WORDS];
    for (uint32_t i = 0; i < WORDS; i++)
        words[i] = i % 3 == 0 ? 0 : UINT32_C(0x80000000) >> i % 5;
    const mz_checksum before = sum_of(words, sizeof words);
    for (int i = 0; i < WORDS; i++)
        for (int k = 0; k < i; k++) {
            const uint32_t was[] = {words[i], words[k]};
            words[i] = was[1];
            words[k] = was[0];
            assert_true((was[0] == was[1]) == (sum_of(words, sizeof words).weighted == before.weighted));
            words[i] = was[0];
            words[k] = was[1];
        }
}

// Changes that cancel in `weighted` alone: words of 64 bits with the same sum of halves are swapped, and +2, -1 at a
// word and at the word of twice its weight.
TEST(changes_that_cancel_in_one_sum_are_in_the_other) {
    const uint32_t a[] = {1, 8, 3, 3, 4, 5}, swapped[] = {4, 5, 3, 3, 1, 8}, opposite[] = {3, 7, 3, 3, 4, 5};
    const mz_checksum sum = sum_of(a, sizeof a), others[] = {sum_of(swapped, sizeof a), sum_of(opposite, sizeof a)};
    for (size_t i = 0; i < MZ_COUNT(others); i++)
        assert_true(others[i].weighted == sum.weighted && others[i].mixed != sum.mixed);
}

static int by_value(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

// N different contents, each with two changed words of small numbers: of N²/2 pairs, 1 of 2^32 has the same low half of
// `mixed`, and of its high half, as random numbers would. 16 and more where 2 are expected: once in 10^9 tests.
TEST(sums_agree_as_random_numbers_do) {
    enum { SIDE = 362, N = SIDE * SIDE };
    for (int half = 0; half < 2; half++) {
        uint32_t *seen = mz_alloc(N, sizeof *seen), pairs = 0;
        assert_non_null(seen);
        for (uint64_t i = 0; i < N; i++) {
            const uint64_t words[] = {3, i % SIDE, 0, i / SIDE, 7};
            mz_checksum sum = {0};
            for (uint64_t k = 0; k < MZ_COUNT(words); k++)
                mz_checksum_add(&sum, words[k], k);
            seen[i] = (uint32_t)(sum.mixed >> 32 * half);
        }
        qsort(seen, N, sizeof *seen, by_value);
        for (int i = 1; i < N; i++)
            pairs += seen[i] == seen[i - 1];
        assert_in_range(pairs, 0, 15);
        mz_free(seen);
    }
}

// Arrays at every address, larger than a thread's piece, and several in a call.
TEST(address_neighbours_and_threads_change_nothing) {
    enum { LONG = 200003 };
    unsigned char *bytes = mz_alloc(LONG + 8, 1);
    assert_non_null(bytes);
    mz_checksum want = {0};
    for (size_t at = 0; at < 8; at++) {
        for (uint32_t i = 0; i < LONG; i++)
            bytes[at + i] = (unsigned char)(i * i >> 7);
        const mz_checksum sum = sum_of(bytes + at, LONG);
        if (at == 0)
            want = sum;
        assert_true(equal(sum, want));
    }
    for (int d = 0; devices[d] != NULL; d++) {
        mz_checksum sums[MZ_MAX_IN];
        mz_call call = {.op = MZ_OP_checksum, .n_in = MZ_MAX_IN, .n_out = 1};
        for (int i = 0; i < MZ_MAX_IN; i++)
            call.in[i] = mz_tensor_bytes(bytes + i, (size_t)(i % 3 == 0 ? 0 : LONG - 100 * i));
        call.out[0] = mz_tensor_bytes(sums, sizeof sums);
        must(mz_run_once(devices[d], &call));
        for (int i = 0; i < MZ_MAX_IN; i++)
            assert_true(equal(sums[i], sum_on(devices[1], call.in[i].data, (size_t)mz_shape_count(&call.in[i].shape))));
    }
    mz_free(bytes);
}

TEST_GROUP(open_all, close_all)
