// Lists the backends, and finds a call's kernel.
#include <math.h>
#include <stdlib.h>
#include <strings.h>

#include "backend/backend.h"
#include "backend/collective.h"

extern const mz_backend mz_backend_ref;
extern const mz_backend mz_backend_cpu;
#ifdef MEZZO_CUDA
extern const mz_backend mz_backend_cuda;
#endif

mezzo_status (*mz_device_opened)(mezzo_device *device);

// Lists the backends, one line for each. `gpu`: mz_backend's; "NAME:3" opens its fourth device. NULL: known, but not in
// this build.
static const struct {
    const char *name;
    const mz_backend *backend;
    bool gpu;
} registry[] = {
    {"ref", &mz_backend_ref, false},
    {"cpu", &mz_backend_cpu, false},
#ifdef MEZZO_CUDA
    {"cuda", &mz_backend_cuda, true},
#else
    {"cuda", NULL, true},
#endif
};

// --- opening -------------------------------------------------------------------------------------------------------
static mezzo_status unknown_device(const char *name) {
    static const char *const names[] = {"cpu", "ref", "cuda", "auto"};
    bool gpu = strncasecmp(name, "gpu", 3) == 0 || strncasecmp(name, "nvidia", 6) == 0;
    const char *nearest = gpu ? "cuda" : mz_nearest(name, names, MZ_COUNT(names));
    if (nearest != NULL)
        return mz_fail(MEZZO_ERR_INVALID, "unknown device \"%s\": did you mean \"%s\"?", name, nearest);
    return mz_fail(MEZZO_ERR_INVALID, "unknown device \"%s\": use cpu, cuda, cuda:N, ref or auto", name);
}

// Reads the number after "cuda:"; 0 when there is none.
static mezzo_status parse_index(const char *name, size_t length, bool indexed, int *index) {
    *index = 0;
    if (name[length] == '\0')
        return MEZZO_OK;
    if (!indexed)
        return mz_fail(MEZZO_ERR_INVALID, "device \"%s\": there is only one; use \"%.*s\"", name, (int)length, name);
    const char *digits = name + length + 1;
    char *end;
    long value = strtol(digits, &end, 10);
    if (digits[0] < '0' || digits[0] > '9' || *end != '\0' || value > 1023)
        return mz_fail(MEZZO_ERR_INVALID, "device \"%s\": use \"%.*s:N\" with N from 0", name, (int)length, name);
    *index = (int)value;
    return MEZZO_OK;
}

static mezzo_status open_named(const char *name, int threads, mezzo_device **out) {
    size_t length = strcspn(name, ":");
    for (size_t i = 0; i < MZ_COUNT(registry); i++) {
        if (strlen(registry[i].name) != length || strncmp(registry[i].name, name, length) != 0)
            continue;
        int index;
        MEZZO_TRY(parse_index(name, length, registry[i].gpu, &index));
        if (registry[i].backend == NULL)
            return mz_fail(MEZZO_ERR_UNSUPPORTED, "device \"%s\": this build of mezzo has no %s backend; use cpu", name,
                           registry[i].name);
        return registry[i].backend->open(index, threads, out);
    }
    return unknown_device(name);
}

// Returns the row of the GPU backend that auto tries.
static size_t gpu_row(void) {
    size_t i = 0;
    while (!registry[i].gpu)
        i++;
    return i;
}

const char *mz_gpu_name(void) {
    return registry[gpu_row()].name;
}

int mz_gpu_count(void) {
    const mz_backend *b = registry[gpu_row()].backend;
    return b != NULL && b->transport != NULL ? b->transport->devices() : 0;
}

bool mz_device_name_is_gpu(const char *name) {
    const size_t length = strcspn(name, ":");
    for (size_t i = 0; i < MZ_COUNT(registry); i++)
        if (registry[i].gpu && strlen(registry[i].name) == length && strncmp(registry[i].name, name, length) == 0)
            return true;
    return false;
}

