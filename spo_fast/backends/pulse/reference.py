"""The parts of context-pulse attention in NumPy: the formulas, readable.

Tokens come first in the arrays, (B, N, H, d), until `turn` hands them to softmax attention as (B, H, N, d).
"""

from __future__ import annotations

from typing import Any

import numpy as np

_Pair = tuple[np.ndarray, np.ndarray]


# ---------------------------------------------------------------- gate


def gate(x: np.ndarray, g: np.ndarray, *, workers: int) -> np.ndarray:
    """sigmoid(g) x, of one shape."""
    return x * sigmoid(g)


def gate_vjp(x: np.ndarray, g: np.ndarray, grad: np.ndarray, *, workers: int) -> _Pair:
    """Gradients at x and g."""
    share = sigmoid(g)
    return grad * share, grad * x * share * (1 - share)


def sigmoid(g: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-g)), without overflow on either side."""
    small = np.exp(-np.abs(g))
    return np.where(g >= 0, 1, small) / (1 + small)


# ---------------------------------------------------------------- leaky scan


def leaky_scan(x: np.ndarray, decay: float, out: np.ndarray, *, workers: int) -> None:
    """c_t = decay c_{t-1} + (1 - decay) x_t from c_{-1} = 0, along the second axis of x, (B, N, C)."""
    state = np.zeros((x.shape[0], x.shape[2]), x.dtype)
    keep, take = x.dtype.type(decay), x.dtype.type(1.0 - decay)
    for t in range(x.shape[1]):
        state = keep * state + take * x[:, t]
        out[:, t] = state


def leaky_scan_vjp(
    x: np.ndarray, decay: float, c: np.ndarray | None, grad: np.ndarray, *, workers: int
) -> tuple[np.ndarray, float]:
    """Gradients at x and at the decay; c is the result, or None: then that at the decay is not taken, but 0.

    With l_t = grad_t + decay l_{t+1}: dx_t = (1 - decay) l_t, ddecay = sum_t l_t (c_{t-1} - x_t).
    """
    dx = np.empty_like(x)
    carried = np.zeros((x.shape[0], x.shape[2]), x.dtype)
    keep, take, ddecay = x.dtype.type(decay), x.dtype.type(1.0 - decay), 0.0
    for t in reversed(range(x.shape[1])):
        carried = grad[:, t] + keep * carried
        dx[:, t] = take * carried
        if c is not None:
            before = c[:, t - 1] if t else 0
            ddecay += float((carried * (before - x[:, t])).sum(dtype=np.float64))
    return dx, ddecay


# ---------------------------------------------------------------- resonance with past chunks


def resonance(
    u: np.ndarray,
    k: np.ndarray,
    *,
    chunk: int,
    scale: float,
    basis: np.ndarray | None,
    last_basis: np.ndarray | None,
    per_token: bool,
    workers: int,
) -> np.ndarray:
    """Running sums in chunks, with what was remembered of past chunks that resemble the keys.

    In chunk n, with running sums s_t of u from its start, e_{n-1} the last c of the chunk before, and M_m
    what is remembered of chunk m:

        c_t = s_t                                              in the first chunk
        c_t = s_t + e_{n-1} + z_t - (last row of the z + e of the chunk before)        in others

    Without a basis M_m = e_m, z_t = sum_{m<n} p_tm M_m with p_t = softmax over m of scale k_t . M_m, and
    nothing is subtracted. With a basis W (chunk, w), M_m = W^T c of the chunk, w rows of d numbers; z_t = W_t
    sum_m p_m M_m, with p = softmax over m of scale sum (W^T k of the chunk) M_m: one for all of the chunk,
    or, `per_token`, one for each token, with W^T k over the tokens of the chunk up to this one. What is
    subtracted is 0 after the first chunk.

    Parameters
    ----------
    u, k : ndarray, shape (B, N, H, d)
        What is summed, and keys.
    chunk : int
        Tokens of a chunk.
    scale : float
        Factor of the scores.
    basis : ndarray, shape (chunk, w), or None
        Moments that are remembered of a chunk; None: its last state.
    last_basis : ndarray, shape (l, w), or None
        Those of the last chunk, which has l tokens.
    per_token : bool
        Whether each token recalls by itself and by the past alone; of no account without a basis.
    workers : int
        Not used: NumPy decides about threads.

    Returns
    -------
    ndarray, shape (B, N, H, d)
        The states c.
    """
    memory = _Memory(u.shape, chunk, basis, last_basis, per_token, scale)
    heads_first = [np.ascontiguousarray(array.transpose(0, 2, 1, 3)) for array in (u, k)]
    c = np.empty_like(heads_first[0])
    past = np.empty((*c.shape[:2], len(memory.chunks), memory.width), c.dtype)
    injected = np.zeros_like(c[:, :, :1])  # last row of the chunk before, subtracted from the next
    for n, rows in enumerate(memory.chunks):
        c[:, :, rows] = np.cumsum(heads_first[0][:, :, rows], axis=2)
        if n:
            _, weights = memory.recall(heads_first[1][:, :, rows], past[:, :, :n], rows)
            inject = c[:, :, rows.start - 1, None] + memory.spread(weights @ past[:, :, :n], rows)
            c[:, :, rows] += inject - injected
            injected = inject[:, :, -1:] if basis is not None else injected
        past[:, :, n] = memory.remember(c[:, :, rows], rows)
    return np.ascontiguousarray(c.transpose(0, 2, 1, 3))


def resonance_vjp(
    u: np.ndarray,
    k: np.ndarray,
    c: np.ndarray,
    grad: np.ndarray,
    *,
    chunk: int,
    scale: float,
    basis: np.ndarray | None,
    last_basis: np.ndarray | None,
    per_token: bool,
    workers: int,
) -> _Pair:
    """Gradients at u and k; c is the result. What was remembered is found in it again.

    Parameters
    ----------
    grad : ndarray, shape (B, N, H, d)
        Gradient at c.
    """
    memory = _Memory(u.shape, chunk, basis, last_basis, per_token, scale)
    keys, states, g = (np.ascontiguousarray(array.transpose(0, 2, 1, 3)) for array in (k, c, grad))
    du, dk = np.empty_like(keys), np.zeros_like(keys)
    past = np.stack([memory.remember(states[:, :, rows], rows) for rows in memory.chunks], axis=2)
    dpast = np.zeros_like(past)
    dstate = np.zeros_like(g[:, :, 0])  # at the last state of the chunk
    dinjected = np.zeros_like(dstate)  # at the last row of what was injected into it
    for n in reversed(range(len(memory.chunks))):
        rows = memory.chunks[n]
        now = g[:, :, rows] + memory.remember_backwards(dpast[:, :, n], rows)
        now[:, :, -1] += dstate
        du[:, :, rows] = np.cumsum(now[:, :, ::-1], axis=2)[:, :, ::-1]
        if n == 0:
            break
        whole = now.sum(axis=2)
        now[:, :, -1] += dinjected
        dstate = whole + dinjected
        dinjected = -whole if basis is not None and n > 1 else np.zeros_like(whole)
        before = past[:, :, :n]
        asked, weights = memory.recall(keys[:, :, rows], before, rows)
        drecalled = memory.spread_backwards(now, rows)
        dweights = drecalled @ before.swapaxes(2, 3)
        dscores = (
            weights * (dweights - (weights * dweights).sum(axis=3, keepdims=True)) * keys.dtype.type(scale)
        )
        dpast[:, :, :n] += weights.swapaxes(2, 3) @ drecalled + dscores.swapaxes(2, 3) @ asked
        dk[:, :, rows] = memory.ask_backwards(dscores @ before, rows)
    return (
        np.ascontiguousarray(du.transpose(0, 2, 1, 3)),
        np.ascontiguousarray(dk.transpose(0, 2, 1, 3)),
    )


class _Memory:
    """How chunks are remembered and recalled; arrays (B, H, rows, ...), a chunk's rows given as a slice."""

    def __init__(
        self,
        shape: tuple[int, ...],
        chunk: int,
        basis: np.ndarray | None,
        last_basis: np.ndarray | None,
        per_token: bool,
        scale: float,
    ) -> None:
        n, self.columns = shape[1], shape[3]
        self.chunks = [slice(start, min(start + chunk, n)) for start in range(0, n, chunk)]
        self.basis, self.last_basis, self.per_token, self.scale = basis, last_basis, per_token, scale
        self.width = self.columns * (1 if basis is None else basis.shape[1])

    def _basis(self, rows: slice) -> Any:
        """Basis (l, w) of a chunk."""
        return self.last_basis if rows == self.chunks[-1] else self.basis

    def _split(self, flat: np.ndarray) -> np.ndarray:
        """(..., w d) as (..., w, d)."""
        return flat.reshape(*flat.shape[:-1], -1, self.columns)

    def remember(self, states: np.ndarray, rows: slice) -> np.ndarray:
        """M of a chunk, (B, H, w d)."""
        if self.basis is None:
            return states[:, :, -1]
        moments = self._basis(rows).T @ states
        return moments.reshape(*moments.shape[:2], -1)

    def remember_backwards(self, grad: np.ndarray, rows: slice) -> np.ndarray:
        """Gradient at the states of a chunk."""
        if self.basis is None:
            result = np.zeros((*grad.shape[:2], rows.stop - rows.start, self.columns), grad.dtype)
            result[:, :, -1] = grad
            return result
        return self._basis(rows) @ self._split(grad)

    def ask(self, keys: np.ndarray, rows: slice) -> np.ndarray:
        """What the past is compared with: (B, H, 1 or l, w d)."""
        if self.basis is None:
            return keys
        terms = self._basis(rows)[:, :, None] * keys[:, :, :, None]
        asked = np.cumsum(terms, axis=2) if self.per_token else terms.sum(axis=2, keepdims=True)
        return asked.reshape(*asked.shape[:3], -1)

    def ask_backwards(self, grad: np.ndarray, rows: slice) -> np.ndarray:
        """Gradient at the keys of a chunk."""
        if self.basis is None:
            return grad
        split = self._split(grad)
        if self.per_token:
            split = np.cumsum(split[:, :, ::-1], axis=2)[:, :, ::-1]
        return (self._basis(rows)[:, :, None] * split).sum(axis=3)

    def recall(self, keys: np.ndarray, past: np.ndarray, rows: slice) -> _Pair:
        """What is compared, and the weights of the past chunks, (B, H, 1 or l, n)."""
        asked = self.ask(keys, rows)
        scores = (asked @ past.swapaxes(2, 3)) * asked.dtype.type(self.scale)
        weights = np.exp(scores - scores.max(axis=3, keepdims=True))
        return asked, weights / weights.sum(axis=3, keepdims=True)

    def spread(self, recalled: np.ndarray, rows: slice) -> np.ndarray:
        """Take z of each token from sum_m p_m M_m."""
        if self.basis is None:
            return recalled
        return (self._basis(rows)[:, :, None] * self._split(recalled)).sum(axis=3)

    def spread_backwards(self, grad: np.ndarray, rows: slice) -> np.ndarray:
        """Gradient at sum_m p_m M_m."""
        if self.basis is None:
            return grad
        terms = self._basis(rows)[:, :, None] * grad[:, :, :, None]
        if not self.per_token:
            terms = terms.sum(axis=2, keepdims=True)
        return terms.reshape(*terms.shape[:3], -1)


