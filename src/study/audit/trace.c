#include "study/audit/trace.h"

#include <math.h>

#include "base/scope.h"
#include "io/file.h"

const char *const mz_torch_formats[MZ_TORCH_FORMATS] = {"fp32", "tf32", "bf16", "fp16", "fp8"};

enum { ROWS_MAX = 8192, LINE_MAX = 100000000, COUNT_DIM_MAX = 1 << 30 };
static const int64_t MOST = (int64_t)1 << 50;

static const struct known_op {
    const char *name;
    mz_torch_class class;
    int a, b;
} known_ops[] = {
#define OP(name, class, a, b) {name, MZ_TORCH_##class, a, b},
#include "study/audit/torch_ops.def"
#undef OP
};

static const struct {
    const char *name;
    mezzo_dtype dtype;
} dtype_names[] = {{"fp64", MEZZO_F64},   {"fp32", MEZZO_F32},          {"bf16", MEZZO_BF16},      {"fp16", MEZZO_F16},
                   {"fp8", MEZZO_F8E4M3}, {"fp8_e4m3fn", MEZZO_F8E4M3}, {"fp8_e5m2", MEZZO_F8E5M2}};

static mezzo_dtype dtype_of(const char *name) {
    const size_t i = MZ_INDEX(dtype_names, MZ_COUNT(dtype_names), name, name);
    return i < MZ_COUNT(dtype_names) ? dtype_names[i].dtype : MEZZO_DTYPE_COUNT;
}

const char *mz_torch_dtype_name(mezzo_dtype dtype) {
    for (size_t i = 0; i < MZ_COUNT(dtype_names); i++)
        if (dtype_names[i].dtype == dtype)
            return dtype_names[i].name;
    return "-";
}

bool mz_torch_is_low(mezzo_dtype dtype) {
    return dtype == MEZZO_BF16 || dtype == MEZZO_F16 || dtype == MEZZO_F8E4M3 || dtype == MEZZO_F8E5M2;
}

bool mz_torch_is_product(const mz_torch_op *op) {
    return op->class == MZ_TORCH_PRODUCT || op->class == MZ_TORCH_CONVOLUTION || op->class == MZ_TORCH_ATTENTION;
}

// --- members that may be absent ------------------------------------------------------------------------------------
static mezzo_status read_number(const char *where, const json_t *o, const char *key, double *out) {
    const json_t *value = json_object_get(o, key);
    *out = NAN;
    return value == NULL || json_is_null(value) ? MEZZO_OK : mz_json_get_double(where, o, key, out);
}

static mezzo_status read_flag(const char *where, const json_t *o, const char *key, bool *out) {
    *out = false;
    return json_object_get(o, key) == NULL ? MEZZO_OK : mz_json_get_bool(where, o, key, out);
}

static mezzo_status read_int(const char *where, const json_t *o, const char *key, int64_t least, int64_t most,
                             int64_t initial, int64_t *out) {
    *out = initial;
    return json_object_get(o, key) == NULL ? MEZZO_OK : mz_json_get_int(where, o, key, least, most, out);
}

static mezzo_status read_small(const char *where, const json_t *o, const char *key, int64_t least, int64_t most,
                               int *out) {
    int64_t value;
    MEZZO_TRY(mz_json_get_int(where, o, key, least, most, &value));
    *out = (int)value;
    return MEZZO_OK;
}

static mezzo_status read_text(const char *where, const json_t *o, const char *key, const char **out) {
    *out = "";
    return json_object_get(o, key) == NULL ? MEZZO_OK : mz_json_get_string(where, o, key, out);
}

typedef mezzo_status read_row(const char *where, mz_torch_trace *t, const json_t *value, void *row);

