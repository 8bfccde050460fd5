// Computes the mathematics of diffusion outside of the network: the mixture at a time, the meaning of a network's
// prediction, and the steps of samplers. All of it is host arithmetic; images are rows of FP32 numbers, [pixels,
// channels].
#ifndef MZ_DIFFUSION_H
#define MZ_DIFFUSION_H

#include <stdbool.h>
#include <stdint.h>

#include "mezzo/graph.h"

// Says what a network predicts, from x_t = a·x_0 + b·ε.
typedef enum mz_objective {
    MZ_OBJECTIVE_NOISE = 1,  // ε                              a² + b² = 1, Nichol and Dhariwal's cosine (2021)
    MZ_OBJECTIVE_VELOCITY,   // a·ε - b·x_0                    the same; Salimans and Ho (2022)
    MZ_OBJECTIVE_DECOUPLED,  // C = -x_0 and ε, side by side   a = 1 - t, b = √t: Huang et al., "Decoupled Diffusion
                             //                                Models" (2023), as RadioDiff has it
    MZ_OBJECTIVE_REGRESSION, // x_0 itself, without noise      a = b = 0
} mz_objective;

int mz_diffusion_heads(int objective); // images that a network predicts: 2 for DECOUPLED, else 1

// Computes a row of the input "schedule" at time t in (0, 1]: a, b and the weights of both heads' squared errors
// (DECOUPLED: 2·e^(1-t) and e^√t; else 1 and 0), times `weight`.
void mz_diffusion_row(int objective, double t, double weight, float row[4]);
// Returns a time in (0, 1], uniform, from Philox's words; 1 for REGRESSION.
double mz_diffusion_time(int objective, const uint32_t words[4]);
// Draws n normal numbers, equal to those of the graph's op `normal` for a row of this key.
void mz_diffusion_noise(const int32_t key[2], int64_t n, float *out);

typedef enum mz_sampler_kind {
    MZ_SAMPLER_DDPM, // NOISE, VELOCITY: Ho et al. (2020), the ancestral steps; DDIM with eta 1
    MZ_SAMPLER_DDIM, // NOISE, VELOCITY: Song et al. (2021)
    MZ_SAMPLER_OWN,  // DECOUPLED: its own steps, 1 to 5 are enough; REGRESSION: one
} mz_sampler_kind;

typedef struct mz_diffusion_sampler {
    mz_sampler_kind kind;
    int objective, steps;
    double eta; // DDIM: the share of new noise, 0 … 1
    bool clip;  // x_0 is clipped to [-1, 1]: for pixels, not for latents
} mz_diffusion_sampler;

// Prepares a sampler. INVALID where the sampler does not fit the objective, or steps or eta are out of range.
// REGRESSION always has one step.
mezzo_status mz_sampler_begin(mz_diffusion_sampler *sampler, mz_sampler_kind kind, int objective, int steps, double eta,
                              bool clip);
double mz_sampler_time(const mz_diffusion_sampler *sampler, int step); // the time of x before step 0, 1, … steps - 1
bool mz_sampler_draws(const mz_diffusion_sampler *sampler, int step);  // whether this step reads noise
// Takes x from x_t to its value at the next step's time; after the last step it is x_0. x and noise [pixels, channels],
// prediction [pixels, heads·channels]. `noise`: normal numbers; may be NULL where the step draws none.
void mz_sampler_step(const mz_diffusion_sampler *sampler, int step, float *x, const float *prediction,
                     const float *noise, int64_t pixels, int64_t channels);

#endif
