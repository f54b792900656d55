"""Five criteria for what modulation may do to the dynamics, each with a set-up in which it could fail.

Networks are random, with seeds 0, 1, ...; N = 16, Euler steps of 0.01. Near onset the mean coupling is 1.2/N
to 2/N, where synchrony is partial and a change of the coupling shows. The fifth, what modulation costs, is
reported by ``spo-fast bench`` and asserted nowhere.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spo_fast import Engine, datasets, lyapunov_spectrum, modulate, physics, simulate

SEEDS = range(40)
FEW = range(12)
NEAR_ONSET = (1.2, 1.5, 2.0)
STRENGTHS = (0.1, 0.25, 0.5, 1.0)


def drifts(setup, strengths, seeds=SEEDS):
    plain = physics.mean_orders(setup, None, seeds)
    return [
        physics.drift(plain, physics.mean_orders(setup, {"lambda_": value}, seeds)) for value in strengths
    ]


# ---------------------------------------------------------------- 1: drift of R


def test_r_drifts_by_less_than_5_percent_far_above_onset():
    (found,) = drifts(physics.STRONG, [0.1])
    assert found.plain > 0.98
    assert max(abs(found.smallest), abs(found.largest)) < physics.DRIFT_LIMIT


def test_the_limit_of_5_percent_is_crossed_near_onset():
    """So the measure sees a drift where there is one."""
    (found,) = drifts(replace(physics.STRONG, coupling=1.2), [1.0])
    assert found.mean > physics.DRIFT_LIMIT


@pytest.mark.parametrize("coupling", [*NEAR_ONSET, physics.STRONG.coupling])
def test_r_rises_with_lambda(coupling):
    found = [drift.mean for drift in drifts(replace(physics.STRONG, coupling=coupling), STRENGTHS)]
    assert found[0] > 0.0
    assert found == sorted(found)


def test_every_settled_network_near_onset_gains_from_modulation():
    setup = replace(physics.SETTLED, coupling=2.0)
    for found in drifts(setup, [0.1, 1.0], FEW):
        assert found.smallest > 0.0


# ---------------------------------------------------------------- 2: symmetry, and an untouched integrator


@pytest.mark.parametrize("block_size", [None, 4, 1])
def test_modulated_coupling_is_symmetric(block_size, backend):
    for seed in FEW:
        assert physics.asymmetry(seed, block_size=block_size, lambda_=1.0, backend=backend) <= 1e-12


@pytest.mark.parametrize("method", ["euler", "rk4", "rk45"])
def test_lambda_0_leaves_every_bit_of_a_run(method, backend):
    theta, omega, knm = physics.problem(physics.ONSET, 0)
    plain, modulated = (
        simulate(
            theta,
            omega,
            knm,
            dt=physics.DT,
            n_steps=200,
            method=method,
            modulation=modulation,
            record_every=20,
            observe=("R", "psi"),
            backend=backend,
        )
        for modulation in (None, {"lambda_": 0.0})
    )
    for name in ("t", "theta", "t_observe", "R", "psi", "final"):
        assert getattr(plain, name).tobytes() == getattr(modulated, name).tobytes(), name
    assert plain.dt == modulated.dt


def test_a_small_lambda_does_not_leave_every_bit():
    theta, omega, knm = physics.problem(physics.ONSET, 0)
    ends = [
        simulate(theta, omega, knm, dt=physics.DT, n_steps=200, modulation={"lambda_": value}).final
        for value in (0.0, 1e-6)
    ]
    assert not np.array_equal(*ends)


def test_a_modulated_run_is_the_loop_of_modulate_and_step(backend):
    theta, omega, knm = physics.problem(physics.ONSET, 1)
    engine, phases = Engine(len(theta), physics.DT, "euler", backend=backend), theta
    for _ in range(100):
        phases = engine.step(phases, omega, modulate(knm, phases, backend=backend))
    run = simulate(
        theta, omega, knm, dt=physics.DT, n_steps=100, method="euler", modulation={}, backend=backend
    )
    apart = np.remainder(run.final - phases + np.pi, 2.0 * np.pi) - np.pi
    assert np.abs(apart).max() < 1e-10  # 1e-12 a step


# ---------------------------------------------------------------- 3: anchors and zeros


def test_the_anchors_stand_in_the_matrix():
    assert tuple(np.diagonal(datasets.scpn16(), 1)[:4]) == physics.ANCHORS


@pytest.mark.parametrize("lambda_", [0.1, 0.5, 1.0])
def test_anchors_stay_between_k_and_its_largest_gain(lambda_, backend):
    factors = np.array([physics.anchor_factors(seed, lambda_=lambda_, backend=backend) for seed in FEW])
    assert factors.min() >= 1.0 - 1e-13
    assert factors.max() <= (1.0 + lambda_) * (1.0 + 1e-13)
    assert np.ptp(factors) > 0.1 * lambda_  # the phases do change them


def test_anchors_stay_in_their_range_along_a_run():
    knm = datasets.scpn16()
    theta, omega = datasets.initial_phases(16, seed=1), datasets.natural_frequencies(16)
    run = simulate(theta, omega, knm, dt=0.01, n_steps=2000, modulation={"lambda_": 0.5}, record_every=50)
    for state in run.theta:
        factors = np.diagonal(modulate(knm, state, lambda_=0.5), 1)[:4] / physics.ANCHORS
        assert (factors >= 1.0 - 1e-13).all()
        assert (factors <= 1.5 * (1.0 + 1e-13)).all()


def test_zeros_stay_zero(backend):
    knm = datasets.scpn16()
    knm[knm < np.median(knm)] = 0.0
    assert (knm == 0.0).mean() > 0.4
    for seed in FEW:
        changed = modulate(knm, datasets.initial_phases(16, seed=seed), lambda_=1.0, backend=backend)
        np.testing.assert_array_equal(changed == 0.0, knm == 0.0)


# ---------------------------------------------------------------- 4: stability


@pytest.mark.parametrize("seed", SEEDS)
def test_small_perturbations_do_not_grow(seed):
    slope = physics.growth_slope(physics.STABILITY, seed, physics.STABILITY_MODULATION)
    assert slope <= physics.SLOPE_LIMIT


def test_perturbations_grow_where_the_dynamics_part_them():
    """So the measures see growth: of repelling oscillators, and near onset."""
    setup = replace(physics.STABILITY, coupling=-5.0, spread=0.0, warm_up=0, measured=100)
    theta, omega, knm = physics.problem(setup, 0)
    assert lyapunov_spectrum(theta, omega, knm, n_steps=100, k=1)[0] > physics.EXPONENT_LIMIT
    slopes = [
        physics.growth_slope(
            replace(physics.STABILITY, coupling=1.2, spread=0.5), seed, physics.STABILITY_MODULATION
        )
        for seed in SEEDS
    ]
    assert max(slopes) > physics.SLOPE_LIMIT


def test_the_growth_of_a_pair_is_its_closed_form():
    """Two equal oscillators at rest: the difference decays at 2 K, and nothing else moves."""
    theta, knm = np.array([1.0, 1.0 + 1e-8]), np.array([[0.0, 0.5], [0.5, 0.0]])
    run = simulate(theta, 0.0, knm, dt=0.001, n_steps=1000, record_every=1000, observe=())
    apart = run.theta[:, 1] - run.theta[:, 0]
    assert np.log(apart[-1] / apart[0]) == pytest.approx(-1.0, abs=1e-6)


@pytest.mark.parametrize("seed", FEW)
def test_frozen_modulation_raises_the_leading_exponent_by_little(seed):
    plain, frozen = physics.leading_exponents(physics.SMALL, seed, physics.STABILITY_MODULATION)
    assert frozen <= physics.EXPONENT_LIMIT
    assert frozen <= plain + physics.EXPONENT_LIMIT


def test_the_exponents_of_networks_near_onset_exceed_the_limit():
    """So the measure sees the initial spreading that strong coupling prevents."""
    setup = replace(physics.SMALL, coupling=1.5, spread=0.5)
    found = [physics.leading_exponents(setup, seed, physics.STABILITY_MODULATION) for seed in FEW]
    assert np.max(found) > physics.EXPONENT_LIMIT


@pytest.mark.parametrize("seed", range(3))
def test_exponents_near_onset_settle_within_the_limit(seed):
    setup = replace(physics.SMALL, coupling=1.5, spread=0.5, measured=5000)
    plain, frozen = physics.leading_exponents(setup, seed, physics.STABILITY_MODULATION)
    assert frozen <= physics.EXPONENT_LIMIT
    assert frozen <= plain + physics.EXPONENT_LIMIT


@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize("setup", [physics.STABILITY, physics.ONSET], ids=lambda setup: setup.name)
def test_r_stays_in_its_range_and_settles(setup, seed):
    smallest, largest, tail = physics.order_range(setup, seed, physics.STABILITY_MODULATION)
    assert 0.0 <= smallest <= largest <= 1.0
    assert tail < physics.TAIL_LIMIT


def test_the_tail_of_an_uncoupled_network_is_wider_than_the_limit():
    setup = replace(physics.STABILITY, coupling=0.0, spread=2.0)
    assert max(physics.order_range(setup, seed, None)[2] for seed in FEW) > physics.TAIL_LIMIT
