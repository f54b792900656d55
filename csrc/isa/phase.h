/* Attention by phases and its dynamics (Kuramoto-Sakaguchi), on attention.h; included as often.
 *
 * A phase is held as z = (cos theta, sin theta), normalised from (c, s) and turned by the ramp: no arc
 * tangent, and nothing grows with the length of the sequence. With F = (cos(theta + alpha), sin(theta +
 * alpha)) and Q = w z, a step is one attention with keys and values F, mean = A F, and a turn of z by
 *
 *     delta = kappa dt (cos theta mean_sin - sin theta mean_cos)
 *
 * A unit is what a walk of attention.h takes at once: a crowd of LANES problems (batch, head), whose blocks
 * are tokens, or one problem, whose blocks are LANES tokens. Everything by block is (block, column, lane), so
 * that the same lines serve both.
 *
 * The reverse pass goes back through the steps of a segment whose states, means and denominators are
 * recorded. With g the gradient at the phases after a step: the mean's gradient is kappa dt g (-sin theta,
 * cos theta); what reaches F and Q turns into g before the step by d(cos, sin) = (-sin, cos) d theta. */

/* ---- one block -------------------------------------------------------------------------------------------
 */

/* Of one lane's head, or one head in every lane: (phases, lane) each, step sizes by lane. */
typedef struct {
    const REALS *weight, *lag_cosine, *lag_sine;
    REALS stride; /* kappa dt */
    int near;     /* no step turns a phase by more than pi / 4: |drift| <= 1 */
    REALS bound;  /* on scores: sum of |weight| */
    int bounded;  /* it takes the place of the largest score: weights stay far from underflow */
} NAMED(constants);

/* Largest bound that may stand for a maximum: exp(-2 * 40) is a normal float. */
#define BOUND 40

/* (c, s) / |(c, s)| and 1 / |(c, s)|, which is 0 at the origin; scaled by a power of two on the way, so that
 * no square leaves the range. */
INLINE REALS NAMED(polar)(REALS c, REALS s, REALS *cosine, REALS *sine) {
    const REALS largest = OP(max)(OP(abs)(c), OP(abs)(s));
    const INT unit = (INT)EXPONENT_OF_ONE << SIGNIFICAND_BITS;
    INTS exponent = (INTS)largest & ((INT)(2 * EXPONENT_OF_ONE + 1) << SIGNIFICAND_BITS);
    exponent -= (exponent > 2 * unit - ((INT)1 << SIGNIFICAND_BITS)) & ((INT)1 << SIGNIFICAND_BITS);
    const REALS scale = (REALS)(2 * unit - exponent), x = c * scale, y = s * scale;
    const INTS origin = largest == (REALS){0};
    const REALS square = OP(select)(origin, OP(set)(1), OP(fma)(x, x, y * y));
    const REALS inverse = OP(rsqrt)(square);
    const INTS sign = (INTS)c & ~(INTS)OP(abs)(c);
    *cosine = OP(select)(origin, (REALS)((INTS)OP(set)(1) | sign), x * inverse);
    *sine = y * inverse;
    return OP (and)(inverse *scale, ~origin);
}

/* z of (c, s), each (phases, lane), turned by the ramp. */
static void NAMED(start_block)(int64_t phases, const REALS *c, const REALS *s, const REALS *turn, REALS *z) {
    for (int64_t k = 0; k < phases; ++k) {
        const REALS turn_cosine = turn[k], turn_sine = turn[phases + k];
        REALS cosine, sine;
        NAMED(polar)(c[k], s[k], &cosine, &sine);
        z[k] = OP(fma)(cosine, turn_cosine, -(sine * turn_sine));
        z[phases + k] = OP(fma)(sine, turn_cosine, cosine * turn_sine);
    }
}

/* dc and ds from the gradient at the phases, over c and s. */
static void NAMED(finish_block)(int64_t phases, const REALS *g, REALS *c, REALS *s) {
    for (int64_t k = 0; k < phases; ++k) {
        REALS cosine, sine;
        const REALS slope = NAMED(polar)(c[k], s[k], &cosine, &sine) * g[k];
        c[k] = -(sine * slope);
        s[k] = cosine * slope;
    }
}

static void NAMED(features)(int64_t phases, const NAMED(constants) * by, const REALS *z, REALS *f) {
    for (int64_t k = 0; k < phases; ++k) {
        const REALS cosine = z[k], sine = z[phases + k];
        f[k] = OP(fma)(cosine, by->lag_cosine[k], -(sine * by->lag_sine[k]));
        f[phases + k] = OP(fma)(sine, by->lag_cosine[k], cosine * by->lag_sine[k]);
    }
}

/* Q times a number. */
static void NAMED(query_of)(int64_t phases, const NAMED(constants) * by, REAL times, const REALS *z,
                            REALS *q) {
    for (int64_t k = 0; k < phases; ++k) {
        const REALS weight = times * by->weight[k];
        q[k] = weight * z[k];
        q[phases + k] = weight * z[phases + k];
    }
}

