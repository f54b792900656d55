"""Softmax attention and attention among moving phases as embeddable Numba kernels, float32 and float64.

Layout: keys in blocks of 64, against them queries in tiles of 16. A block's keys are laid transposed, so
that every product below (scores, weighted values, and the five of the reverse pass) is one routine whose
inner loop runs along rows; each row of the result keeps the running maximum and sum of its softmax [1]_. The
reverse pass computes the weights of each tile again from the logarithms of the sums [2]_. Scores are kept in
powers of two: scale and log2(e) are folded into the keys.

Room of one block and tile, and two doubles a query; nothing grows with N M.

References
----------
.. [1] M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, 2018.
.. [2] T. Dao, D. Y. Fu, S. Ermon, A. Rudra, C. Ré, "FlashAttention: fast and memory-efficient exact
   attention with IO-awareness", NeurIPS 2022.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ._flags import INVALID_ARGUMENT, OK, REASSOCIATE, kernel
from .vectormath import TWO_PI, exp2, sincos

_KEYS = 64  # keys of a block: with 32 columns each its keys and values fill 32 KB of doubles
_ROWS = 16  # queries of a tile: their scores stay in the first cache beside the block
_LOG2_E = math.log2(math.e)
_LN_2 = math.log(2.0)
_LOWEST = -1000.0  # weights below 2**-1000 of a row's largest are 0


class _Room(NamedTuple):
    """Scratch of one head; e columns of keys, f of values."""

    keys: np.ndarray  # (e, _KEYS): a block of keys, transposed, times scale log2(e)
    key_rows: np.ndarray  # (_KEYS, e): the same as it came
    values: np.ndarray  # (_KEYS, f)
    value_columns: np.ndarray  # (f, _KEYS)
    scores: np.ndarray  # (_ROWS, _KEYS): scores, then weights
    slopes: np.ndarray  # (_ROWS, _KEYS): gradients of the weights, then of the scores
    dkeys: np.ndarray  # (e, _KEYS)
    dvalues: np.ndarray  # (f, _KEYS)
    top: np.ndarray  # (N,): largest score so far, in powers of two; in the reverse pass grad_out . out
    total: np.ndarray  # (N,): sum of the weights so far


@kernel()
def _room(n, e, f, like):
    """Scratch for N queries, e and f columns, in the precision of the array `like`."""
    kind = like.dtype
    return _Room(
        np.empty((e, _KEYS), kind),
        np.empty((_KEYS, e), kind),
        np.empty((_KEYS, f), kind),
        np.empty((f, _KEYS), kind),
        np.empty((_ROWS, _KEYS), kind),
        np.empty((_ROWS, _KEYS), kind),
        np.empty((e, _KEYS), kind),
        np.empty((f, _KEYS), kind),
        np.empty(n),
        np.empty(n),
    )


# ---------------------------------------------------------------- products and rows


@kernel()
def _clear(matrix, rows, width):
    """Set the leading entries to 0."""
    for r in range(rows):
        row = matrix[r]
        for c in range(width):
            row[c] = 0.0


@kernel()
def _add_product(a, b, rows, depth, width, out):
    """Add the product of the leading `rows` x `depth` of a and `depth` x `width` of b, two rows at a time."""
    pairs = rows - rows % 2
    for r in range(0, pairs, 2):
        _add_two_rows(a, r, b, depth, width, out[r], out[r + 1])
    if pairs < rows:
        _add_one_row(a, pairs, b, 0, depth, width, out[pairs])


@kernel()
def _add_two_rows(a, r, b, depth, width, x, y):
    whole = depth - depth % 4
    for d in range(0, whole, 4):
        a0, a1, a2, a3 = a[r, d], a[r, d + 1], a[r, d + 2], a[r, d + 3]
        c0, c1, c2, c3 = a[r + 1, d], a[r + 1, d + 1], a[r + 1, d + 2], a[r + 1, d + 3]
        b0, b1, b2, b3 = b[d], b[d + 1], b[d + 2], b[d + 3]
        for c in range(width):
            x[c] = x[c] + a0 * b0[c] + a1 * b1[c] + a2 * b2[c] + a3 * b3[c]
            y[c] = y[c] + c0 * b0[c] + c1 * b1[c] + c2 * b2[c] + c3 * b3[c]
    if whole < depth:
        _add_one_row(a, r, b, whole, depth, width, x)
        _add_one_row(a, r + 1, b, whole, depth, width, y)


@kernel()
def _add_one_row(a, r, b, first, depth, width, x):
    for d in range(first, depth):
        factor, row = a[r, d], b[d]
        for c in range(width):
            x[c] += factor * row[c]


@kernel(REASSOCIATE)
def _sum(row, count):
    """Sum of the leading entries in double precision."""
    total = 0.0
    for j in range(count):
        total += row[j]
    return total


@kernel(REASSOCIATE)
def _dot(a, b):
    """Inner product in double precision."""
    total = 0.0
    for c in range(a.shape[0]):
        total += np.float64(a[c]) * np.float64(b[c])
    return total


@kernel()
def _largest(row, count):
    """Largest of the leading entries, four at a time."""
    t0 = t1 = t2 = t3 = -np.inf
    whole = count - count % 4
    for j in range(0, whole, 4):
        t0 = row[j] if row[j] > t0 else t0
        t1 = row[j + 1] if row[j + 1] > t1 else t1
        t2 = row[j + 2] if row[j + 2] > t2 else t2
        t3 = row[j + 3] if row[j + 3] > t3 else t3
    for j in range(whole, count):
        t0 = row[j] if row[j] > t0 else t0
    return max(max(t0, t1), max(t2, t3))


@kernel()
def _weigh(row, seen, width, top):
    """Scores become 2**(score - top), entries from `seen` on 0; -inf gives 0 whatever `top` is."""
    for j in range(seen):
        below = np.float64(row[j]) - top
        weight = exp2(below if below > _LOWEST else _LOWEST)
        row[j] = weight if below > _LOWEST else 0.0
    for j in range(seen, width):
        row[j] = 0.0


# ---------------------------------------------------------------- blocks and tiles


@kernel(inline=True)
def _is_seen(mask, j):
    """Whether a key may be attended to; an empty mask lets all."""
    return mask.shape[0] == 0 or mask[j]


@kernel()
def _lay(source, first, count, factor, mask, rows, columns):
    """Copy a block of keys or values as it is and transposed, the latter times a factor; masked ones as 0."""
    for j in range(count):
        seen = _is_seen(mask, first + j)
        for c in range(source.shape[1]):
            entry = source[first + j, c] if seen else 0.0
            rows[j, c] = entry
            columns[c, j] = entry * factor


@kernel(inline=True)
def _ahead(n, m, causal):
    """By how much the last key that a query sees is ahead of it: query i sees keys j <= i + ahead."""
    return m - n if causal else m


@kernel(inline=True)
def _reach(i, first, count, ahead):
    """Keys of a block of `count` from `first` on that query i sees, the leading ones."""
    return min(count, i + ahead - first + 1)


@kernel()
def _score(q, start, rows, width, room):
    """Scores of a tile, in powers of two."""
    _clear(room.scores, rows, width)
    _add_product(q[start:], room.keys, rows, q.shape[1], width, room.scores)


@kernel()
def _hide(row, first, seen, mask):
    """Put -inf in place of the scores of masked keys."""
    if mask.shape[0] > 0:
        for j in range(seen):
            row[j] = row[j] if mask[first + j] else -np.inf


@kernel()
def _take_row(row, seen, width, i, out_row, room):
    """Turn a row's scores into weights below the largest score so far, and what is summed already with it."""
    before = room.top[i]
    top = max(before, np.float64(_largest(row, seen)))
    if top > before:
        fall = before - top
        factor = exp2(fall) if fall > _LOWEST else 0.0
        room.top[i] = top
        room.total[i] *= factor
        for c in range(out_row.shape[0]):
            out_row[c] *= factor
    if top > -np.inf:
        _weigh(row, seen, width, top)
        room.total[i] += _sum(row, seen)
    else:
        for j in range(width):
            row[j] = 0.0


