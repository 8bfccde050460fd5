// mezzo lab demonstrates floating-point arithmetic. Each lesson is a function that computes, prints a table or JSON,
// and explains the numbers.
#include <math.h>
#include <stdlib.h>

#include "base/names.h"
#include "cli.h"
#include "study/lab/lab.h"

// Formats a number. printf's "-nan" would show the meaningless sign bit of a NaN.
static const char *number(double x, char buffer[24]) {
    snprintf(buffer, 24, isnan(x) ? "nan" : "%.6g", x);
    return buffer;
}

// --- formats -------------------------------------------------------------------------------------------------------
typedef struct stored {
    const char *format, *fate;
    char exponent[16], fraction[56], bits[80], hex[24];
    int block;
    mz_stored is;
} stored;

static const char *fate_text(const void *row, char *buf, size_t size) {
    const stored *r = row;
    if (r->block > 0 && r->is.scale > 0)
        snprintf(buf, size, "%s, scale %.3g", r->fate, r->is.scale);
    else
        snprintf(buf, size, "%s", r->fate);
    return buf;
}

static const mz_row_field facts[] = {
    {MZ_FIELD(mz_lab_format_facts, format.name), "format", "format"},
    {MZ_FIELD(mz_lab_format_facts, format.title), "title"},
    {MZ_FIELD(mz_lab_format_facts, bits), "bits", "bits", "%.0f"},
    {MZ_FIELD(mz_lab_format_facts, format.exponent), "exponent_bits", "exp", "%.0f"},
    {MZ_FIELD(mz_lab_format_facts, format.fraction), "fraction_bits", "frac", "%.0f"},
    {MZ_FIELD(mz_lab_format_facts, bias), "bias"},
    {MZ_FIELD(mz_lab_format_facts, largest), "largest", "largest", "%.6g"},
    {MZ_FIELD(mz_lab_format_facts, smallest_normal), "smallest_normal", "min normal", "%.6g"},
    {MZ_FIELD(mz_lab_format_facts, smallest_subnormal), "smallest_subnormal", "smallest", "%.6g"},
    {MZ_FIELD(mz_lab_format_facts, zero), "rounds_to_zero"},
    {MZ_FIELD(mz_lab_format_facts, epsilon), "epsilon", "epsilon", "%.6g"},
    {MZ_FIELD(mz_lab_format_facts, digits), "decimal_digits", "digits", "%.1f"},
    {MZ_FIELD(mz_lab_format_facts, finite), "finite_values"},
    {MZ_FIELD(mz_lab_format_facts, bits_a_value), "bits_a_value"},
    {MZ_FIELD(mz_lab_format_facts, format.block), "block", .flags = MZ_NULL},
    {MZ_FIELD(mz_lab_format_facts, format.scale), "scale"},
};

static const mz_row_field stored_fields[] = {
    {MZ_FIELD(stored, format), "format", "format"},
    {MZ_FIELD(stored, hex), "hex"},
    {MZ_FIELD(stored, is.sign), "sign"},
    {MZ_FIELD(stored, exponent), "exponent"},
    {MZ_FIELD(stored, fraction), "fraction"},
    {MZ_FIELD(stored, bits), NULL, "sign exponent fraction", "%.34s"},
    {MZ_FIELD(stored, is.value), "value", "value", "%.9g"},
    {MZ_FIELD(stored, is.relative), "relative_error", "rel. error", "%.3g"},
    {MZ_FIELD(stored, is.scale), "scale"},
    {MZ_FIELD(stored, fate), "fate", "result", .text = fate_text},
};

static void explain_facts(void) {
    CLI_TELL(
        "\nmin normal: the smallest normal number; smallest: the smallest subnormal; half of it, and anything below, "
        "rounds to zero. epsilon: from 1 to the next value. +0 and -0 count as one value.\nfp16 has more digits than "
        "bf16 and a far smaller range: gradients below %.3g become zero, sums above %.0f infinity.\nbf16 and tf32 have "
        "fp32's range, so they need no loss scaling. mxfp8, mxfp4 and nvfp4: one element without its scale; the scale, "
        "shared by a block\nof 32 or 16, shifts the range (%.2f, %.2f and %.2f bits per value with the scale).",
        mz_lab_format_describe(mz_lab_format_find("fp16")).zero,
        mz_lab_format_describe(mz_lab_format_find("fp16")).largest,
        mz_lab_format_describe(mz_lab_format_find("mxfp8")).bits_a_value,
        mz_lab_format_describe(mz_lab_format_find("mxfp4")).bits_a_value,
        mz_lab_format_describe(mz_lab_format_find("nvfp4")).bits_a_value);
}

