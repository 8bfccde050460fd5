#define _GNU_SOURCE
#include "study/analyse/figures.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/file.h"
#include "io/quote.h"

extern char **environ;

enum { FIGURE_NAME = 128 };

// gnuplot runs what stands in back quotes or after "!" elsewhere, but a text in single quotes is only a text: its one
// escape is a quote written twice. A control byte would end the line. `out` has room for twice the name.
static mezzo_status quote_name(const char *name, char *out) {
    for (const char *p = name; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7F)
            return mz_fail(MEZZO_ERR_INVALID, "%s: a figure's name cannot have control characters",
                           mz_quote(name).text);
        if (*p == '\'')
            *out++ = *p;
        *out++ = *p;
    }
    *out = '\0';
    return MEZZO_OK;
}

// --- scripts -------------------------------------------------------------------------------------------------------
mezzo_status mz_figure_write(const char *folder, const char *name, const mz_text *body, int width, int height) {
    if (body->status != MEZZO_OK)
        return body->status;
    mz_text t = {0};
    char quoted[2 * FIGURE_NAME + 1];
    if (strlen(name) > FIGURE_NAME || strchr(name, '/') != NULL)
        return mz_fail(MEZZO_ERR_INVALID, "%s: a figure's name has at most %d bytes and no slash", mz_quote(name).text,
                       FIGURE_NAME);
    MEZZO_TRY(quote_name(name, quoted));
    mz_text_addf(
        &t,
        "# gnuplot %s.gp, in this folder, draws %s.png and %s.svg.\n"
        "set encoding utf8\n"
        "set style line 1 lc rgb '#0072b2' lw 2.5 pt 7 ps 1.1\nset style line 2 lc rgb '#d55e00' lw 2.5 pt 5 ps 1.1\n"
        "set style line 3 lc rgb '#009e73' lw 2.5 pt 9 ps 1.3\nset style line 4 lc rgb '#cc79a7' lw 2.5 pt 11 ps 1.3\n"
        "set style line 5 lc rgb '#e69f00' lw 2.5 pt 13 ps 1.3\nset style line 6 lc rgb '#56b4e9' lw 2.5 pt 2 ps 1.1\n"
        "set style line 90 lc rgb '#666666' lw 1.5 dt 2\nset style line 91 lc rgb '#dddddd' lw 1\n"
        "set border lw 1.2\nset tics nomirror\n",
        name, name, name);
    mz_text_add(&t, body->data, body->len);
    // The plot command of the body drew nothing yet: the terminals follow, each drawing it.
    mz_text_addf(
        &t,
        "set terminal pngcairo size %d,%d font 'DejaVu Sans,11' background rgb 'white'\nset output '%s.png'\n"
        "@draw\n"
        "set terminal svg size %d,%d dynamic font 'DejaVu Sans,11' background rgb 'white'\nset output '%s.svg'\n"
        "@draw\nunset output\n",
        width, height, quoted, width, height, quoted);
    char *path = mz_format("%s/%s.gp", folder, name);
    mezzo_status status = path == NULL ? MEZZO_ERR_MEMORY : t.status;
    if (status == MEZZO_OK)
        status = mz_file_write_atomic(path, t.data, t.len);
    mz_free(path);
    mz_text_free(&t);
    return status;
}

// The program's own words are dropped: its exit code and the files tell.
static int run_quietly(const char *folder, char *const words[], int *code) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return error;
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addchdir_np(&actions, folder);
    error = posix_spawnp(&child, words[0], &actions, NULL, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    int status = 0;
    while (error == 0 && waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            error = errno;
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return error;
}

mezzo_status mz_figure_draw(const char *folder, const char *name) {
    char script[FIGURE_NAME + 8], program[] = "gnuplot";
    char *const words[] = {program, script, NULL};
    int code, error;
    snprintf(script, sizeof script, "./%s.gp", name); // no name looks like an option
    error = run_quietly(folder, words, &code);
    if (error != 0 || code == 127)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "gnuplot could not be started (%s): install gnuplot-nox and run gnuplot %s in %s",
                       strerror(error != 0 ? error : ENOENT), script, mz_quote(folder).text);
    if (code != 0)
        return mz_fail(MEZZO_ERR_IO, "gnuplot could not draw %s: run gnuplot %s in that folder to see why",
                       mz_quote(folder).text, script);
    return MEZZO_OK;
}

