// Writes and reads checkpoints. A save writes into a hidden folder, flushes, renames, and only then names it in the
// manifest; a load checks everything before it changes anything.
#include "checkpoint/checkpoint.h"

#include <math.h>

#include "base/decimal.h"
#include "base/scope.h"
#include "base/stop.h"
#include "graph/graph.h"
#include "io/file.h"
#include "io/quote.h"
#include "io/safetensors.h"

// --- tensors to files ----------------------------------------------------------------------------------------------
enum { ROWS = -1 };           // `which` for the rows' moving averages
typedef struct device_range { // FP32 values on a device: the masters of a parameter in any format, or
    mezzo_params *params;
    mezzo_optimizer *optimizer; // a moment of the optimizer's index-th parameter
    int which, index;
    const char *name; // of the tensor
} device_range;

// Refuses values that a load would refuse.
static mezzo_status check_piece(const device_range *range, uint64_t offset, const void *bytes, size_t n) {
    const unsigned char *at = bytes;
    bool bad = false;
    for (size_t k = 0; k < n; k += sizeof(uint32_t)) {
        uint32_t bits;
        memcpy(&bits, at + k, sizeof bits);
        bad |= (bits & 0x7F800000u) == 0x7F800000u;
    }
    for (size_t k = 0; bad && k < n; k += sizeof(float)) {
        float value;
        memcpy(&value, at + k, sizeof value);
        if (!isfinite(value))
            return mz_fail(MEZZO_ERR_NUMERIC, "tensor %s: element %llu is %g: no checkpoint was written", range->name,
                           (unsigned long long)((offset + k) / sizeof(float)), (double)value);
    }
    return MEZZO_OK;
}

static mezzo_status read_rows(const device_range *range, int64_t first, int64_t count, void *out) {
    float *all = mz_alloc((size_t)mz_optimizer_row_count(range->optimizer, range->index) + 1, sizeof *all);
    mezzo_status status = all != NULL ? mz_optimizer_read_rows(range->optimizer, range->index, all) : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        memcpy(out, all + first, (size_t)count * sizeof *all);
    mz_free(all);
    return status;
}

static mezzo_status fill_from_device(void *user, uint64_t offset, void *bytes, size_t n) {
    const device_range *range = user;
    const int64_t first = (int64_t)(offset / sizeof(float)), count = (int64_t)(n / sizeof(float));
    if (range->optimizer == NULL)
        MEZZO_TRY(mz_params_read_range(range->params, range->index, first, count, bytes));
    else if (range->which == ROWS)
        MEZZO_TRY(read_rows(range, first, count, bytes));
    else
        MEZZO_TRY(mz_optimizer_read_moment(range->optimizer, range->which, range->index, first, count, bytes));
    return check_piece(range, offset, bytes, n);
}

typedef struct tensor_list {
    mz_safetensors_item *items;
    device_range *ranges;
    char **names; // owned by the list
    size_t count;
} tensor_list;

static void list_free(tensor_list *list) {
    for (size_t i = 0; list->names != NULL && i < list->count; i++)
        mz_free(list->names[i]);
    MZ_FREE(list->names, list->ranges, list->items);
    *list = (tensor_list){0};
}

static mezzo_status list_alloc(tensor_list *list, size_t n) {
    list->items = mz_alloc(n + 1, sizeof *list->items);
    list->ranges = mz_alloc(n + 1, sizeof *list->ranges);
    list->names = mz_alloc(n + 1, sizeof *list->names);
    return list->items == NULL || list->ranges == NULL || list->names == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
}

// Adds a tensor and takes over its name.
static mezzo_status list_add(tensor_list *list, char *name, const mz_shape *shape, device_range range) {
    if (name == NULL)
        return MEZZO_ERR_MEMORY;
    size_t i = list->count++;
    list->names[i] = name;
    list->ranges[i] = range;
    list->ranges[i].name = name;
    list->items[i] = (mz_safetensors_item){.name = name,
                                           .dtype = MEZZO_F32,
                                           .rank = (size_t)shape->rank,
                                           .shape = shape->dim,
                                           .fill = fill_from_device,
                                           .user = &list->ranges[i]};
    return MEZZO_OK;
}

