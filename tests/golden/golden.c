#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "golden.h"

const char *golden_path(const char *name, char *buf, size_t size) {
    const char *tests = getenv("MEZZO_TESTS");
    snprintf(buf, size, "%s/golden/data/%s", tests != NULL ? tests : "tests", name);
    return buf;
}

json_t *golden_json(const char *name) {
    char path[4096];
    json_error_t error;
    json_t *root =
        json_load_file(golden_path(name, path, sizeof path), JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (root == NULL)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return root;
}

mz_safetensors *golden_tensors(const char *name) {
    char path[4096];
    mz_safetensors *file = NULL;
    must(mz_safetensors_open(golden_path(name, path, sizeof path), &file));
    return file;
}

golden_values golden_get(const mz_safetensors *file, const char *fmt, ...) {
    char name[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    const mz_safetensors_tensor *t = NULL;
    must(mz_safetensors_get(file, name, &t));
    golden_values v = {.count = t->count, .rank = (int)t->rank};
    memcpy(v.dim, t->shape, sizeof v.dim);
    v.at = calloc(t->count + 1, sizeof *v.at);
    assert_non_null(v.at);
    must(mz_safetensors_read(file, name, MEZZO_F64, t->rank, t->shape, v.at));
    return v;
}

void golden_free(golden_values *v) {
    free(v->at);
    *v = (golden_values){0};
}

double golden_max(const golden_values *v) {
    double m = 0;
    for (size_t i = 0; i < v->count; ++i)
        m = fmax(m, fabs(v->at[i]));
    return m;
}

float *golden_floats(const golden_values *v) {
    float *out = calloc(v->count + 1, sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < v->count; ++i)
        out[i] = (float)v->at[i];
    return out;
}

int32_t *golden_ints(const golden_values *v) {
    int32_t *out = calloc(v->count + 1, sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < v->count; ++i)
        out[i] = (int32_t)v->at[i];
    return out;
}

double golden_real(const json_t *value) {
    if (json_is_number(value))
        return json_number_value(value);
    const char *text = json_string_value(value);
    assert_non_null(text);
    return strtod(text, NULL); // "inf", "-inf", "nan"
}

double golden_number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (value == NULL)
        fail_msg("golden file: no key \"%s\"", key);
    return golden_real(value);
}

double golden_distance(const float *got, const golden_values *want) {
    double worst = 0;
    for (size_t i = 0; i < want->count; ++i) {
        double d = fabs((double)got[i] - want->at[i]);
        worst = isfinite(d) ? fmax(worst, d) : INFINITY;
    }
    return worst;
}

void golden_close(const char *what, const float *got, const golden_values *want, double absolute, double relative) {
    size_t at = 0, misses = 0;
    double worst = -1;
    for (size_t i = 0; i < want->count; ++i) {
        double over = fabs((double)got[i] - want->at[i]) - (absolute + relative * fabs(want->at[i]));
        if (over <= 0)
            continue;
        ++misses;
        if (!(over <= worst)) { // a NaN is the worst
            worst = over;
            at = i;
        }
    }
    if (misses > 0)
        fail_msg("%s: %zu of %zu values are off; at [%zu] got %.9g, want %.9g, allowed %.3g", what, misses, want->count,
                 at, (double)got[at], want->at[at], absolute + relative * fabs(want->at[at]));
}

void golden_would_notice(const char *what, const golden_values *want, double part, double absolute) {
    double size = golden_max(want);
    if (size > 0 && size * part <= absolute)
        fail_msg("%s: a tolerance of %.3g would not notice an error of %g of the largest value, %.3g", what, absolute,
                 part, size);
}
