"""Gradients of the modulation and of fixed steps, as embeddable Numba kernels.

The formulas stand in ``spo_fast.derivatives``. Attention is gone through row by row, one query against all
its keys, whose numbers stand in rows: forward for the sums of each query, and once more to go back. Of a
matrix in compressed rows the keys of a query are gathered first, and what comes back to them is scattered.

Layout: numbers of all oscillators stand in rows of N, one row for each feature. The scale and log2(e) are
folded into the queries, as in ``modulation``.

Cost of ``modulate_vjp``: 2 N**2 H exponentials and N**2 (9 d + 8) multiply-adds, scratch of 13 N d doubles.
"""

from __future__ import annotations

import math

import numpy as np

from ._flags import INVALID_ARGUMENT, OK, kernel
from .attention import _dot, _sum
from .kuramoto import _advance_row, _two_rows
from .modulation import (
    _FEATURES,
    _LANES,
    _NORM_FLOOR,
    EXACTLY_SYMMETRIC,
    _fill,
    _inspect_state,
    _prepare,
    _round_up,
    _weights_fit,
)
from .pulse import _add
from .sparse import _check_edges, _exponentials
from .vectormath import sincos, wrap

_TILE = 8  # rows and columns of a matrix that are added to their mirror image at once
_LN_2 = math.log(2.0)
WORK_ROWS = 9  # scratch of steps: four slopes, a trial state, what a stage keeps; seven rows on the way back


@kernel()
def _scale(factor, out):
    """Out *= factor."""
    for j in range(out.shape[0]):
        out[j] *= factor


# ---------------------------------------------------------------- one query of one head
#
# Keys low ... high - 1 of a head, whose features stand in rows from `first` on. Ranges of columns are cut
# from single rows: rows of a cut matrix are not known to be contiguous.


@kernel()
def _combine(factors, rows, first, low, high, start, out):
    """Out = start + sum of factors times rows, two in one sweep."""
    count = factors.shape[0]
    if count % 2 == 1:
        one = rows[first + count - 1, low:high]
        for j in range(out.shape[0]):
            out[j] = start + factors[count - 1] * one[j]
    else:
        _fill(out, start)
    for e in range(0, count - 1, 2):
        a, b = factors[e], factors[e + 1]
        one, two = rows[first + e, low:high], rows[first + e + 1, low:high]
        for j in range(out.shape[0]):
            out[j] += a * one[j] + b * two[j]


@kernel()
def _stay_below(seen, logits):
    """Subtract the largest logit that is seen; those that are not seen become 0."""
    top = -np.inf
    for j in range(logits.shape[0]):
        top = logits[j] if seen[j] != 0.0 and logits[j] > top else top
    for j in range(logits.shape[0]):
        logits[j] = logits[j] - top if seen[j] != 0.0 else 0.0


@kernel()
def _weigh(query, k, first, low, high, seen, plain, w):
    """Softmax weights of the keys before they are divided by their sum.

    Parameters
    ----------
    query : ndarray, shape (d_h,)
    k : ndarray
        Rows of keys.
    seen : ndarray, shape (high - low,)
        1 for a key that the query sees, else 0.
    plain : float
        1 where nothing needs to be subtracted from the logits first.
    w : ndarray, shape (high - low,)
        Receives the weights.
    """
    _combine(query, k, first, low, high, 0.0, w)
    if plain == 0.0:
        _stay_below(seen, w)
    _exponentials(w)
    for j in range(w.shape[0]):
        w[j] *= seen[j]


@kernel()
def _mean_value(w, v, first, low, high, mixed):
    """Mean of the values by weight, 0 without any; returns one over the sum of the weights."""
    total = _sum(w, w.shape[0])
    share = 1.0 / total if total > 0.0 or total != total else 0.0
    for e in range(mixed.shape[0]):
        mixed[e] = share * _dot(w, v[first + e, low:high])
    return share


@kernel()
def _weigh_back(w, share, query, k, v, first, low, high, mixed, grad, slope, dq, dk, dv, row):
    """From the gradient at a mean value to those at keys, values and, but for its scale, the query.

    Those at keys and values stand in rows from `row` on.
    """
    mean = 0.0
    for e in range(grad.shape[0]):
        mean += grad[e] * mixed[e]
    _combine(grad, v, first, low, high, -mean, slope)
    for j in range(w.shape[0]):
        w[j] *= share
        slope[j] *= w[j]
    for e in range(grad.shape[0]):
        _add(grad[e], w, dv[row + e, low:high])
        _add(query[e], slope, dk[row + e, low:high])
        dq[e] = _dot(slope, k[first + e, low:high])


# ---------------------------------------------------------------- outputs and projections