bool mz_device_name_is_open(const char *name) {
    return strcmp(name, "auto") == 0 || strcmp(name, mz_gpu_name()) == 0;
}

static mezzo_status open_best(int threads, mezzo_device **out) {
    mezzo_status status = open_named(mz_gpu_name(), threads, out);
    if (status == MEZZO_OK || status == MEZZO_ERR_INVALID) // a wrong setting is no reason to take another device
        return status;
    if (status != MEZZO_ERR_UNSUPPORTED || registry[gpu_row()].backend != NULL) // a build without one has no choice
        mz_log("notice", "device auto: cpu, because %s", mezzo_error_message());
    return open_named("cpu", threads, out);
}

mezzo_status mezzo_device_open(const char *name, int threads, mezzo_device **out) {
    MZ_REQUIRE(out);
    *out = NULL;
    if (name == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "no device name: use cpu, cuda, cuda:N, ref or auto");
    if (threads < 0)
        return mz_fail(MEZZO_ERR_INVALID, "device %s: %d threads: use 0 for every core, or a positive number", name,
                       threads);
    mz_survive_fork();
    MEZZO_TRY(strcmp(name, "auto") == 0 ? open_best(threads, out) : open_named(name, threads, out));
    const mezzo_status status = mz_device_opened != NULL ? mz_device_opened(*out) : MEZZO_OK;
    if (status != MEZZO_OK) {
        mezzo_device_close(*out);
        *out = NULL;
    }
    return status;
}

void mezzo_device_close(mezzo_device *device) {
    if (mz_free_once(device, "device"))
        device->backend->close(device);
}

mezzo_status mezzo_device_describe(mezzo_device *device, mezzo_device_info *out) {
    MZ_REQUIRE(device, out);
    MEZZO_TRY(device->backend->describe(device, out));
    return MEZZO_OK;
}

// --- measuring -----------------------------------------------------------------------------------------------------
mezzo_status mezzo_device_telemetry(mezzo_device *device, mezzo_telemetry *out) {
    MZ_REQUIRE(device, out);
    *out = (mezzo_telemetry){.watts = NAN, .joules = NAN, .celsius = NAN, .clock_mhz = NAN, .memory_clock_mhz = NAN};
    out->memory_allocated = device->allocated;
    out->memory_peak = device->peak;
    if (device->backend->telemetry != NULL)
        MEZZO_TRY(device->backend->telemetry(device, out));
    return MEZZO_OK;
}

void mezzo_device_reset_peak(mezzo_device *device) {
    if (device != NULL)
        device->peak = device->allocated;
}

static mezzo_status check_mark(int mark) {
    if (mark < 0 || mark >= MZ_MARKS)
        return mz_fail(MEZZO_ERR_INVALID, "mark %d: use 0 to %d", mark, MZ_MARKS - 1);
    return MEZZO_OK;
}

mezzo_status mezzo_device_mark(mezzo_device *device, int mark) {
    MZ_REQUIRE(device);
    MEZZO_TRY(check_mark(mark));
    if (device->backend->mark != NULL)
        MEZZO_TRY(device->backend->mark(device, mark));
    else
        device->marks[mark] = mz_seconds();
    return MEZZO_OK;
}

mezzo_status mezzo_device_elapsed(mezzo_device *device, int from, int to, double *seconds) {
    MZ_REQUIRE(device, seconds);
    MEZZO_TRY(check_mark(from));
    MEZZO_TRY(check_mark(to));
    if (device->backend->elapsed != NULL)
        MEZZO_TRY(device->backend->elapsed(device, from, to, seconds));
    else
        *seconds = device->marks[to] - device->marks[from];
    return MEZZO_OK;
}

