"""Attention-modulated coupling as embeddable Numba kernels.

Per head ``h`` the phases' harmonics ``x = [cos t, sin t, ..., cos(d/2)t, sin(d/2)t]`` give ``q = x W_Q``,
``k = x W_K``, ``v = x W_V``; a softmax over the coupled neighbours weighs the values, ``O = concat(A_h V_h)
W_O``, ``u_i = O_i / (|O_i| + 1e-12)`` and

    K'_ij = (K_ij + K_ji)/2 * (1 + lambda/2 + lambda/2 u_i.u_j)   for coupled pairs inside the band,

with the mean of K_ij and K_ji alone outside it and a zero diagonal.

Layout: sixteen queries at a time (one inner loop of constant length, which LLVM unrolls into vectors)
against all keys. Keys that all sixteen see are summed without a mask, the others with one. The scale and
log2(e) are folded into the queries, so a weight is one power of two; while no logit can exceed 64 binary
orders nothing needs to be subtracted first.

Cost of ``modulate``: N**2 * H exponentials and N**2 (3 d + 1) multiply-adds, scratch of 6 N d doubles.
"""

from __future__ import annotations

import math

import numpy as np

from ._flags import (
    ASYMMETRIC_COUPLING,
    INVALID_ARGUMENT,
    NONFINITE_COUPLING,
    NONFINITE_PHASE,
    NONZERO_DIAGONAL,
    OK,
    REASSOCIATE,
    kernel,
)
from .vectormath import exp2, sincos

_LANES = 16  # queries per group: four 4-lane vectors, enough to hide the latency of a multiply-add
_TILE = 4  # rows and columns compared at once; more make the mirror's lines evict each other
_FEATURES = 8  # features multiplied in one sweep over a row; fewer are filled up with zeros
_ASIDE = 8  # columns more than needed: rows whose distance is a power of two evict each other
_LOG2_E = math.log2(math.e)
_SYMMETRY_TOLERANCE = 1e-12
_NORM_FLOOR = 1e-12
# Up to here weights stay within 2**-64 and 2**64, so that sums of weights and weighted values neither
# overflow nor vanish unless the values themselves are at the edge of the number range.
_PLAIN_LOGIT_LIMIT = 64.0
_SMALLEST_EXPONENT = -1000.0

# Bits of what is known of a coupling matrix, see `inspect_coupling`.
EXACTLY_SYMMETRIC = 1
WITHOUT_ZEROS = 2


@kernel()
def _scan_row(row):
    """Number of entries that are not finite, and of zeros."""
    nonfinite = 0
    zeros = 0
    for j in range(row.shape[0]):
        nonfinite += 0 if abs(row[j]) < np.inf else 1
        zeros += 1 if row[j] == 0.0 else 0
    return nonfinite, zeros


@kernel(REASSOCIATE)
def _unequal_tile(tile, mirror):
    """Number of entries of a 4 x 4 tile that differ from their mirror images."""
    unequal = 0.0
    for i in range(_TILE):
        for j in range(_TILE):
            unequal += 1.0 if tile[i, j] != mirror[j, i] else 0.0
    return unequal


@kernel()
def _unequal_pairs(knm):
    """Number of differences between a matrix and its transpose, from the upper triangle; 0 means equal."""
    n = knm.shape[0]
    whole = n - n % _TILE
    unequal = 0.0
    for i in range(0, whole, _TILE):
        for j in range(i, whole, _TILE):
            unequal += _unequal_tile(knm[i : i + _TILE, j : j + _TILE], knm[j : j + _TILE, i : i + _TILE])
    for i in range(n):
        for j in range(max(i + 1, whole), n):
            unequal += 1.0 if knm[i, j] != knm[j, i] else 0.0
    return unequal


@kernel()
def _explain(knm):
    """First applicable status of a matrix, judged entry by entry."""
    n = knm.shape[0]
    for i in range(n):
        for j in range(n):
            if not abs(knm[i, j]) < np.inf:
                return NONFINITE_COUPLING
    for i in range(n):
        for j in range(i):
            a = knm[i, j]
            b = knm[j, i]
            if abs(a - b) > _SYMMETRY_TOLERANCE * (1.0 + min(abs(a), abs(b))):
                return ASYMMETRIC_COUPLING
    for i in range(n):
        if abs(knm[i, i]) > _SYMMETRY_TOLERANCE:
            return NONZERO_DIAGONAL
    return OK


