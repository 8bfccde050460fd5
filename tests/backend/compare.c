// Running a trial on every kernel of every device, and judging the results.
#include <math.h>
#include <stdlib.h>

#include "device.h"
#include "test.h"
#include "trial.h"

enum { GUARD = 256, GUARD_BYTE = 0xA5, POISON_BYTE = 0xFF, MAX_DEVICES = 8 }; // 0xFF…: NaN in every float format

// A device under test: the same one with 1, 2 and 5 threads (GPUs: once).
typedef struct subject {
    char name[32];
    mezzo_device *device[3];
    bool is_reference;
    const mz_kernel *const *kernels; // instead of the device's; NULL
    size_t n_kernels;
} subject;
static subject subjects[MAX_DEVICES];
static int n_subjects;
static int64_t runs[MZ_OP_COUNT], padded_runs[MZ_OP_COUNT], refused;
static double preparing;      // seconds: a library may compile kernels then
static const double SLOW = 1; // seconds of a trial that is named: where a test's time went

// --- devices -------------------------------------------------------------------------------------------------------
void devices_open(void) {
    static const char *const levels[] = {"ref", "avx2", "avx512", "amx"}; // a lower one first
    const bool host = strncmp(test_device(), "cuda", 4) != 0;
    for (size_t i = 0; i < MZ_COUNT(levels) && host; i++) {
        subject *s = &subjects[n_subjects];
        setenv("MEZZO_ISA", levels[i], 1);
        if (mezzo_device_open("cpu", 1, &s->device[0]) != MEZZO_OK) {
            print_message("cpu/%s: %s\n", levels[i], mezzo_error_message());
            continue;
        }
        assert_int_equal(mezzo_device_open("cpu", 2, &s->device[1]), MEZZO_OK);
        assert_int_equal(mezzo_device_open("cpu", 5, &s->device[2]), MEZZO_OK);
        snprintf(s->name, sizeof s->name, "cpu/%s", levels[i]);
        n_subjects++;
    }
    unsetenv("MEZZO_ISA");
    // The reference itself, rounding to storage: that shows the harness and the bounds right where nothing else can be
    // wrong.
    if (host) {
        assert_int_equal(mezzo_device_open("ref", 1, &subjects[n_subjects].device[0]), MEZZO_OK);
        snprintf(subjects[n_subjects].name, sizeof subjects[0].name, "ref");
        subjects[n_subjects].is_reference = true;
        n_subjects++;
    }
    subject *s = &subjects[n_subjects];
    if (!host) {
        assert_int_equal(mezzo_device_open(test_device(), 0, &s->device[0]), MEZZO_OK);
        snprintf(s->name, sizeof s->name, "cuda");
        n_subjects++;
    }
}

void devices_open_with(const mz_kernel *const *kernels, size_t n) {
    subject *s = &subjects[n_subjects++];
    *s = (subject){.name = "kernels by hand", .kernels = kernels, .n_kernels = n};
    for (int i = 0; i < 2; i++)
        assert_int_equal(mezzo_device_open("cpu", i + 1, &s->device[i]), MEZZO_OK);
}

void devices_close(void) {
    for (int i = 0; i < n_subjects; i++)
        for (size_t j = 0; j < MZ_COUNT(subjects[i].device); j++)
            mezzo_device_close(subjects[i].device[j]);
    n_subjects = 0;
}

void devices_report(void) {
    int64_t total = 0, padded = 0;
    for (int op = 0; op < MZ_OP_COUNT; op++) {
        total += runs[op];
        padded += padded_runs[op];
    }
    print_message("%d devices, %lld kernel runs, %lld over padded tensors, %lld refusals by kernels further up the "
                  "lists; %.1f s of preparing\n",
                  n_subjects, (long long)total, (long long)padded, (long long)refused, preparing);
}

bool devices_have(const char *name) {
    for (int i = 0; i < n_subjects; i++)
        if (strcmp(subjects[i].name, name) == 0)
            return true;
    return false;
}

