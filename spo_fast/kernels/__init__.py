"""Numba kernels to call from compiled code of one's own: pure Numba, cached on disk, without the GIL.

Every kernel works on float64 arrays that the caller owns (those of attention on float32 as well) and returns
a plain integer status (0: done). They may be called from ``@njit`` functions with ``cache=True`` or
``parallel=True``, at any depth. How they are compiled, and which liberties the compiler has, is written in
``_flags``.
"""

from __future__ import annotations

from .attention import attend, attend_vjp, phase_attend, phase_attend_vjp
from .daido import series_of
from .derivatives import modulate_sparse_vjp, modulate_vjp
from .kuramoto import euler_step, order_parameter, rhs, rhs_sparse, rk4_step, rk45_step
from .modulation import factors, modulate
from .moments import modulate_moments, moments_room_size
from .pulse import (
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
from .sparse import factors_sparse, modulate_sparse

__all__ = [
    "attend",
    "attend_vjp",
    "euler_step",
    "factors",
    "factors_sparse",
    "gate",
    "gate_vjp",
    "leaky_scan",
    "leaky_scan_vjp",
    "modulate",
    "modulate_moments",
    "modulate_sparse",
    "modulate_sparse_vjp",
    "modulate_vjp",
    "moments_room_size",
    "order_parameter",
    "phase_attend",
    "phase_attend_vjp",
    "resonance",
    "resonance_vjp",
    "rhs",
    "rhs_sparse",
    "rk4_step",
    "rk45_step",
    "series_of",
    "token_moments",
    "turn",
    "turn_vjp",
    "unnormalise",
]
