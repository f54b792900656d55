"""Ensembles: every member is the run it would be alone."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import SPARSE_BACKENDS
from samples import METHODS, circle_gap, network, phases, same_bits, symmetric

import spo_fast
from spo_fast.backends import registry
from spo_fast.backends.status import Status

M, N = 5, 12
ALL = ("R", "psi")


def couplings(rng, m=M, n=N):
    return np.stack([symmetric(rng, n, 0.6) for _ in range(m)])


def members(run, method):
    """What each member recorded, in the shape of a single run."""
    for m in range(run.theta.shape[1]):
        own = [run.t, run.t_observe] if run.t.ndim == 1 else [run.t[:, m], run.t_observe[:, m]]
        dt = run.dt if np.ndim(run.dt) == 0 else run.dt[m]
        yield (*own, run.theta[:, m], run.R[:, m], run.psi[:, m], run.final[m], np.float64(dt))


def alone(run):
    return run.t, run.t_observe, run.theta, run.R, run.psi, run.final, np.float64(run.dt)


def assert_members(run, singles, method, exact=True, n_steps=20):
    for member, single in zip(members(run, method), map(alone, singles), strict=True):
        for got, wanted in zip(member, single, strict=True):
            assert got.shape == wanted.shape
            if exact:
                assert same_bits(np.ascontiguousarray(got), wanted)
        assert circle_gap(member[2], single[2]) <= n_steps * 1e-12
        assert circle_gap(member[5], single[5]) <= n_steps * 1e-12
        np.testing.assert_allclose(member[3], single[3], rtol=0, atol=n_steps * 1e-12)
        assert circle_gap(member[4], single[4]) <= n_steps * 1e-11


# ---------------------------------------------------------------- members equal single runs


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulation", [None, {}, {"block_size": 2}])
@pytest.mark.parametrize("every", [None, 1, 3])
def test_own_couplings(backend, rng, method, modulation, every):
    theta, knm, omega = rng.uniform(-9, 9, (M, N)), couplings(rng), rng.normal(0.0, 1.0, N)
    given = {"dt": 0.05, "n_steps": 20, "method": method, "modulation": modulation, "observe": ALL}
    given |= {"alpha": 0.2, "zeta": 0.3, "psi": 1.0, "record_every": every, "backend": backend}
    run = spo_fast.simulate(theta, omega, knm, **given)
    assert_members(run, [spo_fast.simulate(theta[m], omega, knm[m], **given) for m in range(M)], method)
    assert run.status.tolist() == [0] * M and run.steps.tolist() == [20] * M


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("lags", ["none", "number", "matrix"])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 8, 9, 17])
def test_a_shared_coupling(backend, rng, method, own, lags, m):
    _, omega, knm, alpha = network(rng, N)
    theta = rng.uniform(-9, 9, (m, N))
    omegas = rng.normal(0.0, 1.0, (m, N)) if own else omega
    lag = {"none": None, "number": 0.4, "matrix": alpha}[lags]
    given = {"dt": 0.05, "n_steps": 20, "method": method, "alpha": lag, "observe": ALL, "record_every": 3}
    given |= {"zeta": 0.3, "psi": 1.0, "backend": backend}
    run = spo_fast.simulate(theta, omegas, knm, **given)
    each = omegas if own else [omega] * m
    singles = [spo_fast.simulate(theta[i], each[i], knm, **given) for i in range(m)]
    assert_members(run, singles, method, exact=not together(backend, method))


def together(backend, method):
    """Whether members that share a coupling are advanced side by side, which rounds otherwise."""
    return method != "rk45" and hasattr(registry.load(backend), "Batch")


def of_kind(kind, knm, backend):
    """The coupling as asked for, where the backend takes it."""
    if kind == "sparse" and backend not in SPARSE_BACKENDS:
        pytest.skip(f"{backend} takes dense coupling only")
    return sp.csr_array(knm) if kind == "sparse" else knm


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_own_strengths(backend, rng, method, kind):
    theta, knm = rng.uniform(-9, 9, (M, N)), symmetric(rng, N, 0.6)
    strengths = np.array([0.0, 0.1, 0.5, 1.0, 4.0])
    matrix = of_kind(kind, knm, backend)
    given = {"dt": 0.05, "n_steps": 20, "method": method, "observe": ALL, "backend": backend}
    run = spo_fast.simulate(theta, 1.0, matrix, modulation={"lambda_": strengths, "n_heads": 2}, **given)
    singles = [
        spo_fast.simulate(theta[m], 1.0, matrix, modulation={"lambda_": strengths[m], "n_heads": 2}, **given)
        for m in range(M)
    ]
    assert_members(run, singles, method, exact=not (kind == "dense" and together(backend, method)))


def modulated_case(case, rng, n):
    """Coupling and settings of an ensemble whose coupling follows its phases."""
    knm, settings = symmetric(rng, n, 1.0), {}
    if case == "missing edges":
        knm = symmetric(rng, n, 0.4)
    elif case == "band":
        settings = {"block_size": 2}
    elif case == "small temperature":
        settings = {"temperature": 0.05}
    elif case == "asymmetric within rounding":
        knm[0, 1:] *= 1 + 1e-14
        knm[1:2, 0], knm[0, 1:2] = 1e-13, 0.0
    elif case == "no edges":
        knm[:] = 0.0
    return knm, settings


CASES = ["plain", "missing edges", "band", "small temperature", "asymmetric within rounding", "no edges"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", ["euler", "rk4"])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13, 32])
def test_a_shared_coupling_that_follows_the_phases(rng, instruction_set, case, method, n):
    knm, settings = modulated_case(case, rng, n)
    m = 11
    theta, omegas = rng.uniform(-9, 9, (m, n)), rng.normal(0.0, 1.0, (m, n))
    strengths = np.where(np.arange(m) % 4 == 1, 0.0, rng.uniform(0.0, 3.0, m))
    given = {"dt": 0.05, "n_steps": 20, "method": method, "alpha": 0.3, "observe": ALL, "record_every": 3}
    given |= {"zeta": 0.3, "psi": 1.0, "modulate_every": 3, "backend": "cython"}
    run = spo_fast.simulate(theta, omegas, knm, modulation=settings | {"lambda_": strengths}, **given)
    singles = [
        spo_fast.simulate(theta[i], omegas[i], knm, modulation=settings | {"lambda_": strengths[i]}, **given)
        for i in range(m)
    ]
    assert_members(run, singles, method, exact=False)


@pytest.mark.parametrize("n_heads, d_model", [(1, 2), (2, 2), (2, 8), (1, 8), (2, 6), (5, 30)])
def test_widths_of_model_and_heads(rng, instruction_set, n_heads, d_model):
    projections = spo_fast.default_projections(n_heads=n_heads, d_model=d_model)
    modulation = dict(zip(("w_q", "w_k", "w_v", "w_o"), projections, strict=True), n_heads=n_heads)
    theta, knm = rng.uniform(-9, 9, (9, N)), symmetric(rng, N, 0.6)
    given = {"dt": 0.05, "n_steps": 20, "modulation": modulation, "observe": ALL, "backend": "cython"}
    run = spo_fast.simulate(theta, 1.0, knm, **given)
    singles = [spo_fast.simulate(row, 1.0, knm, **given) for row in theta]
    assert_members(run, singles, "rk4", exact=False)


def test_a_member_does_not_depend_on_its_neighbours(rng):
    """Not even where one of them has logits so wide that another shift is needed."""
    knm, theta = symmetric(rng, N, 0.6), rng.uniform(-9, 9, (8, N))
    modulation = {"temperature": 0.05}
    given = {"dt": 0.05, "n_steps": 20, "modulation": modulation, "backend": "cython"}
    run = spo_fast.simulate(theta, 1.0, knm, **given)
    other = spo_fast.simulate(np.vstack([theta[5], np.zeros((7, N))]), 1.0, knm, **given)
    assert same_bits(run.final[5], other.final[0])


def test_a_long_modulated_ensemble_is_one_run(rng):
    """K' is kept between the pieces in which a long run is done."""
    knm, theta = symmetric(rng, N, 0.6), rng.uniform(-9, 9, (5, N))
    modulation = registry.load("cython")
    network = spo_fast.ensemble.right_hand_side(N, np.ones(N), knm, None, 0.0, 0.0, {}, 4)
    finals = []
    for pieces in ([12], [1, 2, 3, 1, 5]):
        batch = modulation.Batch(5, N, "rk4", 0.05)
        batch.set_network(network, np.ones((5, N)))
        batch.start(theta)
        for steps in pieces:
            batch.advance(steps)
        finals.append(batch.theta.copy())
    assert same_bits(*finals)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("own", [True, False])
