// A model of images learns from these pictures: what it predicts, and what it predicts that from. Read whole, 8 bits a
// sample.
#ifndef MZ_DATA_PICTURES_H
#define MZ_DATA_PICTURES_H

#include "base/base.h"

// A scene is what several examples share and what is split: a city, of which several transmitters have maps.
typedef struct mz_example {
    int64_t scene;
    int64_t x, y; // of the transmitter's pixel; -1: there is none
    char name[64];
} mz_example;

typedef struct mz_pictures {
    int64_t n, scenes;
    int64_t n_train, scenes_train; // the first of `order`
    int64_t size, channels;        // of a picture: square
    int64_t condition_channels;    // of a scene, and one more where there are transmitters; 0: only pictures
    uint8_t *picture;              // [n, size, size, channels]
    uint8_t *scene;                // [scenes, size, size]; NULL where there is no condition
    mz_example *example;           // [n]
    int64_t *order;                // [n]: examples; no scene is on both sides of n_train
    bool radio;
    double loss_at_0, loss_at_255, cell; // of radio maps: dB, and metres a pixel
    size_t room_examples;
} mz_pictures;

// `path` is one of
//   a folder in RadioMapSeer's layout: png/buildings_complete, png/antennas, gain/KIND; KIND is DPM, or the only one
//   a folder with input/NAME.png and target/NAME.png, a scene each, or .npy: [size, size] of u1, or of f4 or f8 from 0
//   to 1, rounded to 8 bits
//   a file *.npy of u1, [n, size, size] or [n, size, size, channels]: pictures without a condition
// Files are read by all cores. `split` (above 0, at most 1): the part of the scenes that is trained on, drawn by a
// fixed shuffle. Errors name the file.
mezzo_status mz_pictures_open(const char *path, double split, mz_pictures *out);
void mz_pictures_close(mz_pictures *pictures); // a zeroed one is fine

#endif
