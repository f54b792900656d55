"""The Kuramoto kernels and the compiled loop around them: parity, directions, failures, records, copies."""

from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import kuramoto as oracle
from samples import (
    METHODS,
    circle_gap,
    golden_files,
    load_golden,
    network,
    phases,
    same_bits,
    step_size_doubt,
    symmetric,
)

from spo_fast import kernels, validation
from spo_fast.backends import jit
from spo_fast.backends.record import Record
from spo_fast.backends.status import Status
from spo_fast.kernels import kuramoto as steps
from spo_fast.kernels import vectormath

ROOT = Path(__file__).resolve().parents[2]
UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
LARGEST = 16 if UNCOMPILED else 10**9
NO_LAG = np.empty((0, 0))
TWO_PI = 2.0 * np.pi


def scratch(n):
    return np.full((steps.WORK_ROWS, n), np.nan)


def parts(knm, alpha):
    """K's lagged parts, as the kernels take them."""
    if alpha is None:
        return knm, NO_LAG
    knm_cos, knm_sin = np.empty_like(knm), np.empty_like(knm)
    steps.lagged_coupling(knm, alpha, knm_cos, knm_sin)
    return knm_cos, knm_sin


def take(method, theta, omega, parted, *, lag=0.0, zeta=0.0, psi=0.0, sizes, atol=1e-6, rtol=1e-3):
    """Status and new state of one step; `sizes` is the step-size array of rk45."""
    out = np.full_like(theta, np.nan)
    common = (theta, omega, *parted, lag, zeta, psi)
    if method == "rk45":
        return kernels.rk45_step(*common, sizes, atol, rtol, scratch(theta.size), out), out
    step = kernels.euler_step if method == "euler" else kernels.rk4_step
    return step(*common, sizes[0], scratch(theta.size), out), out


# ---------------------------------------------------------------- parity


@pytest.mark.parametrize("path", golden_files("step"), ids=lambda path: path.stem)
def test_golden(path):
    arrays, meta = load_golden(path)
    if meta["n"] > LARGEST:
        pytest.skip("large for uncompiled code")
    alpha = arrays["alpha"] if arrays["alpha"].any() else None
    parted = parts(arrays["knm"], alpha)
    sizes = np.array([meta["dt"], 10.0 * meta["dt"], 0.0])
    tolerances = {name: meta[name] for name in ("atol", "rtol") if name in meta}
    drive = {"zeta": meta["zeta"], "psi": meta["psi"]}
    theta, gaps, dts = arrays["trajectory"][0].copy(), [], []
    for expected in arrays["trajectory"][1:]:
        status, theta = take(
            meta["method"], theta, arrays["omegas"], parted, sizes=sizes, **drive, **tolerances
        )
        assert status == Status.OK
        gaps.append(circle_gap(theta, expected))
        dts.append(sizes[0])
    doubt = step_size_doubt(meta, arrays).max(initial=0.0)
    assert max(gaps) <= 1e-11 + doubt
    np.testing.assert_allclose(dts, arrays["dt_after"], rtol=1e-9 + doubt, atol=0)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16, 17])
@pytest.mark.parametrize("lagged", ["none", "uniform", "matrix", "both"])
def test_rhs_of_asymmetric_networks(n, lagged, rng):
    theta, omega, knm, alpha = network(rng, n)
    theta = theta + TWO_PI * rng.integers(-40, 40, n)
    knm[0, 0] = 0.3  # the right-hand side takes a self-coupling as it is
    lag = 0.7 if lagged in ("uniform", "both") else 0.0
    matrix = alpha if lagged in ("matrix", "both") else None
    out = np.empty(n)
    status = kernels.rhs(theta, omega, *parts(knm, matrix), lag, 0.4, 1.1, scratch(n), out)
    assert status == Status.OK
    whole = (np.zeros((n, n)) if matrix is None else matrix) + lag
    expected = oracle.derivative(theta, omega, knm, 0.4, 1.1, whole)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13)


def test_rows_are_pulled_by_their_columns():
    knm = np.zeros((2, 2))
    knm[0, 1] = 1.0
    out = np.empty(2)
    kernels.rhs(np.array([0.3, 1.5]), np.zeros(2), knm, NO_LAG, 0.0, 0.0, 0.0, scratch(2), out)
    assert out[0] == pytest.approx(math.sin(1.2), abs=1e-15)
    assert out[1] == 0.0


