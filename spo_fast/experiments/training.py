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
from spo_fast.experiments import mechanism, models
from spo_fast.experiments.records import Record
from spo_fast.experiments.runner import Report, Run
from spo_fast.experiments.specs import BATCH, MODELS, REACHED
from spo_fast.experiments.tasks import TASKS, Batch, Task
from spo_fast.torch import IMPLEMENTATIONS

TEST_EVERY = 100  # steps
TEST_CHUNK = 250  # sequences a forward pass


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
        test before); "final"; "sequences_to_95" (or None); "others" (accuracy on the other test sets);
        "diverged" (then accuracy is 0 from there on); "mechanism" for oscillators in tasks whose answer
        stands in the sequence; "seconds", "implementation", "backend" and "machine".
    """
    task, spec = TASKS[run["task"]], MODELS[run["model"]]
    implementation = settings.get("implementation") or IMPLEMENTATIONS[0]
    start = perf_counter()
    with one_thread():
        model = models.build(run["model"], run["seed"], implementation)
        record: Record = {"parameters": models.parameters(model)} | _learn(model, task, run, report)
        if spec.oscillators and task.test()[0].answers is not None and not record["diverged"]:
            record["mechanism"] = mechanism.measure(model, task.test())
    return record | {
        "seconds": round(perf_counter() - start, 2),
        "implementation": implementation,
        "backend": backends.load().NAME if implementation == "kernel" else "torch",
        "machine": bench.machine() | {"torch": torch.__version__},
    }


def _learn(model: torch.nn.Module, task: Task, run: Run, report: Report) -> Record:
    """Train and test a model; one whose numbers are not finite answers nothing right from there on."""
    tested_at = [*range(TEST_EVERY, run["steps"], TEST_EVERY), run["steps"]]
    test = task.test()
    curve: list[float] = []
    losses: list[float] = []
    try:
        for loss in _losses(model, task.stream(run["seed"], BATCH), run["rate"], tested_at):
            if not np.isfinite(loss):
                break
            report(tested_at[len(curve)] - (tested_at[len(curve) - 1] if curve else 0))
            losses.append(round(loss, 5))
            curve.append(accuracy(model, test))
    except ValueError:  # the kernels refuse what is not finite
        if _finite(model, test[0], run):
            raise
    diverged = len(curve) < len(tested_at)
    curve += [0.0] * (len(tested_at) - len(curve))
    others = task.other_tests()
    reached = (BATCH * step for step, share in zip(tested_at, curve, strict=True) if share >= REACHED)
    return {
        "tested_at": tested_at,
        "accuracy": curve,
        "loss": losses,
        "final": curve[-1],
        "sequences_to_95": next(reached, None),
        "others": {name: 0.0 if diverged else accuracy(model, batches) for name, batches in others.items()},
        "diverged": diverged,
    }


def _finite(model: torch.nn.Module, batch: Batch, run: Run) -> bool:
    """Tell whether a model's outputs are numbers, by the implementation that takes what is none, too."""
    twin = models.build(run["model"], run["seed"], "eager")
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
    loss = F.cross_entropy(model(torch.from_numpy(batch.tokens)), torch.from_numpy(batch.targets))
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
