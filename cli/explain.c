// mezzo explain: every op's dtypes under a precision, and the rule that decided them. Nothing is run.
#include <stdlib.h>

#include "base/precision.h"
#include "cli.h"
#include "explain.h"
#include "graph/graph.h"
#include "io/file.h"
#include "study/analyse/figures.h"

typedef struct row {
    char *op, *module, *output, *phase, *inputs, *shape, *rule;
    mezzo_dtype operand, gradient, storage, compute, accumulate, reduce;
    const char *scale;
    const char *fused; // what the fuse pass made of its storage; "" where that is not asked
} row;

typedef struct table {
    row *rows;
    size_t n, cap;
    mezzo_status status;
} table;

static void table_free(table *t) {
    for (size_t i = 0; i < t->n; i++) {
        row *r = &t->rows[i];
        char *strings[] = {r->op, r->module, r->output, r->phase, r->inputs, r->shape, r->rule};
        for (size_t k = 0; k < MZ_COUNT(strings); k++)
            mz_free(strings[k]);
    }
    mz_free(t->rows);
    *t = (table){0};
}

static void keep(void *user, const mezzo_explain_row *from) {
    table *t = user;
    if (t->status == MEZZO_OK)
        t->status = MZ_RESERVE(t->rows, t->cap, t->n + 1);
    if (t->status != MEZZO_OK)
        return;
    row *r = &t->rows[t->n++];
    *r = (row){.operand = from->operand,
               .gradient = from->gradient,
               .storage = from->storage,
               .scale = from->scale,
               .compute = from->compute,
               .accumulate = from->accumulate,
               .reduce = from->reduce,
               .fused = ""};
    const struct {
        char **to;
        const char *text;
    } strings[] = {{&r->op, from->op},       {&r->module, from->module}, {&r->output, from->output},
                   {&r->phase, from->phase}, {&r->inputs, from->inputs}, {&r->shape, from->shape},
                   {&r->rule, from->rule}};
    for (size_t i = 0; i < MZ_COUNT(strings); i++)
        if ((*strings[i].to = mz_strdup(strings[i].text != NULL ? strings[i].text : "")) == NULL)
            t->status = MEZZO_ERR_MEMORY;
}

static mezzo_status collect(const mezzo_graph *g, const mezzo_program_options *options, const char *after, table *t) {
    MEZZO_TRY(mezzo_graph_explain(g, options, after, keep, t));
    return t->status;
}

// The k-th op of a name in a module stays the k-th through the fuse pass, if it stays at all; what it took in is
// written behind its name: "linear+relu".
static bool same_op(const row *a, const row *b) {
    size_t n = strcspn(a->op, "+");
    return n == strcspn(b->op, "+") && strncmp(a->op, b->op, n) == 0 && strcmp(a->module, b->module) == 0 &&
           strcmp(a->phase, b->phase) == 0;
}

static void mark_fused(table *plain, const table *fused) {
    for (size_t i = 0; i < plain->n; i++) {
        size_t before = 0;
        for (size_t k = 0; k < i; k++)
            before += same_op(&plain->rows[k], &plain->rows[i]);
        plain->rows[i].fused = "folded";
        for (size_t k = 0; k < fused->n; k++)
            if (same_op(&fused->rows[k], &plain->rows[i]) && before-- == 0) {
                plain->rows[i].fused = mezzo_dtype_name(fused->rows[k].storage);
                break;
            }
    }
}

// --- the summary: what the tensors that outlive an op are stored in ------------------------------------------------
typedef struct summary {
    size_t params, shadows;
    int64_t elements;
    const char *param, *shadow, *gradient, *logits,
        *loss; // dtype names; "mixed" where they differ, "-" where there are none
} summary;

static void note(const char **name, mezzo_dtype dtype) {
    const char *now = mezzo_dtype_name(dtype);
    *name = strcmp(*name, "-") == 0 || strcmp(*name, now) == 0 ? now : "mixed";
}

