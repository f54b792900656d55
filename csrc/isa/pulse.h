/* The parts of context-pulse attention for one type of number, on attention.h; included as often.
 *
 * Lanes are columns where a pass goes along memory (gate, leaky scan), else tokens: rows are turned into
 * lanes (pack), so that sums over a token's columns run in a register and a twist of all tokens is one
 * product of matrices. A problem is a sample and a head, whose tokens lie heads x width apart. */

#ifndef SPO_PULSE_SHAPES
#define SPO_PULSE_SHAPES
/* Vectors of tokens that are turned at once. */
#define TURN_VECTORS 2
/* Rows over which a decay's gradient is summed up before it joins a sum in double. */
#define LEAK_ROWS 64

/* Sixteen bytes that go to memory past the caches, where the processor has such a store. */
INLINE void stream_bytes(void *to, const void *from) {
#if defined(__SSE2__)
    __m128i bytes;
    memcpy(&bytes, from, sizeof bytes);
    _mm_stream_si128((__m128i *)to, bytes);
#else
    memcpy(to, from, 16);
#endif
}

/* Orders them before whatever follows. */
INLINE void end_stream(void) {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
#endif

/* The first count (1 ... LANES) numbers at p: whole vectors by plain instructions, which are far faster than
 * masked ones on some processors. */
INLINE REALS NAMED(load_some)(const REAL *p, int64_t count) {
    return count == LANES ? OP(load)(p) : OP(load_first)(p, count);
}

INLINE void NAMED(store_some)(REAL *p, REALS x, int64_t count) {
    if (count == LANES)
        OP(store)(p, x);
    else
        OP(store_first)(p, x, count);
}

/* The same; whole vectors past the caches if that is asked, the address then being a multiple of 16. */
INLINE void NAMED(store_past)(REAL *p, REALS x, int64_t count, int past) {
    if (past && count == LANES)
        for (size_t byte = 0; byte < sizeof x; byte += 16)
            stream_bytes((char *)p + byte, (const char *)&x + byte);
    else
        NAMED(store_some)(p, x, count);
}

INLINE int64_t NAMED(vectors)(int64_t count) { return (count + LANES - 1) / LANES; }

/* ---- gate: sigmoid(g) x ------------------------------------------------------------------------------ */

INLINE REALS NAMED(sigmoid)(REALS g) {
    const REALS small = OP(weight)(-OP(abs)(g)), one = OP(set)(1);
    return OP(select)(g >= (REALS){0}, one, small) / (one + small);
}

static void NAMED(gate)(int64_t count, const void *x, const void *g, void *out) {
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t some = SMALLEST_COUNT(LANES, count - i);
        const REALS share = NAMED(sigmoid)(NAMED(load_some)((const REAL *)g + i, some));
        NAMED(store_some)((REAL *)out + i, share * NAMED(load_some)((const REAL *)x + i, some), some);
    }
}

static void NAMED(gate_vjp)(int64_t count, const void *x, const void *g, const void *grad, void *dx,
                            void *dg) {
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t some = SMALLEST_COUNT(LANES, count - i);
        const REALS share = NAMED(sigmoid)(NAMED(load_some)((const REAL *)g + i, some));
        const REALS slope = share * NAMED(load_some)((const REAL *)grad + i, some);
        NAMED(store_some)((REAL *)dx + i, slope, some);
        NAMED(store_some)((REAL *)dg + i, slope * NAMED(load_some)((const REAL *)x + i, some) * (1 - share),
                          some);
    }
}

/* ---- leaky scan: c_t = decay c_{t-1} + (1 - decay) x_t ----------------------------------------------- */

/* Some columns of one sample, rows `step` apart; state is scratch of count + LANES. `past`: whole vectors go
 * past the caches. */
static void NAMED(scan)(int64_t tokens, int64_t step, int64_t count, double decay, const void *x, void *c,
                        void *state, int past) {
    const REALS keep = OP(set)((REAL)decay), take = OP(set)((REAL)(1 - decay));
    const REAL *from = x;
    REAL *to = c, *const held = state;
    memset(held, 0, (size_t)NAMED(padded)(count) * sizeof(REAL));
    for (int64_t t = 0; t < tokens; ++t, from += step, to += step)
        for (int64_t k = 0; k < count; k += LANES) {
            const int64_t some = SMALLEST_COUNT(LANES, count - k);
            const REALS now = OP(fma)(keep, OP(load)(held + k), take * NAMED(load_some)(from + k, some));
            OP(store)(held + k, now);
            NAMED(store_past)(to + k, now, some, past);
        }
    if (past) end_stream();
}

