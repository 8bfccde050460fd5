// From an ONNX file to a graph: node after node, each name's value in turn.
#include <math.h>

#include "io/file.h"
#include "mezzo/step.h"
#include "onnx/onnx.h"

// --- memory and values ---------------------------------------------------------------------------------------------
void *mz_onnx_take(mz_onnx_build *build, size_t count, size_t size) {
    if ((build->n_blocks & (build->n_blocks - 1)) == 0) { // room for twice as many
        void **more = mz_alloc(build->n_blocks ? 2 * build->n_blocks : 1, sizeof *more);
        if (!more)
            return NULL;
        if (build->n_blocks > 0)
            memcpy(more, build->blocks, build->n_blocks * sizeof *more);
        mz_free(build->blocks);
        build->blocks = more;
    }
    void *block = mz_alloc(count ? count : 1, size);
    if (block)
        build->blocks[build->n_blocks++] = block;
    return block;
}

static mezzo_status set_shape(mz_onnx_call *call, mz_onnx_value *value, int rank, const int64_t *dim) {
    if (rank > MEZZO_MAX_RANK)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "%d dimensions; at most %d work", rank, MEZZO_MAX_RANK);
    value->rank = rank;
    for (int i = 0; i < rank; i++)
        value->dim[i] = dim[i];
    return MEZZO_OK;
}

mezzo_status mz_onnx_host(mz_onnx_call *call, int out, bool integer, int rank, const int64_t *dim, double **numbers) {
    mz_onnx_value *value = call->out[out];
    MEZZO_TRY(set_shape(call, value, rank, dim));
    const int64_t n = mz_onnx_elements(rank, dim);
    if (n < 0 || n > INT64_C(1) << 26)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "a table of %lld known numbers", (long long)n);
    *numbers = value->numbers = mz_onnx_take(call->build, (size_t)n, sizeof(double));
    if (!*numbers)
        return MEZZO_ERR_MEMORY;
    value->kind = MZ_ONNX_HOST;
    value->integer = integer;
    return MEZZO_OK;
}

mezzo_status mz_onnx_give(mz_onnx_call *call, int out, bool integer, int rank, mezzo_value made) {
    mezzo_status status = mezzo_graph_status(call->build->g);
    if (status != MEZZO_OK)
        return mz_context(status, "%s node '%s'", call->node->op_type,
                          call->node->name ? call->node->name : call->node->output[0]);
    mz_onnx_value *value = call->out[out];
    int64_t dim[MEZZO_MAX_RANK];
    for (int i = 0; i < rank; i++)
        dim[i] = mezzo_value_dim(call->build->g, made, i);
    MEZZO_TRY(set_shape(call, value, rank, dim));
    value->kind = MZ_ONNX_VALUE;
    value->integer = integer;
    value->value = made;
    return MEZZO_OK;
}

// --- parameters ----------------------------------------------------------------------------------------------------
static mezzo_status add_record(mezzo_onnx *onnx, const char *name, mz_onnx_param **out) {
    if ((onnx->n_params & (onnx->n_params - 1)) == 0) {
        mz_onnx_param *more = mz_alloc(onnx->n_params ? 2 * onnx->n_params : 1, sizeof *more);
        if (!more)
            return MEZZO_ERR_MEMORY;
        if (onnx->n_params > 0)
            memcpy(more, onnx->params, onnx->n_params * sizeof *more);
        mz_free(onnx->params);
        onnx->params = more;
    }
    mz_onnx_param *param = &onnx->params[onnx->n_params];
    *param = (mz_onnx_param){0};
    if (!(param->name = mz_alloc(1, strlen(name) + 1)))
        return MEZZO_ERR_MEMORY;
    strcpy(param->name, name);
    onnx->n_params++;
    *out = param;
    return MEZZO_OK;
}

static mezzo_status add_param(mz_onnx_call *call, const char *name, int rank, const int64_t *dim, mz_onnx_param **out,
                              mezzo_value *value) {
    MEZZO_TRY(add_record(call->build->onnx, name, out));
    const int64_t one = 1;
    *value =
        mezzo_param(call->build->g, name, (mezzo_init){.kind = MEZZO_INIT_ZERO}, rank ? rank : 1, rank ? dim : &one);
    MEZZO_TRY(mezzo_graph_status(call->build->g));
    (*out)->count = mz_onnx_elements(rank, dim);
    return MEZZO_OK;
}

