"""The layers: stored vectors, initial values, positions, and what users do with modules."""

from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path

import attention_cases as samples
import numpy as np
import pytest
import torch
from torch.func import functional_call

from spo_fast import attention
from spo_fast.torch import CausalSelfAttention, OscillatorAttention
from spo_fast.torch.eager import rotate

GOLDEN = sorted((Path(__file__).resolve().parent.parent / "golden" / "attention").glob("osc_*.npz"))
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["kernel", "eager"])
OPTIONS = [
    {},
    {"steps": 0},
    {"static_query": True, "bias": True},
    {"separate_qk": True, "steps": 2, "dt": 0.5},
    {"value_consensus": 0.25, "pos": "low", "keep": "sqrt"},
    {"lag": False, "pos": "none"},
]


def stored(path, implementation):
    """A layer with the parameters of a file, the file, and its description."""
    data = np.load(path)
    meta = json.loads(str(data["meta"]))
    options = dict(meta["options"])
    layer = OscillatorAttention(
        meta["d_model"],
        options.pop("n_heads"),
        steps=options.pop("T"),
        freq_base=options.pop("base"),
        score_scale=1.0,
        dtype=torch.float64,
        implementation=implementation,
        **options,
    )
    parameters = {name: torch.from_numpy(data[f"p.{name}"]) for name in meta["params"]}
    layer.load_state_dict(parameters)
    return layer, data, meta


@IMPLEMENTATIONS
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_stored_vectors(path, implementation):
    layer, data, meta = stored(path, implementation)
    samples.check_stored(layer, data, meta["params"])


def test_there_are_stored_vectors():
    assert len(GOLDEN) == 9


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_of_every_parameter_are_those_of_central_differences(options):
    torch.manual_seed(0)
    layer = OscillatorAttention(4, 1, dtype=torch.float64, **options)
    names, values = zip(*layer.named_parameters(), strict=True)
    x = samples.draw(1, 3, 4)

    def function(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(function, (x, *values))


@IMPLEMENTATIONS
def test_gradients_of_softmax_attention_are_those_of_central_differences(implementation):
    torch.manual_seed(0)
    layer = CausalSelfAttention(4, 1, bias=True, dtype=torch.float64, implementation=implementation)
    names, values = zip(*layer.named_parameters(), strict=True)

    def function(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(function, (samples.draw(1, 3, 4), *values))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_state_dict_is_the_params_of_the_function_of_arrays(options):
    layer = OscillatorAttention(12, 3, dtype=torch.float64, **options)
    x = samples.draw(2, 5, 12, grad=False)
    options = {name: value for name, value in options.items() if name not in ("bias", "keep")}
    params = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
    expected = attention.oscillator_attention(
        x.numpy(), params, n_heads=3, score_scale=layer.score_scale, **options
    )
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "options, extras", [({}, 136), ({"lag": False}, 72), ({"separate_qk": True}, 72), ({"steps": 0}, 136)]
)
def test_numbers_of_parameters(options, extras):
    layer = OscillatorAttention(64, 4, bias=True, **options)
    plain = CausalSelfAttention(64, 4, bias=True)
    assert sum(p.numel() for p in plain.parameters()) == 4 * 64 * 64 + 2 * 64 == 16_512
    assert sum(p.numel() for p in layer.parameters()) == 16_512 + extras


def test_initial_values():
    torch.manual_seed(1)
    layer = OscillatorAttention(64, 4, bias=True)
    assert layer.W_c.dtype == torch.float32
    assert layer.score_scale == 1 / 16
    assert (layer.w == 1.0).all() and (layer.beta == 4.0).all() and (layer.kappa == 0.5).all()
    assert abs(layer.alpha.std().item() - 0.1) < 0.03
    for name in ("W_c", "W_s", "W_v", "W_o", "b_v", "b_o"):
        values = getattr(layer, name)
        assert 0.1 < values.abs().max() <= 1 / 8
        assert abs(values.std().item() - 1 / 8 / math.sqrt(3)) < 0.02


def test_a_seed_gives_the_same_layer_again():
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(OscillatorAttention(8, 2))
    assert all(torch.equal(a, b) for a, b in zip(*(x.parameters() for x in layers), strict=True))


@pytest.mark.parametrize("make", [OscillatorAttention, CausalSelfAttention])
def test_later_tokens_do_not_show(make):
    layer = make(8, 2)
    x = samples.draw(1, 6, 8, dtype=torch.float32, grad=False)
    changed = x.clone()
    changed[:, 4:] += 1.0
    assert torch.equal(layer(x)[:, :4], layer(changed)[:, :4])


@pytest.mark.parametrize("make", [OscillatorAttention, CausalSelfAttention])
def test_modules_can_be_copied_pickled_and_loaded(make):
    layer = make(8, 2)
    x = samples.draw(1, 3, 8, dtype=torch.float32, grad=False)
    fresh = make(8, 2)
    fresh.load_state_dict(layer.state_dict())
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fresh):
        assert torch.equal(other(x), layer(x))
        assert all(a is not b for a, b in zip(other.parameters(), layer.parameters(), strict=True))
    assert "n_heads=2" in repr(layer)


