// mezzo explain prints every op's dtypes under a precision, and the rule that decided them, without running the model.
#include "base/precision.h"
#include "cli.h"
#include "io/file.h"
#include "optim/ranks.h"
#include "study/analyse/figures.h"
#include "study/measure/explained.h"
#include "train/config.h"

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
    mz_text told = {0};
    json_t *result = NULL;
    CLI_DO(mz_explained_diff(&first, &second, names[0], names[1], cli_terminal_columns(stdout), &told,
                             cli_has("json") ? &result : NULL));
    return cli_has("json") ? cli_json_print(result) : cli_print_made(&told);
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

static mezzo_status explain(const question *q, mz_explained_graph *passed, mz_explanation *e) {
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
    return cut_for != NULL ? mz_explain_ranks(q->device, q->graph, options, master, cut_for, &e->ranks) : MEZZO_OK;
}

static int show(const mezzo_config *config, const question *q, const mz_explanation *e) {
    if (cli_has("diff"))
        return diff(q->graph, q->session.program);
    return CLI_SHOW(mz_explanation_json(e, q->config.model_name, q->session.program.precision), mz_explanation_text, e,
                    cli_has("params"), cli_key(config, "ranks.shard"), cli_terminal_columns(stdout));
}

static void free_explanation(mz_explanation *e) {
    mz_explained_free(&e->rows);
    mz_explained_params_free(&e->params);
}

static int answer(const mezzo_config *config, question *q) {
    MZ_SCOPED(mz_explained_close) mz_explained_graph passed = {0};
    MZ_SCOPED(free_explanation) mz_explanation e = {.after = q->after};
    CLI_DO(open_question(config, q));
    CLI_DO(explain(q, &passed, &e));
    if (cli_has("dot"))
        CLI_TRY(write_dot(passed.c.graph));
    const bool piped = strcmp(cli_out_file("dot", ""), CLI_STDOUT) == 0; // stdout then has the graph alone
    return piped ? CLI_DONE : show(config, q, &e);
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
