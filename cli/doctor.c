// mezzo doctor describes this machine, tests every precision on it, and compares configuration files.
#include <math.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "base/precision.h"
#include "backend/cpu/isa.h"
#include "cli.h"
#include "study/agree/agreement.h"
#include "study/measure/choose.h"
#include "study/measure/device_report.h"
#include "io/json.h"

enum { MAX_FILES = 64 };

// --- the device ----------------------------------------------------------------------------------------------------
static const char *fp8_of(const mezzo_device_info *info) {
    return info->compute_capability >= 89      ? "tensor cores"
           : info->native[MEZZO_PRECISION_FP8] ? "emulated: 8-bit storage, bf16 arithmetic"
                                               : "not supported";
}

// Returns whether the CPU lists a feature. That does not mean that this process may use it: tiles need the kernel's
// permission.
static bool cpu_lists(const char *flag) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (f == NULL)
        return false;
    char line[8192], word[40];
    bool found = false;
    snprintf(word, sizeof word, " %s ", flag);
    while (!found && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "flags", 5) == 0) {
            char *end = strchr(line, '\n');
            if (end != NULL)
                *end = ' ';
            found = strstr(line, word) != NULL;
            break;
        }
    fclose(f);
    return found;
}

static const char *usable(bool listed, bool works) {
    return works ? "yes" : listed ? "listed by the CPU, but this process may not use it" : "no";
}

static void print_cpu(void) {
    mz_isa isa;
    if (mz_isa_probe(NULL, &isa) != MEZZO_OK)
        return;
    printf("amx         %s\navx-512     %s%s\navx2        %s\n",
           usable(cpu_lists("amx_bf16"), isa.found >= MZ_LEVEL_AMX),
           usable(cpu_lists("avx512f"), isa.found >= MZ_LEVEL_AVX512), isa.bf16_dot ? ", with bf16 dot products" : "",
           usable(cpu_lists("avx2"), isa.found >= MZ_LEVEL_AVX2));
    double bf16 = fmax(isa.amx_rate, isa.bf16_dot_rate);
    printf("one core    fp32 %.0f GFLOP/s%s", 2e-9 * isa.fma_rate, bf16 > 0 ? ", " : "\n");
    if (bf16 > 0)
        printf("bf16 %.0f GFLOP/s: %.2f x, measured at start\n", 2e-9 * bf16, bf16 / isa.fma_rate);
}

static void print_device(const mezzo_device_info *info) {
    printf("device      %s: %s\n", info->backend, info->description);
    if (info->compute_capability > 0)
        printf("capability  %d.%d\n", info->compute_capability / 10, info->compute_capability % 10);
    if (info->versions[0] != '\0')
        printf("versions    %s\n", info->versions);
    if (info->memory_total > 0)
        printf("memory      %s%s%s%s\n", mz_bytes_text((double)info->memory_total).text,
               info->memory_free > 0 ? ", " : "",
               info->memory_free > 0 ? mz_bytes_text((double)info->memory_free).text : "",
               info->memory_free > 0 ? " free" : "");
    if (strcmp(info->backend, "cpu") == 0)
        print_cpu();
    printf("\n%-10s %-42s %s\n", "format", "arithmetic", "faster than fp32");
    mezzo_precision precisions[MEZZO_PRECISION_COUNT];
    int n = mz_precision_common(precisions);
    for (int i = 0; i < n; i++) {
        mezzo_precision p = precisions[i];
        bool storage = mz_precision_is_low(p);
        printf("%-10s %-42s %s\n", mezzo_precision_name(p),
               info->native[p] ? "yes"
               : storage       ? "emulated: 16-bit storage, fp32 arithmetic"
                               : "no: runs as fp32",
               p == MEZZO_PRECISION_FP32 ? "-"
               : info->faster[p]         ? "yes, measured"
                                         : "no");
    }
    printf("%-10s %-42s -\n", "fp8", fp8_of(info));
}

