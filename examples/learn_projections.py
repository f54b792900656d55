"""Projections that are learned: those whose modulation makes one layer of a network more coherent.

The coherence of a layer, R = |mean of exp(i theta)| over its oscillators, is a function of the trajectory,
and this one of the projections. `simulate_vjp` gives its gradient at all of them at once, and gradient ascent
with moments (Adam: D. P. Kingma, J. Ba, arXiv:1412.6980) follows it.
"""

from __future__ import annotations

import argparse

import numpy as np

from spo_fast import datasets, default_projections, layer_coherence, simulate, simulate_vjp

NAMES = ("w_q", "w_k", "w_v", "w_o")
RATE = 0.05


def coherence(theta: np.ndarray, layer: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean coherence of a layer over states (samples, N), and its gradient at each of them."""
    order = np.exp(1j * theta[:, layer]).mean(axis=1)
    gradient = np.zeros_like(theta)
    gradient[:, layer] = np.sin(np.angle(order)[:, None] - theta[:, layer]) / (layer.sum() * len(theta))
    return float(np.abs(order).mean()), gradient


def main(arguments: list[str] | None = None) -> None:
    """Print the layer's coherence before and after, on phases that were learned from and on others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--layer", type=int, default=8)
    options = parser.parse_args(arguments)

    knm, layers = datasets.scpn16_layers(3, intra=0.3)
    knm *= 0.3  # so weak that the layers do not lock by themselves
    layer = layers == options.layer
    omega = datasets.natural_frequencies(len(knm), spread=0.6, seed=2)
    run = {"dt": 0.05, "n_steps": 100, "record_every": 10}
    weights = dict(zip(NAMES, default_projections(), strict=True))
    strength = {"lambda_": 3.0}

    def mean_coherence(seed: int) -> float:
        start = datasets.initial_phases(len(knm), seed=seed)
        result = simulate(start, omega, knm, modulation=strength | weights, **run)
        return float(layer_coherence(result.theta, layer).mean())

    before = [mean_coherence(seed) for seed in range(8)]
    mean = {name: np.zeros_like(w) for name, w in weights.items()}
    square = {name: np.zeros_like(w) for name, w in weights.items()}
    for step in range(1, options.iterations + 1):
        start = datasets.initial_phases(len(knm), seed=step % 4)
        modulation = strength | weights
        result = simulate(start, omega, knm, modulation=modulation, **run)
        _, gradient = coherence(result.theta, layer)
        found = simulate_vjp(start, omega, knm, gradient, modulation=modulation, **run)
        for name in NAMES:
            slope = getattr(found, name)
            mean[name] += 0.1 * (slope - mean[name])
            square[name] += 0.01 * (slope**2 - square[name])
            unbiased = np.sqrt(square[name] / (1.0 - 0.99**step)) + 1e-12
            weights[name] = weights[name] + RATE * mean[name] / (1.0 - 0.9**step) / unbiased
    after = [mean_coherence(seed) for seed in range(8)]
    for title, seeds in (("learned from", slice(0, 4)), ("not seen", slice(4, 8))):
        print(f"phases {title}: coherence {np.mean(before[seeds]):.3f} -> {np.mean(after[seeds]):.3f}")


if __name__ == "__main__":
    main()
