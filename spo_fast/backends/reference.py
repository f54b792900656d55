"""The formulas in NumPy: the backend to read, and the one that is always there.

Matrices are formed in full and sums are taken as written; nothing is tuned. Temporaries are a few (N, N)
arrays.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spo_fast.backends.record import Record
from spo_fast.backends.status import Status
from spo_fast.tableaux import DORMAND_PRINCE
from spo_fast.validation import (
    TWO_PI,
    ModulationParameters,
    Network,
    SparseCoupling,
    as_coupling,
    as_output,
    as_phases,
    explain_coupling,
    explain_nonfinite,
    refuse_moments,
)

NAME = "numpy"
SHARES_MEMBERS = True  # threads may follow members of an ensemble at the same time

_NORM_FLOOR = 1e-12  # added to |O_i|: an output of length zero has no direction
_ROW_BLOCK = 1 << 18  # entries of a trajectory whose sines are held at once: 2 MB

# ---------------------------------------------------------------- modulation


def embedding(theta: np.ndarray, d_model: int) -> np.ndarray:
    """x(theta) = [cos theta, sin theta, cos 2 theta, sin 2 theta, ...], shape (N, d)."""
    angles = np.multiply.outer(theta, np.arange(1.0, d_model // 2 + 1))
    features = np.empty((theta.size, d_model))
    features[:, 0::2] = np.cos(angles)
    features[:, 1::2] = np.sin(angles)
    return features


def neighbours(knm: np.ndarray, block_size: int) -> np.ndarray:
    """Mask m_ij: i != j, K_ij != 0, and |i - j| <= block_size unless that is -1; shape (N, N), bool."""
    mask = knm != 0.0
    np.fill_diagonal(mask, False)
    if block_size >= 0:
        index = np.arange(knm.shape[0])
        mask &= np.abs(np.subtract.outer(index, index)) <= block_size
    return mask


def attention(logits: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Softmax over the unmasked entries of each row, in place; a row without any is all zero."""
    logits[~mask] = -np.inf
    top = logits.max(axis=1, keepdims=True, initial=-np.inf)
    top[np.isneginf(top)] = 0.0  # no neighbour: exp(-inf - 0) = 0 throughout
    weights = np.exp(np.subtract(logits, top, out=logits), out=logits)
    total = weights.sum(axis=1, keepdims=True)
    total[total == 0.0] = 1.0
    return np.divide(weights, total, out=weights)


def unit_outputs(theta: np.ndarray, mask: np.ndarray, p: ModulationParameters) -> np.ndarray:
    """Unit outputs o_i = O_i / (|O_i| + 1e-12) with O = concat_h(A_h V_h) W_O; shape (N, d)."""
    x = embedding(theta, p.d_model)
    width = p.d_model // p.n_heads
    heads = []
    for w_q, w_k, w_v, tau in zip(p.w_q, p.w_k, p.w_v, p.temperature, strict=True):
        logits = (x @ w_q) @ (x @ w_k).T / (np.sqrt(width) * tau)
        heads.append(attention(logits, mask) @ (x @ w_v))
    outputs = np.concatenate(heads, axis=1) @ p.w_o
    return outputs / (np.linalg.norm(outputs, axis=1, keepdims=True) + _NORM_FLOOR)


def modulated(
    knm: np.ndarray, theta: np.ndarray, mask: np.ndarray, p: ModulationParameters, out: np.ndarray
) -> np.ndarray:
    """K' = (M + M^T)/2 with M = K (1 + lambda a), a_ij = (1 + o_i . o_j) m_ij / 2, and a zero diagonal."""
    if p.lambda_ == 0.0:
        out[...] = knm
        return out
    units = unit_outputs(theta, mask, p)
    affinity = 0.5 * (1.0 + units @ units.T) * mask
    strengthened = knm * (1.0 + p.lambda_ * affinity)
    mirrored = strengthened.T
    out[...] = np.where(strengthened == mirrored, strengthened, 0.5 * strengthened + 0.5 * mirrored)
    np.fill_diagonal(out, 0.0)
    return out


