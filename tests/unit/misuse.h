// Rows of test_misuse.c, and what they misuse: one of each object, and some of another device or graph.
#ifndef MISUSE_H
#define MISUSE_H

#include "tiny_run.h"

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>

#include "base/base.h"
#include "io/file.h"
#include "mezzo/mezzo.h"

static sigjmp_buf back;
static const char *now;
static int rows, wrong;

static void on_crash(int sig) {
    (void)sig;
    siglongjmp(back, 1);
}

static void catch_crashes(void) { // cmocka's own handlers end the test
    const struct sigaction crash = {.sa_handler = on_crash, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &crash, NULL);
    sigaction(SIGBUS, &crash, NULL);
    sigaction(SIGFPE, &crash, NULL);
}

static void told(const char *call, bool good) {
    rows++;
    if (good)
        return;
    wrong++;
    print_message("%s: %s\n", call, mezzo_error_message());
}

// A row: the call is INVALID and says why; or what it gives.
#define ROW(call, condition)                                                                                           \
    do {                                                                                                               \
        now = #call;                                                                                                   \
        catch_crashes();                                                                                               \
        if (sigsetjmp(back, 1) == 0)                                                                                   \
            told(now, (condition));                                                                                    \
        else                                                                                                           \
            wrong++, print_message("%s: a crash\n", now);                                                              \
    } while (0)
#define REFUSED(call)       ROW(call, (call) == MEZZO_ERR_INVALID && mezzo_error_message()[0] != '\0')
#define GIVES(call, result) ROW(call, (call) == (result))
#define PASSES(call)        ROW(call, ((call), true)) // returns nothing: it must not crash

// An op on no graph gives no value, and one that does not fit leaves the graph with an error.
#define NOTHING(call) ROW(call, (call).id < 0 && mezzo_error_message()[0] != '\0')
#define SPOILS(call)                                                                                                   \
    do {                                                                                                               \
        mezzo_graph *g = NULL;                                                                                         \
        must(mezzo_graph_create(&g));                                                                                  \
        mezzo_value x = mezzo_param(g, "x", (mezzo_init){MEZZO_INIT_ZERO, 0}, 2, (const int64_t[]){4, 6});             \
        mezzo_value i = mezzo_input(g, "i", MEZZO_I32, 1, (const int64_t[]){4});                                       \
        (void)x, (void)i;                                                                                              \
        now = #call;                                                                                                   \
        catch_crashes();                                                                                               \
        if (sigsetjmp(back, 1) == 0) {                                                                                 \
            (void)(call);                                                                                              \
            told(now, mezzo_graph_status(g) == MEZZO_ERR_INVALID && mezzo_error_message()[0] != '\0');                 \
        } else                                                                                                         \
            wrong++, print_message("%s: a crash\n", now);                                                              \
        mezzo_graph_free(g);                                                                                           \
    } while (0)

// Callbacks that do nothing.
static inline mezzo_status fill_nothing(void *user, mezzo_program *program, uint64_t index) {
    (void)user, (void)program, (void)index;
    return MEZZO_OK;
}

static inline void on_row(void *user, const mezzo_explain_row *row) {
    (void)user, (void)row;
}

static inline void on_param(void *user, const mezzo_explain_param *row) {
    (void)user, (void)row;
}

static void done(void) {
    const int n = wrong;
    wrong = 0;
    assert_int_equal(n, 0);
}

// --- what the rows misuse ------------------------------------------------------------------------------------------
enum { BATCH = 2, WIDTH = 4, CLASSES = 3, VOCAB = 5 };
typedef struct world {
    mezzo_device *device, *other;
    mezzo_graph *graph, *small;
    mezzo_params *params, *far_params, *more;
    mezzo_program *program, *forward;
    mezzo_optimizer *optimizer, *far_optimizer, *more_optimizer;
    mezzo_scaler *scaler, *far_scaler;
    mezzo_step *step;
    mezzo_tokenizer *tok;
    mezzo_corpus *corpus;
    mezzo_loader *loader;
    mezzo_config *config;
} world;
static world w;

