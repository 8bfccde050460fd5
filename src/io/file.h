// The rest of the library reads and writes files through this: a file is whole or not there at all, and errors name its
// path. Every write, fsync and rename of the library goes through here, so that a test can make the n-th of each fail.
#ifndef MZ_IO_FILE_H
#define MZ_IO_FILE_H

#include "base/base.h"

// --- fault injection -----------------------------------------------------------------------------------------------
typedef enum mz_io_op { MZ_IO_OPEN, MZ_IO_WRITE, MZ_IO_FSYNC, MZ_IO_RENAME, MZ_IO_OP_COUNT } mz_io_op;
void mz_io_fail_after(mz_io_op op, int64_t n); // the n-th call from now fails once (0 = next); negative = never
uint64_t mz_io_count(mz_io_op op);             // calls so far, all threads

// --- one file, replaced as a whole ---------------------------------------------------------------------------------
// Bytes go to "PATH.tmp" beside the target (so that the rename stays on one file system); commit flushes, renames and
// flushes the folder's entry. A crash at any moment leaves the old file or the new one. Only regular files are
// replaced: the target of a link is replaced and the link stays, a pipe or a terminal (/dev/stdout, /dev/fd/N) is
// written to, a folder or a disk is refused.
typedef struct mz_file mz_file;
mezzo_status mz_file_create(const char *path, mz_file **out); // MEZZO_ERR_IO names the path
mezzo_status mz_file_append(const char *path, mz_file **out); // opens the file itself at its end, made if missing
mezzo_status mz_file_append_own(const char *path,
                                mz_file **out); // the same for a file of a run folder: no link, no device
mezzo_status mz_file_create_new(const char *path, mz_file **out); // the file itself; fails where the path exists
// Writes all bytes, or returns MEZZO_ERR_IO; a file that is appended to is then as long as before.
mezzo_status mz_file_write(mz_file *file, const void *bytes, size_t n);
mezzo_status mz_file_sync(mz_file *file); // to the disk
typedef struct mz_written {
    uint64_t bytes;
    uint32_t crc; // CRC32C
} mz_written;
// Returns whether the path of a file that is appended to no longer leads to it: it was removed, renamed or replaced.
bool mz_file_moved(const mz_file *file);
mz_written mz_file_written(const mz_file *file); // so far, by this object
mezzo_status mz_file_commit(mz_file *file); // created: sync, rename, sync folder; appended: close. Frees `file` always
void mz_file_discard(mz_file *file);        // created: the target stays as it was. NULL is fine. Frees `file`
// Writes the four steps in one.
mezzo_status mz_file_write_atomic(const char *path, const void *bytes, size_t n);
// Writes a text so, and takes it and the path, which is allocated; NULL: out of memory.
mezzo_status mz_text_save(mz_text *text, char *path);

mezzo_status mz_file_cut(const char *path, size_t size); // to its first `size` bytes, flushed

mezzo_status mz_file_remove(const char *path); // a missing file is fine

// --- folders -------------------------------------------------------------------------------------------------------
mezzo_status mz_dir_create(const char *path); // with its parents; an existing folder is fine
// Makes a finished folder visible under its final name: flushes every file in it (one level of folders down at most
// four), the folder itself, renames, flushes the parent. `final` must not exist, or be an empty folder.
mezzo_status mz_dir_commit(const char *staged, const char *final);
// Swaps a finished folder with the one that has its final name, flushed in the same way: no moment without either.
// The older one is then under the name `staged`. *swapped is false, and nothing has changed, where the file system
// cannot do this.
mezzo_status mz_dir_exchange(const char *staged, const char *final, bool *swapped);
mezzo_status mz_dir_remove(const char *path); // with what is in it; a missing folder is fine; links are not followed
// As mz_dir_remove, but under the name `hidden`, which must not exist: a reader finds `path` whole or not at all.
mezzo_status mz_dir_drop(const char *path, const char *hidden);
// Names in a folder, sorted by bytes, without "." and ".."; free with mz_dir_list_free. An empty folder gives *count 0.
mezzo_status mz_dir_list(const char *path, char ***names, size_t *count);
void mz_dir_list_free(char **names, size_t count);
bool mz_path_exists(const char *path);
bool mz_path_is_dir(const char *path);
bool mz_ends_with(const char *name, const char *end); // ".json"

