// Devices by name, what a precision becomes on a device, how a kernel is chosen, learning-rate schedules.
#include <math.h>
#include <stdlib.h>

#include "backend/update.h"
#include "runtime/calls.h"
#include "mezzo/optimizer.h"
#include "test.h"

// --- a device whose answers a test sets ----------------------------------------------------------------------------
static mezzo_device_info fake_info;
static const char *fake_reasons[3];
static size_t fake_kernel_count;

static mezzo_status fake_describe(mezzo_device *device, mezzo_device_info *out) {
    (void)device;
    *out = fake_info;
    return MEZZO_OK;
}

static int runs, released;
static void *seen_workspace, *seen_state;
static char kept;

static void count_release(void *state) {
    assert_ptr_equal(state, &kept);
    released++;
}

// Keeps a state before it refuses: whoever asked must not.
static const char *prepare_first(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)call;
    *out = (mz_prepared){.state = &kept, .release = count_release, .workspace = 100};
    return fake_reasons[0];
}

static const char *prepare_second(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)call, (void)out;
    return fake_reasons[1];
}

static mezzo_status count_run(mezzo_device *device, const mz_call *call) {
    (void)device;
    runs++;
    seen_workspace = call->workspace;
    seen_state = call->state;
    return MEZZO_OK;
}

static const mz_kernel first = {"add_bf16__fast", prepare_first, count_run};
static const mz_kernel second = {"add_any__slow", prepare_second, count_run};
static const mz_kernel *const fake_list[] = {&first, &second};

static const mz_kernel *const *fake_kernels(const mezzo_device *device, mz_op op, size_t *n) {
    (void)device;
    (void)op;
    *n = fake_kernel_count;
    return fake_list;
}

static int64_t live_allocations;

