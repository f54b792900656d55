"""Elementary functions that LLVM turns into vector code: powers of two, sine and cosine, phase wrapping.

The scalar functions have no branch and call no library, so a loop over them is vectorised. They read and
write the bits of doubles through ``view``, which NumPy scalars share, so they also run uncompiled.

References
----------
.. [1] S. Sun, K. C. Ng, "Argument reduction for huge arguments", 1992: the split of pi/2 that ``fdlibm``
carries. .. [2] J.-M. Muller, "Elementary Functions", 3rd ed., 2016, sections 10 and 11: rounding by a large
constant, polynomials.
"""

from __future__ import annotations

import math

import numpy as np

from ._flags import kernel

TWO_PI = 2.0 * math.pi

# 1.5 * 2**52: adding it leaves the nearest integer in the low bits of the sum [2].
_ROUNDER = 6755399441055744.0

# Relative minimax of 2**x on [-1/2, 1/2], degree 10: error 2.1e-16 before rounding (Remez in 50 digits).
_P0 = 1.0
_P1 = 0.6931471805599497
_P2 = 0.24022650695908768
_P3 = 0.05550410866445887
_P4 = 0.0096181291080342
_P5 = 0.0013333558228555492
_P6 = 0.00015403529961607488
_P7 = 1.525265811990087e-05
_P8 = 1.3215662601690083e-06
_P9 = 1.0208537294147603e-07
_P10 = 7.037318285107194e-09

# pi/2 in three pieces of 33 bits [1]: products with integers below 2**20 are exact, with or without fused
# multiply-add.
_TWO_OVER_PI = 0.6366197723675814
_PIO2_1 = 1.57079632673412561417
_PIO2_2 = 6.07710050630396597660e-11
_PIO2_3 = 2.02226624879595063154e-21
# Integers stay below 2**20 up to here; larger phases go to the C library.
_REDUCTION_LIMIT = 1.0e6

# fdlibm's minimax coefficients for sine and cosine on [-pi/4, pi/4].
_S1 = -1.66666666666666324348e-01
_S2 = 8.33333333332248946124e-03
_S3 = -1.98412698298579493134e-04
_S4 = 2.75573137070700676789e-06
_S5 = -2.50507602534068634195e-08
_S6 = 1.58969099521155010221e-10
_C1 = 4.16666666666666019037e-02
_C2 = -1.38888888888741095749e-03
_C3 = 2.48015872894767294178e-05
_C4 = -2.75573143513906633035e-07
_C5 = 2.08757232129817482790e-09
_C6 = -1.13596475577881948265e-11

_SHIFT_EXPONENT = np.int64(52)
_SHIFT_SIGN = np.int64(62)
_ONE = np.int64(1)
_TWO = np.int64(2)
_LANES = 8


@kernel(inline=True)
def exp2(x):
    """Power of two of one number.

    Parameters
    ----------
    x : float
        Exponent in [-1021, 1022]; outside that range the result is meaningless, NaN included.

    Returns
    -------
    float
        ``2**x`` within 2 units in the last place.
    """
    shifted = x + _ROUNDER
    r = x - (shifted - _ROUNDER)
    p = _P9 + r * _P10
    p = _P8 + r * p
    p = _P7 + r * p
    p = _P6 + r * p
    p = _P5 + r * p
    p = _P4 + r * p
    p = _P3 + r * p
    p = _P2 + r * p
    p = _P1 + r * p
    p = _P0 + r * p
    # The low bits of `shifted` are the integer part: add them to the exponent field.
    bits = np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << _SHIFT_EXPONENT)
    return np.int64(bits).view(np.float64)


@kernel(inline=True)
def _sincos_reduced(x):
    """Sine and cosine of one number of size at most ``_REDUCTION_LIMIT``."""
    shifted = x * _TWO_OVER_PI + _ROUNDER
    turns = shifted - _ROUNDER
    r = ((x - turns * _PIO2_1) - turns * _PIO2_2) - turns * _PIO2_3
    z = r * r
    s = r + r * z * (_S1 + z * (_S2 + z * (_S3 + z * (_S4 + z * (_S5 + z * _S6)))))
    c = (1.0 - 0.5 * z) + z * z * (_C1 + z * (_C2 + z * (_C3 + z * (_C4 + z * (_C5 + z * _C6)))))
    quarter = np.float64(shifted).view(np.int64)
    odd = (quarter & _ONE) == _ONE
    sine = np.float64(c if odd else s).view(np.int64)
    cosine = np.float64(s if odd else c).view(np.int64)
    sine = sine ^ ((quarter & _TWO) << _SHIFT_SIGN)
    cosine = cosine ^ (((quarter + _ONE) & _TWO) << _SHIFT_SIGN)
    return np.int64(sine).view(np.float64), np.int64(cosine).view(np.float64)


