// Judges what several files say about precision together. Where they differ, `rank` orders them: DeepSpeed's engine
// reads its own file. Lightning's Trainer reads its own argument. A trainer that turns fp16 or bf16 on overwrites
// accelerate's mixed_precision (Hugging Face's TrainingArguments do). A trainer that turns nothing on leaves
// accelerate's in force: Accelerator.prepare() wraps the model in it, whatever the trainer's own settings.
#include "study/agree/agreement.h"

#include "io/fields.h"

enum { NOTE, CONFLICT };
static const mz_rule rules[] = {
#define RULE(id, name, kind, what, why, change) [MZ_FINDING_##id] = {name, (kind) == CONFLICT, what, why, change},
#include "study/agree/rules.def"
#undef RULE
};

const mz_rule *mz_rule_of(mz_finding_kind kind) {
    return &rules[kind];
}

const char *mz_finding_name(mz_finding_kind kind) {
    return rules[kind].name;
}

// A setting as messages show it: "a.yaml:3 (amp: false)".
typedef struct place {
    char text[300];
} place;

static place at(const mz_asked *file, const mz_said *said) {
    place p;
    snprintf(p.text, sizeof p.text, "%.90s:%d (%s: %s)", file->path, said->line, said->key, said->value);
    return p;
}

static mz_finding *find(mz_agreement *out, mz_finding_kind kind) {
    if (out->n_findings == MZ_FINDINGS_MAX)
        return &out->findings[MZ_FINDINGS_MAX - 1];
    out->n_conflicts += rules[kind].conflict;
    mz_finding *f = &out->findings[out->n_findings++];
    *f = (mz_finding){.kind = kind};
    return f;
}

#define TELL(finding, ...) (void)snprintf((finding)->text, sizeof(finding)->text, __VA_ARGS__)
#define FIX(finding, ...)  (void)snprintf((finding)->fix, sizeof(finding)->fix, __VA_ARGS__)

// --- the deciding file ---------------------------------------------------------------------------------------------
static const mz_vote *word_of(const mz_asked *file) {
    return file->decides >= 0 ? &file->votes[file->decides] : NULL;
}

static bool is_lower(mz_ask ask) {
    return ask == MZ_ASK_FP16 || ask == MZ_ASK_BF16 || ask == MZ_ASK_FP8 || ask == MZ_ASK_TF32;
}

static int rank(const mz_asked *file) {
    const mz_vote *v = word_of(file);
    if (v == NULL)
        return 0;
    if (v->ask == MZ_ASK_AUTO && file->asker != MZ_ASKER_MEZZO)
        return 1; // such a trainer follows another file
    switch (file->asker) {
    case MZ_ASKER_DEEPSPEED:
        return v->weak && v->ask == MZ_ASK_FP32 ? 2 : 6;
    case MZ_ASKER_LIGHTNING:
    case MZ_ASKER_MMENGINE:
    case MZ_ASKER_DETECTRON2:
    case MZ_ASKER_NANOGPT:
        return 5;
    case MZ_ASKER_ACCELERATE:
        return 3;
    case MZ_ASKER_TRAINER:
        return is_lower(v->ask) ? 4 : 2;
    default:
        return 2;
    }
}

static const char *reason_of(const mz_asked *file, int n) {
    if (n == 1)
        return "the only file that says so";
    switch (file->asker) {
    case MZ_ASKER_DEEPSPEED:
        return "DeepSpeed's engine follows its own file";
    case MZ_ASKER_LIGHTNING:
        return "Lightning's Trainer follows its own argument";
    case MZ_ASKER_MMENGINE:
        return "MMEngine's runner follows its own optim_wrapper";
    case MZ_ASKER_DETECTRON2:
        return "Detectron2's trainer follows its own SOLVER.AMP";
    case MZ_ASKER_NANOGPT:
        return "nanoGPT's train.py autocasts to its own dtype";
    case MZ_ASKER_ACCELERATE:
        return "no trainer turns a format on, so Accelerator.prepare() wraps the model in accelerate's";
    case MZ_ASKER_TRAINER:
        return "a trainer's own flag overwrites accelerate's mixed_precision";
    default:
        return "the last of Mezzo's files wins";
    }
}

