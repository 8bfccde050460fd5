// Holds the pictures from which a model of images learns: what it predicts, and from what. All are in memory, with 8
// bits a sample.
#ifndef MZ_DATA_PICTURES_H
#define MZ_DATA_PICTURES_H

#include "base/base.h"

// An example. Several examples may share a scene, and the split divides scenes: a city has maps for several
// transmitters.
typedef struct mz_example {
    int64_t scene;
    int64_t x, y; // the transmitter's pixel; -1: there is none
    char name[64];
} mz_example;

typedef struct mz_pictures {
    int64_t n, scenes;
    int64_t n_train, scenes_train; // how many train; these come first in `order`
    int64_t size, channels;        // size: pixels of a side, as pictures are square
    int64_t condition_channels;    // one for the scene, and one more where there are transmitters; 0: there are only
                                   // pictures
    uint8_t *picture;              // [n, size, size, channels]
    uint8_t *scene;                // [scenes, size, size]; NULL: the model has no condition
    mz_example *example;           // [n]
    int64_t *order;                // [n]: examples; no scene is on both sides of n_train
    bool radio;
    double loss_at_0, loss_at_255, cell; // of radio maps: dB, and metres a pixel
    size_t room_examples;
} mz_pictures;

// Opens pictures. `path` is one of
//     a folder in RadioMapSeer's layout: png/buildings_complete, png/antennas, gain/KIND; KIND is DPM, or the only one
//     a folder with input/NAME.png and target/NAME.png, a scene each, or .npy: [size, size] of u1, or of f4 or f8
//         from 0 to 1, rounded to 8 bits
//     a file *.npy of u1, [n, size, size] or [n, size, size, channels]: pictures without a condition
// All cores read the files. `split` (above 0, at most 1) is the share of the scenes that train, drawn by a fixed
// shuffle. Errors name the file.
mezzo_status mz_pictures_open(const char *path, double split, mz_pictures *out);
void mz_pictures_close(mz_pictures *pictures); // a zeroed one is allowed

#endif
