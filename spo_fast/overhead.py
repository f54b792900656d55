"""What modulation adds to a step, said three ways.

(a) One ``modulate`` call, by one and by two workers, against one step of the SCPN phase orchestrator, whose
    budget for it is ten percent.
(b) A modulated step of this package against its own un-modulated one, beside the least time that this machine
    needs for it: max(multiply-adds / peak rate, bytes of K / bandwidth) plus the attention.
(c) How rarely K' may be made anew (``modulate_every=k``) for (b) to come under ten percent, and what that
    costs: the largest change of the order parameter and of a phase over a thousand steps.

Steps of both kinds alternate inside a round, as `spo_fast.bench` does it.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from spo_fast import Modulator, backends, bench, datasets, simulate
from spo_fast.tableaux import TABLEAUX

SIZES = (16, 64, 128, 256, 512, 1024)
METHODS = tuple(TABLEAUX)
BUDGET = 0.10  # what modulation may add to a step
WORKERS = 2  # of the modulation that is held against the other package's step, beside one
ERROR_STEPS = 1000
TRIES = 6  # of k,
MOST_TIMES = 8  # that which would do if steps with K' cost what un-modulated ones do
# Evaluations of the right-hand side in a step: the last one of an adaptive method is the next step's first.
STAGES = {name: method.stages - bool(method.error) for name, method in TABLEAUX.items()}
D_MODEL = 8  # of the default projections
DT = bench.DT
SAMPLE_SECONDS = 0.15  # long against what a call of ``simulate`` prepares for N = 1024

# Public names of the other package alone, in an interpreter of its own.
_ORCHESTRATOR = """
import json, sys, time
import numpy as np
from scpn_phase_orchestrator.upde.engine import UPDEEngine

def best(call, seconds={seconds}):
    call()
    found, end = 1e9, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        found = min(found, time.perf_counter() - start)
    return found