/* Gradients at x and, where c is given, the sum of those at the decay: with l_t = grad_t + decay l_{t+1}
 * these are (1 - decay) l_t and l_t (c_{t-1} - x_t). state is scratch of 2 (count + LANES). */
static double NAMED(scan_vjp)(int64_t tokens, int64_t step, int64_t count, double decay, const void *x,
                              const void *c, const void *grad, void *dx, void *state) {
    const REALS keep = OP(set)((REAL)decay), take = OP(set)((REAL)(1 - decay));
    const int64_t padded = NAMED(padded)(count);
    REAL *const carried = state, *const part = carried + padded;
    double ddecay = 0;
    memset(carried, 0, (size_t)(2 * padded) * sizeof(REAL));
    for (int64_t t = tokens - 1; t >= 0; --t) {
        const int64_t row = t * step;
        for (int64_t k = 0; k < count; k += LANES) {
            const int64_t some = SMALLEST_COUNT(LANES, count - k), at = row + k;
            const REALS now =
                OP(fma)(keep, OP(load)(carried + k), NAMED(load_some)((const REAL *)grad + at, some));
            OP(store)(carried + k, now);
            NAMED(store_some)((REAL *)dx + at, take * now, some);
            if (!c) continue;
            const REALS before = t ? NAMED(load_some)((const REAL *)c + at - step, some) : (REALS){0};
            const REALS bend = before - NAMED(load_some)((const REAL *)x + at, some);
            OP(store)(part + k, OP(fma)(now, bend, OP(load)(part + k)));
        }
        if (c && t % LEAK_ROWS == 0)
            for (int64_t k = 0; k < padded; ++k) ddecay += (double)part[k], part[k] = 0;
    }
    return ddecay;
}

/* ---- moments of tokens ------------------------------------------------------------------------------- */

/* Mean of each row's numbers and the sum of their squared distances from it, in units of the largest, so that
 * no square overflows; scratch of LANES width. */
static void NAMED(moments)(int64_t rows, int64_t width, const void *x, double *mean, double *squares,
                           void *scratch) {
    REAL *const lane = scratch;
    int64_t offset[LANES];
    NAMED(row_offsets)(width, offset);
    const REAL least = 4 / (REAL)LARGEST_POWER;
    for (int64_t row = 0; row < rows; row += LANES) {
        const int64_t count = SMALLEST_COUNT(LANES, rows - row);
        NAMED(pack)((const REAL *)x + row * width, offset, count, width, lane);
        REALS top = {0}, sum = {0}, square = {0};
        for (int64_t c = 0; c < width; ++c) top = OP(max)(OP(abs)(OP(load)(lane + c * LANES)), top);
        top = OP(select)(top > least, top, OP(set)(1));
        const REALS inverse = 1 / top;
        for (int64_t c = 0; c < width; ++c) sum += inverse * OP(load)(lane + c * LANES);
        const REALS middle = sum / (REAL)width;
        for (int64_t c = 0; c < width; ++c) {
            const REALS away = inverse * OP(load)(lane + c * LANES) - middle;
            square = OP(fma)(away, away, square);
        }
        for (int64_t r = 0; r < count; ++r) {
            const double unit = (double)top[r];
            mean[row + r] = unit * (double)middle[r];
            squares[row + r] = unit * unit * (double)square[r];
        }
    }
}

/* grad becomes factor (grad + alpha + beta (x - mean)), row by row. */
static void NAMED(unnormalise)(int64_t rows, int64_t width, void *grad, const void *x, const double *factor,
                               const double *alpha, const double *beta, const double *mean) {
    for (int64_t row = 0; row < rows; ++row) {
        const REALS by = OP(set)((REAL)factor[row]), plus = OP(set)((REAL)alpha[row]);
        const REALS slope = OP(set)((REAL)beta[row]), middle = OP(set)((REAL)mean[row]);
        for (int64_t c = 0; c < width; c += LANES) {
            const int64_t some = SMALLEST_COUNT(LANES, width - c), at = row * width + c;
            REAL *const to = (REAL *)grad + at;
            const REALS away = NAMED(load_some)((const REAL *)x + at, some) - middle;
            NAMED(store_some)(to, by * OP(fma)(slope, away, NAMED(load_some)(to, some) + plus), some);
        }
    }
}

/* ---- turn: normalise, twist, rotate ------------------------------------------------------------------ */

