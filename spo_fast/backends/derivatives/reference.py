"""Derivatives in NumPy: the formulas to read.

Attention is computed anew, a block of rows at a time, both forward and back: nothing of the size of H N^2 is
held. Of a dense coupling temporaries are a few (N, N) arrays.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spo_fast.backends.derivatives.flow import DEPTH, STAGES, Gradients
from spo_fast.backends.derivatives.flow import Flow as _Flow
from spo_fast.backends.reference import (
    _NORM_FLOOR,
    NAME,
    Edges,
    attention,
    dots,
    embedding,
    neighbours,
    sparse_attention,
    wrap,
)
from spo_fast.validation import ModulationParameters, SparseCoupling, explain_coupling, explain_nonfinite

_BLOCK = 1 << 18  # entries of an attention matrix that are held at once: 2 MB

__all__ = ["NAME", "Flow", "modulate_sparse_vjp", "modulate_vjp"]

# ---------------------------------------------------------------- modulation


class _Projected:
    """Queries, keys and values of all oscillators, and what comes back to them.

    Attributes
    ----------
    x : ndarray, shape (N, d)
        Phase embedding.
    q, k, v, dq, dk, dv : ndarray, shape (H, N, d_h)
        Projections, and gradients at them.
    scale : ndarray, shape (H,)
        Factor of q . k in a logit.
    """

    def __init__(self, theta: np.ndarray, p: ModulationParameters) -> None:
        self.parameters = p
        self.x = embedding(theta, p.d_model)
        self.q, self.k, self.v = self.x @ p.w_q, self.x @ p.w_k, self.x @ p.w_v
        self.dq, self.dk, self.dv = (np.zeros_like(self.q) for _ in range(3))
        self.scale = 1.0 / (np.sqrt(self.q.shape[2]) * p.temperature)

    def heads(self) -> Iterator[tuple[int, slice]]:
        """Each head, and its columns side by side with those of the others."""
        width = self.q.shape[2]
        for h in range(self.q.shape[0]):
            yield h, slice(h * width, (h + 1) * width)

    def back(self) -> Gradients:
        """Gradients at theta, w_q, w_k, w_v and temperature from dq, dk and dv."""
        p, x = self.parameters, self.x
        dx = np.zeros_like(x)
        found: Gradients = {}
        for name, w, grad in (("w_q", p.w_q, self.dq), ("w_k", p.w_k, self.dk), ("w_v", p.w_v, self.dv)):
            found[name] = x.T @ grad
            dx += (grad @ w.transpose(0, 2, 1)).sum(axis=0)
        # A logit is q . k / tau: tau d/dtau is minus q d/dq.
        found["temperature"] = -(self.q * self.dq).sum(axis=(1, 2)) / p.temperature
        order = np.arange(1.0, p.d_model // 2 + 1)
        found["theta"] = (x[:, 0::2] * dx[:, 1::2] - x[:, 1::2] * dx[:, 0::2]) @ order
        return found


class _Units:
    """Unit outputs o_i = O_i / (|O_i| + 1e-12), O = y W_O, and the way back through them.

    Parameters
    ----------
    mixed : ndarray, shape (N, d)
        y, the heads' results side by side.
    w_o : ndarray, shape (d, d)
        Output projection.
    """

    def __init__(self, mixed: np.ndarray, w_o: np.ndarray) -> None:
        self._mixed, self._w_o = mixed, w_o
        outputs = mixed @ w_o
        self._length = np.linalg.norm(outputs, axis=1, keepdims=True)
        self.units = outputs / (self._length + _NORM_FLOOR)

    def back(self, grad: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradients at y and W_O from that at the unit outputs. An output of length 0 has no direction."""
        length = self._length
        along = (grad * self.units).sum(axis=1, keepdims=True)
        radial = np.divide(along, length, out=np.zeros_like(along), where=length > 0.0)
        outputs = grad / (length + _NORM_FLOOR) - self.units * radial
        return outputs @ self._w_o.T, self._mixed.T @ outputs


