// Writes a verification's blocks and verdicts as text, JSON and Markdown.
#include "models/model.h"
#include "study/measure/verify.h"
#include "io/fields.h"

// A run's figures; a table has their means over the seeds, and '*' in a title is the model's unit.
enum { ACTIVATIONS = 3, ACCURACY = 6 };
static const mz_row_field figures[] = {
    {MZ_FIELD(mz_verify_run, seconds), "time_seconds", "time of the timed steps, s", "%.3f"},
    {MZ_FIELD(mz_verify_run, tokens_per_second), "tokens_per_second", "throughput, */s", "%.0f"},
    {MZ_FIELD(mz_verify_run, memory), "memory_mb", "peak memory, MiB", "%.1f", .factor = 1.0 / (1 << 20)},
    {MZ_FIELD(mz_verify_run, activations), "activations_mb", "  activations of it, MiB", "%.1f",
     .factor = 1.0 / (1 << 20)},
    {MZ_FIELD(mz_verify_run, train_loss), "train_loss", "training loss (last tenth)", "%.4f"},
    {MZ_FIELD(mz_verify_run, val_loss), "val_loss", "validation loss", "%.4f"},
    {MZ_FIELD(mz_verify_run, accuracy), "accuracy", "validation accuracy", "%.4f"},
    {MZ_FIELD(mz_verify_run, skipped), "skipped_steps", "skipped steps", "%.3g"},
    {MZ_FIELD(mz_verify_run, loss_scale), "final_loss_scale", "final loss scale", "%.6g"},
};

// Returns the mean over the seeds of one side.
static double mean_of(const mz_verify_result *r, int which, const mz_row_field *f) {
    double mean = 0;
    for (size_t i = 0; i < r->n; i++)
        mean += mz_field_number(f, &r->pairs[i].run[which]) / (double)r->n;
    return mean;
}

// Adds "1.93 (1.88 to 1.99)"; the value alone where there is no scatter.
static void add_measured(mz_text *t, const mz_measured *m, int digits, const char *unit) {
    mz_text_addf(t, "%.*f%s", digits, m->value, unit);
    if (m->interval.high > m->interval.low)
        mz_text_addf(t, " (%.*f to %.*f)", digits, m->interval.low, digits, m->interval.high);
}

static void add_scales(mz_text *t, const mz_verify_run *run) {
    if (run->n_changes == 0)
        mz_text_addf(t, "no loss scale");
    for (size_t i = 0; i < run->n_changes && i < 12; i++)
        mz_text_addf(t, "%s%g from step %lld", i > 0 ? ", " : "", run->changes[i].scale,
                     (long long)run->changes[i].step);
    if (run->n_changes > 12)
        mz_text_addf(t, ", … %zu changes in all", run->n_changes - 1);
}

static const char *sameness(const mz_verify_result *r) {
    return r->same ? "the same first weights and the same batches in both runs of each seed, bit for bit"
                   : "NOT the same first weights and batches: the runs cannot be compared";
}

static void add_head(const mz_verify_result *r, mz_text *t, const char *bullet) {
    const mezzo_model_config *m = &r->model;
    mz_model model;
    if (m->graph[0] != '\0')
        mz_text_addf(t, "%smodel: %s", bullet, mz_model_config_name(m));
    else if (mezzo_model_task(m) == MEZZO_TASK_LANGUAGE)
        mz_text_addf(t, "%smodel: %s, %lld layers, %lld heads, width %lld, context %lld, vocabulary %lld", bullet,
                     m->name, (long long)m->layers, (long long)m->heads, (long long)m->d_model, (long long)m->seq_len,
                     (long long)m->vocab);
    else
        mz_text_addf(t, "%smodel: %s, width %lld", bullet, m->name, (long long)m->d_model);
    mz_text_addf(t, ", %.2f M parameters\n", r->params_m);
    mz_text_addf(t, "%sdevice: %s\n", bullet, r->device);
    mz_text_addf(t, "%sprecision: %s (%s), residual stream %s\n", bullet, mezzo_precision_name(r->precision), r->reason,
                 r->residual == MEZZO_RESIDUAL_LOW ? "low" : "widest");
    if (r->emulate != MEZZO_BLOCKS_NONE)
        mz_text_addf(
            t, "%semulated: %s%s%s, in this run only; the times are those of the emulation, not of the format\n",
            bullet, mezzo_blocks_name(r->emulate), r->emulate_stochastic ? ", gradients rounded stochastically" : "",
            r->emulate_hadamard ? ", Hadamard transforms for weight gradients" : "");
    mz_text_addf(t, "%srun: %lld steps of %lld × ", bullet, (long long)r->steps, (long long)r->grad_accum);
    if (mezzo_model_task(m) == MEZZO_TASK_LANGUAGE && mz_model_of(m, &model) == MEZZO_OK)
        mz_text_addf(t, "%lld sequences of %lld tokens", (long long)r->batch,
                     (long long)mz_model_sizes_of(&model).length);
    else
        mz_text_addf(t, "%lld %s", (long long)r->batch, r->unit);
    mz_text_addf(t, ", %zu seed%s, %s\n", r->n, r->n == 1 ? "" : "s",
                 r->in_turns ? "the two runs of a seed alternating" : "the two runs of a seed one after the other");
    mz_text_addf(t, "%sdata: %s, %llu validation %s; %s\n", bullet, r->data, (unsigned long long)r->val_tokens, r->unit,
                 sameness(r));
}

