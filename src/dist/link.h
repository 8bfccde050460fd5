// MPI is opened as a plug-in, because its ABI differs between implementations: one object alone is compiled against it,
// and ranks of a job on CPUs open it at run time.
#ifndef MZ_DIST_LINK_H
#define MZ_DIST_LINK_H

#include "backend/collective.h"

enum { MZ_LINK_ABI = 2, MZ_LINK_TEXT = 256 };

// Holds what the plug-in exports as `mz_link_mpi`. Functions return 0, or another number and a line in `why`.
typedef struct mz_link {
    int abi; // MZ_LINK_ABI
    // Starts MPI, once a process, and waits for the other ranks.
    int (*open)(int *rank, int *size, char version[MZ_LINK_TEXT], char why[MZ_LINK_TEXT]);
    int (*bytes)(int root, void *data, size_t bytes, char why[MZ_LINK_TEXT]); // broadcast, before the group exists
    // Runs a collective. It calls `failed` repeatedly while it waits, and returns 1 with an empty `why` where that
    // returns other than zero.
    int (*run)(const mz_collective *what, int rank, int (*failed)(void *user), void *user, char why[MZ_LINK_TEXT]);
    void (*close)(void); // waits for the other ranks; not called after a failure
} mz_link;

// The launcher gives its children's MPI their ranks through PMIx, so that a job on one host needs no mpirun. The
// plug-in exports this type as `mz_launch_pmix`.
typedef struct mz_launch_link {
    int abi; // MZ_LINK_ABI
    // Starts a server, with threads of its own, for a job of `size` processes that `name` identifies.
    int (*open)(const char *name, int size, char why[MZ_LINK_TEXT]);
    // Returns the variables that a rank needs besides its own: "NAME=VALUE" strings, ended by NULL; the caller free()s
    // them.
    int (*variables)(const char *name, int rank, char ***out, char why[MZ_LINK_TEXT]);
    void (*close)(const char *name); // ends one job; another may be open
} mz_launch_link;
mezzo_status mz_launch_link_open(const mz_launch_link **out); // as mz_link_open

// Opens the plug-in beside the library, in the installed folder, or at MEZZO_PLUGINS. The message of UNSUPPORTED says
// in one line what is missing.
mezzo_status mz_link_open(const mz_link **out);

#endif
