"""What a study consists of, decided before anything is run and the same for all its models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spo_fast.experiments import figures, summary
from spo_fast.experiments.records import Record
from spo_fast.experiments.runner import Run
from spo_fast.experiments.summary import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAIN = "spo_fast.experiments.training:train"


@dataclass(frozen=True)
class Claim:
    """A statement that the records can bear out or not.

    Attributes
    ----------
    text : str
        What is claimed.
    published : str
        The published figure; empty when there is none.
    judge : callable
        From the records to our figure and whether the claim holds; None while runs are missing.
    """

    text: str
    published: str
    judge: Callable[[Sequence[Record]], tuple[str, bool] | None]


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes
    ----------
    name : str
        On the command line.
    title : str
    question : str
        What is asked and which outcome would count, for the page of results.
    models : tuple of str
        What is compared.
    rates : tuple of float or None
        Learning rates, each tried for every model; (None,) where nothing is learned.
    seeds, steps : int
        Defaults.
    claims : tuple of Claim
    draw : callable
        Draws records on a figure.
    tabulate : callable
        Records to lines of Markdown: everything that was tried.
    execute : str
        MODULE:FUNCTION for `runner.run_all`.
    task : str
        One of `tasks.TASKS`; empty for what is no task on tokens.
    file : str
        Name of the file of records, without suffix; studies of one task share it and with it their runs.
    needs_torch : bool
    """

    name: str
    title: str
    question: str
    models: tuple[str, ...]
    rates: tuple[float | None, ...]
    seeds: int
    steps: int
    claims: tuple[Claim, ...]
    draw: Callable[[Sequence[Record], Figure], None]
    tabulate: Callable[[Sequence[Record]], list[str]]
    execute: str = TRAIN
    task: str = ""
    file: str = ""
    needs_torch: bool = True

    @property
    def path(self) -> str:
        """Name of the file of records."""
        return f"{self.file or self.name}.jsonl"

    def runs(
        self,
        models: Sequence[str] | None = None,
        rates: Sequence[float] | None = None,
        seeds: int | None = None,
        steps: int | None = None,
    ) -> list[Run]:
        """List the runs, all of the first seed first, so that part of them is a smaller study.

        Parameters
        ----------
        models : sequence of str, optional
            Some of ``models``.
        rates : sequence of float, optional
        seeds, steps : int, optional

        Returns
        -------
        list of dict

        Raises
        ------
        ValueError
            For a model that does not belong to the study, or rates where nothing is learned.
        """
        for name in models or ():
            if name not in self.models:
                raise ValueError(f"models must be among {', '.join(self.models)}, got {name}")
        if rates and self.rates == (None,):
            raise ValueError(f"{self.name} has no learning rates")
        return [
            {
                "task": self.task or self.name,
                "model": model,
                "rate": rate,
                "seed": seed,
                "steps": steps or self.steps,
            }
            for seed in range(seeds or self.seeds)
            for model in models or self.models
            for rate in rates or self.rates
        ]


RATES = (1e-3, 3e-3)  # tried for every model


def claim(
    text: str,
    published: str,
    models: tuple[str, ...],
    judge: Callable[..., tuple[str, bool]],
    rates: tuple[float, ...] = RATES,
) -> Claim:
    """Make a claim on the outcomes of some models, each at its better rate.

    Parameters
    ----------
    text, published
        As in `Claim`.
    models : tuple of str
    judge : callable
        From the outcome of each of the models, in their order, to our figure and whether the claim holds.
    rates : tuple of float

    Returns
    -------
    Claim
        Which waits until all of the models have a record.
    """

    def decide(records: Sequence[Record]) -> tuple[str, bool] | None:
        chosen = summary.best(summary.outcomes(records, models, rates))
        return judge(*(chosen[name] for name in models)) if len(chosen) == len(models) else None

    return Claim(text, published, decide)


def trained(
    name: str,
    title: str,
    question: str,
    models: tuple[str, ...],
    *,
    task: str,
    rates: tuple[float, ...] = RATES,
    seeds: int = 1,
    steps: int = 4000,
    claims: tuple[Claim, ...] = (),
    file: str = "",
    more: Callable[[Sequence[Outcome]], list[str]] | None = None,
) -> Study:
    """Make a study of models trained on a task: learning curves, bars of final accuracies, tables.

    Parameters
    ----------
    name, title, question, models, task, rates, seeds, steps, claims, file
        As in `Study`.
    more : callable, optional
        From each model's outcome to lines of Markdown that go between the tables.

    Returns
    -------
    Study
    """

    def draw(records: Sequence[Record], figure: Figure) -> None:
        chosen = summary.best(summary.outcomes(records, models, rates))
        split = any("loss_known" in outcome.records[0] for outcome in chosen.values())
        widths = (3, 3, 2) if split else (3, 2)
        left, *middle, right = figure.subplots(1, len(widths), width_ratios=widths)
        figures.plot_learning(chosen, left)
        for ax in middle:
            figures.plot_losses(chosen, ax)
        figures.plot_finals(chosen, right)

    def tabulate(records: Sequence[Record]) -> list[str]:
        groups = summary.outcomes(records, models, rates)
        every = ["", "Every model at every rate:", "", *summary.rates_table(groups)]
        between = ["", *more(list(summary.best(groups).values()))] if more and groups else []
        return [*summary.training_table(groups), *between, *every]

    return Study(
        name,
        title,
        question,
        models,
        rates,
        seeds,
        steps,
        claims,
        draw,
        tabulate,
        task=task,
        file=file,
    )