// Reads an array of `key`, at most ROWS_MAX long, into as many structs, which it allocates.
static mezzo_status read_rows(mz_torch_trace *t, const char *key, size_t size, read_row *read, void *rows, size_t *n) {
    json_t *list;
    char where[600];
    MEZZO_TRY(mz_json_get_array(t->path, t->root, key, &list));
    *n = json_array_size(list);
    if (*n > ROWS_MAX)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s': %zu entries, at most %d are read", t->path, key, *n, ROWS_MAX);
    char *memory = mz_alloc(*n + 1, size);
    memcpy(rows, &memory, sizeof memory);
    if (memory == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < *n; i++) {
        snprintf(where, sizeof where, "%.500s: %s[%zu]", t->path, key, i);
        MEZZO_TRY(read(where, t, json_array_get(list, i), memory + i * size));
    }
    return MEZZO_OK;
}

// --- operations ----------------------------------------------------------------------------------------------------
static mezzo_status read_shape(const char *where, const json_t *pair, mz_torch_shape *out) {
    const json_t *name = json_array_get(pair, 0), *dims = json_array_get(pair, 1);
    if (!json_is_string(name) || !json_is_array(dims) || json_array_size(dims) > MZ_TRACE_DIMS)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'in': expected pairs of a dtype and at most %d dimensions", where,
                       MZ_TRACE_DIMS);
    *out = (mz_torch_shape){.dtype = dtype_of(json_string_value(name)), .rank = (int)json_array_size(dims)};
    for (int i = 0; i < out->rank; i++) {
        const json_t *dim = json_array_get(dims, (size_t)i);
        const int64_t size = json_is_integer(dim) ? (int64_t)json_integer_value(dim) : -1;
        if (size < 0 || size > COUNT_DIM_MAX * (int64_t)1024)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'in': a dimension is no size", where);
        out->dim[i] = size;
    }
    return MEZZO_OK;
}

double mz_torch_numel(const mz_torch_shape *s) {
    double n = 1;
    for (int i = 0; i < s->rank; i++)
        n *= (double)s->dim[i];
    return n;
}

// Counts two operations for each multiply-add. Attention has two products, and its gradient has five.
static double flops_of(const mz_torch_op *op) {
    if (!mz_torch_is_product(op) || op->a >= op->n_inputs || op->b >= op->n_inputs)
        return 0;
    const mz_torch_shape *a = &op->inputs[op->a], *b = &op->inputs[op->b];
    const bool backward = strstr(op->name, "backward") != NULL;
    if (a->rank < 2 || b->rank < 2)
        return 0;
    if (op->class == MZ_TORCH_PRODUCT)
        return 2 * mz_torch_numel(a) * (double)b->dim[b->rank - 1];
    if (op->class == MZ_TORCH_ATTENTION)
        return a->rank == 4 && b->rank == 4 ? (backward ? 10 : 4) * mz_torch_numel(a) * (double)b->dim[2] : 0;
    // The weight is [O, I / groups, k…], and each output element takes one filter. The trace has no output shape of
    // forward, so its spatial size is taken to be the input's.
    double of_filter = mz_torch_numel(b) / (double)(b->dim[0] > 0 ? b->dim[0] : 1);
    if (backward)
        return 4 * mz_torch_numel(&op->inputs[0]) * of_filter;
    double spatial = 1;
    for (int i = 2; i < a->rank; i++)
        spatial *= (double)a->dim[i];
    return 2 * (double)a->dim[0] * (double)b->dim[0] * spatial * of_filter;
}

static void classify(mz_torch_op *op) {
    char name[96];
    snprintf(name, sizeof name, "%s", op->name);
    size_t n = strlen(name);
    if (n > 4 && strcmp(name + n - 4, ".out") == 0) {
        op->into = true;
        name[n -= 4] = '\0';
    }
    if (n > 1 && name[n - 1] == '_') {
        op->in_place = true;
        name[n - 1] = '\0';
    }
    const size_t i = MZ_INDEX(known_ops, MZ_COUNT(known_ops), name, name);
    if (i < MZ_COUNT(known_ops)) {
        op->class = known_ops[i].class;
        op->a = known_ops[i].a;
        op->b = known_ops[i].b;
    }
    if (op->class == MZ_TORCH_AVERAGE && !op->in_place)
        op->class = MZ_TORCH_OTHER;
    op->flops = flops_of(op);
}

