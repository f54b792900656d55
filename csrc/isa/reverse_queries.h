/* The way back through softmax attention, by rows: a few queries against a vector of keys at a time, forward
 * for the sums of each query, and once more to go back, where a vector of keys is loaded and what comes back
 * to it is stored once for all queries abreast. */

/* Keys and values of one head, and what comes back to them; of edges those of one query, gathered. */
typedef struct {
    int64_t n, stride; /* keys; doubles from one row of k, v, dk, dv to the next */
    const double *k, *v;
    double *dk, *dv;
    double longest; /* of all keys */
    const double *knm;
    double reach;
} key_rows;

/* A query of one head: of k and v that it sees low ... high - 1, not `own`. */
typedef struct {
    int64_t own, low, high;
    const double *q; /* (width) */
    double *mixed;   /* (width): mean of the values */
    double *shift, *share;
    const double *grad; /* (width): gradient at the mean */
    double *dq;         /* (width) */
} one_query;

INLINE vd seen_of(const key_rows *a, const int masked, int64_t own, int64_t j, vd x) {
    const int64_t left = a->n - j;
    if (masked) {
        const double *row = a->knm + own * a->n + j;
        x = v_where_nonzero(left >= SPO_LANES ? v_load(row) : v_load_first(row, left), x);
        x = v_and(x, v_abs(V_IOTA + (double)(j - own)) <= a->reach);
    } else if (left < SPO_LANES) {
        x = v_and(x, V_IOTA < (double)left);
    }
    return own >= j && own < j + SPO_LANES ? v_and(x, v_but_lane(own - j)) : x;
}

INLINE vd logit_of(const int width, const double *q, const vd *key, vd start) {
    vd t = start;
    for (int e = 0; e < width; ++e) t = v_fma(v_set(q[e]), key[e], t);
    return t;
}

INLINE vd weight_of(const key_rows *a, const int width, const int masked, const int far, const one_query *at,
                    int64_t j, const vd *key) {
    const vd shift = v_set(*at->shift);
    const vd t = far ? v_max(logit_of(width, at->q, key, (vd){0}) - shift, v_set(LEAST_EXPONENT))
                     : logit_of(width, at->q, key, -shift);
    return seen_of(a, masked, at->own, j, v_exp2(t));
}

INLINE void load_rows(const int width, const double *rows, int64_t stride, int64_t j, vd *to) {
    for (int e = 0; e < width; ++e) to[e] = v_load(rows + e * stride + j);
}

/* No logit is larger, by Cauchy and Schwarz. */
INLINE double bound_of(const key_rows *a, const int width, const one_query *at) {
    double square = 0;
    for (int e = 0; e < width; ++e) square += at->q[e] * at->q[e];
    return sqrt(square) * a->longest;
}

/* Whether the bound is too far above for it to be what is subtracted from the logits. */
INLINE int any_far(const key_rows *a, const int width, int64_t rows, const one_query *at) {
    int far = 0;
    for (int64_t r = 0; r < rows; ++r) far |= !(bound_of(a, width, at + r) <= BOUND_LIMIT);
    return far;
}

/* The largest logit that is seen; 0 without any. */
INLINE double largest_seen(const key_rows *a, const int width, const int masked, const one_query *at,
                           vd *key) {
    vd largest = v_set(-INFINITY);
    for (int64_t j = at->low; j < at->high; j += SPO_LANES) {
        load_rows(width, a->k, a->stride, j, key);
        const vd seen = seen_of(a, masked, at->own, j, v_set(1.0));
        const vd t = logit_of(width, at->q, key, (vd){0});
        largest = v_max(v_select(seen != 0.0, t, v_set(-INFINITY)), largest);
    }
    const double top = v_largest(largest);
    return top > -INFINITY ? top : 0;
}