/* The next z, and F of it. */
INLINE void NAMED(move_all)(const int near, int64_t phases, const NAMED(constants) * by, const REALS *z,
                            const REALS *mean, REALS *next, REALS *f) {
    for (int64_t k = 0; k < phases; ++k) {
        const REALS cosine = z[k], sine = z[phases + k], lag_cosine = by->lag_cosine[k],
                    lag_sine = by->lag_sine[k];
        const REALS delta = by->stride * OP(fma)(cosine, mean[phases + k], -(sine * mean[k]));
        REALS turn_cosine, turn_sine;
        if (near)
            OP(sincos_near)(delta, &turn_sine, &turn_cosine);
        else
            OP(sincos)(delta, &turn_sine, &turn_cosine);
        const REALS new_cosine = OP(fma)(cosine, turn_cosine, -(sine * turn_sine));
        const REALS new_sine = OP(fma)(sine, turn_cosine, cosine * turn_sine);
        next[k] = new_cosine;
        next[phases + k] = new_sine;
        f[k] = OP(fma)(new_cosine, lag_cosine, -(new_sine * lag_sine));
        f[phases + k] = OP(fma)(new_sine, lag_cosine, new_cosine * lag_sine);
    }
}

static void NAMED(move_block)(int64_t phases, const NAMED(constants) * by, const REALS *z, const REALS *mean,
                              REALS *next, REALS *f) {
    if (by->near)
        NAMED(move_all)(1, phases, by, z, mean, next, f);
    else
        NAMED(move_all)(0, phases, by, z, mean, next, f);
}

/* From g after a step: the gradient at its mean, and g before it but for what comes through the weights.
 * Returns sum g drift, where delta = stride drift. */
static REALS NAMED(reverse_move)(int64_t phases, const NAMED(constants) * by, const REALS *z,
                                 const REALS *mean, REALS *g, REALS *grad) {
    REALS dot = {0};
    for (int64_t k = 0; k < phases; ++k) {
        const REALS cosine = z[k], sine = z[phases + k], pull = by->stride * g[k];
        const REALS drift = OP(fma)(cosine, mean[phases + k], -(sine * mean[k]));
        grad[k] = -(pull * sine);
        grad[phases + k] = pull * cosine;
        dot = OP(fma)(g[k], drift, dot);
        g[k] -= pull * OP(fma)(sine, mean[phases + k], cosine * mean[k]);
    }
    return dot;
}

/* From the gradient at F of some blocks, df_step apart: g grows, and so does the lag's gradient. */
static void NAMED(reverse_features)(int64_t phases, const NAMED(constants) * by, int64_t blocks,
                                    const REALS *z, const REALS *df, int64_t df_step, REALS *g, REALS *lag) {
    for (int64_t k = 0; k < phases; ++k) {
        const REALS lag_cosine = by->lag_cosine[k], lag_sine = by->lag_sine[k];
        REALS total = lag[k];
        for (int64_t b = 0; b < blocks; ++b) {
            const REALS *const at = z + b * 2 * phases + k, *const d = df + b * df_step + k;
            const REALS f_cosine = OP(fma)(at[0], lag_cosine, -(at[phases] * lag_sine));
            const REALS f_sine = OP(fma)(at[phases], lag_cosine, at[0] * lag_sine);
            const REALS slope = OP(fma)(d[phases], f_cosine, -(d[0] * f_sine));
            g[b * phases + k] += slope;
            total += slope;
        }
        lag[k] = total;
    }
}

/* From the gradient at Q of some blocks: g grows, and so does the weights' gradient. */
static void NAMED(reverse_query)(int64_t phases, const NAMED(constants) * by, int64_t blocks, const REALS *z,
                                 const REALS *dq, REALS *g, REALS *weight) {
    for (int64_t k = 0; k < phases; ++k) {
        const REALS scale = by->weight[k];
        REALS total = weight[k];
        for (int64_t b = 0; b < blocks; ++b) {
            const REALS *const at = z + b * 2 * phases + k, *const d = dq + b * 2 * phases + k;
            g[b * phases + k] += scale * OP(fma)(d[phases], at[0], -(d[0] * at[phases]));
            total += OP(fma)(d[0], at[0], d[phases] * at[phases]);
        }
        weight[k] = total;
    }
}

/* ---- places ----------------------------------------------------------------------------------------------
 */

/* Where the rows of the lanes of a block begin in an array (batch, tokens, heads, width); how many there are.
 */
static int64_t NAMED(places)(const spo_phase_job *job, int64_t unit, int64_t block, int64_t width,
                             int64_t *offset) {
    const spo_phase_attention *at = job->at;
    const int64_t problem = job->crowded ? unit * LANES : unit, token = job->crowded ? block : block * LANES;
    const int64_t count = job->crowded ? job->problems - problem : at->tokens - token;
    for (int64_t lane = 0; lane < LANES; ++lane) {
        const int64_t p = job->crowded ? problem + lane : problem, i = job->crowded ? token : token + lane;
        offset[lane] = ((p / at->heads * at->tokens + i) * at->heads + p % at->heads) * width;
    }
    return SMALLEST_COUNT(count, LANES);
}

