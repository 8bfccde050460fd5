// Builds a graph from an ONNX file: node after node, first as a draft, then what the outputs need.
#include "onnx/idioms.h"
#include "onnx/onnx.h"

// --- inputs and outputs --------------------------------------------------------------------------------------------
static int port_of(const MzPb__ValueInfo *info, mezzo_onnx_port *port) {
    *port = (mezzo_onnx_port){.name = info->name, .dtype = MEZZO_F32};
    const MzPb__TensorType *type = info->type ? info->type->tensor_type : NULL;
    if (!type || !type->shape)
        return type ? type->elem_type : 0;
    port->dtype = mz_onnx_is_integer(type->elem_type) ? MEZZO_I32 : MEZZO_F32;
    port->rank = type->shape->n_dim > MEZZO_MAX_RANK ? MEZZO_MAX_RANK + 1 : (int)type->shape->n_dim;
    for (int i = 0; i < port->rank && i < MEZZO_MAX_RANK; i++) {
        const MzPb__Dimension *dim = type->shape->dim[i];
        port->dim[i] = dim->has_value ? dim->value : 0;
        port->symbol[i] = dim->has_value ? NULL : dim->param;
    }
    return type->elem_type;
}

// Returns the index-th input. An input that has an initializer is a weight; files for inference list it as a default.
static const MzPb__ValueInfo *input_at(const mezzo_onnx *onnx, int index) {
    const MzPb__Graph *graph = onnx->model->graph;
    for (size_t i = 0; i < graph->n_input; i++) {
        bool weight = false;
        for (size_t k = 0; k < graph->n_initializer && !weight; k++)
            weight = strcmp(graph->initializer[k]->name, graph->input[i]->name) == 0;
        if (!weight && index-- == 0)
            return graph->input[i];
    }
    return NULL;
}

int mezzo_onnx_inputs(const mezzo_onnx *onnx) {
    int n = 0;
    while (onnx && input_at(onnx, n))
        n++;
    return n;
}

int mezzo_onnx_outputs(const mezzo_onnx *onnx) {
    return onnx ? (int)onnx->model->graph->n_output : 0;
}

mezzo_status mezzo_onnx_input(const mezzo_onnx *onnx, int index, mezzo_onnx_port *out) {
    MZ_REQUIRE(onnx, out);
    const MzPb__ValueInfo *info = index < 0 ? NULL : input_at(onnx, index);
    if (!info)
        return mz_fail(MEZZO_ERR_INVALID, "input %d: there are %d", index, mezzo_onnx_inputs(onnx));
    port_of(info, out);
    return MEZZO_OK;
}

mezzo_status mezzo_onnx_output(const mezzo_onnx *onnx, int index, mezzo_onnx_port *out) {
    MZ_REQUIRE(onnx, out);
    if (index < 0 || index >= mezzo_onnx_outputs(onnx))
        return mz_fail(MEZZO_ERR_INVALID, "output %d: there are %d", index, mezzo_onnx_outputs(onnx));
    port_of(onnx->model->graph->output[index], out);
    return MEZZO_OK;
}

static mezzo_status bind(mezzo_onnx_port *port, int n, const mezzo_onnx_dim *dims) {
    for (int axis = 0; axis < port->rank; axis++) {
        char place[256];
        snprintf(place, sizeof place, "%s.%d", port->name, axis);
        for (int i = 0; i < n; i++)
            if (strcmp(dims[i].name, place) == 0 ||
                (port->symbol[axis] && strcmp(dims[i].name, port->symbol[axis]) == 0))
                port->dim[axis] = dims[i].size;
        if (port->dim[axis] < 1)
            return mz_fail(MEZZO_ERR_INVALID, "input '%s': dimension %d%s%s%s has no size: give one for %s", port->name,
                           axis, port->symbol[axis] ? " ('" : "", port->symbol[axis] ? port->symbol[axis] : "",
                           port->symbol[axis] ? "')" : "", port->symbol[axis] ? port->symbol[axis] : place);
    }
    return MEZZO_OK;
}

