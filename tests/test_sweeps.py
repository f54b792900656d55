"""Sweeps: what they return, that nobody's order shows, and that no kill loses or repeats a run."""

from __future__ import annotations

import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from processes import LIMIT, interrupted

import spo_fast
from spo_fast import SweepError, simulate, sweep, sweep_results

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

GRID = {"coupling": [0.5, 2.0, 4.0], "alpha": [0.0, 0.3]}


def order(coupling, alpha, seed, n=6):
    rng = np.random.default_rng(seed)
    theta, omega = rng.uniform(0.0, 6.0, n), rng.normal(0.0, 1.0, n)
    run = simulate(theta, omega, np.full((n, n), coupling / n), alpha=alpha, dt=0.1, n_steps=30)
    return {"R": run.R[-1], "phases": ("oscillator", run.final)}


def plain_loop(seeds, grid=GRID, function=order):
    shape = (*map(len, grid.values()), len(seeds))
    R, phases = np.empty(shape), np.empty((*shape, 6))
    for i, coupling in enumerate(grid["coupling"]):
        for j, alpha in enumerate(grid["alpha"]):
            for k, seed in enumerate(seeds):
                found = function(coupling=coupling, alpha=alpha, seed=seed)
                R[i, j, k], phases[i, j, k] = found["R"], found["phases"][1]
    return R, phases


def assert_equal(dataset, seeds, **options):
    R, phases = plain_loop(seeds, **options)
    np.testing.assert_array_equal(dataset["R"].values, R)
    np.testing.assert_array_equal(dataset["phases"].values, phases)
    assert dataset["finished"].values.all()


class Killed(BaseException):
    """Stands for the end of a process where a test wants it at a certain place."""


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("stored", [False, True])
def test_equals_a_plain_loop(tmp_path, workers, stored):
    store = tmp_path / "out.zarr" if stored else None
    dataset = sweep(order, GRID, seeds=3, workers=workers, store=store)
    assert dataset["R"].dims == ("coupling", "alpha", "seed")
    assert dataset["phases"].dims == ("coupling", "alpha", "seed", "oscillator")
    assert_equal(dataset, range(3))
    for name, values in {**GRID, "seed": [0, 1, 2]}.items():
        assert dataset[name].values.tolist() == values


def test_a_coordinate_calls_for_its_entry():
    dataset = sweep(order, GRID, seeds=[7, 11])
    entry = dataset.sel(coupling=2.0, alpha=0.3, seed=11)
    assert entry["R"].item() == order(coupling=2.0, alpha=0.3, seed=11)["R"]


def test_parameters_come_as_they_were_given():
    seen = []

    def look(**given):
        seen.append(given)
        return 0

    sweep(look, {"a": np.array([1, 2]), "b": np.array([0.5]), "c": ["x", "y"], "d": [True], "e": [1, 2.5]})
    assert {tuple(map(type, given.values())) for given in seen} == {(int, float, str, bool, float, int)}
    assert len(seen) == 8 and all(list(given) == ["a", "b", "c", "d", "e", "seed"] for given in seen)


def test_without_seeds_and_without_a_grid():
    assert sweep(lambda: 2.5, {}, seeds=None)["result"].item() == 2.5
    assert sweep(lambda x: x, {"x": [1, 2]}, seeds=None)["result"].values.tolist() == [1.0, 2.0]
    assert sweep(lambda seed: seed, {}, seeds=3)["result"].dims == ("seed",)


def test_independent_seeds_depend_on_nothing_but_the_point():
    def draw(seed, **given):
        assert type(seed) is int and seed >= 0
        return np.random.default_rng(seed).random()

    shared = sweep(draw, GRID, seeds=3)["result"]
    assert (shared == shared.isel(coupling=0, alpha=0)).all()
    own = sweep(draw, GRID, seeds=3, independent=True)["result"]
    assert len(np.unique(own.values)) == own.size
    turned = {"alpha": [0.3], "coupling": [4.0, 1.0, 2.0]}
    again = sweep(draw, turned, seeds=[2, 0], independent=True, workers=3)["result"]
    assert (
        again.sel(coupling=2.0, alpha=0.3, seed=2).item() == own.sel(coupling=2.0, alpha=0.3, seed=2).item()
    )


def test_an_axis_of_integers_that_grows_keeps_its_independent_seeds():
    def draw(x, seed):
        return np.random.default_rng(seed).random()

    whole = sweep(draw, {"x": [1, 2]}, seeds=2, independent=True)["result"]
    mixed = sweep(draw, {"x": [1, 2, 2.5]}, seeds=2, independent=True)["result"]
    np.testing.assert_array_equal(whole.values, mixed.values[:2])


