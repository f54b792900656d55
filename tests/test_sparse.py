"""A sparse coupling gives what the same dense one gives, and is never made dense."""

from __future__ import annotations

import concurrent.futures
import copy
import pickle
import resource
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from oracles import kuramoto as kuramoto_oracle
from oracles import modulation as oracle
from oracles import sparse as triples_oracle
from samples import METHODS, circle_gap, parity_budget, phases, same_bits, symmetric

import spo_fast
from spo_fast.validation import as_sparse_coupling

FORMS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
FORMATS = [f"{form}_{kind}" for kind in ("matrix", "array") for form in FORMS]
MODULATIONS = [
    {},
    {"lambda_": 0.0},
    {"block_size": 3, "lambda_": 2.0},
    {"n_heads": 2, "temperature": [0.5, 2.0], "projection_seed": 7},
    {"block_size": 1, "n_heads": 8, "temperature": 0.3},
]


def lattice(length, width, kind=sp.csr_array):
    rows, columns = np.array(triples_oracle.lattice(length, width)).T
    return kind(sp.coo_array((np.ones(rows.size), (rows, columns)), shape=(length * width,) * 2))


def scattered(rng, n, density=0.2):
    """A symmetric coupling of either sign in which oscillator 2 has no neighbour."""
    knm = symmetric(rng, n, density, -1.0, 1.0)
    knm[2] = knm[:, 2] = 0.0
    return knm


def oriented(rng, n, density=0.2):
    """theta, omega, an asymmetric K and an asymmetric alpha of the same pattern, as arrays."""
    there = (rng.random((n, n)) < density) & ~np.eye(n, dtype=bool)
    there[2] = there[:, 2] = False
    knm, alpha = rng.uniform(-1.0, 1.0, (n, n)) * there, rng.uniform(-1.0, 1.0, (n, n)) * there
    return phases(rng, n), rng.normal(1.0, 0.5, n), knm, alpha


def assert_close(result, expected, theta, d_model=8):
    assert abs(result.toarray() - expected).max(initial=0.0) <= parity_budget(expected, theta, d_model)


@pytest.fixture
def backend(sparse_backend):
    return sparse_backend


# ---------------------------------------------------------------- modulate


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_a_csr_of_its_kind(backend, rng, form):
    knm, theta = scattered(rng, 24), phases(rng, 24)
    result = spo_fast.modulate(getattr(sp, form)(knm), theta, backend=backend)
    assert type(result) is (sp.csr_array if form.endswith("array") else sp.csr_matrix)
    assert_close(result, spo_fast.modulate(knm, theta, backend=backend), theta)


@pytest.mark.parametrize("keywords", MODULATIONS)
@pytest.mark.parametrize("density", [0.05, 0.3, 1.0])
def test_equals_dense(backend, rng, keywords, density):
    knm, theta = scattered(rng, 40, density), phases(rng, 40) * 3.0
    sparse = sp.csr_array(knm)
    result = spo_fast.modulate(sparse, theta, **keywords, backend=backend)
    assert_close(result, spo_fast.modulate(knm, theta, **keywords, backend=backend), theta)
    assert same_bits(result.toarray(), result.toarray().T)
    assert np.array_equal(result.indices, sparse.indices) and np.array_equal(result.indptr, sparse.indptr)
    if keywords.get("lambda_") == 0.0:
        assert same_bits(result.data, sparse.data)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 33])
@pytest.mark.parametrize("d_model, n_heads", [(2, 1), (6, 3), (16, 2)])
def test_equals_the_oracle_at_any_width(backend, rng, n, d_model, n_heads):
    knm, theta = symmetric(rng, n, 0.5), phases(rng, n)
    weights = spo_fast.default_projections(n_heads, 3, d_model)
    result = spo_fast.modulate(sp.csr_array(knm), theta, *weights, n_heads=n_heads, backend=backend)
    assert_close(result, oracle.modulate(knm, theta, *weights), theta, d_model)


def test_every_degree_of_a_row(backend):
    """Rows of 0, 1, 2, ... entries: whatever a kernel takes at once has a remainder somewhere."""
    n = 40
    knm = np.zeros((n, n))
    for i in range(n):
        knm[i, max(0, n - i) :] = 1.0 + 0.01 * i
    np.fill_diagonal(knm, 0.0)
    knm = np.minimum(knm, knm.T)
    theta = np.linspace(0.0, 9.0, n)
    assert_close(
        spo_fast.modulate(sp.csr_array(knm), theta, backend=backend),
        spo_fast.modulate(knm, theta, backend=backend),
        theta,
    )


def test_explicit_zeros_are_no_neighbours_and_stay_in_the_pattern(backend, rng):
    knm, theta = scattered(rng, 20, 0.4), phases(rng, 20)
    full = sp.coo_array(np.ones((20, 20)))
    sparse = sp.csr_array((knm[full.coords], full.coords), shape=(20, 20))
    assert sparse.nnz == 400
    result = spo_fast.modulate(sparse, theta, backend=backend)
    assert result.nnz == 400
    assert_close(result, spo_fast.modulate(knm, theta, backend=backend), theta)
    assert not result.toarray()[knm == 0.0].any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8])
