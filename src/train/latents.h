// Makes latents with a trained kl_vae, from which radio_unet learns instead of pictures. A file beside the data keeps
// them, and a checksum of the weights that made them identifies them.
#ifndef MZ_TRAIN_LATENTS_H
#define MZ_TRAIN_LATENTS_H

#include "mezzo/train.h"
#include "session/session.h"
#include "task/images.h"

typedef struct mz_vae {
    mezzo_device *device; // borrowed
    mz_session session;   // it has parameters alone
    mz_model model;
    char path[4096]; // of the checkpoint
    int64_t step;    // steps that the autoencoder was trained for
    uint32_t crc;    // CRC32C of its weights
} mz_vae;

// Holds RUN/latents.json: what a run that learns latents must find again.
typedef struct mz_latents {
    bool given;
    uint32_t vae; // CRC32C of the weights
    int64_t step; // steps that they were trained for; -1: not known
    double scale;
} mz_latents;
mezzo_status mz_latents_save(const char *folder, const mz_latents *latents); // where `given` is set
mezzo_status mz_latents_load(const char *folder, mz_latents *latents);       // without a file `given` stays false

// Opens the checkpoint of a run folder that `kept` names, where it still exists, else the newest, with its moving
// average where it has one. INVALID: it is no kl_vae.
mezzo_status mz_vae_open(mezzo_device *device, const char *run, const mz_latents *kept, mz_vae *out);
void mz_vae_close(mz_vae *vae); // a zeroed one is allowed
// Makes a program in FP32, with products in TF32 where the device is faster in it.
mezzo_status mz_vae_program(const mz_vae *vae, mz_model_part part, int64_t batch, mezzo_program **out);
// Gives the task the latents of its pictures: reads `data`/latents-CRC.safetensors, or makes them and writes that file.
// Where `latents->given`, `vae` must be the one that it names (else INVALID); otherwise the function fills it.
mezzo_status mz_latents_give(const mz_vae *vae, const char *data, mz_task *task, mz_latents *latents);

#endif
