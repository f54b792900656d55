"""Modulation, trajectories and the attentions as PyTorch functions and modules.

`modulate`, `simulate`, `causal_attention`, `phase_attention` and `pulse_attention` are functions of tensors;
`OscillatorAttention`, `CausalSelfAttention` and the five layers of context-pulse attention hold the
parameters. Needs the extra ``spo-fast[torch]``.
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("spo_fast.torch needs PyTorch: pip install 'spo-fast[torch]'") from error

from spo_fast.torch.boundary import IMPLEMENTATIONS
from spo_fast.torch.context_pulse import (
    AlpertContextPulse,
    ChunkedContextPulse,
    LeakyContextPulse,
    ParsevalAttention,
    StandardAttention,
    pulse_attention,
)
from spo_fast.torch.functional import causal_attention, phase_attention
from spo_fast.torch.layers import CausalSelfAttention, OscillatorAttention
from spo_fast.torch.networks import modulate, simulate

__all__ = [
    "IMPLEMENTATIONS",
    "AlpertContextPulse",
    "CausalSelfAttention",
    "ChunkedContextPulse",
    "LeakyContextPulse",
    "OscillatorAttention",
    "ParsevalAttention",
    "StandardAttention",
    "causal_attention",
    "modulate",
    "phase_attention",
    "pulse_attention",
    "simulate",
]
