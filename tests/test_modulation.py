"""modulate, Modulator and default_projections: what the stored values leave out."""

from __future__ import annotations

import concurrent.futures
import copy
import pickle

import numpy as np
import pytest
from oracles import modulation as oracle
from samples import parity_budget, phases, same_bits, symmetric

import spo_fast


def weights_for(rng, n_heads, d_model):
    d_h = d_model // n_heads
    scale = np.sqrt(2.0 / (d_model + d_h))
    heads = [rng.standard_normal((n_heads, d_model, d_h)) * scale for _ in range(3)]
    return [*heads, rng.standard_normal((d_model, d_model)) * scale]


def assert_agrees(result, expected, theta, d_model=8):
    assert result.shape == expected.shape
    assert np.max(np.abs(result - expected), initial=0.0) <= parity_budget(expected, theta, d_model)


# ---------------------------------------------------------------- against the oracle


@pytest.mark.parametrize("block_size", [None, 3])
def test_temperature_per_head(backend, rng, block_size):
    knm, theta, weights = (symmetric(rng, 14, 0.7), phases(rng, 14), weights_for(rng, 4, 8))
    temperature = np.array([0.3, 1.0, 2.5, 7.0])
    keywords = {"temperature": temperature, "block_size": block_size}
    result = spo_fast.modulate(knm, theta, *weights, n_heads=4, backend=backend, **keywords)
    assert_agrees(result, oracle.modulate(knm, theta, *weights, **keywords), theta)
    uniform = spo_fast.modulate(knm, theta, *weights, n_heads=4, temperature=np.full(4, 0.7), backend=backend)
    number = spo_fast.modulate(knm, theta, *weights, n_heads=4, temperature=0.7, backend=backend)
    assert_agrees(uniform, number, theta)


@pytest.mark.parametrize(
    "n_heads, d_model", [(1, 2), (2, 2), (1, 4), (4, 4), (2, 6), (4, 8), (8, 8), (1, 16), (2, 16), (5, 10)]
)
def test_widths_of_model_and_heads(backend, rng, n_heads, d_model):
    knm, theta, weights = (symmetric(rng, 11, 0.8), phases(rng, 11), weights_for(rng, n_heads, d_model))
    result = spo_fast.modulate(knm, theta, *weights, n_heads=n_heads, backend=backend)
    assert_agrees(result, oracle.modulate(knm, theta, *weights), theta, d_model)


@pytest.mark.parametrize("n", [*range(1, 10), 15, 16, 17, 31, 32, 33])
def test_sizes_around_the_edges_of_blocks(backend, rng, n):
    knm, theta, weights = (symmetric(rng, n, 0.6, low=-1.0), phases(rng, n), weights_for(rng, 2, 4))
    result = spo_fast.modulate(knm, theta, *weights, n_heads=2, backend=backend)
    assert_agrees(result, oracle.modulate(knm, theta, *weights), theta, 4)


