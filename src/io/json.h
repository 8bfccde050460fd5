// Reads and writes JSON. Input may come from anywhere: sizes and depth are limited, duplicate keys are refused, and
// errors name file and key.
#ifndef MZ_IO_JSON_H
#define MZ_IO_JSON_H

#include <jansson.h>

#include "base/scope.h"
#include "io/file.h"

#define MZ_JSON_DEPTH 16 // deep enough for every format Mezzo reads

// jansson's setters do not report that memory ran out. So its allocations go through a counter of this thread, which
// every parse and dump checks: mz_json_new starts a value to be written, and mz_json_dump returns MEZZO_ERR_MEMORY if
// any allocation failed since.
void mz_json_begin(void);  // clears the counter of failures; a program calls it before its first json_object()
json_t *mz_json_new(void); // calls mz_json_begin and returns an empty object; NULL when out of memory
MZ_FREE_AT(mz_json_free_at, json_t, json_decref)
bool mz_json_ran_out(void); // whether an allocation failed since mz_json_begin, in this thread
// Writes a value. Numbers have the shortest form that reads back exactly. The caller calls free(*text). NULL `value` is
// MEMORY.
mezzo_status mz_json_dump(const json_t *value, size_t flags, char **text);

// Parses one object or array of `n` bytes; `where` names the source in errors ("model.safetensors: header").
// MEZZO_ERR_FORMAT: not JSON, deeper than max_depth, duplicate keys, text after the value. Free with json_decref.
// Extensions of RFC 8259 that Python's json writes are read, too: an integer beyond 64 bits as the nearest double; NaN,
// infinities and text with half of a surrogate pair as a mark, so that only a key that is used is refused for it: the
// functions below report "key 'k': expected a number, got NaN".
mezzo_status mz_json_parse(const char *where, const char *text, size_t n, int max_depth, json_t **out);

// The mark: an object with this one key, whose value has the words for a message.
#define MZ_JSON_MARK "\\u0001"
// Returns MEZZO_ERR_FORMAT, "WHERE: key 'k': …", where a mark is anywhere in `value`, all of which is used.
mezzo_status mz_json_refuse_marks(const char *where, const char *key, const json_t *value);
// Converts JSON as Python writes it to what jansson reads (json_python.c). *out stays empty where nothing has to
// change.
mezzo_status mz_json_from_python(const char *text, size_t n, mz_text *out);

// Loads a file of at most max_bytes, nested at most MZ_JSON_DEPTH deep.
mezzo_status mz_json_load(const char *path, size_t max_bytes, json_t **out);

// Writes it atomically, indented by two, keys in insertion order, numbers as mz_json_dump writes them, with a newline
// at the end.
mezzo_status mz_json_save(const char *path, const json_t *value);
// Saves a value likewise, and frees it; NULL: out of memory.
mezzo_status mz_json_save_owned(json_t *value, const char *path);

// Saves a value with a last member "crc32c", eight hexadecimal digits: the checksum of all bytes before that member's
// comma. *written (may be NULL): that of the whole file.
mezzo_status mz_json_save_sealed(const char *path, const json_t *value, mz_written *written);
// Saves likewise where the root may have no other member: "crc32c" is the last member of the root's last object.
mezzo_status mz_json_save_sealed_within(const char *path, const json_t *value, mz_written *written);
// Loads such a file. MEZZO_ERR_FORMAT where the checksum is wrong. *sealed: there is one; whether it is required
// depends on the format's version.
mezzo_status mz_json_load_sealed(const char *path, size_t max_bytes, json_t **out, bool *sealed);

// Make a string in which bytes that are not UTF-8 become U+FFFD; NULL: out of memory, which the dump reports.
json_t *mz_json_text(const char *text);
json_t *mz_json_bytes(const char *bytes, size_t n);
// Appends "text" in quotes with JSON's escapes; bytes that are not UTF-8 become U+FFFD.
void mz_json_add_text(mz_text *out, const char *text);

// Get members of an object. A missing one, or one of another type or out of range, is MEZZO_ERR_FORMAT: "WHERE: key
// 'k': expected …".
mezzo_status mz_json_get_int(const char *where, const json_t *object, const char *key, int64_t min, int64_t max,
                             int64_t *out);
mezzo_status mz_json_get_double(const char *where, const json_t *object, const char *key, double *out);
// Reads a list of at most `most` numbers above 0, as FP32; the rest of out[most] becomes 0.
mezzo_status mz_json_get_floats(const char *where, const json_t *object, const char *key, size_t most, float *out);
json_t *mz_json_number(double x);                       // null where x is not finite, because JSON has no NaN
json_t *mz_json_interval(double low, double high);      // makes [low, high]
json_t *mz_json_floats(const float *list, size_t most); // makes such a list; NULL: out of memory
mezzo_status mz_json_get_bool(const char *where, const json_t *object, const char *key, bool *out);
mezzo_status mz_json_get_string(const char *where, const json_t *object, const char *key, const char **out); // borrowed
mezzo_status mz_json_get_object(const char *where, const json_t *object, const char *key, json_t **out);     // borrowed
mezzo_status mz_json_get_array(const char *where, const json_t *object, const char *key, json_t **out);      // borrowed

#endif
