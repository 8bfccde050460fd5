// Finds a whole checkpoint in a folder. Nothing here changes a folder but mz_checkpoint_recover, which its owner calls.
#include "base/scope.h"
#include "base/stop.h"
#include "checkpoint/checkpoint.h"
#include "io/file.h"

static mezzo_status verify_file(const char *folder, const char *file, const mz_file_mark *mark) {
    uint32_t crc = 0;
    uint64_t bytes = 0;
    MZ_SCOPED(mz_free_at) char *path = mz_format("%s/%s", folder, file);
    if (path == NULL)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(mz_file_crc32c(path, &crc, &bytes));
    if (bytes != mark->bytes)
        return mz_fail(
            MEZZO_ERR_FORMAT,
            "%s: %llu bytes, %llu were written: the file is truncated or was changed; use another checkpoint", path,
            (unsigned long long)bytes, (unsigned long long)mark->bytes);
    if (crc != mark->crc)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: checksum %08x, %08x was written: the file is corrupted; use another checkpoint", path, crc,
                       mark->crc);
    return MEZZO_OK;
}

mezzo_status mz_checkpoint_verify(const char *path, int parts, mezzo_checkpoint *checkpoint,
                                  mz_checkpoint_state *state) {
    char *file = mz_format("%s/state.json", path);
    if (file == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = mz_state_load(file, checkpoint, state);
    if (status == MEZZO_OK && !state->files[0].present)
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: key 'files' does not list model.safetensors", file);
    mz_free(file);
    for (int i = 0; i < MZ_CHECKPOINT_FILES && status == MEZZO_OK; i++)
        if (state->files[i].present && parts & 1 << i)
            status = verify_file(path, mz_checkpoint_files[i], &state->files[i]);
    return status;
}

// Visits checkpoints under hidden names. A kill between the two renames of a replacement, on a file system that cannot
// swap two names, leaves a whole checkpoint there. A reader may use it; only the folder's owner moves it back.
static mezzo_status each_replaced(const char *folder, mezzo_status (*visit)(void *user, const char *name), void *user) {
    char **names = NULL;
    size_t n = 0;
    MEZZO_TRY(mz_dir_list(folder, &names, &n));
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++)
        if (strncmp(names[i], MZ_CHECKPOINT_REPLACED, strlen(MZ_CHECKPOINT_REPLACED)) == 0)
            status = visit(user, names[i] + strlen(MZ_CHECKPOINT_REPLACED));
    mz_dir_list_free(names, n);
    return status;
}

static mezzo_status put_back(void *user, const char *name) {
    const char *folder = user;
    MZ_SCOPED(mz_free_at) char *replaced = mz_format("%s/" MZ_CHECKPOINT_REPLACED "%s", folder, name);
    MZ_SCOPED(mz_free_at) char *final = mz_format("%s/%s", folder, name);
    if (replaced == NULL || final == NULL)
        return MEZZO_ERR_MEMORY;
    return mz_path_exists(final) ? mz_dir_remove(replaced) : mz_dir_commit(replaced, final);
}

mezzo_status mz_checkpoint_recover(const char *folder) {
    MZ_SCOPED(mz_free_at) char *staged = mz_format("%s/" MZ_CHECKPOINT_STAGED, folder);
    if (staged == NULL)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(mz_path_is_dir(folder) ? each_replaced(folder, put_back, (void *)(uintptr_t)folder) : MEZZO_OK);
    return mz_dir_remove(staged);
}

mezzo_status mz_checkpoint_open_tensors(const char *folder, const char *file, mz_safetensors **out) {
    MZ_SCOPED(mz_free_at) char *path = mz_format("%s/%s", folder, file);
    if (path == NULL)
        return MEZZO_ERR_MEMORY;
    return mz_safetensors_open(path, out);
}

// Finds the first tensor of a file with a value that is not finite; FORMAT names it.
static mezzo_status check_finite(const char *folder, const char *file) {
    mz_safetensors *tensors;
    mezzo_status status = MEZZO_OK;
    MEZZO_TRY(mz_checkpoint_open_tensors(folder, file, &tensors));
    for (size_t i = 0; i < mz_safetensors_count(tensors) && status == MEZZO_OK; i++) {
        const mz_safetensors_tensor *t = mz_safetensors_at(tensors, i);
        size_t n = t->dtype == MEZZO_F32 ? t->bytes / sizeof(float) : 0, bad = 0, first = n;
        for (size_t k = 0; k < n; k++) {
            uint32_t bits;
            memcpy(&bits, (const char *)t->data + k * sizeof bits, sizeof bits);
            bool here = (bits & 0x7F800000u) == 0x7F800000u;
            first = here && bad == 0 ? k : first;
            bad += here;
        }
        if (bad > 0)
            status = mz_fail(MEZZO_ERR_FORMAT,
                             "%s/%s: tensor '%s' has %zu values that are not finite, the first is element %zu: use an "
                             "older checkpoint",
                             folder, file, t->name, bad, first);
        else
            status = mz_stop_check(folder);
    }
    if (mz_safetensors_check(tensors) != MEZZO_OK)
        status = MEZZO_ERR_IO;
    mz_safetensors_close(tensors);
    return status;
}

mezzo_status mz_checkpoint_check_sound(const char *folder, int parts, const mz_checkpoint_state *state) {
    for (int i = 0; i < MZ_CHECKPOINT_FILES; i++)
        if (state->files[i].present && parts & 1 << i)
            MEZZO_TRY(check_finite(folder, mz_checkpoint_files[i]));
    return MEZZO_OK;
}

