// Finds what is installed beside the command: recipes, documents, the Python module.
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"
#include "io/file.h"

bool cli_find_folder(const char *const *places, size_t n, char *folder, size_t size) {
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return false;
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < n; i++) {
        snprintf(folder, size, "%.4000s/%s", self, places[i]);
        char *whole = realpath(folder, NULL);
        if (whole != NULL)
            snprintf(folder, size, "%s", whole);
        free(whole);
        if (whole != NULL && mz_path_is_dir(folder))
            return true;
    }
    return false;
}
