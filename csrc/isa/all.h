/* Every kernel, for the instruction set whose lanes the including file has chosen. */
#include "kernels.h"
#include "simd.h"
#include "vectormath.h"
#include "coupling.h"
#include "modulation.h"
#include "moments.h"
#include "product.h"
#include "sparse.h"
#include "fused.h"
#include "drift.h"
#include "stepping.h"
#include "modulated_members.h"
#include "members.h"
#include "derivatives.h"

#define REAL double
#define REALS vd
#define INT int64_t
#define INTS vi
#define LANES SPO_LANES
#define OP(name) v_##name
#define NAMED(name) name##_double
#define SIGNIFICAND_BITS 52
#define EXPONENT_OF_ONE 1023
#define LARGEST_POWER 0x1p1022
#include "attention.h"
#include "phase.h"
#include "pulse.h"
#undef REAL
#undef REALS
#undef INT
#undef INTS
#undef LANES
#undef OP
#undef NAMED
#undef SIGNIFICAND_BITS
#undef EXPONENT_OF_ONE
#undef LARGEST_POWER

#define REAL float
#define REALS vf
#define INT int32_t
#define INTS vfi
#define LANES SPO_FLOATS
#define OP(name) f_##name
#define NAMED(name) name##_float
#define SIGNIFICAND_BITS 23
#define EXPONENT_OF_ONE 127
#define LARGEST_POWER 0x1p126f
#include "attention.h"
#include "phase.h"
#include "pulse.h"

static void exp_array(int64_t n, const double *x, double *y) {
    for (int64_t i = 0; i < n; i += SPO_LANES) {
        const int64_t count = n - i < SPO_LANES ? n - i : SPO_LANES;
        v_store_first(y + i, v_exp(v_load_first(x + i, count)), count);
    }
}

static void exp2_array(int64_t n, const double *x, double *y) {
    for (int64_t i = 0; i < n; i += SPO_LANES) {
        const int64_t count = n - i < SPO_LANES ? n - i : SPO_LANES;
        v_store_first(y + i, v_exp2(v_load_first(x + i, count)), count);
    }
}

static void sincos_array(int64_t n, const double *x, double *sine, double *cosine) {
    for (int64_t i = 0; i < n; i += SPO_LANES) {
        const int64_t count = n - i < SPO_LANES ? n - i : SPO_LANES;
        vd s, c;
        v_sincos(v_load_first(x + i, count), &s, &c);
        v_store_first(sine + i, s, count);
        v_store_first(cosine + i, c, count);
    }
}

static void order(int64_t n, const double *theta, double *sine_sum, double *cosine_sum) {
    exact_sum sine = {{0}, {0}}, cosine = {{0}, {0}};
    for (int64_t i = 0; i < n; i += SPO_LANES) {
        const int64_t count = n - i < SPO_LANES ? n - i : SPO_LANES;
        const vi wanted = (vi)(V_IOTA < (double)count);
        vd s, c;
        v_sincos(v_load_first(theta + i, count), &s, &c);
        add_exactly(&sine, v_and(s, wanted));
        add_exactly(&cosine, v_and(c, wanted));
    }
    *sine_sum = total_of(&sine);
    *cosine_sum = total_of(&cosine);
}

/* A sum that does nothing but read: the bandwidth that a pass over K is held against. */
static double read_array(int64_t n, const double *x) {
    vd sum[8] = {{0}};
    int64_t i = 0;
    for (; i + 8 * SPO_LANES <= n; i += 8 * SPO_LANES)
        for (int k = 0; k < 8; ++k) sum[k] += v_load(x + i + k * SPO_LANES);
    for (; i + SPO_LANES <= n; i += SPO_LANES) sum[0] += v_load(x + i);
    for (int k = 1; k < 8; ++k) sum[0] += sum[k];
    return v_sum(sum[0]);
}

/* n rounds of ten independent chains of multiply-adds in registers. */
static double multiply_add(int64_t n) {
    vd chain[10];
    for (int k = 0; k < 10; ++k) chain[k] = v_set(k);
    const vd a = v_set(0.999999), b = v_set(1e-6);
    for (int64_t i = 0; i < n; ++i)
        for (int k = 0; k < 10; ++k) chain[k] = v_fma(chain[k], a, b);
    for (int k = 1; k < 10; ++k) chain[0] += chain[k];
    return v_sum(chain[0]);
}

#define SPO_TABLE(NAME)                                                                                      \
    {NAME,                                                                                                   \
     exp_array,                                                                                              \
     exp2_array,                                                                                             \
     sincos_array,                                                                                           \
     scan,                                                                                                   \
     find_absent,                                                                                            \
     symmetrise,                                                                                             \
     transpose,                                                                                              \
     units,                                                                                                  \
     units_moments,                                                                                          \
     harmonic_sums,                                                                                          \
     scale,                                                                                                  \
     units_sparse,                                                                                           \
     scale_sparse,                                                                                           \
     run_members,                                                                                            \
     pack,                                                                                                   \
     mirrored,                                                                                               \
     order,                                                                                                  \
     run,                                                                                                    \
     read_array,                                                                                             \
     multiply_add,                                                                                           \
     SPO_LANES,                                                                                              \
     {&attention_kernels_double, &attention_kernels_float},                                                  \
     {&pulse_kernels_double, &pulse_kernels_float},                                                          \
     &derivative_kernels}