def test_threads_run_at_once():
    barrier = threading.Barrier(3, timeout=LIMIT)

    def meet(seed):
        return barrier.wait()

    assert sorted(sweep(meet, {}, seeds=3, workers=3)["result"].values) == [0, 1, 2]


def test_one_worker_is_the_calling_thread():
    here = threading.get_ident()
    assert sweep(lambda seed: threading.get_ident() == here, {}, seeds=2)["result"].values.all()


def test_attributes_tell_where_it_came_from(tmp_path):
    for store in (None, tmp_path / "out.zarr"):
        attributes = sweep(order, GRID, store=store).attrs
        assert attributes["function"] == f"{__name__}.order"
        assert attributes["version"] == spo_fast.__version__
        assert json.loads(attributes["sweep"])["axes"] == {**GRID, "seed": [0]}
        assert {"created", "command"} <= set(attributes) and "failures" not in attributes


def test_the_progress_bar_counts_runs(tmp_path, capsys):
    pytest.importorskip("tqdm")
    sweep(order, GRID, seeds=1, store=tmp_path / "out.zarr")
    sweep(order, GRID, seeds=2, store=tmp_path / "out.zarr", progress=True)
    assert "12/12" in capsys.readouterr().err


# ---------------------------------------------------------------- what a run may return


def labelled():
    array = xarray.DataArray([1.0, 2.0], dims="t", coords={"t": [0.0, 0.5]}, name="R", attrs={"units": "1"})
    return array, xarray.Dataset({"R": array, "n": 3}, {"name": ("t", [8, 9])})


@pytest.mark.parametrize("stored", [False, True])
def test_kinds_of_results(tmp_path, stored):
    array, dataset = labelled()
    cases = {
        "number": (3, {"result": ()}),
        "complex": (1j, {"result": ()}),
        "bool": (np.True_, {"result": ()}),
        "array": (np.ones((2, 3), np.float32), {"result": ("result_0", "result_1")}),
        "list": ([1, 2], {"result": ("result_0",)}),
        "mapping": ({"a": 1, "b": ("t", [1, 2]), "c": (("u", "v"), np.eye(2)), "d": array}, {
            "a": (), "b": ("t",), "c": ("u", "v"), "d": ("t",)}),
        "data array": (array, {"R": ("t",)}),
        "dataset": (dataset, {"R": ("t",), "n": (), "name": ("t",)}),
        "empty": (np.empty((0, 2)), {"result": ("result_0", "result_1")}),
    }  # fmt: skip
    for case, (value, dimensions) in cases.items():
        store = tmp_path / f"{case}.zarr" if stored else None
        found = sweep(lambda x, seed, value=value: value, {"x": [1, 2]}, store=store).load()
        assert {
            str(name): found[name].dims[2:] for name in found.data_vars if name != "finished"
        } == dimensions
        kind = "c" if case == "complex" else "f"
        assert all(found[name].dtype.kind == kind for name in dimensions)
        assert found["finished"].values.all()
        if case in ("data array", "dataset"):
            assert found["t"].values.tolist() == [0.0, 0.5] and found["R"].attrs == {"units": "1"}
            assert found["R"].values.tolist() == [[[1.0, 2.0]]] * 2


def test_a_simulation_is_a_result(tmp_path):
    def run(lag, seed):
        return simulate([0.0, 1.0], 1.0, [[0, 1], [1, 0]], alpha=lag, dt=0.1, n_steps=5, record_every=1)

    found = sweep(run, {"lag": [0.0, 0.5]}, store=tmp_path / "out.zarr")
    assert found["theta"].dims == ("lag", "seed", "t", "oscillator")
    assert found["theta"].attrs["units"] == "rad"
    np.testing.assert_array_equal(found["theta"].sel(lag=0.5, seed=0).values, run(0.5, 0).theta)
    np.testing.assert_array_equal(found["t"].values, run(0.0, 0).t)