class Edges:
    """The entries of a sparse coupling that attention looks at, row after row.

    Parameters
    ----------
    coupling : SparseCoupling
        Symmetric, with its mean.
    block_size : int
        Largest |i - j|, or -1 for any.
    """

    def __init__(self, coupling: SparseCoupling, block_size: int) -> None:
        self.n, self.mean = coupling.n, coupling.mean
        rows, columns = coupling.rows(), coupling.indices
        self.band = rows != columns  # the pairs that are strengthened, explicit zeros among them
        if block_size >= 0:
            self.band &= np.abs(rows - columns) <= block_size
        mask = self.band & (coupling.data != 0.0)
        self.rows, self.columns = rows[mask], columns[mask]
        self.pairs = rows[self.band], columns[self.band]

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum over the entries of each row, shape (N,)."""
        return np.bincount(self.rows, values, minlength=self.n)


def dots(left: np.ndarray, right: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Dot products of rows of `left` with rows of `right`; one temporary of their number at a time."""
    total = np.zeros(rows.size)
    for a, b in zip(left.T, right.T, strict=True):
        total += a[rows] * b[columns]
    return total


def sparse_attention(logits: np.ndarray, edges: Edges) -> np.ndarray:
    """Softmax over the entries of each row."""
    top = np.full(edges.n, -np.inf)
    np.maximum.at(top, edges.rows, logits)
    weights = np.exp(logits - top[edges.rows])
    return weights / edges.sum(weights)[edges.rows]


def sparse_unit_outputs(theta: np.ndarray, edges: Edges, p: ModulationParameters) -> np.ndarray:
    """Unit outputs as of `unit_outputs`, from the entries alone; shape (N, d)."""
    x = embedding(theta, p.d_model)
    width = p.d_model // p.n_heads
    columns = []
    for w_q, w_k, w_v, tau in zip(p.w_q, p.w_k, p.w_v, p.temperature, strict=True):
        logits = dots(x @ w_q, x @ w_k, edges.rows, edges.columns) / (np.sqrt(width) * tau)
        weights = sparse_attention(logits, edges)
        columns += [edges.sum(weights * value[edges.columns]) for value in (x @ w_v).T]
    outputs = np.stack(columns, axis=1) @ p.w_o
    return outputs / (np.linalg.norm(outputs, axis=1, keepdims=True) + _NORM_FLOOR)


def sparse_modulated(theta: np.ndarray, edges: Edges, p: ModulationParameters) -> np.ndarray:
    """K'_ij = (K_ij + K_ji)/2 (1 + lambda (1 + o_i . o_j) / 2) inside the band; shape (E,)."""
    assert edges.mean is not None
    units = sparse_unit_outputs(theta, edges, p)
    result = edges.mean.copy()
    result[edges.band] *= 1.0 + p.lambda_ * 0.5 * (1.0 + dots(units, units, *edges.pairs))
    return result


class ModulationPlan:
    """Modulation with given parameters of whatever coupling comes.

    Parameters
    ----------
    parameters : ModulationParameters
        Checked parameters.
    """

    def __init__(self, parameters: ModulationParameters) -> None:
        self.parameters = parameters

    def __call__(
        self, knm: object, theta: object, out: np.ndarray | None = None, algorithm: str = "auto"
    ) -> np.ndarray:
        """Return the modulated coupling. O(H N^2 d_h + N^2 d)."""
        refuse_moments(algorithm)
        coupling = as_coupling(knm)
        n = coupling.shape[0]
        phases = as_phases(theta, n)
        result = np.empty((n, n)) if out is None else as_output(out, n, knm, coupling)
        explain_coupling(coupling)
        explain_nonfinite(theta=phases)
        mask = neighbours(coupling, self.parameters.block_size)
        return modulated(coupling, phases, mask, self.parameters, result)

    def modulate_sparse(self, coupling: SparseCoupling, theta: np.ndarray) -> np.ndarray:
        """Return the modulated values of the stored entries, shape (E,). O(H E d_h + E d)."""
        explain_nonfinite(theta=theta)
        if self.parameters.lambda_ == 0.0:
            return coupling.data.copy()
        return sparse_modulated(theta, Edges(coupling, self.parameters.block_size), self.parameters)

    def factors_sparse(self, coupling: SparseCoupling, theta: np.ndarray) -> np.ndarray:
        """Return the unit outputs, shape (N, d)."""
        explain_nonfinite(theta=theta)
        return sparse_unit_outputs(theta, Edges(coupling, self.parameters.block_size), self.parameters)

    def bind(self, knm: object, algorithm: str = "auto") -> BoundModulation:
        """Return the modulation of a copy of `knm`."""
        refuse_moments(algorithm)
        return BoundModulation(self.parameters, knm)


