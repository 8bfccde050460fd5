// The cpu device has host memory, OpenMP threads, and for every op the kernels of its level and of all lower ones.
#include "backend/cpu/cpu.h"

#include "backend/cpu/conv.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/cpu/kernels/kernels.h"

// --- kernels -------------------------------------------------------------------------------------------------------
#if defined(__x86_64__)
#define LEVELS(name) &mz_##name##__avx512, &mz_##name##__avx2, &mz_##name##__portable
static const mz_level listed_levels[] = {MZ_LEVEL_AVX512, MZ_LEVEL_AVX2, MZ_LEVEL_PORTABLE};
#elif defined(__aarch64__)
#define LEVELS(name) &mz_##name##__neon, &mz_##name##__portable
static const mz_level listed_levels[] = {MZ_LEVEL_NEON, MZ_LEVEL_PORTABLE};
#else
#define LEVELS(name) &mz_##name##__portable
static const mz_level listed_levels[] = {MZ_LEVEL_PORTABLE};
#endif

#define KERNEL(op, name)      static const mz_kernel *const name##_kernels[] = {LEVELS(name)};
#define KERNEL_ONCE(op, name) static const mz_kernel *const name##_kernels[] = {&mz_##name##__portable};
#if defined(__x86_64__)
#define KERNEL_AMX(op, name) static const mz_kernel *const name##_kernels[] = {&mz_##name##__amx, LEVELS(name)};
enum { LISTS_TILES = 1 };
#else
#define KERNEL_AMX KERNEL
enum { LISTS_TILES = 0 };
#endif
#include "backend/cpu/kernels.def"
#undef KERNEL
#undef KERNEL_AMX
#undef KERNEL_ONCE

static const struct {
    const mz_kernel *const *list; // the best ones first; the last one is portable
    size_t n;
    size_t tiles; // the number of kernels for AMX, which come first
} kernel_lists[MZ_OP_COUNT] = {
#define KERNEL(op, name)      [MZ_OP_##op] = {name##_kernels, MZ_COUNT(name##_kernels), 0},
#define KERNEL_ONCE(op, name) [MZ_OP_##op] = {name##_kernels, MZ_COUNT(name##_kernels), 0},
#define KERNEL_AMX(op, name)  [MZ_OP_##op] = {name##_kernels, MZ_COUNT(name##_kernels), LISTS_TILES},
#include "backend/cpu/kernels.def"
#undef KERNEL
#undef KERNEL_AMX
#undef KERNEL_ONCE
};

static const mz_kernel *const *cpu_kernels(const mezzo_device *device, mz_op op, size_t *n) {
    const mz_cpu_device *cpu = mz_cpu(device);
    *n = 0;
    if (op == MZ_OP_linear || op == MZ_OP_matmul || op == MZ_OP_linear_dx || op == MZ_OP_linear_dw || mz_is_conv(op))
        return mz_cpu_matmul_kernels(cpu, op, n);
    if (op == MZ_OP_grouped_linear || op == MZ_OP_grouped_linear_dx || op == MZ_OP_grouped_linear_dw)
        return mz_cpu_grouped_kernels(op, n);
    if (kernel_lists[op].n == 0) // the op is composed of others
        return NULL;
    // Lists start with AMX kernels, where tiles were measured to be faster, or else with the best of the other levels.
    bool tiles = cpu->isa.level == MZ_LEVEL_AMX && cpu->isa.bf16_dot && mz_isa_worth_it(&cpu->isa, cpu->isa.amx_rate);
    size_t above = tiles ? 0 : kernel_lists[op].tiles;
    for (size_t i = 0; i < MZ_COUNT(listed_levels) && listed_levels[i] > cpu->isa.level; i++)
        above++;
    if (above >= kernel_lists[op].n)
        above = kernel_lists[op].n - 1;
    *n = kernel_lists[op].n - above;
    return kernel_lists[op].list + above;
}

const char *mz_cpu_prepare(const mezzo_device *device, const mz_call *call, const mz_cpu_needs *needs,
                           mz_prepared *out) {
    const char *reason = NULL;
    if (needs->in != NULL && (call->numerics.compute == MEZZO_F64 || call->numerics.reduce == MEZZO_F64))
        return "fp64 arithmetic: only the ref device has it";
    if (needs->in != NULL)
        reason = mz_storages_refusal(call, needs->in, needs->out);
    if (reason == NULL && needs->refuses != NULL)
        reason = needs->refuses(device, call);
    if (reason == NULL && needs->workspace != NULL)
        out->workspace = needs->workspace(device, call);
    return reason;
}

// --- threads -----------------------------------------------------------------------------------------
// libgomp ends the process where it cannot start a thread. So the threads are started here first, once and all at the
// same time, so that a failure becomes an error that names the limit.
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opens;
    bool open;
} gate;

