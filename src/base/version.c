#include "mezzo/version.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

const char *mezzo_version(void) {
    return TEXT(MEZZO_VERSION_MAJOR) "." TEXT(MEZZO_VERSION_MINOR) "." TEXT(MEZZO_VERSION_PATCH);
}
