"""A third learning rate, in case the grid of two is too narrow for some of the models.

All ten models of the association task at 1e-2 as well. Criterion, fixed beforehand: 1e-2 matters for a model
when it has the best mean accuracy over the learning curve of the three rates, over the same seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

from spo_fast.experiments import summary
from spo_fast.experiments.records import Record
from spo_fast.experiments.specs import LABELS, PROTOCOL
from spo_fast.experiments.study import RATES, Claim, trained

THIRD = 1e-2


def _matters(records: Sequence[Record]) -> tuple[str, bool] | None:
    """For which models the third rate is the best of the three, over the seeds that all three have."""
    better = []
    for model in PROTOCOL:
        own = [record for record in records if record["model"] == model]
        runs = {(record["rate"], record["seed"]) for record in own}
        shared = {seed for _, seed in runs if all((rate, seed) in runs for rate in (*RATES, THIRD))}
        if not shared:
            return None
        of_shared = [record for record in own if record["seed"] in shared]
        if summary.best(summary.outcomes(of_shared, (model,), (*RATES, THIRD)))[model].rate == THIRD:
            better.append(LABELS[model])
    return f"for {', '.join(better)}" if better else "for none", not better


STUDY = trained(
    "rates",
    "A third learning rate",
    __doc__,
    PROTOCOL,
    task="association",
    rates=(*RATES, THIRD),
    file="association",
    claims=(Claim("a rate of 1e-2 matters for none of the ten models", "", _matters),),
)
