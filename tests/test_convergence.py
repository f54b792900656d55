"""Orders of accuracy: fitted slopes on a window where truncation, not rounding, makes the error."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import kuramoto as oracle
from samples import circle_gap

import spo_fast

ORDERS = {
    "euler": (1, [2**-k for k in range(5, 10)]),
    "rk4": (4, [2**-k for k in range(2, 6)]),
    "rk45": (5, [1 / 16, 1 / 20, 1 / 24, 1 / 32]),
}


@pytest.fixture(scope="module")
def problem():
    """Three oscillators, nothing symmetric, and the state at t = 1 from 2000 classical steps of the loops."""
    theta, omega = [0.3, 2.0, 4.1], [1.0, -0.7, 0.4]
    knm = [[0.0, 0.9, 0.3], [0.2, 0.0, 1.1], [0.7, 0.5, 0.0]]
    alpha = [[0.0, 0.3, -0.2], [0.5, 0.0, 0.1], [-0.4, 0.2, 0.0]]
    drive = {"alpha": alpha, "zeta": 0.6, "psi": 1.0}
    states, _, _ = oracle.trajectory(theta, omega, knm, dt=1 / 2000, n_steps=2000, method="rk4", **drive)
    return {"theta": theta, "omega": omega, "knm": knm, "drive": drive, "end": states[-1]}


def march(problem, method, dt, backend):
    """Steps of exactly dt to t = 1: an engine that has just been made tries the dt it was given."""
    state = problem["theta"]
    for _ in range(round(1 / dt)):
        engine = spo_fast.Engine(3, dt, method, atol=1e3, rtol=1e3, backend=backend)
        state = engine.step(state, problem["omega"], problem["knm"], **problem["drive"])
    return state


def slope(sizes, errors):
    return np.polyfit(np.log(sizes), np.log(errors), 1)[0]


@pytest.mark.parametrize("method", ORDERS)
def test_order_of_the_global_error(backend, problem, method):
    order, sizes = ORDERS[method]
    errors = [circle_gap(march(problem, method, dt, backend), problem["end"]) for dt in sizes]
    assert min(errors) > 1e-12, "the window must stay clear of rounding"
    assert slope(sizes, errors) == pytest.approx(order, abs=0.2)


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_simulate_has_the_same_order(backend, problem, method):
    order, sizes = ORDERS[method]
    errors = []
    for dt in sizes:
        run = spo_fast.simulate(
            problem["theta"],
            problem["omega"],
            problem["knm"],
            dt=dt,
            n_steps=round(1 / dt),
            method=method,
            backend=backend,
            **problem["drive"],
        )
        errors.append(circle_gap(run.final, problem["end"]))
    assert slope(sizes, errors) == pytest.approx(order, abs=0.2)


def one_step(problem, dt, backend, atol):
    """True error of one rk45 step and the estimate, read off the step size that follows."""
    engine = spo_fast.Engine(3, dt, "rk45", atol=atol, rtol=1e-300, backend=backend)
    state = engine.step(problem["theta"], problem["omega"], problem["knm"], **problem["drive"])
    states, _, _ = oracle.trajectory(
        problem["theta"],
        problem["omega"],
        problem["knm"],
        dt=dt / 64,
        n_steps=64,
        method="rk4",
        **problem["drive"],
    )
    estimate = atol * (0.9 * dt / engine.last_dt) ** 5
    return circle_gap(state, states[-1]), estimate


def test_local_error_of_dormand_prince_has_order_six_and_its_estimate_five(backend, problem):
    sizes = [0.125, 0.1, 0.05]
    true, estimated = zip(*(one_step(problem, dt, backend, atol=0.02 * dt**5) for dt in sizes), strict=True)
    assert slope(sizes, true) == pytest.approx(6, abs=0.4)
    assert slope(sizes, estimated) == pytest.approx(5, abs=0.2)


@pytest.mark.parametrize("dt", [0.4, 0.2, 0.1, 0.05])
def test_error_estimate_bounds_the_true_error(backend, problem, dt):
    true, estimated = one_step(problem, dt, backend, atol=0.02 * dt**5)
    assert true <= estimated


def test_smaller_tolerances_give_smaller_errors(backend, problem):
    errors = []
    for tolerance in (1e-4, 1e-6, 1e-8):
        run = spo_fast.simulate(
            problem["theta"],
            problem["omega"],
            problem["knm"],
            dt=0.1,
            n_steps=60,
            method="rk45",
            atol=tolerance,
            rtol=tolerance,
            record_every=1,
            backend=backend,
            **problem["drive"],
        )
        truth, before = [], problem["theta"]
        for span in np.diff(run.t):
            parts = max(1, int(np.ceil(span / 0.01)))
            states, _, _ = oracle.trajectory(
                before,
                problem["omega"],
                problem["knm"],
                dt=span / parts,
                n_steps=parts,
                method="rk4",
                **problem["drive"],
            )
            before = states[-1]
            truth.append(before)
        errors.append(circle_gap(run.theta[1:], truth))
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[2] < 1e-6
