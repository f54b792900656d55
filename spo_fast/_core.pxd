"""What other Cython code may cimport: the C structs, and functions that need no GIL on the caller's arrays.

Compile with ``spo_fast.get_include()`` on the include path; nothing has to be linked.
"""

from libc.stdint cimport int32_t, int64_t


cdef extern from "spo_fast_core.h" nogil:
    ctypedef struct spo_modulation:
        int64_t n_heads
        int64_t d_model
        int64_t block_size
        const double *w_q
        const double *w_k
        const double *w_v
        const double *w_o
        const double *temperature
        double lambda_ "lambda"

    ctypedef struct spo_network:
        int64_t n
        const double *omega
        const double *knm
        const double *alpha
        double uniform_alpha
        double zeta
        double psi
        const spo_modulation *modulation
        int64_t modulate_every

    ctypedef struct spo_integrator:
        int64_t method
        double dt
        double atol
        double rtol

    ctypedef struct spo_state:
        double *theta
        double *modulated
        double t
        double dt
        int64_t step

    ctypedef struct spo_record:
        int64_t every
        double *theta
        double *t
        double *r
        double *psi
        double *t_observe

    enum: SPO_OK
    enum: SPO_INVALID_ARGUMENT
    enum: SPO_OUT_OF_MEMORY
    enum: SPO_NONFINITE_COUPLING
    enum: SPO_ASYMMETRIC_COUPLING
    enum: SPO_NONZERO_DIAGONAL
    enum: SPO_NONFINITE_PHASE
    enum: SPO_NONFINITE_STATE
    enum: SPO_EULER
    enum: SPO_RK4
    enum: SPO_RK45


# The portable functions of spo_fast.h, under their names without the prefix.
cdef int32_t modulate(int64_t n, const double *knm, const double *theta, const spo_modulation *modulation,
                      double *out) noexcept nogil
cdef int32_t kuramoto_run(const spo_network *network, const spo_integrator *integrator, spo_state *state,
                          int64_t n_steps, const spo_record *record) noexcept nogil
cdef int32_t mean_field(int64_t n, const double *theta, double *r, double *psi) noexcept nogil