@kernel()
def inspect_coupling(knm):
    """Check a coupling matrix and say what its structure allows.

    Parameters
    ----------
    knm : ndarray, shape (N, N)
        Coupling, only read.

    Returns
    -------
    status : int
        ``OK``, ``NONFINITE_COUPLING``, ``ASYMMETRIC_COUPLING`` (beyond 1e-12, relative and absolute) or
        ``NONZERO_DIAGONAL`` (beyond 1e-12); the first that applies.
    structure : int
        Bits ``EXACTLY_SYMMETRIC`` and ``WITHOUT_ZEROS`` (off the diagonal, only told of exactly symmetric
        matrices).

    Notes
    -----
    One pass over the matrix in tiles, O(N**2); a second one only when something is unusual.
    """
    n = knm.shape[0]
    zeros = 0
    unusual = 0
    for i in range(n):
        row_nonfinite, row_zeros = _scan_row(knm[i])
        unusual += row_nonfinite + (1 if abs(knm[i, i]) > _SYMMETRY_TOLERANCE else 0)
        zeros += row_zeros - (1 if knm[i, i] == 0.0 else 0)
    if unusual == 0 and _unequal_pairs(knm) == 0.0:
        return OK, EXACTLY_SYMMETRIC | (WITHOUT_ZEROS if zeros == 0 else 0)
    return _explain(knm), 0


