// Any bytes as an .npz: refused with a message, or every array has the numbers that its shape says.
#include "data/arrays.h"
#include "folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_arrays arrays;
    volatile double sum = 0;
    fuzz_put("in.npz", data, size);
    if (mz_arrays_read(fuzz_path("in.npz"), &arrays) != MEZZO_OK) {
        fuzz_expect_message();
    } else if (arrays.count == 0) {
        __builtin_trap();
    }
    for (size_t i = 0; i < arrays.count; i++)
        for (int64_t k = 0; k < arrays.items[i].n * arrays.items[i].width; k++)
            sum = sum + mz_array_number(&arrays.items[i], k);
    mz_arrays_free(&arrays);
    return 0;
}
