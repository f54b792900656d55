"""The parts of context-pulse attention as embeddable Numba kernels, float32 and float64.

Tokens come first, (B, N, H, d), until `turn` hands them on as (B, H, N, d). Inner loops run along a token's
numbers, which lie side by side.
"""

from __future__ import annotations

import math

import numpy as np

from ._flags import INVALID_ARGUMENT, OK, REASSOCIATE, kernel
from .attention import _dot
from .vectormath import exp2

_LOG2_E = math.log2(math.e)
_LOWEST = -1000.0  # 2**-1000 stands for all that is smaller


@kernel(inline=True)
def _exp(x):
    """e**x of x <= 0."""
    below = x * _LOG2_E
    return exp2(below if below > _LOWEST else _LOWEST)


@kernel()
def _add(factor, source, out):
    """Add a multiple of a row to another."""
    for c in range(out.shape[0]):
        out[c] += factor * source[c]


@kernel()
def _copy(source, out):
    for c in range(out.shape[0]):
        out[c] = source[c]


@kernel()
def _clear(out):
    for c in range(out.shape[0]):
        out[c] = 0.0


# ---------------------------------------------------------------- gate and scan


@kernel(inline=True)
def _sigmoid(g):
    small = _exp(-abs(np.float64(g)))
    return (1.0 if g >= 0 else small) / (1.0 + small)


@kernel()
def gate(x, g, out):
    """Write sigmoid(g) x.

    Parameters
    ----------
    x, g : ndarray, shape (n,)
    out : ndarray, shape (n,)
        Receives the result.

    Returns
    -------
    int
        0, or INVALID_ARGUMENT where shapes differ. Cost n exponentials.
    """
    if g.shape != x.shape or out.shape != x.shape:
        return INVALID_ARGUMENT
    for i in range(x.shape[0]):
        out[i] = _sigmoid(g[i]) * x[i]
    return OK


@kernel()
def gate_vjp(x, g, grad, dx, dg):
    """Write the gradients of `gate` at x and g from that at its result.

    Parameters
    ----------
    x, g : ndarray, shape (n,)
        As for `gate`.
    grad : ndarray, shape (n,)
        Gradient at its result.
    dx, dg : ndarray, shape (n,)
        Receive those at x and g.

    Returns
    -------
    int
        0, or INVALID_ARGUMENT where shapes differ. Cost n exponentials.
    """
    if g.shape != x.shape or grad.shape != x.shape or dx.shape != x.shape or dg.shape != x.shape:
        return INVALID_ARGUMENT
    for i in range(x.shape[0]):
        share = _sigmoid(g[i])
        dx[i] = share * grad[i]
        dg[i] = share * grad[i] * x[i] * (1.0 - share)
    return OK


@kernel()
def _rounded(value, like):
    """A number in the precision of an array."""
    cell = np.empty(1, like.dtype)
    cell[0] = value
    return cell[0]


@kernel()
def _leak(keep, take, before, x, out):
    for c in range(out.shape[0]):
        out[c] = keep * before[c] + take * x[c]


@kernel()
def leaky_scan(x, decay, out):
    """Write c_t = decay c_{t-1} + (1 - decay) x_t, from 0, token after token.

    Parameters
    ----------
    x : ndarray, shape (B, N, C)
        Input of N tokens.
    decay : float
        From 0 to 1.
    out : ndarray, shape (B, N, C)
        Receives c.

    Returns
    -------
    int
        0, or INVALID_ARGUMENT where shapes differ. Cost 2 B N C operations.
    """
    if out.shape != x.shape:
        return INVALID_ARGUMENT
    keep, take = _rounded(decay, x), _rounded(1.0 - decay, x)
    zeros = np.zeros(x.shape[2], x.dtype)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            _leak(keep, take, out[b, t - 1] if t else zeros, x[b, t], out[b, t])
    return OK


@kernel(REASSOCIATE)
def _bend(carried, before, x):
    """Part of a decay's gradient: sum of carried (before - x)."""
    total = 0.0
    for c in range(x.shape[0]):
        total += np.float64(carried[c]) * (np.float64(before[c]) - np.float64(x[c]))
    return total


