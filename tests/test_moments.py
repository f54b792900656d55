"""Attention through order parameters: the same K' as pair by pair, wherever it is used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import modulation as oracle
from samples import golden_files, parity_budget, phases, same_bits, symmetric
from two_paths import (
    BUDGET,
    HARD_STATES,
    WEIGHTS,
    TwoPaths,
    attempt,
    edges_missing,
    full,
    growth_of_roundings,
    nearly_even,
    own_term_alone,
)

import spo_fast

core = pytest.importorskip("spo_fast._core", reason="the C core is not built")

paths = TwoPaths("cython")
modulators, worst, redone = paths.modulators, paths.worst, paths.redone


# ---------------------------------------------------------------- stored values


@pytest.mark.parametrize("path", golden_files("modulate"), ids=lambda path: path.stem)
def test_golden(path):
    paths.check_golden(path)


# ---------------------------------------------------------------- sizes, sets, shapes


@pytest.mark.parametrize("n", [*range(1, 71), 127, 130, 1000])
def test_sizes_around_the_edges_of_lanes(n, instruction_set):
    rng = np.random.default_rng(n)
    knm, theta = symmetric(rng, n, low=-1.0), phases(rng, n)
    assert worst(knm, theta, lambda_=0.8) <= BUDGET
    if 10 < n < 200:
        assert redone(knm, theta) == 0


@pytest.mark.parametrize(
    "n_heads, d_model",
    [(1, 2), (2, 2), (1, 4), (2, 4), (4, 4), (2, 6), (4, 8), (8, 8), (1, 8), (2, 16), (5, 10)],
)
def test_widths_of_model_and_heads(rng, n_heads, d_model, instruction_set):
    weights = spo_fast.default_projections(n_heads, 3, d_model)
    knm, theta = symmetric(rng, 45), phases(rng, 45)
    keywords = dict(zip(WEIGHTS, weights, strict=True)) | {"n_heads": n_heads, "temperature": 2.0}
    assert worst(knm, theta, **keywords) <= BUDGET
    moments = modulators(knm, **keywords)[0]
    expected = oracle.modulate(knm, theta, *weights, temperature=2.0)
    assert np.max(np.abs(moments(theta) - expected)) <= parity_budget(expected, theta, d_model)


def test_instruction_sets_agree(rng):
    knm, theta = symmetric(rng, 200, 0.98), phases(rng, 200)
    results, before = [], core.instruction_set()
    for name in core.instruction_sets():
        core.select_instruction_set(name)
        try:
            results.append(modulators(knm)[0](theta))
        finally:
            core.select_instruction_set(before)
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=0, atol=BUDGET * results[0].max())


def test_temperature_per_head(rng):
    knm, theta = symmetric(rng, 60), phases(rng, 60)
    assert worst(knm, theta, temperature=[0.4, 1.0, 3.0, 20.0]) <= BUDGET


@pytest.mark.parametrize("n", [136, 333, 400])
def test_bits_repeat_and_do_not_depend_on_addresses(rng, n, instruction_set):
    knm, theta = symmetric(rng, n), phases(rng, n)
    moments = modulators(knm)[0]
    expected = moments(theta)
    room, angles = np.empty(n * n + 16), np.empty(n + 16)
    for shift in range(9):
        out, moved = room[shift : shift + n * n].reshape(n, n), angles[shift : shift + n]
        moved[:] = theta
        assert same_bits(moments(moved, out=out), expected)
        copy = np.empty(n * n + 16)[shift : shift + n * n].reshape(n, n)
        copy[:] = knm
        assert same_bits(spo_fast.modulate(copy, moved, algorithm="moments", backend="cython"), expected)


@pytest.mark.parametrize("n", [7, 99, 136, 203, 330, 400])
@pytest.mark.parametrize("d_model", [2, 8, 10])
def test_coupling_is_its_unit_outputs_products(rng, n, d_model, instruction_set):
    """Every way to write K', at every size."""
    weights = spo_fast.default_projections(2 if d_model == 8 else 1, 1, d_model)
    keywords = dict(zip(WEIGHTS, weights, strict=True)) | {"n_heads": len(weights[0]), "lambda_": 0.9}
    knm, theta = symmetric(rng, n, low=-1.0), phases(rng, n)
    nearly = knm.copy()
    nearly[n - 1, 1] += 1e-13
    for coupling in (knm, nearly):
        modulator = spo_fast.Modulator(coupling, backend="cython", **keywords)
        factors, result = modulator.factors(theta), modulator(theta)
        mean = (coupling + coupling.T) / 2
        np.testing.assert_allclose(result, mean * (1.45 + 0.45 * factors @ factors.T), rtol=0, atol=1e-14)
        assert np.array_equal(result, result.T) and not result.diagonal().any()


def test_nearly_symmetric_coupling(rng, instruction_set):
    knm, theta = symmetric(rng, 77), phases(rng, 77)
    knm[3, 70] = np.nextafter(knm[70, 3], 2.0)
    assert worst(knm, theta) <= BUDGET


# ---------------------------------------------------------------- states and couplings that are hard