/* Tables (tokens, half) as (block, half, lane). */
static void NAMED(lay_table)(int64_t tokens, int64_t half, const void *table, void *to) {
    int64_t offset[LANES];
    NAMED(row_offsets)(half, offset);
    for (int64_t i = 0; i < tokens; i += LANES)
        NAMED(pack)((const REAL *)table + i * half, offset, SMALLEST_COUNT(LANES, tokens - i), half,
                    (REAL *)to + i * half);
}

/* Columns (width, lane) of one block of tokens: pairs side by side become halves, and back. */
INLINE void NAMED(rotate)(int64_t half, const REAL *cosine, const REAL *sine, const REAL *from, REAL *to) {
    for (int64_t k = 0; k < half; ++k) {
        const REALS c = OP(load)(cosine + k * LANES), s = OP(load)(sine + k * LANES);
        const REALS a = OP(load)(from + 2 * k * LANES), b = OP(load)(from + (2 * k + 1) * LANES);
        OP(store)(to + k * LANES, OP(fma)(a, c, -(b * s)));
        OP(store)(to + (half + k) * LANES, OP(fma)(a, s, b * c));
    }
}

INLINE void NAMED(rotate_back)(int64_t half, const REAL *cosine, const REAL *sine, const REAL *from,
                               REAL *to) {
    for (int64_t k = 0; k < half; ++k) {
        const REALS c = OP(load)(cosine + k * LANES), s = OP(load)(sine + k * LANES);
        const REALS a = OP(load)(from + k * LANES), b = OP(load)(from + (half + k) * LANES);
        OP(store)(to + 2 * k * LANES, OP(fma)(a, c, b * s));
        OP(store)(to + (2 * k + 1) * LANES, OP(fma)(b, c, -(a * s)));
    }
}

/* Up to TURN_VECTORS vectors of tokens of a problem; columns are (vector, width, lane). */
typedef struct {
    int64_t vectors, count;    /* vectors, and tokens in them */
    const REAL *cosine, *sine; /* (vector, half, lane) */
} NAMED(turned);

static NAMED(turned) NAMED(turned_at)(const spo_turn_job *job, int64_t first) {
    const int64_t half = job->at->width / 2;
    const int64_t count = SMALLEST_COUNT(TURN_VECTORS * LANES, job->at->tokens - first);
    return (NAMED(turned)){NAMED(vectors)(count), count, (const REAL *)job->cosine + first * half,
                           (const REAL *)job->sine + first * half};
}

/* Rotation of all vectors, forth or back. */
static void NAMED(rotate_all)(const NAMED(turned) * block, int64_t width, int back, const REAL *from,
                              REAL *to) {
    const int64_t half = width / 2;
    for (int64_t v = 0; v < block->vectors; ++v) {
        const int64_t table = v * half * LANES, at = v * width * LANES;
        if (back)
            NAMED(rotate_back)(half, block->cosine + table, block->sine + table, from + at, to + at);
        else
            NAMED(rotate)(half, block->cosine + table, block->sine + table, from + at, to + at);
    }
}

/* to = T^T from, in columns: each token times T; or with T^T, each token times T^T. */
static void NAMED(twist)(const NAMED(turned) * block, int64_t width, int transposed, const REAL *twist,
                         const REAL *from, REAL *to) {
    const REALS zeros[TURN_VECTORS] = {{0}};
    const int64_t vector = width * LANES;
    const NAMED(product)
        p = {width, transposed ? width : 1, transposed ? 1 : width, vector, LANES, LANES, vector};
    if (transposed) {
        NAMED(multiply_rows)(NAMED(across), &p, width, block->vectors, twist, from, zeros, to);
        return;
    }
    memset(to, 0, (size_t)(block->vectors * vector) * sizeof(REAL));
    NAMED(multiply_rows)(NAMED(along_add), &p, width, block->vectors, twist, from, NULL, to);
}

/* Rows of a block to columns, from the first of them on, `step` apart. */
static void NAMED(to_columns)(const NAMED(turned) * block, int64_t width, int64_t step, const REAL *rows,
                              REAL *columns) {
    int64_t offset[LANES];
    NAMED(row_offsets)(step, offset);
    for (int64_t v = 0; v < block->vectors; ++v)
        NAMED(pack)(rows + v * LANES * step, offset, SMALLEST_COUNT(LANES, block->count - v * LANES), width,
                    columns + v * width * LANES);
}

