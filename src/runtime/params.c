// Holds masters, gradients and low copies on the device.
#include "base/scope.h"
#include "base/stop.h"
#include "runtime/params_layout.h"

#include "graph/graph.h"
#include "runtime/passes.h"

mz_tensor mz_tensor_f32(void *data, int64_t n) {
    return (mz_tensor){.data = data, .dtype = MEZZO_F32, .shape = {1, {n}}};
}
mz_tensor mz_tensor_bytes(void *data, size_t n) {
    return (mz_tensor){.data = data, .dtype = MEZZO_U8, .shape = {1, {(int64_t)n}}};
}
mz_tensor mz_tensor_absent(void) {
    return (mz_tensor){.dtype = MEZZO_F32, .shape = {-1, {0}}};
}

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

// A set of the random streams in use: an open hash table of their low 31 bits with the highest bit set; 0: empty.
typedef struct key_set {
    uint32_t *slots;
    size_t cap;
} key_set;

static bool take_key(key_set *set, uint32_t key) { // returns false where the key is in use
    const uint32_t want = key | 0x80000000u;
    size_t at = want;
    while (set->slots[at & (set->cap - 1)] != 0 && set->slots[at & (set->cap - 1)] != want)
        ++at;
    const bool taken = set->slots[at & (set->cap - 1)] != 0;
    set->slots[at & (set->cap - 1)] = want;
    return !taken;
}

// Sets each parameter's random stream: the hash of its name, or the next number whose low 31 bits are free.
static mezzo_status settle_keys(mezzo_params *params) {
    key_set set = {.cap = 64};
    while (set.cap < 2 * params->n)
        set.cap *= 2;
    MEZZO_TRY(MZ_NEW(set.slots, set.cap));
    for (size_t i = 0; i < params->n; ++i) {
        params->list[i].key = mz_name_hash(params->list[i].name);
        while (!take_key(&set, params->list[i].key))
            ++params->list[i].key;
    }
    mz_free(set.slots);
    return MEZZO_OK;
}

// Returns x if it is within 3 standard deviations, else the first redrawn number that is.
static float within(mz_philox_key key, uint64_t block, int lane, float x) {
    while (x < -3 || x > 3) {
        uint32_t words[4];
        float v[4];
        ++key.step;
        mz_philox(key, block, words);
        mz_normal4(words, v);
        x = v[lane];
    }
    return x;
}

// Draws elements [first, first + count); first is a multiple of 4. Each block of four has a draw of its own, so the
// number of threads does not change the result.
static void draw(const mz_param *p, uint64_t seed, int64_t first, int64_t count, float *out) {
    mz_philox_key key = {seed, 0, p->key};
#pragma omp parallel for schedule(static) if (count >= 1 << 16)
    for (int64_t i = 0; i < count; i += 4) {
        uint32_t words[4];
        float v[4] = {0};
        uint64_t block = (uint64_t)(first + i) / 4;
        mz_philox(key, block, words);
        if (p->init.kind != MEZZO_INIT_UNIFORM)
            mz_normal4(words, v);
        for (int k = 0; k < 4 && i + k < count; ++k) {
            if (p->init.kind == MEZZO_INIT_TRUNCATED)
                v[k] = within(key, block, k, v[k]);
            out[i + k] = p->init.a * (p->init.kind == MEZZO_INIT_UNIFORM ? 2 * mz_uniform(words[k]) - 1 : v[k]);
        }
    }
}

// --- masters as they are stored ------------------------------------------------------------------------------------
// Views a parameter's elements from `first` in a flat buffer in which element 0 lies, or would lie, at `place`. Sharded
// parameters have no padding between elements.
static mezzo_status read_at(const mezzo_params *params, const mz_param *p, const void *flat, int64_t place, size_t size,
                            int64_t first, int64_t count, void *out) {
    const char *at = flat;
    if (p->region >= 0)
        return params->device->backend->read(params->device, out, at + (place + first) * (int64_t)size,
                                             (size_t)count * size);
    return mz_stored_read(params->device, &p->layout, at + place * (int64_t)size, size, first, count, out);
}

