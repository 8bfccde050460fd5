#include "study/measure/explained.h"

#include <math.h>
#include <stdlib.h>

#include "base/scope.h"
#include "runtime/passes.h"

// --- the graph ------------------------------------------------------------------------------------
mezzo_status mz_explained_open(mezzo_device *device, const mezzo_graph *g, const mezzo_program_options *options,
                               mezzo_master master, const mz_cut *cut, const char *after, mz_explained_graph *out) {
    *out = (mz_explained_graph){.c.sketch = true};
    if (device == NULL)
        return mz_passes(g, &(mz_target){.options = options}, after, &out->c.graph);
    MEZZO_TRY(mz_params_sketch(device, g, options, master, cut, &out->params));
    return mz_passes(g, &(mz_target){options, device, out->params, &out->c}, after, &out->c.graph);
}

void mz_explained_close(mz_explained_graph *g) {
    mz_compiled_free(&g->c);
    mezzo_params_free(g->params);
    g->params = NULL;
}

// --- ops -----------------------------------------------------------------------------------------
void mz_explained_free(mz_explained *t) {
    for (size_t i = 0; i < t->n; i++)
        mz_free(t->rows[i].text);
    mz_free(t->rows);
    *t = (mz_explained){0};
}

// Copies strings one after another into one block, which *out owns; each of them then points into it.
static mezzo_status keep_strings(const char **strings[], size_t n, char **out) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += strlen(*strings[i]) + 1;
    char *to = *out = mz_alloc(bytes, 1);
    if (to == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < n; i++) {
        const size_t size = strlen(*strings[i]) + 1;
        *strings[i] = memcpy(to, *strings[i], size);
        to += size;
    }
    return MEZZO_OK;
}

static int number_of_rule(mz_explained *t, const char *rule) {
    for (size_t i = t->n; i-- > 0;) // the newest row of a rule is often one layer back
        if (strcmp(t->rows[i].is.rule, rule) == 0)
            return t->rows[i].number;
    return ++t->rules;
}

static void keep(void *user, const mezzo_explain_row *from) {
    mz_explained *t = user;
    if (t->status == MEZZO_OK)
        t->status = MZ_RESERVE(t->rows, t->cap, t->n + 1);
    if (t->status != MEZZO_OK)
        return;
    const int number = number_of_rule(t, from->rule);
    mz_explained_row *r = &t->rows[t->n++];
    *r = (mz_explained_row){
        .is = *from, .fused = "", .kernel = "-", .stream = NAN, .at = NAN, .bytes = NAN, .number = number};
    r->is.output = from->output != NULL ? from->output : "";
    const char **strings[] = {&r->is.op,     &r->is.module, &r->is.output, &r->is.phase,
                              &r->is.inputs, &r->is.shape,  &r->is.rule};
    t->status = keep_strings(strings, MZ_COUNT(strings), &r->text);
}

static void add_places(const mz_compiled *c, mz_explained *t) {
    for (size_t i = 0; i < t->n && c->placed.stream != NULL; i++)
        t->rows[i].stream = c->placed.stream[i];
    for (size_t i = 0; i < c->n_calls; i++)
        t->rows[c->node[i]].kernel = c->prepared[i].kernel->name;
    for (size_t i = 0; i < t->n && c->plan.offset != NULL; i++) {
        const int out = mz_main_output(&c->graph->nodes[i]);
        if (out < 0 || c->plan.offset[out] == SIZE_MAX)
            continue;
        const mz_tensor stored = mz_value_tensor(c->graph, out);
        t->rows[i].at = (double)c->plan.offset[out];
        t->rows[i].bytes = (double)mz_tensor_bytes_stored(&stored);
    }
}

mezzo_status mz_explained_read(const mz_explained_graph *g, mz_explained *t) {
    mz_graph_explain(g->c.graph, keep, t);
    if (t->status == MEZZO_OK)
        add_places(&g->c, t);
    return t->status;
}

