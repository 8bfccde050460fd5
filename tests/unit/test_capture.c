// Programs and updates on a device that captures: what is replayed gives the bits that calls one by one give. The
// device is queued.h's. Broken on purpose to see it fail: an update's constants left out of the comparison, gradients
// not written in the first micro batch's graph, either half of what one stream must wait for in the other, gradients
// that nobody writes left as they were, the waits for parts of an update, and each of the places where one that is put
// off has to be done; a batch drawn, and one written, before its memory was waited for.
#include "unit/queued.h"
#include "train/trial.h"
#include "runtime/passes.h"

// --- training on it ------------------------------------------------------------------------------------------------
static void micro(mezzo_program *p, mezzo_scaler *s, int k) {
    write_batch(p, k);
    must(mezzo_program_run(p, s, 3, (uint64_t)k));
}

static void train(const char *model, bool captures_too, mezzo_precision precision, int micros, trained *out) {
    mezzo_graph *g;
    mezzo_model_config c;
    mezzo_program *p;
    mezzo_optimizer *o;
    mezzo_scaler *s;
    mezzo_step *object = NULL;
    must(mezzo_device_open("cpu", 1, &out->device));
    if (captures_too)
        out->device->backend = &queued;
    tiny_model(model, &c);
    g = fixture_graph(&c, BATCH, LENGTH, false);
    must(mezzo_params_create(out->device, g, 7, &out->params));
    mezzo_program_options options = {.precision = precision, .loss_weight = 1.0f / (float)micros};
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    scaling.growth_interval = 3;
    must(mezzo_program_create(g, out->params, &options, &p));
    must(mezzo_optimizer_create(out->params, &adamw, &o));
    must(mz_optimizer_set_bucket(o, 500));
    must(mezzo_scaler_create(out->device, &scaling, &s));
    if (captures_too)
        must(mezzo_step_create(p, &o, 1, s, &(mezzo_step_options){.micro_batches = micros}, &object));
    mezzo_graph_free(g);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < micros; i++) {
            write_batch(p, step * micros + i);
            if (captures_too)
                must(mezzo_step_micro(object, 3, (uint64_t)(step * micros + i)));
            else
                must(mezzo_program_run(p, s, 3, (uint64_t)(step * micros + i)));
        }
        if (step == STEPS - 1)
            must(out->device->backend->read(out->device, out->grads, out->params->grad,
                                            (size_t)out->params->elements * sizeof(float)));
        if (step == 4) { // the constants change in the middle
            adamw.schedule.lr = 5e-3;
            must(mezzo_optimizer_set_schedule(o, &adamw.schedule));
        }
        double clip = step == 5 ? 0.005 : 0.01;
        if (captures_too) {
            must(mezzo_step_set_clip(object, clip));
            must(mezzo_step_finish(object));
            continue;
        }
        must(mezzo_scaler_unscale(s, o));
        must(mezzo_optimizer_clip(o, clip));
        must(mezzo_scaler_step(s, o));
        must(mezzo_scaler_update(s));
        must(mezzo_optimizer_zero_grad(o));
    }
    mezzo_scaler_state state;
    must(mezzo_scaler_get_state(s, &state));
    assert_true(state.scale == 65536 * 4.0); // grown at steps 3 and 6
    mezzo_step_free(object);
    mezzo_scaler_free(s);
    mezzo_optimizer_free(o);
    mezzo_program_free(p);
}

static void same_training(const char *model, mezzo_precision precision, int micros) {
    static float grads[2][1 << 16];
    trained plain = {.grads = grads[0]}, replayed = {.grads = grads[1]};
    captures = launches = eager = uploads = 0;
    train(model, false, precision, micros, &plain);
    train(model, true, precision, micros, &replayed);
    size_t bytes = (size_t)plain.params->elements * sizeof(float);
    assert_true(bytes <= sizeof grads[0]);
    assert_memory_equal(plain.params->master, replayed.params->master, bytes);
    assert_memory_equal(grads[0], grads[1], bytes);
    // One graph for the first micro batch, one for those that add, one for each set of the update's constants that came
    // twice.
    assert_int_equal(captures, (micros > 1 ? 2 : 1) + 1);
    assert_true(launches >= STEPS - 1);
    assert_int_equal(uploads, STEPS * micros);
    trained *both[] = {&plain, &replayed};
    for (int i = 0; i < 2; i++) {
        both[i]->device->backend = &mz_backend_cpu;
        mezzo_params_free(both[i]->params);
        mezzo_device_close(both[i]->device);
    }
}

