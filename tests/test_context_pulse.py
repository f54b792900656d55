"""Context-pulse attention: stored vectors, plain loops and their derivatives, parts, causality, streams."""

from __future__ import annotations

import copy
import doctest
import pickle
import tracemalloc

import numpy as np
import pytest
from conftest import ATTENTION_BACKENDS, backend_fixture, require
from hypothesis import given
from hypothesis import strategies as st
from oracles import context_pulse as oracle
from samples import golden_files, load_golden, relative, same_bits

from spo_fast import attention, pulse, streaming
from spo_fast.backends.pulse import statistics
from spo_fast.context_pulse import VARIANTS, parameter_shapes

STEP = 1e-30  # of the complex step: its square is nothing beside 1
KINDS = {"standard": "standard", "v1": "leaky", "v2": "parseval", "v3": "chunked", "v4": "alpert"}
GOLDEN = [path for path in golden_files("attention") if not path.stem.startswith("osc")]
WITH_WEDGE = ("parseval", "chunked", "alpert")
WITH_HEADS = ("chunked", "alpert")
UNUSED = ("jump_scale", "jump_bias", "gate_proj.weight", "gate_proj.bias")  # of alpert
CORRECTED = [
    {"variant": "standard"},
    {"variant": "leaky"},
    {"variant": "parseval", "strict_causal": True},
    {"variant": "chunked"},
    {"variant": "alpert", "strict_causal": True},
    {"variant": "alpert", "strict_causal": True, "poly_order": 2, "wedge": "relative"},
    {"variant": "chunked", "strict_causal": True, "wedge": "relative"},
    {"variant": "parseval", "normalise": False},
    {"variant": "parseval", "strict_causal": True, "rotary": False},
]


backend = backend_fixture(ATTENTION_BACKENDS)


def stem(path):
    return path.stem


def load_layer(path, dtype=np.float64):
    """Input, parameters, options and everything stored, of one file."""
    arrays, meta = load_golden(path)
    options = {name: value for name, value in meta["options"].items() if name != "head_dim"}
    if "n_head" in options:
        options["n_heads"] = options.pop("n_head")
    params = {name[2:]: array.astype(dtype) for name, array in arrays.items() if name.startswith("p.")}
    return arrays["x"].astype(dtype), params, options | {"variant": KINDS[meta["kind"]]}, arrays


def draw_layer(rng, variant, *, n=7, batch=2, width=8, biases=False, dtype=np.float64):
    """Input and parameters of a small layer, two heads where there are heads; and n_heads."""
    heads = 2 if variant in WITH_HEADS else 1
    head_width = width // heads if heads > 1 else 6
    shapes = parameter_shapes(variant, width, heads, head_width)
    if biases:
        shapes["b_v"] = (heads * head_width,)
        if "W_O" in shapes:
            shapes["b_o"] = (width,)
    params = {name: (0.5 * rng.normal(size=shape)).astype(dtype) for name, shape in shapes.items()}
    return rng.normal(size=(batch, n, width)).astype(dtype), params, {"variant": variant, "n_heads": heads}


def looped(x, params, options):
    """The oracle's result."""
    names = {"wedge": "wedge_kind", "rotary": "rotates", "normalise": "normalises"}
    named = {names.get(name, name): value for name, value in options.items()}
    return oracle.context_pulse_attention(x, params, **named)


def complex_step(function, array, direction):
    """Derivative of a real function of one array along a direction, to the last digits."""
    return function(array + 1j * STEP * direction).imag / STEP


# ---------------------------------------------------------------- the layer: stored vectors and plain loops


def test_there_are_stored_vectors():
    assert len(GOLDEN) == 8


@pytest.mark.parametrize("path", GOLDEN, ids=stem)
def test_the_oracle_gives_the_stored_vectors(path):
    x, params, options, arrays = load_layer(path)
    assert relative(looped(x, params, options).real, arrays["out"]) < 1e-12


@pytest.mark.parametrize("path", GOLDEN, ids=stem)
def test_golden(path, backend):
    x, params, options, arrays = load_layer(path)
    out = attention.context_pulse_attention(x, params, **options, backend=backend)
    assert relative(out, arrays["out"]) < 1e-11
    dx, grads = attention.context_pulse_attention_vjp(x, params, arrays["r"], **options, backend=backend)
    assert relative(dx, arrays["grad_x"]) < 1e-9
    assert set(grads) == set(params)
    for name, grad in grads.items():
        assert relative(grad, arrays[f"g.{name}"]) < 1e-9, name


@pytest.mark.parametrize("path", GOLDEN, ids=stem)
def test_golden_in_single_precision(path, backend):
    """Within twice what an independent implementation in float32 is off by."""
    x, params, options, arrays = load_layer(path, np.float32)
    out = attention.context_pulse_attention(x, params, **options, backend=backend)
    assert out.dtype == np.float32 and relative(out, arrays["out"]) < 4e-6
    r = arrays["r"].astype(np.float32)
    dx, grads = attention.context_pulse_attention_vjp(x, params, r, **options, backend=backend)
    assert dx.dtype == np.float32 and relative(dx, arrays["grad_x"]) < 1e-4
    for name, grad in grads.items():
        assert grad.dtype == np.float32 and relative(grad, arrays[f"g.{name}"]) < 1e-4, name


