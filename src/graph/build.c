// The builder has one function for each op. Each makes the node, infers its shapes and remembers the graph's first
// error.
#include "base/precision.h"
#include "graph/build.h"

// Returns whether the builder adds nothing more, because the graph has an error or there is none.
bool mz_build_broken(const mezzo_graph *g) {
    if (g == NULL)
        mz_fail(MEZZO_ERR_INVALID, "an op was added to a graph that is NULL");
    return g == NULL || g->status != MEZZO_OK;
}

static void remember(mezzo_graph *g, mezzo_status status) {
    if (g == NULL || g->status != MEZZO_OK)
        return;
    g->status = status;
    g->message = mz_strdup(mezzo_error_message());
}

// Returns whether the graph has the value. One of another graph is noticed only if its number does not exist here.
static bool has(const mezzo_graph *g, mezzo_value v) {
    return g != NULL && v.id >= 0 && (size_t)v.id < g->n_values;
}

mezzo_value mz_build_failed(mezzo_graph *g, mezzo_status status) {
    remember(g, status);
    return MEZZO_NONE;
}

mezzo_status mz_build_shape(const char *name, int rank, const int64_t *shape, mz_shape *out) {
    if (name == NULL || shape == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "a value of the graph needs a name and a shape; NULL was given");
    if (rank < 1 || rank > MEZZO_MAX_RANK)
        return mz_fail(MEZZO_ERR_INVALID, "%s: %d dimensions, must be 1 to %d", name, rank, MEZZO_MAX_RANK);
    out->rank = rank;
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) {
        if (shape[i] < 1 || shape[i] > INT64_MAX / 16 / count)
            return mz_fail(MEZZO_ERR_INVALID, "%s: dimension %d is %lld", name, i, (long long)shape[i]);
        out->dim[i] = shape[i];
        count *= shape[i];
    }
    return MEZZO_OK;
}

mezzo_status mz_build_check_probability(const char *op, float p) {
    if (!(p >= 0 && p < 1))
        return mz_fail(MEZZO_ERR_INVALID, "%s: dropout %g, must be 0 or more and less than 1", op, (double)p);
    return MEZZO_OK;
}

static mezzo_status check_name(mezzo_graph *g, const char *name) {
    MEZZO_TRY(mz_graph_index_names(g));
    if (mz_graph_has_name(g, name))
        return mz_fail(MEZZO_ERR_INVALID, "the name %s is taken in this graph", name);
    return MEZZO_OK;
}

static const mz_value empty_value = {.producer = -1, .param = -1, .alias = -1, .dtype = MEZZO_F32};

static mezzo_status add_input(mezzo_graph *g, const char *name, mezzo_dtype dtype, int rank, const int64_t *shape,
                              int *id) {
    mz_value v = empty_value;
    v.kind = MZ_VALUE_INPUT;
    v.dtype = dtype;
    if (dtype != MEZZO_F32 && dtype != MEZZO_I32)
        return mz_fail(MEZZO_ERR_INVALID, "input %s: an input is fp32 or i32, not %s", name, mezzo_dtype_name(dtype));
    MEZZO_TRY(mz_build_shape(name, rank, shape, &v.shape));
    MEZZO_TRY(check_name(g, name));
    v.name = mz_strdup(name);
    if (!v.name)
        return MEZZO_ERR_MEMORY;
    return mz_graph_value(g, v, id);
}

mezzo_value mezzo_input(mezzo_graph *g, const char *name, mezzo_dtype dtype, int rank, const int64_t *shape) {
    int id = -1;
    if (mz_build_broken(g))
        return MEZZO_NONE;
    mezzo_status status = add_input(g, name, dtype, rank, shape, &id);
    return status == MEZZO_OK ? (mezzo_value){id} : mz_build_failed(g, status);
}

static int current_module(const mezzo_graph *g) {
    return g->n_scopes ? g->scopes[g->n_scopes - 1] : 0;
}

