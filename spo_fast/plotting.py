"""Pictures of simulations: one function a picture, each returning the Axes it drew on.

Matplotlib is an optional extra and is imported by the functions, never with the module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast.observables import order_parameter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from spo_fast import Simulation

# Okabe and Ito's palette keeps its contrasts under the common forms of colour blindness.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
SEQUENTIAL = "cividis"
CYCLIC = "twilight_shifted"  # light where a phase equals the mean phase, dark opposite to it
HEATMAP_COLUMNS = 1500


def require_matplotlib() -> None:
    """Say how to install Matplotlib when it is missing.

    Raises
    ------
    ImportError
        With one line that names the extra.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("plotting needs Matplotlib: pip install 'spo-fast[plot]'") from error


def new_axes(axes: Axes | None) -> Axes:
    """Return the Axes given, or those of a new figure.

    Parameters
    ----------
    axes : Axes or None

    Returns
    -------
    Axes

    Raises
    ------
    ImportError
        When Matplotlib is missing.
    """
    require_matplotlib()
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def plot_order_parameter(simulation: Simulation, axes: Axes | None = None, **line: Any) -> Axes:
    """Draw R over time.

    Parameters
    ----------
    simulation : Simulation
        Result of ``simulate`` with "R" among ``observe``; of an ensemble, every member is drawn.
    axes : Axes, optional
        Where to draw; a new figure by default.
    **line
        Properties of the line, such as ``label`` and ``color``.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        When the simulation did not observe R.
    ImportError
        When Matplotlib is missing.
    """
    if simulation.R is None or simulation.t_observe is None:
        raise ValueError('simulation has no R: pass observe=("R",) to simulate')
    axes = new_axes(axes)
    axes.plot(simulation.t_observe, simulation.R, **{"linewidth": 1.2, **line})
    axes.set(xlabel="time", ylabel="order parameter R", ylim=(0.0, 1.02))
    axes.margins(x=0.0)
    return axes


def plot_phases(simulation: Simulation, axes: Axes | None = None) -> Axes:
    """Draw the stored phases relative to the mean phase as colours over time, an oscillator a row.

    Parameters
    ----------
    simulation : Simulation
        Result of a single run; ``record_every`` sets how many columns there are. At most about 1,500 evenly
        spaced ones are drawn.
    axes : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        When the simulation is an ensemble.
    ImportError
        When Matplotlib is missing.
    """
    if simulation.theta.ndim != 2:
        raise ValueError(
            f"simulation must be a single run, got stored phases of shape {simulation.theta.shape}"
        )
    axes = new_axes(axes)
    stride = -(-len(simulation.t) // HEATMAP_COLUMNS)
    t, theta = simulation.t[::stride], simulation.theta[::stride]
    relative = _signed(theta - order_parameter(theta)[1][:, None])
    mesh = axes.pcolormesh(
        _edges(t), np.arange(theta.shape[1] + 1) + 0.5, relative.T, cmap=CYCLIC, vmin=-np.pi, vmax=np.pi
    )
    mesh.set_rasterized(True)
    bar = axes.figure.colorbar(
        mesh, ax=axes, ticks=[-np.pi, 0.0, np.pi], label="phase relative to mean (rad)"
    )
    bar.ax.set_yticklabels(["−π", "0", "π"])
    axes.set(xlabel="time", ylabel="oscillator")
    return axes


def _signed(angle: np.ndarray) -> np.ndarray:
    """Wrap angles into [-pi, pi)."""
    return np.remainder(angle + np.pi, 2.0 * np.pi) - np.pi


def _edges(centres: np.ndarray) -> np.ndarray:
    """Cell edges around sample positions; a single sample gets a cell of width 1."""
    if len(centres) == 1:
        return centres[0] + np.array([-0.5, 0.5])
    middles = 0.5 * (centres[1:] + centres[:-1])
    return np.concatenate([centres[:1], middles, centres[-1:]])


def plot_coupling(
    knm: np.ndarray, axes: Axes | None = None, *, vmax: float | None = None, label: str = "coupling"
) -> Axes:
    """Draw a coupling matrix as colours: row i is pulled by its columns.

    Parameters
    ----------
    knm : ndarray, shape (N, N)
        The matrix.
    axes : Axes, optional
        Where to draw; a new figure by default.
    vmax : float, optional
        Upper end of the colour scale, for pictures that shall be comparable; the largest entry by default.
    label : str
        Label of the colour scale.

    Returns
    -------
    Axes

    Raises
    ------
    ImportError
        When Matplotlib is missing.
    """
    axes = new_axes(axes)
    n = len(knm)
    image = axes.imshow(
        knm,
        cmap=SEQUENTIAL,
        vmin=min(0.0, np.min(knm, initial=0.0)),
        vmax=vmax,
        extent=(0.5, n + 0.5, n + 0.5, 0.5),
    )
    axes.figure.colorbar(image, ax=axes, label=label)
    axes.set(xlabel="pulled by oscillator", ylabel="oscillator")
    return axes


def plot_layers(
    plain: np.ndarray, modulated: np.ndarray, axes: Axes | None = None, *, ylabel: str = "layer coherence"
) -> Axes:
    """Draw one number a layer for two runs side by side.

    Parameters
    ----------
    plain, modulated : ndarray, shape (layers,)
        The numbers without and with modulation.
    axes : Axes, optional
        Where to draw; a new figure by default.
    ylabel : str
        What the numbers are.

    Returns
    -------
    Axes

    Raises
    ------
    ImportError
        When Matplotlib is missing.
    """
    axes = new_axes(axes)
    layer = np.arange(1, len(plain) + 1)
    axes.bar(layer - 0.2, plain, 0.4, color=BLUE, label="K")
    axes.bar(layer + 0.2, modulated, 0.4, color=ORANGE, label="K′ (modulated)")
    axes.set(xlabel="layer", ylabel=ylabel, xticks=layer[:: max(1, len(layer) // 8)])
    axes.margins(x=0.01)
    return axes


def plot_simulation(simulation: Simulation, axes: Any = None) -> np.ndarray:
    """Draw R over time above the phases over time.

    Parameters
    ----------
    simulation : Simulation
        Result of ``simulate`` with "R" among ``observe``.
    axes : sequence of two Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    ndarray of Axes, shape (2,)

    Raises
    ------
    ValueError
        When the simulation is an ensemble, did not observe R, or ``axes`` does not hold two Axes.
    ImportError
        When Matplotlib is missing.
    """
    require_matplotlib()
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.subplots(2, 1, sharex=True, layout="constrained")[1]
    axes = np.asarray(axes, dtype=object).ravel()
    if len(axes) != 2:
        raise ValueError(f"axes must hold two Axes, got {len(axes)}")
    plot_order_parameter(simulation, axes[0]).set_xlabel("")
    plot_phases(simulation, axes[1])
    return axes
