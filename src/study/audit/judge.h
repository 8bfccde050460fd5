// Applies the rules of study/agree/rules.def to the traces of a program.
#ifndef MZ_STUDY_JUDGE_H
#define MZ_STUDY_JUDGE_H

#include "study/agree/agreement.h"
#include "study/audit/trace.h"

typedef struct mz_audit_finding {
    mz_finding_kind rule;
    int rank;       // the first one that has it
    int ranks;      // how many have it
    char file[300]; // "": the trace does not say where
    int line;
    char inner[320];   // "transformers/….py:12", inside of a library that the line calls; ""
    char numbers[700]; // what was seen, with its numbers
    char change[500];  // the rule's, or a closer one
} mz_audit_finding;

typedef struct mz_audit {
    mz_audit_finding *findings; // in order of the rules, then of the ranks
    size_t n_findings, cap;
    int n_conflicts;
    mezzo_dtype asked; // of the first autocast region of 16 bits; MEZZO_DTYPE_COUNT: none
    double low_share;  // of the FLOPs of forward products, in 16 bits or fewer
    double flops;      // of a step
} mz_audit;

// `assumed`: judges formats and shapes for another machine, as doctor --assume; NULL: the one in the trace. Errors:
// MEMORY. Free with mz_audit_free, also on errors.
mezzo_status mz_audit_judge(const mz_torch_trace *traces, int n, const mz_where *assumed, mz_audit *out);
void mz_audit_free(mz_audit *audit);

// --- for the rules' files ------------------------------------------------------------------------------------------
typedef struct mz_judge {
    const mz_torch_trace *traces;
    int n;
    const mz_torch_trace *trace; // the one that is judged now
    int capability;              // × 10 of the GPU that it runs on, or that is assumed; 0: no GPU
    double forward, low;         // FLOPs of its forward products; of those in 16 bits or fewer
    mz_audit *out;
    mezzo_status status;
} mz_judge;

// Adds a finding at `place` of the judged trace (-1: none), or counts the rank where another one has it there already.
// inner: the line of a library that `place` called, shown beside it; the same place or -1: none.
void mz_judge_add_inner(mz_judge *j, mz_finding_kind rule, int place, int inner, const char *change,
                        const char *numbers, ...) __attribute__((format(printf, 6, 7)));
#define mz_judge_add(j, rule, place, ...) mz_judge_add_inner(j, rule, place, -1, __VA_ARGS__)
void mz_judge_products(mz_judge *j); // judge_products.c: formats, regions and shapes of operations
void mz_judge_events(mz_judge *j);   // judge_events.c: scaler, clipping, schedule, accumulation
void mz_judge_ranks(mz_judge *j);    // judge_events.c: all traces together

#endif