@pytest.mark.parametrize("n", [256, 300])
@pytest.mark.parametrize("density, block_size", [(1.0, None), (0.05, None), (0.9, 20)])
def test_large_networks_on_sampled_entries(backend, rng, n, density, block_size):
    knm, theta = symmetric(rng, n, density), phases(rng, n)
    weights = spo_fast.default_projections(seed=5)
    rows = [0, 1, 7, 8, n // 2, n - 9, n - 2, n - 1]
    result = spo_fast.modulate(knm, theta, *weights, block_size=block_size, backend=backend)
    expected = oracle.modulate(knm, theta, *weights, block_size=block_size, rows=rows)
    sampled = result[np.ix_(rows, rows)]
    assert np.max(np.abs(sampled - expected)) <= parity_budget(result, theta, 8)


def test_entry_that_is_zero_on_one_side_only(backend, rng):
    """K_01 = 1e-13 and K_10 = 0 agree within 1e-12: the mask holds for one direction."""
    knm, theta, weights = symmetric(rng, 6), phases(rng, 6), weights_for(rng, 4, 8)
    knm[0, 1], knm[1, 0] = 1e-13, 0.0
    knm[4, 2] = np.nextafter(knm[2, 4], 2.0)
    result = spo_fast.modulate(knm, theta, *weights, backend=backend)
    expected = oracle.modulate(knm, theta, *weights)
    assert_agrees(result, expected, theta)
    assert result[0, 1] == result[1, 0] == pytest.approx(expected[0, 1], rel=1e-9)
    assert np.array_equal(result, result.T)


def test_only_neighbour_on_one_side(backend, rng):
    """The masked direction leaves row 1 without any neighbour."""
    knm, theta, weights = np.zeros((2, 2)), phases(rng, 2), weights_for(rng, 4, 8)
    knm[0, 1] = 1e-13
    result = spo_fast.modulate(knm, theta, *weights, backend=backend)
    np.testing.assert_allclose(result, oracle.modulate(knm, theta, *weights), rtol=1e-9, atol=0)


def test_isolated_rows_stay_zero_without_a_warning(backend, rng):
    knm, theta = symmetric(rng, 9), phases(rng, 9)
    knm[2, :] = knm[:, 2] = 0.0
    result = spo_fast.modulate(knm, theta, backend=backend)
    assert not result[2].any() and not result[:, 2].any()
    rest = np.delete(np.arange(9), 2)
    alone = spo_fast.modulate(knm[np.ix_(rest, rest)], theta[rest], backend=backend)
    np.testing.assert_allclose(result[np.ix_(rest, rest)], alone, rtol=0, atol=1e-13)


def test_pairs_beyond_the_band_keep_their_bits(backend, rng):
    knm, theta = symmetric(rng, 12), phases(rng, 12)
    result = spo_fast.modulate(knm, theta, block_size=2, backend=backend)
    far = np.abs(np.subtract.outer(range(12), range(12))) > 2
    assert np.array_equal(result[far], knm[far])
    near = ~far & ~np.eye(12, dtype=bool)
    assert np.all(result[near] != knm[near])


def test_band_wider_than_the_network_is_no_band(backend, rng):
    knm, theta = symmetric(rng, 7), phases(rng, 7)
    banded = spo_fast.modulate(knm, theta, block_size=100, backend=backend)
    np.testing.assert_allclose(banded, spo_fast.modulate(knm, theta, backend=backend), rtol=1e-13, atol=0)


def test_strong_logits_stay_finite(backend, rng):
    knm, theta, weights = symmetric(rng, 10), phases(rng, 10), weights_for(rng, 4, 8)
    weights[0] = weights[0] * 300.0
    result = spo_fast.modulate(knm, theta, *weights, temperature=0.01, backend=backend)
    assert np.isfinite(result).all()
    assert np.all(result >= knm * (1 - 1e-13)) and np.all(result <= 1.5 * knm * (1 + 1e-13))


def test_no_oscillators(backend):
    assert spo_fast.modulate(np.zeros((0, 0)), np.zeros(0), backend=backend).shape == (0, 0)


def test_one_oscillator(backend):
    assert same_bits(spo_fast.modulate(np.zeros((1, 1)), np.ones(1), backend=backend), np.zeros((1, 1)))


def test_diagonal_within_tolerance_becomes_zero(backend, rng):
    knm, theta = symmetric(rng, 5), phases(rng, 5)
    knm[3, 3] = 1e-13
    assert not spo_fast.modulate(knm, theta, backend=backend).diagonal().any()


def test_zero_strength_copies_the_bits(backend, rng):
    knm, theta = symmetric(rng, 5), phases(rng, 5)
    knm[3, 3], knm[0, 1], knm[1, 0], knm[2, 4] = (1e-13, -0.0, 0.0, np.nextafter(knm[4, 2], 2.0))
    result = spo_fast.modulate(knm, theta, lambda_=0.0, backend=backend)
    assert same_bits(result, knm) and result is not knm and not np.shares_memory(result, knm)


def test_non_negative_coupling_grows_by_at_most_lambda(backend, rng):
    knm, theta = symmetric(rng, 20, 0.5), phases(rng, 20)
    result = spo_fast.modulate(knm, theta, lambda_=2.0, backend=backend)
    assert np.all(result >= knm * (1 - 1e-13)) and np.all(result <= 3.0 * knm * (1 + 1e-13))
    assert result[knm > 0].std() > 0


# ---------------------------------------------------------------- kinds of input


def variants(knm, tmp_path):
    strided = np.zeros((2 * len(knm), 3 * len(knm)))
    strided[::2, ::3] = knm
    frozen = knm.copy()
    frozen.flags.writeable = False
    mapped = np.memmap(tmp_path / "knm", dtype=np.float64, mode="w+", shape=knm.shape)
    mapped[:] = knm
    mapped.flush()
    raw = np.zeros(knm.nbytes + 1, dtype=np.uint8)
    unaligned = raw[1:].view(np.float64).reshape(knm.shape)
    unaligned[:] = knm
    return {
        "fortran": np.asfortranarray(knm),
        "strided": strided[::2, ::3],
        "reversed": np.ascontiguousarray(knm[::-1, ::-1])[::-1, ::-1],
        "readonly": frozen,
        "mapped": np.memmap(tmp_path / "knm", dtype=np.float64, mode="r", shape=knm.shape),
        "unaligned": unaligned,
        "swapped": knm.astype(">f8"),
        "list": knm.tolist(),
    }


@pytest.mark.parametrize(
    "kind", ["fortran", "strided", "reversed", "readonly", "mapped", "unaligned", "swapped", "list"]
)
def test_memory_layout_does_not_matter(backend, rng, tmp_path, kind):
    knm, theta = symmetric(rng, 9, 0.7), phases(rng, 9)
    expected = spo_fast.modulate(knm, theta, backend=backend)
    given = variants(knm, tmp_path)[kind]
    assert same_bits(spo_fast.modulate(given, theta, backend=backend), expected)
    assert same_bits(
        spo_fast.Modulator(given, backend=backend)(theta), spo_fast.Modulator(knm, backend=backend)(theta)
    )
    assert np.array_equal(np.asarray(given, dtype=np.float64), knm)


@pytest.mark.parametrize(
    "view", [lambda x: np.repeat(x, 2)[::2], lambda x: x[::-1].copy()[::-1], list, tuple]
)
def test_phases_of_any_layout(backend, rng, view):
    knm, theta = symmetric(rng, 9), phases(rng, 9)
    expected = spo_fast.modulate(knm, theta, backend=backend)
    assert same_bits(spo_fast.modulate(knm, view(theta), backend=backend), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.int8, np.uint16])