static mezzo_status write_at(const mezzo_params *params, const mz_param *p, void *flat, int64_t place, size_t size,
                             int64_t first, int64_t count, const void *values) {
    char *at = flat;
    if (p->region >= 0)
        return params->device->backend->write(params->device, at + (place + first) * (int64_t)size, values,
                                              (size_t)count * size);
    return mz_stored_write(params->device, &p->layout, at + place * (int64_t)size, size, first, count, values);
}

static int64_t low_place(const mz_param *p) { // returns the parameter's first element in the master buffer
    return p->low_offset / (int64_t)sizeof(uint16_t);
}

static float float_at(const void *values, int64_t i) { // reads a float at any alignment
    float x;
    memcpy(&x, (const char *)values + (size_t)i * sizeof x, sizeof x);
    return x;
}

// Writes `count` elements from `first`. Low copy 0 exists from the start and is BF16. `halves` has memory for two
// numbers an element.
static mezzo_status write_halves(mezzo_params *params, const mz_param *p, int64_t first, int64_t count,
                                 const void *values, uint16_t *halves) {
    uint16_t *high = halves, *low = halves + count;
#pragma omp parallel for schedule(static) if (count >= 1 << 16)
    for (int64_t i = 0; i < count; ++i)
        if (p->master == MEZZO_MASTER_SPLIT)
            mz_master_split(float_at(values, i), &high[i], &low[i]);
        else
            high[i] = mezzo_f32_to_bf16(float_at(values, i));
    MEZZO_TRY(write_at(params, p, params->low_copies[0].data, p->low_copy_place, sizeof *high, first, count, high));
    if (p->master == MEZZO_MASTER_SPLIT)
        MEZZO_TRY(write_at(params, p, params->master, low_place(p), sizeof *low, first, count, low));
    return MEZZO_OK;
}

static mezzo_status read_halves(const mezzo_params *params, const mz_param *p, int64_t first, int64_t count,
                                uint16_t *high, uint16_t *low, float *out) {
    MEZZO_TRY(read_at(params, p, params->low_copies[0].data, p->low_copy_place, sizeof *high, first, count, high));
    if (p->master == MEZZO_MASTER_SPLIT)
        MEZZO_TRY(read_at(params, p, params->master, low_place(p), sizeof *low, first, count, low));
    for (int64_t i = 0; i < count; ++i)
        out[i] = p->master == MEZZO_MASTER_SPLIT ? mz_master_join(high[i], low[i]) : mezzo_bf16_to_f32(high[i]);
    return MEZZO_OK;
}

mezzo_status mz_params_read_range(const mezzo_params *params, int index, int64_t first, int64_t count, float *out) {
    const mz_param *p = &params->list[index];
    if (p->region >= 0 && params->whole == NULL)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "parameter %s is spread over ranks", p->name);
    if (p->region >= 0) {
        memcpy(out, params->whole->master + p->offset + first, (size_t)count * sizeof *out);
        return MEZZO_OK;
    }
    if (p->master == MEZZO_MASTER_FP32)
        return read_at(params, p, params->master, p->place, sizeof *out, first, count, out);
    MZ_SCOPED(mz_free_at) uint16_t *halves = NULL;
    MEZZO_TRY(MZ_NEW(halves, 2 * (size_t)count));
    return read_halves(params, p, first, count, halves, halves + count, out);
}

// Writes masters to the device in pieces of this many elements, because fresh host pages for every parameter cost as
// much as drawing it.
#define WRITTEN_PIECE (((int64_t)1 << 20) - 4)

static int64_t piece_of(int64_t count) {
    return count < WRITTEN_PIECE ? count : WRITTEN_PIECE;
}

