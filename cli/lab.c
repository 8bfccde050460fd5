// mezzo lab: numerics one can see. One function a lesson: it computes, prints a table or JSON, and says what the numbers mean.
#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "lab.h"
#include "study/lab/lab.h"

// printf's "-nan" is the sign of a bit that nobody asked for.
static const char *number(double x, char buffer[24]) {
    snprintf(buffer, 24, isnan(x) ? "nan" : "%.6g", x);
    return buffer;
}

// --- formats ------------------------------------------------------------------------------------------------------------------
// Exact where 9 digits are, which is enough for every power of two and largest value here to be told apart.
static void print_facts(void) {
    printf("%-9s %4s %4s %4s %15s %15s %15s %12s %7s %21s\n", "format", "bits", "exp", "frac", "largest",
           "smallest normal", "smallest", "epsilon", "digits", "finite values");
    for (int i = 0; i < mz_lab_format_count(); i++) {
        const mz_lab_format *f = mz_lab_format_at(i);
        mz_lab_format_facts a = mz_lab_format_describe(f);
        printf("%-9s %4d %4d %4d %15.9g %15.9g %15.9g %12.6g %7.1f %21llu\n", f->name, a.bits, f->exponent, f->fraction,
               a.largest, a.smallest_normal, a.smallest_subnormal, a.epsilon, a.digits, (unsigned long long)a.finite);
    }
    printf("\nsmallest: the smallest subnormal; half of it, and anything below, rounds to zero. epsilon: from 1 to the "
           "next value. "
           "+0 and -0 count as one value.\n"
           "fp16 has more digits than bf16 and a far smaller range: gradients below %.3g become zero in it, sums above "
           "%.0f "
           "infinity.\nbf16 and tf32 have fp32's range, so they need no loss scaling. mxfp4 and nvfp4 are one element "
           "here; a scale "
           "shared by a block of 32 or 16\nmoves its range (%.2f and %.2f bits a value).\n",
           mz_lab_format_describe(mz_lab_format_find("fp16")).zero,
           mz_lab_format_describe(mz_lab_format_find("fp16")).largest,
           mz_lab_format_describe(mz_lab_format_find("mxfp4")).bits_a_value,
           mz_lab_format_describe(mz_lab_format_find("nvfp4")).bits_a_value);
}

static json_t *facts_json(void) {
    json_t *list = json_array();
    for (int i = 0; i < mz_lab_format_count(); i++) {
        const mz_lab_format *f = mz_lab_format_at(i);
        mz_lab_format_facts a = mz_lab_format_describe(f);
        json_t *o = json_object();
        json_object_set_new(o, "format", json_string(f->name));
        json_object_set_new(o, "title", json_string(f->title));
        json_object_set_new(o, "bits", json_integer(a.bits));
        json_object_set_new(o, "exponent_bits", json_integer(f->exponent));
        json_object_set_new(o, "fraction_bits", json_integer(f->fraction));
        json_object_set_new(o, "bias", json_integer(a.bias));
        json_object_set_new(o, "largest", cli_json_number(a.largest));
        json_object_set_new(o, "smallest_normal", cli_json_number(a.smallest_normal));
        json_object_set_new(o, "smallest_subnormal", cli_json_number(a.smallest_subnormal));
        json_object_set_new(o, "rounds_to_zero", cli_json_number(a.zero));
        json_object_set_new(o, "epsilon", cli_json_number(a.epsilon));
        json_object_set_new(o, "decimal_digits", cli_json_number(a.digits));
        json_object_set_new(o, "finite_values",
                            json_integer((json_int_t)a.finite)); // fp64's 2⁶⁴ - 2⁵³ - 1 does not fit
        if (a.finite > (uint64_t)INT64_MAX)
            json_object_set_new(o, "finite_values", cli_json_number((double)a.finite));
        json_object_set_new(o, "bits_a_value", cli_json_number(a.bits_a_value));
        json_object_set_new(o, "block", f->block > 0 ? json_integer(f->block) : json_null());
        json_object_set_new(o, "scale", f->scale != NULL ? json_string(f->scale) : json_null());
        json_array_append_new(list, o);
    }
    return list;
}

