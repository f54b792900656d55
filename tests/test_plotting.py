"""Each picture holds the data it was given, under axes that say what they show."""

from __future__ import annotations

import builtins
import subprocess
import sys

import numpy as np
import pytest

from spo_fast import datasets, order_parameter, plotting, simulate

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(scope="module")
def simulation():
    theta, omega = datasets.initial_phases(16), datasets.natural_frequencies(16)
    return simulate(theta, omega, datasets.scpn16(), dt=0.05, n_steps=50, record_every=5, backend="numpy")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def test_the_order_parameter_is_drawn_over_its_times(simulation):
    axes = plotting.plot_order_parameter(simulation, label="R of this run")
    (line,) = axes.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), simulation.t_observe)
    np.testing.assert_array_equal(line.get_ydata(), simulation.R)
    assert line.get_label() == "R of this run"
    assert axes.get_xlabel()
    assert axes.get_ylabel()


def test_phases_are_drawn_relative_to_the_mean_phase(simulation):
    axes = plotting.plot_phases(simulation)
    drawn = np.asarray(axes.collections[0].get_array()).reshape(16, len(simulation.t))
    difference = simulation.theta.T - order_parameter(simulation.theta)[1] - drawn
    np.testing.assert_allclose(np.cos(difference), 1.0, rtol=0, atol=1e-12)
    assert np.abs(drawn).max() <= np.pi
    assert axes.get_xlabel()
    assert axes.get_ylabel()


def test_long_runs_are_thinned(simulation, monkeypatch):
    monkeypatch.setattr(plotting, "HEATMAP_COLUMNS", 4)
    axes = plotting.plot_phases(simulation)
    assert np.asarray(axes.collections[0].get_array()).size == 16 * 4


def test_a_single_stored_state_can_be_drawn():
    state = simulate(np.zeros(3), 1.0, np.ones((3, 3)) - np.eye(3), dt=0.1, n_steps=0, backend="numpy")
    assert plotting.plot_phases(state).collections


def test_coupling_is_drawn_on_the_scale_asked_for(simulation):
    knm = datasets.scpn16()
    image = plotting.plot_coupling(knm, vmax=0.5).images[0]
    np.testing.assert_array_equal(image.get_array(), knm)
    assert image.get_clim() == (0.0, 0.5)
    assert plotting.plot_coupling(-knm).images[0].get_clim()[0] == -knm.max()


def test_layers_get_a_bar_for_each_run():
    axes = plotting.plot_layers(np.array([0.1, 0.2]), np.array([0.3, 0.4]))
    assert [bar.get_height() for bar in axes.patches] == [0.1, 0.2, 0.3, 0.4]


def test_a_simulation_draws_into_the_axes_it_is_given(simulation):
    from matplotlib.figure import Figure

    given = Figure().subplots(2)
    np.testing.assert_array_equal(plotting.plot_simulation(simulation, given), given)
    assert given[0].lines
    assert given[1].collections
    assert len(plotting.plot_simulation(simulation)) == 2
    with pytest.raises(ValueError, match="axes must hold two Axes, got 1"):
        plotting.plot_simulation(simulation, given[:1])


def test_what_cannot_be_drawn_is_refused(simulation):
    blind = simulate(np.zeros(2), 1.0, np.zeros((2, 2)), dt=0.1, n_steps=1, observe=(), backend="numpy")
    with pytest.raises(ValueError, match="simulation has no R"):
        plotting.plot_order_parameter(blind)


def test_missing_matplotlib_is_told_in_a_line_that_names_the_extra(simulation, monkeypatch):
    genuine = builtins.__import__

    def refuse(name, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return genuine(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    for draw in (plotting.plot_order_parameter, plotting.plot_phases, plotting.plot_simulation):
        with pytest.raises(ImportError, match=r"^plotting needs Matplotlib: .*spo-fast\[plot\]'$"):
            draw(simulation)


def test_importing_the_module_leaves_matplotlib_alone():
    program = "import sys, spo_fast.plotting; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
