"""Names of the backends, their order, and why one is missing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

NAMES = ("cython", "numba", "rust", "go", "julia", "mojo", "numpy")
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
_FOREIGN = "not built: this version ships no library of this backend"

_BUILD_NOTE = Path(__file__).resolve().parent.parent / "_core_not_built.txt"  # left by a failed build

_loaded: dict[str, ModuleType] = {}
_failures: dict[str, str] = {}
_default: list[ModuleType] = []


def backends() -> dict[str, str]:
    """Tell which backends can be used.

    Returns
    -------
    dict of str to str
        For each name "available", or the reason why it is not. Numba is looked for but not imported.

    Examples
    --------
    >>> backends()["numpy"]
    'available'
    """
    return {name: _reason(name) or "available" for name in NAMES}


def load(name: str | None = None) -> ModuleType:
    """Return the module of a backend; None and "auto" mean the fastest available.

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
        remedy = _REMEDIES.get(name)
        hint = f"; {remedy}" if remedy else f"; use one of {', '.join(AUTOMATIC)}"
        raise RuntimeError(f"backend {name!r} cannot be used: {_reason(name)}{hint}")
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


def _load_default() -> ModuleType:
    for name in AUTOMATIC:
        module = _attempt(name)
        if module is not None:
            _default[:] = [module]
            return module
    raise RuntimeError("no backend can be loaded: " + "; ".join(f"{k}: {v}" for k, v in _failures.items()))


def _attempt(name: str) -> ModuleType | None:
    """Import a backend once; a failure of any kind is remembered as a sentence."""
    if name in _loaded:
        return _loaded[name]
    if name not in _MODULES or name in _failures:
        return None
    try:
        module = import_module(_MODULES[name])
    except Exception as error:  # a broken Numba raises more than ImportError
        _failures[name] = _sentence(error)
        return None
    return _loaded.setdefault(name, module)


def _sentence(error: Exception) -> str:
    if _BUILD_NOTE.is_file() and isinstance(error, ImportError):
        return _BUILD_NOTE.read_text().strip()
    text = " ".join(str(error).split()) or "no further detail"
    return f"the import failed with {type(error).__name__}: {text}"


def _reason(name: str) -> str | None:
    """Return why a backend cannot be used, or None; only Numba is judged without importing it."""
    if name not in _MODULES:
        return _FOREIGN
    if name in _failures:
        return _failures[name]
    if name == "numba":
        return None if _has_numba() else "the import failed with ModuleNotFoundError: No module named 'numba'"
    return None if _attempt(name) is not None else _failures[name]


def _has_numba() -> bool:
    try:
        return find_spec("numba") is not None
    except Exception:  # find_spec raises ValueError for a half-removed or stubbed module
        return False