static mezzo_status list_params(mezzo_params *params, tensor_list *list) {
    MEZZO_TRY(list_alloc(list, params->n));
    for (size_t i = 0; i < params->n; i++) {
        const mz_param *p = &params->list[i];
        MEZZO_TRY(list_add(list, mz_strdup(p->name), &p->shape, (device_range){.params = params, .index = (int)i}));
    }
    return MEZZO_OK;
}

static mezzo_status list_moments(mezzo_optimizer *opt, tensor_list *list) {
    MEZZO_TRY(list_alloc(list, (size_t)(opt->n * (opt->n_moments + 1))));
    for (int m = 0; m < opt->n_moments; m++)
        for (int i = 0; m != opt->ema && i < opt->n; i++) {
            const mz_param *p = &opt->params->list[opt->index[i]];
            const char *moment = mz_optimizer_moment_name(opt, m, i);
            if (moment == NULL)
                continue;
            char *name = mz_format("%s.%s", p->name, moment);
            MEZZO_TRY(list_add(list, name, &p->shape, (device_range){.optimizer = opt, .which = m, .index = i}));
        }
    for (int i = 0; i < opt->n; i++) {
        const mz_param *p = &opt->params->list[opt->index[i]];
        if (mz_optimizer_row_count(opt, i) == 0)
            continue;
        MEZZO_TRY(list_add(list, mz_format("%s.row_exp_avg_sq", p->name), &p->shape,
                           (device_range){.optimizer = opt, .which = ROWS, .index = i}));
        list->items[list->count - 1].rank--; // a row has no columns
    }
    return MEZZO_OK;
}

// Lists moving averages under the parameters' names; a parameter without one, because it is not trained, is listed
// itself.
static mezzo_status list_ema(mezzo_optimizer *opt, bool averaged, tensor_list *list) {
    MEZZO_TRY(list_params(opt->params, list));
    for (int i = 0; averaged && i < opt->n; i++) {
        device_range *range = &list->ranges[opt->index[i]];
        *range = (device_range){.optimizer = opt, .which = opt->ema, .index = i, .name = range->name};
    }
    return MEZZO_OK;
}

static mezzo_status write_tensors(const char *folder, const char *file, const tensor_list *list, const char *scale,
                                  mz_file_mark *mark) {
    const mz_safetensors_meta meta[] = {{"format", "pt"}, {MZ_LORA_SCALE, scale}}; // Hugging Face's readers require
                                                                                   // "pt"
    const mz_path path = mz_path_of("%s/%s", folder, file);
    mz_written written = {0};
    mezzo_status status =
        mz_safetensors_write(path.text, list->items, list->count, meta, scale != NULL ? 2 : 1, &written);
    if (status == MEZZO_OK) // the checksum is of the bytes that were written; the disk must hold the same
        status = mz_file_read_back(path.text, written);
    mark->bytes = written.bytes;
    mark->crc = written.crc;
    mark->present = status == MEZZO_OK;
    return status;
}

static const char *lora_scale(const mezzo_params *params, char text[40]) { // returns NULL without adapters
    mz_snprintf(text, 40, "%.17g", params->lora_rank > 0 ? params->lora_alpha / (double)params->lora_rank : 0);
    return params->lora_rank > 0 ? text : NULL;
}

static mezzo_status write_run(const char *folder, const mz_checkpoint_run *run) {
    if (run == NULL || run->configuration == NULL)
        return MEZZO_OK;
    return mz_run_save_facts(mz_path_of("%s/" MZ_CHECKPOINT_RUN, folder).text, run);
}

