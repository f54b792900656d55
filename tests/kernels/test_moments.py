"""Attention through order parameters in the Numba kernels: the same K' as pair by pair, and when it is used.

Sizes are small where they run uncompiled, too.
"""

from __future__ import annotations

import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from oracles import modulation as oracle
from samples import golden_files, load_golden, parity_budget, phases, same_bits, symmetric
from two_paths import (
    BUDGET,
    HARD_STATES,
    WEIGHTS,
    TwoPaths,
    edges_missing,
    full,
    growth_of_roundings,
    nearly_even,
    own_term_alone,
)

import spo_fast
from spo_fast import kernels
from spo_fast.backends import jit, paths
from spo_fast.backends.status import Status
from spo_fast.kernels import daido, moments
from spo_fast.kernels import modulation as attention

from .test_modulation import run_python

UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
LARGEST = 24 if UNCOMPILED else 10**9

paths_of_numba = TwoPaths("numba")
modulators, worst, redone = paths_of_numba.modulators, paths_of_numba.worst, paths_of_numba.redone

compiled_only = pytest.mark.skipif(UNCOMPILED, reason="large for uncompiled code")


def some(n):
    """A size, or a smaller one for uncompiled code."""
    return min(n, LARGEST)


# ---------------------------------------------------------------- parity


@pytest.mark.parametrize("path", golden_files("modulate"), ids=lambda path: path.stem)
def test_golden(path):
    if load_golden(path)[0]["theta"].size > LARGEST:
        pytest.skip("large for uncompiled code")
    paths_of_numba.check_golden(path)


SIZES = (1, 2, 16, 19) if UNCOMPILED else (*range(1, 41), 127, 128, 129, 144, 300, 700)


@pytest.mark.parametrize("n", SIZES)
def test_sizes(n):
    rng = np.random.default_rng(n)
    knm, theta = symmetric(rng, n, low=-1.0), phases(rng, n)
    assert worst(knm, theta, lambda_=0.8) <= BUDGET
    if 10 < n < 200:
        assert redone(knm, theta) == 0


@compiled_only
@pytest.mark.parametrize(
    "n_heads, d_model", [(1, 2), (2, 2), (1, 4), (4, 4), (2, 6), (4, 8), (8, 8), (1, 8), (2, 16), (5, 10)]
)
def test_widths_of_model_and_heads(rng, n_heads, d_model):
    weights = spo_fast.default_projections(n_heads, 3, d_model)
    knm, theta = symmetric(rng, 45), phases(rng, 45)
    keywords = dict(zip(WEIGHTS, weights, strict=True)) | {"n_heads": n_heads, "temperature": 2.0}
    assert worst(knm, theta, **keywords) <= BUDGET
    through = modulators(knm, **keywords)[0]
    expected = oracle.modulate(knm, theta, *weights, temperature=2.0)
    assert np.max(np.abs(through(theta) - expected)) <= parity_budget(expected, theta, d_model)


@compiled_only
def test_temperature_per_head(rng):
    knm, theta = symmetric(rng, 60), phases(rng, 60)
    assert worst(knm, theta, temperature=[0.4, 1.0, 3.0, 20.0]) <= BUDGET


