// Files are whole or not there; every failure names the path and harms nothing that existed.
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "test.h"

static void assert_file_is(const char *path, const char *text) {
    char *data;
    size_t size;
    assert_int_equal(mz_file_read(path, 1 << 20, &data, &size), MEZZO_OK);
    assert_string_equal(data, text);
    assert_int_equal(size, strlen(text));
    mz_free(data);
}

TEST(write_replaces_the_whole_file) {
    assert_int_equal(mz_file_write_atomic("whole.txt", "first, longer", 13), MEZZO_OK);
    assert_int_equal(mz_file_write_atomic("whole.txt", "second", 6), MEZZO_OK);
    assert_file_is("whole.txt", "second");
    assert_false(mz_path_exists("whole.txt.tmp"));
}

// Every write, fsync and rename in turn: the old content stays, the message names the file, nothing is left over.
TEST(a_failure_at_any_step_keeps_the_old_file) {
    static const struct {
        mz_io_op op;
        const char *says;
    } steps[] = {{MZ_IO_OPEN, "Permission denied"},
                 {MZ_IO_WRITE, "No space left"},
                 {MZ_IO_FSYNC, "Input/output error"},
                 {MZ_IO_RENAME, "Input/output error"}};
    assert_int_equal(mz_file_write_atomic("keep.txt", "old", 3), MEZZO_OK);
    for (size_t i = 0; i < MZ_COUNT(steps); i++) {
        mz_io_fail_after(steps[i].op, 0);
        mezzo_status status = mz_file_write_atomic("keep.txt", "new", 3);
        must_fail(status, MEZZO_ERR_IO, "keep.txt");
        must_fail(status, MEZZO_ERR_IO, steps[i].says);
        assert_file_is("keep.txt", "old");
        assert_false(mz_path_exists("keep.txt.tmp"));
    }
    assert_int_equal(mz_file_write_atomic("keep.txt", "new", 3), MEZZO_OK);
    assert_file_is("keep.txt", "new");
}

TEST(the_folder_entry_is_flushed_too) {
    uint64_t before = mz_io_count(MZ_IO_FSYNC);
    assert_int_equal(mz_file_write_atomic("synced.txt", "x", 1), MEZZO_OK);
    assert_int_equal(mz_io_count(MZ_IO_FSYNC) - before, 2); // the file, then its folder
}

TEST(a_full_disk_and_bad_paths_are_one_clear_line) {
    mz_file *file;
    assert_int_equal(mz_file_append("/dev/full", &file), MEZZO_OK);
    must_fail(mz_file_write(file, "x", 1), MEZZO_ERR_IO, "'/dev/full': No space left on device; free some space");
    mz_file_discard(file);

    assert_int_equal(mz_file_write_atomic("plain", "x", 1), MEZZO_OK);
    must_fail(mz_file_write_atomic("plain/inside", "x", 1), MEZZO_ERR_IO, "'plain/inside'");
    must_fail(mz_file_write_atomic("missing/inside", "x", 1), MEZZO_ERR_IO, "No such file");
    must_fail(mz_dir_create("plain/folder"), MEZZO_ERR_IO, "'plain");
    must_fail(mz_dir_create(""), MEZZO_ERR_INVALID, "empty");
    assert_int_equal(mz_dir_create("a_folder"), MEZZO_OK);
    must_fail(mz_file_write_atomic("a_folder", "x", 1), MEZZO_ERR_IO, "it is a folder");
    mz_map map;
    must_fail(mz_map_open("a_folder", &map), MEZZO_ERR_INVALID, "it is a folder");
    must_fail(mz_map_open("/dev/null", &map), MEZZO_ERR_INVALID, "a device or pipe");
    must_fail(mz_map_open("nowhere\n", &map), MEZZO_ERR_INVALID, "'nowhere?'");
}

TEST(append_keeps_what_is_there_and_new_refuses_it) {
    unlink("log.txt");
    mz_file *file;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mz_file_append("log.txt", &file), MEZZO_OK);
        assert_int_equal(mz_file_write(file, "line\n", 5), MEZZO_OK);
        assert_int_equal(mz_file_commit(file), MEZZO_OK);
    }
    assert_file_is("log.txt", "line\nline\n");
    must_fail(mz_file_create_new("log.txt", &file), MEZZO_ERR_IO, "exists");
}

TEST(a_folder_is_committed_whole_or_stays_staged) {
    mz_dir_remove("final");
    mz_dir_remove("staged");
    assert_int_equal(mz_dir_create("staged/deep"), MEZZO_OK);
    assert_int_equal(mz_file_write_atomic("staged/b", "2", 1), MEZZO_OK);
    assert_int_equal(mz_file_write_atomic("staged/deep/a", "1", 1), MEZZO_OK);
    mz_io_fail_after(MZ_IO_RENAME, 0);
    must_fail(mz_dir_commit("staged", "final"), MEZZO_ERR_IO, "'final'");
    assert_false(mz_path_exists("final"));
    // Two files, two folders, then the parent.
    uint64_t before = mz_io_count(MZ_IO_FSYNC);
    assert_int_equal(mz_dir_commit("staged", "final"), MEZZO_OK);
    assert_int_equal(mz_io_count(MZ_IO_FSYNC) - before, 5);
    assert_file_is("final/deep/a", "1");
    assert_false(mz_path_exists("staged"));

    assert_int_equal(mz_dir_create("staged"), MEZZO_OK);
    must_fail(mz_dir_commit("staged", "final"), MEZZO_ERR_IO, "exists already");
    assert_file_is("final/b", "2");

    char **names;
    size_t count;
    assert_int_equal(mz_dir_list("final", &names, &count), MEZZO_OK);
    assert_int_equal(count, 2);
    assert_string_equal(names[0], "b");
    assert_string_equal(names[1], "deep");
    mz_dir_list_free(names, count);
}

