// What `mezzo memory` says before anything is allocated, against arithmetic on the model's shapes and against what is
// then made.
#include <string.h>
#include <sys/resource.h>

#include "backend/backend.h"
#include "base/base.h"
#include "study/measure/measure.h"
#include "test.h"

static mezzo_device *device;

static int open_device(void **state) {
    (void)state;
    return mezzo_device_open("cpu", 1, &device) == MEZZO_OK ? 0 : -1;
}
static int close_device(void **state) {
    (void)state;
    mezzo_device_close(device);
    return 0;
}

static mz_session_options session(const char *model, mezzo_precision precision, int64_t batch, int64_t seq_len) {
    mz_session_options w;
    mezzo_model_config config;
    assert_int_equal(mezzo_model_defaults(model, &config), MEZZO_OK);
    assert_int_equal(mz_session_usual(&config, batch, &w), MEZZO_OK);
    mz_session_set_precision(&w, precision);
    w.master = MEZZO_MASTER_FP32;
    w.form.length = seq_len;
    w.seed = 1;
    return w;
}

static mz_footprint footprint(const mz_session_options *w) {
    mz_footprint f;
    assert_int_equal(mz_footprint_of(device, w, NULL, &f), MEZZO_OK);
    return f;
}

// GPT-2's matrices are multiples of 32 elements, so nothing is padded.
TEST(weights_are_those_of_the_shapes) {
    const size_t c = 768, v = 50257, t = 1024, layers = 12;
    const size_t matrices = layers * 12 * c * c + v * c; // of the blocks, and the embedding that the head reads
    const size_t vectors = layers * (9 + 4) * c + 2 * c,
                 positions = t * c; // biases 3+1+4+1, two norms a block and the last
    const size_t all = matrices + vectors + positions;
    mz_session_options fp32 = session("gpt2-124M", MEZZO_PRECISION_FP32, 1, 1024);
    mz_session_options bf16 = session("gpt2-124M", MEZZO_PRECISION_BF16, 1, 1024);
    fp32.step.micro_batches = bf16.step.micro_batches = 2; // activations have memory of their own
    mz_footprint a = footprint(&fp32), b = footprint(&bf16);
    assert_int_equal(a.parameters, all);
    assert_int_equal(a.weights, 4 * all);
    assert_int_equal(a.gradients, 4 * all);
    assert_int_equal(a.shadows, 0);
    // autocast keeps all of that, and adds 2 bytes for each element of a matrix, biases of linear layers among them
    assert_int_equal(b.weights, a.weights);
    assert_int_equal(b.gradients, a.gradients);
    assert_in_range(b.shadows, 2 * matrices, 2 * (matrices + layers * 9 * c));
    assert_in_range(b.optimizer, 8 * all, 8 * all + (1 << 20)); // moments; beside them less than a megabyte
    assert_true(b.activations < a.activations && b.activations > a.activations / 2);
}

TEST(optimizers_take_their_moments) {
    mz_session_options w = session("gpt2-124M", MEZZO_PRECISION_FP32, 1, 64);
    mz_footprint adamw = footprint(&w);
    w.optimizer.ema = 0.999;
    assert_int_equal(footprint(&w).optimizer - adamw.optimizer, adamw.weights);
    w.optimizer.ema = 0;
    w.optimizer.moments = MEZZO_MOMENTS_BF16;
    assert_int_equal(adamw.optimizer - footprint(&w).optimizer, adamw.weights); // two, each half as large
    w.optimizer.ema = 0.999;                                                    // FP32 whatever moments are
    assert_int_equal(footprint(&w).optimizer, adamw.optimizer);
    w.optimizer.ema = 0;
    w.optimizer.moments = MEZZO_MOMENTS_INT8; // 260 bytes for 256 elements, and a parameter's last block whole
    assert_in_range(footprint(&w).optimizer, adamw.optimizer - 2 * adamw.weights + adamw.weights / 512 * 260,
                    adamw.optimizer - 2 * adamw.weights + adamw.weights / 512 * 260 + (1 << 17));
    w.optimizer.moments = MEZZO_MOMENTS_FP32;
    w.optimizer.kind = MEZZO_SGD;
    w.optimizer.momentum = 0.9;
    mz_footprint momentum = footprint(&w);
    w.optimizer.momentum = 0;
    mz_footprint plain = footprint(&w);
    assert_int_equal(adamw.optimizer - momentum.optimizer, adamw.weights);
    assert_int_equal(momentum.optimizer - plain.optimizer, adamw.weights);
}

