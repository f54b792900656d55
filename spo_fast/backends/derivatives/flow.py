"""What the backends' flows share: the room they take, and what becomes of a gradient at K cos and K sin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spo_fast.validation import Network, SparseCoupling

STAGES = {"euler": 1, "rk4": 4}
KEPT = 4  # rows of a stage on the tape: sine and cosine of its phases, sums over K of both
DEPTH = 16  # evaluations whose share of the gradient at K is added to it in one go


class Flow:
    """A trajectory of fixed steps through a coupling that may be exchanged, followed and then gone back.

    With s = sin theta, c = cos theta, KC = K cos(alpha) and KS = K sin(alpha) (K and 0 without a lag of each
    pair), P = KC s - KS c and Q = KC c + KS s, and a the one lag of all pairs,

        f_i = omega_i + cos(theta_i + a) P_i - sin(theta_i + a) Q_i + zeta sin(psi - theta_i).

    With g the gradient at f, x = g cos(theta + a) and y = g sin(theta + a), the gradients are

        KC: x s^T - y c^T,   KS: -x c^T - y s^T,   omega: g,   a: -sum (y P + x Q),
        theta: c (KC^T x - KS^T y) + s (KC^T y + KS^T x) - (y P + x Q) - g zeta cos(psi - theta).

    Parameters
    ----------
    network : Network
        Frequencies, lags, drive, and the kind of the coupling; N oscillators.
    method : {"euler", "rk4"}
        Integrator.
    dt : float
        Step size.

    Attributes
    ----------
    omega : ndarray, shape (N,)
        Gradient at the frequencies.
    slopes : ndarray, shape (3,)
        Gradients at a uniform lag, zeta and psi.
    alpha : ndarray or None
        Gradient at the lags where each pair has its own, of their shape.
    """

    def __init__(self, network: Network, method: str, dt: float) -> None:
        knm, n = network.knm, network.omega.size
        self.method, self.dt, self.n = method, dt, n
        self._network = network
        self._pattern = (knm.indptr, knm.indices) if isinstance(knm, SparseCoupling) else None
        shape = (knm.data if isinstance(knm, SparseCoupling) else knm).shape
        self._tape = np.empty((0, STAGES[method], KEPT, n))
        self._buffer = np.empty((0 if self._pattern else DEPTH, KEPT, n))
        self._filled = 0
        lag = network.uniform_alpha
        self._drive = np.array(
            [
                math.cos(lag),
                math.sin(lag),
                network.zeta * math.sin(network.psi),
                network.zeta * math.cos(network.psi),
            ]
        )
        self._lagged = network.alpha is not None
        if network.alpha is not None:
            self._cosine, self._sine = np.cos(network.alpha), np.sin(network.alpha)
        nothing = np.empty((0,) * len(shape))
        self._values: np.ndarray = nothing
        self._kc, self._ks = nothing, nothing
        self._grad_kc = np.zeros(shape)
        self._grad_ks = np.zeros(shape) if self._lagged else nothing
        self.omega, self.slopes = np.zeros(n), np.zeros(3)
        self.alpha = np.zeros(shape) if self._lagged else None

    def make_room(self, steps: int) -> None:
        """Provide for so many steps on the tape."""
        if self._tape.shape[0] < steps:
            self._tape = np.empty((steps, *self._tape.shape[1:]))

    def couple(self, values: np.ndarray, *, symmetric: bool = False) -> None:
        """Take a coupling, shape (N, N) or (E,), for what is followed or gone back from now on.

        `symmetric` tells that it equals its transpose to the last bit, which a backend may make use of.
        """
        self._values = self._kc = values
        if self._lagged:
            self._kc, self._ks = values * self._cosine, values * self._sine

    def follow(self, theta: np.ndarray, steps: int, slot: int | None) -> None:
        """Take steps from `theta`, shape (N,), which becomes the last state, wrapped to [0, 2 pi).

        Parameters
        ----------
        theta : ndarray, shape (N,), radians
            State, written to.
        steps : int
            At least 0.
        slot : int or None
            Where on the tape the first step goes, the others behind it; None keeps nothing.
        """
        raise NotImplementedError

    def go_back(self, grad: np.ndarray, steps: int, slot: int) -> None:
        """Turn `grad`, the gradient at the state after steps that stand on the tape, into that before them.

        Parameters
        ----------
        grad : ndarray, shape (N,)
            Written to.
        steps, slot : int
            Which steps, the last of them first.
        """
        raise NotImplementedError

    def _collect(self) -> None:
        """Add what the buffer holds to the gradients at KC and KS, and empty it."""
        raise NotImplementedError

    def gradient(self) -> np.ndarray:
        """Return the gradient at the coupling since it was taken; that at its lags goes to `alpha`.

        The array serves again after `clear`.
        """
        self._collect()
        if self.alpha is None:
            return self._grad_kc
        self.alpha += self._values * (self._grad_ks * self._cosine - self._grad_kc * self._sine)
        return self._grad_kc * self._cosine + self._grad_ks * self._sine

    def clear(self) -> None:
        """Begin anew with the gradient at the coupling."""
        self._grad_kc[...] = 0.0
        self._grad_ks[...] = 0.0

    @property
    def entries(self) -> int:
        """Stored entries of the coupling."""
        return int(self._grad_kc.size)


Gradients = dict[str, Any]  # of one modulation, by argument: arrays, and a number for lambda_
