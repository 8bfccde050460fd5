// What is written is read back bit for bit, and no header can make the reader believe it.
#include <stdlib.h>
#include <unistd.h>

#include "io/file.h"
#include "io/safetensors.h"
#include "test.h"

static mezzo_status count_up(void *user, uint64_t offset, void *bytes, size_t n) {
    (void)user;
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)bytes)[i] = (unsigned char)((offset + i) * 7);
    return MEZZO_OK;
}

static const float weights[6] = {1.0f, -2.5f, 3e38f, 1e-45f, -0.0f, 7.0f};
static const int64_t shape_23[2] = {2, 3}, shape_3[1] = {3}, shape_0[2] = {4, 0}, shape_big[1] = {5000003};

TEST(every_dtype_comes_back_bit_for_bit) {
    static const mezzo_dtype dtypes[] = {MEZZO_U8,  MEZZO_F32, MEZZO_F16,    MEZZO_I64,    MEZZO_BF16,
                                         MEZZO_F64, MEZZO_I32, MEZZO_F8E4M3, MEZZO_F8E5M2, MEZZO_U16};
    unsigned char bytes[6 * 8];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 37 + 1);
    mz_safetensors_item items[10];
    for (size_t i = 0; i < 10; i++)
        items[i] = (mz_safetensors_item){mezzo_dtype_name(dtypes[i]), dtypes[i], 1, shape_3, bytes, NULL, NULL};
    assert_int_equal(mz_safetensors_write("dtypes.safetensors", items, 10, NULL, 0, NULL), MEZZO_OK);
    mz_safetensors *file;
    assert_int_equal(mz_safetensors_open("dtypes.safetensors", &file), MEZZO_OK);
    assert_int_equal(mz_safetensors_count(file), 10);
    for (size_t i = 0; i < 10; i++) {
        const mz_safetensors_tensor *tensor = mz_safetensors_find(file, items[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, dtypes[i]);
        assert_int_equal(tensor->count, 3);
        assert_memory_equal(tensor->data, bytes, 3 * mezzo_dtype_size(dtypes[i]));
        // A user of the mapped pointer needs no copy.
        assert_int_equal((uintptr_t)tensor->data % mezzo_dtype_size(dtypes[i]), 0);
    }
    mz_safetensors_close(file);
}

TEST(shapes_metadata_and_callbacks_come_back) {
    const mz_safetensors_item items[] = {{"h.0.weight", MEZZO_F32, 2, shape_23, weights, NULL, NULL},
                                         {"scalar", MEZZO_F32, 0, NULL, weights + 1, NULL, NULL},
                                         {"empty", MEZZO_BF16, 2, shape_0, NULL, NULL, NULL},
                                         {"big", MEZZO_U8, 1, shape_big, NULL, count_up, NULL}};
    const mz_safetensors_meta meta[] = {{"format", "pt"}, {"quote\"é", "line\nbreak"}};
    mz_written written;
    uint32_t crc_of_file;
    assert_int_equal(mz_safetensors_write("mixed.safetensors", items, 4, meta, 2, &written), MEZZO_OK);
    assert_int_equal(mz_file_crc32c("mixed.safetensors", &crc_of_file, NULL), MEZZO_OK);
    assert_int_equal(written.crc, crc_of_file);

    mz_safetensors *file;
    assert_int_equal(mz_safetensors_open("mixed.safetensors", &file), MEZZO_OK);
    float got[6];
    assert_int_equal(mz_safetensors_read(file, "h.0.weight", MEZZO_F32, 2, shape_23, got), MEZZO_OK);
    assert_memory_equal(got, weights, sizeof got);
    assert_int_equal(mz_safetensors_read(file, "scalar", MEZZO_F32, 0, NULL, got), MEZZO_OK);
    assert_memory_equal(got, weights + 1, 4);
    assert_int_equal(mz_safetensors_find(file, "empty")->count, 0);
    const mz_safetensors_tensor *big = mz_safetensors_find(file, "big");
    for (size_t i = 0; i < big->count; i += 4999)
        assert_int_equal(((const unsigned char *)big->data)[i], (unsigned char)(i * 7));
    assert_string_equal(mz_safetensors_meta_get(file, "format"), "pt");
    assert_string_equal(mz_safetensors_meta_get(file, "quote\"é"), "line\nbreak");
    assert_null(mz_safetensors_meta_get(file, "none"));

    const int64_t shape_32[2] = {3, 2};
    must_fail(mz_safetensors_read(file, "h.0.weight", MEZZO_F32, 2, shape_32, got), MEZZO_ERR_FORMAT,
              "mixed.safetensors: tensor 'h.0.weight' has shape [2, 3]; this model needs [3, 2]");
    must_fail(mz_safetensors_read(file, "h.0.wieght", MEZZO_F32, 2, shape_23, got), MEZZO_ERR_FORMAT,
              "no tensor 'h.0.wieght'; the nearest is 'h.0.weight'");
    assert_null(mz_safetensors_at(file, 4));
    mz_safetensors_close(file);
}