static mezzo_status fake_alloc(mezzo_device *device, size_t bytes, void **out) {
    (void)device;
    live_allocations++;
    *out = mz_alloc(bytes, 1);
    return *out != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

static void fake_release(mezzo_device *device, void *data) {
    (void)device;
    live_allocations--;
    mz_free(data);
}

static mezzo_status fake_sync(mezzo_device *device) {
    (void)device;
    return MEZZO_OK;
}

static const mz_backend fake_backend = {.name = "fake",
                                        .describe = fake_describe,
                                        .kernels = fake_kernels,
                                        .alloc = fake_alloc,
                                        .release = fake_release,
                                        .sync = fake_sync};
static mezzo_device fake = {.backend = &fake_backend, .threads = 1};

static mz_call add_call(void) {
    mz_call call = {.op = MZ_OP_add, .n_in = 2, .n_out = 1};
    for (int i = 0; i < MZ_MAX_IN; i++)
        call.in[i].shape.rank = call.out[i].shape.rank = -1;
    call.in[0] = (mz_tensor){.dtype = MEZZO_BF16, .shape = {2, {3, 4}}};
    call.in[1] = (mz_tensor){.dtype = MEZZO_F32, .shape = {1, {4}}};
    call.out[0] = (mz_tensor){.dtype = MEZZO_F32, .shape = {2, {3, 4}}};
    return call;
}

static char log_line[512];

static void keep_line(void *user, const char *topic, const char *line) {
    (void)user;
    if (strcmp(topic, "dispatch") == 0)
        snprintf(log_line, sizeof log_line, "%s", line);
}

static int reset(void **state) {
    (void)state;
    fake_reasons[0] = fake_reasons[1] = NULL;
    fake_kernel_count = 2;
    runs = released = 0;
    log_line[0] = '\0';
    unsetenv("MEZZO_VERBOSE");
    mezzo_log_set(NULL, NULL);
    return 0;
}

// --- choosing a kernel ---------------------------------------------------------------------------------------------
TEST_WITH(the_first_kernel_that_can_serves, reset, NULL) {
    mz_call call = add_call();
    mz_prepared prepared;
    assert_int_equal(mz_prepare(&fake, &call, &prepared), MEZZO_OK);
    assert_ptr_equal(prepared.kernel, &first);
    assert_ptr_equal(prepared.state, &kept);
    assert_int_equal(prepared.workspace, 100);
    mz_prepared_free(&prepared);
    assert_int_equal(released, 1);
    fake_reasons[0] = "needs fp32 input";
    assert_int_equal(mz_prepare(&fake, &call, &prepared), MEZZO_OK);
    assert_ptr_equal(prepared.kernel, &second);
    assert_null(prepared.state); // nothing of the one that refused
    assert_int_equal(prepared.workspace, 0);
    assert_int_equal(released, 2);
    mz_prepared_free(&prepared);
    mz_prepared_free(&prepared);
    assert_int_equal(released, 2);
}

// Seen to fail where mz_prepare_kernel leaves the slots to kernels.
TEST_WITH(tensors_are_what_the_table_of_ops_says, reset, NULL) {
    static const struct {
        mz_op op;
        int rank;
        mezzo_dtype dtype;
        const char *reason;
    } cases[] = {{MZ_OP_add, -1, MEZZO_F32, "a tensor that the op needs is absent"},
                 {MZ_OP_add, 1, MEZZO_I32, "integers where a float format is needed"},
                 {MZ_OP_embedding, 1, MEZZO_F32, "indices must be i32"},
                 {MZ_OP_refresh, 1, MEZZO_F32, "segments, state and low copies must be u8"}};
    for (size_t i = 0; i < MZ_COUNT(cases); i++) {
        mz_call call = add_call();
        mz_prepared prepared;
        call.op = cases[i].op;
        call.in[1].shape.rank = cases[i].rank;
        call.in[1].dtype = cases[i].dtype;
        assert_int_equal(mz_prepare(&fake, &call, &prepared), MEZZO_ERR_UNSUPPORTED);
        assert_non_null(strstr(mezzo_error_message(), cases[i].reason));
    }
}

// Not another kernel, whose bits may be others.
TEST_WITH(no_memory_for_a_state_is_an_error, reset, NULL) {
    mz_call call = add_call();
    mz_prepared prepared;
    fake_reasons[0] = mz_out_of_memory;
    assert_int_equal(mz_prepare(&fake, &call, &prepared), MEZZO_ERR_MEMORY);
    assert_null(prepared.kernel);
}

TEST_WITH(every_refusal_is_in_the_error, reset, NULL) {
    mz_call call = add_call();
    mz_prepared prepared;
    fake_reasons[0] = "needs fp32 input";
    fake_reasons[1] = "no broadcasting";
    assert_int_equal(mz_prepare(&fake, &call, &prepared), MEZZO_ERR_UNSUPPORTED);
    assert_null(prepared.kernel);
    assert_null(prepared.state);
    assert_string_equal(mezzo_error_message(),
                        "the fake backend has no kernel for add (3x4 bf16, 4 fp32) -> (3x4 fp32): "
                        "add_bf16__fast: needs fp32 input; add_any__slow: no broadcasting");
    fake_kernel_count = 0;
    must_fail(mz_prepare(&fake, &call, &prepared), MEZZO_ERR_UNSUPPORTED, "none is listed");
}

TEST_WITH(the_choice_is_logged_when_asked, reset, NULL) {
    mz_call call = add_call();
    mz_prepared prepared;
    fake_reasons[0] = "needs fp32 input";
    mezzo_log_set(keep_line, NULL);
    assert_int_equal(mz_prepare(&fake, &call, &prepared), MEZZO_OK);
    assert_string_equal(log_line, "");
    setenv("MEZZO_VERBOSE", "dispatch", 1);
    assert_int_equal(mz_prepare(&fake, &call, &prepared), MEZZO_OK);
    assert_string_equal(log_line, "add (3x4 bf16, 4 fp32) -> (3x4 fp32): add_any__slow; "
                                  "refused: add_bf16__fast: needs fp32 input");
    fake_reasons[0] = NULL;
    assert_int_equal(mz_prepare(&fake, &call, &prepared), MEZZO_OK);
    assert_string_equal(log_line, "add (3x4 bf16, 4 fp32) -> (3x4 fp32): add_bf16__fast");
}

TEST_WITH(running_grants_the_workspace_a_kernel_asks, reset, NULL) {
    mz_call call = add_call();
    char scratch[100];
    mz_prepared prepared;
    assert_int_equal(mz_prepare(&fake, &call, &prepared), MEZZO_OK);
    assert_int_equal(mz_run(&fake, &prepared, &call, scratch), MEZZO_OK);
    assert_ptr_equal(seen_workspace, scratch);
    assert_ptr_equal(seen_state, &kept);
    assert_int_equal(mz_run(&fake, &prepared, &call, NULL), MEZZO_OK);
    assert_non_null(seen_workspace);
    assert_int_equal(live_allocations, 0);
    assert_int_equal(released, 0);
    assert_int_equal(mz_run_once(&fake, &call), MEZZO_OK);
    assert_int_equal(live_allocations, 0);
    assert_int_equal(released, 1);
    assert_null(mz_prepare_kernel(&fake, &second, &call, &prepared));
    assert_int_equal(mz_run(&fake, &prepared, &call, NULL), MEZZO_OK);
    assert_null(seen_workspace);
    assert_null(seen_state);
    assert_int_equal(runs, 4);
}

// --- devices -------------------------------------------------------------------------------------------------------
TEST(names_open_devices) {
    mezzo_device *device;
    mezzo_device_info info;
    assert_int_equal(mezzo_device_open("ref", 0, &device), MEZZO_OK);
    assert_int_equal(mezzo_device_describe(device, &info), MEZZO_OK);
    assert_string_equal(info.backend, "ref");
    assert_int_equal(info.threads, 1);
    mezzo_device_close(device);
    mezzo_device_close(NULL);
}

// Every device's memory, and reading without waiting.
TEST(devices_hold_and_give_back_bytes) {
    static const char *const names[] = {"ref", "cpu"};
    for (size_t i = 0; i < MZ_COUNT(names); i++) {
        mezzo_device *device;
        assert_int_equal(mezzo_device_open(names[i], 1, &device), MEZZO_OK);
        const mz_backend *b = device->backend;
        char out[5] = "????";
        const void *fetched;
        mz_fetch *fetch;
        void *memory;
        assert_int_equal(b->alloc(device, 100, &memory), MEZZO_OK);
        assert_int_equal((uintptr_t)memory % 64, 0);
        assert_int_equal(b->read(device, out, (char *)memory + 96, 4), MEZZO_OK);
        assert_memory_equal(out, "\0\0\0\0", 4);
        assert_int_equal(b->write(device, memory, "abcd", 4), MEZZO_OK);
        assert_int_equal(b->fetch_open(device, 6, &fetch), MEZZO_OK);
        assert_int_equal(b->fetch(device, fetch, 2, memory, 4), MEZZO_OK);
        assert_int_equal(b->zero(device, memory, 2), MEZZO_OK);
        assert_int_equal(b->sync(device), MEZZO_OK);
        assert_int_equal(b->read(device, out, memory, 4), MEZZO_OK);
        assert_memory_equal(out, "\0\0cd", 4);
        assert_int_equal(b->fetched(device, fetch, &fetched), MEZZO_OK);
        assert_memory_equal(fetched, "\0\0abcd", 6); // as it was when it was fetched
        assert_int_equal(b->fetch(device, fetch, 3, memory, 4), MEZZO_ERR_INVALID);
        assert_int_equal(b->fetch(device, fetch, 7, memory, 0), MEZZO_ERR_INVALID);
        b->fetch_close(device, fetch);
        b->fetch_close(device, NULL);
        b->release(device, memory);
        mezzo_device_close(device);
    }
}

TEST(wrong_names_say_what_to_use) {
    static const struct {
        const char *name;
        mezzo_status status;
        const char *says;
    } rows[] = {
        {"cpuu", MEZZO_ERR_INVALID, "did you mean \"cpu\"?"},
        {"quantum computer", MEZZO_ERR_INVALID, "use cpu, cuda, cuda:N, ref or auto"},
        {"", MEZZO_ERR_INVALID, "unknown device"},
        {NULL, MEZZO_ERR_INVALID, "use cpu, cuda"},
        {"ref:1", MEZZO_ERR_INVALID, "there is only one; use \"ref\""},
        {"cuda:x", MEZZO_ERR_INVALID, "use \"cuda:N\""},
        {"cuda:-1", MEZZO_ERR_INVALID, "use \"cuda:N\""},
        {"cuda:", MEZZO_ERR_INVALID, "use \"cuda:N\""},
        {"cuda:99999999999999999999", MEZZO_ERR_INVALID, "use \"cuda:N\""},
#ifndef MEZZO_CUDA
        {"cuda", MEZZO_ERR_UNSUPPORTED, "no cuda backend"},
        {"cuda:0", MEZZO_ERR_UNSUPPORTED, "no cuda backend"},
#endif
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mezzo_device *device = &fake;
        assert_int_equal(mezzo_device_open(rows[i].name, 0, &device), rows[i].status);
        assert_null(device);
        assert_non_null(strstr(mezzo_error_message(), rows[i].says));
    }
    mezzo_device *device;
    must_fail(mezzo_device_open("ref", -1, &device), MEZZO_ERR_INVALID, "-1 threads");
}

// --- precision -----------------------------------------------------------------------------------------------------
enum { BF16 = 1, FP16 = 2, TF32 = 4 };

static void set_formats(const char *backend, int native, int faster) {
    fake_info = (mezzo_device_info){.backend = backend};
    fake_info.native[MEZZO_PRECISION_FP32] = true;
    fake_info.native[MEZZO_PRECISION_BF16] = native & BF16;
    fake_info.native[MEZZO_PRECISION_FP16] = native & FP16;
    fake_info.native[MEZZO_PRECISION_TF32] = native & TF32;
    fake_info.faster[MEZZO_PRECISION_BF16] = faster & BF16;
    fake_info.faster[MEZZO_PRECISION_FP16] = faster & FP16;
    fake_info.faster[MEZZO_PRECISION_TF32] = faster & TF32;
}

static mezzo_precision resolve(mezzo_precision requested, char *reason, size_t size) {
    mezzo_precision effective = MEZZO_PRECISION_COUNT;
    assert_int_equal(mezzo_precision_resolve(&fake, requested, &effective, reason, size), MEZZO_OK);
    return effective;
}

// Every request against every set of native and of faster formats: written from the table in precision.c, not from its
// code.
TEST(every_request_on_every_device_follows_the_table) {
    char reason[160];
    for (int native = 0; native < 8; native++)
        for (int faster = 0; faster < 8; faster++) {
            set_formats("cpu", native, faster);
            assert_int_equal(resolve(MEZZO_PRECISION_FP32, reason, sizeof reason), MEZZO_PRECISION_FP32);
            assert_string_equal(reason, "fp32, as asked");
            assert_int_equal(resolve(MEZZO_PRECISION_TF32, reason, sizeof reason),
                             native & TF32 ? MEZZO_PRECISION_TF32 : MEZZO_PRECISION_FP32);
            assert_int_equal(strstr(reason, "tf32 is not supported on this cpu; using fp32") != NULL, !(native & TF32));
            bool turing = (native & (BF16 | FP16)) == FP16; // 16-bit arithmetic, but not bf16's
            assert_int_equal(resolve(MEZZO_PRECISION_BF16, reason, sizeof reason),
                             turing ? MEZZO_PRECISION_FP16 : MEZZO_PRECISION_BF16);
            assert_int_equal(strstr(reason, "bf16 is not supported on this cpu; using fp16") != NULL, turing);
            assert_int_equal(strstr(reason, "bf16 storage with fp32 arithmetic") != NULL, !(native & (BF16 | FP16)));
            assert_int_equal(resolve(MEZZO_PRECISION_FP16, reason, sizeof reason), MEZZO_PRECISION_FP16);
            assert_int_equal(strstr(reason, "fp16 storage with fp32 arithmetic") != NULL, !(native & FP16));
            mezzo_precision best = faster & BF16   ? MEZZO_PRECISION_BF16
                                   : faster & FP16 ? MEZZO_PRECISION_FP16
                                   : faster & TF32 ? MEZZO_PRECISION_TF32
                                                   : MEZZO_PRECISION_FP32;
            assert_int_equal(resolve(MEZZO_PRECISION_AUTO, reason, sizeof reason), best);
            assert_non_null(strstr(reason, mezzo_precision_name(best)));
            mezzo_precision effective;
            must_fail(mezzo_precision_resolve(&fake, MEZZO_PRECISION_FP64, &effective, NULL, 0), MEZZO_ERR_UNSUPPORTED,
                      "fp64 is not available on cpu");
        }
    set_formats("ref", BF16 | FP16 | TF32, 0);
    fake_info.native[MEZZO_PRECISION_FP64] = true;
    assert_int_equal(resolve(MEZZO_PRECISION_FP64, reason, sizeof reason), MEZZO_PRECISION_FP64);
    assert_int_equal(resolve(MEZZO_PRECISION_AUTO, reason, sizeof reason), MEZZO_PRECISION_FP32);
}

TEST(a_reason_fits_its_buffer_or_is_dropped) {
    char reason[8] = "unset";
    set_formats("cpu", 0, 0);
    resolve(MEZZO_PRECISION_BF16, NULL, 100);
    resolve(MEZZO_PRECISION_BF16, reason, 0);
    assert_string_equal(reason, "unset");
    resolve(MEZZO_PRECISION_BF16, reason, sizeof reason);
    assert_string_equal(reason, "bf16 st");
    mezzo_precision effective;
    assert_int_equal(mezzo_precision_resolve(&fake, (mezzo_precision)77, &effective, NULL, 0), MEZZO_ERR_INVALID);
}

// --- schedules -----------------------------------------------------------------------------------------------------
// Expected values are worked out by hand from the formulas in mezzo/optimizer.h.
TEST(schedules_give_the_documented_rates) {
    static const struct {
        int kind;
        double power;
        int64_t step;
        double lr;
    } rows[] = {
        // lr 1, min_lr 0.2, warmup 3, steps 11: p = (t - 3)/8
        {MEZZO_LR_CONSTANT, 0, 0, 0.25},
        {MEZZO_LR_CONSTANT, 0, 2, 0.75},
        {MEZZO_LR_CONSTANT, 0, 3, 1},
        {MEZZO_LR_CONSTANT, 0, 1000, 1},
        {MEZZO_LR_LINEAR, 0, 1, 0.5},
        {MEZZO_LR_LINEAR, 0, 3, 1},
        {MEZZO_LR_LINEAR, 0, 5, 0.8},
        {MEZZO_LR_LINEAR, 0, 11, 0.2},
        {MEZZO_LR_LINEAR, 0, 5000, 0.2},
        {MEZZO_LR_COSINE, 0, 2, 0.75},
        {MEZZO_LR_COSINE, 0, 3, 1},
        {MEZZO_LR_COSINE, 0, 7, 0.6},
        {MEZZO_LR_COSINE, 0, 5, 0.2 + 0.8 * (1 + 0.70710678118654752) / 2},
        {MEZZO_LR_COSINE, 0, 11, 0.2},
        {MEZZO_LR_POLYNOMIAL, 2, 0, 0.25},
        {MEZZO_LR_POLYNOMIAL, 2, 3, 1},
        {MEZZO_LR_POLYNOMIAL, 2, 7, 0.4},
        {MEZZO_LR_POLYNOMIAL, 1, 7, 0.6},
        {MEZZO_LR_POLYNOMIAL, 2, 11, 0.2},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mz_update_attrs update = {
            .schedule = rows[i].kind, .lr = 1, .min_lr = 0.2, .power = rows[i].power, .warmup = 3, .steps = 11};
        // A dozen FP64 operations on values up to 1, each within 2^-53.
        assert_true(fabs(mz_schedule_lr(&update, rows[i].step) - rows[i].lr) < 16 * 0x1p-53);
    }
}

TEST(a_schedule_shorter_than_its_warmup_is_defined) {
    mz_update_attrs update = {.schedule = MEZZO_LR_COSINE, .lr = 1, .min_lr = 0.5, .warmup = 10, .steps = 5};
    assert_true(mz_schedule_lr(&update, 9) == 10.0 / 11);
    assert_true(mz_schedule_lr(&update, 10) == 0.5);
}

TEST_GROUP(reset, reset)
