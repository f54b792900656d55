"""How the order parameter drifts with each parameter of the modulation, beside published figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from typing import Any

import numpy as np

from spo_fast import bench, physics
from spo_fast.backends import registry

SEEDS = 64
STRENGTHS = (0.0, 0.1, 0.25, 0.5, 1.0)
HEADS = (1, 2, 4, 8)
BLOCKS = (None, 4, 2)
TEMPERATURES = (0.5, 1.0, 2.0)
PUBLISHED = {0.0: "0", 0.1: "~1.5", 0.25: "~3", 0.5: "~5", 1.0: "~11"}  # percent, by lambda
COUPLINGS = (0.8, 1.0, 1.2, 1.5, 1.7, 2.0, 2.5, 5.0)  # N times the mean K, from onset to far above it
SETUPS = (physics.STRONG, physics.ONSET, physics.SETTLED)
STABILITY_SETUPS = (physics.STABILITY, replace(physics.ONSET, warm_up=400, measured=300))
STABILITY_SEEDS = 20  # the exponents take some 0.1 s a seed


@dataclass(frozen=True)
class Variant:
    """Parameters of the modulation; the defaults are those that every table but its own parameter keeps.

    Attributes
    ----------
    lambda_ : float
    n_heads : int
    block_size : int or None
    temperature : float
    """

    lambda_: float = 0.5
    n_heads: int = 4
    block_size: int | None = None
    temperature: float = 1.0


@dataclass(frozen=True)
class Cell:
    """Drift of one variant in one set-up.

    Attributes
    ----------
    setup : Setup
    variant : Variant
    drift : Drift
    """

    setup: physics.Setup
    variant: Variant
    drift: physics.Drift


@dataclass(frozen=True)
class Result:
    """A whole ablation.

    Attributes
    ----------
    cells : list of Cell
    seeds : int
        Networks drawn, with seeds 0, 1, ...
    backend : str
    machine : dict of str to str
    scan : list of Cell
        Drift by lambda in settled networks of other mean couplings.
    """

    cells: list[Cell]
    seeds: int
    backend: str
    machine: dict[str, str]
    scan: list[Cell] = field(default_factory=list)


def one_at_a_time() -> list[Variant]:
    """Variants that differ from the default in one parameter.

    Returns
    -------
    list of Variant
        Without repetition.
    """
    changed = [
        *(Variant(lambda_=value) for value in STRENGTHS),
        *(Variant(n_heads=value) for value in HEADS),
        *(Variant(block_size=value) for value in BLOCKS),
        *(Variant(temperature=value) for value in TEMPERATURES),
    ]
    return list(dict.fromkeys(changed))


def grid() -> list[Variant]:
    """Every combination of the values.

    Returns
    -------
    list of Variant
    """
    return [Variant(*values) for values in product(STRENGTHS, HEADS, BLOCKS, TEMPERATURES)]


def measure(
    variants: Iterable[Variant] | None = None,
    setups: Sequence[physics.Setup] = SETUPS,
    *,
    couplings: Sequence[float] = (),
    seeds: int = SEEDS,
    backend: str | None = None,
) -> Result:
    """Run every variant in every set-up over all seeds.

    Parameters
    ----------
    variants : iterable of Variant, optional
        Those of ``one_at_a_time`` by default.
    setups : sequence of Setup
    couplings : sequence of float, rad per time unit
        N times the mean couplings for which lambda is varied in settled networks.
    seeds : int
        At least 2.
    backend : str, optional
        As for ``simulate``.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        For fewer than two seeds, from which no spread can be told.
    """
    if seeds < 2:
        raise ValueError(f"seeds must be at least 2, got {seeds}")
    chosen = one_at_a_time() if variants is None else list(variants)
    cells = [cell for setup in setups for cell in _cells(setup, chosen, seeds, backend)]
    strengths = [Variant(lambda_=value) for value in STRENGTHS]
    scan = [
        cell
        for coupling in couplings
        for cell in _cells(replace(physics.SETTLED, coupling=coupling), strengths, seeds, backend)
    ]
    return Result(cells, seeds, registry.load(backend).NAME, bench.machine(), scan)


def _cells(
    setup: physics.Setup, variants: Iterable[Variant], seeds: int, backend: str | None
) -> Iterator[Cell]:
    plain = physics.mean_orders(setup, None, range(seeds), backend=backend)
    for variant in variants:
        modulated = physics.mean_orders(setup, asdict(variant), range(seeds), backend=backend)
        yield Cell(setup, variant, physics.drift(plain, modulated))


# ---------------------------------------------------------------- tables


def markdown(result: Result) -> str:
    """Lay a result out as Markdown: a table a parameter, or one of every combination.

    Parameters
    ----------
    result : Result

    Returns
    -------
    str
    """
    parts = [_introduction(result)]
    variants = {cell.variant for cell in result.cells}
    if variants <= set(one_at_a_time()):
        parts += [_table(result, name) for name in _parameters()]
    else:
        parts.append(_combinations(result))
    if result.scan:
        parts.append(_scan(result))
    return "\n\n".join(parts) + "\n"


def _parameters() -> list[str]:
    return [field.name for field in fields(Variant)]


def _introduction(result: Result) -> str:
    setups = _setups(result)
    rows = [
        [str(setup), f"{next(c.drift.plain for c in result.cells if c.setup == setup):.4f}"]
        for setup in setups
    ]
    machine = result.machine
    return "\n".join(
        [
            "Drift of the mean order parameter, percent of the un-modulated one, ± standard error; in "
            "brackets the smallest and the largest drift of a single network.",
            "",
            f"{result.seeds} random networks of {setups[0].n} oscillators, ω ~ N(0, {setups[0].spread:g}), "
            f"Euler dt {physics.DT:g}; backend {result.backend}, {machine['processor']}, "
            f"Python {machine['python']}, NumPy {machine['numpy']}, spo_fast {machine['spo_fast']}.",
            "",
            *_layout(["set-up (steps: not measured + measured)", "un-modulated R"], rows),
        ]
    )


def _setups(result: Result) -> list[physics.Setup]:
    return list(dict.fromkeys(cell.setup for cell in result.cells))


def _table(result: Result, parameter: str) -> str:
    """Return rows by value of one parameter, columns by set-up, the other parameters at their defaults."""
    setups = _setups(result)
    values = [
        cell.variant
        for cell in result.cells
        if cell.setup == setups[0]
        and replace(cell.variant, **{parameter: getattr(Variant(), parameter)}) == Variant()
    ]
    values.sort(key=lambda variant: _order(parameter, getattr(variant, parameter)))
    found = {(cell.setup, cell.variant): cell.drift for cell in result.cells}
    published = parameter == "lambda_"
    rows = [
        [
            _show(getattr(variant, parameter)),
            *([PUBLISHED.get(variant.lambda_, "")] if published else []),
            *(_percent(found[setup, variant]) for setup in setups),
        ]
        for variant in values
    ]
    names = [setup.name for setup in setups]
    heading = [parameter.rstrip("_"), *(["published"] if published else []), *names]
    return "\n".join([f"### {heading[0]}", "", *_layout(heading, rows)])


def _order(parameter: str, value: Any) -> int:
    """Place of a value in the list of its parameter, which goes from weak to strong or from all to few."""
    listed: dict[str, tuple[Any, ...]] = {
        "lambda_": STRENGTHS,
        "n_heads": HEADS,
        "block_size": BLOCKS,
        "temperature": TEMPERATURES,
    }
    return listed[parameter].index(value)


def _combinations(result: Result) -> str:
    setups = _setups(result)
    found = {(cell.setup, cell.variant): cell.drift for cell in result.cells}
    rows = [
        [
            *(_show(value) for value in asdict(variant).values()),
            *(_percent(found[s, variant]) for s in setups),
        ]
        for variant in dict.fromkeys(cell.variant for cell in result.cells)
    ]
    heading = [*(name.rstrip("_") for name in _parameters()), *(setup.name for setup in setups)]
    return "\n".join(_layout(heading, rows))


def _scan(result: Result) -> str:
    """Return rows by mean coupling, columns by lambda, beside what was published."""
    setups = list(dict.fromkeys(cell.setup for cell in result.scan))
    found = {(cell.setup, cell.variant.lambda_): cell.drift for cell in result.scan}
    rows = [["published", "", *(PUBLISHED[value] for value in STRENGTHS[1:])]]
    for setup in setups:
        drifts = [found[setup, value] for value in STRENGTHS[1:]]
        cells = (f"{drift.mean:.2f} ± {drift.error:.2f}" for drift in drifts)
        rows.append([f"{setup.coupling:g}/N", f"{drifts[0].plain:.3f}", *cells])
    heading = ["mean K", "un-modulated R", *(f"lambda {value:g}" for value in STRENGTHS[1:])]
    steps = f"{setups[0].warm_up} + {setups[0].measured} steps"
    return "\n".join([f"### mean coupling, {steps}", "", *_layout(heading, rows)])


def _show(value: Any) -> str:
    return "none" if value is None else f"{value:g}"


def _percent(drift: physics.Drift) -> str:
    if drift.smallest == drift.largest == 0.0:
        return "0"
    return f"{drift.mean:.2f} ± {drift.error:.2f} [{drift.smallest:.2f}, {drift.largest:.2f}]"


def _layout(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(heading) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (heading, rule, *rows)]


def to_json(result: Result) -> str:
    """Write a result as JSON.

    Parameters
    ----------
    result : Result

    Returns
    -------
    str
    """
    return json.dumps(asdict(result) | {"published": PUBLISHED}, indent=1)


# ---------------------------------------------------------------- the five criteria


def criteria(
    *, seeds: int = SEEDS, backend: str | None = None, sizes: Sequence[int] = bench.SIZES
) -> list[tuple[str, str, str]]:
    """Measure what the tests of the physics assert.

    Parameters
    ----------
    seeds : int
        Networks for each measure; at most 20 for those of stability.
    backend : str, optional
        As for ``simulate``.
    sizes : sequence of int
        Numbers of oscillators for the overhead.

    Returns
    -------
    list of (str, str, str)
        What was measured, the limit, the value.

    Raises
    ------
    ValueError
        For fewer than two seeds.
    """
    if seeds < 2:
        raise ValueError(f"seeds must be at least 2, got {seeds}")
    few = range(min(seeds, STABILITY_SEEDS))
    name = registry.load(backend).NAME
    return [
        *_drifts(seeds, backend),
        *_matrices(few, backend),
        *(row for setup in STABILITY_SETUPS for row in _stability(setup, few, backend)),
        *_overheads(sizes, name),
    ]


def _drifts(seeds: int, backend: str | None) -> list[tuple[str, str, str]]:
    rows = []
    for coupling in (physics.STRONG.coupling, 2.0, 1.5, 1.2):
        setup = replace(physics.STRONG, coupling=coupling)
        plain = physics.mean_orders(setup, None, range(seeds), backend=backend)
        drifts = [
            physics.drift(plain, physics.mean_orders(setup, {"lambda_": x}, range(seeds), backend=backend))
            for x in STRENGTHS[1:]
        ]
        strong = setup == physics.STRONG
        if strong:
            worst = max(abs(drifts[0].smallest), abs(drifts[0].largest))
            rows.append(("1. largest drift of R, λ 0.1, mean K 5/N", "5 %", f"{worst:.2f} %"))
        what = f"1. drift of mean R at λ 0.1, 0.25, 0.5, 1, mean K {coupling:g}/N"
        limit = "" if strong else "> 0, growing"
        rows.append((what, limit, ", ".join(f"{d.mean:.2f}" for d in drifts) + " %"))
    return rows


def _matrices(seeds: Iterable[int], backend: str | None) -> list[tuple[str, str, str]]:
    seeds = list(seeds)
    uneven = max(physics.asymmetry(seed, backend=backend) for seed in seeds)
    changed = sum(physics.zero_changes_bits(seed, backend=backend) for seed in seeds)
    factors = np.array([physics.anchor_factors(seed, backend=backend) for seed in seeds])
    span = f"{factors.min():.3f} to {factors.max():.3f}"
    return [
        ("2. largest asymmetry of K′", "1e-12", f"{uneven:.1e}"),
        ("2. runs whose bits λ 0 changes", "0", str(changed)),
        ("3. K′/K at the anchors, λ 0.5", "1 to 1.5", span),
    ]


def _stability(setup: physics.Setup, seeds: Iterable[int], backend: str | None) -> list[tuple[str, str, str]]:
    seeds, how, strong = list(seeds), physics.STABILITY_MODULATION, setup == physics.STABILITY
    slope = max(physics.growth_slope(setup, seed, how, backend=backend) for seed in seeds)
    small = replace(physics.SMALL, coupling=setup.coupling, spread=setup.spread)
    plain, frozen = np.array([physics.leading_exponents(small, seed, how) for seed in seeds]).T
    low, high, tail = np.array([physics.order_range(setup, seed, how) for seed in seeds]).T
    where = f"mean K {setup.coupling:g}/N, ω ~ N(0, {setup.spread:g})"
    rows = [
        ("growth slope of a perturbation of 1e-8", physics.SLOPE_LIMIT, f"{slope:+.3f}"),
        ("leading exponent of frozen K′", physics.EXPONENT_LIMIT, f"{frozen.max():.3f}"),
        ("the same, above that of K", physics.EXPONENT_LIMIT, f"{(frozen - plain).max():.3f}"),
        ("R over 2000 steps", "0 to 1", f"{low.min():.3f} to {high.max():.5f}"),
        ("range of R over the last 500 steps", physics.TAIL_LIMIT, f"{tail.max():.1e}"),
    ]
    return [(f"4. {what}, {where}", str(limit) if strong else "", value) for what, limit, value in rows]


def _overheads(sizes: Sequence[int], name: str) -> list[tuple[str, str, str]]:
    cells = bench.measure(sizes, [name], rounds=3).cells
    return [
        (
            f"5. Euler step at N = {cell.n}, plain and modulated",
            "",
            f"{_micro(cell.plain)} and {_micro(cell.modulated)} µs: +{cell.overhead:.0f} %",
        )
        for cell in cells
    ]


def _micro(timing: bench.Timing) -> str:
    return f"{1e6 * timing.minimum:.3g}"


def criteria_markdown(rows: Iterable[tuple[str, str, str]], seeds: int, backend: str | None = None) -> str:
    """Lay the criteria out as Markdown.

    Parameters
    ----------
    rows : iterable of (str, str, str)
        What ``criteria`` returned.
    seeds : int
        With which it was called.
    backend : str, optional
        With which it was called.

    Returns
    -------
    str
    """
    machine = bench.machine()
    name = registry.load(backend).NAME
    return "\n".join(
        [
            f"Worst of {seeds} random networks ({min(seeds, STABILITY_SEEDS)} for criteria 2 to 4); "
            f"criterion 4 with λ 0.5 and block size 4. Backend {name}, {machine['processor']}, "
            f"Python {machine['python']}, NumPy {machine['numpy']}, spo_fast {machine['spo_fast']}.",
            "",
            *_layout(["criterion", "limit", "measured"], rows),
            "",
        ]
    )