OPTIONS = [
    {"variant": "standard"},
    {"variant": "standard", "mask": False},
    {"variant": "leaky", "decay": 0.3},
    {"variant": "leaky", "decay": 0.0},
    {"variant": "leaky", "decay": 1.0, "mask": False},
    {"variant": "parseval"},
    {"variant": "parseval", "mask": False},
    {"variant": "parseval", "strict_causal": True},
    {"variant": "parseval", "wedge": "relative"},
    {"variant": "parseval", "wedge": "relative", "strict_causal": True},
    {"variant": "parseval", "rotary": False},
    {"variant": "parseval", "normalise": False},
    {"variant": "chunked", "chunk_size": 3},
    {"variant": "chunked", "chunk_size": 3, "rotary": False, "normalise": False},
    {"variant": "chunked", "chunk_size": 2, "wedge": "relative"},
    {"variant": "chunked", "chunk_size": 1, "mask": False},
    {"variant": "chunked", "chunk_size": 3, "strict_causal": True},
    {"variant": "alpert", "chunk_size": 3, "poly_order": 0},
    {"variant": "alpert", "chunk_size": 2, "poly_order": 1},
    {"variant": "alpert", "chunk_size": 3, "poly_order": 2},
    {"variant": "alpert", "chunk_size": 3, "poly_order": 7, "mask": False},
    {"variant": "alpert", "chunk_size": 1, "poly_order": 2},
    {"variant": "alpert", "chunk_size": 3, "poly_order": 2, "strict_causal": True},
    {"variant": "alpert", "chunk_size": 2, "strict_causal": True, "wedge": "relative"},
    {"variant": "alpert", "chunk_size": 2, "wedge": "relative", "rotary": False},
    {"variant": "alpert", "chunk_size": 2, "normalise": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_against_loops(options, backend, rng):
    """Values by plain loops, and the derivative along a random direction of every parameter."""
    x, params, how = draw_layer(rng, options["variant"], biases=True)
    options = how | options
    out = attention.context_pulse_attention(x, params, **options, backend=backend)
    assert relative(out, looped(x, params, options).real) < 1e-12
    r = rng.normal(size=out.shape)
    dx, grads = attention.context_pulse_attention_vjp(x, params, r, **options, backend=backend)
    unused = UNUSED if options["variant"] == "alpert" else ()
    for name, grad in {"x": dx, **grads}.items():
        if name in unused:
            assert not grad.any() and grad.shape == params[name].shape
            continue
        direction = rng.normal(size=grad.shape)

        def along(value, name=name):
            changed = {**params, name: value}
            return (r * looped(changed.pop("x", x), changed, options)).sum()

        expected = complex_step(along, x if name == "x" else params[name], direction)
        scale = np.abs(grad).max() * np.sqrt(grad.size) + 1e-3
        assert abs((grad * direction).sum() - expected) < 1e-10 * scale, name


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("n", [1, 2, 4, 5, 8, 9])
def test_sizes_around_the_edges_of_chunks(variant, n, backend, rng):
    """One token, fewer than a chunk, whole chunks, and a last chunk of one token."""
    x, params, options = draw_layer(rng, variant, n=n)
    for strict in (False, True):
        how = options | {"chunk_size": 4, "poly_order": 2, "strict_causal": strict}
        out = attention.context_pulse_attention(x, params, **how, backend=backend)
        assert relative(out, looped(x, params, how).real) < 1e-12
        dx, _ = attention.context_pulse_attention_vjp(x, params, out, **how, backend=backend)
        h = 1e-6
        ahead, behind = (
            (attention.context_pulse_attention(x + step * dx, params, **how, backend=backend) * out).sum()
            for step in (h, -h)
        )
        slope = (dx * dx).sum()
        assert abs((ahead - behind) / (2 * h) - slope) < 1e-6 * max(1.0, slope)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)])
