"""Stored values of the reference, on every backend, at the tolerances of the parity promise."""

from __future__ import annotations

import numpy as np
import pytest
from samples import (
    circle_gap,
    golden_files,
    load_golden,
    parity_budget,
    step_size_doubt,
)

import spo_fast
from spo_fast.backends import registry
from spo_fast.backends.status import Status
from spo_fast.validation import network

WEIGHTS = ("w_q", "w_k", "w_v", "w_o")


def stem(path):
    return path.stem


def modulation_keywords(meta):
    return {name: meta[name] for name in ("n_heads", "block_size", "temperature", "lambda_")}


def assert_parity(result, arrays, meta, path):
    expected = arrays["expected"]
    assert result.shape == expected.shape
    error = np.max(np.abs(result - expected), initial=0.0)
    assert error <= parity_budget(expected, arrays["theta"], meta["d_model"]), (
        f"{path.name}: off by {error:.3e}"
    )
    if meta["lambda_"] > 0:
        assert np.array_equal(result, result.T), path.name
        assert not result.diagonal().any(), path.name


@pytest.mark.parametrize("path", golden_files("modulate"), ids=stem)
def test_modulate(path, backend):
    arrays, meta = load_golden(path)
    weights = [arrays[name] for name in WEIGHTS]
    keywords = modulation_keywords(meta)
    result = spo_fast.modulate(arrays["knm"], arrays["theta"], *weights, **keywords, backend=backend)
    assert_parity(result, arrays, meta, path)


@pytest.mark.parametrize("path", golden_files("modulate"), ids=stem)
def test_modulator(path, backend):
    arrays, meta = load_golden(path)
    weights = {name: arrays[name] for name in WEIGHTS}
    modulator = spo_fast.Modulator(arrays["knm"], **weights, **modulation_keywords(meta), backend=backend)
    assert_parity(modulator(arrays["theta"]), arrays, meta, path)


@pytest.mark.parametrize(
    "path", [p for p in golden_files("modulate") if load_golden(p)[1]["d_model"] == 8], ids=stem
)
def test_modulate_with_projections_from_the_seed(path, backend):
    arrays, meta = load_golden(path)
    keywords = modulation_keywords(meta) | {"projection_seed": meta["projection_seed"], "backend": backend}
    assert_parity(spo_fast.modulate(arrays["knm"], arrays["theta"], **keywords), arrays, meta, path)


@pytest.mark.parametrize("path", golden_files("modulate"), ids=stem)
def test_default_projections(path):
    arrays, meta = load_golden(path)
    drawn = spo_fast.default_projections(
        n_heads=meta["n_heads"], seed=meta["projection_seed"], d_model=meta["d_model"]
    )
    for name, weight in zip(WEIGHTS, drawn, strict=True):
        assert np.array_equal(weight, arrays[name]), f"{path.name}: {name}"


def step_inputs(path):
    arrays, meta = load_golden(path)
    tolerances = {name: meta[name] for name in ("atol", "rtol") if name in meta}
    drive = {"zeta": meta["zeta"], "psi": meta["psi"], "alpha": arrays["alpha"]}
    return arrays, meta, tolerances, drive


def budgets(meta, arrays):
    """Errors of the state and, relative, of the step size that are allowed along a whole file."""
    doubt = step_size_doubt(meta, arrays).max(initial=0.0)
    return 1e-11 + doubt, 1e-9 + doubt


def engine_for(meta, tolerances, backend):
    return spo_fast.Engine(meta["n"], meta["dt"], meta["method"], **tolerances, backend=backend)


def errors_along(path, backend):
    """Largest errors of the state and, relative, of the step size."""
    arrays, meta, tolerances, drive = step_inputs(path)
    engine = engine_for(meta, tolerances, backend)
    theta, gaps, steps = arrays["trajectory"][0], [], []
    for expected in arrays["trajectory"][1:]:
        theta = engine.step(theta, arrays["omegas"], arrays["knm"], **drive)
        gaps.append(circle_gap(theta, expected))
        steps.append(engine.last_dt)
    return max(gaps), float(np.max(np.abs(np.array(steps) / arrays["dt_after"] - 1.0)))


@pytest.mark.parametrize("path", golden_files("step"), ids=stem)
def test_engine_step(path, backend):
    gap, dt_error = errors_along(path, backend)
    arrays, meta = load_golden(path)
    budget, dt_budget = budgets(meta, arrays)
    assert gap <= budget, f"{path.name}: state off by {gap:.3e}"
    assert dt_error <= dt_budget, f"{path.name}: dt off by {dt_error:.3e}"