static void binary(uint64_t field, int bits, char *out) {
    for (int i = 0; i < bits; i++)
        out[i] = (field >> (bits - 1 - i)) & 1 ? '1' : '0';
    out[bits] = '\0';
}

static void print_value(double x) {
    printf("%.17g\n\n%-9s %18s  %-66s %24s %12s  %s\n", x, "format", "hex", "sign exponent fraction", "value",
           "rel. error", "what happened");
    for (int i = 0; i < mz_lab_format_count(); i++) {
        const mz_lab_format *f = mz_lab_format_at(i);
        mz_stored s = mz_lab_format_store(f, x);
        char exponent[16], fraction[56], fields[80], hex[24];
        int digits = (f->exponent + f->fraction + 4) / 4;
        binary(s.exponent, f->exponent, exponent);
        binary(s.fraction, f->fraction, fraction);
        snprintf(fields, sizeof fields, "%d %s %s", s.sign, exponent, fraction);
        snprintf(hex, sizeof hex, "0x%0*llX", digits, (unsigned long long)s.code);
        printf("%-9s %18s  %-66s %24.17g %12.3g  %s", f->name, hex, fields, s.value, s.relative, mz_fate_name(s.fate));
        printf(f->block > 0 ? ", block scale %.9g\n" : "\n", s.scale);
    }
    printf("\nThe value is the fp64 number nearest to what was typed. subnormal: kept with fewer digits; underflow: "
           "rounded to zero; "
           "overflow:\nto infinity (E4M3: to NaN, E2M1: to its largest value). mxfp4, nvfp4: as the largest value of "
           "its block.\n");
}

static json_t *value_json(double x) {
    json_t *list = json_array();
    for (int i = 0; i < mz_lab_format_count(); i++) {
        const mz_lab_format *f = mz_lab_format_at(i);
        mz_stored s = mz_lab_format_store(f, x);
        char exponent[16], fraction[56], hex[24];
        json_t *o = json_object();
        binary(s.exponent, f->exponent, exponent);
        binary(s.fraction, f->fraction, fraction);
        snprintf(hex, sizeof hex, "0x%0*llX", (f->exponent + f->fraction + 4) / 4, (unsigned long long)s.code);
        json_object_set_new(o, "format", json_string(f->name));
        json_object_set_new(o, "hex", json_string(hex));
        json_object_set_new(o, "sign", json_integer(s.sign));
        json_object_set_new(o, "exponent", json_string(exponent));
        json_object_set_new(o, "fraction", json_string(fraction));
        json_object_set_new(o, "value", cli_json_number(s.value));
        json_object_set_new(o, "relative_error", cli_json_number(s.relative));
        json_object_set_new(o, "scale", cli_json_number(s.scale));
        json_object_set_new(o, "fate", json_string(mz_fate_name(s.fate)));
        json_array_append_new(list, o);
    }
    return list;
}

static int formats(const cli_args *args) {
    double x = 0;
    bool value = cli_has(args, "value");
    if (value) {
        char *end;
        const char *text = cli_text(args, "value", "");
        x = strtod(text, &end);
        if (end == text || *end != '\0')
            return cli_wrong(args->command, "--value %s: it is not a number", text);
    }
    cli_plot plot;
    int code;
    if (cli_plot_asked(args, &plot, &code))
        code = cli_plotted(args, mz_lab_draw_formats(plot.folder, plot.name), &plot);
    if (code != CLI_DONE)
        return code;
    if (cli_has(args, "json"))
        return cli_json_print(args->command, value ? value_json(x) : facts_json());
    if (value)
        print_value(x);
    else
        print_facts();
    return CLI_DONE;
}

