"""Implementations of attention, one module for each backend that has it.

Each has the same four functions: ``attend`` and ``attend_vjp`` for softmax attention, ``phase_attend`` and
``phase_attend_vjp`` for the dynamics of phases that stands on it. Arrays are checked, C-contiguous and of one
dtype when they come here; `reference` says what is computed.
"""

from __future__ import annotations

from typing import Any

from spo_fast.backends import registry

_MODULES = {"cython": "compiled", "numba": "jit", "numpy": "reference"}
_default: list[Any] = []


def load(name: str | None = None) -> Any:
    """Return the module of a backend; None and "auto" mean the fastest that can be loaded.

    Parameters
    ----------
    name : str, optional
        "auto", "cython", "numba" or "numpy".

    Raises
    ------
    ValueError
        If `name` is no name of a backend, or that of one without attention.
    RuntimeError
        If the backend cannot be loaded, with the reason and how to get it.
    """
    if name is None or (isinstance(name, str) and name == "auto"):
        return _default[0] if _default else _load_default()
    return registry.load_part(__name__, _MODULES, "attention", name)


def _load_default() -> Any:
    for name in registry.AUTOMATIC:
        try:
            _default[:] = [load(name)]
        except RuntimeError:
            continue
        return _default[0]
    raise RuntimeError(f"no backend can be loaded for attention: see {registry.backends()}")
