/* Attention over phases through order parameters (see csrc/daido.c for the series): per call O(N B) work and
 * no exponential but that of each oscillator's own logit.
 *
 *   harmonics     z_k = exp(i k theta) of each oscillator, and Z_k = sum z_k
 *   moments       of 1 and of the d_h values of each head: v is a trigonometric polynomial of degree d / 2,
 * so its moments are combinations of neighbouring Z coefficients  Y = C Z for each head and field: the
 * fields' Fourier coefficients in the query outputs       sum_a phi_a(theta_i) Y_a: numerators and
 * denominator, as if every oscillator saw all, itself too
 *
 * What a query must not see is taken away again: its own term, and the exponentials of K's missing edges.
 * Lanes are queries in the first and last stage, harmonics in between. Harmonics are made twice, a crowd at a
 * time, for that costs less than writing and reading N B of them.
 *
 * Errors. exp(s - shift) is at most 1, so the sums carry an absolute error, of which the plan knows the
 * scale: a rounding of each product C_ab Z_b, and the tail of the series. Where what is left of a row's sum
 * is small against it (a query far from every key, a row that consists of its own term) or where O itself is
 * small, the row is done again directly, with the lanes beside it.
 *
 * A perturbation common to all harmonics of an oscillator is harmless, for it is one of its phase. z_k is a
 * product of z_8^a and z_b with b < 8, both from sines and cosines of their own, so that errors do not grow
 * with k beyond a dozen half units in the last place.
 *
 * Left out: spreading to and interpolating on a grid (non-uniform FFT). With the default projections an
 * oscillator costs 1920 multiply-adds for outputs and 640 for harmonics; 15 taps for 12 fields and for one
 * spread weight, with the taps themselves, would cost about 400, and a call 12 transforms of 256 points
 * (60,000). At N = 1024 that saves 2 of 12 million multiply-adds, on a call that waits for
 * memory anyway (40 of 910 us); at N = 8192 18 of 630 million, where K' is 0.5 GB. */
#include "../daido.h"

#define CROWD SPO_CROWD
#define ABREAST SPO_ABREAST
/* Fields that go together: with the vectors abreast, twelve sums in flight; twice that for the outputs where
 * there are registers for it. */
#define FIELDS 3
#define TOGETHER (SPO_LANES == 8 ? 6 : 3)
/* Roundings as they add up in sums of some hundred terms. With it the estimate of a unit output's error is,
 * over random, clustered, split and evenly spaced phases at temperatures from 0.25 to 3, between the error
 * seen and five times it for the worst oscillator of a state. */
#define ROUNDINGS (4.0 * 0x1p-53)
/* Estimated error of a unit output that is left to the moments. K' follows with at most twice that, relative
 * to its largest entry, of which 1e-13 is promised. */
#define UNIT_BUDGET 3e-14

typedef struct {
    double *sums;  /* of spo_harmonic_room: first harmonics, and sums of them */
    double *z;     /* Re Z_k from z - d / 2 on, padded; Im Z_k `half` doubles on */
    double *y;     /* per head and field: blocks of SPO_ROWS cosine and SPO_ROWS sine coefficients */
    double *error; /* (n_heads, 1 + width): scale of the error of each sum */
    double
        *phi; /* harmonics of one crowd, of one worker, as all below: the next one's are `own` doubles on */
    double *fields;      /* (1 + width, 2, reach padded): moments of one head */
    double *values;      /* (1 + width, ABREAST, SPO_PAD) of each head: outputs of one pass */
    unsigned char *redo; /* (n / SPO_LANES): vectors of queries that have to be done again */
    int64_t stride;      /* oscillators, in whole crowds */
    int64_t half;        /* doubles of one part of z, and of the padding before it */
    int64_t room;        /* doubles of one part of a field */
    int64_t own;
} moments_room;

static moments_room moments_layout(int64_t n, const spo_moments *plan, double *at) {
    const int64_t width = plan->d_model / plan->n_heads, fields = plan->n_heads * (1 + width);
    moments_room w;
    w.half = plan->harmonics + 2 * spo_padded(plan->d_model);
    w.room = plan->harmonics;
    w.stride = spo_in_crowds(n);
    w.own = spo_moments_own(plan);
    w.sums = at;
    w.z = w.sums + spo_harmonic_room(n, plan->harmonics);
    w.y = w.z + 2 * w.half;
    w.error = w.y + fields * plan->line;
    w.redo = (unsigned char *)(w.error + spo_padded(fields));
    w.phi = w.error + spo_padded(fields) + spo_padded(spo_padded(n) / 8);
    w.fields = w.phi + plan->harmonics * 2 * CROWD;
    w.values = w.fields + (1 + width) * 2 * w.room;
    return w;
}

