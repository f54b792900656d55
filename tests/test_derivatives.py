"""Gradients of a modulation and of a trajectory: against complex steps, and by what they promise."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import derivatives as oracle
from samples import network, phases, relative, same_bits, symmetric

from spo_fast import (
    Modulator,
    SimulationError,
    default_projections,
    modulate,
    modulate_vjp,
    simulate,
    simulate_vjp,
)
from spo_fast import derivatives as module
from spo_fast.validation import as_sparse_coupling

NAMES = ("w_q", "w_k", "w_v", "w_o")
TOLERANCE = 1e-11  # of the contract's 1e-9


def weights(heads=2, width=4, seed=3):
    return dict(zip(NAMES, default_projections(heads, seed, width), strict=True))


def agree(found, expected, tolerance=TOLERANCE):
    """Each gradient by name, relative to the largest entry of all."""
    floor = 1e-3 * max(float(np.max(np.abs(value), initial=0.0)) for value in expected.values())
    for name, value in expected.items():
        error = relative(np.asarray(getattr(found, name), dtype=float), np.asarray(value), floor)
        assert error <= tolerance, (name, error)


def modulation_case(rng, n, **options):
    density = options.pop("density", 1.0)
    knm, theta = symmetric(rng, n, density, low=-1.0), rng.uniform(-9.0, 9.0, n)
    return knm, theta, rng.standard_normal((n, n)), {"n_heads": 2, **weights(), **options}


def modulation_gradients(knm, theta, grad, options):
    """Those of the oracle."""
    given = {"knm": knm, "theta": theta} | {name: options[name] for name in NAMES}
    heads = options["n_heads"]
    given["temperature"] = np.broadcast_to(options.get("temperature", 1.0), (heads,)).astype(float)
    given["lambda_"] = np.array([options.get("lambda_", 0.5)])
    block_size = options.get("block_size")
    found = oracle.gradients(lambda **by: oracle.modulate(**by, block_size=block_size), given, grad)
    if np.ndim(options.get("temperature", 1.0)) == 0:
        found["temperature"] = found["temperature"].sum()
    return found | {"lambda_": found["lambda_"][0]}


# ---------------------------------------------------------------- modulation

MODULATIONS = {
    "full": {"n": 6},
    "edges missing": {"n": 7, "density": 0.5},
    "band": {"n": 6, "block_size": 2},
    "temperatures": {"n": 5, "temperature": np.array([0.3, 2.0])},
    "cold": {"n": 5, "temperature": 0.02},
    "strong": {"n": 5, "lambda_": 3.0},
    "no strength": {"n": 5, "lambda_": 0.0},
    "one head": {"n": 5, "n_heads": 1, **weights(1, 4)},
    "wide head": {"n": 4, "n_heads": 1, **weights(1, 10)},
    "narrow heads": {"n": 4, "n_heads": 6, **weights(6, 6)},
    "pair": {"n": 2},
    "one": {"n": 1},
}


@pytest.mark.parametrize("name", MODULATIONS)
def test_modulation_by_complex_steps(name, sparse_backend, rng):
    options = dict(MODULATIONS[name])
    knm, theta, grad, options = modulation_case(rng, options.pop("n"), **options)
    found = modulate_vjp(knm, theta, grad, **options, backend=sparse_backend)
    agree(found, modulation_gradients(knm, theta, grad, options))


@pytest.mark.parametrize("name", MODULATIONS)
def test_sparse_modulation_is_the_dense_one_on_its_entries(name, sparse_backend, rng):
    sparse = pytest.importorskip("scipy.sparse")
    options = dict(MODULATIONS[name])
    knm, theta, grad, options = modulation_case(rng, options.pop("n"), **options)
    entries = sparse.csr_array(knm)
    stored = sparse.csr_array(((entries.data * 0.0 + 1.0), entries.indices, entries.indptr), entries.shape)
    held = stored.toarray()
    found = modulate_vjp(entries, theta, stored.multiply(grad), **options, backend=sparse_backend)
    expected = modulate_vjp(knm, theta, held * grad, **options, backend="numpy")
    assert sparse.issparse(found.knm) and found.knm.format == "csr"
    assert np.array_equal(found.knm.indices, entries.indices)
    rest = {field: getattr(expected, field) for field in expected.__slots__ if field != "knm"}
    agree(found, rest)
    assert relative(found.knm.toarray(), held * expected.knm) <= TOLERANCE


def test_edges_within_the_tolerance_of_symmetry(sparse_backend, rng):
    knm, theta, grad, options = modulation_case(rng, 6, density=0.6)
    knm[0, 3], knm[3, 0], knm[1, 2] = 3e-13, 0.0, knm[2, 1] + 3e-13
    found = modulate_vjp(knm, theta, grad, **options, backend=sparse_backend)
    agree(found, modulation_gradients(knm, theta, grad, options))


@pytest.mark.parametrize("n", [17, 40, 67])
@pytest.mark.parametrize("options", [{}, {"block_size": 5}, {"density": 0.4}, {"temperature": 0.01}])
def test_backends_agree_at_sizes_around_their_blocks(n, options, sparse_backend, rng):
    knm, theta, grad, options = modulation_case(rng, n, **options, **{"n_heads": 4, **weights(4, 8)})
    found, expected = (
        modulate_vjp(knm, theta, grad, **options, backend=name) for name in (sparse_backend, "numpy")
    )
    agree(found, {name: np.asarray(getattr(expected, name)) for name in expected.__slots__})


def test_nothing_comes_of_nothing(sparse_backend, rng):
    knm, theta, grad, options = modulation_case(rng, 5)
    found = modulate_vjp(knm, theta, 0.0 * grad, **options, backend=sparse_backend)
    assert not any(np.any(getattr(found, name)) for name in found.__slots__)
    empty = modulate_vjp(np.empty((0, 0)), [], np.empty((0, 0)), **options, backend=sparse_backend)
    assert empty.knm.shape == (0, 0) and empty.theta.shape == (0,)
    assert not empty.w_q.any() and empty.temperature == 0.0


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 20), density=st.floats(0.1, 1.0))
def test_a_modulation_is_linear_in_its_gradient_and_tells_slopes(seed, n, density):
    rng = np.random.default_rng(seed)
    knm, theta, grad, options = modulation_case(rng, n, density=density)
    other = rng.standard_normal((n, n))
    both = modulate_vjp(knm, theta, 2.0 * grad - other, **options)
    one, two = (modulate_vjp(knm, theta, g, **options) for g in (grad, other))
    agree(both, {k: 2.0 * np.asarray(getattr(one, k)) - getattr(two, k) for k in one.__slots__}, 1e-10)
    step, towards = 1e-5, rng.standard_normal(n)
    ahead, behind = (modulate(knm, theta + sign * step * towards, **options) for sign in (1.0, -1.0))
    slope = np.sum(grad * (ahead - behind)) / (2.0 * step)
    assert one.theta @ towards == pytest.approx(slope, rel=1e-6, abs=1e-6 * np.abs(grad).sum())


def test_the_gradient_at_a_symmetric_coupling_is_symmetric_without_a_diagonal(sparse_backend, rng):
    knm, theta, grad, options = modulation_case(rng, 20, density=0.7)
    found = modulate_vjp(knm, theta, grad, **options, backend=sparse_backend).knm
    assert np.array_equal(found, found.T) and not found.diagonal().any()
    absent = (knm == 0.0) & ~np.eye(20, dtype=bool)
    assert np.array_equal(found[absent], (0.5 * (grad + grad.T))[absent])


def test_workers_do_not_show(rng):
    knm, theta, grad, options = modulation_case(rng, 150)
    one, two = (modulate_vjp(knm, theta, grad, **options, workers=workers) for workers in (1, 2))
    assert all(same_bits(*(np.asarray(getattr(g, k)) for g in (one, two))) for k in one.__slots__)


def test_inputs_are_not_written_to(sparse_backend, rng):
    knm, theta, grad, options = modulation_case(rng, 20)
    before = [array.copy() for array in (knm, theta, grad)]
    for array in (knm, theta, grad):
        array.flags.writeable = False
    modulate_vjp(knm, theta, grad, **options, backend=sparse_backend)
    simulate_vjp(theta, theta, knm, theta, dt=0.1, n_steps=3, alpha=grad, backend=sparse_backend)
    assert all(same_bits(*pair) for pair in zip(before, (knm, theta, grad), strict=True))


def test_drawn_projections_are_those_of_the_forward_pass(rng):
    knm, theta, grad, _ = modulation_case(rng, 5)
    drawn = dict(zip(NAMES, default_projections(4, 7), strict=True))
    one = modulate_vjp(knm, theta, grad, projection_seed=7)
    two = modulate_vjp(knm, theta, grad, **drawn)
    assert all(same_bits(*(np.asarray(getattr(g, k)) for g in (one, two))) for k in one.__slots__)


def refused_gradients():
    sparse = pytest.importorskip("scipy.sparse")
    pair = np.array([[0.0, 1.0], [1.0, 0.0]])
    return [
        (pair, np.zeros((3, 3)), r"grad_out must have shape \(2, 2\), got \(3, 3\)"),
        (pair, [[0.0, np.nan], [0.0, 0.0]], r"grad_out must be finite, got nan at index \(0, 1\)"),
        (pair, [[0.0, True], [0.0, 0.0]], "grad_out must hold real numbers"),
        (sparse.csr_array(pair), pair, "grad_out must be a sparse matrix with the entries of the result"),
        (sparse.csr_array(pair), sparse.eye_array(2), "grad_out must have the 2 stored entries"),
    ]


@pytest.mark.parametrize("case", range(5))
def test_gradients_that_do_not_fit_are_refused(case):
    knm, grad, message = refused_gradients()[case]
    with pytest.raises(ValueError, match=message):
        modulate_vjp(knm, [0.0, 1.0], grad)


@pytest.mark.parametrize(
    "knm, theta, message",
    [
        ([[0.0, 1.0], [2.0, 0.0]], [0.0, 1.0], "knm must be symmetric"),
        ([[0.0, np.inf], [np.inf, 0.0]], [0.0, 1.0], "knm must be finite"),
        ([[1.0, 0.0], [0.0, 0.0]], [0.0, 1.0], "knm must have a zero diagonal"),
        ([[0.0, 1.0], [1.0, 0.0]], [0.0, np.nan], "theta must be finite"),
        ([[0.0, 1.0], [1.0, 0.0]], [0.0], "theta must have shape"),
    ],
)
def test_arguments_that_modulate_refuses_are_refused(knm, theta, message, sparse_backend):
    with pytest.raises(ValueError, match=message):
        modulate_vjp(knm, theta, np.zeros((2, 2)), backend=sparse_backend)


@pytest.mark.parametrize("name", ["rust", "go", "julia", "mojo", "fortran"])
def test_backends_without_derivatives_are_refused(name):
    with pytest.raises(ValueError, match=f"backend must be one of .*got '{name}'"):
        modulate_vjp([[0.0]], [0.0], [[0.0]], backend=name)


# ---------------------------------------------------------------- trajectories

RUNS = {
    "plain": {},
    "euler": {"method": "euler"},
    "uniform lag": {"alpha": 0.4},
    "lags": {"alpha": "each"},
    "driven": {"zeta": 0.7, "psi": 1.1, "alpha": -0.2},
    "modulated": {"modulation": {}},
    "modulated with lags": {"modulation": {}, "alpha": "each", "zeta": 0.3},
    "kept for two steps": {"modulation": {"temperature": np.array([0.5, 1.5])}, "modulate_every": 2},
    "banded euler": {"modulation": {"block_size": 1, "lambda_": 2.0}, "method": "euler"},
    "no strength": {"modulation": {"lambda_": 0.0}},
}
STEPS, DT = 3, 0.2


def run_case(name, rng, n=4, density=1.0):
    """Arguments of simulate, and all of them as arrays for the oracle."""
    options = {"dt": DT, "n_steps": STEPS, "method": "rk4", **RUNS[name]}
    theta, omega, knm, lags = network(rng, n)
    knm *= rng.random((n, n)) < density
    if options.get("alpha") == "each":
        options["alpha"] = lags
    arrays = {"theta": theta, "omega": omega, "knm": knm, "alpha": np.zeros((n, n)) + options.get("alpha", 0)}
    arrays["drive"] = np.array([options.get("zeta", 0.0), options.get("psi", 0.0)])
    if "modulation" in options:
        arrays["knm"] = knm = symmetric(rng, n, density)
        options["modulation"] = {"n_heads": 2, **weights(), **options["modulation"]}
    return (theta, omega, knm), options, arrays


def run_gradients(options, arrays, rows):
    """Those of the oracle from gradients at some states, by step."""
    modulation = options.get("modulation")
    given = dict(arrays)
    settings = {name: options[name] for name in ("dt", "n_steps", "method")}
    settings["every"] = options.get("modulate_every", 1)
    parts = (*NAMES, "temperature", "lambda_") if modulation else ()
    if modulation:
        given |= {name: modulation[name] for name in NAMES}
        given["temperature"] = np.broadcast_to(modulation.get("temperature", 1.0), (2,)).astype(float)
        given["lambda_"] = np.array([modulation.get("lambda_", 0.5)])
        settings["block_size"] = modulation.get("block_size")

    def states(**by):
        inner = tuple(by.pop(name) for name in parts)
        return oracle.trajectory(*by.values(), inner, **settings)[list(rows)]

    found = oracle.gradients(states, given, np.array(list(rows.values())))
    found["zeta"], found["psi"] = found.pop("drive")
    if not isinstance(options.get("alpha"), np.ndarray):
        total = found.pop("alpha").sum()
        if "alpha" in options:
            found["alpha"] = total
    if modulation:
        found["lambda_"] = found["lambda_"][0]
        if "temperature" not in modulation:
            found["temperature"] = found["temperature"].sum()
    return found


@pytest.mark.parametrize("name", RUNS)
def test_trajectory_by_complex_steps(name, sparse_backend, rng):
    given, options, arrays = run_case(name, rng)
    grad = rng.standard_normal(4)
    found = simulate_vjp(*given, grad, **options, backend=sparse_backend)
    agree(found, run_gradients(options, arrays, {STEPS: grad}))
    assert "alpha" in options or found.alpha is None
    assert "modulation" in options or found.w_q is None


@pytest.mark.parametrize("every, steps", [(1, (0, 1, 2, 3)), (2, (0, 2, 3)), (3, (0, 3)), (None, (0, 3))])
@pytest.mark.parametrize("name", ["plain", "kept for two steps"])
def test_gradients_at_all_stored_states(name, every, steps, sparse_backend, rng):
    given, options, arrays = run_case(name, rng, 3)
    grad = rng.standard_normal((len(steps), 3))
    found = simulate_vjp(*given, grad, **options, record_every=every, backend=sparse_backend)
    agree(found, run_gradients(options, arrays, dict(zip(steps, grad, strict=True))))


@pytest.mark.parametrize("name", RUNS)
def test_sparse_trajectory_is_the_dense_one_on_its_entries(name, sparse_backend, rng):
    sparse = pytest.importorskip("scipy.sparse")
    (theta, omega, knm), options, _ = run_case(name, rng, 9, density=0.5)
    held, grad = knm != 0.0, rng.standard_normal(9)
    expected = simulate_vjp(theta, omega, knm, grad, **options, backend="numpy")
    if isinstance(options.get("alpha"), np.ndarray):
        stored = sparse.csr_array(knm)
        stored.data = options["alpha"][held]
        options["alpha"] = stored
    found = simulate_vjp(theta, omega, sparse.csr_array(knm), grad, **options, backend=sparse_backend)
    assert relative(found.knm.toarray(), held * expected.knm) <= TOLERANCE
    if sparse.issparse(found.alpha):
        assert relative(found.alpha.toarray(), held * expected.alpha) <= TOLERANCE
    names = [k for k in expected.__slots__ if k not in ("knm", "alpha") and getattr(expected, k) is not None]
    agree(found, {k: np.asarray(getattr(expected, k)) for k in names})


@pytest.mark.parametrize("n", [16, 37, 70])
@pytest.mark.parametrize("name", ["plain", "lags", "driven"])
def test_backends_agree_on_trajectories_of_many_evaluations(name, n, sparse_backend, rng):
    given, options, _ = run_case(name, rng, n)
    grad, options["n_steps"], options["dt"] = rng.standard_normal(n), 11, 0.02
    found, expected = (
        simulate_vjp(*given, grad, **options, backend=name) for name in (sparse_backend, "numpy")
    )
    names = [k for k in expected.__slots__ if getattr(expected, k) is not None]
    agree(found, {k: np.asarray(getattr(expected, k)) for k in names})


@pytest.mark.parametrize("name", ["plain", "lags", "modulated", "kept for two steps"])
@pytest.mark.parametrize("piece", [1, 1 << 23])
def test_checkpoints_and_pieces_do_not_show(name, piece, sparse_backend, rng, monkeypatch):
    monkeypatch.setattr(module, "_PIECE", piece)
    given, options, _ = run_case(name, rng, 6)
    options |= {"n_steps": 23, "record_every": 5, "backend": sparse_backend}
    grad = rng.standard_normal((6, 6))
    whole = simulate_vjp(*given, grad, **options)
    for every in (1, 3, 5, 23, 100):
        found = simulate_vjp(*given, grad, **options, checkpoint_every=every)
        for k in found.__slots__:
            if getattr(whole, k) is not None:
                assert same_bits(np.asarray(getattr(found, k)), np.asarray(getattr(whole, k))), (k, every)


def test_a_long_run_keeps_the_square_root_of_its_states(rng, monkeypatch):
    monkeypatch.setattr(module, "_TAPE_BYTES", 0)
    made = []
    original = module.Flow.make_room
    monkeypatch.setattr(
        module.Flow, "make_room", lambda flow, steps: (made.append(steps), original(flow, steps))
    )
    given, options, _ = run_case("plain", rng)
    for n_steps in (0, 1, 2, 9, 10, 100, 101):
        simulate_vjp(*given, np.ones(4), **options | {"n_steps": n_steps})
    assert made == [1, 1, 2, 3, 4, 10, 11]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("n, n_steps", [(0, 2), (1, 2), (2, 2), (4, 0)])
def test_smallest_runs(name, n, n_steps, sparse_backend, rng):
    given, options, arrays = run_case(name, rng, n)
    options["n_steps"] = n_steps
    grad = rng.standard_normal(n)
    found = simulate_vjp(*given, grad, **options, backend=sparse_backend)
    if n:
        agree(found, run_gradients(options, arrays, {n_steps: grad}), 1e-10)
    assert found.theta.shape == (n,) and found.knm.shape == (n, n)


def test_numbers_come_back_as_numbers(rng):
    (theta, _, knm), options, arrays = run_case("plain", rng)
    grad = rng.standard_normal(4)
    found = simulate_vjp(theta, 1.5, knm, grad, **options)
    arrays["omega"] = np.full(4, 1.5)
    assert found.omega == pytest.approx(run_gradients(options, arrays, {STEPS: grad})["omega"].sum())
    assert isinstance(found.omega, float) and isinstance(found.zeta, float)


def test_a_modulator_brings_its_coupling(sparse_backend, rng):
    (theta, omega, knm), options, _ = run_case("modulated", rng)
    keywords = options.pop("modulation")
    by_name = simulate_vjp(theta, omega, knm, theta, modulation=keywords, **options, backend=sparse_backend)
    modulator = Modulator(knm, **keywords, backend=sparse_backend)
    by_object = simulate_vjp(theta, omega, None, theta, modulation=modulator, **options)
    assert by_object.temperature.shape == (2,)
    assert by_object.temperature.sum() == by_name.temperature
    assert all(
        same_bits(*(np.asarray(getattr(g, k)) for g in (by_name, by_object)))
        for k in ("theta", "omega", "knm", *NAMES, "lambda_")
    )


def test_the_sum_of_all_phases_follows_the_sum_of_frequencies(sparse_backend, rng):
    """With symmetric coupling the mean phase moves by the mean frequency, whatever the coupling does."""
    n, steps, dt = 12, 40, 0.05
    knm = symmetric(rng, n)
    found = simulate_vjp(phases(rng, n), 0.3, knm, np.ones(n), dt=dt, n_steps=steps, backend=sparse_backend)
    assert np.max(np.abs(found.theta - 1.0)) < 1e-13
    assert found.omega == pytest.approx(n * steps * dt, rel=1e-13)
    assert np.max(np.abs(found.knm + found.knm.T)) < 1e-13


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 20), modulated=st.booleans())
def test_a_trajectory_is_linear_in_its_gradient_and_tells_slopes(seed, n, modulated):
    rng = np.random.default_rng(seed)
    given, options, _ = run_case("modulated with lags" if modulated else "lags", rng, n)
    options["n_steps"] = 6
    grad, other, towards = rng.standard_normal((3, n))
    one, two, both = (simulate_vjp(*given, g, **options) for g in (grad, other, 2.0 * grad - other))
    names = [k for k in one.__slots__ if getattr(one, k) is not None]
    agree(both, {k: 2.0 * np.asarray(getattr(one, k)) - getattr(two, k) for k in names}, 1e-10)
    theta, omega, knm = given
    step = 1e-5
    ends = [simulate(theta, omega + s * step * towards, knm, **options).final for s in (1.0, -1.0)]
    moved = np.remainder(ends[0] - ends[1] + np.pi, 2.0 * np.pi) - np.pi
    assert one.omega @ towards == pytest.approx(grad @ moved / (2.0 * step), rel=1e-6, abs=1e-6)


def test_phases_of_any_size_and_turns_are_the_same(sparse_backend, rng):
    (theta, omega, knm), options, _ = run_case("modulated", rng)
    one, two = (
        simulate_vjp(theta + turns, omega, knm, theta, **options, backend=sparse_backend)
        for turns in (0.0, 2000.0 * np.pi)
    )
    agree(two, {k: np.asarray(getattr(one, k)) for k in ("theta", "omega", "knm", *NAMES)}, 1e-9)


def test_a_state_that_turns_infinite_is_told(sparse_backend):
    knm = np.array([[0.0, 1e308], [1e308, 0.0]])
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(SimulationError, match="in step 1"):
        simulate_vjp([0.0, 1.0], 1e308, knm, [1.0, 1.0], dt=1e10, n_steps=3, backend=sparse_backend)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"method": "rk45"}, "method must be 'euler' or 'rk4' for derivatives, got 'rk45'.*no derivative"),
        ({"method": "heun"}, "method must be one of"),
        ({"theta": np.zeros((2, 4))}, r"theta must have shape \(N,\) for derivatives"),
        ({"theta": [0.0, np.inf, 0.0, 0.0]}, "theta must be finite"),
        ({"knm": np.full((4, 4), np.nan)}, "knm must be finite"),
        ({"grad_out": np.zeros(3)}, r"grad_out must have shape \(4,\) or \(2, 4\), got \(3,\)"),
        ({"grad_out": np.zeros((3, 4))}, r"grad_out must have shape \(4,\) or \(2, 4\), got \(3, 4\)"),
        ({"grad_out": [0.0, np.nan, 0.0, 0.0]}, "grad_out must be finite"),
        ({"checkpoint_every": 0}, "checkpoint_every must be an integer >= 1"),
        ({"record_every": 0}, "record_every must be an integer >= 1"),
        ({"dt": 0.0}, "dt must be positive"),
        ({"n_steps": -1}, "n_steps must be an integer >= 0"),
        ({"workers": 0}, "workers must be an integer >= 1"),
        ({"backend": "rust"}, "backend must be one of .* for derivatives"),
    ],
)
def test_what_has_no_derivative_or_does_not_fit_is_refused(changed, message, rng):
    theta, omega, knm, _ = network(rng, 4)
    given = {"theta": theta, "omega": omega, "knm": knm, "grad_out": np.ones(4), "dt": 0.1, "n_steps": 2}
    with pytest.raises(ValueError, match=message):
        simulate_vjp(**given | changed)


def test_results_can_be_pickled_and_copied(rng):
    theta, omega, knm, _ = network(rng, 3)
    results = [
        simulate_vjp(theta, omega, knm, theta, dt=0.1, n_steps=2),
        modulate_vjp(symmetric(rng, 3), theta, knm),
    ]
    for found in results:
        for twin in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
            assert type(twin) is type(found) and same_bits(twin.theta, found.theta)


def test_mirrors_of_entries():
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(0)
    coupling = as_sparse_coupling(sparse.csr_array(symmetric(rng, 12, 0.3)), symmetric=True)
    mirror = module.backends.mirror_of(coupling)
    assert np.array_equal(coupling.rows()[mirror], coupling.indices)
    assert np.array_equal(coupling.indices[mirror], coupling.rows())


@pytest.mark.parametrize("name", ["full", "edges missing", "band", "narrow heads", "wide head", "cold"])
def test_modulation_with_each_instruction_set(name, instruction_set, rng):
    options = dict(MODULATIONS[name])
    knm, theta, grad, options = modulation_case(rng, options.pop("n") + 20, **options)
    for form in (np.asarray, pytest.importorskip("scipy.sparse").csr_array):
        given = form(knm), theta, form(grad * (knm != 0.0))
        found, expected = (modulate_vjp(*given, **options, backend=name) for name in ("cython", "numpy"))
        agree(found, {k: getattr(expected, k) for k in expected.__slots__ if k != "knm"})
        difference = found.knm - expected.knm
        assert np.abs(difference).max() <= TOLERANCE * np.abs(expected.knm).max()


@pytest.mark.parametrize("name", ["plain", "lags", "driven"])
@pytest.mark.parametrize("n", [3, 8, 29])
def test_trajectory_with_each_instruction_set(name, n, instruction_set, rng):
    given, options, _ = run_case(name, rng, n)
    options["n_steps"] = 7
    grad = rng.standard_normal(n)
    found, expected = (simulate_vjp(*given, grad, **options, backend=name) for name in ("cython", "numpy"))
    names = [k for k in expected.__slots__ if getattr(expected, k) is not None]
    agree(found, {k: getattr(expected, k) for k in names})


@pytest.mark.parametrize("diagonal", [0.0, 0.3])
def test_large_symmetric_couplings_with_each_instruction_set(diagonal, instruction_set, rng):
    n = 403
    knm = symmetric(rng, n, low=-1.0) / n + diagonal * np.eye(n)
    theta, grad = phases(rng, n), rng.standard_normal(n)
    options = {"dt": 0.05, "n_steps": 3, "alpha": 0.2, "zeta": 0.1}
    found, expected = (simulate_vjp(theta, 1.0, knm, grad, **options, backend=b) for b in ("cython", "numpy"))
    agree(found, {k: getattr(expected, k) for k in ("theta", "omega", "knm", "alpha", "zeta", "psi")})


def test_graphs_and_labelled_matrices_are_couplings():
    networkx, pandas = pytest.importorskip("networkx"), pytest.importorskip("pandas")
    graph, theta, grad = networkx.path_graph(3), np.array([0.0, 1.0, 2.5]), np.arange(9.0).reshape(3, 3)
    dense = networkx.to_numpy_array(graph)
    expected = modulate_vjp(dense, theta, grad)
    found = modulate_vjp(pandas.DataFrame(dense), theta, pandas.DataFrame(grad))
    np.testing.assert_array_equal(found.knm, expected.knm)
    sparse = networkx.to_scipy_sparse_array(graph)
    found = modulate_vjp(graph, theta, sparse)
    np.testing.assert_array_equal(found.theta, modulate_vjp(sparse, theta, sparse).theta)
    shuffled = pandas.DataFrame(dense, index=list("abc"), columns=list("acb"))
    with pytest.raises(ValueError, match="knm must have the same labels"):
        modulate_vjp(shuffled, theta, grad)
