/* The way back: from gradients at K' to those at everything it is made of, and from those at the end of steps
 * to those at their beginning. What is computed stands in spo_fast/derivatives.py.
 *
 * Attention is gone through by rows: a few queries against a vector of keys at a time, forward for the sums
 * of each query, and once more to go back, where a vector of keys is loaded and what comes back to it is
 * stored once for all queries abreast. Heads are independent of each other, and are the parts of shared work.
 * Along edges the keys of one query are gathered first, and what comes back to them is scattered. */

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

/* ---- one modulation --------------------------------------------------------------------------------------
 */

/* Everything of a way back; rows of padded oscillators by feature, or rows of d_model by oscillator. */
typedef struct {
    int64_t n, padded, d_model, width, heads, rows;
    const spo_modulation *m;
    attention a; /* features, queries, keys, values */
    int masked, back;
    double *unit, *dq, *dk, *dv, *dx; /* by feature */
    double *mixed, *outputs, *dmixed; /* by oscillator; outputs: their gradient */
    double *shift, *share, *length;   /* (heads, padded), the same, (padded) */
    double *room; /* of each worker `own` doubles: (QUERIES_ABREAST, padded), reverse_room */
    int64_t own;
    double *slope; /* of each part of the pairs */
    const double *knm, *mean;
    double *dknm;
} reverse_modulation;

/* Doubles of room that each worker has. */
static int64_t reverse_own(int64_t n, const spo_modulation *m) {
    return QUERIES_ABREAST * spo_padded(n) + (5 * SPO_PAD + 2 * QUERIES_ABREAST) * (m->d_model / m->n_heads);
}

/* What mix takes of it, and room for queries and the gradients at them, (QUERIES_ABREAST, width) each. */
INLINE vd *reverse_room(const reverse_modulation *w, int32_t worker, double **q, double **dq) {
    double *const vectors = w->room + worker * w->own + QUERIES_ABREAST * w->padded;
    *q = vectors + 5 * SPO_PAD * w->width;
    *dq = *q + QUERIES_ABREAST * w->width;
    return (vd *)vectors;
}

static int64_t reverse_scratch(int64_t n, const spo_modulation *m, int32_t workers) {
    const int64_t padded = spo_padded(n);
    return SPO_PAD + 12 * m->d_model * padded + (2 * m->n_heads + 2) * padded +
           workers * (spo_attention_own(m) + spo_padded(reverse_own(n, m)));
}

static double *taken(double **from, int64_t count) {
    double *const first = *from;
    *from += count;
    return first;
}

static reverse_modulation reverse_in(int64_t n, const double *knm, const spo_modulation *m, int32_t workers,
                                     double *scratch) {
    const int64_t padded = spo_padded(n), line = m->d_model * padded;
    const int64_t reach = m->block_size < 0 ? n : m->block_size;
    reverse_modulation w = {.n = n, .padded = padded, .d_model = m->d_model, .heads = m->n_heads, .m = m};
    double *from = spo_aligned(scratch), *x = taken(&from, 4 * line);
    w.width = m->d_model / m->n_heads;
    w.unit = taken(&from, line), w.dx = taken(&from, line);
    w.dq = taken(&from, line), w.dk = taken(&from, line), w.dv = taken(&from, line);
    w.mixed = taken(&from, line), w.outputs = taken(&from, line), w.dmixed = taken(&from, line);
    w.shift = taken(&from, m->n_heads * padded), w.share = taken(&from, m->n_heads * padded);
    w.length = taken(&from, padded), w.slope = taken(&from, padded);
    w.own = spo_padded(reverse_own(n, m)), w.room = taken(&from, workers * w.own);
    w.a = attention_in(n, knm, m, (double)reach, workers, x, from);
    w.knm = knm;
    return w;
}

/* Forward or back through all queries of one head. */
static SPO_APART void reverse_head(void *context, int64_t h, int32_t worker) {
    const reverse_modulation *w = context;
    const attention_head head = head_of(&w->a, h);
    const int64_t first = h * w->width * w->padded, width = w->width, reach = (int64_t)w->a.reach;
    double *q, *dq;
    vd *const room = reverse_room(w, worker, &q, &dq);
    const key_rows keys = {w->n,          w->padded,        head.k, head.v,    w->dk + first,
                           w->dv + first, head.longest_key, w->knm, w->a.reach};
    for (int64_t i = 0; i < w->n; i += QUERIES_ABREAST) {
        const int64_t count = w->n - i < QUERIES_ABREAST ? w->n - i : QUERIES_ABREAST;
        const int64_t low = i > reach ? (i - reach) / SPO_LANES * SPO_LANES : 0;
        const int64_t high = i + count + reach < w->n ? i + count + reach : w->n;
        one_query at[QUERIES_ABREAST];
        for (int64_t r = 0; r < count; ++r) {
            const int64_t place = (i + r) * w->d_model + h * width;
            for (int64_t e = 0; e < width; ++e) q[r * width + e] = head.q[e * w->padded + i + r];
            at[r] = (one_query){i + r,
                                low,
                                high,
                                q + r * width,
                                w->mixed + place,
                                w->shift + h * w->padded + i + r,
                                w->share + h * w->padded + i + r,
                                w->dmixed + place,
                                dq + r * width};
        }
        mix(&keys, width, w->masked, w->back, count, at, room);
        if (w->back)
            for (int64_t r = 0; r < count; ++r)
                for (int64_t e = 0; e < width; ++e) w->dq[first + e * w->padded + i + r] = dq[r * width + e];
    }
}

