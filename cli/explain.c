// mezzo explain: every op's dtypes under a precision, and the rule that decided them. Nothing is run.
#include "base/precision.h"
#include "cli.h"
#include "graph/graph.h"
#include "io/file.h"
#include "optim/ranks.h"
#include "study/analyse/figures.h"
#include "study/measure/explained.h"
#include "study/measure/explained_ranks.h"
#include "train/config.h"

// --- rows ----------------------------------------------------------------------------------------------------------
// "bf16,bf16,fp32" is "bf16 x2,fp32".
static const char *inputs_text(const void *row, char *buf, size_t size) {
    size_t used = 0;
    buf[0] = '\0';
    for (const char *input = ((const mz_explained_row *)row)->inputs; *input != '\0' && used < size;) {
        const size_t n = strcspn(input, ",");
        const char *next = input;
        int count = 0;
        while (strncmp(next, input, n) == 0 && (next[n] == ',' || next[n] == '\0')) {
            next += n + (next[n] == ',');
            count++;
            if (*next == '\0')
                break;
        }
        used += (size_t)snprintf(buf + used, size - used, "%s%.*s", used > 0 ? "," : "", (int)n, input);
        if (count > 1 && used < size)
            used += (size_t)snprintf(buf + used, size - used, " x%d", count);
        input = next;
    }
    return buf;
}

static const char *unless(mezzo_dtype dtype, mezzo_dtype usual) {
    return dtype == usual || dtype >= MEZZO_DTYPE_COUNT ? "-" : mezzo_dtype_name(dtype);
}
static const char *gradient_text(const void *row, char *buf, size_t size) {
    const mz_explained_row *r = row;
    (void)buf, (void)size;
    return r->storage == MEZZO_I32 ? "-" : unless(r->gradient, r->storage);
}
static const char *accumulate_text(const void *row, char *buf, size_t size) {
    (void)buf, (void)size;
    return unless(((const mz_explained_row *)row)->accumulate, MEZZO_F32);
}
static const char *reduce_text(const void *row, char *buf, size_t size) {
    (void)buf, (void)size;
    return unless(((const mz_explained_row *)row)->reduce, MEZZO_F32);
}

// JSON has other places for the rule and the gradient than the table.
static const cli_field row_fields[] = {
    {CLI_FIELD(mz_explained_row, phase), "phase"},
    {CLI_FIELD(mz_explained_row, phase), NULL, "phase", "%s", .only = "with backward"},
    {CLI_FIELD(mz_explained_row, op), "op", "op", "%s"},
    {CLI_FIELD(mz_explained_row, module), "module", "module", "%s"},
    {CLI_FIELD(mz_explained_row, output), "output"},
    {CLI_FIELD(mz_explained_row, inputs), "inputs", "inputs", .text = inputs_text},
    {CLI_FIELD(mz_explained_row, shape), "shape", "shape", "%s"},
    {CLI_FIELD(mz_explained_row, operand), "operand"},
    {CLI_FIELD(mz_explained_row, gradient), "gradient"},
    {CLI_FIELD(mz_explained_row, storage), "storage", "storage", "%s", .legend = "dtype of the stored output"},
    {CLI_FIELD(mz_explained_row, gradient), NULL, "gradient", .flags = CLI_SOME, .text = gradient_text,
     .legend = "dtype in which backward's products read the output's gradient; -: as storage"},
    {CLI_FIELD(mz_explained_row, scale), "scale", "scale", "%s", .flags = CLI_SOME,
     .legend = "what shares one scale of the operands"},
    {CLI_FIELD(mz_explained_row, compute), "compute", "compute", "%s",
     .legend = "dtype to which operands are rounded; sums are fp32 unless a column says otherwise"},
    {CLI_FIELD(mz_explained_row, accumulate), "accumulate", "accumulate", .flags = CLI_SOME, .text = accumulate_text,
     .legend = "dtype of a product's sums; -: fp32"},
    {CLI_FIELD(mz_explained_row, reduce), "reduce", "reduce", .flags = CLI_SOME, .text = reduce_text,
     .legend = "dtype of sums and statistics; -: fp32"},
    {CLI_FIELD(mz_explained_row, rule), "rule"},
    {CLI_FIELD(mz_explained_row, fused), "fused", "fused", "%s", .only = "forward",
     .legend = "dtype of the stored output once casts are part of the ops before them; folded: the op itself is part "
               "of its neighbour"},
    {CLI_FIELD(mz_explained_row, number), NULL, "rule", "%.0f", .legend = "what decided"},
};
static const cli_field param_fields[] = {
    {CLI_FIELD(mz_explained_param, name), "name", "parameter", "%s"},
    {CLI_FIELD(mz_explained_param, shape), "shape", "shape", "%s"},
    {CLI_FIELD(mz_explained_param, master), "master", "master", "%s"},
    {CLI_FIELD(mz_explained_param, copy), "copy", "copy", "%s"},
    {CLI_FIELD(mz_explained_param, rule), "why", "why", "%s"},
};
static const cli_field summary_fields[] = {
    {CLI_FIELD(mz_explained_summary, param), "parameters"},
    {CLI_FIELD(mz_explained_summary, params), "parameter_tensors"},
    {CLI_FIELD(mz_explained_summary, elements), "parameter_elements"},
    {CLI_FIELD(mz_explained_summary, shadow), "shadows"},
    {CLI_FIELD(mz_explained_summary, shadows), "shadow_tensors"},
    {CLI_FIELD(mz_explained_summary, logits), "logits", "logits", "%s"},
    {CLI_FIELD(mz_explained_summary, loss), "loss", "loss", "%s"},
    {CLI_FIELD(mz_explained_summary, gradient), "gradients", "gradients", "%s"},
};

