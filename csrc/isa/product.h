/* The matrix that the attention rescales: K'_ij = K_ij (1 + lambda / 2 + u_i . u_j) with u = sqrt(lambda / 2)
 * unit outputs, a rank-d Gram matrix plus a constant times K.
 *
 * While K and K' lie in a second-level cache the factor is computed once for each pair, on square tiles of
 * lanes on and above the diagonal, and mirrored through a transposition in registers: K is read on one side
 * only. Where they do not, a line is written at the rate of the next cache only if its neighbours follow:
 * mirrored rows, a page apart, take twice as long (N = 512: 7 ns a line instead of 3), so that both sides are
 * computed, row by row. Either way an entry's arithmetic is the same at (i, j) and (j, i) and does not depend
 * on its place in a tile: the result is exactly symmetric, and does not depend on the address of out, on
 * whose cache lines the tiles lie where its rows do. */

/* Rows and columns of a block of tiles: a cache line. */
#define BLOCK 8
/* Bytes of K and K' together up to which they are near: measured with 2 MB of second-level cache, 1.5 to 3 MB
 * are equal; a smaller cache changes sides at a smaller N, at a loss of a tenth. */
#define NEAR_BYTES (3 << 19)
/* Vectors of columns of a row that go together, and rows. */
#define ROW_VECTORS (SPO_LANES == 8 ? 4 : 2)
#define ROWS_ABREAST 4

typedef struct {
    int64_t n, padded, d_model;
    const double *knm, *u;
    double base;
    double *out;
    int exact;          /* K equals its transpose */
    int64_t rows;       /* of a part, from start to end */
    int64_t start, end; /* rows before and after them are done apart, by the first and the last part */
    int64_t reach;      /* of a band */
} product;

/* The rows of a part, those before the first and behind the last one apart. */
INLINE void product_range(const product *p, int64_t part, int64_t *from, int64_t *to) {
    *from = p->start + part * p->rows;
    *to = *from + p->rows < p->end ? *from + p->rows : p->end;
}

/* Zeros on the diagonal of a part's rows, once they are done. */
INLINE void product_close(const product *p, int64_t from, int64_t to) {
    if (from == p->start) from = 0;
    if (to == p->end) to = p->n;
    for (int64_t i = from; i < to; ++i) p->out[i * p->n + i] = 0.0;
}

/* Parts of a product: at least one, which does what is apart. */
INLINE int64_t product_parts(const product *p) {
    return p->end > p->start ? spo_parts(p->end - p->start, p->rows) : 1;
}

/* The symmetric part of K: K itself when it is exactly symmetric. */
INLINE vd mean_of(const int exact, vd a, vd mirror) { return exact ? a : 0.5 * a + 0.5 * mirror; }

/* `wide` tiles side by side, rows i ... and columns j ..., and their mirrors. */
INLINE void product_tiles(const product *p, const int exact, const int wide, const int64_t d_model, int64_t i,
                          int64_t j) {
    vd factor[2][SPO_LANES], mirror[SPO_LANES];
    const int64_t n = p->n, padded = p->padded;
    const double *row = p->u + i, *line = p->u + j, *source = p->knm + i * n + j;
    double *direct = p->out + i * n + j, *mirrored = p->out + j * n + i;
    for (int w = 0; w < wide; ++w)
        for (int r = 0; r < SPO_LANES; ++r) factor[w][r] = v_set(p->base);
    for (int64_t e = 0; e < d_model; ++e, row += padded, line += padded) {
        vd column[2];
        for (int w = 0; w < wide; ++w) column[w] = v_once(v_load(line + w * SPO_LANES));
        for (int r = 0; r < SPO_LANES; ++r) {
            const vd own = v_set(row[r]);
            for (int w = 0; w < wide; ++w) factor[w][r] = v_fma(own, column[w], factor[w][r]);
        }
    }
    for (int w = 0; w < wide; ++w) {
        if (!exact) load_mirror(n, p->knm, i, j + w * SPO_LANES, mirror);
        const double *at = source + w * SPO_LANES;
        double *to = direct + w * SPO_LANES;
        for (int r = 0; r < SPO_LANES; ++r, at += n, to += n) {
            factor[w][r] *= mean_of(exact, v_load(at), mirror[r]);
            v_store(to, factor[w][r]);
        }
        v_transpose(factor[w]);
        for (int r = 0; r < SPO_LANES; ++r, mirrored += n) v_store(mirrored, factor[w][r]);
    }
}

