"""The modulation of K: one call, one call of a ``Modulator``, a band; memory; error against the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .common import REFERENCE, Cell, Timed, problem, warmed

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


class Memory(Cell):
    """Largest memory of a process that loads the backend and modulates once."""

    def peakmem_modulate(self, backend, n):
        modulate(backend, n)()


class Parity(Cell):
    """Largest difference of K' from the NumPy reference, relative to its largest entry."""

    unit = "relative"

    def track_parity_error(self, backend, n):
        import spo_fast

        knm, theta, _ = problem(n)
        expected = spo_fast.modulate(knm, theta, backend=REFERENCE)
        error = np.abs(spo_fast.modulate(knm, theta, backend=backend) - expected).max()
        return max(float(error / np.abs(expected).max()), LEAST_ERROR)