@pytest.mark.parametrize("method", METHODS)
def test_isolated_oscillator_runs_freely(method, rng):
    theta, omega, knm, _ = network(rng, 5)
    knm[2], knm[:, 2] = 0.0, 0.0
    sizes = np.array([0.01, 0.1, 0.0])
    status, out = take(method, theta, omega, (knm, NO_LAG), sizes=sizes)
    taken = sizes[2] if method == "rk45" else 0.01
    assert status == Status.OK
    assert circle_gap(out[2], theta[2] + omega[2] * taken) < 2e-15


@pytest.mark.parametrize("method", METHODS)
def test_step_in_place_and_no_oscillator(method, rng):
    theta, omega, knm, _ = network(rng, 6)
    apart = take(method, theta, omega, (knm, NO_LAG), sizes=np.array([0.1, 1.0, 0.0]))[1]
    assert kernels.euler_step(theta, omega, knm, NO_LAG, 0.0, 0.0, 0.0, 0.1, scratch(6), theta) == Status.OK
    if method == "euler":
        assert same_bits(theta, apart)
    nothing = np.empty(0)
    status, out = take(method, nothing, nothing, (NO_LAG, NO_LAG), sizes=np.array([0.1, 1.0, 0.0]))
    assert status == Status.OK
    assert out.size == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_failed_step_leaves_everything(method, bad, rng):
    theta, omega, knm, _ = network(rng, 5)
    sizes = np.array([0.1, 1.0, 0.0])
    for spoil in (theta, omega, knm[3]):
        keep, spoil[1] = spoil[1], bad
        with np.errstate(invalid="ignore"):  # uncompiled, NumPy's scalars would warn
            status, out = take(method, theta, omega, (knm, NO_LAG), sizes=sizes)
        assert status == Status.NONFINITE_STATE
        assert np.isnan(out).all()
        assert sizes.tolist() == [0.1, 1.0, 0.0]
        spoil[1] = keep


def test_wrong_shapes_are_refused(rng):
    theta, omega, knm, _ = network(rng, 5)
    out = np.empty(5)
    common = (0.0, 0.0, 0.0, 0.1, scratch(5), out)
    assert kernels.euler_step(theta, omega[:4], knm, NO_LAG, *common) == Status.INVALID_ARGUMENT
    assert kernels.rk4_step(theta, omega, knm[:4], NO_LAG, *common) == Status.INVALID_ARGUMENT
    assert kernels.rhs(theta, omega, knm, knm[:3], 0.0, 0.0, 0.0, scratch(5), out) == Status.INVALID_ARGUMENT
    assert kernels.order_parameter(np.zeros((3, 2)), out, out) == Status.INVALID_ARGUMENT
    status = kernels.rk45_step(
        theta, omega, knm, NO_LAG, 0.0, 0.0, 0.0, np.ones(2), 1e-6, 1e-3, scratch(5), out
    )
    assert status == Status.INVALID_ARGUMENT


def test_four_failures_shrink_the_step(rng):
    """The fourth attempt stands although it failed, and the next one starts smaller."""
    theta, omega, knm, _ = network(rng, 4)
    sizes = np.array([5.0, 50.0, 0.0])
    status, _ = take("rk45", theta, omega * 300, (knm * 300, NO_LAG), sizes=sizes, atol=1e-12, rtol=1e-12)
    assert status == Status.OK
    assert sizes[2] == pytest.approx(5.0 * 0.2**3)
    assert sizes[0] == pytest.approx(5.0 * 0.2**4)


# ---------------------------------------------------------------- wrapping and order parameter


def test_wrap(rng):
    special = [
        0.0,
        -0.0,
        TWO_PI,
        -1e-20,
        -TWO_PI,
        3 * TWO_PI,
        np.nextafter(TWO_PI, 0),
        1e6,
        -1e6,
        1e18,
        -1e300,
    ]
    theta = np.array([*special, *rng.uniform(-1e3, 1e3, 300), *(TWO_PI * rng.integers(-(10**6), 10**6, 100))])
    out = np.empty_like(theta)
    assert vectormath.wrap(theta, out) == 0
    assert np.all((out >= 0.0) & (out < TWO_PI))
    assert circle_gap(out, np.mod(theta, TWO_PI)) < 1e-15 * 1e6 * (1e-10 if not UNCOMPILED else 1.0) + 4e-16
    assert out[:4].tolist() == [0.0, 0.0, 0.0, 0.0]
    assert not np.signbit(out).any()


