"""Training one model on one task, from a seed to a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from spo_fast import bench
from spo_fast.backends import attention as backends
from spo_fast.experiments import mechanism, models, pulse_models, pulse_scores
from spo_fast.experiments.pulse_models import PulseModel
from spo_fast.experiments.records import Record
from spo_fast.experiments.runner import Report, Run
from spo_fast.experiments.specs import MODELS, REACHED, WIDTHS
from spo_fast.experiments.summary import LOSSES
from spo_fast.experiments.tasks import TASKS, Batch, Task
from spo_fast.torch import IMPLEMENTATIONS

TEST_EVERY = 100  # steps
TEST_CHUNK = 250  # sequences a forward pass


def train(run: Run, settings: Record, report: Report) -> Record:
    """Train a model and test it.

    AdamW (betas 0.9, 0.999, weight decay 0.01) at a constant rate, batches of fresh sequences,
    cross-entropy of all 64 outputs at the last token or, in tasks with a target at each, at every token,
    float32, one thread.

    Parameters
    ----------
    run : dict
        "task", "model", "rate", "seed" and "steps".
    settings : dict
        "implementation" of the attention, or None.
    report : callable
        Told how many steps were done since the last call.

    Returns
    -------
    dict
        "parameters"; "tested_at" (steps), "accuracy" (of the test set, at those) and "loss" (mean since the
        test before); "final"; "sequences_to_95" (or None); "others" (accuracy on the other test sets);
        "diverged" (then accuracy is 0 from there on); "mechanism" for oscillators in tasks whose answer
        stands in the sequence. Where every token has a target, accuracy is that of the predictable part, and
        there are "loss_known" and "loss_rest" (of the test set, at its tests) and "scores" ("before" and
        "after" training, see `pulse_scores`), for some also "unmasked", the accuracy when the mask is taken
        away. Always "seconds", "implementation", "backend" and "machine".
    """
    task = TASKS[run["task"]]
    implementation = settings.get("implementation") or IMPLEMENTATIONS[0]
    start = perf_counter()
    with one_thread():
        model, test = _build(run, implementation), task.test()
        before = pulse_scores.measure(model, test) if isinstance(model, PulseModel) else None
        record: Record = {"parameters": models.parameters(model)} | _learn(model, task, run, report)
        if not record["diverged"]:
            record |= _inside(model, run, test, before)
    return record | {
        "seconds": round(perf_counter() - start, 2),
        "implementation": implementation,
        "backend": backends.load().NAME if implementation == "kernel" else "torch",
        "machine": bench.machine() | {"torch": torch.__version__},
    }


def _build(run: Run, implementation: str) -> torch.nn.Module:
    if run["task"] in WIDTHS:
        return pulse_models.build(run["task"], run["model"], run["seed"], implementation)
    return models.build(run["model"], run["seed"], implementation)


def _inside(model: torch.nn.Module, run: Run, test: Sequence[Batch], before: Record | None) -> Record:
    """Measure what a trained model does inside."""
    if isinstance(model, PulseModel):
        found: Record = {"scores": {"before": before, "after": pulse_scores.measure(model, test)}}
        if model.may_lose_its_mask:
            with model.without_mask():
                found["unmasked"] = examine(model, test)["accuracy"]
        return found
    if isinstance(model, models.Model) and MODELS[run["model"]].oscillators and test[0].answers is not None:
        return {"mechanism": mechanism.measure(model, test)}
    return {}


def _learn(model: torch.nn.Module, task: Task, run: Run, report: Report) -> Record:
    """Train and test a model; one whose numbers are not finite answers nothing right from there on."""
    tested_at = [*range(TEST_EVERY, run["steps"], TEST_EVERY), run["steps"]]
    test = task.test()
    curve: list[float] = []
    losses: list[float] = []
    parts: dict[str, list[float]] = {name: [] for name in LOSSES} if test[0].known is not None else {}
    try:
        for loss in _losses(model, task.stream(run["seed"]), run["rate"], tested_at):
            if not np.isfinite(loss):
                break
            report(tested_at[len(curve)] - (tested_at[len(curve) - 1] if curve else 0))
            losses.append(round(loss, 5))
            found = examine(model, test)
            if not np.isfinite(list(found.values())).all():
                break
            curve.append(found["accuracy"])
            for name, values in parts.items():
                values.append(round(found[name], 5))
    except ValueError:  # the kernels refuse what is not finite
        if _finite(model, test[0], run):
            raise
    diverged = len(curve) < len(tested_at)
    curve += [0.0] * (len(tested_at) - len(curve))
    others = task.other_tests()
    reached = (task.batch * step for step, share in zip(tested_at, curve, strict=True) if share >= REACHED)
    return {
        "tested_at": tested_at,
        "accuracy": curve,
        "loss": losses,
        "final": curve[-1],
        "sequences_to_95": next(reached, None),
        "others": {
            name: 0.0 if diverged else examine(model, batches)["accuracy"] for name, batches in others.items()
        },
        "diverged": diverged,
    } | parts


def _finite(model: torch.nn.Module, batch: Batch, run: Run) -> bool:
    """Tell whether a model's outputs are numbers, by the implementation that takes what is none, too."""
    twin = _build(run, "eager")
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        return bool(twin(torch.from_numpy(batch.tokens[:TEST_CHUNK])).isfinite().all())


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: so small matrices gain nothing from more, and other processes need the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def optimiser(model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
    """Return the optimiser of the protocol.

    Parameters
    ----------
    model : Module
    rate : float

    Returns
    -------
    Optimizer
    """
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.999), weight_decay=0.01, fused=True)


