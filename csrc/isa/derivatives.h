/* The way back, which spo_fast/derivatives.py puts together. */

#include "reverse_modulation.h"
#include "reverse_steps.h"

static const spo_derivative_kernels derivative_kernels = {
    reverse_scratch, reverse_sparse_scratch, modulate_vjp, modulate_sparse_vjp, flow_scratch, follow,
    go_back,         collect_pairs,
};
