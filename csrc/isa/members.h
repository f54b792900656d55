/* An ensemble of small networks with one coupling: a lane is a member, so that the sums over oscillators run
 * down the lanes and nothing is left over, however few oscillators there are. Fixed-step methods. */

/* A block of SPO_LANES members: arrays (n, SPO_LANES). */
typedef struct {
    double *omega, *theta, *next, *stage, *sine, *cosine, *slopes;
    const member_modulation *modulation; /* NULL: K as it is */
} member_block;

static member_block block_layout(int64_t n, double *scratch) {
    double *free_from = spo_aligned(scratch);
    const int64_t size = n * SPO_LANES;
    return (member_block){free_from,
                          free_from + size,
                          free_from + 2 * size,
                          free_from + 3 * size,
                          free_from + 4 * size,
                          free_from + 5 * size,
                          free_from + 6 * size,
                          NULL};
}

/* From (members, n) to (n, lanes) and back; lanes past count are zeros. */
static void gather_members(int64_t n, int64_t count, const double *members, double *block) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t lane = 0; lane < SPO_LANES; ++lane)
            block[i * SPO_LANES + lane] = lane < count ? members[lane * n + i] : 0.0;
}

static void scatter_members(int64_t n, int64_t count, const double *block, vi wanted, double *members) {
    for (int64_t lane = 0; lane < count; ++lane)
        for (int64_t i = 0; i < n; ++i)
            members[lane * n + i] = wanted[lane] ? block[i * SPO_LANES + lane] : (double)NAN;
}

static void sincos_block(int64_t n, const double *theta, double *sine, double *cosine) {
    for (int64_t i = 0; i < n * SPO_LANES; i += SPO_LANES) {
        vd s, c;
        v_sincos(v_load(theta + i), &s, &c);
        v_store(sine + i, s);
        v_store(cosine + i, c);
    }
}

/* How the members' drift finds its coupling: one matrix for all, the same with a lag a pair, or one each. */
enum {
    SHARED,
    SHARED_LAGGED,
    OWN
};

/* The drift of rows i ... i + rows - 1; see pull_rows in drift.h. */
INLINE void drift_members(int64_t n, const int rows, const int kind, const spo_run_scratch *w,
                          const double *k, const double *l, const member_block *b, int64_t i, double *f) {
    vd p[4] = {{0}, {0}, {0}, {0}}, q[4] = {{0}, {0}, {0}, {0}};
    for (int64_t j = 0; j < n; ++j) {
        const vd sj = v_load(b->sine + j * SPO_LANES), cj = v_load(b->cosine + j * SPO_LANES);
        for (int r = 0; r < rows; ++r) {
            const int64_t at = (i + r) * n + j;
            add_pull(v_once(kind == OWN ? v_load(k + at * SPO_LANES) : v_set(k[at])), sj, cj, p + r, q + r);
            if (kind == SHARED_LAGGED) add_lag(v_once(v_set(l[at])), sj, cj, p + r, q + r);
        }
    }
    for (int r = 0; r < rows; ++r) {
        const int64_t at = (i + r) * SPO_LANES;
        v_store(f + at, close_drift(w, p[r], q[r], v_load(b->sine + at), v_load(b->cosine + at),
                                    v_load(b->omega + at)));
    }
}

static void drift_block(const spo_network *network, const spo_run_scratch *w, const member_block *b,
                        double *f) {
    const int64_t n = network->n;
    const int kind = b->modulation ? OWN : w->lag_cosine ? SHARED_LAGGED : SHARED;
    const double *k = kind == OWN ? b->modulation->coupling : kind == SHARED ? network->knm : w->lag_cosine;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) switch (kind) {
        case OWN: drift_members(n, 4, OWN, w, k, k, b, i, f); break;
        case SHARED_LAGGED: drift_members(n, 4, SHARED_LAGGED, w, k, w->lag_sine, b, i, f); break;
        default: drift_members(n, 4, SHARED, w, k, k, b, i, f);
        }
    for (; i < n; ++i) switch (kind) {
        case OWN: drift_members(n, 1, OWN, w, k, k, b, i, f); break;
        case SHARED_LAGGED: drift_members(n, 1, SHARED_LAGGED, w, k, w->lag_sine, b, i, f); break;
        default: drift_members(n, 1, SHARED, w, k, k, b, i, f);
        }
}

