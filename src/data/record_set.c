#include "data/record_set.h"

#include <glob.h>
#include <math.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "base/stop.h"
#include "data/record_forms.h"
#include "data/record_split.h"
#include "data/tokenizer.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"

void mz_record_set_close(mz_record_set *set) {
    for (size_t i = 0; i < set->n_files; i++)
        mz_free(set->files[i].path);
    MZ_FREE(set->files, set->records);
    mz_chat_tokens_free(&set->all);
    mz_free(set->source);
    *set = (mz_record_set){0};
}

// --- sources -------------------------------------------------------------------------------------------------------
static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0 && text[n - m - 1] != '/';
}

static bool names_records(const char *path) {
    static const char *const ends[] = {".jsonl", ".json", ".jsonl.gz", ".json.gz"};
    for (size_t i = 0; i < MZ_COUNT(ends); i++)
        if (ends_with(path, ends[i]))
            return true;
    return false;
}

// Returns whether a folder holds records: it has such files, no token shards (whose tokenizer.json stands beside them),
// and no folders, as pictures have.
static bool holds_records(const char *folder) {
    char **names;
    size_t n, records = 0, others = 0;
    if (mz_dir_list(folder, &names, &n) != MEZZO_OK)
        return false;
    for (size_t i = 0; i < n && others == 0; i++) {
        records += names_records(names[i]);
        others += mz_path_is_dir(mz_path_of("%s/%s", folder, names[i]).text) || ends_with(names[i], ".bin");
    }
    mz_dir_list_free(names, n);
    return records > 0 && others == 0;
}

// Holds one source of a list. A file is opened first under its whole name, which may contain the colon.
typedef struct part {
    mz_path path;
    double weight;
} part;

static mezzo_status parse_part(const char *text, size_t n, part *out) {
    char *end;
    *out = (part){.path = mz_path_of("%.*s", (int)n, text), .weight = 1};
    char *colon = strrchr(out->path.text, ':');
    if (colon == NULL || mz_path_exists(out->path.text))
        return MEZZO_OK;
    out->weight = mz_strtod(colon + 1, &end);
    if (end == colon + 1 || *end != '\0' || !(out->weight > 0 && out->weight <= 1e6))
        return mz_fail(MEZZO_ERR_INVALID, "%s: the weight after the colon must be above 0 and at most 1e6",
                       mz_quote(out->path.text).text);
    *colon = '\0';
    return MEZZO_OK;
}

// Finds the next source of a list and advances *at; an existing name with a comma is tried first.
static mezzo_status next_part(const char **at, part *out) {
    const size_t n = mz_path_exists(*at) ? strlen(*at) : strcspn(*at, ",");
    const char *text = *at;
    *at += n + (text[n] == ',');
    return parse_part(text, n, out);
}

bool mz_is_records(const char *source) {
    bool found = false;
    for (const char *at = source != NULL ? source : ""; *at != '\0' && !found;) {
        part p;
        if (next_part(&at, &p) != MEZZO_OK)
            return strstr(source, ".json") != NULL; // the open that follows reports a wrong weight
        found = names_records(p.path.text) || (mz_path_is_dir(p.path.text) && holds_records(p.path.text));
    }
    return found;
}

// --- one record ----------------------------------------------------------------------------------------------------
typedef struct reading {
    mz_record_set *set;
    const mz_record_form *form;
    const mezzo_tokenizer *tokenizer;
    size_t refused; // in this file
} reading;

static mezzo_status add_text(const reading *r, const char *where, const char *text, mz_place place, bool counts) {
    mezzo_status status = mz_chat_tokens_add(&r->set->all, r->tokenizer, text, strlen(text), place, counts);
    return status == MEZZO_ERR_INVALID ? mz_context(status, "%s", where) : status;
}

static mezzo_status add_content(const reading *r, const char *where, const mz_record_content *content) {
    if (content->messages != NULL)
        return mz_chat_encode(r->tokenizer, where, content->messages, false, &r->set->all);
    if (content->prompt != NULL)
        MEZZO_TRY(add_text(r, where, content->prompt, MZ_PLACE_BEGINS, false));
    MEZZO_TRY(
        add_text(r, where, content->answer, content->prompt != NULL ? MZ_PLACE_CONTINUES : MZ_PLACE_BEGINS, true));
    return mz_chat_end_token(&r->set->all, r->tokenizer);
}