bool devices_serve(mz_op op) {
    size_t n = 0;
    for (int i = 0; i < n_subjects && n == 0; i++)
        subjects[i].device[0]->backend->kernels(subjects[i].device[0], op, &n);
    return n > 0;
}

int64_t trial_runs(mz_op op) {
    return runs[op];
}

// --- one run -------------------------------------------------------------------------------------------------------
typedef struct result {
    unsigned char *bytes[MZ_MAX_OUT]; // of each output
} result;

static void result_free(result *r) {
    for (int i = 0; i < MZ_MAX_OUT; i++)
        mz_free(r->bytes[i]);
}

// Device memory with guards on both sides, filled from `contents` or with poison. Returns the address between the
// guards.
static char *guarded_alloc(mezzo_device *device, size_t bytes, const void *contents) {
    void *block;
    size_t room = mz_align_up(bytes, GUARD) + 2 * GUARD;
    unsigned char *host = mz_alloc(room, 1);
    assert_non_null(host);
    memset(host, GUARD_BYTE, room);
    if (contents != NULL)
        memcpy(host + GUARD, contents, bytes);
    else
        memset(host + GUARD, POISON_BYTE, bytes);
    assert_int_equal(device->backend->alloc(device, room, &block), MEZZO_OK);
    assert_int_equal(device->backend->write(device, block, host, room), MEZZO_OK);
    mz_free(host);
    return (char *)block + GUARD;
}

// Frees it, having checked the guards; the contents go to `out` where not NULL. False when a guard was written to.
static bool guarded_release(mezzo_device *device, char *data, size_t bytes, void *out) {
    size_t room = mz_align_up(bytes, GUARD) + 2 * GUARD;
    unsigned char *host = mz_alloc(room, 1);
    assert_non_null(host);
    assert_int_equal(device->backend->read(device, host, data - GUARD, room), MEZZO_OK);
    device->backend->release(device, data - GUARD);
    bool intact = true;
    for (size_t i = 0; i < GUARD; i++)
        intact = intact && host[i] == GUARD_BYTE;
    for (size_t i = GUARD + bytes; i < room; i++)
        intact = intact && host[i] == GUARD_BYTE;
    if (out != NULL)
        memcpy(out, host + GUARD, bytes);
    mz_free(host);
    return intact;
}

static bool can_run_in_place(const trial *t) {
    int slot = mz_op_reuses(t->op);
    const trial_tensor *out = &t->out[mz_op_replaces(t->op)];
    return slot >= 0 && mz_present(&t->in[slot].t) && mz_present(&out->t) && t->in[slot].bytes == out->bytes &&
           trial_count(&t->in[slot]) == trial_count(out);
}

static void describe(const trial *t, char *buffer, size_t size) {
    int n = snprintf(buffer, size, "%s", mz_op_table[t->op].name);
    for (int i = 0; i < t->n_in + t->n_out && n > 0 && (size_t)n < size; i++) {
        const mz_tensor *tensor = i < t->n_in ? &t->in[i].t : &t->out[i - t->n_in].t;
        char shape[64] = "absent";
        bool present = mz_present(tensor);
        n += snprintf(buffer + n, size - (size_t)n, "%s%s %s",
                      i == t->n_in ? " -> "
                      : i > 0      ? ", "
                                   : " ",
                      present ? mz_shape_text(&tensor->shape, shape, sizeof shape) : shape,
                      present ? mezzo_dtype_name(tensor->dtype) : "");
    }
}

// --- padding -------------------------------------------------------------------------------------------------------
// How a run stores the last dimensions that ops.def gives an axis: each run of elements, a head or a row, with room for
// the next multiple of `multiple` or for `more` elements more. Both 0: without padding.
typedef struct padding {
    int multiple, more;
} padding;

