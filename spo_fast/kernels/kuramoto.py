"""Kuramoto networks as embeddable Numba kernels.

Right-hand side, Euler, Runge-Kutta 4 and 5(4), order parameter.

    dtheta_i/dt = omega_i + sum_j K_ij sin(theta_j - theta_i - alpha_ij - lag) + zeta sin(psi - theta_i)

The sum separates: with s = sin theta, c = cos theta and K's lagged parts KC = K cos alpha, KS = K sin alpha,

    P = KC s - KS c,   Q = KC c + KS s,
    sum_j ... = cos theta_i (P cos lag - Q sin lag) - sin theta_i (Q cos lag + P sin lag)

so a drift costs two multiply-adds per coupling (four with a lag matrix) and N sines, not N**2 sines.

What stands between the public functions and the sums knows no coupling: it hands on a tuple, either ``(knm,
knm_sin)`` or, for a matrix in compressed rows, ``(data, data_sin, indptr, indices)``. The length of the
tuple is part of its type, so each kind gets code of its own, and only when it is used.

Common arguments
----------------
knm : (N, N), K itself, or KC when there is a lag matrix; row i is pulled by its columns. Need not be
symmetric.
knm_sin : (N, N), KS; or an array of shape (0, 0) when there is no lag matrix. `lagged_coupling` makes both.
lag : uniform lag in radians, on top of the lag matrix.
zeta, psi : strength and phase (radians) of the drive.
work : (WORK_ROWS, N) scratch; afterwards its first two rows hold sines and cosines last used.
"""

from __future__ import annotations

import math

import numpy as np

from ..tableaux import DORMAND_PRINCE
from ._flags import INVALID_ARGUMENT, NONFINITE_STATE, OK, REASSOCIATE, STRICT, kernel
from .modulation import _fill, apply_modulation
from .moments import apply_modulation_moments
from .sparse import _pattern_fits, apply_modulation_sparse
from .vectormath import TWO_PI, accurate_sum, sincos, wrap

EULER = 0
RK4 = 1
RK45 = 2

# Rows of the scratch array: sines, cosines, seven stages, a trial state, the fifth-order state, the new
# state.
_SINE = 0
_COSINE = 1
_K = 2
_TRIAL = 9
_HIGH = 10
_NEW = 11
WORK_ROWS = 12
_UNITS = WORK_ROWS  # two more rows for a sparse coupling: sine and cosine side by side
SPARSE_WORK_ROWS = WORK_ROWS + 2

_SUM_LANES = 16  # what `accurate_sum` needs
_A = np.array([[float(a) for a in (*row, *(0,) * (7 - len(row)))] for row in DORMAND_PRINCE.a])
_B = np.array([float(b) for b in DORMAND_PRINCE.b])
_B_LOW = np.array([float(b - e) for b, e in zip(DORMAND_PRINCE.b, DORMAND_PRINCE.error or (), strict=True)])

# Step-size control of the fifth-order method: limits, safety and exponents after success and after failure.
_MAX_GROWTH = 5.0
_MAX_SHRINK = 0.2
_SAFETY = 0.9
_GROW_EXPONENT = -1.0 / 5.0
_SHRINK_EXPONENT = -1.0 / 4.0
_ATTEMPTS = 4
CAP_FACTOR = 10.0  # no step grows beyond this multiple of the first


@kernel()
def lagged_coupling(knm, alpha, knm_cos, knm_sin):
    """Fill K cos(alpha) and K sin(alpha) for the other kernels.

    Parameters
    ----------
    knm : ndarray, shape (N, N)
        Coupling.
    alpha : ndarray, shape (N, N), radians
        Phase lag of each pair.
    knm_cos, knm_sin : ndarray, shape (N, N)
        Receive the two parts. Cost O(N**2) sines, once per network.
    """
    for i in range(knm.shape[0]):
        sincos(alpha[i], knm_sin[i], knm_cos[i])
        for j in range(knm.shape[1]):
            knm_cos[i, j] *= knm[i, j]
            knm_sin[i, j] *= knm[i, j]