// Returns the loss scaling that the followed file states, or the default of the program that reads it.
static mz_said_scaler scaler_of(const mz_asked *file, const mz_vote *v, mz_said_scaler anywhere) {
    if (v->ask != MZ_ASK_FP16)
        return MZ_SCALER_OFF; // the range is fp32's, so it is not needed
    if (v->lone && anywhere == MZ_SCALER_ON)
        return MZ_SCALER_ON; // another file names it
    if (v->pure)
        return MZ_SCALER_OFF;
    if (file->scaler != MZ_SCALER_UNSAID)
        return file->scaler;
    if (file->asker != MZ_ASKER_TRAINER)
        return MZ_SCALER_ON; // the frameworks have one, and so has nanoGPT for float16
    const char *dot = strrchr(v->said.key, '.');
    if (strcmp(dot != NULL ? dot + 1 : v->said.key, "fp16") == 0)
        return MZ_SCALER_ON; // Hugging Face's Trainer and fairseq have one, too
    return anywhere;
}

// --- one file by itself --------------------------------------------------------------------------------------------
static void judge_file(const mz_asked *file, mz_agreement *out) {
    if (file->unknown.line != 0) {
        mz_finding *f = find(out, MZ_FINDING_UNKNOWN);
        TELL(f, "%s is not a known precision", at(file, &file->unknown).text);
        FIX(f, "write one of fp32, tf32, fp16, bf16, fp8, no, or Lightning's 32-true, 16-mixed, bf16-mixed in %.90s:%d",
            file->path, file->unknown.line);
    }
    const mz_vote *v = word_of(file);
    if (v == NULL || file->accelerator_no.line != 0) // the second case is a finding of its own
        return;
    for (int i = 0; i < file->n_votes; i++) {
        const mz_vote *other = &file->votes[i];
        if (other->weak || other->ask == v->ask || other->ask == MZ_ASK_AUTO || v->ask == MZ_ASK_AUTO || v->weak)
            continue;
        mz_finding *f = find(out, MZ_FINDING_BOTH);
        TELL(f, "%s asks for %s, and %s for %s", at(file, &v->said).text, mz_ask_name(v->ask),
             at(file, &other->said).text, mz_ask_name(other->ask));
        FIX(f, "keep one of %s (%.90s:%d) and %s (%.90s:%d), and turn the other off", v->said.key, file->path,
            v->said.line, other->said.key, file->path, other->said.line);
        return; // reported once for each file
    }
}

// Judges gradients that are NaN and made 0: in every format the optimizer then takes the step with a wrong gradient.
static void judge_nan(const mz_asked *files, int n, mz_said_scaler scaler, mz_agreement *out) {
    for (int i = 0; i < n; i++) {
        const mz_asked *file = &files[i];
        if (file->nan_zeroed.line == 0)
            continue;
        mz_finding *f = find(out, MZ_FINDING_NAN_ZEROED);
        TELL(f, "%s: NaN gradients become 0 and the step is applied with the rest%s", at(file, &file->nan_zeroed).text,
             scaler == MZ_SCALER_ON ? "; the loss scaler never sees the overflow, so its scale never falls" : "");
        FIX(f, "remove %.90s:%d and skip the whole step instead (a GradScaler does), or find the cause of the NaN",
            file->path, file->nan_zeroed.line);
    }
}

static void judge_clipping(const mz_asked *files, int n, const mz_vote *v, mz_said_scaler scaler, mz_agreement *out) {
    for (int i = 0; i < n; i++) {
        const mz_asked *file = &files[i];
        if (file->clip_first.line == 0)
            continue;
        bool scaled = v->ask == MZ_ASK_FP16 && scaler != MZ_SCALER_OFF;
        mz_finding *f = find(out, scaled ? MZ_FINDING_CLIP_FIRST : MZ_FINDING_NOTE);
        TELL(f,
             scaled ? "%s: gradients are clipped before unscaling, so nearly all are cut to a vanishing norm"
                    : "%s: harmless here, because there is no loss scale; with fp16 it would be wrong",
             at(file, &file->clip_first).text);
        if (scaled)
            FIX(f, "in %.90s:%d unscale first (scaler.unscale_(optimizer), then clip_grad_norm_)", file->path,
                file->clip_first.line);
    }
}

