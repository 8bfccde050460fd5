// The manifest lists the whole checkpoints in the order in which they were written. A save writes it last. Every
// checkpoint's state.json vouches for its own files, so that a lost manifest loses nothing.
#include <math.h>
#include <stdlib.h>

#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "checkpoint/checkpoint.h"

#define FORMAT  "mezzo-manifest"
#define VERSION 2 // version 2 has a checksum

void mz_manifest_free(mz_manifest *manifest) {
    mz_free(manifest->entries);
    *manifest = (mz_manifest){0};
}

int mz_manifest_best(const mz_manifest *manifest) {
    int best = -1;
    for (size_t i = manifest->count; i-- > 0;) {
        const mz_manifest_entry *e = &manifest->entries[i];
        if (isfinite(e->val_loss) && (best < 0 || (e->val_sampled == manifest->entries[best].val_sampled &&
                                                   e->val_loss <= manifest->entries[best].val_loss)))
            best = (int)i;
    }
    return best;
}

// Returns 500 for "step-00000500", and -1 for any other name. Names in a manifest must not lead out of the folder.
static int64_t step_of(const char *name) {
    const char *digits = name + strlen("step-");
    if (strncmp(name, "step-", strlen("step-")) != 0 || strspn(digits, "0123456789") != strlen(digits) ||
        digits[0] == '\0' || strlen(digits) > 18)
        return -1;
    return strtoll(digits, NULL, 10);
}