static mezzo_status write_files(const char *folder, const mezzo_checkpoint *c, const mz_checkpoint_run *run,
                                mz_manifest_entry *entry) {
    mezzo_status status = MEZZO_OK;
    mz_file_mark marks[MZ_CHECKPOINT_FILES] = {{0}};
    tensor_list params = {0}, moments = {0}, ema = {0};
    char scale[40];
    const mz_path state = mz_path_of("%s/state.json", folder);
    MEZZO_TRY_GOTO(status, list_params(c->params, &params));
    MEZZO_TRY_GOTO(status,
                   write_tensors(folder, mz_checkpoint_files[0], &params, lora_scale(c->params, scale), &marks[0]));
    if (c->optimizer != NULL) {
        MEZZO_TRY_GOTO(status, list_moments(c->optimizer, &moments));
        MEZZO_TRY_GOTO(status, write_tensors(folder, mz_checkpoint_files[1], &moments, NULL, &marks[1]));
    }
    if (c->optimizer != NULL && c->optimizer->ema >= 0) {
        mz_opt_state steps;
        MEZZO_TRY_GOTO(status, mz_optimizer_read_state(c->optimizer, &steps));
        MEZZO_TRY_GOTO(status, list_ema(c->optimizer, steps.step > 0, &ema));
        MEZZO_TRY_GOTO(status,
                       write_tensors(folder, mz_checkpoint_files[2], &ema, lora_scale(c->params, scale), &marks[2]));
    }
    mz_written written;
    MEZZO_TRY_GOTO(status, write_run(folder, run));
    MEZZO_TRY_GOTO(status, mz_state_save(state.text, c, marks, &written));
    MEZZO_TRY_GOTO(status, mz_file_read_back(state.text, written));
    entry->state_crc = written.crc;
    entry->state_bytes = written.bytes;
fail:
    list_free(&params);
    list_free(&moments);
    list_free(&ema);
    return status;
}

// --- saving --------------------------------------------------------------------------------------------------------
// Undoes an interrupted replacement: moves the old folder back to its place if no other has taken it.
static mezzo_status restore_replaced(const char *final, const char *replaced) {
    if (!mz_path_exists(replaced))
        return MEZZO_OK;
    return mz_path_exists(final) ? mz_dir_remove(replaced) : mz_dir_commit(replaced, final);
}

// Moves the new checkpoint to its place. Where two names can be swapped at once, a checkpoint of this step exists at
// every moment. Elsewhere the old one has a hidden name between two renames, under which it can still be found.
static mezzo_status publish(const char *staged, const char *final, const char *replaced) {
    bool swapped = false;
    MEZZO_TRY(restore_replaced(final, replaced));
    if (mz_path_exists(final))
        MEZZO_TRY(mz_dir_exchange(staged, final, &swapped));
    if (swapped)
        return MEZZO_OK;
    if (mz_path_exists(final))
        MEZZO_TRY(mz_dir_commit(final, replaced));
    mezzo_status status = mz_dir_commit(staged, final);
    if (status != MEZZO_OK && mz_path_exists(replaced) && !mz_path_exists(final)) {
        char *message = mz_strdup(mezzo_error_message());
        mezzo_status back = mz_dir_commit(replaced, final);
        if (message != NULL && back == MEZZO_OK)
            mz_fail(status, "%s", message);
        mz_free(message);
    }
    return status;
}

// Removes the old folder from the manifest, which vouches for its state.json, before a new one takes its place.
static mezzo_status forget(const char *folder, const char *final, const char *name) {
    mz_manifest m = {0};
    size_t n = 0;
    if (!mz_path_exists(final))
        return MEZZO_OK;
    mezzo_status status = mz_manifest_load(folder, &m);
    for (size_t i = 0; i < m.count; i++)
        if (strcmp(m.entries[i].name, name) != 0)
            m.entries[n++] = m.entries[i];
    m.count = n;
    if (status == MEZZO_OK)
        status = mz_manifest_save(folder, &m);
    mz_manifest_free(&m);
    return status;
}

static void choose_kept(mz_manifest *m, int64_t keep_last) {
    int best = mz_manifest_best(m);
    for (size_t i = 0; i < m->count; i++)
        m->entries[i].kept = keep_last == 0 || m->count - i <= (size_t)keep_last || (int)i == best;
}

// Records a checkpoint. The manifest without dropped ones is written first, because it must never name a folder that is
// gone.
static mezzo_status record(const char *folder, mz_manifest *m, const mz_manifest_entry *entry, int64_t keep_last) {
    size_t n = 0;
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->entries[i].name, entry->name) != 0)
            m->entries[n++] = m->entries[i];
    m->count = n;
    MEZZO_TRY(MZ_RESERVE(m->entries, m->cap, n + 1));
    m->entries[m->count++] = *entry;
    choose_kept(m, keep_last);
    mz_manifest kept = {0};
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; i < m->count && status == MEZZO_OK; i++) {
        if (!m->entries[i].kept)
            continue;
        status = MZ_RESERVE(kept.entries, kept.cap, kept.count + 1);
        if (status == MEZZO_OK)
            kept.entries[kept.count++] = m->entries[i];
    }
    if (status == MEZZO_OK)
        status = mz_manifest_save(folder, &kept);
    mz_manifest_free(&kept);
    return status;
}

