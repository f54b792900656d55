"""A disturbed transmission grid returns to its power flow (needs the extra `networks`)."""

from __future__ import annotations

import sys

import numpy as np

from spo_fast import datasets, order_parameter, simulate


def main(name: str = "case118", seconds: float = 20.0) -> None:
    """Print how far the phases are from rest.

    The grid is stiff: the step goes by the largest row sum of K.
    """
    knm, power, base = datasets.power_grid(name)
    dt = 1.0 / knm.sum(axis=1).max()
    steps = int(seconds / dt)
    rng = np.random.default_rng(0)
    print(f"{name}: {knm.shape[0]} buses, {knm.nnz // 2} pairs, {base:g} MVA, {steps} RK4 steps of {dt:.2e}")
    run = simulate(rng.normal(0.0, 0.5, len(power)), power, knm, dt=dt, n_steps=steps)
    k, theta = knm.tocoo(), run.final
    flow = k.data * np.sin(theta[k.row] - theta[k.col])
    imbalance = power - np.bincount(k.row, flow, len(power))
    print(f"R {run.R[0]:.4f} -> {order_parameter(theta)[0]:.4f}")
    print(f"largest imbalance of a bus {base * np.abs(imbalance).max():.2e} MW")
    print(f"largest flow between two buses {base * flow.max():.0f} MW")


if __name__ == "__main__":
    main(*sys.argv[1:2])
