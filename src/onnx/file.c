// Reads and checks an ONNX file and its numbers, and writes it back.
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "io/file.h"
#include "onnx/idioms.h"
#include "onnx/onnx.h"

// Allocates for protobuf-c; `user` is a bool that says that memory ran out.
static void *take(void *user, size_t size) {
    void *p = mz_alloc(1, size ? size : 1);
    if (p == NULL)
        *(bool *)user = true;
    return p;
}

static void release(void *user, void *pointer) {
    (void)user;
    mz_free(pointer);
}

static mezzo_status unpack(const char *bytes, size_t size, MzPb__Model **out) {
    bool ran_out = false;
    ProtobufCAllocator allocator = {.alloc = take, .free = release, .allocator_data = &ran_out};
    *out = mz_pb__model__unpack(&allocator, size, (const uint8_t *)bytes);
    if (*out != NULL)
        return MEZZO_OK;
    return ran_out ? mz_fail(MEZZO_ERR_MEMORY, "no memory for its %zu bytes", size)
                   : mz_fail(MEZZO_ERR_FORMAT, "it is no ONNX model, or damaged");
}

// --- names ---------------------------------------------------------------------------------------------------------
static uint64_t hash_of(const char *name) { // FNV-1a
    uint64_t h = 14695981039346656037U;
    for (; *name != '\0'; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211U;
    return h;
}

// Returns the slot of a name, or the empty one where it belongs.
static uint32_t *slot_of(const mezzo_onnx *onnx, const char *name) {
    size_t i = (size_t)(hash_of(name) % onnx->n_slots);
    while (onnx->slots[i] != 0 && strcmp(onnx->values[onnx->slots[i] - 1].name, name) != 0)
        i = (i + 1) % onnx->n_slots;
    return &onnx->slots[i];
}

mz_onnx_value *mz_onnx_find(const mezzo_onnx *onnx, const char *name) {
    const uint32_t found = *slot_of(onnx, name);
    return found == 0 ? NULL : &onnx->values[found - 1];
}

static mz_onnx_value *add(mezzo_onnx *onnx, const char *name) {
    uint32_t *slot = slot_of(onnx, name);
    if (*slot == 0) {
        onnx->values[onnx->n_values].name = name;
        onnx->values[onnx->n_values].producer = -1;
        *slot = (uint32_t)++onnx->n_values;
    }
    return &onnx->values[*slot - 1];
}

static mezzo_status index_names(mezzo_onnx *onnx) {
    const MzPb__Graph *graph = onnx->model->graph;
    size_t most = graph->n_initializer + graph->n_input + graph->n_output;
    for (size_t i = 0; i < graph->n_node; i++)
        most += graph->node[i]->n_input + graph->node[i]->n_output;
    if (most > UINT32_MAX / 4)
        return mz_fail(MEZZO_ERR_FORMAT, "it has too many names");
    onnx->n_slots = 2 * most + 1;
    MEZZO_TRY(MZ_NEW(onnx->values, most + 1));
    MEZZO_TRY(MZ_NEW(onnx->slots, onnx->n_slots));
    MEZZO_TRY(MZ_NEW(onnx->recognized, mz_onnx_idiom_count()));
    for (size_t i = 0; i < graph->n_initializer; i++)
        add(onnx, graph->initializer[i]->name); // it becomes value i
    if (onnx->n_values != graph->n_initializer)
        return mz_fail(MEZZO_ERR_FORMAT, "two initializers have one name");
    for (size_t i = 0; i < graph->n_input; i++)
        add(onnx, graph->input[i]->name);
    for (size_t i = 0; i < graph->n_node; i++) {
        for (size_t k = 0; k < graph->node[i]->n_input; k++)
            add(onnx, graph->node[i]->input[k]);
        for (size_t k = 0; k < graph->node[i]->n_output; k++)
            add(onnx, graph->node[i]->output[k])->producer = (int)i;
    }
    for (size_t i = 0; i < graph->n_output; i++)
        add(onnx, graph->output[i]->name);
    return MEZZO_OK;
}

// --- checks --------------------------------------------------------------------------------------------------------
static size_t width_of(int type) {
    static const size_t widths[] = {
        [MZ_ONNX_FLOAT] = 4,    [MZ_ONNX_INT32] = 4, [MZ_ONNX_INT64] = 8, [MZ_ONNX_DOUBLE] = 8, [MZ_ONNX_FLOAT16] = 2,
        [MZ_ONNX_BFLOAT16] = 2, [MZ_ONNX_BOOL] = 1,  [MZ_ONNX_INT8] = 1,  [MZ_ONNX_UINT8] = 1};
    return type >= 0 && type < (int)MZ_COUNT(widths) ? widths[type] : 0;
}

// Returns the number of values that the file stores for a tensor.
static size_t stored(const MzPb__Tensor *tensor) {
    const size_t width = width_of(tensor->data_type);
    if (tensor->has_raw_data)
        return width ? tensor->raw_data.len / width : 0;
    switch (tensor->data_type) {
    case MZ_ONNX_FLOAT:
        return tensor->n_float_data;
    case MZ_ONNX_DOUBLE:
        return tensor->n_double_data;
    case MZ_ONNX_INT64:
        return tensor->n_int64_data;
    default:
        return tensor->n_int32_data;
    }
}

static bool outside(const MzPb__Tensor *tensor) { // whether its data are in another file
    return tensor->data_location == 1 && tensor->n_external_data > 0;
}

static mezzo_status check_tensor(const MzPb__Tensor *tensor) {
    if (tensor->n_dims > MEZZO_MAX_RANK)
        return mz_fail(MEZZO_ERR_FORMAT, "'%s' has %zu dimensions; at most %d work", tensor->name, tensor->n_dims,
                       MEZZO_MAX_RANK);
    int64_t elements = 1;
    for (size_t k = 0; k < tensor->n_dims; k++)
        if (tensor->dims[k] < 0 || __builtin_mul_overflow(elements, tensor->dims[k], &elements) ||
            elements > INT64_C(1) << 40)
            return mz_fail(MEZZO_ERR_FORMAT, "'%s' has a dimension of %lld", tensor->name, (long long)tensor->dims[k]);
    if (width_of(tensor->data_type) == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "'%s' has numbers of type %d, which is not known", tensor->name,
                       tensor->data_type);
    if (!outside(tensor) && stored(tensor) != (size_t)elements)
        return mz_fail(MEZZO_ERR_FORMAT, "'%s' has %zu numbers, and its shape %lld", tensor->name, stored(tensor),
                       (long long)elements);
    return MEZZO_OK;
}

static bool is_onnx_domain(const char *domain) {
    return !domain || domain[0] == '\0' || strcmp(domain, "ai.onnx") == 0;
}

// Checks everything on which later code relies.
static mezzo_status check(mezzo_onnx *onnx) {
    MzPb__Graph *graph = onnx->model->graph;
    if (!graph || graph->n_node == 0 || graph->n_output == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "it is no ONNX model: it has no graph with nodes and outputs");
    const char *foreign = NULL;
    bool found = false;
    for (size_t i = 0; i < onnx->model->n_opset_import; i++) {
        const MzPb__OperatorSet *set = onnx->model->opset_import[i];
        if (is_onnx_domain(set->domain))
            onnx->opset = set->version, found = true;
        else
            foreign = set->domain;
    }
    if (!found && foreign)
        return mz_fail(MEZZO_ERR_FORMAT, "it has ops of the domain '%s' alone: only those of ONNX itself work",
                       foreign);
    if (!found)
        return mz_fail(MEZZO_ERR_FORMAT, "it names no opset: export it again");
    if (onnx->opset < 13)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "its opset is %lld: export it with opset 13 or later, or convert it (onnx.version_converter)",
                       (long long)onnx->opset);
    for (size_t i = 0; i < graph->n_initializer; i++) {
        if (!graph->initializer[i]->name)
            return mz_fail(MEZZO_ERR_FORMAT, "an initializer has no name");
        MEZZO_TRY(check_tensor(graph->initializer[i]));
    }
    for (size_t k = 0; k < graph->n_input + graph->n_output; k++) {
        const MzPb__ValueInfo *info = k < graph->n_input ? graph->input[k] : graph->output[k - graph->n_input];
        if (!info->name)
            return mz_fail(MEZZO_ERR_FORMAT, "an input or output has no name");
    }
    const MzPb__Node *unknown = NULL;
    size_t others = 0;
    for (size_t i = 0; i < graph->n_node; i++) {
        const MzPb__Node *node = graph->node[i];
        if (!node->op_type || node->n_output == 0)
            return mz_fail(MEZZO_ERR_FORMAT, "node %zu has no op or no output", i);
        if (node->n_input > MZ_ONNX_SLOTS || node->n_output > MZ_ONNX_SLOTS)
            return mz_fail(MEZZO_ERR_FORMAT, "%s node '%s' has more than %d inputs or outputs", node->op_type,
                           node->name ? node->name : node->output[0], MZ_ONNX_SLOTS);
        for (size_t k = 0; k < node->n_attribute; k++) {
            const MzPb__Attribute *a = node->attribute[k];
            if (!a->name)
                return mz_fail(MEZZO_ERR_FORMAT, "an attribute of node %zu has no name", i);
            if (a->t) {
                if (!a->t->name && !(a->t->name = take(NULL, 1)))
                    return MEZZO_ERR_MEMORY;
                MEZZO_TRY(check_tensor(a->t));
            }
        }
        if (is_onnx_domain(node->domain) && mz_onnx_op_of(node->op_type))
            continue;
        if (unknown)
            others++;
        else
            unknown = node;
    }
    if (unknown)
        return mz_fail(MEZZO_ERR_FORMAT, "op %s%s%s of node '%s' is not known; other nodes of unknown ops: %zu",
                       is_onnx_domain(unknown->domain) ? "" : unknown->domain,
                       is_onnx_domain(unknown->domain) ? "" : ".", unknown->op_type,
                       unknown->name && unknown->name[0] != '\0' ? unknown->name : unknown->output[0], others);
    return MEZZO_OK;
}