@pytest.mark.parametrize(
    "first, second, message",
    [
        ("x", None, "result must be numbers, got 'x'"),
        (None, None, "result must be numbers, got None"),
        (2**60, None, "an integer beyond"),
        ({}, None, "something to keep, got nothing"),
        ({"x": 1}, None, "other names than those of the grid, got 'x'"),
        ({"finished": 1}, None, "other names than those of the grid, got 'finished'"),
        ({3: 1}, None, "other names than those of the grid, got 3"),
        ({"a": ("x", [1])}, None, "a must have dimensions of other names, got 'x'"),
        ({"a": ("a", [1])}, None, "a must have dimensions of other names, got 'a'"),
        ({"a": (("t",), np.eye(2))}, None, "a must have a dimension of its own for each axis"),
        ({"a": (("t", "t"), np.eye(2))}, None, "a must have a dimension of its own for each axis"),
        ({"a": ("t", [1]), "b": ("t", [1, 2])}, None, "t must be of one length, got 1 and 2"),
        ({"a": 1}, {"b": 1}, "names of the first one, a, got b"),
        ({"a": 1}, {"a": 1, "b": 1}, "names of the first one, a, got a, b"),
        ([1, 2], [1, 2, 3], r"result must have the shape of the first run's, \(2,\), got \(3,\)"),
        (1, 1j, "result must be real as the first run's"),
        ({"R/psi": 1}, None, "names that can be names of files, got 'R/psi'"),
        ({"R": ("a\\b", [1])}, None, r"dimensions with names that can be names of files, got 'a"),
        (
            {"a": (("p", "q"), np.eye(2))},
            {"a": (("q", "p"), np.eye(2))},
            r"a must have the dimensions of the first run's, \('p', 'q'\), got \('q', 'p'\)",
        ),
    ],
)
@pytest.mark.parametrize("stored", [False, True])
def test_what_cannot_be_kept_is_a_failed_run(tmp_path, first, second, message, stored):
    values = {1: first, 2: first if second is None else second, 3: first}
    store = tmp_path / "out.zarr" if stored else None
    with pytest.raises(SweepError, match=message) as error:
        sweep(lambda x, seed: values[x], {"x": [1, 2, 3]}, store=store)
    wrong = [point["x"] for point, _ in error.value.failures]
    assert wrong == ([1, 2, 3] if second is None else [2])
    assert error.value.dataset["finished"].values[:, 0].tolist() == [x not in wrong for x in (1, 2, 3)]


@pytest.mark.parametrize("name", ["a/b", "..", "zarr.json", "__x"])
def test_an_axis_can_be_a_file(name):
    with pytest.raises(ValueError, match="grid must have names that can be names of files"):
        sweep(lambda seed, **given: 1.0, {name: [1]})


def test_times_that_runs_choose_are_results(tmp_path):
    def run(lag, seed):
        return simulate(
            [0.0, 1.0],
            [1.0, 3.0],
            [[0, 1], [1, 0]],
            alpha=lag,
            dt=1.0,
            n_steps=4,
            record_every=1,
            method="rk45",
        )

    found = sweep(run, {"lag": [0.0, 0.5]}, store=tmp_path / "out.zarr")
    for lag in (0.0, 0.5):
        own = found.sel(lag=lag, seed=0)
        np.testing.assert_array_equal(own["t"].values, run(lag, 0).t)
        np.testing.assert_array_equal(own["R"].values, run(lag, 0).R)
        np.testing.assert_array_equal(own["t_observe"].values, run(lag, 0).t_observe)
    assert found["theta"].dims == ("lag", "seed", "sample", "oscillator")


def test_coordinates_of_results(tmp_path):
    def run(seed):
        along = {"x": [0.0, np.nan], "name": ("x", ["a", "b"]), "mass": ("x", [1.0, 2.0])}
        return xarray.Dataset({"a": ("x", [1.0, seed])}, coords=along)

    found = sweep(run, {}, seeds=2, store=tmp_path / "out.zarr")
    assert found["mass"].dims == ("seed", "x") and "name" not in found
    np.testing.assert_array_equal(found["x"].values, [0.0, np.nan])


def test_what_is_masked_is_missing():
    found = sweep(lambda seed: np.ma.masked_array([1, 2], mask=[False, True]), {})
    np.testing.assert_array_equal(found["result"].values, [[1.0, np.nan]])


def test_large_integers_have_independent_seeds_of_their_own():
    found = sweep(lambda x, seed: float(seed), {"x": [2**53, 2**53 + 1]}, independent=True)
    assert found["result"].values[0] != found["result"].values[1]


def test_other_times_are_refused():
    def run(x, seed):
        return xarray.DataArray([1.0], dims="t", coords={"t": [float(x)]})

    with pytest.raises(
        SweepError, match=r"1 of 2 runs failed: x=2, seed=0: ValueError: t must have the values"
    ):
        sweep(run, {"x": [1, 2]})
    dates = xarray.DataArray([1.0], dims="t", coords={"t": np.array(["2020-01-01"], "datetime64[ns]")})
    with pytest.raises(SweepError, match="t must be along numbers or strings"):
        sweep(lambda seed: dates, {})


# ---------------------------------------------------------------- failures


