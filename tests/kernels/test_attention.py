"""The attention kernels themselves: parity with plain loops, statuses, use in a user's compiled code.

Sizes are small: the whole file also runs with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from oracles import attention as oracle
from samples import relative, same_bits

from spo_fast import kernels
from spo_fast.backends.status import Status

UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
DTYPES = [np.float64] if UNCOMPILED else [np.float64, np.float32]
STEP = 1e-30  # of the complex step
NO_MASK = np.empty((0, 0), bool)


def tolerance(dtype):
    return 1e-12 if dtype is np.float64 else 2e-5


# ---------------------------------------------------------------- softmax attention


def draw(rng, n, m, *, masked, sunk, dtype=np.float64, e=5, f=3):
    """Queries, keys, values, mask, sink and its value as the kernels take them: one sample, one head."""
    q, k, v = (rng.normal(size=(1, 1, rows, width)).astype(dtype) for rows, width in ((n, e), (m, e), (m, f)))
    mask = rng.random((1, m)) < 0.7 if masked else NO_MASK
    sink = rng.normal(size=1 if sunk else 0).astype(dtype)
    value = rng.normal(size=(1, f) if sunk else (0, 0)).astype(dtype)
    return q, k, v, mask, sink, value


def run(q, k, v, mask, sink, value, causal=True, scale=0.7):
    out, lse = np.full((*q.shape[:3], v.shape[3]), np.nan, q.dtype), np.full(q.shape[:3], np.nan, q.dtype)
    assert kernels.attend(q, k, v, scale, causal, mask, sink, value, out, lse) == Status.OK
    return out, lse


def run_vjp(q, k, v, mask, sink, value, out, lse, grad, causal=True, scale=0.7):
    results = [np.full_like(array, np.nan) for array in (q, k, v, sink, value)]
    status = kernels.attend_vjp(q, k, v, out, lse, grad, scale, causal, mask, sink, value, *results)
    assert status == Status.OK
    return results


def by_loops(q, k, v, mask, sink, value, causal=True, scale=0.7):
    out, lse = oracle.softmax_attention(
        q[0],
        k[0],
        v[0],
        scale=scale,
        causal=causal,
        key_mask=mask[0] if mask.size else None,
        sink=sink if sink.size else None,
        sink_value=value if value.size else None,
    )
    return out[None], lse[None]


@pytest.mark.parametrize("n, m", [(1, 1), (3, 2), (2, 5), (17, 19), (4, 66), (2, 0)])
@pytest.mark.parametrize(
    "masked, sunk, causal", [(False, False, True), (True, True, True), (True, False, False)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_and_its_gradients(n, m, masked, sunk, causal, dtype, rng):
    arguments = draw(rng, n, m, masked=masked, sunk=sunk, dtype=dtype)
    out, lse = run(*arguments, causal)
    exact = [array if array.dtype == bool else array.astype(np.float64) for array in arguments]
    expected, logarithms = by_loops(*exact, causal)
    assert relative(out, expected.real) < tolerance(dtype)
    some = lse > -np.inf
    assert np.array_equal(some, logarithms.real > -np.inf)
    assert relative(lse[some], logarithms[some].real) < tolerance(dtype)
    grad = rng.normal(size=out.shape).astype(dtype)
    results = run_vjp(*arguments, out, lse, grad, causal)
    for at, result in zip((0, 1, 2, 4, 5), results, strict=True):
        direction = rng.normal(size=result.shape)
        moved = list(exact)
        moved[at] = exact[at] + 1j * STEP * direction
        slope = (grad * by_loops(*moved, causal)[0]).sum().imag / STEP
        assert abs((result * direction).sum() - slope) < tolerance(dtype) * np.abs(grad).sum() * 10


def test_only_the_masked_is_ignored(rng):
    q, k, v, _, sink, value = draw(rng, 6, 6, masked=False, sunk=False)
    mask = np.array([[True, False, True, True, False, True]])
    out, lse = run(q, k, v, mask, sink, value)
    k[0, 0, ~mask[0]], v[0, 0, ~mask[0]] = np.nan, np.inf
    again, logarithms = run(q, k, v, mask, sink, value)
    assert same_bits(out, again) and same_bits(lse, logarithms)
    _, dk, dv, *_ = run_vjp(q, k, v, mask, sink, value, out, lse, out)
    assert not dk[0, 0, ~mask[0]].any() and not dv[0, 0, ~mask[0]].any()
    assert dk[0, 0, mask[0]].any()


def test_a_sink_of_minus_infinity_and_one_without_a_value(rng):
    q, k, v, mask, sink, value = draw(rng, 5, 4, masked=True, sunk=True)
    none, no_value = np.empty(0), np.empty((0, 0))
    plain = run(q, k, v, mask, none, no_value)
    sink[0] = -np.inf
    assert all(same_bits(a, b) for a, b in zip(plain, run(q, k, v, mask, sink, value), strict=True))
    results = run_vjp(q, k, v, mask, sink, value, *plain, plain[0])
    assert not results[3].any() and not results[4].any()
    sink[0] = 0.3
    zeros = run(q, k, v, mask, sink, np.zeros_like(value))
    bare = run(q, k, v, mask, sink, no_value)
    assert all(same_bits(a, b) for a, b in zip(zeros, bare, strict=True))
    first = run_vjp(q, k, v, mask, sink, np.zeros_like(value), *zeros, zeros[0])
    second = run_vjp(q, k, v, mask, sink, no_value, *bare, zeros[0])
    assert all(same_bits(a, b) for a, b in zip(first[:4], second[:4], strict=True))


def test_weights_far_below_the_largest_vanish(rng):
    """And a maximum that rises late lets what was summed before vanish, too."""
    q, k, v, mask, sink, value = draw(rng, 70, 70, masked=False, sunk=False, e=1)
    q[:] = 1.0
    k[0, 0, :, 0] = 0.0
    k[0, 0, 5], k[0, 0, 68] = 3000.0, 6000.0
    out, _ = run(q, k, v, mask, sink, value)
    assert np.array_equal(out[0, 0, 5:68], np.broadcast_to(v[0, 0, 5], (63, 3)))
    assert np.array_equal(out[0, 0, 68:], np.broadcast_to(v[0, 0, 68], (2, 3)))


# ---------------------------------------------------------------- phases


def draw_phases(rng, dtype=np.float64, n=4, heads=2, m=2, f=3):
    c, s = (rng.normal(size=(1, n, heads, m)).astype(dtype) for _ in range(2))
    v = rng.normal(size=(1, n, heads, f)).astype(dtype)
    weight, alpha = (rng.normal(size=(heads, m)).astype(dtype) for _ in range(2))
    return [c, s, v, weight, alpha, rng.normal(0.5, 0.2, heads).astype(dtype)]


def run_phases(arrays, ramp, steps, queries, static, consensus, stride, dt=0.6):
    """The result, the arguments and what was kept, for the reverse pass."""
    c, _, v = arrays[:3]
    parts = queries if queries else [np.empty((0, 0, 0, 0), c.dtype)] * 2
    kept = -(-steps // stride) + 1 if stride else 0
    batch, n, heads, m = c.shape
    phases = np.full((batch, heads, kept, n, m), np.nan, c.dtype)
    values = np.full((batch if consensus else 0, heads, kept, n, v.shape[3]), np.nan, c.dtype)
    arguments = (*arrays, ramp, steps, dt, *parts, static, consensus, stride)
    out = np.full_like(v, np.nan)
    assert kernels.phase_attend(*arguments, out, phases, values) == Status.OK
    return out, (*arguments, phases, values)


def phases_by_loops(arrays, ramp, steps, queries, static, consensus, dt=0.6):
    c, s, v, weight, alpha, kappa = arrays
    heads = [
        oracle.phase_attention_head(
            *(array[0, :, h] for array in (c, s, v)),
            weight[h],
            alpha[h],
            kappa[h],
            ramp,
            steps=steps,
            dt=dt,
            queries=tuple(part[0, :, h] for part in queries) if queries else None,
            static_query=static,
            value_consensus=consensus,
        )
        for h in range(len(kappa))
    ]
    return np.stack(heads, axis=1)[None]


CASES = [(0, False, False, 0.0), (1, False, True, 0.4), (3, True, False, 0.3), (2, False, False, 0.0)]


@pytest.mark.parametrize("steps, own_queries, static, consensus", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_phases_and_their_gradients(steps, own_queries, static, consensus, dtype, rng):
    arrays, ramp = draw_phases(rng, dtype), np.array([1.0, 0.1])
    queries = [rng.normal(size=arrays[0].shape).astype(dtype) for _ in range(2)] if own_queries else []
    exact = [array.astype(np.float64) for array in arrays]
    own = [part.astype(np.float64) for part in queries]
    expected = phases_by_loops(exact, ramp, steps, own, static, consensus).real
    grad = rng.normal(size=expected.shape).astype(dtype)
    gradients = []
    for stride in (0, 1, 2, 3):
        out, arguments = run_phases(arrays, ramp, steps, queries, static, consensus, stride)
        assert relative(out, expected) < tolerance(dtype)
        if stride == 0:
            continue
        given = (*arrays, *arguments[9:11])
        gradients.append([np.full_like(array, np.nan) for array in given])
        assert kernels.phase_attend_vjp(*arguments, grad, *gradients[-1]) == Status.OK
    for results in zip(*gradients, strict=True):
        assert all(relative(other, results[0]) < tolerance(dtype) for other in results)
    for at, result in enumerate(gradients[0]):
        if not result.size:
            continue
        direction = rng.normal(size=result.shape)
        moved = [list(exact), list(own)]
        group, place = (0, at) if at < 6 else (1, at - 6)
        moved[group][place] = moved[group][place] + 1j * STEP * direction
        changed = phases_by_loops(moved[0], ramp, steps, moved[1], static, consensus)
        slope = (grad * changed).sum().imag / STEP
        assert abs((result * direction).sum() - slope) < tolerance(dtype) * 100, at


def test_phases_without_an_angle_have_no_gradient(rng):
    arrays = draw_phases(rng)
    arrays[0][0, 1, 0, 1] = arrays[1][0, 1, 0, 1] = 0.0
    out, arguments = run_phases(arrays, np.zeros(2), 1, [], False, 0.0, 1)
    results = [np.full_like(array, np.nan) for array in (*arrays, *arguments[9:11])]
    assert kernels.phase_attend_vjp(*arguments, out, *results) == Status.OK
    assert results[0][0, 1, 0, 1] == results[1][0, 1, 0, 1] == 0.0
    assert all(np.isfinite(result).all() for result in results)


# ---------------------------------------------------------------- statuses and embedding


def test_shapes_that_do_not_fit_are_refused(rng):
    q, k, v, mask, sink, value = draw(rng, 3, 4, masked=True, sunk=True)
    out, lse = run(q, k, v, mask, sink, value)
    good = [q, k, v, 0.7, True, mask, sink, value, out, lse]
    changes = {0: q[:, :, :2], 1: k[:, :, :, :2], 2: v[:, :, :3], 5: mask[:, :2], 6: np.zeros(2)}
    changes |= {7: value[:, :2], 8: out[:, :, :2], 9: lse[:, :, :2]}
    for at, bad in changes.items():
        arguments = list(good)
        arguments[at] = bad.copy()
        assert kernels.attend(*arguments) == Status.INVALID_ARGUMENT, at
    back = [q, k, v, out, lse, out, 0.7, True, mask, sink, value, q, k, v, sink, value]
    assert kernels.attend_vjp(*[np.copy(a) if isinstance(a, np.ndarray) else a for a in back]) == Status.OK
    for at, bad in {
        5: out[:, :, :2],
        11: q[:, :, :2],
        13: v[:, :, :3],
        14: np.zeros(2),
        15: value[:, :2],
    }.items():
        arguments = list(back)
        arguments[at] = bad.copy()
        assert kernels.attend_vjp(*arguments) == Status.INVALID_ARGUMENT, at


def test_phases_whose_shapes_do_not_fit_are_refused(rng):
    arrays = draw_phases(rng)
    out, arguments = run_phases(arrays, np.zeros(2), 2, [], False, 0.5, 1)
    *given, phases, values = arguments
    changes = {1: arrays[1][:, :2], 3: arrays[3][:1], 5: arrays[5][:1], 6: np.zeros(3), 7: -1, 13: 2}
    for at, bad in changes.items():
        changed = list(given)
        changed[at] = bad.copy() if isinstance(bad, np.ndarray) else bad
        assert kernels.phase_attend(*changed, out, phases, values) == Status.INVALID_ARGUMENT, at
    assert kernels.phase_attend(*given, out[:, :2].copy(), phases, values) == Status.INVALID_ARGUMENT
    results = [np.empty_like(array) for array in (*arrays, *given[9:11])]
    for at in range(len(results)):
        wrong = list(results)
        wrong[at] = np.empty((1, *results[at].shape[1:])) if at < 6 else arrays[0].copy()
        if wrong[at].shape != results[at].shape:
            status = kernels.phase_attend_vjp(*arguments, out, *wrong)
            assert status == Status.INVALID_ARGUMENT, at
    without = (*given, phases, np.empty((0, 0, 0, 0, 0)))
    assert kernels.phase_attend_vjp(*without, out, *results) == Status.INVALID_ARGUMENT


def test_kernels_can_be_called_from_compiled_code(rng):
    from numba import njit

    @njit
    def twice(q, k, v, mask, sink, value, out, lse):
        status = 0
        for causal in (True, False):
            status += kernels.attend(q, k, v, 0.7, causal, mask, sink, value, out, lse)
        return status

    arguments = draw(rng, 3, 4, masked=True, sunk=True)
    expected = run(*arguments, False)
    results = [np.empty_like(array) for array in expected]
    assert twice(*arguments, *results) == 2 * Status.OK
    assert all(same_bits(a, b) for a, b in zip(results, expected, strict=True))


def test_heads_and_samples_are_apart(rng):
    q, k, v = (rng.normal(size=(2, 3, n, 2)) for n in (4, 5, 5))
    mask, sink, value = rng.random((2, 5)) < 0.7, rng.normal(size=3), rng.normal(size=(3, 2))
    out, lse = run(q, k, v, mask, sink, value)
    grads = run_vjp(q, k, v, mask, sink, value, out, lse, out)
    for g, h in itertools.product(range(2), range(3)):
        one = [array[g : g + 1, h : h + 1].copy() for array in (q, k, v)]
        rest = mask[g : g + 1].copy(), sink[h : h + 1].copy(), value[h : h + 1].copy()
        single = run(*one, *rest)
        assert same_bits(single[0][0, 0], out[g, h])
        back = run_vjp(*one, *rest, *single, single[0])
        assert all(same_bits(a[0, 0], b[g, h]) for a, b in zip(back[:3], grads[:3], strict=True))