// --- numbers -------------------------------------------------------------------------------------------------------
int64_t mz_onnx_elements(int rank, const int64_t *dim) {
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(n, dim[i], &n))
            return INT64_MAX;
    return n;
}

static double half(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static double number_at(int type, const unsigned char *bytes) {
    float f;
    double d;
    int32_t i;
    int64_t l;
    uint16_t h;
    switch (type) {
    case MZ_ONNX_FLOAT:
        return memcpy(&f, bytes, 4), (double)f;
    case MZ_ONNX_DOUBLE:
        return memcpy(&d, bytes, 8), d;
    case MZ_ONNX_INT32:
        return memcpy(&i, bytes, 4), (double)i;
    case MZ_ONNX_INT64:
        return memcpy(&l, bytes, 8), (double)l;
    case MZ_ONNX_FLOAT16:
        return memcpy(&h, bytes, 2), half(h);
    case MZ_ONNX_BFLOAT16: {
        memcpy(&h, bytes, 2);
        const uint32_t wide = (uint32_t)h << 16;
        return memcpy(&f, &wide, 4), (double)f;
    }
    case MZ_ONNX_INT8:
        return (double)(signed char)*bytes;
    default:
        return (double)*bytes;
    }
}

static const char *location_of(const MzPb__Tensor *tensor) {
    for (size_t i = 0; outside(tensor) && i < tensor->n_external_data; i++)
        if (tensor->external_data[i]->key && strcmp(tensor->external_data[i]->key, "location") == 0)
            return tensor->external_data[i]->value;
    return NULL;
}

const char *mezzo_onnx_data(const mezzo_onnx *onnx, int index) {
    const MzPb__Graph *graph = onnx ? onnx->model->graph : NULL;
    for (size_t i = 0; graph && i < graph->n_initializer; i++) {
        const char *location = location_of(graph->initializer[i]);
        bool again = !location || location[0] == '/' || strstr(location, "..");
        for (size_t k = 0; k < i && !again; k++) {
            const char *other = location_of(graph->initializer[k]);
            again = other && strcmp(other, location) == 0;
        }
        if (!again && index-- == 0)
            return location;
    }
    return NULL;
}

// Reads bytes of another file, whose path is relative to the model's folder and may not leave it.
static mezzo_status external(const mezzo_onnx *onnx, const MzPb__Tensor *tensor, size_t want, mz_map *map,
                             const unsigned char **bytes) {
    const char *location = NULL;
    unsigned long long offset = 0, length = want;
    for (size_t i = 0; i < tensor->n_external_data; i++) {
        const MzPb__Entry *entry = tensor->external_data[i];
        if (!entry->key || !entry->value)
            continue;
        if (strcmp(entry->key, "location") == 0)
            location = entry->value;
        else if (strcmp(entry->key, "offset") == 0)
            offset = strtoull(entry->value, NULL, 10);
        else if (strcmp(entry->key, "length") == 0)
            length = strtoull(entry->value, NULL, 10);
    }
    if (!location || location[0] == '/' || strstr(location, ".."))
        return mz_fail(MEZZO_ERR_FORMAT, "'%s' names no file of the model's folder", tensor->name);
    const char *slash = strrchr(onnx->path, '/');
    char path[PATH_MAX];
    const int n =
        snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - onnx->path + 1) : 0, onnx->path, location);
    if (n < 0 || (size_t)n >= sizeof path)
        return mz_fail(MEZZO_ERR_FORMAT, "'%s': the name of its file is too long", tensor->name);
    MEZZO_TRY(mz_map_open(path, map));
    if (length != want || offset > map->size || map->size - offset < want)
        return mz_fail(MEZZO_ERR_FORMAT, "'%s' takes %zu bytes, and '%s' does not have them at %llu", tensor->name,
                       want, path, offset);
    *bytes = map->data + offset;
    return MEZZO_OK;
}

