/* Chooses the kernels that this processor runs best, once, when first needed; the environment variable
 * SPO_FAST_INSTRUCTION_SET (sse2, avx2, avx512, neon) may name a lower one. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "isa/kernels.h"

static _Atomic(const spo_kernels *) in_use;

/* The index-th set that this processor has, fastest first; NULL past the last. */
static const spo_kernels *available(int32_t index) {
    const spo_kernels *found[3];
    int32_t count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        found[count++] = &spo_kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found[count++] = &spo_kernels_avx2;
#endif
    found[count++] = &spo_kernels_baseline;
    return index >= 0 && index < count ? found[index] : NULL;
}

static const spo_kernels *named(const char *name) {
    const spo_kernels *kernels = NULL;
    for (int32_t index = 0; (kernels = available(index)); ++index)
        if (strcmp(kernels->name, name) == 0) break;
    return kernels;
}

const spo_kernels *spo_kernels_in_use(void) {
    const spo_kernels *kernels = atomic_load_explicit(&in_use, memory_order_acquire);
    if (!kernels) {
        const char *wish = getenv("SPO_FAST_INSTRUCTION_SET");
        kernels = wish ? named(wish) : NULL;
        if (!kernels) kernels = available(0);
        atomic_store_explicit(&in_use, kernels, memory_order_release);
    }
    return kernels;
}

const char *spo_core_instruction_set(void) { return spo_kernels_in_use()->name; }

const char *spo_core_available_instruction_set(int32_t index) {
    const spo_kernels *kernels = available(index);
    return kernels ? kernels->name : NULL;
}

int32_t spo_core_select_instruction_set(const char *name) {
    const spo_kernels *kernels = named(name);
    if (!kernels) return SPO_INVALID_ARGUMENT;
    atomic_store_explicit(&in_use, kernels, memory_order_release);
    return SPO_OK;
}

void spo_core_exp(int64_t n, const double *x, double *y) { spo_kernels_in_use()->exp(n, x, y); }

void spo_core_exp2(int64_t n, const double *x, double *y) { spo_kernels_in_use()->exp2(n, x, y); }

void spo_core_sincos(int64_t n, const double *x, double *sine, double *cosine) {
    spo_kernels_in_use()->sincos(n, x, sine, cosine);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double spo_core_measure_read(int64_t n, const double *x, int64_t repeats) {
    double best = 1e300;
    volatile double sink = 0;
    const int64_t passes = 1 + (1 << 18) / (n + 1); /* at least 2 MB, so that the clock costs nothing */
    for (int64_t k = 0; k < repeats; ++k) {
        const double start = now();
        for (int64_t pass = 0; pass < passes; ++pass) sink += spo_kernels_in_use()->read(n, x);
        const double seconds = (now() - start) / (double)passes;
        best = seconds < best ? seconds : best;
    }
    (void)sink;
    return best;
}

double spo_core_measure_multiply_add(void) {
    const int64_t rounds = 200000;
    double best = 1e300;
    volatile double sink = 0;
    for (int k = 0; k < 10; ++k) {
        const double start = now();
        sink += spo_kernels_in_use()->multiply_add(rounds);
        const double seconds = now() - start;
        best = seconds < best ? seconds : best;
    }
    (void)sink;
    return (double)(rounds * 10 * spo_kernels_in_use()->lanes) / best;
}