// The storage of input `slot`, or of output `slot - n_in`.
static mz_storage storage_of(const trial *t, int slot, padding pad) {
    const mz_tensor *x = slot < t->n_in ? &t->in[slot].t : &t->out[slot - t->n_in].t;
    const char *word = mz_op_table[t->op].axes;
    mz_storage s = {0};
    int rank = x->shape.rank;
    if ((pad.multiple == 0 && pad.more == 0) || !mz_present(x) || rank < 1)
        return s;
    const char *outputs = strchr(word, '>');
    word = slot < t->n_in ? word : outputs + 2;
    for (int i = slot < t->n_in ? slot : slot - t->n_in; i > 0 && strchr(word, ' ') != NULL; i--)
        word = strchr(word, ' ') + 1;
    char axis = word[strcspn(word, " >") - 1];
    if (axis != 'c' && axis != 'v' && axis != 'h')
        return s;
    int64_t width = x->shape.dim[rank - 1], inner = width;
    if (axis == 'h') { // y and dy have attrs.heads of them
        const mz_tensor *y = t->op == MZ_OP_attention ? &t->out[0].t : &t->in[0].t;
        inner = y->shape.dim[2] / t->attrs.heads;
    }
    int64_t pitch = pad.multiple > 0 ? (inner / pad.multiple + 1) * pad.multiple : inner + pad.more;
    s.padded = true;
    s.inner[rank - 1] = (int32_t)inner;
    s.pitch[rank - 1] = (int32_t)pitch;
    return s;
}

// Elements without padding to where `x` stores them, with zeros between; NULL for nothing, and for no change.
static unsigned char *spread(const mz_tensor *x, const unsigned char *plain) {
    if (!x->storage.padded || plain == NULL)
        return NULL;
    size_t size = mezzo_dtype_size(x->dtype);
    unsigned char *out = mz_alloc(mz_tensor_bytes_stored(x), 1);
    assert_non_null(out);
    for (int64_t i = 0; i < mz_shape_count(&x->shape); i++)
        memcpy(out + (size_t)mz_tensor_index(x, i) * size, plain + (size_t)i * size, size);
    return out;
}

// And back, in place; false where padding is not zero.
static bool gather(const mz_tensor *x, unsigned char *stored) {
    size_t size = mezzo_dtype_size(x->dtype), next = 0, end = mz_tensor_bytes_stored(x);
    int64_t n = mz_shape_count(&x->shape);
    bool zero = true;
    for (int64_t i = 0; i <= n && x->storage.padded; i++) {
        size_t at = i < n ? (size_t)mz_tensor_index(x, i) * size : end;
        for (; next < at; next++)
            zero = zero && stored[next] == 0;
        if (i < n)
            memmove(stored + (size_t)i * size, stored + at, size);
        next = at + size;
    }
    return zero;
}

static void *tensor_to_device(mezzo_device *device, const mz_tensor *x, const unsigned char *contents) {
    unsigned char *padded = spread(x, contents);
    void *data = guarded_alloc(device, mz_tensor_bytes_stored(x), padded != NULL ? padded : contents);
    mz_free(padded);
    return data;
}

static void tensors_to_device(const trial *t, mezzo_device *device, bool in_place, padding pad, mz_call *call) {
    for (int i = 0; i < MZ_MAX_IN; i++) {
        call->in[i] = t->in[i].t;
        call->out[i] = t->out[i].t;
        if (i < t->n_in)
            call->in[i].storage = storage_of(t, i, pad);
        if (i < t->n_out)
            call->out[i].storage = storage_of(t, t->n_in + i, pad);
        if (i == 1 && t->one_operand)
            call->in[i].data = call->in[0].data;
        else if (mz_present(&t->in[i].t))
            call->in[i].data = tensor_to_device(device, &call->in[i], t->in[i].stored);
    }
    for (int i = 0; i < t->n_out; i++)
        if (mz_present(&t->out[i].t))
            call->out[i].data = in_place && i == mz_op_replaces(t->op)
                                    ? call->in[mz_op_reuses(t->op)].data
                                    : tensor_to_device(device, &call->out[i], t->out[i].stored);
}

static const char *prepare(mezzo_device *device, const mz_kernel *kernel, const mz_call *call, mz_prepared *out) {
    const double from = mz_seconds();
    const char *reason = mz_prepare_kernel(device, kernel, call, out);
    preparing += mz_seconds() - from;
    return reason;
}

