"""Properties that hold for every input, searched by hypothesis: sizes, settings and a seed are drawn."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from samples import METHODS, circle_gap, network, phases, same_bits, symmetric

import spo_fast

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(1, 24)
HEADS = st.sampled_from([1, 2, 4, 8])
STRENGTHS = st.floats(0.01, 3.0)
TEMPERATURES = st.floats(0.3, 3.0)
BANDS = st.one_of(st.none(), st.integers(1, 25))
DENSITIES = st.sampled_from([0.1, 0.5, 1.0])


def problem(seed, n, density=1.0, low=0.0):
    rng = np.random.default_rng(seed)
    return rng, symmetric(rng, n, density, low), phases(rng, n)


def settings_of(n_heads, lambda_, temperature, block_size=None):
    return {"n_heads": n_heads, "lambda_": lambda_, "temperature": temperature, "block_size": block_size}


SETTINGS = st.builds(settings_of, HEADS, STRENGTHS, TEMPERATURES, BANDS)
UNBANDED = st.builds(settings_of, HEADS, STRENGTHS, TEMPERATURES)

# ---------------------------------------------------------------- modulate


@given(seed=SEEDS, n=SIZES, density=DENSITIES, settings=SETTINGS)
def test_result_is_symmetric_with_the_zeros_of_the_coupling(backend, seed, n, density, settings):
    _, knm, theta = problem(seed, n, density, low=-1.0)
    result = spo_fast.modulate(knm, theta, **settings, backend=backend)
    assert np.array_equal(result, result.T)
    assert not result.diagonal().any()
    assert not result[knm == 0.0].any()


@given(seed=SEEDS, n=SIZES, density=DENSITIES, settings=SETTINGS)
def test_non_negative_coupling_stays_between_its_bounds(backend, seed, n, density, settings):
    _, knm, theta = problem(seed, n, density)
    result = spo_fast.modulate(knm, theta, **settings, backend=backend)
    assert np.all(result >= knm * (1.0 - 1e-13))
    assert np.all(result <= (1.0 + settings["lambda_"]) * knm * (1.0 + 1e-13))


@given(seed=SEEDS, n=SIZES, density=DENSITIES, settings=SETTINGS, turns=st.integers(-(10**6), 10**6))
def test_full_turns_of_any_phase_change_nothing(backend, seed, n, density, settings, turns):
    rng, knm, theta = problem(seed, n, density)
    shifted = theta + 2.0 * np.pi * turns * rng.integers(0, 2, n)
    a, b = (spo_fast.modulate(knm, x, **settings, backend=backend) for x in (theta, shifted))
    budget = 1e-12 + np.spacing(np.abs(shifted).max()) * 8 / settings["temperature"]
    assert np.max(np.abs(a - b)) <= budget * max(1.0, np.max(np.abs(a), initial=0.0))


@given(seed=SEEDS, n=SIZES, density=DENSITIES, settings=UNBANDED)
def test_names_of_oscillators_do_not_matter(backend, seed, n, density, settings):
    rng, knm, theta = problem(seed, n, density)
    order = rng.permutation(n)
    result = spo_fast.modulate(knm, theta, **settings, backend=backend)
    renamed = spo_fast.modulate(knm[np.ix_(order, order)], theta[order], **settings, backend=backend)
    assert np.max(np.abs(renamed - result[np.ix_(order, order)])) <= 1e-12


@given(seed=SEEDS, n=SIZES, settings=SETTINGS)
def test_zero_strength_returns_the_same_bits(backend, seed, n, settings):
    _, knm, theta = problem(seed, n, low=-1.0)
    assert same_bits(spo_fast.modulate(knm, theta, **settings | {"lambda_": 0.0}, backend=backend), knm)


@given(seed=SEEDS, n=st.integers(2, 24), settings=UNBANDED)
def test_isolated_rows_change_nobody(backend, seed, n, settings):
    rng, knm, theta = problem(seed, n)
    isolated = rng.random(n) < 0.4
    knm[isolated] = 0.0
    knm[:, isolated] = 0.0
    result = spo_fast.modulate(knm, theta, **settings, backend=backend)
    assert not result[isolated].any()
    rest = np.flatnonzero(~isolated)
    alone = spo_fast.modulate(knm[np.ix_(rest, rest)], theta[rest], **settings, backend=backend)
    assert np.max(np.abs(result[np.ix_(rest, rest)] - alone), initial=0.0) <= 1e-12


@given(seed=SEEDS, n=SIZES, density=DENSITIES, settings=SETTINGS)
def test_modulation_is_linear_in_strength(backend, seed, n, density, settings):
    """K'(lambda) - K is proportional to lambda."""
    _, knm, theta = problem(seed, n, density)
    once = spo_fast.modulate(knm, theta, **settings, backend=backend) - knm
    twice = (
        spo_fast.modulate(knm, theta, **settings | {"lambda_": 2 * settings["lambda_"]}, backend=backend)
        - knm
    )
    assert np.max(np.abs(twice - 2.0 * once)) <= 1e-12


@given(seed=SEEDS, n=SIZES, settings=SETTINGS, factor=st.floats(0.1, 10.0))
def test_only_the_pattern_of_the_coupling_steers_attention(backend, seed, n, settings, factor):
    _, knm, theta = problem(seed, n)
    result = spo_fast.modulate(knm, theta, **settings, backend=backend)
    scaled = spo_fast.modulate(factor * knm, theta, **settings, backend=backend)
    assert np.max(np.abs(scaled - factor * result)) <= 1e-12 * factor * (1 + settings["lambda_"])


