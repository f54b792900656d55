"""The compared models: their sizes, their layout, their seeds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from spo_fast.experiments import models
from spo_fast.experiments.specs import MODELS, PROTOCOL
from spo_fast.torch import phase_attention

COUNTS = {
    "softmax": 58_112,
    "softmax-2": 107_968,
    "softmax-looped": 58_112,
    "oscillator": 58_248,
    "looped": 58_248,
    "static": 58_248,
    "static-looped": 58_248,
    "separate": 58_184,
    "no-steps": 58_248,
    "no-lag": 58_184,
}


def tokens(count=3):
    return torch.randint(64, (count, 9), generator=torch.Generator().manual_seed(0))


def test_the_protocol_has_ten_models():
    assert set(PROTOCOL) == set(COUNTS)


@pytest.mark.parametrize("name", PROTOCOL)
def test_numbers_of_parameters_are_the_published_ones(name):
    assert models.parameters(models.build(name, 0)) == COUNTS[name]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_learns_with_every_parameter_it_uses(name):
    model = models.build(name, 0)
    out = model(tokens())
    assert out.shape == (3, 64) and out.dtype == torch.float32
    out.square().mean().backward()
    without = {key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert without == ({"blocks.0.attention.kappa"} if name == "no-steps" else set())


def test_parts_of_the_smallest_model():
    sizes = {key: p.numel() for key, p in models.build("softmax", 0).named_parameters()}
    part = {
        prefix: sum(n for key, n in sizes.items() if key.startswith(prefix))
        for prefix in ("embedding", "blocks.0.norm", "blocks.0.attention", "blocks.0.mlp", "readout")
    }
    assert list(part.values()) == [4096, 256, 16_512, 33_088, 4160]


def test_phases_of_the_embedding_ask_in_every_loop():
    """Each pass is written out: the asking phases are given to the layer, the moving ones are its own."""
    model = models.build("first-looped", 0)
    (block,) = model.blocks
    layer = block.attention
    x = model.embedding(tokens())
    queries = layer.phases(block.norm_attention(x))[:2]
    for step in range(4):
        h = block.norm_attention(x)
        arguments, options = layer.dynamics(h)
        out = phase_attention(*arguments, **(options | {"queries": queries}))
        if step == 0:  # the asking phases are the layer's own there: queries that stay where they started
            still = phase_attention(*arguments, **(options | {"static_query": True}))
            torch.testing.assert_close(out, still)
        x = x + F.linear(out.flatten(2), layer.W_o, layer.b_o)
        x = x + block.mlp(block.norm_mlp(x))
    torch.testing.assert_close(model(tokens()), model.readout(x[:, -1]))


def test_loops_apply_the_same_block_again():
    looped, once = models.build("softmax-looped", 0), models.build("softmax", 0)
    once.load_state_dict(looped.state_dict())
    x = once.embedding(tokens())
    for _ in range(4):
        x = once.blocks[0](x)
    torch.testing.assert_close(looped(tokens()), once.readout(x[:, -1]), rtol=1e-6, atol=1e-6)


def test_initial_values_depend_on_the_seed_alone():
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, second, other = (
        models.build("oscillator", 0),
        models.build("oscillator", 0),
        models.build("oscillator", 1),
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first(tokens()), second(tokens()))
    assert not torch.equal(first(tokens()), other(tokens()))


@pytest.mark.parametrize("name", MODELS)
def test_implementations_agree(name):
    kernel, eager = (models.build(name, 0, which) for which in ("kernel", "eager"))
    torch.testing.assert_close(kernel(tokens()), eager(tokens()), rtol=2e-4, atol=2e-4)


def test_unknown_models_are_refused():
    with pytest.raises(ValueError, match=r"model must be one of softmax, .*, got 'transformer'"):
        models.build("transformer", 0)