def test_wrap_counts_what_is_not_finite():
    theta = np.array([1.0, np.nan, np.inf, 1e9, -np.inf])
    assert vectormath.wrap(theta, theta) == 3
    assert np.isnan(theta).tolist() == [False, True, True, False, True]


@pytest.mark.parametrize(
    ("theta", "r"),
    [
        ((1e-3, TWO_PI - 1e-3), math.cos(1e-3)),
        ((0.0, np.pi), 0.0),
        ((0.0, TWO_PI / 3, 2 * TWO_PI / 3), 0.0),
        ((2.0,), 1.0),
    ],
)
def test_order_parameter_of_known_states(theta, r):
    radius, psi = jit.order_parameter(np.array([theta]))
    assert radius[0] == pytest.approx(r, abs=3e-16)
    assert 0.0 <= psi[0] < TWO_PI


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 60), spread=st.sampled_from([0.0, 1e-9, 1.0, 1e5]))
def test_order_parameter_stays_in_range(seed, n, spread):
    rng = np.random.default_rng(seed)
    theta = rng.uniform(0, TWO_PI) + spread * rng.standard_normal((3, n))
    radius, psi = jit.order_parameter(theta)
    expected = np.exp(1j * theta).mean(axis=1)
    assert np.all((radius >= 0.0) & (radius <= 1.0))
    assert np.all((psi >= 0.0) & (psi < TWO_PI))
    np.testing.assert_allclose(radius * np.exp(1j * psi), expected, rtol=0, atol=1e-15)


def test_order_parameter_of_identical_phases():
    for n in (1, 7, 8, 1000):
        theta = np.repeat(np.linspace(0, TWO_PI, 11)[:, None], n, axis=1)
        radius = jit.order_parameter(theta)[0]
        assert np.all(radius <= 1.0)
        assert np.all(radius >= 1.0 - 4.5e-16)


def test_order_parameter_of_nobody():
    radius, psi = jit.order_parameter(np.empty((2, 0)))
    assert radius.tolist() == psi.tolist() == [0.0, 0.0]


# ---------------------------------------------------------------- the loop


def parameters(rng, lambda_=0.5, block_size=None):
    projections = [0.45 * rng.standard_normal((4, 8, 2)) for _ in range(3)]
    return validation.modulation_parameters(
        *projections,
        0.4 * rng.standard_normal((8, 8)),
        n_heads=4,
        block_size=block_size,
        temperature=1.0,
        lambda_=lambda_,
    )


def problem(rng, n, lagged="none", modulated=False):
    theta, omega, knm, alpha = network(rng, n)
    knm = symmetric(rng, n, 0.8) * (2.0 / max(n, 1)) if modulated else knm
    lag = {"none": None, "uniform": 0.3, "matrix": alpha}[lagged]
    net = validation.network(n, omega, knm, lag, 0.4, 1.0)
    if modulated:
        net.modulation, net.modulate_every = parameters(rng), 3
    return theta, net


def begin(theta, net, method, dt=0.05):
    run = jit.Integration(theta.size, method, dt, 1e-6, 1e-3)
    run.set_network(net)
    run.start(theta)
    return run


def blank_record(n, n_steps, every, strided=False):
    def room(rows, *more):
        full = np.full((rows, 2, *more), np.nan)
        return full[:, 0] if strided else np.full((rows, *more), np.nan)

    rows = n_steps // every + 1
    return Record(every, room(rows, n), room(rows), room(n_steps + 1), room(n_steps + 1), room(n_steps + 1))


def contents(run, record):
    fields = (record.theta, record.t, record.R, record.psi, record.t_observe)
    return (run.theta, run.t, run.dt, run.step, *fields)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lagged", ["none", "uniform", "matrix"])
@pytest.mark.parametrize("modulated", [False, True])
def test_pieces_give_the_bits_of_the_whole(method, lagged, modulated, rng):
    theta, net = problem(rng, 7, lagged, modulated)
    results = []
    for cuts, strided in (((11,), False), ((1, 2, 0, 4, 3, 1), True)):
        run, record = begin(theta, net, method), blank_record(7, 11, 3, strided)
        assert all(run.advance(count, record) == Status.OK for count in cuts)
        results.append(contents(run, record))
    for whole, pieces in zip(*results, strict=True):
        assert same_bits(whole, pieces)
    assert np.isnan(results[0][4][0]).all()  # row 0 is not the backend's
    assert not np.isnan(results[0][4][1:]).any()
    assert not np.isnan(results[0][6]).any()


