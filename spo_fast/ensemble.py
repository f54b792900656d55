"""Many runs in one call: M sets of phases, with frequencies, couplings and strengths shared or their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from spo_fast.backends.record import Record
from spo_fast.backends.status import Status
from spo_fast.runs import (
    Run,
    coupling_of,
    load_backend,
    progress_bar,
    refuse_internal,
    right_hand_side,
)
from spo_fast.simulation import Simulation
from spo_fast.validation import (
    Network,
    SparseCoupling,
    as_coupling,
    as_sparse_coupling,
    explain_coupling,
    explain_network,
    explain_nonfinite,
    is_scalar,
    is_sparse,
    number,
    real_array,
)

# What is advanced together, a lane a member: up to so many oscillators, as a larger network fills the vectors
# by itself, and couplings of all members, whose step takes about 0.1 s (Ctrl-C is answered between steps).
_BATCH = {"plain": (128, 1 << 28), "modulated": (32, 1 << 24)}
_Coupling = np.ndarray | SparseCoupling


def simulate_ensemble(
    run: Run,
    theta: np.ndarray,
    omega: Any,
    knm: Any,
    alpha: Any,
    zeta: Any,
    psi: Any,
    modulation: Any,
    modulate_every: Any,
    *,
    backend: str | None,
    workers: int,
) -> Simulation:
    """Follow each row of `theta`; the parameters are those of `simulate`.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, or not finite.
    RuntimeError
        If the backend asked for cannot be loaded.
    """
    coupling = _coupling(coupling_of(knm, modulation), theta)
    omegas = _frequencies(omega, theta.shape)
    modulation, strengths = _strengths(modulation, theta.shape[0])
    shared = _first(coupling, 2), alpha, zeta, psi, modulation, modulate_every
    base = right_hand_side(theta.shape[1], _first(omegas, 1), *shared)
    explain_nonfinite(theta=theta, omega=omegas)
    explain_network(base)
    if isinstance(coupling, np.ndarray) and coupling.ndim == 3:
        _judge(coupling, base.modulation is not None)
    module = load_backend(backend, modulation)
    ensemble = Ensemble(base, coupling, omegas, strengths)
    if hasattr(module, "Batch") and ensemble.shares_coupling and _fits_a_batch(run, theta.shape, base):
        base.workers = workers
        return _run_together(run, module, theta, ensemble)
    return _run_in_turn(run, module, theta, ensemble, workers)


def _fits_a_batch(run: Run, shape: tuple[int, ...], base: Network) -> bool:
    """Whether members are best advanced together."""
    (m, n), modulation = shape, base.modulation
    if modulation is not None and (base.alpha is not None or modulation.algorithm not in ("auto", "direct")):
        return False
    limit, entries = _BATCH["plain" if modulation is None else "modulated"]
    return m * n > 0 and run.method != "rk45" and n <= limit and m * n * n <= entries


# ---------------------------------------------------------------- members


@dataclass(slots=True, eq=False)
class Ensemble:
    """Right-hand sides of the members.

    Attributes
    ----------
    base : Network
        What the members share; of what they have of their own it holds the first.
    coupling : ndarray, shape (N, N) or (M, N, N), or SparseCoupling
        Coupling.
    omegas : ndarray, shape (N,) or (M, N)
        Frequencies.
    strengths : ndarray, shape (M,), or None
        Modulation strengths where they differ.
    """

    base: Network
    coupling: _Coupling
    omegas: np.ndarray
    strengths: np.ndarray | None

    @property
    def shares_coupling(self) -> bool:
        """Whether the members share a dense coupling, or what it is made from."""
        return isinstance(self.base.knm, np.ndarray) and not self._own_coupling

    @property
    def own(self) -> dict[str, Any]:
        """What stands in place of the first member's values of `base` when runs are told apart."""
        return {"omega": self.omegas, "knm": self.coupling, "strengths": self.strengths}

    @property
    def _own_coupling(self) -> bool:
        return isinstance(self.coupling, np.ndarray) and self.coupling.ndim == 3

    def members(self, m: int) -> Iterator[Network]:
        """Yield a network for each of `m` members, the same object where they share everything."""
        own: dict[str, Any] = {}
        for member in range(m):
            if self.omegas.ndim == 2:
                own["omega"] = self.omegas[member]
            if self._own_coupling:
                own["knm"] = self.coupling[member]  # type: ignore[index]  # an array, as just seen
            if self.strengths is not None:
                assert self.base.modulation is not None
                own["modulation"] = replace(self.base.modulation, lambda_=float(self.strengths[member]))
            yield replace(self.base, **own) if own else self.base


def _coupling(knm: Any, theta: np.ndarray) -> _Coupling:
    """Return the coupling, whose size says what the shape of theta must be."""
    if isinstance(knm, SparseCoupling) or is_sparse(knm):
        sparse = as_sparse_coupling(knm)
        _require_members(theta, sparse.n)
        return sparse
    array = real_array(knm, "knm")
    if array.ndim != 3:
        array = as_coupling(array)
    elif array.shape[1] != array.shape[2]:
        raise ValueError(f"knm must be of shape (N, N) or (M, N, N), got {array.shape}")
    _require_members(theta, array.shape[-1])
    if array.ndim == 3 and array.shape[0] != theta.shape[0]:
        raise ValueError(
            f"knm must have a matrix for each of the {theta.shape[0]} rows of theta, got {array.shape}"
        )
    return array