@kernel()
def _start_rows(sink, sink_value, out, room):
    """Each row begins with the sink, or with nothing if that is -inf."""
    for i in range(out.shape[0]):
        room.top[i] = sink * _LOG2_E
        room.total[i] = 1.0 if sink > -np.inf else 0.0
        for c in range(out.shape[1]):
            out[i, c] = sink_value[c] if sink > -np.inf and sink_value.shape[0] > 0 else 0.0


@kernel()
def _finish_rows(out, lse, room):
    """Divide by the sums, and take their logarithms."""
    for i in range(out.shape[0]):
        total = room.total[i]
        inverse = 1.0 / total if total > 0.0 else 0.0
        for c in range(out.shape[1]):
            out[i, c] *= inverse
        lse[i] = (room.top[i] + math.log2(total)) * _LN_2 if total > 0.0 else -np.inf


@kernel()
def _attend_head(q, k, v, scale, ahead, mask, sink, sink_value, out, lse, room):
    """Attention of one head: q (N, e), k (M, e), v (M, f), mask (M,) or (0,), sink_value (f,) or (0,)."""
    n, m = q.shape[0], k.shape[0]
    _start_rows(sink, sink_value, out, room)
    for first in range(0, m, _KEYS):
        count = min(_KEYS, m - first)
        _lay(k, first, count, scale * _LOG2_E, mask, room.key_rows, room.keys)
        _lay(v, first, count, 1.0, mask, room.values, room.value_columns)
        for start in range(max(0, first - ahead), n, _ROWS):
            rows = min(_ROWS, n - start)
            width = _reach(start + rows - 1, first, count, ahead)
            _score(q, start, rows, width, room)
            for r in range(rows):
                i = start + r
                seen = _reach(i, first, count, ahead)
                _hide(room.scores[r], first, seen, mask)
                _take_row(room.scores[r], seen, width, i, out[i], room)
            _add_product(room.scores, room.values, rows, width, v.shape[1], out[start:])
    _finish_rows(out, lse, room)