TEST(removing_a_folder_does_not_follow_links) {
    assert_int_equal(mz_dir_create("outside"), MEZZO_OK);
    assert_int_equal(mz_file_write_atomic("outside/kept", "x", 1), MEZZO_OK);
    mz_dir_remove("linked");
    assert_int_equal(mz_dir_create("linked"), MEZZO_OK);
    assert_int_equal(symlink("../outside", "linked/link"), 0);
    assert_int_equal(mz_dir_remove("linked"), MEZZO_OK);
    assert_false(mz_path_exists("linked"));
    assert_file_is("outside/kept", "x");
    assert_int_equal(mz_dir_remove("linked"), MEZZO_OK);
    must_fail(mz_dir_remove("outside/kept"), MEZZO_ERR_IO, "not a folder");
}

// RFC 3720, appendix B.4: by the processor's instruction, where it has one, and by tables.
TEST(crc32c_gives_the_published_answers) {
    uint32_t (*const ways[])(uint32_t, const void *, size_t) = {mz_crc32c, mz_crc32c_by_tables};
    for (size_t w = 0; w < MZ_COUNT(ways); w++) {
        unsigned char bytes[32];
        memset(bytes, 0, sizeof bytes);
        assert_int_equal(ways[w](0, bytes, 32), 0x8A9136AA);
        memset(bytes, 0xFF, sizeof bytes);
        assert_int_equal(ways[w](0, bytes, 32), 0x62A8AB43);
        for (unsigned char i = 0; i < 32; i++)
            bytes[i] = i;
        assert_int_equal(ways[w](0, bytes, 32), 0x46DD794E);
        assert_int_equal(ways[w](0, "123456789", 9), 0xE3069283);
        // In pieces of every length.
        for (size_t cut = 0; cut <= 32; cut++)
            assert_int_equal(ways[w](ways[w](0, bytes, cut), bytes + cut, 32 - cut), 0x46DD794E);
    }

    mz_file *file;
    assert_int_equal(mz_file_create("sum", &file), MEZZO_OK);
    assert_int_equal(mz_file_write(file, "1234", 4), MEZZO_OK);
    assert_int_equal(mz_file_write(file, "56789", 5), MEZZO_OK);
    assert_int_equal(mz_file_written(file).crc, 0xE3069283);
    assert_int_equal(mz_file_commit(file), MEZZO_OK);
    uint32_t crc;
    uint64_t size;
    assert_int_equal(mz_file_crc32c("sum", &crc, &size), MEZZO_OK);
    assert_int_equal(crc, 0xE3069283);
    assert_int_equal(size, 9);
}

TEST(what_reads_back_differently_is_told) {
    mz_file *file;
    assert_int_equal(mz_file_create("back", &file), MEZZO_OK);
    assert_int_equal(mz_file_write(file, "123456789", 9), MEZZO_OK);
    const mz_written written = mz_file_written(file);
    assert_int_equal(mz_file_commit(file), MEZZO_OK);
    assert_int_equal(mz_file_read_back("back", written), MEZZO_OK);
    assert_int_equal(mz_file_write_atomic("back", "123456780", 9), MEZZO_OK);
    must_fail(mz_file_read_back("back", written), MEZZO_ERR_IO, "'back' reads back differently");
    assert_int_equal(mz_file_write_atomic("back", "12345678", 8), MEZZO_OK);
    must_fail(mz_file_read_back("back", written), MEZZO_ERR_IO, "8 of 9 bytes");
}

TEST(a_text_file_has_one_form) {
    static const struct {
        const char *bytes, *text;
    } rows[] = {{"\xEF\xBB\xBF"
                 "a\r\nb\r\n",
                 "a\nb\n"},
                {"a\rb\r", "a\rb\r"},
                {"\r\r\n\n", "\r\n\n"},
                {"\xEF\xBB\xBF", ""},
                {"", ""},
                {"x\xEF\xBB\xBF", "x\xEF\xBB\xBF"}};
    char *text;
    size_t n;
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        assert_int_equal(mz_file_write_atomic("form.txt", rows[i].bytes, strlen(rows[i].bytes)), MEZZO_OK);
        assert_int_equal(mz_file_read_text("form.txt", 99, &text, &n), MEZZO_OK);
        assert_int_equal(n, strlen(rows[i].text));
        assert_string_equal(text, rows[i].text);
        mz_free(text);
    }
    assert_int_equal(mz_file_write_atomic("form.txt", "\xFE\xFF\0a", 4), MEZZO_OK);
    must_fail(mz_file_read_text("form.txt", 99, &text, &n), MEZZO_ERR_FORMAT, "'form.txt': its byte order mark");
}

TEST(a_file_larger_than_its_kind_is_not_read) {
    assert_int_equal(mz_file_write_atomic("big", "0123456789", 10), MEZZO_OK);
    char *data;
    size_t size;
    must_fail(mz_file_read("big", 9, &data, &size), MEZZO_ERR_FORMAT, "'big' has 10 bytes; at most 9");
    assert_null(data);
    assert_int_equal(mz_file_write_atomic("empty", "", 0), MEZZO_OK);
    assert_file_is("empty", "");
    mz_map map;
    assert_int_equal(mz_map_open("empty", &map), MEZZO_OK);
    assert_int_equal(map.size, 0);
    mz_map_close(&map);
}