static mezzo_status add_param(mezzo_graph *g, const char *name, mezzo_init init, int rank, const int64_t *shape,
                              int *id) {
    if (name == NULL || *name == '\0')
        return mz_fail(MEZZO_ERR_INVALID, "a parameter of the graph needs a name");
    const char *module = g->modules[current_module(g)];
    char *full = mz_format("%s%s%s", module, *module ? "." : "", name);
    if (!full)
        return MEZZO_ERR_MEMORY;
    mz_param_spec spec = {.name = full, .init = init, .low_copy = -1, .grad = -1};
    mz_value v = empty_value;
    v.kind = MZ_VALUE_PARAM;
    v.param = (int)g->n_params;
    mezzo_status status;
    MEZZO_TRY_GOTO(status, mz_build_shape(full, rank, shape, &spec.shape));
    MEZZO_TRY_GOTO(status, check_name(g, full));
    MEZZO_TRY_GOTO(status, MZ_RESERVE(g->params, g->cap_params, g->n_params + 1));
    v.shape = spec.shape;
    MEZZO_TRY_GOTO(status, mz_graph_value(g, v, id));
    spec.value = *id;
    g->params[g->n_params++] = spec;
    return MEZZO_OK;
fail:
    mz_free(full);
    return status;
}

mezzo_value mezzo_param(mezzo_graph *g, const char *name, mezzo_init init, int rank, const int64_t *shape) {
    int id = -1;
    if (mz_build_broken(g))
        return MEZZO_NONE;
    mezzo_status status = add_param(g, name, init, rank, shape, &id);
    return status == MEZZO_OK ? (mezzo_value){id} : mz_build_failed(g, status);
}

// Builds a node under construction, in the builder's present module, region and segment.
mz_node mz_build_node(const mezzo_graph *g, mz_op op, const mezzo_value *in, int n_in) {
    mz_node node = {.op = op,
                    .n_in = n_in,
                    .n_out = 1,
                    .module = g != NULL ? current_module(g) : 0,
                    .precision = g != NULL && g->n_regions ? g->regions[g->n_regions - 1] : -1,
                    .segment = g != NULL ? g->segment : -1,
                    .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                    .rule = ""};
    node.attrs.via = MEZZO_F32;
    for (int i = 0; i < MZ_MAX_IN; ++i)
        node.in[i] = i < n_in ? in[i].id : -1;
    for (int i = 0; i < MZ_MAX_OUT; ++i)
        node.out[i] = -1;
    return node;
}

static mezzo_status check_inputs(const mezzo_graph *g, const mz_node *node) {
    const mz_op_info *info = &mz_op_table[node->op];
    const char *op = info->name;
    for (int i = 0; i < node->n_in; ++i) {
        int v = node->in[i];
        mz_slot slot = mz_op_slot(node->op, false, i);
        if (v < 0 && (i >= info->n_in || !(slot.is & MZ_SLOT_OPTIONAL)))
            return mz_fail(MEZZO_ERR_INVALID, "%s: %s is missing", op, slot.name);
        if (v >= (int)g->n_values)
            return mz_fail(MEZZO_ERR_INVALID, "%s: %s is not a value of this graph", op, slot.name);
        bool any =
            info->moves || (slot.is & MZ_SLOT_INTEGER) || info->cast_class == MZ_CAST_INT || node->op == MZ_OP_cast;
        char buf[128];
        if (v >= 0 && !any && g->values[v].dtype == MEZZO_I32)
            return mz_fail(MEZZO_ERR_INVALID, "%s: %s (%s) holds integers", op, slot.name,
                           mz_graph_value_name(g, v, buf, sizeof buf));
    }
    return MEZZO_OK;
}

// Appends the node with its output values. `shape` has one entry an output; with NULL the op's rule gives them.
mezzo_status mz_build_finish_node(mezzo_graph *g, mz_node *node, const mz_shape *shape, mezzo_dtype dtype) {
    mz_shape shapes[MZ_MAX_OUT] = {{0}};
    if (g->n_values + MZ_MAX_OUT > INT32_MAX)
        return mz_fail(MEZZO_ERR_INVALID, "the graph is too large");
    MEZZO_TRY(check_inputs(g, node));
    if (shape)
        memcpy(shapes, shape, (size_t)node->n_out * sizeof *shapes);
    else
        MEZZO_TRY(mz_infer(g, node, shapes));
    for (int i = 0; i < node->n_out; ++i) {
        mz_value v = empty_value;
        v.kind = MZ_VALUE_TEMP;
        v.shape = shapes[i];
        v.dtype = mz_op_slot(node->op, true, i).is & MZ_SLOT_INTEGER ? MEZZO_I32 : dtype;
        v.alias = node->op == MZ_OP_reshape ? node->in[0] : -1;
        MEZZO_TRY(mz_graph_value(g, v, &node->out[i]));
    }
    return mz_graph_node(g, *node, NULL);
}

