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
from spo_fast.experiments import mechanism, models
from spo_fast.experiments.records import Record
from spo_fast.experiments.runner import Report, Run
from spo_fast.experiments.specs import MODELS
from spo_fast.experiments.tasks import TASKS, Batch

BATCH = 64
TEST_EVERY = 100  # steps
TEST_CHUNK = 250  # sequences a forward pass
REACHED = 0.95


def train(run: Run, settings: Record, report: Report) -> Record:
    """Train a model and test it.

    AdamW (betas 0.9, 0.999, weight decay 0.01) at a constant rate, batches of 64 fresh sequences,
    cross-entropy of all 64 outputs at the last token, float32, one thread.

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
        test before; None when it is not finite); "final"; "sequences_to_95" (or None); "others" (accuracy of
        the other test sets); "mechanism" for oscillators in tasks whose answer stands in the sequence;
        "seconds"; "implementation" and "machine".
    """
    task = TASKS[run["task"]]
    with one_thread():
        start = perf_counter()
        model = models.build(run["model"], run["seed"], settings.get("implementation"))
        test = task.test()
        steps, curve, losses = [], [], []
        for step, loss in _steps(model, task.stream(run["seed"], BATCH), run, report):
            steps.append(step)
            losses.append(round(loss, 5) if np.isfinite(loss) else None)
            curve.append(accuracy(model, test))
        others = {name: accuracy(model, batches) for name, batches in task.other_tests().items()}
        record: Record = {
            "parameters": models.parameters(model),
            "tested_at": steps,
            "accuracy": curve,
            "loss": losses,
            "final": curve[-1],
            "sequences_to_95": next(
                (BATCH * s for s, a in zip(steps, curve, strict=True) if a >= REACHED), None
            ),
            "others": others,
        }
        if MODELS[run["model"]].oscillators and test[0].answers is not None:
            record["mechanism"] = mechanism.measure(model, test)
    return record | {
        "seconds": round(perf_counter() - start, 2),
        "implementation": settings.get("implementation") or "kernel",
        "machine": bench.machine() | {"torch": torch.__version__},
    }


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
    loss = F.cross_entropy(model(torch.from_numpy(batch.tokens)), torch.from_numpy(batch.targets))
    loss.backward()
    adamw.step()
    return loss.detach()


def _steps(
    model: torch.nn.Module, batches: Iterator[Batch], run: Run, report: Report
) -> Iterator[tuple[int, float]]:
    """Train; yield step and mean loss each time the model shall be tested."""
    adamw = optimiser(model, run["rate"])
    total, since = torch.zeros(()), 0
    for step, batch in enumerate(islice(batches, run["steps"]), 1):
        total += step_once(model, adamw, batch)
        since += 1
        if step % TEST_EVERY == 0 or step == run["steps"]:
            yield step, (total / since).item()
            report(since)
            total, since = torch.zeros(()), 0


def accuracy(model: torch.nn.Module, batches: Sequence[Batch]) -> float:
    """Measure the share of sequences whose target has the highest score of all 64.

    Parameters
    ----------
    model : Module
    batches : sequence of Batch

    Returns
    -------
    float
    """
    right = 0
    with torch.no_grad():
        for batch in batches:
            tokens, targets = torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)
            for some, wanted in zip(tokens.split(TEST_CHUNK), targets.split(TEST_CHUNK), strict=True):
                right += int((model(some).argmax(1) == wanted).sum())
    return right / sum(map(len, batches))