@pytest.mark.parametrize("state", HARD_STATES)
@pytest.mark.parametrize("temperature", [0.25, 1.0, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_hard_states(state, temperature, seed):
    theta = HARD_STATES[state](80)
    error = worst(full(80), theta, temperature=temperature, projection_seed=seed, lambda_=2.0)
    assert error <= BUDGET + np.abs(theta).max() * 8 * 2e-16


@pytest.mark.parametrize("temperature", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-3])
def test_nearly_evenly_spaced_phases(rng, temperature, noise):
    """||O|| is small there, and whatever the path, roundings of the values grow by ||v|| / ||O||."""
    theta = nearly_even(rng, 96, noise)
    growth = growth_of_roundings(theta, temperature)
    assert worst(full(96), theta, temperature=temperature) <= max(BUDGET, 1e-15 * growth)


def test_rows_that_consist_of_their_own_term_are_redone():
    n = 64
    theta, keywords = own_term_alone(n)
    assert worst(full(n), theta, **keywords) <= BUDGET
    assert 0 < redone(full(n), theta, **keywords) <= 8


def test_heads_with_large_weights_are_refused_or_right(rng):
    factors = (1.0, 2.0, 5.0, 20.0, 1e3, 1e100, 1e200)
    paths.check_large_weights(symmetric(rng, 70), phases(rng, 70), factors)


@pytest.mark.parametrize("size", [1e-200, 1e-20, 1e20, 1e200])
def test_values_of_any_size(rng, size):
    knm, theta = symmetric(rng, 50), phases(rng, 50)
    w_q, w_k, w_v, w_o = spo_fast.default_projections()
    keywords = dict(zip(WEIGHTS, (w_q, w_k, size * w_v, w_o / size), strict=True))
    assert worst(knm, theta, **keywords) <= BUDGET


@pytest.mark.parametrize("share", [0.0, 0.0003, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("n", [23, 65, 130])
def test_missing_edges_from_none_to_all(rng, n, share, instruction_set):
    knm = edges_missing(rng, n, round(share * n * (n - 1) / 2))
    theta = phases(rng, n)
    assert worst(knm, theta) <= BUDGET
    expected = modulators(knm)[0](theta)
    assert same_bits(spo_fast.modulate(knm, theta, algorithm="moments", backend="cython"), expected)


def test_rows_with_one_neighbour_or_none(rng):
    pairs = ((3, 9), (40, 41), (69, 0))
    paths.check_lonely_rows(symmetric(rng, 70), phases(rng, 70), pairs)


def test_edges_on_one_side_only_go_pair_by_pair(rng):
    knm, theta = symmetric(rng, 100), phases(rng, 100)
    knm[0, 1], knm[1, 0] = 1e-13, 0.0
    assert spo_fast.Modulator(knm, backend="cython").algorithm == "direct"
    with pytest.raises(ValueError, match="zeros lie symmetrically"):
        spo_fast.modulate(knm, theta, algorithm="moments", backend="cython")


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 90),
    seed=st.integers(0, 10**6),
    spread=st.floats(1e-6, 7.0),
    tau=st.floats(0.2, 50.0),
    lambda_=st.floats(0.01, 5.0),
    density=st.sampled_from([1.0, 1.0, 0.97, 0.6]),
)
def test_moments_equal_direct(n, seed, spread, tau, lambda_, density):
    rng = np.random.default_rng(seed)
    knm = symmetric(rng, n, density)
    theta = rng.uniform(0, 2 * np.pi) + spread * rng.standard_normal(n)
    keywords = {"temperature": tau, "lambda_": lambda_, "projection_seed": seed % 7}
    made, refusal = attempt(lambda: modulators(knm, **keywords))
    if refusal:
        assert "logits' range is too large" in refusal
        assert tau < 0.5
        return
    moments, direct = made
    a, b = moments(theta), direct(theta)
    assert np.max(np.abs(a - b), initial=0.0) <= BUDGET * np.max(b, initial=0.0)
    assert np.array_equal(a, a.T)


# ---------------------------------------------------------------- the series themselves


def test_series_equal_the_exponentials_at_any_two_phases(rng):
    """With two oscillators the softmax has one term, so a third one tells the ratio of two exponentials."""
    weights = spo_fast.default_projections(seed=2)
    for _ in range(20):
        theta = phases(rng, 3)
        assert worst(full(3), theta, **dict(zip(WEIGHTS, weights, strict=True))) <= 1e-14


@pytest.mark.parametrize("seed", range(3))
def test_large_crowds_lose_no_digits(seed):
    paths.check_large_crowds(seed)


@pytest.mark.parametrize("order", [1, 7, 8, 9, 31, 63, 64, 100])
def test_harmonics_do_not_lose_digits(rng, order, instruction_set):
    mpmath = pytest.importorskip("mpmath")
    theta = phases(rng, 5)
    real, imaginary = core.order_moments(theta, 104)
    with mpmath.workdps(40):
        exact = sum(mpmath.expj(order * mpmath.mpf(float(t))) for t in theta)
    assert abs(complex(real[order], imaginary[order]) - complex(exact)) <= 5 * 8 * 2.0**-53


# ---------------------------------------------------------------- choice and cache


def test_the_faster_path_is_chosen(rng):
    for n, expected in ((16, "direct"), (256, "moments")):
        assert spo_fast.Modulator(symmetric(rng, n), backend="cython").algorithm == expected
    assert spo_fast.Modulator(edges_missing(rng, 256, 30), backend="cython").algorithm == "moments"
    assert spo_fast.Modulator(symmetric(rng, 256, 0.5), backend="cython").algorithm == "direct"
    assert spo_fast.Modulator(symmetric(rng, 256), temperature=0.01, backend="cython").algorithm == "direct"
    assert spo_fast.Modulator(symmetric(rng, 256), block_size=5, backend="cython").algorithm == "band"


def test_a_call_takes_the_path_that_a_modulator_takes(rng):
    for n in (20, 150):
        knm, theta = symmetric(rng, n), phases(rng, n)
        modulator = spo_fast.Modulator(knm, backend="cython")
        assert same_bits(modulator(theta), spo_fast.modulate(knm, theta, backend="cython"))
        forced = spo_fast.modulate(knm, theta, algorithm=modulator.algorithm, backend="cython")
        assert same_bits(modulator(theta), forced)


@pytest.mark.parametrize(
    "keywords, reason",
    [
        ({"temperature": 0.02}, "logits' range is too large"),
        ({"block_size": 3}, "needs a block_size that reaches all 12 oscillators, got 3"),
        ({"backend": "numpy"}, "needs backend 'cython'"),
    ],
)
def test_a_path_that_cannot_be_taken_is_refused_with_the_reason(rng, keywords, reason):
    knm, theta = symmetric(rng, 12), phases(rng, 12)
    keywords = {"backend": "cython", "algorithm": "moments"} | keywords
    with pytest.raises(ValueError, match=reason):
        spo_fast.modulate(knm, theta, **keywords)
    with pytest.raises(ValueError, match=reason):
        spo_fast.Modulator(knm, **keywords)


def test_sparse_couplings_keep_their_own_path(rng):
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ValueError, match="'auto' or 'sparse' for a sparse knm"):
        spo_fast.Modulator(sparse.csr_array(symmetric(rng, 9)), algorithm="moments")


