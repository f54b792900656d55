"""The modulation kernels themselves: parity, exact symmetry, masks, statuses, embedding in a user's
compiled code.

Sizes are small: the whole file also runs with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import modulation as oracle
from samples import golden_files, load_golden, parity_budget, same_bits, symmetric

from spo_fast import kernels
from spo_fast.backends.status import Status
from spo_fast.kernels import _flags, vectormath
from spo_fast.kernels import modulation as attention

ROOT = Path(__file__).resolve().parents[2]
UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
LARGEST = 31 if UNCOMPILED else 10**9
SIZES = (0, 1, 2, 3, 5, 15, 16, 17, 31, 33)


def weights(rng, heads=4, width=8, scale=0.45):
    per_head = width // heads
    projections = [scale * rng.standard_normal((heads, width, per_head)) for _ in range(3)]
    return (*projections, scale * rng.standard_normal((width, width)))


def run(knm, theta, projections, *, block_size=-1, temperature=1.0, lambda_=0.5, out=None):
    """Status and result of one call, the inputs checked to be as before."""
    out = np.full_like(knm, np.nan) if out is None else out
    tau = np.full(projections[0].shape[0], float(temperature))
    before = knm.copy(), theta.copy()
    status = kernels.modulate(knm, theta, *projections, block_size, tau, lambda_, out)
    assert same_bits(before[0], knm)
    assert same_bits(before[1], theta)
    return status, out


def unit_rows(knm, theta, projections, *, block_size=-1, temperature=1.0):
    units = np.full((theta.size, projections[3].shape[0]), np.nan)
    tau = np.full(projections[0].shape[0], float(temperature))
    assert kernels.factors(knm, theta, *projections, block_size, tau, units) == Status.OK
    return units


def expected_modulation(knm, theta, projections, *, block_size=-1, temperature=1.0, lambda_=0.5):
    return np.array(
        oracle.modulate(
            knm,
            theta,
            *projections,
            block_size=None if block_size < 0 else block_size,
            temperature=temperature,
            lambda_=lambda_,
        )
    ).reshape(knm.shape)


# ---------------------------------------------------------------- parity


@pytest.mark.parametrize("path", golden_files("modulate"), ids=lambda path: path.stem)
def test_golden(path):
    arrays, meta = load_golden(path)
    knm, theta, expected = arrays["knm"], arrays["theta"], arrays["expected"]
    if theta.size > LARGEST:
        pytest.skip("large for uncompiled code")
    block_size = -1 if meta["block_size"] is None else meta["block_size"]
    projections = [arrays[name] for name in ("w_q", "w_k", "w_v", "w_o")]
    options = {"block_size": block_size, "temperature": meta["temperature"], "lambda_": meta["lambda_"]}
    status, out = run(knm, theta, projections, **options)
    assert status == Status.OK
    assert np.max(np.abs(out - expected), initial=0.0) <= parity_budget(expected, theta, meta["d_model"])
    if meta["lambda_"] > 0.0:
        assert same_bits(out, out.T)
        assert not out.diagonal().any()
    else:
        assert same_bits(out, knm)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("heads", "width"), [(4, 8), (1, 2), (8, 8), (2, 12), (3, 6)])
def test_sizes_and_widths(n, heads, width, rng):
    knm, theta, projections = symmetric(rng, n, 0.7), rng.uniform(-9, 9, n), weights(rng, heads, width)
    status, out = run(knm, theta, projections)
    assert status == Status.OK
    np.testing.assert_allclose(out, expected_modulation(knm, theta, projections), rtol=0, atol=2e-13)
    assert same_bits(out, out.T)


@pytest.mark.parametrize("temperature", [1e-4, 0.004, 0.02, 0.3, 50.0])
@pytest.mark.parametrize("density", [1.0, 0.3])
def test_logits_of_any_size(temperature, density, rng):
    knm, theta, projections = symmetric(rng, 21, density), rng.uniform(0, 6, 21), weights(rng)
    status, out = run(knm, theta, projections, temperature=temperature)
    assert status == Status.OK
    expected = expected_modulation(knm, theta, projections, temperature=temperature)
    # The logits themselves are rounded: their error grows with their size.
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13 + 4e-15 / temperature)


@pytest.mark.parametrize("block_size", [0, 1, 2, 7, 15, 16, 17, 40])
@pytest.mark.parametrize("density", [1.0, 0.5])
@pytest.mark.parametrize("n", [5, 16, 37])
def test_band(block_size, density, n, rng):
    knm, theta, projections = symmetric(rng, n, density), rng.uniform(0, 6, n), weights(rng)
    status, out = run(knm, theta, projections, block_size=block_size)
    assert status == Status.OK
    expected = expected_modulation(knm, theta, projections, block_size=block_size)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-13)
    index = np.arange(n)
    outside = np.abs(index[:, None] - index) > block_size
    assert np.array_equal(out[outside], knm[outside])


# ---------------------------------------------------------------- structure


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 24), density=st.floats(0.0, 1.0), noise=st.booleans())
def test_exact_symmetry(seed, n, density, noise):
    rng = np.random.default_rng(seed)
    knm = symmetric(rng, n, density, low=-1.0)
    if noise:
        knm += 1e-13 * (knm != 0.0) * rng.uniform(-1, 1, (n, n))
    status, out = run(knm, rng.uniform(0, 6, n), weights(rng))
    assert status == Status.OK
    assert same_bits(out, out.T)
    assert not out.diagonal().any()
    assert not out[(knm == 0.0) & (knm.T == 0.0)].any()


def test_repeats_to_the_last_bit(rng):
    knm, theta, projections = symmetric(rng, 37, 0.8), rng.uniform(0, 6, 37), weights(rng)
    first = run(knm, theta, projections)[1]
    for _ in range(3):
        assert same_bits(first, run(knm.copy(), theta.copy(), projections)[1])


@pytest.mark.parametrize("lambda_", [0.5, 2.0])
def test_zero_on_one_side(lambda_, rng):
    """K_ij = 0 hides j from i alone; K_ji = 1e-13 still lets i be seen by j, which shows in the softmax."""
    knm, theta, projections = symmetric(rng, 6), rng.uniform(0, 6, 6), weights(rng)
    knm[1, 4], knm[4, 1] = 0.0, 1e-13
    knm[0], knm[:, 0] = 0.0, 0.0
    knm[0, 3] = 9e-13
    status, out = run(knm, theta, projections, lambda_=lambda_)
    assert status == Status.OK
    expected = expected_modulation(knm, theta, projections, lambda_=lambda_)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-13)
    np.testing.assert_allclose(out[1, 4], expected[1, 4], rtol=1e-12)
    np.testing.assert_allclose(out[0, 3], expected[0, 3], rtol=1e-12)
    assert same_bits(out, out.T)


def test_isolated_rows_stay(rng):
    knm, theta, projections = symmetric(rng, 19), rng.uniform(0, 6, 19), weights(rng)
    knm[[2, 17]], knm[:, [2, 17]] = 0.0, 0.0
    status, out = run(knm, theta, projections)
    assert status == Status.OK
    assert not out[[2, 17]].any()
    rest = np.delete(np.arange(19), [2, 17])
    inner = run(np.ascontiguousarray(knm[np.ix_(rest, rest)]), theta[rest], projections)[1]
    np.testing.assert_allclose(out[np.ix_(rest, rest)], inner, rtol=0, atol=2e-14)
    units = unit_rows(knm, theta, projections)
    assert not units[[2, 17]].any()
    np.testing.assert_allclose(np.linalg.norm(units[rest], axis=1), 1.0, rtol=1e-9)


def test_zero_strength_copies_bits(rng):
    knm = symmetric(rng, 9)
    knm[3, 3], knm[1, 2] = -0.0, knm[1, 2] * (1 + 1e-13)
    status, out = run(knm, rng.uniform(0, 6, 9), weights(rng), lambda_=0.0)
    assert status == Status.OK
    assert same_bits(out, knm)


@pytest.mark.parametrize("block_size", [-1, 4])
def test_factors_rebuild_the_result(block_size, rng):
    knm, theta, projections = symmetric(rng, 20), rng.uniform(0, 6, 20), weights(rng)
    units = unit_rows(knm, theta, projections, block_size=block_size)
    out = run(knm, theta, projections, block_size=block_size)[1]
    index = np.arange(20)
    inside = np.abs(index[:, None] - index) <= (20 if block_size < 0 else block_size)
    rebuilt = knm * np.where(inside, 1.25 + 0.25 * units @ units.T, 1.0)
    np.testing.assert_allclose(out, rebuilt, rtol=1e-13, atol=0)


@pytest.mark.parametrize("turns", [1, 1000, 10**6, 10**9])
def test_phases_of_any_size(turns, rng):
    knm, theta, projections = symmetric(rng, 12), rng.uniform(0, 6, 12), weights(rng)
    shifted = theta + 2 * np.pi * turns
    near, far = run(knm, theta, projections)[1], run(knm, shifted, projections)[1]
    np.testing.assert_allclose(far, near, rtol=0, atol=1e-12 + 8 * np.spacing(shifted.max()))


# ---------------------------------------------------------------- refusals


def spoiled(name, rng):
    knm, theta, projections = symmetric(rng, 18), rng.uniform(0, 6, 18), list(weights(rng))
    options = {}
    if name == "nan":
        knm[3, 5] = knm[5, 3] = np.nan
    elif name == "inf":
        knm[3, 5] = knm[5, 3] = np.inf
    elif name == "one inf":
        knm[17, 2] = -np.inf
    elif name == "nan diagonal":
        knm[16, 16] = np.nan
    elif name == "asymmetric":
        knm[17, 1] += 1e-11
    elif name == "diagonal":
        knm[4, 4] = 2e-12
    elif name == "nan phase":
        theta[17] = np.nan
    elif name == "inf phase":
        theta[0] = np.inf
    elif name == "temperature":
        options["temperature"] = 0.0
    elif name == "strength":
        options["lambda_"] = -0.5
    elif name == "shape":
        theta = theta[:-1].copy()
    elif name == "width":
        projections[3] = projections[3][:6, :6].copy()
    return knm, theta, projections, options


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("nan", Status.NONFINITE_COUPLING),
        ("inf", Status.NONFINITE_COUPLING),
        ("one inf", Status.NONFINITE_COUPLING),
        ("nan diagonal", Status.NONFINITE_COUPLING),
        ("asymmetric", Status.ASYMMETRIC_COUPLING),
        ("diagonal", Status.NONZERO_DIAGONAL),
        ("nan phase", Status.NONFINITE_PHASE),
        ("inf phase", Status.NONFINITE_PHASE),
        ("temperature", Status.INVALID_ARGUMENT),
        ("strength", Status.INVALID_ARGUMENT),
        ("shape", Status.INVALID_ARGUMENT),
        ("width", Status.INVALID_ARGUMENT),
    ],
)
def test_refusals_leave_the_output(name, status, rng):
    knm, theta, projections, options = spoiled(name, rng)
    out = np.full_like(knm, 7.0)
    assert run(knm, theta, projections, out=out, **options)[0] == status
    assert np.all(out == 7.0)


def test_refusal_does_not_depend_on_the_strength(rng):
    knm, theta, projections, _ = spoiled("nan", rng)
    assert run(knm, theta, projections, lambda_=0.0)[0] == Status.NONFINITE_COUPLING


def test_factors_refuse_what_modulate_refuses(rng):
    knm, theta, projections, one = symmetric(rng, 5), np.arange(5.0), weights(rng), np.ones(4)
    lopsided, lost = knm.copy(), theta.copy()
    lopsided[0, 1] += 1.0
    lost[2] = np.nan
    cases = [
        (knm, theta, np.ones(3), np.empty((5, 8)), Status.INVALID_ARGUMENT),
        (knm, theta, one, np.empty((5, 7)), Status.INVALID_ARGUMENT),
        (lopsided, theta, one, np.empty((5, 8)), Status.ASYMMETRIC_COUPLING),
        (knm, lost, one, np.empty((5, 8)), Status.NONFINITE_PHASE),
        (np.empty((0, 0)), np.empty(0), one, np.empty((0, 8)), Status.OK),
    ]
    for coupling, phases, temperature, out, status in cases:
        assert kernels.factors(coupling, phases, *projections, -1, temperature, out) == status


def test_negative_block_sizes_are_refused_but_for_none(rng):
    knm, projections, out = symmetric(rng, 5), weights(rng), np.empty((5, 5))
    arguments = (knm, np.arange(5.0), *projections)
    assert kernels.modulate(*arguments, -2, np.ones(4), 0.5, out) == Status.INVALID_ARGUMENT
    assert kernels.modulate(*arguments, 2**63 - 1, np.ones(4), 0.5, out) == Status.OK
    assert same_bits(out, run(knm, np.arange(5.0), projections)[1])


def test_status_numbers_are_those_of_the_enum():
    for status in Status:
        assert getattr(_flags, status.name) == status.value


# ---------------------------------------------------------------- elementary functions


def test_exp2(rng):
    exponents = [0.0, 1.0, -1.0, 0.5, -0.5, 1000.0, -1000.0, *rng.uniform(-500, 500, 300)]
    values = np.array([vectormath.exp2(np.float64(x)) for x in exponents])
    exact = np.exp2(np.array(exponents, dtype=np.longdouble))
    assert np.max(np.abs(values / exact - 1)) < 4.5e-16
    assert values[:3].tolist() == [1.0, 2.0, 0.5]


def test_sincos(rng):
    special = [0.0, -0.0, np.pi / 2, -np.pi / 2, np.pi, -np.pi, 2 * np.pi, 1e-300, 5e5 * np.pi, 1e9, -1e22]
    theta = np.array(
        [*special, *rng.uniform(-10, 10, 200), *rng.uniform(-1e6, 1e6, 100), *rng.uniform(-1e9, 1e9, 20)]
    )
    sine, cosine = np.empty_like(theta), np.empty_like(theta)
    vectormath.sincos(theta, sine, cosine)
    np.testing.assert_allclose(sine, np.sin(theta), rtol=5e-16, atol=0)
    np.testing.assert_allclose(cosine, np.cos(theta), rtol=5e-16, atol=0)
    assert sine[0] == 0.0
    assert cosine[0] == 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_sincos_of_nothing(bad):
    sine, cosine = np.empty(3), np.empty(3)
    vectormath.sincos(np.array([1.0, bad, 2.0]), sine, cosine)
    assert np.isnan(sine).tolist() == np.isnan(cosine).tolist() == [False, True, False]


# ---------------------------------------------------------------- embedding

LEVELS = {
    "inner": """
        from numba import njit
        from spo_fast.kernels import modulate

        @njit(cache=True)
        def once(knm, theta, w_q, w_k, w_v, w_o, tau, out):
            return modulate(knm, theta, w_q, w_k, w_v, w_o, -1, tau, 0.5, out)
    """,
    "middle": """
        from numba import njit
        from inner import once

        @njit(cache=True)
        def twice(knm, theta, w_q, w_k, w_v, w_o, tau, out):
            status = 0
            for _ in range(2):
                status += once(knm, theta, w_q, w_k, w_v, w_o, tau, out)
            return status
    """,
    "outer": """
        import warnings
        warnings.simplefilter("error")
        import numpy as np
        from numba import njit
        from middle import twice

        @njit(cache=True)
        def total(knm, theta, w_q, w_k, w_v, w_o, tau, out):
            status = twice(knm, theta, w_q, w_k, w_v, w_o, tau, out)
            return status, out.sum()

        n = 5
        rng = np.random.default_rng(0)
        knm = np.ones((n, n)) - np.eye(n)
        w = [rng.standard_normal((4, 8, 2)) for _ in range(3)]
        w_o = rng.standard_normal((8, 8))
        out = np.empty((n, n))
        result = total(knm, np.arange(5.0), *w, w_o, np.ones(4), out)
        hits = sum(total.stats.cache_hits.values())
        print(hits, *result)
    """,
}


def run_python(arguments, **environment):
    settings = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run(
        [sys.executable, *arguments], env=settings, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.skipif(UNCOMPILED, reason="nothing is cached uncompiled")
def test_embedding_caches_three_levels_deep(tmp_path):
    for name, text in LEVELS.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    outputs = [
        run_python([str(tmp_path / "outer.py")], NUMBA_CACHE_DIR=str(tmp_path / "cache")) for _ in range(2)
    ]
    (first, noise), (second, more_noise) = outputs
    assert noise == more_noise == ""
    assert first.split()[0] == "0"
    assert second.split()[0] == "1"
    assert first.split()[1:] == second.split()[1:]
    assert first.split()[1] == "0"


ASK = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import numpy as np
    from spo_fast import kernels
    r, psi = np.empty(1), np.empty(1)
    assert kernels.order_parameter(np.zeros((1, 3)), r, psi) == 0
    assert r[0] == 1.0
print(len(caught), *(str(w.message) for w in caught))
"""