@kernel()
def _slope_row(weights, slopes, width, mean, scale):
    """Gradients of a row's weights become those of its scores."""
    for j in range(width):
        slopes[j] = weights[j] * (slopes[j] - mean) * scale


@kernel()
def _attend_head_vjp(q, k, v, out, lse, grad, scale, ahead, mask, dq, dk, dv, room):
    """Gradients of one head at queries, keys and values, which are overwritten."""
    n, m = q.shape[0], k.shape[0]
    e, f = q.shape[1], v.shape[1]
    for i in range(n):
        room.top[i] = _dot(grad[i], out[i])
    _clear(dq, n, e)
    for first in range(0, m, _KEYS):
        count = min(_KEYS, m - first)
        _lay(k, first, count, scale * _LOG2_E, mask, room.key_rows, room.keys)
        _lay(v, first, count, 1.0, mask, room.values, room.value_columns)
        _clear(room.dkeys, e, count)
        _clear(room.dvalues, f, count)
        for start in range(max(0, first - ahead), n, _ROWS):
            rows = min(_ROWS, n - start)
            width = _reach(start + rows - 1, first, count, ahead)
            _score(q, start, rows, width, room)
            _clear(room.slopes, rows, width)
            _add_product(grad[start:], room.value_columns, rows, f, width, room.slopes)
            for r in range(rows):
                i = start + r
                seen = _reach(i, first, count, ahead)
                _hide(room.scores[r], first, seen, mask)
                _weigh(room.scores[r], seen, width, lse[i] * _LOG2_E)
                _slope_row(room.scores[r], room.slopes[r], width, room.top[i], scale)
            _add_product(room.slopes, room.key_rows, rows, width, e, dq[start:])
            _add_product(q[start:].T, room.slopes, e, rows, width, room.dkeys)
            _add_product(grad[start:].T, room.scores, f, rows, width, room.dvalues)
        for j in range(count):
            for c in range(e):
                dk[first + j, c] = room.dkeys[c, j]
            for c in range(f):
                dv[first + j, c] = room.dvalues[c, j]


@kernel()
def _sink_vjp(sink, sink_value, out, lse, grad, total):
    """Gradient of one head's sink; `total` (f,) or (0,) gains that of its value."""
    gradient = 0.0
    if sink == -np.inf:
        return gradient
    for i in range(out.shape[0]):
        weight = math.exp(sink - lse[i])
        gain = _dot(grad[i], sink_value) if sink_value.shape[0] > 0 else 0.0
        gradient += weight * (gain - _dot(grad[i], out[i]))
        for c in range(total.shape[0]):
            total[c] += weight * grad[i, c]
    return gradient


# ---------------------------------------------------------------- softmax attention


@kernel()
def _shapes_fit(q, k, v, key_mask, sink, sink_value, out, lse):
    """Whether the arrays of `attend` belong together."""
    groups, heads, n, e = q.shape
    m, f = k.shape[2], v.shape[3]
    fit = k.shape == (groups, heads, m, e) and v.shape == (groups, heads, m, f)
    fit = fit and out.shape == (groups, heads, n, f) and lse.shape == (groups, heads, n)
    fit = fit and (key_mask.shape[0] == 0 or key_mask.shape == (groups, m))
    fit = fit and (sink.shape[0] == 0 or sink.shape[0] == heads)
    return fit and (sink_value.shape[0] == 0 or (sink.shape[0] > 0 and sink_value.shape == (heads, f)))