def test_duplicates_are_added_up_in_float64(backend, rng, dtype):
    pairs = [(0, 1), (1, 2), (0, 3), (2, 3), (1, 0), (2, 1), (3, 0), (3, 2)]
    triples = [(i, j, 100) for i, j in pairs for _ in range(2)]
    rows, columns, values = np.array(triples).T
    theta = phases(rng, 5)
    expected = oracle.modulate(triples_oracle.dense(triples, 5), theta, *spo_fast.default_projections())
    coo = sp.coo_array((values.astype(dtype), (rows, columns)), shape=(5, 5))
    assert_close(spo_fast.modulate(coo, theta, backend=backend), expected, theta)


def test_unsorted_rows_with_stale_flags(backend, rng):
    knm, theta = scattered(rng, 12, 0.6), phases(rng, 12)
    sorted_ = sp.csr_array(knm)
    assert sorted_.has_canonical_format
    for i in range(12):
        row = slice(sorted_.indptr[i], sorted_.indptr[i + 1])
        sorted_.indices[row] = sorted_.indices[row][::-1].copy()
        sorted_.data[row] = sorted_.data[row][::-1].copy()
    before = [a.copy() for a in (sorted_.data, sorted_.indices, sorted_.indptr)]
    result = spo_fast.modulate(sorted_, theta, backend=backend)
    assert_close(result, spo_fast.modulate(knm, theta, backend=backend), theta)
    for kept, now in zip(before, (sorted_.data, sorted_.indices, sorted_.indptr), strict=True):
        assert same_bits(kept, now)


@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("lambda_", [0.0, 0.7])
def test_an_entry_stored_on_one_side_only(backend, rng, block_size, lambda_):
    """Within the tolerance that is allowed, and one of the two sees a neighbour where the other does not."""
    knm, theta = scattered(rng, 9, 0.3), phases(rng, 9)
    knm[0, 5], knm[5, 0] = 5e-13, 0.0
    knm[2, 3], knm[3, 2] = 0.0, -5e-13  # the only neighbour of oscillator 3's neighbour 2
    sparse = sp.csr_array(knm)
    keywords = {"block_size": block_size, "lambda_": lambda_, "backend": backend}
    result = spo_fast.modulate(sparse, theta, **keywords)
    assert_close(result, spo_fast.modulate(knm, theta, **keywords), theta)
    factors = spo_fast.Modulator(sparse, **keywords).factors(theta)
    np.testing.assert_allclose(
        factors, spo_fast.Modulator(knm, **keywords).factors(theta), rtol=0, atol=1e-12
    )
    if lambda_:
        pattern = sp.csr_array(sparse + sparse.T)
        assert np.array_equal(result.indices, pattern.indices)
        assert same_bits(result.toarray(), result.toarray().T)


def test_diagonal_within_the_tolerance_is_dropped(backend, rng):
    knm, theta = scattered(rng, 8, 0.5), phases(rng, 8)
    knm[3, 3] = 5e-13
    result = spo_fast.modulate(sp.csr_array(knm), theta, backend=backend)
    assert result[3, 3] == 0.0
    assert_close(result, spo_fast.modulate(knm, theta, backend=backend), theta)


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("lambda_", [0.0, 0.5])
def test_no_entries(backend, n, lambda_):
    knm = sp.csr_array((n, n))
    result = spo_fast.modulate(knm, np.zeros(n), lambda_=lambda_, backend=backend)
    assert result.shape == (n, n) and result.nnz == 0
    assert not spo_fast.Modulator(knm, backend=backend).factors(np.zeros(n)).any()


def test_input_is_neither_written_nor_shared(backend, rng):
    knm = sp.csr_array(scattered(rng, 16, 0.4))
    parts = (knm.data, knm.indices, knm.indptr)
    before = [part.copy() for part in parts]
    for lambda_ in (0.0, 0.5):
        result = spo_fast.modulate(knm, phases(rng, 16), lambda_=lambda_, backend=backend)
        result.data[:] = 0.0
        result.eliminate_zeros()
        for part, old in zip(parts, before, strict=True):
            assert same_bits(part, old)


def test_read_only_parts_and_wide_indices(backend, rng):
    knm, theta = sp.csr_array(scattered(rng, 16, 0.4)), phases(rng, 16)
    expected = spo_fast.modulate(knm, theta, backend=backend)
    wide = copy.deepcopy(knm)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    for part in (wide.data, wide.indices, wide.indptr, theta):
        part.flags.writeable = False
    assert same_bits(spo_fast.modulate(wide, theta, backend=backend).data, expected.data)
    run = spo_fast.simulate(theta, 1.0, wide, dt=0.1, n_steps=2, modulation={}, backend=backend)
    assert np.isfinite(run.final).all()