/* Mean values of some queries; room for (2 + rows) width vectors. */
INLINE void mix_rows(const key_rows *a, const int width, const int rows, const int masked, const int far,
                     const one_query *at, vd *room) {
    vd *const key = room, *const value = key + width, *const sum = value + width, total[4] = {{0}};
    for (int r = 0; r < rows; ++r)
        *at[r].shift = far ? largest_seen(a, width, masked, at + r, key) : bound_of(a, width, at + r);
    for (int e = 0; e < rows * width; ++e) sum[e] = (vd){0};
    for (int64_t j = at->low; j < at[rows - 1].high; j += SPO_LANES) {
        load_rows(width, a->k, a->stride, j, key);
        load_rows(width, a->v, a->stride, j, value);
        for (int r = 0; r < rows; ++r) {
            const vd weight = weight_of(a, width, masked, far, at + r, j, key);
            total[r] += weight;
            for (int e = 0; e < width; ++e) sum[r * width + e] = v_fma(weight, value[e], sum[r * width + e]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        const double all = v_sum(total[r]);
        *at[r].share = all > 0 || all != all ? 1.0 / all : 0.0;
        for (int e = 0; e < width; ++e) at[r].mixed[e] = *at[r].share * v_sum(sum[r * width + e]);
    }
}

/* Back from the gradients at the means; dq and dk come without the scale of the logits. Room for
 * (4 + rows) width vectors. */
INLINE void mix_rows_back(const key_rows *a, const int width, const int rows, const int masked, const int far,
                          const one_query *at, vd *room) {
    vd *const key = room, *const value = key + width, *const dkey = value + width;
    vd *const dvalue = dkey + width, *const sum = dvalue + width;
    double mean[4];
    for (int r = 0; r < rows; ++r) {
        mean[r] = 0;
        for (int e = 0; e < width; ++e) mean[r] += at[r].grad[e] * at[r].mixed[e];
    }
    for (int e = 0; e < rows * width; ++e) sum[e] = (vd){0};
    for (int64_t j = at->low; j < at[rows - 1].high; j += SPO_LANES) {
        load_rows(width, a->k, a->stride, j, key);
        load_rows(width, a->v, a->stride, j, value);
        load_rows(width, a->dk, a->stride, j, dkey);
        load_rows(width, a->dv, a->stride, j, dvalue);
        for (int r = 0; r < rows; ++r) {
            const vd weight = *at[r].share * weight_of(a, width, masked, far, at + r, j, key);
            vd slope = v_set(-mean[r]);
            for (int e = 0; e < width; ++e) {
                slope = v_fma(v_set(at[r].grad[e]), value[e], slope);
                dvalue[e] = v_fma(v_set(at[r].grad[e]), weight, dvalue[e]);
            }
            slope *= weight;
            for (int e = 0; e < width; ++e) {
                sum[r * width + e] = v_fma(slope, key[e], sum[r * width + e]);
                dkey[e] = v_fma(v_set(at[r].q[e]), slope, dkey[e]);
            }
        }
        for (int e = 0; e < width; ++e) {
            v_store(a->dk + e * a->stride + j, dkey[e]);
            v_store(a->dv + e * a->stride + j, dvalue[e]);
        }
    }
    for (int r = 0; r < rows; ++r)
        for (int e = 0; e < width; ++e) at[r].dq[e] = v_sum(sum[r * width + e]);
}

/* One function for each common head width, so that its vectors stay in registers, for as many queries abreast
 * as these allow, or one. Logits are rarely far: those share their code with masked ones. */
#define MIX_OF_WIDTH(NAME, WIDTH, ROWS)                                                                      \
    static SPO_APART void NAME(const key_rows *a, int masked, int back, const one_query *at) {               \
        vd room[(4 + ROWS) * WIDTH];                                                                         \
        if (any_far(a, WIDTH, ROWS, at))                                                                     \
            back ? mix_rows_back(a, WIDTH, ROWS, masked, 1, at, room)                                        \
                 : mix_rows(a, WIDTH, ROWS, masked, 1, at, room);                                            \
        else if (masked)                                                                                     \
            back ? mix_rows_back(a, WIDTH, ROWS, 1, 0, at, room) : mix_rows(a, WIDTH, ROWS, 1, 0, at, room); \
        else                                                                                                 \
            back ? mix_rows_back(a, WIDTH, ROWS, 0, 0, at, room) : mix_rows(a, WIDTH, ROWS, 0, 0, at, room); \
    }
MIX_OF_WIDTH(mix_four_of_1, 1, 4)
MIX_OF_WIDTH(mix_one_of_1, 1, 1)
MIX_OF_WIDTH(mix_four_of_2, 2, 4)
MIX_OF_WIDTH(mix_one_of_2, 2, 1)
MIX_OF_WIDTH(mix_one_of_4, 4, 1)
MIX_OF_WIDTH(mix_one_of_8, 8, 1)

static SPO_APART void mix_one(const key_rows *a, int width, int masked, int back, const one_query *at,
                              vd *room) {
    const int far = any_far(a, width, 1, at);
    if (back)
        mix_rows_back(a, width, 1, masked, far, at, room);
    else
        mix_rows(a, width, 1, masked, far, at, room);
}

#define QUERIES_ABREAST 4

/* Some queries, QUERIES_ABREAST of them at once where that is faster. */
static void mix(const key_rows *a, int64_t width, int masked, int back, int64_t count, const one_query *at,
                vd *room) {
    if (count == QUERIES_ABREAST && width == 1) {
        mix_four_of_1(a, masked, back, at);
    } else if (count == QUERIES_ABREAST && width == 2) {
        mix_four_of_2(a, masked, back, at);
    } else {
        for (int64_t r = 0; r < count; ++r) switch (width) {
            case 1: mix_one_of_1(a, masked, back, at + r); break;
            case 2: mix_one_of_2(a, masked, back, at + r); break;
            case 4: mix_one_of_4(a, masked, back, at + r); break;
            case 8: mix_one_of_8(a, masked, back, at + r); break;
            default: mix_one(a, (int)width, masked, back, at + r, room);
            }
    }
}