@kernel()
def _harmonics(theta, x):
    """Fill rows 2m, 2m + 1 of `x` with cos((m + 1) theta), sin((m + 1) theta) by angle addition."""
    n = theta.shape[0]
    sincos(theta, x[1, :n], x[0, :n])
    for m in range(1, x.shape[0] // 2):
        # (m + 1) as a sum of two halves keeps the error growth logarithmic.
        a = (m + 1) // 2 - 1
        b = m - 1 - a
        for i in range(n):
            ca, sa, cb, sb = x[2 * a, i], x[2 * a + 1, i], x[2 * b, i], x[2 * b + 1, i]
            x[2 * m, i] = ca * cb - sa * sb
            x[2 * m + 1, i] = sa * cb + ca * sb


@kernel()
def _project(x, weights, scale, out):
    """Row h*d_h + e of `out` becomes scale[h] * (x W_h)_e for every oscillator (columns)."""
    heads, width, per_head = weights.shape
    for h in range(heads):
        for e in range(per_head):
            row = out[h * per_head + e]
            for i in range(row.shape[0]):
                row[i] = 0.0
            for f in range(width):
                w = weights[h, f, e] * scale[h]
                source = x[f]
                for i in range(row.shape[0]):
                    row[i] += w * source[i]


@kernel()
def _largest_norm(rows):
    """Largest Euclidean norm of the columns of `rows`."""
    largest = 0.0
    for i in range(rows.shape[1]):
        square = 0.0
        for e in range(rows.shape[0]):
            square += rows[e, i] * rows[e, i]
        if not square <= largest:
            largest = square
    return math.sqrt(largest)


@kernel(REASSOCIATE)
def _mask_entries(entries, mask):
    """Mask of one key for a group of queries: 1 where the coupling is not zero.

    Returns its sum, which is exact.
    """
    seen = 0.0
    for lane in range(_LANES):
        see = 0.0 if entries[lane] == 0.0 else 1.0
        mask[lane] = see
        seen += see
    return seen


@kernel()
def _mask_key(knm, j, base, structure, lanes, mask):
    """``_mask_entries`` for any key `j` and any group.

    The diagonal and lanes beyond the last oscillator give 0.
    """
    seen = 0.0
    for lane in range(_LANES):
        mask[lane] = 0.0
    for lane in range(lanes):
        i = base + lane
        entry = knm[j, i] if structure & EXACTLY_SYMMETRIC else knm[i, j]
        mask[lane] = 0.0 if entry == 0.0 or i == j else 1.0
        seen += mask[lane]
    return seen


@kernel()
def _band_row(j, base, block_size, mask):
    """Clear the lanes of a mask that lie outside the band. Returns what is left of its sum."""
    seen = 0.0
    for lane in range(_LANES):
        if abs(base + lane - j) > block_size:
            mask[lane] = 0.0
        seen += mask[lane]
    return seen


@kernel()
def _sort_keys(knm, base, block_size, structure, shared, partial, masks):
    """Split the keys of one group of queries into those all lanes see and those that need a mask.

    Lanes beyond the last oscillator see whatever the others see.
    """
    n = knm.shape[0]
    lanes = min(_LANES, n - base)
    first = 0 if block_size < 0 else max(0, base - block_size)
    stop = n if block_size < 0 else min(n, base + lanes + block_size)
    n_shared = 0
    n_partial = 0
    for j in range(first, stop):
        inside = block_size < 0 or (j >= base + lanes - 1 - block_size and j <= base + block_size)
        aside = j < base or j >= base + lanes
        mask = masks[n_partial]
        if inside and aside and structure & WITHOUT_ZEROS:
            seen = float(lanes)
        elif aside and lanes == _LANES and structure & EXACTLY_SYMMETRIC:
            seen = _mask_entries(knm[j, base : base + _LANES], mask)
        else:
            seen = _mask_key(knm, j, base, structure, lanes, mask)
        if not inside:
            seen = _band_row(j, base, block_size, mask)
        if seen == lanes:
            shared[n_shared] = j
            n_shared += 1
        elif seen > 0.0:
            partial[n_partial] = j
            n_partial += 1
    return n_shared, n_partial


@kernel()
def _attend_pairs(q, k, v, keys, acc):
    """Add exp2(q.k) and exp2(q.k) v of every listed key to the sums `acc`; two features per head."""
    for position in range(keys.shape[0]):
        j = keys[position]
        k0, k1, v0, v1 = k[0, j], k[1, j], v[0, j], v[1, j]
        for lane in range(_LANES):
            p = exp2(q[0, lane] * k0 + q[1, lane] * k1)
            acc[0, lane] += p
            acc[1, lane] += p * v0
            acc[2, lane] += p * v1


@kernel()
def _attend_pairs_masked(q, k, v, keys, masks, acc):
    """``_attend_pairs`` with a mask row per key."""
    for position in range(keys.shape[0]):
        j = keys[position]
        k0, k1, v0, v1 = k[0, j], k[1, j], v[0, j], v[1, j]
        for lane in range(_LANES):
            p = exp2(q[0, lane] * k0 + q[1, lane] * k1) * masks[position, lane]
            acc[0, lane] += p
            acc[1, lane] += p * v0
            acc[2, lane] += p * v1


@kernel(inline=True)
def _logits(q, k, j, logit):
    """Inner products of the group's queries with key `j`, any number of features."""
    for lane in range(_LANES):
        logit[lane] = q[0, lane] * k[0, j]
    for e in range(1, k.shape[0]):
        key = k[e, j]
        for lane in range(_LANES):
            logit[lane] += q[e, lane] * key


@kernel(inline=True)
def _gather(v, j, weight, acc):
    """Add the weights and the weighted values of key `j`."""
    for lane in range(_LANES):
        acc[0, lane] += weight[lane]
    for e in range(v.shape[0]):
        value = v[e, j]
        for lane in range(_LANES):
            acc[1 + e, lane] += weight[lane] * value


@kernel()
def _attend(q, k, v, keys, masks, masked, weight, acc):
    """Sums over the listed keys for any number of features per head."""
    for position in range(keys.shape[0]):
        j = keys[position]
        _logits(q, k, j, weight)
        for lane in range(_LANES):
            weight[lane] = exp2(weight[lane])
        if masked:
            for lane in range(_LANES):
                weight[lane] *= masks[position, lane]
        _gather(v, j, weight, acc)


@kernel()
def _raise_maximum(q, k, keys, masks, masked, weight, top):
    """Raise `top` to the largest unmasked logit of each lane."""
    for position in range(keys.shape[0]):
        _logits(q, k, keys[position], weight)
        for lane in range(_LANES):
            seen = not masked or masks[position, lane] != 0.0
            top[lane] = weight[lane] if seen and weight[lane] > top[lane] else top[lane]


@kernel()
def _attend_below(q, k, v, keys, masks, masked, weight, top, acc):
    """``_attend`` with each lane's largest logit subtracted: for logits of any size."""
    for position in range(keys.shape[0]):
        j = keys[position]
        _logits(q, k, j, weight)
        for lane in range(_LANES):
            seen = not masked or masks[position, lane] != 0.0
            below = weight[lane] - top[lane] if seen else 0.0
            # A weight under 2**-1000 of the largest one cannot change the sum.
            p = exp2(_SMALLEST_EXPONENT if below < _SMALLEST_EXPONENT else below)
            weight[lane] = p if seen else 0.0
        _gather(v, j, weight, acc)


@kernel()
def _attend_head(q, k, v, plain, shared, partial, masks, lanes, acc):
    """All sums of one head for one group of queries, by the cheapest way that is safe."""
    weight = lanes[0]
    top = lanes[1]
    if plain and k.shape[0] == 2:
        _attend_pairs(q, k, v, shared, acc)
        _attend_pairs_masked(q, k, v, partial, masks, acc)
    elif plain:
        _attend(q, k, v, shared, masks, False, weight, acc)
        _attend(q, k, v, partial, masks, True, weight, acc)
    else:
        for lane in range(_LANES):
            top[lane] = -np.inf
        _raise_maximum(q, k, shared, masks, False, weight, top)
        _raise_maximum(q, k, partial, masks, True, weight, top)
        _attend_below(q, k, v, shared, masks, False, weight, top, acc)
        _attend_below(q, k, v, partial, masks, True, weight, top, acc)


@kernel()
def _mix(acc, w_o, head, outputs):
    """Divide one head's sums by its weight and add the result times its rows of W_O.

    A lane without keys adds 0.
    """
    per_head = acc.shape[0] - 1
    for lane in range(_LANES):
        total = acc[0, lane]
        acc[0, lane] = 1.0 / total if total > 0.0 or total != total else 0.0
    for e in range(per_head):
        for c in range(w_o.shape[1]):
            w = w_o[head * per_head + e, c]
            for lane in range(_LANES):
                outputs[c, lane] += acc[0, lane] * acc[1 + e, lane] * w


@kernel()
def _normalise(outputs, width, scale):
    """Divide each lane by its norm plus 1e-12 and multiply by `scale`."""
    for lane in range(_LANES):
        square = 0.0
        for c in range(width):
            square += outputs[c, lane] * outputs[c, lane]
        factor = scale / (math.sqrt(square) + _NORM_FLOOR)
        for c in range(width):
            outputs[c, lane] *= factor


@kernel()
def _attend_all(
    knm, structure, work, plain, w_o, block_size, scale, u, first, stop, shared, partial, masks, local
):
    """Unit outputs times `scale`, in the columns of `u`; sixteen queries at a time, from `first` to `stop`.

    `work`, `plain`: see `_prepare`. The rest is room: two lists of N keys, masks (N, 16), and 2 d + d_h + 3
    rows of one group.
    """
    n = knm.shape[0]
    heads = plain.shape[0]
    width = w_o.shape[0]
    per_head = width // heads
    q, k, v = work[width : 2 * width], work[2 * width : 3 * width], work[3 * width :]
    queries, outputs = local[:width], local[width : 2 * width]
    acc, lanes = local[2 * width : 2 * width + per_head + 1], local[2 * width + per_head + 1 :]
    for base in range(first, min(n, stop), _LANES):
        n_shared, n_partial = _sort_keys(knm, base, block_size, structure, shared, partial, masks)
        for c in range(width):
            for lane in range(_LANES):
                queries[c, lane] = q[c, base + lane]
                outputs[c, lane] = 0.0
        for h in range(heads):
            lo, hi = h * per_head, (h + 1) * per_head
            for e in range(per_head + 1):
                for lane in range(_LANES):
                    acc[e, lane] = 0.0
            _attend_head(
                queries[lo:hi],
                k[lo:hi],
                v[lo:hi],
                plain[h] != 0.0,
                shared[:n_shared],
                partial[:n_partial],
                masks,
                lanes,
                acc,
            )
            _mix(acc, w_o, h, outputs)
        _normalise(outputs, width, scale)
        for c in range(width):
            for lane in range(_LANES):
                u[c, base + lane] = outputs[c, lane]


@kernel()
def _project_all(theta, w_q, w_k, w_v, temperature, work):
    """Fill the four blocks of `work`, see `_prepare`."""
    heads, width, per_head = w_q.shape
    x, q, k, v = work[:width], work[width : 2 * width], work[2 * width : 3 * width], work[3 * width :]
    _harmonics(theta, x)
    gain = np.empty(heads)
    one = np.ones(heads)
    for h in range(heads):
        gain[h] = _LOG2_E / (math.sqrt(per_head) * temperature[h])
    _project(x, w_q, gain, q)
    _project(x, w_k, one, k)
    _project(x, w_v, one, v)


@kernel()
def _prepare(theta, w_q, w_k, w_v, temperature, work, plain):
    """Harmonics, queries, keys and values of every oscillator, and which heads have moderate logits.

    Parameters
    ----------
    work : ndarray, shape (4 d, N rounded up to the group)
        Receives four blocks of d rows; queries carry the softmax's scale times log2(e).
    plain : ndarray, shape (H,)
        Receives 1 where no logit of the head can exceed the limit up to which nothing needs to be subtracted,
        else 0.
    """
    heads, width, per_head = w_q.shape
    n = theta.shape[0]
    for f in range(width):
        _fill(work[f, n:], 0.0)
    _project_all(theta, w_q, w_k, w_v, temperature, work)
    q, k = work[width : 2 * width], work[2 * width : 3 * width]
    for h in range(heads):
        lo, hi = h * per_head, (h + 1) * per_head
        # Cauchy-Schwarz: no logit of this head is larger.
        plain[h] = 1.0 if _largest_norm(q[lo:hi]) * _largest_norm(k[lo:hi]) <= _PLAIN_LOGIT_LIMIT else 0.0


@kernel(inline=True)
def _mean(a, b):
    """Mean of two entries; equal ones keep their bits."""
    return a if a == b else 0.5 * a + 0.5 * b


@kernel()
def _scale_row(i, left, right, base, u, knm, out):
    """out[j] = K_ij (base + u_i.u_j) over eight features, one fused chain in the order of the features.

    Columns left ... right - 1, as slices of each row: rows of a slice of the matrix are not known to be
    contiguous.
    """
    a0, a1, a2, a3, a4, a5, a6, a7 = u[0, i], u[1, i], u[2, i], u[3, i], u[4, i], u[5, i], u[6, i], u[7, i]
    u0, u1, u2, u3 = u[0, left:right], u[1, left:right], u[2, left:right], u[3, left:right]
    u4, u5, u6, u7 = u[4, left:right], u[5, left:right], u[6, left:right], u[7, left:right]
    source, row = knm[i, left:right], out[i, left:right]
    for j in range(row.shape[0]):
        first = base + a0 * u0[j] + a1 * u1[j] + a2 * u2[j] + a3 * u3[j]
        row[j] = source[j] * (first + a4 * u4[j] + a5 * u5[j] + a6 * u6[j] + a7 * u7[j])


@kernel()
def _scale_wide_row(i, left, right, base, u, knm, out):
    """`_scale_row` for any number of features."""
    source, row = knm[i, left:right], out[i, left:right]
    _fill(row, base)
    for c in range(u.shape[0]):
        own, feature = u[c, i], u[c, left:right]
        for j in range(row.shape[0]):
            row[j] += own * feature[j]
    for j in range(row.shape[0]):
        row[j] *= source[j]


@kernel()
def _fill(row, value):
    """Set every entry of a row."""
    for j in range(row.shape[0]):
        row[j] = value


@kernel()
def _scale_symmetric(knm, u, lambda_, block_size, out):
    """K' of an exactly symmetric K, row by row.

    The products of a pair are added in the order of the features whichever row they stand in: the result is
    symmetric to the last bit.
    """
    n = knm.shape[0]
    base = 1.0 + 0.5 * lambda_
    for i in range(n):
        left = 0 if block_size < 0 else max(0, i - block_size)
        right = n if block_size < 0 else min(n, i + block_size + 1)
        for j in range(left):
            out[i, j] = knm[i, j]
        if u.shape[0] == _FEATURES:
            _scale_row(i, left, right, base, u, knm, out)
        else:
            _scale_wide_row(i, left, right, base, u, knm, out)
        for j in range(right, n):
            out[i, j] = knm[i, j]
        out[i, i] = 0.0


@kernel()
def _scale_pairs(knm, u, lambda_, block_size, out):
    """K' of a K that is symmetric within the tolerance only: each pair is computed once and written twice."""
    n = knm.shape[0]
    for i in range(n):
        out[i, i] = 0.0
        for j in range(i):
            factor = 1.0
            if block_size < 0 or i - j <= block_size:
                factor = 1.0 + 0.5 * lambda_
                for c in range(u.shape[0]):
                    factor += u[c, i] * u[c, j]
            out[i, j] = _mean(knm[i, j], knm[j, i]) * factor
            out[j, i] = out[i, j]


@kernel()
def _copy_matrix(knm, out):
    """Copy all entries."""
    for i in range(knm.shape[0]):
        for j in range(knm.shape[1]):
            out[i, j] = knm[i, j]


@kernel()
def _round_up(n, step):
    """Smallest multiple of `step` that is at least `n`."""
    return (n + step - 1) // step * step


@kernel(inline=True)
def _units(knm, structure, theta, w_q, w_k, w_v, w_o, block_size, temperature, scale, u):
    """Unit outputs times `scale`, in the columns of `u`."""
    heads, width, per_head = w_q.shape
    n = theta.shape[0]
    work, plain = np.empty((4 * width, _round_up(n, _LANES))), np.empty(heads)
    _prepare(theta, w_q, w_k, w_v, temperature, work, plain)
    keys, masks, local = (
        np.empty((2, n), np.int64),
        np.empty((n, _LANES)),
        np.empty((2 * width + per_head + 3, _LANES)),
    )
    _attend_all(
        knm, structure, work, plain, w_o, block_size, scale, u, np.int64(0), n, keys[0], keys[1], masks, local
    )


@kernel()
def apply_modulation(knm, structure, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, out):
    """``modulate`` for a matrix that `inspect_coupling` has passed: nothing is checked again.

    Parameters
    ----------
    knm : ndarray, shape (N, N)
        Coupling, only read.
    structure : int
        What `inspect_coupling` said of `knm`.
    theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, out
        As in `modulate`.
    """
    n = theta.shape[0]
    reach = block_size if block_size < n else -1
    if lambda_ == 0.0 or n == 0:
        _copy_matrix(knm, out)
        return
    u = np.zeros((_round_up(w_o.shape[0], _FEATURES), _round_up(n, _LANES) + _ASIDE))
    _units(knm, structure, theta, w_q, w_k, w_v, w_o, reach, temperature, math.sqrt(0.5 * lambda_), u)
    if structure & EXACTLY_SYMMETRIC:
        _scale_symmetric(knm, u, lambda_, reach, out)
    else:
        _scale_pairs(knm, u, lambda_, reach, out)


@kernel()
def apply_factors(knm, structure, theta, w_q, w_k, w_v, w_o, block_size, temperature, out):
    """``factors`` for a matrix that `inspect_coupling` has passed; nothing is checked.

    Parameters
    ----------
    knm, theta, w_q, w_k, w_v, w_o, block_size, temperature, out
        As in `factors`.
    structure : int
        What `inspect_coupling` said of K.

    Notes
    -----
    Cost N**2 exponentials and 4 N**2 multiply-adds a feature and head, as `factors` without a look at K.
    """
    n = theta.shape[0]
    if n == 0:
        return
    u = np.empty((w_o.shape[0], _round_up(n, _LANES)))
    reach = block_size if block_size < n else -1
    _units(knm, structure, theta, w_q, w_k, w_v, w_o, reach, temperature, 1.0, u)
    for i in range(n):
        for c in range(u.shape[0]):
            out[i, c] = u[c, i]


@kernel()
def _finite(theta):
    """Whether every phase is a finite number."""
    bad = 0
    for i in range(theta.shape[0]):
        bad += 0 if abs(theta[i]) < np.inf else 1
    return bad == 0


@kernel()
def _inspect_state(knm, theta):
    """`inspect_coupling`, and ``NONFINITE_PHASE`` where that is all there is to be said."""
    status, structure = inspect_coupling(knm)
    if status == OK and not _finite(theta):
        return NONFINITE_PHASE, structure
    return status, structure


@kernel()
def _weights_fit(w_q, w_k, w_v, w_o, temperature):
    """Whether the shapes of all projections belong together and every temperature is positive."""
    heads, width, per_head = w_q.shape
    for h in range(temperature.shape[0]):
        if not (temperature[h] > 0.0 and temperature[h] < np.inf):
            return False
    return (
        heads > 0
        and heads * per_head == width
        and width % 2 == 0
        and width > 0
        and w_k.shape == w_q.shape
        and w_v.shape == w_q.shape
        and w_o.shape == (width, width)
        and temperature.shape[0] == heads
    )


@kernel()
def modulate(knm, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, out):
    """Modulated coupling K' of one state.

    Parameters
    ----------
    knm : ndarray, shape (N, N)
        Coupling, symmetric and with a zero diagonal within 1e-12; only read.
    theta : ndarray, shape (N,), radians
        Phases of any size.
    w_q, w_k, w_v : ndarray, shape (H, d, d/H)
        Projections of the harmonics to queries, keys and values; d even.
    w_o : ndarray, shape (d, d)
        Output projection.
    block_size : int
        Pairs farther apart than this keep their coupling; -1 for no band.
    temperature : ndarray, shape (H,)
        Temperature of each head's softmax, positive.
    lambda_ : float
        Strength; 0 copies `knm`.
    out : ndarray, shape (N, N), C order
        Receives K'; may not overlap `knm`. Untouched unless the status is 0.

    Returns
    -------
    int
        Status: 0 (done), ``INVALID_ARGUMENT`` (shapes, temperature, strength), ``NONFINITE_COUPLING``,
        ``ASYMMETRIC_COUPLING``, ``NONZERO_DIAGONAL`` or ``NONFINITE_PHASE``.

    Notes
    -----
    Cost N**2 H exponentials and N**2 (3 d + 1) multiply-adds; allocates 6 N d doubles and N masks of 16.
    The result is exactly symmetric and repeats bit for bit.
    """
    n = theta.shape[0]
    if not _weights_fit(w_q, w_k, w_v, w_o, temperature) or knm.shape != (n, n) or out.shape != (n, n):
        return INVALID_ARGUMENT
    if not (lambda_ >= 0.0 and lambda_ < np.inf) or block_size < -1:
        return INVALID_ARGUMENT
    status, structure = _inspect_state(knm, theta)
    if status != OK:
        return status
    apply_modulation(knm, structure, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, out)
    return OK


@kernel()
def factors(knm, theta, w_q, w_k, w_v, w_o, block_size, temperature, out):
    """Unit outputs of one state: the rows u_i in K' = K (1 + lambda/2 (1 + u_i.u_j)).

    Parameters
    ----------
    knm, theta, w_q, w_k, w_v, w_o, block_size, temperature
        As in `modulate`.
    out : ndarray, shape (N, d)
        Receives one row per oscillator, of length 1 (0 for an oscillator without neighbours).

    Returns
    -------
    int
        Status as in `modulate`. Cost N**2 H exponentials and 2 N**2 d multiply-adds.
    """
    n = theta.shape[0]
    if not _weights_fit(w_q, w_k, w_v, w_o, temperature) or knm.shape != (n, n):
        return INVALID_ARGUMENT
    if out.shape != (n, w_o.shape[0]):
        return INVALID_ARGUMENT
    status, structure = _inspect_state(knm, theta)
    if status != OK:
        return status
    apply_factors(knm, structure, theta, w_q, w_k, w_v, w_o, block_size, temperature, out)
    return OK
