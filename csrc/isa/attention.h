/* Softmax attention for one type of number, exact, without ever holding a row of all weights. Included twice
 * by all.h, which names the type: REAL, its vectors REALS of LANES lanes with masks INTS, OP(x) an operation
 * on them, NAMED(x) a function of this file.
 *
 * Two walks, by size:
 *
 *   crowds  lanes are problems (a group and a head), for short sequences: no lane is lost to a tail or to the
 *           causal edge, no sum runs across lanes
 *   tiles   lanes are queries: TILE_VECTORS vectors of queries against TILE_KEYS keys at a time, with running
 *           sums relative to a running top (M. Milakov, N. Gimelshein, arXiv:1805.02867; T. Dao et al.,
 *           NeurIPS 2022), which is raised only where a score is far above it
 *
 * The reverse pass recomputes the weights P = exp(q k - lse) tile by tile; with g the gradient at a row of
 * the output, D = sum g * out, dS = P (g v - D): dv += P g, dq += dS k, dk += dS q.
 *
 * Sums in float: at most TILE_KEYS (or one tile's queries) products are added up in a register before they
 * join a running sum, so that a sum of M terms carries at most (TILE_KEYS + M / TILE_KEYS) roundings of its
 * largest partial sum, and the errors of random terms add up to some sqrt of that. */

/* Rows and vectors of a product that are held in registers. */
#ifndef SPO_ATTENTION_SHAPES
#define SPO_ATTENTION_SHAPES
#if SPO_LANES == 8 || defined(__aarch64__)
#define GEMM_ROWS 12
#define CROWD_ROWS 4
#define CROWD_MOST 5
#else
#define GEMM_ROWS 6
#define CROWD_ROWS 3
#define CROWD_MOST 3
#endif
#define CROWD_COLUMNS 4
#define TILE_VECTORS 4
#define TILE_KEYS 96
#define LARGEST_COUNT(a, b) ((a) > (b) ? (a) : (b))
#define SMALLEST_COUNT(a, b) ((a) < (b) ? (a) : (b))
#endif
#define TILE_QUERIES (TILE_VECTORS * LANES)
/* Stands for the maximum of nothing: below every score, yet exp(score - it) is no NaN. */
#define NOTHING (-LARGEST_POWER)

/* ---- rows of numbers to lanes and back -------------------------------------------------------------- */

/* to[column][lane] = from[offset[lane] + column]; zeros in lanes from count on. */
static void NAMED(pack)(const REAL *from, const int64_t *offset, int64_t count, int64_t width, REAL *to) {
    for (int64_t k = 0; k < width; k += LANES) {
        const int64_t columns = SMALLEST_COUNT(LANES, width - k);
        REALS row[LANES];
        if (count == LANES && columns == LANES)
            for (int r = 0; r < LANES; ++r) row[r] = OP(load)(from + offset[r] + k);
        else
            for (int64_t r = 0; r < LANES; ++r)
                row[r] = r < count ? OP(load_first)(from + offset[r] + k, columns) : (REALS){0};
        OP(transpose)(row);
        for (int64_t c = 0; c < columns; ++c) OP(store)(to + (k + c) * LANES, row[c]);
    }
}

/* And back: to[offset[lane] + column] = from[column][lane]. */
static void NAMED(unpack)(const REAL *from, const int64_t *offset, int64_t count, int64_t width, REAL *to) {
    for (int64_t k = 0; k < width; k += LANES) {
        const int64_t columns = SMALLEST_COUNT(LANES, width - k);
        REALS row[LANES];
        for (int64_t c = 0; c < LANES; ++c)
            row[c] = c < columns ? OP(load)(from + (k + c) * LANES) : (REALS){0};
        OP(transpose)(row);
        if (count == LANES && columns == LANES)
            for (int r = 0; r < LANES; ++r) OP(store)(to + offset[r] + k, row[r]);
        else
            for (int64_t r = 0; r < count; ++r) OP(store_first)(to + offset[r] + k, row[r], columns);
    }
}

/* Rows of `width` numbers, `step` apart, as rows of `padded` numbers with zeros behind. */
static void NAMED(pad_rows)(const REAL *from, int64_t step, int64_t rows, int64_t width, int64_t padded,
                            REAL *to) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t k = 0; k < padded; k += LANES)
            OP(store)(
                to + r * padded + k,
                OP(load_first)(from + r * step + k, LARGEST_COUNT(0, SMALLEST_COUNT(LANES, width - k))));
}

INLINE int64_t NAMED(padded)(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

/* ---- products of a tile ------------------------------------------------------------------------------ */

/* c[r][vector] of sum_t a[r][t] b[t][vector], a a number, b and c vectors: their places. */
typedef struct {
    int64_t terms, a_row, a_term, b_vector, b_term, c_row, c_vector;
} NAMED(product);

typedef void NAMED(product_block)(const NAMED(product) * p, const REAL *a, const REAL *b, const REALS *start,
                                  REAL *c);

/* The sums begin at start[vector], or at zero and are added to c. One of a_row and a_term is 1. */
INLINE void NAMED(multiply)(const int rows, const int vectors, const int add, const int64_t a_row,
                            const int64_t a_term, const NAMED(product) * p, const REAL *a, const REAL *b,
                            const REALS *start, REAL *c) {
    REALS sum[GEMM_ROWS][2];
    const int64_t terms = p->terms, b_vector = p->b_vector, b_term = p->b_term;
    const int64_t c_row = p->c_row, c_vector = p->c_vector;
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) sum[r][v] = add ? (REALS){0} : start[v];
    /* Few pointers a few rows apart: the address of every row is one of them plus a multiple of the step. */
    const REAL *a3 = a + 3 * a_row, *a6 = a + 6 * a_row, *a9 = a + 9 * a_row;
    for (int64_t t = 0; t < terms; ++t) {
        REALS right[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) right[v] = OP(once)(OP(load)(b + v * b_vector));
#pragma GCC unroll 12
        for (int r = 0; r < rows; ++r) {
            const REAL *base = r < 3 ? a : r < 6 ? a3 : r < 9 ? a6 : a9;
            const REALS left = OP(set)(base[r % 3 * a_row]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; ++v) sum[r][v] = OP(fma)(left, right[v], sum[r][v]);
        }
        a += a_term, a3 += a_term, a6 += a_term, a9 += a_term;
        b += b_term;
#if defined(__x86_64__)
        __asm__("" : "+r"(a), "+r"(a3), "+r"(a6), "+r"(a9));
#endif
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) {
            REAL *at = c + r * c_row + v * c_vector;
            OP(store)(at, add ? OP(load)(at) + sum[r][v] : sum[r][v]);
        }
}

/* Three kinds: across, rows of a are apart and the result is new; across_add, it is added; along_add, the
 * rows of a lie side by side. */