def test_bits_repeat(backend, rng):
    knm, theta = lattice(20, 7), phases(rng, 140)
    expected = spo_fast.modulate(knm, theta, backend=backend).data
    for workers in (1, 2):
        assert same_bits(spo_fast.modulate(knm, theta, workers=workers, backend=backend).data, expected)


def test_moved_by_full_turns(backend, rng):
    knm, theta = lattice(6, 5), phases(rng, 30)
    turns = 2.0 * np.pi * rng.integers(-5, 6, 30)
    moved = spo_fast.modulate(knm, theta + turns, backend=backend)
    assert abs(moved - spo_fast.modulate(knm, theta, backend=backend)).max() <= 1e-12


# ---------------------------------------------------------------- Modulator


def test_modulator(backend, rng):
    knm, theta = scattered(rng, 18, 0.4), phases(rng, 18)
    sparse = sp.csr_matrix(knm)
    modulator = spo_fast.Modulator(sparse, block_size=5, backend=backend)
    assert modulator.algorithm == "sparse" and "sparse" in repr(modulator)
    assert same_bits(
        modulator(theta).data, spo_fast.modulate(sparse, theta, block_size=5, backend=backend).data
    )
    dense = spo_fast.Modulator(knm, block_size=5, backend=backend)
    np.testing.assert_allclose(modulator.factors(theta), dense.factors(theta), rtol=0, atol=1e-12)
    assert not modulator.factors(theta)[2].any()
    assert type(modulator.knm) is sp.csr_matrix and np.array_equal(modulator.knm.toarray(), knm)


def test_modulator_keeps_its_own_copy(backend, rng):
    sparse, theta = sp.csr_array(scattered(rng, 18, 0.4)), phases(rng, 18)
    modulator = spo_fast.Modulator(sparse, backend=backend)
    before = modulator(theta).data
    sparse.data[:] = 0.0
    modulator.knm.data[:] = 0.0
    modulator(theta).eliminate_zeros()
    assert same_bits(modulator(theta).data, before)


def test_modulator_is_updated_with_either_kind(backend, rng):
    first, second, theta = scattered(rng, 10, 0.4), scattered(rng, 10, 0.6), phases(rng, 10)
    modulator = spo_fast.Modulator(first, backend=backend)
    modulator.update(sp.csr_array(second))
    assert modulator.algorithm == "sparse"
    assert_close(modulator(theta), spo_fast.modulate(second, theta, backend=backend), theta)
    with pytest.raises(ValueError, match="knm must be symmetric"):
        modulator.update(sp.csr_array(np.triu(second)))
    assert_close(modulator(theta), spo_fast.modulate(second, theta, backend=backend), theta)
    modulator.update(first)
    assert modulator.algorithm == "direct"
    assert same_bits(modulator(theta), spo_fast.modulate(first, theta, backend=backend))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_a_modulator_give_the_same_bits(backend, rng, copied):
    modulator = spo_fast.Modulator(lattice(5, 4), temperature=[1.0, 2.0, 0.5, 1.5], backend=backend)
    again, theta = copied(modulator), phases(rng, 20)
    assert again.algorithm == "sparse" and same_bits(again(theta).data, modulator(theta).data)


def test_threads_may_share_a_modulator(backend, rng):
    modulator = spo_fast.Modulator(lattice(12, 9), backend=backend)
    states = [phases(rng, 108) for _ in range(32)]
    expected = [modulator(theta).data for theta in states]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result, serial in zip(pool.map(modulator, states, timeout=120), expected, strict=True):
            assert same_bits(result.data, serial)


# ---------------------------------------------------------------- refusals


def spoiled(entries, form="csr_array"):
    knm = np.ones((4, 4)) - np.eye(4)
    for index, value in entries.items():
        knm[index] = value
    return getattr(sp, form)(knm)


def malformed(form, index):
    """Indices changed behind SciPy's back, which would make a kernel or a conversion leave its arrays."""
    knm = spoiled({}, form)
    (knm.coords[0] if knm.format == "coo" else knm.indices)[0] = index
    return knm


def falling():
    knm = spoiled({})
    knm.indptr[2] = 100
    return knm


