// The autocast pass is the one place that decides dtypes. Op classes follow torch.amp's CUDA lists; a region or a
// module override changes the precision that an op is decided under; casts are inserted where an input has another
// dtype.
#include <stdlib.h>

#include "base/precision.h"
#include "graph/graph.h"

typedef enum source { FROM_PROGRAM, FROM_REGION, FROM_OVERRIDE, SOURCE_COUNT } source;

// Lists the rules that `mezzo explain` prints: class × source of the decision. "Low" is the precision's format.
#define RULES(text)                                                                                                    \
    { text, text " (region)", text " (override)" }
static const char *const rules[][SOURCE_COUNT] = {
    [MZ_CAST_LOW] = RULES("low: matmul, linear and attention"),
    [MZ_CAST_FP32] = RULES("fp32: norms, softmax, losses and sums"),
    [MZ_CAST_WIDEST] = RULES("widest of the inputs"),
    [MZ_CAST_FOLLOW] = RULES("follows its input"),
    [MZ_CAST_INT] = RULES("integers"),
    [MZ_CAST_EXPLICIT] = RULES("the model's own cast"),
};
static const char rule_edge[] = "low: outside the numbered blocks, or their first or last";
static const char rule_unaligned[] = "low: 8-bit products read rows of multiples of 16, and this axis cannot be padded";
static const char rule_unblocked[] = "low: an expert's rows begin inside a block of scales";
static const char rule_emulated[] = "low: emulated, operands rounded to blocks";
static const char rule_quantized[] = "low: the product's operand, scaled";
static const char rule_inserted[] = "cast inserted for the next op";
static const char rule_residual[] = "residual low: embeddings leave in the low format";

typedef struct pass {
    mezzo_graph *g;
    const mezzo_program_options *options;
    mz_node *old;
    size_t n_old;
    int *casts;    // per value: its latest inserted cast, -1
    int *replaced; // per value: the one to read instead (a residual in the low format), or itself
    size_t cap;    // entries of `casts` and of `replaced`
    int64_t last;  // the highest number of any block
    bool *of_16;   // per value: its rows are multiples of 16 (mz_graph_rows_of_16, before the pass)
    struct {       // a row of blocks: the beginning of their modules' names, and the last block's number
        const char *name;
        size_t length;
        int64_t last;
    } row; // the row of blocks that the node before belongs to
} pass;

static mezzo_status track(pass *p) {
    size_t need = p->g->n_values, a = p->cap, b = p->cap;
    MEZZO_TRY(MZ_RESERVE(p->casts, a, need));
    MEZZO_TRY(MZ_RESERVE(p->replaced, b, need));
    size_t cap = a < b ? a : b;
    for (size_t i = p->cap; i < cap; ++i) {
        p->casts[i] = -1;
        p->replaced[i] = (int)i;
    }
    p->cap = cap;
    return MEZZO_OK;
}

static bool is_float(mezzo_dtype d) {
    return d <= MEZZO_F8E5M2;
}

static int width_rank(mezzo_dtype d) {
    switch (d) {
    case MEZZO_F64:
        return 3;
    case MEZZO_F32:
        return 2;
    default:
        return 1;
    }
}

// Returns the wider of two formats; PyTorch promotes FP16 with BF16 to FP32.
static mezzo_dtype widest(mezzo_dtype a, mezzo_dtype b) {
    if (a == b)
        return a;
    if (width_rank(a) == width_rank(b))
        return MEZZO_F32;
    return width_rank(a) > width_rank(b) ? a : b;
}

static mezzo_precision decide(const pass *p, const mz_node *node, source *who) {
    mezzo_precision precision = p->options->precision;
    *who = FROM_PROGRAM;
    // A program wider than FP32 serves as a reference, so no region narrows it.
    if (node->precision >= 0 && mz_precision(precision)->wide == MEZZO_F32) {
        precision = (mezzo_precision)node->precision;
        *who = FROM_REGION;
    }
    for (int i = 0; i < p->options->n_overrides; ++i)
        if (mz_glob_match(p->options->overrides[i].pattern, p->g->modules[node->module])) {
            precision = p->options->overrides[i].precision;
            *who = FROM_OVERRIDE;
        }
    return precision;
}