mezzo_status mz_explained_collect(const mezzo_graph *g, const mezzo_program_options *options, const char *after,
                                  mz_explained *t) {
    mz_explained_graph passed;
    mezzo_status status = mz_explained_open(NULL, g, options, MEZZO_MASTER_FP32, NULL, after, &passed);
    if (status == MEZZO_OK)
        status = mz_explained_read(&passed, t);
    mz_explained_close(&passed);
    return status;
}

static bool is_cast(const mz_explained_row *r) {
    return strcmp(r->is.op, "cast") == 0 || strncmp(r->is.op, "quantize", 8) == 0;
}

// Compares ops. The k-th op of a name in a module stays the k-th through the fuse pass, if it stays at all; what it
// fused with follows its name: "linear+relu". No pass changes a cast's result.
static int compare_ops(const mz_explained_row *a, const mz_explained_row *b) {
    const size_t n = strcspn(a->is.op, "+"), m = strcspn(b->is.op, "+");
    int order = strcmp(a->is.module, b->is.module);
    if (order == 0)
        order = strcmp(a->is.phase, b->is.phase);
    if (order == 0)
        order = strncmp(a->is.op, b->is.op, n < m ? n : m);
    if (order == 0)
        order = (n > m) - (n < m);
    if (order == 0 && is_cast(a))
        order = (a->is.storage > b->is.storage) - (a->is.storage < b->is.storage);
    return order == 0 && is_cast(a) ? strcmp(a->is.shape, b->is.shape) : order;
}

static int by_op(const void *a, const void *b) {
    const mz_explained_row *x = *(mz_explained_row *const *)a, *y = *(mz_explained_row *const *)b;
    const int order = compare_ops(x, y);
    return order != 0 ? order : (x > y) - (x < y); // both are in one table
}

static mezzo_status sort_by_op(const mz_explained *t, mz_explained_row ***out) {
    *out = mz_alloc(t->n + 1, sizeof **out);
    if (*out == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < t->n; i++)
        (*out)[i] = &t->rows[i];
    qsort(*out, t->n, sizeof **out, by_op);
    return MEZZO_OK;
}

mezzo_status mz_explained_mark_fused(mz_explained *plain, const mz_explained *fused) {
    MZ_SCOPED(mz_free_at) mz_explained_row **all = NULL, **left = NULL;
    MEZZO_TRY(sort_by_op(plain, &all));
    MEZZO_TRY(sort_by_op(fused, &left));
    for (size_t i = 0, k = 0; i < plain->n;) {
        const int order = k < fused->n ? compare_ops(all[i], left[k]) : -1;
        if (order <= 0)
            all[i++]->fused = order == 0 ? mezzo_dtype_name(left[k]->is.storage) : "folded";
        k += order >= 0;
    }
    return MEZZO_OK;
}

// --- two precisions side by side -----------------------------------------------------------------
bool mz_explained_same(const mz_explained_pair *p) {
    const mz_explained_row *a = p->a, *b = p->b;
    return a->is.storage == b->is.storage && a->is.compute == b->is.compute && a->is.reduce == b->is.reduce &&
           a->is.operand == b->is.operand && a->is.gradient == b->is.gradient && strcmp(a->is.scale, b->is.scale) == 0;
}

static const mz_explained_row *next_op(const mz_explained *t, size_t *i) {
    while (*i < t->n && is_cast(&t->rows[*i]))
        ++*i;
    return *i < t->n ? &t->rows[(*i)++] : NULL;
}

bool mz_explained_next_pair(const mz_explained *a, const mz_explained *b, size_t at[2], mz_explained_pair *out) {
    out->a = next_op(a, &at[0]);
    out->b = out->a != NULL ? next_op(b, &at[1]) : NULL;
    return out->b != NULL;
}

size_t mz_explained_casts(const mz_explained *t) {
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        n += is_cast(&t->rows[i]);
    return n;
}

// --- parameters ----------------------------------------------------------------------------------
void mz_explained_params_free(mz_explained_params *t) {
    for (size_t i = 0; i < t->n; i++)
        mz_free(t->rows[i].text);
    mz_free(t->rows);
    *t = (mz_explained_params){0};
}

