// Every object of the library is freed twice: the second time is told and changes nothing. Its memory is another object
// later, and that one is freed as any. Seen to fail with a second free that goes through (glibc ends the process).
#include "misuse.h"

#define TWICE(free_it, object)                                                                                         \
    do {                                                                                                               \
        void *freed = (object);                                                                                        \
        PASSES(free_it(object));                                                                                       \
        REFUSED((mz_fail(MEZZO_ERR_IO, "nothing yet"), free_it(freed), said_freed_before()));                          \
    } while (0)

static mezzo_status said_freed_before(void) {
    return strstr(mezzo_error_message(), "was already freed") != NULL ? MEZZO_ERR_INVALID : MEZZO_OK;
}

TEST(everything_freed_twice) {
    open_world(state);
    TWICE(mezzo_step_free, w.step);
    TWICE(mezzo_scaler_free, w.scaler);
    TWICE(mezzo_scaler_free, w.far_scaler);
    TWICE(mezzo_optimizer_free, w.optimizer);
    TWICE(mezzo_optimizer_free, w.far_optimizer);
    TWICE(mezzo_optimizer_free, w.more_optimizer);
    TWICE(mezzo_program_free, w.program);
    TWICE(mezzo_program_free, w.forward);
    TWICE(mezzo_params_free, w.params);
    TWICE(mezzo_params_free, w.far_params);
    TWICE(mezzo_params_free, w.more);
    TWICE(mezzo_graph_free, w.graph);
    TWICE(mezzo_graph_free, w.small);
    TWICE(mezzo_device_close, w.device);
    TWICE(mezzo_device_close, w.other);
    TWICE(mezzo_loader_free, w.loader);
    TWICE(mezzo_corpus_free, w.corpus);
    TWICE(mezzo_tokenizer_free, w.tok);
    TWICE(mezzo_config_free, w.config);
    done();
}

// The same memory over and over: what is alive is never taken for what was freed.
TEST(freed_memory_is_used_again) {
    for (int i = 0; i < 20; i++) {
        mz_fail(MEZZO_ERR_IO, "nothing yet");
        open_world(state);
        close_world(state);
        assert_int_equal(said_freed_before(), MEZZO_OK);
    }
}