def _require_members(theta: np.ndarray, n: int) -> None:
    if theta.shape[1] != n:
        raise ValueError(f"theta must have shape ({n},) or (M, {n}), got {theta.shape}")


def _frequencies(omega: Any, shape: tuple[int, ...]) -> np.ndarray:
    if is_scalar(omega):
        return np.full(shape[1], number(omega, "omega"))
    omegas = real_array(omega, "omega")
    if omegas.shape not in (shape, shape[1:]):
        raise ValueError(f"omega must be a number or have shape {shape[1:]} or {shape}, got {omegas.shape}")
    return omegas


def _strengths(modulation: Any, m: int) -> tuple[Any, np.ndarray | None]:
    """Return the modulation of the first member, and the strengths of all if they differ."""
    if not isinstance(modulation, dict) or is_scalar(modulation.get("lambda_", 0.5)):
        return modulation, None
    strengths = real_array(modulation["lambda_"], "lambda_")
    if strengths.shape != (m,):
        raise ValueError(f"lambda_ must be a number or have shape ({m},), got {strengths.shape}")
    for member, strength in enumerate(strengths.tolist()):
        number(strength, f"lambda_[{member}]", minimum=0.0)
    return {**modulation, "lambda_": float(strengths[0]) if m else 0.0}, strengths


def _first(values: _Coupling, ndim: int) -> Any:
    """Return what the first member has, zeros where there is none."""
    if isinstance(values, SparseCoupling) or values.ndim == ndim:
        return values
    return values[0] if len(values) else np.zeros(values.shape[1:])


def _judge(couplings: np.ndarray, modulated: bool) -> None:
    explain_nonfinite(knm=couplings)
    for member in range(len(couplings) if modulated else 0):
        explain_coupling(couplings[member], f"knm[{member}]")


# ---------------------------------------------------------------- runs


