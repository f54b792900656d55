/* Attention over phases, row by row (the direct path), and the matrix it rescales.
 *
 * A lane is a query i; the keys j follow one after the other, so no sum runs across lanes and no row has a
 * remainder. Logits are kept in units of ln 2: log2(e) / (sqrt(d_h) tau_h) is folded into the queries and the
 * exponential is 2^t. From each query's logits its bound |q_i| max_j |k_j| is subtracted, by Cauchy-Schwarz
 * the cheapest number that no logit exceeds; where that is too far above the logits, their largest one is
 * sought first. */

/* Bound of the logits, in powers of two, up to which it replaces their maximum: weights stay above 2^-64 and
 * t rounds to 2^-48. */
#define BOUND_LIMIT 32.0
/* Weights below 2^-1000 of the largest are raised to it: they cannot be seen in a sum that is at least 1, and
 * 2^t stays normal. */
#define LEAST_EXPONENT -1000.0
/* Keeps ||O|| > 0 in the unit output O / (||O|| + NORM_FLOOR): part of the definition of the modulation. */
#define NORM_FLOOR 1e-12

/* Out of line: GCC 12 fails (gimple_expand_vec_cond_expr) on the sum of all of them, and a frame each is read
 * better. */
#define SPO_APART __attribute__((noinline))

typedef struct {
    int64_t n, stride;       /* oscillators; doubles from one row of q, k, v to the next */
    const double *q, *k, *v; /* (width, stride) of one head */
    double longest_key;
    const double *knm; /* its row j tells which queries see key j; unused when all do */
    double block_size; /* as a double: |i - j| up to it is seen */
} attention_head;

/* exp(i (a + b)) from exp(i a) and exp(i b). */
INLINE void turn(vd c, vd s, vd c1, vd s1, vd *c2, vd *s2) {
    *c2 = v_fma(c, c1, -(s * s1));
    *s2 = v_fma(s, c1, c * s1);
}

/* x_2m = cos((m + 1) theta), x_2m+1 = sin((m + 1) theta), a stride apart, by the addition theorem from the
 * first pair. */
INLINE void store_harmonics(vd c1, vd s1, int64_t d_model, int64_t stride, double *x) {
    vd c = c1, s = s1;
    for (int64_t m = 0; m < d_model; m += 2) {
        v_store(x + m * stride, c);
        v_store(x + (m + 1) * stride, s);
        turn(c, s, c1, s1, &c, &s);
    }
}

/* The features of oscillators from ... to - 1, whole vectors. Not finite: returns 1. */
static SPO_APART int harmonics(int64_t n, int64_t from, int64_t to, int64_t d_model, const double *theta,
                               double *x) {
    const int64_t padded = spo_padded(n);
    vd excess = {0};
    for (int64_t i = from; i < to; i += SPO_LANES) {
        const int64_t left = n - i;
        const vd phase = left >= SPO_LANES ? v_load(theta + i) : v_load_first(theta + i, left > 0 ? left : 0);
        excess += phase - phase;
        vd s1, c1;
        v_sincos(phase, &s1, &c1);
        store_harmonics(c1, s1, d_model, padded, x + i);
    }
    return v_any(excess != 0.0);
}

/* Row e of x W for one vector of oscillators: x (d_model, padded) at its column, weights (d_model, width). */
INLINE vd projected(const int64_t d_model, const int64_t width, int64_t padded, const double *x,
                    const double *weights, int64_t e) {
    vd sum = {0};
    for (int64_t m = 0; m < d_model; ++m)
        sum = v_fma(v_load(x + m * padded), v_set(weights[m * width + e]), sum);
    return sum;
}

/* q = scale x W_Q, k = x W_K, v = x W_V for one head and the same oscillators: rows (width, padded), weights
 * (d_model, width). Returns the length of the longest key. */
INLINE double project_rows(const int64_t d_model, const int64_t width, int64_t padded, int64_t from,
                           int64_t to, const double *x, const double *w_q, const double *w_k,
                           const double *w_v, double scale, double *restrict q, double *restrict k,
                           double *restrict v) {
    vd longest = {0};
    for (int64_t i = from; i < to; i += SPO_LANES) {
        vd length = {0};
        for (int64_t e = 0; e < width; ++e) {
            const vd key = projected(d_model, width, padded, x + i, w_k, e);
            length = v_fma(key, key, length);
            v_store(q + e * padded + i, scale * projected(d_model, width, padded, x + i, w_q, e));
            v_store(k + e * padded + i, key);
            v_store(v + e * padded + i, projected(d_model, width, padded, x + i, w_v, e));
        }
        longest = v_max(length, longest);
    }
    return sqrt(v_largest(longest));
}

