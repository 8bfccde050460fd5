// Any bytes as a safetensors file: refused with a message, or every tensor lies inside the bytes and can be read.
#include "base/base.h"
#include "io/safetensors.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_safetensors *file;
    mezzo_status status = mz_safetensors_parse("input", data, size, &file);
    if (status != MEZZO_OK) {
        if (file != NULL || mezzo_error_message()[0] == '\0' || strchr(mezzo_error_message(), '\n'))
            __builtin_trap();
        return 0;
    }
    size_t bytes = 0;
    for (size_t i = 0; i < mz_safetensors_count(file); i++) {
        const mz_safetensors_tensor *tensor = mz_safetensors_at(file, i);
        const uint8_t *start = tensor->data;
        if (start < data || tensor->bytes > (size_t)(data + size - start) ||
            mz_safetensors_find(file, tensor->name) != tensor)
            __builtin_trap();
        bytes += tensor->bytes;
        // Conversion reads every element, whatever its alignment.
        float *values = mz_alloc(tensor->count + 1, sizeof *values);
        if (values)
            mz_safetensors_read(file, tensor->name, MEZZO_F32, tensor->rank, tensor->shape, values);
        mz_free(values);
    }
    if (bytes > size)
        __builtin_trap();
    mz_safetensors_meta_get(file, "format");
    mz_safetensors_close(file);
    return 0;
}
