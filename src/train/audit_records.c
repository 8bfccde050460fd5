#include "train/audit_records.h"

#include "io/json.h"
#include "io/number.h"

// Reads the next record. A line that is no record is reported once, by its number.
static mezzo_status read_ahead(mz_records *r) {
    const char *line;
    size_t n;
    r->has_ahead = false;
    while (r->lines != NULL && !r->has_ahead) {
        MEZZO_TRY(mz_lines_next(r->lines, &line, &n));
        if (line == NULL)
            return MEZZO_OK;
        r->line++;
        const mezzo_status status = mz_record_read(&r->ahead, line, n);
        if (status == MEZZO_ERR_MEMORY)
            return status;
        r->has_ahead = status == MEZZO_OK;
        if (status != MEZZO_OK && r->wrong_line == 0)
            r->wrong_line = r->line;
    }
    return MEZZO_OK;
}

mezzo_status mz_records_open(const char *folder, int64_t from, mz_records *r) {
    const mz_path path = mz_path_of("%s/metrics.jsonl", folder);
    *r = (mz_records){.step = from};
    if (mz_path_exists(path.text))
        MEZZO_TRY(mz_lines_open(path.text, &r->lines));
    MEZZO_TRY(read_ahead(r));
    while (r->has_ahead && r->ahead.step <= from) {
        r->wrong_line = 0; // that line stands before the interval
        MEZZO_TRY(read_ahead(r));
    }
    return MEZZO_OK;
}

static void forget_values(mz_records *r) {
    for (size_t i = 0; i < r->n; i++) {
        MZ_FREE(r->values[i].name, r->values[i].text);
    }
    r->n = 0;
}

void mz_records_close(mz_records *r) {
    forget_values(r);
    mz_free(r->values);
    mz_record_free(&r->ahead);
    mz_lines_close(r->lines);
    *r = (mz_records){0};
}

static mezzo_status keep_value(mz_records *r, const mz_metric *value) {
    MEZZO_TRY(MZ_RESERVE(r->values, r->cap, r->n + 1));
    mz_recorded_value *v = &r->values[r->n++];
    *v = (mz_recorded_value){.name = mz_strdup(value->name), .value = *value};
    if (value->kind == MZ_METRIC_TEXT)
        v->text = mz_strdup(value->text);
    if (v->name != NULL && (value->kind != MZ_METRIC_TEXT || v->text != NULL))
        return MEZZO_OK;
    MZ_FREE(v->name, v->text);
    r->n--;
    return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
}

mezzo_status mz_records_take(mz_records *r, int64_t step) {
    forget_values(r);
    r->step = step;
    while (r->has_ahead && r->ahead.step <= step) {
        for (size_t i = 0; i < r->ahead.n && r->ahead.step == step; i++)
            MEZZO_TRY(keep_value(r, &r->ahead.values[i]));
        MEZZO_TRY(read_ahead(r));
    }
    return MEZZO_OK;
}

bool mz_records_have(const mz_records *r, const char *name) {
    return MZ_FIND(r->values, r->n, name, name) != NULL;
}

// --- comparing ---------------------------------------------------------------------------------------------------
static bool is_compared(const mz_records *r, const char *name) {
    static const char *const others[] = {"perf/",           "fp8/",          "run/", "guard/bad_steps",
                                         "guard/rollbacks", "sample/picture"};
    static const char *const of_rank[] = {"guard/largest_activation", "amp/underflow_share", "experts/"};
    for (size_t i = 0; i < MZ_COUNT(others); i++)
        if (strncmp(name, others[i], strlen(others[i])) == 0)
            return false;
    for (size_t i = 0; i < MZ_COUNT(of_rank); i++)
        if (r->skips_samples && strncmp(name, of_rank[i], strlen(of_rank[i])) == 0)
            return false;
    return !r->skips_validation || strncmp(name, "val/", 4) != 0;
}

// Compares texts as they are written: bytes that are not UTF-8 are dropped.
static bool same_text(const char *a, const char *b) {
    mz_text x = {0}, y = {0};
    mz_json_add_text(&x, a);
    mz_json_add_text(&y, b);
    const bool same = x.status == MEZZO_OK && y.status == MEZZO_OK && strcmp(x.data, y.data) == 0;
    mz_text_free(&x);
    mz_text_free(&y);
    return same;
}

static bool same(const mz_recorded_value *saved, const mz_metric *here) {
    if (here->kind == MZ_METRIC_TEXT || saved->value.kind == MZ_METRIC_TEXT)
        return here->kind == saved->value.kind && same_text(saved->text, here->text);
    const double a = mz_metric_as_number(&saved->value), b = mz_metric_as_number(here);
    return a == b || (a != a && b != b);
}

static void print_value(const mz_metric *value, const char *text, char out[48]) {
    char number[MZ_NUMBER_MAX];
    if (value->kind == MZ_METRIC_TEXT)
        snprintf(out, 48, "%.47s", text);
    else if (value->kind == MZ_METRIC_NUMBER)
        snprintf(out, 48, "%s", mz_number_format(value->number, number));
    else
        snprintf(out, 48, "%lld", (long long)value->integer);
}

