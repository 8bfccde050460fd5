// mezzo lab underflow shows which gradients of a model FP16 would lose, and which loss scale keeps them.
#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "study/lab/lab.h"
#include "backend/inspect.h"

static const char *const kinds[MZ_MAGNITUDE_KINDS] = {"gradients of weights", "activations",
                                                      "gradients of activations"};

static double percent(int64_t part, int64_t of) {
    return of > 0 ? 100 * (double)part / (double)of : 0;
}

static void widen(const int32_t *counts, int64_t *out) {
    for (int b = 0; b < MZ_HISTOGRAM_BUCKETS; b++)
        out[b] = counts[b];
}

static int64_t not_finite(const int64_t *counts) {
    return counts[MZ_HISTOGRAM_BUCKETS - 2] + counts[MZ_HISTOGRAM_BUCKETS - 1];
}

// --- JSON ----------------------------------------------------------------------------------------------------------
static json_t *fate_json(const int64_t *counts, int scale) {
    mz_fp16_fate plain = mz_fp16_fate_of(counts, 0), scaled = mz_fp16_fate_of(counts, scale);
    json_t *buckets = json_object();
    for (int b = 1; b <= MZ_HISTOGRAM_BUCKETS - 3; b++)
        if (counts[b] > 0) {
            char exponent[16];
            snprintf(exponent, sizeof exponent, "%d", MZ_HISTOGRAM_EXPONENT(b));
            json_object_set_new(buckets, exponent, json_integer((json_int_t)counts[b]));
        }
    return json_pack("{sI sI sI sf sf sf sf sf sf si si so}", "zeros", (json_int_t)counts[0], "nonzero",
                     (json_int_t)plain.nonzero, "not_finite", (json_int_t)not_finite(counts), "lost_percent",
                     percent(plain.lost, plain.nonzero), "subnormal_percent", percent(plain.subnormal, plain.nonzero),
                     "overflow_percent", percent(plain.overflow, plain.nonzero), "scaled_lost_percent",
                     percent(scaled.lost, scaled.nonzero), "scaled_subnormal_percent",
                     percent(scaled.subnormal, scaled.nonzero), "scaled_overflow_percent",
                     percent(scaled.overflow, scaled.nonzero), "lowest_log2", plain.lowest, "highest_log2",
                     plain.highest, "counts_up_to_log2", buckets);
}

// Lists tensors that were rounded to 8 bits: their scale, the numbers that became zero, and the counts of their table
// of scales.
static json_t *narrowed_json(const mz_magnitudes *m) {
    json_t *list = json_array();
    for (size_t i = 0; i < m->n_narrowed; i++) {
        const mz_narrowed *of = &m->narrowed[i];
        json_array_append_new(
            list, json_pack("{ss ss sb sf sI sI sf sI sI}", "name", of->name, "format",
                            mezzo_dtype_name((mezzo_dtype)of->found.dtype), "known", of->known, "scale",
                            (double)of->found.scale, "nonzero", (json_int_t)of->nonzero, "lost", (json_int_t)of->lost,
                            "lost_percent", percent(of->lost, of->nonzero), "saturated_steps",
                            (json_int_t)of->found.saturated, "scale_changes", (json_int_t)of->found.changes));
    }
    return list;
}

static json_t *result_json(const mz_underflow *u, int scale) {
    json_t *all = json_object(), *tensors = json_array();
    int64_t counts[MZ_HISTOGRAM_BUCKETS];
    for (int k = 0; k < MZ_MAGNITUDE_KINDS; k++) {
        mz_underflow_sum(u, (mz_magnitude_kind)k, counts);
        json_t *o = fate_json(counts, scale);
        json_object_set_new(o, "least_scale_log2", json_integer(mz_fp16_least_scale(counts, 0.001)));
        json_object_set_new(o, "most_scale_log2", json_integer(mz_fp16_most_scale(counts)));
        json_object_set_new(all, kinds[k], o);
    }
    const mz_magnitudes *m = u->magnitudes;
    for (size_t i = 0; i < m->n; i++) {
        widen(m->list[i].counts, counts);
        json_t *o = fate_json(counts, scale);
        json_object_set_new(o, "name", json_string(m->list[i].name));
        json_object_set_new(o, "kind", json_string(kinds[m->list[i].kind]));
        json_array_append_new(tensors, o);
    }
    return json_pack("{sI sI so so so}", "step", (json_int_t)u->step, "loss_scale_log2", (json_int_t)scale, "all", all,
                     "tensors", tensors, "narrowed", narrowed_json(m));
}