/* Parts of a unit's record; `step` counts from the record's first step. */
INLINE REALS *NAMED(part)(const spo_phase_job *job, int64_t unit, int64_t place, int64_t step,
                          int64_t width) {
    REAL *const record = (REAL *)job->record + unit * job->record_size;
    return (REALS *)(record + (place + (job->layout.flat ? 0 : step) * width * job->blocks) * LANES);
}
INLINE REALS *NAMED(state_at)(const spo_phase_job *job, int64_t unit, int64_t step) {
    return NAMED(part)(job, unit, job->layout.z, step, 2 * job->at->phases);
}
INLINE REALS *NAMED(mean_at)(const spo_phase_job *job, int64_t unit, int64_t step) {
    return NAMED(part)(job, unit, job->layout.mean, step, job->layout.mean_width);
}
/* top and 1 / sum of each row */
INLINE REALS *NAMED(norm_at)(const spo_phase_job *job, int64_t unit, int64_t step) {
    return NAMED(part)(job, unit, job->layout.norm, step, 2);
}
INLINE REALS *NAMED(value_at)(const spo_phase_job *job, int64_t unit, int64_t step) {
    return NAMED(part)(job, unit, job->layout.value, job->at->value_consensus != 0 ? step : 0,
                       job->at->value_width);
}
INLINE REALS *NAMED(out_at)(const spo_phase_job *job, int64_t unit) {
    return NAMED(part)(job, unit, job->layout.out, 0, 0);
}
/* States of the queries at a step of the record. */
INLINE REALS *NAMED(query_state)(const spo_phase_job *job, int64_t unit, int64_t step) {
    return job->fixed_queries ? NAMED(part)(job, unit, job->layout.query, 0, 0)
                              : NAMED(state_at)(job, unit, step);
}

#define PHASE_CONSTANTS 3

/* Fills (3, phases, lane) with a unit's constants. */
static NAMED(constants) NAMED(constants_of)(const spo_phase_job *job, int64_t unit, REALS *room) {
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases,
                  count = job->crowded ? SMALLEST_COUNT(LANES, job->problems - unit * LANES) : LANES;
    int64_t offset[LANES];
    REALS stride = {0};
    for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t head = (job->crowded ? unit * LANES + lane : unit) % at->heads;
        offset[lane] = head * m;
        stride[lane] = (REAL)(at->dt * (double)((const REAL *)at->kappa)[head]);
    }
    NAMED(pack)(at->weight, offset, count, m, (REAL *)room);
    NAMED(pack)(job->lag, offset, count, m, (REAL *)(room + m));
    NAMED(pack)((const REAL *)job->lag + at->heads * m, offset, count, m, (REAL *)(room + 2 * m));
    const int far = OP(any)(OP(abs)(stride) > (REAL)0.78); /* a little less than pi / 4 */
    REALS bound = {0};
    for (int64_t k = 0; k < m; ++k) bound += OP(abs)(room[k]);
    const int high = OP(any)(~(INTS)(bound <= (REAL)BOUND));
    return (NAMED(constants)){room, room + m, room + 2 * m, stride, !far, bound, !high};
}

/* States of one block from (c, s), and its values into the record. */
static void NAMED(begin_block)(const spo_phase_job *job, int64_t unit, int64_t block, const void *c,
                               const void *s, REALS *room, REALS *z) {
    const int64_t m = job->at->phases;
    int64_t offset[LANES];
    const int64_t count = NAMED(places)(job, unit, block, m, offset);
    NAMED(pack)(c, offset, count, m, (REAL *)room);
    NAMED(pack)(s, offset, count, m, (REAL *)(room + m));
    NAMED(start_block)(m, room, room + m, (const REALS *)job->turn + block * 2 * m, z + block * 2 * m);
}

/* All that a block brings along, at the record's first step: states of receivers and queries, values. */
static void NAMED(phase_begin)(const spo_phase_job *job, int64_t unit, int64_t block, void *scratch) {
    const spo_phase_attention *at = job->at;
    REALS *const room = scratch;
    int64_t offset[LANES];
    NAMED(begin_block)(job, unit, block, at->c, at->s, room, NAMED(state_at)(job, unit, 0));
    if (at->query_c)
        NAMED(begin_block)(job, unit, block, at->query_c, at->query_s, room,
                           NAMED(query_state)(job, unit, 0));
    else if (job->fixed_queries)
        memcpy(NAMED(query_state)(job, unit, 0) + block * 2 * at->phases,
               NAMED(state_at)(job, unit, 0) + block * 2 * at->phases,
               (size_t)(2 * at->phases) * sizeof(REALS));
    const int64_t count = NAMED(places)(job, unit, block, at->value_width, offset);
    NAMED(pack)(at->v, offset, count, at->value_width,
                (REAL *)(NAMED(value_at)(job, unit, 0) + block * at->value_width));
}

/* What follows a step's attention in a block: means, phases and values of the next step, and its row of F
 * (and of values, where they change). The sums are in the record's mean; top and sum are the rows'. */
static void NAMED(advance)(const spo_phase_job *job, const NAMED(constants) * by, int64_t unit, int64_t block,
                           int64_t step, REALS top, REALS sum, REALS *mean, REALS *row) {
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases, f = at->value_width, wide = job->layout.mean_width;
    REALS *const norm = NAMED(norm_at)(job, unit, step) + block * 2;
    const REALS share = 1 / sum;
    norm[0] = top;
    norm[1] = share;
    for (int64_t k = 0; k < wide; ++k) mean[k] *= share;
    NAMED(move_block)(m, by, NAMED(state_at)(job, unit, step) + block * 2 * m, mean,
                      NAMED(state_at)(job, unit, step + 1) + block * 2 * m, row);
    if (at->value_consensus != 0) {
        const REALS rate = OP(set)((REAL)(at->dt * at->value_consensus));
        const REALS *const v = NAMED(value_at)(job, unit, step) + block * f;
        REALS *const next = NAMED(value_at)(job, unit, step + 1) + block * f;
        for (int64_t c = 0; c < f; ++c)
            row[2 * m + c] = next[c] = OP(fma)(rate, mean[2 * m + c] - v[c], v[c]);
    }
}

