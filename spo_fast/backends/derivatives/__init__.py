"""Implementations of derivatives, one module for each backend that has them.

Each has ``modulate_vjp`` and ``modulate_sparse_vjp``, the gradients of one modulation, and ``Flow``, a
trajectory of fixed steps that is followed and gone back. Arrays are checked when they come here; `reference`
says what is computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spo_fast.backends import registry
from spo_fast.validation import SparseCoupling

_MODULES = {"cython": "compiled", "numba": "jit", "numpy": "reference"}


def load(name: str | None = None) -> Any:
    """Return the module of a backend; None and "auto" mean the fastest that can be loaded.

    Parameters
    ----------
    name : str, optional
        "auto", "cython", "numba" or "numpy".

    Raises
    ------
    ValueError
        If `name` is no name of a backend, or that of one without derivatives.
    RuntimeError
        If the backend cannot be loaded, with the reason and how to get it.
    """
    if name is None or (isinstance(name, str) and name == "auto"):
        name = registry.load().NAME
    return registry.load_part(__name__, _MODULES, "derivatives", name)


def mirror_of(coupling: SparseCoupling) -> np.ndarray:
    """Return for each entry (i, j) of a symmetric pattern the place of (j, i), shape (E,), int64. O(E)."""
    places = np.arange(coupling.data.size, dtype=np.float64)
    return coupling.with_data(places).T.tocsr().data.astype(np.int64)
