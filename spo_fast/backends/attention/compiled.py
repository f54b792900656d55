"""Attention by the C core through Cython."""

from __future__ import annotations

from spo_fast._core import PhaseState, attend, attend_vjp, phase_attend, phase_attend_vjp

NAME = "cython"

__all__ = ["NAME", "PhaseState", "attend", "attend_vjp", "phase_attend", "phase_attend_vjp"]