@pytest.mark.skipif(UNCOMPILED, reason="nothing is cached uncompiled")
def test_no_writable_cache_directory(tmp_path):
    """No place to write to: one warning that names the variable, and everything works."""
    blocker = """
import numba.core.caching as caching
caching.CacheImpl._locator_classes = []
"""
    output, _ = run_python(["-c", blocker + ASK], HOME="/nonexistent")
    count, message = output.split(maxsplit=1)
    assert count == "1"
    assert "NUMBA_CACHE_DIR" in message


def test_public_names():
    assert set(kernels.__all__) == {
        "ASYMMETRIC_COUPLING", "INVALID_ARGUMENT", "NONFINITE_COUPLING", "NONFINITE_PHASE",
        "NONFINITE_STATE", "NONZERO_DIAGONAL", "OK", "OUT_OF_MEMORY", "SPARSE_WORK_ROWS", "WORK_ROWS",
        "apply_factors", "apply_modulation", "apply_modulation_moments", "attend", "attend_vjp",
        "euler_step", "factors", "factors_sparse", "gate", "gate_vjp", "inspect_coupling",
        "lagged_coupling", "leaky_scan", "leaky_scan_vjp", "modulate", "modulate_moments",
        "modulate_sparse", "modulate_sparse_vjp", "modulate_vjp", "moments_room_size", "order_parameter",
        "phase_attend", "phase_attend_vjp", "resonance", "resonance_vjp", "rhs", "rhs_sparse", "rk45_step",
        "rk4_step", "series_of", "token_moments", "turn", "turn_vjp", "unnormalise",
    }  # fmt: skip
    assert all(hasattr(kernels, name) for name in kernels.__all__)


def test_no_kernel_chooses_its_own_flags():
    """The fast-math policy has one home."""
    for path in sorted((ROOT / "spo_fast" / "kernels").glob("*.py")):
        text = path.read_text()
        if path.name != "_flags.py":
            assert "njit" not in text.replace("@njit``", ""), path.name
            assert "fastmath" not in text, path.name


def test_inspection_tells_the_structure(rng):
    knm = symmetric(rng, 13)
    both = attention.EXACTLY_SYMMETRIC | attention.WITHOUT_ZEROS
    assert attention.inspect_coupling(knm) == (Status.OK, both)
    knm[12, 3] = knm[3, 12] = 0.0
    assert attention.inspect_coupling(knm) == (Status.OK, attention.EXACTLY_SYMMETRIC)
    knm[12, 4] *= 1 + 1e-14
    assert attention.inspect_coupling(knm) == (Status.OK, 0)
