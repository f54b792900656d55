/* exp2, exp and sincos on lanes of double.
 *
 * Worst errors in units in the last place, seen over 10^7 random points and special ones (multiples of pi /
 * 2, ends of the ranges):
 *
 *                                     with FMA   without
 *   exp2      on [-1021, 1023]          1.2        1.5
 *   exp       everywhere                1.3        1.5     (results below 2^-1022 included)
 *   sin, cos  on |x| <= 2^19            0.8        1.2
 *
 * For the attention, in float and double, seen over 10^6 random points:
 *
 *   weight, weight2                     1.3        1.5
 *   log                                 2.0        2.0
 *   sincos_near                         1.3        1.3
 *   f_sincos on |x| <= 512              1e-7 absolutely
 *
 * Farther lanes go one by one to the C library. exp(0) = exp2(0) = cos 0 = 1 and sin 0 = 0 exactly.
 * tests/csrc/test_vectormath.py holds these bounds against mpmath. The reductions need rounding to nearest,
 * the mode of every process that did not change it. */
#include "polynomials.h"

/* 1.5 * 2^52: added to |x| < 2^51 it leaves round(x) in the low bits of the significand. */
#define ROUNDER 0x1.8p52

/* 1 + r q(r), q of degree 10: even and odd powers as two chains, since one chain would wait for itself. */
INLINE vd v_one_plus(vd r, const double q[11]) {
    const vd z = r * r;
    vd even = v_set(q[10]), odd = v_set(q[9]);
    for (int k = 8; k >= 0; k -= 2) even = v_fma(even, z, v_set(q[k]));
    for (int k = 7; k >= 1; k -= 2) odd = v_fma(odd, z, v_set(q[k]));
    return v_fma(v_fma(odd, r, even), r, v_set(1.0));
}

/* 2^t for -1021 <= t <= 1023 (not checked): 2^r by polynomial, r in [-1/2, 1/2], then round(t) added to the
 * exponent. */
INLINE vd v_exp2(vd t) {
    const vd shifted = t + ROUNDER;
    const vd r = t - (shifted - ROUNDER);
    const vd p = v_one_plus(r, SPO_EXP2);
    return (vd)(v_bits(p) + (v_bits(shifted) << 52));
}

/* ln 2 in two parts: the first has 33 significant bits, so that its product with |k| <= 1100 is exact. */
#define LN2_HIGH 0x1.62e42fefp-1
#define LN2_LOW 0x1.473de6af278edp-34
#define LOG2_E 0x1.71547652b82fep0
#define LN2 0x1.62e42fefa39efp-1

/* e^x for every x: 0 below -745.2, infinity above 709.8, NaN for NaN. 2^k is applied in two halves, so that
 * subnormal results are rounded once. */
INLINE vd v_exp(vd x) {
    const vd bounded = v_select(x < -746.0, v_set(-746.0), v_select(x > 710.0, v_set(710.0), x));
    const vd shifted = v_fma(bounded, v_set(LOG2_E), v_set(ROUNDER));
    const vd k = shifted - ROUNDER;
    const vd r = v_fma(k, v_set(-LN2_LOW), v_fma(k, v_set(-LN2_HIGH), bounded));
    const vd p = v_one_plus(r, SPO_EXP);
    const vi whole = v_bits(shifted) - v_bits(v_set(ROUNDER));
    const vi half = whole >> 1;
    const vd first = (vd)((half + 1023) << 52), second = (vd)((whole - half + 1023) << 52);
    return p * first * second;
}

/* pi / 2 in parts. Without FMA the first two have 33 bits, so that their products with |k| < 2^19 are exact;
 * with FMA a product is exact anyway and two parts of 53 bits leave less behind. */
#define TWO_OVER_PI 0x1.45f306dc9c883p-1
#if SPO_LANES >= 4 || defined(__aarch64__)
#define PIO2_1 0x1.921fb54442d18p0
#define PIO2_2 0x1.1a62633145c07p-54
#define PIO2_3 -0x1.f1976b7ed8fbcp-110
#else
#define PIO2_1 0x1.921fb544p0
#define PIO2_2 0x1.0b4611a6p-34
#define PIO2_3 0x1.3198a2e037073p-69
#endif
#define SINCOS_LIMIT 0x1p19

/* The C library's sine and cosine in the lanes that are too large (or not finite); kept out of line, for it
 * is rare. */
static __attribute__((noinline)) void sincos_far(const double *x, double *sine, double *cosine) {
    for (int lane = 0; lane < SPO_LANES; ++lane) {
        if (fabs(x[lane]) <= SINCOS_LIMIT) continue;
        sine[lane] = sin(x[lane]);
        cosine[lane] = cos(x[lane]);
    }
}

/* r + tail = x - k pi / 2 in [-pi / 4, pi / 4]; sin r and cos r by polynomial; the quadrant k mod 4 swaps and
 * signs them. */
