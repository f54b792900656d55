"""How every kernel is compiled: one decorator, one fast-math policy, one list of status codes.

Fast-math policy
----------------
NaN and infinity stay meaningful everywhere: they mark bad input and failed steps, so "no NaN", "no
infinity", "reciprocal" and "approximate functions" are never switched on. Three flag sets exist:

* ``STRICT`` changes nothing: every operation rounds by itself. For differences of nearly equal results,
  whose rounding shows.
* ``CONTRACT`` lets a product and a sum become one fused multiply-add. It never reorders a sum, so
  expressions written symmetrically in ``i`` and ``j`` keep symmetric bits and the rounding tricks of
  ``vectormath`` survive.
* ``REASSOCIATE`` also reorders sums and ignores the sign of zero. Only reductions along a contiguous row
  use it, for without it they cannot be vectorised. The order is fixed at compile time: results repeat bit
  for bit. No test for NaN may stand in such a kernel: ``s + x - x`` becomes ``s``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from numba import njit

STRICT: frozenset[str] = frozenset()
CONTRACT = frozenset({"contract"})
REASSOCIATE = frozenset({"contract", "reassoc", "nsz"})

# The numbers of spo_fast.h as plain integers: kernels return them and know nothing of the enum above them.
OK = 0
INVALID_ARGUMENT = 1
OUT_OF_MEMORY = 2
NONFINITE_COUPLING = 3
ASYMMETRIC_COUPLING = 4
NONZERO_DIAGONAL = 5
NONFINITE_PHASE = 6
NONFINITE_STATE = 7

_cache_warned = False


def _warn_uncached(reason: Exception) -> None:
    """Say once per process that kernels are compiled anew in each process, and how to change that."""
    global _cache_warned
    if not _cache_warned:
        _cache_warned = True
        warnings.warn(
            f"spo_fast kernels are compiled without an on-disk cache ({reason}); "
            "set NUMBA_CACHE_DIR to a writable directory to keep them between processes",
            RuntimeWarning,
            stacklevel=2,
        )


def _compile(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Decorate with the on-disk cache, or without it where no directory can be written."""
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError as reason:  # Numba finds no writable place for its cache files
        _warn_uncached(reason)
        return njit(**options)(function)


def kernel(flags: frozenset[str] = CONTRACT, *, inline: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a kernel: nopython, cached, without the GIL, IEEE division, the module's fast-math policy.

    Parameters
    ----------
    flags : frozenset of str
        One of the three sets above.
    inline : bool
        Force inlining, so that the caller's loop is vectorised with the body in it.

    Returns
    -------
    callable
        The decorator.
    """
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": set(flags),
        "forceinline": inline,
    }
    return lambda function: _compile(function, options)
