"""The library in Julia: finds an installed Julia, starts it inside this process, and takes its C functions.

A process holds one Julia. If one is there already (started by juliacall or by any other code), the module is
evaluated in it; else it is started with one thread and without signal handlers, and what it changes in the
process all the same is put back. Julia answers only to the thread that started it.
"""

from __future__ import annotations

import ctypes
import locale
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from spo_fast.backends.libraries import Unavailable, sources

PROGRAM_VARIABLE = "SPO_FAST_JULIA"

_NO_PROGRAM = "there is no program julia on PATH"
_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_OPTIONS = ("--startup-file=no", "--handle-signals=no", "--threads=1")
_INITIALISERS = ("jl_init_with_image_file", "jl_init_with_image", "jl_init_with_image__threading")
_STRUCT_ROOM = 512  # bytes, more than any struct of the C library needs here
_QUESTION = f"""
using Libdl
println(Sys.BINDIR)
println(first(filter(path -> startswith(basename(path), r"libjulia[.0-9]*{re.escape(_SUFFIX)}"), dllist())))
println(unsafe_string(Base.JLOptions().image_file))
"""


class Library:
    """The functions of ``spo_fast.h``. Each is compiled at its first call, in the thread that runs Julia."""

    spo_abi_version: Callable[..., Any]
    spo_backend_name: Callable[..., Any]
    spo_status_text: Callable[..., Any]
    spo_modulate: Callable[..., Any]
    spo_order_parameter: Callable[..., Any]
    spo_kuramoto_run: Callable[..., Any]

    def __init__(self, ffi: Any, runtime: _Runtime, signatures: dict[str, str]) -> None:
        for name, signature in signatures.items():
            setattr(self, name, _function(ffi, runtime, name, signature))


def probe() -> str | None:
    """Tell, without starting Julia, why it cannot be used.

    Returns
    -------
    str or None
        The reason, or None if there is none to be seen.
    """
    if os.name != "posix":
        return "Julia is started inside the process on Linux and macOS only"
    try:
        sources("julia")
    except Unavailable as error:
        return str(error)
    if _running() is None and _program() is None:
        named = os.environ.get(PROGRAM_VARIABLE)
        return f"{PROGRAM_VARIABLE} names no program: {named}" if named else _NO_PROGRAM
    return None


def load(ffi: Any, signatures: dict[str, str]) -> Library:
    """Start Julia, or find it running, and load the module.

    Parameters
    ----------
    ffi : cffi.FFI
        Has read ``spo_fast.h``.
    signatures : dict of str to str
        The types of pointers to its functions.

    Returns
    -------
    Library
        Its functions raise RuntimeError in every thread but the one that started Julia.

    Raises
    ------
    Unavailable
        If Julia cannot be used, with the reason.
    """
    reason = probe()
    if reason is not None:
        raise Unavailable(reason)
    if not _runtimes:
        _runtimes.append(_open_runtime())
    return Library(ffi, _runtimes[0], signatures)


class _Runtime(NamedTuple):
    """A running Julia that has the module."""

    evaluate_unchecked: Callable[[str], int]

    def evaluate(self, code: str) -> int:
        _check_thread()
        return self.evaluate_unchecked(code)


class _Installation(NamedTuple):
    """Where the parts of Julia lie."""

    programs: str
    library: str
    image: str


_runtimes: list[_Runtime] = []
_thread = threading.local()  # has `runs_julia` in the thread that does; identifiers of threads are used again


def _check_thread() -> None:
    if not getattr(_thread, "runs_julia", False):
        raise RuntimeError(
            "Julia runs in the thread that called it first and answers to no other, "
            "nor to any once that one has ended"
        )


def _function(ffi: Any, runtime: _Runtime, name: str, signature: str) -> Callable[..., Any]:
    """Return a function that refuses every other thread and is made at its first call."""
    pointer: Callable[..., Any] | None = None

    def call(*arguments: Any) -> Any:
        nonlocal pointer
        _check_thread()
        if pointer is None:
            pointer = ffi.cast(signature, runtime.evaluate(f"UInt(__spo_fast__.c_function(Val(:{name})))"))
        return pointer(*arguments)

    return call


def _program() -> str | None:
    return shutil.which(os.environ.get(PROGRAM_VARIABLE) or "julia")


def _open_runtime() -> _Runtime:
    julia = _running()
    if julia is None or not julia.jl_is_initialized():
        julia = _start(julia)
    elif threading.current_thread() is not threading.main_thread():
        raise Unavailable("Julia runs already in this process and can be loaded from its main thread only")
    _thread.runs_julia = True
    runtime = _Runtime(_evaluator(julia))
    path = re.sub(r'([\\"$])', r"\\\1", str(sources("julia") / "src" / "SpoFast.jl"))
    runtime.evaluate(f'global __spo_fast__ = Base.include(Module(:__spo_fast__), "{path}"); UInt(0)')
    return runtime


def _running() -> ctypes.PyDLL | None:
    """The Julia library that this process has loaded, if any."""
    everything = ctypes.PyDLL(None)
    if hasattr(everything, "jl_is_initialized"):
        return everything
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.partition("/")[2]
            if re.search(r"/libjulia\.so[.0-9]*$", path):
                return ctypes.PyDLL("/" + path, mode=ctypes.RTLD_GLOBAL)
    return None


