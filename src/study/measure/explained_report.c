// Writes what `mezzo explain` shows as text and JSON.
#include "io/fields.h"
#include "study/measure/explained.h"

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

static void add_rules(const mz_explained *rows, mz_text *t) {
    int told = 0;
    for (size_t i = 0; i < rows->n; i++)
        if (rows->rows[i].number > told)
            mz_text_addf(t, "  %2d  %s\n", ++told, rows->rows[i].is.rule);
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

static void add_ranks(const mz_explained_ranks *r, const char *shard, mz_text *t) {
    const double mib = 1.0 / (1 << 20);
    mz_text_addf(
        t, "one of %lld ranks, --shard %s: %.1f MiB of masters, %.1f of copies, %.1f of gradients, in %lld bucket%s\n",
        (long long)r->ranks, shard, (double)r->masters * mib, (double)r->copies * mib, (double)r->gradients * mib,
        (long long)r->buckets, r->buckets == 1 ? "" : "s");
    if (r->forward + r->backward > 0)
        mz_text_addf(t, "a micro batch gathers %lld buckets in forward and %lld in backward: %.1f MiB\n",
                     (long long)r->forward, (long long)r->backward, (double)r->gathered * mib);
    if (r->exchanged > 0)
        mz_text_addf(t, "a micro batch exchanges rows with the owners of their experts in %lld products\n",
                     (long long)r->exchanged);
}

// --- one graph -----------------------------------------------------------------------------------------------------
static size_t fields_of(const mz_explanation *e) {
    return MZ_COUNT(row_fields) - (e->after->asks_device ? 0 : DEVICE_FIELDS);
}

// Returns the word with which `only` of row_fields is compared.
static const char *word_of(const mz_explanation *e) {
    return strcmp(e->after->name, "autocast") == 0 ? "forward" : "with backward";
}

void mz_explanation_text(const mz_explanation *e, bool params, const char *shard, int columns, mz_text *t) {
    const mz_explained_summary *s = &e->summary;
    mz_fields_table(row_fields, fields_of(e), e->rows.rows, sizeof *e->rows.rows, e->rows.n, word_of(e), columns, t);
    add_rules(&e->rows, t);
    if (params) {
        mz_text_addf(t, "\n");
        MZ_TABLE(param_fields, e->params.rows, e->params.n, columns, t);
    }
    mz_text_addf(t, "\n%-11s %s\n", e->after->name, e->after->says);
    mz_text_addf(t, "parameters  %s (%zu tensors, %s elements)\n", s->param, s->params,
                 mz_count_text((double)s->elements).text);
    if (s->low_copies > 0)
        mz_text_addf(t, "copies      %s (%zu of the parameters, cast once per optimizer step)\n", s->low_copy,
                     s->low_copies);
    mz_text_addf(t, "masters    ");
    for (int m = 0, some = 0; m < MZ_MASTERS; m++)
        if (e->params.kept[m] > 0)
            mz_text_addf(t, "%s %s (%zu)", some++ > 0 ? "," : "", mezzo_master_name((mezzo_master)m),
                         e->params.kept[m]);
    mz_text_addf(t, "\noptimizer  ");
    for (int kind = 0, some = 0; kind < MEZZO_OPTIMIZER_KINDS; kind++)
        if (e->params.updated[kind] > 0)
            mz_text_addf(t, "%s %s (%zu)", some++ > 0 ? "," : "", mezzo_optimizer_kind_name((mezzo_optimizer_kind)kind),
                         e->params.updated[kind]);
    mz_text_addf(t, "\n");
    mz_fields_lines(summary_fields, MZ_COUNT(summary_fields), s, NULL, "", 12, t);
    if (e->ranks.ranks > 0)
        add_ranks(&e->ranks, shard, t);
}

json_t *mz_explanation_json(const mz_explanation *e, const char *model, mezzo_precision precision) {
    json_t *all = json_pack(
        "{ss ss ss so so so}", "model", model, "precision", mezzo_precision_name(precision), "after", e->after->name,
        "rows", mz_fields_list(row_fields, fields_of(e), e->rows.rows, sizeof *e->rows.rows, e->rows.n, word_of(e)),
        "parameters", MZ_LIST(param_fields, e->params.rows, e->params.n), "summary",
        MZ_OBJECT(summary_fields, &e->summary));
    if (e->ranks.ranks > 0)
        json_object_set_new(all, "ranks", MZ_OBJECT(rank_fields, &e->ranks));
    return all;
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

mezzo_status mz_explained_diff(const mz_explained *a, const mz_explained *b, const char *name_a, const char *name_b,
                               int columns, mz_text *t, json_t **json) {
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
    MEZZO_TRY(MZ_NEW(rows, a->n + 1));
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
    if (json != NULL) {
        *json = json_pack("{ss ss sI sI sI so}", "a", name_a, "b", name_b, "same", (json_int_t)same, "casts_a",
                          (json_int_t)mz_explained_casts(a), "casts_b", (json_int_t)mz_explained_casts(b), "differ",
                          MZ_LIST(fields, rows, n));
        return MEZZO_OK;
    }
    MZ_TABLE(fields, rows, n, columns, t);
    if (n > 0)
        add_rules(b, t);
    mz_text_tell(t,
                 "\n%zu ops differ in what they store or what they compute in, %zu are the same; casts: %zu under %s, "
                 "%zu under %s",
                 n, same, mz_explained_casts(a), name_a, mz_explained_casts(b), name_b);
    return t->status;
}