@kernel()
def _carry(keep, grad, carried):
    for c in range(grad.shape[0]):
        carried[c] = grad[c] + keep * carried[c]


@kernel()
def _scale(factor, source, out):
    for c in range(out.shape[0]):
        out[c] = factor * source[c]


@kernel()
def leaky_scan_vjp(x, decay, c, grad, dx, ddecay):
    """Write the gradients of `leaky_scan` at x and at the decay.

    Parameters
    ----------
    x, decay
        As for `leaky_scan`.
    c : ndarray, shape (B, N, C) or (0, 0, 0)
        Its result; empty where the gradient at the decay is not wanted.
    grad : ndarray, shape (B, N, C)
        Gradient at the result.
    dx : ndarray, shape (B, N, C)
        Receives that at x.
    ddecay : ndarray, shape (1,), float64
        Receives that at the decay; 0 with an empty c.

    Returns
    -------
    int
        0, or INVALID_ARGUMENT where shapes differ. Cost 3 B N C operations, twice as many with the decay.
    """
    with_decay = c.shape[0] > 0
    if grad.shape != x.shape or dx.shape != x.shape or (with_decay and c.shape != x.shape):
        return INVALID_ARGUMENT
    keep, take = _rounded(decay, x), _rounded(1.0 - decay, x)
    zeros, carried = np.zeros(x.shape[2], x.dtype), np.empty(x.shape[2], x.dtype)
    ddecay[0] = 0.0
    for b in range(x.shape[0]):
        _clear(carried)
        for t in range(x.shape[1] - 1, -1, -1):
            _carry(keep, grad[b, t], carried)
            _scale(take, carried, dx[b, t])
            if with_decay:
                ddecay[0] += _bend(carried, c[b, t - 1] if t else zeros, x[b, t])
    return OK


# ---------------------------------------------------------------- normalise, twist, rotate


@kernel(REASSOCIATE)
def _mean(row):
    total = 0.0
    for c in range(row.shape[0]):
        total += np.float64(row[c])
    return total / row.shape[0]


@kernel(REASSOCIATE)
def _squares(row, mean):
    total = 0.0
    for c in range(row.shape[0]):
        away = np.float64(row[c]) - mean
        total += away * away
    return total


@kernel()
def token_moments(x, mean, squares):
    """Write the mean of each row and the sum of squared distances from it.

    Parameters
    ----------
    x : ndarray, shape (n, d)
    mean, squares : ndarray, shape (n,), float64
        Receive the two.

    Returns
    -------
    int
        0, or INVALID_ARGUMENT where shapes do not fit. Cost O(n d).
    """
    if mean.shape[0] != x.shape[0] or squares.shape[0] != x.shape[0]:
        return INVALID_ARGUMENT
    for i in range(x.shape[0]):
        mean[i] = _mean(x[i])
        squares[i] = _squares(x[i], mean[i])
    return OK


@kernel()
def _unnormalise_row(g, x, factor, alpha, beta, mean):
    for c in range(g.shape[0]):
        g[c] = factor * (g[c] + alpha + beta * (x[c] - mean))


@kernel()
def unnormalise(g, x, factor, alpha, beta, mean):
    """Turn g into factor (g + alpha + beta (x - mean)), the way back through a normalisation.

    Parameters
    ----------
    g : ndarray, shape (n, d)
        Gradient at the normalised rows; becomes the result.
    x : ndarray, shape (n, d)
        The rows.
    factor, alpha, beta, mean : ndarray, shape (n,), float64
        Numbers of each row.

    Returns
    -------
    int
        0, or INVALID_ARGUMENT where shapes do not fit. Cost O(n d).
    """
    n = g.shape[0]
    if x.shape != g.shape or factor.shape[0] != n or alpha.shape[0] != n:
        return INVALID_ARGUMENT
    if beta.shape[0] != n or mean.shape[0] != n:
        return INVALID_ARGUMENT
    for i in range(n):
        _unnormalise_row(g[i], x[i], factor[i], alpha[i], beta[i], mean[i])
    return OK