def test_other_number_types_are_widened(backend, rng, dtype):
    knm, theta = ((symmetric(rng, 9, high=20.0)).astype(dtype), (phases(rng, 9)).astype(dtype))
    expected = spo_fast.modulate(knm.astype(np.float64), theta.astype(np.float64), backend=backend)
    assert same_bits(spo_fast.modulate(knm, theta, backend=backend), expected)


def test_weights_of_any_layout(backend, rng):
    knm, theta, weights = symmetric(rng, 9), phases(rng, 9), weights_for(rng, 4, 8)
    expected = spo_fast.modulate(knm, theta, *weights, backend=backend)
    fortran = [np.asfortranarray(w) for w in weights]
    assert same_bits(spo_fast.modulate(knm, theta, *fortran, backend=backend), expected)
    names = dict(zip(("w_q", "w_k", "w_v", "w_o"), [w.tolist() for w in weights], strict=True))
    assert same_bits(spo_fast.modulate(knm, theta, **names, backend=backend), expected)


def test_missing_weights_come_from_the_seed(backend, rng):
    knm, theta = symmetric(rng, 9), phases(rng, 9)
    w_q, w_k, w_v, w_o = oracle.default_projections(2, 11, 8)
    own = w_k * 2.0
    result = spo_fast.modulate(knm, theta, w_k=own, n_heads=2, projection_seed=11, backend=backend)
    assert same_bits(result, spo_fast.modulate(knm, theta, w_q, own, w_v, w_o, n_heads=2, backend=backend))
    assert_agrees(result, oracle.modulate(knm, theta, w_q, own, w_v, w_o), theta)


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5), np.array(0.5)], ids=repr)
@pytest.mark.parametrize("name", ["lambda_", "temperature"])
def test_numbers_may_be_numpy_scalars(backend, rng, name, number):
    knm, theta = symmetric(rng, 9), phases(rng, 9)
    plain = {"lambda_": 0.7, "temperature": 0.9, "n_heads": 2, "block_size": 4, name: 0.5}
    given = plain | {"n_heads": np.int32(2), "block_size": np.uint8(4), name: number}
    expected = spo_fast.modulate(knm, theta, **plain, backend=backend)
    assert same_bits(spo_fast.modulate(knm, theta, **given, backend=backend), expected)


