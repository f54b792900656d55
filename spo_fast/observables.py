"""Numbers that sum up a state or a trajectory."""

from __future__ import annotations

from typing import Any

import numpy as np

from spo_fast.backends import registry
from spo_fast.backends.status import Status
from spo_fast.simulation import Simulation, SimulationError
from spo_fast.validation import (
    TWO_PI,
    Network,
    SparseCoupling,
    as_phases,
    as_trajectory,
    describe,
    explain_network,
    explain_nonfinite,
    integer,
    network,
    number,
)

_BLOCK_ENTRIES = 1 << 18  # entries of a trajectory taken at once: temporaries of 2 MB


def order_parameter(theta: Any, *, backend: str | None = None) -> tuple[Any, Any]:
    """Kuramoto order parameter ``R = |sum_j exp(i theta_j)| / N`` and mean phase psi.

    Parameters
    ----------
    theta : array_like, shape (N,) or (T, N), radians
        A state or a trajectory, any real values.
    backend : str, optional
        One of those `spo_fast.backends` lists; the fastest available by default.

    Returns
    -------
    R : float or ndarray, shape (T,)
        In [0, 1]; 0 for N = 0.
    psi : float or ndarray, shape (T,), radians
        In [0, 2 pi); 0 for N = 0.

    Raises
    ------
    ValueError
        If `theta` has another shape or is not finite.
    RuntimeError
        If the backend asked for cannot be loaded.

    Notes
    -----
    O(T N), one pass, without temporaries of that size.
    """
    phases = as_trajectory(theta)
    explain_nonfinite(theta=phases)
    rows = phases if phases.ndim == 2 else phases[None, :]
    r, psi = registry.load(backend).order_parameter(rows)
    return (r, psi) if phases.ndim == 2 else (float(r[0]), float(psi[0]))


def layer_coherence(theta: Any, layer: Any, *, backend: str | None = None) -> Any:
    """Order parameter of some of the oscillators.

    Parameters
    ----------
    theta : array_like, shape (N,) or (T, N), radians
        A state or a trajectory.
    layer : array_like
        A boolean mask of shape (N,), or the unique indices, 0 to N - 1, of the oscillators.
    backend : str, optional
        As for `order_parameter`.

    Returns
    -------
    float or ndarray, shape (T,)
        In [0, 1]; 0 for an empty layer.

    Raises
    ------
    ValueError
        If `theta` or `layer` does not fit: a mask of another length, indices that repeat or are out of range,
        floats.
    RuntimeError
        If the backend asked for cannot be loaded.

    Notes
    -----
    O(T n) for n oscillators in the layer.
    """
    phases = as_trajectory(theta)
    chosen = _members(layer, phases.shape[-1])
    explain_nonfinite(theta=phases)
    rows = phases if phases.ndim == 2 else phases[None, :]
    kernel = registry.load(backend).order_parameter
    r = np.empty(rows.shape[0])
    for part in _blocks(rows.shape):
        r[part] = kernel(np.ascontiguousarray(rows[part][:, chosen]))[0]
    return r if phases.ndim == 2 else float(r[0])


def _members(layer: Any, n: int) -> np.ndarray:
    """Return the indices that a mask or a list of indices means."""
    listed = isinstance(layer, list | tuple | range)
    if listed and len({isinstance(entry, bool | np.bool_) for entry in layer}) > 1:
        raise ValueError("layer must be a boolean mask or integer indices, got a mixture of both")
    try:
        chosen = np.asarray(layer)
    except Exception as error:
        raise ValueError(f"layer must be a boolean mask or integer indices, got {describe(layer)}") from error
    if chosen.ndim != 1:
        raise ValueError(f"layer must have one dimension, got shape {chosen.shape}")
    if chosen.dtype.kind == "b":
        if chosen.shape != (n,):
            raise ValueError(f"layer must have shape ({n},) as a mask, got {chosen.shape}")
        return np.flatnonzero(chosen)
    if chosen.size == 0:
        return np.empty(0, dtype=np.intp)
    if chosen.dtype.kind not in "iu":
        raise ValueError(f"layer must be a boolean mask or integer indices, got dtype {chosen.dtype}")
    outside = (chosen < 0) | (chosen >= n)
    if outside.any():
        raise ValueError(f"layer must hold indices from 0 to {n - 1}, got {int(chosen[outside][0])}")
    unique, counts = np.unique(chosen, return_counts=True)
    if unique.size != chosen.size:
        raise ValueError(f"layer must hold unique indices, got {int(unique[counts > 1][0])} more than once")
    return chosen.astype(np.intp)


