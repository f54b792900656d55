"""A rule of learning of one's own around `modulate`: couplings grow between oscillators in phase.

    dK_ij/dt = rate (cos(theta_j - theta_i) - K_ij)

One loop in Python and the same loop compiled by Numba, where `modulate` is called under its own name and the
step is a kernel of ``spo_fast.kernels``.
"""

from __future__ import annotations

import time

import numpy as np
from numba import njit

from spo_fast import Engine, kernels, modulate

RATE, DT = 0.2, 0.01


def learn_in_python(theta: np.ndarray, omega: np.ndarray, knm: np.ndarray, n_steps: int) -> tuple:
    """Return phases and couplings after some steps."""
    knm, engine = knm.copy(), Engine(theta.size, DT, method="rk4")
    for _ in range(n_steps):
        theta = engine.step(theta, omega, modulate(knm, theta) / theta.size)
        knm += DT * RATE * (np.cos(theta[None, :] - theta[:, None]) - knm)
        np.fill_diagonal(knm, 0.0)
    return theta, knm


@njit
def adapt(knm: np.ndarray, theta: np.ndarray) -> None:
    """Let each pair learn; both its entries get the same bits, so that K stays symmetric."""
    for i in range(theta.size):
        for j in range(i):
            knm[i, j] += DT * RATE * (np.cos(theta[j] - theta[i]) - knm[i, j])
            knm[j, i] = knm[i, j]


@njit
def learn(theta: np.ndarray, omega: np.ndarray, knm: np.ndarray, n_steps: int) -> tuple:
    """Return what `learn_in_python` does; nothing is allocated from step to step but by `modulate`."""
    theta, knm, n = theta.copy(), knm.copy(), theta.size
    modulated, work, no_lag = np.empty((n, n)), np.empty((kernels.WORK_ROWS, n)), np.empty((0, 0))
    for _ in range(n_steps):
        modulate(knm, theta, out=modulated)
        modulated /= n
        status = kernels.rk4_step(theta, omega, modulated, no_lag, 0.0, 0.0, 0.0, DT, work, theta)
        if status != kernels.OK:
            raise FloatingPointError("the phases are not finite any more")
        adapt(knm, theta)
    return theta, knm


def main(n: int = 16, n_steps: int = 2000) -> None:
    """Print how far both results are apart, and how long both loops took."""
    rng = np.random.default_rng(0)
    theta, omega = rng.uniform(0.0, 2.0 * np.pi, n), rng.normal(0.0, 0.1, n)
    knm = np.triu(rng.uniform(0.0, 1.0, (n, n)), 1)
    knm += knm.T
    learn(theta, omega, knm, 1)  # compiles
    results, seconds = [], []
    for loop in (learn_in_python, learn):
        start = time.perf_counter()
        results.append(loop(theta, omega, knm, n_steps))
        seconds.append(time.perf_counter() - start)
    (phases, couplings), (own_phases, own_couplings) = results
    gap = np.abs(np.angle(np.exp(1j * (own_phases - phases)))).max()
    print(f"{n} oscillators, {n_steps} steps; mean coupling {knm.mean():.3f} -> {couplings.mean():.3f}")
    print(f"largest difference: phases {gap:.1e}, couplings {np.abs(own_couplings - couplings).max():.1e}")
    print(f"Python {seconds[0]:.3f} s, compiled {seconds[1]:.3f} s, ratio {seconds[0] / seconds[1]:.1f}")


if __name__ == "__main__":
    main()