static void build(mezzo_graph *g) {
    const int64_t ids[] = {BATCH}, table[] = {VOCAB, WIDTH}, head[] = {CLASSES, WIDTH};
    const mezzo_init normal = {MEZZO_INIT_NORMAL, 0.1f};
    mezzo_value x =
        mezzo_embedding(g, mezzo_param(g, "table", normal, 2, table), mezzo_input(g, "ids", MEZZO_I32, 1, ids));
    x = mezzo_linear(g, x, mezzo_param(g, "head", normal, 2, head), MEZZO_NONE);
    mezzo_value loss = mezzo_cross_entropy(g, x, mezzo_input(g, "targets", MEZZO_I32, 1, ids), -1);
    must(mezzo_graph_output(g, "logits", x));
    must(mezzo_graph_loss(g, loss));
}

static int open_world(void **state) {
    (void)state;
    const mezzo_program_options training = {0}, forward = {.forward_only = true};
    const mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    const mezzo_scaler_options scaling = mezzo_scaler_defaults();
    const char text[] = "a text of some characters, for a loader of short sequences, as long as it must be\n";
    must(mezzo_device_open("cpu", 1, &w.device));
    must(mezzo_device_open("ref", 1, &w.other));
    must(mezzo_graph_create(&w.graph));
    must(mezzo_graph_create(&w.small));
    build(w.graph);
    mezzo_param(w.small, "only", (mezzo_init){MEZZO_INIT_ZERO, 0}, 1, (const int64_t[]){2});
    must(mezzo_params_create(w.device, w.graph, 1, &w.params));
    must(mezzo_params_create(w.other, w.graph, 1, &w.far_params));
    must(mezzo_params_create(w.device, w.small, 1, &w.more));
    must(mezzo_program_create(w.graph, w.params, &training, &w.program));
    must(mezzo_program_create(w.graph, w.params, &forward, &w.forward));
    must(mezzo_optimizer_create(w.params, &adamw, &w.optimizer));
    must(mezzo_optimizer_create(w.far_params, &adamw, &w.far_optimizer));
    must(mezzo_optimizer_create(w.more, &adamw, &w.more_optimizer));
    must(mezzo_scaler_create(w.device, &scaling, &w.scaler));
    must(mezzo_scaler_create(w.other, &scaling, &w.far_scaler));
    must(mezzo_step_create(w.program, &w.optimizer, 1, w.scaler, NULL, &w.step));
    must(mz_file_write_atomic("text.txt", text, sizeof text - 1));
    must(mezzo_tokenizer_create_byte(&w.tok));
    must(mezzo_corpus_open(&(mezzo_corpus_options){.path = "text.txt", .tokenizer = "byte", .train_fraction = 0.5},
                           &w.corpus));
    must(mezzo_loader_create(w.corpus, &(mezzo_loader_options){.batch = 1, .length = 4}, &w.loader));
    must(mezzo_config_create(&w.config));
    return 0;
}

static int close_world(void **state) {
    (void)state;
    mezzo_step_free(w.step);
    mezzo_scaler_free(w.scaler);
    mezzo_scaler_free(w.far_scaler);
    mezzo_optimizer_free(w.optimizer);
    mezzo_optimizer_free(w.far_optimizer);
    mezzo_optimizer_free(w.more_optimizer);
    mezzo_program_free(w.program);
    mezzo_program_free(w.forward);
    mezzo_params_free(w.params);
    mezzo_params_free(w.far_params);
    mezzo_params_free(w.more);
    mezzo_graph_free(w.graph);
    mezzo_graph_free(w.small);
    mezzo_device_close(w.device);
    mezzo_device_close(w.other);
    mezzo_loader_free(w.loader);
    mezzo_corpus_free(w.corpus);
    mezzo_tokenizer_free(w.tok);
    mezzo_config_free(w.config);
    return 0;
}

#endif