def test_nothing_gives_nothing(variant, shape, backend, rng):
    x, params, options = draw_layer(rng, variant)
    x = np.zeros((*shape, x.shape[2]))
    out = attention.context_pulse_attention(x, params, **options, backend=backend)
    assert out.shape[:2] == shape
    dx, grads = attention.context_pulse_attention_vjp(x, params, out, **options, backend=backend)
    assert dx.shape == x.shape and not any(grad.any() for grad in grads.values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_strides_byte_orders_and_read_only_arrays(variant, backend, rng):
    x, params, options = draw_layer(rng, variant)
    width = 8 if variant in WITH_HEADS else 6
    options |= {"backend": backend}
    expected = attention.context_pulse_attention_vjp(x, params, x[..., :width], **options)
    strange = {name: np.asfortranarray(value) for name, value in params.items()}
    for value in strange.values():
        value.flags.writeable = False
    wide = np.zeros((*x.shape[:2], 2 * x.shape[2]))[..., ::2]
    wide[...] = x
    found = attention.context_pulse_attention_vjp(wide.astype(">f8"), strange, wide[..., :width], **options)
    assert same_bits(found[0], expected[0])
    assert all(same_bits(found[1][name], expected[1][name]) for name in params)


@pytest.mark.parametrize("variant", VARIANTS)
def test_threads_change_nothing(variant, backend, rng):
    x, params, options = draw_layer(rng, variant, n=40, batch=5, width=16)
    results = []
    for workers in (1, 2, 5):
        how = options | {"backend": backend, "workers": workers, "chunk_size": 4}
        out = attention.context_pulse_attention(x, params, **how)
        results.append([out, *attention.context_pulse_attention_vjp(x, params, out, **how)])
    for out, dx, grads in results[1:]:
        assert same_bits(out, results[0][0]) and same_bits(dx, results[0][1])
        assert all(same_bits(grads[name], results[0][2][name]) for name in grads)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("variant", VARIANTS)
def test_backends_agree_on_long_sequences(variant, dtype, rng):
    """100 tokens and heads wider than a vector, odd in every other respect."""
    for name in ATTENTION_BACKENDS:
        require(name)
    heads = 3 if variant in WITH_HEADS else 1
    shapes = parameter_shapes(variant, 66, heads, 22)
    params = {name: (rng.normal(size=shape) / 8).astype(dtype) for name, shape in shapes.items()}
    x = rng.normal(size=(2, 101, 66)).astype(dtype)
    tolerance = 1e-11 if dtype == np.float64 else 2e-4
    for options in ({}, {"strict_causal": True}):
        how = {"variant": variant, "n_heads": heads, "chunk_size": 20, "poly_order": 2} | options
        results = {}
        for name in ATTENTION_BACKENDS:
            out = attention.context_pulse_attention(x, params, **how, backend=name)
            results[name] = [out, *attention.context_pulse_attention_vjp(x, params, out, **how, backend=name)]
        out, dx, grads = results.pop("numpy")
        for other in results.values():
            assert relative(other[0], out) < tolerance and relative(other[1], dx) < tolerance
            for name, grad in other[2].items():
                assert relative(grad, grads[name], 1e-3 * float(np.abs(dx).max())) < 10 * tolerance, name


# ---------------------------------------------------------------- what the corrected forms are for


@given(seed=st.integers(0, 2**31), place=st.integers(1, 10), options=st.sampled_from(CORRECTED))
def test_no_output_depends_on_a_later_token(seed, place, options):
    rng = np.random.default_rng(seed)
    x, params, how = draw_layer(rng, options["variant"], n=11, batch=1)
    how |= {"chunk_size": 4} | options
    out = attention.context_pulse_attention(x, params, **how)
    changed = x.copy()
    changed[:, place:] = rng.normal(size=changed[:, place:].shape)
    other = attention.context_pulse_attention(changed, params, **how)
    assert relative(other[:, :place], out[:, :place]) < 1e-13
    assert relative(other[:, place:], out[:, place:]) > 1e-6
    alone = attention.context_pulse_attention(x[:, :place], params, **how)
    assert relative(alone, out[:, :place]) < 1e-13
    r = np.zeros_like(out)
    r[:, :place] = rng.normal(size=r[:, :place].shape)
    dx, _ = attention.context_pulse_attention_vjp(x, params, r, **how)
    assert np.abs(dx[:, place:]).max() <= 1e-13 * np.abs(dx).max()


@pytest.mark.parametrize("variant", ["parseval", "alpert"])
def test_as_published_outputs_do_depend_on_later_tokens(variant, rng):
    x, params, how = draw_layer(rng, variant, n=12)
    how |= {"chunk_size": 4}
    out = attention.context_pulse_attention(x, params, **how)
    x[:, -1] += 1.0
    changed = attention.context_pulse_attention(x, params, **how)
    place = 0 if variant == "parseval" else 8  # the first token of the last chunk
    assert np.abs(changed - out)[:, place].max() > 1e-6


@pytest.mark.parametrize("variant", WITH_WEDGE)
def test_a_sink_of_minus_infinity_is_none(variant, backend, rng):
    """It is the limit of sinks far below all scores, and passes no gradient on."""
    x, params, how = draw_layer(rng, variant)
    bare = params | {"sink": np.full_like(params["sink"], -np.inf)}
    far = params | {"sink": np.full_like(params["sink"], -100.0)}
    out, other = (attention.context_pulse_attention(x, p, **how, backend=backend) for p in (bare, far))
    assert relative(out, other) < 1e-12
    dx, grads = attention.context_pulse_attention_vjp(x, bare, out, **how, backend=backend)
    expected, _ = attention.context_pulse_attention_vjp(x, far, out, **how, backend=backend)
    assert relative(dx, expected) < 1e-11
    assert not grads["sink"].any() and not grads["v_null"].any()
    with pytest.raises(ValueError, match=r"params\['sink'\] must be finite or -inf, got inf at index 0"):
        attention.context_pulse_attention(x, params | {"sink": -bare["sink"]}, **how, backend=backend)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("variant", WITH_WEDGE)
def test_the_wedge_at_its_zero_start(variant, strict, backend, rng):
    """As published it has no gradient there behind the rotation; the relative one always has."""
    x, params, how = draw_layer(rng, variant)
    params["A"] = np.zeros_like(params["A"])
    how |= {"chunk_size": 3, "backend": backend, "strict_causal": strict}
    sizes = {}
    for wedge in ("published", "relative"):
        out = attention.context_pulse_attention(x, params, **how, wedge=wedge)
        _, grads = attention.context_pulse_attention_vjp(x, params, out, **how, wedge=wedge)
        sizes[wedge] = np.abs(grads["A"]).max()
    assert sizes["relative"] > 1e-3
    assert sizes["published"] > 1e-3 if variant == "alpert" else sizes["published"] < 1e-13


def test_scores_of_the_relative_wedge_depend_on_the_distance_alone(rng):
    tokens, a = rng.normal(size=(1, 1, 2, 1, 6)), rng.normal(size=(1, 6, 6))
    rows = [np.repeat(token, 9, axis=1) for token in np.moveaxis(tokens, 2, 0)]
    q, k = pulse.rotary_embedding(pulse.wedge(rows[0], a)), pulse.rotary_embedding(rows[1])
    scores = q[0, :, 0] @ k[0, :, 0].T
    for distance in range(-8, 9):
        diagonal = np.diagonal(scores, distance)
        assert np.ptp(diagonal) < 1e-12 * np.abs(scores).max()


def test_strict_alpert_recalls_as_published_at_the_end_of_a_chunk(rng):
    q, k = rng.normal(size=(2, 1, 12, 1, 4))
    published = pulse.moment_resonance(q, k, chunk_size=4, order=2)
    strict = pulse.moment_resonance(q, k, chunk_size=4, order=2, strict_causal=True)
    assert relative(strict[:, :8], published[:, :8]) < 1e-14  # there is no choice among one chunk
    assert relative(strict[:, 11], published[:, 11]) < 1e-14
    assert relative(strict[:, 8:11], published[:, 8:11]) > 1e-3


# ---------------------------------------------------------------- token by token


@pytest.mark.parametrize("options", CORRECTED, ids=str)
def test_a_stream_gives_the_same(options, backend, rng):
    x, params, how = draw_layer(rng, options["variant"], n=19, biases=True)
    how |= {"chunk_size": 4, "backend": backend} | options
    expected = attention.context_pulse_attention(x, params, **how)
    state = attention.stream(params, batch=2, **how)
    for t in range(19):
        if t == 9:
            state = pickle.loads(pickle.dumps(state))
        other = copy.deepcopy(state)
        attention.step(other, x[:, t] + 1.0)  # what another does with a copy does not show
        found = attention.step(state, x[:, t])
        assert np.abs(found - expected[:, t]).max() < 1e-10 * np.abs(expected).max()
    assert state.seen == 19


def test_a_stream_in_single_precision(rng):
    x, params, how = draw_layer(rng, "parseval", n=9, dtype=np.float32)
    expected = attention.context_pulse_attention(x, params, **how, strict_causal=True)
    state = attention.stream(params, batch=2, **how, strict_causal=True)
    found = np.stack([attention.step(state, x[:, t]) for t in range(9)], axis=1)
    assert found.dtype == np.float32 and relative(found, expected) < 1e-5


@pytest.mark.parametrize("variant", ["parseval", "alpert"])
def test_what_looks_ahead_is_no_stream(variant, rng):
    _, params, how = draw_layer(rng, variant)
    with pytest.raises(ValueError, match=f"strict_causal must be True to take variant '{variant}' token by"):
        attention.stream(params, **how)


def test_refusals_of_streams(rng):
    x, params, how = draw_layer(rng, "leaky")
    with pytest.raises(ValueError, match="params must be a dictionary with a matrix W_Q"):
        attention.stream([], **how)
    with pytest.raises(ValueError, match="params must be a dictionary with a matrix W_Q"):
        attention.stream({"W_Q": np.zeros(3)}, **how)
    with pytest.raises(ValueError, match="params must have an entry 'W_V'"):
        attention.stream({name: params[name] for name in ("W_Q", "W_K")}, **how)
    with pytest.raises(ValueError, match="batch must be an integer >= 1"):
        attention.stream(params, batch=0, **how)
    state = attention.stream(params, batch=2, **how)
    with pytest.raises(ValueError, match=r"x must have shape \(2, 8\)"):
        attention.step(state, x)
    with pytest.raises(ValueError, match="state must come from stream, got an object of type dict"):
        attention.step({}, x[:, 0])


# ---------------------------------------------------------------- parts


def draw_tokens(rng, *, n=7, heads=2, width=4, dtype=np.float64):
    return rng.normal(size=(2, n, heads, width)).astype(dtype)


def by_head(function, *arrays):
    """Apply a function of (N, d) to each sample and head."""
    result = np.zeros(arrays[0].shape, complex)
    for b in range(len(result)):
        for h in range(result.shape[2]):
            result[b, :, h] = function(*(array[b, :, h] for array in arrays))
    return result


def check_part(part, part_vjp, by_loops, arrays, rng):
    """Values by loops, and derivatives along random directions; `by_loops` takes the same arrays."""
    out = part(*arrays)
    assert relative(out, by_loops(*arrays).real) < 1e-13
    r = rng.normal(size=out.shape)
    for place, grad in enumerate(part_vjp(*arrays, r)):
        assert grad.shape == arrays[place].shape
        direction = rng.normal(size=grad.shape)

        def along(value, place=place):
            changed = [*arrays[:place], value, *arrays[place + 1 :]]
            return (r * by_loops(*changed)).sum()

        expected = complex_step(along, arrays[place], direction)
        assert abs((grad * direction).sum() - expected) < 1e-11 * (1.0 + abs(expected))


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99, 1.0])
def test_leaky_scan(decay, backend, rng):
    x, g, r = (draw_tokens(rng) for _ in range(3))

    def by_loops(x, g, decay=decay):
        return by_head(lambda u: oracle.leaky_scan(u, decay), x * oracle.sigmoid(g))

    check_part(
        lambda x, g: pulse.leaky_scan(x, decay, gate=g, backend=backend),
        lambda x, g, r: pulse.leaky_scan_vjp(x, decay, r, gate=g, backend=backend)[::2],
        by_loops,
        [x, g],
        rng,
    )
    plain = pulse.leaky_scan(x, decay, backend=backend)
    assert relative(plain, by_head(lambda u: oracle.leaky_scan(u, decay), x).real) < 1e-14
    _, ddecay, none = pulse.leaky_scan_vjp(x, decay, r, backend=backend)
    expected = (r * by_head(lambda u: oracle.leaky_scan(u, decay + 1j * STEP), x)).sum().imag / STEP
    assert none is None and abs(ddecay - expected) < 1e-12 * (1.0 + abs(expected))


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 37), (2, 70, 300), (1, 600, 8), (2, 3, 2, 5)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_leaky_scan_of_any_shape(shape, dtype, backend, rng):
    """Against the closed form sum_s decay^(t-s) (1 - decay) x_s."""
    x = rng.normal(size=shape).astype(dtype)
    age = np.arange(shape[1])[:, None] - np.arange(shape[1])
    weights = np.where(age >= 0, 0.1 * 0.9 ** np.maximum(age, 0), 0.0)
    tolerance = 1e-13 if dtype == np.float64 else 2e-6
    expected = np.einsum("ts,bs...->bt...", weights, x.astype(float))
    assert relative(pulse.leaky_scan(x, 0.9, backend=backend), expected) < tolerance
    expected = np.einsum("ts,bt...->bs...", weights, x.astype(float))
    assert relative(pulse.leaky_scan_vjp(x, 0.9, x, backend=backend)[0], expected) < tolerance


