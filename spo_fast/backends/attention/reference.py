"""Attention in NumPy: the formulas, readable.

Softmax attention goes through the queries in tiles, so that memory is linear in the number of tokens; the
reverse pass computes each tile's weights again from the logarithm of their sum [1]_.

References
----------
.. [1] T. Dao, D. Y. Fu, S. Ermon, A. Rudra, C. Ré, "FlashAttention: fast and memory-efficient exact
   attention with IO-awareness", NeurIPS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

NAME = "numpy"

_TILE_ENTRIES = 1 << 18  # weights held at once: 2 MB of doubles
_Pair = tuple[np.ndarray, np.ndarray]


# ---------------------------------------------------------------- softmax attention


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    causal: bool,
    key_mask: np.ndarray | None,
    sink: np.ndarray | None,
    sink_value: np.ndarray | None,
    workers: int,
) -> _Pair:
    """Softmax attention.

    Parameters
    ----------
    q : ndarray, shape (G, H, N, e)
        Queries.
    k : ndarray, shape (G, H, M, e)
        Keys.
    v : ndarray, shape (G, H, M, f)
        Values.
    scale : float
        Factor of the scores.
    causal : bool
        Whether query i sees the keys j <= i + M - N alone.
    key_mask : ndarray of bool, shape (G, M), or None
        Which keys may be attended to; what stands in the others, values included, does not matter.
    sink : ndarray, shape (H,), or None
        Score of one more column in each row.
    sink_value : ndarray, shape (H, f), or None
        Value of that column; None means 0.
    workers : int
        Not used: NumPy decides about threads.

    Returns
    -------
    out : ndarray, shape (G, H, N, f)
        sum_j p_ij v_j + p_i,sink sink_value; zeros in a row without any column.
    lse : ndarray, shape (G, H, N)
        Logarithm of the sum of exp(score) over a row's columns, -inf where there is none.
    """
    out = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
    lse = np.empty(q.shape[:3], q.dtype)
    k, v = _hide(k, key_mask), _hide(v, key_mask)
    for rows, seen in _tiles(q, k, causal):
        scores = _scores(q, k, rows, seen, scale, causal, key_mask)
        top = scores.max(axis=-1, initial=-np.inf)
        if sink is not None:
            top = np.maximum(top, sink[:, None])
        top = _finite(top)
        weights = np.exp(scores - top[..., None])
        total = weights.sum(axis=-1)
        mixed = weights @ v[:, :, :seen]
        if sink is not None:
            own = np.exp(sink[:, None] - top)
            total += own
            if sink_value is not None:
                np.add(mixed, own[..., None] * sink_value[:, None], out=mixed, where=own[..., None] > 0)
        some = total > 0
        out[:, :, rows] = mixed / np.where(some, total, 1)[..., None]
        lse[:, :, rows] = np.where(some, top + np.log(np.where(some, total, 1)), -np.inf)
    return out, lse


def attend_vjp(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    grad_out: np.ndarray,
    *,
    scale: float,
    causal: bool,
    key_mask: np.ndarray | None,
    sink: np.ndarray | None,
    sink_value: np.ndarray | None,
    workers: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Gradients of sum(out * grad_out).

    With the weights p_ij = exp(score_ij - lse_i) and D_i = grad_out_i . out_i, the score's gradient is
    p_ij (grad_out_i . v_j - D_i).

    Parameters
    ----------
    out, lse : ndarray
        What `attend` gave for the other arguments, which are the same.
    grad_out : ndarray, shape (G, H, N, f)
        Gradient at `out`.

    Returns
    -------
    dq, dk, dv : ndarray
        Of the shapes of q, k, v; exactly 0 for masked keys and in rows without a key.
    dsink : ndarray, shape (H,), or None
        None without a sink.
    dsink_value : ndarray, shape (H, f), or None
        None without a sink's value.
    """
    dq, dk, dv = np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
    k, v = _hide(k, key_mask), _hide(v, key_mask)
    mean = (grad_out * out).sum(axis=-1)
    for rows, seen in _tiles(q, k, causal):
        scores = _scores(q, k, rows, seen, scale, causal, key_mask)
        weights = np.exp(scores - _finite(lse[:, :, rows])[..., None])
        grad = grad_out[:, :, rows]
        dv[:, :, :seen] += _transposed(weights) @ grad
        dscores = weights * (grad @ _transposed(v[:, :, :seen]) - mean[:, :, rows, None]) * scale
        dq[:, :, rows] = dscores @ k[:, :, :seen]
        dk[:, :, :seen] += _transposed(dscores) @ q[:, :, rows]
    if sink is None:
        return dq, dk, dv, None, None
    own = np.exp(sink[:, None] - _finite(lse))
    if sink_value is None:
        return dq, dk, dv, _over_tokens(-own * mean), None
    gain = (grad_out * sink_value[:, None]).sum(axis=-1) - mean
    return dq, dk, dv, _over_tokens(own * gain), _over_tokens(own[..., None] * grad_out)


