// mezzo explain --toy answers a question of Stanford's CS336 for every precision: which dtype does each tensor of a
// small model have?
#include "base/precision.h"
#include "cli.h"
#include "session/session.h"
#include "study/measure/explained.h"

enum { ANSWERS = 7 };

static const char *const questions[ANSWERS] = {
    "the parameters", "the first layer's output", "the layer norm's output", "the logits", "the loss",
    "the gradients",  "the layer norm's sums",
};

typedef struct answers {
    const char *cell[ANSWERS];
    char rule[ANSWERS][96];
} answers;

static void read_row(void *user, const mezzo_explain_row *r) {
    answers *a = user;
    int at = strcmp(r->op, "cast") == 0            ? -1
             : strcmp(r->module, "fc1") == 0       ? 1
             : strcmp(r->module, "ln") == 0        ? 2
             : strcmp(r->module, "fc2") == 0       ? 3
             : strcmp(r->op, "cross_entropy") == 0 ? 4
                                                   : -1;
    if (at < 0)
        return;
    a->cell[at] = mezzo_dtype_name(r->storage);
    snprintf(a->rule[at], sizeof a->rule[at], "%s", r->rule);
    if (at == 2)
        a->cell[6] = mezzo_dtype_name(r->reduce);
}

static mezzo_status answer(const mezzo_graph *g, mezzo_precision precision, answers *a) {
    const mezzo_program_options options = {.precision = precision};
    mz_explained_summary summary;
    *a = (answers){.cell = {"-", "-", "-", "-", "-", "-", "-"}};
    MEZZO_TRY(mezzo_graph_explain(g, &options, "autocast", read_row, a));
    MEZZO_TRY(mz_explained_summarize(g, &options, &summary));
    a->cell[0] = summary.param;
    a->cell[5] = summary.gradient;
    snprintf(a->rule[0], sizeof a->rule[0], "autocast casts copies, never the parameters");
    snprintf(a->rule[5], sizeof a->rule[5], "the gradient of a cast is a cast: as the parameters");
    snprintf(a->rule[6], sizeof a->rule[6], "statistics are fp32 in every precision");
    return MEZZO_OK;
}

int cli_explain_toy(void) {
    mezzo_model_config model;
    mz_session_options session;
    MZ_SCOPED(mz_graph_free_at) mezzo_graph *g = NULL;
    mezzo_precision precisions[MEZZO_PRECISION_COUNT];
    answers all[MEZZO_PRECISION_COUNT];
    int n = mz_precision_common(precisions);
    CLI_DO(mezzo_model_defaults("toy", &model));
    CLI_DO(mz_session_usual(&model, 4, &session));
    CLI_DO(mz_session_graph(&session, &session.form, &g));
    for (int p = 0; p < n; p++)
        CLI_DO(answer(g, precisions[p], &all[p]));
    if (cli_has("json")) {
        json_t *o = json_object();
        for (int p = 0; p < n; p++) {
            json_t *column = json_object();
            for (int i = 0; i < ANSWERS; i++)
                json_object_set_new(column, questions[i], json_string(all[p].cell[i]));
            json_object_set_new(o, mezzo_precision_name(precisions[p]), column);
        }
        return cli_json_print(o);
    }
    CLI_TELL("a linear layer 5 -> 10, ReLU, a layer norm, a linear layer 10 -> 3, cross-entropy");
    printf("\n");
    for (int i = -1; i < ANSWERS; i++) { // -1: the titles
        printf("%-26s", i < 0 ? "" : questions[i]);
        for (int p = 0; p < n; p++)
            printf(" %-*s", p + 1 < n ? 6 : 0, i < 0 ? mezzo_precision_name(precisions[p]) : all[p].cell[i]);
        printf("\n");
    }
    printf("\nrules under %s\n", mezzo_precision_name(precisions[n - 1]));
    for (int i = 0; i < ANSWERS; i++)
        printf("  %-25s %s\n", questions[i], all[n - 1].rule[i]);
    printf("\n");
    CLI_TELL("The table shows autocast's decisions, the same as torch.amp's. Products run in the low format and "
             "accumulate in fp32; casts give the norm and the loss fp32 inputs. When the model runs, each cast is "
             "folded into the op before it: mezzo explain --model toy shows both.");
    return CLI_DONE;
}
