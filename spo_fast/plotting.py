"""Pictures of networks and runs: one function a picture, each returning the Axes it drew on.

A picture is drawn into the Axes it is given, and only without them is a figure made, through pyplot, so that
notebooks show it. Nothing is shown, no setting of Matplotlib is changed. Matplotlib is an optional extra and
is imported by the functions, never with the module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast.observables import layer_coherence, order_parameter
from spo_fast.simulation import Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from spo_fast import overhead, scaling

# Okabe and Ito's palette keeps its contrasts under the common forms of colour blindness.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
BLACK, GREY = "#000000", "#666666"
SEQUENTIAL = "cividis"
CYCLIC = "twilight_shifted"  # light where a phase equals the mean phase, dark opposite to it
HEATMAP_COLUMNS = 1500
TIME = "time (units of 1/ω)"  # the unit of time is the one that frequencies are per


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


def new_axes(ax: Axes | None) -> Axes:
    """Return the Axes given, or those of a new figure.

    Parameters
    ----------
    ax : Axes or None

    Returns
    -------
    Axes

    Raises
    ------
    ImportError
        When Matplotlib is missing.
    """
    require_matplotlib()
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def _two_axes(axes: Any, **figure: Any) -> np.ndarray:
    """Return the two Axes given as an array, or those of a new figure."""
    require_matplotlib()
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.subplots(**figure, layout="constrained")[1]
    axes = np.asarray(axes, dtype=object).ravel()
    if len(axes) != 2:
        raise ValueError(f"axes must hold two Axes, got {len(axes)}")
    return axes


# ---------------------------------------------------------------- over time


def plot_order_parameter(simulation: Any, ax: Axes | None = None, *, t: Any = None, **line: Any) -> Axes:
    """Draw R over time.

    Parameters
    ----------
    simulation : Simulation or array_like, shape (T,) or (T, M), dimensionless
        Result of ``simulate`` with "R" among ``observe``, or values of R; of an ensemble, every member is
        drawn.
    ax : Axes, optional
        Where to draw; a new figure by default.
    t : array_like, shape (T,), time units, optional
        Times of an array; the numbers of its rows by default.
    **line
        Properties of the line, such as ``label`` and ``color``.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        When the simulation did not observe R, or `t` does not fit.
    ImportError
        When Matplotlib is missing.
    """
    t, r, xlabel = _order(simulation, t)
    ax = new_axes(ax)
    ax.plot(t, r, **{"linewidth": 1.2, **line})
    ax.set(xlabel=xlabel, ylabel="order parameter R", ylim=(0.0, 1.02))
    ax.margins(x=0.0)
    return ax


def plot_phases(simulation: Any, ax: Axes | None = None, *, t: Any = None) -> Axes:
    """Draw the stored phases relative to the mean phase as colours over time, an oscillator a row.

    Parameters
    ----------
    simulation : Simulation or array_like, shape (T, N), radians
        Result of a single run, whose ``record_every`` sets how many columns there are, or a trajectory. At
        most about 1,500 evenly spaced states are drawn.
    ax : Axes, optional
        Where to draw; a new figure by default.
    t : array_like, shape (T,), time units, optional
        Times of an array; the numbers of its rows by default.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        When the simulation is an ensemble, phases have another shape, or `t` does not fit.
    ImportError
        When Matplotlib is missing.
    """
    t, theta, xlabel = _trajectory(simulation, t)
    relative = _signed(theta - order_parameter(theta)[1][:, None])
    ax = new_axes(ax)
    mesh = _raster(ax, t, relative, cmap=CYCLIC, vmin=-np.pi, vmax=np.pi)
    bar = ax.figure.colorbar(mesh, ax=ax, ticks=[-np.pi, 0.0, np.pi], label="phase relative to mean (rad)")
    bar.ax.set_yticklabels(["−π", "0", "π"])
    ax.set(xlabel=xlabel, ylabel="oscillator")
    return ax


def plot_layer_coherence(simulation: Any, layer: Any, ax: Axes | None = None, *, t: Any = None) -> Axes:
    """Draw the coherence of each layer as colours over time, a layer a row.

    Parameters
    ----------
    simulation : Simulation or array_like, shape (T, N), radians
        As for `plot_phases`.
    layer : array_like, shape (N,), integers
        Layer of each oscillator; rows are in ascending order of these numbers, and named 1, 2, ...
    ax : Axes, optional
        Where to draw; a new figure by default.
    t : array_like, shape (T,), time units, optional
        Times of an array; the numbers of its rows by default.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        As `plot_phases`, and when `layer` has another length.
    ImportError
        When Matplotlib is missing.
    """
    t, theta, xlabel = _trajectory(simulation, t)
    layer = _labels(layer, theta)
    coherence = np.stack([layer_coherence(theta, layer == number) for number in np.unique(layer)], axis=1)
    ax = new_axes(ax)
    mesh = _raster(ax, t, coherence, cmap=SEQUENTIAL, vmin=0.0, vmax=1.0)
    ax.figure.colorbar(mesh, ax=ax, label="layer coherence")
    ax.set(xlabel=xlabel, ylabel="layer")
    return ax


def plot_coherence(simulation: Any, layer: Any, axes: Any = None, *, t: Any = None) -> np.ndarray:
    """Draw R over time above the coherence of each layer.

    Parameters
    ----------
    simulation : Simulation or array_like, shape (T, N), radians
        As for `plot_phases`. Where a simulation did not observe R, it is that of the stored states.
    layer : array_like, shape (N,), integers
        Layer of each oscillator.
    axes : sequence of two Axes, optional
        Where to draw; a new figure by default.
    t : array_like, shape (T,), time units, optional
        Times of an array; the numbers of its rows by default.

    Returns
    -------
    ndarray of Axes, shape (2,)

    Raises
    ------
    ValueError
        As `plot_layer_coherence`, and when ``axes`` does not hold two Axes.
    ImportError
        When Matplotlib is missing.
    """
    if isinstance(simulation, Simulation) and simulation.R is None:
        simulation, t = simulation.theta, simulation.t
    _labels(layer, _trajectory(simulation, t)[1])  # refused before a figure is made
    axes = _two_axes(axes, nrows=2, sharex=True)
    _plot_order_above(simulation, axes[0], t)
    plot_layer_coherence(simulation, layer, axes[1], t=t)
    return axes


def plot_simulation(simulation: Any, axes: Any = None, *, t: Any = None) -> np.ndarray:
    """Draw R over time above the phases over time.

    Parameters
    ----------
    simulation : Simulation or array_like, shape (T, N), radians
        Result of ``simulate`` with "R" among ``observe``, or a trajectory.
    axes : sequence of two Axes, optional
        Where to draw; a new figure by default.
    t : array_like, shape (T,), time units, optional
        Times of an array; the numbers of its rows by default.

    Returns
    -------
    ndarray of Axes, shape (2,)

    Raises
    ------
    ValueError
        When the simulation is an ensemble or did not observe R, `t` does not fit, or ``axes`` does not hold
        two Axes.
    ImportError
        When Matplotlib is missing.
    """
    _trajectory(simulation, t)  # refused before a figure is made
    if isinstance(simulation, Simulation):
        _order(simulation, t)
    axes = _two_axes(axes, nrows=2, sharex=True)
    _plot_order_above(simulation, axes[0], t)
    plot_phases(simulation, axes[1], t=t)
    return axes


def _plot_order_above(simulation: Any, ax: Axes, t: Any) -> None:
    """Draw R of a simulation or of a trajectory over an axis of time that another picture labels."""
    if not isinstance(simulation, Simulation):
        simulation = order_parameter(simulation)[0]
    plot_order_parameter(simulation, ax, t=t, color=BLUE).set_xlabel("")


def _order(simulation: Any, t: Any) -> tuple[np.ndarray, np.ndarray, str]:
    """Times and values of R, and the name of the time axis."""
    if not isinstance(simulation, Simulation):
        r = np.asarray(simulation, dtype=np.float64)
        t, xlabel = _times(t, len(r))
        return t, r, xlabel
    if simulation.R is None or simulation.t_observe is None:
        raise ValueError('simulation has no R: pass observe=("R",) to simulate')
    return simulation.t_observe, simulation.R, TIME


def _labels(layer: Any, theta: np.ndarray) -> np.ndarray:
    """The layer of each oscillator as an array that fits the phases."""
    layer = np.asarray(layer)
    if layer.shape != theta.shape[1:]:
        raise ValueError(f"layer must have shape {theta.shape[1:]}, got {layer.shape}")
    return layer


def _times(t: Any, rows: int) -> tuple[np.ndarray, str]:
    """Times of an array of so many rows, and what the axis is called."""
    if t is None:
        return np.arange(rows, dtype=np.float64), "row"
    t = np.asarray(t, dtype=np.float64)
    if t.shape != (rows,):
        raise ValueError(f"t must have shape ({rows},), got {t.shape}")
    return t, TIME


def _trajectory(simulation: Any, t: Any) -> tuple[np.ndarray, np.ndarray, str]:
    """Times and states of a single run, thinned to what a picture can show, and the name of the time axis."""
    if isinstance(simulation, Simulation):
        t, theta, xlabel = simulation.t, simulation.theta, TIME
    else:
        theta = np.asarray(simulation, dtype=np.float64)
        t, xlabel = _times(t, len(theta) if theta.ndim else 0)
    if theta.ndim != 2:
        raise ValueError(f"simulation must be a single run, got stored phases of shape {theta.shape}")
    stride = max(1, -(-len(t) // HEATMAP_COLUMNS))
    return t[::stride], theta[::stride], xlabel


def _raster(ax: Axes, t: np.ndarray, values: np.ndarray, **colours: Any) -> Any:
    """Draw values (T, rows) as colours over time, the first row on top, rows numbered from 1."""
    rows = values.shape[1]
    mesh = ax.pcolormesh(_edges(t), np.arange(rows + 1) + 0.5, values.T, rasterized=True, **colours)
    ax.set_ylim(rows + 0.5, 0.5)
    _count(ax.yaxis)
    return mesh


def _count(axis: Any) -> None:
    """Let the ticks of an axis that numbers oscillators or layers stand at integers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _signed(angle: np.ndarray) -> np.ndarray:
    """Wrap angles into [-pi, pi)."""
    return np.remainder(angle + np.pi, 2.0 * np.pi) - np.pi


