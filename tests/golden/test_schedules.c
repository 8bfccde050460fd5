// Learning-rate schedules against doubles computed in Python, step by step, past the end of each schedule.
#include <float.h>
#include <math.h>

#include "golden.h"
#include "mezzo/optimizer.h"

static mezzo_schedule schedule_of(const json_t *c) {
    static const char *const kinds[] = {"constant", "linear", "cosine", "polynomial"};
    mezzo_schedule s = {.lr = golden_number(c, "lr"),
                        .min_lr = golden_number(c, "min_lr"),
                        .power = golden_number(c, "power"),
                        .warmup = (int64_t)golden_number(c, "warmup_steps"),
                        .steps = (int64_t)golden_number(c, "decay_steps")};
    unsigned kind = 0;
    while (strcmp(kinds[kind], json_string_value(json_object_get(c, "kind"))) != 0)
        ++kind;
    s.kind = kind;
    return s;
}

// A rate is about ten double operations, the last of them a sum of two terms no larger than lr; cos and pow are good to
// an ulp.
static const double BOUND = 16 * DBL_EPSILON;

TEST(every_step_has_the_rate_of_the_formula) {
    json_t *root = golden_json("schedules.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        mezzo_schedule s = schedule_of(c);
        json_t *value;
        size_t step;
        json_array_foreach(json_object_get(c, "values"), step, value) {
            double got = mezzo_schedule_lr(&s, (int64_t)step), want = golden_real(value);
            if (!(fabs(got - want) <= BOUND * s.lr))
                fail_msg("case %zu (%s), step %zu: got %.17g, want %.17g", i,
                         json_string_value(json_object_get(c, "kind")), step, got, want);
        }
    }
    json_decref(root);
}

// A schedule one step late, or warm-up counted to `warmup` and not to `warmup + 1`, is off by far more than the bound.
TEST(a_schedule_one_step_off_would_be_noticed) {
    json_t *root = golden_json("schedules.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        mezzo_schedule s = schedule_of(c);
        const json_t *values = json_object_get(c, "values");
        double worst = 0;
        for (size_t step = 0; step < json_array_size(values); ++step)
            worst =
                fmax(worst, fabs(mezzo_schedule_lr(&s, (int64_t)step + 1) - golden_real(json_array_get(values, step))));
        if (s.kind != MEZZO_LR_CONSTANT || s.warmup > 0)
            assert_true(worst > 1e6 * BOUND * s.lr);
    }
    json_decref(root);
}
