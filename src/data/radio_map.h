// In a radio map, gray means received power; maps are compared with the loss in free space. `mezzo data radio`
// (tools/radio) writes such maps; RadioMapSeer's are alike. docs/images.md has the formulas and their sources.
#ifndef MZ_DATA_RADIO_MAP_H
#define MZ_DATA_RADIO_MAP_H

#include <math.h>
#include <stdint.h>

#define MZ_RADIO_GHZ  5.9          // as in RadioMapSeer
#define MZ_RADIO_DB   100.0        // gray 255 is the loss at 1 m in free space, and gray 0 is higher by this much
#define MZ_RADIO_FILE "radio.json" // describes how a folder of maps was made

// Returns ITU-R P.525-4 (4), in dB; the distance is in metres, at least 1.
static inline double mz_free_space_loss(double metres) {
    return 32.4 + 20 * log10(MZ_RADIO_GHZ * 1e3) + 20 * log10(fmax(metres, 1) * 1e-3);
}

// Return the loss in dB that a gray means, and the gray of a loss.
static inline double mz_radio_loss(double gray) {
    return mz_free_space_loss(1) + MZ_RADIO_DB * (1 - gray / 255);
}
static inline uint8_t mz_radio_gray(double loss) {
    const double gray = 255 * (1 - (loss - mz_free_space_loss(1)) / MZ_RADIO_DB);
    return gray <= 0 ? 0 : gray >= 255 ? 255 : (uint8_t)(gray + 0.5);
}

#endif
