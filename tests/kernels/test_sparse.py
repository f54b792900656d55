"""The kernels over compressed rows and the compiled loop on them: they say what the dense ones say."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from oracles import kuramoto as oracle
from oracles import modulation as modulation_oracle
from samples import METHODS, circle_gap, network, phases, same_bits, symmetric

from spo_fast import kernels, validation
from spo_fast.backends import jit
from spo_fast.backends.record import Record
from spo_fast.backends.status import Status
from spo_fast.kernels import kuramoto as steps
from spo_fast.kernels import sparse

ROOT = Path(__file__).resolve().parents[2]
UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def frozen(array):
    """A read-only view, as the backend hands it over: the kernels are compiled once."""
    view = array.view()
    view.flags.writeable = False
    return view


def compressed(knm, keep=None):
    """Row bounds, columns and values of the entries to keep: those that are not zero, unless told."""
    rows, columns = np.nonzero(knm if keep is None else keep)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(knm)))])
    arrays = bounds.astype(np.int64), columns.astype(np.int32), np.ascontiguousarray(knm[rows, columns])
    return tuple(map(frozen, arrays))


def dense(indptr, indices, data):
    n = indptr.size - 1
    out = np.zeros((n, n))
    out[np.repeat(np.arange(n), np.diff(indptr)), indices] = data
    return out


def weights(rng, heads=4, width=8, scale=0.45):
    projections = [scale * rng.standard_normal((heads, width, width // heads)) for _ in range(3)]
    return (*projections, scale * rng.standard_normal((width, width)))


def run(edges, mean, theta, projections, *, block_size=-1, temperature=1.0, lambda_=0.5):
    """Status and K' as a dense matrix."""
    out = np.full(edges[2].size, np.nan)
    tau = np.full(projections[0].shape[0], float(temperature))
    status = kernels.modulate_sparse(*edges, frozen(mean), theta, *projections, block_size, tau, lambda_, out)
    return status, out if status else dense(*edges[:2], out)


def expected_modulation(knm, theta, projections, *, block_size=-1, temperature=1.0, lambda_=0.5):
    limit = None if block_size < 0 else block_size
    result = modulation_oracle.modulate(
        knm, theta, *projections, block_size=limit, temperature=temperature, lambda_=lambda_
    )
    return np.array(result).reshape(knm.shape)


# ---------------------------------------------------------------- modulation


@pytest.mark.parametrize("n", [0, 1, 2, 7, 16, 40])
@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(("heads", "width"), [(4, 8), (3, 6), (2, 12)])
def test_modulation_is_that_of_the_dense_matrix(n, density, heads, width, rng):
    knm, theta, projections = symmetric(rng, n, density), rng.uniform(-9, 9, n), weights(rng, heads, width)
    edges = compressed(knm)
    status, out = run(edges, edges[2], theta, projections)
    assert status == Status.OK
    expected = expected_modulation(knm, theta, projections)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13 * np.max(expected, initial=0.0))
    assert same_bits(out, out.T)


@pytest.mark.parametrize("block_size", [0, 1, 5])
def test_band(block_size, rng):
    knm, theta, projections = symmetric(rng, 19, 0.6), phases(rng, 19), weights(rng)
    edges = compressed(knm)
    status, out = run(edges, edges[2], theta, projections, block_size=block_size)
    assert status == Status.OK
    expected = expected_modulation(knm, theta, projections, block_size=block_size)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-13)
    index = np.arange(19)
    outside = np.abs(index[:, None] - index) > block_size
    assert np.array_equal(out[outside], knm[outside])


@pytest.mark.parametrize("temperature", [1e-4, 0.02, 50.0])
def test_logits_of_any_size(temperature, rng):
    knm, theta, projections = symmetric(rng, 21, 0.4), phases(rng, 21), weights(rng)
    edges = compressed(knm)
    status, out = run(edges, edges[2], theta, projections, temperature=temperature)
    assert status == Status.OK
    expected = expected_modulation(knm, theta, projections, temperature=temperature)
    # The logits themselves are rounded: their error grows with their size.
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13 + 4e-15 / temperature)


def test_stored_zeros_and_diagonal_are_no_neighbours(rng):
    """Explicit zeros, a diagonal within the tolerance, and a pair that one side alone sees."""
    knm, theta, projections = symmetric(rng, 12, 0.7), phases(rng, 12), weights(rng)
    knm[4], knm[:, 4] = 0.0, 0.0
    knm[2, 2] = 5e-13
    knm[1, 7], knm[7, 1] = 0.0, 1e-13
    edges = compressed(knm, np.ones_like(knm))
    mean = np.ascontiguousarray(0.5 * (knm + knm.T) * (1 - np.eye(12))).reshape(-1)
    status, out = run(edges, mean, theta, projections)
    assert status == Status.OK
    expected = expected_modulation(knm, theta, projections)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-13)
    np.testing.assert_allclose(out[1, 7], expected[1, 7], rtol=1e-12)
    assert same_bits(out, out.T)
    assert not out.diagonal().any()
    assert not out[4].any()


