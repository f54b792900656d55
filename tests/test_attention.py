"""Attention: stored vectors, plain loops and their derivatives, options, masks, sinks, refusals."""

from __future__ import annotations

import copy
import importlib
import itertools
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from conftest import ATTENTION_BACKENDS, backend_fixture
from hypothesis import given
from hypothesis import strategies as st
from oracles import attention as oracle
from samples import golden_files, load_golden, relative, same_bits

from spo_fast import attention

STEP = 1e-30  # of the complex step: its square is nothing beside 1
GOLDEN = [path for path in golden_files("attention") if path.stem.startswith("osc")]
DTYPES = (np.float64, np.float32)


backend = backend_fixture(ATTENTION_BACKENDS)


def stem(path):
    return path.stem


def load_layer(path, dtype=np.float64):
    """Input, parameters, options and everything stored, of one file."""
    arrays, meta = load_golden(path)
    options = dict(meta["options"])
    options["steps"], options["freq_base"] = options.pop("T"), options.pop("base")
    params = {name[2:]: array.astype(dtype) for name, array in arrays.items() if name.startswith("p.")}
    return arrays["x"].astype(dtype), params, options, arrays


def draw_layer(rng, *, n=5, heads=2, width=8, batch=1, separate_qk=False, lag=True, biases=False):
    """Input and parameters of a small layer."""
    m = width // heads // (2 if separate_qk else 1)
    phases = ("W_qp", "W_kp") if separate_qk else ("W_c", "W_s")
    params = {name: rng.normal(size=(width, width)) / np.sqrt(width) for name in (*phases, "W_v", "W_o")}
    params["w"] = rng.normal(1.0, 0.3, (heads, m))
    params |= {"beta": rng.normal(1.0, 0.3, heads), "kappa": rng.normal(0.5, 0.2, heads)}
    if lag:
        params["alpha"] = rng.normal(0.0, 0.3, (heads, m))
    if biases:
        params |= {"b_v": rng.normal(size=width), "b_o": rng.normal(size=width)}
    return rng.normal(size=(batch, n, width)), params


def draw_tokens(rng, shape, width):
    return rng.normal(size=(*shape, width))


def complex_step(function, array, direction):
    """Derivative of a real function of one array along a direction, to the last digits."""
    return function(array + 1j * STEP * direction).imag / STEP


# ---------------------------------------------------------------- the layer: stored vectors and plain loops


@pytest.mark.parametrize("path", GOLDEN, ids=stem)
def test_the_oracle_gives_the_stored_vectors(path):
    x, params, options, arrays = load_layer(path)
    result = oracle.oscillator_attention(x, params, **options)
    assert relative(result.real, arrays["out"]) < 1e-12


@pytest.mark.parametrize("path", GOLDEN, ids=stem)
def test_golden(path, backend):
    x, params, options, arrays = load_layer(path)
    out = attention.oscillator_attention(x, params, **options, backend=backend)
    assert relative(out, arrays["out"]) < 1e-11
    floor = 1e-3 * max(np.abs(arrays[f"g.{name}"]).max() for name in params)  # some gradients are exactly 0
    for checkpoints in attention.CHECKPOINTS:
        dx, grads = attention.oscillator_attention_vjp(
            x, params, arrays["r"], **options, checkpoints=checkpoints, backend=backend
        )
        assert relative(dx, arrays["grad_x"]) < 1e-9
        assert set(grads) == set(params)
        for name, grad in grads.items():
            assert relative(grad, arrays[f"g.{name}"], floor) < 1e-9, name


@pytest.mark.parametrize("path", GOLDEN, ids=stem)
def test_golden_in_single_precision(path, backend):
    """Within twice what an independent implementation in float32 is off by.

    Errors are held against the large gradients: that of beta is a sum of terms that nearly cancel.
    """
    x, params, options, arrays = load_layer(path, np.float32)
    out = attention.oscillator_attention(x, params, **options, backend=backend)
    assert out.dtype == np.float32 and relative(out, arrays["out"]) < 4e-6
    r = arrays["r"].astype(np.float32)
    dx, grads = attention.oscillator_attention_vjp(x, params, r, **options, backend=backend)
    assert dx.dtype == np.float32 and relative(dx, arrays["grad_x"]) < 1e-4
    floor = 0.1 * max(np.abs(arrays[f"g.{name}"]).max() for name in params)
    for name, grad in grads.items():
        assert grad.dtype == np.float32 and relative(grad, arrays[f"g.{name}"], floor) < 1e-4, name


