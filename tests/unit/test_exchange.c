// Experts that several ranks own, seen from one rank: what a quantize of its matrices measures, and what is refused.
// Seen to fail with a scale of the rank's own matrices. tests/cli/ranks_train.sh has whole runs.
#include "fixture.h"

#include "backend/collective.h"
#include "quant/entry.h"
#include "runtime/exchange.h"
#include "runtime/params.h"

enum { EXPERTS = 2, ROWS = 3, COLUMNS = 5, NUMBERS = EXPERTS * ROWS * COLUMNS };

// The other rank's largest number is 1000.
static mezzo_status gather_amax(mz_comm *comm, mezzo_device *device, const mz_collective *w) {
    const float others = 1000;
    (void)device;
    assert_int_equal(w->kind, MZ_ALL_GATHER);
    assert_int_equal(w->count, 1);
    memcpy((uint32_t *)w->recv + comm->rank, w->send, sizeof(uint32_t));
    memcpy((uint32_t *)w->recv + 1 - comm->rank, &others, sizeof(uint32_t));
    return MEZZO_OK;
}

static mz_call quantize_call(float *numbers, uint8_t *data, mz_scale_entry *entry) {
    const mz_shape shape = {3, {EXPERTS, ROWS, COLUMNS}};
    mz_call call = {.op = MZ_OP_quantize,
                    .attrs = {.via = MEZZO_F32, .measure = true, .record = true},
                    .numerics = {MEZZO_F8E4M3, MEZZO_F32, MEZZO_F32},
                    .n_in = 1,
                    .n_out = MZ_OUT(quantize, scales) + 1};
    for (int k = 0; k < MZ_MAX_IN; k++)
        call.in[k] = call.out[k] = mz_tensor_absent();
    call.in[0] = (mz_tensor){.data = numbers, .dtype = MEZZO_F32, .shape = shape};
    call.out[MZ_OUT(quantize, y)] = (mz_tensor){
        .data = data, .dtype = MEZZO_F8E4M3, .shape = shape, .scaling = MZ_SCALING_TENSOR, .scale = &entry->scale};
    call.out[MZ_OUT(quantize, scales)] = mz_tensor_f32(entry, MZ_SCALE_WORDS);
    return call;
}

TEST(measures_all_ranks) {
    float numbers[NUMBERS];
    uint8_t data[NUMBERS], expected[NUMBERS];
    mz_scale_entry entry = {.scale = 1, .dtype = MEZZO_F8E4M3};
    mz_comm comm = {.rank = 1, .size = 2, .run = gather_amax};
    mezzo_device *device;
    mz_prepared alone, together;
    for (int i = 0; i < NUMBERS; i++)
        numbers[i] = 0.37f * (float)(i - 9);
    must(mezzo_device_open("cpu", 1, &device));
    mz_call call = quantize_call(numbers, data, &entry);
    must(mz_exchange_prepare(device, 2, &call, &together));
    call.workspace = mz_alloc(together.workspace + 1, 1);
    call.state = together.state;
    assert_int_equal(together.kernel->run(device, &call), MEZZO_ERR_INVALID); // no rank
    device->comm = &comm;
    must(together.kernel->run(device, &call));
    assert_true(entry.scale == 4); // 1000 <= 448 · 4
    assert_int_equal(entry.amax, (union {
                                     float f;
                                     uint32_t bits;
                                 }){.f = 0.37f * 20}
                                     .bits); // tables of all are gathered

    call.attrs.measure = false;
    call.out[0].data = expected;
    must(mz_prepare(device, &call, &alone));
    call.state = alone.state;
    must(alone.kernel->run(device, &call));
    assert_memory_equal(data, expected, sizeof data);
    mz_free(call.workspace);
    mz_prepared_free(&alone);
    mz_prepared_free(&together);
    device->comm = NULL;
    mezzo_device_close(device);
}

TEST(refuses_a_queue) {
    float numbers[NUMBERS];
    uint8_t data[NUMBERS];
    mz_scale_entry entry = {.scale = 1};
    mz_prepared prepared;
    mezzo_device *device;
    must(mezzo_device_open("cpu", 1, &device));
    const mz_backend *own = device->backend;
    mz_backend queued = *own;
    queued.queue = true;
    device->backend = &queued;
    const mz_call call = quantize_call(numbers, data, &entry);
    assert_int_equal(mz_exchange_prepare(device, 2, &call, &prepared), MEZZO_ERR_UNSUPPORTED);
    assert_non_null(strstr(mezzo_error_message(), "ranks.experts exchange runs on CPU ranks"));
    device->backend = own;
    mezzo_device_close(device);
}
