#include "train/counterfactual.h"

#include <math.h>

#include "base/scope.h"
#include "runtime/calls.h"

// --- choosing ----------------------------------------------------------------------------------------------------
typedef enum operand { OF_X, OF_W, OF_DY } operand;

static bool is_experts(mz_op op) {
    return op == MZ_OP_grouped_linear || op == MZ_OP_grouped_linear_dx || op == MZ_OP_grouped_linear_dw;
}

static bool is_dw(mz_op op) {
    return op == MZ_OP_linear_dw || op == MZ_OP_grouped_linear_dw;
}

// Returns whether the op is a linear product; its first two inputs are its operands.
static bool is_product(mz_op op) {
    return is_experts(op) || is_dw(op) || op == MZ_OP_linear || op == MZ_OP_linear_dx;
}

static operand operand_of(mz_op op, int slot) {
    if (slot == 0)
        return op == MZ_OP_linear || op == MZ_OP_grouped_linear ? OF_X : OF_DY;
    return is_dw(op) ? OF_X : OF_W;
}

static const mz_node *node_of(const mezzo_program *p, size_t call) {
    return &p->c.graph->nodes[p->c.node[call]];
}

// Returns whether a module already measures the same numbers: scales of a tensor and of square tiles do not depend on
// the direction.
static bool is_repeated(const mz_counterfactual *c, const mezzo_program *p, const mz_counterfactual_item *item) {
    if (item->how.blocks != MEZZO_BLOCKS_NONE ||
        mz_scalings[item->how.scaling].rows != mz_scalings[item->how.scaling].columns)
        return false;
    const mz_node *node = node_of(p, item->call);
    for (size_t i = 0; i < c->n; i++) {
        const mz_node *other = node_of(p, c->items[i].call);
        if (c->items[i].format == item->format && other->module == node->module &&
            mz_value_root(p->c.graph, other->in[c->items[i].slot]) == mz_value_root(p->c.graph, node->in[item->slot]))
            return true;
    }
    return false;
}

// Returns the parameter that an operand is a whole copy of; -1: none.
static int parameter_of(const mezzo_program *p, int value) {
    const mz_value *v = &p->c.graph->values[mz_value_root(p->c.graph, value)];
    const bool copies = v->kind == MZ_VALUE_PARAM || v->kind == MZ_VALUE_LOW_COPY;
    return copies && p->params->list[v->param].count == mz_shape_count(&p->c.graph->values[value].shape) ? v->param
                                                                                                         : -1;
}

static mezzo_status add_item(mz_counterfactual *c, const mezzo_program *p, size_t call, int slot, int format) {
    const mz_rounding_format *f = &c->formats[format];
    const mz_op op = p->c.calls[call].op;
    const operand of = operand_of(op, slot);
    mz_counterfactual_item item = {.call = call, .slot = slot, .format = format, .master = -1};
    if (is_experts(op) && (f->precision == NULL || mz_scaling_in_blocks(f->precision->scaling)))
        return MEZZO_OK; // experts' operands have one scale or none
    item.columnwise = is_dw(op) || (of == OF_W && op != MZ_OP_linear);
    item.how.blocks = f->blocks;
    item.via = p->c.calls[call].numerics.compute;
    if (f->precision != NULL) {
        item.how.dtype = of == OF_DY ? f->precision->gradient : f->precision->operand;
        item.how.scaling = of == OF_W ? mz_scalings[f->precision->scaling].weight : f->precision->scaling;
        item.master = of == OF_W ? parameter_of(p, node_of(p, call)->in[slot]) : -1;
        item.via = item.master >= 0 ? MEZZO_F32 : f->precision->output;
    }
    if (is_repeated(c, p, &item))
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(c->items, c->cap, c->n + 1));
    c->items[c->n++] = item;
    return MEZZO_OK;
}

static bool is_named(const char *modules, const char *module) {
    char pattern[256];
    while (mz_next_pattern(&modules, pattern))
        if (mz_names_module(pattern, module))
            return true;
    return false;
}

