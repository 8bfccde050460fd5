// Errors. Every function that can fail returns a mezzo_status; the library never prints, exits or aborts.
#ifndef MEZZO_STATUS_H
#define MEZZO_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define MEZZO_API
#else
#define MEZZO_API __attribute__((visibility("default")))
#endif

typedef enum mezzo_status {
    MEZZO_OK = 0,
    MEZZO_ERR_INVALID,     // a caller's mistake: shape, argument, key, call order, a path that does not exist
    MEZZO_ERR_MEMORY,      // host or device memory ran out
    MEZZO_ERR_IO,          // a file could not be read or written
    MEZZO_ERR_FORMAT,      // a file was read and its content is not as required
    MEZZO_ERR_UNSUPPORTED, // this build, device or kernel list cannot do it
    MEZZO_ERR_DEVICE,      // the device failed
    MEZZO_ERR_NUMERIC,     // non-finite values where training cannot go on
    MEZZO_ERR_INTERRUPTED, // stopped by the caller's stop flag, with a checkpoint written where the run has a folder
} mezzo_status;

// Returns the message of the calling thread's last failure: one line, no newline, naming the file, key or shape and a
// remedy. Valid until the next failing call of this thread; "" if none has failed. Owned by the library.
MEZZO_API const char *mezzo_error_message(void);

// Returns where each function returned the error, innermost first, "file:line function" per line; "" if none. For
// developers.
MEZZO_API const char *mezzo_error_trace(void);

// Returns the name of a status, e.g. "MEZZO_ERR_IO". Never NULL.
MEZZO_API const char *mezzo_status_name(mezzo_status status);

// Receives the library's log lines (dispatch choices, fallbacks, warnings). NULL, the initial value, drops them.
// `topic` is one of "notice", "warn", "dispatch"; `line` has no newline and is valid only during the call. "dispatch"
// lines are made only when the environment's MEZZO_VERBOSE names that topic (comma list, or "all").
typedef void (*mezzo_log_fn)(void *user, const char *topic, const char *line);
MEZZO_API void mezzo_log_set(mezzo_log_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