mezzo_value mz_build_finish(mezzo_graph *g, mz_node *node) {
    if (mz_build_broken(g))
        return MEZZO_NONE;
    bool whole =
        mz_op_table[node->op].moves && has(g, (mezzo_value){node->in[0]}) && g->values[node->in[0]].dtype == MEZZO_I32;
    mezzo_status status = mz_build_finish_node(g, node, NULL, whole ? MEZZO_I32 : MEZZO_F32);
    return status == MEZZO_OK ? (mezzo_value){node->out[0]} : mz_build_failed(g, status);
}

static mezzo_value build(mezzo_graph *g, mz_node node, mz_attrs attrs) {
    attrs.via = MEZZO_F32;
    node.attrs = attrs;
    return mz_build_finish(g, &node);
}

mezzo_value mz_build_unary(mezzo_graph *g, mz_op op, mezzo_value x, mz_attrs attrs) {
    return build(g, MZ_BUILD_NODE(g, op, x), attrs);
}

mezzo_value mz_build_binary(mezzo_graph *g, mz_op op, mezzo_value a, mezzo_value b, mz_attrs attrs) {
    return build(g, MZ_BUILD_NODE(g, op, a, b), attrs);
}

mezzo_value mezzo_linear(mezzo_graph *g, mezzo_value x, mezzo_value w, mezzo_value bias) {
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_linear, x, w, bias);
    return mz_build_finish(g, &node);
}

mezzo_value mezzo_mse(mezzo_graph *g, mezzo_value x, mezzo_value target) {
    return mz_build_binary(g, MZ_OP_mse, x, target, (mz_attrs){0});
}

mezzo_value mezzo_gelu(mezzo_graph *g, mezzo_value x, bool tanh_approximation) {
    return mz_build_unary(g, MZ_OP_gelu, x, (mz_attrs){.tanh = tanh_approximation});
}

mezzo_value mezzo_softmax(mezzo_graph *g, mezzo_value x) {
    return mz_build_unary(g, MZ_OP_softmax, x, (mz_attrs){0});
}

mezzo_value mezzo_layernorm(mezzo_graph *g, mezzo_value x, mezzo_value weight, mezzo_value bias, float eps) {
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_layernorm, x, weight, bias);
    node.attrs.eps = eps;
    if (!mz_build_broken(g) && !(eps >= 0))
        return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "layernorm: eps %g, must be 0 or more", (double)eps));
    return mz_build_finish(g, &node);
}

mezzo_value mezzo_rmsnorm(mezzo_graph *g, mezzo_value x, mezzo_value weight, float eps) {
    return mezzo_rmsnorm_offset(g, x, weight, 0, eps);
}

mezzo_value mezzo_rmsnorm_offset(mezzo_graph *g, mezzo_value x, mezzo_value weight, float offset, float eps) {
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_rmsnorm, x, weight);
    node.attrs.eps = eps;
    node.attrs.offset = offset;
    if (!mz_build_broken(g) && (!(eps >= 0) || !isfinite(offset)))
        return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID,
                                          "rmsnorm: eps %g and offset %g, must be 0 or more, and finite", (double)eps,
                                          (double)offset));
    return mz_build_finish(g, &node);
}

mezzo_value mezzo_swiglu(mezzo_graph *g, mezzo_value x) {
    return mz_build_unary(g, MZ_OP_swiglu, x, (mz_attrs){0});
}

mezzo_value mezzo_geglu(mezzo_graph *g, mezzo_value x, bool tanh_form) {
    return mz_build_unary(g, MZ_OP_swiglu, x, (mz_attrs){.act = tanh_form ? MZ_ACT_GELU_TANH : MZ_ACT_GELU});
}

