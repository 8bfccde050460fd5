#include "task/task.h"

#include <math.h>

#include "data/labelled.h"
#include "io/file.h"
#include "runtime/program.h"

const mz_task_kind *mz_task_kind_of(mezzo_model_purpose purpose) {
    static const mz_task_kind *const kinds[] = {[MEZZO_TASK_LANGUAGE] = &mz_task_language,
                                                [MEZZO_TASK_CLASSIFIER] = &mz_task_classifier,
                                                [MEZZO_TASK_IMAGES] = &mz_task_images};
    return kinds[purpose];
}

mezzo_status mz_task_open(const mezzo_model_config *family, const mz_task_options *options, mz_task **out) {
    mz_task_options o = *options;
    *out = NULL;
    o.any_labels = family->graph[0] != '\0';
    o.numbers = o.any_labels && mz_graph_file_wants_numbers(family);
    MEZZO_TRY(mz_task_kind_of(mezzo_model_task(family))->open(&o, out));
    return MEZZO_OK;
}

bool mz_task_reads_texts(const mz_task_options *o) {
    const char *path = o->path != NULL && o->path[0] != '\0' ? o->path : o->train;
    const char *dot = path != NULL ? strrchr(path, '.') : NULL;
    static const char *const arrays[] = {".npz", ".npy", ".csv"};
    if (path == NULL || path[0] == '\0')
        return false;
    for (size_t i = 0; dot != NULL && i < MZ_COUNT(arrays); i++)
        if (strcmp(dot, arrays[i]) == 0)
            return false;
    return !mz_path_is_dir(path) || mz_labelled_has_shards(path);
}

void mz_task_close(mz_task *task) {
    if (task != NULL)
        task->kind->close(task);
}

mezzo_status mz_task_set_model(mz_task *task, const mz_model *model) {
    task->model = *model;
    task->wants = mz_model_sizes_of(model);
    task->padding = task->padding_alone = (double)NAN;
    return task->kind->check_model != NULL ? task->kind->check_model(task) : MEZZO_OK;
}

void mz_task_report(const mz_task *task) {
    if (task->kind->report != NULL)
        task->kind->report(task);
    if (task->note[0] != '\0')
        mz_log("warn", "%s", task->note);
}

const char *mz_task_keeps(const mz_task *task) {
    return task->kind->keeps != NULL ? task->kind->keeps(task) : "";
}

mezzo_status mz_task_save(const mz_task *task, const char *folder) {
    return task->kind->save != NULL ? task->kind->save(task, folder) : MEZZO_OK;
}

bool mz_task_has_samples(const mz_task *task) {
    return task->kind->open_sampler != NULL && mz_task_keeps(task)[0] != '\0';
}

mezzo_status mz_task_open_sampler(mz_task *task, mezzo_params *params, const mezzo_program_options *options) {
    if (task->kind->open_sampler == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "%s is a %s, which %s", mz_model_name(&task->model), task->kind->name,
                       task->kind->pictures ? "predicts pictures: name a folder for them (mezzo sample RUN --out DIR)"
                                            : "has no samples: evaluate it (mezzo eval)");
    return task->kind->open_sampler(task, params, options);
}

mezzo_data_mark mz_task_mark(const mz_task *task, mz_set set) {
    return task->kind->has(task, set) ? task->kind->mark(task, set) : (mezzo_data_mark){0};
}

// --- batches -------------------------------------------------------------------------------------
void mz_examples_free(mz_examples *examples) {
    for (int i = 0; i < examples->n; i++)
        mz_free(examples->input[i].data);
    *examples = (mz_examples){0};
}

const mz_input *mz_examples_input(const mz_examples *examples, mz_role role) {
    for (int i = 0; i < examples->n; i++)
        if (examples->input[i].role == role)
            return &examples->input[i];
    return NULL;
}

static mezzo_status take_examples(const mz_model *model, const mz_form *form, mz_examples *out) {
    out->n = mz_model_inputs(model, form, out->input);
    out->items = form->batch * form->length;
    for (int i = 0; i < out->n; i++) {
        mz_input *in = &out->input[i];
        size_t count = 1;
        for (int d = 0; d < in->rank; d++)
            count *= (size_t)in->dim[d];
        in->bytes = count * mezzo_dtype_size(in->dtype);
        in->data = mz_alloc(count, mezzo_dtype_size(in->dtype));
        if (in->data == NULL)
            return MEZZO_ERR_MEMORY;
        for (size_t k = 0; k < count && (in->role == MZ_ROLE_PLACES || in->role == MZ_ROLE_ONES); k++)
            ((int32_t *)in->data)[k] = in->role == MZ_ROLE_ONES ? 1 : (int32_t)(k % (size_t)in->dim[in->rank - 1]);
    }
    return MEZZO_OK;
}

