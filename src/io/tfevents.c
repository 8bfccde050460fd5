// Encodes TensorBoard's few small messages itself. Field numbers are those of tensorflow/core/util/event.proto,
// framework/summary.proto and framework/tensor.proto; the frame is that of tensorflow/core/lib/io/record_writer.cc.
#define _GNU_SOURCE
#include "io/tfevents.h"

#include <time.h>

#include "io/file.h"

struct mz_tfevents {
    mz_file *file;
    mz_text summary;       // the Summary message with the values collected so far
    mz_text value, nested; // scratch
    mz_text record;        // scratch
};

// --- protocol buffers ----------------------------------------------------------------------------------------------
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(mz_text *out, uint64_t x) {
    char bytes[10];
    size_t n = 0;
    do {
        bytes[n++] = (char)((x & 0x7F) | (x > 0x7F ? 0x80 : 0));
        x >>= 7;
    } while (x > 0);
    mz_text_add(out, bytes, n);
}

static void put_key(mz_text *out, unsigned field, unsigned type) {
    put_varint(out, field << 3 | type);
}

static void put_int(mz_text *out, unsigned field, int64_t x) {
    put_key(out, field, VARINT);
    put_varint(out, (uint64_t)x);
}

static void put_little(mz_text *out, uint64_t bits, size_t bytes) {
    char raw[8];
    for (size_t i = 0; i < bytes; i++)
        raw[i] = (char)(bits >> (8 * i));
    mz_text_add(out, raw, bytes);
}

static void put_double(mz_text *out, unsigned field, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_key(out, field, FIXED64);
    put_little(out, bits, 8);
}

static void put_float(mz_text *out, unsigned field, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_key(out, field, FIXED32);
    put_little(out, bits, 4);
}

static void put_bytes(mz_text *out, unsigned field, const char *bytes, size_t n) {
    put_key(out, field, BYTES);
    put_varint(out, n);
    mz_text_add(out, bytes, n);
}

static void put_string(mz_text *out, unsigned field, const char *text) {
    put_bytes(out, field, text, strlen(text));
}

static void reset(mz_text *t) {
    t->len = 0;
}

// Puts a message into another one. A text that failed to grow stays in error; the error must reach the caller through
// every text that contains it.
static void put_message(mz_text *out, unsigned field, mz_text *message) {
    if (message->status != MEZZO_OK)
        out->status = message->status;
    put_bytes(out, field, message->data, message->len);
}