// --- accumulate -----------------------------------------------------------------------------------------------------------------
static int accumulate(const cli_args *args) {
    double x;
    int64_t count, seed;
    int code = cli_number(args, "value", -1e30, 1e30, 0.01, &x);
    if (code == CLI_DONE)
        code = cli_integer(args, "count", 1, INT32_MAX, 1000, &count);
    if (code == CLI_DONE)
        code = cli_integer(args, "seed", 0, INT64_MAX, 0, &seed);
    if (code != CLI_DONE)
        return code;
    cli_plot plot;
    if (cli_plot_asked(args, &plot, &code))
        code = cli_plotted(args, mz_lab_draw_sums(plot.folder, plot.name, x, count, (uint64_t)seed), &plot);
    if (code != CLI_DONE)
        return code;
    bool json = cli_has(args, "json");
    json_t *list = json ? json_array() : NULL;
    if (!json)
        printf("%.9g added %lld times: %.10g\n\n%-16s %18s %14s %18s %12s  %s\n", x, (long long)count,
               x * (double)count, "sum+term", "sum", "rel. error", "the term is", "stalls at", "");
    for (int i = 0; i < mz_sum_way_count(); i++) {
        const mz_sum_way *way = mz_sum_way_at(i);
        mz_sum_result r = mz_sum(way, x, count, (uint64_t)seed, NULL, 0);
        if (json) {
            json_t *o = json_object();
            json_object_set_new(o, "way", json_string(way->name));
            json_object_set_new(o, "sum", cli_json_number(r.sum));
            json_object_set_new(o, "exact", cli_json_number(r.exact));
            json_object_set_new(o, "term", cli_json_number(r.term));
            json_object_set_new(o, "relative_error", cli_json_number(r.relative));
            json_object_set_new(o, "stalled_after", r.stalled > 0 ? json_integer(r.stalled) : json_null());
            json_array_append_new(list, o);
            continue;
        }
        char stalled[24] = "-";
        if (r.stalled > 0)
            snprintf(stalled, sizeof stalled, "%lld", (long long)r.stalled);
        printf("%-16s %18.10f %14.3g %18.12g %12s  %s\n", way->name, r.sum, r.relative, r.term, stalled, way->title);
    }
    if (json)
        return cli_json_print(args->command, list);
    printf("\nA sum stalls where half of its spacing is more than the term: every further addition rounds back. An "
           "fp32 sum of fp16 terms\n"
           "keeps every addition; what is left is the term's own rounding, count times. That is why products of "
           "low-precision numbers\n"
           "are summed in fp32. Kahan and stochastic rounding save a low-precision sum too, at the price of work or of "
           "noise.\n");
    return CLI_DONE;
}

// --- overflow -------------------------------------------------------------------------------------------------------------------
static const double softmax_logits[] = {5, 10, 11, 11.0859375, 11.1, 12, 20, 88, 89, 100};
static const mezzo_dtype softmax_formats[] = {MEZZO_F16, MEZZO_BF16, MEZZO_F32};

static json_t *softmax_json(void) {
    json_t *list = json_array();
    for (size_t f = 0; f < MZ_COUNT(softmax_formats); f++)
        for (size_t i = 0; i < MZ_COUNT(softmax_logits); i++) {
            mz_softmax_row r = mz_softmax_of(softmax_formats[f], softmax_logits[i]);
            json_t *o = json_object();
            json_object_set_new(o, "format", json_string(mezzo_dtype_name(softmax_formats[f])));
            json_object_set_new(o, "logit", cli_json_number(r.x));
            json_object_set_new(o, "naive", cli_json_number(r.naive));
            json_object_set_new(o, "shifted", cli_json_number(r.shifted));
            json_object_set_new(o, "exact", cli_json_number(r.exact));
            json_array_append_new(list, o);
        }
    return list;
}