/* Row of F (and of values, where they change) of a block at a step of the record. */
static void NAMED(row_at)(const spo_phase_job *job, const NAMED(constants) * by, int64_t unit, int64_t block,
                          int64_t step, REALS *row) {
    const int64_t m = job->at->phases, f = job->at->value_width;
    NAMED(features)(m, by, NAMED(state_at)(job, unit, step) + block * 2 * m, row);
    if (job->at->value_consensus != 0)
        memcpy(row + 2 * m, NAMED(value_at)(job, unit, step) + block * f, (size_t)f * sizeof(REALS));
}

/* The end of the read-out in a block. */
static void NAMED(read_out)(const spo_phase_job *job, int64_t unit, int64_t block, int64_t step, REALS top,
                            REALS sum, REALS *out) {
    const int64_t f = job->at->value_width;
    int64_t offset[LANES];
    REALS *const norm = NAMED(norm_at)(job, unit, step) + block * 2;
    const REALS share = 1 / sum;
    norm[0] = top;
    norm[1] = share;
    for (int64_t c = 0; c < f; ++c) out[c] *= share;
    const int64_t count = NAMED(places)(job, unit, block, f, offset);
    if (job->out) NAMED(unpack)((REAL *)out, offset, count, f, job->out);
}

/* The gradient at a block's sums (scaled by share = 1 / sum) on the way back through a step whose means are
 * `mean`, or through the read-out (read) whose values are; returns minus the rows' D. */
static REALS NAMED(grad_of)(const spo_phase_job *job, const NAMED(constants) * by, int64_t unit,
                            int64_t block, int64_t step, int read, REALS share, const REALS *mean, REALS *g,
                            REALS *dv, REALS *kappa, REALS *grad) {
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases, f = at->value_width, wide = read ? f : job->layout.mean_width;
    REALS d = {0};
    if (read) {
        int64_t offset[LANES];
        const int64_t count = NAMED(places)(job, unit, block, f, offset);
        NAMED(pack)(job->grad_out, offset, count, f, (REAL *)grad);
        for (int64_t c = 0; c < f; ++c) d = OP(fma)(grad[c], mean[c], d);
    } else {
        const REALS dot =
            NAMED(reverse_move)(m, by, NAMED(state_at)(job, unit, step) + block * 2 * m, mean, g, grad);
        d = by->stride * dot;
        *kappa += OP(set)((REAL)at->dt) * dot;
        for (int64_t c = 0; c < wide - 2 * m; ++c) {
            const REALS pull = OP(set)((REAL)(at->dt * at->value_consensus)) * dv[c];
            grad[2 * m + c] = pull;
            d = OP(fma)(pull, mean[2 * m + c], d);
            dv[c] -= pull;
        }
    }
    for (int64_t c = 0; c < wide; ++c) grad[c] *= share;
    return -(d * share);
}

/* ---- a crowd through all steps of a segment --------------------------------------------------------------
 */

static int64_t NAMED(phase_room)(const spo_phase_attention *at, int crowded, int reverse) {
    const int64_t m = at->phases, f = at->value_width, n = at->tokens, row = 2 * m + f;
    const int64_t constants = PHASE_CONSTANTS * m + 2 * m + f;
    if (crowded && reverse)
        return LANES * (constants + n * (2 * row + 2 * m) + CROWD_MOST * (2 * m + 2 * row + f) + 2 * n * n);
    if (crowded) return LANES * (constants + n * row + CROWD_MOST * (2 * m + row + n));
    const int64_t padded = NAMED(padded)(2 * m) + NAMED(padded)(row);
    if (reverse) return LANES * constants + TILE_QUERIES * (2 * (2 * m) + row + padded + 2 * TILE_KEYS);
    return LANES * constants + TILE_QUERIES * (2 * m + TILE_KEYS);
}

/* The crowd whose keys are `rows`; read: with the values of a step of the record. */
static NAMED(crowd)
    NAMED(crowd_at)(const spo_phase_job *job, int64_t unit, int64_t step, int read, const REALS *rows) {
    const int64_t m = job->at->phases, f = job->at->value_width, n = job->at->tokens;
    const int64_t wide = job->layout.mean_width;
    return (NAMED(crowd)){
        n,     n,    2 * m,          read ? f : wide, 1, rows, read ? NAMED(value_at)(job, unit, step) : rows,
        2 * m, wide, read ? f : wide};
}

/* Steps first ... last - 1 of a crowd, and its read-out if the last one is the end. Tokens go last to first:
 * they see none behind them, whose rows may be those of the next step already. */
