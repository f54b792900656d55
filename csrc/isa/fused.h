/* Sums over a coupling matrix that is rescaled on the way, K'_ij = K_ij (1 + lambda / 2 + u_i . u_j) with u =
 * sqrt(lambda / 2) unit outputs, so that K' need not be written; and, for symmetric K, sums that visit each
 * pair once. With s = sin theta, c = cos theta (see drift.h):
 *
 *   pairs    P_i += K'_ij s_j, Q_i += K'_ij c_j, and the same from j to i       d + 5 multiply-adds a pair
 *   sines    without a lag: t = K'_ij (s_j c_i - c_j s_i), f_i += t, f_j -= t   d + 4, and two additions
 *   lagged   a lag a pair: K cos alpha and K sin alpha, not symmetric           d + 6 an entry
 *
 * d less where K' was kept, or for K itself.
 *
 * The factors of a tile of rows and columns stay in registers: each feature of a column that is loaded serves
 * all rows, each of a row all columns. The matrix is packed: block after block of rows, in it vector after
 * vector of columns, in it row after row, from the block's own diagonal on where pairs are visited once;
 * zeros for what is not there. It is one stream, nothing has a remainder, and bits depend on the numbers
 * alone. */

/* Tiles: as many sums as leave registers for a feature of a row and those of the columns. */
#define TILE_ROWS (SPO_LANES == 8 ? 8 : 4)
#define TILE_WIDE 3
#define TILE_VECTOR (TILE_ROWS * SPO_LANES) /* doubles of one vector of columns */

typedef struct {
    int64_t n, padded, d_model;
    const double *k, *l;   /* packed K; K cos alpha and K sin alpha, where there is a lag a pair */
    double *keep, *keep_l; /* NULL, or room for K' of the same form */
    const double *u;       /* (d_model, padded) */
    double base;           /* 1 + lambda / 2 */
    const double *s, *c;   /* (padded) */
    double *pull, *push;   /* (padded): P and Q; of the sines pull alone */
    int kind;
    double *sums; /* (parts, 2, padded): P and Q of each part, where pairs are visited once */
} walk;

enum {
    LAGGED,
    PAIRS,
    SINES,
    KINDS
};

typedef vd row_sums[TILE_ROWS][2];

/* One entry's or pair's terms. own: sums of the row, lane by lane; pull and push: of the columns. */
INLINE void add_terms(const int kind, vd k, vd l, vd sj, vd cj, vd si, vd ci, vd *own, vd *pull, vd *push) {
    if (kind == SINES) {
        const vd term = k * v_fma(sj, ci, -(cj * si));
        own[0] += term;
        *pull -= term;
        return;
    }
    own[0] = v_fma(k, sj, own[0]);
    own[1] = v_fma(k, cj, own[1]);
    if (kind == PAIRS) {
        *pull = v_fma(k, si, *pull);
        *push = v_fma(k, ci, *push);
    } else {
        own[0] = v_fma(-l, cj, own[0]);
        own[1] = v_fma(l, sj, own[1]);
    }
}

INLINE void copy_sums(const int kind, const row_sums from, row_sums to) {
    for (int r = 0; r < TILE_ROWS; ++r)
        for (int k = 0; k < (kind == SINES ? 1 : 2); ++k) to[r][k] = from[r][k];
}

/* What `wide` vectors of columns take, asked for early: one stream alone is fetched at half of what the
 * memory gives. */
#define FETCH_AHEAD 4096 /* bytes */
INLINE void fetch_ahead(const double *k, const int wide) {
    for (int line = 0; line < wide * TILE_VECTOR; line += 8)
        __builtin_prefetch((const char *)(k + line) + FETCH_AHEAD);
}