@kernel(REASSOCIATE)
def _two_rows(first, second, sine, cosine):
    """Both rows' products with sines and cosines: four sums from one pass over the vectors."""
    s0 = 0.0
    c0 = 0.0
    s1 = 0.0
    c1 = 0.0
    for j in range(sine.shape[0]):
        s0 += first[j] * sine[j]
        c0 += first[j] * cosine[j]
        s1 += second[j] * sine[j]
        c1 += second[j] * cosine[j]
    return s0, c0, s1, c1


@kernel(inline=True)
def _close(i, p, q, sine, cosine, omega, drive, out):
    """One component of the drift from its two sums. `drive`: cos lag, sin lag, zeta sin psi, zeta cos psi."""
    turned_p = p * drive[0] - q * drive[1]
    turned_q = q * drive[0] + p * drive[1]
    out[i] = omega[i] + cosine[i] * (turned_p + drive[2]) - sine[i] * (turned_q + drive[3])


@kernel()
def _drift_plain(sine, cosine, omega, knm, drive, out):
    """Drift without a lag matrix; rows in pairs."""
    n = sine.shape[0]
    for i in range(0, n - 1, 2):
        p0, q0, p1, q1 = _two_rows(knm[i], knm[i + 1], sine, cosine)
        _close(i, p0, q0, sine, cosine, omega, drive, out)
        _close(i + 1, p1, q1, sine, cosine, omega, drive, out)
    if n % 2 == 1:
        p0, q0, p1, q1 = _two_rows(knm[n - 1], knm[n - 1], sine, cosine)
        _close(n - 1, p0, q0, sine, cosine, omega, drive, out)


@kernel()
def _drift_lagged(sine, cosine, omega, knm, knm_sin, drive, out):
    """Drift with a lag matrix: both parts of a row at once."""
    for i in range(sine.shape[0]):
        cs, cc, ss, sc = _two_rows(knm[i], knm_sin[i], sine, cosine)
        _close(i, cs - sc, cc + ss, sine, cosine, omega, drive, out)


@kernel(inline=True)
def _pull(units, data, indices, first, stop):
    """Both sums over the edges of one row."""
    p = 0.0
    q = 0.0
    for edge in range(first, stop):
        j = np.uint64(indices[edge])
        p += data[edge] * units[j, 0]
        q += data[edge] * units[j, 1]
    return p, q


@kernel(inline=True)
def _pull_lagged(units, data, data_sin, indices, first, stop):
    """``_pull`` with both parts of each edge."""
    p = 0.0
    q = 0.0
    for edge in range(first, stop):
        j = np.uint64(indices[edge])
        p += data[edge] * units[j, 0] - data_sin[edge] * units[j, 1]
        q += data[edge] * units[j, 1] + data_sin[edge] * units[j, 0]
    return p, q


@kernel()
def _drift_sparse(omega, data, data_sin, indptr, indices, drive, work, out):
    """Drift over the edges. Sine and cosine of an oscillator share a cache line: an edge touches one."""
    sine, cosine = work[_SINE], work[_COSINE]
    n = sine.shape[0]
    units = work[_UNITS:SPARSE_WORK_ROWS].reshape(n, 2)
    for i in range(n):
        units[i, 0] = sine[i]
        units[i, 1] = cosine[i]
    for i in range(n):
        # Unsigned, so that no index has to be tested for counting from the end.
        first, stop = np.uint64(indptr[i]), np.uint64(indptr[i + 1])
        if data_sin.shape[0] > 0:
            p, q = _pull_lagged(units, data, data_sin, indices, first, stop)
        else:
            p, q = _pull(units, data, indices, first, stop)
        _close(i, p, q, sine, cosine, omega, drive, out)


