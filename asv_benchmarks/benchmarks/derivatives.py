"""Gradients of one modulation and of a run: time, and how many times that of the way there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .common import DENSE_BACKENDS, DT, Timed, problem, warmed

RUN_STEPS = {16: 200, 64: 100, 128: 50, 256: 20, 512: 10, 1024: 5}
ONE_CALL = dict.fromkeys(RUN_STEPS, 1)


@cache
def weights(n: int) -> np.ndarray:
    """Return gradients at N x N results."""
    return np.random.default_rng(1).standard_normal((n, n))


@cache
def modulation_back(backend: str, n: int) -> Callable[[], object]:
    import spo_fast

    knm, theta, _ = problem(n)
    return warmed(lambda: spo_fast.modulate_vjp(knm, theta, weights(n), backend=backend))


@cache
def run_back(backend: str, n: int, modulation: Any = None) -> Callable[[], object]:
    import spo_fast

    knm, theta, omega = problem(n)
    settings: dict[str, Any] = {"dt": DT, "n_steps": RUN_STEPS[n], "backend": backend}
    settings["modulation"] = {} if modulation else None
    return warmed(lambda: spo_fast.simulate_vjp(theta, omega, knm, weights(n)[0], **settings))


class Back(Timed):
    """A cell of a backend that has derivatives."""

    def setup(self, backend, n):
        import spo_fast

        if not hasattr(spo_fast, "simulate_vjp"):
            raise NotImplementedError("this version has no derivatives")
        if backend in DENSE_BACKENDS:
            raise NotImplementedError("the dense portable interface has no derivatives")
        super().setup(backend, n)


class ModulateBack(Back):
    prepare = staticmethod(modulation_back)

    def time_modulate_vjp(self, backend, n):
        self.run()


class RunBack(Back):
    """``RUN_STEPS[n]`` steps of rk4."""

    calls_by_size = ONE_CALL
    prepare = staticmethod(run_back)

    def time_simulate_vjp(self, backend, n):
        self.run()


class RunBackModulated(Back):
    """The same, K' anew at each step."""

    calls_by_size = ONE_CALL
    prepare = staticmethod(lambda backend, n: run_back(backend, n, True))

    def time_simulate_vjp_modulated(self, backend, n):
        self.run()