TEST(reading_converts_between_formats) {
    const uint16_t half[3] = {0x3C00, 0xC100, 0x7BFF}; // 1, −2.5, 65504
    const mz_safetensors_item item = {"half", MEZZO_F16, 1, shape_3, half, NULL, NULL};
    assert_int_equal(mz_safetensors_write("half.safetensors", &item, 1, NULL, 0, NULL), MEZZO_OK);
    mz_safetensors *file;
    assert_int_equal(mz_safetensors_open("half.safetensors", &file), MEZZO_OK);
    float got[3];
    assert_int_equal(mz_safetensors_read(file, "half", MEZZO_F32, 1, shape_3, got), MEZZO_OK);
    assert_true(got[0] == 1.0f && got[1] == -2.5f && got[2] == 65504.0f);
    mz_safetensors_close(file);
}

TEST(the_writer_refuses_what_no_reader_could_read) {
    const int64_t negative[1] = {-1}, huge[2] = {INT64_MAX, 3};
    mz_safetensors_item items[2] = {{"a", MEZZO_F32, 1, shape_3, weights, NULL, NULL},
                                    {"a", MEZZO_F32, 1, shape_3, weights, NULL, NULL}};
    must_fail(mz_safetensors_write("bad", items, 2, NULL, 0, NULL), MEZZO_ERR_INVALID, "'a' is given twice");
    items[1] = (mz_safetensors_item){"b", MEZZO_TF32, 1, shape_3, weights, NULL, NULL};
    must_fail(mz_safetensors_write("bad", items, 2, NULL, 0, NULL), MEZZO_ERR_INVALID, "no dtype for tf32");
    items[1] = (mz_safetensors_item){"b", MEZZO_F32, 1, negative, weights, NULL, NULL};
    must_fail(mz_safetensors_write("bad", items, 2, NULL, 0, NULL), MEZZO_ERR_INVALID, "tensor 'b'");
    items[1] = (mz_safetensors_item){"b", MEZZO_F32, 2, huge, weights, NULL, NULL};
    must_fail(mz_safetensors_write("bad", items, 2, NULL, 0, NULL), MEZZO_ERR_INVALID, "tensor 'b'");
    items[1] = (mz_safetensors_item){"__metadata__", MEZZO_F32, 1, shape_3, weights, NULL, NULL};
    must_fail(mz_safetensors_write("bad", items, 2, NULL, 0, NULL), MEZZO_ERR_INVALID, "__metadata__");
    items[1] = (mz_safetensors_item){"\xFF", MEZZO_F32, 1, shape_3, weights, NULL, NULL};
    must_fail(mz_safetensors_write("bad", items, 2, NULL, 0, NULL), MEZZO_ERR_INVALID, "not UTF-8");
    assert_false(mz_path_exists("bad") || mz_path_exists("bad.tmp"));
}

// Each write, fsync and rename in turn.
TEST(a_failed_write_keeps_the_old_file) {
    const mz_safetensors_item old = {"old", MEZZO_F32, 1, shape_3, weights, NULL, NULL};
    const mz_safetensors_item new = {"new", MEZZO_U8, 1, shape_big, NULL, count_up, NULL};
    assert_int_equal(mz_safetensors_write("kept", &old, 1, NULL, 0, NULL), MEZZO_OK);
    for (mz_io_op op = MZ_IO_WRITE; op <= MZ_IO_RENAME; op++) {
        uint64_t before = mz_io_count(op);
        assert_int_equal(mz_safetensors_write("counted", &new, 1, NULL, 0, NULL), MEZZO_OK);
        // The last fsync is the folder's, after the rename: by then the new file is there.
        int64_t calls = (int64_t)(mz_io_count(op) - before) - (op == MZ_IO_FSYNC);
        for (int64_t n = 0; n < calls; n++) {
            mz_io_fail_after(op, n);
            must_fail(mz_safetensors_write("kept", &new, 1, NULL, 0, NULL), MEZZO_ERR_IO, "'kept'");
            mz_safetensors *file;
            assert_int_equal(mz_safetensors_open("kept", &file), MEZZO_OK);
            assert_non_null(mz_safetensors_find(file, "old"));
            mz_safetensors_close(file);
        }
    }
}

