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

// Quotes a name for gnuplot, which elsewhere runs text in back quotes or after "!". In single quotes text is only text,
// and the one escape is a doubled quote. A control byte would end the line. `out` has space for twice the name.
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
static mezzo_status write_script(const char *folder, const char *name, const mz_text *body, int width, int height) {
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
    // The body's plot command has drawn nothing yet; each terminal that follows draws it.
    mz_text_addf(
        &t,
        "set terminal pngcairo size %d,%d font 'DejaVu Sans,11' background rgb 'white'\nset output '%s.png'\n"
        "@draw\n"
        "set terminal svg size %d,%d dynamic font 'DejaVu Sans,11' background rgb 'white'\nset output '%s.svg'\n"
        "@draw\nunset output\n",
        width, height, quoted, width, height, quoted);
    return mz_text_save(&t, mz_path_of("%s/%s.gp", folder, name).text);
}

static mezzo_status write_figure(const char *folder, const char *name, mz_text *body, int width, int height) {
    mezzo_status status = write_script(folder, name, body, width, height);
    mz_text_free(body);
    return status;
}

// Runs a program without its output: its exit code and the files show the result.
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

static mezzo_status draw_figure(const char *folder, const char *name) {
    char script[FIGURE_NAME + 8], program[] = "gnuplot";
    char *const words[] = {program, script, NULL};
    int code, error;
    snprintf(script, sizeof script, "./%s.gp", name); // the name then cannot look like an option
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

mezzo_status mz_figure_make(const char *folder, const char *name, mz_text *body, int width, int height) {
    MEZZO_TRY(write_figure(folder, name, body, width, height));
    return draw_figure(folder, name);
}

static mezzo_status run_dot(char *source, const char *path) {
    char program[] = "dot", output[] = "-o", format[] = "-Tsvg";
    if (strcmp(strrchr(path, '.'), ".png") == 0)
        memcpy(format, "-Tpng", sizeof format);
    mz_path to = mz_path_of("%s", path);
    char *const words[] = {program, format, output, to.text, source, NULL};
    int code, error = run_quietly(".", words, &code);
    if (error != 0 || code == 127)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "Graphviz' dot could not be started (%s): install graphviz and run dot -Tsvg -o %s %s",
                       strerror(error != 0 ? error : ENOENT), mz_quote(path).text, mz_quote(source).text);
    return code == 0
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_IO, "dot could not draw %s from %s", mz_quote(path).text, mz_quote(source).text);
}