OPTIONS = [
    {},
    {"steps": 0},
    {"steps": 1, "dt": 0.3},
    {"steps": 5},
    {"static_query": True},
    {"separate_qk": True},
    {"value_consensus": 0.4},
    {"pos": "low"},
    {"pos": "none"},
    {"lag": False},
    {"freq_base": 50.0, "score_scale": 0.25},
    {"static_query": True, "value_consensus": 0.4, "pos": "low"},
    {"separate_qk": True, "value_consensus": -0.2, "lag": False, "steps": 3},
    {"separate_qk": True, "static_query": True, "pos": "none", "score_scale": 2.0},
    {"static_query": True, "lag": False, "steps": 5, "dt": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("biases", [False, True], ids=["", "biases"])
def test_options_alone_and_together(options, biases, backend, rng):
    """Values by plain loops, and the derivative along a random direction of every parameter at once."""
    shape = {name: options[name] for name in ("separate_qk", "lag") if name in options}
    x, params = draw_layer(rng, biases=biases, **shape)
    keywords = {"n_heads": 2, "steps": 2} | options
    expected = oracle.oscillator_attention(x, params, **keywords).real
    assert relative(attention.oscillator_attention(x, params, **keywords, backend=backend), expected) < 1e-12
    r = rng.normal(size=x.shape)
    for checkpoints in attention.CHECKPOINTS:
        dx, grads = attention.oscillator_attention_vjp(
            x, params, r, **keywords, checkpoints=checkpoints, backend=backend
        )
        for name, grad in {"x": dx, **grads}.items():
            direction = rng.normal(size=grad.shape)

            def along(value, name=name):
                changed = {**params, name: value}
                return (r * oracle.oscillator_attention(changed.pop("x", x), changed, **keywords)).sum()

            given = x if name == "x" else params[name]
            expected = complex_step(along, given, direction)
            scale = np.abs(grad).max() * np.sqrt(grad.size) + 1e-6
            assert abs((grad * direction).sum() - expected) < 1e-11 * scale, name


@pytest.mark.parametrize("n, heads, width, batch", [(1, 1, 1, 1), (1, 2, 6, 3), (2, 3, 9, 2), (19, 1, 3, 1)])
def test_odd_sizes(n, heads, width, batch, backend, rng):
    x, params = draw_layer(rng, n=n, heads=heads, width=width, batch=batch)
    result = attention.oscillator_attention(x, params, n_heads=heads, backend=backend)
    expected = oracle.oscillator_attention(x, params, n_heads=heads)
    assert relative(result, expected.real) < 1e-12


def test_without_steps_kappa_has_no_gradient(backend, rng):
    x, params = draw_layer(rng)
    _, grads = attention.oscillator_attention_vjp(x, params, x, n_heads=2, steps=0, backend=backend)
    assert not grads["kappa"].any()


def test_a_single_token_sees_itself(backend, rng):
    x, params = draw_layer(rng, n=1)
    out = attention.oscillator_attention(x, params, n_heads=2, backend=backend)
    assert relative(out, x @ params["W_v"].T @ params["W_o"].T) < 1e-14


# ---------------------------------------------------------------- phases


def draw_phases(rng, batch=2, n=6, heads=2, m=3, f=4, dtype=np.float64):
    """Arguments of `phase_attention`."""
    c, s = (draw_tokens(rng, (batch, n, heads), m).astype(dtype) for _ in range(2))
    v = draw_tokens(rng, (batch, n, heads), f).astype(dtype)
    weight, alpha = (rng.normal(size=(heads, m)).astype(dtype) for _ in range(2))
    return c, s, v, weight, alpha, rng.normal(0.5, 0.2, heads).astype(dtype), rng.uniform(0.0, 1.0, m)


@pytest.mark.parametrize("f", [1, 4, 7])
def test_phase_attention_against_loops(f, backend, rng):
    arguments = draw_phases(rng, f=f)
    c, s, v, weight, alpha, kappa, ramp = arguments
    queries = tuple(draw_tokens(rng, c.shape[:3], 3) for _ in range(2))
    options = {"steps": 3, "dt": 0.7, "value_consensus": 0.3}
    out, state = attention.phase_attention(*arguments, **options, queries=queries, backend=backend)
    assert state is None
    for b, h in itertools.product(range(2), range(2)):
        parts = (array[b, :, h] for array in (c, s, v))
        own = tuple(part[b, :, h] for part in queries)
        expected = oracle.phase_attention_head(
            *parts, weight[h], alpha[h], kappa[h], ramp, **options, queries=own
        )
        assert relative(out[b, :, h], expected.real) < 1e-12


def test_phases_without_an_angle_have_no_gradient(backend, rng):
    arguments = draw_phases(rng)
    for part in arguments[:2]:
        part[0, 2, 1, 0] = 0.0
    out, state = attention.phase_attention(*arguments, steps=2, dt=1.0, keep="all", backend=backend)
    grads = attention.phase_attention_vjp(state, np.ones_like(out))
    for name in ("dc", "ds"):
        assert np.isfinite(grads[name]).all() and grads[name][0, 2, 1, 0] == 0.0
        assert np.count_nonzero(grads[name] == 0.0) < grads[name].size // 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_any_length_give_the_same_phases(dtype, backend, rng):
    c, s, *rest = draw_phases(rng, dtype=dtype)
    options = {"steps": 2, "dt": 1.0, "keep": "all", "backend": backend}
    expected, _ = attention.phase_attention(c, s, *rest, **options)
    for factor in (2.0**-60, 2.0**60):
        scale = dtype(factor)
        out, state = attention.phase_attention(c * scale, s * scale, *rest, **options)
        assert same_bits(out, expected)
        grads = attention.phase_attention_vjp(state, out)
        assert all(np.isfinite(grad).all() for grad in grads.values())


@pytest.mark.parametrize("keep", attention.CHECKPOINTS)
def test_a_state_can_be_used_again_pickled_and_copied(keep, backend, rng):
    arguments = draw_phases(rng)
    options = {"steps": 5, "dt": 0.5, "value_consensus": 0.2, "static_query": True, "keep": keep}
    out, state = attention.phase_attention(*arguments, **options, backend=backend)
    first = attention.phase_attention_vjp(state, out)
    for other in (state, pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        again = attention.phase_attention_vjp(other, out)
        assert first.keys() == again.keys()
        assert all(same_bits(first[name], again[name]) for name in first)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 9, 10])
def test_checkpoints_change_nothing(steps, backend, rng):
    arguments = draw_phases(rng)
    grads = []
    for keep in attention.CHECKPOINTS:
        out, state = attention.phase_attention(
            *arguments, steps=steps, dt=0.4, value_consensus=0.1, keep=keep, backend=backend
        )
        grads.append(attention.phase_attention_vjp(state, np.cos(out)))
    for name in grads[0]:
        assert relative(grads[1][name], grads[0][name]) < 1e-13, name


def test_long_sequences_keep_single_precision(backend, rng):
    """A ramp of 1 radian a token is rounded only after whole turns are gone."""
    *arrays, _ = draw_phases(rng, batch=1, n=1500, heads=1)
    ramp = np.array([1.0, 0.1, 0.01])
    options = {"steps": 2, "dt": 1.0, "keep": "all", "backend": backend}
    expected, state = attention.phase_attention(*arrays, ramp, **options)
    grads = attention.phase_attention_vjp(state, np.ones_like(expected))
    single = [array.astype(np.float32) for array in arrays]
    out, state = attention.phase_attention(*single, ramp, **options)
    assert relative(out, expected) < 1e-5
    for name, grad in attention.phase_attention_vjp(state, np.ones_like(out)).items():
        assert relative(grad, grads[name]) < 1e-4, name


# ---------------------------------------------------------------- softmax attention

SHAPES = [(1, 1, 1, 1), (1, 5, 3, 2), (6, 6, 4, 4), (5, 9, 3, 5), (9, 5, 5, 1), (4, 0, 2, 3), (3, 70, 1, 9)]
PLAIN = {"causal": True, "masked": False, "sunk": False}
KINDS = [
    PLAIN,
    PLAIN | {"causal": False},
    PLAIN | {"masked": True},
    PLAIN | {"sunk": True},
    {"causal": True, "masked": True, "sunk": True},
    {"causal": False, "masked": True, "sunk": True},
]


def draw_attention(rng, n, m, e, f, *, masked, sunk, groups=2, heads=2, dtype=np.float64):
    """Arrays by name; what is masked is None or a mask."""
    arrays = {
        "q": draw_tokens(rng, (groups, heads, n), e),
        "k": draw_tokens(rng, (groups, heads, m), e),
        "v": draw_tokens(rng, (groups, heads, m), f),
    }
    if sunk:
        arrays |= {"sink": rng.normal(size=heads), "sink_value": rng.normal(size=(heads, f))}
    mask = rng.random((groups, m)) < 0.6 if masked else None
    return {name: array.astype(dtype) for name, array in arrays.items()}, mask


def spoiled(arrays, mask):
    """The same with NaN and infinities in masked keys and values."""
    if mask is None:
        return arrays
    hidden = ~mask[:, None, :, None]
    bad = {"k": np.nan, "v": np.inf}
    return arrays | {name: np.where(hidden, arrays[name].dtype.type(bad[name]), arrays[name]) for name in bad}


def by_loops(arrays, mask, scale, causal):
    """Result (G, H, N, f) and logarithms of the oracle."""
    named = {name: arrays[name] for name in ("sink", "sink_value") if name in arrays}
    results = [
        oracle.softmax_attention(
            *(arrays[name][g] for name in "qkv"),
            scale=scale,
            causal=causal,
            key_mask=None if mask is None else mask[g],
            **named,
        )
        for g in range(len(arrays["q"]))
    ]
    return np.array([out for out, _ in results]), np.array([lse for _, lse in results])


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_attention_and_its_gradients(shape, kind, backend, rng):
    causal = kind["causal"]
    arrays, mask = draw_attention(rng, *shape, masked=kind["masked"], sunk=kind["sunk"])
    scale = 1.0 / np.sqrt(shape[2])
    options = {"causal": causal, "key_mask": mask, "backend": backend}
    given = spoiled(arrays, mask)
    out, lse = attention.causal_attention(**given, **options, return_lse=True)
    expected, logarithms = by_loops(arrays, mask, scale, causal)
    assert relative(out, expected.real, 1.0) < 1e-13
    some = logarithms.real > -np.inf
    assert np.array_equal(lse > -np.inf, some)
    assert np.max(np.abs(lse[some] - logarithms[some].real), initial=0.0) < 1e-13
    r = rng.normal(size=out.shape)
    grads = attention.causal_attention_vjp(grad_out=r, **given, **options)
    reused = attention.causal_attention_vjp(grad_out=r, **given, **options, out=out, lse=lse)
    for name, grad, again in zip(("q", "k", "v", "sink", "sink_value"), grads, reused, strict=True):
        if name not in arrays:
            assert grad is None and again is None
            continue
        assert same_bits(grad, again)
        direction = rng.normal(size=grad.shape)

        def along(value, name=name):
            return (r * by_loops({**arrays, name: value}, mask, scale, causal)[0]).sum()

        expected_slope = complex_step(along, arrays[name], direction)
        assert abs((grad * direction).sum() - expected_slope) < 1e-12 * max(1.0, np.abs(r).sum()), name
    if mask is not None:
        hidden = np.broadcast_to(~mask[:, None, :, None], grads[1].shape)
        assert not grads[1][hidden].any()


@pytest.mark.parametrize("n, m", [(15, 17), (17, 16), (33, 64), (65, 65), (20, 130), (128, 7)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_around_the_edges_of_tiles(n, m, dtype, backend, rng):
    tolerance = 1e-13 if dtype is np.float64 else 2e-6
    for kind in ({"masked": False, "sunk": False}, {"masked": True, "sunk": True}):
        arrays, mask = draw_attention(rng, n, m, 6, 5, **kind, groups=1, dtype=dtype)
        out, lse = attention.causal_attention(
            **arrays, key_mask=mask, scale=0.5, return_lse=True, backend=backend
        )
        exact = {name: array.astype(np.float64) for name, array in arrays.items()}
        expected, _ = attention.causal_attention(
            **exact, key_mask=mask, scale=0.5, return_lse=True, backend="numpy"
        )
        assert out.dtype == lse.dtype == dtype
        assert relative(out, expected, 1.0) < tolerance
        r = rng.normal(size=out.shape).astype(dtype)
        options = {"key_mask": mask, "scale": 0.5}
        grads = attention.causal_attention_vjp(**arrays, **options, grad_out=r, backend=backend)
        wanted = attention.causal_attention_vjp(
            **exact, **options, grad_out=r.astype(np.float64), backend="numpy"
        )
        for grad, want in zip(grads, wanted, strict=True):
            assert (grad is None) == (want is None)
            assert grad is None or relative(grad, want) < 10 * tolerance


@pytest.mark.parametrize("sunk", [False, True])
def test_rows_without_keys(sunk, backend, rng):
    """Queries before the first key, and a sample whose keys are all masked."""
    arrays, _ = draw_attention(rng, 7, 3, 4, 2, masked=False, sunk=sunk)
    mask = np.array([[True, True, True], [False, False, False]])
    out, lse = attention.causal_attention(
        **spoiled(arrays, mask), key_mask=mask, return_lse=True, backend=backend
    )
    value = arrays["sink_value"] if sunk else np.zeros((2, 2))
    empty = np.zeros((2, 2, 7), bool)
    empty[:, :, :4] = empty[1] = True
    assert np.array_equal(out[empty], np.broadcast_to(value[None, :, None], out.shape)[empty])
    if not sunk:
        assert (lse[empty] == -np.inf).all()
    r = rng.normal(size=out.shape)
    dq, dk, dv, dsink, _ = attention.causal_attention_vjp(
        **spoiled(arrays, mask), key_mask=mask, grad_out=r, backend=backend
    )
    assert not dq[empty].any() and not dk[1].any() and not dv[1].any()
    assert dq[0, :, 4:].any() and dk[0].any() and dv[0].any()
    if sunk:
        alone = attention.causal_attention_vjp(
            **arrays, key_mask=np.zeros_like(mask), grad_out=r, backend=backend
        )
        assert np.abs(alone[3]).max() < 1e-15 and relative(alone[4], r.sum(axis=(0, 2))) < 1e-14
        assert dsink.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_value", [False, True])
def test_a_sink_of_minus_infinity_is_none(with_value, dtype, backend, rng):
    arrays, mask = draw_attention(rng, 20, 18, 3, 4, masked=True, sunk=True, dtype=dtype)
    plain = {name: arrays[name] for name in "qkv"}
    value = arrays["sink_value"] if with_value else None
    sunk = plain | {"sink": np.full(2, -np.inf, dtype), "sink_value": value}
    options = {"key_mask": mask, "backend": backend}
    results = [attention.causal_attention(**given, **options, return_lse=True) for given in (plain, sunk)]
    assert all(same_bits(a, b) for a, b in zip(*results, strict=True))
    r = rng.normal(size=results[0][0].shape).astype(dtype)
    without, with_sink = (
        attention.causal_attention_vjp(**given, **options, grad_out=r) for given in (plain, sunk)
    )
    assert all(same_bits(a, b) for a, b in zip(without[:3], with_sink[:3], strict=True))
    assert not with_sink[3].any()
    assert with_sink[4] is None if value is None else not with_sink[4].any()


def test_a_large_sink_takes_everything_and_a_small_one_nothing(backend, rng):
    arrays, _ = draw_attention(rng, 4, 4, 3, 2, masked=False, sunk=True)
    arrays["sink"] = np.array([5000.0, -5000.0])
    out = attention.causal_attention(**arrays, backend=backend)
    assert np.array_equal(out[:, 0], np.broadcast_to(arrays["sink_value"][0], out[:, 0].shape))
    plain = attention.causal_attention(arrays["q"], arrays["k"], arrays["v"], backend=backend)
    assert np.array_equal(out[:, 1], plain[:, 1])


@pytest.mark.parametrize("sink", [-1e4, -100.0, 0.0, 10.0])
@pytest.mark.parametrize("groups", [1, 24])  # few problems go one by one, many side by side
def test_a_sink_far_from_the_scores_takes_no_digits(sink, groups, backend, rng):
    arrays, _ = draw_attention(rng, 40, 40, 8, 4, masked=False, sunk=True, groups=groups, dtype=np.float32)
    arrays["sink"] = np.full(2, sink, np.float32)
    out = attention.causal_attention(**arrays, backend=backend)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    assert np.abs(out - attention.causal_attention(**wide, backend="numpy")).max() < 2e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_of_any_size(dtype, backend, rng):
    """Where one key wins by far the result is its value, and nothing overflows."""
    q = np.full((1, 40, 2), 100.0, dtype)
    k = rng.permutation(np.linspace(-300.0, 300.0, 40)).astype(dtype)[None, :, None].repeat(2, axis=2)
    v = rng.normal(size=(1, 40, 3)).astype(dtype)
    out = attention.causal_attention(q, k, v, scale=1.0, backend=backend)
    winners = [int(np.argmax(k[0, : i + 1, 0])) for i in range(40)]
    assert np.array_equal(out[0], v[0, winners])
    grads = attention.causal_attention_vjp(q, k, v, np.ones_like(v), scale=1.0, backend=backend)
    assert all(np.isfinite(grad).all() for grad in grads[:3])


def test_the_largest_scores(backend):
    """Just below what is refused; masked keys do not count."""
    q = np.full((1, 2, 1), 1e18, np.float32)
    k = np.array([[[1e19], [np.inf]]], np.float32)
    mask = np.array([True, False])
    out = attention.causal_attention(q, k, q, key_mask=mask, backend=backend)
    assert same_bits(out, q)
    with pytest.raises(ValueError, match=r"so large that scores overflow, got a scale of 1, .* and 3e\+20"):
        attention.causal_attention(q, k * 30, q, key_mask=mask, backend=backend)


def test_golden_of_plain_attention(backend):
    path = next(path for path in golden_files("attention") if path.stem.startswith("standard"))
    arrays, _ = load_golden(path)
    x, r = arrays["x"], arrays["r"]
    weights = [arrays[f"p.W_{name}"] for name in "QKV"]
    tokens = [(x @ weight.T)[:, None] for weight in weights]
    out = attention.causal_attention(*tokens, backend=backend)
    assert relative(out[:, 0], arrays["out"]) < 1e-11
    dtokens = attention.causal_attention_vjp(*tokens, r[:, None], backend=backend)[:3]
    for name, grad in zip("QKV", dtokens, strict=True):
        weight_grad = np.einsum("bni,bnj->ij", grad[:, 0], x)
        assert relative(weight_grad, arrays[f"g.W_{name}"]) < 1e-9
    dx = sum(grad[:, 0] @ weight for grad, weight in zip(dtokens, weights, strict=True))
    assert relative(dx, arrays["grad_x"]) < 1e-9


# ---------------------------------------------------------------- invariances

sizes = st.integers(1, 24)
seeds = st.integers(0, 2**32 - 1)


@given(n=sizes, cut=sizes, seed=seeds)
def test_nothing_comes_from_the_future(backend, n, cut, seed):
    rng = np.random.default_rng(seed)
    x, params = draw_layer(rng, n=n)
    cut = min(cut, n)
    options = {"n_heads": 2, "steps": 2, "value_consensus": 0.2, "backend": backend}
    whole = attention.oscillator_attention(x, params, **options)
    part = attention.oscillator_attention(x[:, :cut], params, **options)
    assert relative(whole[:, :cut], part) < 1e-13
    r = rng.normal(size=x.shape)
    r[:, cut:] = 0.0
    dx, _ = attention.oscillator_attention_vjp(x, params, r, **options)
    assert not dx[:, cut:].any()


@given(n=sizes, shift=st.floats(-50.0, 50.0), static=st.booleans(), seed=seeds)
def test_a_common_shift_of_the_phases_changes_nothing(backend, n, shift, static, seed):
    rng = np.random.default_rng(seed)
    c, s, *rest = draw_phases(rng, batch=1, n=n)
    turned = c * np.cos(shift) - s * np.sin(shift), s * np.cos(shift) + c * np.sin(shift)
    options = {"steps": 3, "dt": 0.5, "static_query": static, "backend": backend}
    expected, _ = attention.phase_attention(c, s, *rest, **options)
    out, _ = attention.phase_attention(*turned, *rest, **options)
    assert relative(out, expected) < 1e-12


@given(n=sizes, seed=seeds)
def test_samples_do_not_know_of_each_other(backend, n, seed):
    rng = np.random.default_rng(seed)
    x, params = draw_layer(rng, n=n, batch=3)
    order = rng.permutation(3)
    options = {"n_heads": 2, "steps": 1, "backend": backend}
    out = attention.oscillator_attention(x, params, **options)
    assert relative(attention.oscillator_attention(x[order], params, **options), out[order]) < 1e-13


@given(n=sizes, m=sizes, masked=st.booleans(), sunk=st.booleans(), seed=seeds)
def test_the_order_of_keys_does_not_matter(backend, n, m, masked, sunk, seed):
    rng = np.random.default_rng(seed)
    arrays, mask = draw_attention(rng, n, m, 3, 2, masked=masked, sunk=sunk)
    order = rng.permutation(m)
    moved = arrays | {"k": arrays["k"][:, :, order], "v": arrays["v"][:, :, order]}
    options = {"causal": False, "backend": backend}
    out = attention.causal_attention(**arrays, **options, key_mask=mask)
    other = attention.causal_attention(**moved, **options, key_mask=None if mask is None else mask[:, order])
    assert relative(other, out, 1.0) < 1e-13


@given(n=sizes, seed=seeds)
def test_results_lie_between_the_values(backend, n, seed):
    rng = np.random.default_rng(seed)
    arrays, _ = draw_attention(rng, n, n, 3, 2, masked=False, sunk=False)
    out = attention.causal_attention(**arrays, backend=backend)
    v = arrays["v"]
    low, high = (np.array([f(v[:, :, : i + 1], axis=2) for i in range(n)]) for f in (np.min, np.max))
    out = np.moveaxis(out, 2, 0)
    assert (out >= low - 1e-14).all() and (out <= high + 1e-14).all()


@given(n=sizes, shift=st.floats(-300.0, 300.0), seed=seeds)
def test_a_common_shift_of_the_scores_changes_nothing(backend, n, shift, seed):
    """A column of ones in the queries and a constant one in the keys."""
    rng = np.random.default_rng(seed)
    arrays, _ = draw_attention(rng, n, n, 2, 2, masked=False, sunk=False)
    out = attention.causal_attention(**arrays, scale=1.0, backend=backend)
    ends = {"q": 1.0, "k": shift}
    wider = {
        name: np.concatenate([arrays[name], np.full((*arrays[name].shape[:3], 1), end)], axis=3)
        for name, end in ends.items()
    }
    shifted = attention.causal_attention(**(arrays | wider), scale=1.0, backend=backend)
    assert relative(shifted, out, 1.0) < 1e-12


# ---------------------------------------------------------------- arrays of all kinds, empty ones, repetition


def strided(array):
    return np.repeat(array, 2, axis=-1)[..., ::2]


def swapped(array):
    return array.astype(array.dtype.newbyteorder())


def read_only(array):
    copied = array.copy()
    copied.flags.writeable = False
    return copied


@pytest.mark.parametrize("change", [np.asfortranarray, strided, swapped, read_only, np.ndarray.tolist])
def test_any_layout_is_taken(change, backend, rng):
    x, params = draw_layer(rng)
    options = {"n_heads": 2, "steps": 1, "backend": backend}
    out = attention.oscillator_attention(x, params, **options)
    changed = {name: change(array) for name, array in params.items()}
    assert same_bits(attention.oscillator_attention(change(x), changed, **options), out)
    dx, grads = attention.oscillator_attention_vjp(x, params, out, **options)
    other, others = attention.oscillator_attention_vjp(change(x), changed, change(out), **options)
    assert same_bits(dx, other) and all(same_bits(grads[name], others[name]) for name in grads)
    arrays, mask = draw_attention(rng, 5, 6, 3, 2, masked=True, sunk=True)
    plain = attention.causal_attention(**arrays, key_mask=mask, backend=backend)
    changed = {name: change(array) for name, array in arrays.items()}
    assert same_bits(attention.causal_attention(**changed, key_mask=mask, backend=backend), plain)
    grads = attention.causal_attention_vjp(**arrays, grad_out=plain, key_mask=mask, backend=backend)
    others = attention.causal_attention_vjp(
        **changed, grad_out=change(plain), key_mask=read_only(mask), backend=backend
    )
    assert all(same_bits(grad, other) for grad, other in zip(grads, others, strict=True))


def test_memory_maps_are_taken(tmp_path, backend, rng):
    x, params = draw_layer(rng)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    options = {"n_heads": 2, "backend": backend}
    out = attention.oscillator_attention(mapped, params, **options)
    assert type(out) is np.ndarray
    assert same_bits(out, attention.oscillator_attention(x, params, **options))


def test_arguments_are_left_alone(backend, rng):
    arguments = draw_phases(rng)
    before = copy.deepcopy(arguments)
    out, state = attention.phase_attention(
        *arguments, steps=2, dt=1.0, value_consensus=0.5, keep="sqrt", backend=backend
    )
    attention.phase_attention_vjp(state, out)
    assert all(same_bits(a, b) for a, b in zip(arguments, before, strict=True))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 2, 0)])
