/* Passes over a coupling matrix: what it is (scan), its symmetric part, its transpose. All walk pairs of
 * square tiles, (I, J) and (J, I), so that both are read along rows; a tile is one square of lanes. */

/* -1 in every lane but one: row l, from offdiagonal + SPO_LANES - l, is 0 in lane l. */
static const int64_t offdiagonal[2 * SPO_LANES] = {
#if SPO_LANES == 8
    -1, -1, -1, -1, -1, -1, -1, -1, 0, -1, -1, -1, -1, -1, -1, -1,
#elif SPO_LANES == 4
    -1, -1, -1, -1, 0, -1, -1, -1,
#else
    -1,
    -1,
    0,
    -1,
#endif
};

INLINE vi v_but_lane(int64_t lane) {
    vi mask;
    memcpy(&mask, offdiagonal + SPO_LANES - lane, sizeof mask);
    return mask;
}

/* Entries K_ij and K_ji count as equal when they differ by no more than this, absolute and relative. */
#define SYMMETRY_TOLERANCE 1e-12

INLINE int unequal(double a, double b) {
    return !(fabs(a - b) <= SYMMETRY_TOLERANCE * (1 + fmin(fabs(a), fabs(b))));
}

/* Which of the three promises a refused matrix breaks; in their order, for one number is reported. */
static __attribute__((noinline)) int32_t coupling_fault(int64_t n, const double *knm) {
    for (int64_t e = 0; e < n * n; ++e)
        if (!isfinite(knm[e])) return SPO_NONFINITE_COUPLING;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < i; ++j) {
            if (unequal(knm[i * n + j], knm[j * n + i])) return SPO_ASYMMETRIC_COUPLING;
        }
    return SPO_NONZERO_DIAGONAL;
}

/* Square (J, I) of lanes, transposed: row r lies against row i + r, columns j ..., of square (I, J). */
INLINE void load_mirror(int64_t n, const double *knm, int64_t i, int64_t j, vd mirror[SPO_LANES]) {
    for (int r = 0; r < SPO_LANES; ++r) mirror[r] = v_load(knm + (j + r) * n + i);
    v_transpose(mirror);
}

typedef struct {
    int64_t n, rows;
    const double *knm;
    _Atomic int irregular, fault, differs, zero, one_sided;
} coupling_scan;

/* The common case: equal to its transpose bit for bit, and finite. One pass; tells whether it is not, and
 * whether an edge is missing. */
static void scan_exact(void *context, int64_t part, int32_t worker) {
    coupling_scan *const scan = context;
    vi differs = {0}, zero = {0};
    vd excess = {0};
    const double *knm = scan->knm;
    const int64_t n = scan->n, whole = n - n % SPO_LANES, start = part * scan->rows;
    const int64_t end = start + scan->rows < n ? start + scan->rows : n;
    (void)worker;
    for (int64_t i = start; i < end && i < whole; i += SPO_LANES)
        for (int64_t j = i; j < whole; j += SPO_LANES) {
            vd mirror[SPO_LANES];
            load_mirror(n, knm, i, j, mirror);
            for (int r = 0; r < SPO_LANES; ++r) {
                const vd a = v_load(knm + (i + r) * n + j);
                differs |= v_bits(a) ^ v_bits(mirror[r]);
                vi missing = (vi)(a == (vd){0});
                if (i == j) missing &= v_but_lane(r);
                zero |= missing;
                excess += a - a;
            }
        }
    int different = v_any(differs != 0), absent = v_any(zero);
    for (int64_t i = start > whole ? start : whole; i < end; ++i)
        for (int64_t j = 0; j < i; ++j) {
            const double a = knm[i * n + j];
            different |= a != knm[j * n + i];
            absent |= a == 0.0;
            excess += v_set(a - a);
        }
    if (absent) scan->zero = 1;
    if (different || v_any(excess != 0.0)) scan->irregular = 1;
}

/* Any other matrix, pair by pair. */
static void scan_pairs(void *context, int64_t part, int32_t worker) {
    coupling_scan *const scan = context;
    const double *knm = scan->knm;
    const int64_t n = scan->n, start = part * scan->rows;
    int fault = 0, differs = 0, zero = 0, one_sided = 0;
    (void)worker;
    for (int64_t i = start; i < start + scan->rows && i < n; ++i)
        for (int64_t j = 0; j < i; ++j) {
            const double a = knm[i * n + j], b = knm[j * n + i];
            fault |= unequal(a, b);
            differs |= a != b;
            zero |= a == 0.0 || b == 0.0;
            one_sided |= (a == 0.0) != (b == 0.0);
        }
    if (fault) scan->fault = 1;
    if (differs) scan->differs = 1;
    if (zero) scan->zero = 1;
    if (one_sided) scan->one_sided = 1;
}

