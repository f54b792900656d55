/* From gradients at the end of steps to those at their beginning. The tape keeps of each stage rows of sines,
 * cosines, P and Q (drift.h), zeros behind the n-th. */

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
