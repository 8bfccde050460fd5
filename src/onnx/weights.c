// Finds the initializers of an ONNX file that are weights, loads them and writes them back.
#include <math.h>

#include "base/scope.h"
#include "io/quote.h"
#include "io/file.h"
#include "mezzo/step.h"
#include "onnx/onnx.h"
#include "onnx/place.h"

// --- parameters ----------------------------------------------------------------------------------------------------
mezzo_status mz_onnx_add_record(mezzo_onnx *onnx, const char *name, mz_onnx_param **out) {
    if ((onnx->n_params & (onnx->n_params - 1)) == 0) {
        mz_onnx_param *more;
        MEZZO_TRY(MZ_NEW(more, onnx->n_params ? 2 * onnx->n_params : 1));
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

// Adds a parameter; its record's tensor has the parameter's own shape, unless the caller changes that.
mezzo_status mz_onnx_add_param(mz_onnx_call *call, const char *name, int rank, const int64_t *dim, bool frozen,
                               mz_onnx_param **out, mezzo_value *value) {
    MEZZO_TRY(mz_onnx_add_record(call->build->onnx, name, out));
    mezzo_graph *g = call->build->g;
    const int64_t one = 1;
    const char *module = mz_onnx_module(call->build, NULL); // a parameter has the file's name
    *value = mezzo_param(g, name, (mezzo_init){.kind = MEZZO_INIT_ZERO}, rank ? rank : 1, rank ? dim : &one);
    mz_onnx_module(call->build, module);
    MEZZO_TRY(mezzo_graph_status(g));
    (*out)->rank = rank;
    (*out)->count = mz_onnx_elements(rank, dim);
    for (int i = 0; i < rank; i++) {
        (*out)->dim[i] = dim[i];
        (*out)->perm[i] = i;
    }
    return frozen ? mezzo_graph_freeze(g, name) : MEZZO_OK;
}

void mz_onnx_free_params(mezzo_onnx *onnx) {
    for (size_t i = 0; i < onnx->n_params; i++) {
        MZ_FREE(onnx->params[i].name, onnx->params[i].numbers);
    }
    mz_free(onnx->params);
    onnx->params = NULL;
    onnx->n_params = 0;
}

// --- which initializers are weights, and in which order ------------------------------------------------------------
// Reads a tensor of the file as known numbers.
static mezzo_status known(mz_onnx_build *build, const MzPb__Tensor *tensor, mz_onnx_value *value) {
    value->rank = (int)tensor->n_dims;
    for (int i = 0; i < value->rank; i++) {
        value->dim[i] = tensor->dims[i];
        value->perm[i] = i;
    }
    value->integer = mz_onnx_is_integer(tensor->data_type);
    value->kind = MZ_ONNX_HOST;
    value->numbers = mz_onnx_take(build, (size_t)mz_onnx_elements(value->rank, value->dim), sizeof(double));
    if (!value->numbers)
        return MEZZO_ERR_MEMORY;
    return mz_onnx_floats(build->onnx, tensor, value->numbers);
}

// The inputs of layers' weights, where a tensor of one element is a weight, too, and inputs whose numbers are no
// weights.
static const struct place {
    const char *op;
    int input;
    enum { VECTOR, MATRIX, CONVOLUTION, TRANSPOSED_CONVOLUTION, BUFFER, KNOWN } what;
} places[] = {
    {"MatMul", 1, MATRIX},
    {"Gemm", 1, MATRIX},
    {"Gemm", 2, VECTOR},
    {"Conv", 1, CONVOLUTION},
    {"Conv", 2, VECTOR},
    {"ConvTranspose", 1, TRANSPOSED_CONVOLUTION},
    {"ConvTranspose", 2, VECTOR},
    {"BatchNormalization", 1, VECTOR},
    {"BatchNormalization", 2, VECTOR},
    {"BatchNormalization", 3, BUFFER},
    {"BatchNormalization", 4, BUFFER},
    {"InstanceNormalization", 1, VECTOR},
    {"InstanceNormalization", 2, VECTOR},
    {"GroupNormalization", 1, VECTOR},
    {"GroupNormalization", 2, VECTOR},
    {"LayerNormalization", 1, VECTOR},
    {"LayerNormalization", 2, VECTOR},
    {"RMSNormalization", 1, VECTOR},
    {"PRelu", 1, VECTOR},
    {"Resize", 1, KNOWN},
    {"Resize", 2, KNOWN},
    {"OneHot", 2, KNOWN},
};

static const struct place *place_of(const MzPb__Node *node, size_t input) {
    for (size_t i = 0; i < MZ_COUNT(places); i++)
        if ((size_t)places[i].input == input && strcmp(places[i].op, node->op_type) == 0)
            return &places[i];
    return NULL;
}

// Returns the value that a node reads there, through Identity.
static mz_onnx_value *read_by(const mezzo_onnx *onnx, const MzPb__Node *node, size_t input) {
    mz_onnx_value *value = mz_onnx_find(onnx, node->input[input]);
    for (int steps = 0; steps < 64 && value->producer >= 0; steps++) {
        const MzPb__Node *before = onnx->model->graph->node[value->producer];
        if (strcmp(before->op_type, "Identity") != 0 || before->n_input == 0)
            break;
        value = mz_onnx_find(onnx, before->input[0]);
    }
    return value;
}

static const MzPb__Tensor *constant_of(const MzPb__Node *node) { // NULL: the node is no Constant, or has no tensor
    const MzPb__Attribute *a = strcmp(node->op_type, "Constant") == 0 ? mz_onnx_attribute(node, "value") : NULL;
    return a ? a->t : NULL;
}

// Adds a tensor. Floats of more than one element are weights, unless one of them is not finite; a Constant is a weight
// where a layer reads its weights.
static mezzo_status add_tensor(mz_onnx_build *build, const MzPb__Tensor *tensor, const char *name, bool constant) {
    mz_onnx_value *value = mz_onnx_find(build->onnx, name);
    const bool in_layer = value->frozen;
    value->frozen = false;
    if (constant && (!in_layer || value->kind != MZ_ONNX_ABSENT))
        return MEZZO_OK; // the node makes it
    MEZZO_TRY(known(build, tensor, value));
    const int64_t n = mz_onnx_elements(value->rank, value->dim);
    bool weight = !value->integer && (n > 1 || (n == 1 && value->rank > 0 && in_layer));
    for (int64_t k = 0; k < n && weight; k++)
        weight = fabs(value->numbers[k]) < 1e30;
    if (!weight)
        return MEZZO_OK;
    mz_free(build->blocks[--build->n_blocks]);
    value->numbers = NULL;
    value->kind = MZ_ONNX_WEIGHT;
    value->tensor = tensor;
    return MEZZO_OK;
}

static mezzo_status add_tensors(mz_onnx_build *build) {
    const MzPb__Graph *graph = build->onnx->model->graph;
    for (size_t i = 0; i < graph->n_node; i++)
        for (size_t k = 0; k < graph->node[i]->n_input; k++) {
            const struct place *place = place_of(graph->node[i], k);
            if (place && place->what != KNOWN) // temporarily: it is a layer's weight
                read_by(build->onnx, graph->node[i], k)->frozen = true;
        }
    for (size_t i = 0; i < graph->n_initializer; i++)
        MEZZO_TRY(add_tensor(build, graph->initializer[i], graph->initializer[i]->name, false));
    for (size_t i = 0; i < graph->n_node; i++)
        if (constant_of(graph->node[i]))
            MEZZO_TRY(add_tensor(build, constant_of(graph->node[i]), graph->node[i]->output[0], true));
    for (size_t i = 0; i < build->onnx->n_values; i++)
        build->onnx->values[i].frozen = false;
    return MEZZO_OK;
}

static bool is_op(const MzPb__Node *node, const char *op) {
    return strcmp(node->op_type, op) == 0;
}

// Marks values that depend on no embedding and on no input of floats.
static void find_constant_parts(const mezzo_onnx *onnx, bool *constant) {
    const MzPb__Graph *graph = onnx->model->graph;
    for (size_t i = 0; i < graph->n_input; i++) {
        const MzPb__Type *type = graph->input[i]->type;
        constant[mz_onnx_find(onnx, graph->input[i]->name) - onnx->values] =
            type && type->tensor_type && mz_onnx_is_integer(type->tensor_type->elem_type);
    }
    for (size_t i = 0; i < onnx->n_values; i++)
        constant[i] = constant[i] || onnx->values[i].kind != MZ_ONNX_ABSENT;
    for (size_t i = 0; i < graph->n_node; i++) {
        const MzPb__Node *node = graph->node[i];
        bool all = !(is_op(node, "Gather") && read_by(onnx, node, 0)->kind == MZ_ONNX_WEIGHT);
        for (size_t k = 0; k < node->n_input && all; k++)
            all = node->input[k][0] == '\0' || constant[mz_onnx_find(onnx, node->input[k]) - onnx->values];
        for (size_t k = 0; k < node->n_output; k++)
            constant[mz_onnx_find(onnx, node->output[k]) - onnx->values] = all || is_op(node, "Shape");
    }
}

// Marks as known, and not trained, angles of Cos or Sin that depend on positions alone, such as rotary embeddings'
// frequencies.
static mezzo_status find_angles(mz_onnx_build *build) {
    const mezzo_onnx *onnx = build->onnx;
    const MzPb__Graph *graph = onnx->model->graph;
    bool *constant = mz_onnx_take(build, onnx->n_values, sizeof *constant),
         *angle = mz_onnx_take(build, onnx->n_values, sizeof *angle);
    if (!constant || !angle)
        return MEZZO_ERR_MEMORY;
    find_constant_parts(onnx, constant);
    for (size_t i = graph->n_node; i-- > 0;) {
        const MzPb__Node *node = graph->node[i];
        bool reached = is_op(node, "Cos") || is_op(node, "Sin");
        for (size_t k = 0; k < node->n_output; k++)
            reached = reached || angle[mz_onnx_find(onnx, node->output[k]) - onnx->values];
        for (size_t k = 0; k < node->n_input && reached; k++) {
            const mz_onnx_value *value = mz_onnx_find(onnx, node->input[k]);
            angle[value - onnx->values] = constant[value - onnx->values];
        }
    }
    for (size_t i = 0; i < onnx->n_values; i++)
        if (angle[i] && onnx->values[i].kind == MZ_ONNX_WEIGHT)
            MEZZO_TRY(known(build, onnx->values[i].tensor, &onnx->values[i]));
    return MEZZO_OK;
}

// Marks as known, and not trained, a table by which computed numbers are multiplied, such as rotary embeddings'
// cosines: a weight of such a product has one dimension (a norm's, a layer's scale). Nothing in a file distinguishes it
// from a weight of several dimensions, so that the first build names it.
static mezzo_status find_tables(mz_onnx_build *build) {
    const MzPb__Graph *graph = build->onnx->model->graph;
    const mz_onnx_value *first = NULL;
    int n = 0;
    MEZZO_TRY(find_angles(build));
    for (size_t i = 0; i < graph->n_node; i++) {
        const char *op = graph->node[i]->op_type;
        const bool product = strcmp(op, "Mul") == 0 || strcmp(op, "Div") == 0 || strcmp(op, "Where") == 0;
        for (size_t k = 0; k < graph->node[i]->n_input; k++) {
            mz_onnx_value *value = read_by(build->onnx, graph->node[i], k);
            const struct place *place = place_of(graph->node[i], k);
            int wide = 0;
            for (int axis = 0; axis < value->rank; axis++)
                wide += value->dim[axis] > 1;
            value->frozen = value->frozen || (value->kind == MZ_ONNX_WEIGHT && place && place->what == BUFFER);
            if (value->kind != MZ_ONNX_WEIGHT || !((product && wide > 1) || (place && place->what == KNOWN)))
                continue;
            MEZZO_TRY(known(build, value->tensor, value));
            if (product && n++ == 0)
                first = value;
        }
    }
    if (n > 0 && !build->onnx->told)
        mz_log("notice",
               "%s: not trained: %s%s, by which numbers are multiplied, as by a table of cosines: only a factor of one "
               "dimension is a weight",
               mz_quote(build->onnx->path).text, mz_quote(first->name).text, n > 1 ? " and others" : "");
    build->onnx->told = true;
    return MEZZO_OK;
}

// Ties a matrix to another one that is its transpose, number for number, and not constant: an exporter writes the
// matrix of a tied head a second time, transposed.
static mezzo_status tie(mz_onnx_build *build, mz_onnx_value *value, mz_onnx_value *first) {
    const int64_t rows = first->dim[0], columns = first->dim[1], n = rows * columns;
    MZ_SCOPED(mz_free_at) double *a = mz_alloc((size_t)n, sizeof *a), *b = mz_alloc((size_t)n, sizeof *b);
    MEZZO_TRY(a && b ? mz_onnx_floats(build->onnx, first->tensor, a) : MEZZO_ERR_MEMORY);
    MEZZO_TRY(mz_onnx_floats(build->onnx, value->tensor, b));
    bool same = true, varied = false;
    for (int64_t i = 0; i < n && same; i++) {
        same = a[i] == b[i % columns * rows + i / columns];
        varied = varied || a[i] != a[0];
    }
    if (same && varied)
        value->of = first;
    return MEZZO_OK;
}

static bool is_matrix(const mz_onnx_value *value) {
    return value->kind == MZ_ONNX_WEIGHT && value->rank == 2 && !value->of;
}

// Computes a number that a matrix and its transpose share, and few others do, so that each matrix is read once.
static mezzo_status fingerprint(mz_onnx_build *build, const mz_onnx_value *value, uint64_t *out) {
    const size_t n = (size_t)mz_onnx_elements(2, value->dim);
    double *numbers = mz_alloc(n, sizeof *numbers);
    const mezzo_status status = numbers ? mz_onnx_floats(build->onnx, value->tensor, numbers) : MEZZO_ERR_MEMORY;
    *out = 0;
    for (size_t i = 0; status == MEZZO_OK && i < n; i++) {
        uint64_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        *out += (bits ^ bits >> 29) * UINT64_C(0x9E3779B97F4A7C15); // a sum does not depend on the order
    }
    mz_free(numbers);
    return status;
}

static mezzo_status find_ties(mz_onnx_build *build) {
    mz_onnx_value *values = build->onnx->values;
    uint64_t *prints = mz_onnx_take(build, build->onnx->n_values, sizeof *prints);
    if (!prints)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < build->onnx->n_values; i++) {
        if (!is_matrix(&values[i]))
            continue;
        MEZZO_TRY(fingerprint(build, &values[i], &prints[i]));
        for (size_t k = 0; k < i && is_matrix(&values[i]); k++)
            if (is_matrix(&values[k]) && prints[k] == prints[i] && values[k].dim[0] == values[i].dim[1] &&
                values[k].dim[1] == values[i].dim[0])
                MEZZO_TRY(tie(build, &values[i], &values[k]));
    }
    return MEZZO_OK;
}

// Finds the order in which a node wants an input. Returns false for the file's own order.
static bool wish(const MzPb__Node *node, size_t input, int rank, int *perm) {
    static const int orders[][4] = {
        [MATRIX] = {1, 0}, [CONVOLUTION] = {0, 3, 1, 2}, [TRANSPOSED_CONVOLUTION] = {3, 0, 1, 2}};
    const struct place *place = place_of(node, input);
    if (!place || place->what == VECTOR || place->what >= BUFFER || rank > 4)
        return false;
    if (place->what == MATRIX ? rank != 2 || mz_onnx_int_or(node, "transB", 0) : rank < 3)
        return false;
    if (place->what == TRANSPOSED_CONVOLUTION && mz_onnx_int_or(node, "group", 1) != 1)
        return false;
    for (int i = 0; i < rank; i++)
        perm[i] = orders[place->what][i];
    if (rank == 3) // they are images of height 1
        for (int i = 0; i < 3; i++)
            perm[i] = place->what == CONVOLUTION ? (const int[]){0, 2, 1}[i] : (const int[]){2, 0, 1}[i];
    return true;
}

// Stores weights that are read in one order alone in that order: a product's as [N, K], a convolution's as [N, R, S,
// C].
static void find_orders(mezzo_onnx *onnx) {
    const MzPb__Graph *graph = onnx->model->graph;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < graph->n_node; i++)
            for (size_t k = 0; k < graph->node[i]->n_input; k++) {
                mz_onnx_value *value = read_by(onnx, graph->node[i], k), *own = value->of ? value->of : value;
                int perm[MEZZO_MAX_RANK];
                if (value->kind != MZ_ONNX_WEIGHT || strcmp(graph->node[i]->op_type, "Identity") == 0)
                    continue;
                const bool wanted = value == own && wish(graph->node[i], k, value->rank, perm);
                for (int axis = 0; axis < own->rank; axis++)
                    if (pass == 0 ? wanted : !wanted || own->perm[axis] != perm[axis])
                        own->perm[axis] = pass == 0 ? perm[axis] : -1;
            }
    for (size_t i = 0; i < onnx->n_values; i++) {
        mz_onnx_value *value = &onnx->values[i];
        bool torn = false; // readers want different orders
        for (int axis = 0; axis < value->rank; axis++)
            torn = torn || value->perm[axis] < 0;
        for (int axis = 0; axis < value->rank && torn; axis++)
            value->perm[axis] = axis;
    }
    for (size_t i = 0; i < onnx->n_values; i++) {
        mz_onnx_value *value = &onnx->values[i];
        if (value->of)
            for (int axis = 0; axis < 2; axis++)
                value->perm[axis] = value->of->perm[1 - axis];
    }
}