static mezzo_status check_patterns(const mezzo_program *p, const char *modules) {
    char pattern[256];
    while (mz_next_pattern(&modules, pattern)) {
        bool found = false;
        for (size_t i = 0; i < p->c.n_calls && !found; i++)
            found =
                is_product(p->c.calls[i].op) && mz_names_module(pattern, p->c.graph->modules[node_of(p, i)->module]);
        if (!found)
            return mz_fail(MEZZO_ERR_INVALID, "train.counterfactual_ops: no linear layer is called \"%s\"", pattern);
    }
    return MEZZO_OK;
}

static mezzo_status read_formats(mz_counterfactual *c, const char *formats) {
    char name[256];
    while (mz_next_pattern(&formats, name)) {
        if (c->n_formats == MZ_COUNTERFACTUAL_FORMATS)
            return mz_fail(MEZZO_ERR_INVALID, "train.counterfactual: more than %d formats", MZ_COUNTERFACTUAL_FORMATS);
        MEZZO_TRY(mz_context(mz_rounding_parse(name, &c->formats[c->n_formats]), "train.counterfactual:"));
        if (MZ_FIND(c->formats, c->n_formats, name, c->formats[c->n_formats].name) != NULL)
            return mz_fail(MEZZO_ERR_INVALID, "train.counterfactual: %s stands there twice", name);
        c->n_formats++;
    }
    return MEZZO_OK;
}

static mezzo_status list_items(mz_counterfactual *c, const mezzo_program *p, const char *modules) {
    MEZZO_TRY(check_patterns(p, modules));
    for (size_t i = 0; i < p->c.n_calls; i++) {
        const mz_call *call = &p->c.calls[i];
        if (!is_product(call->op) || !is_named(modules, p->c.graph->modules[node_of(p, i)->module]))
            continue;
        for (int slot = 0; slot < 2; slot++) {
            if (call->in[slot].scaling != MZ_SCALING_NONE)
                return mz_fail(MEZZO_ERR_INVALID,
                               "train.counterfactual: %s rounds operands itself; use bf16, fp16 or fp32",
                               mezzo_precision_name(p->options.precision));
            for (int f = 0; f < c->n_formats; f++)
                MEZZO_TRY(add_item(c, p, i, slot, f));
        }
    }
    return MEZZO_OK;
}

static bool rounds_the_same(const mz_counterfactual_item *a, const mz_counterfactual_item *b) {
    return a->call == b->call && a->slot == b->slot && a->master == b->master && a->via == b->via;
}

// Groups neighbouring items that round the same numbers.
static mezzo_status group_items(mz_counterfactual *c) {
    for (size_t i = 0; i < c->n; i++) {
        mz_counterfactual_group *last = c->n_groups > 0 ? &c->groups[c->n_groups - 1] : NULL;
        for (size_t k = i; last != NULL && k < c->n && c->items[k].call == c->items[i].call; k++)
            if (rounds_the_same(&c->items[last->first], &c->items[k])) {
                const mz_counterfactual_item item = c->items[k];
                memmove(&c->items[i + 1], &c->items[i], (k - i) * sizeof item);
                c->items[i] = item;
                break;
            }
        const mz_counterfactual_item *item = &c->items[i];
        if (last == NULL || !rounds_the_same(&c->items[last->first], item)) {
            MEZZO_TRY(MZ_RESERVE(c->groups, c->cap_groups, c->n_groups + 1));
            last = &c->groups[c->n_groups++];
            *last =
                (mz_counterfactual_group){.first = i, .formats = {.columnwise = item->columnwise, .via = item->via}};
        }
        last->formats.how[last->formats.n++] = item->how;
    }
    return MEZZO_OK;
}

static mz_call call_of(const mz_counterfactual *c, const mezzo_program *p, const mz_counterfactual_group *g) {
    const mz_counterfactual_item *item = &c->items[g->first];
    mz_call call = {.op = MZ_OP_rounding,
                    .attrs.rounding = &g->formats,
                    .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                    .n_in = 2,
                    .in = {mz_program_tensor(p, node_of(p, item->call)->in[item->slot]), mz_tensor_absent()},
                    .n_out = 2,
                    .out = {mz_tensor_bytes(c->on_device != NULL ? c->on_device + g->first : NULL,
                                            (size_t)g->formats.n * sizeof *c->sums),
                            mz_tensor_absent()}};
    if (item->master >= 0) { // its elements lie where those of the copy do
        const mz_tensor master = mz_params_tensor(p->params, item->master);
        call.in[0].data = master.data;
        call.in[0].dtype = master.dtype;
        call.in[1] = mz_params_low_halves(p->params, item->master);
    }
    return call;
}