@given(seed=SEEDS, n=SIZES, density=DENSITIES, settings=SETTINGS)
def test_backends_agree_with_the_reference(backend, seed, n, density, settings):
    _, knm, theta = problem(seed, n, density, low=-1.0)
    result, expected = (
        spo_fast.modulate(knm, theta, **settings, backend=name) for name in (backend, "numpy")
    )
    assert np.max(np.abs(result - expected)) <= 1e-13 * max(1.0, np.max(np.abs(expected)))


# ---------------------------------------------------------------- integrators


@given(seed=SEEDS, n=SIZES, method=st.sampled_from(METHODS))
def test_names_of_oscillators_do_not_matter_to_a_step(backend, seed, n, method):
    rng = np.random.default_rng(seed)
    theta, omega, knm, alpha = network(rng, n)
    order = rng.permutation(n)
    a, b = (spo_fast.Engine(n, 0.05, method, backend=backend) for _ in range(2))
    after = a.step(theta, omega, knm, 0.3, 1.0, alpha)
    mixed = np.ix_(order, order)
    renamed = b.step(theta[order], omega[order], knm[mixed], 0.3, 1.0, alpha[mixed])
    assert circle_gap(renamed, after[order]) <= 1e-13


@given(seed=SEEDS, n=SIZES, method=st.sampled_from(["euler", "rk4"]), shift=st.floats(-6.0, 6.0))
def test_a_common_shift_of_phases_passes_through_a_step(backend, seed, n, method, shift):
    """Without a drive only differences count; rk45 is left out, its error norm looks at the phases."""
    theta, omega, knm, alpha = network(np.random.default_rng(seed), n)
    a, b = (spo_fast.Engine(n, 0.05, method, backend=backend) for _ in range(2))
    after, moved = (a.step(theta, omega, knm, alpha=alpha), b.step(theta + shift, omega, knm, alpha=alpha))
    assert circle_gap(moved, after + shift) <= 1e-13


@given(seed=SEEDS, n=SIZES, method=st.sampled_from(METHODS), shift=st.floats(-6.0, 6.0))
def test_a_drive_breaks_the_shift_unless_it_moves_along(backend, seed, n, method, shift):
    theta, omega, knm, _ = network(np.random.default_rng(seed), n)
    a, b = (spo_fast.Engine(n, 0.01, method, backend=backend) for _ in range(2))
    after = a.step(theta, omega, knm, 0.8, 0.5)
    assert circle_gap(b.step(theta + shift, omega, knm, 0.8, 0.5 + shift), after + shift) <= 1e-12


@given(seed=SEEDS, n=SIZES, method=st.sampled_from(METHODS))
def test_antisymmetric_interaction_keeps_the_mean_velocity(backend, seed, n, method):
    rng = np.random.default_rng(seed)
    theta, omega, knm = (phases(rng, n), rng.normal(0.0, 0.5, n), symmetric(rng, n, low=-1.0) / n)
    lag = np.triu(rng.uniform(-1, 1, (n, n)), 1)
    for alpha in (None, lag - lag.T):
        after = spo_fast.Engine(n, 0.05, method, backend=backend).step(theta, omega, knm, alpha=alpha)
        moved = np.remainder(after - theta + np.pi, 2 * np.pi) - np.pi
        assert abs(moved.sum() - 0.05 * omega.sum()) <= 1e-13 * n


@given(seed=SEEDS, n=SIZES, turns=st.integers(-1000, 1000))
def test_a_common_rotation_frame_passes_through(backend, seed, n, turns):
    """Adding 2 pi m / dt to every frequency adds m full turns to an Euler step."""
    theta, omega, knm, alpha = network(np.random.default_rng(seed), n)
    a, b = (spo_fast.Engine(n, 0.5, "euler", backend=backend) for _ in range(2))
    after = a.step(theta, omega, knm, alpha=alpha)
    assert circle_gap(b.step(theta, omega + 4 * np.pi * turns, knm, alpha=alpha), after) <= 1e-11


# ---------------------------------------------------------------- observables


@given(theta=st.lists(st.floats(-1e6, 1e6), max_size=40))
def test_radius_lies_between_zero_and_one(backend, theta):
    radius, psi = spo_fast.order_parameter(theta, backend=backend)
    assert 0.0 <= radius <= 1.0 and 0.0 <= psi < 2.0 * np.pi


@given(angle=st.floats(-1e6, 1e6), n=st.integers(1, 60))
def test_radius_of_equal_phases_is_one(backend, angle, n):
    assert 1.0 - 4e-16 <= spo_fast.order_parameter(np.full(n, angle), backend=backend)[0] <= 1.0


@given(seed=SEEDS, n=SIZES, shift=st.floats(-6.0, 6.0))
def test_a_common_shift_turns_the_mean_phase(seed, n, shift):
    theta = phases(np.random.default_rng(seed), n)
    (radius, psi), (same, turned) = (spo_fast.order_parameter(theta), spo_fast.order_parameter(theta + shift))
    assert abs(radius - same) <= 1e-14
    assert circle_gap(turned, psi + shift) * radius <= 1e-14