def test_integer_and_float_of_the_same_value(backend, rng):
    knm, theta = symmetric(rng, 9), phases(rng, 9)
    one = spo_fast.modulate(knm, theta, lambda_=1, temperature=3, backend=backend)
    assert same_bits(one, spo_fast.modulate(knm, theta, lambda_=1.0, temperature=3.0, backend=backend))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_input_is_refused_by_name(backend, rng, bad):
    knm, theta, weights = symmetric(rng, 6), phases(rng, 6), weights_for(rng, 4, 8)
    broken = knm.copy()
    broken[1, 4] = broken[4, 1] = bad
    with pytest.raises(ValueError, match="knm"):
        spo_fast.modulate(broken, theta, backend=backend)
    with pytest.raises(ValueError, match="knm"):
        spo_fast.Modulator(broken, backend=backend)
    turned = theta.copy()
    turned[5] = bad
    with pytest.raises(ValueError, match="theta"):
        spo_fast.modulate(knm, turned, backend=backend)
    with pytest.raises(ValueError, match="theta"):
        spo_fast.Modulator(knm, backend=backend)(turned)
    weights[2][0, 0, 0] = bad
    with pytest.raises(ValueError, match="w_v"):
        spo_fast.modulate(knm, theta, *weights, backend=backend)


def test_non_finite_phase_of_an_isolated_oscillator_is_refused(backend):
    with pytest.raises(ValueError, match="theta"):
        spo_fast.modulate(np.zeros((3, 3)), [0.0, np.nan, 1.0], backend=backend)


@pytest.mark.parametrize("place, value", [((2, 3), 1e-6), ((0, 5), 1e-9), ((5, 0), np.inf)])
def test_asymmetry_is_refused(backend, rng, place, value):
    knm = symmetric(rng, 6)
    knm[place] += value
    with pytest.raises(ValueError, match="knm"):
        spo_fast.modulate(knm, phases(rng, 6), backend=backend)


# ---------------------------------------------------------------- out and K


def test_out_is_filled_and_returned(backend, rng):
    knm, theta = symmetric(rng, 9, 0.6), phases(rng, 9)
    expected = spo_fast.modulate(knm, theta, backend=backend)
    out = np.full((9, 9), np.nan)
    assert spo_fast.modulate(knm, theta, out=out, backend=backend) is out
    assert same_bits(out, expected)
    out = np.full((9, 9), np.nan)
    modulator = spo_fast.Modulator(knm, backend=backend)
    assert modulator(theta, out=out) is out
    assert same_bits(out, modulator(theta))


def test_out_of_zero_strength(backend, rng):
    knm, out = symmetric(rng, 4), np.full((4, 4), np.nan)
    assert spo_fast.modulate(knm, phases(rng, 4), lambda_=0.0, out=out, backend=backend) is out
    assert same_bits(out, knm)


def read_only(n):
    array = np.zeros((n, n))
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((6, 6), dtype=np.float32),
        np.zeros((6, 5)),
        np.zeros(36),
        np.zeros((1, 6, 6)),
        np.zeros((6, 6), order="F"),
        np.zeros((6, 12))[:, ::2],
        read_only(6),
        [[0.0] * 6] * 6,
        np.zeros((6, 6), dtype=">f8"),
    ],
    ids=["float32", "shape", "flat", "deep", "fortran", "strided", "readonly", "list", "swapped"],
)
def test_unfit_out_is_refused(backend, rng, out):
    knm, theta = symmetric(rng, 6), phases(rng, 6)
    with pytest.raises(ValueError, match="out"):
        spo_fast.modulate(knm, theta, out=out, backend=backend)
    with pytest.raises(ValueError, match="out"):
        spo_fast.Modulator(knm, backend=backend)(theta, out=out)


