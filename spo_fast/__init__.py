"""Fast kernels for networks of phase oscillators whose coupling depends on their state.

The public names are loaded when they are first used: importing this package costs NumPy and little else,
compiles nothing, and starts no thread.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spo_fast import (  # noqa: F401  (not all in __all__: Numba, Matplotlib)
        attention,
        compat,
        datasets,
        kernels,
        plotting,
        pulse,
    )
    from spo_fast.backends.registry import backends
    from spo_fast.derivatives import ModulationGradients, SimulationGradients, modulate_vjp, simulate_vjp
    from spo_fast.kuramoto import Engine, simulate
    from spo_fast.modulation import Modulator, default_projections, modulate
    from spo_fast.observables import (
        entropy_production_rate,
        layer_coherence,
        lyapunov_spectrum,
        order_parameter,
        plv,
    )
    from spo_fast.simulation import Simulation, SimulationError
    from spo_fast.sweeps import SweepError, sweep

    __version__: str

_HOMES = {
    "Engine": "kuramoto",
    "ModulationGradients": "derivatives",
    "Modulator": "modulation",
    "Simulation": "simulation",
    "SimulationError": "simulation",
    "SimulationGradients": "derivatives",
    "SweepError": "sweeps",
    "default_projections": "modulation",
    "entropy_production_rate": "observables",
    "layer_coherence": "observables",
    "lyapunov_spectrum": "observables",
    "modulate": "modulation",
    "modulate_vjp": "derivatives",
    "order_parameter": "observables",
    "plv": "observables",
    "simulate": "kuramoto",
    "simulate_vjp": "derivatives",
    "sweep": "sweeps",
}
# `backends` can be called.
_MODULES = ("attention", "backends", "compat", "datasets", "kernels", "plotting", "pulse")

__all__ = [  # noqa: RUF022  (in the order of the documentation)
    "modulate",
    "Modulator",
    "default_projections",
    "Engine",
    "simulate",
    "Simulation",
    "SimulationError",
    "sweep",
    "SweepError",
    "modulate_vjp",
    "simulate_vjp",
    "ModulationGradients",
    "SimulationGradients",
    "order_parameter",
    "layer_coherence",
    "plv",
    "entropy_production_rate",
    "lyapunov_spectrum",
    "backends",
    "get_include",
    "attention",
    "compat",
    "datasets",
]


def get_include() -> str:
    """Return the directory of the C headers and of the Cython declarations, for ``-I``.

    Returns
    -------
    str
        An existing directory that holds ``spo_fast.h``.

    Raises
    ------
    RuntimeError
        If this installation carries no headers.
    """
    from pathlib import Path

    package = Path(__file__).resolve().parent
    for directory in (package / "include", package.parent / "csrc" / "include"):
        if (directory / "spo_fast.h").is_file():
            return str(directory)
    raise RuntimeError(
        "this installation of spo_fast carries no C headers; reinstall it from a wheel or the source"
    )


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"spo_fast.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"spo_fast.{name}")
    elif name == "__version__":
        value = _version()
    else:
        raise AttributeError(f"module 'spo_fast' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("spo-fast")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0+unknown"