static mezzo_status rope_table(mezzo_graph *g, mezzo_value positions, int64_t length, int dims, float theta,
                               mz_node *node) {
    mz_shape shape;
    if (dims < 2 || dims % 2 || !(theta > 0))
        return mz_fail(MEZZO_ERR_INVALID, "rope_table: %d dimensions and theta %g: must be even and positive", dims,
                       (double)theta);
    if (positions.id < 0 && (g->cache_length > 0 || g->positions >= 0))
        positions = mezzo_positions(g, length);
    if (positions.id >= 0 && !has(g, positions))
        return mz_fail(MEZZO_ERR_INVALID, "rope_table: positions is not a value of this graph");
    int64_t rows = length;
    if (positions.id >= 0) {
        const mz_value *v = &g->values[positions.id];
        char text[64];
        if (v->dtype != MEZZO_I32 || v->shape.rank < 1 || v->shape.rank > 2 ||
            v->shape.dim[v->shape.rank - 1] != length)
            return mz_fail(MEZZO_ERR_INVALID,
                           "rope_table: positions must be %lld integers, a row or several, not shape %s",
                           (long long)length, mz_shape_text(&v->shape, text, sizeof text));
        rows = mz_shape_count(&v->shape);
        node->n_in = 1;
        node->in[0] = positions.id;
    }
    MEZZO_TRY(mz_build_shape("rope_table", 2, (const int64_t[]){rows, dims}, &shape));
    node->attrs.theta = theta;
    return mz_build_finish_node(g, node, &shape, MEZZO_F32);
}

static double between(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

// Converts a model's options of scaled rotary frequencies. LLAMA3: a frequency f turns original·f/2π times. YARN:
// number i does dims·ln(original/(2π·turns))/(2·ln theta) turns.
static mezzo_status scale_rope(const mezzo_rope_scaling *s, int dims, double theta, mz_rope_scaling *out) {
    const double turn = 6.283185307179586;
    if (s == NULL || s->kind == MEZZO_ROPE_PLAIN)
        return MEZZO_OK;
    const bool bounded = s->kind != MEZZO_ROPE_LINEAR;
    if (s->kind > MEZZO_ROPE_YARN || !(s->factor >= 1 || !bounded) || !(s->factor > 0 && s->factor < 1e30) ||
        !(s->attention >= 0 && s->attention < 1e6) ||
        (bounded && !(s->low > 0 && s->high > s->low && s->high < 1e6 && s->original >= 1 && s->original < 1e9)))
        return mz_fail(
            MEZZO_ERR_INVALID,
            "rope_table: scaling %d with factor %g, low %g, high %g, original %g and attention %g: the factor "
            "must be 1 or more, and low below high",
            (int)s->kind, s->factor, s->low, s->high, s->original, s->attention);
    *out = (mz_rope_scaling){.divisor = (float)s->factor,
                             .amplitude = !bounded && s->attention > 0 ? (float)s->attention : 1};
    if (s->kind == MEZZO_ROPE_LLAMA3) {
        out->offset = (float)(-s->low / (s->high - s->low));
        out->slope = (float)(s->original / turn / (s->high - s->low));
    }
    if (s->kind == MEZZO_ROPE_YARN) {
        const double per = dims / (2 * log(theta));
        const double first = between(floor(per * log(s->original / (s->high * turn))), 0, dims - 1);
        const double last = between(ceil(per * log(s->original / (s->low * turn))), 0, dims - 1);
        const double width = last > first ? last - first : 0.001;
        *out = (mz_rope_scaling){.divisor = (float)s->factor,
                                 .offset = (float)((first + width) / width),
                                 .slope = (float)(-1 / width),
                                 .by_index = true};
        out->amplitude = (float)(s->attention > 0 ? s->attention : 0.1 * log(s->factor) + 1);
    }
    return MEZZO_OK;
}

mezzo_value mezzo_rope_table(mezzo_graph *g, mezzo_value positions, int64_t length, int dims, float theta) {
    return mezzo_rope_table_scaled(g, positions, length, dims, theta, NULL);
}

mezzo_value mezzo_rope_table_scaled(mezzo_graph *g, mezzo_value positions, int64_t length, int dims, float theta,
                                    const mezzo_rope_scaling *scaling) {
    mz_node node = mz_build_node(g, MZ_OP_rope_table, NULL, 0);
    if (mz_build_broken(g))
        return MEZZO_NONE;
    mezzo_status status = scale_rope(scaling, dims, (double)theta, &node.attrs.rope);
    if (status == MEZZO_OK)
        status = rope_table(g, positions, length, dims, theta, &node);
    return status == MEZZO_OK ? (mezzo_value){node.out[0]} : mz_build_failed(g, status);
}

mezzo_value mezzo_rope(mezzo_graph *g, mezzo_value x, mezzo_value table, int heads, int rotated, bool interleaved) {
    return mz_build_binary(g, MZ_OP_rope, x, table,
                           (mz_attrs){.heads = heads, .rotated = rotated, .interleaved = interleaved});
}

mezzo_status mezzo_route(mezzo_graph *g, mezzo_value logits, mezzo_value bias, const mezzo_routing *routing,
                         mezzo_value *weights, mezzo_value *experts) {
    MZ_REQUIRE(g, routing, weights, experts);
    *weights = *experts = MEZZO_NONE;
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_route, logits, bias);
    node.n_in = bias.id >= 0 ? 2 : 1;
    node.n_out = 2;
    node.attrs.top_k = routing->top_k;
    node.attrs.groups = routing->groups;
    node.attrs.top_groups = routing->top_groups;
    node.attrs.normalise = routing->normalise;
    node.attrs.softmax = routing->softmax;
    node.attrs.alpha = routing->scale;
    *weights = mz_build_finish(g, &node);
    *experts = weights->id >= 0 ? (mezzo_value){node.out[1]} : MEZZO_NONE;
    return mezzo_graph_status(g);
}

