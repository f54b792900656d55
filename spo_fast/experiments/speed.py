"""What a training step costs: every model, by every implementation of attention, in one run, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from statistics import median
from time import perf_counter

import torch

from spo_fast.experiments import gap_copy, pulse_models, summary
from spo_fast.experiments.models import HEADS, WIDTH, build
from spo_fast.experiments.specs import BATCH, LABELS, PROTOCOL, PULSES
from spo_fast.experiments.tasks import TASKS
from spo_fast.experiments.training import one_thread, optimiser, step_once
from spo_fast.torch import IMPLEMENTATIONS, OscillatorAttention

ROUNDS, PULSE_ROUNDS = 30, 6  # of the association task, and of gap copy, whose sequences are long
STEPS = 3  # a round
RATE = 1e-3
TOKENS = 17  # of the association task with 8 pairs
LAYER = "layer"
PULSE_TASK = "gap-copy"


def measure(
    models: Sequence[str] = PROTOCOL,
    implementations: Sequence[str] = IMPLEMENTATIONS,
    *,
    rounds: int = ROUNDS,
) -> dict[tuple[str, str], tuple[float, float]]:
    """Time training steps, one thread, data included.

    Models of blocks take those of the association task, batch 64, 17 tokens; models of context pulses those
    of gap copy, batch 32, 255 tokens, with a target at each.

    Parameters
    ----------
    models : sequence of str
        Of `specs.MODELS` or `specs.PULSES`, or "layer": forward and backward of an oscillator layer with T 4
        alone.
    implementations : sequence of str
    rounds : int
        Each takes three steps of every model and implementation in turn, in reversed order every other time.

    Returns
    -------
    dict of (str, str) to (float, float), s
        Minimum and median over rounds of a step, by model and implementation.
    """
    with one_thread():
        takers = {
            (model, implementation): _layer(implementation)
            if model == LAYER
            else _steps(model, implementation)
            for model in models
            for implementation in implementations
        }
        times: dict[tuple[str, str], list[float]] = {key: [] for key in takers}
        for round_ in range(rounds + 1):
            for key in list(takers)[:: 1 if round_ % 2 else -1]:
                start = perf_counter()
                for take in islice(takers[key], STEPS):
                    take()
                times[key].append((perf_counter() - start) / STEPS)
    return {key: (min(values[1:]), median(values[1:])) for key, values in times.items()}  # the first warms up


def _steps(model: str, implementation: str) -> Iterator[Callable[[], object]]:
    """Yield training steps without end."""
    network: torch.nn.Module
    if model in PULSES:
        task, network = PULSE_TASK, pulse_models.build(PULSE_TASK, model, 0, implementation)
    else:
        task, network = "association", build(model, 0, implementation)
    adamw = optimiser(network, RATE)
    for batch in TASKS[task].stream(0):
        yield partial(step_once, network, adamw, batch)


def _layer(implementation: str) -> Iterator[Callable[[], object]]:
    """Yield passes forward and back through a layer without end."""
    layer = OscillatorAttention(WIDTH, HEADS, bias=True, implementation=implementation)
    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    gradient = torch.randn_like(x)
    while True:
        yield lambda: layer(x).backward(gradient)


def table(times: dict[tuple[str, str], tuple[float, float]]) -> list[str]:
    """Lay times out as Markdown, a row a model.

    Parameters
    ----------
    times : dict
        What `measure` returned.

    Returns
    -------
    list of str
        Milliseconds, minimum (median), and the minimum relative to the first model's; of two implementations
        also how many times as long the second takes.
    """
    models = list(dict.fromkeys(model for model, _ in times))
    names = list(dict.fromkeys(implementation for _, implementation in times))
    rows = [
        [
            LABELS.get(model, "oscillator layer alone, T 4"),
            *(
                text
                for name in names
                for text in (
                    "{:.1f} ({:.1f})".format(*(1e3 * seconds for seconds in times[model, name])),
                    f"{times[model, name][0] / times[models[0], name][0]:.2f}",
                )
            ),
            *(f"{times[model, name][0] / times[model, names[0]][0]:.2f}" for name in names[1:]),
        ]
        for model in models
    ]
    heading = [text for name in names for text in (f"{name}, ms", "ratio")]
    return summary.table(["model", *heading, *(f"{name} / {names[0]}" for name in names[1:])], rows)


def tables(models: Sequence[str] | None, implementations: Sequence[str]) -> Iterator[list[str]]:
    """Measure, and lay out a table for each of the two tasks.

    Parameters
    ----------
    models : sequence of str or None
        As for `measure`; None are the ten models, the layer alone, and those of gap copy.
    implementations : sequence of str

    Yields
    ------
    list of str
    """
    names = models or (*PROTOCOL, LAYER, *gap_copy.MODELS)
    blocks = [name for name in names if name not in PULSES]
    pulses = [name for name in names if name in PULSES]
    for group, rounds in ((blocks, ROUNDS), (pulses, PULSE_ROUNDS)):
        if group:
            yield table(measure(group, implementations, rounds=rounds))