static mezzo_status read_op(const char *where, mz_torch_trace *t, const json_t *o, void *row) {
    mz_torch_op *op = row;
    const char *phase, *output;
    json_t *inputs;
    *op = (mz_torch_op){.region = -1};
    MEZZO_TRY(mz_json_get_string(where, o, "op", &op->name));
    MEZZO_TRY(mz_json_get_string(where, o, "phase", &phase));
    op->phase = strcmp(phase, "forward") == 0    ? MZ_TORCH_FORWARD
                : strcmp(phase, "backward") == 0 ? MZ_TORCH_BACKWARD
                                                 : MZ_TORCH_UPDATE;
    MEZZO_TRY(read_small(where, o, "region", -1, (int64_t)t->n_regions - 1, &op->region));
    MEZZO_TRY(read_small(where, o, "at", -1, (int64_t)t->n_places - 1, &op->at));
    MEZZO_TRY(read_small(where, o, "user", -1, (int64_t)t->n_places - 1, &op->user));
    MEZZO_TRY(mz_json_get_array(where, o, "in", &inputs));
    if (json_array_size(inputs) > MZ_TRACE_INPUTS)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'in': at most %d tensors are read", where, MZ_TRACE_INPUTS);
    op->n_inputs = (int)json_array_size(inputs);
    for (int i = 0; i < op->n_inputs; i++)
        MEZZO_TRY(read_shape(where, json_array_get(inputs, (size_t)i), &op->inputs[i]));
    MEZZO_TRY(mz_json_get_string(where, o, "out", &output));
    op->output = dtype_of(output);
    MEZZO_TRY(mz_json_get_int(where, o, "count", 0, MOST, &op->count));
    MEZZO_TRY(read_int(where, o, "returned", 0, MOST, 0, &op->returned));
    MEZZO_TRY(read_number(where, o, "seconds", &op->seconds));
    MEZZO_TRY(read_number(where, o, "scalar", &op->scalar));
    classify(op);
    if (op->region >= 0 && op->phase == MZ_TORCH_FORWARD && mz_torch_is_product(op)) {
        t->regions[op->region].products += op->count;
        t->regions[op->region].low_products += mz_torch_is_low(op->output) ? op->count : 0;
    }
    return MEZZO_OK;
}

// --- events --------------------------------------------------------------------------------------------------------
static const struct {
    const char *name, *flag;
} event_names[] = {
    [MZ_EVENT_BACKWARD] = {"backward", NULL},
    [MZ_EVENT_SCALE] = {"scale", NULL},
    [MZ_EVENT_UNSCALE] = {"unscale", "by_step"},
    [MZ_EVENT_SCALER_STEP] = {"scaler_step", "skipped"},
    [MZ_EVENT_SCALER_UPDATE] = {"scaler_update", NULL},
    [MZ_EVENT_CLIP] = {"clip", NULL},
    [MZ_EVENT_WRITE] = {"write", NULL},
    [MZ_EVENT_OPTIMIZER_STEP] = {"optimizer_step", "sharded"},
    [MZ_EVENT_SCHEDULE] = {"schedule", NULL},
    [MZ_EVENT_ZERO_GRAD] = {"zero_grad", NULL},
    [MZ_EVENT_PARALLEL] = {"parallel", "sync"},
    [MZ_EVENT_REDUCE] = {"reduce", NULL},
};

