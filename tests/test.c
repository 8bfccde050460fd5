#include "test.h"

#include <stdlib.h>

#include "device.h"

static struct CMUnitTest tests[256];
static size_t count;
static CMFixtureFunction group_setup, group_teardown;

void test_add(const char *name, CMUnitTestFunction function, CMFixtureFunction setup, CMFixtureFunction teardown) {
    if (count == sizeof tests / sizeof tests[0])
        abort();
    tests[count++] =
        (struct CMUnitTest){.name = name, .test_func = function, .setup_func = setup, .teardown_func = teardown};
}

void test_group(CMFixtureFunction setup, CMFixtureFunction teardown) {
    group_setup = setup, group_teardown = teardown;
}

// A word is a pattern of names: "gradient_of_soft*". Without the device that ctest names the program is skipped.
int main(int argc, char **argv) {
    if (getenv("MEZZO_TEST_DEVICE") != NULL && !test_device_opens())
        return TEST_SKIPPED;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("tests", tests, count, group_setup, group_teardown);
}
