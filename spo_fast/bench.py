"""Time the backends side by side on this machine.

Backends alternate inside a round and the order is turned round every other round, so that a machine that
slows down for a while slows all of them. The minimum over rounds is what the code can do; the median tells
how noisy the machine was.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from spo_fast import Modulator, __version__, backends, modulate, simulate

SIZES = (16, 64, 256)
ROUNDS = 7
SAMPLE_SECONDS = (
    0.02  # one sample: long against the clock's grain and a call of simulate, short against a time slice
)
SMALLEST_READ = 64 * 64  # doubles; this much lies in every L1 cache, and less ends within the clock's grain
DT = 0.01
REFERENCE = "numpy"
NATIVE = "cython"  # whose direct path the others are held against
FIRST_CALLS = 5  # processes
_FIRST_CALL = """
import numpy as np
import spo_fast

spo_fast.modulate(np.ones((16, 16)) - np.eye(16), np.arange(16.0), backend="{backend}")
"""


@dataclass(frozen=True)
class Timing:
    """Seconds for one operation.

    Attributes
    ----------
    minimum, median : float, s
        Over all rounds.
    """

    minimum: float
    median: float


@dataclass(frozen=True)
class Cell:
    """What was measured for one backend at one size.

    Attributes
    ----------
    n : int
        Number of oscillators.
    backend : str
        Its name.
    plain, modulated : Timing
        One Euler step inside ``simulate``, without and with modulation.
    modulate : Timing
        One call of ``modulate`` with ``out``.
    error : float
        Largest difference of K' from the NumPy reference, relative to the largest entry of K'.
    bound : float or None, s
        Least time for an un-modulated step on this machine, see ``step_bound``.
    direct : Timing or None
        A call of the C core's ``Modulator(algorithm="direct")``, measured among the others.
    """

    n: int
    backend: str
    plain: Timing
    modulated: Timing
    modulate: Timing
    error: float
    bound: float | None
    direct: Timing | None = None

    @property
    def times_direct(self) -> float | None:
        """``modulate`` over the direct one of the C core."""
        return self.modulate.minimum / self.direct.minimum if self.direct else None

    @property
    def overhead(self) -> float:
        """What modulation adds to a step, percent."""
        return 100.0 * (self.modulated.minimum / self.plain.minimum - 1.0)

    @property
    def times_bound(self) -> float | None:
        """Un-modulated step over its bound."""
        return self.plain.minimum / self.bound if self.bound else None


@dataclass(frozen=True)
class Result:
    """A whole measurement.

    Attributes
    ----------
    cells : list of Cell
        In order of size, then backend.
    rounds : int
        Number of rounds.
    peak : float or None, 1/s
        Multiply-adds a second of one core, where the native core can tell.
    bandwidth : dict of int to float, B/s
        Speed of reading an array of K's size, by N.
    machine : dict of str to str
        Versions and processor.
    missing : dict of str to str
        Backends asked for that are not available, with the reason.
    first_calls : dict of str to Timing
        From the start of a process to its first result, by backend, where that was asked for.
    """

    cells: list[Cell]
    rounds: int
    peak: float | None = None
    bandwidth: dict[int, float] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    first_calls: dict[str, Timing] = field(default_factory=dict)


def problem(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seeded network of the size asked for, fully coupled.

    Parameters
    ----------
    n : int
        Number of oscillators.
    seed : int
        Seed of ``numpy.random.default_rng``.

    Returns
    -------
    knm : ndarray, shape (n, n), dimensionless
        Symmetric, zero diagonal, entries up to 1/n.
    theta : ndarray, shape (n,), radians
    omega : ndarray, shape (n,), rad per time unit
    """
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.uniform(0.1, 1.0, (n, n)) / n, 1)
    return upper + upper.T, rng.uniform(0.0, 2.0 * np.pi, n), rng.normal(1.0, 0.1, n)