def fails(x, seed):
    if x == 2 and seed == 1:
        raise ValueError("no such\nnetwork")
    return x


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stored", [False, True])
def test_a_failure_is_raised_when_all_others_are_finished(tmp_path, workers, stored):
    store = tmp_path / "out.zarr" if stored else None
    message = r"^1 of 6 runs failed: x=2, seed=1: ValueError: no such network; the others are in .dataset$"
    with pytest.raises(SweepError, match=message) as caught:
        sweep(fails, {"x": [1, 2, 3]}, seeds=2, workers=workers, store=store)
    error = caught.value
    assert isinstance(error.__cause__, ValueError)
    np.testing.assert_array_equal(error.dataset["result"].values, [[1, 1], [2, np.nan], [3, 3]])
    assert (~error.dataset["finished"]).sum() == 1
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.failures[0][0] == {"x": 2, "seed": 1}


@pytest.mark.parametrize("stored", [False, True])
def test_a_failure_may_be_stored(tmp_path, stored):
    store = tmp_path / "out.zarr" if stored else None
    dataset = sweep(fails, {"x": [1, 2, 3]}, seeds=2, errors="store", store=store)
    assert dataset.attrs["failures"] == "x=2, seed=1: ValueError: no such network"
    assert np.isnan(dataset["result"].sel(x=2, seed=1))


def test_failed_runs_are_made_again(tmp_path):
    calls, good = [], []

    def run(x, seed):
        calls.append(x)
        if x == 2 and not good:
            raise RuntimeError
        return x

    first = sweep(run, {"x": [1, 2, 3]}, store=tmp_path / "out.zarr", errors="store", changed="accept")
    assert first.attrs["failures"] == "x=2, seed=0: RuntimeError"
    good.append(True)
    second = sweep(run, {"x": [1, 2, 3]}, store=tmp_path / "out.zarr", changed="accept")
    assert calls == [1, 2, 3, 2]
    assert "failures" not in second.attrs and second["result"].values.tolist() == [[1], [2], [3]]


def test_all_may_fail(tmp_path):
    for store in (None, tmp_path / "out.zarr"):
        with pytest.raises(SweepError, match=r"12 of 12 runs failed: .*; and 7 more in .failures") as error:
            sweep(lambda x, seed: 1 / 0, {"x": range(6)}, seeds=2, store=store)
        assert set(error.value.dataset.data_vars) == {"finished"}


def test_a_run_that_exits_is_a_failure():
    with pytest.raises(SweepError, match="SystemExit: 3"):
        sweep(lambda seed: sys.exit(3), {}, seeds=2, workers=2)


# ---------------------------------------------------------------- stores


class Counted:
    """A function that counts its calls, and is the same function whatever it has counted."""

    def __init__(self):
        self.calls = []

    def __call__(self, **given):
        self.calls.append(given)
        return order(**given)

    def __reduce__(self):
        return Counted, ()


def test_finished_runs_are_not_made_again(tmp_path):
    run = Counted()
    for _ in range(2):
        assert_equal(sweep(run, GRID, seeds=2, store=tmp_path / "out.zarr"), range(2))
        assert len(run.calls) == 12


@pytest.mark.parametrize(
    "grid, seeds, total",
    [
        (GRID, 5, 30),
        ({**GRID, "alpha": [0.0, 0.3, 0.6]}, 2, 18),
        ({"coupling": [*GRID["coupling"], 5.0], "alpha": [0.0, 0.3, 0.1]}, 3, 36),
    ],
)
def test_an_axis_may_grow(tmp_path, grid, seeds, total):
    run = Counted()
    sweep(run, GRID, seeds=2, store=str(tmp_path / "out.zarr"))
    dataset = sweep(run, grid, seeds=seeds, store=tmp_path / "out.zarr", workers=2)
    assert_equal(dataset, range(seeds), grid=grid)
    assert len(run.calls) == total
    assert dataset["coupling"].values.tolist() == grid["coupling"]


def test_what_is_stored_can_be_read_by_others(tmp_path):
    sweep(order, GRID, seeds=2, store=tmp_path / "out.zarr")
    with xarray.open_zarr(tmp_path / "out.zarr", consolidated=False) as dataset:
        assert_equal(dataset, range(2))
    import zarr

    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert group["phases"].chunks == (1, 1, 1, 6) and group["R"].chunks == (1, 1, 1)


def test_strings_along_an_axis(tmp_path):
    for seeds in (1, 2):
        found = sweep(
            lambda name, seed: len(name), {"name": ["a", "bcd"]}, seeds, store=tmp_path / "out.zarr"
        )
    assert found["result"].sel(name="bcd").values.tolist() == [3, 3]


