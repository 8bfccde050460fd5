// Finds and opens MPI's plug-in.
#define _GNU_SOURCE
#include "dist/link.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "base/base.h"

#define PLUGIN "mezzo_mpi.so"

#ifdef MEZZO_MPI
static void *open_at(const char *folder, size_t length, const char *rest) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%.*s%s/%s", (int)length, folder, rest, PLUGIN);
    return n > 0 && (size_t)n < sizeof path ? dlopen(path, RTLD_NOW | RTLD_GLOBAL)
                                            : NULL; // MPI's own parts look for its symbols
}

// Beside what this code is in, be it the command or the shared library, or where both are installed.
static void *open_beside(void) {
    Dl_info here;
    if (dladdr(PLUGIN, &here) == 0 || here.dli_fname == NULL)
        return NULL;
    char *path = realpath(here.dli_fname[0] == '/' ? here.dli_fname : "/proc/self/exe", NULL);
    const char *slash = path != NULL ? strrchr(path, '/') : NULL;
    void *plugin = slash != NULL ? open_at(path, (size_t)(slash - path), "") : NULL;
    free(path);
    return plugin;
}

mezzo_status mz_link_open(const mz_link **out) {
    const char *named = getenv("MEZZO_PLUGINS");
    void *plugin = named != NULL && *named != '\0' ? open_at(named, strlen(named), "") : open_beside();
    if (plugin == NULL && named == NULL)
        plugin = open_at(MEZZO_PLUGIN_FOLDER, strlen(MEZZO_PLUGIN_FOLDER), "");
    if (plugin == NULL) {
        const char *why = dlerror();
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "ranks on CPUs exchange data by MPI, whose plug-in " PLUGIN
                       " cannot be opened (%s): install the MPI that mezzo was built with, or name the plug-in's "
                       "folder in MEZZO_PLUGINS",
                       why != NULL ? why : "not found");
    }
    const mz_link *link = dlsym(plugin, "mz_link_mpi");
    if (link == NULL || link->abi != MZ_LINK_ABI)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, PLUGIN " is of another mezzo: install both together");
    *out = link;
    return MEZZO_OK;
}
#else
mezzo_status mz_link_open(const mz_link **out) {
    *out = NULL;
    return mz_fail(MEZZO_ERR_UNSUPPORTED, "ranks on CPUs exchange data by MPI, which this build has not: install an "
                                          "MPI (Debian: libopenmpi-dev openmpi-bin) and build again");
}
#endif