@dataclass(slots=True, eq=False)
class Recording:
    """What the members record, a member a row so that each writes to memory of its own.

    Attributes
    ----------
    theta : ndarray, shape (M, samples, N)
        Stored states.
    t : ndarray, shape (M, samples), or None
        Their times, None where all members have the same.
    R, psi, t_observe : ndarray, shape (M, n_steps + 1), or None
        Observations and their times.
    final : ndarray, shape (M, N)
        Last good states.
    dt : ndarray, shape (M,)
        Step sizes that next steps would try.
    status, steps : ndarray, shape (M,)
        How and after how many steps each member ended.
    """

    theta: np.ndarray
    t: np.ndarray | None
    R: np.ndarray | None
    psi: np.ndarray | None
    t_observe: np.ndarray | None
    final: np.ndarray
    dt: np.ndarray
    status: np.ndarray
    steps: np.ndarray

    @classmethod
    def empty(cls, run: Run, m: int, n: int) -> Recording:
        """Return arrays for `m` members."""
        own_times, observed, count = run.method == "rk45", run.observed, run.n_steps + 1
        return cls(
            np.empty((m, run.rows, n)),
            np.empty((m, run.rows)) if own_times else None,
            np.empty((m, count)) if "R" in observed else None,
            np.empty((m, count)) if "psi" in observed else None,
            np.empty((m, count)) if own_times and observed else None,
            np.empty((m, n)),
            np.empty(m),
            np.zeros(m, dtype=np.int64),
            np.zeros(m, dtype=np.int64),
        )

    def member(self, m: int, every: int) -> Record:
        """Return the record of one member."""
        arrays = (self.theta, self.t, self.R, self.psi, self.t_observe)
        return Record(every, *(None if array is None else array[m] for array in arrays))

    def begin(self, m: int, integration: Any) -> None:
        """Store the first state."""
        self.theta[m, 0] = integration.theta
        if self.t is not None:
            self.t[m, 0] = integration.t

    def end(self, m: int, integration: Any, status: int, every: int) -> None:
        """Store the last state; what a failed member did not reach becomes NaN."""
        step = int(integration.step)
        self.final[m], self.dt[m] = integration.theta, integration.dt
        self.status[m], self.steps[m] = status, step
        if status == Status.OK:
            self.theta[m, -1] = integration.theta
            if self.t is not None:
                self.t[m, -1] = integration.t
            return
        reached = 1 + (step // every if every else 0)
        for stored in (self.theta, self.t):
            if stored is not None:
                stored[m, reached:] = np.nan
        for taken in (self.R, self.psi, self.t_observe):
            if taken is not None:
                taken[m, step + 1 :] = np.nan


class _Stopped(Exception):
    """Another thread has ended the run."""


class _Turns:
    """Hands the members out, and stops those who follow one when another thread has failed.

    Attributes
    ----------
    stopped : bool
        Whether to give up.
    """

    def __init__(self, networks: Iterator[Network], bar: Any) -> None:
        self._networks, self._bar = enumerate(networks), bar
        self._lock = threading.Lock()
        self.stopped = False

    def take(self) -> tuple[int, Network] | None:
        """Return the next member and its network, None after the last."""
        with self._lock:
            return None if self.stopped else next(self._networks, None)

    def update(self, steps: int) -> None:
        """Count steps, after each piece of a run.

        Raises
        ------
        _Stopped
            If the run is to be given up.
        """
        if self.stopped:
            raise _Stopped
        if self._bar is not None:
            with self._lock:
                self._bar.update(steps)


def _run_in_turn(
    run: Run, module: ModuleType, theta: np.ndarray, ensemble: Ensemble, workers: int
) -> Simulation:
    """Follow one member after the other, each exactly as if it were alone; `workers` at a time."""
    m, n = theta.shape
    recording = Recording.empty(run, m, n)
    crew = max(1, min(workers, m)) if getattr(module, "SHARES_MEMBERS", False) else 1
    ensemble.base.workers = max(1, workers // crew)
    records = [recording.member(member, run.every) for member in range(m)]
    follower = run.follower(ensemble.base, theta, module.NAME, records, **ensemble.own)

    def follow_members(turns: _Turns) -> None:
        integration, current = run.integration(module, n), None
        while (turn := turns.take()) is not None:
            member, network = turn
            if network is not current:
                integration.set_network(network)
                current = network
            integration.start(theta[member])
            recording.begin(member, integration)
            follower.begin(member, integration)
            status = follower.advance(member, integration, turns)
            refuse_internal(status)
            recording.end(member, integration, status, run.every)

    def follow(turns: _Turns) -> None:
        try:
            follow_members(turns)
        except _Stopped:
            return
        except BaseException:
            turns.stopped = True
            raise

    with (
        progress_bar(run.progress, m * run.n_steps) as bar,
        ThreadPoolExecutor(max(crew - 1, 1)) as pool,  # makes no thread before it is given work
    ):
        turns = _Turns(ensemble.members(m), bar)
        try:
            others = [pool.submit(follow, turns) for _ in range(crew - 1)]
            follow(turns)
            for other in others:
                other.result()
        except BaseException:  # an interrupt while waiting
            turns.stopped = True
            raise
    follower.finish()
    own_times = run.method == "rk45"
    times, observed = _times(run)
    return Simulation(
        t=times if recording.t is None else recording.t.T,
        theta=recording.theta.transpose(1, 0, 2),
        t_observe=observed if recording.t_observe is None else recording.t_observe.T,
        R=None if recording.R is None else recording.R.T,
        psi=None if recording.psi is None else recording.psi.T,
        final=recording.final,
        dt=recording.dt if own_times else run.dt,
        method=run.method,
        backend=module.NAME,
        status=recording.status,
        steps=recording.steps,
    )


def _times(run: Run) -> tuple[np.ndarray, np.ndarray | None]:
    """Times of stored states and of observations at a fixed step size."""
    steps = np.arange(run.rows) * run.every
    steps[-1] = run.n_steps
    return steps * run.dt, np.arange(run.n_steps + 1) * run.dt if run.observed else None


def _run_together(run: Run, module: ModuleType, theta: np.ndarray, ensemble: Ensemble) -> Simulation:
    """Follow all members at once: a row of the coupling, once read, serves them all."""
    m, n = theta.shape
    batch = module.Batch(m, n, run.method, run.dt)
    omegas = np.ascontiguousarray(np.broadcast_to(ensemble.omegas, (m, n)))
    batch.set_network(ensemble.base, omegas, ensemble.strengths)
    batch.start(theta)
    shape = (run.n_steps + 1, m)
    record = Record(
        every=run.every,
        theta=np.empty((run.rows, m, n)),
        R=np.empty(shape) if "R" in run.observed else None,
        psi=np.empty(shape) if "psi" in run.observed else None,
    )
    assert record.theta is not None
    record.theta[0] = batch.theta
    follower = run.follower(ensemble.base, theta, module.NAME, [record], **ensemble.own)
    follower.begin(0, batch)
    with progress_bar(run.progress, run.n_steps) as bar:
        refuse_internal(follower.advance(0, batch, bar))
    follower.finish()
    status, steps = np.array(batch.status, dtype=np.int64), np.array(batch.steps, dtype=np.int64)
    record.theta[-1] = batch.theta
    for member in np.flatnonzero(status).tolist():
        _blank(record, member, int(steps[member]))
    times, observed = _times(run)
    return Simulation(
        t=times,
        theta=record.theta,
        t_observe=observed,
        R=record.R,
        psi=record.psi,
        final=np.array(batch.theta),
        dt=run.dt,
        method=run.method,
        backend=module.NAME,
        status=status,
        steps=steps,
    )


def _blank(record: Record, member: int, step: int) -> None:
    """Make NaN what a failed member did not reach."""
    assert record.theta is not None
    record.theta[1 + (step // record.every if record.every else 0) :, member] = np.nan
    for taken in (record.R, record.psi):
        if taken is not None:
            taken[step + 1 :, member] = np.nan