@kernel()
def _drift(omega, coupling, drive, work, out):
    """Drift from the sines and cosines in place."""
    if len(coupling) == 2:
        if coupling[1].shape[0] > 0:
            _drift_lagged(work[_SINE], work[_COSINE], omega, coupling[0], coupling[1], drive, out)
        else:
            _drift_plain(work[_SINE], work[_COSINE], omega, coupling[0], drive, out)
    else:
        data, data_sin, indptr, indices = coupling
        _drift_sparse(omega, data, data_sin, indptr, indices, drive, work, out)


@kernel()
def make_drive(lag, zeta, psi):
    """The four numbers that the drift needs.

    Cos lag, sin lag, zeta sin psi, zeta cos psi (lag and psi in radians).
    """
    return math.cos(lag), math.sin(lag), zeta * math.sin(psi), zeta * math.cos(psi)


@kernel()
def _evaluate(state, omega, coupling, drive, work, out):
    """Drift of any state."""
    sincos(state, work[_SINE], work[_COSINE])
    _drift(omega, coupling, drive, work, out)


@kernel()
def _combine(theta, work, weights, stages, dt, out):
    """Out = theta + dt * sum of weights[m] k_m over the first `stages` stages."""
    n = theta.shape[0]
    for i in range(n):
        out[i] = 0.0
    for m in range(stages):
        w = weights[m]
        k = work[_K + m]
        for i in range(n):
            out[i] += w * k[i]
    for i in range(n):
        out[i] = theta[i] + dt * out[i]


@kernel()
def _advance_row(theta, slope, dt, out):
    """Out = theta + dt * slope."""
    for i in range(theta.shape[0]):
        out[i] = theta[i] + dt * slope[i]


@kernel()
def _try_rk4(theta, omega, coupling, drive, dt, work):
    """The classical fourth-order step from `theta`, whose first stage is in place, into the trial row."""
    _advance_row(theta, work[_K], 0.5 * dt, work[_TRIAL])
    _evaluate(work[_TRIAL], omega, coupling, drive, work, work[_K + 1])
    _advance_row(theta, work[_K + 1], 0.5 * dt, work[_TRIAL])
    _evaluate(work[_TRIAL], omega, coupling, drive, work, work[_K + 2])
    _advance_row(theta, work[_K + 2], dt, work[_TRIAL])
    _evaluate(work[_TRIAL], omega, coupling, drive, work, work[_K + 3])
    sixth = dt / 6.0
    k1, k2, k3, k4, out = work[_K], work[_K + 1], work[_K + 2], work[_K + 3], work[_TRIAL]
    for i in range(theta.shape[0]):
        out[i] = theta[i] + sixth * (k1[i] + 2.0 * (k2[i] + k3[i]) + k4[i])


@kernel(STRICT)
def _solution(theta, work, weights, dt, out):
    """Out = theta + dt * sum of weights[m] k_m over all seven stages, each operation rounded."""
    k1, k3, k4, k5, k6, k7 = work[_K], work[_K + 2], work[_K + 3], work[_K + 4], work[_K + 5], work[_K + 6]
    w1, w3, w4, w5, w6, w7 = weights[0], weights[2], weights[3], weights[4], weights[5], weights[6]
    for i in range(theta.shape[0]):
        slope = w1 * k1[i] + w3 * k3[i] + w4 * k4[i] + w5 * k5[i] + w6 * k6[i] + w7 * k7[i]
        out[i] = theta[i] + dt * slope


@kernel()
def _error_norm(theta, high, low, atol, rtol):
    """Largest scaled difference of the two embedded solutions; NaN when any component is."""
    worst = 0.0
    for i in range(theta.shape[0]):
        scaled = abs(high[i] - low[i]) / (atol + rtol * max(abs(theta[i]), abs(high[i])))
        if scaled != scaled:
            return scaled
        worst = max(worst, scaled)
    return worst


