/* The Kuramoto-Sakaguchi drift without a sine per pair, and the loop that integrates it.
 *
 * sin(theta_j - theta_i - alpha_ij) is a sum of products of functions of i and of j, so with s = sin theta, c
 * = cos theta
 *
 *   f_i = omega_i + cos theta_i P_i - sin theta_i Q_i + zeta sin(psi - theta_i)
 *   uniform lag a:  S = K s, C = K c;  P = S cos a - C sin a,  Q = C cos a + S sin a
 *   a lag a pair:   P = (K cos alpha) s - (K sin alpha) c,  Q = (K cos alpha) c + (K sin alpha) s
 */
#include "tableaux.h"

#define TWO_PI 0x1.921fb54442d18p2
#define INVERSE_TWO_PI 0x1.45f306dc9c883p-3
/* Up to here floor(x / 2 pi) is exact to the last unit, which the fix-ups of wrap mend; farther goes to fmod.
 */
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
            p[r] = v_fma(kj, sj, p[r]);
            q[r] = v_fma(kj, cj, q[r]);
            if (lag) {
                const vd lj = v_once(v_load(l + r * n + j));
                if (ahead) __builtin_prefetch(l + (rows + r) * n + j);
                p[r] = v_fma(-lj, cj, p[r]);
                q[r] = v_fma(lj, sj, q[r]);
            }
        }
    }
    if (whole < n) {
        const vd sj = v_load(s + whole), cj = v_load(c + whole);
        for (int r = 0; r < rows; ++r) {
            const vd kj = v_load_first(k + r * n + whole, n - whole);
            p[r] = v_fma(kj, sj, p[r]);
            q[r] = v_fma(kj, cj, q[r]);
            if (lag) {
                const vd lj = v_load_first(l + r * n + whole, n - whole);
                p[r] = v_fma(-lj, cj, p[r]);
                q[r] = v_fma(lj, sj, q[r]);
            }
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

INLINE void pull_all(int64_t n, const int lag, const double *k, const double *l, const double *s,
                     const double *c, double *pull, double *push) {
    const int64_t below = lag ? n : 0; /* from one row of l to the next, where it is read */
    int64_t i = 0;
    for (; n <= FETCH_AHEAD_LIMIT && i + 8 <= n; i += 4)
        pull_rows(n, 4, lag, 1, k + i * n, l + i * below, s, c, pull + i, push + i);
    for (; i + 4 <= n; i += 4) pull_rows(n, 4, lag, 0, k + i * n, l + i * below, s, c, pull + i, push + i);
    for (; i < n; ++i) pull_rows(n, 1, lag, 0, k + i * n, l + i * below, s, c, pull + i, push + i);
}

/* sin and cos of padded phases; zeros behind the n-th, so that sums over whole vectors are sums over
 * oscillators. */
static void sincos_padded(int64_t n, const double *theta, double *sine, double *cosine) {
    const int64_t padded = spo_padded(n);
    for (int64_t i = 0; i < padded; i += SPO_LANES) {
        vd s, c;
        v_sincos(v_load(theta + i), &s, &c);
        v_store(sine + i, s);
        v_store(cosine + i, c);
    }
    for (int64_t i = n; i < padded; ++i) sine[i] = cosine[i] = 0.0;
}

/* f_i from P_i, Q_i, sin theta_i, cos theta_i and omega_i: the uniform lag turns P and Q, the drive joins
 * them. */
INLINE vd close_drift(const spo_run_scratch *w, vd p, vd q, vd sine, vd cosine, vd omega) {
    const vd along = v_fma(p, v_set(w->turn_cosine), -(q * w->turn_sine)) + w->drive_sine;
    const vd across = v_fma(q, v_set(w->turn_cosine), p * w->turn_sine) + w->drive_cosine;
    return v_fma(cosine, along, v_fma(-sine, across, omega));
}

/* f at the phases whose sine and cosine stand in the scratch; knm is K or K' in force. */
static void drift(const spo_network *network, const double *knm, const spo_run_scratch *w, double *f) {
    const int64_t n = network->n, padded = spo_padded(n);
    const double *s = w->sine, *c = w->cosine;
    if (w->sparse) {
        interleave(n, s, c, (v2 *)w->pairs);
        pull_sparse(n, w->sparse, w->lag_cosine ? w->lag_cosine : knm, w->lag_sine, (const v2 *)w->pairs,
                    w->pull, w->push);
    } else if (w->lag_cosine) {
        pull_all(n, 1, w->lag_cosine, w->lag_sine, s, c, w->pull, w->push);
    } else {
        pull_all(n, 0, knm, knm, s, c, w->pull, w->push);
    }
    for (int64_t i = 0; i < padded; i += SPO_LANES)
        v_store(f + i, close_drift(w, v_load(w->pull + i), v_load(w->push + i), v_load(s + i), v_load(c + i),
                                   v_load(w->omega + i)));
}

/* y = theta + dt sum_j weight_j slope_j over padded oscillators; the sum is rounded before it is added, so
 * that two such results lie on one grid and their difference is that of the stored numbers. */
INLINE vd combine(const double *theta, double dt, const double *weight, int count, const double *slopes,
                  int64_t padded, int64_t i) {
    vd sum = {0};
    for (int j = 0; j < count; ++j)
        if (weight[j] != 0) sum = v_fma(v_load(slopes + j * padded + i), v_set(weight[j]), sum);
    return v_load(theta + i) + sum * dt;
}

/* Stages 2 ... of the method from the first slope; leaves y, wrapped, in w->next. Not finite: returns 1. For
 * a method with an error estimate the last stage is taken at the wrapped y, so that its slope is, bit for
 * bit, the first one of the next step; *error is then the largest error in units of the tolerance (NaN or
 * infinity when it cannot be told). */
static int attempt(const spo_network *network, const spo_integrator *integrator, const double *knm,
                   const spo_run_scratch *w, double dt, double *error) {
    const spo_tableau *method = &spo_tableaux[integrator->method];
    const int64_t n = network->n, padded = spo_padded(n);
    const int adaptive = integrator->method == SPO_RK45, inner = method->stages - adaptive;
    for (int stage = 1; stage < inner; ++stage) {
        for (int64_t i = 0; i < padded; i += SPO_LANES)
            v_store(w->stage + i, combine(w->theta, dt, method->a[stage], stage, w->slopes, padded, i));
        sincos_padded(n, w->stage, w->sine, w->cosine);
        drift(network, knm, w, w->slopes + stage * padded);
    }
    vd excess = {0};
    for (int64_t i = 0; i < padded; i += SPO_LANES) {
        const vd y = combine(w->theta, dt, method->b, inner, w->slopes, padded, i);
        excess += y - y;
        v_store(w->stage + i, y);
        v_store(w->next + i, v_wrap(y));
    }
    if (!adaptive) return v_any(excess != 0.0);
    sincos_padded(n, w->next, w->sine, w->cosine);
    drift(network, knm, w, w->slopes + inner * padded);
    vd largest = {0}, trouble = {0};
    for (int64_t i = 0; i < padded; i += SPO_LANES) {
        const vd y = v_load(w->stage + i);
        const vd lower = combine(w->theta, dt, method->embedded, method->stages, w->slopes, padded, i);
        const vd size = v_max(v_abs(v_load(w->theta + i)), v_abs(y));
        vd ratio = v_abs(y - lower) / v_fma(v_set(integrator->rtol), size, v_set(integrator->atol));
        if (n - i < SPO_LANES) ratio = v_and(ratio, V_IOTA < (double)(n - i));
        trouble += ratio - ratio;
        largest = v_max(ratio, largest);
    }
    *error = v_largest(largest) + v_sum(trouble);
    return v_any(excess != 0.0);
}

/* The controller of the adaptive step. */
#define SAFETY 0.9
#define GROWTH_LIMIT 5.0 /* of one step */
#define SHRINK_LIMIT 0.2 /* of one failed attempt */
#define STEP_LIMIT 10.0  /* of any step, in units of the first */
#define MAX_ATTEMPTS 4   /* the last one is taken whatever its error */

/* One adaptive step from the first slope: *taken is the step size used, *dt the one to try next. Not finite:
 * returns 1. */
static int adaptive_step(const spo_network *network, const spo_integrator *integrator, const double *knm,
                         const spo_run_scratch *w, double *dt, double *taken) {
    for (int attempts = 1;; ++attempts) {
        double error = 0;
        *taken = *dt;
        const int bad = attempt(network, integrator, knm, w, *dt, &error);
        if (error <= 1.0) {
            const double growth = error > 0 ? fmin(GROWTH_LIMIT, SAFETY * pow(error, -0.2)) : GROWTH_LIMIT;
            *dt = fmin(*dt * growth, STEP_LIMIT * integrator->dt);
            return bad;
        }
        *dt *= fmax(SHRINK_LIMIT, SAFETY * pow(error, -0.25));
        if (attempts == MAX_ATTEMPTS) return bad;
    }
}

/* What a record keeps of a state, from its sine and cosine. */
static void observe(const spo_record *record, const spo_state *state, int64_t n, const double *sine,
                    const double *cosine) {
    if (record->t_observe) record->t_observe[state->step] = state->t;
    if (!record->r && !record->psi) return;
    exact_sum s = {{0}, {0}}, c = {{0}, {0}};
    for (int64_t i = 0; i < spo_padded(n); i += SPO_LANES) {
        add_exactly(&s, v_load(sine + i));
        add_exactly(&c, v_load(cosine + i));
    }
    const double sine_sum = total_of(&s), cosine_sum = total_of(&c);
    if (record->r) record->r[state->step] = spo_radius(n, sine_sum, cosine_sum);
    if (record->psi) record->psi[state->step] = spo_mean_phase(n, sine_sum, cosine_sum);
}

/* Products of K' with the lags, where each pair has its own. */
static void apply_lags(const double *modulated, const spo_run_scratch *w) {
    if (!w->alpha_cosine) return;
    for (int64_t e = 0; e < w->entries; ++e) {
        w->lag_cosine[e] = modulated[e] * w->alpha_cosine[e];
        w->lag_sine[e] = modulated[e] * w->alpha_sine[e];
    }
}

/* K' of the present state. */
static int32_t modulate_state(const spo_network *network, spo_state *state, const spo_run_scratch *w) {
    const int32_t status =
        w->sparse ? spo_core_modulate_sparse(network->n, w->sparse, network->knm, w->theta,
                                             network->modulation, w->modulation, state->modulated)
                  : spo_core_modulate(network->n, network->knm, *w->traits, w->theta, network->modulation,
                                      w->modulation, state->modulated);
    if (status == SPO_OK) apply_lags(state->modulated, w);
    return status;
}

/* The constants of the drift: the turn of a uniform lag, and zeta sin(psi - theta) = drive_sine cos theta -
 * drive_cosine sin theta. */
static void set_constants(const spo_network *network, spo_run_scratch *w) {
    w->turn_cosine = network->alpha ? 1.0 : cos(network->uniform_alpha);
    w->turn_sine = network->alpha ? 0.0 : sin(network->uniform_alpha);
    w->drive_sine = network->zeta * sin(network->psi);
    w->drive_cosine = network->zeta * cos(network->psi);
}

static int32_t run(const spo_network *network, const spo_integrator *integrator, spo_state *state,
                   int64_t n_steps, const spo_record *record, const spo_run_scratch *scratch) {
    spo_run_scratch w = *scratch;
    const int64_t n = network->n, start = state->step;
    const double *knm = network->modulation ? state->modulated : network->knm;
    const int adaptive = integrator->method == SPO_RK45;
    int32_t status = SPO_OK;
    int slope_known = 0; /* the first slope of this step was the last one of the step before */
    for (int64_t i = 0; i < n; ++i) {
        w.theta[i] = wrap_one(state->theta[i]);
        if (!isfinite(w.theta[i])) return SPO_NONFINITE_PHASE;
    }
    set_constants(network, &w);
    if (network->modulation && state->step % network->modulate_every != 0) apply_lags(state->modulated, &w);
    sincos_padded(n, w.theta, w.sine, w.cosine);
    while (status == SPO_OK) {
        observe(record, state, n, w.sine, w.cosine);
        if (state->step == start + n_steps) break;
        if (network->modulation && state->step % network->modulate_every == 0) {
            status = modulate_state(network, state, &w);
            if (status != SPO_OK) break;
            slope_known = 0;
        }
        if (!slope_known) drift(network, knm, &w, w.slopes);
        double taken = state->dt, next_dt = state->dt;
        const int bad = adaptive ? adaptive_step(network, integrator, knm, &w, &next_dt, &taken)
                                 : attempt(network, integrator, knm, &w, taken, NULL);
        if (bad) {
            status = SPO_NONFINITE_STATE;
            break;
        }
        double *const old = w.theta;
        w.theta = w.next;
        w.next = old;
        state->step += 1;
        state->dt = next_dt;
        state->t = adaptive ? state->t + taken : (double)state->step * integrator->dt;
        if (adaptive) {
            memcpy(w.slopes, w.slopes + 6 * spo_padded(n), (size_t)spo_padded(n) * sizeof(double));
            slope_known = 1;
        } else {
            sincos_padded(n, w.theta, w.sine, w.cosine);
        }
        if (record->every > 0 && state->step % record->every == 0) {
            const int64_t row = state->step / record->every;
            if (record->theta) memcpy(record->theta + row * n, w.theta, (size_t)n * sizeof(double));
            if (record->t) record->t[row] = state->t;
        }
    }
    memcpy(state->theta, w.theta, (size_t)n * sizeof(double));
    return status;
}
