// What sets of configuration files ask for, which one is followed, and every conflict between them: one row a set, with
// the reason for its verdict. The files are written as their frameworks write them.
#include <stdlib.h>
#include <unistd.h>

#include "study/agree/agreement.h"
#include "test.h"

// On so many GPUs of that capability, such a format runs with a scaler or without.
#define ON(capability, n, format, scales)                                                                              \
    .where = {.known = true, .name = "a GPU", .compute_capability = (capability), .gpus = (n)},                        \
    .runs = MZ_ASK_##format, .scaler = MZ_SCALER_##scales
#define FOUND(kind) (1 + MZ_FINDING_##kind)
enum { CONFLICTS = 4, FILES = 3 };

typedef struct set {
    const char *why;             // this verdict
    const char *files[FILES][2]; // name, content
    mz_where where;
    mz_ask runs;
    mz_said_scaler scaler;
    int conflicts[CONFLICTS]; // FOUND(…) in any order; the rest are 0
    const char *lines[2];     // places that must be named: "a.yaml:3"
} set;

#define ACCELERATE(precision, more)                                                                                    \
    "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: " precision "\n" more

static const set sets[] = {
    {"accelerate alone: it brings its GradScaler",
     {{"default_config.yaml", ACCELERATE("fp16", "num_processes: 1\n")}},
     ON(80, 1, FP16, ON)},
    {"trainer and accelerate say the same",
     {{"train.yaml", "bf16: true\nfp16: false\nmax_grad_norm: 1.0\n"}, {"acc.yaml", ACCELERATE("bf16", "")}},
     ON(80, 1, BF16, OFF)},
    {"amp is off while accelerate says bf16: bf16 runs, and nobody who reads the trainer's file knows",
     {{"train.yaml", "lr: 1e-3\namp: false\n"}, {"acc.yaml", ACCELERATE("bf16", "")}},
     ON(80, 1, BF16, OFF),
     .conflicts = {FOUND(DISAGREE)},
     .lines = {"train.yaml:2", "acc.yaml:3"}},
    {"both switches off is a no to bf16 too",
     {{"train.yaml", "fp16: false\nbf16: false\n"}, {"acc.yaml", ACCELERATE("'bf16'", "")}},
     ON(80, 1, BF16, OFF),
     .conflicts = {FOUND(DISAGREE)},
     .lines = {"acc.yaml:3"}},
    {"fp16: false alone says nothing against bf16",
     {{"train.yaml", "fp16: false\n"}, {"acc.yaml", ACCELERATE("bf16", "")}},
     ON(80, 1, BF16, OFF)},
    {"a trainer's flag overwrites accelerate's word",
     {{"train.yaml", "fp16: true\n"}, {"acc.yaml", ACCELERATE("bf16", "")}},
     ON(80, 1, FP16, ON),
     .conflicts = {FOUND(DISAGREE)},
     .lines = {"acc.yaml:3", "train.yaml:1"}},
    {"a quoted 'no' is a no",
     {{"train.yaml", "amp: false\n"}, {"acc.yaml", ACCELERATE("'no'", "")}},
     ON(80, 1, FP32, OFF)},
    {"an unquoted no is YAML's false, and a no all the same",
     {{"acc.yaml", ACCELERATE("no", "")}},
     ON(80, 1, FP32, OFF)},
    {"accelerate's file may hold JSON",
     {{"default_config.yaml", "{\n  \"compute_environment\": \"LOCAL_MACHINE\",\n  \"mixed_precision\": \"fp16\",\n"
                              "  \"num_processes\": 1\n}\n"}},
     ON(75, 1, FP16, ON)},
    {"accelerate's old fp16 key counts where mixed_precision is absent",
     {{"acc.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nfp16: true\nnum_processes: 2\n"}},
     ON(70, 2, FP16, ON)},
    {"and is dropped where it is there", {{"acc.yaml", ACCELERATE("bf16", "fp16: true\n")}}, ON(90, 1, BF16, OFF)},
    {"fp16 autocast, and the trainer says that it has no scaler",
     {{"train.yaml", "training:\n  amp: true\n  amp_dtype: float16\n  grad_scaler: false\n"}},
     ON(80, 1, FP16, OFF),
     .conflicts = {FOUND(NO_SCALER)},
     .lines = {"train.yaml:4"}},
    {"amp: true means float16 on a GPU; whether there is a scaler the file does not say, which is a note",
     {{"train.yaml", "use_amp: true\n"}},
     ON(80, 1, FP16, UNSAID)},
    {"fp16 and bf16 both on",
     {{"train.yaml", "fp16: true\nbf16: true\n"}},
     ON(80, 1, FP16, ON),
     .conflicts = {FOUND(BOTH)},
     .lines = {"train.yaml:1", "train.yaml:2"}},
    {"DeepSpeed: both on, and a fixed scale of 1 is none",
     {{"ds.json", "{\n\t\"train_batch_size\": 8,\n\t\"fp16\": {\"enabled\": true, \"loss_scale\": 1},\n"
                  "\t\"bf16\": {\"enabled\": true}\n}\n"}},
     ON(80, 1, FP16, OFF),
     .conflicts = {FOUND(BOTH), FOUND(NO_SCALER)},
     .lines = {"ds.json:3", "ds.json:4"}},
    {"DeepSpeed's auto takes the trainer's word",
     {{"ds.json",
       "{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": \"auto\"}, \"fp16\": {\"enabled\": \"auto\"}}"},
      {"train.yaml", "bf16: true\n"}},
     ON(80, 1, BF16, OFF)},
    {"DeepSpeed's engine follows its own file, against the trainer's",
     {{"ds.json", "{\"train_micro_batch_size_per_gpu\": 4, \"fp16\": {\"enabled\": true, \"loss_scale\": 0}}"},
      {"train.yaml", "bf16: true\n"}},
     ON(80, 1, FP16, ON),
     .conflicts = {FOUND(DISAGREE)},
     .lines = {"train.yaml:1", "ds.json:1"}},
    {"clipping before unscaling cuts gradients that carry the scale",
     {{"train.yaml", "amp: fp16\nscaler: dynamic\nmax_grad_norm: 1.0\nclip_before_unscale: true\n"}},
     ON(80, 1, FP16, ON),
     .conflicts = {FOUND(CLIP_FIRST)},
     .lines = {"train.yaml:4"}},
    {"the same as a list",
     {{"train.yaml", "fp16: true\nstep_order: [backward, clip_grad_norm, unscale, step]\n"}},
     ON(80, 1, FP16, ON),
     .conflicts = {FOUND(CLIP_FIRST)},
     .lines = {"train.yaml:2"}},
    {"NaN gradients that become 0 hide an overflow from the scaler",
     {{"train.yaml", "amp: fp16\nscaler: dynamic\nzero_nan_grads: true\n"}},
     ON(80, 1, FP16, ON),
     .conflicts = {FOUND(NAN_ZEROED)},
     .lines = {"train.yaml:3"}},
    {"and in bf16 they are as wrong",
     {{"train.yaml", "precision: bf16\ntrainer:\n  grad_nan_to_num: yes\nother:\n  nan_to_num: false\n"}},
     ON(80, 1, BF16, OFF),
     .conflicts = {FOUND(NAN_ZEROED)},
     .lines = {"train.yaml:3"}},
    {"in bf16 nothing is scaled, so the order does no harm",
     {{"train.yaml", "precision: bf16\nclip_before_unscale: true\n"}},
     ON(80, 1, BF16, OFF)},
    {"Turing has no bf16 arithmetic",
     {{"train.yaml", "precision: bf16\n"}, {"acc.yaml", ACCELERATE("bf16", "")}},
     ON(75, 1, BF16, OFF),
     .conflicts = {FOUND(LACKS)},
     .lines = {"train.yaml:1"}},
    {"fp8 came with 8.9",
     {{"acc.yaml", ACCELERATE("fp8", "")}},
     ON(80, 1, FP8, OFF),
     .conflicts = {FOUND(LACKS)},
     .lines = {"acc.yaml:3"}},
    {"bf16 on a CPU that only stores it",
     {{"acc.yaml", ACCELERATE("bf16", "use_cpu: true\n")}},
     ON(90, 1, BF16, OFF),
     .conflicts = {FOUND(LACKS)},
     .lines = {"acc.yaml:3"}},
    {"tf32 on a CPU without its arithmetic",
     {{"m.yaml", "amp:\n  precision: tf32\ndevice:\n  name: cpu\n"}},
     ON(90, 1, TF32, OFF),
     .conflicts = {FOUND(LACKS)},
     .lines = {"m.yaml:2"}},
    {"tf32 on a CPU that has it, by tiles, where train's auto may choose it",
     {{"m.yaml", "amp:\n  precision: tf32\ndevice:\n  name: cpu\n"}},
     .where = {.cpu_tf32 = true},
     .runs = MZ_ASK_TF32,
     .scaler = MZ_SCALER_OFF},
    {"GPU 5 of two",
     {{"acc.yaml", ACCELERATE("bf16", "gpu_ids: 0,5\nnum_processes: 2\n")}},
     ON(80, 2, BF16, OFF),
     .conflicts = {FOUND(NO_SUCH_GPU)},
     .lines = {"acc.yaml:4"}},
    {"four processes on one GPU",
     {{"acc.yaml", ACCELERATE("fp16", "num_processes: 4\n")}},
     ON(80, 1, FP16, ON),
     .conflicts = {FOUND(NO_SUCH_GPU)},
     .lines = {"acc.yaml:4"}},
    {"device cuda:3 of one",
     {{"train.yaml", "device: cuda:3\nprecision: fp32\n"}},
     ON(80, 1, FP32, OFF),
     .conflicts = {FOUND(NO_SUCH_GPU)},
     .lines = {"train.yaml:1"}},
    {"Lightning's 16-mixed brings a scaler",
     {{"l.yaml", "trainer:\n  accelerator: gpu\n  devices: 1\n  precision: 16-mixed\n  gradient_clip_val: 1.0\n"}},
     ON(75, 1, FP16, ON)},
    {"Lightning's old 16 is 16-mixed",
     {{"l.yaml", "trainer:\n  precision: 16\n  devices: [0]\n"}},
     ON(75, 1, FP16, ON)},
    {"Lightning's 16-true has no scaler and no fp32 masters",
     {{"l.yaml", "trainer:\n  precision: 16-true\n  devices: [0, 3]\n"}},
     ON(80, 2, FP16, OFF),
     .conflicts = {FOUND(NO_SCALER), FOUND(NO_SUCH_GPU)},
     .lines = {"l.yaml:2", "l.yaml:3"}},
    {"Lightning does not read accelerate's file",
     {{"l.yaml", "trainer:\n  precision: bf16-mixed\n"}, {"acc.yaml", ACCELERATE("fp16", "")}},
     ON(80, 1, BF16, OFF),
     .conflicts = {FOUND(DISAGREE)},
     .lines = {"acc.yaml:3"}},
    {"Mezzo's own file; fp16 has its scaler",
     {{"m.yaml", "amp:\n  precision: fp16\noptimizer:\n  clip: 1\n"}},
     ON(75, 1, FP16, ON)},
    {"unless it is turned off",
     {{"m.yaml", "amp:\n  precision: fp16\n  scaler:\n    enabled: false\n"}},
     ON(75, 1, FP16, OFF),
     .conflicts = {FOUND(NO_SCALER)},
     .lines = {"m.yaml:4"}},
    {"a word that is no precision",
     {{"train.yaml", "mixed_precision: bp16\n"}},
     ON(80, 1, NOTHING, UNSAID),
     .conflicts = {FOUND(UNKNOWN)},
     .lines = {"train.yaml:1"}},
    {"files that say nothing known are not called fp32",
     {{"train.yaml", "lr: 3e-4\nepochs: 3\n"}},
     ON(80, 1, NOTHING, UNSAID)},
    {"three files, two conflicts: fp16 runs, accelerate says bf16, Mezzo's says fp32",
     {{"train.yaml", "fp16: true\n"}, {"acc.yaml", ACCELERATE("bf16", "")}, {"m.yaml", "amp: {precision: fp32}\n"}},
     ON(80, 1, FP16, ON),
     .conflicts = {FOUND(DISAGREE), FOUND(DISAGREE)},
     .lines = {"acc.yaml:3", "m.yaml:1"}},
    {"nanoGPT's GPT-2 configuration names no dtype: its train.py takes bf16 where the GPU has it",
     {{"train_gpt2.py", "# python\nwandb_log = True\nbatch_size = 12\nblock_size = 1024\ngradient_accumulation_steps = "
                        "5 * 8\nmax_iters = 600000\neval_iters = 200\n"}},
     ON(80, 8, AUTO, UNSAID)},
    {"nanoGPT's dtype is autocast's, and float16 turns its scaler on",
     {{"char.py",
       "out_dir = 'out-char'\nblock_size = 256\nn_layer = 6\nn_embd = 384\ndtype = 'float16'\ncompile = False\n"}},
     ON(75, 1, FP16, ON)},
    {"nanoGPT's bfloat16 on Turing",
     {{"char.py", "block_size = 256\nn_embd = 384 # width\ndtype = 'bfloat16' # or 'float16'\n"}},
     ON(75, 1, BF16, OFF),
     .conflicts = {FOUND(LACKS)},
     .lines = {"char.py:3"}},
    {"MMEngine's AmpOptimWrapper is fp16 with a GradScaler",
     {{"mm.py", "_base_ = ['../_base_/models/x.py', 'default_runtime.py']\noptim_wrapper = dict(\n    "
                "type='AmpOptimWrapper',\n    loss_scale='dynamic',\n    optimizer=dict(type='SGD', lr=0.02, "
                "betas=(0.9, 0.999)))\ntrain_cfg = dict(max_epochs=12)\n"}},
     ON(75, 1, FP16, ON)},
    {"with a dtype and a scale, as YAML",
     {{"mm.yaml", "optim_wrapper: {type: AmpOptimWrapper, dtype: float16, loss_scale: dynamic}\n"}},
     ON(75, 1, FP16, ON)},
    {"AmpOptimWrapper in bf16",
     {{"mm.py",
       "optim_wrapper = dict(type='AmpOptimWrapper', dtype='bfloat16', optimizer=dict(type='AdamW', lr=1e-4))\n"}},
     ON(80, 1, BF16, OFF)},
    {"OptimWrapper is fp32",
     {{"mm.py", "default_hooks = dict(timer=dict(type='IterTimerHook'))\noptim_wrapper = dict(type='OptimWrapper', "
                "optimizer=dict(type='SGD', lr=0.01))\n"}},
     ON(80, 1, FP32, OFF)},
    {"MMCV's older fp16 = dict(loss_scale=512.) is on without `enabled`",
     {{"old.py", "optimizer = dict(type='SGD', lr=0.02)\nfp16 = dict(loss_scale=512.)\n"}},
     ON(70, 1, FP16, ON)},
    {"Detectron2's SOLVER.AMP brings a scaler",
     {{"d2.yaml",
       "_BASE_: Base-RCNN.yaml\nMODEL:\n  MASK_ON: true\nSOLVER:\n  IMS_PER_BATCH: 16\n  AMP:\n    ENABLED: true\n"}},
     ON(75, 1, FP16, ON)},
    {"Detectron2 without it is fp32 by its default",
     {{"d2.yaml", "MODEL:\n  MASK_ON: true\nSOLVER:\n  BASE_LR: 0.02\n"}},
     ON(75, 1, FP32, UNSAID)},
    {"DeepSpeed's torch_autocast in bf16",
     {{"ds.json", "{\"train_batch_size\": 8, \"torch_autocast\": {\"enabled\": true, \"dtype\": \"bfloat16\"}}"}},
     ON(80, 1, BF16, OFF)},
    {"and in float16, for which DeepSpeed brings a scaler",
     {{"ds.json", "{\"train_batch_size\": 8, \"torch_autocast\": {\"enabled\": true, \"dtype\": \"float16\"}}"}},
     ON(80, 1, FP16, ON)},
    {"num_processes counts all machines: two on each of two",
     {{"acc.yaml", "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: MULTI_GPU\ndowncast_bf16: "
                   "'no'\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 4\n"}},
     ON(80, 2, BF16, OFF)},
    {"four on each of two machines with two GPUs",
     {{"acc.yaml", "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: MULTI_GPU\ndowncast_bf16: "
                   "'no'\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 8\n"}},
     ON(80, 2, BF16, OFF),
     .conflicts = {FOUND(NO_SUCH_GPU)},
     .lines = {"acc.yaml:7"}},
    {"processes on TPUs are no GPUs, and their formats are not a GPU's",
     {{"acc.yaml", "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: XLA\ndowncast_bf16: "
                   "'no'\nmixed_precision: bf16\nnum_processes: 8\n"}},
     ON(75, 1, BF16, OFF)},
    {"processes on CPUs are judged as the CPU's",
     {{"acc.yaml", "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: MULTI_CPU\ndowncast_bf16: "
                   "'no'\nmixed_precision: bf16\nnum_processes: 4\n"}},
     ON(90, 1, BF16, OFF),
     .conflicts = {FOUND(LACKS)},
     .lines = {"acc.yaml:5"}},
    {"accelerate names a file of DeepSpeed's, which is followed",
     {{"acc.yaml",
       "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: DEEPSPEED\ndowncast_bf16: "
       "'no'\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n  zero3_init_flag: true\nnum_processes: 1\n"},
      {"+ds.json", "{\"zero_optimization\": {\"stage\": 3}, \"bf16\": {\"enabled\": true}}"}},
     ON(80, 1, BF16, OFF)},
    {"the trainer names it too, and asks for another format",
     {{"args.yaml", "output_dir: out\nbf16: true\ndeepspeed: ds.json\n"},
      {"+ds.json", "{\"train_batch_size\": 8,\n \"fp16\": {\"enabled\": true}}"}},
     ON(80, 1, FP16, ON),
     .conflicts = {FOUND(DISAGREE)},
     .lines = {"args.yaml:2", "ds.json:2"}},
    {"a file that is named and not here is a note",
     {{"args.yaml", "bf16: true\ndeepspeed: elsewhere/ds.json\n"}},
     ON(80, 1, BF16, OFF)},
    {"Axolotl's bf16: auto beside an empty fp16",
     {{"axolotl.yml", "base_model: x\nbf16: auto\nfp16:\ntf32: false\ngradient_checkpointing: true\n"}},
     ON(80, 1, AUTO, OFF)},
    {"Composer's amp_bf16",
     {{"mpt.yaml", "max_duration: 10ba\nprecision: amp_bf16\nglobal_train_batch_size: 256\n"}},
     ON(80, 8, BF16, OFF)},
    {"torchtune's dtype is the parameters'",
     {{"recipe.yaml", "device: cuda\ndtype: bf16\nenable_activation_checkpointing: true\n"}},
     ON(80, 1, BF16, OFF)},
    {"NeMo's devices are of one node",
     {{"nemo.yaml", "trainer:\n  devices: 8\n  num_nodes: 4\n  accelerator: gpu\n  precision: bf16\n"}},
     ON(80, 8, BF16, OFF)},
    {"LLaMA-Factory's arguments",
     {{"sft.yaml", "stage: sft\nbf16: true\npure_bf16: false\nddp_timeout: 180000000\n"}},
     ON(80, 1, BF16, OFF)},
    {"timm's saved arguments",
     {{"args.yaml", "amp: true\namp_dtype: bfloat16\namp_impl: native\nclip_grad: null\n"}},
     ON(80, 1, BF16, OFF)},
    {"Ultralytics' amp: whether it scales is the trainer's affair",
     {{"yolo.yaml", "task: detect\namp: true\nhalf: false\ndevice: 0\n"}},
     ON(75, 1, FP16, UNSAID)},
    {"PaddlePaddle's level with dynamic scaling",
     {{"paddle.yml", "Global:\n  use_amp: true\n  amp_level: O2\n  use_dynamic_loss_scaling: true\n"}},
     ON(75, 1, FP16, ON)},
    {"fairseq's common.fp16 has its own dynamic scale",
     {{"fairseq.yaml", "common:\n  fp16: true\n  fp16_init_scale: 128\n  seed: 1\n"}},
     ON(70, 1, FP16, ON)},
    {"ESPnet's use_amp", {{"espnet.yaml", "use_amp: true\naccum_grad: 4\ngrad_clip: 5\n"}}, ON(75, 1, FP16, UNSAID)},
    {"SpeechBrain's auto_mix_prec off", {{"sb.yaml", "auto_mix_prec: false\nlr: 0.001\n"}}, ON(75, 1, FP32, OFF)},
    {"LitGPT's bf16-true",
     {{"litgpt.yaml", "checkpoint_dir: x\nprecision: bf16-true\ndevices: 1\n"}},
     ON(80, 1, BF16, OFF)},
    {"Lightning on a TPU",
     {{"tpu.yaml", "trainer:\n  accelerator: tpu\n  devices: 8\n  precision: bf16-true\n"}},
     ON(75, 1, BF16, OFF)},
    {"OpenCLIP's amp", {{"clip.yaml", "precision: amp\nbatch_size: 256\n"}}, ON(75, 1, FP16, UNSAID)},
    {"accelerate with FSDP on eight GPUs",
     {{"acc.yaml", "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: FSDP\ndowncast_bf16: "
                   "'no'\nmixed_precision: bf16\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\nnum_machines: "
                   "1\nnum_processes: 8\n"}},
     ON(90, 8, BF16, OFF)},
    {"AMP behind an accelerator that the same file creates with \"no\"",
     {{"train.yaml", "accelerator:\n  mixed_precision: 'no'\ntraining:\n  amp: true\n"}},
     ON(80, 1, FP32, OFF),
     .conflicts = {FOUND(BEHIND)},
     .lines = {"train.yaml:4"}},
    {"or that accelerate's file creates so",
     {{"train.yaml", "use_amp: true\n"},
      {"acc.yaml", "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: 'NO'\ndowncast_bf16: "
                   "'no'\nmixed_precision: 'no'\nnum_processes: 1\n"}},
     ON(80, 1, FP32, OFF),
     .conflicts = {FOUND(BEHIND)},
     .lines = {"acc.yaml:5"}},
    {"Hugging Face's fp16 overwrites that \"no\"",
     {{"args.yaml", "fp16: true\n"},
      {"acc.yaml", "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: 'NO'\ndowncast_bf16: "
                   "'no'\nmixed_precision: 'no'\nnum_processes: 1\n"}},
     ON(80, 1, FP16, ON),
     .conflicts = {FOUND(DISAGREE)},
     .lines = {"acc.yaml:5"}},
    {"a dtype of half precision and no scaler anywhere",
     {{"train.yaml", "lr: 1e-3\ndtype: float16\n"}},
     ON(80, 1, FP16, OFF),
     .conflicts = {FOUND(NO_SCALER)},
     .lines = {"train.yaml:2"}},
    {"with a scaler beside it, it is autocast's",
     {{"train.yaml", "dtype: torch.float16\ngrad_scaler: true\n"}},
     ON(80, 1, FP16, ON)},
    {"a Python file that says nothing here is not fp32",
     {{"train.py", "import torch\nmodel = build(dtype='float16')\nlr = 3e-4\n"}},
     ON(80, 1, NOTHING, UNSAID)},
    {"two keys on one line are told apart by name",
     {{"ds.json", "{\"train_batch_size\": 8, \"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}"}},
     ON(80, 1, FP16, ON),
     .conflicts = {FOUND(BOTH)},
     .lines = {"ds.json:1"}},
};