@kernel()
def _attempt_rk45(theta, omega, coupling, drive, dt, atol, rtol, work):
    """One Dormand-Prince attempt from `theta`, whose first stage is in place. Returns its error norm.

    The seventh stage belongs to the wrapped new state, so that it is the next step's first stage to the
    last bit.
    """
    for stage in range(1, 6):
        _combine(theta, work, _A[stage], stage, dt, work[_TRIAL])
        _evaluate(work[_TRIAL], omega, coupling, drive, work, work[_K + stage])
    _fill(work[_K + 6], 0.0)
    _solution(theta, work, _B, dt, work[_HIGH])
    wrap(work[_HIGH], work[_NEW])
    _evaluate(work[_NEW], omega, coupling, drive, work, work[_K + 6])
    _solution(theta, work, _B_LOW, dt, work[_TRIAL])
    # The difference of the rounded solutions, not the combined stages: where errors are small its round-off
    # steers the step size.
    return _error_norm(theta, work[_HIGH], work[_TRIAL], atol, rtol)


@kernel()
def _grown(dt, error, cap):
    """Next step size after a success."""
    factor = _MAX_GROWTH
    if error > 0.0:
        factor = min(_MAX_GROWTH, _SAFETY * error**_GROW_EXPONENT)
    return min(dt * factor, cap)


@kernel()
def _shrunk(dt, error):
    """Next step size after a failure; a NaN counts as an infinite error."""
    if error != error:
        return dt * _MAX_SHRINK
    return dt * max(_MAX_SHRINK, _SAFETY * error**_SHRINK_EXPONENT)


@kernel()
def _try_rk45(theta, omega, coupling, drive, dt, cap, atol, rtol, work):
    """At most four attempts; the last one stands. Returns the step taken and the step to try next."""
    trial = dt
    for attempt in range(_ATTEMPTS):
        error = _attempt_rk45(theta, omega, coupling, drive, trial, atol, rtol, work)
        if error <= 1.0:
            return trial, _grown(trial, error, cap)
        if attempt < _ATTEMPTS - 1:
            trial = _shrunk(trial, error)
    return trial, _shrunk(trial, error)


@kernel()
def _take_step(method, theta, omega, coupling, drive, dt, cap, atol, rtol, work):
    """One step of any method, whose first stage is in place, into the row of the new state.

    Returns
    -------
    status : int
        ``OK`` or ``NONFINITE_STATE``.
    taken, following : float
        Step size taken and step size to try next.
    """
    if method == RK45:
        taken, following = _try_rk45(theta, omega, coupling, drive, dt, cap, atol, rtol, work)
        bad = wrap(work[_HIGH], work[_NEW])
    else:
        taken, following = dt, dt
        if method == RK4:
            _try_rk4(theta, omega, coupling, drive, dt, work)
        else:
            _advance_row(theta, work[_K], dt, work[_TRIAL])
        bad = wrap(work[_TRIAL], work[_NEW])
    return (NONFINITE_STATE if bad > 0 else OK), taken, following


@kernel()
def _copy(source, target):
    """Copy a row."""
    for i in range(source.shape[0]):
        target[i] = source[i]


@kernel()
def _network_fits(theta, omega, knm, knm_sin, work, out):
    """Whether the shapes of a step's arguments belong together."""
    n = theta.shape[0]
    return (
        omega.shape[0] == n
        and knm.shape == (n, n)
        and (knm_sin.shape == (n, n) or knm_sin.shape[0] == 0)
        and work.shape[0] >= WORK_ROWS
        and work.shape[1] == n
        and out.shape[0] == n
    )