/* Rows i ..., columns j ...; `at` is the place of the tile in the packed matrix. */
INLINE void fused_tile(const int kind, const int wide, const int64_t d_model, const walk *p, int64_t i,
                       int64_t j, int64_t at, row_sums own) {
    vd factor[TILE_WIDE][TILE_ROWS];
    row_sums sum;
    const double *row = p->u + i, *line = p->u + j, *s = p->s, *c = p->c, *k = p->k + at;
    for (int w = 0; w < wide; ++w)
        for (int r = 0; r < TILE_ROWS; ++r) factor[w][r] = v_set(p->base);
    for (int64_t e = 0; e < d_model; ++e, row += p->padded, line += p->padded) {
        vd column[TILE_WIDE];
        for (int w = 0; w < wide; ++w) column[w] = v_once(v_load(line + w * SPO_LANES));
        for (int r = 0; r < TILE_ROWS; ++r) {
            const vd feature = v_once(v_set(row[r]));
            for (int w = 0; w < wide; ++w) factor[w][r] = v_fma(feature, column[w], factor[w][r]);
        }
    }
    if (p->keep)
        for (int v = 0; v < wide * TILE_ROWS; ++v) {
            const vd f = factor[v / TILE_ROWS][v % TILE_ROWS];
            v_store(p->keep + at + v * SPO_LANES, f * v_load(k + v * SPO_LANES));
            if (kind == LAGGED)
                v_store(p->keep_l + at + v * SPO_LANES, f * v_load(p->l + at + v * SPO_LANES));
        }
    fetch_ahead(k, wide);
    if (kind == LAGGED) fetch_ahead(p->l + at, wide);
    copy_sums(kind, own, sum);
#pragma GCC unroll 3
    for (int w = 0; w < wide; ++w) {
        const int64_t first = j + w * SPO_LANES;
        const vd sj = v_load(s + first), cj = v_load(c + first);
        vd pull = {0}, push = {0};
        if (kind != LAGGED) pull = v_load(p->pull + first);
        if (kind == PAIRS) push = v_load(p->push + first);
        for (int r = 0; r < TILE_ROWS; ++r) {
            const int64_t v = (w * TILE_ROWS + r) * SPO_LANES;
            const vd own_l = kind == LAGGED ? factor[w][r] * v_load(p->l + at + v) : (vd){0};
            add_terms(kind, factor[w][r] * v_load(k + v), own_l, sj, cj, v_set(s[i + r]), v_set(c[i + r]),
                      sum[r], &pull, &push);
        }
        if (kind != LAGGED) v_store(p->pull + first, pull);
        if (kind == PAIRS) v_store(p->push + first, push);
    }
    copy_sums(kind, sum, own);
}

typedef void fused_tiles(const walk *p, int64_t i, int64_t j, int64_t at, row_sums own);

#define FUSED_TILE(NAME, KIND, WIDE, D_MODEL)                                                                \
    static __attribute__((noinline)) void NAME(const walk *p, int64_t i, int64_t j, int64_t at,              \
                                               row_sums own) {                                               \
        fused_tile(KIND, WIDE, D_MODEL, p, i, j, at, own);                                                   \
    }