static SPO_APART double project(int64_t padded, int64_t from, int64_t to, int64_t d_model, int64_t width,
                                const double *x, const double *w_q, const double *w_k, const double *w_v,
                                double scale, double *q, double *k, double *v) {
    return d_model == 8 && width == 2
               ? project_rows(8, 2, padded, from, to, x, w_q, w_k, w_v, scale, q, k, v)
               : project_rows(d_model, width, padded, from, to, x, w_q, w_k, w_v, scale, q, k, v);
}

/* The queries of lane block i0 that see key j: an edge, within the band. The diagonal is left to the caller.
 */
INLINE vd keep_seen(const attention_head *head, int64_t i0, int64_t j, vd weight) {
    const double *row = head->knm + j * head->n + i0;
    const int64_t left = head->n - i0;
    const vd edges = left >= SPO_LANES ? v_load(row) : v_load_first(row, left);
    const vd distance = v_abs(V_IOTA + (double)(i0 - j));
    return v_and(v_where_nonzero(edges, weight), distance <= head->block_size);
}

INLINE vd logit(const attention_head *head, const int width, const vd *q, int64_t j, vd start) {
    vd t = start;
    for (int e = 0; e < width; ++e) t = v_fma(q[e], v_set(head->k[e * head->stride + j]), t);
    return t;
}

/* Adds the keys low ... high - 1 to the sums of block i0; skip tells that the block's own lanes are among
 * them. */
INLINE void accumulate(const attention_head *head, const int width, const int masked, const int clamped,
                       const int skip, int64_t i0, int64_t low, int64_t high, const vd *q, vd shift,
                       vd *total, vd *o) {
    for (int64_t j = low; j < high; ++j) {
        /* A logit of any size must round as it did when the largest was sought: t <= 0 then holds exactly. */
        const vd t = clamped ? v_max(logit(head, width, q, j, (vd){0}) - shift, v_set(LEAST_EXPONENT))
                             : logit(head, width, q, j, -shift);
        vd weight = v_exp2(t);
        if (masked) weight = keep_seen(head, i0, j, weight);
        if (skip) weight = v_and(weight, v_but_lane(j - i0));
        *total += weight;
        for (int e = 0; e < width; ++e) o[e] = v_fma(weight, v_set(head->v[e * head->stride + j]), o[e]);
    }
}

/* The largest logit each query of block i0 sees; 0 where it sees none. */
INLINE vd largest_logit(const attention_head *head, const int width, const int masked, int64_t i0,
                        int64_t low, int64_t high, const vd *q) {
    const vd none = v_set(-INFINITY), one = v_set(1.0);
    vd largest = none;
    for (int64_t j = low; j < high; ++j) {
        vd seen = masked ? keep_seen(head, i0, j, one) : one;
        if (j >= i0 && j < i0 + SPO_LANES) seen = v_and(seen, v_but_lane(j - i0));
        largest = v_max(v_select(seen != 0.0, logit(head, width, q, j, (vd){0}), none), largest);
    }
    return v_select(largest == none, (vd){0}, largest);
}

/* y = softmax-weighted mean of the values for the queries i0 ... i0 + SPO_LANES - 1 of one head; q and o are
 * room for width. */
INLINE void attend(const attention_head *head, const int width, const int masked, int64_t i0, vd *q, vd *o,
                   double *y) {
    int64_t low = 0, high = head->n;
    if (masked) {
        const double first = (double)i0 - head->block_size,
                     last = (double)(i0 + SPO_LANES) + head->block_size;
        low = first > 0 ? (int64_t)first : 0;
        high = last < (double)high ? (int64_t)last : high;
    }
    vd length = {0}, total = {0};
    for (int e = 0; e < width; ++e) {
        q[e] = v_load(head->q + e * head->stride + i0);
        length = v_fma(q[e], q[e], length);
        o[e] = (vd){0};
    }
    const vd bound = v_sqrt(length) * head->longest_key;
    const int64_t own_end = i0 + SPO_LANES < high ? i0 + SPO_LANES : high;
    if (!v_any(~(vi)(bound <= BOUND_LIMIT))) { /* false for a NaN, too: infinity times a key of length 0 */
        accumulate(head, width, masked, 0, 0, i0, low, i0, q, bound, &total, o);
        accumulate(head, width, masked, 0, 1, i0, i0, own_end, q, bound, &total, o);
        accumulate(head, width, masked, 0, 0, i0, own_end, high, q, bound, &total, o);
    } else {
        const vd shift = largest_logit(head, width, masked, i0, low, high, q);
        accumulate(head, width, masked, 1, 0, i0, low, i0, q, shift, &total, o);
        accumulate(head, width, masked, 1, 1, i0, i0, own_end, q, shift, &total, o);
        accumulate(head, width, masked, 1, 0, i0, own_end, high, q, shift, &total, o);
    }
    const vd share = v_select(total > 0.0, 1.0 / total, (vd){0});
    for (int e = 0; e < width; ++e) v_store(y + e * SPO_LANES, o[e] * share);
}