static mezzo_status summarize(const mezzo_graph *g, const mezzo_program_options *options, summary *s) {
    *s = (summary){.param = "-", .shadow = "-", .gradient = "-", .logits = "-", .loss = "-"};
    mezzo_graph *after = NULL;
    MEZZO_TRY(mz_passes(g, options, "autodiff", &after));
    for (size_t i = 0; i < after->n_values; i++) {
        const mz_value *v = &after->values[i];
        if (v->kind == MZ_VALUE_PARAM) {
            s->params++;
            s->elements += mz_shape_count(&v->shape);
            note(&s->param, v->dtype);
        } else if (v->kind == MZ_VALUE_SHADOW) {
            s->shadows++;
            note(&s->shadow, v->dtype);
        } else if (v->kind == MZ_VALUE_GRAD) {
            note(&s->gradient, v->dtype);
        }
    }
    for (size_t i = 0; i < after->n_outputs; i++) {
        mezzo_dtype dtype = after->values[after->outputs[i].value].dtype;
        if (strcmp(after->outputs[i].name, "logits") == 0)
            note(&s->logits, dtype);
        else if (strcmp(after->outputs[i].name, "loss") == 0)
            note(&s->loss, dtype);
    }
    mezzo_graph_free(after);
    return MEZZO_OK;
}

mezzo_status cli_explain_params(const mezzo_graph *g, const mezzo_program_options *options, const char **param,
                                const char **gradient) {
    summary s;
    MEZZO_TRY(summarize(g, options, &s));
    *param = s.param;
    *gradient = s.gradient;
    return MEZZO_OK;
}

// --- parameters: how masters are kept, and the copies that products read -------------------------------------------
enum { MASTERS = MEZZO_MASTER_STOCHASTIC + 1 };

typedef struct param_row {
    char *name, *shape;
    mezzo_master master;
    mezzo_dtype copy;
    const char *rule;
} param_row;

typedef struct params_table {
    param_row *rows;
    size_t n, cap;
    bool shown; // as a table of its own
    mezzo_status status;
} params_table;

static void keep_param(void *user, const mezzo_explain_param *from) {
    params_table *t = user;
    if (t->status == MEZZO_OK)
        t->status = MZ_RESERVE(t->rows, t->cap, t->n + 1);
    if (t->status != MEZZO_OK)
        return;
    param_row *r = &t->rows[t->n++];
    *r = (param_row){mz_strdup(from->name), mz_strdup(from->shape), from->master, from->copy, from->rule};
    if (r->name == NULL || r->shape == NULL)
        t->status = MEZZO_ERR_MEMORY;
}

static mezzo_status collect_params(const mezzo_graph *g, const mezzo_program_options *options, const char *master,
                                   params_table *t) {
    mezzo_master asked = MEZZO_MASTER_FP32;
    while (asked < MASTERS - 1 && strcmp(mezzo_master_name(asked), master) != 0)
        asked++;
    MEZZO_TRY(mezzo_graph_explain_params(g, options, asked, keep_param, t));
    return t->status;
}

static void params_free(params_table *t) {
    for (size_t i = 0; i < t->n; i++) {
        mz_free(t->rows[i].name);
        mz_free(t->rows[i].shape);
    }
    mz_free(t->rows);
    *t = (params_table){0};
}

static const char *copy_name(const param_row *r) {
    return r->copy < MEZZO_DTYPE_COUNT ? mezzo_dtype_name(r->copy) : "-";
}

static void print_params(const params_table *t) {
    size_t name = strlen("parameter"), shape = strlen("shape");
    for (size_t i = 0; i < t->n; i++) {
        name = strlen(t->rows[i].name) > name ? strlen(t->rows[i].name) : name;
        shape = strlen(t->rows[i].shape) > shape ? strlen(t->rows[i].shape) : shape;
    }
    printf("\n%-*s  %-*s  %-10s  %-8s  why\n", (int)name, "parameter", (int)shape, "shape", "master", "copy");
    for (size_t i = 0; i < t->n; i++)
        printf("%-*s  %-*s  %-10s  %-8s  %s\n", (int)name, t->rows[i].name, (int)shape, t->rows[i].shape,
               mezzo_master_name(t->rows[i].master), copy_name(&t->rows[i]), t->rows[i].rule);
}