def _evaluator(julia: ctypes.PyDLL) -> Callable[[str], int]:
    """A function that evaluates code in Main to a UInt."""
    juliacall = sys.modules.get("juliacall")
    if juliacall is not None:  # it knows in which state it left Julia
        return lambda code: int(juliacall.Main.seval(f"begin {code} end"))
    julia.jl_eval_string.restype = ctypes.c_void_p
    julia.jl_typeof_str.restype = julia.jl_string_ptr.restype = ctypes.c_char_p
    julia.jl_typeof_str.argtypes = julia.jl_string_ptr.argtypes = [ctypes.c_void_p]
    julia.jl_unbox_uint64.restype = ctypes.c_uint64
    julia.jl_unbox_uint64.argtypes = [ctypes.c_void_p]

    def evaluate(code: str) -> int:
        guarded = f"try; {code}; catch error; sprint(showerror, error); end"
        value = julia.jl_eval_string(guarded.encode())
        if value and julia.jl_typeof_str(value) == b"String":
            raise Unavailable(f"Julia failed: {julia.jl_string_ptr(value).decode(errors='replace')}")
        if not value:
            raise Unavailable("Julia failed without a reason")
        return julia.jl_unbox_uint64(value)

    return evaluate


def _start(julia: ctypes.PyDLL | None) -> ctypes.PyDLL:
    """Start Julia in this thread; `julia` is the library if it is loaded already."""
    place = _installation()
    with _undisturbed():
        if julia is None:
            # Julia brings an unwinder of its own, by which C++ libraries that are loaded later would throw
            # their exceptions, and crash: let them find that of the compiler first.
            with suppress(OSError):
                ctypes.CDLL("libgcc_s.so.1", mode=ctypes.RTLD_GLOBAL)
            julia = ctypes.PyDLL(place.library, mode=ctypes.RTLD_GLOBAL)
        options = [b"julia", *(option.encode() for option in _OPTIONS)]
        count = ctypes.c_int(len(options))
        words = ctypes.cast((ctypes.c_char_p * (len(options) + 1))(*options, None), ctypes.c_void_p)
        julia.jl_parse_opts(ctypes.byref(count), ctypes.byref(words))
        initialiser = next(name for name in _INITIALISERS if hasattr(julia, name))
        getattr(julia, initialiser)(os.fsencode(place.programs), os.fsencode(place.image))
    return julia


def _installation() -> _Installation:
    """Find the parts by their usual places, else ask the program."""
    program = _program()
    if program is None:
        raise Unavailable(_NO_PROGRAM)
    return _standard_layout(Path(program).resolve()) or _asked(program)


def _standard_layout(program: Path) -> _Installation | None:
    """Bin, lib and lib/julia side by side, as in official archives and distributions; None if in doubt."""
    if program.name != "julia" or program.read_bytes()[:2] == b"#!":
        return None
    lib = program.parent.parent / "lib"
    for folder in (lib, lib / str(sysconfig.get_config_var("MULTIARCH"))):
        image = folder / "julia" / f"sys{_SUFFIX}"
        names = (path for path in folder.glob("libjulia.*") if _SUFFIX in path.name)
        libraries = {path.resolve() for path in names}
        if image.is_file() and len(libraries) == 1:
            return _Installation(str(program.parent), str(libraries.pop()), str(image))
    return None


def _asked(program: str) -> _Installation:
    command = [program, "--startup-file=no", "-e", _QUESTION]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{program}, asked for its library, does not answer") from error
    except OSError as error:
        raise Unavailable(f"{program} cannot be run: {error.strerror}") from error
    lines = run.stdout.splitlines()
    if run.returncode != 0 or len(lines) != 3:
        last = (run.stderr.splitlines() or ["nothing that Julia would"])[-1]
        raise Unavailable(f"{program}, asked for its library, says {last}")
    for path in lines[1:]:
        if not os.path.isfile(path):  # Julia would end the process
            raise Unavailable(f"{program} names {path}, which does not exist")
    return _Installation(*lines)


def _signal_actions(c: ctypes.PyDLL) -> dict[int, Any]:
    """What the process does at each signal: structs of the C library."""
    actions = {number: ctypes.create_string_buffer(_STRUCT_ROOM) for number in range(1, signal.NSIG)}
    return {number: action for number, action in actions.items() if c.sigaction(number, None, action) == 0}


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put back what starting Julia changes in the process: signals, locale, floating point, file modes.

    Julia still waits in a thread of its own for SIGINT, SIGTERM, SIGQUIT, SIGABRT and SIGUSR1, and would get
    those that every thread of Python blocks.
    """
    import fcntl  # not on Windows

    c = ctypes.PyDLL(None)
    actions = _signal_actions(c)
    stack, floating = ctypes.create_string_buffer(_STRUCT_ROOM), ctypes.create_string_buffer(_STRUCT_ROOM)
    c.sigaltstack(None, stack)
    c.fegetenv(floating)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    modes = {}
    for descriptor in range(3):
        with suppress(OSError):
            modes[descriptor] = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    language = locale.setlocale(locale.LC_ALL)
    threads = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads are of no use here
    try:
        yield
    finally:
        if threads is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = threads
        locale.setlocale(locale.LC_ALL, language)
        for descriptor, mode in modes.items():
            fcntl.fcntl(descriptor, fcntl.F_SETFL, mode)
        c.fesetenv(floating)
        c.sigaltstack(stack, None)
        for number, action in _signal_actions(c).items():
            if action.raw[:16] != actions[number].raw[:16]:  # the handler and what it blocks
                c.sigaction(number, actions[number], None)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