TEST(replays_have_the_bits_of_single_calls) {
    same_training("gpt2", MEZZO_PRECISION_FP32, 1);
    same_training("gpt2", MEZZO_PRECISION_FP32, 3);
    same_training("gpt2", MEZZO_PRECISION_BF16, 2);
    assert_true(overlapped > 20); // weights' gradients, on a stream of their own
    assert_true(deferred > 20);   // buckets of the update, during the next step's forward
}

static uint32_t weights_of_run(mezzo_device *device) {
    static const char *const keys[][2] = {{"model", "toy"},      {"batch-size", "16"}, {"grad-accum", "2"},
                                          {"precision", "fp32"}, {"steps", "6"},       {"warmup", "0"}};
    mezzo_config *config;
    mz_trial *trial;
    const mz_step_report *report;
    uint32_t crc;
    must(mezzo_config_create(&config));
    for (size_t i = 0; i < MZ_COUNT(keys); i++)
        must(mezzo_config_set(config, keys[i][0], keys[i][1], "test"));
    must(mz_trial_open(device, config, NULL, &trial));
    for (int step = 0; step < 6; step++)
        must(mz_trial_step(trial, false, &report));
    must(mz_trial_settle(trial, &report));
    must(mz_weights_crc(mz_trial_params(trial), &crc));
    mz_trial_close(trial);
    mezzo_config_free(config);
    return crc;
}

// A run draws into the memory that is uploaded, once it may, and learns what one learns whose batches are copied.
TEST(batches_are_drawn_where_they_are_uploaded) {
    mezzo_device *plain, *captures_too;
    uploads = 0;
    must(mezzo_device_open("cpu", 1, &plain));
    must(mezzo_device_open("cpu", 1, &captures_too));
    captures_too->backend = &queued;
    assert_int_equal(weights_of_run(plain), weights_of_run(captures_too));
    assert_int_equal(uploads, 6 * 2);
    captures_too->backend = &mz_backend_cpu;
    mezzo_device_close(plain);
    mezzo_device_close(captures_too);
}

// Shared experts run beside routed ones, forward and backward, so that each stream waits for the other's results in
// both.
TEST(branches_on_a_second_stream_change_no_bit) {
    mezzo_graph *g, *passed;
    mezzo_model_config c;
    mezzo_program_options options = {.precision = MEZZO_PRECISION_FP16, .loss_weight = 1};
    mz_stream_plan placed;
    int branches[3] = {0}; // per phase
    tiny_model("glm4_moe", &c);
    g = fixture_graph(&c, BATCH, LENGTH, false);
    must(mz_passes(g, &(mz_target){.options = &options}, "chunk", &passed));
    must(mz_graph_stream(passed, &placed));
    for (size_t i = 0; i < passed->n_nodes; i++)
        if (placed.stream[i] == 1 && passed->values[passed->nodes[i].out[0]].kind == MZ_VALUE_TEMP)
            branches[passed->nodes[i].phase]++;
    assert_true(branches[MZ_FORWARD] >= 4 && branches[MZ_BACKWARD] >= 4); // of two layers with experts
    mz_stream_plan_free(&placed);
    mezzo_graph_free(passed);
    mezzo_graph_free(g);
    same_training("glm4_moe", MEZZO_PRECISION_FP32, 2);
    same_training("glm4_moe", MEZZO_PRECISION_FP16, 1);
}

// A tiny GPT with its parameters on a device that captures.
static void open_queued(int64_t batch, mezzo_device **device, mezzo_graph **g, mezzo_params **params) {
    mezzo_model_config c;
    tiny_model("gpt2", &c);
    must(mezzo_device_open("cpu", 1, device));
    (*device)->backend = &queued;
    must(mezzo_graph_create(g));
    must(mezzo_model_build(*g, &c, batch, LENGTH, false));
    must(mezzo_params_create(*device, *g, 7, params));
}

