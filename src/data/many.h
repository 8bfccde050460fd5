// Declares the reading of many files by several threads.
#ifndef MZ_DATA_MANY_H
#define MZ_DATA_MANY_H

#include "base/base.h"

// Calls `read` for 0 … n - 1, begun in this order, by the threads of OpenMP. After a failure no later one begins; the
// error of the first that failed is returned, as reading them one after another would.
mezzo_status mz_read_many(int64_t n, mezzo_status (*read)(void *user, int64_t i), void *user);

#endif