mezzo_status mezzo_expert_order(mezzo_graph *g, mezzo_value indices, int experts, mezzo_value *order,
                                mezzo_value *place, mezzo_value *offsets) {
    MZ_REQUIRE(g, order, place, offsets);
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_expert_order, indices);
    node.n_out = 3;
    node.attrs.experts = experts;
    *order = mz_build_finish(g, &node);
    *place = *offsets = MEZZO_NONE;
    if (order->id >= 0) {
        place->id = node.out[1];
        offsets->id = node.out[2];
    }
    return mezzo_graph_status(g);
}

static mezzo_value rearrange(mezzo_graph *g, mz_op op, mezzo_value x, mezzo_value order, mezzo_value place,
                             mezzo_value weights, int top_k) {
    mz_node node = MZ_BUILD_NODE(g, op, x, order, place, weights);
    node.n_in = weights.id >= 0 ? 4 : 3;
    node.attrs.top_k = top_k;
    return mz_build_finish(g, &node);
}

mezzo_value mezzo_dispatch(mezzo_graph *g, mezzo_value x, mezzo_value order, mezzo_value place, int top_k) {
    return rearrange(g, MZ_OP_dispatch, x, order, place, MEZZO_NONE, top_k);
}

mezzo_value mezzo_combine(mezzo_graph *g, mezzo_value x, mezzo_value order, mezzo_value place, mezzo_value weights,
                          int top_k) {
    return rearrange(g, MZ_OP_combine, x, order, place, weights, top_k);
}

mezzo_value mezzo_grouped_linear(mezzo_graph *g, mezzo_value x, mezzo_value w, mezzo_value offsets) {
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_grouped_linear, x, w, offsets);
    return mz_build_finish(g, &node);
}

mezzo_value mezzo_embedding(mezzo_graph *g, mezzo_value table, mezzo_value ids) {
    return mz_build_binary(g, MZ_OP_embedding, table, ids, (mz_attrs){0});
}

mezzo_value mezzo_cross_entropy(mezzo_graph *g, mezzo_value logits, mezzo_value targets, int32_t ignore_index) {
    return mezzo_cross_entropy_capped(g, logits, targets, ignore_index, 0);
}

mezzo_value mezzo_cross_entropy_capped(mezzo_graph *g, mezzo_value logits, mezzo_value targets, int32_t ignore_index,
                                       float cap) {
    if (!mz_build_broken(g) && !(cap >= 0 && isfinite(cap)))
        return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "cross_entropy: cap %g, must be 0 or more", (double)cap));
    return mz_build_binary(g, MZ_OP_cross_entropy, logits, targets,
                           (mz_attrs){.ignore_index = ignore_index, .score_cap = cap});
}

mezzo_value mezzo_dropout(mezzo_graph *g, mezzo_value x, float p) {
    if (mz_build_broken(g))
        return MEZZO_NONE;
    mezzo_status status = mz_build_check_probability("dropout", p);
    if (status != MEZZO_OK)
        return mz_build_failed(g, status);
    return mz_build_unary(g, MZ_OP_dropout, x, (mz_attrs){.p = p, .rng = g->next_rng++});
}

