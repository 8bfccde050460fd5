// What ranks do together, beside a program's calls on a device that captures (queued.h), gives the bits that calls one
// by one give. Broken on purpose to see it fail: collectives that wait for no gradient, and parameters that nobody
// waits for.
#include "unit/queued.h"

#include "optim/ranks.h"

// Sums of gradients beside backward, parameters brought to all beside the next forward: the bits of one after another.
static void train_with_a_twin(bool captures_too, mz_shard shard, mezzo_precision precision, int micros, trained *out) {
    const mezzo_program_options options = {.precision = precision, .loss_weight = 1.0f / (float)micros};
    const mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    const mezzo_master master = mezzo_master_default(precision);
    mezzo_model_config c;
    mezzo_graph *g;
    mezzo_program *p;
    mezzo_optimizer *o;
    mz_ranks *ranks;
    mezzo_step *step;
    tiny_model("gpt2", &c);
    ok(mezzo_device_open("cpu", 1, &out->device));
    if (captures_too)
        out->device->backend = &queued;
    out->device->comm = &twin;
    ok(mezzo_graph_create(&g));
    ok(mezzo_model_build(g, &c, BATCH, LENGTH, false));
    const mz_cut cut = mz_ranks_cut(shard, false, 2, 1);
    ok(mz_params_create(out->device, g, &options, 7, master, &cut, &out->params));
    ok(mezzo_program_create(g, out->params, &options, &p));
    ok(mz_ranks_create(out->params, shard, false, micros, &ranks));
    assert_true(out->params->n_regions > 2);
    ok(mz_ranks_overlap(ranks, p));
    ok(mz_optimizer_create(out->params, &adamw, mz_ranks_part(ranks), mz_ranks_pieces(ranks), &o));
    ok(mz_step_create(p, &o, 1, NULL, &(mezzo_step_options){.micro_batches = micros, .clip = 0.01}, ranks, &step));
    mezzo_graph_free(g);
    for (int i = 0; i < STEPS * micros; i++) {
        write_batch(p, i);
        ok(mezzo_step_micro(step, 3, (uint64_t)i));
        if (i % micros == micros - 1)
            ok(mezzo_step_finish(step));
    }
    ok(out->device->backend->read(out->device, out->grads, out->params->master, out->params->master_bytes));
    mezzo_step_free(step);
    mezzo_optimizer_free(o);
    mz_ranks_free(ranks);
    mezzo_program_free(p);
    out->device->comm = NULL;
}

static void same_with_a_twin(mz_shard shard, mezzo_precision precision, int micros) {
    static float masters[2][1 << 18];
    trained both[] = {{.grads = masters[0]}, {.grads = masters[1]}};
    for (int i = 0; i < 2; i++) {
        train_with_a_twin(i == 1, shard, precision, micros, &both[i]);
        assert_true(both[i].params->master_bytes <= sizeof masters[0]);
    }
    assert_memory_equal(masters[0], masters[1], both[0].params->master_bytes);
    if (both[0].params->n_shadows > 0)
        assert_memory_equal(both[0].params->shadows[0].data, both[1].params->shadows[0].data,
                            (size_t)both[0].params->shadow_elements * 2);
    for (int i = 0; i < 2; i++) {
        both[i].device->backend = &mz_backend_cpu;
        mezzo_params_free(both[i].params);
        mezzo_device_close(both[i].device);
    }
}

static void collectives_beside_calls_change_no_bit(void **state) {
    (void)state;
    same_with_a_twin(MZ_SHARD_OPTIMIZER, MEZZO_PRECISION_BF16, 1);
    same_with_a_twin(MZ_SHARD_OPTIMIZER, MEZZO_PRECISION_FP32, 2);
    same_with_a_twin(MZ_SHARD_NONE, MEZZO_PRECISION_FP16, 1);
    same_with_a_twin(MZ_SHARD_GRADIENTS, MEZZO_PRECISION_BF16, 1);
    same_with_a_twin(MZ_SHARD_GRADIENTS, MEZZO_PRECISION_FP32, 2);
    assert_true(collectives > 20);
}

int main(void) {
    queue_open();
    const struct CMUnitTest tests[] = {cmocka_unit_test(collectives_beside_calls_change_no_bit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
