#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "device.h"

static struct CMUnitTest tests[128];
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

void test_must(mezzo_status status, const char *expr, const char *file, int line) {
    if (status == MEZZO_OK)
        return;
    print_error("%s: %s: %s\n%s\n", expr, mezzo_status_name(status), mezzo_error_message(), mezzo_error_trace());
    _fail(file, line);
}

void test_must_fail(mezzo_status got, mezzo_status want, const char *const *texts, const char *expr, const char *file,
                    int line) {
    const char *message = mezzo_error_message();
    bool says = got == want && strchr(message, '\n') == NULL;
    for (const char *const *text = texts; says && *text != NULL; text++)
        says = strstr(message, *text) != NULL;
    if (says)
        return;
    print_error("%s: %s: \"%s\", expected %s with \"%s\"\n", expr, mezzo_status_name(got), message,
                mezzo_status_name(want), texts[0]);
    _fail(file, line);
}

// A word is a pattern of names: "gradient_of_soft*". Without the device that ctest names the program is skipped.
int main(int argc, char **argv) {
    if (getenv("MEZZO_TEST_DEVICE") != NULL && !test_device_opens())
        return TEST_SKIPPED;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("tests", tests, count, group_setup, group_teardown);
}