static void NAMED(phase_crowd)(const spo_phase_job *job, int64_t unit, int64_t first, int64_t last,
                               void *scratch) {
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases, n = at->tokens, wide = job->layout.mean_width;
    REAL *room = scratch;
    REALS *const constants = (REALS *)NAMED(take)(&room, PHASE_CONSTANTS * m * LANES);
    REALS *const rows = (REALS *)NAMED(take)(&room, n * wide * LANES);
    REALS *const q = (REALS *)NAMED(take)(&room, CROWD_MOST * 2 * m * LANES);
    REALS *const sums =
        (REALS *)NAMED(take)(&room, CROWD_MOST * LARGEST_COUNT(wide, at->value_width) * LANES);
    REALS *const weights = (REALS *)room;
    const NAMED(constants) by = NAMED(constants_of)(job, unit, constants);
    const int64_t blocks = n <= CROWD_MOST ? 1 : (n - CROWD_MOST + CROWD_ROWS - 1) / CROWD_ROWS + 1;
    for (int64_t i = 0; i < n; ++i) NAMED(row_at)(job, &by, unit, i, 0, rows + i * wide);
    for (int64_t t = first; t <= last; ++t) {
        const int64_t step = t - first;
        const int read = t == at->steps;
        if (t == last && !read) break;
        const NAMED(crowd) crowd = NAMED(crowd_at)(job, unit, step, read, rows);
        const REALS *const query = NAMED(query_state)(job, unit, step);
        for (int64_t i = (blocks - 1) * CROWD_ROWS; i >= 0; i -= CROWD_ROWS) {
            REALS top[CROWD_MOST], sum[CROWD_MOST];
            const int64_t count = NAMED(crowd_take)(n - i), width = crowd.value_width;
            for (int64_t r = 0; r < count; ++r) {
                top[r] = by.bounded ? by.bound : OP(set)(NOTHING);
                sum[r] = (REALS){0};
                NAMED(query_of)(m, &by, 1, query + (i + r) * 2 * m, q + r * 2 * m);
            }
            const int64_t some = NAMED(score_crowd_block)(&crowd, i, count, q, weights);
            if (!by.bounded) NAMED(raise_crowd_block)(count, n, some, weights, top, sum);
            NAMED(weigh_crowd_block)(count, n, some, weights, top, sum);
            NAMED(value_crowd_block)(&crowd, i, count, weights, sums, width);
            for (int64_t r = 0; r < count; ++r)
                if (read)
                    NAMED(read_out)(job, unit, i + r, step, top[r], sum[r], sums + r * width);
                else
                    NAMED(advance)(job, &by, unit, i + r, step, top[r], sum[r], sums + r * width,
                                   rows + (i + r) * wide);
        }
    }
}

/* Back through the same; the unit's gradients carry what has come from later segments. */
static void NAMED(reverse_phase_crowd)(const spo_phase_job *job, int64_t unit, int64_t first, int64_t last,
                                       void *scratch) {
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases, f = at->value_width, n = at->tokens, wide = job->layout.mean_width;
    const int64_t count = SMALLEST_COUNT(LANES, job->problems - unit * LANES);
    REAL *room = scratch;
    REALS *const constants = (REALS *)NAMED(take)(&room, PHASE_CONSTANTS * m * LANES);
    REALS *const sums = (REALS *)NAMED(take)(&room, 2 * m * LANES);
    REALS *const rows = (REALS *)NAMED(take)(&room, n * wide * LANES);
    REALS *const q = (REALS *)NAMED(take)(&room, n * 2 * m * LANES);
    REALS *const grad = (REALS *)NAMED(take)(&room, n * LARGEST_COUNT(wide, f) * LANES);
    REALS *const dq = (REALS *)NAMED(take)(&room, CROWD_MOST * 2 * m * LANES);
    REALS *const mean = (REALS *)NAMED(take)(&room, CROWD_MOST * LARGEST_COUNT(wide, f) * LANES);
    REALS *const dk = (REALS *)NAMED(take)(&room, CROWD_MOST * wide * LANES);
    REALS *const new_dv = (REALS *)NAMED(take)(&room, CROWD_MOST * f * LANES);
    REALS *const weights = (REALS *)room, *const slopes = weights + n * n;
    REALS *const g = (REALS *)((REAL *)job->phase_gradient + unit * job->blocks * m * LANES);
    REALS *const query_g = (REALS *)((REAL *)job->query_gradient + unit * job->blocks * m * LANES);
    REALS *const dv = (REALS *)((REAL *)job->value_gradient + unit * job->blocks * f * LANES);
    REALS *const to_query = job->fixed_queries ? query_g : g;
    const NAMED(constants) by = NAMED(constants_of)(job, unit, constants);
    REALS kappa = {0};
    memset(sums, 0, (size_t)(2 * m) * sizeof(REALS));
    for (int64_t t = last; t >= first; --t) {
        const int64_t step = t - first;
        const int read = t == at->steps;
        if (t == last && !read) continue;
        const NAMED(crowd) crowd = NAMED(crowd_at)(job, unit, step, read, rows);
        const int64_t width = crowd.value_width;
        const REALS *const z = NAMED(state_at)(job, unit, step), *const norm =
                                                                     NAMED(norm_at)(job, unit, step);
        const REALS *const query = NAMED(query_state)(job, unit, step);
        for (int64_t i = 0; i < n; ++i) NAMED(row_at)(job, &by, unit, i, step, rows + i * wide);
        for (int64_t i = 0, block; i < n; i += block) {
            REALS top[CROWD_MOST], sum[CROWD_MOST] = {{0}}, minus_d[CROWD_MOST];
            REALS *const weight = weights + i * n;
            block = NAMED(crowd_take)(n - i);
            for (int64_t r = 0; r < block; ++r) {
                NAMED(query_of)(m, &by, 1, query + (i + r) * 2 * m, q + (i + r) * 2 * m);
                top[r] = norm[2 * (i + r)];
            }
            const int64_t some = NAMED(score_crowd_block)(&crowd, i, block, q + i * 2 * m, weight);
            NAMED(weigh_crowd_block)(block, n, some, weight, top, sum);
            NAMED(value_crowd_block)(&crowd, i, block, weight, mean, width);
            for (int64_t r = 0; r < block; ++r) {
                const int64_t row = i + r;
                const REALS share = norm[2 * row + 1];
                for (int64_t c = 0; c < width; ++c) mean[r * width + c] *= share;
                minus_d[r] = NAMED(grad_of)(job, &by, unit, row, step, read, share, mean + r * width,
                                            g + row * m, dv + row * f, &kappa, grad + row * width);
            }
            NAMED(reverse_crowd_block)(&crowd, i, block, grad + i * width, width, minus_d, weight,
                                       slopes + i * n, dq);
            NAMED(reverse_query)(m, &by, block, query + i * 2 * m, dq, to_query + i * m, sums + m);
        }
        for (int64_t j = 0, block; j < n; j += block) {
            block = NAMED(crowd_take)(n - j);
            NAMED(reverse_crowd_keys)(&crowd, j, block, q, grad, width, weights, slopes, dk,
                                      read ? new_dv : NULL);
            const REALS *const values = read ? new_dv : dk + 2 * m;
            const int64_t values_step = read ? f : wide;
            const int64_t dk_step = read ? 2 * m : wide;
            NAMED(reverse_features)(m, &by, block, z + j * 2 * m, dk, dk_step, g + j * m, sums);
            for (int64_t r = 0; (read || wide > 2 * m) && r < block; ++r)
                for (int64_t c = 0; c < f; ++c) dv[(j + r) * f + c] += values[r * values_step + c];
        }
    }
    for (int64_t lane = 0; lane < count; ++lane) {
        double *const part = job->parameters + (unit * LANES + lane) * (2 * m + 1);
        for (int64_t k = 0; k < 2 * m; ++k) part[k] += (double)sums[k][lane];
        part[2 * m] += (double)kappa[lane];
    }
}