BAD = [
    (spoiled({(1, 2): np.nan, (2, 1): np.nan}), r"finite, got nan at index \(1, 2\)"),
    (spoiled({(3, 0): -np.inf}, "coo_matrix"), r"-inf at index \(3, 0\)"),
    (spoiled({}).astype(bool), "csr_array of shape .* bool"),
    (spoiled({}).astype(complex), "complex128"),
    (sp.csr_array((4, 5)), r"\(4, 5\)"),
    *((malformed(form, 9), "well-formed") for form in ("csr_array", "csc_matrix", "bsr_array", "coo_array")),
    *(
        (malformed(form, -1), "well-formed")
        for form in ("csr_matrix", "csc_array", "bsr_array", "coo_matrix")
    ),
    (falling(), "well-formed"),
]
BAD_TO_MODULATE = [
    (spoiled({(1, 2): 1.5}), r"symmetric, got 1\.5 at index \(1, 2\) and 1\.0 at index \(2, 1\)"),
    (spoiled({(3, 1): 0.0}), r"symmetric, got 1\.0 at index \(1, 3\) and 0\.0 at index \(3, 1\)"),
    (spoiled({(2, 2): 1e-9}, "lil_array"), r"zero diagonal, got 1e-09 at index \(2, 2\)"),
]


@pytest.mark.parametrize("lambda_", [0.0, 0.5])
@pytest.mark.parametrize("knm, what", [*BAD, *BAD_TO_MODULATE])
def test_modulate_refuses(backend, knm, what, lambda_):
    with pytest.raises(ValueError, match=f"^knm must .*{what}"):
        spo_fast.modulate(knm, np.zeros(4), lambda_=lambda_, backend=backend)
    with pytest.raises(ValueError, match=f"^knm must .*{what}"):
        spo_fast.Modulator(knm, lambda_=lambda_, backend=backend)
    with pytest.raises(ValueError, match=f"^knm must .*{what}"):
        spo_fast.simulate(
            np.zeros(4), 1.0, knm, dt=0.1, n_steps=0, modulation={"lambda_": lambda_}, backend=backend
        )


@pytest.mark.parametrize("knm, what", BAD)
def test_integrators_refuse(backend, knm, what):
    with pytest.raises(ValueError, match=f"^knm must .*{what}"):
        spo_fast.simulate(np.zeros(4), 1.0, knm, dt=0.1, n_steps=0, backend=backend)
    with pytest.raises(ValueError, match=f"^knm must .*{what}"):
        spo_fast.Engine(4, 0.1, backend=backend).step(np.zeros(4), 1.0, knm)
    with pytest.raises(ValueError, match=f"^knm must .*{what}"):
        spo_fast.entropy_production_rate(np.zeros(4), 1.0, knm, 1.0, 0.1)
    with pytest.raises(ValueError, match=f"^knm must .*{what}"):
        spo_fast.lyapunov_spectrum(np.zeros(4), 1.0, knm)


@pytest.mark.parametrize("use", [spo_fast.modulate, lambda k, t, **kw: spo_fast.Modulator(k)(t, **kw)])
def test_modulate_refuses_other_arguments(use):
    knm = spoiled({})
    for out in (np.empty((4, 4)), knm):
        with pytest.raises(ValueError, match=r"^out must be None for a sparse knm, got .* of shape"):
            use(knm, np.zeros(4), out=out)
    with pytest.raises(ValueError, match=r"^theta must have shape \(4,\), got \(4, 1\)"):
        use(knm, np.zeros((4, 1)))


@pytest.mark.parametrize("lambda_", [0.0, 0.5])
def test_non_finite_phases_are_refused(backend, lambda_):
    theta = [0.0, 1.0, np.nan, 0.0]
    with pytest.raises(ValueError, match="theta must be finite, got nan at index 2"):
        spo_fast.modulate(spoiled({}), theta, lambda_=lambda_, backend=backend)
    with pytest.raises(ValueError, match="theta must be finite, got nan at index 2"):
        spo_fast.Modulator(spoiled({}), lambda_=lambda_, backend=backend).factors(theta)
    with pytest.raises(ValueError, match="theta must be finite, got nan at index 2"):
        spo_fast.simulate(theta, 1.0, spoiled({}), dt=0.1, n_steps=1, backend=backend)


def test_algorithms_fit_the_kind():
    dense, sparse, theta = spoiled({}).toarray(), spoiled({}), np.zeros(4)
    assert spo_fast.modulate(sparse, theta, algorithm="sparse").nnz == 12
    for use in (spo_fast.modulate, lambda k, t, **kw: spo_fast.Modulator(k, **kw)):
        with pytest.raises(ValueError, match="algorithm 'sparse' needs a sparse knm, got ndarray"):
            use(dense, theta, algorithm="sparse")
        for name in ("direct", "band"):
            with pytest.raises(ValueError, match=f"algorithm must be 'auto' or 'sparse' .* got '{name}'"):
                use(sparse, theta, algorithm=name, block_size=2)
        with pytest.raises(ValueError, match="algorithm must be one of"):
            use(sparse, theta, algorithm="fast")
    run = {"dt": 0.1, "n_steps": 1, "modulation": {"algorithm": "sparse"}}
    with pytest.raises(ValueError, match="algorithm 'sparse' needs a sparse knm"):
        spo_fast.simulate(theta, 1.0, dense, **run)
    assert spo_fast.simulate(theta, 1.0, sparse, **run).steps == 1