#define FUSED_TILES(NAME, KIND)                                                                              \
    FUSED_TILE(NAME##_1, KIND, 1, p->d_model)                                                                \
    FUSED_TILE(NAME##_2, KIND, 2, p->d_model)                                                                \
    FUSED_TILE(NAME##_3, KIND, 3, p->d_model)                                                                \
    FUSED_TILE(NAME##_8_1, KIND, 1, 8)                                                                       \
    FUSED_TILE(NAME##_8_2, KIND, 2, 8)                                                                       \
    FUSED_TILE(NAME##_8_3, KIND, 3, 8)
FUSED_TILES(fused_lagged, LAGGED)
FUSED_TILES(fused_pairs, PAIRS)
FUSED_TILES(fused_sines, SINES)

#define FUSED_CHOICES(NAME)                                                                                  \
    {                                                                                                        \
        {NAME##_1, NAME##_2, NAME##_3}, { NAME##_8_1, NAME##_8_2, NAME##_8_3 }                               \
    }
static fused_tiles *const fused_choices[KINDS][2][TILE_WIDE] = {
    FUSED_CHOICES(fused_lagged), FUSED_CHOICES(fused_pairs), FUSED_CHOICES(fused_sines)};

/* Vectors of columns that the block of rows from i on has. */
INLINE int64_t packed_vectors(int64_t n, const int pairs, int64_t i) {
    return (n - (pairs ? i : 0) + SPO_LANES - 1) / SPO_LANES;
}

/* Where the block of rows from i on begins in the packed matrix. */
INLINE int64_t packed_place(int64_t n, const int pairs, int64_t i) {
    const int64_t blocks = i / TILE_ROWS, less = pairs ? TILE_ROWS / SPO_LANES : 0;
    return TILE_VECTOR * (blocks * packed_vectors(n, 0, 0) - less * (blocks * (blocks - 1) / 2));
}

/* First row of a part of `parts`: the pairs of earlier rows are its share of all. */
INLINE int64_t pair_row(int64_t n, int64_t parts, int64_t part) {
    if (part == 0) return 0;
    if (part == parts) return n;
    const double left = sqrt((double)(parts - part) / (double)parts);
    return (int64_t)((double)n * (1.0 - left)) / SPO_PAD * SPO_PAD;
}

/* The rows of a part of a walk, the walk with its own sums of columns, and these cleared. */
INLINE walk walk_of(const walk *all, const int kind, int64_t part, int64_t *start, int64_t *end) {
    walk p = *all;
    if (kind == LAGGED) {
        const int64_t rows = spo_rows_of_part(WALK_PART);
        *start = part * rows;
        *end = *start + rows < p.n ? *start + rows : p.n;
        return p;
    }
    const int64_t parts = spo_pair_parts(p.n);
    *start = pair_row(p.n, parts, part);
    *end = pair_row(p.n, parts, part + 1);
    if (part > 0) p.pull = p.sums + (part - 1) * 2 * p.padded, p.push = p.pull + p.padded;
    memset(p.pull + *start, 0, (size_t)(p.padded - *start) * sizeof(double));
    if (kind == PAIRS) memset(p.push + *start, 0, (size_t)(p.padded - *start) * sizeof(double));
    return p;
}

/* The sums of all parts, in their order. */
static void join_pairs(const walk *p) {
    const int64_t parts = spo_pair_parts(p->n);
    const double *sums = p->sums;
    for (int64_t part = 1; part < parts; ++part, sums += 2 * p->padded)
        for (int64_t j = pair_row(p->n, parts, part); j < p->padded; j += SPO_LANES) {
            v_store(p->pull + j, v_load(p->pull + j) + v_load(sums + j));
            if (p->kind == PAIRS) v_store(p->push + j, v_load(p->push + j) + v_load(sums + p->padded + j));
        }
}

/* The sums of rows i ... over their lanes; with what earlier rows have left there, where pairs were visited.
 */
INLINE void close_rows(const walk *p, const int kind, int64_t i, const row_sums own) {
    for (int r = 0; r < TILE_ROWS; r += 4)
        for (int k = 0; k < (kind == SINES ? 1 : 2); ++k) {
            double sums[4], *to = (k ? p->push : p->pull) + i + r;
            v_sum4(own[r][k], own[r + 1][k], own[r + 2][k], own[r + 3][k], sums);
            for (int q = 0; q < 4; ++q) to[q] = kind == LAGGED ? sums[q] : to[q] + sums[q];
        }
}

/* The sums of a part, with the factor; K' is kept where there is room for it. */
static void walk_fused(void *context, int64_t part, int32_t worker) {
    const int kind = ((const walk *)context)->kind;
    int64_t start, end;
    const walk own_walk = walk_of(context, kind, part, &start, &end), *p = &own_walk;
    fused_tiles *const *tile = fused_choices[kind][p->d_model == 8];
    int64_t at = packed_place(p->n, kind != LAGGED, start);
    (void)worker;
    for (int64_t i = start; i < end; i += TILE_ROWS) {
        row_sums own = {{{0}}};
        int64_t left = packed_vectors(p->n, kind != LAGGED, i), j = kind != LAGGED ? i : 0;
        for (; left > 0; left -= TILE_WIDE, j += TILE_WIDE * SPO_LANES) {
            const int64_t wide = left < TILE_WIDE ? left : TILE_WIDE;
            tile[wide - 1](p, i, j, at, own);
            at += wide * TILE_VECTOR;
        }
        close_rows(p, kind, i, own);
    }
}

/* The sums of a part with the matrix as it is. */
INLINE void walk_packed(const walk *all, const int kind, int64_t part) {
    int64_t start, end;
    const walk own_walk = walk_of(all, kind, part, &start, &end), *p = &own_walk;
    const int64_t place = packed_place(p->n, kind != LAGGED, start);
    const double *k = p->k + place, *l = p->l;
    for (int64_t i = start; i < end; i += TILE_ROWS) {
        row_sums own = {{{0}}};
        vd si[TILE_ROWS], ci[TILE_ROWS];
        for (int r = 0; r < TILE_ROWS; ++r) si[r] = v_set(p->s[i + r]), ci[r] = v_set(p->c[i + r]);
        int64_t j = kind != LAGGED ? i : 0;
        for (int64_t left = packed_vectors(p->n, kind != LAGGED, i); left > 0; --left, j += SPO_LANES) {
            fetch_ahead(k, 1);
            if (kind == LAGGED) fetch_ahead(l + (k - p->k), 1);
            const vd sj = v_load(p->s + j), cj = v_load(p->c + j);
            vd pull = {0}, push = {0};
            if (kind != LAGGED) pull = v_load(p->pull + j);
            if (kind == PAIRS) push = v_load(p->push + j);
            for (int r = 0; r < TILE_ROWS; ++r, k += SPO_LANES) {
                const vd own_l = kind == LAGGED ? v_load(l + (k - p->k)) : (vd){0};
                add_terms(kind, v_once(v_load(k)), own_l, sj, cj, si[r], ci[r], own[r], &pull, &push);
            }
            if (kind != LAGGED) v_store(p->pull + j, pull);
            if (kind == PAIRS) v_store(p->push + j, push);
        }
        close_rows(p, kind, i, own);
    }
}

static void walk_kept(void *context, int64_t part, int32_t worker) {
    const walk *p = context;
    (void)worker;
    switch (p->kind) {
    case LAGGED: walk_packed(p, LAGGED, part); break;
    case PAIRS: walk_packed(p, PAIRS, part); break;
    default: walk_packed(p, SINES, part);
    }
}

/* All sums of a walk. */
static void walk_all(walk *p, int fused, int32_t workers) {
    const int64_t parts =
        p->kind == LAGGED ? spo_parts(p->n, spo_rows_of_part(WALK_PART)) : spo_pair_parts(p->n);
    const int32_t crew = spo_workers_from(workers, p->n, fused ? FUSED_FROM : KEPT_FROM);
    spo_share(parts, crew, fused ? walk_fused : walk_kept, p);
    if (p->kind != LAGGED) join_pairs(p);
}

/* knm packed; pairs: what lies above the diagonal alone. */
static void pack(int64_t n, const double *knm, int pairs, double *packed) {
    for (int64_t i = 0; i < n; i += TILE_ROWS) {
        int64_t j = pairs ? i : 0;
        for (int64_t left = packed_vectors(n, pairs, i); left > 0; --left, j += SPO_LANES)
            for (int64_t r = i; r < i + TILE_ROWS; ++r, packed += SPO_LANES) {
                const int64_t there = r < n ? n - j : 0;
                const vd entries = there >= SPO_LANES ? v_load(knm + r * n + j)
                                   : there > 0        ? v_load_first(knm + r * n + j, there)
                                                      : (vd){0};
                v_store(packed, pairs ? v_and(entries, (vi)(V_IOTA + (double)(j - r) > 0.0)) : entries);
            }
    }
}

/* Is the matrix its own transpose, with zeros on the diagonal? Ends at the first rows that are not. */
static int mirrored(int64_t n, const double *knm) {
    const int64_t whole = n - n % SPO_LANES;
    for (int64_t i = 0; i < n; ++i)
        if (knm[i * n + i] != 0.0) return 0;
    for (int64_t i = 0; i < whole; i += SPO_LANES) {
        vi differs = {0};
        for (int64_t j = i; j < whole; j += SPO_LANES) {
            vd mirror[SPO_LANES];
            load_mirror(n, knm, i, j, mirror);
            for (int r = 0; r < SPO_LANES; ++r) differs |= (vi)(v_load(knm + (i + r) * n + j) != mirror[r]);
        }
        if (v_any(differs)) return 0;
    }
    for (int64_t i = whole; i < n; ++i)
        for (int64_t j = 0; j < i; ++j)
            if (knm[i * n + j] != knm[j * n + i]) return 0;
    return 1;
}
