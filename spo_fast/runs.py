"""How a run is set up, and how it is cut into pieces: between two of them Ctrl-C is answered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast.backends import registry
from spo_fast.backends.record import Record
from spo_fast.backends.status import Status
from spo_fast.modulation import Modulator, parameters_from_keywords
from spo_fast.simulation import Simulation, SimulationError
from spo_fast.validation import (
    Network,
    SparseCoupling,
    as_coupling,
    as_sparse_coupling,
    choice,
    describe,
    integer,
    is_sparse,
    network,
    number,
    plain_matrix,
    same_pattern,
)

if TYPE_CHECKING:
    from spo_fast.checkpoints import Checkpoint

METHODS = ("euler", "rk4", "rk45")
OBSERVABLES = ("R", "psi")

_PIECE_SECONDS = 0.05  # a run returns to Python this often
_PIECE_GROWTH = 8  # a piece grows at most so many times over the last one, whose time may be a lucky one


@dataclass(frozen=True, slots=True)
class Run:
    """What is done with a right-hand side.

    Attributes
    ----------
    n_steps : int
        Steps taken.
    dt : float
        Step size; for rk45 the first one.
    method : str
        One of `METHODS`.
    every : int
        Distance in steps between two stored states; 0 stores the first and the last only.
    observed : frozenset of str
        Those of `OBSERVABLES` that are taken at every step.
    atol, rtol : float
        Tolerances of rk45.
    progress : bool
        Whether a progress bar is shown.
    checkpoint : Checkpoint or None
        Where the run leaves what it needs to go on.
    """

    n_steps: int
    dt: float
    method: str
    every: int
    observed: frozenset[str]
    atol: float
    rtol: float
    progress: bool
    checkpoint: Checkpoint | None = None

    @classmethod
    def checked(
        cls,
        n_steps: Any,
        dt: Any,
        method: Any,
        record_every: Any,
        observe: Any,
        atol: Any,
        rtol: Any,
        progress: Any,
        checkpoint: Any,
        checkpoint_every: Any,
    ) -> Run:
        """Check the arguments of `simulate`.

        Raises
        ------
        ValueError
            If one is of the wrong kind or range.
        OSError
            If a checkpoint could not be written.
        """
        return cls(
            integer(n_steps, "n_steps", 0),
            number(dt, "dt", positive=True),
            choice(method, "method", METHODS),
            0 if record_every is None else integer(record_every, "record_every", 1),
            _observed(observe),
            number(atol, "atol", positive=True),
            number(rtol, "rtol", minimum=0.0),
            bool(progress),
            _checkpoint(checkpoint, checkpoint_every),
        )

    @property
    def rows(self) -> int:
        """States that are stored: those of steps 0, every, 2 every, ..., and the last."""
        count, every = self.n_steps, self.every
        rows = 1 + (count // every if every else 0)
        return rows + bool(count % every if every else count)

    def integration(self, module: ModuleType, n: int) -> Any:
        """Return a backend's integration of `n` oscillators."""
        return module.Integration(n, self.method, self.dt, self.atol, self.rtol)

    def follower(
        self, net: Network, theta: np.ndarray, backend: str, records: Sequence[Record], **own: Any
    ) -> Follower:
        """Return what advances integrations that record to `records` through this run.

        Parameters
        ----------
        net : Network
            The right-hand side.
        theta : ndarray, shape (N,) or (M, N), radians
            Where the run begins.
        backend : str
            Name of the backend.
        records : sequence of Record
            One for each integration.
        own
            What members of an ensemble have of their own, as `checkpoints.identity` takes it.

        Raises
        ------
        ValueError
            If there is a checkpoint from which this run cannot go on.
        """
        if self.checkpoint is None:
            return Follower(self.n_steps, records)
        from spo_fast.checkpoints import Keeper, identity

        arguments = identity(self, net, theta, backend, **own)
        return Keeper(self.checkpoint, arguments, self.n_steps, net.modulate_every, records)


class Follower:
    """Advances integrations through a run.

    Parameters
    ----------
    n_steps : int
        Steps of the run.
    records : sequence of Record
        What each integration records.
    """

    def __init__(self, n_steps: int, records: Sequence[Record]) -> None:
        self.n_steps, self.records = n_steps, records

    def begin(self, place: int, integration: Any) -> None:
        """Take notice of an integration that was started."""

    def advance(self, place: int, integration: Any, bar: Any) -> int:
        """Advance an integration to the end of the run.

        Parameters
        ----------
        place : int
            Which of the records is its own.
        integration : Integration or Batch
            As `begin` left it.
        bar : object or None
            What counts the steps.

        Returns
        -------
        int
            A `Status`.
        """
        return advance(integration, self.n_steps, self.records[place], bar)

    def finish(self) -> None:
        """Take notice that all integrations have come to the end."""