@kernel()
def _unit_output(mixed, w_o, i, lengths, units):
    """Column i of `units` becomes the unit output of one oscillator, and lengths[i] its length before."""
    width = w_o.shape[0]
    square = 0.0
    for c in range(width):
        total = 0.0
        for f in range(width):
            total += mixed[f] * w_o[f, c]
        units[c, i] = total
        square += total * total
    lengths[i] = math.sqrt(square)
    for c in range(width):
        units[c, i] *= 1.0 / (lengths[i] + _NORM_FLOOR)


@kernel()
def _unit_output_back(mixed, w_o, i, length, units, pull, dmixed, dw_o):
    """From the gradient at one unit output, `pull`, which is spoilt, to those at `mixed` and at W_O."""
    width = w_o.shape[0]
    along = 0.0
    for c in range(width):
        along += pull[c] * units[c, i]
    radial = along / length if length > 0.0 else 0.0  # an output of length 0 has no direction
    for c in range(width):
        pull[c] = pull[c] / (length + _NORM_FLOOR) - radial * units[c, i]
    for f in range(width):
        dmixed[f] = 0.0
        for c in range(width):
            dmixed[f] += pull[c] * w_o[f, c]
            dw_o[f, c] += mixed[f] * pull[c]


@kernel()
def _project_back(x, weights, grads, dx, dweights):
    """From the gradients at the rows of x W_h to those at `x`, which grow, and at W."""
    heads, width, per_head = weights.shape
    n = dx.shape[1]
    for h in range(heads):
        for e in range(per_head):
            row = grads[h * per_head + e]
            for f in range(width):
                _add(weights[h, f, e], row, dx[f])
                dweights[h, f, e] = _dot(x[f, :n], row)


