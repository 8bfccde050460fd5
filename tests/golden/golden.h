// What the golden tests share: the stored files, and comparisons that name what they compared.
#ifndef GOLDEN_H
#define GOLDEN_H

#include <jansson.h>

#include "base/base.h"
#include "io/safetensors.h"
#include "test.h"

#define UNIT_F32 0x1p-24 // relative error of one rounding to FP32
#define UNIT_F64 0x1p-53

json_t *golden_json(const char *name);            // tests/golden/data/NAME; json_decref when done
mz_safetensors *golden_tensors(const char *name); // mz_safetensors_close when done
const char *golden_path(const char *name, char *buf, size_t size);

typedef struct golden_values { // one tensor as doubles
    double *at;
    size_t count;
    int rank;
    int64_t dim[MZ_SAFETENSORS_MAX_RANK];
} golden_values;
// The tensor called by printf's rules; a missing one fails the test. Free with golden_free.
golden_values golden_get(const mz_safetensors *file, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void golden_free(golden_values *v);
double golden_max(const golden_values *v);    // largest magnitude
float *golden_floats(const golden_values *v); // free() it
int32_t *golden_ints(const golden_values *v); // free() it

double golden_number(const json_t *object, const char *key); // "inf", "-inf", "nan" too; a missing key fails the test
double golden_real(const json_t *value);

// |got[i] - want[i]| ≤ absolute + relative·|want[i]| for every i; says where it is worst. Non-finite values never pass.
void golden_close(const char *what, const float *got, const golden_values *want, double absolute, double relative);
// The largest |got[i] - want[i]|.
double golden_distance(const float *got, const golden_values *want);
// The other side of a tolerance: `want` off by `part` of itself must not pass.
void golden_would_notice(const char *what, const golden_values *want, double part, double absolute);

#endif