static void NAMED(to_rows)(const NAMED(turned) * block, int64_t width, int64_t step, const REAL *columns,
                           REAL *rows) {
    int64_t offset[LANES];
    NAMED(row_offsets)(step, offset);
    for (int64_t v = 0; v < block->vectors; ++v)
        NAMED(unpack)(columns + v * width * LANES, offset, SMALLEST_COUNT(LANES, block->count - v * LANES),
                      width, rows + v * LANES * step);
}

/* (x - shift) factor of a block as columns. */
static void NAMED(normalised)(const spo_turn *at, const NAMED(turned) * block, int64_t place, REAL *columns) {
    const int64_t step = at->heads * at->width;
    NAMED(to_columns)(block, at->width, step, (const REAL *)at->x + place * at->width, columns);
    for (int64_t v = 0; v < block->vectors; ++v) {
        REALS shift = {0}, factor = {0};
        for (int64_t r = 0; r < SMALLEST_COUNT(LANES, block->count - v * LANES); ++r) {
            shift[r] = (REAL)at->shift[place + (v * LANES + r) * at->heads];
            factor[r] = (REAL)at->factor[place + (v * LANES + r) * at->heads];
        }
        REAL *line = columns + v * at->width * LANES;
        for (int64_t c = 0; c < at->width; ++c, line += LANES)
            OP(store)(line, (OP(load)(line) - shift) * factor);
    }
}

static int64_t NAMED(turn_room)(const spo_turn *at, int reverse) {
    const int64_t columns = TURN_VECTORS * LANES * at->width, padded = NAMED(padded)(at->width);
    return 2 * columns + (reverse ? columns + 2 * TURN_VECTORS * LANES * padded + at->width * padded : 0);
}

/* y (batch, heads, tokens, width) of one problem. */
static void NAMED(turn)(const spo_turn_job *job, int64_t problem, void *y, void *scratch) {
    const spo_turn *at = job->at;
    const int64_t width = at->width, h = problem % at->heads, n = at->tokens;
    const REAL *const twist = at->twist ? (const REAL *)at->twist + h * width * width : NULL;
    REAL *a = scratch, *b = a + TURN_VECTORS * LANES * width;
    for (int64_t first = 0; first < n; first += TURN_VECTORS * LANES) {
        const NAMED(turned) block = NAMED(turned_at)(job, first);
        NAMED(normalised)(at, &block, (problem / at->heads * n + first) * at->heads + h, a);
        const REAL *result = b;
        if (twist && at->twist_first) {
            NAMED(twist)(&block, width, 0, twist, a, b);
            NAMED(rotate_all)(&block, width, 0, b, a);
            result = a;
        } else {
            NAMED(rotate_all)(&block, width, 0, a, b);
            if (twist) {
                NAMED(twist)(&block, width, 0, twist, b, a);
                result = a;
            }
        }
        NAMED(to_rows)(&block, width, width, result, (REAL *)y + (problem * n + first) * width);
    }
}

/* From the gradient at y to that at the normalised tokens, g (batch, tokens, heads, width), its sums over
 * each token, alone and times the normalised tokens, and one problem's part of that at the twist. */