mezzo_status mz_onnx_find_weights(mz_onnx_build *build) {
    MEZZO_TRY(add_tensors(build));
    MEZZO_TRY(find_tables(build));
    MEZZO_TRY(find_ties(build));
    find_orders(build->onnx);
    return MEZZO_OK;
}

// Returns whether the value is the input, in any shape.
static bool is_input(const mezzo_onnx *onnx, const char *name, const char *input) {
    for (int steps = 0; steps < 64 && strcmp(name, input) != 0; steps++) {
        const mz_onnx_value *value = mz_onnx_find(onnx, name);
        const MzPb__Node *node = value && value->producer >= 0 ? onnx->model->graph->node[value->producer] : NULL;
        if (!node || node->n_input == 0 ||
            !(is_op(node, "Reshape") || is_op(node, "Cast") || is_op(node, "Identity") || is_op(node, "Unsqueeze")))
            return false;
        name = node->input[0];
    }
    return strcmp(name, input) == 0;
}

int64_t mz_onnx_rows_named_by(const mezzo_onnx *onnx, const char *input) {
    const MzPb__Graph *graph = onnx->model->graph;
    int64_t least = 0;
    for (size_t i = 0; i < graph->n_node; i++) {
        const MzPb__Node *node = graph->node[i];
        if (!is_op(node, "Gather") || node->n_input < 2 || mz_onnx_int_or(node, "axis", 0) != 0 ||
            !is_input(onnx, node->input[1], input))
            continue;
        for (size_t k = 0; k < graph->n_initializer; k++) {
            const MzPb__Tensor *table = graph->initializer[k];
            if (table->n_dims == 2 && strcmp(table->name, node->input[0]) == 0 &&
                (least == 0 || table->dims[0] < least))
                least = table->dims[0];
        }
    }
    return least;
}