static void differ(mz_records *r, const mz_recorded_value *saved, const mz_metric *here) {
    if (r->differing++ > 0)
        return;
    r->first.step = r->step;
    snprintf(r->first.name, sizeof r->first.name, "%s", saved != NULL ? saved->name : here->name);
    if (saved != NULL)
        print_value(&saved->value, saved->text, r->first.saved);
    else
        snprintf(r->first.saved, sizeof r->first.saved, "nothing");
    if (here != NULL)
        print_value(here, here->text, r->first.here);
    else
        snprintf(r->first.here, sizeof r->first.here, "nothing");
}

static void compare_value(mz_records *r, mz_recorded_value *saved, const mz_metric *here) {
    saved->seen = true;
    r->compared++;
    if (strcmp(here->name, "train/loss") == 0 && r->n_losses < MZ_RECORDED_LOSSES)
        r->losses[r->n_losses++] = (mz_recorded_loss){r->step, mz_metric_as_number(&saved->value), here->number};
    if (!same(saved, here))
        differ(r, saved, here);
}

mezzo_status mz_records_compare(void *user, int64_t step, const mz_metric *values, size_t count) {
    mz_records *r = user;
    if (step != r->step)
        return MEZZO_OK;
    bool some = false;
    for (size_t i = 0; i < count; i++)
        some = some || mz_records_have(r, values[i].name);
    for (size_t i = 0; i < count && some; i++) {
        if (!is_compared(r, values[i].name))
            continue;
        for (size_t k = 0; k < r->n; k++)
            if (strcmp(r->values[k].name, values[i].name) == 0)
                compare_value(r, &r->values[k], &values[i]);
        if (r->whole && !mz_records_have(r, values[i].name))
            differ(r, NULL, &values[i]);
    }
    return MEZZO_OK;
}

void mz_records_finish(mz_records *r) {
    r->steps += r->n > 0;
    if (r->first_recorded == 0 && r->n > 0)
        r->first_recorded = r->step;
    for (size_t i = 0; i < r->n; i++)
        if (!r->values[i].seen && is_compared(r, r->values[i].name))
            differ(r, &r->values[i], NULL);
}

// --- rollbacks ---------------------------------------------------------------------------------------------------
typedef struct gone_back { // a rollback that guard.jsonl records
    int64_t bad, to;
} gone_back;

// Returns the newest checkpoint that the run can have had before a bad step.
static int64_t checkpoint_before(int64_t bad, int64_t from, int64_t every) {
    const int64_t newest = every > 0 ? (bad - 1) / every * every : from;
    return newest > from ? newest : from;
}

static mezzo_status read_rollbacks(const char *folder, int64_t from, int64_t every, gone_back **list, size_t *n) {
    mz_lines *lines = NULL;
    mz_record record = {0};
    size_t cap = 0, bytes;
    const char *line = "";
    *n = 0;
    const mz_path path = mz_path_of("%s/guard.jsonl", folder);
    mezzo_status status = mz_path_exists(path.text) ? mz_lines_open(path.text, &lines) : MEZZO_OK;
    while (status == MEZZO_OK && lines != NULL && line != NULL) {
        status = mz_lines_next(lines, &line, &bytes);
        if (status != MEZZO_OK || line == NULL || mz_record_read(&record, line, bytes) != MEZZO_OK)
            continue;
        const mz_metric *action = mz_record_find(&record, "action");
        const bool counts = action != NULL && action->kind == MZ_METRIC_TEXT && strcmp(action->text, "rollback") == 0;
        if (!counts || record.step <= from)
            continue;
        status = MZ_RESERVE(*list, cap, *n + 1);
        if (status == MEZZO_OK)
            (*list)[(*n)++] = (gone_back){record.step, checkpoint_before(record.step, from, every)};
    }
    mz_record_free(&record);
    mz_lines_close(lines);
    return status;
}

static void add_rollback(const gone_back *g, mz_rollback list[MZ_ROLLBACKS], int *n) {
    if ((*n == 0 || list[*n - 1].to != g->to) && *n < MZ_ROLLBACKS)
        list[(*n)++] = (mz_rollback){.to = g->to};
    list[*n - 1].times++;
    list[*n - 1].steps += g->bad - g->to;
}

mezzo_status mz_rollbacks_find(const char *folder, int64_t from, int64_t every, int64_t passed,
                               mz_rollback list[MZ_ROLLBACKS], int *n) {
    gone_back *all = NULL;
    size_t count;
    bool found = false;
    const mezzo_status status = read_rollbacks(folder, from, every, &all, &count);
    *n = 0;
    for (size_t first = 0; status == MEZZO_OK && first < count && !found; first++) {
        int64_t sum = 0;
        for (size_t last = first; last < count && sum < passed && !found; last++) {
            sum += all[last].bad - all[last].to;
            found = sum == passed;
            for (size_t i = first; i <= last && found; i++)
                add_rollback(&all[i], list, n);
        }
    }
    mz_free(all);
    return status;
}
