// Deep models: what is looked up and placed for each layer does not depend on how many there are.
#include <time.h>

#include "fixture.h"
#include "base/names.h"
#include "runtime/passes.h"
#include "graph/place.h"
#include "study/measure/explained.h"
#include "study/measure/measure.h"

static mezzo_device *device;

static int open_device(void **state) {
    (void)state;
    return mezzo_device_open("cpu", 1, &device) == MEZZO_OK ? 0 : -1;
}
static int close_device(void **state) {
    (void)state;
    mezzo_device_close(device);
    return 0;
}

// --- places --------------------------------------------------------------------------------------------------------
enum { LIVES = 400 };

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

// The lowest offset, found by trying each end of what is in the way.
static size_t lowest(const mz_life *lives, int n, const mz_life *x) {
    size_t best = SIZE_MAX;
    for (int k = -1; k < n; k++) {
        const size_t at = k < 0 ? 0 : lives[k].offset + lives[k].bytes;
        bool is_free = true;
        for (int i = 0; i < n && is_free; i++) {
            const mz_life *y = &lives[i];
            const bool meets = y->first <= x->last && x->first <= y->last;
            const bool apart = y->offset >= at + x->bytes || y->offset + y->bytes <= at;
            is_free = !meets || apart;
        }
        best = is_free && at < best ? at : best;
    }
    return best;
}

TEST(places_are_the_lowest) {
    for (uint32_t round = 0; round < 30; round++) {
        static mz_life lives[LIVES];
        mz_places places;
        uint32_t seed = round;
        const int times = round % 3 == 0 ? 40 : 1000, longest = round % 2 == 0 ? times : 30;
        must(mz_places_open(&places, LIVES, (size_t)times));
        for (int i = 0; i < LIVES; i++) {
            mz_life *x = &lives[i];
            const int first = (int)(next_random(&seed) % (uint32_t)times);
            const int last = first + (int)(next_random(&seed) % (uint32_t)longest);
            *x = (mz_life){i, 64 * (1 + next_random(&seed) % 9), first, last < times ? last : times - 1, 0};
            if (i < 3) // walls, which are given
                *x = (mz_life){i, 0, 0, times - 1, 640 + 64 * (next_random(&seed) % 200)};
            else
                x->offset = mz_places_lowest(&places, x);
            if (i >= 3)
                assert_int_equal(x->offset, lowest(lives, i, x));
            must(mz_places_take(&places, x));
        }
        mz_places_close(&places);
    }
}

// --- names ---------------------------------------------------------------------------------------------------------
static const char *name_of(const void *list, int number) {
    return ((const char(*)[16])list)[number];
}

TEST(names_are_found) {
    static char list[5000][16];
    mz_names names = {0};
    assert_int_equal(mz_names_find(&names, "h.1", name_of, list), -1);
    for (int i = 0; i < 5000; i++) {
        snprintf(list[i], sizeof list[i], "h.%d", i * 7);
        assert_int_equal(mz_names_find(&names, list[i], name_of, list), -1);
        must(mz_names_add(&names, list[i], i));
    }
    for (int i = 0; i < 5000; i++)
        assert_int_equal(mz_names_find(&names, list[i], name_of, list), i);
    mz_names_free(&names);
}

// --- growth --------------------------------------------------------------------------------------------------------
static mz_session_options deep(int64_t layers, mezzo_precision precision) {
    mz_session_options w;
    mezzo_model_config config;
    must(mezzo_model_defaults("gpt2", &config));
    config.layers = layers;
    config.heads = 2;
    config.d_model = 16;
    config.seq_len = 8;
    must(mz_session_usual(&config, 2, &w));
    mz_session_set_precision(&w, precision);
    w.master = MEZZO_MASTER_FP32;
    w.seed = 1;
    return w;
}

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void plan(int64_t layers, mezzo_precision precision) {
    const mz_session_options w = deep(layers, precision);
    mz_footprint f;
    must(mz_footprint_of(device, &w, NULL, &f));
}