// --- loading and saving --------------------------------------------------------------------------------------------
static int64_t param_place(const mz_onnx_param *param, int64_t i) { // in the parameter, of the tensor's element i
    int64_t at[MEZZO_MAX_RANK] = {0}, size[MEZZO_MAX_RANK] = {0}, place = 0;
    for (int k = param->rank - 1; k >= 0; i /= param->dim[k--]) {
        at[param->perm[k]] = i % param->dim[k];
        size[param->perm[k]] = param->dim[k];
    }
    for (int k = 0; k < param->rank; k++)
        place = place * size[k] + at[k];
    return place;
}

static const mz_onnx_param *find_param(const mezzo_onnx *onnx, const char *parameter) {
    return MZ_FIND(onnx->params, onnx->n_params, name, parameter);
}

int64_t mz_onnx_place_of(const mezzo_onnx *onnx, const char *parameter, int64_t i) {
    const mz_onnx_param *param = find_param(onnx, parameter);
    return param ? param_place(param, i) : -1;
}

const char *mz_onnx_tensor_of(const mezzo_onnx *onnx, const char *parameter) {
    const mz_onnx_param *param = find_param(onnx, parameter);
    return param && param->tensor ? param->tensor->name : NULL;
}

static mezzo_status load_one(const mezzo_onnx *onnx, const mz_onnx_param *param, mezzo_params *params) {
    const int index = mezzo_params_find(params, param->name);
    if (index < 0)
        return mz_fail(MEZZO_ERR_INVALID, "the parameters have no '%s'", param->name);
    if (!param->tensor)
        return mezzo_params_write(params, index, param->numbers);
    const size_t n = (size_t)param->count;
    MZ_SCOPED(mz_free_at) double *wide = mz_alloc(n, sizeof *wide);
    MZ_SCOPED(mz_free_at) float *values = mz_alloc(n, sizeof *values);
    MEZZO_TRY(wide && values ? mz_onnx_floats(onnx, param->tensor, wide) : MEZZO_ERR_MEMORY);
    for (int64_t i = 0; i < param->count; i++)
        values[param_place(param, i)] = (float)wide[i];
    return mezzo_params_write(params, index, values);
}

