/* What a plan knows of exp(logit) as a double Fourier series: made by daido.c, evaluated by isa/moments.h. */
#ifndef SPO_DAIDO_H
#define SPO_DAIDO_H

#include "include/spo_fast_core.h"

/* Harmonics of the query go in blocks of this size, each with one number of harmonics of the key. */
#define SPO_ROWS 8

/* One head: sum over a, b of coefficient[a, b] phi_a(theta) phi_b(theta') = exp(s(theta, theta') -
 * shift(theta)), with phi_a = (cos a theta, sin a theta). */
typedef struct spo_head_series {
    int64_t blocks;      /* of SPO_ROWS harmonics a of the query */
    int64_t reach;       /* harmonics b = 0 ... reach - 1 of the key: the largest extent */
    int64_t *extent;     /* (blocks): harmonics of the key that the block uses */
    double *coefficient; /* block after block; for each b two columns, of cos b theta' and sin b theta', each
                          * SPO_ROWS rows of cos a theta and SPO_ROWS of sin a theta */
    double *memory;      /* where the coefficients lie, aligned */
    double *self;        /* (d_model + 1, 2): log2(e) (s(theta, theta) - shift(theta)), cosines and sines */
    double *shift;       /* (d_model + 1, 2): log2(e) shift(theta) */
    double *weight;      /* (2, padded reach): sum of squares of each column, cosines and sines */
    double gain;         /* largest change of O by a change of this head's mean values */
} spo_head_series;

struct spo_moments {
    int64_t n_heads, d_model;
    int64_t harmonics;    /* kept of each oscillator, 0 ... harmonics - 1; a multiple of SPO_ROWS */
    int64_t coefficients; /* of all heads */
    int64_t line;         /* coefficients of one field: 2 SPO_ROWS for each block of the largest head */
    double tail;          /* bound of what the series leave out, where their largest value is 1 */
    const char *refusal;  /* why the series may not be used; NULL: they may */
    spo_head_series *heads;
};

/* Oscillators of one stored block of harmonics: row k holds SPO_CROWD cosines, then SPO_CROWD sines. */
#define SPO_CROWD 32
/* Vectors of queries that one pass of the outputs takes. */
#define SPO_ABREAST 4

/* Oscillators, in whole crowds, whose harmonics are summed up before they join the total, and by one thread.
 */
#define SPO_DIVISION (8 * SPO_CROWD)

/* n in whole crowds. */
static inline int64_t spo_in_crowds(int64_t n) { return (n + SPO_CROWD - 1) / SPO_CROWD * SPO_CROWD; }

/* Doubles for sums over oscillators, for what each worker has of its own, and that a call needs for its
 * moments in all (daido.c); the layout is that of isa/moments.h. */
int64_t spo_harmonic_room(int64_t n, int64_t count);
int64_t spo_moments_own(const spo_moments *plan);
int64_t spo_moments_room(int64_t n, const spo_moments *plan, int32_t workers);

#endif