/* ---- one problem, tile by tile ---------------------------------------------------------------------------
 */

/* A block's row (F, v), by lane, into the problem's rows of the given side. */
static void NAMED(lay_rows)(const spo_phase_job *job, int64_t unit, int64_t block, int side,
                            const REALS *row) {
    const int64_t n = job->at->tokens, wide = job->layout.mean_width;
    int64_t offset[LANES];
    NAMED(row_offsets)(wide, offset);
    NAMED(unpack)((const REAL *)row, offset, SMALLEST_COUNT(LANES, n - block * LANES), wide,
                  (REAL *)job->rows[side] + (unit * n + block * LANES) * wide);
}

/* Keys and values of a step; read: of the read-out, whose values are the caller's, unless they have changed.
 */
INLINE NAMED(keys) NAMED(phase_keys)(const spo_phase_job *job, int64_t unit, int side, int read) {
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases, f = at->value_width, wide = job->layout.mean_width;
    const REAL *const rows = (const REAL *)job->rows[side] + unit * at->tokens * wide;
    NAMED(keys) kv = {2 * m, wide, wide, wide, rows, rows};
    if (!read) return kv;
    kv.value_width = f;
    kv.v = rows + 2 * m;
    if (at->value_consensus == 0) {
        kv.v_step = at->heads * f;
        kv.v = (const REAL *)at->v + (unit / at->heads * at->tokens * at->heads + unit % at->heads) * f;
    }
    return kv;
}

/* Rows of the tile of tokens from i on, of a causal problem that ends at `end`. */
static NAMED(rows) NAMED(causal_rows)(int64_t i, int64_t end) {
    NAMED(rows) rows = {.vectors = (SMALLEST_COUNT(end - i, TILE_QUERIES) + LANES - 1) / LANES};
    for (int64_t v = 0; v < rows.vectors; ++v, i += LANES) {
        for (int64_t lane = 0; lane < LANES; ++lane)
            rows.visible[v][lane] = (INT)SMALLEST_COUNT(i + lane + 1, end);
        rows.every[v] = i + 1;
        rows.some[v] = SMALLEST_COUNT(i + LANES, end);
    }
    return rows;
}

/* One tile of tokens: its rows, or a step with the rows of the next, or the read-out. */
static void NAMED(phase_tile)(const spo_phase_job *job, int64_t unit, int64_t tile, int64_t step,
                              enum spo_phase_stage stage, void *scratch) {
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases, f = at->value_width, n = at->tokens, first = tile * TILE_QUERIES;
    const int64_t block = first / LANES;
    REAL *room = scratch;
    REALS *const constants = (REALS *)NAMED(take)(&room, PHASE_CONSTANTS * m * LANES);
    REALS *const row = (REALS *)NAMED(take)(&room, (2 * m + f) * LANES);
    REAL *const q = NAMED(take)(&room, TILE_QUERIES * 2 * m);
    const NAMED(constants) by = NAMED(constants_of)(job, unit, constants);
    const NAMED(rows) rows = NAMED(causal_rows)(first, n);
    const int side = (int)(step & 1);
    if (stage == SPO_STAGE_ROWS) {
        for (int64_t v = 0; v < rows.vectors; ++v) {
            NAMED(row_at)(job, &by, unit, block + v, step, row);
            NAMED(lay_rows)(job, unit, block + v, side, row);
        }
        return;
    }
    const int read = stage == SPO_STAGE_READ;
    const NAMED(keys) kv = NAMED(phase_keys)(job, unit, side, read);
    REALS *const sums =
        (read ? NAMED(out_at)(job, unit) : NAMED(mean_at)(job, unit, step)) + block * kv.value_width;
    REALS top[TILE_VECTORS], sum[TILE_VECTORS];
    for (int64_t v = 0; v < rows.vectors; ++v) {
        NAMED(query_of)(m, &by, (REAL)LOG2_E, NAMED(query_state)(job, unit, step) + (block + v) * 2 * m,
                        (REALS *)(q + v * 2 * m * LANES));
        top[v] = by.bounded ? (REAL)LOG2_E * by.bound : (REALS){0};
        sum[v] = (REALS){0};
    }
    memset(sums, 0, (size_t)(rows.vectors * kv.value_width) * sizeof(REALS));
    NAMED(attend_tile)(&kv, &rows, by.bounded, q, room, top, sum, (REAL *)sums);
    for (int64_t v = 0; v < rows.vectors; ++v)
        if (read)
            NAMED(read_out)(job, unit, block + v, step, top[v], sum[v], sums + v * kv.value_width);
        else {
            NAMED(advance)(job, &by, unit, block + v, step, top[v], sum[v], sums + v * kv.value_width, row);
            NAMED(lay_rows)(job, unit, block + v, !side, row);
        }
}