// Allocates the halves of a piece; NULL where masters are FP32, which have no halves.
static mezzo_status take_halves(const mz_param *p, int64_t piece, uint16_t **out) {
    *out = p->master == MEZZO_MASTER_FP32 ? NULL : mz_alloc(2 * (size_t)piece, sizeof **out);
    if (p->master != MEZZO_MASTER_FP32 && *out == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    return MEZZO_OK;
}

// Writes elements [first, first + count), all of which this process has, from `values`.
static mezzo_status write_piece(mezzo_params *params, const mz_param *p, int64_t first, int64_t count,
                                const void *values, uint16_t *halves) {
    if (halves != NULL)
        return write_halves(params, p, first, count, values, halves);
    return write_at(params, p, params->master, p->place, sizeof(float), first, count, values);
}

mezzo_status mz_params_write_master(mezzo_params *params, int index, const void *values) {
    const mz_param *p = &params->list[index];
    const int64_t end = p->first + p->own, piece = piece_of(p->own);
    MZ_SCOPED(mz_free_at) uint16_t *halves = NULL;
    if (p->own == 0)
        return MEZZO_OK;
    MEZZO_TRY(take_halves(p, piece, &halves));
    for (int64_t first = p->first; first < end; first += piece)
        MEZZO_TRY(write_piece(params, p, first, piece_of(end - first),
                              (const char *)values + (size_t)first * sizeof(float), halves));
    return MEZZO_OK;
}

// Draws this process's elements of a parameter. With `repeats` one piece serves for all; its size is no multiple of a
// row, so that rows differ.
static mezzo_status init_param(mezzo_params *params, const mz_param *p, uint64_t seed, bool repeats) {
    if (p->init.kind == MEZZO_INIT_ZERO || p->own == 0)
        return MEZZO_OK; // the device's memory is zero at first
    const int64_t end = p->first + p->own, piece = piece_of(p->own);
    MZ_SCOPED(mz_free_at) float *values = mz_alloc((size_t)piece, sizeof *values);
    MZ_SCOPED(mz_free_at) uint16_t *halves = NULL;
    MEZZO_TRY(values != NULL ? take_halves(p, piece, &halves)
                             : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__));
    for (int64_t first = p->first; first < end; first += piece) {
        const int64_t count = piece_of(end - first);
        if (p->init.kind == MEZZO_INIT_CONSTANT)
            for (int64_t i = 0; i < count; ++i)
                values[i] = p->init.a;
        else if (first == p->first || !repeats)
            draw(p, seed, first, count, values);
        MEZZO_TRY(write_piece(params, p, first, count, values, halves));
        MEZZO_TRY(mz_stop_check("parameters"));
    }
    return MEZZO_OK;
}

// Returns the parameter that a value is; a parameter that a matmul-class op reads may need a low copy.
static int param_of(const mezzo_graph *g, int value) {
    const int param = value >= 0 && g->values[value].kind == MZ_VALUE_PARAM ? g->values[value].param : -1;
    return param >= 0 && g->params[param].value == value ? param : -1;
}

// Gives each parameter that products read a place among the low copies (number_low_copies), and finds the experts.
static void find_readers(mezzo_params *params, const mezzo_graph *g) {
    for (size_t i = 0; i < params->n; ++i)
        params->list[i].low_copy_slot = -1;
    for (size_t i = 0; i < g->n_nodes; ++i)
        for (int k = 0; k < g->nodes[i].n_in; ++k) {
            const int param = param_of(g, g->nodes[i].in[k]);
            if (param >= 0 && mz_op_table[g->nodes[i].op].cast_class == MZ_CAST_LOW)
                params->list[param].low_copy_slot = 0;
            if (param >= 0 && g->nodes[i].op == MZ_OP_grouped_linear)
                params->list[param].experts = true;
        }
}

static void free_specs(mezzo_params *params) {
    for (size_t i = 0; i < params->n; ++i)
        mz_free(params->list[i].name);
    mz_free(params->list);
    mz_names_free(&params->names);
}

// Stores a parameter as its axes are, but without padding where update kernels or ranks' shards cannot follow it.
static void store(mz_param *p, const mz_storage *storage, bool cut) {
    p->storage = *storage;
    bool followed = mz_layout_of(&p->shape, storage, &p->layout);
    bool apart = p->layout.width != 0 && p->layout.width < p->count; // it has padding between elements
    if (!followed || (cut && apart)) {
        p->storage = (mz_storage){0};
        p->layout = (mz_layout){0};
    }
    p->stored = mz_stored_count(&p->shape, &p->storage);
}

