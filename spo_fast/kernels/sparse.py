"""Attention-modulated coupling in compressed rows, as embeddable Numba kernels; cost by the edges.

The formulas are those of ``modulation``. Queries, keys and values of an oscillator stand side by side in
one row. Some hundred edges are taken at a time, head by head: their logits, then all exponentials in one
loop that is vectorised, then the sums of each oscillator.

Common arguments
----------------
indptr : (N + 1,), int64; the edges into oscillator i are those from indptr[i] on, before indptr[i + 1].
indices : (E,), int32; column of each edge. No column twice in a row.
data : (E,); K_ij. A zero here is no edge to the softmax.
mean : (E,); (K_ij + K_ji)/2 on the same pattern, which must be symmetric. May be `data` when K is exactly
symmetric.
"""

from __future__ import annotations

import math

import numpy as np

from ._flags import INVALID_ARGUMENT, NONFINITE_COUPLING, NONFINITE_PHASE, OK, kernel
from .modulation import (
    _FEATURES,
    _NORM_FLOOR,
    _PLAIN_LOGIT_LIMIT,
    _SMALLEST_EXPONENT,
    _fill,
    _finite,
    _largest_norm,
    _project_all,
    _round_up,
    _weights_fit,
)
from .vectormath import exp2

_EDGES = 1024  # edges taken at a time, unless a row is longer
_BLOCK = 256  # oscillators whose features are made at once: they stay in the cache


@kernel()
def _pattern_fits(n, indptr, indices, data):
    """Whether a pattern has one row per oscillator and no index out of range."""
    edges = data.shape[0]
    if indptr.shape[0] != n + 1 or indices.shape[0] != edges or indptr[0] != 0 or indptr[n] != edges:
        return False
    bad = 0
    for i in range(n):
        bad += 1 if indptr[i] > indptr[i + 1] else 0
    for e in range(edges):
        bad += 1 if indices[e] < 0 or indices[e] >= n else 0
    return bad == 0


@kernel()
def _transpose(block, first, rows):
    """Row first + i of `rows` becomes column i of `block`."""
    for i in range(min(_BLOCK, rows.shape[0] - first)):
        for f in range(rows.shape[1]):
            rows[first + i, f] = block[f, i]


@kernel()
def _raise_norms(block, norms):
    """Raise each head's largest norm of queries and of keys."""
    heads = norms.shape[1]
    width = block.shape[0] // 4
    per_head = width // heads
    for kind in range(2):
        for h in range(heads):
            first = (kind + 1) * width + h * per_head
            norms[kind, h] = max(norms[kind, h], _largest_norm(block[first : first + per_head]))


@kernel()
def _prepare_rows(theta, w_q, w_k, w_v, temperature):
    """Queries, keys and values of every oscillator, and which heads have moderate logits.

    Returns
    -------
    rows : ndarray, shape (N, 3 d)
        Queries (with the softmax's scale times log2(e)), keys and values of one oscillator per row.
    plain : ndarray, shape (H,)
        Whether no logit of the head can exceed the limit up to which nothing needs to be subtracted.
    """
    heads, width = w_q.shape[:2]
    n = theta.shape[0]
    rows = np.empty((n, 3 * width))
    block = np.zeros((4 * width, _BLOCK))  # the last one keeps features of an earlier one in its last columns
    norms = np.zeros((2, heads))
    for first in range(0, n, _BLOCK):
        _project_all(theta[first : first + _BLOCK], w_q, w_k, w_v, temperature, block)
        _transpose(block[width:], first, rows)
        _raise_norms(block, norms)
    plain = np.empty(heads, np.bool_)
    for h in range(heads):
        plain[h] = norms[0, h] * norms[1, h] <= _PLAIN_LOGIT_LIMIT  # Cauchy-Schwarz
    return rows, plain


@kernel()
def _collect(first, indptr, indices, data, block_size, keys, bounds):
    """List the unmasked neighbours of as many oscillators, from `first` on, as there is room for.

    Those of oscillator first + r stand in `keys` from bounds[r] on, before bounds[r + 1]. Returns the
    oscillator after the last one.
    """
    count = 0
    i = first
    bounds[0] = 0
    last = min(indptr.shape[0] - 1, first + bounds.shape[0] - 1)
    while i < last and count + indptr[i + 1] - indptr[i] <= keys.shape[0]:
        for edge in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            j = np.int64(indices[edge])
            keys[count] = j
            count += 1 if data[edge] != 0.0 and j != i and (block_size < 0 or abs(i - j) <= block_size) else 0
        i += 1
        bounds[i - first] = count
    return i


