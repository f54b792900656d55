"""What is compared: numbers of the protocol, and names and options of the models, without PyTorch.

`spo_fast.experiments.models` and `spo_fast.experiments.pulse_models` build the models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

BATCH = 64  # sequences of a training step
REACHED = 0.95  # accuracy that counts as learned


@dataclass(frozen=True)
class Spec:
    """What makes a model.

    Attributes
    ----------
    label : str
        For pictures and tables.
    oscillators : bool
        Attention by phases, not by softmax over products.
    layers : int
        Blocks, each with its own parameters.
    loops : int
        How often all blocks are applied.
    first_asks : bool
        Through all loops of one block of oscillators the phases ask that the tokens have before the first.
    options : dict
        Of `OscillatorAttention`.
    """

    label: str
    oscillators: bool = True
    layers: int = 1
    loops: int = 1
    first_asks: bool = False
    options: dict[str, Any] = field(default_factory=dict)


MODELS = {
    "softmax": Spec("softmax, 1 layer", oscillators=False),
    "softmax-2": Spec("softmax, 2 layers", oscillators=False, layers=2),
    "softmax-looped": Spec("softmax looped ×4", oscillators=False, loops=4),
    "oscillator": Spec("oscillator T 4", options={"steps": 4}),
    "looped": Spec("T 1 looped ×4", loops=4, options={"steps": 1}),
    "static": Spec("static query, T 4", options={"steps": 4, "static_query": True}),
    "static-looped": Spec("static query, T 1 looped ×4", loops=4, options={"steps": 1, "static_query": True}),
    "separate": Spec("separate q, k, T 4", options={"steps": 4, "separate_qk": True}),
    "no-steps": Spec("T 0", options={"steps": 0}),
    "no-lag": Spec("no lag, T 4", options={"steps": 4, "lag": False}),
    "half-steps": Spec("T 8, dt 0.5", options={"steps": 8, "dt": 0.5}),
    "sixteen-steps": Spec("T 16", options={"steps": 16}),
    "looped-2": Spec("T 2 looped ×2", loops=2, options={"steps": 2}),
    "separate-looped": Spec(
        "separate q, k, T 1 looped ×4", loops=4, options={"steps": 1, "separate_qk": True}
    ),
    "first-looped": Spec("first phases ask, T 1 looped ×4", loops=4, first_asks=True, options={"steps": 1}),
}

VARIANTS = ("half-steps", "sixteen-steps", "looped-2", "separate-looped", "first-looped")
PROTOCOL = tuple(name for name in MODELS if name not in VARIANTS)  # the ten models


# ---------------------------------------------------------------- context pulses


@dataclass(frozen=True)
class PulseSpec:
    """What makes a model of embedding, one context-pulse attention and readout.

    Attributes
    ----------
    label : str
        For pictures and tables.
    layer : str
        Which attention: a variant of `spo_fast.attention.context_pulse_attention`, "inverted", or "rope",
        softmax attention with rotary positions and a projection of the output.
    options : dict
        Of the layer.
    held : dict of str to float
        Parameters that are filled with a number and not learned, which is how a part is taken out.
    """

    label: str
    layer: str
    options: dict[str, Any] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)


_NO_DECAY = {"decay_logit": -50.0}  # decay 2e-22: the state is the token's own query
_CORRECTED = {"strict_causal": True, "wedge": "relative"}

PULSES = {
    "standard": PulseSpec("softmax, no positions", "standard"),
    "rope": PulseSpec("softmax, RoPE, W_O", "rope", {"n_heads": 1}),
    "rope-4": PulseSpec("softmax, RoPE, W_O, 4 heads", "rope", {"n_heads": 4}),
    "leaky": PulseSpec("leaky", "leaky"),
    "parseval": PulseSpec("parseval", "parseval"),
    "chunked": PulseSpec("chunked", "chunked", {"n_heads": 4, "chunk_size": 16}),
    "alpert": PulseSpec("alpert", "alpert", {"n_heads": 4, "chunk_size": 16}),
    "no-gate": PulseSpec(
        "parseval, no gate", "parseval", held={"gate_proj.weight": 0.0, "gate_proj.bias": 30.0}
    ),
    "no-decay": PulseSpec("parseval, no memory (decay 0)", "parseval", held=_NO_DECAY),
    "fixed-decay": PulseSpec("parseval, decay fixed at 0.5", "parseval", held={"decay_logit": 0.0}),
    "no-wedge": PulseSpec("parseval, no wedge", "parseval", held={"A": 0.0}),
    "no-rope": PulseSpec("parseval, no RoPE", "parseval", {"rotary": False}),
    "no-sink": PulseSpec("parseval, no sink", "parseval", held={"sink": -inf, "v_null": 0.0}),
    "no-norm": PulseSpec("parseval, no normalisation", "parseval", {"normalise": False}),
    "no-decay-no-rope": PulseSpec("parseval, no memory, no RoPE", "parseval", {"rotary": False}, _NO_DECAY),
    "parseval-causal": PulseSpec("parseval, strictly causal", "parseval", {"strict_causal": True}),
    "parseval-relative": PulseSpec("parseval, relative wedge", "parseval", {"wedge": "relative"}),
    "parseval-corrected": PulseSpec("parseval, causal, relative wedge", "parseval", _CORRECTED),
    "alpert-causal": PulseSpec(
        "alpert, strictly causal", "alpert", {"n_heads": 4, "chunk_size": 16, "strict_causal": True}
    ),
    "inverted": PulseSpec("inverted roles", "inverted"),
    "standard-open": PulseSpec("softmax, no positions, no mask", "standard", {"mask": False}),
    "leaky-open": PulseSpec("leaky, no mask", "leaky", {"mask": False}),
    "inverted-open": PulseSpec("inverted roles, no mask", "inverted", {"mask": False}),
}
ABLATIONS = (
    "no-gate",
    "no-decay",
    "fixed-decay",
    "no-wedge",
    "no-rope",
    "no-sink",
    "no-norm",
    "no-decay-no-rope",
)
CORRECTED = ("parseval-causal", "parseval-relative", "parseval-corrected", "alpert-causal")
MAPPED = ("standard", "leaky", "inverted")  # layers whose scores are drawn

WIDTHS = {"recall": 32, "gap-copy": 64}  # of the tokens, by task
ALPERT_WIDTHS = {"gap-copy": 128}  # where the published one differs
LABELS = {name: spec.label for name, spec in MODELS.items()}
LABELS |= {name: spec.label for name, spec in PULSES.items()}