static mezzo_status run_dot(const char *source, const char *path) {
    char program[] = "dot", output[] = "-o", format[] = "-Tsvg";
    if (strcmp(strrchr(path, '.'), ".png") == 0)
        memcpy(format, "-Tpng", sizeof format);
    char *from = mz_strdup(source), *to = mz_strdup(path);
    mezzo_status status = from == NULL || to == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
    if (status == MEZZO_OK) {
        char *const words[] = {program, format, output, to, from, NULL};
        int code, error = run_quietly(".", words, &code);
        if (error != 0 || code == 127)
            status = mz_fail(MEZZO_ERR_UNSUPPORTED,
                             "Graphviz' dot could not be started (%s): install graphviz and run dot -Tsvg -o %s %s",
                             strerror(error != 0 ? error : ENOENT), mz_quote(path).text, mz_quote(source).text);
        else if (code != 0)
            status = mz_fail(MEZZO_ERR_IO, "dot could not draw %s from %s", mz_quote(path).text, mz_quote(source).text);
    }
    mz_free(from);
    mz_free(to);
    return status;
}

mezzo_status mz_figure_graph(const mz_text *dot, const char *path) {
    // No name looks like an option.
    char *source = mz_format("%s%.*s.dot", path[0] == '-' ? "./" : "", (int)(strrchr(path, '.') - path), path);
    mezzo_status status = source == NULL ? MEZZO_ERR_MEMORY : mz_file_write_atomic(source, dot->data, dot->len);
    if (status == MEZZO_OK)
        status = run_dot(source, path);
    mz_free(source);
    MEZZO_TRY(status);
    return MEZZO_OK;
}

// --- lines against tokens per step ---------------------------------------------------------------------------------
typedef enum field { SPEEDUP, MEMORY, ENERGY } field;

static const mz_summary *point_field(const mz_curve_point *p, field f) {
    return f == SPEEDUP ? &p->speedup : f == MEMORY ? &p->memory : &p->energy;
}

static bool known(const mz_analysis *a, field f) {
    for (size_t i = 0; i < a->n_curves; i++)
        for (size_t k = 0; k < a->curves[i].n; k++)
            if (point_field(&a->curves[i].points[k], f)->n > 0)
                return true;
    return false;
}

static void add_curve_data(const mz_analysis *a, field f, mz_text *t) {
    for (size_t i = 0; i < a->n_curves; i++) {
        mz_text_addf(t, "$w%lld << EOD\n# tokens median q1 q3 pairs\n", (long long)a->curves[i].d_model);
        for (size_t k = 0; k < a->curves[i].n; k++) {
            const mz_summary *s = point_field(&a->curves[i].points[k], f);
            if (s->n > 0)
                mz_text_addf(t, "%lld %.6g %.6g %.6g %zu\n", (long long)a->curves[i].points[k].tokens, s->median, s->q1,
                             s->q3, s->n);
        }
        mz_text_addf(t, "EOD\n");
    }
}

static void add_token_axis(const mz_analysis *a, mz_text *t) {
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < a->n_curves; i++) {
        const mz_curve *c = &a->curves[i];
        least = fmin(least, (double)c->points[0].tokens);
        most = fmax(most, (double)c->points[c->n - 1].tokens);
    }
    mz_text_addf(t,
                 "set logscale x 2\nset format x '%%.0f'\nset xlabel 'tokens per step'\nset xrange [%.4g:%.4g]\n"
                 "set grid ytics ls 91\n",
                 least / 1.25, most * 1.25);
}