mezzo_status mz_onnx_parameter(mz_onnx_call *call, mz_onnx_value *weight, mezzo_value *out) {
    mz_onnx_value *own = weight->of ? weight->of : weight;
    if (own->value.id < 0) {
        int64_t dim[MEZZO_MAX_RANK];
        for (int i = 0; i < own->rank; i++)
            dim[i] = own->dim[own->columns ? own->rank - 1 - i : i];
        mz_onnx_param *param;
        MEZZO_TRY(add_param(call, own->name, own->rank, dim, &param, &own->value));
        param->tensor = own->tensor;
        param->columns = own->columns;
        param->rows = own->rank > 0 ? own->dim[0] : 1;
    }
    *out = own->value;
    return MEZZO_OK;
}

mezzo_status mz_onnx_constant(mz_onnx_call *call, bool integer, int rank, const int64_t *dim, const double *numbers,
                              mezzo_value *out) {
    const int64_t n = mz_onnx_elements(rank, dim);
    if (integer)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "a table of known integers among computed ones");
    char name[64];
    snprintf(name, sizeof name, "onnx.constant.%zu", call->build->onnx->n_params);
    mz_onnx_param *param;
    MEZZO_TRY(add_param(call, name, rank, dim, &param, out));
    if (!(param->numbers = mz_alloc((size_t)n, sizeof(float))))
        return MEZZO_ERR_MEMORY;
    for (int64_t i = 0; i < n; i++)
        param->numbers[i] = (float)numbers[i];
    return mezzo_graph_freeze(call->build->g, name);
}

mezzo_status mz_onnx_get(mz_onnx_call *call, int in, mezzo_value *out) {
    mz_onnx_value *value = in < call->n_in ? call->in[in] : NULL;
    if (!value)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it has no input %d", in);
    mezzo_graph *g = call->build->g;
    switch (value->kind) {
    case MZ_ONNX_VALUE:
        *out = value->value;
        if (value->negated) {
            mezzo_value zero;
            MEZZO_TRY(mz_onnx_constant(call, false, 0, NULL, &(double){0}, &zero));
            *out = value->value = mezzo_equal(g, value->value, zero);
            value->negated = false;
        }
        return MEZZO_OK;
    case MZ_ONNX_WEIGHT: {
        MEZZO_TRY(mz_onnx_parameter(call, value, out));
        const bool columns = (value->of ? value->of : value)->columns;
        if (columns != value->transposed)
            *out = mezzo_transpose(g, *out, 0, 1);
        return MEZZO_OK;
    }
    case MZ_ONNX_HOST:
        return mz_onnx_constant(call, value->integer, value->rank, value->dim, value->numbers, out);
    case MZ_ONNX_ABSENT:
        break;
    }
    return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "nothing makes its input '%s'", value->name);
}

bool mz_onnx_known(const mz_onnx_call *call) {
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && call->in[i]->kind != MZ_ONNX_HOST)
            return false;
    return true;
}

mezzo_status mz_onnx_numbers(mz_onnx_call *call, int in, const double **out) {
    if (in >= call->n_in || !call->in[in])
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it has no input %d", in);
    if (call->in[in]->kind != MZ_ONNX_HOST)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "its input '%s' must be known when the model is built",
                            call->in[in]->name);
    *out = call->in[in]->numbers;
    return MEZZO_OK;
}

int64_t mz_onnx_integer(double number) { // ±2^63 are "the end"
    return isnan(number) ? 0 : number >= 9e18 ? INT64_MAX : number <= -9e18 ? INT64_MIN : (int64_t)number;
}

