"""Scores without a mask: whether the future is noise, and the mask a formality.

The argument for context pulses: a query that has gathered the past knows nothing of the future, so its
scores with later keys are noise around zero and the causal mask only tidies up. Measured are the scores
that softmax would take, of all pairs of tokens, with the mask left out, before and after training on
recall: mean and spread (standard deviation over pairs and 100 sequences) above the diagonal, in the
future, and below it. Compared are standard attention, the leaky variant, and the leaky variant with its
roles the other way round, queries of single tokens (the innovation) and keys that have gathered (the
accumulation). Then the mask itself: the accuracy of the trained model when its mask is taken away, and
models that are trained without one.

Criteria, fixed beforehand. The future is *noise* when, after training, the mean above the diagonal is at
most 0.1 times the spread below it away from 0, and the spread above at most half of that below. The mask
is a *formality* when the trained model loses at most 0.02 of its accuracy without it, and when the model
that is trained without it ends within 0.02 of the one with it and no lower than 4.1 in the loss of what
cannot be known (ln 64 = 4.159): one that looked at the future would be below.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from spo_fast.experiments import figures, summary
from spo_fast.experiments.pulse_scores import RATES, TIMES, measured, scored, scores
from spo_fast.experiments.recall import STEPS
from spo_fast.experiments.records import Record
from spo_fast.experiments.specs import LABELS, MAPPED
from spo_fast.experiments.study import Claim, Study
from spo_fast.experiments.summary import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPEN = tuple(f"{name}-open" for name in MAPPED)
PLACES = {"below": "past", "diagonal": "self", "above": "future"}


def _groups(records: Sequence[Record]) -> list[Outcome]:
    return summary.outcomes(measured(records), (*MAPPED, *OPEN), RATES)


def _noise(outcome: Outcome) -> tuple[str, bool]:
    (past, wide), (future, narrow) = (scores(outcome, where, "after") for where in ("below", "above"))
    text = f"future {future:.2f} ± {narrow:.2f}, past {past:.2f} ± {wide:.2f}"
    return text, abs(future) <= 0.1 * wide and narrow <= 0.5 * wide


def unmasked(outcome: Outcome) -> float:
    """Return the accuracy with the mask taken away after training, mean over seeds.

    Parameters
    ----------
    outcome : Outcome

    Returns
    -------
    float
    """
    return mean(record["unmasked"] for record in outcome.records)


def _not_needed(outcome: Outcome) -> tuple[str, bool]:
    without = unmasked(outcome)
    return f"{outcome.final:.3f} with, {without:.3f} without", outcome.final - without <= 0.02


def _never_needed(without: Outcome, masked: Outcome) -> tuple[str, bool]:
    rest = mean(record["loss_rest"][-1] for record in without.records)
    text = f"{without.final:.3f} against {masked.final:.3f}, loss of the rest {rest:.2f}"
    return text, abs(without.final - masked.final) <= 0.02 and rest >= 4.1


def _claims(model: str, published: str) -> tuple[Claim, ...]:
    both = (f"{model}-open", model)
    return (
        scored(f"{model}: the future is noise", published, (model,), _noise),
        scored(f"{model}: the trained model does not need its mask", published, (model,), _not_needed),
        scored(f"{model}: nor is it needed in training", published, both, _never_needed),
    )


def _draw(records: Sequence[Record], figure: Figure) -> None:
    groups = [group for group in _groups(records) if group.model in MAPPED]
    grid = figure.subplots(len(TIMES), len(MAPPED), squeeze=False)
    for row, time in zip(grid, TIMES, strict=True):
        for ax, name in zip(row, MAPPED, strict=True):
            maps = [
                r["scores"][time]["map"] for group in groups if group.model == name for r in group.records
            ]
            if maps:
                figures.plot_map(np.mean(maps, axis=0), ax).set_title(f"{LABELS[name]}, {time}", fontsize=8)
            else:
                ax.set_axis_off()


def _tabulate(records: Sequence[Record]) -> list[str]:
    groups = _groups(records)
    rows = []
    for group in groups:
        cells = ["{:.2f} ± {:.2f}".format(*scores(group, where, time)) for time in TIMES for where in PLACES]
        bare = f"{unmasked(group):.3f}" if "unmasked" in group.records[0] else "-"
        ends = [f"{group.final:.3f}", bare, group.last("loss_rest")]
        rows.append([group.label, str(group.seeds), *cells, *ends])
    heading = [f"{name}, {time}" for time in TIMES for name in PLACES.values()]
    ends = ["accuracy", "mask taken away", "loss, the rest"]
    return summary.table(["model", "seeds", *heading, *ends], rows)


STUDY = Study(
    name="score-maps",
    title="Scores without a mask",
    question=__doc__,
    models=(*MAPPED, *OPEN),
    rates=RATES,
    seeds=3,
    steps=STEPS,
    claims=(*_claims("leaky", "yes"), *_claims("inverted", ""), *_claims("standard", "")),
    draw=_draw,
    tabulate=_tabulate,
    task="recall",
    file="recall",
)