def test_agrees_with_the_core(rng):
    pytest.importorskip("spo_fast._core", reason="the C core is not built")
    n = some(150)
    for knm in (symmetric(rng, n), edges_missing(rng, n, n // 2)):
        theta = phases(rng, n)
        a, b = (
            spo_fast.Modulator(knm, algorithm="moments", backend=backend) for backend in ("numba", "cython")
        )
        np.testing.assert_allclose(a(theta), b(theta), rtol=0, atol=BUDGET * 1.5)
        np.testing.assert_allclose(a.factors(theta), b.factors(theta), rtol=0, atol=1e-13)


def test_bits_repeat(rng):
    n = some(136)
    knm, theta = symmetric(rng, n), phases(rng, n)
    through = modulators(knm)[0]
    expected = through(theta)
    assert same_bits(through(theta), expected)
    assert same_bits(through(theta, out=np.empty((n, n))), expected)
    other = spo_fast.modulate(knm.copy(), theta.copy(), algorithm="moments", backend="numba")
    assert same_bits(other, expected)
    assert same_bits(pickle.loads(pickle.dumps(through))(theta), expected)


@compiled_only
def test_threads_do_not_meet(rng):
    knm, states = symmetric(rng, 130), [phases(rng, 130) for _ in range(24)]
    through = modulators(knm)[0]
    expected = [through(theta) for theta in states]
    with ThreadPoolExecutor(6) as pool:
        for result, want in zip(pool.map(through, states), expected, strict=True):
            assert same_bits(result, want)


def test_nearly_symmetric_coupling(rng):
    n = some(77)
    knm, theta = symmetric(rng, n), phases(rng, n)
    knm[3, n - 1] = np.nextafter(knm[n - 1, 3], 2.0)
    assert worst(knm, theta) <= BUDGET
    knm[5, 6], knm[6, 5] = 1e-13, 0.0  # 6 sees 5 no more, but 5 sees 6
    assert worst(knm, theta) <= BUDGET


def test_factors_rebuild_the_result(rng):
    n = some(40)
    knm, theta = symmetric(rng, n), phases(rng, n)
    through = modulators(knm)[0]
    units = through.factors(theta)
    assert units.flags.c_contiguous and units.shape == (n, 8)
    np.testing.assert_allclose(through(theta), knm * (1.25 + 0.25 * units @ units.T), rtol=1e-13, atol=0)


# ---------------------------------------------------------------- states and couplings that are hard


@pytest.mark.parametrize("state", HARD_STATES)
@pytest.mark.parametrize("temperature", [1.0] if UNCOMPILED else [0.25, 1.0, 10.0])
@pytest.mark.parametrize("seed", range(1 if UNCOMPILED else 4))
def test_hard_states(state, temperature, seed):
    n = some(80)
    theta = HARD_STATES[state](n)
    error = worst(full(n), theta, temperature=temperature, projection_seed=seed, lambda_=2.0)
    assert error <= BUDGET + np.abs(theta).max() * 8 * 2e-16


@compiled_only
@pytest.mark.parametrize("temperature", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-3])
def test_nearly_evenly_spaced_phases(rng, temperature, noise):
    """||O|| is small there, and whatever the path, roundings of the values grow by ||v|| / ||O||."""
    theta = nearly_even(rng, 96, noise)
    growth = growth_of_roundings(theta, temperature)
    assert worst(full(96), theta, temperature=temperature) <= max(BUDGET, 1e-15 * growth)


def test_rows_that_consist_of_their_own_term_are_redone():
    n = some(64)
    theta, keywords = own_term_alone(n)
    assert worst(full(n), theta, **keywords) <= BUDGET
    assert 0 < redone(full(n), theta, **keywords) <= 16


def test_heads_with_large_weights_are_refused_or_right(rng):
    n = some(70)
    factors = (2.0, 1e3) if UNCOMPILED else (1.0, 2.0, 5.0, 20.0, 1e3, 1e100, 1e200)
    paths_of_numba.check_large_weights(symmetric(rng, n), phases(rng, n), factors)


@compiled_only
@pytest.mark.parametrize("size", [1e-200, 1e-20, 1e20, 1e200])
def test_values_of_any_size(rng, size):
    knm, theta = symmetric(rng, 50), phases(rng, 50)
    w_q, w_k, w_v, w_o = spo_fast.default_projections()
    keywords = dict(zip(WEIGHTS, (w_q, w_k, size * w_v, w_o / size), strict=True))
    assert worst(knm, theta, **keywords) <= BUDGET


@pytest.mark.parametrize("share", [0.01, 0.9] if UNCOMPILED else [0.0, 3e-4, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("n", [some(23)] if UNCOMPILED else [23, 65, 130])
def test_missing_edges_from_none_to_all(rng, n, share):
    knm = edges_missing(rng, n, round(share * n * (n - 1) / 2))
    theta = phases(rng, n)
    assert worst(knm, theta) <= BUDGET
    expected = modulators(knm)[0](theta)
    assert same_bits(spo_fast.modulate(knm, theta, algorithm="moments", backend="numba"), expected)


def test_rows_with_one_neighbour_or_none(rng):
    n = some(70)
    paths_of_numba.check_lonely_rows(symmetric(rng, n), phases(rng, n), ((3, 9), (n - 1, 0)))


@compiled_only
def test_large_crowds_lose_no_digits():
    paths_of_numba.check_large_crowds(seed=0)


# ---------------------------------------------------------------- order parameters and series


def test_order_parameters_lose_no_digits(rng):
    mpmath = pytest.importorskip("mpmath")
    theta, far, margin = phases(rng, 5), 13, 4
    columns = 16 + moments._ASIDE
    basis, sums = np.empty((2 * 8 + 27, columns)), np.empty((3 * 27, 16))
    z = np.empty((2, 2 * (8 * far + 2 * margin)))
    moments._first_harmonics(theta, basis, far)
    moments._order_parameters(basis, far, sums, z, margin)
    for order in (0, 1, 7, 8, 9, 31, 63, 64, 103):
        with mpmath.workdps(40):
            exact = complex(sum(mpmath.expj(order * mpmath.mpf(float(t))) for t in theta))
        at = 2 * (margin + order)
        assert abs(complex(z[0, at], z[0, at + 1]) - exact) <= 5 * 8 * 2.0**-53
        assert z[1, at] == z[0, at + 1] and z[1, at + 1] == -z[0, at]
    for k in range(1, margin + 1):
        assert z[0, 2 * (margin - k)] == z[0, 2 * (margin + k)]
        assert z[0, 2 * (margin - k) + 1] == -z[0, 2 * (margin + k) + 1]


def test_series_are_the_exponentials(rng):
    """Against the logits themselves, through the matrices of coefficients."""
    w_q, w_k = (rng.standard_normal((8, 2)) * 0.4 for _ in range(2))
    head = daido._make_head(w_q, w_k, 1.5)
    theta, other = phases(rng, 7), phases(rng, 9)
    logits = daido._embed(theta, 8) @ w_q @ w_k.T @ daido._embed(other, 8).T / (np.sqrt(2) * 1.5)
    shift = daido._synthesise(theta, head.shift) / daido.LOG2_E
    angles = other[:, None] * np.arange(head.reach)
    keys = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(9, -1)
    total = np.zeros((7, 9))
    for j, block in enumerate(head.blocks):
        turns = theta[:, None] * np.arange(8 * j, 8 * j + 8)
        total += np.hstack([np.cos(turns), np.sin(turns)]) @ block @ keys[:, : block.shape[1]].T
    np.testing.assert_allclose(total, np.exp(logits - shift[:, None]), rtol=0, atol=3e-15)
    own = np.diagonal(daido._embed(theta, 8) @ w_q @ w_k.T @ daido._embed(theta, 8).T / (np.sqrt(2) * 1.5))
    np.testing.assert_allclose(
        daido._synthesise(theta, head.own) / daido.LOG2_E, own - shift, rtol=0, atol=1e-13
    )


def test_tolerances_are_those_of_the_core():
    """Told once, in csrc/daido.c and csrc/isa/moments.h, and written twice."""
    root = Path(__file__).resolve().parents[2] / "csrc"
    text = (root / "daido.c").read_text() + (root / "isa" / "moments.h").read_text()
    named = dict(re.findall(r"^#define (\w+) ([\d.e+-]+)$", text, re.M))
    grids = ("SMALLEST_GRID", "LARGEST_GRID", "CHECKS", "GOLDEN_ANGLE")
    for name in ("TAIL", "NOISE_FACTOR", "NOISE_LIMIT", "CHECK_LIMIT", "FAINT", "FEW", *grids):
        assert getattr(daido, name) == float(named[name]), name
    assert float(named["UNIT_BUDGET"]) == moments._UNIT_BUDGET
    assert "#define ROUNDINGS (4.0 * 0x1p-53)" in text and moments._ROUNDINGS == 4.0 * 2.0**-53
    for reason in (daido.TOO_WIDE, daido.TOO_FAINT, daido.TOO_DEEP):
        assert f'"{reason}"' in text


def test_a_wide_model_is_refused():
    weights = spo_fast.default_projections(4, 0, 40)
    assert daido.make_series(*weights, np.ones(4)).refusal == daido.TOO_DEEP


def test_a_wide_spectrum_is_refused():
    """No row is faint, yet multiples of the sixteenth harmonic reach beyond every grid."""
    w = np.zeros((32, 1))
    w[30] = 1.0
    assert daido._make_head(w, 9.0 * w, 1.0) == daido.TOO_WIDE


# ---------------------------------------------------------------- the public kernel


def room_for(n, series):
    return np.full(kernels.moments_room_size(n, series.arrays), np.nan), np.empty((2, n), dtype=np.int64)


def test_embedded_kernel(rng):
    n = some(50)
    knm, theta, weights, one = symmetric(rng, n), phases(rng, n), spo_fast.default_projections(), np.ones(4)
    series = kernels.series_of(*weights, one)
    room, keys = room_for(n, series)
    out, expected = np.empty((n, n)), np.empty((n, n))
    assert kernels.modulate(knm, theta, *weights, -1, one, 0.5, expected) == Status.OK
    arguments = (series.arrays, room, keys, out)
    assert kernels.modulate_moments(knm, theta, *weights, one, 0.5, *arguments) == Status.OK
    np.testing.assert_allclose(out, expected, rtol=0, atol=BUDGET * 1.5)
    assert kernels.modulate_moments(knm, theta, *weights, one, 0.0, *arguments) == Status.OK
    assert same_bits(out, knm)


def test_embedded_kernel_refuses(rng):
    n = 6
    knm, theta, weights, one = symmetric(rng, n), phases(rng, n), spo_fast.default_projections(), np.ones(4)
    series = kernels.series_of(*weights, one)
    room, keys = room_for(n, series)
    out = np.full((n, n), 7.0)
    lopsided, lost, narrow = knm.copy(), theta.copy(), spo_fast.default_projections(2, 0, 4)
    lopsided[0, 1] += 1.0
    lost[2] = np.inf
    bad = Status.INVALID_ARGUMENT
    for status, arguments in (
        (bad, (knm, theta, *weights, np.zeros(4), 0.5, series.arrays, room, keys, out)),
        (bad, (knm, theta, *weights, one, -0.5, series.arrays, room, keys, out)),
        (bad, (knm, theta, *weights, one, 0.5, series.arrays, room[:-1], keys, out)),
        (bad, (knm, theta, *weights, one, 0.5, series.arrays, room, keys[:, :-1].copy(), out)),
        (bad, (knm, theta, *narrow, np.ones(2), 0.5, series.arrays, room, keys, out)),
        (Status.ASYMMETRIC_COUPLING, (lopsided, theta, *weights, one, 0.5, series.arrays, room, keys, out)),
        (Status.NONFINITE_PHASE, (knm, lost, *weights, one, 0.5, series.arrays, room, keys, out)),
    ):
        assert kernels.modulate_moments(*arguments) == status
        assert np.all(out == 7.0)
    nothing = np.empty((0, 0))
    rooms = (room, np.empty((2, 0), dtype=np.int64), nothing)
    assert (
        kernels.modulate_moments(nothing, np.empty(0), *weights, one, 0.5, series.arrays, *rooms) == Status.OK
    )


# ---------------------------------------------------------------- choice and cache


def test_the_faster_path_is_chosen(rng):
    def chosen(knm, **keywords):
        return spo_fast.Modulator(knm, backend="numba", **keywords).algorithm

    n = 300
    assert chosen(symmetric(rng, 16)) == "direct"
    assert chosen(symmetric(rng, n), algorithm="direct") == "direct"
    assert chosen(symmetric(rng, n), temperature=0.01) == "direct"
    assert chosen(symmetric(rng, n), block_size=5) == "band"
    if not UNCOMPILED:
        assert chosen(symmetric(rng, n)) == "moments"
        assert chosen(edges_missing(rng, n, 30)) == "moments"
        assert chosen(symmetric(rng, n, 0.5)) == "direct"


@pytest.mark.parametrize("n", [20] if UNCOMPILED else [20, 200])
def test_a_call_takes_the_path_that_a_modulator_takes(rng, n):
    knm, theta = symmetric(rng, n), phases(rng, n)
    modulator = spo_fast.Modulator(knm, backend="numba")
    assert same_bits(modulator(theta), spo_fast.modulate(knm, theta, backend="numba"))
    forced = spo_fast.modulate(knm, theta, algorithm=modulator.algorithm, backend="numba")
    assert same_bits(modulator(theta), forced)
    assert modulator._bound.rows_redone(theta) == 0


@pytest.mark.parametrize(
    "keywords, reason",
    [
        ({"temperature": 0.02}, "logits' range is too large"),
        ({"block_size": 3}, "needs a block_size that reaches all 12 oscillators, got 3"),
        ({"backend": "numpy"}, "needs backend 'cython' or 'numba'"),
    ],
)
def test_a_path_that_cannot_be_taken_is_refused_with_the_reason(rng, keywords, reason):
    knm, theta = symmetric(rng, 12), phases(rng, 12)
    keywords = {"backend": "numba", "algorithm": "moments"} | keywords
    with pytest.raises(ValueError, match=reason):
        spo_fast.modulate(knm, theta, **keywords)
    with pytest.raises(ValueError, match=reason):
        spo_fast.Modulator(knm, **keywords)


def test_a_call_through_moments_refuses_bad_input(rng):
    knm, theta = symmetric(rng, 12), phases(rng, 12)
    keywords = {"backend": "numba", "algorithm": "moments"}
    theta[3] = np.nan
    with pytest.raises(ValueError, match="theta"):
        spo_fast.modulate(knm, theta, **keywords)
    knm[1, 0] += 1.0
    with pytest.raises(ValueError, match="knm must be symmetric"):
        spo_fast.modulate(knm, phases(rng, 12), **keywords)
    assert spo_fast.modulate(np.empty((0, 0)), [], **keywords).shape == (0, 0)


def test_series_are_made_once(rng):
    weights = [w * 1.03125 for w in spo_fast.default_projections(seed=77)]
    knm, theta = symmetric(rng, 20), phases(rng, 20)
    before = daido.series_made()
    spo_fast.modulate(knm, theta, *weights, backend="numba")
    spo_fast.Modulator(knm, *weights, backend="numba")
    assert daido.series_made() == before  # no use for so few oscillators
    for lambda_ in (0.1, 0.2):
        spo_fast.modulate(knm, theta, *weights, lambda_=lambda_, algorithm="moments", backend="numba")
        spo_fast.Modulator(knm, *weights, lambda_=lambda_, algorithm="moments", backend="numba")
    assert daido.series_made() == before + 1
    weights[0] = weights[0] * 1.5
    spo_fast.Modulator(knm, *weights, algorithm="moments", backend="numba")
    assert daido.series_made() == before + 2


def test_few_oscillators_compile_no_moments(rng):
    """What a user of sixteen oscillators never calls must not cost him its compilation."""
    if UNCOMPILED:
        pytest.skip("nothing is compiled")
    program = """
import numpy as np, spo_fast
from spo_fast.kernels import moments
knm, theta = np.ones((16, 16)) - np.eye(16), np.arange(16.0)
spo_fast.modulate(knm, theta, backend="numba")
spo_fast.Modulator(knm, backend="numba")(theta)
spo_fast.simulate(theta, 1.0, knm, dt=0.01, n_steps=2, modulation={}, backend="numba")
print(len(moments.apply_modulation_moments.signatures), len(moments._products.signatures))
"""
    assert run_python(["-c", program])[0].split() == ["0", "0"]


def test_costs_know_what_they_compare():
    parameters = spo_fast.Modulator(full(4)).parameters
    series = daido.Series("", 80, 600, 61000)
    assert not paths.moments_pay(16, parameters, series, 0)
    assert paths.moments_pay(1000, parameters, series, 0)
    assert not paths.moments_pay(1000, parameters, series, 1000 * 1000 // paths.GROUP)


@pytest.mark.parametrize("n", [21, 33])
def test_hidden_keys_are_counted(rng, n):
    n = some(n)
    knm = edges_missing(rng, n, 7)
    structure = attention.inspect_coupling(knm)[1]
    count = moments.count_hidden(knm, structure, np.empty(n, np.int64), np.empty((n, 16)))
    hidden = (knm == 0.0) & ~np.eye(n, dtype=bool)
    assert count == sum(int(hidden[base : base + 16].any(axis=0).sum()) for base in range(0, n, 16))


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("density", [1.0] if UNCOMPILED else [1.0, 0.99])
@pytest.mark.parametrize("method", ["euler"] if UNCOMPILED else ["euler", "rk4", "rk45"])
def test_runs_take_the_same_path(rng, method, density):
    n = some(200)
    knm, theta, omega = symmetric(rng, n, density) / 10, phases(rng, n), rng.normal(1.0, 0.2, n)
    keywords = {"dt": 0.01, "n_steps": 2 if UNCOMPILED else 5, "method": method, "backend": "numba"}
    through, pairwise = (
        spo_fast.simulate(theta, omega, knm, modulation={"algorithm": name}, **keywords)
        for name in ("moments", "direct")
    )
    np.testing.assert_allclose(through.final, pairwise.final, rtol=0, atol=1e-12)
    assert UNCOMPILED or not same_bits(through.final, pairwise.final)
    automatic = spo_fast.simulate(theta, omega, knm, modulation={}, **keywords)
    chosen = spo_fast.Modulator(knm, backend="numba").algorithm
    assert same_bits(automatic.final, (through if chosen == "moments" else pairwise).final)
    with_lag = [
        spo_fast.simulate(theta, omega, knm, modulation={"algorithm": name}, alpha=0.1 * knm, **keywords)
        for name in ("moments", "direct")
    ]
    np.testing.assert_allclose(with_lag[0].final, with_lag[1].final, rtol=0, atol=1e-12)


def test_a_run_refuses_a_path_that_it_cannot_take(rng):
    knm, theta = symmetric(rng, 12), phases(rng, 12)
    for modulation in ({"temperature": 0.02}, {"block_size": 3}):
        with pytest.raises(ValueError, match="moments"):
            spo_fast.simulate(
                theta, 1.0, knm, dt=0.01, n_steps=1, backend="numba",
                modulation=modulation | {"algorithm": "moments"},
            )  # fmt: skip


def test_rooms_are_kept_and_fit(rng):
    series = kernels.series_of(*spo_fast.default_projections(), np.ones(4))
    rooms = jit._Rooms()
    first = rooms.take(9, series)
    for _ in range(12):
        rooms.give(*first)
    assert len(rooms._idle) == 8
    assert rooms.take(9, series)[0] is first[0]
    assert rooms.take(10, series)[1].shape == (2, 10)