// As programs do: before any tensor has memory.
static void prepare_unbound(mezzo_device *device, const mz_kernel *kernel, const mz_call *call, mz_prepared *out) {
    mz_call unbound = *call;
    for (int i = 0; i < MZ_MAX_IN; i++)
        unbound.in[i].data = unbound.out[i].data = NULL;
    unbound.rng = NULL;
    const char *reason = prepare(device, kernel, &unbound, out);
    if (reason != NULL)
        fail_msg("%s: refuses what it took before: %s", kernel->name, reason);
}

static result run_kernel(const trial *t, mezzo_device *device, const mz_kernel *kernel, bool in_place, padding pad) {
    mz_call call = {.op = t->op, .attrs = t->attrs, .numerics = t->numerics, .n_in = t->n_in, .n_out = t->n_out};
    call.attrs.update = &t->update;
    tensors_to_device(t, device, in_place, pad, &call);
    char *rng = guarded_alloc(device, sizeof t->rng, &t->rng);
    call.rng = (const mz_rng_state *)(const void *)rng;
    mz_prepared prepared;
    prepare_unbound(device, kernel, &call, &prepared);
    size_t needed = prepared.workspace;
    char *workspace = guarded_alloc(device, needed, NULL);
    char what[512];
    describe(t, what, sizeof what);
    mezzo_status status = mz_run(device, &prepared, &call, workspace);
    mz_prepared_free(&prepared);
    if (status != MEZZO_OK)
        fail_msg("%s: %s failed: %s", what, kernel->name, mezzo_error_message());

    result r = {{NULL}};
    bool intact = guarded_release(device, workspace, needed, NULL);
    intact = guarded_release(device, rng, sizeof t->rng, NULL) && intact;
    if (!intact)
        fail_msg("%s: %s wrote past its workspace of %zu bytes", what, kernel->name, needed);
    for (int i = 0; i < t->n_out; i++) {
        if (!mz_present(&t->out[i].t))
            continue;
        size_t bytes = mz_tensor_bytes_stored(&call.out[i]);
        r.bytes[i] = mz_alloc(bytes + 1, 1);
        assert_non_null(r.bytes[i]);
        if (in_place && i == mz_op_replaces(t->op))
            assert_int_equal(device->backend->read(device, r.bytes[i], call.out[i].data, bytes), MEZZO_OK);
        else if (!guarded_release(device, call.out[i].data, bytes, r.bytes[i]))
            fail_msg("%s: %s wrote past output %d", what, kernel->name, i);
        if (!gather(&call.out[i], r.bytes[i]))
            fail_msg("%s: %s left padding of output %d that is not zero", what, kernel->name, i);
    }
    for (int i = 0; i < t->n_in; i++) {
        if (!mz_present(&t->in[i].t) || (i == 1 && t->one_operand))
            continue;
        size_t bytes = mz_tensor_bytes_stored(&call.in[i]);
        unsigned char *after = mz_alloc(bytes + 1, 1);
        assert_non_null(after);
        if (!guarded_release(device, call.in[i].data, bytes, after))
            fail_msg("%s: %s wrote past input %d", what, kernel->name, i);
        const unsigned char *expected = t->in[i].after != NULL ? t->in[i].after : t->in[i].stored;
        bool overwritten = in_place && i == mz_op_reuses(t->op);
        if (!gather(&call.in[i], after) && !overwritten)
            fail_msg("%s: %s wrote into padding of input %d", what, kernel->name, i);
        if (!overwritten && memcmp(after, expected, t->in[i].bytes) != 0)
            fail_msg("%s: %s left wrong bytes in input %d", what, kernel->name, i);
        mz_free(after);
    }
    return r;
}

