"""Attention through order parameters as embeddable Numba kernels: N B work, no exponential of a pair.

With the series of ``daido`` and Z_k = sum of exp(i k theta_j), the Kuramoto-Daido order parameters, softmax
numerators and denominators are trigonometric polynomials in the query's phase. The stages are those of
``csrc/isa/moments.h``, which tells why errors stay small and where the constants below come from:

* harmonics, order parameters Z;
* moments of 1 and of each head's values, combinations of neighbouring Z;
* coefficients of the outputs, series times moments;
* outputs of sixteen queries at a time; what a query must not see (itself, missing edges) is subtracted;
* guards: a group with a query whose sums cannot be trusted is done again pair by pair.

All of these but the third and the last are products of two matrices by rows, a b^T, and go through
`_products`: there a dozen sums run along contiguous rows, which needs no test of whether arrays overlap. A
harmonic is z_k = z_8a z_b with k = 8 a + b, so sums of them are such products, too.

Common arguments
----------------
structure : what ``inspect_coupling`` said of K.
series : ``Series.arrays`` of ``daido``.
room : scratch of `moments_room_size` doubles. keys : (2, N), int64, scratch.
"""

from __future__ import annotations

import math

import numpy as np

from ._flags import INVALID_ARGUMENT, NONFINITE_PHASE, OK, REASSOCIATE, kernel
from .modulation import (
    _FEATURES,
    _LANES,
    _SMALLEST_EXPONENT,
    EXACTLY_SYMMETRIC,
    WITHOUT_ZEROS,
    _attend_group,
    _copy_matrix,
    _fill,
    _finite,
    _gather,
    _logits,
    _mix,
    _normalise,
    _prepare_into,
    _rescale,
    _round_up,
    _weights_fit,
    inspect_coupling,
)
from .vectormath import _two_sum, exp2, sincos

_ROWS = 8  # harmonics of a block: that of csrc/daido.h
_FOUR = 4  # rows of the first and of the second factor that `_products` takes at once
_THREE = 3
_CROWD = 512  # oscillators that are summed up before they join the total
_ROUNDINGS = 4.0 * 2.0**-53
_UNIT_BUDGET = 3e-14
_BLIND = 0.75  # share of missing edges from which a group of queries goes pair by pair


@kernel(REASSOCIATE, inline=True)
def _twelve_sums(a, i, b, j, start, stop):
    """Products of four rows of `a` with three rows of `b`, columns start ... stop - 1."""
    a0, a1, a2, a3 = a[i, start:stop], a[i + 1, start:stop], a[i + 2, start:stop], a[i + 3, start:stop]
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
def _products(a, b, start, stop, column, out):
    """Row j of `out`, from `column` on, becomes the products of row j of `b` with all rows of `a`.

    `a` has a multiple of four rows, `b` one of three; only their columns start ... stop - 1 count.
    """
    for j in range(0, b.shape[0], _THREE):
        for i in range(0, a.shape[0], _FOUR):
            sums = _twelve_sums(a, i, b, j, start, stop)
            for r in range(_THREE):
                for k in range(_FOUR):
                    out[j + r, column + i + k] = sums[r][k]


# ---------------------------------------------------------------- room