// Sets `stored` from the values of `cast`, where autocast decided the readers' formats; g is the graph before autocast.
static mezzo_status copy_specs(mezzo_params *params, const mezzo_graph *g, const mezzo_graph *cast,
                               const mz_storage *stored) {
    MEZZO_TRY(MZ_NEW(params->list, g->n_params + 1));
    for (size_t i = 0; i < g->n_params; ++i) {
        mz_param *p = &params->list[params->n];
        p->name = mz_strdup(g->params[i].name);
        if (!p->name)
            return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
        ++params->n;
        MEZZO_TRY(mz_names_add(&params->names, p->name, (int)i));
        p->shape = g->params[i].shape;
        p->init = g->params[i].init;
        p->frozen = g->params[i].frozen;
        p->parts = g->params[i].parts;
        params->n_trained += !p->frozen;
        p->count = mz_shape_count(&p->shape);
        store(p, &stored[cast->params[i].value], params->ranks > 0);
        params->padded = params->padded || p->storage.padded;
    }
    find_readers(params, g);
    return settle_keys(params);
}

// Removes a parameter's low copy where products read it with scales and nothing reads the low copy. Where programs
// quantize such weights where they read them, they also cast the matrices of which nothing else is read, so that these
// take no more memory than the two halves of a master would.
static void leave_quantized(mezzo_params *params, const mezzo_graph *cast) {
    bool quantizes = false;
    for (size_t i = 0; i < cast->n_nodes; ++i) {
        const int param = cast->nodes[i].op == MZ_OP_quantize ? param_of(cast, cast->nodes[i].in[0]) : -1;
        if (param >= 0 && cast->params[param].low_copy < 0)
            params->list[param].low_copy_slot = -1;
        quantizes = quantizes || param >= 0;
    }
    for (size_t i = 0; i < params->n && quantizes && params->requantizes && params->ranks == 0; ++i)
        if (params->list[i].shape.rank >= 2 && mz_master_of(cast, i, MEZZO_MASTER_SPLIT, NULL) != MEZZO_MASTER_FP32)
            params->list[i].low_copy_slot = -1;
}

// Decides each master's format and which parameters have low copies: autocast knows what the program reads under its
// options.
static void settle_formats(mezzo_params *params, const mezzo_graph *cast) {
    for (size_t i = 0; i < params->n; ++i)
        params->list[i].master = mz_master_of(cast, i, params->master_format, NULL);
    leave_quantized(params, cast);
}

static void number_low_copies(mezzo_params *params) {
    for (size_t i = 0; i < params->n; ++i) {
        mz_param *p = &params->list[i];
        if (p->low_copy_slot < 0)
            continue;
        p->low_copy_slot = params->low_copy_elements;
        params->low_copy_elements += round_up(p->stored, MZ_LOW_COPY_SEGMENT);
    }
}

static mezzo_status make_specs(mezzo_params *params, const mezzo_graph *g, const mezzo_program_options *options) {
    mezzo_graph *cast = NULL;
    if (options == NULL && params->master_format != MEZZO_MASTER_FP32)
        return mz_fail(MEZZO_ERR_INVALID, "%s masters need the options of the programs that read them",
                       mezzo_master_name(params->master_format));
    if (options != NULL)
        MEZZO_TRY(mz_passes(g, &(mz_target){.options = options}, "autocast", &cast));
    const mezzo_graph *read = cast != NULL ? cast : g;
    mz_storage *stored = mz_alloc(read->n_values + 1, sizeof *stored);
    mezzo_status status = stored != NULL ? MEZZO_OK : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    if (status == MEZZO_OK)
        status = mz_graph_storage(read, &params->device->storage, stored);
    if (status == MEZZO_OK)
        status = copy_specs(params, g, read, stored);
    if (status == MEZZO_OK && cast != NULL)
        settle_formats(params, cast);
    mz_free(stored);
    mezzo_graph_free(cast);
    return status;
}

const char *mezzo_master_name(mezzo_master master) {
    static const char *const names[] = {"fp32", "split", "stochastic"};
    return (size_t)master < MZ_COUNT(names) ? names[master] : "?";
}

mezzo_master mezzo_master_default(mezzo_precision precision) {
    return precision == MEZZO_PRECISION_BF16 ? MEZZO_MASTER_SPLIT : MEZZO_MASTER_FP32;
}

mezzo_master mezzo_params_master(const mezzo_params *params) {
    if (params == NULL)
        return MEZZO_MASTER_FP32;
    return params->master_format;
}

mezzo_status mezzo_params_create(mezzo_device *device, const mezzo_graph *graph, uint64_t seed, mezzo_params **out) {
    MZ_REQUIRE(device, graph, out);
    return mezzo_params_create_as(device, graph, NULL, seed, MEZZO_MASTER_FP32, out);
}

