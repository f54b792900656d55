"""How the cost grows with N: that of the attention with N, that of everything else with the entries of K.

Beside each size stands a plain copy of K, which moves as many bytes as modulation must read and write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from spo_fast import Modulator, bench, simulate

SIZES = tuple(16 << k for k in range(10))
TIMES = ("modulate", "attention", "modulated", "plain", "copy")
STEPS = 1 << 12  # of a run at N = 16; fewer at larger sizes, down to LEAST_STEPS
LEAST_STEPS = 4


@dataclass(frozen=True)
class Row:
    """Seconds at one size.

    Attributes
    ----------
    n : int
        Number of oscillators.
    modulate : float
        One call of a ``Modulator`` with ``out``.
    attention : float
        One call of its ``factors``: the attention alone.
    modulated, plain : float
        One Euler step inside ``simulate``, with K' at each step and with K; without what a call prepares.
    copy : float
        ``numpy.copyto`` from K to another matrix.
    """

    n: int
    modulate: float
    attention: float
    modulated: float
    plain: float
    copy: float


def measure(
    sizes: Iterable[int] = SIZES,
    *,
    backend: str | None = None,
    rounds: int = bench.ROUNDS,
    sample_seconds: float = bench.SAMPLE_SECONDS,
) -> list[Row]:
    """Measure each size; what is timed takes turns.

    Parameters
    ----------
    sizes : iterable of int
        Numbers of oscillators; the largest takes five matrices of N² doubles.
    backend : str, optional
        The fastest available by default.
    rounds : int
        Number of interleaved rounds, of which the shortest counts.
    sample_seconds : float, s
        What one sample aims to take.

    Returns
    -------
    list of Row
    """
    return [_row(n, backend, rounds, sample_seconds) for n in sizes]


def _row(n: int, backend: str | None, rounds: int, sample_seconds: float) -> Row:
    knm, theta, omega = bench.problem(n)
    modulator, out = Modulator(knm, backend=backend), np.empty_like(knm)
    steps = max(LEAST_STEPS, STEPS * 16 // n)

    def run(modulation: Any, n_steps: int) -> Callable[[], Any]:
        settings: dict[str, Any] = {"dt": bench.DT, "method": "euler", "observe": (), "backend": backend}
        return lambda: simulate(theta, omega, knm, n_steps=n_steps, modulation=modulation, **settings)

    calls: list[Callable[[], Any]] = [
        lambda: modulator(theta, out),
        lambda: modulator.factors(theta),
        lambda: np.copyto(out, knm),
        run({}, steps),
        run({}, 3 * steps),
        run(None, steps),
        run(None, 3 * steps),
    ]
    timings = bench.interleaved([bench.repeated(call) for call in calls], rounds, sample_seconds)
    call, attention, copy, *runs = (timing.minimum for timing in timings)
    modulated, plain = ((runs[k + 1] - runs[k]) / (2 * steps) for k in (0, 2))
    return Row(n, call, attention, modulated, plain, copy)


def exponent(rows: Iterable[Row], name: str, least: int = 1024) -> float:
    """Fit a power of N.

    Parameters
    ----------
    rows : iterable of Row
        What `measure` returned.
    name : str
        One of the times.
    least : int
        Size from which they are taken.

    Returns
    -------
    float
        b of the least-squares fit of log time = a + b log N; NaN for fewer than two sizes.
    """
    known = [(row.n, getattr(row, name)) for row in rows if row.n >= least and getattr(row, name) > 0.0]
    if len(known) < 2:
        return float("nan")
    n, seconds = np.log(np.array(known)).T
    return float(np.polyfit(n, seconds, 1)[0])


_HEADINGS = (
    "N", "`modulate`, µs", "× copy of K", "attention, µs", "ns an oscillator", "modulated step, µs",
    "un-modulated step, µs", "copy of K, µs",
)  # fmt: skip


def table(rows: Iterable[Row]) -> str:
    """Lay the rows out in Markdown, and the powers of N that fit the largest of them."""
    rows = list(rows)
    lines = [_HEADINGS, ("---:",) * len(_HEADINGS), *map(_cells, rows)]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    powers = ", ".join(f"{name} {exponent(rows, name):.2f}" for name in TIMES)
    return f"{text}\n\nPowers of N from N = 1024 on: {powers}.\n"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.n),
        f"{row.modulate * 1e6:.4g}",
        f"{row.modulate / row.copy:.1f}",
        f"{row.attention * 1e6:.4g}",
        f"{row.attention / row.n * 1e9:.0f}",
        f"{row.modulated * 1e6:.4g}",
        f"{row.plain * 1e6:.4g}",
        f"{row.copy * 1e6:.4g}",
    )


def to_json(rows: Iterable[Row]) -> str:
    """Write the rows as JSON, times in seconds."""
    return json.dumps({"rows": [asdict(row) for row in rows], "machine": bench.machine()}, indent=1) + "\n"


def from_json(text: str) -> tuple[list[Row], dict[str, str]]:
    """Read what `to_json` wrote: the rows, and what was said of the machine."""
    data = json.loads(text)
    return [Row(**fields) for fields in data["rows"]], data["machine"]