def test_a_shared_sparse_coupling(sparse_backend, rng, method, modulated, own):
    theta, knm = rng.uniform(-9, 9, (M, N)), sp.csr_array(symmetric(rng, N, 0.3))
    omega = rng.normal(0.0, 1.0, (M, N)) if own else np.full((M, N), 0.7)
    lags = sp.csr_array((rng.uniform(-1, 1, knm.nnz), knm.indices, knm.indptr), shape=knm.shape)
    given = {"dt": 0.05, "n_steps": 20, "method": method, "alpha": lags, "observe": ALL}
    given |= {"modulation": {} if modulated else None, "backend": sparse_backend}
    run = spo_fast.simulate(theta, omega if own else 0.7, knm, **given)
    assert_members(run, [spo_fast.simulate(theta[m], omega[m], knm, **given) for m in range(M)], method)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_modulator_is_shared(backend, rng, kind):
    knm = symmetric(rng, N, 0.6)
    modulator = spo_fast.Modulator(of_kind(kind, knm, backend), backend=backend)
    theta = rng.uniform(-9, 9, (M, N))
    given = {"dt": 0.05, "n_steps": 5, "modulation": modulator, "observe": ALL}
    run = spo_fast.simulate(theta, 1.0, None, **given)
    assert run.backend == backend
    singles = [spo_fast.simulate(row, 1.0, None, **given) for row in theta]
    assert_members(run, singles, "rk4", exact=not (kind == "dense" and together(backend, "rk4")))
    with pytest.raises(ValueError, match="knm must be"):
        spo_fast.simulate(theta, 1.0, couplings(rng), **given)


def test_every_member_of_rk45_has_its_own_steps(backend, rng):
    theta = np.tile(phases(rng, N), (3, 1))
    knm = symmetric(rng, N) * np.array([0.01, 1.0, 30.0])[:, None, None]
    run = spo_fast.simulate(
        theta, rng.normal(0, 1, N), knm, dt=0.1, n_steps=30, method="rk45", record_every=7, backend=backend
    )
    assert run.t.shape == (6, 3) and run.t_observe.shape == run.R.shape == (31, 3) and run.dt.shape == (3,)
    assert np.all(np.diff(run.t_observe, axis=0) > 0) and len(set(run.t[-1])) == 3
    assert np.array_equal(run.t[-1], run.t_observe[-1]) and np.array_equal(run.t[1], run.t_observe[7])


def test_one_hard_member_does_not_slow_the_others(backend, rng):
    """A hundred members of which one is coupled ten thousand times as strongly."""
    theta, omega = rng.uniform(0, 6, (100, 4)), rng.normal(0, 1, 4)
    knm = np.tile(symmetric(rng, 4), (100, 1, 1))
    knm[17] *= 1e4
    given = {"dt": 0.1, "n_steps": 10, "method": "rk45", "backend": backend}
    run = spo_fast.simulate(theta, omega, knm, **given)
    assert not run.status.any() and np.all(run.steps == 10) and np.isfinite(run.theta).all()
    assert run.t[-1, 17] < 0.01 * np.min(np.delete(run.t[-1], 17))
    easy = spo_fast.simulate(theta[16], omega, knm[16], **given)
    assert run.dt[16] == easy.dt and same_bits(run.final[16], easy.final)