BAD_LAGS = [
    (np.zeros((4, 4)), "None, a number or a sparse matrix of the pattern of knm, got ndarray"),
    (sp.csr_array((4, 4)), r"stored entries of knm, got none at index \(0, 1\)"),
    (spoiled({(2, 2): 1.0}), r"stored entries of knm, got one more at index \(2, 2\)"),
    (spoiled({(3, 1): 0.0}), r"stored entries of knm, got none at index \(3, 1\)"),
    (spoiled({(3, 1): np.nan}), r"finite, got nan at index \(3, 1\)"),
    (sp.csr_array((5, 5)), r"\(4, 4\), got \(5, 5\)"),
    (spoiled({}).astype(bool), "bool"),
    (np.inf, "inf"),
    (True, "True"),
]


@pytest.mark.parametrize("alpha, what", BAD_LAGS)
def test_lags_must_fit_the_coupling(backend, alpha, what):
    with pytest.raises(ValueError, match=f"^alpha must .*{what}"):
        spo_fast.simulate(np.zeros(4), 1.0, spoiled({}), alpha=alpha, dt=0.1, n_steps=1, backend=backend)


def test_sparse_lags_need_a_sparse_coupling(backend):
    with pytest.raises(ValueError, match=r"alpha must be a dense \(N, N\) array, got csr_array"):
        spo_fast.simulate(
            np.zeros(4), 1.0, np.zeros((4, 4)), alpha=spoiled({}), dt=0.1, n_steps=1, backend=backend
        )


def test_shape_of_the_coupling_must_fit_the_phases(backend):
    with pytest.raises(ValueError, match=r"knm must have shape \(5, 5\), got \(4, 4\)"):
        spo_fast.simulate(np.zeros(5), 1.0, spoiled({}), dt=0.1, n_steps=1, backend=backend)