/* One step of a block into b->next, wrapped; returns the lanes whose state is not finite. */
static vi step_block(const spo_network *network, const spo_integrator *integrator, const spo_run_scratch *w,
                     const member_block *b) {
    const spo_tableau *method = &spo_tableaux[integrator->method];
    const int64_t size = network->n * SPO_LANES;
    const double dt = integrator->dt;
    for (int stage = 0; stage < method->stages; ++stage) {
        if (stage > 0) {
            for (int64_t i = 0; i < size; i += SPO_LANES)
                v_store(b->stage + i, combine(b->theta, dt, method->a[stage], stage, b->slopes, size, i));
            sincos_block(network->n, b->stage, b->sine, b->cosine);
        }
        drift_block(network, w, b, b->slopes + stage * size);
    }
    vd excess = {0};
    for (int64_t i = 0; i < size; i += SPO_LANES) {
        const vd y = combine(b->theta, dt, method->b, method->stages, b->slopes, size, i);
        excess += y - y;
        v_store(b->next + i, v_wrap(y));
    }
    return excess != 0.0;
}

/* R and psi of the members of a block; NaN for those that have failed. */
static void observe_block(const spo_record *record, int64_t n, int64_t at, int64_t count, vi alive,
                          const member_block *b) {
    if (!record->r && !record->psi) return;
    exact_sum s = {{0}, {0}}, c = {{0}, {0}};
    for (int64_t i = 0; i < n * SPO_LANES; i += SPO_LANES) {
        add_exactly(&s, v_load(b->sine + i));
        add_exactly(&c, v_load(b->cosine + i));
    }
    const vd sine = s.sum + s.error, cosine = c.sum + c.error, nothing = v_set(NAN);
    if (record->r) {
        const vd length = v_sqrt(v_fma(sine, sine, cosine * cosine)) / (double)(n > 0 ? n : 1);
        v_store_first(record->r + at, v_select(alive, v_select(length > 1.0, v_set(1.0), length), nothing),
                      count);
    }
    if (record->psi)
        for (int64_t lane = 0; lane < count; ++lane)
            record->psi[at + lane] = alive[lane] ? spo_mean_phase(n, sine[lane], cosine[lane]) : (double)NAN;
}

/* Members whose step number `step` gave no finite state. */
static void report_failures(const spo_ensemble *all, int64_t m, int64_t count, vi failed, int64_t step) {
    for (int64_t lane = 0; lane < count; ++lane)
        if (failed[lane]) {
            all->status[m + lane] = SPO_NONFINITE_STATE;
            all->steps[m + lane] = step;
        }
}

/* Lanes that have failed go on with their last good state, which is in b->next after the exchange. */
static void keep_last(int64_t n, vi alive, const member_block *b) {
    for (int64_t i = 0; i < n * SPO_LANES; i += SPO_LANES)
        v_store(b->theta + i, v_select(alive, v_load(b->theta + i), v_load(b->next + i)));
}

/* What the block of members m ... makes its K' from and keeps it in; room as in spo_core_members_room. */
static member_modulation modulation_of(const spo_network *network, const spo_ensemble *all, int64_t m,
                                       int64_t count, int32_t traits, double *arrays, double *coupling) {
    const spo_modulation *modulation = network->modulation;
    const int64_t n = network->n, line = modulation->d_model * n * SPO_LANES;
    member_modulation a = {.modulation = modulation, .knm = network->knm, .n = n, .size = n * SPO_LANES};
    a.width = modulation->d_model / modulation->n_heads;
    a.reach = modulation->block_size < 0 ? n : modulation->block_size;
    a.exact = (traits & SPO_EXACTLY_SYMMETRIC) != 0;
    a.whole = (traits & SPO_ALL_EDGES) && a.reach >= n - 1;
    a.half = v_set(0.5 * modulation->lambda);
    if (all->lambda) a.half = 0.5 * v_load_first(all->lambda + m, count);
    a.x = arrays, a.q = a.x + line, a.k = a.q + line, a.v = a.k + line, a.y = a.v + line;
    a.coupling = coupling;
    return a;
}