// GPT-2's head reads the token embedding, and an embedding's rows are read in FP32: that matrix keeps its FP32 master.
TEST(masters_take_what_they_keep) {
    const size_t matrices = 12 * 12 * 768 * 768, linear_biases = 12 * 9 * 768;
    mz_session_options w = session("gpt2-124M", MEZZO_PRECISION_BF16, 1, 64);
    mz_footprint fp32 = footprint(&w);
    w.master = MEZZO_MASTER_SPLIT;
    mz_footprint split = footprint(&w);
    w.master = MEZZO_MASTER_STOCHASTIC;
    mz_footprint none = footprint(&w);
    assert_in_range(fp32.weights - split.weights, 2 * matrices, 2 * (matrices + linear_biases));
    assert_int_equal(fp32.weights - none.weights, 2 * (fp32.weights - split.weights));
    assert_int_equal(fp32.shadows, none.shadows);
    assert_int_equal(fp32.gradients, none.gradients);
    assert_int_equal(fp32.optimizer, none.optimizer);
}

// Two adapters a layer, of C inputs and outputs each, r·(C + C): gradients and moments are of these alone.
TEST(adapters_train_alone) {
    const size_t c = 48, rank = 3, layers = 2, per_layer = 2 * rank * (c + c);
    const char *models[] = {"gpt2", "cs336", "glm4_moe"}, *modules[] = {"attn.c_proj,mlp.c_proj", "q_proj,v_proj", "*"};
    for (size_t i = 0; i < MZ_COUNT(models); i++) {
        mz_session_options w = session(models[i], i == 0 ? MEZZO_PRECISION_FP32 : MEZZO_PRECISION_BF16, 2, 16);
        w.model.config.layers = (int64_t)layers;
        w.model.config.heads = w.model.config.kv_heads = 2;
        w.model.config.d_model = (int64_t)c;
        w.model.config.d_ff = i == 0 ? (int64_t)c : 0;
        w.model.config.vocab = 101;
        w.model.config.dense_layers = i == 2;
        mz_footprint whole = footprint(&w);
        w.lora = (mezzo_lora){.rank = (int64_t)rank, .alpha = 6, .modules = modules[i]};
        mz_footprint f = footprint(&w);
        mz_rig *rig;
        if (i < 2) // rows of 16 floats are whole, so that nothing is padded
            assert_int_equal(f.gradients, 4 * layers * per_layer);
        assert_in_range(f.gradients / 4 - (size_t)(f.parameters - whole.parameters), 0, i < 2 ? 0 : 256);
        assert_in_range(f.optimizer, 2 * f.gradients, 2 * f.gradients + (1 << 16));
        assert_true(f.gradients < whole.gradients / 4);
        assert_int_equal(mz_rig_create(device, &w, &rig), MEZZO_OK);
        assert_int_equal(mz_footprint_total(&f) - f.padding, mz_rig_memory(rig));
        mz_rig_free(rig);
    }
}

TEST(plans_are_what_is_made) {
    const mezzo_precision precisions[] = {MEZZO_PRECISION_FP32, MEZZO_PRECISION_BF16,     MEZZO_PRECISION_FP16,
                                          MEZZO_PRECISION_FP8,  MEZZO_PRECISION_FP8_DW16, MEZZO_PRECISION_FP8_BLOCK};
    for (size_t p = 0; p < MZ_COUNT(precisions); p++)
        for (int optimizer = 0; optimizer < 3; optimizer++) {
            mz_session_options w = session("gpt2", precisions[p], 2, 16);
            w.model.config.layers = 3; // the one in the middle has 8-bit data of its weights, with recompute once too
            w.model.config.heads = 2;
            w.model.config.d_model = 48;
            w.model.config.vocab = 101;
            w.program.recompute = optimizer == 1;
            w.optimizer.kind = optimizer > 0 ? MEZZO_SGD : MEZZO_ADAMW;
            w.optimizer.momentum = optimizer == 1 ? 0.9 : 0;
            if (precisions[p] == MEZZO_PRECISION_BF16)
                w.master = (mezzo_master)optimizer; // each kind once
            mz_footprint f = footprint(&w);
            mz_rig *rig;
            assert_int_equal(mz_rig_create(device, &w, &rig), MEZZO_OK);
            assert_int_equal(mz_footprint_total(&f) - f.padding, mz_rig_memory(rig));
            mz_rig_free(rig);
        }
}