#define PRODUCT_TILES(NAME, EXACT, WIDE, D_MODEL)                                                            \
    static __attribute__((noinline)) void NAME(const product *p, int64_t i, int64_t j) {                     \
        product_tiles(p, EXACT, WIDE, D_MODEL, i, j);                                                        \
    }
PRODUCT_TILES(product_pair_8, 1, 2, 8)
PRODUCT_TILES(product_one_8, 1, 1, 8)
PRODUCT_TILES(product_pair, 1, 2, p->d_model)
PRODUCT_TILES(product_one, 1, 1, p->d_model)
PRODUCT_TILES(product_mean, 0, 1, p->d_model)

/* A tile of fewer rows or columns. */
static void product_edge(const product *p, int exact, int64_t i, int64_t rows, int64_t j, int64_t columns) {
    vd factor[SPO_LANES] = {{0}};
    for (int64_t r = 0; r < rows; ++r) {
        vd below = {0};
        factor[r] = v_set(p->base);
        for (int64_t e = 0; e < p->d_model; ++e) {
            const double *line = p->u + e * p->padded;
            factor[r] = v_fma(v_set(line[i + r]), v_load_first(line + j, columns), factor[r]);
        }
        if (!exact)
            for (int64_t c = 0; c < columns; ++c) below[c] = p->knm[(j + c) * p->n + i + r];
        factor[r] *= mean_of(exact, v_load_first(p->knm + (i + r) * p->n + j, columns), below);
        v_store_first(p->out + (i + r) * p->n + j, factor[r], columns);
    }
    v_transpose(factor);
    for (int64_t c = 0; c < columns; ++c) v_store_first(p->out + (j + c) * p->n + i, factor[c], rows);
}

/* Rows i0 ... i1 - 1, of which there are few, against columns low ... high - 1. */
static void product_edges(const product *p, int exact, int64_t i0, int64_t i1, int64_t low, int64_t high) {
    for (int64_t i = i0; i < i1; i += SPO_LANES)
        for (int64_t j = low; j < high; j += SPO_LANES)
            product_edge(p, exact, i, i1 - i < SPO_LANES ? i1 - i : SPO_LANES, j,
                         high - j < SPO_LANES ? high - j : SPO_LANES);
}

/* Below it the edges cost more than lines written twice. */
#define SMALLEST_ALIGNED 100

/* Doubles from out to its next cache line, where all rows begin alike; else 0. */
static int64_t rows_apart(int64_t n, const double *out) {
    return n % BLOCK || n < SMALLEST_ALIGNED
               ? 0
               : (int64_t)((64 - ((uintptr_t)out & 63)) / sizeof(double)) % BLOCK;
}

static void product_triangle(void *context, int64_t part, int32_t worker) {
    typedef void tiles(const product *, int64_t, int64_t);
    const product *p = context;
    const int exact = p->exact;
    tiles *const one = !exact ? product_mean : p->d_model == 8 ? product_one_8 : product_one;
    tiles *const pair = p->d_model == 8 ? product_pair_8 : product_pair;
    const int64_t n = p->n, end = p->end;
    int64_t from, to;
    (void)worker;
    product_range(p, part, &from, &to);
    if (part == 0) product_edges(p, exact, 0, p->start, 0, n);
    for (int64_t i0 = from; i0 < to; i0 += BLOCK)
        for (int64_t j = i0; j < end; j += 2 * SPO_LANES)
            for (int64_t i = i0; i < i0 + BLOCK && i < j + 2 * SPO_LANES; i += SPO_LANES)
                if (exact && j + 2 * SPO_LANES <= end)
                    pair(p, i, j);
                else
                    for (int64_t k = j; k < j + 2 * SPO_LANES && k < end; k += SPO_LANES) one(p, i, k);
    if (to == end) product_edges(p, exact, end, n, p->start, n);
    product_close(p, from, to);
}

/* A few rows from i on and `wide` vectors of columns from j on, or a part of one. */
INLINE void product_rows(const product *p, const int wide, const int64_t d_model, int64_t i, int64_t j,
                         const int64_t part) {
    vd factor[ROW_VECTORS][ROWS_ABREAST];
    const double *row = p->u + i, *line = p->u + j;
    for (int w = 0; w < wide; ++w)
        for (int r = 0; r < ROWS_ABREAST; ++r) factor[w][r] = v_set(p->base);
    for (int64_t e = 0; e < d_model; ++e, row += p->padded, line += p->padded) {
        vd column[ROW_VECTORS];
        for (int w = 0; w < wide; ++w)
            column[w] = v_once(part ? v_load_first(line, part) : v_load(line + w * SPO_LANES));
        for (int r = 0; r < ROWS_ABREAST; ++r) {
            const vd own = v_once(v_set(row[r]));
            for (int w = 0; w < wide; ++w) factor[w][r] = v_fma(own, column[w], factor[w][r]);
        }
    }
    for (int r = 0; r < ROWS_ABREAST; ++r)
        for (int w = 0; w < wide; ++w) {
            const int64_t at = (i + r) * p->n + j + w * SPO_LANES;
            if (part)
                v_store_first(p->out + at, v_load_first(p->knm + at, part) * factor[w][r], part);
            else
                v_store(p->out + at, v_load(p->knm + at) * factor[w][r]);
        }
}

