"""Twice as many pairs: which models still learn to remember when sixteen are shown in training.

The association task with 16 pairs (33 tokens), tested on 8 and 24 as well. Criterion, fixed beforehand: the
order of the models by sequences to 95 % is that of 8 pairs. Nothing is published for it.
"""

from __future__ import annotations

from spo_fast.experiments.study import claim, trained
from spo_fast.experiments.summary import Outcome, thousands


def _in_order(*outcomes: Outcome) -> tuple[str, bool]:
    needed = [outcome.to_95 for outcome in outcomes]
    first, second, third, *last = needed
    return ", ".join(map(thousands, needed)), first < second < third < min(last)


STUDY = trained(
    "pairs16",
    "Sixteen pairs",
    __doc__,
    ("softmax", "softmax-2", "softmax-looped", "oscillator", "static", "separate"),
    task="association-16",
    claims=(
        claim(
            "looped softmax is first, then two layers, then separate q, k, then T 4 and static queries",
            "",
            ("softmax-looped", "softmax-2", "separate", "oscillator", "static"),
            _in_order,
        ),
    ),
)