// --- text ----------------------------------------------------------------------------------------------------------
// Prints a line. scale -1: activations, which are not scaled.
static void print_line(const char *name, const int64_t *counts, int scale) {
    mz_fp16_fate plain = mz_fp16_fate_of(counts, 0), scaled = mz_fp16_fate_of(counts, scale > 0 ? scale : 0);
    printf("%-44.44s %9lld %5d %5d %8.2f %8.2f %8.2f", name, (long long)plain.nonzero, plain.lowest, plain.highest,
           percent(plain.lost, plain.nonzero), percent(plain.subnormal, plain.nonzero),
           percent(plain.overflow, plain.nonzero));
    if (scale >= 0)
        printf(" %8.2f %8.2f %8.2f", percent(scaled.lost, scaled.nonzero), percent(scaled.subnormal, scaled.nonzero),
               percent(scaled.overflow, scaled.nonzero));
    printf("\n");
}

static void print_head(int scale) {
    char with[24];
    snprintf(with, sizeof with, "times 2^%d:", scale);
    printf("%-44s %9s %11s %26s %26s\n", "", "", "log2 |x|", "as it is, per cent:", with);
    printf("%-44s %9s %5s %5s", "", "nonzero", "from", "to");
    for (int i = 0; i < 2; i++)
        printf(" %8s %8s %8s", "lost", "subnorm.", "infinite");
    printf("\n");
}

// Holds at most `most` tensors that lose the largest shares.
typedef struct ranked {
    size_t index;
    double lost;
} ranked;

static int more_lost_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return x->lost != y->lost ? (x->lost < y->lost ? 1 : -1) : x->index < y->index ? -1 : x->index > y->index;
}

static int print_tensors(const mz_underflow *u, int scale, size_t most) {
    const mz_magnitudes *m = u->magnitudes;
    int64_t counts[MZ_HISTOGRAM_BUCKETS];
    ranked *list = mz_alloc(m->n, sizeof *list);
    size_t n = 0;
    if (list == NULL)
        return cli_error(MEZZO_ERR_MEMORY);
    for (size_t i = 0; i < m->n; i++) {
        widen(m->list[i].counts, counts);
        mz_fp16_fate f = mz_fp16_fate_of(counts, 0);
        if (m->list[i].kind != MZ_OF_ACTIVATION)
            list[n++] = (ranked){i, percent(f.lost, f.nonzero)};
    }
    qsort(list, n, sizeof *list, more_lost_first);
    for (size_t k = 0; k < n && k < most; k++) {
        char name[64];
        const mz_magnitudes_of *of = &m->list[list[k].index];
        snprintf(name, sizeof name, "%s%.60s", of->kind == MZ_OF_GRADIENT ? "" : "d ", of->name);
        widen(of->counts, counts);
        print_line(name, counts, scale);
    }
    if (n > most)
        printf("... and %zu more: --count %zu shows them\n", n - most, n);
    mz_free(list);
    return CLI_DONE;
}

static int print_narrowed(const mz_magnitudes *m, size_t most) {
    ranked *list = mz_alloc(m->n_narrowed + 1, sizeof *list);
    size_t n = 0;
    if (list == NULL)
        return cli_error(MEZZO_ERR_MEMORY);
    for (size_t i = 0; i < m->n_narrowed; i++)
        if (m->narrowed[i].known)
            list[n++] = (ranked){i, percent(m->narrowed[i].lost, m->narrowed[i].nonzero)};
    qsort(list, n, sizeof *list, more_lost_first);
    printf("\n%-44s %-9s %9s %9s %8s %10s %10s\n", "rounded to 8 bits", "format", "scale", "nonzero", "lost %",
           "saturated", "changes");
    for (size_t k = 0; k < n && k < most; k++) {
        const mz_narrowed *of = &m->narrowed[list[k].index];
        printf("%-44.44s %-9s %9.3g %9lld %8.3f %10d %10d\n", of->name, mezzo_dtype_name((mezzo_dtype)of->found.dtype),
               (double)of->found.scale, (long long)of->nonzero, list[k].lost, of->found.saturated, of->found.changes);
    }
    if (n > most)
        printf("... and %zu more\n", n - most);
    cli_tell("lost: non-zero values that became zero in 8 bits. saturated: steps so far in which the largest value "
             "saturated;\nchanges: steps after which the scale changed.");
    mz_free(list);
    return CLI_DONE;
}