# ---------------------------------------------------------------- failures


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
@pytest.mark.parametrize("own", ["coupling", "omega"])
@pytest.mark.parametrize("every", [None, 1, 2])
def test_a_member_that_fails_stops_alone(backend, own, every):
    """In the second Euler step of member 1 omega_0 + K_01 sin(...) exceeds the largest double."""
    knm = np.zeros((2, 2))
    knm[0, 1] = 1e308
    omega = np.array([[-1e308, 0.0], [1e308, 0.0], [-1e308, 1.0]])
    theta = np.tile([0.0, 3.3], (3, 1))
    if own == "coupling":
        omega, knm = omega[1], np.stack([np.zeros((2, 2)), knm, np.zeros((2, 2))])
    given = {"dt": 2.3e-308, "n_steps": 5, "method": "euler", "record_every": every, "observe": ALL}
    run = spo_fast.simulate(theta, omega, knm, **given, backend=backend)
    assert run.status.tolist() == [Status.OK, Status.NONFINITE_STATE, Status.OK]
    assert run.steps.tolist() == [5, 1, 5] and run.status.dtype.kind == "i"
    single = (omega, knm[1]) if own == "coupling" else (omega[1], knm)
    with pytest.raises(spo_fast.SimulationError) as caught:
        spo_fast.simulate(theta[1], *single, **given, backend=backend)
    result = caught.value.result
    assert (result.status, result.steps) == (Status.NONFINITE_STATE, 1)
    assert circle_gap(run.final[1], result.final) <= 1e-12 and np.isfinite(run.final).all()
    assert np.isfinite(run.R[:2, 1]).all() and np.isnan(run.R[2:, 1]).all() and np.isnan(run.psi[2:, 1]).all()
    stored = 1 + (1 // every if every else 0)
    assert np.isfinite(run.theta[:stored, 1]).all() and np.isnan(run.theta[stored:, 1]).all()
    healthy = np.delete(run.theta, 1, axis=1)
    assert np.isfinite(healthy).all() and np.isfinite(np.delete(run.R, 1, axis=1)).all()
    assert np.isfinite(run.t).all() and np.isfinite(run.t_observe).all()
    repr(run)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_times_of_a_failed_member_of_rk45(backend):
    """With omega at the largest double no step of any size is finite."""
    omega = np.array([[1.0, 1.0], [1.7e308, 1.7e308]])
    knm = np.full((2, 2), 1.7e308) * (1 - np.eye(2))
    knm = np.stack([np.zeros((2, 2)), knm])
    theta = np.array([[0.0, 1.0], [0.0, 1.0]])
    run = spo_fast.simulate(theta, omega, knm, dt=1.0, n_steps=3, method="rk45", backend=backend)
    assert run.status.tolist() == [0, Status.NONFINITE_STATE] and run.steps.tolist() == [3, 0]
    assert run.t[0].tolist() == [0.0, 0.0] and np.isnan(run.t[1, 1]) and np.isnan(run.t_observe[1:, 1]).all()
    assert np.isfinite(run.t[:, 0]).all() and same_bits(run.final[1], theta[1])
    assert "up to t=" in repr(run) and "nan" not in repr(run)


# ---------------------------------------------------------------- shapes, memory, results


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_steps", [0, 1, 7])
@pytest.mark.parametrize("every", [None, 1, 3])
@pytest.mark.parametrize("m", [0, 1, 3])
def test_shapes(backend, rng, method, n_steps, every, m):
    theta = rng.uniform(0, 6, (m, 4))
    run = spo_fast.simulate(
        theta, 1.0, symmetric(rng, 4), dt=0.1, n_steps=n_steps, method=method, record_every=every,
        observe=ALL, backend=backend,
    )  # fmt: skip
    stored = {0, n_steps} if every is None else {*range(0, n_steps + 1, every), n_steps}
    own = (m,) if method == "rk45" else ()
    assert run.theta.shape == (len(stored), m, 4) and run.t.shape == (len(stored), *own)
    assert run.R.shape == run.psi.shape == (n_steps + 1, m) and run.t_observe.shape == (n_steps + 1, *own)
    assert run.final.shape == (m, 4) and np.shape(run.dt) == own
    assert run.status.shape == run.steps.shape == (m,) and np.all(run.steps == n_steps)
    if m:
        assert same_bits(run.theta[0], theta) and same_bits(run.theta[-1], run.final)
        assert not run.t[0].any()
    if method != "rk45":
        assert run.t.tolist() == [step * 0.1 for step in sorted(stored)]
        assert run.t_observe.tolist() == [step * 0.1 for step in range(n_steps + 1)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulation", [None, {}])
def test_members_without_oscillators(backend, method, modulation):
    run = spo_fast.simulate(
        np.zeros((3, 0)), 1.0, np.zeros((0, 0)), dt=0.1, n_steps=2, method=method, modulation=modulation,
        backend=backend,
    )  # fmt: skip
    assert run.theta.shape == (2, 3, 0) and not run.R.any() and not run.status.any()


@pytest.mark.parametrize("observe, kept", [((), ()), (("R",), ("R",)), ("psi", ("psi",))])
def test_observe_chooses_what_is_kept(backend, rng, observe, kept):
    run = spo_fast.simulate(
        rng.uniform(0, 6, (2, 4)), 1.0, symmetric(rng, 4), dt=0.1, n_steps=3, observe=observe, backend=backend
    )
    for name in ALL:
        assert (getattr(run, name) is not None) == (name in kept)
    assert (run.t_observe is not None) == bool(kept)


def test_inputs_are_not_written(backend, rng):
    theta, omega, knm = rng.uniform(-9, 9, (M, N)), rng.normal(0, 1, (M, N)), couplings(rng)
    for array in (theta, omega, knm):
        array.flags.writeable = False
    spo_fast.simulate(theta, omega, knm, dt=0.1, n_steps=3, modulation={}, backend=backend)
    spo_fast.simulate(theta, omega, knm[0], dt=0.1, n_steps=3, backend=backend)


def test_lists_and_other_orders(backend, rng):
    theta, omega, knm = rng.uniform(0, 6, (M, N)), rng.normal(0, 1, (M, N)), couplings(rng)
    given = {"dt": 0.1, "n_steps": 3, "backend": backend}
    expected = spo_fast.simulate(theta, omega, knm, **given).final
    assert same_bits(spo_fast.simulate(theta.tolist(), omega.tolist(), knm.tolist(), **given).final, expected)
    assert same_bits(spo_fast.simulate(*map(np.asfortranarray, (theta, omega, knm)), **given).final, expected)


@pytest.mark.parametrize("modulation", [None, {"lambda_": np.linspace(0.0, 1.0, 100)}])
@pytest.mark.parametrize("observe", [(), ("R",)])
def test_memory_is_what_is_recorded(backend, rng, modulation, observe):
    """A sweep of 100 members over 40 oscillators; four times the steps take no more but what is observed."""
    theta, knm = rng.uniform(0, 6, (100, 40)), symmetric(rng, 40, 0.1)
    count = 2 if backend == "numpy" else 100

    def peak(n_steps):
        tracemalloc.start()
        try:
            run = spo_fast.simulate(
                theta, 1.0, knm, dt=0.01, n_steps=n_steps, modulation=modulation, observe=observe,
                method="euler", backend=backend,
            )  # fmt: skip
            assert np.isfinite(run.final).all()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)
    recorded = 3 * count * 101 * 8 if observe else 0
    assert peak(4 * count) - peak(count) <= recorded + 30_000


def test_bits_repeat_and_do_not_depend_on_workers_or_progress(backend, rng, capsys):
    pytest.importorskip("tqdm")
    theta, knm = rng.uniform(0, 6, (M, N)), symmetric(rng, N)
    for matrix in (knm, couplings(rng)):
        given = {"dt": 0.1, "n_steps": 30, "backend": backend}
        expected = spo_fast.simulate(theta, 1.0, matrix, **given)
        for more in ({"workers": 2}, {"progress": True}):
            again = spo_fast.simulate(theta, 1.0, matrix, **given, **more)
            assert same_bits(again.final, expected.final) and same_bits(again.R, expected.R)
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["rk4", "rk45"])
def test_result_survives_pickling(backend, rng, method):
    theta, knm = rng.uniform(0, 6, (M, N)), couplings(rng)
    run = spo_fast.simulate(theta, 1.0, knm, dt=0.1, n_steps=4, method=method, observe=ALL, backend=backend)
    again = pickle.loads(pickle.dumps(run))
    for name in ("t", "theta", "t_observe", "R", "psi", "final", "status", "steps"):
        assert np.array_equal(getattr(again, name), getattr(run, name))
    assert np.array_equal(again.dt, run.dt) and repr(again) == repr(run)
    assert f"M={M}, N={N}" in repr(run)


