"""A long four-neighbour lattice as a sparse network: time, and memory that goes by the edges.

python examples/lattice.py          a lattice of 100 x 10, which is compared with its dense twin
python examples/lattice.py --full   1000 x 10, 10,000 RK4 steps, R alone
"""

from __future__ import annotations

import argparse
import resource
import sys
from time import perf_counter

import numpy as np
from scipy.sparse import csr_array, diags_array, eye_array, kron

from spo_fast import simulate

DT = 0.01


def path(n: int) -> csr_array:
    """Chain of n oscillators."""
    return csr_array(diags_array([np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1], shape=(n, n)))


def lattice(length: int, width: int) -> csr_array:
    """Grid of length x width oscillators, each coupled to its neighbours with strength 1."""
    return csr_array(kron(path(length), eye_array(width)) + kron(eye_array(length), path(width)))


def peak_memory() -> float:
    """Largest memory of this process so far, MB."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 1024 if sys.platform != "darwin" else kilobytes / 1024**2


def main(arguments: list[str] | None = None) -> None:
    """Run the lattice and print what it took."""
    parser = argparse.ArgumentParser(description="Simulate a four-neighbour lattice.")
    parser.add_argument("--full", action="store_true", help="1000 x 10 and 10,000 steps")
    parser.add_argument("--length", type=int, help="100; 1000 with --full")
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--steps", type=int, help="500; 10,000 with --full")
    parser.add_argument("--backend")
    options = parser.parse_args(arguments)
    length, steps = (1000, 10_000) if options.full else (100, 500)
    length, steps = options.length or length, options.steps or steps

    knm = lattice(length, options.width)
    n = knm.shape[0]
    rng = np.random.default_rng(0)
    theta, omega = rng.uniform(0.0, 2.0 * np.pi, n), rng.normal(1.0, 0.1, n)
    simulate(theta, omega, knm, dt=DT, n_steps=1, backend=options.backend)  # compile, where that is needed
    before, start = peak_memory(), perf_counter()
    run = simulate(theta, omega, knm, dt=DT, n_steps=steps, backend=options.backend)
    seconds = perf_counter() - start
    print(
        f"{length} x {options.width} lattice: {n} oscillators, {knm.nnz} entries of K, backend {run.backend}"
    )
    print(f"{steps} RK4 steps in {seconds:.1f} s, {1e6 * seconds / steps:.1f} µs each")
    print(f"memory: {peak_memory():.0f} MB at most, {before:.0f} MB of it before the run")
    print(f"R: {run.R[0]:.6f} at first, {run.R[-1]:.6f} at last")
    if n <= 2000:
        dense = simulate(theta, omega, knm.toarray(), dt=DT, n_steps=steps, backend=options.backend)
        apart = np.remainder(run.final - dense.final + np.pi, 2.0 * np.pi) - np.pi
        print(f"largest difference from the dense run: {np.abs(apart).max():.1e} rad")


if __name__ == "__main__":
    main()