def step_once(model: torch.nn.Module, adamw: torch.optim.Optimizer, batch: Batch) -> Tensor:
    """Take one training step.

    Parameters
    ----------
    model : Module
    adamw : Optimizer
    batch : Batch

    Returns
    -------
    Tensor, shape ()
        The loss before the step.
    """
    adamw.zero_grad()
    scores = model(torch.from_numpy(batch.tokens))
    loss = F.cross_entropy(scores.flatten(0, -2), torch.from_numpy(batch.targets).flatten())
    loss.backward()
    adamw.step()
    return loss.detach()


def _losses(
    model: torch.nn.Module, batches: Iterator[Batch], rate: float, tested_at: Sequence[int]
) -> Iterator[float]:
    """Train; stop to yield the mean loss each time the model shall be tested."""
    adamw = optimiser(model, rate)
    for steps in np.diff(tested_at, prepend=0).tolist():
        losses = [step_once(model, adamw, batch) for batch in islice(batches, steps)]
        yield torch.stack(losses).mean().item()


def examine(model: torch.nn.Module, batches: Sequence[Batch]) -> dict[str, float]:
    """Measure the share of targets that have the highest score of all 64, and the loss.

    Parameters
    ----------
    model : Module
    batches : sequence of Batch

    Returns
    -------
    dict of str to float
        "accuracy", of those that can be known where there is a target at every token; there "loss_known" and
        "loss_rest" as well, means over the targets that can be known and over the others.
    """
    right, losses, known = [], [], []
    with torch.no_grad():
        for batch in batches:
            arrays = [batch.tokens, batch.targets]
            arrays.append(np.ones(batch.targets.shape, bool) if batch.known is None else batch.known)
            pieces = (torch.from_numpy(array).split(TEST_CHUNK) for array in arrays)
            for some, wanted, which in zip(*pieces, strict=True):
                scores, targets = model(some).flatten(0, -2), wanted.flatten()
                right.append(scores.argmax(-1) == targets)
                losses.append(F.cross_entropy(scores, targets, reduction="none"))
                known.append(which.flatten())
    which, loss = torch.cat(known), torch.cat(losses)
    found = {"accuracy": int((torch.cat(right) & which).sum()) / int(which.sum())}
    if batches[0].known is not None:
        found |= {"loss_known": loss[which].mean().item(), "loss_rest": loss[~which].mean().item()}
    return found