static void print_softmax(void) {
    printf("softmax of the logits (x, 0): the first probability\n\n%10s", "x");
    for (size_t f = 0; f < MZ_COUNT(softmax_formats); f++)
        printf(" %7s naive %8s shifted", mezzo_dtype_name(softmax_formats[f]), mezzo_dtype_name(softmax_formats[f]));
    printf("\n");
    for (size_t i = 0; i < MZ_COUNT(softmax_logits); i++) {
        char buffer[24];
        printf("%10.7g", softmax_logits[i]);
        for (size_t f = 0; f < MZ_COUNT(softmax_formats); f++) {
            mz_softmax_row r = mz_softmax_of(softmax_formats[f], softmax_logits[i]);
            printf(" %13s", number(r.naive, buffer));
            printf(" %16s", number(r.shifted, buffer));
        }
        printf("\n");
    }
    printf("\ne^x leaves fp16 above x = %.4f (65,504) and fp32 and bf16 above %.4f: infinity over infinity is NaN. "
           "With the largest logit\n"
           "subtracted first, every exponent is at most 0 and nothing overflows; training does that, in fp32.\n\n",
           log(65504.0), log(3.4028234663852886e38));
}

static json_t *path_json(const mz_scale_step *rows, int64_t steps) {
    json_t *list = json_array();
    for (int64_t i = 0; i < steps; i++) {
        json_t *o = json_object();
        json_object_set_new(o, "step", json_integer(i + 1));
        json_object_set_new(o, "gradient", cli_json_number(rows[i].gradient));
        json_object_set_new(o, "scale", cli_json_number(rows[i].scale));
        json_object_set_new(o, "skipped", json_boolean(rows[i].skipped));
        json_array_append_new(list, o);
    }
    return list;
}

// Runs of equal steps on one line.
static void print_path(const mz_scale_step *rows, int64_t steps, int64_t interval) {
    printf("the loss scaler, on a real fp16 program (growth after %lld finite steps)\n\n%-12s %10s %10s %14s  %s\n",
           (long long)interval, "steps", "gradient", "scale", "scaled", "");
    for (int64_t i = 0, from = 0; i < steps; i++) {
        const mz_scale_step *r = &rows[i];
        if (i + 1 < steps && rows[i + 1].scale == r->scale && rows[i + 1].skipped == r->skipped &&
            rows[i + 1].gradient == r->gradient)
            continue;
        char range[32];
        snprintf(range, sizeof range, from == i ? "%lld" : "%lld-%lld", (long long)from + 1, (long long)i + 1);
        printf("%-12s %10.4g %10.7g %14.7g  %s\n", range, r->gradient, r->scale, r->gradient * r->scale,
               r->skipped ? "overflow: step skipped, scale halved" : "");
        from = i + 1;
    }
    printf("\nA scaled gradient above 65,504 is infinite in fp16. The step is skipped, nothing moves, and the scale "
           "halves until the gradient\n"
           "fits; after enough finite steps in a row it doubles again, and finds its ceiling by hitting it.\n");
}

static int overflow(const cli_args *args) {
    enum { STEPS = 100 };
    mz_scale_step rows[STEPS];
    const mezzo_scaler_options defaults = mezzo_scaler_defaults();
    double gradient, initial;
    int64_t spiked, interval;
    int code = cli_number(args, "value", 1e-6, 1e38, 64, &gradient);
    if (code == CLI_DONE)
        code = cli_integer(args, "count", 0, STEPS, 12, &spiked);
    if (code == CLI_DONE)
        code = cli_integer(args, "growth-interval", 1, 1000000, 10, &interval);
    if (code == CLI_DONE)
        code = cli_number(args, "init-scale", 1e-6, 1e38, defaults.init_scale, &initial);
    if (code != CLI_DONE)
        return code;
    mezzo_device *device = NULL;
    mezzo_status status = mezzo_device_open("cpu", 1, &device);
    if (status == MEZZO_OK)
        status = mz_scale_path(device, gradient, spiked, initial, interval, rows, STEPS);
    mezzo_device_close(device);
    if (status != MEZZO_OK)
        return cli_error(args->command, status);
    cli_plot plot;
    if (cli_plot_asked(args, &plot, &code))
        code = cli_plotted(args, mz_lab_draw_scale(plot.folder, plot.name, rows, STEPS), &plot);
    if (code != CLI_DONE)
        return code;
    if (cli_has(args, "json"))
        return cli_json_print(args->command,
                              json_pack("{s:o, s:o, s:{s:f, s:I}}", "softmax", softmax_json(), "scale",
                                        path_json(rows, STEPS), "defaults", "init_scale", defaults.init_scale,
                                        "growth_interval", (json_int_t)defaults.growth_interval));
    if (!cli_has(args, "scale-only"))
        print_softmax();
    print_path(rows, STEPS, interval);
    return CLI_DONE;
}

