/* The faces of the modulation: checks, scratch, and the order of the passes. */
#include <stdlib.h>
#include <string.h>

#include "daido.h"
#include "isa/kernels.h"

/* Sizes whose squares and products could overflow are refused. */
#define LARGEST_SIZE ((int64_t)1 << 28)

int spo_modulation_acceptable(int64_t n, const spo_modulation *m) {
    if (n < 0 || n > LARGEST_SIZE || !m) return 0;
    if (m->n_heads < 1 || m->d_model < 2 || m->d_model > LARGEST_SIZE || m->d_model % 2 ||
        m->d_model % m->n_heads)
        return 0;
    if (m->block_size < -1 || !(m->lambda >= 0) || !isfinite(m->lambda)) return 0;
    if (!m->w_q || !m->w_k || !m->w_v || !m->w_o || !m->temperature) return 0;
    for (int64_t h = 0; h < m->n_heads; ++h)
        if (!(m->temperature[h] > 0) || !isfinite(m->temperature[h])) return 0;
    return 1;
}

int32_t spo_core_scan(int64_t n, const double *knm, int32_t workers, int32_t *traits) {
    return spo_kernels_in_use()->scan(n, knm, spo_workers(workers, n), traits);
}

int64_t spo_core_absent_words(int64_t n) { return spo_padded(n) / SPO_PAD * ((n + 63) / 64); }

int64_t spo_core_find_absent(int64_t n, const double *knm, int32_t workers, uint64_t *absent) {
    return spo_kernels_in_use()->find_absent(n, knm, spo_workers(workers, n), absent);
}

int64_t spo_core_harmonic_scratch(int64_t n, int64_t count) { return SPO_PAD + spo_harmonic_room(n, count); }

int32_t spo_core_harmonic_sums(int64_t n, int64_t count, const double *theta, double *scratch, double *re,
                               double *im) {
    if (count % 8) return SPO_INVALID_ARGUMENT;
    return spo_kernels_in_use()->harmonic_sums(n, count, theta, spo_aligned(scratch), re, im)
               ? SPO_NONFINITE_PHASE
               : SPO_OK;
}

int64_t spo_core_modulation_scratch(int64_t n, const spo_modulation *modulation, const spo_moments *moments,
                                    int32_t workers) {
    const int64_t d_model = modulation->d_model, padded = spo_padded(n);
    workers = spo_workers(workers, n);
    /* harmonics (later unit outputs), queries, keys, values; the phases, where K is transposed into out */
    const int64_t direct = SPO_PAD + 4 * d_model * padded + workers * spo_attention_own(modulation) + padded;
    return direct + (moments ? d_model * padded + spo_moments_room(n, moments, workers) : 0);
}

int32_t spo_unit_outputs(int64_t n, const double *knm, int32_t traits, const double *theta,
                         const spo_modulation *m, const spo_attention_path *path, int32_t workers,
                         double *scratch, double **unit) {
    const spo_kernels *kernels = spo_kernels_in_use();
    const int banded = m->block_size >= 0 && m->block_size < n - 1;
    if (path && path->moments && !banded && n > 1 && traits & SPO_SYMMETRIC_PATTERN)
        return kernels->units_moments(n, knm, theta, m, path->moments,
                                      traits & SPO_ALL_EDGES ? NULL : path->absent, path->redone, workers,
                                      scratch, unit);
    return kernels->units(n, knm, traits, theta, m, workers, scratch, unit);
}

int32_t spo_core_modulate(int64_t n, const double *knm, int32_t traits, const double *theta,
                          const spo_modulation *modulation, const spo_attention_path *path, int32_t workers,
                          double *scratch, double *out) {
    const spo_kernels *kernels = spo_kernels_in_use();
    if (n == 0) return SPO_OK;
    workers = spo_workers(workers, n);
    const double *seen = knm;
    if (!(traits & SPO_SYMMETRIC_PATTERN)) {
        /* The kernels read the mask by columns, as rows of the transpose, for which out is the room; theta,
         * which may lie in it, is taken and judged before. */
        double *phases = scratch;
        scratch += spo_padded(n);
        memcpy(phases, theta, (size_t)n * sizeof(double));
        theta = phases;
        for (int64_t i = 0; i < n; ++i)
            if (!isfinite(theta[i])) return SPO_NONFINITE_PHASE;
        kernels->transpose(n, knm, out);
        seen = out;
    }
    double *unit;
    const int32_t status =
        spo_unit_outputs(n, seen, traits, theta, modulation, path, workers, scratch, &unit);
    if (status != SPO_OK) return status;
    if (modulation->lambda == 0)
        memcpy(out, knm, (size_t)(n * n) * sizeof(double));
    else
        kernels->scale(n, knm, (traits & SPO_EXACTLY_SYMMETRIC) != 0, modulation, workers, unit, out);
    return SPO_OK;
}