static mezzo_status remove_dropped(const char *folder, const mz_manifest *m, const char *staged) {
    for (size_t i = 0; i < m->count; i++)
        if (!m->entries[i].kept)
            MEZZO_TRY(mz_dir_drop(mz_path_of("%s/%s", folder, m->entries[i].name).text, staged));
    return MEZZO_OK;
}

// Refuses numbers that a load would refuse, or with which the checkpoint could not be found again.
static mezzo_status check_objects(const mezzo_checkpoint *c) {
    if (c->params != NULL && c->optimizer != NULL && c->optimizer->params != c->params)
        return mz_fail(MEZZO_ERR_INVALID, "a checkpoint's optimizer owns other parameters than the checkpoint's");
    return MEZZO_OK;
}

static mezzo_status check_numbers(const mezzo_checkpoint *c) {
    if (c->params == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "a checkpoint needs parameters");
    if (c->step < 0 || c->step > MZ_CHECKPOINT_MAX_STEP)
        return mz_fail(MEZZO_ERR_INVALID, "a checkpoint's step is %lld: use 0 to %lld", (long long)c->step,
                       (long long)MZ_CHECKPOINT_MAX_STEP);
    if (c->batches > INT64_MAX)
        return mz_fail(MEZZO_ERR_INVALID, "a checkpoint's batches are %llu: at most %lld can be read again",
                       (unsigned long long)c->batches, (long long)INT64_MAX);
    if (c->data.bytes > INT64_MAX || c->validation.bytes > INT64_MAX)
        return mz_fail(MEZZO_ERR_INVALID, "a checkpoint's data has %llu bytes: at most %lld can be read again",
                       (unsigned long long)(c->data.bytes > INT64_MAX ? c->data : c->validation).bytes,
                       (long long)INT64_MAX);
    if (!mz_checkpoint_plain_name(c->tokenizer))
        return mz_fail(MEZZO_ERR_INVALID, "a checkpoint's tokenizer is a file name in the run folder, not %s",
                       mz_quote(c->tokenizer).text);
    return MEZZO_OK;
}

static mezzo_status save_locked(const char *folder, const mezzo_checkpoint *checkpoint, const mz_checkpoint_run *run,
                                int64_t keep_last, char *path, size_t size) {
    mezzo_status status = MEZZO_OK;
    mz_manifest manifest = {0};
    mz_manifest_entry entry = {.step = checkpoint->step,
                               .val_loss = checkpoint->val_loss,
                               .val_sampled = checkpoint->val_sampled,
                               .metrics = run != NULL ? run->metrics : (mz_written){0}};
    snprintf(entry.name, sizeof entry.name, "step-%08lld", (long long)checkpoint->step);
    const mz_path all[] = {mz_path_of("%s/" MZ_CHECKPOINT_STAGED, folder), mz_path_of("%s/%s", folder, entry.name),
                           mz_path_of("%s/" MZ_CHECKPOINT_REPLACED "%s", folder, entry.name)};
    const char *staged = all[0].text, *final = all[1].text, *replaced = all[2].text;
    MEZZO_TRY_GOTO(status, mz_checkpoint_recover(folder));
    MEZZO_TRY_GOTO(status, mz_dir_create(staged));
    MEZZO_TRY_GOTO(status, write_files(staged, checkpoint, run, &entry));
    MEZZO_TRY_GOTO(status, forget(folder, final, entry.name));
    MEZZO_TRY_GOTO(status, publish(staged, final, replaced));
    MEZZO_TRY_GOTO(status, mz_manifest_load(folder, &manifest));
    MEZZO_TRY_GOTO(status, record(folder, &manifest, &entry, keep_last));
    MEZZO_TRY_GOTO(status, mz_dir_remove(staged)); // after a swap this is the older one
    MEZZO_TRY_GOTO(status, mz_dir_remove(replaced));
    MEZZO_TRY_GOTO(status, remove_dropped(folder, &manifest, staged));
    if (path != NULL && size > 0)
        snprintf(path, size, "%s", final);
fail:
    if (status == MEZZO_ERR_NUMERIC) { // the run needs the disk space; after a failed write the next save removes it
        char *message = mz_strdup(mezzo_error_message());
        if (mz_dir_remove(staged) != MEZZO_OK || message != NULL)
            mz_fail(status, "%s", message != NULL ? message : "a tensor is not finite: no checkpoint was written");
        mz_free(message);
    }
    mz_manifest_free(&manifest);
    return status;
}

