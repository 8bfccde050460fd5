// A call with all its tensors on the host, run on a device beside ref: what test_quantize.c and test_narrow.c share.
#ifndef MZ_TESTS_CALL_CASES_H
#define MZ_TESTS_CALL_CASES_H

#include <math.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "quant/entry.h"
#include "device.h"
#include "test.h"

#define SHAPE(...)                                                                                                     \
    (mz_shape) {                                                                                                       \
        .rank = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .dim = { __VA_ARGS__ }                      \
    }

typedef struct bench { // a call with all its tensors, on the host
    mz_call call;
    void *data[MZ_MAX_IN + MZ_MAX_OUT];
    float *scale[MZ_MAX_IN]; // mz_scale_count
    float act_out;           // quantize: the scale of what it writes beside a slope
} bench;

static inline size_t scales_in(const mz_tensor *t) {
    return (size_t)mz_scale_count(t);
}

static inline size_t bytes_of(const mz_tensor *t) {
    return mz_tensor_bytes_stored(t);
}

static inline bench new_bench(mz_op op, int n_in, int n_out) {
    bench b = {.call = {.op = op, .n_in = n_in, .n_out = n_out, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}}};
    b.call.attrs.via = MEZZO_F32;
    for (int i = 0; i < MZ_MAX_IN; i++)
        b.call.in[i].shape.rank = -1;
    for (int i = 0; i < MZ_MAX_OUT; i++)
        b.call.out[i].shape.rank = -1;
    return b;
}

static inline void *put(bench *b, bool output, int slot, mezzo_dtype dtype, mz_shape shape) {
    mz_tensor *t = output ? &b->call.out[slot] : &b->call.in[slot];
    *t = (mz_tensor){.dtype = dtype, .shape = shape};
    void *data = b->data[output ? MZ_MAX_IN + slot : slot] = calloc(1, bytes_of(t));
    assert_non_null(data);
    return data;
}

// The tensor's bytes, column by column: its numbers in the order they have, and zeros after each column's last row.
static inline void put_columnwise(bench *b, bool output, int slot) {
    mz_tensor *t = output ? &b->call.out[slot] : &b->call.in[slot];
    void **data = &b->data[output ? MZ_MAX_IN + slot : slot];
    const int64_t n = mz_shape_count(&t->shape), columns = t->shape.dim[t->shape.rank - 1], rows = n / columns;
    t->columnwise = true;
    uint8_t *columnwise = calloc(1, bytes_of(t));
    assert_non_null(columnwise);
    for (int64_t c = 0; c < columns; c++)
        memcpy(columnwise + c * mz_columnwise_pitch(rows), (const uint8_t *)*data + c * rows, (size_t)rows);
    free(*data);
    *data = columnwise;
}

static inline void free_bench(bench *b) {
    for (size_t i = 0; i < MZ_COUNT(b->data); i++)
        free(b->data[i]);
    for (size_t i = 0; i < MZ_COUNT(b->scale); i++)
        free(b->scale[i]);
}

// ref or the tested device, each opened once: opening a GPU takes longer than any call here.
static mezzo_device *opened[2];
static inline mezzo_device *device_of(const char *name) {
    mezzo_device **device = &opened[strcmp(name, "ref") == 0];
    if (*device == NULL)
        must(mezzo_device_open(name, 2, device));
    return *device;
}

static inline int close_devices(void **state) {
    (void)state;
    for (size_t i = 0; i < MZ_COUNT(opened); i++)
        mezzo_device_close(opened[i]);
    return 0;
}

// Runs the call on a device; outputs are copied to `out`, by slot.
static inline void run_on(const char *name, const bench *b, void *const *out) {
    mezzo_device *device = device_of(name);
    mz_prepared prepared;
    mz_call call = b->call;
    void *memory[2 * MZ_MAX_IN + 2 * MZ_MAX_OUT + 2] = {NULL};
    const mz_rng_state rng = {.seed = 11, .step = 5};
    int n = 0;
    const mz_backend *backend = device->backend;
    for (int i = 0; i < call.n_in + call.n_out; i++) {
        bool output = i >= call.n_in;
        int slot = output ? i - call.n_in : i;
        mz_tensor *t = output ? &call.out[slot] : &call.in[slot];
        if (!mz_present(t))
            continue;
        must(backend->alloc(device, bytes_of(t), &memory[n]));
        must(backend->write(device, memory[n], b->data[output ? MZ_MAX_IN + slot : slot], bytes_of(t)));
        t->data = memory[n++];
        const bool act_out = call.op == MZ_OP_quantize && output && slot == MZ_OUT(quantize, act_out);
        if (t->scaling == MZ_SCALING_NONE || (output && !act_out))
            continue;
        must(backend->alloc(device, scales_in(t) * sizeof(float), &memory[n]));
        must(backend->write(device, memory[n], act_out ? &b->act_out : b->scale[slot], scales_in(t) * sizeof(float)));
        t->scale = memory[n++];
    }
    if (call.op == MZ_OP_quantize)
        for (int k = 0; k < 2; k++)
            call.out[k].scale = call.out[mz_scale_slot(call.out[k].scaling, call.out[k].columnwise)].data;
    must(backend->alloc(device, sizeof rng, &memory[n]));
    must(backend->write(device, memory[n], &rng, sizeof rng));
    call.rng = memory[n++];
    must(mz_prepare(device, &call, &prepared));
    call.state = prepared.state;
    must(backend->alloc(device, prepared.workspace + 64, &memory[n]));
    call.workspace = memory[n++];
    must(prepared.kernel->run(device, &call));
    for (int k = 0; k < call.n_out; k++)
        if (mz_present(&call.out[k]))
            must(backend->read(device, out[k], call.out[k].data, bytes_of(&call.out[k])));
    mz_prepared_free(&prepared);
    for (int i = 0; i < n; i++)
        backend->release(device, memory[i]);
}

static uint32_t seed = 1;
static inline float uniform(void) { // -1 … 1
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (float)(1 << 23) - 1;
}

#endif