@pytest.mark.skipif(UNCOMPILED, reason="large for uncompiled code")
def test_hub_with_more_neighbours_than_are_taken_at_a_time(rng):
    n = sparse._EDGES + 300
    knm = np.zeros((n, n))
    knm[7, :] = knm[:, 7] = rng.uniform(0.1, 1.0, n)
    knm[7, 7] = 0.0
    theta, projections, edges = phases(rng, n), weights(rng), compressed(knm)
    units, expected = np.empty((n, 8)), np.empty((n, 8))
    tau = np.ones(4)
    assert kernels.factors_sparse(*edges, theta, *projections, -1, tau, units) == Status.OK
    assert kernels.factors(knm, theta, *projections, -1, tau, expected) == Status.OK
    np.testing.assert_allclose(units, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("block_size", [-1, 4])
def test_factors(block_size, rng):
    knm, theta, projections = symmetric(rng, 20, 0.3), phases(rng, 20), weights(rng)
    knm[3], knm[:, 3] = 0.0, 0.0
    units, expected, tau = np.full((20, 8), np.nan), np.empty((20, 8)), np.ones(4)
    status = kernels.factors_sparse(*compressed(knm), theta, *projections, block_size, tau, units)
    assert status == Status.OK
    kernels.factors(knm, theta, *projections, block_size, tau, expected)
    np.testing.assert_allclose(units, expected, rtol=0, atol=1e-13)
    assert not units[3].any()


def test_zero_strength_copies_bits(rng):
    knm = symmetric(rng, 9)
    knm[3, 3], knm[1, 2] = -0.0, knm[1, 2] * (1 + 1e-13)
    edges = compressed(knm, np.ones_like(knm))
    status, out = run(edges, edges[2], phases(rng, 9), weights(rng), lambda_=0.0)
    assert status == Status.OK
    assert same_bits(out, knm)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("value", Status.NONFINITE_COUPLING),
        ("mean", Status.NONFINITE_COUPLING),
        ("phase", Status.NONFINITE_PHASE),
        ("column", Status.INVALID_ARGUMENT),
        ("negative column", Status.INVALID_ARGUMENT),
        ("bounds", Status.INVALID_ARGUMENT),
        ("rows", Status.INVALID_ARGUMENT),
        ("strength", Status.INVALID_ARGUMENT),
        ("temperature", Status.INVALID_ARGUMENT),
    ],
)
def test_refusals(name, status, rng):
    edges = [array.copy() for array in compressed(symmetric(rng, 8, 0.8))]
    mean, theta, options = edges[2].copy(), phases(rng, 8), {}
    if name == "value":
        edges[2][3] = np.nan
    elif name == "mean":
        mean[3] = np.inf
    elif name == "phase":
        theta[7] = np.nan
    elif name == "column":
        edges[1][4] = 8
    elif name == "negative column":
        edges[1][4] = -1
    elif name == "bounds":
        edges[0][3] = edges[0][4] + 1
    elif name == "rows":
        theta = theta[:-1].copy()
    else:
        options = {"lambda_": -0.5} if name == "strength" else {"temperature": 0.0}
    got, out = run(tuple(map(frozen, edges)), mean, theta, weights(rng), **options)
    assert got == status
    assert np.isnan(out).all()


# ---------------------------------------------------------------- right-hand side


@pytest.mark.parametrize("n", [1, 2, 7, 17])
@pytest.mark.parametrize("lagged", ["none", "uniform", "matrix", "both"])
def test_rhs_of_asymmetric_networks(n, lagged, rng):
    theta, omega, knm, alpha = network(rng, n)
    knm *= rng.random((n, n)) < 0.5
    knm[0, 0] = 0.3  # the right-hand side takes a self-coupling as it is
    indptr, indices, data = compressed(knm)
    lag = 0.7 if lagged in ("uniform", "both") else 0.0
    matrix = alpha if lagged in ("matrix", "both") else np.zeros((n, n))
    lags = matrix[np.repeat(np.arange(n), np.diff(indptr)), indices]
    parts = (
        (data, np.empty(0)) if lagged in ("none", "uniform") else (data * np.cos(lags), data * np.sin(lags))
    )
    out, work = np.empty(n), np.full((steps.SPARSE_WORK_ROWS, n), np.nan)
    status = kernels.rhs_sparse(theta, omega, indptr, indices, *map(frozen, parts), lag, 0.4, 1.1, work, out)
    assert status == Status.OK
    expected = oracle.derivative(theta, omega, knm, 0.4, 1.1, matrix + lag)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13)


