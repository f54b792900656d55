"""The core's exp, exp2 and sincos against mpmath, on every instruction set of this processor."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

core = pytest.importorskip("spo_fast._core", reason="the C core is not built")

# The bounds stated in csrc/isa/vectormath.h: (with FMA, without).
BOUNDS = {"exp2": (1.2, 1.5), "exp": (1.3, 1.5), "sincos": (0.8, 1.2)}
SETS = core.instruction_sets()


def bound(function: str, instruction_set: str) -> float:
    """Worst error promised, in ULP."""
    return BOUNDS[function][instruction_set == "sse2"]


def ulps(got: np.ndarray, x: np.ndarray, function) -> np.ndarray:
    """Errors in units in the last place of the correctly rounded result."""
    errors = np.empty(len(x))
    with mpmath.workprec(160):
        for k, (value, argument) in enumerate(zip(got.tolist(), x.tolist(), strict=True)):
            exact = function(mpmath.mpf(argument))
            errors[k] = abs(mpmath.mpf(value) - exact) / mpmath.mpf(float(np.spacing(abs(float(exact)))))
    return errors


def circle_points() -> np.ndarray:
    """Random phases of several sizes, and the neighbourhood of multiples of pi/2."""
    rng = np.random.default_rng(7)
    parts = [rng.uniform(-size, size, 1500) for size in (1.0, 7.0, 1e3, 2.0**19)]
    multiples = rng.integers(-300_000, 300_000, 1500) * (np.pi / 2)
    near = np.nextafter(np.arange(1, 500) * (np.pi / 2), np.inf)
    far = rng.uniform(-1e9, 1e9, 500)
    return np.concatenate(
        [*parts, multiples, near, far, [2.0**19, np.nextafter(2.0**19, np.inf), 1e-300, 1e300]]
    )


def test_sincos_error_stays_in_the_stated_bound(instruction_set):
    x = circle_points()
    sine, cosine = core.sincos(x)
    assert ulps(sine, x, mpmath.sin).max() <= bound("sincos", instruction_set)
    assert ulps(cosine, x, mpmath.cos).max() <= bound("sincos", instruction_set)


def test_exp_error_stays_in_the_stated_bound(instruction_set):
    rng = np.random.default_rng(8)
    x = np.concatenate(
        [rng.uniform(-1, 1, 2000), rng.uniform(-745, 709.7, 2000), [-708.4, -744.4, 709.78, 1e-20]]
    )
    assert ulps(core.exp(x), x, mpmath.exp).max() <= bound("exp", instruction_set)


def test_exp2_error_stays_in_the_stated_bound(instruction_set):
    rng = np.random.default_rng(9)
    x = np.concatenate(
        [rng.uniform(-1, 1, 2000), rng.uniform(-1021, 1023, 2000), [-1021.0, 1023.0, 0.5, -0.5]]
    )
    assert ulps(core.exp2(x), x, lambda t: mpmath.mpf(2) ** t).max() <= bound("exp2", instruction_set)


def test_exact_values(instruction_set):
    sine, cosine = core.sincos(np.array([0.0, -0.0]))
    assert sine.tolist() == [0.0, 0.0]
    assert cosine.tolist() == [1.0, 1.0]
    assert core.exp(np.zeros(1))[0] == 1.0
    assert core.exp2(np.array([0.0, 1.0, -3.0])).tolist() == [1.0, 2.0, 0.125]


def test_symmetries_are_exact(instruction_set):
    x = circle_points()
    sine, cosine = core.sincos(x)
    mirrored_sine, mirrored_cosine = core.sincos(-x)
    assert np.array_equal(sine, -mirrored_sine)
    assert np.array_equal(cosine, mirrored_cosine)


def test_values_at_the_ends_of_the_line(instruction_set):
    infinite = np.array([np.inf, -np.inf, np.nan])
    sine, cosine = core.sincos(infinite)
    assert np.isnan(sine).all()
    assert np.isnan(cosine).all()
    assert core.exp(np.array([np.inf, 710.0, -np.inf, -746.0])).tolist() == [np.inf, np.inf, 0.0, 0.0]
    assert np.isnan(core.exp(np.array([np.nan])))[0]


@pytest.mark.parametrize("n", range(20))
def test_a_result_does_not_depend_on_its_place(instruction_set, n):
    x = np.linspace(-3.0, 3.0, n)
    sine, cosine = core.sincos(x)
    one_by_one = [core.sincos(x[k : k + 1]) for k in range(n)]
    assert sine.tolist() == [s[0] for s, _ in one_by_one]
    assert cosine.tolist() == [c[0] for _, c in one_by_one]
    assert core.exp(x).tolist() == [core.exp(x[k : k + 1])[0] for k in range(n)]
