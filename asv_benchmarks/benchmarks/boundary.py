"""The empty call: what a call costs that has nothing to compute, N = 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from .common import BACKENDS, DT, Timed, require, warmed

CALLS = 4096


@cache
def empty_modulate(backend: str) -> Callable[[], object]:
    import spo_fast

    knm, theta, out = np.zeros((0, 0)), np.zeros(0), np.zeros((0, 0))
    return warmed(lambda: spo_fast.modulate(knm, theta, out=out, backend=backend))


@cache
def empty_step(backend: str) -> Callable[[], object]:
    import spo_fast

    knm, theta, omega = np.zeros((0, 0)), np.zeros(0), np.zeros(0)
    engine = spo_fast.Engine(0, DT, backend=backend)
    return warmed(lambda: engine.step(theta, omega, knm))


class Empty(Timed):
    """A benchmark by backend alone."""

    params = (BACKENDS,)
    param_names = ("backend",)

    def setup(self, backend):
        require(backend)
        self.batch(self.prepare(backend), CALLS)


class EmptyModulate(Empty):
    prepare = staticmethod(empty_modulate)

    def time_empty_modulate(self, backend):
        self.run()


class EmptyStep(Empty):
    prepare = staticmethod(empty_step)

    def time_empty_step(self, backend):
        self.run()


class EmptyNative(Empty):
    """A call through Cython into C and back that takes and computes nothing; there is none elsewhere."""

    def setup(self, backend):
        if backend != "cython":
            raise NotImplementedError("only the cython backend has such a function")
        super().setup(backend)

    @staticmethod
    def prepare(backend):
        from spo_fast import _core

        return warmed(_core.abi_version)

    def time_empty_native(self, backend):
        self.run()