@kernel()
def rhs(theta, omega, knm, knm_sin, lag, zeta, psi, work, out):
    """Right-hand side of the network.

    Parameters
    ----------
    theta : ndarray, shape (N,), radians
        Phases, any size.
    omega : ndarray, shape (N,), radians per time
        Natural frequencies.
    knm : ndarray, shape (N, N), radians per time
        K, or K cos alpha where there is a lag matrix; row i is pulled by its columns.
    knm_sin : ndarray, shape (N, N) or (0, 0), radians per time
        K sin alpha; empty without a lag matrix. `lagged_coupling` makes both.
    lag : float, radians
        Lag of all pairs, on top of the matrix.
    zeta, psi : float
        Strength (radians per time) and phase (radians) of the drive.
    work : ndarray, shape (WORK_ROWS, N)
        Scratch; afterwards its first two rows hold the sines and cosines last used.
    out : ndarray, shape (N,), radians per time
        Receives the derivatives.

    Returns
    -------
    int
        ``OK`` or ``INVALID_ARGUMENT``. Cost 2 N**2 multiply-adds, 4 N**2 with a lag matrix.
    """
    if not _network_fits(theta, omega, knm, knm_sin, work, out):
        return INVALID_ARGUMENT
    sincos(theta, work[_SINE], work[_COSINE])
    _drift(omega, (knm, knm_sin), make_drive(lag, zeta, psi), work, out)
    return OK


@kernel()
def rhs_sparse(theta, omega, indptr, indices, data, data_sin, lag, zeta, psi, work, out):
    """Right-hand side of a network in compressed rows.

    Parameters
    ----------
    theta, omega, lag, zeta, psi, out
        As in `rhs`.
    indptr : ndarray, shape (N + 1,), int64
        The edges into oscillator i are those from indptr[i] on, before indptr[i + 1].
    indices : ndarray, shape (E,), int32
        Column of each edge: the oscillator that pulls.
    data : ndarray, shape (E,)
        K_ij of each edge, or K_ij cos(alpha_ij) when there is a lag matrix.
    data_sin : ndarray, shape (E,) or (0,)
        K_ij sin(alpha_ij) of each edge; empty without a lag matrix.
    work : ndarray, shape (SPARSE_WORK_ROWS, N)
        Scratch.

    Returns
    -------
    int
        ``OK`` or ``INVALID_ARGUMENT`` (shapes, an index out of range). Cost 2 E multiply-adds, 4 E with a lag
        matrix, and N sines.
    """
    n = theta.shape[0]
    if not _pattern_fits(n, indptr, indices, data) or work.shape[0] < SPARSE_WORK_ROWS or work.shape[1] != n:
        return INVALID_ARGUMENT
    if omega.shape[0] != n or out.shape[0] != n or (data_sin.shape[0] > 0 and data_sin.shape != data.shape):
        return INVALID_ARGUMENT
    sincos(theta, work[_SINE], work[_COSINE])
    _drift(omega, (data, data_sin, indptr, indices), make_drive(lag, zeta, psi), work, out)
    return OK


@kernel(inline=True)
def _number(method):
    """The same method as a variable: a constant would compile all that it is passed to once more."""
    return np.int64(method)


@kernel()
def _single_step(method, theta, omega, knm, knm_sin, lag, zeta, psi, dt, cap, atol, rtol, work, out):
    """Wrap, step, and hand over the new state when it is finite.

    Returns status, step taken, step to try next.
    """
    if not _network_fits(theta, omega, knm, knm_sin, work, out):
        return INVALID_ARGUMENT, 0.0, dt
    start = np.empty(theta.shape[0])
    if wrap(theta, start) > 0:
        return NONFINITE_STATE, 0.0, dt
    sincos(start, work[_SINE], work[_COSINE])
    drive = make_drive(lag, zeta, psi)
    coupling = (knm, knm_sin)
    _drift(omega, coupling, drive, work, work[_K])
    status, taken, following = _take_step(method, start, omega, coupling, drive, dt, cap, atol, rtol, work)
    if status != OK:
        return status, 0.0, dt
    _copy(work[_NEW], out)
    return OK, taken, following


