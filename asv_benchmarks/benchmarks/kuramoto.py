"""The integrators: one step from Python, whole runs, what modulation adds, memory, error of a short run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .common import DT, REFERENCE, SIZES, Cell, Timed, problem, warmed

ONE_CALL = dict.fromkeys(SIZES, 1)
STEPS = {16: 2000, 64: 500, 128: 200, 256: 50, 512: 20, 1024: 5}
MODULATED_STEPS = {16: 200, 64: 50, 128: 20, 256: 10, 512: 4, 1024: 2}
METHODS = ("euler", "rk4", "rk45")
OVERHEAD_ROUNDS = 15
PARITY_STEPS = 20
LEAST_ERROR = 1e-14  # radians; what twenty steps make of rounding


def simulate(backend: str, n: int, **keywords: Any) -> Callable[[], Any]:
    """Return a run of ``simulate`` without records."""
    import spo_fast

    knm, theta, omega = problem(n)
    settings = {"dt": DT, "method": "euler", "observe": (), "backend": backend} | keywords
    return lambda: spo_fast.simulate(theta, omega, knm, **settings)


@cache
def step(backend: str, n: int) -> Callable[[], object]:
    import spo_fast

    knm, theta, omega = problem(n)
    engine = spo_fast.Engine(n, DT, backend=backend)
    return warmed(lambda: engine.step(theta, omega, knm))


class Step(Timed):
    """One Euler step of an ``Engine``, with the way in and out."""

    prepare = staticmethod(step)

    def time_step(self, backend, n):
        self.run()


class Run(Timed):
    calls_by_size = ONE_CALL


class Simulate(Run):
    """A run of ``STEPS[n]`` Euler steps."""

    prepare = staticmethod(cache(lambda backend, n: warmed(simulate(backend, n, n_steps=STEPS[n]))))

    def time_simulate(self, backend, n):
        self.run()


class SimulateModulated(Run):
    """A run of ``MODULATED_STEPS[n]`` Euler steps, K' at each."""

    prepare = staticmethod(
        cache(lambda backend, n: warmed(simulate(backend, n, n_steps=MODULATED_STEPS[n], modulation={})))
    )

    def time_simulate_modulated(self, backend, n):
        self.run()


class SimulateAdaptive(Run):
    """A fifth as many steps of rk45, order parameter taken."""

    prepare = staticmethod(
        cache(
            lambda backend, n: warmed(
                simulate(backend, n, n_steps=max(1, STEPS[n] // 5), method="rk45", observe=("R",))
            )
        )
    )

    def time_simulate_rk45(self, backend, n):
        self.run()


class Overhead(Cell):
    """What modulation adds to a step inside ``simulate``, by method.

    Plain and modulated runs take turns; of each the shortest counts.
    """

    params = (("cython", "numba"), SIZES, METHODS)
    param_names = (*Cell.param_names, "method")
    unit = "percent"

    def setup(self, backend, n, method):
        super().setup(backend, n)
        self.plain = warmed(simulate(backend, n, n_steps=STEPS[n], method=method))
        self.modulated = warmed(
            simulate(backend, n, n_steps=MODULATED_STEPS[n], method=method, modulation={})
        )

    def track_overhead_percent(self, backend, n, method):
        plain, modulated = [], []
        for _ in range(OVERHEAD_ROUNDS):
            plain.append(seconds(self.plain) / STEPS[n])
            modulated.append(seconds(self.modulated) / MODULATED_STEPS[n])
        return 100.0 * (min(modulated) / min(plain) - 1.0)


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


class Memory(Cell):
    """Largest memory of a process that takes one step, without and with modulation."""

    def peakmem_simulate(self, backend, n):
        simulate(backend, n, n_steps=1)()

    def peakmem_simulate_modulated(self, backend, n):
        simulate(backend, n, n_steps=1, modulation={})()


class Parity(Cell):
    """Largest distance on the circle from the NumPy reference after a few modulated rk4 steps."""

    unit = "radians"

    def track_parity_error(self, backend, n):
        steps = {"n_steps": PARITY_STEPS, "method": "rk4", "modulation": {}}
        difference = simulate(backend, n, **steps)().final - simulate(REFERENCE, n, **steps)().final
        return max(float(np.abs(np.angle(np.exp(1j * difference))).max()), LEAST_ERROR)
