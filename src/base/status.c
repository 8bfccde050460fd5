// Keeps each thread's error: a message for the user and a trace for developers. The buffers are fixed, so that
// exhausted memory can be reported, too.
#include <stdarg.h>

#include "base/base.h"

enum { MESSAGE_BYTES = 1024, TRACE_BYTES = 2048 };

static _Thread_local char message[MESSAGE_BYTES];
static _Thread_local char trace[TRACE_BYTES];

const char *mezzo_error_message(void) {
    return message;
}

const char *mezzo_error_trace(void) {
    return trace;
}

const char *mezzo_status_name(mezzo_status status) {
#define NAME(status) [status] = #status
    static const char *const names[] = {
        NAME(MEZZO_OK),         NAME(MEZZO_ERR_INVALID), NAME(MEZZO_ERR_MEMORY),
        NAME(MEZZO_ERR_IO),     NAME(MEZZO_ERR_FORMAT),  NAME(MEZZO_ERR_UNSUPPORTED),
        NAME(MEZZO_ERR_DEVICE), NAME(MEZZO_ERR_NUMERIC), NAME(MEZZO_ERR_INTERRUPTED),
    };
    return (size_t)status < MZ_COUNT(names) && names[status] != NULL ? names[status] : "unknown status";
}

// Sets the message. Names from files may contain control characters; a message is one line and must not control a
// terminal.
static void message_set(const char *text, bool cut) {
    snprintf(message, sizeof message, "%s", text);
    mz_text_tame(message);
    size_t n = strlen(message);
    if (cut && n >= 3)
        memcpy(message + n - 3, "...", 3);
}

mezzo_status mz_fail_at(mezzo_status status, const char *file, int line, const char *func, const char *fmt, ...) {
    char text[MESSAGE_BYTES]; // an argument may be the old message
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    message_set(n < 0 ? fmt : text, n >= MESSAGE_BYTES);
    trace[0] = '\0';
    return mz_trace(status, file, line, func);
}

// Reports an argument that is NULL. `names` are the arguments as they were written, separated by ", ".
mezzo_status mz_fail_null(const char *file, int line, const char *func, const char *names, size_t which) {
    for (; which > 0; which--)
        names += strcspn(names, ",") + strlen(", ");
    return mz_fail_at(MEZZO_ERR_INVALID, file, line, func, "%s: %.*s is NULL", func, (int)strcspn(names, ","), names);
}

mezzo_status mz_trace(mezzo_status status, const char *file, int line, const char *func) {
    if (status == MEZZO_OK)
        return status;
    size_t used = strlen(trace);
    int n = snprintf(trace + used, sizeof trace - used, "%s%s:%d %s", used > 0 ? "\n" : "", file, line, func);
    if (n < 0 || (size_t)n >= sizeof trace - used)
        trace[used] = '\0'; // removes a partial frame: the innermost ones matter most
    return status;
}

mezzo_status mz_context(mezzo_status status, const char *fmt, ...) {
    if (status == MEZZO_OK)
        return status;
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0 || n >= MESSAGE_BYTES)
        return status;
    size_t len = (size_t)n;
    const char *glue = len > 0 && text[len - 1] == ' ' ? "" : len > 0 && text[len - 1] == ':' ? " " : ": ";
    int m = snprintf(text + len, sizeof text - len, "%s%s", glue, message);
    message_set(text, m < 0 || (size_t)m >= sizeof text - len);
    return status;
}