@pytest.mark.parametrize("method", METHODS)
def test_result_as_labelled_arrays(rng, method):
    pytest.importorskip("xarray")
    run = spo_fast.simulate(
        rng.uniform(0, 6, (M, N)), 1.0, symmetric(rng, N), dt=0.1, n_steps=6, method=method, record_every=2,
        observe=ALL, backend="numpy",
    )  # fmt: skip
    dataset = run.to_xarray()
    stored, observed = ("sample", "observation") if method == "rk45" else ("t", "t_observe")
    assert dataset["theta"].dims == (stored, "member", "oscillator")
    assert dataset["R"].dims == dataset["psi"].dims == (observed, "member")
    assert dataset["t"].dims == ((stored, "member") if method == "rk45" else (stored,))
    assert dataset["status"].dims == dataset["steps"].dims == ("member",)
    for name in ("theta", "R", "psi", "t", "t_observe", "status", "steps"):
        assert np.array_equal(dataset[name].values, getattr(run, name))
    if method == "rk45":
        assert np.array_equal(dataset["dt"].values, run.dt)
    else:
        assert dataset.attrs["dt"] == 0.1


def test_a_single_run_has_a_status_too(backend, rng):
    theta, omega, knm, _ = network(rng, 4)
    run = spo_fast.simulate(theta, omega, knm, dt=0.1, n_steps=6, backend=backend)
    assert (run.status, run.steps) == (0, 6)


