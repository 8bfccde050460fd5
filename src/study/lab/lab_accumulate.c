// Shows what a long sum loses: it adds one small term repeatedly, in several formats and ways.
#include <math.h>

#include "study/lab/lab.h"

const mz_sum_way mz_sum_ways[MZ_SUM_WAYS] = {
    {"fp32+fp32", "fp32 sum, fp32 term", MEZZO_F32, MEZZO_F32, MZ_SUM_PLAIN},
    {"fp16+fp16", "fp16 sum, fp16 term", MEZZO_F16, MEZZO_F16, MZ_SUM_PLAIN},
    {"fp32+fp16", "fp32 sum, fp16 term added as it is", MEZZO_F16, MEZZO_F32, MZ_SUM_PLAIN},
    {"fp32+fp16 cast", "fp32 sum, fp16 term cast to fp32 first", MEZZO_F16, MEZZO_F32, MZ_SUM_WIDENED},
    {"bf16+bf16", "bf16 sum, bf16 term", MEZZO_BF16, MEZZO_BF16, MZ_SUM_PLAIN},
    {"fp32+bf16", "fp32 sum, bf16 term", MEZZO_BF16, MEZZO_F32, MZ_SUM_PLAIN},
    {"fp16 kahan", "fp16, with Kahan's compensation", MEZZO_F16, MEZZO_F16, MZ_SUM_KAHAN},
    {"bf16 kahan", "bf16, with Kahan's compensation", MEZZO_BF16, MEZZO_BF16, MZ_SUM_KAHAN},
    {"fp16 pairwise", "fp16, halves first", MEZZO_F16, MEZZO_F16, MZ_SUM_PAIRWISE},
    {"bf16 pairwise", "bf16, halves first", MEZZO_BF16, MEZZO_BF16, MZ_SUM_PAIRWISE},
    {"bf16 stochastic", "bf16, stochastic rounding", MEZZO_BF16, MEZZO_BF16, MZ_SUM_STOCHASTIC},
};

// Holds a sum in progress. A sum of two numbers of at most 24 significant bits is rounded once, from FP64, where they
// are less than 2^29 apart; further bits can only change the rounding of a tie, which the halves of these formats never
// form with them.
typedef struct running {
    const mz_sum_way *way;
    mz_philox_key key;
    double sum, lost; // lost: Kahan's compensation
} running;

static double stochastic(mz_philox_key key, int64_t at, double x) {
    uint32_t words[4];
    mz_philox(key, (uint64_t)at >> 2, words);
    return (double)mezzo_bf16_to_f32(mezzo_f32_to_bf16_stochastic((float)x, words[at & 3]));
}

static void add(running *r, double term, int64_t at) {
    mezzo_dtype d = r->way->sum;
    double y, t;
    switch (r->way->how) {
    case MZ_SUM_KAHAN: // by Kahan 1965: what the last addition lost is added to the next term
        y = mezzo_round_to(term - r->lost, d);
        t = mezzo_round_to(r->sum + y, d);
        r->lost = mezzo_round_to(mezzo_round_to(t - r->sum, d) - y, d);
        r->sum = t;
        break;
    case MZ_SUM_STOCHASTIC:
        r->sum = stochastic(r->key, at, r->sum + term);
        break;
    default:
        r->sum = mezzo_round_to(r->sum + term, d);
    }
}

// Sums `count` equal terms by halves. Equal halves have equal sums, so each depth has only two sizes.
static double pairwise(double term, int64_t count, mezzo_dtype d) {
    double small = 0, large = term; // sums of ⌊size⌋ and ⌊size⌋ + 1 terms, from size 0 upward by the bits of count
    for (int bit = 62; bit >= 0; bit--) {
        bool odd = (count >> bit) & 1;
        double even_sum = mezzo_round_to(small + small, d), odd_sum = mezzo_round_to(small + large, d);
        double next = mezzo_round_to(large + large, d);
        small = odd ? odd_sum : even_sum;
        large = odd ? next : odd_sum;
    }
    return small;
}

mz_sum_result mz_sum(const mz_sum_way *way, double x, int64_t count, uint64_t seed, double *path, int64_t points) {
    mz_sum_result out = {
        .way = way->name, .title = way->title, .term = mezzo_round_to(x, way->term), .exact = x * (double)count};
    running r = {.way = way, .key = {.seed = seed}};
    int64_t next = 0;
    for (int64_t n = 1; n <= count; n++) {
        double before = r.sum;
        bool due = path != NULL && n == (next + 1) * count / points;
        if (way->how != MZ_SUM_PAIRWISE)
            add(&r, out.term, n - 1);
        else if (due || n == count)
            r.sum = pairwise(out.term, n, way->sum);
        if (r.sum != before)
            out.stalled = n;
        if (due)
            path[next++] = r.sum;
    }
    out.sum = r.sum;
    // Kahan's and stochastic sums go on changing after an addition that changes nothing.
    bool stalls = way->how == MZ_SUM_PLAIN || way->how == MZ_SUM_WIDENED;
    if (!stalls || out.stalled == count || mezzo_round_to(r.sum + out.term, way->sum) != r.sum)
        out.stalled = 0;
    out.relative = out.exact == 0 ? 0 : fabs(out.sum - out.exact) / fabs(out.exact);
    return out;
}
