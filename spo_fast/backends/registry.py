"""Names of the backends, their order, and why one is missing."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FOREIGN = ("rust", "go", "julia", "mojo")  # libraries behind one adapter, opened only when asked for by name
NAMES = ("cython", "numba", *FOREIGN, "numpy")
AUTOMATIC = ("cython", "numba", "numpy")  # fastest first; the last one needs NumPy alone

_MODULES = {
    "cython": "spo_fast.backends.compiled",
    "numba": "spo_fast.backends.jit",
    "numpy": "spo_fast.backends.reference",
}
_REMEDIES = {
    "cython": "build it with a C compiler: pip install --no-build-isolation -e . in a checkout, or a wheel",
    "numba": "install Numba: pip install numba",
    "numpy": "install NumPy: pip install numpy",
}
_REMEDIES |= {name: f"build it: spo-fast backends --build {name}" for name in FOREIGN if name != "julia"}
_REMEDIES["julia"] = "install Julia 1.5 or newer, or set SPO_FAST_JULIA to its program"

_BUILD_NOTE = Path(__file__).resolve().parent.parent / "_core_not_built.txt"  # left by a failed build

_loaded: dict[str, Any] = {}  # modules, and what stands for one where a library does
_failures: dict[str, str] = {}
_default: list[Any] = []
_lock = threading.RLock()


def _unlock() -> None:
    """A child does not have the thread that may have held the lock when it was forked."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def backends() -> dict[str, str]:
    """Tell which backends can be used.

    Returns
    -------
    dict of str to str
        For each name "available", or the reason why it is not. Numba is looked for but not imported, and
        libraries of other languages are looked for but not opened.

    Examples
    --------
    >>> backends()["numpy"]
    'available'
    """
    return {name: _reason(name) or "available" for name in NAMES}


def load(name: str | None = None) -> Any:
    """Return the module of a backend; None and "auto" mean the fastest available of those written for Python.

    Parameters
    ----------
    name : str, optional
        "auto" or one of `NAMES`.

    Raises
    ------
    ValueError
        If `name` is no name of a backend.
    RuntimeError
        If the backend cannot be loaded, with the reason and how to get it.
    """
    if name is None or (isinstance(name, str) and name == "auto"):
        return _default[0] if _default else _load_default()
    check_name(name)
    module = _attempt(name)
    if module is None:
        raise RuntimeError(f"backend {name!r} cannot be used: {_failures[name]}; {_REMEDIES[name]}")
    return module


def check_name(name: Any) -> None:
    """Refuse what is no name of a backend.

    Raises
    ------
    ValueError
        Listing the names.
    """
    if not isinstance(name, str) or name not in (*NAMES, "auto"):
        listed = ", ".join(repr(known) for known in ("auto", *NAMES))
        raise ValueError(f"backend must be one of {listed}, got {name!r}")


def load_part(package: str, modules: Mapping[str, str], what: str, name: str) -> Any:
    """Return the module of a backend for work that not all of them do.

    Parameters
    ----------
    package : str
        Where the modules are.
    modules : mapping of str to str
        Backends that have one, with its name.
    what : str
        The work, for messages.
    name : str
        Of a backend.

    Raises
    ------
    ValueError
        If `name` is no name of a backend, or that of one without this work.
    RuntimeError
        If the backend cannot be loaded, with the reason and how to get it.
    """
    check_name(name)
    if name not in modules:
        listed = ", ".join(repr(known) for known in ("auto", *modules))
        raise ValueError(f"backend must be one of {listed} for {what}, got {name!r}")
    load(name)
    try:
        return import_module(f"{package}.{modules[name]}")
    except ImportError as error:
        raise RuntimeError(f"backend {name!r} cannot be used for {what}: {error}; build it again") from error


def _load_default() -> Any:
    for name in AUTOMATIC:
        module = _attempt(name)
        if module is not None:
            _default[:] = [module]
            return module
    raise RuntimeError("no backend can be loaded: " + "; ".join(f"{k}: {v}" for k, v in _failures.items()))


def _attempt(name: str) -> Any:
    """Load a backend once, None if that fails; a failure of any kind is remembered as a sentence.

    A library that was missing is looked for again: it may have been built meanwhile.
    """
    if name in _loaded:
        return _loaded[name]
    if name in _failures and name not in FOREIGN:
        return None
    with _lock:  # two threads must not start one runtime twice
        if name not in _loaded:
            try:
                _loaded[name] = _module(name)
            except Exception as error:  # a broken Numba raises more than ImportError
                _failures[name] = _sentence(error)
        return _loaded.get(name)


def _module(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    from spo_fast.backends.foreign import Foreign

    return Foreign(name)


def _sentence(error: Exception) -> str:
    from spo_fast.backends.libraries import Unavailable

    if isinstance(error, Unavailable):
        return str(error)
    if _BUILD_NOTE.is_file() and isinstance(error, ImportError):
        return _BUILD_NOTE.read_text().strip()
    text = " ".join(str(error).split()) or "no further detail"
    return f"the import failed with {type(error).__name__}: {text}"


def _reason(name: str) -> str | None:
    """Return why a backend cannot be used, or None; only what needs the C core or NumPy is imported."""
    if name in FOREIGN:
        return None if name in _loaded else _probe(name)
    if name in _failures:
        return _failures[name]
    if name == "numba":
        return None if _has_numba() else "the import failed with ModuleNotFoundError: No module named 'numba'"
    return None if _attempt(name) is not None else _failures[name]


def _probe(name: str) -> str | None:
    """Return why a library of another language cannot be used, without opening it."""
    if name == "julia":
        from spo_fast.backends import julia

        return julia.probe() or _failures.get(name)
    from spo_fast.backends import libraries

    try:
        path = libraries.find(name)
    except libraries.Unavailable as error:
        return str(error)
    failure = _failures.get(name, "")
    return failure if str(path) in failure else None  # an attempt to open this very file failed


def _has_numba() -> bool:
    try:
        return find_spec("numba") is not None
    except Exception:  # find_spec raises ValueError for a half-removed or stubbed module
        return False
