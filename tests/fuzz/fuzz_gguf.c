// A stranger's GGUF file.
#include "import.h"
#include "io/gguf.h"

// Every value and tensor that the container believes lies inside the bytes.
static void walk(const uint8_t *data, size_t size, const mz_gguf *file) {
    for (size_t i = 0; i < mz_gguf_count(file); i++) {
        const mz_gguf_value *v = mz_gguf_at(file, i);
        size_t at = 0, n;
        const char *text;
        if (mz_gguf_find(file, v->key) != v || v->at < data || v->at > data + size)
            abort();
        for (uint64_t k = 0; v->type == MZ_GGUF_LIST && v->of == MZ_GGUF_TEXT && k < v->n; k++) {
            mz_gguf_next_text(v, &at, &text, &n);
            if ((const uint8_t *)text < data || n > (size_t)(data + size - (const uint8_t *)text))
                abort();
        }
    }
    const mz_safetensors *tensors = mz_gguf_tensors(file);
    for (size_t i = 0; i < mz_safetensors_count(tensors); i++) {
        const mz_safetensors_tensor *t = mz_safetensors_at(tensors, i);
        const uint8_t *start = t->data;
        if (start < data || t->bytes > (size_t)(data + size - start) || mz_safetensors_find(tensors, t->name) != t)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_gguf *file;
    if (mz_gguf_parse("input", data, size, &file) == MEZZO_OK)
        walk(data, size, file);
    else
        fuzz_expect_message();
    mz_gguf_close(file);
    fuzz_put("in.gguf", data, size);
    fuzz_import("in.gguf");
    return 0;
}
