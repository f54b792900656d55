/* Lanes of double for one instruction set: the operations that C has no portable word for. Everything else in
 * the kernels is plain C on GNU vector types. Included once by each of baseline.c, avx2.c and avx512.c, which
 * define SPO_LANES. */
#ifndef SPO_LANES
#error "include this from a file that defines SPO_LANES"
#endif

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if SPO_LANES >= 4
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef double vd __attribute__((vector_size(8 * SPO_LANES)));
typedef int64_t vi __attribute__((vector_size(8 * SPO_LANES)));
typedef double vd_unaligned __attribute__((vector_size(8 * SPO_LANES), aligned(8), may_alias));

INLINE vd v_load(const double *p) { return *(const vd_unaligned *)p; }
INLINE void v_store(double *p, vd x) { *(vd_unaligned *)p = x; }
INLINE vd v_set(double x) { return x - (vd){0}; }
/* x, loaded once: keeps the compiler from repeating a load as a memory operand of each instruction that uses
 * it. */
INLINE vd v_once(vd x) {
#if SPO_LANES == 8
    __asm__("" : "+v"(x));
#elif defined(__x86_64__)
    __asm__("" : "+x"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#endif
    return x;
}

INLINE vi v_bits(vd x) { return (vi)x; }
INLINE vd v_and(vd x, vi mask) { return (vd)((vi)x & mask); }
INLINE vd v_select(vi mask, vd yes, vd no) { return (vd)(((vi)yes & mask) | ((vi)no & ~mask)); }
INLINE vd v_abs(vd x) { return (vd)((vi)x & INT64_MAX); }

/* Lanes 0, 1, 2, ... */
#if SPO_LANES == 8
#define V_IOTA ((vd){0, 1, 2, 3, 4, 5, 6, 7})
#elif SPO_LANES == 4
#define V_IOTA ((vd){0, 1, 2, 3})
#else
#define V_IOTA ((vd){0, 1})
#endif

/* a * b + c, with one rounding where the instruction set has it. */
INLINE vd v_fma(vd a, vd b, vd c) {
#if SPO_LANES == 8
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif SPO_LANES == 4
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
    return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
}

INLINE vd v_sqrt(vd x) {
#if SPO_LANES == 8
    return (vd)_mm512_sqrt_pd((__m512d)x);
#elif SPO_LANES == 4
    return (vd)_mm256_sqrt_pd((__m256d)x);
#else
    vd y;
    for (int lane = 0; lane < SPO_LANES; ++lane) y[lane] = sqrt(x[lane]);
    return y;
#endif
}

/* 1 / sqrt x of a normal x > 0. */
INLINE vd v_rsqrt(vd x) { return 1.0 / v_sqrt(x); }

/* The larger of two; y where either is NaN. */
INLINE vd v_max(vd x, vd y) {
#if SPO_LANES == 8
    return (vd)_mm512_max_pd((__m512d)x, (__m512d)y);
#elif SPO_LANES == 4
    return (vd)_mm256_max_pd((__m256d)x, (__m256d)y);
#elif defined(__SSE2__)
    return (vd)_mm_max_pd((__m128d)x, (__m128d)y);
#else
    return v_select(x > y, x, y);
#endif
}

/* x where k is not zero, else +0. */
INLINE vd v_where_nonzero(vd k, vd x) {
#if SPO_LANES == 8
    return (vd)_mm512_maskz_mov_pd(_mm512_cmp_pd_mask((__m512d)k, _mm512_setzero_pd(), _CMP_NEQ_UQ),
                                   (__m512d)x);
#else
    return v_and(x, k != (vd){0});
#endif
}

INLINE int v_any(vi mask) {
#if SPO_LANES == 8
    return _mm512_movepi64_mask((__m512i)mask) != 0;
#elif SPO_LANES == 4
    return _mm256_movemask_pd((__m256d)mask) != 0;
#else
    int64_t any = 0;
    for (int lane = 0; lane < SPO_LANES; ++lane) any |= mask[lane];
    return any != 0;
#endif
}

/* The first count (0 ... SPO_LANES) doubles at p, zeros behind them; memory past them is not touched. */
INLINE vd v_load_first(const double *p, int64_t count) {
#if SPO_LANES == 8
    return (vd)_mm512_maskz_loadu_pd((__mmask8)((1u << count) - 1u), p);
#elif SPO_LANES == 4
    static const int64_t window[8] = {-1, -1, -1, -1, 0, 0, 0, 0};
    return (vd)_mm256_maskload_pd(p, _mm256_loadu_si256((const __m256i *)(window + 4 - count)));
#else
    vd x = {0};
    if (count > 0) memcpy(&x, p, (size_t)count * sizeof(double));
    return x;
#endif
}

INLINE void v_store_first(double *p, vd x, int64_t count) {
#if SPO_LANES == 8
    _mm512_mask_storeu_pd(p, (__mmask8)((1u << count) - 1u), (__m512d)x);
#elif SPO_LANES == 4
    static const int64_t window[8] = {-1, -1, -1, -1, 0, 0, 0, 0};
    _mm256_maskstore_pd(p, _mm256_loadu_si256((const __m256i *)(window + 4 - count)), (__m256d)x);
#else
    if (count > 0) memcpy(p, &x, (size_t)count * sizeof(double));
#endif
}

#if SPO_LANES >= 4
/* The four sums over the lanes of a, b, c, d. */
INLINE void sum_quads(__m256d a, __m256d b, __m256d c, __m256d d, double *out) {
    const __m256d ab = _mm256_hadd_pd(a, b), cd = _mm256_hadd_pd(c, d);
    const __m256d crossed = _mm256_permute2f128_pd(ab, cd, 0x21), straight = _mm256_blend_pd(ab, cd, 0xC);
    _mm256_storeu_pd(out, _mm256_add_pd(crossed, straight));
}
#endif

INLINE void v_sum4(vd a, vd b, vd c, vd d, double *out) {
#if SPO_LANES == 8
#define HALVES(x) _mm256_add_pd(_mm512_castpd512_pd256((__m512d)x), _mm512_extractf64x4_pd((__m512d)x, 1))
    sum_quads(HALVES(a), HALVES(b), HALVES(c), HALVES(d), out);
#undef HALVES
#elif SPO_LANES == 4
    sum_quads((__m256d)a, (__m256d)b, (__m256d)c, (__m256d)d, out);
#else
    out[0] = a[0] + a[1];
    out[1] = b[0] + b[1];
    out[2] = c[0] + c[1];
    out[3] = d[0] + d[1];
#endif
}

INLINE double v_sum(vd x) {
    double out[4];
    v_sum4(x, (vd){0}, (vd){0}, (vd){0}, out);
    return out[0];
}

/* A sum that carries its rounding errors along (A. Neumaier, Z. Angew. Math. Mech. 54 (1974) 39; the error of
 * one addition by D. E. Knuth, The Art of Computer Programming 2, 4.2.2). */
typedef struct {
    vd sum, error;
} exact_sum;

INLINE void add_exactly(exact_sum *total, vd x) {
    const vd sum = total->sum + x, from_x = sum - total->sum;
    total->error += (total->sum - (sum - from_x)) + (x - from_x);
    total->sum = sum;
}

/* The lanes added up in pairs, then pairs of pairs. */
INLINE double total_of(const exact_sum *total) {
    double sum[SPO_LANES], error = v_sum(total->error);
    v_store(sum, total->sum);
    for (int half = SPO_LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) {
            const double a = sum[lane], b = sum[lane + half], both = a + b, from_b = both - a;
            error += (a - (both - from_b)) + (b - from_b);
            sum[lane] = both;
        }
    return sum[0] + error;
}

INLINE double v_largest(vd x) {
    double largest = x[0];
    for (int lane = 1; lane < SPO_LANES; ++lane) largest = x[lane] > largest ? x[lane] : largest;
    return largest;
}

/* Two vectors interleaved: the step from which a square of lanes is transposed. */
#if defined(__clang__) || __GNUC__ >= 12
#define V_SHUFFLE __builtin_shufflevector
#else
#error "the C core needs GCC 12 or newer, or Clang"
#endif

/* Transposes a square of SPO_LANES vectors in place: blocks of 1, 2 and 4 lanes change places between pairs
 * of rows. */
INLINE void v_transpose(vd row[SPO_LANES]) {
#if SPO_LANES == 8
    vd next[8];
    for (int r = 0; r < 8; r += 2) {
        next[r] = V_SHUFFLE(row[r], row[r + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        next[r + 1] = V_SHUFFLE(row[r], row[r + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    vd quad[8];
    for (int r = 0; r < 8; r += 4)
        for (int k = 0; k < 2; ++k) {
            quad[r + k] = V_SHUFFLE(next[r + k], next[r + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            quad[r + k + 2] = V_SHUFFLE(next[r + k], next[r + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int k = 0; k < 4; ++k) {
        row[k] = V_SHUFFLE(quad[k], quad[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        row[k + 4] = V_SHUFFLE(quad[k], quad[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#elif SPO_LANES == 4
    vd next[4];
    for (int r = 0; r < 4; r += 2) {
        next[r] = V_SHUFFLE(row[r], row[r + 1], 0, 4, 2, 6);
        next[r + 1] = V_SHUFFLE(row[r], row[r + 1], 1, 5, 3, 7);
    }
    for (int k = 0; k < 2; ++k) {
        row[k] = V_SHUFFLE(next[k], next[k + 2], 0, 1, 4, 5);
        row[k + 2] = V_SHUFFLE(next[k], next[k + 2], 2, 3, 6, 7);
    }
#else
    const vd low = V_SHUFFLE(row[0], row[1], 0, 2), high = V_SHUFFLE(row[0], row[1], 1, 3);
    row[0] = low;
    row[1] = high;
#endif
}

/* Lanes of float, twice as many: what the attention needs of the above, under the same names with f_. */
#define SPO_FLOATS (2 * SPO_LANES)

typedef float vf __attribute__((vector_size(8 * SPO_LANES)));
typedef int32_t vfi __attribute__((vector_size(8 * SPO_LANES)));
typedef float vf_unaligned __attribute__((vector_size(8 * SPO_LANES), aligned(4), may_alias));

INLINE vf f_load(const float *p) { return *(const vf_unaligned *)p; }
INLINE void f_store(float *p, vf x) { *(vf_unaligned *)p = x; }
INLINE vf f_set(float x) { return x - (vf){0}; }
INLINE vf f_once(vf x) { return (vf)v_once((vd)x); }
INLINE vf f_and(vf x, vfi mask) { return (vf)((vfi)x & mask); }
INLINE vf f_select(vfi mask, vf yes, vf no) { return (vf)(((vfi)yes & mask) | ((vfi)no & ~mask)); }
INLINE vf f_abs(vf x) { return (vf)((vfi)x & INT32_MAX); }

INLINE vf f_fma(vf a, vf b, vf c) {
#if SPO_LANES == 8
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif SPO_LANES == 4
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

INLINE vf f_sqrt(vf x) {
#if SPO_LANES == 8
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif SPO_LANES == 4
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    vf y;
    for (int lane = 0; lane < SPO_FLOATS; ++lane) y[lane] = sqrtf(x[lane]);
    return y;
#endif
}

INLINE vf f_rsqrt(vf x) {
#if SPO_LANES == 8 /* 14 bits, and a step of Newton's: 1.4 units in the last place, a third of the time */
    const vf y = (vf)_mm512_rsqrt14_ps((__m512)x);
    return f_fma(y, f_fma(-0.5f * x * y, y, f_set(0.5f)), y);
#else
    return 1.0f / f_sqrt(x);
#endif
}

INLINE vf f_max(vf x, vf y) {
#if SPO_LANES == 8
    return (vf)_mm512_max_ps((__m512)x, (__m512)y);
#elif SPO_LANES == 4
    return (vf)_mm256_max_ps((__m256)x, (__m256)y);
#elif defined(__SSE2__)
    return (vf)_mm_max_ps((__m128)x, (__m128)y);
#else
    return f_select(x > y, x, y);
#endif
}

INLINE int f_any(vfi mask) {
#if SPO_LANES == 8
    return _mm512_movepi64_mask((__m512i)mask | (__m512i)mask << 32) != 0;
#elif SPO_LANES == 4
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    return v_any((vi)mask);
#endif
}

INLINE vf f_load_first(const float *p, int64_t count) {
#if SPO_LANES == 8
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1u), p);
#elif SPO_LANES == 4
    static const int32_t window[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    return (vf)_mm256_maskload_ps(p, _mm256_loadu_si256((const __m256i *)(window + 8 - count)));
#else
    vf x = {0};
    if (count > 0) memcpy(&x, p, (size_t)count * sizeof(float));
    return x;
#endif
}

INLINE void f_store_first(float *p, vf x, int64_t count) {
#if SPO_LANES == 8
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << count) - 1u), (__m512)x);
#elif SPO_LANES == 4
    static const int32_t window[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    _mm256_maskstore_ps(p, _mm256_loadu_si256((const __m256i *)(window + 8 - count)), (__m256)x);
#else
    if (count > 0) memcpy(p, &x, (size_t)count * sizeof(float));
#endif
}

/* Transposes a square of SPO_FLOATS vectors in place: squares of four inside each quarter of a vector, then
 * the quarters. */
INLINE void f_transpose(vf row[SPO_FLOATS]) {
#if SPO_LANES == 8
#define LOW(a, b) V_SHUFFLE(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define HIGH(a, b) V_SHUFFLE(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define LOW_PAIRS(a, b) V_SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH_PAIRS(a, b) V_SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define EVEN_QUARTERS(a, b) V_SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define ODD_QUARTERS(a, b) V_SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
#elif SPO_LANES == 4
#define LOW(a, b) V_SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) V_SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define LOW_PAIRS(a, b) V_SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH_PAIRS(a, b) V_SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define EVEN_QUARTERS(a, b) V_SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define ODD_QUARTERS(a, b) V_SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#else
#define LOW(a, b) V_SHUFFLE(a, b, 0, 4, 1, 5)
#define HIGH(a, b) V_SHUFFLE(a, b, 2, 6, 3, 7)
#define LOW_PAIRS(a, b) V_SHUFFLE(a, b, 0, 1, 4, 5)
#define HIGH_PAIRS(a, b) V_SHUFFLE(a, b, 2, 3, 6, 7)
#endif
    vf quad[SPO_FLOATS];
    for (int r = 0; r < SPO_FLOATS; r += 4) {
        const vf a = LOW(row[r], row[r + 1]), b = LOW(row[r + 2], row[r + 3]);
        const vf c = HIGH(row[r], row[r + 1]), d = HIGH(row[r + 2], row[r + 3]);
        quad[r] = LOW_PAIRS(a, b);
        quad[r + 1] = HIGH_PAIRS(a, b);
        quad[r + 2] = LOW_PAIRS(c, d);
        quad[r + 3] = HIGH_PAIRS(c, d);
    }
#if SPO_LANES == 8
    for (int k = 0; k < 4; ++k) {
        const vf a = EVEN_QUARTERS(quad[k], quad[k + 4]), b = ODD_QUARTERS(quad[k], quad[k + 4]);
        const vf c = EVEN_QUARTERS(quad[k + 8], quad[k + 12]), d = ODD_QUARTERS(quad[k + 8], quad[k + 12]);
        row[k] = EVEN_QUARTERS(a, c);
        row[k + 4] = EVEN_QUARTERS(b, d);
        row[k + 8] = ODD_QUARTERS(a, c);
        row[k + 12] = ODD_QUARTERS(b, d);
    }
#elif SPO_LANES == 4
    for (int k = 0; k < 4; ++k) {
        row[k] = EVEN_QUARTERS(quad[k], quad[k + 4]);
        row[k + 4] = ODD_QUARTERS(quad[k], quad[k + 4]);
    }
#else
    for (int k = 0; k < 4; ++k) row[k] = quad[k];
#endif
#undef LOW
#undef HIGH
#undef LOW_PAIRS
#undef HIGH_PAIRS
#undef EVEN_QUARTERS
#undef ODD_QUARTERS
}