def test_a_large_scan_goes_past_the_caches(backend, rng):
    """Larger than 8 MB, where other stores are used; and from an address that they cannot take."""
    room = np.empty(17 * 4096 * 16 + 1, np.float64)
    room[:] = rng.normal(size=room.size)
    for first in (0, 1):
        x = room[first : first + 17 * 4096 * 16].reshape(17, 4096, 16)
        c = pulse.leaky_scan(x, 0.9, backend=backend)
        step = 0.9 * c[:, :-1] + (1.0 - 0.9) * x[:, 1:]
        assert relative(c[:, 1:], step) < 1e-15


def test_rotary_embedding(rng):
    x = draw_tokens(rng, n=9, width=6)
    check_part(
        pulse.rotary_embedding,
        lambda x, r: [pulse.rotary_embedding_vjp(r)],
        lambda x: by_head(oracle.rotary, x),
        [x],
        rng,
    )
    assert np.abs(np.linalg.norm(pulse.rotary_embedding(x), axis=3) - np.linalg.norm(x, axis=3)).max() < 1e-14


def test_rotary_tables_keep_single_precision_far_out():
    """Angles are taken in double precision and rounded last."""
    cosine, sine = pulse.angles(100_000, 4, 8, np.dtype(np.float32))
    exact_cosine, exact_sine = pulse.angles(100_000, 4, 8, np.dtype(np.float64))
    assert cosine.dtype == np.float32
    assert max(np.abs(cosine - exact_cosine).max(), np.abs(sine - exact_sine).max()) < 6e-8