static void NAMED(turn_vjp)(const spo_turn_job *job, int64_t problem, const void *grad, void *g,
                            double *slopes, double *products, double *dtwist, void *scratch) {
    const spo_turn *at = job->at;
    const int64_t width = at->width, padded = NAMED(padded)(width), h = problem % at->heads, n = at->tokens;
    const int64_t columns = TURN_VECTORS * LANES * width, rows = TURN_VECTORS * LANES * padded;
    const REAL *const twist = at->twist ? (const REAL *)at->twist + h * width * width : NULL;
    REAL *z = scratch, *a = z + columns, *b = a + columns, *entered = b + columns, *left = entered + rows,
         *sum = left + rows;
    memset(entered, 0, (size_t)(2 * rows + width * padded) * sizeof(REAL));
    for (int64_t first = 0; first < n; first += TURN_VECTORS * LANES) {
        const NAMED(turned) block = NAMED(turned_at)(job, first);
        const int64_t place = (problem / at->heads * n + first) * at->heads + h;
        NAMED(normalised)(at, &block, place, z);
        NAMED(to_columns)(&block, width, width, (const REAL *)grad + (problem * n + first) * width, a);
        if (!twist || at->twist_first) {
            NAMED(rotate_all)(&block, width, 1, a, b);
            NAMED(to_rows)(&block, width, width, z, entered);
        } else {
            memcpy(b, a, (size_t)columns * sizeof(REAL));
            NAMED(rotate_all)(&block, width, 0, z, a);
            NAMED(to_rows)(&block, width, width, a, entered);
        }
        const REAL *result = b;
        if (twist) {
            const NAMED(product) p = {block.count, 1, width, LANES, padded, padded, LANES};
            NAMED(to_rows)(&block, width, padded, b, left);
            NAMED(multiply_rows)(NAMED(along_add), &p, width, padded / LANES, entered, left, NULL, sum);
            NAMED(twist)(&block, width, 1, twist, b, a);
            result = a;
            if (!at->twist_first) {
                NAMED(rotate_all)(&block, width, 1, a, b);
                result = b;
            }
        }
        for (int64_t v = 0; v < block.vectors; ++v) {
            REALS slope = {0}, product = {0};
            for (int64_t c = 0; c < width; ++c) {
                const REALS now = OP(load)(result + (v * width + c) * LANES);
                slope += now;
                product = OP(fma)(now, OP(load)(z + (v * width + c) * LANES), product);
            }
            for (int64_t r = 0; r < SMALLEST_COUNT(LANES, block.count - v * LANES); ++r) {
                slopes[place + (v * LANES + r) * at->heads] = (double)slope[r];
                products[place + (v * LANES + r) * at->heads] = (double)product[r];
            }
        }
        NAMED(to_rows)(&block, width, at->heads * width, result, (REAL *)g + place * width);
    }
    if (twist)
        for (int64_t d = 0; d < width; ++d)
            for (int64_t c = 0; c < width; ++c) dtwist[d * width + c] = (double)sum[d * padded + c];
}

/* ---- resonance with past chunks ---------------------------------------------------------------------- */

/* One problem at work. Rows that ask are (rows, padded); rows of the past likewise, and their scores, then
 * weights, (past chunk, row). */
typedef struct {
    const spo_resonance *at;
    int64_t step, wide, padded; /* from token to token; numbers of a past chunk, and padded to vectors */
    int64_t chunks, length;     /* length: of a whole chunk */
    const REAL *u, *k;
    REAL *past, *asked, *columns, *weights, *recalled, *zeros;
} NAMED(resonator);

static int64_t NAMED(resonance_room)(const spo_resonance *at, int reverse) {
    const int64_t length = SMALLEST_COUNT(at->chunk, at->tokens);
    const int64_t chunks = (at->tokens + at->chunk - 1) / at->chunk;
    const int64_t wide = at->width * LARGEST_COUNT(1, at->moments), padded = NAMED(padded)(wide);
    const int64_t rows = NAMED(padded)(at->per_token ? length : 1), width = NAMED(padded)(at->width);
    const int64_t forward = chunks * padded + 3 * rows * padded + chunks * rows + rows + 4 * width;
    return reverse ? forward + chunks * padded + chunks * rows + rows * padded + length * width : forward;
}

static NAMED(resonator) NAMED(resonator_of)(const spo_resonance *at, int64_t problem, REAL **room) {
    const int64_t head = problem % at->heads, step = at->heads * at->width;
    const int64_t begin = problem / at->heads * at->tokens * step + head * at->width;
    NAMED(resonator) r = {.at = at, .step = step, .wide = at->width * LARGEST_COUNT(1, at->moments)};
    r.padded = NAMED(padded)(r.wide);
    r.chunks = (at->tokens + at->chunk - 1) / at->chunk;
    r.length = SMALLEST_COUNT(at->chunk, at->tokens);
    r.u = (const REAL *)at->u + begin;
    r.k = (const REAL *)at->k + begin;
    const int64_t rows = NAMED(padded)(at->per_token ? r.length : 1);
    r.past = NAMED(take)(room, r.chunks * r.padded);
    r.asked = NAMED(take)(room, rows * r.padded);
    r.columns = NAMED(take)(room, rows * r.padded);
    r.recalled = NAMED(take)(room, rows * r.padded);
    r.weights = NAMED(take)(room, r.chunks * rows);
    r.zeros = NAMED(take)(room, rows);
    memset(r.past, 0, (size_t)(r.chunks * r.padded) * sizeof(REAL));
    memset(r.zeros, 0, (size_t)rows * sizeof(REAL));
    return r;
}

/* Tokens of a chunk, and rows that ask for it. */
INLINE int64_t NAMED(tokens_of)(const NAMED(resonator) * r, int64_t n) {
    return SMALLEST_COUNT(r->at->chunk, r->at->tokens - n * r->at->chunk);
}