static void binary(uint64_t field, int bits, char *out) {
    for (int i = 0; i < bits; i++)
        out[i] = (field >> (bits - 1 - i)) & 1 ? '1' : '0';
    out[bits] = '\0';
}

static void store_everywhere(double x, stored *out) {
    for (int i = 0; i < MZ_LAB_FORMATS; i++) {
        const mz_lab_format *f = &mz_lab_formats[i];
        const mz_stored is = mz_lab_format_store(f, x);
        stored *o = &out[i];
        *o = (stored){.format = f->name, .fate = mz_fate_name(is.fate), .block = f->block, .is = is};
        binary(is.exponent, f->exponent, o->exponent);
        binary(is.fraction, f->fraction, o->fraction);
        snprintf(o->bits, sizeof o->bits, "%d %s %s", is.sign, o->exponent, o->fraction);
        snprintf(o->hex, sizeof o->hex, "0x%0*llX", (f->exponent + f->fraction + 4) / 4, (unsigned long long)is.code);
    }
}

static void explain_value(void) {
    CLI_TELL("\nThe value is the fp64 number nearest to the input; of its fraction, 22 bits are shown. subnormal: "
             "stored with fewer digits; underflow: rounded to zero; overflow: to\ninfinity (E4M3: to NaN). mxfp8, "
             "mxfp4, nvfp4: as the largest value of its block; a value too large for the scale saturates.");
}

static int formats(void) {
    double x = 0;
    bool value = cli_has("value");
    if (value) {
        char *end;
        const char *text = cli_text("value", "");
        x = strtod(text, &end);
        if (end == text || *end != '\0')
            return cli_wrong("--value %s: it is not a number", text);
    }
    CLI_PLOT(mz_lab_draw_formats);
    mz_lab_format_facts all[MZ_LAB_FORMATS];
    stored values[MZ_LAB_FORMATS];
    const size_t n = MZ_LAB_FORMATS;
    store_everywhere(x, values);
    for (size_t i = 0; i < n; i++)
        all[i] = mz_lab_format_describe(&mz_lab_formats[i]);
    if (cli_has("json"))
        return cli_json_print(value ? MZ_LIST(stored_fields, values, n) : MZ_LIST(facts, all, n));
    if (value) {
        printf("%.17g\n\n", x);
        CLI_TABLE(stored_fields, values, n);
        explain_value();
    } else {
        CLI_TABLE(facts, all, n);
        explain_facts();
    }
    return CLI_DONE;
}

// --- accumulate ----------------------------------------------------------------------------------------------------
static const mz_row_field total_fields[] = {
    {MZ_FIELD(mz_sum_result, way), "way", "sum+term"},
    {MZ_FIELD(mz_sum_result, sum), "sum", "sum", "%.10f"},
    {MZ_FIELD(mz_sum_result, exact), "exact"},
    {MZ_FIELD(mz_sum_result, relative), "relative_error", "rel. error", "%.3g"},
    {MZ_FIELD(mz_sum_result, term), "term", "the term is", "%.12g"},
    {MZ_FIELD(mz_sum_result, stalled), "stalled_after", "stalls at", "%.0f", .flags = MZ_NULL | MZ_DASH},
    {MZ_FIELD(mz_sum_result, title), NULL, ""},
};

static int accumulate(void) {
    double x;
    int64_t count, seed;
    CLI_TRY(cli_number("value", -1e30, 1e30, 0.01, &x));
    CLI_TRY(cli_integer("count", 1, INT32_MAX, 1000, &count));
    CLI_TRY(cli_integer("seed", 0, INT64_MAX, 0, &seed));
    CLI_PLOT(mz_lab_draw_sums, x, count, (uint64_t)seed);
    mz_sum_result rows[MZ_SUM_WAYS];
    const size_t n = MZ_SUM_WAYS;
    for (size_t i = 0; i < n; i++)
        rows[i] = mz_sum(&mz_sum_ways[i], x, count, (uint64_t)seed, NULL, 0);
    if (cli_has("json"))
        return cli_json_print(MZ_LIST(total_fields, rows, n));
    printf("%.9g added %lld times: %.10g\n\n", x, (long long)count, x * (double)count);
    CLI_TABLE(total_fields, rows, n);
    CLI_TELL("\nA sum stalls when half of its spacing exceeds the term: every further addition rounds back. An fp32 "
             "sum of fp16 terms keeps\nevery addition; the remaining error is the rounding of the term, count times. "
             "That is why products of low-precision numbers\nare summed in fp32. Kahan summation and stochastic "
             "rounding also rescue a low-precision sum, at the cost of work or noise.");
    return CLI_DONE;
}

