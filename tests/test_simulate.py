"""simulate and its result: recording, modulation, failures, interruption, processes."""

from __future__ import annotations

import concurrent.futures
import importlib
import multiprocessing
import pickle
import pkgutil
import textwrap
import threading
import time
import types

import numpy as np
import pytest
from oracles import kuramoto as oracle
from oracles import observables
from processes import interrupted
from samples import METHODS, circle_gap, network, phases, same_bits, symmetric

import spo_fast
from spo_fast.backends import registry

MODULATIONS = [
    {},
    {"lambda_": 1.5, "block_size": 2, "temperature": 0.7},
    {"n_heads": 2, "temperature": [0.5, 2.0], "projection_seed": 4},
]
FIELDS = ("t", "theta", "t_observe", "R", "psi", "final")


def assert_same_simulation(a, b):
    for name in FIELDS:
        first, second = getattr(a, name), getattr(b, name)
        assert (first is None) == (second is None), name
        if first is not None:
            assert same_bits(first, second), name
    assert a.dt == b.dt


def python_loop(
    theta, omega, knm, *, dt, n_steps, method, backend, modulation=None, modulate_every=1, **drive
):
    """States at steps 0..n_steps from modulate and Engine.step."""
    engine = spo_fast.Engine(len(theta), dt, method, backend=backend)
    states, coupling = [np.mod(theta, 2 * np.pi)], knm
    for step in range(n_steps):
        if modulation is not None and step % modulate_every == 0:
            coupling = spo_fast.modulate(knm, states[-1], **modulation, backend=backend)
        states.append(engine.step(states[-1], omega, coupling, **drive))
    return np.array(states), engine.last_dt


# ---------------------------------------------------------------- truth of the states