static void print_choice(const mz_choice *choice, bool gpu) {
    char line[1200];
    snprintf(line, sizeof line, "%s (GPT-2 of 2 layers, %s; for another model: mezzo advise --measure --model NAME)",
             choice->reason, gpu ? "width 768, 8 x 512 tokens" : "width 256, 4 x 128 tokens");
    printf("\nprecision   ");
    cli_wrap(line, 12, 12, MZ_TEXT_COLUMNS);
}

static json_t *device_json(const mezzo_device_info *info, const mz_choice *choice) {
    json_t *formats = json_object();
    mezzo_precision precisions[MEZZO_PRECISION_COUNT];
    const int n = mz_precision_common(precisions), capability = info->compute_capability;
    for (int i = 0; i < n; i++)
        json_object_set_new(formats, mezzo_precision_name(precisions[i]),
                            json_pack("{sb sb}", "arithmetic", (int)info->native[precisions[i]], "faster",
                                      (int)info->faster[precisions[i]]));
    json_t *o =
        json_pack("{ss so so so sI so so sb}", "backend", info->backend, "description", mz_json_text(info->description),
                  "compute_capability", capability > 0 ? mz_json_number(capability / 10.0) : json_null(), "versions",
                  mz_json_text(info->versions), "memory_total", (json_int_t)info->memory_total, "memory_free",
                  info->memory_free > 0 ? json_integer((json_int_t)info->memory_free) : json_null(), "formats", formats,
                  "fp8", (int)(capability >= 89));
    mz_isa isa;
    if (strcmp(info->backend, "cpu") == 0 && mz_isa_probe(NULL, &isa) == MEZZO_OK)
        json_object_update_new(o, json_pack("{ss sb so so}", "isa", mz_level_name(isa.found), "amx_listed",
                                            (int)cpu_lists("amx_bf16"), "fp32_gflops_a_core",
                                            mz_json_number(2e-9 * isa.fma_rate), "bf16_gflops_a_core",
                                            mz_json_number(2e-9 * fmax(isa.amx_rate, isa.bf16_dot_rate))));
    json_object_update_new(
        o, json_pack("{ss ss}", "precision", mezzo_precision_name(choice->precision), "advice", choice->reason));
    return o;
}

static const mz_row_field selftest_fields[] = {
    {MZ_FIELD(mz_selftest, asked), "precision", "asked"},
    {MZ_FIELD(mz_selftest, runs), "runs_as", "runs as", .legend = "where this device has no such format"},
    {MZ_FIELD(mz_selftest, reason), "reason"},
    {MZ_FIELD(mz_selftest, milliseconds), "step_ms", "ms/step", "%.3f"},
    {MZ_FIELD(mz_selftest, first), "first_loss", "first loss", "%.6f"},
    {MZ_FIELD(mz_selftest, last), "last_loss", "last loss", "%.6f"},
    {MZ_FIELD(mz_selftest, off), "difference", "error", "%.2e",
     .legend = "of the losses, relative to how far fp32's loss fell; tolerance likewise"},
    {MZ_FIELD(mz_selftest, bound), "bound", "tolerance", "%.2e"},
    {MZ_FIELD(mz_selftest, passed), "passed"},
    {MZ_FIELD(mz_selftest, passed), NULL, "", .words = {"WRONG", "ok"}},
};

static int write_report(mezzo_device *device, json_t *report, bool *passed) {
    const char *path = cli_text("report", "");
    CLI_DO(mz_device_report_write(report, path)); // a path that cannot be written is refused before the tests
    CLI_DO(mz_device_report(device, cli_interrupts(NULL), report));
    CLI_DO(mz_device_report_write(report, path));
    const long long failed = (long long)json_integer_value(json_object_get(report, "failed"));
    *passed = *passed && failed == 0;
    if (!cli_has("json"))
        printf("\nreport      %s: %zu kernels beside the ref device, %zu runs of small models; %lld failed\n",
               mz_show(path).text, json_array_size(json_object_get(report, "kernels")),
               json_array_size(json_object_get(report, "models")), failed);
    return CLI_DONE;
}

