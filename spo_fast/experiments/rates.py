"""A third learning rate, in case the grid of two is too narrow for some of the models.

All ten models of the association task at 1e-2 as well. Criterion, fixed beforehand: 1e-2 matters for a model
when it has the best mean accuracy over the learning curve of the three rates, over the same seeds.
"""

from __future__ import annotations

from spo_fast.experiments.specs import PROTOCOL
from spo_fast.experiments.study import RATES, trained

STUDY = trained(
    "rates",
    "A third learning rate",
    __doc__,
    PROTOCOL,
    task="association",
    rates=(*RATES, 1e-2),
    file="association",
)
