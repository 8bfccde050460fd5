// Draws the lessons' figures.
#include <math.h>

#include "study/analyse/figures.h"
#include "study/lab/lab.h"
#include "backend/inspect.h"

// Adds a bar from bit `from` on, with its width in it where that fits.
static void add_field(mz_text *t, int *from, int bits, double y, const char *colour) {
    mz_text_addf(t, "set object rectangle from %d,%.2f to %d,%.2f fc rgb '%s' fs solid border lc rgb 'white' lw 1.5\n",
                 *from, y - 0.35, *from + bits, y + 0.35, colour);
    if (bits > 1)
        mz_text_addf(t, "set label '%d' at %.1f,%.2f center tc rgb 'white' front\n", bits, *from + bits / 2.0, y);
    *from += bits;
}

mezzo_status mz_lab_draw_formats(const char *folder, const char *name) {
    mz_text t = {0};
    const int n = MZ_LAB_FORMATS;
    for (int i = 0; i < n; i++) {
        const mz_lab_format *f = &mz_lab_formats[i];
        mz_lab_format_facts a = mz_lab_format_describe(f);
        double y = n - i;
        int at = 0;
        mz_text_addf(&t, "set label '%s' at -1,%.2f right noenhanced\n", f->name, y);
        add_field(&t, &at, 1, y, "#666666");
        add_field(&t, &at, f->exponent, y, "#d55e00");
        add_field(&t, &at, f->fraction, y, "#0072b2");
        mz_text_addf(&t, "set label '%.3g … %.4g, %.1f digits' at %d,%.2f left noenhanced\n", a.smallest_subnormal,
                     a.largest, a.digits, at + 1, y);
    }
    mz_text_addf(
        &t,
        "set title 'Sign, exponent and fraction bits; smallest and largest value, decimal digits'\n"
        "unset border\nunset tics\nset xrange [-10:106]\nset yrange [-0.2:%.1f]\nset lmargin 1\nset rmargin 1\n"
        "set key at graph 0.5,0.02 center bottom horizontal\n"
        "draw = \"plot NaN with boxes fs solid lc rgb '#666666' title 'sign', NaN with boxes fs solid lc rgb '#d55e00' "
        "title 'exponent', NaN with boxes fs solid lc rgb '#0072b2' title 'fraction'\"\n",
        n + 0.7);
    return mz_figure_make(folder, name, &t, 1000, 460);
}

mezzo_status mz_lab_draw_sums(const char *folder, const char *name, double x, int64_t count, uint64_t seed) {
    enum { POINTS = 200 };
    double path[POINTS], exact = x * (double)count;
    int64_t points = count < POINTS ? count : POINTS;
    int n = 0, same = 0; // same: ends within 0.2 % of the exact sum, which would be one line drawn repeatedly
    mz_text t = {0}, lines = {0};
    for (int i = 0; i < MZ_SUM_WAYS; i++) {
        mz_sum(&mz_sum_ways[i], x, count, seed, path, points);
        if (fabs(path[points - 1] - exact) <= 2e-3 * fabs(exact)) {
            same++;
            continue;
        }
        mz_text_addf(&lines, ", $way%d using 1:2 with lines ls %d dt %d title '%s'", i, n % 6 + 1, n / 6 + 1,
                     mz_sum_ways[i].name);
        n++;
        mz_text_addf(&t, "$way%d << EOD\n0 0\n", i);
        for (int64_t k = 0; k < points; k++)
            mz_text_addf(&t, "%lld %.10g\n", (long long)((k + 1) * count / points), path[k]);
        mz_text_addf(&t, "EOD\n");
    }
    mz_text_addf(&t,
                 "set title 'Adding %.9g again and again' noenhanced\nset xlabel 'additions'\nset ylabel 'sum'\n"
                 "set key outside right center noenhanced\nset grid ytics ls 91\nset xrange [0:%lld]\n"
                 "draw = \"plot %.17g*x with lines ls 90 title 'exact; %d more end within 0.2 %%'%s\"\n",
                 x, (long long)count, x, same, n > 0 && lines.data != NULL ? lines.data : "");
    if (lines.status != MEZZO_OK)
        t.status = lines.status;
    mz_text_free(&lines);
    return mz_figure_make(folder, name, &t, 900, 520);
}

