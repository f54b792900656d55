"""Context-pulse attention of tensors: stored vectors, both implementations, derivatives, misuse."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import attention_cases as samples
import numpy as np
import pytest
import torch
from torch.func import functional_call

from spo_fast import attention
from spo_fast.context_pulse import parameter_shapes
from spo_fast.torch import (
    AlpertContextPulse,
    ChunkedContextPulse,
    LeakyContextPulse,
    ParsevalAttention,
    StandardAttention,
    pulse_attention,
)

LAYERS = {
    "standard": StandardAttention,
    "v1": LeakyContextPulse,
    "v2": ParsevalAttention,
    "v3": ChunkedContextPulse,
    "v4": AlpertContextPulse,
}
FOLDER = Path(__file__).resolve().parent.parent / "golden" / "attention"
GOLDEN = sorted(path for path in FOLDER.glob("*.npz") if not path.stem.startswith("osc"))
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["kernel", "eager"])
CASES = [
    (StandardAttention, (6, 4), {"mask": False}),
    (LeakyContextPulse, (6,), {"decay": 0.7}),
    (ParsevalAttention, (6, 4), {}),
    (ParsevalAttention, (4,), {"strict_causal": True, "wedge": "relative"}),
    (ParsevalAttention, (6, 4), {"rotary": False, "normalise": False}),
    (ChunkedContextPulse, (8, 2), {"chunk_size": 2}),
    (ChunkedContextPulse, (8, 2), {"chunk_size": 3, "wedge": "relative", "mask": False}),
    (AlpertContextPulse, (8, 2), {"chunk_size": 3, "poly_order": 2}),
    (AlpertContextPulse, (8, 2), {"chunk_size": 3, "strict_causal": True, "wedge": "relative"}),
]
EVERY = pytest.mark.parametrize("make, sizes, options", CASES, ids=lambda x: getattr(x, "__name__", str(x)))


def drawn(make, sizes, options, dtype=torch.float64, **more):
    """A layer all of whose parameters matter."""
    torch.manual_seed(0)
    layer = make(*sizes, **options, dtype=dtype, **more)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return layer


def tokens(layer, batch=2, n=7, dtype=torch.float64):
    torch.manual_seed(1)
    return torch.randn(batch, n, layer.W_Q.shape[1], dtype=dtype, requires_grad=True)


@IMPLEMENTATIONS
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_stored_vectors(path, implementation):
    data = np.load(path)
    meta = json.loads(str(data["meta"]))
    options = {"n_heads" if name == "n_head" else name: value for name, value in meta["options"].items()}
    if "head_dim" in options:
        options["d_head"] = options.pop("head_dim")
    make = LAYERS[meta["kind"]]
    layer = make(meta["d_model"], dtype=torch.float64, implementation=implementation, **options)
    layer.load_state_dict({name: torch.from_numpy(data[f"p.{name}"]) for name in meta["params"]})
    samples.check_stored(layer, data, meta["params"])


def test_there_are_stored_vectors():
    assert len(GOLDEN) == 8


@EVERY
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-11), (torch.float32, 2e-4)])
def test_kernel_and_eager_agree(make, sizes, options, dtype, tolerance):
    results = []
    for implementation in ("kernel", "eager"):
        layer = drawn(make, sizes, options, dtype, implementation=implementation)
        x = tokens(layer, n=9, dtype=dtype)
        out = layer(x)
        assert out.dtype == dtype
        used = {name: p for name, p in layer.named_parameters() if not unused(layer, name)}
        results.append([out, *torch.autograd.grad(out.sin().sum(), [x, *used.values()])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * other.abs().max().item())


def unused(layer, name):
    return isinstance(layer, AlpertContextPulse) and name.startswith(("jump", "gate"))


@EVERY
def test_gradients_of_every_parameter_are_those_of_central_differences(make, sizes, options):
    layer = drawn(make, sizes, options)
    names, values = zip(
        *((name, p) for name, p in layer.named_parameters() if not unused(layer, name)), strict=True
    )

    def function(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(function, (tokens(layer, 1, 5), *values))


@pytest.mark.parametrize("make, sizes, options", CASES[3:9:2], ids=lambda x: getattr(x, "__name__", str(x)))
def test_eager_has_second_derivatives(make, sizes, options):
    layer = drawn(make, sizes, options, implementation="eager")
    x = tokens(layer, 1, 3)
    assert torch.autograd.gradgradcheck(layer, (x,))


@EVERY
def test_a_state_dict_is_the_params_of_the_function_of_arrays(make, sizes, options):
    layer = drawn(make, sizes, options)
    x = tokens(layer).detach()
    params = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
    expected = attention.context_pulse_attention(
        x.numpy(), params, variant=layer.variant, n_heads=layer.n_heads, **options
    )
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=1e-13, atol=1e-13)


@EVERY
def test_modules_can_be_copied_and_pickled(make, sizes, options):
    layer = drawn(make, sizes, options)
    x = tokens(layer)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
    assert f"n_heads={layer.n_heads}" in repr(layer)
    assert all(f"{name}={value!r}" in repr(layer) for name, value in options.items())


@pytest.mark.parametrize("kind", LAYERS)
def test_parameters_are_those_that_are_stored(kind):
    path = next(path for path in GOLDEN if path.stem.startswith(kind))
    meta = json.loads(str(np.load(path)["meta"]))
    layer = LAYERS[kind](*((8, 2) if kind in ("v3", "v4") else (8,)))
    assert set(layer.state_dict()) == set(meta["params"])


def test_initial_values():
    torch.manual_seed(2)
    for layer in (ParsevalAttention(64), ChunkedContextPulse(64, 4), AlpertContextPulse(64, 4)):
        q = layer.W_Q.double()
        torch.testing.assert_close(q @ q.T, torch.eye(64, dtype=torch.float64), rtol=0, atol=1e-5)
        assert abs(layer.W_K.std().item() - 0.02) < 0.001
        assert abs(layer.W_V.std().item() - 1 / 8) < 0.005 and layer.W_V.abs().max() > 0.25
        assert 0.1 < layer.gate_proj.weight.abs().max() <= 1 / 8 and layer.gate_proj.bias.any()
        for name in ("A", "sink", "v_null", "decay_logit", "jump_scale", "jump_bias"):
            assert not getattr(layer, name, torch.zeros(1)).any()
        if not isinstance(layer, ParsevalAttention):
            assert 0.1 < layer.W_O.abs().max() <= 1 / 8
    for layer in (StandardAttention(64), LeakyContextPulse(64)):
        for name in ("W_Q", "W_K", "W_V"):
            assert 0.1 < getattr(layer, name).abs().max() <= 1 / 8
    assert StandardAttention(64, 16)(torch.zeros(1, 2, 64)).shape == (1, 2, 16)


def test_a_wedge_learns_from_zero_only_if_it_is_relative():
    for wedge, learns in (("published", False), ("relative", True)):
        torch.manual_seed(0)
        layer = ChunkedContextPulse(8, 2, chunk_size=2, wedge=wedge, dtype=torch.float64)
        layer(tokens(layer)).square().sum().backward()
        assert (layer.A.grad.abs().max() > 1e-6) == learns


@EVERY
def test_what_the_kernel_cannot_do_is_an_error_that_names_what_can(make, sizes, options):
    layer = drawn(make, sizes, options)
    x = tokens(layer)
    with pytest.raises(
        ValueError, match=r"must be float32 or float64 for the kernel, got torch\.bfloat16.*eager"
    ):
        copy.deepcopy(layer).bfloat16()(x.bfloat16())
    with pytest.raises(RuntimeError, match=r"the kernel has no second derivatives.*eager"):
        torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not work inside torch.func transforms.*eager"):
        torch.func.vmap(lambda x: layer(x[None]))(x)


@pytest.mark.filterwarnings("ignore:.*nondeterministic.*")
def test_a_tensor_that_was_written_to_is_noticed():
    q, k, v = (torch.randn(1, 3, 1, 2, requires_grad=True) for _ in range(3))
    kept = k * 1.0
    out = pulse_attention(q, kept, v, variant="leaky", decay=0.5)
    kept.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize(
    "make", [StandardAttention, LeakyContextPulse, ParsevalAttention, lambda d: ChunkedContextPulse(d, 1)]
)
def test_a_result_may_be_written_to(make, n):
    layer, x = make(8).double(), torch.randn(1, n, 8, dtype=torch.float64)
    layer(x).add(x).square().sum().backward()
    expected = {name: p.grad.clone() for name, p in layer.named_parameters()}
    layer.zero_grad()
    layer(x).add_(x).square().sum().backward()
    for name, p in layer.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=0, atol=0)


def test_nothing_gives_nothing_in_both_implementations():
    for make, sizes in (
        (ChunkedContextPulse, (8, 2)),
        (AlpertContextPulse, (8, 2)),
        (LeakyContextPulse, (8,)),
    ):
        for implementation in ("kernel", "eager"):
            layer = make(*sizes, implementation=implementation)
            assert layer(torch.zeros(2, 0, 8)).shape == (2, 0, 8)


def test_strides_do_not_matter():
    shapes = {"gate": (2, 5, 2, 4), "A": (2, 4, 4), "sink": (2,), "v_null": (2, 4)}
    q, k, v = (torch.randn(2, 2, 5, 4, dtype=torch.float64).transpose(1, 2) for _ in range(3))
    extras = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    extras["A"] = extras["A"].mT
    results = [
        pulse_attention(q, k, v, variant="chunked", chunk_size=2, implementation=i, **extras)
        for i in ("kernel", "eager")
    ]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ChunkedContextPulse(8, 3), "n_heads must divide d_model, got 3 and 8"),
        (lambda: AlpertContextPulse(6, 2), "width of a head must be even for variant 'alpert', got 3"),
        (lambda: ParsevalAttention(8, 3), "width of a head must be even for variant 'parseval', got 3"),
        (lambda: ParsevalAttention(8, wedge="both"), "wedge must be one of 'published', 'relative'"),
        (lambda: LeakyContextPulse(8, decay=2.0), "decay must be <= 1"),
        (lambda: StandardAttention(0), "d_model must be an integer >= 1, got 0"),
        (lambda: StandardAttention(8, 0), "d_head must be an integer >= 1, got 0"),
        (lambda: ChunkedContextPulse(8, 2, chunk_size=0), "chunk_size must be an integer >= 1"),
        (
            lambda: StandardAttention(8, implementation="c")(torch.ones(1, 2, 8)),
            "implementation must be one of",
        ),
    ],
)
def test_layers_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_shapes_of_parameters_are_told():
    assert parameter_shapes("chunked", 8, 2, 4)["v_null"] == (1, 2, 1, 4)