def interleaved(
    operations: Sequence[Callable[[int], None]], rounds: int, sample_seconds: float = SAMPLE_SECONDS
) -> list[Timing]:
    """Time operations against each other.

    Parameters
    ----------
    operations : sequence of callables
        Each takes a repeat count and does its work that often.
    rounds : int
        Number of rounds; every operation is sampled once in each.
    sample_seconds : float, s
        What one sample aims to take.

    Returns
    -------
    list of Timing
        Seconds for one repeat, in the order of ``operations``.
    """
    repeats = [_calibrate(operation, sample_seconds) for operation in operations]
    samples: list[list[float]] = [[] for _ in operations]
    order = list(range(len(operations)))
    for _ in range(rounds):
        for i in order:
            samples[i].append(_seconds(operations[i], repeats[i]) / repeats[i])
        order.reverse()
    return [Timing(min(times), median(times)) for times in samples]


def repeated(call: Callable[[], Any]) -> Callable[[int], None]:
    """Make an operation for `interleaved` of a call.

    Parameters
    ----------
    call : callable
        Takes no argument.

    Returns
    -------
    callable
        Takes a repeat count and calls that often.
    """

    def run(repeats: int) -> None:
        for _ in range(repeats):
            call()

    return run


def _seconds(operation: Callable[[int], None], repeats: int) -> float:
    start = perf_counter()
    operation(repeats)
    return perf_counter() - start


def _calibrate(operation: Callable[[int], None], sample_seconds: float) -> int:
    """Repeat count whose sample takes as long as asked; the first call may compile and is not counted."""
    operation(1)
    repeats = 1
    while (elapsed := _seconds(operation, repeats)) < sample_seconds / 4:
        repeats *= 4
    return max(1, round(repeats * sample_seconds / elapsed))


def _stepper(n: int, backend: str, modulation: dict[str, Any] | None) -> Callable[[int], None]:
    knm, theta, omega = problem(n)

    def run(repeats: int) -> None:
        simulate(
            theta,
            omega,
            knm,
            dt=DT,
            n_steps=repeats,
            method="euler",
            modulation=modulation,
            observe=(),
            backend=backend,
        )

    return run


def _modulator(n: int, backend: str) -> Callable[[int], None]:
    knm, theta, _ = problem(n)
    out = np.empty_like(knm)
    return repeated(lambda: modulate(knm, theta, out=out, backend=backend))


def _direct(n: int) -> Callable[[int], None]:
    """The direct path of the C core, prepared: `modulate` looks at K besides."""
    knm, theta, _ = problem(n)
    modulator, out = Modulator(knm, algorithm="direct", backend=NATIVE), np.empty_like(knm)
    return repeated(lambda: modulator(theta, out))


def first_call(backend: str, tries: int = FIRST_CALLS) -> Timing:
    """Time from the start of a process to its first result, at N = 16.

    Parameters
    ----------
    backend : str
        Name of the backend.
    tries : int
        Number of processes; one more comes first and is not counted, since it may fill a cache on disk.

    Returns
    -------
    Timing
        Interpreter, NumPy, this package and the backend, as the clock on the wall sees them.

    Raises
    ------
    RuntimeError
        When the process fails.
    """
    command = [sys.executable, "-c", _FIRST_CALL.format(backend=backend)]
    times = []
    for _ in range(tries + 1):
        start = perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        times.append(perf_counter() - start)
        if done.returncode:
            raise RuntimeError(f"the first call of {backend} failed: {done.stderr.strip()}")
    return Timing(min(times[1:]), median(times[1:]))


def parity_error(n: int, backend: str) -> float:
    """Largest deviation of K' from the NumPy reference.

    Parameters
    ----------
    n : int
        Number of oscillators.
    backend : str
        Name of the backend.

    Returns
    -------
    float
        Relative to the largest entry of K'. O(N^2).
    """
    knm, theta, _ = problem(n)
    expected = Modulator(knm, backend=REFERENCE)(theta)
    error = np.abs(modulate(knm, theta, backend=backend) - expected).max()
    return float(error / (np.abs(expected).max() or 1.0))  # one oscillator has no coupling


