// Frees what a variable holds where its scope ends, on every way out:
//     MZ_SCOPED(mz_free_at) char *text = NULL;
//     MZ_SCOPED(mz_text_free) mz_text line = {0};
// The variable is initialized where it is declared.
#ifndef MZ_BASE_SCOPE_H
#define MZ_BASE_SCOPE_H

#include "base/base.h"

#define MZ_SCOPED(free_at) __attribute__((cleanup(free_at)))

static inline void mz_free_at(void *variable) { // of a pointer
    void *block;
    memcpy(&block, variable, sizeof block);
    mz_free(block);
}

// Defines such a function for variables that point to an object: MZ_FREE_AT(mz_yaml_free_at, mz_yaml, mz_yaml_free)
#define MZ_FREE_AT(name, type, free_object)                                                                            \
    static inline void name(type **variable) {                                                                         \
        free_object(*variable);                                                                                        \
    }

#endif