mezzo_status mz_onnx_ints(mz_onnx_call *call, int in, int most, int *n, int64_t *out) {
    const double *numbers;
    MEZZO_TRY(mz_onnx_numbers(call, in, &numbers));
    const int64_t count = mz_onnx_elements(call->in[in]->rank, call->in[in]->dim);
    if (count > most)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "its input '%s' has %lld numbers; at most %d work",
                            call->in[in]->name, (long long)count, most);
    *n = (int)count;
    for (int i = 0; i < *n; i++)
        out[i] = mz_onnx_integer(numbers[i]);
    return MEZZO_OK;
}

// --- inputs and initializers ---------------------------------------------------------------------------------------
static int port_of(const MzPb__ValueInfo *info, mezzo_onnx_port *port) {
    *port = (mezzo_onnx_port){.name = info->name, .dtype = MEZZO_F32};
    const MzPb__TensorType *type = info->type ? info->type->tensor_type : NULL;
    if (!type || !type->shape)
        return type ? type->elem_type : 0;
    if (type->elem_type != MZ_ONNX_FLOAT && type->elem_type != MZ_ONNX_FLOAT16 && type->elem_type != MZ_ONNX_BFLOAT16 &&
        type->elem_type != MZ_ONNX_DOUBLE)
        port->dtype = MEZZO_I32;
    port->rank = type->shape->n_dim > MEZZO_MAX_RANK ? MEZZO_MAX_RANK + 1 : (int)type->shape->n_dim;
    for (int i = 0; i < port->rank && i < MEZZO_MAX_RANK; i++) {
        const MzPb__Dimension *dim = type->shape->dim[i];
        port->dim[i] = dim->has_value ? dim->value : 0;
        port->symbol[i] = dim->has_value ? NULL : dim->param;
    }
    return type->elem_type;
}

// Inputs that have an initializer are defaults of files for inference: weights.
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
            return mz_fail(MEZZO_ERR_UNSUPPORTED, "input '%s' is no tensor of at most %d dimensions", port.name,
                           MEZZO_MAX_RANK);
        MEZZO_TRY(bind(&port, n, dims));
        mz_onnx_value *value = mz_onnx_find(build->onnx, port.name);
        const int64_t one = 1;
        value->value =
            mezzo_input(build->g, port.name, port.dtype, port.rank ? port.rank : 1, port.rank ? port.dim : &one);
        value->kind = MZ_ONNX_VALUE;
        value->integer = port.dtype == MEZZO_I32;
        value->rank = port.rank;
        memcpy(value->dim, port.dim, sizeof value->dim);
    }
    return mezzo_graph_status(build->g);
}

// A tensor of the file as known numbers.
static mezzo_status known(mz_onnx_build *build, const MzPb__Tensor *tensor, mz_onnx_value *value) {
    value->rank = (int)tensor->n_dims;
    for (int i = 0; i < value->rank; i++)
        value->dim[i] = tensor->dims[i];
    value->integer = tensor->data_type != MZ_ONNX_FLOAT && tensor->data_type != MZ_ONNX_DOUBLE &&
                     tensor->data_type != MZ_ONNX_FLOAT16 && tensor->data_type != MZ_ONNX_BFLOAT16;
    value->kind = MZ_ONNX_HOST;
    value->numbers = mz_onnx_take(build, (size_t)mz_onnx_elements(value->rank, value->dim), sizeof(double));
    if (!value->numbers)
        return MEZZO_ERR_MEMORY;
    return mz_onnx_floats(build->onnx, tensor, value->numbers);
}

// Floats of more than one element are weights, unless one of them is no number that training could have made.
static mezzo_status add_initializers(mz_onnx_build *build) {
    const MzPb__Graph *graph = build->onnx->model->graph;
    for (size_t i = 0; i < graph->n_initializer; i++) {
        const MzPb__Tensor *tensor = graph->initializer[i];
        mz_onnx_value *value = mz_onnx_find(build->onnx, tensor->name);
        MEZZO_TRY(known(build, tensor, value));
        const int64_t n = mz_onnx_elements(value->rank, value->dim);
        bool weight = !value->integer && n > 1;
        for (int64_t k = 0; k < n && weight; k++)
            weight = fabs(value->numbers[k]) < 1e30;
        if (!weight)
            continue;
        mz_free(build->blocks[--build->n_blocks]);
        value->numbers = NULL;
        value->kind = MZ_ONNX_WEIGHT;
        value->tensor = tensor;
    }
    return MEZZO_OK;
}

