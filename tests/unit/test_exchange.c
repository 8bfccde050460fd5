// Experts that several ranks own, seen from one rank: what a quantize of its matrices measures, and which rows products
// send and read.
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
    must(mz_exchange_prepare(device, 2, &call, NULL, &together));
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

// --- a product -----------------------------------------------------------------------------------------------------
// Rank 0 has experts 0 and 1. Rank 1 has the same rows and offsets, so that the comm knows what it would send.
enum { ALL = 4, HERE = 2, ROW_COUNT = 6, K = 3, N = 2 };
static const int32_t first_rows[ALL + 1] = {0, 2, 3, 3, 6};
static float x[ROW_COUNT * K], matrices[ALL * N * K], expected[ROW_COUNT * N], y[ROW_COUNT * N];
static int reads;

static mezzo_status count_reads(mezzo_device *device, void *host, const void *src, size_t bytes) {
    (void)device;
    reads++;
    memcpy(host, src, bytes);
    return MEZZO_OK;
}

static mezzo_status mirror(mz_comm *comm, mezzo_device *device, const mz_collective *w) {
    (void)comm, (void)device;
    for (int i = 0; i <= w[0].more; i++) {
        if (w[i].kind == MZ_ALL_GATHER) {
            memcpy(w[i].recv, w[i].send, w[i].count * sizeof(int32_t));
            memcpy((int32_t *)w[i].recv + w[i].count, w[i].send, w[i].count * sizeof(int32_t));
        } else if (w[i].dtype == MEZZO_I32) {
            memcpy(w[i].recv, w[i].send, w[i].count * sizeof(int32_t));
        } else if (w[0].more > 0) { // rows of experts 2 and 3 go, those of 0 and 1 come
            assert_int_equal(w[i].count, 3 * K);
            assert_memory_equal(w[i].send, x + 3 * K, w[i].count * sizeof(float));
            memcpy(w[i].recv, x, w[i].received * sizeof(float));
        } else { // and back
            assert_memory_equal(w[i].send, expected, w[i].count * sizeof(float));
            memcpy(w[i].recv, expected + 3 * N, w[i].received * sizeof(float));
        }
    }
    return MEZZO_OK;
}

static mz_call product_call(int experts, float *to) {
    mz_call call = {.op = MZ_OP_grouped_linear, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}, .n_in = 3, .n_out = 1};
    for (int k = 0; k < MZ_MAX_IN; k++)
        call.in[k] = call.out[k] = mz_tensor_absent();
    call.in[0] = (mz_tensor){.data = x, .dtype = MEZZO_F32, .shape = {2, {ROW_COUNT, K}}};
    call.in[1] = (mz_tensor){.data = matrices, .dtype = MEZZO_F32, .shape = {3, {experts, N, K}}};
    call.in[2] = (mz_tensor){.data = (void *)(uintptr_t)first_rows, .dtype = MEZZO_I32, .shape = {1, {ALL + 1}}};
    call.out[0] = (mz_tensor){.data = to, .dtype = MEZZO_F32, .shape = {2, {ROW_COUNT, N}}};
    return call;
}

// Seen to fail where each product read them, and with rows that came at the buffer's beginning.
TEST(reads_counts_once) {
    mz_comm comm = {.rank = 0, .size = 2, .run = mirror};
    mezzo_device *device;
    mz_prepared plans[2];
    for (int i = 0; i < ROW_COUNT * K; i++)
        x[i] = (float)(i - 7);
    for (int i = 0; i < ALL * N * K; i++)
        matrices[i] = (float)(i % 5 - 2);
    must(mezzo_device_open("cpu", 1, &device));
    mz_call alone = product_call(ALL, expected), call = product_call(HERE, y);
    must(mz_run_once(device, &alone));
    const mz_backend *own = device->backend;
    mz_backend counting = *own;
    counting.read = count_reads;
    device->backend = &counting;
    device->comm = &comm;
    must(mz_exchange_prepare(device, 2, &call, NULL, &plans[0]));
    must(mz_exchange_prepare(device, 2, &call, &plans[0], &plans[1]));
    for (int i = 0; i < 2; i++) {
        memset(y, 0, sizeof y);
        call.workspace = mz_alloc(plans[i].workspace + 1, 1);
        call.state = plans[i].state;
        must(plans[i].kernel->run(device, &call));
        assert_memory_equal(y, expected, sizeof y);
        assert_int_equal(reads, 1);
        mz_free(call.workspace);
    }
    mz_prepared_free(&plans[0]);
    mz_prepared_free(&plans[1]);
    device->backend = own;
    device->comm = NULL;
    mezzo_device_close(device);
}