// What is explained of one graph.
typedef struct explanation {
    mz_explained rows;
    mz_explained_params params;
    mz_explained_summary summary;
    const char *word; // of row_fields' `only`
} explanation;

static void print_rules(const mz_explained *rows) {
    int told = 0;
    for (size_t i = 0; i < rows->n; i++)
        if (rows->rows[i].number > told)
            printf("  %2d  %s\n", ++told, rows->rows[i].rule);
}

static void print_text(const explanation *e, bool params) {
    char elements[32];
    const mz_explained_summary *s = &e->summary;
    cli_fields_table(row_fields, MZ_COUNT(row_fields), e->rows.rows, sizeof *e->rows.rows, e->rows.n, e->word);
    print_rules(&e->rows);
    if (params) {
        printf("\n");
        CLI_TABLE(param_fields, e->params.rows, e->params.n);
    }
    printf("\nparameters  %s (%zu tensors, %s elements)\n", s->param, s->params,
           cli_thousands((double)s->elements, elements, sizeof elements));
    if (s->shadows > 0)
        printf("copies      %s (%zu of the parameters, cast once per optimizer step)\n", s->shadow, s->shadows);
    printf("masters    ");
    for (int m = 0, some = 0; m < MZ_MASTERS; m++)
        if (e->params.kept[m] > 0)
            printf("%s %s (%zu)", some++ > 0 ? "," : "", mezzo_master_name((mezzo_master)m), e->params.kept[m]);
    printf("\n");
    cli_fields_lines(summary_fields, MZ_COUNT(summary_fields), s, NULL, "", 12);
}

// --- one of several ranks ------------------------------------------------------------------------------------------
static const cli_field rank_fields[] = {
    {CLI_FIELD(mz_explained_ranks, ranks), "ranks"},
    {CLI_FIELD(mz_explained_ranks, buckets), "buckets"},
    {CLI_FIELD(mz_explained_ranks, masters), "masters_bytes"},
    {CLI_FIELD(mz_explained_ranks, copies), "copies_bytes"},
    {CLI_FIELD(mz_explained_ranks, gradients), "gradients_bytes"},
    {CLI_FIELD(mz_explained_ranks, forward), "gathers_forward"},
    {CLI_FIELD(mz_explained_ranks, backward), "gathers_backward"},
    {CLI_FIELD(mz_explained_ranks, gathered), "gathered_bytes"},
};

