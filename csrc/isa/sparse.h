/* Coupling by edges: the same sums as in drift.h and modulation.h over the entries of a sparse matrix,
 * each row of which lists its columns. Work and memory follow the edges. */

typedef double v2 __attribute__((vector_size(16)));

INLINE v2 v2_fma(double a, v2 b, v2 c) {
#if SPO_LANES >= 4
    return (v2)_mm_fmadd_pd(_mm_set1_pd(a), (__m128d)b, (__m128d)c);
#else
    return a * b + c;
#endif
}

/* (sine, cosine) pairs: what one edge reads lies in one cache line. */
static void interleave(int64_t n, const double *s, const double *c, v2 *pairs) {
    for (int64_t i = 0; i < n; ++i) pairs[i] = (v2){s[i], c[i]};
}

/* sum_e k_e (sin, cos) of the columns of one row; two chains, since a row is short and one would wait for
 * itself. */
INLINE v2 row_sum(const double *k, const int32_t *column, int64_t count, const v2 *pairs) {
    v2 even = {0}, odd = {0};
    int64_t e = 0;
    for (; e + 2 <= count; e += 2) {
        even = v2_fma(k[e], pairs[column[e]], even);
        odd = v2_fma(k[e + 1], pairs[column[e + 1]], odd);
    }
    if (e < count) even = v2_fma(k[e], pairs[column[e]], even);
    return even + odd;
}

/* P and Q of the drift (drift.h) of rows start ... end - 1; l holds K sin alpha, NULL without lags. */
static void pull_sparse(int64_t start, int64_t end, const spo_sparse *sparse, const double *k,
                        const double *l, const v2 *pairs, double *pull, double *push) {
    for (int64_t i = start; i < end; ++i) {
        const int64_t from = sparse->start[i], count = sparse->start[i + 1] - from;
        const v2 sum = row_sum(k + from, sparse->column + from, count, pairs);
        pull[i] = sum[0];
        push[i] = sum[1];
        if (!l) continue;
        const v2 lagged = row_sum(l + from, sparse->column + from, count, pairs);
        pull[i] -= lagged[1];
        push[i] += lagged[0];
    }
}

/* Column lists of the neighbours that row i sees: an edge, not itself, within the band. Returns their number.
 */
static int64_t seen_columns(const spo_sparse *sparse, const double *knm, int64_t i, int64_t reach,
                            int32_t *seen) {
    int64_t count = 0;
    for (int64_t e = sparse->start[i]; e < sparse->start[i + 1]; ++e) {
        const int64_t j = sparse->column[e], distance = i < j ? j - i : i - j;
        seen[count] = (int32_t)j; /* overwritten by the next one unless it counts: no branch to guess */
        count += (knm[e] != 0.0) & (distance != 0) & (distance <= reach);
    }
    return count;
}

/* weight_m = exp(logit_m - largest logit) of one query against its keys, in place of the logits. */
static void soften(int64_t count, double *logits) {
    double largest = -INFINITY;
    for (int64_t m = 0; m < count; ++m) largest = logits[m] > largest ? logits[m] : largest;
    for (int64_t m = 0; m < count; m += SPO_LANES) {
        const int64_t left = count - m < SPO_LANES ? count - m : SPO_LANES;
        const vd t = v_max(v_load_first(logits + m, left) - largest, v_set(LEAST_EXPONENT));
        v_store_first(logits + m, v_exp2(t), left);
    }
}

/* y (width) of one query and head: the weighted mean of the values of the keys it sees. Keys and values lie
 * oscillator by oscillator, stride doubles apart. */
static void attend_edges(int64_t width, int64_t stride, const double *query, const double *keys,
                         const double *values, int64_t count, const int32_t *seen, double *weights,
                         double *y) {
    for (int64_t m = 0; m < count; ++m) {
        const double *key = keys + seen[m] * stride;
        double logit = 0;
        for (int64_t e = 0; e < width; ++e) logit += query[e] * key[e];
        weights[m] = logit;
    }
    soften(count, weights);
    double total = 0;
    for (int64_t m = 0; m < count; ++m) total += weights[m];
    for (int64_t e = 0; e < width; ++e) {
        double sum = 0;
        for (int64_t m = 0; m < count; ++m) sum += weights[m] * values[seen[m] * stride + e];
        y[e] = count > 0 ? sum / total : 0.0;
    }
}

/* Rows of eight numbers, one for each lane, to eight vectors over the lanes. */
INLINE void gather_eight(const double *const row[SPO_LANES], vd feature[8]) {
    for (int f = 0; f < 8; f += SPO_LANES) {
        for (int lane = 0; lane < SPO_LANES; ++lane) feature[f + lane] = v_load(row[lane] + f);
        v_transpose(feature + f);
    }
}

/* The same for all heads of query i when d_model is 8, from the records [q, k, v] of oscillators: a lane is
 * an edge. The bound |q| max |k| serves in place of the largest logit, see modulation.h; 0 where it is too
 * far above. seen has room for a vector more. y (8) with `stride`. */
