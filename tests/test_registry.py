"""Names of the backends, their order, and what is said about a missing one."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import spo_fast
from spo_fast.backends import registry

NAMES = ["cython", "numba", "rust", "go", "julia", "mojo", "numpy"]
PROTOCOL = ("NAME", "ModulationPlan", "BoundModulation", "Integration", "order_parameter")


def run(script):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300
    )


def test_every_name_is_reported_in_order():
    report = spo_fast.backends()
    assert list(report) == NAMES
    assert report["numpy"] == "available"
    assert all(isinstance(state, str) and state and "\n" not in state for state in report.values())


def test_module_of_a_backend_follows_the_protocol(backend):
    module = registry.load(backend)
    assert backend == module.NAME
    for name in PROTOCOL:
        assert hasattr(module, name), name
    assert registry.load(backend) is module


def test_automatic_choice_is_the_first_available():
    available = [name for name in registry.AUTOMATIC if spo_fast.backends()[name] == "available"]
    assert registry.load().NAME == registry.load("auto").NAME == available[0]


@pytest.mark.parametrize("name", ["fortran", "", "NumPy", 3, b"numpy", ["numpy"], True])
def test_unknown_name_is_refused_with_the_list(name):
    with pytest.raises(ValueError, match=r"backend must be one of 'auto', 'cython'"):
        registry.load(name)
    with pytest.raises(ValueError, match="backend"):
        spo_fast.modulate(np.zeros((2, 2)), np.zeros(2), backend=name)


@pytest.mark.parametrize("error", ["ImportError('no numba today')", "SystemError('wrong NumPy')"])
def test_numba_that_raises_anything_is_reported_and_skipped(error):
    done = run(
        f"""
        import sys

        class Hook:
            def find_spec(self, name, path=None, target=None):
                if name == "numba" or name.startswith("numba."):
                    raise {error}
                if name == "spo_fast._core":
                    raise ImportError("no compiler today")

        sys.meta_path.insert(0, Hook())
        import spo_fast
        from spo_fast.backends import registry
        assert registry.load().NAME == "numpy"
        report = spo_fast.backends()
        assert "today" in report["numba"] or "wrong NumPy" in report["numba"], report["numba"]
        assert "no compiler today" in report["cython"]
        assert spo_fast.modulate([[0, 1], [1, 0]], [0, 1]).shape == (2, 2)
        try:
            registry.load("cython")
        except RuntimeError as reason:
            assert "no compiler today" in str(reason) and "pip install" in str(reason)
        else:
            raise AssertionError
        """
    )
    assert done.returncode == 0, done.stderr


def test_asking_what_is_there_does_not_import_numba():
    done = run("import spo_fast, sys; spo_fast.backends(); print('numba' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr
