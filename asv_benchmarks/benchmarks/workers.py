"""Several workers: what a second thread saves where there is work for it, and that it changes nothing.

The clock is that on the wall, for processor time adds up the threads: a busy machine shows here. Numba stays
on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np

from .common import Cell, Timed, problem, warmed
from .kuramoto import MODULATED_STEPS, ONE_CALL, STEPS, simulate
from .modulation import parity_error

SIZES = (16, 512, 1024)  # the smallest one stays on one thread
WORKERS = (2, 1)


class Crew(Cell):
    params = (("cython", "numba"), SIZES, WORKERS)
    param_names = (*Cell.param_names, "workers")

    def setup(self, backend, n, workers):
        Cell.setup(self, backend, n)


class Shared(Crew, Timed):
    def setup(self, backend, n, workers):
        super().setup(backend, n, workers)
        self.batch(self.prepare(backend, n, workers), self.calls_by_size[n])

    def clock(self):
        return time.perf_counter()


@cache
def modulator(backend: str, n: int, workers: int) -> Callable[[], object]:
    import spo_fast

    knm, theta, _ = problem(n)
    plan, out = spo_fast.Modulator(knm, backend=backend, workers=workers), np.empty_like(knm)
    return warmed(lambda: plan(theta, out))


class ModulatorShared(Shared):
    """One call of a ``Modulator``."""

    prepare = staticmethod(modulator)

    def time_modulator_workers(self, backend, n, workers):
        self.run()


class SimulateShared(Shared):
    """A run of ``STEPS[n]`` Euler steps."""

    calls_by_size = ONE_CALL

    @staticmethod
    @cache
    def prepare(backend, n, workers):
        return warmed(simulate(backend, n, n_steps=STEPS[n], workers=workers))

    def time_simulate_workers(self, backend, n, workers):
        self.run()


class SimulateModulatedShared(Shared):
    """A run of ``MODULATED_STEPS[n]`` modulated Euler steps."""

    calls_by_size = ONE_CALL

    @staticmethod
    @cache
    def prepare(backend, n, workers):
        return warmed(simulate(backend, n, n_steps=MODULATED_STEPS[n], modulation={}, workers=workers))

    def time_simulate_modulated_workers(self, backend, n, workers):
        self.run()


class ParityShared(Crew):
    """Largest difference of K' from the NumPy reference, relative to its largest entry."""

    unit = "relative"

    def track_workers_parity_error(self, backend, n, workers):
        return parity_error(n, backend=backend, workers=workers)
