"""What a model's attention looks at: its weights, and its scores without any mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast.experiments import summary
from spo_fast.experiments.records import Record
from spo_fast.experiments.specs import MAPPED
from spo_fast.experiments.study import Claim, claim
from spo_fast.experiments.summary import Outcome
from spo_fast.experiments.tasks import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from spo_fast.experiments.pulse_models import PulseModel

SEQUENCES = 100  # of the test set
DRAWN = 31  # tokens of the largest map that is kept
SHARES = ("first", "sink", "answer", "self")
TIMES = ("before", "after")
RATES = (3e-3,)  # of all studies of context pulses


def measure(model: PulseModel, batches: Sequence[Batch]) -> dict[str, Any]:
    """Look at the attention of a model.

    Parameters
    ----------
    model : PulseModel
    batches : sequence of Batch
        The first 100 sequences of the first are used.

    Returns
    -------
    dict
        "mass": mean attention weight, with the model's mask, over heads and sequences: on the "first" token
        and in the "sink" (of all tokens but the first), on the token "self", and on the "answer" (of the
        tokens whose target can be known); "even" is what even attention would give the first. "below" and
        "above" the diagonal (past and future) and "diagonal": mean and standard deviation of the scores that
        softmax would take without a mask, over pairs, heads and sequences. "twist": root mean square of
        A - A^T, where there is a wedge. "map": mean scores over heads and sequences, a row a query, for short
        sequences and the layers `specs.MAPPED`.
    """
    import torch

    batch = batches[0]
    tokens, answers = batch.tokens[:SEQUENCES], batch.answers
    assert answers is not None
    with torch.no_grad():
        scores, sink = _scores(model, torch.from_numpy(tokens))
        n = scores.shape[-1]
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        weights = _weights(scores, later if model.masked else None, sink)
    at = torch.from_numpy(answers[:SEQUENCES])
    to_answer = weights[..., :n].gather(
        3, at.clamp(min=0)[:, None, :, None].expand(-1, scores.shape[1], -1, 1)
    )
    found: dict[str, Any] = {
        "mass": {
            "first": _round(weights[:, :, 1:, 0].mean()),
            "sink": _round(weights[:, :, 1:, n:].sum(-1).mean()),
            "answer": _round(to_answer[..., 0].transpose(0, 1)[:, at >= 0].mean()),
            "even": round(float(np.mean(1.0 / np.arange(2, n + 1))), 5),
            "self": _round(weights[..., :n].diagonal(dim1=2, dim2=3).mean()),
        }
    }
    for name, where in (
        ("below", later.T),
        ("above", later),
        ("diagonal", torch.eye(n, dtype=torch.bool)),
    ):
        chosen = scores[:, :, where]
        found[name] = [_round(chosen.mean()), _round(chosen.std())]
    wedge = model.attention.state_dict().get("A")
    if wedge is not None:
        found["twist"] = _round((wedge - wedge.mT).square().mean().sqrt())
    if model.spec.layer in MAPPED and n <= DRAWN:
        found["map"] = scores.mean((0, 1)).numpy().astype(float).round(3).tolist()
    return found


def _round(value: Tensor) -> float:
    return round(value.item(), 5)


def _scores(model: PulseModel, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Scores of all pairs, (B, H, N, N), and of the sink, (H,)."""
    import torch

    from spo_fast import context_pulse
    from spo_fast.torch import CausalSelfAttention

    x = model.embedding(tokens)
    layer: Any = model.attention
    if isinstance(layer, CausalSelfAttention):
        q, k, _ = layer.projected(x)
        sink = None
    else:
        given = layer.projected(x)
        arrays = {name: tensor.detach().numpy() for name, tensor in given.items()}
        _, state = context_pulse.pulse_attention(**arrays, variant=layer.variant, **layer.options)
        q, k = (torch.from_numpy(side) for side in state.sides[:2])
        sink = given.get("sink")
    return q @ k.mT * q.shape[-1] ** -0.5, sink


def _weights(scores: Tensor, hidden: Tensor | None, sink: Tensor | None) -> Tensor:
    """Softmax over keys and, in a last column, the sink."""
    import torch

    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    if sink is not None:
        column = sink[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    return scores.softmax(-1)


# ---------------------------------------------------------------- tables


def measured(records: Sequence[Record]) -> list[Record]:
    """Leave out the runs that blew up, which have no scores.

    Parameters
    ----------
    records : sequence of dict

    Returns
    -------
    list of dict
    """
    return [record for record in records if "scores" in record]


def scored(
    text: str, published: str, models: tuple[str, ...], judge: Callable[..., tuple[str, bool]]
) -> Claim:
    """Make a claim on what was measured inside models that were trained at the only rate.

    Parameters
    ----------
    text, published, models, judge
        As for `study.claim`.

    Returns
    -------
    Claim
        Which leaves out the runs that blew up.
    """
    inner = claim(text, published, models, judge, RATES)
    return Claim(text, published, lambda records: inner.judge(measured(records)))


def share(outcome: Outcome, name: str, time: str = "after") -> float:
    """Return a share of the attention, mean over seeds.

    Parameters
    ----------
    outcome : Outcome
    name : {"first", "sink", "answer", "self", "even"}
    time : {"before", "after"}

    Returns
    -------
    float
    """
    return mean(record["scores"][time]["mass"][name] for record in measured(outcome.records))


def scores(outcome: Outcome, where: str, time: str) -> tuple[float, float]:
    """Return mean and spread of the scores somewhere, each a mean over seeds.

    Parameters
    ----------
    outcome : Outcome
    where : {"below", "above", "diagonal"}
    time : {"before", "after"}

    Returns
    -------
    tuple of float
    """
    middle, width = zip(*(r["scores"][time][where] for r in measured(outcome.records)), strict=True)
    return mean(middle), mean(width)


def mass_table(groups: Sequence[Outcome]) -> list[str]:
    """Tabulate where the attention is, before and after training.

    Parameters
    ----------
    groups : sequence of Outcome

    Returns
    -------
    list of str
        Lines.
    """
    groups = [group for group in groups if measured(group.records)]
    if not groups:
        return []
    rows = []
    for group in groups:
        cells = [f"{100 * share(group, name, time):.1f} %" for name in SHARES for time in TIMES]
        rows.append([group.label, str(len(measured(group.records))), *cells])
    heading = ["model", "seeds", *(f"{name}, {time}" for name in SHARES for time in TIMES)]
    even = share(groups[0], "even")
    return [
        "Attention on the first token, in the sink, on the answer and on the token itself, before and after "
        f"training; even attention would give the first token {100 * even:.1f} %:",
        "",
        *summary.table(heading, rows),
    ]