def test_out_may_not_overlap_the_coupling(backend, rng):
    memory = np.zeros((9, 6))
    memory[:6] = symmetric(rng, 6)
    for out in (memory[:6], memory[3:]):
        with pytest.raises(ValueError, match="out"):
            spo_fast.modulate(memory[:6], phases(rng, 6), out=out, backend=backend)


def test_inputs_are_not_written_to(backend, rng):
    knm, theta, weights = symmetric(rng, 9), phases(rng, 9), weights_for(rng, 4, 8)
    before = [x.copy() for x in (knm, theta, *weights)]
    spo_fast.modulate(knm, theta, *weights, backend=backend)
    spo_fast.Modulator(knm, *weights, backend=backend)(theta)
    for now, then in zip((knm, theta, *weights), before, strict=True):
        assert same_bits(now, then)


def test_coupling_edited_in_place_is_read_afresh(backend, rng):
    knm, theta = symmetric(rng, 8), phases(rng, 8)
    for _ in range(3):
        result = spo_fast.modulate(knm, theta, backend=backend)
        assert same_bits(result, spo_fast.modulate(knm.copy(), theta, backend=backend))
        knm *= 0.5
        knm[0, 3] = knm[3, 0] = 0.0


def test_projections_edited_in_place_are_noticed(backend, rng):
    knm, theta, weights = symmetric(rng, 8), phases(rng, 8), weights_for(rng, 4, 8)
    first = spo_fast.modulate(knm, theta, *weights, backend=backend)
    for weight in weights:
        weight *= -1.3
        result = spo_fast.modulate(knm, theta, *weights, backend=backend)
        assert_agrees(result, oracle.modulate(knm, theta, *weights), theta)
        assert not np.array_equal(result, first)
        first = result


def test_temperature_vector_edited_in_place_is_noticed(backend, rng):
    knm, theta, temperature = symmetric(rng, 8), phases(rng, 8), np.ones(4)
    first = spo_fast.modulate(knm, theta, temperature=temperature, backend=backend)
    temperature[2] = 0.2
    assert not np.array_equal(spo_fast.modulate(knm, theta, temperature=temperature, backend=backend), first)


def test_many_plans_do_not_mix(backend, rng):
    """More settings than any cache holds, twice in opposite orders."""
    knm, theta = symmetric(rng, 5), phases(rng, 5)
    settings = [{"projection_seed": s, "lambda_": 0.1 + s} for s in range(150)]
    first = [spo_fast.modulate(knm, theta, **keywords, backend=backend) for keywords in settings]
    for keywords, expected in reversed(list(zip(settings, first, strict=True))):
        assert same_bits(spo_fast.modulate(knm, theta, **keywords, backend=backend), expected)
    assert len({result.tobytes() for result in first}) == len(first)


# ---------------------------------------------------------------- Modulator


def test_modulator_keeps_its_own_coupling(backend, rng):
    knm, theta = symmetric(rng, 8), phases(rng, 8)
    modulator = spo_fast.Modulator(knm, backend=backend)
    before = modulator(theta)
    knm[:] = 0.0
    assert same_bits(modulator(theta), before)


def test_update_takes_a_new_coupling(backend, rng):
    first, second, theta = symmetric(rng, 8), symmetric(rng, 8, 0.5), phases(rng, 8)
    modulator = spo_fast.Modulator(first, lambda_=0.8, backend=backend)
    modulator.update(second)
    assert same_bits(modulator(theta), spo_fast.Modulator(second, lambda_=0.8, backend=backend)(theta))
    second[:] = 0.0
    assert modulator(theta).any()