mezzo_status mezzo_onnx_load(const mezzo_onnx *onnx, mezzo_params *params) {
    MZ_REQUIRE(onnx, params);
    for (size_t i = 0; i < onnx->n_params; i++)
        MEZZO_TRY(load_one(onnx, &onnx->params[i], params));
    return MEZZO_OK;
}
// Replaces a tensor's numbers in the message while the message is written.
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
        (*bytes)[i] = values[param_place(param, i)];
    mz_free(values);
    tensor->n_float_data = tensor->n_double_data = tensor->n_int32_data = tensor->n_external_data = 0;
    tensor->data_type = MZ_ONNX_FLOAT;
    tensor->has_data_location = 0;
    tensor->has_raw_data = 1;
    tensor->raw_data = (ProtobufCBinaryData){.len = n * sizeof(float), .data = (uint8_t *)*bytes};
    return status;
}

// What a node that trains in another way than it evaluates says in a file for training.
typedef struct trained_node {
    size_t inputs, outputs;
    int64_t mode; // of BatchNormalization
} trained_node;

static MzPb__Attribute *training_mode(const MzPb__Node *node) { // NULL: none, or the node is no BatchNormalization
    return is_op(node, "BatchNormalization") ? (MzPb__Attribute *)mz_onnx_attribute(node, "training_mode") : NULL;
}