rng = np.random.default_rng(0)
n = {n}
upper = np.triu(rng.uniform(0.1, 1.0, (n, n)) / n, 1)
knm, theta, omega = upper + upper.T, rng.uniform(0.0, 2.0 * np.pi, n), rng.normal(1.0, 0.1, n)
alpha, times = np.zeros((n, n)), {{}}
for method in {methods}:
    engine = UPDEEngine(n, dt={dt}, method=method)
    many = max(1, 20000 // n)
    times[method] = [
        best(lambda: engine.step(theta, omega, knm, 0.0, 0.0, alpha)),
        best(lambda: engine.run(theta, omega, knm, 0.0, 0.0, alpha, many)) / many,
    ]
print(json.dumps(times))
"""


@dataclass(frozen=True)
class Rarely:
    """What ``modulate_every=k`` saves and costs.

    Attributes
    ----------
    k : int
        Steps for which K' is kept.
    overhead : float
        What is then added to an un-modulated step, relative to it.
    radius, phase : float
        Largest change of the order parameter, and of a phase in radians, within `ERROR_STEPS` steps, against
        the run with ``modulate_every=1``.
    """

    k: int
    overhead: float
    radius: float
    phase: float


@dataclass(frozen=True)
class Row:
    """One size and one method; times in seconds.

    Attributes
    ----------
    n : int
        Number of oscillators.
    method : str
        Integrator.
    plain, modulated : bench.Timing
        One step inside ``simulate``.
    modulate, attention : bench.Timing
        One call of a ``Modulator`` with ``out``, and of its ``factors``, which is the attention alone.
    shared : bench.Timing or None
        One call of a ``Modulator`` with `WORKERS` workers; None where that was not measured.
    bound : float or None
        Least time of a modulated step here; None without the native core.
    rarely : Rarely
        The smallest k that keeps the budget; the nearest that was tried where its overhead is above.
    orchestrator_step, orchestrator_run : float or None
        One un-modulated step of the other package through ``step``, and inside ``run``.
    """

    n: int
    method: str
    plain: bench.Timing
    modulated: bench.Timing
    modulate: bench.Timing
    attention: bench.Timing
    bound: float | None
    rarely: Rarely
    shared: bench.Timing | None = None
    orchestrator_step: float | None = None
    orchestrator_run: float | None = None

    @property
    def overhead(self) -> float:
        """(b): what modulation adds to a step, relative to the un-modulated one."""
        return self.modulated.minimum / self.plain.minimum - 1.0


def measure(
    sizes: Iterable[int] = SIZES,
    methods: Iterable[str] = METHODS,
    *,
    backend: str | None = None,
    rounds: int = bench.ROUNDS,
    orchestrator: str | None = None,
    sample_seconds: float = SAMPLE_SECONDS,
) -> list[Row]:
    """Measure all three overheads.

    Parameters
    ----------
    sizes : iterable of int
        Numbers of oscillators.
    methods : iterable of str
        Integrators.
    backend : str, optional
        The fastest available by default.
    rounds : int
        Number of interleaved rounds.
    orchestrator : str, optional
        An interpreter that has the SCPN phase orchestrator; without it (a) is left out.
    sample_seconds : float, s
        What one sample aims to take.

    Returns
    -------
    list of Row

    Raises
    ------
    RuntimeError
        If the other package cannot be run.
    """
    rows = []
    for n in sizes:
        theirs = _orchestrator(orchestrator, n, tuple(methods)) if orchestrator else {}
        rows += [_row(n, method, backend, rounds, theirs, sample_seconds) for method in methods]
    return rows


def _row(
    n: int, method: str, backend: str | None, rounds: int, theirs: dict[str, list[float]], seconds: float
) -> Row:
    knm, theta, _ = bench.problem(n)
    modulator, shared = (Modulator(knm, backend=backend, workers=workers) for workers in (1, WORKERS))
    out = np.empty_like(knm)
    operations = [
        _steps(n, method, backend, None),
        _steps(n, method, backend, 1),
        bench.repeated(lambda: modulator(theta, out)),
        bench.repeated(lambda: modulator.factors(theta)),
        bench.repeated(lambda: shared(theta, out)),
    ]
    plain, modulated, call, attention, by_two = bench.interleaved(operations, rounds, seconds)
    step, run = theirs.get(method, (None, None))
    rarely = _rarely(n, method, backend, modulated.minimum / plain.minimum - 1.0, rounds, seconds)
    bound = _bound(n, method, attention.minimum)
    return Row(n, method, plain, modulated, call, attention, bound, rarely, by_two, step, run)


def _steps(n: int, method: str, backend: str | None, every: int | None) -> Any:
    """An operation that takes `every` modulated steps, or one un-modulated step where that is None."""
    knm, theta, omega = bench.problem(n)
    keywords: dict[str, Any] = {} if every is None else {"modulation": {}, "modulate_every": every}

    def run(repeats: int) -> None:
        steps = repeats * (every or 1)
        simulate(
            theta, omega, knm, dt=DT, n_steps=steps, method=method, observe=(), backend=backend, **keywords
        )

    return run


def _bound(n: int, method: str, attention: float) -> float | None:
    """Least time of a modulated step: K is walked once a stage and symmetric pairs are visited once.

    A pair costs d multiply-adds for its factor, one for the product and four for the sums of both rows; at
    the later stages of a step K' may be there already, and an entry costs the two of an un-modulated step.
    """
    if backends()["cython"] != "available":
        return None
    peak, bandwidth = bench.peak_rate(), bench.read_bandwidth(n)
    if peak is None or bandwidth is None:
        return None
    first = n * n * max((D_MODEL + 5) / 2 / peak, 8.0 / bandwidth)
    return attention + first + (STAGES[method] - 1) * bench.step_bound(n, peak, bandwidth)


def _rarely(n: int, method: str, backend: str | None, overhead: float, rounds: int, seconds: float) -> Rarely:
    """Find the smallest k that keeps the budget, or, where none that was tried does, the nearest."""

    def measured(k: int) -> float:
        plain, rare = bench.interleaved(
            [_steps(n, method, backend, None), _steps(n, method, backend, k)], rounds, seconds
        )
        return rare.minimum / k / plain.minimum - 1.0

    tried = {1: overhead}
    k = first = _smallest(overhead, 0.0)
    while k not in tried and len(tried) <= TRIES:
        tried[k] = measured(k)
        # Overhead is a / k + b: a of K' made anew, b of steps with it; both from k and from k = 1.
        b = (k * tried[k] - overhead) / (k - 1)
        k = min(_smallest(overhead - b, b) if b < BUDGET else 2 * k, MOST_TIMES * first)
    kept = [k for k, share in tried.items() if share <= BUDGET]
    k = min(kept) if kept else min(tried, key=tried.__getitem__)
    return Rarely(k, tried[k], *trajectory_error(k, n, method, backend))


def _smallest(a: float, b: float) -> int:
    """Tell the smallest k >= 1 for which a / k + b is within the budget, b below it."""
    return max(1, math.ceil(a / (BUDGET - b)))


def trajectory_error(
    k: int, n: int | None = None, method: str = "euler", backend: str | None = None
) -> tuple[float, float]:
    """Tell what ``modulate_every=k`` changes in a run of `ERROR_STEPS` steps.

    Parameters
    ----------
    k : int
        Steps for which K' is kept.
    n : int, optional
        Size of a random network; the 16-layer SCPN network without it.
    method : str
        Integrator.
    backend : str, optional
        The fastest available by default.

    Returns
    -------
    radius, phase : float
        Largest change of the order parameter, and of a phase at the end (radians), against
        ``modulate_every=1``.
    """
    if n is None:
        knm, theta = datasets.scpn16(), datasets.initial_phases(16, seed=1)
        omega = datasets.natural_frequencies(16)
    else:
        knm, theta, omega = bench.problem(n)
    given: dict[str, Any] = {"dt": DT, "n_steps": ERROR_STEPS, "method": method, "backend": backend}
    often, rare = (
        simulate(theta, omega, knm, modulation={}, modulate_every=every, **given) for every in (1, k)
    )
    assert often.R is not None
    assert rare.R is not None
    gap = np.abs(np.angle(np.exp(1j * (often.final - rare.final))))
    return float(np.abs(often.R - rare.R).max()), float(gap.max())


def _orchestrator(python: str, n: int, methods: tuple[str, ...]) -> dict[str, list[float]]:
    """Seconds of a step of the other package, through ``step`` and inside ``run``, by method."""
    program = _ORCHESTRATOR.format(n=n, methods=methods, dt=DT, seconds=0.3)
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise RuntimeError(f"the orchestrator could not be measured with {python}: {last}")
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------- what is shown

_HEADINGS = (
    "N",
    "method",
    "`modulate` / orchestrator's `step`",
    "/ `run`",
    "two workers / `step`",
    "/ `run`",
    "step, µs",
    "modulated, µs",
    "overhead",
    "× bound",
    "k for 10 %",
    "overhead at k",
    "ΔR",
    "Δθ",
)


def table(rows: Iterable[Row]) -> str:
    """Lay the rows out in Markdown.

    Parameters
    ----------
    rows : iterable of Row
        What `measure` returned.

    Returns
    -------
    str
    """
    lines = [_HEADINGS, tuple("---" if h == "method" else "---:" for h in _HEADINGS), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    def share(call: bench.Timing | None, step: float | None) -> str:
        return "-" if call is None or step is None else f"{100.0 * call.minimum / step:.3g} %"

    bound = "-" if row.bound is None else f"{row.modulated.minimum / row.bound:.2f}"
    return (
        str(row.n),
        row.method,
        share(row.modulate, row.orchestrator_step),
        share(row.modulate, row.orchestrator_run),
        share(row.shared, row.orchestrator_step),
        share(row.shared, row.orchestrator_run),
        f"{row.plain.minimum * 1e6:.3g}",
        f"{row.modulated.minimum * 1e6:.4g}",
        f"{100.0 * row.overhead:.0f} %",
        bound,
        ("" if row.rarely.overhead <= BUDGET else "> ") + str(row.rarely.k),
        f"{100.0 * row.rarely.overhead:.1f} %",
        f"{row.rarely.radius:.1e}",
        f"{row.rarely.phase:.1e}",
    )


def to_json(rows: Iterable[Row]) -> str:
    """Write the rows as JSON, times in seconds."""
    data = {"rows": [asdict(row) for row in rows], "machine": bench.machine()}
    return json.dumps(data, indent=1) + "\n"


def from_json(text: str) -> tuple[list[Row], dict[str, str]]:
    """Read what `to_json` wrote: the rows, and what was said of the machine."""
    data = json.loads(text)
    return [_row_from(fields) for fields in data["rows"]], data["machine"]


def _row_from(fields: dict[str, Any]) -> Row:
    names = ("plain", "modulated", "modulate", "attention", "shared")
    timings = {name: bench.Timing(**fields[name]) for name in names if fields.get(name)}
    return Row(**(fields | timings | {"rarely": Rarely(**fields["rarely"])}))