class BoundModulation:
    """Modulation of one coupling, of which it keeps a copy.

    Parameters
    ----------
    parameters : ModulationParameters
        Checked parameters.
    knm : array_like, shape (N, N)
        Symmetric coupling with a zero diagonal.
    """

    def __init__(self, parameters: ModulationParameters, knm: object) -> None:
        coupling = as_coupling(knm)
        explain_coupling(coupling)
        self.parameters = parameters
        self.knm = coupling.copy()
        self.knm.flags.writeable = False
        self._mask = neighbours(self.knm, parameters.block_size)

    def __call__(self, theta: object, out: np.ndarray | None = None) -> np.ndarray:
        """Return the modulated coupling, shape (N, N)."""
        n = self.knm.shape[0]
        phases = self._phases(theta)
        result = np.empty((n, n)) if out is None else as_output(out, n, self.knm)
        return modulated(self.knm, phases, self._mask, self.parameters, result)

    def factors(self, theta: object) -> np.ndarray:
        """Return the unit outputs, shape (N, d)."""
        return unit_outputs(self._phases(theta), self._mask, self.parameters)

    def _phases(self, theta: object) -> np.ndarray:
        phases = as_phases(theta, self.knm.shape[0])
        explain_nonfinite(theta=phases)
        return phases


# ---------------------------------------------------------------- right-hand side


def wrap(theta: np.ndarray) -> np.ndarray:
    """Phases in [0, 2 pi); a value that rounds to 2 pi becomes 0."""
    with np.errstate(invalid="ignore"):  # an infinite phase becomes NaN, which the caller looks for
        wrapped = np.mod(theta, TWO_PI)
    wrapped[wrapped >= TWO_PI] = 0.0
    return wrapped


