// Declares how the rest of the library reads and writes files: a file is whole or does not exist, and errors name its
// path. Every write, fsync and rename of the library uses it, so that a test can make the n-th of each fail.
#ifndef MZ_IO_FILE_H
#define MZ_IO_FILE_H

#include "base/base.h"

// --- fault injection -----------------------------------------------------------------------------------------------
typedef enum mz_io_op { MZ_IO_OPEN, MZ_IO_WRITE, MZ_IO_FSYNC, MZ_IO_RENAME, MZ_IO_OP_COUNT } mz_io_op;
void mz_io_fail_after(mz_io_op op, int64_t n); // the n-th call from now fails once (0 = the next); negative = never
uint64_t mz_io_count(mz_io_op op);             // calls so far, in all threads

// --- paths ---------------------------------------------------------------------------------------------------------
// Holds a path under construction; it needs no memory and is not freed. One that is too long for the system is cut, and
// stays too long, so that every call refuses it.
typedef struct mz_path {
    char text[4200];
} mz_path;
mz_path mz_path_of(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
mz_path mz_path_folder(const char *path);                   // of the folder that holds it; "." where it names none
mz_path mz_path_beside(const char *path, const char *name); // of a name in the folder that holds `path`

// --- one file, replaced as a whole ---------------------------------------------------------------------------------
// A file under construction. Bytes go to "PATH.tmp" beside the target (so that the rename stays on one file system);
// commit flushes, renames and flushes the folder's entry. A crash at any moment leaves the old file or the new one.
// Only regular files are replaced: of a link the target is replaced and the link stays, a pipe or a terminal
// (/dev/stdout, /dev/fd/N) is written directly, a folder or a disk is refused.
typedef struct mz_file mz_file;
mezzo_status mz_file_create(const char *path, mz_file **out); // MEZZO_ERR_IO names the path
mezzo_status mz_file_append(const char *path, mz_file **out); // opens the file itself at its end, and makes it if it is
                                                              // missing
mezzo_status mz_file_append_own(const char *path,
                                mz_file **out); // likewise for a file of a run folder: no link, no device
mezzo_status mz_file_create_new(const char *path, mz_file **out); // writes the file itself; fails where the path exists
// Writes all bytes, or returns MEZZO_ERR_IO; a file that is appended to then has its earlier length.
mezzo_status mz_file_write(mz_file *file, const void *bytes, size_t n);
mezzo_status mz_file_sync(mz_file *file); // flushes to the disk
typedef struct mz_written {
    uint64_t bytes;
    uint32_t crc; // CRC32C
} mz_written;
// Returns whether the path of a file that is appended to no longer leads to it, because it was removed, renamed or
// replaced.
bool mz_file_moved(const mz_file *file);
mz_written mz_file_written(const mz_file *file); // what this object has written so far
mezzo_status mz_file_commit(mz_file *file); // created: syncs, renames, syncs the folder; appended: closes. It always
                                            // frees `file`
void mz_file_discard(mz_file *file);        // created: the target stays unchanged. It frees `file`; NULL is allowed
// Creates, writes, commits or discards in one call.
mezzo_status mz_file_write_atomic(const char *path, const void *bytes, size_t n);
// Copies a file of at most this many bytes likewise; one that is missing is no error.
mezzo_status mz_file_copy(const char *from, const char *to, size_t max_bytes);
// Writes a text atomically, and frees it.
mezzo_status mz_text_save(mz_text *text, const char *path);

mezzo_status mz_file_cut(const char *path, size_t size); // truncates it to its first `size` bytes, and flushes

mezzo_status mz_file_remove(const char *path); // a missing file is no error

// --- folders -------------------------------------------------------------------------------------------------------
mezzo_status mz_dir_create(const char *path); // with its parents; an existing folder is no error
// Makes a finished folder visible under its final name: flushes every file in it (at most four levels of folders), the
// folder itself, renames, flushes the parent. `final` must not exist, or be an empty folder.
mezzo_status mz_dir_commit(const char *staged, const char *final);
// Swaps a finished folder with the one that has its final name, flushed in the same way, so that one of them exists at
// every moment. The older one is then under the name `staged`. *swapped is false, and nothing has changed, where the
// file system cannot do this.
mezzo_status mz_dir_exchange(const char *staged, const char *final, bool *swapped);
mezzo_status mz_dir_remove(const char *path); // with its contents; a missing folder is no error; links are not followed
// Removes a folder as mz_dir_remove does, after renaming it to `hidden`, which must not exist, so that a reader finds
// `path` whole or not at all.
mezzo_status mz_dir_drop(const char *path, const char *hidden);
// Lists the names in a folder, sorted by bytes, without "." and ".."; free with mz_dir_list_free. An empty folder gives
// *count 0.
mezzo_status mz_dir_list(const char *path, char ***names, size_t *count);
void mz_dir_list_free(char **names, size_t count);
bool mz_path_exists(const char *path);
bool mz_path_is_dir(const char *path);
bool mz_ends_with(const char *name, const char *end); // `end` may be ".json"

// --- one owner -----------------------------------------------------------------------------------
// Holds FOLDER/.lock, which this process has locked until mz_lock_release or until the process ends in any way. The
// file stays and names the last owner. On NFS the server decides; a file system without locks gives a warning and an
// unlocked `out`.
typedef struct mz_lock {
    int fd;                 // 0: not locked
    uint64_t device, inode; // of the folder
} mz_lock;
// Takes the lock. MEZZO_ERR_INVALID names the process and host that has it. The folder must exist.
mezzo_status mz_lock_take(const char *folder, mz_lock *out);
void mz_lock_release(mz_lock *lock); // a zeroed one is allowed
// Returns whether a run folder that has lost a file keeps the rest. It is false where config.yaml disappears, too,
// within 0.2 s, because another program removes the whole folder.
bool mz_folder_stays(const char *folder);
// Takes the lock again, with a warning, where another program removed the lock file and the folder at this path is
// still the locked one (mz_folder_stays). IO: the folder was removed, renamed or replaced. INVALID: another process has
// locked it since.
mezzo_status mz_lock_renew(mz_lock *lock, const char *folder);
#define MZ_LOCK_FILE ".lock"

// --- reading -------------------------------------------------------------------------------------------------------
// Holds a file's bytes, mapped read-only (map.c). An empty file has data "" and size 0. Where another program truncates
// the file meanwhile, the lost bytes read as zeros and mz_map_check fails; a reader checks the map before it uses a
// result. To map a file installs a handler of SIGBUS, which passes on signals that no map caused.
typedef struct mz_map {
    const unsigned char *data;
    size_t size;
} mz_map;
mezzo_status mz_map_open(const char *path, mz_map *out); // INVALID: missing, not a regular file; IO: unreadable
void mz_map_close(mz_map *map); // bytes that mz_map_open did not map are only forgotten; a zeroed map is allowed
// Checks the map that holds this byte: MEZZO_ERR_IO names the file where part of it was lost before it was read. The
// check is cheap while no map was truncated. It returns MEZZO_OK for bytes of no map.
mezzo_status mz_map_check(const void *bytes);
mezzo_status mz_map_end(mz_map *map, mezzo_status status); // checks and closes: returns IO for a truncated map, else
                                                           // `status`
// Asks the system to load these bytes of a map soon, and does not wait.
void mz_map_expect(const void *bytes, size_t n);
// Reads the whole file, NUL-terminated; the caller frees it with mz_free. A file larger than max_bytes is
// MEZZO_ERR_FORMAT.
mezzo_status mz_file_read(const char *path, size_t max_bytes, char **out, size_t *size);
// Reads a text file in the one form that its parser sees: without a UTF-8 byte order mark and with LF for CRLF. UTF-16
// and UTF-32 are MEZZO_ERR_FORMAT, by their byte order marks. Training text is read otherwise, because its bytes are
// data.
mezzo_status mz_file_read_text(const char *path, size_t max_bytes, char **out, size_t *size);

// Reads a text file's complete lines one after another, in little memory for a file of any length.
typedef struct mz_lines mz_lines;
mezzo_status mz_lines_open(const char *path, mz_lines **out);
// Reads the next line without its newline, valid until the next call; NULL at the end, and before a last line that has
// no newline. Lines of 16 MiB and more are skipped.
mezzo_status mz_lines_next(mz_lines *lines, const char **line, size_t *n);
void mz_lines_close(mz_lines *lines);                         // NULL is allowed
mezzo_status mz_lines_from(mz_lines *lines, uint64_t offset); // called before the first line
uint64_t mz_lines_end(const mz_lines *lines);    // the offset after the last complete line, skipped ones included
uint64_t mz_lines_passed(const mz_lines *lines); // how many lines were skipped
// Reads n bytes at an offset, of which the file has *got; the next line stays the same.
mezzo_status mz_lines_peek(const mz_lines *lines, uint64_t offset, void *to, size_t n, size_t *got);

// --- checksums -----------------------------------------------------------------------------------------------------
// Computes CRC32C (Castagnoli, reflected 0x82F63B78), as in RFC 3720 and TFRecord. Start with crc = 0, and pass pieces
// in order.
uint32_t mz_crc32c(uint32_t crc, const void *bytes, size_t n);
uint32_t mz_crc32c_by_tables(uint32_t crc, const void *bytes, size_t n);      // the same result, on any processor
mezzo_status mz_file_crc32c(const char *path, uint32_t *crc, uint64_t *size); // size may be NULL
// Reads a flushed file again, past the page cache where the system allows it. MEZZO_ERR_IO where it differs from what
// was written.
mezzo_status mz_file_read_back(const char *path, mz_written written);

#endif