REFUSED = {
    "coupling must begin with its values, 0.5, 2.0, 4.0, got 0.5": {"grid": GRID | {"coupling": [0.5, 4.0]}},
    "alpha must begin with its values, 0.0, 0.3, got 0.1, 0.0": {"grid": GRID | {"alpha": [0.1, 0.0]}},
    "seed must begin with its values, 0, 1, got 0": {"seeds": 1},
    "its axes are coupling, alpha, seed, not alpha, coupling": {"grid": dict(reversed(GRID.items()))},
    "its axes are coupling, alpha, seed, not coupling, alpha$": {"seeds": None},
    "independent was False": {"independent": True},
    r"its function is .*\.order, not .*Counted": {"run": Counted()},
    r"its function .*\.order has been changed since": {"run": functools.partial(order, n=7)},
}


@pytest.mark.parametrize("message", REFUSED)
def test_another_sweep_is_refused(tmp_path, message):
    arguments = {"run": order, "grid": GRID, "seeds": 2, "store": tmp_path / "out.zarr"}
    sweep(**arguments)
    with pytest.raises(ValueError, match=rf"out\.zarr is of another sweep: {message}"):
        sweep(**arguments | REFUSED[message])
    assert_equal(sweep(**arguments), range(2))


def versions():
    """The same function as it is written today and tomorrow."""
    common = "def run(x, seed):\n"
    texts = {
        "first": common + "    return 2 * x\n",
        "with a word more": common + "    'Double.'\n    # indeed\n\n    return 2 * x\n",
        "changed": common + "    return 3 * x\n",
        "in another way": common + "    return max([y * x for y in (1, 2)])\n",
    }
    found = {}
    for name, text in texts.items():
        namespace = {"__name__": "study"}
        exec(text, namespace)
        found[name] = namespace["run"]
    return found


def test_a_changed_function_is_noticed(tmp_path):
    made = versions()
    arguments = {"grid": {"x": [1, 2]}, "store": tmp_path / "out.zarr"}
    sweep(made["first"], **arguments)
    sweep(made["with a word more"], **arguments)
    for name in ("changed", "in another way"):
        with pytest.raises(
            ValueError, match=r"study.run has been changed since; .* changed='accept' goes on"
        ):
            sweep(made[name], **arguments)
    arguments["grid"] = {"x": [1, 2, 3]}
    found = sweep(made["in another way"], **arguments, changed="accept")
    assert found["result"].values.tolist() == [[2], [4], [6]]
    sweep(made["in another way"], **arguments)  # is the function of the store from now on


def test_what_a_function_holds_is_part_of_it(tmp_path):
    def made(strength, helper):
        def run(x, seed, shift=0.0):
            return run.__name__ and helper(x) * strength.sum() + shift

        return run

    def twice(x):
        return 2 * x

    def thrice(x):
        return 3 * x

    arguments = {"grid": {"x": [1, 2]}, "store": tmp_path / "out.zarr"}
    sweep(made(np.ones(3), twice), **arguments)
    sweep(made(np.ones(3), twice), **arguments)
    for other in (made(np.ones(4), twice), made(np.ones(3), thrice)):
        with pytest.raises(ValueError, match="has been changed since"):
            sweep(other, **arguments)
    with pytest.raises(ValueError, match="has been changed since"):
        sweep(functools.partial(made(np.ones(3), twice), shift=1.0), **arguments)


class Held:
    """Keeps what it has computed."""

    def __init__(self, helper):
        self.helper = helper

    @functools.cached_property
    def costly(self):
        return self.helper(1.0)

    def __call__(self, seed):
        return self.costly + seed


@pytest.mark.parametrize("holder", ["dictionary", "object"])
def test_functions_inside_of_what_is_held_count_and_caches_do_not(tmp_path, holder):
    def made(helper):
        if holder == "object":
            return Held(helper)
        held = {"f": helper, "words": {"a", "b"}, "cells": [np.arange(3)]}

        def run(seed):
            return held["f"](seed)

        return run

    arguments = {"grid": {}, "seeds": 2, "store": tmp_path / "out.zarr"}
    first = made(lambda x: x + 1.0)
    sweep(first, **arguments)
    sweep(first, **arguments)  # which has kept something by now
    sweep(made(lambda x: x + 1.0), **arguments)
    with pytest.raises(ValueError, match="has been changed since"):
        sweep(made(lambda x: x + 100.0), **arguments)


def test_graphs_that_a_function_holds_are_told_by_their_edges(tmp_path):
    networkx = pytest.importorskip("networkx")

    def made(graph):
        return lambda seed: spo_fast.order_parameter([0.0, 1.0, graph.size()])[0] + graph.number_of_edges()

    arguments = {"grid": {}, "seeds": 2, "store": tmp_path / "out.zarr"}
    graph = networkx.path_graph(3)
    for _ in range(2):
        sweep(made(graph), **arguments)
        list(graph.adj), list(graph.edges), graph.degree  # kept by the graph
    sweep(made(networkx.path_graph(3)), **arguments)
    with pytest.raises(ValueError, match="has been changed since"):
        sweep(made(networkx.cycle_graph(3)), **arguments)


