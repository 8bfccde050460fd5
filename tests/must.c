// must and must_fail (test.h), also for programs with a main of their own.
#include <stdbool.h>
#include <string.h>

#include "test.h"

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