/* Back through a step or the read-out with the queries of one span; its part of the gradient at the rows. */
static void NAMED(reverse_phase_span)(const spo_phase_job *job, int64_t unit, int64_t span, int64_t step,
                                      int read, void *scratch) {
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases, f = at->value_width, end = job->span[span + 1];
    const NAMED(keys) kv = NAMED(phase_keys)(job, unit, (int)(step & 1), read);
    const int64_t wide = kv.value_width, pe = NAMED(padded)(2 * m), pf = NAMED(padded)(wide);
    REAL *room = scratch;
    REALS *const constants = (REALS *)NAMED(take)(&room, PHASE_CONSTANTS * m * LANES);
    REALS *const weight = (REALS *)NAMED(take)(&room, m * LANES);
    REAL *const q = NAMED(take)(&room, TILE_QUERIES * 2 * m), *const dq =
                                                                  NAMED(take)(&room, TILE_QUERIES * 2 * m);
    REAL *const grad = NAMED(take)(&room, TILE_QUERIES * wide);
    REAL *const q_rows = NAMED(take)(&room, TILE_QUERIES * pe), *const grad_rows =
                                                                    NAMED(take)(&room, TILE_QUERIES * pf);
    REAL *const weights = NAMED(take)(&room, TILE_QUERIES * TILE_KEYS);
    REAL *const partial =
        (REAL *)job->partial + (unit * job->spans + span) * job->blocks * LANES * job->partial_row;
    double *const part = job->parameters + (unit * job->spans + span) * (2 * m + 1);
    REALS *const g = (REALS *)((REAL *)job->phase_gradient + unit * job->blocks * m * LANES);
    REALS *const query_g = (REALS *)((REAL *)job->query_gradient + unit * job->blocks * m * LANES);
    REALS *const dv = (REALS *)((REAL *)job->value_gradient + unit * job->blocks * f * LANES);
    REALS *const to_query = job->fixed_queries ? query_g : g;
    const NAMED(constants) by = NAMED(constants_of)(job, unit, constants);
    REALS minus_top[TILE_VECTORS], minus_d[TILE_VECTORS], kappa = {0};
    const REALS *const mean = read ? NAMED(out_at)(job, unit) : NAMED(mean_at)(job, unit, step);
    const NAMED(reverse) to = {q,
                               grad,
                               q_rows,
                               grad_rows,
                               minus_top,
                               minus_d,
                               weights,
                               weights + TILE_QUERIES * TILE_KEYS,
                               dq,
                               partial,
                               partial + (read ? 2 * m : 0),
                               job->partial_row,
                               job->partial_row};
    int64_t q_offset[LANES], grad_offset[LANES];
    NAMED(row_offsets)(pe, q_offset);
    NAMED(row_offsets)(pf, grad_offset);
    memset(weight, 0, (size_t)m * sizeof(REALS));
    memset(q_rows, 0, (size_t)(TILE_QUERIES * (pe + pf)) * sizeof(REAL));
    memset(partial, 0, (size_t)(NAMED(padded)(end) * job->partial_row) * sizeof(REAL));
    for (int64_t i = job->span[span]; i < end; i += TILE_QUERIES) {
        const NAMED(rows) rows = NAMED(causal_rows)(i, SMALLEST_COUNT(at->tokens, i + TILE_QUERIES));
        for (int64_t v = 0; v < rows.vectors; ++v) {
            const int64_t block = i / LANES + v, count = SMALLEST_COUNT(LANES, at->tokens - block * LANES);
            REAL *const panel = q + v * 2 * m * LANES, *const gradient = grad + v * wide * LANES;
            NAMED(query_of)(m, &by, 1, NAMED(query_state)(job, unit, step) + block * 2 * m, (REALS *)panel);
            NAMED(unpack)(panel, q_offset, count, 2 * m, q_rows + v * LANES * pe);
            for (int64_t k = 0; k < 2 * m; ++k)
                OP(store)(panel + k * LANES, (REAL)LOG2_E * OP(load)(panel + k * LANES));
            const REALS *const norm = NAMED(norm_at)(job, unit, step) + block * 2;
            minus_top[v] = -norm[0];
            minus_d[v] = NAMED(grad_of)(job, &by, unit, block, step, read, norm[1], mean + block * wide,
                                        g + block * m, dv + block * f, &kappa, (REALS *)gradient);
            NAMED(unpack)(gradient, grad_offset, count, wide, grad_rows + v * LANES * pf);
            for (int64_t r = count; r < LANES; ++r) {
                memset(q_rows + (v * LANES + r) * pe, 0, (size_t)pe * sizeof(REAL));
                memset(grad_rows + (v * LANES + r) * pf, 0, (size_t)pf * sizeof(REAL));
            }
        }
        memset(dq, 0, (size_t)(TILE_QUERIES * 2 * m) * sizeof(REAL));
        NAMED(reverse_tile)(&kv, &rows, &to);
        NAMED(reverse_query)(m, &by, rows.vectors, NAMED(query_state)(job, unit, step) + i / LANES * 2 * m,
                             (REALS *)dq, to_query + i / LANES * m, weight);
    }
    for (int64_t k = 0; k < m; ++k) part[m + k] += NAMED(total)(weight[k], LANES);
    part[2 * m] += NAMED(total)(kappa, LANES);
}

