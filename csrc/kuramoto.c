/* The faces of the integrators and of the order parameter: checks, and the layout of a run's scratch. */
#include <stdlib.h>
#include <string.h>

#include "isa/kernels.h"

#define VECTORS 8 /* omega, theta, next, stage, sine, cosine, pull, push */

static int64_t stages_of(int64_t method) { return method == SPO_EULER ? 1 : method == SPO_RK4 ? 4 : 7; }

static int64_t entries_of(const spo_network *network, const spo_sparse *sparse) {
    return sparse ? sparse->start[network->n] : network->n * network->n;
}

/* A matrix as isa/fused.h packs it, for any instruction set: whole, or from the diagonal on. */
static int64_t packed_square(int64_t n) { return spo_padded(n) * spo_padded(n); }

static int64_t packed_half(int64_t n) {
    const int64_t blocks = spo_padded(n) / SPO_PAD;
    return SPO_PAD * SPO_PAD * blocks * (blocks + 1) / 2;
}

/* Which walk serves best, measured at N = 8 ... 2048 with AVX2 on a processor whose second cache holds 2 MB
 * (microseconds; K' written takes a product, kept a first walk, and then each evaluation a sum):
 *
 *     N                                 16     64    256    512   1024    2048
 *     no lag, or one for all
 *       K' written: product            0.1    1.2     28    270   1200   12000
 *         and each sum                 0.03   0.4    7.2     43    320    1300
 *       kept: first walk               0.2    1.8     23     92    420    1900
 *         and each other sum           0.06   0.45   6.6     26    150     780
 *       fused: each walk               0.2    1.6     21     82    310    1450
 *     a lag a pair
 *       kept: first walk               0.4    3.9     80    370   1460   11000
 *         and each other sum           0.05   0.9     14    160    650    6300
 *       fused: each walk               0.4    2.8     45    180    910    7400
 *
 * So K' that serves once is never made. K' that serves more often is kept, but written below SMALL, where
 * packing has more to fill up than to save, and never made where it is two matrices that leave the cache,
 * unless it serves very often. With AVX-512 the same limits hold. K itself is worth packing where it does not
 * fit the first cache (SPO_HALF_FROM): microseconds of an Euler step without modulation,
 *
 *     N                                 64     96    128    192    256    320    400    512
 *     AVX-512: K whole                0.48   0.95    2.0    4.2    7.6    8.8     19     48
 *       packed                        0.48   0.96    1.5    2.9    5.1    7.8     12     20
 *     AVX2: K whole                   0.73    1.6    2.3    4.8     10     13     24     47
 *       packed                        0.68    1.3    2.0    4.1    7.5     11     17     26
 *
 * while packing costs what it saves in some ten steps. */
#define SMALL 64             /* oscillators */
#define LAGGED_LIMIT 400     /* oscillators */
#define LAGGED_EVALUATIONS 8 /* from which two matrices are kept at any size */

/* Evaluations of the drift with one K', at least. */
static int64_t evaluations(const spo_network *network, int64_t method) {
    return stages_of(method) * network->modulate_every;
}

/* The walk to prepare for, as far as it can be told without a look at K. */
static int32_t wanted_walk(const spo_network *network, const spo_sparse *sparse, int64_t method,
                           int32_t wish) {
    const spo_modulation *m = network->modulation;
    const int64_t n = network->n;
    if (wish == SPO_WALK_WHOLE || sparse) return SPO_WALK_WHOLE;
    if (!m) {
        if (network->alpha || wish == SPO_WALK_FUSED) return SPO_WALK_WHOLE;
        return wish == SPO_WALK_KEPT || n >= SPO_HALF_FROM ? SPO_WALK_KEPT : SPO_WALK_WHOLE;
    }
    const int64_t count = evaluations(network, method);
    if (m->lambda == 0) return SPO_WALK_WHOLE;
    if (m->block_size >= 0 && m->block_size < n - 1) return SPO_WALK_WHOLE;
    if (wish != SPO_WALK_AUTO) return wish;
    if (count == 1 || (network->alpha && n >= LAGGED_LIMIT && count < LAGGED_EVALUATIONS))
        return SPO_WALK_FUSED;
    return n < SMALL && !network->alpha ? SPO_WALK_WHOLE : SPO_WALK_KEPT;
}