static mezzo_status add_inputs(mz_onnx_build *build, int n, const mezzo_onnx_dim *dims) {
    const MzPb__ValueInfo *info;
    for (int i = 0; (info = input_at(build->onnx, i)) != NULL; i++) {
        mezzo_onnx_port port;
        const int type = port_of(info, &port);
        if (type == 0 || port.rank > MEZZO_MAX_RANK)
            return mz_fail(MEZZO_ERR_FORMAT, "input '%s' is no tensor of at most %d dimensions", port.name,
                           MEZZO_MAX_RANK);
        MEZZO_TRY(bind(&port, n, dims));
        mz_onnx_value *value = mz_onnx_find(build->onnx, port.name);
        const int64_t one = 1;
        value->base = value->moved =
            mezzo_input(build->g, port.name, port.dtype, port.rank ? port.rank : 1, port.rank ? port.dim : &one);
        value->kind = MZ_ONNX_VALUE;
        value->integer = port.dtype == MEZZO_I32;
        value->rank = port.rank;
        for (int axis = 0; axis < port.rank; axis++) {
            value->dim[axis] = port.dim[axis];
            value->perm[axis] = axis;
        }
    }
    return mezzo_graph_status(build->g);
}

// --- nodes ---------------------------------------------------------------------------------------------------------
static mezzo_status set_up(mz_onnx_call *call, bool matched) {
    const MzPb__Node *node = call->node;
    for (int i = 0; i < call->n_in; i++) {
        call->in[i] = node->input[i][0] == '\0' ? NULL : mz_onnx_find(call->build->onnx, node->input[i]);
        if (!matched && call->in[i] && call->in[i]->kind == MZ_ONNX_ABSENT)
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "nothing before it makes '%s'", call->in[i]->name);
    }
    for (int i = 0; i < call->op->least; i++)
        if (i >= call->n_in || !call->in[i])
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it has no input %d", i);
    for (int i = 0; i < call->n_out; i++) {
        call->out[i] = mz_onnx_find(call->build->onnx, node->output[i]);
        if (node->output[i][0] != '\0' && call->out[i]->kind != MZ_ONNX_ABSENT)
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "'%s' is made twice", call->out[i]->name);
    }
    return MEZZO_OK;
}

const char *mz_onnx_module(mz_onnx_build *build, const char *name) {
    const char *before = build->module;
    if (before)
        mezzo_module_end(build->g);
    build->module = name && name[0] != '\0' ? name : NULL;
    if (build->module)
        mezzo_module_begin(build->g, build->module);
    return before;
}

static mezzo_status convert(mz_onnx_build *build, size_t i) {
    const MzPb__Node *node = build->onnx->model->graph->node[i];
    mz_onnx_call call = {.build = build,
                         .node = node,
                         .op = mz_onnx_op_of(node->op_type),
                         .n_in = (int)node->n_input,
                         .n_out = (int)node->n_output};
    bool done = false;
    if (strcmp(node->op_type, "Constant") == 0 && mz_onnx_find(build->onnx, node->output[0])->kind != MZ_ONNX_ABSENT)
        return MEZZO_OK; // it is a weight, or a table that is known already
    MEZZO_TRY(set_up(&call, build->matches[i] != NULL));
    mz_onnx_module(build, node->name && strpbrk(node->name, "*?") == NULL ? node->name : NULL);
    MEZZO_TRY(mz_onnx_recognize(&call, (int)i, &done));
    mezzo_status status = done ? MEZZO_OK : call.op->convert(&call);
    mz_onnx_module(build, NULL);
    return status;
}

static bool is_needed(const mezzo_onnx *onnx, const MzPb__Node *node) {
    for (size_t k = 0; k < node->n_output; k++) {
        const mz_onnx_value *value = mz_onnx_find(onnx, node->output[k]);
        if (value->needed && value->kind != MZ_ONNX_HOST && value->name[0] != '\0')
            return true;
    }
    return false;
}

static mezzo_status convert_all(mz_onnx_build *build) {
    const MzPb__Graph *graph = build->onnx->model->graph;
    for (size_t i = 0; i < graph->n_node; i++)
        if (build->draft || is_needed(build->onnx, graph->node[i]))
            MEZZO_TRY(convert(build, i));
    return MEZZO_OK;
}

// Marks, after the draft, the values on the way to an output. Known numbers need none.
static void find_needed(mz_onnx_build *build) {
    const MzPb__Graph *graph = build->onnx->model->graph;
    for (size_t i = 0; i < graph->n_output; i++)
        mz_onnx_find(build->onnx, graph->output[i]->name)->needed = true;
    for (size_t i = graph->n_node; i-- > 0;) {
        const mz_onnx_match *match = build->matches[i];
        if (!is_needed(build->onnx, graph->node[i]))
            continue;
        for (size_t k = 0; !match && k < graph->node[i]->n_input; k++)
            mz_onnx_find(build->onnx, graph->node[i]->input[k])->needed = true;
        for (size_t k = 0; match && k < MZ_COUNT(match->value); k++)
            if (match->value[k])
                match->value[k]->needed = true;
    }
}

