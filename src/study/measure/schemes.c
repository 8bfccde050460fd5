// Lists the bytes a parameter takes in the ways models are trained, and in tables that are published about them.
#include "study/measure/measure.h"

const mz_scheme mz_schemes[MZ_SCHEMES] = {
    {"fp32, AdamW", 4, 0, 4, 8, true, "weights, gradients and two moments, all fp32"},
    {"autocast, AdamW", 4, 2, 4, 8, true,
     "as in Mezzo and torch.amp: the fp32 weights stay, and every matrix has an additional 2-byte copy"},
    {"bf16 autocast, split masters, AdamW", 2, 2, 4, 8, true,
     "--master split: stores the bf16 copy, which is the master's upper half, and the lower half; the same bits as "
     "fp32 masters"},
    {"bf16 autocast, stochastic rounding, AdamW", 2, 0, 4, 8, true,
     "--master stochastic: no master; each update is rounded stochastically, right on average"},
    {"autocast, SGD with momentum", 4, 2, 4, 4, true, "one moment"},
    {"autocast, plain SGD", 4, 2, 4, 0, true, "no moments"},
    {"low weights and gradients, fp32 master", 2, 4, 2, 8, true,
     "Megatron, DeepSpeed, Apex O2: 16 bytes, the same as fp32; gradients are summed in 2 bytes or copied to fp32"},
    {"everything bf16, AdamW", 2, 0, 2, 4, true,
     "no fp32 anywhere: updates below 1/256 of a weight are rounded away, unless rounding is stochastic"},
    {"published: \"half the memory\"", 2, 0, 2, 4, false,
     "fp32's table divided by two; right only if the moments are 2 bytes too and nothing is fp32"},
    {"published: \"2 + 2 + 8\"", 2, 0, 2, 8, false,
     "2-byte weights and gradients and fp32 moments, without the fp32 weights that the moments update"},
};

double mz_scheme_total(const mz_scheme *s) {
    return s->weights + s->copies + s->gradients + s->optimizer;
}