mezzo_status mezzo_params_create_as(mezzo_device *device, const mezzo_graph *graph,
                                    const mezzo_program_options *options, uint64_t seed, mezzo_master master,
                                    mezzo_params **out) {
    MZ_REQUIRE(device, graph, out);
    return mz_params_create(device, graph, options, seed, master, NULL, out);
}

static mezzo_status lay_out_params(mezzo_device *device, const mezzo_graph *graph, const mezzo_program_options *options,
                                   mezzo_master master, const mz_cut *cut, mezzo_params **out) {
    const mz_cut whole = {0};
    mezzo_status status;
    mezzo_params *params;
    MEZZO_TRY(MZ_NEW(params, 1));
    params->device = device;
    params->master_format = master;
    params->lora_rank = graph->lora_rank;
    params->lora_alpha = graph->lora_alpha;
    memcpy(params->adapted, graph->adapted, sizeof params->adapted);
    cut = cut != NULL ? cut : &whole;
    params->ranks = cut->ranks;
    params->rank = cut->rank;
    params->scattered = cut->scattered;
    params->sharded = cut->sharded;
    params->exchanges = cut->exchanges && cut->sharded;
    params->grads_empty = true;
    params->requantizes = options != NULL && (options->recompute || options->recompute_light);
    MEZZO_TRY_GOTO(status, make_specs(params, graph, options));
    number_low_copies(params);
    MEZZO_TRY_GOTO(status, mz_params_lay_out(params, cut->region));
    *out = params;
    return MEZZO_OK;
fail:
    mezzo_params_free(params);
    return status;
}

mezzo_status mz_params_sketch(mezzo_device *device, const mezzo_graph *graph, const mezzo_program_options *options,
                              mezzo_master master, const mz_cut *cut, mezzo_params **out) {
    *out = NULL;
    MEZZO_TRY(mezzo_graph_status(graph));
    return lay_out_params(device, graph, options, master, cut, out);
}

mezzo_status mz_params_create(mezzo_device *device, const mezzo_graph *graph, const mezzo_program_options *options,
                              uint64_t seed, mezzo_master master, const mz_cut *cut, mezzo_params **out) {
    *out = NULL;
    mezzo_status status;
    mezzo_params *params;
    if ((int)master < MEZZO_MASTER_FP32 || master > MEZZO_MASTER_STOCHASTIC)
        return mz_fail(MEZZO_ERR_INVALID, "masters are fp32, split or stochastic, not %d", (int)master);
    MEZZO_TRY(mezzo_graph_status(graph));
    if (graph->n_params == 0)
        return mz_fail(MEZZO_ERR_INVALID, "the graph has no parameters");
    MEZZO_TRY(lay_out_params(device, graph, options, master, cut, &params));
    params->seed = seed;
    MEZZO_TRY_GOTO(status, device->backend->alloc(device, params->master_bytes + 64, (void **)&params->master));
    MEZZO_TRY_GOTO(
        status, device->backend->alloc(device, (size_t)params->grad_elements * sizeof(float), (void **)&params->grad));
    const mz_low_copy *low_copy;
    if (params->low_masters) // a low master includes its low copy, which must exist first
        MEZZO_TRY_GOTO(status, mz_params_low_copy(params, MEZZO_BF16, &low_copy));
    for (size_t i = 0; i < params->n; ++i)
        MEZZO_TRY_GOTO(status, init_param(params, &params->list[i], seed, graph->repeats_init));
    MEZZO_TRY_GOTO(status, mz_params_refresh(params));
    *out = params;
    return MEZZO_OK;
fail:
    mezzo_params_free(params);
    return status;
}

mezzo_status mz_params_adapt(const mezzo_params *params, mezzo_graph *graph) {
    const mezzo_lora lora = {.rank = params->lora_rank, .alpha = params->lora_alpha, .modules = params->adapted};
    return params->lora_rank > 0 ? mezzo_graph_adapt(graph, &lora) : MEZZO_OK;
}