static void print_conclusion(const mz_underflow *u) {
    int64_t weights[MZ_HISTOGRAM_BUCKETS], flowing[MZ_HISTOGRAM_BUCKETS], activations[MZ_HISTOGRAM_BUCKETS];
    mz_underflow_sum(u, MZ_OF_GRADIENT, weights);
    mz_underflow_sum(u, MZ_OF_ACTIVATION_GRADIENT, flowing);
    mz_underflow_sum(u, MZ_OF_ACTIVATION, activations);
    int one = mz_fp16_least_scale(weights, 0.001), two = mz_fp16_least_scale(flowing, 0.001);
    int top = mz_fp16_most_scale(weights) < mz_fp16_most_scale(flowing) ? mz_fp16_most_scale(weights)
                                                                        : mz_fp16_most_scale(flowing);
    mz_fp16_fate a = mz_fp16_fate_of(activations, 0);
    cli_tell("\nlost: |x| is at most 2^-25, and FP16 stores zero. subnorm.: up to 2^-14, stored with fewer digits.\nA "
             "loss scale of 2^%d keeps 99.9 %% of the weight gradients, and 2^%d of the activation gradients, which "
             "backward stores in FP16;\nup to 2^%d nothing overflows. Activations are not scaled: they reach 2^%d "
             "here, and FP16 ends at 2^16.\nBF16 has FP32's exponents and loses none of these values.",
             one, two, top, a.highest);
}

static int print_result(const mz_underflow *u, int scale, size_t most) {
    const char *run = cli_line.n_operands > 1 ? cli_line.operands[1] : NULL;
    int64_t counts[MZ_HISTOGRAM_BUCKETS];
    CLI_PLOT(mz_lab_draw_underflow, u, scale);
    if (cli_has("json"))
        return cli_json_print(result_json(u, scale));
    printf("step %lld of %s, in %s\n\n", (long long)u->step, run != NULL ? mz_show(run).text : "a small GPT",
           cli_text("precision", "FP32"));
    print_head(scale);
    for (int k = 0; k < MZ_MAGNITUDE_KINDS; k++) {
        mz_underflow_sum(u, (mz_magnitude_kind)k, counts);
        print_line(kinds[k], counts, k == MZ_OF_ACTIVATION ? -1 : scale);
    }
    printf("\n");
    CLI_TRY(print_tensors(u, scale, most));
    print_conclusion(u);
    return u->magnitudes->n_narrowed > 0 ? print_narrowed(u->magnitudes, most) : CLI_DONE;
}

int cli_lab_underflow(void) {
    mz_underflow_options o = {.run = cli_line.n_operands > 1 ? cli_line.operands[1] : NULL,
                              .data = cli_text("data", NULL),
                              .device = cli_text("device", NULL),
                              .precision = cli_text("precision", NULL)};
    int64_t seed, most;
    double scale;
    CLI_TRY(cli_integer("steps", 1, 100000, 50, &o.steps));
    CLI_TRY(cli_integer("seed", 0, INT32_MAX, 1, &seed));
    CLI_TRY(cli_integer("count", 0, 100000, 12, &most));
    CLI_TRY(cli_number("loss-scale", 1, 0x1p60, 65536, &scale));
    int exponent = (int)lround(log2(scale));
    if (ldexp(1, exponent) != scale)
        return cli_wrong("--loss-scale %.9g: name a power of two", scale);
    o.seed = (uint64_t)seed;
    MZ_SCOPED(mz_underflow_close) mz_underflow u = {0};
    CLI_DO(mz_underflow_look(&o, &u));
    return print_result(&u, exponent, (size_t)most);
}