// Returns the blocks that a product's operands are rounded to. As with a precision that has scales, emulation applies
// where the program's precision decides, and not where a region or an override names another precision.
static mezzo_blocks blocks_of(const pass *p, const mz_node *node, mezzo_precision precision, source who) {
    const bool own = precision == p->options->precision && (who == FROM_OVERRIDE || node->precision < 0);
    return own ? p->options->emulate : MEZZO_BLOCKS_NONE;
}

// Finds a parameter's low copy, which the update writes; it has the first low format that a reader asks for.
static mezzo_status low_copy_of(pass *p, int param, mezzo_dtype dtype, int *out) {
    mezzo_graph *g = p->g;
    mz_param_spec *spec = &g->params[param];
    if (spec->low_copy < 0) {
        mz_value v = {.kind = MZ_VALUE_LOW_COPY,
                      .dtype = dtype,
                      .shape = spec->shape,
                      .producer = -1,
                      .param = param,
                      .alias = -1};
        MEZZO_TRY(mz_graph_value(g, v, &spec->low_copy));
    }
    *out = g->values[spec->low_copy].dtype == dtype ? spec->low_copy : -1;
    return MEZZO_OK;
}

static mezzo_status insert_cast(pass *p, int value, mezzo_dtype dtype, const mz_node *near, const char *rule,
                                int *out) {
    mezzo_graph *g = p->g;
    mz_value v = {.kind = MZ_VALUE_TEMP, .dtype = dtype, .shape = g->values[value].shape, .param = -1, .alias = -1};
    mz_node cast = {.op = MZ_OP_cast,
                    .n_in = 1,
                    .n_out = 1,
                    .in = {value},
                    .phase = MZ_FORWARD,
                    .module = near->module,
                    .precision = near->precision,
                    .segment = near->segment,
                    .numerics = {dtype, MEZZO_F32, MEZZO_F32},
                    .formats = {.operand = g->values[value].dtype, .gradient = dtype, .output = dtype},
                    .rule = rule};
    MEZZO_TRY(mz_graph_value(g, v, &cast.out[0]));
    MEZZO_TRY(mz_graph_node(g, cast, NULL));
    MEZZO_TRY(track(p));
    *out = cast.out[0];
    return MEZZO_OK;
}

// Finds `value` in the dtype asked for: itself, a low copy, an earlier cast of this segment, or a new one.
static mezzo_status as_dtype(pass *p, const mz_node *node, int value, mezzo_dtype dtype, int *out) {
    mezzo_graph *g = p->g;
    const mz_value *v = &g->values[value];
    *out = value;
    if (!is_float(v->dtype) || v->dtype == dtype)
        return MEZZO_OK;
    if (v->kind == MZ_VALUE_PARAM && width_rank(dtype) == 1) {
        int low_copy = -1;
        MEZZO_TRY(low_copy_of(p, v->param, dtype, &low_copy));
        if (low_copy >= 0) {
            *out = low_copy;
            return track(p);
        }
    }
    int seen = p->casts[value];
    if (seen >= 0 && g->values[seen].dtype == dtype && g->values[seen].scaling == MZ_SCALING_NONE &&
        g->nodes[g->values[seen].producer].segment == node->segment) {
        *out = seen;
        return MEZZO_OK;
    }
    MEZZO_TRY(insert_cast(p, value, dtype, node, rule_inserted, out));
    p->casts[value] = *out;
    return MEZZO_OK;
}

// Returns which of a precision's products have scaled operands: the others run in the format that its products are
// stored in.
static bool takes_scaled(mz_op op, int slot, mz_scaling scaling) {
    const unsigned is = mz_op_slot(op, false, slot).is;
    return (is & MZ_SLOT_SCALED) != 0 && ((is & MZ_SLOT_WHOLE) == 0 || !mz_scaling_in_blocks(scaling));
}

static bool whole_alone(mz_op op) {
    return mz_op_slot(op, false, 0).is & MZ_SLOT_WHOLE;
}