// --- records -------------------------------------------------------------------------------------------------------
// Masks a checksum as TFRecord does: rotated right by 15 bits, plus a constant.
static uint32_t masked_crc(const void *bytes, size_t n) {
    uint32_t crc = mz_crc32c(0, bytes, n);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

// Frames `event`, whose first 12 bytes are space for the length and its checksum, and writes it in one call.
enum { FRAME_HEAD = 12 };
static mezzo_status write_record(mz_tfevents *e, mz_text *event) {
    MEZZO_TRY(event->status);
    uint64_t n = event->len - FRAME_HEAD;
    for (size_t i = 0; i < 8; i++)
        event->data[i] = (char)(n >> (8 * i));
    uint32_t crc = masked_crc(event->data, 8);
    for (size_t i = 0; i < 4; i++)
        event->data[8 + i] = (char)(crc >> (8 * i));
    put_little(event, masked_crc(event->data + FRAME_HEAD, (size_t)n), 4);
    MEZZO_TRY(event->status);
    return mz_file_write(e->file, event->data, event->len);
}

// Field numbers of Event: wall_time 1, step 2, file_version 3, summary 5, session_log 7.
static void begin_event(mz_text *event, int64_t step) {
    static const char room[FRAME_HEAD];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    reset(event);
    mz_text_add(event, room, sizeof room);
    put_double(event, 1, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    put_int(event, 2, step);
}

static mezzo_status write_start(mz_tfevents *e, int64_t resume_step) {
    begin_event(&e->record, 0);
    put_string(&e->record, 3, "brain.Event:2");
    MEZZO_TRY(write_record(e, &e->record));
    if (resume_step < 0)
        return MEZZO_OK;
    // A SessionLog with status START (1) makes readers drop earlier files' events from this step on.
    begin_event(&e->record, resume_step + 1);
    reset(&e->nested);
    put_int(&e->nested, 1, 1);
    put_message(&e->record, 7, &e->nested);
    return write_record(e, &e->record);
}

mezzo_status mz_tfevents_open(const char *folder, int64_t resume_step, mz_tfevents **out) {
    *out = NULL;
    mezzo_status status = MEZZO_OK;
    mz_tfevents *e;
    MEZZO_TRY(MZ_NEW(e, 1));
    mz_path path;
    int n = 0;
    do // several runs may start within one second
        path = mz_path_of("%s/events.out.tfevents.%010lld.mezzo.%d", folder, (long long)time(NULL), n++);
    while (mz_path_exists(path.text));
    MEZZO_TRY_GOTO(status, mz_file_create_new(path.text, &e->file));
    MEZZO_TRY_GOTO(status, write_start(e, resume_step));
    *out = e;
    return MEZZO_OK;
fail:
    mz_tfevents_close(e);
    return status;
}

void mz_tfevents_close(mz_tfevents *e) {
    if (!e)
        return;
    mz_file_discard(e->file); // nothing is staged, so this closes it
    mz_text_free(&e->summary);
    mz_text_free(&e->value);
    mz_text_free(&e->nested);
    mz_text_free(&e->record);
    mz_free(e);
}

// --- values --------------------------------------------------------------------------------------------------------
// Field numbers of Summary: value 1. Value: tag 1, simple_value 2, histo 5, tensor 8, metadata 9.
static void begin_value(mz_tfevents *e, const char *tag) {
    reset(&e->value);
    put_string(&e->value, 1, tag);
}

static void end_value(mz_tfevents *e) {
    put_message(&e->summary, 1, &e->value);
}

void mz_tfevents_add_scalar(mz_tfevents *e, const char *tag, double value) {
    begin_value(e, tag);
    put_float(&e->value, 2, (float)value);
    end_value(e);
}

void mz_tfevents_add_text(mz_tfevents *e, const char *tag, const char *text) {
    static const char plugin[] = "\x0A\x04text";    // PluginData: plugin_name 1
    static const char shape[] = "\x12\x02\x08\x01"; // TensorShapeProto: dim 2 { size 1: 1 }
    begin_value(e, tag);
    // SummaryMetadata: plugin_data 1, data_class 4 (2 is a tensor).
    reset(&e->nested);
    put_bytes(&e->nested, 1, plugin, sizeof plugin - 1);
    put_int(&e->nested, 4, 2);
    put_message(&e->value, 9, &e->nested);
    // TensorProto: dtype 1 (7 is a string), tensor_shape 2, string_val 8.
    reset(&e->nested);
    put_int(&e->nested, 1, 7);
    put_bytes(&e->nested, 2, shape, sizeof shape - 1);
    put_string(&e->nested, 8, text);
    put_message(&e->value, 8, &e->nested);
    end_value(e);
}

// Field numbers 6 (bucket_limit) and 7 (bucket), both packed doubles.
static void put_counts(mz_text *histogram, const double *edges, const double *counts, size_t n) {
    for (unsigned field = 6; field <= 7; field++) {
        const double *values = field == 6 ? edges : counts;
        put_key(histogram, field, BYTES);
        put_varint(histogram, n * 8);
        for (size_t i = 0; i < n; i++) {
            uint64_t bits;
            memcpy(&bits, &values[i], sizeof bits);
            put_little(histogram, bits, 8);
        }
    }
}

void mz_tfevents_add_counts(mz_tfevents *e, const char *tag, const double *edges, const double *counts, size_t n) {
    double total = 0, sum = 0, squares = 0, width = n > 1 ? edges[1] - edges[0] : 1;
    size_t first = n, last = 0;
    for (size_t i = 0; i < n; i++) {
        double middle = edges[i] - width / 2;
        if (counts[i] <= 0)
            continue;
        first = i < first ? i : first;
        last = i;
        total += counts[i];
        sum += counts[i] * middle;
        squares += counts[i] * middle * middle;
    }
    begin_value(e, tag);
    reset(&e->nested);
    put_double(&e->nested, 1, total > 0 ? edges[first] - width : 0);
    put_double(&e->nested, 2, total > 0 ? edges[last] : 0);
    put_double(&e->nested, 3, total);
    put_double(&e->nested, 4, sum);
    put_double(&e->nested, 5, squares);
    // A reader takes a bucket's left edge from the bucket before, so an empty bucket before the first one gives its
    // edge.
    size_t from = total > 0 && first > 0 ? first - 1 : first;
    if (total > 0)
        put_counts(&e->nested, edges + from, counts + from, last + 1 - from);
    else
        put_counts(&e->nested, (const double[]){0}, (const double[]){0}, 1);
    put_message(&e->value, 5, &e->nested);
    end_value(e);
}

mezzo_status mz_tfevents_write(mz_tfevents *e, int64_t step) {
    if (e->summary.len == 0 && e->summary.status == MEZZO_OK)
        return MEZZO_OK;
    begin_event(&e->record, step);
    put_message(&e->record, 5, &e->summary);
    reset(&e->summary);
    mezzo_status status = write_record(e, &e->record);
    // One failed append must not stop the rest of the run's events.
    e->summary.status = e->value.status = e->nested.status = e->record.status = MEZZO_OK;
    return status;
}

mezzo_status mz_tfevents_sync(mz_tfevents *e) {
    return mz_file_sync(e->file);
}