static void print_ranks(const mz_explained_ranks *r, const char *shard) {
    const double mib = 1.0 / (1 << 20);
    printf("one of %lld ranks, --shard %s: %.1f MiB of masters, %.1f of copies, %.1f of gradients, in %lld bucket%s\n",
           (long long)r->ranks, shard, (double)r->masters * mib, (double)r->copies * mib, (double)r->gradients * mib,
           (long long)r->buckets, r->buckets == 1 ? "" : "s");
    if (r->forward + r->backward > 0)
        printf("a micro batch gathers %lld buckets in forward and %lld in backward: %.1f MiB\n", (long long)r->forward,
               (long long)r->backward, (double)r->gathered * mib);
}

static mezzo_status explain_ranks(const mz_run_config *c, const mezzo_graph *graph,
                                  const mezzo_program_options *options, int64_t ranks, mz_explained_ranks *out) {
    const mz_cut cut = mz_ranks_cut(c->shard, c->canonical, 0, (int)ranks, mz_bucket_elements(c->bucket_mib));
    mezzo_device *device = NULL;
    MEZZO_TRY(mezzo_device_open(c->device, 0, &device));
    mezzo_status status =
        mz_explain_ranks(device, graph, options, mz_run_config_master(c, options->precision), &cut, out);
    mezzo_device_close(device);
    return status;
}

static int print_json(const cli_args *args, const explanation *e, const char *model, mezzo_precision precision,
                      const char *after, const mz_explained_ranks *ranks) {
    json_t *rows = json_array();
    for (size_t i = 0; i < e->rows.n; i++)
        json_array_append_new(rows, cli_fields_json(row_fields, MZ_COUNT(row_fields), &e->rows.rows[i], e->word, NULL));
    json_t *all =
        json_pack("{ss ss ss so so so}", "model", model, "precision", mezzo_precision_name(precision), "after", after,
                  "rows", rows, "parameters", CLI_LIST(param_fields, e->params.rows, e->params.n), "summary",
                  CLI_OBJECT(summary_fields, &e->summary));
    if (ranks->ranks > 0)
        json_object_set_new(all, "ranks", CLI_OBJECT(rank_fields, ranks));
    return cli_json_print(args->command, all);
}

// --- two precisions side by side -----------------------------------------------------------------------------------
typedef struct difference {
    const char *op, *module, *rule;
    int number; // of the rule, in the second table
    mezzo_dtype storage[2], compute[2];
} difference;

static const char *side_text(const difference *d, int side, char *buf, size_t size) {
    snprintf(buf, size, "%s, in %s", mezzo_dtype_name(d->storage[side]), mezzo_dtype_name(d->compute[side]));
    return buf;
}
static const char *left_text(const void *row, char *buf, size_t size) {
    return side_text(row, 0, buf, size);
}
static const char *right_text(const void *row, char *buf, size_t size) {
    return side_text(row, 1, buf, size);
}

static int print_diff(const cli_args *args, const mz_explained *a, const mz_explained *b, const char *name_a,
                      const char *name_b) {
    const cli_field fields[] = {
        {CLI_FIELD(difference, op), "op", "op", "%s"},
        {CLI_FIELD(difference, module), "module", "module", "%s"},
        {CLI_FIELD(difference, storage[0]), "storage_a"},
        {CLI_FIELD(difference, compute[0]), "compute_a"},
        {CLI_FIELD(difference, storage[1]), "storage_b"},
        {CLI_FIELD(difference, compute[1]), "compute_b"},
        {CLI_FIELD(difference, op), NULL, name_a, .text = left_text},
        {CLI_FIELD(difference, op), NULL, name_b, .text = right_text},
        {CLI_FIELD(difference, rule), "rule"},
        {CLI_FIELD(difference, number), NULL, "rule", "%.0f", .legend = "what decided"},
    };
    size_t at[2] = {0}, same = 0, n = 0;
    mz_explained_pair p;
    difference *rows = mz_alloc(a->n + 1, sizeof *rows);
    if (rows == NULL)
        return cli_error(args->command, MEZZO_ERR_MEMORY);
    while (mz_explained_next_pair(a, b, at, &p))
        if (mz_explained_same(&p))
            same++;
        else
            rows[n++] = (difference){p.a->op,
                                     p.a->module,
                                     p.b->rule,
                                     p.b->number,
                                     {p.a->storage, p.b->storage},
                                     {p.a->compute, p.b->compute}};
    int code = CLI_DONE;
    if (cli_has(args, "json")) {
        code = cli_json_print(args->command,
                              json_pack("{ss ss sI sI sI so}", "a", name_a, "b", name_b, "same", (json_int_t)same,
                                        "casts_a", (json_int_t)mz_explained_casts(a), "casts_b",
                                        (json_int_t)mz_explained_casts(b), "differ", CLI_LIST(fields, rows, n)));
    } else {
        CLI_TABLE(fields, rows, n);
        if (n > 0)
            print_rules(b);
        cli_tell("\n%zu ops differ in what they store or what they compute in, %zu are the same; casts: %zu under %s, "
                 "%zu under %s",
                 n, same, mz_explained_casts(a), name_a, mz_explained_casts(b), name_b);
    }
    mz_free(rows);
    return code;
}