void mezzo_params_free(mezzo_params *params) {
    if (!mz_free_once(params, "set of parameters"))
        return;
    const mz_backend *b = params->device->backend;
    for (int i = 0; i < params->n_low_copies; ++i) {
        b->release(params->device, params->low_copies[i].data);
        b->release(params->device, params->low_copies[i].segments);
    }
    mz_quantized_free(params->device, &params->quantized);
    mz_scales_free(params->device, &params->scales);
    b->release(params->device, params->master);
    b->release(params->device, params->grad);
    mz_params_close_whole(params);
    mz_free(params->regions);
    free_specs(params);
    mz_free(params);
}

int mezzo_params_count(const mezzo_params *params) {
    if (params == NULL)
        return 0;
    return (int)params->n;
}

int64_t mezzo_params_elements(const mezzo_params *params) {
    if (params == NULL)
        return 0;
    int64_t n = 0;
    for (size_t i = 0; i < params->n; ++i)
        n += params->list[i].count;
    return n;
}

static bool is_index(const mezzo_params *params, int index) {
    return params != NULL && index >= 0 && (size_t)index < params->n;
}

const char *mezzo_params_name(const mezzo_params *params, int index) {
    return is_index(params, index) ? params->list[index].name : NULL;
}
int mezzo_params_rank(const mezzo_params *params, int index) {
    return is_index(params, index) ? params->list[index].shape.rank : 0;
}
const int64_t *mezzo_params_shape(const mezzo_params *params, int index) {
    return is_index(params, index) ? params->list[index].shape.dim : NULL;
}

static const char *param_name(const void *list, int number) {
    return ((const mz_param *)list)[number].name;
}

int mezzo_params_find(const mezzo_params *params, const char *name) {
    return params != NULL && name != NULL ? mz_names_find(&params->names, name, param_name, params->list) : -1;
}

int mz_params_index(const mezzo_params *params, const mezzo_graph *g, size_t i) {
    const bool same = i < params->n && strcmp(params->list[i].name, g->params[i].name) == 0;
    return same ? (int)i : mezzo_params_find(params, g->params[i].name);
}

static mezzo_status check_index(const mezzo_params *params, int index) {
    if (!is_index(params, index))
        return mz_fail(MEZZO_ERR_INVALID, "there is no parameter %d: there are %zu", index, params->n);
    return MEZZO_OK;
}

static mezzo_status read_flat(const mezzo_params *params, const float *flat, int index, float *out) {
    MEZZO_TRY(check_index(params, index));
    const mz_param *p = &params->list[index];
    return mz_stored_read(params->device, &p->layout, flat + p->offset, sizeof *out, 0, p->count, out);
}

static mezzo_status write_flat(mezzo_params *params, float *flat, int index, const float *values) {
    MEZZO_TRY(check_index(params, index));
    const mz_param *p = &params->list[index];
    return mz_stored_write(params->device, &p->layout, flat + p->offset, sizeof *values, 0, p->count, values);
}

mezzo_status mezzo_params_read(const mezzo_params *params, int index, float *out) {
    MZ_REQUIRE(params, out);
    MEZZO_TRY(check_index(params, index));
    return mz_params_read_range(params, index, 0, params->list[index].count, out);
}

mezzo_status mz_params_settle(mezzo_params *params) {
    if (!params->grads_stale)
        return MEZZO_OK;
    MEZZO_TRY(
        params->device->backend->zero(params->device, params->grad, (size_t)params->grad_elements * sizeof(float)));
    params->grads_stale = false;
    return MEZZO_OK;
}

static mezzo_status check_trained(const mezzo_params *params, int index) {
    MEZZO_TRY(check_index(params, index));
    if (params->list[index].frozen)
        return mz_fail(MEZZO_ERR_INVALID, "parameter %s is frozen: it has no gradient", params->list[index].name);
    if (params->scattered)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "the gradient of parameter %s is spread over ranks",
                       params->list[index].name);
    return MEZZO_OK;
}

mezzo_status mezzo_params_read_grad(const mezzo_params *params, int index, float *out) {
    MZ_REQUIRE(params, out);
    MEZZO_TRY(check_trained(params, index));
    if (params->grads_stale) { // all gradients count as zero
        memset(out, 0, (size_t)params->list[index].count * sizeof *out);
        return MEZZO_OK;
    }
    return read_flat(params, params->grad, index, out);
}

