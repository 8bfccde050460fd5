// What sets of configuration files ask for, which one is followed, and every conflict between them: one row a set, with the reason
// for its verdict. The files are written as their frameworks write them.
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "study/agree/agreement.h"

#define CC(c, n)                                                                                                       \
    { .known = true, .name = "a GPU", .compute_capability = c, .gpus = n }
enum { CONFLICTS = 4, FILES = 3 };
#define NONE                                                                                                           \
    { MZ_FINDING_NOTE }

typedef struct set {
    const char *why;             // this verdict
    const char *files[FILES][2]; // name, content
    mz_where where;
    mz_ask runs;
    mz_said_scaler scaler;
    mz_finding_kind conflicts[CONFLICTS]; // in any order, the rest MZ_FINDING_NOTE
    const char *lines[2];                 // places that must be named: "a.yaml:3"
} set;

#define ACCELERATE(precision, more)                                                                                    \
    "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: " precision "\n" more

#define END MZ_FINDING_NOTE

static const set sets[] = {
    {"accelerate alone: it brings its GradScaler",
     {{"default_config.yaml", ACCELERATE("fp16", "num_processes: 1\n")}},
     CC(80, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {END, END, END, END},
     {NULL}},
    {"trainer and accelerate say the same",
     {{"train.yaml", "bf16: true\nfp16: false\nmax_grad_norm: 1.0\n"}, {"acc.yaml", ACCELERATE("bf16", "")}},
     CC(80, 1),
     MZ_ASK_BF16,
     MZ_SCALER_OFF,
     {END, END, END, END},
     {NULL}},
    {"amp is off while accelerate says bf16: bf16 runs, and nobody who reads the trainer's file knows",
     {{"train.yaml", "lr: 1e-3\namp: false\n"}, {"acc.yaml", ACCELERATE("bf16", "")}},
     CC(80, 1),
     MZ_ASK_BF16,
     MZ_SCALER_OFF,
     {MZ_FINDING_DISAGREE, END, END, END},
     {"train.yaml:2", "acc.yaml:3"}},
    {"both switches off is a no to bf16 too",
     {{"train.yaml", "fp16: false\nbf16: false\n"}, {"acc.yaml", ACCELERATE("'bf16'", "")}},
     CC(80, 1),
     MZ_ASK_BF16,
     MZ_SCALER_OFF,
     {MZ_FINDING_DISAGREE, END, END, END},
     {"acc.yaml:3"}},
    {"fp16: false alone says nothing against bf16",
     {{"train.yaml", "fp16: false\n"}, {"acc.yaml", ACCELERATE("bf16", "")}},
     CC(80, 1),
     MZ_ASK_BF16,
     MZ_SCALER_OFF,
     {END, END, END, END},
     {NULL}},
    {"a trainer's flag overwrites accelerate's word",
     {{"train.yaml", "fp16: true\n"}, {"acc.yaml", ACCELERATE("bf16", "")}},
     CC(80, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {MZ_FINDING_DISAGREE, END, END, END},
     {"acc.yaml:3", "train.yaml:1"}},
    {"a quoted 'no' is a no",
     {{"train.yaml", "amp: false\n"}, {"acc.yaml", ACCELERATE("'no'", "")}},
     CC(80, 1),
     MZ_ASK_FP32,
     MZ_SCALER_OFF,
     {END, END, END, END},
     {NULL}},
    {"an unquoted no is YAML's false, and a no all the same",
     {{"acc.yaml", ACCELERATE("no", "")}},
     CC(80, 1),
     MZ_ASK_FP32,
     MZ_SCALER_OFF,
     {END, END, END, END},
     {NULL}},
    {"accelerate's file may hold JSON",
     {{"default_config.yaml", "{\n  \"compute_environment\": \"LOCAL_MACHINE\",\n  \"mixed_precision\": \"fp16\",\n"
                              "  \"num_processes\": 1\n}\n"}},
     CC(75, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {END, END, END, END},
     {NULL}},
    {"accelerate's old fp16 key counts where mixed_precision is absent",
     {{"acc.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nfp16: true\nnum_processes: 2\n"}},
     CC(70, 2),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {END, END, END, END},
     {NULL}},
    {"and is dropped where it is there",
     {{"acc.yaml", ACCELERATE("bf16", "fp16: true\n")}},
     CC(90, 1),
     MZ_ASK_BF16,
     MZ_SCALER_OFF,
     {END, END, END, END},
     {NULL}},
    {"fp16 autocast, and the trainer says that it has no scaler",
     {{"train.yaml", "training:\n  amp: true\n  amp_dtype: float16\n  grad_scaler: false\n"}},
     CC(80, 1),
     MZ_ASK_FP16,
     MZ_SCALER_OFF,
     {MZ_FINDING_NO_SCALER, END, END, END},
     {"train.yaml:4"}},
    {"amp: true means float16 on a GPU; whether there is a scaler the file does not say, which is a note",
     {{"train.yaml", "use_amp: true\n"}},
     CC(80, 1),
     MZ_ASK_FP16,
     MZ_SCALER_UNSAID,
     {END, END, END, END},
     {NULL}},
    {"fp16 and bf16 both on",
     {{"train.yaml", "fp16: true\nbf16: true\n"}},
     CC(80, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {MZ_FINDING_BOTH, END, END, END},
     {"train.yaml:1", "train.yaml:2"}},
    {"DeepSpeed: both on, and a fixed scale of 1 is none",
     {{"ds.json", "{\n\t\"train_batch_size\": 8,\n\t\"fp16\": {\"enabled\": true, \"loss_scale\": 1},\n"
                  "\t\"bf16\": {\"enabled\": true}\n}\n"}},
     CC(80, 1),
     MZ_ASK_FP16,
     MZ_SCALER_OFF,
     {MZ_FINDING_BOTH, MZ_FINDING_NO_SCALER, END, END},
     {"ds.json:3", "ds.json:4"}},
    {"DeepSpeed's auto takes the trainer's word",
     {{"ds.json",
       "{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": \"auto\"}, \"fp16\": {\"enabled\": \"auto\"}}"},
      {"train.yaml", "bf16: true\n"}},
     CC(80, 1),
     MZ_ASK_BF16,
     MZ_SCALER_OFF,
     {END, END, END, END},
     {NULL}},
    {"DeepSpeed's engine follows its own file, against the trainer's",
     {{"ds.json", "{\"train_micro_batch_size_per_gpu\": 4, \"fp16\": {\"enabled\": true, \"loss_scale\": 0}}"},
      {"train.yaml", "bf16: true\n"}},
     CC(80, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {MZ_FINDING_DISAGREE, END, END, END},
     {"train.yaml:1", "ds.json:1"}},
    {"clipping before unscaling cuts gradients that carry the scale",
     {{"train.yaml", "amp: fp16\nscaler: dynamic\nmax_grad_norm: 1.0\nclip_before_unscale: true\n"}},
     CC(80, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {MZ_FINDING_CLIP_FIRST, END, END, END},
     {"train.yaml:4"}},
    {"the same as a list",
     {{"train.yaml", "fp16: true\nstep_order: [backward, clip_grad_norm, unscale, step]\n"}},
     CC(80, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {MZ_FINDING_CLIP_FIRST, END, END, END},
     {"train.yaml:2"}},
    {"in bf16 nothing is scaled, so the order does no harm",
     {{"train.yaml", "precision: bf16\nclip_before_unscale: true\n"}},
     CC(80, 1),
     MZ_ASK_BF16,
     MZ_SCALER_OFF,
     {END, END, END, END},
     {NULL}},
    {"Turing has no bf16 arithmetic",
     {{"train.yaml", "precision: bf16\n"}, {"acc.yaml", ACCELERATE("bf16", "")}},
     CC(75, 1),
     MZ_ASK_BF16,
     MZ_SCALER_OFF,
     {MZ_FINDING_LACKS, END, END, END},
     {"train.yaml:1"}},
    {"fp8 came with 8.9",
     {{"acc.yaml", ACCELERATE("fp8", "")}},
     CC(80, 1),
     MZ_ASK_FP8,
     MZ_SCALER_OFF,
     {MZ_FINDING_LACKS, END, END, END},
     {"acc.yaml:3"}},
    {"bf16 on a CPU that only stores it",
     {{"acc.yaml", ACCELERATE("bf16", "use_cpu: true\n")}},
     CC(90, 1),
     MZ_ASK_BF16,
     MZ_SCALER_OFF,
     {MZ_FINDING_LACKS, END, END, END},
     {"acc.yaml:3"}},
    {"GPU 5 of two",
     {{"acc.yaml", ACCELERATE("bf16", "gpu_ids: 0,5\nnum_processes: 2\n")}},
     CC(80, 2),
     MZ_ASK_BF16,
     MZ_SCALER_OFF,
     {MZ_FINDING_NO_SUCH_GPU, END, END, END},
     {"acc.yaml:4"}},
    {"four processes on one GPU",
     {{"acc.yaml", ACCELERATE("fp16", "num_processes: 4\n")}},
     CC(80, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {MZ_FINDING_NO_SUCH_GPU, END, END, END},
     {"acc.yaml:4"}},
    {"device cuda:3 of one",
     {{"train.yaml", "device: cuda:3\nprecision: fp32\n"}},
     CC(80, 1),
     MZ_ASK_FP32,
     MZ_SCALER_OFF,
     {MZ_FINDING_NO_SUCH_GPU, END, END, END},
     {"train.yaml:1"}},
    {"Lightning's 16-mixed brings a scaler",
     {{"l.yaml", "trainer:\n  accelerator: gpu\n  devices: 1\n  precision: 16-mixed\n  gradient_clip_val: 1.0\n"}},
     CC(75, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {END, END, END, END},
     {NULL}},
    {"Lightning's old 16 is 16-mixed",
     {{"l.yaml", "trainer:\n  precision: 16\n  devices: [0]\n"}},
     CC(75, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {END, END, END, END},
     {NULL}},
    {"Lightning's 16-true has no scaler and no fp32 masters",
     {{"l.yaml", "trainer:\n  precision: 16-true\n  devices: [0, 3]\n"}},
     CC(80, 2),
     MZ_ASK_FP16,
     MZ_SCALER_OFF,
     {MZ_FINDING_NO_SCALER, MZ_FINDING_NO_SUCH_GPU, END, END},
     {"l.yaml:2", "l.yaml:3"}},
    {"Lightning does not read accelerate's file",
     {{"l.yaml", "trainer:\n  precision: bf16-mixed\n"}, {"acc.yaml", ACCELERATE("fp16", "")}},
     CC(80, 1),
     MZ_ASK_BF16,
     MZ_SCALER_OFF,
     {MZ_FINDING_DISAGREE, END, END, END},
     {"acc.yaml:3"}},
    {"Mezzo's own file; fp16 has its scaler",
     {{"m.yaml", "amp:\n  precision: fp16\noptimizer:\n  clip: 1\n"}},
     CC(75, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {END, END, END, END},
     {NULL}},
    {"unless it is turned off",
     {{"m.yaml", "amp:\n  precision: fp16\n  scaler:\n    enabled: false\n"}},
     CC(75, 1),
     MZ_ASK_FP16,
     MZ_SCALER_OFF,
     {MZ_FINDING_NO_SCALER, END, END, END},
     {"m.yaml:4"}},
    {"a word that is no precision",
     {{"train.yaml", "mixed_precision: bp16\n"}},
     CC(80, 1),
     MZ_ASK_FP32,
     MZ_SCALER_UNSAID,
     {MZ_FINDING_UNKNOWN, END, END, END},
     {"train.yaml:1"}},
    {"files that say nothing run the default",
     {{"train.yaml", "lr: 3e-4\nepochs: 3\n"}},
     CC(80, 1),
     MZ_ASK_FP32,
     MZ_SCALER_UNSAID,
     {END, END, END, END},
     {NULL}},
    {"three files, two conflicts: fp16 runs, accelerate says bf16, Mezzo's says fp32",
     {{"train.yaml", "fp16: true\n"}, {"acc.yaml", ACCELERATE("bf16", "")}, {"m.yaml", "amp: {precision: fp32}\n"}},
     CC(80, 1),
     MZ_ASK_FP16,
     MZ_SCALER_ON,
     {MZ_FINDING_DISAGREE, MZ_FINDING_DISAGREE, END, END},
     {"acc.yaml:3", "m.yaml:1"}},
};

static int count(const mz_finding_kind *kinds, int n, mz_finding_kind kind) {
    int found = 0;
    for (int i = 0; i < n; i++)
        found += kinds[i] == kind;
    return found;
}

static void check_set(const set *s) {
    mz_asked asked[FILES];
    mz_agreement *a = calloc(1, sizeof *a);
    int n = 0;
    for (; n < FILES && s->files[n][0] != NULL; n++) {
        FILE *f = fopen(s->files[n][0], "w");
        assert_non_null(f);
        fputs(s->files[n][1], f);
        fclose(f);
        mezzo_status status = mz_asked_read(s->files[n][0], &asked[n]);
        if (status != MEZZO_OK)
            fail_msg("%s: %s", s->why, mezzo_error_message());
    }
    mz_agreement_judge(asked, n, &s->where, a);
    mz_finding_kind found[MZ_FINDINGS_MAX];
    for (int i = 0; i < a->n_findings; i++)
        found[i] = a->findings[i].kind;
    for (mz_finding_kind kind = 0; kind < MZ_FINDING_NOTE; kind++)
        if (count(found, a->n_findings, kind) != count(s->conflicts, CONFLICTS, kind))
            fail_msg("%s: %d times %s, should be %d", s->why, count(found, a->n_findings, kind), mz_finding_name(kind),
                     count(s->conflicts, CONFLICTS, kind));
    if (a->runs != s->runs || a->scaler != s->scaler)
        fail_msg("%s: %s runs with scaler %d, should be %s with %d", s->why, mz_ask_name(a->runs), (int)a->scaler,
                 mz_ask_name(s->runs), (int)s->scaler);
    for (size_t i = 0; i < MZ_COUNT(s->lines) && s->lines[i] != NULL; i++) {
        bool named = false;
        for (int k = 0; k < a->n_findings; k++)
            named = named || (strstr(a->findings[k].text, s->lines[i]) != NULL && a->findings[k].fix[0] != '\0');
        if (!named)
            fail_msg("%s: no conflict names %s", s->why, s->lines[i]);
    }
    for (int k = 0; k < n; k++)
        unlink(s->files[k][0]);
    free(a);
}

static void test_verdicts(void **state) {
    (void)state;
    for (size_t i = 0; i < MZ_COUNT(sets); i++)
        check_set(&sets[i]);
}

static void test_files_that_are_none(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
        mezzo_status status;
    } bad[] = {
        {"amp: [1, 2\n", "bad.yaml:", MEZZO_ERR_FORMAT},
        {"- a\n- b\n", "bad.yaml:1", MEZZO_ERR_FORMAT},
        {"amp:\n  precision: fp16\n  residuall: low\n", "residuall", MEZZO_ERR_INVALID},
        {"fp16: true\nfp16: false\n", "bad.yaml:2", MEZZO_ERR_FORMAT},
    };
    mz_asked asked;
    for (size_t i = 0; i < MZ_COUNT(bad); i++) {
        FILE *f = fopen("bad.yaml", "w");
        assert_non_null(f);
        fputs(bad[i].text, f);
        fclose(f);
        assert_int_equal(mz_asked_read("bad.yaml", &asked), bad[i].status);
        assert_non_null(strstr(mezzo_error_message(), bad[i].message));
    }
    unlink("bad.yaml");
    assert_int_equal(mz_asked_read("absent.yaml", &asked), MEZZO_ERR_IO);
}

int main(void) {
    char folder[] = "/tmp/mezzo-agreement-XXXXXX";
    if (mkdtemp(folder) == NULL || chdir(folder) != 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_files_that_are_none),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (chdir("/") == 0)
        rmdir(folder);
    return failed;
}