// --- hostile headers -----------------------------------------------------------------------------------------------
// A file of `header` and `data_bytes` zero bytes; `length` replaces the true header length unless it is 0.
static mezzo_status open_header(const char *header, size_t data_bytes, uint64_t length) {
    size_t n = strlen(header), size = 8 + n + data_bytes;
    unsigned char *bytes = calloc(1, size); // exactly as long as the file: a sanitizer sees a read past it
    assert_non_null(bytes);
    uint64_t shown = length ? length : n;
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(shown >> (8 * i));
    memcpy(bytes + 8, header, n);
    mz_safetensors *file;
    mezzo_status status = mz_safetensors_parse("x.safetensors", bytes, size, &file);
    mz_safetensors_close(file);
    free(bytes);
    return status;
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(good_headers_of_others_are_read) {
    static const struct {
        const char *header;
        size_t data;
    } rows[] = {
        {"{}", 0},
        {"{\"__metadata__\":{}}   ", 0},
        {"{\"a\":" T("F32", "[1]", "[0,4]") "}", 4},
        {"{\"b\":" T("F32", "[1]", "[4,8]") ",\"a\":" T("F32", "[1]", "[0,4]") "}", 8}, // any order
        {"{\"a\":" T("U8", "[0]", "[0,0]") ",\"b\":" T("U8", "[1]", "[0,1]") "}", 1},   // empty first
        {"{\"a\":" T("F64", "[]", "[0,8]") "}", 8},
        {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("F32", "[1]", "[1,5]") "}", 5}, // unaligned
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++)
        if (open_header(rows[i].header, rows[i].data, 0) != MEZZO_OK)
            fail_msg("%s: %s", rows[i].header, mezzo_error_message());
}

TEST(hostile_headers_are_refused) {
    static const struct {
        const char *header;
        size_t data;
        uint64_t length;
        const char *says;
    } rows[] = {
        {"{}", 0, UINT64_MAX, "at most 100000000"},
        {"{}", 0, 100000001, "at most 100000000"},
        {"{}", 0, 3, "cut off"},
        {"", 0, 0, "does not start with '{'"},
        {" {}", 0, 0, "does not start with '{'"},
        {"{\"a\":", 0, 0, "not valid JSON"},
        {"{} {}", 0, 0, "not valid JSON"},
        {"{\"a\":[[[[[[[[]]]]]]]]}", 0, 0, "nested deeper"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[0,4]") "}", 4, 0, "duplicate"},
        {"{\"a\":3}", 0, 0, "tensor 'a': its entry is not an object"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0, "tensor 'a': its dtype is missing"},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0, "tensor 'a': its dtype"},
        {"{\"a\":" T("F33", "[1]", "[0,4]") "}", 4, 0, "tensor 'a': dtype 'F33'"},
        {"{\"a\":" T("F32", "4", "[0,4]") "}", 4, 0, "tensor 'a': its shape"},
        {"{\"a\":" T("F32", "[-1]", "[0,4]") "}", 4, 0, "tensor 'a': its shape"},
        {"{\"a\":" T("F32", "[1.0]", "[0,4]") "}", 4, 0, "tensor 'a': its shape"},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, 0, "tensor 'a': rank 9"},
        {"{\"a\":" T("F32", "[4611686018427387904,4]", "[0,4]") "}", 4, 0, "more elements than memory"},
        {"{\"a\":" T("F32", "[0,9223372036854775807,9223372036854775807]", "[0,0]") "}", 0, 0, "more elements"},
        {"{\"a\":" T("F32", "[4611686018427387904]", "[0,4]") "}", 4, 0, "more elements than memory"},
        {"{\"a\":" T("F32", "[9999999999999999999999]", "[0,4]") "}", 4, 0, "tensor 'a': its shape"},
        {"{\"a\":" T("F32\\u0000x", "[1]", "[0,4]") "}", 4, 0, "tensor 'a': its dtype"},
        {"{\"a\":" T("F32", "[1]", "[0]") "}", 4, 0, "tensor 'a': data_offsets is missing"},
        {"{\"a\":" T("F32", "[1]", "[0,4,8]") "}", 4, 0, "tensor 'a': data_offsets is missing"},
        {"{\"a\":" T("F32", "[1]", "[0,\"4\"]") "}", 4, 0, "tensor 'a': data_offsets is missing"},
        {"{\"a\":" T("F32", "[1]", "[4,0]") "}", 4, 0, "tensor 'a': data_offsets [4, 0]"},
        {"{\"a\":" T("F32", "[1]", "[-4,0]") "}", 4, 0, "tensor 'a': data_offsets [-4, 0]"},
        {"{\"a\":" T("F32", "[2]", "[0,8]") "}", 4, 0, "file's 4 bytes of data: it is cut off"},
        {"{\"a\":" T("F32", "[1]", "[9223372036854775803,9223372036854775807]") "}", 4, 0, "do not lie"},
        {"{\"a\":" T("F32", "[2]", "[0,4]") "}", 4, 0, "give 4 bytes, shape [2] of F32 needs 8"},
        {"{\"a\":" T("U8", "[3]", "[0,3]") ",\"b\":" T("U8", "[3]", "[2,5]") "}", 5, 0, "'b': its data overlaps"},
        {"{\"a\":" T("U8", "[3]", "[0,3]") ",\"b\":" T("U8", "[3]", "[0,3]") "}", 3, 0, "overlaps"},
        {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("U8", "[1]", "[2,3]") "}", 3, 0, "'b': there is a hole"},
        {"{\"a\":" T("U8", "[1]", "[1,2]") "}", 2, 0, "'a': there is a hole"},
        {"{\"a\":" T("U8", "[1]", "[0,1]") "}", 3, 0, "2 bytes after the last tensor"},
        {"{\"__metadata__\":[]}", 0, 0, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, 0, "__metadata__ 'k' is not a string"},
        {"{\"a\\u0000b\":1}", 0, 0, "not valid JSON"},
        {"{\"evil\\n\\u001b[2J\":1}", 0, 0, "tensor 'evil??[2J'"},
        {"{\"\xC3\x28\":1}", 0, 0, "not valid JSON"},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mezzo_status status = open_header(rows[i].header, rows[i].data, rows[i].length);
        must_fail(status, MEZZO_ERR_FORMAT, rows[i].says);
        must_fail(status, MEZZO_ERR_FORMAT, "x.safetensors: ");
    }
}

