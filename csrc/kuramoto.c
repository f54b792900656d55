/* The faces of the integrators and of the order parameter: checks, and the layout of a run's scratch. */
#include <stdlib.h>
#include <string.h>

#include "isa/kernels.h"

#define VECTORS 8 /* omega, theta, next, stage, sine, cosine, pull, push */

static int64_t stages_of(int64_t method) { return method == SPO_EULER ? 1 : method == SPO_RK4 ? 4 : 7; }

static int64_t entries_of(const spo_network *network, const spo_sparse *sparse) {
    return sparse ? sparse->start[network->n] : network->n * network->n;
}

int64_t spo_core_run_scratch(const spo_network *network, const spo_sparse *sparse, const spo_moments *moments,
                             int64_t method) {
    const int64_t n = network->n, padded = spo_padded(n);
    int64_t doubles = SPO_PAD + SPO_PAD + (VECTORS + stages_of(method)) * padded;
    if (sparse) doubles += 2 * padded;
    if (network->alpha) doubles += (network->modulation ? 4 : 2) * spo_padded(entries_of(network, sparse));
    if (network->modulation)
        doubles += sparse ? spo_core_sparse_scratch(n, network->modulation)
                          : spo_core_modulation_scratch(n, network->modulation, moments) +
                                (moments ? spo_padded(spo_core_absent_words(n)) : 0);
    return doubles;
}

/* Cuts scratch into the arrays of a run. */
static spo_run_scratch run_layout(const spo_network *network, const spo_sparse *sparse,
                                  const spo_moments *moments, int64_t method, double *scratch) {
    const int64_t padded = spo_padded(network->n);
    spo_run_scratch w = {0};
    double *free_from = spo_aligned(scratch);
    w.sparse = sparse;
    w.entries = entries_of(network, sparse);
    w.traits = (int32_t *)free_from;
    free_from += SPO_PAD;
    double **vectors[VECTORS] = {&w.omega, &w.theta, &w.next, &w.stage, &w.sine, &w.cosine, &w.pull, &w.push};
    for (int k = 0; k < VECTORS; ++k, free_from += padded) *vectors[k] = free_from;
    w.slopes = free_from;
    free_from += stages_of(method) * padded;
    if (sparse) {
        w.pairs = free_from;
        free_from += 2 * padded;
    }
    if (network->alpha) {
        double **lags[4] = {&w.lag_cosine, &w.lag_sine, &w.alpha_cosine, &w.alpha_sine};
        for (int k = 0; k < (network->modulation ? 4 : 2); ++k, free_from += spo_padded(w.entries))
            *lags[k] = free_from;
    }
    if (moments && network->modulation && !sparse) {
        w.moments = moments;
        w.absent = (uint64_t *)free_from;
        free_from += spo_padded(spo_core_absent_words(network->n));
    }
    w.modulation = free_from;
    return w;
}

int32_t spo_core_prepare(const spo_network *network, const spo_sparse *sparse, const spo_moments *moments,
                         int64_t method, double *scratch) {
    const int64_t n = network->n, padded = spo_padded(n);
    const spo_run_scratch w = run_layout(network, sparse, moments, method, scratch);
    memset(w.omega, 0, (size_t)((VECTORS + stages_of(method)) * padded) * sizeof(double));
    if (n > 0) memcpy(w.omega, network->omega, (size_t)n * sizeof(double));
    if (network->alpha) {
        double *cosine = network->modulation ? w.alpha_cosine : w.lag_cosine;
        double *sine = network->modulation ? w.alpha_sine : w.lag_sine;
        spo_core_sincos(w.entries, network->alpha, sine, cosine);
        if (!network->modulation)
            for (int64_t e = 0; e < w.entries; ++e) {
                cosine[e] *= network->knm[e];
                sine[e] *= network->knm[e];
            }
    }
    if (!network->modulation || sparse) return SPO_OK;
    const int32_t status = spo_core_scan(n, network->knm, w.traits);
    if (status == SPO_OK && moments && !(*w.traits & SPO_ALL_EDGES))
        spo_core_find_absent(n, network->knm, w.absent);
    return status;
}

