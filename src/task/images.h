// Predicts pictures with a model of images, for `mezzo sample --out`.
#ifndef MZ_TASK_IMAGES_H
#define MZ_TASK_IMAGES_H

#include "task/task.h"

// Holds what is needed of an opened task to make latents: its pictures, in the order of the data.
typedef struct mz_image_facts {
    int64_t n, size, channels;
    uint32_t crc; // CRC32C of all pictures
} mz_image_facts;
mz_image_facts mz_images_describe(const mz_task *task);
void mz_images_get(const mz_task *task, int64_t i, float *out); // writes [size, size, channels], in [-1, 1]
// Makes batches have these latents times `scale` instead of the pictures; [n, side, side, channels], which the task
// takes over. `scale` 0: the one with which latents of the training pictures have a mean square of 1. Called before
// mz_task_set_model.
mezzo_status mz_images_take_latents(mz_task *task, float *latents, int64_t side, int64_t channels, double *scale);

typedef struct mz_predict {
    const char *out;   // the folder for pictures, made if missing; NULL: none are written
    const char *sheet; // the sheet's file; NULL: OUT/sheet.png, or none
    int64_t count;     // number of pictures; 0: all that are not trained on
    int64_t rows;      // of the sheet
    int steps;         // of the sampler
    double eta;        // DDIM's amount of new noise
    uint64_t seed;
    mezzo_program *decoder; // for latents: from "latent" [batch, …] to "prediction"; NULL: the model predicts pictures
} mz_predict;

typedef struct mz_predicted {
    int64_t pictures;
    double nmse, rmse, ssim, psnr, seconds;
} mz_predicted;

// Predicts pictures that are not trained on (where all are: those), a batch of `program` at a time, which has the
// output "prediction"; with kl_vae, the reconstruction of a picture from its latent. Writes OUT/NAME.png for each and
// the sheet. Stops at *stop with INTERRUPTED.
mezzo_status mz_images_predict(const mz_task *task, mezzo_program *program, int64_t batch, const mz_predict *request,
                               const volatile sig_atomic_t *stop, mz_predicted *out);

#endif