#define PRODUCT_BLOCK(ROWS, VECTORS)                                                                         \
    static SPO_APART void NAMED(across_##ROWS##_##VECTORS)(const NAMED(product) * p, const REAL *a,          \
                                                           const REAL *b, const REALS *start, REAL *c) {     \
        NAMED(multiply)(ROWS, VECTORS, 0, p->a_row, 1, p, a, b, start, c);                                   \
    }                                                                                                        \
    static SPO_APART void NAMED(across_add_##ROWS##_##VECTORS)(const NAMED(product) * p, const REAL *a,      \
                                                               const REAL *b, const REALS *start, REAL *c) { \
        NAMED(multiply)(ROWS, VECTORS, 1, p->a_row, 1, p, a, b, start, c);                                   \
    }                                                                                                        \
    static SPO_APART void NAMED(along_add_##ROWS##_##VECTORS)(const NAMED(product) * p, const REAL *a,       \
                                                              const REAL *b, const REALS *start, REAL *c) {  \
        NAMED(multiply)(ROWS, VECTORS, 1, 1, p->a_term, p, a, b, start, c);                                  \
    }
PRODUCT_BLOCK(1, 1)
PRODUCT_BLOCK(1, 2)
PRODUCT_BLOCK(2, 1)
PRODUCT_BLOCK(2, 2)
PRODUCT_BLOCK(4, 1)
PRODUCT_BLOCK(4, 2)
PRODUCT_BLOCK(6, 1)
PRODUCT_BLOCK(6, 2)
#if GEMM_ROWS == 12
PRODUCT_BLOCK(8, 1)
PRODUCT_BLOCK(8, 2)
PRODUCT_BLOCK(12, 1)
PRODUCT_BLOCK(12, 2)
#endif
#undef PRODUCT_BLOCK