// --- overflow ------------------------------------------------------------------------------------------------------
static const double softmax_logits[] = {5, 10, 11, 11.0859375, 11.1, 12, 20, 88, 89, 100};
static const mezzo_dtype softmax_formats[] = {MEZZO_F16, MEZZO_BF16, MEZZO_F32};

static const mz_row_field softmax_fields[] = {
    {MZ_FIELD(mz_softmax_row, format), "format"}, {MZ_FIELD(mz_softmax_row, x), "logit"},
    {MZ_FIELD(mz_softmax_row, naive), "naive"},   {MZ_FIELD(mz_softmax_row, shifted), "shifted"},
    {MZ_FIELD(mz_softmax_row, exact), "exact"},
};

static json_t *softmax_json(void) {
    mz_softmax_row rows[MZ_COUNT(softmax_formats) * MZ_COUNT(softmax_logits)];
    for (size_t i = 0; i < MZ_COUNT(rows); i++)
        rows[i] =
            mz_softmax_of(softmax_formats[i / MZ_COUNT(softmax_logits)], softmax_logits[i % MZ_COUNT(softmax_logits)]);
    return MZ_LIST(softmax_fields, rows, MZ_COUNT(rows));
}

static void print_softmax(void) {
    printf("softmax of the logits (x, 0): the first probability\n\n%10s", "x");
    for (size_t f = 0; f < MZ_COUNT(softmax_formats); f++)
        printf(" %4s naive %9s", mezzo_dtype_name(softmax_formats[f]), "shifted");
    printf("\n");
    for (size_t i = 0; i < MZ_COUNT(softmax_logits); i++) {
        char buffer[24];
        printf("%10.7g", softmax_logits[i]);
        for (size_t f = 0; f < MZ_COUNT(softmax_formats); f++) {
            mz_softmax_row r = mz_softmax_of(softmax_formats[f], softmax_logits[i]);
            printf(" %10s", number(r.naive, buffer));
            printf(" %9s", number(r.shifted, buffer));
        }
        printf("\n");
    }
    CLI_TELL("\ne^x overflows fp16 above x = %.4f (65,504), and fp32 and bf16 above %.4f: infinity divided by infinity "
             "is NaN. With the largest\nlogit subtracted first, every exponent is at most 0 and nothing overflows; "
             "training does that, in fp32.",
             log(65504.0), log(3.4028234663852886e38));
    printf("\n");
}

static const mz_row_field path_fields[] = {
    {MZ_FIELD(mz_scale_step, gradient), "gradient"},
    {MZ_FIELD(mz_scale_step, scale), "scale"},
    {MZ_FIELD(mz_scale_step, skipped), "skipped"},
};

static json_t *path_json(const mz_scale_step *rows, size_t steps) {
    json_t *list = MZ_LIST(path_fields, rows, steps);
    for (size_t i = 0; i < steps; i++)
        json_object_set_new(json_array_get(list, i), "step", json_integer((json_int_t)i + 1));
    return list;
}

// Prints runs of equal steps on one line.
static void print_path(const mz_scale_step *rows, int64_t steps, int64_t interval) {
    printf("the loss scaler, on a real fp16 program (growth after %lld finite steps)\n\n%-9s %10s %10s %14s  %s\n",
           (long long)interval, "steps", "gradient", "scale", "scaled", "");
    for (int64_t i = 0, from = 0; i < steps; i++) {
        const mz_scale_step *r = &rows[i];
        if (i + 1 < steps && rows[i + 1].scale == r->scale && rows[i + 1].skipped == r->skipped &&
            rows[i + 1].gradient == r->gradient)
            continue;
        char range[32];
        snprintf(range, sizeof range, from == i ? "%lld" : "%lld-%lld", (long long)from + 1, (long long)i + 1);
        printf("%-9s %10.4g %10.7g %14.7g  %s\n", range, r->gradient, r->scale, r->gradient * r->scale,
               r->skipped ? "step skipped, scale halved" : "");
        from = i + 1;
    }
    CLI_TELL("\nA scaled gradient above 65,504 is infinite in fp16. The step is skipped, no weight changes, and the "
             "scale halves until the\ngradient fits; after enough finite steps in a row it doubles again, and finds "
             "its ceiling by hitting it.");
}