mezzo_status mz_checkpoint_save(const char *folder, const mezzo_checkpoint *checkpoint, const mz_checkpoint_run *run,
                                int64_t keep_last, char *path, size_t size) {
    mz_lock lock;
    if (folder == NULL || checkpoint == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "a checkpoint is saved into a folder; NULL was given");
    MEZZO_TRY(check_numbers(checkpoint));
    MEZZO_TRY(check_objects(checkpoint));
    if (keep_last < 0)
        return mz_fail(MEZZO_ERR_INVALID, "the newest %lld checkpoints: use 0 for all, or more", (long long)keep_last);
    MEZZO_TRY(mz_dir_create(folder));
    MEZZO_TRY(mz_lock_take(folder, &lock));
    mezzo_status status = save_locked(folder, checkpoint, run, keep_last, path, size);
    mz_lock_release(&lock);
    return status;
}

mezzo_status mezzo_checkpoint_save(const char *folder, const mezzo_checkpoint *checkpoint, int64_t keep_last,
                                   char *path, size_t size) {
    return mz_checkpoint_save(folder, checkpoint, NULL, keep_last, path, size);
}

// --- loading -------------------------------------------------------------------------------------------------------
mezzo_status mezzo_checkpoint_describe(const char *path, mezzo_checkpoint *checkpoint) {
    MZ_REQUIRE(path, checkpoint);
    mz_checkpoint_state state;
    return mz_state_load(mz_path_of("%s/state.json", path).text, checkpoint, &state);
}

// Returns whether the list has adapters.
static bool has_adapters(const tensor_list *list) {
    for (size_t i = 0; i < list->count; i++)
        if (mz_is_adapter(list->names[i]))
            return true;
    return false;
}

// Leaves adapters at their initial values where the file has none: its weights are a start.
static void leave_adapters(const mz_safetensors *tensors, tensor_list *list) {
    size_t n = 0;
    for (size_t i = 0; i < mz_safetensors_count(tensors); i++)
        if (mz_is_adapter(mz_safetensors_at(tensors, i)->name))
            return;
    for (size_t i = 0; i < list->count; i++) {
        if (mz_is_adapter(list->names[i])) {
            mz_free(list->names[i]);
            continue;
        }
        list->names[n] = list->names[i];
        list->items[n] = list->items[i];
        list->ranges[n++] = list->ranges[i];
    }
    list->count = n;
}

static mezzo_status check_tensors(const char *folder, const char *file, const mz_safetensors *tensors,
                                  const tensor_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        const mz_safetensors_item *item = &list->items[i];
        const mz_safetensors_tensor *found;
        MEZZO_TRY(mz_safetensors_get(tensors, item->name, &found));
        mz_shape want = {.rank = (int)item->rank}, have = {.rank = (int)found->rank};
        char a[96], b[96];
        memcpy(want.dim, item->shape, item->rank * sizeof *want.dim);
        bool same = found->rank == item->rank && found->dtype == MEZZO_F32;
        for (size_t k = 0; k < found->rank && k < MEZZO_MAX_RANK; k++) {
            have.dim[k] = found->shape[k];
            same = same && k < item->rank && have.dim[k] == want.dim[k];
        }
        have.rank = have.rank > MEZZO_MAX_RANK ? MEZZO_MAX_RANK : have.rank;
        if (!same)
            return mz_fail(
                MEZZO_ERR_FORMAT,
                "%s/%s: tensor '%s' is %s %s, this model has it as fp32 %s: use the configuration it was trained with",
                folder, file, item->name, mezzo_dtype_name(found->dtype), mz_shape_text(&have, a, sizeof a),
                mz_shape_text(&want, b, sizeof b));
    }
    for (size_t i = 0; i < mz_safetensors_count(tensors) && mz_safetensors_count(tensors) != list->count; i++) {
        const mz_safetensors_tensor *t = mz_safetensors_at(tensors, i);
        if (MZ_FIND(list->items, list->count, name, t->name) == NULL &&
            !(mz_is_adapter(t->name) && !has_adapters(list)))
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s/%s: tensor '%s' is not one of this model's: use the configuration it was trained with",
                           folder, file, t->name);
    }
    return MEZZO_OK;
}

