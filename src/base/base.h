// Declares what every folder may use: errors with a trace, counted allocation, logging, Philox. It depends on no other
// folder.
#ifndef MZ_BASE_H
#define MZ_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "mezzo/dtype.h"
#include "mezzo/status.h"

// --- errors --------------------------------------------------------------------------------------------------------
// Starts an error: clears the trace, formats the message, returns `status`. Use: return mz_fail(MEZZO_ERR_IO, "…", …);
#define mz_fail(status, ...) mz_fail_at((status), __FILE__, __LINE__, __func__, __VA_ARGS__)
mezzo_status mz_fail_at(mezzo_status status, const char *file, int line, const char *func, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
// Adds one frame to the trace of an error that is being returned.
mezzo_status mz_trace(mezzo_status status, const char *file, int line, const char *func);
// Puts a prefix and ": " before the current message: mz_context(s, "config.yaml") gives "config.yaml: …"; returns
// `status`.
mezzo_status mz_context(mezzo_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// Returns the status of an expression if it is an error, and adds a frame to its trace.
#define MEZZO_TRY(expr)                                                                                                \
    do {                                                                                                               \
        mezzo_status mz_try_status = (expr);                                                                           \
        if (mz_try_status != MEZZO_OK)                                                                                 \
            return mz_trace(mz_try_status, __FILE__, __LINE__, __func__);                                              \
    } while (0)
// Does so where there is memory to free: sets `status` and jumps to `fail`.
#define MEZZO_TRY_GOTO(status, expr)                                                                                   \
    do {                                                                                                               \
        (status) = (expr);                                                                                             \
        if ((status) != MEZZO_OK) {                                                                                    \
            mz_trace((status), __FILE__, __LINE__, __func__);                                                          \
            goto fail;                                                                                                 \
        }                                                                                                              \
    } while (0)

// Begins a public function: MEZZO_ERR_INVALID names the first argument that is NULL.
#define MZ_REQUIRE(...)                                                                                                \
    do {                                                                                                               \
        const void *const mz_given[] = {__VA_ARGS__};                                                                  \
        for (size_t mz_i = 0; mz_i < sizeof mz_given / sizeof *mz_given; mz_i++)                                       \
            if (mz_given[mz_i] == NULL)                                                                                \
                return mz_fail_null(__FILE__, __LINE__, __func__, #__VA_ARGS__, mz_i);                                 \
    } while (0)
mezzo_status mz_fail_null(const char *file, int line, const char *func, const char *names, size_t which);

// --- formats -------------------------------------------------------------------------------------------------------
double mz_load_float(const void *src, mezzo_dtype dtype); // from any address
int64_t mz_load_integer(const void *src, mezzo_dtype dtype);
double mz_dtype_largest(mezzo_dtype dtype); // the largest finite number; 0: integers
double mz_unit_roundoff(mezzo_dtype dtype); // the largest relative error of rounding to nearest; 0: integers

// --- log -----------------------------------------------------------------------------------------------------------
bool mz_verbose_names(const char *topic); // MEZZO_VERBOSE, a comma list of topics or "all", names the topic
bool mz_log_enabled(const char *topic);   // a sink is set, and the topic is not "dispatch" or MEZZO_VERBOSE names it
void mz_log(const char *topic, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// Receives the progress of long work from the code that does it (the command listens). Work begins with done 0, has
// ended with done == total, and may contain other work. It is set once, before other threads start; NULL: no listener.
typedef void (*mz_work_fn)(const char *what, int64_t done, int64_t total);
void mz_work_set(mz_work_fn fn);
void mz_work(const char *what, int64_t done, int64_t total);

// --- memory --------------------------------------------------------------------------------------------------------
// All allocations of the library use these functions; they count, and a test makes the N-th fail. Memory is zeroed and
// 64-byte aligned. They set MEZZO_ERR_MEMORY's message and return NULL on failure (also on overflow of count × size).
void *mz_alloc(size_t count, size_t size);
void *mz_grow(void *ptr, size_t old_count, size_t new_count,
              size_t size); // new tail zeroed; ptr stays valid on failure
// Allocates like mz_alloc, for blocks that may have gigabytes: INTERRUPTED if the thread's flag (base/stop.h) is set
// meanwhile. *out NULL on errors.
mezzo_status mz_alloc_or_stop(size_t bytes, void **out);
size_t mz_alloc_bytes(size_t bytes); // the bytes that a block of this size takes: large ones take whole huge pages
void mz_copy(void *to, const void *from, size_t bytes); // memcpy; by several threads from 1 MiB on
char *mz_strdup(const char *s);
char *mz_format(const char *fmt, ...) __attribute__((format(printf, 1, 2))); // allocated
void mz_free(void *ptr);
// Frees several blocks, each of which may be NULL.
#define MZ_FREE(...) mz_free_all((void *[]){__VA_ARGS__}, MZ_COUNT(((void *[]){__VA_ARGS__})))
void mz_free_all(void *const *blocks, size_t n);
// Is called at the beginning of a public _free or _close; returns false for NULL, and, with a message, for an object
// that was freed before. It knows the last freed objects until their memory is another object.
bool mz_free_once(const void *object, const char *what);
uint64_t mz_alloc_count(void);       // calls so far, all threads
void mz_alloc_fail_after(int64_t n); // fault injection: the n-th call from now fails (0 = next); negative = never

// Allocates n zeroed elements for `ptr`, as mz_alloc does. Returns MEZZO_OK, or MEZZO_ERR_MEMORY with `ptr` NULL.
#define MZ_NEW(ptr, n) mz_new((void **)&(ptr), (size_t)(n), sizeof *(ptr))
mezzo_status mz_new(void **ptr, size_t count, size_t size);

// Grows a dynamic array `ptr` of `cap` elements to hold at least `need`. Returns MEZZO_OK or MEZZO_ERR_MEMORY.
#define MZ_RESERVE(ptr, cap, need) mz_reserve((void **)&(ptr), &(cap), (size_t)(need), sizeof *(ptr))
mezzo_status mz_reserve(void **ptr, size_t *cap, size_t need, size_t size);

// Holds text that grows by appending. Initialize it with zeros; free it with mz_text_free. After a failed append,
// status stays set.
typedef struct mz_text {
    char *data; // NUL-terminated once something was appended
    size_t len, cap;
    mezzo_status status;
} mz_text;
void mz_text_addf(mz_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void mz_text_add(mz_text *t, const char *bytes, size_t n);
void mz_text_free(mz_text *t);

// --- Philox4x32-10 (Salmon et al., SC'11) --------------------------------------------------------------------------
// Selects random numbers: key = seed; counter = (element lo, element hi, tensor, step). A call gives four 32-bit words;
// it is a pure function, so calls may come in any order from any thread.
typedef struct mz_philox_key {
    uint64_t seed;
    uint32_t step, tensor;
} mz_philox_key;
void mz_philox(mz_philox_key key, uint64_t index, uint32_t out[4]);
float mz_uniform(uint32_t word);                        // [0, 1): the top 24 bits
void mz_normal4(const uint32_t words[4], float out[4]); // Box–Muller
mz_philox_key mz_noise_key(int32_t low, int32_t high);  // key of the op `normal`, from a row's two words

// --- text ----------------------------------------------------------------------------------------------------------
bool mz_glob_match(const char *pattern, const char *text); // '*' any run (dots too), '?' one character
// Matches a list of patterns separated by commas: a pattern names a module by its whole path or by the path's end.
// next: copies the first of the list and advances to the following one; false at the end.
bool mz_names_module(const char *pattern, const char *module);
bool mz_next_pattern(const char **list, char pattern[256]);
void mz_star_numbers(const char *module, char *out, size_t size); // "h.11.mlp.fc" -> "h.*.mlp.fc"
// Returns the bytes of the UTF-8 character at `text` if it must not reach a terminal, else 0: a control character (C0,
// DEL, C1), an end of a line or of a paragraph, a change of writing direction, an invisible tag (U+E0000 to U+E007F).
size_t mz_text_unshown(const char *text);
void mz_text_tame(char *text); // replaces these characters by spaces, in place
enum { MZ_FLOAT_TEXT = 16 };
// Writes the shortest decimal of 6 to 9 digits that reads back as x. Returns `out`.
const char *mz_float_text(float x, char out[MZ_FLOAT_TEXT]);
// Returns the candidate nearest to `word` by edit distance, or NULL when none is close (distance > max(2, len/3)).
const char *mz_nearest(const char *word, const char *const *candidates, size_t n);
// Finds the first of `n` structs whose text `member`, a pointer or an array, equals `word`: NULL where there is none;
// as an index, n. MZ_INDEX_WORD finds a text in a list of texts.
#define MZ_FIND(list, n, member, word)                                                                                 \
    mz_find((list), (size_t)(n), sizeof *(list), offsetof(__typeof__(*(list)), member), MZ_INSIDE((list)->member), word)
#define MZ_INDEX(list, n, member, word)                                                                                \
    mz_index((list), (size_t)(n), sizeof *(list), offsetof(__typeof__(*(list)), member), MZ_INSIDE((list)->member),    \
             word)
#define MZ_INDEX_WORD(list, n, word) mz_index((list), (size_t)(n), sizeof *(list), 0, MZ_INSIDE(*(list)), word)
#define MZ_INSIDE(text)              /* whether it is an array */                                                      \
    _Generic(&(text), char **: false, char *const *: false, const char **: false, const char *const *: false,          \
             default: true)
void *mz_find(const void *list, size_t n, size_t stride, size_t offset, bool inside, const char *word);
size_t mz_index(const void *list, size_t n, size_t stride, size_t offset, bool inside, const char *word);
bool mz_all_finite(const float *x, size_t n);
double mz_seconds(void);     // monotonic clock
double mz_cpu_seconds(void); // processor time of this process's threads
// Returns the joules of all processor packages since an arbitrary start; NaN where the counter is not readable. *range:
// the value at which one package's counter starts again from 0.
double mz_host_joules(double *range);

// Prepares a process, once and before a region of OpenMP, for forks after which both processes may train (fork.c).
void mz_survive_fork(void);

#define MZ_COUNT(a) (sizeof(a) / sizeof *(a))
static inline size_t mz_align_up(size_t x, size_t to) {
    return (x + to - 1) / to * to;
}

#endif
