/* The modulation of an ensemble: a lane is a member, as in members.h, so that queries and keys follow one
 * after the other and an edge that K lacks is passed over. The formulas are those of modulation.h and
 * product.h. */

/* What a block of SPO_LANES members needs for K'; arrays end in (n, SPO_LANES). */
typedef struct {
    const spo_modulation *modulation;
    const double *knm; /* (n, n), what the members share */
    int exact;         /* it is its own transpose */
    int whole;         /* every query sees every other oscillator */
    int64_t n, size;   /* size: doubles of n oscillators */
    int64_t width, reach;
    vd half; /* lambda / 2 */
    double *x, *q, *k, *v,
        *y;           /* (d_model): features, later u of product.h; then what attention takes, gives */
    double *coupling; /* (n): K' */
} member_modulation;

static void member_features(const member_modulation *a, const double *sine, const double *cosine) {
    for (int64_t i = 0; i < a->size; i += SPO_LANES)
        store_harmonics(v_load(cosine + i), v_load(sine + i), a->modulation->d_model, a->size, a->x + i);
}

INLINE vd longest_key(const member_modulation *a, const double *k) {
    vd longest = {0};
    for (int64_t j = 0; j < a->size; j += SPO_LANES) {
        vd length = {0};
        for (int64_t e = 0; e < a->width; ++e) {
            const vd key = v_load(k + e * a->size + j);
            length = v_fma(key, key, length);
        }
        longest = v_max(length, longest);
    }
    return longest;
}

INLINE int sees(const member_modulation *a, int64_t i, int64_t j) {
    const int64_t distance = i < j ? j - i : i - j;
    return distance > 0 && distance <= a->reach && a->knm[i * a->n + j] != 0.0;
}

INLINE vd member_logit(const member_modulation *a, const int64_t width, const double *q, const double *k,
                       int64_t j) {
    vd t = {0};
    for (int64_t e = 0; e < width; ++e)
        t = v_fma(v_load(q + e * a->size), v_load(k + e * a->size + j * SPO_LANES), t);
    return t;
}

/* What is subtracted from the logits of query i, in each lane by its own numbers: see modulation.h. */
INLINE vd member_shift(const member_modulation *a, const int64_t width, const double *q, const double *k,
                       vd longest, int64_t i) {
    vd length = {0};
    for (int64_t e = 0; e < width; ++e)
        length = v_fma(v_load(q + e * a->size), v_load(q + e * a->size), length);
    const vd bound = v_sqrt(length * longest);
    if (__builtin_expect(!v_any(bound > BOUND_LIMIT), 1)) return bound;
    const vd none = v_set(-INFINITY);
    vd largest = none;
    for (int64_t j = 0; j < a->n; ++j)
        if (sees(a, i, j)) largest = v_max(member_logit(a, width, q, k, j), largest);
    return v_select(bound > BOUND_LIMIT, v_select(largest == none, (vd){0}, largest), bound);
}

/* Adds the keys low ... high - 1 that query i sees to its sums. */
INLINE void accumulate_members(const member_modulation *a, const int64_t width, const int whole, int64_t i,
                               int64_t low, int64_t high, const double *q, const double *k, const double *v,
                               vd shift, vd *total, vd *o) {
    for (int64_t j = low; j < high; ++j) {
        if (!whole && !sees(a, i, j)) continue;
        const vd weight = v_exp2(v_max(member_logit(a, width, q, k, j) - shift, v_set(LEAST_EXPONENT)));
        *total += weight;
        for (int64_t e = 0; e < width; ++e)
            o[e] = v_fma(weight, v_load(v + e * a->size + j * SPO_LANES), o[e]);
    }
}

/* y = softmax-weighted mean of the values for query i of head h; o is room for width. */
INLINE void attend_members(const member_modulation *a, const int64_t width, int64_t h, vd longest, int64_t i,
                           vd *o, double *y) {
    const int64_t rows = h * width * a->size;
    const double *q = a->q + rows + i * SPO_LANES, *k = a->k + rows, *v = a->v + rows;
    const vd shift = member_shift(a, width, q, k, longest, i);
    vd total = {0};
    for (int64_t e = 0; e < width; ++e) o[e] = (vd){0};
    if (a->whole) {
        accumulate_members(a, width, 1, i, 0, i, q, k, v, shift, &total, o);
        accumulate_members(a, width, 1, i, i + 1, a->n, q, k, v, shift, &total, o);
    } else
        accumulate_members(a, width, 0, i, 0, a->n, q, k, v, shift, &total, o);
    const vd inverse = v_and(1.0 / total, total != 0.0);
    for (int64_t e = 0; e < width; ++e) v_store(y + e * SPO_LANES, o[e] * inverse);
}