INLINE void v_sincos(vd x, vd *sine, vd *cosine) {
    const vd shifted = v_fma(x, v_set(TWO_OVER_PI), v_set(ROUNDER));
    const vd k = shifted - ROUNDER;
    const vi quadrant = v_bits(shifted);
    const vd r1 = v_fma(k, v_set(-PIO2_1), x);
    const vd part = k * PIO2_2, rest = v_fma(k, v_set(PIO2_3), v_fma(k, v_set(PIO2_2), -part));
    const vd r = r1 - part, tail = ((r1 - r) - part) - rest;
    const vd z = r * r;
    vd s = v_set(SPO_SIN[5]), c = v_set(SPO_COS[5]);
    for (int j = 4; j >= 0; --j) {
        s = v_fma(s, z, v_set(SPO_SIN[j]));
        c = v_fma(c, z, v_set(SPO_COS[j]));
    }
    const vd half = 0.5 * z, w = 1.0 - half;
    s = r + v_fma(s * z, r, tail * w);
    c = w + v_fma(c * z, z, v_fma(-r, tail, (1.0 - w) - half));
    const vi swap = -(quadrant & 1);
    const vi sine_sign = (quadrant & 2) << 62, cosine_sign = ((quadrant + 1) & 2) << 62;
    *sine = (vd)(v_bits(v_select(swap, c, s)) ^ sine_sign);
    *cosine = (vd)(v_bits(v_select(swap, s, c)) ^ cosine_sign);
    const vi far = ~(vi)(v_abs(x) <= SINCOS_LIMIT);
    if (__builtin_expect(v_any(far), 0)) {
        double lanes[3][SPO_LANES];
        v_store(lanes[0], x);
        v_store(lanes[1], *sine);
        v_store(lanes[2], *cosine);
        sincos_far(lanes[0], lanes[1], lanes[2]);
        *sine = v_load(lanes[1]);
        *cosine = v_load(lanes[2]);
    }
}

/* The same for |x| <= pi / 4, not checked. */
INLINE void v_sincos_near(vd x, vd *sine, vd *cosine) {
    const vd z = x * x;
    vd s = v_set(SPO_SIN[5]), c = v_set(SPO_COS[5]);
    for (int j = 4; j >= 0; --j) {
        s = v_fma(s, z, v_set(SPO_SIN[j]));
        c = v_fma(c, z, v_set(SPO_COS[j]));
    }
    const vd half = 0.5 * z, w = 1.0 - half;
    *sine = v_fma(s * z, x, x);
    *cosine = w + v_fma(c * z, z, (1.0 - w) - half);
}

/* Bits of p 2^k, k the low bits of a number to which ROUNDER was added; any bits where that leaves the range.
 */
INLINE vi v_raise(vd p, vd shifted) {
    typedef uint64_t vu __attribute__((vector_size(8 * SPO_LANES)));
    return (vi)((vu)p + ((vu)shifted << 52));
}

/* e^x as the weights of a softmax need it, x <= 709 (88 in float): what lies below the smallest normal number
 * is 0, NaN stays NaN. */
INLINE vd v_weight(vd x) {
    const vd shifted = v_fma(x, v_set(LOG2_E), v_set(ROUNDER));
    const vd k = shifted - ROUNDER;
    const vd r = v_fma(k, v_set(-LN2_LOW), v_fma(k, v_set(-LN2_HIGH), x));
    const vi power = v_raise(v_one_plus(r, SPO_EXP), shifted);
    return (vd)(power & ~(vi)(x < -708.0));
}

/* 2^x likewise, x <= 1023 (127 in float) and no infinity. */
INLINE vd v_weight2(vd x) {
    const vd shifted = x + ROUNDER, k = shifted - ROUNDER;
    const vd p = v_one_plus(x - k, SPO_EXP2);
#if SPO_LANES == 8
    return (vd)_mm512_scalef_pd((__m512d)p, (__m512d)k);
#else
    return (vd)(v_raise(p, shifted) & ~(vi)(x < -1021.0));
#endif
}

/* log x of a normal x > 0: x = 2^k (1 + s) / (1 - s), |s| <= 3 - 2 sqrt 2. */
INLINE vd v_log(vd x) {
    const vi k = (v_bits(x) - v_bits(v_set(0x1.6a09e667f3bcdp-1))) >> 52;
    const vd y = (vd)(v_bits(x) - (k << 52)), s = (y - 1.0) / (y + 1.0), z = s * s;
    vd p = v_set(SPO_LOG[6]);
    for (int j = 5; j >= 0; --j) p = v_fma(p, z, v_set(SPO_LOG[j]));
    const vd whole = __builtin_convertvector(k, vd);
    return v_fma(whole, v_set(LN2_HIGH), v_fma(s * z, p, 2.0 * s) + whole * LN2_LOW);
}

/* The same for float. 1.5 * 2^23 as ROUNDER; ln 2 and pi / 2 in parts whose products with |k| < 2^9 are exact
 * but for the last. */