def _native_helper(name: str) -> Callable[..., float] | None:
    """Return a measuring function of the native core; None where the core is missing."""
    try:
        from spo_fast import _core
    except ImportError:
        return None
    return getattr(_core, name, None)


def peak_rate(tries: int = 3) -> float | None:
    """Multiply-adds a second that one core reaches.

    Parameters
    ----------
    tries : int
        The best of this many counts.

    Returns
    -------
    float or None, 1/s
        None without the native core.
    """
    measure = _native_helper("measure_fma")
    return None if measure is None else max(measure() for _ in range(tries))


def read_bandwidth(n: int, tries: int = 5) -> float | None:
    """Speed of reading a matrix of K's size over and over.

    Parameters
    ----------
    n : int
        Number of oscillators.
    tries : int
        The best of this many counts.

    Returns
    -------
    float or None, B/s
        None without the native core.
    """
    measure = _native_helper("measure_read")
    if measure is None:
        return None
    array = np.ones(max(n * n, SMALLEST_READ))
    repeats = max(1, 20_000_000 // array.nbytes)
    return array.nbytes / min(measure(array, repeats) for _ in range(tries))


def step_bound(n: int, peak: float, bandwidth: float) -> float:
    """Least time that an un-modulated step can take on a machine.

    Each entry of K costs two multiply-adds, one for the sine and one for the cosine sum, and eight bytes.

    Parameters
    ----------
    n : int
        Number of oscillators.
    peak : float, 1/s
        Multiply-adds a second.
    bandwidth : float, B/s
        Speed of reading K.

    Returns
    -------
    float, s
    """
    return n * n * max(2.0 / peak, 8.0 / bandwidth)


def _measure_size(
    n: int, names: Sequence[str], rounds: int, sample_seconds: float, bound: float | None
) -> list[Cell]:
    operations = [
        operation
        for name in names
        for operation in (_stepper(n, name, None), _stepper(n, name, {}), _modulator(n, name))
    ]
    if NATIVE in names:
        operations.append(_direct(n))
    timings = interleaved(operations, rounds, sample_seconds)
    direct = timings.pop() if NATIVE in names else None
    triples = zip(timings[0::3], timings[1::3], timings[2::3], strict=True)
    return [
        Cell(n, name, plain, modulated, call, parity_error(n, name), bound, direct)
        for name, (plain, modulated, call) in zip(names, triples, strict=True)
    ]


def measure(
    sizes: Iterable[int] = SIZES,
    names: Sequence[str] | None = None,
    *,
    rounds: int = ROUNDS,
    sample_seconds: float = SAMPLE_SECONDS,
    first_calls: bool = False,
) -> Result:
    """Time the backends at several sizes.

    Parameters
    ----------
    sizes : iterable of int
        Numbers of oscillators.
    names : sequence of str, optional
        Backends; all available ones by default.
    rounds : int
        Number of interleaved rounds.
    sample_seconds : float, s
        What one sample aims to take. The whole costs about 3 x sizes x backends x rounds of these.
    first_calls : bool
        Whether each backend's first call is timed, too, in processes of their own.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        When a backend is unknown or none of those asked for is available.
    """
    state = backends()
    wanted = [name for name in state if state[name] == "available"] if names is None else list(names)
    if unknown := [name for name in wanted if name not in state]:
        raise ValueError(f"backends must be among {', '.join(state)}, got {', '.join(unknown)}")
    usable = [name for name in wanted if state[name] == "available"]
    if not usable:
        raise ValueError(f"none of the backends asked for is available: {', '.join(wanted)}")
    peak, bandwidth, cells = peak_rate(), {}, []
    for n in sizes:
        speed = read_bandwidth(n)
        bound = None if peak is None or speed is None else step_bound(n, peak, speed)
        if speed is not None:
            bandwidth[n] = speed
        cells += _measure_size(n, usable, rounds, sample_seconds, bound)
    missing = {name: state[name] for name in wanted if name not in usable}
    started = {name: first_call(name) for name in usable} if first_calls else {}
    return Result(cells, rounds, peak, bandwidth, machine(), missing, started)


def machine() -> dict[str, str]:
    """Name what the figures depend on.

    Returns
    -------
    dict of str to str
        Versions, processor and number of cores.
    """
    return {
        "spo_fast": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
    }


def _processor() -> str:
    """Name of the processor; only Linux tells it in a file."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"


def to_json(result: Result) -> str:
    """Write a result as JSON, times in seconds.

    Parameters
    ----------
    result : Result
        What ``measure`` returned.

    Returns
    -------
    str
    """
    return json.dumps(asdict(result), indent=1)


def from_json(text: str) -> Result:
    """Read what ``to_json`` wrote.

    Parameters
    ----------
    text : str
        JSON.

    Returns
    -------
    Result
    """
    data = json.loads(text)
    data["bandwidth"] = {int(n): speed for n, speed in data["bandwidth"].items()}
    data["cells"] = [_cell(fields) for fields in data["cells"]]
    data["first_calls"] = {name: Timing(**times) for name, times in data.get("first_calls", {}).items()}
    return Result(**data)


def _cell(fields: dict[str, Any]) -> Cell:
    names = ("plain", "modulated", "modulate", "direct")
    timings = {name: Timing(**fields[name]) for name in names if fields.get(name)}
    return Cell(**(fields | timings))


COLUMNS = ("N", "backend", "step", "modulated step", "overhead", "modulate", "x direct", "error", "x bound")


def rows(result: Result, *, with_median: bool = True) -> list[tuple[str, ...]]:
    """Lay a result out as the text of table cells, in the order of ``COLUMNS``.

    Parameters
    ----------
    result : Result
        What ``measure`` returned.
    with_median : bool
        Whether times read "minimum (median)" or are the minimum alone.

    Returns
    -------
    list of tuples of str
        Times in microseconds.
    """

    def time(timing: Timing) -> str:
        text = _three_digits(timing.minimum * 1e6)
        return f"{text} ({_three_digits(timing.median * 1e6)})" if with_median else text

    return [
        (
            str(cell.n),
            cell.backend,
            time(cell.plain),
            time(cell.modulated),
            f"{cell.overhead:.0f} %",
            time(cell.modulate),
            "-" if cell.times_direct is None else f"{cell.times_direct:.2f}",
            f"{cell.error:.0e}" if cell.error else "0",
            "-" if cell.times_bound is None else f"{cell.times_bound:.1f}",
        )
        for cell in result.cells
    ]


def _three_digits(value: float) -> str:
    """Three significant digits without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def table(result: Result) -> str:
    """Lay a result out for the terminal.

    Parameters
    ----------
    result : Result
        What ``measure`` returned.

    Returns
    -------
    str
    """
    lines = [COLUMNS, *rows(result)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([*text, "", *_notes(result)])


def _notes(result: Result) -> list[str]:
    """What stands under the table."""
    host = result.machine
    times = f"times in µs: minimum (median) of {result.rounds} interleaved rounds"
    versions = f"Python {host['python']}, NumPy {host['numpy']}, spo_fast {host['spo_fast']}"
    notes = [
        f"{times}; one Euler step inside simulate, and one modulate call with out=",
        "x direct: modulate over a call of the C core's Modulator with algorithm='direct'",
        "error: largest difference of K' from the NumPy reference, relative to the largest entry of K'",
        f"{host['processor']}, {host['cores']} cores, {host['system']}; {versions}",
    ]
    if result.peak is not None and result.bandwidth:
        speeds = ", ".join(f"{speed / 1e9:.0f} at N = {n}" for n, speed in result.bandwidth.items())
        notes.insert(
            3,
            f"x bound: un-modulated step over max(2 N² / {result.peak / 1e9:.1f} G multiply-adds/s, "
            f"8 N² bytes / read speed); read speed in GB/s: {speeds}",
        )
    if result.first_calls:
        seconds = ", ".join(f"{name} {times.minimum:.2f}" for name, times in result.first_calls.items())
        notes.append(f"seconds from the start of a process to its first result, N = 16: {seconds}")
    return notes + [f"{name}: {reason}" for name, reason in result.missing.items()]