@kernel()
def _embed_back(x, dx, dtheta):
    """From the gradient at the harmonics to that at the phases."""
    _fill(dtheta, 0.0)
    for m in range(x.shape[0] // 2):
        cosine, sine, dcosine, dsine = x[2 * m], x[2 * m + 1], dx[2 * m], dx[2 * m + 1]
        for i in range(dtheta.shape[0]):
            dtheta[i] += (m + 1) * (cosine[i] * dsine[i] - sine[i] * dcosine[i])


@kernel()
def _close(work, n, w_q, w_k, w_v, temperature, dq, dk, dv, dtheta, dw_q, dw_k, dw_v, dtemperature):
    """What follows the attention of all queries; dq and dk come without their scales."""
    heads, width, per_head = w_q.shape
    x, q = work[:width], work[width : 2 * width]
    for h in range(heads):
        slope = 0.0
        for row in range(h * per_head, (h + 1) * per_head):
            slope += _dot(q[row, :n], dq[row])
            _scale(1.0 / (math.sqrt(per_head) * temperature[h]), dq[row])
            _scale(_LN_2, dk[row])
        dtemperature[h] = -_LN_2 * slope / temperature[h]
    dx = np.zeros((width, n))
    _project_back(x, w_q, dq, dx, dw_q)
    _project_back(x, w_k, dk, dx, dw_k)
    _project_back(x, w_v, dv, dx, dw_v)
    _embed_back(x, dx, dtheta)


# ---------------------------------------------------------------- pairs


@kernel()
def _symmetrise(grad, out):
    """Out = (G + G^T) / 2 off the diagonal, 0 on it; in tiles, whose mirror images stay in the cache."""
    n = grad.shape[0]
    for i0 in range(0, n, _TILE):
        for j0 in range(i0, n, _TILE):
            for i in range(i0, min(n, i0 + _TILE)):
                for j in range(j0, min(n, j0 + _TILE)):
                    mean = 0.5 * (grad[i, j] + grad[j, i])
                    out[i, j] = mean
                    out[j, i] = mean
    for i in range(n):
        out[i, i] = 0.0


@kernel()
def _agree(own, units, low, high, out):
    """Out_j = (1 + o_i . o_j) / 2, eight features in one sweep; missing ones are rows of zeros."""
    _fill(out, 0.5)
    for c in range(0, units.shape[0], _FEATURES):
        a0, a1, a2, a3 = 0.5 * own[c], 0.5 * own[c + 1], 0.5 * own[c + 2], 0.5 * own[c + 3]
        a4, a5, a6, a7 = 0.5 * own[c + 4], 0.5 * own[c + 5], 0.5 * own[c + 6], 0.5 * own[c + 7]
        u0, u1 = units[c, low:high], units[c + 1, low:high]
        u2, u3 = units[c + 2, low:high], units[c + 3, low:high]
        u4, u5 = units[c + 4, low:high], units[c + 5, low:high]
        u6, u7 = units[c + 6, low:high], units[c + 7, low:high]
        for j in range(out.shape[0]):
            first = out[j] + a0 * u0[j] + a1 * u1[j] + a2 * u2[j] + a3 * u3[j]
            out[j] = first + a4 * u4[j] + a5 * u5[j] + a6 * u6[j] + a7 * u7[j]


@kernel()
def _see(knm, i, low, high, seen):
    """1 for the keys low ... high - 1 that query i sees, else 0."""
    row = knm[i, low:high]
    for j in range(row.shape[0]):
        seen[j] = 0.0 if row[j] == 0.0 else 1.0
    seen[i - low] = 0.0


@kernel()
def _pairs_back(knm, structure, units, lambda_, i, low, high, seen, agreement, felt, own, pull, dknm):
    """From S in row i of `dknm` to dK there, and the gradient at a unit output; returns that at lambda."""
    row, row_of_k = dknm[i, low:high], knm[i, low:high]
    for c in range(units.shape[0]):
        own[c] = units[c, i]
    _agree(own, units, low, high, agreement)
    if structure & EXACTLY_SYMMETRIC:
        for j in range(row.shape[0]):
            felt[j] = row[j] * row_of_k[j]
    else:
        for j in range(row.shape[0]):
            felt[j] = row[j] * (0.5 * row_of_k[j] + 0.5 * knm[low + j, i])
    slope = _dot(felt, agreement)
    for c in range(pull.shape[0]):
        pull[c] = lambda_ * _dot(felt, units[c, low:high])
    for j in range(row.shape[0]):
        row[j] *= 1.0 + lambda_ * agreement[j] * seen[j]
    return slope


@kernel()
def _band(i, n, block_size):
    """Columns that row i of a band has."""
    if block_size < 0:
        return 0, n
    return max(0, i - block_size), min(n, i + block_size + 1)


@kernel()
def apply_modulation_vjp(
    knm,
    structure,
    theta,
    w_q,
    w_k,
    w_v,
    w_o,
    block_size,
    temperature,
    lambda_,
    grad,
    dknm,
    dtheta,
    dw_q,
    dw_k,
    dw_v,
    dw_o,
    dtemperature,
    dlambda,
):
    """``modulate_vjp`` for a matrix that `inspect_coupling` has passed: nothing is checked again.

    Parameters
    ----------
    structure : int
        What `inspect_coupling` said of `knm`.
    knm, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, grad
        As in `modulate_vjp`.
    dknm, dtheta, dw_q, dw_k, dw_v, dw_o, dtemperature, dlambda
        As in `modulate_vjp`.
    """
    heads, width, per_head = w_q.shape
    n = theta.shape[0]
    reach = block_size if block_size < n else -1
    work, plain = np.empty((4 * width, _round_up(n, _LANES))), np.empty(heads)
    _prepare(theta, w_q, w_k, w_v, temperature, work, plain)
    q, k, v = work[width : 2 * width], work[2 * width : 3 * width], work[3 * width :]
    units = np.zeros((_round_up(width, _FEATURES), n))
    mixed, dmixed, share = np.empty((n, width)), np.empty((n, width)), np.empty((n, heads))
    lengths, query = np.empty(n), np.empty(width)
    room, small = np.empty((3, n)), np.empty((2, units.shape[0]))
    for i in range(n):
        low, high = _band(i, n, reach)
        seen, w = room[0, : high - low], room[1, : high - low]
        _see(knm, i, low, high, seen)
        for c in range(width):
            query[c] = q[c, i]
        for h in range(heads):
            a, b = h * per_head, (h + 1) * per_head
            _weigh(query[a:b], k, a, low, high, seen, plain[h], w)
            share[i, h] = _mean_value(w, v, a, low, high, mixed[i, a:b])
        _unit_output(mixed[i], w_o, i, lengths, units)
    _symmetrise(grad, dknm)
    dlambda[0] = 0.0
    for c in range(width):
        _fill(dw_o[c], 0.0)
    for i in range(n):
        low, high = _band(i, n, reach)
        seen, agreement, felt = room[0, : high - low], room[1, : high - low], room[2, : high - low]
        _see(knm, i, low, high, seen)
        pull = small[1, :width]
        dlambda[0] += _pairs_back(
            knm, structure, units, lambda_, i, low, high, seen, agreement, felt, small[0], pull, dknm
        )
        _unit_output_back(mixed[i], w_o, i, lengths[i], units, pull, dmixed[i], dw_o)
    dq, dk, dv = np.empty((width, n)), np.zeros((width, n)), np.zeros((width, n))
    dquery = small[0, :width]
    for i in range(n):
        low, high = _band(i, n, reach)
        seen, w, slope = room[0, : high - low], room[1, : high - low], room[2, : high - low]
        _see(knm, i, low, high, seen)
        for c in range(width):
            query[c] = q[c, i]
        for h in range(heads):
            a, b = h * per_head, (h + 1) * per_head
            _weigh(query[a:b], k, a, low, high, seen, plain[h], w)
            _weigh_back(
                w, share[i, h], query[a:b], k, v, a, low, high, mixed[i, a:b], dmixed[i, a:b], slope,
                dquery[a:b], dk, dv, a,
            )  # fmt: skip
        for c in range(width):
            dq[c, i] = dquery[c]
    _close(work, n, w_q, w_k, w_v, temperature, dq, dk, dv, dtheta, dw_q, dw_k, dw_v, dtemperature)


@kernel()
def _gradients_fit(w_q, w_o, n, dtheta, dw_q, dw_k, dw_v, dw_o, dtemperature, dlambda):
    """Whether what receives gradients at all arguments but the coupling has their shapes."""
    return (
        dtheta.shape[0] == n
        and dw_q.shape == w_q.shape
        and dw_k.shape == w_q.shape
        and dw_v.shape == w_q.shape
        and dw_o.shape == w_o.shape
        and dtemperature.shape[0] == w_q.shape[0]
        and dlambda.shape[0] == 1
    )


@kernel()
def modulate_vjp(
    knm,
    theta,
    w_q,
    w_k,
    w_v,
    w_o,
    block_size,
    temperature,
    lambda_,
    grad,
    dknm,
    dtheta,
    dw_q,
    dw_k,
    dw_v,
    dw_o,
    dtemperature,
    dlambda,
):
    """Gradients of sum(K' * grad) for the K' of `modulate`.

    Parameters
    ----------
    knm, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_
        As in `modulate`.
    grad : ndarray, shape (N, N)
        Gradient at K'; only read.
    dknm, dtheta, dw_q, dw_k, dw_v, dw_o, dtemperature : ndarray
        Receive the gradients, each of the shape of its argument. None may overlap an argument. Untouched
        unless the status is 0.
    dlambda : ndarray, shape (1,)
        Receives that at the strength.

    Returns
    -------
    int
        Status as in `modulate`; a gradient that is not finite is passed on.

    Notes
    -----
    Cost 2 N**2 H exponentials and N**2 (9 d + 8) multiply-adds; allocates 13 N d doubles.
    """
    n = theta.shape[0]
    if not _weights_fit(w_q, w_k, w_v, w_o, temperature) or knm.shape != (n, n) or grad.shape != (n, n):
        return INVALID_ARGUMENT
    if not (lambda_ >= 0.0 and lambda_ < np.inf) or block_size < -1 or dknm.shape != (n, n):
        return INVALID_ARGUMENT
    if not _gradients_fit(w_q, w_o, n, dtheta, dw_q, dw_k, dw_v, dw_o, dtemperature, dlambda):
        return INVALID_ARGUMENT
    status, structure = _inspect_state(knm, theta)
    if status != OK:
        return status
    apply_modulation_vjp(
        knm, structure, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, grad,
        dknm, dtheta, dw_q, dw_k, dw_v, dw_o, dtemperature, dlambda,
    )  # fmt: skip
    return OK


# ---------------------------------------------------------------- edges


@kernel()
def _list_seen(i, indptr, indices, data, block_size, keys):
    """List the neighbours that query i sees; returns their number."""
    count = 0
    for edge in range(indptr[i], indptr[i + 1]):
        j = np.int64(indices[edge])
        keys[count] = j
        count += 1 if data[edge] != 0.0 and j != i and (block_size < 0 or abs(i - j) <= block_size) else 0
    return count


@kernel()
def _gather(rows, keys, out):
    """Columns of `rows`, one for each key."""
    for f in range(rows.shape[0]):
        source, target = rows[f], out[f]
        for m in range(keys.shape[0]):
            target[m] = source[keys[m]]


@kernel()
def _scatter(rows, keys, out):
    """Add columns of `rows` to those of `out` that the keys tell."""
    for f in range(rows.shape[0]):
        source, target = rows[f], out[f]
        for m in range(keys.shape[0]):
            target[keys[m]] += source[m]


@kernel()
def _edges_back(i, indptr, indices, data, mean, mirror, units, lambda_, block_size, grad, pull, ddata):
    """Entries of row i: dK, and the gradient at a unit output; returns that at lambda."""
    slope = 0.0
    _fill(pull, 0.0)
    for edge in range(indptr[i], indptr[i + 1]):
        j = np.int64(indices[edge])
        s = 0.5 * (grad[edge] + grad[mirror[edge]]) if i != j else 0.0
        ddata[edge] = s
        if i == j or (block_size >= 0 and abs(i - j) > block_size):
            continue
        agreement = 0.5
        for c in range(pull.shape[0]):
            agreement += 0.5 * units[c, i] * units[c, j]
            pull[c] += lambda_ * s * mean[edge] * units[c, j]
        slope += s * mean[edge] * agreement
        if data[edge] != 0.0:
            ddata[edge] *= 1.0 + lambda_ * agreement
    return slope


@kernel()
def apply_modulation_sparse_vjp(
    indptr,
    indices,
    data,
    mean,
    mirror,
    theta,
    w_q,
    w_k,
    w_v,
    w_o,
    block_size,
    temperature,
    lambda_,
    grad,
    ddata,
    dtheta,
    dw_q,
    dw_k,
    dw_v,
    dw_o,
    dtemperature,
    dlambda,
):
    """``modulate_sparse_vjp`` without checks.

    Parameters
    ----------
    indptr, indices, data, mean, mirror, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, grad
        As in `modulate_sparse_vjp`.
    ddata, dtheta, dw_q, dw_k, dw_v, dw_o, dtemperature, dlambda
        As in `modulate_sparse_vjp`.
    """
    heads, width, per_head = w_q.shape
    n = theta.shape[0]
    work, plain = np.empty((4 * width, _round_up(n, _LANES))), np.empty(heads)
    _prepare(theta, w_q, w_k, w_v, temperature, work, plain)
    q, kv = work[width : 2 * width], work[2 * width :]
    units = np.zeros((width, n))
    mixed, dmixed, share = np.empty((n, width)), np.empty((n, width)), np.empty((n, heads))
    lengths, small = np.empty(n), np.empty((2, width))
    query, pull = small[0], small[1]
    longest = 0
    for i in range(n):
        longest = max(longest, indptr[i + 1] - indptr[i])
    keys, room, near = np.empty(longest, np.int64), np.empty((3, longest)), np.empty((4 * width, longest))
    _fill(room[0], 1.0)
    for i in range(n):
        count = _list_seen(i, indptr, indices, data, block_size, keys)
        _gather(kv, keys[:count], near)
        seen, w = room[0, :count], room[1, :count]
        for c in range(width):
            query[c] = q[c, i]
        for h in range(heads):
            a, b = h * per_head, (h + 1) * per_head
            _weigh(query[a:b], near, a, 0, count, seen, plain[h], w)
            share[i, h] = _mean_value(w, near, width + a, 0, count, mixed[i, a:b])
        _unit_output(mixed[i], w_o, i, lengths, units)
    dlambda[0] = 0.0
    for c in range(width):
        _fill(dw_o[c], 0.0)
    for i in range(n):
        dlambda[0] += _edges_back(
            i, indptr, indices, data, mean, mirror, units, lambda_, block_size, grad, pull, ddata
        )
        _unit_output_back(mixed[i], w_o, i, lengths[i], units, pull, dmixed[i], dw_o)
    dq, dkv = np.empty((width, n)), np.zeros((2 * width, n))
    keys_near, values_near = near[:width], near[width : 2 * width]
    keys_far, values_far = near[2 * width : 3 * width], near[3 * width :]
    for i in range(n):
        count = _list_seen(i, indptr, indices, data, block_size, keys)
        _gather(kv, keys[:count], near)
        seen, w, slope = room[0, :count], room[1, :count], room[2, :count]
        for f in range(2 * width, 4 * width):
            _fill(near[f, :count], 0.0)
        for c in range(width):
            query[c] = q[c, i]
        for h in range(heads):
            a, b = h * per_head, (h + 1) * per_head
            _weigh(query[a:b], near, a, 0, count, seen, plain[h], w)
            _weigh_back(
                w, share[i, h], query[a:b], keys_near, values_near, a, 0, count,
                mixed[i, a:b], dmixed[i, a:b], slope, pull[a:b], keys_far, values_far, a,
            )  # fmt: skip
        for c in range(width):
            dq[c, i] = pull[c]
        _scatter(near[2 * width :], keys[:count], dkv)
    _close(
        work, n, w_q, w_k, w_v, temperature, dq, dkv[:width], dkv[width:],
        dtheta, dw_q, dw_k, dw_v, dtemperature,
    )  # fmt: skip


@kernel()
def modulate_sparse_vjp(
    indptr,
    indices,
    data,
    mean,
    mirror,
    theta,
    w_q,
    w_k,
    w_v,
    w_o,
    block_size,
    temperature,
    lambda_,
    grad,
    ddata,
    dtheta,
    dw_q,
    dw_k,
    dw_v,
    dw_o,
    dtemperature,
    dlambda,
):
    """Gradients of sum(K' * grad) for the K' of `modulate_sparse`, on its edges.

    Parameters
    ----------
    indptr, indices, data, mean, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_
        As in `modulate_sparse`.
    mirror : ndarray, shape (E,), int64
        Edge from j to i for that from i to j.
    grad : ndarray, shape (E,)
        Gradient at K'; only read.
    ddata : ndarray, shape (E,)
        Receives the gradient at the coupling.
    dtheta, dw_q, dw_k, dw_v, dw_o, dtemperature, dlambda
        As in `modulate_vjp`.

    Returns
    -------
    int
        Status as in `modulate_sparse`. Cost 2 E H exponentials and E (9 d + 8) multiply-adds.
    """
    n = theta.shape[0]
    if grad.shape != data.shape or mirror.shape != data.shape or ddata.shape != data.shape:
        return INVALID_ARGUMENT
    if not (lambda_ >= 0.0 and lambda_ < np.inf) or block_size < -1:
        return INVALID_ARGUMENT
    if not _gradients_fit(w_q, w_o, n, dtheta, dw_q, dw_k, dw_v, dw_o, dtemperature, dlambda):
        return INVALID_ARGUMENT
    status = _check_edges(indptr, indices, data, mean, theta, w_q, w_k, w_v, w_o, temperature)
    if status != OK:
        return status
    for edge in range(mirror.shape[0]):
        if mirror[edge] < 0 or mirror[edge] >= mirror.shape[0]:
            return INVALID_ARGUMENT
    apply_modulation_sparse_vjp(
        indptr, indices, data, mean, mirror, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_,
        grad, ddata, dtheta, dw_q, dw_k, dw_v, dw_o, dtemperature, dlambda,
    )  # fmt: skip
    return OK


# ---------------------------------------------------------------- steps there
#
# What a stage keeps: rows of sines and cosines of its phases, and P and Q, see ``kuramoto``. A coupling is a
# tuple as there.


@kernel()
def _sums(coupling, kept):
    """Fill P and Q of a stage from its sines and cosines."""
    sine, cosine, p, q = kept[0], kept[1], kept[2], kept[3]
    n = sine.shape[0]
    if len(coupling) == 2:
        knm, knm_sin = coupling
        if knm_sin.shape[0] > 0:
            for i in range(n):
                cs, cc, ss, sc = _two_rows(knm[i], knm_sin[i], sine, cosine)
                p[i], q[i] = cs - sc, cc + ss
        else:
            for i in range(0, n - 1, 2):
                p[i], q[i], p[i + 1], q[i + 1] = _two_rows(knm[i], knm[i + 1], sine, cosine)
            if n % 2 == 1:
                p[n - 1], q[n - 1], _, _ = _two_rows(knm[n - 1], knm[n - 1], sine, cosine)
    else:
        data, data_sin, indptr, indices = coupling
        for i in range(n):
            a, b = 0.0, 0.0
            for edge in range(indptr[i], indptr[i + 1]):
                j = indices[edge]
                a += data[edge] * sine[j]
                b += data[edge] * cosine[j]
                if data_sin.shape[0] > 0:
                    a -= data_sin[edge] * cosine[j]
                    b += data_sin[edge] * sine[j]
            p[i], q[i] = a, b


@kernel()
def _stage(state, omega, coupling, drive, kept, slope):
    """Drift at a state; `drive`: cos lag, sin lag, zeta sin psi, zeta cos psi."""
    sincos(state, kept[0], kept[1])
    _sums(coupling, kept)
    sine, cosine, p, q = kept[0], kept[1], kept[2], kept[3]
    for i in range(state.shape[0]):
        turned_p = p[i] * drive[0] - q[i] * drive[1]
        turned_q = q[i] * drive[0] + p[i] * drive[1]
        slope[i] = omega[i] + cosine[i] * (turned_p + drive[2]) - sine[i] * (turned_q + drive[3])


@kernel()
def follow(theta, steps, slot, dt, omega, coupling, drive, tape, work):
    """Take steps of fixed size and keep what the way back needs.

    Parameters
    ----------
    theta : ndarray, shape (N,), radians
        State; becomes the last one, wrapped into [0, 2 pi).
    steps : int
        Number of steps.
    slot : int
        Place of the first step on the tape, the others behind it; -1 keeps nothing.
    dt : float
        Step size.
    omega : ndarray, shape (N,)
        Natural frequencies.
    coupling : tuple
        ``(knm, knm_sin)`` or ``(data, data_sin, indptr, indices)``, see ``kuramoto``.
    drive : ndarray, shape (4,)
        cos lag, sin lag, zeta sin psi, zeta cos psi.
    tape : ndarray, shape (room, S, 4, N)
        S = 1: Euler steps; S = 4: classical Runge-Kutta.
    work : ndarray, shape (WORK_ROWS, N)
        Scratch. Cost 2 S N**2 multiply-adds a step.
    """
    k1, k2, k3, k4, trial = work[0], work[1], work[2], work[3], work[4]
    for step in range(steps):
        if tape.shape[1] == 1:
            kept = tape[slot + step, 0] if slot >= 0 else work[5:]
            _stage(theta, omega, coupling, drive, kept, k1)
            _advance_row(theta, k1, dt, theta)
        else:
            _stage(theta, omega, coupling, drive, tape[slot + step, 0] if slot >= 0 else work[5:], k1)
            _advance_row(theta, k1, 0.5 * dt, trial)
            _stage(trial, omega, coupling, drive, tape[slot + step, 1] if slot >= 0 else work[5:], k2)
            _advance_row(theta, k2, 0.5 * dt, trial)
            _stage(trial, omega, coupling, drive, tape[slot + step, 2] if slot >= 0 else work[5:], k3)
            _advance_row(theta, k3, dt, trial)
            _stage(trial, omega, coupling, drive, tape[slot + step, 3] if slot >= 0 else work[5:], k4)
            for i in range(theta.shape[0]):
                theta[i] += dt / 6.0 * (k1[i] + 2.0 * (k2[i] + k3[i]) + k4[i])
        wrap(theta, theta)


# ---------------------------------------------------------------- and back


@kernel()
def _add_rows(k0, k1, k2, k3, x, y, i, along, across):
    """Along += K^T x and across += K^T y of four rows of K from i on."""
    x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
    y0, y1, y2, y3 = y[i], y[i + 1], y[i + 2], y[i + 3]
    for j in range(along.shape[0]):
        along[j] += x0 * k0[j] + x1 * k1[j] + x2 * k2[j] + x3 * k3[j]
        across[j] += y0 * k0[j] + y1 * k1[j] + y2 * k2[j] + y3 * k3[j]


@kernel()
def _transposed_sums(knm, x, y, along, across):
    """Along += K^T x, across += K^T y."""
    n = knm.shape[0]
    whole = n - n % 4
    for i in range(0, whole, 4):
        _add_rows(knm[i], knm[i + 1], knm[i + 2], knm[i + 3], x, y, i, along, across)
    for i in range(whole, n):
        _add(x[i], knm[i], along)
        _add(y[i], knm[i], across)


@kernel()
def _edges_transposed(coupling, x, y, along, across, sine, cosine, grad_kc, grad_ks):
    """The same along edges, and their gradients, which grow."""
    data, data_sin, indptr, indices = coupling
    for i in range(x.shape[0]):
        for edge in range(indptr[i], indptr[i + 1]):
            j = indices[edge]
            along[j] += data[edge] * x[i]
            across[j] += data[edge] * y[i]
            grad_kc[edge] += x[i] * sine[j] - y[i] * cosine[j]
            if data_sin.shape[0] > 0:
                along[j] -= data_sin[edge] * y[i]
                across[j] += data_sin[edge] * x[i]
                grad_ks[edge] -= x[i] * cosine[j] + y[i] * sine[j]


@kernel()
def _add_outer(first, second, a, b, factor, count, out):
    """Out += factor * sum over r < count of first_r a_r^T + second_r b_r^T, two r in a sweep over a row."""
    for i in range(out.shape[0]):
        row = out[i]
        for r in range(0, count - count % 2, 2):
            p0, p1 = factor * first[r, i], factor * first[r + 1, i]
            q0, q1 = factor * second[r, i], factor * second[r + 1, i]
            a0, a1, b0, b1 = a[r], a[r + 1], b[r], b[r + 1]
            for j in range(row.shape[0]):
                row[j] += p0 * a0[j] + p1 * a1[j] + q0 * b0[j] + q1 * b1[j]
        if count % 2 == 1:
            _add(factor * first[count - 1, i], a[count - 1], row)
            _add(factor * second[count - 1, i], b[count - 1], row)


@kernel()
def collect(buffer, count, grad_kc, grad_ks):
    """Add the share of evaluations to the gradients at K cos and K sin.

    Parameters
    ----------
    buffer : ndarray, shape (4, R, N)
        Of each evaluation x, minus y, sine and cosine.
    count : int
        Evaluations in it.
    grad_kc, grad_ks : ndarray, shape (N, N), or (0, 0) for the second
        Grow. Cost 2 N**2 multiply-adds an evaluation, 4 N**2 with both.
    """
    x, y, sine, cosine = buffer[0], buffer[1], buffer[2], buffer[3]
    _add_outer(x, y, sine, cosine, 1.0, count, grad_kc)
    if grad_ks.shape[0] > 0:
        for r in range(count):
            _scale(-1.0, y[r])
        _add_outer(x, y, cosine, sine, -1.0, count, grad_ks)


@kernel()
def _stage_back(kept, grad, coupling, drive, buffer, filled, omega, slopes, grad_kc, grad_ks, room, out):
    """Gradient at the phases of a stage from that at its drift; the others grow.

    Returns how many evaluations wait in the buffer.
    """
    n = grad.shape[0]
    sine, cosine, p, q = kept[0], kept[1], kept[2], kept[3]
    x, y, along, across = room[0], room[1], room[2], room[3]
    lag, zeta, psi = 0.0, 0.0, 0.0
    for i in range(n):
        x[i] = grad[i] * (cosine[i] * drive[0] - sine[i] * drive[1])
        y[i] = grad[i] * (sine[i] * drive[0] + cosine[i] * drive[1])
        along[i] = 0.0
        across[i] = 0.0
        omega[i] += grad[i]
        out[i] = y[i] * p[i] + x[i] * q[i]
        driven = grad[i] * (drive[2] * sine[i] + drive[3] * cosine[i])
        lag -= out[i]
        out[i] += driven
        zeta += grad[i] * (drive[4] * cosine[i] - drive[5] * sine[i])
        psi += driven
    slopes[0] += lag
    slopes[1] += zeta
    slopes[2] += psi
    if len(coupling) == 2:
        knm, knm_sin = coupling
        _transposed_sums(knm, x, y, along, across)
        for i in range(n):
            buffer[0, filled, i], buffer[1, filled, i] = x[i], -y[i]
            buffer[2, filled, i], buffer[3, filled, i] = sine[i], cosine[i]
        filled += 1
        if knm_sin.shape[0] > 0:
            _scale(-1.0, y)
            _transposed_sums(knm_sin, y, x, along, across)
        if filled == buffer.shape[1]:
            collect(buffer, filled, grad_kc, grad_ks)
            filled = 0
    else:
        _edges_transposed(coupling, x, y, along, across, sine, cosine, grad_kc, grad_ks)
    for i in range(n):
        out[i] = cosine[i] * along[i] + sine[i] * across[i] - out[i]
    return filled


@kernel()
def _blend(a, first, b, second, out):
    """Out = a * first + b * second."""
    for i in range(out.shape[0]):
        out[i] = a * first[i] + b * second[i]


@kernel()
def go_back(
    grad, steps, slot, dt, coupling, drive, tape, buffer, filled, omega, slopes, grad_kc, grad_ks, work
):
    """Turn the gradient at the state after steps that stand on the tape into that before them.

    Parameters
    ----------
    grad : ndarray, shape (N,)
        Gradient at the state, written to.
    steps, slot : int
        Steps, and the place of the first one; the last one comes first.
    dt, coupling, tape
        As in `follow`.
    drive : ndarray, shape (6,)
        Beyond those of `follow` sin psi and cos psi.
    buffer : ndarray, shape (4, R, N)
        Evaluations whose share of the gradient at a dense coupling waits to be added, see `collect`.
    filled : int
        How many do.
    omega : ndarray, shape (N,)
        Gradient at the frequencies; grows.
    slopes : ndarray, shape (3,)
        Gradients at the lag, zeta and psi; grow.
    grad_kc, grad_ks : ndarray
        Gradients at K cos and K sin, of the shape of the coupling's values; the second is empty without lags
        of each pair. They grow.
    work : ndarray, shape (WORK_ROWS, N)
        Scratch.

    Returns
    -------
    int
        How many evaluations wait in the buffer. Cost 4 S N**2 multiply-adds a step, 8 S N**2 with lags.
    """
    after, stage, back, room = work[0], work[1], work[2], work[3:7]
    for step in range(slot + steps - 1, slot - 1, -1):
        for i in range(grad.shape[0]):
            after[i] = grad[i]
            back[i] = 0.0
        for s in range(tape.shape[1] - 1, -1, -1):
            if tape.shape[1] == 1:
                _blend(dt, after, 0.0, back, stage)
            elif s == 3:
                _blend(dt / 6.0, after, 0.0, back, stage)
            elif s == 2:
                _blend(dt / 3.0, after, dt, back, stage)
            elif s == 1:
                _blend(dt / 3.0, after, 0.5 * dt, back, stage)
            else:
                _blend(dt / 6.0, after, 0.5 * dt, back, stage)
            filled = _stage_back(
                tape[step, s], stage, coupling, drive, buffer, filled, omega, slopes,
                grad_kc, grad_ks, room, back,
            )  # fmt: skip
            _add(1.0, back, grad)
    return filled