def test_methods_of_built_in_objects_are_told_by_their_object(tmp_path):
    def made(table):
        look = table.get
        return lambda seed: look(seed, 0.0)

    arguments = {"grid": {}, "seeds": 2, "store": tmp_path / "out.zarr"}
    for _ in range(2):
        sweep(made({0: 1.0}), **arguments)
    with pytest.raises(ValueError, match="has been changed since"):
        sweep(made({0: 2.0}), **arguments)


def test_a_function_is_the_same_in_every_process():
    """Whatever the seed of the hashes is: sets come in another order."""
    program = """
        from spo_fast import sweeps
        def run(seed, words=frozenset({"a", "b", "c", "d"}), table={"x": {"p", "q", "r"}}):
            return len(words) in {1, 2, 3}
        print(sweeps._identity(run)["digest"])
    """
    digests = {
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(4)
    }
    assert len(digests) == 1


def test_a_variable_without_a_value_is_no_trouble():
    def run(seed):
        return helper()

    with pytest.raises(SweepError, match="helper"):
        sweep(run, {})

    def helper():
        return 1.0

    assert sweep(run, {})["result"].item() == 1.0


def test_what_cannot_be_pickled_is_no_trouble(tmp_path):
    lock = threading.Lock()

    def run(seed):
        with lock:
            return seed

    for _ in range(2):
        sweep(run, {}, seeds=2, store=tmp_path / "out.zarr")


def test_other_folders_and_files_are_refused(tmp_path):
    import zarr

    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"store must be a Zarr directory, got the file"):
        sweep(order, GRID, store=tmp_path / "file")
    with pytest.raises(ValueError, match=r"is no sweep's: it holds other files"):
        sweep(order, GRID, store=tmp_path)
    zarr.create_group(tmp_path / "group")
    with pytest.raises(ValueError, match=r"is no sweep's: it is another Zarr group"):
        sweep(order, GRID, store=tmp_path / "group")
    (tmp_path / "empty").mkdir()
    assert_equal(sweep(order, GRID, store=tmp_path / "empty"), range(1))


@pytest.mark.skipif(os.name != "posix", reason="locks of folders are those of POSIX systems")
def test_one_writer_at_a_time(tmp_path):
    def run(seed):
        with pytest.raises(RuntimeError, match=r"another process is writing to .*out\.zarr"):
            sweep(order, GRID, store=tmp_path / "out.zarr")
        return seed

    sweep(run, {}, store=tmp_path / "out.zarr")


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    "options, message",
    [
        ({"run": 3}, "run must be callable, got 3"),
        ({"grid": [1]}, "grid must be a mapping of names to values"),
        ({"grid": {3: [1]}}, "grid must have names other than .*, got 3"),
        ({"grid": {"seed": [1]}}, "grid must have names other than .*, got 'seed'"),
        ({"grid": {"x": 3}}, r"grid\['x'\] must be a sequence of values, got 3"),
        ({"grid": {"x": "abc"}}, r"grid\['x'\] must be a sequence of values, got 'abc'"),
        ({"grid": {"x": []}}, r"grid\['x'\] must hold at least one value, got none"),
        ({"grid": {"x": [1.0, 2.0, 1]}}, r"grid\['x'\] must hold no value twice, got 1.0 2 times"),
        ({"grid": {"x": [1.0, float("nan")]}}, r"grid\['x'\] must hold finite numbers, .*, got nan"),
        ({"grid": {"x": [1.0, "a"]}}, r"grid\['x'\] must hold finite numbers, .*, got 'a'"),
        ({"grid": {"x": [np.eye(2)]}}, r"grid\['x'\] must hold finite numbers, .*, got ndarray of shape"),
        ({"seeds": 0}, "seeds must be an integer >= 1, got 0"),
        ({"seeds": 1.5}, "seeds must be an integer, got 1.5"),
        ({"seeds": "12"}, "seeds must be an integer, got '12'"),
        ({"seeds": [1, -1]}, "seeds must be an integer >= 0, got -1"),
        ({"seeds": [1, 1]}, "seeds must hold no value twice, got 1 2 times"),
        ({"seeds": None, "independent": True}, "independent needs seeds, got None"),
        ({"independent": 1}, "independent must be True or False, got 1"),
        ({"workers": 0}, "workers must be an integer >= 1, got 0"),
        ({"errors": "ignore"}, "errors must be one of 'raise', 'store', got 'ignore'"),
        ({"changed": True}, "changed must be one of 'refuse', 'accept', got True"),
        ({"store": 3}, "store must be a path, got 3"),
    ],
)  # fmt: skip
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        sweep(**{"run": order, "grid": GRID} | options)