// Ribbons first, so that every line lies above every ribbon.
static void add_lines(const mz_analysis *a, mz_text *t) {
    for (size_t i = 0; i < a->n_curves; i++)
        mz_text_addf(t,
                     "%s$w%lld using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_%zu notitle",
                     i > 0 ? ", " : "", (long long)a->curves[i].d_model, i % 6 + 1);
    for (size_t i = 0; i < a->n_curves; i++)
        mz_text_addf(t, ", $w%lld using 1:2 with linespoints ls %zu title 'width %lld'",
                     (long long)a->curves[i].d_model, i % 6 + 1, (long long)a->curves[i].d_model);
}

static void add_colours(mz_text *t) {
    static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};
    for (size_t i = 0; i < MZ_COUNT(colours); i++)
        mz_text_addf(t, "ls_%zu = '%s'\n", i + 1, colours[i]);
}

static mezzo_status boundary(const mz_analysis *a, const char *folder, const char *name) {
    mz_text t = {0};
    add_curve_data(a, SPEEDUP, &t);
    mz_text_addf(&t, "$crossings << EOD\n# tokens 1 low high\n");
    bool any = false;
    for (size_t i = 0; i < a->n_curves; i++)
        for (int k = 0; k < a->curves[i].n_crossings; k++) {
            const mz_crossing *x = &a->curves[i].crossings[k];
            double low = isnan(x->interval.low) ? x->tokens : x->interval.low,
                   high = isnan(x->interval.high) ? x->tokens : x->interval.high;
            mz_text_addf(&t, "%.6g 1 %.6g %.6g\n", x->tokens, low, high);
            any = true;
        }
    mz_text_addf(&t, "EOD\n");
    add_colours(&t);
    add_token_axis(a, &t);
    mz_text_addf(&t,
                 "set title 'Speedup of %s over %s: median and quartiles of %zu exact-shape pairs'\n"
                 "set ylabel 'speedup'\nset key outside right center\nset yrange [0:1.2<*]\n"
                 "draw = \"plot ",
                 a->study->candidate, a->study->baseline, a->study->n_pairs);
    add_lines(a, &t);
    mz_text_addf(&t, ", 1 with lines ls 90 title 'equally fast'");
    if (any)
        mz_text_addf(
            &t, ", $crossings using 1:2:3:4 with xerrorbars lc rgb 'black' lw 2 pt 6 ps 1.6 title 'crossing, 95 %% "
                "interval'");
    mz_text_addf(&t, "\"\n");
    mezzo_status status = mz_figure_write(folder, name, &t, 1040, 520);
    mz_text_free(&t);
    return status;
}

static mezzo_status savings(const mz_analysis *a, field f, const char *folder, const char *name) {
    mz_text t = {0};
    add_curve_data(a, f, &t);
    add_colours(&t);
    add_token_axis(a, &t);
    mz_text_addf(&t,
                 "set title '%s saved by %s against %s: median and quartiles%s'\nset ylabel '%s saved, %%'\n"
                 "set key outside right center\ndraw = \"plot ",
                 f == MEMORY ? "Memory" : "Energy", a->study->candidate, a->study->baseline,
                 f == ENERGY && a->study->energy_remade ? " (mean power x step time)" : "",
                 f == MEMORY ? "memory" : "energy");
    add_lines(a, &t);
    mz_text_addf(&t, ", 0 with lines ls 90 title 'no difference'\"\n");
    mezzo_status status = mz_figure_write(folder, name, &t, 900, 480);
    mz_text_free(&t);
    return status;
}

// --- contours over batch × sequence --------------------------------------------------------------------------------
#define AXIS_MAX 32
typedef struct axis {
    int64_t values[AXIS_MAX]; // ascending
    int n;
} axis;

static void axis_add(axis *x, int64_t value) {
    int i = 0;
    while (i < x->n && x->values[i] < value)
        i++;
    if ((i < x->n && x->values[i] == value) || x->n == AXIS_MAX)
        return;
    memmove(&x->values[i + 1], &x->values[i], (size_t)(x->n - i) * sizeof x->values[0]);
    x->values[i] = value;
    x->n++;
}

static void add_tics(mz_text *t, const char *which, const axis *x) {
    mz_text_addf(t, "set %stics (", which);
    for (int i = 0; i < x->n; i++)
        mz_text_addf(t, "%s'%lld' %.6g", i > 0 ? ", " : "", (long long)x->values[i], log2((double)x->values[i]));
    mz_text_addf(t, ")\n");
}

