"""Records put together: the better learning rate of each model, means over seeds, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

from spo_fast.experiments.records import Record
from spo_fast.experiments.specs import LABELS

LOSSES = {"loss_known": "loss, predictable part", "loss_rest": "loss, the rest"}  # where they are apart


@dataclass(frozen=True)
class Outcome:
    """All seeds of a model at one rate.

    Attributes
    ----------
    model : str
    rate : float or None
    records : list of dict
        In order of the seed.
    """

    model: str
    rate: float | None
    records: list[Record]

    @property
    def label(self) -> str:
        """What tables and pictures call it."""
        return LABELS.get(self.model, self.model)

    @property
    def seeds(self) -> int:
        """How many there are."""
        return len(self.records)

    @property
    def curve(self) -> list[float]:
        """Accuracy at each test, mean over seeds."""
        return [mean(values) for values in zip(*(record["accuracy"] for record in self.records), strict=True)]

    @property
    def final(self) -> float:
        """Accuracy at the end, mean over seeds."""
        return mean(record["final"] for record in self.records)

    @property
    def reached(self) -> list[int]:
        """Sequences to 95 % of the seeds that got there."""
        return sorted(r["sequences_to_95"] for r in self.records if r["sequences_to_95"] is not None)

    @property
    def to_95(self) -> float:
        """Median of sequences to 95 %; infinite when half of the seeds or fewer got there."""
        missing = [float("inf")] * (self.seeds - len(self.reached))
        return median([*self.reached, *missing])

    def last(self, name: str) -> str:
        """Write the last value of a curve, mean over seeds.

        Parameters
        ----------
        name : str

        Returns
        -------
        str
            "-" when a seed's curve ended at once.
        """
        curves = [record[name] for record in self.records]
        return f"{mean(curve[-1] for curve in curves):.3f}" if all(curves) else "-"

    def other(self, name: str) -> float:
        """Return the accuracy on another test set, mean over seeds.

        Parameters
        ----------
        name : str

        Returns
        -------
        float
        """
        return mean(record["others"][name] for record in self.records)


def outcomes(
    records: Iterable[Record], models: Sequence[str], rates: Sequence[float | None]
) -> list[Outcome]:
    """Group records by model and rate; of different numbers of steps the largest counts.

    Parameters
    ----------
    records : iterable of dict
    models : sequence of str
        In this order.
    rates : sequence of float or None

    Returns
    -------
    list of Outcome
        Without those that have no record.
    """
    meant = [r for r in records if r["model"] in models and r["rate"] in rates]
    steps = max((record["steps"] for record in meant), default=0)
    groups = [
        Outcome(
            model,
            rate,
            sorted(
                (r for r in meant if (r["model"], r["rate"], r["steps"]) == (model, rate, steps)),
                key=lambda record: record["seed"],
            ),
        )
        for model in models
        for rate in rates
    ]
    return [group for group in groups if group.records]


def best(groups: Iterable[Outcome]) -> dict[str, Outcome]:
    """Choose for each model the rate with the best mean accuracy over the curve.

    Parameters
    ----------
    groups : iterable of Outcome

    Returns
    -------
    dict of str to Outcome
        By model.
    """
    chosen: dict[str, Outcome] = {}
    for group in groups:
        other = chosen.get(group.model)
        if other is None or mean(group.curve) > mean(other.curve):
            chosen[group.model] = group
    return chosen


# ---------------------------------------------------------------- tables


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> list[str]:
    """Lay cells out as Markdown.

    Parameters
    ----------
    heading : sequence of str
    rows : iterable of sequence of str
    numbers : bool
        Whether all columns but the first stand to the right.

    Returns
    -------
    list of str
        Lines.
    """
    rule = ["---", *["---:" if numbers else "---"] * (len(heading) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (heading, rule, *rows)]


def spread(values: Sequence[float]) -> str:
    """Write mean ± standard deviation.

    Parameters
    ----------
    values : sequence of float

    Returns
    -------
    str
        Of a single value, the value.
    """
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{mean(values):.3f} ± {stdev(values):.3f}"


def thousands(number: float) -> str:
    """Write a number of sequences in thousands.

    Parameters
    ----------
    number : float
        "never" when it is infinite.

    Returns
    -------
    str
    """
    return "never" if number == float("inf") else f"{number / 1000:.0f} k"


def training_table(groups: Sequence[Outcome]) -> list[str]:
    """Tabulate what was trained, a row for each model at its better rate.

    Parameters
    ----------
    groups : sequence of Outcome
        At every rate.

    Returns
    -------
    list of str
    """
    chosen = best(groups)
    others = list(next(iter(chosen.values())).records[0]["others"]) if chosen else []
    losses = [name for name in LOSSES if any(name in o.records[0] for o in chosen.values())]
    heading = ["model", "parameters", "rate", "seeds", "final accuracy", "sequences to 95 %", "of seeds"]
    rows = [
        [
            group.label,
            f"{group.records[0]['parameters']:,}",
            f"{group.rate:g}",
            str(group.seeds),
            spread([record["final"] for record in group.records]),
            thousands(group.to_95),
            f"{len(group.reached)} of {group.seeds}",
            *(f"{group.other(name):.2f}" for name in others),
            *(group.last(name) for name in losses),
            f"{mean(record['seconds'] for record in group.records):.0f}",
        ]
        for group in chosen.values()
    ]
    return table([*heading, *others, *(LOSSES[name] for name in losses), "s a run"], rows)


def rates_table(groups: Sequence[Outcome]) -> list[str]:
    """Tabulate every model at every rate, failures too.

    Parameters
    ----------
    groups : sequence of Outcome

    Returns
    -------
    list of str
    """
    heading = ["model", "rate", "seeds", "mean over the curve", "final accuracy", "smallest", "largest"]
    rows = []
    for group in groups:
        finals = [record["final"] for record in group.records]
        ends = [f"{min(finals):.3f}", f"{max(finals):.3f}"]
        middle = [f"{mean(group.curve):.3f}", spread(finals)]
        rows.append([group.label, f"{group.rate:g}", str(group.seeds), *middle, *ends])
    return table(heading, rows)
