/* From gradients at K' to those at everything it is made of. Heads are independent of each other, and are the
 * parts of shared work. Along edges the keys of one query are gathered first, and what comes back to them is
 * scattered. */

#include "reverse_queries.h"

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