// The median over everything that shares width, batch and sequence (layers, variants); NaN where nothing was measured.
static double cell_median(const mz_study *s, int64_t d_model, int64_t bs, int64_t seqlen, double *scratch, size_t *n) {
    *n = 0;
    for (size_t i = 0; i < s->n_pairs; i++) {
        const mz_shape_key *k = &s->pairs[i].key;
        if (k->d_model == d_model && k->bs == bs && k->seqlen == seqlen)
            scratch[(*n)++] = s->pairs[i].speedup;
    }
    mz_sort(scratch, *n);
    return *n > 0 ? mz_quantile(scratch, *n, 0.5) : (double)NAN;
}

// range: least and largest log2 of a cell.
static void add_grid(const mz_study *s, int64_t d_model, const axis *bs, const axis *seq, double *scratch,
                     double range[2], size_t *most, mz_text *t) {
    range[0] = range[1] = 0;
    *most = 0;
    mz_text_addf(t, "$grid << EOD\n# log2(batch) log2(sequence) log2(speedup) speedup\n");
    for (int j = 0; j < seq->n; j++) {
        for (int i = 0; i < bs->n; i++) {
            size_t n;
            double m = cell_median(s, d_model, bs->values[i], seq->values[j], scratch, &n);
            if (n > 0) {
                range[0] = fmin(range[0], log2(m));
                range[1] = fmax(range[1], log2(m));
                *most = n > *most ? n : *most;
                mz_text_addf(t, "%.6g %.6g %.6g %.2f\n", log2((double)bs->values[i]), log2((double)seq->values[j]),
                             log2(m), m);
            } else {
                mz_text_addf(t, "%.6g %.6g NaN NaN\n", log2((double)bs->values[i]), log2((double)seq->values[j]));
            }
        }
        mz_text_addf(t, "\n");
    }
    mz_text_addf(t, "EOD\n");
}

// Colours stand for the distance from a speedup of 1 (log2 = 0), which is pale: blue below, red above, the same on both
// sides. Bands of a quarter of a doubling; a side on which nothing lies is left out.
static void add_palette(const double range[2], mz_text *t) {
    int bands = (int)ceil(fmax(fmax(-range[0], range[1]), 0.5) * 4);
    double edge = bands / 4.0, low = range[0] < 0 ? -edge : 0, high = range[1] > 0 || range[0] >= 0 ? edge : 0;
    mz_text_addf(t, "set palette defined (");
    if (low < 0)
        mz_text_addf(t, "%g '#4393c3', %g '#a6cfe3', ", -edge, -edge / 2);
    mz_text_addf(t, "0 '#f7f7f7'");
    if (high > 0)
        mz_text_addf(t, ", %g '#f7b799', %g '#dc6e57'", edge / 2, edge);
    mz_text_addf(t, ") maxcolors %d\nset cbrange [%g:%g]\nset cbtics (", (int)((high - low) * 4), low, high);
    bool first = true;
    for (double x = ceil(low * 2) / 2; x <= high; x += 0.5) {
        mz_text_addf(t, "%s'%.2f' %g", first ? "" : ", ", exp2(x), x);
        first = false;
    }
    mz_text_addf(t, ")\nset cblabel 'speedup (median)' offset 1.5,0\n");
}

