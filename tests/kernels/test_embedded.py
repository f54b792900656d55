"""What stands around the kernels in compiled callers, function by function; also uncompiled."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from samples import phases, same_bits, symmetric

import spo_fast
from spo_fast import kernels
from spo_fast.kernels import embedded


def weights(heads=2):
    return spo_fast.default_projections(heads, 1)


@pytest.mark.parametrize(
    "numbers, text",
    [
        ((0, 0.5, 0, 1), "n_heads must be at least 1, got 0"),
        ((4, -0.5, 0, 1), "lambda_ must be a finite number"),
        ((4, np.inf, 0, 1), "lambda_ must be a finite number"),
        ((4, 0.5, -3, 1), "projection_seed must be at least 0, got -3"),
        ((4, 0.5, 0, 0), "workers must be at least 1, got 0"),
    ],
)
def test_numbers(numbers, text):
    embedded.check_numbers(4, 0.5, 0, 1)
    with pytest.raises(ValueError, match=text):
        embedded.check_numbers(*numbers)


@pytest.mark.parametrize("block_size", [0, -1, -7])
def test_block_size(block_size):
    embedded.check_block_size(3)
    with pytest.raises(ValueError, match=f"block_size must be at least 1, got {block_size}$"):
        embedded.check_block_size(block_size)


@pytest.mark.parametrize("tau, text", [(np.ones(3), r"\(2,\), got \(3,\)"), (np.zeros(2), "positive")])
def test_temperature(tau, text):
    embedded.check_temperature(np.ones(2), 2)
    with pytest.raises(ValueError, match=f"temperature must .*{text}"):
        embedded.check_temperature(tau, 2)


@pytest.mark.parametrize("index, name", list(enumerate(("w_q", "w_k", "w_v", "w_o"))))
def test_projections(index, name):
    good = weights()
    embedded.check_projections(*good, 2)
    infinite, short = ([w.copy() for w in good] for _ in range(2))
    infinite[index].flat[5] = np.inf
    short[index] = np.ascontiguousarray(good[index][..., :-1])
    for spoiled in (infinite, short):
        with pytest.raises(ValueError, match=f"{name} must"):
            embedded.check_projections(*spoiled, 2)


@pytest.mark.parametrize("index, text", [(1, "temperature"), (2, "w_v"), (3, "w_v")])
def test_range(index, text):
    large = [w.copy() for w in weights()]
    embedded.check_range(*large, np.ones(2))
    large[index][:] = 1e200
    large[0][:] = 1e200 if text == "temperature" else large[0]
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=f"{text} .* so large"):
        embedded.check_range(*large, np.ones(2))


@pytest.mark.parametrize(
    "theta, knm, out, text",
    [
        (3, (3, 2), (3, 3), r"knm must have shape \(N, N\), got \(3, 2\)"),
        (2, (3, 3), (3, 3), r"theta must have shape \(3,\), got \(2,\)"),
        (3, (3, 3), (3, 4), r"out must have shape \(3, 3\), got \(3, 4\)"),
    ],
)
def test_shapes(theta, knm, out, text):
    embedded.check_shapes(np.empty(3), np.empty((3, 3)), np.empty((3, 3)))
    with pytest.raises(ValueError, match=text):
        embedded.check_shapes(np.empty(theta), np.empty(knm), np.empty(out))


def test_memory_that_is_shared():
    room = np.zeros((8, 4))
    for knm in (room[4:], room[::-1][:4], room[:4].T[::-1], np.empty((0, 0))):
        apart = knm.base is None or not np.may_share_memory(knm, room[:4])
        if apart:
            embedded.check_apart(knm, room[:4])
        else:
            with pytest.raises(ValueError, match="out must not overlap knm"):
                embedded.check_apart(knm, room[:4])


def test_what_a_kernel_refuses(rng):
    arguments = (*weights(), -1, np.ones(2), 0.5)
    good, theta, out = symmetric(rng, 5), phases(rng, 5), np.empty((5, 5))
    embedded.modulate_checked(good, theta, *arguments, out)
    assert same_bits(out, out.T)
    for index, entry, text in (
        ((1, 2), np.nan, r"finite, got another entry at index \(1, 2\)"),
        ((1, 2), 7.0, r"symmetric, got different entries at index \(1, 2\)"),
        ((3, 3), 1.0, r"zero diagonal, got another entry at index \(3, 3\)"),
    ):
        knm = good.copy()
        knm[index] = entry
        with pytest.raises(ValueError, match=f"knm must .*{text}"):
            embedded.modulate_checked(knm, theta, *arguments, out)
    theta[2] = np.inf
    with pytest.raises(ValueError, match="theta must be finite, got another entry at index 2"):
        embedded.modulate_checked(good, theta, *arguments, out)
    with pytest.raises(ValueError, match="refused with status 1"):
        embedded.modulate_checked(good, theta, *weights(4), -1, np.ones(2), 0.5, out)


def test_observables(rng):
    theta = rng.uniform(-9, 9, (4, 6))
    for own, expected in zip(embedded.order_parameters(theta), spo_fast.order_parameter(theta), strict=True):
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-14)
    chosen = embedded.members_of_mask(np.arange(6) % 2 == 0, 6)
    assert chosen.tolist() == embedded.members_of_indices(np.array([0, 2, 4]), 6).tolist() == [0, 2, 4]
    expected = spo_fast.layer_coherence(theta, [0, 2, 4])
    np.testing.assert_allclose(embedded.coherence(theta, chosen), expected, rtol=0, atol=1e-14)
    expected = spo_fast.plv(theta[:2], theta[2:])
    np.testing.assert_allclose(embedded.locking(theta[:2], theta[2:]), expected, rtol=0, atol=1e-14)
    spoiled = theta.copy()
    spoiled[1, 1] = np.nan
    for call, text in (
        (lambda: embedded.members_of_mask(np.ones(5, bool), 6), "layer must have shape"),
        (lambda: embedded.members_of_indices(np.array([1, 1]), 6), "unique indices, got 1"),
        (lambda: embedded.members_of_indices(np.array([-1, 1]), 6), "indices from 0 to 5, got -1"),
        (lambda: embedded.order_parameters(spoiled), "theta must be finite"),
        (lambda: embedded.locking(theta, theta[:2]), "b must have the shape of a"),
        (lambda: embedded.locking(spoiled, theta), "a must be finite"),
        (lambda: embedded.locking(theta, spoiled), "b must be finite"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


# ---------------------------------------------------------------- the other kernels in a caller of one's own


@njit
def unchecked(knm, theta, w_q, w_k, w_v, w_o, tau, series, room, keys, out, other, units):
    """Both ways without checks, the coupling looked over once; one way with them; and factors."""
    status, structure = kernels.inspect_coupling(knm)
    kernels.apply_modulation(knm, structure, theta, w_q, w_k, w_v, w_o, -1, tau, 0.5, out)
    kernels.apply_modulation_moments(
        knm, structure, theta, w_q, w_k, w_v, w_o, tau, 0.5, series, room, keys, other
    )
    kernels.apply_factors(knm, structure, theta, w_q, w_k, w_v, w_o, -1, tau, units)
    checked = np.empty_like(out)
    second = kernels.modulate_moments(knm, theta, w_q, w_k, w_v, w_o, tau, 0.5, series, room, keys, checked)
    return status, second, (checked == other).all()


def test_the_unchecked_kernels_and_order_parameters(rng):
    knm, theta, tau, given = symmetric(rng, 9, 0.9), phases(rng, 9), np.ones(4), weights(4)
    series = kernels.series_of(*given, tau)
    assert not series.refusal
    room = np.empty(kernels.moments_room_size(9, series.arrays))
    out, other, units = np.empty((9, 9)), np.empty((9, 9)), np.empty((9, 8))
    found = unchecked(
        knm, theta, *given, tau, series.arrays, room, np.empty((2, 9), np.int64), out, other, units
    )
    assert found == (kernels.OK, kernels.OK, True)
    expected = spo_fast.modulate(knm, theta, *given, backend="numpy")
    for result in (out, other, knm * (1.25 + 0.25 * units @ units.T)):
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-13)
