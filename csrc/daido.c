/* Attention over a circle through order parameters: the part that depends on the projections alone.
 *
 * The logit of a head, s(theta, theta') = x(theta)^T W_Q W_K^T x(theta') / (sqrt(d_h) tau_h), is a
 * trigonometric polynomial of degree d/2 in both phases, so its exponential is entire and periodic and its
 * double Fourier series falls faster than any geometric one:
 *
 *   exp(s(theta, theta') - shift(theta)) = sum_ab C_ab phi_a(theta) phi_b(theta'),  phi_a = cos or sin a
 * theta sum_j exp(s(theta, theta_j) - shift(theta)) = sum_a phi_a(theta) (sum_b C_ab Z_b),  Z_b = sum_j
 * phi_b(theta_j)
 *
 * Z are the Kuramoto-Daido order parameters. The softmax does not see a shift by a function of the query;
 * the one chosen here is a trigonometric polynomial of degree d near the logarithm of the row's mean, so that
 * the series stays entire while the sums of all rows come close together. Without it rows whose logits lie
 * far below the largest one drown in the rounding of the others: at tau = 0.25 most of them, with it none.
 *
 * Coefficients come from a fast Fourier transform on a grid of L^2 points, L doubled until the spectrum has
 * decayed. Their noise is some 1e-19 of the largest value, near the axes 1e-18; a block of rows is
 * cut where what is left beyond it, less that noise, is under its share of TAIL. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daido.h"
#include "isa/kernels.h"

#define PI 0x1.921fb54442d18p1
#define LOG2_E 0x1.71547652b82fep0

/* What the series of a head may leave out, where exp(s - shift) reaches 1: the rounding of its largest
 * value. */
#define TAIL 1e-16
/* The smallest and the largest grid. */
#define SMALLEST_GRID 256
#define LARGEST_GRID 512
/* Coefficients up to this many times the largest at the outer edge are noise. */
#define NOISE_FACTOR 2.0
/* What is larger than this at the outer edge is a spectrum that has not decayed: roundings of exp(s) give at
 * most some 1e-17 on the axes, 1e-19 elsewhere. */
#define NOISE_LIMIT 2e-16
/* Errors that the check of a series lets pass: roundings of logits, of its own sums, of multiples of the
 * phases. */
#define CHECK_LIMIT 1e-13
/* Rows whose mean is under this share of the largest value lose more digits than the budget has; where more
 * than FEW of all phases give such rows, the series are of no use. */
#define FAINT 1e-3
#define FEW 0.02

/* In-place transform of n complex numbers, n a power of two; roots[k] = exp(-2 pi i k / n). */
static void transform(int64_t n, const double *roots, double *z) {
    for (int64_t i = 1, j = 0; i < n; ++i) {
        int64_t bit = n >> 1;
        for (; j & bit; bit >>= 1) j ^= bit;
        j ^= bit;
        if (i < j)
            for (int k = 0; k < 2; ++k) {
                const double old = z[2 * i + k];
                z[2 * i + k] = z[2 * j + k];
                z[2 * j + k] = old;
            }
    }
    for (int64_t half = 1; half < n; half *= 2)
        for (int64_t first = 0; first < n; first += 2 * half)
            for (int64_t k = 0; k < half; ++k) {
                double *a = z + 2 * (first + k), *b = a + 2 * half;
                const double *root = roots + 2 * (k * (n / (2 * half)));
                const double re = b[0] * root[0] - b[1] * root[1], im = b[0] * root[1] + b[1] * root[0];
                b[0] = a[0] - re;
                b[1] = a[1] - im;
                a[0] += re;
                a[1] += im;
            }
}

/* Room of one grid. */
typedef struct {
    int64_t size;
    double *roots;    /* (size, 2) */
    double *x;        /* (size, d_model): the embedding at the grid's phases */
    double *key;      /* (size, d_model): M^T x */
    double *value;    /* (size, size): logits, then their exponentials */
    double *spectrum; /* (size / 2 + 1, size, 2): [b][a] */
    double *row;      /* (2 size): rows being transformed */
    double *curve;    /* (size): a function of one phase */
    double *memory;
} grid;