// --- calls ---------------------------------------------------------------------------------------------------------
// Writes a line such as "linear (12x64x128 bf16, 384x128 bf16) -> (12x64x384 bf16)".
static void describe_tensors(mz_text *text, const mz_tensor *tensors, int n) {
    for (int i = 0; i < n; i++) {
        char shape[96];
        if (mz_present(&tensors[i]))
            mz_text_addf(text, "%s%s %s%s%s", i > 0 ? ", " : "", mz_shape_text(&tensors[i].shape, shape, sizeof shape),
                         mezzo_dtype_name(tensors[i].dtype), tensors[i].scaling != MZ_SCALING_NONE ? " scaled by " : "",
                         tensors[i].scaling != MZ_SCALING_NONE ? mz_scalings[tensors[i].scaling].name : "");
        else
            mz_text_addf(text, "%s-", i > 0 ? ", " : "");
    }
}

static void describe_call(mz_text *text, const mz_call *call) {
    mz_text_addf(text, "%s (", mz_op_table[call->op].name);
    describe_tensors(text, call->in, call->n_in);
    mz_text_addf(text, ") -> (");
    describe_tensors(text, call->out, call->n_out);
    mz_text_addf(text, ")");
}

const char mz_out_of_memory[] = "out of memory";
const mz_tensor mz_absent_slot = {.shape.rank = -1};

static mz_takes takes_of(const mezzo_device *device, const mz_kernel *kernel) {
    const mz_takes usual = {.dtypes = MZ_DTYPES_USUAL, .scalings = MZ_SCALINGS_NONE};
    return device->backend->takes != NULL ? device->backend->takes(kernel) : usual;
}

static bool serves_posts(mz_takes takes, uint64_t posts) {
    for (mz_post p = 0; p < MZ_POST_COUNT; p++)
        if (posts & MZ_POST_BIT(p) && (takes.refuses & MZ_POST_BIT(p) || (mz_post_table[p].offered && !takes.extras)))
            return false;
    return true;
}

const mz_kernel *mz_post_kernel(const mezzo_device *device, mz_op op, mz_post post) {
    size_t n = 0;
    const mz_kernel *const *kernels = device->backend->kernels(device, op, &n);
    for (size_t i = 0; i < n && post < MZ_POST_COUNT; i++)
        if (serves_posts(takes_of(device, kernels[i]), MZ_POST_BIT(post)))
            return kernels[i];
    return NULL;
}

static uint64_t posts_of(const mz_call *call) {
    uint32_t in = 0, out = 0;
    for (int i = 0; i < call->n_in; i++)
        in |= mz_present(&call->in[i]) ? MZ_BIT(i) : 0;
    for (int i = 0; i < call->n_out; i++)
        out |= mz_present(&call->out[i]) ? MZ_BIT(i) : 0;
    return mz_posts_of(call->op, &call->attrs, in, out);
}

// Refuses tensors that are not what ops.def says of their slots, so that no kernel needs to.
static const char *check_slots(mz_op op, bool outputs, const mz_tensor *tensors, int n) {
    const mz_op_info *info = &mz_op_table[op];
    int listed = outputs ? info->n_out : info->n_in;
    for (int i = 0; i < listed || i < n; i++) {
        mz_slot slot = mz_op_slot(op, outputs, i);
        if (i >= n || !mz_present(&tensors[i])) {
            if (i < listed && !(slot.is & MZ_SLOT_OPTIONAL))
                return "a tensor that the op needs is absent";
            continue;
        }
        mezzo_dtype dtype = tensors[i].dtype;
        if (slot.is & MZ_SLOT_INTEGER && dtype != MEZZO_I32)
            return "indices must be i32";
        if (slot.is & MZ_SLOT_BYTES && dtype != MEZZO_U8)
            return "segments, state and low copies must be u8";
        bool integers_allowed = info->moves || op == MZ_OP_arange || op == MZ_OP_constant ||
                                ((op == MZ_OP_cast || info->cast_class == MZ_CAST_INT) && !outputs) ||
                                (slot.is & (MZ_SLOT_INTEGER | MZ_SLOT_BYTES));
        bool records = dtype == MEZZO_U8 && (strcmp(slot.name, "master") == 0 || // segments say how these are stored
                                             (mz_op_is_kind(op) && outputs));    // 8-bit moments
        bool scaled = outputs && tensors[i].scaling != MZ_SCALING_NONE;
        if (scaled && op != MZ_OP_cast && op != MZ_OP_quantize)
            return "only a cast and a quantize write a tensor with scales";
        if (dtype >= MEZZO_I64 && !integers_allowed && !records)
            return "integers where a float format is needed";
    }
    return NULL;
}