def _edges(centres: np.ndarray) -> np.ndarray:
    """Cell edges around sample positions; a single sample gets a cell of width 1."""
    if len(centres) == 1:
        return centres[0] + np.array([-0.5, 0.5])
    middles = 0.5 * (centres[1:] + centres[:-1])
    return np.concatenate([centres[:1], middles, centres[-1:]])


# ---------------------------------------------------------------- one state


def plot_circle(
    simulation: Any, ax: Axes | None = None, *, values: Any = None, label: str = "", **points: Any
) -> Axes:
    """Draw the phases of one state on the unit circle, and the mean field R exp(i psi) as an arrow.

    Parameters
    ----------
    simulation : Simulation or array_like, shape (N,), radians
        A single run, whose last state is drawn, or phases.
    ax : Axes, optional
        Where to draw; a new figure by default.
    values : array_like, shape (N,), optional
        A number for each oscillator, such as its natural frequency, told by colour.
    label : str
        What `values` are, with their unit.
    **points
        Properties of the points, such as ``s`` and ``color``.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        When the simulation is an ensemble, or `values` does not fit.
    ImportError
        When Matplotlib is missing.
    """
    theta = (
        simulation.final if isinstance(simulation, Simulation) else np.asarray(simulation, dtype=np.float64)
    )
    if theta.ndim != 1:
        raise ValueError(f"simulation must be one state of one run, got phases of shape {theta.shape}")
    if values is not None and np.shape(values) != theta.shape:
        raise ValueError(f"values must have shape {theta.shape}, got {np.shape(values)}")
    ax = new_axes(ax)
    around = np.linspace(0.0, 2.0 * np.pi, 361)
    ax.plot(np.cos(around), np.sin(around), color=GREY, linewidth=0.8, zorder=1)
    colours = {"color": BLUE} if values is None else {"c": values, "cmap": SEQUENTIAL}
    style = {"s": 36, "alpha": 0.75, "linewidth": 0.0, "zorder": 3, **colours, **points}
    drawn = ax.scatter(np.cos(theta), np.sin(theta), **style)
    if values is not None:
        ax.figure.colorbar(drawn, ax=ax, label=label)
    _draw_mean_field(ax, *order_parameter(theta))
    ax.set(xlabel="cos θ", ylabel="sin θ", xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
    ax.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    return ax


def _draw_mean_field(ax: Axes, r: float, psi: float) -> None:
    tip = r * np.cos(psi), r * np.sin(psi)
    arrow = {"arrowstyle": "-|>", "color": ORANGE, "linewidth": 2.0, "shrinkA": 0.0, "shrinkB": 0.0}
    ax.annotate("", tip, (0.0, 0.0), arrowprops=arrow, zorder=2)
    side = -0.12 if tip[1] > 0.0 else 0.12  # away from the arrow
    ax.text(0.0, side, f"R = {r:.2f}", color=ORANGE, ha="center", va="center", zorder=2)


def plot_coupling(
    knm: Any, ax: Axes | None = None, *, vmax: float | None = None, label: str = "coupling K"
) -> Axes:
    """Draw a coupling matrix as colours: row i is pulled by its columns.

    Parameters
    ----------
    knm : ndarray or scipy.sparse matrix, shape (N, N)
        The matrix; O(N^2) memory, also where it is sparse.
    ax : Axes, optional
        Where to draw; a new figure by default.
    vmax : float, optional
        Upper end of the colour scale, for pictures that shall be comparable; the largest entry by default.
    label : str
        Label of the colour scale; without one there is no scale.

    Returns
    -------
    Axes

    Raises
    ------
    ImportError
        When Matplotlib is missing.
    """
    knm = _dense(knm)
    ax = new_axes(ax)
    n = len(knm)
    image = ax.imshow(
        knm,
        cmap=SEQUENTIAL,
        vmin=min(0.0, np.min(knm, initial=0.0)),
        vmax=vmax,
        extent=(0.5, n + 0.5, n + 0.5, 0.5),
    )
    if label:
        ax.figure.colorbar(image, ax=ax, label=label)
    _count(ax.xaxis)
    _count(ax.yaxis)
    ax.set(xlabel="pulled by oscillator", ylabel="oscillator")
    return ax


def plot_modulation(knm: Any, modulated: Any, axes: Any = None) -> np.ndarray:
    """Draw K beside K', which share one scale of colours.

    Parameters
    ----------
    knm, modulated : ndarray or scipy.sparse matrix, shape (N, N)
        The coupling and what ``modulate`` made of it; O(N^2) memory, also where they are sparse.
    axes : sequence of two Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    ndarray of Axes, shape (2,)

    Raises
    ------
    ValueError
        When the shapes differ, or ``axes`` does not hold two Axes.
    ImportError
        When Matplotlib is missing.
    """
    knm, modulated = _dense(knm), _dense(modulated)
    if knm.shape != modulated.shape:
        raise ValueError(f"modulated must have the shape of knm, {knm.shape}, got {modulated.shape}")
    axes = _two_axes(axes, ncols=2, sharex=True, sharey=True, figsize=(8.4, 3.8))
    vmax = float(max(np.max(knm, initial=0.0), np.max(modulated, initial=0.0)))
    for ax, matrix, title in zip(axes, (knm, modulated), ("K", "K′ (modulated)"), strict=True):
        plot_coupling(matrix, ax, vmax=vmax, label="").set_title(title)
    axes[1].set_ylabel("")
    axes[1].figure.colorbar(axes[1].images[0], ax=list(axes), label="coupling")
    return axes


def _dense(knm: Any) -> np.ndarray:
    return np.asarray(knm.toarray() if hasattr(knm, "toarray") else knm)


def plot_layers(
    plain: np.ndarray, modulated: np.ndarray, ax: Axes | None = None, *, ylabel: str = "layer coherence"
) -> Axes:
    """Draw one number a layer for two runs side by side.

    Parameters
    ----------
    plain, modulated : ndarray, shape (layers,)
        The numbers without and with modulation.
    ax : Axes, optional
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
    ax = new_axes(ax)
    layer = np.arange(1, len(plain) + 1)
    ax.bar(layer - 0.2, plain, 0.4, color=BLUE, label="K")
    ax.bar(layer + 0.2, modulated, 0.4, color=ORANGE, label="K′ (modulated)")
    ax.set(xlabel="layer", ylabel=ylabel, xticks=layer[:: max(1, len(layer) // 8)])
    ax.margins(x=0.01)
    return ax


# ---------------------------------------------------------------- measured times

Curves = Mapping[str, tuple[str, str, list[float | None]]]  # label: marker and stroke, colour, seconds


def plot_overhead(rows: Iterable[overhead.Row], ax: Axes | None = None) -> Axes:
    """Draw the times of Euler steps against N: un-modulated, modulated, and the bound of the latter.

    Parameters
    ----------
    rows : iterable of Row
        What `spo_fast.overhead.measure` returned; a curve that lacks a size is left out.
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    ImportError
        When Matplotlib is missing.
    """
    chosen = [row for row in rows if row.method == "euler"]
    theirs = [row.orchestrator_run for row in chosen]
    curves: Curves = {
        "orchestrator, un-modulated step in run": ("x-", PINK, theirs),
        "modulated step": ("o-", ORANGE, [row.modulated.minimum for row in chosen]),
        "bound of a modulated step": ("--", BLACK, [row.bound for row in chosen]),
        "its attention": ("^:", GREEN, [row.attention.minimum for row in chosen]),
        "un-modulated step": ("s-", BLUE, [row.plain.minimum for row in chosen]),
    }
    ax = _draw_times([row.n for row in chosen], curves, ax)
    ax.set(title="An Euler step, one core")
    return ax


def plot_scaling(rows: Iterable[scaling.Row], ax: Axes | None = None) -> Axes:
    """Draw times against N beside a plain copy of K, and guides that grow with N and with N².

    Parameters
    ----------
    rows : iterable of Row
        What `spo_fast.scaling.measure` returned.
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    ImportError
        When Matplotlib is missing.
    """
    rows = list(rows)
    curves: Curves = {
        "modulate, K′ written": ("o-", PINK, [row.modulate for row in rows]),
        "copy of K": ("--", BLACK, [row.copy for row in rows]),
        "modulated step": ("s-", ORANGE, [row.modulated for row in rows]),
        "un-modulated step": ("v-", BLUE, [row.plain for row in rows]),
        "attention alone": ("^-", GREEN, [row.attention for row in rows]),
    }
    n = np.array([row.n for row in rows])
    ax = _draw_times(n, curves, ax)
    ax.set(title="Cost against size, Euler, one core")
    for power, seconds in ((2, rows[-1].plain), (1, rows[-1].attention)):
        guide = 0.6 * seconds * 1e6 * (n / n[-1]) ** power
        ax.plot(n, guide, ":", color=GREY, linewidth=1.0)
        text, place = f"∝ N{'²' if power == 2 else ''}", (n[-2], guide[-2])
        ax.annotate(text, place, xytext=(4, -12), textcoords="offset points", color=GREY)
    return ax


def _draw_times(n: Any, curves: Curves, ax: Axes | None) -> Axes:
    ax = new_axes(ax)
    for label, (style, colour, seconds) in curves.items():
        known = [time * 1e6 for time in seconds if time is not None]
        if len(known) == len(n):
            ax.loglog(n, known, style, color=colour, label=label)
    ax.set_xticks(n, [str(size) for size in n])
    ax.minorticks_off()
    ax.set(xlabel="oscillators N", ylabel="time (µs)")
    ax.legend(frameon=False)
    return ax
