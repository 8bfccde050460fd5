// Compares configuration files by precision: the settings of each, the precision that would run, and every conflict.
//
// It reads Mezzo's own configuration, Hugging Face accelerate's (YAML or JSON), DeepSpeed's JSON, Lightning's
// `trainer:`, MMEngine's `optim_wrapper`, Detectron2's SOLVER, nanoGPT's assignments, and any trainer's YAML with amp,
// fp16, bf16, precision, mixed_precision or dtype keys (Hugging Face's TrainingArguments among them).
#ifndef MZ_STUDY_AGREEMENT_H
#define MZ_STUDY_AGREEMENT_H

#include "io/json.h"

typedef enum mz_asker {
    MZ_ASKER_NONE,
    MZ_ASKER_MEZZO,
    MZ_ASKER_ACCELERATE,
    MZ_ASKER_DEEPSPEED,
    MZ_ASKER_LIGHTNING,
    MZ_ASKER_MMENGINE,
    MZ_ASKER_DETECTRON2,
    MZ_ASKER_NANOGPT,
    MZ_ASKER_TRAINER
} mz_asker;
typedef enum mz_ask {
    MZ_ASK_NOTHING,
    MZ_ASK_FP32,
    MZ_ASK_TF32,
    MZ_ASK_FP16,
    MZ_ASK_BF16,
    MZ_ASK_FP8,
    MZ_ASK_FP64,
    MZ_ASK_AUTO,
    MZ_ASK_COUNT
} mz_ask;
typedef enum mz_said_scaler { MZ_SCALER_UNSAID, MZ_SCALER_ON, MZ_SCALER_OFF } mz_said_scaler;

// Holds one setting with its line.
typedef struct mz_said {
    char key[96]; // dotted, from the root
    char value[64];
    int line; // 0: the file has no such setting
} mz_said;

// Holds a setting that selects a precision.
typedef struct mz_vote {
    mz_ask ask;
    bool weak; // fp16: false excludes only one format; it counts where no stronger setting exists
    bool pure; // parameters have that format, too, as in Lightning's 16-true
    bool lone; // a trainer's `dtype` without a setting of AMP or a scaler: it may mean the parameters or autocast
    bool amp;  // it is a trainer's AMP switch, which goes through the accelerator where there is one
    mz_said said;
} mz_vote;

#define MZ_VOTES_MAX 24
#define MZ_GPUS_MAX  64
typedef struct mz_asked {
    const char *path; // borrowed
    mz_asker asker;
    mz_vote votes[MZ_VOTES_MAX];
    int n_votes;
    int decides; // index of the vote that the file's reader follows; -1: the file asks for nothing
    mz_said_scaler scaler;
    mz_said scaler_said;
    mz_said clip_first;     // gradients are clipped before they are unscaled
    mz_said nan_zeroed;     // gradients that are NaN are made 0
    mz_said unknown;        // a word that names no precision
    mz_said accelerator_no; // the trainer creates its accelerator with mixed_precision "no"
    mz_said elsewhere;      // it runs on TPUs or other devices that are neither CPUs nor CUDA GPUs
    mz_said follows;        // it names a DeepSpeed file
    char followed[512];     // its path as written
    bool cpu;               // it asks for the CPU by name
    mz_said cpu_said;
    int gpus[MZ_GPUS_MAX], n_gpus; // GPUs that it names one by one
    int processes;                 // 0: not given; of all machines where `machines` is above 1
    int machines;                  // 0: not given
    mz_said gpus_said, processes_said;
} mz_asked;

// Reads one file. MEZZO_ERR_IO, MEZZO_ERR_FORMAT and, for a file of Mezzo's own, MEZZO_ERR_INVALID: "FILE:LINE: …".
// `path` is borrowed.
mezzo_status mz_asked_read(const char *path, mz_asked *out);
// Holds files and those that they name, each once. The name of a missing file stays in `follows` of the file that names
// it.
typedef struct mz_asked_set {
    mz_asked *files;
    char **paths;
    size_t n, cap_files, cap_paths;
} mz_asked_set;
mezzo_status mz_asked_read_all(const char *const *paths, int n,
                               mz_asked_set *out); // errors as mz_asked_read; free it after errors, too
void mz_asked_set_free(mz_asked_set *set);
// Converts top-level assignments of a Python file to YAML with the same line numbers; it leaves out what is not a
// literal.
mezzo_status mz_python_to_yaml(const char *text, size_t size, mz_text *out);
const char *mz_ask_name(mz_ask ask);       // "bf16"
const char *mz_asker_name(mz_asker asker); // "accelerate"

// Describes the machine on which the configurations would run.
typedef struct mz_where {
    bool known;    // false: there is no GPU here and none is assumed, so formats are judged only for files that ask for
                   // the CPU
    char name[96]; // "NVIDIA H100", "cc 7.5 (assumed)"
    int compute_capability;            // times 10
    int gpus;                          // number of GPUs
    bool cpu_bf16, cpu_fp16, cpu_tf32; // the CPU has arithmetic for them
} mz_where;

void mz_where_here(mz_where *out);                      // describes this machine, without starting a GPU
bool mz_where_assumed(const char *text, mz_where *out); // parses "cc=8.0,gpus=2", "cc=7.5", "gpus=0"; false: another
                                                        // text

// The rules of rules.def, in their order.
typedef enum mz_finding_kind {
#define RULE(id, name, kind, what, why, change) MZ_FINDING_##id,
#include "study/agree/rules.def"
#undef RULE
} mz_finding_kind;

typedef struct mz_rule {
    const char *name; // "fp16-without-scaler"
    bool conflict;    // false: it is a note
    const char *what, *why, *change;
} mz_rule;
const mz_rule *mz_rule_of(mz_finding_kind kind);

typedef struct mz_finding {
    mz_finding_kind kind;
    char text[800]; // what is wrong, with files and lines
    char fix[800];  // which lines to change; "" for a note
} mz_finding;

#define MZ_FINDINGS_MAX 64
typedef struct mz_agreement {
    int decides; // index of the file that is followed; -1: no file asks for a precision
    mz_ask runs; // the precision that would run; MZ_ASK_NOTHING: the files do not say
    bool pure;
    mz_said_scaler scaler; // ON, OFF, or UNSAID where the files do not say
    char why[600];
    mz_finding findings[MZ_FINDINGS_MAX];
    int n_findings, n_conflicts;
} mz_agreement;

const char *mz_finding_name(mz_finding_kind kind);      // "fp16-without-scaler"
const char *mz_asked_text(const mz_asked *file);        // the format that a file asks for, or "nothing"
const char *mz_agreement_runs(const mz_agreement *a);   // the format, or "not known"
const char *mz_agreement_scaler(const mz_agreement *a); // whether a loss scaler runs: "yes", "no", "not needed", "not
                                                        // known"
void mz_agreement_judge(const mz_asked *files, int n, const mz_where *where, mz_agreement *out);
void mz_agreement_text(const mz_asked *files, int n, const mz_agreement *a, mz_text *t);
json_t *mz_agreement_json(const mz_asked *files, int n, const mz_agreement *a);

#endif