@kernel()
def attend(q, k, v, scale, causal, key_mask, sink, sink_value, out, lse):
    """Softmax attention.

    Parameters
    ----------
    q : ndarray, shape (G, H, N, e)
        Queries; float32 or float64, like all arrays but the mask, in C order.
    k : ndarray, shape (G, H, M, e)
        Keys.
    v : ndarray, shape (G, H, M, f)
        Values.
    scale : float
        Factor of the scores.
    causal : bool
        Whether query i sees keys j <= i + M - N alone.
    key_mask : ndarray of bool, shape (G, M), or (0, 0) for none
        True where a key may be attended to; what stands in the others and their values does not matter.
    sink : ndarray, shape (H,), or (0,) for none
        Score of one more column; -inf means none.
    sink_value : ndarray, shape (H, f), or (0, 0) for zeros
        Value of that column.
    out : ndarray, shape (G, H, N, f)
        Receives the result; the sink's value, or 0, in rows without a key.
    lse : ndarray, shape (G, H, N)
        Receives the logarithms of the sums of exp(score), -inf in rows without any column.

    Returns
    -------
    int
        ``OK``, or ``INVALID_ARGUMENT`` if shapes do not fit. Whether entries are finite is not looked at.

    Notes
    -----
    G H N M (e + f) multiply-adds and G H N M exponentials, half of it when causal.
    """
    if not _shapes_fit(q, k, v, key_mask, sink, sink_value, out, lse):
        return INVALID_ARGUMENT
    groups, heads, n, e = q.shape
    ahead = _ahead(n, k.shape[2], causal)
    room = _room(n, e, v.shape[3], q)
    nothing = np.empty(0, q.dtype)
    everything = np.empty(0, np.bool_)
    for g in range(groups):
        mask = key_mask[g] if key_mask.shape[0] > 0 else everything
        for h in range(heads):
            score = sink[h] if sink.shape[0] > 0 else -np.inf
            value = sink_value[h] if sink_value.shape[0] > 0 else nothing
            _attend_head(
                q[g, h], k[g, h], v[g, h], scale, ahead, mask, score, value, out[g, h], lse[g, h], room
            )
    return OK


@kernel()
def attend_vjp(
    q, k, v, out, lse, grad_out, scale, causal, key_mask, sink, sink_value, dq, dk, dv, dsink, dsink_value
):
    """Gradients of sum(out * grad_out) for the result of `attend`.

    Parameters
    ----------
    q, k, v, scale, causal, key_mask, sink, sink_value
        As for `attend`.
    out, lse : ndarray
        What `attend` gave.
    grad_out : ndarray, shape (G, H, N, f)
        Gradient at `out`.
    dq, dk, dv : ndarray
        Receive the gradients, of the shapes of q, k, v; 0 for masked keys and in rows without a key.
    dsink : ndarray, of the shape of `sink`
        Receives its gradient.
    dsink_value : ndarray, of the shape of `sink_value`
        Receives its gradient.

    Returns
    -------
    int
        ``OK``, or ``INVALID_ARGUMENT`` if shapes do not fit.

    Notes
    -----
    G H N M (3 e + 2 f) multiply-adds and G H N M exponentials, half of it when causal.
    """
    fit = _shapes_fit(q, k, v, key_mask, sink, sink_value, out, lse) and grad_out.shape == out.shape
    fit = fit and dq.shape == q.shape and dk.shape == k.shape and dv.shape == v.shape
    if not (fit and dsink.shape == sink.shape and dsink_value.shape == sink_value.shape):
        return INVALID_ARGUMENT
    groups, heads, n, e = q.shape
    ahead = _ahead(n, k.shape[2], causal)
    room = _room(n, e, v.shape[3], q)
    nothing = np.empty(0, q.dtype)
    everything = np.empty(0, np.bool_)
    sums = np.zeros(sink.shape)
    value_sums = np.zeros(sink_value.shape)
    for g in range(groups):
        mask = key_mask[g] if key_mask.shape[0] > 0 else everything
        for h in range(heads):
            result, logs, grad = out[g, h], lse[g, h], grad_out[g, h]
            _attend_head_vjp(
                q[g, h],
                k[g, h],
                v[g, h],
                result,
                logs,
                grad,
                scale,
                ahead,
                mask,
                dq[g, h],
                dk[g, h],
                dv[g, h],
                room,
            )
            if sink.shape[0] > 0:
                own = sink_value.shape[0] > 0
                value = sink_value[h] if own else nothing
                value_sum = value_sums[h] if own else sums[:0]
                sums[h] += _sink_vjp(sink[h], value, result, logs, grad, value_sum)
    dsink[:] = sums
    dsink_value[:] = value_sums
    return OK


# ---------------------------------------------------------------- phases