static int overflow(void) {
    enum { STEPS = 100 };
    mz_scale_step rows[STEPS];
    const mezzo_scaler_options defaults = mezzo_scaler_defaults();
    double gradient, initial;
    int64_t spiked, interval;
    CLI_TRY(cli_number("value", 1e-6, 1e38, 64, &gradient));
    CLI_TRY(cli_integer("count", 0, STEPS, 12, &spiked));
    CLI_TRY(cli_integer("growth-interval", 1, 1000000, 10, &interval));
    CLI_TRY(cli_number("init-scale", 1e-6, 1e38, defaults.init_scale, &initial));
    MZ_SCOPED(cli_close_device) mezzo_device *device = NULL;
    CLI_DO(mezzo_device_open("cpu", 1, &device));
    CLI_DO(mz_scale_path(device, gradient, spiked, initial, interval, rows, STEPS));
    CLI_PLOT(mz_lab_draw_scale, rows, STEPS);
    if (cli_has("json"))
        return cli_json_print(json_pack("{s:o, s:o, s:{s:f, s:I}}", "softmax", softmax_json(), "scale",
                                        path_json(rows, STEPS), "defaults", "init_scale", defaults.init_scale,
                                        "growth_interval", (json_int_t)defaults.growth_interval));
    if (!cli_has("scale-only"))
        print_softmax();
    print_path(rows, STEPS, interval);
    return CLI_DONE;
}

// --- clipping ------------------------------------------------------------------------------------------------------
static const mz_row_field clip_fields[] = {
    {MZ_FIELD(mz_clip_order, order), "order", "order"},
    {MZ_FIELD(mz_clip_order, norm), "norm", "norm seen", "%g"},
    {MZ_FIELD(mz_clip_order, clip), "clip", "clip factor", "%g"},
    {MZ_FIELD(mz_clip_order, update), "update", "update", "%g"},
};

static int clipping(void) {
    double gradient, max_norm, scale;
    CLI_TRY(cli_number("value", 1e-6, 1e6, 0.25, &gradient));
    CLI_TRY(cli_number("max-norm", 1e-6, 1e6, 1, &max_norm));
    CLI_TRY(cli_number("init-scale", 1, 65536, 65536, &scale));
    MZ_SCOPED(cli_close_device) mezzo_device *device = NULL;
    mz_clip_order orders[2];
    CLI_DO(mezzo_device_open("cpu", 1, &device));
    for (int i = 0; i < 2; i++)
        CLI_DO(mz_clip_in_order(device, gradient, max_norm, scale, i == 0, &orders[i]));
    if (cli_has("json"))
        return cli_json_print(json_pack("{s:o}", "rows", MZ_LIST(clip_fields, orders, 2)));
    CLI_TELL("a gradient of %g, a loss scale of %g, clipped to a norm of %g, SGD with rate 1", gradient, scale,
             max_norm);
    printf("\n");
    CLI_TABLE(clip_fields, orders, 2);
    CLI_TELL("\nThe loss scale makes gradients longer: if clipped first, they are cut to the limit and then divided by "
             "the scale. Every step is\nnearly lost, and only the clip factor shows it.");
    return CLI_DONE;
}

// --- layernorm -----------------------------------------------------------------------------------------------------
static const mezzo_dtype norm_formats[] = {MEZZO_F16, MEZZO_BF16};

