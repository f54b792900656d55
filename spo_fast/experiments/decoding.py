"""Decoding: how the class of a picture becomes readable in the phases of a small oscillator network.

Scikit-learn's 8 by 8 digits drive 64 oscillators: a picture sets natural frequencies, omega = W x + b,
coupling K is learned, and all phases start at the same learned values, whatever the picture. Ten Euler steps
of theta_i += dt (omega_i + sum_j K_ij sin(theta_j - theta_i)), dt 0.1, then a linear readout of cos and sin
of the phases, trained with cross-entropy after the last step alone. What can be read earlier is asked twice:
of the trained readout, and of a probe at each step, a logistic regression of the training pictures' cos and
sin, tested on 360 pictures that training never saw.

Criterion, fixed beforehand: the probe is at chance (≤ 0.15) before the first step and at ≥ 0.95 after the
last; published in kind is 10 % to 97 %. Controls: "uncoupled" learns W and b without K, "untrained" has
random W and K. These digits are nearly linear in their pixels (a logistic regression of them is in the column
"pixels"), and so are the phases after one step: that the probe reads the class is no feat of the dynamics,
and the controls tell what they add.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast import bench
from spo_fast.experiments import figures, summary
from spo_fast.experiments.records import Record
from spo_fast.experiments.runner import Report, Run
from spo_fast.experiments.study import Claim, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

OSCILLATORS, DYNAMICS, DT = 64, 10, 0.1
BATCH = 64
CLASSES = 10
MODELS = ("coupled", "uncoupled", "untrained")
RATES = (3e-3, 1e-2)


def _pictures() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return pictures in [0, 1] and classes, for training and for testing; the same split for every run."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ImportError("the digits come with scikit-learn: pip install 'spo-fast[experiments]'") from error
    pictures, classes = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(
        pictures / 16.0, classes, test_size=360, random_state=0, stratify=classes
    )
    return x, y, x_test, y_test


def network(seed: int, coupled: bool = True) -> Any:
    """Make a network.

    Parameters
    ----------
    seed : int
        Of the initial values.
    coupled : bool
        With K.

    Returns
    -------
    Module
        From pictures (B, 64) to the phases before each step and after the last, (11, B, N); its ``readout``
        goes from `features` of phases to the classes.
    """
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drive = nn.Linear(64, OSCILLATORS)
            self.start = nn.Parameter(torch.empty(OSCILLATORS).uniform_(0.0, 2.0 * np.pi))
            coupling = torch.randn(OSCILLATORS, OSCILLATORS) / OSCILLATORS
            self.coupling = nn.Parameter(coupling) if coupled else None
            self.readout = nn.Linear(2 * OSCILLATORS, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            omega = self.drive(x)
            theta = self.start.expand(len(x), -1)
            course = [theta]
            for _ in range(DYNAMICS):
                pull = omega
                if self.coupling is not None:
                    cosine, sine = theta.cos(), theta.sin()
                    pull = omega + cosine * (sine @ self.coupling.T) - sine * (cosine @ self.coupling.T)
                theta = theta + DT * pull
                course.append(theta)
            return torch.stack(course)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network()


def features(theta: Tensor) -> Tensor:
    """Return cosines and sines of phases.

    Parameters
    ----------
    theta : Tensor, shape (..., N), rad

    Returns
    -------
    Tensor, shape (..., 2 N)
    """
    import torch

    return torch.cat((theta.cos(), theta.sin()), -1)


def execute(run: Run, settings: Record, report: Report) -> Record:
    """Train a network and probe its phases at every step.

    Parameters
    ----------
    run : dict
        "model", "rate", "seed" and "steps" (of training).
    settings : dict
        Not used.
    report : callable
        Told the number of training steps.

    Returns
    -------
    dict
        "accuracy" of the probe at each step of the dynamics; "final", after the last; "readout", the same of
        the trained readout; "pixels"; "seconds" and "machine".
    """
    pictures = _pictures()
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    from spo_fast.experiments.training import one_thread

    with one_thread(), threadpool_limits(1):  # matrices so small are slower on more threads than on one
        return _execute(run, pictures, report)


def _execute(run: Run, pictures: tuple[np.ndarray, ...], report: Report) -> Record:
    import torch
    import torch.nn.functional as F

    start = perf_counter()
    x, y, x_test, y_test = pictures
    inputs, classes = torch.from_numpy(x).float(), torch.from_numpy(y)
    model = network(run["seed"], run["model"] != "uncoupled")
    adamw = torch.optim.AdamW(model.parameters(), lr=run["rate"])
    rng = np.random.default_rng([4, run["seed"]])
    for _ in range(run["steps"] if run["model"] != "untrained" else 0):
        some = torch.from_numpy(rng.integers(len(x), size=BATCH))
        adamw.zero_grad()
        loss = F.cross_entropy(model.readout(features(model(inputs[some])[-1])), classes[some])
        loss.backward()
        adamw.step()
    report(run["steps"])
    with torch.no_grad():
        seen, unseen = (features(model(torch.from_numpy(part).float())) for part in (x, x_test))
        told = model.readout(unseen).argmax(-1).numpy()
    course = [_probe(seen[i].numpy(), y, unseen[i].numpy(), y_test) for i in range(DYNAMICS + 1)]
    return {
        "accuracy": [round(value, 4) for value in course],
        "final": round(course[-1], 4),
        "readout": [round(value, 4) for value in (told == y_test).mean(1).tolist()],
        "pixels": round(_probe(x, y, x_test, y_test), 4),
        "seconds": round(perf_counter() - start, 2),
        "machine": bench.machine() | {"torch": torch.__version__},
    }


def _probe(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> float:
    """Accuracy of a logistic regression; of the most frequent class when every row is the same."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    return float(probe.fit(x, y).score(x_test, y_test))