class _Phases(NamedTuple):
    """Scratch of one head of moving phases; seen are [keys | values] where the values move, else the keys."""

    theta: np.ndarray  # (N, m), radians
    values: np.ndarray  # (N, f)
    cosines: np.ndarray  # (N, m) of theta
    sines: np.ndarray
    fixed_cosines: np.ndarray  # (N, m) of queries that do not move
    fixed_sines: np.ndarray
    queries: np.ndarray  # (N, 2 m)
    keys: np.ndarray  # (N, 2 m)
    seen: np.ndarray  # (N, 2 m + f), or the keys themselves
    mixed: np.ndarray  # of the shape of `seen`: what the attention makes of it
    out: np.ndarray  # (N, f): what it makes of the values in the read-out
    lse: np.ndarray  # (N,)


class _Slopes(NamedTuple):
    """Gradients at what `_Phases` holds."""

    theta: np.ndarray
    fixed: np.ndarray  # (N, m): at the phases of queries that do not move
    values: np.ndarray
    queries: np.ndarray
    keys: np.ndarray
    seen: np.ndarray
    mixed: np.ndarray
    read: np.ndarray  # (N, f): at the values in the read-out
    out: np.ndarray


@kernel()
def _phases(n, m, f, moving, like):
    """Scratch for N tokens, m phases and f columns of values, in the precision of the array `like`."""
    kind = like.dtype
    keys = np.empty((n, 2 * m), kind)
    return _Phases(
        np.empty((n, m), kind),
        np.empty((n, f), kind),
        np.empty((n, m), kind),
        np.empty((n, m), kind),
        np.empty((n, m), kind),
        np.empty((n, m), kind),
        np.empty((n, 2 * m), kind),
        keys,
        np.empty((n, 2 * m + f), kind) if moving else keys,
        np.empty((n, 2 * m + f if moving else 2 * m), kind),
        np.empty((n, f), kind),
        np.empty(n, kind),
    )


@kernel()
def _slopes(p):
    """Gradients' scratch for `p`."""
    return _Slopes(
        np.empty_like(p.theta),
        np.empty_like(p.theta),
        np.empty_like(p.values),
        np.empty_like(p.queries),
        np.empty_like(p.keys),
        np.empty_like(p.seen),
        np.empty_like(p.mixed),
        np.empty_like(p.values),
        np.empty_like(p.out),
    )


@kernel()
def _first_phases(c, s, b, h, ramp, theta):
    """Phases before the first step; whole turns are left out before they are rounded to their precision."""
    for i in range(theta.shape[0]):
        for a in range(theta.shape[1]):
            turn = np.fmod(ramp[a] * i, TWO_PI)
            theta[i, a] = math.atan2(np.float64(s[b, i, h, a]), np.float64(c[b, i, h, a])) + turn


@kernel()
def _first_phases_vjp(c, s, b, h, grad, dc, ds):
    """Gradients of the parts; at (0, 0), where the angle has none, 0."""
    for i in range(grad.shape[0]):
        for a in range(grad.shape[1]):
            x, y = np.float64(c[b, i, h, a]), np.float64(s[b, i, h, a])
            length = math.hypot(x, y)
            inverse = 1.0 / length if length > 0.0 else 0.0
            pull = grad[i, a] * inverse
            dc[b, i, h, a] = -(y * inverse) * pull
            ds[b, i, h, a] = (x * inverse) * pull


@kernel()
def _gather(source, b, h, out):
    """Copy one head of a (B, N, H, width) array."""
    for i in range(out.shape[0]):
        for a in range(out.shape[1]):
            out[i, a] = source[b, i, h, a]


@kernel()
def _scatter(source, b, h, out):
    """Put one head into a (B, N, H, width) array."""
    for i in range(source.shape[0]):
        for a in range(source.shape[1]):
            out[b, i, h, a] = source[i, a]


@kernel()
def _fix_queries(query_c, query_s, b, h, ramp, static, p):
    """Cosines and sines of queries that do not move: their own phases, or the first ones of the keys."""
    if query_c.shape[0] > 0:
        _first_phases(query_c, query_s, b, h, ramp, p.cosines)
        sincos(p.cosines.reshape(-1), p.fixed_sines.reshape(-1), p.fixed_cosines.reshape(-1))
    elif static:
        sincos(p.theta.reshape(-1), p.fixed_sines.reshape(-1), p.fixed_cosines.reshape(-1))


