"""The kernels in a compiled loop of a user's own, and how its time compares with that of ``simulate``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .common import DT, SIZES, Cell, Timed, problem, warmed
from .kuramoto import MODULATED_STEPS, ONE_CALL, seconds, simulate

ROUNDS = 15


@cache
def compiled() -> Callable[..., Any]:
    """Return the loop: K' by `kernels.modulate`, pair by pair, and an Euler step. Numba is imported here."""
    from numba import njit

    from spo_fast import kernels

    modulate, euler_step = kernels.modulate, kernels.euler_step

    @njit(nogil=True)
    def loop(theta, omega, knm, w_q, w_k, w_v, w_o, temperature, dt, n_steps):
        n = theta.size
        theta, modulated, no_lag = theta.copy(), np.empty((n, n)), np.empty((0, 0))
        work = np.empty((kernels.WORK_ROWS, n))
        for _ in range(n_steps):
            modulate(knm, theta, w_q, w_k, w_v, w_o, -1, temperature, 0.5, modulated)
            euler_step(theta, omega, modulated, no_lag, 0.0, 0.0, 0.0, dt, work, theta)
        return theta

    return loop


@cache
def embedded(backend: str, n: int) -> Callable[[], object]:
    import spo_fast

    knm, theta, omega = problem(n)
    weights, loop = spo_fast.default_projections(), compiled()
    return warmed(lambda: loop(theta, omega, knm, *weights, np.ones(4), DT, MODULATED_STEPS[n]))


class Own(Cell):
    params = (("cython", "numba"), SIZES)

    def setup(self, backend, n):
        if backend == "cython":
            raise NotImplementedError("compiled loops call the kernels of Numba only")
        super().setup(backend, n)


class Embedded(Own, Timed):
    """A run of ``MODULATED_STEPS[n]`` Euler steps, K' at each."""

    calls_by_size = ONE_CALL
    prepare = staticmethod(embedded)

    def time_embedded(self, backend, n):
        self.run()


class EmbeddedRatio(Own):
    """Time of the loop over that of ``simulate`` by the same kernels: they take turns, the best counts."""

    unit = "ratio"

    def track_embedded_ratio(self, backend, n):
        direct = {"algorithm": "direct"}
        own, run = [], []
        calls = (
            (own, embedded(backend, n)),
            (run, warmed(simulate(backend, n, n_steps=MODULATED_STEPS[n], modulation=direct))),
        )
        for _ in range(ROUNDS):
            for times, call in calls:
                times.append(seconds(call))
        return min(own) / min(run)
