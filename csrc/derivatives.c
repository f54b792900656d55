/* The faces of the derivatives. */
#include "isa/kernels.h"

static const spo_derivative_kernels *in_use(void) { return spo_kernels_in_use()->derivatives; }

int64_t spo_core_modulate_vjp_scratch(int64_t n, const spo_modulation *modulation, int32_t workers) {
    return in_use()->scratch(n, modulation, spo_workers(workers, n));
}

int32_t spo_core_modulate_vjp(int64_t n, const double *knm, const double *mean, int32_t traits,
                              const double *theta, const spo_modulation *modulation, const double *grad,
                              int32_t workers, double *scratch, const spo_modulation_gradients *gradients) {
    return in_use()->modulate(n, knm, mean, traits, theta, modulation, grad, spo_workers(workers, n), scratch,
                              gradients);
}

int64_t spo_core_modulate_sparse_vjp_scratch(int64_t n, const spo_sparse *sparse,
                                             const spo_modulation *modulation) {
    return in_use()->sparse_scratch(n, sparse, modulation);
}

int32_t spo_core_modulate_sparse_vjp(int64_t n, const spo_sparse *sparse, const double *knm,
                                     const int64_t *mirror, const double *theta,
                                     const spo_modulation *modulation, const double *grad, double *scratch,
                                     const spo_modulation_gradients *gradients) {
    return in_use()->modulate_sparse(n, sparse, knm, mirror, theta, modulation, grad, scratch, gradients);
}

int64_t spo_core_packed_size(int64_t n) {
    const int64_t blocks = spo_padded(n) / SPO_PAD;
    return SPO_PAD * SPO_PAD * blocks * (blocks + 1) / 2;
}

void spo_core_pack(int64_t n, const double *knm, double *packed) {
    spo_kernels_in_use()->pack(n, knm, 1, packed);
}

int64_t spo_core_flow_scratch(int64_t n) { return in_use()->flow_scratch(n); }

void spo_core_follow(const spo_flow *flow, double *state, int64_t steps, int64_t slot, double *scratch) {
    in_use()->follow(flow, state, steps, slot, scratch);
}

void spo_core_go_back(const spo_flow *flow, double *grad, int64_t steps, int64_t slot, double *scratch,
                      const spo_flow_gradients *gradients) {
    in_use()->go_back(flow, grad, steps, slot, scratch, gradients);
}

void spo_core_collect(int64_t n, const spo_flow_gradients *gradients) {
    in_use()->collect(n, gradients->waiting, *gradients->count, gradients);
    *gradients->count = 0;
}