// --- clipping -------------------------------------------------------------------------------------------------------------------
static int clipping(const cli_args *args) {
    static const char *const names[] = {"unscale, clip, step", "clip, unscale, step"};
    double gradient, max_norm, scale;
    int code = cli_number(args, "value", 1e-6, 1e6, 0.25, &gradient);
    if (code == CLI_DONE)
        code = cli_number(args, "max-norm", 1e-6, 1e6, 1, &max_norm);
    if (code == CLI_DONE)
        code = cli_number(args, "init-scale", 1, 65536, 65536, &scale);
    if (code != CLI_DONE)
        return code;
    mezzo_device *device = NULL;
    mz_clip_order orders[2];
    mezzo_status status = mezzo_device_open("cpu", 1, &device);
    for (int i = 0; i < 2 && status == MEZZO_OK; i++)
        status = mz_clip_in_order(device, gradient, max_norm, scale, i == 0, &orders[i]);
    mezzo_device_close(device);
    if (status != MEZZO_OK)
        return cli_error(args->command, status);
    json_t *rows = cli_has(args, "json") ? json_array() : NULL;
    if (rows == NULL)
        printf(
            "a gradient of %g, a loss scale of %g, clipped to a norm of %g, SGD with rate 1\n\n%-22s %14s %14s %14s\n",
            gradient, scale, max_norm, "order", "norm seen", "clip factor", "update");
    for (int i = 0; i < 2; i++) {
        const mz_clip_order *o = &orders[i];
        if (rows != NULL)
            json_array_append_new(rows,
                                  json_pack("{s:s, s:o, s:o, s:o}", "order", names[i], "norm", cli_json_number(o->norm),
                                            "clip", cli_json_number(o->clip), "update", cli_json_number(o->update)));
        else
            printf("%-22s %14g %14g %14g\n", names[i], o->norm, o->clip, o->update);
    }
    if (rows != NULL)
        return cli_json_print(args->command, json_pack("{s:o}", "rows", rows));
    printf("\nScaled gradients are longer by the loss scale: clipped first, they are cut to the limit and then divided "
           "by the "
           "scale. The step is\nas good as lost, in every step, and nothing says so but the clip factor.\n");
    return CLI_DONE;
}

// --- layernorm ------------------------------------------------------------------------------------------------------------------
static const mezzo_dtype norm_formats[] = {MEZZO_F16, MEZZO_BF16};

static void print_norm(const char *format, const mz_norm_row *r) {
    const double columns[] = {r->mean,         r->low_mean,     r->fp32_mean,     r->variance,
                              r->low_variance, r->low_one_pass, r->fp32_variance, r->fp32_one_pass};
    char buffer[24];
    printf("%-6s %6lld", format, (long long)r->width);
    for (size_t i = 0; i < MZ_COUNT(columns); i++)
        printf(" %12s", number(columns[i], buffer));
    printf("\n");
}