def test_wedge(rng):
    x, a = draw_tokens(rng), rng.normal(size=(2, 4, 4))

    def by_loops(x, a):
        result = np.zeros(x.shape, complex)
        for b in range(2):
            for h in range(2):
                result[b, :, h] = oracle.wedge(x[b, :, h], a[h])
        return result

    check_part(pulse.wedge, pulse.wedge_vjp, by_loops, [x, a], rng)


@pytest.mark.parametrize("over", statistics.OVER)
def test_symbiotic_norm(over, rng):
    q, k = 3.0 + draw_tokens(rng), draw_tokens(rng)

    def by_loops(q, k):
        both = [oracle.normalise(*(a.swapaxes(0, 1) for a in pair), over) for pair in zip(q, k, strict=True)]
        return np.array(both).swapaxes(2, 3)

    check_part(
        lambda q, k: np.stack(pulse.symbiotic_norm(q, k, over=over), axis=1),
        lambda q, k, r: pulse.symbiotic_norm_vjp(q, k, r[:, 0], r[:, 1], over=over),
        by_loops,
        [q, k],
        rng,
    )


def test_running_statistics_do_not_cancel(rng):
    """A mean 10^7 times the deviation costs 7 digits, not 14."""
    q, k = (1e7 + draw_tokens(rng, n=300) for _ in range(2))
    first = pulse.symbiotic_norm(q, k, over="running")
    second = pulse.symbiotic_norm(q - 1e7, k - 1e7, over="running")
    assert max(relative(*pair) for pair in zip(first, second, strict=True)) < 1e-7


def test_what_does_not_vary_has_no_deviation_to_learn_from(backend, rng):
    """Equal numbers in the keys: gradients stay finite."""
    x, params, how = draw_layer(rng, "chunked")
    params["W_K"] = np.zeros_like(params["W_K"])
    out = attention.context_pulse_attention(x, params, **how, backend=backend)
    dx, grads = attention.context_pulse_attention_vjp(x, params, out, **how, backend=backend)
    assert all(np.isfinite(array).all() for array in (out, dx, *grads.values()))