/* The next n_steps steps of members m ... m + count - 1 of all. */
static void run_block(const spo_network *network, const spo_integrator *integrator, const spo_ensemble *all,
                      int64_t m, int64_t count, int64_t n_steps, const spo_record *record,
                      const spo_run_scratch *w, double *coupling, double *room) {
    const int64_t n = network->n;
    member_block b = block_layout(n, room);
    member_modulation modulation;
    if (network->modulation) {
        double *const arrays = b.slopes + spo_tableaux[SPO_RK4].stages * n * SPO_LANES;
        modulation = modulation_of(network, all, m, count, w->prepared->traits, arrays, coupling);
        b.modulation = &modulation;
    }
    vi alive = {0};
    for (int64_t lane = 0; lane < SPO_LANES; ++lane)
        alive[lane] = lane >= count || all->status[m + lane] == SPO_OK ? -1 : 0;
    gather_members(n, count, all->theta + m * n, b.theta);
    gather_members(n, count, all->omega + m * n, b.omega);
    sincos_block(n, b.theta, b.sine, b.cosine);
    for (int64_t step = all->step;; ++step) {
        observe_block(record, n, step * all->members + m, count, alive, &b);
        if (step == all->step + n_steps) break;
        if (b.modulation && step % network->modulate_every == 0)
            modulate_members(b.modulation, b.sine, b.cosine);
        const vi failed = step_block(network, integrator, w, &b) & alive;
        if (__builtin_expect(v_any(failed), 0)) {
            alive &= ~failed;
            report_failures(all, m, count, failed, step);
        }
        double *const last = b.theta;
        b.theta = b.next;
        b.next = last;
        if (__builtin_expect(v_any(~alive), 0)) keep_last(n, alive, &b);
        sincos_block(n, b.theta, b.sine, b.cosine);
        if (record->every > 0 && record->theta && (step + 1) % record->every == 0)
            scatter_members(n, count, b.theta, alive,
                            record->theta + ((step + 1) / record->every * all->members + m) * n);
    }
    for (int64_t lane = 0; lane < count; ++lane)
        if (alive[lane]) all->steps[m + lane] = all->step + n_steps;
    scatter_members(n, count, b.theta, (vi)((vd){0} == 0.0), all->theta + m * n);
}

typedef struct {
    const spo_network *network;
    const spo_integrator *integrator;
    const spo_ensemble *all;
    int64_t n_steps;
    const spo_record *record;
    const spo_run_scratch *w;
    double *room;
    int32_t workers;
} members_run;

static void run_block_of(void *context, int64_t part, int32_t worker) {
    const members_run *job = context;
    const spo_network *network = job->network;
    const int64_t m = part * SPO_LANES, left = job->all->members - m, n = network->n;
    double *const own = job->room + worker * spo_members_own(network), *const couplings =
                                                                           job->room +
                                                                           job->workers *
                                                                               spo_members_own(network);
    run_block(network, job->integrator, job->all, m, left < SPO_LANES ? left : SPO_LANES, job->n_steps,
              job->record, job->w, couplings + m * n * n, own);
}

static void run_members(const spo_network *network, const spo_integrator *integrator, const spo_ensemble *all,
                        int64_t n_steps, const spo_record *record, int32_t workers,
                        const spo_run_scratch *scratch, double *room) {
    spo_run_scratch w = *scratch;
    const int64_t blocks = spo_parts(all->members, SPO_LANES);
    const double entry = network->modulation ? 30.0 : 1.0; /* work for it, in those of a drift */
    const double work = entry * (double)(network->n * network->n) * (double)blocks * (double)n_steps;
    members_run job = {network, integrator, all, n_steps, record, &w, room, workers};
    set_constants(network, &w);
    if (blocks > 0)
        spo_share(blocks, work < MEMBERS_FROM && !spo_splits(SPO_SPLIT_ALL) ? 1 : workers, run_block_of,
                  &job);
}
