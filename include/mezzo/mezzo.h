// Everything: include this, or the headers of what you use.
//
// Ownership: what a _create, _open or _load hands out belongs to the caller, who frees it with the _free or _close of
// the same name; freeing NULL is fine. What an object was made from is borrowed and must outlive it, unless its
// function says otherwise. Returned strings belong to the object or the library. No other argument may be NULL unless
// its function says so. Threads: an object may be used by any host thread, not only the one that made it, by one at a
// time; objects of one device (parameters, programs, optimizers, scalers, steps) count as one. Two devices may be used
// by two threads at once, also two of one kind. Tokenizers are immutable and may be shared. mezzo_log_set is for before
// threads are started. Errors: every call that can fail returns a mezzo_status; mezzo_error_message() is the calling
// thread's. MEZZO_ERR_INVALID means that the call changed nothing.
#ifndef MEZZO_MEZZO_H
#define MEZZO_MEZZO_H

#include "mezzo/data.h"
#include "mezzo/device.h"
#include "mezzo/dtype.h"
#include "mezzo/graph.h"
#include "mezzo/model.h"
#include "mezzo/optimizer.h"
#include "mezzo/program.h"
#include "mezzo/status.h"
#include "mezzo/step.h"
#include "mezzo/train.h"
#include "mezzo/version.h"

#endif