@kernel()
def _edge_logits(rows, first, keys, bounds, head, per_head, logits):
    """Logits of the listed neighbours in one head; two features per head, the usual case, without a loop."""
    width = rows.shape[1] // 3
    lo = np.uint64(head * per_head)
    column = np.uint64(width + head * per_head)
    for r in range(bounds.shape[0] - 1):
        query = rows[first + r]
        q0, q1 = query[lo], query[lo + np.uint64(min(1, per_head - 1))]  # q1 is used with two features only
        for position in range(np.uint64(bounds[r]), np.uint64(bounds[r + 1])):
            j = np.uint64(keys[position])
            if per_head == 2:
                logits[position] = q0 * rows[j, column] + q1 * rows[j, column + np.uint64(1)]
            else:
                logit = 0.0
                for e in range(np.uint64(per_head)):
                    logit += query[lo + e] * rows[j, column + e]
                logits[position] = logit


@kernel()
def _subtract_largest(bounds, logits):
    """Subtract each oscillator's largest logit."""
    for r in range(bounds.shape[0] - 1):
        top = -np.inf
        for position in range(bounds[r], bounds[r + 1]):
            top = max(top, logits[position])
        for position in range(bounds[r], bounds[r + 1]):
            logits[position] -= top


@kernel()
def _exponentials(logits):
    """Powers of two in place. Below 2**-1000 of the largest weight nothing can change a sum."""
    for position in range(logits.shape[0]):
        x = logits[position]
        logits[position] = exp2(_SMALLEST_EXPONENT if x < _SMALLEST_EXPONENT else x)


@kernel()
def _mix_edges(rows, first, keys, bounds, weights, head, per_head, w_o, units):
    """Add one head's mean of the values, times its rows of W_O, to the outputs."""
    width = rows.shape[1] // 3
    for r in range(bounds.shape[0] - 1):
        total = 0.0
        for position in range(np.uint64(bounds[r]), np.uint64(bounds[r + 1])):
            total += weights[position]
        if total == 0.0:
            continue  # nobody in sight
        for f in range(head * per_head, (head + 1) * per_head):
            value = 0.0
            for position in range(np.uint64(bounds[r]), np.uint64(bounds[r + 1])):
                value += weights[position] * rows[np.uint64(keys[position]), 2 * width + f]
            value /= total
            for c in range(width):
                units[first + r, c] += value * w_o[f, c]


@kernel()
def _normalise_row(output, scale):
    """Divide by the norm plus 1e-12 and multiply by `scale`."""
    square = 0.0
    for c in range(output.shape[0]):
        square += output[c] * output[c]
    factor = scale / (math.sqrt(square) + _NORM_FLOOR)
    for c in range(output.shape[0]):
        output[c] *= factor


