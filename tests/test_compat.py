"""Drop-in names: signatures, defaults, the clock of the engine, and agreement with the public functions."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
from samples import circle_gap, network, phases, same_bits, symmetric

import spo_fast
from spo_fast import compat

SIGNATURES = {
    "attnres_modulate": (
        "knm theta w_q w_k w_v w_o n_heads=4 block_size temperature=1.0 lambda_=0.5 projection_seed=0"
    ),
    "default_projections": "n_heads=4 seed=0 d_model=8",
    "UPDEEngine": "n_oscillators dt method='euler' atol=1e-06 rtol=0.001 omega t0=0.0",
    "compute_order_parameter": "phases",
    "compute_plv": "phases_a phases_b",
    "compute_layer_coherence": "phases layer_mask",
    "entropy_production_rate": "phases omegas knm alpha dt",
    "lyapunov_spectrum": (
        "phases_init omegas knm alpha dt=0.01 n_steps=1000 qr_interval=10 zeta=0.0 psi=0.0"
    ),
}


def spelled(parameter):
    empty = parameter.default in (inspect.Parameter.empty, None)
    return parameter.name if empty else f"{parameter.name}={parameter.default!r}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    parameters = inspect.signature(getattr(compat, name)).parameters.values()
    assert " ".join(map(spelled, parameters)) == SIGNATURES[name]


@pytest.mark.parametrize("method", ["step", "run"])
def test_engine_signature(method):
    parameters = inspect.signature(getattr(compat.UPDEEngine, method)).parameters
    expected = ["self", "phases", "omegas", "knm", "zeta", "psi", "alpha"]
    assert list(parameters) == expected + (["n_steps"] if method == "run" else [])


def test_constants():
    assert compat.PHASE_EMBED_DIM == 8
    assert compat.AVAILABLE_BACKENDS[0] == compat.ACTIVE_BACKEND
    assert compat.AVAILABLE_BACKENDS[-1] == "numpy"
    assert all(spo_fast.backends()[name] == "available" for name in compat.AVAILABLE_BACKENDS)
    with pytest.raises(AttributeError):
        _ = compat.SOMETHING_ELSE


def test_all_names_exist():
    for name in compat.__all__:
        assert getattr(compat, name) is not None


def test_modulation_is_that_of_the_public_function(rng):
    knm, theta = symmetric(rng, 9), phases(rng, 9)
    w_q = compat.default_projections(2, 5)[0]
    keywords = {"n_heads": 2, "block_size": 3, "temperature": 0.4, "lambda_": 1.5, "projection_seed": 3}
    result = compat.attnres_modulate(knm, theta, w_q=w_q, **keywords)
    assert same_bits(result, spo_fast.modulate(knm, theta, w_q, **keywords))
    with pytest.raises(TypeError):
        compat.attnres_modulate(knm, theta, w_q)


@pytest.mark.parametrize("method", ["euler", "rk4", "rk45"])
def test_engine_is_the_public_one(rng, method):
    theta, omega, knm, alpha = network(rng, 6)
    ours, theirs = spo_fast.Engine(6, 0.05, method), compat.UPDEEngine(6, 0.05, method)
    a, b = ours.step(theta, omega, knm, 0.2, 0.3, alpha), theirs.step(theta, omega, knm, 0.2, 0.3, alpha)
    assert same_bits(a, b) and ours.last_dt == theirs.last_dt
    a = ours.run(a, omega, knm, alpha=alpha, n_steps=4)
    b = theirs.run(b, omega, knm, alpha=alpha, n_steps=4)
    assert same_bits(a, b) and ours.last_dt == theirs.last_dt
    assert theirs.time == pytest.approx(0.25)


def test_clock_and_schedule(rng):
    theta, omega, knm, _ = network(rng, 5)
    asked = []

    def schedule(t):
        asked.append(t)
        return omega * t

    engine = compat.UPDEEngine(5, 0.1, omega=schedule, t0=2.0)
    assert np.array_equal(engine.omega_current, omega * 2.0) and engine.time == 2.0
    state = engine.run(theta, knm=knm, n_steps=3)
    assert engine.time == pytest.approx(2.3)
    assert np.array_equal(engine.omega_current, omega * asked[-1])
    expected, plain = theta, spo_fast.Engine(5, 0.1)
    for t in asked[-3:]:
        expected = plain.step(expected, omega * t, knm)
    assert circle_gap(state, expected) <= 1e-13
    np.testing.assert_allclose(asked[-3:], [2.0, 2.1, 2.2])


def test_frequencies_of_a_step_win_over_those_of_the_constructor(rng):
    theta, omega, knm, _ = network(rng, 5)
    engine = compat.UPDEEngine(5, 0.1, omega=omega)
    assert same_bits(engine.step(theta, knm=knm), spo_fast.Engine(5, 0.1).step(theta, omega, knm))
    assert same_bits(
        engine.step(theta, 2.0 * omega, knm), spo_fast.Engine(5, 0.1).step(theta, 2.0 * omega, knm)
    )
    assert np.array_equal(engine.omega_current, 2.0 * omega)
    engine.omega_current[:] = 0.0  # a copy
    assert np.array_equal(engine.omega_current, 2.0 * omega)


def test_missing_arguments_are_named(rng):
    theta, omega, knm, _ = network(rng, 5)
    engine = compat.UPDEEngine(5, 0.1)
    assert np.array_equal(engine.omega_current, np.zeros(5))
    with pytest.raises(ValueError, match="knm"):
        engine.step(theta, omega)
    with pytest.raises(ValueError, match="omegas"):
        engine.step(theta, knm=knm)
    with pytest.raises(ValueError, match="n_oscillators"):
        compat.UPDEEngine(0, 0.1)
    with pytest.raises(ValueError, match=r"omegas.*\(2,\)"):
        compat.UPDEEngine(5, 0.1, omega=omega[:2])
    assert engine.time == 0.0


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize("build", [spo_fast.Engine, compat.UPDEEngine])
def test_engines_survive_copying(rng, build, duplicate):
    theta, omega, knm, _ = network(rng, 5)
    engine = build(5, 0.1, "rk45")
    state = engine.step(theta, omega, knm)
    again = duplicate(engine)
    assert again.last_dt == engine.last_dt
    assert same_bits(again.step(state, omega, knm), engine.step(state, omega, knm))


def test_observables(rng):
    theta, omega, knm, alpha = network(rng, 7)
    other, mask = phases(rng, 7), np.arange(7) < 3
    assert compat.compute_order_parameter(theta) == spo_fast.order_parameter(theta)
    assert compat.UPDEEngine(7, 0.1).compute_order_parameter(theta) == spo_fast.order_parameter(theta)
    assert compat.compute_plv(theta, other) == spo_fast.plv(theta, other)
    assert compat.compute_layer_coherence(theta, mask) == spo_fast.layer_coherence(theta, [0, 1, 2])
    assert compat.compute_layer_coherence(theta, []) == 0.0
    rate = compat.entropy_production_rate(theta, omega, knm, 1.3, 0.1)
    assert rate == spo_fast.entropy_production_rate(theta, omega, knm, 1.3, 0.1)
    spectrum = compat.lyapunov_spectrum(theta, omega, knm, alpha, 0.02, 40, 10, 0.3, 0.1)
    keywords = {"dt": 0.02, "n_steps": 40, "qr_interval": 10, "zeta": 0.3, "psi": 0.1}
    assert same_bits(spectrum, spo_fast.lyapunov_spectrum(theta, omega, knm, alpha, **keywords))


def test_lyapunov_remainder_counts_in_the_time_alone(rng):
    theta, omega, knm, alpha = network(rng, 4)
    whole = compat.lyapunov_spectrum(theta, omega, knm, alpha, n_steps=50)
    np.testing.assert_allclose(
        compat.lyapunov_spectrum(theta, omega, knm, alpha, n_steps=55),
        whole * 50 / 55,
        rtol=1e-13,
        atol=1e-15,
    )
    for n_steps in (0, 9):
        assert not compat.lyapunov_spectrum(theta, omega, knm, alpha, n_steps=n_steps).any()
