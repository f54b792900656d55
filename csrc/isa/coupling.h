/* Passes over a coupling matrix: what it is (scan), its symmetric part, its transpose. All walk pairs of square tiles, (I, J) and
 * (J, I), so that both are read along rows; a tile is one square of lanes. */

/* -1 in every lane but one: row l, from offdiagonal + SPO_LANES - l, is 0 in lane l. */
static const int64_t offdiagonal[2 * SPO_LANES] = {
#if SPO_LANES == 8
    -1, -1, -1, -1, -1, -1, -1, -1, 0, -1, -1, -1, -1, -1, -1, -1,
#elif SPO_LANES == 4
    -1, -1, -1, -1, 0, -1, -1, -1,
#else
    -1, -1, 0, -1,
#endif
};

INLINE vi v_but_lane(int64_t lane) {
    vi mask;
    memcpy(&mask, offdiagonal + SPO_LANES - lane, sizeof mask);
    return mask;
}

/* Entries K_ij and K_ji count as equal when they differ by no more than this, absolute and relative: CONTRACT of symmetry. */
#define SYMMETRY_TOLERANCE 1e-12

/* Which of the three promises a refused matrix breaks; in their order, for one number is reported. */
static __attribute__((noinline)) int32_t coupling_fault(int64_t n, const double *knm) {
    for (int64_t e = 0; e < n * n; ++e)
        if (!isfinite(knm[e])) return SPO_NONFINITE_COUPLING;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < i; ++j) {
            const double a = knm[i * n + j], b = knm[j * n + i];
            if (!(fabs(a - b) <= SYMMETRY_TOLERANCE * (1 + fmin(fabs(a), fabs(b))))) return SPO_ASYMMETRIC_COUPLING;
        }
    return SPO_NONZERO_DIAGONAL;
}

typedef struct {
    vi fault, differs, zero, one_sided; /* -1 in a lane that saw one */
} pair_findings;

INLINE void compare_pairs(vd a, vd b, vi wanted, pair_findings *found) {
    const vd size_a = v_abs(a), size_b = v_abs(b);
    const vd tolerance = SYMMETRY_TOLERANCE * (1.0 + v_select(size_a < size_b, size_a, size_b));
    const vi zero_a = (vi)(a == 0.0), zero_b = (vi)(b == 0.0);
    found->fault |= ~(vi)(v_abs(a - b) <= tolerance);
    found->differs |= (vi)(a != b);
    found->zero |= (zero_a | zero_b) & wanted;
    found->one_sided |= zero_a ^ zero_b;
}

static int32_t scan(int64_t n, const double *knm, int32_t *traits) {
    const vi all = (vi)((vd){0} == 0.0);
    pair_findings found = {{0}, {0}, {0}, {0}};
    const int64_t whole = n - n % SPO_LANES;
    for (int64_t i = 0; i < whole; i += SPO_LANES)
        for (int64_t j = i; j < whole; j += SPO_LANES) {
            vd mirror[SPO_LANES];
            for (int r = 0; r < SPO_LANES; ++r) mirror[r] = v_load(knm + (j + r) * n + i);
            v_transpose(mirror);
            for (int r = 0; r < SPO_LANES; ++r)
                compare_pairs(v_load(knm + (i + r) * n + j), mirror[r], i == j ? v_but_lane(r) : all, &found);
        }
    for (int64_t i = whole; i < n; ++i)
        for (int64_t j = 0; j < i; ++j) compare_pairs(v_set(knm[i * n + j]), v_set(knm[j * n + i]), all, &found);
    int fault = v_any(found.fault);
    for (int64_t i = 0; i < n; ++i) fault |= !(fabs(knm[i * n + i]) <= SYMMETRY_TOLERANCE);
    if (fault) return coupling_fault(n, knm);
    *traits = (v_any(found.differs) ? 0 : SPO_EXACTLY_SYMMETRIC) | (v_any(found.zero) ? 0 : SPO_ALL_EDGES) |
              (v_any(found.one_sided) ? 0 : SPO_SYMMETRIC_PATTERN);
    return SPO_OK;
}

/* out = (1 - weight) K + weight K^T for weight 1/2 or 1. */
INLINE void mix_with_transpose(int64_t n, const double *knm, double *out, const double keep, const double weight) {
    const int64_t whole = n - n % SPO_LANES;
    for (int64_t i = 0; i < whole; i += SPO_LANES)
        for (int64_t j = 0; j < whole; j += SPO_LANES) {
            vd mirror[SPO_LANES];
            for (int r = 0; r < SPO_LANES; ++r) mirror[r] = v_load(knm + (j + r) * n + i);
            v_transpose(mirror);
            for (int r = 0; r < SPO_LANES; ++r)
                v_store(out + (i + r) * n + j, keep * v_load(knm + (i + r) * n + j) + weight * mirror[r]);
        }
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = i < whole ? whole : 0; j < n; ++j)
            out[i * n + j] = keep * knm[i * n + j] + weight * knm[j * n + i];
}

static void symmetrise(int64_t n, const double *knm, double *out) { mix_with_transpose(n, knm, out, 0.5, 0.5); }

static void transpose(int64_t n, const double *knm, double *out) { mix_with_transpose(n, knm, out, 0.0, 1.0); }