# ---------------------------------------------------------------- refusals


def with_nan(shape, index, value=np.nan):
    array = np.ones(shape)
    array[index] = value
    return array


BAD = [
    ("theta", np.zeros((M, N + 1)), r"shape \(12,\) or \(M, 12\), got \(5, 13\)"),
    ("theta", with_nan((M, N), (2, 3)), r"finite, got nan at index \(2, 3\)"),
    ("theta", np.zeros((M, N), dtype=bool), "bool"),
    ("omega", np.zeros(M), r"a number or have shape \(12,\) or \(5, 12\), got \(5,\)"),
    ("omega", np.zeros((M, 1)), r"\(5, 1\)"),
    ("omega", np.zeros((M + 1, N)), r"\(6, 12\)"),
    ("omega", with_nan((M, N), (4, 0), np.inf), r"inf at index \(4, 0\)"),
    ("omega", None, "None"),
    ("knm", np.zeros((M + 1, N, N)), r"5 rows of theta, got \(6, 12, 12\)"),
    ("knm", np.zeros((M, N, N + 1)), r"\(5, 12, 13\)"),
    ("knm", np.zeros((N, M)), r"\(12, 5\)"),
    ("knm", np.zeros((1, 1, N, N)), r"\(1, 1, 12, 12\)"),
    ("knm", with_nan((M, N, N), (3, 1, 2)), r"nan at index \(3, 1, 2\)"),
    ("knm", [sp.csr_array((N, N))] * M, "csr_array"),
    ("knm", None, "None"),
    ("alpha", np.zeros((M, N, N)), r"\(5, 12, 12\)"),
    ("alpha", np.zeros(M), r"\(5,\)"),
    ("zeta", np.zeros(M), "ndarray"),
    (
        "modulation",
        {"lambda_": np.zeros(M + 1)},
        r"lambda_ must be a number or have shape \(5,\), got \(6,\)",
    ),
    ("modulation", {"lambda_": np.zeros((M, 1))}, r"lambda_ .* got \(5, 1\)"),
    ("modulation", {"lambda_": [0.1, 0.2, -0.3, 0.4, 0.5]}, r"lambda_\[2\] must be >= 0, got -0\.3"),
    ("modulation", {"lambda_": [0.1, 0.2, 0.3, 0.4, np.nan]}, r"lambda_\[4\] must be finite"),
    ("modulation", {"lambda_": [True] * M}, "lambda_ must hold real numbers, got True"),
    ("modulation", {"strength": 1.0}, "modulation"),
    ("modulation", 3, "modulation"),
]


