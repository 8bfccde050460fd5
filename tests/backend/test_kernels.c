// Every kernel of the device under test against the reference, op by op of ops.def: the CPU's at every level that this
// processor has.

#include "cases.h"
#include "device.h"
#include "test.h"

static int open_devices(void **state) {
    (void)state;
    devices_open();
    return 0;
}

static int close_devices(void **state) {
    (void)state;
    devices_report();
    devices_close();
    return 0;
}

#define OP(name, ...)                                                                                                  \
    static void kernels_of_##name(void **state) {                                                                      \
        (void)state;                                                                                                   \
        cases_##name();                                                                                                \
        if (MZ_OP_##name != MZ_OP_reshape && devices_serve(MZ_OP_##name))                                              \
            assert_true(trial_runs(MZ_OP_##name) > 0);                                                                 \
    }
#define OP_BACKWARD OP
#define OP_STATE    OP
#include "graph/ops.def"
#undef OP
#undef OP_BACKWARD
#undef OP_STATE

static void activations_made_again(void **state) {
    (void)state;
    cases_recomputed();
}

int main(int argc, char **argv) {
    if (!test_device_opens())
        return TEST_SKIPPED;
    // A pattern of names, "kernels_of_soft*", or "2/3": every third, from the second.
    size_t part = 1, parts = 1;
    if (argc > 1 && sscanf(argv[1], "%zu/%zu", &part, &parts) != 2)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
#define OP(name, ...)          cmocka_unit_test(kernels_of_##name),
#define OP_BACKWARD(name, ...) cmocka_unit_test(kernels_of_##name),
#define OP_STATE(name, ...)    cmocka_unit_test(kernels_of_##name),
#include "graph/ops.def"
#undef OP
#undef OP_BACKWARD
#undef OP_STATE
        cmocka_unit_test(activations_made_again),
    };
    struct CMUnitTest chosen[MZ_COUNT(tests)];
    size_t n = 0;
    for (size_t i = part - 1; i < MZ_COUNT(tests); i += parts)
        chosen[n++] = tests[i];
    return _cmocka_run_group_tests("kernels", chosen, n, open_devices, close_devices);
}
