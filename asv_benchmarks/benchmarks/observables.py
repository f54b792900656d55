"""Observables of a trajectory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from .common import SIZES, Timed, warmed

ENTRIES = 16_384  # phases in a trajectory, however many oscillators it has
CALLS = dict.fromkeys(SIZES, 8)


@cache
def order_parameter(backend: str, n: int) -> Callable[[], object]:
    import spo_fast

    theta = np.random.default_rng(0).uniform(0.0, 2.0 * np.pi, (ENTRIES // n, n))
    return warmed(lambda: spo_fast.order_parameter(theta, backend=backend))


class OrderParameter(Timed):
    calls_by_size = CALLS
    prepare = staticmethod(order_parameter)

    def time_order_parameter(self, backend, n):
        self.run()
