"""Networks that ship with the package, and seeded inputs to run them with."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import numpy as np

LAYERS = 16


class LayeredNetwork(NamedTuple):
    """A network whose oscillators are grouped in layers.

    Attributes
    ----------
    knm : ndarray, shape (N, N), dimensionless
        Symmetric coupling with zero diagonal.
    layer : ndarray, shape (N,), integers
        Layer of each oscillator; ``layer == l`` is the mask that ``layer_coherence`` takes.
    """

    knm: np.ndarray
    layer: np.ndarray


def scpn16() -> np.ndarray:
    """Coupling between the 16 layers of the SCPN model.

    Returns
    -------
    ndarray, shape (16, 16), dimensionless
        A fresh float64 matrix, symmetric with zero diagonal; 0.302, 0.201, 0.252 and 0.154 stand between the
        first neighbours.
    """
    path = resources.files("spo_fast") / "data" / "scpn16.csv"
    with path.open(encoding="ascii") as lines:
        return np.loadtxt(lines, delimiter=",", comments="#")


def scpn16_layers(per_layer: int = 8, *, intra: float = 0.8) -> LayeredNetwork:
    """Sixteen layers of several oscillators each, after the SCPN matrix.

    An oscillator of layer ``l`` receives ``scpn16()[l, m]`` from all of layer ``m`` together, and ``intra``
    from a whole layer of its own, whatever ``per_layer`` is: an edge carries the total over ``per_layer``.

    Parameters
    ----------
    per_layer : int
        Oscillators in each layer, at least 1.
    intra : float, dimensionless
        Total coupling inside a layer. The default is about half of the mean row sum of ``scpn16()`` (1.72):
        layers hold together in part when the frequencies inside a layer are spread.

    Returns
    -------
    LayeredNetwork
        ``knm`` of shape (16 per_layer, 16 per_layer) and the layer of each oscillator. O(N^2) memory.

    Raises
    ------
    ValueError
        When ``per_layer`` is below 1.
    """
    if per_layer < 1:
        raise ValueError(f"per_layer must be at least 1, got {per_layer}")
    between = scpn16()
    np.fill_diagonal(between, intra)
    knm = np.kron(between, np.full((per_layer, per_layer), 1.0 / per_layer))
    np.fill_diagonal(knm, 0.0)
    return LayeredNetwork(knm, np.repeat(np.arange(LAYERS), per_layer))


def natural_frequencies(n: int, *, mean: float = 1.0, spread: float = 0.8, seed: int = 0) -> np.ndarray:
    """Draw natural frequencies from a normal distribution.

    The SCPN matrix comes without frequencies. With the default spread its 16 layers synchronise in part,
    which is where a modulation of the coupling shows.

    Parameters
    ----------
    n : int
        Number of oscillators.
    mean, spread : float, rad per time unit
        Mean and standard deviation.
    seed : int
        Seed of ``numpy.random.default_rng``.

    Returns
    -------
    ndarray, shape (n,), rad per time unit
    """
    return np.random.default_rng(seed).normal(mean, spread, n)


def initial_phases(n: int, *, seed: int = 0) -> np.ndarray:
    """Draw phases uniformly from the circle.

    Parameters
    ----------
    n : int
        Number of oscillators.
    seed : int
        Seed of ``numpy.random.default_rng``.

    Returns
    -------
    ndarray, shape (n,), radians
        Phases in [0, 2 pi).
    """
    return np.random.default_rng(seed).uniform(0.0, 2.0 * np.pi, n)