class Drift:
    """The right-hand side of a network, pair by pair.

    f_i = omega_i + sum_j K_ij sin(theta_j - theta_i - alpha_ij) + zeta sin(psi - theta_i), added up from left
    to right as written: the error estimate of rk45 is a difference of nearly equal numbers and shows the
    order of sums.

    Parameters
    ----------
    network : Network
        Frequencies, coupling, lags and drive.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.lag = network.uniform_alpha if network.alpha is None else network.alpha
        self._follow: Callable[[np.ndarray], np.ndarray] | None = None
        self._rows: np.ndarray | None = None  # of the stored entries, where the coupling is sparse
        if isinstance(network.knm, SparseCoupling):
            self._bind_sparse(network.knm, network.modulation)
        else:
            self._bind_dense(network.knm, network.modulation)

    def _bind_dense(self, knm: np.ndarray, p: ModulationParameters | None) -> None:
        self.knm = knm
        if p is not None:
            explain_coupling(knm)
            mask, result = neighbours(knm, p.block_size), np.empty_like(knm)
            self._follow = lambda theta: modulated(knm, theta, mask, p, result)

    def _bind_sparse(self, coupling: SparseCoupling, p: ModulationParameters | None) -> None:
        self.knm, self._rows, self._columns = coupling.data, coupling.rows(), coupling.indices
        self._terms = np.concatenate([np.arange(coupling.n), self._rows])  # omega_i comes first
        if p is not None and p.lambda_ != 0.0:
            edges = Edges(coupling, p.block_size)
            self._follow = lambda theta: sparse_modulated(theta, edges, p)

    def follow(self, theta: np.ndarray) -> None:
        """Modulate the coupling by the phases."""
        if self._follow is not None:
            self.knm = self._follow(theta)

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        """Return d theta / dt, rad per time unit; O(N^2), with N^2 sines, or O(E) for E stored entries."""
        net = self.network
        pull = self._dense_pull(theta) if self._rows is None else self._sparse_pull(theta)
        return pull + net.zeta * np.sin(net.psi - theta) if net.zeta else pull

    def _dense_pull(self, theta: np.ndarray) -> np.ndarray:
        n = theta.size
        angles = np.subtract.outer(theta, theta).T  # entry (i, j) is theta_j - theta_i
        terms = np.empty((n, n + 1))
        terms[:, 0] = self.network.omega
        np.multiply(self.knm, np.sin(angles - self.lag), out=terms[:, 1:])
        return np.cumsum(terms, axis=1, out=terms)[:, -1].copy()

    def _sparse_pull(self, theta: np.ndarray) -> np.ndarray:
        pulls = self.knm * np.sin(theta[self._columns] - theta[self._rows] - self.lag)
        return np.bincount(self._terms, np.concatenate([self.network.omega, pulls]), minlength=theta.size)


# ---------------------------------------------------------------- steps

RightHandSide = Callable[[np.ndarray], np.ndarray]
_DP_A = tuple(tuple(map(float, row)) for row in DORMAND_PRINCE.a)
_DP_EMBEDDED = tuple(float(b - e) for b, e in zip(DORMAND_PRINCE.b, DORMAND_PRINCE.error or (), strict=True))


def euler_step(f: RightHandSide, theta: np.ndarray, dt: float) -> np.ndarray:
    """One explicit Euler step."""
    return theta + dt * f(theta)


def rk4_step(f: RightHandSide, theta: np.ndarray, dt: float) -> np.ndarray:
    """One step of the classical fourth-order Runge-Kutta method."""
    k1 = f(theta)
    k2 = f(theta + 0.5 * dt * k1)
    k3 = f(theta + 0.5 * dt * k2)
    k4 = f(theta + dt * k3)
    return theta + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def rk45_attempt(
    f: RightHandSide, theta: np.ndarray, dt: float, k1: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One Dormand-Prince attempt: the unwrapped new state, its error |y5 - y4|, and the slope there.

    That slope is taken at the wrapped state, so that it has the bits of the next step's first stage.
    """
    slopes = [k1]
    for row in _DP_A[1:-1]:
        slopes.append(f(theta + dt * _weighted(row, slopes)))
    state = theta + dt * _weighted(_DP_A[-1], slopes)
    slopes.append(f(wrap(state)))
    embedded = theta + dt * _weighted(_DP_EMBEDDED, slopes)
    return state, np.abs(state - embedded), slopes[-1]


def _weighted(weights: tuple[float, ...], slopes: list[np.ndarray]) -> np.ndarray:
    total = weights[0] * slopes[0]
    for weight, slope in zip(weights[1:], slopes[1:], strict=True):
        if weight:
            total += weight * slope
    return total