// --- judging -------------------------------------------------------------------------------------------------------
// What a stored result may differ by: the bound, and storage's own rounding (relative, or half of its smallest
// subnormal).
static double tolerance(const trial_tensor *out, int64_t i) {
    static const double smallest[] = {
        [MEZZO_F64] = 0x1p-1074, [MEZZO_F32] = 0x1p-149,  [MEZZO_TF32] = 0x1p-136, [MEZZO_BF16] = 0x1p-133,
        [MEZZO_F16] = 0x1p-24,   [MEZZO_F8E4M3] = 0x1p-9, [MEZZO_F8E5M2] = 0x1p-16};
    double u = unit_roundoff(out->t.dtype);
    return out->bound[i] * (1 + u) + u * fabs(out->value[i]) + smallest[out->t.dtype] / 2;
}

static bool acceptable(const trial *t, const trial_tensor *out, int64_t i, double got) {
    if (t->exact)
        return got == mezzo_round_to(out->value[i], out->t.dtype) || (isnan(got) && isnan(out->value[i]));
    // A tile of attention multiplies what the causal mask hides by 0, and NaN·0 is NaN: there a NaN may spread within
    // its tile.
    bool may_spread = t->op == MZ_OP_attention || t->op == MZ_OP_attention_bwd || t->op == MZ_OP_attention_masked ||
                      t->op == MZ_OP_attention_masked_bwd;
    if (t->finite_only)
        return isfinite(out->value[i]) ? may_spread || isfinite(got) : !isfinite(got);
    return fabs(got - out->value[i]) <= tolerance(out, i);
}

// Of a symmetric result one half is the other one, bit for bit, where a kernel says so by its name.
static void judge_symmetry(const trial *t, const double *got, const char *kernel) {
    const int64_t side = t->out[0].t.shape.dim[2];
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        const int64_t row = i / side % side, col = i % side, other = i + (col - row) * (side - 1);
        if (memcmp(&got[i], &got[other], sizeof got[i]) != 0)
            fail_msg("%s: element %lld is %.9g, and its mirror image %.9g", kernel, (long long)i, got[i], got[other]);
    }
}

static void judge_floats(const trial *t, int slot, const unsigned char *bytes, const char *kernel, const char *device) {
    const trial_tensor *out = &t->out[slot];
    int64_t n = trial_count(out), wrong = 0, first = -1;
    double *got = mz_alloc((size_t)n, sizeof *got);
    assert_non_null(got);
    assert_int_equal(mezzo_convert(bytes, out->t.dtype, got, MEZZO_F64, (size_t)n), MEZZO_OK);
    for (int64_t i = 0; i < n; i++)
        if (!acceptable(t, out, i, got[i])) {
            first = wrong == 0 ? i : first;
            wrong++;
        }
    if (wrong > 0) {
        char what[512];
        describe(t, what, sizeof what);
        fail_msg("%s: %s on %s: output %d: %lld of %lld elements wrong, the first at %lld: %.9g, should be %.9g ± %.3g",
                 what, kernel, device, slot, (long long)wrong, (long long)n, (long long)first, got[first],
                 out->value[first], t->exact ? 0 : tolerance(out, first));
    }
    if (t->attrs.symmetric && strstr(kernel, "symmetric") != NULL)
        judge_symmetry(t, got, kernel);
    mz_free(got);
}

static void judge(const trial *t, const result *r, const char *kernel, const char *device) {
    char what[512];
    describe(t, what, sizeof what);
    for (int slot = 0; slot < t->n_out; slot++) {
        const trial_tensor *out = &t->out[slot];
        if (!mz_present(&out->t))
            continue;
        if (out->t.dtype < MEZZO_I64) {
            judge_floats(t, slot, r->bytes[slot], kernel, device);
            continue;
        }
        // The reference's integers and bytes are in `value`; they are exact there.
        unsigned char *want = mz_alloc(out->bytes + 1, 1);
        assert_non_null(want);
        assert_int_equal(mezzo_convert(out->value, MEZZO_F64, want, out->t.dtype, (size_t)trial_count(out)), MEZZO_OK);
        const char *wrong = t->compare_bytes != NULL                        ? t->compare_bytes(t, slot, r->bytes, want)
                            : memcmp(r->bytes[slot], want, out->bytes) != 0 ? "bytes differ"
                                                                            : NULL;
        if (wrong != NULL)
            fail_msg("%s: %s on %s: output %d: %s", what, kernel, device, slot, wrong);
        mz_free(want);
    }
}

