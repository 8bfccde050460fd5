#include "study/measure/memory_figure.h"

#include "study/analyse/figures.h"

mezzo_status mz_memory_draw(const char *folder, const char *name, const char *title, const mz_memory_bar *bars, int n,
                            size_t limit) {
    static const char *const parts[] = {"weights",   "low-precision copies", "gradients",
                                        "optimizer", "activations",          "workspace"};
    static const char *const colours[] = {"#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#999999"};
    mz_text t = {0};
    double most = (double)limit;
    for (int i = 0; i < n; i++) {
        double total = (double)mz_footprint_total(&bars[i].footprint);
        most = total > most ? total : most;
    }
    bool gib = most >= 2.0 * (1 << 30);
    double unit = gib ? 1.0 / (1 << 30) : 1.0 / (1 << 20);
    mz_text_addf(&t, "$bars << EOD\n");
    for (int i = 0; i < n; i++) {
        const mz_footprint *f = &bars[i].footprint;
        mz_text_addf(&t, "\"%s\" %.6g %.6g %.6g %.6g %.6g %.6g\n", bars[i].name, (double)f->weights * unit,
                     (double)f->shadows * unit, (double)f->gradients * unit, (double)f->optimizer * unit,
                     (double)f->activations * unit, (double)(f->workspace + f->inputs + f->padding) * unit);
    }
    mz_text_addf(&t,
                 "EOD\nset title '%s' noenhanced\nset ylabel '%s'\nset style data histograms\n"
                 "set style histogram rowstacked\nset style fill solid 0.95 border lc rgb 'white'\nset boxwidth 0.72\n"
                 "set grid ytics ls 91\nset key outside right center noenhanced invert\nset yrange [0:%.6g]\n"
                 "set xtics rotate by -35 noenhanced\n",
                 title, gib ? "GiB" : "MiB", most * unit * 1.08);
    if (limit > 0)
        mz_text_addf(&t,
                     "set arrow from graph 0, first %.6g to graph 1, first %.6g nohead ls 90 front\n"
                     "set label '%.4g %s' at graph 0.01, first %.6g offset 0,0.6 front\n",
                     (double)limit * unit, (double)limit * unit, (double)limit * unit, gib ? "GiB" : "MiB",
                     (double)limit * unit);
    mz_text_addf(&t, "draw = \"plot ");
    for (size_t i = 0; i < MZ_COUNT(parts); i++)
        mz_text_addf(&t, "%s$bars using %zu%s lc rgb '%s' title '%s'", i > 0 ? ", " : "", i + 2,
                     i == 0 ? ":xtic(1)" : "", colours[i], parts[i]);
    mz_text_addf(&t, "\"\n");
    return mz_figure_make(folder, name, &t, 960, 540);
}
