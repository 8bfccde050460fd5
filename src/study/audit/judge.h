// Applies the rules of study/agree/rules.def to the traces of a program.
#ifndef MZ_STUDY_JUDGE_H
#define MZ_STUDY_JUDGE_H

#include "study/agree/agreement.h"
#include "study/audit/trace.h"

typedef struct mz_audit_finding {
    mz_finding_kind rule;
    int rank;       // the first rank with the finding
    int ranks;      // number of ranks with the finding
    char file[300]; // "": the trace has no place
    int line;
    char inner[320];   // "transformers/….py:12", within a library that the line calls; ""
    char numbers[700]; // the observation, with its numbers
    char change[500];  // the rule's advice, or a more specific one
} mz_audit_finding;

typedef struct mz_audit {
    mz_audit_finding *findings; // in order of the rules, then of the ranks
    size_t n_findings, cap;
    int n_conflicts;
    mezzo_dtype asked; // the format of the first 16-bit autocast region; MEZZO_DTYPE_COUNT: there is none
    double low_share;  // of the FLOPs of forward products: the share in 16 bits or fewer
    double flops;      // of one step
} mz_audit;

// Judges traces. `assumed`: the machine for which to judge formats and shapes, as doctor --assume; NULL: the one in the
// trace. Errors: MEMORY. Free with mz_audit_free, after errors, too.
mezzo_status mz_audit_judge(const mz_torch_trace *traces, int n, const mz_where *assumed, mz_audit *out);
void mz_audit_free(mz_audit *audit);

// --- for the rules' files ------------------------------------------------------------------------------------------
typedef struct mz_judge {
    const mz_torch_trace *traces;
    int n;
    const mz_torch_trace *trace; // the trace that is judged now
    int capability;              // 10 times the compute capability of its GPU, or of the assumed one; 0: no GPU
    double forward, low;         // FLOPs of its forward products, and of those in 16 bits or fewer
    mz_audit *out;
    mezzo_status status;
} mz_judge;

// Adds a finding at `place` of the judged trace (-1: none), or counts the rank where another one has the same finding
// there. inner: the line of a library that `place` called, shown beside it; the same place or -1: none.
void mz_judge_add_inner(mz_judge *j, mz_finding_kind rule, int place, int inner, const char *change,
                        const char *numbers, ...) __attribute__((format(printf, 6, 7)));
#define mz_judge_add(j, rule, place, ...) mz_judge_add_inner(j, rule, place, -1, __VA_ARGS__)
void mz_judge_products(mz_judge *j); // formats, regions and shapes of operations (judge_products.c)
void mz_judge_events(mz_judge *j);   // judges scaler, clipping, schedule and accumulation (judge_events.c)
void mz_judge_ranks(mz_judge *j);    // all traces together (judge_events.c)

#endif