static void keep_param(void *user, const mezzo_explain_param *from) {
    mz_explained_params *t = user;
    if (t->status == MEZZO_OK)
        t->status = MZ_RESERVE(t->rows, t->cap, t->n + 1);
    if (t->status != MEZZO_OK)
        return;
    mz_explained_param *r = &t->rows[t->n++];
    *r = (mz_explained_param){.is = *from, .update = "-"};
    const char **strings[] = {&r->is.name, &r->is.shape};
    t->kept[r->is.master]++;
    t->status = keep_strings(strings, MZ_COUNT(strings), &r->text);
}

mezzo_status mz_explained_collect_params(const mezzo_graph *g, const mezzo_program_options *options,
                                         mezzo_master master, mz_explained_params *t) {
    MEZZO_TRY(mezzo_graph_explain_params(g, options, master, keep_param, t));
    return t->status;
}

void mz_explained_add_optimizer(const mezzo_graph *g, const mezzo_optimizer_options *o, mz_explained_params *t) {
    for (size_t i = 0; i < t->n && i < g->n_params; i++) {
        const mz_param_spec *spec = &g->params[i];
        const int group = mz_optimizer_group_for(o, spec->name, spec->shape.rank);
        const mezzo_optimizer_options *by = group < o->n_groups ? &o->groups[group] : o;
        if (spec->frozen)
            continue;
        t->rows[i].update = mezzo_optimizer_kind_name(by->kind);
        t->rows[i].lr_factor = by == o ? 1 : by->lr_factor;
        t->updated[by->kind]++;
    }
}

// --- the summary ---------------------------------------------------------------------------------
static void note(const char **name, mezzo_dtype dtype) {
    const char *now = mezzo_dtype_name(dtype);
    *name = strcmp(*name, "-") == 0 || strcmp(*name, now) == 0 ? now : "mixed";
}

mezzo_status mz_explained_summarize(const mezzo_graph *g, const mezzo_program_options *options,
                                    mz_explained_summary *s) {
    *s = (mz_explained_summary){.param = "-", .low_copy = "-", .gradient = "-", .logits = "-", .loss = "-"};
    mezzo_graph *after = NULL;
    MEZZO_TRY(mz_passes(g, &(mz_target){.options = options}, "autodiff", &after));
    for (size_t i = 0; i < after->n_values; i++) {
        const mz_value *v = &after->values[i];
        if (v->kind == MZ_VALUE_PARAM) {
            s->params++;
            s->elements += mz_shape_count(&v->shape);
            note(&s->param, v->dtype);
        } else if (v->kind == MZ_VALUE_LOW_COPY) {
            s->low_copies++;
            note(&s->low_copy, v->dtype);
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

// --- one of several ranks ------------------------------------------------------------------------
static void count_gathers(const mezzo_graph *g, const mezzo_params *params, mz_explained_ranks *out) {
    for (size_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == MZ_VALUE_LOW_COPY)
            out->copies = (size_t)params->low_copy_elements * mezzo_dtype_size(g->values[i].dtype);
    for (size_t i = 0; i < g->n_nodes; i++) {
        const mz_node *n = &g->nodes[i];
        out->exchanged += n->exchanges > 0 && n->op != MZ_OP_quantize;
        if (n->gathers == 0)
            continue;
        const mz_value *v = &g->values[n->out[0]];
        *(n->phase == MZ_FORWARD ? &out->forward : &out->backward) += 1;
        out->gathered += (size_t)mz_shape_count(&v->shape) * mezzo_dtype_size(v->dtype);
    }
}

mezzo_status mz_explain_ranks(mezzo_device *device, const mezzo_graph *g, const mezzo_program_options *options,
                              mezzo_master master, const mz_cut *cut, mz_explained_ranks *out) {
    mz_explained_graph run;
    mezzo_status status = mz_explained_open(device, g, options, master, cut, "gather", &run);
    const mezzo_params *params = run.params;
    if (status == MEZZO_OK) {
        *out = (mz_explained_ranks){.ranks = cut->ranks,
                                    .buckets = params->n_regions,
                                    .masters = params->master_bytes,
                                    .gradients = (size_t)params->grad_elements * sizeof(float)};
        count_gathers(run.c.graph, params, out);
    }
    mz_explained_close(&run);
    return status;
}
