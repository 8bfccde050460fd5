#include "study/audit/judge.h"

#include <stdarg.h>

void mz_judge_add_inner(mz_judge *j, mz_finding_kind rule, int place, int inner, const char *change,
                        const char *numbers, ...) {
    mz_audit_finding f = {.rule = rule, .rank = j->trace->rank, .ranks = 1};
    va_list args;
    va_start(args, numbers);
    vsnprintf(f.numbers, sizeof f.numbers, numbers, args);
    va_end(args);
    snprintf(f.change, sizeof f.change, "%s", change != NULL ? change : mz_rule_of(rule)->change);
    if (place >= 0) {
        snprintf(f.file, sizeof f.file, "%s", j->trace->places[place].file);
        f.line = j->trace->places[place].line;
    }
    if (inner >= 0 && inner != place)
        snprintf(f.inner, sizeof f.inner, "%.300s:%d", j->trace->places[inner].file, j->trace->places[inner].line);
    mz_audit *a = j->out;
    for (size_t i = 0; i < a->n_findings; i++)
        if (a->findings[i].rule == rule && a->findings[i].line == f.line && strcmp(a->findings[i].file, f.file) == 0 &&
            strcmp(a->findings[i].inner, f.inner) == 0) {
            a->findings[i].ranks += a->findings[i].rank != f.rank;
            return;
        }
    if (j->status == MEZZO_OK)
        j->status = MZ_RESERVE(a->findings, a->cap, a->n_findings + 1);
    if (j->status != MEZZO_OK)
        return;
    a->findings[a->n_findings++] = f;
    a->n_conflicts += mz_rule_of(rule)->conflict;
}

static void sort_by_rule(mz_audit *a) {
    for (size_t i = 1; i < a->n_findings; i++) {
        const mz_audit_finding f = a->findings[i];
        size_t k = i;
        for (; k > 0 && a->findings[k - 1].rule > f.rule; k--)
            a->findings[k] = a->findings[k - 1];
        a->findings[k] = f;
    }
}

static void judge_unseen(mz_judge *j) {
    const mz_torch_trace *t = j->trace;
    for (size_t i = 0; i < t->n_compiled; i++)
        mz_judge_add(j, MZ_FINDING_UNSEEN, t->compiled[i], NULL,
                     "torch.compile: the followed steps ran this code uncompiled, so formats, regions and shapes are "
                     "as written; fused kernels keep intermediate results in FP32, and their times are not predicted");
    if (t->dropped > 0)
        mz_judge_add(j, MZ_FINDING_UNSEEN, -1, NULL, "%lld operations or events did not fit the trace",
                     (long long)t->dropped);
}

static void judge_format(mz_judge *j) {
    for (size_t i = 0; i < j->trace->n_regions; i++) {
        const mz_torch_region *r = &j->trace->regions[i];
        const bool bf16 = strcmp(r->dtype, "bf16") == 0;
        if (j->capability > 0 && r->enabled && strcmp(r->device, "cuda") == 0 &&
            ((bf16 && j->capability < 80) || (strcmp(r->dtype, "fp16") == 0 && j->capability < 53)))
            mz_judge_add(j, MZ_FINDING_LACKS, r->at,
                         bf16 ? "use torch.float16 with a GradScaler, which this GPU has" : NULL,
                         "autocast to %s on a GPU of compute capability %d.%d, which has no arithmetic for it",
                         r->dtype, j->capability / 10, j->capability % 10);
    }
}

mezzo_status mz_audit_judge(const mz_torch_trace *traces, int n, const mz_where *assumed, mz_audit *out) {
    *out = (mz_audit){.asked = MEZZO_DTYPE_COUNT};
    mz_judge j = {.traces = traces, .n = n, .out = out};
    for (int i = 0; i < n; i++) {
        j.trace = &traces[i];
        j.capability = assumed != NULL ? (assumed->known ? assumed->compute_capability : 0) : j.trace->capability;
        mz_judge_products(&j);
        mz_judge_events(&j);
        judge_format(&j);
        judge_unseen(&j);
    }
    if (n > 0)
        mz_judge_ranks(&j);
    sort_by_rule(out);
    return j.status;
}

void mz_audit_free(mz_audit *audit) {
    mz_free(audit->findings);
    *audit = (mz_audit){0};
}
