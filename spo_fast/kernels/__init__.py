"""Numba kernels to call from compiled code of one's own: pure Numba, cached on disk, without the GIL.

Every kernel works on float64 arrays that the caller owns and returns a plain integer status (0: done). They
may be called from ``@njit`` functions with ``cache=True`` or ``parallel=True``, at any depth. How they are
compiled, and which liberties the compiler has, is written in ``_flags``.
"""

from __future__ import annotations

from .kuramoto import euler_step, order_parameter, rhs, rhs_sparse, rk4_step, rk45_step
from .modulation import factors, modulate
from .sparse import factors_sparse, modulate_sparse

__all__ = [
    "euler_step",
    "factors",
    "factors_sparse",
    "modulate",
    "modulate_sparse",
    "order_parameter",
    "rhs",
    "rhs_sparse",
    "rk4_step",
    "rk45_step",
]
