"""How the Numba backend's kernels are called where all they return is a status."""

from __future__ import annotations

from typing import Any

import numpy as np

from spo_fast.validation import unexplained


def writable(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Copy what is read-only: Numba compiles for that anew."""
    return tuple(array if array.flags.writeable else array.copy() for array in arrays)


def call(kernel: Any, *arguments: Any) -> None:
    """Call a kernel whose arguments were judged before, so that its status must be OK."""
    status = kernel(*arguments)
    if status:
        unexplained(status)