INLINE int64_t NAMED(asking)(const NAMED(resonator) * r, int64_t n) {
    return r->at->per_token ? NAMED(tokens_of)(r, n) : 1;
}

/* Row t of a chunk's basis. */
INLINE const REAL *NAMED(basis_row)(const NAMED(resonator) * r, int64_t n, int64_t t) {
    return (const REAL *)(n + 1 < r->chunks ? r->at->basis : r->at->last_basis) + t * r->at->moments;
}

/* to += factor from. */
INLINE void NAMED(add_scaled)(int64_t count, REAL factor, const REAL *from, REAL *to) {
    for (int64_t c = 0; c < count; ++c) to[c] += factor * from[c];
}

/* What is remembered of a chunk whose states begin at c. */
static void NAMED(remember)(const NAMED(resonator) * r, int64_t n, const REAL *c) {
    const int64_t width = r->at->width, moments = r->at->moments, length = NAMED(tokens_of)(r, n);
    REAL *const past = r->past + n * r->padded;
    if (!moments) {
        memcpy(past, c + (length - 1) * r->step, (size_t)width * sizeof(REAL));
        return;
    }
    for (int64_t t = 0; t < length; ++t)
        for (int64_t m = 0; m < moments; ++m)
            NAMED(add_scaled)(width, NAMED(basis_row)(r, n, t)[m], c + t * r->step, past + m * width);
}

/* The rows of a chunk that ask, times the scale. */
static void NAMED(ask)(const NAMED(resonator) * r, int64_t n) {
    const spo_resonance *at = r->at;
    const int64_t width = at->width, moments = at->moments, length = NAMED(tokens_of)(r, n);
    const int64_t rows = NAMED(padded)(NAMED(asking)(r, n));
    const REAL *k = r->k + n * at->chunk * r->step;
    const REAL scale = (REAL)at->scale;
    memset(r->asked, 0, (size_t)(rows * r->padded) * sizeof(REAL));
    for (int64_t t = 0; t < length; ++t, k += r->step) {
        REAL *const row = r->asked + (at->per_token ? t : 0) * r->padded;
        if (!moments)
            NAMED(add_scaled)(width, scale, k, row);
        else {
            if (at->per_token && t) memcpy(row, row - r->padded, (size_t)r->wide * sizeof(REAL));
            for (int64_t m = 0; m < moments; ++m)
                NAMED(add_scaled)(width, scale * NAMED(basis_row)(r, n, t)[m], k, row + m * width);
        }
    }
}

/* Weights of the past chunks for the rows that ask. */
static void NAMED(weigh_past)(const NAMED(resonator) * r, int64_t n) {
    const int64_t vectors = NAMED(vectors)(NAMED(asking)(r, n)), rows = vectors * LANES;
    const NAMED(turned) block = {vectors, rows, NULL, NULL};
    NAMED(to_columns)(&block, r->wide, r->padded, r->asked, r->columns);
    const NAMED(product) score = {r->wide, r->padded, 1, r->wide * LANES, LANES, rows, LANES};
    NAMED(multiply_rows)(NAMED(across), &score, n, vectors, r->past, r->columns, (const REALS *)r->zeros,
                         r->weights);
    for (int64_t v = 0; v < vectors; ++v) {
        REAL *const column = r->weights + v * LANES;
        REALS top = OP(load)(column), sum = {0};
        for (int64_t m = 1; m < n; ++m) top = OP(max)(OP(load)(column + m * rows), top);
        for (int64_t m = 0; m < n; ++m) {
            const REALS weight = OP(weight)(OP(load)(column + m * rows) - top);
            sum += weight;
            OP(store)(column + m * rows, weight);
        }
        const REALS share = 1 / sum;
        for (int64_t m = 0; m < n; ++m) OP(store)(column + m * rows, share * OP(load)(column + m * rows));
    }
}

/* sum over past chunks of weights (past chunk, row) times what is remembered, as rows. */
static void NAMED(mix_past)(const NAMED(resonator) * r, int64_t n, const REAL *weights, REAL *mixed) {
    const int64_t vectors = NAMED(vectors)(NAMED(asking)(r, n)), rows = vectors * LANES;
    const NAMED(turned) block = {vectors, rows, NULL, NULL};
    const NAMED(product) value = {n, 1, r->padded, LANES, rows, LANES, r->wide * LANES};
    memset(r->columns, 0, (size_t)(rows * r->wide) * sizeof(REAL));
    NAMED(multiply_rows)(NAMED(along_add), &value, r->wide, vectors, r->past, weights, NULL, r->columns);
    NAMED(to_rows)(&block, r->wide, r->padded, r->columns, mixed);
}