@pytest.mark.parametrize("name, value, what", BAD)
def test_refusals(backend, name, value, what):
    given = {"theta": np.zeros((M, N)), "omega": 1.0, "knm": np.zeros((N, N)), "dt": 0.1, "n_steps": 0}
    with pytest.raises(ValueError, match=what) as caught:
        spo_fast.simulate(**given | {name: value}, backend=backend)
    assert name in str(caught.value) or name == "modulation"


@pytest.mark.parametrize("shape", [(N,), (1, 1, N)])
def test_many_couplings_or_strengths_need_many_rows(backend, shape):
    with pytest.raises(ValueError, match=r"knm must be a square|theta must have shape \(N,\) or \(M, N\)"):
        spo_fast.simulate(np.zeros(shape), 1.0, np.zeros((M, N, N)), dt=0.1, n_steps=1, backend=backend)
    with pytest.raises(ValueError, match=r"lambda_ must be a real number|theta must have shape"):
        spo_fast.simulate(
            np.zeros(shape), 1.0, np.zeros((N, N)), modulation={"lambda_": [0.1]}, dt=0.1, n_steps=1,
            backend=backend,
        )  # fmt: skip


@pytest.mark.parametrize(
    "value, what", [(2.0, r"knm\[3\] must be symmetric"), (1.0, r"knm\[3\] .* diagonal")]
)
def test_modulation_names_the_member_to_blame(backend, value, what):
    knm = np.zeros((M, N, N))
    knm[3, 1, 1 if value == 1.0 else 2] = value
    given = {"dt": 0.1, "n_steps": 0, "backend": backend}
    assert spo_fast.simulate(np.zeros((M, N)), 1.0, knm, **given).theta.shape == (1, M, N)
    with pytest.raises(ValueError, match=what):
        spo_fast.simulate(np.zeros((M, N)), 1.0, knm, modulation={}, **given)


def test_an_asymmetric_shared_coupling_is_not_modulated(backend, rng):
    for matrix in (np.triu(np.ones((N, N)), 1), sp.csr_array(np.triu(np.ones((N, N)), 1))):
        with pytest.raises(ValueError, match="knm must be symmetric"):
            spo_fast.simulate(
                np.zeros((M, N)), 1.0, matrix, modulation={}, dt=0.1, n_steps=0, backend=backend
            )


def test_an_engine_takes_one_state(backend):
    with pytest.raises(ValueError, match=r"phases must have shape \(12,\), got \(5, 12\)"):
        spo_fast.Engine(N, 0.1, backend=backend).step(np.zeros((M, N)), 1.0, np.zeros((N, N)))


def test_many_large_members_do_not_hold_up_an_interrupt(monkeypatch):
    """A step of a batch cannot be left half way, so that large ones go member by member."""
    module = registry.load("auto")
    if not hasattr(module, "Batch"):
        pytest.skip(f"backend {module.NAME} advances members in turn anyway")
    made = []
    monkeypatch.setattr(module, "Batch", lambda *arguments: made.append(arguments))
    for m, n in [(9, 200), (20_000, 120)]:
        knm = np.zeros((n, n))
        spo_fast.simulate(np.zeros((m, n)), 1.0, knm, dt=0.1, n_steps=0, observe=())
    assert not made
