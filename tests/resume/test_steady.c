// After the first step a run allocates nothing, by the library's count and by malloc's; and the arena is what the plan
// said.
#include "sanitized.h"
#include "tiny_run.h"

#include "train/run.h"

static uint64_t mallocs;
#if !SANITIZED // glibc's own names under ours, which count; the sanitizers have theirs
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *ptr, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
void *malloc(size_t n) {
    __atomic_fetch_add(&mallocs, 1, __ATOMIC_RELAXED);
    return __libc_malloc(n);
}
void *calloc(size_t count, size_t size) {
    __atomic_fetch_add(&mallocs, 1, __ATOMIC_RELAXED);
    return __libc_calloc(count, size);
}
void *realloc(void *ptr, size_t n) {
    __atomic_fetch_add(&mallocs, 1, __ATOMIC_RELAXED);
    return __libc_realloc(ptr, n);
}
void *aligned_alloc(size_t alignment, size_t n) {
    __atomic_fetch_add(&mallocs, 1, __ATOMIC_RELAXED);
    return __libc_memalign(alignment, n);
}
int posix_memalign(void **out, size_t alignment, size_t n) {
    __atomic_fetch_add(&mallocs, 1, __ATOMIC_RELAXED);
    *out = __libc_memalign(alignment, n);
    return *out == NULL ? 12 : 0; // ENOMEM
}
#endif

TEST(test_malloc_is_counted) {
    uint64_t before = mallocs;
    mz_free(mz_alloc(1, 100));
    assert_true(SANITIZED || mallocs > before);
}

// The whole step, as loop.c runs it, for each precision, with accumulation, dropout and clipping.
static void steps_allocate_nothing(const char *precision, const char *threads) {
    mz_training run;
    mezzo_config *config;
    const char *rest[16];
    int n;
    bool fresh;
    const char *args[] = {"--layers=2",        "--heads=2",      "--d-model=32", "--seq-len=16",
                          "--batch-size=4",    "--grad-accum=6", "--device=cpu", threads,
                          "--dropout=0.1",     TINY_DATA,        precision,      "--out=steady",
                          "--sample-every=-1", "--eval-every=0"};
    tiny_clean("steady");
    must(mezzo_config_create(&config));
    must(mezzo_config_args(config, (int)MZ_COUNT(args), args, rest, &n));
    must(mz_run_open(config, NULL, &run));
    must(mz_run_start(&run));
    must(mz_run_step(&run));
    must(mz_run_read_step(&run, false, &fresh));
    uint64_t counted = mz_alloc_count(), before = mallocs;
    for (int i = 0; i < 5; i++) {
        must(mz_run_step(&run));
        must(mz_run_read_step(&run, false, &fresh));
        must(mz_run_guard(&run));
    }
    uint64_t after = mallocs, counted_after = mz_alloc_count();
    if (after != before || counted_after != counted)
        fail_msg("%s: %llu mallocs, %llu of the library, in five steps", precision,
                 (unsigned long long)(after - before), (unsigned long long)(counted_after - counted));
    assert_true(isfinite(run.engine.readout.last.loss));
    mz_run_close(&run);
    mezzo_config_free(config);
}

TEST(test_steps_allocate_nothing) {
    steps_allocate_nothing("--precision=fp32", "--threads=1");
    steps_allocate_nothing("--precision=bf16", "--threads=2");
    steps_allocate_nothing("--precision=fp16", "--threads=1");
}

// A backend that is the device's own but remembers how much it was asked for.
static const mz_backend *real;
static size_t asked[64];
static int n_asked;
static mezzo_status remembering_alloc(mezzo_device *device, size_t bytes, void **out) {
    if (n_asked < (int)MZ_COUNT(asked))
        asked[n_asked++] = bytes;
    return real->alloc(device, bytes, out);
}

static bool was_asked(size_t bytes) { // blocks carry one line of 64 bytes more, for kernels that read whole lines
    for (int i = 0; i < n_asked; i++)
        if (asked[i] == bytes + 64)
            return true;
    return false;
}

TEST(test_the_arena_is_what_the_plan_said) {
    mezzo_device *device;
    mezzo_model_config model;
    mezzo_graph *g;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_memory plan, made;
    const mezzo_program_options options = {.precision = MEZZO_PRECISION_BF16, .recompute = true};
    must(mezzo_device_open("cpu", 1, &device));
    must(mezzo_model_defaults("gpt2", &model));
    model.layers = 3, model.heads = 2, model.d_model = 32, model.vocab = 50, model.seq_len = 16;
    must(mezzo_graph_create(&g));
    must(mezzo_model_build(g, &model, 4, 16, false));
    must(mezzo_plan_memory(device, g, &options, &plan));
    real = device->backend;
    mz_backend remembering = *real;
    remembering.alloc = remembering_alloc;
    device->backend = &remembering;
    must(mezzo_params_create(device, g, 1, &params));
    n_asked = 0;
    must(mezzo_program_create(g, params, &options, &program));
    mezzo_program_memory(program, &made);
    assert_true(plan.activations > 0 && plan.workspace > 0);
    assert_int_equal(made.activations, plan.activations);
    assert_int_equal(made.workspace, plan.workspace);
    assert_int_equal(made.inputs, plan.inputs);
    assert_int_equal(made.masters, plan.masters);
    assert_int_equal(made.shadows, plan.shadows);
    assert_true(was_asked(plan.activations)); // and that is what the device was asked for
    assert_true(was_asked(plan.workspace));
    assert_true(plan.activations < plan.activations_unshared);
    mezzo_program_free(program);
    mezzo_params_free(params);
    device->backend = real;
    mezzo_graph_free(g);
    mezzo_device_close(device);
}

TEST_GROUP(tiny_setup, NULL)
