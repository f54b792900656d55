"""Where the libraries written in other languages lie, and how they are built.

A library comes with the package when its toolchain was there at installation, or is built later by
``spo-fast backends --build`` into a folder of the user's own. Each has a small description beside it (JSON)
that names the processor level it needs. This file needs the standard library alone: the installation
runs it before there is a package.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent
TOOLCHAINS = CHECKOUT / ".toolchains"  # an environment of its own for those that are Python packages
INSTALLED = PACKAGE / "lib"  # what an installation built
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
BUILD_SECONDS = 900  # after which a build is given up


class Unavailable(RuntimeError):
    """A backend that cannot be used here; the message is the whole reason."""


# x86-64 levels (System V psABI), best first: what LLVM calls them, and the features, as Linux spells them,
# that they add to what every processor has.
LEVELS = {
    "x86-64-v4": "avx2 fma bmi1 bmi2 movbe f16c abm avx512f avx512bw avx512cd avx512dq avx512vl",
    "x86-64-v3": "avx2 fma bmi1 bmi2 movbe f16c abm",
    "x86-64": "",
}


def level() -> str | None:
    """Return the best x86-64 level of this processor, None on another architecture."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    features = processor_features()
    return next(name for name, needed in LEVELS.items() if set(needed.split()) <= features)


def processor_features() -> set[str]:
    """Return the features that Linux lists; on another system none, which is what every processor has."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return set(line.partition(":")[2].split())


@dataclass(frozen=True)
class Language:
    """How the library of one language is made.

    Attributes
    ----------
    program : str
        The toolchain's command.
    commands : callable
        What to run, from the program's path, the sources, the path of the library and a folder for the rest.
    suffixes : frozenset of str
        Files that count as sources.
    variables : dict
        Environment of the build beyond that of this process.
    makes : str or None
        Where the commands leave the library, below the last of those folders, when they take no path for it.
    by_level : bool
        Whether the library is for processors of this one's level only; the others choose their instructions
        when they are loaded.
    """

    program: str
    commands: Callable[[str, Path, Path, Path], list[list[str]]]
    suffixes: frozenset[str]
    variables: dict[str, str] = field(default_factory=dict)
    makes: str | None = None
    by_level: bool = False


def _rust(cargo: str, source: Path, target: Path, work: Path) -> list[list[str]]:
    options = ["--release", "--offline", "--quiet", "--target-dir", str(work)]
    return [[cargo, "build", *options, "--manifest-path", str(source / "Cargo.toml")]]


def _go(go: str, source: Path, target: Path, work: Path) -> list[list[str]]:
    return [[go, "build", "-C", str(source), "-buildmode=c-shared", "-trimpath", "-o", str(target), "."]]


def _mojo(mojo: str, source: Path, target: Path, work: Path) -> list[list[str]]:
    """Compile, then link without Mojo's runtime, of which the library uses nothing.

    Contraction of products and sums would make results depend on the optimiser: it is switched off.
    """
    options = ["--emit", "object", "--fp-mode", "contract=off"]
    processor = ["--target-cpu", level() or ""] if level() else []
    made, main = str(work / "spo_fast.o"), str(source / "src" / "spo_fast.mojo")
    linker = os.environ.get("CC", "cc").split()
    return [
        [mojo, "build", *options, *processor, "-o", made, main],
        [*linker, "-shared", "-o", str(target), made, "-lm"],
    ]


LANGUAGES = {
    "rust": Language(
        "cargo",
        _rust,
        frozenset({".rs", ".toml", ".lock"}),
        makes=f"release/libspo_fast_rust{SUFFIX}",
    ),
    "go": Language(
        "go",
        _go,
        frozenset({".go", ".c", ".h", ".s", ".mod"}),
        {
            "CGO_ENABLED": "1",
            "GOEXPERIMENT": "simd",  # the vector types of simd/archsimd
            "GOFLAGS": "-mod=mod",
            "GOPROXY": "off",
            "GOTOOLCHAIN": "local",
        },
    ),
    "mojo": Language("mojo", _mojo, frozenset({".mojo"}), by_level=True),
}


# ---------------------------------------------------------------- places


def sources(name: str) -> Path:
    """Return the folder with a language's sources: the package's own, or that of the checkout around it.

    Raises
    ------
    Unavailable
        If this installation carries none.
    """
    for folder in (PACKAGE / "sources" / name, CHECKOUT / name):
        if folder.is_dir():
            return folder
    raise Unavailable(f"this installation carries no {name} sources; reinstall it from a wheel or the source")


def include() -> Path:
    """Return the folder of ``spo_fast.h``."""
    installed = PACKAGE / "include"
    return installed if (installed / "spo_fast.h").is_file() else CHECKOUT / "csrc" / "include"


def file_name(name: str) -> str:
    """Return the file name of a backend's library on this platform."""
    return f"libspo_fast_{name}{SUFFIX}"


def user_folder() -> Path:
    """Return the folder for what this user builds; ``SPO_FAST_LIBRARY_DIR`` overrides the platform's own.

    Raises
    ------
    Unavailable
        If the user has no home.
    """
    given = os.environ.get("SPO_FAST_LIBRARY_DIR")
    if given:
        return Path(given)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.path.expanduser(base), "spo_fast")
    if not folder.is_absolute():
        raise Unavailable(
            "there is no home directory to keep a library in; SPO_FAST_LIBRARY_DIR may name a folder"
        )
    return folder


