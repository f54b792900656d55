"""Results in the hands of other packages, and in files and back."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from samples import METHODS, network, phases, same_bits, symmetric

import spo_fast
from spo_fast import Simulation, simulate
from spo_fast.simulation import FIELDS

N, M = 5, 3
OBSERVED = [(), ("R",), ("R", "psi")]


def single(rng, method="rk4", observe=("R", "psi"), every=3):
    theta, omega, knm, _ = network(rng, N)
    return simulate(theta, omega, knm, dt=0.1, n_steps=10, method=method, observe=observe, record_every=every)


def ensemble(rng, method="rk4", observe=("R", "psi"), every=3):
    theta = rng.uniform(0.0, 6.0, (M, N))
    options = {"dt": 0.1, "n_steps": 10, "method": method, "observe": observe, "record_every": every}
    return simulate(theta, 1.0, symmetric(rng, N), **options)


def failed():
    """Three members, of which the second fails in its second step."""
    knm = np.array([[0.0, 1e308], [0.0, 0.0]])
    omega = np.array([[-1e308, 0.0], [1e308, 0.0], [-1e308, 1.0]])
    theta = np.tile([0.0, 3.3], (3, 1))
    return simulate(theta, omega, knm, dt=2.3e-308, n_steps=5, method="euler", record_every=1)


def results(rng):
    for method in METHODS:
        for observe in OBSERVED:
            for every in (None, 3):
                yield single(rng, method, observe, every)
                yield ensemble(rng, method, observe, every)
    yield failed()
    yield simulate([], 1.0, np.empty((0, 0)), dt=0.1, n_steps=2)
    yield simulate([1.0], 1.0, [[0.0]], dt=0.1, n_steps=0)


def assert_same(a, b):
    for name in FIELDS:
        first, second = getattr(a, name), getattr(b, name)
        assert type(first) is type(second), name
        if isinstance(first, np.ndarray):
            assert same_bits(first, second), name
        else:
            assert first == second, name


@pytest.mark.parametrize("suffix", [".npz", ".nc", ".NPZ"])
def test_files_bring_back_every_bit(rng, tmp_path, suffix):
    if suffix == ".nc":
        pytest.importorskip("xarray")
    for run in results(rng):
        if suffix == ".nc" and run.final.size == 0:
            continue  # refused below
        path = tmp_path / f"run{suffix}"
        run.save(path)
        assert_same(Simulation.load(str(path)), run)
        assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_dataset_brings_back_every_bit(rng):
    pytest.importorskip("xarray")
    for run in results(rng):
        assert_same(Simulation.from_xarray(run.to_xarray()), run)


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_netcdf_4_is_read(rng, tmp_path, engine):
    pytest.importorskip("xarray")
    pytest.importorskip({"netcdf4": "netCDF4"}.get(engine, engine))
    run = ensemble(rng, "rk45")
    run.to_xarray().to_netcdf(tmp_path / "run.nc", engine=engine)
    assert_same(Simulation.load(tmp_path / "run.nc"), run)


def test_zarr_is_read(rng, tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    run = ensemble(rng)
    run.to_xarray().to_zarr(tmp_path / "run.zarr", consolidated=False)
    with xarray.open_zarr(tmp_path / "run.zarr", consolidated=False) as dataset:
        assert_same(Simulation.from_xarray(dataset), run)


def test_a_dataset_tells_what_it_holds(rng):
    pytest.importorskip("xarray")
    dataset = ensemble(rng).to_xarray()
    assert dataset["theta"].attrs == {"long_name": "phases", "units": "rad"}
    assert (
        dataset["R"].attrs["units"] == "1" and dataset["t"].attrs["long_name"] == "time of the stored states"
    )
    assert dataset.attrs["version"] == spo_fast.__version__
    assert (dataset.attrs["method"], dataset.attrs["dt"]) == ("rk4", 0.1)
    assert "R" not in ensemble(rng, observe=()).to_xarray()


# ---------------------------------------------------------------- refusals


def test_netcdf_3_has_no_axis_of_length_0(tmp_path):
    pytest.importorskip("xarray")
    run = simulate([], 1.0, np.empty((0, 0)), dt=0.1, n_steps=2)
    with pytest.raises(ValueError, match=r"a .nc file cannot hold an axis of length 0; .npz can"):
        run.save(tmp_path / "run.nc")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["run", "run.txt", "run.zarr"])
def test_other_endings_are_refused(rng, tmp_path, name):
    for function in (single(rng).save, Simulation.load):
        with pytest.raises(ValueError, match=r"must be a file ending in \.npz or \.nc, got"):
            function(tmp_path / name)


def test_a_path_is_a_path(rng):
    for function in (single(rng).save, Simulation.load):
        with pytest.raises(ValueError, match="path must be a path, got 3"):
            function(3)


def test_a_missing_folder_or_file_is_told(rng, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        single(rng).save(tmp_path / "none" / "run.npz")
    for suffix in (".npz", ".nc"):
        with pytest.raises(FileNotFoundError):
            Simulation.load(tmp_path / f"none{suffix}")


@pytest.mark.parametrize("suffix", [".npz", ".nc"])
def test_damaged_files_are_refused(rng, tmp_path, suffix):
    if suffix == ".nc":
        pytest.importorskip("xarray")
    path = tmp_path / f"run{suffix}"
    single(rng).save(path)
    content = path.read_bytes()
    for damaged in (b"", b"nothing", content[:40]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="holds no simulation"):
            Simulation.load(path)


def test_other_arrays_are_no_simulation(tmp_path):
    np.savez(tmp_path / "other.npz", t=[1.0], knm=np.eye(2))
    with pytest.raises(
        ValueError, match=r"other.npz holds no simulation: .* must have theta, final, dt, .*, got t, knm"
    ):
        Simulation.load(tmp_path / "other.npz")
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.eye(2))
    with pytest.raises(ValueError, match=r"array.npz holds no simulation: it is a .npy file"):
        Simulation.load(tmp_path / "array.npz")


@pytest.mark.parametrize(
    "package, use",
    [
        ("xarray", lambda run: run.to_xarray()),
        ("xarray", lambda run: run.save("run.nc")),
        ("pandas", lambda run: run.to_pandas()),
    ],
)
def test_a_missing_package_is_told_with_its_extra(rng, monkeypatch, package, use):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs {package}.*pip install 'spo-fast\[xarray\]'"):
        use(single(rng))


# ---------------------------------------------------------------- pandas


def test_observations_as_a_table(rng):
    pytest.importorskip("pandas")
    run = single(rng)
    table = run.to_pandas()
    assert table.index.name == "t" and list(table.columns) == ["R", "psi"]
    assert same_bits(table.index.to_numpy(), run.t_observe)
    assert same_bits(table["R"].to_numpy(), run.R) and same_bits(table["psi"].to_numpy(), run.psi)


def test_states_as_a_table(rng):
    pytest.importorskip("pandas")
    run = single(rng)
    table = run.to_pandas("states")
    assert list(table.columns) == list(range(N))
    assert same_bits(table.to_numpy(), run.theta) and same_bits(table.index.to_numpy(), run.t)


@pytest.mark.parametrize("method", METHODS)
def test_members_as_a_table(rng, method):
    pytest.importorskip("pandas")
    run = ensemble(rng, method)
    for member in range(M):
        table = run.to_pandas().loc[member]
        times = run.t_observe[:, member] if method == "rk45" else run.t_observe
        assert same_bits(table.index.to_numpy(), times)
        assert same_bits(table["R"].to_numpy(), run.R[:, member])
        states = run.to_pandas("states").loc[member]
        assert same_bits(states.to_numpy(), run.theta[:, member])


def test_what_was_not_recorded_is_in_no_table(rng):
    pytest.importorskip("pandas")
    assert list(single(rng, observe=("psi",)).to_pandas().columns) == ["psi"]
    with pytest.raises(ValueError, match="what must be 'states' where nothing was observed"):
        single(rng, observe=()).to_pandas()
    with pytest.raises(ValueError, match="what must be one of 'observations', 'states', got 'R'"):
        single(rng).to_pandas("R")


def test_no_members_and_nobody():
    pytest.importorskip("pandas")
    nobody = simulate([], 1.0, np.empty((0, 0)), dt=0.1, n_steps=2)
    assert nobody.to_pandas("states").shape == (2, 0)
    none = simulate(np.empty((0, 4)), 1.0, np.zeros((4, 4)), dt=0.1, n_steps=2)
    assert none.to_pandas().shape == (0, 1) and none.to_pandas("states").shape == (0, 4)


def test_phases_of_an_oscillator_over_time(rng):
    pytest.importorskip("pandas")
    run = simulate(phases(rng, 2), 1.0, np.zeros((2, 2)), dt=0.5, n_steps=4, record_every=1)
    assert run.to_pandas("states")[1].loc[0.5] == run.theta[1, 1]