// Puts a node into evaluation mode while the message is written: a batch normalization takes its running statistics
// and gives its first output alone, and dropout, without its third input, drops nothing.
static mezzo_status evaluate_node(const mezzo_onnx *onnx, MzPb__Node *node, trained_node *before) {
    MzPb__Attribute *mode = training_mode(node);
    *before = (trained_node){node->n_input, node->n_output, mode ? mode->i : 0};
    if (is_op(node, "Dropout") && node->n_input > 2)
        node->n_input = 2;
    if (!mode || mode->i == 0)
        return MEZZO_OK;
    mode->i = 0;
    node->n_output = 1;
    for (size_t k = 1; k < before->outputs; k++)
        if (*node->output[k] != '\0' && mz_onnx_readers(onnx, node->output[k]) > 0)
            return mz_fail(MEZZO_ERR_UNSUPPORTED,
                           "the file's nodes or outputs read '%s', which BatchNormalization gives in training alone",
                           node->output[k]);
    return MEZZO_OK;
}

static void train_node(MzPb__Node *node, const trained_node *before) {
    MzPb__Attribute *mode = training_mode(node);
    node->n_input = before->inputs;
    node->n_output = before->outputs;
    if (mode)
        mode->i = before->mode;
}

mezzo_status mezzo_onnx_save(const mezzo_onnx *onnx, const mezzo_params *params, bool evaluation, const char *path) {
    MZ_REQUIRE(onnx, params, path);
    mezzo_status status = MEZZO_OK;
    const MzPb__Graph *graph = onnx->model->graph;
    MzPb__Tensor *before = mz_alloc(onnx->n_params + 1, sizeof *before);
    trained_node *trained = mz_alloc(graph->n_node + 1, sizeof *trained);
    float **bytes = mz_alloc(onnx->n_params + 1, sizeof *bytes);
    uint8_t *packed = NULL;
    if (!before || !bytes || !trained)
        status = MEZZO_ERR_MEMORY;
    size_t done = 0, nodes = 0;
    for (; evaluation && status == MEZZO_OK && nodes < graph->n_node; nodes++)
        status = evaluate_node(onnx, graph->node[nodes], &trained[nodes]);
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
    for (size_t i = 0; i < nodes; i++)
        train_node(graph->node[i], &trained[i]);
    MZ_FREE(trained, packed, bytes, before);
    return status;
}