static void expect_same_bits(const trial *t, const result *a, const result *b, const char *kernel, const char *which) {
    for (int i = 0; i < t->n_out; i++)
        if (a->bytes[i] != NULL && memcmp(a->bytes[i], b->bytes[i], t->out[i].bytes) != 0) {
            char what[512];
            describe(t, what, sizeof what);
            fail_msg("%s: %s: output %d: bits differ %s", what, kernel, i, which);
        }
}

// For the second run: with 2 threads where the first one has 1.
static mezzo_device *another(const subject *s) {
    return s->device[s->device[1] != NULL];
}

static void check_kernel(const trial *t, const subject *s, const mz_kernel *kernel) {
    const padding plain = {0};
    result one = run_kernel(t, s->device[0], kernel, false, plain), again;
    judge(t, &one, kernel->name, s->name);
    runs[t->op]++;
    if (!s->is_reference) { // it is slow, has one thread and gave the expected result already
        again = run_kernel(t, another(s), kernel, false, plain);
        expect_same_bits(t, &one, &again, kernel->name, "between two runs, on CPUs with 1 and 2 threads");
        result_free(&again);
    }
    if (t->odd_threads && s->device[2] != NULL) {
        again = run_kernel(t, s->device[2], kernel, false, plain);
        expect_same_bits(t, &one, &again, kernel->name, "between 1 and 5 threads");
        result_free(&again);
    }
    if (can_run_in_place(t)) {
        result in_place = run_kernel(t, s->device[0], kernel, true, plain);
        expect_same_bits(t, &one, &in_place, kernel->name, "in place");
        result_free(&in_place);
    }
    result_free(&one);
}

// The same trial with tensors in padded storage, for kernels that know it: as right, padding zero, twice the same bits,
// also in place. Where the reference is not finite, padding need not be.
static void check_padded(const trial *t, const subject *s, const mz_kernel *kernel, padding pad) {
    mz_call call = {.op = t->op, .attrs = t->attrs, .numerics = t->numerics, .n_in = t->n_in, .n_out = t->n_out};
    for (int i = 0; i < MZ_MAX_IN; i++) {
        call.in[i] = t->in[i].t;
        call.out[i] = t->out[i].t;
        if (i < t->n_in)
            call.in[i].storage = storage_of(t, i, pad);
        if (i < t->n_out)
            call.out[i].storage = storage_of(t, t->n_in + i, pad);
    }
    mz_prepared prepared;
    const char *reason = prepare(s->device[0], kernel, &call, &prepared);
    mz_prepared_free(&prepared);
    if (reason != NULL) {
        refused++;
        return;
    }
    result one = run_kernel(t, s->device[0], kernel, false, pad), again = run_kernel(t, another(s), kernel, false, pad);
    judge(t, &one, kernel->name, s->name);
    expect_same_bits(t, &one, &again, kernel->name, "between two runs over padded tensors");
    padded_runs[t->op]++;
    result_free(&again);
    if (can_run_in_place(t)) {
        result in_place = run_kernel(t, s->device[0], kernel, true, pad);
        expect_same_bits(t, &one, &in_place, kernel->name, "in place over padded tensors");
        result_free(&in_place);
    }
    result_free(&one);
}

static void check_padding(const trial *t, const subject *s, const mz_kernel *kernel) {
    mz_padded (*takes)(mz_op) = s->device[0]->backend->takes_padding;
    mz_padded padded = takes != NULL && mz_op_table[t->op].axes != NULL ? takes(t->op) : MZ_PADDED_NONE;
    if ((padded != MZ_PADDED_ROWS && padded != MZ_PADDED_AXES) || t->finite_only)
        return;
    check_padded(t, s, kernel, (padding){.multiple = 8});
    if (trial_count(&t->in[0]) <= 4096)
        check_padded(t, s, kernel, (padding){.more = 3});
}

// The kernels that a trial has run on the levels so far.
typedef struct ran_kernels {
    const mz_kernel *kernel[64];
    size_t n;
} ran_kernels;