// --diff A,B: the ops after autocast under each.
static int diff(const cli_args *args, const mezzo_graph *graph, mezzo_program_options options) {
    const char *text = cli_text(args, "diff", ""), *comma = strchr(text, ',');
    char names[2][16] = {"", ""};
    mz_explained tables[2] = {{0}, {0}};
    if (comma == NULL || (size_t)(comma - text) >= sizeof names[0] || strlen(comma + 1) >= sizeof names[1])
        return cli_wrong(args->command, "--diff %s: name two precisions, such as fp32,bf16", text);
    snprintf(names[0], sizeof names[0], "%.*s", (int)(comma - text), text);
    snprintf(names[1], sizeof names[1], "%s", comma + 1);
    int code = CLI_DONE;
    for (int i = 0; i < 2 && code == CLI_DONE; i++) {
        if (mezzo_precision_parse(names[i], &options.precision) != MEZZO_OK ||
            mz_precision(options.precision) == NULL) {
            code = cli_wrong(args->command, "--diff %s: \"%s\" is none of %s", text, names[i], mz_precision_list());
            break;
        }
        mezzo_status status = mz_explained_collect(graph, &options, "autocast", &tables[i]);
        if (status != MEZZO_OK)
            code = cli_error(args->command, status);
    }
    if (code == CLI_DONE)
        code = print_diff(args, &tables[0], &tables[1], names[0], names[1]);
    mz_explained_free(&tables[0]);
    mz_explained_free(&tables[1]);
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
        fprintf(stderr, draws ? "wrote %s\n" : "wrote %s: for a drawing, name a .svg or .png file\n",
                cli_show(path).text);
    return CLI_DONE;
}

// --- the command ---------------------------------------------------------------------------------------------------
// "auto" depends on the machine: its device is asked, and the reason told.
static mezzo_status resolve(const mz_run_config *c, mezzo_precision *precision) {
    if (mz_precision(*precision) != NULL)
        return MEZZO_OK;
    mezzo_device *device = NULL;
    char reason[256];
    MEZZO_TRY(mezzo_device_open(c->device, 0, &device));
    mezzo_status status = mezzo_precision_resolve(device, MEZZO_PRECISION_AUTO, precision, reason, sizeof reason);
    mezzo_device_close(device);
    if (status == MEZZO_OK)
        fprintf(stderr, "precision %s: %s\n", mezzo_precision_name(*precision), reason);
    return status;
}

static mezzo_status explain(const mezzo_graph *graph, const mezzo_program_options *options, const char *after,
                            mezzo_master master, explanation *e) {
    MEZZO_TRY(mz_explained_collect(graph, options, after, &e->rows));
    if (strcmp(after, "autocast") == 0) {
        mz_explained fused = {0};
        mezzo_status status = mz_explained_collect(graph, options, "fuse", &fused);
        if (status == MEZZO_OK)
            status = mz_explained_mark_fused(&e->rows, &fused);
        mz_explained_free(&fused);
        MEZZO_TRY(status);
    }
    MEZZO_TRY(mz_explained_summarize(graph, options, &e->summary));
    return mz_explained_collect_params(graph, options, master, &e->params);
}