/* The same for another worker. */
INLINE moments_room moments_room_of(const moments_room *first, int32_t worker) {
    moments_room w = *first;
    w.phi += worker * w.own, w.fields += worker * w.own, w.values += worker * w.own;
    return w;
}

/* exp(i theta) and exp(8 i theta) as four rows of `stride` numbers, for oscillators from ... to - 1; zeros
 * past n. Not finite: returns 1. */
static SPO_APART int first_harmonics(int64_t n, int64_t stride, int64_t from, int64_t to, const double *theta,
                                     double *first) {
    vd excess = {0};
    for (int64_t i = from; i < to; i += SPO_LANES) {
        const int64_t left = n - i;
        const vd phase = left >= SPO_LANES ? v_load(theta + i) : v_load_first(theta + i, left > 0 ? left : 0);
        const vi live = (vi)(V_IOTA < (double)left);
        excess += phase - phase;
        for (int k = 0; k < 2; ++k) {
            vd s, c;
            v_sincos(k ? 8.0 * phase : phase, &s, &c);
            v_store(first + 2 * k * stride + i, v_and(c, live));
            v_store(first + (2 * k + 1) * stride + i, v_and(s, live));
        }
    }
    return v_any(excess != 0.0);
}

/* Harmonics of one crowd, from its columns of the first ones: either kept in out or added up there, lane by
 * lane. */
INLINE void crowd_harmonics(const int kept, int64_t harmonics, int64_t stride, const double *first,
                            double *out) {
    enum {
        VECTORS = CROWD / SPO_LANES,
        STEP = VECTORS < 4 ? VECTORS : 4
    };
    for (int64_t v = 0; v < VECTORS; v += STEP) {
        vd low[STEP][8][2], far[STEP][2], jump[STEP][2];
        for (int u = 0; u < STEP; ++u) {
            const double *own = first + (v + u) * SPO_LANES;
            /* 1, or 0 past the last oscillator, without a comparison: (c^2 + s^2) rounded */
            low[u][1][0] = v_load(own), low[u][1][1] = v_load(own + stride);
            jump[u][0] = v_load(own + 2 * stride), jump[u][1] = v_load(own + 3 * stride);
            const vd one = v_fma(low[u][1][0], low[u][1][0], low[u][1][1] * low[u][1][1]);
            low[u][0][0] = (one + ROUNDER) - ROUNDER, low[u][0][1] = (vd){0};
            for (int k = 2; k < 8; ++k)
                turn(low[u][k / 2][0], low[u][k / 2][1], low[u][k - k / 2][0], low[u][k - k / 2][1],
                     &low[u][k][0], &low[u][k][1]);
            far[u][0] = low[u][0][0], far[u][1] = (vd){0};
        }
        for (int64_t k8 = 0; k8 < harmonics; k8 += 8) {
            for (int k = 0; k < 8; ++k) {
                double *line = out + (k8 + k) * 2 * (kept ? CROWD : SPO_PAD);
                vd c[STEP], s[STEP];
                for (int u = 0; u < STEP; ++u) {
                    turn(far[u][0], far[u][1], low[u][k][0], low[u][k][1], &c[u], &s[u]);
                    if (!kept) continue;
                    v_store(line + (v + u) * SPO_LANES, c[u]);
                    v_store(line + CROWD + (v + u) * SPO_LANES, s[u]);
                }
                if (kept) continue;
                for (int u = 1; u < STEP; ++u) c[0] += c[u], s[0] += s[u];
                v_store(line, v_load(line) + c[0]);
                v_store(line + SPO_PAD, v_load(line + SPO_PAD) + s[0]);
            }
            for (int u = 0; u < STEP; ++u)
                turn(far[u][0], far[u][1], jump[u][0], jump[u][1], &far[u][0], &far[u][1]);
        }
    }
}

static SPO_APART void keep_harmonics(int64_t harmonics, int64_t stride, const double *first, double *phi) {
    crowd_harmonics(1, harmonics, stride, first, phi);
}