static mezzo_status read_event(const char *where, mz_torch_trace *t, const json_t *o, void *row) {
    mz_torch_event *e = row;
    const char *kind, *reduction;
    int64_t optimizer;
    *e = (mz_torch_event){0};
    MEZZO_TRY(mz_json_get_string(where, o, "kind", &kind));
    const size_t k = MZ_INDEX(event_names, MZ_COUNT(event_names), name, kind);
    if (k == MZ_COUNT(event_names))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'kind': this version knows no such event", where);
    e->kind = (mz_torch_event_kind)k;
    MEZZO_TRY(read_small(where, o, "step", 0, 1 << 20, &e->step));
    MEZZO_TRY(read_small(where, o, "at", -1, (int64_t)t->n_places - 1, &e->at));
    MEZZO_TRY(read_int(where, o, "optimizer", -1, 64, -1, &optimizer));
    e->optimizer = (int)optimizer;
    MEZZO_TRY(read_int(where, o, "count", 0, MOST, 1, &e->count));
    MEZZO_TRY(read_int(where, o, "scalers", 0, MOST, 0, &e->scalers));
    MEZZO_TRY(read_flag(where, o, "enabled", &e->enabled));
    MEZZO_TRY(read_flag(where, o, "scaled_by_step", &e->scaled_by_step));
    if (event_names[k].flag != NULL)
        MEZZO_TRY(read_flag(where, o, event_names[k].flag, &e->flag));
    MEZZO_TRY(read_number(where, o, "scale", &e->scale));
    MEZZO_TRY(read_number(where, o, "norm", &e->norm));
    MEZZO_TRY(read_number(where, o, "limit", &e->limit));
    MEZZO_TRY(read_number(where, o, "factor", &e->factor));
    MEZZO_TRY(read_number(where, o, "weight", &e->weight));
    MEZZO_TRY(read_text(where, o, "op", &e->op));
    MEZZO_TRY(read_text(where, o, "reduction", &reduction));
    e->mean = strcmp(reduction, "mean") == 0;
    return MEZZO_OK;
}

// --- the rest ------------------------------------------------------------------------------------------------------
static mezzo_status read_place(const char *where, mz_torch_trace *t, const json_t *pair, void *row) {
    (void)t;
    const json_t *file = json_array_get(pair, 0), *line = json_array_get(pair, 1);
    if (!json_is_string(file) || strlen(json_string_value(file)) != json_string_length(file) ||
        !json_is_integer(line) || json_integer_value(line) < 0 || json_integer_value(line) > LINE_MAX)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: expected a file and a line", where);
    *(mz_torch_place *)row = (mz_torch_place){json_string_value(file), (int)json_integer_value(line)};
    return MEZZO_OK;
}

static mezzo_status read_region(const char *where, mz_torch_trace *t, const json_t *o, void *row) {
    mz_torch_region *r = row;
    MEZZO_TRY(read_small(where, o, "at", -1, (int64_t)t->n_places - 1, &r->at));
    MEZZO_TRY(mz_json_get_string(where, o, "device", &r->device));
    MEZZO_TRY(mz_json_get_string(where, o, "dtype", &r->dtype));
    MEZZO_TRY(mz_json_get_bool(where, o, "enabled", &r->enabled));
    return mz_json_get_int(where, o, "entered", 0, MOST, &r->entered);
}

static mezzo_status add_tensors(const char *where, mz_torch_trace *t, const json_t *o, int optimizer) {
    const char *dtype, *of;
    MEZZO_TRY(MZ_RESERVE(t->tensors, t->cap_tensors, t->n_tensors + 1));
    mz_torch_tensors *s = &t->tensors[t->n_tensors];
    s->optimizer = optimizer;
    MEZZO_TRY(read_text(where, o, "key", &s->key));
    MEZZO_TRY(mz_json_get_string(where, o, "dtype", &dtype));
    MEZZO_TRY(read_text(where, o, "of", &of));
    MEZZO_TRY(mz_json_get_int(where, o, "count", 0, MOST, &s->count));
    MEZZO_TRY(mz_json_get_int(where, o, "numel", 0, MOST, &s->numel));
    s->dtype = dtype_of(dtype);
    s->of = dtype_of(of);
    t->n_tensors++;
    return MEZZO_OK;
}