static int examine(void) {
    MZ_SCOPED(cli_close_device) mezzo_device *device = NULL;
    const bool json = cli_has("json");
    bool all = true;
    mezzo_device_info info;
    mz_choice choice;
    mezzo_precision precisions[MEZZO_PRECISION_COUNT];
    mz_selftest tests[MEZZO_PRECISION_COUNT];
    const int n = mz_precision_common(precisions);
    CLI_TRY(cli_open_device("auto", &device));
    CLI_DO(mezzo_device_describe(device, &info));
    if (!json)
        print_device(&info);
    fflush(stdout);
    CLI_DO(mz_choose_for_device(device, cli_interrupts(NULL), &choice));
    if (!json)
        print_choice(&choice, info.compute_capability > 0);
    fflush(stdout);
    CLI_DO(mz_selftest_run(device, "gpt2", &precisions[1], n - 1, cli_interrupts(NULL), tests));
    for (int i = 0; i < n; i++)
        all = all && tests[i].passed;
    json_auto_t *o = json_pack("{so so sb}", "device", device_json(&info, &choice), "selftest",
                               MZ_LIST(selftest_fields, tests, (size_t)n), "passed", (int)all);
    if (!json) {
        printf("\nself-test: %d steps of a small GPT; losses compared with fp32's, and\n"
               "fp32's with the ref device's\n\n",
               MZ_SELFTEST_STEPS);
        CLI_TABLE(selftest_fields, tests, (size_t)n);
    }
    if (cli_has("report"))
        CLI_TRY(write_report(device, o, &all));
    if (json)
        CLI_TRY(cli_json_print(json_incref(o)));
    return all ? CLI_DONE : CLI_CHECK_FAILED;
}

// --- configuration files -------------------------------------------------------------------------------------------
int cli_assume(mz_where *where) {
    const char *assumed = cli_text("assume", NULL);
    if (assumed == NULL || mz_where_assumed(assumed, where))
        return CLI_DONE;
    return cli_wrong("--assume %s: write cc=8.0,gpus=2 (compute capability and number of GPUs), or gpus=0", assumed);
}

static int compare(void) {
    const char *paths[MAX_FILES];
    int n = 0, at = 0;
    for (const char *file; n < MAX_FILES && (file = cli_next_value("config", &at)) != NULL;)
        paths[n++] = file;
    for (int i = 0; i < cli_line.n_operands && n < MAX_FILES; i++)
        paths[n++] = cli_line.operands[i];
    mz_where where;
    if (!cli_has("assume"))
        mz_where_here(&where);
    CLI_TRY(cli_assume(&where));
    MZ_SCOPED(mz_asked_set_free) mz_asked_set set = {0};
    MZ_SCOPED(mz_free_at) mz_agreement *agreement = NULL;
    CLI_DO(MZ_NEW(agreement, 1));
    CLI_DO(mz_asked_read_all(paths, n, &set));
    mz_agreement_judge(set.files, (int)set.n, &where, agreement);
    const int n_files = (int)set.n;
    CLI_TRY(
        CLI_SHOW(mz_agreement_json(set.files, n_files, agreement), mz_agreement_text, set.files, n_files, agreement));
    return agreement->n_conflicts > 0 ? CLI_CHECK_FAILED : CLI_DONE;
}

int cli_doctor(void) {
    if (cli_has("report") && (cli_has("config") || cli_has("ranks") || cli_has("run") || cli_has("trace")))
        return cli_wrong("--report describes this machine's device: leave out --config, --ranks, --run and --trace");
    if (cli_has("run") + cli_has("trace") + cli_has("config") > 1)
        return cli_wrong("--run, --trace and --config are three questions: ask one");
    if (!cli_has("run"))
        CLI_TRY(CLI_REFUSE("goes with --run -- PROGRAM", "steps", "stop", "traces"));
    if (cli_has("run") || cli_has("trace"))
        return cli_doctor_audit();
    if (cli_has("kernels") || cli_has("out"))
        return cli_wrong("--kernels and --out go with --run or --trace");
    if (cli_has("config"))
        return compare();
    if (cli_line.n_operands > 0)
        return cli_wrong("\"%s\": configuration files come after --config", cli_line.operands[0]);
    if (cli_has("assume"))
        return cli_wrong("--assume goes with --config FILE…, --run or --trace");
    return cli_has("ranks") ? cli_doctor_ranks() : examine();
}