mezzo_status mz_lab_draw_scale(const char *folder, const char *name, const mz_scale_step *rows, int64_t steps) {
    mz_text t = {0};
    double least = 512, most = 65504;
    mz_text_addf(&t, "$path << EOD\n");
    for (int64_t i = 0; i < steps; i++) {
        double scaled = rows[i].scale * rows[i].gradient;
        least = fmin(least, rows[i].scale);
        most = fmax(most, fmax(rows[i].scale, scaled < 0x1p40 ? scaled : 0));
        mz_text_addf(&t, "%lld %.9g ", (long long)i + 1, rows[i].scale);
        mz_text_addf(&t, scaled < 0x1p40 ? "%.9g\n" : "NaN\n", scaled); // NaN is far above the format's range, and
                                                                        // outside the figure
    }
    mz_text_addf(&t, "EOD\n$skipped << EOD\n");
    for (int64_t i = 0; i < steps; i++)
        if (rows[i].skipped)
            mz_text_addf(&t, "%lld %.9g\n", (long long)i + 1, rows[i].scale);
    mz_text_addf(
        &t,
        "EOD\nset title 'The loss scale: halved at every overflow, doubled after enough finite steps'\n"
        "set xlabel 'step'\nset logscale y 2\nset format y '2^{%%L}'\nset xrange [0:%lld]\nset yrange [%.9g:%.9g]\n"
        "set key outside right center\nset grid ytics ls 91\n"
        "draw = \"plot $path using 1:3 with steps lc rgb '#d55e00' lw 6 title 'scaled gradient', 65504 with lines ls "
        "90 title 'largest fp16', $path using 1:2 with steps ls 1 title 'loss scale', $skipped using 1:2 with points "
        "lc rgb 'black' pt 2 ps 1.4 lw 2 title 'step skipped'\"\n",
        (long long)steps + 1, least / 2, most * 4);
    return mz_figure_make(folder, name, &t, 900, 480);
}

static void add_norms(mz_text *t, const char *block, const mz_norm_row *rows, int n) {
    mz_text_addf(t, "$%s << EOD\n", block);
    for (int i = 0; i < n; i++) { // an error of 0 has no point on a logarithmic axis
        double scale = fmax(fabs(rows[i].mean), 1e-30);
        double low = fabs(rows[i].low_mean - rows[i].mean) / scale,
               fp32 = fabs(rows[i].fp32_mean - rows[i].mean) / scale;
        mz_text_addf(t, "%lld ", (long long)rows[i].width);
        mz_text_addf(t, isfinite(low) ? "%.6g" : "NaN", fmax(low, 1e-9)); // an infinite loss has no point
        mz_text_addf(t, " %.6g\n", fmax(fp32, 1e-9));
    }
    mz_text_addf(t, "EOD\n");
}

mezzo_status mz_lab_draw_norms(const char *folder, const char *name, const mz_norm_row *fp16, const mz_norm_row *bf16,
                               int n) {
    mz_text t = {0};
    add_norms(&t, "fp16", fp16, n);
    add_norms(&t, "bf16", bf16, n);
    mz_text_addf(&t,
                 "set title 'Relative error of a row'.\"'\".'s mean (a line ends where it is infinite; below 1e-9 "
                 "drawn there)'\n"
                 "set xlabel 'width of the row'\nset logscale x 2\nset logscale y\nset format y '10^{%%T}'\nset yrange "
                 "[1e-9:10]\n"
                 "set key outside right center\nset grid ytics ls 91\n"
                 "draw = \"plot $fp16 using 1:2 with linespoints ls 1 title 'fp16, summed in fp16', $bf16 using 1:2 "
                 "with linespoints ls 2 title 'bf16, summed in bf16', $fp16 using 1:3 with linespoints ls 3 title "
                 "'fp16, summed in fp32', $bf16 using 1:3 with linespoints ls 4 title 'bf16, summed in fp32'\"\n");
    return mz_figure_make(folder, name, &t, 900, 480);
}

// Adds shares of `counts` by the exponent of the upper edge, plus `shift`.
static void add_shares(mz_text *t, const char *block, const int64_t *counts, int shift) {
    mz_fp16_fate f = mz_fp16_fate_of(counts, 0);
    mz_text_addf(t, "$%s << EOD\n", block);
    for (int b = 1; b <= MZ_HISTOGRAM_BUCKETS - 3; b++)
        if (counts[b] > 0)
            mz_text_addf(t, "%.1f %.6g\n", MZ_HISTOGRAM_EXPONENT(b) + shift - 0.5,
                         100 * (double)counts[b] / (double)f.nonzero);
    mz_text_addf(t, "%d 0\nEOD\n", -200);
}