TEST(the_largest_batch_is_the_largest) {
    const size_t limits[] = {(size_t)3 << 30, (size_t)24 << 30};
    for (size_t i = 0; i < MZ_COUNT(limits); i++)
        for (int recompute = 0; recompute < 2; recompute++) {
            mz_session_options w = session("gpt2-124M", MEZZO_PRECISION_BF16, 1, 1024);
            int64_t batch;
            size_t bytes;
            w.program.recompute = recompute;
            assert_int_equal(mz_largest_batch(device, &w, limits[i], NULL, &batch), MEZZO_OK);
            assert_true(batch > 0);
            w.form.batch = batch;
            assert_int_equal(mz_session_run_bytes(device, &w, &bytes), MEZZO_OK);
            assert_true(bytes <= limits[i]);
            w.form.batch = batch + 1;
            assert_int_equal(mz_session_run_bytes(device, &w, &bytes), MEZZO_OK);
            assert_true(bytes > limits[i]);
        }
    // `mezzo train` keeps programs for evaluation and sampling beside the step.
    mz_session_options w = session("gpt2-124M", MEZZO_PRECISION_BF16, 4, 1024);
    mz_footprint f = footprint(&w);
    assert_true(f.evaluation > (size_t)4 * 1024 * 50257 * 2 && f.sampling > (size_t)12 * 2 * 1024 * 768 * 2);
    assert_int_equal(mz_footprint_run(&f), mz_footprint_total(&f) + f.evaluation + f.sampling);
    const mz_session_options none = session("gpt2-124M", MEZZO_PRECISION_BF16, 1, 1024);
    int64_t batch = 7;
    assert_int_equal(mz_largest_batch(device, &none, 1 << 20, NULL, &batch), MEZZO_OK);
    assert_int_equal(batch, 0);
}

// Searches that share what they planned find batches that fit, with the next one too large, whatever differs between
// them, and plan few: a batch of a tiny model that fills 64 GiB has thousands of blocks of rows.
TEST(searches_share_plans) {
    mz_plans plans = {0};
    for (int i = 0; i < 12; i++) {
        mz_session_options w = session("gpt2", i < 6 ? MEZZO_PRECISION_BF16 : MEZZO_PRECISION_FP32, 1, 64);
        const size_t limit = (size_t)64 << 30;
        int64_t batch;
        size_t bytes;
        w.model.config.layers = 2;
        w.model.config.heads = 2;
        w.model.config.d_model = 64;
        w.program.recompute = i % 2 == 1;
        w.optimizer.kind = i % 3 == 1 ? MEZZO_SGD : MEZZO_ADAMW;
        w.master = i < 6 ? (mezzo_master)(i % 3) : MEZZO_MASTER_FP32;
        const size_t before = plans.n;
        assert_int_equal(mz_largest_batch(device, &w, limit, &plans, &batch), MEZZO_OK);
        assert_true(batch > 10000 && batch < 1 << 20);
        assert_true(plans.n - before < 24);
        w.form.batch = batch;
        assert_int_equal(mz_session_run_bytes(device, &w, &bytes), MEZZO_OK);
        assert_true(bytes <= limit);
        w.form.batch = batch + 1;
        assert_int_equal(mz_session_run_bytes(device, &w, &bytes), MEZZO_OK);
        assert_true(bytes > limit);
    }
    mz_plans_free(&plans);
}

// Where a device keeps activations' results in programs of few rows, some larger batch can need less than a smaller
// one.
TEST(the_largest_batch_may_need_less_than_smaller_ones) {
    mezzo_device *ref;
    size_t bytes[36];
    int falls = 0;
    assert_int_equal(mezzo_device_open("ref", 1, &ref), MEZZO_OK);
    mz_backend few = *ref->backend;
    few.few_rows = 24 * 16;
    ref->backend = &few;
    mz_session_options w = session("gpt2", MEZZO_PRECISION_BF16, 1, 16);
    w.step.micro_batches = 2;
    w.model.config.layers = 24;
    w.model.config.heads = 2;
    w.model.config.d_model = 64;
    w.model.config.vocab = 101;
    for (w.form.batch = 1; w.form.batch < (int64_t)MZ_COUNT(bytes); w.form.batch++)
        assert_int_equal(mz_session_run_bytes(ref, &w, &bytes[w.form.batch]), MEZZO_OK);
    for (int i = 1; i < (int)MZ_COUNT(bytes) - 1; i++) {
        int64_t batch, most = i;
        for (int k = i; k < (int)MZ_COUNT(bytes); k++)
            most = bytes[k] <= bytes[i] ? k : most;
        falls += most > i;
        assert_int_equal(mz_largest_batch(ref, &w, bytes[i], NULL, &batch), MEZZO_OK);
        assert_int_equal(batch, most);
    }
    assert_true(falls > 0);
    mezzo_device_close(ref);
}