mezzo_value mezzo_cast(mezzo_graph *g, mezzo_value x, mezzo_dtype dtype) {
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_cast, x);
    node.pinned = true;
    if (mz_build_broken(g))
        return MEZZO_NONE;
    mezzo_status status = MEZZO_OK;
    if (dtype != MEZZO_F32 && dtype != MEZZO_BF16 && dtype != MEZZO_F16)
        status = mz_fail(MEZZO_ERR_INVALID, "cast to %s: fp32, bf16 and fp16 can be cast to", mezzo_dtype_name(dtype));
    if (status == MEZZO_OK)
        status = mz_build_finish_node(g, &node, NULL, dtype);
    return status == MEZZO_OK ? (mezzo_value){node.out[0]} : mz_build_failed(g, status);
}

mezzo_value mezzo_reshape(mezzo_graph *g, mezzo_value x, int rank, const int64_t *shape) {
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_reshape, x);
    if (mz_build_broken(g))
        return MEZZO_NONE;
    if (!has(g, x) || shape == NULL)
        return mz_build_failed(g,
                               mz_fail(MEZZO_ERR_INVALID, "reshape: x is not a value of this graph, or shape is NULL"));
    if (rank < 1 || rank > MEZZO_MAX_RANK)
        return mz_build_failed(
            g, mz_fail(MEZZO_ERR_INVALID, "reshape: to %d dimensions, must be 1 to %d", rank, MEZZO_MAX_RANK));
    int64_t count = mz_shape_count(&g->values[x.id].shape), known = 1;
    int unknown = -1;
    mz_shape out = {.rank = rank};
    for (int i = 0; i < rank; ++i) {
        out.dim[i] = shape[i];
        if (shape[i] == -1 && unknown < 0)
            unknown = i;
        else
            known = known > 0 && shape[i] > 0 && shape[i] <= count / known ? known * shape[i] : 0;
    }
    if (unknown >= 0)
        out.dim[unknown] = known > 0 ? count / known : 0;
    if (known <= 0 || mz_shape_count(&out) != count) {
        char from[64], to[64];
        return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "reshape: shape %s has %lld elements, %s cannot hold them",
                                          mz_shape_text(&g->values[x.id].shape, from, sizeof from), (long long)count,
                                          mz_shape_text(&out, to, sizeof to)));
    }
    mezzo_status status = mz_build_finish_node(g, &node, &out, g->values[x.id].dtype);
    return status == MEZZO_OK ? (mezzo_value){node.out[0]} : mz_build_failed(g, status);
}

static mezzo_status split(mezzo_graph *g, mezzo_value x, int axis, int parts, const int64_t *sizes, mz_node *node) {
    mz_shape shapes[MZ_MAX_OUT];
    char text[64];
    int64_t sum = 0;
    if (parts < 1 || parts > MZ_MAX_OUT)
        return mz_fail(MEZZO_ERR_INVALID, "split: %d parts, must be 1 to %d", parts, MZ_MAX_OUT);
    if (!has(g, x))
        return mz_fail(MEZZO_ERR_INVALID, "split: x is missing, or no value of this graph");
    const mz_value *v = &g->values[x.id];
    node->n_out = parts;
    node->attrs.axis = axis = axis < 0 ? axis + v->shape.rank : axis;
    if (sizes == NULL)
        return mz_build_finish_node(g, node, NULL, v->dtype);
    for (int i = 0; i < parts && axis >= 0 && axis < v->shape.rank; ++i) {
        shapes[i] = v->shape;
        shapes[i].dim[axis] = sizes[i];
        sum += sizes[i] > 0 ? sizes[i] : INT64_MAX / MZ_MAX_OUT / 2;
    }
    if (axis < 0 || axis >= v->shape.rank || sum != v->shape.dim[axis])
        return mz_fail(MEZZO_ERR_INVALID, "split: the sizes must be positive and add up to dimension %d of shape %s",
                       axis, mz_shape_text(&v->shape, text, sizeof text));
    return mz_build_finish_node(g, node, shapes, v->dtype);
}

mezzo_status mezzo_split_sizes(mezzo_graph *g, mezzo_value x, int axis, int parts, const int64_t *sizes,
                               mezzo_value *out) {
    MZ_REQUIRE(g, out);
    for (int i = 0; i < parts; ++i)
        out[i] = MEZZO_NONE;
    if (mz_build_broken(g))
        return mezzo_graph_status(g);
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_split, x);
    mezzo_status status = split(g, x, axis, parts, sizes, &node);
    if (status != MEZZO_OK) {
        remember(g, status);
        return status;
    }
    for (int i = 0; i < parts; ++i)
        out[i] = (mezzo_value){node.out[i]};
    return MEZZO_OK;
}

