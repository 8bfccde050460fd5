#include "nn/diffusion.h"

#include <math.h>

#include "base/base.h"

// Training never draws times below this, at which the noise is too small to predict.
static const double LEAST_TIME = 1e-4;
// Sampling by ε and v begins here: at time 1 x_t contains nothing of x_0, and x_0 = (x - b·ε)/a would divide by 0.
static const double FIRST_TIME = 0.995;

int mz_diffusion_heads(int objective) {
    return objective == MZ_OBJECTIVE_DECOUPLED ? 2 : 1;
}

// Computes a and b at time t.
static void mix_at(int objective, double t, double *a, double *b) {
    const double offset = 0.008, quarter = 1.5707963267948966;
    switch (objective) {
    case MZ_OBJECTIVE_DECOUPLED:
        *a = 1 - t;
        *b = sqrt(t);
        return;
    case MZ_OBJECTIVE_REGRESSION:
        *a = *b = 0;
        return;
    default:
        *a = cos((t + offset) / (1 + offset) * quarter) / cos(offset / (1 + offset) * quarter);
        *a = *a > 0 ? *a : 0;
        *b = sqrt(1 - *a * *a);
        return;
    }
}

void mz_diffusion_row(int objective, double t, double weight, float row[4]) {
    double a, b;
    const bool decoupled = objective == MZ_OBJECTIVE_DECOUPLED;
    mix_at(objective, t, &a, &b);
    row[0] = (float)a;
    row[1] = (float)b;
    row[2] = (float)(weight * (decoupled ? 2 * exp(1 - t) : 1));
    row[3] = (float)(decoupled ? weight * exp(sqrt(t)) : 0);
}

double mz_diffusion_time(int objective, const uint32_t words[4]) {
    const double u = ((double)words[0] + 0.5) * 0x1p-32;
    return objective == MZ_OBJECTIVE_REGRESSION ? 1 : LEAST_TIME + (1 - LEAST_TIME) * u;
}

void mz_diffusion_noise(const int32_t key[2], int64_t n, float *out) {
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t words[4];
        float numbers[4];
        mz_philox(mz_noise_key(key[0], key[1]), (uint64_t)i >> 2, words);
        mz_normal4(words, numbers);
        memcpy(out + i, numbers, (size_t)(n - i < 4 ? n - i : 4) * sizeof *out);
    }
}

// --- samplers ------------------------------------------------------------------------------------------------------
mezzo_status mz_sampler_begin(mz_diffusion_sampler *sampler, mz_sampler_kind kind, int objective, int steps, double eta,
                              bool clip) {
    const bool own = objective == MZ_OBJECTIVE_DECOUPLED || objective == MZ_OBJECTIVE_REGRESSION;
    MZ_REQUIRE(sampler);
    if (objective < MZ_OBJECTIVE_NOISE || objective > MZ_OBJECTIVE_REGRESSION)
        return mz_fail(MEZZO_ERR_INVALID, "there is no objective %d", objective);
    if (own != (kind == MZ_SAMPLER_OWN))
        return mz_fail(MEZZO_ERR_INVALID, own ? "this model has its own sampler: DDPM and DDIM do not apply"
                                              : "this model is sampled by DDPM or DDIM");
    if (steps < 1 || steps > 1000000)
        return mz_fail(MEZZO_ERR_INVALID, "a sampler of %d steps: 1 to 1000000", steps);
    if (!(eta >= 0 && eta <= 1))
        return mz_fail(MEZZO_ERR_INVALID, "a sampler with eta %g: 0 to 1", eta);
    *sampler = (mz_diffusion_sampler){.kind = kind,
                                      .objective = objective,
                                      .steps = objective == MZ_OBJECTIVE_REGRESSION ? 1 : steps,
                                      .eta = kind == MZ_SAMPLER_DDPM ? 1 : eta,
                                      .clip = clip};
    return MEZZO_OK;
}

double mz_sampler_time(const mz_diffusion_sampler *sampler, int step) {
    const double left = (double)(sampler->steps - step) / sampler->steps;
    return sampler->kind == MZ_SAMPLER_OWN ? left : FIRST_TIME * left;
}

bool mz_sampler_draws(const mz_diffusion_sampler *sampler, int step) {
    return step + 1 < sampler->steps && (sampler->kind == MZ_SAMPLER_OWN || sampler->eta > 0);
}

static double clipped(const mz_diffusion_sampler *sampler, double x) {
    return !sampler->clip ? x : x < -1 ? -1 : x > 1 ? 1 : x;
}

// Steps from t to t - s: x - C·s - s/√t·ε + √(s·(t - s)/t)·noise, with C = -x_0 and x_0 = x - C·t - √t·ε.
static double decoupled_step(const mz_diffusion_sampler *sampler, double t, double s, double x, double c, double noise,
                             double fresh) {
    c = -clipped(sampler, x - c * t - sqrt(t) * noise);
    return s < t ? x - c * s - s / sqrt(t) * noise + sqrt(s * (t - s) / t) * fresh : -c;
}

static double ddim_step(const mz_diffusion_sampler *sampler, double t, double next, double x, double y, double fresh) {
    double a, b, a_next, b_next;
    mix_at(sampler->objective, t, &a, &b);
    mix_at(sampler->objective, next, &a_next, &b_next);
    const bool velocity = sampler->objective == MZ_OBJECTIVE_VELOCITY;
    const double x0 = clipped(sampler, velocity ? a * x - b * y : (x - b * y) / a);
    if (next <= 0)
        return x0;
    const double noise = (x - a * x0) / b;
    const double sigma = sampler->eta * b_next / b * sqrt(1 - a * a / (a_next * a_next));
    return a_next * x0 + sqrt(b_next * b_next - sigma * sigma) * noise + sigma * fresh;
}

void mz_sampler_step(const mz_diffusion_sampler *sampler, int step, float *x, const float *prediction,
                     const float *noise, int64_t pixels, int64_t channels) {
    const double t = mz_sampler_time(sampler, step),
                 next = step + 1 < sampler->steps ? mz_sampler_time(sampler, step + 1) : 0;
    const int64_t heads = mz_diffusion_heads(sampler->objective);
    const bool draws = noise != NULL && mz_sampler_draws(sampler, step);
    for (int64_t i = 0; i < pixels * channels; i++) {
        const float *y = prediction + i / channels * heads * channels + i % channels;
        const double fresh = draws ? (double)noise[i] : 0, at = (double)x[i];
        if (sampler->objective == MZ_OBJECTIVE_REGRESSION)
            x[i] = (float)clipped(sampler, (double)y[0]);
        else if (sampler->objective == MZ_OBJECTIVE_DECOUPLED)
            x[i] = (float)decoupled_step(sampler, t, t - next, at, (double)y[0], (double)y[channels], fresh);
        else
            x[i] = (float)ddim_step(sampler, t, next, at, (double)y[0], fresh);
    }
}