// What comes between an update and the next run finds the update done, where it touches what that reads or writes;
// elsewhere the update goes on waiting.
TEST(deferred_calls_run_before_anyone_looks) {
    mezzo_device *device;
    mezzo_graph *g;
    mezzo_params *params;
    mezzo_program *p, *evaluation;
    mezzo_optimizer *o;
    mezzo_step *step;
    mezzo_step_report report;
    float before[4], after[4];
    mz_opt_state found;
    open_queued(BATCH, &device, &g, &params);
    must(mezzo_program_create(g, params, &(mezzo_program_options){.precision = MEZZO_PRECISION_BF16, .loss_weight = 1},
                              &p));
    must(mezzo_program_create(g, params, &(mezzo_program_options){.forward_only = true}, &evaluation));
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    must(mezzo_optimizer_create(params, &adamw, &o));
    must(mezzo_step_create(p, &o, 1, NULL, NULL, &step));
    mezzo_graph_free(g);
    for (int look = 0; look < 9; look++) {
        write_batch(p, look);
        must(mezzo_step_micro(step, 3, (uint64_t)look));
        memcpy(before, params->master, sizeof before);
        must(mezzo_step_finish(step));
        assert_non_null(device->deferred);
        must(mezzo_step_read(step, true, &report)); // none of these has to wait
        assert_true(report.index == look + 1 && report.info.step == look + 1 && isfinite(report.loss));
        must(mezzo_program_read(p, "loss", after, sizeof *after));
        assert_true((double)after[0] == report.loss);
        must(device->backend->write(device, &o->d_state->bad, &(int32_t){0}, sizeof(int32_t)));
        assert_non_null(device->deferred);
        assert_memory_equal(before, params->master, sizeof before);
        switch (look) {
        case 0:
            must(device->backend->read(device, after, params->master, sizeof after));
            break;
        case 1:
            must(mz_optimizer_read_state(o, &found));
            assert_non_null(device->deferred);
            must(mz_optimizer_write_state(o, &found));
            break;
        case 2:
            micro(evaluation, NULL, look);
            break;
        case 3:
            must(mezzo_device_sync(device));
            break;
        case 4:
            must(mz_params_settle(params));
            break;
        case 5:
            must(mz_params_refresh(params));
            break;
        case 6:
            must(mz_program_prepare(p, NULL, 0, 0));
            break;
        case 7:
            must(mz_optimizer_issue_reset(o, NULL)); // state.clip and found_inf: no move reads them
            assert_non_null(device->deferred);
            must(mz_optimizer_set_bucket(o, 1000)); // the next list is another one
            write_batch(p, look);
            must(mezzo_step_micro(step, 3, 0));
            must(mezzo_step_drop(step));
            break;
        default:
            mezzo_step_free(step);
        }
        assert_null(device->deferred);
        assert_memory_not_equal(before, params->master, sizeof before);
    }
    mezzo_optimizer_free(o);
    mezzo_program_free(p);
    mezzo_program_free(evaluation);
    mezzo_params_free(params);
    device->backend = &mz_backend_cpu;
    mezzo_device_close(device);
}

// Programs of few rows want updates put off; those of many do not gain by it, and one that evaluates has no say.
TEST(only_training_on_few_rows_overlaps_an_update) {
    static const struct {
        int64_t batch;
        bool forward_only, wants;
    } programs[] = {{BATCH, true, false}, {4096 / LENGTH + 1, false, false}, {4096 / LENGTH, false, true}};
    for (size_t i = 0; i < MZ_COUNT(programs); i++) {
        mezzo_device *device;
        mezzo_graph *g;
        mezzo_params *params;
        mezzo_program *p;
        mezzo_program_options options = {.forward_only = programs[i].forward_only, .loss_weight = 1};
        open_queued(programs[i].batch, &device, &g, &params);
        must(mezzo_program_create(g, params, &options, &p));
        assert_int_equal(params->overlaps_update, programs[i].wants);
        mezzo_program_free(p);
        mezzo_params_free(params);
        mezzo_graph_free(g);
        device->backend = &mz_backend_cpu;
        mezzo_device_close(device);
    }
}

// y = x + x on any memory: deferring knows nothing of updates.
enum { ELEMENTS = 64, ADDERS = MZ_DEFERRED_LISTS + 1 };
static mz_call doubling(float *x, float *y) {
    const mz_tensor tx = mz_tensor_f32(x, ELEMENTS), ty = mz_tensor_f32(y, ELEMENTS);
    return (mz_call){.op = MZ_OP_add,
                     .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                     .n_in = 2,
                     .in = {tx, tx},
                     .n_out = 1,
                     .out = {ty}};
}

typedef struct chain { // at[0] is doubled into at[1], that into at[2] ...; each by a list of its own
    mezzo_device *device;
    float *at[ADDERS + 2];
    mz_sequence *lists[ADDERS];
    mz_prepared prepared;
} chain;