def _row_blocks(n: int) -> Iterator[slice]:
    rows = max(1, _BLOCK // max(n, 1))
    for start in range(0, n, rows):
        yield slice(start, min(n, start + rows))


def modulate_vjp(
    knm: np.ndarray, theta: np.ndarray, grad: np.ndarray, p: ModulationParameters, *, workers: int
) -> Gradients:
    """Gradients of sum(K' * grad) for the K' that `p` makes of `knm` at `theta`.

    With S = (G + G^T) / 2 and a zero diagonal, K' = (M + M^T) / 2 and M = K (1 + lambda a) give
    dK = S (1 + lambda a), dlambda = sum S K a and da = lambda S K, of which a_ij = (1 + o_i . o_j) m_ij / 2
    takes do_i = lambda / 2 sum_j S_ij (m_ij K_ij + m_ji K_ji) o_j. The mask m does not move.

    Parameters
    ----------
    knm : ndarray, shape (N, N)
        Symmetric coupling with a zero diagonal.
    theta : ndarray, shape (N,), radians
        Phases.
    grad : ndarray, shape (N, N)
        G, the gradient at K'.
    p : ModulationParameters
        Checked parameters.
    workers : int
        Not used.

    Returns
    -------
    dict
        Gradients by the name of the argument. O(H N^2 d_h + N^2 d).

    Raises
    ------
    ValueError
        For a coupling or phases that are not of that form or not finite.
    """
    explain_coupling(knm)
    explain_nonfinite(theta=theta)
    n = theta.size
    at, mask = _Projected(theta, p), neighbours(knm, p.block_size)
    mixed = np.empty((n, p.d_model))
    for rows in _row_blocks(n):
        for h, columns in at.heads():
            mixed[rows, columns] = _softmax(at, h, rows, mask) @ at.v[h]
    outputs = _Units(mixed, p.w_o)
    units = outputs.units
    symmetric = 0.5 * (grad + grad.T)
    np.fill_diagonal(symmetric, 0.0)
    affinity = 0.5 * (1.0 + units @ units.T) * mask
    seen = knm * mask
    found: Gradients = {
        "knm": symmetric * (1.0 + p.lambda_ * affinity),
        "lambda_": float(np.sum(symmetric * seen * affinity)),
    }
    dmixed, found["w_o"] = outputs.back(0.5 * p.lambda_ * ((symmetric * (seen + seen.T)) @ units))
    for rows in _row_blocks(n):
        for h, columns in at.heads():
            weights, grads = _softmax(at, h, rows, mask), dmixed[rows, columns]
            mean = (grads * mixed[rows, columns]).sum(axis=1, keepdims=True)
            slopes = at.scale[h] * weights * (grads @ at.v[h].T - mean)
            at.dv[h] += weights.T @ grads
            at.dq[h, rows] = slopes @ at.k[h]
            at.dk[h] += slopes.T @ at.q[h, rows]
    return found | at.back()


def _softmax(at: _Projected, h: int, rows: slice, mask: np.ndarray) -> np.ndarray:
    return attention(at.scale[h] * (at.q[h, rows] @ at.k[h].T), mask[rows])


def modulate_sparse_vjp(
    coupling: SparseCoupling,
    mirror: np.ndarray,
    theta: np.ndarray,
    grad: np.ndarray,
    p: ModulationParameters,
    *,
    workers: int,
) -> Gradients:
    """Gradients as of `modulate_vjp` on the stored entries of a coupling.

    Parameters
    ----------
    coupling : SparseCoupling
        Symmetric, with its mean; E stored entries.
    mirror : ndarray, shape (E,), int64
        Place of each entry's mirror image.
    theta : ndarray, shape (N,), radians
        Phases.
    grad : ndarray, shape (E,)
        Gradient at the entries of K'.
    p : ModulationParameters
        Checked parameters.
    workers : int
        Not used.

    Returns
    -------
    dict
        As of `modulate_vjp`; that at knm is of shape (E,). O(H E d_h + E d).

    Raises
    ------
    ValueError
        For phases that are not finite.
    """
    explain_nonfinite(theta=theta)
    assert coupling.mean is not None
    edges, at = Edges(coupling, p.block_size), _Projected(theta, p)
    mixed = np.empty((theta.size, p.d_model))
    for h, columns in at.heads():
        weights = _edge_softmax(at, h, edges)
        for e, value in zip(range(columns.start, columns.stop), at.v[h].T, strict=True):
            mixed[:, e] = edges.sum(weights * value[edges.columns])
    outputs = _Units(mixed, p.w_o)
    units = outputs.units
    symmetric = 0.5 * (grad + grad[mirror])
    symmetric[coupling.rows() == coupling.indices] = 0.0
    affinity = np.zeros_like(symmetric)
    affinity[edges.band] = 0.5 * (1.0 + dots(units, units, *edges.pairs))
    felt = symmetric * coupling.mean * affinity
    found: Gradients = {
        "knm": symmetric * (1.0 + p.lambda_ * affinity * (coupling.data != 0.0)),
        "lambda_": float(felt.sum()),
    }
    pull = np.empty_like(units)
    rows, columns_of = edges.pairs
    strength = p.lambda_ * (symmetric * coupling.mean)[edges.band]
    for e in range(p.d_model):
        pull[:, e] = np.bincount(rows, strength * units[columns_of, e], minlength=theta.size)
    dmixed, found["w_o"] = outputs.back(pull)
    for h, columns in at.heads():
        _edge_softmax_back(at, h, edges, mixed[:, columns], dmixed[:, columns])
    return found | at.back()


def _edge_softmax(at: _Projected, h: int, edges: Edges) -> np.ndarray:
    return sparse_attention(at.scale[h] * dots(at.q[h], at.k[h], edges.rows, edges.columns), edges)


def _edge_softmax_back(at: _Projected, h: int, edges: Edges, mixed: np.ndarray, grads: np.ndarray) -> None:
    """Fill dq, dk and dv of one head."""
    n, weights = mixed.shape[0], _edge_softmax(at, h, edges)
    mean = (grads * mixed).sum(axis=1)
    slopes = at.scale[h] * weights * (dots(grads, at.v[h], edges.rows, edges.columns) - mean[edges.rows])
    for e in range(mixed.shape[1]):
        at.dq[h, :, e] = edges.sum(slopes * at.k[h, edges.columns, e])
        at.dk[h, :, e] = np.bincount(edges.columns, slopes * at.q[h, edges.rows, e], minlength=n)
        at.dv[h, :, e] = np.bincount(edges.columns, weights * grads[edges.rows, e], minlength=n)


# ---------------------------------------------------------------- steps


class Flow(_Flow):
    """A trajectory of fixed steps, see `spo_fast.backends.derivatives.flow.Flow`."""

    def follow(self, theta: np.ndarray, steps: int, slot: int | None) -> None:
        """Take steps from `theta`. O(N^2) for each stage, O(E) for a sparse coupling."""
        with np.errstate(invalid="ignore", over="ignore"):
            for step in range(steps):
                kept = np.empty(self._tape.shape[1:]) if slot is None else self._tape[slot + step]
                theta[...] = wrap(self._step(theta, kept))

    def _step(self, theta: np.ndarray, kept: np.ndarray) -> np.ndarray:
        dt = self.dt
        k1 = self._drift(theta, kept[0])
        if self.method == "euler":
            return theta + dt * k1
        k2 = self._drift(theta + 0.5 * dt * k1, kept[1])
        k3 = self._drift(theta + 0.5 * dt * k2, kept[2])
        k4 = self._drift(theta + dt * k3, kept[3])
        return theta + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    def _drift(self, theta: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """F at `theta`; keeps sine, cosine, P and Q, shape (4, N)."""
        sine, cosine = np.sin(theta), np.cos(theta)
        p, q = self._times(self._kc, sine), self._times(self._kc, cosine)
        if self._lagged:
            p = p - self._times(self._ks, cosine)
            q = q + self._times(self._ks, sine)
        kept[...] = sine, cosine, p, q
        x, y = self._received(kept)
        _, _, drive_sine, drive_cosine = self._drive
        return self._network.omega + x * p - y * q + drive_sine * cosine - drive_cosine * sine

    def _received(self, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosine and sine of theta + a."""
        sine, cosine = kept[0], kept[1]
        turn_cosine, turn_sine = self._drive[:2]
        return cosine * turn_cosine - sine * turn_sine, sine * turn_cosine + cosine * turn_sine

    def _times(self, values: np.ndarray, vector: np.ndarray) -> np.ndarray:
        if self._pattern is None:
            return values @ vector
        rows, columns = self._places()
        return np.bincount(rows, values * vector[columns], minlength=self.n)

    def _transposed_times(self, values: np.ndarray, vector: np.ndarray) -> np.ndarray:
        if self._pattern is None:
            return vector @ values
        rows, columns = self._places()
        return np.bincount(columns, values * vector[rows], minlength=self.n)

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(self._network.knm, SparseCoupling)
        return self._network.knm.rows(), self._network.knm.indices

    def go_back(self, grad: np.ndarray, steps: int, slot: int) -> None:
        """Go steps back. Twice the cost of following them, and as much again for the gradient at K."""
        dt, stages = self.dt, STAGES[self.method]
        for step in reversed(range(slot, slot + steps)):
            kept, after = self._tape[step], grad.copy()
            if stages == 1:
                grad += self._drift_back(kept[0], dt * after)
                continue
            back = self._drift_back(kept[3], dt / 6.0 * after)
            grad += back
            back = self._drift_back(kept[2], dt / 3.0 * after + dt * back)
            grad += back
            back = self._drift_back(kept[1], dt / 3.0 * after + 0.5 * dt * back)
            grad += back
            grad += self._drift_back(kept[0], dt / 6.0 * after + 0.5 * dt * back)

    def _drift_back(self, kept: np.ndarray, grad: np.ndarray) -> np.ndarray:
        """Gradient at the phases of a stage from that at its drift; the others are added up."""
        sine, cosine, p, q = kept
        cosine_received, sine_received = self._received(kept)
        x, y = grad * cosine_received, grad * sine_received
        along, across = self._transposed_times(self._kc, x), self._transposed_times(self._kc, y)
        if self._lagged:
            along = along - self._transposed_times(self._ks, y)
            across = across + self._transposed_times(self._ks, x)
        received = y * p + x * q
        net = self._network
        drive = np.sin(net.psi) * sine + np.cos(net.psi) * cosine  # cos(psi - theta)
        self.omega += grad
        self.slopes[0] -= received.sum()
        self.slopes[1] += grad @ (np.sin(net.psi) * cosine - np.cos(net.psi) * sine)
        self.slopes[2] += net.zeta * (grad @ drive)
        self._add_pairs(x, y, sine, cosine)
        return cosine * along + sine * across - received - net.zeta * grad * drive

    def _add_pairs(self, x: np.ndarray, y: np.ndarray, sine: np.ndarray, cosine: np.ndarray) -> None:
        """Gradient at KC and KS: at once along edges, else when the buffer is full."""
        if self._pattern is not None:
            rows, columns = self._places()
            self._grad_kc += x[rows] * sine[columns] - y[rows] * cosine[columns]
            if self._lagged:
                self._grad_ks -= x[rows] * cosine[columns] + y[rows] * sine[columns]
            return
        self._buffer[self._filled] = x, y, sine, cosine
        self._filled += 1
        if self._filled == DEPTH:
            self._collect()

    def _collect(self) -> None:
        if not self._filled:
            return
        x, y, sine, cosine = self._buffer[: self._filled].transpose(1, 0, 2)
        self._grad_kc += x.T @ sine - y.T @ cosine
        if self._lagged:
            self._grad_ks -= x.T @ cosine + y.T @ sine
        self._filled = 0