@pytest.mark.parametrize("path", golden_files("step"), ids=stem)
def test_each_step_from_the_stored_state_and_step_size(path, backend):
    """The promised 1e-11 holds without allowance where no rejected attempt carries a doubtful size on."""
    arrays, meta, tolerances, drive = step_inputs(path)
    doubts = step_size_doubt(meta, arrays)
    integration = registry.load(backend).Integration(
        meta["n"], meta["method"], meta["dt"], tolerances.get("atol", 1e-6), tolerances.get("rtol", 1e-3)
    )
    integration.set_network(network(meta["n"], arrays["omegas"], arrays["knm"], **drive))
    dt = meta["dt"]
    for step, (expected, dt_after) in enumerate(
        zip(arrays["trajectory"][1:], arrays["dt_after"], strict=True)
    ):
        integration.start(arrays["trajectory"][step])
        integration.dt = dt
        assert integration.advance(1) == Status.OK
        rejected = integration.t != dt
        assert circle_gap(integration.theta, expected) <= 1e-11 + rejected * doubts[step], (
            f"{path.name}, {step}"
        )
        assert integration.dt == pytest.approx(dt_after, rel=1e-9 + doubts[step]), f"{path.name}, {step}"
        dt = float(dt_after)


@pytest.mark.parametrize("path", golden_files("step"), ids=stem)
def test_engine_run(path, backend):
    arrays, meta, tolerances, drive = step_inputs(path)
    engine = engine_for(meta, tolerances, backend)
    final = engine.run(
        arrays["trajectory"][0], arrays["omegas"], arrays["knm"], **drive, n_steps=meta["steps"]
    )
    budget, dt_budget = budgets(meta, arrays)
    assert circle_gap(final, arrays["trajectory"][-1]) <= budget, path.name
    assert engine.last_dt == pytest.approx(arrays["dt_after"][-1], rel=dt_budget), path.name


@pytest.mark.parametrize("path", golden_files("step"), ids=stem)
def test_simulate(path, backend):
    arrays, meta, tolerances, drive = step_inputs(path)
    simulation = spo_fast.simulate(
        arrays["trajectory"][0],
        arrays["omegas"],
        arrays["knm"],
        dt=meta["dt"],
        n_steps=meta["steps"],
        method=meta["method"],
        record_every=1,
        **drive,
        **tolerances,
        backend=backend,
    )
    budget, dt_budget = budgets(meta, arrays)
    assert simulation.theta.shape == arrays["trajectory"].shape
    assert circle_gap(simulation.theta, arrays["trajectory"]) <= budget, path.name
    assert circle_gap(simulation.final, arrays["trajectory"][-1]) <= budget, path.name
    assert simulation.dt == pytest.approx(arrays["dt_after"][-1], rel=dt_budget), path.name


@pytest.mark.parametrize("path", golden_files("observables"), ids=stem)
def test_observables(path):
    arrays, meta = load_golden(path)
    theta, omega, knm = arrays["theta"], arrays["omegas"], arrays["knm"]
    radius, psi = spo_fast.order_parameter(theta)
    assert radius == pytest.approx(meta["R"], rel=0, abs=1e-12)
    assert circle_gap(psi, meta["psi"]) <= 1e-12
    assert spo_fast.plv(theta, arrays["theta2"]) == pytest.approx(meta["plv"], rel=0, abs=1e-12)
    mask = np.isin(np.arange(meta["n"]), arrays["layer"])
    for layer in (arrays["layer"], mask):
        assert spo_fast.layer_coherence(theta, layer) == pytest.approx(meta["layer_R"], rel=0, abs=1e-12)
    entropy = spo_fast.entropy_production_rate(theta, omega, knm, meta["entropy_alpha"], meta["entropy_dt"])
    assert entropy == pytest.approx(meta["entropy"], rel=1e-12, abs=0)


@pytest.mark.parametrize("path", golden_files("observables"), ids=stem)
def test_order_parameter_of_a_backend(path, backend):
    arrays, meta = load_golden(path)
    radius, psi = registry.load(backend).order_parameter(np.stack([arrays["theta"], arrays["theta"]]))
    np.testing.assert_allclose(radius, meta["R"], rtol=0, atol=1e-12)
    assert circle_gap(psi, meta["psi"]) <= 1e-12


@pytest.mark.parametrize("path", golden_files("observables"), ids=stem)
def test_lyapunov_spectrum(path):
    arrays, meta = load_golden(path)
    spectrum = spo_fast.lyapunov_spectrum(
        arrays["theta"],
        arrays["omegas"],
        arrays["knm"],
        arrays["alpha"],
        dt=meta["lyap_dt"],
        n_steps=meta["lyap_steps"],
        qr_interval=meta["lyap_qr_interval"],
        zeta=meta.get("lyap_zeta", 0.0),
        psi=meta.get("lyap_psi", 0.0),
    )
    np.testing.assert_allclose(spectrum, arrays["lyapunov"], rtol=0, atol=1e-10, err_msg=path.name)