#define F_ROUNDER 0x1.8p23f
#define F_LN2_HIGH 0x1.62e4p-1f
#define F_LN2_LOW 0x1.7f7d1cp-20f
#define F_PIO2_1 0x1.92p0f
#define F_PIO2_2 0x1.fb4p-12f
#define F_PIO2_3 0x1.4442d2p-24f
#define F_SINCOS_LIMIT 512.0f

INLINE vfi f_raise(vf p, vf shifted) {
    typedef uint32_t vu __attribute__((vector_size(8 * SPO_LANES)));
    return (vfi)((vu)p + ((vu)shifted << 23));
}

INLINE vf f_weight(vf x) {
    const vf shifted = f_fma(x, f_set((float)LOG2_E), f_set(F_ROUNDER));
    const vf k = shifted - F_ROUNDER;
    const vf r = f_fma(k, f_set(-F_LN2_LOW), f_fma(k, f_set(-F_LN2_HIGH), x));
    vf p = f_set((float)SPO_EXP_SINGLE[5]);
    for (int j = 4; j >= 0; --j) p = f_fma(p, r, f_set((float)SPO_EXP_SINGLE[j]));
    p = f_fma(p, r, f_set(1.0f));
    return (vf)(f_raise(p, shifted) & ~(vfi)(x < -87.0f));
}

INLINE vf f_weight2(vf x) {
    const vf shifted = x + F_ROUNDER, k = shifted - F_ROUNDER, r = x - k;
    vf p = f_set((float)SPO_EXP2_SINGLE[5]);
    for (int j = 4; j >= 0; --j) p = f_fma(p, r, f_set((float)SPO_EXP2_SINGLE[j]));
    p = f_fma(p, r, f_set(1.0f));
#if SPO_LANES == 8
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)k);
#else
    return (vf)(f_raise(p, shifted) & ~(vfi)(x < -125.0f));
#endif
}

INLINE vf f_log(vf x) {
    const vfi k = ((vfi)x - (vfi)f_set(0x1.6a09e6p-1f)) >> 23;
    const vf y = (vf)((vfi)x - (k << 23)), s = (y - 1.0f) / (y + 1.0f), z = s * s;
    vf p = f_set((float)SPO_LOG_SINGLE[2]);
    for (int j = 1; j >= 0; --j) p = f_fma(p, z, f_set((float)SPO_LOG_SINGLE[j]));
    const vf whole = __builtin_convertvector(k, vf);
    return f_fma(whole, f_set(F_LN2_HIGH), f_fma(s * z, p, 2.0f * s) + whole * F_LN2_LOW);
}

static __attribute__((noinline)) void f_sincos_far(const float *x, float *sine, float *cosine) {
    for (int lane = 0; lane < SPO_FLOATS; ++lane) {
        if (fabsf(x[lane]) <= F_SINCOS_LIMIT) continue;
        sine[lane] = sinf(x[lane]);
        cosine[lane] = cosf(x[lane]);
    }
}

INLINE void f_sincos_near(vf x, vf *sine, vf *cosine) {
    const vf z = x * x;
    vf s = f_set((float)SPO_SIN_SINGLE[2]), c = f_set((float)SPO_COS_SINGLE[2]);
    for (int j = 1; j >= 0; --j) {
        s = f_fma(s, z, f_set((float)SPO_SIN_SINGLE[j]));
        c = f_fma(c, z, f_set((float)SPO_COS_SINGLE[j]));
    }
    *sine = f_fma(s * z, x, x);
    *cosine = f_fma(c * z, z, f_fma(f_set(-0.5f), z, f_set(1.0f)));
}

INLINE void f_sincos(vf x, vf *sine, vf *cosine) {
    const vf shifted = f_fma(x, f_set((float)TWO_OVER_PI), f_set(F_ROUNDER));
    const vf k = shifted - F_ROUNDER;
    const vfi quadrant = (vfi)shifted;
    const vf r = f_fma(k, f_set(-F_PIO2_3), f_fma(k, f_set(-F_PIO2_2), f_fma(k, f_set(-F_PIO2_1), x)));
    vf s, c;
    f_sincos_near(r, &s, &c);
    const vfi swap = -(quadrant & 1);
    const vfi sine_sign = (quadrant & 2) << 30, cosine_sign = ((quadrant + 1) & 2) << 30;
    *sine = (vf)((vfi)f_select(swap, c, s) ^ sine_sign);
    *cosine = (vf)((vfi)f_select(swap, s, c) ^ cosine_sign);
    const vfi far = ~(vfi)(f_abs(x) <= F_SINCOS_LIMIT);
    if (__builtin_expect(f_any(far), 0)) {
        float lanes[3][SPO_FLOATS];
        f_store(lanes[0], x);
        f_store(lanes[1], *sine);
        f_store(lanes[2], *cosine);
        f_sincos_far(lanes[0], lanes[1], lanes[2]);
        *sine = f_load(lanes[1]);
        *cosine = f_load(lanes[2]);
    }
}