# ---------------------------------------------------------------- integrators


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lags", ["none", "number", "matrix"])
@pytest.mark.parametrize("drive", [{}, {"zeta": 0.7, "psi": 1.0}])
def test_simulation_equals_the_dense_one(backend, rng, method, lags, drive):
    theta, omega, knm, alpha = oriented(rng, 30)
    dense_lag = {"none": None, "number": 0.4, "matrix": alpha}[lags]
    pattern = sp.csr_array(knm)
    full = sp.coo_array(pattern)
    sparse_lag = (
        sp.coo_array((alpha[full.coords], full.coords), shape=(30, 30)) if lags == "matrix" else dense_lag
    )
    given = {"dt": 0.05, "n_steps": 20, "method": method, "record_every": 5, "observe": ("R", "psi"), **drive}
    expected = spo_fast.simulate(theta, omega, knm, alpha=dense_lag, backend=backend, **given)
    result = spo_fast.simulate(theta, omega, pattern, alpha=sparse_lag, backend=backend, **given)
    doubt = 1e-9 if method == "rk45" else 20 * 1e-12
    assert circle_gap(result.theta, expected.theta) <= doubt
    np.testing.assert_allclose(result.R, expected.R, rtol=0, atol=doubt)
    np.testing.assert_allclose(result.t_observe, expected.t_observe, rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulation", MODULATIONS)
@pytest.mark.parametrize("every", [1, 3])
def test_modulated_simulation_equals_the_dense_one(backend, rng, method, modulation, every):
    knm, theta, omega = scattered(rng, 30, 0.3), phases(rng, 30), rng.normal(0.0, 1.0, 30)
    given = {"dt": 0.05, "n_steps": 20, "method": method, "modulate_every": every, "backend": backend}
    expected = spo_fast.simulate(theta, omega, knm, modulation=modulation, alpha=0.2, zeta=0.1, **given)
    result = spo_fast.simulate(
        theta, omega, sp.csr_array(knm), modulation=modulation, alpha=0.2, zeta=0.1, **given
    )
    assert circle_gap(result.final, expected.final) <= (1e-8 if method == "rk45" else 20 * 1e-12)


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_modulated_simulation_equals_the_python_loop(backend, rng, method):
    knm, theta, omega = lattice(8, 5), phases(rng, 40), rng.normal(0.0, 1.0, 40)
    lags = sp.csr_array((rng.uniform(-1, 1, knm.nnz), knm.indices, knm.indptr), shape=knm.shape)
    engine, state = spo_fast.Engine(40, 0.05, method, backend=backend), theta
    for _ in range(10):
        state = engine.step(state, omega, spo_fast.modulate(knm, state, backend=backend), 0.3, 1.0, lags)
    for given in ({"knm": knm, "modulation": {}}, {"knm": None, "modulation": spo_fast.Modulator(knm)}):
        run = spo_fast.simulate(
            theta, omega, **given, alpha=lags, zeta=0.3, psi=1.0, dt=0.05, n_steps=10, method=method,
            backend=backend,
        )  # fmt: skip
        assert circle_gap(run.final, state) <= 10 * 1e-12


def test_lags_follow_a_coupling_stored_on_one_side(backend, rng):
    knm, theta = scattered(rng, 9, 0.5), phases(rng, 9)
    knm[0, 5], knm[5, 0] = 5e-13, 0.0
    alpha = rng.uniform(-1, 1, (9, 9)) * (knm != 0.0)
    given = {"dt": 0.05, "n_steps": 10, "modulation": {}, "backend": backend}
    expected = spo_fast.simulate(theta, 1.0, knm, alpha=alpha, **given)
    result = spo_fast.simulate(theta, 1.0, sp.csr_array(knm), alpha=sp.csc_array(alpha), **given)
    assert circle_gap(result.final, expected.final) <= 10 * 1e-12


@pytest.mark.parametrize("given", ["none", "same", "equal", "other kind"])
def test_a_modulator_brings_its_coupling(backend, rng, given):
    knm, theta = lattice(4, 4), phases(rng, 16)
    modulator = spo_fast.Modulator(knm, lambda_=0.9, backend=backend)
    own = {"none": None, "same": modulator.knm, "equal": sp.coo_matrix(knm), "other kind": knm.toarray()}[
        given
    ]
    if given == "other kind":
        with pytest.raises(ValueError, match="knm must be None or equal"):
            spo_fast.simulate(theta, 1.0, own, modulation=modulator, dt=0.1, n_steps=5)
        return
    run = spo_fast.simulate(theta, 1.0, own, modulation=modulator, dt=0.1, n_steps=5)
    loop = spo_fast.simulate(theta, 1.0, knm, modulation={"lambda_": 0.9}, dt=0.1, n_steps=5, backend=backend)
    assert same_bits(run.final, loop.final) and run.backend == backend
    with pytest.raises(ValueError, match="knm must be None or equal"):
        spo_fast.simulate(theta, 1.0, 2.0 * knm, modulation=modulator, dt=0.1, n_steps=5)


@pytest.mark.parametrize("method", METHODS)
def test_engine_equals_the_dense_one(backend, rng, method):
    theta, omega, knm, _ = oriented(rng, 20)
    engines = [spo_fast.Engine(20, 0.05, method, backend=backend) for _ in range(2)]
    states = [theta, theta]
    for _ in range(5):
        matrices = (knm, sp.csr_array(knm))
        states = [e.step(s, omega, k) for e, s, k in zip(engines, states, matrices, strict=True)]
    assert circle_gap(*states) <= 1e-9
    assert engines[0].last_dt == pytest.approx(engines[1].last_dt, rel=1e-9)
    assert (
        circle_gap(engines[1].run(theta, omega, knm, n_steps=3), engines[0].run(theta, omega, knm, n_steps=3))
        <= 1e-9
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulation", [None, {}])
def test_isolated_oscillator_only_rotates(backend, rng, method, modulation):
    knm, theta, omega = scattered(rng, 12, 0.5), phases(rng, 12), rng.normal(1.0, 0.5, 12)
    given = {"dt": 0.05, "n_steps": 40, "method": method, "modulation": modulation, "backend": backend}
    run = spo_fast.simulate(theta, omega, sp.csr_array(knm), observe=("R",), **given)
    end = run.t[-1]
    assert circle_gap(run.final[2], theta[2] + omega[2] * end) <= 1e-12
    others = np.delete(np.arange(12), 2)
    if method != "rk45":
        alone = spo_fast.simulate(
            theta[others], omega[others], sp.csr_array(knm[np.ix_(others, others)]), **given
        )
        assert circle_gap(run.final[others], alone.final) <= 1e-11


def test_rows_are_pulled_by_their_columns(backend):
    knm = sp.csr_array(([1.0], ([0], [1])), shape=(3, 3))
    run = spo_fast.simulate([0.0, 1.0, 2.0], 0.0, knm, dt=0.1, n_steps=10, backend=backend)
    assert run.final[1:].tolist() == [1.0, 2.0] and run.final[0] > 0.5


def test_self_coupling_acts_through_the_lag(backend):
    knm = sp.csr_array(([0.5], ([1], [1])), shape=(2, 2))
    run = spo_fast.simulate(
        [0.0, 1.0], 0.0, knm, alpha=0.3, dt=0.1, n_steps=1, method="euler", backend=backend
    )
    np.testing.assert_allclose(run.final, [0.0, 1.0 - 0.05 * np.sin(0.3)], rtol=0, atol=1e-15)


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulation", [None, {}])
def test_networks_without_entries(backend, n, method, modulation):
    run = spo_fast.simulate(
        np.zeros(n), 1.0, sp.csr_array((n, n)), dt=0.1, n_steps=3, method=method, modulation=modulation,
        backend=backend,
    )  # fmt: skip
    np.testing.assert_allclose(run.final, np.full(n, run.t[-1]), rtol=0, atol=1e-14)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulation", [None, {"lambda_": 0.5}])
def test_pieces_of_a_run_equal_the_whole(backend, rng, method, modulation):
    from spo_fast.backends import registry
    from spo_fast.modulation import parameters_from_keywords
    from spo_fast.validation import network

    knm, theta = lattice(5, 4), phases(rng, 20)
    net = network(20, 1.0, knm, None, 0.0, 0.0, modulated=modulation is not None)
    net.modulation = None if modulation is None else parameters_from_keywords(modulation, knm)
    ends = []
    for cuts in ([12], [1, 4, 7], [3] * 4):
        integration = registry.load(backend).Integration(20, method, 0.05, 1e-6, 1e-3)
        integration.set_network(net)
        integration.start(theta)
        for size in cuts:
            assert integration.advance(size) == 0
        ends.append(np.array(integration.theta))
    assert same_bits(ends[0], ends[1]) and same_bits(ends[0], ends[2])


def test_the_oracle_of_triples_agrees_with_that_of_matrices(rng):
    theta, omega, knm, alpha = oriented(rng, 8, 0.5)
    triples = [(i, j, 0.5 * knm[i, j]) for i in range(8) for j in range(8)] * 2
    whole = kuramoto_oracle.derivative(theta, omega, triples_oracle.dense(triples, 8), 0.2, 1.0, alpha)
    parts = [triples_oracle.derivative(i, theta, omega, triples, 0.2, 1.0, alpha) for i in range(8)]
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-14)


def test_a_large_network_follows_the_oracle_where_looked_at(backend, rng):
    pairs, n = triples_oracle.lattice(60, 50), 3000
    triples = [(i, j, 1.0 + 0.1 * (i % 7)) for i, j in pairs]
    rows, columns, values = (np.array(part) for part in zip(*triples, strict=True))
    knm = sp.coo_array((values, (rows, columns)), shape=(n, n))
    theta, omega = phases(rng, n), rng.normal(1.0, 0.1, n)
    run = spo_fast.simulate(
        theta, omega, knm, alpha=0.3, zeta=0.2, psi=1.0, dt=0.5, n_steps=1, method="euler", backend=backend
    )
    for i in [0, 1, 49, 50, 1234, 2999]:
        slope = triples_oracle.derivative(i, theta, omega, triples, 0.2, 1.0, 0.3)
        assert circle_gap(run.final[i], theta[i] + 0.5 * slope) <= 1e-12


# ---------------------------------------------------------------- size


def test_a_grid_equals_its_dense_form(backend, rng):
    """100 x 10 neighbours, omega ~ N(1, 0.1), RK4."""
    knm, theta, omega = lattice(100, 10), phases(rng, 1000), rng.normal(1.0, 0.1, 1000)
    n_steps = 5 if backend == "numpy" else 100
    given = {"dt": 0.01, "n_steps": n_steps, "backend": backend}
    result = spo_fast.simulate(theta, omega, knm, **given)
    expected = spo_fast.simulate(theta, omega, knm.toarray(), **given)
    assert circle_gap(result.final, expected.final) <= n_steps * 1e-12
    np.testing.assert_allclose(result.R, expected.R, rtol=0, atol=n_steps * 1e-12)


@pytest.mark.parametrize("modulation", [None, {}, {"block_size": 10}])
def test_memory_follows_the_edges(backend, rng, modulation):
    """A matrix of 20,000 x 20,000 would take 3.2 GB; 80,000 entries take 1 MB."""
    small, knm, theta = lattice(4, 5), lattice(2000, 10), phases(rng, 20_000)
    given = {"dt": 0.01, "n_steps": 2, "modulation": modulation, "backend": backend}
    spo_fast.simulate(theta[:20], 1.0, small, **given)  # compiles and imports
    spo_fast.modulate(small, theta[:20], backend=backend)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        spo_fast.simulate(theta, 1.0, knm, **given)
        spo_fast.modulate(knm, theta, **(modulation or {}), backend=backend)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40e6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 200_000  # KiB


# ---------------------------------------------------------------- observables


def test_entropy_production(rng):
    theta, omega, knm, _ = oriented(rng, 15)
    expected = spo_fast.entropy_production_rate(theta, omega, knm, 0.7, 0.1)
    assert spo_fast.entropy_production_rate(theta, omega, sp.csc_matrix(knm), 0.7, 0.1) == pytest.approx(
        expected, rel=1e-13
    )
    states = np.stack([theta, theta + 1.0, omega])
    np.testing.assert_allclose(
        spo_fast.entropy_production_rate(states, omega, sp.coo_array(knm), 0.7, 0.1),
        spo_fast.entropy_production_rate(states, omega, knm, 0.7, 0.1),
        rtol=1e-13,
    )


@pytest.mark.parametrize("lags", ["none", "number", "matrix"])
@pytest.mark.parametrize("zeta", [0.0, 0.8])
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array])
def test_lyapunov_spectrum(rng, lags, zeta, kind):
    theta, omega, knm, alpha = oriented(rng, 9, 0.5)
    dense = {"none": None, "number": 0.4, "matrix": alpha}[lags]
    sparse = kind(alpha) if lags == "matrix" else dense
    given = {"n_steps": 65, "zeta": zeta, "psi": 0.5}
    np.testing.assert_allclose(
        spo_fast.lyapunov_spectrum(theta, omega, kind(knm), sparse, **given),
        spo_fast.lyapunov_spectrum(theta, omega, knm, dense, **given),
        rtol=0,
        atol=1e-10,
    )