// Adds a line for each figure: its title and both sides' means, in `form`.
static void add_figures(const mz_verify_result *r, const char *form, bool indents, mz_text *t) {
    for (size_t i = 0; i < MZ_COUNT(figures); i++) {
        const mz_row_field *f = &figures[i];
        const char *star = strchr(f->title, '*');
        char title[48], sides[2][32];
        if (r->by_loss && i == ACCURACY)
            continue;
        snprintf(title, sizeof title, "%.*s%s%s", star != NULL ? (int)(star - f->title) : 40, f->title,
                 star != NULL ? r->unit : "", star != NULL ? star + 1 : "");
        for (int which = 0; which < 2; which++)
            snprintf(sides[which], sizeof sides[which], f->form, mean_of(r, which, f));
        mz_text_addf(t, form, indents ? title : title + strspn(title, " "), sides[0], sides[1]);
    }
}

typedef struct verdict_row {
    const char *what, *unit;
    const mz_measured *m;
    int digits;
    char wanted[48];
    mz_verdict verdict;
} verdict_row;

static void verdict_rows(const mz_verify_options *o, const mz_verify_result *r, verdict_row rows[3]) {
    rows[0] = (verdict_row){.what = "speedup", .unit = "", .m = &r->speedup, .digits = 3, .verdict = r->speed};
    rows[1] = (verdict_row){
        .what = "memory reduction", .unit = " %", .m = &r->memory_percent, .digits = 2, .verdict = r->memory};
    rows[2] = (verdict_row){.what = r->by_loss ? "loss over fp32's, -1" : "accuracy difference",
                            .unit = "",
                            .m = &r->accuracy_difference,
                            .digits = 5,
                            .verdict = r->accuracy};
    snprintf(rows[0].wanted, sizeof rows[0].wanted, ">= %g", o->least_speedup);
    snprintf(rows[1].wanted, sizeof rows[1].wanted, ">= %g %%", o->least_memory_percent);
    snprintf(rows[2].wanted, sizeof rows[2].wanted, "within ±%g", o->most_accuracy_difference);
}

static void add_conclusion(const mz_verify_options *o, const mz_verify_result *r, mz_text *t) {
    bool open = r->speed == MZ_VERDICT_OPEN || r->memory == MZ_VERDICT_OPEN || r->accuracy == MZ_VERDICT_OPEN;
    mz_text_addf(t, "%s\n", mz_verify_passed(r) ? "All requirements are met." : "Not every requirement is met.");
    if (r->n == 1)
        mz_text_addf(t, "One seed gives no interval: another seed may give another verdict (--seeds 3).\n");
    else
        mz_text_addf(t, "Intervals: %g %%, Student's t over %zu seeds%s.\n", 100 * o->level, r->n,
                     open ? "; undecided: the interval contains the threshold; more seeds (--seeds) narrow it" : "");
}

void mz_verify_text(const mz_verify_options *o, const mz_verify_result *r, mz_text *t) {
    verdict_row verdicts[3];
    add_head(r, t, "");
    mz_text_addf(t, "\n%-28s %14s %14s\n", r->n > 1 ? "mean over the seeds" : "", "fp32",
                 mezzo_precision_name(r->precision));
    add_figures(r, "%-28s %14s %14s\n", true, t);
    mz_text_addf(t, "loss difference              ");
    add_measured(t, &r->loss_difference, 5, "");
    mz_text_addf(t, "\nloss scale                   ");
    add_scales(t, &r->pairs[0].run[1]);
    mz_text_addf(t, "\n\n");
    verdict_rows(o, r, verdicts);
    for (size_t i = 0; i < 3; i++) {
        mz_text m = {0};
        add_measured(&m, verdicts[i].m, verdicts[i].digits, verdicts[i].unit);
        mz_text_addf(t, "%-20s %-32s %-16s %s\n", verdicts[i].what, m.status == MEZZO_OK ? m.data : "",
                     verdicts[i].wanted, mz_verdict_word(verdicts[i].verdict));
        mz_text_free(&m);
    }
    add_conclusion(o, r, t);
}

