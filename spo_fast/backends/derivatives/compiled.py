"""Derivatives by the C core through Cython."""

from __future__ import annotations

import numpy as np

from spo_fast._core import FLOW_DEPTH, HALF_FROM, Steps, modulate_sparse_vjp, modulate_vjp
from spo_fast.backends.derivatives.flow import KEPT, STAGES
from spo_fast.backends.derivatives.flow import Flow as _Flow
from spo_fast.validation import Network, SparseCoupling

NAME = "cython"

__all__ = ["NAME", "Flow", "modulate_sparse_vjp", "modulate_vjp"]


class Flow(_Flow):
    """A trajectory of fixed steps, see `spo_fast.backends.derivatives.flow.Flow`."""

    def __init__(self, network: Network, method: str, dt: float) -> None:
        super().__init__(network, method, dt)
        width = -(-self.n // 8) * 8
        self._tape = np.empty((0, STAGES[method], KEPT, width))
        self._buffer = np.empty((KEPT, 0 if self._pattern else FLOW_DEPTH, width))
        self._padded_omega = np.zeros(width)
        self.omega = self._padded_omega[: self.n]
        knm = network.knm if isinstance(network.knm, SparseCoupling) else None
        self._steps = Steps(
            network.omega, knm, STAGES[method], dt, network.uniform_alpha, network.zeta, network.psi
        )
        sines = self._grad_ks if self._lagged else None
        self._steps.receive(self._padded_omega, self.slopes, self._grad_kc, sines, self._buffer)

    def make_room(self, steps: int) -> None:
        """Provide for so many steps on the tape."""
        super().make_room(steps)
        self._steps.record_on(self._tape)

    def couple(self, values: np.ndarray, *, symmetric: bool = False) -> None:
        """Take a coupling."""
        super().couple(values, symmetric=symmetric)
        self._steps.couple(self._kc, self._ks if self._lagged else None, symmetric)
        serves_long = self._network.modulation is None and self.n >= HALF_FROM
        if symmetric and serves_long and not self._lagged and not values.diagonal().any():
            self._steps.pack()

    def follow(self, theta: np.ndarray, steps: int, slot: int | None) -> None:
        """Take steps from `theta`."""
        self._steps.follow(theta, steps, -1 if slot is None else slot)

    def go_back(self, grad: np.ndarray, steps: int, slot: int) -> None:
        """Go steps back."""
        self._steps.go_back(grad, steps, slot)

    def _collect(self) -> None:
        self._steps.collect()