static json_t *norm_json(const char *format, const mz_norm_row *r) {
    return json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "format", format, "width",
                     (json_int_t)r->width, "mean", cli_json_number(r->mean), "format_mean",
                     cli_json_number(r->low_mean), "fp32_mean", cli_json_number(r->fp32_mean), "variance",
                     cli_json_number(r->variance), "format_variance", cli_json_number(r->low_variance),
                     "format_one_pass", cli_json_number(r->low_one_pass), "fp32_variance",
                     cli_json_number(r->fp32_variance), "fp32_one_pass", cli_json_number(r->fp32_one_pass));
}

static int layernorm(const cli_args *args) {
    enum { WIDTHS = 4 }; // 256, 1024, 4096, 16384
    mz_norm_row rows[MZ_COUNT(norm_formats)][WIDTHS];
    double center;
    int64_t seed;
    cli_plot plot;
    int code = cli_number(args, "value", -1e4, 1e4, 50, &center);
    if (code == CLI_DONE)
        code = cli_integer(args, "seed", 0, INT64_MAX, 0, &seed);
    if (code != CLI_DONE)
        return code;
    for (size_t f = 0; f < MZ_COUNT(norm_formats); f++)
        for (int w = 0; w < WIDTHS; w++)
            rows[f][w] = mz_norm_statistics(norm_formats[f], INT64_C(256) << 2 * w, center, (uint64_t)seed);
    if (cli_plot_asked(args, &plot, &code))
        code = cli_plotted(args, mz_lab_draw_norms(plot.folder, plot.name, rows[0], rows[1], WIDTHS), &plot);
    if (code != CLI_DONE)
        return code;
    json_t *list = cli_has(args, "json") ? json_array() : NULL;
    if (list == NULL)
        printf("rows of normal numbers around %g, deviation 1: the mean, and the variance by two passes and as E[x²] - "
               "E[x]²\n\n"
               "%-6s %6s %12s %12s %12s %12s %12s %12s %12s %12s\n",
               center, "stored", "width", "mean", "in format", "in fp32", "variance", "in format", "1 pass", "in fp32",
               "1 pass");
    for (size_t f = 0; f < MZ_COUNT(norm_formats); f++)
        for (int w = 0; w < WIDTHS; w++)
            if (list == NULL)
                print_norm(mezzo_dtype_name(norm_formats[f]), &rows[f][w]);
            else
                json_array_append_new(list, norm_json(mezzo_dtype_name(norm_formats[f]), &rows[f][w]));
    if (list != NULL)
        return cli_json_print(args->command, list);
    printf("\nIn the row's own format a sum overflows (fp16, above 65,504) or stalls (bf16, once its spacing is more "
           "than twice a value). "
           "E[x²] - E[x]²\nsubtracts two large, nearly equal numbers: far from zero it fails even in fp32. Two passes "
           "in fp32 are right in "
           "every case and cost\nnothing, since the row is read from memory once: so norms compute in fp32 in every "
           "precision.\n");
    return CLI_DONE;
}

// --- the command ----------------------------------------------------------------------------------------------------------------
static const struct {
    const char *name;
    int (*run)(const cli_args *args);
    const char *options[8]; // that it takes, beside json
} lessons[] = {
    {"formats", formats, {"value"}},
    {"accumulate", accumulate, {"value", "count", "seed"}},
    {"underflow", cli_lab_underflow, {"data", "device", "steps", "seed", "count", "loss-scale"}},
    {"overflow", overflow, {"value", "count", "growth-interval", "init-scale", "scale-only"}},
    {"clipping", clipping, {"value", "max-norm", "init-scale"}},
    {"layernorm", layernorm, {"value", "seed"}},
    {"speed", cli_lab_speed, {"data", "device", "steps", "precision", "target", "layers", "d-model", "batch-size"}},
};