/* One function for each common head width, so that its vectors stay in registers; any other width keeps them
 * in room. */
#define ATTEND_OF_WIDTH(WIDTH)                                                                               \
    static void attend_##WIDTH(const attention_head *head, int masked, int64_t i0, double *y) {              \
        vd q[WIDTH], o[WIDTH];                                                                               \
        if (masked)                                                                                          \
            attend(head, WIDTH, 1, i0, q, o, y);                                                             \
        else                                                                                                 \
            attend(head, WIDTH, 0, i0, q, o, y);                                                             \
    }
ATTEND_OF_WIDTH(1)
ATTEND_OF_WIDTH(2)
ATTEND_OF_WIDTH(4)
ATTEND_OF_WIDTH(8)

static __attribute__((noinline)) void attend_any(const attention_head *head, int width, int masked,
                                                 int64_t i0, vd *room, double *y) {
    attend(head, width, masked, i0, room, room + width, y);
}

static void attend_block(const attention_head *head, int64_t width, int masked, int64_t i0, vd *room,
                         double *y) {
    switch (width) {
    case 1: attend_1(head, masked, i0, y); break;
    case 2: attend_2(head, masked, i0, y); break;
    case 4: attend_4(head, masked, i0, y); break;
    case 8: attend_8(head, masked, i0, y); break;
    default: attend_any(head, (int)width, masked, i0, room, y);
    }
}

/* unit column i = O / (||O|| + NORM_FLOOR), O = y W_O, for one block; y (d_model, SPO_LANES), unit (d_model,
 * padded) at column i0. Returns ||O||. */
INLINE vd unit_rows(const int64_t d_model, int64_t padded, const double *y, const double *w_o,
                    double *restrict unit) {
    vd squares = {0};
    for (int64_t e = 0; e < d_model; ++e) {
        const vd sum = projected(d_model, d_model, SPO_LANES, y, w_o, e);
        squares = v_fma(sum, sum, squares);
        v_store(unit + e * padded, sum);
    }
    const vd length = v_sqrt(squares), inverse = 1.0 / (length + NORM_FLOOR);
    for (int64_t e = 0; e < d_model; ++e) v_store(unit + e * padded, v_load(unit + e * padded) * inverse);
    return length;
}

static SPO_APART vd unit_outputs(int64_t d_model, int64_t padded, const double *y, const double *w_o,
                                 double *unit) {
    return d_model == 8 ? unit_rows(8, padded, y, w_o, unit) : unit_rows(d_model, padded, y, w_o, unit);
}

/* Features, queries, keys and values by oscillator, and room for the outputs of a block. */
typedef struct {
    int64_t n, padded, d_model, width;
    double reach; /* of a band, as a double; n: none */
    const double *knm;
    double *x, *q, *k, *v;
    double *longest, *y, *room; /* of one worker; the longest keys of all are those of the first */
    int32_t workers;
    int projected;
} attention;

/* Four lines from x on, what workers have of their own from `own` on. */
static attention attention_in(int64_t n, const double *knm, const spo_modulation *m, double reach,
                              int32_t workers, double *x, double *own) {
    const int64_t line = m->d_model * spo_padded(n);
    attention a = {.n = n, .padded = spo_padded(n), .d_model = m->d_model, .width = m->d_model / m->n_heads};
    a.reach = reach, a.knm = knm, a.workers = workers;
    a.x = x, a.q = x + line, a.k = a.q + line, a.v = a.k + line;
    a.y = own, a.room = a.y + m->d_model * SPO_PAD, a.longest = a.room + 2 * a.width * SPO_PAD;
    return a;
}

/* The same for another worker. */
INLINE attention attention_of(const attention *first, const spo_modulation *m, int32_t worker) {
    const int64_t offset = worker * spo_attention_own(m);
    attention a = *first;
    a.y += offset, a.room += offset;
    return a;
}

typedef struct {
    const spo_modulation *m;
    const double *theta;
    const attention *a;
    int64_t rows;
    double *records; /* NULL, or (n, 3 d_model): the projections by oscillator, see sparse.h */
    _Atomic int bad;
} projection;