#if GEMM_ROWS == 12
#define BLOCKS_OF(KIND, VECTORS)                                                                             \
    {NAMED(KIND##_12_##VECTORS), NAMED(KIND##_8_##VECTORS), NAMED(KIND##_6_##VECTORS),                       \
     NAMED(KIND##_4_##VECTORS),  NAMED(KIND##_2_##VECTORS), NAMED(KIND##_1_##VECTORS)}
#else
#define BLOCKS_OF(KIND, VECTORS)                                                                             \
    {NULL,                                                                                                   \
     NULL,                                                                                                   \
     NAMED(KIND##_6_##VECTORS),                                                                              \
     NAMED(KIND##_4_##VECTORS),                                                                              \
     NAMED(KIND##_2_##VECTORS),                                                                              \
     NAMED(KIND##_1_##VECTORS)}
#endif
typedef NAMED(product_block) * NAMED(product_kind)[2][6];
static const NAMED(product_kind) NAMED(across) = {BLOCKS_OF(across, 1), BLOCKS_OF(across, 2)};
static const NAMED(product_kind) NAMED(across_add) = {BLOCKS_OF(across_add, 1), BLOCKS_OF(across_add, 2)};
static const NAMED(product_kind) NAMED(along_add) = {BLOCKS_OF(along_add, 1), BLOCKS_OF(along_add, 2)};
#undef BLOCKS_OF

/* Blocks of 12, 8, 6, 4, 2 or 1 rows: the largest that leaves no single row behind a large one. */
INLINE int NAMED(block_of)(int64_t left) {
    static const signed char choice[17] = {5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0, 1};
#if GEMM_ROWS == 12
    return left > 16 ? 0 : choice[left];
#else
    return left >= 6 && left != 8 ? 2 : left >= 4 ? 3 : choice[left];
#endif
}

static void NAMED(multiply_rows)(const NAMED(product_kind) kind, const NAMED(product) * p, int64_t rows,
                                 int64_t vectors, const REAL *a, const REAL *b, const REALS *start, REAL *c) {
    static const signed char size[6] = {12, 8, 6, 4, 2, 1};
    for (int64_t v = 0; v < vectors; v += 2) {
        NAMED(product_block) *const *blocks = kind[v + 1 < vectors];
        const REAL *from = a;
        REAL *to = c + v * p->c_vector;
        for (int64_t r = 0; r < rows;) {
            const int block = NAMED(block_of)(rows - r);
            blocks[block](p, from, b + v * p->b_vector, start + v, to);
            r += size[block];
            from += size[block] * p->a_row;
            to += size[block] * p->c_row;
        }
    }
}

/* ---- tiles: lanes are queries ------------------------------------------------------------------------ */

/* Keys and values by row. */
typedef struct {
    int64_t width, value_width, k_step, v_step;
    const REAL *k, *v;
} NAMED(keys);

/* Up to TILE_VECTORS vectors of queries. Lane by lane they see `visible` keys from the first on, each vector
 * all of them up to every[vector] and none from some[vector] on; the counts do not descend. */
typedef struct {
    int64_t vectors;
    INTS visible[TILE_VECTORS];
    int64_t every[TILE_VECTORS], some[TILE_VECTORS];
} NAMED(rows);

/* The queries from i on, at most to the end of their tile; lanes past the last are like it. */
static NAMED(rows) NAMED(rows_at)(int64_t i, int64_t end, const int64_t *visible) {
    NAMED(rows) rows = {.vectors = (SMALLEST_COUNT(end - i, TILE_QUERIES) + LANES - 1) / LANES};
    for (int64_t v = 0; v < rows.vectors; ++v, i += LANES) {
        for (int64_t lane = 0; lane < LANES; ++lane)
            rows.visible[v][lane] = (INT)visible[SMALLEST_COUNT(i + lane, end - 1)];
        rows.every[v] = visible[i];
        rows.some[v] = visible[SMALLEST_COUNT(i + LANES, end) - 1];
    }
    return rows;
}

/* How many of `count` keys from j0 on vectors v and v + 1 look at. */
INLINE int64_t NAMED(seen_by)(const NAMED(rows) * rows, int64_t v, int64_t j0, int64_t count) {
    const int64_t last = SMALLEST_COUNT(v + 1, rows->vectors - 1);
    return LARGEST_COUNT(0, SMALLEST_COUNT(rows->some[last] - j0, count));
}

/* How far above exp2(top) a weight may be before top is raised. */
#define HEADROOM 8

/* Takes `seen` scores of one vector, in steps of TILE_QUERIES, less their top, to weights; returns their sum.
 * Raises the top, and shrinks what was summed up, where a score is too far above or the first one comes. */
INLINE REALS NAMED(weigh)(int64_t seen, int bounded, REAL *scores, REALS *top, REALS *sum,
                          int64_t value_width, REAL *out) {
    REALS highest = OP(set)(NOTHING), total = {0};
    const INTS fresh = *sum == (REALS){0};
    for (int64_t j = 0; !bounded && j < seen; ++j)
        highest = OP(max)(OP(load)(scores + j * TILE_QUERIES), highest);
    if (bounded || !OP(any)((highest > (REAL)HEADROOM) | fresh)) {
        for (int64_t j = 0; j < seen; ++j) {
            const REALS weight = OP(weight2)(OP(load)(scores + j * TILE_QUERIES));
            total += weight;
            OP(store)(scores + j * TILE_QUERIES, weight);
        }
        return total;
    }
    const INTS raised = (highest > (REAL)0) | (fresh & (highest > (REAL)NOTHING / 2));
    const REALS by = OP (and)(highest, raised), shrink = OP(weight2)(OP (and)(-by, ~fresh));
    for (int64_t c = 0; c < value_width; ++c, out += LANES) OP(store)(out, shrink * OP(load)(out));
    *sum *= shrink;
    *top += by;
    for (int64_t j = 0; j < seen; ++j) {
        const REALS weight = OP(weight2)(OP(load)(scores + j * TILE_QUERIES) - by);
        total += weight;
        OP(store)(scores + j * TILE_QUERIES, weight);
    }
    return total;
}

/* Adds to out (vector, value width, lane) the values of all keys that the rows see, to sum their weights,
 * both relative to 2^top; top begins at 0, or bounded: it is no less
 * than any score, nor far above all. q is (vector, width, lane), times log2 e; scores
 * (TILE_KEYS, TILE_QUERIES) scratch. */
static void NAMED(attend_tile)(const NAMED(keys) * kv, const NAMED(rows) * rows, int bounded, const REAL *q,
                               REAL *scores, REALS *top, REALS *sum, REAL *out) {
    const REALS none = OP(set)(NOTHING);
    const NAMED(product) score = {kv->width, kv->k_step, 1, kv->width * LANES, LANES, TILE_QUERIES, LANES};
    NAMED(product) value = {0, 1, kv->v_step, LANES, TILE_QUERIES, LANES, kv->value_width * LANES};
    const int64_t end = rows->some[rows->vectors - 1];
    for (int64_t j0 = 0; j0 < end; j0 += TILE_KEYS) {
        const int64_t count = SMALLEST_COUNT(TILE_KEYS, end - j0);
        for (int64_t pair = 0; pair < rows->vectors; pair += 2) {
            const int64_t seen = NAMED(seen_by)(rows, pair, j0, count);
            const int64_t both = SMALLEST_COUNT(2, rows->vectors - pair);
            REAL *const weights = scores + pair * LANES;
            if (!seen) continue;
            const REALS start[2] = {-top[pair], -top[pair + both - 1]};
            NAMED(multiply_rows)(NAMED(across), &score, seen, both, kv->k + j0 * kv->k_step,
                                 q + pair * kv->width * LANES, start, weights);
            for (int64_t v = pair; v < pair + both; ++v) {
                REAL *const column = scores + v * LANES;
                for (int64_t j = LARGEST_COUNT(0, rows->every[v] - j0); j < seen; ++j) {
                    REAL *at = column + j * TILE_QUERIES;
                    OP(store)(at, OP(select)(rows->visible[v] > (INT)(j0 + j), OP(load)(at), none));
                }
                sum[v] += NAMED(weigh)(seen, bounded, column, top + v, sum + v, kv->value_width,
                                       out + v * kv->value_width * LANES);
            }
            value.terms = seen;
            NAMED(multiply_rows)(NAMED(along_add), &value, kv->value_width, both, kv->v + j0 * kv->v_step,
                                 weights, NULL, out + pair * kv->value_width * LANES);
        }
    }
}

/* What the reverse pass of a tile reads and where its results go. */
typedef struct {
    const REAL *q, *grad;             /* (vector, width, lane) times log2 e, (vector, value width, lane) */
    const REAL *q_rows, *grad_rows;   /* q, grad by query, padded with zeros, as are queries past the last */
    const REALS *minus_lse, *minus_d; /* lse times log2 e */
    REAL *weights, *slopes;           /* (TILE_KEYS, TILE_QUERIES) scratch each */
    REAL *dq;                         /* (vector, width, lane), added to */
    REAL *dk, *dv;                    /* rows of the padded widths, added to; they may lie in one another */
    int64_t dk_step, dv_step;
} NAMED(reverse);

/* Gradients through the weights of a tile's queries. What lies behind a query's causal edge may overflow on
 * its way; the mask takes it. */
static void NAMED(reverse_tile)(const NAMED(keys) * kv, const NAMED(rows) * rows, const NAMED(reverse) * at) {
    const int64_t e = kv->width, f = kv->value_width, pe = NAMED(padded)(e), pf = NAMED(padded)(f);
    const NAMED(product) score = {e, kv->k_step, 1, e * LANES, LANES, TILE_QUERIES, LANES};
    const NAMED(product) slope = {f, kv->v_step, 1, f * LANES, LANES, TILE_QUERIES, LANES};
    NAMED(product) to_q = {0, 1, kv->k_step, LANES, TILE_QUERIES, LANES, e * LANES};
    NAMED(product) to_k = {0, TILE_QUERIES, 1, LANES, pe, at->dk_step, LANES};
    NAMED(product) to_v = {0, TILE_QUERIES, 1, LANES, pf, at->dv_step, LANES};
    const int64_t end = rows->some[rows->vectors - 1];
    for (int64_t j0 = 0; j0 < end; j0 += TILE_KEYS) {
        const int64_t count = SMALLEST_COUNT(TILE_KEYS, end - j0);
        const REAL *const k = kv->k + j0 * kv->k_step, *const v = kv->v + j0 * kv->v_step;
        int64_t below = 0; /* keys that earlier queries see */
        for (int64_t pair = 0; pair < rows->vectors; pair += 2) {
            const int64_t seen = NAMED(seen_by)(rows, pair, j0, count), place = pair * LANES;
            const int64_t both = SMALLEST_COUNT(2, rows->vectors - pair);
            if (!seen) continue;
            NAMED(multiply_rows)(NAMED(across), &score, seen, both, k, at->q + pair * e * LANES,
                                 at->minus_lse + pair, at->weights + place);
            NAMED(multiply_rows)(NAMED(across), &slope, seen, both, v, at->grad + pair * f * LANES,
                                 at->minus_d + pair, at->slopes + place);
            for (int64_t w = pair; w < pair + both; ++w)
                for (int64_t j = 0; j < seen; ++j) {
                    const int64_t cell = j * TILE_QUERIES + w * LANES;
                    REALS weight = OP(weight2)(OP(load)(at->weights + cell));
                    REALS bend = weight * OP(load)(at->slopes + cell);
                    if (j0 + j >= rows->every[w]) {
                        const INTS sees = rows->visible[w] > (INT)(j0 + j);
                        weight = OP (and)(weight, sees);
                        bend = OP (and)(bend, sees);
                    }
                    OP(store)(at->weights + cell, weight);
                    OP(store)(at->slopes + cell, bend);
                }
            to_q.terms = seen;
            NAMED(multiply_rows)(NAMED(along_add), &to_q, e, both, k, at->slopes + place, NULL,
                                 at->dq + pair * e * LANES);
        }
        for (int64_t pair = 0; pair < rows->vectors; pair += 2) {
            const int64_t seen = NAMED(seen_by)(rows, pair, j0, count), place = pair * LANES;
            if (seen <= below) continue;
            to_k.terms = to_v.terms = (rows->vectors - pair) * LANES;
            NAMED(multiply_rows)(NAMED(across_add), &to_v, seen - below, pf / LANES,
                                 at->weights + below * TILE_QUERIES + place, at->grad_rows + place * pf, NULL,
                                 at->dv + (j0 + below) * at->dv_step);
            NAMED(multiply_rows)(NAMED(across_add), &to_k, seen - below, pe / LANES,
                                 at->slopes + below * TILE_QUERIES + place, at->q_rows + place * pe, NULL,
                                 at->dk + (j0 + below) * at->dk_step);
            below = seen;
        }
    }
}

/* ---- crowds: lanes are problems ---------------------------------------------------------------------- */

/* c[r][column] = sum_t a[r][t] b[t][column], everything vectors; steps in vectors, c's columns are side by
 * side. More terms of the same kind may follow from a second pair, whose b_term is more_term. */
typedef struct {
    int64_t terms, a_row, a_term, b_column, b_term, c_row, more_term;
} NAMED(crowd_product);

typedef void NAMED(crowd_block)(const NAMED(crowd_product) * p, const REALS *a, const REALS *b,
                                const REALS *more_a, const REALS *more_b, REALS *c);

INLINE void NAMED(crowd_terms)(const int rows, const int columns, const NAMED(crowd_product) * p,
                               const REALS *a, const REALS *b, int64_t b_term,
                               REALS sum[CROWD_MOST][CROWD_COLUMNS]) {
    const int64_t a_row = p->a_row, b_column = p->b_column, a_term = p->a_term;
    const REALS *a3 = a + 3 * a_row, *b3 = b + 3 * b_column;
    for (int64_t t = p->terms; t > 0; --t) {
        REALS left[CROWD_MOST];
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) left[r] = OP(once)(r < 3 ? a[r * a_row] : a3[(r - 3) * a_row]);
#pragma GCC unroll 8
        for (int k = 0; k < columns; ++k) {
            const REALS right = OP(once)(k < 3 ? b[k * b_column] : *b3);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) sum[r][k] = OP(fma)(left[r], right, sum[r][k]);
        }
        a += a_term, a3 += a_term, b += b_term, b3 += b_term;
#if defined(__x86_64__)
        __asm__("" : "+r"(a), "+r"(a3), "+r"(b), "+r"(b3));
#endif
    }
}

INLINE void NAMED(crowd_multiply)(const int rows, const int columns, const NAMED(crowd_product) * p,
                                  const REALS *a, const REALS *b, const REALS *more_a, const REALS *more_b,
                                  REALS *c) {
    REALS sum[CROWD_MOST][CROWD_COLUMNS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int k = 0; k < columns; ++k) sum[r][k] = (REALS){0};
    NAMED(crowd_terms)(rows, columns, p, a, b, p->b_term, sum);
    if (more_a) NAMED(crowd_terms)(rows, columns, p, more_a, more_b, p->more_term, sum);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int k = 0; k < columns; ++k) c[r * p->c_row + k] = sum[r][k];
}

#define CROWD_BLOCK(ROWS, COLUMNS)                                                                           \
    static SPO_APART void NAMED(crowd_##ROWS##_##COLUMNS)(const NAMED(crowd_product) * p, const REALS *a,    \
                                                          const REALS *b, const REALS *more_a,               \
                                                          const REALS *more_b, REALS *c) {                   \
        NAMED(crowd_multiply)(ROWS, COLUMNS, p, a, b, more_a, more_b, c);                                    \
    }
CROWD_BLOCK(1, 1)
CROWD_BLOCK(1, 4)
CROWD_BLOCK(2, 1)
CROWD_BLOCK(2, 4)
CROWD_BLOCK(3, 1)
CROWD_BLOCK(3, 4)
#if CROWD_MOST == 5
CROWD_BLOCK(4, 1)
CROWD_BLOCK(4, 4)
CROWD_BLOCK(5, 1)
CROWD_BLOCK(5, 4)
#define CROWD_BLOCKS(COLUMNS)                                                                                \
    {NAMED(crowd_1_##COLUMNS), NAMED(crowd_2_##COLUMNS), NAMED(crowd_3_##COLUMNS), NAMED(crowd_4_##COLUMNS), \
     NAMED(crowd_5_##COLUMNS)}
#else
#define CROWD_BLOCKS(COLUMNS) {NAMED(crowd_1_##COLUMNS), NAMED(crowd_2_##COLUMNS), NAMED(crowd_3_##COLUMNS)}
#endif
#undef CROWD_BLOCK

/* A block of up to CROWD_MOST rows. */
static void NAMED(crowd_rows)(const NAMED(crowd_product) * p, int64_t rows, int64_t columns, const REALS *a,
                              const REALS *b, const REALS *more_a, const REALS *more_b, REALS *c) {
    static NAMED(crowd_block) *const blocks[2][CROWD_MOST] = {CROWD_BLOCKS(1), CROWD_BLOCKS(4)};
    for (int64_t k = 0; k < columns;) {
        const int four = k + CROWD_COLUMNS <= columns;
        const int64_t place = k * p->b_column;
        blocks[four][rows - 1](p, a, b + place, more_a, more_b + (more_a ? place : 0), c + k);
        k += four ? CROWD_COLUMNS : 1;
    }
}
#undef CROWD_BLOCKS

/* LANES problems of one shape; steps in vectors. */
typedef struct {
    int64_t queries, keys, width, value_width;
    int64_t ahead; /* causal: query i sees i + ahead keys; otherwise at least the number of keys */
    const REALS *k, *v;
    int64_t q_step, k_step, v_step;
} NAMED(crowd);

/* Rows of the next block: no single one is left behind where registers allow one more. */
INLINE int64_t NAMED(crowd_take)(int64_t left) { return left <= CROWD_MOST ? left : CROWD_ROWS; }

INLINE int64_t NAMED(crowd_sees)(const NAMED(crowd) * at, int64_t i) {
    return LARGEST_COUNT(0, SMALLEST_COUNT(at->keys, i + at->ahead));
}

/* Keys, in whole blocks of columns where there are as many, that the queries i ... i + rows - 1 look at. */
INLINE int64_t NAMED(crowd_reach)(const NAMED(crowd) * at, int64_t i, int64_t rows) {
    const int64_t seen = NAMED(crowd_sees)(at, i + rows - 1);
    return SMALLEST_COUNT(at->keys, (seen + CROWD_COLUMNS - 1) / CROWD_COLUMNS * CROWD_COLUMNS);
}

/* The blocks of a crowd. A block of queries i ... i + rows - 1 has rows of `keys` scores, which become
 * weights; of these it looks at the first `some`, and zeros follow as far as a block of keys goes that begins
 * before. */
INLINE int64_t NAMED(crowd_tail)(const NAMED(crowd) * at, int64_t i, int64_t rows) {
    return SMALLEST_COUNT(at->keys, NAMED(crowd_reach)(at, i, rows) + CROWD_MOST);
}

/* Scores of a block whose first query is q: -infinity where a query does not see a key. Returns `some`. */
static int64_t NAMED(score_crowd_block)(const NAMED(crowd) * at, int64_t i, int64_t rows, const REALS *q,
                                        REALS *scores) {
    const int64_t keys = at->keys, some = NAMED(crowd_sees)(at, i + rows - 1);
    const NAMED(crowd_product) score = {at->width, at->q_step, 1, at->k_step, 1, keys, 0};
    NAMED(crowd_rows)(&score, rows, NAMED(crowd_reach)(at, i, rows), q, at->k, NULL, NULL, scores);
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = NAMED(crowd_sees)(at, i + r); j < some; ++j)
            scores[r * keys + j] = OP(set)(-(REAL)INFINITY);
        for (int64_t j = some; j < NAMED(crowd_tail)(at, i, rows); ++j) scores[r * keys + j] = (REALS){0};
    }
    return some;
}

/* top becomes the largest score of each row, if it is larger; sum shrinks with it. */
static void NAMED(raise_crowd_block)(int64_t rows, int64_t keys, int64_t some, const REALS *scores,
                                     REALS *top, REALS *sum) {
    for (int64_t r = 0; r < rows; ++r) {
        REALS highest = top[r];
        for (int64_t j = 0; j < some; ++j) highest = OP(max)(scores[r * keys + j], highest);
        sum[r] *= OP(weight)(top[r] - highest);
        top[r] = highest;
    }
}

/* Weights relative to exp(top); sum grows by them. Rows side by side, since each waits for its own sum. */
INLINE void NAMED(weigh_crowd_rows)(const int rows, int64_t keys, int64_t some, REALS *scores,
                                    const REALS *top, REALS *sum) {
    REALS total[CROWD_MOST], less[CROWD_MOST];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) total[r] = sum[r], less[r] = top[r];
    for (int64_t j = 0; j < some; ++j)
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const REALS weight = OP(weight)(scores[r * keys + j] - less[r]);
            scores[r * keys + j] = weight;
            total[r] += weight;
        }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) sum[r] = total[r];
}

static void NAMED(weigh_crowd_block)(int64_t rows, int64_t keys, int64_t some, REALS *scores,
                                     const REALS *top, REALS *sum) {
    switch (rows) {
#if CROWD_MOST == 5
    case 5: NAMED(weigh_crowd_rows)(5, keys, some, scores, top, sum); break;
    case 4: NAMED(weigh_crowd_rows)(4, keys, some, scores, top, sum); break;
#endif
    case 3: NAMED(weigh_crowd_rows)(3, keys, some, scores, top, sum); break;
    case 2: NAMED(weigh_crowd_rows)(2, keys, some, scores, top, sum); break;
    default: NAMED(weigh_crowd_rows)(1, keys, some, scores, top, sum);
    }
}

/* Weighted sums of the values. */
static void NAMED(value_crowd_block)(const NAMED(crowd) * at, int64_t i, int64_t rows, const REALS *weights,
                                     REALS *out, int64_t out_step) {
    const NAMED(crowd_product)
        value = {NAMED(crowd_reach)(at, i, rows), at->keys, 1, 1, at->v_step, out_step, 0};
    NAMED(crowd_rows)(&value, rows, at->value_width, weights, at->v, NULL, NULL, out);
}

/* On the way back: the weights' gradients (rows, keys), and dq (rows, width). */
static void NAMED(reverse_crowd_block)(const NAMED(crowd) * at, int64_t i, int64_t rows, const REALS *grad,
                                       int64_t grad_step, const REALS *minus_d, const REALS *weights,
                                       REALS *slopes, REALS *dq) {
    const int64_t keys = at->keys, reach = NAMED(crowd_reach)(at, i, rows);
    const NAMED(crowd_product) slope = {at->value_width, grad_step, 1, at->v_step, 1, keys, 0};
    const NAMED(crowd_product) to_q = {reach, keys, 1, 1, at->k_step, at->width, 0};
    NAMED(crowd_rows)(&slope, rows, reach, grad, at->v, NULL, NULL, slopes);
    for (int64_t r = 0; r < rows; ++r) {
        REALS *const row = slopes + r * keys;
        const int64_t seen = NAMED(crowd_sees)(at, i + r);
        for (int64_t j = 0; j < seen; ++j) row[j] = weights[r * keys + j] * (row[j] + minus_d[r]);
        for (int64_t j = seen; j < NAMED(crowd_tail)(at, i, rows); ++j) row[j] = (REALS){0};
    }
    NAMED(crowd_rows)(&to_q, rows, at->width, slopes, at->k, NULL, NULL, dq);
}

/* What all queries q (query, width) and gradients grad (query, value width) leave at the keys j ... j + rows
 * - 1: dk (rows, width) and dv (rows, value width). Where dv is NULL, dk (rows, value width) gets their sum.
 */
static void NAMED(reverse_crowd_keys)(const NAMED(crowd) * at, int64_t j, int64_t rows, const REALS *q,
                                      const REALS *grad, int64_t grad_step, const REALS *weights,
                                      const REALS *slopes, REALS *dk, REALS *dv) {
    const int64_t keys = at->keys, e = at->width, f = at->value_width;
    int64_t first = 0; /* of the blocks of queries that see j */
    while (first < at->queries) {
        const int64_t next = first + NAMED(crowd_take)(at->queries - first);
        if (NAMED(crowd_sees)(at, next - 1) > j) break;
        first = next;
    }
    const NAMED(crowd_product) to_k = {at->queries - first, 1, keys, 1, at->q_step, dv ? e : f, grad_step};
    const NAMED(crowd_product) to_v = {at->queries - first, 1, keys, 1, grad_step, f, 0};
    const REALS *const weight = weights + first * keys + j, *const slope = slopes + first * keys + j;
    const REALS *const from_q = q + first * at->q_step, *const from_grad = grad + first * grad_step;
    if (dv) {
        NAMED(crowd_rows)(&to_k, rows, e, slope, from_q, NULL, NULL, dk);
        NAMED(crowd_rows)(&to_v, rows, f, weight, from_grad, NULL, NULL, dv);
    } else {
        NAMED(crowd_rows)(&to_k, rows, e, slope, from_q, weight, from_grad, dk);
        NAMED(crowd_rows)(&to_v, rows, f - e, weight, from_grad + e, NULL, NULL, dk + e);
    }
}

/* ---- attention of given queries, keys and values --------------------------------------------------------
 */

static int64_t NAMED(attend_room)(const spo_attention *at, int crowded, int reverse) {
    const int64_t e = at->width, f = at->value_width, n = at->queries, m = at->keys;
    if (crowded && reverse)
        return LANES * (n * (2 * e + 2 * f) + m * (e + f) + CROWD_MOST * (e + f) + 2 * n + f + 2 * n * m);
    if (crowded) return LANES * (n * (e + f) + m * (e + f) + 2 * n + CROWD_MOST * m + f);
    const int64_t rows = NAMED(padded)(e) + NAMED(padded)(f);
    if (reverse) return TILE_QUERIES * (2 * e + 2 * f + rows + 2 * TILE_KEYS);
    return TILE_QUERIES * (e + f + TILE_KEYS);
}

/* The next `count` numbers, a multiple of LANES, of a scratch. */
INLINE REAL *NAMED(take)(REAL **room, int64_t count) {
    REAL *const taken = *room;
    *room += count;
    return taken;
}

/* Score of a head's sink, and whether there is one. */
INLINE int NAMED(sink_of)(const spo_attention *at, int64_t head, REAL *score) {
    *score = at->sink ? ((const REAL *)at->sink)[head] : -(REAL)INFINITY;
    return *score > -(REAL)INFINITY;
}

INLINE REAL NAMED(sink_value)(const spo_attention *at, int64_t head, int64_t c) {
    return at->sink_value ? ((const REAL *)at->sink_value)[head * at->value_width + c] : (REAL)0;
}

INLINE NAMED(keys) NAMED(keys_of)(const spo_attend_job *job, int64_t problem) {
    const spo_attention *at = job->at;
    return (NAMED(keys)){at->width,
                         at->value_width,
                         at->width,
                         at->value_width,
                         (const REAL *)job->k + problem * at->keys * at->width,
                         (const REAL *)job->v + problem * at->keys * at->value_width};
}

INLINE void NAMED(row_offsets)(int64_t step, int64_t *offset) {
    for (int64_t r = 0; r < LANES; ++r) offset[r] = r * step;
}

/* log of a row's denominator; -infinity without any. */
INLINE REALS NAMED(lse_of)(REALS top, REALS sum) {
    const INTS empty = sum == (REALS){0};
    const REALS lse = top + OP(log)(OP(select)(empty, OP(set)(1), sum));
    return OP(select)(empty, OP(set)(-(REAL)INFINITY), lse);
}

INLINE REALS NAMED(share_of)(REALS sum) {
    const INTS empty = sum == (REALS){0};
    return OP (and)(1 / OP(select)(empty, OP(set)(1), sum), ~empty);
}

/* Adds the sink to what one vector has summed up. It comes last: scores that are taken less a top far from
 * them lose digits, and the sink may be as far from them as it likes. */
INLINE void NAMED(add_sink)(const spo_attention *at, int64_t head, REAL sink, REALS *top, REALS *sum,
                            REAL *out) {
    const REALS score = OP(set)(sink * (REAL)LOG2_E);
    const INTS empty = *sum == (REALS){0};
    const REALS highest = OP(select)(empty, score, OP(max)(*top, score));
    const REALS shrink = OP (and)(OP(weight2)(*top - highest), ~empty), weight = OP(weight2)(score - highest);
    for (int64_t c = 0; c < at->value_width; ++c, out += LANES)
        OP(store)(out, OP(fma)(weight, OP(set)(NAMED(sink_value)(at, head, c)), shrink * OP(load)(out)));
    *sum = OP(fma)(shrink, *sum, weight);
    *top = highest;
}

/* Queries first ... end - 1 of a problem. */
static void NAMED(attend_rows)(const spo_attend_job *job, int64_t problem, int64_t first, int64_t end,
                               void *scratch) {
    const spo_attention *at = job->at;
    const int64_t e = at->width, f = at->value_width, n = at->queries, head = problem % at->heads;
    const NAMED(keys) kv = NAMED(keys_of)(job, problem);
    const int64_t *visible = job->visible + problem / at->heads * job->visible_step;
    REAL *room = scratch, *q = NAMED(take)(&room, TILE_QUERIES * e);
    REAL *out = NAMED(take)(&room, TILE_QUERIES * f);
    const REALS scale = OP(set)((REAL)(at->scale * LOG2_E)), ln2 = OP(set)((REAL)LN2);
    REAL sink;
    const int has_sink = NAMED(sink_of)(at, head, &sink);
    int64_t q_offset[LANES], out_offset[LANES];
    NAMED(row_offsets)(e, q_offset);
    NAMED(row_offsets)(f, out_offset);
    for (int64_t i = first; i < end; i += TILE_QUERIES) {
        const NAMED(rows) rows = NAMED(rows_at)(i, end, visible);
        REALS top[TILE_VECTORS], sum[TILE_VECTORS];
        for (int64_t v = 0; v < rows.vectors; ++v) {
            const int64_t count = SMALLEST_COUNT(LANES, end - i - v * LANES);
            REAL *const panel = q + v * e * LANES;
            NAMED(pack)((const REAL *)at->q + (problem * n + i + v * LANES) * e, q_offset, count, e, panel);
            for (int64_t k = 0; k < e; ++k) OP(store)(panel + k * LANES, scale * OP(load)(panel + k * LANES));
            top[v] = sum[v] = (REALS){0};
            for (int64_t c = 0; c < f; ++c) OP(store)(out + (v * f + c) * LANES, (REALS){0});
        }
        NAMED(attend_tile)(&kv, &rows, 0, q, room, top, sum, out);
        for (int64_t v = 0; v < rows.vectors; ++v) {
            const int64_t count = SMALLEST_COUNT(LANES, end - i - v * LANES), at_row = i + v * LANES;
            REAL *const panel = out + v * f * LANES;
            if (has_sink) NAMED(add_sink)(at, head, sink, top + v, sum + v, panel);
            const REALS share = NAMED(share_of)(sum[v]);
            for (int64_t c = 0; c < f; ++c) OP(store)(panel + c * LANES, share * OP(load)(panel + c * LANES));
            NAMED(unpack)(panel, out_offset, count, f, (REAL *)job->out + (problem * n + at_row) * f);
            OP(store_first)((REAL *)job->lse + problem * n + at_row, NAMED(lse_of)(ln2 * top[v], sum[v]),
                            count);
        }
    }
}

/* Adds the lanes of x up, in double. */
INLINE double NAMED(total)(REALS x, int64_t count) {
    double total = 0;
    for (int64_t lane = 0; lane < count; ++lane) total += (double)x[lane];
    return total;
}

/* Gradients through the queries of one span of a problem: dq, and the span's part of dk, dv and the sink. */
static void NAMED(reverse_rows)(const spo_attend_job *job, int64_t problem, int64_t span, void *scratch) {
    const spo_attention *at = job->at;
    const int64_t e = at->width, f = at->value_width, n = at->queries, head = problem % at->heads;
    const int64_t pe = NAMED(padded)(e), pf = NAMED(padded)(f), first = job->span[span],
                  end = job->span[span + 1];
    const NAMED(keys) kv = NAMED(keys_of)(job, problem);
    const int64_t *visible = job->visible + problem / at->heads * job->visible_step;
    REAL *room = scratch;
    REAL *q = NAMED(take)(&room, TILE_QUERIES * e), *dq = NAMED(take)(&room, TILE_QUERIES * e);
    REAL *grad = NAMED(take)(&room, TILE_QUERIES * f), *out = NAMED(take)(&room, TILE_QUERIES * f);
    REAL *q_rows = NAMED(take)(&room, TILE_QUERIES * pe), *grad_rows = NAMED(take)(&room, TILE_QUERIES * pf);
    REAL *weights = NAMED(take)(&room, TILE_QUERIES * TILE_KEYS);
    const int64_t part = problem * job->spans + span;
    REAL *const partial = (REAL *)job->partial + part * at->keys * (pe + pf);
    double *const sink_part = job->sink_part + part * (1 + f);
    const REALS scale = OP(set)((REAL)at->scale), log2_e = OP(set)((REAL)LOG2_E);
    REALS minus_lse[TILE_VECTORS], minus_d[TILE_VECTORS];
    NAMED(reverse)
    to = {
        q,  grad,    q_rows,       grad_rows, minus_lse, minus_d, weights, weights + TILE_QUERIES * TILE_KEYS,
        dq, partial, partial + pe, pe + pf,   pe + pf};
    REAL sink;
    const int has_sink = NAMED(sink_of)(at, head, &sink);
    int64_t q_offset[LANES], out_offset[LANES], row_offset[LANES];
    NAMED(row_offsets)(e, q_offset);
    NAMED(row_offsets)(f, out_offset);
    NAMED(row_offsets)(pe, row_offset);
    memset(partial, 0, (size_t)(at->keys * (pe + pf)) * sizeof(REAL));
    memset(sink_part, 0, (size_t)(1 + f) * sizeof(double));
    for (int64_t i = first; i < end; i += TILE_QUERIES) {
        const NAMED(rows) rows = NAMED(rows_at)(i, end, visible);
        const int64_t here = SMALLEST_COUNT(TILE_QUERIES, end - i), start = problem * n + i;
        memset(dq, 0, (size_t)(TILE_QUERIES * e) * sizeof(REAL));
        memset(q_rows, 0, (size_t)(TILE_QUERIES * (pe + pf)) * sizeof(REAL));
        NAMED(pad_rows)((const REAL *)at->q + start * e, e, here, e, pe, q_rows);
        NAMED(pad_rows)((const REAL *)job->grad_out + start * f, f, here, f, pf, grad_rows);
        for (int64_t r = 0; r < here * pe; r += LANES) OP(store)(q_rows + r, scale * OP(load)(q_rows + r));
        for (int64_t v = 0; v < rows.vectors; ++v) {
            const int64_t count = SMALLEST_COUNT(LANES, here - v * LANES), at_row = start + v * LANES;
            REAL *const g = grad + v * f * LANES, *const o = out + v * f * LANES;
            NAMED(pack)(q_rows + v * LANES * pe, row_offset, LANES, e, q + v * e * LANES);
            for (int64_t k = v * e; k < (v + 1) * e; ++k)
                OP(store)(q + k * LANES, log2_e * OP(load)(q + k * LANES));
            NAMED(pack)((const REAL *)job->grad_out + at_row * f, out_offset, count, f, g);
            NAMED(pack)((const REAL *)job->out + at_row * f, out_offset, count, f, o);
            const REALS lse = OP(load_first)((const REAL *)job->lse + at_row, count);
            REALS d = {0};
            for (int64_t c = 0; c < f; ++c) d = OP(fma)(OP(load)(g + c * LANES), OP(load)(o + c * LANES), d);
            minus_d[v] = -d;
            minus_lse[v] = OP(select)(lse == -(REAL)INFINITY, OP(set)(NOTHING), -log2_e * lse);
            if (has_sink) {
                const REALS weight = OP(weight)(OP(set)(sink) - lse);
                REALS slope = -d;
                for (int64_t c = 0; c < f; ++c) {
                    const REALS gradient = OP(load)(g + c * LANES);
                    slope = OP(fma)(gradient, OP(set)(NAMED(sink_value)(at, head, c)), slope);
                    sink_part[1 + c] += NAMED(total)(weight * gradient, count);
                }
                sink_part[0] += NAMED(total)(weight * slope, count);
            }
        }
        NAMED(reverse_tile)(&kv, &rows, &to);
        for (int64_t v = 0; v < rows.vectors; ++v) {
            const int64_t count = SMALLEST_COUNT(LANES, here - v * LANES);
            REAL *const panel = dq + v * e * LANES;
            for (int64_t k = 0; k < e; ++k) OP(store)(panel + k * LANES, scale * OP(load)(panel + k * LANES));
            NAMED(unpack)(panel, q_offset, count, e, (REAL *)job->dq + (start + v * LANES) * e);
        }
    }
}

/* dk and dv of a problem: the sums over its spans, in their order, in the places of the keys. */
static void NAMED(collect)(const spo_attend_job *job, int64_t problem) {
    const spo_attention *at = job->at;
    const int64_t e = at->width, f = at->value_width, pe = NAMED(padded)(e), step = pe + NAMED(padded)(f);
    const int64_t group = problem / at->heads, count = job->count ? job->count[group] : at->keys;
    REAL *const dk = (REAL *)job->dk + problem * at->keys * e;
    REAL *const dv = (REAL *)job->dv + problem * at->keys * f;
    REAL *const sum = (REAL *)job->partial + problem * job->spans * at->keys * step;
    for (int64_t span = 1; span < job->spans; ++span)
        for (int64_t x = 0; x < at->keys * step; x += LANES)
            OP(store)(sum + x, OP(load)(sum + x) + OP(load)(sum + span * at->keys * step + x));
    if (job->count) {
        memset(dk, 0, (size_t)(at->keys * e) * sizeof(REAL));
        memset(dv, 0, (size_t)(at->keys * f) * sizeof(REAL));
    }
    for (int64_t j = 0; j < count; ++j) {
        const int64_t place = job->count ? job->kept[group * at->keys + j] : j;
        memcpy(dk + place * e, sum + j * step, (size_t)e * sizeof(REAL));
        memcpy(dv + place * f, sum + j * step + pe, (size_t)f * sizeof(REAL));
    }
}

/* LANES problems from `problem` on, without a key mask: queries (scaled), keys and values. */
static NAMED(crowd)
    NAMED(crowd_of)(const spo_attend_job *job, int64_t problem, int64_t count, REAL **room, REALS **queries) {
    const spo_attention *at = job->at;
    const int64_t e = at->width, f = at->value_width, n = at->queries, m = at->keys;
    REAL *q = NAMED(take)(room, n * e * LANES), *k = NAMED(take)(room, m * e * LANES);
    REAL *v = NAMED(take)(room, m * f * LANES);
    const REALS scale = OP(set)((REAL)at->scale);
    int64_t offset[LANES];
    NAMED(row_offsets)(n * e, offset);
    NAMED(pack)((const REAL *)at->q + problem * n * e, offset, count, n * e, q);
    for (int64_t x = 0; x < n * e * LANES; x += LANES) OP(store)(q + x, scale * OP(load)(q + x));
    NAMED(row_offsets)(m * e, offset);
    NAMED(pack)((const REAL *)at->k + problem * m * e, offset, count, m * e, k);
    NAMED(row_offsets)(m * f, offset);
    NAMED(pack)((const REAL *)at->v + problem * m * f, offset, count, m * f, v);
    *queries = (REALS *)q;
    return (NAMED(crowd)){n, m, e, f, at->causal ? m - n + 1 : m, (REALS *)k, (REALS *)v, e, e, f};
}

/* Scores of the sinks of LANES problems, -infinity where there is none; their values into `value`. */
static REALS NAMED(sinks_of)(const spo_attention *at, int64_t problem, int64_t count, REALS *value) {
    REALS sink;
    for (int64_t lane = 0; lane < LANES; ++lane) {
        const int64_t head = (problem + lane) % at->heads;
        REAL score;
        const int has_sink = NAMED(sink_of)(at, head, &score) && lane < count;
        sink[lane] = has_sink ? score : -(REAL)INFINITY;
        for (int64_t c = 0; c < at->value_width; ++c)
            value[c][lane] = has_sink ? NAMED(sink_value)(at, head, c) : (REAL)0;
    }
    return sink;
}

static void NAMED(attend_crowd)(const spo_attend_job *job, int64_t problem, void *scratch) {
    const spo_attention *at = job->at;
    const int64_t f = at->value_width, n = at->queries;
    const int64_t count = SMALLEST_COUNT(LANES, at->groups * at->heads - problem);
    REAL *room = scratch;
    REALS *q, begin_top = OP(set)(NOTHING), begin_sum = {0}, shrunk[CROWD_MOST];
    const NAMED(crowd) crowd = NAMED(crowd_of)(job, problem, count, &room, &q);
    REALS *const out = (REALS *)NAMED(take)(&room, n * f * LANES);
    REALS *const lse = (REALS *)NAMED(take)(&room, n * LANES);
    REALS *const value = (REALS *)NAMED(take)(&room, f * LANES);
    int64_t offset[LANES];
    if (at->sink) {
        const REALS sink = NAMED(sinks_of)(at, problem, count, value);
        const INTS none = sink == -(REAL)INFINITY;
        begin_top = OP(select)(none, begin_top, sink);
        begin_sum = OP (and)(OP(set)(1), ~none);
    }
    REALS *const weights = (REALS *)room;
    for (int64_t i = 0, rows; i < n; i += rows) {
        REALS top[CROWD_MOST], sum[CROWD_MOST];
        rows = NAMED(crowd_take)(n - i);
        for (int64_t r = 0; r < rows; ++r) top[r] = begin_top, sum[r] = begin_sum;
        const int64_t some = NAMED(score_crowd_block)(&crowd, i, rows, q + i * crowd.q_step, weights);
        NAMED(raise_crowd_block)(rows, crowd.keys, some, weights, top, sum);
        for (int64_t r = 0; r < rows; ++r) shrunk[r] = sum[r];
        NAMED(weigh_crowd_block)(rows, crowd.keys, some, weights, top, sum);
        NAMED(value_crowd_block)(&crowd, i, rows, weights, out + i * f, f);
        for (int64_t r = 0; r < rows; ++r) {
            const REALS share = NAMED(share_of)(sum[r]);
            REALS *const row = out + (i + r) * f;
            for (int64_t c = 0; c < f; ++c)
                row[c] = share * (at->sink ? OP(fma)(shrunk[r], value[c], row[c]) : row[c]);
            lse[i + r] = NAMED(lse_of)(top[r], sum[r]);
        }
    }
    NAMED(row_offsets)(n * f, offset);
    NAMED(unpack)((REAL *)out, offset, count, n * f, (REAL *)job->out + problem * n * f);
    NAMED(row_offsets)(n, offset);
    NAMED(unpack)((REAL *)lse, offset, count, n, (REAL *)job->lse + problem * n);
}

static void NAMED(reverse_crowd)(const spo_attend_job *job, int64_t problem, void *scratch) {
    const spo_attention *at = job->at;
    const int64_t e = at->width, f = at->value_width, n = at->queries, m = at->keys;
    const int64_t count = SMALLEST_COUNT(LANES, at->groups * at->heads - problem);
    REAL *room = scratch;
    REALS *q, sum[CROWD_MOST] = {{0}}; /* which is not asked for */
    const NAMED(crowd) crowd = NAMED(crowd_of)(job, problem, count, &room, &q);
    REALS *const grad = (REALS *)NAMED(take)(&room, n * f * LANES);
    REALS *const out = (REALS *)NAMED(take)(&room, n * f * LANES);
    REALS *const dq = (REALS *)NAMED(take)(&room, n * e * LANES);
    REALS *const dk = (REALS *)NAMED(take)(&room, CROWD_MOST * e * LANES);
    REALS *const dv = (REALS *)NAMED(take)(&room, CROWD_MOST * f * LANES);
    REALS *const lse = (REALS *)NAMED(take)(&room, n * LANES);
    REALS *const minus_d = (REALS *)NAMED(take)(&room, n * LANES);
    REALS *const value = (REALS *)NAMED(take)(&room, f * LANES);
    REALS *const weights = (REALS *)room, *const slopes = weights + n * m;
    int64_t offset[LANES], v_offset[LANES];
    NAMED(row_offsets)(n, offset);
    NAMED(pack)((const REAL *)job->lse + problem * n, offset, count, n, (REAL *)lse);
    NAMED(row_offsets)(n * f, offset);
    NAMED(pack)((const REAL *)job->grad_out + problem * n * f, offset, count, n * f, (REAL *)grad);
    NAMED(pack)((const REAL *)job->out + problem * n * f, offset, count, n * f, (REAL *)out);
    for (int64_t i = 0; i < n; ++i) {
        REALS d = {0};
        for (int64_t c = 0; c < f; ++c) d = OP(fma)(grad[i * f + c], out[i * f + c], d);
        minus_d[i] = -d;
        lse[i] =
            OP(select)(lse[i] == -(REAL)INFINITY, OP(set)(-NOTHING), lse[i]); /* of a row that sees none */
    }
    if (at->sink) {
        const REALS sink = NAMED(sinks_of)(at, problem, count, value);
        for (int64_t i = 0; i < n; ++i) {
            const REALS weight = OP(weight)(sink - lse[i]);
            REALS slope = minus_d[i];
            for (int64_t c = 0; c < f; ++c) slope = OP(fma)(grad[i * f + c], value[c], slope);
            slope *= weight;
            for (int64_t lane = 0; lane < count; ++lane) {
                double *const part = job->sink_part + (problem + lane) * (1 + f);
                part[0] = (i ? part[0] : 0) + (double)slope[lane];
                for (int64_t c = 0; c < f; ++c)
                    part[1 + c] = (i ? part[1 + c] : 0) + (double)(weight[lane] * grad[i * f + c][lane]);
            }
        }
    }
    for (int64_t i = 0, rows; i < n; i += rows) {
        rows = NAMED(crowd_take)(n - i);
        const int64_t some = NAMED(score_crowd_block)(&crowd, i, rows, q + i * e, weights + i * m);
        NAMED(weigh_crowd_block)(rows, m, some, weights + i * m, lse + i, sum);
        NAMED(reverse_crowd_block)(&crowd, i, rows, grad + i * f, f, minus_d + i, weights + i * m,
                                   slopes + i * m, dq + i * e);
    }
    for (int64_t x = 0; x < n * e; ++x) dq[x] *= OP(set)((REAL)at->scale);
    NAMED(row_offsets)(n * e, offset);
    NAMED(unpack)((REAL *)dq, offset, count, n * e, (REAL *)job->dq + problem * n * e);
    NAMED(row_offsets)(m * e, offset);
    NAMED(row_offsets)(m * f, v_offset);
    for (int64_t j = 0, rows; j < m; j += rows) {
        rows = NAMED(crowd_take)(m - j);
        NAMED(reverse_crowd_keys)(&crowd, j, rows, q, grad, f, weights, slopes, dk, dv);
        NAMED(unpack)((REAL *)dk, offset, count, rows * e, (REAL *)job->dk + (problem * m + j) * e);
        NAMED(unpack)((REAL *)dv, v_offset, count, rows * f, (REAL *)job->dv + (problem * m + j) * f);
    }
}
