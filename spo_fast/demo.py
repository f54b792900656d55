"""A tour in one command: the 16-layer SCPN network with and without modulation, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast import Modulator, Simulation, datasets, files, layer_coherence, plotting, simulate
from spo_fast.backends import registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DT = 0.01
STEPS = 20_000
QUICK_STEPS = 2_000
PER_LAYER = 8
LAYERED_SHARE = 4  # the 128-oscillator run takes this fraction of the steps, so that both cost about the same
STORED_STATES = 1_000
MEAN_COUPLING_STATES = 200
ROUNDS = 3  # each run is timed this often, alternating, and the fastest counts


@dataclass(frozen=True)
class Comparison:
    """One network run twice, without and with modulation.

    Attributes
    ----------
    plain, modulated : Simulation
        The two results.
    seconds : tuple of two floats, s
        Shortest wall time of each.
    knm : ndarray, shape (N, N), dimensionless
        The coupling.
    """

    plain: Simulation
    modulated: Simulation
    seconds: tuple[float, float]
    knm: np.ndarray

    @property
    def overhead(self) -> float:
        """What modulation adds to a step, percent."""
        return 100.0 * (self.seconds[1] / self.seconds[0] - 1.0)


def compare(
    knm: np.ndarray,
    omega: np.ndarray,
    theta: np.ndarray,
    n_steps: int,
    *,
    rounds: int = ROUNDS,
    backend: str | None = None,
) -> Comparison:
    """Simulate a network without and with modulation, alternating, and keep the shortest times.

    Parameters
    ----------
    knm : ndarray, shape (N, N), dimensionless
        Symmetric coupling.
    omega : ndarray, shape (N,), rad per time unit
        Natural frequencies.
    theta : ndarray, shape (N,), radians
        Initial phases.
    n_steps : int
        RK4 steps of 0.01 time units.
    rounds : int
        How often each run is repeated.
    backend : str, optional
        As for ``simulate``.

    Returns
    -------
    Comparison
        Cost as two times ``rounds`` calls of ``simulate``.
    """

    def timed(modulation: dict[str, Any] | None, steps: int = n_steps) -> tuple[float, Simulation]:
        every = max(1, steps // STORED_STATES)
        start = perf_counter()
        result = simulate(
            theta,
            omega,
            knm,
            dt=DT,
            n_steps=steps,
            modulation=modulation,
            record_every=every,
            backend=backend,
        )
        return perf_counter() - start, result

    timed(None, 1), timed({}, 1)  # loading a backend and compiling a kernel are no part of a step
    runs = [(timed(None), timed({})) for _ in range(rounds)]
    seconds = min(plain[0] for plain, _ in runs), min(modulated[0] for _, modulated in runs)
    (_, plain), (_, modulated) = runs[0]
    return Comparison(plain, modulated, seconds, knm)


def alignment(simulation: Simulation) -> np.ndarray:
    """How far each oscillator finally follows the mean phase.

    Parameters
    ----------
    simulation : Simulation
        A single run.

    Returns
    -------
    ndarray, shape (N,)
        ``cos(theta_i - psi)``; 1 in step, -1 opposite. Their mean is R.
    """
    theta = simulation.final
    return np.cos(theta - np.angle(np.exp(1j * theta).sum()))


def mean_coupling(comparison: Comparison) -> np.ndarray:
    """Modulated coupling averaged over states of the modulated run.

    Parameters
    ----------
    comparison : Comparison
        As ``compare`` returns it.

    Returns
    -------
    ndarray, shape (N, N), dimensionless
        Mean over at most about 200 evenly spaced stored states.
    """
    states = comparison.modulated.theta
    modulator = Modulator(comparison.knm)
    sample = states[:: max(1, len(states) // MEAN_COUPLING_STATES)]
    return np.mean([modulator(theta) for theta in sample], axis=0)


def coherences(simulation: Simulation, layer: np.ndarray) -> np.ndarray:
    """Coherence of each layer, averaged over the second half of the stored states.

    Parameters
    ----------
    simulation : Simulation
        A single run.
    layer : ndarray, shape (N,), integers
        Layer of each oscillator.

    Returns
    -------
    ndarray, shape (layers,)
        Numbers in [0, 1].
    """
    theta = simulation.theta[len(simulation.theta) // 2 :]
    return np.array([np.mean(layer_coherence(theta, layer == number)) for number in np.unique(layer)])


def scpn16_comparison(n_steps: int = STEPS, **options: Any) -> Comparison:
    """Sixteen oscillators, one a layer.

    Parameters
    ----------
    n_steps : int
        RK4 steps.
    **options
        Passed to ``compare``.

    Returns
    -------
    Comparison
    """
    n = datasets.LAYERS
    omega, theta = datasets.natural_frequencies(n), datasets.initial_phases(n, seed=1)
    return compare(datasets.scpn16(), omega, theta, n_steps, **options)


def layered_comparison(n_steps: int, **options: Any) -> tuple[Comparison, np.ndarray]:
    """Sixteen layers of eight oscillators, whose frequencies spread around that of their layer.

    Parameters
    ----------
    n_steps : int
        RK4 steps.
    **options
        Passed to ``compare``.

    Returns
    -------
    (Comparison, ndarray of shape (128,))
        The runs and the layer of each oscillator.
    """
    knm, layer = datasets.scpn16_layers(PER_LAYER)
    n = len(layer)
    omega = datasets.natural_frequencies(datasets.LAYERS)[layer] + datasets.natural_frequencies(
        n, mean=0.0, seed=1
    )
    return compare(knm, omega, datasets.initial_phases(n, seed=1), n_steps, **options), layer


def _summary(title: str, comparison: Comparison) -> list[str]:
    """Lines with R, speed and overhead of both runs."""
    plain, modulated = _order(comparison.plain), _order(comparison.modulated)
    rates = [_steps(comparison) / seconds for seconds in comparison.seconds]
    return [
        title,
        f"{'':24}{'K':>12}{'K modulated':>14}",
        f"{'R, final':24}{plain[-1]:12.4f}{modulated[-1]:14.4f}",
        f"{'R, mean of second half':24}{_late_mean(plain):12.4f}{_late_mean(modulated):14.4f}",
        f"{'steps per second':24}{rates[0]:12,.0f}{rates[1]:14,.0f}",
        f"{'overhead of modulation':24}{'':12}{comparison.overhead:13,.0f}%",
    ]


def _order(simulation: Simulation) -> np.ndarray:
    """R at every step, which ``compare`` observes in each run."""
    assert simulation.R is not None
    return simulation.R


def _steps(comparison: Comparison) -> int:
    return len(_order(comparison.plain)) - 1


def _late_mean(values: np.ndarray) -> float:
    return float(np.mean(values[len(values) // 2 :]))


def _layer_rows(heading: str, plain: np.ndarray, modulated: np.ndarray) -> list[str]:
    rows = [
        f"{f'layer {i}':24}{a:12.4f}{b:14.4f}"
        for i, (a, b) in enumerate(zip(plain, modulated, strict=True), 1)
    ]
    return [heading, *rows]


def report(single: Comparison, layered: Comparison, layer: np.ndarray) -> str:
    """Lay the numbers of both networks out as a table.

    Parameters
    ----------
    single, layered : Comparison
        Of the 16 and of the 128 oscillators.
    layer : ndarray, shape (128,), integers
        Layer of each of the 128 oscillators.

    Returns
    -------
    str
    """
    lines = [
        *_summary(_title(single, "16 oscillators, one a layer"), single),
        *_layer_rows("cos(theta_i - psi), final", alignment(single.plain), alignment(single.modulated)),
        "",
        *_summary(_title(layered, f"16 layers of {PER_LAYER} oscillators"), layered),
        *_layer_rows("layer coherence, mean of second half", *_coherence_pair(layered, layer)),
    ]
    return "\n".join(lines)


def _coherence_pair(layered: Comparison, layer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return coherences(layered.plain, layer), coherences(layered.modulated, layer)


def _title(comparison: Comparison, what: str) -> str:
    return f"{what}: {_steps(comparison):,} RK4 steps of {DT}"


def picture(single: Comparison, layered: Comparison, layer: np.ndarray) -> Figure:
    """Draw both networks: R, coupling, phases and layer coherences.

    Parameters
    ----------
    single, layered : Comparison
        Of the 16 and of the 128 oscillators.
    layer : ndarray, shape (128,), integers
        Layer of each of the 128 oscillators.

    Returns
    -------
    Figure
        Drawn without a display and without touching pyplot's state.

    Raises
    ------
    ImportError
        When Matplotlib is missing.
    """
    plotting.require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with rc_context({"font.size": 12, "axes.titlesize": 14, "figure.titlesize": 17}):
        figure = Figure(figsize=(15.5, 8.8), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
        figure.suptitle("SCPN network of 16 layers, without and with modulated coupling")
        axes = figure.subplots(2, 3)
        _draw_order(single, axes[0, 0])
        _draw_coupling(single, axes[0, 1:])
        _draw_phases(single, axes[1, :2])
        _draw_layers(layered, layer, axes[1, 2])
    return figure


def _draw_layers(layered: Comparison, layer: np.ndarray, axes: Any) -> None:
    plotting.plot_layers(*_coherence_pair(layered, layer), axes)
    axes.set(title=f"16 layers of {PER_LAYER} oscillators", ylim=(0.0, 1.2), yticks=np.linspace(0.0, 1.0, 6))
    axes.legend(loc="upper center", ncols=2, frameon=False)


def _draw_order(single: Comparison, axes: Any) -> None:
    plotting.plot_order_parameter(single.plain, axes, color=plotting.BLUE, label="K")
    plotting.plot_order_parameter(single.modulated, axes, color=plotting.ORANGE, label="K′ (modulated)")
    axes.set_title("synchrony of 16 oscillators")
    axes.legend(loc="lower right")


def _draw_coupling(single: Comparison, axes: Sequence[Any]) -> None:
    changed = mean_coupling(single)
    vmax = float(max(single.knm.max(), changed.max()))
    for ax, matrix, title in zip(
        axes, (single.knm, changed), ("coupling K", "modulated coupling K′, mean"), strict=True
    ):
        plotting.plot_coupling(matrix, ax, vmax=vmax, label="coupling").set_title(title)
        ax.set(xlabel="pulled by layer", ylabel="layer", xticks=range(1, 17, 3), yticks=range(1, 17, 3))


def _draw_phases(single: Comparison, axes: Sequence[Any]) -> None:
    for ax, run, title in zip(
        axes, (single.plain, single.modulated), ("phases under K", "phases under K′"), strict=True
    ):
        plotting.plot_phases(run, ax).set_title(title)
        ax.set(ylabel="layer", yticks=range(1, 17, 3))


def main(
    out: Path | str = "out", n_steps: int = STEPS, *, rounds: int = ROUNDS, backend: str | None = None
) -> Path:
    """Run both networks, print the table and write the picture.

    Parameters
    ----------
    out : path
        Folder for ``demo.png``; made when missing.
    n_steps : int
        RK4 steps of the 16-oscillator network; the 128-oscillator one takes a quarter of them.
    rounds : int
        How often each run is timed.
    backend : str, optional
        As for ``simulate``.

    Returns
    -------
    Path
        Of the picture.

    Raises
    ------
    ImportError
        When Matplotlib is missing; raised before anything is simulated.
    OSError
        When the folder cannot be written.
    """
    plotting.require_matplotlib()
    registry.load(backend)  # refused before a folder is made
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    single = scpn16_comparison(n_steps, rounds=rounds, backend=backend)
    layered, layer = layered_comparison(max(1, n_steps // LAYERED_SHARE), rounds=rounds, backend=backend)
    print(report(single, layered, layer))
    path = folder / "demo.png"
    with files.replacing(path) as target:
        picture(single, layered, layer).savefig(target, dpi=100, format="png")
    print(f"\npicture: {path}")
    return path
