/* The Kuramoto-Sakaguchi drift without a sine per pair.
 *
 * sin(theta_j - theta_i - alpha_ij) is a sum of products of functions of i and of j, so with s = sin theta, c
 * = cos theta
 *
 *   f_i = omega_i + cos theta_i P_i - sin theta_i Q_i + zeta sin(psi - theta_i)
 *   uniform lag a:  S = K s, C = K c;  P = S cos a - C sin a,  Q = C cos a + S sin a
 *   a lag a pair:   P = (K cos alpha) s - (K sin alpha) c,  Q = (K cos alpha) c + (K sin alpha) s
 */
#define TWO_PI 0x1.921fb54442d18p2
#define INVERSE_TWO_PI 0x1.45f306dc9c883p-3
/* Up to here floor(x / 2 pi) is exact to the last unit, which v_wrap mends; farther goes to fmod. */
#define WRAP_LIMIT 0x1p30

/* x modulo 2 pi into [0, 2 pi); a result that rounds to 2 pi becomes 0. NaN for what is not finite. */
static double wrap_one(double x) {
    double y = fmod(x, TWO_PI);
    if (y < 0) y += TWO_PI;
    return y < TWO_PI ? y : y == TWO_PI ? 0.0 : y;
}

INLINE vd v_wrap(vd x) {
    const vd turns = x * INVERSE_TWO_PI;
    vd whole = (turns + ROUNDER) - ROUNDER;
    vd y = v_fma(whole, v_set(-TWO_PI), x);
    y += v_and(v_set(TWO_PI), y < 0.0);
    y = v_and(y, ~(vi)(y >= TWO_PI));
    if (__builtin_expect(v_any(~(vi)(v_abs(x) <= WRAP_LIMIT)), 0)) {
        for (int lane = 0; lane < SPO_LANES; ++lane) y[lane] = wrap_one(x[lane]);
    }
    return y;
}

/* Rows of up to so many entries are fetched a group ahead: shorter ones end before the processor has seen
 * that they are streams, longer ones would push each other out of the first cache. Measured at N = 64 ...
 * 2048. */
#define FETCH_AHEAD_LIMIT 512

/* What an entry of K (or of K cos alpha) adds to P and Q of its row. */
INLINE void add_pull(vd k, vd s, vd c, vd *p, vd *q) {
    *p = v_fma(k, s, *p);
    *q = v_fma(k, c, *q);
}

/* What an entry of K sin alpha adds. */
INLINE void add_lag(vd l, vd s, vd c, vd *p, vd *q) {
    *p = v_fma(-l, c, *p);
    *q = v_fma(l, s, *q);
}

/* Four rows at a time of two matrix-vector products with one matrix (lag 0) or of four with two (lag 1): P
 * and Q above, for the uniform lag before its rotation. K is read once, and each load of s and c serves four
 * rows. */
INLINE void pull_rows(int64_t n, const int rows, const int lag, const int ahead, const double *k,
                      const double *l, const double *s, const double *c, double *pull, double *push) {
    vd p[4] = {{0}, {0}, {0}, {0}}, q[4] = {{0}, {0}, {0}, {0}};
    const int64_t whole = n - n % SPO_LANES;
    for (int64_t j = 0; j < whole; j += SPO_LANES) {
        const vd sj = v_load(s + j), cj = v_load(c + j);
        for (int r = 0; r < rows; ++r) {
            const vd kj = v_once(v_load(k + r * n + j));
            if (ahead) __builtin_prefetch(k + (rows + r) * n + j);
            add_pull(kj, sj, cj, p + r, q + r);
            if (lag) {
                const vd lj = v_once(v_load(l + r * n + j));
                if (ahead) __builtin_prefetch(l + (rows + r) * n + j);
                add_lag(lj, sj, cj, p + r, q + r);
            }
        }
    }
    if (whole < n) {
        const vd sj = v_load(s + whole), cj = v_load(c + whole);
        for (int r = 0; r < rows; ++r) {
            add_pull(v_load_first(k + r * n + whole, n - whole), sj, cj, p + r, q + r);
            if (lag) add_lag(v_load_first(l + r * n + whole, n - whole), sj, cj, p + r, q + r);
        }
    }
    if (rows == 4) {
        v_sum4(p[0], p[1], p[2], p[3], pull);
        v_sum4(q[0], q[1], q[2], q[3], push);
    } else {
        pull[0] = v_sum(p[0]);
        push[0] = v_sum(q[0]);
    }
}

/* Rows i ... end - 1. */
INLINE void pull_range(int64_t n, int64_t i, int64_t end, const int lag, const double *k, const double *l,
                       const double *s, const double *c, double *pull, double *push) {
    const int64_t below = lag ? n : 0; /* from one row of l to the next, where it is read */
    for (; n <= FETCH_AHEAD_LIMIT && i + 4 <= end && i + 8 <= n; i += 4)
        pull_rows(n, 4, lag, 1, k + i * n, l + i * below, s, c, pull + i, push + i);
    for (; i + 4 <= end; i += 4) pull_rows(n, 4, lag, 0, k + i * n, l + i * below, s, c, pull + i, push + i);
    for (; i < end; ++i) pull_rows(n, 1, lag, 0, k + i * n, l + i * below, s, c, pull + i, push + i);
}

/* sin and cos of padded phases from ... to - 1, whole vectors; zeros behind the n-th, so that sums over whole
 * vectors are sums over oscillators. */