// --- the device ----------------------------------------------------------------------------------------------------
static const char *lacking(const mz_where *where, bool cpu, mz_ask ask) {
    if (cpu)
        switch (ask) {
        case MZ_ASK_FP16:
            return where->cpu_fp16 ? NULL : "the CPU has no fp16 arithmetic";
        case MZ_ASK_BF16:
            return where->cpu_bf16 ? NULL : "this CPU has no bf16 arithmetic, only storage, so it will not be faster";
        case MZ_ASK_TF32:
            return where->cpu_tf32 ? NULL : "this CPU has no tf32 arithmetic; fp32 runs";
        case MZ_ASK_FP8:
            return "CPUs have no such format";
        default:
            return NULL;
        }
    if (!where->known)
        return NULL;
    switch (ask) {
    case MZ_ASK_FP16:
        return where->compute_capability >= 53 ? NULL : "it has no fp16 arithmetic: fp16 needs compute capability 5.3";
    case MZ_ASK_BF16:
        return where->compute_capability >= 80 ? NULL
                                               : "it has no bf16 arithmetic: bf16 needs compute capability 8.0 "
                                                 "(PyTorch emulates it slowly or refuses, Mezzo runs fp16)";
    case MZ_ASK_TF32:
        return where->compute_capability >= 80 ? NULL : "it has no tf32: tf32 needs compute capability 8.0; fp32 runs";
    case MZ_ASK_FP8:
        return where->compute_capability >= 89 ? NULL : "it has no fp8: fp8 needs compute capability 8.9";
    default:
        return NULL;
    }
}

static void judge_device(const mz_asked *files, int n, const mz_where *where, const mz_vote *v, const mz_asked *file,
                         mz_agreement *out) {
    bool cpu = false;
    for (int i = 0; i < n; i++) {
        cpu = cpu || files[i].cpu;
        if (files[i].elsewhere.line != 0) {
            mz_finding *f = find(out, MZ_FINDING_NOTE);
            TELL(f, "%s: its formats and their number were not checked", at(&files[i], &files[i].elsewhere).text);
            return;
        }
    }
    const char *lack = lacking(where, cpu, v->ask);
    if (lack != NULL) {
        mz_finding *f = find(out, MZ_FINDING_LACKS);
        TELL(f, "%s asks for %s on %s, but %s", at(file, &v->said).text, mz_ask_name(v->ask),
             cpu ? "the CPU" : where->name, lack);
        FIX(f, "change %.90s:%d to %s", file->path, v->said.line,
            v->ask == MZ_ASK_BF16 && !cpu && where->compute_capability >= 70 ? "fp16, with a loss scaler" : "fp32");
    } else if (!cpu && !where->known && is_lower(v->ask)) {
        mz_finding *f = find(out, MZ_FINDING_NOTE);
        TELL(f, "there is no GPU here, so support for %s was not checked; name a GPU with --assume cc=8.0,gpus=1",
             mz_ask_name(v->ask));
    }
}

static void judge_gpus(const mz_asked *file, const mz_where *where, mz_agreement *out) {
    if (file->cpu || file->elsewhere.line != 0)
        return;
    for (int i = 0; i < file->n_gpus; i++)
        if (file->gpus[i] >= where->gpus) {
            mz_finding *f = find(out, MZ_FINDING_NO_SUCH_GPU);
            if (where->gpus == 0)
                TELL(f, "%s names GPU %d, but there is none here", at(file, &file->gpus_said).text, file->gpus[i]);
            else
                TELL(f, "%s names GPU %d, but there are %d, numbered from 0", at(file, &file->gpus_said).text,
                     file->gpus[i], where->gpus);
            FIX(f, "name existing GPUs in %.90s:%d, or describe the target machine with --assume", file->path,
                file->gpus_said.line);
            break;
        }
    int machines = file->machines > 1 ? file->machines : 1;
    int each = (file->processes + machines - 1) / machines; // num_processes counts the processes of all machines
    if (each > where->gpus && (where->gpus > 0 || each > 1)) {
        mz_finding *f = find(out, MZ_FINDING_NO_SUCH_GPU);
        TELL(f, "%s wants %d GPUs%s, but there %s %d", at(file, &file->processes_said).text, each,
             machines > 1 ? " on each machine" : "", where->gpus == 1 ? "is" : "are", where->gpus);
        FIX(f, "lower the number in %.90s:%d, or describe the target machine with --assume", file->path,
            file->processes_said.line);
    }
}