def test_leading_dimensions_are_free(shape, backend, rng):
    q, k, v = (rng.normal(size=(*shape, 2, n, 3)) for n in (4, 5, 5))
    mask = rng.random((*shape, 5)) < 0.7
    out, lse = attention.causal_attention(q, k, v, key_mask=mask, return_lse=True, backend=backend)
    assert out.shape == q.shape and lse.shape == q.shape[:-1]
    for index in np.ndindex(shape):
        one = attention.causal_attention(q[index], k[index], v[index], key_mask=mask[index], backend=backend)
        assert same_bits(out[index], one)


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8)])
def test_no_tokens(shape, backend, rng):
    _, params = draw_layer(rng)
    x = np.empty(shape)
    assert attention.oscillator_attention(x, params, n_heads=2, backend=backend).shape == shape
    dx, grads = attention.oscillator_attention_vjp(x, params, x, n_heads=2, backend=backend)
    assert dx.shape == shape and not any(grad.any() for grad in grads.values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_repeat_whatever_the_workers(dtype, backend, rng):
    arguments = draw_phases(rng, batch=3, n=40, m=4, f=8, dtype=dtype)
    arrays, mask = draw_attention(rng, 40, 50, 6, 5, masked=True, sunk=True, dtype=dtype)
    results = []
    for workers in (1, 1, 2, 3):
        out, state = attention.phase_attention(
            *arguments, steps=2, dt=1.0, keep="all", backend=backend, workers=workers
        )
        grads = attention.phase_attention_vjp(state, out, workers=workers)
        plain = attention.causal_attention(**arrays, key_mask=mask, backend=backend, workers=workers)
        back = attention.causal_attention_vjp(
            **arrays, grad_out=plain, key_mask=mask, backend=backend, workers=workers
        )
        results.append([out, *grads.values(), plain, *back])
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(results[0], other, strict=True))


