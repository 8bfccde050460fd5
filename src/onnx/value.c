// Implements what the names of an ONNX file mean while a graph is built: known numbers, weights, values in any order of
// dimensions.
#include <math.h>

#include "onnx/onnx.h"
#include "onnx/place.h"

void *mz_onnx_take(mz_onnx_build *build, size_t count, size_t size) {
    if ((build->n_blocks & (build->n_blocks - 1)) == 0) { // doubles the capacity
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

// --- outputs -------------------------------------------------------------------------------------------------------
static mezzo_status set_shape(mz_onnx_call *call, mz_onnx_value *value, int rank, const int64_t *dim) {
    if (rank > MEZZO_MAX_RANK)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "%d dimensions; at most %d work", rank, MEZZO_MAX_RANK);
    value->rank = rank;
    for (int i = 0; i < rank; i++) {
        value->dim[i] = dim[i];
        value->perm[i] = i;
    }
    return MEZZO_OK;
}

mezzo_status mz_onnx_host(mz_onnx_call *call, int out, bool integer, int rank, const int64_t *dim, double **numbers) {
    mz_onnx_value *value = call->out[out];
    MEZZO_TRY(set_shape(call, value, rank, dim));
    const int64_t n = mz_onnx_elements(rank, dim);
    if (n < 0 || n > INT64_C(1) << 26)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "a table of %lld known numbers", (long long)n);
    *numbers = value->numbers = mz_onnx_take(call->build, (size_t)n, sizeof(double));
    if (!*numbers)
        return MEZZO_ERR_MEMORY;
    value->kind = MZ_ONNX_HOST;
    value->integer = integer;
    return MEZZO_OK;
}

mezzo_status mz_onnx_give(mz_onnx_call *call, int out, bool integer, int rank, mezzo_value made) {
    const mezzo_status status = mezzo_graph_status(call->build->g);
    if (status != MEZZO_OK)
        return mz_context(status, "%s node '%s'", call->node->op_type,
                          call->node->name ? call->node->name : call->node->output[0]);
    mz_onnx_value *value = call->out[out];
    int64_t dim[MEZZO_MAX_RANK];
    for (int i = 0; i < rank && i < MEZZO_MAX_RANK; i++)
        dim[i] = mezzo_value_dim(call->build->g, made, i);
    MEZZO_TRY(set_shape(call, value, rank, dim));
    value->kind = MZ_ONNX_VALUE;
    value->integer = integer;
    value->base = value->moved = made;
    return MEZZO_OK;
}

mezzo_status mz_onnx_give_as(mz_onnx_call *call, int out, bool integer, int rank, mezzo_value made, const int *perm) {
    MEZZO_TRY(mz_onnx_give(call, out, integer, rank, made));
    mz_onnx_value *value = call->out[out];
    for (int i = 0; i < rank; i++) {
        value->perm[i] = perm[i];
        value->dim[i] = mezzo_value_dim(call->build->g, made, perm[i]);
    }
    if (!mz_onnx_in_order(value))
        value->moved = MEZZO_NONE;
    return MEZZO_OK;
}

mezzo_status mz_onnx_give_floats(mz_onnx_call *call, const mz_onnx_value *x, int rank, mezzo_value value) {
    MEZZO_TRY(mz_onnx_give(call, 0, x->integer, rank, value));
    call->out[0]->floats = x->integer;
    return MEZZO_OK;
}

mezzo_status mz_onnx_give_same(mz_onnx_call *call, const mz_onnx_value *x) {
    mz_onnx_value *y = call->out[0];
    const mz_onnx_value before = *y;
    *y = *x;
    y->name = before.name;
    y->needed = before.needed;
    y->producer = before.producer;
    if (x->kind == MZ_ONNX_WEIGHT && !x->of)
        y->of = (mz_onnx_value *)x;
    return MEZZO_OK;
}

// --- inputs --------------------------------------------------------------------------------------------------------
bool mz_onnx_in_order(const mz_onnx_value *value) {
    for (int i = 0; i < value->rank; i++)
        if (value->perm[i] != i)
            return false;
    return true;
}

