// Import and export where an allocation, an open, a write, a flush or a rename fails: an error with a message, nothing
// leaked (the sanitizers look), and nothing written: no part of the folder, under its name or another.
//
// To see it fail: no removal of what was staged (at its start: its entry cannot be flushed), a list that forgets the
// blocks of the tensor that it could not add.
#include "io/file.h"
#include "tiny_run.h"

static char source[4096];

static mezzo_status import_from(const char *from, const char *out) {
    mezzo_import_result r;
    return mezzo_import(&(mezzo_import_options){.path = from, .out = out, .tokenizer = "none"}, &r);
}

static mezzo_status export_from(const char *from, const char *out) {
    mezzo_export_result r;
    return mezzo_export(&(mezzo_export_options){.path = from, .out = out, .dtype = MEZZO_BF16, .shard_bytes = 20000},
                        &r);
}

static mezzo_status import(void) {
    return import_from(source, "weights/new");
}
static mezzo_status export(void) {
    return export_from("weights/run", "weights/new");
}

// The last thing that can fail is to flush the name of a folder that is whole already: then it may stay.
static void expect_nothing_or_all(mezzo_status (*move)(void), const char *what, int64_t n) {
    char **names;
    size_t count;
    if (mz_path_exists("weights/new")) {
        must(mz_dir_remove("used"));
        must(move == import ? export_from("weights/new", "used") : import_from("weights/new", "used"));
        must(mz_dir_remove("weights/new"));
    }
    must(mz_dir_list("weights", &names, &count));
    if (count != 1 || strcmp(names[0], "run") != 0)
        fail_msg("%s %lld: %s was left", what, (long long)n, names[0]);
    mz_dir_list_free(names, count);
}

enum { ALLOCATION = MZ_IO_OP_COUNT };

static void arm(int op, int64_t n) {
    if (op == ALLOCATION)
        mz_alloc_fail_after(n);
    else
        mz_io_fail_after((mz_io_op)op, n);
}

static int64_t calls(int op) {
    return (int64_t)(op == ALLOCATION ? mz_alloc_count() : mz_io_count((mz_io_op)op));
}

// Every stride-th call fails. Some failures have a way around (without the manifest, the folder is looked through), and
// a checkpoint that cannot be opened counts as none.
static void fails_cleanly(mezzo_status (*move)(void), int op, int64_t stride, const char *what) {
    int64_t total = -calls(op), failures = 0;
    must(move());
    total += calls(op);
    must(mz_dir_remove("weights/new"));
    for (int64_t n = 0; n < total; n += stride) {
        arm(op, n);
        mezzo_status status = move();
        arm(op, -1);
        if (status != MEZZO_OK && status != MEZZO_ERR_IO && status != MEZZO_ERR_MEMORY && status != MEZZO_ERR_INVALID)
            fail_msg("%s %lld: %s: %s", what, (long long)n, mezzo_status_name(status), mezzo_error_message());
        assert_true(status == MEZZO_OK || mezzo_error_message()[0] != '\0');
        failures += status != MEZZO_OK;
        expect_nothing_or_all(move, what, n);
    }
    print_message("%s: %lld calls, %lld failures\n", what, (long long)total, (long long)failures);
    assert_true(failures > 0 && total - failures * stride < total / 4 + stride);
}

static void each_fault(mezzo_status (*move)(void)) {
    must(mz_dir_remove("weights/new"));
    fails_cleanly(move, ALLOCATION, 7, "allocation");
    fails_cleanly(move, MZ_IO_OPEN, 1, "open");
    fails_cleanly(move, MZ_IO_WRITE, 1, "write");
    fails_cleanly(move, MZ_IO_FSYNC, 1, "fsync");
    fails_cleanly(move, MZ_IO_RENAME, 1, "rename");
}

TEST(an_import_that_fails_leaves_nothing) {
    each_fault(import);
}

TEST(an_export_that_fails_leaves_nothing) {
    each_fault(export);
}

static int setup(void **state) {
    (void)state;
    const char *tests = getenv("MEZZO_TESTS");
    snprintf(source, sizeof source, "%s/golden/data/hf_glm4_moe_sharded", tests != NULL ? tests : "tests");
    must(mz_dir_remove("weights"));
    must(mz_dir_create("weights"));
    must(import_from(source, "weights/run"));
    return 0;
}

TEST_GROUP(setup, NULL)
