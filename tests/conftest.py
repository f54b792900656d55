"""Fixtures shared by all tests.

A backend that cannot be loaded is skipped with its reason, unless the environment variable
SPO_FAST_REQUIRE_BACKENDS (names separated by commas) lists it: then its absence is a failure.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

SPARSE_BACKENDS = ("numpy", "numba", "cython")
ATTENTION_BACKENDS = SPARSE_BACKENDS  # the portable interface has none
BACKENDS = (*SPARSE_BACKENDS, "rust", "go", "julia", "mojo")

NEED_TORCH = ["experiments", "torch"]
collect_ignore = NEED_TORCH if find_spec("torch") is None else []


def pytest_report_header():
    """Say what is left out, and why."""
    return [f"tests/{name} left out: pip install 'spo-fast[torch]'" for name in collect_ignore]


settings.register_profile(
    "spo_fast",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("spo_fast")


def required_backends():
    names = os.environ.get("SPO_FAST_REQUIRE_BACKENDS", "").split(",")
    return {name.strip() for name in names if name.strip()}


def require(name):
    """Skip or fail unless this backend can be loaded, with the reason."""
    import spo_fast
    from spo_fast.backends import registry

    reason = spo_fast.backends().get(name, "unknown to backends()")
    if reason == "available":
        try:
            registry.load(name)
        except RuntimeError as error:
            reason = str(error)
        else:
            return
    refuse = pytest.fail if name in required_backends() else pytest.skip
    refuse(f"{name}: {reason}")


def backend_fixture(names):
    """Make a fixture: the name of each of these backends in turn, those that can be loaded."""

    @pytest.fixture(scope="session", params=names)
    def backend(request):
        require(request.param)
        return request.param

    return backend


backend = backend_fixture(BACKENDS)
sparse_backend = backend_fixture(SPARSE_BACKENDS)  # the portable interface of the others is dense


@pytest.fixture
def threaded_backend(backend):
    """Name of a backend that any thread may call."""
    from spo_fast.backends import foreign

    if backend in foreign.ONE_THREAD:
        pytest.skip(f"{backend} answers to one thread, which tests/backends holds it to telling")
    return backend


def instruction_sets():
    """Those that the C core can use here, fastest first; none where it is not built."""
    try:
        from spo_fast import _core
    except ImportError:
        return []
    return _core.instruction_sets()


@pytest.fixture(params=instruction_sets())
def instruction_set(request):
    """Name of an instruction set; the C core keeps to it during a test."""
    from spo_fast import _core

    before = _core.instruction_set()
    _core.select_instruction_set(request.param)
    yield request.param
    _core.select_instruction_set(before)


@pytest.fixture
def compiled_names():
    """Public names in compiled code also where the package is not installed: Numba finds them by that."""
    import spo_fast.overloads  # noqa: F401


@pytest.fixture
def rng():
    """A generator that gives every test the same numbers in every run."""
    return np.random.default_rng(20240611)
