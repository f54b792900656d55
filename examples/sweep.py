"""A sweep of the coupling strength in one call: 100 members on a lattice of 240 oscillators."""

from __future__ import annotations

import numpy as np

from spo_fast import order_parameter, simulate

ROWS, COLUMNS, MEMBERS = 20, 12, 100


def lattice() -> np.ndarray:
    """Torus of 20 x 12 oscillators, each coupled to its four neighbours with strength 1."""
    n = ROWS * COLUMNS
    place = np.arange(n).reshape(ROWS, COLUMNS)
    knm = np.zeros((n, n))
    for shift, axis in ((1, 0), (-1, 0), (1, 1), (-1, 1)):
        knm[place.ravel(), np.roll(place, shift, axis).ravel()] = 1.0
    return knm


def main(n_steps: int = 2000) -> None:
    """Print R at the end against the coupling."""
    rng = np.random.default_rng(0)
    strengths = np.linspace(0.0, 3.0, MEMBERS)
    theta = np.tile(rng.uniform(0.0, 2.0 * np.pi, ROWS * COLUMNS), (MEMBERS, 1))
    omega = rng.normal(0.0, 0.3, ROWS * COLUMNS)
    couplings = strengths[:, None, None] * lattice()
    # Without observations and stored states, memory does not depend on the number of steps.
    run = simulate(theta, omega, couplings, dt=0.05, n_steps=n_steps, observe=())
    orders, _ = order_parameter(run.final)
    for strength, order, status in list(zip(strengths, orders, run.status, strict=True))[::11]:
        print(f"K {strength:.2f}  R {order:.3f}  {'ok' if status == 0 else f'status {status}'}")


if __name__ == "__main__":
    main()