static int run(const cli_args *args) {
    if (cli_has(args, "toy")) {
        for (int i = 0; i < args->n_given; i++)
            if (strcmp(args->given[i].name, "toy") != 0 && strcmp(args->given[i].name, "json") != 0)
                return cli_wrong(args->command, "--toy does not take --%s", args->given[i].typed);
        return cli_explain_toy(args);
    }
    const char *after = cli_text(args, "after", "autocast");
    bool plain = strcmp(after, "autocast") == 0;
    if (!plain && strcmp(after, "autodiff") != 0 && strcmp(after, "fuse") != 0 && strcmp(after, "chunk") != 0)
        return cli_wrong(args->command, "--after %s: it must be autocast, autodiff, fuse or chunk", after);
    mezzo_config *config;
    int64_t ranks;
    int code = cli_integer(args, "ranks", 2, 65536, 0, &ranks);
    if (code == CLI_DONE)
        code = cli_config(args, &config);
    if (code != CLI_DONE)
        return code;
    mezzo_graph *graph = NULL;
    mz_run_config c;
    mz_session_options o;
    mz_explained_ranks held = {0};
    explanation e = {.word = plain ? "forward" : "with backward"};
    mezzo_program_options *options = &o.program;
    mezzo_status status = mz_run_config_read(config, &c);
    if (status == MEZZO_OK)
        status = mz_run_config_sketch(&c, &o);
    o.form.outputs = strcmp(after, "chunk") != 0; // logits that are kept are never cut into blocks
    if (status == MEZZO_OK)
        status = mz_session_graph(&o, &o.form, &graph);
    if (status == MEZZO_OK)
        status = resolve(&c, &options->precision);
    if (status == MEZZO_OK)
        status = explain(graph, options, after, mz_run_config_master(&c, options->precision), &e);
    if (status == MEZZO_OK && ranks > 0)
        status = explain_ranks(&c, graph, options, ranks, &held);
    if (status != MEZZO_OK) {
        code = cli_error(args->command, status);
    } else {
        if (cli_has(args, "dot"))
            code = write_dot(args, graph, options, after);
        bool piped = strcmp(cli_out_file(args, "dot", ""), CLI_STDOUT) == 0; // the graph is all that stdout has
        if (code != CLI_DONE || (cli_has(args, "diff") && !piped))
            code = code != CLI_DONE ? code : diff(args, graph, *options);
        else if (piped)
            code = CLI_DONE;
        else if (cli_has(args, "json"))
            code = print_json(args, &e, c.model_name, options->precision, after, &held);
        else
            print_text(&e, cli_has(args, "params"));
        if (code == CLI_DONE && ranks > 0 && !piped && !cli_has(args, "json") && !cli_has(args, "diff"))
            print_ranks(&held, cli_key(config, "ranks.shard"));
    }
    mz_explained_free(&e.rows);
    mz_explained_params_free(&e.params);
    mezzo_graph_free(graph);
    mezzo_config_free(config);
    return code;
}

static const cli_option options_table[] = {
    {"config", "FILE", "a YAML file of keys; command-line options override it"},
    {"after", "PASS",
     "autocast: the decisions; autodiff: with backward; fuse: which ops were merged; chunk: as it runs [autocast]"},
    {"diff", "A,B", "only the ops that differ between two precisions, after autocast"},
    {"dot", "FILE",
     "also write the graph after the pass, with ops coloured by storage dtype: FILE.svg or FILE.png (drawn by "
     "Graphviz); any other name gets Graphviz source"},
    {"ranks", "N", "also show what one of N ranks stores and gathers, with --shard and --bucket-mib"},
    {"params", NULL, "also list the parameters: how --master stores each master, and its low-precision copy"},
    {"toy", NULL, "the dtypes of a small model's tensors in every precision"},
    {"json", NULL, "the result as JSON"},
    {0},
};
static const char *const keys[] = {"model.",
                                   "amp.precision",
                                   "amp.residual",
                                   "amp.emulate",
                                   "amp.recompute",
                                   "amp.recompute_light",
                                   "amp.logits_rows",
                                   "autocast",
                                   "device.name",
                                   "train.batch_size",
                                   "optimizer.master",
                                   "ranks.",
                                   NULL};

const cli_command cli_explain = {
    .name = "explain",
    .summary = "every op's dtypes under a precision, and why",
    .usage = "--model NAME --precision NAME [--after PASS] [--KEY VALUE …]",
    .details =
        "Prints one row per op, and what each column means. autocast decides as torch.amp does (docs/OPS.md lists "
        "the exceptions); the fuse pass does not change the values.",
    .options = options_table,
    .config = keys,
    .run = run,
};