mezzo_status mezzo_params_write(mezzo_params *params, int index, const float *values) {
    MZ_REQUIRE(params, values);
    MEZZO_TRY(check_index(params, index));
    MEZZO_TRY(mz_params_write_master(params, index, values));
    for (int i = 0; i < params->quantized.n; i++)
        params->quantized.stale = params->quantized.stale || params->quantized.list[i].param == index;
    return params->list[index].low_copy_slot < 0 ? MEZZO_OK : mz_params_refresh(params);
}

mezzo_status mezzo_params_write_grad(mezzo_params *params, int index, const float *values) {
    MZ_REQUIRE(params, values);
    MEZZO_TRY(check_trained(params, index));
    MEZZO_TRY(mz_params_settle(params));
    MEZZO_TRY(write_flat(params, params->grad, index, values));
    ++params->grad_version;
    params->grads_empty = false;
    params->list[index].has_grad = true;
    return MEZZO_OK;
}

mezzo_status mezzo_params_zero_grad(mezzo_params *params) {
    MZ_REQUIRE(params);
    ++params->grad_version;
    params->grads_empty = params->grads_stale = true;
    for (size_t i = 0; i < params->n; i++)
        params->list[i].has_grad = false;
    return MEZZO_OK;
}

static mz_tensor low_copy_tensor(const mezzo_params *params, const mz_low_copy *low_copy) {
    return mz_tensor_bytes(low_copy->data, (size_t)params->low_copy_elements * mezzo_dtype_size(low_copy->dtype));
}

mz_tensor mz_tensor_low_copy(const mezzo_params *params, int index) {
    return index < params->n_low_copies ? low_copy_tensor(params, &params->low_copies[index]) : mz_tensor_absent();
}

static mz_call refresh_call(const mezzo_params *params, const mz_low_copy *low_copy) {
    mz_call call = {.op = MZ_OP_refresh, .n_in = 2, .n_out = 1};
    int64_t held = (int64_t)(params->master_bytes / sizeof(float));
    call.in[0] = mz_tensor_f32(params->master, params->sharded || held > params->elements ? held : params->elements);
    call.in[1] = mz_tensor_segments(params, low_copy->segments, low_copy->n_segments);
    call.out[0] = low_copy_tensor(params, low_copy);
    return call;
}

mz_call mz_params_refresh_call(const mezzo_params *params, int low_copy) {
    return refresh_call(params, &params->low_copies[low_copy]);
}

static mezzo_status refresh(mezzo_params *params, const mz_low_copy *low_copy) {
    mz_call call = refresh_call(params, low_copy);
    return mz_run_once(params->device, &call);
}

mezzo_status mz_params_refresh(mezzo_params *params) {
    for (int i = 0; i < params->n_low_copies; ++i)
        MEZZO_TRY(refresh(params, &params->low_copies[i]));
    params->quantized.stale = true;
    return MEZZO_OK;
}

static mezzo_status write_segments(mezzo_params *params, mz_low_copy *low_copy) {
    MZ_SCOPED(mz_free_at) mz_segment *host = NULL;
    MEZZO_TRY(MZ_NEW(host, params->n + 1));
    size_t n = 0, width = mezzo_dtype_size(low_copy->dtype);
    for (size_t i = 0; i < params->n; ++i)
        if (params->list[i].low_copy_slot >= 0)
            host[n++] = (mz_segment){.offset = params->list[i].counted,
                                     .master_shift = params->list[i].counted - params->list[i].place,
                                     .first = params->list[i].first,
                                     .count = params->list[i].own,
                                     .low_copy_offset = params->list[i].low_copy_place * (int64_t)width,
                                     .low_copy_dtype = (int32_t)low_copy->dtype,
                                     .low_offset = params->list[i].low_offset,
                                     .layout = params->list[i].layout,
                                     .key = params->list[i].key,
                                     .master = (int32_t)params->list[i].master};
    low_copy->n_segments = n;
    mezzo_device *device = params->device;
    MEZZO_TRY(device->backend->alloc(device, (n + 1) * sizeof *host, (void **)&low_copy->segments));
    return device->backend->write(device, low_copy->segments, host, n * sizeof *host);
}