/* Doubles of one of the matrices that lags take. */
static int64_t lag_room(const spo_network *network, const spo_sparse *sparse, int32_t wanted) {
    return wanted == SPO_WALK_WHOLE ? spo_padded(entries_of(network, sparse)) : packed_square(network->n);
}

/* Packed matrices beside those of the lags: K, and K' where it is kept. */
static int64_t packed_count(const spo_network *network, int32_t wanted) {
    if (wanted == SPO_WALK_WHOLE || network->alpha) return 0;
    return network->modulation && wanted == SPO_WALK_KEPT ? 2 : 1;
}

/* Doubles of the sums that a walk over pairs makes apart. */
static int64_t part_sums_room(int64_t n, int32_t wanted) {
    return wanted == SPO_WALK_WHOLE ? 0 : (spo_pair_parts(n) - 1) * 2 * spo_padded(n);
}

int64_t spo_core_run_scratch(const spo_network *network, const spo_sparse *sparse, const spo_moments *moments,
                             int64_t method, int32_t wish, int32_t workers) {
    const int64_t n = network->n, padded = spo_padded(n);
    const int32_t wanted = wanted_walk(network, sparse, method, wish);
    int64_t doubles = SPO_PAD + SPO_PAD + (VECTORS + stages_of(method)) * padded;
    if (sparse) doubles += 2 * padded;
    if (network->alpha) doubles += (network->modulation ? 4 : 2) * lag_room(network, sparse, wanted);
    doubles += packed_count(network, wanted) * packed_half(n) + part_sums_room(n, wanted);
    if (network->modulation)
        doubles += sparse ? spo_core_sparse_scratch(n, network->modulation, workers)
                          : spo_core_modulation_scratch(n, network->modulation, moments, workers) +
                                (moments ? spo_padded(spo_core_absent_words(n)) : 0);
    return doubles;
}

static spo_prepared *prepared_in(double *scratch) { return (spo_prepared *)spo_aligned(scratch); }

/* Cuts scratch into the arrays of a run. */
static spo_run_scratch run_layout(const spo_network *network, const spo_sparse *sparse,
                                  const spo_moments *moments, int64_t method, double *scratch) {
    const int64_t padded = spo_padded(network->n);
    spo_run_scratch w = {0};
    double *free_from = spo_aligned(scratch);
    w.sparse = sparse;
    w.entries = entries_of(network, sparse);
    w.prepared = prepared_in(scratch);
    w.workers = w.prepared->workers;
    const int32_t wanted = w.prepared->wanted;
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
        const int64_t room = lag_room(network, sparse, wanted);
        double **lags[4] = {&w.lag_cosine, &w.lag_sine, &w.alpha_cosine, &w.alpha_sine};
        for (int k = 0; k < (network->modulation ? 4 : 2); ++k, free_from += room) *lags[k] = free_from;
        /* K cos alpha and K sin alpha stand in the first two until they are packed. */
        w.packed = w.alpha_cosine, w.packed_lag = w.alpha_sine;
        w.kept = w.lag_cosine, w.kept_lag = w.lag_sine;
    }
    double **packed[2] = {&w.packed, &w.kept};
    for (int k = 0; k < packed_count(network, wanted); ++k, free_from += packed_half(network->n))
        *packed[k] = free_from;
    w.part_sums = free_from;
    free_from += part_sums_room(network->n, wanted);
    if (moments && network->modulation && !sparse) {
        w.moments = moments;
        w.absent = (uint64_t *)free_from;
        free_from += spo_padded(spo_core_absent_words(network->n));
    }
    w.modulation = free_from;
    return w;
}

/* The matrices of the lags; products with K where it stays as it is. */
static void prepare_lags(const spo_network *network, const spo_run_scratch *w, int product) {
    double *cosine = product ? w->lag_cosine : w->alpha_cosine;
    double *sine = product ? w->lag_sine : w->alpha_sine;
    spo_core_sincos(w->entries, network->alpha, sine, cosine);
    if (!product) return;
    for (int64_t e = 0; e < w->entries; ++e) {
        cosine[e] *= network->knm[e];
        sine[e] *= network->knm[e];
    }
}