@pytest.mark.parametrize("n, size", [(1, 4), (3, 4), (4, 4), (5, 4), (9, 4), (6, 1), (20, 3), (40, 17)])
def test_resonances(n, size, backend, rng):
    u, k = draw_tokens(rng, n=n, width=3), draw_tokens(rng, n=n, width=3)
    how = {"chunk_size": size, "scale": 0.7, "backend": backend}
    check_part(
        lambda u, k: pulse.chunked_resonance(u, k, **how),
        lambda u, k, r: pulse.chunked_resonance_vjp(u, k, r, **how),
        lambda u, k: by_head(lambda u, k: oracle.chunked(u, k, size, 0.7), u, k),
        [0.3 * u, k],
        rng,
    )
    for order in (0, 1, 2):
        for strict in (False, True):
            also = how | {"order": order, "strict_causal": strict}
            check_part(
                lambda u, k, also=also: pulse.moment_resonance(u, k, **also),
                lambda u, k, r, also=also: pulse.moment_resonance_vjp(u, k, r, **also),
                lambda u, k, order=order, strict=strict: by_head(
                    lambda u, k: oracle.moments(u, k, size, order, 0.7, strict), u, k
                ),
                [0.3 * u, k],
                rng,
            )


@pytest.mark.parametrize("length", [1, 2, 3, 16])
def test_moment_basis(length):
    for order in range(4):
        found = pulse.moment_basis(length, order)
        assert relative(found, oracle.basis(length, min(order, 2))) < 1e-15
    assert np.abs((found**2).sum(axis=0) - 1.0).max() < 1e-15
    assert pulse.moment_basis(length, 2, np.float32).dtype == np.float32


def test_moments_of_a_basis_of_two_points_repeat(rng):
    basis = pulse.moment_basis(2, 2)
    assert same_bits(basis[:, 0], basis[:, 2])
    assert abs(pulse.moment_basis(16, 2)[:, 0] @ pulse.moment_basis(16, 2)[:, 2] - 0.13) < 5e-3


@pytest.mark.parametrize("variant", ["parseval", "chunked", "alpert"])
def test_memory_is_linear_in_the_tokens(variant, rng):
    require("cython")
    peaks = []
    for n in (1000, 4000):
        x, params, how = draw_layer(rng, variant, n=n, batch=1)
        x = 0.01 * x
        tracemalloc.start()
        out = attention.context_pulse_attention(x, params, **how, chunk_size=100, backend="cython")
        attention.context_pulse_attention_vjp(x, params, out, **how, chunk_size=100, backend="cython")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 5 * peaks[0] < 5 * 4000 * 8 * 40 * 8


# ---------------------------------------------------------------- between the projections


def test_states_can_be_used_again_and_pickled(backend, rng):
    q, k, v, g = (draw_tokens(rng) for _ in range(4))
    extras = {"gate": g, "A": rng.normal(size=(2, 4, 4)), "sink": rng.normal(size=2)}
    extras["v_null"] = rng.normal(size=(2, 4))
    out, state = attention.pulse_attention(
        q, k, v, **extras, variant="chunked", chunk_size=3, backend=backend
    )
    first = attention.pulse_attention_vjp(state, out)
    assert first.keys() == {"q", "k", "v", *extras}
    for other in (state, pickle.loads(pickle.dumps(state))):
        again = attention.pulse_attention_vjp(other, out)
        assert all(same_bits(first[name], again[name]) for name in first)


def test_states_that_overflow_are_refused(backend):
    k = np.ones((1, 200, 1, 2))
    q = k * np.array([1e300, -1e300])
    extras = {"A": np.zeros((1, 2, 2)), "sink": np.zeros(1), "v_null": np.zeros((1, 2))}
    for variant, more in (("chunked", {"gate": k}), ("alpert", {})):
        with pytest.raises(ValueError, match=f"that the states of variant '{variant}' overflow"):
            attention.pulse_attention(
                q, k, k, variant=variant, chunk_size=1, **extras, **more, backend=backend
            )


@pytest.mark.parametrize("variant, dtype, size", [("standard", "f4", 1e19), ("leaky", "f8", 1e155)])
def test_scores_that_overflow_are_refused(variant, dtype, size, backend, rng):
    x = (size * rng.normal(size=(1, 4, 4))).astype(dtype)
    params = {name: np.eye(4, dtype=dtype) for name in ("W_Q", "W_K", "W_V")}
    with (
        np.errstate(all="ignore"),
        pytest.raises(ValueError, match="must not be so large that scores overflow"),
    ):
        attention.context_pulse_attention(x, params, variant=variant, backend=backend)


def follow(state, tokens):
    with np.errstate(all="ignore"):
        return [attention.step(state, x) for x in tokens]


def test_streams_refuse_what_overflows():
    """States double from chunk to chunk."""
    params = {name: np.ones(shape) for name, shape in parameter_shapes("chunked", 2, 1, 2).items()}
    state = attention.stream(params, variant="chunked", chunk_size=1)
    with pytest.raises(ValueError, match="overflow"):
        follow(state, np.ones((1100, 1, 2)))
    state = attention.stream({name: np.eye(2) for name in ("W_Q", "W_K", "W_V")}, variant="leaky")
    with pytest.raises(ValueError, match="must not be so large that scores overflow"):
        follow(state, np.full((2, 1, 2), 1e160))
    params |= {"W_Q": 1e160 * np.eye(2), "W_K": 1e160 * np.eye(2), "gate_proj.weight": np.zeros((2, 2))}
    state = attention.stream(params, variant="chunked", chunk_size=4)
    with pytest.raises(ValueError, match="that the states of variant 'chunked' overflow"):
        follow(state, np.array([[[1.0, 2.0]]]))


def test_the_result_is_not_what_the_state_keeps(rng):
    q, k, v, grad = rng.normal(size=(4, 1, 5, 1, 4))
    out, state = attention.pulse_attention(q, k, v)
    before = attention.pulse_attention_vjp(state, grad)
    out += 1.0
    after = attention.pulse_attention_vjp(state, grad)
    assert all(same_bits(before[name], after[name]) for name in "qkv")