@kernel()
def euler_step(theta, omega, knm, knm_sin, lag, zeta, psi, dt, work, out):
    """One Euler step; phases are wrapped into [0, 2 pi) before and after it.

    Parameters
    ----------
    theta, omega, knm, knm_sin, lag, zeta, psi, work
        As in `rhs`.
    dt : float
        Step size in units of time.
    out : ndarray, shape (N,), radians
        Receives the new state; may be `theta`. Untouched unless the status is 0.

    Returns
    -------
    int
        ``OK``, ``INVALID_ARGUMENT`` or ``NONFINITE_STATE``. Cost of one right-hand side.
    """
    return _single_step(
        _number(EULER), theta, omega, knm, knm_sin, lag, zeta, psi, dt, dt, 0.0, 0.0, work, out
    )[0]


@kernel()
def rk4_step(theta, omega, knm, knm_sin, lag, zeta, psi, dt, work, out):
    """One classical Runge-Kutta step of order 4.

    Parameters
    ----------
    theta, omega, knm, knm_sin, lag, zeta, psi, dt, work, out
        As in `euler_step`.

    Returns
    -------
    int
        As from `euler_step`. Cost of four right-hand sides.
    """
    return _single_step(
        _number(RK4), theta, omega, knm, knm_sin, lag, zeta, psi, dt, dt, 0.0, 0.0, work, out
    )[0]


@kernel()
def rk45_step(theta, omega, knm, knm_sin, lag, zeta, psi, steps, atol, rtol, work, out):
    """One adaptive Dormand-Prince 5(4) step.

    Parameters
    ----------
    theta, omega, knm, knm_sin, lag, zeta, psi, work, out
        As in `euler_step`.
    steps : ndarray, shape (3,)
        Step size to try, largest step size allowed (units of time), and room for the step size taken. The
        first is replaced by the step size to try next.
    atol, rtol : float
        Tolerances: the error of each phase is measured against ``atol + rtol * max(|theta_i|, |new_i|)``.

    Returns
    -------
    int
        Status as in `euler_step`; `steps` is untouched unless it is 0. Cost of 7 right-hand sides, 25 at
        most: after four failed attempts the fourth stands.
    """
    if steps.shape[0] != 3:
        return INVALID_ARGUMENT
    status, taken, following = _single_step(
        _number(RK45), theta, omega, knm, knm_sin, lag, zeta, psi, steps[0], steps[1], atol, rtol, work, out
    )
    if status == OK:
        steps[0] = following
        steps[2] = taken
    return status


@kernel()
def _mean_field(sine, cosine, lanes):
    """Order parameter and mean phase in [0, 2 pi) from sines and cosines; 0 and 0 for no oscillator."""
    n = sine.shape[0]
    if n == 0:
        return 0.0, 0.0
    s = accurate_sum(sine, lanes)
    c = accurate_sum(cosine, lanes)
    psi = math.atan2(s, c)
    psi = psi + TWO_PI if psi < 0.0 else psi
    return min(1.0, math.hypot(s, c) / n), (0.0 if psi >= TWO_PI else psi)


@kernel()
def order_parameter(theta, r, psi):
    """Kuramoto order parameter R exp(i psi) = mean of exp(i theta) of many states.

    Parameters
    ----------
    theta : ndarray, shape (T, N), radians
        One state per row.
    r : ndarray, shape (T,)
        Receives R in [0, 1]; 0 for N = 0.
    psi : ndarray, shape (T,), radians
        Receives the mean phase in [0, 2 pi).

    Returns
    -------
    int
        ``OK`` or ``INVALID_ARGUMENT``. Cost O(T N), scratch of 2 N doubles.
    """
    rows, n = theta.shape
    if r.shape[0] != rows or psi.shape[0] != rows:
        return INVALID_ARGUMENT
    unit = np.empty((2, n))
    lanes = np.empty(_SUM_LANES)
    for row in range(rows):
        sincos(theta[row], unit[0], unit[1])
        r[row], psi[row] = _mean_field(unit[0], unit[1], lanes)
    return OK


