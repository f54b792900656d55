"""Rhythm: a cycle of 5 to 8 tokens, shown three times, then one of them; which one follows.

Criterion, fixed beforehand: the oscillator with T 4 stays at chance among the cycle's tokens (1/C, 0.159
averaged over C; below 0.3 final) and softmax with two layers reaches 95 % by 32 k sequences (40 k at most),
as published.
"""

from __future__ import annotations

from collections.abc import Sequence

from spo_fast.experiments import summary
from spo_fast.experiments.records import Record
from spo_fast.experiments.study import RATES, Claim, trained
from spo_fast.experiments.summary import thousands


def _at_chance(records: Sequence[Record]) -> tuple[str, bool] | None:
    chosen = summary.best(summary.outcomes(records, ("oscillator",), RATES))
    if not chosen:
        return None
    final = chosen["oscillator"].final
    return f"{final:.3f} final", final < 0.3


def _two_layers(records: Sequence[Record]) -> tuple[str, bool] | None:
    chosen = summary.best(summary.outcomes(records, ("softmax-2",), RATES))
    if not chosen:
        return None
    needed = chosen["softmax-2"].to_95
    return thousands(needed), needed <= 40_000


STUDY = trained(
    "rhythm",
    "Going on with a cycle",
    __doc__,
    ("softmax", "softmax-2", "softmax-looped", "oscillator", "static", "static-looped", "separate"),
    task="rhythm",
    claims=(
        Claim("the oscillator stays at chance (< 0.3)", "at chance", _at_chance),
        Claim("softmax with two layers reaches 95 % by 32 k sequences (≤ 40 k)", "32 k", _two_layers),
    ),
)