static mezzo_status add_json(const reading *r, const char *where, const json_t *record) {
    mz_record_set *set = r->set;
    mz_record_content content;
    const uint64_t begin = set->all.n;
    MEZZO_TRY(MZ_RESERVE(set->records, set->cap, set->count + 1));
    mezzo_status status = mz_record_parse(where, record, r->form, &content);
    if (status == MEZZO_OK)
        status = add_content(r, where, &content);
    if (status == MEZZO_OK) {
        set->records[set->count++] = (mz_record_range){begin, set->all.n};
        set->conversations += content.messages != NULL;
        set->documents += content.messages == NULL && content.prompt == NULL;
    } else {
        set->all.n = begin;
    }
    mz_record_release(&content);
    return status;
}

// Adds a record. FORMAT and INVALID refuse the record alone; other errors end the reading.
static mezzo_status add_span(reading *r, const char *where, const mz_record_span *span) {
    json_t *record = NULL;
    MEZZO_TRY(mz_stop_check(where));
    mezzo_status status =
        span->too_long ? mz_fail(MEZZO_ERR_FORMAT, "%s: a record of more than %d MiB", where, MZ_RECORD_BYTES >> 20)
                       : mz_json_parse(where, span->text, span->n, MZ_JSON_DEPTH, &record);
    if (status == MEZZO_OK)
        status = add_json(r, where, record);
    json_decref(record);
    if (status != MEZZO_ERR_FORMAT && status != MEZZO_ERR_INVALID)
        return status;
    if (r->set->refused < MZ_REFUSED_SHOWN)
        snprintf(r->set->shown[r->set->refused], sizeof *r->set->shown, "%s", mezzo_error_message());
    r->set->refused++;
    r->refused++;
    return MEZZO_OK;
}

// --- files ---------------------------------------------------------------------------------------------------------
static mezzo_status read_records(reading *r, const char *path, mz_record_splitter *splitter) {
    char where[512], first[512] = "";
    r->refused = 0;
    const size_t before = r->set->count;
    for (;;) {
        mz_record_span span;
        MEZZO_TRY(mz_record_splitter_next(splitter, &span));
        if (span.text == NULL)
            break;
        snprintf(where, sizeof where, "%.400s:%llu", path, (unsigned long long)span.line);
        const size_t refused = r->refused;
        MEZZO_TRY(add_span(r, where, &span));
        if (refused == 0 && r->refused == 1)
            snprintf(first, sizeof first, "%s", mezzo_error_message());
    }
    const size_t read = r->set->count - before;
    if (read == 0 && r->refused == 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s: no record in it", path);
    if (r->refused > read)
        return mz_fail(MEZZO_ERR_FORMAT, "%s (%zu of the %zu records of this file cannot be used)", first, r->refused,
                       r->refused + read);
    return MEZZO_OK;
}

static mezzo_status add_file(reading *r, const char *path, double weight) {
    mz_record_set *set = r->set;
    mz_reader *reader;
    mz_record_splitter *splitter;
    if (!names_records(path))
        return mz_fail(MEZZO_ERR_INVALID, "%s is among files of records, which are *.jsonl or *.json, also with .gz",
                       mz_quote(path).text);
    MEZZO_TRY(MZ_RESERVE(set->files, set->cap_files, set->n_files + 1));
    mz_record_file file = {.path = mz_strdup(path), .weight = weight, .first = set->count};
    if (file.path == NULL)
        return MEZZO_ERR_MEMORY;
    set->files[set->n_files++] = file;
    MEZZO_TRY(mz_reader_open(path, &reader));
    MEZZO_TRY(mz_record_splitter_open(reader, &splitter));
    mezzo_status status = read_records(r, path, splitter);
    mz_record_splitter_close(splitter);
    set->files[set->n_files - 1].count = set->count - file.first;
    return status;
}

static mezzo_status add_folder(reading *r, const part *p) {
    char **names;
    size_t n;
    MEZZO_TRY(mz_dir_list(p->path.text, &names, &n));
    mezzo_status status = MEZZO_OK;
    const size_t before = r->set->n_files;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++)
        if (names_records(names[i]))
            status = add_file(r, mz_path_of("%s/%s", p->path.text, names[i]).text, p->weight);
    mz_dir_list_free(names, n);
    if (status == MEZZO_OK && r->set->n_files == before)
        status = mz_fail(MEZZO_ERR_INVALID, "folder %s has no *.jsonl and no *.json", mz_quote(p->path.text).text);
    return status;
}