static void explain(int64_t layers, mezzo_precision precision) {
    const mz_session_options w = deep(layers, precision);
    const mezzo_program_options options = mz_session_training(&w);
    mezzo_graph *g;
    mz_explained plain = {0}, fused = {0};
    must(mz_session_graph(&w, &w.form, &g));
    must(mz_explained_collect(g, &options, "autocast", &plain));
    must(mz_explained_collect(g, &options, "fuse", &fused));
    must(mz_explained_mark_fused(&plain, &fused));
    mz_explained_free(&plain);
    mz_explained_free(&fused);
    mezzo_graph_free(g);
}

static void create(int64_t layers, mezzo_precision precision) {
    const mz_session_options w = deep(layers, precision);
    mz_rig *rig;
    must(mz_rig_create(device, &w, &rig));
    mz_rig_free(rig);
}

// Five times the layers: not more than twelve times the work, where what is quadratic takes twenty-five. The least of
// three turns, as others use the processor too.
static void expect_near_linear(void (*work)(int64_t, mezzo_precision), mezzo_precision precision, const char *what) {
    const int64_t layers[] = {80, 400};
    double least[] = {1e9, 1e9};
    for (int turn = 0; turn < 3; turn++)
        for (int i = 0; i < 2; i++) {
            const double before = processor_seconds();
            work(layers[i], precision);
            const double took = processor_seconds() - before;
            least[i] = took < least[i] ? took : least[i];
        }
    if (least[1] > 12 * least[0])
        fail_msg("%s in %s: %.4f s for 80 layers, %.4f s for 400", what, mezzo_precision_name(precision), least[0],
                 least[1]);
}

TEST(work_grows_with_the_layers) {
    const mezzo_precision precisions[] = {MEZZO_PRECISION_FP32, MEZZO_PRECISION_BF16, MEZZO_PRECISION_FP8};
    for (size_t i = 0; i < MZ_COUNT(precisions); i++)
        expect_near_linear(explain, precisions[i], "explaining");
    for (size_t i = 0; i < 2; i++) {
        expect_near_linear(plan, precisions[i], "planning");
        expect_near_linear(create, precisions[i], "making programs");
    }
}

static size_t looks_at(int64_t layers, mezzo_precision precision, bool recompute) {
    mz_session_options w = deep(layers, precision);
    w.program.recompute = recompute;
    const mezzo_program_options options = mz_session_training(&w);
    mezzo_graph *g, *after;
    mz_plan planned;
    must(mz_session_graph(&w, &w.form, &g));
    must(mz_passes(g, &(mz_target){.options = &options}, "chunk", &after));
    mz_gradient_room room = {.offset = mz_alloc(after->n_params, sizeof *room.offset)};
    assert_non_null(room.offset);
    for (size_t i = 0; i < after->n_params; i++) {
        room.offset[i] = room.bytes;
        room.bytes += mz_align_up((size_t)mz_shape_count(&after->params[i].shape) * sizeof(float), 64);
    }
    must(mz_graph_plan(after, NULL, &room, &planned));
    const size_t looks = planned.looks;
    mz_free(room.offset);
    mz_plan_free(&planned);
    mezzo_graph_free(after);
    mezzo_graph_free(g);
    return looks;
}

// Counted, not timed: of four times the layers sixteen times the looks would be quadratic.
TEST(places_are_found_without_looking_at_all) {
    for (int recompute = 0; recompute < 2; recompute++) {
        const size_t few = looks_at(100, MEZZO_PRECISION_BF16, recompute != 0);
        const size_t many = looks_at(400, MEZZO_PRECISION_BF16, recompute != 0);
        if (many > 11 * few)
            fail_msg("%zu looks for 100 layers, %zu for 400", few, many);
    }
}

TEST_GROUP(open_device, close_device)
