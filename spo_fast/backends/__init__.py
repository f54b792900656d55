"""Implementations of the kernels, one module each, behind one protocol; `registry` chooses among them.

The package is also the public function of the same name: ``spo_fast.backends()`` tells which of them can be
used, as a dictionary from each name to "available" or to the reason why it is not. (Importing any module of a
package binds the package to its name in the parent, so a function called `backends` beside it would be lost:
the package itself is callable.)
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Backends(ModuleType):
    """A package that can be called, pickled and copied."""

    def __call__(self) -> dict[str, str]:
        """Tell which backends can be used; see `spo_fast.backends.registry.backends`."""
        from spo_fast.backends.registry import backends

        return backends()

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (__name__,)


sys.modules[__name__].__class__ = _Backends
