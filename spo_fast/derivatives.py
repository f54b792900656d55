"""Vector-Jacobian products of a modulation and of a trajectory: gradients of any number made of a result.

What a result L depends on is found backwards (reverse-mode differentiation): from the gradient G of L at the
result come those at all arguments, for the price of a few evaluations whatever their number is.

Of a modulation, with S = (G + G^T) / 2 off the diagonal and 0 on it,

    dK = S (1 + lambda a),   dlambda = sum S K a,   da = lambda S K,

and from da back through o_i . o_j, the lengths |O_i|, W_O, the softmax, the projections and x(theta). The
entries of K count as independent of each other, and the mask, which edges there are, does not move: where
there is no edge dK is S, what a new edge would do if attention did not see it.

A trajectory is gone back step by step through the stages of the method. Wrapping phases to [0, 2 pi) has
derivative 1. Only some of its states are kept, and the others computed anew from these (A. Griewank,
A. Walther, Evaluating Derivatives, SIAM 2008, chapter 12).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from spo_fast.backends import derivatives as backends
from spo_fast.backends import registry
from spo_fast.backends.derivatives.flow import KEPT, STAGES, Flow, Gradients
from spo_fast.backends.reference import wrap
from spo_fast.kuramoto import simulate
from spo_fast.modulation import Modulator, checked_parameters
from spo_fast.runs import METHODS, load_backend, right_hand_side
from spo_fast.validation import (
    Network,
    SparseCoupling,
    as_coupling,
    as_phases,
    as_sparse_coupling,
    choice,
    describe,
    explain_network,
    explain_nonfinite,
    integer,
    is_scalar,
    is_sparse,
    number,
    plain_matrix,
    real_array,
    same_pattern,
)

_TAPE_BYTES = 1 << 26  # of a tape that is kept whole rather than in segments
_PIECE = 1 << 23  # couplings evaluated, at some ns for four, before Python is asked for Ctrl-C
_WEIGHTS = ("w_q", "w_k", "w_v", "w_o")


@dataclass(frozen=True, slots=True, eq=False)
class ModulationGradients:
    """Gradients at the arguments of `modulate`, by their names.

    Attributes
    ----------
    knm : ndarray or csr matrix, shape (N, N)
        At the coupling, its entries taken as independent of each other; 0 on the diagonal. Symmetric where
        the edges are.
    theta : ndarray, shape (N,)
        At the phases.
    w_q, w_k, w_v : ndarray, shape (H, d, d/H)
        At the projections, also at those that were drawn.
    w_o : ndarray, shape (d, d)
        At the output projection.
    temperature : float or ndarray, shape (H,)
        As the temperature was given.
    lambda_ : float
        At the strength.
    """

    knm: Any
    theta: np.ndarray
    w_q: np.ndarray
    w_k: np.ndarray
    w_v: np.ndarray
    w_o: np.ndarray
    temperature: Any
    lambda_: float


@dataclass(frozen=True, slots=True, eq=False)
class SimulationGradients:
    """Gradients at the arguments of `simulate`, by their names.

    Attributes
    ----------
    theta : ndarray, shape (N,)
        At the initial phases.
    omega : float or ndarray, shape (N,)
        At the frequencies, as they were given.
    knm : ndarray or csr matrix, shape (N, N)
        At the coupling, its entries taken as independent of each other.
    alpha : None, float, ndarray or csr matrix, shape (N, N)
        At the lag, as it was given.
    zeta, psi : float
        At strength and phase of the drive.
    w_q, w_k, w_v, w_o : ndarray, or None
        At the projections of the modulation; None without one.
    temperature : float, ndarray of shape (H,), or None
        As it was given; of a `Modulator` (H,).
    lambda_ : float or None
        At the strength of the modulation.
    """

    theta: np.ndarray
    omega: Any
    knm: Any
    alpha: Any
    zeta: float
    psi: float
    w_q: np.ndarray | None = None
    w_k: np.ndarray | None = None
    w_v: np.ndarray | None = None
    w_o: np.ndarray | None = None
    temperature: Any = None
    lambda_: float | None = None


# ---------------------------------------------------------------- modulation


def modulate_vjp(
    knm: Any,
    theta: Any,
    grad_out: Any,
    w_q: Any = None,
    w_k: Any = None,
    w_v: Any = None,
    w_o: Any = None,
    *,
    n_heads: int = 4,
    block_size: int | None = None,
    temperature: Any = 1.0,
    lambda_: float = 0.5,
    projection_seed: int = 0,
    backend: str | None = None,
    workers: int = 1,
) -> ModulationGradients:
    """Gradients of sum(out * grad_out) for out = modulate(knm, theta, ...).

    Parameters
    ----------
    knm, theta, w_q, w_k, w_v, w_o, n_heads, block_size, temperature, lambda_, projection_seed
        As for `modulate`.
    grad_out : array_like or SciPy sparse matrix, shape (N, N)
        Gradient at the result; for a sparse `knm` with the stored entries of the result.
    backend : {"auto", "cython", "numba", "numpy"}, optional
        The fastest available by default.
    workers : int
        Threads that may share the work ("cython" alone): the same bits for any number.

    Returns
    -------
    ModulationGradients
        An attribute for each argument.

    Raises
    ------
    ValueError
        As `modulate`, and if `grad_out` is not of the result's shape, not finite, or of other stored entries.
    RuntimeError
        If the backend asked for cannot be loaded.

    Notes
    -----
    The mask is a constant, whatever the coupling is: at an absent edge, or outside the band, the gradient is
    (G_ij + G_ji) / 2. Attention is computed anew pair by pair, so the cost is that of some four modulations
    by the direct algorithm: 2 N^2 H exponentials and N^2 (9 d + 8) multiply-adds, or E in place of N^2 for E
    stored entries. Memory is O(N^2) for K and its gradient and O(N d) besides.

    Examples
    --------
    >>> found = modulate_vjp([[0.0, 1.0], [1.0, 0.0]], [0.0, 0.5], [[0.0, 1.0], [0.0, 0.0]])
    >>> found.knm.shape, found.w_q.shape
    ((2, 2), (4, 8, 2))
    """
    module = backends.load(backend)
    crew = integer(workers, "workers", 1)
    p = checked_parameters(
        (w_q, w_k, w_v, w_o), n_heads, block_size, temperature, lambda_, projection_seed, module.NAME
    )
    knm, grad_out = plain_matrix(knm), plain_matrix(grad_out, "grad_out")
    if is_sparse(knm):
        coupling = as_sparse_coupling(knm, symmetric=True)
        phases = as_phases(theta, coupling.n)
        given = _sparse_gradient(grad_out, coupling)
        mirror = backends.mirror_of(coupling)
        found = module.modulate_sparse_vjp(coupling, mirror, phases, given, p, workers=crew)
        found["knm"] = coupling.with_data(found["knm"])
    else:
        dense = as_coupling(knm)
        phases = as_phases(theta, dense.shape[0])
        given = _dense_gradient(grad_out, dense)
        found = module.modulate_vjp(dense, phases, given, p, workers=crew)
    return ModulationGradients(**_as_given(found, temperature))


def _dense_gradient(grad_out: Any, knm: np.ndarray) -> np.ndarray:
    given = as_coupling(grad_out, "grad_out")
    if given.shape != knm.shape:
        raise ValueError(f"grad_out must have shape {knm.shape}, got {given.shape}")
    explain_nonfinite(grad_out=given)
    return given


def _sparse_gradient(grad_out: Any, coupling: SparseCoupling) -> np.ndarray:
    if not is_sparse(grad_out):
        raise ValueError(
            f"grad_out must be a sparse matrix with the entries of the result, got {describe(grad_out)}"
        )
    given = as_sparse_coupling(grad_out, "grad_out")
    if given.n != coupling.n or not same_pattern(given, coupling):
        raise ValueError(
            f"grad_out must have the {coupling.data.size} stored entries of the result, "
            f"got {given.data.size} of shape {(given.n, given.n)}"
        )
    return given.data


def _as_given(found: Gradients, temperature: Any) -> Gradients:
    """Gradients with one number for a temperature that is one."""
    if is_scalar(temperature):
        found["temperature"] = float(found["temperature"].sum())
    return found


# ---------------------------------------------------------------- trajectories


def simulate_vjp(
    theta: Any,
    omega: Any,
    knm: Any,
    grad_out: Any,
    *,
    dt: float,
    n_steps: int,
    method: str = "rk4",
    alpha: Any = None,
    zeta: float = 0.0,
    psi: float = 0.0,
    modulation: Modulator | dict[str, Any] | None = None,
    modulate_every: int = 1,
    record_every: int | None = None,
    checkpoint_every: int | None = None,
    backend: str | None = None,
    workers: int = 1,
) -> SimulationGradients:
    """Gradients of sum(result.final * grad_out) for result = simulate(theta, omega, knm, ...).

    Parameters
    ----------
    theta : array_like, shape (N,), radians
        Initial phases of one trajectory.
    omega, knm, dt, n_steps, alpha, zeta, psi, modulation, modulate_every, record_every
        As for `simulate`.
    grad_out : array_like, shape (N,) or (samples, N)
        Gradient at `Simulation.final`, or at all stored states, `Simulation.theta`.
    method : {"rk4", "euler"}
        One of the methods with fixed steps.
    checkpoint_every : int, optional
        Steps from one kept state to the next, rounded up to a multiple of `modulate_every`. By default as
        many as fit 64 MiB, and ceil(sqrt(n_steps)) where that is more. The result is the same to the last
        bit.
    backend : {"auto", "cython", "numba", "numpy"}, optional
        The Modulator's, or else the fastest available, by default.
    workers : int
        Threads that may share the work of the modulation ("cython" alone): the same bits for any number.

    Returns
    -------
    SimulationGradients
        An attribute for each argument.

    Raises
    ------
    ValueError
        As `simulate`; for an ensemble; for rk45, whose choice of steps has no derivative where it changes;
        if `grad_out` is of the wrong shape or not finite.
    SimulationError
        If the state turns non-finite.
    RuntimeError
        If the backend asked for cannot be loaded.

    Notes
    -----
    Four times the cost of the run, three where the tape is kept whole: each stage once or twice forward, once
    back through K^T, and once for the gradient at K. With modulation two or three modulations and one
    `modulate_vjp` for each `modulate_every` steps. Memory is O(sqrt(n_steps) N) for the states, four numbers
    for each oscillator and stage of a segment, and O(N^2), or O(E), for the gradient at K.

    Examples
    --------
    >>> pair = [[0.0, 1.0], [1.0, 0.0]]
    >>> found = simulate_vjp([0.0, 1.0], 1.0, pair, [1.0, 1.0], dt=0.1, n_steps=10)
    >>> found.theta.sum().round(12), round(found.omega, 12)
    (np.float64(2.0), 2.0)
    """
    choice(method, "method", METHODS)
    if method == "rk45":
        raise ValueError(
            "method must be 'euler' or 'rk4' for derivatives, got 'rk45': it chooses its steps by their "
            "errors, and that choice has no derivative"
        )
    crew = integer(workers, "workers", 1)
    steps = integer(n_steps, "n_steps", 0)
    step_size = number(dt, "dt", positive=True)
    phases = real_array(theta, "theta")
    if phases.ndim != 1:
        raise ValueError(f"theta must have shape (N,) for derivatives, got {phases.shape}")
    net = right_hand_side(phases.size, omega, knm, alpha, zeta, psi, modulation, modulate_every)
    explain_nonfinite(theta=phases)
    explain_network(net)
    every = 0 if record_every is None else integer(record_every, "record_every", 1)
    rows = _rows_of(grad_out, phases.size, steps, every)
    chosen = None if checkpoint_every is None else integer(checkpoint_every, "checkpoint_every", 1)
    module = backends.load(load_backend(backend, modulation).NAME)
    back = _Return(module, net, method, step_size, steps, crew, chosen)
    if not back.follow(phases):
        settings = {"alpha": alpha, "zeta": zeta, "psi": psi, "modulation": modulation}
        settings |= {"modulate_every": modulate_every, "method": method, "backend": module.NAME}
        simulate(theta, omega, knm, dt=dt, n_steps=n_steps, **settings)  # tells where it failed, and raises
    return back.gradients(rows, every, omega, alpha, modulation)


def _rows_of(grad_out: Any, n: int, steps: int, every: int) -> np.ndarray:
    """Gradients at the stored states, shape (samples, N); of the last one alone, shape (1, N)."""
    given = real_array(grad_out, "grad_out")
    samples = 1 + (steps // every + bool(steps % every) if every else bool(steps))
    if given.shape not in ((n,), (samples, n)):
        raise ValueError(f"grad_out must have shape ({n},) or ({samples}, {n}), got {given.shape}")
    explain_nonfinite(grad_out=given)
    return given if given.ndim == 2 else given[None, :]


class _Return:
    """A trajectory that was followed, and the way back.

    It is cut into segments, whose first states are kept, and these into periods in which the coupling is the
    same: all of a segment without modulation.

    Parameters
    ----------
    module : module
        Backend of derivatives.
    net : Network
        Checked right-hand side.
    method, dt, steps
        The run.
    workers : int
        Threads of the modulation.
    chosen : int or None
        Steps of a segment, if the caller chose them.
    """

    def __init__(
        self, module: Any, net: Network, method: str, dt: float, steps: int, workers: int, chosen: int | None
    ) -> None:
        self._module, self._net, self._steps, self._workers = module, net, steps, workers
        n = net.omega.size
        self._flow: Flow = module.Flow(net, method, dt)
        self._piece = max(1, _PIECE // max(1, STAGES[method] * (self._flow.entries + 16 * n)))
        whole = _TAPE_BYTES // max(1, STAGES[method] * KEPT * n * 8)
        self._stride = max(math.isqrt(max(0, steps - 1)) + 1, min(steps, whole)) if chosen is None else chosen
        self._period = self._stride
        self._sums: Gradients = {}
        self._marks: list[np.ndarray] = []  # first states of the segments,
        self._starts: list[np.ndarray] = []  # and of the periods of the segment on the tape
        self._coupled: int | None = None  # first step of the period whose coupling the flow has
        self._symmetric = not isinstance(net.knm, SparseCoupling) and np.array_equal(net.knm, net.knm.T)
        if net.modulation is None:
            values = net.knm.data if isinstance(net.knm, SparseCoupling) else net.knm
            self._flow.couple(values, symmetric=self._symmetric)
        else:
            self._symmetric |= net.modulation.lambda_ > 0.0  # so it is made
            self._period = net.modulate_every
            self._stride = -(-self._stride // self._period) * self._period
            self._set_modulation(replace(net.modulation, workers=workers))
        self._stride = min(self._stride, max(steps, 1))
        self._flow.make_room(self._stride)

    def _set_modulation(self, p: Any) -> None:
        self._parameters = p
        plan = registry.load(self._module.NAME).ModulationPlan(p)
        knm = self._net.knm
        if isinstance(knm, SparseCoupling):
            self._mirror = backends.mirror_of(knm)
            self._modulate = lambda theta: plan.modulate_sparse(knm, theta)
        else:
            bound, self._modulated = plan.bind(knm, p.algorithm), np.empty_like(knm)
            self._modulate = lambda theta: bound(theta, self._modulated)

    # ------------------------------------------------------------ there

    def follow(self, theta: np.ndarray) -> bool:
        """Keep the first state of each segment; return whether the last state is finite.

        The last segment is left on the tape.
        """
        state = wrap(theta)
        for start in range(0, max(self._steps, 1), self._stride):
            self._marks.append(state.copy())
            self._follow_segment(state, start, keep=start + self._stride >= self._steps)
        return bool(np.isfinite(state).all())

    def _follow_segment(self, state: np.ndarray, start: int, *, keep: bool) -> None:
        self._starts = []
        stop = min(start + self._stride, self._steps)
        for first in range(start, stop, self._period):
            if self._net.modulation is not None:
                self._starts.append(state.copy())
                self._couple(first, state)
            for step, count in self._pieces(first, min(first + self._period, stop)):
                self._flow.follow(state, count, step - start if keep else None)

    def _couple(self, first: int, state: np.ndarray) -> None:
        """Have the flow go through the coupling of a period that starts at this state."""
        if self._coupled != first and np.isfinite(state).all():
            self._flow.couple(self._modulate(state), symmetric=self._symmetric)
            self._coupled = first

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Steps from start to stop in pieces of some ms: first step and number."""
        for step in range(start, stop, self._piece):
            yield step, min(self._piece, stop - step)

    # ------------------------------------------------------------ and back

    def gradients(
        self, rows: np.ndarray, every: int, omega: Any, alpha: Any, modulation: Any
    ) -> SimulationGradients:
        """Go all the way back from the gradients at the stored states."""
        grad = rows[-1].copy()
        others = rows[:-1]
        for segment in reversed(range(len(self._marks))):
            start = segment * self._stride
            if start + self._stride < self._steps:
                self._follow_segment(self._marks[segment].copy(), start, keep=True)
            self._return_segment(grad, start, others, every)
        flow, net = self._flow, self._net
        if net.modulation is None:
            self._sums["knm"] = flow.gradient()
        elif not self._steps:
            self._sums = self._no_sums()
        lags = flow.alpha
        found = self._sums | {
            "theta": grad,
            "omega": float(flow.omega.sum()) if is_scalar(omega) else flow.omega,
            "zeta": float(flow.slopes[1]),
            "psi": float(flow.slopes[2]),
            "alpha": lags if alpha is None or lags is not None else float(flow.slopes[0]),
        }
        if isinstance(net.knm, SparseCoupling):
            for name in ("knm", "alpha"):
                if isinstance(found[name], np.ndarray):
                    found[name] = net.knm.with_data(found[name])
        if isinstance(modulation, dict):
            _as_given(found, modulation.get("temperature", 1.0))
        return SimulationGradients(**found)

    def _no_sums(self) -> Gradients:
        """Gradients of a modulation that was never made."""
        p, knm = self._parameters, self._net.knm
        found: Gradients = {name: np.zeros_like(getattr(p, name)) for name in (*_WEIGHTS, "temperature")}
        values = knm.data if isinstance(knm, SparseCoupling) else knm
        return found | {"knm": np.zeros_like(values), "lambda_": 0.0}

    def _return_segment(self, grad: np.ndarray, start: int, others: np.ndarray, every: int) -> None:
        """Turn the gradient at the state after a segment, in place, into that at its first state."""
        stop = min(start + self._stride, self._steps)
        for first in reversed(range(start, stop, self._period)):
            if self._net.modulation is not None:
                self._couple(first, self._starts[(first - start) // self._period])
            for begin, end in reversed(list(_between_rows(first, min(first + self._period, stop), every))):
                for step, count in reversed(list(self._pieces(begin, end))):
                    self._flow.go_back(grad, count, step - start)
                if len(others) and (begin == 0 or (every and begin % every == 0)):
                    grad += others[begin // every if every else 0]
            if self._net.modulation is not None:
                grad += self._return_modulation(self._starts[(first - start) // self._period])

    def _return_modulation(self, state: np.ndarray) -> np.ndarray:
        """Add up what a period's gradient at K' gives, and return what it gives at the phases."""
        given, p, knm = self._flow.gradient(), self._parameters, self._net.knm
        if isinstance(knm, SparseCoupling):
            found = self._module.modulate_sparse_vjp(
                knm, self._mirror, state, given, p, workers=self._workers
            )
        else:
            found = self._module.modulate_vjp(knm, state, given, p, workers=self._workers)
        self._flow.clear()
        at_phases: np.ndarray = found.pop("theta")
        for name, value in found.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        return at_phases


def _between_rows(start: int, stop: int, every: int) -> Iterator[tuple[int, int]]:
    """Cut the steps from start to stop where a state is stored."""
    cuts = [start, *range((start // every + 1) * every, stop, every), stop] if every else [start, stop]
    yield from pairwise(cuts)