INLINE int attend_eight(const int64_t width, const double *longest, const double *records, int64_t i,
                        int64_t count, int32_t *seen, double *y, int64_t stride) {
    const double *query = records + 24 * i;
    const int64_t heads = 8 / width;
    vd total[8] = {{0}}, o[8] = {{0}};
    double shift[8], sums[16];
    for (int64_t h = 0; h < heads; ++h) {
        double length = 0;
        for (int64_t e = 0; e < width; ++e) length += query[h * width + e] * query[h * width + e];
        shift[h] = sqrt(length) * longest[h];
        if (!(shift[h] <= BOUND_LIMIT)) return 0; /* a NaN, too: infinity times a key of length 0 */
    }
    for (int lane = 0; lane < SPO_LANES; ++lane) seen[count + lane] = (int32_t)i;
    for (int64_t m = 0; m < count; m += SPO_LANES) {
        const vi there = (vi)(V_IOTA < (double)(count - m));
        const double *key[SPO_LANES], *value[SPO_LANES];
        vd keys[8], values[8];
        for (int lane = 0; lane < SPO_LANES; ++lane) {
            key[lane] = records + 24 * (int64_t)seen[m + lane] + 8;
            value[lane] = key[lane] + 8;
        }
        gather_eight(key, keys);
        gather_eight(value, values);
        for (int64_t h = 0; h < heads; ++h) {
            vd t = v_set(-shift[h]);
            for (int64_t e = h * width; e < (h + 1) * width; ++e) t = v_fma(v_set(query[e]), keys[e], t);
            const vd weight = v_and(v_exp2(t), there);
            total[h] += weight;
            for (int64_t e = h * width; e < (h + 1) * width; ++e) o[e] = v_fma(weight, values[e], o[e]);
        }
    }
    for (int k = 0; k < 8; k += 4) {
        v_sum4(o[k], o[k + 1], o[k + 2], o[k + 3], sums + k);
        v_sum4(total[k], total[k + 1], total[k + 2], total[k + 3], sums + 8 + k);
    }
    for (int64_t e = 0; e < 8; ++e) y[e * stride] = count > 0 ? sums[e] / sums[8 + e / width] : 0.0;
    return 1;
}

static __attribute__((noinline)) int attend_eight_by_two(const double *longest, const double *records,
                                                         int64_t i, int64_t count, int32_t *seen, double *y,
                                                         int64_t stride) {
    return attend_eight(2, longest, records, i, count, seen, y, stride);
}

static __attribute__((noinline)) int attend_eight_by(int64_t width, const double *longest,
                                                     const double *records, int64_t i, int64_t count,
                                                     int32_t *seen, double *y, int64_t stride) {
    return attend_eight(width, longest, records, i, count, seen, y, stride);
}

/* From rows of features to records of oscillators, `width` numbers each: a neighbour is then few cache lines.
 */
static void to_records(int64_t n, int64_t padded, int64_t width, const double *rows, double *records) {
    int64_t i = 0;
    for (; width % SPO_LANES == 0 && i + SPO_LANES <= n; i += SPO_LANES)
        for (int64_t f = 0; f < width; f += SPO_LANES) {
            vd square[SPO_LANES];
            for (int k = 0; k < SPO_LANES; ++k) square[k] = v_load(rows + (f + k) * padded + i);
            v_transpose(square);
            for (int k = 0; k < SPO_LANES; ++k) v_store(records + (i + k) * width + f, square[k]);
        }
    for (; i < n; ++i)
        for (int64_t f = 0; f < width; ++f) records[i * width + f] = rows[f * padded + i];
}

typedef struct {
    const spo_modulation *m;
    const attention *a;
    const spo_sparse *sparse;
    const double *records; /* (n, 3 d_model): q, k and v of each oscillator */
    double *own;           /* of the first worker: outputs of a vector of queries (2), of one query; weights
                            * and columns of a row, with room for a vector more */
    int64_t own_size, rows, reach;
} edge_attention;

/* The unit outputs of the rows of a part. */
static void attend_rows(void *context, int64_t part, int32_t worker) {
    const edge_attention *job = context;
    const spo_modulation *m = job->m;
    const attention *a = job->a;
    const int64_t n = a->n, d_model = a->d_model, width = a->width, start = part * job->rows;
    const int64_t end = start + job->rows < n ? start + job->rows : n;
    double *y = job->own + worker * job->own_size, *block = y + d_model * SPO_PAD,
           *one = block + d_model * SPO_PAD, *weights = one + spo_padded(d_model);
    int32_t *seen = (int32_t *)(weights + a->padded);
    memset(y, 0, (size_t)(d_model * SPO_PAD) * sizeof(double));
    for (int64_t i0 = start; i0 < end; i0 += SPO_LANES) {
        const int64_t last = i0 + SPO_LANES < end ? i0 + SPO_LANES : end;
        for (int64_t i = i0; i < last; ++i) {
            const int64_t count = seen_columns(job->sparse, a->knm, i, job->reach, seen);
            double *column = y + i - i0;
            if (d_model == 8 &&
                (width == 2
                     ? attend_eight_by_two(a->longest, job->records, i, count, seen, column, SPO_LANES)
                     : attend_eight_by(width, a->longest, job->records, i, count, seen, column, SPO_LANES)))
                continue;
            for (int64_t h = 0; h < m->n_heads; ++h) {
                const double *head = job->records + h * width;
                attend_edges(width, 3 * d_model, head + i * 3 * d_model, head + d_model, head + 2 * d_model,
                             count, seen, weights, one + h * width);
            }
            for (int64_t e = 0; e < d_model; ++e) column[e * SPO_LANES] = one[e];
        }
        unit_outputs(d_model, SPO_LANES, y, m->w_o, block);
        to_records(last - i0, SPO_LANES, d_model, block, a->x + i0 * d_model); /* the harmonics have served */
    }
}