// --- Markdown ------------------------------------------------------------------------------------------------------
static void add_seeds(const mz_verify_result *r, mz_text *t) {
    const char *p = mezzo_precision_name(r->precision);
    mz_text_addf(t, "\n## Seed by seed\n\n| seed | speedup | fp32 s | %s s | val loss fp32 | %s | ", p, p);
    if (!r->by_loss)
        mz_text_addf(t, "accuracy fp32 | %s | ", p);
    mz_text_addf(t, "skipped | batches, CRC32C |\n|---|---|---|---|---|---|---|---|%s\n", r->by_loss ? "" : "---|---|");
    for (size_t i = 0; i < r->n; i++) {
        const mz_verify_run *a = &r->pairs[i].run[0], *b = &r->pairs[i].run[1];
        mz_text_addf(t, "| %llu | %.3f | %.3f | %.3f | %.4f | %.4f | ", (unsigned long long)r->pairs[i].seed,
                     b->tokens_per_second / a->tokens_per_second, a->seconds, b->seconds, a->val_loss, b->val_loss);
        if (!r->by_loss)
            mz_text_addf(t, "%.4f | %.4f | ", a->accuracy, b->accuracy);
        mz_text_addf(t, "%lld | %08x, %08x |\n", (long long)b->skipped, a->data_crc, b->data_crc);
    }
}

void mz_verify_markdown(const mz_verify_options *o, const mz_verify_result *r, const char *command, mz_text *t) {
    verdict_row verdicts[3];
    const char *p = mezzo_precision_name(r->precision);
    mz_text_addf(t, "# fp32 against %s: %s\n\n", p,
                 mz_verify_passed(r) ? "every requirement is met" : "not every requirement is met");
    add_head(r, t, "- ");
    mz_text_addf(t, "- command: `%s`\n\n## Verdicts\n\n| | measured | required | |\n|---|---|---|---|\n", command);
    verdict_rows(o, r, verdicts);
    for (size_t i = 0; i < 3; i++) {
        mz_text_addf(t, "| %s | ", verdicts[i].what);
        add_measured(t, verdicts[i].m, verdicts[i].digits, verdicts[i].unit);
        mz_text_addf(t, " | %s | **%s** |\n", verdicts[i].wanted, mz_verdict_word(verdicts[i].verdict));
    }
    mz_text_addf(t, "\n");
    add_conclusion(o, r, t);
    mz_text_addf(t, "\n## Measured\n\n| %s | fp32 | %s |\n|---|---|---|\n", r->n > 1 ? "mean over the seeds" : "", p);
    add_figures(r, "| %s | %s | %s |\n", false, t);
    mz_text_addf(t, "\nDifference of the validation losses: ");
    add_measured(t, &r->loss_difference, 5, "");
    mz_text_addf(t, ". Loss scale of seed %llu: ", (unsigned long long)r->pairs[0].seed);
    add_scales(t, &r->pairs[0].run[1]);
    mz_text_addf(t,
                 ".\n\nThe first %lld steps are not timed. Memory is the peak of training as planned and allocated: "
                 "weights, gradients, low-precision copies, optimizer, activations, workspace, inputs. %s\n",
                 (long long)r->warmup,
                 r->by_loss ? "No right answers can be counted here: the requirement applies to the validation loss "
                              "divided by fp32's, minus 1."
                            : "Accuracy is the share of right answers, in the precision of the training.");
    add_seeds(r, t);
}

// --- JSON ----------------------------------------------------------------------------------------------------------
static json_t *interval(const mz_measured *m, size_t n) {
    return n > 1 ? mz_json_interval(m->interval.low, m->interval.high) : json_null();
}

json_t *mz_measured_json(const mz_measured *m, size_t n) {
    return json_pack("{s:o, s:o}", "value", mz_json_number(m->value), "interval", interval(m, n));
}

static json_t *verdict(mz_verdict v) { // null: undecided
    return v == MZ_VERDICT_OPEN ? json_null() : json_boolean(v == MZ_VERDICT_MET);
}

