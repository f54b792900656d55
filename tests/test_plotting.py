"""Each picture holds the data it was given, under axes that say what they show."""

from __future__ import annotations

import builtins
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from spo_fast import (
    datasets,
    layer_coherence,
    modulate,
    order_parameter,
    overhead,
    plotting,
    scaling,
    simulate,
)

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

DOCS = Path(__file__).resolve().parent.parent / "docs"
LAYER = np.repeat(np.arange(4), 4)


@pytest.fixture(scope="module")
def simulation():
    theta, omega = datasets.initial_phases(16), datasets.natural_frequencies(16)
    return simulate(theta, omega, datasets.scpn16(), dt=0.05, n_steps=50, record_every=5, backend="numpy")


@pytest.fixture(scope="module")
def blind():
    return simulate(np.zeros(2), 1.0, np.zeros((2, 2)), dt=0.1, n_steps=1, observe=(), backend="numpy")


@pytest.fixture(scope="module")
def members():
    theta = np.zeros((3, 2))
    return simulate(theta, 1.0, np.zeros((2, 2)), dt=0.1, n_steps=4, backend="numpy")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def measured(study):
    rows, _ = study.from_json((DOCS / f"{study.__name__.rpartition('.')[2]}.json").read_text("utf-8"))
    return rows


def drawn(axes, rows):
    """Values of the first mesh of colours, a row an oscillator or layer."""
    return np.asarray(axes.collections[0].get_array()).reshape(rows, -1)


# Every public picture, drawn by its least arguments into Axes that are given or into none.
ONE = {
    "plot_order_parameter": lambda run, ax: plotting.plot_order_parameter(run, ax),
    "plot_phases": lambda run, ax: plotting.plot_phases(run, ax),
    "plot_layer_coherence": lambda run, ax: plotting.plot_layer_coherence(run, LAYER, ax),
    "plot_circle": lambda run, ax: plotting.plot_circle(run, ax),
    "plot_coupling": lambda run, ax: plotting.plot_coupling(datasets.scpn16(), ax),
    "plot_layers": lambda run, ax: plotting.plot_layers(np.ones(3), np.ones(3), ax),
    "plot_overhead": lambda run, ax: plotting.plot_overhead(measured(overhead), ax),
    "plot_scaling": lambda run, ax: plotting.plot_scaling(measured(scaling), ax),
}
TWO = {
    "plot_simulation": lambda run, axes: plotting.plot_simulation(run, axes),
    "plot_coherence": lambda run, axes: plotting.plot_coherence(run, LAYER, axes),
    "plot_modulation": lambda run, axes: plotting.plot_modulation(
        datasets.scpn16(), modulate(datasets.scpn16(), run.final), axes
    ),
}


def test_every_picture_is_tested_here():
    assert {name for name in dir(plotting) if name.startswith("plot_")} == {*ONE, *TWO}


@pytest.mark.parametrize("name", ONE)
def test_a_picture_is_drawn_into_the_axes_given_or_into_new_ones(simulation, name):
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    given = Figure().subplots()
    assert ONE[name](simulation, given) is given
    assert pyplot.get_fignums() == []
    new = ONE[name](simulation, None)
    assert len(pyplot.get_fignums()) == 1
    for axes in (given, new):
        assert axes.get_xlabel() and axes.get_ylabel()
        axes.figure.canvas.draw()


@pytest.mark.parametrize("name", TWO)
def test_two_panels_are_drawn_into_the_axes_given_or_into_new_ones(simulation, name):
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    given = Figure().subplots(2)
    np.testing.assert_array_equal(TWO[name](simulation, given), given)
    assert pyplot.get_fignums() == []
    new = TWO[name](simulation, None)
    assert new.shape == (2,)
    assert len(pyplot.get_fignums()) == 1
    assert new[1].get_xlabel() and new[0].get_ylabel()
    with pytest.raises(ValueError, match="axes must hold two Axes, got 1"):
        TWO[name](simulation, given[:1])


def test_no_setting_of_matplotlib_is_changed(simulation):
    before = dict(matplotlib.rcParams)
    for draw in [*ONE.values(), *TWO.values()]:
        draw(simulation, None)
    assert dict(matplotlib.rcParams) == before