static SPO_APART void sum_harmonics(int64_t harmonics, int64_t stride, const double *first, double *sums) {
    crowd_harmonics(0, harmonics, stride, first, sums);
}

/* Sums over oscillators go by divisions of SPO_DIVISION: equal phases round alike, and a chain of N additions
 * would lose N / 4 units in the last place. */
typedef struct {
    int64_t n, count, stride;
    const double *theta;
    double *first; /* (4, stride): cos theta, sin theta, cos 8 theta, sin 8 theta */
    double *lanes; /* for each division (count, 2, SPO_PAD): sums of z_k, lane by lane */
    _Atomic int bad;
} harmonic_summation;

static SPO_APART void sum_division(void *context, int64_t part, int32_t worker) {
    harmonic_summation *const job = context;
    const int64_t from = part * SPO_DIVISION,
                  to = from + SPO_DIVISION < job->stride ? from + SPO_DIVISION : job->stride;
    double *lanes = job->lanes + part * job->count * 2 * SPO_PAD;
    (void)worker;
    if (first_harmonics(job->n, job->stride, from, to, job->theta, job->first)) job->bad = 1;
    memset(lanes, 0, (size_t)(job->count * 2 * SPO_PAD) * sizeof(double));
    for (int64_t i0 = from; i0 < to; i0 += CROWD)
        sum_harmonics(job->count, job->stride, job->first + i0, lanes);
}

/* re + i im = Z_k for k = 0 ... count - 1, count a multiple of 8; scratch of spo_harmonic_room, which begins
 * with the first harmonics. Not finite: returns 1. */
static int sum_all_harmonics(int64_t n, int64_t count, const double *theta, int32_t workers, double *scratch,
                             double *re, double *im) {
    harmonic_summation job = {.n = n, .count = count, .stride = spo_in_crowds(n), .theta = theta};
    const int64_t divisions = spo_parts(n, SPO_DIVISION);
    job.first = scratch, job.lanes = scratch + 4 * job.stride;
    spo_share(divisions, spo_workers_from(workers, n, SUMS_FROM), sum_division, &job);
    if (job.bad) return 1;
    memset(re, 0, (size_t)count * sizeof(double));
    memset(im, 0, (size_t)count * sizeof(double));
    const double *lanes = job.lanes;
    for (int64_t division = 0; division < divisions; ++division)
        for (int64_t k = 0; k < count; k += 2, lanes += 4 * SPO_PAD) {
            double sum[4];
            v_sum4(v_load(lanes), v_load(lanes + SPO_PAD), v_load(lanes + 2 * SPO_PAD),
                   v_load(lanes + 3 * SPO_PAD), sum);
            re[k] += sum[0], im[k] += sum[1], re[k + 1] += sum[2], im[k + 1] += sum[3];
        }
    return 0;
}

static int harmonic_sums(int64_t n, int64_t count, const double *theta, double *scratch, double *re,
                         double *im) {
    return sum_all_harmonics(n, count, theta, 1, scratch, re, im);
}

/* Z and its mirror images. Not finite: returns 1. */
static int order_moments(int64_t n, const spo_moments *plan, const double *theta, int32_t workers,
                         const moments_room *w) {
    double *re = w->z + spo_padded(plan->d_model), *im = re + w->half;
    memset(w->z, 0, (size_t)(2 * w->half) * sizeof(double));
    if (sum_all_harmonics(n, plan->harmonics, theta, workers, w->sums, re, im)) return 1;
    for (int64_t k = 1; k <= plan->d_model / 2; ++k) re[-k] = re[k], im[-k] = -im[k];
    return 0;
}

/* Moments of 1 and of the values of head h, as its coefficients meet them. */
static SPO_APART void head_moments(const spo_moments *plan, const spo_modulation *m, int64_t h,
                                   const moments_room *w) {
    const int64_t d_model = m->d_model, width = d_model / m->n_heads, reach = plan->heads[h].reach;
    const double *re = w->z + spo_padded(d_model), *im = re + w->half, *w_v = m->w_v + h * d_model * width;
    double *out = w->fields;
    memcpy(out, re, (size_t)reach * sizeof(double));
    memcpy(out + w->room, im, (size_t)reach * sizeof(double));
    for (int64_t e = 0; e < width; ++e) {
        out += 2 * w->room;
        for (int64_t b = 0; b < reach; b += SPO_LANES) {
            vd cosine = {0}, sine = {0};
            for (int64_t k = 1; k <= d_model / 2; ++k) {
                const vd c = v_set(0.5 * w_v[(2 * k - 2) * width + e]),
                         s = v_set(0.5 * w_v[(2 * k - 1) * width + e]);
                const vd re_up = v_load(re + b + k), re_down = v_load(re + b - k);
                const vd im_up = v_load(im + b + k), im_down = v_load(im + b - k);
                cosine = v_fma(c, re_up + re_down, v_fma(s, im_up - im_down, cosine));
                sine = v_fma(c, im_up + im_down, v_fma(s, re_down - re_up, sine));
            }
            v_store(out + b, cosine);
            v_store(out + w->room + b, sine);
        }
    }
}