bool mz_onnx_has(const mz_onnx_call *call, int in) {
    return in < call->n_in && call->in[in] != NULL;
}

// Writes the path of the module that a node of torch's exporters comes from: "a.b" of "['', 'a', 'a.b', 'linear']" in
// its metadata, or of its name "/a/b/MatMul". Returns false: it says none.
static bool get_module_of(const MzPb__Node *node, char *out, size_t size) {
    const char *from = NULL, *to = NULL;
    for (size_t i = 0; i < node->n_metadata_props; i++) {
        const MzPb__Entry *entry = node->metadata_props[i];
        if (!entry->key || !entry->value || strcmp(entry->key, "pkg.torch.onnx.name_scopes") != 0)
            continue;
        for (const char *at = entry->value, *next; (next = strstr(at, "', '")) != NULL; at = next + 4)
            from = at, to = next;
    }
    if (!from && node->name && node->name[0] == '/') {
        from = node->name + 1;
        to = strrchr(node->name, '/');
    }
    if (!from || to <= from || (size_t)(to - from) >= size)
        return false;
    snprintf(out, size, "%.*s", (int)(to - from), from);
    for (char *c = out; *c != '\0'; c++)
        *c = *c == '/' ? '.' : *c;
    return true;
}

// An exporter that stores a weight transposed gives it a number for a name: "val_68", "onnx::MatMul_123". It then has
// the name that it has in its module, unless another has this one.
static const char *name_weight(const mz_onnx_call *call, const mz_onnx_value *own, char *buf, size_t size) {
    static const char weight[] = ".weight";
    const bool numbered = strncmp(own->name, "val_", 4) == 0 || strncmp(own->name, "onnx::", 6) == 0;
    if (!numbered || !get_module_of(call->node, buf, size - sizeof weight))
        return own->name;
    strcat(buf, weight);
    return mz_onnx_find(call->build->onnx, buf) || mz_onnx_tensor_of(call->build->onnx, buf) ? own->name : buf;
}

static mezzo_status make_parameter(mz_onnx_call *call, mz_onnx_value *own) {
    char name[256];
    int64_t dim[MEZZO_MAX_RANK];
    for (int i = 0; i < own->rank; i++)
        dim[own->perm[i]] = own->dim[i];
    mz_onnx_param *param;
    MEZZO_TRY(mz_onnx_add_param(call, name_weight(call, own, name, sizeof name), own->rank, dim, own->frozen, &param,
                                &own->base));
    param->tensor = own->tensor;
    memcpy(param->dim, own->dim, sizeof param->dim);
    memcpy(param->perm, own->perm, sizeof param->perm);
    return MEZZO_OK;
}

// Gets the elements as they are stored.
mezzo_status mz_onnx_base(mz_onnx_call *call, mz_onnx_value *value, mezzo_value *out) {
    mezzo_graph *g = call->build->g;
    switch (value->kind) {
    case MZ_ONNX_VALUE:
        if (value->negated) {
            value->base = mezzo_equal(g, value->base, mz_onnx_scalar(call, 0));
            value->moved = MEZZO_NONE;
            value->negated = value->floats = false;
        }
        *out = value->base;
        return mezzo_graph_status(g);
    case MZ_ONNX_WEIGHT: {
        mz_onnx_value *own = value->of ? value->of : value;
        if (own->base.id < 0)
            MEZZO_TRY(make_parameter(call, own));
        *out = own->base;
        return MEZZO_OK;
    }
    case MZ_ONNX_HOST:
        return mz_onnx_constant(call, value->integer, value->rank, value->dim, value->numbers, out);
    case MZ_ONNX_ABSENT:
        break;
    }
    return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "nothing makes its input '%s'", value->name);
}

mezzo_status mz_onnx_value_of(mz_onnx_call *call, mz_onnx_value *value, mezzo_value *out) {
    MEZZO_TRY(mz_onnx_base(call, value, out));
    if (value->kind == MZ_ONNX_HOST || mz_onnx_in_order(value))
        return MEZZO_OK;
    if (value->moved.id < 0)
        value->moved = mezzo_permute(call->build->g, *out, value->perm);
    *out = value->moved;
    return mezzo_graph_status(call->build->g);
}