static void reverse_heads(reverse_modulation *w, int back, int32_t workers) {
    w->back = back;
    if (back) {
        const size_t line = (size_t)(w->d_model * w->padded) * sizeof(double);
        memset(w->dq, 0, line), memset(w->dk, 0, line), memset(w->dv, 0, line);
    }
    spo_share(w->heads, spo_workers_from(workers, w->n, DIRECT_FROM), reverse_head, w);
}

/* Unit outputs of all oscillators, and the lengths of the outputs. */
static void reverse_units(const reverse_modulation *w) {
    const int64_t d = w->d_model;
    for (int64_t i = 0; i < w->n; ++i) {
        const double *y = w->mixed + i * d;
        double *o = w->outputs + i * d, square = 0;
        memset(o, 0, (size_t)d * sizeof *o);
        for (int64_t f = 0; f < d; ++f)
            for (int64_t c = 0; c < d; ++c) o[c] += y[f] * w->m->w_o[f * d + c];
        for (int64_t c = 0; c < d; ++c) square += o[c] * o[c];
        w->length[i] = sqrt(square);
        for (int64_t c = 0; c < d; ++c) w->unit[c * w->padded + i] = o[c] / (w->length[i] + NORM_FLOOR);
    }
    for (int64_t c = 0; c < d; ++c)
        for (int64_t i = w->n; i < w->padded; ++i) w->unit[c * w->padded + i] = 0;
}

/* From the gradients at the unit outputs, which stand in outputs and become those at the outputs, to those at
 * the mean values and at W_O. */
static void reverse_outputs(const reverse_modulation *w, double *dw_o) {
    const int64_t d = w->d_model;
    memset(dw_o, 0, (size_t)(d * d) * sizeof *dw_o);
    for (int64_t i = 0; i < w->n; ++i) {
        double *const o = w->outputs + i * d, *const back = w->dmixed + i * d, along = 0;
        const double *const y = w->mixed + i * d, length = w->length[i];
        for (int64_t c = 0; c < d; ++c) along += o[c] * w->unit[c * w->padded + i];
        const double radial = length > 0 ? along / length : 0; /* no direction at length 0 */
        for (int64_t c = 0; c < d; ++c)
            o[c] = o[c] / (length + NORM_FLOOR) - radial * w->unit[c * w->padded + i];
        for (int64_t f = 0; f < d; ++f) {
            double sum = 0;
            for (int64_t c = 0; c < d; ++c) {
                sum += o[c] * w->m->w_o[f * d + c];
                dw_o[f * d + c] += y[f] * o[c];
            }
            back[f] = sum;
        }
    }
}

/* Some rows of pairs: S in dknm becomes dK; felt (rows, padded) becomes S mean(K), 0 where nothing is felt.
 * Returns the sum of felt a. */
INLINE double pair_rows(const reverse_modulation *w, const int rows, const int64_t d_model, int64_t i,
                        double *felt) {
    const int64_t n = w->n, padded = w->padded;
    const vd half = v_set(0.5), lambda = v_set(w->m->lambda);
    vd slope = {0};
    for (int64_t j = 0; j < n; j += SPO_LANES) {
        const int64_t left = n - j < SPO_LANES ? n - j : SPO_LANES;
        vd agreement[QUERIES_ABREAST];
        for (int r = 0; r < rows; ++r) agreement[r] = (vd){0};
        for (int64_t e = 0; e < d_model; ++e) {
            const double *line = w->unit + e * padded;
            const vd column = v_once(v_load(line + j));
            for (int r = 0; r < rows; ++r) agreement[r] = v_fma(v_set(line[i + r]), column, agreement[r]);
        }
        for (int r = 0; r < rows; ++r) {
            double *const to = w->dknm + (i + r) * n + j;
            agreement[r] = v_fma(half, agreement[r], half);
            const vd near = v_abs(V_IOTA + (double)(j - i - r));
            const vi inside = (vi)(near <= w->a.reach) & (vi)(near != 0.0);
            const vd s = v_and(v_load_first(to, left), near != 0.0);
            const vd edge = v_load_first(w->knm + (i + r) * n + j, left);
            const vd mean = w->mean == w->knm ? edge : v_load_first(w->mean + (i + r) * n + j, left);
            const vd acts = v_and(s * mean, inside);
            v_store(felt + r * padded + j, acts);
            slope = v_fma(acts, agreement[r], slope);
            const vd gain = v_and(v_where_nonzero(edge, lambda * agreement[r]), inside);
            v_store_first(to, v_fma(s, gain, s), left);
        }
    }
    return v_sum(slope);
}

