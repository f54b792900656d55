"""Two hops: A leads to B and B leads to C; asked with A, who answers C.

Four chains, their eight pairs in random order (17 tokens); tested on 6 and 8 chains as well. Picking one of
the four shown C gives 25 % (a little more with repeated values). The dynamics go through the same tokens step
after step, so more than one hop is what they might be good at. Criterion, fixed beforehand: the oscillator
with T 4 solves it (≥ 0.95 final) while one layer of softmax does not. Nothing is published for it.
"""

from __future__ import annotations

from spo_fast.experiments.study import claim, trained
from spo_fast.experiments.summary import Outcome


def _alone(oscillator: Outcome, softmax: Outcome) -> tuple[str, bool]:
    text = f"{oscillator.final:.3f} against {softmax.final:.3f} final"
    return text, oscillator.final >= 0.95 > softmax.final


STUDY = trained(
    "multihop",
    "Two hops",
    __doc__,
    ("softmax", "softmax-2", "softmax-looped", "oscillator", "static", "static-looped", "separate"),
    task="two-hops",
    claims=(
        claim(
            "the oscillator with T 4 solves two hops (≥ 0.95 final), one layer of softmax does not",
            "",
            ("oscillator", "softmax"),
            _alone,
        ),
    ),
)