// --- printing ------------------------------------------------------------------------------------------------------
enum { COLUMNS = 13 };

static void cells_of(const row *r, const char *cells[COLUMNS]) {
    const char *all[COLUMNS] = {r->phase,
                                r->op,
                                r->module,
                                r->inputs,
                                r->shape,
                                mezzo_dtype_name(r->storage),
                                mezzo_dtype_name(r->gradient),
                                r->scale,
                                mezzo_dtype_name(r->compute),
                                mezzo_dtype_name(r->accumulate),
                                mezzo_dtype_name(r->reduce),
                                r->fused,
                                r->rule};
    memcpy(cells, all, sizeof all);
}

static bool has_scales(const table *t) {
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->rows[i].scale, "-") != 0)
            return true;
    return false;
}

static void print_table(const table *t, bool phase, bool fused) {
    static const char *const heads[COLUMNS] = {"phase",   "op",       "module", "inputs",  "shape",
                                               "storage", "gradient", "scale",  "compute", "accumulate",
                                               "reduce",  "fused",    "rule"};
    const bool shown[COLUMNS] = {phase,         true, true, true, true,  true, true,
                                 has_scales(t), true, true, true, fused, true};
    size_t width[COLUMNS];
    const char *cells[COLUMNS];
    for (int c = 0; c < COLUMNS; c++)
        width[c] = strlen(heads[c]);
    for (size_t i = 0; i < t->n; i++) {
        cells_of(&t->rows[i], cells);
        for (int c = 0; c < COLUMNS; c++)
            if (strlen(cells[c]) > width[c])
                width[c] = strlen(cells[c]);
    }
    for (size_t i = 0; i <= t->n; i++) {
        if (i == 0)
            memcpy(cells, heads, sizeof heads);
        else
            cells_of(&t->rows[i - 1], cells);
        for (int c = 0; c < COLUMNS; c++)
            if (shown[c])
                printf("%-*s", c == COLUMNS - 1 ? 0 : (int)width[c] + 2, cells[c]);
        putchar('\n');
    }
}

static void print_text(const table *t, const summary *s, const params_table *p, bool phase, bool fused) {
    char elements[32];
    size_t kept[MASTERS] = {0};
    print_table(t, phase, fused);
    if (p->shown)
        print_params(p);
    for (size_t i = 0; i < p->n; i++)
        kept[p->rows[i].master]++;
    printf("\nparameters  %s (%zu tensors, %s elements)\n", s->param, s->params,
           cli_thousands((double)s->elements, elements, sizeof elements));
    if (s->shadows > 0)
        printf("shadows     %s (%zu of the parameters, cast once per optimizer step)\n", s->shadow, s->shadows);
    printf("masters    ");
    for (int m = 0, some = 0; m < MASTERS; m++)
        if (kept[m] > 0)
            printf("%s %s (%zu)", some++ > 0 ? "," : "", mezzo_master_name((mezzo_master)m), kept[m]);
    printf("\nlogits      %s\nloss        %s\ngradients   %s\n", s->logits, s->loss, s->gradient);
}

static json_t *params_json(const params_table *p) {
    json_t *list = json_array();
    for (size_t i = 0; i < p->n; i++) {
        const param_row *r = &p->rows[i];
        json_array_append_new(list, json_pack("{ss ss ss ss ss}", "name", r->name, "shape", r->shape, "master",
                                              mezzo_master_name(r->master), "copy", copy_name(r), "why", r->rule));
    }
    return list;
}