static void NAMED(resonance)(const spo_resonance *at, int64_t problem, void *c, void *scratch) {
    REAL *room = scratch;
    const NAMED(resonator) r = NAMED(resonator_of)(at, problem, &room);
    const int64_t width = at->width, moments = at->moments, padded = NAMED(padded)(width);
    REAL *const sum = NAMED(take)(&room, padded), *const base = NAMED(take)(&room, padded);
    REAL *const inject = NAMED(take)(&room, padded), *const before = NAMED(take)(&room, padded);
    memset(before, 0, (size_t)width * sizeof(REAL)); /* last row of what was injected into the chunk before */
    REAL *to = (REAL *)c + (r.u - (const REAL *)at->u);
    const REAL *u = r.u;
    for (int64_t n = 0; n < r.chunks; ++n) {
        REAL *const first = to;
        memset(sum, 0, (size_t)width * sizeof(REAL));
        if (n) {
            NAMED(ask)(&r, n);
            NAMED(weigh_past)(&r, n);
            NAMED(mix_past)(&r, n, r.weights, r.recalled);
            memcpy(base, first - r.step, (size_t)width * sizeof(REAL));
        }
        for (int64_t t = 0; t < NAMED(tokens_of)(&r, n); ++t, to += r.step, u += r.step) {
            NAMED(add_scaled)(width, 1, u, sum);
            memcpy(to, sum, (size_t)width * sizeof(REAL));
            if (!n) continue;
            const REAL *const recalled = r.recalled + (at->per_token ? t : 0) * r.padded;
            memcpy(inject, base, (size_t)width * sizeof(REAL));
            if (!moments) NAMED(add_scaled)(width, 1, recalled, inject);
            for (int64_t m = 0; m < moments; ++m)
                NAMED(add_scaled)(width, NAMED(basis_row)(&r, n, t)[m], recalled + m * width, inject);
            for (int64_t k = 0; k < width; ++k) to[k] += inject[k] - before[k];
        }
        if (n && moments) memcpy(before, inject, (size_t)width * sizeof(REAL));
        NAMED(remember)(&r, n, first);
    }
}

/* Gradients at what past chunks remember, from those of their weights and of what the rows made of them. */
static void NAMED(mix_past_vjp)(const NAMED(resonator) * r, int64_t n, const REAL *drecalled, REAL *slopes,
                                REAL *dpast) {
    const int64_t vectors = NAMED(vectors)(NAMED(asking)(r, n)), rows = vectors * LANES;
    const NAMED(turned) block = {vectors, rows, NULL, NULL};
    NAMED(to_columns)(&block, r->wide, r->padded, drecalled, r->columns);
    const NAMED(product) slope = {r->wide, r->padded, 1, r->wide * LANES, LANES, rows, LANES};
    NAMED(multiply_rows)(NAMED(across), &slope, n, vectors, r->past, r->columns, (const REALS *)r->zeros,
                         slopes);
    for (int64_t v = 0; v < vectors; ++v) {
        const int64_t column = v * LANES;
        REALS mean = {0};
        for (int64_t m = 0; m < n; ++m)
            mean =
                OP(fma)(OP(load)(r->weights + m * rows + column), OP(load)(slopes + m * rows + column), mean);
        for (int64_t m = 0; m < n; ++m) {
            REAL *const at = slopes + m * rows + column;
            OP(store)(at, OP(load)(r->weights + m * rows + column) * (OP(load)(at) - mean));
        }
    }
    const NAMED(product) back = {rows, rows, 1, LANES, r->padded, r->padded, LANES};
    const int64_t wide = r->padded / LANES;
    NAMED(multiply_rows)(NAMED(across_add), &back, n, wide, r->weights, drecalled, NULL, dpast);
    NAMED(multiply_rows)(NAMED(across_add), &back, n, wide, slopes, r->asked, NULL, dpast);
}