def user_library(name: str) -> Path:
    """Return where this user's build of the present sources lies: another version never meets it."""
    return user_folder() / f"{name}-{_digest(name)}" / file_name(name)


def _digest(name: str) -> str:
    """Return a key of everything that a build depends on."""
    folder = sources(name)
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in LANGUAGES[name].suffixes]
    total = hashlib.sha256(f"{sys.platform} {platform.machine()} {LANGUAGES[name].variables}".encode())
    for path in [*files, include() / "spo_fast.h"]:
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def find(name: str) -> Path:
    """Return the library of a backend: the user's, which was built on purpose, or the installation's.

    Raises
    ------
    Unavailable
        If there is none, or this processor cannot run it; the message is the reason.
    """
    reasons = []
    for place in (user_library, installed_library):
        try:
            path = place(name)
            if path.is_file():
                _check_level(path)
                return path
        except (OSError, Unavailable) as error:  # a folder that this user may not look into
            reasons.append(str(error))
    raise Unavailable(reasons[-1] if reasons else _why_missing(name))


def installed_library(name: str) -> Path:
    """Return where the installation keeps its build."""
    return INSTALLED / file_name(name)


def _why_missing(name: str) -> str:
    note = INSTALLED / f"{name}_not_built.txt"
    if note.is_file():
        return note.read_text(encoding="utf-8").strip()
    wanted, found = LANGUAGES[name].program, toolchain(name)
    return f"not built; {wanted} is at {found}" if found else f"not built, and no {wanted} was found"


def _check_level(library: Path) -> None:
    """Refuse a library with instructions that this processor lacks."""
    description = library.with_suffix(".json")
    try:
        wanted = json.loads(description.read_text(encoding="utf-8"))["level"]
        needed = LEVELS[wanted].split() if wanted else []
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise Unavailable(
            f"{description}, which describes the library beside it, is missing or damaged"
        ) from error
    missing = set(needed) - processor_features()
    if missing:
        raise Unavailable(f"{library} needs {', '.join(sorted(missing))}, which this processor lacks")


# ---------------------------------------------------------------- toolchains


def program(name: str) -> str | None:
    """Return the path of a program: on PATH, beside this Python, or where toolchains usually live."""
    folders = [
        *os.environ.get("PATH", "").split(os.pathsep),
        str(Path(sys.executable).parent),
        str(TOOLCHAINS / "bin"),
        os.path.expanduser("~/.cargo/bin"),
        "/usr/local/go/bin",
    ]
    return shutil.which(name, path=os.pathsep.join(folders))


def toolchain(name: str) -> str | None:
    """Return the program that builds a language."""
    return program(LANGUAGES[name].program)


def variables(name: str) -> dict[str, str]:
    """Return the environment in which a language is built."""
    return os.environ | LANGUAGES[name].variables | {"CGO_CFLAGS": f"-O2 -I{include()}"}


def build(name: str, target: Path | None = None) -> Path:
    """Build the library of a language.

    Parameters
    ----------
    name : {"rust", "go", "mojo"}
        Its language.
    target : Path, optional
        The library's path; by default that of `user_library`.

    Returns
    -------
    Path
        The library, complete: it is made under another name and renamed at the end. Of two processes that
        build the same one the second waits for the first.

    Raises
    ------
    ValueError
        If `name` is no language that is built.
    Unavailable
        If the toolchain is missing or fails, with the end of what it said.
    """
    if name == "julia":
        raise ValueError(
            "julia needs no building: its program is looked for on PATH, or named by SPO_FAST_JULIA"
        )
    if name not in LANGUAGES:
        raise ValueError(f"name must be one of {', '.join(LANGUAGES)}, got {name!r}")
    target = target or user_library(name)
    tool = toolchain(name)
    if tool is None:
        raise Unavailable(f"building the {name} backend needs {LANGUAGES[name].program}, which was not found")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "SPO_FAST_LIBRARY_DIR may name another"
        raise Unavailable(
            f"the {name} library cannot be put into {target.parent}: {error.strerror}; {hint}"
        ) from error
    with _locked(target.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        language, fresh = LANGUAGES[name], Path(scratch, file_name(name))
        for command in language.commands(tool, sources(name), fresh, Path(scratch)):
            _run(name, command)
        description = Path(scratch, "description.json")
        told = {"level": level() if language.by_level else None, "sources": _digest(name)}
        description.write_text(json.dumps(told))
        os.replace(description, target.with_suffix(".json"))
        os.replace(Path(scratch, language.makes) if language.makes else fresh, target)
    return target


def is_current(name: str, library: Path) -> bool:
    """Return whether a library was built from the present sources, so that building it again is needless."""
    try:
        told = json.loads(library.with_suffix(".json").read_text(encoding="utf-8"))
        return library.is_file() and told["sources"] == _digest(name)
    except (KeyError, OSError, TypeError, ValueError):
        return False


def _run(name: str, command: list[str]) -> None:
    """Run one command of a build."""
    settings = variables(name)
    try:
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=BUILD_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"building the {name} backend failed: {error}") from error
    if done.returncode:
        last = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise Unavailable(f"building the {name} backend failed: {command[0]} said: {last}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock; it is the file's, so a process that dies lets go of it."""
    with open(path, "w") as file:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
