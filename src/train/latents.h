// A trained kl_vae makes latents, from which radio_unet learns instead of pictures; a file beside the data keeps them,
// and a checksum of the weights that made them identifies them.
#ifndef MZ_TRAIN_LATENTS_H
#define MZ_TRAIN_LATENTS_H

#include "mezzo/train.h"
#include "session/session.h"
#include "task/images.h"

typedef struct mz_vae {
    mezzo_device *device; // borrowed
    mz_session session;   // of parameters alone
    mz_model model;
    char path[4096]; // the checkpoint
    int64_t step;    // of its training
    uint32_t crc;    // CRC32C of its weights
} mz_vae;

// RUN/latents.json: what a run that learns latents needs to know again.
typedef struct mz_latents {
    bool given;
    uint32_t vae; // CRC32C of the weights
    int64_t step; // of their training; -1: not known
    double scale;
} mz_latents;
mezzo_status mz_latents_save(const char *folder, const mz_latents *latents); // where given
mezzo_status mz_latents_load(const char *folder, mz_latents *latents);       // not given where it is not there

// The checkpoint of a run folder that `kept` names, where it is still there, else the newest; its moving average where
// it has one. INVALID: it is no kl_vae.
mezzo_status mz_vae_open(mezzo_device *device, const char *run, const mz_latents *kept, mz_vae *out);
void mz_vae_close(mz_vae *vae); // a zeroed one is fine
// In FP32, its products in TF32 where the device has that faster.
mezzo_status mz_vae_program(const mz_vae *vae, mz_model_part part, int64_t batch, mezzo_program **out);
// The latents of the task's pictures, from `data`/latents-CRC.safetensors, or made and written there. Where
// `latents->given`, `vae` must be the one that it names (else INVALID); otherwise it is filled.
mezzo_status mz_latents_give(const mz_vae *vae, const char *data, mz_task *task, mz_latents *latents);

#endif
