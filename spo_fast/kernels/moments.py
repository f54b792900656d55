"""Attention through order parameters as embeddable Numba kernels: N B work, no exponential of a pair.

With the series of ``daido`` and the Kuramoto-Daido order parameters Z_k = sum of exp(i k theta_j), numerators
and denominators of the softmax are trigonometric polynomials in the query's phase. The stages are those of
``csrc/isa/moments.h``, which tells why errors stay small and where the constants come from:

* low and far harmonics of each oscillator, whose products z_k = z_8a z_b, k = 8 a + b, are all of them;
  sums of these, Z;
* moments of 1 and of each head's values: combinations of neighbouring Z;
* coefficients of the outputs: series times moments;
* outputs of a crowd of queries; what a query must not see (itself, missing edges) is subtracted;
* guards: sixteen queries, one of which has sums that cannot be trusted, are done again pair by pair.

Loops run along rows of oscillators or of harmonics. Rows are named by their numbers in a matrix, and views of
them made where they are read: a view handed to another kernel costs two atomic operations, more than a short
row's arithmetic.

Common arguments
----------------
structure : what ``inspect_coupling`` said of K.
series : ``Series.arrays`` of ``daido``.
room : scratch of `moments_room_size` doubles. keys : (2, N), int64, scratch.
"""

from __future__ import annotations

import math

import numpy as np

from ._flags import INVALID_ARGUMENT, OK, REASSOCIATE, kernel
from .modulation import (
    _ASIDE,
    _LANES,
    _NORM_FLOOR,
    _SMALLEST_EXPONENT,
    EXACTLY_SYMMETRIC,
    WITHOUT_ZEROS,
    _attend_all,
    _attend_below,
    _copy_matrix,
    _inspect_state,
    _mask_entries,
    _mask_key,
    _prepare,
    _round_up,
    _scale_pairs,
    _scale_symmetric,
    _weights_fit,
)
from .vectormath import _two_sum, exp2, sincos

# Numbers that are passed on are no plain ones, which are types of their own: what they are passed to
# would be compiled for each of them.
_ZERO = np.int64(0)
_NO_BAND = np.int64(-1)
_ROWS = np.int64(8)  # harmonics of a block, SPO_ROWS of csrc/daido.h; terms that one pass over a row adds
_FOUR = np.int64(4)  # rows of the first and of the second factor that `_products` takes at once
_THREE = np.int64(3)
_CROWD = np.int64(128)  # queries whose outputs are made together: their harmonics stay near
_SUMMED = np.int64(512)  # oscillators that are summed up before they join the total
# Numbers of the matrices in the room, see `_shapes`.
_BASIS, _SUMS, _Z, _FEATURES, _MOMENTS, _Y = (np.int64(k) for k in range(6))
_ERROR, _QUERIES, _WORK, _PLAIN, _MASKS, _SIXTEEN, _UNITS = (np.int64(k) for k in range(6, 13))
_ROUNDINGS = 4.0 * 2.0**-53
_UNIT_BUDGET = 3e-14
_BLIND = 0.75  # share of missing edges from which sixteen queries go pair by pair


# ---------------------------------------------------------------- along rows


@kernel(REASSOCIATE, inline=True)
def _twelve_sums(a, at, stride, b, j, start, stop):
    """Products of four rows of `a`, which begin at `at` in steps of `stride`, with rows j ... j + 2 of `b`.

    Columns start ... stop - 1.
    """
    first, last = at + start, at + stop
    a0, a1 = a[first:last], a[first + stride : last + stride]
    a2, a3 = a[first + 2 * stride : last + 2 * stride], a[first + 3 * stride : last + 3 * stride]
    b0, b1, b2 = b[j, start:stop], b[j + 1, start:stop], b[j + 2, start:stop]
    s00 = s01 = s02 = s10 = s11 = s12 = s20 = s21 = s22 = s30 = s31 = s32 = 0.0
    for k in range(a0.shape[0]):
        s00 += a0[k] * b0[k]
        s01 += a0[k] * b1[k]
        s02 += a0[k] * b2[k]
        s10 += a1[k] * b0[k]
        s11 += a1[k] * b1[k]
        s12 += a1[k] * b2[k]
        s20 += a2[k] * b0[k]
        s21 += a2[k] * b1[k]
        s22 += a2[k] * b2[k]
        s30 += a3[k] * b0[k]
        s31 += a3[k] * b1[k]
        s32 += a3[k] * b2[k]
    return (s00, s10, s20, s30), (s01, s11, s21, s31), (s02, s12, s22, s32)


