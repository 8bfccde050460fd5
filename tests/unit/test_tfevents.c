#define _GNU_SOURCE
// Event files are frames whose checksums hold, with the messages that TensorBoard expects. (test_python_readers.c has
// TensorBoard itself read them.)
#include <stdlib.h>

#include "io/file.h"
#include "io/tfevents.h"
#include "test.h"

static uint32_t little32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t unmask(uint32_t masked) {
    uint32_t rotated = masked - 0xA282EAD8u;
    return rotated << 15 | rotated >> 17;
}

// The folder's event file number `index` in name order, whole.
static unsigned char *read_events(const char *folder, size_t index, size_t *size) {
    char **names, *data;
    size_t count;
    assert_int_equal(mz_dir_list(folder, &names, &count), MEZZO_OK);
    assert_true(index < count);
    assert_non_null(strstr(names[index], "events.out.tfevents."));
    assert_non_null(strstr(names[index], ".mezzo."));
    char *path = mz_format("%s/%s", folder, names[index]);
    assert_int_equal(mz_file_read(path, 1 << 20, &data, size), MEZZO_OK);
    mz_free(path);
    mz_dir_list_free(names, count);
    return (unsigned char *)data;
}

// Payload of record `index`, or NULL past the last; checks every frame on the way.
static const unsigned char *record(const unsigned char *data, size_t size, size_t index, size_t *n) {
    for (size_t at = 0; at < size; index--) {
        assert_true(size - at >= 16);
        *n = little32(data + at);
        assert_int_equal(little32(data + at + 4), 0);
        assert_int_equal(unmask(little32(data + at + 8)), mz_crc32c(0, data + at, 8));
        assert_true(*n <= size - at - 16);
        const unsigned char *payload = data + at + 12;
        assert_int_equal(unmask(little32(payload + *n)), mz_crc32c(0, payload, *n));
        if (index == 0)
            return payload;
        at += 16 + *n;
    }
    return NULL;
}

static bool holds(const unsigned char *payload, size_t n, const char *bytes, size_t m) {
    return memmem(payload, n, bytes, m) != NULL;
}

static mz_tfevents *open_in(const char *folder, int64_t resume_step) {
    mz_tfevents *events;
    assert_int_equal(mz_dir_create(folder), MEZZO_OK);
    assert_int_equal(mz_tfevents_open(folder, resume_step, &events), MEZZO_OK);
    return events;
}

TEST(a_file_is_a_version_then_one_record_a_step) {
    mz_dir_remove("plain");
    mz_tfevents *events = open_in("plain", -1);
    assert_int_equal(mz_tfevents_write(events, 0), MEZZO_OK); // nothing collected: no record
    mz_tfevents_add_scalar(events, "train/loss", 1.5);
    mz_tfevents_add_scalar(events, "lr", 0.25);
    assert_int_equal(mz_tfevents_write(events, 300), MEZZO_OK);
    mz_tfevents_add_text(events, "sample", "two\nlines");
    assert_int_equal(mz_tfevents_write(events, 301), MEZZO_OK);
    mz_tfevents_close(events);

    size_t size, n;
    unsigned char *data = read_events("plain", 0, &size);
    const unsigned char *payload = record(data, size, 0, &n);
    assert_true(holds(payload, n,
                      "\x1A\x0D"
                      "brain.Event:2",
                      15)); // field 3, 13 bytes
    payload = record(data, size, 1, &n);
    assert_true(holds(payload, n, "\x10\xAC\x02", 3)); // step 300
    assert_true(holds(payload, n,
                      "\x0A\x0A"
                      "train/loss\x15\0\0\xC0\x3F",
                      17));                                          // tag, simple_value 1.5f
    assert_true(holds(payload, n, "\x0A\x02lr\x15\0\0\x80\x3E", 9)); // 0.25f
    payload = record(data, size, 2, &n);
    assert_true(holds(payload, n, "two\nlines", 9));
    assert_null(record(data, size, 3, &n));
    mz_free(data);
}

TEST(a_resumed_run_is_a_new_file_that_drops_later_steps) {
    mz_dir_remove("resumed");
    mz_tfevents_close(open_in("resumed", -1));
    mz_tfevents_close(open_in("resumed", 41));
    size_t size, n;
    unsigned char *data = read_events("resumed", 1, &size);
    const unsigned char *payload = record(data, size, 1, &n);
    assert_true(holds(payload, n, "\x10\x2A\x3A\x02\x08\x01", 6)); // step 42, session_log { status: START }
    mz_free(data);
    assert_int_not_equal(MEZZO_OK, mz_tfevents_open("no/such/folder", -1, &(mz_tfevents *){NULL}));
    assert_non_null(strstr(mezzo_error_message(), "'no/such/folder/events"));
}

// Each write that fails is told; the records before it stay whole.
TEST(a_failed_write_is_an_error) {
    mz_dir_remove("failing");
    mz_tfevents *events = open_in("failing", -1);
    mz_tfevents_add_scalar(events, "x", 1);
    mz_io_fail_after(MZ_IO_WRITE, 0);
    must_fail(mz_tfevents_write(events, 1), MEZZO_ERR_IO, "No space left");
    for (int64_t n = 0; n < 3; n++) { // memory: the collected values are lost, the writer goes on
        mz_alloc_fail_after(n);
        char *text = calloc(1, 100001);
        memset(text, 'a', 100000);
        mz_tfevents_add_text(events, "long", text);
        mz_tfevents_write(events, 2);
        free(text);
    }
    mz_alloc_fail_after(-1);
    mz_tfevents_add_scalar(events, "x", 3);
    assert_int_equal(mz_tfevents_write(events, 3), MEZZO_OK);
    mz_tfevents_close(events);
    size_t size, n, records = 0;
    unsigned char *data = read_events("failing", 0, &size);
    while (record(data, size, records, &n))
        records++;
    assert_in_range(records, 2, 5);
    mz_free(data);
}