static int count(const int *found, int n, mz_finding_kind kind) {
    int times = 0;
    for (int i = 0; i < n; i++)
        times += found[i] == 1 + (int)kind;
    return times;
}

static int failures; // every set is judged before the test fails
#define wrong(...) (failures++, print_error(__VA_ARGS__), print_error("\n"))

static void check_set(const set *s) {
    mz_agreement *a = calloc(1, sizeof *a);
    mz_asked_set asked;
    const char *paths[FILES];
    int n = 0;
    for (int i = 0; i < FILES && s->files[i][0] != NULL; i++) {
        const char *name = s->files[i][0];
        FILE *f = fopen(name + (name[0] == '+'), "w");
        assert_non_null(f);
        fputs(s->files[i][1], f);
        fclose(f);
        if (name[0] != '+') // named by another file only
            paths[n++] = name;
    }
    if (mz_asked_read_all(paths, n, &asked) != MEZZO_OK)
        wrong("%s: %s", s->why, mezzo_error_message());
    mz_agreement_judge(asked.files, (int)asked.n, &s->where, a);
    int found[MZ_FINDINGS_MAX];
    for (int i = 0; i < a->n_findings; i++)
        found[i] = 1 + (int)a->findings[i].kind;
    for (mz_finding_kind kind = 0; kind < MZ_FINDING_NOTE; kind++)
        if (count(found, a->n_findings, kind) != count(s->conflicts, CONFLICTS, kind))
            wrong("%s: %d times %s, should be %d", s->why, count(found, a->n_findings, kind), mz_finding_name(kind),
                  count(s->conflicts, CONFLICTS, kind));
    if (a->runs != s->runs || a->scaler != s->scaler)
        wrong("%s: %s runs with scaler %d, should be %s with %d", s->why, mz_ask_name(a->runs), (int)a->scaler,
              mz_ask_name(s->runs), (int)s->scaler);
    for (size_t i = 0; i < MZ_COUNT(s->lines) && s->lines[i] != NULL; i++) {
        bool named = false;
        for (int k = 0; k < a->n_findings; k++)
            named = named || (strstr(a->findings[k].text, s->lines[i]) != NULL && a->findings[k].fix[0] != '\0');
        if (!named)
            wrong("%s: no conflict names %s", s->why, s->lines[i]);
    }
    for (int i = 0; i < FILES && s->files[i][0] != NULL; i++)
        unlink(s->files[i][0] + (s->files[i][0][0] == '+'));
    mz_asked_set_free(&asked);
    free(a);
}

TEST(test_verdicts) {
    assert_true(MZ_COUNT(sets) >= 60);
    for (size_t i = 0; i < MZ_COUNT(sets); i++)
        check_set(&sets[i]);
    assert_int_equal(failures, 0);
}

TEST(test_files_that_are_none) {
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
        must_fail(mz_asked_read("bad.yaml", &asked), bad[i].status, bad[i].message);
    }
    unlink("bad.yaml");
    assert_int_equal(mz_asked_read("absent.yaml", &asked), MEZZO_ERR_INVALID);
}

static char folder[] = "/tmp/mezzo-agreement-XXXXXX";

static int enter_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL || chdir(folder) != 0;
}

static int leave_folder(void **state) {
    (void)state;
    return chdir("/") != 0 || rmdir(folder) != 0;
}

TEST_GROUP(enter_folder, leave_folder)