def test_refused_update_leaves_the_modulator_as_it_was(backend, rng):
    theta, modulator = (phases(rng, 8), spo_fast.Modulator(symmetric(rng, 8), backend=backend))
    before = modulator(theta)
    lopsided = symmetric(rng, 8)
    lopsided[0, 1] += 1.0
    with pytest.raises(ValueError, match="knm"):
        modulator.update(lopsided)
    assert same_bits(modulator(theta), before)


@pytest.mark.parametrize("block_size", [None, 2])
def test_factors_are_unit_vectors_or_zero(backend, rng, block_size):
    knm, theta, weights = symmetric(rng, 9, 0.7), phases(rng, 9), weights_for(rng, 2, 8)
    knm[4, :] = knm[:, 4] = 0.0
    modulator = spo_fast.Modulator(knm, *weights, n_heads=2, block_size=block_size, backend=backend)
    factors = modulator.factors(theta)
    assert factors.shape == (9, 8)
    lengths = np.linalg.norm(factors, axis=1)
    np.testing.assert_allclose(np.delete(lengths, 4), 1.0, rtol=0, atol=1e-10)
    assert not factors[4].any()
    expected = oracle.factors(knm, theta, *weights, block_size=block_size)
    np.testing.assert_allclose(factors, expected, rtol=0, atol=1e-12)


def test_coupling_is_rebuilt_from_the_factors(backend, rng):
    knm, theta = symmetric(rng, 9, 0.7), phases(rng, 9)
    modulator = spo_fast.Modulator(knm, lambda_=0.6, backend=backend)
    factors = modulator.factors(theta)
    rebuilt = knm * (1.0 + 0.3 + 0.3 * factors @ factors.T)
    np.testing.assert_allclose(modulator(theta), rebuilt, rtol=0, atol=1e-14)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_a_modulator_give_the_same_bits(backend, rng, copied):
    knm, theta = symmetric(rng, 8), phases(rng, 8)
    modulator = spo_fast.Modulator(knm, temperature=[1.0, 2.0, 0.5, 1.5], block_size=3, backend=backend)
    assert same_bits(copied(modulator)(theta), modulator(theta))


def test_modulator_names_its_algorithm(backend, rng):
    assert spo_fast.Modulator(symmetric(rng, 8), backend=backend).algorithm in {
        "direct",
        "moments",
        "band",
        "sparse",
    }


# ---------------------------------------------------------------- repetition, threads, workers


@pytest.mark.parametrize("n", [16, 130])
def test_bits_repeat_and_do_not_depend_on_workers(backend, rng, n):
    knm, theta = symmetric(rng, n, 0.8), phases(rng, n)
    expected = spo_fast.modulate(knm, theta, backend=backend)
    for workers in (1, 2, 3):
        assert same_bits(spo_fast.modulate(knm, theta, workers=workers, backend=backend), expected)


def test_threads_may_share_a_modulator(threaded_backend, rng):
    knm = symmetric(rng, 60, 0.8)
    modulator = spo_fast.Modulator(knm, backend=threaded_backend)
    states = [phases(rng, 60) for _ in range(64)]
    expected = [modulator(theta) for theta in states]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result, serial in zip(pool.map(modulator, states, timeout=120), expected, strict=True):
            assert same_bits(result, serial)


