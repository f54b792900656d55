"""The parts of context-pulse attention by the C core through Cython."""

from __future__ import annotations

from spo_fast._core import (
    gate,
    gate_vjp,
    leaky_scan,
    leaky_scan_vjp,
    resonance,
    resonance_vjp,
    token_moments,
    turn,
    turn_vjp,
    unnormalise,
)

__all__ = [
    "gate",
    "gate_vjp",
    "leaky_scan",
    "leaky_scan_vjp",
    "resonance",
    "resonance_vjp",
    "token_moments",
    "turn",
    "turn_vjp",
    "unnormalise",
]