static mezzo_status put_merged(const mz_safetensors *tensors, mezzo_params *params, int index) {
    MZ_SCOPED(mz_free_at) float *merged = NULL;
    MEZZO_TRY(mz_lora_merge(tensors, params->list[index].name, &params->list[index].parts, &merged));
    return mz_params_write_master(params, index, merged);
}

static mezzo_status put_on_device(const mz_safetensors *tensors, const tensor_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        const mz_safetensors_tensor *t = mz_safetensors_find(tensors, list->items[i].name);
        const device_range *range = &list->ranges[i];
        MEZZO_TRY(mz_stop_check(range->name));
        if (range->optimizer != NULL && range->which == ROWS)
            MEZZO_TRY(mz_optimizer_write_rows(range->optimizer, range->index, t->data));
        else if (range->optimizer != NULL)
            MEZZO_TRY(mz_optimizer_write_moment(range->optimizer, range->which, range->index, t->data));
        else if (!has_adapters(list) &&
                 mz_lora_has(tensors, list->items[i].name, &range->params->list[range->index].parts))
            MEZZO_TRY(put_merged(tensors, range->params, range->index));
        else
            MEZZO_TRY(mz_params_write_master(range->params, range->index, t->data));
    }
    return tensors != NULL ? mz_safetensors_check(tensors) : MEZZO_OK;
}

// Checks that adapters that are trained further have the scale that they were trained with.
static mezzo_status check_scale(const char *folder, const mz_safetensors *tensors, const mezzo_params *params,
                                const tensor_list *list) {
    const double there = mz_lora_scale(tensors),
                 here = has_adapters(list) ? params->lora_alpha / (double)params->lora_rank : there;
    if (fabs(there - here) <= 1e-9 * fabs(here))
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_FORMAT,
                   "%s/%s: its adapters were trained with alpha/rank %g; here it is %g: set lora.alpha to %g", folder,
                   mz_checkpoint_files[0], there, here, there * (double)params->lora_rank);
}

static mezzo_status check_state(const char *path, const mezzo_checkpoint *c, const mz_checkpoint_state *state) {
    if (c->optimizer != NULL && (!state->has_optimizer || !state->files[1].present))
        return mz_fail(MEZZO_ERR_FORMAT, "%s/state.json: there is no optimizer in this checkpoint", path);
    const char *kind = c->optimizer != NULL ? mz_optimizer_rest(c->optimizer)->kind->name : "";
    if (c->optimizer != NULL && strcmp(kind, state->optimizer_kind) != 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s/state.json: the optimizer is %s, this run's is %s: set optimizer.kind",
                       path, state->optimizer_kind, kind);
    const char *matrices = c->optimizer != NULL ? mz_optimizer_matrices(c->optimizer) : "";
    if (c->optimizer != NULL && state->matrices_kind[0] != '\0' && strcmp(matrices, state->matrices_kind) != 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s/state.json: the optimizer of matrices is %s, this run's is %s: set optimizer.kind to what "
                       "the run began with",
                       path, state->matrices_kind, matrices);
    if (c->scaler != NULL && !state->has_scaler)
        return mz_fail(MEZZO_ERR_FORMAT, "%s/state.json: there is no scaler in this checkpoint", path);
    return MEZZO_OK;
}

// Holds one file, and where its tensors go.
typedef struct source {
    mz_safetensors *tensors;
    tensor_list list;
} source;

static mezzo_status open_weights(const char *path, const char *file, mezzo_params *params, source *s) {
    MEZZO_TRY(mz_checkpoint_open_tensors(path, file, &s->tensors));
    MEZZO_TRY(list_params(params, &s->list));
    leave_adapters(s->tensors, &s->list);
    MEZZO_TRY(check_scale(path, s->tensors, params, &s->list));
    return check_tensors(path, file, s->tensors, &s->list);
}

static mezzo_status open_moments(const char *path, mezzo_optimizer *opt, source *s) {
    MEZZO_TRY(mz_checkpoint_open_tensors(path, mz_checkpoint_files[1], &s->tensors));
    MEZZO_TRY(list_moments(opt, &s->list));
    return check_tensors(path, mz_checkpoint_files[1], s->tensors, &s->list);
}

