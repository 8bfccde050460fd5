// Imports foreign weights: they are refused with one line and no folder is made, or the run folder's checkpoint is
// whole.
#ifndef MZ_FUZZ_IMPORT_H
#define MZ_FUZZ_IMPORT_H

#include "checkpoint/checkpoint.h"
#include "folder.h"

static inline void fuzz_import(const char *name) {
    char in[96], out[80], checkpoints[96], path[256];
    mezzo_import_result result;
    snprintf(in, sizeof in, "%s/%s", fuzz_folder(), name);
    snprintf(out, sizeof out, "%s/out", fuzz_folder());
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", out);
    if (mz_dir_remove(out) != MEZZO_OK)
        abort();
    const mezzo_import_options options = {.path = in, .out = out, .tokenizer = mz_path_is_dir(in) ? "none" : NULL};
    if (mezzo_import(&options, &result) == MEZZO_OK) {
        if (mezzo_checkpoint_find(checkpoints, false, path, sizeof path) != MEZZO_OK)
            abort();
    } else {
        fuzz_expect_message();
        if (mz_path_exists(out))
            abort();
    }
}

// Writes the bytes up to the first NUL to one file and those after it to another.
static inline void fuzz_put_both(const char *first, const char *second, const uint8_t *data, size_t size) {
    const uint8_t *end = memchr(data, 0, size);
    const size_t n = end != NULL ? (size_t)(end - data) : size, rest = n + (end != NULL);
    fuzz_put(first, data, n);
    fuzz_put(second, data + rest, size - rest);
}

static inline void fuzz_make_folder(const char *name) {
    if (mz_dir_create(fuzz_path(name)) != MEZZO_OK)
        abort();
}

#endif