// A table that computed numbers are multiplied by, as rotary embeddings' cosines, is known and not trained: a weight of
// such a product has one dimension (a norm's, a layer's scale).
static mezzo_status find_tables(mz_onnx_build *build) {
    const MzPb__Graph *graph = build->onnx->model->graph;
    for (size_t i = 0; i < graph->n_node; i++) {
        const char *op = graph->node[i]->op_type;
        if (strcmp(op, "Mul") != 0 && strcmp(op, "Div") != 0 && strcmp(op, "Where") != 0)
            continue;
        for (size_t k = 0; k < graph->node[i]->n_input; k++) {
            mz_onnx_value *value = mz_onnx_find(build->onnx, graph->node[i]->input[k]);
            int wide = 0;
            for (int axis = 0; axis < value->rank; axis++)
                wide += value->dim[axis] > 1;
            if (value->kind == MZ_ONNX_WEIGHT && wide > 1)
                MEZZO_TRY(known(build, value->tensor, value));
        }
    }
    return MEZZO_OK;
}

// An exporter writes the matrix of a tied head a second time, transposed. A matrix that is another's transpose, number
// for number, and not one number all over, is that other one.
static mezzo_status tie(mz_onnx_build *build, mz_onnx_value *value, mz_onnx_value *first) {
    const int64_t rows = first->dim[0], columns = first->dim[1], n = rows * columns;
    double *a = mz_alloc((size_t)n, sizeof *a), *b = mz_alloc((size_t)n, sizeof *b);
    mezzo_status status = a && b ? mz_onnx_floats(build->onnx, first->tensor, a) : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = mz_onnx_floats(build->onnx, value->tensor, b);
    bool same = status == MEZZO_OK, varied = false;
    for (int64_t i = 0; i < n && same; i++) {
        same = a[i] == b[i % columns * rows + i / columns];
        varied = varied || a[i] != a[0];
    }
    if (same && varied) {
        value->of = first;
        value->transposed = true;
    }
    mz_free(a);
    mz_free(b);
    return status;
}

static mezzo_status find_ties(mz_onnx_build *build) {
    const MzPb__Graph *graph = build->onnx->model->graph;
    for (size_t i = 1; i < graph->n_initializer; i++) {
        mz_onnx_value *value = &build->onnx->values[i];
        for (size_t k = 0; k < i && value->kind == MZ_ONNX_WEIGHT && value->rank == 2 && !value->of; k++) {
            mz_onnx_value *first = &build->onnx->values[k];
            if (first->kind == MZ_ONNX_WEIGHT && first->rank == 2 && !first->of && first != value &&
                first->dim[0] == value->dim[1] && first->dim[1] == value->dim[0])
                MEZZO_TRY(tie(build, value, first));
        }
    }
    return MEZZO_OK;
}

// Weights that products alone read, as [K, N] in the file, are [N, K] in the graph, as linear layers want them.
static void find_columns(mezzo_onnx *onnx) {
    const MzPb__Graph *graph = onnx->model->graph;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < graph->n_node; i++) {
            const MzPb__Node *node = graph->node[i];
            for (size_t k = 0; k < node->n_input; k++) {
                mz_onnx_value *value = mz_onnx_find(onnx, node->input[k]);
                if (value->kind != MZ_ONNX_WEIGHT || value->rank != 2)
                    continue;
                if (value->of) // its other form is read as the file has it
                    value = value->of;
                const bool product = value == mz_onnx_find(onnx, node->input[k]) && k == 1 &&
                                     (strcmp(node->op_type, "MatMul") == 0 ||
                                      (strcmp(node->op_type, "Gemm") == 0 && !mz_onnx_int_or(node, "transB", 0)));
                if (pass == 0 && product)
                    value->columns = true;
                else if (pass == 1 && !product)
                    value->columns = false;
            }
        }
}