static mezzo_status open_ema(const char *path, const char *file, mezzo_optimizer *opt, source *s) {
    size_t n = 0;
    MEZZO_TRY(mz_checkpoint_open_tensors(path, file, &s->tensors));
    MEZZO_TRY(list_ema(opt, true, &s->list));
    MEZZO_TRY(check_tensors(path, file, s->tensors, &s->list));
    for (size_t i = 0; i < s->list.count; i++) { // a parameter that is not trained has no average to resume
        if (s->list.ranges[i].optimizer == NULL) {
            mz_free(s->list.names[i]);
            continue;
        }
        s->list.names[n] = s->list.names[i];
        s->list.items[n] = s->list.items[i];
        s->list.ranges[n++] = s->list.ranges[i];
    }
    s->list.count = n;
    return MEZZO_OK;
}

enum { WEIGHTS, MOMENTS, AVERAGES, SOURCES };

// Opens the files that a load reads, and checks them completely: every listed tensor must be there, FP32, with its
// shape, and no other.
static mezzo_status open_sources(const char *path, const mezzo_checkpoint *c, mezzo_checkpoint *read,
                                 mz_checkpoint_state *state, source s[SOURCES]) {
    const bool averages = c->optimizer != NULL && c->optimizer->ema >= 0;
    if (c->ema && c->optimizer != NULL)
        return mz_fail(MEZZO_ERR_INVALID, "%s: an optimizer continues from the weights, not from their average (ema)",
                       path);
    const int parts = (c->params != NULL || averages ? MZ_CHECKPOINT_WEIGHTS : 0) |
                      (c->optimizer != NULL ? MZ_CHECKPOINT_MOMENTS : 0) |
                      (c->ema || averages ? MZ_CHECKPOINT_EMA : 0); // checks only the files that it reads
    MEZZO_TRY(mz_checkpoint_verify(path, parts, read, state));
    MEZZO_TRY(check_state(path, c, state));
    MEZZO_TRY(mz_checkpoint_check_sound(path, parts, state));
    const char *const ema = mz_checkpoint_files[state->files[2].present ? 2 : 0]; // a run whose checkpoint has no
                                                                                  // average starts it from the weights
    if (c->params != NULL)
        MEZZO_TRY(open_weights(path, c->ema ? ema : mz_checkpoint_files[0], c->params, &s[WEIGHTS]));
    if (c->optimizer != NULL)
        MEZZO_TRY(open_moments(path, c->optimizer, &s[MOMENTS]));
    return averages ? open_ema(path, ema, c->optimizer, &s[AVERAGES]) : MEZZO_OK;
}

