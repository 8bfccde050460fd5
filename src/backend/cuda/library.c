// Opens the vendor's libraries when the backend first needs them, so that the program starts without them.
#include <dlfcn.h>
#include <stdlib.h>

#include "backend/cuda/cuda.h"

// Opens FOLDER/[SUB/]NAME; the folder is `folder` up to the colon. A relative folder is ignored: code must never come
// from the user's current folder.
static void *open_in(const char *folder, size_t length, const char *sub, const char *name) {
    char path[1024];
    if (length == 0 || folder[0] != '/')
        return NULL;
    int n = snprintf(path, sizeof path, "%.*s%s/%s", (int)length, folder, sub, name);
    return n > 0 && (size_t)n < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void *open_in_list(const char *folders, const char *name) {
    void *library = NULL;
    for (const char *at = folders; at != NULL && *at != '\0' && library == NULL;) {
        size_t length = strcspn(at, ":");
        library = open_in(at, length, "", name);
        at += length + (at[length] == ':');
    }
    return library;
}

void *mz_cuda_library(const char *name, char *reason, size_t size) {
    void *library = open_in_list(getenv("MEZZO_CUDA_LIBRARIES"), name);
    if (library == NULL)
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char *homes[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"};
    for (size_t i = 0; i < MZ_COUNT(homes) && library == NULL; i++)
        if (homes[i] != NULL)
            library = open_in(homes[i], strlen(homes[i]), "/lib64", name);
    if (library == NULL)
        library = open_in_list(MZ_CUDA_LIBRARIES, name);
    if (library == NULL)
        snprintf(reason, size,
                 "%s was not found: install it, or name its folder (absolute path) in MEZZO_CUDA_LIBRARIES", name);
    return library;
}
