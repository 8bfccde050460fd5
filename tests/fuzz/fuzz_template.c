// Any bytes as a chat template: refused with one line, or a text whose every byte has its mark.
#include "base/base.h"
#include "data/template.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *source = mz_alloc(size + 1, 1);
    json_t *values =
        json_pack("{s:[{s:s, s:s}, {s:s, s:s}], s:b, s:s}", "messages", "role", "user", "content", " a\n", "role",
                  "assistant", "content", "b</s>", "add_generation_prompt", 1, "eos_token", "</s>");
    mz_marked_text out;
    if (source == NULL || values == NULL)
        __builtin_trap();
    memcpy(source, data, size);
    if (mz_template_render("input", source, values, &out) != MEZZO_OK) {
        if (mezzo_error_message()[0] == '\0' || strchr(mezzo_error_message(), '\n') || out.text.data != NULL)
            __builtin_trap();
    } else {
        if (out.text.len != out.told.len)
            __builtin_trap();
        for (size_t i = 0; i < out.told.len; i++)
            if ((out.told.data[i] & ~3) != 0) // of a message; of {% generation %}
                __builtin_trap();
    }
    mz_marked_text_free(&out);
    mz_free(source);
    json_decref(values);
    return 0;
}