@kernel()
def _observe(index, time, work, lanes, r, psi, t_observe):
    """Write the order parameter, mean phase and time of the state whose sines are in place.

    Where asked for.
    """
    if r.shape[0] > 0 or psi.shape[0] > 0:
        big_r, mean_phase = _mean_field(work[_SINE], work[_COSINE], lanes)
        if r.shape[0] > 0:
            r[index] = big_r
        if psi.shape[0] > 0:
            psi[index] = mean_phase
    if t_observe.shape[0] > 0:
        t_observe[index] = time


@kernel()
def _store(row, time, theta, stored, times):
    """Write one recorded state and its time, where asked for."""
    if stored.shape[0] > 0:
        _copy(theta, stored[row])
    if times.shape[0] > 0:
        times[row] = time


@kernel()
def _finish_step(method, step, taken, following, theta, clock, work):
    """Adopt the new state: `clock` holds time, step to try next, first step size."""
    _copy(work[_NEW], theta)
    clock[1] = following
    if method == RK45:
        clock[0] += taken
        _copy(work[_K + 6], work[_K])  # the last stage is the next step's first
    else:
        clock[0] = (step + 1) * clock[2]


@kernel()
def _step_and_store(
    method, step, theta, clock, atol, rtol, omega, coupling, drive, work, every, row, stored, times
):  # fmt: skip
    """One step of a run and what is recorded of it. Returns status and next row to be stored.

    Neither `theta` nor `clock` moves on a failure.
    """
    cap = CAP_FACTOR * clock[2]
    status, taken, following = _take_step(
        method, theta, omega, coupling, drive, clock[1], cap, atol, rtol, work
    )
    if status != OK:
        return status, row
    _finish_step(method, step, taken, following, theta, clock, work)
    if every > 0 and (step + 1) % every == 0:
        _store(row, clock[0], theta, stored, times)
        return OK, row + 1
    return OK, row


@kernel()
def advance(
    method, first, n_steps, theta, clock, atol, rtol, omega, coupling, drive, work,
    every, stored, times, r, psi, t_observe,
):  # fmt: skip
    """Take steps, recording on the way.

    Parameters
    ----------
    method : int
        ``EULER``, ``RK4`` or ``RK45``.
    first, n_steps : int
        Number of steps taken before, and to take now.
    theta : ndarray, shape (N,), radians
        Wrapped state; advanced in place, the last good state on failure.
    clock : ndarray, shape (3,)
        Time, step size to try next, first step size; the first two are advanced.
    atol, rtol : float
        Tolerances of ``RK45``.
    omega, work
        See the module's common arguments; ``SPARSE_WORK_ROWS`` rows for a sparse coupling.
    coupling : tuple of ndarray
        ``(knm, knm_sin)``, or ``(data, data_sin, indptr, indices)`` as in `rhs_sparse`.
    drive : tuple of 4 floats
        From `make_drive`.
    every : int
        Distance in steps between stored states, 0 for none.
    stored, times : ndarray, shapes (rows, N) and (rows,)
        Receive states and times after each step that `every` divides, from the first such step on; or empty.
    r, psi, t_observe : ndarray, shape (n_steps + 1,)
        Receive order parameter, mean phase (radians) and time of the state at each step, the first
        included; or empty.

    Returns
    -------
    status : int
        ``OK`` or ``NONFINITE_STATE``.
    taken : int
        Steps taken.
    """
    lanes = np.empty(_SUM_LANES)
    known = False
    row = 0
    for step in range(first, first + n_steps):
        if not known:
            sincos(theta, work[_SINE], work[_COSINE])
        _observe(step - first, clock[0], work, lanes, r, psi, t_observe)
        if not known:
            _drift(omega, coupling, drive, work, work[_K])
        status, row = _step_and_store(
            method, step, theta, clock, atol, rtol, omega, coupling, drive, work, every, row, stored, times
        )
        if status != OK:
            return status, step - first
        known = method == RK45
    sincos(theta, work[_SINE], work[_COSINE])
    _observe(n_steps, clock[0], work, lanes, r, psi, t_observe)
    return OK, n_steps