def test_rhs_refuses_wrong_shapes(rng):
    theta, omega, knm, _ = network(rng, 5)
    edges, none, out = compressed(knm), frozen(np.empty(0)), np.empty(5)
    work = np.empty((steps.SPARSE_WORK_ROWS, 5))
    tail = (0.0, 0.0, 0.0, work, out)
    assert kernels.rhs_sparse(theta, omega[:4], *edges, none, *tail) == Status.INVALID_ARGUMENT
    assert kernels.rhs_sparse(theta[:4], omega[:4], *edges, none, *tail) == Status.INVALID_ARGUMENT
    assert kernels.rhs_sparse(theta, omega, *edges, edges[2][:3], *tail) == Status.INVALID_ARGUMENT
    few = (0.0, 0.0, 0.0, work[: steps.WORK_ROWS], out)
    assert kernels.rhs_sparse(theta, omega, *edges, none, *few) == Status.INVALID_ARGUMENT


# ---------------------------------------------------------------- the loop


def parameters(rng, lambda_=0.5, block_size=None):
    return validation.modulation_parameters(
        *weights(rng), n_heads=4, block_size=block_size, temperature=1.0, lambda_=lambda_
    )


def pair_of_networks(rng, n, lagged="none", modulated=False):
    """One problem as a dense and as a sparse network."""
    theta, omega, knm, alpha = network(rng, n)
    knm = symmetric(rng, n, 0.5) * (2.0 / n) if modulated else knm * (rng.random((n, n)) < 0.5)
    lag = {"none": None, "uniform": 0.3, "matrix": alpha}[lagged]
    full = validation.network(n, omega, knm, lag, 0.4, 1.0)
    coupling = validation.as_sparse_coupling(scipy.sparse.csr_array(knm), symmetric=modulated)
    few = copy.copy(full)
    few.knm = coupling
    if lagged == "matrix":
        few.alpha = alpha[np.repeat(np.arange(n), np.diff(coupling.indptr)), coupling.indices]
    if modulated:
        full.modulation = few.modulation = parameters(rng)
        full.modulate_every = few.modulate_every = 3
    return theta, full, few


def begin(theta, net, method):
    integration = jit.Integration(theta.size, method, 0.05, 1e-6, 1e-3)
    integration.set_network(net)
    integration.start(theta)
    return integration