// --- the whole -----------------------------------------------------------------------------------------------------
static mezzo_status draft(mz_onnx_build *build, int n, const mezzo_onnx_dim *dims) {
    mezzo_graph *real = build->g;
    mezzo_onnx *onnx = build->onnx;
    mz_onnx_value *before = mz_onnx_take(build, onnx->n_values, sizeof *before);
    if (!before)
        return MEZZO_ERR_MEMORY;
    memcpy(before, onnx->values, onnx->n_values * sizeof *before);
    MEZZO_TRY(mezzo_graph_create(&build->g));
    build->draft = true;
    mezzo_status status = add_inputs(build, n, dims);
    if (status == MEZZO_OK)
        status = convert_all(build);
    if (status == MEZZO_OK)
        find_needed(build);
    mezzo_graph_free(build->g);
    build->g = real;
    build->draft = false;
    build->rope = (mz_onnx_rope_table){0};
    mz_onnx_free_params(onnx);
    for (size_t i = 0; i < onnx->n_values; i++) {
        before[i].needed = onnx->values[i].needed;
        if (onnx->values[i].kind != MZ_ONNX_HOST)
            onnx->values[i] = before[i];
    }
    return status;
}

static mezzo_status write_ties(mz_onnx_build *build) { // writes tied ones, too
    const mezzo_onnx *onnx = build->onnx;
    for (size_t i = 0; i < onnx->n_values; i++) {
        const mz_onnx_value *value = &onnx->values[i];
        const bool of_file =
            value->producer < 0 || strcmp(onnx->model->graph->node[value->producer]->op_type, "Constant") == 0;
        if (!of_file || value->kind != MZ_ONNX_WEIGHT || !value->of || value->of->base.id < 0)
            continue;
        mz_onnx_param *param;
        MEZZO_TRY(mz_onnx_add_record(build->onnx, value->of->name, &param));
        param->tensor = value->tensor;
        param->rank = value->rank;
        param->count = mz_onnx_elements(value->rank, value->dim);
        memcpy(param->dim, value->dim, sizeof param->dim);
        memcpy(param->perm, value->perm, sizeof param->perm);
    }
    return MEZZO_OK;
}

static mezzo_status give_outputs(mz_onnx_build *build, mezzo_value *values) {
    const MzPb__Graph *graph = build->onnx->model->graph;
    for (size_t i = 0; i < graph->n_output; i++) {
        mz_onnx_value *value = mz_onnx_find(build->onnx, graph->output[i]->name);
        if (value->kind != MZ_ONNX_VALUE)
            return mz_fail(MEZZO_ERR_FORMAT, "output '%s' depends on no input", value->name);
        mz_onnx_call call = {.build = build, .node = graph->node[graph->n_node - 1]};
        MEZZO_TRY(mz_onnx_value_of(&call, value, &values[i]));
    }
    return MEZZO_OK;
}

static mezzo_status build_all(mz_onnx_build *build, int n, const mezzo_onnx_dim *dims, mezzo_value *values) {
    mezzo_onnx *onnx = build->onnx;
    if (!(build->matches = mz_onnx_take(build, onnx->model->graph->n_node, sizeof(mz_onnx_match *))))
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(mz_onnx_find_weights(build));
    MEZZO_TRY(draft(build, n, dims));
    MEZZO_TRY(add_inputs(build, n, dims));
    MEZZO_TRY(convert_all(build));
    MEZZO_TRY(write_ties(build));
    return give_outputs(build, values);
}

mezzo_status mezzo_onnx_build(mezzo_onnx *onnx, mezzo_graph *graph, int n, const mezzo_onnx_dim *dims,
                              mezzo_value *values) {
    MZ_REQUIRE(onnx, graph, values);
    mz_onnx_free_params(onnx);
    memset(onnx->recognized, 0, mz_onnx_idiom_count() * sizeof *onnx->recognized);
    for (size_t i = 0; i < onnx->n_values; i++)
        onnx->values[i] = (mz_onnx_value){.name = onnx->values[i].name,
                                          .base = MEZZO_NONE,
                                          .moved = MEZZO_NONE,
                                          .producer = onnx->values[i].producer};
    mz_onnx_build build = {.onnx = onnx, .g = graph};
    mezzo_status status = build_all(&build, n, dims, values);
    for (size_t i = 0; i < build.n_blocks; i++)
        mz_free(build.blocks[i]);
    mz_free(build.blocks);
    return status == MEZZO_OK ? status : mz_context(status, "'%s'", onnx->path);
}
