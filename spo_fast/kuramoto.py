"""Kuramoto-Sakaguchi networks in time.

d theta_i / dt = omega_i + sum_j K_ij sin(theta_j - theta_i - alpha_ij) + zeta sin(psi - theta_i):
row i of the coupling is pulled by its columns.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast.backends import registry
from spo_fast.backends.record import Record
from spo_fast.backends.status import Status
from spo_fast.modulation import Modulator, parameters_from_keywords
from spo_fast.validation import (
    Network,
    as_coupling,
    as_phases,
    choice,
    describe,
    explain_nonfinite,
    integer,
    network,
    number,
)

if TYPE_CHECKING:
    import xarray

METHODS = ("euler", "rk4", "rk45")
OBSERVABLES = ("R", "psi")

_PIECE_SECONDS = 0.05  # a run returns to Python this often, where Ctrl-C is answered
_PIECE_GROWTH = 8  # a piece grows at most so many times over the last one, whose time may be a lucky one


@dataclass(eq=False, repr=False)
class Simulation:
    """What a simulation recorded.

    Attributes
    ----------
    t : ndarray, shape (samples,)
        Times of the stored states.
    theta : ndarray, shape (samples, N), radians
        Stored states, wrapped to [0, 2 pi).
    t_observe : ndarray, shape (n_steps + 1,), or None
        Times of the observations; None where nothing was observed.
    R : ndarray, shape (n_steps + 1,), or None
        Order parameter at every step.
    psi : ndarray, shape (n_steps + 1,), radians, or None
        Mean phase at every step.
    final : ndarray, shape (N,), radians
        The last state.
    dt : float
        Step size that a next step would try.
    method, backend : str
        How it was computed.
    """

    t: np.ndarray
    theta: np.ndarray
    t_observe: np.ndarray | None
    R: np.ndarray | None
    psi: np.ndarray | None
    final: np.ndarray
    dt: float
    method: str
    backend: str

    def __repr__(self) -> str:
        samples, n = self.theta.shape
        return (
            f"<Simulation: N={n}, {samples} states up to t={self.t[-1]:g}, "
            f"method={self.method!r}, backend={self.backend!r}>"
        )

    def to_xarray(self) -> xarray.Dataset:
        """Return the recorded arrays as a labelled dataset with dimensions t, oscillator and t_observe.

        Raises
        ------
        ImportError
            If xarray is not installed, naming the extra.
        """
        try:
            import xarray
        except ImportError as error:
            raise ImportError("to_xarray needs xarray: pip install 'spo-fast[xarray]'") from error
        variables: dict[str, Any] = {"theta": (("t", "oscillator"), self.theta, {"units": "rad"})}
        coordinates: dict[str, Any] = {"t": self.t, "oscillator": np.arange(self.theta.shape[1])}
        if self.t_observe is not None:
            coordinates["t_observe"] = self.t_observe
        if self.R is not None:
            variables["R"] = ("t_observe", self.R)
        if self.psi is not None:
            variables["psi"] = ("t_observe", self.psi, {"units": "rad"})
        attributes = {"dt": self.dt, "method": self.method, "backend": self.backend}
        return xarray.Dataset(variables, coordinates, attributes)

    def plot(self, axes: Any = None) -> np.ndarray:
        """Draw R over time above the phases over time.

        Parameters
        ----------
        axes : sequence of two matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        ndarray of Axes, shape (2,)
            Where it was drawn.

        Raises
        ------
        ValueError
            If R was not observed, or `axes` does not hold two Axes.
        ImportError
            If Matplotlib is not installed, naming the extra.
        """
        from spo_fast.plotting import plot_simulation

        return plot_simulation(self, axes)


class SimulationError(RuntimeError):
    """A state turned non-finite.

    Attributes
    ----------
    result : Simulation
        Everything up to the last good state.
    """

    def __init__(self, message: str, result: Simulation) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result)


# ---------------------------------------------------------------- engine


class Engine:
    """An integrator that is stepped by hand.

    Parameters
    ----------
    n_oscillators : int
        N, at least 0.
    dt : float
        Step size; for rk45 the first one, and a tenth of the largest.
    method : {"euler", "rk4", "rk45"}
        Explicit Euler, classical Runge-Kutta, or Dormand-Prince 5(4) with a step size of its own.
    atol, rtol : float
        Tolerances of rk45: atol positive, rtol at least 0.
    backend : str, optional
        One of those `spo_fast.backends` lists; the fastest available by default.

    Attributes
    ----------
    last_dt : float
        Step size that the next step will try; rk45 carries it from call to call.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or range.
    RuntimeError
        If the backend asked for cannot be loaded.

    Examples
    --------
    >>> engine = Engine(2, 0.1)
    >>> engine.step([0.0, 1.0], [1.0, 1.0], [[0.0, 0.0], [0.0, 0.0]])
    array([0.1, 1.1])
    """

    def __init__(
        self,
        n_oscillators: int,
        dt: float,
        method: str = "euler",
        atol: float = 1e-6,
        rtol: float = 1e-3,
        *,
        backend: str | None = None,
    ) -> None:
        self.n_oscillators = integer(n_oscillators, "n_oscillators", 0)
        self.dt = number(dt, "dt", positive=True)
        self.method = choice(method, "method", METHODS)
        self.atol = number(atol, "atol", positive=True)
        self.rtol = number(rtol, "rtol", minimum=0.0)
        module = registry.load(backend)
        self.backend: str = module.NAME
        self._last_dt = self.dt
        self._integration = module.Integration(self.n_oscillators, self.method, self.dt, self.atol, self.rtol)

    @property
    def last_dt(self) -> float:
        """Step size that the next step will try."""
        return self._last_dt

    def step(
        self, phases: Any, omegas: Any, knm: Any, zeta: float = 0.0, psi: float = 0.0, alpha: Any = None
    ) -> np.ndarray:
        """Take one step.

        Parameters
        ----------
        phases : array_like, shape (N,), radians
            State; wrapped on entry.
        omegas : float or array_like, shape (N,), rad per time unit
            Natural frequencies.
        knm : array_like, shape (N, N), rad per time unit
            Coupling, which may be asymmetric.
        zeta, psi : float
            Strength (rad per time unit) and phase (radians) of the external drive.
        alpha : None, float or array_like, shape (N, N), radians
            Phase lag.

        Returns
        -------
        ndarray, shape (N,), radians
            New state, wrapped to [0, 2 pi).

        Raises
        ------
        ValueError
            If an argument is of the wrong kind or shape, or not finite.
        SimulationError
            If the new state is not finite although the input is.

        Notes
        -----
        O(N^2) for each stage of the method.
        """
        integration = self._begin(phases, omegas, knm, zeta, psi, alpha)
        status = integration.advance(1)
        if status != Status.OK:
            self._fail(status, phases, omegas, knm, alpha)
        return self._end()

    def run(
        self,
        phases: Any,
        omegas: Any,
        knm: Any,
        zeta: float = 0.0,
        psi: float = 0.0,
        alpha: Any = None,
        n_steps: int = 1,
    ) -> np.ndarray:
        """Take `n_steps` steps.

        Parameters
        ----------
        phases, omegas, knm, zeta, psi, alpha
            As for `step`.
        n_steps : int
            At least 0.

        Returns
        -------
        ndarray, shape (N,), radians
            Last state, wrapped to [0, 2 pi).

        Raises
        ------
        ValueError
            If an argument is of the wrong kind or shape, or not finite.
        SimulationError
            If a state turns non-finite, with the step and the time.
        """
        count = integer(n_steps, "n_steps", 0)
        integration = self._begin(phases, omegas, knm, zeta, psi, alpha)
        if count == 0:
            explain_nonfinite(phases=integration.theta)
        status = _advance(integration, count, None)
        if status != Status.OK:
            self._fail(status, phases, omegas, knm, alpha)
        return self._end()

    def _begin(self, phases: Any, omegas: Any, knm: Any, zeta: Any, psi: Any, alpha: Any) -> Any:
        n, integration = self.n_oscillators, self._integration
        integration.set_network(network(n, omegas, knm, alpha, zeta, psi, omega_name="omegas"))
        integration.start(as_phases(phases, n, "phases"))
        integration.dt = self._last_dt
        return integration

    def _end(self) -> np.ndarray:
        integration = self._integration
        self._last_dt = float(integration.dt)
        return integration.theta.copy()

    def _fail(self, status: int, phases: Any, omegas: Any, knm: Any, alpha: Any) -> None:
        """Blame the input if it is not finite, else the run; the step size stays what it was before."""
        integration, n = self._integration, self.n_oscillators
        if integration.step == 0:
            given = network(n, omegas, knm, alpha, 0.0, 0.0, omega_name="omegas")
            explain_nonfinite(phases=as_phases(phases, n, "phases"), knm=given.knm, omegas=given.omega)
            if given.alpha is not None:
                explain_nonfinite(alpha=given.alpha)
        state = np.array(integration.theta)
        result = Simulation(
            np.array([float(integration.t)]),
            state[None, :].copy(),
            None,
            None,
            None,
            state,
            float(integration.dt),
            self.method,
            self.backend,
        )
        _raise_failure(status, integration, result)

    def __repr__(self) -> str:
        settings = f"dt={self.dt:g}, method={self.method!r}, backend={self.backend!r}"
        return f"<Engine: N={self.n_oscillators}, {settings}>"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_integration"]  # scratch of the backend, rebuilt on arrival
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        module = registry.load(self.backend)
        self._integration = module.Integration(self.n_oscillators, self.method, self.dt, self.atol, self.rtol)


# ---------------------------------------------------------------- simulate


def simulate(
    theta: Any,
    omega: Any,
    knm: Any,
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
    observe: Iterable[str] = ("R",),
    atol: float = 1e-6,
    rtol: float = 1e-3,
    backend: str | None = None,
    workers: int = 1,
    progress: bool = False,
) -> Simulation:
    """Follow a network from `theta` for `n_steps` steps.

    Parameters
    ----------
    theta : array_like, shape (N,), radians
        Initial phases, any real values.
    omega : float or array_like, shape (N,), rad per time unit
        Natural frequencies.
    knm : array_like, shape (N, N), rad per time unit
        Coupling; it may be asymmetric unless it is modulated. None where a `Modulator` brings its own.
    dt : float
        Step size; for rk45 the first one, and a tenth of the largest.
    n_steps : int
        Steps taken, at least 0; failed attempts of rk45 do not count.
    method : {"euler", "rk4", "rk45"}
        Explicit Euler, classical Runge-Kutta, or Dormand-Prince 5(4).
    alpha : None, float or array_like, shape (N, N), radians
        Phase lag.
    zeta, psi : float
        Strength (rad per time unit) and phase (radians) of the external drive.
    modulation : None, dict or Modulator
        How the coupling follows the phases: keywords of `Modulator`, or a `Modulator`, whose coupling is then
        used.
    modulate_every : int
        The coupling is modulated anew by the phases at the start of each ``modulate_every``-th step, and
        kept in between.
    record_every : int, optional
        k stores the states at steps 0, k, 2k, ... and the last; None only the first and the last.
    observe : iterable of {"R", "psi"}
        What is taken at every step.
    atol, rtol : float
        Tolerances of rk45: atol positive, rtol at least 0.
    backend : str, optional
        One of those `spo_fast.backends` lists; the Modulator's, or else the fastest available, by default.
    workers : int
        Accepted and checked; the kernels of this version run on the calling thread whatever it is.
    progress : bool
        Show a progress bar (needs tqdm).

    Returns
    -------
    Simulation
        What was recorded; it takes no more memory than that.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind, shape or range, or not finite, naming it and what came.
    SimulationError
        If a state turns non-finite, with the step and the time; its `result` holds everything up to then.
    RuntimeError
        If the backend asked for cannot be loaded.
    ImportError
        If `progress` is asked for without tqdm.

    Notes
    -----
    O(N^2) for each stage of a step, and one modulation for each `modulate_every` steps. The run returns to
    Python about every 50 ms, where Ctrl-C is answered.
    """
    integer(workers, "workers", 1)
    count = integer(n_steps, "n_steps", 0)
    step = number(dt, "dt", positive=True)
    choice(method, "method", METHODS)
    every = 0 if record_every is None else integer(record_every, "record_every", 1)
    observed = _observed(observe)
    tolerances = number(atol, "atol", positive=True), number(rtol, "rtol", minimum=0.0)
    phases = as_phases(theta, None)
    net = _network(phases.shape[0], omega, knm, alpha, zeta, psi, modulation)
    net.modulate_every = integer(modulate_every, "modulate_every", 1)
    _refuse_nonfinite(phases, net)
    if backend is None and isinstance(modulation, Modulator):
        backend = modulation.backend
    module = registry.load(backend)
    integration = module.Integration(phases.shape[0], method, step, *tolerances)
    integration.set_network(net)
    integration.start(phases)
    record = _record(count, every, phases.shape[0], observed)
    assert record.theta is not None and record.t is not None
    record.theta[0], record.t[0] = integration.theta, 0.0
    with _progress_bar(progress, count) as bar:
        status = _advance(integration, count, record, bar)
    result = _result(record, integration, method, module.NAME)
    if status != Status.OK:
        _raise_failure(status, integration, result)
    return result


def _observed(observe: Any) -> frozenset[str]:
    names = (observe,) if isinstance(observe, str) else observe
    try:
        names = tuple(names)
    except TypeError:
        raise ValueError(f"observe must be names among 'R', 'psi', got {describe(observe)}") from None
    for name in names:
        choice(name, "observe", OBSERVABLES)
    return frozenset(names)


def _network(n: int, omega: Any, knm: Any, alpha: Any, zeta: Any, psi: Any, modulation: Any) -> Network:
    """Check the right-hand side, with its modulation and whose coupling that one takes."""
    if isinstance(modulation, Modulator):
        if knm is not None and not _same_matrix(as_coupling(knm), modulation.knm):
            raise ValueError("knm must be None or equal to the Modulator's own coupling, got another matrix")
        net = network(n, omega, modulation.knm, alpha, zeta, psi)
        net.modulation = modulation.parameters
        return net
    if modulation is not None and not isinstance(modulation, dict):
        what = describe(modulation)
        raise ValueError(f"modulation must be None, a dict of keywords or a Modulator, got {what}")
    if knm is None:
        raise ValueError("knm must be given unless modulation is a Modulator, got None")
    net = network(n, omega, knm, alpha, zeta, psi)
    if modulation is not None:
        net.modulation = parameters_from_keywords(modulation)
    return net


def _same_matrix(first: np.ndarray, second: np.ndarray) -> bool:
    return first is second or bool(np.array_equal(first, second))


def _refuse_nonfinite(phases: np.ndarray, net: Network) -> None:
    explain_nonfinite(theta=phases, omega=net.omega, knm=net.knm)
    if net.alpha is not None:
        explain_nonfinite(alpha=net.alpha)


def _record(count: int, every: int, n: int, observed: frozenset[str]) -> Record:
    """Return arrays for what is kept: rows 0, every, 2 every, ... and one more for the last state."""
    rows = 1 + (count // every if every else 0)
    if count % every if every else count:
        rows += 1
    record = Record(every=every, theta=np.empty((rows, n)), t=np.empty(rows))
    if "R" in observed:
        record.R = np.empty(count + 1)
    if "psi" in observed:
        record.psi = np.empty(count + 1)
    if observed:
        record.t_observe = np.empty(count + 1)
    return record


def _advance(integration: Any, count: int, record: Record | None, bar: Any = None) -> int:
    """Advance in pieces of about 50 ms; where the cuts fall does not show in the result."""
    piece, done = 1, 0
    if count == 0:
        return int(integration.advance(0, record))
    while done < count:
        size = min(piece, count - done)
        began = time.perf_counter()
        status = int(integration.advance(size, record))
        if status != Status.OK:
            return status
        elapsed = time.perf_counter() - began
        done += size
        if bar is not None:
            bar.update(size)
        wanted = size * _PIECE_SECONDS / max(elapsed, 1e-9)
        piece = max(1, int(min(wanted, _PIECE_GROWTH * size)))
    return int(Status.OK)


def _progress_bar(progress: bool, count: int) -> AbstractContextManager[Any]:
    if not progress:
        return nullcontext()
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install 'spo-fast[progress]'") from error
    return tqdm(total=count, unit="step")


def _result(record: Record, integration: Any, method: str, backend: str) -> Simulation:
    """Cut what was recorded to the steps taken, and close it with the last good state."""
    assert record.theta is not None and record.t is not None
    step, every = int(integration.step), record.every
    rows = 1 + (step // every if every else 0)
    if step % every if every else step:
        record.theta[rows], record.t[rows] = integration.theta, integration.t
        rows += 1
    return Simulation(
        t=_cut(record.t, rows),
        theta=_cut(record.theta, rows),
        t_observe=None if record.t_observe is None else _cut(record.t_observe, step + 1),
        R=None if record.R is None else _cut(record.R, step + 1),
        psi=None if record.psi is None else _cut(record.psi, step + 1),
        final=np.array(integration.theta),
        dt=float(integration.dt),
        method=method,
        backend=backend,
    )


def _cut(array: np.ndarray, length: int) -> np.ndarray:
    return array if len(array) == length else array[:length].copy()


def _raise_failure(status: int, integration: Any, result: Simulation) -> None:
    """Turn a status into an exception."""
    if status == Status.OUT_OF_MEMORY:
        raise MemoryError("the integrator could not allocate its scratch")
    if status != Status.NONFINITE_STATE:
        raise RuntimeError(f"the integrator stopped with status {Status(status).name}")
    step, t = int(integration.step), float(integration.t)
    raise SimulationError(
        f"the state turned non-finite in step {step + 1}, which starts at t = {t:.6g}; "
        f"the last good state, after {step} steps, is in .result",
        result,
    )
