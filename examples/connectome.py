"""Synchrony of a human connectome with and without modulation (needs the extra `networks`)."""

from __future__ import annotations

from spo_fast import datasets, simulate


def main(n_steps: int = 4000) -> None:
    """Print the mean order parameter against the coupling strength."""
    knm = datasets.connectome()
    theta = datasets.initial_phases(len(knm), seed=1)
    omega = datasets.natural_frequencies(len(knm), spread=0.3)
    print("strength   R with K   R with K'")
    for strength in (0.25, 0.5, 1.0, 2.0):
        means = [
            simulate(theta, omega, strength * knm, dt=0.05, n_steps=n_steps, modulation=modulation)
            .R[n_steps // 2 :]
            .mean()
            for modulation in (None, {"lambda_": 1.0})
        ]
        print(f"{strength:8.2f} {means[0]:10.3f} {means[1]:11.3f}")


if __name__ == "__main__":
    main()