static mezzo_status read_state(const char *where, mz_torch_trace *t, const json_t *o, void *row) {
    json_t *inner;
    int *at = row;
    MEZZO_TRY(read_small(where, o, "at", -1, (int64_t)t->n_places - 1, at));
    MEZZO_TRY(mz_json_get_array(where, o, "tensors", &inner));
    for (size_t k = 0; k < json_array_size(inner) && t->n_tensors < ROWS_MAX; k++)
        MEZZO_TRY(add_tensors(where, t, json_array_get(inner, k), (int)(at - t->optimizer_at)));
    return MEZZO_OK;
}

static mezzo_status read_parameters(mz_torch_trace *t) {
    json_t *list;
    char where[600];
    MEZZO_TRY(mz_json_get_array(t->path, t->root, "parameters", &list));
    for (size_t i = 0; i < json_array_size(list) && t->n_tensors < ROWS_MAX; i++) {
        int optimizer = 0;
        snprintf(where, sizeof where, "%.500s: parameters[%zu]", t->path, i);
        MEZZO_TRY(read_small(where, json_array_get(list, i), "optimizer", 0, (int64_t)t->n_optimizers - 1, &optimizer));
        MEZZO_TRY(add_tensors(where, t, json_array_get(list, i), optimizer));
    }
    return MEZZO_OK;
}

static mezzo_status read_compiled(const char *where, mz_torch_trace *t, const json_t *at, void *row) {
    const int64_t place = json_is_integer(at) ? (int64_t)json_integer_value(at) : -2;
    if (place < -1 || place >= (int64_t)t->n_places)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: no such place", where);
    *(int *)row = (int)place;
    return MEZZO_OK;
}

static mezzo_status read_settings(mz_torch_trace *t) {
    json_t *o, *at = json_object_get(t->root, "settings_at");
    char where[600];
    int64_t place;
    const int64_t last = (int64_t)t->n_places - 1;
    snprintf(where, sizeof where, "%.500s: settings", t->path);
    MEZZO_TRY(mz_json_get_object(t->path, t->root, "settings", &o));
    MEZZO_TRY(read_flag(where, o, "tf32", &t->tf32));
    MEZZO_TRY(read_flag(where, o, "deterministic", &t->deterministic));
    MEZZO_TRY(read_flag(where, o, "deterministic_warn_only", &t->warn_only));
    MEZZO_TRY(read_flag(where, o, "cudnn_deterministic", &t->cudnn_deterministic));
    MEZZO_TRY(read_flag(where, o, "cudnn_benchmark", &t->cudnn_benchmark));
    MEZZO_TRY(read_int(where, at, "cudnn.benchmark", -1, last, -1, &place));
    t->benchmark_at = (int)place;
    return MEZZO_OK;
}

static mezzo_status read_head(mz_torch_trace *t) {
    const json_t *times;
    const char *refused = NULL;
    int version;
    MEZZO_TRY(read_small(t->path, t->root, "mezzo_audit", 1, 1, &version));
    if (json_object_get(t->root, "refused") != NULL) {
        MEZZO_TRY(mz_json_get_string(t->path, t->root, "refused", &refused));
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "the program could not be followed: %.400s", refused);
    }
    MEZZO_TRY(mz_json_get_string(t->path, t->root, "torch", &t->torch));
    MEZZO_TRY(mz_json_get_string(t->path, t->root, "device", &t->device));
    MEZZO_TRY(mz_json_get_string(t->path, t->root, "device_name", &t->device_name));
    MEZZO_TRY(read_small(t->path, t->root, "world", 1, 1 << 20, &t->world));
    MEZZO_TRY(read_small(t->path, t->root, "rank", 0, t->world - 1, &t->rank));
    MEZZO_TRY(read_small(t->path, t->root, "capability", 0, 1000, &t->capability));
    MEZZO_TRY(read_small(t->path, t->root, "steps", 0, 1 << 20, &t->steps));
    MEZZO_TRY(read_small(t->path, t->root, "threads", 0, 1 << 20, &t->threads));
    MEZZO_TRY(read_int(t->path, t->root, "unchanged", 0, MOST, 0, &t->unchanged));
    MEZZO_TRY(read_int(t->path, t->root, "compared", 0, MOST, 0, &t->compared));
    MEZZO_TRY(read_int(t->path, t->root, "dropped", 0, MOST, 0, &t->dropped));
    MEZZO_TRY(read_number(t->path, t->root, "step_seconds", &t->step_seconds));
    MEZZO_TRY(read_number(t->path, t->root, "launch_seconds", &t->launch_seconds));
    times = json_object_get(t->root, "followed_seconds");
    t->followed_seconds = NAN;
    if (json_array_size(times) > 0 && json_is_number(json_array_get(times, json_array_size(times) - 1)))
        t->followed_seconds = json_number_value(json_array_get(times, json_array_size(times) - 1));
    return MEZZO_OK;
}

