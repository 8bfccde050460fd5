// Makes radio maps of random cities: streets and buildings, transmitters, and the power received at every position.
// docs/images.md has the formulas and their sources. A map is a pure function of (seed, its number): neither threads
// nor the number of maps change it.
#ifndef MZ_TOOLS_RADIO_H
#define MZ_TOOLS_RADIO_H

#include <signal.h>

#include "base/base.h"
#include "data/radio_map.h"

// --- the city ------------------------------------------------------------------------------------
typedef struct mz_point {
    double x, y; // in metres, x to the right and y down, as rows go
} mz_point;

enum { MZ_POLYGON = 16 };
typedef struct mz_polygon {
    int n;
    mz_point p[MZ_POLYGON]; // convex; the inside is on the left of every edge p[i] → p[i + 1]
    double wall;            // loss of passing one of its walls, in dB
} mz_polygon;

typedef struct mz_city {
    double extent; // metres of a side
    mz_polygon *building;
    size_t n, room;
} mz_city;

mezzo_status mz_city_make(uint64_t seed, uint64_t map, double extent, mz_city *out); // MEMORY
void mz_city_free(mz_city *city);                                                    // a zeroed one is allowed
// Draws the city, [size, size]: 255 where a pixel's centre is in a building, else 0.
void mz_city_draw(const mz_city *city, int64_t size, uint8_t *out);
// Returns a position for transmitter `which` on the street, drawn from (seed, map, which): the centre of a pixel.
mz_point mz_city_transmitter(const mz_city *city, uint64_t seed, uint64_t map, uint64_t which, int64_t size,
                             const uint8_t *buildings);

// --- the power -----------------------------------------------------------------------------------
// Returns the loss of a knife edge, ITU-R P.526-15 (31); 0 below nu = -0.78.
double mz_knife_edge_loss(double nu);

typedef struct mz_field mz_field; // data that all transmitters of one city share: its corners and the views from them
mezzo_status mz_field_make(const mz_city *city, int64_t size, const uint8_t *buildings, mz_field **out);
void mz_field_free(mz_field *field); // NULL is allowed
// Computes the gray of every pixel, [size, size]; 0 in buildings.
mezzo_status mz_field_map(mz_field *field, mz_point transmitter, uint8_t *out);

// --- files ---------------------------------------------------------------------------------------
typedef struct mz_radio_options {
    int64_t maps, transmitters, size;
    double extent; // metres of a side; 0: one for each pixel
    uint64_t seed;
    int threads; // 0: every core
    const char *out;
} mz_radio_options;

typedef struct mz_radio_written {
    int64_t maps, pictures;
    double seconds, built_up; // share of pixels in buildings
} mz_radio_written;

// Writes OUT/png/buildings_complete/{map}.png, OUT/png/antennas/{map}_{tx}.png, OUT/gain/DPM/{map}_{tx}.png, and, last,
// OUT/radio.json, which says how they were made. OUT must not exist or must be empty: otherwise INVALID. IO names the
// file; INTERRUPTED at *stop (NULL: never), with complete maps in OUT and no radio.json.
mezzo_status mz_radio_write(const mz_radio_options *options, const volatile sig_atomic_t *stop, mz_radio_written *out);

#endif