def test_names_of_the_orchestrator_take_sparse_couplings(rng):
    knm, theta = lattice(5, 4), phases(rng, 20)
    modulated = spo_fast.compat.attnres_modulate(knm, theta, lambda_=0.3)
    assert same_bits(modulated.data, spo_fast.modulate(knm, theta, lambda_=0.3).data)
    state = spo_fast.compat.UPDEEngine(20, 0.1, "rk4").run(theta, np.ones(20), modulated, n_steps=3)
    assert same_bits(state, spo_fast.Engine(20, 0.1, "rk4").run(theta, 1.0, modulated, n_steps=3))
    for name in ("lyapunov_spectrum", "entropy_production_rate"):
        more = (None, 0.01, 20) if name.startswith("l") else (0.5, 0.1)
        results = [getattr(spo_fast.compat, name)(theta, 1.0, k, *more) for k in (knm, knm.toarray())]
        np.testing.assert_allclose(*results, rtol=0, atol=1e-10)


# ---------------------------------------------------------------- the checked form, and manners


def test_checked_form(rng):
    knm = scattered(rng, 9, 0.4)
    coupling = as_sparse_coupling(sp.coo_matrix(knm), symmetric=True)
    assert coupling.indptr.dtype == np.int64 and coupling.indices.dtype == np.int32
    assert coupling.data.dtype == coupling.mean.dtype == np.float64 and coupling.kind is sp.csr_matrix
    assert np.array_equal(coupling.with_data(coupling.mean).toarray(), 0.5 * (knm + knm.T))
    assert np.array_equal(coupling.rows(), np.nonzero(knm)[0])
    assert as_sparse_coupling(coupling, symmetric=True) is coupling
    again = pickle.loads(pickle.dumps(coupling))
    assert same_bits(again.data, coupling.data) and again.kind is coupling.kind
    with pytest.raises(ValueError, match="knm must be a sparse matrix, got ndarray"):
        as_sparse_coupling(knm)