TEST(deep_json_does_not_use_the_stack) {
    size_t n = 1000000;
    char *header = malloc(n + 1);
    assert_non_null(header);
    memset(header, '[', n);
    memcpy(header, "{\"a\":", 5);
    header[n] = '\0';
    must_fail(open_header(header, 0, 0), MEZZO_ERR_FORMAT, "nested deeper than 3");
    free(header);
}

// Every prefix of a good file is refused: no cut is taken for a shorter checkpoint.
TEST(every_truncation_is_noticed) {
    const mz_safetensors_item items[] = {{"h.0.weight", MEZZO_F32, 2, shape_23, weights, NULL, NULL},
                                         {"x", MEZZO_U8, 1, shape_3, weights, NULL, NULL}};
    assert_int_equal(mz_safetensors_write("cut.safetensors", items, 2, NULL, 0, NULL), MEZZO_OK);
    char *bytes;
    size_t size;
    assert_int_equal(mz_file_read("cut.safetensors", 1 << 20, &bytes, &size), MEZZO_OK);
    for (size_t n = 0; n < size; n++) {
        void *prefix = malloc(n + (n == 0));
        assert_non_null(prefix);
        memcpy(prefix, bytes, n);
        mz_safetensors *file;
        assert_int_equal(mz_safetensors_parse("cut", prefix, n, &file), MEZZO_ERR_FORMAT);
        assert_null(file);
        free(prefix);
    }
    mz_free(bytes);
}

TEST(a_missing_file_is_named) {
    mz_safetensors *file;
    must_fail(mz_safetensors_open("none.safetensors", &file), MEZZO_ERR_INVALID,
              "cannot read 'none.safetensors': No such file");
}

// No allocation failure leaks or crashes, in writing or reading.
TEST(running_out_of_memory_is_an_error) {
    const mz_safetensors_item items[] = {{"a", MEZZO_F32, 2, shape_23, weights, NULL, NULL},
                                         {"b", MEZZO_U8, 1, shape_3, NULL, count_up, NULL}};
    mezzo_status status = MEZZO_ERR_MEMORY;
    for (int64_t n = 0; status == MEZZO_ERR_MEMORY; n++) {
        mz_alloc_fail_after(n);
        status = mz_safetensors_write("memory.safetensors", items, 2, NULL, 0, NULL);
    }
    mz_alloc_fail_after(-1);
    assert_int_equal(status, MEZZO_OK);
    status = MEZZO_ERR_MEMORY;
    for (int64_t n = 0; status == MEZZO_ERR_MEMORY; n++) {
        mz_alloc_fail_after(n);
        mz_safetensors *file;
        status = mz_safetensors_open("memory.safetensors", &file);
        mz_safetensors_close(file);
    }
    mz_alloc_fail_after(-1);
    assert_int_equal(status, MEZZO_OK);
}