mezzo_status mz_onnx_get(mz_onnx_call *call, int in, mezzo_value *out) {
    if (!mz_onnx_has(call, in))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it has no input %d", in);
    return mz_onnx_value_of(call, call->in[in], out);
}

static bool stored_as_integers(const mz_onnx_value *value) {
    return value->kind == MZ_ONNX_VALUE && value->integer && !value->floats;
}

// Converts stored integers to F32 in their own order.
static mezzo_status as_number(mz_onnx_call *call, mz_onnx_value *value, mezzo_value *v) {
    if (stored_as_integers(value))
        *v = mezzo_cast(call->build->g, *v, MEZZO_F32);
    return mezzo_graph_status(call->build->g);
}

mezzo_status mz_onnx_number(mz_onnx_call *call, int in, mezzo_value *out) {
    MEZZO_TRY(mz_onnx_get(call, in, out));
    return as_number(call, call->in[in], out);
}

mezzo_value mz_onnx_join(mezzo_graph *g, mezzo_value *parts, int n, int axis) { // at most 16 at a time
    while (n > 1) {
        int made = 0;
        for (int i = 0; i < n; i += 16) {
            const int here = n - i < 16 ? n - i : 16;
            parts[made++] = here == 1 ? parts[i] : mezzo_concat(g, parts + i, here, axis);
        }
        n = made;
    }
    return parts[0];
}

// Makes known integers values; each run with a constant step takes one op.
static mezzo_status known_index(mz_onnx_call *call, const mz_onnx_value *value, mezzo_value *out) {
    enum { MOST = 256 };
    mezzo_graph *g = call->build->g;
    const double *at = value->numbers;
    const int64_t n = mz_onnx_elements(value->rank, value->dim), one = 1;
    mezzo_value parts[MOST];
    int made = 0;
    for (int64_t i = 0, count; i < n; i += count) {
        const double step = i + 1 < n ? at[i + 1] - at[i] : 0;
        for (count = 1; i + count < n && at[i + count] == at[i] + (double)count * step;)
            count++;
        if (made == MOST || !(fabs(at[i]) < 0x1p30 && fabs(step) < 0x1p30))
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its input '%s' has known indices in no steady order",
                                value->name);
        parts[made++] = mezzo_range(g, (int64_t)at[i], (int64_t)step, count);
    }
    if (made == 0)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its input '%s' has no index", value->name);
    *out = mz_onnx_join(g, parts, made, 0);
    *out = mz_onnx_shaped(g, *out, value->rank ? value->rank : 1, value->rank ? value->dim : &one);
    return mezzo_graph_status(g);
}

mezzo_status mz_onnx_index(mz_onnx_call *call, int in, mezzo_value *out) {
    mz_onnx_value *value = call->in[in];
    if (value->kind == MZ_ONNX_HOST)
        return known_index(call, value, out);
    MEZZO_TRY(mz_onnx_get(call, in, out));
    return stored_as_integers(value)
               ? MEZZO_OK
               : mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its input '%s' has indices that were computed", value->name);
}