static mezzo_status read_replay(const mz_torch_trace *t, const json_t *all, const char *name, mz_torch_replay *out) {
    const json_t *one = json_object_get(all, name);
    MEZZO_TRY(read_number(t->path, one, "seconds", &out->seconds));
    MEZZO_TRY(read_number(t->path, one, "launch_seconds", &out->launch_seconds));
    return read_number(t->path, one, "spread", &out->spread);
}

static mezzo_status read_replays(mz_torch_trace *t) {
    const json_t *all = json_object_get(t->root, "replay");
    for (int i = 0; i < MZ_TORCH_FORMATS; i++)
        MEZZO_TRY(read_replay(t, all, mz_torch_formats[i], &t->replay[i]));
    MEZZO_TRY(read_replay(t, all, "now", &t->replay_now));
    t->no_replay = "";
    return json_object_get(all, "why") == NULL ? MEZZO_OK : mz_json_get_string(t->path, all, "why", &t->no_replay);
}

#define READ_ROWS(key, read, rows, n) read_rows(t, key, sizeof *t->rows, read, &t->rows, &t->n)
static mezzo_status read_all(mz_torch_trace *t) {
    MEZZO_TRY(read_head(t));
    MEZZO_TRY(read_replays(t));
    MEZZO_TRY(READ_ROWS("places", read_place, places, n_places));
    MEZZO_TRY(read_settings(t));
    MEZZO_TRY(READ_ROWS("regions", read_region, regions, n_regions));
    MEZZO_TRY(READ_ROWS("compiled", read_compiled, compiled, n_compiled));
    MEZZO_TRY(READ_ROWS("ops", read_op, ops, n_ops));
    MEZZO_TRY(READ_ROWS("events", read_event, events, n_events));
    MEZZO_TRY(READ_ROWS("states", read_state, optimizer_at, n_optimizers));
    return read_parameters(t);
}

mezzo_status mz_torch_trace_parse(const char *where, const char *text, size_t n, mz_torch_trace *out) {
    *out = (mz_torch_trace){0};
    out->path = mz_strdup(where);
    mezzo_status status = out->path != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = mz_json_parse(where, text, n, MZ_JSON_DEPTH, &out->root);
    if (status == MEZZO_OK)
        status = read_all(out);
    if (status != MEZZO_OK)
        mz_torch_trace_free(out);
    return status;
}

mezzo_status mz_torch_trace_read(const char *path, mz_torch_trace *out) {
    MZ_SCOPED(mz_free_at) char *text = NULL;
    size_t n;
    *out = (mz_torch_trace){0};
    MEZZO_TRY(mz_file_read(path, MZ_TRACE_BYTES_MAX, &text, &n));
    return mz_torch_trace_parse(path, text, n, out);
}

void mz_torch_trace_free(mz_torch_trace *t) {
    json_decref(t->root);
    MZ_FREE(t->path, t->ops, t->events, t->regions, t->places, t->tensors, t->optimizer_at, t->compiled);
    *t = (mz_torch_trace){0};
}