static mezzo_status take_memory(mz_counterfactual *c, const mezzo_program *p) {
    const mz_backend *b = c->device->backend;
    size_t scratch = 0;
    for (size_t i = 0; i < c->n_groups; i++) {
        mz_counterfactual_group *g = &c->groups[i];
        mz_call call = call_of(c, p, g);
        MEZZO_TRY(mz_prepare(c->device, &call, &g->prepared));
        scratch = g->prepared.workspace > scratch ? g->prepared.workspace : scratch;
    }
    MEZZO_TRY(MZ_NEW(c->sums, c->n + 1));
    MEZZO_TRY(b->alloc(c->device, scratch + 64, &c->scratch));
    return b->alloc(c->device, (c->n + 1) * sizeof *c->sums, (void **)&c->on_device);
}

mezzo_status mz_counterfactual_create(const mezzo_program *program, const char *formats, const char *modules,
                                      mz_counterfactual **out) {
    mezzo_status status;
    *out = NULL;
    mz_counterfactual *c;
    MEZZO_TRY(MZ_NEW(c, 1));
    c->device = program->device;
    MEZZO_TRY_GOTO(status, read_formats(c, formats));
    MEZZO_TRY_GOTO(status, list_items(c, program, modules));
    MEZZO_TRY_GOTO(status, group_items(c));
    MEZZO_TRY_GOTO(status, take_memory(c, program));
    *out = c;
    return MEZZO_OK;
fail:
    mz_counterfactual_free(c);
    return status;
}

void mz_counterfactual_free(mz_counterfactual *c) {
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n_groups; i++)
        mz_prepared_free(&c->groups[i].prepared);
    c->device->backend->release(c->device, c->scratch);
    c->device->backend->release(c->device, c->on_device);
    MZ_FREE(c->sums, c->groups, c->items, c);
}

// --- measuring ---------------------------------------------------------------------------------------------------
static mezzo_status measure_call(void *user, mezzo_program *p, size_t call) {
    mz_counterfactual *c = user;
    for (; c->next < c->n_groups && c->items[c->groups[c->next].first].call == call; c->next++) {
        mz_counterfactual_group *g = &c->groups[c->next];
        mz_call rounding = call_of(c, p, g);
        MEZZO_TRY(mz_run(c->device, &g->prepared, &rounding, c->scratch));
    }
    return c->hook != NULL ? c->hook(c->hook_user, p, call) : MEZZO_OK;
}

void mz_counterfactual_begin(mz_counterfactual *c, mezzo_program *program) {
    c->next = 0;
    c->hook = program->hook;
    c->hook_user = program->hook_user;
    program->hook = measure_call;
    program->hook_user = c;
}

void mz_counterfactual_end(mz_counterfactual *c, mezzo_program *program) {
    program->hook = c->hook;
    program->hook_user = c->hook_user;
}

mezzo_status mz_counterfactual_read(mz_counterfactual *c, const mezzo_program *program) {
    MEZZO_TRY(c->device->backend->read(c->device, c->sums, c->on_device, c->n * sizeof *c->sums));
    for (size_t i = 0; i < c->n; i++) {
        mz_counterfactual_item *item = &c->items[i];
        const mz_tensor *t = &program->c.calls[item->call].in[item->slot];
        item->found = mz_rounding_of(&item->how, &c->sums[i], mz_shape_count(&t->shape));
    }
    return MEZZO_OK;
}

// --- records -----------------------------------------------------------------------------------------------------
static double relative_error(const mz_rounding *r) {
    return r->squares > 0 ? sqrt(r->error / r->squares) : (double)NAN;
}

static const char *operand_name(operand of) {
    return of == OF_X ? "x" : of == OF_W ? "w" : "dy";
}