// A plan of 70 billion parameters, which would be 1.1 TB.
TEST(planning_allocates_no_weights) {
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    const mz_session_options w = session("llama2-70B", MEZZO_PRECISION_BF16, 1, 4096);
    mz_footprint f = footprint(&w);
    getrusage(RUSAGE_SELF, &after);
    assert_int_equal(f.parameters, INT64_C(68976648192)); // Llama 2's, as its paper's shapes give
    assert_true(mz_footprint_total(&f) > (size_t)1 << 40);
    assert_true(after.ru_maxrss - before.ru_maxrss < 256 * 1024); // kilobytes
}

static int prepared;
static mz_takes (*real_takes)(const mz_kernel *kernel);
static mz_takes count_takes(const mz_kernel *kernel) { // mz_prepare_kernel asks once a call
    prepared++;
    return real_takes(kernel);
}

// However many rows experts may have: planning looks at a bounded number of products, and at each shape once.
TEST(many_experts_are_planned_at_once) {
    mz_session_options w = session("glm4_moe", MEZZO_PRECISION_BF16, 64, 1024);
    w.model.config.vocab = 256;
    w.model.config.layers = 4;
    w.model.config.d_model = 16;
    w.model.config.heads = 2;
    w.model.config.experts = 65536;
    w.model.config.experts_per_token = 8;
    mz_backend counting = *device->backend;
    const mz_backend *backend = device->backend;
    real_takes = counting.takes;
    counting.takes = count_takes;
    device->backend = &counting;
    prepared = 0;
    footprint(&w);
    assert_in_range(prepared, 1, 100000); // 524,288 rows in each of three products, of two matrices, of three layers
    w.form.batch = 512;
    prepared = 0;
    footprint(&w);
    assert_true(prepared < 10000);
    device->backend = backend;
}

TEST(named_models_have_their_papers_sizes) {
    const struct {
        const char *name;
        int64_t parameters;
    } sizes[] = {
        {"llama-7B", 6738415616}, {"llama-13B", 13015864320}, {"llama-33B", 32528943616}, {"llama-65B", 65285660672}};
    for (size_t i = 0; i < MZ_COUNT(sizes); i++) {
        const mz_session_options w = session(sizes[i].name, MEZZO_PRECISION_FP32, 1, 128);
        int64_t parameters;
        assert_int_equal(mz_session_elements(&w, &parameters), MEZZO_OK);
        assert_int_equal(parameters, sizes[i].parameters);
    }
}

TEST(recompute_and_smaller_batches_save_activations_only) {
    mz_session_options w = session("gpt2-124M", MEZZO_PRECISION_BF16, 8, 512);
    mz_footprint whole = footprint(&w);
    w.program.recompute = true;
    mz_footprint again = footprint(&w);
    w.program.recompute = false;
    w.form.batch = 2;
    mz_footprint quarter = footprint(&w);
    assert_true(again.activations < whole.activations / 2);
    assert_true(quarter.activations < whole.activations / 3);
    assert_int_equal(again.weights + again.shadows + again.gradients + again.optimizer,
                     whole.weights + whole.shadows + whole.gradients + whole.optimizer);
    assert_int_equal(quarter.weights, whole.weights);
}

TEST(schemes_add_up) {
    double fp32 = 0, autocast = 0;
    for (int i = 0; i < MZ_SCHEMES; i++) {
        const mz_scheme *s = &mz_schemes[i];
        if (strcmp(s->name, "fp32, AdamW") == 0)
            fp32 = mz_scheme_total(s);
        if (strcmp(s->name, "autocast, AdamW") == 0)
            autocast = mz_scheme_total(s);
    }
    assert_true(fp32 == 16 && autocast == 18);
    // … and the plan of a model whose parameters are nearly all matrices agrees
    const mz_session_options w = session("llama-7B", MEZZO_PRECISION_BF16, 1, 128);
    mz_footprint f = footprint(&w);
    double bytes = (double)(f.weights + f.shadows + f.gradients + f.optimizer) / (double)f.parameters;
    assert_true(bytes > 17.9 && bytes < 18.01);
}

TEST_GROUP(open_device, close_device)
