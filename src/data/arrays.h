// Holds examples as arrays with names: those of an .npz archive, of .npy files, or made by the caller.
#ifndef MZ_DATA_ARRAYS_H
#define MZ_DATA_ARRAYS_H

#include "data/npy.h"

// The types of numbers. An input of floats takes U8 as brightness, where 255 is 1.
typedef enum mz_array_type { MZ_ARRAY_F32, MZ_ARRAY_I32, MZ_ARRAY_U8 } mz_array_type;
typedef struct mz_array {
    char *name;
    mz_array_type type;
    int rank; // of one example's shape
    int64_t dim[MZ_NPY_RANK];
    int64_t n, width; // number of examples, and of elements in each
    void *data;       // [n, width]
} mz_array;

// A list of arrays, which the caller zeroes first and frees.
typedef struct mz_arrays {
    mz_array *items;
    size_t count, cap;
} mz_arrays;
void mz_arrays_free(mz_arrays *arrays);
const mz_array *mz_arrays_find(const mz_arrays *arrays, const char *name); // NULL: there is none of this name
size_t mz_array_size(const mz_array *array);                               // bytes of one element
double mz_array_number(const mz_array *array, int64_t i);                  // element i

// Adds an array, which then owns `data`, after an error, too; with NULL it allocates zeros.
mezzo_status mz_arrays_add(mz_arrays *arrays, const char *name, mz_array_type type, int64_t n, int rank,
                           const int64_t *dim, void *data, mz_array **out);
// Adds a .npy file; F8 becomes F32, and I8 becomes I32. INVALID names a number that is not finite or does not fit into
// 32 bits, or says that the array has no dimension.
mezzo_status mz_arrays_add_npy(mz_arrays *arrays, const char *name, const char *path);
// Reads every array of an .npz archive. Errors as mz_zip_open and mz_arrays_add_npy.
mezzo_status mz_arrays_read(const char *path, mz_arrays *out);

#endif