int32_t spo_core_factors(int64_t n, const double *knm, int32_t traits, const double *theta,
                         const spo_modulation *modulation, const spo_attention_path *path, int32_t workers,
                         double *scratch, double *square, double *factors) {
    const spo_kernels *kernels = spo_kernels_in_use();
    const int64_t d_model = modulation->d_model, padded = spo_padded(n);
    if (n == 0) return SPO_OK;
    if (!(traits & SPO_SYMMETRIC_PATTERN)) {
        if (!square) return SPO_INVALID_ARGUMENT;
        kernels->transpose(n, knm, square);
        knm = square;
    }
    double *unit;
    const int32_t status =
        spo_unit_outputs(n, knm, traits, theta, modulation, path, spo_workers(workers, n), scratch, &unit);
    if (status != SPO_OK) return status;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t e = 0; e < d_model; ++e) factors[i * d_model + e] = unit[e * padded + i];
    return SPO_OK;
}

int64_t spo_core_sparse_scratch(int64_t n, const spo_modulation *modulation, int32_t workers) {
    /* harmonics (later unit outputs), projections by feature and by oscillator */
    return SPO_PAD + 7 * modulation->d_model * spo_padded(n) +
           spo_workers(workers, n) * (spo_attention_own(modulation) + spo_edges_own(n, modulation));
}

int32_t spo_core_modulate_sparse(int64_t n, const spo_sparse *sparse, const double *knm, const double *theta,
                                 const spo_modulation *modulation, int32_t workers, double *scratch,
                                 double *out) {
    const spo_kernels *kernels = spo_kernels_in_use();
    double *unit;
    workers = spo_workers(workers, n);
    const int32_t status = kernels->units_sparse(n, sparse, knm, theta, modulation, workers, scratch, &unit);
    if (status != SPO_OK) return status;
    if (modulation->lambda == 0)
        memcpy(out, knm, (size_t)sparse->start[n] * sizeof(double));
    else
        kernels->scale_sparse(n, sparse, modulation, workers, unit, out);
    return SPO_OK;
}

int32_t spo_core_factors_sparse(int64_t n, const spo_sparse *sparse, const double *knm, const double *theta,
                                const spo_modulation *modulation, int32_t workers, double *scratch,
                                double *factors) {
    double *unit;
    const int32_t status = spo_kernels_in_use()->units_sparse(n, sparse, knm, theta, modulation,
                                                              spo_workers(workers, n), scratch, &unit);
    if (status == SPO_OK) memcpy(factors, unit, (size_t)(n * modulation->d_model) * sizeof(double));
    return status;
}

int32_t spo_modulate(int64_t n, const double *knm, const double *theta, const spo_modulation *modulation,
                     double *out) {
    if (!spo_modulation_acceptable(n, modulation)) return SPO_INVALID_ARGUMENT;
    if (n == 0) return SPO_OK;
    if (!knm || !theta || !out) return SPO_INVALID_ARGUMENT;
    int32_t traits = 0, status = spo_core_scan(n, knm, 1, &traits);
    if (status != SPO_OK) return status;
    for (int64_t i = 0; i < n; ++i)
        if (!isfinite(theta[i])) return SPO_NONFINITE_PHASE;
    double *scratch = malloc((size_t)spo_core_modulation_scratch(n, modulation, NULL, 1) * sizeof(double));
    if (!scratch) return SPO_OUT_OF_MEMORY;
    status = spo_core_modulate(n, knm, traits, theta, modulation, NULL, 1, scratch, out);
    free(scratch);
    return status;
}
