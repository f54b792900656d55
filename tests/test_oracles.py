"""The oracles against stored values of the reference: the test of the test."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from oracles import kuramoto, modulation, observables
from samples import (
    circle_gap,
    golden_files,
    load_golden,
    parity_budget,
    step_size_doubt,
)

ORACLES = sorted((Path(__file__).parent / "oracles").glob("*.py"))


def names(path):
    return path.stem


@pytest.mark.parametrize("path", ORACLES, ids=names)
def test_imports_nothing_from_the_package(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not any("spo_fast" in alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert "spo_fast" not in (node.module or "")


@pytest.mark.parametrize("path", golden_files("modulate"), ids=names)
def test_modulation(path):
    arrays, meta = load_golden(path)
    weights = [arrays[name] for name in ("w_q", "w_k", "w_v", "w_o")]
    rows = None if meta["n"] <= 40 else list(range(0, meta["n"], max(1, meta["n"] // 12)))
    keywords = {name: meta[name] for name in ("block_size", "temperature", "lambda_")}
    result = modulation.modulate(arrays["knm"], arrays["theta"], *weights, rows=rows, **keywords)
    expected = arrays["expected"] if rows is None else arrays["expected"][np.ix_(rows, rows)]
    assert result.shape == expected.shape
    budget = parity_budget(arrays["expected"], arrays["theta"], meta["d_model"])
    assert np.max(np.abs(result - expected), initial=0.0) <= budget, path.name


@pytest.mark.parametrize("path", golden_files("modulate"), ids=names)
def test_default_projections(path):
    arrays, meta = load_golden(path)
    drawn = modulation.default_projections(meta["n_heads"], meta["projection_seed"], meta["d_model"])
    for name, weight in zip(("w_q", "w_k", "w_v", "w_o"), drawn, strict=True):
        assert np.array_equal(weight, arrays[name]), name


@pytest.mark.parametrize("path", golden_files("step"), ids=names)
def test_steps(path):
    """Every step on its own, from the stored state and step size."""
    arrays, meta = load_golden(path)
    tolerances = {name: meta[name] for name in ("atol", "rtol") if name in meta}
    run = kuramoto.Run(
        arrays["trajectory"][0],
        arrays["omegas"],
        arrays["knm"],
        dt=meta["dt"],
        method=meta["method"],
        zeta=meta["zeta"],
        psi=meta["psi"],
        alpha=arrays["alpha"],
        **tolerances,
    )
    for start, expected, dt_after, doubt in zip(
        arrays["trajectory"][:-1],
        arrays["trajectory"][1:],
        arrays["dt_after"],
        step_size_doubt(meta, arrays),
        strict=True,
    ):
        run.theta = [float(angle) for angle in start]
        assert circle_gap(run.step(), expected) <= 1e-11 + doubt, path.name
        assert run.dt == pytest.approx(dt_after, rel=1e-9 + doubt), path.name
        run.dt = float(dt_after)


@pytest.mark.parametrize("path", golden_files("observables"), ids=names)
def test_observables(path):
    arrays, meta = load_golden(path)
    theta, omega, knm = arrays["theta"], arrays["omegas"], arrays["knm"]
    assert observables.order_parameter(theta)[0] == pytest.approx(meta["R"], abs=1e-12)
    assert circle_gap(observables.order_parameter(theta)[1], meta["psi"]) <= 1e-12
    assert observables.plv(theta, arrays["theta2"]) == pytest.approx(meta["plv"], abs=1e-12)
    assert observables.layer_coherence(theta, arrays["layer"]) == pytest.approx(meta["layer_R"], abs=1e-12)
    entropy = observables.entropy_production_rate(
        theta, omega, knm, meta["entropy_alpha"], meta["entropy_dt"]
    )
    assert entropy == pytest.approx(meta["entropy"], rel=1e-12)


@pytest.mark.parametrize("path", golden_files("observables"), ids=names)
def test_lyapunov_spectrum(path):
    arrays, meta = load_golden(path)
    spectrum = observables.lyapunov_spectrum(
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
    np.testing.assert_allclose(spectrum, arrays["lyapunov"], rtol=0.0, atol=1e-10)
