// The device that a test of whole steps runs on: MEZZO_TEST_DEVICE, or "cpu" where that is not set. ctest runs these
// tests a second time with it set to "cuda" in a build that has that backend (tests/CMakeLists.txt).
#ifndef TEST_DEVICE_H
#define TEST_DEVICE_H

#include <stdio.h>
#include <stdlib.h>

#include "mezzo/device.h"
#include "mezzo/status.h"

enum { TEST_SKIPPED = 77 }; // what ctest takes for "skipped"

static inline const char *test_device(void) {
    const char *name = getenv("MEZZO_TEST_DEVICE");
    return name != NULL && *name != '\0' ? name : "cpu";
}

// Whether the device can be had; says why not.
static inline bool test_device_opens(void) {
    mezzo_device *device;
    bool opens = mezzo_device_open(test_device(), 1, &device) == MEZZO_OK;
    if (opens)
        mezzo_device_close(device);
    else
        fprintf(stderr, "skipped: %s: %s\n", test_device(), mezzo_error_message());
    return opens;
}

// For a TEST_GROUP: the device is each test's *state.
static inline int test_open_device(void **state) {
    return mezzo_device_open(test_device(), 1, (mezzo_device **)state) != MEZZO_OK;
}

static inline int test_close_device(void **state) {
    mezzo_device_close(*state);
    return 0;
}

#endif