static mezzo_status write_item(const mz_counterfactual_item *item, const char *format, const mezzo_program *p,
                               mz_metrics *operands, int64_t step) {
    const mz_rounding *r = &item->found;
    const mz_op op = p->c.calls[item->call].op;
    const double n = (double)r->scales, mean = r->log2_sum / n;
    const double deviation = sqrt(fmax(0, r->log2_squares / n - mean * mean));
    MZ_SCOPED(mz_text_free) mz_text counts = {0};
    for (int b = 1; b <= MZ_HISTOGRAM_BUCKETS - 3; b++)
        if (r->counts[b] > 0)
            mz_text_addf(&counts, "%s%d:%lld", counts.len > 0 ? " " : "", MZ_HISTOGRAM_EXPONENT(b),
                         (long long)r->counts[b]);
    mz_metric row[] = {
        mz_metric_text("module", p->c.graph->modules[node_of(p, item->call)->module]),
        mz_metric_text("op", mz_op_table[op].name),
        mz_metric_text("operand", operand_name(operand_of(op, item->slot))),
        mz_metric_text("format", format),
        mz_metric_int("elements", r->elements),
        mz_metric_int("nonzero", r->nonzero),
        mz_metric_int("underflow", r->underflow),
        mz_metric_int("saturated", r->saturated),
        mz_metric_int("not_finite", r->not_finite),
        mz_metric_number("mean_squared_error", r->error / (double)(r->elements - r->not_finite)),
        mz_metric_number("relative_error", relative_error(r)),
        mz_metric_int("scales", r->scales),
        mz_metric_number("scale_log2_mean", mean),
        mz_metric_number("scale_log2_deviation", deviation),
        mz_metric_text("scale_log2_counts", counts.data != NULL ? counts.data : ""),
    };
    MEZZO_TRY(counts.status);
    return mz_metrics_write(operands, step, row, MZ_COUNT(row));
}

static mezzo_status write_summary(const mz_counterfactual *c, int format, const mezzo_program *p, mz_metrics *metrics,
                                  int64_t step) {
    static const char *const names[] = {"relative_error", "largest_relative_error", "underflow_share",
                                        "saturated_share"};
    char keys[MZ_COUNT(names)][64], tensor[64], worst[320] = "";
    double sum = 0, largest = -1, n = 0, nonzero = 0, underflow = 0, saturated = 0;
    for (size_t i = 0; i < c->n; i++) {
        const mz_counterfactual_item *item = &c->items[i];
        const double error = relative_error(&item->found);
        if (item->format != format || isnan(error))
            continue;
        sum += error;
        n++;
        nonzero += (double)item->found.nonzero;
        underflow += (double)item->found.underflow;
        saturated += (double)item->found.saturated;
        if (error > largest) {
            const mz_op op = p->c.calls[item->call].op;
            largest = error;
            snprintf(worst, sizeof worst, "%s of %s in %s", operand_name(operand_of(op, item->slot)),
                     mz_op_table[op].name, p->c.graph->modules[node_of(p, item->call)->module]);
        }
    }
    if (n == 0)
        return MEZZO_OK;
    for (size_t k = 0; k < MZ_COUNT(names); k++)
        snprintf(keys[k], sizeof keys[k], "counterfactual/%s/%s", c->formats[format].name, names[k]);
    snprintf(tensor, sizeof tensor, "counterfactual/%s/largest", c->formats[format].name);
    const mz_metric row[] = {mz_metric_number(keys[0], sum / n), mz_metric_number(keys[1], largest),
                             mz_metric_number(keys[2], underflow / nonzero),
                             mz_metric_number(keys[3], saturated / nonzero), mz_metric_text(tensor, worst)};
    return mz_metrics_write(metrics, step, row, MZ_COUNT(row));
}

mezzo_status mz_counterfactual_log(mz_counterfactual *c, const mezzo_program *program, mz_metrics *operands,
                                   mz_metrics *metrics, int64_t step) {
    MEZZO_TRY(mz_counterfactual_read(c, program));
    for (size_t i = 0; i < c->n && operands != NULL; i++)
        MEZZO_TRY(write_item(&c->items[i], c->formats[c->items[i].format].name, program, operands, step));
    for (int f = 0; f < c->n_formats; f++)
        MEZZO_TRY(write_summary(c, f, program, metrics, step));
    return MEZZO_OK;
}