@kernel()
def _sides(weight, alpha, fixed, p):
    """Queries weight [cos | sin] of the phases, keys [cos | sin] of the phases plus the lag, what is seen."""
    sincos(p.theta.reshape(-1), p.sines.reshape(-1), p.cosines.reshape(-1))
    n, m = p.theta.shape
    cosines = p.fixed_cosines if fixed else p.cosines
    sines = p.fixed_sines if fixed else p.sines
    for a in range(m):
        lag_cosine, lag_sine = math.cos(alpha[a]), math.sin(alpha[a])
        for i in range(n):
            p.queries[i, a] = weight[a] * cosines[i, a]
            p.queries[i, m + a] = weight[a] * sines[i, a]
            p.keys[i, a] = p.cosines[i, a] * lag_cosine - p.sines[i, a] * lag_sine
            p.keys[i, m + a] = p.sines[i, a] * lag_cosine + p.cosines[i, a] * lag_sine
    if p.seen.shape[1] > 2 * m:
        for i in range(n):
            for a in range(2 * m):
                p.seen[i, a] = p.keys[i, a]
            for a in range(p.values.shape[1]):
                p.seen[i, 2 * m + a] = p.values[i, a]


@kernel()
def _move(kappa, dt, consensus, p):
    """One step of the phases and values of a head, from what the attention mixed."""
    n, m = p.theta.shape
    gain = dt * kappa
    for i in range(n):
        for a in range(m):
            drift = p.cosines[i, a] * p.mixed[i, m + a] - p.sines[i, a] * p.mixed[i, a]
            p.theta[i, a] += gain * drift
    if consensus != 0.0:
        rate = dt * consensus
        for i in range(n):
            for a in range(p.values.shape[1]):
                p.values[i, a] += rate * (p.mixed[i, 2 * m + a] - p.values[i, a])


@kernel()
def _copy(source, out):
    for i in range(out.shape[0]):
        for a in range(out.shape[1]):
            out[i, a] = source[i, a]


@kernel(inline=True)
def _kept(steps, stride):
    """Number of states that are kept: before steps 0, stride, ... and after the last."""
    return 0 if stride == 0 else (steps + stride - 1) // stride + 1


@kernel()
def _phase_shapes_fit(
    c, s, v, weight, alpha, kappa, ramp, steps, query_c, query_s, stride, out, phases, values
):
    """Whether the arrays of `phase_attend` belong together."""
    batch, n, heads, m = c.shape
    f = v.shape[3]
    fit = s.shape == c.shape and v.shape == (batch, n, heads, f) and out.shape == v.shape
    fit = fit and weight.shape == (heads, m) and alpha.shape == (heads, m)
    fit = fit and kappa.shape[0] == heads and ramp.shape[0] == m and steps >= 0 and stride >= 0
    fit = fit and query_c.shape == query_s.shape and (query_c.shape[0] == 0 or query_c.shape == c.shape)
    kept = _kept(steps, stride)
    fit = fit and (kept == 0 or phases.shape == (batch, heads, kept, n, m))
    return fit and (values.shape[0] == 0 or kept == 0 or values.shape == (batch, heads, kept, n, f))