@kernel()
def _products(a, at, stride, b, j0, rows, start, stop, out, i0, column):
    """out[i0 + j, column + i] = products of sixteen rows i of `a` with rows j0 + j of `b`, `rows` of them.

    Those of `a` begin at `at` in steps of `stride`; only the columns start ... stop - 1 count. Rows of `b`
    and `out` come in threes: there is room for the last ones.
    """
    for j in range(0, rows, _THREE):
        for i in range(0, 2 * _ROWS, _FOUR):
            sums = _twelve_sums(a, at + i * stride, stride, b, j0 + j, start, stop)
            for r in range(_THREE):
                for k in range(_FOUR):
                    out[i0 + j + r, column + i + k] = sums[r][k]


@kernel()
def _add_eight(y, f, at, rows, first, count, out, row):
    """Add eight rows, from `first` on, times y[f, at ...] to a row; `count` columns."""
    y0, y1, y2, y3 = y[f, at], y[f, at + 1], y[f, at + 2], y[f, at + 3]
    y4, y5, y6, y7 = y[f, at + 4], y[f, at + 5], y[f, at + 6], y[f, at + 7]
    p0, p1, p2, p3 = (
        rows[first, :count],
        rows[first + 1, :count],
        rows[first + 2, :count],
        rows[first + 3, :count],
    )
    p4, p5 = rows[first + 4, :count], rows[first + 5, :count]
    p6, p7 = rows[first + 6, :count], rows[first + 7, :count]
    target = out[row, :count]
    for i in range(target.shape[0]):
        half = target[i] + y0 * p0[i] + y1 * p1[i] + y2 * p2[i] + y3 * p3[i]
        target[i] = half + y4 * p4[i] + y5 * p5[i] + y6 * p6[i] + y7 * p7[i]


@kernel()
def _add_four_thrice(y, f, at, rows, first, count, out, row):
    """Add four rows, from `first` on, times y[f, at ...] to a row, and so for the next two f and rows."""
    a0, a1, a2, a3 = y[f, at], y[f, at + 1], y[f, at + 2], y[f, at + 3]
    b0, b1, b2, b3 = y[f + 1, at], y[f + 1, at + 1], y[f + 1, at + 2], y[f + 1, at + 3]
    c0, c1, c2, c3 = y[f + 2, at], y[f + 2, at + 1], y[f + 2, at + 2], y[f + 2, at + 3]
    p0, p1 = rows[first, :count], rows[first + 1, :count]
    p2, p3 = rows[first + 2, :count], rows[first + 3, :count]
    a, b, c = out[row, :count], out[row + 1, :count], out[row + 2, :count]
    for i in range(a.shape[0]):
        a[i] = a[i] + a0 * p0[i] + a1 * p1[i] + a2 * p2[i] + a3 * p3[i]
        b[i] = b[i] + b0 * p0[i] + b1 * p1[i] + b2 * p2[i] + b3 * p3[i]
        c[i] = c[i] + c0 * p0[i] + c1 * p1[i] + c2 * p2[i] + c3 * p3[i]


@kernel()
def _clear(rows, first, stop, start, end):
    """Zeros in the columns start ... end - 1 of the rows first ... stop - 1."""
    for row in range(first, stop):
        target = rows[row, start:end]
        for i in range(target.shape[0]):
            target[i] = 0.0


