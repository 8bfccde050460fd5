// Making trials: tensors with seeded contents, and the reference's answer.
#include <float.h>
#include <math.h>

#include "test.h"
#include "trial.h"

// Of the op's name, so that a new row of ops.def leaves the others' numbers as they are: FNV-1a.
static uint32_t seed_of(const char *name) {
    uint32_t hash = 2166136261u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

trial *trial_new(mz_op op) {
    trial *t = mz_alloc(1, sizeof *t);
    assert_non_null(t);
    t->op = op;
    t->numerics = (mz_numerics){MEZZO_F32, MEZZO_F32, MEZZO_F32};
    t->rng = (mz_rng_state){.seed = 1234, .step = 7 + (UINT64_C(3) << 32)};
    t->seed = seed_of(mz_op_table[op].name);
    for (int i = 0; i < MZ_MAX_IN; i++)
        t->in[i].t.shape.rank = t->out[i].t.shape.rank = -1;
    return t;
}

static void tensor_free(trial_tensor *tensor) {
    mz_free(tensor->stored);
    mz_free(tensor->after);
    mz_free(tensor->value);
    mz_free(tensor->bound);
}

void trial_free(trial *t) {
    for (int i = 0; i < MZ_MAX_IN; i++) {
        tensor_free(&t->in[i]);
        tensor_free(&t->out[i]);
    }
    mz_free(t);
}

int64_t trial_count(const trial_tensor *t) {
    return mz_shape_count(&t->t.shape);
}

static void tensor_set(trial_tensor *tensor, mezzo_dtype dtype, mz_shape shape) {
    tensor->t = (mz_tensor){.dtype = dtype, .shape = shape};
    tensor->bytes = (size_t)trial_count(tensor) * mezzo_dtype_size(dtype);
    tensor->value = mz_alloc((size_t)trial_count(tensor), sizeof(double));
    assert_non_null(tensor->value);
}

void trial_input(trial *t, int slot, mezzo_dtype dtype, mz_shape shape) {
    tensor_set(&t->in[slot], dtype, shape);
    t->n_in = slot >= t->n_in ? slot + 1 : t->n_in;
}

void trial_output(trial *t, int slot, mezzo_dtype dtype, mz_shape shape) {
    tensor_set(&t->out[slot], dtype, shape);
    t->out[slot].bound = mz_alloc((size_t)trial_count(&t->out[slot]), sizeof(double));
    assert_non_null(t->out[slot].bound);
    t->n_out = slot >= t->n_out ? slot + 1 : t->n_out;
}

void trial_store(trial_tensor *tensor) {
    size_t n = (size_t)trial_count(tensor);
    if (tensor->stored == NULL)
        tensor->stored = mz_alloc(tensor->bytes, 1);
    assert_non_null(tensor->stored);
    assert_int_equal(mezzo_convert(tensor->value, MEZZO_F64, tensor->stored, tensor->t.dtype, n), MEZZO_OK);
    assert_int_equal(mezzo_convert(tensor->stored, tensor->t.dtype, tensor->value, MEZZO_F64, n), MEZZO_OK);
}

static void fill_normal(trial_tensor *tensor, uint32_t seed, double deviation) {
    float z[4];
    for (int64_t i = 0; i < trial_count(tensor); i++) {
        if (i % 4 == 0) {
            uint32_t words[4];
            mz_philox((mz_philox_key){.seed = seed}, (uint64_t)i >> 2, words);
            mz_normal4(words, z);
        }
        tensor->value[i] = deviation * (double)z[i % 4];
    }
    trial_store(tensor);
}

void trial_normal(trial *t, int slot, double deviation) {
    fill_normal(&t->in[slot], t->seed++, deviation);
}

void trial_preset(trial *t, int slot, double deviation) {
    fill_normal(&t->out[slot], t->seed++, deviation);
}

void trial_integers(trial *t, int slot, int low, int high) {
    trial_tensor *tensor = &t->in[slot];
    for (int64_t i = 0; i < trial_count(tensor); i++) {
        uint32_t words[4];
        mz_philox((mz_philox_key){.seed = t->seed}, (uint64_t)i, words);
        tensor->value[i] = low + (double)(words[0] % (uint32_t)(high - low + 1));
    }
    t->seed++;
    trial_store(tensor);
}

void trial_parts(trial *t, int slot, int kind, double scale) {
    trial_tensor *tensor = &t->in[slot];
    for (int64_t i = 0; i < trial_count(tensor); i++) {
        uint32_t words[4];
        mz_philox((mz_philox_key){.seed = t->seed}, (uint64_t)i, words);
        tensor->value[i] =
            (kind == 0 ? 1 + 0x1p-8 - 0x1p-17 : 1 + 0x1p-11 - 0x1p-23) * ldexp(scale, -(int)(words[0] % 3));
    }
    t->seed++;
    trial_store(tensor);
}

void trial_largest(trial *t, int slot) {
    trial_tensor *tensor = &t->in[slot];
    for (int64_t i = 0; i < trial_count(tensor); i += 5)
        tensor->value[i] = copysign((double)FLT_MAX, tensor->value[i]);
    trial_store(tensor);
}

void trial_spoil(trial *t, int slot) {
    trial_tensor *in = &t->in[slot];
    int64_t n = trial_count(in);
    in->value[n / 2] = NAN;
    if (n > 4)
        in->value[n - 1] = INFINITY;
    trial_store(in);
    t->finite_only = true;
}

void trial_bytes(trial *t, int slot, const void *bytes, bool output) {
    trial_tensor *tensor = output ? &t->out[slot] : &t->in[slot];
    tensor->stored = mz_alloc(tensor->bytes, 1);
    assert_non_null(tensor->stored);
    memcpy(tensor->stored, bytes, tensor->bytes);
}

// --- the reference -------------------------------------------------------------------------------------------------
// Outputs are FP64, so that the result is not rounded; except where storage is part of what the op computes: a norm's
// `sum` and the flat FP32 buffers and blocks of the update.
static mezzo_dtype reference_dtype(const trial *t, int slot) {
    mezzo_dtype dtype = t->out[slot].t.dtype;
    bool as_stored = mz_op_table[t->op].kind == MZ_KIND_STATE || (t->op == MZ_OP_layernorm && slot == 3) ||
                     (t->op == MZ_OP_rmsnorm && slot == 2);
    return as_stored || dtype >= MEZZO_I64 ? dtype : MEZZO_F64;
}

void trial_reference(trial *t) {
    mezzo_device *ref;
    assert_int_equal(mezzo_device_open("ref", 1, &ref), MEZZO_OK);
    mz_call call = {.op = t->op, .attrs = t->attrs, .numerics = t->numerics, .n_in = t->n_in, .n_out = t->n_out};
    call.attrs.update = &t->update;
    call.rng = &t->rng;
    for (int i = 0; i < MZ_MAX_IN; i++) {
        call.in[i] = t->in[i].t;
        call.out[i] = t->out[i].t;
        if (mz_present(&call.in[i]))
            call.in[i].data = t->in[i].stored;
    }
    for (int i = 0; i < t->n_in; i++) { // listed as an input, and written
        if (!(t->op == MZ_OP_scaler_update && i == 0 && mz_present(&call.in[0])) &&
            !(mz_op_slot(t->op, false, i).is & MZ_SLOT_STATE))
            continue;
        mz_free(t->in[i].after);
        t->in[i].after = mz_alloc(t->in[i].bytes, 1);
        assert_non_null(t->in[i].after);
        memcpy(t->in[i].after, t->in[i].stored, t->in[i].bytes);
        call.in[i].data = t->in[i].after;
    }
    for (int i = 0; i < t->n_out; i++) {
        trial_tensor *out = &t->out[i];
        if (!mz_present(&out->t))
            continue;
        call.out[i].dtype = reference_dtype(t, i);
        size_t n = (size_t)trial_count(out);
        call.out[i].data = mz_alloc(n, mezzo_dtype_size(call.out[i].dtype));
        assert_non_null(call.out[i].data);
        if (out->stored != NULL)
            assert_int_equal(mezzo_convert(out->stored, out->t.dtype, call.out[i].data, call.out[i].dtype, n),
                             MEZZO_OK);
    }
    assert_int_equal(mz_run_once(ref, &call), MEZZO_OK);
    for (int i = 0; i < t->n_out; i++) {
        if (!mz_present(&call.out[i]))
            continue;
        assert_int_equal(mezzo_convert(call.out[i].data, call.out[i].dtype, t->out[i].value, MEZZO_F64,
                                       (size_t)trial_count(&t->out[i])),
                         MEZZO_OK);
        mz_free(call.out[i].data);
    }
    mezzo_device_close(ref);
}