// Gets `value`, extended by ones in front, in another order: by its numbers, or by a view where only one dimension is
// not 1.
mezzo_status mz_onnx_ordered(mz_onnx_call *call, mz_onnx_value *value, int rank, const int *perm, mezzo_value *out) {
    mezzo_graph *g = call->build->g;
    const int ones = rank - value->rank;
    int64_t dim[MEZZO_MAX_RANK], wide = 0;
    int axes[MEZZO_MAX_RANK];
    bool still = true;
    for (int i = 0; i < rank; i++) {
        dim[perm[i]] = i < ones ? 1 : value->dim[i - ones];
        wide += dim[perm[i]] > 1;
    }
    if (value->kind == MZ_ONNX_HOST && wide > 1) {
        const int64_t n = mz_onnx_elements(rank, dim);
        double *moved = mz_onnx_take(call->build, (size_t)n, sizeof *moved);
        if (!moved)
            return MEZZO_ERR_MEMORY;
        for (int64_t i = 0; i < n; i++) { // i counts elements of the result
            int64_t at[MEZZO_MAX_RANK], rest = i, place = 0;
            for (int k = rank - 1; k >= 0; rest /= dim[k--])
                at[k] = rest % dim[k];
            for (int k = ones; k < rank; k++)
                place = place * value->dim[k - ones] + at[perm[k]];
            moved[i] = value->numbers[place];
        }
        return mz_onnx_constant(call, value->integer, rank, dim, moved, out);
    }
    MEZZO_TRY(mz_onnx_base(call, value, out));
    MEZZO_TRY(as_number(call, value, out));
    if (wide == 0)
        return MEZZO_OK; // it has one element, or nothing repeats
    if (wide > 1 && ones > 0) {
        MEZZO_TRY(mz_onnx_value_of(call, value, out));
        MEZZO_TRY(as_number(call, value, out));
        int64_t padded[MEZZO_MAX_RANK];
        for (int i = 0; i < rank; i++) {
            padded[i] = i < ones ? 1 : value->dim[i - ones];
            axes[perm[i]] = i;
            still = still && perm[i] == i;
        }
        *out = mz_onnx_shaped(g, *out, rank, padded);
        *out = still ? *out : mezzo_permute(g, *out, axes);
    } else if (wide == 1) {
        *out = mz_onnx_shaped(g, *out, rank, dim);
    } else {
        for (int i = 0; i < rank; i++) {
            axes[perm[i]] = value->perm[i];
            still = still && perm[i] == value->perm[i];
        }
        *out = still ? *out : mezzo_permute(g, *out, axes);
    }
    return mezzo_graph_status(g);
}

// --- constants -----------------------------------------------------------------------------------------------------
mezzo_value mz_onnx_scalar(mz_onnx_call *call, double number) {
    return mezzo_constant(call->build->g, MEZZO_F32, (float)number, 1, &(int64_t){1});
}

// Returns whether all slices along the first axis are equal.
static bool repeats(int rank, const int64_t *dim, const double *numbers) {
    const int64_t n = rank > 1 && dim[0] > 1 ? mz_onnx_elements(rank - 1, dim + 1) : 0;
    bool same = n > 1;
    for (int64_t i = n; same && i < n * dim[0]; i++)
        same = numbers[i] == numbers[i - n];
    return same;
}

// Puts a number that no other place has where the table has `infinite`, and the infinity into its place when the graph
// runs: a parameter must be finite.
static mezzo_status hide_infinities(mz_onnx_call *call, float infinite, float *table, int64_t n, mezzo_value *out) {
    mezzo_graph *g = call->build->g;
    float low = 0, high = 0;
    bool found = false;
    for (int64_t i = 0; i < n; i++) {
        found = found || table[i] == infinite;
        low = isfinite(table[i]) ? fminf(low, table[i]) : low;
        high = isfinite(table[i]) ? fmaxf(high, table[i]) : high;
    }
    if (!found)
        return MEZZO_OK;
    const float stand_in = isfinite(2 * high + 1) ? 2 * high + 1 : 2 * low - 1;
    if (!isfinite(stand_in))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "a table with infinities beside %g and %g", (double)low,
                            (double)high);
    for (int64_t i = 0; i < n; i++)
        table[i] = table[i] == infinite ? stand_in : table[i];
    *out = mezzo_where(g, mezzo_equal(g, *out, mz_onnx_scalar(call, stand_in)), mz_onnx_scalar(call, infinite), *out);
    return mezzo_graph_status(g);
}

static mezzo_status make_table(mz_onnx_call *call, int rank, const int64_t *dim, const double *numbers,
                               mezzo_value *out) {
    const int64_t n = mz_onnx_elements(rank, dim);
    char name[64];
    mz_onnx_param *param;
    snprintf(name, sizeof name, "onnx.constant.%zu", call->build->onnx->n_params);
    MEZZO_TRY(mz_onnx_add_param(call, name, rank, dim, true, &param, out));
    if (!(param->numbers = mz_alloc((size_t)n, sizeof(float))))
        return MEZZO_ERR_MEMORY;
    for (int64_t i = 0; i < n; i++)
        param->numbers[i] = (float)numbers[i];
    MEZZO_TRY(hide_infinities(call, -INFINITY, param->numbers, n, out));
    return hide_infinities(call, INFINITY, param->numbers, n, out);
}