def test_half_precision_is_refused_by_the_kernel_and_works_eagerly():
    x = samples.draw(1, 300, 8, dtype=torch.float32, grad=False)
    for make in (OscillatorAttention, CausalSelfAttention):
        layer = make(8, 2)
        exact = layer(x)
        low = copy.deepcopy(layer).bfloat16()
        with pytest.raises(ValueError, match="bfloat16"):
            low(x.bfloat16())
        low.implementation = "eager"
        assert (low(x.bfloat16()).float() - exact).abs().max() < 0.1 * exact.abs().max()


def test_positions_are_out_of_reach_of_half():
    layer = OscillatorAttention(8, 2).half()
    assert layer.ramp.dtype == np.float64
    np.testing.assert_array_equal(layer.ramp, 10000.0 ** (-np.arange(4) / 4))
    assert not list(layer.buffers())


@pytest.mark.parametrize(
    "pos, expected", [("full", [1, 0.1, 0.01, 0.001]), ("low", [0, 0, 0.01, 0.001]), ("none", [0, 0, 0, 0])]
)
def test_ramps(pos, expected):
    np.testing.assert_allclose(OscillatorAttention(8, 2, pos=pos).ramp, expected, rtol=1e-14)


def test_rotations_turn_neighbouring_pairs():
    x = torch.zeros(1, 3, 1, 4, dtype=torch.float64)
    x[..., 0], x[..., 2] = 1.0, 2.0
    turned = rotate(x)[0, :, 0]
    for t in range(3):
        slow = t / 100  # 10000^(-2/4)
        expected = [math.cos(t), math.sin(t), 2 * math.cos(slow), 2 * math.sin(slow)]
        np.testing.assert_allclose(turned[t], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("first", [0, 255, 4095])
def test_rotated_scores_depend_on_the_difference_of_places_alone(first):
    x = samples.draw(1, 1, 1, 16, dtype=torch.float32, grad=False).expand(1, first + 258, 1, 16)
    turned = rotate(x)[0, :, 0]
    for gap in (0, 1, 2, 257):
        at_start, later = turned[0] @ turned[gap], turned[first] @ turned[first + gap]
        assert abs(at_start - later) < 2e-6 * x[0, 0, 0].square().sum()
    np.testing.assert_allclose(turned.norm(dim=1), x[0, :, 0].norm(dim=1), rtol=1e-6)


@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)]
)
def test_rotations_far_out_are_as_exact_as_the_type(dtype, tolerance):
    place = 100_000
    x = torch.ones(1, place + 1, 1, 4, dtype=dtype)
    angle = np.array([place, place / 100])
    expected = np.stack([np.cos(angle) - np.sin(angle), np.sin(angle) + np.cos(angle)], 1).ravel()
    turned = rotate(x)[0, place, 0]
    assert turned.dtype == dtype
    np.testing.assert_allclose(turned.double(), expected, rtol=0, atol=tolerance)


@IMPLEMENTATIONS
def test_phases_far_out_keep_their_places_in_float32(implementation):
    """At place 20,000 the fastest phase has 20,000 rad: taken in float32 that would be off by 1e-3."""
    layer = OscillatorAttention(4, 1, steps=1, implementation="eager")
    single, double = copy.deepcopy(layer), copy.deepcopy(layer).double()
    single.implementation = double.implementation = implementation
    single.ramp = double.ramp = layer.ramp * 2000.0
    x = samples.draw(1, 11, 4, dtype=torch.float32, grad=False)
    torch.testing.assert_close(single(x), double(x.double()).float(), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((8, 3), {}, "n_heads must divide d_model, got 3 and 8"),
        ((8, 0), {}, "n_heads must divide d_model, got 0 and 8"),
        ((6, 2), {"separate_qk": True}, "head width must be even for separate_qk, got 3"),
        ((8, 2), {"pos": "high"}, "pos must be one of full, low, none, got 'high'"),
        ((8, 2), {"steps": -1}, "steps must be an integer >= 0, got -1"),
    ],
)
def test_layers_that_cannot_be_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        OscillatorAttention(*arguments, **options)


def test_odd_heads_cannot_be_rotated():
    with pytest.raises(ValueError, match="head width must be even for rotations, got 3"):
        CausalSelfAttention(6, 2)
