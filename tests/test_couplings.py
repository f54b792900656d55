"""Couplings that other packages hold: graphs, labelled matrices, every sparse format."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from samples import phases, same_bits, symmetric

from spo_fast import Engine, Modulator, entropy_production_rate, lyapunov_spectrum, modulate, simulate
from spo_fast.validation import plain_matrix

FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")


def run(theta, knm, **options):
    return simulate(theta, 1.0, knm, dt=0.05, n_steps=20, **options).final


def loop_matrix(graph):
    """K of a graph by a plain loop: an edge from u to v lets u pull v."""
    nodes = list(graph)
    knm = np.zeros((len(nodes), len(nodes)))
    for u, v, weight in graph.edges(data="weight", default=1.0):
        i, j = nodes.index(u), nodes.index(v)
        knm[j, i] += weight
        if not graph.is_directed() and i != j:
            knm[i, j] += weight
    return knm


def graphs(rng):
    nx = pytest.importorskip("networkx")
    names = ["delta", "alpha", 7, ("tuple", 1), "beta"]
    for kind in (nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph):
        graph = kind()
        graph.add_nodes_from(names)
        for _ in range(12):
            u, v = rng.integers(0, 5, 2)
            graph.add_edge(names[u], names[v], weight=float(rng.uniform(0.1, 1.0)))
        graph.add_edge("alpha", "beta")  # without a weight
        yield graph


def test_a_graph_is_the_matrix_of_its_edges(rng):
    for graph in graphs(rng):
        matrix = plain_matrix(graph)
        assert matrix.format == "csr"
        np.testing.assert_array_equal(matrix.toarray(), loop_matrix(graph))


def test_every_function_takes_a_graph(rng):
    theta = phases(rng, 5)
    for graph in graphs(rng):
        knm = plain_matrix(graph)
        assert same_bits(run(theta, graph), run(theta, knm))
        assert same_bits(run(np.stack([theta, theta + 1]), graph), run(np.stack([theta, theta + 1]), knm))
        engine = Engine(5, 0.1)
        assert same_bits(engine.step(theta, 1.0, graph), engine.step(theta, 1.0, knm))
        assert entropy_production_rate(theta, 1.0, graph, 0.1, 0.1) == entropy_production_rate(
            theta, 1.0, knm, 0.1, 0.1
        )
        assert same_bits(
            lyapunov_spectrum(theta, 1.0, graph, n_steps=10), lyapunov_spectrum(theta, 1.0, knm, n_steps=10)
        )


def test_an_undirected_graph_can_be_modulated(rng):
    nx = pytest.importorskip("networkx")
    graph = nx.gnm_random_graph(12, 25, seed=1)
    theta, knm = phases(rng, 12), plain_matrix(graph)
    expected = modulate(knm, theta).toarray()
    assert same_bits(modulate(graph, theta).toarray(), expected)
    assert same_bits(modulate(graph, theta, algorithm="sparse").toarray(), expected)
    assert same_bits(Modulator(graph)(theta).toarray(), expected)
    modulator = Modulator(np.zeros((2, 2)))
    modulator.update(graph)
    assert same_bits(modulator(theta).toarray(), expected)
    assert same_bits(run(theta, graph, modulation={}), run(theta, knm, modulation={}))
    assert same_bits(run(theta, graph, modulation=Modulator(graph)), run(theta, knm, modulation={}))


def test_an_edge_points_to_the_oscillator_that_is_pulled():
    nx = pytest.importorskip("networkx")
    graph = nx.DiGraph([("leader", "follower")])
    result = simulate([0.0, 2.0], 0.0, graph, dt=0.01, n_steps=2000)
    assert result.final[0] == 0.0
    assert min(result.final[1], 2 * np.pi - result.final[1]) < 1e-6


@pytest.mark.parametrize("weight", ["strong", None, True, 1j])
def test_a_weight_that_is_no_number_is_refused(weight):
    nx = pytest.importorskip("networkx")
    graph = nx.Graph()
    graph.add_edge("a", "b", weight=weight)
    with pytest.raises(ValueError, match=r"knm must have weights .* at edge \('a', 'b'\)"):
        simulate([0.0, 1.0], 1.0, graph, dt=0.1, n_steps=1)


def test_a_weight_that_is_not_finite_is_refused():
    nx = pytest.importorskip("networkx")
    graph = nx.Graph()
    graph.add_edge("a", "b", weight=float("nan"))
    with pytest.raises(ValueError, match="knm must be finite"):
        simulate([0.0, 1.0], 1.0, graph, dt=0.1, n_steps=1)


def test_a_graph_of_another_size_is_refused():
    nx = pytest.importorskip("networkx")
    with pytest.raises(ValueError, match=r"knm must have shape \(2, 2\), got \(3, 3\)"):
        simulate([0.0, 1.0], 1.0, nx.path_graph(3), dt=0.1, n_steps=1)


def test_an_empty_graph_is_a_network_without_oscillators():
    nx = pytest.importorskip("networkx")
    assert simulate([], 1.0, nx.Graph(), dt=0.1, n_steps=2).final.shape == (0,)


def labelled(knm, names):
    pandas, xarray = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    return [
        pandas.DataFrame(knm, index=names, columns=names),
        pandas.DataFrame(knm, columns=names),
        xarray.DataArray(knm, dims=("to", "from"), coords={"to": names, "from": names}),
        xarray.DataArray(knm, dims=("to", "from")),
    ]


def test_labelled_matrices_are_their_values(rng):
    knm, theta = symmetric(rng, 4), phases(rng, 4)
    for matrix in labelled(knm, list("abcd")):
        assert same_bits(run(theta, matrix), run(theta, knm))
        assert same_bits(run(theta, knm, alpha=0.1 * matrix), run(theta, knm, alpha=0.1 * knm))
        assert same_bits(modulate(matrix, theta), modulate(knm, theta))
        assert same_bits(Modulator(matrix)(theta), modulate(knm, theta))


def test_couplings_of_members_may_be_labelled(rng):
    xarray = pytest.importorskip("xarray")
    knm, theta = rng.uniform(size=(2, 3, 3)), rng.uniform(size=(2, 3))
    matrix = xarray.DataArray(knm, dims=("member", "to", "from"))
    assert same_bits(run(theta, matrix), run(theta, knm))


def test_shuffled_rows_without_names_are_refused(rng):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(symmetric(rng, 3))
    for rows in ([1, 0, 2], [2, 1, 0]):
        with pytest.raises(ValueError, match="same labels in the same order"):
            modulate(frame.iloc[rows], np.zeros(3))
    names = pandas.DataFrame(frame.values, index=["a", "b", "c"])
    assert modulate(names, np.zeros(3)).shape == (3, 3)


def test_labels_in_another_order_are_refused(rng):
    knm = symmetric(rng, 3)
    frame, _, array, _ = labelled(knm, list("abc"))
    turned = [frame[["b", "a", "c"]], array.isel({"from": [1, 0, 2]})]
    for matrix in turned:
        with pytest.raises(
            ValueError, match=r"same labels in the same order.* rows a, b, c and columns b, a, c"
        ):
            run(phases(rng, 3), matrix)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_every_sparse_format_is_taken(rng, form, kind):
    sparse = pytest.importorskip("scipy.sparse")
    knm, theta = symmetric(rng, 9, density=0.4), phases(rng, 9)
    expected = run(theta, sparse.csr_array(knm))
    made = getattr(sparse, f"{form}_{kind}")(knm)
    assert same_bits(run(theta, made), expected)
    assert same_bits(run(theta, made, modulation={}), run(theta, sparse.csr_array(knm), modulation={}))


def test_nothing_is_imported_to_look_for_a_graph():
    script = (
        "import sys, numpy as np, spo_fast\n"
        "spo_fast.simulate([0, 1], 1, [[0, 1], [1, 0]], dt=0.1, n_steps=1, backend='numpy')\n"
        "spo_fast.modulate([[0, 1], [1, 0]], [0, 1], backend='numpy')\n"
        "print([name for name in ('networkx', 'pandas', 'xarray', 'scipy') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