// Checks one candidate: MEZZO_OK where it is whole and sound in the parts that are asked for. *whole: only a number in
// it is bad.
static mezzo_status try_one(const char *folder, const mz_manifest_entry *entry, int parts, char *path, size_t size,
                            bool *whole) {
    mezzo_checkpoint checkpoint = {0};
    mz_checkpoint_state state;
    int length = snprintf(path, size, "%s/%s", folder, entry->name);
    *whole = false;
    if (length < 0 || (size_t)length >= size)
        return mz_fail(MEZZO_ERR_INVALID, "%s: the path is too long", folder);
    const mz_file_mark mark = {.crc = entry->state_crc, .bytes = entry->state_bytes};
    MEZZO_TRY(verify_file(path, "state.json", &mark));
    MEZZO_TRY(mz_checkpoint_verify(path, parts, &checkpoint, &state));
    *whole = true;
    return mz_checkpoint_check_sound(path, parts, &state);
}

// Returns whether a status says nothing about the checkpoint, such as a lack of memory.
static bool ends_search(mezzo_status status) {
    return status == MEZZO_ERR_MEMORY || status == MEZZO_ERR_INTERRUPTED;
}

typedef struct search {
    const char *folder;
    char *path;
    size_t size;
    int parts;
    bool found;
} search;

static mezzo_status try_replaced(void *user, const char *name) {
    search *s = user;
    mezzo_checkpoint checkpoint = {0};
    mz_checkpoint_state state;
    char *final = mz_format("%s/%s", s->folder, name);
    if (final == NULL)
        return MEZZO_ERR_MEMORY;
    bool there = mz_path_exists(final);
    mz_free(final);
    int length = snprintf(s->path, s->size, "%s/" MZ_CHECKPOINT_REPLACED "%s", s->folder, name);
    if (s->found || there || length < 0 || (size_t)length >= s->size)
        return MEZZO_OK;
    mezzo_status status = mz_checkpoint_verify(s->path, s->parts, &checkpoint, &state);
    if (status == MEZZO_OK)
        status = mz_checkpoint_check_sound(s->path, s->parts, &state);
    s->found = status == MEZZO_OK;
    return ends_search(status) ? status : MEZZO_OK;
}

// Returns whether the manifest no longer names this checkpoint: a run that goes on drops older ones.
static bool was_dropped(const char *folder, const mz_manifest_entry *entry) {
    mz_manifest now = {0};
    bool named = mz_manifest_load(folder, &now) != MEZZO_OK;
    for (size_t i = 0; i < now.count && !named; i++)
        named = strcmp(now.entries[i].name, entry->name) == 0 && now.entries[i].state_crc == entry->state_crc;
    mz_manifest_free(&now);
    return !named;
}

bool mz_checkpoint_find_again(mezzo_status status, const char *path, int *tries) {
    return status != MEZZO_OK && path[0] != '\0' && !mz_path_exists(path) && ++*tries < MZ_CHECKPOINT_TRIES;
}

// Searches the manifest. *moved: a checkpoint was dropped while it was inspected, so the search must begin again.
static mezzo_status find_in(const mz_manifest *m, bool best, bool strict, bool *moved, search *s) {
    int first = best ? mz_manifest_best(m) : -1;
    for (int i = (int)m->count - 1 + (first >= 0); i >= 0; i--) {
        // The best one comes first, then the others from the newest on.
        int at = first >= 0 ? (i == (int)m->count ? first : i) : i;
        bool whole;
        mezzo_status status = try_one(s->folder, &m->entries[at], s->parts, s->path, s->size, &whole);
        if (status == MEZZO_OK || ends_search(status) || (whole && strict))
            return status;
        *moved = *moved || was_dropped(s->folder, &m->entries[at]);
        if (*moved)
            return status;
        mz_log("warn", "checkpoint left out: %s", mezzo_error_message());
    }
    // During a replacement, or after a kill in one, the older one is whole under its hidden name.
    char path[4096] = "";
    search replaced = {s->folder, path, sizeof path, s->parts, false};
    MEZZO_TRY(each_replaced(s->folder, try_replaced, &replaced));
    if (replaced.found && (size_t)snprintf(s->path, s->size, "%s", path) < s->size)
        return MEZZO_OK;
    s->path[0] = '\0';
    return mz_fail(MEZZO_ERR_INVALID,
                   "%s: no whole checkpoint (%zu found, none with the right checksums and finite numbers)", s->folder,
                   m->count);
}

mezzo_status mezzo_checkpoint_find(const char *folder, bool best, char *path, size_t size) {
    MZ_REQUIRE(folder, path);
    return mz_checkpoint_find(folder, best, false, MZ_CHECKPOINT_WHOLE, path, size);
}

mezzo_status mz_checkpoint_find(const char *folder, bool best, bool strict, int parts, char *path, size_t size) {
    mz_manifest manifest = {0};
    search s = {folder, path, size, parts, false};
    if (size > 0)
        path[0] = '\0';
    if (!mz_path_is_dir(folder))
        return mz_fail(MEZZO_ERR_INVALID, "%s: no such folder, so no checkpoint", folder);
    mezzo_status status = MEZZO_OK;
    bool moved = true;
    for (int i = 0; moved && i < MZ_CHECKPOINT_TRIES; i++) {
        mz_manifest_free(&manifest);
        moved = false;
        status = mz_manifest_load(folder, &manifest);
        if (status == MEZZO_OK)
            status = find_in(&manifest, best, strict, &moved, &s);
    }
    mz_manifest_free(&manifest);
    return status;
}
