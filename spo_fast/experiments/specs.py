"""What is compared: numbers of the protocol, and names and options of the models, without PyTorch.

`spo_fast.experiments.models` builds the models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    options : dict
        Of `OscillatorAttention`.
    """

    label: str
    oscillators: bool = True
    layers: int = 1
    loops: int = 1
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
}

VARIANTS = ("half-steps", "sixteen-steps", "looped-2", "separate-looped")
PROTOCOL = tuple(name for name in MODELS if name not in VARIANTS)  # the ten models
