// The function of every fuzz target, which libFuzzer calls with bytes of its own and replay.c with those of a file.
#ifndef MZ_FUZZ_TARGET_H
#define MZ_FUZZ_TARGET_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "mezzo/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// A message was given, and it is one line.
static inline void fuzz_expect_message(void) {
    if (mezzo_error_message()[0] == '\0' || strchr(mezzo_error_message(), '\n') != NULL)
        abort();
}

#endif