def test_series_are_made_once(rng):
    weights = [w * 1.03125 for w in spo_fast.default_projections(seed=77)]
    knm, theta = symmetric(rng, 20), phases(rng, 20)
    before = core.moments_made()
    spo_fast.modulate(knm, theta, *weights, backend="cython")
    spo_fast.Modulator(knm, *weights, backend="cython")
    assert core.moments_made() == before  # no use for so few oscillators
    for lambda_ in (0.1, 0.2):
        for _ in range(2):
            spo_fast.modulate(knm, theta, *weights, lambda_=lambda_, algorithm="moments", backend="cython")
            large = symmetric(rng, 200)
            assert (
                spo_fast.Modulator(large, *weights, lambda_=lambda_, backend="cython").algorithm == "moments"
            )
    assert core.moments_made() == before + 1
    weights[0] = weights[0] * 1.5
    spo_fast.Modulator(knm, *weights, algorithm="moments", backend="cython")
    assert core.moments_made() == before + 2


def test_update_chooses_anew(rng):
    modulator = spo_fast.Modulator(symmetric(rng, 150), backend="cython")
    assert modulator.algorithm == "moments"
    modulator.update(symmetric(rng, 150, 0.3))
    assert modulator.algorithm == "direct"


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("density", [1.0, 0.99])
@pytest.mark.parametrize("method", ["euler", "rk4", "rk45"])
def test_runs_use_what_a_modulator_uses(rng, method, density):
    n = 100
    knm, theta, omega = symmetric(rng, n, density) / 10, phases(rng, n), rng.normal(1.0, 0.2, n)
    keywords = {"dt": 0.01, "n_steps": 5, "method": method, "backend": "cython"}
    automatic = spo_fast.simulate(theta, omega, knm, modulation={}, **keywords)
    moments = spo_fast.simulate(theta, omega, knm, modulation={"algorithm": "moments"}, **keywords)
    direct = spo_fast.simulate(theta, omega, knm, modulation={"algorithm": "direct"}, **keywords)
    assert same_bits(automatic.final, moments.final)
    np.testing.assert_allclose(moments.final, direct.final, rtol=0, atol=1e-12)
    assert not same_bits(moments.final, direct.final)
    modulator = spo_fast.Modulator(knm, algorithm="direct", backend="cython")
    assert same_bits(
        spo_fast.simulate(theta, omega, None, modulation=modulator, **keywords).final, direct.final
    )


def test_a_run_refuses_a_path_that_it_cannot_take(rng):
    knm, theta = symmetric(rng, 12), phases(rng, 12)
    keywords = {"dt": 0.01, "n_steps": 1}
    for modulation, backend in (
        ({"temperature": 0.02}, "cython"),
        ({"block_size": 3}, "cython"),
        ({}, "numpy"),
    ):
        asked = modulation | {"algorithm": "moments"}
        with pytest.raises(ValueError, match="moments"):
            spo_fast.simulate(theta, 1.0, knm, modulation=asked, backend=backend, **keywords)