def test_threads_may_call_modulate_at_once(threaded_backend, rng):
    knm = symmetric(rng, 30, 0.8)
    states = [phases(rng, 30) for _ in range(64)]

    def call(number):
        return spo_fast.modulate(knm, states[number], projection_seed=number % 5, backend=threaded_backend)

    expected = [call(number) for number in range(64)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result, serial in zip(pool.map(call, range(64), timeout=120), expected, strict=True):
            assert same_bits(result, serial)


# ---------------------------------------------------------------- projections


def test_default_projections_are_fresh_arrays():
    first, second = spo_fast.default_projections(), spo_fast.default_projections()
    for a, b in zip(first, second, strict=True):
        assert same_bits(a, b) and not np.shares_memory(a, b)


def test_writing_to_default_projections_changes_no_later_call(backend, rng):
    knm, theta = symmetric(rng, 6), phases(rng, 6)
    before = spo_fast.modulate(knm, theta, backend=backend)
    for weight in spo_fast.default_projections():
        if weight.flags.writeable:
            weight[:] = 0.0
    assert same_bits(spo_fast.modulate(knm, theta, backend=backend), before)


@pytest.mark.parametrize("n_heads, d_model, seed", [(1, 2, 0), (4, 8, 0), (2, 6, 9), (16, 16, 123)])
def test_default_projections_are_drawn_in_order(n_heads, d_model, seed):
    drawn = spo_fast.default_projections(n_heads=n_heads, seed=seed, d_model=d_model)
    for weight, expected in zip(drawn, oracle.default_projections(n_heads, seed, d_model), strict=True):
        assert np.array_equal(weight, expected)


# ---------------------------------------------------------------- inputs at the edges of the number range


@pytest.mark.parametrize("temperature", [1e-300, 1e-57, 1e-19, 1e-3, 1e300])
def test_temperatures_of_any_size(backend, rng, temperature):
    """At the cold end the softmax picks the best neighbour; logits round to more than the range of 2^t."""
    knm, theta = symmetric(rng, 33), phases(rng, 33)
    result = spo_fast.modulate(knm, theta, temperature=temperature, backend=backend)
    reference = spo_fast.modulate(knm, theta, temperature=temperature, backend="numpy")
    assert np.abs(result - reference).max() <= 1e-13 * reference.max()


def test_queries_too_long_to_square(backend):
    w_q = np.zeros((1, 2, 2))
    w_q[0, 1] = 1e200
    knm = np.ones((9, 9)) - np.eye(9)
    weights = (w_q, np.zeros((1, 2, 2)), np.ones((1, 2, 2)), np.eye(2))
    result = spo_fast.modulate(knm, np.arange(9.0), *weights, n_heads=1, backend=backend)
    assert np.isfinite(result).all()


@pytest.mark.parametrize("small", [1e-200, 1e200])
def test_values_of_any_size(backend, small):
    knm, theta = np.ones((2, 2)) - np.eye(2), [0.0, np.pi]
    w_q = np.zeros((1, 2, 2))
    w_q[0, 0, 0] = 21.0
    w_k = w_q if small < 1 else -w_q
    weights = (w_q, w_k, np.eye(2)[None] * small, np.eye(2) / small)
    factors = spo_fast.Modulator(knm, *weights, n_heads=1, backend=backend).factors(theta)
    np.testing.assert_allclose(factors, [[-1.0, 0.0], [1.0, 0.0]], atol=1e-12)


@pytest.mark.parametrize("block_size", [5, 63, 64, 2**31, 2**62, 2**63 - 1, 10**30])
def test_block_sizes_beyond_every_distance(backend, rng, block_size):
    knm, theta = symmetric(rng, 64), phases(rng, 64)
    result = spo_fast.modulate(knm, theta, block_size=block_size, backend=backend)
    if block_size >= 63:
        assert np.array_equal(result, spo_fast.modulate(knm, theta, backend=backend))
    else:
        assert np.array_equal(result[0, 10:], knm[0, 10:])


def test_out_may_lie_on_theta_but_not_on_what_knm_lies_in(backend, rng):
    knm = symmetric(rng, 9)
    knm[0, 1], knm[1, 0] = 1e-13, 0.0
    memory = np.zeros((9, 9))
    memory[3] = phases(rng, 9)
    expected = spo_fast.modulate(knm, memory[3].copy(), backend=backend)
    assert np.array_equal(spo_fast.modulate(knm, memory[3], out=memory, backend=backend), expected)
    with pytest.raises(ValueError, match="out must not overlap knm"):
        spo_fast.modulate(memoryview(knm), phases(rng, 9), out=knm, backend=backend)


def test_refused_phases_leave_out_alone(backend, rng):
    knm, theta = symmetric(rng, 9), phases(rng, 9)
    knm[0, 1], knm[1, 0] = 1e-13, 0.0
    theta[4] = np.nan
    out = np.full((9, 9), 42.0)
    with pytest.raises(ValueError, match="theta"):
        spo_fast.modulate(knm, theta, out=out, backend=backend)
    assert (out == 42.0).all()
