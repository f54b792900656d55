/* Explicit Runge-Kutta steps from the tableaux, the controller of the adaptive one, and the loop that takes
 * them: modulation, observation and records at their steps. A run cut into pieces ends in the same bits as in
 * one piece. */
#include "tableaux.h"

/* y = theta + dt sum_j weight_j slope_j over padded oscillators; the sum is rounded before it is added, so
 * that two such results lie on one grid and their difference is that of the stored numbers. */
INLINE vd combine(const double *theta, double dt, const double *weight, int count, const double *slopes,
                  int64_t padded, int64_t i) {
    vd sum = {0};
    for (int j = 0; j < count; ++j)
        if (weight[j] != 0) sum = v_fma(v_load(slopes + j * padded + i), v_set(weight[j]), sum);
    return v_load(theta + i) + sum * dt;
}

typedef struct {
    const spo_run_scratch *w;
    const double *theta, *weight;
    double dt;
    int64_t n, rows;
    int stage;
} phase_pass;

/* Sine and cosine of phases from ... to - 1, whole vectors, as the drift reads them. They are those of theta,
 * or the argument of a stage, which goes to w->stage, from theta and the slopes before. */
INLINE void phase_range(const spo_run_scratch *w, int64_t n, int64_t from, int64_t to, const double *theta,
                        double dt, const double *weight, const int stage) {
    const int64_t padded = spo_padded(n);
    double *const argument = w->stage;
    const double *const slopes = w->slopes;
    for (int64_t i = from; stage && i < to; i += SPO_LANES)
        v_store(argument + i, combine(theta, dt, weight, stage, slopes, padded, i));
    sincos_padded(n, from, to, stage ? argument : theta, w->sine, w->cosine);
    if (w->pairs)
        interleave((to < n ? to : n) - from, w->sine + from, w->cosine + from, (v2 *)w->pairs + from);
}

static void phase_part(void *context, int64_t part, int32_t worker) {
    const phase_pass *job = context;
    const int64_t padded = spo_padded(job->n), from = part * job->rows;
    const int64_t to = from + job->rows < padded ? from + job->rows : padded;
    (void)worker;
    phase_range(job->w, job->n, from, to, job->theta, job->dt, job->weight, job->stage);
}

INLINE void take_phases(const spo_run_scratch *w, int64_t n, const double *theta, double dt,
                        const double *weight, const int stage) {
    const int32_t workers = spo_workers_from(w->workers, n, PASS_FROM);
    if (workers == 1) {
        phase_range(w, n, 0, spo_padded(n), theta, dt, weight, stage);
        return;
    }
    phase_pass job = {w, theta, weight, dt, n, spo_rows_of_part(PASS_PART), stage};
    spo_pool_run(spo_parts(n, job.rows), workers, phase_part, &job);
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
        take_phases(w, n, w->theta, dt, method->a[stage], stage);
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
    take_phases(w, n, w->next, 0, NULL, 0);
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

typedef struct {
    const double *modulated;
    const spo_run_scratch *w;
    int64_t entries;
} lag_products;

static void apply_lags_to(void *context, int64_t part, int32_t worker) {
    const lag_products *job = context;
    const spo_run_scratch *w = job->w;
    const int64_t from = part * job->entries;
    (void)worker;
    for (int64_t e = from; e < from + job->entries && e < w->entries; ++e) {
        w->lag_cosine[e] = job->modulated[e] * w->alpha_cosine[e];
        w->lag_sine[e] = job->modulated[e] * w->alpha_sine[e];
    }
}

/* Products of K' with the lags, where each pair has its own. */
static void apply_lags(const double *modulated, const spo_run_scratch *w) {
    lag_products job = {modulated, w, spo_rows_of_part(LAG_PART)};
    if (!w->alpha_cosine) return;
    spo_share(spo_parts(w->entries, job.entries), spo_workers_from(w->workers, w->entries, LAGS_FROM),
              apply_lags_to, &job);
}

/* K' of the present state. */
static int32_t modulate_state(const spo_network *network, spo_state *state, const spo_run_scratch *w) {
    const spo_attention_path path = {w->moments, w->absent, NULL};
    spo_prepared *const prepared = w->prepared;
    if (prepared->walk != SPO_WALK_WHOLE) {
        const int32_t status =
            spo_unit_outputs(network->n, network->knm, prepared->traits, w->theta, network->modulation, &path,
                             w->workers, w->modulation, &prepared->unit);
        if (status == SPO_OK) scale_units(network->n, network->modulation, prepared->unit);
        return status;
    }
    const int32_t status =
        w->sparse
            ? spo_core_modulate_sparse(network->n, w->sparse, network->knm, w->theta, network->modulation,
                                       w->workers, w->modulation, state->modulated)
            : spo_core_modulate(network->n, network->knm, prepared->traits, w->theta, network->modulation,
                                &path, w->workers, w->modulation, state->modulated);
    if (status == SPO_OK) apply_lags(state->modulated, w);
    return status;
}

static int32_t run(const spo_network *network, const spo_integrator *integrator, spo_state *state,
                   int64_t n_steps, const spo_record *record, const spo_run_scratch *scratch) {
    spo_run_scratch w = *scratch;
    const int64_t n = network->n, start = state->step;
    const double *knm = network->modulation ? state->modulated : network->knm;
    const int adaptive = integrator->method == SPO_RK45;
    int32_t status = SPO_OK;
    /* Preparation anew forgets what a modulated step has left for the next ones. */
    int lost = w.prepared->walk != SPO_WALK_WHOLE && !w.prepared->unit;
    int slope_known = 0; /* the first slope of this step was the last one of the step before */
    for (int64_t i = 0; i < n; ++i) {
        w.theta[i] = wrap_one(state->theta[i]);
        if (!isfinite(w.theta[i])) return SPO_NONFINITE_PHASE;
    }
    set_constants(network, &w);
    if (network->modulation && w.prepared->walk == SPO_WALK_WHOLE &&
        state->step % network->modulate_every != 0)
        apply_lags(state->modulated, &w);
    take_phases(&w, n, w.theta, 0, NULL, 0);
    while (status == SPO_OK) {
        observe(record, state, n, w.sine, w.cosine);
        if (state->step == start + n_steps) break;
        if (network->modulation && (state->step % network->modulate_every == 0 || lost)) {
            lost = 0;
            status = modulate_state(network, state, &w);
            if (status != SPO_OK) break;
            slope_known = 0;
            w.fresh = 1;
        }
        if (!slope_known) drift(network, knm, &w, w.slopes);
        w.fresh = 0;
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
            take_phases(&w, n, w.theta, 0, NULL, 0);
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
