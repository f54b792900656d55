"""Derivatives by the Numba kernels of ``spo_fast.kernels``.

Matrices enter the kernels as read-only views and vectors writable, so that each kernel is compiled once. The
kernels run on the calling thread, without the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spo_fast.backends import jit
from spo_fast.backends.derivatives.flow import DEPTH, KEPT, Gradients
from spo_fast.backends.derivatives.flow import Flow as _Flow
from spo_fast.backends.jit import NAME as NAME
from spo_fast.backends.status import Status
from spo_fast.kernels import derivatives as kernels
from spo_fast.kernels.modulation import inspect_coupling
from spo_fast.validation import (
    ModulationParameters,
    Network,
    SparseCoupling,
    explain_refusal,
)

__all__ = ["NAME", "Flow", "modulate_sparse_vjp", "modulate_vjp"]


def _room(p: ModulationParameters, n: int) -> tuple[np.ndarray, ...]:
    """Arrays for all gradients but that at the coupling, in the order of the kernels."""
    weights = (np.empty_like(array) for array in (p.w_q, p.w_k, p.w_v, p.w_o, p.temperature))
    return (np.empty(n), *weights, np.empty(1))


def _named(knm: np.ndarray, others: tuple[np.ndarray, ...]) -> Gradients:
    names = ("theta", "w_q", "w_k", "w_v", "w_o", "temperature")
    found: Gradients = {"knm": knm} | dict(zip(names, others[:-1], strict=True))
    return found | {"lambda_": float(others[-1][0])}


def modulate_vjp(
    knm: np.ndarray, theta: np.ndarray, grad: np.ndarray, p: ModulationParameters, *, workers: int
) -> Gradients:
    """Gradients of a modulation, see `spo_fast.backends.derivatives.reference.modulate_vjp`."""
    phases, dknm, others = jit._writable(theta), np.empty(knm.shape), _room(p, theta.size)
    coupling = jit._readonly(knm)
    status, structure = inspect_coupling(coupling)
    if status != Status.OK:
        explain_refusal(knm, phases, status)
    jit._refuse_nonfinite(phases)
    kernels.apply_modulation_vjp(
        coupling, structure, phases, *jit._weights(p), jit._readonly(grad), dknm, *others
    )
    return _named(dknm, others)


def modulate_sparse_vjp(
    coupling: SparseCoupling,
    mirror: np.ndarray,
    theta: np.ndarray,
    grad: np.ndarray,
    p: ModulationParameters,
    *,
    workers: int,
) -> Gradients:
    """The same on edges, see `spo_fast.backends.derivatives.reference.modulate_sparse_vjp`."""
    phases, ddata, others = jit._writable(theta), np.empty(coupling.data.size), _room(p, theta.size)
    jit._refuse_nonfinite(phases)
    values = jit._symmetric_values(coupling)
    kernels.apply_modulation_sparse_vjp(
        *jit._pattern(coupling),
        *values,
        mirror,
        phases,
        *jit._weights(p),
        jit._readonly(grad),
        ddata,
        *others,
    )
    return _named(ddata, others)


class Flow(_Flow):
    """A trajectory of fixed steps, see `spo_fast.backends.derivatives.flow.Flow`."""

    def __init__(self, network: Network, method: str, dt: float) -> None:
        super().__init__(network, method, dt)
        self._buffer = np.empty((KEPT, 0 if self._pattern else DEPTH, self.n))
        self._work = np.empty((kernels.WORK_ROWS, self.n))
        self._omega = jit._writable(network.omega)
        self._turn = np.concatenate([self._drive, [np.sin(network.psi), np.cos(network.psi)]])

    def _coupling(self) -> tuple[Any, ...]:
        pattern = () if self._pattern is None else tuple(map(jit._readonly, self._pattern))
        return (jit._readonly(self._kc), jit._readonly(self._ks), *pattern)

    def follow(self, theta: np.ndarray, steps: int, slot: int | None) -> None:
        """Take steps from `theta`."""
        place = -1 if slot is None else slot
        kernels.follow(
            theta, steps, place, self.dt, self._omega, self._coupling(), self._turn, self._tape, self._work
        )

    def go_back(self, grad: np.ndarray, steps: int, slot: int) -> None:
        """Go steps back."""
        self._filled = kernels.go_back(
            grad, steps, slot, self.dt, self._coupling(), self._turn, self._tape, self._buffer, self._filled,
            self.omega, self.slopes, self._grad_kc, self._grad_ks, self._work,
        )  # fmt: skip

    def _collect(self) -> None:
        if self._filled:
            kernels.collect(self._buffer, self._filled, self._grad_kc, self._grad_ks)
            self._filled = 0
