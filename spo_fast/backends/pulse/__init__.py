"""Implementations of the parts of context-pulse attention, one module for each backend of `attention`.

Each has the same functions: ``gate``, ``leaky_scan``, ``resonance`` and ``turn``, each with its ``_vjp``, and
``token_moments`` and ``unnormalise``, the two passes over tokens that normalisation needs beside ``turn``.
Arrays are checked, C-contiguous and of one dtype when they come here; `reference` says what is computed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spo_fast.backends import attention

_MODULES = {"cython": "compiled", "numba": "jit", "numpy": "reference"}


def load(name: str | None = None) -> tuple[Any, Any]:
    """Return the modules of a backend: the parts of context pulses, and softmax attention.

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
    attending = attention.load(name)
    return import_module(f"{__name__}.{_MODULES[attending.NAME]}"), attending