mezzo_status mz_onnx_floats(const mezzo_onnx *onnx, const MzPb__Tensor *tensor, double *out) {
    const int type = tensor->data_type;
    const size_t n = (size_t)mz_onnx_elements((int)tensor->n_dims, tensor->dims), width = width_of(type);
    mz_map map = {0};
    const unsigned char *bytes = tensor->has_raw_data ? tensor->raw_data.data : NULL;
    if (outside(tensor)) {
        mezzo_status status = external(onnx, tensor, n * width, &map, &bytes);
        if (status != MEZZO_OK) {
            mz_map_close(&map);
            return status;
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (bytes)
            out[i] = number_at(type, bytes + i * width);
        else if (type == MZ_ONNX_FLOAT)
            out[i] = (double)tensor->float_data[i];
        else if (type == MZ_ONNX_DOUBLE)
            out[i] = tensor->double_data[i];
        else if (type == MZ_ONNX_INT64)
            out[i] = (double)tensor->int64_data[i];
        else if (width == 2)
            out[i] = number_at(type, (const unsigned char *)&(uint16_t){(uint16_t)tensor->int32_data[i]});
        else
            out[i] = (double)tensor->int32_data[i];
    }
    mz_map_close(&map);
    return MEZZO_OK;
}

bool mz_onnx_is_integer(int64_t type) {
    return type != MZ_ONNX_FLOAT && type != MZ_ONNX_DOUBLE && type != MZ_ONNX_FLOAT16 && type != MZ_ONNX_BFLOAT16;
}

// --- attributes ----------------------------------------------------------------------------------------------------
const MzPb__Attribute *mz_onnx_attribute(const MzPb__Node *node, const char *name) {
    for (size_t i = 0; i < node->n_attribute; i++)
        if (strcmp(node->attribute[i]->name, name) == 0)
            return node->attribute[i];
    return NULL;
}

int mz_onnx_readers(const mezzo_onnx *onnx, const char *name) {
    const MzPb__Graph *graph = onnx->model->graph;
    int readers = 0;
    for (size_t i = 0; i < graph->n_output; i++)
        readers += strcmp(graph->output[i]->name, name) == 0;
    for (size_t i = 0; i < graph->n_node; i++)
        for (size_t k = 0; k < graph->node[i]->n_input; k++)
            readers += strcmp(graph->node[i]->input[k], name) == 0;
    return readers;
}

int64_t mz_onnx_int_or(const MzPb__Node *node, const char *name, int64_t otherwise) {
    const MzPb__Attribute *a = mz_onnx_attribute(node, name);
    return a ? a->i : otherwise;
}

double mz_onnx_float_or(const MzPb__Node *node, const char *name, double otherwise) {
    const MzPb__Attribute *a = mz_onnx_attribute(node, name);
    return a ? (double)a->f : otherwise;
}

bool mz_onnx_is(const MzPb__Node *node, const char *name, const char *text, bool otherwise) {
    const MzPb__Attribute *a = mz_onnx_attribute(node, name);
    return a ? a->s.len == strlen(text) && memcmp(a->s.data, text, a->s.len) == 0 : otherwise;
}

// --- the object ----------------------------------------------------------------------------------------------------
mezzo_status mezzo_onnx_open(const char *path, mezzo_onnx **out) {
    MZ_REQUIRE(path, out);
    char *bytes = NULL;
    size_t size = 0;
    mezzo_status status;
    mezzo_onnx *onnx;
    MEZZO_TRY(MZ_NEW(onnx, 1));
    const size_t n = strlen(path) + 1;
    if (!(onnx->path = mz_alloc(1, n))) {
        status = MEZZO_ERR_MEMORY;
        goto fail;
    }
    memcpy(onnx->path, path, n);
    MEZZO_TRY_GOTO(status, mz_file_read(path, INT32_MAX, &bytes, &size)); // the limit of protobuf
    status = unpack(bytes, size, &onnx->model);
    mz_free(bytes);
    bytes = NULL;
    if (status == MEZZO_OK)
        status = check(onnx);
    if (status == MEZZO_OK)
        status = index_names(onnx);
    if (status != MEZZO_OK) {
        status = mz_context(status, "'%s'", path);
        goto fail;
    }
    *out = onnx;
    return MEZZO_OK;
fail:
    mz_free(bytes);
    mezzo_onnx_free(onnx);
    return status;
}

void mezzo_onnx_free(mezzo_onnx *onnx) {
    if (!onnx)
        return;
    mz_onnx_free_params(onnx);
    if (onnx->model)
        mz_pb__model__free_unpacked(onnx->model, &(ProtobufCAllocator){.free = release});
    MZ_FREE(onnx->values, onnx->slots, onnx->recognized, onnx->path, onnx);
}
