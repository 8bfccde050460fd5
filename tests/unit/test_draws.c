// Tokens that are drawn are those that sorting the whole row and adding up its weights one after another would draw,
// with any number of threads. Seen to fail with: a term of e^x or ln 2's lower part left out, equal tokens all kept by
// a nucleus, pieces' sums not renewed after a nucleus, NaN not looked for, the least key rounded to nearest.

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "task/draw.h"
#include "test.h"

#define PURPOSE 0x5A3F1E00u

// --- the reference -------------------------------------------------------------------------------------------------
typedef struct candidate {
    int32_t token;
    float logit;
    double weight;
} candidate;

static int likelier(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : x->token - y->token;
}

static int by_token(const void *a, const void *b) {
    return ((const candidate *)a)->token - ((const candidate *)b)->token;
}

// The token that the draw's number falls on, and how far it is from its neighbours, as a share of all: where that is of
// the order of rounding, either may be drawn.
static int32_t expected(const float *logits, int64_t vocab, const mz_draw *draw, double *margin) {
    candidate *c = malloc((size_t)vocab * sizeof *c);
    int64_t kept = vocab;
    double total = 0, nucleus = 0;
    for (int64_t i = 0; i < vocab; i++)
        c[i] = (candidate){(int32_t)i, logits[i], 0};
    qsort(c, (size_t)vocab, sizeof *c, likelier);
    int32_t token = c[0].token;
    *margin = 1;
    if (draw->temperature > 0) {
        if (draw->top_k > 0 && draw->top_k < vocab)
            for (kept = draw->top_k; kept < vocab && c[kept].logit == c[draw->top_k - 1].logit;)
                kept++;
        for (int64_t i = 0; i < kept; i++)
            total += c[i].weight = exp(((double)c[i].logit - (double)c[0].logit) / draw->temperature);
        if (draw->top_p > 0 && draw->top_p < 1) {
            int64_t n = 0;
            while (n < kept && nucleus < draw->top_p * total)
                nucleus += c[n++].weight;
            kept = n;
            total = nucleus;
        }
        uint32_t words[4];
        mz_philox((mz_philox_key){draw->seed, 0, PURPOSE}, draw->index, words);
        double left = (double)((uint64_t)words[0] << 21 | words[1] >> 11) * 0x1p-53 * total;
        qsort(c, (size_t)kept, sizeof *c, by_token);
        for (int64_t i = 0; i < kept && left >= 0; i++) {
            if (c[i].weight == 0)
                continue;
            token = c[i].token;
            *margin = fmin(left, fabs(left - c[i].weight)) / total;
            left -= c[i].weight;
        }
    }
    free(c);
    return token;
}

// --- rows ----------------------------------------------------------------------------------------------------------
enum { NORMAL, EQUAL, TIED, RISING, MASKED, FAR_APART, ONE, KINDS };

static float logit_of(int kind, int64_t i, int64_t vocab) {
    uint32_t words[4];
    mz_philox((mz_philox_key){7, 0, 11}, (uint64_t)i, words);
    const double u = (words[0] + 0.5) * 0x1p-32, v = words[1] * 0x1p-32;
    const double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
    switch (kind) {
    case EQUAL:
        return -3.25f;
    case TIED:
        return (float)(words[2] % 5) - 2;
    case RISING:
        return (float)i * 0.001f - 20;
    case MASKED:
        return words[2] % 3 > 0 && i != vocab / 2 ? -INFINITY : (float)(2 * normal);
    case FAR_APART:
        return (float)(normal * pow(10, words[2] % 6));
    case ONE:
        return i == vocab - 1 ? 1000 : (float)normal;
    default:
        return (float)(-60 + 4 * normal);
    }
}

static void check_row(const float *logits, int64_t vocab, mz_draw_room *one, mz_draw_room *three) {
    const double temperatures[] = {0, 0.05, 0.8, 3}, nuclei[] = {0, 1e-9, 0.5, 0.95, 0.999999, 1};
    const int limits[] = {0, 1, 2, 40, 5000, 60000};
    const bool large = vocab > 5000; // sorting takes its time
    for (size_t t = large ? 2 : 0; t < (large ? 3 : MZ_COUNT(temperatures)); t++)
        for (size_t p = 0; p < MZ_COUNT(nuclei); p++)
            for (size_t k = 0; k < MZ_COUNT(limits); k++)
                for (uint64_t index = 0; index < (large ? 1 : 5); index++) {
                    const mz_draw draw = {.temperature = temperatures[t],
                                          .top_p = nuclei[p],
                                          .top_k = limits[k],
                                          .seed = 5,
                                          .index = index};
                    double margin;
                    int32_t token, again;
                    const int32_t want = expected(logits, vocab, &draw, &margin);
                    assert_int_equal(mz_draw_token(one, logits, &draw, &token), MEZZO_OK);
                    assert_int_equal(mz_draw_token(three, logits, &draw, &again), MEZZO_OK);
                    assert_int_equal(token, again);
                    if (token != want && margin > 1e-10)
                        fail_msg("of %d tokens %d was drawn, not %d: temperature %g, top_p %g, top_k %d, draw %d",
                                 (int)vocab, token, want, draw.temperature, draw.top_p, draw.top_k, (int)index);
                }
}

