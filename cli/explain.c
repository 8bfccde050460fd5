// mezzo explain prints every op's dtypes under a precision, and the rule that decided them, without running the model.
#include <math.h>

#include "base/precision.h"
#include "cli.h"
#include "io/file.h"
#include "optim/ranks.h"
#include "study/analyse/figures.h"
#include "study/measure/explained.h"
#include "train/config.h"

// --- rows ----------------------------------------------------------------------------------------------------------
// Shortens "bf16,bf16,fp32" to "bf16 x2,fp32".
static const char *inputs_text(const void *row, char *buf, size_t size) {
    size_t used = 0;
    buf[0] = '\0';
    for (const char *input = ((const mz_explained_row *)row)->is.inputs; *input != '\0' && used < size;) {
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

static const char *gradient_text(const void *row, char *buf, size_t size) {
    const mezzo_explain_row *r = &((const mz_explained_row *)row)->is;
    (void)buf, (void)size;
    return r->storage == MEZZO_I32 || r->gradient == r->storage || r->gradient >= MEZZO_DTYPE_COUNT
               ? "-"
               : mezzo_dtype_name(r->gradient);
}
// In JSON the rule and the gradient have other places than in the table.
static const mz_row_field row_fields[] = {
    {MZ_FIELD(mz_explained_row, is.phase), "phase"},
    {MZ_FIELD(mz_explained_row, is.phase), NULL, "phase", .only = "with backward"},
    {MZ_FIELD(mz_explained_row, is.op), "op", "op"},
    {MZ_FIELD(mz_explained_row, is.module), "module", "module"},
    {MZ_FIELD(mz_explained_row, is.output), "output"},
    {MZ_FIELD(mz_explained_row, is.inputs), "inputs", "inputs", .text = inputs_text},
    {MZ_FIELD(mz_explained_row, is.shape), "shape", "shape"},
    {MZ_FIELD(mz_explained_row, is.operand), "operand"},
    {MZ_FIELD(mz_explained_row, is.gradient), "gradient"},
    {MZ_FIELD(mz_explained_row, is.storage), "storage", "storage", .legend = "dtype of the stored output"},
    {MZ_FIELD(mz_explained_row, is.gradient), NULL, "gradient", .flags = MZ_SOME, .text = gradient_text,
     .legend = "dtype in which backward's products read the output's gradient; -: as storage"},
    {MZ_FIELD(mz_explained_row, is.scale), "scale", "scale", .flags = MZ_SOME,
     .legend = "what shares one scale of the operands"},
    {MZ_FIELD(mz_explained_row, is.compute), "compute", "compute",
     .legend = "dtype to which operands are rounded; sums are fp32 unless a column says otherwise"},
    {MZ_FIELD(mz_explained_row, is.accumulate), "accumulate", "accumulate", .flags = MZ_SOME | MZ_LOW,
     .legend = "dtype of a product's sums; -: fp32"},
    {MZ_FIELD(mz_explained_row, is.reduce), "reduce", "reduce", .flags = MZ_SOME | MZ_LOW,
     .legend = "dtype of sums and statistics; -: fp32"},
    {MZ_FIELD(mz_explained_row, is.rule), "rule"},
    {MZ_FIELD(mz_explained_row, fused), "fused", "fused", .only = "forward",
     .legend = "dtype of the stored output once casts are part of the ops before them; folded: the op itself is part "
               "of its neighbour"},
    {MZ_FIELD(mz_explained_row, number), NULL, "rule", "%.0f", .legend = "what decided"},
    // These are known only after a pass that asks the device.
    {MZ_FIELD(mz_explained_row, kernel), "kernel", "kernel", .flags = MZ_SOME},
    {MZ_FIELD(mz_explained_row, stream), "stream", "stream", "%.0f", MZ_KNOWN | MZ_WHOLE,
     .legend = "of the device, on which the op runs"},
    {MZ_FIELD(mz_explained_row, at), "arena_offset", "at", "%.0f", .flags = MZ_SOME | MZ_KNOWN | MZ_WHOLE,
     .legend = "where the output begins in the arena; -: it is a view, a parameter, a gradient or an input"},
    {MZ_FIELD(mz_explained_row, bytes), "bytes", "bytes", "%.0f", .flags = MZ_SOME | MZ_KNOWN | MZ_WHOLE,
     .legend = "of the output in the arena, with padding"},
};
enum { DEVICE_FIELDS = 4 };
static const mz_row_field param_fields[] = {
    {MZ_FIELD(mz_explained_param, is.name), "name", "parameter"},
    {MZ_FIELD(mz_explained_param, is.shape), "shape", "shape"},
    {MZ_FIELD(mz_explained_param, is.master), "master", "master"},
    {MZ_FIELD(mz_explained_param, is.copy), "copy", "copy"},
    {MZ_FIELD(mz_explained_param, update), "update", "update", .legend = "the optimizer that updates it; -: frozen"},
    {MZ_FIELD(mz_explained_param, lr_factor), "lr_factor", "rate", "%.3g",
     .legend = "its learning rate, over that of the schedule"},
    {MZ_FIELD(mz_explained_param, is.rule), "why", "why"},
};
static const mz_row_field summary_fields[] = {
    {MZ_FIELD(mz_explained_summary, param), "parameters"},
    {MZ_FIELD(mz_explained_summary, params), "parameter_tensors"},
    {MZ_FIELD(mz_explained_summary, elements), "parameter_elements"},
    {MZ_FIELD(mz_explained_summary, low_copy), "shadows"},
    {MZ_FIELD(mz_explained_summary, low_copies), "shadow_tensors"},
    {MZ_FIELD(mz_explained_summary, logits), "logits", "logits"},
    {MZ_FIELD(mz_explained_summary, loss), "loss", "loss"},
    {MZ_FIELD(mz_explained_summary, gradient), "gradients", "gradients"},
};

// Holds what is printed of one graph.
typedef struct explanation {
    const mz_pass *after;
    size_t n_fields; // of row_fields
    mz_explained rows;
    mz_explained_params params;
    mz_explained_summary summary;
    const char *word; // the word that `only` of row_fields is compared with
} explanation;

static void print_rules(const mz_explained *rows) {
    int told = 0;
    for (size_t i = 0; i < rows->n; i++)
        if (rows->rows[i].number > told)
            printf("  %2d  %s\n", ++told, rows->rows[i].is.rule);
}

static void print_text(const explanation *e, bool params) {
    const mz_explained_summary *s = &e->summary;
    cli_table(row_fields, e->n_fields, e->rows.rows, sizeof *e->rows.rows, e->rows.n, e->word);
    print_rules(&e->rows);
    if (params) {
        printf("\n");
        CLI_TABLE(param_fields, e->params.rows, e->params.n);
    }
    printf("\n%-11s %s\n", e->after->name, e->after->says);
    printf("parameters  %s (%zu tensors, %s elements)\n", s->param, s->params, mz_count_text((double)s->elements).text);
    if (s->low_copies > 0)
        printf("copies      %s (%zu of the parameters, cast once per optimizer step)\n", s->low_copy, s->low_copies);
    printf("masters    ");
    for (int m = 0, some = 0; m < MZ_MASTERS; m++)
        if (e->params.kept[m] > 0)
            printf("%s %s (%zu)", some++ > 0 ? "," : "", mezzo_master_name((mezzo_master)m), e->params.kept[m]);
    printf("\noptimizer  ");
    for (int kind = 0, some = 0; kind < MEZZO_OPTIMIZER_KINDS; kind++)
        if (e->params.updated[kind] > 0)
            printf("%s %s (%zu)", some++ > 0 ? "," : "", mezzo_optimizer_kind_name((mezzo_optimizer_kind)kind),
                   e->params.updated[kind]);
    printf("\n");
    cli_lines(summary_fields, MZ_COUNT(summary_fields), s, NULL, "", 12);
}

// --- one of several ranks ------------------------------------------------------------------------------------------
static const mz_row_field rank_fields[] = {
    {MZ_FIELD(mz_explained_ranks, ranks), "ranks"},
    {MZ_FIELD(mz_explained_ranks, buckets), "buckets"},
    {MZ_FIELD(mz_explained_ranks, masters), "masters_bytes"},
    {MZ_FIELD(mz_explained_ranks, copies), "copies_bytes"},
    {MZ_FIELD(mz_explained_ranks, gradients), "gradients_bytes"},
    {MZ_FIELD(mz_explained_ranks, forward), "gathers_forward"},
    {MZ_FIELD(mz_explained_ranks, backward), "gathers_backward"},
    {MZ_FIELD(mz_explained_ranks, gathered), "gathered_bytes"},
    {MZ_FIELD(mz_explained_ranks, exchanged), "exchanged_products"},
};

static void print_ranks(const mz_explained_ranks *r, const char *shard) {
    const double mib = 1.0 / (1 << 20);
    printf("one of %lld ranks, --shard %s: %.1f MiB of masters, %.1f of copies, %.1f of gradients, in %lld bucket%s\n",
           (long long)r->ranks, shard, (double)r->masters * mib, (double)r->copies * mib, (double)r->gradients * mib,
           (long long)r->buckets, r->buckets == 1 ? "" : "s");
    if (r->forward + r->backward > 0)
        printf("a micro batch gathers %lld buckets in forward and %lld in backward: %.1f MiB\n", (long long)r->forward,
               (long long)r->backward, (double)r->gathered * mib);
    if (r->exchanged > 0)
        printf("a micro batch exchanges rows with the owners of their experts in %lld products\n",
               (long long)r->exchanged);
}

static int print_json(const explanation *e, const char *model, mezzo_precision precision,
                      const mz_explained_ranks *ranks) {
    json_t *rows = json_array();
    for (size_t i = 0; i < e->rows.n; i++)
        json_array_append_new(rows, mz_fields_json(row_fields, e->n_fields, &e->rows.rows[i], e->word, NULL));
    json_t *all =
        json_pack("{ss ss ss so so so}", "model", model, "precision", mezzo_precision_name(precision), "after",
                  e->after->name, "rows", rows, "parameters", MZ_LIST(param_fields, e->params.rows, e->params.n),
                  "summary", MZ_OBJECT(summary_fields, &e->summary));
    if (ranks->ranks > 0)
        json_object_set_new(all, "ranks", MZ_OBJECT(rank_fields, ranks));
    return cli_json_print(all);
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

static int print_diff(const mz_explained *a, const mz_explained *b, const char *name_a, const char *name_b) {
    const mz_row_field fields[] = {
        {MZ_FIELD(difference, op), "op", "op"},
        {MZ_FIELD(difference, module), "module", "module"},
        {MZ_FIELD(difference, storage[0]), "storage_a"},
        {MZ_FIELD(difference, compute[0]), "compute_a"},
        {MZ_FIELD(difference, storage[1]), "storage_b"},
        {MZ_FIELD(difference, compute[1]), "compute_b"},
        {MZ_FIELD(difference, op), NULL, name_a, .text = left_text},
        {MZ_FIELD(difference, op), NULL, name_b, .text = right_text},
        {MZ_FIELD(difference, rule), "rule"},
        {MZ_FIELD(difference, number), NULL, "rule", "%.0f", .legend = "what decided"},
    };
    size_t at[2] = {0}, same = 0, n = 0;
    mz_explained_pair p;
    MZ_SCOPED(mz_free_at) difference *rows = NULL;
    CLI_DO(MZ_NEW(rows, a->n + 1));
    while (mz_explained_next_pair(a, b, at, &p))
        if (mz_explained_same(&p))
            same++;
        else
            rows[n++] = (difference){p.a->is.op,
                                     p.a->is.module,
                                     p.b->is.rule,
                                     p.b->number,
                                     {p.a->is.storage, p.b->is.storage},
                                     {p.a->is.compute, p.b->is.compute}};
    if (cli_has("json"))
        return cli_json_print(json_pack("{ss ss sI sI sI so}", "a", name_a, "b", name_b, "same", (json_int_t)same,
                                        "casts_a", (json_int_t)mz_explained_casts(a), "casts_b",
                                        (json_int_t)mz_explained_casts(b), "differ", MZ_LIST(fields, rows, n)));
    CLI_TABLE(fields, rows, n);
    if (n > 0)
        print_rules(b);
    cli_tell("\n%zu ops differ in what they store or what they compute in, %zu are the same; casts: %zu under %s, "
             "%zu under %s",
             n, same, mz_explained_casts(a), name_a, mz_explained_casts(b), name_b);
    return CLI_DONE;
}

// Compares the ops after autocast under each precision of --diff A,B.
static int diff(const mezzo_graph *graph, mezzo_program_options options) {
    const char *text = cli_text("diff", ""), *comma = strchr(text, ',');
    char names[2][16] = {"", ""};
    MZ_SCOPED(mz_explained_free) mz_explained first = {0};
    MZ_SCOPED(mz_explained_free) mz_explained second = {0};
    if (comma == NULL || (size_t)(comma - text) >= sizeof names[0] || strlen(comma + 1) >= sizeof names[1])
        return cli_wrong("--diff %s: name two precisions, such as fp32,bf16", text);
    snprintf(names[0], sizeof names[0], "%.*s", (int)(comma - text), text);
    snprintf(names[1], sizeof names[1], "%s", comma + 1);
    for (int i = 0; i < 2; i++) {
        if (mezzo_precision_parse(names[i], &options.precision) != MEZZO_OK || mz_precision(options.precision) == NULL)
            return cli_wrong("--diff %s: \"%s\" is none of %s", text, names[i], mz_precision_list());
        CLI_DO(mz_explained_collect(graph, &options, "autocast", i == 0 ? &first : &second));
    }
    return print_diff(&first, &second, names[0], names[1]);
}

// Writes the graph: Graphviz draws FILE.svg and FILE.png; a file of any other name gets the text.
static int write_dot(const mezzo_graph *passed) {
    const char *path = cli_out_file("dot", ""), *end = strrchr(path, '.');
    bool draws = end != NULL && (strcmp(end, ".svg") == 0 || strcmp(end, ".png") == 0);
    MZ_SCOPED(mz_text_free) mz_text text = {0};
    CLI_DO(mz_graph_dot(passed, &text));
    CLI_DO(draws ? mz_figure_graph(&text, path) : mz_file_write_atomic(path, text.data, text.len));
    if (strcmp(path, CLI_STDOUT) != 0)
        fprintf(stderr, draws ? "wrote %s\n" : "wrote %s: for a drawing, name a .svg or .png file\n",
                mz_show(path).text);
    return CLI_DONE;
}

// --- the command ---------------------------------------------------------------------------------------------------
// Holds the options of the command.
typedef struct question {
    const mz_pass *after;
    int64_t ranks; // 0: not given
    mz_run_config config;
    mz_session_options session;
    mezzo_graph *graph;   // as the model built it
    mezzo_device *device; // NULL: the answer does not depend on it
} question;

// Opens the question. "auto" depends on the machine: its device decides, and the reason is printed.
static mezzo_status open_question(const mezzo_config *config, question *q) {
    mezzo_program_options *options = &q->session.program;
    char reason[256];
    MEZZO_TRY(mz_run_config_read(config, &q->config));
    MEZZO_TRY(mz_run_config_sketch(&q->config, &q->session));
    q->session.form.outputs = q->after < mz_pass_find("chunk"); // logits that are kept are never divided into blocks
    MEZZO_TRY(mz_session_graph(&q->session, &q->session.form, &q->graph));
    const bool is_auto = mz_precision(options->precision) == NULL;
    if (is_auto || q->after->asks_device || q->ranks > 0)
        MEZZO_TRY(mezzo_device_open(q->config.device, 0, &q->device));
    if (!is_auto)
        return MEZZO_OK;
    MEZZO_TRY(mezzo_precision_resolve(q->device, MEZZO_PRECISION_AUTO, &options->precision, reason, sizeof reason));
    fprintf(stderr, "precision %s: %s\n", mezzo_precision_name(options->precision), reason);
    return MEZZO_OK;
}

static mezzo_status explain(const question *q, mz_explained_graph *passed, explanation *e, mz_explained_ranks *held) {
    const mezzo_program_options *options = &q->session.program;
    const mezzo_master master = mz_run_config_master(&q->config, options->precision);
    mz_session_options of_ranks = q->session;
    of_ranks.size = (int)q->ranks;
    const mz_cut cut = mz_session_cut(&of_ranks, 0);
    const mz_cut *cut_for = q->ranks > 0 ? &cut : NULL;
    MEZZO_TRY(mz_explained_open(q->after->asks_device ? q->device : NULL, q->graph, options, master, cut_for,
                                q->after->name, passed));
    MEZZO_TRY(mz_explained_read(passed, &e->rows));
    if (strcmp(q->after->name, "autocast") == 0) {
        mz_explained fused = {0};
        mezzo_status status = mz_explained_collect(q->graph, options, "fuse", &fused);
        if (status == MEZZO_OK)
            status = mz_explained_mark_fused(&e->rows, &fused);
        mz_explained_free(&fused);
        MEZZO_TRY(status);
    }
    MEZZO_TRY(mz_explained_summarize(q->graph, options, &e->summary));
    MEZZO_TRY(mz_explained_collect_params(q->graph, options, master, &e->params));
    mz_explained_add_optimizer(q->graph, &q->session.optimizer, &e->params);
    return cut_for != NULL ? mz_explain_ranks(q->device, q->graph, options, master, cut_for, held) : MEZZO_OK;
}

static int show(const mezzo_config *config, const question *q, const explanation *e, const mz_explained_ranks *held) {
    if (cli_has("diff"))
        return diff(q->graph, q->session.program);
    if (cli_has("json"))
        return print_json(e, q->config.model_name, q->session.program.precision, held);
    print_text(e, cli_has("params"));
    if (q->ranks > 0)
        print_ranks(held, cli_key(config, "ranks.shard"));
    return CLI_DONE;
}

static void free_explanation(explanation *e) {
    mz_explained_free(&e->rows);
    mz_explained_params_free(&e->params);
}

static int answer(const mezzo_config *config, question *q) {
    MZ_SCOPED(mz_explained_close) mz_explained_graph passed = {0};
    mz_explained_ranks held = {0};
    const bool asks = q->after->asks_device;
    MZ_SCOPED(free_explanation)
    explanation e = {.after = q->after,
                     .n_fields = MZ_COUNT(row_fields) - (asks ? 0 : DEVICE_FIELDS),
                     .word = strcmp(q->after->name, "autocast") == 0 ? "forward" : "with backward"};
    CLI_DO(open_question(config, q));
    CLI_DO(explain(q, &passed, &e, &held));
    if (cli_has("dot"))
        CLI_TRY(write_dot(passed.c.graph));
    const bool piped = strcmp(cli_out_file("dot", ""), CLI_STDOUT) == 0; // stdout then has the graph alone
    return piped ? CLI_DONE : show(config, q, &e, &held);
}

static void close_question(question *q) {
    mezzo_graph_free(q->graph);
    mezzo_device_close(q->device);
}

int cli_explain(void) {
    if (cli_has("toy")) {
        for (int i = 0; i < cli_line.n_given; i++)
            if (strcmp(cli_line.given[i].name, "toy") != 0 && strcmp(cli_line.given[i].name, "json") != 0)
                return cli_wrong("--toy does not take --%s", cli_line.given[i].typed);
        return cli_explain_toy();
    }
    const char *after = cli_text("after", "autocast");
    MZ_SCOPED(cli_free_config) mezzo_config *config = NULL;
    MZ_SCOPED(close_question) question q = {.after = mz_pass_find(after)};
    char names[160];
    if (q.after == NULL)
        return cli_wrong("--after %s: it must be one of %s", after, mz_pass_names(names, sizeof names));
    CLI_TRY(cli_integer("ranks", 2, 65536, 0, &q.ranks));
    CLI_TRY(cli_config(&config));
    return answer(config, &q);
}