PROGRAM = """
import resource
import numpy as np
from spo_fast import attention

rng = np.random.default_rng(0)
def run(n):
    parts = [rng.normal(size=(1, n, 1, 2)).astype(np.float32) for _ in range(3)]
    weight = np.ones((1, 2), np.float32)
    out, state = attention.phase_attention(
        *parts, weight, weight, np.ones(1, np.float32), np.ones(2), steps=1, dt=1.0, keep="all", backend={!r}
    )
    attention.phase_attention_vjp(state, out)
run(8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(4500)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
def test_memory_is_linear_in_the_tokens(backend):
    """A matrix of 4500 x 4500 weights is 81 MB."""
    program = textwrap.dedent(PROGRAM).format(backend)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40_000


# ---------------------------------------------------------------- refusals


def test_backends_without_attention_are_refused():
    q = np.zeros((1, 2, 3))
    for name in ("rust", "go", "julia", "mojo"):
        with pytest.raises(ValueError, match=f"'cython', 'numba', 'numpy' for attention, got '{name}'"):
            attention.causal_attention(q, q, q, backend=name)
    with pytest.raises(ValueError, match="backend must be one of"):
        attention.causal_attention(q, q, q, backend="fortran")


def test_a_backend_that_cannot_be_loaded_is_passed_over_unless_it_is_named(monkeypatch):
    from spo_fast.backends import attention as implementations
    from spo_fast.backends import registry

    def broken(name):
        if not name.startswith(f"{implementations.__name__}."):
            return importlib.import_module(name)
        if name.endswith(".reference"):
            return "the last one"
        raise ImportError("no such thing")

    monkeypatch.setattr(implementations, "_default", [])
    monkeypatch.setattr(registry, "import_module", broken)
    assert implementations.load() == implementations.load("auto") == "the last one"
    with pytest.raises(RuntimeError, match="backend 'numba' cannot be used for attention: no such thing"):
        implementations.load("numba")
    monkeypatch.setattr(implementations, "_default", [])
    monkeypatch.setattr(implementations, "_MODULES", dict.fromkeys(implementations._MODULES, "nothing"))
    with pytest.raises(RuntimeError, match="no backend can be loaded for attention"):
        implementations.load()


Q = np.zeros((2, 3, 4))
NAN = np.full((2, 3, 4), np.nan)
SINK = np.zeros(2)

ATTENTION_REFUSALS = [
    ({"q": Q[0]}, r"q must have shape \(\.\.\., H, N, e\)"),
    ({"q": Q.astype(np.float32)}, "k must have the dtype of q, float32, got float64"),
    ({"q": Q.astype(int)}, "q must have dtype float32 or float64"),
    ({"q": Q.astype(bool)}, "q must have dtype float32 or float64"),
    ({"q": Q.astype(complex)}, "q must have dtype float32 or float64"),
    ({"q": Q.astype(object)}, "q must have dtype float32 or float64"),
    ({"q": Q.astype(np.float16)}, "q must have dtype float32 or float64"),
    ({"q": np.ma.array(Q)}, "q must be a plain array"),
    ({"q": [[[True, 1.0, 2.0, 3.0]]]}, "q must hold real numbers"),
    ({"q": NAN}, r"q must be finite, got nan at index \(0, 0, 0\)"),
    ({"k": NAN}, "k must be finite"),
    ({"v": -NAN}, "v must be finite"),
    (
        {"k": NAN, "key_mask": np.array([False, True, False])},
        r"k must be finite, got nan at index \(0, 1, 0\)",
    ),
    ({"k": Q[:, :, :3]}, r"k must have shape \(\.\.\., H, M, e\) = \(2, M, 4\)"),
    ({"k": Q[:1]}, "k must have shape"),
    ({"v": Q[:, :2]}, r"v must have shape \(\.\.\., H, M, f\) = \(2, 3, f\)"),
    ({"v": Q[:, :, :0]}, "v must have at least one column"),
    ({"q": Q[:, :, :0], "k": Q[:, :, :0]}, "q must have at least one column"),
    ({"scale": np.nan}, "scale must be finite"),
    ({"scale": True}, "scale must be a real number"),
    ({"causal": 1}, "causal must be True or False, got 1"),
    ({"key_mask": np.ones(3)}, "key_mask must be an array of bool"),
    ({"key_mask": [True] * 3}, "key_mask must be an array of bool"),
    ({"key_mask": np.ones(2, bool)}, r"key_mask must have shape \(\.\.\., M\) = \(3,\), got \(2,\)"),
    ({"sink": np.zeros(3)}, r"sink must have shape \(H,\) = \(2,\)"),
    ({"sink": np.array([0.0, np.inf])}, "sink must be finite or -inf, got inf at index 1"),
    ({"sink": np.array([np.nan, 0.0])}, "sink must be finite or -inf, got nan at index 0"),
    ({"sink_value": np.zeros((2, 4))}, "sink_value must be None without a sink"),
    ({"sink": SINK, "sink_value": np.zeros(4)}, r"sink_value must have shape \(H, f\) = \(2, 4\)"),
    ({"sink": SINK, "sink_value": np.full((2, 4), np.inf)}, "sink_value must be finite"),
    ({"sink": SINK.astype(np.float32)}, "sink must have the dtype of q"),
    ({"scale": 1e308}, "must not be so large that scores overflow"),
    ({"q": Q + 1e200, "k": Q - 1e200}, "must not be so large that scores overflow"),
    ({"workers": 0}, "workers must be an integer >= 1"),
    ({"backend": 1}, "backend must be one of"),
]


@pytest.mark.parametrize("change, message", ATTENTION_REFUSALS)
def test_refusals_of_softmax_attention(change, message):
    arguments = {"q": Q, "k": Q, "v": Q, "backend": "numpy"} | change
    with pytest.raises(ValueError, match=message):
        attention.causal_attention(**arguments)
    with pytest.raises(ValueError, match=message):
        attention.causal_attention_vjp(**arguments, grad_out=Q)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"grad_out": Q[:1]}, "grad_out must have shape"),
        ({"grad_out": NAN}, "grad_out must be finite"),
        ({"grad_out": Q.astype(np.float32)}, "grad_out must have dtype float64, got float32"),
        ({"out": Q}, "out and lse must be given together"),
        ({"lse": Q[..., 0]}, "out and lse must be given together"),
        ({"out": Q, "lse": Q}, r"lse must have shape \(2, 3\)"),
        ({"out": Q[:1], "lse": Q[..., 0]}, "out must have shape"),
    ],
)
def test_refusals_of_the_reverse_pass(change, message):
    with pytest.raises(ValueError, match=message):
        attention.causal_attention_vjp(**({"q": Q, "k": Q, "v": Q, "grad_out": Q} | change))


def test_return_lse_is_a_flag():
    with pytest.raises(ValueError, match="return_lse must be True or False"):
        attention.causal_attention(Q, Q, Q, return_lse=2)


PHASE_REFUSALS = [
    ({"c": Q}, r"c must have shape \(B, N, H, m\)"),
    ({"c": np.full((1, 2, 2, 3), np.nan)}, "c must be finite"),
    ({"s": np.zeros((1, 2, 2, 2))}, "s must have shape"),
    ({"s": np.full((1, 2, 2, 3), np.inf)}, "s must be finite"),
    ({"v": np.zeros((1, 2, 4))}, r"v must have shape \(B, N, H, f\) = \(1, 2, 2, f\)"),
    ({"v": np.zeros((1, 2, 2, 0))}, "v must have at least one column"),
    ({"v": np.zeros((1, 2, 2, 3), np.float32)}, "v must have the dtype of c"),
    ({"c": np.zeros((1, 2, 2, 0))}, "c must have at least one column"),
    ({"weight": np.zeros(3)}, "weight must have shape"),
    ({"weight": np.full((2, 3), 1e308)}, "weight must not be so large that scores overflow"),
    ({"alpha": np.full((2, 3), np.nan)}, "alpha must be finite"),
    ({"kappa": np.full(2, -1e308), "dt": 2.0}, "dt and kappa must not be so large that phases overflow"),
    ({"kappa": np.zeros(2, np.float32)}, "kappa must have dtype float64, got float32"),
    ({"ramp": np.zeros(2)}, r"ramp must have shape \(m,\) = \(3,\)"),
    ({"ramp": np.array([0.0, np.inf, 0.0])}, "ramp must be finite"),
    ({"steps": -1}, "steps must be an integer >= 0"),
    ({"steps": 1.0}, "steps must be an integer"),
    ({"dt": np.inf}, "dt must be finite"),
    ({"static_query": None}, "static_query must be True or False"),
    ({"value_consensus": "x"}, "value_consensus must be a real number"),
    ({"queries": np.zeros((2, 1, 2, 2, 3))}, "queries must be None or a pair of arrays"),
    ({"queries": (np.zeros((1, 2, 2, 3)), np.zeros(3))}, r"queries\[1\] must have shape"),
    ({"keep": "some"}, "keep must be one of 'none', 'all', 'sqrt', got 'some'"),
]


@pytest.mark.parametrize("change, message", PHASE_REFUSALS)
def test_refusals_of_phase_attention(change, message):
    tokens = np.zeros((1, 2, 2, 3))
    arguments = {"c": tokens, "s": tokens, "v": tokens, "weight": np.zeros((2, 3)), "alpha": np.zeros((2, 3))}
    arguments |= {"kappa": np.zeros(2), "ramp": np.zeros(3), "steps": 1, "dt": 1.0} | change
    with pytest.raises(ValueError, match=message):
        attention.phase_attention(**arguments)


def test_refusals_of_the_phases_reverse_pass(rng):
    out, state = attention.phase_attention(*draw_phases(rng), steps=1, dt=1.0, keep="all", backend="numpy")
    with pytest.raises(
        ValueError, match="state must come from phase_attention, got an object of type NoneType"
    ):
        attention.phase_attention_vjp(None, out)
    with pytest.raises(ValueError, match="grad_out must have shape"):
        attention.phase_attention_vjp(state, out[0])
    with pytest.raises(ValueError, match="workers must be an integer"):
        attention.phase_attention_vjp(state, out, workers=0)


LAYER_REFUSALS = [
    ({"x": np.zeros((3, 8))}, {}, r"x must have shape \(B, N, d\)"),
    ({"x": np.full((1, 3, 8), np.nan)}, {}, "x must be finite"),
    ({"x": np.zeros((1, 3, 8), np.float32)}, {}, r"params\['W_c'\] must have dtype float32, got float64"),
    ({"x": np.zeros((1, 3, 0))}, {}, "n_heads must divide the model width d = 0"),
    ({"n_heads": 3}, {}, "n_heads must divide the model width d = 8, got 3"),
    ({"n_heads": 0}, {}, "n_heads must be an integer >= 1"),
    ({"n_heads": 8, "separate_qk": True}, {}, "separate_qk needs heads of even width, got 1 = 8 / 8"),
    ({"separate_qk": True}, {}, "params must have no entry but W_qp, W_kp, .* got 'W_c'"),
    ({"lag": False}, {}, "params must have no entry but .*, got 'alpha'"),
    ({"params": [1]}, {}, "params must be a dictionary of arrays"),
    ({}, {"W_c": None}, "params must have an entry 'W_c'"),
    ({}, {"kappa": None}, "params must have an entry 'kappa'"),
    ({}, {"b_q": np.zeros(8)}, "params must have no entry but .*, got 'b_q'"),
    ({}, {"w": np.zeros(4)}, r"params\['w'\] must have shape \(2, 4\), got \(4,\)"),
    ({}, {"W_o": np.zeros((8, 4))}, r"params\['W_o'\] must have shape \(8, 8\)"),
    ({}, {"b_v": np.zeros(4)}, r"params\['b_v'\] must have shape \(8,\)"),
    ({}, {"beta": np.array([1.0, np.nan])}, r"params\['beta'\] must be finite, got nan at index 1"),
    ({}, {"beta": np.array([1, 2])}, r"params\['beta'\] must have dtype float32 or float64"),
    ({"pos": "high"}, {}, "pos must be one of 'full', 'low', 'none', got 'high'"),
    ({"lag": 1}, {}, "lag must be True or False"),
    ({"separate_qk": "no"}, {}, "separate_qk must be True or False"),
    ({"freq_base": 0.0}, {}, "freq_base must be positive"),
    ({"score_scale": np.nan}, {}, "score_scale must be finite"),
    ({"steps": True}, {}, "steps must be an integer"),
]


@pytest.mark.parametrize("change, entries, message", LAYER_REFUSALS)
def test_refusals_of_the_layer(change, entries, message, rng):
    x, params = draw_layer(rng, n=3)
    params = {name: value for name, value in (params | entries).items() if value is not None}
    arguments = {"x": x, "params": params, "n_heads": 2} | change
    with pytest.raises(ValueError, match=message):
        attention.oscillator_attention(**arguments)
    with pytest.raises(ValueError, match=message):
        attention.oscillator_attention_vjp(**arguments, grad_out=x)


def test_refusals_of_the_layers_reverse_pass(rng):
    x, params = draw_layer(rng, n=3)
    with pytest.raises(ValueError, match="grad_out must have shape"):
        attention.oscillator_attention_vjp(x, params, x[0], n_heads=2)
    with pytest.raises(ValueError, match="checkpoints must be one of 'all', 'sqrt', got 'none'"):
        attention.oscillator_attention_vjp(x, params, x, n_heads=2, checkpoints="none")


# ---------------------------------------------------------------- the public faces


@pytest.mark.parametrize("name", ["causal_attention", "phase_attention", "oscillator_attention"])
def test_functions_can_be_pickled(name):
    for function in (getattr(attention, name), getattr(attention, f"{name}_vjp")):
        assert pickle.loads(pickle.dumps(function)) is function


def test_the_fastest_backend_is_the_default(rng):
    x, params = draw_layer(rng)
    named = attention.oscillator_attention(x, params, n_heads=2, backend="auto")
    assert same_bits(attention.oscillator_attention(x, params, n_heads=2), named)