static mezzo_status contours(const mz_analysis *a, const mz_curve *c, const char *folder, const char *name) {
    const mz_study *s = a->study;
    axis bs = {0}, seq = {0};
    double range[2];
    size_t most;
    mz_text t = {0};
    double *scratch = mz_alloc(s->n_pairs, sizeof *scratch);
    if (scratch == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < s->n_pairs; i++)
        if (s->pairs[i].key.d_model == c->d_model) {
            axis_add(&bs, s->pairs[i].key.bs);
            axis_add(&seq, s->pairs[i].key.seqlen);
        }
    add_grid(s, c->d_model, &bs, &seq, scratch, range, &most, &t);
    mz_free(scratch);
    add_tics(&t, "x", &bs);
    add_tics(&t, "y", &seq);
    add_palette(range, &t);
    mz_text_addf(&t,
                 "set title \"Speedup of %s over %s at width %lld\\nmedian of up to %zu pairs a cell (layers and "
                 "variants together)\"%s\n"
                 "set rmargin at screen 0.80\nset lmargin at screen 0.12\nset tmargin at screen 0.87\nset bmargin at "
                 "screen 0.13\n"
                 "set xlabel 'batch'\nset ylabel 'sequence'\nset tics out\nunset key\n",
                 s->candidate, s->baseline, (long long)c->d_model, most, bs.n > 1 && seq.n > 1 ? " offset 0,1" : "");
    if (bs.n > 1 && seq.n > 1) // filled contours between the cells' centres
        mz_text_addf(
            &t,
            "set xrange [%.6g:%.6g]\nset yrange [%.6g:%.6g]\nset pm3d map interpolate 24,24\nset contour surface\n"
            "set cntrparam levels discrete 0\nset cntrlabel onecolor\n"
            "draw = \"splot $grid using 1:2:3 with pm3d nocontour, $grid using 1:2:3 with lines lc rgb 'black' lw 2.5 "
            "nosurface, "
            "$grid using 1:2:3:(sprintf('%%.2f',$4)) with labels nocontour font ',10'\"\n",
            log2((double)bs.values[0]) - 0.35, log2((double)bs.values[bs.n - 1]) + 0.35,
            log2((double)seq.values[0]) - 0.25, log2((double)seq.values[seq.n - 1]) + 0.25);
    else // one row or column: its cells
        mz_text_addf(&t,
                     "set xrange [%.6g:%.6g]\nset yrange [%.6g:%.6g]\n"
                     "draw = \"plot $grid using 1:2:(0.5):(0.5):3 with boxxyerror fs solid noborder lc palette, "
                     "$grid using 1:2:(sprintf('%%.2f',$4)) with labels font ',10'\"\n",
                     log2((double)bs.values[0]) - 0.5, log2((double)bs.values[bs.n - 1]) + 0.5,
                     log2((double)seq.values[0]) - 0.5, log2((double)seq.values[seq.n - 1]) + 0.5);
    mezzo_status status = mz_figure_write(folder, name, &t, 760, 560);
    mz_text_free(&t);
    return status;
}

// --- all of them ---------------------------------------------------------------------------------------------------
static mezzo_status draw(const char *folder, const char *name, int *drawn, char *why, size_t size) {
    if (why[0] != '\0')
        return MEZZO_OK;
    mezzo_status status = mz_figure_draw(folder, name);
    if (status == MEZZO_ERR_UNSUPPORTED || status == MEZZO_ERR_IO) {
        snprintf(why, size, "%s", mezzo_error_message());
        return MEZZO_OK;
    }
    MEZZO_TRY(status);
    (*drawn)++;
    return MEZZO_OK;
}

mezzo_status mz_analysis_figures(const mz_analysis *a, const char *folder, int *drawn, char *why, size_t size) {
    char name[64];
    *drawn = 0;
    why[0] = '\0';
    MEZZO_TRY(boundary(a, folder, "decision_boundary"));
    MEZZO_TRY(draw(folder, "decision_boundary", drawn, why, size));
    for (size_t i = 0; i < a->n_curves; i++) {
        snprintf(name, sizeof name, "contours_d%lld", (long long)a->curves[i].d_model);
        MEZZO_TRY(contours(a, &a->curves[i], folder, name));
        MEZZO_TRY(draw(folder, name, drawn, why, size));
    }
    static const struct {
        field f;
        const char *name;
    } charts[] = {{MEMORY, "memory_saving"}, {ENERGY, "energy_saving"}};
    for (size_t i = 0; i < MZ_COUNT(charts); i++) {
        if (!known(a, charts[i].f))
            continue;
        MEZZO_TRY(savings(a, charts[i].f, folder, charts[i].name));
        MEZZO_TRY(draw(folder, charts[i].name, drawn, why, size));
    }
    return MEZZO_OK;
}