def test_large_states_keep_single_precision(backend, rng):
    """Squares of 10^25 have no place in float32."""
    x, params, how = draw_layer(rng, "chunked", dtype=np.float32)
    large = {**params, "W_Q": params["W_Q"] * np.float32(1e25), "W_K": params["W_K"] * np.float32(1e-20)}
    out = attention.context_pulse_attention(x, large, **how, chunk_size=3, backend=backend)
    wide = {name: value.astype(float) for name, value in large.items()}
    expected = attention.context_pulse_attention(x.astype(float), wide, **how, chunk_size=3, backend=backend)
    assert relative(out, expected) < 1e-5
    dx, grads = attention.context_pulse_attention_vjp(x, large, out, **how, chunk_size=3, backend=backend)
    assert all(np.isfinite(array).all() for array in (dx, *grads.values()))


# ---------------------------------------------------------------- refusals

ONE = np.ones((1, 3, 2))
LEAKY = {name: np.ones((2, 2)) for name in ("W_Q", "W_K", "W_V")}
PARSEVAL = {name: np.ones(shape) for name, shape in parameter_shapes("parseval", 2, 1, 2).items()}
CHUNKED = {name: np.ones(shape) for name, shape in parameter_shapes("chunked", 2, 1, 2).items()}

LAYER_REFUSALS = [
    ({"x": np.ones((3, 2))}, {}, r"x must have shape \(B, N, d\), got \(3, 2\)"),
    ({"x": np.full((1, 3, 2), np.nan)}, {}, "x must be finite"),
    ({"x": np.ones((1, 3, 2), np.float32)}, {}, r"params\['W_Q'\] must have dtype float32, got float64"),
    ({"x": np.ones((1, 3, 2), int)}, {}, "x must have dtype float32 or float64"),
    ({"variant": "v1"}, {}, "variant must be one of 'standard', 'leaky', .*, got 'v1'"),
    ({"n_heads": 2}, {}, "n_heads must be 1 for variant 'leaky', got 2"),
    ({"n_heads": 0}, {}, "n_heads must be an integer >= 1"),
    (
        {"variant": "chunked", "n_heads": 3, "params": CHUNKED},
        {},
        "n_heads must divide the model width d = 2",
    ),
    ({"variant": "chunked", "n_heads": 2, "params": CHUNKED}, {}, "width of a head must be even .*, got 1"),
    ({"chunk_size": 0}, {}, "chunk_size must be an integer >= 1"),
    ({"poly_order": -1}, {}, "poly_order must be an integer >= 0"),
    ({"poly_order": 1.0}, {}, "poly_order must be an integer"),
    ({"decay": -0.1}, {}, "decay must be >= 0"),
    ({"decay": 1.1}, {}, "decay must be <= 1, got 1.1"),
    ({"decay": "x"}, {}, "decay must be a real number"),
    ({"mask": 1}, {}, "mask must be True or False"),
    ({"strict_causal": None}, {}, "strict_causal must be True or False"),
    ({"strict_causal": True, "mask": False}, {}, "strict_causal must be False without a mask"),
    ({"wedge": "other"}, {}, "wedge must be one of 'published', 'relative'"),
    ({"wedge": "relative"}, {}, "wedge must be 'published' for variant 'leaky', which has none"),
    ({"rotary": False}, {}, "rotary must be True for variant 'leaky', which has none, got False"),
    ({"normalise": False}, {}, "normalise must be True for variant 'leaky', which has none, got False"),
    ({"rotary": 1}, {}, "rotary must be True or False"),
    ({"workers": 0}, {}, "workers must be an integer >= 1"),
    ({"backend": "rust"}, {}, "backend must be one of"),
    ({"params": [1]}, {}, "params must be a dictionary of arrays"),
    ({}, {"W_K": None}, "params must have an entry 'W_K'"),
    ({}, {"W_Q": None}, "params must have an entry 'W_Q'"),
    ({}, {"W_O": np.ones((2, 2))}, "params must have no entry but W_Q, W_K, W_V, b_v, got 'W_O'"),
    ({}, {"W_V": np.ones((4, 2))}, r"params\['W_V'\] must have shape \(2, 2\), got \(4, 2\)"),
    ({}, {"W_V": np.full((2, 2), np.inf)}, r"params\['W_V'\] must be finite"),
    ({}, {"b_o": np.ones(2)}, "params must have no entry but"),
    (
        {"variant": "parseval", "params": PARSEVAL | {"sink": np.ones((1, 1))}},
        {},
        r"params\['sink'\] must have",
    ),
    ({"variant": "parseval", "params": CHUNKED}, {}, "params must have no entry but .* got 'W_O'"),
]


@pytest.mark.parametrize("change, entries, message", LAYER_REFUSALS)
def test_refusals_of_the_layer(change, entries, message):
    arguments = {"x": ONE, "params": LEAKY, "variant": "leaky"} | change
    if entries:
        arguments["params"] = {k: v for k, v in (LEAKY | entries).items() if v is not None}
    with pytest.raises(ValueError, match=message):
        attention.context_pulse_attention(**arguments)
    with pytest.raises(ValueError, match=message):
        attention.context_pulse_attention_vjp(**arguments, grad_out=ONE)


def test_an_odd_head_cannot_be_rotated():
    shapes = parameter_shapes("parseval", 2, 1, 3)
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match="width of a head must be even for variant 'parseval', got 3"):
        attention.context_pulse_attention(ONE, params, variant="parseval")