static mezzo_status open_scales(const char *folder, mezzo_params *params) {
    MZ_SCOPED(mz_free_at) char *path = mz_format("%s/state.json", folder);
    if (path == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    return mz_state_load_scales(path, params);
}

mezzo_status mezzo_checkpoint_load(const char *path, mezzo_checkpoint *checkpoint) {
    MZ_REQUIRE(path, checkpoint);
    mezzo_status status = MEZZO_OK;
    mezzo_checkpoint read = *checkpoint;
    mz_checkpoint_state state;
    source sources[SOURCES] = {{0}};
    MEZZO_TRY(check_objects(checkpoint));
    MEZZO_TRY_GOTO(status, open_sources(path, checkpoint, &read, &state, sources));
    if (checkpoint->params != NULL)
        MEZZO_TRY_GOTO(status, open_scales(path, checkpoint->params));
    // The scaler comes first, because it checks its numbers; everything after it only copies.
    if (checkpoint->scaler != NULL)
        MEZZO_TRY_GOTO(status,
                       mz_context(mezzo_scaler_set_state(checkpoint->scaler, &state.scaler), "%s/state.json: ", path));
    for (int i = 0; i < SOURCES; i++)
        MEZZO_TRY_GOTO(status, put_on_device(sources[i].tensors, &sources[i].list));
    if (checkpoint->params != NULL) {
        MEZZO_TRY_GOTO(status, mz_params_refresh(checkpoint->params));
        MEZZO_TRY_GOTO(status, mz_scales_write(checkpoint->params->device, &checkpoint->params->scales));
    }
    if (checkpoint->optimizer != NULL)
        MEZZO_TRY_GOTO(status, mz_optimizer_write_state(checkpoint->optimizer, &state.optimizer));
    *checkpoint = read;
fail:
    for (int i = 0; i < SOURCES; i++) {
        list_free(&sources[i].list);
        mz_safetensors_close(sources[i].tensors);
    }
    return status;
}

// --- comparing -----------------------------------------------------------------------------------------------------
enum { COMPARE_BYTES = 1 << 20 }; // bytes compared at a time

static void note_difference(const char *file, const char *name, int64_t element, const float values[2],
                            mz_checkpoint_difference *d) {
    if (d->different++ > 0)
        return;
    snprintf(d->file, sizeof d->file, "%s", file);
    snprintf(d->name, sizeof d->name, "%s", name);
    d->element = element;
    snprintf(d->saved, sizeof d->saved, "%.9g", (double)values[0]);
    snprintf(d->here, sizeof d->here, "%.9g", (double)values[1]);
}

static mezzo_status compare_tensor(const char *file, const mz_safetensors_item *item, const mz_safetensors_tensor *t,
                                   char *bytes, mz_checkpoint_difference *d) {
    d->compared++;
    for (size_t at = 0, n; at < t->bytes; at += n) {
        n = t->bytes - at < COMPARE_BYTES ? t->bytes - at : COMPARE_BYTES;
        const char *saved = (const char *)t->data + at;
        MEZZO_TRY(item->fill(item->user, at, bytes, n));
        if (memcmp(saved, bytes, n) == 0)
            continue;
        size_t k = 0;
        while (memcmp(saved + k, bytes + k, sizeof(float)) == 0)
            k += sizeof(float);
        float values[2];
        memcpy(&values[0], saved + k, sizeof *values);
        memcpy(&values[1], bytes + k, sizeof *values);
        note_difference(file, item->name, (int64_t)((at + k) / sizeof(float)), values, d);
        return MEZZO_OK;
    }
    return MEZZO_OK;
}

static mezzo_status compare_file(const char *path, const char *file, const tensor_list *list,
                                 mz_checkpoint_difference *d) {
    mz_safetensors *tensors = NULL;
    char *bytes = mz_alloc(COMPARE_BYTES, 1);
    mezzo_status status = bytes != NULL ? MEZZO_OK : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    MEZZO_TRY_GOTO(status, status);
    MEZZO_TRY_GOTO(status, mz_checkpoint_open_tensors(path, file, &tensors));
    MEZZO_TRY_GOTO(status, check_tensors(path, file, tensors, list));
    for (size_t i = 0; i < list->count; i++)
        MEZZO_TRY_GOTO(
            status, compare_tensor(file, &list->items[i], mz_safetensors_find(tensors, list->items[i].name), bytes, d));
    status = mz_safetensors_check(tensors);
fail:
    mz_safetensors_close(tensors);
    mz_free(bytes);
    return status;
}

mezzo_status mz_checkpoint_compare(const char *path, const mezzo_checkpoint *c, mz_checkpoint_difference *out) {
    mezzo_status status = MEZZO_OK;
    mz_opt_state steps;
    tensor_list lists[MZ_CHECKPOINT_FILES] = {{0}};
    *out = (mz_checkpoint_difference){0};
    MEZZO_TRY_GOTO(status, list_params(c->params, &lists[0]));
    MEZZO_TRY_GOTO(status, list_moments(c->optimizer, &lists[1]));
    MEZZO_TRY_GOTO(status, mz_optimizer_read_state(c->optimizer, &steps));
    if (c->optimizer->ema >= 0)
        MEZZO_TRY_GOTO(status, list_ema(c->optimizer, steps.step > 0, &lists[2]));
    for (int i = 0; i < MZ_CHECKPOINT_FILES; i++)
        if (i < 2 || c->optimizer->ema >= 0)
            MEZZO_TRY_GOTO(status, compare_file(path, mz_checkpoint_files[i], &lists[i], out));
    status = mz_state_compare(mz_path_of("%s/state.json", path).text, c, out);
fail:
    for (int i = 0; i < MZ_CHECKPOINT_FILES; i++)
        list_free(&lists[i]);
    return status;
}
