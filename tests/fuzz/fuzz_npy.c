// Any bytes as a .npy: refused with a message, or every element can be read.
#include "data/npy.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_npy npy = {0};
    volatile double sum = 0;
    if (mz_npy_parse("input", data, size, &npy) != MEZZO_OK) {
        if (npy.data != NULL || mezzo_error_message()[0] == '\0')
            __builtin_trap();
        return 0;
    }
    if (npy.rank < 0 || npy.rank > MZ_NPY_RANK || npy.count < 0 || npy.data < data || npy.data > data + size)
        __builtin_trap();
    for (int64_t i = 0; i < npy.count; i++)
        sum = sum + mz_npy_number(&npy, i);
    return 0;
}
