/* The C boundary: the prototypes of spo_fast.h, which cgo cannot spell (it knows no const), forwarded to
 * Go. */
#include "spo_fast.h"

#include "_cgo_export.h"

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

EXPORT int32_t spo_abi_version(void) { return SPO_ABI_VERSION; }

EXPORT const char *spo_backend_name(void) { return "go"; }

EXPORT const char *spo_status_text(int32_t status) {
    switch (status) {
    case SPO_OK: return "success";
    case SPO_INVALID_ARGUMENT: return "an argument is out of its range";
    case SPO_OUT_OF_MEMORY: return "out of memory";
    case SPO_NONFINITE_COUPLING: return "the coupling matrix holds NaN or infinity";
    case SPO_ASYMMETRIC_COUPLING: return "the coupling matrix is not symmetric within 1e-12";
    case SPO_NONZERO_DIAGONAL: return "the diagonal of the coupling matrix is not zero within 1e-12";
    case SPO_NONFINITE_PHASE: return "the phases hold NaN or infinity";
    case SPO_NONFINITE_STATE: return "a step gave NaN or infinity";
    default: return "unknown status";
    }
}

EXPORT int32_t spo_modulate(int64_t n, const double *knm, const double *theta,
                            const spo_modulation *modulation, double *out) {
    return goModulate(n, (double *)knm, (double *)theta, (spo_modulation *)modulation, out);
}

EXPORT int32_t spo_order_parameter(int64_t n, const double *theta, double *r, double *psi) {
    return goOrderParameter(n, (double *)theta, r, psi);
}

EXPORT int32_t spo_kuramoto_run(const spo_network *network, const spo_integrator *integrator,
                                spo_state *state, int64_t n_steps, const spo_record *record) {
    return goKuramotoRun((spo_network *)network, (spo_integrator *)integrator, state, n_steps,
                         (spo_record *)record);
}