@pytest.mark.parametrize("name", ["numpy", "cython"])
def test_dense_work_does_not_import_scipy(name):
    if spo_fast.backends()[name] != "available":
        pytest.skip(spo_fast.backends()[name])
    program = f"""
        import sys, numpy as np, spo_fast
        knm, theta = np.ones((3, 3)) - np.eye(3), np.zeros(3)
        spo_fast.modulate(knm, theta, backend={name!r})
        spo_fast.simulate(theta, 1.0, knm, dt=0.1, n_steps=2, modulation={{}}, backend={name!r})
        spo_fast.simulate(theta[None], 1.0, knm, dt=0.1, n_steps=2, backend={name!r})
        spo_fast.lyapunov_spectrum(theta, 1.0, knm, n_steps=2)
        sys.exit(any(module.partition(".")[0] == "scipy" for module in sys.modules))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)


# ---------------------------------------------------------------- at the edges


def test_couplings_near_the_largest_number_stay_finite(backend):
    knm = np.array([[0.0, 1e308], [1e308, 0.0]])
    dense = spo_fast.modulate(knm, [0.1, 2.0], lambda_=0.1, backend=backend)
    sparse = spo_fast.modulate(sp.csr_array(knm), [0.1, 2.0], lambda_=0.1, backend=backend)
    assert np.isfinite(dense).all()
    np.testing.assert_allclose(sparse.toarray(), dense, rtol=1e-13)


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix])
def test_indices_stay_narrow(kind):
    knm = kind(np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert spo_fast.modulate(knm, [0.0, 1.0]).indices.dtype == np.int32
    assert spo_fast.Modulator(knm).knm.indptr.dtype == np.int32


def test_lags_of_the_pattern_given_serve_a_modulator_on_the_union(backend):
    knm = sp.csr_array(np.array([[0.0, 1.0, 1e-13], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    keywords = {"alpha": knm, "dt": 0.1, "n_steps": 2, "backend": backend}
    with_dict = spo_fast.simulate([0.1, 2.0, 4.0], 1.0, knm, modulation={}, **keywords)
    modulator = spo_fast.Modulator(knm, backend=backend)
    with_modulator = spo_fast.simulate([0.1, 2.0, 4.0], 1.0, None, modulation=modulator, **keywords)
    assert same_bits(with_dict.final, with_modulator.final)
