"""Sparse networks and ensembles: a ring of ten neighbours, and many members on one dense coupling."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .common import BACKENDS, DENSE_BACKENDS, DT, PROFILE, Timed, problem, require, warmed

RINGS = (1_000, 10_000)
REACH = 5  # neighbours on either side
RING_STEPS = {1_000: 100, 10_000: 10}
MEMBERS = 64
MEMBER_STEPS = {16: 100, 64: 20, 128: 8, 256: 4, 512: 2, 1024: 1}
ONE_CALL = dict.fromkeys(MEMBER_STEPS, 1)


@cache
def ring(n: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return K as a CSR matrix, phases and frequencies."""
    from scipy.sparse import csr_matrix

    rng = np.random.default_rng(0)
    row = np.repeat(np.arange(n), REACH)
    column = (row + np.tile(np.arange(1, REACH + 1), n)) % n
    upper = csr_matrix((rng.uniform(0.1, 1.0, row.size), (row, column)), shape=(n, n))
    return upper + upper.T, rng.uniform(0.0, 2.0 * np.pi, n), rng.normal(1.0, 0.1, n)


@cache
def ring_run(backend: str, n: int, modulated: bool) -> Callable[[], object]:
    import spo_fast

    knm, theta, omega = ring(n)
    settings: dict[str, Any] = {"dt": DT, "method": "euler", "observe": (), "n_steps": RING_STEPS[n]}
    modulation: dict[str, Any] | None = {} if modulated else None
    return warmed(
        lambda: spo_fast.simulate(theta, omega, knm, modulation=modulation, backend=backend, **settings)
    )


class Ring(Timed):
    """A run of ``RING_STEPS[n]`` Euler steps on a sparse network."""

    params = (BACKENDS, RINGS)

    def setup(self, backend, n):
        from spo_fast import validation

        if not hasattr(validation, "is_sparse"):
            raise NotImplementedError("this version takes dense couplings only")
        if backend in DENSE_BACKENDS:
            raise NotImplementedError("the portable interface takes dense couplings only")
        if n > RINGS[0] and not PROFILE.slow:
            raise NotImplementedError(f"N = {n} is not in this profile")
        require(backend)
        self.batch(self.prepare(backend, n), 1)


class RingPlain(Ring):
    prepare = staticmethod(lambda backend, n: ring_run(backend, n, False))

    def time_ring(self, backend, n):
        self.run()


class RingModulated(Ring):
    prepare = staticmethod(lambda backend, n: ring_run(backend, n, True))

    def time_ring_modulated(self, backend, n):
        self.run()


@cache
def members(backend: str, n: int, modulation: Any = None) -> Callable[[], object]:
    import spo_fast

    knm, _, omega = problem(n)
    theta = np.random.default_rng(1).uniform(0.0, 2.0 * np.pi, (MEMBERS, n))
    settings: dict[str, Any] = {"dt": DT, "method": "euler", "observe": (), "n_steps": MEMBER_STEPS[n]}
    settings |= {"modulation": {} if modulation else None, "backend": backend}
    return warmed(lambda: spo_fast.simulate(theta, omega, knm, **settings))


class Ensemble(Timed):
    """``MEMBERS`` members, ``MEMBER_STEPS[n]`` Euler steps each."""

    calls_by_size = ONE_CALL
    prepare = staticmethod(members)

    def setup(self, backend, n):
        import spo_fast

        if "status" not in spo_fast.Simulation.__dataclass_fields__:
            raise NotImplementedError("this version runs one trajectory at a time")
        super().setup(backend, n)

    def time_ensemble(self, backend, n):
        self.run()


class EnsembleModulated(Timed):
    """The same, K' of each member at each step."""

    params = (BACKENDS, (16, 64))
    calls_by_size = ONE_CALL
    prepare = staticmethod(lambda backend, n: members(backend, n, True))

    def time_ensemble_modulated(self, backend, n):
        self.run()