// Returns the number of a path's first numbered part, 3 in h.3.attn, and how long the path before it is; -1: it has
// none.
static int64_t block_of(const char *module, size_t *before) {
    for (const char *part = module; *part != '\0';) {
        size_t length = strcspn(part, ".");
        if (length > 0 && length < 9 && strspn(part, "0123456789") >= length) {
            *before = (size_t)(part - module);
            return strtol(part, NULL, 10);
        }
        part += length + (part[length] == '.');
    }
    return -1;
}

// Returns the number of the last block whose path begins like `beside`; of any block where `beside` is NULL.
static int64_t last_block(const mezzo_graph *g, const char *beside, size_t before) {
    int64_t last = -1;
    for (size_t i = 0; i < g->n_modules; ++i) {
        size_t length = 0;
        int64_t block = block_of(g->modules[i], &length);
        bool counts = beside == NULL || (length == before && strncmp(g->modules[i], beside, before) == 0);
        last = block > last && counts ? block : last;
    }
    return last;
}

// Returns whether the node keeps at least the low format: where a model numbers three or more blocks, the first and the
// last one and all nodes outside, such as the head, do so unless an override decides otherwise.
static bool is_edge(pass *p, const mz_node *node, source who) {
    size_t before = 0;
    const char *module = p->g->modules[node->module];
    if (who == FROM_OVERRIDE || p->last < 2)
        return false;
    int64_t block = block_of(module, &before);
    if (block <= 0)
        return true;
    if (p->row.name == NULL || p->row.length != before || strncmp(p->row.name, module, before) != 0) {
        p->row.name = module;
        p->row.length = before;
        p->row.last = last_block(p->g, module, before);
    }
    return block == p->row.last;
}

// Returns whether a side of the product's matrices is no multiple of 16. Each side is the last dimension of some
// operand in forward or backward.
static bool is_unaligned(const pass *p, const mz_node *node) {
    return !p->of_16[node->in[0]] || !p->of_16[node->out[0]];
}

static mz_formats formats_of(const mz_node *node, const mz_precision_info *info, mezzo_dtype want, bool low) {
    if (mz_op_table[node->op].cast_class != MZ_CAST_LOW)
        return (mz_formats){.operand = want, .gradient = want, .output = want};
    if (info->scaling != MZ_SCALING_NONE && (low || !takes_scaled(node->op, 0, info->scaling)))
        return (mz_formats){.operand = info->output, .gradient = info->output, .output = info->output};
    return (mz_formats){info->operand, info->gradient, info->output, info->scaling, info->dw != info->operand};
}

static mz_numerics numerics_of(const mz_node *node, const mz_precision_info *info, mezzo_dtype storage) {
    mz_numerics n = {info->wide, info->wide, info->wide};
    if (mz_op_table[node->op].cast_class == MZ_CAST_LOW)
        n.compute = node->formats.scaling == info->scaling ? info->compute : info->output;
    if (node->op == MZ_OP_cast)
        n.compute = storage;
    return n;
}

// Makes `value` a product's operand with scales, once a segment. Weights come from their masters; activations as the op
// before stores them for a product without scales, which takes half the bytes of FP32 and a cast that folds into a
// norm.
static mezzo_status as_operand(pass *p, const mz_node *node, int value, int *out) {
    mezzo_graph *g = p->g;
    const mz_formats *f = &node->formats;
    const bool weight = g->values[value].kind == MZ_VALUE_PARAM;
    const mz_scaling scaling = weight ? mz_scalings[f->scaling].weight : f->scaling;
    if (!weight)
        MEZZO_TRY(as_dtype(p, node, value, f->output, &value));
    int seen = p->casts[value];
    if (seen >= 0 && g->values[seen].dtype == f->operand && g->values[seen].scaling == scaling &&
        g->nodes[g->values[seen].producer].segment == node->segment) {
        *out = seen;
        return MEZZO_OK;
    }
    mz_node cast = {.module = node->module,
                    .phase = MZ_FORWARD,
                    .precision = node->precision,
                    .segment = node->segment,
                    .rule = rule_quantized};
    mz_formats operand = {
        .operand = f->operand, .gradient = weight ? MEZZO_F32 : f->output, .output = f->operand, .scaling = scaling};
    MEZZO_TRY(mz_graph_quantize(g, cast, value, operand, weight ? "w" : "x", out));
    MEZZO_TRY(track(p));
    p->casts[value] = *out;
    return MEZZO_OK;
}