// --- together ------------------------------------------------------------------------------------------------------
static void judge_disagreement(const mz_asked *files, int n, const mz_asked *leader, const mz_vote *v,
                               mz_agreement *out) {
    for (int i = 0; i < n; i++) {
        const mz_asked *file = &files[i];
        const mz_vote *w = word_of(file);
        if (file == leader || w == NULL || w->ask == v->ask || w->ask == MZ_ASK_AUTO)
            continue;
        // fp16: false does not conflict with bf16; fp16: false and bf16: false together do.
        bool fp16_off = false, bf16_off = false;
        for (int k = 0; k < file->n_votes; k++) {
            fp16_off = fp16_off || strncmp(file->votes[k].said.key, "fp16", 4) == 0;
            bf16_off = bf16_off || strncmp(file->votes[k].said.key, "bf16", 4) == 0;
        }
        if (w->weak && w->ask == MZ_ASK_FP32 && !(v->ask == MZ_ASK_FP16 ? fp16_off : v->ask == MZ_ASK_BF16 && bf16_off))
            continue;
        if (w->weak && w->ask == MZ_ASK_TF32)
            continue; // tf32 applies to what stays fp32
        mz_finding *f = find(out, MZ_FINDING_DISAGREE);
        const char *says = w->ask == MZ_ASK_FP32 && is_lower(v->ask) ? "turns mixed precision off" : NULL;
        if (says != NULL && file->asker == MZ_ASKER_TRAINER && leader->asker == MZ_ASKER_ACCELERATE)
            TELL(f, "%s %s, but its launcher overrides that: %s runs, as %s says", at(file, &w->said).text, says,
                 mz_ask_name(v->ask), at(leader, &v->said).text);
        else if (says != NULL)
            TELL(f, "%s %s, but %s runs, as %s says", at(file, &w->said).text, says, mz_ask_name(v->ask),
                 at(leader, &v->said).text);
        else
            TELL(f, "%s asks for %s, but %s runs, as %s says", at(file, &w->said).text, mz_ask_name(w->ask),
                 mz_ask_name(v->ask), at(leader, &v->said).text);
        FIX(f, "make %.90s:%d (%s) and %.90s:%d (%s) say the same", file->path, w->said.line, w->said.key, leader->path,
            v->said.line, v->said.key);
    }
}

// Decides where no file asks for a precision: by the default of a known framework, or not at all.
static void judge_silence(const mz_asked *files, int n, mz_agreement *out) {
    static const char *const defaults[] = {
        [MZ_ASKER_ACCELERATE] = "accelerate's mixed_precision is \"no\"",
        [MZ_ASKER_DEEPSPEED] = "DeepSpeed's fp16 and bf16 are off",
        [MZ_ASKER_LIGHTNING] = "Lightning's precision is 32-true",
        [MZ_ASKER_MMENGINE] = "MMEngine's optim_wrapper is OptimWrapper",
        [MZ_ASKER_DETECTRON2] = "Detectron2's SOLVER.AMP.ENABLED is false",
    };
    out->runs = MZ_ASK_NOTHING;
    snprintf(out->why, sizeof out->why, "no file has a key about precision that is known here");
    for (int i = 0; i < n; i++) {
        if (files[i].asker == MZ_ASKER_NANOGPT) {
            snprintf(out->why, sizeof out->why,
                     "%.90s: nanoGPT's dtype is bfloat16 where the GPU has it, else float16 with a scaler, by default",
                     files[i].path);
            out->runs = MZ_ASK_AUTO;
            return;
        }
        if ((size_t)files[i].asker < MZ_COUNT(defaults) && defaults[files[i].asker] != NULL &&
            files[i].unknown.line == 0) {
            snprintf(out->why, sizeof out->why, "%.90s: %s by default, and no file says otherwise", files[i].path,
                     defaults[files[i].asker]);
            out->runs = MZ_ASK_FP32;
            return;
        }
    }
}