@kernel()
def _sincos_library(theta, sine, cosine):
    """Redo the entries that ``sincos`` could not reduce: huge phases by the C library, the rest is NaN."""
    for i in range(theta.shape[0]):
        x = theta[i]
        if not abs(x) <= _REDUCTION_LIMIT:
            finite = abs(x) < np.inf
            sine[i] = math.sin(x) if finite else np.nan
            cosine[i] = math.cos(x) if finite else np.nan


@kernel()
def sincos(theta, sine, cosine):
    """Sine and cosine of many phases.

    Parameters
    ----------
    theta : ndarray, shape (N,), radians
        Phases of any size; a NaN or an infinity gives NaN.
    sine, cosine : ndarray, shape (N,)
        Receive the values; they may not overlap each other or `theta`.

    Notes
    -----
    Cost O(N). Errors stay below one unit in the last place for phases up to 1e6; the C library serves
    larger ones.
    """
    outside = 0
    for i in range(theta.shape[0]):
        x = theta[i]
        near = abs(x) <= _REDUCTION_LIMIT
        outside += 0 if near else 1
        s, c = _sincos_reduced(x if near else 0.0)
        sine[i] = s
        cosine[i] = c
    if outside > 0:
        _sincos_library(theta, sine, cosine)


@kernel(inline=True)
def wrap_near(x):
    """Wrap one phase of size at most 1e6 into [0, 2 pi)."""
    r = x - TWO_PI * np.floor(x / TWO_PI)
    r = r + TWO_PI if r < 0.0 else r  # the quotient may round up to the next integer
    r = r - TWO_PI if r >= TWO_PI else r
    return 0.0 if r >= TWO_PI or r < 0.0 else r


@kernel()
def wrap_far(x):
    """Wrap one phase of any size into [0, 2 pi) by the exact remainder; a NaN or an infinity gives NaN."""
    if not abs(x) < np.inf:
        return np.nan
    r = np.fmod(x, TWO_PI)
    r = r + TWO_PI if r < 0.0 else r
    return 0.0 if r >= TWO_PI else r


@kernel()
def wrap(theta, out):
    """Wrap phases into [0, 2 pi); a value that rounds to 2 pi becomes 0.

    Parameters
    ----------
    theta : ndarray, shape (N,), radians
        Phases of any size.
    out : ndarray, shape (N,), radians
        Receives the wrapped phases; may be `theta` itself.

    Returns
    -------
    int
        Number of phases that are NaN or infinite; their places in `out` hold NaN. Cost O(N).
    """
    far = 0
    for i in range(theta.shape[0]):
        x = theta[i]
        near = abs(x) <= _REDUCTION_LIMIT
        far += 0 if near else 1
        r = wrap_near(x if near else 0.0)
        out[i] = r if near else x
    return _wrap_rest(out) if far > 0 else 0


@kernel()
def _wrap_rest(out):
    """Finish the entries that the fast pass of ``wrap`` left as they were and count the non-finite ones."""
    nonfinite = 0
    for i in range(out.shape[0]):
        x = out[i]
        if not abs(x) <= _REDUCTION_LIMIT:
            out[i] = wrap_far(x)
            nonfinite += 0 if abs(x) < np.inf else 1
    return nonfinite


@kernel(inline=True)
def _two_sum(a, b):
    """Sum and its rounding error (Knuth); sums must not be reordered here."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


@kernel()
def accurate_sum(x, lanes):
    """Sum of a row with its rounding errors added back.

    Parameters
    ----------
    x : ndarray, shape (N,)
        Summands.
    lanes : ndarray, shape (16,)
        Scratch: eight running sums, then their eight errors.

    Returns
    -------
    float
        The sum as if computed in twice the precision. Cost O(N), order fixed.
    """
    n = x.shape[0]
    whole = n - n % _LANES
    for lane in range(2 * _LANES):
        lanes[lane] = 0.0
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            total, error = _two_sum(lanes[lane], x[start + lane])
            lanes[lane] = total
            lanes[_LANES + lane] += error
    total = 0.0
    rest = 0.0
    for lane in range(_LANES):
        total, error = _two_sum(total, lanes[lane])
        rest += error + lanes[_LANES + lane]
    for i in range(whole, n):
        total, error = _two_sum(total, x[i])
        rest += error
    return total + rest