mezzo_status mz_onnx_constant(mz_onnx_call *call, bool integer, int rank, const int64_t *dim, const double *numbers,
                              mezzo_value *out) {
    const int64_t n = mz_onnx_elements(rank, dim);
    bool uniform = n > 0;
    if (repeats(rank, dim, numbers)) { // a table must not depend on the batch, whose size may change
        int64_t one[MEZZO_MAX_RANK];
        memcpy(one, dim, (size_t)rank * sizeof *one);
        one[0] = 1;
        MEZZO_TRY(mz_onnx_constant(call, integer, rank, one, numbers, out));
        *out = mezzo_expand(call->build->g, *out, rank, dim);
        return mezzo_graph_status(call->build->g);
    }
    for (int64_t i = 0; i < n; i++) {
        uniform = uniform && numbers[i] == numbers[0];
        if (integer && !(fabs(numbers[i]) <= 0x1p24))
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "the known integer %g among computed ones", numbers[i]);
    }
    if (uniform) {
        *out =
            mezzo_constant(call->build->g, MEZZO_F32, (float)numbers[0], rank ? rank : 1, rank ? dim : &(int64_t){1});
        return mezzo_graph_status(call->build->g);
    }
    return make_table(call, rank, dim, numbers, out);
}

// --- known numbers -------------------------------------------------------------------------------------------------
bool mz_onnx_known(const mz_onnx_call *call) {
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && call->in[i]->kind != MZ_ONNX_HOST)
            return false;
    return true;
}

bool mz_onnx_one_number(const mz_onnx_value *value, double *out) {
    if (!value || value->kind != MZ_ONNX_HOST || mz_onnx_elements(value->rank, value->dim) != 1)
        return false;
    *out = value->numbers[0];
    return true;
}

mezzo_status mz_onnx_numbers(mz_onnx_call *call, int in, const double **out) {
    if (!mz_onnx_has(call, in))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it has no input %d", in);
    if (call->in[in]->kind != MZ_ONNX_HOST)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its input '%s' must be known when the model is built",
                            call->in[in]->name);
    *out = call->in[in]->numbers;
    return MEZZO_OK;
}

int64_t mz_onnx_integer(double number) { // ±2^63 mean "to the end"
    return isnan(number) ? 0 : number >= 9e18 ? INT64_MAX : number <= -9e18 ? INT64_MIN : (int64_t)number;
}

mezzo_status mz_onnx_ints(mz_onnx_call *call, int in, int most, int *n, int64_t *out) {
    const double *numbers;
    MEZZO_TRY(mz_onnx_numbers(call, in, &numbers));
    const int64_t count = mz_onnx_elements(call->in[in]->rank, call->in[in]->dim);
    if (count > most)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its input '%s' has %lld numbers; at most %d work",
                            call->in[in]->name, (long long)count, most);
    *n = (int)count;
    for (int i = 0; i < *n; i++)
        out[i] = mz_onnx_integer(numbers[i]);
    return MEZZO_OK;
}

mezzo_status mz_onnx_ints_or(mz_onnx_call *call, int in, const char *attribute, int most, int *n, int64_t *out) {
    const MzPb__Attribute *own = mz_onnx_attribute(call->node, attribute);
    if (mz_onnx_has(call, in))
        return mz_onnx_ints(call, in, most, n, out);
    *n = own ? (int)(own->n_ints < 99 ? own->n_ints : 99) : -1;
    if (*n > most)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "'%s' has %zu numbers; at most %d work", attribute, own->n_ints,
                            most);
    for (int i = 0; i < *n; i++)
        out[i] = own->ints[i];
    return MEZZO_OK;
}
