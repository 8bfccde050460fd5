// The version of these headers. CMake and pkg-config take it from here, and `mezzo --version` prints it. Before 1.0 a
// minor version may break callers.
#ifndef MEZZO_VERSION_H
#define MEZZO_VERSION_H

#include "mezzo/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MEZZO_VERSION_MAJOR 0
#define MEZZO_VERSION_MINOR 2
#define MEZZO_VERSION_PATCH 0

// Returns the version of the running library, "0.2.0"; the library owns the string. Any thread may call it.
MEZZO_API const char *mezzo_version(void);

#ifdef __cplusplus
}
#endif
#endif
