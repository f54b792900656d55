/* What every library says of itself, and the texts of the statuses. */
#include "include/spo_fast.h"

int32_t spo_abi_version(void) { return SPO_ABI_VERSION; }

const char *spo_backend_name(void) { return "c"; }

const char *spo_status_text(int32_t status) {
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