def blank_record(n, n_steps):
    return Record(2, np.full((n_steps // 2 + 1, n), np.nan), None, np.full(n_steps + 1, np.nan), None, None)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lagged", ["none", "uniform", "matrix"])
@pytest.mark.parametrize("modulated", [False, True])
def test_steps_are_those_of_the_dense_network(method, lagged, modulated, rng):
    theta, full, few = pair_of_networks(rng, 9, lagged, modulated)
    one, other = begin(theta, full, method), begin(theta, few, method)
    for step in range(1, 10):
        assert one.advance(1) == other.advance(1) == Status.OK
        assert circle_gap(one.theta, other.theta) <= 1e-12 * step
        assert other.t == pytest.approx(one.t, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulated", [False, True])
def test_pieces_give_the_bits_of_the_whole(method, modulated, rng):
    theta, _, few = pair_of_networks(rng, 7, "matrix", modulated)
    results = []
    for cuts in ((11,), (1, 2, 0, 4, 3, 1)):
        integration, record = begin(theta, few, method), blank_record(7, 11)
        assert all(integration.advance(count, record) == Status.OK for count in cuts)
        results.append((integration.theta, integration.t, integration.dt, record.theta, record.R))
    assert all(same_bits(whole, pieces) for whole, pieces in zip(*results, strict=True))


@pytest.mark.parametrize("modulated", [False, True])
def test_a_network_without_edges_runs_freely(modulated, rng):
    theta, omega, *_ = network(rng, 4)
    net = validation.network(4, omega, np.zeros((4, 4)), None, 0.0, 0.0)
    net.knm = validation.as_sparse_coupling(scipy.sparse.csr_array((4, 4)), symmetric=True)
    net.modulation = parameters(rng) if modulated else None
    integration = begin(theta, net, "rk4")
    assert integration.advance(3) == Status.OK
    assert circle_gap(integration.theta, theta + 0.15 * omega) < 1e-14


def test_overflow_is_reported_and_the_state_kept(rng):
    theta, _, few = pair_of_networks(rng, 5)
    few.omega = np.where(np.arange(5) == 3, np.inf, few.omega)
    integration = begin(theta, few, "rk4")
    assert integration.advance(3) == Status.NONFINITE_STATE
    assert circle_gap(integration.theta, theta) < 1e-15
    assert integration.step == 0


def test_change_of_kind_in_a_run(rng):
    """The same object takes a dense network, then a sparse one."""
    theta, full, few = pair_of_networks(rng, 8, "matrix", True)
    one, other = begin(theta, full, "rk4"), begin(theta, full, "rk4")
    for net in (few, full, few):
        other.set_network(net)
        one.set_network(full)
        assert one.advance(2) == other.advance(2) == Status.OK
        assert circle_gap(one.theta, other.theta) <= 1e-11


def test_copies_go_on_alike(rng):
    theta, _, few = pair_of_networks(rng, 5, "matrix", True)
    integration = begin(theta, few, "rk45")
    integration.advance(4)
    twins = [pickle.loads(pickle.dumps(integration)), copy.deepcopy(integration)]
    assert all(each.advance(5) == Status.OK for each in (integration, *twins))
    assert all(same_bits(integration.theta, twin.theta) for twin in twins)


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize("block_size", [None, 3])
def test_plan(block_size, rng):
    knm, theta = symmetric(rng, 14, 0.4), phases(rng, 14)
    knm[2, 5] *= 1 + 1e-13
    coupling = validation.as_sparse_coupling(scipy.sparse.csr_matrix(knm), symmetric=True)
    plan = jit.ModulationPlan(parameters(rng, block_size=block_size))
    out = dense(coupling.indptr, coupling.indices, plan.modulate_sparse(coupling, theta))
    np.testing.assert_allclose(out, plan(knm, theta), rtol=1e-13, atol=0)
    assert same_bits(out, out.T)
    units = plan.factors_sparse(coupling, theta)
    np.testing.assert_allclose(units, plan.bind(knm).factors(theta), rtol=0, atol=1e-13)


def test_plan_refusals(rng):
    knm, theta = scipy.sparse.csr_array(symmetric(rng, 6, 0.7)), phases(rng, 6)
    plan = jit.ModulationPlan(parameters(rng))
    theta[2] = np.nan
    coupling = validation.as_sparse_coupling(knm, symmetric=True)
    for function in (plan.modulate_sparse, plan.factors_sparse):
        with pytest.raises(ValueError, match=r"theta must be finite, got nan at index 2"):
            function(coupling, theta)
    unchecked = validation.as_sparse_coupling(knm)
    with pytest.raises(ValueError, match="symmetry"):
        plan.modulate_sparse(unchecked, phases(rng, 6))
    net = validation.network(6, np.ones(6), np.zeros((6, 6)), None, 0.0, 0.0)
    net.knm, net.modulation = unchecked, parameters(rng)
    with pytest.raises(ValueError, match="symmetry"):
        begin(phases(rng, 6), net, "rk4")


# ---------------------------------------------------------------- compilation

ASK = """
import numpy as np
from spo_fast import validation
from spo_fast.backends import jit
from spo_fast.kernels import kuramoto, sparse
net = validation.network(3, np.ones(3), np.ones((3, 3)), None, 0.0, 0.0)
run = jit.Integration(3, "rk4", 0.1, 1e-6, 1e-3)
run.set_network(net)
run.start(np.zeros(3))
run.advance(1)
print(len(sparse.apply_modulation_sparse.signatures), len(kuramoto._drift_sparse.signatures))
"""

EMBEDDED = """
    import warnings
    warnings.simplefilter("error")
    import numpy as np
    from numba import njit
    from spo_fast import kernels
    pull = kernels.rhs_sparse

    @njit(cache=True)
    def twice(theta, indptr, indices, data, none, work, out):
        status = pull(theta, theta, indptr, indices, data, none, 0.0, 0.0, 0.0, work, out)
        return status + pull(theta, theta, indptr, indices, data, none, 0.0, 0.0, 0.0, work, out)

    pattern = np.array([0, 1, 2]), np.array([1, 0], dtype=np.int32)
    values, none, out = np.ones(2), np.empty(0), np.empty(2)
    for array in (*pattern, values, none):
        array.flags.writeable = False
    status = twice(np.arange(2.0), *pattern, values, none, np.empty((14, 2)), out)
    print(sum(twice.stats.cache_hits.values()), status, out.tolist())
"""


def run_python(*arguments):
    settings = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments], env=settings, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split(maxsplit=1)


@pytest.mark.skipif(UNCOMPILED, reason="nothing is compiled")
def test_dense_networks_compile_nothing_of_this():
    assert run_python("-c", ASK) == ["0", "0\n"]


@pytest.mark.skipif(UNCOMPILED, reason="nothing is cached uncompiled")
def test_embedding_in_a_cached_function(tmp_path):
    script = tmp_path / "user.py"
    script.write_text(textwrap.dedent(EMBEDDED))
    first, second = run_python(str(script)), run_python(str(script))
    assert [first[0], second[0]] == ["0", "1"]
    assert first[1] == second[1]
    assert first[1].startswith("0 ")