/* Scale of the error of each field of a head, where its largest exponential is 1: roundings of C_ab Z_b as
 * they add up by chance, and what the series leave out. */
static void head_errors(const spo_head_series *head, int64_t width, double tail, const moments_room *w,
                        double *error) {
    const int64_t padded = spo_padded(head->reach);
    for (int64_t f = 0; f <= width; ++f) {
        vd squares = {0}, power = {0};
        for (int k = 0; k < 2; ++k)
            for (int64_t b = 0; b < padded; b += SPO_LANES) {
                const vd z = v_load(w->fields + (2 * f + k) * w->room + b);
                const vd seen = v_and(z * z, (vi)(V_IOTA < (double)(head->reach - b)));
                squares = v_fma(v_load(head->weight + k * padded + b), seen, squares);
                power += seen;
            }
        error[f] = ROUNDINGS * sqrt(v_sum(squares)) + tail * sqrt(v_sum(power) / (double)head->reach);
    }
}

/* y = C times the moments of `fields` fields for one block of rows: every coefficient loaded serves all. */
INLINE void multiply_block(const int fields, int64_t extent, const double *coefficient, const double *moments,
                           int64_t room, double *y, int64_t line) {
    enum {
        VECTORS = 2 * SPO_ROWS / SPO_LANES,
        CHUNK = VECTORS < 4 ? VECTORS : 4,
        CHAINS = VECTORS < 4 ? 2 : 1
    };
    for (int first = 0; first < VECTORS; first += CHUNK) {
        vd sum[CHAINS][FIELDS][CHUNK];
        for (int k = 0; k < CHAINS; ++k)
            for (int f = 0; f < fields; ++f)
                for (int v = 0; v < CHUNK; ++v) sum[k][f][v] = (vd){0};
        const double *column = coefficient + first * SPO_LANES;
        for (int64_t b = 0; b < extent; ++b, column += 4 * SPO_ROWS)
            for (int k = 0; k < 2; ++k) {
                vd factor[FIELDS];
                for (int f = 0; f < fields; ++f) factor[f] = v_set(moments[(2 * f + k) * room + b]);
                for (int v = 0; v < CHUNK; ++v) {
                    const vd c = v_once(v_load(column + k * 2 * SPO_ROWS + v * SPO_LANES));
                    for (int f = 0; f < fields; ++f)
                        sum[k % CHAINS][f][v] = v_fma(c, factor[f], sum[k % CHAINS][f][v]);
                }
            }
        for (int f = 0; f < fields; ++f)
            for (int v = 0; v < CHUNK; ++v) {
                const vd total = CHAINS == 2 ? sum[0][f][v] + sum[CHAINS - 1][f][v] : sum[0][f][v];
                v_store(y + f * line + (first + v) * SPO_LANES, total);
            }
    }
}

/* Y of one head: (1 + width) lines of coefficients. */
static SPO_APART void multiply_head(const spo_head_series *head, int64_t width, int64_t line,
                                    const moments_room *w, double *y) {
    const double *coefficient = head->coefficient;
    for (int64_t j = 0; j < head->blocks; ++j) {
        const int64_t extent = head->extent[j];
        double *out = y + 2 * SPO_ROWS * j;
        for (int64_t f = 0; f <= width; f += FIELDS) {
            const double *moments = w->fields + f * 2 * w->room;
            switch (width + 1 - f) {
            case 1: multiply_block(1, extent, coefficient, moments, w->room, out + f * line, line); break;
            case 2: multiply_block(2, extent, coefficient, moments, w->room, out + f * line, line); break;
            default: multiply_block(3, extent, coefficient, moments, w->room, out + f * line, line);
            }
        }
        coefficient += 4 * SPO_ROWS * extent;
    }
    const int64_t filled = 2 * SPO_ROWS * head->blocks;
    for (int64_t f = 0; f <= width; ++f)
        memset(y + f * line + filled, 0, (size_t)(line - filled) * sizeof(double));
}