def test_a_client_is_one():
    pytest.importorskip("distributed")
    with pytest.raises(ValueError, match=r"client must be a dask\.distributed\.Client, got 'here'"):
        sweep(order, GRID, client="here")


@pytest.mark.parametrize(
    "package, options", [("xarray", {}), ("zarr", {"store": "out.zarr"}), ("distributed", {"client": "x"})]
)
def test_a_missing_package_is_told_with_its_extra(monkeypatch, tmp_path, package, options):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"sweep needs {package}: pip install 'spo-fast\[studies\]'"):
        sweep(order, GRID, **options)


# ---------------------------------------------------------------- kills


STEPS = {
    "_fit_axes": (1,),
    "_new_coordinate": (1, 2, 3),
    "_new_array": (1, 2),
    "keep": (1, 5),
    "_finish": (1, 5),
    "note": (1,),
}


@pytest.mark.parametrize("place, count", [(place, count) for place in STEPS for count in STEPS[place]])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_step_of_the_writing(tmp_path, monkeypatch, place, count, when):
    """What is left is mended by the next call, and no run that is marked is made again."""
    run, store = Counted(), tmp_path / "out.zarr"
    original = getattr(sweep_results.Store, place)
    left = [count]

    def then_die(self, *arguments):
        left[0] -= 1
        if left[0] == 0 and when == "before":
            raise Killed
        result = original(self, *arguments)
        if left[0] == 0:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(sweep_results.Store, place, then_die)
        with pytest.raises(Killed):
            sweep(run, GRID, seeds=2, store=store)
    marked = 0
    if (store / "finished").exists():
        with xarray.open_zarr(store, consolidated=False) as dataset:
            marked = int(dataset["finished"].sum())
    done = len(run.calls)
    assert done - marked <= 1
    assert_equal(sweep(run, GRID, seeds=2, store=store), range(2))
    assert len(run.calls) - done == 12 - marked


@pytest.mark.parametrize("count", range(1, 8))
def test_a_kill_while_an_axis_grows(tmp_path, monkeypatch, count):
    import zarr

    run, store = Counted(), tmp_path / "out.zarr"
    sweep(run, GRID, seeds=2, store=store)
    resize, left = zarr.Array.resize, [count]

    def then_die(self, *arguments):
        resize(self, *arguments)
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(zarr.Array, "resize", then_die)
        try:
            sweep(run, GRID, seeds=3, store=store)
        except Killed:
            assert_equal(sweep(run, GRID, seeds=2, store=store), range(2))  # also as it was
    assert_equal(sweep(run, GRID, seeds=3, store=store), range(3))
    assert len(run.calls) == 18


RUNS = 24

PROGRAM = """
import os, signal, sys
import numpy as np
from spo_fast import simulate, sweep

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a job in the background ignores
folder, workers, cluster = sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3

def log(word, coupling, seed):
    handle = os.open(folder + "/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{word} {coupling} {seed}\\n".encode())
    os.close(handle)

def run(coupling, seed):
    log("begin", coupling, seed)
    rng = np.random.default_rng(seed)
    theta = rng.uniform(0, 6, 20)
    found = simulate(theta, 1.0, np.full((20, 20), coupling), dt=0.01, n_steps=150, backend="numpy")
    log("end", coupling, seed)
    return {"final": ("oscillator", found.final)}

def main(client=None):
    grid = {"coupling": np.linspace(0.1, 1.0, 6)}
    sweep(run, grid, seeds=4, store=folder + "/out.zarr", workers=workers, client=client)

if __name__ == "__main__":
    if cluster:
        from distributed import Client, LocalCluster
        with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as local:
            with Client(local) as client:
                main(client)
    else:
        main()
"""