@kernel()
def _multiply_parts(knm, alpha_cos, alpha_sin, knm_cos, knm_sin):
    """Lagged parts of a coupling whose lag's cosines and sines are known; all as one row."""
    for e in range(knm.shape[0]):
        knm_cos[e] = knm[e] * alpha_cos[e]
        knm_sin[e] = knm[e] * alpha_sin[e]


@kernel()
def advance_modulated(
    method, first, n_steps, theta, clock, atol, rtol, omega, coupling, drive, work,
    every, stored, times, r, psi, t_observe,
    source, structure, w_q, w_k, w_v, w_o, block_size, temperature, lambda_,
    modulate_every, current, modulated, alpha_cos, alpha_sin, knm_cos, knm_sin,
):  # fmt: skip
    """``advance`` for a coupling that follows the state: K' is made anew at each `modulate_every`-th step.

    Parameters
    ----------
    method, first, n_steps, theta, clock, atol, rtol, omega, drive, work
        As in `advance`.
    coupling : tuple of ndarray
        As in `advance`; its values are views of `modulated`, or of `knm_cos` and `knm_sin` when there is a
        lag matrix.
    every, stored, times, r, psi, t_observe
        As in `advance`.
    source : tuple of ndarray
        The unmodulated coupling, inspected before; only read. One of shape (N, N), or, for a sparse coupling,
        the values of K and of (K + K^T)/2, shape (E,). Behind one of shape (N, N) may stand `series`, `room`
        and `keys` of the module ``moments``: the attention then goes through order parameters.
    structure : int
        What ``inspect_coupling`` said of a dense `source`.
    w_q, w_k, w_v, w_o, block_size, temperature, lambda_
        As in ``modulate``.
    modulate_every : int
        Distance in steps between two modulations.
    current : bool
        `modulated` holds what the running interval needs, from an earlier call.
    modulated : ndarray, shape (N, N) or (E,)
        Receives K'.
    alpha_cos, alpha_sin : ndarray, shape (N * N,), (E,) or (0,)
        Cosines and sines of the lag matrix, empty without one.
    knm_cos, knm_sin : ndarray, shape (N * N,), (E,) or (0,)
        Receive the lagged parts of K'.

    Returns
    -------
    status, taken : int
        As in `advance`.
    """
    lanes = np.empty(_SUM_LANES)
    known = False
    row = 0
    for step in range(first, first + n_steps):
        if not known:
            sincos(theta, work[_SINE], work[_COSINE])
        _observe(step - first, clock[0], work, lanes, r, psi, t_observe)
        if step % modulate_every == 0 or not current:
            if len(source) == 1:
                apply_modulation(
                    source[0], structure, theta,
                    w_q, w_k, w_v, w_o, block_size, temperature, lambda_, modulated,
                )  # fmt: skip
            elif len(source) == 4:
                apply_modulation_moments(
                    source[0], structure, theta,
                    w_q, w_k, w_v, w_o, temperature, lambda_, source[1], source[2], source[3], modulated,
                )  # fmt: skip
            else:
                apply_modulation_sparse(
                    coupling[2], coupling[3], source[0], source[1], theta,
                    w_q, w_k, w_v, w_o, block_size, temperature, lambda_, modulated,
                )  # fmt: skip
            if alpha_cos.shape[0] > 0:
                _multiply_parts(modulated.reshape(modulated.size), alpha_cos, alpha_sin, knm_cos, knm_sin)
            current = True
            known = False
        if not known:
            _drift(omega, coupling, drive, work, work[_K])
        status, row = _step_and_store(
            method, step, theta, clock, atol, rtol, omega, coupling, drive, work, every, row, stored, times
        )
        if status != OK:
            return status, step - first
        known = method == RK45
    sincos(theta, work[_SINE], work[_COSINE])
    _observe(n_steps, clock[0], work, lanes, r, psi, t_observe)
    return OK, n_steps
