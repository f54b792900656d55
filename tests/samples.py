"""Seeded inputs and the distances by which the tests judge; the oracles need none of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"
METHODS = ("euler", "rk4", "rk45")


def golden_files(kind):
    return sorted((GOLDEN / kind).glob("*.npz"))


def load_golden(path):
    """The arrays of one file and its settings."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files if name != "meta"}
        return arrays, json.loads(str(stored["meta"]))


def step_size_doubt(meta, arrays):
    """What one rounding of a phase does to each next step size of rk45, relative to it: an array (steps,).

    The stored error estimate y5 - y4 subtracts two phases near 2 pi that are rounded to 9e-16, in an order of
    sums that belonged to one BLAS on one processor, so some units in its last place are chance. How large the
    estimate was follows from how much the step grew: error = (0.9 / growth)^5, at most 1, times a tolerance
    of at least atol + rtol.
    """
    if meta["method"] != "rk45":
        return np.zeros(meta["steps"])
    growth = arrays["dt_after"] / np.concatenate([[meta["dt"]], arrays["dt_after"][:-1]])
    estimate = np.minimum(1.0, (0.9 / growth) ** 5) * (meta.get("atol", 1e-6) + meta.get("rtol", 1e-3))
    return 4.0 * np.spacing(2.0 * np.pi) / (5.0 * estimate)


def symmetric(rng, n, density=1.0, low=0.0, high=1.0):
    """Coupling for `modulate`: exactly symmetric with a zero diagonal."""
    upper = np.triu(rng.uniform(low, high, (n, n)) * (rng.random((n, n)) < density), 1)
    return upper + upper.T


def phases(rng, n):
    return rng.uniform(0.0, 2.0 * np.pi, n)


def network(rng, n):
    """theta, omega, an asymmetric K and an asymmetric alpha (a symmetric pair hides a transposed loop)."""
    knm = rng.uniform(0.0, 1.0, (n, n)) * (2.0 / max(n, 1))
    np.fill_diagonal(knm, 0.0)
    return phases(rng, n), rng.normal(1.0, 0.5, n), knm, rng.uniform(-1.0, 1.0, (n, n))


def relative(result, expected, floor=0.0):
    """Largest error over the largest entry, or over `floor` where that is larger."""
    assert result.shape == expected.shape
    scale = max(float(np.max(np.abs(expected), initial=0.0)), floor)
    error = float(np.max(np.abs(result - expected), initial=0.0))
    return error / scale if scale else error


def circle_gap(a, b):
    """Largest distance on the circle between two arrays of phases."""
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    return float(np.max(np.abs(np.remainder(difference + np.pi, 2.0 * np.pi) - np.pi), initial=0.0))


def parity_budget(expected, theta, d_model, relative=1e-13):
    """Absolute error of K' that a backend may make."""
    scale = float(np.max(np.abs(expected), initial=0.0))
    return relative * scale + float(np.max(np.abs(theta), initial=0.0)) * d_model * 2e-16


def same_bits(a, b):
    """Equality of value, shape and sign of zero."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