// --- the whole -----------------------------------------------------------------------------------------------------
static mezzo_status convert(mz_onnx_build *build, const MzPb__Node *node) {
    mz_onnx_call call = {.build = build, .node = node, .n_in = (int)node->n_input, .n_out = (int)node->n_output};
    const mz_onnx_op *op = mz_onnx_op_of(node->op_type);
    for (int i = 0; i < call.n_in; i++) {
        call.in[i] = node->input[i][0] == '\0' ? NULL : mz_onnx_find(build->onnx, node->input[i]);
        if (call.in[i] && call.in[i]->kind == MZ_ONNX_ABSENT)
            return mz_onnx_fail(&call, MEZZO_ERR_FORMAT, "nothing before it makes '%s'", call.in[i]->name);
    }
    for (int i = 0; i < op->least; i++)
        if (i >= call.n_in || !call.in[i])
            return mz_onnx_fail(&call, MEZZO_ERR_FORMAT, "it has no input %d", i);
    for (int i = 0; i < call.n_out; i++) {
        call.out[i] = mz_onnx_find(build->onnx, node->output[i]);
        if (node->output[i][0] != '\0' && call.out[i]->kind != MZ_ONNX_ABSENT)
            return mz_onnx_fail(&call, MEZZO_ERR_FORMAT, "'%s' is made twice", call.out[i]->name);
    }
    return op->convert(&call, op->which);
}

static mezzo_status build_all(mz_onnx_build *build, int n, const mezzo_onnx_dim *dims, mezzo_value *values) {
    const MzPb__Graph *graph = build->onnx->model->graph;
    MEZZO_TRY(add_initializers(build));
    MEZZO_TRY(find_tables(build));
    MEZZO_TRY(find_ties(build));
    find_columns(build->onnx);
    MEZZO_TRY(add_inputs(build, n, dims));
    for (size_t i = 0; i < graph->n_node; i++)
        MEZZO_TRY(convert(build, graph->node[i]));
    for (size_t i = 0; i < graph->n_initializer; i++) { // tied ones are written too
        mz_onnx_value *value = mz_onnx_find(build->onnx, graph->initializer[i]->name);
        if (value->kind != MZ_ONNX_WEIGHT || !value->of || value->of->value.id < 0)
            continue;
        mz_onnx_param *param;
        MEZZO_TRY(add_record(build->onnx, value->of->name, &param));
        param->tensor = value->tensor;
        param->columns = true;
        param->rows = value->dim[0];
        param->count = value->dim[0] * value->dim[1];
    }
    for (size_t i = 0; i < graph->n_output; i++) {
        mz_onnx_value *value = mz_onnx_find(build->onnx, graph->output[i]->name);
        if (value->kind != MZ_ONNX_VALUE)
            return mz_fail(MEZZO_ERR_UNSUPPORTED, "output '%s' depends on no input", value->name);
        values[i] = value->value;
    }
    return MEZZO_OK;
}

mezzo_status mezzo_onnx_build(mezzo_onnx *onnx, mezzo_graph *graph, int n, const mezzo_onnx_dim *dims,
                              mezzo_value *values) {
    MZ_REQUIRE(onnx, graph, values);
    for (size_t i = 0; i < onnx->n_params; i++) {
        mz_free(onnx->params[i].name);
        mz_free(onnx->params[i].numbers);
    }
    onnx->n_params = 0;
    mz_free(onnx->params);
    onnx->params = NULL;
    for (size_t i = 0; i < onnx->n_values; i++)
        onnx->values[i] = (mz_onnx_value){.name = onnx->values[i].name, .value = MEZZO_NONE};
    mz_onnx_build build = {.onnx = onnx, .g = graph};
    mezzo_status status = build_all(&build, n, dims, values);
    for (size_t i = 0; i < build.n_blocks; i++)
        mz_free(build.blocks[i]);
    mz_free(build.blocks);
    return status == MEZZO_OK ? status : mz_context(status, "'%s'", onnx->path);
}

// --- weights -------------------------------------------------------------------------------------------------------
// Element i of the file's tensor is element `place` of the parameter.
static int64_t place_of(const mz_onnx_param *param, int64_t i) {
    const int64_t columns = param->count / param->rows;
    return param->columns ? i % columns * param->rows + i / columns : i;
}