// Refuses a format, a scale or a post-op that the kernel does not declare, so that no kernel mistakes it for another.
static const char *check_formats(const mezzo_device *device, const mz_kernel *kernel, const mz_call *call) {
    const mz_takes takes = takes_of(device, kernel);
    if (!serves_posts(takes, posts_of(call)))
        return "it does not serve such a post-op";
    for (int i = 0; i < call->n_in + call->n_out; i++) {
        const mz_tensor *t = i < call->n_in ? &call->in[i] : &call->out[i - call->n_in];
        if (!mz_present(t))
            continue;
        if ((takes.dtypes & MZ_BIT(t->dtype)) == 0)
            return "its formats are fp32, bf16, fp16 and integers";
        if ((takes.scalings & MZ_BIT(t->scaling)) == 0)
            return "tensors with such scales are not among its formats";
    }
    uint32_t arithmetic = takes.dtypes | MZ_BIT(MEZZO_F64) | MZ_BIT(MEZZO_TF32); // F64 marks a call without a compute
                                                                                 // dtype
    if (mz_op_is_product(call->op) && (arithmetic & MZ_BIT(call->numerics.compute)) == 0)
        return "products of that format are not among its formats";
    if (call->attrs.blocks != MEZZO_BLOCKS_NONE && mz_op_is_product(call->op) && !takes.blocks)
        return "it does not round operands to blocks";
    return NULL;
}

static const struct {
    char letter;
    uint32_t dtypes;
    const char *in, *out; // the refusals
} storages[] = {
#define FLOATS (MZ_BIT(MEZZO_F32) | MZ_BIT(MEZZO_BF16) | MZ_BIT(MEZZO_F16))
#define ROW(letter, dtypes, names)                                                                                     \
    { letter, dtypes, "an input is not " names, "an output is not " names }
    ROW('a', FLOATS, "fp32, bf16 or fp16"),
    ROW('b', MZ_BIT(MEZZO_BF16), "bf16"),
    ROW('f', MZ_BIT(MEZZO_F32), "fp32"),
    ROW('i', MZ_BIT(MEZZO_I32), "i32"),
    ROW('n', FLOATS | MZ_BIT(MEZZO_I32), "fp32, bf16, fp16 or i32"),
    ROW('u', MZ_BIT(MEZZO_U8), "u8"),
    ROW('m', MZ_BIT(MEZZO_F32) | MZ_BIT(MEZZO_U8), "fp32 or u8"),
#undef FLOATS
#undef ROW
};

static const char *check_storages(const mz_tensor *tensors, int n, const char *letters, bool outputs) {
    for (int i = 0; i < n; i++) {
        size_t row = 0;
        while (row + 1 < MZ_COUNT(storages) && storages[row].letter != *letters)
            row++;
        if (mz_present(&tensors[i]) && !(storages[row].dtypes & MZ_BIT(tensors[i].dtype)))
            return outputs ? storages[row].out : storages[row].in;
        letters += letters[1] != '\0';
    }
    return NULL;
}

const char *mz_storages_refusal(const mz_call *call, const char *in, const char *out) {
    const char *reason = check_storages(call->in, call->n_in, in, false);
    return reason != NULL ? reason : check_storages(call->out, call->n_out, out, true);
}

static bool padded(const mz_call *call) {
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i].storage.padded)
            return true;
    for (int i = 0; i < call->n_out; i++)
        if (call->out[i].storage.padded)
            return true;
    return false;
}

