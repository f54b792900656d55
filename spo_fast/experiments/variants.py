"""Other numbers of steps and other loops than those of the ten models, at remembering pairs.

Criterion, fixed beforehand: a variant is better than the oscillator with T 4 when, over the seeds, it needs
fewer sequences to 95 % or is more accurate at 12, 16 and 24 pairs without ending lower. Separate projections
for query and key keep the asking phases still by definition, so they and static queries combined are the
model "separate" already.
"""

from __future__ import annotations

from spo_fast.experiments.specs import VARIANTS
from spo_fast.experiments.study import trained

STUDY = trained(
    "variants",
    "Other steps and loops",
    __doc__,
    ("oscillator", "static", "separate", *VARIANTS),
    task="association",
    file="association",
)