@pytest.mark.parametrize("method", METHODS)
def test_loop_of_kernels_gives_the_same(method, rng):
    theta, net = problem(rng, 6, "matrix")
    run, record = begin(theta, net, method), blank_record(6, 8, 1)
    assert run.advance(8, record) == Status.OK
    state, sizes, time = run.theta * 0 + np.mod(theta, TWO_PI), np.array([0.05, 0.5, 0.0]), 0.0
    parted = parts(net.knm, net.alpha)
    for step in range(8):
        status, state = take(method, state, net.omega, parted, zeta=0.4, psi=1.0, sizes=sizes)
        assert status == Status.OK
        time = time + sizes[2] if method == "rk45" else (step + 1) * 0.05
        assert same_bits(record.theta[step + 1], state)
        assert record.t[step + 1] == record.t_observe[step + 1] == time
    assert run.dt == sizes[0]


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("lagged", ["none", "matrix"])
def test_modulated_loop_is_modulate_and_step(every, lagged, rng):
    theta, net = problem(rng, 6, lagged, True)
    net.modulate_every = every
    run = begin(theta, net, "rk4")
    plan, plain = jit.ModulationPlan(net.modulation), copy.copy(net)
    plain.modulation = None
    single = begin(theta, plain, "rk4")
    for step in range(9):
        if step % every == 0:
            plain.knm = plan(net.knm, single.theta)
            single.set_network(plain)
        assert run.advance(1) == single.advance(1) == Status.OK
        assert circle_gap(run.theta, single.theta) <= 1e-14


@pytest.mark.parametrize("method", METHODS)
def test_state_that_overflows_is_reported(method, rng):
    theta, net = problem(rng, 5)
    run = begin(theta, net, method)
    assert run.advance(3) == Status.OK
    good = run.theta.copy(), run.t, run.dt, run.step
    spoiled = copy.copy(net)
    spoiled.omega = net.omega.copy()
    spoiled.omega[2] = np.inf
    run.set_network(spoiled)
    record = blank_record(5, 6, 1)
    assert run.advance(3, record) == Status.NONFINITE_STATE
    assert same_bits(run.theta, good[0])
    assert (run.t, run.dt, run.step) == good[1:]
    assert not np.isnan(record.R[3])
    assert np.isnan(record.R[4])


@pytest.mark.parametrize("method", METHODS)
def test_nan_start_is_reported(method, rng):
    theta, net = problem(rng, 5)
    theta[1] = np.nan
    run = begin(theta, net, method)
    assert run.advance(2) == Status.NONFINITE_STATE
    assert run.step == 0


def test_modulation_asks_for_symmetry(rng):
    theta, net = problem(rng, 5)
    net.modulation = parameters(rng)
    with pytest.raises(ValueError, match="knm must be symmetric"):
        begin(theta, net, "rk4")


def test_advance_without_a_network():
    with pytest.raises(RuntimeError, match="set_network"):
        jit.Integration(2, "rk4", 0.1, 1e-6, 1e-3).advance(1)


@pytest.mark.parametrize("modulated", [False, True])
def test_copies_go_on_alike(modulated, rng):
    theta, net = problem(rng, 5, "matrix", modulated)
    run = begin(theta, net, "rk45")
    run.advance(4)
    twins = [pickle.loads(pickle.dumps(run)), copy.deepcopy(run)]
    for each in (run, *twins):
        assert each.advance(5) == Status.OK
    assert all(same_bits(run.theta, twin.theta) and run.t == twin.t for twin in twins)


def test_plans_survive_copying_and_threads(rng):
    knm, theta = symmetric(rng, 12), phases(rng, 12)
    plan = jit.ModulationPlan(parameters(rng, block_size=5))
    bound, expected = plan.bind(knm), plan(knm, theta)
    for twin in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert same_bits(twin(knm, theta), expected)
    for twin in (bound, pickle.loads(pickle.dumps(bound)), copy.deepcopy(bound)):
        assert same_bits(twin(theta), expected)
    results = [None] * 8

    def work(index):
        results[index] = [(plan(knm, theta), bound(theta)) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same_bits(a, expected) and same_bits(b, expected) for pairs in results for a, b in pairs)


def test_bound_modulation_keeps_its_own_coupling(rng):
    knm, theta = symmetric(rng, 9), phases(rng, 9)
    bound = jit.ModulationPlan(parameters(rng)).bind(knm)
    before = bound(theta)
    knm[:] = 0.0
    assert same_bits(before, bound(theta))
    assert not bound.knm.flags.writeable
    np.testing.assert_allclose(np.linalg.norm(bound.factors(theta), axis=1), 1.0, rtol=1e-9)
    with pytest.raises(ValueError, match="theta must be finite"):
        bound(np.full(9, np.nan))


