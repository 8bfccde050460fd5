// Everything: include this, or the headers of what you use. What holds for every call stands here, and is not repeated
// in the other headers.
//
// Ownership: what a _create, _open or _load hands out belongs to the caller, who frees it with the _free or _close of
// the same name; freeing NULL is fine, and freeing what was freed before does nothing but set the thread's message,
// until its memory is another object: that one would go. On an error *out is NULL or not written, and there is nothing
// to free. What an object was made from is borrowed and must outlive it, unless its function says otherwise. Options,
// names and host arrays are read during the call only, unless its function says otherwise. Returned strings belong to
// the object or the library. No other argument may be NULL unless its function says so.
//
// Threads: an object may be used by any host thread, not only the one that made it, by one at a time; objects of one
// device (parameters, programs, optimizers, scalers, steps) count as one. Two devices may be used by two threads at
// once, also two of one kind. Tokenizers are immutable and may be shared, and calls that take no object but their
// arguments (conversions, names, mezzo_seed, mezzo_schedule_lr) may be made by any thread at any time. mezzo_log_set is
// for before threads are started. A callback runs in the thread of the call that it was given to, and must not call
// that object again unless its comment says so.
//
// Processes: a process may fork after it used the library, and both may go on with it; a GPU that the parent opened is
// the parent's alone. Reading files installs a handler of SIGBUS, which reports a file that another program cuts short,
// and hands on every other one.
//
// Errors: every call that can fail returns a mezzo_status; mezzo_error_message() is the calling thread's. INVALID
// (the caller's mistake) means that the call changed nothing. Two statuses can come from almost everywhere, and a
// comment names them only where they mean more: MEMORY from every call that makes or grows something, DEVICE from every
// call that runs or copies something on a GPU, also for work that was asked earlier. A comment "Errors: …" names the
// others. Calls that return something else do not fail; an index out of range there is the caller's bug.
//
// Data: host tensors are row-major, without padding. Shapes stand in brackets; "…" is any leading dimensions. Memory is
// in bytes, durations in seconds, losses in nats.
#ifndef MEZZO_MEZZO_H
#define MEZZO_MEZZO_H

#include "mezzo/data.h"
#include "mezzo/device.h"
#include "mezzo/dtype.h"
#include "mezzo/graph.h"
#include "mezzo/model.h"
#include "mezzo/onnx.h"
#include "mezzo/optimizer.h"
#include "mezzo/program.h"
#include "mezzo/status.h"
#include "mezzo/step.h"
#include "mezzo/train.h"
#include "mezzo/version.h"

#endif
