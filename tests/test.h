// What every test program begins with: cmocka, and TEST(name) {...}, which defines a test and lists it. test.c has
// main: it runs a program's tests in the order in which they stand in the file.
#ifndef TEST_H
#define TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mezzo/status.h"

void test_add(const char *name, CMUnitTestFunction function, CMFixtureFunction setup, CMFixtureFunction teardown);
void test_group(CMFixtureFunction setup, CMFixtureFunction teardown);

#define TEST(name) TEST_WITH(name, NULL, NULL)

// `setup` and `teardown` run before and after this test alone; NULL: nothing.
#define TEST_WITH(name, setup, teardown)                                                                               \
    static void name(void **state);                                                                                    \
    __attribute__((constructor)) static void list_##name(void) {                                                       \
        test_add(#name, name, setup, teardown);                                                                        \
    }                                                                                                                  \
    static void name(__attribute__((unused)) void **state)

// They run before the first and after the last test of the program.
#define TEST_GROUP(setup, teardown)                                                                                    \
    __attribute__((constructor)) static void list_group(void) {                                                        \
        test_group(setup, teardown);                                                                                   \
    }

// Fails the test with the library's message and where it came from.
#define must(expr) test_must((expr), #expr, __FILE__, __LINE__)
void test_must(mezzo_status status, const char *expr, const char *file, int line);

// Fails the test unless expr gives that status and the library's message is one line that has all the texts after it.
#define must_fail(expr, status, ...)                                                                                   \
    test_must_fail((expr), (status), (const char *const[]){__VA_ARGS__, NULL}, #expr, __FILE__, __LINE__)
void test_must_fail(mezzo_status got, mezzo_status want, const char *const *texts, const char *expr, const char *file,
                    int line);

#endif