INLINE void product_strip(const product *p, const int64_t d_model, int64_t i, int64_t start) {
    enum {
        STEP = ROW_VECTORS * SPO_LANES
    };
    const int64_t n = p->n;
    int64_t j = start;
    if (start > 0) product_rows(p, 1, d_model, i, 0, start);
    for (; j + STEP <= n; j += STEP) product_rows(p, ROW_VECTORS, d_model, i, j, 0);
    for (; j + SPO_LANES <= n; j += SPO_LANES) product_rows(p, 1, d_model, i, j, 0);
    if (j < n) product_rows(p, 1, d_model, i, j, n - j);
}

static void product_square(void *context, int64_t part, int32_t worker) {
    const product *p = context;
    const int64_t start = rows_apart(p->n, p->out) % SPO_LANES;
    int64_t from, to;
    (void)worker;
    product_range(p, part, &from, &to);
    for (int64_t i = from; i < to; i += ROWS_ABREAST)
        if (p->d_model == 8)
            product_strip(p, 8, i, start);
        else
            product_strip(p, p->d_model, i, start);
    if (to == p->end) product_edges(p, 1, to, p->n, 0, p->n);
    product_close(p, from, to);
}

/* Rows of a band: only pairs within reach are scaled, the others are K's symmetric part, which stands in out
 * already unless it is K. */
static void product_band(void *context, int64_t part, int32_t worker) {
    const product *p = context;
    const double *u = p->u, *source = p->exact ? p->knm : p->out;
    const int64_t n = p->n, reach = p->reach;
    int64_t from, to;
    (void)worker;
    product_range(p, part, &from, &to);
    if (p->exact) memcpy(p->out + from * n, p->knm + from * n, (size_t)((to - from) * n) * sizeof(double));
    for (int64_t i = from; i < to; ++i)
        for (int64_t j = i > reach ? i - reach : 0, high = i + reach < n ? i + reach + 1 : n; j < high;
             j += SPO_LANES) {
            const int64_t left = high - j < SPO_LANES ? high - j : SPO_LANES;
            vd factor = v_set(p->base);
            for (int64_t e = 0; e < p->d_model; ++e)
                factor =
                    v_fma(v_set(u[e * p->padded + i]), v_load_first(u + e * p->padded + j, left), factor);
            v_store_first(p->out + i * n + j, v_load_first(source + i * n + j, left) * factor, left);
        }
    product_close(p, from, to);
}

/* u = sqrt(lambda / 2) unit outputs, in place. */
static void scale_units(int64_t n, const spo_modulation *modulation, double *unit) {
    const double root = sqrt(0.5 * modulation->lambda);
    for (int64_t e = 0; e < modulation->d_model * spo_padded(n); e += SPO_LANES)
        v_store(unit + e, root * v_load(unit + e));
}

/* The whole matrix; exact tells that K equals its transpose. Spoils unit. */
static void scale(int64_t n, const double *knm, int exact, const spo_modulation *modulation, int32_t workers,
                  double *unit, double *out) {
    product p = {.n = n, .padded = spo_padded(n), .d_model = modulation->d_model, .knm = knm, .u = unit};
    p.base = 1.0 + 0.5 * modulation->lambda, p.out = out;
    p.exact = exact, p.reach = modulation->block_size, p.rows = spo_rows_of_part(PRODUCT_PART);
    spo_task *task = product_triangle;
    scale_units(n, modulation, unit);
    if (p.reach >= 0 && p.reach < n - 1) {
        if (!exact) symmetrise(n, knm, out);
        task = product_band, p.end = n;
    } else if (exact && 2 * n * n * (int64_t)sizeof(double) > NEAR_BYTES) {
        task = product_square, p.end = n / ROWS_ABREAST * ROWS_ABREAST;
    } else {
        p.start = rows_apart(n, out), p.end = p.start + (n - p.start) / BLOCK * BLOCK;
    }
    spo_share(product_parts(&p), spo_workers_from(workers, n, PRODUCT_FROM), task, &p);
}
