"""A drive that is on for a short while: runs chained at the times where it is switched."""

from __future__ import annotations

import numpy as np

from spo_fast import datasets, simulate

DT = 0.01


def main() -> None:
    """Print R before, at the end of, and after a pulse."""
    knm = 0.3 * datasets.scpn16()
    omega = datasets.natural_frequencies(16, mean=0.0)
    theta, t = datasets.initial_phases(16, seed=1), 0.0
    # (steps, strength): no step crosses a switch, so the pulse cannot be missed, however short it is.
    for n_steps, zeta in ((100, 0.0), (5, 20.0), (200, 0.0)):
        run = simulate(theta, omega, knm, dt=DT, n_steps=n_steps, zeta=zeta, psi=np.pi / 2)
        theta, t = run.final, t + run.t[-1]
        print(f"t {t:.2f}  drive {zeta:4.1f}  R {run.R[-1]:.4f}")


if __name__ == "__main__":
    main()
