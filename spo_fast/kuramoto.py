"""Kuramoto-Sakaguchi networks in time.

d theta_i / dt = omega_i + sum_j K_ij sin(theta_j - theta_i - alpha_ij) + zeta sin(psi - theta_i):
row i of the coupling is pulled by its columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from spo_fast.backends import registry
from spo_fast.backends.record import Record
from spo_fast.backends.status import Status
from spo_fast.ensemble import simulate_ensemble
from spo_fast.modulation import Modulator
from spo_fast.runs import METHODS, Run, advance, load_backend, progress_bar, raise_failure, right_hand_side
from spo_fast.simulation import Simulation
from spo_fast.validation import (
    as_phases,
    choice,
    explain_network,
    explain_nonfinite,
    integer,
    network,
    number,
    real_array,
)

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
        self.backend: str = registry.load(backend).NAME
        self._last_dt = self.dt
        self._idle = [self._new_integration()]  # taken by a call and given back, so that threads do not meet

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
        knm : array_like, SciPy sparse matrix or NetworkX graph, shape (N, N), rad per time unit
            Coupling, which may be asymmetric.
        zeta, psi : float
            Strength (rad per time unit) and phase (radians) of the external drive.
        alpha : None, float or array_like, shape (N, N), radians
            Phase lag; with a sparse `knm` a sparse matrix of the same pattern instead of an array.

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
        O(N^2) for each stage of the method, O(E) for a sparse coupling with E stored entries.
        """
        integration = self._begin(phases, omegas, knm, zeta, psi, alpha)
        status = integration.advance(1)
        if status != Status.OK:
            self._fail(integration, status, phases, omegas, knm, alpha)
        return self._end(integration)

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

        Notes
        -----
        O(N^2) for each stage of each step, O(E) for a sparse coupling with E stored entries.
        """
        count = integer(n_steps, "n_steps", 0)
        integration = self._begin(phases, omegas, knm, zeta, psi, alpha)
        if count == 0:
            self._explain(phases, omegas, knm, alpha)
        status = advance(integration, count, None)
        if status != Status.OK:
            self._fail(integration, status, phases, omegas, knm, alpha)
        return self._end(integration)

    def _begin(self, phases: Any, omegas: Any, knm: Any, zeta: Any, psi: Any, alpha: Any) -> Any:
        n = self.n_oscillators
        try:
            integration = self._idle.pop()
        except IndexError:
            integration = self._new_integration()
        integration.set_network(network(n, omegas, knm, alpha, zeta, psi, omega_name="omegas"))
        integration.start(as_phases(phases, n, "phases"))
        integration.dt = self._last_dt
        return integration

    def _end(self, integration: Any) -> np.ndarray:
        self._last_dt = float(integration.dt)
        state = integration.theta.copy()
        self._idle.append(integration)
        return state

    def _new_integration(self) -> Any:
        module = registry.load(self.backend)
        return module.Integration(self.n_oscillators, self.method, self.dt, self.atol, self.rtol)

    def _explain(self, phases: Any, omegas: Any, knm: Any, alpha: Any) -> None:
        """Raise ValueError if something that came is not finite."""
        explain_nonfinite(phases=as_phases(phases, self.n_oscillators, "phases"))
        explain_network(
            network(self.n_oscillators, omegas, knm, alpha, 0.0, 0.0, omega_name="omegas"), "omegas"
        )

    def _fail(self, integration: Any, status: int, phases: Any, omegas: Any, knm: Any, alpha: Any) -> None:
        """Blame the input if it is not finite, else the run; the step size stays what it was before."""
        if integration.step == 0:
            self._explain(phases, omegas, knm, alpha)
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
            int(status),
            int(integration.step),
        )
        raise_failure(status, integration, result)

    def __repr__(self) -> str:
        settings = f"dt={self.dt:g}, method={self.method!r}, backend={self.backend!r}"
        return f"<Engine: N={self.n_oscillators}, {settings}>"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_idle"]  # scratch of the backend, rebuilt on arrival
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._idle = [self._new_integration()]


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
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
) -> Simulation:
    """Follow a network, or M of them, from `theta` for `n_steps` steps.

    Parameters
    ----------
    theta : array_like, shape (N,) or (M, N), radians
        Initial phases, any real values; a row for each member of an ensemble.
    omega : float or array_like, shape (N,) or (M, N), rad per time unit
        Natural frequencies.
    knm : array_like, shape (N, N) or (M, N, N), or SciPy sparse matrix, shape (N, N), rad per time unit
        Coupling; it may be asymmetric unless it is modulated. None where a `Modulator` brings its own. A
        NetworkX graph stands for a sparse matrix: oscillators in the order of ``list(graph)``, an edge from u
        to v lets u pull v by its ``weight``, or by 1.
    dt : float
        Step size; for rk45 the first one, and a tenth of the largest.
    n_steps : int
        Steps taken, at least 0; failed attempts of rk45 do not count.
    method : {"euler", "rk4", "rk45"}
        Explicit Euler, classical Runge-Kutta, or Dormand-Prince 5(4).
    alpha : None, float or array_like, shape (N, N), radians
        Phase lag; with a sparse `knm` a sparse matrix of the same pattern instead of an array.
    zeta, psi : float
        Strength (rad per time unit) and phase (radians) of the external drive.
    modulation : None, dict or Modulator
        How the coupling follows the phases: keywords of `Modulator`, or a `Modulator`, whose coupling is then
        used. For an ensemble ``lambda_`` may be of shape (M,).
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
        Threads that may share the work, the calling one among them: the same bits for any number, and one
        thread where more would not be faster. Steps are shared by the compiled core ("cython") alone; the
        members of an ensemble by the NumPy and Numba backends, too.
    progress : bool
        Show a progress bar (needs tqdm).
    checkpoint : path, optional
        File of the run's checkpoints. Where it exists, the run goes on from it: the same call again, after a
        kill, gives the bits of a run that was never killed, and one with more `n_steps` goes on beyond the
        end. `workers` and `progress` may differ.
    checkpoint_every : int, optional
        Steps from one checkpoint to the next, for `checkpoint`; of members of an ensemble that are followed
        one after another, so many steps of each on average.

    Returns
    -------
    Simulation
        What was recorded; it takes no more memory than that. Of an ensemble every array has an axis of length
        M before that of the oscillators.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind, shape or range, or not finite, naming it and what came; if the
        checkpoint is damaged, telling whether the one before it is sound, or of another run, telling what
        differs.
    SimulationError
        If the state of a single run turns non-finite, with the step and the time; its `result` holds
        everything up to then. A member of an ensemble stops alone instead, and `status` tells.
    RuntimeError
        If the backend asked for cannot be loaded.
    ImportError
        If `progress` is asked for without tqdm.
    OSError
        If the checkpoint cannot be written.

    Notes
    -----
    O(N^2) for each stage of a step, O(E) for a sparse coupling with E stored entries, and one modulation for
    each `modulate_every` steps. The members of an ensemble are runs of their own, each with its own step
    sizes of rk45. The run returns to Python about every 50 ms, where Ctrl-C is answered.

    A checkpoint holds the phases, the time, the step size and everything recorded so far: 8 N bytes, and what
    the Simulation would hold, are written and brought to the disk each time, so that `checkpoint_every`
    should stand for seconds at least. It waits for the next step at which the coupling is modulated. The one
    before it is kept as ``<checkpoint>.previous``. Both stay when the run has ended, and are the caller's to
    delete. Two runs at once need two files.
    """
    crew = integer(workers, "workers", 1)
    run = Run.checked(
        n_steps, dt, method, record_every, observe, atol, rtol, progress, checkpoint, checkpoint_every
    )
    phases = real_array(theta, "theta")
    forces = (omega, knm, alpha, zeta, psi, modulation, modulate_every)
    if phases.ndim == 2:
        return simulate_ensemble(run, phases, *forces, backend=backend, workers=crew)
    if phases.ndim != 1:
        raise ValueError(f"theta must have shape (N,) or (M, N), got {phases.shape}")
    net = right_hand_side(phases.shape[0], *forces)
    net.workers = crew
    explain_nonfinite(theta=phases)
    explain_network(net)
    module = load_backend(backend, modulation)
    integration = run.integration(module, phases.shape[0])
    integration.set_network(net)
    integration.start(phases)
    record = _record(run, phases.shape[0])
    assert record.theta is not None and record.t is not None
    record.theta[0], record.t[0] = integration.theta, 0.0
    follower = run.follower(net, phases, module.NAME, [record])
    follower.begin(0, integration)
    with progress_bar(run.progress, run.n_steps) as bar:
        status = follower.advance(0, integration, bar)
    follower.finish()
    result = _result(record, integration, status, run.method, module.NAME)
    if status != Status.OK:
        raise_failure(status, integration, result)
    return result


def _record(run: Run, n: int) -> Record:
    """Return arrays for what is kept."""
    record = Record(every=run.every, theta=np.empty((run.rows, n)), t=np.empty(run.rows))
    if "R" in run.observed:
        record.R = np.empty(run.n_steps + 1)
    if "psi" in run.observed:
        record.psi = np.empty(run.n_steps + 1)
    if run.observed:
        record.t_observe = np.empty(run.n_steps + 1)
    return record


def _result(record: Record, integration: Any, status: int, method: str, backend: str) -> Simulation:
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
        status=int(status),
        steps=step,
    )


def _cut(array: np.ndarray, length: int) -> np.ndarray:
    return array if len(array) == length else array[:length].copy()
