"""Run the large cases and print a table of time and peak memory, each case in a process of its own.

python tools/field.py            all of them: some five minutes on one core
python tools/field.py --scale 50 a fiftieth of the steps, to see that everything runs
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from spo_fast import attention, bench, datasets, order_parameter, simulate

Row = tuple[str, str, str]


def peak_memory() -> float:
    """Largest memory of this process so far, MB."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 1024 if sys.platform != "darwin" else kilobytes / 1024**2


def timed(*arguments: Any, **options: Any) -> tuple[float, Any]:
    """Seconds and result of ``simulate``, without what a first call costs."""
    simulate(*arguments, **{**options, "n_steps": 1, "record_every": None})
    start = perf_counter()
    result = simulate(*arguments, **options)
    return perf_counter() - start, result


def lattice(length: int, width: int = 10) -> Any:
    """Four-neighbour lattice, K = 1."""
    from scipy.sparse import csr_array, diags_array, eye_array, kron

    def path(n: int) -> Any:
        return diags_array([np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1], shape=(n, n))

    return csr_array(kron(path(length), eye_array(width)) + kron(eye_array(length), path(width)))


def ring(n: int, degree: int = 10) -> Any:
    """Ring in which each oscillator is coupled to its nearest ones."""
    from scipy.sparse import csr_array

    offsets = [shift for shift in range(-(degree // 2), degree // 2 + 1) if shift]
    rows = np.repeat(np.arange(n), degree)
    columns = (rows + np.tile(offsets, n)) % n
    return csr_array((np.full(n * degree, 1.0 / degree), (rows, columns)), shape=(n, n))


def drawn(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Phases, and frequencies of N(1, 0.1)."""
    rng = np.random.default_rng(0)
    return rng.uniform(0.0, 2.0 * np.pi, n), rng.normal(1.0, 0.1, n)


def case_lattice(scale: int, length: int = 1000) -> Row:
    """10,000 oscillators, 10,000 RK4 steps, R alone."""
    knm, steps = lattice(length), max(1, 10_000 // scale)
    seconds, _ = timed(*drawn(knm.shape[0]), knm, dt=0.01, n_steps=steps)
    what = f"lattice {length} x 10 ({knm.nnz} entries), {steps} RK4 steps"
    return (
        what,
        f"{seconds:.1f} s, {1e6 * seconds / steps:.0f} µs a step",
        "3 min; twice as long, twice the time",
    )


def case_long_lattice(scale: int) -> Row:
    """Twice the length, a fifth of the steps."""
    return case_lattice(5 * scale, 2000)


def case_modulated_lattice(scale: int) -> Row:
    """The lattice with modulation at every step."""
    knm, steps = lattice(1000), max(1, 500 // scale)
    seconds, _ = timed(*drawn(10_000), knm, dt=0.01, n_steps=steps, modulation={})
    return f"lattice 1000 x 10, modulated, {steps} RK4 steps", f"{1e3 * seconds / steps:.2f} ms a step", ""


def case_ring(scale: int) -> Row:
    """Ring of degree 10, un-modulated Euler steps."""
    steps = max(1, 1000 // scale)
    knm, state = ring(100_000), drawn(100_000)
    seconds = min(timed(*state, knm, dt=0.01, n_steps=steps, method="euler", observe=())[0] for _ in range(3))
    return (
        f"ring N = 100,000 of degree 10, {steps} Euler steps",
        f"{1e3 * seconds / steps:.2f} ms a step",
        "3.5 ms",
    )


def _replicas(scale: int, modulation: dict[str, Any] | None, limit: str) -> Row:
    knm, omega = datasets.scpn16(), datasets.natural_frequencies(16)
    theta = np.array([datasets.initial_phases(16, seed=seed) for seed in range(64)])
    steps = max(1, 20_000 // scale)
    options = {"dt": 0.01, "n_steps": steps, "method": "euler", "observe": (), "modulation": modulation}
    pairs = [[timed(start, omega, knm, **options)[0] for start in (theta[0], theta)] for _ in range(5)]
    one, all_of_them = (min(times) for times in zip(*pairs, strict=True))
    what = (
        f"64 replicas of the SCPN network over one, {steps} Euler steps{', modulated' if modulation else ''}"
    )
    return what, f"{all_of_them / one:.1f} times ({1e6 * one / steps:.3f} µs a step of one)", limit


def case_replicas(scale: int) -> Row:
    """An ensemble against one of its members."""
    return _replicas(scale, None, "40 times")


def case_modulated_replicas(scale: int) -> Row:
    """The same with modulation."""
    return _replicas(max(1, 10 * scale), {"lambda_": 0.5}, "")


def case_long_run(scale: int) -> Row:
    """N = 1000, every 1000th state and R at every step; the state is wrapped, so late steps are as exact."""
    knm, theta, omega = bench.problem(1000)
    steps = max(1000, 20_000 // scale)
    options = {"dt": 0.01, "n_steps": steps, "method": "euler", "record_every": 1000}
    seconds, run = timed(theta, omega, knm, **options)
    stored = (run.theta.nbytes + run.R.nbytes + run.t_observe.nbytes) / 2**20
    return (
        f"N = 1000, {steps} Euler steps, every 1000th stored",
        f"{seconds:.1f} s, {stored:.1f} MB recorded",
        "",
    )


def case_order_parameter(scale: int) -> Row:
    """A trajectory of 100,000 x 200 in one pass."""
    theta = np.random.default_rng(0).uniform(0.0, 2.0 * np.pi, (max(1, 100_000 // scale), 200))
    before, start = peak_memory(), perf_counter()
    order_parameter(theta)
    seconds = perf_counter() - start
    more = peak_memory() - before
    return f"order parameter of {len(theta)} x 200", f"{1e3 * seconds:.0f} ms, {more:.0f} MB more", ""


def case_attention(scale: int) -> Row:
    """16,384 tokens, 4 heads of 16 phases, 4 steps, forward and reverse."""
    tokens = max(1, 16_384 // scale)
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(1, tokens, 4, 16)) for _ in range(3)]
    weight, kappa = np.full((4, 16), 0.25), np.full(4, 0.5)
    start = perf_counter()
    out, state = attention.phase_attention(
        *parts, weight, 0.1 * weight, kappa, 10_000.0 ** (-np.arange(16) / 16), steps=4, dt=1.0, keep="all"
    )
    attention.phase_attention_vjp(state, out)
    return f"attention among {tokens} tokens, forward and reverse", f"{perf_counter() - start:.1f} s", "1 GB"


CASES: dict[str, Callable[[int], Row]] = {
    name.removeprefix("case_"): function
    for name, function in list(globals().items())
    if name.startswith("case_")
}


def run_apart(name: str, scale: int) -> tuple[str, ...]:
    """Run a case in a fresh process, whose peak memory is its own."""
    command = [sys.executable, __file__, "--scale", str(scale), "--case", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return tuple(json.loads(done.stdout))


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(description="Run the large cases.")
    parser.add_argument("--scale", type=int, default=1, help="divides the numbers of steps")
    parser.add_argument("--case", choices=CASES, help="run this one here and print JSON")
    parser.add_argument("--only", nargs="*", choices=CASES, help="run these")
    options = parser.parse_args()
    if options.case:
        print(json.dumps([*CASES[options.case](options.scale), f"{peak_memory():.0f} MB"]))
        return
    about = bench.machine()
    print(f"{about['processor']}, Python {about['python']}, NumPy {about['numpy']}\n")
    print("| case | measured | limit | peak memory |\n| --- | --- | --- | ---: |")
    for name in options.only or CASES:
        print(f"| {' | '.join(run_apart(name, options.scale))} |", flush=True)


if __name__ == "__main__":
    main()
