"""What the benchmarks share: profiles, networks, backends, and which compiled code was loaded.

Parameters are the same whatever is installed; ``setup`` raises NotImplementedError for a cell that cannot run
here. Whatever is made once (networks, plans, compiled kernels) is made in a cached function that calls the
operation once, so neither compilation nor allocation is timed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

ENVIRONMENT = os.environ.get("ASV_ENV_DIR")  # set by asv, as are the other names that begin with ASV
COMMIT = os.environ.get("ASV_COMMIT", "unknown")

# Before Numba is imported. Numba compiles a kernel anew when its own file changes, not when a kernel that it
# calls from another file does: compiled code may not be shared between commits.
if ENVIRONMENT:
    os.environ["NUMBA_CACHE_DIR"] = str(Path(ENVIRONMENT) / "numba-cache" / COMMIT)

import numpy as np  # noqa: E402

BACKENDS = ("cython", "numba", "rust", "go", "julia", "mojo", "numpy")
DENSE_BACKENDS = frozenset({"rust", "go", "julia", "mojo"})  # their interface has no sparse coupling
SIZES = (16, 64, 128, 256, 512, 1024)
CALLS = {
    16: 512,
    64: 64,
    128: 32,
    256: 8,
    512: 2,
    1024: 1,
}  # in a batch, so that it takes a millisecond or more
BATCHES = 5  # in a sample, at least
SAMPLE_SECONDS = 0.03  # and more of them until it has taken so long
REFERENCE = "numpy"
DT = 0.01


@dataclass(frozen=True)
class Profile:
    """How much is measured."""

    rounds: int  # processes for each commit; with interleaving the commits take turns
    repeat: tuple[int, int, float]  # samples: at least, at most, and seconds after which the least are enough
    warmup: float  # seconds
    sizes: frozenset[int]
    slow: bool  # whether the cells run that compile all Numba kernels, and the largest sparse networks


PROFILES = {
    "fast": Profile(4, (2, 5, 1.0), 0.05, frozenset({16, 256}), False),
    "regular": Profile(6, (3, 8, 2.0), 0.1, frozenset(SIZES), True),
}


def _profile() -> Profile:
    name = os.environ.get("SPO_FAST_ASV_PROFILE", "regular")
    if name not in PROFILES:
        raise ValueError(f"SPO_FAST_ASV_PROFILE must be one of {', '.join(PROFILES)}, got {name!r}")
    return PROFILES[name]


PROFILE = _profile()


class Cell:
    """One backend and one size; the base of all benchmarks that have both as parameters."""

    params = (BACKENDS, SIZES)
    param_names = ("backend", "n")
    timeout = 300

    def setup(self, backend: str, n: int) -> None:
        if n not in PROFILE.sizes:
            raise NotImplementedError(f"N = {n} is not in this profile")
        require(backend)


class Timed(Cell):
    """A cell whose operation is timed per call; each sample is the best of at least ``BATCHES`` batches.

    With a ``setup`` asv times single calls, and one call can be shorter than the clock is sharp. Therefore a
    sample does its own timing, and asv is given a clock that moves by the best batch's time per call. What
    counts is the processor time of this process: it stands still while another process has the core.
    """

    rounds = PROFILE.rounds
    repeat = PROFILE.repeat
    warmup_time = PROFILE.warmup
    calls_by_size = CALLS

    def setup(self, backend: str, n: int) -> None:
        super().setup(backend, n)
        self.batch(self.prepare(backend, n), self.calls_by_size[n])

    def batch(self, call: Callable[[], object], calls: int) -> None:
        """Time `call` in batches of `calls`."""
        self.call, self.calls = call, calls
        self.now = 0.0
        self.timer = lambda: self.now

    def clock(self) -> float:
        """Return the time."""
        return time.process_time()

    def run(self) -> None:
        """Take one sample."""
        call, repeats, times = self.call, range(self.calls), []
        while len(times) < BATCHES or sum(times) < SAMPLE_SECONDS:
            start = self.clock()
            for _ in repeats:
                call()
            times.append(self.clock() - start)
        self.now += min(times) / self.calls

    @staticmethod
    def prepare(backend: str, n: int) -> Callable[[], object]:
        """Return the operation, called once already; the same one for the same arguments."""
        raise NotImplementedError


def warmed(call: Callable[[], object]) -> Callable[[], object]:
    """Return `call` after its first call, which may compile."""
    call()
    return call


@cache
def problem(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return K (symmetric, all pairs, entries up to 1/n), phases and frequencies; the same in every run."""
    rng = np.random.default_rng(0)
    upper = np.triu(rng.uniform(0.1, 1.0, (n, n)) / n, 1)
    return upper + upper.T, rng.uniform(0.0, 2.0 * np.pi, n), rng.normal(1.0, 0.1, n)


def require(backend: str) -> None:
    """Skip the cell where the backend is missing; else record which code is going to run."""
    import spo_fast

    state = spo_fast.backends().get(backend, "unknown to this version")
    if state != "available":
        raise NotImplementedError(f"{backend}: {state}")
    record(backend)


# ---------------------------------------------------------------- which code was loaded


def code_files(backend: str) -> list[Path]:
    """Files that a backend's results come from: its library, else the sources of its kernels."""
    if backend == "cython":
        return [Path(str(import_module("spo_fast._core").__file__))]
    if backend == "numba":
        return sorted(Path(str(find_spec("spo_fast.kernels").origin)).parent.glob("*.py"))
    if backend in DENSE_BACKENDS:
        path = import_module("spo_fast.backends.registry").load(backend).path
        return [path] if path.is_file() else sorted(path.glob("src/*"))
    return [Path(str(find_spec("spo_fast.backends.reference").origin))]


def code_hash(backend: str) -> str:
    """First twelve hexadecimal digits of the SHA-256 of what `code_files` lists."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in code_files(backend))).hexdigest()[:12]


@cache
def record(backend: str) -> None:
    """Print the hash of the loaded code; under asv also keep it, one file per commit."""
    line = {"commit": COMMIT, "backend": backend, "sha256": code_hash(backend)}
    line["file"] = str(code_files(backend)[0])
    print("loaded code:", " ".join(line.values()))
    if not ENVIRONMENT:
        return
    if not Path(line["file"]).resolve().is_relative_to(Path(ENVIRONMENT).resolve()):
        raise RuntimeError(f"{line['file']} does not lie in the environment of this benchmark, {ENVIRONMENT}")
    path = Path(os.environ["ASV_CONF_DIR"]) / ".asv" / "loaded" / f"{COMMIT}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(line) + "\n"
    if not path.exists() or text not in path.read_text():
        with path.open("a") as file:
            file.write(text)