#define ATTEND_MEMBERS_OF_WIDTH(WIDTH)                                                                       \
    static SPO_APART void attend_members_##WIDTH(const member_modulation *a, int64_t h, vd longest,          \
                                                 int64_t i, double *y) {                                     \
        vd o[WIDTH];                                                                                         \
        attend_members(a, WIDTH, h, longest, i, o, y);                                                       \
    }
ATTEND_MEMBERS_OF_WIDTH(1)
ATTEND_MEMBERS_OF_WIDTH(2)
ATTEND_MEMBERS_OF_WIDTH(4)
ATTEND_MEMBERS_OF_WIDTH(8)

static SPO_APART void attend_members_any(const member_modulation *a, int64_t h, vd longest, int64_t i,
                                         double *y) {
    attend_members(a, a->width, h, longest, i, (vd *)y, y);
}

/* Over x: u = sqrt(lambda / 2) unit outputs. */
static void member_units(const member_modulation *a) {
    typedef void attend_width(const member_modulation *, int64_t, vd, int64_t, double *);
    attend_width *const attend_one = a->width == 2   ? attend_members_2
                                     : a->width == 4 ? attend_members_4
                                     : a->width == 1 ? attend_members_1
                                     : a->width == 8 ? attend_members_8
                                                     : attend_members_any;
    const spo_modulation *m = a->modulation;
    vd *longest = (vd *)(a->y + m->d_model * SPO_LANES);
    for (int64_t h = 0; h < m->n_heads; ++h) {
        const int64_t weights = h * m->d_model * a->width, rows = h * a->width * a->size;
        const double scale = LOG2_E / (sqrt((double)a->width) * m->temperature[h]);
        project(a->size, 0, a->size, m->d_model, a->width, a->x, m->w_q + weights, m->w_k + weights,
                m->w_v + weights, scale, a->q + rows, a->k + rows, a->v + rows);
        longest[h] = longest_key(a, a->k + rows);
    }
    const vd root = v_sqrt(a->half);
    for (int64_t i = 0; i < a->n; ++i) {
        double *unit = a->x + i * SPO_LANES;
        for (int64_t h = 0; h < m->n_heads; ++h)
            attend_one(a, h, longest[h], i, a->y + h * a->width * SPO_LANES);
        unit_outputs(m->d_model, a->size, a->y, m->w_o, unit);
        for (int64_t e = 0; e < m->d_model; ++e)
            v_store(unit + e * a->size, root * v_load(unit + e * a->size));
    }
}

/* K'_ij = (K_ij + K_ji) / 2 (1 + lambda / 2 + u_i . u_j), for pairs of a band alone; where lambda is 0 the
 * bits of K. own is room for d_model. */
INLINE void couple_row(const member_modulation *a, const int64_t d_model, const int exact, int64_t i,
                       vd *own) {
    const int64_t n = a->n, size = a->size;
    const double *knm = a->knm, *x = a->x;
    double *restrict row = a->coupling + i * n * SPO_LANES, *restrict column = a->coupling + i * SPO_LANES;
    const vd base = 1.0 + a->half;
    const vi still = a->half == 0.0;
    for (int64_t e = 0; e < d_model; ++e) own[e] = v_load(x + e * size + i * SPO_LANES);
    for (int64_t j = 0; j < i; ++j) {
        const double below = knm[i * n + j], above = exact ? below : knm[j * n + i];
        vd entry = v_set(exact ? below : 0.5 * above + 0.5 * below);
        if (i - j <= a->reach) {
            vd factor = base;
            for (int64_t e = 0; e < d_model; ++e)
                factor = v_fma(own[e], v_load(x + e * size + j * SPO_LANES), factor);
            entry *= factor;
        }
        v_store(row + j * SPO_LANES, exact ? entry : v_select(still, v_set(below), entry));
        v_store(column + j * n * SPO_LANES, exact ? entry : v_select(still, v_set(above), entry));
    }
    v_store(row + i * SPO_LANES, (vd){0});
}

static void modulate_members(const member_modulation *a, const double *sine, const double *cosine) {
    vd own[8];
    member_features(a, sine, cosine);
    member_units(a);
    for (int64_t i = 0; i < a->n; ++i)
        if (a->modulation->d_model != 8)
            couple_row(a, a->modulation->d_model, 0, i, (vd *)a->y);
        else if (a->exact)
            couple_row(a, 8, 1, i, own);
        else
            couple_row(a, 8, 0, i, own);
}
