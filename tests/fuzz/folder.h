// A folder of this process for targets whose readers take one; in memory where the system has /dev/shm.
#ifndef MZ_FUZZ_FOLDER_H
#define MZ_FUZZ_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/base.h"
#include "io/file.h"
#include "target.h"

static char fuzz_folder_path[64];

static inline void fuzz_folder_end(void) {
    mz_dir_remove(fuzz_folder_path);
}

static inline const char *fuzz_folder(void) {
    if (fuzz_folder_path[0] == '\0') {
        snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%s/mezzo-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (mkdtemp(fuzz_folder_path) == NULL || atexit(fuzz_folder_end) != 0)
            abort();
    }
    return fuzz_folder_path;
}

static inline const char *fuzz_path(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    return path;
}

// n bytes more at the end of the file, made if missing.
static inline void fuzz_append(const char *name, const uint8_t *data, size_t n) {
    FILE *f = fopen(fuzz_path(name), "ab");
    if (f == NULL || fwrite(data, 1, n, f) != n || fclose(f) != 0)
        abort();
}

static inline void fuzz_put(const char *name, const uint8_t *data, size_t n) {
    unlink(fuzz_path(name));
    fuzz_append(name, data, n);
}

#endif