@pytest.mark.parametrize("method", METHODS)
def test_follows_the_oracle(backend, rng, method):
    theta, omega, knm, alpha = network(rng, 7)
    drive = {"alpha": alpha, "zeta": 0.5, "psi": 1.0}
    states, times, steps = oracle.trajectory(theta, omega, knm, dt=0.05, n_steps=10, method=method, **drive)
    run = spo_fast.simulate(
        theta,
        omega,
        knm,
        dt=0.05,
        n_steps=10,
        method=method,
        record_every=1,
        observe=("R", "psi"),
        backend=backend,
        **drive,
    )
    assert circle_gap(run.theta, states) <= 1e-11
    np.testing.assert_allclose(run.t, times, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(run.t_observe, times, rtol=1e-9, atol=1e-15)
    truth = np.array([observables.order_parameter(state) for state in states])
    np.testing.assert_allclose(run.R, truth[:, 0], rtol=0, atol=1e-11)
    assert circle_gap(run.psi, truth[:, 1]) <= 1e-10
    assert run.dt == pytest.approx(steps[-1], rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulation", MODULATIONS)
@pytest.mark.parametrize("modulate_every", [1, 3])
def test_equals_the_python_loop(backend, rng, method, modulation, modulate_every):
    theta, omega, knm = phases(rng, 9), rng.normal(1, 0.3, 9), symmetric(rng, 9, 0.7)
    keywords = {
        "dt": 0.05,
        "n_steps": 12,
        "method": method,
        "modulation": modulation,
        "modulate_every": modulate_every,
        "backend": backend,
        "zeta": 0.2,
        "psi": 0.5,
        "alpha": rng.uniform(-1, 1, (9, 9)),
    }
    states, last_dt = python_loop(theta, omega, knm, **keywords)
    run = spo_fast.simulate(theta, omega, knm, record_every=1, **keywords)
    for step, (state, expected) in enumerate(zip(run.theta, states, strict=True)):
        assert circle_gap(state, expected) <= 1e-12 * max(1, step)
    assert run.dt == pytest.approx(last_dt, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_modulation_matters(backend, rng, method):
    theta, omega, knm = phases(rng, 9), np.zeros(9), symmetric(rng, 9)
    keywords = {"dt": 0.05, "n_steps": 6, "method": method, "backend": backend}
    plain = spo_fast.simulate(theta, omega, knm, **keywords).final
    every = spo_fast.simulate(theta, omega, knm, modulation={}, **keywords).final
    once = spo_fast.simulate(theta, omega, knm, modulation={}, modulate_every=100, **keywords).final
    none = spo_fast.simulate(theta, omega, knm, modulation={"lambda_": 0.0}, **keywords).final
    assert circle_gap(plain, every) > 1e-4 and circle_gap(every, once) > 1e-8
    assert circle_gap(plain, none) <= 1e-13


@pytest.mark.parametrize("given", ["none", "same"])
def test_a_modulator_brings_its_coupling(backend, rng, given):
    theta, omega, knm = phases(rng, 6), np.zeros(6), symmetric(rng, 6)
    modulator = spo_fast.Modulator(knm, lambda_=0.9, backend=backend)
    keywords = {"dt": 0.05, "n_steps": 5, "backend": backend}
    run = spo_fast.simulate(theta, omega, None if given == "none" else knm, modulation=modulator, **keywords)
    expected = spo_fast.simulate(theta, omega, knm, modulation={"lambda_": 0.9}, **keywords)
    assert circle_gap(run.final, expected.final) <= 1e-12
    with pytest.raises(ValueError, match="knm"):
        spo_fast.simulate(theta, omega, knm * 2.0, modulation=modulator, **keywords)


def test_modulation_asks_for_symmetry_and_no_coupling_for_a_modulator(backend, rng):
    theta, omega, knm, _ = network(rng, 5)
    with pytest.raises(ValueError, match="knm"):
        spo_fast.simulate(theta, omega, knm, dt=0.1, n_steps=1, modulation={}, backend=backend)
    with pytest.raises(ValueError, match="knm"):
        spo_fast.simulate(theta, omega, None, dt=0.1, n_steps=1, backend=backend)


@pytest.mark.parametrize("method", ["rk4", "rk45"])
def test_isolated_oscillator_only_rotates(backend, rng, method):
    theta, omega, knm = phases(rng, 6), rng.normal(1, 0.3, 6), symmetric(rng, 6)
    knm[2, :] = knm[:, 2] = 0.0
    for modulation in (None, {}):
        run = spo_fast.simulate(
            theta,
            omega,
            knm,
            dt=0.02,
            n_steps=100,
            method=method,
            modulation=modulation,
            record_every=1,
            backend=backend,
        )
        assert circle_gap(run.theta[:, 2], theta[2] + omega[2] * run.t) <= 1e-11


# ---------------------------------------------------------------- recording


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "n_steps, every", [(10, 3), (10, 5), (10, 1), (10, 10), (10, 11), (1, 1), (7, 4), (0, 1), (0, 5)]
)
def test_stride_of_the_record(backend, rng, method, n_steps, every):
    theta, omega, knm, _ = network(rng, 5)
    keywords = {"dt": 0.05, "n_steps": n_steps, "method": method, "backend": backend}
    full = spo_fast.simulate(theta, omega, knm, record_every=1, **keywords)
    run = spo_fast.simulate(theta, omega, knm, record_every=every, **keywords)
    kept = sorted({*range(0, n_steps + 1, every), n_steps})
    assert same_bits(run.theta, full.theta[kept]) and same_bits(run.t, full.t[kept])
    for name in ("R", "t_observe", "final"):
        assert same_bits(getattr(run, name), getattr(full, name))


@pytest.mark.parametrize("n_steps", [0, 1, 6])
def test_no_stride_keeps_first_and_last(backend, rng, n_steps):
    theta, omega, knm, _ = network(rng, 5)
    run = spo_fast.simulate(theta, omega, knm, dt=0.05, n_steps=n_steps, backend=backend)
    full = spo_fast.simulate(theta, omega, knm, dt=0.05, n_steps=n_steps, record_every=1, backend=backend)
    kept = sorted({0, n_steps})
    assert same_bits(run.theta, full.theta[kept]) and same_bits(run.t, full.t[kept])
    assert same_bits(run.final, run.theta[-1])
    assert run.R.shape == run.t_observe.shape == (n_steps + 1,)
    assert run.psi is None


def test_no_steps_wraps_the_start(backend):
    run = spo_fast.simulate([-1.0, 7.0], 1.0, np.zeros((2, 2)), dt=0.1, n_steps=0, backend=backend)
    assert circle_gap(run.final, [-1.0, 7.0]) <= 1e-15
    assert np.all((run.final >= 0) & (run.final < 2 * np.pi))
    assert run.t.tolist() == [0.0] and run.dt == 0.1


@pytest.mark.parametrize("tiny", [-5e-324, -1e-300, -1e-17])
@pytest.mark.parametrize("method", METHODS)
def test_a_start_that_rounds_to_a_full_turn_is_zero(backend, method, tiny):
    keywords = {"dt": 1e-3, "method": method, "record_every": 1, "backend": backend}
    for n_steps in (0, 2):
        run = spo_fast.simulate([tiny], 0.0, [[0.0]], n_steps=n_steps, **keywords)
        assert not run.theta.any() and not run.final.any()


@pytest.mark.parametrize("observe", [(), ("R",), ("psi",), ("R", "psi"), ["psi", "R"]])
def test_observe_chooses_what_is_kept(backend, rng, observe):
    theta, omega, knm, _ = network(rng, 5)
    keywords = {"dt": 0.05, "n_steps": 4, "backend": backend}
    everything = spo_fast.simulate(theta, omega, knm, observe=("R", "psi"), **keywords)
    run = spo_fast.simulate(theta, omega, knm, observe=observe, **keywords)
    for name in ("R", "psi"):
        value = getattr(run, name)
        assert (value is not None) == (name in observe)
        assert value is None or same_bits(value, getattr(everything, name))


def test_unknown_observable_is_refused(backend):
    with pytest.raises(ValueError, match="observe"):
        spo_fast.simulate([0.0], 1.0, [[0.0]], dt=0.1, n_steps=1, observe=("X",), backend=backend)


def test_times_of_fixed_methods_are_products(backend):
    run = spo_fast.simulate([0.0], 1.0, [[0.0]], dt=0.1, n_steps=1000, record_every=1, backend=backend)
    assert same_bits(run.t, 0.1 * np.arange(1001)) and same_bits(run.t_observe, run.t)


def test_result_is_kept_as_it_was(backend, rng):
    """Nothing in the result is a view of the caller's arrays."""
    theta, omega, knm, _ = network(rng, 4)
    run = spo_fast.simulate(theta, omega, knm, dt=0.1, n_steps=0, record_every=1, backend=backend)
    theta[:] = -1.0
    assert np.all(run.theta >= 0) and np.all(run.final >= 0)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulation", [None, {}])
def test_nobody_and_one(backend, n, method, modulation):
    run = spo_fast.simulate(
        np.full(n, 6.0),
        np.full(n, 1.0),
        np.zeros((n, n)),
        dt=0.1,
        n_steps=7,
        method=method,
        modulation=modulation,
        record_every=2,
        observe=("R", "psi"),
        backend=backend,
    )
    assert run.theta.shape == (5, n) and run.final.shape == (n,)
    np.testing.assert_allclose(run.R, float(n), rtol=0, atol=1e-15)
    assert circle_gap(run.final, 6.0 + run.t[-1]) <= 1e-13 or n == 0


# ---------------------------------------------------------------- pieces and bits


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulation", [None, {"lambda_": 0.8}])
def test_pieces_of_a_run_equal_the_whole(backend, rng, method, modulation):
    """advance(13) and advance(4), advance(0), advance(9) leave the same bits everywhere."""
    core = registry.load(backend)
    theta, omega, knm = phases(rng, 9), rng.normal(1, 0.4, 9), symmetric(rng, 9)
    observed = {"observe": ("R", "psi"), "record_every": 2}
    keywords = {
        "dt": 0.05,
        "method": method,
        "modulation": modulation,
        "modulate_every": 3,
        "backend": backend,
    }
    whole = spo_fast.simulate(theta, omega, knm, n_steps=13, **keywords, **observed)
    repeated = spo_fast.simulate(theta, omega, knm, n_steps=13, **keywords, **observed)
    assert_same_simulation(whole, repeated)
    pieces = advance_in_pieces(core, theta, omega, knm, method, modulation, (4, 0, 9))
    assert same_bits(pieces.theta, whole.final) and pieces.dt == whole.dt and pieces.t == whole.t[-1]


@pytest.mark.parametrize("method", METHODS)
def test_a_second_start_forgets_the_first(backend, rng, method):
    """A coupling modulated for one trajectory, and a slope kept from it, mean nothing to the next."""
    core = registry.load(backend)
    first, second, omega, knm = phases(rng, 9), phases(rng, 9), np.ones(9), symmetric(rng, 9)
    fresh = advance_in_pieces(core, second, omega, knm, method, {"lambda_": 0.8}, (5,))
    used = advance_in_pieces(core, first, omega, knm, method, {"lambda_": 0.8}, (4,))
    used.start(second)
    assert used.step == 0 and used.t == 0.0 and used.dt == 0.05
    assert used.advance(5) == 0
    assert same_bits(used.theta, fresh.theta) and used.dt == fresh.dt


def advance_in_pieces(core, theta, omega, knm, method, modulation, pieces):
    from spo_fast import validation

    theta = np.array(theta)
    network_ = validation.network(len(theta), omega, knm, None, 0.0, 0.0)
    if modulation is not None:
        weights = spo_fast.default_projections()
        settings = {"n_heads": 4, "block_size": None, "temperature": 1.0} | modulation
        network_.modulation = validation.modulation_parameters(*weights, **settings)
        network_.modulate_every = 3
    integration = core.Integration(len(theta), method, 0.05, 1e-6, 1e-3)
    integration.set_network(network_)
    integration.start(theta)
    for n_steps in pieces:
        assert integration.advance(n_steps) == 0
    return integration


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_chained_runs_of_a_fixed_method_equal_one(backend, rng, method):
    theta, omega, knm, alpha = network(rng, 6)
    keywords = {"dt": 0.05, "method": method, "alpha": alpha, "backend": backend}
    whole = spo_fast.simulate(theta, omega, knm, n_steps=20, **keywords)
    half = spo_fast.simulate(theta, omega, knm, n_steps=8, **keywords)
    assert same_bits(spo_fast.simulate(half.final, omega, knm, n_steps=12, **keywords).final, whole.final)


@pytest.mark.parametrize("modulation", [None, {}])
def test_bits_repeat_and_do_not_depend_on_workers(backend, rng, modulation):
    theta, omega, knm = (phases(rng, 90), rng.normal(1, 0.4, 90), symmetric(rng, 90, 0.9) / 45)
    keywords = {"dt": 0.05, "n_steps": 6, "record_every": 1, "modulation": modulation, "backend": backend}
    expected = spo_fast.simulate(theta, omega, knm, **keywords)
    for workers in (1, 2, 3):
        assert_same_simulation(spo_fast.simulate(theta, omega, knm, workers=workers, **keywords), expected)


def test_progress_changes_nothing(backend, rng, capsys):
    pytest.importorskip("tqdm")
    theta, omega, knm, _ = network(rng, 4)
    keywords = {"dt": 0.05, "n_steps": 30, "backend": backend}
    plain = spo_fast.simulate(theta, omega, knm, **keywords)
    assert_same_simulation(spo_fast.simulate(theta, omega, knm, progress=True, **keywords), plain)


def test_threads_run_at_once(threaded_backend, rng):
    problems = [network(rng, 20) for _ in range(16)]

    def run(problem):
        theta, omega, knm, alpha = problem
        return spo_fast.simulate(
            theta, omega, knm, alpha=alpha, dt=0.05, n_steps=40, backend=threaded_backend
        )

    expected = [run(problem) for problem in problems]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result, serial in zip(pool.map(run, problems, timeout=120), expected, strict=True):
            assert_same_simulation(result, serial)


# ---------------------------------------------------------------- input


@pytest.mark.parametrize("omega", [2, 2.0, np.float32(2.0), np.int8(2), np.array(2.0)], ids=repr)
def test_frequency_may_be_one_number(backend, rng, omega):
    theta, _, knm, _ = network(rng, 5)
    keywords = {"dt": 0.05, "n_steps": 5, "backend": backend}
    expected = spo_fast.simulate(theta, np.full(5, 2.0), knm, **keywords)
    assert_same_simulation(spo_fast.simulate(theta, omega, knm, **keywords), expected)


def test_lists_columns_and_a_missing_frequency(backend, rng):
    theta, omega, knm, _ = network(rng, 100)
    keywords = {"dt": 0.01, "n_steps": 200, "method": "euler", "backend": backend}
    expected = spo_fast.simulate(theta, omega, knm, **keywords)
    assert_same_simulation(spo_fast.simulate(theta.tolist(), list(omega), knm.tolist(), **keywords), expected)
    with pytest.raises(ValueError, match=r"theta.*\(100, 1\)"):
        spo_fast.simulate(theta[:, None], omega, knm, **keywords)
    with pytest.raises(ValueError, match=r"omega.*\(100, 1\)"):
        spo_fast.simulate(theta, omega[:, None], knm, **keywords)
    with pytest.raises(TypeError):
        spo_fast.simulate(theta, **keywords)
    with pytest.raises(ValueError, match="omega"):
        spo_fast.simulate(theta, None, knm, **keywords)


def test_integer_and_float_of_the_same_value(backend, rng):
    theta, omega, knm, _ = network(rng, 5)
    knm = np.rint(knm * 5)
    keywords = {"dt": 1, "n_steps": 3, "zeta": 2, "psi": 1, "alpha": 1, "backend": backend}
    floats = {
        name: float(value) if name in ("dt", "zeta", "psi", "alpha") else value
        for name, value in keywords.items()
    }
    integers = spo_fast.simulate(theta, omega, knm.astype(int), **keywords)
    assert_same_simulation(integers, spo_fast.simulate(theta, omega, knm, **floats))


@pytest.mark.parametrize("name", ["theta", "omega", "knm", "alpha"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("n_steps", [3, 0])
def test_non_finite_input_is_refused_by_name(backend, rng, name, value, n_steps):
    inputs = dict(zip(("theta", "omega", "knm", "alpha"), network(rng, 5), strict=True))
    inputs[name].flat[-2] = value
    with pytest.raises(ValueError, match=name):
        spo_fast.simulate(**inputs, dt=0.1, n_steps=n_steps, backend=backend)


def test_a_stiff_network_ends_in_bounded_steps(backend, rng):
    theta, omega, knm, _ = network(rng, 6)
    for dt, strength in [(1e-12, 1.0), (1.0, 1e4), (1e-3, 1e4)]:
        run = spo_fast.simulate(
            theta, omega, knm * strength, dt=dt, n_steps=50, method="rk45", record_every=1, backend=backend
        )
        assert np.isfinite(run.theta).all() and np.all(np.diff(run.t) > 0) and run.R.shape == (51,)
        assert 0 < run.dt <= 10 * dt * (1 + 1e-12)


# ---------------------------------------------------------------- failures


def overflowing(n_steps=10):
    """Only in the second Euler step does omega_0 + K_01 sin(theta_1 - theta_0) exceed the largest double."""
    knm = np.zeros((2, 2))
    knm[0, 1] = 1e308
    return {
        "theta": [0.0, 3.3],
        "omega": [1e308, 0.0],
        "knm": knm,
        "dt": 2.3e-308,
        "n_steps": n_steps,
        "method": "euler",
    }


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_failed_run_hands_over_what_it_has(backend):
    with pytest.raises(spo_fast.SimulationError, match="step") as caught:
        spo_fast.simulate(**overflowing(), record_every=1, observe=("R", "psi"), backend=backend)
    result = caught.value.result
    good = spo_fast.simulate(**overflowing(1), record_every=1, observe=("R", "psi"), backend=backend)
    for name in FIELDS:
        assert same_bits(getattr(result, name), getattr(good, name)), name


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
@pytest.mark.parametrize("every", [None, 4])
def test_last_good_state_is_kept_whatever_the_stride(backend, every):
    with pytest.raises(spo_fast.SimulationError) as caught:
        spo_fast.simulate(**overflowing(), record_every=every, backend=backend)
    result = caught.value.result
    assert result.theta.shape == (2, 2) and np.isfinite(result.theta).all()
    assert same_bits(result.theta[-1], result.final)
    assert result.t.tolist() == [0.0, 2.3e-308] and result.R.shape == result.t_observe.shape == (2,)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_simulation_error_survives_pickling(backend):
    with pytest.raises(spo_fast.SimulationError) as caught:
        spo_fast.simulate(**overflowing(), backend=backend)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert_same_simulation(again.result, caught.value.result)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_engine_reports_a_state_that_turns_non_finite(backend):
    given = overflowing()
    engine = spo_fast.Engine(2, given["dt"], "euler", backend=backend)
    with pytest.raises(spo_fast.SimulationError, match="step"):
        engine.run(given["theta"], given["omega"], given["knm"], n_steps=5)


# ---------------------------------------------------------------- result object


def test_result_survives_pickling(backend, rng):
    theta, omega, knm, _ = network(rng, 4)
    run = spo_fast.simulate(theta, omega, knm, dt=0.1, n_steps=3, record_every=1, backend=backend)
    assert_same_simulation(pickle.loads(pickle.dumps(run)), run)


def test_result_as_labelled_arrays(rng):
    pytest.importorskip("xarray")
    theta, omega, knm, _ = network(rng, 4)
    run = spo_fast.simulate(
        theta, omega, knm, dt=0.1, n_steps=6, record_every=2, observe=("R", "psi"), backend="numpy"
    )
    dataset = run.to_xarray()
    assert np.array_equal(dataset["theta"].values, run.theta)
    assert np.array_equal(dataset["R"].values, run.R) and np.array_equal(dataset["psi"].values, run.psi)


# ---------------------------------------------------------------- interruption, GIL, processes

INTERRUPTED = """
    import signal
    import sys
    import numpy as np
    import spo_fast

    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a job in the background ignores

    def run(n_steps):
        rng = np.random.default_rng(0)
        knm = rng.random((48, 48))
        knm = (knm + knm.T) * (1 - np.eye(48)) / 48
        return spo_fast.simulate(rng.random(48), 1.0, knm, dt=1e-3, n_steps=n_steps, observe=(),
                                 modulation=MODULATION, backend="BACKEND").final.tobytes()

    before = run(20)
    print("ready", flush=True)
    try:
        run(10**9)
    except KeyboardInterrupt:
        assert run(20) == before
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("modulation", ["None", "{}"])
def test_interrupt_ends_a_long_run(backend, modulation):
    """SIGINT into a run of days ends it with KeyboardInterrupt; a guard of 60 s ends the wait."""
    script = textwrap.dedent(INTERRUPTED).replace("BACKEND", backend).replace("MODULATION", modulation)
    assert interrupted(script, 1.0) == "interrupted\n"


@pytest.mark.parametrize("modulated", [False, True])
def test_other_threads_run_during_native_code(backend, rng, modulated):
    """A thread that only sleeps must wake many times within one call of the backend."""
    from spo_fast import validation

    theta, omega, knm = phases(rng, 64), rng.normal(1, 0.3, 64), symmetric(rng, 64) / 32
    problem = validation.network(64, omega, knm, None, 0.0, 0.0)
    if modulated:
        settings = {"n_heads": 4, "block_size": None, "temperature": 1.0, "lambda_": 0.5}
        problem.modulation = validation.modulation_parameters(*spo_fast.default_projections(), **settings)
    integration = registry.load(backend).Integration(64, "rk4", 1e-3, 1e-6, 1e-3)
    integration.set_network(problem)
    integration.start(theta)
    integration.advance(2)
    ticks, done = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not done.wait(0.002):
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    n_steps, before = 500, 0
    while True:
        before, began = ticks, time.perf_counter()
        integration.advance(n_steps)
        long_enough, seen = time.perf_counter() - began > 0.25, ticks - before
        if long_enough:
            break
        n_steps *= 2
    done.set()
    ticker.join()
    assert seen >= 5


@pytest.mark.parametrize("name", ["modulate", "simulate", "Modulator", "Engine"])
def test_public_callables_can_be_pickled_by_name(name):
    public = getattr(spo_fast, name)
    assert pickle.loads(pickle.dumps(public)) is public


def test_spawned_processes_agree(backend, rng):
    """Public callables and objects reach workers that were started from nothing."""
    theta, omega, knm = phases(rng, 9), np.ones(9), symmetric(rng, 9)
    modulator = spo_fast.Modulator(knm, backend=backend)
    engine = spo_fast.Engine(9, 0.05, "rk45", backend=backend)
    calls = [
        (spo_fast.modulate, (knm, theta), {"backend": backend}),
        (modulator, (theta,), {}),
        (engine.run, (theta, omega, knm), {"n_steps": 3}),
    ]
    keywords = {"dt": 0.05, "n_steps": 5, "modulation": modulator, "backend": backend}
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        futures = [pool.submit(function, *given, **named) for function, given, named in calls]
        run = pool.submit(spo_fast.simulate, theta, omega, None, **keywords).result(timeout=240)
        for future, (function, given, named) in zip(futures, calls, strict=True):
            assert same_bits(future.result(timeout=240), function(*given, **named))
    assert_same_simulation(run, spo_fast.simulate(theta, omega, None, **keywords))


# ---------------------------------------------------------------- compilation of Numba


def dispatchers():
    """Every compiled function of the package, by where it is defined."""
    found = {}
    for package in ("spo_fast.kernels", "spo_fast.backends"):
        module = importlib.import_module(package)
        inner = [
            m.name
            for m in pkgutil.iter_modules(module.__path__)
            if package.endswith("kernels") or m.name == "jit"
        ]
        for member in [module, *(importlib.import_module(f"{package}.{name}") for name in inner)]:
            for value in vars(member).values():
                if hasattr(value, "signatures") and not isinstance(value, types.ModuleType):
                    found[id(value)] = value
    return list(found.values())


def test_values_of_parameters_compile_nothing_new(rng):
    """Python, NumPy and single-precision numbers for the same argument meet one compiled signature."""
    if spo_fast.backends()["numba"] != "available":
        pytest.skip(spo_fast.backends()["numba"])
    theta, omega, knm = phases(rng, 12), rng.normal(1, 0.2, 12), symmetric(rng, 12)

    def sweep(strength, lag, method="rk4"):
        keywords = {"dt": 0.05, "n_steps": 2, "method": method, "backend": "numba"}
        coupling = knm * strength
        spo_fast.simulate(theta, omega, coupling, alpha=lag, zeta=lag, psi=strength, **keywords)
        settings = {"lambda_": strength, "temperature": strength, "block_size": 3}
        spo_fast.modulate(coupling, theta, **settings, backend="numba")
        spo_fast.simulate(theta, omega, coupling, modulation=settings, **keywords)

    for method in METHODS:
        sweep(1.0, 0.5, method)
    found = dispatchers()
    before = [len(dispatcher.signatures) for dispatcher in found]
    assert sum(before) > 0
    for strength in [1, 2, 3.0, np.float64(0.1), np.float32(0.5), np.int64(4), *np.linspace(0.1, 2, 10)]:
        for lag in [0, 1, 0.0, 0.3, np.float32(0.25), np.float64(-1.0)]:
            sweep(strength, lag)
    strided = np.zeros((24, 24))
    strided[::2, ::2] = knm
    frozen = knm.copy()
    frozen.flags.writeable = False
    for coupling in (np.asfortranarray(knm), strided[::2, ::2], frozen, knm.astype(np.float32)):
        spo_fast.simulate(theta, omega, coupling, dt=0.05, n_steps=2, backend="numba")
        spo_fast.modulate(coupling, theta, backend="numba")
    assert [len(dispatcher.signatures) for dispatcher in found] == before