def test_axes_that_are_given_leave_pyplot_alone():
    program = """
import sys
import numpy as np
from matplotlib.figure import Figure
from spo_fast import plotting
axes = Figure().subplots(2)
plotting.plot_coherence(np.zeros((3, 4)), [0, 0, 1, 1], axes)
plotting.plot_circle(np.zeros(3), axes[0])
sys.exit("matplotlib.pyplot" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_order_parameter_is_drawn_over_its_times(simulation):
    axes = plotting.plot_order_parameter(simulation, label="R of this run")
    (line,) = axes.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), simulation.t_observe)
    np.testing.assert_array_equal(line.get_ydata(), simulation.R)
    assert line.get_label() == "R of this run"


def test_every_member_of_an_ensemble_gets_a_line(members):
    assert len(plotting.plot_order_parameter(members).get_lines()) == 3


def test_arrays_are_drawn_as_simulations_are(simulation):
    t, theta = simulation.t, simulation.theta
    for given in (theta, theta.tolist()):
        np.testing.assert_array_equal(
            drawn(plotting.plot_phases(given, t=t), 16), drawn(plotting.plot_phases(simulation), 16)
        )
    (line,) = plotting.plot_order_parameter(simulation.R, t=simulation.t_observe).get_lines()
    np.testing.assert_array_equal(line.get_xydata()[:, 0], simulation.t_observe)
    order, phases = plotting.plot_simulation(theta, t=t)
    (line,) = order.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), order_parameter(theta)[0])
    np.testing.assert_array_equal(drawn(phases, 16), drawn(plotting.plot_phases(simulation), 16))
    unnamed = plotting.plot_phases(theta)
    assert unnamed.get_xlabel() == "row"
    assert unnamed.get_xlim() == (0.0, len(theta) - 1.0)


def test_phases_are_drawn_relative_to_the_mean_phase(simulation):
    values = drawn(plotting.plot_phases(simulation), 16)
    difference = simulation.theta.T - order_parameter(simulation.theta)[1] - values
    np.testing.assert_allclose(np.cos(difference), 1.0, rtol=0, atol=1e-12)
    assert np.abs(values).max() <= np.pi


def test_long_runs_are_thinned(simulation, monkeypatch):
    monkeypatch.setattr(plotting, "HEATMAP_COLUMNS", 4)
    assert drawn(plotting.plot_phases(simulation), 16).shape == (16, 4)
    assert drawn(plotting.plot_layer_coherence(simulation, LAYER), 4).shape == (4, 4)


def test_a_single_stored_state_can_be_drawn():
    state = simulate(np.zeros(3), 1.0, np.ones((3, 3)) - np.eye(3), dt=0.1, n_steps=0, backend="numpy")
    assert plotting.plot_phases(state).collections


def test_the_coherence_of_each_layer_is_a_row(simulation):
    order, layers = plotting.plot_coherence(simulation, 10 * LAYER)
    (line,) = order.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), simulation.R)
    values = drawn(layers, 4)
    for number, row in enumerate(values):
        np.testing.assert_array_equal(row, layer_coherence(simulation.theta, number == LAYER))


def test_coherence_of_states_whose_order_was_not_observed(blind):
    for given, t in ((blind, None), (blind.theta, blind.t)):
        (line,) = plotting.plot_coherence(given, [0, 1], t=t)[0].get_lines()
        np.testing.assert_array_equal(line.get_xdata(), blind.t)
        np.testing.assert_array_equal(line.get_ydata(), [1.0, 1.0])


def test_phases_stand_on_the_circle_with_their_mean_field(simulation):
    omega = np.arange(16.0)
    axes = plotting.plot_circle(simulation, values=omega, label="frequency")
    points = axes.collections[0]
    expected = np.column_stack([np.cos(simulation.final), np.sin(simulation.final)])
    np.testing.assert_array_equal(points.get_offsets(), expected)
    np.testing.assert_array_equal(points.get_array(), omega)
    arrow, r = axes.texts
    np.testing.assert_allclose(arrow.xy, expected.mean(axis=0), rtol=0, atol=1e-12)
    assert r.get_text() == f"R = {simulation.R[-1]:.2f}"


def test_coupling_is_drawn_on_the_scale_asked_for():
    knm = datasets.scpn16()
    image = plotting.plot_coupling(knm, vmax=0.5).images[0]
    np.testing.assert_array_equal(image.get_array(), knm)
    assert image.get_clim() == (0.0, 0.5)
    assert plotting.plot_coupling(-knm).images[0].get_clim()[0] == -knm.max()


def test_sparse_coupling_is_drawn_whole():
    sparse = pytest.importorskip("scipy.sparse")
    knm = datasets.scpn16()
    np.testing.assert_array_equal(plotting.plot_coupling(sparse.csr_array(knm)).images[0].get_array(), knm)


def test_both_couplings_share_their_scale(simulation):
    knm = datasets.scpn16()
    modulated = modulate(knm, simulation.final)
    images = [axes.images[0] for axes in plotting.plot_modulation(knm, modulated)]
    np.testing.assert_array_equal(images[1].get_array(), modulated)
    assert images[0].get_clim() == images[1].get_clim() == (0.0, modulated.max())


def test_layers_get_a_bar_for_each_run():
    axes = plotting.plot_layers(np.array([0.1, 0.2]), np.array([0.3, 0.4]))
    assert [bar.get_height() for bar in axes.patches] == [0.1, 0.2, 0.3, 0.4]


def test_measured_times_are_drawn_in_microseconds():
    rows = measured(scaling)
    lines = {line.get_label(): line for line in plotting.plot_scaling(rows).get_lines()}
    np.testing.assert_allclose(lines["attention alone"].get_ydata(), [1e6 * row.attention for row in rows])
    rows = [row for row in measured(overhead) if row.method == "euler"]
    lines = {line.get_label(): line for line in plotting.plot_overhead(rows).get_lines()}
    np.testing.assert_allclose(lines["modulated step"].get_ydata(), [1e6 * r.modulated.minimum for r in rows])
    ticks = [text.get_text() for text in plotting.plot_overhead(rows).get_xticklabels()]
    assert ticks == [str(row.n) for row in rows]


def test_what_cannot_be_drawn_is_refused(simulation, blind, members):
    with pytest.raises(ValueError, match="simulation has no R"):
        plotting.plot_order_parameter(blind)
    with pytest.raises(ValueError, match="simulation has no R"):
        plotting.plot_simulation(blind)
    by_layer = (plotting.plot_layer_coherence, plotting.plot_coherence)
    for draw in (
        plotting.plot_phases,
        plotting.plot_simulation,
        *(partial(draw, layer=[0, 0]) for draw in by_layer),
    ):
        with pytest.raises(ValueError, match=r"must be a single run, got stored phases of shape \(2, 3, 2\)"):
            draw(members)
    with pytest.raises(ValueError, match=r"one state of one run, got phases of shape \(3, 2\)"):
        plotting.plot_circle(members)
    with pytest.raises(ValueError, match=r"values must have shape \(16,\), got \(2,\)"):
        plotting.plot_circle(simulation, values=[1.0, 2.0])
    for draw in by_layer:
        with pytest.raises(ValueError, match=r"layer must have shape \(16,\), got \(3,\)"):
            draw(simulation, [0, 1, 2])
    with pytest.raises(ValueError, match=r"t must have shape \(3,\), got \(2,\)"):
        plotting.plot_phases(np.zeros((3, 4)), t=[0.0, 1.0])
    with pytest.raises(ValueError, match=r"modulated must have the shape of knm, \(2, 2\), got \(3, 3\)"):
        plotting.plot_modulation(np.zeros((2, 2)), np.zeros((3, 3)))
    from matplotlib import pyplot

    assert pyplot.get_fignums() == []  # a refused picture leaves no figure behind


def test_missing_matplotlib_is_told_in_a_line_that_names_the_extra(simulation, monkeypatch):
    genuine = builtins.__import__

    def refuse(name, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return genuine(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    for draw in [*ONE.values(), *TWO.values()]:
        with pytest.raises(ImportError, match=r"^plotting needs Matplotlib: .*spo-fast\[plot\]'$"):
            draw(simulation, None)


def test_importing_the_module_leaves_matplotlib_alone():
    program = "import sys, spo_fast.plotting; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
