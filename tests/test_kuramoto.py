"""Engine: single steps against the loops, the direction of the coupling, and hard phases."""

from __future__ import annotations

import concurrent.futures
import copy
import pickle

import numpy as np
import pytest
from oracles import kuramoto as oracle
from samples import METHODS, circle_gap, network, same_bits, symmetric

import spo_fast


def engine(n, method="rk4", dt=0.05, **keywords):
    return spo_fast.Engine(n, dt, method, **keywords)


def assert_follows_oracle(theta, omega, knm, *, method, backend, n_steps=6, dt=0.05, **drive):
    """Steps and step sizes of a few steps; tolerances wide enough that no rounding decides about a step."""
    states, _, steps = oracle.trajectory(theta, omega, knm, n_steps=n_steps, dt=dt, method=method, **drive)
    stepper, state = engine(len(theta), method, dt, backend=backend), theta
    for expected, dt_after in zip(states[1:], steps, strict=True):
        state = stepper.step(state, omega, knm, **drive)
        assert circle_gap(state, expected) <= 1e-11
        assert stepper.last_dt == pytest.approx(dt_after, rel=1e-9)


# ---------------------------------------------------------------- against the oracle


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 17])
def test_asymmetric_coupling_and_lag(backend, rng, method, n):
    theta, omega, knm, alpha = network(rng, n)
    assert_follows_oracle(theta, omega, knm, method=method, backend=backend, alpha=alpha, zeta=0.7, psi=2.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("asymmetric", ["knm", "alpha"])
def test_asymmetry_on_one_side_only(backend, rng, method, asymmetric):
    theta, omega, knm, alpha = network(rng, 6)
    if asymmetric == "knm":
        alpha = symmetric(rng, 6, low=-1.0)
    else:
        knm = symmetric(rng, 6)
    assert_follows_oracle(theta, omega, knm, method=method, backend=backend, alpha=alpha)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("alpha", [None, 0.0, 0.4, -2.5, 1])
def test_one_lag_for_all(backend, rng, method, alpha):
    theta, omega, knm, _ = network(rng, 7)
    assert_follows_oracle(theta, omega, knm, method=method, backend=backend, alpha=alpha)


@pytest.mark.parametrize("method", METHODS)
def test_lag_that_equals_a_number_everywhere(backend, rng, method):
    theta, omega, knm, _ = network(rng, 7)
    a, b = engine(7, method, backend=backend), engine(7, method, backend=backend)
    for _ in range(4):
        uniform, full = (
            a.step(theta, omega, knm, alpha=0.3),
            b.step(theta, omega, knm, alpha=np.full((7, 7), 0.3)),
        )
        assert circle_gap(uniform, full) <= 1e-13
        theta = uniform


@pytest.mark.parametrize("method", METHODS)
def test_drive_alone(backend, rng, method):
    theta, omega, _, _ = network(rng, 5)
    assert_follows_oracle(theta, omega, np.zeros((5, 5)), method=method, backend=backend, zeta=-1.2, psi=7.0)


@pytest.mark.parametrize("method", METHODS)
def test_diagonal_with_a_lag_counts(backend, rng, method):
    """sin(0 - alpha_ii) is not zero: a self-coupling shifts the frequency by -K_ii sin(alpha_ii)."""
    theta, omega, knm, alpha = network(rng, 4)
    knm = knm + np.diag([0.5, -0.2, 0.0, 1.0])
    assert_follows_oracle(theta, omega, knm, method=method, backend=backend, alpha=alpha)
    assert_follows_oracle(theta, omega, knm, method=method, backend=backend, alpha=0.7)


@pytest.mark.parametrize("n", [64, 131])
def test_large_network(backend, rng, n):
    theta, omega, knm, alpha = network(rng, n)
    assert_follows_oracle(theta, omega, knm, method="rk4", backend=backend, alpha=alpha, n_steps=2)


def test_rejected_attempts_shrink_the_step(backend, rng):
    """A first step far too long is rejected, and a fourth failure is taken."""
    theta, omega, knm, _ = network(rng, 5)
    for dt, strength in [(0.5, 30.0), (2.0, 3000.0)]:
        settings = {"dt": dt, "method": "rk45", "atol": 1e-5, "rtol": 1e-5}
        states, _, steps = oracle.trajectory(theta, omega, knm * strength, n_steps=1, **settings)
        stepper = spo_fast.Engine(5, backend=backend, **settings)
        state = stepper.step(theta, omega, knm * strength)
        assert steps[0] < dt
        assert circle_gap(state, states[1]) <= 1e-9
        assert stepper.last_dt == pytest.approx(steps[0], rel=1e-9)


def test_step_size_is_capped_at_ten_times_the_first(backend):
    stepper = engine(2, "rk45", 0.01, backend=backend)
    sizes = []
    for _ in range(4):
        stepper.step([0.0, 1.0], [1.0, 2.0], np.zeros((2, 2)))
        sizes.append(stepper.last_dt)
    assert sizes == pytest.approx([0.05, 0.1, 0.1, 0.1], rel=1e-12)


def test_last_dt_of_fixed_methods_is_dt(backend, rng):
    theta, omega, knm, _ = network(rng, 3)
    for method in ("euler", "rk4"):
        stepper = engine(3, method, 0.03, backend=backend)
        stepper.step(theta, omega, knm)
        assert stepper.last_dt == 0.03


# ---------------------------------------------------------------- direction of the coupling


@pytest.mark.parametrize("method", METHODS)
def test_a_row_is_pulled_by_its_columns(backend, method):
    """K with the single entry K[0, 1] = 1 moves oscillator 0 and nobody else."""
    knm = np.zeros((3, 3))
    knm[0, 1] = 1.0
    theta = np.array([0.5, 1.5, 4.0])
    after = engine(3, method, 0.01, backend=backend).step(theta, np.zeros(3), knm)
    assert np.max(np.abs(after[1:] - theta[1:])) <= 1e-15
    assert after[0] - theta[0] == pytest.approx(0.01 * np.sin(1.0), rel=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_a_lag_is_read_by_its_row(backend, method):
    """alpha[0, 1] delays the pull of 1 on 0; alpha[1, 0] concerns an absent edge."""
    knm, alpha = np.zeros((2, 2)), np.zeros((2, 2))
    knm[0, 1] = 1.0
    alpha[1, 0] = 0.9
    theta = np.array([0.5, 1.5])
    ignored = engine(2, method, 0.01, backend=backend).step(theta, np.zeros(2), knm, alpha=alpha)
    felt = engine(2, method, 0.01, backend=backend).step(theta, np.zeros(2), knm, alpha=alpha.T)
    assert ignored[0] - theta[0] == pytest.approx(0.01 * np.sin(1.0), rel=0.01)
    assert felt[0] - theta[0] == pytest.approx(0.01 * np.sin(0.1), rel=0.1)


@pytest.mark.parametrize("method", METHODS)
def test_transposed_coupling_is_another_network(backend, rng, method):
    theta, omega, knm, alpha = network(rng, 3)
    stepper = [engine(3, method, backend=backend) for _ in range(3)]
    plain = stepper[0].step(theta, omega, knm, alpha=alpha)
    assert circle_gap(plain, stepper[1].step(theta, omega, knm.T, alpha=alpha)) > 1e-3
    assert circle_gap(plain, stepper[2].step(theta, omega, knm, alpha=alpha.T)) > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_isolated_oscillator_disturbs_nobody(backend, rng, method):
    theta, omega, knm, alpha = network(rng, 5)
    knm[2, :] = knm[:, 2] = 0.0
    rest = [0, 1, 3, 4]
    whole, part = engine(5, method, backend=backend), engine(4, method, backend=backend)
    state, others = theta, theta[rest]
    elapsed, dt = 0.0, 0.05
    for _ in range(20):
        state = whole.step(state, omega, knm, alpha=alpha)
        others = part.step(others, omega[rest], knm[np.ix_(rest, rest)], alpha=alpha[np.ix_(rest, rest)])
        elapsed, dt = elapsed + dt, whole.last_dt
    assert circle_gap(state[rest], others) <= 1e-12
    assert circle_gap(state[2], theta[2] + omega[2] * elapsed) <= 1e-11


# ---------------------------------------------------------------- phases


@pytest.mark.parametrize("method", METHODS)
def test_phases_are_wrapped(backend, rng, method):
    theta, omega, knm, _ = network(rng, 6)
    theta = theta + 2.0 * np.pi * np.array([-3, 0, 5, -1, 100, 7])
    after = engine(6, method, backend=backend).step(theta, omega, knm)
    assert np.all((after >= 0.0) & (after < 2.0 * np.pi))


@pytest.mark.parametrize("tiny", [-1e-300, -1e-20, -5e-324, -1e-17])
def test_a_wrapped_value_that_rounds_to_a_full_turn_is_zero(backend, tiny):
    for method in METHODS:
        after = engine(1, method, backend=backend).step([tiny], [0.0], [[0.0]])
        assert after[0] == 0.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("turns", [1, -1, 1000, -(10**6)])
def test_full_turns_change_neither_state_nor_step(backend, rng, method, turns):
    theta, omega, knm, alpha = network(rng, 6)
    shifted = theta + 2.0 * np.pi * turns * np.array([1, 0, 1, -1, 1, 1])
    a, b = engine(6, method, backend=backend), engine(6, method, backend=backend)
    budget = 1e-12 + 20.0 * np.spacing(np.abs(shifted).max())
    for _ in range(5):
        theta, shifted = (a.step(theta, omega, knm, alpha=alpha), b.step(shifted, omega, knm, alpha=alpha))
        assert circle_gap(theta, shifted) <= budget
        assert a.last_dt == pytest.approx(b.last_dt, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_large_single_precision_phases_are_wrapped_in_double(backend, rng, method):
    theta, omega, knm, _ = network(rng, 4)
    large = (theta + 2e6).astype(np.float32)
    single = engine(4, method, backend=backend).step(large, omega, knm)
    double = engine(4, method, backend=backend).step(large.astype(np.float64), omega, knm)
    assert same_bits(single, double)


def test_huge_phases_are_reduced_exactly(backend):
    """1e22 is the classical hard case: its remainder modulo the double 2 pi is known exactly."""
    for angle in (1e9, 1e15, 1e22, -1e22, 1e300):
        after = engine(1, "euler", 1e-9, backend=backend).step([angle], [0.0], [[0.0]])
        assert circle_gap(after[0], np.fmod(angle, 2.0 * np.pi)) <= 1e-15


@pytest.mark.parametrize("method", METHODS)
def test_identical_oscillators_stay_together(backend, rng, method):
    knm = symmetric(rng, 8)
    knm *= 1.0 / knm.sum(axis=1, keepdims=True)
    theta = np.full(8, 1.234)
    stepper = engine(8, method, 0.05, backend=backend)
    theta = stepper.run(theta, np.full(8, 0.7), knm, n_steps=2000)
    assert circle_gap(theta, theta[0]) <= 1e-12


@pytest.mark.parametrize("difference", [0.0, np.pi, np.pi / 2, -np.pi / 2])
def test_special_phase_differences(backend, difference):
    theta = np.array([1.0, 1.0 + difference])
    after = engine(2, "euler", 0.25, backend=backend).step(theta, [0.0, 0.0], [[0.0, 1.0], [0.0, 0.0]])
    assert circle_gap(after[0], 1.0 + 0.25 * np.sin(difference)) <= 1e-15


# ---------------------------------------------------------------- input


@pytest.mark.parametrize("method", METHODS)
def test_layouts_types_and_lists(backend, rng, method):
    theta, omega, knm, alpha = network(rng, 6)
    expected = engine(6, method, backend=backend).step(theta, omega, knm, alpha=alpha)
    for change in (np.asfortranarray, lambda x: x.tolist(), lambda x: np.repeat(x, 2, axis=0)[::2]):
        given = [change(x) for x in (theta, omega, knm)]
        assert same_bits(engine(6, method, backend=backend).step(*given, alpha=change(alpha)), expected)
    for array in (theta, omega, knm, alpha):
        array.flags.writeable = False
    assert same_bits(engine(6, method, backend=backend).step(theta, omega, knm, alpha=alpha), expected)


def test_result_is_a_fresh_array(backend, rng):
    theta, omega, knm, _ = network(rng, 4)
    before = theta.copy()
    stepper = engine(4, backend=backend)
    first = stepper.step(theta, omega, knm)
    kept = first.copy()
    second = stepper.step(first, omega, knm)
    assert same_bits(theta, before) and same_bits(first, kept) and not np.shares_memory(first, second)


@pytest.mark.parametrize("bad", ["theta", "omega", "knm", "alpha"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_input_raises_before_the_step(backend, rng, bad, value):
    inputs = dict(zip(("theta", "omega", "knm", "alpha"), network(rng, 4), strict=True))
    inputs[bad].flat[-2] = value
    for method in METHODS:
        with pytest.raises(ValueError, match=r"phases|omegas|knm|alpha"):
            engine(4, method, backend=backend).step(
                inputs["theta"], inputs["omega"], inputs["knm"], alpha=inputs["alpha"]
            )


@pytest.mark.parametrize("name", ["zeta", "psi", "alpha"])
def test_non_finite_numbers_are_refused_by_name(backend, rng, name):
    theta, omega, knm, _ = network(rng, 4)
    with pytest.raises(ValueError, match=name):
        engine(4, backend=backend).step(theta, omega, knm, **{name: np.nan})


def test_columns_are_never_broadcast(backend, rng):
    theta, omega, knm, _ = network(rng, 4)
    for given in [(theta[:, None], omega), (theta, omega[:, None]), (theta[None], omega), (theta[:3], omega)]:
        with pytest.raises(ValueError, match=r"\(4,\)"):
            engine(4, backend=backend).step(*given, knm)


@pytest.mark.parametrize("method", METHODS)
def test_no_oscillators(backend, method):
    stepper = engine(0, method, backend=backend)
    assert stepper.step(np.zeros(0), np.zeros(0), np.zeros((0, 0))).shape == (0,)
    assert stepper.run(np.zeros(0), np.zeros(0), np.zeros((0, 0)), n_steps=5).shape == (0,)


# ---------------------------------------------------------------- run


@pytest.mark.parametrize("method", METHODS)
def test_run_is_the_loop_of_steps(backend, rng, method):
    theta, omega, knm, alpha = network(rng, 6)
    a, b = engine(6, method, backend=backend), engine(6, method, backend=backend)
    state = theta
    for _ in range(25):
        state = a.step(state, omega, knm, zeta=0.3, psi=1.0, alpha=alpha)
    assert circle_gap(b.run(theta, omega, knm, zeta=0.3, psi=1.0, alpha=alpha, n_steps=25), state) <= 1e-12
    assert b.last_dt == pytest.approx(a.last_dt, rel=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_run_in_pieces(backend, rng, method):
    theta, omega, knm, alpha = network(rng, 6)
    a, b = engine(6, method, backend=backend), engine(6, method, backend=backend)
    whole = a.run(theta, omega, knm, alpha=alpha, n_steps=30)
    state = theta
    for n_steps in (7, 1, 0, 22):
        state = b.run(state, omega, knm, alpha=alpha, n_steps=n_steps)
    assert same_bits(state, whole) and a.last_dt == b.last_dt


@pytest.mark.parametrize("method", METHODS)
def test_runs_repeat_to_the_bit(backend, rng, method):
    theta, omega, knm, alpha = network(rng, 40)
    results = [
        engine(40, method, backend=backend).run(theta, omega, knm, alpha=alpha, n_steps=20) for _ in range(3)
    ]
    assert same_bits(results[0], results[1]) and same_bits(results[0], results[2])


def test_coupling_edited_in_place_between_steps_is_read_afresh(backend, rng):
    theta, omega, knm, alpha = network(rng, 5)
    stepper = engine(5, backend=backend)
    stepper.step(theta, omega, knm, alpha=alpha)
    knm *= 3.0
    alpha += 0.5
    expected = engine(5, backend=backend).step(theta, omega, knm.copy(), alpha=alpha.copy())
    assert same_bits(stepper.step(theta, omega, knm, alpha=alpha), expected)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_an_engine_go_on_alike(backend, rng, copied):
    theta, omega, knm, _ = network(rng, 4)
    stepper = engine(4, "rk45", backend=backend)
    theta = stepper.run(theta, omega, knm, n_steps=2)
    twin = copied(stepper)
    assert twin.last_dt == stepper.last_dt
    twin_result = twin.run(theta, omega, knm, n_steps=3)
    assert same_bits(twin_result, stepper.run(theta, omega, knm, n_steps=3))
    assert twin.last_dt == stepper.last_dt


def test_engines_in_threads_do_not_meet(threaded_backend, rng):
    problems = [network(rng, 20) for _ in range(16)]

    def run(problem):
        theta, omega, knm, alpha = problem
        return engine(20, backend=threaded_backend).run(theta, omega, knm, alpha=alpha, n_steps=50)

    expected = [run(problem) for problem in problems]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result, serial in zip(pool.map(run, problems, timeout=120), expected, strict=True):
            assert same_bits(result, serial)


def test_threads_may_share_an_engine(threaded_backend, rng):
    theta, omega, knm, _ = network(rng, 24)
    engine = spo_fast.Engine(24, 0.01, "rk4", backend=threaded_backend)
    starts = [theta + k for k in range(8)]
    expected = [engine.run(start, omega, knm, n_steps=20) for start in starts]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            results = list(pool.map(lambda start: engine.run(start, omega, knm, n_steps=20), starts))
            assert all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True))


def test_no_steps_refuse_what_is_not_finite(backend):
    engine = spo_fast.Engine(2, 0.1, backend=backend)
    with pytest.raises(ValueError, match="omegas"):
        engine.run([0.0, 1.0], [np.nan, 1.0], np.zeros((2, 2)), n_steps=0)


@pytest.mark.parametrize("name", ["n_steps", "record_every", "modulate_every"])
def test_counts_beyond_64_bits_are_refused_by_name(backend, name):
    keywords = {"dt": 0.1, "n_steps": 1, name: 10**30}
    with pytest.raises(ValueError, match=name):
        spo_fast.simulate([0.0, 1.0], 1.0, np.zeros((2, 2)), backend=backend, **keywords)
    with pytest.raises(ValueError, match="n_oscillators"):
        spo_fast.Engine(10**5000, 0.1, backend=backend)