@kernel()
def _longest_row(indptr):
    """Largest number of edges of a row."""
    longest = 0
    for i in range(indptr.shape[0] - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return longest


@kernel()
def _unit_rows(indptr, indices, data, theta, w_q, w_k, w_v, w_o, block_size, temperature, scale, units):
    """Unit outputs times `scale` in the first d columns of `units`, which hold zeros."""
    heads, width, per_head = w_q.shape
    n = theta.shape[0]
    rows, plain = _prepare_rows(theta, w_q, w_k, w_v, temperature)
    keys = np.empty(max(_EDGES, _longest_row(indptr)), np.int64)
    bounds = np.empty(_BLOCK + 1, np.int64)
    weights = np.empty(keys.shape[0])
    first = np.int64(0)  # a plain 0 would compile what it is passed to once more
    while first < n:
        stop = _collect(first, indptr, indices, data, block_size, keys, bounds)
        ends = bounds[: stop - first + 1]
        logits = weights[: bounds[stop - first]]
        for h in range(heads):
            _edge_logits(rows, first, keys, ends, h, per_head, logits)
            if not plain[h]:
                _subtract_largest(ends, logits)
            _exponentials(logits)
            _mix_edges(rows, first, keys, ends, logits, h, per_head, w_o, units)
        for i in range(first, stop):
            _normalise_row(units[i, :width], scale)
        first = stop


@kernel(inline=True)
def _add_products(start, a, b, c):
    """Start + the products of eight features of two rows: the same bits whichever row comes first."""
    first = start + a[c] * b[c] + a[c + 1] * b[c + 1] + a[c + 2] * b[c + 2] + a[c + 3] * b[c + 3]
    rest = first + a[c + 4] * b[c + 4] + a[c + 5] * b[c + 5]
    return rest + a[c + 6] * b[c + 6] + a[c + 7] * b[c + 7]


@kernel()
def _scale_edges(indptr, indices, mean, units, lambda_, block_size, out):
    """K' from the mean and the unit outputs, edge by edge."""
    for i in range(units.shape[0]):
        for edge in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            j = np.int64(indices[edge])
            factor = 0.0 if i == j else 1.0
            if i != j and (block_size < 0 or abs(i - j) <= block_size):
                factor = 1.0 + 0.5 * lambda_
                for c in range(0, units.shape[1], _FEATURES):
                    factor = _add_products(factor, units[i], units[np.uint64(j)], c)
            out[edge] = mean[edge] * factor


@kernel()
def apply_modulation_sparse(
    indptr, indices, data, mean, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, out
):  # fmt: skip
    """``modulate_sparse`` for arguments that were checked before; parameters as there."""
    n = theta.shape[0]
    if lambda_ == 0.0 or n == 0:
        for edge in range(data.shape[0]):
            out[edge] = data[edge]
        return
    units = np.zeros((n, _round_up(w_o.shape[0], _FEATURES)))
    scale = math.sqrt(0.5 * lambda_)
    _unit_rows(indptr, indices, data, theta, w_q, w_k, w_v, w_o, block_size, temperature, scale, units)
    _scale_edges(indptr, indices, mean, units, lambda_, block_size, out)


@kernel()
def _check_edges(indptr, indices, data, mean, theta, w_q, w_k, w_v, w_o, temperature):
    """Return the status of everything that the public functions check."""
    if not _weights_fit(w_q, w_k, w_v, w_o, temperature) or mean.shape != data.shape:
        return INVALID_ARGUMENT
    if not _pattern_fits(theta.shape[0], indptr, indices, data):
        return INVALID_ARGUMENT
    if not (_finite(data) and _finite(mean)):
        return NONFINITE_COUPLING
    return OK if _finite(theta) else NONFINITE_PHASE


@kernel()
def modulate_sparse(
    indptr, indices, data, mean, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, out
):  # fmt: skip
    """Modulated coupling K' of one state on the pattern of a sparse K.

    Parameters
    ----------
    indptr : ndarray, shape (N + 1,), int64
        The edges of row i are those from indptr[i] on, before indptr[i + 1].
    indices : ndarray, shape (E,), int32
        Column of each edge, none twice in a row.
    data : ndarray, shape (E,)
        K_ij; a zero is no edge to the softmax. Only read.
    mean : ndarray, shape (E,)
        (K_ij + K_ji)/2 on the same pattern, which must be symmetric; `data` itself when K is exactly
        symmetric. That it is so is not checked. Only read.
    theta : ndarray, shape (N,), radians
        Phases of any size.
    w_q, w_k, w_v, w_o, block_size, temperature, lambda_
        As in `modulate`.
    out : ndarray, shape (E,)
        Receives K'_ij; 0 on the diagonal. May not overlap the inputs. Untouched unless the status is 0.

    Returns
    -------
    int
        Status: 0 (done), ``INVALID_ARGUMENT`` (shapes, pattern, temperature, strength),
        ``NONFINITE_COUPLING`` or ``NONFINITE_PHASE``.

    Notes
    -----
    Cost E H exponentials, E (3 d + 1) and 4 N d**2 multiply-adds; allocates 4 N d doubles.
    The result repeats bit for bit and is exactly symmetric.
    """
    if not (lambda_ >= 0.0 and lambda_ < np.inf) or out.shape != data.shape:
        return INVALID_ARGUMENT
    status = _check_edges(indptr, indices, data, mean, theta, w_q, w_k, w_v, w_o, temperature)
    if status == OK:
        apply_modulation_sparse(
            indptr, indices, data, mean, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, out
        )
    return status


@kernel()
def factors_sparse(indptr, indices, data, theta, w_q, w_k, w_v, w_o, block_size, temperature, out):
    """Unit outputs of one state for a sparse K.

    Parameters
    ----------
    indptr, indices, data, theta, w_q, w_k, w_v, w_o, block_size, temperature
        As in `modulate_sparse`.
    out : ndarray, shape (N, d)
        Receives one row per oscillator, of length 1 (0 for an oscillator without neighbours).

    Returns
    -------
    int
        Status as in `modulate_sparse`. Cost E H exponentials and 2 E d multiply-adds.
    """
    if out.shape != (theta.shape[0], w_o.shape[0]):
        return INVALID_ARGUMENT
    status = _check_edges(indptr, indices, data, data, theta, w_q, w_k, w_v, w_o, temperature)
    if status == OK:
        for i in range(out.shape[0]):
            _fill(out[i], 0.0)
        _unit_rows(indptr, indices, data, theta, w_q, w_k, w_v, w_o, block_size, temperature, 1.0, out)
    return status
