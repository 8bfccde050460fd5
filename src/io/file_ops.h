// The counted system calls behind file.h, for the files of this folder that implement it.
#ifndef MZ_IO_FILE_OPS_H
#define MZ_IO_FILE_OPS_H

#include "io/file.h"

int mz_sys_open(const char *path, int flags); // close-on-exec; -1 and errno, as open(2)
int mz_sys_fsync(int fd);
int mz_sys_rename(const char *from, const char *to);

// MEZZO_ERR_IO, "cannot DOING 'PATH': REASON; what to do", from errno.
mezzo_status mz_io_fail(const char *doing, const char *path);

mezzo_status mz_sync_dir(const char *path);
mezzo_status mz_sync_parent(const char *path); // flushes the folder that holds `path`

#endif