/* lambda felt_r . unit_e for two features of some rows. */
INLINE void pull_pairs(const reverse_modulation *w, const int rows, int64_t i, int64_t e,
                       const double *felt) {
    const int64_t padded = w->padded;
    const double *first = w->unit + e * padded, *second = first + padded;
    vd sum[2][QUERIES_ABREAST] = {{{0}}};
    for (int64_t j = 0; j < padded; j += SPO_LANES) {
        const vd a = v_load(first + j), b = v_load(second + j);
        for (int r = 0; r < rows; ++r) {
            const vd acts = v_load(felt + r * padded + j);
            sum[0][r] = v_fma(acts, a, sum[0][r]);
            sum[1][r] = v_fma(acts, b, sum[1][r]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        w->outputs[(i + r) * w->d_model + e] = w->m->lambda * v_sum(sum[0][r]);
        w->outputs[(i + r) * w->d_model + e + 1] = w->m->lambda * v_sum(sum[1][r]);
    }
}

static SPO_APART double pairs_of_four(const reverse_modulation *w, int64_t i, double *felt) {
    const double slope = w->d_model == 8 ? pair_rows(w, QUERIES_ABREAST, 8, i, felt)
                                         : pair_rows(w, QUERIES_ABREAST, w->d_model, i, felt);
    for (int64_t e = 0; e < w->d_model; e += 2) pull_pairs(w, QUERIES_ABREAST, i, e, felt);
    return slope;
}

static SPO_APART double pairs_of_one(const reverse_modulation *w, int64_t i, double *felt) {
    const double slope = pair_rows(w, 1, w->d_model, i, felt);
    for (int64_t e = 0; e < w->d_model; e += 2) pull_pairs(w, 1, i, e, felt);
    return slope;
}

static SPO_APART void reverse_pairs(void *context, int64_t part, int32_t worker) {
    const reverse_modulation *w = context;
    const int64_t from = part * w->rows, to = from + w->rows < w->n ? from + w->rows : w->n;
    double *const felt = w->room + worker * w->own;
    int64_t i = from;
    w->slope[part] = 0;
    memset(felt, 0, (size_t)(QUERIES_ABREAST * w->padded) * sizeof *felt);
    for (; i + QUERIES_ABREAST <= to; i += QUERIES_ABREAST) w->slope[part] += pairs_of_four(w, i, felt);
    for (; i < to; ++i) w->slope[part] += pairs_of_one(w, i, felt);
}

/* Of two rows over the oscillators. */
INLINE double row_dot(int64_t padded, const double *a, const double *b) {
    vd sum[2] = {{0}};
    for (int64_t i = 0; i < padded; i += SPO_PAD)
        for (int64_t j = 0; j < SPO_PAD; j += SPO_LANES)
            sum[j / SPO_LANES % 2] = v_fma(v_load(a + i + j), v_load(b + i + j), sum[j / SPO_LANES % 2]);
    return v_sum(sum[0] + sum[1]);
}

static void row_scale(int64_t padded, double factor, double *row) {
    for (int64_t i = 0; i < padded; i += SPO_LANES) v_store(row + i, factor * v_load(row + i));
}

/* From the gradients at x W to those at W and, which grow, at x. */
static void reverse_projection(const reverse_modulation *w, const double *weights, const double *back,
                               double *dweights) {
    const int64_t padded = w->padded;
    for (int64_t h = 0; h < w->heads; ++h)
        for (int64_t f = 0; f < w->d_model; ++f)
            for (int64_t e = 0; e < w->width; ++e) {
                const int64_t at = (h * w->d_model + f) * w->width + e;
                const double *row = back + (h * w->width + e) * padded;
                double *const to = w->dx + f * padded;
                const vd weight = v_set(weights[at]);
                dweights[at] = row_dot(padded, w->a.x + f * padded, row);
                for (int64_t i = 0; i < padded; i += SPO_LANES)
                    v_store(to + i, v_fma(weight, v_load(row + i), v_load(to + i)));
            }
}

/* What follows the attention of all heads. */
static void reverse_close(const reverse_modulation *w, const spo_modulation_gradients *to) {
    const int64_t padded = w->padded, d = w->d_model;
    for (int64_t h = 0; h < w->heads; ++h) {
        const double tau = w->m->temperature[h], scale = 1.0 / (sqrt((double)w->width) * tau);
        double slope = 0;
        for (int64_t row = h * w->width; row < (h + 1) * w->width; ++row) {
            slope += row_dot(padded, w->a.q + row * padded, w->dq + row * padded);
            row_scale(padded, scale, w->dq + row * padded);
            row_scale(padded, LN2, w->dk + row * padded);
        }
        to->temperature[h] = -LN2 * slope / tau;
    }
    memset(w->dx, 0, (size_t)(d * padded) * sizeof(double));
    reverse_projection(w, w->m->w_q, w->dq, to->w_q);
    reverse_projection(w, w->m->w_k, w->dk, to->w_k);
    reverse_projection(w, w->m->w_v, w->dv, to->w_v);
    for (int64_t i = 0; i < w->n; i += SPO_LANES) {
        vd sum = {0};
        for (int64_t m = 0; m < d; m += 2) {
            const double *x = w->a.x + m * padded + i, *dx = w->dx + m * padded + i;
            const vd turned = v_fma(v_load(x), v_load(dx + padded), -(v_load(x + padded) * v_load(dx)));
            sum = v_fma(v_set((double)(m / 2 + 1)), turned, sum);
        }
        v_store_first(to->theta + i, sum, w->n - i < SPO_LANES ? w->n - i : SPO_LANES);
    }
}

static int32_t modulate_vjp(int64_t n, const double *knm, const double *mean, int32_t traits,
                            const double *theta, const spo_modulation *m, const double *grad, int32_t workers,
                            double *scratch, const spo_modulation_gradients *to) {
    reverse_modulation w = reverse_in(n, knm, m, workers, scratch);
    if (project_all(m, theta, &w.a, NULL)) return SPO_NONFINITE_PHASE;
    w.mean = mean ? mean : knm, w.dknm = to->knm;
    w.masked = w.a.reach < (double)(n - 1) || !(traits & SPO_ALL_EDGES);
    reverse_heads(&w, 0, workers);
    reverse_units(&w);
    symmetrise(n, grad, to->knm);
    w.rows = spo_rows_of_part(PRODUCT_PART);
    const int64_t parts = spo_parts(n, w.rows);
    spo_share(parts, spo_workers_from(workers, n, PRODUCT_FROM), reverse_pairs, &w);
    *to->lambda = 0;
    for (int64_t part = 0; part < parts; ++part) *to->lambda += w.slope[part];
    reverse_outputs(&w, to->w_o);
    reverse_heads(&w, 1, workers);
    reverse_close(&w, to);
    return SPO_OK;
}

/* ---- along edges -----------------------------------------------------------------------------------------
 */

/* Keys and values of the neighbours of one query, and room for what comes back to them: (4, d_model, room).
 */
typedef struct {
    int64_t room;
    double *near;
    int32_t *seen;
} neighbourhood;

/* One query, all heads. */
static void reverse_edges_of(const reverse_modulation *w, const spo_sparse *sparse, int64_t i,
                             const neighbourhood *by) {
    const int64_t d = w->d_model, padded = w->padded, room = by->room;
    const int64_t count = seen_columns(sparse, w->knm, i, (int64_t)w->a.reach, by->seen);
    const int64_t whole = (count + SPO_LANES - 1) / SPO_LANES * SPO_LANES;
    double *const near = by->near, *const far = near + 2 * d * room, *q, *dq;
    vd *const vectors = reverse_room(w, 0, &q, &dq);
    for (int64_t f = 0; f < 2 * d; ++f) {
        const double *row = w->a.k + f * padded; /* keys, then values */
        for (int64_t m = 0; m < count; ++m) near[f * room + m] = row[by->seen[m]];
        for (int64_t m = count; m < whole; ++m) near[f * room + m] = 0;
        if (w->back) memset(far + f * room, 0, (size_t)whole * sizeof(double));
    }
    for (int64_t h = 0; h < w->heads; ++h) {
        const int64_t first = h * w->width;
        const key_rows keys = {count,
                               room,
                               near + first * room,
                               near + (d + first) * room,
                               far + first * room,
                               far + (d + first) * room,
                               w->a.longest[h],
                               NULL,
                               0};
        const one_query at = {-1,
                              0,
                              count,
                              q,
                              w->mixed + i * d + first,
                              w->shift + h * padded + i,
                              w->share + h * padded + i,
                              w->dmixed + i * d + first,
                              dq};
        for (int64_t e = 0; e < w->width; ++e) q[e] = w->a.q[(first + e) * padded + i];
        mix(&keys, w->width, 0, w->back, 1, &at, vectors);
        if (w->back)
            for (int64_t e = 0; e < w->width; ++e) w->dq[(first + e) * padded + i] = dq[e];
    }
    if (w->back)
        for (int64_t f = 0; f < 2 * d; ++f) {
            double *const row = f < d ? w->dk + f * padded : w->dv + (f - d) * padded;
            for (int64_t m = 0; m < count; ++m) row[by->seen[m]] += far[f * room + m];
        }
}

/* Entries of one row: dK, and the gradient at a unit output; returns the row's share of that at lambda. */
static double reverse_entries(const reverse_modulation *w, const spo_sparse *sparse, int64_t i,
                              const double *units, const int64_t *mirror, const double *grad) {
    const int64_t d = w->d_model;
    const double *own = units + i * d, lambda = w->m->lambda;
    double *const pull = w->outputs + i * d, slope = 0;
    memset(pull, 0, (size_t)d * sizeof *pull);
    for (int64_t e = sparse->start[i]; e < sparse->start[i + 1]; ++e) {
        const int64_t j = sparse->column[e], distance = i < j ? j - i : i - j;
        const double s = distance ? 0.5 * (grad[e] + grad[mirror[e]]) : 0, acts = s * sparse->mean[e];
        w->dknm[e] = s;
        if (!distance || (double)distance > w->a.reach) continue;
        const double *other = units + j * d;
        double dot = 0;
        for (int64_t c = 0; c < d; ++c) {
            dot += own[c] * other[c];
            pull[c] += lambda * acts * other[c];
        }
        slope += acts * 0.5 * (1 + dot);
        if (w->knm[e] != 0) w->dknm[e] = s * (1 + lambda * 0.5 * (1 + dot));
    }
    return slope;
}

static int64_t longest_row(int64_t n, const spo_sparse *sparse) {
    int64_t longest = 0;
    for (int64_t i = 0; i < n; ++i)
        if (sparse->start[i + 1] - sparse->start[i] > longest)
            longest = sparse->start[i + 1] - sparse->start[i];
    return spo_padded(longest);
}

static int64_t reverse_sparse_scratch(int64_t n, const spo_sparse *sparse, const spo_modulation *m) {
    return reverse_scratch(n, m, 1) + (4 * m->d_model + 1) * longest_row(n, sparse) + SPO_PAD;
}

static int32_t modulate_sparse_vjp(int64_t n, const spo_sparse *sparse, const double *knm,
                                   const int64_t *mirror, const double *theta, const spo_modulation *m,
                                   const double *grad, double *scratch, const spo_modulation_gradients *to) {
    reverse_modulation w = reverse_in(n, knm, m, 1, scratch);
    const int64_t room = longest_row(n, sparse), d = w.d_model;
    double *const more = spo_aligned(scratch + reverse_scratch(n, m, 1));
    const neighbourhood by = {room, more, (int32_t *)(more + 4 * d * room)};
    if (project_all(m, theta, &w.a, NULL)) return SPO_NONFINITE_PHASE;
    w.dknm = to->knm;
    for (int64_t i = 0; i < n; ++i) reverse_edges_of(&w, sparse, i, &by);
    reverse_units(&w);
    for (int64_t i = 0; i < n; ++i) /* by oscillator, where an edge finds them side by side */
        for (int64_t c = 0; c < d; ++c) w.dmixed[i * d + c] = w.unit[c * w.padded + i];
    *to->lambda = 0;
    for (int64_t i = 0; i < n; ++i) *to->lambda += reverse_entries(&w, sparse, i, w.dmixed, mirror, grad);
    reverse_outputs(&w, to->w_o);
    w.back = 1;
    memset(w.dq, 0, (size_t)(3 * d * w.padded) * sizeof(double)); /* dk and dv follow */
    for (int64_t i = 0; i < n; ++i) reverse_edges_of(&w, sparse, i, &by);
    reverse_close(&w, to);
    return SPO_OK;
}

/* ---- steps -----------------------------------------------------------------------------------------------
 *
 * The tape keeps of each stage rows of sines, cosines, P and Q (drift.h), zeros behind the n-th. */

/* K s and K c of a symmetric K that is packed, each pair visited once. */
static void packed_sums(const spo_flow *flow, const double *s, const double *c, double *pull, double *push,
                        double *sums) {
    walk p = {.n = flow->n,
              .padded = spo_padded(flow->n),
              .k = flow->packed,
              .s = s,
              .c = c,
              .pull = pull,
              .push = push,
              .kind = PAIRS,
              .sums = sums};
    walk_all(&p, 0, 1);
}

/* f of a state, and what the way back needs of it. */
static void follow_stage(const spo_flow *flow, const double *state, const double *omega, double *kept,
                         double *pairs, double *f) {
    const int64_t n = flow->n, padded = spo_padded(n);
    double *const s = kept, *const c = s + padded, *const p = c + padded, *const q = p + padded;
    sincos_padded(n, 0, padded, state, s, c);
    for (int64_t i = n; i < padded; ++i) p[i] = q[i] = 0;
    if (flow->sparse) {
        interleave(n, s, c, (v2 *)pairs);
        pull_sparse(0, n, flow->sparse, flow->kc, flow->ks, (const v2 *)pairs, p, q);
    } else if (flow->packed) {
        packed_sums(flow, s, c, p, q, pairs);
    } else if (flow->ks) {
        pull_range(n, 0, n, 1, flow->kc, flow->ks, s, c, p, q);
    } else {
        pull_range(n, 0, n, 0, flow->kc, flow->kc, s, c, p, q);
    }
    const vd turn_cosine = v_set(flow->turn_cosine), turn_sine = v_set(flow->turn_sine);
    const vd drive_sine = v_set(flow->zeta * flow->psi_sine);
    const vd drive_cosine = v_set(flow->zeta * flow->psi_cosine);
    for (int64_t i = 0; i < padded; i += SPO_LANES) {
        const vd pi = v_load(p + i), qi = v_load(q + i);
        const vd along = v_fma(pi, turn_cosine, -(qi * turn_sine)) + drive_sine;
        const vd across = v_fma(qi, turn_cosine, pi * turn_sine) + drive_cosine;
        v_store(f + i, v_fma(v_load(c + i), along, v_fma(-v_load(s + i), across, v_load(omega + i))));
    }
}

INLINE void advance_by(int64_t padded, const double *theta, double dt, const double *f, double *to) {
    for (int64_t i = 0; i < padded; i += SPO_LANES)
        v_store(to + i, v_fma(v_set(dt), v_load(f + i), v_load(theta + i)));
}

/* (theta, trial, omega, four slopes, a stage that is not kept, sines and cosines side by side or sums
 * of the parts of a walk over pairs), padded */
#define FOLLOW_LINES 13
/* (after, back, stage, x, y, along, across, and the same), padded */
#define GO_BACK_LINES 13

static int64_t flow_scratch(int64_t n) {
    return SPO_PAD + (FOLLOW_LINES + 2 * spo_pair_parts(n)) * spo_padded(n);
}

static void follow(const spo_flow *flow, double *state, int64_t steps, int64_t slot, double *scratch) {
    const int64_t n = flow->n, padded = spo_padded(n), stage = 4 * padded;
    double *const theta = spo_aligned(scratch), *const trial = theta + padded, *const omega = trial + padded;
    double *const k = omega + padded, *const aside = k + stage, *const pairs = aside + stage;
    const double dt = flow->dt;
    memset(theta, 0, (size_t)(3 * padded) * sizeof(double));
    memcpy(theta, state, (size_t)n * sizeof(double));
    memcpy(omega, flow->omega, (size_t)n * sizeof(double));
    for (int64_t step = 0; step < steps; ++step) {
        double *const kept = slot < 0 ? aside : flow->tape + (slot + step) * flow->stages * stage;
        const int64_t next = slot < 0 ? 0 : stage;
        follow_stage(flow, theta, omega, kept, pairs, k);
        if (flow->stages == 1) {
            advance_by(padded, theta, dt, k, theta);
        } else {
            advance_by(padded, theta, 0.5 * dt, k, trial);
            follow_stage(flow, trial, omega, kept + next, pairs, k + padded);
            advance_by(padded, theta, 0.5 * dt, k + padded, trial);
            follow_stage(flow, trial, omega, kept + 2 * next, pairs, k + 2 * padded);
            advance_by(padded, theta, dt, k + 2 * padded, trial);
            follow_stage(flow, trial, omega, kept + 3 * next, pairs, k + 3 * padded);
            for (int64_t i = 0; i < padded; i += SPO_LANES) {
                const vd inner = v_load(k + padded + i) + v_load(k + 2 * padded + i);
                const vd sum = v_fma(v_set(2.0), inner, v_load(k + i) + v_load(k + 3 * padded + i));
                v_store(theta + i, v_fma(v_set(dt / 6.0), sum, v_load(theta + i)));
            }
        }
        for (int64_t i = 0; i < padded; i += SPO_LANES) v_store(theta + i, v_wrap(v_load(theta + i)));
    }
    memcpy(state, theta, (size_t)n * sizeof(double));
}

#define PUSH_ROWS 4

/* along += K^T x, across += K^T y of some rows of K. */
INLINE void push_rows(int64_t n, const int rows, const double *k, const double *x, const double *y,
                      double *along, double *across) {
    for (int64_t j = 0; j < n; j += SPO_LANES) {
        const int64_t left = n - j;
        vd a = v_load(along + j), b = v_load(across + j);
        for (int r = 0; r < rows; ++r) {
            const double *at = k + r * n + j;
            const vd entry = v_once(left >= SPO_LANES ? v_load(at) : v_load_first(at, left));
            a = v_fma(v_set(x[r]), entry, a);
            b = v_fma(v_set(y[r]), entry, b);
        }
        v_store(along + j, a);
        v_store(across + j, b);
    }
}

static SPO_APART void push_all(int64_t n, const double *k, const double *x, const double *y, double *along,
                               double *across) {
    int64_t i = 0;
    for (; i + PUSH_ROWS <= n; i += PUSH_ROWS)
        push_rows(n, PUSH_ROWS, k + i * n, x + i, y + i, along, across);
    for (; i < n; ++i) push_rows(n, 1, k + i * n, x + i, y + i, along, across);
}

/* The same along edges, (along, across) side by side, and the gradients at the entries. */
static SPO_APART void push_edges(const spo_flow *flow, const double *kept, const double *x, const double *y,
                                 v2 *pushed, const spo_flow_gradients *to) {
    const spo_sparse *sparse = flow->sparse;
    const double *s = kept, *c = kept + spo_padded(flow->n);
    for (int64_t i = 0; i < flow->n; ++i) pushed[i] = (v2){0, 0};
    for (int64_t i = 0; i < flow->n; ++i) {
        const v2 own = {x[i], y[i]}, turned = {-y[i], x[i]};
        for (int64_t e = sparse->start[i]; e < sparse->start[i + 1]; ++e) {
            const int64_t j = sparse->column[e];
            pushed[j] = v2_fma(flow->kc[e], own, pushed[j]);
            to->kc[e] += x[i] * s[j] - y[i] * c[j];
            if (!flow->ks) continue;
            pushed[j] = v2_fma(flow->ks[e], turned, pushed[j]);
            to->ks[e] -= x[i] * c[j] + y[i] * s[j];
        }
    }
}

#define OUTER_VECTORS (SPO_LANES == 8 ? 4 : 2)

/* out += sign sum over r of first_r a_r^T + second_r b_r^T: some rows, `wide` vectors of columns or a part of
 * one. */
INLINE void outer_tile(int64_t n, const int rows, const int wide, int64_t part, int64_t count, int64_t padded,
                       double sign, const double *first, const double *second, const double *a,
                       const double *b, double *out) {
    vd sum[4][OUTER_VECTORS] = {{{0}}};
    for (int64_t r = 0; r < count; ++r)
        for (int v = 0; v < wide; ++v) {
            const vd left = v_once(v_load(a + r * padded + v * SPO_LANES));
            const vd right = v_once(v_load(b + r * padded + v * SPO_LANES));
            for (int i = 0; i < rows; ++i) {
                sum[i][v] = v_fma(v_set(first[r * padded + i]), left, sum[i][v]);
                sum[i][v] = v_fma(v_set(second[r * padded + i]), right, sum[i][v]);
            }
        }
    for (int i = 0; i < rows; ++i)
        for (int v = 0; v < wide; ++v) {
            double *const to = out + i * n + v * SPO_LANES;
            if (part)
                v_store_first(to, v_fma(v_set(sign), sum[i][v], v_load_first(to, part)), part);
            else
                v_store(to, v_fma(v_set(sign), sum[i][v], v_load(to)));
        }
}

INLINE void outer_columns(int64_t n, const int wide, int64_t part, int64_t count, double sign,
                          const double *first, const double *second, const double *a, const double *b,
                          double *out) {
    const int64_t padded = spo_padded(n);
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        outer_tile(n, 4, wide, part, count, padded, sign, first + i, second + i, a, b, out + i * n);
    for (; i < n; ++i)
        outer_tile(n, 1, wide, part, count, padded, sign, first + i, second + i, a, b, out + i * n);
}

static SPO_APART void add_outer(int64_t n, int64_t count, double sign, const double *first,
                                const double *second, const double *a, const double *b, double *out) {
    int64_t j = 0;
    for (; j + OUTER_VECTORS * SPO_LANES <= n; j += OUTER_VECTORS * SPO_LANES)
        outer_columns(n, OUTER_VECTORS, 0, count, sign, first, second, a + j, b + j, out + j);
    for (; j + SPO_LANES <= n; j += SPO_LANES)
        outer_columns(n, 1, 0, count, sign, first, second, a + j, b + j, out + j);
    if (j < n) outer_columns(n, 1, n - j, count, sign, first, second, a + j, b + j, out + j);
}

/* Adds what waits to the gradients at K cos and K sin; spoils it. */
static void collect_pairs(int64_t n, double *waiting, int64_t count, const spo_flow_gradients *to) {
    const int64_t line = SPO_FLOW_DEPTH * spo_padded(n);
    double *const x = waiting, *const y = x + line, *const s = y + line, *const c = s + line;
    add_outer(n, count, 1.0, x, y, s, c, to->kc);
    if (!to->ks) return;
    for (int64_t i = 0; i < line; ++i) y[i] = -y[i];
    add_outer(n, count, -1.0, x, y, c, s, to->ks);
}

/* From the gradient at f of a stage to that at its phases, in `back`; the others grow. */
static void stage_back(const spo_flow *flow, const double *kept, const double *grad, double *back,
                       double *room, const spo_flow_gradients *to) {
    const int64_t n = flow->n, padded = spo_padded(n);
    const double *s = kept, *c = s + padded, *p = c + padded, *q = p + padded;
    double *const x = room, *const y = x + padded, *const along = y + padded, *const across = along + padded;
    const vd turn_cosine = v_set(flow->turn_cosine), turn_sine = v_set(flow->turn_sine);
    const vd psi_sine = v_set(flow->psi_sine), psi_cosine = v_set(flow->psi_cosine);
    vd lag = {0}, zeta = {0}, psi = {0};
    for (int64_t i = 0; i < padded; i += SPO_LANES) {
        const vd g = v_load(grad + i), sine = v_load(s + i), cosine = v_load(c + i);
        const vd xi = g * v_fma(cosine, turn_cosine, -(sine * turn_sine));
        const vd yi = g * v_fma(sine, turn_cosine, cosine * turn_sine);
        const vd received = v_fma(yi, v_load(p + i), xi * v_load(q + i));
        const vd driven = g * v_fma(psi_sine, sine, psi_cosine * cosine);
        v_store(x + i, xi);
        v_store(y + i, yi);
        v_store(along + i, (vd){0});
        v_store(across + i, (vd){0});
        v_store(back + i, v_fma(v_set(flow->zeta), driven, received));
        v_store(to->omega + i, v_load(to->omega + i) + g);
        lag -= received;
        zeta = v_fma(g, v_fma(psi_sine, cosine, -(psi_cosine * sine)), zeta);
        psi += driven;
    }
    to->slopes[0] += v_sum(lag);
    to->slopes[1] += v_sum(zeta);
    to->slopes[2] += flow->zeta * v_sum(psi);
    if (flow->sparse) {
        v2 *const pushed = (v2 *)(across + padded);
        push_edges(flow, kept, x, y, pushed, to);
        for (int64_t i = 0; i < n; ++i) along[i] = pushed[i][0], across[i] = pushed[i][1];
    } else {
        double *const at = to->waiting + *to->count * padded;
        const int64_t line = SPO_FLOW_DEPTH * padded;
        if (flow->packed)
            packed_sums(flow, x, y, along, across, across + padded);
        else if (flow->symmetric)
            pull_range(n, 0, n, 0, flow->kc, flow->kc, x, y, along, across);
        else
            push_all(n, flow->kc, x, y, along, across);
        for (int64_t i = 0; i < padded; i += SPO_LANES) {
            v_store(at + i, v_load(x + i));
            v_store(at + line + i, -v_load(y + i));
            v_store(at + 2 * line + i, v_load(s + i));
            v_store(at + 3 * line + i, v_load(c + i));
        }
        if (flow->ks) push_all(n, flow->ks, at + line, x, along, across);
        if (++*to->count == SPO_FLOW_DEPTH) {
            collect_pairs(n, to->waiting, *to->count, to);
            *to->count = 0;
        }
    }
    for (int64_t i = 0; i < padded; i += SPO_LANES) {
        const vd sent = v_fma(v_load(c + i), v_load(along + i), v_load(s + i) * v_load(across + i));
        v_store(back + i, sent - v_load(back + i));
    }
}

static void go_back(const spo_flow *flow, double *grad, int64_t steps, int64_t slot, double *scratch,
                    const spo_flow_gradients *to) {
    /* shares of the gradient after a step, and of that at the stage after, in that at each slope */
    const double dt = flow->dt, after_share[4] = {dt / 6.0, dt / 3.0, dt / 3.0, dt / 6.0};
    const double back_share[4] = {0.5 * dt, 0.5 * dt, dt, 0.0};
    const int64_t n = flow->n, padded = spo_padded(n);
    double *const total = spo_aligned(scratch), *const after = total + padded, *const back = after + padded;
    double *const slope = back + padded, *const room = slope + padded;
    memset(total, 0, (size_t)(3 * padded) * sizeof(double));
    memcpy(total, grad, (size_t)n * sizeof(double));
    for (int64_t step = slot + steps - 1; step >= slot; --step) {
        memcpy(after, total, (size_t)padded * sizeof(double));
        memset(back, 0, (size_t)padded * sizeof(double));
        for (int64_t k = flow->stages - 1; k >= 0; --k) {
            const vd a = v_set(flow->stages == 1 ? dt : after_share[k]), b = v_set(back_share[k]);
            for (int64_t i = 0; i < padded; i += SPO_LANES)
                v_store(slope + i, v_fma(a, v_load(after + i), b * v_load(back + i)));
            stage_back(flow, flow->tape + (step * flow->stages + k) * 4 * padded, slope, back, room, to);
            for (int64_t i = 0; i < padded; i += SPO_LANES)
                v_store(total + i, v_load(total + i) + v_load(back + i));
        }
    }
    memcpy(grad, total, (size_t)n * sizeof(double));
}

static const spo_derivative_kernels derivative_kernels = {
    reverse_scratch, reverse_sparse_scratch, modulate_vjp, modulate_sparse_vjp, flow_scratch, follow,
    go_back,         collect_pairs,
};