TEST(draws_are_those_of_a_sorted_row) {
    const int64_t sizes[] = {1, 2, 7, 65, 1023, 1024, 1025, 9000, 50257};
    for (size_t s = 0; s < MZ_COUNT(sizes); s++) {
        const int64_t vocab = sizes[s];
        mz_draw_room *one, *three;
        float *logits = malloc((size_t)vocab * sizeof *logits);
        assert_int_equal(mz_draw_room_create(vocab, 1, &one), MEZZO_OK);
        assert_int_equal(mz_draw_room_create(vocab, 3, &three), MEZZO_OK);
        for (int kind = 0; kind<KINDS; kind += vocab> 10000 ? 3 : 1) {
            for (int64_t i = 0; i < vocab; i++)
                logits[i] = logit_of(kind, i, vocab);
            check_row(logits, vocab, one, three);
        }
        mz_draw_room_free(one);
        mz_draw_room_free(three);
        free(logits);
    }
}

// Weights to a few ulp: how often each of three tokens is drawn says no such thing, but an edge between two does. The
// first token's weight over the sum is the draw's number at one temperature; 1e-12 to either side parts the two.
TEST(an_edge_lies_where_exp_says) {
    mz_draw_room *room;
    assert_int_equal(mz_draw_room_create(2, 1, &room), MEZZO_OK);
    for (uint64_t index = 0; index < 200; index++) {
        uint32_t words[4];
        int32_t token;
        mz_philox((mz_philox_key){5, 0, PURPOSE}, index, words);
        const double u = (double)((uint64_t)words[0] << 21 | words[1] >> 11) * 0x1p-53;
        if (u < 0.5001) // the first token, whose share is 1/(1 + e^(-1/T)), is the likelier one
            continue;
        const double edge = 1 / log(u / (1 - u)); // the temperature
        const float logits[2] = {1, 0};
        mz_draw draw = {.temperature = edge * (1 - 1e-11), .seed = 5, .index = index};
        assert_int_equal(mz_draw_token(room, logits, &draw, &token), MEZZO_OK);
        assert_int_equal(token, 0);
        draw.temperature = edge * (1 + 1e-11);
        assert_int_equal(mz_draw_token(room, logits, &draw, &token), MEZZO_OK);
        assert_int_equal(token, 1);
    }
    mz_draw_room_free(room);
}

// A token that is far below the likeliest one at so low a temperature, and the next float below it, is never drawn: its
// place is within rounding of where weights are no longer looked at.
TEST(the_next_number_below_is_not_drawn) {
    const float tops[] = {100, -100, 30000, 1e9F, 1e-30F};
    const double steps[] = {0.4, 0.6, 0.99, 1.2, 3.55, 3.9}; // from the likeliest one to there
    mz_draw_room *room;
    assert_int_equal(mz_draw_room_create(8, 1, &room), MEZZO_OK);
    for (size_t i = 0; i < MZ_COUNT(tops); i++)
        for (size_t k = 0; k < MZ_COUNT(steps); k++) {
            float logits[8] = {tops[i]};
            for (int j = 1; j < 8; j++)
                logits[j] = nextafterf(logits[j - 1], -INFINITY);
            mz_draw draw = {.temperature = steps[k] * ((double)logits[0] - (double)logits[1]) / 700, .seed = 5};
            for (; draw.index < 20; draw.index++) {
                int32_t token;
                assert_int_equal(mz_draw_token(room, logits, &draw, &token), MEZZO_OK);
                assert_int_equal(token, 0);
            }
        }
    mz_draw_room_free(room);
}

TEST(what_is_no_number_is_refused) {
    enum { VOCAB = 3000 };
    float logits[VOCAB] = {0};
    const float bad[] = {NAN, -NAN, INFINITY};
    const mz_draw draw = {.temperature = 1};
    mz_draw_room *room;
    int32_t token;
    assert_int_equal(mz_draw_room_create(VOCAB, 1, &room), MEZZO_OK);
    for (size_t i = 0; i < MZ_COUNT(bad); i++)
        for (int at = 0; at < VOCAB; at += 1499) {
            logits[at] = bad[i];
            assert_int_equal(mz_draw_token(room, logits, &draw, &token), MEZZO_ERR_NUMERIC);
            logits[at] = 0;
        }
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -INFINITY;
    assert_int_equal(mz_draw_token(room, logits, &draw, &token), MEZZO_ERR_NUMERIC);
    logits[1234] = -FLT_MAX;
    assert_int_equal(mz_draw_token(room, logits, &draw, &token), MEZZO_OK);
    assert_int_equal(token, 1234);
    mz_draw_room_free(room);
}