// --- one owner -----------------------------------------------------------------------------------
// FOLDER/.lock, locked by this process until mz_lock_release or until the process ends, however it ends. The file
// stays and names the last owner. On NFS the server decides; a file system without locks gives a warning and an
// unlocked `out`.
typedef struct mz_lock {
    int fd;                 // 0: not locked
    uint64_t device, inode; // of the folder
} mz_lock;
// MEZZO_ERR_INVALID names the process and host that has it. The folder must exist.
mezzo_status mz_lock_take(const char *folder, mz_lock *out);
void mz_lock_release(mz_lock *lock); // a zeroed one is fine
// Returns whether a run folder that has lost a file keeps the rest: false where its config.yaml goes too, within 0.2 s,
// because another program removes the whole folder.
bool mz_folder_stays(const char *folder);
// While the folder at this path is the one that was locked and stays (mz_folder_stays): takes a lock file that another
// program removed again, with a warning. IO: the folder was removed, renamed or replaced. INVALID: another process has
// locked it since.
mezzo_status mz_lock_renew(mz_lock *lock, const char *folder);
#define MZ_LOCK_FILE ".lock"

// --- reading -------------------------------------------------------------------------------------------------------
// A file's bytes, mapped read-only (map.c). An empty file has data "" and size 0. Where another program cuts the file
// short meanwhile, the bytes that are gone read as zeros and mz_map_check fails: the reader of a map checks it before
// the result is used. Mapping a file installs a handler of SIGBUS, which hands on what no map caused.
typedef struct mz_map {
    const unsigned char *data;
    size_t size;
} mz_map;
mezzo_status mz_map_open(const char *path, mz_map *out); // INVALID: missing, not a regular file; IO: unreadable
void mz_map_close(mz_map *map); // of bytes that mz_map_open did not map, it only forgets them; zeroed map is fine
// Checks the map that holds this byte: MEZZO_ERR_IO names the file where a part of it was gone when it was read. Costs
// next to nothing while no map is cut. Bytes of no map are MEZZO_OK.
mezzo_status mz_map_check(const void *bytes);
mezzo_status mz_map_end(mz_map *map, mezzo_status status); // checks and closes: of a map that was cut IO, else `status`
// These bytes of a map are read soon: asks the system for them, no more, and does not wait.
void mz_map_expect(const void *bytes, size_t n);
// Reads the whole file, NUL-terminated, owned by the caller (mz_free). Larger than max_bytes is MEZZO_ERR_FORMAT.
mezzo_status mz_file_read(const char *path, size_t max_bytes, char **out, size_t *size);
// The same of a file that is text in some format, in the one form that its parser sees: without a UTF-8 byte order mark
// and with LF for CRLF. UTF-16 and UTF-32 are MEZZO_ERR_FORMAT, by their byte order marks. Training text is not read by
// this: its bytes are data.
mezzo_status mz_file_read_text(const char *path, size_t max_bytes, char **out, size_t *size);

// A text file's whole lines, one after the other, in little memory however long the file is.
typedef struct mz_lines mz_lines;
mezzo_status mz_lines_open(const char *path, mz_lines **out);
// The next line without its newline, valid until the next call; NULL at the end, and before a last line that has no
// newline. Lines of 16 MiB and more are skipped.
mezzo_status mz_lines_next(mz_lines *lines, const char **line, size_t *n);
void mz_lines_close(mz_lines *lines);                         // NULL is fine
mezzo_status mz_lines_from(mz_lines *lines, uint64_t offset); // before the first line
uint64_t mz_lines_end(const mz_lines *lines);    // the offset after the last whole line, one that was skipped too
uint64_t mz_lines_passed(const mz_lines *lines); // how many were skipped
// The n bytes at an offset, of which the file has *got; lines go on as if nothing had been read.
mezzo_status mz_lines_peek(const mz_lines *lines, uint64_t offset, void *to, size_t n, size_t *got);

// --- checksums -----------------------------------------------------------------------------------------------------
// CRC32C (Castagnoli, reflected 0x82F63B78), as in RFC 3720 and TFRecord; start with crc = 0, feed pieces in order.
uint32_t mz_crc32c(uint32_t crc, const void *bytes, size_t n);
uint32_t mz_crc32c_by_tables(uint32_t crc, const void *bytes, size_t n);      // the same, on any processor
mezzo_status mz_file_crc32c(const char *path, uint32_t *crc, uint64_t *size); // size may be NULL
// Reads a flushed file again, past the page cache where the system allows it: MEZZO_ERR_IO where it is not what was
// written.
mezzo_status mz_file_read_back(const char *path, mz_written written);

#endif