static mezzo_status read_entry(const char *where, const json_t *object, mz_manifest_entry *out) {
    const char *name = "";
    int64_t crc = 0, bytes = 0, metrics_crc = 0, metrics_bytes = 0;
    *out = (mz_manifest_entry){0};
    MEZZO_TRY(mz_json_get_string(where, object, "name", &name));
    if (strlen(name) >= sizeof out->name || step_of(name) < 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %s is not a checkpoint's name", where, mz_quote(name).text);
    memcpy(out->name, name, strlen(name) + 1);
    MEZZO_TRY(mz_json_get_int(where, object, "step", 0, MZ_CHECKPOINT_MAX_STEP, &out->step));
    MEZZO_TRY(mz_json_get_validation(where, object, "val_loss", "sampled_val_loss", &out->val_loss, &out->val_sampled));
    MEZZO_TRY(mz_json_get_int(where, object, "state_crc32c", 0, UINT32_MAX, &crc));
    MEZZO_TRY(mz_json_get_int(where, object, "state_bytes", 0, INT64_MAX, &bytes));
    out->state_crc = (uint32_t)crc;
    out->state_bytes = (uint64_t)bytes;
    if (json_object_get(object, "metrics_bytes") == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_json_get_int(where, object, "metrics_crc32c", 0, UINT32_MAX, &metrics_crc));
    MEZZO_TRY(mz_json_get_int(where, object, "metrics_bytes", 0, INT64_MAX, &metrics_bytes));
    out->metrics = (mz_written){(uint64_t)metrics_bytes, (uint32_t)metrics_crc};
    return MEZZO_OK;
}

static mezzo_status read_entries(const char *where, const json_t *root, bool sealed, mz_manifest *out) {
    int64_t version = 0;
    const char *format = "";
    json_t *list;
    MEZZO_TRY(mz_json_get_string(where, root, "format", &format));
    if (strcmp(format, FORMAT) != 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: not a manifest", where);
    MEZZO_TRY(mz_json_get_int(where, root, "version", 1, VERSION, &version));
    if (version >= 2 && !sealed)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its checksum is missing: the file was changed", where);
    MEZZO_TRY(mz_json_get_array(where, root, "checkpoints", &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        MEZZO_TRY(MZ_RESERVE(out->entries, out->cap, out->count + 1));
        MEZZO_TRY(read_entry(where, json_array_get(list, i), &out->entries[out->count]));
        out->count++;
    }
    return MEZZO_OK;
}

static mezzo_status read_manifest(const char *path, mz_manifest *out) {
    MZ_SCOPED(mz_json_free_at) json_t *root = NULL;
    bool sealed;
    MEZZO_TRY(mz_json_load_sealed(path, MZ_MANIFEST_MAX_BYTES, &root, &sealed));
    return read_entries(path, root, sealed, out);
}

static bool named(const mz_manifest *manifest, const char *name) {
    return MZ_FIND(manifest->entries, manifest->count, name, name) != NULL;
}

// Adds a folder that the manifest does not name; the caller reserved memory for it. An unreadable folder is left out
// and left alone.
static mezzo_status adopt(const char *folder, const char *name, mz_manifest *found) {
    mezzo_checkpoint checkpoint = {0};
    mz_checkpoint_state state;
    mz_manifest_entry *entry = &found->entries[found->count];
    const mz_path path = mz_path_of("%s/%s/state.json", folder, name);
    mezzo_status status = mz_state_load(path.text, &checkpoint, &state);
    if (status == MEZZO_OK) {
        *entry = (mz_manifest_entry){
            .step = checkpoint.step, .val_loss = checkpoint.val_loss, .val_sampled = checkpoint.val_sampled};
        memcpy(entry->name, name, strlen(name) + 1);
        status = mz_file_crc32c(path.text, &entry->state_crc, &entry->state_bytes);
    }
    if (status == MEZZO_OK)
        found->count++;
    return status == MEZZO_ERR_MEMORY ? status : MEZZO_OK;
}

// Adds all such folders. Names are sorted, and zero-padded numbers sort as numbers.
static mezzo_status adopt_unnamed(const char *folder, char **names, size_t n, const mz_manifest *known,
                                  mz_manifest *found) {
    for (size_t i = 0; i < n; i++) {
        if (step_of(names[i]) < 0 || strlen(names[i]) >= sizeof found->entries->name || named(known, names[i]))
            continue;
        MEZZO_TRY(MZ_RESERVE(found->entries, found->cap, found->count + 1));
        MEZZO_TRY(adopt(folder, names[i], found));
    }
    return MEZZO_OK;
}

static mezzo_status append(mz_manifest *to, const mz_manifest *from) {
    if (from->count == 0)
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(to->entries, to->cap, to->count + from->count));
    memcpy(to->entries + to->count, from->entries, from->count * sizeof *from->entries);
    to->count += from->count;
    return MEZZO_OK;
}

mezzo_status mz_manifest_load(const char *folder, mz_manifest *out) {
    mezzo_status status = MEZZO_OK;
    mz_manifest known = {0};
    char **names = NULL;
    size_t n = 0;
    *out = (mz_manifest){0};
    const mz_path path = mz_path_of("%s/manifest.json", folder);
    if (mz_path_exists(path.text)) {
        status = read_manifest(path.text, &known);
        if (status == MEZZO_ERR_MEMORY)
            goto fail;
        if (status != MEZZO_OK) {
            mz_log("warn", "%s; looking at the checkpoints themselves", mezzo_error_message());
            known.count = 0;
        }
    }
    MEZZO_TRY_GOTO(status, mz_dir_list(folder, &names, &n));
    MEZZO_TRY_GOTO(status, adopt_unnamed(folder, names, n, &known, out));
    MEZZO_TRY_GOTO(status, append(out, &known));
fail:
    mz_dir_list_free(names, n);
    mz_manifest_free(&known);
    return status;
}

mezzo_status mz_manifest_metrics(const char *folder, int64_t step, mz_written *out, int64_t *at) {
    mz_manifest m = {0};
    *out = (mz_written){0};
    const mz_path path = mz_path_of("%s/manifest.json", folder);
    mezzo_status status = mz_path_exists(path.text) ? read_manifest(path.text, &m) : MEZZO_OK;
    for (size_t i = status == MEZZO_OK ? m.count : 0; i-- > 0 && out->bytes == 0;)
        if (step < 0 || m.entries[i].step == step) {
            *out = m.entries[i].metrics;
            *at = m.entries[i].step;
        }
    mz_manifest_free(&m);
    return status == MEZZO_ERR_MEMORY ? status : MEZZO_OK;
}

static mezzo_status put_entry(json_t *list, const mz_manifest_entry *entry) {
    json_t *object = json_object();
    if (object == NULL || json_array_append_new(list, object) != 0)
        return mz_fail(MEZZO_ERR_MEMORY, "no memory for the manifest");
    MEZZO_TRY(mz_json_set(object, "name", json_string(entry->name)));
    MEZZO_TRY(mz_json_set(object, "step", json_integer(entry->step)));
    MEZZO_TRY(
        mz_json_set(object, entry->val_sampled ? "sampled_val_loss" : "val_loss", mz_json_number(entry->val_loss)));
    MEZZO_TRY(mz_json_set(object, "state_bytes", json_integer((json_int_t)entry->state_bytes)));
    MEZZO_TRY(mz_json_set(object, "state_crc32c", json_integer((json_int_t)entry->state_crc)));
    if (entry->metrics.bytes == 0)
        return MEZZO_OK;
    MEZZO_TRY(mz_json_set(object, "metrics_bytes", json_integer((json_int_t)entry->metrics.bytes)));
    return mz_json_set(object, "metrics_crc32c", json_integer((json_int_t)entry->metrics.crc));
}

static mezzo_status put_manifest(json_t *root, const mz_manifest *manifest) {
    int best = mz_manifest_best(manifest);
    MEZZO_TRY(mz_json_set(root, "format", json_string(FORMAT)));
    MEZZO_TRY(mz_json_set(root, "version", json_integer(VERSION)));
    if (manifest->count > 0)
        MEZZO_TRY(mz_json_set(root, "newest", json_string(manifest->entries[manifest->count - 1].name)));
    if (best >= 0)
        MEZZO_TRY(mz_json_set(root, "best", json_string(manifest->entries[best].name)));
    json_t *list = json_array();
    MEZZO_TRY(mz_json_set(root, "checkpoints", list));
    for (size_t i = 0; i < manifest->count; i++)
        MEZZO_TRY(put_entry(list, &manifest->entries[i]));
    return MEZZO_OK;
}

mezzo_status mz_manifest_save(const char *folder, const mz_manifest *manifest) {
    MZ_SCOPED(mz_json_free_at) json_t *root = mz_json_new();
    MEZZO_TRY(root == NULL ? mz_fail(MEZZO_ERR_MEMORY, "no memory for the manifest") : put_manifest(root, manifest));
    return mz_json_save_sealed(mz_path_of("%s/manifest.json", folder).text, root, NULL);
}