@kernel()
def _counts(w_q, series):
    """Heads, width, harmonics kept, blocks of query harmonics, key harmonics: what shapes depend on."""
    extents, weight = series[0], series[3]
    heads, width, _ = w_q.shape
    blocks, reach = max(extents.shape[1], width // _ROWS + 1), weight.shape[1] // 2
    return heads, width, _round_up(max(reach + width // 2, _ROWS * blocks), _ROWS), blocks, reach


@kernel()
def _shapes(n, counts):
    """Shape of each array that `_layout` finds in the room."""
    heads, width, harmonics, blocks, reach = counts
    padded = _round_up(n, _LANES)
    per_head = width // heads
    fields = _round_up(1 + per_head, _THREE)
    far = _round_up(2 * (harmonics // _ROWS), _THREE)
    return (
        (2 * _ROWS, padded),  # low: cosines, then sines, of the harmonics 0 ... 7
        (far, padded),  # far: of the harmonics 0, 8, 16, ...
        (3 * far, 2 * _ROWS),  # sums of their products: of a crowd, of all, errors of these
        (2, harmonics + width),  # Z: real and imaginary parts from -width/2 on
        (fields, 2 * reach),  # moments of one head, cosine and sine in turn
        (heads * fields, 2 * _ROWS * blocks),  # coefficients of the outputs
        (heads, 1 + per_head),  # scale of the errors of these
        (_LANES, 2 * _ROWS),  # low harmonics of a group, by oscillator
        (_LANES, 2 * _ROWS * blocks),  # harmonics of a group, by oscillator, in the order of the coefficients
        (heads * fields, _LANES),  # outputs of a group
        (_round_up(width + 2 * heads, _THREE), _LANES),  # values, own logits and shifts of a group
        (4 * width, padded),  # features, queries, keys, values
        (n, _LANES),  # masks
        (2 * width + per_head + 4, _LANES),  # rows of a group
        (1, heads),  # whether logits are moderate
        (_round_up(width, _FEATURES), padded),  # unit outputs
    )


@kernel()
def moments_room_size(n, w_q, series):
    """Number of doubles of scratch for N oscillators, projections `w_q` (H, d, d/H) and a series."""
    total = 0
    for rows, columns in _shapes(n, _counts(w_q, series)):
        total += rows * columns
    return total


@kernel()
def _take(room, at, shape):
    """A matrix of that shape from `room`, and where the next one begins."""
    stop = at + shape[0] * shape[1]
    return room[at:stop].reshape(shape[0], shape[1]), stop


@kernel()
def _layout(room, shapes):
    """The arrays in the room: those of all oscillators, of a group, of the direct path, unit outputs."""
    low, at = _take(room, 0, shapes[0])
    far, at = _take(room, at, shapes[1])
    sums, at = _take(room, at, shapes[2])
    z, at = _take(room, at, shapes[3])
    fields, at = _take(room, at, shapes[4])
    y, at = _take(room, at, shapes[5])
    error, at = _take(room, at, shapes[6])
    near, at = _take(room, at, shapes[7])
    phi, at = _take(room, at, shapes[8])
    values, at = _take(room, at, shapes[9])
    local, at = _take(room, at, shapes[10])
    work, at = _take(room, at, shapes[11])
    masks, at = _take(room, at, shapes[12])
    rows, at = _take(room, at, shapes[13])
    plain, at = _take(room, at, shapes[14])
    u, at = _take(room, at, shapes[15])
    return (low, far, sums, z, fields, y, error), (near, phi, values, local), (work, plain[0], masks, rows), u


# ---------------------------------------------------------------- harmonics and their sums


@kernel()
def _turn(c, s, c1, s1, c2, s2):
    """exp(i (x + y)) of many numbers, from those of x and y."""
    for i in range(c.shape[0]):
        c2[i] = c[i] * c1[i] - s[i] * s1[i]
    for i in range(c.shape[0]):
        s2[i] = s[i] * c1[i] + c[i] * s1[i]


@kernel()
def _powers(rows, count):
    """Fill the cosines 2 ... count - 1, and the sines `count` rows below, from those of 1."""
    for k in range(2, count):
        a, b = k // 2, k - k // 2
        _turn(rows[a], rows[count + a], rows[b], rows[count + b], rows[k], rows[count + k])


@kernel()
def _first_harmonics(theta, low, far, count):
    """Harmonics 0 ... 7, and `count` of each eighth one; zeros past the last oscillator.

    The first and the eighth have a sine and a cosine of their own, the others are products of two.
    """
    n = theta.shape[0]
    for i in range(n):
        low[0, i] = 8.0 * theta[i]
    sincos(theta, low[_ROWS + 1, :n], low[1, :n])
    sincos(low[0, :n], far[count + 1, :n], far[1, :n])
    _fill(low[0], 1.0)
    _fill(low[_ROWS], 0.0)
    _fill(far[0], 1.0)
    _fill(far[count], 0.0)
    _powers(low, _ROWS)
    _powers(far, count)
    for row in range(low.shape[0]):
        _fill(low[row, n:], 0.0)
    for row in range(far.shape[0]):
        _fill(far[row, n if row < 2 * count else 0 :], 0.0)


@kernel()
def _add_accurately(terms, total, error):
    """Add a row to another one, keeping the rounding errors."""
    for i in range(terms.shape[0]):
        s, e = _two_sum(total[i], terms[i])
        total[i] = s
        error[i] += e


@kernel()
def _order_parameters(low, far, count, sums, z, margin):
    """Z_k in z[0, margin + k] + i z[1, margin + k], and the conjugates of the first ones before them."""
    rows = far.shape[0]
    part, total, error = sums[:rows], sums[rows : 2 * rows], sums[2 * rows :]
    for row in range(rows):
        _fill(total[row], 0.0)
        _fill(error[row], 0.0)
    for start in range(0, low.shape[1], _CROWD):
        _products(low, far, start, min(start + _CROWD, low.shape[1]), 0, part)
        for row in range(rows):
            _add_accurately(part[row], total[row], error[row])
    for a in range(count):
        for b in range(_ROWS):
            k = margin + _ROWS * a + b
            cosines, sines = total[a], total[count + a]
            lost, lost_too = error[a], error[count + a]
            z[0, k] = (cosines[b] - sines[_ROWS + b]) + (lost[b] - lost_too[_ROWS + b])
            z[1, k] = (cosines[_ROWS + b] + sines[b]) + (lost[_ROWS + b] + lost_too[b])
    for k in range(margin):
        z[0, k] = z[0, 2 * margin - k]
        z[1, k] = -z[1, 2 * margin - k]
    for k in range(margin + _ROWS * count, z.shape[1]):
        z[0, k] = 0.0
        z[1, k] = 0.0


# ---------------------------------------------------------------- moments and coefficients


@kernel()
def _add_moments(cosine, sine, up, down, parts):
    """Add cosine Re + sine Im of a product of harmonic k with all others: Z_b+k is `up`, Z_b-k `down`."""
    for b in range(parts.shape[0]):
        parts[b, 0] += cosine * (up[0, b] + down[0, b]) + sine * (up[1, b] - down[1, b])
        parts[b, 1] += cosine * (up[1, b] + down[1, b]) + sine * (down[0, b] - up[0, b])


@kernel()
def _head_moments(z, margin, w_v, fields):
    """Moments of 1 and of the values of a head; zeros in the rows that fill up."""
    reach = fields.shape[1] // 2
    for f in range(fields.shape[0]):
        _fill(fields[f], 0.0)
    for b in range(reach):
        fields[0, 2 * b] = z[0, margin + b]
        fields[0, 2 * b + 1] = z[1, margin + b]
    for e in range(w_v.shape[1]):
        parts = fields[1 + e].reshape(reach, 2)
        for k in range(1, w_v.shape[0] // 2 + 1):
            up, down = z[:, margin + k : margin + k + reach], z[:, margin - k : margin - k + reach]
            _add_moments(0.5 * w_v[2 * k - 2, e], 0.5 * w_v[2 * k - 1, e], up, down, parts)


@kernel(REASSOCIATE)
def _two_squares(weight, field):
    """Sums of weight field^2 and of field^2."""
    weighted = 0.0
    plain = 0.0
    for b in range(field.shape[0]):
        weighted += weight[b] * field[b] * field[b]
        plain += field[b] * field[b]
    return weighted, plain


@kernel()
def _coefficients(z, margin, w_v, series, fields, y, error):
    """Coefficients of the outputs of all heads, and the scale of their errors.

    The latter is where the largest exponential is 1: roundings of C_ab Z_b as they add up by chance, and what
    the series leave out.
    """
    extents, coefficient, _, weight, _, tail = series
    rows = fields.shape[0]
    at = 0
    for h in range(extents.shape[0]):
        _head_moments(z, margin, w_v[h], fields)
        for f in range(error.shape[1]):
            weighted, plain = _two_squares(weight[h], fields[f])
            error[h, f] = _ROUNDINGS * math.sqrt(weighted) + tail * math.sqrt(plain / weight.shape[1])
        for j in range(extents.shape[1]):
            columns = 2 * extents[h, j]
            if columns > 0:
                block = coefficient[at : at + 2 * _ROWS * columns].reshape(2 * _ROWS, columns)
                _products(block, fields, 0, columns, 2 * _ROWS * j, y[h * rows : (h + 1) * rows])
                at += 2 * _ROWS * columns


# ---------------------------------------------------------------- outputs of a group


@kernel(inline=True)
def _block_of_harmonics(c, s, near, out):
    """Products of one far harmonic with the low ones: eight cosines, then eight sines."""
    for b in range(_ROWS):
        out[b] = c * near[b] - s * near[_ROWS + b]
    for b in range(_ROWS):
        out[_ROWS + b] = s * near[b] + c * near[_ROWS + b]


@kernel()
def _group_harmonics(low, far, count, base, near, phi):
    """All harmonics of sixteen oscillators, a row for each."""
    for lane in range(_LANES):
        for k in range(2 * _ROWS):
            near[lane, k] = low[k, base + lane]
    for lane in range(_LANES):
        for a in range(phi.shape[1] // (2 * _ROWS)):
            c, s = far[a, base + lane], far[count + a, base + lane]
            _block_of_harmonics(c, s, near[lane], phi[lane, 2 * _ROWS * a : 2 * _ROWS * (a + 1)])


@kernel()
def _group_outputs(series, y, phi, values, local):
    """Sums over all keys, and what the oscillators' own harmonics give."""
    extents, own = series[0], series[2]
    heads, blocks = extents.shape
    rows = y.shape[0] // heads
    for h in range(heads):
        used = 0
        for j in range(blocks):
            used += 1 if extents[h, j] > 0 else 0
        _products(phi, y[h * rows : (h + 1) * rows], 0, 2 * _ROWS * used, 0, values[h * rows : (h + 1) * rows])
    _products(phi, own, 0, own.shape[1], 0, local)


@kernel(REASSOCIATE)
def _hidden_entries(entries, mask):
    """Mask of one key for a group of queries: 1 where there is no edge. Returns its sum, which is exact."""
    hidden = 0.0
    for lane in range(_LANES):
        hide = 1.0 if entries[lane] == 0.0 else 0.0
        mask[lane] = hide
        hidden += hide
    return hidden


@kernel()
def _hidden_key(knm, j, base, lanes, mask):
    """``_hidden_entries`` for any key and any group; the diagonal counts as seen."""
    hidden = 0.0
    _fill(mask, 0.0)
    for lane in range(lanes):
        mask[lane] = 1.0 if knm[base + lane, j] == 0.0 and base + lane != j else 0.0
        hidden += mask[lane]
    return hidden


@kernel()
def _list_hidden(knm, structure, base, keys, masks):
    """List the keys that some query of a group does not see, with their masks. Returns their number."""
    n = knm.shape[0]
    lanes = min(_LANES, n - base)
    count = 0
    if structure & WITHOUT_ZEROS:
        return count
    for j in range(n):
        if structure & EXACTLY_SYMMETRIC and lanes == _LANES and (j < base or j >= base + _LANES):
            hidden = _hidden_entries(knm[j, base : base + _LANES], masks[count])
        else:
            hidden = _hidden_key(knm, j, base, lanes, masks[count])
        if hidden > 0.0:
            keys[count] = j
            count += 1
    return count


@kernel()
def count_hidden(knm, structure, keys, masks):
    """Number of pairs of a group of sixteen queries and a key that one of them does not see. O(N**2).

    `keys` (N,) and `masks` (N, 16) are scratch.
    """
    count = 0
    for base in range(0, knm.shape[0], _LANES):
        count += _list_hidden(knm, structure, base, keys, masks)
    return count


@kernel()
def _subtract_hidden(q, k, v, base, keys, masks, shift, weight, acc):
    """Take the exponentials of the missing edges from the sums of one head."""
    for position in range(keys.shape[0]):
        j = keys[position]
        _logits(q[:, base : base + _LANES], k, j, weight)
        for lane in range(_LANES):
            t = weight[lane] - shift[lane]
            weight[lane] = -masks[position, lane] * exp2(max(t, _SMALLEST_EXPONENT))
        _gather(v, j, weight, acc)


@kernel()
def _subtract_own(values, own, local, acc):
    """Sums of one head without the query's own term."""
    for lane in range(_LANES):
        weight = exp2(max(own[lane], _SMALLEST_EXPONENT))
        acc[0, lane] = values[0, lane] - weight
        for e in range(local.shape[0]):
            acc[1 + e, lane] = values[1 + e, lane] - weight * local[e, lane]


@kernel()
def _add_doubt(values, acc, error, gain, doubt):
    """Add the square of what the errors of one head's sums may do to O; `acc` as `_mix` leaves it."""
    for lane in range(_LANES):
        share = acc[0, lane]
        below = _ROUNDINGS * values[0, lane] + error[0]
        total = 0.0
        for e in range(error.shape[0] - 1):
            one = abs(acc[1 + e, lane] * share) * below + _ROUNDINGS * abs(values[1 + e, lane]) + error[1 + e]
            total += one * one
        doubt[lane] += total * gain * gain * share * share if share > 0.0 else np.inf


@kernel()
def _doubtful(outputs, doubt, width, lanes):
    """Number of queries whose unit output may be wrong by more than the budget, or is not finite."""
    bad = 0
    for lane in range(lanes):
        square = 0.0
        for c in range(width):
            square += outputs[c, lane] * outputs[c, lane]
        bad += 0 if doubt[lane] <= _UNIT_BUDGET * _UNIT_BUDGET * square else 1
    return bad


@kernel()
def _finish_group(base, lanes, hidden, keys, series, w_o, error, group, direct, scale, u):
    """Unit outputs of a group from its sums. Returns whether all of them can be trusted."""
    _, _, values, local = group
    work, _, masks, rows = direct
    gain = series[4]
    heads, width = gain.shape[0], w_o.shape[0]
    per_head = width // heads
    fields = values.shape[0] // heads
    outputs, acc = rows[:width], rows[width : width + per_head + 1]
    weight, doubt = rows[width + per_head + 1], rows[width + per_head + 2]
    q, k, v = work[width : 2 * width], work[2 * width : 3 * width], work[3 * width :]
    for c in range(width):
        _fill(outputs[c], 0.0)
    _fill(doubt, 0.0)
    for h in range(heads):
        lo, hi = h * per_head, (h + 1) * per_head
        sums = values[h * fields : (h + 1) * fields]
        _subtract_own(sums, local[width + h], local[lo:hi], acc)
        if hidden > 0:
            shift = local[width + heads + h]
            _subtract_hidden(q[lo:hi], k[lo:hi], v[lo:hi], base, keys[:hidden], masks, shift, weight, acc)
        _mix(acc, w_o, h, outputs)
        _add_doubt(sums, acc, error[h], gain[h], doubt)
    if _doubtful(outputs, doubt, width, lanes) > 0:
        return False
    _normalise(outputs, width, scale)
    for c in range(width):
        for lane in range(_LANES):
            u[c, base + lane] = outputs[c, lane]
    return True


# ---------------------------------------------------------------- all of it


@kernel()
def _units(knm, structure, theta, w_q, w_k, w_v, w_o, temperature, scale, series, counts, arrays, keys):
    """Unit outputs times `scale`, in the columns of u (the last of `arrays`).

    Returns the number of queries that were done again pair by pair.
    """
    (low, far, sums, z, fields, y, error), group, direct, u = arrays
    near, phi, values, local = group
    work, plain, masks, rows = direct
    n, margin, count = theta.shape[0], w_o.shape[0] // 2, counts[2] // _ROWS
    _first_harmonics(theta, low, far, count)
    _order_parameters(low, far, count, sums, z, margin)
    _coefficients(z, margin, w_v, series, fields, y, error)
    projected = False
    redone = 0
    for base in range(0, n, _LANES):
        lanes = min(_LANES, n - base)
        hidden = _list_hidden(knm, structure, base, keys[0], masks)
        blind = hidden > _BLIND * n
        if not projected and hidden > 0:
            _prepare_into(theta, w_q, w_k, w_v, temperature, work, plain)
            projected = True
        if not blind:
            _group_harmonics(low, far, count, base, near, phi)
            _group_outputs(series, y, phi, values, local)
            if _finish_group(base, lanes, hidden, keys[0], series, w_o, error, group, direct, scale, u):
                continue
            redone += lanes
        if not projected:
            _prepare_into(theta, w_q, w_k, w_v, temperature, work, plain)
            projected = True
        _attend_group(knm, structure, base, work, plain, w_o, -1, scale, (keys, masks, rows), u)
    return redone


@kernel()
def apply_modulation_moments(
    knm, structure, theta, w_q, w_k, w_v, w_o, temperature, lambda_, series, room, keys, out
):  # fmt: skip
    """``apply_modulation`` through order parameters, without a band; for a matrix that was inspected.

    Parameters
    ----------
    knm, theta, w_q, w_k, w_v, w_o, temperature, lambda_, out
        As in ``modulate``.
    structure, series, room, keys
        See the module's common arguments.
    """
    if lambda_ == 0.0 or theta.shape[0] == 0:
        _copy_matrix(knm, out)
        return
    counts = _counts(w_q, series)
    arrays = _layout(room, _shapes(theta.shape[0], counts))
    u = arrays[3]
    for c in range(w_o.shape[0], u.shape[0]):
        _fill(u[c], 0.0)
    scale = math.sqrt(0.5 * lambda_)
    _units(knm, structure, theta, w_q, w_k, w_v, w_o, temperature, scale, series, counts, arrays, keys)
    _rescale(knm, structure, u, lambda_, -1, out)


@kernel()
def apply_factors_moments(knm, structure, theta, w_q, w_k, w_v, w_o, temperature, series, room, keys, out):
    """``apply_factors`` through order parameters; parameters as in `apply_modulation_moments`.

    Returns the number of oscillators whose sums could not be trusted.
    """
    counts = _counts(w_q, series)
    arrays = _layout(room, _shapes(theta.shape[0], counts))
    u = arrays[3]
    redone = _units(knm, structure, theta, w_q, w_k, w_v, w_o, temperature, 1.0, series, counts, arrays, keys)
    for i in range(theta.shape[0]):
        for c in range(w_o.shape[0]):
            out[i, c] = u[c, i]
    return redone


@kernel()
def modulate_moments(knm, theta, w_q, w_k, w_v, w_o, temperature, lambda_, series, room, keys, out):
    """``modulate`` through order parameters: no exponential of a pair, no band.

    Parameters
    ----------
    knm, theta, w_q, w_k, w_v, w_o, temperature, lambda_, out
        As in ``modulate``.
    series : tuple
        ``Series.arrays`` of ``daido.series_of`` for these projections and temperatures, which must not refuse.
    room : ndarray, shape (moments_room_size(N, w_q, series),) or longer
        Scratch.
    keys : ndarray, shape (2, N), int64
        Scratch.

    Returns
    -------
    int
        Status as in ``modulate``. Cost N H d/H times some hundred multiply-adds and N**2 (d + 1); an edge that
        is missing costs up to 16 exponentials a head. Allocates nothing.
    """
    n = theta.shape[0]
    if not _weights_fit(w_q, w_k, w_v, w_o, temperature) or knm.shape != (n, n) or out.shape != (n, n):
        return INVALID_ARGUMENT
    if not (lambda_ >= 0.0 and lambda_ < np.inf) or keys.shape != (2, n):
        return INVALID_ARGUMENT
    if room.shape[0] < moments_room_size(n, w_q, series):
        return INVALID_ARGUMENT
    status, structure = inspect_coupling(knm)
    if status != OK:
        return status
    if not _finite(theta):
        return NONFINITE_PHASE
    apply_modulation_moments(
        knm, structure, theta, w_q, w_k, w_v, w_o, temperature, lambda_, series, room, keys, out
    )
    return OK
