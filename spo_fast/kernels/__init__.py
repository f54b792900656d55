"""Numba kernels to call from compiled code of one's own: pure Numba, cached on disk, without the GIL.

Every kernel works on float64 arrays that the caller owns (those of attention on float32 as well), C order
unless said; those that check their arguments return a plain integer status: `OK`, or one of the numbers
below, which ``spo_fast.h`` explains. None raises, prints, or keeps an array. They may be called from
``@njit`` functions with ``cache=True`` or ``parallel=True``, at any depth. How they are compiled, and which
liberties the compiler has, is written in ``_flags``.

``modulate`` and ``factors`` look K over at each call. A loop over many states of one K does that once, by
`inspect_coupling`, and goes on with `apply_modulation` (or, through order parameters,
`apply_modulation_moments`), which check nothing.
"""

from __future__ import annotations

from ._flags import (
    ASYMMETRIC_COUPLING,
    INVALID_ARGUMENT,
    NONFINITE_COUPLING,
    NONFINITE_PHASE,
    NONFINITE_STATE,
    NONZERO_DIAGONAL,
    OK,
    OUT_OF_MEMORY,
)
from .attention import attend, attend_vjp, phase_attend, phase_attend_vjp
from .daido import series_of
from .derivatives import modulate_sparse_vjp, modulate_vjp
from .kuramoto import (
    SPARSE_WORK_ROWS,
    WORK_ROWS,
    euler_step,
    lagged_coupling,
    order_parameter,
    rhs,
    rhs_sparse,
    rk4_step,
    rk45_step,
)
from .modulation import apply_factors, apply_modulation, factors, inspect_coupling, modulate
from .moments import apply_modulation_moments, modulate_moments, moments_room_size
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
    "ASYMMETRIC_COUPLING",
    "INVALID_ARGUMENT",
    "NONFINITE_COUPLING",
    "NONFINITE_PHASE",
    "NONFINITE_STATE",
    "NONZERO_DIAGONAL",
    "OK",
    "OUT_OF_MEMORY",
    "SPARSE_WORK_ROWS",
    "WORK_ROWS",
    "apply_factors",
    "apply_modulation",
    "apply_modulation_moments",
    "attend",
    "attend_vjp",
    "euler_step",
    "factors",
    "factors_sparse",
    "gate",
    "gate_vjp",
    "inspect_coupling",
    "lagged_coupling",
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
