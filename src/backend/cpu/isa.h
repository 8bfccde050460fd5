// Finds what this machine's cores can execute, by queries and trials.
#ifndef MZ_CPU_ISA_H
#define MZ_CPU_ISA_H

#include <stdbool.h>

#include "base/base.h"

// Each level runs the kernels of lower levels of its architecture: NEON belongs to ARM, the others to x86-64.
typedef enum mz_level {
    MZ_LEVEL_PORTABLE,
    MZ_LEVEL_NEON,
    MZ_LEVEL_AVX2,
    MZ_LEVEL_AVX512,
    MZ_LEVEL_AMX,
    MZ_LEVEL_COUNT
} mz_level;

typedef struct mz_isa {
    mz_level level; // the highest that kernels may use
    mz_level found; // the highest that the machine has; differs from `level` where MEZZO_ISA forces a lower one
    bool bf16_dot; // BF16 dot products may be used: AVX512-BF16's vdpbf16ps (level >= AVX512), ARM's bfdot (level NEON)
    // Measured rates of one core's arithmetic in multiply-adds per second: FP32 FMA at this level, and BF16 products
    // summed in FP32 on AMX tiles or by dot products (0 where the level has none).
    double fma_rate, amx_rate, bf16_dot_rate;
    char brand[64]; // "AMD EPYC": CPUID's name without clock and trademark signs; "CPU" where it is not known
} mz_isa;

// Other arithmetic replaces FP32 only where it was measured to be this much faster: near 1, noise would decide, and
// with it every bit of a run.
#define MZ_WORTH_IT 1.25
static inline bool mz_isa_worth_it(const mz_isa *isa, double rate) {
    return rate > MZ_WORTH_IT * isa->fma_rate;
}

// Probes once per process; later calls return the first result, limited to the level that `forced` names: "amx",
// "avx512", "avx2", "neon" or "ref" (portable C); NULL or "" = the best. INVALID: no such name, or the machine lacks
// the level (the message says what it has).
mezzo_status mz_isa_probe(const char *forced, mz_isa *out);
const char *mz_level_name(mz_level level); // "portable", "neon", "avx2", "avx512", "amx"
bool mz_level_exists(mz_level level);      // on this architecture

#endif
