// Generates random bits by Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC'11). Random bits are a pure function of (key, counter), so neither threads nor launch shapes nor a resume can
// change them.
#include <math.h>

#include "base/base.h"

void mz_philox(mz_philox_key key, uint64_t index, uint32_t out[4]) {
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = key.tensor, c3 = key.step;
    for (int round = 0; round < 10; round++) {
        // The multipliers and the Weyl increments are those of the paper.
        uint64_t p0 = UINT64_C(0xD2511F53) * c0, p1 = UINT64_C(0xCD9E8D57) * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

float mz_uniform(uint32_t word) {
    return (float)(word >> 8) * 0x1p-24f; // 24 bits: every value is a float, and none rounds up to 1
}

void mz_normal4(const uint32_t words[4], float out[4]) {
    for (int i = 0; i < 4; i += 2) {
        // (0, 1], so that the logarithm is finite; in double, so that two math libraries almost never round the float
        // differently.
        double u = ((double)words[i] + 1.0) * 0x1p-32;
        double angle = 6.283185307179586 * ((double)words[i + 1] * 0x1p-32);
        double radius = sqrt(-2.0 * log(u));
        out[i] = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}

mz_philox_key mz_noise_key(int32_t low, int32_t high) {
    return (mz_philox_key){.seed = (uint32_t)low | (uint64_t)(uint32_t)high << 32, .tensor = UINT32_C(0x1D1F0000)};
}