// Returns whether the value is a constant of one element. As a number in PyTorch, it does not decide a format, unless
// it feeds an op that only moves bytes.
static bool is_literal(const pass *p, const mz_node *node, int value) {
    const mezzo_graph *g = p->g;
    return g->values[value].producer >= 0 && !mz_op_table[node->op].moves &&
           g->nodes[g->values[value].producer].op == MZ_OP_constant && mz_shape_count(&g->values[value].shape) == 1;
}

static mezzo_dtype widest_input(const pass *p, const mz_node *node) {
    mezzo_dtype want = MEZZO_DTYPE_COUNT;
    for (int literals = 0; literals < 2 && want == MEZZO_DTYPE_COUNT; ++literals)
        for (int i = 0; i < node->n_in; ++i)
            if (node->in[i] >= 0 && is_float(p->g->values[node->in[i]].dtype) &&
                (literals || !is_literal(p, node, node->in[i])))
                want = want == MEZZO_DTYPE_COUNT ? p->g->values[node->in[i]].dtype
                                                 : widest(want, p->g->values[node->in[i]].dtype);
    return want != MEZZO_DTYPE_COUNT ? want : p->g->values[node->in[0]].dtype;
}

// Returns whether a norm takes each channel alone, as torch's batch and instance norm do: neither is in torch.amp's
// lists. Its statistics stay FP32.
static bool norms_channels(const mezzo_graph *g, const mz_node *node) {
    if (node->op != MZ_OP_group_norm)
        return false;
    const mz_shape *x = &g->values[node->in[0]].shape;
    return node->attrs.groups == x->dim[x->rank - 1];
}

static mezzo_status cast_node(pass *p, mz_node node) {
    mezzo_graph *g = p->g;
    source who;
    mezzo_precision precision = decide(p, &node, &who);
    const mz_precision_info *info = mz_precision(precision);
    const bool by_channel = norms_channels(g, &node);
    mz_cast_class cls = by_channel ? MZ_CAST_FOLLOW : mz_op_table[node.op].cast_class;
    mezzo_dtype want = MEZZO_F32;
    bool convert = cls == MZ_CAST_LOW || cls == MZ_CAST_FP32 || cls == MZ_CAST_WIDEST;
    const bool unaligned_at_first = cls == MZ_CAST_LOW && is_unaligned(p, &node); // asks before operands are replaced
    for (int i = 0; i < node.n_in; ++i)
        if (node.in[i] >= 0)
            node.in[i] = p->replaced[node.in[i]];
    if (cls == MZ_CAST_LOW)
        want = info->output;
    else if (cls == MZ_CAST_FP32)
        want = info->wide;
    else if (cls == MZ_CAST_WIDEST)
        want = widest_input(p, &node);
    else if (node.n_in > 0 && node.in[0] >= 0)
        want = g->values[node.in[0]].dtype;
    bool kept = cls == MZ_CAST_FOLLOW || cls == MZ_CAST_WIDEST;
    if (kept && info->wide != MEZZO_F32 && is_float(want)) // this includes FP32 parameters and inputs
        want = info->wide, convert = node.op != MZ_OP_embedding;
    const mezzo_blocks emulated = blocks_of(p, &node, precision, who);
    bool blocks = emulated != MEZZO_BLOCKS_NONE, scaled = info->scaling != MZ_SCALING_NONE;
    bool narrow = cls == MZ_CAST_LOW && (scaled || blocks) &&
                  takes_scaled(node.op, 0, scaled ? info->scaling : MZ_SCALING_BLOCK128);
    bool unblocked = cls == MZ_CAST_LOW && (scaled || blocks) && !narrow && whole_alone(node.op);
    bool edge = narrow && is_edge(p, &node, who), unaligned = narrow && scaled && unaligned_at_first;
    node.formats = formats_of(&node, info, want, edge || unaligned);
    for (int i = 0; convert && i < node.n_in; ++i) {
        if (node.in[i] < 0 || (mz_op_slot(node.op, false, i).is & MZ_SLOT_STATE) ||
            (cls == MZ_CAST_WIDEST && want != MEZZO_F64 && is_literal(p, &node, node.in[i])))
            continue;
        if (node.formats.scaling != MZ_SCALING_NONE && takes_scaled(node.op, i, node.formats.scaling))
            MEZZO_TRY(as_operand(p, &node, node.in[i], &node.in[i]));
        else
            MEZZO_TRY(as_dtype(p, &node, node.in[i],
                               mz_op_slot(node.op, false, i).is & MZ_SLOT_WIDE ? info->wide : want, &node.in[i]));
    }
    node.rule = edge ? rule_edge : unaligned ? rule_unaligned : unblocked ? rule_unblocked : rules[cls][who];
    if (cls != MZ_CAST_EXPLICIT && cls != MZ_CAST_INT)
        for (int i = 0; i < node.n_out; ++i)
            if (i == 0 || is_float(g->values[node.out[i]].dtype)) // the indices of `route` stay I32
                g->values[node.out[i]].dtype = by_channel && i > 0 ? info->wide : want;
    node.numerics = numerics_of(&node, info, g->values[node.out[0]].dtype);
    if (narrow && !edge && blocks) {
        node.attrs.blocks = emulated;
        node.attrs.hadamard = p->options->emulate_hadamard;
        node.attrs.random_gradients = p->options->emulate_stochastic;
        node.attrs.rng = p->options->emulate_stochastic ? g->next_rng++ : node.attrs.rng;
        node.rule = rule_emulated;
    }
    node.attrs.via = want;
    if (node.op == MZ_OP_reshape)
        g->values[node.out[0]].alias = node.in[0];
    MEZZO_TRY(mz_graph_node(g, node, NULL));
    MEZZO_TRY(track(p));
    mezzo_dtype low = info->output;
    if (node.op == MZ_OP_embedding && p->options->residual == MEZZO_RESIDUAL_LOW && width_rank(low) == 1) {
        int cast;
        MEZZO_TRY(insert_cast(p, node.out[0], low, &node, rule_residual, &cast));
        p->replaced[node.out[0]] = cast;
    }
    return MEZZO_OK;
}

