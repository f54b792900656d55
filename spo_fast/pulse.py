"""The parts of context-pulse attention, each with its vector-Jacobian product.

Tokens come first in all arrays, (B, N, H, d): B samples, N tokens, H heads, d numbers a head. `leaky_scan`
and the two resonances are recurrences over tokens, each at a cost linear in N but for the softmax over past
chunks, and run in the backends; the others are formulas in NumPy, which `spo_fast.attention.pulse_attention`
computes in one pass of the backend's own.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from spo_fast.backends import pulse as backends
from spo_fast.backends.pulse import reference, statistics
from spo_fast.validation import (
    choice,
    explain_nonfinite,
    flag,
    float_array,
    integer,
    like,
    number,
)

__all__ = [  # noqa: RUF022  (in the order of the documentation)
    "leaky_scan",
    "leaky_scan_vjp",
    "rotary_embedding",
    "rotary_embedding_vjp",
    "wedge",
    "wedge_vjp",
    "symbiotic_norm",
    "symbiotic_norm_vjp",
    "chunked_resonance",
    "chunked_resonance_vjp",
    "moment_basis",
    "moment_resonance",
    "moment_resonance_vjp",
]

ROTARY_BASE = 10000.0
LARGEST_ORDER = 2

_Pair = tuple[np.ndarray, np.ndarray]


# ---------------------------------------------------------------- leaky scan


def leaky_scan(
    x: Any, decay: float, *, gate: Any = None, backend: str | None = None, workers: int = 1
) -> np.ndarray:
    """Leaky integration along time: c_t = decay c_{t-1} + (1 - decay) u_t from c_{-1} = 0.

    Parameters
    ----------
    x : array_like, shape (B, N, ...)
        Input; float32 or float64.
    decay : float
        Between 0 and 1: what is kept from token to token.
    gate : array_like, shape of x, optional
        u = sigmoid(gate) x; without it u = x.
    backend : {"auto", "cython", "numba", "numpy"}, optional
        The fastest available by default.
    workers : int
        Threads that a backend may use; the result does not depend on it.

    Returns
    -------
    ndarray, shape of x
        c.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, precisions are mixed, or an entry is not finite.
    RuntimeError
        If the backend cannot be loaded.

    Notes
    -----
    Two operations a number, so that memory sets the pace: x is read and c written once, front to back.

    Examples
    --------
    >>> leaky_scan(np.array([[[1.0], [1.0], [0.0]]]), 0.5)
    array([[[0.5  ],
            [0.75 ],
            [0.375]]])
    """
    tokens, keep, gates = _scan_input(x, decay, gate)
    parts, threads = _parts(backend, tokens), integer(workers, "workers", 1)
    entering = tokens if gates is None else parts.gate(tokens, gates, workers=threads)
    out = np.empty_like(tokens)
    if tokens.size:
        parts.leaky_scan(_flat(entering), keep, _flat(out), workers=threads)
    return out


def leaky_scan_vjp(
    x: Any, decay: float, grad_out: Any, *, gate: Any = None, backend: str | None = None, workers: int = 1
) -> tuple[np.ndarray, float, np.ndarray | None]:
    """Gradients of sum(c * grad_out) for c = leaky_scan(x, decay, gate=gate).

    Parameters
    ----------
    x, decay, gate, backend, workers
        As for `leaky_scan`.
    grad_out : array_like, shape of x
        Gradient at c.

    Returns
    -------
    dx : ndarray, shape of x
    ddecay : float
    dgate : ndarray, shape of x, or None
        None without a gate.

    Raises
    ------
    ValueError, RuntimeError
        As `leaky_scan`.

    Notes
    -----
    With l_t = grad_t + decay l_{t+1}: du_t = (1 - decay) l_t, ddecay = sum_t l_t (c_{t-1} - u_t). Linear in
    N.
    """
    tokens, keep, gates = _scan_input(x, decay, gate)
    grad = like(grad_out, "grad_out", tokens.shape, tokens.dtype)
    parts, threads = _parts(backend, tokens), integer(workers, "workers", 1)
    if not tokens.size:
        return np.zeros_like(tokens), 0.0, None if gates is None else np.zeros_like(tokens)
    entering = tokens if gates is None else parts.gate(tokens, gates, workers=threads)
    c = np.empty_like(tokens)
    parts.leaky_scan(_flat(entering), keep, _flat(c), workers=threads)
    flat, ddecay = parts.leaky_scan_vjp(_flat(entering), keep, _flat(c), _flat(grad), workers=threads)
    du = flat.reshape(tokens.shape)
    if gates is None:
        return du, ddecay, None
    dx, dgate = parts.gate_vjp(tokens, gates, du, workers=threads)
    return dx, ddecay, dgate


def _scan_input(x: Any, decay: Any, gate: Any) -> tuple[np.ndarray, float, np.ndarray | None]:
    tokens = float_array(x, "x")
    if tokens.ndim < 3:
        raise ValueError(f"x must have shape (B, N, ...) of three dimensions or more, got {tokens.shape}")
    explain_nonfinite(x=tokens)
    gates = None if gate is None else like(gate, "gate", tokens.shape, tokens.dtype)
    return tokens, fraction(decay, "decay"), gates


def fraction(value: Any, name: str) -> float:
    """Return `value` as a float between 0 and 1.

    Raises
    ------
    ValueError
        If it is no real number or outside.
    """
    result = number(value, name, minimum=0.0)
    if result > 1.0:
        raise ValueError(f"{name} must be <= 1, got {result!r}")
    return result


def _flat(array: np.ndarray) -> np.ndarray:
    """(B, N, ...) as (B, N, C)."""
    return array.reshape(*array.shape[:2], math.prod(array.shape[2:]))


# ---------------------------------------------------------------- rotation


def rotary_embedding(x: Any) -> np.ndarray:
    """Turn each pair (x_2k, x_2k+1) of token t by t 10000^(-2k/d) [1]_; the first components come first.

    Parameters
    ----------
    x : array_like, shape (B, N, H, d)
        Tokens, d even; float32 or float64.

    Returns
    -------
    ndarray, shape (B, N, H, d)
        All d/2 first components of the turned pairs, then all second ones: pairs lie side by side in x, in
        the result d/2 apart. Queries and keys in this order have the scores that they have in any other.

    Raises
    ------
    ValueError
        If x is of the wrong kind or shape, or not finite.

    Notes
    -----
    O(B N H d). Angles are taken in double precision, sines and cosines rounded last: in float32 an angle at
    token 10^4 would be wrong by 10^-3.

    References
    ----------
    .. [1] J. Su, Y. Lu, S. Pan, A. Murtadha, B. Wen, Y. Liu, "RoFormer: enhanced transformer with rotary
       position embedding", arXiv:2104.09864, 2021, section 3.2.
    """
    tokens = _tokens(x, "x", even=True)
    cosine, sine = rotary_tables(tokens.shape[1], tokens.shape[3], tokens.dtype)
    return reference.rotate(tokens, cosine[:, None], sine[:, None])


def rotary_embedding_vjp(grad_out: Any) -> np.ndarray:
    """Gradient of sum(rotary_embedding(x) * grad_out) at x: the turn undone, whatever x is.

    Parameters
    ----------
    grad_out : array_like, shape (B, N, H, d)
        Gradient at the result.

    Returns
    -------
    ndarray, shape (B, N, H, d)

    Raises
    ------
    ValueError
        If it is of the wrong kind or shape, or not finite.
    """
    grad = _tokens(grad_out, "grad_out", even=True)
    cosine, sine = rotary_tables(grad.shape[1], grad.shape[3], grad.dtype)
    return reference.rotate_backwards(grad, cosine[:, None], sine[:, None])


def angles(first: int, n: int, width: int, dtype: np.dtype) -> _Pair:
    """Cosines and sines of the turns of tokens first ... first + n - 1, (n, width / 2) each."""
    turns = np.arange(first, first + n)[:, None] * ROTARY_BASE ** (-2.0 * np.arange(width // 2) / width)
    return np.cos(turns).astype(dtype), np.sin(turns).astype(dtype)


@lru_cache(maxsize=8)
def rotary_tables(n: int, width: int, dtype: np.dtype) -> _Pair:
    """`angles` from the first token on, kept for the next call; read-only."""
    tables = angles(0, n, width, dtype)
    for table in tables:
        table.flags.writeable = False
    return tables


# ---------------------------------------------------------------- wedge


def wedge(x: Any, a: Any) -> np.ndarray:
    """Twist the tokens of each head: x (I + A - A^T).

    Parameters
    ----------
    x : array_like, shape (B, N, H, d)
        Tokens; float32 or float64.
    a : array_like, shape (H, d, d)
        A of each head.

    Returns
    -------
    ndarray, shape (B, N, H, d)

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, precisions are mixed, or an entry is not finite.

    Notes
    -----
    O(B N H d^2). S = A - A^T is skew: x S is orthogonal to x, and ``|x (I + S)|^2 = |x|^2 + |x S|^2``. On
    both sides of a score the twist is q (I - S^2) k^T: it has no effect to first order.
    """
    tokens = _tokens(x, "x")
    return _by_head(tokens, twist_of(_twist_input(a, tokens)))


def wedge_vjp(x: Any, a: Any, grad_out: Any) -> _Pair:
    """Gradients of sum(wedge(x, a) * grad_out).

    Parameters
    ----------
    x, a
        As for `wedge`.
    grad_out : array_like, shape (B, N, H, d)
        Gradient at the result.

    Returns
    -------
    dx : ndarray, shape (B, N, H, d)
    da : ndarray, shape (H, d, d)

    Raises
    ------
    ValueError
        As `wedge`.
    """
    tokens = _tokens(x, "x")
    twist = twist_of(_twist_input(a, tokens))
    grad = like(grad_out, "grad_out", tokens.shape, tokens.dtype)
    dtwist = np.einsum("bnhi,bnhj->hij", tokens, grad, dtype=np.float64)
    return _by_head(grad, twist.swapaxes(1, 2)), (dtwist - dtwist.swapaxes(1, 2)).astype(tokens.dtype)


def twist_of(a: np.ndarray) -> np.ndarray:
    """I + A - A^T of each head."""
    return np.eye(a.shape[-1], dtype=a.dtype) + a - a.swapaxes(-1, -2)


def _twist_input(a: Any, tokens: np.ndarray) -> np.ndarray:
    heads, width = tokens.shape[2:]
    return like(a, "a", (heads, width, width), tokens.dtype)


def _by_head(tokens: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray((tokens.swapaxes(1, 2) @ matrices).swapaxes(1, 2))


# ---------------------------------------------------------------- symbiotic normalisation


def symbiotic_norm(q: Any, k: Any, *, over: str = "point") -> _Pair:
    """Normalise queries and keys by one mean and one deviation: (. - mu) / (sd + 1e-6).

    mu = (mean q + mean k) / 2 and sd = (std q + std k) / 2, with the standard deviation by n - 1.

    Parameters
    ----------
    q, k : array_like, shape (B, N, H, d)
        Queries and keys; float32 or float64.
    over : {"point", "sample", "running"}
        Which numbers share their statistics: those of a token and head; all of a sample, later tokens
        included; all of a sample up to the token, whatever comes later.

    Returns
    -------
    q, k : ndarray, shape (B, N, H, d)
        Normalised.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, precisions are mixed, or an entry is not finite.

    Notes
    -----
    Statistics are gathered in double precision, running ones by a sum without cancellation [1]_. Linear in N.

    References
    ----------
    .. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance: analysis and
       recommendations", The American Statistician 37, 242-247, 1983.
    """
    queries, keys, shared = _norm_input(q, k, over)
    shift, factor = shared.shift[..., None], shared.factor[..., None]
    results = [((array - shift) * factor).astype(array.dtype) for array in (queries, keys)]
    return results[0], results[1]


def symbiotic_norm_vjp(q: Any, k: Any, grad_q: Any, grad_k: Any, *, over: str = "point") -> _Pair:
    """Gradients of sum(qn * grad_q) + sum(kn * grad_k) for (qn, kn) = symbiotic_norm(q, k, over=over).

    Parameters
    ----------
    q, k, over
        As for `symbiotic_norm`.
    grad_q, grad_k : array_like, shape (B, N, H, d)
        Gradients at the results.

    Returns
    -------
    dq, dk : ndarray, shape (B, N, H, d)
        Where a deviation is 0, which has no derivative, nothing passes through it.

    Raises
    ------
    ValueError
        As `symbiotic_norm`.
    """
    queries, keys, shared = _norm_input(q, k, over)
    grads = [
        like(grad, name, queries.shape, queries.dtype).copy()
        for name, grad in (("grad_q", grad_q), ("grad_k", grad_k))
    ]
    shift, factor = shared.shift[..., None], shared.factor[..., None]
    slopes = (grads[0] + grads[1]).sum(axis=3, dtype=np.float64)
    normalised = [(array - shift) * factor for array in (queries, keys)]
    products = (grads[0] * normalised[0] + grads[1] * normalised[1]).sum(axis=3, dtype=np.float64)
    added = statistics.gather_backwards(shared, slopes, products)
    for grad, array, terms, mean in zip(grads, (queries, keys), added, shared.means, strict=True):
        reference.unnormalise(grad, array, shared.factor, *terms, mean, workers=1)
    return grads[0], grads[1]


def _norm_input(q: Any, k: Any, over: Any) -> tuple[np.ndarray, np.ndarray, statistics.Statistics]:
    queries = _tokens(q, "q")
    keys = like(k, "k", queries.shape, queries.dtype)
    choice(over, "over", statistics.OVER)
    if queries.shape[3] < 2:
        raise ValueError(f"q must have two columns or more for a standard deviation, got {queries.shape[3]}")
    moments_q, moments_k = (reference.token_moments(array, workers=1) for array in (queries, keys))
    return queries, keys, statistics.gather(moments_q, moments_k, queries.shape[3], over)


# ---------------------------------------------------------------- resonance with past chunks


def chunked_resonance(
    u: Any,
    k: Any,
    *,
    chunk_size: int = 16,
    scale: float | None = None,
    backend: str | None = None,
    workers: int = 1,
) -> np.ndarray:
    """Running sums in chunks, to which each token adds the states of past chunks that resemble its key.

    With s_t the sum of u from the start of the chunk n to t and e_m the last c of chunk m,

        c_t = s_t + e_{n-1} + sum_{m<n} r_tm e_m,    r_t = softmax over m < n of scale k_t . e_m,

    and c_t = s_t in the first chunk.

    Parameters
    ----------
    u, k : array_like, shape (B, N, H, d)
        What is summed, and keys; float32 or float64.
    chunk_size : int
        L; the last chunk may be shorter.
    scale : float, optional
        Factor of the scores; 1 / sqrt(d) by default.
    backend : {"auto", "cython", "numba", "numpy"}, optional
        The fastest available by default.
    workers : int
        Threads that a backend may use; the result does not depend on it.

    Returns
    -------
    ndarray, shape (B, N, H, d)
        The states c, in which no token depends on a later one.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, precisions are mixed, or an entry is not finite.
    RuntimeError
        If the backend cannot be loaded.

    Notes
    -----
    Of a sample's head N^2 / (2 L) scores are computed, 2 d multiply-adds each, and N d / L numbers
    remembered: time is quadratic in the number of chunks, memory linear in N. States may double from chunk to
    chunk, since e_n holds e_{n-1} and a mean of the earlier ones: in long sequences they overflow.
    """
    return _resonate(u, k, "u", chunk_size, None, True, scale, backend, workers)


def chunked_resonance_vjp(
    u: Any,
    k: Any,
    grad_out: Any,
    *,
    chunk_size: int = 16,
    scale: float | None = None,
    backend: str | None = None,
    workers: int = 1,
) -> _Pair:
    """Gradients of sum(c * grad_out) for c = chunked_resonance(u, k, ...).

    Parameters
    ----------
    u, k, chunk_size, scale, backend, workers
        As for `chunked_resonance`.
    grad_out : array_like, shape (B, N, H, d)
        Gradient at c.

    Returns
    -------
    du, dk : ndarray, shape (B, N, H, d)

    Raises
    ------
    ValueError, RuntimeError
        As `chunked_resonance`.

    Notes
    -----
    Some three times the cost of `chunked_resonance`, memory linear in N.
    """
    return _resonate_backwards(u, k, "u", grad_out, chunk_size, None, True, scale, backend, workers)


def moment_basis(length: int, order: int = 1, dtype: Any = np.float64) -> np.ndarray:
    """Columns 1, t, 3 t^2 - 1 on `length` points from -1 to 1, each of unit length.

    Parameters
    ----------
    length : int
        Number of points; one alone stands at -1.
    order : int
        The last column, 0, 1 or 2; higher ones act as 2.
    dtype : dtype
        float32 or float64.

    Returns
    -------
    ndarray, shape (length, order + 1)

    Raises
    ------
    ValueError
        If `length` is below 1, `order` below 0, or `dtype` another one.

    Notes
    -----
    The third column is not orthogonal to the first on so few points (0.13 at 16), and with two points it is
    the first one again. The idea is that of a basis of polynomial moments [1]_.

    References
    ----------
    .. [1] B. K. Alpert, "A class of bases in L2 for the sparse representation of integral operators", SIAM
       Journal on Mathematical Analysis 24, 246-262, 1993.

    Examples
    --------
    >>> moment_basis(1, 2)
    array([[ 1., -1.,  1.]])
    """
    points = integer(length, "length", 1)
    columns = 1 + min(LARGEST_ORDER, integer(order, "order", 0))
    precision = np.dtype(dtype)
    if precision not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {precision}")
    t = np.linspace(-1.0, 1.0, points)
    basis = np.stack([np.ones(points), t, 3.0 * t * t - 1.0][:columns], axis=1)
    return (basis / np.linalg.norm(basis, axis=0)).astype(precision)


def moment_resonance(
    q: Any,
    k: Any,
    *,
    chunk_size: int = 16,
    order: int = 1,
    strict_causal: bool = False,
    scale: float | None = None,
    backend: str | None = None,
    workers: int = 1,
) -> np.ndarray:
    """Running sums in chunks, to which a chunk adds past ones whose moments resemble those of its keys.

    With W = `moment_basis` (L, order + 1), M_m = W^T c of chunk m, s_t the sum of q from the start of the
    chunk n to t, and e_{n-1} the last c of the chunk before,

        i_t = e_{n-1} + W_t sum_{m<n} p_m M_m,    p = softmax over m < n of scale sum (W^T k) M_m,
        c_t = s_t + i_t - (i at the last token of the chunk before),

    both 0 in the first chunk.

    Parameters
    ----------
    q, k : array_like, shape (B, N, H, d)
        What is summed, and keys; float32 or float64.
    chunk_size : int
        L; a shorter last chunk has the basis of its own length.
    order : int
        Last moment, 0, 1 or 2; higher ones act as 2.
    strict_causal : bool
        As published, W^T k goes over all keys of the chunk, later ones too, and the basis of a last chunk
        tells how many tokens there are. If True, p is that of each token, from W^T k over the keys of the
        chunk up to it, and the basis is that of a whole chunk: no c depends on what comes later, and at the
        last token of a whole chunk the weights are the published ones.
    scale, backend, workers
        As for `chunked_resonance`.

    Returns
    -------
    ndarray, shape (B, N, H, d)
        The states c.

    Raises
    ------
    ValueError, RuntimeError
        As `chunked_resonance`.

    Notes
    -----
    Of a sample's head (N / L)^2 / 2 scores are computed, 2 (order + 1) d multiply-adds each, L times as many
    if `strict_causal`; memory is linear in N. States may double as those of `chunked_resonance`.
    """
    moments = (integer(order, "order", 0), flag(strict_causal, "strict_causal"))
    return _resonate(q, k, "q", chunk_size, *moments, scale, backend, workers)


def moment_resonance_vjp(
    q: Any,
    k: Any,
    grad_out: Any,
    *,
    chunk_size: int = 16,
    order: int = 1,
    strict_causal: bool = False,
    scale: float | None = None,
    backend: str | None = None,
    workers: int = 1,
) -> _Pair:
    """Gradients of sum(c * grad_out) for c = moment_resonance(q, k, ...).

    Parameters
    ----------
    q, k, chunk_size, order, strict_causal, scale, backend, workers
        As for `moment_resonance`.
    grad_out : array_like, shape (B, N, H, d)
        Gradient at c.

    Returns
    -------
    dq, dk : ndarray, shape (B, N, H, d)

    Raises
    ------
    ValueError, RuntimeError
        As `chunked_resonance`.

    Notes
    -----
    Some three times the cost of `moment_resonance`, memory linear in N.
    """
    moments = (integer(order, "order", 0), flag(strict_causal, "strict_causal"))
    return _resonate_backwards(q, k, "q", grad_out, chunk_size, *moments, scale, backend, workers)


def bases(n: int, chunk: int, order: int | None, strict: bool, dtype: np.dtype) -> tuple[Any, Any]:
    """Moment bases of whole chunks and of the last of n tokens; None for `order` None."""
    if order is None or n == 0:
        return None, None
    last = (n - 1) % chunk + 1
    whole = moment_basis(chunk, order, dtype)
    return whole, np.ascontiguousarray(whole[:last]) if strict else moment_basis(last, order, dtype)


def _resonate(
    u: Any,
    k: Any,
    name: str,
    chunk: Any,
    order: int | None,
    strict: bool,
    scale: Any,
    backend: str | None,
    workers: Any,
) -> np.ndarray:
    entering, keys, options = _resonance_input(u, k, name, chunk, order, strict, scale, workers)
    if not entering.size:
        return np.zeros_like(entering)
    return _parts(backend, entering).resonance(entering, keys, **options)


def _resonate_backwards(
    u: Any,
    k: Any,
    name: str,
    grad_out: Any,
    chunk: Any,
    order: int | None,
    strict: bool,
    scale: Any,
    backend: str | None,
    workers: Any,
) -> _Pair:
    entering, keys, options = _resonance_input(u, k, name, chunk, order, strict, scale, workers)
    grad = like(grad_out, "grad_out", entering.shape, entering.dtype)
    if not entering.size:
        return np.zeros_like(entering), np.zeros_like(entering)
    parts = _parts(backend, entering)
    states = parts.resonance(entering, keys, **options)
    return parts.resonance_vjp(entering, keys, states, grad, **options)


def _resonance_input(
    u: Any, k: Any, name: str, chunk: Any, order: int | None, strict: bool, scale: Any, workers: Any
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    entering = _tokens(u, name)
    keys = like(k, "k", entering.shape, entering.dtype)
    size = integer(chunk, "chunk_size", 1)
    basis, last = bases(entering.shape[1], size, order, strict, entering.dtype)
    return (
        entering,
        keys,
        {
            "chunk": size,
            "scale": 1.0 / math.sqrt(entering.shape[3]) if scale is None else number(scale, "scale"),
            "basis": basis,
            "last_basis": last,
            "per_token": strict,
            "workers": integer(workers, "workers", 1),
        },
    )


# ---------------------------------------------------------------- common to all


def _parts(backend: str | None, tokens: np.ndarray) -> Any:
    parts = backends.load(backend)[0]
    return parts if tokens.size else reference


def _tokens(value: Any, name: str, *, even: bool = False) -> np.ndarray:
    tokens = float_array(value, name)
    if tokens.ndim != 4 or tokens.shape[3] < 1:
        raise ValueError(f"{name} must have shape (B, N, H, d) with d >= 1, got {tokens.shape}")
    if even and tokens.shape[3] % 2:
        raise ValueError(f"{name} must have an even number of columns, got {tokens.shape[3]}")
    explain_nonfinite(**{name: tokens})
    return tokens