/* The gradient at the rows of one span's tokens: all parts, in their order, into g and the values' gradient.
 */
static void NAMED(collect_phase_span)(const spo_phase_job *job, int64_t unit, int64_t span, int64_t step,
                                      void *scratch) {
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases, f = at->value_width, step_of = job->partial_row;
    REAL *room = scratch;
    REALS *const constants = (REALS *)NAMED(take)(&room, PHASE_CONSTANTS * m * LANES);
    REALS *const lag = (REALS *)NAMED(take)(&room, m * LANES);
    REALS *const rows = (REALS *)NAMED(take)(&room, (2 * m + f) * LANES);
    double *const part = job->parameters + (unit * job->spans + span) * (2 * m + 1);
    REALS *const g = (REALS *)((REAL *)job->phase_gradient + unit * job->blocks * m * LANES);
    REALS *const dv = (REALS *)((REAL *)job->value_gradient + unit * job->blocks * f * LANES);
    const NAMED(constants) by = NAMED(constants_of)(job, unit, constants);
    int64_t offset[LANES];
    NAMED(row_offsets)(step_of, offset);
    memset(lag, 0, (size_t)m * sizeof(REALS));
    for (int64_t block = job->span[span] / LANES; block * LANES < job->span[span + 1]; ++block) {
        REAL *const sum = (REAL *)job->partial + (unit * job->spans + span) * job->blocks * LANES * step_of +
                          block * LANES * step_of;
        for (int64_t later = span + 1; later < job->spans; ++later) {
            const REAL *other = sum + (later - span) * job->blocks * LANES * step_of;
            for (int64_t x = 0; x < LANES * step_of; x += LANES)
                OP(store)(sum + x, OP(load)(sum + x) + OP(load)(other + x));
        }
        NAMED(pack)(sum, offset, LANES, 2 * m + f, (REAL *)rows);
        NAMED(reverse_features)(m, &by, 1, NAMED(state_at)(job, unit, step) + block * 2 * m, rows, 0,
                                g + block * m, lag);
        for (int64_t c = 0; c < f; ++c) dv[block * f + c] += rows[2 * m + c];
    }
    for (int64_t k = 0; k < m; ++k) part[k] += NAMED(total)(lag[k], LANES);
}

/* ---- the last gradients ----------------------------------------------------------------------------------
 */

/* Gradients at (c, s), at the queries' pair and at the values, of one block. */
static void NAMED(phase_finish)(const spo_phase_job *job, int64_t unit, int64_t block, void *scratch) {
    const spo_phase_attention *at = job->at;
    const int64_t m = at->phases, f = at->value_width, place = unit * job->blocks + block;
    REALS *const room = scratch;
    REALS *const g = (REALS *)((REAL *)job->phase_gradient + place * m * LANES);
    const REALS *const query_g = (const REALS *)((REAL *)job->query_gradient + place * m * LANES);
    int64_t offset[LANES], count = NAMED(places)(job, unit, block, m, offset);
    if (job->fixed_queries && !at->query_c)
        for (int64_t k = 0; k < m; ++k) g[k] += query_g[k];
    for (int pair = 0; pair < (at->query_c ? 2 : 1); ++pair) {
        NAMED(pack)(pair ? at->query_c : at->c, offset, count, m, (REAL *)room);
        NAMED(pack)(pair ? at->query_s : at->s, offset, count, m, (REAL *)(room + m));
        NAMED(finish_block)(m, pair ? query_g : g, room, room + m);
        NAMED(unpack)((REAL *)room, offset, count, m, pair ? job->dquery_c : job->dc);
        NAMED(unpack)((REAL *)(room + m), offset, count, m, pair ? job->dquery_s : job->ds);
    }
    count = NAMED(places)(job, unit, block, f, offset);
    NAMED(unpack)((REAL *)job->value_gradient + place * f * LANES, offset, count, f, job->dv);
}

static const spo_attention_kernels NAMED(attention_kernels) = {
    LANES,
    TILE_QUERIES,
    NAMED(attend_room),
    NAMED(attend_rows),
    NAMED(attend_crowd),
    NAMED(reverse_rows),
    NAMED(reverse_crowd),
    NAMED(collect),
    NAMED(phase_room),
    NAMED(phase_begin),
    NAMED(phase_crowd),
    NAMED(reverse_phase_crowd),
    NAMED(phase_tile),
    NAMED(reverse_phase_span),
    NAMED(collect_phase_span),
    NAMED(phase_finish),
};

#undef NOTHING
#undef TILE_QUERIES
#undef PHASE_CONSTANTS