def test_refusals_of_the_reverse_pass():
    with pytest.raises(ValueError, match="grad_out must have shape"):
        attention.context_pulse_attention_vjp(ONE, LEAKY, ONE[:, :2], variant="leaky")
    with pytest.raises(ValueError, match="grad_out must have dtype float64, got float32"):
        attention.context_pulse_attention_vjp(ONE, LEAKY, ONE.astype(np.float32), variant="leaky")


T = np.ones((1, 3, 1, 2))
EXTRAS = {"gate": T, "A": np.zeros((1, 2, 2)), "sink": np.zeros(1), "v_null": np.zeros((1, 2))}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"q": T[0]}, r"q must have shape \(B, N, H, d\)"),
        ({"q": T[..., :0]}, r"q must have shape \(B, N, H, d\) with d >= 1"),
        ({"q": T * np.inf}, "q must be finite"),
        ({"k": T[:, :2]}, "k must have shape"),
        ({"v": T.astype(np.float32)}, "v must have dtype float64"),
        ({"gate": None}, "gate must be given for variant 'chunked', got None"),
        ({"sink": np.zeros((1, 1))}, r"sink must have shape \(1,\)"),
        ({"A": np.zeros((2, 2))}, r"A must have shape \(1, 2, 2\)"),
        (
            {"decay_logit": np.zeros(1)},
            "decay_logit must be None for variant 'chunked', got ndarray of shape",
        ),
        ({"variant": "parseval", "decay_logit": np.zeros(2)}, r"decay_logit must have shape \(1,\)"),
    ],
)
def test_refusals_between_the_projections(change, message):
    arguments = {"q": T, "k": T, "v": T, "variant": "chunked"} | EXTRAS | change
    with pytest.raises(ValueError, match=message):
        attention.pulse_attention(**arguments)


def test_refusals_of_states():
    with pytest.raises(
        ValueError, match="state must come from pulse_attention, got an object of type NoneType"
    ):
        attention.pulse_attention_vjp(None, T)
    _, state = attention.pulse_attention(T, T, T)
    with pytest.raises(ValueError, match="grad_out must have shape"):
        attention.pulse_attention_vjp(state, T[0])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: pulse.leaky_scan(T[0, :, 0], 0.5), r"x must have shape \(B, N, ...\)"),
        (lambda: pulse.leaky_scan(T, 2.0), "decay must be <= 1"),
        (lambda: pulse.leaky_scan(T, 0.5, gate=T[:, :1]), "gate must have shape"),
        (lambda: pulse.leaky_scan(T * np.nan, 0.5), "x must be finite"),
        (lambda: pulse.leaky_scan_vjp(T, 0.5, T[0]), "grad_out must have shape"),
        (lambda: pulse.rotary_embedding(T[..., :1]), "x must have an even number of columns, got 1"),
        (lambda: pulse.rotary_embedding(T[0]), r"x must have shape \(B, N, H, d\)"),
        (lambda: pulse.rotary_embedding_vjp(T[..., :1]), "grad_out must have an even number"),
        (lambda: pulse.wedge(T, np.zeros((2, 2, 2))), r"a must have shape \(1, 2, 2\)"),
        (lambda: pulse.symbiotic_norm(T, T, over="all"), "over must be one of 'point', 'sample', 'running'"),
        (lambda: pulse.symbiotic_norm(T[..., :1], T[..., :1]), "q must have two columns or more"),
        (lambda: pulse.symbiotic_norm(T, T[0]), "k must have shape"),
        (lambda: pulse.symbiotic_norm_vjp(T, T, T, T[0]), "grad_k must have shape"),
        (lambda: pulse.chunked_resonance(T, T, chunk_size=0), "chunk_size must be an integer >= 1"),
        (lambda: pulse.chunked_resonance(T, T, scale=np.inf), "scale must be finite"),
        (lambda: pulse.chunked_resonance_vjp(T, T, T[0]), "grad_out must have shape"),
        (lambda: pulse.moment_resonance(T, T, order=-1), "order must be an integer >= 0"),
        (lambda: pulse.moment_resonance(T, T, strict_causal=1), "strict_causal must be True or False"),
        (lambda: pulse.moment_resonance(T[0], T), r"q must have shape \(B, N, H, d\)"),
        (lambda: pulse.moment_basis(0), "length must be an integer >= 1"),
    ],
)
def test_refusals_of_parts(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_parts_of_nothing_are_nothing(backend):
    empty = np.zeros((0, 3, 1, 2))
    assert pulse.leaky_scan(empty, 0.5, backend=backend).shape == empty.shape
    dx, ddecay, dgate = pulse.leaky_scan_vjp(empty, 0.5, empty, gate=empty, backend=backend)
    assert dx.shape == dgate.shape == empty.shape and ddecay == 0.0
    assert pulse.leaky_scan_vjp(empty, 0.5, empty, backend=backend)[2] is None
    assert pulse.chunked_resonance(empty, empty, backend=backend).shape == empty.shape
    du, dk = pulse.moment_resonance_vjp(empty, empty, empty, backend=backend)
    assert du.shape == dk.shape == empty.shape


@pytest.mark.parametrize("name", ["context_pulse_attention", "pulse_attention"])
def test_functions_can_be_pickled(name):
    for function in (getattr(attention, name), getattr(attention, f"{name}_vjp")):
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("module", [pulse, streaming], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0