@kernel()
def phase_attend(
    c,
    s,
    v,
    weight,
    alpha,
    kappa,
    ramp,
    steps,
    dt,
    query_c,
    query_s,
    static_query,
    value_consensus,
    stride,
    out,
    phases,
    values,
):
    """Causal attention among phases that the attention moves, see `spo_fast.attention.phase_attention`.

    Parameters
    ----------
    c, s : ndarray, shape (B, N, H, m)
        Cosine and sine parts of the first phases; float32 or float64, like all arrays but `ramp`, in C order.
    v : ndarray, shape (B, N, H, f)
        Values.
    weight, alpha : ndarray, shape (H, m)
        Weights of the cosines, and lags (radians).
    kappa : ndarray, shape (H,)
        Coupling strengths.
    ramp : ndarray, shape (m,), float64, radians
        What one place in the sequence adds to the phases.
    steps : int
        Number of steps.
    dt : float
        Step size.
    query_c, query_s : ndarray, shape (B, N, H, m), or empty for none
        Parts of phases of their own for the queries, which do not move.
    static_query : bool
        Whether the queries keep their first phases.
    value_consensus : float
        Rate at which values follow the attention; 0 for not at all.
    stride : int
        Keep the state before every `stride`-th step and after the last one; 0 keeps none.
    out : ndarray, shape (B, N, H, f)
        Receives the result.
    phases : ndarray, shape (B, H, K, N, m), radians, or empty where none is kept
        Receives the K = ceil(steps / stride) + 1 kept phases.
    values : ndarray, shape (B, H, K, N, f), or empty without consensus
        Receives the kept values.

    Returns
    -------
    int
        ``OK``, or ``INVALID_ARGUMENT`` if shapes do not fit.

    Notes
    -----
    Some B H N^2 (4 m) / 2 multiply-adds and B H N^2 / 2 exponentials a step.
    """
    if not _phase_shapes_fit(
        c, s, v, weight, alpha, kappa, ramp, steps, query_c, query_s, stride, out, phases, values
    ):
        return INVALID_ARGUMENT
    batch, n, heads, m = c.shape
    f = v.shape[3]
    fixed = static_query or query_c.shape[0] > 0
    p = _phases(n, m, f, value_consensus != 0.0, c)
    room = _room(n, 2 * m, max(f, p.mixed.shape[1]), c)
    nothing, everything = np.empty(0, c.dtype), np.empty(0, np.bool_)
    ahead = _ahead(n, n, True)
    for b in range(batch):
        for h in range(heads):
            _first_phases(c, s, b, h, ramp, p.theta)
            _gather(v, b, h, p.values)
            _fix_queries(query_c, query_s, b, h, ramp, static_query, p)
            for step in range(steps + 1):
                reading = step == steps
                if stride > 0 and (reading or step % stride == 0):
                    place = (step + stride - 1) // stride
                    _copy(p.theta, phases[b, h, place])
                    if value_consensus != 0.0:
                        _copy(p.values, values[b, h, place])
                _sides(weight[h], alpha[h], fixed, p)
                seen = p.values if reading else p.seen
                mixed = p.out if reading else p.mixed
                _attend_head(
                    p.queries, p.keys, seen, 1.0, ahead, everything, -np.inf, nothing, mixed, p.lse, room
                )
                if not reading:
                    _move(kappa[h], dt, value_consensus, p)
            _scatter(p.out, b, h, out)
    return OK


@kernel()
def _sides_vjp(weight, fixed, p, g, dweight, dalpha):
    """Add the gradients of phases, weights and lags from those of queries and keys."""
    n, m = p.theta.shape
    cosines = p.fixed_cosines if fixed else p.cosines
    sines = p.fixed_sines if fixed else p.sines
    target = g.fixed if fixed else g.theta
    for i in range(n):
        for a in range(m):
            lagged = p.keys[i, a] * g.keys[i, m + a] - p.keys[i, m + a] * g.keys[i, a]
            g.theta[i, a] += lagged
            dalpha[a] += lagged
            x, y = g.queries[i, a], g.queries[i, m + a]
            dweight[a] += cosines[i, a] * x + sines[i, a] * y
            target[i, a] += weight[a] * (cosines[i, a] * y - sines[i, a] * x)


@kernel()
def _move_vjp(kappa, dt, consensus, p, g):
    """From the gradients after `_move` to those before it and at what was mixed; returns that of kappa."""
    n, m = p.theta.shape
    total = 0.0
    for i in range(n):
        for a in range(m):
            pull = dt * g.theta[i, a]
            cosine, sine = p.cosines[i, a], p.sines[i, a]
            x, y = p.mixed[i, a], p.mixed[i, m + a]
            total += pull * (cosine * y - sine * x)
            pull *= kappa
            g.mixed[i, a] = -sine * pull
            g.mixed[i, m + a] = cosine * pull
            g.theta[i, a] -= pull * (sine * y + cosine * x)
    if consensus != 0.0:
        rate = dt * consensus
        for i in range(n):
            for a in range(p.values.shape[1]):
                g.mixed[i, 2 * m + a] = rate * g.values[i, a]
                g.values[i, a] *= 1.0 - rate
    return total


@kernel()
def _seen_vjp(reading, p, g):
    """Hand the gradient of what was seen to the keys and values it was made of."""
    n, m = p.theta.shape
    if reading:
        _copy(g.read, g.values)
        return
    for i in range(n):
        for a in range(2 * m):
            g.keys[i, a] += g.seen[i, a]
        for a in range(2 * m, g.seen.shape[1]):
            g.values[i, a - 2 * m] += g.seen[i, a]


@kernel()
def _restore(phases, values, v, b, h, place, p):
    """Bring back a kept state."""
    _copy(phases[b, h, place], p.theta)
    if values.shape[0] > 0:
        _copy(values[b, h, place], p.values)
    else:
        _gather(v, b, h, p.values)


