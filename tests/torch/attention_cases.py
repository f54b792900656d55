"""Small inputs for attention, and every combination of options that makes a difference."""

from __future__ import annotations

import numpy as np
import torch

BATCH, TOKENS, HEADS, PHASES, VALUES = 2, 4, 2, 3, 2
RAMP = np.array([1.0, 0.3, 0.01])

PHASE_OPTIONS = {
    "plain": {},
    "no steps": {"steps": 0},
    "three half steps": {"steps": 3, "dt": 0.5},
    "static query": {"static_query": True},
    "queries": {"queries": True},
    "consensus": {"value_consensus": 0.25},
    "static query and consensus": {"static_query": True, "value_consensus": 1.0, "steps": 1},
    "checkpoints": {"keep": "sqrt", "steps": 5, "dt": 0.3},
    "no lag": {"alpha": None},
}
MASK_OPTIONS = {
    "causal": {},
    "full": {"causal": False},
    "scaled": {"scale": 0.3},
    "more keys": {"keys": 6},
    "fewer keys": {"keys": 2},
    "no keys": {"keys": 0},
    "sink": {"sink": True},
    "sink with value": {"sink": True, "sink_value": True},
    "masked": {"key_mask": True, "sink": True, "causal": False},
    "masked without sink": {"key_mask": True},
}


def draw(*shape, seed=0, dtype=torch.float64, grad=True):
    """Normal numbers that want a gradient."""
    rng = np.random.default_rng([seed, *shape])
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype).requires_grad_(grad)


def phase_case(name, dtype=torch.float64):
    """Tensors that want gradients, by name, and the other arguments of phase_attention."""
    options = {"steps": 2, **PHASE_OPTIONS[name]}
    phases = (BATCH, TOKENS, HEADS, PHASES)
    tensors = {
        "c": draw(*phases, seed=1, dtype=dtype),
        "s": draw(*phases, seed=2, dtype=dtype),
        "v": draw(BATCH, TOKENS, HEADS, VALUES, seed=3, dtype=dtype),
        "weight": draw(HEADS, PHASES, seed=4, dtype=dtype),
        "alpha": draw(HEADS, PHASES, seed=5, dtype=dtype),
        "kappa": draw(HEADS, seed=6, dtype=dtype),
    }
    if "alpha" in options:
        del tensors["alpha"]
    if options.pop("queries", False):
        tensors["cq"], tensors["sq"] = draw(*phases, seed=7, dtype=dtype), draw(*phases, seed=8, dtype=dtype)
    return tensors, options


def call_phases(function, tensors, options, **more):
    """Call phase_attention with tensors by name."""
    given = dict(tensors)
    queries = (given.pop("cq"), given.pop("sq")) if "cq" in given else None
    return function(**{"alpha": None, **given, **options}, ramp=RAMP, queries=queries, **more)


def mask_case(name, dtype=torch.float64):
    """Tensors that want gradients, by name, and the other arguments of causal_attention."""
    options = dict(MASK_OPTIONS[name])
    keys = options.pop("keys", TOKENS)
    tensors = {
        "q": draw(BATCH, HEADS, TOKENS, 3, seed=1, dtype=dtype),
        "k": draw(BATCH, HEADS, keys, 3, seed=2, dtype=dtype),
        "v": draw(BATCH, HEADS, keys, VALUES, seed=3, dtype=dtype),
    }
    if options.pop("sink", False):
        tensors["sink"] = draw(HEADS, seed=4, dtype=dtype)
    if options.pop("sink_value", False):
        tensors["sink_value"] = draw(HEADS, VALUES, seed=5, dtype=dtype)
    if options.pop("key_mask", False):
        options["key_mask"] = torch.tensor([[True, False, True, False], [False, False, False, False]])
    return tensors, options


def error(found, wanted):
    """Largest error over the largest entry."""
    return np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30)


def check_stored(layer, data, parameters):
    """Compare a layer's output and gradients with those of a stored case."""
    x = torch.from_numpy(data["x"]).requires_grad_()
    out = layer(x)
    assert error(out.detach().numpy(), data["out"]) < 1e-11
    (out * torch.from_numpy(data["r"])).sum().backward()
    assert error(x.grad.numpy(), data["grad_x"]) < 1e-9
    for name in parameters:
        wanted, found = data[f"g.{name}"], layer.get_parameter(name).grad
        if not wanted.any():
            assert found is None or found.abs().max() < 1e-12
        else:
            assert error(found.numpy(), wanted) < 1e-9, name