// Judges a trainer whose AMP goes through an accelerator: if that was created with "no", autocast() does nothing and no
// gradient is scaled.
static bool judge_behind(const mz_asked *files, int n, const mz_asked *leader, mz_agreement *out) {
    const mz_vote *v = word_of(leader);
    const mz_asked *by = leader->accelerator_no.line != 0 ? leader : NULL;
    const mz_said *no = &leader->accelerator_no;
    for (int i = 0; i < n && by == NULL; i++) {
        const mz_vote *w = word_of(&files[i]);
        if (files[i].asker == MZ_ASKER_ACCELERATE && w != NULL && w->ask == MZ_ASK_FP32) {
            by = &files[i];
            no = &w->said;
        }
    }
    if (by == NULL || leader->asker != MZ_ASKER_TRAINER || !v->amp)
        return false;
    mz_finding *f = find(out, MZ_FINDING_BEHIND);
    TELL(f,
         "%s turns AMP on, but the accelerator is created with \"no\", as %s says: its autocast() does nothing and it "
         "scales no gradients",
         at(leader, &v->said).text, at(by, no).text);
    FIX(f, "set %.90s:%d (%s) to %s", by->path, no->line, no->key, mz_ask_name(v->ask));
    out->decides = (int)(by - files);
    out->runs = MZ_ASK_FP32;
    out->scaler = MZ_SCALER_OFF;
    snprintf(out->why, sizeof out->why, "%s: the accelerator that the trainer's AMP goes through is off",
             at(by, no).text);
    return true;
}

static void judge_missing(const mz_asked *files, int n, mz_agreement *out) {
    for (int i = 0; i < n; i++)
        if (files[i].follows.line != 0) {
            mz_finding *f = find(out, MZ_FINDING_NOTE);
            TELL(f, "%s: this file is not here, so what DeepSpeed's engine would follow is not known",
                 at(&files[i], &files[i].follows).text);
        }
}

static void judge_scaler(const mz_asked *leader, const mz_vote *v, mz_agreement *out) {
    if (v->ask == MZ_ASK_FP16 && out->scaler == MZ_SCALER_OFF) {
        mz_finding *f = find(out, MZ_FINDING_NO_SCALER);
        const mz_said *said = leader->scaler == MZ_SCALER_OFF ? &leader->scaler_said : &v->said;
        if (v->lone)
            TELL(f, "%s: fp16, and no file names a loss scaler: gradients below 6e-8 become zero",
                 at(leader, said).text);
        else if (v->pure)
            TELL(f, "%s keeps parameters in fp16 too: no loss scale, no fp32 master weights, small updates are lost",
                 at(leader, said).text);
        else
            TELL(f, "%s: fp16 without a loss scale, so gradients below 6e-8 become zero", at(leader, said).text);
        FIX(f,
            v->lone   ? "name the scaler next to %.90s:%d (grad_scaler: true), or use bf16"
            : v->pure ? "change %.90s:%d to mixed fp16 or to bf16"
                      : "turn the scaler on in %.90s:%d, or use bf16",
            leader->path, said->line);
    } else if (v->ask == MZ_ASK_FP16 && out->scaler == MZ_SCALER_UNSAID) {
        mz_finding *f = find(out, MZ_FINDING_NOTE);
        TELL(f, "%s: fp16 needs a loss scaler, and no file says whether the trainer has one: look for GradScaler in it",
             at(leader, &v->said).text);
    }
}