static int32_t scan(int64_t n, const double *knm, int32_t workers, int32_t *traits) {
    coupling_scan found = {.n = n, .rows = spo_rows_of_part(SCAN_PART), .knm = knm};
    const int64_t parts = spo_parts(n, found.rows);
    workers = spo_workers_from(workers, n, SCAN_FROM);
    spo_share(parts, workers, scan_exact, &found);
    if (found.irregular) {
        found.zero = 0;
        spo_share(parts, workers, scan_pairs, &found);
    }
    int fault = found.fault;
    for (int64_t i = 0; i < n; ++i) fault |= !(fabs(knm[i * n + i]) <= SYMMETRY_TOLERANCE);
    if (fault) return coupling_fault(n, knm);
    *traits = (found.differs ? 0 : SPO_EXACTLY_SYMMETRIC) | (found.zero ? 0 : SPO_ALL_EDGES) |
              (found.one_sided ? 0 : SPO_SYMMETRIC_PATTERN);
    return SPO_OK;
}

/* out = (1 - weight) K + weight K^T for weight 1/2 or 1. */
INLINE void mix_with_transpose(int64_t n, const double *knm, double *out, const double keep,
                               const double weight) {
    const int64_t whole = n - n % SPO_LANES;
    for (int64_t i = 0; i < whole; i += SPO_LANES)
        for (int64_t j = 0; j < whole; j += SPO_LANES) {
            vd mirror[SPO_LANES];
            load_mirror(n, knm, i, j, mirror);
            for (int r = 0; r < SPO_LANES; ++r)
                v_store(out + (i + r) * n + j, keep * v_load(knm + (i + r) * n + j) + weight * mirror[r]);
        }
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = i < whole ? whole : 0; j < n; ++j)
            out[i * n + j] = keep * knm[i * n + j] + weight * knm[j * n + i];
}

static void symmetrise(int64_t n, const double *knm, double *out) {
    mix_with_transpose(n, knm, out, 0.5, 0.5);
}

static void transpose(int64_t n, const double *knm, double *out) {
    mix_with_transpose(n, knm, out, 0.0, 1.0);
}

typedef struct {
    int64_t n, rows;
    const double *knm;
    uint64_t *absent;
    _Atomic int64_t count;
} absent_search;

static void find_absent_of(void *context, int64_t part, int32_t worker) {
    absent_search *const search = context;
    const double *knm = search->knm;
    const int64_t n = search->n, words = (n + 63) / 64, start = part * search->rows;
    uint64_t *absent = search->absent + start / SPO_PAD * words;
    int64_t count = 0;
    (void)worker;
    for (int64_t i0 = start; i0 < start + search->rows && i0 < n; i0 += SPO_PAD, absent += words) {
        const int64_t last = i0 + SPO_PAD < n ? i0 + SPO_PAD : n;
        memset(absent, 0, (size_t)words * sizeof *absent);
        for (int64_t j = 0; j < n; j += SPO_LANES) {
            const int64_t left = n - j;
            vi zero = {0};
            for (int64_t i = i0; i < last; ++i) {
                const double *row = knm + i * n + j;
                const vd edges = left >= SPO_LANES ? v_load(row) : v_load_first(row, left);
                vi missing = (vi)(edges == (vd){0});
                if (i >= j && i < j + SPO_LANES) missing &= v_but_lane(i - j);
                zero |= missing;
            }
            if (!v_any(zero)) continue;
            for (int64_t lane = 0; lane < SPO_LANES && lane < left; ++lane)
                if (zero[lane]) {
                    absent[(j + lane) / 64] |= (uint64_t)1 << (j + lane) % 64;
                    ++count;
                }
        }
    }
    search->count += count;
}

/* Where the edges of eight queries (bits of a block's words) are not all there: see spo_core_find_absent. */
static int64_t find_absent(int64_t n, const double *knm, int32_t workers, uint64_t *absent) {
    absent_search search = {.n = n, .rows = spo_rows_of_part(SCAN_PART), .knm = knm, .absent = absent};
    workers = spo_workers_from(workers, n, SCAN_FROM);
    spo_share(spo_parts(n, search.rows), workers, find_absent_of, &search);
    return search.count;
}