mezzo_status mz_lab_draw_underflow(const char *folder, const char *name, const mz_underflow *u, int scale) {
    static const char *const titles[] = {"gradients of weights", "activations", "gradients of activations"};
    static const mz_magnitude_kind order[] = {MZ_OF_GRADIENT, MZ_OF_ACTIVATION_GRADIENT, MZ_OF_ACTIVATION};
    int64_t counts[MZ_HISTOGRAM_BUCKETS];
    mz_text t = {0};
    int lowest = -30, highest = 22; // space for the labels in the shaded parts
    for (int k = 0; k < 3; k++) {
        char block[24];
        mz_underflow_sum(u, order[k], counts);
        mz_fp16_fate f = mz_fp16_fate_of(counts, 0);
        lowest = f.lowest < lowest ? f.lowest : lowest;
        highest = f.highest > highest ? f.highest : highest;
        snprintf(block, sizeof block, "kind%d", k);
        add_shares(&t, block, counts, 0);
        if (k < 2) {
            snprintf(block, sizeof block, "scaled%d", k);
            add_shares(&t, block, counts, scale);
            highest = f.highest + scale > highest ? f.highest + scale : highest;
        }
    }
    lowest = lowest < -60 ? -60 : lowest;
    // One command draws all three, as a string for gnuplot's multiplot.
    mz_text_addf(&t,
                 "set xrange [%d:%d]\nset style fill solid 0.85 border lc rgb 'white'\nset boxwidth 1\n"
                 "set grid ytics ls 91\nset yrange [0:*]\nset ylabel 'per cent' offset 1\nset xtics 10\n"
                 "set object 1 rectangle from %d, graph 0 to -25, graph 1 fc rgb '#d55e00' fs transparent solid 0.18 "
                 "noborder behind\n"
                 "set object 2 rectangle from -25, graph 0 to -14, graph 1 fc rgb '#e69f00' fs transparent solid 0.18 "
                 "noborder behind\n"
                 "set object 3 rectangle from 16, graph 0 to %d, graph 1 fc rgb '#d55e00' fs transparent solid 0.18 "
                 "noborder behind\n"
                 "set label 1 'zero' at %d, graph 0.92 front\nset label 2 'subnormal' at -24.5, graph 0.92 front\n"
                 "set label 3 'infinite' at 16.3, graph 0.92 front\nset key top right at graph 0.99, graph 0.82\n",
                 lowest, highest, lowest, highest + 1, lowest + 1);
    mz_text_addf(&t, "draw = \"set multiplot layout 3,1 title 'What FP16 would make of them: log2 of the magnitude'; ");
    for (int k = 0; k < 3; k++) {
        mz_text_addf(&t, "set title '%s' offset 0,-0.6; ", titles[order[k]]);
        mz_text_addf(&t, "plot $kind%d with boxes lc rgb '#0072b2' title 'as they are'", k);
        if (k < 2)
            mz_text_addf(&t, ", $scaled%d with histeps lw 2 lc rgb '#009e73' title 'times 2^{%d}'", k, scale);
        mz_text_addf(&t, "; ");
    }
    mz_text_addf(&t, "unset multiplot\"\n");
    return mz_figure_make(folder, name, &t, 900, 900);
}

mezzo_status mz_lab_draw_speed(const char *folder, const char *name, const mz_speed_row *rows, int n,
                               const mz_speed_result *result) {
    mz_text t = {0};
    mz_text_addf(&t, "$bars << EOD\n");
    for (int i = 0; i < n; i++)
        mz_text_addf(&t, "%d \"%s\" %.6g \"%lld steps of %.1f ms\"\n", i, mezzo_precision_name(rows[i].asked),
                     rows[i].seconds, (long long)rows[i].steps, 1e3 * rows[i].seconds / (double)rows[i].steps);
    mz_text_addf(
        &t,
        "EOD\nset title 'Time until the loss is %.4g (%s)' noenhanced\nset ylabel 'seconds'\nset yrange [0:*]\n"
        "set style fill solid 0.9 border lc rgb 'white'\nset boxwidth 0.6\nset grid ytics ls 91\nunset key\n"
        "set xrange [-0.6:%.1f]\nset offsets 0,0,graph 0.08,0\n"
        "draw = \"plot $bars using 1:3:xtic(2) with boxes lc rgb '#0072b2', $bars using 1:3:4 with labels offset 0,0.8 "
        "noenhanced\"\n",
        result->target, result->device, n - 0.4);
    return mz_figure_make(folder, name, &t, 760, 460);
}