static const mz_row_field norm_fields[] = {
    {MZ_FIELD(mz_norm_row, format), "format", "stored"},
    {MZ_FIELD(mz_norm_row, width), "width", "width", "%.0f"},
    {MZ_FIELD(mz_norm_row, mean), "mean", "mean", "%.6g"},
    {MZ_FIELD(mz_norm_row, low_mean), "format_mean", "in format", "%.6g"},
    {MZ_FIELD(mz_norm_row, fp32_mean), "fp32_mean", "in fp32", "%.6g"},
    {MZ_FIELD(mz_norm_row, variance), "variance", "variance", "%.6g"},
    {MZ_FIELD(mz_norm_row, low_variance), "format_variance", "in format", "%.6g"},
    {MZ_FIELD(mz_norm_row, low_one_pass), "format_one_pass", "1 pass", "%.6g"},
    {MZ_FIELD(mz_norm_row, fp32_variance), "fp32_variance", "in fp32", "%.6g"},
    {MZ_FIELD(mz_norm_row, fp32_one_pass), "fp32_one_pass", "1 pass", "%.6g"},
};

static int layernorm(void) {
    enum { WIDTHS = 4 }; // 256, 1024, 4096 and 16384
    mz_norm_row rows[MZ_COUNT(norm_formats) * WIDTHS];
    double center;
    int64_t seed;
    CLI_TRY(cli_number("value", -1e4, 1e4, 50, &center));
    CLI_TRY(cli_integer("seed", 0, INT64_MAX, 0, &seed));
    for (size_t f = 0; f < MZ_COUNT(norm_formats); f++)
        for (int w = 0; w < WIDTHS; w++)
            rows[f * WIDTHS + (size_t)w] =
                mz_norm_statistics(norm_formats[f], INT64_C(256) << 2 * w, center, (uint64_t)seed);
    CLI_PLOT(mz_lab_draw_norms, rows, rows + WIDTHS, WIDTHS);
    if (cli_has("json"))
        return cli_json_print(MZ_LIST(norm_fields, rows, MZ_COUNT(rows)));
    CLI_TELL("rows of normal numbers around %g, standard deviation 1: the mean, and the variance by two passes and as "
             "E[x²] - E[x]²",
             center);
    printf("\n");
    CLI_TABLE(norm_fields, rows, MZ_COUNT(rows));
    CLI_TELL("\nIn the row's own format a sum overflows (fp16, above 65,504) or stalls (bf16, once its spacing is more "
             "than twice a value). E[x²] - E[x]²\nsubtracts two large, nearly equal numbers: far from zero it fails "
             "even in fp32. Two passes in fp32 are accurate in every case and cost\nnothing, because the row is read "
             "from memory once. Therefore norms compute in fp32 in every precision.");
    return CLI_DONE;
}

// --- the command ---------------------------------------------------------------------------------------------------
static const struct {
    const char *name;
    int (*run)(void);
    const char *options;
} lessons[] = {
    {"formats", formats, "json plot value"},
    {"accumulate", accumulate, "json plot value count seed"},
    {"underflow", cli_lab_underflow, "json plot data device steps seed count loss-scale precision"},
    {"overflow", overflow, "json plot value count growth-interval init-scale scale-only"},
    {"clipping", clipping, "json plot value max-norm init-scale"},
    {"layernorm", layernorm, "json plot value seed"},
    {"speed", cli_lab_speed, "json plot data device steps precision target layers d-model batch-size"},
};

int cli_lab(void) {
    const char *names[MZ_COUNT(lessons)], *word = cli_line.n_operands > 0 ? cli_line.operands[0] : "";
    const size_t of = MZ_INDEX(lessons, MZ_COUNT(lessons), name, word);
    if (of < MZ_COUNT(lessons)) {
        for (int k = 0; k < cli_line.n_given; k++)
            if (!mz_is_listed(lessons[of].options, cli_line.given[k].name))
                return cli_wrong("--%s is not an option of lab %s", cli_line.given[k].typed, word);
        if (cli_line.n_operands > 1 && strcmp(word, "underflow") != 0)
            return cli_wrong("lab %s takes no %s", word, cli_line.operands[1]);
        return lessons[of].run();
    }
    for (size_t i = 0; i < MZ_COUNT(lessons); i++)
        names[i] = lessons[i].name;
    const char *nearest = mz_nearest(word, names, MZ_COUNT(names));
    if (nearest != NULL)
        return cli_wrong("there is no demonstration \"%s\"; did you mean \"%s\"?", word, nearest);
    return cli_wrong("name a demonstration: formats, accumulate, underflow, overflow, clipping, layernorm or speed");
}
