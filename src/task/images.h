// Predicts pictures with a model of images, for `mezzo sample --out`.
#ifndef MZ_TASK_IMAGES_H
#define MZ_TASK_IMAGES_H

#include "task/task.h"

// Holds what of an opened task makes latents: its pictures, in the order of the data.
typedef struct mz_image_facts {
    int64_t n, size, channels;
    uint32_t crc; // CRC32C of all of them
} mz_image_facts;
mz_image_facts mz_images_describe(const mz_task *task);
void mz_images_get(const mz_task *task, int64_t i, float *out); // [size, size, channels], in [-1, 1]
// From now on batches have, times `scale`, these instead of the pictures; [n, side, side, channels], taken over.
// `scale` 0: that which gives those of the pictures trained on a mean square of 1. Before mz_task_set_model.
mezzo_status mz_images_take_latents(mz_task *task, float *latents, int64_t side, int64_t channels, double *scale);

typedef struct mz_predict {
    const char *out;   // the folder to write into, made if missing; NULL: no pictures are written
    const char *sheet; // the file of the sheet; NULL: OUT/sheet.png, or none
    int64_t count;     // pictures; 0: every one that is not trained on
    int64_t rows;      // of the sheet
    int steps;         // of the sampler
    double eta;        // DDIM: how much new noise
    uint64_t seed;
    mezzo_program *decoder; // latents: "latent" [batch, …] to "prediction"; NULL: the model predicts pictures
} mz_predict;

typedef struct mz_predicted {
    int64_t pictures;
    double nmse, rmse, ssim, psnr, seconds;
} mz_predicted;

// Predicts pictures that are not trained on (where all are: those), a batch of `program` at a time, which has the
// output "prediction"; of kl_vae, what is left of a picture after its latent. Writes OUT/NAME.png of each and
// the sheet. Stops at *stop with INTERRUPTED.
mezzo_status mz_images_predict(const mz_task *task, mezzo_program *program, int64_t batch, const mz_predict *request,
                               const volatile sig_atomic_t *stop, mz_predicted *out);

#endif