def test_plan_refusals_name_the_argument(rng):
    knm, theta = symmetric(rng, 6), phases(rng, 6)
    plan = jit.ModulationPlan(parameters(rng))
    with pytest.raises(ValueError, match=r"theta must be finite, got nan at index 2"):
        plan(knm, np.where(np.arange(6) == 2, np.nan, theta))
    skew = knm.copy()
    skew[1, 2] += 1.0
    with pytest.raises(ValueError, match="knm must be symmetric"):
        plan(skew, theta)
    with pytest.raises(ValueError, match="must not overlap"):
        plan(knm, theta, knm)


@pytest.mark.skipif(UNCOMPILED, reason="nothing is compiled")
def test_one_compilation_whatever_the_flags(rng):
    knm, theta = symmetric(rng, 6), phases(rng, 6)
    plan = jit.ModulationPlan(parameters(rng))
    plan(knm, theta)
    before = len(jit.attention.modulate.signatures)
    for array in (knm.astype(np.float32), knm.tolist(), np.asfortranarray(knm)):
        plan(array, list(theta)) if not isinstance(array, list) else plan(array, theta)
    frozen, still = knm.copy(), theta.copy()
    frozen.flags.writeable = still.flags.writeable = False
    assert same_bits(plan(frozen, still), plan(knm, theta))
    assert len(jit.attention.modulate.signatures) == before


EMBEDDED = """
    import warnings
    warnings.simplefilter("error")
    import numpy as np
    from numba import njit, prange
    from spo_fast import kernels
    euler, fourth = kernels.euler_step, kernels.rk4_step
    adaptive, order = kernels.rk45_step, kernels.order_parameter
    drift, units, part = kernels.rhs, kernels.factors, kernels.lagged_coupling

    @njit(cache=True, parallel=True)
    def ensemble(theta, w, knm, none, work, sizes, r, psi, q, o, tau, parts, found, speed):
        part(knm, knm, parts[0], parts[1])
        for m in prange(theta.shape[0]):
            units(knm, theta[m], q, q, q, o, -1, tau, found[m])
            for _ in range(5):
                drift(theta[m], w, parts[0], parts[1], 0.0, 0.0, 0.0, work[m], speed[m])
                euler(theta[m], w, knm, none, 0.0, 0.0, 0.0, 0.01, work[m], theta[m])
                fourth(theta[m], w, knm, none, 0.0, 0.0, 0.0, 0.01, work[m], theta[m])
                adaptive(theta[m], w, knm, none, 0.0, 0.0, 0.0, sizes[m], 1e-6, 1e-3, work[m], theta[m])
        return order(theta, r, psi)

    n = 4
    theta = np.arange(8.0).reshape(2, n)
    sizes = np.full((2, 3), 0.01)
    r, psi, found, speed = np.empty(2), np.empty(2), np.empty((2, n, 2)), np.empty((2, n))
    work, parts, q = np.empty((2, kernels.WORK_ROWS, n)), np.empty((2, n, n)), np.ones((1, 2, 2))
    knm = np.ones((n, n)) - np.eye(n)
    given = (theta, np.ones(n), knm, np.empty((0, 0)), work, sizes, r, psi, q, np.eye(2), np.ones(1))
    status = ensemble(*given, parts, found, speed)
    hits = sum(ensemble.stats.cache_hits.values())
    assert np.allclose(np.linalg.norm(found, axis=2), 1.0)
    assert np.isfinite(speed).all()
    print(hits, status, r.tolist(), psi.tolist(), speed.tolist(), found.tolist(), parts.tolist())
"""


@pytest.mark.skipif(UNCOMPILED, reason="nothing is cached uncompiled")
def test_embedding_in_a_parallel_cached_function(tmp_path):
    script = tmp_path / "user.py"
    script.write_text(textwrap.dedent(EMBEDDED))
    settings = os.environ | {
        "PYTHONPATH": str(ROOT),
        "NUMBA_CACHE_DIR": str(tmp_path / "c"),
        "NUMBA_NUM_THREADS": "2",
    }
    outputs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(script)],
            env=settings,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        outputs.append(done.stdout.split(maxsplit=1))
    assert [hits for hits, _ in outputs] == ["0", "1"]
    assert outputs[0][1] == outputs[1][1]
