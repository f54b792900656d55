"""The parts of context-pulse attention by the Numba kernels of ``spo_fast.kernels``; see `reference`.

All arrays enter the kernels writable, so that each is compiled once for each precision; a read-only one is
copied. The kernels run on the calling thread, without the GIL.
"""

from __future__ import annotations

import numpy as np

from spo_fast.backends.calls import call, writable
from spo_fast.kernels import pulse as kernels

_Pair = tuple[np.ndarray, np.ndarray]


def gate(x: np.ndarray, g: np.ndarray, *, workers: int) -> np.ndarray:
    """sigmoid(g) x."""
    out = np.empty_like(x)
    call(kernels.gate, *_rows(x, g, out))
    return out


def gate_vjp(x: np.ndarray, g: np.ndarray, grad: np.ndarray, *, workers: int) -> _Pair:
    """Gradients of `gate`."""
    dx, dg = np.empty_like(x), np.empty_like(x)
    call(kernels.gate_vjp, *_rows(x, g, grad, dx, dg))
    return dx, dg


def leaky_scan(x: np.ndarray, decay: float, out: np.ndarray, *, workers: int) -> None:
    """c_t = decay c_{t-1} + (1 - decay) x_t into out."""
    call(kernels.leaky_scan, *writable(x), decay, out)


def leaky_scan_vjp(
    x: np.ndarray, decay: float, c: np.ndarray | None, grad: np.ndarray, *, workers: int
) -> tuple[np.ndarray, float]:
    """Gradients of `leaky_scan`."""
    dx, ddecay = np.empty_like(x), np.empty(1)
    states = np.empty((0, 0, 0), x.dtype) if c is None else c
    x, states, grad = writable(x, states, grad)
    call(kernels.leaky_scan_vjp, x, decay, states, grad, dx, ddecay)
    return dx, float(ddecay[0])


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
    """Running sums in chunks with what past ones left."""
    c = np.empty_like(u)
    how = chunk, scale, *_bases(u, basis, last_basis), per_token or basis is None
    call(kernels.resonance, *writable(u, k), *how, c)
    return c


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
    """Gradients of `resonance`."""
    du, dk = np.empty_like(u), np.empty_like(u)
    how = chunk, scale, *_bases(u, basis, last_basis), per_token or basis is None
    call(kernels.resonance_vjp, *writable(u, k, c, grad), *how, du, dk)
    return du, dk


def token_moments(x: np.ndarray, *, workers: int) -> _Pair:
    """Mean of each token's numbers in a head and the sum of their squared distances from it."""
    mean, squares = np.empty(x.shape[:3]), np.empty(x.shape[:3])
    (tokens,) = writable(x)
    call(kernels.token_moments, tokens.reshape(-1, x.shape[3]), mean.reshape(-1), squares.reshape(-1))
    return mean, squares


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
    """Normalised, twisted and rotated tokens, heads first."""
    y = np.empty((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype)
    call(kernels.turn, *writable(x, shift, factor, _twist(x, twist), cosine, sine), twist_first, y)
    return y


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
    """Gradients of `turn` at the normalised tokens, their sums, and at the twist."""
    g, slopes, products = np.empty_like(x), np.empty(x.shape[:3]), np.empty(x.shape[:3])
    matrices = _twist(x, twist)
    dtwist = np.empty(matrices.shape)
    arrays = writable(x, shift, factor, matrices, cosine, sine)
    call(kernels.turn_vjp, *arrays, twist_first, *writable(grad), g, slopes, products, dtwist)
    return g, slopes, products, None if twist is None else dtwist


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
    """Turn g into factor (g + alpha + beta (x - mean))."""
    width = g.shape[3]
    small = (array.reshape(-1) for array in writable(factor, alpha, beta, mean))
    (tokens,) = writable(x)
    call(kernels.unnormalise, g.reshape(-1, width), tokens.reshape(-1, width), *small)


def _bases(
    like: np.ndarray, basis: np.ndarray | None, last_basis: np.ndarray | None
) -> tuple[np.ndarray, ...]:
    none = np.empty((0, 0), like.dtype)
    return writable(none if basis is None else basis, none if last_basis is None else last_basis)


def _twist(like: np.ndarray, twist: np.ndarray | None) -> np.ndarray:
    return np.empty((0, 0, 0), like.dtype) if twist is None else np.ascontiguousarray(twist)


def _rows(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(array.reshape(-1) for array in writable(*arrays))