static void *wait_at(void *user) {
    gate *g = user;
    pthread_mutex_lock(&g->lock);
    while (!g->open)
        pthread_cond_wait(&g->opens, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static mezzo_status check_threads(int threads) {
    static _Atomic int known = 1; // this number of threads was started before, and libgomp keeps them
    if (threads <= atomic_load(&known))
        return MEZZO_OK;
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .opens = PTHREAD_COND_INITIALIZER};
    int started = 0, error = 0;
    pthread_t *list;
    MEZZO_TRY(MZ_NEW(list, threads));
    while (started < threads - 1 && (error = pthread_create(&list[started], NULL, wait_at, &g)) == 0)
        started++;
    pthread_mutex_lock(&g.lock);
    g.open = true;
    pthread_cond_broadcast(&g.opens);
    pthread_mutex_unlock(&g.lock);
    for (int i = 0; i < started; i++)
        pthread_join(list[i], NULL);
    mz_free(list);
    if (error != 0)
        return mz_fail(MEZZO_ERR_DEVICE,
                       "cpu: %d threads cannot be started, %d can (%s): use --threads %d or raise "
                       "ulimit -u and -v",
                       threads, started + 1, strerror(error), started + 1);
    atomic_store(&known, threads);
    return MEZZO_OK;
}

// --- opening -------------------------------------------------------------------------------------------------------
static mezzo_status cpu_open(int index, int threads, mezzo_device **out) {
    *out = NULL;
    if (index != 0)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "device cpu:%d: there is one cpu device, use \"cpu\"", index);
    mz_isa isa;
    MEZZO_TRY(mz_isa_probe(getenv("MEZZO_ISA"), &isa));
    // omp_get_num_procs counts the cores that this process's affinity mask allows.
    if (threads <= 0)
        threads = omp_get_num_procs();
    MEZZO_TRY(check_threads(threads));
    mz_cpu_device *cpu;
    MEZZO_TRY(MZ_NEW(cpu, 1));
    cpu->base.backend = &mz_backend_cpu;
    cpu->base.threads = threads;
    cpu->isa = isa;
    if (isa.level != isa.found)
        mz_log("dispatch", "cpu: MEZZO_ISA limits kernels to %s; the machine supports %s", mz_level_name(isa.level),
               mz_level_name(isa.found));
    *out = &cpu->base;
    return MEZZO_OK;
}

static void cpu_close(mezzo_device *device) {
    mz_free(device);
}

static mezzo_status cpu_describe(mezzo_device *device, mezzo_device_info *out) {
    const mz_isa *isa = &mz_cpu(device)->isa;
    memset(out, 0, sizeof *out);
    out->backend = "cpu";
    out->threads = device->threads;
    snprintf(out->description, sizeof out->description, "%s (%s%s), %d thread%s", isa->brand, mz_level_name(isa->level),
             isa->bf16_dot ? ", bf16 dot product" : "", device->threads, device->threads == 1 ? "" : "s");
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    out->memory_total = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
    double bf16_rate = isa->amx_rate > isa->bf16_dot_rate ? isa->amx_rate : isa->bf16_dot_rate;
    out->native[MEZZO_PRECISION_FP32] = true;
    for (int p = 0; p < MEZZO_PRECISION_AUTO; p++) // emulate_fp8.c emulates these
        out->native[p] = out->native[p] || mz_precision((mezzo_precision)p)->scaling != MZ_SCALING_NONE;
    // Arithmetic in a low format is used only where it was measured to be faster; elsewhere BF16 and FP16 are storage
    // formats with FP32 arithmetic.
    const struct {
        mezzo_precision precision;
        double rate;
    } of[] = {{MEZZO_PRECISION_BF16, bf16_rate},
              {MEZZO_PRECISION_FP16, isa->amx_rate / MZ_CPU_F16_PRODUCTS},
              {MEZZO_PRECISION_TF32, isa->amx_rate / MZ_CPU_TF32_PRODUCTS}};
    for (size_t i = 0; i < MZ_COUNT(of); i++)
        out->native[of[i].precision] = out->faster[of[i].precision] = mz_isa_worth_it(isa, of[i].rate);
    return MEZZO_OK;
}

// --- memory --------------------------------------------------------------------------------------------------------
// Zeroes a buffer. Gradients are zeroed once a step; every thread zeroes its share of large buffers, so that one core's
// memory port is not the limit.
static mezzo_status cpu_zero(mezzo_device *device, void *dst, size_t bytes) {
    enum { PIECE = 1 << 18 };
    int64_t pieces = (int64_t)((bytes + PIECE - 1) / PIECE);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.05 * (double)bytes))
    for (int64_t i = 0; i < pieces; i++) {
        size_t from = (size_t)i * PIECE, left = bytes - from;
        memset((char *)dst + from, 0, left < PIECE ? left : PIECE);
    }
    return MEZZO_OK;
}

const mz_backend mz_backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .kernels = cpu_kernels,
    .takes = mz_cpu_takes,
    .takes_padding = mz_padded_of_layouts,
    .alloc = mz_host_alloc,
    .release = mz_host_release,
    .write = mz_host_copy,
    .read = mz_host_copy,
    .zero = cpu_zero,
    .copy_rows = mz_host_copy_rows,
    .sync = mz_host_sync,
    .fetch_open = mz_host_fetch_open,
    .fetch = mz_host_fetch,
    .fetched = mz_host_fetched,
    .fetch_close = mz_host_fetch_close,
    .peaks = mz_cpu_peaks,
};