static int print_json(const cli_args *args, const table *t, const summary *s, const params_table *p, const char *model,
                      mezzo_precision precision, const char *after) {
    json_t *o = json_object(), *rows = json_array();
    json_object_set_new(o, "model", json_string(model));
    json_object_set_new(o, "precision", json_string(mezzo_precision_name(precision)));
    json_object_set_new(o, "after", json_string(after));
    json_object_set_new(o, "rows", rows);
    for (size_t i = 0; i < t->n; i++) {
        const row *r = &t->rows[i];
        json_t *j = json_pack("{ss ss ss ss ss ss ss ss ss ss ss ss ss ss}", "phase", r->phase, "op", r->op, "module",
                              r->module, "output", r->output, "inputs", r->inputs, "shape", r->shape, "operand",
                              mezzo_dtype_name(r->operand), "gradient", mezzo_dtype_name(r->gradient), "storage",
                              mezzo_dtype_name(r->storage), "scale", r->scale, "compute", mezzo_dtype_name(r->compute),
                              "accumulate", mezzo_dtype_name(r->accumulate), "reduce", mezzo_dtype_name(r->reduce),
                              "rule", r->rule);
        if (*r->fused != '\0')
            json_object_set_new(j, "fused", json_string(r->fused));
        json_array_append_new(rows, j);
    }
    json_object_set_new(o, "parameters", params_json(p));
    json_object_set_new(o, "summary",
                        json_pack("{ss sI sI ss sI ss ss ss}", "parameters", s->param, "parameter_tensors",
                                  (json_int_t)s->params, "parameter_elements", (json_int_t)s->elements, "shadows",
                                  s->shadow, "shadow_tensors", (json_int_t)s->shadows, "logits", s->logits, "loss",
                                  s->loss, "gradients", s->gradient));
    return cli_json_print(args->command, o);
}

// --- two precisions side by side -----------------------------------------------------------------------------------
static bool same_dtypes(const row *a, const row *b) {
    return a->storage == b->storage && a->compute == b->compute && a->reduce == b->reduce && a->operand == b->operand &&
           a->gradient == b->gradient && strcmp(a->scale, b->scale) == 0;
}

// Casts belong to one precision only: what is compared is every other op, which both have in the same order.
static const row *next_op(const table *t, size_t *i) {
    while (*i < t->n && strcmp(t->rows[*i].op, "cast") == 0)
        ++*i;
    return *i < t->n ? &t->rows[(*i)++] : NULL;
}

static size_t casts(const table *t) {
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        n += strcmp(t->rows[i].op, "cast") == 0;
    return n;
}

static int print_diff(const cli_args *args, const table *a, const table *b, const char *name_a, const char *name_b) {
    bool json = cli_has(args, "json");
    json_t *rows = json ? json_array() : NULL;
    size_t i = 0, k = 0, same = 0, differ = 0;
    if (!json)
        printf("%-14s %-22s %-20s %-20s %s\n", "op", "module", name_a, name_b, "rule");
    for (const row *x, *y; (x = next_op(a, &i)) != NULL && (y = next_op(b, &k)) != NULL;) {
        char left[64], right[64];
        if (same_dtypes(x, y)) {
            same++;
            continue;
        }
        differ++;
        snprintf(left, sizeof left, "%s, in %s", mezzo_dtype_name(x->storage), mezzo_dtype_name(x->compute));
        snprintf(right, sizeof right, "%s, in %s", mezzo_dtype_name(y->storage), mezzo_dtype_name(y->compute));
        if (json)
            json_array_append_new(rows,
                                  json_pack("{ss ss ss ss ss ss ss}", "op", x->op, "module", x->module, "storage_a",
                                            mezzo_dtype_name(x->storage), "compute_a", mezzo_dtype_name(x->compute),
                                            "storage_b", mezzo_dtype_name(y->storage), "compute_b",
                                            mezzo_dtype_name(y->compute), "rule", y->rule));
        else
            printf("%-14s %-22s %-20s %-20s %s\n", x->op, x->module, left, right, y->rule);
    }
    if (json)
        return cli_json_print(args->command, json_pack("{ss ss sI sI sI so}", "a", name_a, "b", name_b, "same",
                                                       (json_int_t)same, "casts_a", (json_int_t)casts(a), "casts_b",
                                                       (json_int_t)casts(b), "differ", rows));
    printf("\n%zu ops differ (what they store, what they compute in), %zu are the same; casts: %zu under %s, %zu under "
           "%s\n",
           differ, same, casts(a), name_a, casts(b), name_b);
    return CLI_DONE;
}