static bool has_run(const ran_kernels *ran, const mz_kernel *kernel) {
    for (size_t i = 0; i < ran->n; i++)
        if (ran->kernel[i] == kernel)
            return true;
    return false;
}

// Runs the kernel that the device takes, and those further down its list that no lower level has run: a level lists the
// kernels of all lower ones too, and they are the same code there.
static void check_subject(const trial *t, const subject *s, ran_kernels *ran) {
    mz_call call = {.op = t->op, .attrs = t->attrs, .numerics = t->numerics, .n_in = t->n_in, .n_out = t->n_out};
    call.attrs.update = &t->update;
    for (int i = 0; i < MZ_MAX_IN; i++) {
        call.in[i] = t->in[i].t;
        call.out[i] = t->out[i].t;
    }
    size_t n = 0;
    bool taken = false;
    const mz_kernel *const *kernels = s->device[0]->backend->kernels(s->device[0], t->op, &n);
    if (s->kernels != NULL) {
        kernels = s->kernels;
        n = s->n_kernels;
    }
    for (size_t k = 0; k < n; k++) {
        if (taken && has_run(ran, kernels[k]))
            continue;
        mz_prepared prepared;
        check_padding(t, s, kernels[k]);
        const char *reason = prepare(s->device[0], kernels[k], &call, &prepared);
        mz_prepared_free(&prepared);
        if (reason != NULL) {
            refused++;
            continue;
        }
        check_kernel(t, s, kernels[k]);
        taken = true;
        assert_true(ran->n < MZ_COUNT(ran->kernel));
        ran->kernel[ran->n++] = kernels[k];
    }
    if (!taken && !t->optional && s->kernels == NULL) {
        mz_prepared none;
        assert_int_equal(mz_prepare(s->device[0], &call, &none), MEZZO_ERR_UNSUPPORTED);
        fail_msg("%s: %s", s->name, mezzo_error_message());
    }
}

// --- mutations -----------------------------------------------------------------------------------------------------
static bool seen(const trial *t, const double *const *mutated) {
    for (int slot = 0; slot < t->n_out; slot++) {
        const trial_tensor *out = &t->out[slot];
        for (int64_t i = 0; mutated[slot] != NULL && i < trial_count(out); i++)
            if (!acceptable(t, out, i, mezzo_round_to(mutated[slot][i], out->t.dtype)))
                return true;
    }
    return false;
}

static double coarsest(const trial *t) {
    double u = fmax(unit_roundoff(t->numerics.compute), t->op == MZ_OP_linear ? unit_roundoff(t->attrs.via) : 0);
    for (int i = 0; i < t->n_out; i++)
        if (mz_present(&t->out[i].t) && t->out[i].t.dtype < MEZZO_I64)
            u = fmax(u, unit_roundoff(t->out[i].t.dtype));
    return u;
}

// A result that is 32 of the coarsest format's roundings off, or 1%, must be outside the bound somewhere.
static void mutate_scale(trial *t) {
    double factor = 1 + fmax(0.01, 32 * coarsest(t));
    const double *mutated[MZ_MAX_OUT] = {NULL};
    for (int i = 0; i < t->n_out; i++) {
        if (!mz_present(&t->out[i].t) || t->out[i].t.dtype >= MEZZO_I64)
            continue;
        double *scaled = mz_alloc((size_t)trial_count(&t->out[i]), sizeof *scaled);
        assert_non_null(scaled);
        for (int64_t k = 0; k < trial_count(&t->out[i]); k++)
            scaled[k] = t->out[i].value[k] * factor;
        mutated[i] = scaled;
        const double *alone[MZ_MAX_OUT] = {NULL};
        alone[i] = scaled;
        if (!seen(t, alone)) {
            char what[512];
            describe(t, what, sizeof what);
            fail_msg("%s: output %d multiplied by %g is within the bound: it proves nothing", what, i, factor);
        }
    }
    for (int i = 0; i < MZ_MAX_OUT; i++)
        mz_free((void *)(uintptr_t)mutated[i]);
}

