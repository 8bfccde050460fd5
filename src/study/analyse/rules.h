// Rules choose a precision for a shape: each says "the candidate from so many tokens per step on" for a band of widths.
#ifndef MZ_STUDY_RULES_H
#define MZ_STUDY_RULES_H

#include "study/analyse/pairs.h"
#include "study/analyse/stats.h"

typedef enum mz_rule_kind { MZ_RULE_ALWAYS, MZ_RULE_NEVER, MZ_RULE_FROM, MZ_RULE_BELOW } mz_rule_kind;

typedef struct mz_rule {
    int64_t d_model;     // the width it was found at; 0: none, it is a published one
    int64_t least_width; // it serves widths from here up to the next rule's
    mz_rule_kind kind;   // candidate: always, never, at `threshold` tokens per step and above, or below it
    double threshold;
    int64_t n, right;                 // pairs it was found on, and how many it decides rightly; 0: not known
    double log_regret;                // mean over those pairs, see mz_rule_score
    double least_tokens, most_tokens; // of those pairs
} mz_rule;

#define MZ_RULES_MAX 64
// Holds what a rule decides at one width and number of tokens, on the pairs that were measured there: for advise's
// confidence.
typedef struct mz_rule_cell {
    int64_t d_model, tokens, n, wins; // wins: the candidate was faster
    double speedup, mem_saving_pct;   // medians of those pairs; NaN: not known
} mz_rule_cell;

typedef struct mz_rules {
    char name[64];
    char baseline[MZ_STUDY_NAME], candidate[MZ_STUDY_NAME];
    char source[256];            // a sentence: where they come from
    mz_rule rules[MZ_RULES_MAX]; // ascending least_width
    int n;
    mz_rule_cell *cells; // ascending width, tokens; may be NULL
    size_t n_cells, cap_cells;
} mz_rules;

void mz_rules_free(mz_rules *rules);
bool mz_rule_decides(const mz_rule *rule, double tokens); // true: the candidate
const char *mz_rule_text(const mz_rules *rules, const mz_rule *rule, char *buf,
                         size_t size); // "amp from 640 tokens per step on"

// "600 tokens per step at width 512 and above, 1,000 below", published for GLM-4-MoE on a Tesla T4.
void mz_rules_t4_glm4moe(mz_rules *out);

// --- finding and judging -------------------------------------------------------------------------------------------
typedef struct mz_score {
    size_t n;
    double accuracy;   // share of pairs decided as their speedup says (a tie at exactly 1 is right either way)
    double log_regret; // mean over the pairs of ln(time of the choice / time of the better precision); 0 is perfect
} mz_score;
mz_score mz_rules_score(const mz_rules *rules, const mz_pair *pairs, size_t n);

// Fits one rule for each width: the threshold, of all between neighbouring token counts, and the direction with the
// least mean log-regret. Of equals the simplest: always, never, from, below. Bands meet at the geometric mean of
// neighbouring widths.
mezzo_status mz_rules_fit(const mz_pair *pairs, size_t n, mz_rules *out);
// One rule for every width that decides always or never, whichever has less regret on the pairs; cells as mz_rules_fit
// makes them.
void mz_rules_make_constant(mz_rules *rules, const mz_pair *pairs, size_t n);
// Computes the mean over `folds` folds: rules found on the others, scored on the fold. Pairs of one shape share a fold,
// so that repeats of a shape do not stand on both sides. *out counts every pair once.
mezzo_status mz_rules_cross_validate(const mz_pair *pairs, size_t n, int folds, uint64_t seed, mz_score *out);

// --- applying (advise) ---------------------------------------------------------------------------------------------
typedef struct mz_advice {
    bool candidate;
    int64_t tokens;
    const mz_rule *rule;           // of the rules
    char precision[MZ_STUDY_NAME]; // as --precision takes it: a study's "amp" is fp16
    char reason[700];
    // The share of the pairs measured nearest to this shape on which the same choice was the faster one, with its 95 %
    // Wilson interval; NaN where the rules carry no measurements.
    double confidence;
    mz_interval interval;
    int64_t pairs;
    char warning[200]; // outside of what was measured; "" if not
} mz_advice;
mezzo_status mz_rules_advise(const mz_rules *rules, int64_t d_model, int64_t batch, int64_t seq_len, mz_advice *out);

// --- files ---------------------------------------------------------------------------------------------------------
mezzo_status mz_rules_save(const mz_rules *rules, const mz_score *cross_validated, const char *path); // rules.json
// A rules.json, or the name of built-in rules. IO, FORMAT or INVALID name file and key.
mezzo_status mz_rules_load(const char *path, mz_rules *out);
const char *mz_rules_names(void); // of the built-in ones: "t4-glm4moe, …"
// The built-in rules measured on such a device: "h200-gpt2"; NULL: there are none. device: as it describes itself; amx:
// a CPU with AMX; model: "gpt2", "glm4_moe-4x128", … or NULL.
const char *mz_rules_for(const char *device, bool amx, const char *model);

#endif