/* out[field][vector] = sum_a phi_a Y_a for `fields` fields at `vectors` vectors of queries. */
INLINE void evaluate(const int fields, const int vectors, int64_t line, const double *phi, const double *y,
                     double *out) {
    vd sum[TOGETHER][ABREAST];
    for (int f = 0; f < fields; ++f)
        for (int v = 0; v < vectors; ++v) sum[f][v] = (vd){0};
    for (int64_t j = 0; j < line; j += 2 * SPO_ROWS)
        for (int r = 0; r < SPO_ROWS; ++r, phi += 2 * CROWD)
            for (int k = 0; k < 2; ++k) {
                /* the smaller set in registers: with the sums all sixteen, or thirty, are taken */
                vd x[ABREAST], factor[TOGETHER];
                if (TOGETHER > ABREAST)
                    for (int v = 0; v < vectors; ++v) x[v] = v_once(v_load(phi + k * CROWD + v * SPO_LANES));
                for (int f = 0; f < fields; ++f) {
                    factor[f] = v_once(v_set(y[f * line + j + k * SPO_ROWS + r]));
                    if (TOGETHER > ABREAST)
                        for (int v = 0; v < vectors; ++v) sum[f][v] = v_fma(x[v], factor[f], sum[f][v]);
                }
                if (TOGETHER > ABREAST) continue;
                for (int v = 0; v < vectors; ++v) {
                    x[v] = v_load(phi + k * CROWD + v * SPO_LANES);
                    for (int f = 0; f < fields; ++f) sum[f][v] = v_fma(x[v], factor[f], sum[f][v]);
                }
            }
    for (int f = 0; f < fields; ++f)
        for (int v = 0; v < vectors; ++v) v_store(out + (f * ABREAST + v) * SPO_PAD, sum[f][v]);
}

#define EVALUATE(FIELDS_, VECTORS_)                                                                          \
    static __attribute__((noinline)) void evaluate_##FIELDS_##_##VECTORS_(int64_t line, const double *phi,   \
                                                                          const double *y, double *out) {    \
        evaluate(FIELDS_, VECTORS_, line, phi, y, out);                                                      \
    }
#define EVALUATE_ALL(FIELDS_) EVALUATE(FIELDS_, 1) EVALUATE(FIELDS_, 2) EVALUATE(FIELDS_, 4)
EVALUATE_ALL(1)
EVALUATE_ALL(2)
EVALUATE_ALL(3)
#if SPO_LANES == 8
EVALUATE_ALL(6)
#endif

