// Any bytes as a trace of mezzo.audit: refused with one line, or judged and priced without an access out of bounds.
#include "study/audit/cost.h"
#include "study/audit/judge.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const mz_where gpu = {.known = true, .compute_capability = 90, .gpus = 1};
    mz_torch_trace trace;
    mz_audit audit;
    mz_torch_costs costs;
    if (mz_torch_trace_parse("input", (const char *)data, size, &trace) != MEZZO_OK) {
        fuzz_expect_message();
        return 0;
    }
    for (int assumed = 0; assumed < 2; assumed++) {
        if (mz_audit_judge(&trace, 1, assumed ? &gpu : NULL, &audit) != MEZZO_OK)
            __builtin_trap();
        for (size_t i = 0; i < audit.n_findings; i++)
            if (memchr(audit.findings[i].file, '\0', sizeof audit.findings[i].file) == NULL ||
                audit.findings[i].line < 0 || audit.findings[i].ranks < 1)
                __builtin_trap();
        mz_torch_costs_predict(&trace, &costs);
        mz_audit_free(&audit);
    }
    mz_torch_trace_free(&trace);
    return 0;
}