mezzo_status mz_figure_graph(const mz_text *dot, const char *path) {
    // The name must not look like an option.
    mz_path source = mz_path_of("%s%.*s.dot", path[0] == '-' ? "./" : "", (int)(strrchr(path, '.') - path), path);
    MEZZO_TRY(mz_file_write_atomic(source.text, dot->data, dot->len));
    return run_dot(source.text, path);
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
        mz_text_addf(t, "$w%lld << EOD\n# tokens median q1 q3 pairs%s\n", (long long)a->curves[i].d_model,
                     f == SPEEDUP ? " low high" : "");
        for (size_t k = 0; k < a->curves[i].n; k++) {
            const mz_curve_point *p = &a->curves[i].points[k];
            const mz_summary *s = point_field(p, f);
            if (s->n == 0)
                continue;
            mz_text_addf(t, "%lld %.6g %.6g %.6g %zu", (long long)p->tokens, s->median, s->q1, s->q3, s->n);
            if (f == SPEEDUP)
                mz_text_addf(t, " %.6g %.6g", p->interval.low, p->interval.high);
            mz_text_addf(t, "\n");
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

// Adds ribbons first, so that every line lies above every ribbon.
static void add_ribbons(const mz_analysis *a, mz_text *t) {
    for (size_t i = 0; i < a->n_curves; i++)
        mz_text_addf(t,
                     "%s$w%lld using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_%zu notitle",
                     i > 0 ? ", " : "", (long long)a->curves[i].d_model, i % 6 + 1);
}

static void add_lines(const mz_analysis *a, mz_text *t) {
    for (size_t i = 0; i < a->n_curves; i++)
        mz_text_addf(t, ", $w%lld using 1:2 with linespoints ls %zu title 'width %lld'",
                     (long long)a->curves[i].d_model, i % 6 + 1, (long long)a->curves[i].d_model);
}

static void add_colours(mz_text *t) {
    static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};
    for (size_t i = 0; i < MZ_COUNT(colours); i++)
        mz_text_addf(t, "ls_%zu = '%s'\n", i + 1, colours[i]);
}

// Adds the axis of speedups. An interval of more than a factor of two may leave the figure, so that it does not flatten
// the lines. Speedups are ratios, so the axis is logarithmic, in steps of √2; the lines between medians are then those
// on which crossings were found.
static void add_speedup_axis(const mz_analysis *a, mz_text *t) {
    double low = 1, high = 1;
    for (size_t i = 0; i < a->n_curves; i++)
        for (size_t k = 0; k < a->curves[i].n; k++) {
            const mz_curve_point *p = &a->curves[i].points[k];
            low = fmin(low, fmax(fmin(p->speedup.q1, p->interval.low), p->speedup.median / 2));
            high = fmax(high, fmin(fmax(p->speedup.q3, p->interval.high), p->speedup.median * 2));
        }
    const int first = (int)floor(2 * log2(low / 1.05)), last = (int)ceil(2 * log2(high * 1.05));
    mz_text_addf(t, "set logscale y 2\nset yrange [%.6g:%.6g]\nset ytics (", exp2(first / 2.0), exp2(last / 2.0));
    for (int k = first; k <= last; k++)
        mz_text_addf(t, "%s'%.3g' %.6g", k > first ? ", " : "", exp2(k / 2.0), exp2(k / 2.0));
    mz_text_addf(t, ")\nset ylabel 'speedup (logarithmic)'\n");
}

static int add_crossings(const mz_analysis *a, bool with_interval, mz_text *t) {
    int n = 0;
    mz_text_addf(t, "$%s << EOD\n# tokens 1 low high\n", with_interval ? "crossings" : "marks");
    for (size_t i = 0; i < a->n_curves; i++)
        for (int k = 0; k < a->curves[i].n_crossings; k++) {
            const mz_crossing *x = &a->curves[i].crossings[k];
            if (!isnan(x->interval.low) != with_interval)
                continue;
            mz_text_addf(t, "%.6g 1 %.6g %.6g\n", x->tokens, x->interval.low, x->interval.high);
            n++;
        }
    mz_text_addf(t, "EOD\n");
    return n;
}

static void add_error_bars(const mz_analysis *a, mz_text *t) {
    bool titled = false;
    for (size_t i = 0; i < a->n_curves; i++) {
        if (a->curves[i].noise == MZ_NOISE_UNKNOWN)
            continue;
        mz_text_addf(t, ", $w%lld using 1:2:6:7 with yerrorbars lc rgb ls_%zu lw 1.2 ps 0 notitle",
                     (long long)a->curves[i].d_model, i % 6 + 1);
        if (!titled)
            mz_text_addf(
                t, ", keyentry with yerrorbars lc rgb '#666666' lw 1.2 ps 0 title '95 %% interval of the median'");
        titled = true;
    }
}

static bool has_quartiles(const mz_analysis *a) {
    bool some = false;
    for (size_t i = 0; i < a->n_curves; i++)
        some = some || a->curves[i].speedup.n > a->curves[i].n;
    return some;
}

static mezzo_status boundary(const mz_analysis *a, const char *folder, const char *name) {
    mz_text t = {0};
    add_curve_data(a, SPEEDUP, &t);
    const int intervals = add_crossings(a, true, &t), marks = add_crossings(a, false, &t);
    const bool quartiles = has_quartiles(a);
    add_colours(&t);
    add_token_axis(a, &t);
    add_speedup_axis(a, &t);
    mz_text_addf(&t,
                 "set title 'Speedup of %s over %s: %s%zu exact-shape pairs%s'\n"
                 "set key outside right center\ndraw = \"plot ",
                 a->study->candidate, a->study->baseline, quartiles ? "median and quartiles of " : "",
                 a->study->n_pairs, quartiles ? "" : ", one a point");
    add_ribbons(a, &t);
    add_error_bars(a, &t);
    add_lines(a, &t);
    mz_text_addf(&t, ", 1 with lines ls 90 title 'equally fast'");
    if (intervals > 0)
        mz_text_addf(&t, ", $crossings using 1:2:3:4 with xerrorbars lc rgb 'black' lw 2 pt 6 ps 1.6 title 'crossing, "
                         "95 %% interval'");
    if (marks > 0)
        mz_text_addf(&t,
                     ", $marks using 1:2 with points lc rgb 'black' lw 2 pt 6 ps 1.6 title 'crossing, no interval'");
    mz_text_addf(&t, "\"\n");
    return write_figure(folder, name, &t, 1040, 520);
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
    add_ribbons(a, &t);
    add_lines(a, &t);
    mz_text_addf(&t, ", 0 with lines ls 90 title 'no difference'\"\n");
    return write_figure(folder, name, &t, 900, 480);
}

// --- contours over batch × sequence --------------------------------------------------------------------------------
#define AXIS_MAX 32
typedef struct axis {
    int64_t values[AXIS_MAX]; // in ascending order
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

typedef struct cell { // all pairs with this width, batch and sequence: layers and variants vary
    mz_summary speedup;
    double error; // median of the known relative standard errors; NaN: none is known
} cell;

static mezzo_status make_cell(const mz_study *s, int64_t d_model, int64_t bs, int64_t seqlen, double *scratch,
                              cell *out) {
    size_t n = 0;
    *out = (cell){.error = (double)NAN};
    for (int errors = 1; errors >= 0; errors--) {
        n = 0;
        for (size_t i = 0; i < s->n_pairs; i++) {
            const mz_pair *p = &s->pairs[i];
            const double x = errors ? p->error : p->speedup;
            if (p->key.d_model == d_model && p->key.bs == bs && p->key.seqlen == seqlen && !isnan(x))
                scratch[n++] = x;
        }
        mz_sort(scratch, n);
        if (errors && n > 0)
            out->error = mz_quantile(scratch, n, 0.5);
    }
    return n > 0 ? mz_summarize(scratch, n, &out->speedup) : MEZZO_OK;
}

// Describes how much the speedups of a cell scatter: by their quartiles, or for a single pair by two standard errors of
// its timings.
static void describe_scatter(const cell *c, char *out, size_t size) {
    out[0] = '\0';
    if (c->speedup.n > 1)
        snprintf(out, size, "%.2f to %.2f", c->speedup.q1, c->speedup.q3);
    else if (!isnan(c->error))
        snprintf(out, size, "± %.2f", 2 * c->error * c->speedup.median);
}

// Returns the point half way to the neighbour; at the ends as far outward as inward.
static double edge(const axis *x, int i, int side) {
    const double at = log2((double)x->values[i]);
    const int next = i + side;
    if (next >= 0 && next < x->n)
        return (at + log2((double)x->values[next])) / 2;
    if (x->n == 1)
        return at + side * 0.5;
    return at + (at - log2((double)x->values[i - side])) / 2;
}

typedef struct grid_facts {
    double low, high; // log2 of the cells' limits
    size_t most;      // the most pairs of a cell
    bool missing;     // some cell was not run
    bool errors;      // the timing of some cell has a standard error
} grid_facts;

// Adds a cell's place, its edges and its value; or the edges of a cell that was not run, to a list of their own.
static void add_cell(const axis *bs, int i, const axis *seq, int j, const cell *c, mz_text *grid, mz_text *missing) {
    char scatter[48], edges[128];
    const double x = log2((double)bs->values[i]), y = log2((double)seq->values[j]);
    describe_scatter(c, scatter, sizeof scatter);
    snprintf(edges, sizeof edges, "%.6g %.6g %.6g %.6g", edge(bs, i, -1), edge(bs, i, 1), edge(seq, j, -1),
             edge(seq, j, 1));
    if (c->speedup.n > 0) {
        mz_text_addf(grid, "%.6g %.6g %.6g %s %.2f \"%s\"\n", x, y, log2(c->speedup.median), edges, c->speedup.median,
                     scatter);
        return;
    }
    mz_text_addf(grid, "%.6g %.6g NaN %s NaN \"\"\n", x, y, edges);
    mz_text_addf(missing, "%.6g %.6g %s\n", x, y, edges);
}

static mezzo_status add_grid(const mz_study *s, int64_t d_model, const axis *bs, const axis *seq, double *scratch,
                             grid_facts *facts, mz_text *t) {
    mz_text missing = {0};
    mezzo_status status = MEZZO_OK;
    mz_text_addf(t, "$grid << EOD\n# log2 of batch, sequence, speedup; edges of the cell; speedup, its scatter\n");
    for (int j = 0; j < seq->n; j++) {
        for (int i = 0; i < bs->n && status == MEZZO_OK; i++) {
            cell c;
            status = make_cell(s, d_model, bs->values[i], seq->values[j], scratch, &c);
            add_cell(bs, i, seq, j, &c, t, &missing);
            if (c.speedup.n == 0)
                continue;
            facts->low = fmin(facts->low, log2(c.speedup.median));
            facts->high = fmax(facts->high, log2(c.speedup.median));
            facts->errors = facts->errors || !isnan(c.error);
            facts->most = c.speedup.n > facts->most ? c.speedup.n : facts->most;
        }
        mz_text_addf(t, "\n");
    }
    facts->missing = missing.len > 0;
    mz_text_addf(t, "EOD\n$missing << EOD\n%sEOD\n", missing.data != NULL ? missing.data : "");
    status = status != MEZZO_OK ? status : missing.status;
    mz_text_free(&missing);
    return status;
}

// Adds colours by the distance from a speedup of 1 (log2 = 0), which is pale: blue below, red above, symmetric. Bands
// span a quarter of a doubling; a side without cells is left out.
static void add_palette(const grid_facts *facts, mz_text *t) {
    const int bands = (int)ceil(fmax(fmax(-facts->low, facts->high), 0.5) * 4);
    const double edge = bands / 4.0, low = facts->low < 0 ? -edge : 0;
    const double high = facts->high > 0 || facts->low >= 0 ? edge : 0;
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
    grid_facts facts = {0};
    mz_text t = {0};
    double *scratch;
    MEZZO_TRY(MZ_NEW(scratch, s->n_pairs));
    for (size_t i = 0; i < s->n_pairs; i++)
        if (s->pairs[i].key.d_model == c->d_model) {
            axis_add(&bs, s->pairs[i].key.bs);
            axis_add(&seq, s->pairs[i].key.seqlen);
        }
    mezzo_status status = add_grid(s, c->d_model, &bs, &seq, scratch, &facts, &t);
    mz_free(scratch);
    const bool surface = bs.n > 1 && seq.n > 1;
    if (surface) // the line of equal speed, between the cells' centres
        mz_text_addf(&t, "set contour base\nset cntrparam levels discrete 0\nunset surface\nset table $equal\n"
                         "splot $grid using 1:2:3 with lines\nunset table\nunset contour\nset surface\n");
    add_tics(&t, "x", &bs);
    add_tics(&t, "y", &seq);
    add_palette(&facts, &t);
    mz_text_addf(&t, "set title \"Speedup of %s over %s at width %lld\\n", s->candidate, s->baseline,
                 (long long)c->d_model);
    if (facts.most > 1)
        mz_text_addf(&t, "median and quartiles of up to %zu pairs a cell\"\n", facts.most);
    else
        mz_text_addf(&t, "one pair a cell%s\"\n", facts.errors ? ", ± 2 standard errors of its timing" : "");
    mz_text_addf(&t,
                 "set rmargin at screen 0.80\nset lmargin at screen 0.12\nset tmargin at screen 0.87\nset bmargin at "
                 "screen 0.13\n"
                 "set xlabel 'batch'\nset ylabel 'sequence'\nset tics out\nunset key\n"
                 "set xrange [%.6g:%.6g]\nset yrange [%.6g:%.6g]\n",
                 edge(&bs, 0, -1), edge(&bs, bs.n - 1, 1), edge(&seq, 0, -1), edge(&seq, seq.n - 1, 1));
    mz_text_addf(&t, "draw = \"plot $grid using 1:2:4:5:6:7:3 with boxxyerror fs solid noborder lc palette, ");
    if (facts.missing)
        mz_text_addf(&t, "$missing using 1:2:3:4:5:6 with boxxyerror fs solid noborder lc rgb '#dddddd', $missing "
                         "using 1:2:('not run') with labels font ',9' tc rgb '#666666', ");
    if (surface)
        mz_text_addf(&t, "$equal using 1:2 with lines lc rgb 'black' lw 2.5, ");
    mz_text_addf(&t, "$grid using 1:2:(valid(3) ? sprintf('%%.2f', $8) : '') with labels font ',11' offset 0,0.3, "
                     "$grid using 1:2:(stringcolumn(9)) with labels font ',8' offset 0,-0.7\"\n");
    t.status = status != MEZZO_OK ? status : t.status;
    return write_figure(folder, name, &t, 760, 560);
}

// --- all figures ---------------------------------------------------------------------------------------------------
static mezzo_status draw(const char *folder, const char *name, int *drawn, char *why, size_t size) {
    if (why[0] != '\0')
        return MEZZO_OK;
    mezzo_status status = draw_figure(folder, name);
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