static const spo_record nothing = {0, NULL, NULL, NULL, NULL, NULL};

int32_t spo_core_run(const spo_network *network, const spo_sparse *sparse, const spo_integrator *integrator,
                     const spo_moments *moments, spo_state *state, int64_t n_steps, const spo_record *record,
                     double *scratch) {
    const spo_run_scratch w = run_layout(network, sparse, moments, integrator->method, scratch);
    return spo_kernels_in_use()->run(network, integrator, state, n_steps, record ? record : &nothing, &w);
}

int64_t spo_core_members_room(int64_t n) { return SPO_PAD + (6 + stages_of(SPO_RK4)) * n * SPO_PAD; }

int32_t spo_core_run_members(const spo_network *network, const spo_integrator *integrator,
                             spo_ensemble *ensemble, int64_t n_steps, const spo_record *record,
                             double *scratch, double *room) {
    const spo_run_scratch w = run_layout(network, NULL, NULL, integrator->method, scratch);
    const spo_record *kept = record ? record : &nothing;
    spo_kernels_in_use()->run_members(network, integrator, ensemble, n_steps, kept, &w, room);
    for (int64_t step = ensemble->step; step <= ensemble->step + n_steps; ++step) {
        if (kept->t_observe) kept->t_observe[step] = (double)step * integrator->dt;
        if (kept->t && kept->every > 0 && step > ensemble->step && step % kept->every == 0)
            kept->t[step / kept->every] = (double)step * integrator->dt;
    }
    ensemble->step += n_steps;
    return SPO_OK;
}

static int acceptable(const spo_network *network, const spo_integrator *integrator, const spo_state *state,
                      int64_t n_steps) {
    if (!network || !integrator || !state || n_steps < 0 || network->n < 0 || network->n > ((int64_t)1 << 28))
        return 0;
    if (integrator->method < SPO_EULER || integrator->method > SPO_RK45) return 0;
    if (!(integrator->dt > 0) || !isfinite(integrator->dt) || !(integrator->atol >= 0) ||
        !(integrator->rtol >= 0))
        return 0;
    if (!isfinite(network->zeta) || !isfinite(network->psi) || !isfinite(network->uniform_alpha)) return 0;
    if (network->n > 0 && (!network->omega || !network->knm || !state->theta)) return 0;
    if (!network->modulation) return 1;
    if (network->n > 0 && !state->modulated) return 0;
    return network->modulate_every >= 1 && spo_modulation_acceptable(network->n, network->modulation);
}

int32_t spo_kuramoto_run(const spo_network *network, const spo_integrator *integrator, spo_state *state,
                         int64_t n_steps, const spo_record *record) {
    if (!acceptable(network, integrator, state, n_steps)) return SPO_INVALID_ARGUMENT;
    double *scratch =
        malloc((size_t)spo_core_run_scratch(network, NULL, NULL, integrator->method) * sizeof(double));
    if (!scratch) return SPO_OUT_OF_MEMORY;
    int32_t status = spo_core_prepare(network, NULL, NULL, integrator->method, scratch);
    if (status == SPO_OK)
        status = spo_core_run(network, NULL, integrator, NULL, state, n_steps, record, scratch);
    free(scratch);
    return status;
}

int32_t spo_core_order_parameters(int64_t rows, int64_t n, const double *theta, double *r, double *psi) {
    for (int64_t row = 0; row < rows; ++row) {
        double sine = 0, cosine = 0;
        spo_kernels_in_use()->order(n, theta + row * n, &sine, &cosine);
        r[row] = spo_radius(n, sine, cosine);
        psi[row] = spo_mean_phase(n, sine, cosine);
    }
    return SPO_OK;
}

int32_t spo_order_parameter(int64_t n, const double *theta, double *r, double *psi) {
    if (n < 0 || (n > 0 && !theta) || !r || !psi) return SPO_INVALID_ARGUMENT;
    for (int64_t i = 0; i < n; ++i)
        if (!isfinite(theta[i])) return SPO_NONFINITE_PHASE;
    return spo_core_order_parameters(1, n, theta, r, psi);
}