void mz_agreement_judge(const mz_asked *files, int n, const mz_where *where, mz_agreement *out) {
    *out = (mz_agreement){.decides = -1};
    mz_said_scaler anywhere = MZ_SCALER_UNSAID;
    int asking = 0;
    for (int i = 0; i < n; i++) {
        judge_file(&files[i], out);
        judge_gpus(&files[i], where, out);
        asking += word_of(&files[i]) != NULL;
        if (files[i].scaler != MZ_SCALER_UNSAID)
            anywhere = files[i].scaler;
        if (word_of(&files[i]) != NULL && (out->decides < 0 || rank(&files[i]) >= rank(&files[out->decides])))
            out->decides = i;
    }
    judge_missing(files, n, out);
    if (out->decides < 0) {
        judge_silence(files, n, out);
        return;
    }
    const mz_asked *leader = &files[out->decides];
    const mz_vote *v = word_of(leader);
    if (judge_behind(files, n, leader, out))
        return;
    out->runs = v->ask;
    out->pure = v->pure;
    out->scaler = scaler_of(leader, v, anywhere);
    snprintf(out->why, sizeof out->why, "%s: %s", at(leader, &v->said).text, reason_of(leader, asking));
    judge_disagreement(files, n, leader, v, out);
    judge_scaler(leader, v, out);
    judge_clipping(files, n, v, out->scaler, out);
    judge_nan(files, n, out->scaler, out);
    judge_device(files, n, where, v, leader, out);
}

void mz_agreement_text(const mz_asked *files, int n, const mz_agreement *a, mz_text *t) {
    for (int i = 0; i < n; i++) {
        const mz_asked *f = &files[i];
        mz_text_addf(t, "%s\n  read as    %s\n  asks for   %s", mz_show(f->path).text, mz_asker_name(f->asker),
                     mz_asked_text(f));
        if (f->decides >= 0) {
            const mz_vote *v = &f->votes[f->decides];
            mz_text_addf(t, "%s (line %d: %s: %s)",
                         v->lone   ? ", parameters perhaps too"
                         : v->pure ? ", parameters too"
                                   : "",
                         v->said.line, mz_show(v->said.key).text, mz_show(v->said.value).text);
        }
        mz_text_addf(t, "\n");
    }
    mz_text_addf(t, "\nwhat runs    %s%s\nwhy          %s\nloss scaler  %s\n", mz_agreement_runs(a),
                 a->pure ? ", parameters too" : "", mz_show(a->why).text, mz_agreement_scaler(a));
    for (int i = 0, k = 0; i < a->n_findings; i++) {
        const mz_finding *f = &a->findings[i];
        if (f->kind == MZ_FINDING_NOTE)
            mz_text_addf(t, "\nnote: %s\n", mz_show(f->text).text);
        else
            mz_text_addf(t, "\nconflict %d, %s: %s\n  change: %s\n", ++k, mz_finding_name(f->kind),
                         mz_show(f->text).text, mz_show(f->fix).text);
    }
    mz_text_addf(t, a->n_conflicts == 0 ? "\nno conflict\n" : "\n%d conflict%s\n", a->n_conflicts,
                 a->n_conflicts == 1 ? "" : "s");
}

json_t *mz_agreement_json(const mz_asked *files, int n, const mz_agreement *a) {
    json_t *list = json_array(), *findings = json_array();
    for (int i = 0; i < n; i++) {
        const mz_said *said = files[i].decides >= 0 ? &files[i].votes[files[i].decides].said : NULL;
        json_array_append_new(
            list, json_pack("{so ss ss so}", "file", mz_json_text(files[i].path), "read_as",
                            mz_asker_name(files[i].asker), "asks_for", mz_asked_text(&files[i]), "said",
                            said != NULL ? json_pack("{si so so}", "line", said->line, "key", mz_json_text(said->key),
                                                     "value", mz_json_text(said->value))
                                         : json_null()));
    }
    for (int i = 0; i < a->n_findings; i++) {
        const mz_finding *f = &a->findings[i];
        json_array_append_new(findings, json_pack("{ss sb so so}", "kind", mz_finding_name(f->kind), "conflict",
                                                  (int)(f->kind != MZ_FINDING_NOTE), "text", mz_json_text(f->text),
                                                  "change", mz_json_text(f->fix)));
    }
    return json_pack("{so ss? sb so ss so si}", "files", list, "runs",
                     a->runs != MZ_ASK_NOTHING ? mz_agreement_runs(a) : NULL, "parameters_too", (int)a->pure, "why",
                     mz_json_text(a->why), "loss_scaler", mz_agreement_scaler(a), "findings", findings, "conflicts",
                     a->n_conflicts);
}