@kernel()
def _normalise(x, shift, factor, out):
    for c in range(out.shape[0]):
        out[c] = (x[c] - shift) * factor


@kernel()
def _rotate(cosine, sine, x, out):
    """Pairs side by side in x become halves of out."""
    half = cosine.shape[0]
    for k in range(half):
        out[k] = x[2 * k] * cosine[k] - x[2 * k + 1] * sine[k]
        out[half + k] = x[2 * k] * sine[k] + x[2 * k + 1] * cosine[k]


@kernel()
def _rotate_back(cosine, sine, x, out):
    """Halves of x become pairs side by side in out."""
    half = cosine.shape[0]
    for k in range(half):
        out[2 * k] = x[k] * cosine[k] + x[half + k] * sine[k]
        out[2 * k + 1] = x[half + k] * cosine[k] - x[k] * sine[k]


@kernel()
def _multiply(row, matrix, out):
    """Write the product of a row and a matrix."""
    _clear(out)
    for d in range(row.shape[0]):
        _add(row[d], matrix[d], out)


@kernel()
def _multiply_transposed(row, matrix, out):
    """Write the product of a row and the transpose of a matrix."""
    for d in range(row.shape[0]):
        out[d] = _dot(row, matrix[d])


@kernel()
def _turn_fits(x, shift, factor, twist, cosine, sine, y):
    """Whether the arrays of `turn` belong together."""
    batch, n, heads, width = x.shape
    small, table = (batch, n, heads), (n, width // 2)
    if width % 2 or shift.shape != small or factor.shape != small:
        return False
    if twist.shape[0] and twist.shape != (heads, width, width):
        return False
    return cosine.shape == table and sine.shape == table and y.shape == (batch, heads, n, width)


@kernel()
def turn(x, shift, factor, twist, cosine, sine, twist_first, y):
    """Write tokens normalised, twisted and rotated: (x - shift) factor, times the twist, turned by angles.

    Parameters
    ----------
    x : ndarray, shape (B, N, H, d)
        Tokens; d is even.
    shift, factor : ndarray, shape (B, N, H), float64
        Of the normalisation.
    twist : ndarray, shape (H, d, d) or (0, 0, 0)
        Matrix of each head; empty: none.
    cosine, sine : ndarray, shape (N, d/2)
        Of the angles.
    twist_first : bool
        Whether the twist comes before the rotation.
    y : ndarray, shape (B, H, N, d)
        The result.

    Returns
    -------
    int
        0, or INVALID_ARGUMENT where shapes do not fit.
    """
    if not _turn_fits(x, shift, factor, twist, cosine, sine, y):
        return INVALID_ARGUMENT
    first, second = np.empty(x.shape[3], x.dtype), np.empty(x.shape[3], x.dtype)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            for h in range(x.shape[2]):
                row = y[b, h, t]
                _normalise(x[b, t, h], shift[b, t, h], factor[b, t, h], first)
                if twist.shape[0] == 0:
                    _rotate(cosine[t], sine[t], first, row)
                elif twist_first:
                    _multiply(first, twist[h], second)
                    _rotate(cosine[t], sine[t], second, row)
                else:
                    _rotate(cosine[t], sine[t], first, second)
                    _multiply(second, twist[h], row)
    return OK


@kernel()
def turn_vjp(x, shift, factor, twist, cosine, sine, twist_first, grad, g, slopes, products, dtwist):
    """Write the gradients of `turn` at its normalised tokens and at the twist.

    Parameters
    ----------
    x, shift, factor, twist, cosine, sine, twist_first
        As for `turn`.
    grad : ndarray, shape (B, H, N, d)
        Gradient at its result.
    g : ndarray, shape (B, N, H, d)
        Gradient at (x - shift) factor.
    slopes, products : ndarray, shape (B, N, H), float64
        Sums over each token of g, and of g times (x - shift) factor.
    dtwist : ndarray, shape of twist, float64
        Gradient at the twist.

    Returns
    -------
    int
        0, or INVALID_ARGUMENT where shapes do not fit.
    """
    if not _turn_fits(x, shift, factor, twist, cosine, sine, grad) or g.shape != x.shape:
        return INVALID_ARGUMENT
    if slopes.shape != shift.shape or products.shape != shift.shape or dtwist.shape != twist.shape:
        return INVALID_ARGUMENT
    width = x.shape[3]
    tokens, entered, left = np.empty(width, x.dtype), np.empty(width, x.dtype), np.empty(width, x.dtype)
    dtwist[:] = 0.0
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            for h in range(x.shape[2]):
                row = g[b, t, h]
                _normalise(x[b, t, h], shift[b, t, h], factor[b, t, h], tokens)
                if twist.shape[0] == 0:
                    _rotate_back(cosine[t], sine[t], grad[b, h, t], row)
                elif twist_first:
                    _rotate_back(cosine[t], sine[t], grad[b, h, t], left)
                    _outer(tokens, left, dtwist[h])
                    _multiply_transposed(left, twist[h], row)
                else:
                    _rotate(cosine[t], sine[t], tokens, entered)
                    _outer(entered, grad[b, h, t], dtwist[h])
                    _multiply_transposed(grad[b, h, t], twist[h], left)
                    _rotate_back(cosine[t], sine[t], left, row)
                slopes[b, t, h] = _mean(row) * width
                products[b, t, h] = _dot(row, tokens)
    return OK


@kernel()
def _outer(a, b, out):
    """Add the products of all entries of two rows."""
    for d in range(a.shape[0]):
        _add(np.float64(a[d]), b, out[d])


# ---------------------------------------------------------------- resonance with past chunks


@kernel(inline=True)
def _basis_row(basis, last_basis, n, chunks, t):
    """Row t of a chunk's basis."""
    return basis[t] if n + 1 < chunks else last_basis[t]


@kernel()
def _spread(row, source, out):
    """Add sum_m row_m source_m to out (d,), source being (w d,)."""
    width = out.shape[0]
    for m in range(row.shape[0]):
        _add(row[m], source[m * width : (m + 1) * width], out)


@kernel()
def _gather(row, factor, source, out):
    """Add row_m factor source (d,) to each m of out (w d,)."""
    width = source.shape[0]
    for m in range(row.shape[0]):
        _add(row[m] * factor, source, out[m * width : (m + 1) * width])


@kernel()
def _recall(asked, past, n, weights):
    """Write the softmax weights of n past chunks for one row that asks."""
    top = -np.inf
    for m in range(n):
        weights[m] = _dot(asked, past[m])
        top = max(top, weights[m])
    total = 0.0
    for m in range(n):
        weights[m] = _exp(weights[m] - top)
        total += weights[m]
    for m in range(n):
        weights[m] /= total


@kernel()
def _resonance_fits(u, k, chunk, basis, last_basis, c):
    """Whether the arrays of `resonance` belong together."""
    if k.shape != u.shape or c.shape != u.shape or chunk < 1:
        return False
    if basis.shape[0] == 0 or u.shape[1] == 0:
        return True
    last = (u.shape[1] - 1) % chunk + 1
    return basis.shape[0] == chunk and last_basis.shape == (last, basis.shape[1])


@kernel()
def _ask(k, scale, basis, last_basis, n, chunks, t, asked):
    """Take the key of token t of a chunk to what the chunk's rows ask."""
    if basis.shape[0] == 0:
        _scale(scale, k, asked)
    else:
        _gather(_basis_row(basis, last_basis, n, chunks, t), scale, k, asked)


@kernel()
def _ask_all(k, b, h, start, length, scale, basis, last_basis, n, chunks, per_token, asked):
    """Write all rows (rows, w d) that ask for a chunk."""
    for t in range(length):
        row = asked[t if per_token else 0]
        if t and per_token and basis.shape[0]:
            _copy(asked[t - 1], row)
        elif t == 0 or per_token:
            _clear(row)
        _ask(k[b, start + t, h], scale, basis, last_basis, n, chunks, t, row)


@kernel()
def _mix(weights, past, n, out):
    """Write sum_m weights_m past_m."""
    _clear(out)
    for m in range(n):
        _add(weights[m], past[m], out)


@kernel()
def _remember(c, b, h, start, length, basis, last_basis, n, chunks, past):
    """Write what is remembered of a chunk."""
    if basis.shape[0] == 0:
        _copy(c[b, start + length - 1, h], past)
        return
    _clear(past)
    for t in range(length):
        _gather(_basis_row(basis, last_basis, n, chunks, t), 1.0, c[b, start + t, h], past)


@kernel()
def _resonate_head(u, k, b, h, chunk, scale, basis, last_basis, per_token, c):
    """`resonance` of one sample and head."""
    n_tokens, width = u.shape[1], u.shape[3]
    chunks = -(-n_tokens // chunk)
    moments = basis.shape[1] if basis.shape[0] else 1
    rows = min(chunk, n_tokens) if per_token else 1
    past = np.empty((chunks, moments * width), u.dtype)
    asked, recalled = np.empty((rows, moments * width), u.dtype), np.empty(moments * width, u.dtype)
    total, inject, before = np.empty(width, u.dtype), np.zeros(width, u.dtype), np.zeros(width, u.dtype)
    weights = np.empty(chunks)
    for n in range(chunks):
        start = n * chunk
        length = min(chunk, n_tokens - start)
        if n:
            _ask_all(k, b, h, start, length, scale, basis, last_basis, n, chunks, per_token, asked)
        _clear(total)
        for t in range(length):
            _add(1.0, u[b, start + t, h], total)
            _copy(total, c[b, start + t, h])
            if n == 0:
                continue
            if per_token or t == 0:
                _recall(asked[t], past, n, weights)
                _mix(weights, past, n, recalled)
            _copy(c[b, start - 1, h], inject)
            if basis.shape[0]:
                _spread(_basis_row(basis, last_basis, n, chunks, t), recalled, inject)
            else:
                _add(1.0, recalled, inject)
            _add(1.0, inject, c[b, start + t, h])
            _add(-1.0, before, c[b, start + t, h])
        if basis.shape[0]:
            _copy(inject, before)
        _remember(c, b, h, start, length, basis, last_basis, n, chunks, past[n])


@kernel()
def resonance(u, k, chunk, scale, basis, last_basis, per_token, c):
    """Write running sums of u in chunks, with what was remembered of past chunks that resemble the keys.

    Parameters
    ----------
    u, k : ndarray, shape (B, N, H, d)
        What is summed, and keys.
    chunk : int
        Tokens of a chunk.
    scale : float
        Factor of the scores.
    basis : ndarray, shape (chunk, w) or (0, 0)
        Moments that are remembered of a chunk; empty: its last state.
    last_basis : ndarray, shape (l, w) or (0, 0)
        Those of the last chunk.
    per_token : bool
        Whether each token recalls by itself; True where there is no basis.
    c : ndarray, shape (B, N, H, d)
        The result.

    Returns
    -------
    int
        0, or INVALID_ARGUMENT where shapes do not fit.
    """
    if not _resonance_fits(u, k, chunk, basis, last_basis, c):
        return INVALID_ARGUMENT
    for b in range(u.shape[0]):
        for h in range(u.shape[2]):
            _resonate_head(u, k, b, h, chunk, scale, basis, last_basis, per_token, c)
    return OK


@kernel()
def _recall_vjp(asked, drecalled, past, n, weights, slopes, dasked, dpast):
    """Gradients of what one row recalls, at the row and at what is remembered."""
    _recall(asked, past, n, weights)
    mean = 0.0
    for m in range(n):
        slopes[m] = _dot(drecalled, past[m])
        mean += weights[m] * slopes[m]
    _clear(dasked)
    for m in range(n):
        slope = weights[m] * (slopes[m] - mean)
        _add(slope, past[m], dasked)
        _add(slope, asked, dpast[m])
        _add(weights[m], drecalled, dpast[m])


@kernel()
def _resonate_head_vjp(u, k, c, grad, b, h, chunk, scale, basis, last_basis, per_token, du, dk):
    """`resonance_vjp` of one sample and head."""
    n_tokens, width = u.shape[1], u.shape[3]
    chunks = -(-n_tokens // chunk)
    moments = basis.shape[1] if basis.shape[0] else 1
    longest = min(chunk, n_tokens)
    rows = longest if per_token else 1
    past, dpast = np.empty((chunks, moments * width), u.dtype), np.zeros((chunks, moments * width), u.dtype)
    asked, dasked = np.empty((rows, moments * width), u.dtype), np.empty((rows, moments * width), u.dtype)
    drecalled = np.empty(moments * width, u.dtype)
    g, total = np.empty((longest, width), u.dtype), np.empty(width, u.dtype)
    dstate, dinject = np.zeros(width, u.dtype), np.zeros(width, u.dtype)
    weights, slopes = np.empty(chunks), np.empty(chunks)
    for n in range(chunks):
        start = n * chunk
        _remember(c, b, h, start, min(chunk, n_tokens - start), basis, last_basis, n, chunks, past[n])
    for n in range(chunks - 1, -1, -1):
        start = n * chunk
        length = min(chunk, n_tokens - start)
        for t in range(length):
            _copy(grad[b, start + t, h], g[t])
            if basis.shape[0]:
                _spread(_basis_row(basis, last_basis, n, chunks, t), dpast[n], g[t])
            _clear(dk[b, start + t, h])
        _add(1.0, dstate, g[length - 1])
        if basis.shape[0] == 0:
            _add(1.0, dpast[n], g[length - 1])
        _clear(total)
        for t in range(length - 1, -1, -1):
            _add(1.0, g[t], total)
            _copy(total, du[b, start + t, h])
        if n == 0:
            break
        _add(1.0, dinject, g[length - 1])
        for j in range(width):
            dstate[j] = total[j] + dinject[j]
            dinject[j] = -total[j] if basis.shape[0] and n > 1 else 0.0
        _ask_all(k, b, h, start, length, scale, basis, last_basis, n, chunks, per_token, asked)
        _clear(drecalled)
        for t in range(length):
            if per_token:
                _clear(drecalled)
            if basis.shape[0]:
                _gather(_basis_row(basis, last_basis, n, chunks, t), 1.0, g[t], drecalled)
            else:
                _copy(g[t], drecalled)
            if per_token:
                _recall_vjp(asked[t], drecalled, past, n, weights, slopes, dasked[t], dpast)
        if not per_token:
            _recall_vjp(asked[0], drecalled, past, n, weights, slopes, dasked[0], dpast)
        for t in range(length - 1, -1, -1):
            row = dasked[t if per_token else 0]
            if basis.shape[0] == 0:
                _scale(scale, row, dk[b, start + t, h])
                continue
            for m in range(moments):
                factor = scale * _basis_row(basis, last_basis, n, chunks, t)[m]
                _add(factor, row[m * width : (m + 1) * width], dk[b, start + t, h])
            if per_token and t:  # a token's key is in what all later ones ask
                _add(1.0, row, dasked[t - 1])


@kernel()
def resonance_vjp(u, k, c, grad, chunk, scale, basis, last_basis, per_token, du, dk):
    """Write the gradients of `resonance` at u and k.

    Parameters
    ----------
    u, k, chunk, scale, basis, last_basis, per_token
        As for `resonance`.
    c : ndarray, shape (B, N, H, d)
        Its result.
    grad : ndarray, shape (B, N, H, d)
        Gradient at the result.
    du, dk : ndarray, shape (B, N, H, d)
        Receive those at u and k.

    Returns
    -------
    int
        0, or INVALID_ARGUMENT where shapes do not fit. Cost some three times that of `resonance`.
    """
    if not _resonance_fits(u, k, chunk, basis, last_basis, c):
        return INVALID_ARGUMENT
    if grad.shape != u.shape or du.shape != u.shape or dk.shape != u.shape:
        return INVALID_ARGUMENT
    for b in range(u.shape[0]):
        for h in range(u.shape[2]):
            _resonate_head_vjp(u, k, c, grad, b, h, chunk, scale, basis, last_basis, per_token, du, dk)
    return OK
