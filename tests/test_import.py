"""What importing the package costs and brings along."""

from __future__ import annotations

import copy
import importlib
import pickle
import subprocess
import sys

import pytest

import spo_fast

HEAVY = ("numba", "scipy", "torch", "cffi", "matplotlib", "xarray", "tqdm")


def run(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)


def test_import_is_light_and_starts_nothing():
    script = (
        "import numpy, sys, threading, time\n"
        "before = time.perf_counter()\n"
        "import spo_fast\n"
        "cost = time.perf_counter() - before\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], threading.active_count(), cost)\n"
    )
    costs = []
    for _ in range(3):
        done = run(script)
        assert done.returncode == 0, done.stderr
        loaded, threads, cost = done.stdout.rsplit(maxsplit=2)
        assert loaded == "[]" and threads == "1"
        costs.append(float(cost))
    assert min(costs) < 0.5  # guards against a heavy import; `asv` holds the promise of 0.05 s


@pytest.mark.parametrize(
    "use",
    [
        "spo_fast.backends()",
        "spo_fast.modulate([[0, 1], [1, 0]], [0, 1], backend='numpy')",
        "spo_fast.simulate([0, 1], 1, [[0, 1], [1, 0]], dt=0.1, n_steps=2, backend='numpy')",
        "spo_fast.order_parameter([0, 1], backend='numpy')",
        "spo_fast.lyapunov_spectrum([0, 1], 1, [[0, 1], [1, 0]], n_steps=5)",
    ],
)
def test_use_without_numba_loads_nothing_heavy(use):
    done = run(f"import sys, spo_fast; {use}; print([n for n in {HEAVY!r} if n in sys.modules])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_all_public_names_exist_and_are_listed():
    for name in spo_fast.__all__:
        assert getattr(spo_fast, name) is not None
        assert name in dir(spo_fast)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'modulated'"):
        _ = spo_fast.modulated


def test_version_comes_from_the_installed_metadata():
    from importlib.metadata import version

    assert spo_fast.__version__ == version("spo-fast")


def test_backends_is_the_package_and_the_function():
    assert importlib.import_module("spo_fast.backends") is spo_fast.backends
    assert spo_fast.backends()["numpy"] == "available"


@pytest.mark.parametrize(
    "name", [n for n in spo_fast.__all__ if n not in ("attention", "compat", "datasets")]
)
def test_public_callables_can_be_pickled_and_copied(name):
    function = getattr(spo_fast, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function


def test_include_directory_holds_the_header():
    from pathlib import Path

    assert (Path(spo_fast.get_include()) / "spo_fast.h").is_file()


def test_unwritable_home_is_no_trouble():
    script = "import spo_fast; print(spo_fast.modulate([[0, 1], [1, 0]], [0, 1], backend='numpy').shape)"
    done = subprocess.run(
        [sys.executable, "-B", "-c", f"import os; os.environ['HOME'] = '/nonexistent'; {script}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "(2, 2)" and done.stderr == ""
