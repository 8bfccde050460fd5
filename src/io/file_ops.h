// Declares the counted system calls of this folder's files that implement file.h.
#ifndef MZ_IO_FILE_OPS_H
#define MZ_IO_FILE_OPS_H

#include "io/file.h"

int mz_sys_open(const char *path, int flags); // close-on-exec; -1 and errno, as open(2)
int mz_sys_fsync(int fd);
int mz_sys_rename(const char *from, const char *to);
int mz_sys_exchange(const char *a, const char *b); // swaps two names at once; EINVAL or ENOSYS where that is not
                                                   // possible

// Returns MEZZO_ERR_IO with "cannot DOING 'PATH': REASON; what to do", from errno.
mezzo_status mz_io_fail(const char *doing, const char *path);
// Returns the same for an input path; where no file exists it is INVALID, like a wrong argument.
mezzo_status mz_io_fail_input(const char *doing, const char *path);

mezzo_status mz_open_regular(const char *path, int *fd, size_t *size); // for reading; refuses a FIFO and does not wait
                                                                       // for it
// Reads up to n bytes; fewer only at the file's end.
mezzo_status mz_read_piece(int fd, const char *path, char *to, size_t n, size_t *got);

mezzo_status mz_sync_dir(const char *path);
mezzo_status mz_sync_parent(const char *path); // flushes the folder that holds `path`

#endif
