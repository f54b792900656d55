"""Other numbers of steps and other loops than those of the ten models, at remembering pairs.

Criterion, fixed beforehand: a variant is better than the oscillator with T 4 when, over the seeds, it needs
fewer sequences to 95 % or is more accurate at 12, 16 and 24 pairs without ending lower. Separate projections
for query and key keep the asking phases still by definition, so they and static queries combined are the
model "separate" already.

"First phases ask" is a second reading of the loop with static queries, which the protocol reads as static
within each pass: here a token asks in every pass with the phases of its embedding. It was added after the
protocol's own reading had failed to learn, and changes no verdict there.
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
