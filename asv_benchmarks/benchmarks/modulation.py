"""The modulation of K: one call, one call of a ``Modulator``, a band; memory; error against the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .common import REFERENCE, SIZES, Cell, Timed, problem, warmed

# Sums of this length differ by a few units in the last place whatever the code: smaller errors are all alike.
LEAST_ERROR = 1e-15


def modulate(backend: str, n: int, **keywords: Any) -> Callable[[], object]:
    """Return a call of ``modulate`` that writes to one matrix."""
    import spo_fast

    knm, theta, _ = problem(n)
    out = np.empty_like(knm)
    return lambda: spo_fast.modulate(knm, theta, out=out, backend=backend, **keywords)


class Modulate(Timed):
    prepare = staticmethod(cache(lambda backend, n: warmed(modulate(backend, n))))

    def time_modulate(self, backend, n):
        self.run()


class ModulateBand(Timed):
    """Pairs at most eight apart: cost grows with N, not with its square, but for the copy of K."""

    prepare = staticmethod(cache(lambda backend, n: warmed(modulate(backend, n, block_size=8))))

    def time_modulate_band(self, backend, n):
        self.run()


@cache
def bound(backend: str, n: int) -> Callable[[], object]:
    import spo_fast

    knm, theta, _ = problem(n)
    modulator = spo_fast.Modulator(knm, backend=backend)
    out = np.empty_like(knm)
    return warmed(lambda: modulator(theta, out))


class Modulator(Timed):
    prepare = staticmethod(bound)

    def time_modulator(self, backend, n):
        self.run()


@cache
def by_algorithm(backend: str, n: int, algorithm: str) -> Callable[[], object]:
    import spo_fast

    knm, theta, _ = problem(n)
    modulator = spo_fast.Modulator(knm, algorithm=algorithm, backend=backend)
    out = np.empty_like(knm)
    return warmed(lambda: modulator(theta, out))


class Algorithm(Cell):
    """Both ways of the attention, by name: which is chosen may change between commits."""

    params = (("cython", "numba"), SIZES, ("direct", "moments"))
    param_names = (*Cell.param_names, "algorithm")

    def setup(self, backend, n, algorithm):
        Cell.setup(self, backend, n)


class ModulatorAlgorithm(Algorithm, Timed):
    """One call of a ``Modulator`` by algorithm."""

    def setup(self, backend, n, algorithm):
        super().setup(backend, n, algorithm)
        self.batch(by_algorithm(backend, n, algorithm), self.calls_by_size[n])

    def time_modulator_algorithm(self, backend, n, algorithm):
        self.run()


class AlgorithmParity(Algorithm):
    """Largest difference of K' from the NumPy reference, relative to its largest entry."""

    unit = "relative"

    def track_algorithm_parity_error(self, backend, n, algorithm):
        return parity_error(n, backend=backend, algorithm=algorithm)


def parity_error(n: int, **given: Any) -> float:
    """Return the largest difference from the reference, relative; never less than `LEAST_ERROR`."""
    import spo_fast

    knm, theta, _ = problem(n)
    expected = spo_fast.modulate(knm, theta, backend=REFERENCE)
    error = np.abs(spo_fast.modulate(knm, theta, **given) - expected).max()
    return max(float(error / np.abs(expected).max()), LEAST_ERROR)


class Memory(Cell):
    """Largest memory of a process that loads the backend and modulates once."""

    def peakmem_modulate(self, backend, n):
        modulate(backend, n)()


class Parity(Cell):
    """Largest difference of K' from the NumPy reference, relative to its largest entry."""

    unit = "relative"

    def track_parity_error(self, backend, n):
        return parity_error(n, backend=backend)