static void sincos_padded(int64_t n, int64_t from, int64_t to, const double *theta, double *sine,
                          double *cosine) {
    for (int64_t i = from; i < to; i += SPO_LANES) {
        vd s, c;
        v_sincos(v_load(theta + i), &s, &c);
        v_store(sine + i, s);
        v_store(cosine + i, c);
    }
    for (int64_t i = n > from ? n : from; i < to; ++i) sine[i] = cosine[i] = 0.0;
}

/* The constants of the drift: the turn of a uniform lag, and zeta sin(psi - theta) = drive_sine cos theta -
 * drive_cosine sin theta. */
static void set_constants(const spo_network *network, spo_run_scratch *w) {
    w->turn_cosine = network->alpha ? 1.0 : cos(network->uniform_alpha);
    w->turn_sine = network->alpha ? 0.0 : sin(network->uniform_alpha);
    w->drive_sine = network->zeta * sin(network->psi);
    w->drive_cosine = network->zeta * cos(network->psi);
}

/* f_i from P_i, Q_i, sin theta_i, cos theta_i and omega_i: the uniform lag turns P and Q, the drive joins
 * them. */
INLINE vd close_drift(const spo_run_scratch *w, vd p, vd q, vd sine, vd cosine, vd omega) {
    const vd along = v_fma(p, v_set(w->turn_cosine), -(q * w->turn_sine)) + w->drive_sine;
    const vd across = v_fma(q, v_set(w->turn_cosine), p * w->turn_sine) + w->drive_cosine;
    return v_fma(cosine, along, v_fma(-sine, across, omega));
}

/* P and Q, or the sines in place of P, by one of the walks of fused.h. */
static int pull_walk(const spo_network *network, const spo_run_scratch *w) {
    const spo_modulation *m = network->modulation;
    const int kind = network->alpha ? LAGGED : network->uniform_alpha == 0.0 ? SINES : PAIRS;
    walk p = {.n = network->n,
              .padded = spo_padded(network->n),
              .k = w->packed,
              .l = w->packed_lag,
              .s = w->sine,
              .c = w->cosine,
              .pull = w->pull,
              .push = w->push,
              .kind = kind,
              .sums = w->part_sums};
    const int kept = w->prepared->walk == SPO_WALK_KEPT, fused = m && (w->fresh || !kept);
    if (fused) {
        p.d_model = m->d_model;
        p.u = w->prepared->unit;
        p.base = 1.0 + 0.5 * m->lambda;
        if (kept) p.keep = w->kept, p.keep_l = w->kept_lag;
    } else if (m) {
        p.k = w->kept, p.l = w->kept_lag;
    }
    walk_all(&p, fused, w->workers);
    return kind == SINES;
}

/* f_i of whole vectors of oscillators from P and Q. */
INLINE void close_range(const spo_run_scratch *w, int64_t from, int64_t to, double *f) {
    const double *s = w->sine, *c = w->cosine;
    for (int64_t i = from; i < to; i += SPO_LANES)
        v_store(f + i, close_drift(w, v_load(w->pull + i), v_load(w->push + i), v_load(s + i), v_load(c + i),
                                   v_load(w->omega + i)));
}

/* f of rows from ... to - 1, one by one. */
INLINE void drift_range(int64_t n, int64_t from, int64_t to, const double *knm, const spo_run_scratch *w,
                        double *f) {
    const double *s = w->sine, *c = w->cosine;
    if (w->sparse)
        pull_sparse(from, to, w->sparse, w->lag_cosine ? w->lag_cosine : knm, w->lag_sine,
                    (const v2 *)w->pairs, w->pull, w->push);
    else if (w->lag_cosine)
        pull_range(n, from, to, 1, w->lag_cosine, w->lag_sine, s, c, w->pull, w->push);
    else
        pull_range(n, from, to, 0, knm, knm, s, c, w->pull, w->push);
    close_range(w, from, to == n ? spo_padded(n) : to, f);
}

typedef struct {
    const double *knm;
    const spo_run_scratch *w;
    double *f;
    int64_t n, rows;
} row_drift;

static SPO_APART void drift_rows(void *context, int64_t part, int32_t worker) {
    const row_drift *job = context;
    const int64_t from = part * job->rows, to = from + job->rows < job->n ? from + job->rows : job->n;
    (void)worker;
    drift_range(job->n, from, to, job->knm, job->w, job->f);
}

static SPO_APART void drift_shared(int64_t n, const double *knm, const spo_run_scratch *w, int32_t workers,
                                   double *f) {
    row_drift job = {knm, w, f, n, spo_rows_of_part(w->sparse ? EDGE_PART : DRIFT_PART)};
    spo_pool_run(spo_parts(n, job.rows), workers, drift_rows, &job);
}

/* f at the phases whose sine and cosine stand in the scratch; knm is K or K' in force. */
static SPO_APART void drift(const spo_network *network, const double *knm, const spo_run_scratch *w,
                            double *f) {
    const int64_t n = network->n, padded = spo_padded(n);
    if (w->prepared->walk == SPO_WALK_WHOLE) {
        const int32_t workers = w->sparse ? spo_workers_from(w->workers, w->entries, PASS_EDGES_FROM)
                                          : spo_workers_from(w->workers, n, DRIFT_FROM);
        if (workers > 1)
            drift_shared(n, knm, w, workers, f);
        else
            drift_range(n, 0, n, knm, w, f);
    } else if (pull_walk(network, w)) {
        for (int64_t i = 0; i < padded; i += SPO_LANES) {
            const vd drive =
                v_fma(v_load(w->cosine + i), v_set(w->drive_sine), -(v_load(w->sine + i) * w->drive_cosine));
            v_store(f + i, v_load(w->omega + i) + (v_load(w->pull + i) + drive));
        }
    } else {
        close_range(w, 0, padded, f);
    }
}