static mezzo_status add_pattern(reading *r, const part *p) {
    glob_t found;
    const int result = glob(p->path.text, GLOB_ERR, NULL, &found);
    if (result == GLOB_NOSPACE)
        return MEZZO_ERR_MEMORY;
    if (result != 0)
        return mz_fail(MEZZO_ERR_INVALID, "no file matches %s", mz_quote(p->path.text).text);
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; i < found.gl_pathc && status == MEZZO_OK; i++)
        status = add_file(r, found.gl_pathv[i], p->weight);
    globfree(&found);
    return status;
}

static mezzo_status add_part(reading *r, const part *p) {
    if (mz_path_is_dir(p->path.text))
        return add_folder(r, p);
    if (!mz_path_exists(p->path.text) && strpbrk(p->path.text, "*?[") != NULL)
        return add_pattern(r, p);
    return add_file(r, p->path.text, p->weight);
}

static mezzo_status read_all(reading *r, const char *source) {
    const size_t n = strlen(source);
    if (n > 0 && source[n - 1] == ',' && !mz_path_exists(source))
        return mz_fail(MEZZO_ERR_INVALID, "%s ends with a comma: remove it, or name one more file",
                       mz_quote(source).text);
    for (const char *at = source; *at != '\0';) {
        part p;
        MEZZO_TRY(next_part(&at, &p));
        MEZZO_TRY(add_part(r, &p));
    }
    return MEZZO_OK;
}

mezzo_status mz_record_set_open(const char *source, const char *form, const mezzo_tokenizer *tokenizer,
                                mz_record_set *out) {
    *out = (mz_record_set){.source = mz_strdup(source)};
    reading r = {.set = out, .tokenizer = tokenizer};
    mezzo_status status = out->source != NULL ? mz_record_form_named(form, &r.form) : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = read_all(&r, source);
    if (status != MEZZO_OK) {
        mz_record_set_close(out);
        return status;
    }
    out->tokens = out->all.n;
    for (size_t i = 0; i < out->all.n; i++)
        out->targets += out->all.counts[i];
    return MEZZO_OK;
}

mz_record_range mz_record_file_part(const mz_record_file *file, double from, double to) {
    const double n = (double)file->count;
    return (mz_record_range){file->first + (uint64_t)floor(from * n + 0.5),
                             file->first + (uint64_t)floor(to * n + 0.5)};
}

// --- counts --------------------------------------------------------------------------------------------------------
// Writes 1234567 as "1,234,567".
static void add_number(mz_text *out, unsigned long long n) {
    if (n >= 1000)
        add_number(out, n / 1000);
    mz_text_addf(out, n >= 1000 ? ",%03llu" : "%llu", n % 1000);
}

static mezzo_status describe(const mz_record_set *set, mz_text *out) {
    mz_text_addf(out, "%s: ", mz_quote(set->source).text);
    add_number(out, set->count);
    mz_text_addf(out, " record%s of %zu file%s, ", set->count == 1 ? "" : "s", set->n_files,
                 set->n_files == 1 ? "" : "s");
    add_number(out, set->tokens);
    mz_text_addf(out, " token%s, %.1f %% of %s targets", set->tokens == 1 ? "" : "s",
                 set->tokens > 0 ? 100.0 * (double)set->targets / (double)set->tokens : 0,
                 set->tokens == 1 ? "it" : "them");
    if (set->refused > 0) {
        mz_text_addf(out, "; ");
        add_number(out, set->refused);
        mz_text_addf(out, set->refused == 1 ? " cannot be used and is left out" : " cannot be used and are left out");
    }
    return out->status;
}

mezzo_status mz_record_set_log(const mz_record_set *set) {
    mz_text line = {0};
    mezzo_status status = describe(set, &line);
    if (status == MEZZO_OK)
        mz_log("notice", "%s", line.data);
    mz_text_free(&line);
    for (size_t i = 0; i < set->refused && i < MZ_REFUSED_SHOWN; i++)
        mz_log("warn", "left out: %s", set->shown[i]);
    if (set->refused > MZ_REFUSED_SHOWN)
        mz_log("warn", "left out: %zu more records of %s", set->refused - MZ_REFUSED_SHOWN, mz_quote(set->source).text);
    return status;
}
