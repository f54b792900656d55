"""Modulated steps without K', and symmetric K read once: every walk over the coupling gives the same sums."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from samples import METHODS, circle_gap, phases, same_bits, symmetric

import spo_fast
from spo_fast.backends.status import Status
from spo_fast.runs import right_hand_side

core = pytest.importorskip("spo_fast._core", reason="the C core is not built")

SIZES = [*range(41), 100, 513]
LAGS = ["none", "uniform", "matrix"]
OTHER_WIDTHS = [(2, 1), (6, 3), (12, 2), (16, 4)]


@pytest.fixture(autouse=True)
def free_choice():
    """Whatever a test prefers ends with it."""
    yield
    core.prefer_walk("auto")


def lag_of(rng, n, kind):
    return {"none": None, "uniform": 0.7, "matrix": rng.uniform(-1.0, 1.0, (n, n))}[kind]


def integration(walk, theta, omega, knm, *, method="euler", dt=1.0, alpha=None, modulation=None, every=1):
    """An integration whose coupling is walked in the way asked for, where that is possible."""
    core.prefer_walk(walk)
    net = right_hand_side(len(theta), omega, knm, alpha, 0.3, 1.1, modulation, every)
    run = core.Integration(len(theta), method, dt, 1e-6, 1e-3)
    run.set_network(net)
    run.start(theta)
    return run


def final(walk, theta, omega, knm, *, n_steps=1, pieces=None, taken=None, **keywords):
    run = integration(walk, theta, omega, knm, **keywords)
    assert run.walk == (walk if taken is None else taken)
    for count in pieces or (n_steps,):
        assert run.advance(count) == Status.OK
    return run.theta.copy()


def budget(knm, lambda_=0.5):
    """What the sums may differ by: 1e-13 of the largest one there could be."""
    return 1e-13 * max(1.0, (1.0 + lambda_) * np.abs(knm).sum(axis=1).max(initial=0.0))


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("walk", ["fused", "kept"])
@pytest.mark.parametrize("n", SIZES)
def test_one_evaluation(rng, n, walk, lag):
    """A step of Euler of length 1 is theta + f: the sums themselves, modulo 2 pi."""
    theta, omega, knm = phases(rng, n), rng.normal(0.0, 1.0, n), symmetric(rng, n, 0.8, -0.5, 1.0)
    keywords = {"alpha": lag_of(rng, n, lag), "modulation": {"lambda_": 0.8}}
    expected = final("whole", theta, omega, knm, **keywords)
    assert circle_gap(final(walk, theta, omega, knm, **keywords), expected) <= budget(knm)


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("walk", ["fused", "kept"])
@pytest.mark.parametrize("n", [3, 16, 21, 40, 100])
def test_later_evaluations_with_one_modulated_coupling(rng, n, walk, lag):
    theta, omega, knm = phases(rng, n), rng.normal(0.0, 1.0, n), symmetric(rng, n)
    keywords = {"alpha": lag_of(rng, n, lag), "modulation": {}, "method": "rk4", "dt": 1.0 / n}
    expected = final("whole", theta, omega, knm, **keywords)
    assert circle_gap(final(walk, theta, omega, knm, **keywords), expected) <= budget(knm)


@pytest.mark.parametrize("d_model, n_heads", OTHER_WIDTHS)
@pytest.mark.parametrize("walk", ["fused", "kept"])
@pytest.mark.parametrize("lag", LAGS)
def test_other_widths(rng, walk, d_model, n_heads, lag):
    n = 37
    theta, knm = phases(rng, n), symmetric(rng, n)
    weights = dict(
        zip(("w_q", "w_k", "w_v", "w_o"), spo_fast.default_projections(n_heads, 3, d_model), strict=True)
    )
    keywords = {"alpha": lag_of(rng, n, lag), "modulation": {"n_heads": n_heads, **weights}, "method": "rk4"}
    keywords["dt"] = 0.02
    expected = final("whole", theta, 1.0, knm, **keywords)
    assert circle_gap(final(walk, theta, 1.0, knm, **keywords), expected) <= budget(knm)


@pytest.mark.parametrize("algorithm", ["direct", "moments"])
@pytest.mark.parametrize("walk", ["fused", "kept"])
def test_either_attention(rng, walk, algorithm):
    n = 90
    theta, knm = phases(rng, n), symmetric(rng, n, 0.9)
    keywords = {"modulation": {"algorithm": algorithm}, "n_steps": 3, "method": "rk4", "dt": 0.01}
    expected = final("whole", theta, 1.0, knm, **keywords)
    assert circle_gap(final(walk, theta, 1.0, knm, **keywords), expected) <= budget(knm)


@pytest.mark.parametrize("lag", ["none", "uniform"])
@pytest.mark.parametrize("n", SIZES)
def test_symmetric_coupling_read_once(rng, n, lag):
    theta, omega, knm = phases(rng, n), rng.normal(0.0, 1.0, n), symmetric(rng, n, 0.7, -0.5, 1.0)
    alpha = lag_of(rng, n, lag)
    expected = final("whole", theta, omega, knm, alpha=alpha)
    assert circle_gap(final("kept", theta, omega, knm, alpha=alpha), expected) <= budget(knm)


# ---------------------------------------------------------------- pieces and bits


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("walk", ["fused", "kept"])
def test_pieces_end_in_the_same_bits_and_near_the_whole_matrix(rng, walk, method, every):
    n = 19
    theta, omega, knm = phases(rng, n), rng.normal(1.0, 0.4, n), symmetric(rng, n)
    for lag in LAGS:
        keywords = {"method": method, "dt": 0.02, "every": every, "modulation": {}}
        keywords["alpha"] = lag_of(rng, n, lag)
        run = final(walk, theta, omega, knm, n_steps=11, **keywords)
        for pieces in [(1,) * 11, (4, 0, 7), (2, 3, 6)]:
            assert same_bits(final(walk, theta, omega, knm, pieces=pieces, **keywords), run)
        expected = final("whole", theta, omega, knm, n_steps=11, **keywords)
        assert circle_gap(run, expected) <= 1e-11


@pytest.mark.parametrize("walk", ["fused", "kept"])
def test_a_second_start_and_a_second_network_forget_the_first(rng, walk):
    n = 11
    theta, omega, knm = phases(rng, n), rng.normal(1.0, 0.4, n), symmetric(rng, n)
    keywords = {"method": "rk45", "dt": 0.05, "every": 3, "modulation": {}}
    fresh = final(walk, theta, omega, knm, n_steps=5, **keywords)
    run = integration(walk, phases(rng, n), omega, knm, **keywords)
    run.advance(4)
    run.start(theta)
    run.advance(5)
    assert same_bits(run.theta, fresh)
    run.set_network(right_hand_side(n, omega, 2.0 * knm, None, 0.3, 1.1, {}, 3))
    run.advance(1)  # no step that modulates, and what was kept belongs to the first network
    assert np.isfinite(run.theta).all()
    run.set_network(right_hand_side(n, omega, knm, None, 0.3, 1.1, {}, 3))
    run.start(theta)
    run.advance(5)
    assert same_bits(run.theta, fresh)


@pytest.mark.parametrize("walk", ["fused", "kept"])
@pytest.mark.parametrize("modulation", [None, {}])
def test_bits_do_not_depend_on_addresses(rng, walk, modulation):
    n = 45
    theta, knm = phases(rng, n), symmetric(rng, n)
    taken = "whole" if modulation is None and walk == "fused" else walk
    keywords = {"modulation": modulation, "method": "rk4", "dt": 0.01, "n_steps": 3, "taken": taken}
    expected = final(walk, theta, 1.0, knm, **keywords)
    for shift in range(1, 8):
        room = np.empty(n * n + shift)
        moved = room[shift:].reshape(n, n)
        moved[:] = knm
        assert same_bits(final(walk, theta, 1.0, moved, **keywords), expected)


# ---------------------------------------------------------------- which walk


@pytest.mark.parametrize(
    "n, once, twice, four, often",
    [(40, "fused", "whole", "whole", "whole"), (70, "fused", "kept", "kept", "kept")],
)
def test_the_choice(rng, n, once, twice, four, often):
    """By how many evaluations of the drift one modulated coupling serves."""
    theta, knm = phases(rng, n), symmetric(rng, n)

    def choice(modulation=None, **keywords):
        return integration("auto", theta, 1.0, knm, modulation=modulation or {}, **keywords).walk

    for alpha in (None, 0.4):
        assert choice(alpha=alpha) == once
        assert choice(alpha=alpha, every=2) == twice
        assert choice(alpha=alpha, method="rk4") == four
        assert choice(alpha=alpha, method="rk45") == choice(alpha=alpha, method="rk4", every=3) == often
    assert choice(modulation={"block_size": n - 1}) == choice(modulation={"block_size": None}) == once
    assert choice(modulation={"block_size": n - 2}) == choice(modulation={"lambda_": 0.0}) == "whole"
    assert integration("auto", theta, 1.0, knm).walk == "whole"


@pytest.mark.parametrize("n, four", [(40, "kept"), (410, "fused")])
def test_the_choice_with_a_lag_a_pair(rng, n, four):
    theta, knm, alpha = phases(rng, n), symmetric(rng, n), rng.uniform(-1.0, 1.0, (n, n))

    def choice(**keywords):
        return integration("auto", theta, 1.0, knm, modulation={}, alpha=alpha, **keywords).walk

    assert choice() == "fused"
    assert choice(method="rk4") == four
    assert choice(method="rk4", every=2) == "kept"


def almost(knm, index, value):
    knm = knm.copy()
    knm[index] += value
    return knm


@pytest.mark.parametrize("index", [(3, 3), (2, 7)])
@pytest.mark.parametrize("walk", ["fused", "kept"])
@pytest.mark.parametrize("lag", LAGS)
def test_a_coupling_within_the_tolerances_is_modulated_whole(rng, index, walk, lag):
    n = 9
    theta, knm = phases(rng, n), almost(symmetric(rng, n), index, 5e-13)
    keywords = {"modulation": {}, "alpha": lag_of(rng, n, lag), "n_steps": 3, "dt": 0.1}
    assert same_bits(
        final(walk, theta, 1.0, knm, taken="whole", **keywords), final("whole", theta, 1.0, knm, **keywords)
    )


def test_large_symmetric_coupling_is_read_once_by_simulate_alone(rng):
    n = 400
    theta, knm = phases(rng, n), symmetric(rng, n) / n
    assert integration("auto", theta, 1.0, knm).walk == "kept"
    assert integration("auto", theta, 1.0, knm, alpha=0.5).walk == "kept"
    for other in (almost(knm, (399, 2), 1e-9), almost(knm, (5, 5), 1e-9), knm + np.triu(knm)):
        assert integration("auto", theta, 1.0, other).walk == "whole"
    engine = spo_fast.Engine(n, 0.1, "rk4", backend="cython")
    run = spo_fast.simulate(theta, 1.0, knm, dt=0.1, n_steps=2, backend="cython")
    assert circle_gap(engine.run(theta, 1.0, knm, n_steps=2), run.final) <= 1e-12


def test_simulate_equals_the_python_loop_of_a_large_network(rng):
    n = 513
    theta, omega, knm = phases(rng, n), rng.normal(1.0, 0.3, n), symmetric(rng, n) * (4.0 / n)
    for method in ("euler", "rk4"):
        engine, state = spo_fast.Engine(n, 0.05, method, backend="cython"), theta
        for _ in range(3):
            state = engine.step(state, omega, spo_fast.modulate(knm, state, backend="cython"))
        run = spo_fast.simulate(
            theta, omega, knm, dt=0.05, n_steps=3, method=method, modulation={}, backend="cython"
        )
        assert circle_gap(run.final, state) <= 3e-12


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("walk", ["whole", "fused", "kept"])
@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_a_state_that_turns_non_finite(rng, walk, lag, method):
    """K' stays finite; two terms of one oscillator exceed the largest double in the first step."""
    n = 3
    knm = np.zeros((n, n))
    knm[0, 1] = knm[1, 0] = knm[0, 2] = knm[2, 0] = 1.1e308
    theta = np.array([0.0, 1.6, 1.6])
    run = integration(
        walk, theta, 1e300, knm, method=method, modulation={}, alpha={"matrix": np.zeros((n, n))}.get(lag)
    )
    assert run.advance(5) == Status.NONFINITE_STATE
    assert run.step == 0 and same_bits(run.theta, theta)


# ---------------------------------------------------------------- edges


@pytest.mark.parametrize("walk", ["fused", "kept", "auto"])
def test_edges_are_walked_whole(rng, walk):
    n = 40
    theta, dense = phases(rng, n), symmetric(rng, n, 0.6)
    lags = sp.csr_array(0.5 * (dense != 0))
    for keywords in ({}, {"modulation": {}}, {"modulation": {}, "alpha": lags}):
        assert integration(walk, theta, 1.0, sp.csr_array(dense), **keywords).walk == "whole"


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("temperature", [1.0, 1e-3])
def test_attention_over_edges_by_heads_and_range_of_logits(rng, n_heads, temperature):
    """At a low temperature the bound of the logits is no substitute for the largest of them."""
    n = 60
    theta, dense = phases(rng, n), symmetric(rng, n, 0.3)
    dense[5] = dense[:, 5] = 0.0
    keywords = {"n_heads": n_heads, "temperature": temperature, "backend": "cython"}
    expected = spo_fast.Modulator(dense, **keywords, algorithm="direct").factors(theta)
    result = spo_fast.Modulator(sp.csr_array(dense), **keywords).factors(theta)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-13 / min(1.0, temperature))
    assert not result[5].any()