def plv(a: Any, b: Any) -> Any:
    """Phase-locking value ``|mean over time of exp(i (a - b))|``.

    Parameters
    ----------
    a, b : array_like, shape (T,) or (T, N), radians
        Two series of phases, or two trajectories.

    Returns
    -------
    float or ndarray, shape (N,)
        In [0, 1]; 0 for T = 0.

    Raises
    ------
    ValueError
        If shapes differ or an entry is not finite.

    Notes
    -----
    O(T N). J. P. Lachaux et al., Human Brain Mapping 8 (1999) 194-208.
    """
    first, second = as_trajectory(a, "a"), as_trajectory(b, "b")
    if first.shape != second.shape:
        raise ValueError(f"b must have the shape of a, {first.shape}, got {second.shape}")
    explain_nonfinite(a=first, b=second)
    if first.ndim == 1:
        return float(_locking(first[:, None], second[:, None])[0])
    return _locking(first, second)


def _locking(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    times, n = first.shape
    sine, cosine = np.zeros(n), np.zeros(n)
    for part in _blocks(first.shape):
        difference = first[part] - second[part]
        sine += np.sin(difference).sum(axis=0)
        cosine += np.cos(difference).sum(axis=0)
    return np.minimum(1.0, np.hypot(sine, cosine) / max(times, 1))


def _blocks(shape: tuple[int, ...]) -> list[slice]:
    """Return slices of rows, each of about 2 MB."""
    rows = max(1, _BLOCK_ENTRIES // max(shape[1], 1))
    return [slice(start, start + rows) for start in range(0, shape[0], rows)]


def entropy_production_rate(theta: Any, omega: Any, knm: Any, alpha: float, dt: float) -> Any:
    """Dissipation dt sum_i (omega_i + (alpha / N) sum_j K_ij sin(theta_j - theta_i))^2.

    Parameters
    ----------
    theta : array_like, shape (N,) or (T, N), radians
        A state or a trajectory.
    omega : float or array_like, shape (N,), rad per time unit
        Natural frequencies.
    knm : array_like, SciPy sparse matrix or NetworkX graph, shape (N, N)
        Coupling.
    alpha : float
        Global strength of the coupling, a number.
    dt : float
        Time step, at least 0.

    Returns
    -------
    float or ndarray, shape (T,)
        Not negative; 0 for N = 0.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, or not finite.

    Notes
    -----
    O(T N^2), or O(T E) for E stored entries. J. A. Acebron et al., Rev. Mod. Phys. 77 (2005) 137-185.
    """
    phases = as_trajectory(theta)
    n = phases.shape[-1]
    net = network(n, omega, knm, None, 0.0, 0.0)
    strength, step = number(alpha, "alpha"), number(dt, "dt", minimum=0.0)
    explain_nonfinite(theta=phases)
    explain_network(net)
    rows = phases if phases.ndim == 2 else phases[None, :]
    rate = np.empty(rows.shape[0])
    for part in _blocks(rows.shape):
        rate[part] = step * np.square(_velocity(rows[part], net, strength / max(n, 1))).sum(axis=1)
    return rate if phases.ndim == 2 else float(rate[0])


def _velocity(theta: np.ndarray, net: Network, strength: float) -> np.ndarray:
    """omega_i + strength (cos theta_i (K s)_i - sin theta_i (K c)_i) for each row of theta."""
    sine, cosine = np.sin(theta), np.cos(theta)
    knm = net.knm.with_data(net.knm.data) if isinstance(net.knm, SparseCoupling) else net.knm
    return net.omega + strength * (cosine * (knm @ sine.T).T - sine * (knm @ cosine.T).T)


# ---------------------------------------------------------------- Lyapunov exponents


def lyapunov_spectrum(
    theta: Any,
    omega: Any,
    knm: Any,
    alpha: Any = None,
    *,
    dt: float = 0.01,
    n_steps: int = 1000,
    qr_interval: int = 10,
    zeta: float = 0.0,
    psi: float = 0.0,
    k: int | None = None,
) -> np.ndarray:
    """Lyapunov exponents from the growth of tangent vectors.

    The phases and N tangent vectors are advanced together by RK4. The vectors start as the identity, without
    a drive with its first column replaced by the uniform vector (the direction of a common shift),
    orthonormalised in order; every `qr_interval` steps, and after the last one, a QR decomposition gives
    their growth.

    Parameters
    ----------
    theta : array_like, shape (N,), radians
        Initial phases.
    omega : float or array_like, shape (N,), rad per time unit
        Natural frequencies.
    knm : array_like, SciPy sparse matrix or NetworkX graph, shape (N, N), rad per time unit
        Coupling.
    alpha : None, float or array_like, shape (N, N), radians
        Phase lag; with a sparse `knm` a sparse matrix of the same pattern instead of an array.
    dt : float
        Step size.
    n_steps : int
        Steps, at least 1.
    qr_interval : int
        Steps between two decompositions, at least 1.
    zeta, psi : float
        Strength (rad per time unit) and phase (radians) of the external drive.
    k : int, optional
        Return the k largest only. All vectors are followed: after a finite time the largest exponents need
        not be those of the first columns.

    Returns
    -------
    ndarray, shape (N,) or (k,), per time unit
        Exponents, descending.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind, shape or range, or not finite.
    SimulationError
        If the vectors turn non-finite.

    Notes
    -----
    O(N^3) for each step, O(N E) for a sparse coupling with E stored entries; N tangent vectors of N entries
    are held in either case. G. Benettin et al., Meccanica 15 (1980) 9-20; I. Shimada, T. Nagashima, Prog.
    Theor. Phys. 61 (1979) 1605-1616.
    """
    phases = as_phases(theta, None)
    n = phases.shape[0]
    net = network(n, omega, knm, alpha, zeta, psi)
    explain_nonfinite(theta=phases)
    explain_network(net)
    step, count = number(dt, "dt", positive=True), integer(n_steps, "n_steps", 1)
    interval, leading = integer(qr_interval, "qr_interval", 1), n if k is None else integer(k, "k", 1)
    if leading > n:
        raise ValueError(f"k must be at most N = {n}, got {leading}")
    tangent = _SparseTangent(net) if isinstance(net.knm, SparseCoupling) else _Tangent(net)
    growth = _growth(phases, tangent, step, count, interval)
    spectrum = np.sort(growth / (count * step))[::-1]
    return spectrum[:leading].copy()


def _growth(
    theta: np.ndarray, tangent: _Tangent | _SparseTangent, dt: float, n_steps: int, interval: int
) -> np.ndarray:
    """Return the logarithms of the growth of each tangent vector over the whole run."""
    n = theta.size
    vectors = _first_vectors(n, uniform=tangent.net.zeta == 0.0)
    total = np.zeros(n)
    for start in range(0, n_steps, interval):
        good = theta
        for _ in range(min(interval, n_steps - start)):
            theta, vectors = _rk4_joint_step(tangent, theta, vectors, dt)
        if not (np.isfinite(theta).all() and np.isfinite(vectors).all()):
            _raise_growth(start, dt, good)
        vectors, upper = np.linalg.qr(vectors)
        with np.errstate(divide="ignore"):  # a vector that vanished has the exponent minus infinity
            total += np.log(np.abs(np.diagonal(upper)))
    return total


def _first_vectors(n: int, uniform: bool) -> np.ndarray:
    vectors = np.eye(n)
    if uniform and n:
        vectors[:, 0] = 1.0
    return np.linalg.qr(vectors)[0]


def _raise_growth(step: int, dt: float, theta: np.ndarray) -> None:
    times = np.array([step * dt])
    status = int(Status.NONFINITE_STATE)
    result = Simulation(times, theta[None, :], None, None, None, theta, dt, "rk4", "numpy", status, step)
    raise SimulationError(f"tangent vectors turned non-finite after step {step}, t = {step * dt:.6g}", result)


def _rk4_joint_step(
    tangent: _Tangent | _SparseTangent, theta: np.ndarray, vectors: np.ndarray, dt: float
) -> tuple[np.ndarray, np.ndarray]:
    """One RK4 step of d theta / dt = f(theta), dV / dt = J(theta) V."""
    slope_sum, flow_sum = np.zeros_like(theta), np.zeros_like(vectors)
    slope, flow = slope_sum, flow_sum
    for node, weight in ((0.0, 1.0), (0.5, 2.0), (0.5, 2.0), (1.0, 1.0)):
        slope, jacobian = tangent(theta + node * dt * slope)
        flow = jacobian @ (vectors + node * dt * flow)
        slope_sum = slope_sum + weight * slope
        flow_sum += weight * flow
    return (theta + dt / 6.0 * slope_sum) % TWO_PI, vectors + dt / 6.0 * flow_sum


class _Tangent:
    """Right-hand side and Jacobian of a network.

    With W_ij = K_ij cos(theta_j - theta_i - alpha_ij), J_ij = W_ij off the diagonal and
    J_ii = W_ii - sum_j W_ij - zeta cos(psi - theta_i). W and the interaction are separable: with K cos(alpha)
    and K sin(alpha) made once, no trigonometric function of a pair is needed.
    """

    def __init__(self, net: Network) -> None:
        assert isinstance(net.knm, np.ndarray)
        self.net = net
        lags = net.alpha if net.alpha is not None else np.float64(net.uniform_alpha)
        self._knm_cos, self._knm_sin = net.knm * np.cos(lags), net.knm * np.sin(lags)
        self._lagged = bool(np.any(lags))
        self._work = np.empty_like(net.knm)

    def __call__(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return d theta / dt, shape (N,), and the Jacobian, shape (N, N), valid until the next call."""
        sine, cosine = np.sin(theta), np.cos(theta)
        weights = self._work
        # K_ij cos(theta_j - alpha_ij) and K_ij sin(theta_j - alpha_ij)
        along = self._knm_cos * cosine
        across = self._knm_cos * sine
        if self._lagged:
            along += self._knm_sin * sine
            across -= self._knm_sin * cosine
        pull = cosine * across.sum(axis=1) - sine * along.sum(axis=1)
        np.multiply(along, cosine[:, None], out=weights)
        weights += across * sine[:, None]
        net = self.net
        weights[np.diag_indices_from(weights)] -= weights.sum(axis=1) + net.zeta * np.cos(net.psi - theta)
        return net.omega + pull + net.zeta * np.sin(net.psi - theta), weights


class _SparseTangent:
    """The same for a sparse network, pair by pair: its Jacobian has the pattern of K and the diagonal."""

    def __init__(self, net: Network) -> None:
        from scipy.sparse import diags_array

        assert isinstance(net.knm, SparseCoupling)
        self.net, self._knm, self._diagonal = net, net.knm, diags_array
        self._rows, self._lags = net.knm.rows(), net.uniform_alpha if net.alpha is None else net.alpha

    def __call__(self, theta: np.ndarray) -> tuple[np.ndarray, Any]:
        """Return d theta / dt, shape (N,), and the Jacobian, a sparse (N, N) matrix."""
        net, n = self.net, theta.size
        angles = theta[self._knm.indices] - theta[self._rows] - self._lags
        pull = np.bincount(self._rows, self._knm.data * np.sin(angles), minlength=n)
        weights = self._knm.data * np.cos(angles)
        loss = np.bincount(self._rows, weights, minlength=n) + net.zeta * np.cos(net.psi - theta)
        jacobian = self._knm.with_data(weights) - self._diagonal(loss)
        return net.omega + pull + net.zeta * np.sin(net.psi - theta), jacobian