// --diff A,B: the ops after autocast under each.
static int diff(const cli_args *args, const mezzo_graph *graph, mezzo_program_options options) {
    const char *text = cli_text(args, "diff", ""), *comma = strchr(text, ',');
    char names[2][16] = {"", ""};
    table tables[2] = {{0}, {0}};
    if (comma == NULL || (size_t)(comma - text) >= sizeof names[0] || strlen(comma + 1) >= sizeof names[1])
        return cli_wrong(args->command, "--diff %s: name two precisions, as fp32,bf16", text);
    snprintf(names[0], sizeof names[0], "%.*s", (int)(comma - text), text);
    snprintf(names[1], sizeof names[1], "%s", comma + 1);
    int code = CLI_DONE;
    for (int i = 0; i < 2 && code == CLI_DONE; i++) {
        if (mezzo_precision_parse(names[i], &options.precision) != MEZZO_OK ||
            mz_precision(options.precision) == NULL) {
            code = cli_wrong(args->command, "--diff %s: \"%s\" is none of %s", text, names[i], mz_precision_list());
            break;
        }
        mezzo_status status = collect(graph, &options, "autocast", &tables[i]);
        if (status != MEZZO_OK)
            code = cli_error(args->command, status);
    }
    if (code == CLI_DONE)
        code = print_diff(args, &tables[0], &tables[1], names[0], names[1]);
    table_free(&tables[0]);
    table_free(&tables[1]);
    return code;
}

// FILE.svg and FILE.png are drawn by Graphviz; any other name gets the text.
static int write_dot(const cli_args *args, const mezzo_graph *graph, const mezzo_program_options *options,
                     const char *after) {
    const char *path = cli_out_file(args, "dot", ""), *end = strrchr(path, '.');
    bool draws = end != NULL && (strcmp(end, ".svg") == 0 || strcmp(end, ".png") == 0);
    mz_text text = {0};
    mezzo_status status = mz_graph_dot(graph, options, after, &text);
    if (status == MEZZO_OK)
        status = draws ? mz_figure_graph(&text, path) : mz_file_write_atomic(path, text.data, text.len);
    mz_text_free(&text);
    if (status != MEZZO_OK)
        return cli_error(args->command, status);
    if (strcmp(path, CLI_STDOUT) != 0)
        fprintf(stderr, draws ? "wrote %s\n" : "wrote %s: name a .svg or .png file to have it drawn\n", path);
    return CLI_DONE;
}

// --- the command ---------------------------------------------------------------------------------------------------
// "auto" depends on the machine: its device is asked, and the reason told.
static mezzo_status resolve(const mezzo_config *config, mezzo_precision *precision) {
    if (mz_precision(*precision) != NULL)
        return MEZZO_OK;
    mezzo_device *device = NULL;
    char reason[256];
    MEZZO_TRY(mezzo_device_open(cli_key(config, "device.name"), 0, &device));
    mezzo_status status = mezzo_precision_resolve(device, MEZZO_PRECISION_AUTO, precision, reason, sizeof reason);
    mezzo_device_close(device);
    if (status == MEZZO_OK)
        fprintf(stderr, "precision %s: %s\n", mezzo_precision_name(*precision), reason);
    return status;
}

static mezzo_status build(const mezzo_config *config, bool keep_logits, mezzo_graph **out) {
    mezzo_model_config model, initial;
    MEZZO_TRY(mezzo_model_defaults(cli_key(config, "model.name"), &initial));
    MEZZO_TRY(mezzo_config_model(config, initial.vocab, &model));
    int64_t batch = strtoll(cli_key(config, "train.batch_size"), NULL, 10);
    MEZZO_TRY(mezzo_graph_create(out));
    return mezzo_model_build(*out, &model, batch, model.seq_len, keep_logits);
}