/* du and dk of one problem; what was remembered is found in c again. */
static void NAMED(resonance_vjp)(const spo_resonance *at, int64_t problem, const void *c, const void *grad,
                                 void *du, void *dk, void *scratch) {
    REAL *room = scratch;
    const NAMED(resonator) r = NAMED(resonator_of)(at, problem, &room);
    const int64_t width = at->width, moments = at->moments, padded = NAMED(padded)(width);
    const int64_t begin = r.u - (const REAL *)at->u, asking = NAMED(padded)(at->per_token ? r.length : 1);
    const size_t row = (size_t)width * sizeof(REAL);
    REAL *const dstate = NAMED(take)(&room, padded), *const dinject = NAMED(take)(&room, padded);
    REAL *const whole = NAMED(take)(&room, padded), *const sum = NAMED(take)(&room, padded);
    REAL *const dpast = NAMED(take)(&room, r.chunks * r.padded);
    REAL *const slopes = NAMED(take)(&room, r.chunks * asking);
    REAL *const drecalled = NAMED(take)(&room, asking * r.padded), *const g = room;
    memset(dstate, 0, row);  /* at the last state of the chunk, from the next one */
    memset(dinject, 0, row); /* at the last row of what was injected into it */
    memset(dpast, 0, (size_t)(r.chunks * r.padded) * sizeof(REAL));
    for (int64_t n = 0; n < r.chunks; ++n)
        NAMED(remember)(&r, n, (const REAL *)c + begin + n * at->chunk * r.step);
    for (int64_t n = r.chunks - 1; n >= 0; --n) {
        const int64_t length = NAMED(tokens_of)(&r, n), first = begin + n * at->chunk * r.step;
        const REAL *const remembered = dpast + n * r.padded;
        for (int64_t t = 0; t < length; ++t) {
            REAL *const now = g + t * width;
            memcpy(now, (const REAL *)grad + first + t * r.step, row);
            for (int64_t m = 0; m < moments; ++m)
                NAMED(add_scaled)(width, NAMED(basis_row)(&r, n, t)[m], remembered + m * width, now);
        }
        REAL *const last = g + (length - 1) * width;
        NAMED(add_scaled)(width, 1, dstate, last);
        if (!moments) NAMED(add_scaled)(width, 1, remembered, last);
        memset(sum, 0, row);
        for (int64_t t = length - 1; t >= 0; --t) {
            NAMED(add_scaled)(width, 1, g + t * width, sum);
            memcpy((REAL *)du + first + t * r.step, sum, row);
            memset((REAL *)dk + first + t * r.step, 0, row);
        }
        if (!n) break;
        memcpy(whole, sum, row);
        NAMED(add_scaled)(width, 1, dinject, last);
        for (int64_t k = 0; k < width; ++k) dstate[k] = whole[k] + dinject[k];
        for (int64_t k = 0; k < width; ++k) dinject[k] = moments && n > 1 ? -whole[k] : 0;
        NAMED(ask)(&r, n);
        NAMED(weigh_past)(&r, n);
        memset(drecalled, 0, (size_t)(NAMED(padded)(NAMED(asking)(&r, n)) * r.padded) * sizeof(REAL));
        for (int64_t t = 0; t < length; ++t) {
            REAL *const to = drecalled + (at->per_token ? t : 0) * r.padded;
            if (!moments) memcpy(to, g + t * width, row);
            for (int64_t m = 0; m < moments; ++m)
                NAMED(add_scaled)(width, NAMED(basis_row)(&r, n, t)[m], g + t * width, to + m * width);
        }
        NAMED(mix_past_vjp)(&r, n, drecalled, slopes, dpast);
        NAMED(mix_past)(&r, n, slopes, r.recalled); /* over the scale: gradients at the rows that asked */
        for (int64_t t = length - 1; t >= 0; --t) {
            const REAL *const from = r.recalled + (at->per_token ? t : 0) * r.padded;
            REAL *const to = (REAL *)dk + first + t * r.step;
            const REAL scale = (REAL)at->scale;
            if (!moments) NAMED(add_scaled)(width, scale, from, to);
            for (int64_t m = 0; m < moments; ++m)
                NAMED(add_scaled)(width, scale * NAMED(basis_row)(&r, n, t)[m], from + m * width, to);
            if (moments && at->per_token && t) /* an earlier row's keys are in all later ones */
                NAMED(add_scaled)(r.wide, 1, from, r.recalled + (t - 1) * r.padded);
        }
    }
}

static const spo_pulse_kernels NAMED(pulse_kernels) = {
    LANES,           NAMED(gate),           NAMED(gate_vjp),  NAMED(scan),          NAMED(scan_vjp),
    NAMED(moments),  NAMED(unnormalise),    NAMED(lay_table), NAMED(turn_room),     NAMED(turn),
    NAMED(turn_vjp), NAMED(resonance_room), NAMED(resonance), NAMED(resonance_vjp),
};