// The element that follows element `last` in order of falling magnitude (equal ones by index); the first when last is
// -1; -1 at the end.
static int64_t next_largest(const trial_tensor *in, int64_t last) {
    int64_t at = -1;
    double limit = last < 0 ? INFINITY : fabs(in->value[last]);
    for (int64_t i = 0; i < trial_count(in); i++) {
        double size = fabs(in->value[i]);
        bool later = size < limit || (size == limit && i > last);
        if (later && (at < 0 || size > fabs(in->value[at])))
            at = i;
    }
    return at;
}

// True when the result without element `at` of an input is outside the bound.
static bool term_matters(trial *t, int slot, int64_t at) {
    trial_tensor *in = &t->in[slot];
    double *truth[MZ_MAX_OUT] = {NULL}, kept = in->value[at];
    const double *mutated[MZ_MAX_OUT] = {NULL};
    for (int i = 0; i < t->n_out; i++) {
        truth[i] = t->out[i].value;
        if (mz_present(&t->out[i].t)) {
            t->out[i].value = mz_alloc((size_t)trial_count(&t->out[i]), sizeof(double));
            assert_non_null(t->out[i].value);
        }
    }
    in->value[at] = 0;
    trial_store(in);
    trial_reference(t);
    for (int i = 0; i < t->n_out; i++) {
        mutated[i] = t->out[i].t.dtype < MEZZO_I64 ? t->out[i].value : NULL;
        double *swap = t->out[i].value;
        t->out[i].value = truth[i];
        truth[i] = swap;
    }
    in->value[at] = kept;
    trial_store(in);
    bool matters = seen(t, mutated);
    for (int i = 0; i < t->n_out; i++)
        mz_free(truth[i]);
    return matters;
}

// One term left out of any input must be outside the bound somewhere. Eight terms are tried, from the largest: a term
// may be one that dropout or a ReLU leaves out too.
static void mutate_terms(trial *t) {
    for (int slot = 0; slot < t->n_in; slot++) {
        const trial_tensor *in = &t->in[slot];
        if (!mz_present(&in->t) || in->t.dtype >= MEZZO_I64)
            continue;
        bool found = false;
        int64_t at = -1;
        for (int attempt = 0; attempt < 8 && !found; attempt++) {
            at = next_largest(in, at);
            if (at < 0 || in->value[at] == 0)
                break;
            found = term_matters(t, slot, at);
        }
        if (!found) {
            char what[512];
            describe(t, what, sizeof what);
            fail_msg("%s: leaving out a term of input %d is within the bound: it proves nothing", what, slot);
        }
    }
}

int64_t trial_limit = 0;

static bool is_beyond_limit(const trial *t) {
    bool beyond = false;
    for (int i = 0; i < MZ_MAX_IN && trial_limit > 0; i++)
        beyond = beyond || (mz_present(&t->in[i].t) && trial_count(&t->in[i]) > trial_limit) ||
                 (mz_present(&t->out[i].t) && trial_count(&t->out[i]) > trial_limit);
    return beyond;
}

void trial_check(trial *t) {
    if (is_beyond_limit(t))
        return;
    trial_reference(t);
    if (!t->exact && !t->finite_only)
        trial_bounds(t);
    ran_kernels ran = {.n = 0};
    for (int i = 0; i < n_subjects; i++)
        check_subject(t, &subjects[i], &ran);
    const bool by_hand = n_subjects > 0 && subjects[0].kernels != NULL; // test_kernels judges these bounds
    if (!by_hand && !t->skip_mutations && !t->finite_only && mz_op_table[t->op].kind != MZ_KIND_STATE) {
        mutate_scale(t);
        if (!t->skip_terms)
            mutate_terms(t);
    }
}

void trial_finish(trial *t) {
    const double from = mz_seconds(), prepared = preparing;
    trial_check(t);
    if (mz_seconds() - from > SLOW) {
        char what[512];
        describe(t, what, sizeof what);
        print_message("%.1f s, %.1f of preparing: %s\n", mz_seconds() - from, preparing - prepared, what);
    }
    trial_free(t);
}