static json_t *run_json(const mz_verify_run *run) {
    json_t *changes = json_array();
    char crc[2][16];
    snprintf(crc[0], sizeof crc[0], "%08x", run->data_crc);
    snprintf(crc[1], sizeof crc[1], "%08x", run->weights_crc);
    for (size_t i = 0; i < run->n_changes; i++)
        json_array_append_new(
            changes, json_pack("[I, o]", (json_int_t)run->changes[i].step, mz_json_number(run->changes[i].scale)));
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:o, s:s, s:s}", "seconds",
                     mz_json_number(run->seconds), "tokens_per_second", mz_json_number(run->tokens_per_second),
                     "train_loss", mz_json_number(run->train_loss), "val_loss", mz_json_number(run->val_loss),
                     "accuracy", mz_json_number(run->accuracy), "memory_bytes", (json_int_t)run->memory,
                     "activation_bytes", (json_int_t)run->activations, "skipped_steps", (json_int_t)run->skipped,
                     "loss_scale", mz_json_number(run->loss_scale), "loss_scale_from_step", changes, "data_crc32c",
                     crc[0], "weights_crc32c", crc[1]);
}

static void add_side(json_t *o, const mz_verify_result *r, int which, const char *prefix) {
    for (size_t i = 0; i < MZ_COUNT(figures); i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_%s", prefix, figures[i].key);
        json_object_set_new(o, key, mz_json_number(mean_of(r, which, &figures[i])));
    }
}

json_t *mz_verify_json(const mz_verify_options *o, const mz_verify_result *r) {
    json_t *root = json_object(), *seeds = json_array();
    json_object_set_new(root, "speedup", mz_json_number(r->speedup.value));
    json_object_set_new(root, "speedup_interval", interval(&r->speedup, r->n));
    json_object_set_new(root, "memory_reduction_percent", mz_json_number(r->memory_percent.value));
    json_object_set_new(
        root, "activation_reduction_percent",
        mz_json_number(100 * (1 - mean_of(r, 1, &figures[ACTIVATIONS]) / mean_of(r, 0, &figures[ACTIVATIONS]))));
    const char *judged = r->by_loss ? "relative_loss_difference" : "accuracy_difference";
    const char *its_interval = r->by_loss ? "relative_loss_difference_interval" : "accuracy_difference_interval";
    json_object_set_new(root, judged, mz_json_number(r->accuracy_difference.value));
    json_object_set_new(root, its_interval, interval(&r->accuracy_difference, r->n));
    json_object_set_new(root, "loss_difference", mz_json_number(r->loss_difference.value));
    json_object_set_new(root, "loss_difference_interval", interval(&r->loss_difference, r->n));
    add_side(root, r, 0, "fp32");
    add_side(root, r, 1, "amp");
    json_object_set_new(root, "requirements_met",
                        json_pack("{s:o, s:o, s:o, s:b, s:b}", "speedup", verdict(r->speed), "memory_reduction",
                                  verdict(r->memory), "accuracy", verdict(r->accuracy), "same_data_and_weights",
                                  r->same, "all", mz_verify_passed(r)));
    json_object_set_new(root, "requirements",
                        json_pack("{s:f, s:f, s:f}", "speedup", o->least_speedup, "memory_reduction_percent",
                                  o->least_memory_percent, "accuracy_difference", o->most_accuracy_difference));
    json_object_set_new(root, "precision", json_string(mezzo_precision_name(r->precision)));
    json_object_set_new(root, "emulate", json_string(mezzo_blocks_name(r->emulate)));
    json_object_set_new(root, "device", json_string(r->device));
    json_object_set_new(root, "model", json_string(mz_model_config_name(&r->model)));
    json_object_set_new(root, "params_m", mz_json_number(r->params_m));
    json_object_set_new(root, "steps", json_integer(r->steps));
    json_object_set_new(root, "warmup_steps", json_integer(r->warmup));
    json_object_set_new(root, "batch_size", json_integer(r->batch));
    json_object_set_new(root, "grad_accum", json_integer(r->grad_accum));
    json_object_set_new(root, "context_length", json_integer(r->model.seq_len));
    json_object_set_new(root, "interval_level", mz_json_number(o->level));
    json_object_set_new(root, "unit", json_string(r->unit));
    json_object_set_new(root, "validation_tokens", json_integer((json_int_t)r->val_tokens));
    for (size_t i = 0; i < r->n; i++)
        json_array_append_new(seeds, json_pack("{s:I, s:o, s:o}", "seed", (json_int_t)r->pairs[i].seed, "fp32",
                                               run_json(&r->pairs[i].run[0]), "amp", run_json(&r->pairs[i].run[1])));
    if (json_object_set_new(root, "seeds", seeds) != 0) {
        json_decref(root);
        return NULL;
    }
    return root;
}
