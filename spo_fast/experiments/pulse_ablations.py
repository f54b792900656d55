"""What each part of the Parseval variant does for recall, and what is left when it may not look ahead.

Models of the recall task, each without one part: the gate open for ever; no memory (decay 0: the state is
the token's own query), or a decay that is not learned; no wedge; no rotary positions; no sink; no
normalisation. One has neither memory nor positions. Then the forms in which the idea is kept to: strictly
causal (statistics of the past alone; in alpert, retrieval by the past alone), the relative wedge, which
unlike the published one has a gradient at its start, and both.

Criteria, fixed beforehand: a part *carries* the effect when without it the final accuracy is below half
of the published form's, it *speeds it up* when without it the sequences to 95 % are more than twice as
many, it *hinders* when they are fewer than half, else it makes *little* difference. The effect *survives*
causality when the corrected form ends at most 0.02 lower and needs at most 1.5 times the sequences to
95 %. Nothing is published for these.
"""

from __future__ import annotations

from collections.abc import Sequence

from spo_fast.experiments import summary
from spo_fast.experiments.pulse_scores import RATES
from spo_fast.experiments.recall import STEPS, pace
from spo_fast.experiments.specs import ABLATIONS, CORRECTED
from spo_fast.experiments.study import Claim, claim, trained
from spo_fast.experiments.summary import Outcome, thousands

WHOLE = "parseval"
PARTS = {
    "no-gate": "the gate",
    "no-decay": "the memory",
    "no-wedge": "the wedge",
    "no-rope": "the rotation by positions",
    "no-sink": "the sink",
    "no-norm": "the normalisation",
}


def role(without: Outcome, whole: Outcome) -> str:
    """Say what a part does.

    Parameters
    ----------
    without, whole : Outcome
        Of the model without the part, and of the published form.

    Returns
    -------
    {"carries", "speeds it up", "hinders", "little"}
    """
    if without.final < 0.5 * whole.final:
        return "carries"
    if without.to_95 > 2.0 * whole.to_95:
        return "speeds it up"
    return "hinders" if without.to_95 < 0.5 * whole.to_95 else "little"


def _carries(without: Outcome, whole: Outcome) -> tuple[str, bool]:
    text = f"{without.final:.3f} without, {whole.final:.3f} with; {role(without, whole)}"
    return text, without.final < 0.5 * whole.final


def _survives(corrected: Outcome, whole: Outcome) -> tuple[str, bool]:
    return f"{pace(corrected)} against {pace(whole)}", (
        corrected.final >= whole.final - 0.02 and corrected.to_95 <= 1.5 * whole.to_95 < float("inf")
    )


def _survival(model: str, published: str) -> Claim:
    return claim(f"{model} does as well as {published}", "", (model, published), _survives, RATES)


def _roles(groups: Sequence[Outcome]) -> list[str]:
    found = {group.model: group for group in groups}
    if WHOLE not in found:
        return []
    rows = [
        [
            found[name].label,
            role(found[name], found[WHOLE]),
            f"{found[name].final:.3f}",
            thousands(found[name].to_95),
        ]
        for name in ABLATIONS
        if name in found
    ]
    heading = ["without", "the part", "final accuracy", "sequences to 95 %"]
    return ["What the part does that is missing:", "", *summary.table(heading, rows)]


STUDY = trained(
    "pulse-ablations",
    "Parts of the Parseval variant, and causality",
    __doc__,
    (WHOLE, "alpert", *ABLATIONS, *CORRECTED),
    task="recall",
    rates=RATES,
    seeds=3,
    steps=STEPS,
    claims=(
        *(
            claim(f"{part} carries the effect", "", (name, WHOLE), _carries, RATES)
            for name, part in PARTS.items()
        ),
        _survival("parseval-causal", WHOLE),
        _survival("parseval-corrected", WHOLE),
        _survival("alpert-causal", "alpert"),
    ),
    file="recall",
    more=_roles,
)
