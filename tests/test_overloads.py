"""Public functions called in compiled code: equal to those of Python, refused alike, found by Numba alone."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest
from numba import njit, types
from numba.core.errors import TypingError
from samples import phases, relative, same_bits, symmetric

import spo_fast
from spo_fast import overloads

ROOT = Path(__file__).resolve().parent.parent
if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
    pytest.skip("nothing is compiled", allow_module_level=True)


@njit
def short(knm, theta):
    return spo_fast.modulate(knm, theta)


@njit
def full(knm, theta, w_q, w_k, w_v, w_o, n_heads, block_size, temperature, lambda_, workers, out):
    return spo_fast.modulate(
        knm, theta, w_q, w_k, w_v, w_o,
        n_heads=n_heads, block_size=block_size, temperature=temperature, lambda_=lambda_, workers=workers,
        out=out,
    )  # fmt: skip


@njit
def drawn(knm, theta, temperature):
    weights = spo_fast.default_projections(2, seed=3)
    options = spo_fast.modulate(
        knm, theta, n_heads=2, projection_seed=3, temperature=temperature, lambda_=1, backend="numba"
    )
    return options, weights


@njit
def banded(knm, theta, block_size):
    perhaps = None
    if block_size > 0:
        perhaps = block_size
    return spo_fast.modulate(knm, theta, block_size=perhaps)


def given(rng, **changed):
    """Arguments of `full`, some of them changed."""
    arguments = {"knm": symmetric(rng, 21, 0.8), "theta": phases(rng, 21)}
    arguments |= dict(zip(("w_q", "w_k", "w_v", "w_o"), spo_fast.default_projections(2, 5), strict=True))
    arguments |= {"n_heads": 2, "block_size": 30, "temperature": 0.7, "lambda_": 0.4, "workers": 1}
    return arguments | {"out": np.empty((21, 21))} | changed


def test_defaults(rng):
    knm, theta = symmetric(rng, 21, 0.8), phases(rng, 21)
    out = short(knm, theta)
    assert relative(out, spo_fast.modulate(knm, theta)) < 1e-13
    assert same_bits(out, out.T)
    assert short(np.empty((0, 0)), np.empty(0)).shape == (0, 0)


@pytest.mark.parametrize(
    "changed", [{}, {"block_size": 3}, {"lambda_": 0.0}, {"temperature": 1e-3}, {"workers": 2}]
)
def test_arguments(changed, rng):
    arguments = given(rng, **changed)
    before = arguments["knm"].copy()
    out = full(*arguments.values())
    assert np.shares_memory(out, arguments["out"])
    assert relative(out, spo_fast.modulate(**arguments | {"out": None})) < 1e-12
    assert same_bits(before, arguments["knm"])


def test_other_arrays_than_those_the_kernels_take(rng):
    """Float32 in Fortran order, integers in steps; a temperature for each head, an integer as strength."""
    knm, theta = np.asfortranarray(symmetric(rng, 9).astype(np.float32)), np.arange(18)[::2]
    tau = np.array([0.5, 2.0])
    out, weights = drawn(knm, theta, tau)
    keywords = {"n_heads": 2, "projection_seed": 3, "temperature": tau, "lambda_": 1}
    assert relative(out, spo_fast.modulate(knm, theta, **keywords)) < 1e-12
    expected = spo_fast.default_projections(2, seed=3)
    assert all(map(same_bits, weights, expected))


def test_a_band_that_may_be_none(rng):
    knm, theta = symmetric(rng, 9), phases(rng, 9)
    for given, size in ((0, None), (2, 2)):
        expected = spo_fast.modulate(knm, theta, block_size=size)
        assert relative(banded(knm, theta, given), expected) < 1e-13


def lopsided(rng):
    knm = symmetric(rng, 21)
    knm[4, 7] += 1.0
    return knm


REFUSED = {
    "asymmetric": lambda rng: {"knm": lopsided(rng)},
    "not finite": lambda rng: {"knm": np.where(np.eye(21) > 0, np.inf, symmetric(rng, 21))},
    "diagonal": lambda rng: {"knm": symmetric(rng, 21) + np.eye(21)},
    "not square": lambda rng: {"knm": np.zeros((21, 20))},
    "phase": lambda rng: {"theta": np.where(np.arange(21) == 3, np.nan, 1.0)},
    "phases": lambda rng: {"theta": np.zeros(20)},
    "out": lambda rng: {"out": np.empty((20, 20))},
    "heads": lambda rng: {"n_heads": 0},
    "other heads": lambda rng: {"n_heads": 4},
    "band": lambda rng: {"block_size": 0},
    "minus one": lambda rng: {"block_size": -1},
    "temperature": lambda rng: {"temperature": 0.0},
    "tiny temperature": lambda rng: {"temperature": 1e-310},
    "strength": lambda rng: {"lambda_": -1.0},
    "nan strength": lambda rng: {"lambda_": np.nan},
    "workers": lambda rng: {"workers": 0},
    "w_k": lambda rng: {"w_k": np.ones((4, 8, 2))},
    "w_v": lambda rng: {"w_v": np.full((2, 8, 4), np.inf)},
    "w_o": lambda rng: {"w_o": np.ones((6, 6))},
    "large w_o": lambda rng: {"w_o": np.full((8, 8), 1e200)},
    "odd": lambda rng: {name: np.ones((1, 3, 3)) for name in ("w_q", "w_k", "w_v")} | {"n_heads": 1},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_python_refuses_is_refused_for_the_same_argument(name, rng):
    arguments = given(rng, **REFUSED[name](rng))
    with pytest.raises(ValueError, match="must") as compiled:
        full(*arguments.values())
    with pytest.raises(ValueError, match="must") as interpreted:
        spo_fast.modulate(**arguments)
    named, others = (str(error.value).split(" must ")[0].split("[")[0] for error in (compiled, interpreted))
    assert named == others


def test_an_output_in_the_memory_of_the_coupling_is_refused(rng):
    knm = symmetric(rng, 21)
    with pytest.raises(ValueError, match="out must not overlap knm"):
        full(*given(rng, knm=knm, out=knm).values())
    both = np.zeros((42, 21))
    full(*given(rng, knm=both[:21], out=both[21:]).values())


def test_what_came_is_told(rng):
    with pytest.raises(ValueError, match=r"block_size must be at least 1, got -7"):
        full(*given(rng, block_size=-7).values())
    with pytest.raises(ValueError, match=r"knm must be symmetric, .* index \(4, 7\)"):
        full(*given(rng, knm=lopsided(rng)).values())


# ---------------------------------------------------------------- what types tell

MATRIX, VECTOR = types.float64[:, ::1], types.float64[::1]
CUBE = types.float64[:, :, ::1]


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"knm": types.List(types.float64)}, "knm must be an array of real numbers of dimension 2"),
        ({"knm": VECTOR}, "knm must be"),
        ({"theta": types.complex128[::1]}, "theta must be"),
        ({"theta": types.bool_[::1]}, "theta must be"),
        ({"n_heads": types.float64}, "n_heads must be an integer"),
        ({"n_heads": types.boolean}, "n_heads must be an integer"),
        ({"n_heads": True}, "n_heads must be an integer"),
        ({"n_heads": types.int64}, "n_heads must be a constant"),
        ({"projection_seed": types.int64}, "projection_seed must be a constant"),
        ({"n_heads": types.literal(3)}, "n_heads must divide"),
        ({"w_q": CUBE}, "w_k must be given"),
        ({"w_q": MATRIX, "w_k": CUBE, "w_v": CUBE, "w_o": MATRIX}, "w_q must be an array"),
        ({"block_size": types.float64}, "block_size must be an integer or None"),
        ({"temperature": types.unicode_type}, "temperature must be a number"),
        ({"temperature": MATRIX}, "temperature must be an array"),
        ({"lambda_": types.complex128}, "lambda_ must be a number"),
        ({"out": types.float64[:, :]}, "out must be a writable float64 matrix in C order"),
        ({"out": types.Array(types.float64, 2, "C", readonly=True)}, "out must be a writable"),
        ({"algorithm": types.literal("moments")}, "algorithm must be one of 'auto', 'direct', 'band'"),
        ({"algorithm": types.unicode_type}, "algorithm must be one of"),
        ({"algorithm": types.literal("band")}, "needs a block_size"),
        ({"backend": types.literal("cython")}, "backend must be one of"),
        ({"workers": types.float64}, "workers must be an integer"),
    ],
)
def test_what_types_tell_is_refused_when_the_caller_is_compiled(changed, text):
    with pytest.raises(TypingError, match=text):
        overloads._modulate(**{"knm": MATRIX, "theta": VECTOR} | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"block_size": types.Optional(types.int64)},
        {"block_size": types.none, "temperature": types.int64},
        {"n_heads": types.Omitted(2), "algorithm": types.literal("direct")},
        {"block_size": types.int64, "algorithm": types.literal("band"), "backend": types.literal("auto")},
    ],
)
def test_what_types_allow(changed):
    assert callable(overloads._modulate(**{"knm": MATRIX, "theta": VECTOR} | changed))


def test_the_refusal_reaches_the_caller(rng):
    @njit
    def wrong(knm, theta):
        return spo_fast.modulate(knm, theta, backend="cython")

    with pytest.raises(TypingError, match="backend must be one of None, 'auto', 'numba' in compiled code"):
        wrong(symmetric(rng, 3), phases(rng, 3))


def test_signatures_are_those_of_the_python_functions():
    """Names, order and defaults: what is given by keyword alone in Python may also be given by position."""
    for public, typed in (
        (spo_fast.modulate, overloads._modulate),
        (spo_fast.default_projections, overloads._default_projections),
        (spo_fast.order_parameter, overloads._order_parameter),
        (spo_fast.layer_coherence, overloads._layer_coherence),
        (spo_fast.plv, overloads._plv),
    ):
        here, there = (inspect.signature(function).parameters.values() for function in (public, typed))
        assert [(p.name, p.default) for p in here] == [(p.name, p.default) for p in there]


# ---------------------------------------------------------------- observables


@njit
def observed(theta, mask, indices):
    state = theta[0]
    return (
        spo_fast.order_parameter(state),
        spo_fast.order_parameter(theta, backend="numba"),
        spo_fast.layer_coherence(state, mask),
        spo_fast.layer_coherence(theta, indices),
        spo_fast.plv(theta[0], theta[1]),
        spo_fast.plv(theta, theta[::-1]),
    )


def expected_observables(theta, mask, indices):
    return (
        spo_fast.order_parameter(theta[0]),
        spo_fast.order_parameter(theta),
        spo_fast.layer_coherence(theta[0], mask),
        spo_fast.layer_coherence(theta, indices),
        spo_fast.plv(theta[0], theta[1]),
        spo_fast.plv(theta, theta[::-1]),
    )


def test_observables(rng):
    theta, mask, indices = rng.uniform(-9, 9, (4, 7)), np.arange(7) < 3, np.array([6, 2])
    given = theta, mask, indices
    for own, expected in zip(observed(*given), expected_observables(*given), strict=True):
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-14)
    for spoiled, text in (
        ((theta, mask[:5], indices), "layer must have shape"),
        ((theta, mask, np.array([1, 1])), "layer must hold unique indices, got 1"),
        ((theta, mask, np.array([7, 1])), "layer must hold indices from 0 to 6, got 7"),
        ((np.where(theta > 8, np.nan, theta), mask, indices), "theta must be finite"),
    ):
        with pytest.raises(ValueError, match=text):
            observed(*spoiled)
        with pytest.raises(ValueError, match=text):
            expected_observables(*spoiled)
    empty = observed(theta[:2, :0].copy(), mask[:0], indices[:0])
    assert empty[0] == (0.0, 0.0)
    assert empty[2] == 0.0


# ---------------------------------------------------------------- how Numba finds them

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
LEVELS = {
    "inner": """
        from numba import njit
        import spo_fast

        @njit(cache=True)
        def once(knm, theta, out):
            return spo_fast.modulate(knm, theta, n_heads=2, out=out).sum()
    """,
    "middle": """
        from numba import njit, prange
        from inner import once

        @njit(cache=True, parallel=True)
        def ensemble(knm, theta, out, total):
            for m in prange(theta.shape[0]):
                total[m] = once(knm, theta[m], out[m])
    """,
    "outer": """
        import json, sys, warnings
        warnings.simplefilter("error")
        import spo_fast
        assert "numba" not in sys.modules
        import numpy as np
        from numba import njit
        from middle import ensemble

        @njit(cache=True)
        def run(knm, theta):
            out, total = np.empty((3, 5, 5)), np.empty(3)
            for _ in range(2):
                ensemble(knm, theta, out, total)
            return total

        theta = np.arange(15.0).reshape(3, 5)
        total = run(np.ones((5, 5)) - np.eye(5), theta)
        print(json.dumps([sum(run.stats.cache_hits.values()), total.tolist()]))
    """,
}


def test_numba_finds_them_in_fresh_processes_and_caches_what_calls_them(tmp_path):
    """Three calls deep, parallel, the second time from the cache; nothing is said on the way."""
    for name, text in LEVELS.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    installed = tmp_path / "spo_fast-0.dist-info"  # what an installation of this tree says of itself
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: spo-fast\nVersion: 0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in e.items()) for group, e in DECLARED.items()]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    settings = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "NUMBA_NUM_THREADS": "2"}
    results = []
    for _ in range(2):
        command = [sys.executable, str(tmp_path / "outer.py")]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        results.append(json.loads(done.stdout))
    assert [hits for hits, _ in results] == [0, 1]
    assert results[0][1] == results[1][1]
    theta = np.arange(15.0).reshape(3, 5)
    expected = [spo_fast.modulate(np.ones((5, 5)) - np.eye(5), row, n_heads=2).sum() for row in theta]
    np.testing.assert_allclose(results[0][1], expected, rtol=1e-13)


def test_the_installed_package_declares_them():
    """Of an editable installation too: Numba reads the metadata, not the tree."""
    distribution = importlib.metadata.distribution("spo-fast")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}").get("url", "")
    if origin and Path(origin.removeprefix("file://")).resolve() != ROOT:
        pytest.skip(f"the package that is installed lies elsewhere: {origin}")
    found = {(e.group, e.name, e.value) for e in distribution.entry_points}
    assert found >= {(group, *item) for group, e in DECLARED.items() for item in e.items()}


def test_init_can_be_called_again():
    assert overloads.init() is None