static mezzo_status load_one(const mezzo_onnx *onnx, const mz_onnx_param *param, mezzo_params *params) {
    const int index = mezzo_params_find(params, param->name);
    if (index < 0)
        return mz_fail(MEZZO_ERR_INVALID, "the parameters have no '%s'", param->name);
    if (!param->tensor)
        return mezzo_params_write(params, index, param->numbers);
    const size_t n = (size_t)param->count;
    double *wide = mz_alloc(n, sizeof *wide);
    float *values = mz_alloc(n, sizeof *values);
    mezzo_status status = wide && values ? mz_onnx_floats(onnx, param->tensor, wide) : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK) {
        for (int64_t i = 0; i < param->count; i++)
            values[place_of(param, i)] = (float)wide[i];
        status = mezzo_params_write(params, index, values);
    }
    mz_free(wide);
    mz_free(values);
    return status;
}

mezzo_status mezzo_onnx_load(const mezzo_onnx *onnx, mezzo_params *params) {
    MZ_REQUIRE(onnx, params);
    for (size_t i = 0; i < onnx->n_params; i++)
        MEZZO_TRY(load_one(onnx, &onnx->params[i], params));
    return MEZZO_OK;
}

// A tensor of the message gets other numbers for as long as it is written.
static mezzo_status replace(const mz_onnx_param *param, const mezzo_params *params, MzPb__Tensor *tensor,
                            float **bytes) {
    const int index = mezzo_params_find(params, param->name);
    if (index < 0)
        return mz_fail(MEZZO_ERR_INVALID, "the parameters have no '%s'", param->name);
    const size_t n = (size_t)param->count;
    float *values = mz_alloc(n, sizeof *values);
    *bytes = mz_alloc(n, sizeof **bytes);
    mezzo_status status = values && *bytes ? mezzo_params_read(params, index, values) : MEZZO_ERR_MEMORY;
    for (int64_t i = 0; status == MEZZO_OK && i < param->count; i++)
        (*bytes)[i] = values[place_of(param, i)];
    mz_free(values);
    tensor->n_float_data = tensor->n_double_data = tensor->n_int32_data = tensor->n_external_data = 0;
    tensor->data_type = MZ_ONNX_FLOAT;
    tensor->has_data_location = 0;
    tensor->has_raw_data = 1;
    tensor->raw_data = (ProtobufCBinaryData){.len = n * sizeof(float), .data = (uint8_t *)*bytes};
    return status;
}

mezzo_status mezzo_onnx_save(const mezzo_onnx *onnx, const mezzo_params *params, const char *path) {
    MZ_REQUIRE(onnx, params, path);
    mezzo_status status = MEZZO_OK;
    MzPb__Tensor *before = mz_alloc(onnx->n_params + 1, sizeof *before);
    float **bytes = mz_alloc(onnx->n_params + 1, sizeof *bytes);
    uint8_t *packed = NULL;
    if (!before || !bytes)
        status = MEZZO_ERR_MEMORY;
    size_t done = 0;
    for (; status == MEZZO_OK && done < onnx->n_params; done++) {
        MzPb__Tensor *tensor = (MzPb__Tensor *)onnx->params[done].tensor;
        if (!tensor)
            continue;
        before[done] = *tensor;
        status = replace(&onnx->params[done], params, tensor, &bytes[done]);
    }
    if (status == MEZZO_OK) {
        const size_t size = mz_pb__model__get_packed_size(onnx->model);
        if (size > INT32_MAX)
            status =
                mz_fail(MEZZO_ERR_UNSUPPORTED, "'%s' would have %zu bytes; an ONNX file has at most 2 GiB", path, size);
        else if (!(packed = mz_alloc(1, size)))
            status = MEZZO_ERR_MEMORY;
        else
            status = mz_file_write_atomic(path, packed, mz_pb__model__pack(onnx->model, packed));
    }
    for (size_t i = 0; i < done; i++) {
        if (onnx->params[i].tensor)
            *(MzPb__Tensor *)onnx->params[i].tensor = before[i];
        mz_free(bytes[i]);
    }
    mz_free(packed);
    mz_free(bytes);
    mz_free(before);
    return status;
}