def _chosen(records: Sequence[Record]) -> dict[str, summary.Outcome]:
    return summary.best(summary.outcomes(records, MODELS, RATES))


def _readable(records: Sequence[Record]) -> tuple[str, bool] | None:
    chosen = _chosen(records)
    if "coupled" not in chosen:
        return None
    first, *_, last = chosen["coupled"].curve
    return f"{100 * first:.0f} % to {100 * last:.0f} %", first <= 0.15 and last >= 0.95


def _draw(records: Sequence[Record], figure: Figure) -> None:
    plot(records, figure.subplots())


def plot(records: Sequence[Record], ax: Axes | None = None) -> Axes:
    """Draw the accuracies of probe and trained readout over the steps of the dynamics.

    Parameters
    ----------
    records : sequence of dict
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes
    """
    lines = {}
    for outcome in _chosen(records).values():
        for name, key in (("probe", "accuracy"), ("readout", "readout")):
            if outcome.model != "untrained" or key == "accuracy":
                lines[f"{outcome.label}, {name}"] = [record[key] for record in outcome.records]
    return figures.plot_steps(lines, ax, ylabel="class read from the phases", chance=1.0 / CLASSES)


def _tabulate(records: Sequence[Record]) -> list[str]:
    heading = ["network", "rate", "seeds", *map(str, range(DYNAMICS + 1)), "trained readout", "pixels"]
    rows = [
        [
            outcome.label,
            f"{outcome.rate:g}",
            str(outcome.seeds),
            *(f"{value:.2f}" for value in outcome.curve),
            f"{mean(record['readout'][-1] for record in outcome.records):.3f}",
            f"{mean(record['pixels'] for record in outcome.records):.3f}",
        ]
        for outcome in summary.outcomes(records, MODELS, RATES)
    ]
    return summary.table(heading, rows)


STUDY = Study(
    name="decoding",
    title="Reading a class from phases",
    question=__doc__,
    models=MODELS,
    rates=RATES,
    seeds=3,
    steps=2000,
    claims=(
        Claim(
            "probe at chance before the dynamics (≤ 0.15), right after them (≥ 0.95)",
            "10 % to 97 %",
            _readable,
        ),
    ),
    draw=_draw,
    tabulate=_tabulate,
    execute="spo_fast.experiments.decoding:execute",
)
