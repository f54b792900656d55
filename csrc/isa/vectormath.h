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