class Integration:
    """One trajectory being advanced.

    Parameters
    ----------
    n : int
        Number of oscillators.
    method : {"euler", "rk4", "rk45"}
        Integrator.
    dt : float
        Step size; for rk45 the first one, and a tenth of the largest.
    atol, rtol : float
        Tolerances of rk45.

    Attributes
    ----------
    theta : ndarray, shape (n,), radians
        Current state, wrapped to [0, 2 pi).
    t : float
        Current time.
    dt : float
        Step that will be tried next.
    step : int
        Steps taken since `start`.
    """

    def __init__(self, n: int, method: str, dt: float, atol: float, rtol: float) -> None:
        self._method, self._dt0, self._atol, self._rtol = method, dt, atol, rtol
        self._drift: Drift | None = None
        self.start(np.zeros(n))

    def set_network(self, network: Network) -> None:
        """Take a right-hand side; a coupling to be modulated must be symmetric with a zero diagonal."""
        self._modulated = network.modulation is not None
        if network.modulation is not None:
            refuse_moments(network.modulation.algorithm)
        self._drift = Drift(network)
        self._stale = True
        self._slope: np.ndarray | None = None

    def start(self, theta: np.ndarray) -> None:
        """Begin at time 0 from `theta`, which is wrapped."""
        self.theta = wrap(np.asarray(theta, dtype=np.float64))
        self.t, self.step, self.dt = 0.0, 0, self._dt0
        self._stale = True  # a modulated coupling kept from another run does not belong to this one
        self._slope = None

    def advance(self, n_steps: int, record: Record | None = None) -> int:
        """Take steps until `n_steps` are done or the state turns non-finite; return a `Status`."""
        record = record or Record()
        with np.errstate(invalid="ignore", over="ignore"):
            for _ in range(n_steps):
                self._observe(record)
                if not self._take_step():
                    return Status.NONFINITE_STATE
                self._store(record)
            self._observe(record)
        return Status.OK

    def _take_step(self) -> bool:
        assert self._drift is not None
        self._follow_phases(self._drift)
        if self._method == "rk45":
            return self._rk45_step(self._drift)
        formula = euler_step if self._method == "euler" else rk4_step
        state = formula(self._drift, self.theta, self._dt0)
        return self._accept(state, (self.step + 1) * self._dt0)

    def _follow_phases(self, drift: Drift) -> None:
        """Modulate the coupling from the phases at the start of this step, if it is this step's turn."""
        if not self._modulated:
            return
        if self._stale or self.step % drift.network.modulate_every == 0:
            drift.follow(self.theta)
            self._stale, self._slope = False, None

    def _rk45_step(self, drift: Drift) -> bool:
        first = drift(self.theta) if self._slope is None else self._slope
        dt = self.dt
        for _ in range(4):
            tried = dt
            state, error, last = rk45_attempt(drift, self.theta, tried, first)
            scale = self._atol + self._rtol * np.maximum(np.abs(self.theta), np.abs(state))
            ratio = float(np.max(error / scale, initial=0.0))
            if ratio <= 1.0:
                factor = min(5.0, 0.9 * ratio**-0.2) if ratio > 0.0 else 5.0
                dt = min(tried * factor, 10.0 * self._dt0)
                break
            dt = tried * max(0.2, 0.9 * ratio**-0.25)  # a NaN ratio shrinks by the 0.2
        if not self._accept(state, self.t + tried):
            return False
        self.dt, self._slope = dt, last
        return True

    def _accept(self, state: np.ndarray, t: float) -> bool:
        state = wrap(state)
        if not np.isfinite(state).all():
            return False
        self.theta, self.t = state, t
        self.step += 1
        return True

    def _observe(self, record: Record) -> None:
        if record.t_observe is not None:
            record.t_observe[self.step] = self.t
        if record.R is None and record.psi is None:
            return
        r, psi = order_parameter(self.theta[None, :])
        if record.R is not None:
            record.R[self.step] = r[0]
        if record.psi is not None:
            record.psi[self.step] = psi[0]

    def _store(self, record: Record) -> None:
        if not record.every or self.step % record.every:
            return
        row = self.step // record.every
        if record.theta is not None:
            record.theta[row] = self.theta
        if record.t is not None:
            record.t[row] = self.t


# ---------------------------------------------------------------- order parameter


def _exact_sums(rows: np.ndarray) -> np.ndarray:
    """Sum of each row, rounded once where the platform has a wider type."""
    return rows.sum(axis=1, dtype=np.longdouble).astype(np.float64)


def order_parameter(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R and psi of each row of `theta`, shape (T, N); temporaries of 2 MB whatever T is."""
    rows, n = theta.shape
    r, psi = np.zeros(rows), np.zeros(rows)
    if n == 0:
        return r, psi
    block = max(1, _ROW_BLOCK // n)
    for start in range(0, rows, block):
        part = slice(start, start + block)
        sine, cosine = (_exact_sums(f(theta[part])) for f in (np.sin, np.cos))
        r[part] = np.minimum(1.0, np.hypot(sine, cosine) / n)
        psi[part] = wrap(np.arctan2(sine, cosine))
    return r, psi