static void release(grid *g) { free(g->memory); }

static int prepare(grid *g, int64_t size, int64_t d_model) {
    const int64_t lengths[7] = {
        2 * size, size * d_model, size * d_model, size * size, (size + 2) * size, 2 * size, size};
    double **arrays[7] = {&g->roots, &g->x, &g->key, &g->value, &g->spectrum, &g->row, &g->curve};
    int64_t total = 0;
    for (int k = 0; k < 7; ++k) total += lengths[k];
    g->size = size;
    g->memory = malloc((size_t)total * sizeof(double));
    if (!g->memory) return 0;
    double *at = g->memory;
    for (int k = 0; k < 7; at += lengths[k++]) *arrays[k] = at;
    for (int64_t i = 0; i < size; ++i) {
        g->roots[2 * i] = cos(2 * PI * (double)i / (double)size);
        g->roots[2 * i + 1] = -sin(2 * PI * (double)i / (double)size);
    }
    for (int64_t i = 0; i < size; ++i)
        for (int64_t m = 0; m < d_model; ++m) {
            const double *root = g->roots + 2 * ((m / 2 + 1) * i % size);
            g->x[i * d_model + m] = m % 2 ? -root[1] : root[0];
        }
    return 1;
}

/* The first `degree` + 1 cosine and sine coefficients of g->curve, times scale. */
static void analyse(const grid *g, int64_t degree, double scale, double *series) {
    const int64_t size = g->size;
    for (int64_t k = 0; k <= degree; ++k) {
        double cosine = 0, sine = 0;
        for (int64_t i = 0; i < size; ++i) {
            const double *root = g->roots + 2 * (k * i % size);
            cosine += g->curve[i] * root[0];
            sine -= g->curve[i] * root[1];
        }
        const double share = scale * (k ? 2.0 : 1.0) / (double)size;
        series[2 * k] = share * cosine;
        series[2 * k + 1] = k ? share * sine : 0.0;
    }
}

static double synthesise(const grid *g, int64_t degree, const double *series, int64_t i) {
    double sum = 0;
    for (int64_t k = 0; k <= degree; ++k) {
        const double *root = g->roots + 2 * (k * i % g->size);
        sum += series[2 * k] * root[0] - series[2 * k + 1] * root[1];
    }
    return sum;
}

/* g->value[i, j] = s(theta_i, theta_j) in natural units. */
static void fill_logits(const grid *g, const spo_modulation *m, int64_t h) {
    const int64_t d = m->d_model, width = d / m->n_heads, size = g->size;
    const double *w_q = m->w_q + h * d * width, *w_k = m->w_k + h * d * width;
    const double scale = 1.0 / (sqrt((double)width) * m->temperature[h]);
    for (int64_t j = 0; j < size; ++j)
        for (int64_t a = 0; a < d; ++a) {
            double sum = 0;
            for (int64_t e = 0; e < width; ++e) {
                double key = 0;
                for (int64_t b = 0; b < d; ++b) key += w_k[b * width + e] * g->x[j * d + b];
                sum += w_q[a * width + e] * key;
            }
            g->key[a * size + j] = scale * sum; /* by feature, so that the sums below run along rows */
        }
    for (int64_t i = 0; i < size; ++i) {
        double *row = g->value + i * size;
        memset(row, 0, (size_t)size * sizeof(double));
        for (int64_t a = 0; a < d; ++a) {
            const double x = g->x[i * d + a], *key = g->key + a * size;
            for (int64_t j = 0; j < size; ++j) row[j] += x * key[j];
        }
    }
}

