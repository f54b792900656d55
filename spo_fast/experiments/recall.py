"""Recall: sixteen tokens and the same again; after each of the first 31, which one comes next.

Tokens are uniform among 64, so nothing can be known of the first half, and everything of the second: the
answer always stands 15 positions back. The model is embedding, attention and readout, width 32, no
residual, norm or MLP; AdamW at 3e-3, 4,000 steps of 32 fresh sequences, loss at all 31 positions.
Accuracy is that of the 16 targets that can be known (chance 1.6 %, one of the 16 shown tokens at random
6.3 %); their loss and that of the other 15, which cannot fall below ln 64 = 4.159, are kept apart,
because a mean of both hides either. Beside the position-free softmax of the publication stands a fair
control, softmax with rotary positions and a projection of the output. chunked and alpert have four heads
and chunks of 16 tokens.

Criteria, fixed beforehand: "flatlines" is an accuracy below 10 % at the end, mean over seeds; "converges
at once" is 95 % within a quarter of the training, 1,000 steps or 32 k sequences, in the median over
seeds, and at least 99 % at the end. As published, parseval and alpert see more than the past (see the
page on attention), so their figures are no proof of recall; their strictly causal forms are.
"""

from __future__ import annotations

from spo_fast.experiments import pulse_scores
from spo_fast.experiments.pulse_scores import RATES
from spo_fast.experiments.study import Claim, claim, trained
from spo_fast.experiments.summary import Outcome, thousands
from spo_fast.experiments.tasks import NEXT_BATCH

STEPS = 4000
FLAT = 0.1  # accuracy that is below 10 %
SOON = NEXT_BATCH * STEPS // 4  # sequences
MODELS = ("standard", "rope", "rope-4", "leaky", "parseval", "chunked", "alpert")


def flatlines(outcome: Outcome) -> tuple[str, bool]:
    """Judge whether a model learns nothing.

    Parameters
    ----------
    outcome : Outcome

    Returns
    -------
    text : str
    holds : bool
    """
    return f"{outcome.final:.3f} final, loss {outcome.last('loss_known')}", outcome.final < FLAT


def pace(outcome: Outcome) -> str:
    """Write when a model got to 95 %, and where it ended.

    Parameters
    ----------
    outcome : Outcome

    Returns
    -------
    str
    """
    never = outcome.to_95 == float("inf")
    reached = "never 95 %" if never else f"95 % after {thousands(outcome.to_95)}"
    return f"{reached}, {outcome.final:.3f} final"


def _at_once(outcome: Outcome) -> tuple[str, bool]:
    return pace(outcome), outcome.to_95 <= SOON and outcome.final >= 0.99


def _converges(model: str, published: str) -> Claim:
    text = f"{model} converges at once (95 % by {thousands(SOON)} sequences, ≥ 0.99 final)"
    return claim(text, published, (model,), _at_once, RATES)


CLAIMS = (
    claim("standard attention flatlines for 4000 steps (< 0.1)", "flat", ("standard",), flatlines, RATES),
    claim(
        "with positions and a projection of the output it flatlines too (< 0.1)",
        "",
        ("rope",),
        flatlines,
        RATES,
    ),
    _converges("leaky", "immediately"),
    *(_converges(model, "") for model in ("parseval", "chunked", "alpert")),
)

STUDY = trained(
    "recall",
    "Recall of the first half",
    __doc__,
    MODELS,
    task="recall",
    rates=RATES,
    seeds=3,
    steps=STEPS,
    claims=CLAIMS,
    more=pulse_scores.mass_table,
)
