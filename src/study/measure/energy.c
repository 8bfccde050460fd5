// Measures the energy of a step in joules, by the device's own counter, or the processor's (RAPL); NaN where neither
// can be read.
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "study/measure/measure.h"

#define MOST_STEPS 10000

typedef struct reading {
    double joules, range, watts;
} reading;

static mezzo_status read_sensors(mezzo_device *device, bool host, reading *out) {
    mezzo_telemetry t;
    MEZZO_TRY(mezzo_device_telemetry(device, &t));
    *out = (reading){.joules = t.joules, .watts = t.watts};
    if (isnan(out->joules) && host)
        out->joules = mz_host_joules(&out->range);
    return MEZZO_OK;
}

typedef struct gauge {
    mz_rig *rig;
    bool host; // the counter is the processor's
} gauge;

// --- counting ------------------------------------------------------------------------------------------------------
// A counter changes in jumps: NVML's about every tenth of a second, RAPL's every millisecond. Read at any two moments
// it is wrong by up to a jump at either end, which is most of a short window. So power is measured from one jump to
// another, while steps follow each other without a gap, and a step's energy is that power times its duration.
#define AHEAD_SECONDS 0.02 // duration of the queued steps, so that the device never waits for the host
#define JUMP_SECONDS  0.5  // a counter that does not change for this long does not work

mezzo_status mz_meter_energy(const mz_meter *m, double seconds, double step_seconds, double range, mz_energy *out) {
    double last, first = (double)NAN, from = 0, asked = 0;
    *out = (mz_energy){(double)NAN, (double)NAN};
    MEZZO_TRY(m->read(m->user, &last));
    double start = m->clock(m->user), now = start, jumped = start;
    const int most =
        1 + (int)(AHEAD_SECONDS / fmax(step_seconds, 1e-6)); // without a queue, this is the time between two readings
    while (now - jumped < JUMP_SECONDS + step_seconds) {
        for (int i = 0; i < most && asked - (now - start) < AHEAD_SECONDS; i++) {
            MEZZO_TRY(m->step(m->user));
            asked += step_seconds;
            now = m->clock(m->user);
        }
        double joules;
        MEZZO_TRY(m->read(m->user, &joules));
        now = m->clock(m->user);
        if (joules == last)
            continue;
        last = joules;
        jumped = now;
        if (isnan(first)) {
            first = joules;
            from = now;
        } else if (now - from >= seconds) {
            joules -= first;
            if (joules < 0) // the counter has started again
                joules += range;
            if (joules > 0)
                *out = (mz_energy){joules / (now - from) * step_seconds, joules / (now - from)};
            return MEZZO_OK;
        }
    }
    return MEZZO_OK;
}

static mezzo_status meter_read(void *user, double *joules) {
    gauge *g = user;
    reading r;
    MEZZO_TRY(read_sensors(mz_rig_device(g->rig), g->host, &r));
    *joules = r.joules;
    return MEZZO_OK;
}

static mezzo_status meter_step(void *user) {
    return mz_rig_step(((gauge *)user)->rig);
}

static double meter_clock(void *user) {
    (void)user;
    return mz_seconds();
}

mezzo_status mz_rig_energy(mz_rig *rig, double seconds, double step_seconds, mz_energy *out) {
    mezzo_device *device = mz_rig_device(rig);
    reading now;
    *out = (mz_energy){(double)NAN, (double)NAN};
    gauge g = {rig, !device->backend->gpu};
    MEZZO_TRY(read_sensors(device, g.host, &now));
    if (!isnan(now.joules)) {
        const mz_meter m = {.read = meter_read, .step = meter_step, .clock = meter_clock, .user = &g};
        MEZZO_TRY(mz_meter_energy(&m, seconds, step_seconds, now.range, out));
        return mezzo_device_sync(device);
    }
    if (isnan(now.watts))
        return MEZZO_OK;
    // With a power sensor alone, the reading directly after the steps counts.
    MEZZO_TRY(mz_rig_run_steps(rig, (int64_t)fmin(fmax(1, ceil(seconds / step_seconds)), MOST_STEPS)));
    MEZZO_TRY(read_sensors(device, g.host, &now));
    *out = (mz_energy){now.watts * step_seconds, now.watts};
    return MEZZO_OK;
}
