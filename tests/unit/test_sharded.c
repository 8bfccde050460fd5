// Parameters in parts on a device that captures: what is gathered ahead, on a stream of its own, gives the bits of one
// call after another. The other rank stands in this one's memory, so that one device is enough.
#include "device.h"
#include "unit/queued.h"

#include "optim/ranks.h"

static int gathers;

static mezzo_status add(mezzo_device *device, bool adds, const void *from, void *to, size_t bytes) {
    const int64_t n = (int64_t)(bytes / sizeof(float));
    mz_call call = {.op = MZ_OP_accumulate,
                    .attrs.accumulate = adds,
                    .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                    .n_in = 1,
                    .in = {mz_tensor_f32((void *)(uintptr_t)from, n)},
                    .n_out = 1,
                    .out = {mz_tensor_f32(to, n)}};
    return mz_run_once(device, &call);
}

// As with_a_twin, which agrees, by the device's own kernels, so that they are captured.
static mezzo_status run_beside_itself(mz_comm *comm, mezzo_device *device, const mz_collective *w) {
    const size_t bytes = w->count * mezzo_dtype_size(w->dtype);
    (void)comm;
    gathers += w->kind == MZ_ALL_GATHER && w->recv != w->send;
    if (w->recv != w->send)
        MEZZO_TRY(add(device, false, w->send, w->recv, bytes));
    if (w->kind == MZ_ALL_GATHER || w->kind == MZ_ALL_TO_ALL)
        return add(device, false, w->send, (char *)w->recv + bytes, bytes);
    return w->kind == MZ_REDUCE_SCATTER_SUM ? add(device, true, w->send, w->recv, bytes) : MEZZO_OK;
}

static mezzo_status never_fails(mz_comm *comm) {
    (void)comm;
    return MEZZO_OK;
}

typedef struct result {
    mezzo_step_report report[STEPS];
    char *masters, *copies;
    size_t master_bytes, copy_bytes;
} result;

static void train(bool captures_too, const char *model, const mz_ranks_options *how, mezzo_precision precision,
                  result *out) {
    static mz_backend plain;
    mz_comm comm = {.rank = 0, .size = 2, .run = run_beside_itself, .check = never_fails};
    const int micros = (int)how->micro;
    const mezzo_program_options options = {
        .precision = precision, .loss_weight = 1.0f / (float)micros, .single_micro_batch = micros == 1};
    const mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    const mz_cut cut = mz_ranks_cut(how->shard, how->canonical, 0, 2, 1);
    mezzo_device *device;
    mezzo_params *params;
    mezzo_model_config c;
    mezzo_graph *g;
    mezzo_program *p;
    mezzo_optimizer *o;
    mz_ranks *ranks;
    mezzo_step *step;
    tiny_model(model, &c);
    c.layers = 8, c.d_model = 64, c.d_ff = 128;
    if (c.experts > 0)
        c.d_expert = 64;
    must(mezzo_device_open(test_device(), 1, &device));
    plain = *device->backend;
    plain.queue = false;
    plain.capture_begin = NULL;
    plain.capture_stream = NULL;
    device->backend = captures_too ? device->backend : &plain;
    device->comm = &comm;
    g = fixture_graph(&c, BATCH, LENGTH, false);
    must(mz_params_create(device, g, &options, 7, mezzo_master_default(precision), &cut, &params));
    assert_true(params->sharded && params->n_regions > 8);
    must(mezzo_program_create(g, params, &options, &p));
    must(mz_ranks_create(params, how, &ranks));
    must(mz_ranks_overlap(ranks, p));
    must(mz_optimizer_create(params, &adamw, mz_ranks_shard(ranks), mz_ranks_norm_blocks(ranks), &o));
    must(mz_step_create(p, &o, 1, NULL, &(mezzo_step_options){.micro_batches = micros, .clip = 0.01}, ranks, &step));
    mezzo_graph_free(g);
    for (int i = 0; i < STEPS * micros; i++) {
        write_batch(p, i);
        must(mezzo_step_micro(step, 3, (uint64_t)i));
        if (i % micros != micros - 1)
            continue;
        must(mezzo_step_finish(step));
        must(mezzo_step_read(step, true, &out->report[i / micros]));
    }
    out->master_bytes = params->master_bytes;
    out->copy_bytes = params->n_low_copies > 0 ? (size_t)params->low_copy_elements * 2 : 0;
    out->masters = mz_alloc(out->master_bytes + 1, 1);
    out->copies = mz_alloc(out->copy_bytes + 1, 1);
    assert_true(out->masters != NULL && out->copies != NULL);
    must(device->backend->read(device, out->masters, params->master, out->master_bytes));
    if (out->copy_bytes > 0)
        must(device->backend->read(device, out->copies, params->low_copies[0].data, out->copy_bytes));
    mezzo_step_free(step);
    mezzo_optimizer_free(o);
    mz_ranks_free(ranks);
    mezzo_program_free(p);
    mezzo_params_free(params);
    device->comm = NULL;
    mezzo_device_close(device);
}

static void same(const char *model, mezzo_precision precision, int micros, bool canonical) {
    const mz_ranks_options how = {.shard = MZ_SHARD_PARAMETERS, .canonical = canonical, .micro = micros};
    result both[2] = {{.masters = NULL}};
    int gathered[2];
    for (int i = 0; i < 2; i++) {
        gathers = 0;
        train(i == 1, model, &how, precision, &both[i]);
        gathered[i] = gathers;
    }
    for (int i = 0; i < STEPS; i++) {
        assert_true(isfinite(both[0].report[i].loss));
        assert_memory_equal(&both[0].report[i].loss, &both[1].report[i].loss, sizeof both[0].report[i].loss);
    }
    assert_true(both[0].report[STEPS - 1].loss < both[0].report[0].loss + 1);
    assert_true(gathered[1] < gathered[0]); // most were replayed
    assert_int_equal(both[0].master_bytes, both[1].master_bytes);
    assert_memory_equal(both[0].masters, both[1].masters, both[0].master_bytes);
    assert_memory_equal(both[0].copies, both[1].copies, both[0].copy_bytes);
    for (int i = 0; i < 2; i++) {
        mz_free(both[i].masters);
        mz_free(both[i].copies);
    }
}

static void gathers_ahead_change_no_bit(void **state) {
    (void)state;
    same("gpt2", MEZZO_PRECISION_BF16, 1, false);
    same("gpt2", MEZZO_PRECISION_FP32, 2, true);
    same("gpt2", MEZZO_PRECISION_FP16, 1, false);
    same("glm4_moe", MEZZO_PRECISION_BF16, 2, false);
    same("glm4_moe", MEZZO_PRECISION_BF16, 1, true);
}

int main(void) {
    mezzo_device *device;
    const struct CMUnitTest tests[] = {cmocka_unit_test(gathers_ahead_change_no_bit)};
    queue_open(NULL); // its helpers alone are used here
    if (!test_device_opens() || mezzo_device_open(test_device(), 1, &device) != MEZZO_OK)
        return TEST_SKIPPED;
    const bool captures_there = device->backend->capture_begin != NULL;
    mezzo_device_close(device);
    if (!captures_there) {
        fprintf(stderr, "skipped: %s has no graphs; unit/test_overlap has the same on one that pretends\n",
                test_device());
        return TEST_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