@kernel()
def _turn(rows, c, s, c1, s1, start, stop, out, c2, s2):
    """exp(i (x + y)) of oscillators start ... stop - 1 from those of x and y, to the first columns of out.

    Numbers of rows: cosine and sine of x, of y, of the sum.
    """
    cx, sx, cy, sy = rows[c, start:stop], rows[s, start:stop], rows[c1, start:stop], rows[s1, start:stop]
    cosine, sine = out[c2, : stop - start], out[s2, : stop - start]
    for i in range(cx.shape[0]):
        cosine[i] = cx[i] * cy[i] - sx[i] * sy[i]
        sine[i] = sx[i] * cy[i] + cx[i] * sy[i]


# ---------------------------------------------------------------- room


@kernel()
def _counts(series):
    """Heads, width, blocks of query harmonics, of all harmonics, and harmonics of the key."""
    extents, weight, values = series[0], series[2], series[3]
    heads, blocks = extents.shape
    width, reach = values.shape[0], weight.shape[1] // 2
    return heads, width, blocks, max(blocks, (reach + width // 2 + _ROWS - 1) // _ROWS), reach


@kernel()
def _crowd_rows(heads, width):
    """Where the rows of a crowd begin: harmonics of a block come first.

    Then sums over all keys, what is left of them, own logits with values and shifts, means by head, outputs,
    and two rows of scratch, doubt and blindness, before the end.
    """
    left = 2 * _ROWS + heads * _round_up(1 + width // heads, _THREE)
    own = left + heads + width
    means = own + 2 * heads + width
    outputs = means + _round_up(width, _ROWS)
    return 2 * _ROWS, left, own, means, outputs, outputs + width, outputs + width + 4


@kernel()
def _shapes(n, series):
    """Shape of each matrix in the room, in the order of their numbers."""
    heads, width, blocks, far, reach = _counts(series)
    padded = _round_up(n, _LANES)
    fields = _round_up(1 + width // heads, _THREE)
    return (
        (2 * _ROWS + _round_up(2 * far, _THREE), padded + _ASIDE),  # basis: low, then far harmonics
        (
            3 * _round_up(2 * far, _THREE),
            2 * _ROWS,
        ),  # sums of their products: some, all, errors
        (2, 2 * (_ROWS * far + width)),  # Z and -i Z from -width/2 on
        (_round_up(width, _ROWS), 2 * reach),  # moments of the features
        (heads * fields, 2 * reach),  # moments of 1 and of the values
        (heads * fields, 2 * _ROWS * blocks),  # coefficients of the outputs
        (heads, 1 + width // heads),  # scale of the errors of these
        (_crowd_rows(heads, width)[6], min(_CROWD, padded) + _ASIDE),  # a crowd of queries
        (4 * width, padded),  # features, queries, keys, values
        (1, heads),  # whether their logits are moderate
        (n, _LANES),  # masks
        (2 * width + width // heads + 3, _LANES),  # sixteen queries on the direct path
        (_round_up(width, _ROWS), padded + _ASIDE),  # unit outputs
    )


@kernel()
def moments_room_size(n, series):
    """Count the doubles of scratch that a modulation through order parameters takes.

    Parameters
    ----------
    n : int
        Number of oscillators.
    series : tuple of ndarray
        ``Series.arrays``, see `series_of`.

    Returns
    -------
    int
        Cost O(1).
    """
    total = 0
    for rows, columns in _shapes(n, series):
        total += rows * columns
    return total


@kernel()
def _take(room, shapes, index):
    """The matrix of that number in `room`."""
    start = 0
    for k in range(index):
        start += shapes[k][0] * shapes[k][1]
    rows, columns = shapes[index]
    return room[start : start + rows * columns].reshape(rows, columns)


# ---------------------------------------------------------------- harmonics and their sums


@kernel()
def _powers(basis, first, count):
    """Cosines 2 ... count - 1 from row `first` on, and sines `count` rows below, from those of 0 and 1."""
    columns = basis.shape[1]
    one, zero = basis[first], basis[first + count]
    for i in range(columns):
        one[i] = 1.0
        zero[i] = 0.0
    for k in range(2, count):
        a, b = first + k // 2, first + k - k // 2
        _turn(basis, a, a + count, b, b + count, _ZERO, columns, basis, first + k, first + k + count)


@kernel()
def _first_harmonics(theta, basis, far):
    """Harmonics 0 ... 7, and `far` of each eighth one; zeros past the last oscillator.

    The first and the eighth have a sine and a cosine of their own, the others are products of two.
    """
    n = theta.shape[0]
    eightfold = basis[0, :n]
    for i in range(n):
        eightfold[i] = 8.0 * theta[i]
    sincos(theta, basis[_ROWS + 1, :n], basis[1, :n])
    sincos(eightfold, basis[2 * _ROWS + far + 1, :n], basis[2 * _ROWS + 1, :n])
    _powers(basis, _ZERO, _ROWS)
    _powers(basis, 2 * _ROWS, far)
    _clear(basis, _ZERO, basis.shape[0], n, basis.shape[1])
    _clear(basis, 2 * _ROWS + 2 * far, basis.shape[0], _ZERO, n)


@kernel()
def _add_accurately(sums, rows):
    """Add the first `rows` rows to the next ones, keeping the rounding errors in the last ones."""
    for row in range(rows):
        terms, total, error = sums[row], sums[rows + row], sums[2 * rows + row]
        for i in range(terms.shape[0]):
            total[i], lost = _two_sum(total[i], terms[i])
            error[i] += lost


@kernel()
def _order_parameters(basis, far, sums, z, margin):
    """Z_k in the columns 2 (margin + k) and 2 (margin + k) + 1 of row 0, conjugates of the first before them.

    Row 1 has -i Z. Cosines times cosines and so on are summed, which is a product of matrices; k = 8 a + b.
    """
    rows = sums.shape[0] // 3
    columns = basis.shape[1]
    flat = basis.reshape(basis.size)
    _clear(sums, rows, 3 * rows, _ZERO, 2 * _ROWS)
    for start in range(0, columns, _SUMMED):
        stop = min(start + _SUMMED, columns)
        _products(flat, _ZERO, columns, basis, 2 * _ROWS, rows, start, stop, sums, _ZERO, _ZERO)
        _add_accurately(sums, rows)
    for row in range(rows, 2 * rows):
        for i in range(2 * _ROWS):
            sums[row, i] += sums[row + rows, i]
    _clear(z, _ZERO, z.shape[0], _ZERO, z.shape[1])
    for a in range(far):
        for b in range(_ROWS):
            k = 2 * (margin + _ROWS * a + b)
            z[0, k] = sums[rows + a, b] - sums[rows + far + a, _ROWS + b]
            z[0, k + 1] = sums[rows + a, _ROWS + b] + sums[rows + far + a, b]
    for k in range(margin):
        z[0, 2 * k] = z[0, 2 * (2 * margin - k)]
        z[0, 2 * k + 1] = -z[0, 2 * (2 * margin - k) + 1]
    for k in range(0, z.shape[1], 2):
        z[1, k] = z[0, k + 1]
        z[1, k + 1] = -z[0, k]


# ---------------------------------------------------------------- moments and coefficients


@kernel()
def _feature_moments(z, part, sign, low, high, out, row, count):
    """Half of the sum, or the difference, of neighbours of Z or -i Z."""
    down, up, target = z[part, low : low + count], z[part, high : high + count], out[row, :count]
    for b in range(target.shape[0]):
        target[b] = 0.5 * up[b] + sign * down[b]


@kernel()
def _moments(z, margin, series, features, fields):
    """Moments of 1 and of all values, by head: cosine and sine of each harmonic of the key in turn.

    Those of cos k theta and sin k theta are halves of Z_b+k + Z_b-k and of -i (Z_b+k - Z_b-k).
    """
    heads, width, _, _, reach = _counts(series)
    values = series[3]
    rows, per_head, count = fields.shape[0] // heads, width // heads, 2 * reach
    _clear(features, width, features.shape[0], _ZERO, count)
    for k in range(1, margin + 1):
        low, high = 2 * (margin - k), 2 * (margin + k)
        for part in range(2):
            _feature_moments(z, part, 0.5 - part, low, high, features, 2 * k - 2 + part, count)
    _clear(fields, _ZERO, fields.shape[0], _ZERO, count)
    for h in range(heads):
        _feature_moments(z, _ZERO, 0.5, 2 * margin, 2 * margin, fields, h * rows, count)
        for e in range(per_head):
            for f in range(0, width, _ROWS):
                _add_eight(values, h * per_head + e, f, features, f, count, fields, h * rows + 1 + e)


@kernel(REASSOCIATE)
def _two_squares(weight, h, fields, f):
    """Sums of weight field^2 and of field^2."""
    factor, field = weight[h], fields[f]
    weighted = 0.0
    plain = 0.0
    for b in range(field.shape[0]):
        weighted += factor[b] * field[b] * field[b]
        plain += field[b] * field[b]
    return weighted, plain


@kernel()
def _coefficients(series, fields, y, error):
    """Coefficients of the outputs of all heads, and the scale of their errors.

    The latter where the largest exponential is 1: roundings of C_ab Z_b as they add up by chance, and what
    the series leave out.
    """
    extents, coefficient, weight, tail = series[0], series[1], series[2], series[8]
    rows = fields.shape[0] // extents.shape[0]
    at = _ZERO
    for h in range(extents.shape[0]):
        for f in range(error.shape[1]):
            weighted, plain = _two_squares(weight, h, fields, h * rows + f)
            error[h, f] = _ROUNDINGS * math.sqrt(weighted) + tail * math.sqrt(2.0 * plain / weight.shape[1])
        for j in range(extents.shape[1]):
            columns = 2 * extents[h, j]
            _products(
                coefficient, at, columns, fields, h * rows, rows, _ZERO, columns, y, h * rows, 2 * _ROWS * j
            )
            at += 2 * _ROWS * columns


# ---------------------------------------------------------------- outputs of a crowd


@kernel()
def _crowd_outputs(basis, far, start, stop, hiding, series, y, crowd):
    """Sums over all keys, and what the queries' own harmonics give, for the queries start ... stop - 1."""
    extents, local, spans = series[0], series[4], series[5]
    heads, width, blocks, _, _ = _counts(series)
    sums, left, own, _, _, _, _ = _crowd_rows(heads, width)
    rows, count = y.shape[0] // heads, stop - start
    wanted = local.shape[0] if hiding else heads + width  # shifts come last
    _clear(crowd, sums, left, _ZERO, count)
    _clear(crowd, own, own + wanted, _ZERO, count)
    for a in range(blocks):
        cosine, sine, at = 2 * _ROWS + a, 2 * _ROWS + far + a, 2 * _ROWS * a
        for b in range(_ROWS):
            _turn(basis, cosine, sine, b, _ROWS + b, start, stop, crowd, b, _ROWS + b)
        for h in range(heads):
            if extents[h, a] > 0:
                for f in range(h * rows, (h + 1) * rows, _THREE):
                    for t in range(0, 2 * _ROWS, _FOUR):
                        _add_four_thrice(y, f, at + t, crowd, t, count, crowd, sums + f)
        for r in range(wanted):
            if a < spans[r]:
                _add_eight(local, r, at, crowd, _ZERO, count, crowd, own + r)
                _add_eight(local, r, at + _ROWS, crowd, _ROWS, count, crowd, own + r)


@kernel()
def _leave_out_own(crowd, sums, left, own, value, per_head, count):
    """Sums of one head without the query's own term; rows of its sums, of the result, logits and values."""
    logit, weight, everything = crowd[own, :count], crowd[left, :count], crowd[sums, :count]
    for i in range(count):
        exponent = logit[i]
        logit[i] = exp2(_SMALLEST_EXPONENT if exponent < _SMALLEST_EXPONENT else exponent)
        weight[i] = everything[i] - logit[i]
    for e in range(per_head):
        field, one, rest = crowd[sums + 1 + e, :count], crowd[value + e, :count], crowd[left + 1 + e, :count]
        for i in range(count):
            rest[i] = field[i] - logit[i] * one[i]


@kernel()
def _list_hidden(knm, structure, base, keys, masks):
    """List the keys that some of sixteen queries do not see, masks 1 for those. Returns their number."""
    n = knm.shape[0]
    lanes = min(_LANES, n - base)
    count = 0
    for j in range(n):
        aside = j < base or j >= base + lanes
        mask = masks[count]
        if aside and lanes == _LANES and structure & EXACTLY_SYMMETRIC:
            seen = _mask_entries(knm[j, base : base + _LANES], mask)
        else:
            seen = _mask_key(knm, j, base, structure, lanes, mask)
        if seen < lanes - (0 if aside else 1):
            for lane in range(_LANES):
                mask[lane] = 1.0 - mask[lane] if lane < lanes and base + lane != j else 0.0
            keys[count] = j
            count += 1
    return count


@kernel()
def count_hidden(knm, structure, keys, masks):
    """Number of pairs of sixteen queries and a key that one of them does not see. O(N**2).

    `keys` (N,) and `masks` (N, 16) are scratch.
    """
    count = 0
    for base in range(0, knm.shape[0], _LANES):
        count += _list_hidden(knm, structure, base, keys, masks)
    return count


@kernel()
def _leave_out_hidden(base, keys, masks, work, heads, lanes, crowd, at):
    """Take the exponentials of the listed keys from what is left of the sums of sixteen queries.

    They begin at column `at` of the crowd; `lanes` is room as the direct path has it.
    """
    width = work.shape[0] // 4
    per_head = width // heads
    _, left, own, _, _, _, _ = _crowd_rows(heads, width)
    q, k, v = work[width : 2 * width], work[2 * width : 3 * width], work[3 * width :]
    acc, weight, shift = lanes[width : width + per_head + 1], lanes[width + per_head + 1], lanes[2 * width]
    for h in range(heads):
        lo, hi = h * per_head, (h + 1) * per_head
        for lane in range(_LANES):
            shift[lane] = crowd[own + heads + width + h, at + lane]
            acc[0, lane] = 0.0
            for e in range(per_head):
                lanes[e, lane] = q[lo + e, base + lane]
                acc[1 + e, lane] = 0.0
        _attend_below(lanes[:per_head], k[lo:hi], v[lo:hi], keys, masks, True, weight, shift, acc)
        for e in range(per_head + 1):
            for lane in range(_LANES):
                crowd[left + h * (1 + per_head) + e, at + lane] -= acc[e, lane]


@kernel()
def _means(crowd, sums, left, mean, error, h, gain, count, scratch):
    """Means of the values of one head; what its errors may do to O, squared, joins the doubt.

    `scratch`: the first of two rows of scratch, with that of the doubts behind them.
    """
    everything, total = crowd[sums, :count], crowd[left, :count]
    below, square, doubt = crowd[scratch, :count], crowd[scratch + 1, :count], crowd[scratch + 2, :count]
    e0 = error[h, 0]
    for i in range(count):
        below[i] = _ROUNDINGS * everything[i] + e0
        square[i] = 0.0
        total[i] = 1.0 / total[i] if total[i] > 0.0 else 0.0
    for e in range(1, error.shape[1]):
        field, rest, y = crowd[sums + e, :count], crowd[left + e, :count], crowd[mean + e - 1, :count]
        ee = error[h, e]
        for i in range(count):
            y[i] = rest[i] * total[i]
            one = abs(y[i]) * below[i] + _ROUNDINGS * abs(field[i]) + ee
            square[i] += one * one
    for i in range(count):
        share = gain * total[i]
        doubt[i] += square[i] * share * share if total[i] > 0.0 else np.inf


@kernel()
def _normalised(crowd, mean, outputs, mixing, scale, count, scratch, u, base):
    """Unit outputs from the means. A query that cannot be trusted has its doubt raised to 1, others to 0."""
    width = mixing.shape[0]
    square, factor, doubt = crowd[scratch, :count], crowd[scratch + 1, :count], crowd[scratch + 2, :count]
    _clear(crowd, outputs, outputs + width, _ZERO, count)
    _clear(crowd, scratch, scratch + 1, _ZERO, count)
    for c in range(width):
        for r in range(0, mixing.shape[1], _ROWS):
            _add_eight(mixing, c, r, crowd, mean + r, count, crowd, outputs + c)
        output = crowd[outputs + c, :count]
        for i in range(count):
            square[i] += output[i] * output[i]
    for i in range(count):
        factor[i] = scale / (math.sqrt(square[i]) + _NORM_FLOOR)
        doubt[i] = 0.0 if doubt[i] <= _UNIT_BUDGET * _UNIT_BUDGET * square[i] else 1.0
    for c in range(width):
        output, unit = crowd[outputs + c, :count], u[c, base : base + count]
        for i in range(count):
            unit[i] = output[i] * factor[i]


# ---------------------------------------------------------------- all of it


@kernel()
def _finish_crowd(series, error, crowd, count, scale, u, base):
    """Unit outputs of a crowd from what is left of its sums; doubts as `_normalised` leaves them."""
    gain, mixing = series[6], series[7]
    heads, fields = error.shape
    rows, width = _round_up(fields, _THREE), mixing.shape[0]
    sums, left, _, mean, outputs, scratch, _ = _crowd_rows(heads, width)
    _clear(crowd, mean, outputs, _ZERO, count)
    _clear(crowd, scratch + 2, scratch + 3, _ZERO, count)
    for h in range(heads):
        means = mean + h * (fields - 1)
        _means(crowd, sums + h * rows, left + h * fields, means, error, h, gain[h], count, scratch)
    _normalised(crowd, mean, outputs, mixing, scale, count, scratch, u, base)


@kernel()
def apply_modulation_moments(
    knm, structure, theta, w_q, w_k, w_v, w_o, temperature, lambda_, series, room, keys, out
):  # fmt: skip
    """``apply_modulation`` through order parameters, without a band; for a matrix that was inspected.

    Parameters
    ----------
    knm, theta, w_q, w_k, w_v, w_o, temperature, lambda_
        As in ``modulate``.
    structure : int
        What `inspect_coupling` said of K.
    series : tuple of ndarray
        ``Series.arrays``, see `series_of`.
    room : ndarray, shape (moments_room_size(N, series),)
        Scratch. The unit outputs times sqrt(lambda/2) stay in it, see `units_in`.
    keys : ndarray, shape (2, N), int64
        Scratch.
    out : ndarray, shape (N, N) or (0, 0)
        As in ``modulate``; or empty where only the unit outputs are wanted.

    Returns
    -------
    int
        Number of oscillators whose sums could not be trusted.
    """
    n = theta.shape[0]
    if n == 0 or (lambda_ == 0.0 and out.shape[0] > 0):
        _copy_matrix(knm, out)
        return 0
    shapes = _shapes(n, series)
    heads, width, _, far, _ = _counts(series)
    _, left, own, _, _, scratch, _ = _crowd_rows(heads, width)
    sums, fields = 2 * _ROWS, 1 + width // heads
    basis, z, moments = _take(room, shapes, _BASIS), _take(room, shapes, _Z), _take(room, shapes, _MOMENTS)
    y, error, crowd = _take(room, shapes, _Y), _take(room, shapes, _ERROR), _take(room, shapes, _QUERIES)
    work, plain = _take(room, shapes, _WORK), _take(room, shapes, _PLAIN)[0]
    masks, lanes, u = _take(room, shapes, _MASKS), _take(room, shapes, _SIXTEEN), _take(room, shapes, _UNITS)
    _first_harmonics(theta, basis, far)
    _order_parameters(basis, far, _take(room, shapes, _SUMS), z, width // 2)
    _moments(z, width // 2, series, _take(room, shapes, _FEATURES), moments)
    _coefficients(series, moments, y, error)
    _clear(u, width, u.shape[0], _ZERO, u.shape[1])
    scale = math.sqrt(0.5 * lambda_)
    hiding = structure & WITHOUT_ZEROS == 0
    if hiding:
        _prepare(theta, w_q, w_k, w_v, temperature, work, plain)
    projected = hiding
    redone = 0
    for start in range(0, n, _CROWD):
        count = min(_CROWD, _round_up(n, _LANES) - start)
        _crowd_outputs(basis, far, start, start + count, hiding, series, y, crowd)
        for h in range(heads):
            first, values = sums + h * _round_up(fields, _THREE), own + heads + h * (fields - 1)
            _leave_out_own(crowd, first, left + h * fields, own + h, values, fields - 1, count)
        _clear(crowd, scratch + 3, scratch + 4, _ZERO, count)
        for at in range(0, count if hiding else 0, _LANES):
            hidden = _list_hidden(knm, structure, start + at, keys[0], masks)
            if hidden > _BLIND * n:
                crowd[scratch + 3, at] = 1.0
            elif hidden > 0:
                _leave_out_hidden(start + at, keys[0, :hidden], masks, work, heads, lanes, crowd, at)
        _finish_crowd(series, error, crowd, count, scale, u, start)
        for at in range(0, count, _LANES):
            bad = 0.0
            for lane in range(min(_LANES, n - start - at)):
                bad += crowd[scratch + 2, at + lane]
            blind = crowd[scratch + 3, at] > 0.0
            if bad > 0.0 or blind:
                if not projected:
                    _prepare(theta, w_q, w_k, w_v, temperature, work, plain)
                    projected = True
                first, stop = start + at, start + at + 1
                _attend_all(
                    knm, structure, work, plain, w_o, _NO_BAND, scale, u,
                    first, stop, keys[0], keys[1], masks, lanes,
                )  # fmt: skip
                redone += 0 if blind else min(_LANES, n - start - at)
    if out.shape[0] == 0:
        return redone
    if structure & EXACTLY_SYMMETRIC:
        _scale_symmetric(knm, u, lambda_, _NO_BAND, out)
    else:
        _scale_pairs(knm, u, lambda_, _NO_BAND, out)
    return redone


@kernel()
def units_in(room, n, series):
    """The matrix in whose columns `apply_modulation_moments` leaves unit outputs times sqrt(lambda/2)."""
    return _take(room, _shapes(n, series), _UNITS)


@kernel()
def modulate_moments(knm, theta, w_q, w_k, w_v, w_o, temperature, lambda_, series, room, keys, out):
    """``modulate`` through order parameters: no exponential of a pair, no band.

    Parameters
    ----------
    knm, theta, w_q, w_k, w_v, w_o, temperature, lambda_, out
        As in ``modulate``.
    series : tuple
        ``Series.arrays`` of ``series_of`` for these projections and temperatures, which must not refuse.
    room : ndarray, shape (moments_room_size(N, series),) or longer
        Scratch.
    keys : ndarray, shape (2, N), int64
        Scratch.

    Returns
    -------
    int
        Status as in ``modulate``. Cost per oscillator some hundred multiply-adds for each head and number of
        it, and N (d + 1); a missing edge costs up to 16 exponentials a head. Allocates nothing.
    """
    n = theta.shape[0]
    if not _weights_fit(w_q, w_k, w_v, w_o, temperature) or knm.shape != (n, n) or out.shape != (n, n):
        return INVALID_ARGUMENT
    if not (lambda_ >= 0.0 and lambda_ < np.inf) or keys.shape != (2, n):
        return INVALID_ARGUMENT
    if room.shape[0] < moments_room_size(n, series) or _counts(series)[:2] != (w_q.shape[0], w_q.shape[1]):
        return INVALID_ARGUMENT
    status, structure = _inspect_state(knm, theta)
    if status != OK:
        return status
    apply_modulation_moments(
        knm, structure, theta, w_q, w_k, w_v, w_o, temperature, lambda_, series, room, keys, out
    )
    return OK
