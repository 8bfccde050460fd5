// Any bytes as a file of records, as they are and decompressed: refused with one line, or split into records that lie
// in order, and each of them parsed by every form: refused with one line, or messages of texts.
#include "data/record_forms.h"
#include "data/record_split.h"
#include "folder.h"
#include "io/json.h"

static void check_messages(const json_t *messages) {
    const json_t *message;
    size_t i;
    if (json_array_size(messages) == 0)
        __builtin_trap();
    json_array_foreach(messages, i, message) if (json_string_value(json_object_get(message, "role")) == NULL ||
                                                 json_string_value(json_object_get(message, "content")) == NULL)
        __builtin_trap();
}

static void parse_record(const json_t *json, const mz_record_form *form) {
    mz_record_content content;
    if (mz_record_parse("record", json, form, &content) != MEZZO_OK)
        fuzz_expect_message();
    else if (content.messages != NULL)
        check_messages(content.messages);
    else if (content.answer == NULL)
        __builtin_trap();
    mz_record_release(&content);
}

static void parse_span(const mz_record_span *span) {
    json_t *json;
    if (mz_json_parse("record", span->text, span->n, MZ_JSON_DEPTH, &json) != MEZZO_OK) {
        fuzz_expect_message();
        return;
    }
    parse_record(json, NULL);
    for (size_t i = 0; i < MZ_RECORD_FORMS; i++)
        parse_record(json, &mz_record_forms[i]);
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_reader *reader;
    mz_record_splitter *splitter;
    uint64_t line = 0;
    fuzz_put("in.jsonl", data, size);
    if (mz_reader_open(fuzz_path("in.jsonl"), &reader) != MEZZO_OK ||
        mz_record_splitter_open(reader, &splitter) != MEZZO_OK) {
        fuzz_expect_message();
        return 0;
    }
    for (;;) {
        mz_record_span span;
        if (mz_record_splitter_next(splitter, &span) != MEZZO_OK) {
            fuzz_expect_message();
            break;
        }
        if (span.text == NULL)
            break;
        if (span.line < line || span.line < 1)
            __builtin_trap();
        line = span.line;
        if (!span.too_long)
            parse_span(&span);
    }
    mz_record_splitter_close(splitter);
    return 0;
}