static void open_chain(mezzo_device *device, chain *c) {
    c->device = device;
    for (int i = 0; i < ADDERS + 2; i++)
        must(device->backend->alloc(device, ELEMENTS * sizeof(float), (void **)&c->at[i]));
    mz_call first = doubling(c->at[0], c->at[1]);
    must(mz_prepare(device, &first, &c->prepared));
    for (int i = 0; i < ADDERS; i++) {
        mz_call call = doubling(c->at[i], c->at[i + 1]);
        must(mz_sequence_create(device, &c->lists[i]));
        must(mz_sequence_defer(c->lists[i], MZ_STREAM_DEFERRED, &c->prepared, &call, NULL));
    }
}

static void start_chain(chain *c, float x, int lists) {
    float values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++)
        values[i] = x;
    must(c->device->backend->write(c->device, c->at[0], values, sizeof values));
    for (int i = 0; i < lists; i++)
        must(mz_sequence_run(c->lists[i]));
}

static void close_chain(chain *c) {
    for (int i = 0; i < ADDERS; i++)
        mz_sequence_free(c->lists[i]);
    mz_prepared_free(&c->prepared);
    for (int i = 0; i < ADDERS + 2; i++)
        c->device->backend->release(c->device, c->at[i]);
}

TEST(a_deferred_call_is_waited_for_by_its_bytes) {
    mezzo_device *device;
    chain c;
    float y;
    must(mezzo_device_open("cpu", 1, &device));
    device->backend = &queued;
    open_chain(device, &c);
    for (int round = 0; round < 3; round++) { // eager, captured, replayed
        const float x = ((const float[]){1, 10, 100})[round];
        start_chain(&c, x, 1);
        must(device->backend->read(device, &y, c.at[2], sizeof y)); // bytes of nobody
        must(device->backend->read(device, &y, c.at[0], sizeof y)); // read by both
        assert_non_null(device->deferred);
        assert_true(*c.at[1] != 2 * x);
        must(device->backend->read(device, &y, c.at[1] + ELEMENTS - 1, sizeof y));
        assert_true(y == 2 * x && device->deferred == NULL);

        start_chain(&c, 3 * x, 2); // a list that reads what another writes: in their order
        must(device->backend->read(device, &y, c.at[2], sizeof y));
        assert_true(y == 12 * x && device->deferred == NULL);

        start_chain(&c, 5 * x, 1); // a single call that reads it, one that overwrites what it reads
        mz_call reads = doubling(c.at[1], c.at[3]), writes = doubling(c.at[3], c.at[0]);
        must(mz_run(device, &c.prepared, &reads, NULL));
        assert_true(*c.at[3] == 20 * x && device->deferred == NULL);
        start_chain(&c, 7 * x, 1);
        must(mz_run(device, &c.prepared, &writes, NULL));
        assert_true(*c.at[1] == 14 * x && *c.at[0] == 40 * x && device->deferred == NULL);

        start_chain(&c, x, ADDERS); // more lists than may wait
        assert_true(*c.at[MZ_DEFERRED_LISTS] == x * (1 << MZ_DEFERRED_LISTS) && device->deferred != NULL);
        start_chain(&c, 2 * x, 1);
        must(mz_sequence_run(c.lists[0])); // the same list again: its first time is over
        must(mezzo_device_sync(device));
        assert_true(*c.at[1] == 4 * x && device->deferred == NULL);
    }
    start_chain(&c, 9, 1);
    mz_sequence_free(c.lists[0]); // its owner goes: it runs
    c.lists[0] = NULL;
    assert_true(*c.at[1] == 18 && device->deferred == NULL);
    close_chain(&c);
    device->backend = &mz_backend_cpu;
    mezzo_device_close(device);
}

// Within one list a call that needs a deferred one has it run in its place.
TEST(a_later_call_of_the_list_runs_it_first) {
    mezzo_device *device;
    chain c;
    mz_sequence *list;
    must(mezzo_device_open("cpu", 1, &device));
    device->backend = &queued;
    open_chain(device, &c);
    must(mz_sequence_create(device, &list));
    mz_call first = doubling(c.at[0], c.at[1]), other = doubling(c.at[2], c.at[3]), then = doubling(c.at[1], c.at[4]);
    must(mz_sequence_defer(list, MZ_STREAM_DEFERRED, &c.prepared, &first, NULL));
    must(mz_sequence_add(list, &c.prepared, &other, NULL));
    for (int round = 1; round <= 3; round++) {
        start_chain(&c, (float)round, 0);
        must(mz_sequence_run(list));
        assert_non_null(device->deferred); // `other` needs nothing of it
    }
    must(mz_sequence_add(list, &c.prepared, &then, NULL));
    must(mezzo_device_sync(device));
    mz_sequence_free(list);
    must(mz_sequence_create(device, &list));
    must(mz_sequence_defer(list, MZ_STREAM_DEFERRED, &c.prepared, &first, NULL));
    must(mz_sequence_add(list, &c.prepared, &other, NULL));
    must(mz_sequence_add(list, &c.prepared, &then, NULL));
    for (int round = 1; round <= 3; round++) {
        start_chain(&c, (float)round, 0);
        must(mz_sequence_run(list));
        assert_null(device->deferred);
        assert_true(*c.at[4] == 4 * (float)round);
    }
    mz_sequence_free(list);
    close_chain(&c);
    device->backend = &mz_backend_cpu;
    mezzo_device_close(device);
}

