"""Pictures of studies: one function a picture, each returning the Axes it drew on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast import plotting
from spo_fast.experiments.records import Record
from spo_fast.experiments.specs import REACHED
from spo_fast.experiments.summary import Outcome
from spo_fast.experiments.tasks import TASKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette and, when it is used up, other strokes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STROKES = ("-", "--", ":")


def _style(place: int) -> dict[str, Any]:
    stroke = STROKES[place // len(COLOURS) % len(STROKES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": stroke}


def _thousands(record: Record) -> np.ndarray:
    """Thousands of sequences that a model had seen at each test."""
    return TASKS[record["task"]].batch * np.array(record["tested_at"]) / 1000


def plot_learning(chosen: Mapping[str, Outcome], ax: Axes | None = None) -> Axes:
    """Draw accuracy over training sequences, a line a model, mean and range over seeds.

    Parameters
    ----------
    chosen : mapping of str to Outcome
        By model.
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes
    """
    ax = plotting.new_axes(ax)
    for place, outcome in enumerate(chosen.values()):
        sequences = _thousands(outcome.records[0])
        curves = np.array([record["accuracy"] for record in outcome.records])
        style = _style(place)
        ax.plot(sequences, curves.mean(0), label=outcome.label, linewidth=1.4, **style)
        if len(curves) > 1:
            ax.fill_between(sequences, curves.min(0), curves.max(0), color=style["color"], alpha=0.12, lw=0)
    ax.axhline(REACHED, color=plotting.GREY, linewidth=0.6)
    ax.set(xlabel="training sequences (thousands)", ylabel="accuracy", ylim=(0.0, 1.02))
    ax.margins(x=0.0)
    if chosen:
        ax.legend(fontsize=7, loc="best", framealpha=0.6)
    return ax


def plot_losses(chosen: Mapping[str, Outcome], ax: Axes | None = None) -> Axes:
    """Draw the loss of the predictable part (lines) and of the rest (dots), mean over seeds.

    Parameters
    ----------
    chosen : mapping of str to Outcome
        By model.
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes
    """
    ax = plotting.new_axes(ax)
    for place, outcome in enumerate(chosen.values()):
        style = _style(place)
        for name, how in (("loss_known", style), ("loss_rest", {"color": style["color"], "linestyle": ":"})):
            shortest = min(len(record[name]) for record in outcome.records)  # one that blew up ends early
            curve = np.mean([record[name][:shortest] for record in outcome.records], axis=0)
            ax.plot(_thousands(outcome.records[0])[:shortest], curve, linewidth=1.2, **how)
    ax.set(xlabel="training sequences (thousands)", ylabel="loss: predictable part, rest dotted")
    ax.set_ylim(bottom=0.0)
    ax.margins(x=0.0)
    return ax


def plot_map(values: np.ndarray, ax: Axes | None = None, *, limit: float | None = None) -> Axes:
    """Draw a matrix of scores, a row a query, its diagonal dotted; red is positive, blue negative.

    Parameters
    ----------
    values : ndarray, shape (N, N)
    ax : Axes, optional
        Where to draw; a new figure by default.
    limit : float, optional
        Score of the deepest colours; the largest of the matrix by default.

    Returns
    -------
    Axes
    """
    ax = plotting.new_axes(ax)
    limit = float(np.abs(values).max()) if limit is None else limit
    ax.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    ends = (-0.5, len(values) - 0.5)
    ax.plot(ends, ends, ":", color=plotting.GREY, linewidth=0.8)
    ax.set(xlabel="key", ylabel="query", xlim=ends, ylim=ends[::-1])
    return ax


def plot_finals(chosen: Mapping[str, Outcome], ax: Axes | None = None) -> Axes:
    """Draw the final accuracy of every model as a bar, each seed as a dot on it.

    Parameters
    ----------
    chosen : mapping of str to Outcome
        By model.
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes
    """
    ax = plotting.new_axes(ax)
    for place, outcome in enumerate(chosen.values()):
        finals = [record["final"] for record in outcome.records]
        ax.barh(place, np.mean(finals), 0.7, color=_style(place)["color"], alpha=0.6)
        ax.plot(finals, [place] * len(finals), ".", color="black", markersize=3)
        ax.text(1.04, place, f"{np.mean(finals):.3f}", va="center", fontsize=7)  # beside the bars
    ax.set(xlabel="final accuracy", xlim=(0.0, 1.02))
    ax.set_yticks(range(len(chosen)), [outcome.label for outcome in chosen.values()], fontsize=8)
    ax.invert_yaxis()
    return ax


def plot_steps(
    lines: Mapping[str, Sequence[Sequence[float]]],
    ax: Axes | None = None,
    *,
    times: Sequence[float] | None = None,
    xlabel: str = "step of the dynamics",
    ylabel: str = "accuracy",
    chance: float | None = None,
) -> Axes:
    """Draw a quantity along the dynamics, a line a model, mean and range over seeds.

    Parameters
    ----------
    lines : mapping of str to sequence of sequence of float
        For each label, a sequence of equal length for each seed.
    ax : Axes, optional
        Where to draw; a new figure by default.
    times : sequence of float, optional
        0, 1, 2, ... by default.
    xlabel, ylabel : str
    chance : float, optional
        Drawn as a dotted line.

    Returns
    -------
    Axes
    """
    ax = plotting.new_axes(ax)
    for place, (label, values) in enumerate(lines.items()):
        curves = np.array(values)
        t = np.arange(curves.shape[1]) if times is None else times
        style = _style(place)
        ax.plot(t, curves.mean(0), label=label, linewidth=1.4, **style)
        ax.fill_between(t, curves.min(0), curves.max(0), color=style["color"], alpha=0.15, lw=0)
    if chance is not None:
        ax.axhline(chance, color=plotting.GREY, linestyle=":", label="chance")
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.margins(x=0.0)
    if lines:
        ax.legend(fontsize=7, framealpha=0.6)
    return ax