/* Sums of all fields at up to ABREAST vectors of queries. */
static void evaluate_all(int64_t fields, int64_t vectors, int64_t line, const double *phi, const double *y,
                         double *out) {
    typedef void evaluator(int64_t, const double *, const double *, double *);
#define CHOICES(FIELDS_)                                                                                     \
    { evaluate_##FIELDS_##_1, evaluate_##FIELDS_##_2, evaluate_##FIELDS_##_4 }
    static evaluator *const some[3][3] = {CHOICES(1), CHOICES(2), CHOICES(3)};
    const int64_t choice = vectors > 2 ? 2 : vectors - 1;
    int64_t f = 0;
#if SPO_LANES == 8
    static evaluator *const six[3] = CHOICES(6);
    for (; f + 6 <= fields; f += 6) six[choice](line, phi, y + f * line, out + f * ABREAST * SPO_PAD);
#endif
#undef CHOICES
    for (; f < fields; f += FIELDS)
        some[fields - f < FIELDS ? fields - f - 1 : FIELDS - 1][choice](line, phi, y + f * line,
                                                                        out + f * ABREAST * SPO_PAD);
}

/* sum_k series_k . (cos k theta, sin k theta) */
INLINE vd trigonometric(int64_t degree, const double *series, const double *phi) {
    vd even = v_set(series[0]), odd = {0};
    for (int64_t k = 1; k <= degree; ++k) {
        even = v_fma(v_load(phi + k * 2 * CROWD), v_set(series[2 * k]), even);
        odd = v_fma(v_load(phi + k * 2 * CROWD + CROWD), v_set(series[2 * k + 1]), odd);
    }
    return even + odd;
}

/* Takes the exponentials of the missing edges of block i0 from total and o. */
static void subtract_absent(const attention *a, const uint64_t *absent, int64_t h, int64_t i0, vd shift,
                            vd *total, vd *o) {
    const attention_head head = head_of(a, h);
    const int64_t words = (a->n + 63) / 64, left = a->n - i0;
    const uint64_t *bits = absent + i0 / SPO_PAD * words;
    for (int64_t word = 0; word < words; ++word)
        for (uint64_t rest = bits[word]; rest; rest &= rest - 1) {
            const int64_t j = 64 * word + __builtin_ctzll(rest);
            const double *row = a->knm + j * a->n + i0;
            const vd edges = left >= SPO_LANES ? v_load(row) : v_load_first(row, left);
            vd t = -shift;
            for (int64_t e = 0; e < a->width; ++e)
                t = v_fma(v_load(head.q + e * head.stride + i0), v_set(head.k[e * head.stride + j]), t);
            vd weight = v_and(v_exp2(v_max(t, v_set(LEAST_EXPONENT))), (vi)(edges == 0.0));
            if (j >= i0 && j < i0 + SPO_LANES) weight = v_and(weight, v_but_lane(j - i0));
            *total -= weight;
            for (int64_t e = 0; e < a->width; ++e)
                o[e] = v_fma(-weight, v_set(head.v[e * head.stride + j]), o[e]);
        }
}

/* Keys that some query of the eight from i0 on does not see. */
static int64_t absent_keys(int64_t n, const uint64_t *absent, int64_t i0) {
    const int64_t words = (n + 63) / 64;
    int64_t count = 0;
    for (int64_t word = 0; word < words; ++word)
        count += __builtin_popcountll(absent[i0 / SPO_PAD * words + word]);
    return count;
}

/* Unit outputs of vector v of a pass from the sums in w->values. Returns 0 where they cannot be trusted. */
static SPO_APART int finish(const spo_moments *plan, const spo_modulation *m, const moments_room *w,
                            const uint64_t *absent, int64_t v, int64_t i0, const double *phi,
                            const attention *a, double *unit) {
    const int64_t d_model = m->d_model, width = a->width;
    vd squares = {0};
    vi bad = {0};
    vd *o = (vd *)a->room;
    for (int64_t h = 0; h < m->n_heads; ++h) {
        const spo_head_series *head = plan->heads + h;
        const double *values = w->values + (h * (1 + width) * ABREAST + v) * SPO_PAD;
        const double *w_v = m->w_v + h * d_model * width, *error = w->error + h * (1 + width);
        const vd all = v_load(values);
        const vd own = v_exp2(v_max(trigonometric(d_model, head->self, phi), v_set(LEAST_EXPONENT)));
        vd total = all - own;
        for (int64_t e = 0; e < width; ++e) {
            vd value = {0};
            for (int64_t f = 0; f < d_model; ++f)
                value = v_fma(v_load(phi + (f / 2 + 1) * 2 * CROWD + f % 2 * CROWD),
                              v_set(w_v[f * width + e]), value);
            o[e] = v_fma(-own, value, v_load(values + (1 + e) * ABREAST * SPO_PAD));
        }
        if (absent) subtract_absent(a, absent, h, i0, trigonometric(d_model, head->shift, phi), &total, o);
        const vd share = 1.0 / total, below = v_fma(v_set(ROUNDINGS), all, v_set(error[0]));
        bad |= ~(vi)(total > 0.0);
        vd sum = {0};
        for (int64_t e = 0; e < width; ++e) {
            const vd y = o[e] * share, field = v_abs(v_load(values + (1 + e) * ABREAST * SPO_PAD));
            const vd doubt = v_fma(v_abs(y), below, v_fma(v_set(ROUNDINGS), field, v_set(error[1 + e])));
            sum = v_fma(doubt, doubt, sum);
            v_store(a->y + (h * width + e) * SPO_LANES, y);
        }
        squares = v_fma(sum * (head->gain * head->gain) * share, share, squares);
    }
    const vd length = unit_outputs(d_model, a->padded, a->y, m->w_o, unit + i0);
    bad |= ~(vi)(squares <= (UNIT_BUDGET * UNIT_BUDGET) * length * length);
    return !v_any(bad & (vi)(V_IOTA < (double)(a->n - i0)));
}

typedef struct {
    const spo_moments *plan;
    const spo_modulation *m;
    const moments_room *room;
    const attention *a;
    const uint64_t *absent;
    double *unit;
    _Atomic int64_t untrusted; /* queries */
    _Atomic int any_redone;
} moments_attention;

static void head_part(void *context, int64_t h, int32_t worker) {
    const moments_attention *job = context;
    const spo_moments *plan = job->plan;
    const int64_t fields = 1 + job->a->width;
    const moments_room w = moments_room_of(job->room, worker);
    head_moments(plan, job->m, h, &w);
    head_errors(plan->heads + h, job->a->width, plan->tail, &w, w.error + h * fields);
    multiply_head(plan->heads + h, job->a->width, plan->line, &w, w.y + h * fields * plan->line);
}

/* The outputs of one crowd of queries, but for those that have to be done directly. */
static void crowd_part(void *context, int64_t crowd, int32_t worker) {
    moments_attention *const job = context;
    const spo_moments *plan = job->plan;
    const moments_room w = moments_room_of(job->room, worker);
    const attention a = attention_of(job->a, job->m, worker);
    const int64_t n = a.n, start = crowd * CROWD, end = start + CROWD < n ? start + CROWD : n;
    keep_harmonics(plan->harmonics, w.stride, w.sums + start, w.phi);
    for (int64_t i0 = start; i0 < end; i0 += ABREAST * SPO_LANES) {
        const double *phi = w.phi + i0 - start;
        const int64_t left = (end - i0 + SPO_LANES - 1) / SPO_LANES,
                      vectors = left < ABREAST ? left : ABREAST;
        evaluate_all(job->m->n_heads * (1 + a.width), vectors, plan->line, phi, w.y, w.values);
        for (int64_t v = 0; v < vectors; ++v) {
            const int64_t i = i0 + v * SPO_LANES;
            const int few = job->absent && 4 * absent_keys(n, job->absent, i) > 3 * n;
            const int done =
                !few && finish(plan, job->m, &w, job->absent, v, i, phi + v * SPO_LANES, &a, job->unit);
            w.redo[i / SPO_LANES] = !done;
            if (done) continue;
            job->any_redone = 1;
            if (!few) job->untrusted += n - i < SPO_LANES ? n - i : SPO_LANES;
        }
    }
}

static void redo_part(void *context, int64_t crowd, int32_t worker) {
    const moments_attention *job = context;
    const attention a = attention_of(job->a, job->m, worker);
    const int64_t start = crowd * CROWD, end = start + CROWD < a.n ? start + CROWD : a.n;
    for (int64_t i = start; i < end; i += SPO_LANES)
        if (job->room->redo[i / SPO_LANES]) direct_units(job->m, job->absent != NULL, i, &a, job->unit);
}

/* Unit outputs (d_model, padded) of all oscillators through order parameters. K has a symmetric pattern, of
 * which absent tells the missing edges (NULL: none), and there is no band. */
static int32_t units_moments(int64_t n, const double *knm, const double *theta, const spo_modulation *m,
                             const spo_moments *plan, const uint64_t *absent, int64_t *redone,
                             int32_t workers, double *scratch, double **unit) {
    const int64_t line = m->d_model * spo_padded(n), crowds = spo_parts(n, CROWD);
    double *x = spo_aligned(scratch), *u = x + 4 * line;
    attention a = attention_in(n, knm, m, (double)n, workers, x, u + line);
    const moments_room w = moments_layout(n, plan, u + line + workers * spo_attention_own(m));
    const int32_t crew = spo_workers_from(workers, n, OUTPUTS_FROM);
    moments_attention job = {.plan = plan, .m = m, .room = &w, .a = &a, .absent = absent, .unit = u};
    if (order_moments(n, plan, theta, workers, &w)) return SPO_NONFINITE_PHASE;
    spo_share(m->n_heads, spo_workers_from(workers, n, HEADS_FROM), head_part, &job);
    if (absent) project_all(m, theta, &a, NULL);
    spo_share(crowds, crew, crowd_part, &job);
    if (job.any_redone) {
        project_all(m, theta, &a, NULL);
        spo_share(crowds, crew, redo_part, &job);
    }
    if (redone) *redone += job.untrusted;
    *unit = u;
    return SPO_OK;
}
