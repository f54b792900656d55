/* The matrix that the attention rescales: K'_ij = K_ij (1 + lambda / 2 + u_i . u_j) with u = sqrt(lambda / 2) unit
 * outputs, a rank-d Gram matrix plus a constant times K.
 *
 * The factor is computed once for each pair, on square tiles of lanes above the diagonal, and mirrored through a
 * transposition in registers: the result is exactly symmetric, and K is read on one side only. Four tiles
 * below one another go together, so that the mirrored rows are written in runs of four vectors. */

/* Rows of tiles that go together, and columns of one pass. */
#define STRIP 4

/* The symmetric part of K at row i + r of a tile: K itself when it is exactly symmetric. */
INLINE vd mean_of(const int exact, vd a, vd mirror) { return exact ? a : 0.5 * a + 0.5 * mirror; }

/* One tile of rows i ... and columns j ... >= i of K', and its mirror. */
INLINE void product_tile(const int exact, const int64_t d_model, int64_t n, int64_t padded, const double *knm,
                         const double *u, double base, int64_t i, int64_t j, double *out) {
    vd factor[SPO_LANES], mirror[SPO_LANES];
    for (int r = 0; r < SPO_LANES; ++r) factor[r] = v_set(base);
    for (int64_t e = 0; e < d_model; ++e) {
        const double *line = u + e * padded;
        const vd column = v_once(v_load(line + j));
        for (int r = 0; r < SPO_LANES; ++r) factor[r] = v_fma(v_set(line[i + r]), column, factor[r]);
    }
    if (!exact) load_mirror(n, knm, i, j, mirror);
    for (int r = 0; r < SPO_LANES; ++r) {
        const int64_t at = (i + r) * n + j;
        factor[r] *= mean_of(exact, v_load(knm + at), mirror[r]);
        v_store(out + at, factor[r]);
    }
    v_transpose(factor);
    for (int r = 0; r < SPO_LANES; ++r) v_store(out + (j + r) * n + i, factor[r]);
}

/* One entry at a time: what no whole tile covers. The arithmetic is that of a lane. */
static void product_rest(int exact, int64_t d_model, int64_t n, int64_t padded, const double *knm,
                         const double *u, double base, int64_t i, int64_t low, int64_t high, double *out) {
    for (int64_t j = low; j < high; j += SPO_LANES) {
        const int64_t left = high - j < SPO_LANES ? high - j : SPO_LANES;
        vd factor = v_set(base), below = {0};
        for (int64_t e = 0; e < d_model; ++e)
            factor = v_fma(v_set(u[e * padded + i]), v_load_first(u + e * padded + j, left), factor);
        if (!exact)
            for (int64_t k = 0; k < left; ++k) below[k] = knm[(j + k) * n + i];
        factor *= mean_of(exact, v_load_first(knm + i * n + j, left), below);
        v_store_first(out + i * n + j, factor, left);
        for (int64_t k = 0; k < left; ++k) out[(j + k) * n + i] = factor[k];
    }
}

INLINE void product_all(const int exact, const int64_t d_model, int64_t n, int64_t padded, const double *knm,
                        const double *u, double base, double *out) {
    const int64_t whole = n - n % SPO_LANES;
    for (int64_t i0 = 0; i0 < whole; i0 += STRIP * SPO_LANES) {
        const int64_t end = i0 + STRIP * SPO_LANES < whole ? i0 + STRIP * SPO_LANES : whole;
        for (int64_t j = i0; j < whole; j += SPO_LANES)
            for (int64_t i = i0; i < end && i <= j; i += SPO_LANES)
                product_tile(exact, d_model, n, padded, knm, u, base, i, j, out);
    }
    for (int64_t i = whole; i < n; ++i) product_rest(exact, d_model, n, padded, knm, u, base, i, 0, i + 1, out);
}

/* Rows of a band: only pairs within reach are scaled, the others are K's symmetric part. */
static void product_band(int exact, int64_t d_model, int64_t n, int64_t padded, int64_t reach, const double *knm,
                         const double *u, double base, double *out) {
    const double *source = knm;
    if (exact)
        memcpy(out, knm, (size_t)(n * n) * sizeof(double));
    else
        symmetrise(n, knm, out), source = out;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = i > reach ? i - reach : 0, high = i + reach < n ? i + reach + 1 : n; j < high; j += SPO_LANES) {
            const int64_t left = high - j < SPO_LANES ? high - j : SPO_LANES;
            vd factor = v_set(base);
            for (int64_t e = 0; e < d_model; ++e)
                factor = v_fma(v_set(u[e * padded + i]), v_load_first(u + e * padded + j, left), factor);
            v_store_first(out + i * n + j, v_load_first(source + i * n + j, left) * factor, left);
        }
}

/* The whole matrix; exact tells that K equals its transpose. Spoils unit. */
static void scale(int64_t n, const double *knm, int exact, const spo_modulation *modulation, double *unit,
                  double *out) {
    const int64_t padded = spo_padded(n), d_model = modulation->d_model, reach = modulation->block_size;
    const double root = sqrt(0.5 * modulation->lambda), base = 1.0 + 0.5 * modulation->lambda;
    for (int64_t e = 0; e < d_model * padded; e += SPO_LANES) v_store(unit + e, root * v_load(unit + e));
    if (reach >= 0 && reach < n - 1)
        product_band(exact, d_model, n, padded, reach, knm, unit, base, out);
    else if (!exact)
        product_all(0, d_model, n, padded, knm, unit, base, out);
    else if (d_model == 8)
        product_all(1, 8, n, padded, knm, unit, base, out);
    else
        product_all(1, d_model, n, padded, knm, unit, base, out);
    for (int64_t i = 0; i < n; ++i) out[i * n + i] = 0.0;
}
