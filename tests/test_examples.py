"""The example scripts run, shortened, and print what they are for."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(function, *arguments):
    """Call an example that needs data from packages that may be missing."""
    try:
        function(*arguments)
    except ImportError as error:
        if os.environ.get("SPO_FAST_REQUIRE_NETWORKS", "") not in ("", "0"):
            raise
        pytest.skip(str(error))


def test_every_example_is_run_here():
    tests = {name.removeprefix("test_") for name in globals()}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tests


def test_lattice(capsys):
    pytest.importorskip("scipy")
    example = load("lattice")
    knm = example.lattice(4, 3)
    assert knm.nnz == 2 * (3 * 3 + 4 * 2)
    assert (knm.toarray() == knm.toarray().T).all()
    example.main(["--length", "30", "--steps", "100"])
    printed = capsys.readouterr().out
    assert "300 oscillators, 1120 entries" in printed
    assert float(printed.split("dense run: ")[1].split()[0]) < 1e-11


def test_sweep(capsys, tmp_path):
    for package in ("xarray", "zarr"):
        pytest.importorskip(package)
    options = ["--store", str(tmp_path / "order.zarr"), "--workers", "2"]
    for seeds in ("1", "2"):
        load("sweep").main([*options, "--seeds", seeds], n=100, n_steps=300)
        lines = capsys.readouterr().out.splitlines()
    found = [(float(line.split()[3]), float(line.split()[-1])) for line in lines]
    assert len(found) == 10
    assert all(abs(order - theory) < 0.1 for order, theory in found[-4:])  # well beyond the onset


def test_pulse(capsys):
    load("pulse").main()
    orders = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert orders[1] > orders[0] + 0.1  # the drive pulls the phases together
    assert orders[2] < orders[1]


@pytest.mark.usefixtures("compiled_names")
def test_plasticity(capsys):
    load("plasticity").main(7, 30)
    gaps = re.findall(r"(?:phases|couplings) (\S+e[+-]\d+)", capsys.readouterr().out)
    assert len(gaps) == 2
    assert max(map(float, gaps)) < 1e-12


def test_learn_projections(capsys):
    load("learn_projections").main([])
    for line in capsys.readouterr().out.splitlines():
        before, after = map(float, line.split("coherence ")[1].split(" -> "))
        assert after > before + 0.02, line


def test_connectome(capsys):
    call(load("connectome").main, 200)
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_power_grid(capsys):
    pytest.importorskip("scipy")
    call(load("power_grid").main, "case118", 20.0)
    imbalance = float(capsys.readouterr().out.split("imbalance of a bus ")[1].split()[0])
    assert imbalance < 1.0  # MW, of several thousand


PAGE = EXAMPLES.parent / "docs" / "cases.md"


@pytest.mark.parametrize("named", sorted(set(re.findall(r"tests/[\w/]+\.py::\w+", PAGE.read_text("utf-8")))))
def test_the_tests_that_the_page_of_cases_names_exist(named):
    path, _, name = named.partition("::")
    source = (EXAMPLES.parent / path).read_text("utf-8")
    assert re.search(rf"^def {name}\(", source, flags=re.MULTILINE), named


def test_the_scripts_that_the_page_of_cases_names_exist():
    for named in re.findall(r"`(?:python )?((?:examples|tools)/[\w.]+)", PAGE.read_text("utf-8")):
        assert (EXAMPLES.parent / named).exists(), named