# ---------------------------------------------------------------- normalise, twist, rotate


def token_moments(x: np.ndarray, *, workers: int) -> _Pair:
    """Mean of each token's numbers in a head and the sum of their squared distances from it, in float64.

    Parameters
    ----------
    x : ndarray, shape (B, N, H, d)

    Returns
    -------
    mean, squares : ndarray, shape (B, N, H), float64
    """
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by its result
        mean = x.mean(axis=3, dtype=np.float64)
        return mean, ((x - mean[..., None]) ** 2).sum(axis=3)


def rotate(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """Turn each pair (x_2k, x_2k+1) of (..., N, d) by its angle; first components come first.

    Parameters
    ----------
    cosine, sine : ndarray, shape (N, d/2)
        Of the angles.
    """
    a, b = x[..., ::2], x[..., 1::2]
    return np.concatenate([a * cosine - b * sine, a * sine + b * cosine], axis=-1)


def rotate_backwards(grad: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """Gradient at x: the turn undone."""
    first, second = np.split(grad, 2, axis=-1)
    result = np.empty_like(grad)
    result[..., ::2] = first * cosine + second * sine
    result[..., 1::2] = second * cosine - first * sine
    return result


def turn(
    x: np.ndarray,
    shift: np.ndarray,
    factor: np.ndarray,
    twist: np.ndarray | None,
    cosine: np.ndarray,
    sine: np.ndarray,
    *,
    twist_first: bool,
    workers: int,
) -> np.ndarray:
    """Normalised, twisted and rotated tokens: y = (x - shift) factor, times T and rotated, in some order.

    Parameters
    ----------
    x : ndarray, shape (B, N, H, d)
        Tokens; d is even.
    shift, factor : ndarray, shape (B, N, H), float64
        Of the normalisation.
    twist : ndarray, shape (H, d, d), or None
        T of each head; None: no twist.
    cosine, sine : ndarray, shape (N, d/2)
        Of the angles, see `rotate`.
    twist_first : bool
        Whether the twist comes before the rotation.
    workers : int
        Not used: NumPy decides about threads.

    Returns
    -------
    ndarray, shape (B, H, N, d)
    """
    y = _normalised(x, shift, factor)
    if twist is None:
        return rotate(y, cosine, sine)
    return rotate(y @ twist, cosine, sine) if twist_first else rotate(y, cosine, sine) @ twist


def turn_vjp(
    x: np.ndarray,
    shift: np.ndarray,
    factor: np.ndarray,
    twist: np.ndarray | None,
    cosine: np.ndarray,
    sine: np.ndarray,
    grad: np.ndarray,
    *,
    twist_first: bool,
    workers: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """From the gradient at the result, (B, H, N, d), to that at the normalised tokens.

    Returns
    -------
    g : ndarray, shape (B, N, H, d)
        Gradient at y = (x - shift) factor.
    slopes, products : ndarray, shape (B, N, H), float64
        Sums over a token of g and of g y.
    dtwist : ndarray, shape (H, d, d), float64, or None
        Gradient at T.
    """
    y = _normalised(x, shift, factor)
    dtwist = None
    if twist is None:
        g = rotate_backwards(grad, cosine, sine)
    else:
        if twist_first:
            entered, grad = y, rotate_backwards(grad, cosine, sine)
        else:
            entered = rotate(y, cosine, sine)
        dtwist = (entered.swapaxes(2, 3) @ grad).sum(axis=0, dtype=np.float64)
        g = grad @ twist.swapaxes(1, 2)
        if not twist_first:
            g = rotate_backwards(g, cosine, sine)
    sums = [terms.sum(axis=3, dtype=np.float64).transpose(0, 2, 1) for terms in (g, g * y)]
    return np.ascontiguousarray(g.transpose(0, 2, 1, 3)), sums[0], sums[1], dtwist


def _normalised(x: np.ndarray, shift: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """(x - shift) factor, heads first."""
    y = ((x - shift[..., None]) * factor[..., None]).astype(x.dtype)
    return np.ascontiguousarray(y.transpose(0, 2, 1, 3))


def unnormalise(
    g: np.ndarray,
    x: np.ndarray,
    factor: np.ndarray,
    alpha: np.ndarray,
    beta: np.ndarray,
    mean: np.ndarray,
    *,
    workers: int,
) -> None:
    """Turn g (B, N, H, d) into factor (g + alpha + beta (x - mean)); the others are (B, N, H)."""
    factor, alpha, beta, mean = (array[..., None] for array in (factor, alpha, beta, mean))
    g[...] = factor * (g + alpha + beta * (x - mean))