mezzo_status mezzo_split(mezzo_graph *g, mezzo_value x, int axis, int parts, mezzo_value *out) {
    return mezzo_split_sizes(g, x, axis, parts, NULL, out);
}

mezzo_value mezzo_concat(mezzo_graph *g, const mezzo_value *xs, int n, int axis) {
    if (mz_build_broken(g))
        return MEZZO_NONE;
    if (xs == NULL || n < 1 || n > MZ_MAX_IN)
        return mz_build_failed(
            g, mz_fail(MEZZO_ERR_INVALID, "concat: %d values, must be 1 to %d", xs != NULL ? n : 0, MZ_MAX_IN));
    mz_node node = mz_build_node(g, MZ_OP_concat, xs, n);
    node.attrs.axis = axis < 0 && has(g, xs[0]) ? axis + g->values[xs[0].id].shape.rank : axis;
    return mz_build_finish(g, &node);
}

mezzo_value mezzo_permute(mezzo_graph *g, mezzo_value x, const int *axes) {
    mz_attrs attrs = {0};
    int rank = mezzo_value_rank(g, x);
    if (!mz_build_broken(g) && axes == NULL)
        return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "permute: axes is NULL"));
    for (int i = 0; i < rank && axes != NULL; i++)
        attrs.permutation[i] = axes[i] < 0 ? axes[i] + rank : axes[i];
    return mz_build_unary(g, MZ_OP_permute, x, attrs);
}

mezzo_value mezzo_transpose(mezzo_graph *g, mezzo_value x, int a, int b) {
    int axes[MEZZO_MAX_RANK], rank = mezzo_value_rank(g, x);
    for (int i = 0; i < MEZZO_MAX_RANK; i++)
        axes[i] = i;
    a += a < 0 ? rank : 0;
    b += b < 0 ? rank : 0;
    if (!mz_build_broken(g) && x.id >= 0 && (a < 0 || a >= rank || b < 0 || b >= rank))
        return mz_build_failed(
            g, mz_fail(MEZZO_ERR_INVALID, "transpose: axes %d and %d of a value with %d dimensions", a, b, rank));
    if (a >= 0 && a < rank && b >= 0 && b < rank) {
        axes[a] = b;
        axes[b] = a;
    }
    return mezzo_permute(g, x, axes);
}

mezzo_value mezzo_slice(mezzo_graph *g, mezzo_value x, int axis, int64_t begin, int64_t end) {
    int64_t n = mezzo_value_dim(g, x, axis);
    mz_attrs attrs = {.axis = axis < 0 ? axis + mezzo_value_rank(g, x) : axis,
                      .begin = begin < 0 ? begin + n : begin,
                      .end = end < 0 ? end + n : end};
    return mz_build_unary(g, MZ_OP_slice, x, attrs);
}

int mezzo_value_rank(const mezzo_graph *g, mezzo_value v) {
    return !has(g, v) ? 0 : g->values[v.id].shape.rank;
}

int64_t mezzo_value_dim(const mezzo_graph *g, mezzo_value v, int axis) {
    int rank = mezzo_value_rank(g, v);
    if (axis < 0)
        axis += rank;
    return axis < 0 || axis >= rank ? 0 : g->values[v.id].shape.dim[axis];
}

mezzo_value mezzo_value_reshaped(const mezzo_graph *g, mezzo_value v) {
    const int maker = has(g, v) ? g->values[v.id].producer : -1;
    if (maker < 0)
        return has(g, v) ? v : MEZZO_NONE;
    return g->nodes[maker].op == MZ_OP_reshape ? (mezzo_value){g->nodes[maker].in[0]} : v;
}

static mezzo_status module_begin(mezzo_graph *g, const char *name) {
    if (name == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "mezzo_module_begin: name is NULL");
    if (!*name || strpbrk(name, "*?"))
        return mz_fail(MEZZO_ERR_INVALID, "module name '%s': must not be empty or hold '*' or '?'", name);
    const char *outer = g->modules[current_module(g)];
    char *path = mz_format("%s%s%s", outer, *outer ? "." : "", name);
    if (!path)
        return MEZZO_ERR_MEMORY;
    mezzo_status status;
    int index;
    MEZZO_TRY_GOTO(status, mz_graph_index_names(g));
    index = mz_graph_module(g, path);
    MEZZO_TRY_GOTO(status, MZ_RESERVE(g->scopes, g->cap_scopes, g->n_scopes + 1));
    if (index < 0) {
        MEZZO_TRY_GOTO(status, MZ_RESERVE(g->modules, g->cap_modules, g->n_modules + 1));
        index = (int)g->n_modules;
        g->modules[g->n_modules++] = path;
    } else {
        mz_free(path);
    }
    g->scopes[g->n_scopes++] = index;
    return MEZZO_OK;
fail:
    mz_free(path);
    return status;
}

