# cython: language_level=3, boundscheck=False, wraparound=False
"""The rule of ``plasticity.py`` in Cython: the loop holds no GIL and calls the C core by its functions."""

from libc.math cimport cos
from libc.stdint cimport int32_t, int64_t

import numpy as np

from spo_fast._core cimport (
    SPO_OK, SPO_RK4, kuramoto_run, modulate, spo_integrator, spo_modulation, spo_network, spo_state,
)

from spo_fast import default_projections


cdef void adapt(double[:, ::1] knm, const double[::1] theta, double rate) noexcept nogil:
    """Let each pair learn; both its entries get the same bits, so that K stays symmetric."""
    cdef Py_ssize_t i, j
    for i in range(theta.shape[0]):
        for j in range(i):
            knm[i, j] += rate * (cos(theta[j] - theta[i]) - knm[i, j])
            knm[j, i] = knm[i, j]


def learn(theta, omega, knm, int64_t n_steps, double dt=0.01, double rate=0.2):
    """Return phases and couplings after some steps of length dt; arrays as `spo_fast.modulate` takes them."""
    cdef double[::1] phases = np.array(theta, dtype=float)
    cdef const double[::1] frequencies = np.ascontiguousarray(omega, dtype=float)
    cdef double[:, ::1] coupling = np.array(knm, dtype=float)
    cdef int64_t n = phases.shape[0], i, j, _
    cdef double[:, ::1] modulated = np.empty((n, n))
    cdef const double[:, :, ::1] w_q, w_k, w_v
    cdef const double[:, ::1] w_o
    cdef const double[::1] temperature = np.ones(4)
    cdef int32_t status = SPO_OK
    if n < 1 or coupling.shape[0] != n or coupling.shape[1] != n or frequencies.shape[0] != n:
        raise ValueError(f"theta, omega and knm do not fit, got {n} phases, {len(omega)} frequencies")
    w_q, w_k, w_v, w_o = default_projections()
    cdef spo_modulation modulation = spo_modulation(
        n_heads=4, d_model=8, block_size=-1, w_q=&w_q[0, 0, 0], w_k=&w_k[0, 0, 0], w_v=&w_v[0, 0, 0],
        w_o=&w_o[0, 0], temperature=&temperature[0], lambda_=0.5)
    cdef spo_network network = spo_network(
        n=n, omega=&frequencies[0], knm=&modulated[0, 0], alpha=NULL, uniform_alpha=0.0, zeta=0.0, psi=0.0,
        modulation=NULL, modulate_every=1)
    cdef spo_integrator integrator = spo_integrator(method=SPO_RK4, dt=dt, atol=0.0, rtol=0.0)
    cdef spo_state state = spo_state(theta=&phases[0], modulated=NULL, t=0.0, dt=dt, step=0)
    with nogil:
        for _ in range(n_steps):
            status = modulate(n, &coupling[0, 0], &phases[0], &modulation, &modulated[0, 0])
            if status == SPO_OK:
                for i in range(n):
                    for j in range(n):
                        modulated[i, j] /= n
                status = kuramoto_run(&network, &integrator, &state, 1, NULL)
            if status != SPO_OK:
                break
            adapt(coupling, phases, dt * rate)
    if status != SPO_OK:
        raise ValueError(f"the core refused, with status {status} of spo_fast.h")
    return np.asarray(phases), np.asarray(coupling)
