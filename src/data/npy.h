// Maps NumPy's .npy files, versions 1 and 2: one array in C order, of f2, f4, f8, u1, b1, u2, i4 or i8, little-endian,
// without a copy. The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#ifndef MZ_DATA_NPY_H
#define MZ_DATA_NPY_H

#include "io/file.h"

enum { MZ_NPY_RANK = 8 };
typedef enum mz_npy_type { // floats first
    MZ_NPY_F2,
    MZ_NPY_F4,
    MZ_NPY_F8,
    MZ_NPY_U1,
    MZ_NPY_B1,
    MZ_NPY_U2,
    MZ_NPY_I4,
    MZ_NPY_I8
} mz_npy_type;

typedef struct mz_npy {
    mz_map map;
    mz_npy_type type;
    int rank;
    int64_t dim[MZ_NPY_RANK];
    int64_t count; // number of elements
    const unsigned char *data;
} mz_npy;

// Opens a file. FORMAT names the file and what is wrong: not a .npy, another version, type or order, a size that does
// not fit the shape. IO: it cannot be read.
mezzo_status mz_npy_open(const char *path, mz_npy *out);
// Parses bytes in memory, which are borrowed; it leaves out->map alone, and sets out->data only on success.
mezzo_status mz_npy_parse(const char *where, const void *bytes, size_t n, mz_npy *out);
mezzo_status mz_npy_end(mz_npy *npy, mezzo_status status); // closes it as mz_map_end does; a zeroed one is allowed
const char *mz_npy_type_name(mz_npy_type type);
bool mz_npy_is_integer(mz_npy_type type);
double mz_npy_number(const mz_npy *npy, int64_t i);   // element i; an I8 beyond 2^53 is rounded
int64_t mz_npy_integer(const mz_npy *npy, int64_t i); // for integer types

#endif