void mezzo_module_begin(mezzo_graph *g, const char *name) {
    mezzo_status status = mz_build_broken(g) ? MEZZO_OK : module_begin(g, name);
    if (status != MEZZO_OK)
        remember(g, status);
}

void mezzo_module_end(mezzo_graph *g) {
    if (mz_build_broken(g))
        return;
    if (g->n_scopes)
        --g->n_scopes;
    else
        remember(g, mz_fail(MEZZO_ERR_INVALID, "mezzo_module_end without a begin"));
}

void mezzo_autocast_begin(mezzo_graph *g, mezzo_precision precision) {
    if (mz_build_broken(g))
        return;
    mezzo_status status = MZ_RESERVE(g->regions, g->cap_regions, g->n_regions + 1);
    if (status == MEZZO_OK && mz_precision(precision) == NULL)
        status = mz_fail(MEZZO_ERR_INVALID, "mezzo_autocast_begin: a region needs a precision, not auto");
    if (status != MEZZO_OK) {
        remember(g, status);
        return;
    }
    g->regions[g->n_regions++] = (int)precision;
}

void mezzo_autocast_end(mezzo_graph *g) {
    if (mz_build_broken(g))
        return;
    if (g->n_regions)
        --g->n_regions;
    else
        remember(g, mz_fail(MEZZO_ERR_INVALID, "mezzo_autocast_end without a begin"));
}

void mezzo_recompute_begin(mezzo_graph *g) {
    if (mz_build_broken(g))
        return;
    if (g->segment >= 0)
        remember(g, mz_fail(MEZZO_ERR_INVALID, "recompute segments do not nest"));
    g->segment = g->n_segments++;
}

void mezzo_recompute_end(mezzo_graph *g) {
    if (mz_build_broken(g))
        return;
    if (g->segment < 0)
        remember(g, mz_fail(MEZZO_ERR_INVALID, "mezzo_recompute_end without a begin"));
    g->segment = -1;
}

static mezzo_status add_output(mezzo_graph *g, const char *name, mezzo_value v) {
    if (!has(g, v))
        return mz_fail(MEZZO_ERR_INVALID, "output %s: no value of this graph", name);
    for (size_t i = 0; i < g->n_outputs; ++i)
        if (!strcmp(g->outputs[i].name, name))
            return mz_fail(MEZZO_ERR_INVALID, "output %s: the name is taken", name);
    MEZZO_TRY(MZ_RESERVE(g->outputs, g->cap_outputs, g->n_outputs + 1));
    char *copy = mz_strdup(name);
    if (!copy)
        return MEZZO_ERR_MEMORY;
    g->outputs[g->n_outputs++] = (mz_output){copy, v.id};
    g->values[v.id].keep = true;
    return MEZZO_OK;
}

mezzo_status mezzo_graph_output(mezzo_graph *g, const char *name, mezzo_value v) {
    MZ_REQUIRE(g, name);
    MEZZO_TRY(mezzo_graph_status(g));
    mezzo_status status = add_output(g, name, v);
    if (status != MEZZO_OK)
        remember(g, status);
    return status;
}

mezzo_status mezzo_graph_loss(mezzo_graph *g, mezzo_value v) {
    MZ_REQUIRE(g);
    MEZZO_TRY(mezzo_graph_output(g, "loss", v));
    const mz_value *value = &g->values[v.id];
    mezzo_status status = MEZZO_OK;
    char text[64];
    if (value->dtype == MEZZO_I32 || mz_shape_count(&value->shape) != 1)
        status = mz_fail(MEZZO_ERR_INVALID, "the loss must be one number, not shape %s",
                         mz_shape_text(&value->shape, text, sizeof text));
    if (status != MEZZO_OK) {
        remember(g, status);
        return status;
    }
    g->loss = v.id;
    return MEZZO_OK;
}
