"""Where attention goes: the first token, the sink, or the rest, in models trained on recall.

A softmax must put its weight somewhere; what is not needed is said to pile up on the first token, and a
sink, one more column with a score and a value of its own, to take it. Weights are means over heads, 100
test sequences, and all tokens but the first, which has no choice.

Criterion, fixed beforehand: the sink *takes the mass* when, after training, parseval has more in the sink
than on the first token, and on the first token at most half of what parseval without a sink has there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from spo_fast.experiments import figures, pulse_scores, summary
from spo_fast.experiments.pulse_scores import RATES, mass_table, measured, scored, share
from spo_fast.experiments.recall import STEPS
from spo_fast.experiments.records import Record
from spo_fast.experiments.study import Study
from spo_fast.experiments.summary import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = ("standard", "rope", "leaky", "parseval", "no-sink", "chunked", "alpert")


def _groups(records: Sequence[Record]) -> list[Outcome]:
    return summary.outcomes(measured(records), MODELS, RATES)


def _takes(with_sink: Outcome, without: Outcome) -> tuple[str, bool]:
    sink, first, bare = share(with_sink, "sink"), share(with_sink, "first"), share(without, "first")
    text = f"sink {100 * sink:.1f} %, first {100 * first:.1f} %; first without a sink {100 * bare:.1f} %"
    return text, sink > first and first <= 0.5 * bare


def _gathers(outcome: Outcome) -> tuple[str, bool]:
    first, even = share(outcome, "first"), share(outcome, "even")
    return f"{100 * first:.1f} %, even attention {100 * even:.1f} %", first >= 2.0 * even


def _draw(records: Sequence[Record], figure: Figure) -> None:
    groups = _groups(records)
    for ax, time in zip(figure.subplots(1, 2, sharey=True), pulse_scores.TIMES, strict=True):
        left = np.zeros(len(groups))
        for place, name in enumerate(("first", "sink")):
            shares = np.array([share(group, name, time) for group in groups])
            ax.barh(range(len(groups)), shares, 0.7, left, label=name, color=figures.COLOURS[place])
            left += shares
        ax.barh(range(len(groups)), 1.0 - left, 0.7, left, label="elsewhere", color="#DDDDDD")
        ax.set(title=f"{time} training", xlabel="attention", xlim=(0.0, 1.0))
        ax.set_yticks(range(len(groups)), [group.label for group in groups], fontsize=8)
    if groups:
        ax.invert_yaxis()
        ax.legend(fontsize=7)


STUDY = Study(
    name="attention-mass",
    title="Where attention goes",
    question=__doc__,
    models=MODELS,
    rates=RATES,
    seeds=3,
    steps=STEPS,
    claims=(
        scored("the sink takes the mass of the first token", "it does", ("parseval", "no-sink"), _takes),
        scored(
            "without a sink the mass is on the first token (at least twice an even share)",
            "it is",
            ("no-sink",),
            _gathers,
        ),
    ),
    draw=_draw,
    tabulate=lambda records: mass_table(_groups(records)),
    task="recall",
    file="recall",
)