static int run(const cli_args *args) {
    if (cli_has(args, "toy")) {
        for (int i = 0; i < args->n_given; i++)
            if (strcmp(args->given[i].name, "toy") != 0 && strcmp(args->given[i].name, "json") != 0)
                return cli_wrong(args->command, "--toy answers one question: leave --%s out", args->given[i].typed);
        return cli_explain_toy(args);
    }
    const char *after = cli_text(args, "after", "autocast");
    bool plain = strcmp(after, "autocast") == 0;
    if (!plain && strcmp(after, "autodiff") != 0 && strcmp(after, "fuse") != 0 && strcmp(after, "chunk") != 0)
        return cli_wrong(args->command, "--after %s: it must be autocast, autodiff, fuse or chunk", after);
    mezzo_config *config;
    int code = cli_config(args, &config);
    if (code != CLI_DONE)
        return code;
    mezzo_graph *graph = NULL;
    mezzo_program_options options;
    table rows = {0}, fused = {0};
    params_table params = {.shown = cli_has(args, "params")};
    summary s;
    // Logits that are kept are never cut into blocks: after chunk, the graph as training builds it.
    mezzo_status status = build(config, strcmp(after, "chunk") != 0, &graph);
    if (status == MEZZO_OK)
        status = mezzo_config_program(config, &options);
    if (status == MEZZO_OK)
        status = resolve(config, &options.precision);
    if (status == MEZZO_OK)
        status = collect(graph, &options, after, &rows);
    if (status == MEZZO_OK && plain)
        status = collect(graph, &options, "fuse", &fused);
    if (status == MEZZO_OK)
        status = summarize(graph, &options, &s);
    if (status == MEZZO_OK)
        status = collect_params(graph, &options, cli_key(config, "optimizer.master"), &params);
    if (status != MEZZO_OK) {
        code = cli_error(args->command, status);
    } else {
        if (plain)
            mark_fused(&rows, &fused);
        if (cli_has(args, "dot"))
            code = write_dot(args, graph, &options, after);
        bool piped = strcmp(cli_out_file(args, "dot", ""), CLI_STDOUT) == 0; // the graph is all that stdout has
        if (code != CLI_DONE || (cli_has(args, "diff") && !piped))
            code = code != CLI_DONE ? code : diff(args, graph, options);
        else if (piped)
            code = CLI_DONE;
        else if (cli_has(args, "json"))
            code = print_json(args, &rows, &s, &params, cli_key(config, "model.name"), options.precision, after);
        else
            print_text(&rows, &s, &params, !plain, plain);
    }
    table_free(&rows);
    table_free(&fused);
    params_free(&params);
    mezzo_graph_free(graph);
    mezzo_config_free(config);
    return code;
}

static const cli_option options_table[] = {
    {"config", "FILE", "a YAML file of keys; options on the command line win over it"},
    {"after", "PASS",
     "autocast: what is decided; autodiff: with backward; fuse: what becomes one op; chunk: as it runs [autocast]"},
    {"diff", "A,B", "only the ops that differ between two precisions, after autocast"},
    {"dot", "FILE",
     "also the graph after the pass, ops coloured by what they store: FILE.svg or FILE.png, drawn by Graphviz, or its "
     "text"},
    {"params", NULL, "also a table of the parameters: how each master is kept under --master, and its copy"},
    {"toy", NULL, "which tensor of a small model has which dtype, in every precision"},
    {"json", NULL, "the result as JSON"},
    {0},
};
static const char *const keys[] = {"model.",
                                   "amp.precision",
                                   "amp.residual",
                                   "amp.recompute",
                                   "amp.recompute_light",
                                   "amp.logits_rows",
                                   "autocast",
                                   "device.name",
                                   "train.batch_size",
                                   "optimizer.master",
                                   NULL};

const cli_command cli_explain = {
    .name = "explain",
    .summary = "every op's dtypes under a precision, and why",
    .usage = "--model NAME --precision NAME [--after PASS] [--KEY VALUE …]",
    .details = "One row an op. storage: what its output is kept in; gradient: what its gradient's products read that "
               "output's gradient\n"
               "in; scale: what has one scale, where operands have scales; compute: what operands are rounded to; "
               "accumulate, reduce:\n"
               "what sums run in; fused: what the output is kept in once casts are folded into their producers, or "
               "\"folded\" where\n"
               "the op became part of its neighbour. autocast decides as torch.amp does; the values are the same with "
               "the fuse pass.",
    .options = options_table,
    .config = keys,
    .run = run,
};
