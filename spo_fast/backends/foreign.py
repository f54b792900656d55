"""Libraries of other languages behind the backend protocol: one adapter for all of ``spo_fast.h``.

cffi reads the header itself. A library is opened when its backend is asked for by name, and never closed;
its version and the completeness of its symbols are checked then. Calls release the GIL.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import cffi
import numpy as np

from spo_fast.backends import libraries, reference, registry
from spo_fast.backends.libraries import Unavailable
from spo_fast.backends.record import Record
from spo_fast.backends.status import Status
from spo_fast.tableaux import TABLEAUX
from spo_fast.validation import (
    ModulationParameters,
    Network,
    SparseCoupling,
    as_coupling,
    as_output,
    as_phases,
    explain_refusal,
    refuse_moments,
)

NAMES = registry.FOREIGN
NO_FORKS = frozenset({"go", "julia"})  # runtimes whose threads do not survive a fork
ONE_THREAD = frozenset({"julia"})  # runtimes that answer to the thread that started them
METHODS = {name: number for number, name in enumerate(TABLEAUX)}  # enum spo_method


# ---------------------------------------------------------------- header


def declarations(header: str) -> str:
    """Return a C header without preprocessor lines and C++ linkage: what cffi reads."""
    text = re.sub(r"^#ifdef __cplusplus.*?^#endif", "", header, flags=re.M | re.S)
    return re.sub(r"^#.*$", "", text, flags=re.M)


def read_header() -> tuple[cffi.FFI, str]:
    """Return an FFI that knows ``spo_fast.h``, and the text of that header."""
    header = (libraries.include() / "spo_fast.h").read_text(encoding="utf-8")
    ffi = cffi.FFI()
    ffi.cdef(declarations(header))
    return ffi, header


def functions(header: str) -> dict[str, str]:
    """Return the functions that a C header declares, each with the type of a pointer to it."""
    text = re.sub(r"/\*.*?\*/", "", declarations(header), flags=re.S)
    found = re.findall(r"^([a-z][\w ]*[ *])(spo_\w+)\(([^)]*)\);", text, flags=re.M)
    return {name: f"{result.strip()} (*)({' '.join(given.split())})" for result, name, given in found}


def abi_version(header: str) -> int:
    """Return the version of the interface that a C header describes."""
    found = re.search(r"^#define SPO_ABI_VERSION (\d+)$", header, flags=re.M)
    if found is None:
        raise Unavailable("spo_fast.h does not tell SPO_ABI_VERSION")
    return int(found[1])


def open_library(ffi: cffi.FFI, path: Path, name: str, header: str) -> Any:
    """Open a library and check that it is what it should be.

    Parameters
    ----------
    ffi : cffi.FFI
        Has read the header.
    path : Path
        Of the library.
    name : str
        Of the backend.
    header : str
        Text of ``spo_fast.h``.

    Raises
    ------
    Unavailable
        If it cannot be opened, lacks a function, or is of another version or backend.
    """
    try:
        library = ffi.dlopen(str(path))
    except OSError as error:
        reason = str(error).partition("Additionally")[0].rstrip(". ")  # what follows is about other names
        raise Unavailable(f"{path} cannot be loaded: {reason}") from error
    check_library(ffi, library, path, name, header)
    return library


def check_library(ffi: cffi.FFI, library: Any, path: Path, name: str, header: str) -> None:
    """Refuse a library that is incomplete, or of another version or backend; see `open_library`."""
    missing = [symbol for symbol in functions(header) if not _exports(library, symbol)]
    if missing:
        raise Unavailable(f"{path} lacks {', '.join(missing)}, which spo_fast.h declares")
    expected, found = abi_version(header), library.spo_abi_version()
    if found != expected:
        raise Unavailable(
            f"{path} implements version {found} of spo_fast.h, this package needs version {expected}; "
            f"rebuild it: spo-fast backends --build {name}"
        )
    itself = ffi.string(library.spo_backend_name()).decode()
    if itself != name:
        raise Unavailable(f"{path} is the library of backend {itself!r}, not of {name!r}")


def _exports(library: Any, symbol: str) -> bool:
    try:
        return getattr(library, symbol, None) is not None
    except AttributeError:
        return False


def portable(name: str = "cython") -> tuple[cffi.FFI, Any]:
    """Return the portable functions of a backend, to be called from compiled code of one's own.

    Parameters
    ----------
    name : {"cython", "rust", "go", "julia", "mojo"}
        Backend; "cython" is the C core.

    Returns
    -------
    ffi : cffi.FFI
        Knows the structs of ``spo_fast.h``.
    library : object
        Its functions, as ``library.spo_modulate``; those of Julia are Python functions that guard its thread,
        and no C pointers.

    Raises
    ------
    ValueError
        If `name` is no backend with such functions.
    RuntimeError
        If it cannot be loaded.
    """
    if name in NAMES:
        backend = registry.load(name)
        backend.check_process()
        return backend.ffi, backend.library
    if name != "cython":
        raise ValueError(f"name must be one of 'cython', {', '.join(map(repr, NAMES))}, got {name!r}")
    registry.load(name)
    from spo_fast import _core

    ffi, _ = read_header()
    return ffi, ffi.dlopen(_core.__file__)


# ---------------------------------------------------------------- a backend


class Foreign:
    """A loaded library, with the names that every backend module has.

    Parameters
    ----------
    name : str
        One of `NAMES`.

    Attributes
    ----------
    NAME : str
        The name.
    ffi : cffi.FFI
        Knows the structs of the header.
    library : object
        Its functions.
    path : Path
        Where the library lies; of Julia its module.

    Raises
    ------
    Unavailable
        If it cannot be loaded here.
    """

    def __init__(self, name: str) -> None:
        self.NAME = name
        self.ffi, header = read_header()
        if name == "julia":
            from spo_fast.backends import julia

            self.path = libraries.sources(name)
            self.library = julia.load(self.ffi, functions(header))
            check_library(self.ffi, self.library, self.path, name, header)
        else:
            self.path = libraries.find(name)
            self.library = open_library(self.ffi, self.path, name, header)
        self._home = os.getpid()
        self.lost: str | None = None  # why it can no longer be called
        if name in NO_FORKS and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._lose)
        self.ModulationPlan = partial(ModulationPlan, self)
        self.BoundModulation = partial(BoundModulation, self)
        self.Integration = partial(Integration, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return registry.load, (self.NAME,)

    def _lose(self) -> None:
        self.lost = (
            f"backend {self.NAME!r} was loaded in process {self._home} and cannot be used in its fork "
            f"{os.getpid()}: the {self.NAME.capitalize()} runtime does not survive a fork; start workers by "
            "spawn, or use another backend in them"
        )

    def check_process(self) -> None:
        """Refuse to go on in a fork of the process that loaded a runtime which does not survive forks.

        Raises
        ------
        RuntimeError
            Telling both processes.
        """
        if self.lost:
            raise RuntimeError(self.lost)

    def call(self, function: str, *arguments: Any) -> int:
        """Call a function of the header and return its status; see `check_process`."""
        if self.lost:
            self.check_process()
        return getattr(self.library, function)(*arguments)

    def text(self, status: int) -> str:
        """Return the library's text of a status."""
        return self.ffi.string(self.library.spo_status_text(status)).decode()

    def doubles(self, array: np.ndarray | None) -> Any:
        """Return a pointer to the data of a C-ordered array; it keeps the array alive. NULL for None."""
        if array is None or array.size == 0:
            return self.ffi.NULL
        return self.ffi.from_buffer("double *", array)

    def modulation(self, parameters: ModulationParameters) -> tuple[Any, list[Any]]:
        """Return the struct of these parameters, and the pointers that must live as long."""
        p = parameters
        pointers = [self.doubles(array) for array in (p.w_q, p.w_k, p.w_v, p.w_o, p.temperature)]
        numbers = [p.n_heads, p.d_model, p.block_size]
        return self.ffi.new("spo_modulation *", [*numbers, *pointers, p.lambda_]), pointers

    def dense(self, knm: Any) -> np.ndarray:
        """Return a dense coupling.

        Raises
        ------
        ValueError
            For a sparse one, which the portable interface does not have.
        """
        if isinstance(knm, SparseCoupling):
            raise ValueError(
                f"knm must be dense for backend {self.NAME!r}, got a sparse matrix; "
                "'cython', 'numba' and 'numpy' take one"
            )
        return knm

    def refuse(self, status: int, knm: np.ndarray, theta: np.ndarray) -> None:
        """Raise what belongs to a status that is not `Status.OK`.

        Raises
        ------
        ValueError, MemoryError, RuntimeError
            By status.
        """
        if status == Status.OUT_OF_MEMORY:
            raise MemoryError(self.text(status))
        explain_refusal(knm, theta, status)

    def order_parameter(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Order parameter and mean phase of each row; see `spo_fast.backends.reference`."""
        rows, n = theta.shape
        r, psi = np.empty(rows), np.empty(rows)
        at, to_r, to_psi = self.doubles(theta), self.doubles(r), self.doubles(psi)
        for row in range(rows):
            status = self.call("spo_order_parameter", n, at + row * n, to_r + row, to_psi + row)
            if status == Status.NONFINITE_PHASE:
                r[row] = psi[row] = np.nan
            elif status != Status.OK:
                raise RuntimeError(self.text(status))
        return r, psi


# ---------------------------------------------------------------- modulation


class ModulationPlan:
    """Modulation with given parameters of whatever coupling comes; may be shared by threads.

    Parameters
    ----------
    backend : Foreign
        Whose library does it.
    parameters : ModulationParameters
        Checked parameters.
    """

    def __init__(self, backend: Foreign, parameters: ModulationParameters) -> None:
        self.parameters = parameters
        self._backend = backend
        self._struct, self._kept = backend.modulation(parameters)

    def __reduce__(self) -> tuple[Any, ...]:
        return ModulationPlan, (self._backend, self.parameters)

    def __call__(
        self, knm: Any, theta: Any, out: np.ndarray | None = None, algorithm: str = "auto"
    ) -> np.ndarray:
        """K' of shape (N, N) for a coupling and phases; see `spo_fast.modulate`. O(N^2 (d + H exp))."""
        refuse_moments(algorithm)
        coupling = as_coupling(knm)
        n = coupling.shape[0]
        phases = as_phases(theta, n)
        result = np.empty((n, n)) if out is None else as_output(out, n, knm, coupling)
        backend = self._backend
        doubles = backend.doubles
        status = backend.call(
            "spo_modulate", n, doubles(coupling), doubles(phases), self._struct, doubles(result)
        )
        if status != Status.OK:
            backend.refuse(status, coupling, phases)
        return result

    def bind(self, knm: Any, algorithm: str = "auto") -> BoundModulation:
        """Return this modulation with a checked copy of K."""
        refuse_moments(algorithm)
        return BoundModulation(self._backend, self.parameters, knm)

    def modulate_sparse(self, coupling: SparseCoupling, theta: np.ndarray) -> np.ndarray:
        """Refuse, with a ValueError: the portable interface is dense."""
        return self._backend.dense(coupling)

    def refuse_sparse(self, coupling: SparseCoupling) -> None:
        """Refuse, with a ValueError, before a plan is bound to such a coupling."""
        self._backend.dense(coupling)


class BoundModulation:
    """Modulation of one coupling, of which it keeps a copy.

    Parameters
    ----------
    backend : Foreign
        Whose library does it.
    parameters : ModulationParameters
        Checked parameters.
    knm : array_like, shape (N, N)
        Symmetric coupling with a zero diagonal.

    Attributes
    ----------
    knm : ndarray, shape (N, N)
        The copy, read-only.
    """

    def __init__(self, backend: Foreign, parameters: ModulationParameters, knm: Any) -> None:
        self._formulas = reference.BoundModulation(parameters, knm)
        self._plan = ModulationPlan(backend, parameters)
        self.parameters = parameters
        self.knm = self._formulas.knm

    def __call__(self, theta: Any, out: np.ndarray | None = None) -> np.ndarray:
        """K' of shape (N, N) at these phases."""
        return self._plan(self.knm, theta, out)

    def factors(self, theta: Any) -> np.ndarray:
        """Unit outputs, shape (N, d), by NumPy's formulas: the portable interface does not offer them."""
        return self._formulas.factors(theta)


# ---------------------------------------------------------------- integration


def _of_state(field: str, meaning: str) -> Any:
    """Return a property that is a number of the struct ``spo_state``."""

    def read(integration: Integration) -> Any:
        return getattr(integration._state, field)

    def write(integration: Integration, value: float) -> None:
        setattr(integration._state, field, value)

    return property(read, write, doc=meaning)


class Integration:
    """One trajectory being advanced; serves one thread at a time.

    Parameters
    ----------
    backend : Foreign
        Whose library does it.
    n : int
        Number of oscillators.
    method : {"euler", "rk4", "rk45"}
        Integrator.
    dt : float
        Step size in units of time; for rk45 the first one, and a tenth of the largest.
    atol, rtol : float
        Tolerances of rk45.

    Attributes
    ----------
    theta : ndarray, shape (n,), radians
        Current state, wrapped into [0, 2 pi).
    t, dt : float
        Time, and the step size tried next.
    step : int
        Steps taken.
    """

    def __init__(self, backend: Foreign, n: int, method: str, dt: float, atol: float, rtol: float) -> None:
        self._backend = backend
        self._n = n
        self.theta = np.zeros(n)
        self._integrator = backend.ffi.new("spo_integrator *", [METHODS[method], dt, atol, rtol])
        self._state = backend.ffi.new(
            "spo_state *", [backend.doubles(self.theta), backend.ffi.NULL, 0, dt, 0]
        )
        self._network: Any = None

    t = _of_state("t", "Time reached.")
    dt = _of_state("dt", "Step size tried next.")
    step = _of_state("step", "Steps taken.")

    def set_network(self, network: Network) -> None:
        """Take a right-hand side, which is kept by reference.

        Parameters
        ----------
        network : Network
            Checked kinds and shapes, dense.

        Raises
        ------
        ValueError
            For a sparse coupling, and for one that is to be modulated and is not symmetric, finite and of
            zero diagonal.
        """
        backend, null = self._backend, self._backend.ffi.NULL
        knm = backend.dense(network.knm)
        pointers = [backend.doubles(array) for array in (network.omega, knm, network.alpha)]
        struct, self._modulated, kept = null, None, None
        if network.modulation is not None:
            refuse_moments(network.modulation.algorithm)
            struct, kept = backend.modulation(network.modulation)
            self._modulated = np.empty((self._n, self._n))
        self._state.modulated = backend.doubles(self._modulated)
        self._network = backend.ffi.new(
            "spo_network *",
            [
                self._n,
                *pointers,
                network.uniform_alpha,
                network.zeta,
                network.psi,
                struct,
                network.modulate_every,
            ],
        )
        self._kept = (network, pointers, struct, kept)
        if network.modulation is not None and self._run(0, null) != Status.OK:
            backend.refuse(self._run(0, null), knm, self.theta)

    def start(self, theta: np.ndarray) -> None:
        """Begin at step 0 and time 0 from phases of any size, shape (n,), radians, which are wrapped."""
        self.theta[:] = reference.wrap(np.asarray(theta, dtype=np.float64))
        self.t, self.step, self.dt = 0.0, 0, self._integrator.dt

    def advance(self, n_steps: int, record: Record | None = None) -> int:
        """Take `n_steps` steps; returns a `Status`; a failure keeps the last good state. O(N^2) a stage."""
        if self._network is None:
            raise RuntimeError("set_network must come before advance")
        if record is None:
            return Status(self._run(n_steps, self._backend.ffi.NULL))
        kept = (record.theta, record.t, record.R, record.psi, record.t_observe)
        pointers = [self._backend.doubles(array) for array in kept]
        return Status(self._run(n_steps, self._backend.ffi.new("spo_record *", [record.every, *pointers])))

    def _run(self, n_steps: int, record: Any) -> int:
        return self._backend.call(
            "spo_kuramoto_run", self._network, self._integrator, self._state, n_steps, record
        )