def _tiles(q: np.ndarray, k: np.ndarray, causal: bool) -> Iterator[tuple[slice, int]]:
    """Cut the queries; each tile comes with the number of leading keys that any of its rows sees."""
    groups, heads, n, _ = q.shape
    m = k.shape[2]
    size = max(1, _TILE_ENTRIES // max(1, groups * heads * m))
    for start in range(0, n, size):
        stop = min(n, start + size)
        yield slice(start, stop), min(max(stop + m - n, 0), m) if causal else m


def _scores(
    q: np.ndarray,
    k: np.ndarray,
    rows: slice,
    seen: int,
    scale: float,
    causal: bool,
    key_mask: np.ndarray | None,
) -> np.ndarray:
    """Scores of a tile against the leading keys, -inf where a query does not see a key."""
    scores = (q[:, :, rows] @ _transposed(k[:, :, :seen])) * scale
    if causal:
        last = np.arange(rows.start, rows.stop) + k.shape[2] - q.shape[2]
        scores[:, :, np.arange(seen) > last[:, None]] = -np.inf
    if key_mask is not None:
        np.copyto(scores, -np.inf, where=~key_mask[:, None, None, :seen])
    return scores


def _hide(rows: np.ndarray, key_mask: np.ndarray | None) -> np.ndarray:
    """Put zeros in place of what may be anything."""
    return rows if key_mask is None else np.where(key_mask[:, None, :, None], rows, rows.dtype.type(0))


def _finite(top: np.ndarray) -> np.ndarray:
    """Put 0 in place of -inf, so that no difference of infinities is taken."""
    return np.where(top > -np.inf, top, top.dtype.type(0))


def _transposed(matrices: np.ndarray) -> np.ndarray:
    return matrices.swapaxes(-1, -2)


def _over_tokens(terms: np.ndarray) -> np.ndarray:
    """Sum over the first and third axes (samples and tokens), in double precision."""
    return terms.sum(axis=(0, 2), dtype=np.float64).astype(terms.dtype)


# ---------------------------------------------------------------- phases


@dataclass(slots=True, eq=False)
class PhaseState:
    """What the reverse pass needs; arrays that came as arguments are held by reference.

    Attributes
    ----------
    c, s, weight, alpha, kappa, queries, steps, dt, value_consensus
        Arguments of `phase_attend`.
    fixed : ndarray, shape (B, H, N, m), radians, or None
        Phases of the queries where they stay as they are.
    stride : int
        Steps from one kept state to the next.
    kept : list of (ndarray, ndarray)
        Phases (B, H, N, m) and values (B, H, N, f) before step 0, stride, 2 stride, ...
    final : (ndarray, ndarray)
        Phases and values after the last step.
    """

    c: np.ndarray
    s: np.ndarray
    weight: np.ndarray
    alpha: np.ndarray
    kappa: np.ndarray
    queries: _Pair | None
    steps: int
    dt: float
    value_consensus: float
    fixed: np.ndarray | None
    stride: int
    kept: list[_Pair]
    final: _Pair


@dataclass(slots=True, eq=False)
class _Gradients:
    """Sums that the reverse pass adds to, layouts as in `PhaseState`."""

    theta: np.ndarray
    fixed: np.ndarray
    values: np.ndarray
    weight: np.ndarray
    alpha: np.ndarray
    kappa: np.ndarray


_CAUSAL: dict[str, Any] = {
    "scale": 1.0,
    "causal": True,
    "key_mask": None,
    "sink": None,
    "sink_value": None,
    "workers": 1,
}


def phase_attend(
    c: np.ndarray,
    s: np.ndarray,
    v: np.ndarray,
    weight: np.ndarray,
    alpha: np.ndarray,
    kappa: np.ndarray,
    ramp: np.ndarray,
    *,
    steps: int,
    dt: float,
    queries: _Pair | None = None,
    static_query: bool,
    value_consensus: float,
    keep: str,
    workers: int,
) -> tuple[np.ndarray, PhaseState | None]:
    """Attention among phases that the attention moves.

    theta_i = atan2(s_i, c_i) + ramp i, A_ij = softmax over j <= i of
    sum_k weight_k cos(theta_ik - theta_jk - alpha_k), and `steps` times
    theta_i += dt kappa sum_j A_ij sin(theta_j + alpha - theta_i); the result is A v with the last phases.
    As cos(a - b) = cos a cos b + sin a sin b, each step is one softmax attention whose queries are
    [weight cos theta | weight sin theta] and whose keys and values are F = [cos(theta + alpha) |
    sin(theta + alpha)]; of [Mc | Ms] = A F the phases then need cos theta Ms - sin theta Mc.

    Parameters
    ----------
    c, s : ndarray, shape (B, N, H, m)
        Cosine and sine parts of the first phases, of any common length.
    v : ndarray, shape (B, N, H, f)
        Values.
    weight, alpha : ndarray, shape (H, m)
        Weights of the cosines and lags (radians).
    kappa : ndarray, shape (H,)
        Strength of the coupling.
    ramp : ndarray, shape (m,), float64, radians
        What one place in the sequence adds to the phases.
    steps : int
        Number of steps.
    dt : float
        Step size.
    queries : pair of ndarray, shape (B, N, H, m), optional
        Parts of phases of their own for the queries, which do not move.
    static_query : bool
        Whether the queries keep their first phases.
    value_consensus : float
        kappa_v: before the phases move, v += dt kappa_v (A v - v).
    keep : {"all", "sqrt", "none"}
        What is kept for the reverse pass: every state, every ceil(sqrt(steps))-th, or nothing.
    workers : int
        Not used: NumPy decides about threads.

    Returns
    -------
    out : ndarray, shape (B, N, H, f)
        The result.
    state : PhaseState or None
        For `phase_attend_vjp`; None where nothing is kept.
    """
    theta = _first_phases(c, s, ramp)
    fixed = theta if static_query else None
    if queries is not None:
        fixed = _first_phases(*queries, ramp)
    stride = math.ceil(math.sqrt(steps)) if keep == "sqrt" else 1
    now = theta, np.ascontiguousarray(v.transpose(0, 2, 1, 3))
    state = PhaseState(
        c, s, weight, alpha, kappa, queries, steps, dt, value_consensus, fixed, max(1, stride), [], now
    )
    for step in range(steps):
        if keep != "none" and step % state.stride == 0:
            state.kept.append(now)
        now = _advance(now, state)
    state.final = now
    out, _ = attend(*_sides(now[0], state), now[1], **_CAUSAL)
    return np.ascontiguousarray(out.transpose(0, 2, 1, 3)), None if keep == "none" else state


def phase_attend_vjp(state: PhaseState, grad_out: np.ndarray, *, workers: int) -> dict[str, np.ndarray]:
    """Gradients of sum(out * grad_out) with respect to the arguments of `phase_attend`.

    Parameters
    ----------
    state : PhaseState
        From `phase_attend`.
    grad_out : ndarray, shape (B, N, H, f)
        Gradient at its result.

    Returns
    -------
    dict of str to ndarray
        dc, ds, dv, dweight, dalpha, dkappa, and dcq, dsq where there were queries, each of the shape of its
        argument.
    """
    theta, values = state.final
    heads, phases = state.weight.shape
    sums = _Gradients(
        theta=np.zeros_like(theta),
        fixed=np.zeros_like(theta),
        values=np.zeros_like(values),
        weight=np.zeros((heads, phases)),
        alpha=np.zeros((heads, phases)),
        kappa=np.zeros(heads),
    )
    _read_out_backwards(state, np.ascontiguousarray(grad_out.transpose(0, 2, 1, 3)), sums)
    for first in reversed(range(0, state.steps, state.stride)):
        states = [state.kept[first // state.stride]]
        while len(states) < min(state.stride, state.steps - first):
            states.append(_advance(states[-1], state))
        for now in reversed(states):
            _step_backwards(now, state, sums)
    if state.queries is None:
        sums.theta += sums.fixed
    result = dict(zip(("dc", "ds"), _first_phases_backwards(state.c, state.s, sums.theta), strict=True))
    if state.queries is not None:
        parts = _first_phases_backwards(*state.queries, sums.fixed)
        result |= zip(("dcq", "dsq"), parts, strict=True)
    dtype = state.c.dtype
    return result | {
        "dv": np.ascontiguousarray(sums.values.transpose(0, 2, 1, 3)),
        "dweight": sums.weight.astype(dtype),
        "dalpha": sums.alpha.astype(dtype),
        "dkappa": sums.kappa.astype(dtype),
    }


def _first_phases(c: np.ndarray, s: np.ndarray, ramp: np.ndarray) -> np.ndarray:
    """Phases (B, H, N, m); whole turns are left out before the rounding to the working precision."""
    turns = np.remainder(np.arange(c.shape[1])[:, None] * ramp, 2.0 * np.pi)
    theta = np.arctan2(s, c, dtype=np.float64) + turns[:, None]
    return np.ascontiguousarray(theta.transpose(0, 2, 1, 3), dtype=c.dtype)


def _first_phases_backwards(c: np.ndarray, s: np.ndarray, grad: np.ndarray) -> _Pair:
    """Gradients of the parts; at (0, 0), where the angle has none, 0."""
    grad = grad.transpose(0, 2, 1, 3)
    length = np.hypot(s, c)
    inverse = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
    return -s * inverse * inverse * grad, c * inverse * inverse * grad


def _features(theta: np.ndarray) -> np.ndarray:
    """[cos theta | sin theta]."""
    return np.concatenate([np.cos(theta), np.sin(theta)], axis=-1)


def _sides(theta: np.ndarray, state: PhaseState) -> _Pair:
    """Queries and keys of one step."""
    receiving = theta if state.fixed is None else state.fixed
    queries = _features(receiving) * np.tile(state.weight, 2)[:, None]
    return queries, _features(theta + state.alpha[:, None])


def _look(now: _Pair, state: PhaseState) -> tuple[np.ndarray, ...]:
    """Attention of one step: queries, keys, values, what it gives, and the logarithms of the sums."""
    theta, values = now
    queries, keys = _sides(theta, state)
    seen = np.concatenate([keys, values], axis=-1) if state.value_consensus else keys
    return queries, keys, seen, *attend(queries, keys, seen, **_CAUSAL)


def _advance(now: _Pair, state: PhaseState) -> _Pair:
    """One step of the phases and values."""
    theta, values = now
    mixed = _look(now, state)[3]
    moved = theta + state.dt * state.kappa[:, None, None] * _drift(theta, mixed)
    if state.value_consensus:
        rate = state.dt * state.value_consensus
        values = values + rate * (mixed[..., 2 * theta.shape[-1] :] - values)
    return moved.astype(theta.dtype, copy=False), values


def _drift(theta: np.ndarray, mixed: np.ndarray) -> np.ndarray:
    """sum_j A_ij sin(theta_j + alpha - theta_i) from the mixed features."""
    m = theta.shape[-1]
    return np.cos(theta) * mixed[..., m : 2 * m] - np.sin(theta) * mixed[..., :m]


def _sides_backwards(
    theta: np.ndarray, dqueries: np.ndarray, dkeys: np.ndarray, state: PhaseState, sums: _Gradients
) -> None:
    """Add the gradients of the queries' and keys' phases, lags and weights."""
    m = theta.shape[-1]
    dlagged = _features_backwards(theta + state.alpha[:, None], dkeys)
    sums.theta += dlagged
    sums.alpha += dlagged.sum(axis=(0, 2), dtype=np.float64)
    receiving = theta if state.fixed is None else state.fixed
    products = dqueries * _features(receiving)
    sums.weight += (products[..., :m] + products[..., m:]).sum(axis=(0, 2), dtype=np.float64)
    dreceiving = _features_backwards(receiving, dqueries) * state.weight[:, None]
    target = sums.theta if state.fixed is None else sums.fixed
    target += dreceiving


def _features_backwards(theta: np.ndarray, grad: np.ndarray) -> np.ndarray:
    m = theta.shape[-1]
    return np.cos(theta) * grad[..., m:] - np.sin(theta) * grad[..., :m]


def _read_out_backwards(state: PhaseState, grad: np.ndarray, sums: _Gradients) -> None:
    theta, values = state.final
    queries, keys = _sides(theta, state)
    out, lse = attend(queries, keys, values, **_CAUSAL)
    dqueries, dkeys, dvalues, *_ = attend_vjp(queries, keys, values, out, lse, grad, **_CAUSAL)
    sums.values += dvalues
    _sides_backwards(theta, dqueries, dkeys, state, sums)


def _step_backwards(now: _Pair, state: PhaseState, sums: _Gradients) -> None:
    """From the gradients after a step to those before it."""
    theta, _ = now
    m = theta.shape[-1]
    queries, keys, seen, mixed, lse = _look(now, state)
    pulled = state.dt * sums.theta
    sums.kappa += (pulled * _drift(theta, mixed)).sum(axis=(0, 2, 3), dtype=np.float64)
    pulled *= state.kappa[:, None, None]
    sine, cosine = np.sin(theta), np.cos(theta)
    dmixed = [-sine * pulled, cosine * pulled]
    sums.theta -= pulled * (sine * mixed[..., m : 2 * m] + cosine * mixed[..., :m])
    if state.value_consensus:
        rate = state.dt * state.value_consensus
        dmixed.append(rate * sums.values)
        sums.values *= 1.0 - rate
    grad = np.concatenate(dmixed, axis=-1)
    dqueries, dkeys, dseen, *_ = attend_vjp(queries, keys, seen, mixed, lse, grad, **_CAUSAL)
    dkeys += dseen[..., : 2 * m]
    if state.value_consensus:
        sums.values += dseen[..., 2 * m :]
    _sides_backwards(theta, dqueries, dkeys, state, sums)