mezzo_status mz_examples_make(const mz_model *model, const mz_form *form, uint64_t seed, mz_examples *out) {
    const mz_task_kind *kind = mz_task_kind_of(mz_model_purpose(model));
    const mz_model_sizes sizes = mz_model_sizes_of(model);
    *out = (mz_examples){0};
    mezzo_status status = take_examples(model, form, out);
    if (status == MEZZO_OK)
        kind->made_up(&sizes, seed, out);
    else
        mz_examples_free(out);
    return status;
}

mezzo_status mz_examples_write(const mz_examples *examples, mezzo_program *program) {
    for (int i = 0; i < examples->n; i++)
        MEZZO_TRY(
            mezzo_program_write(program, examples->input[i].name, examples->input[i].data, examples->input[i].bytes));
    return MEZZO_OK;
}

// Allocates memory for what mz_evaluate compares with the targets.
static mezzo_status take_scores(mz_source *source) {
    const mz_input *targets = mz_examples_input(&source->examples, MZ_ROLE_TARGETS);
    const size_t n = targets != NULL ? targets->bytes / sizeof(float) : 0;
    if (n > 0 && source->classes > 0)
        source->logits = mz_alloc(n * (size_t)source->classes, sizeof *source->logits);
    else if (n > 0 && source->task->wants.values > 0)
        source->prediction = mz_alloc(n, sizeof *source->prediction);
    else
        return MEZZO_OK;
    return source->logits != NULL || source->prediction != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

mezzo_status mz_source_open(const mz_task *task, mz_set set, mz_order order, int64_t rows, uint64_t seed, bool scores,
                            mz_source **out) {
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    mz_source *source;
    MEZZO_TRY(MZ_NEW(source, 1));
    source->task = task;
    source->classes = task->wants.classes;
    MEZZO_TRY_GOTO(status, task->kind->open_source(task, set, order, rows, seed, source));
    const mz_form form = {.batch = rows, .length = task->wants.length, .documents = task->packs};
    MEZZO_TRY_GOTO(status, take_examples(&task->model, &form, &source->examples));
    if (scores) {
        MEZZO_TRY_GOTO(status, take_scores(source));
    }
    *out = source;
    return MEZZO_OK;
fail:
    mz_source_close(source);
    return status;
}

void mz_source_close(mz_source *source) {
    if (source == NULL)
        return;
    source->task->kind->close_source(source);
    if (source->program == NULL)
        mz_examples_free(&source->examples);
    MZ_FREE(source->logits, source->prediction, source);
}

mezzo_status mz_source_bind(mz_source *source, mezzo_program *program) {
    void *memory[MZ_MODEL_INPUTS];
    mz_examples *x = &source->examples;
    for (int i = 0; i < x->n; i++) {
        memory[i] = mz_program_host_input(program, x->input[i].name, x->input[i].bytes);
        if (memory[i] == NULL)
            return mz_fail(MEZZO_ERR_INVALID, "the program has no input %s of %zu bytes", x->input[i].name,
                           x->input[i].bytes);
    }
    MEZZO_TRY(mz_program_open_inputs(program));
    for (int i = 0; i < x->n; i++) { // some inputs never change
        memcpy(memory[i], x->input[i].data, x->input[i].bytes);
        mz_free(x->input[i].data);
        x->input[i].data = memory[i];
    }
    source->program = program;
    return MEZZO_OK;
}

mezzo_status mz_source_draw(mz_source *source, uint64_t k, char *fault, size_t size) {
    const mz_task *task = source->task;
    source->sound = false;
    if (source->program != NULL)
        MEZZO_TRY(mz_program_open_inputs(source->program));
    mezzo_status status = task->kind->draw(source, k);
    if (fault == NULL)
        return status;
    fault[0] = '\0';
    if (status == MEZZO_ERR_INVALID)
        snprintf(fault, size, "%s", mezzo_error_message());
    else
        MEZZO_TRY(status);
    if (source->spoil != NULL)
        source->spoil(source->spoil_user, &source->examples);
    const bool sound = source->sound && source->spoil == NULL;
    if (fault[0] != '\0' || (!sound && !task->kind->check(task, &source->examples, fault, size)))
        task->kind->blank(&source->examples);
    return MEZZO_OK;
}
