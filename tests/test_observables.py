"""Order parameters, synchrony of layers and pairs, entropy production, Lyapunov spectra."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import observables as oracle
from samples import circle_gap, network, phases, same_bits

import spo_fast
from spo_fast.backends import registry

# ---------------------------------------------------------------- order parameter


@pytest.mark.parametrize(
    "theta, radius",
    [
        ([1e-3, 2 * np.pi - 1e-3], np.cos(1e-3)),
        ([0.0, np.pi], 0.0),
        ([0.0, 2 * np.pi / 3, 4 * np.pi / 3], 0.0),
        ([5.0], 1.0),
        ([], 0.0),
        ([1.0, 1.0, 1.0], 1.0),
    ],
)
def test_known_radii(backend, theta, radius):
    result, psi = spo_fast.order_parameter(theta, backend=backend)
    assert result == pytest.approx(radius, rel=0, abs=1e-15)
    assert 0.0 <= result <= 1.0 and 0.0 <= psi < 2 * np.pi


def test_two_neighbours_of_zero_have_the_radius_of_the_field_report():
    assert spo_fast.order_parameter([1e-3, 2 * np.pi - 1e-3])[0] == pytest.approx(0.9999995, abs=1e-13)


@pytest.mark.parametrize("angle", [0.0, 1e-3, 0.5, np.pi, 5.0, 2 * np.pi - 1e-3])
def test_mean_phase_of_equal_phases(backend, angle):
    radius, psi = spo_fast.order_parameter(np.full(7, angle), backend=backend)
    assert 1.0 - 2.3e-16 <= radius <= 1.0
    assert circle_gap(psi, angle) <= 1e-15


@pytest.mark.parametrize("tiny", [-1e-300, -1e-20, -1e-17])
def test_mean_phase_never_reaches_a_full_turn(backend, tiny):
    assert 0.0 <= spo_fast.order_parameter([tiny], backend=backend)[1] < 2 * np.pi


def test_mean_phase_of_nobody_is_zero(backend):
    assert spo_fast.order_parameter(np.zeros(0), backend=backend) == (0.0, 0.0)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 100])
def test_radius_of_equal_phases_stays_within_one(backend, rng, n):
    radius, psi = registry.load(backend).order_parameter(
        np.repeat(phases(rng, 200)[:, None], n, axis=1).copy()
    )
    assert radius.max() <= 1.0 and radius.min() >= 1.0 - 4e-16
    assert psi.min() >= 0.0 and psi.max() < 2 * np.pi


@pytest.mark.parametrize("shape", [(5, 1), (4, 7), (3, 33), (0, 3), (2, 0)])
def test_trajectories_are_reduced_along_the_last_axis(backend, rng, shape):
    theta = rng.uniform(-20, 20, shape)
    truth = np.array([oracle.order_parameter(row) for row in theta]).reshape(shape[0], 2)
    for radius, psi in (spo_fast.order_parameter(theta), registry.load(backend).order_parameter(theta)):
        assert radius.shape == psi.shape == (shape[0],)
        np.testing.assert_allclose(radius, truth[:, 0], rtol=0, atol=1e-13)
        assert circle_gap(psi, truth[:, 1]) <= 1e-12


def test_layouts_do_not_matter(rng):
    theta = rng.uniform(0, 6, (6, 10))
    expected = spo_fast.order_parameter(theta)
    for given in (np.asfortranarray(theta), np.repeat(theta, 2, axis=1)[:, ::2], theta.tolist()):
        for a, b in zip(spo_fast.order_parameter(given), expected, strict=True):
            assert same_bits(a, b)


def test_full_turns_do_not_matter(backend, rng):
    theta = phases(rng, 12)
    expected = spo_fast.order_parameter(theta, backend=backend)[0]
    for turns in (1, 1000, 10**6):
        shifted = theta + 2 * np.pi * turns
        budget = 1e-13 + 2 * np.spacing(shifted.max())
        assert spo_fast.order_parameter(shifted, backend=backend)[0] == pytest.approx(expected, abs=budget)


# ---------------------------------------------------------------- layers and pairs


def test_layers_by_mask_and_by_index(rng):
    theta = phases(rng, 9)
    mask = np.array([1, 0, 0, 1, 1, 0, 0, 0, 1], dtype=bool)
    expected = oracle.layer_coherence(theta, [0, 3, 4, 8])
    for layer in (mask, mask.tolist(), [8, 0, 4, 3], np.array([0, 3, 4, 8], dtype=np.uint8), [-1, 0, 3, 4]):
        if isinstance(layer, list) and -1 in layer:
            continue
        assert spo_fast.layer_coherence(theta, layer) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("layer", [np.zeros(9, dtype=bool), np.zeros(0, dtype=int), []])
def test_an_empty_layer_is_incoherent(rng, layer):
    assert spo_fast.layer_coherence(phases(rng, 9), layer) == 0.0


def test_layer_of_a_trajectory(rng):
    theta = rng.uniform(0, 6, (5, 9))
    result = spo_fast.layer_coherence(theta, [1, 7, 2])
    np.testing.assert_allclose(
        result, [oracle.layer_coherence(row, [1, 7, 2]) for row in theta], rtol=0, atol=1e-14
    )
    assert spo_fast.layer_coherence(theta, []).tolist() == [0.0] * 5


@pytest.mark.parametrize("layer", [[0, 9], [0, 0], [True] * 8, [0.5], [[0]]])
def test_unfit_layers_are_refused(rng, layer):
    with pytest.raises(ValueError, match="layer"):
        spo_fast.layer_coherence(phases(rng, 9), layer)


def test_phase_locking(rng):
    a, b = phases(rng, 50), phases(rng, 50)
    assert spo_fast.plv(a, b) == pytest.approx(oracle.plv(a, b), abs=1e-14)
    assert spo_fast.plv(a, a + 1.0) == pytest.approx(1.0, abs=1e-15)
    assert spo_fast.plv(a, b) == pytest.approx(spo_fast.plv(b, a), abs=1e-15)
    assert 0.0 <= spo_fast.plv(a, a) <= 1.0


def test_phase_locking_over_time(rng):
    a, b = rng.uniform(0, 6, (20, 4)), rng.uniform(0, 6, (20, 4))
    expected = [oracle.plv(a[:, i], b[:, i]) for i in range(4)]
    np.testing.assert_allclose(spo_fast.plv(a, b), expected, rtol=0, atol=1e-14)


def test_phase_locking_refuses_unequal_lengths(rng):
    with pytest.raises(ValueError, match=r"\(3,\)"):
        spo_fast.plv(phases(rng, 3), phases(rng, 1))


# ---------------------------------------------------------------- entropy


def test_entropy_production(rng):
    theta, omega, knm, _ = network(rng, 8)
    for strength, dt in [(0.0, 0.1), (1.3, 0.01), (-2.0, 1.0)]:
        expected = oracle.entropy_production_rate(theta, omega, knm, strength, dt)
        assert spo_fast.entropy_production_rate(theta, omega, knm, strength, dt) == pytest.approx(
            expected, rel=1e-12
        )
        transposed = spo_fast.entropy_production_rate(theta, omega, knm.T, strength, dt)
        assert strength == 0.0 or transposed != pytest.approx(expected, rel=1e-6)


def test_entropy_of_a_trajectory(rng):
    _, omega, knm, _ = network(rng, 5)
    theta = rng.uniform(0, 6, (4, 5))
    expected = [oracle.entropy_production_rate(row, omega, knm, 0.7, 0.1) for row in theta]
    np.testing.assert_allclose(
        spo_fast.entropy_production_rate(theta, omega, knm, 0.7, 0.1), expected, rtol=1e-12
    )


def test_entropy_of_large_phases(rng):
    theta, omega, knm, _ = network(rng, 5)
    shifted = theta + 2 * np.pi * 10**6
    a, b = (spo_fast.entropy_production_rate(x, omega, knm, 1.0, 0.1) for x in (theta, shifted))
    assert a == pytest.approx(b, rel=1e-7)


def test_entropy_of_nobody_is_zero():
    assert spo_fast.entropy_production_rate([], [], np.zeros((0, 0)), 1.0, 0.1) == 0.0


# ---------------------------------------------------------------- Lyapunov


@pytest.mark.parametrize("alpha", [None, 0.4, "matrix"])
@pytest.mark.parametrize("zeta, psi", [(0.0, 0.0), (0.6, 2.0)])
def test_lyapunov_spectrum_of_an_asymmetric_network(rng, alpha, zeta, psi):
    theta, omega, knm, lag = network(rng, 5)
    keywords = {"dt": 0.02, "n_steps": 60, "qr_interval": 7, "zeta": zeta, "psi": psi}
    alpha = lag if alpha == "matrix" else alpha
    result = spo_fast.lyapunov_spectrum(theta, omega, knm, alpha, **keywords)
    expected = oracle.lyapunov_spectrum(theta, omega, knm, alpha, **keywords)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-10)
    transposed = spo_fast.lyapunov_spectrum(theta, omega, knm.T, alpha, **keywords)
    assert np.max(np.abs(transposed - result)) > 1e-4


@pytest.mark.parametrize("k", [1, 2, 4, 5, None])
@pytest.mark.parametrize("zeta", [0.0, 0.5])
def test_leading_exponents_only(rng, k, zeta):
    theta, omega, knm, alpha = network(rng, 5)
    keywords = {"dt": 0.02, "n_steps": 50, "qr_interval": 10, "zeta": zeta, "psi": 1.0}
    result = spo_fast.lyapunov_spectrum(theta, omega, knm, alpha, k=k, **keywords)
    expected = oracle.lyapunov_spectrum(theta, omega, knm, alpha, k=k, **keywords)
    assert result.shape == (5 if k is None else k,)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("qr_interval", [1, 3, 50, 1000])
def test_interval_of_the_factorisation_does_not_matter(rng, qr_interval):
    theta, omega, knm, _ = network(rng, 4)
    keywords = {"dt": 0.02, "n_steps": 50}
    expected = oracle.lyapunov_spectrum(theta, omega, knm, qr_interval=10, **keywords)
    result = spo_fast.lyapunov_spectrum(theta, omega, knm, qr_interval=qr_interval, **keywords)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "keywords", [{"k": 0}, {"k": 5}, {"n_steps": -1}, {"qr_interval": 0}, {"dt": 0.0}, {"k": True}]
)
def test_unfit_settings_are_refused_by_name(rng, keywords):
    theta, omega, knm, _ = network(rng, 4)
    with pytest.raises(ValueError, match=next(iter(keywords))):
        spo_fast.lyapunov_spectrum(theta, omega, knm, **keywords)


def test_sum_of_exponents_is_the_mean_divergence():
    """Two oscillators in step: the trace of the Jacobian is -2 K cos(theta_1 - theta_0)."""
    knm = np.array([[0.0, 0.5], [0.5, 0.0]])
    spectrum = spo_fast.lyapunov_spectrum([0.3, 0.3], 1.0, knm, dt=0.01, n_steps=500)
    np.testing.assert_allclose(spectrum, [0.0, -1.0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["theta", "omega", "knm"])
def test_non_finite_input_is_refused_by_name(rng, name):
    inputs = dict(zip(("theta", "omega", "knm"), network(rng, 4)[:3], strict=True))
    inputs[name].flat[-2] = np.nan
    with pytest.raises(ValueError, match=name):
        spo_fast.lyapunov_spectrum(**inputs, n_steps=5)
    with pytest.raises(ValueError, match=name):
        spo_fast.entropy_production_rate(**inputs, alpha=1.0, dt=0.1)


def test_non_finite_phases_have_no_order(rng):
    for function in (
        spo_fast.order_parameter,
        lambda x: spo_fast.plv(x, x),
        lambda x: spo_fast.layer_coherence(x, [0]),
    ):
        with pytest.raises(ValueError, match=r"theta|\ba\b"):
            function(np.array([np.nan, 1.0]))
