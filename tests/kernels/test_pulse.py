"""The kernels of context-pulse attention themselves: parity with plain loops, statuses.

Sizes are small: the whole file also runs with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from oracles import context_pulse as oracle
from samples import relative

from spo_fast import kernels
from spo_fast.backends.status import Status

UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
DTYPES = [np.float64] if UNCOMPILED else [np.float64, np.float32]
STEP = 1e-30  # of the complex step
BAD = Status.INVALID_ARGUMENT


def tolerance(dtype):
    return 1e-12 if dtype is np.float64 else 2e-5


def draw(rng, *shape, dtype=np.float64):
    return rng.normal(size=shape).astype(dtype)


def derivative(function, array):
    """Gradient of a real function of one array, entry by entry, by complex steps."""
    result = np.zeros(array.shape)
    for place in np.ndindex(array.shape):
        moved = array.astype(complex)
        moved[place] += 1j * STEP
        result[place] = function(moved).imag / STEP
    return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate(dtype, rng):
    x, g, r = (draw(rng, 9, dtype=dtype) for _ in range(3))
    g[:4] = (800.0, -800.0, 0.0, -30.0)
    with np.errstate(over="ignore"):
        share = oracle.sigmoid(g.astype(float))
    out, dx, dg = (np.empty_like(x) for _ in range(3))
    assert kernels.gate(x, g, out) == Status.OK
    assert kernels.gate_vjp(x, g, r, dx, dg) == Status.OK
    assert relative(out, share * x) < tolerance(dtype)
    assert relative(dx, share * r) < tolerance(dtype)
    assert relative(dg, r * x * share * (1.0 - share)) < tolerance(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
def test_leaky_scan(decay, dtype, rng):
    x, r = draw(rng, 2, 5, 3, dtype=dtype), draw(rng, 2, 5, 3, dtype=dtype)

    def by_loops(x, decay=decay):
        return np.array([oracle.leaky_scan(sample, decay) for sample in x])

    c, dx, ddecay = np.empty_like(x), np.empty_like(x), np.empty(1)
    assert kernels.leaky_scan(x, decay, c) == Status.OK
    assert relative(c, by_loops(x.astype(float))) < tolerance(dtype)
    assert kernels.leaky_scan_vjp(x, decay, c, r, dx, ddecay) == Status.OK
    assert relative(dx, derivative(lambda x: (r * by_loops(x)).sum(), x.astype(float))) < tolerance(dtype)
    expected = (r * by_loops(x.astype(float), decay + 1j * STEP)).sum().imag / STEP
    assert abs(ddecay[0] - expected) < tolerance(dtype) * (1.0 + abs(expected))
    none = np.empty((0, 0, 0), dtype)
    assert kernels.leaky_scan_vjp(x, decay, none, r, dx, ddecay) == Status.OK and ddecay[0] == 0.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_and_what_they_add_to_gradients(dtype, rng):
    x, g = 2.0 + draw(rng, 4, 5), draw(rng, 4, 5)
    x, g = x.astype(dtype), g.astype(dtype)
    mean, squares = np.empty(4), np.empty(4)
    assert kernels.token_moments(x, mean, squares) == Status.OK
    assert relative(mean, x.mean(axis=1)) < tolerance(dtype)
    assert relative(squares, 4.0 * x.var(axis=1, ddof=1)) < 10 * tolerance(dtype)
    factor, alpha, beta = (draw(rng, 4) for _ in range(3))
    expected = factor[:, None] * (g + alpha[:, None] + beta[:, None] * (x - mean[:, None]))
    assert kernels.unnormalise(g, x, factor, alpha, beta, mean) == Status.OK
    assert relative(g, expected) < tolerance(dtype)


def turned(x, shift, factor, twist, angles, twist_first):
    """What `turn` is to give, (B, H, N, d)."""
    result = np.zeros((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), complex)
    for b, t, h in np.ndindex(x.shape[:3]):
        y = (x[b, t, h] - shift[b, t, h]) * factor[b, t, h]
        if twist.size and twist_first:
            y = y @ twist[h]
        a, c = y[::2], y[1::2]
        sine, cosine = np.sin(angles[t]), np.cos(angles[t])
        y = np.concatenate([a * cosine - c * sine, a * sine + c * cosine])
        result[b, h, t] = y @ twist[h] if twist.size and not twist_first else y
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("twisted, first", [(False, False), (True, False), (True, True)])
def test_turn(twisted, first, dtype, rng):
    x = draw(rng, 2, 3, 2, 4, dtype=dtype)
    shift, factor, angles = draw(rng, 2, 3, 2), draw(rng, 2, 3, 2), draw(rng, 3, 2)
    twist = draw(rng, 2, 4, 4, dtype=dtype) if twisted else np.empty((0, 0, 0), dtype)
    how = shift, factor, twist, np.cos(angles).astype(dtype), np.sin(angles).astype(dtype), first
    y = np.empty((2, 2, 3, 4), dtype)
    assert kernels.turn(x, *how, y) == Status.OK
    exact = x.astype(float), twist.astype(float)
    assert relative(y, turned(exact[0], shift, factor, exact[1], angles, first).real) < tolerance(dtype)
    r = draw(rng, *y.shape, dtype=dtype)
    g, slopes, products, dtwist = (
        np.empty_like(x),
        np.empty_like(shift),
        np.empty_like(shift),
        np.empty(twist.shape),
    )
    assert kernels.turn_vjp(x, *how, r, g, slopes, products, dtwist) == Status.OK
    expected = derivative(lambda x: (r * turned(x, shift, factor, exact[1], angles, first)).sum(), exact[0])
    assert relative(g * factor[..., None], expected) < tolerance(dtype)
    assert relative(slopes, g.sum(axis=3)) < tolerance(dtype)
    normalised = (x - shift[..., None]) * factor[..., None]
    assert relative(products, (g * normalised).sum(axis=3)) < tolerance(dtype)
    expected = derivative(lambda t: (r * turned(exact[0], shift, factor, t, angles, first)).sum(), exact[1])
    assert relative(dtwist, expected) < tolerance(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n, chunk", [(1, 3), (3, 3), (7, 3), (4, 1), (2, 9)])
@pytest.mark.parametrize("order, per_token", [(None, True), (0, False), (2, False), (1, True)])
def test_resonance(n, chunk, order, per_token, dtype, rng):
    u, k, r = (draw(rng, 1, n, 2, 3, dtype=dtype) for _ in range(3))
    none = np.empty((0, 0), dtype)
    last = (n - 1) % chunk + 1
    basis = none if order is None else np.ascontiguousarray(oracle.basis(chunk, order), dtype)
    last_basis = none if order is None else np.ascontiguousarray(oracle.basis(last, order), dtype)
    if per_token and order is not None:
        last_basis = np.ascontiguousarray(basis[:last])

    def by_loops(u, k):
        result = np.zeros(u.shape, complex)
        for h in range(2):
            if order is None:
                result[0, :, h] = oracle.chunked(u[0, :, h], k[0, :, h], chunk, 0.6)
            else:
                result[0, :, h] = oracle.moments(u[0, :, h], k[0, :, h], chunk, order, 0.6, per_token)
        return result

    how = chunk, 0.6, basis, last_basis, per_token
    c, du, dk = (np.full_like(u, np.nan) for _ in range(3))
    assert kernels.resonance(u, k, *how, c) == Status.OK
    exact = u.astype(float), k.astype(float)
    assert relative(c, by_loops(*exact).real) < tolerance(dtype)
    assert kernels.resonance_vjp(u, k, c, r, *how, du, dk) == Status.OK
    assert relative(du, derivative(lambda u: (r * by_loops(u, exact[1])).sum(), exact[0])) < tolerance(dtype)
    expected = derivative(lambda k: (r * by_loops(exact[0], k)).sum(), exact[1])
    assert np.abs(dk - expected).max() < tolerance(dtype) * max(1.0, np.abs(du).max())


def test_no_tokens_give_nothing():
    empty = np.empty((1, 0, 1, 2))
    none = np.empty((0, 0))
    assert kernels.resonance(empty, empty, 4, 1.0, np.ones((4, 1)), none, False, empty) == Status.OK


def test_arrays_that_do_not_belong_together_are_refused():
    a, b, m = np.zeros(3), np.zeros(2), np.zeros((2, 3, 4))
    assert kernels.gate(a, b, a) == BAD
    assert kernels.gate_vjp(a, a, b, a, a) == BAD
    assert kernels.leaky_scan(m, 0.5, m[:1]) == BAD
    assert kernels.leaky_scan_vjp(m, 0.5, m[:1], m, m.copy(), a) == BAD
    rows = np.zeros((2, 4))
    assert kernels.token_moments(rows, a, b) == BAD
    assert kernels.unnormalise(rows, rows, b, b, a, b) == BAD
    assert kernels.unnormalise(rows, rows, a, b, b, b) == BAD
    x, small, table, twist = (
        np.zeros((1, 2, 1, 4)),
        np.zeros((1, 2, 1)),
        np.zeros((2, 2)),
        np.zeros((1, 4, 4)),
    )
    y = np.zeros((1, 1, 2, 4))
    odd = np.zeros((1, 2, 1, 3))
    assert kernels.turn(odd, small, small, twist, table, table, False, y) == BAD
    assert kernels.turn(x, small, small, np.zeros((1, 3, 3)), table, table, False, y) == BAD
    assert kernels.turn(x, small, small, twist, table, table, False, np.zeros((1, 1, 1, 4))) == BAD
    arguments = x, small, small, twist, table, table, False, y
    assert kernels.turn_vjp(*arguments, odd, small, small, twist) == BAD
    assert kernels.turn_vjp(*arguments, x, small, small, np.zeros((0, 0, 0))) == BAD
    none = np.empty((0, 0))
    assert kernels.resonance(x, odd, 2, 1.0, none, none, True, x) == BAD
    assert kernels.resonance(x, x, 0, 1.0, none, none, True, x) == BAD
    assert kernels.resonance(x, x, 2, 1.0, np.ones((2, 1)), np.ones((1, 1)), True, x) == BAD
    assert kernels.resonance_vjp(x, odd, x, x, 2, 1.0, none, none, True, x, x) == BAD
    assert kernels.resonance_vjp(x, x, x, x, 2, 1.0, none, none, True, x, odd) == BAD
