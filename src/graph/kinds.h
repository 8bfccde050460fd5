// C and CUDA share the arithmetic of the kinds of optimizer (optimizers.def).
#ifndef MZ_KINDS_H
#define MZ_KINDS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MZ_KINDS_FUNCTION static __device__ __forceinline__
#else
#define MZ_KINDS_FUNCTION static inline
#endif

enum { MZ_GROUPS = 8, MZ_KIND_MOMENTS = 2 }; // groups of one optimizer, moments of a kind at most

// Holds a group's options as kernels read them (optimizers.def: r->…).
typedef struct mz_update_rule {
    double lr_factor; // multiplies the schedule's rate
    double weight_decay, beta1, beta2, eps, momentum, dampening;
    double update_scale; // of the second pass of a per-matrix kind; 0: the first pass, and other kinds
    double ema;          // the decay of the masters' moving average
    bool nesterov;
    uint64_t seed; // of the random rounding of masters and of BF16 moments
    int group;     // the group whose bias corrections in the optimizer's state it reads
} mz_update_rule;

// Holds a step's numbers; lr is the group's.
typedef struct mz_update_rates {
    double lr, bias1, bias2;
    int64_t step;
} mz_update_rates;

// Declares mz_NAME_constants, and how they follow from the rule, the step and the parameter's weight decay.
#define KIND(name, NAME, title, defaults, moments, constants, ...)                                                     \
    typedef struct mz_##name##_constants {                                                                             \
        constants                                                                                                      \
    } mz_##name##_constants;
#define CONSTANT(name, value) float name;
#include "mezzo/optimizers.def"
#undef CONSTANT
#undef KIND

#define KIND(name, NAME, title, defaults, moments, constants, ...)                                                     \
    MZ_KINDS_FUNCTION mz_##name##_constants mz_##name##_constants_of(const mz_update_rule *r,                          \
                                                                     const mz_update_rates *s, double decay) {         \
        const double lr = s->lr, bias1 = s->bias1, bias2 = s->bias2;                                                   \
        const int64_t step = s->step;                                                                                  \
        mz_##name##_constants k;                                                                                       \
        (void)r, (void)lr, (void)bias1, (void)bias2, (void)step, (void)decay;                                          \
        constants return k;                                                                                            \
    }
#define CONSTANT(name, value) k.name = (float)(value);
#include "mezzo/optimizers.def"
#undef CONSTANT
#undef KIND

#endif