/* Unit outputs (n, d_model) of all oscillators, somewhere in scratch. */
static int32_t units_sparse(int64_t n, const spo_sparse *sparse, const double *knm, const double *theta,
                            const spo_modulation *modulation, int32_t workers, double *scratch,
                            double **unit) {
    const int64_t line = modulation->d_model * spo_padded(n);
    double *x = spo_aligned(scratch), *records = x + 4 * line, *own = records + 3 * line;
    attention a = attention_in(n, knm, modulation, 0, workers, x, own);
    if (project_all(modulation, theta, &a, records)) return SPO_NONFINITE_PHASE;
    edge_attention job = {.m = modulation, .a = &a, .sparse = sparse, .records = records};
    job.own = own + workers * spo_attention_own(modulation), job.own_size = spo_edges_own(n, modulation);
    job.reach = modulation->block_size < 0 ? n : modulation->block_size;
    job.rows = spo_rows_of_part(EDGE_PART);
    spo_share(spo_parts(n, job.rows), spo_workers_from(workers, sparse->start[n], ATTEND_EDGES_FROM),
              attend_rows, &job);
    *unit = x;
    return SPO_OK;
}

/* The products of u and v over d_model entries, whose sum over the lanes is u . v, in one order whichever is
 * first. */
INLINE vd dot_lanes(const int64_t d_model, const double *u, const double *v) {
    vd sum = {0};
    for (int64_t e = 0; e < d_model; e += SPO_LANES) {
        const int64_t left = d_model - e;
        sum = left >= SPO_LANES ? v_fma(v_load(u + e), v_load(v + e), sum)
                                : v_fma(v_load_first(u + e, left), v_load_first(v + e, left), sum);
    }
    return sum;
}

/* K'_e of `count` edges of row i, up to four: mean_e (1 + lambda / 2 (1 + unit_i . unit_j)) for those in
 * reach, mean_e beyond, 0 on the diagonal. */
INLINE void rescale_edges(const int64_t d_model, const int count, double half, int64_t reach,
                          const double *unit, int64_t i, const int32_t *column, const double *mean,
                          double *out) {
    vd products[4] = {{0}};
    double dots[4];
    for (int q = 0; q < count; ++q)
        products[q] = dot_lanes(d_model, unit + i * d_model, unit + column[q] * d_model);
    v_sum4(products[0], products[1], products[2], products[3], dots);
    for (int q = 0; q < count; ++q) {
        const int64_t j = column[q], distance = i < j ? j - i : i - j;
        const double factor = distance <= reach ? 1.0 + half * (1.0 + dots[q]) : 1.0;
        out[q] = distance == 0 ? 0.0 : mean[q] * factor;
    }
}

typedef struct {
    int64_t n, rows;
    const spo_sparse *sparse;
    const spo_modulation *m;
    const double *unit;
    double *out;
} edge_product;

INLINE void scale_rows(const int64_t d_model, const edge_product *job, int64_t part) {
    const spo_sparse *sparse = job->sparse;
    const double *unit = job->unit;
    double *out = job->out;
    const int64_t reach = job->m->block_size < 0 ? job->n : job->m->block_size, start = part * job->rows;
    const double half = 0.5 * job->m->lambda;
    for (int64_t i = start; i < start + job->rows && i < job->n; ++i) {
        const int64_t end = sparse->start[i + 1];
        int64_t e = sparse->start[i];
        for (; e + 4 <= end; e += 4)
            rescale_edges(d_model, 4, half, reach, unit, i, sparse->column + e, sparse->mean + e, out + e);
        for (; e < end; ++e)
            rescale_edges(d_model, 1, half, reach, unit, i, sparse->column + e, sparse->mean + e, out + e);
    }
}

static void scale_part(void *context, int64_t part, int32_t worker) {
    const edge_product *job = context;
    (void)worker;
    if (job->m->d_model == 8)
        scale_rows(8, job, part);
    else
        scale_rows(job->m->d_model, job, part);
}

/* K' of all edges. */
static void scale_sparse(int64_t n, const spo_sparse *sparse, const spo_modulation *modulation,
                         int32_t workers, const double *unit, double *out) {
    edge_product job = {n, spo_rows_of_part(EDGE_PART), sparse, modulation, unit, out};
    spo_share(spo_parts(n, job.rows), spo_workers_from(workers, sparse->start[n], PASS_EDGES_FROM),
              scale_part, &job);
}
