// Finds and opens the plug-ins of MPI and PMIx.
#define _GNU_SOURCE
#include "dist/link.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "base/base.h"

#if defined(MEZZO_MPI) || defined(MEZZO_PMIX)
static void *open_at(const char *folder, size_t length, const char *name) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, name);
    bool fits = n > 0 && (size_t)n < sizeof path && path[0] == '/'; // relative paths are refused, so that no code comes
                                                                    // from the user's current folder
    return fits ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;      // MPI's own parts look for its symbols
}

// Opens the plug-in in a folder beside this code, which is in the command or in the shared library.
static void *open_beside(const char *folder, const char *name) {
    static const char here[] = "";
    Dl_info of;
    if (dladdr(here, &of) == 0 || of.dli_fname == NULL)
        return NULL;
    char *path = realpath(of.dli_fname[0] == '/' ? of.dli_fname : "/proc/self/exe", NULL);
    const char *slash = path != NULL ? strrchr(path, '/') : NULL;
    char beside[4096] = "";
    int n = slash != NULL ? snprintf(beside, sizeof beside, "%.*s/%s", (int)(slash - path), path, folder) : 0;
    free(path);
    return n > 0 && (size_t)n < sizeof beside ? open_at(beside, (size_t)n, name) : NULL;
}

static mezzo_status open_plugin(const char *name, const char *symbol, const char *what, const void **out) {
    const char *named = getenv("MEZZO_PLUGINS");
    bool given = named != NULL && *named != '\0';
    void *plugin = given ? open_at(named, strlen(named), name) : open_beside("", name);
    if (plugin == NULL && !given)
        plugin = open_beside(MEZZO_PLUGIN_BESIDE, name);
#ifdef MEZZO_PLUGIN_FOLDER
    if (plugin == NULL && !given)
        plugin = open_at(MEZZO_PLUGIN_FOLDER, strlen(MEZZO_PLUGIN_FOLDER), name);
#endif
    if (plugin == NULL) {
        const char *why = dlerror();
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "%s, whose plug-in cannot be opened (%s): install the version that mezzo was built with, or "
                       "name the plug-in's folder (absolute path) in MEZZO_PLUGINS",
                       what, why != NULL ? why : name);
    }
    const int *abi = dlsym(plugin, symbol); // the first member of each plug-in's struct
    if (abi == NULL || *abi != MZ_LINK_ABI)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "%s belongs to another mezzo version: install both together", name);
    *out = abi;
    return MEZZO_OK;
}
#endif

mezzo_status mz_link_open(const mz_link **out) {
    *out = NULL;
#ifdef MEZZO_MPI
    return open_plugin("mezzo_mpi.so", "mz_link_mpi", "ranks on CPUs exchange data by MPI", (const void **)out);
#else
    return mz_fail(MEZZO_ERR_UNSUPPORTED, "ranks on CPUs exchange data by MPI, which this build lacks: install an MPI "
                                          "(Debian: libopenmpi-dev openmpi-bin) and build again");
#endif
}

mezzo_status mz_launch_link_open(const mz_launch_link **out) {
    *out = NULL;
#ifdef MEZZO_PMIX
    return open_plugin("mezzo_pmix.so", "mz_launch_pmix", "ranks on CPUs are told by PMIx who they are",
                       (const void **)out);
#else
    return mz_fail(MEZZO_ERR_UNSUPPORTED,
                   "ranks on CPUs get their numbers from PMIx, which this build lacks: install an MPI with it (Debian: "
                   "libopenmpi-dev libpmix-dev) and build again, or start them with mpirun");
#endif
}
