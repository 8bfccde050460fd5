// Rules choose a precision for a shape: each says, for a band of widths, from which number of tokens per step on the
// candidate is faster.
#ifndef MZ_STUDY_RULES_H
#define MZ_STUDY_RULES_H

#include "study/analyse/pairs.h"
#include "study/analyse/stats.h"

typedef enum mz_rule_kind { MZ_RULE_ALWAYS, MZ_RULE_NEVER, MZ_RULE_FROM, MZ_RULE_BELOW } mz_rule_kind;

typedef struct mz_rule {
    int64_t d_model;     // the width at which it was found; 0: none, it is a published rule
    int64_t least_width; // it applies to widths from here up to the next rule's
    mz_rule_kind kind;   // chooses the candidate always, never, from `threshold` tokens per step on, or below it
    double threshold;
    int64_t n, right;                 // pairs from which it was found, and how many it decides rightly; 0: not known
    double log_regret;                // mean over those pairs, as in mz_score
    double least_tokens, most_tokens; // of those pairs
} mz_rule;

#define MZ_RULES_MAX 64
// Holds a rule's result at one width and number of tokens, on the pairs measured there, for advise's confidence.
typedef struct mz_rule_cell {
    int64_t d_model, tokens, n, wins; // wins: pairs whose candidate was faster
    double speedup, mem_saving_pct;   // medians of those pairs; NaN: not known
} mz_rule_cell;

typedef struct mz_rules {
    char name[64];
    char baseline[MZ_STUDY_NAME], candidate[MZ_STUDY_NAME];
    char source[256];            // a sentence about the origin of the rules
    mz_rule rules[MZ_RULES_MAX]; // in ascending order of least_width
    int n;
    mz_rule_cell *cells; // in ascending order of width, then tokens; may be NULL
    size_t n_cells, cap_cells;
} mz_rules;

void mz_rules_free(mz_rules *rules);
bool mz_rule_decides(const mz_rule *rule, double tokens); // true: it chooses the candidate
const char *mz_rule_text(const mz_rules *rules, const mz_rule *rule, char *buf,
                         size_t size); // writes "amp from 640 tokens per step on"

// Makes the published rule for GLM-4-MoE on a Tesla T4: "600 tokens per step at width 512 and above, 1,000 below".
void mz_rules_t4_glm4moe(mz_rules *out);

// --- finding and judging -------------------------------------------------------------------------------------------
typedef struct mz_score {
    size_t n;
    double accuracy;   // share of pairs that it decides as their speedup says (a tie at exactly 1 counts as right)
    double log_regret; // mean over the pairs of ln(time of the choice / time of the better precision); 0 is perfect
} mz_score;
mz_score mz_rules_score(const mz_rules *rules, const mz_pair *pairs, size_t n);

// Fits one rule for each width: of all thresholds between neighbouring token counts, and both directions, the one with
// the least mean log-regret; of equals the simplest: always, never, from, below. Bands meet at the geometric mean of
// neighbouring widths.
mezzo_status mz_rules_fit(const mz_pair *pairs, size_t n, mz_rules *out);
// Makes one rule for every width that decides always or never, whichever has less regret on the pairs; it makes cells
// as mz_rules_fit does.
void mz_rules_make_constant(mz_rules *rules, const mz_pair *pairs, size_t n);
// Computes the mean over `folds` folds: rules found on the other folds are scored on this one. Pairs of one shape share
// a fold, so that repeats of a shape are not on both sides. *out counts every pair once.
mezzo_status mz_rules_cross_validate(const mz_pair *pairs, size_t n, int folds, uint64_t seed, mz_score *out);

// --- applying (advise) ---------------------------------------------------------------------------------------------
typedef struct mz_advice {
    bool candidate;
    int64_t tokens;
    const mz_rule *rule;           // one of the rules
    char precision[MZ_STUDY_NAME]; // as --precision accepts it: a study's "amp" is fp16
    char reason[700];
    // Of the measured pairs nearest to this shape, the share for which the same choice was the faster one, with its 95
    // % Wilson interval; NaN where the rules have no measurements.
    double confidence;
    mz_interval interval;
    int64_t pairs;
    char warning[200]; // where the shape is outside the measured range; "" otherwise
} mz_advice;
mezzo_status mz_rules_advise(const mz_rules *rules, int64_t d_model, int64_t batch, int64_t seq_len, mz_advice *out);

// --- files ---------------------------------------------------------------------------------------------------------
mezzo_status mz_rules_save(const mz_rules *rules, const mz_score *cross_validated,
                           const char *path); // writes rules.json
// Loads a rules.json, or built-in rules by their name. IO, FORMAT or INVALID name file and key.
mezzo_status mz_rules_load(const char *path, mz_rules *out);
const char *mz_rules_names(void); // of the built-in ones: "t4-glm4moe, …"
// Returns the built-in rules that were measured on such a device: "h200-gpt2"; NULL: there are none. device: its own
// description; amx: a CPU with AMX; model: "gpt2", "glm4_moe-4x128", … or NULL.
const char *mz_rules_for(const char *device, bool amx, const char *model);

#endif