static int run(const cli_args *args) {
    const char *names[MZ_COUNT(lessons)], *word = args->n_operands > 0 ? args->operands[0] : "";
    for (size_t i = 0; i < MZ_COUNT(lessons); i++) {
        names[i] = lessons[i].name;
        if (strcmp(names[i], word) != 0)
            continue;
        for (int k = 0; k < args->n_given; k++) {
            bool known = strcmp(args->given[k].name, "json") == 0 || strcmp(args->given[k].name, "plot") == 0;
            for (size_t o = 0; o < MZ_COUNT(lessons[i].options) && lessons[i].options[o] != NULL; o++)
                known = known || strcmp(args->given[k].name, lessons[i].options[o]) == 0;
            if (!known)
                return cli_wrong(args->command, "--%s: lab %s does not take it", args->given[k].typed, word);
        }
        if (args->n_operands > 1 && strcmp(word, "underflow") != 0)
            return cli_wrong(args->command, "lab %s takes no %s", word, args->operands[1]);
        return lessons[i].run(args);
    }
    const char *nearest = mz_nearest(word, names, MZ_COUNT(names));
    if (nearest != NULL)
        return cli_wrong(args->command, "there is no lesson \"%s\"; did you mean \"%s\"?", word, nearest);
    return cli_wrong(args->command,
                     "name a lesson: formats, accumulate, underflow, overflow, clipping, layernorm or speed");
}

static const cli_option options_table[] = {
    {"value", "X",
     "formats: show X in every format; accumulate: the term [0.01]; overflow: the gradient that is too large [64]; "
     "clipping: the gradient [0.25]; layernorm: the row's mean [50]"},
    {"count", "N",
     "accumulate: how often it is added [1000]; overflow: steps with that gradient [12]; underflow: tensors that are "
     "listed [12]"},
    {"init-scale", "X", "overflow: the first loss scale; clipping: the scale [65536]"},
    {"scale-only", NULL, "overflow: only the loss scale's way"},
    {"max-norm", "X", "clipping: the limit [1]"},
    {"steps", "N", "underflow: steps of training, the last of which is looked at [50]; speed: of each precision [100]"},
    {"data", "PATH", "underflow, speed: text or shards, instead of the run's or of made-up text"},
    {"device", "NAME", "where it trains; underflow: [cpu], speed: [auto]"},
    {"precision", "LIST", "speed: which ones race [fp32,bf16,fp16]"},
    {"target", "LOSS", "speed: what the loss must come down to [what all reach]"},
    {"layers", "N", "speed: of the model [4]"},
    {"d-model", "N", "speed: its width [256]"},
    {"batch-size", "N", "speed: sequences of 128 tokens in a step [8]"},
    {"loss-scale", "X", "underflow: a power of two [65536]"},
    {"growth-interval", "N", "overflow: finite steps before the scale doubles [10]"},
    {"seed", "N", "accumulate: of stochastic rounding; layernorm: of the rows [0]; underflow: of the model [1]"},
    {"json", NULL, "the result as JSON"},
    {"plot", "FILE", "a figure, FILE.svg or FILE.png (both are drawn, and the gnuplot script kept beside them)"},
    {0},
};

const cli_command cli_lab = {
    .name = "lab",
    .summary = "numerics one can see: formats, sums, overflow, norms",
    .usage = "formats|accumulate|underflow [RUN]|overflow|clipping|layernorm|speed [--option value …]",
    .details = "formats: what each number format can hold, or with --value what becomes of a number in it.\n"
               "accumulate: what a long sum loses in each format and way of adding.\n"
               "underflow: what FP16 would lose of a model's gradients, of a run folder's or of a small GPT's.\n"
               "overflow: where a softmax leaves its format, and the loss scale's way down and up again.\n"
               "clipping: what clipping before unscaling does.\n"
               "layernorm: mean and variance of wide rows, in the row's format and in fp32.\n"
               "speed: the same small model trained in each precision on this machine: time to the same loss.\n"
               "Every number is computed by the conversions that training uses.",
    .options = options_table,
    .max_operands = 2,
    .run = run,
};
