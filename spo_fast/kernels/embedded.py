"""What stands around the kernels where a public function is called in compiled code: checks that raise.

The kernels answer with a status; a function under its public name raises instead, as it does in Python. The
texts name the argument and, where it is an integer, what came; an offending entry is told by its index.
"""

from __future__ import annotations

import math

import numpy as np

from ._flags import (
    ASYMMETRIC_COUPLING,
    NONFINITE_COUPLING,
    NONFINITE_PHASE,
    NONZERO_DIAGONAL,
    OK,
    REASSOCIATE,
    kernel,
)
from .kuramoto import order_parameter
from .modulation import _SYMMETRY_TOLERANCE, modulate
from .vectormath import sincos

# ---------------------------------------------------------------- parameters of a modulation


@kernel()
def check_numbers(n_heads, lambda_, projection_seed, workers):
    """Raise the ValueError for a number out of its range."""
    if n_heads < 1:
        raise ValueError(f"n_heads must be at least 1, got {n_heads}")
    if not (lambda_ >= 0.0 and lambda_ < np.inf):
        raise ValueError("lambda_ must be a finite number of at least 0")
    if projection_seed < 0:
        raise ValueError(f"projection_seed must be at least 0, got {projection_seed}")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")


@kernel()
def check_block_size(block_size):
    """Raise the ValueError for one below 1."""
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")


@kernel()
def check_temperature(temperature, n_heads):
    """Raise the ValueError for a temperature that is no positive number for each head."""
    if temperature.shape[0] != n_heads:
        raise ValueError(
            f"temperature must be a number or have shape ({n_heads},), got ({temperature.shape[0]},)"
        )
    for tau in temperature:
        if not (tau > 0.0 and tau < np.inf):
            raise ValueError("temperature must be finite and positive")


@kernel()
def _all_finite(flat):
    bad = 0
    for entry in flat:
        bad += 0 if abs(entry) < np.inf else 1
    return bad == 0


@kernel()
def check_projections(w_q, w_k, w_v, w_o, n_heads):
    """Raise the ValueError for projections whose shapes do not belong together or that are not finite."""
    heads, width, per_head = w_q.shape
    if heads != n_heads or width < 2 or width % 2 or heads * per_head != width:
        raise ValueError(
            f"w_q must have shape (n_heads, d, d/n_heads) with n_heads = {n_heads} and an even d >= 2, "
            f"got ({heads}, {width}, {per_head})"
        )
    if w_k.shape != w_q.shape:
        raise ValueError("w_k must have the shape of w_q")
    if w_v.shape != w_q.shape:
        raise ValueError("w_v must have the shape of w_q")
    if w_o.shape != (width, width):
        raise ValueError(
            f"w_o must have shape (d, d) = ({width}, {width}), got ({w_o.shape[0]}, {w_o.shape[1]})"
        )
    if not _all_finite(w_q.reshape(w_q.size)):
        raise ValueError("w_q must be finite")
    if not _all_finite(w_k.reshape(w_k.size)):
        raise ValueError("w_k must be finite")
    if not _all_finite(w_v.reshape(w_v.size)):
        raise ValueError("w_v must be finite")
    if not _all_finite(w_o.reshape(w_o.size)):
        raise ValueError("w_o must be finite")


@kernel()
def check_range(w_q, w_k, w_v, w_o, temperature):
    """Raise the ValueError for weights that let a logit or a squared output overflow."""
    heads, width, per_head = w_q.shape
    bound_v = np.zeros(width)
    for h in range(heads):
        logit = 0.0
        for e in range(per_head):
            q = np.abs(w_q[h, :, e]).sum()
            logit += q * np.abs(w_k[h, :, e]).sum()
            bound_v[h * per_head + e] = np.abs(w_v[h, :, e]).sum()
        if not (logit / temperature[h] < np.inf and 1.0 / temperature[h] < np.inf):
            raise ValueError(
                "temperature must not be so small, nor w_q and w_k so large, that attention logits overflow"
            )
    square = 0.0
    for c in range(width):
        output = 0.0
        for r in range(width):
            output += bound_v[r] * abs(w_o[r, c])
        square += output * output
    if not square < np.inf:
        raise ValueError("w_v and w_o must not be so large that outputs overflow")


# ---------------------------------------------------------------- state and coupling


@kernel()
def check_shapes(theta, knm, out):
    """Raise the ValueError for sizes that do not belong together."""
    n, columns = knm.shape
    if columns != n:
        raise ValueError(f"knm must have shape (N, N), got ({n}, {columns})")
    if theta.shape[0] != n:
        raise ValueError(f"theta must have shape ({n},), got ({theta.shape[0]},)")
    if out.shape != (n, n):
        raise ValueError(f"out must have shape ({n}, {n}), got ({out.shape[0]}, {out.shape[1]})")