def _checkpoint(path: Any, every: Any) -> Checkpoint | None:
    if path is None and every is None:
        return None
    from spo_fast.checkpoints import Checkpoint

    return Checkpoint.checked(path, every)


def _observed(observe: Any) -> frozenset[str]:
    names = (observe,) if isinstance(observe, str) else observe
    try:
        names = tuple(names)
    except TypeError:
        raise ValueError(f"observe must be names among 'R', 'psi', got {describe(observe)}") from None
    for name in names:
        choice(name, "observe", OBSERVABLES)
    return frozenset(names)


def load_backend(backend: str | None, modulation: Any) -> ModuleType:
    """Return the backend asked for, else the Modulator's, else the fastest available.

    Raises
    ------
    ValueError
        If `backend` is no name of a backend.
    RuntimeError
        If it cannot be loaded.
    """
    if backend is None and isinstance(modulation, Modulator):
        backend = modulation.backend
    return registry.load(backend)


def right_hand_side(
    n: int, omega: Any, knm: Any, alpha: Any, zeta: Any, psi: Any, modulation: Any, modulate_every: Any
) -> Network:
    """Check the right-hand side, with its modulation and whose coupling that one takes.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape.
    """
    coupling = coupling_of(knm, modulation)
    net = network(n, omega, coupling, alpha, zeta, psi, modulated=modulation is not None)
    if isinstance(modulation, Modulator):
        net.modulation = modulation.parameters
    elif modulation is not None:
        net.modulation = parameters_from_keywords(modulation, coupling)
    net.modulate_every = integer(modulate_every, "modulate_every", 1)
    net.persistent = True
    return net


def coupling_of(knm: Any, modulation: Any) -> Any:
    """Return `knm`, or the coupling that a Modulator brings.

    Raises
    ------
    ValueError
        If `modulation` is of the wrong kind, or `knm` is missing or another matrix than the Modulator's.
    """
    knm = plain_matrix(knm)
    if isinstance(modulation, Modulator):
        if knm is not None and not _same_matrix(knm, modulation.coupling):
            raise ValueError("knm must be None or equal to the Modulator's own coupling, got another matrix")
        return modulation.coupling
    if modulation is not None and not isinstance(modulation, dict):
        what = describe(modulation)
        raise ValueError(f"modulation must be None, a dict of keywords or a Modulator, got {what}")
    if knm is None:
        raise ValueError("knm must be given unless modulation is a Modulator, got None")
    return knm


def _same_matrix(knm: Any, own: np.ndarray | SparseCoupling) -> bool:
    if knm is own:
        return True
    if isinstance(own, SparseCoupling):
        if not is_sparse(knm):
            return False
        given = as_sparse_coupling(knm, symmetric=True)
        return same_pattern(given, own) and np.array_equal(given.data, own.data)
    if is_sparse(knm):
        return False
    return bool(np.array_equal(as_coupling(knm), own))


# ---------------------------------------------------------------- pieces


def advance(integration: Any, count: int, record: Record | None, bar: Any = None) -> int:
    """Advance in pieces of about 50 ms; where the cuts fall does not show in the result.

    Returns
    -------
    int
        A `Status`.
    """
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


def progress_bar(progress: bool, count: int, unit: str = "step") -> AbstractContextManager[Any]:
    """Return a bar over `count` steps, or other units, or one that is not there.

    Raises
    ------
    ImportError
        If tqdm is not installed, naming the extra.
    """
    if not progress:
        return nullcontext()
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install 'spo-fast[progress]'") from error
    return tqdm(total=count, unit=unit)


def raise_failure(status: int, integration: Any, result: Simulation) -> None:
    """Turn a status into an exception.

    Raises
    ------
    SimulationError
        If the state turned non-finite.
    MemoryError, RuntimeError
        If the backend gave up for another reason.
    """
    refuse_internal(status)
    step, t = int(integration.step), float(integration.t)
    raise SimulationError(
        f"the state turned non-finite in step {step + 1}, which starts at t = {t:.6g}; "
        f"the last good state, after {step} steps, is in .result",
        result,
    )


def refuse_internal(status: int) -> None:
    """Raise for a status that does not tell of the state.

    Raises
    ------
    MemoryError, RuntimeError
        If the backend gave up.
    """
    if status == Status.OUT_OF_MEMORY:
        raise MemoryError("the integrator could not allocate its scratch")
    if status not in (Status.OK, Status.NONFINITE_STATE):
        raise RuntimeError(f"the integrator stopped with status {Status(status).name}")