mezzo_status mz_params_low_copy(mezzo_params *params, mezzo_dtype dtype, const mz_low_copy **out) {
    for (int i = 0; i < params->n_low_copies; ++i)
        if (params->low_copies[i].dtype == dtype) {
            *out = &params->low_copies[i];
            return MEZZO_OK;
        }
    mezzo_device *device = params->device;
    mezzo_status status;
    mz_low_copy *low_copy = &params->low_copies[params->n_low_copies];
    if (params->n_low_copies == (int)MZ_COUNT(params->low_copies) || (dtype != MEZZO_BF16 && dtype != MEZZO_F16))
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "no low copies of parameters in %s", mezzo_dtype_name(dtype));
    if (dtype != MEZZO_BF16 && params->low_masters)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "masters that are not fp32 are bf16 weights: a program cannot read them in %s; use bf16",
                       mezzo_dtype_name(dtype));
    *low_copy = (mz_low_copy){.dtype = dtype};
    MEZZO_TRY_GOTO(status, device->backend->alloc(device, (size_t)params->low_copy_elements * 2 + 64, &low_copy->data));
    MEZZO_TRY_GOTO(status, write_segments(params, low_copy));
    MEZZO_TRY_GOTO(status, refresh(params, low_copy));
    ++params->n_low_copies;
    *out = low_copy;
    return MEZZO_OK;
fail:
    device->backend->release(device, low_copy->data);
    device->backend->release(device, low_copy->segments);
    return status;
}

mz_tensor mz_tensor_segments(const mezzo_params *params, void *segments, size_t n) {
    mz_tensor t = mz_tensor_bytes(segments, n * sizeof(mz_segment));
    t.storage.padded = params->padded;
    return t;
}

static mz_tensor tensor_at(const mz_param *p, void *data, mezzo_dtype dtype) {
    return (mz_tensor){.data = data, .dtype = dtype, .shape = p->shape, .storage = p->storage};
}

mz_tensor mz_params_grad(const mezzo_params *params, int index) {
    return tensor_at(&params->list[index], params->grad + params->list[index].offset, MEZZO_F32);
}

// Returns this process's part of a parameter whose element 0 lies, or would lie, at element `place` of a flat buffer.
// A part has no padding between its elements (store).
static mz_tensor own_at(const mz_param *p, void *flat, int64_t place, mezzo_dtype dtype) {
    mz_tensor t = tensor_at(p, (char *)flat + (place + p->first) * (int64_t)mezzo_dtype_size(dtype), dtype);
    if (p->region >= 0) {
        t.shape = (mz_shape){1, {p->own}};
        t.storage = (mz_storage){0};
    }
    return t;
}

mz_tensor mz_params_tensor(const mezzo_params *params, int index) {
    const mz_param *p = &params->list[index];
    if (p->own == 0)
        return mz_tensor_absent();
    if (p->master == MEZZO_MASTER_FP32)
        return own_at(p, params->master, p->place, MEZZO_F32);
    for (int i = 0; i < params->n_low_copies; ++i)
        if (params->low_copies[i].dtype == MEZZO_BF16)
            return own_at(p, params->low_copies[i].data, p->low_copy_place, MEZZO_BF16);
    return mz_tensor_absent();
}

mz_tensor mz_params_low_halves(const mezzo_params *params, int index) {
    const mz_param *p = &params->list[index];
    if (p->master != MEZZO_MASTER_SPLIT || p->own == 0)
        return mz_tensor_absent();
    return mz_tensor_bytes((char *)params->master + p->low_offset + p->first * (int64_t)sizeof(uint16_t),
                           (size_t)p->own * sizeof(uint16_t));
}

mezzo_status mz_params_perturb(mezzo_params *params, double by, uint64_t seed) {
    for (int i = 0; i < mezzo_params_count(params); i++) {
        const size_t n = (size_t)mz_shape_count(&params->list[i].shape);
        uint32_t random[4];
        float *values = mz_alloc(n + 1, sizeof *values);
        mezzo_status status = values != NULL ? mezzo_params_read(params, i, values) : MEZZO_ERR_MEMORY;
        for (size_t k = 0; k < n && status == MEZZO_OK; k++) {
            if (k % 4 == 0)
                mz_philox((mz_philox_key){seed, 0, params->list[i].key}, k / 4, random);
            values[k] = (float)((double)values[k] * (random[k % 4] & 1 ? 1 + by : 1 - by));
        }
        if (status == MEZZO_OK)
            status = mezzo_params_write(params, i, values);
        mz_free(values);
        MEZZO_TRY(status);
    }
    return MEZZO_OK;
}