@kernel()
def _extent(array):
    """Addresses of the first byte of an array and of the one behind its last."""
    low = np.int64(array.ctypes.data)
    high = low + array.itemsize
    for axis in range(array.ndim):
        reach = (array.shape[axis] - 1) * array.strides[axis]
        low += min(reach, 0)
        high += max(reach, 0)
    return low, high


@kernel()
def check_apart(knm, out):
    """Raise the ValueError for an output that lies within the bounds of the coupling's memory."""
    first, stop = _extent(knm)
    low, high = _extent(out)
    if knm.size > 0 and out.size > 0 and low < stop and first < high:
        raise ValueError("out must not overlap knm, got an array that shares its memory")


@kernel()
def check_phases(theta):
    """Raise the ValueError for a phase that is not finite; `theta` as one row."""
    if not _all_finite(theta):
        for i in range(theta.shape[0]):
            if not abs(theta[i]) < np.inf:
                raise ValueError(f"theta must be finite, got another entry at index {i}")


@kernel()
def _refuse(status, knm, theta):
    """Raise the ValueError for what a kernel refused; shapes and parameters were checked before."""
    n = knm.shape[0]
    for i in range(n):
        for j in range(n):
            a, b = knm[i, j], knm[j, i]
            if status == NONFINITE_COUPLING and not abs(a) < np.inf:
                raise ValueError(f"knm must be finite, got another entry at index ({i}, {j})")
            if status == ASYMMETRIC_COUPLING and abs(a - b) > _SYMMETRY_TOLERANCE * (1 + min(abs(a), abs(b))):
                raise ValueError(f"knm must be symmetric, got different entries at index ({i}, {j}) and back")
            if status == NONZERO_DIAGONAL and i == j and abs(a) > _SYMMETRY_TOLERANCE:
                raise ValueError(f"knm must have a zero diagonal, got another entry at index ({i}, {i})")
    if status == NONFINITE_PHASE:
        check_phases(theta)
    raise ValueError(f"the input was refused with status {status}")


@kernel()
def modulate_checked(knm, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, out):
    """``modulate`` of parameters that were checked; raises where that has a status."""
    status = modulate(knm, theta, w_q, w_k, w_v, w_o, block_size, temperature, lambda_, out)
    if status != OK:
        _refuse(status, knm, theta)


# ---------------------------------------------------------------- observables


@kernel()
def order_parameters(theta):
    """R and psi of each row of finite phases (T, N)."""
    check_phases(theta.reshape(theta.size))
    r, psi = np.empty(theta.shape[0]), np.empty(theta.shape[0])
    order_parameter(theta, r, psi)
    return r, psi


@kernel()
def members_of_mask(layer, n):
    """Indices of the oscillators that a mask means."""
    if layer.shape[0] != n:
        raise ValueError(f"layer must have shape ({n},) as a mask, got ({layer.shape[0]},)")
    return np.flatnonzero(layer)


@kernel()
def members_of_indices(layer, n):
    """The indices themselves, unique and in range."""
    seen = np.zeros(n, np.bool_)
    chosen = np.empty(layer.shape[0], np.int64)
    for k in range(layer.shape[0]):
        index = np.int64(layer[k])
        if index < 0 or index >= n:
            raise ValueError(f"layer must hold indices from 0 to {n - 1}, got {index}")
        if seen[index]:
            raise ValueError(f"layer must hold unique indices, got {index} more than once")
        seen[index] = True
        chosen[k] = index
    return chosen


@kernel()
def coherence(theta, chosen):
    """R of the chosen oscillators in each row of finite phases."""
    check_phases(theta.reshape(theta.size))
    rows, r, psi = np.empty((1, chosen.shape[0])), np.empty(theta.shape[0]), np.empty(1)
    for t in range(theta.shape[0]):
        for k in range(chosen.shape[0]):
            rows[0, k] = theta[t, chosen[k]]
        order_parameter(rows, r[t : t + 1], psi)
    return r


@kernel(REASSOCIATE)
def _add(total, row):
    for i in range(row.shape[0]):
        total[i] += row[i]


@kernel()
def locking(first, second):
    """Phase-locking value of each column of two trajectories (T, N)."""
    times, n = first.shape
    if second.shape != first.shape:
        raise ValueError("b must have the shape of a")
    if not _all_finite(first.reshape(first.size)):
        raise ValueError("a must be finite")
    if not _all_finite(second.reshape(second.size)):
        raise ValueError("b must be finite")
    gap, sine, cosine = np.empty(n), np.empty(n), np.empty(n)
    sines, cosines = np.zeros(n), np.zeros(n)
    for t in range(times):
        for i in range(n):
            gap[i] = first[t, i] - second[t, i]
        sincos(gap, sine, cosine)
        _add(sines, sine)
        _add(cosines, cosine)
    value = np.empty(n)
    for i in range(n):
        value[i] = min(1.0, math.hypot(sines[i], cosines[i]) / max(times, 1))
    return value