mz_padded mz_padded_of_layouts(mz_op op) {
    switch (op) {
    case MZ_OP_copy:
    case MZ_OP_inspect:
    case MZ_OP_histogram:
    case MZ_OP_rounding:
    case MZ_OP_grad_stats:
    case MZ_OP_refresh:
#define KIND(name, ...) case MZ_OP_##name:
#include "mezzo/optimizers.def"
#undef KIND
        return MZ_PADDED_ANY;
    default:
        return MZ_PADDED_NONE;
    }
}

void mz_call_over_padding(mz_call *call) {
    int64_t rows = call->in[0].shape.rank > 0 ? call->in[0].shape.dim[0] : 0;
    for (int i = 0; i < call->n_in; i++) {
        call->in[i].shape = mz_stored_shape(&call->in[i].shape, &call->in[i].storage);
        call->in[i].storage = (mz_storage){0};
    }
    for (int i = 0; i < call->n_out; i++) {
        call->out[i].shape = mz_stored_shape(&call->out[i].shape, &call->out[i].storage);
        call->out[i].storage = (mz_storage){0};
    }
    if (call->op == MZ_OP_embedding) // an id must not name a row of padding
        call->in[0].shape.dim[0] = rows;
}

const char *mz_prepare_kernel(mezzo_device *device, const mz_kernel *kernel, const mz_call *call, mz_prepared *out) {
    *out = (mz_prepared){0};
    if (padded(call) &&
        (device->backend->takes_padding == NULL || device->backend->takes_padding(call->op) == MZ_PADDED_NONE))
        return "a tensor is stored with padding";
    const char *reason = check_slots(call->op, false, call->in, call->n_in);
    if (reason == NULL)
        reason = check_slots(call->op, true, call->out, call->n_out);
    if (reason == NULL)
        reason = check_formats(device, kernel, call);
    if (reason == NULL)
        reason = kernel->prepare(device, call, out);
    if (reason != NULL)
        mz_prepared_free(out);
    else
        out->kernel = kernel;
    return reason;
}

void mz_prepared_free(mz_prepared *prepared) {
    if (prepared->state != NULL)
        (prepared->release != NULL ? prepared->release : mz_free)(prepared->state);
    *prepared = (mz_prepared){0};
}

mezzo_status mz_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    size_t n = 0;
    const mz_kernel *const *kernels = device->backend->kernels(device, call->op, &n);
    mz_text what = {0}, refusals = {0};
    mezzo_status status = MEZZO_OK;
    const char *before = ""; // reasons that kernels share are given once
    *out = (mz_prepared){0};
    for (size_t i = 0; i < n && out->kernel == NULL && status == MEZZO_OK; i++) {
        const char *reason = mz_prepare_kernel(device, kernels[i], call, out);
        if (reason == mz_out_of_memory)
            status = MEZZO_ERR_MEMORY;
        if (reason != NULL && strcmp(reason, before) != 0)
            mz_text_addf(&refusals, "%s%s: %s", refusals.len > 0 ? "; " : "", kernels[i]->name, reason);
        before = reason != NULL ? reason : before;
    }
    if (status == MEZZO_OK && (out->kernel == NULL || mz_log_enabled("dispatch")))
        describe_call(&what, call);
    if (status != MEZZO_OK || what.status != MEZZO_OK || refusals.status != MEZZO_OK)
        status = MEZZO_ERR_MEMORY;
    else if (out->kernel == NULL)
        status = mz_fail(MEZZO_ERR_UNSUPPORTED, "the %s backend has no kernel for %s: %s", device->backend->name,
                         what.data, refusals.len > 0 ? refusals.data : "none is listed");
    else if (what.len > 0)
        mz_log("dispatch", "%s: %s%s%s", what.data, out->kernel->name, refusals.len > 0 ? "; refused: " : "",
               refusals.len > 0 ? refusals.data : "");
    mz_text_free(&what);
    mz_text_free(&refusals);
    if (status != MEZZO_OK)
        mz_prepared_free(out);
    return status;
}