class Study:
    """A program that sweeps in a process of its own, and what it has logged and stored."""

    def __init__(self, folder, workers, *more):
        self.folder = folder
        path = folder / "study.py"
        path.write_text(textwrap.dedent(PROGRAM))
        self.command = [sys.executable, str(path), str(folder), str(workers), *more]

    def log(self, word):
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")]

    def marked(self):
        with xarray.open_zarr(self.folder / "out.zarr", consolidated=False, chunks=None) as dataset:
            marks = dataset["finished"].load()
            return {
                f"{coupling} {seed}"
                for coupling in marks["coupling"].values.tolist()
                for seed in marks["seed"].values.tolist()
                if marks.sel(coupling=coupling, seed=seed).item()
            }

    def start(self):
        return subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def wait_for(self, child, ended):
        deadline = time.monotonic() + LIMIT
        while child.poll() is None and len(self.log("end")) < ended and time.monotonic() < deadline:
            time.sleep(0.002)
        assert child.poll() is None, child.stderr.read()

    def finish(self):
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done.stderr
        assert len(self.marked()) == RUNS
        with xarray.open_zarr(self.folder / "out.zarr", consolidated=False, chunks=None) as dataset:
            for coupling, seed in ((0.1, 0), (0.46, 3), (1.0, 2)):
                theta = np.random.default_rng(seed).uniform(0, 6, 20)
                knm = np.full((20, 20), coupling)
                expected = simulate(theta, 1.0, knm, dt=0.01, n_steps=150, backend="numpy").final
                found = dataset["final"].sel(coupling=coupling, seed=seed, method="nearest", tolerance=1e-9)
                np.testing.assert_array_equal(found.values, expected)


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is a signal of POSIX systems")
@pytest.mark.parametrize("workers, more, unkept", [(1, (), 1), (3, (), 3), (1, ("cluster",), RUNS)])
def test_sigkill_in_the_middle(tmp_path, workers, more, unkept):
    if more:
        pytest.importorskip("distributed")
    study = Study(tmp_path, workers, *more)
    kept, at_kill = [set()], [0]
    for kill, ended in enumerate((4,) if more else (4, 10), 1):
        child = study.start()
        study.wait_for(child, ended)
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        kept.append(study.marked())
        at_kill.append(len(study.log("begin")))
        assert kept[-2] <= kept[-1] and len(kept[-1]) < RUNS
        assert len(study.log("end")) - len(kept[-1]) <= unkept * kill
    study.finish()
    begun = study.log("begin")
    assert len(set(begun)) == RUNS
    for marked, start in zip(kept, at_kill, strict=True):
        assert not marked & set(begun[start:])  # nothing that was kept is done twice
    if not more:
        assert len(begun) <= RUNS + 2 * workers


@pytest.mark.skipif(os.name != "posix", reason="SIGINT is sent as POSIX systems do")
@pytest.mark.parametrize("workers, more", [(1, ()), (2, ()), (1, ("cluster",))])
def test_ctrl_c_loses_nothing(tmp_path, workers, more):
    if more:
        pytest.importorskip("distributed")
    study = Study(tmp_path, workers, *more)
    child = study.start()
    study.wait_for(child, 4)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=LIMIT)
    assert child.returncode != 0 and "KeyboardInterrupt" in told
    if not more:
        assert set(study.log("end")) == study.marked()
    assert len(study.marked()) < RUNS
    study.finish()


def test_ctrl_c_ends_long_runs_in_threads():
    script = """
        import signal, time
        import numpy as np
        from spo_fast import simulate, sweep

        signal.signal(signal.SIGINT, signal.default_int_handler)

        def run(seed):
            if seed == 1:
                print("ready", flush=True)
            simulate(np.zeros(40), 1.0, np.zeros((40, 40)), dt=0.1, n_steps=10**9, observe=())

        try:
            sweep(run, {}, seeds=4, workers=2)
        except KeyboardInterrupt:
            import threading
            print("ended", threading.active_count())
    """
    assert interrupted(textwrap.dedent(script), 0.3) == "ended 1\n"


# ---------------------------------------------------------------- a cluster

CLUSTER = """
    import os
    import numpy as np
    from distributed import Client, LocalCluster
    from spo_fast import SweepError, sweep

    def where(seed, x):
        if x == 3 and seed == 0:
            raise ValueError("odd")
        return {"process": os.getpid(), "draw": np.random.default_rng(seed).random() + x}

    if __name__ == "__main__":
        options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
        with LocalCluster(**options) as local, Client(local) as client:
            found = sweep(where, {"x": [1, 2]}, seeds=8, client=client)
            own = sweep(where, {"x": [1, 2]}, seeds=8)
            processes = set(found["process"].values.ravel())
            print(os.getpid() in processes, len(processes), found["draw"].equals(own["draw"]))
            try:
                sweep(where, {"x": [2, 3]}, seeds=2, client=client, store="out.zarr")
            except SweepError as error:
                print(error)
                print(int(error.dataset["finished"].sum()))
            options = {"client": client, "store": "all.zarr"}
            for _ in range(2):
                print(sweep(where, {"x": [1]}, **options)["draw"].shape)
            try:
                sweep(where, {"x": [2]}, client=client, workers=2)
            except ValueError as error:
                print(error)
"""


def test_a_cluster_of_processes(tmp_path):
    pytest.importorskip("distributed")
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(CLUSTER))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "False 2 True"
    assert lines[1] == "1 of 4 runs failed: x=3, seed=0: ValueError: odd; the others are in .dataset"
    assert lines[2:] == ["3", "(1, 1)", "(1, 1)", "workers must be 1 where a client has its own, got 2"]