@kernel()
def phase_attend_vjp(
    c,
    s,
    v,
    weight,
    alpha,
    kappa,
    ramp,
    steps,
    dt,
    query_c,
    query_s,
    static_query,
    value_consensus,
    stride,
    phases,
    values,
    grad_out,
    dc,
    ds,
    dv,
    dweight,
    dalpha,
    dkappa,
    dquery_c,
    dquery_s,
):
    """Gradients of sum(out * grad_out) for the result of `phase_attend`.

    Parameters
    ----------
    c, s, v, weight, alpha, kappa, ramp, steps, dt, query_c, query_s, static_query, value_consensus
        As for `phase_attend`.
    stride : int
        With which `phases` and `values` were kept, at least 1.
    phases, values : ndarray
        What `phase_attend` kept.
    grad_out : ndarray, shape (B, N, H, f)
        Gradient at the result.
    dc, ds, dv, dweight, dalpha, dkappa, dquery_c, dquery_s : ndarray
        Receive the gradients, each of the shape of its argument.

    Returns
    -------
    int
        ``OK``, or ``INVALID_ARGUMENT`` if shapes do not fit.

    Notes
    -----
    Some three and a half forward passes; with a stride above 1 nearly one more.
    """
    fit = _phase_shapes_fit(
        c, s, v, weight, alpha, kappa, ramp, steps, query_c, query_s, stride, grad_out, phases, values
    )
    fit = fit and stride > 0 and (values.shape[0] > 0 or value_consensus == 0.0)
    fit = fit and dc.shape == c.shape and ds.shape == c.shape and dv.shape == v.shape
    fit = (
        fit and dweight.shape == weight.shape and dalpha.shape == alpha.shape and dkappa.shape == kappa.shape
    )
    if not (fit and dquery_c.shape == query_c.shape and dquery_s.shape == query_c.shape):
        return INVALID_ARGUMENT
    batch, n, heads, m = c.shape
    f = v.shape[3]
    own = query_c.shape[0] > 0
    fixed = static_query or own
    p = _phases(n, m, f, value_consensus != 0.0, c)
    g = _slopes(p)
    room = _room(n, 2 * m, max(f, p.mixed.shape[1]), c)
    nothing, everything = np.empty(0, c.dtype), np.empty(0, np.bool_)
    ahead = _ahead(n, n, True)
    trail, value_trail = np.empty((stride, n, m), c.dtype), np.empty((stride, n, f), c.dtype)
    weights, lags, strengths = np.zeros(weight.shape), np.zeros(weight.shape), np.zeros(heads)
    for b in range(batch):
        for h in range(heads):
            _first_phases(c, s, b, h, ramp, p.theta)
            _fix_queries(query_c, query_s, b, h, ramp, static_query, p)
            _gather(grad_out, b, h, g.out)
            _clear(g.theta, n, m)
            _clear(g.fixed, n, m)
            for last in range(steps, -1, -1):  # the read-out, then step after step from the last to the first
                reading = last == steps
                first = last if reading else last // stride * stride
                fresh = reading or last == steps - 1 or (last + 1) % stride == 0
                for step in range(first if fresh else last, last + 1):
                    if step == first:
                        place = (first + stride - 1) // stride
                        _restore(phases, values, v, b, h, place, p)
                    elif step == last and not fresh:
                        _copy(trail[step - first], p.theta)
                        _copy(value_trail[step - first], p.values)
                    _copy(p.theta, trail[step - first])
                    _copy(p.values, value_trail[step - first])
                    _sides(weight[h], alpha[h], fixed, p)
                    seen = p.values if reading else p.seen
                    mixed = p.out if reading else p.mixed
                    _attend_head(
                        p.queries, p.keys, seen, 1.0, ahead, everything, -np.inf, nothing, mixed, p.lse, room
                    )
                    if step < last:
                        _move(kappa[h], dt, value_consensus, p)
                if not reading:
                    strengths[h] += _move_vjp(kappa[h], dt, value_consensus, p, g)
                slope = g.out if reading else g.mixed
                target = g.read if reading else g.seen
                _attend_head_vjp(
                    p.queries,
                    p.keys,
                    seen,
                    mixed,
                    p.lse,
                    slope,
                    1.0,
                    ahead,
                    everything,
                    g.queries,
                    g.keys,
                    target,
                    room,
                )
                _seen_vjp(reading, p, g)
                _sides_vjp(weight[h], fixed, p, g, weights[h], lags[h])
            if own:
                _first_phases_vjp(query_c, query_s, b, h, g.fixed, dquery_c, dquery_s)
            elif fixed:
                for i in range(n):
                    for a in range(m):
                        g.theta[i, a] += g.fixed[i, a]
            _first_phases_vjp(c, s, b, h, g.theta, dc, ds)
            _scatter(g.values, b, h, dv)
    dweight[:] = weights
    dalpha[:] = lags
    dkappa[:] = strengths
    return OK
