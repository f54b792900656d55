"""How an oscillator finds the answer: what the last token is coupled to, step by step.

Criterion, fixed beforehand: in models trained on the association task, the phases of the asking token and of
the answer come closer from step to step (mean cosine of their difference, over heads, phases and sequences,
grows), and with static queries more of the final attention is on the answer than without. Published are .10
to .55 over the four steps (.05 to .32 with static queries); a final attention of 11 % on the answer, 16 % on
the key before it and 34 % on the asking token itself (static: 25 % on the answer, 16 % on itself); heads that
attend most to the answer in 0-2 % of the sequences (static: two of four in 53-58 %).

What the published coupling is was not said; two readings are measured at each step: *alignment*, the mean
cosine above, with the lag of the score, and *coupling*, the attention weight from the asking token to the
answer, mean over heads. *Spread* is the exponential of the entropy of that attention: over how many tokens it
goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast.experiments import figures, summary
from spo_fast.experiments.records import Record
from spo_fast.experiments.study import RATES, Claim, Study
from spo_fast.experiments.tasks import Batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from spo_fast.experiments.models import Model
    from spo_fast.torch import OscillatorAttention

DIGITS = 4


def measure(model: Model, batches: Sequence[Batch]) -> dict[str, Any]:
    """Look into a model of one block of oscillators.

    Parameters
    ----------
    model : Model
    batches : sequence of Batch
        With answers that follow their key.

    Returns
    -------
    dict
        "alignment", "coupling" and "spread": a number for each step, all loops one after the other, the state
        that is read out included; "final": shares of the last attention on "answer", "key" and "self", mean
        over heads; "heads": for each head, in what share of the sequences the answer gets its largest weight.
    """
    import torch

    with torch.no_grad():
        parts = [_measure(model, batch) for batch in batches]
    sizes = [len(batch) for batch in batches]
    means = {
        name: np.average([part[name].numpy() for part in parts], axis=0, weights=sizes).round(DIGITS).tolist()
        for name in parts[0]
    }
    return means | {"final": {name: means.pop(name) for name in ("answer", "key", "self")}}


def _measure(model: Model, batch: Batch) -> dict[str, Tensor]:
    """Means over the sequences of a batch."""
    import torch

    from spo_fast.experiments.models import Block
    from spo_fast.torch import OscillatorAttention

    (block,) = model.blocks
    assert isinstance(block, Block) and isinstance(block.attention, OscillatorAttention)
    answers = torch.from_numpy(batch.answers)
    rows = torch.arange(len(batch))
    steps = []
    x = model.embedding(torch.from_numpy(batch.tokens))
    queries = model.asking(x)
    for _ in range(model.loops):
        for attention, aligned in _walk(block.attention, block.norm_attention(x), queries):
            steps.append(
                (
                    aligned[rows, :, answers].mean(),
                    attention[rows, :, answers].mean(),
                    torch.special.entr(attention).sum(-1).exp().mean(),
                )
            )
        x = block(x, queries)
    to_answer, to_key = attention[rows, :, answers], attention[rows, :, answers - 1]
    alignment, coupling, spread = (torch.stack(values) for values in zip(*steps, strict=True))
    return {
        "alignment": alignment,
        "coupling": coupling,
        "spread": spread,
        "heads": (attention.argmax(-1) == answers[:, None]).float().mean(0),
        "answer": to_answer.mean(),
        "key": to_key.mean(),
        "self": attention[:, :, -1].mean(),
    }


def _walk(layer: OscillatorAttention, x: Tensor, queries: tuple[Tensor, Tensor] | None = None) -> Any:
    """Yield attention of the last token and its alignment with every token, each (B, H, N), step by step."""
    from spo_fast.torch.eager import initial_phases, phase_steps

    arguments, options = layer.dynamics(x, queries)
    asking = None
    if options["queries"] is not None:
        cosine, sine = options["queries"]
        asking = initial_phases(cosine, sine, layer.ramp)[:, :, -1:]
    lag = 0.0 if layer.alpha is None else layer.alpha[:, None, :]
    for attention, theta, _ in phase_steps(*arguments, **options):
        if asking is None or not (layer.static_query or options["queries"] is not None):
            asking = theta[:, :, -1:]
        yield attention[:, :, -1], (asking - theta - lag).cos().mean(-1)


# ---------------------------------------------------------------- the study

MOVING, STATIC = "oscillator", "static"
PUBLISHED = {MOVING: ".10 to .55", STATIC: ".05 to .32"}


def _chosen(records: Sequence[Record]) -> dict[str, summary.Outcome]:
    measured = [record for record in records if "mechanism" in record]
    return summary.best(summary.outcomes(measured, (MOVING, STATIC), RATES))


def _course(outcome: summary.Outcome, name: str) -> list[float]:
    """Mean over seeds of a quantity, step by step."""
    return [mean(values) for values in zip(*(r["mechanism"][name] for r in outcome.records), strict=True)]


def _share(outcome: summary.Outcome, name: str) -> float:
    return mean(record["mechanism"]["final"][name] for record in outcome.records)


def _comes_closer(model: str) -> Claim:
    def judge(records: Sequence[Record]) -> tuple[str, bool] | None:
        chosen = _chosen(records)
        if model not in chosen:
            return None
        alignment, coupling = (_course(chosen[model], name) for name in ("alignment", "coupling"))
        courses = (("alignment", alignment), ("weight", coupling))
        text = ", ".join(f"{name} {course[0]:.2f} to {course[-1]:.2f}" for name, course in courses)
        return text, all(later > earlier for earlier, later in pairwise(alignment))

    return Claim(f"{model}: coupling to the answer grows from step to step", PUBLISHED[model], judge)


def _more_on_the_answer(records: Sequence[Record]) -> tuple[str, bool] | None:
    chosen = _chosen(records)
    if len(chosen) < 2:
        return None
    texts = [
        f"{100 * _share(chosen[model], 'answer'):.0f}/{100 * _share(chosen[model], 'self'):.0f}"
        for model in (STATIC, MOVING)
    ]
    more = _share(chosen[STATIC], "answer") > _share(chosen[MOVING], "answer")
    return " against ".join(texts) + " %", more


def _draw(records: Sequence[Record], figure: Figure) -> None:
    chosen = _chosen(records)
    for ax, name in zip(figure.subplots(1, 3), ("alignment", "coupling", "spread"), strict=True):
        lines = {o.label: [r["mechanism"][name] for r in o.records] for o in chosen.values()}
        figures.plot_steps(lines, ax, ylabel=name)


def _tabulate(records: Sequence[Record]) -> list[str]:
    chosen = _chosen(records).values()
    shares = ("answer", "key", "self")
    heading = ["model", "rate", "seeds", "alignment", "coupling", "spread", *shares, "heads on the answer"]
    rows = []
    for outcome in chosen:
        courses = [
            " ".join(f"{value:.2f}" for value in _course(outcome, name))
            for name in ("alignment", "coupling", "spread")
        ]
        heads = [sorted(record["mechanism"]["heads"], reverse=True) for record in outcome.records]
        rows.append(
            [
                outcome.label,
                f"{outcome.rate:g}",
                str(outcome.seeds),
                *courses,
                *(f"{100 * _share(outcome, name):.0f} %" for name in shares),
                " ".join(f"{100 * mean(values):.0f} %" for values in zip(*heads, strict=True)),
            ]
        )
    return summary.table(heading, rows)


STUDY = Study(
    name="mechanism",
    title="What the asking token is coupled to",
    question=__doc__,
    models=(MOVING, STATIC),
    rates=RATES,
    seeds=1,
    steps=4000,
    claims=(
        _comes_closer(MOVING),
        _comes_closer(STATIC),
        Claim(
            "static queries put more of the final attention on the answer (answer/self)",
            "25/16 against 11/34 %",
            _more_on_the_answer,
        ),
    ),
    draw=_draw,
    tabulate=_tabulate,
    task="association",
    file="association",
)
