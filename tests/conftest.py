"""Fixtures shared by all tests.

A backend that cannot be loaded is skipped with its reason, unless the environment variable
SPO_FAST_REQUIRE_BACKENDS (names separated by commas) lists it: then its absence is a failure.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

BACKENDS = ("numpy", "numba", "cython")

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


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request):
    """Name of a backend that can be loaded."""
    import spo_fast

    reason = spo_fast.backends().get(request.param, "unknown to backends()")
    if reason != "available":
        refuse = pytest.fail if request.param in required_backends() else pytest.skip
        refuse(f"{request.param}: {reason}")
    return request.param


@pytest.fixture
def rng():
    """A generator that gives every test the same numbers in every run."""
    return np.random.default_rng(20240611)