// Sets gradients' formats to those of their values, except for operands with scales, whose format as_operand sets.
static void settle_gradients(mezzo_graph *g) {
    for (size_t i = 0; i < g->n_values; ++i)
        if (g->values[i].scaling == MZ_SCALING_NONE)
            g->values[i].gradient = g->values[i].dtype;
}

// Notes which parameters need no FP32 master, because every reader takes the low copy.
static void settle_masters(mezzo_graph *g) {
    for (size_t i = 0; i < g->n_params; ++i)
        g->params[i].copied = false;
    for (size_t i = 0; i < g->n_nodes; ++i)
        for (int k = 0; k < g->nodes[i].n_in; ++k)
            if (g->nodes[i].in[k] >= 0 && g->values[g->nodes[i].in[k]].kind == MZ_VALUE_LOW_COPY)
                g->params[g->values[g->nodes[i].in[k]].param].copied = true;
    for (size_t i = 0; i < g->n_nodes; ++i)
        for (int k = 0; k < g->nodes[i].n_in; ++k)
            if (g->nodes[i].in[k] >= 0 && g->values[g->nodes[i].in[k]].kind == MZ_VALUE_PARAM)
                g->params[g->values[g->nodes[i].in[k]].param].copied = false;
}

mezzo_master mz_master_of(const mezzo_graph *g, size_t param, mezzo_master asked, const char **rule) {
    const mz_param_spec *spec = &g->params[param];
    const char *unused, **why = rule != NULL ? rule : &unused;
    if (spec->low_copy < 0)
        *why = "no copy: only its master is read";
    else if (spec->read_in_other_mode)
        *why = "programs of the other mode, training or evaluation, read its master";
    else if (!spec->copied)
        *why = "its master is also read, not only its copy";
    else if (g->values[spec->low_copy].dtype != MEZZO_BF16)
        *why = "its copy is not bf16, which is half of an fp32 number";
    else {
        *why = "only its bf16 copy is read";
        return asked;
    }
    return MEZZO_MASTER_FP32;
}

static bool names_module(const mezzo_graph *g, const char *pattern) {
    for (size_t m = 0; m < g->n_modules; ++m)
        if (mz_glob_match(pattern, g->modules[m]))
            return true;
    return false;
}

// Returns whether a precision decides an op of the modules named; elsewhere ops keep the dtype of what they read.
static bool decides(const mezzo_graph *g, const mezzo_override *o) {
    const bool all = mz_precision(o->precision)->wide != MEZZO_F32;
    for (size_t i = 0; i < g->n_nodes; ++i) {
        const mz_cast_class cls = mz_op_table[g->nodes[i].op].cast_class;
        if ((all || cls == MZ_CAST_LOW || cls == MZ_CAST_FP32) &&
            mz_glob_match(o->pattern, g->modules[g->nodes[i].module]))
            return true;
    }
    return false;
}

// Refuses an override whose pattern matches no module with ops. A pattern is for whole paths: h.0.mlp does not match
// h.0.mlp.c_fc.
static mezzo_status check_override(const mezzo_graph *g, const mezzo_override *o) {
    if (mz_precision(o->precision) == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "autocast override %s: needs a precision, not auto", o->pattern);
    if (!names_module(g, o->pattern))
        return mz_fail(MEZZO_ERR_INVALID,
                       "autocast override %s: no module has such a name; mezzo explain lists the modules", o->pattern);
    if (decides(g, o))
        return MEZZO_OK;
    char *inside = mz_format("%s.*", o->pattern);
    if (inside == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = MEZZO_OK;
    if (names_module(g, inside))
        status =
            mz_fail(MEZZO_ERR_INVALID,
                    "autocast override %s: no op of that module itself has a precision; %s names the modules in it",
                    o->pattern, inside);
    mz_free(inside);
    return status;
}

static mezzo_status check_overrides(const mezzo_graph *g, const mezzo_program_options *options) {
    for (int i = 0; i < options->n_overrides; ++i)
        MEZZO_TRY(check_override(g, &options->overrides[i]));
    return MEZZO_OK;
}

mezzo_status mz_pass_autocast(mezzo_graph *g, const mz_target *target) {
    const mezzo_program_options *options = target->options;
    pass p = {.g = g, .options = options};
    mezzo_status status;
    MEZZO_TRY(check_overrides(g, options));
    if (options->emulate != MEZZO_BLOCKS_NONE && mz_precision(options->precision)->scaling != MZ_SCALING_NONE)
        return mz_fail(MEZZO_ERR_INVALID, "emulate %s: %s rounds operands itself; use bf16 or fp32",
                       mezzo_blocks_name(options->emulate), mezzo_precision_name(options->precision));
    if (options->emulate == MEZZO_BLOCKS_NONE && (options->emulate_stochastic || options->emulate_hadamard))
        return mz_fail(MEZZO_ERR_INVALID, "emulate %s: no format is emulated: choose one",
                       options->emulate_stochastic ? "rounding" : "hadamard");
    MEZZO_TRY(MZ_NEW(p.of_16, g->n_values + 1));
    status = mz_graph_rows_of_16(g, p.of_16);
    if (status != MEZZO_OK) {
        mz_free(p.of_16);
        return status;
    }
    p.last = last_block(g, NULL, 0);
    p.old = g->nodes;
    p.n_old = g->n_nodes;
    g->nodes = NULL;
    g->n_nodes = g->cap_nodes = 0;
    MEZZO_TRY_GOTO(status, track(&p));
    for (size_t i = 0; i < p.n_old; ++i)
        MEZZO_TRY_GOTO(status, cast_node(&p, p.old[i]));
    for (size_t i = 0; i < g->n_outputs; ++i) {
        int *v = &g->outputs[i].value;
        g->values[*v].keep = false;
        *v = p.replaced[*v];
        g->values[*v].keep = true;
    }
    settle_gradients(g);
    settle_masters(g);
    status = MEZZO_OK;
fail:
    MZ_FREE(p.of_16, p.old, p.casts, p.replaced);
    return status;
}
