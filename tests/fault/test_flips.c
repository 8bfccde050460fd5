// One bit of one file of a run folder is another. Evaluating the folder and the newest checkpoint by name, and going on
// with the run, each end in an error or in the very numbers of the whole folder; where an older checkpoint is taken,
// that is told. Nothing is computed from metrics.jsonl: there the run goes on to the same numbers, and says that the
// file was changed. Seen to fail where the manifest does not remember what the file was.
// MEZZO_FLIPS: how many flips [30]; they are spread over the files, at random within each.
#include "tiny_run.h"

#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 3, MORE = 4, FILES = 16 };
static const char *const files[FILES] = {"config.yaml",
                                         "tokenizer.json",
                                         "metrics.jsonl",

                                         "checkpoints/manifest.json",
                                         "checkpoints/step-00000003/state.json",
                                         "checkpoints/step-00000003/model.safetensors",
                                         "checkpoints/step-00000003/optimizer.safetensors",
                                         "checkpoints/step-00000002/state.json",
                                         "checkpoints/step-00000002/model.safetensors",
                                         "checkpoints/step-00000002/optimizer.safetensors"};

static int warnings;

static void on_line(void *user, const char *topic, const char *line) {
    (void)user, (void)line;
    warnings += strcmp(topic, "warn") == 0;
}

static mezzo_status train(const char *folder, int64_t steps, bool resume) {
    char out[64], config_path[64], count[32];
    const char *rest[32], *const first[] = {
                              "--layers=1",     "--heads=2",           "--d-model=16",      "--seq-len=8",
                              "--batch-size=2", "--device=cpu",        "--threads=1",       TINY_DATA,
                              "--eval-every=0", "--eval-iters=1",      "--sample-every=-1", "--precision=fp32",
                              "--keep-last=0",  "--checkpoint-every=1"};
    const char *const later[] = {"--resume=auto"};
    int n;
    mezzo_config *config = NULL;
    snprintf(out, sizeof out, "--out=%s", folder);
    snprintf(config_path, sizeof config_path, "%s/config.yaml", folder);
    snprintf(count, sizeof count, "--steps=%lld", (long long)steps);
    must(mezzo_config_create(&config));
    mezzo_status status = resume ? mezzo_config_load(config, config_path)
                                 : mezzo_config_args(config, (int)MZ_COUNT(first), first, rest, &n);
    if (status == MEZZO_OK && resume)
        status = mezzo_config_args(config, (int)MZ_COUNT(later), later, rest, &n);
    if (status == MEZZO_OK)
        status = mezzo_config_args(config, 2, (const char *const[]){out, count}, rest, &n);
    if (status == MEZZO_OK)
        status = mezzo_run_train(config, NULL, NULL);
    mezzo_config_free(config);
    return status;
}

typedef struct numbers {
    double loss[MORE + 1]; // by the step of the checkpoint that was evaluated
    uint32_t weights;      // of the run that went on
} numbers;

static uint32_t weights_of(const char *folder) {
    char path[128];
    uint32_t crc = 0;
    snprintf(path, sizeof path, "%s/checkpoints/step-%08d/model.safetensors", folder, MORE);
    must(mz_file_crc32c(path, &crc, NULL));
    return crc;
}

// An error, or the same loss; a checkpoint that is not the newest only with a warning.
static bool evaluate(const char *path, const numbers *whole, int file) {
    mezzo_eval_result r;
    warnings = 0;
    mezzo_status status = mezzo_run_eval(&(mezzo_eval_options){.path = path, .threads = 1}, NULL, &r);
    if (status != MEZZO_OK)
        return true;
    bool same = r.step >= 0 && r.step <= STEPS && r.loss == whole->loss[r.step];
    if (!same || (r.step != STEPS && warnings == 0))
        print_message("%s: eval %s gives step %lld, loss %g, %d warnings\n", files[file], path, (long long)r.step,
                      r.loss, warnings);
    return same && (r.step == STEPS || warnings > 0);
}

static bool resume(const numbers *whole, int file) {
    const bool metrics = strcmp(files[file], "metrics.jsonl") == 0;
    warnings = 0;
    if (train("flipped", MORE, true) != MEZZO_OK)
        return !metrics;
    if (metrics && warnings == 0) {
        print_message("%s: not told of\n", files[file]);
        return false;
    }
    bool same = weights_of("flipped") == whole->weights;
    if (!same)
        print_message("%s: the run went on to other weights\n", files[file]);
    return same;
}

static void put_file(const char *folder, int file, const char *bytes, size_t n) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, files[file]);
    FILE *f = fopen(path, "wb");
    assert_true(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

TEST(test_every_bit_counts) {
    const char *asked = getenv("MEZZO_FLIPS");
    const uint64_t flips = asked != NULL ? strtoull(asked, NULL, 10) : 30;
    char *bytes[FILES] = {NULL}, path[128];
    size_t size[FILES] = {0};
    int n_files = 0, wrong = 0;
    numbers whole;
    mezzo_eval_result r;
    for (; n_files < FILES && files[n_files] != NULL; n_files++) {
        snprintf(path, sizeof path, "whole/%s", files[n_files]);
        must(mz_file_read(path, 1 << 24, &bytes[n_files], &size[n_files]));
    }
    for (int s = STEPS - 1; s <= STEPS; s++) {
        snprintf(path, sizeof path, "whole/checkpoints/step-%08d", s);
        must(mezzo_run_eval(&(mezzo_eval_options){.path = path, .threads = 1}, NULL, &r));
        whole.loss[s] = r.loss;
    }
    whole.loss[0] = whole.loss[1] = (double)NAN;
    assert_int_equal(system("rm -rf flipped && cp -a whole flipped"), 0);
    must(train("flipped", MORE, true));
    whole.weights = weights_of("flipped");
    mezzo_log_set(on_line, NULL);
    for (uint64_t i = 0; i < flips; i++) {
        uint32_t words[4];
        int file = (int)(i % (uint64_t)n_files), bad = wrong;
        mz_philox((mz_philox_key){29, 0, 0}, i, words);
        size_t bit = words[0] % (8 * size[file]);
        assert_int_equal(system("rm -rf flipped && cp -a whole flipped"), 0);
        bytes[file][bit / 8] = (char)(bytes[file][bit / 8] ^ 1 << bit % 8);
        put_file("flipped", file, bytes[file], size[file]);
        wrong += !evaluate("flipped", &whole, file);
        wrong += !evaluate("flipped/checkpoints/step-00000003", &whole, file);
        wrong += !resume(&whole, file);
        if (wrong > bad)
            print_message("flip %llu: %s, bit %zu\n", (unsigned long long)i, files[file], bit);
        bytes[file][bit / 8] = (char)(bytes[file][bit / 8] ^ 1 << bit % 8);
    }
    mezzo_log_set(NULL, NULL);
    print_message("%llu flips in %d files, %d wrong results\n", (unsigned long long)flips, n_files, wrong);
    for (int i = 0; i < n_files; i++)
        mz_free(bytes[i]);
    assert_int_equal(wrong, 0);
}

static int setup(void **state) {
    (void)state;
    tiny_text();
    tiny_clean("whole");
    must(train("whole", STEPS, false));
    return 0;
}

TEST_GROUP(setup, NULL)
