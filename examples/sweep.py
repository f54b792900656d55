"""A study of the onset of synchrony: mean and spread of R over seeds, in a store that survives being killed.

With Lorentzian frequencies of half width 1 synchrony sets in at K = 2, beyond which R = sqrt(1 - 2 / K) in a
network without end (Y. Kuramoto, 1975).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from spo_fast import simulate, sweep

N, STEPS, DT = 400, 1500, 0.05


def order(coupling: float, seed: int, n: int = N, n_steps: int = STEPS) -> float:
    """Mean order parameter over the last third of a run; equal seeds draw equal networks."""
    rng = np.random.default_rng(seed)
    theta = rng.uniform(0.0, 2.0 * np.pi, n)
    omega = np.tan(np.pi * (rng.permutation(n) + 0.5 - n / 2) / n)  # Lorentzian, evenly spread
    run = simulate(theta, omega, np.full((n, n), coupling / n), dt=DT, n_steps=n_steps)
    return run.R[2 * n_steps // 3 :].mean()


def main(arguments: Sequence[str] | None = None, n: int = N, n_steps: int = STEPS) -> None:
    """Print R against the coupling, beside the theory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="Zarr directory: a sweep that was killed goes on from there")
    parser.add_argument("--seeds", type=int, default=4, help="runs for each coupling; more add to a store")
    parser.add_argument("--workers", type=int, default=1, help="threads")
    options = parser.parse_args(arguments)

    def run(coupling: float, seed: int) -> dict[str, float]:
        return {"R": order(coupling, seed, n, n_steps)}

    grid = {"coupling": np.linspace(0.5, 5.0, 10)}
    result = sweep(run, grid, options.seeds, store=options.store, workers=options.workers)
    mean, spread = result["R"].mean("seed"), result["R"].std("seed")
    for coupling in grid["coupling"]:
        theory = np.sqrt(max(0.0, 1.0 - 2.0 / coupling))
        at = {"coupling": coupling}
        print(f"K {coupling:.1f}  R {mean.sel(at):.3f} +- {spread.sel(at):.3f}  theory {theory:.3f}")


if __name__ == "__main__":
    main()