/* The walk that K allows: all but that of the whole matrix need K_ij == K_ji and K_ii == 0. */
static int32_t allowed_walk(const spo_network *network, int32_t wanted, int32_t traits) {
    const spo_kernels *kernels = spo_kernels_in_use();
    if (wanted == SPO_WALK_WHOLE) return wanted;
    if (network->modulation && !(traits & SPO_EXACTLY_SYMMETRIC)) return SPO_WALK_WHOLE;
    for (int64_t i = 0; i < network->n; ++i)
        if (network->knm[i * network->n + i] != 0.0) return SPO_WALK_WHOLE;
    return network->modulation || kernels->mirrored(network->n, network->knm) ? wanted : SPO_WALK_WHOLE;
}

int32_t spo_core_prepare(const spo_network *network, const spo_sparse *sparse, const spo_moments *moments,
                         int64_t method, int32_t wish, int32_t workers, double *scratch) {
    const spo_kernels *kernels = spo_kernels_in_use();
    const int64_t n = network->n, padded = spo_padded(n);
    spo_prepared *const prepared = prepared_in(scratch);
    prepared->traits = 0;
    prepared->unit = NULL;
    prepared->workers = spo_workers(workers, n);
    prepared->wanted = prepared->walk = wanted_walk(network, sparse, method, wish);
    const spo_run_scratch w = run_layout(network, sparse, moments, method, scratch);
    memset(w.omega, 0, (size_t)((VECTORS + stages_of(method)) * padded) * sizeof(double));
    if (n > 0) memcpy(w.omega, network->omega, (size_t)n * sizeof(double));
    if (network->modulation && !sparse) {
        const int32_t status = spo_core_scan(n, network->knm, workers, &prepared->traits);
        if (status != SPO_OK) return status;
        if (moments && !(prepared->traits & SPO_ALL_EDGES))
            spo_core_find_absent(n, network->knm, workers, w.absent);
    }
    prepared->walk = allowed_walk(network, prepared->wanted, prepared->traits);
    const int packing = prepared->walk != SPO_WALK_WHOLE;
    if (network->alpha) prepare_lags(network, &w, !network->modulation || packing);
    if (packing) {
        kernels->pack(n, network->alpha ? w.lag_cosine : network->knm, !network->alpha, w.packed);
        if (network->alpha) kernels->pack(n, w.lag_sine, 0, w.packed_lag);
    }
    return SPO_OK;
}

int32_t spo_core_walk(double *scratch) { return prepared_in(scratch)->walk; }

static const spo_record nothing = {0, NULL, NULL, NULL, NULL, NULL};

int32_t spo_core_run(const spo_network *network, const spo_sparse *sparse, const spo_integrator *integrator,
                     const spo_moments *moments, spo_state *state, int64_t n_steps, const spo_record *record,
                     double *scratch) {
    const spo_run_scratch w = run_layout(network, sparse, moments, integrator->method, scratch);
    return spo_kernels_in_use()->run(network, integrator, state, n_steps, record ? record : &nothing, &w);
}

int64_t spo_members_own(const spo_network *network) {
    const int64_t n = network->n, state = SPO_PAD + (6 + stages_of(SPO_RK4)) * n * SPO_PAD;
    return state + (network->modulation ? spo_members_modulation(n, network->modulation) : 0);
}

int64_t spo_core_members_room(const spo_network *network, int64_t members, int32_t workers) {
    const int64_t n = network->n;
    return (workers > 1 ? workers : 1) * spo_members_own(network) +
           (network->modulation ? spo_padded(members) * n * n : 0);
}

int32_t spo_core_run_members(const spo_network *network, const spo_integrator *integrator,
                             spo_ensemble *ensemble, int64_t n_steps, const spo_record *record,
                             int32_t workers, double *scratch, double *room) {
    const spo_run_scratch w = run_layout(network, NULL, NULL, integrator->method, scratch);
    const spo_record *kept = record ? record : &nothing;
    spo_kernels_in_use()->run_members(network, integrator, ensemble, n_steps, kept, workers > 1 ? workers : 1,
                                      &w, room);
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
        malloc((size_t)spo_core_run_scratch(network, NULL, NULL, integrator->method, SPO_WALK_WHOLE, 1) *
               sizeof(double));
    if (!scratch) return SPO_OUT_OF_MEMORY;
    int32_t status = spo_core_prepare(network, NULL, NULL, integrator->method, SPO_WALK_WHOLE, 1, scratch);
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
