#include "train/rates.h"

#include <math.h>

#include "backend/backend.h"
#include "runtime/program.h"

// Returns the operations that a node needs. Attention's backward runs five products, and four are necessary: one
// computes scores again.
static double needed(const mezzo_graph *g, const mz_node *n) {
    double flops = n->phase == MZ_RECOMPUTE ? 0 : mz_node_flops(g, n);
    return n->op == MZ_OP_attention_bwd ? flops * 4 / 5 : flops;
}

// Returns whether the node is attention whose queries see all earlier keys of their document and their own.
static bool sees_documents(const mz_node *n) {
    return (n->op == MZ_OP_attention || n->op == MZ_OP_attention_bwd) && n->attrs.causal && n->attrs.window == 0;
}

double mz_model_flops(const mezzo_program *program, double *attention) {
    const mezzo_graph *g = program->c.graph;
    double sum = 0;
    *attention = 0;
    for (size_t i = 0; i < g->n_nodes; i++) {
        sum += needed(g, &g->nodes[i]);
        *attention += sees_documents(&g->nodes[i]) ? needed(g, &g->nodes[i]) : 0;
    }
    return sum;
}

void mz_rates_count(mz_rates *rates, const mz_input *positions) {
    const int32_t *at = positions->data;
    const double rows = (double)positions->dim[0], length = (double)positions->dim[1];
    for (size_t i = 0; i < positions->bytes / sizeof *at; i++)
        rates->pairs += at[i] + 1;
    rates->pairs_of_rows += rows * length * (length + 1) / 2;
}

double mz_rates_flops(const mz_rates *rates) {
    const double share = rates->pairs_of_rows > 0 ? rates->pairs / rates->pairs_of_rows : 1;
    return rates->flops - rates->attention * (1 - share);
}

// Peaks from NVIDIA's data sheets, dense products, TFLOP/s; longer names come first.
static const struct {
    const char *name;
    double fp32, tf32, low;
} cards[] = {
    {"H100 PCIe", 51.2, 378, 756},   {"H100 NVL", 60, 417.5, 835.5}, {"H100", 66.9, 494.7, 989.4},
    {"H200", 66.9, 494.7, 989.4},    {"A100", 19.5, 156, 312},       {"A10G", 35, 35, 70},
    {"A10", 31.2, 62.5, 125},        {"L40S", 91.6, 183, 362},       {"L4", 30.3, 60, 121},
    {"RTX 4090", 82.6, 82.6, 165.2}, {"RTX 3090", 35.6, 35.6, 71},   {"T4", 8.1, 0, 65},
};

static bool names(const char *description, const char *card) { // whether the description has the card's name as whole
                                                               // words
    const char *at = strstr(description, card);
    size_t n = strlen(card);
    return at != NULL && (at == description || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0' || at[n] == '-');
}

static double data_sheet(const char *description, mezzo_dtype compute) {
    for (size_t i = 0; i < MZ_COUNT(cards); i++) {
        if (!names(description, cards[i].name))
            continue;
        if (compute == MEZZO_F32)
            return cards[i].fp32 * 1e12;
        return compute == MEZZO_TF32                           ? cards[i].tf32 * 1e12
               : compute == MEZZO_BF16 || compute == MEZZO_F16 ? cards[i].low * 1e12
                                                               : 0;
    }
    return 0;
}

mezzo_status mz_peak_flops(mezzo_device *device, const char *description, mezzo_dtype compute, double tflops,
                           double *out) {
    mz_peaks peaks;
    *out = tflops > 0 ? tflops * 1e12 : 0;
    if (tflops == 0)
        *out = data_sheet(description, compute);
    if (tflops >= 0)
        return MEZZO_OK;
    MEZZO_TRY(mz_device_peaks(device, &peaks));
    *out = peaks.flops[compute] > 0 ? peaks.flops[compute] : peaks.flops[MEZZO_F32];
    return MEZZO_OK;
}

// --- energy --------------------------------------------------------------------------------------------------------
static const double WINDOW = 1; // in seconds: cards update their counter in steps of up to a tenth

void mz_energy_begin(mz_energy_meter *m) {
    m->open = false;
}

void mz_energy_add(mz_energy_meter *m, double joules, double range, double seconds, double items) {
    if (isnan(joules))
        return;
    if (m->open && seconds - m->seconds >= WINDOW && items > m->items) {
        double spent = joules - m->joules;
        spent += spent < 0 ? range : 0; // the counter has started again
        m->sum_joules += spent;
        m->sum_items += items - m->items;
        m->each = spent / (items - m->items);
        m->open = false;
    }
    if (!m->open) {
        m->joules = joules;
        m->seconds = seconds;
        m->items = items;
        m->open = true;
    }
}

double mz_read_joules(mezzo_device *device, double *range) {
    mezzo_telemetry t;
    *range = 0;
    if (mezzo_device_telemetry(device, &t) != MEZZO_OK)
        return (double)NAN;
    return isnan(t.joules) && !device->backend->queue ? mz_host_joules(range) : t.joules;
}

bool mz_cores_lost(mz_core_meter *m, double seconds, double cpu) {
    const double window = 5, least = 0.5;
    if (m->lost)
        return false;
    m->seconds += seconds;
    m->cpu += cpu;
    if (m->seconds < window)
        return false;
    m->lost = m->cpu < least * m->seconds;
    if (!m->lost)
        m->seconds = m->cpu = 0;
    return m->lost;
}