static double largest(int64_t n, const double *x) {
    double top = x[0];
    for (int64_t i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
    return top;
}

/* Chooses the shift and turns the logits into exp(s - shift), largest value 1. Returns the share of rows
 * whose mean is faint. */
static double fill_exponentials(const grid *g, int64_t d_model, spo_head_series *head) {
    const int64_t size = g->size;
    for (int64_t i = 0; i < size; ++i) {
        const double *row = g->value + i * size, top = largest(size, row);
        double mean = 0;
        for (int64_t j = 0; j < size; ++j) g->row[j] = row[j] - top;
        spo_core_exp(size, g->row, g->row);
        for (int64_t j = 0; j < size; ++j) mean += g->row[j];
        g->curve[i] = top + log(mean / (double)size);
    }
    analyse(g, d_model, 1.0, head->shift);
    double top = -INFINITY;
    for (int64_t i = 0; i < size; ++i) {
        const double shift = synthesise(g, d_model, head->shift, i),
                     highest = largest(size, g->value + i * size);
        top = highest - shift > top ? highest - shift : top;
        g->curve[i] = shift;
    }
    head->shift[0] += top;
    int64_t faint = 0;
    for (int64_t i = 0; i < size; ++i) {
        double *row = g->value + i * size, mean = 0;
        const double shift = g->curve[i] + top;
        g->curve[i] = row[i] - shift;
        for (int64_t j = 0; j < size; ++j) row[j] -= shift;
        spo_core_exp(size, row, row);
        for (int64_t j = 0; j < size; ++j) mean += row[j];
        faint += !(mean >= FAINT * (double)size); /* true for a NaN, too */
    }
    analyse(g, d_model, LOG2_E, head->self);
    for (int64_t k = 0; k < 2 * (d_model + 1); ++k) head->shift[k] *= LOG2_E;
    return (double)faint / (double)size;
}

/* g->spectrum[b][a] = F_ab with value = sum F_ab exp(i (a theta + b theta')), b >= 0; two real rows are
 * transformed as one complex one. */
static void analyse_square(const grid *g) {
    const int64_t size = g->size;
    const double share = 1.0 / ((double)size * (double)size);
    for (int64_t i = 0; i < size; i += 2) {
        for (int64_t j = 0; j < size; ++j) {
            g->row[2 * j] = g->value[i * size + j];
            g->row[2 * j + 1] = g->value[(i + 1) * size + j];
        }
        transform(size, g->roots, g->row);
        for (int64_t b = 0; b <= size / 2; ++b) {
            const double *z = g->row + 2 * b, *mirror = g->row + 2 * ((size - b) % size);
            double *out = g->spectrum + 2 * (b * size + i);
            out[0] = 0.5 * share * (z[0] + mirror[0]);
            out[1] = 0.5 * share * (z[1] - mirror[1]);
            out[2] = 0.5 * share * (z[1] + mirror[1]);
            out[3] = 0.5 * share * (mirror[0] - z[0]);
        }
    }
    for (int64_t b = 0; b <= size / 2; ++b) transform(size, g->roots, g->spectrum + 2 * b * size);
}

static double magnitude(const grid *g, int64_t a, int64_t b) {
    const double *z = g->spectrum + 2 * (b * g->size + a);
    return sqrt(z[0] * z[0] + z[1] * z[1]);
}

/* Largest coefficient of key harmonic b, or of query harmonic a, at the outer edge. Roundings of a row's or a
 * column's own numbers spread along one axis only, so each line has a noise of its own. */
static double noise_of(const grid *g, int64_t line, int along_query) {
    double largest_seen = 0;
    for (int64_t k = 9 * g->size / 20; k < g->size / 2; ++k)
        largest_seen = fmax(largest_seen, along_query ? magnitude(g, k, line) : magnitude(g, line, k));
    return largest_seen;
}

/* Sum of what stands above the noise at query harmonics of block j and key harmonic b. */
static double signal_of(const grid *g, const double *by_key, const double *by_query, int64_t j, int64_t b) {
    double sum = 0;
    for (int64_t a = j * SPO_ROWS; a < (j + 1) * SPO_ROWS; ++a) {
        const int64_t mirror = (g->size - a) % g->size;
        sum += fmax(magnitude(g, a, b) - fmax(by_key[b], by_query[a]), 0) +
               fmax(magnitude(g, mirror, b) - fmax(by_key[b], by_query[mirror]), 0);
    }
    return sum;
}

/* Extents of the blocks. The logit's harmonics are at most d/2 apart, so those of its exponential are, too,
 * and from its largest coefficient on a line ends where a run of d/2 is quiet; what stands alone beyond is
 * noise. Returns 0 when the spectrum reaches the edge of the grid. */
static int find_support(const grid *g, int64_t d_model, spo_head_series *head) {
    const int64_t size = g->size, edge = 2 * size / 5, most = edge / SPO_ROWS;
    const int64_t gap = d_model / 2 > SPO_ROWS ? d_model / 2 : SPO_ROWS;
    const double share = TAIL / (double)most;
    double *by_key = g->row, *by_query = g->curve; /* both have served */
    for (int64_t k = 0; k < size; ++k) {
        by_query[k] = NOISE_FACTOR * noise_of(g, k, 0);
        by_key[k] = NOISE_FACTOR * noise_of(g, k <= size / 2 ? k : size - k, 1);
        if (!(by_query[k] <= NOISE_LIMIT) || !(by_key[k] <= NOISE_LIMIT)) return 0;
    }
    head->blocks = head->reach = 0;
    for (int64_t j = 0; j < most; ++j) {
        double run = 0, top = 0;
        int64_t extent = 0;
        for (int64_t b = 0; b < edge; ++b) {
            const double signal = signal_of(g, by_key, by_query, j, b);
            if (signal > top) top = signal, extent = b + 1;
        }
        if (top <= share) extent = 0;
        for (int64_t b = extent; extent > 0 && b < extent + gap; ++b) {
            if (b == edge) return 0;
            run += signal_of(g, by_key, by_query, j, b);
            if (run > share) extent = b + 1, run = 0;
        }
        head->extent[j] = extent > 0 ? extent : 1; /* the loops of a call expect no empty block */
        if (extent > 0) head->blocks = j + 1;
        if ((j + 1 - head->blocks) * SPO_ROWS >= gap) return 1;
        head->reach = extent > head->reach ? extent : head->reach;
    }
    return 0;
}

/* The real coefficients of the support, from P = F_ab and Q = F_a,-b:
 *   2 Re(P exp(i (x + y)) + Q exp(i (x - y))), halved where a = 0 and where b = 0. */
static int fill_coefficients(const grid *g, spo_head_series *head) {
    const int64_t size = g->size;
    int64_t columns = 0;
    for (int64_t j = 0; j < head->blocks; ++j) columns += head->extent[j];
    const int64_t doubles = 4 * SPO_ROWS * columns;
    free(head->memory), free(head->weight);
    head->memory = malloc((size_t)(doubles + SPO_PAD) * sizeof(double));
    head->weight = calloc((size_t)(2 * spo_padded(head->reach)), sizeof(double));
    if (!head->memory || !head->weight) return 0;
    head->coefficient = spo_aligned(head->memory);
    double *out = head->coefficient;
    for (int64_t j = 0; j < head->blocks; ++j)
        for (int64_t b = 0; b < head->extent[j]; ++b, out += 4 * SPO_ROWS)
            for (int64_t r = 0; r < SPO_ROWS; ++r) {
                const int64_t a = j * SPO_ROWS + r;
                const double *p = g->spectrum + 2 * (b * size + a),
                             *q = g->spectrum + 2 * (b * size + (size - a) % size); /* conjugate of Q */
                const double scale = (a ? 2.0 : 1.0) * (b ? 1.0 : 0.5);
                out[r] = scale * (p[0] + q[0]);
                out[SPO_ROWS + r] = a ? scale * (q[1] - p[1]) : 0.0;
                out[2 * SPO_ROWS + r] = b ? scale * (-q[1] - p[1]) : 0.0;
                out[3 * SPO_ROWS + r] = a && b ? scale * (q[0] - p[0]) : 0.0;
                for (int k = 0; k < 2; ++k)
                    head->weight[k * spo_padded(head->reach) + b] +=
                        out[2 * k * SPO_ROWS + r] * out[2 * k * SPO_ROWS + r] +
                        out[(2 * k + 1) * SPO_ROWS + r] * out[(2 * k + 1) * SPO_ROWS + r];
            }
    return 1;
}

/* Phases of the check: multiples of the golden angle, none of them on a grid. */
#define CHECKS 8
#define GOLDEN_ANGLE 2.399963229728653

/* The series against the exponentials themselves at CHECKS queries and as many keys, in units of the largest
 * value. */
static double error_of(const grid *g, const spo_modulation *m, int64_t h, const spo_head_series *head) {
    const int64_t d = m->d_model, width = d / m->n_heads;
    const double *w_q = m->w_q + h * d * width, *w_k = m->w_k + h * d * width;
    double *query = g->value, *key = query + CHECKS * width, worst = 0; /* the grid's values have served */
    for (int64_t i = 0; i < CHECKS; ++i)
        for (int64_t e = 0; e < width; ++e) {
            double q = 0, k = 0;
            for (int64_t a = 0; a < d; ++a) {
                const double order = (double)(a / 2 + 1), theta = GOLDEN_ANGLE * (double)(i + 1);
                q += w_q[a * width + e] * (a % 2 ? sin(order * theta) : cos(order * theta));
                k += w_k[a * width + e] * (a % 2 ? sin(-order * theta) : cos(-order * theta));
            }
            query[i * width + e] = q;
            key[i * width + e] = k / (sqrt((double)width) * m->temperature[h]);
        }
    for (int64_t j = 0; j < CHECKS; ++j)
        for (int64_t i = 0; i < CHECKS; ++i) {
            const double theta = GOLDEN_ANGLE * (double)(i + 1), other = -GOLDEN_ANGLE * (double)(j + 1);
            double logit = 0, sum = 0;
            for (int64_t e = 0; e < width; ++e) logit += query[i * width + e] * key[j * width + e];
            for (int64_t k = 0; k <= d; ++k)
                logit -= (head->shift[2 * k] * cos((double)k * theta) +
                          head->shift[2 * k + 1] * sin((double)k * theta)) /
                         LOG2_E;
            const double *c = head->coefficient;
            for (int64_t block = 0; block < head->blocks; ++block) {
                double y[2 * SPO_ROWS] = {0};
                for (int64_t b = 0; b < head->extent[block]; ++b, c += 4 * SPO_ROWS) {
                    const double cosine = cos((double)b * other), sine = sin((double)b * other);
                    for (int64_t r = 0; r < 2 * SPO_ROWS; ++r)
                        y[r] += c[r] * cosine + c[2 * SPO_ROWS + r] * sine;
                }
                for (int64_t r = 0; r < SPO_ROWS; ++r) {
                    const double order = (double)(block * SPO_ROWS + r);
                    sum += y[r] * cos(order * theta) + y[SPO_ROWS + r] * sin(order * theta);
                }
            }
            worst = fmax(worst, fabs(sum - exp(logit)));
        }
    return worst;
}

/* Frobenius norm of the rows of W_O that belong to a head. */
static double gain_of(const spo_modulation *m, int64_t h) {
    const int64_t d = m->d_model, width = d / m->n_heads;
    double squares = 0;
    for (int64_t k = h * width * d; k < (h + 1) * width * d; ++k) squares += m->w_o[k] * m->w_o[k];
    return sqrt(squares);
}

static const char *const TOO_WIDE = "the spectrum of exp(logit) is too wide: the logits' range is too large";
static const char *const TOO_FAINT =
    "the logits' range is too large: too many rows would be lost in the rounding of the others";

/* One head, on a grid as large as it needs. Returns a status; *refusal tells whether it can be used. */
static int32_t make_head(grid *g, const spo_modulation *m, int64_t h, spo_head_series *head,
                         const char **refusal) {
    const int64_t d = m->d_model;
    head->extent = calloc(LARGEST_GRID, sizeof(int64_t));
    head->self = malloc((size_t)(2 * (d + 1)) * sizeof(double));
    head->shift = malloc((size_t)(2 * (d + 1)) * sizeof(double));
    if (!head->extent || !head->self || !head->shift) return SPO_OUT_OF_MEMORY;
    for (;;) {
        fill_logits(g, m, h);
        const double faint = fill_exponentials(g, d, head);
        if (!(faint <= FEW)) {
            *refusal = TOO_FAINT;
            return SPO_OK;
        }
        analyse_square(g);
        if (find_support(g, d, head)) {
            if (!fill_coefficients(g, head)) return SPO_OUT_OF_MEMORY;
            if (error_of(g, m, h, head) <= CHECK_LIMIT) break;
        }
        if (g->size >= LARGEST_GRID) {
            *refusal = TOO_WIDE;
            return SPO_OK;
        }
        const int64_t size = 2 * g->size;
        release(g);
        if (!prepare(g, size, d)) return SPO_OUT_OF_MEMORY;
    }
    head->gain = gain_of(m, h);
    return SPO_OK;
}

int32_t spo_core_moments_create(const spo_modulation *m, spo_moments **plan) {
    spo_moments *p = calloc(1, sizeof *p);
    grid g = {0};
    *plan = p;
    if (!p) return SPO_OUT_OF_MEMORY;
    p->n_heads = m->n_heads;
    p->d_model = m->d_model;
    p->tail = TAIL;
    p->heads = calloc((size_t)m->n_heads, sizeof *p->heads);
    int32_t status = p->heads ? SPO_OK : SPO_OUT_OF_MEMORY;
    if (m->d_model > SMALLEST_GRID / 8) p->refusal = "d_model is too large for the grid of phases";
    if (status == SPO_OK && !p->refusal && !prepare(&g, SMALLEST_GRID, m->d_model))
        status = SPO_OUT_OF_MEMORY;
    int64_t top = m->d_model + 1;
    for (int64_t h = 0; status == SPO_OK && !p->refusal && h < m->n_heads; ++h) {
        spo_head_series *head = p->heads + h;
        status = make_head(&g, m, h, head, &p->refusal);
        if (status != SPO_OK || p->refusal) break;
        const int64_t keys = head->reach + m->d_model / 2, queries = head->blocks * SPO_ROWS;
        top = keys > top ? keys : top;
        top = queries > top ? queries : top;
        p->line = 2 * queries > p->line ? 2 * queries : p->line;
        for (int64_t j = 0; j < head->blocks; ++j) p->coefficients += 4 * SPO_ROWS * head->extent[j];
    }
    release(&g);
    p->harmonics = (top + SPO_ROWS - 1) / SPO_ROWS * SPO_ROWS;
    if (status != SPO_OK) {
        spo_core_moments_free(p);
        *plan = NULL;
    }
    return status;
}

void spo_core_moments_free(spo_moments *plan) {
    if (!plan) return;
    for (int64_t h = 0; plan->heads && h < plan->n_heads; ++h) {
        spo_head_series *head = plan->heads + h;
        free(head->extent), free(head->memory), free(head->self), free(head->shift), free(head->weight);
    }
    free(plan->heads);
    free(plan);
}

const char *spo_core_moments_refusal(const spo_moments *plan) { return plan->refusal; }

int64_t spo_harmonic_room(int64_t n, int64_t count) {
    const int64_t divisions = (n + SPO_DIVISION - 1) / SPO_DIVISION;
    return 4 * spo_in_crowds(n)               /* first harmonics */
           + divisions * count * 2 * SPO_PAD; /* sums, by lane */
}

int64_t spo_moments_own(const spo_moments *plan) {
    const int64_t fields = 1 + plan->d_model / plan->n_heads, count = plan->harmonics;
    return count * 2 * SPO_CROWD                             /* harmonics of one crowd */
           + fields * 2 * count                              /* moments of one head */
           + plan->n_heads * fields * SPO_ABREAST * SPO_PAD; /* outputs of one pass */
}

int64_t spo_moments_room(int64_t n, const spo_moments *plan, int32_t workers) {
    const int64_t fields = plan->n_heads * (1 + plan->d_model / plan->n_heads);
    return spo_harmonic_room(n, plan->harmonics) +
           2 * (plan->harmonics + 2 * spo_padded(plan->d_model)) /* Z, with margins */
           + fields * plan->line                                 /* coefficients of all heads */
           + spo_padded(fields)                                  /* their errors */
           + spo_padded(spo_padded(n) / 8)                       /* what to redo, a byte a vector */
           + workers * spo_moments_own(plan);
}

/* What the paths cost, in multiply-adds of one lane. Fitted to calls at N = 64 ... 512 on AVX2 and AVX-512
 * (Sapphire Rapids, 2 vector multiply-adds a cycle); the two instruction sets differ by a fifth. */
#define KEY_COST 21.0      /* an exponential of the direct path, */
#define KEY_FIELD_COST 3.0 /* with its logit and sums for each number of a head */
#define COEFFICIENT_COST 1.25
#define FAR_COEFFICIENT_COST 3.0 /* where they do not fit a second-level cache */
#define NEAR_COEFFICIENTS 131072
#define OUTPUT_COST 1.1
#define HARMONIC_COST 12.0
#define HEAD_COST 120.0 /* own term and estimate of the error of one oscillator */
#define CALL_COST 5e4

/* Series of the default projections, which stand for others until their own are known. */
#define TYPICAL_COEFFICIENTS 16000.0 /* of a head */
#define TYPICAL_HARMONICS 80.0

static double direct_cost(double pairs, double heads, double width) {
    return pairs * heads * (KEY_COST + KEY_FIELD_COST * width);
}

static double moments_cost(double n, double heads, double width, double coefficients, double harmonics,
                           double line) {
    const double each = coefficients > NEAR_COEFFICIENTS ? FAR_COEFFICIENT_COST : COEFFICIENT_COST;
    return CALL_COST + each * coefficients * (1 + width) +
           n * (OUTPUT_COST * heads * (1 + width) * line + HARMONIC_COST * harmonics + HEAD_COST * heads);
}

int32_t spo_core_moments_possible(int64_t n, const spo_modulation *m, int32_t traits) {
    const double heads = (double)m->n_heads, width = (double)m->d_model / heads, size = (double)n;
    if (!(traits & SPO_SYMMETRIC_PATTERN) || (m->block_size >= 0 && m->block_size < n - 1)) return 0;
    return direct_cost(size * size, heads, width) > moments_cost(size, heads, width,
                                                                 TYPICAL_COEFFICIENTS * heads,
                                                                 TYPICAL_HARMONICS, 2 * TYPICAL_HARMONICS);
}

int32_t spo_core_moments_pay(int64_t n, const spo_moments *plan, int64_t absent) {
    const double heads = (double)plan->n_heads, width = (double)plan->d_model / heads, size = (double)n;
    if (plan->refusal) return 0;
    return direct_cost(size * size, heads, width) >
           moments_cost(size, heads, width, (double)plan->coefficients, (double)plan->harmonics,
                        (double)plan->line) +
               direct_cost((double)(SPO_PAD * absent), heads, width);
}