// A program takes along whatever waits, an update or not; with other lists waiting its graph is another one.
TEST(a_program_takes_every_list_along) {
    mezzo_device *device;
    mezzo_graph *g;
    mezzo_params *params;
    mezzo_program *p;
    chain c;
    open_queued(BATCH, &device, &g, &params);
    must(mezzo_program_create(g, params, &(mezzo_program_options){.loss_weight = 1}, &p));
    mezzo_graph_free(g);
    open_chain(device, &c);
    for (int round = 1; round <= 8; round++) {
        int lists = round <= 5 ? 2 : 3; // 1: eager; 2: captured; 6: eager again; 7: captured
        int before = deferred;
        start_chain(&c, (float)round, lists);
        assert_non_null(device->deferred);
        must(mezzo_params_zero_grad(params));
        micro(p, NULL, round);
        assert_null(device->deferred);
        assert_true(*c.at[lists] == (float)(round << lists));
        assert_int_equal(deferred - before, round == 2 ? 2 : round == 7 ? 3 : 0);
    }
    close_chain(&c);
    mezzo_program_free(p);
    mezzo_params_free(params);
    device->backend = &mz_backend_cpu;
    mezzo_device_close(device);
}

// The host may look between zeroing and the next run, though nothing was written to memory then.
TEST(zeroed_gradients_read_as_zero) {
    static float grads[1 << 16], values[4096];
    trained t = {.grads = grads};
    train("gpt2", false, MEZZO_PRECISION_FP32, 1, &t);
    for (int i = 0; i < mezzo_params_count(t.params); i++) {
        memset(values, 1, sizeof values);
        must(mezzo_params_read_grad(t.params, i, values));
        for (int64_t k = 0; k < t.params->list[i].count; k++)
            assert_true(values[k] == 0);
    }
    memset(values, 0, sizeof values);
    values[0] = 3;
    must(mezzo_params_write_grad(t.params, 0, values)); // now there is one: the others are still 0
    must(mezzo_params_read_grad(t.params, 1, values));
    assert_true(values[0] == 0);
    mezzo_params_free(t.params);
    mezzo_device_close(t.device);
}

// A router's correction bias has no gradient that anybody writes: what the host put there is gone with the next step
// all the same.
TEST(gradients_that_nobody_writes_are_zeroed) {
    static float grads[1 << 16], values[4096];
    trained t = {.grads = grads};
    mezzo_graph *g;
    mezzo_model_config c;
    mezzo_program *p;
    tiny_model("glm4_moe", &c);
    must(mezzo_device_open("cpu", 1, &t.device));
    g = fixture_graph(&c, BATCH, LENGTH, false);
    must(mezzo_params_create(t.device, g, 7, &t.params));
    must(mezzo_program_create(g, t.params, &(mezzo_program_options){.loss_weight = 1}, &p));
    int silent = 0;
    for (int i = 0; i < mezzo_params_count(t.params); i++) {
        for (int64_t k = 0; k < t.params->list[i].count; k++)
            values[k] = 3;
        must(mezzo_params_write_grad(t.params, i, values));
    }
    must(mezzo_params_zero_grad(t.params));
    micro(p, NULL, 0);
    for (int i = 0; i < mezzo_params_count(t.params); i++) {
        bool bias = strstr(t.params->list[i].name, "correction_bias") != NULL;
        must(mezzo_params_read_grad(t.params, i, values));
        silent += bias;
        for (int64_t k = 0; k < t.params->list[i].count; k++)
            assert_true(bias ? values[k] == 0 : values[k] != 3);
    }
    assert_int_equal(silent, 2);
    mezzo_program_free(p);
    mezzo_graph_free(g);
    mezzo_params_free(t.params);
    mezzo_device_close(t.device);
}

TEST_GROUP(queue_open, NULL)
