"""Timing: a beat every 4 to 8 positions among random tokens; when the next one comes.

32 tokens; the answer is the number of positions left. Guessing gives 0.18, and knowing the period alone no
more; the beats' places decide. Oscillators have a clock in their phases, so this is the rhythm they should be
good at. Criterion, fixed beforehand: the oscillator with T 4 reaches 95 %, and in fewer sequences than
softmax with one layer. Nothing is published for it.
"""

from __future__ import annotations

from spo_fast.experiments.study import claim, trained
from spo_fast.experiments.summary import Outcome, thousands


def _sooner(oscillator: Outcome, softmax: Outcome) -> tuple[str, bool]:
    text = f"{thousands(oscillator.to_95)} against {thousands(softmax.to_95)}"
    return text, oscillator.to_95 < softmax.to_95


STUDY = trained(
    "timing",
    "Keeping time",
    __doc__,
    ("softmax", "softmax-2", "softmax-looped", "oscillator", "static", "static-looped", "separate"),
    task="timing",
    claims=(
        claim(
            "the oscillator with T 4 keeps time (95 %) in fewer sequences than one layer of softmax",
            "",
            ("oscillator", "softmax"),
            _sooner,
        ),
    ),
)