static void to_records(int64_t count, int64_t padded, int64_t width, const double *rows, double *records);

static SPO_APART void project_part(void *context, int64_t part, int32_t worker) {
    projection *const job = context;
    const spo_modulation *m = job->m;
    const attention *a = job->a;
    const int64_t from = part * job->rows, to = from + job->rows < a->padded ? from + job->rows : a->padded;
    double *longest = a->longest + worker * spo_attention_own(m);
    if (harmonics(a->n, from, to, a->d_model, job->theta, a->x)) {
        job->bad = 1;
        return;
    }
    for (int64_t h = 0; h < m->n_heads; ++h) {
        const int64_t weights = h * a->d_model * a->width, rows = h * a->width * a->padded;
        const double scale = LOG2_E / (sqrt((double)a->width) * m->temperature[h]);
        const double length =
            project(a->padded, from, to, a->d_model, a->width, a->x, m->w_q + weights, m->w_k + weights,
                    m->w_v + weights, scale, a->q + rows, a->k + rows, a->v + rows);
        if (length > longest[h]) longest[h] = length;
    }
    if (job->records)
        to_records((to < a->n ? to : a->n) - from, a->padded, 3 * a->d_model, a->q + from,
                   job->records + from * 3 * a->d_model);
}

/* Everything of all heads, once. Phases that are not finite: returns 1. */
static SPO_APART int project_all(const spo_modulation *m, const double *theta, attention *a,
                                 double *records) {
    projection job = {.m = m, .theta = theta, .a = a, .records = records};
    const int64_t own = spo_attention_own(m);
    if (a->projected) return 0;
    for (int32_t worker = 0; worker < a->workers; ++worker)
        for (int64_t h = 0; h < m->n_heads; ++h) a->longest[worker * own + h] = 0;
    job.rows = spo_rows_of_part(PROJECT_PART);
    spo_share(spo_parts(a->padded, job.rows), spo_workers_from(a->workers, a->n, PROJECT_FROM), project_part,
              &job);
    for (int32_t worker = 1; worker < a->workers; ++worker)
        for (int64_t h = 0; h < m->n_heads; ++h)
            if (a->longest[worker * own + h] > a->longest[h]) a->longest[h] = a->longest[worker * own + h];
    a->projected = 1;
    return job.bad;
}

INLINE attention_head head_of(const attention *a, int64_t h) {
    const int64_t rows = h * a->width * a->padded;
    return (attention_head){a->n,        a->padded,     a->q + rows, a->k + rows,
                            a->v + rows, a->longest[h], a->knm,      a->reach};
}

/* The unit outputs of one vector of queries, pair by pair. */
static void direct_units(const spo_modulation *m, int masked, int64_t i0, const attention *a, double *unit) {
    for (int64_t h = 0; h < m->n_heads; ++h) {
        const attention_head head = head_of(a, h);
        attend_block(&head, a->width, masked, i0, (vd *)a->room, a->y + h * a->width * SPO_LANES);
    }
    unit_outputs(a->d_model, a->padded, a->y, m->w_o, unit + i0);
}

typedef struct {
    const spo_modulation *m;
    const attention *a;
    int64_t rows;
    int masked;
    double *unit;
} direct_attention;

static void direct_part(void *context, int64_t part, int32_t worker) {
    const direct_attention *job = context;
    const attention a = attention_of(job->a, job->m, worker);
    const int64_t start = part * job->rows;
    for (int64_t i0 = start; i0 < start + job->rows && i0 < a.n; i0 += SPO_LANES)
        direct_units(job->m, job->masked, i0, &a, job->unit);
}

/* Unit outputs (d_model, padded) of all oscillators, somewhere in scratch. knm has a symmetric pattern (or is
 * the transpose). */
static int32_t units(int64_t n, const double *knm, int32_t traits, const double *theta,
                     const spo_modulation *modulation, int32_t workers, double *scratch, double **unit) {
    const int64_t reach = modulation->block_size < 0 ? n : modulation->block_size;
    double *x = spo_aligned(scratch), *own = x + 4 * modulation->d_model * spo_padded(n);
    attention a = attention_in(n, knm, modulation, (double)reach, workers, x, own);
    if (project_all(modulation, theta, &a, NULL)) return SPO_NONFINITE_PHASE;
    /* Over the harmonics, which have served. */
    direct_attention job = {modulation, &a, spo_rows_of_part(DIRECT_PART),
                            reach < n - 1 || !(traits & SPO_ALL_EDGES), x};
    spo_share(spo_parts(n, job.rows), spo_workers_from(workers, n, DIRECT_FROM), direct_part, &job);
    *unit = x;
    return SPO_OK;
}
