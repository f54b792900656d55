"""Time the way back against the way there: gradients of one modulation and of runs.

Run ``python tools/derivative_speed.py [BACKEND]``; one thread, everything of a size in turns in one process,
least times. Against ``modulate`` pair by pair, and against ``simulate`` with rk4, gone back with the tape
whole, in segments, and with modulation at every step.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from spo_fast import Modulator, bench, modulate_vjp, simulate, simulate_vjp

SIZES = {16: 400, 64: 200, 256: 40, 1024: 8}  # with the steps of a run
ROUNDS = 9


def ratios(n: int, backend: str) -> list[float]:
    """Return how many times as long the ways back take: of a modulation, and of the three runs."""
    knm, theta, omega = bench.problem(n)
    grad, out = np.random.default_rng(1).standard_normal((n, n)), np.empty_like(knm)
    direct = Modulator(knm, algorithm="direct", backend=backend)
    steps = SIZES[n]
    plain: dict[str, Any] = {"dt": bench.DT, "n_steps": steps, "backend": backend}
    modulated = plain | {"n_steps": max(4, steps // 10), "modulation": {}}
    segments = math.isqrt(steps - 1) + 1
    calls = [
        lambda: direct(theta, out),
        lambda: modulate_vjp(knm, theta, grad, backend=backend),
        lambda: simulate(theta, omega, knm, observe=(), **plain),
        lambda: simulate_vjp(theta, omega, knm, grad[0], **plain),
        lambda: simulate_vjp(theta, omega, knm, grad[0], checkpoint_every=segments, **plain),
        lambda: simulate(theta, omega, knm, observe=(), **modulated),
        lambda: simulate_vjp(theta, omega, knm, grad[0], **modulated),
    ]
    timings = bench.interleaved([bench.repeated(call) for call in calls], ROUNDS, bench.SAMPLE_SECONDS)
    once, back, run, whole, parts, run_modulated, back_modulated = (timing.minimum for timing in timings)
    return [back / once, whole / run, parts / run, back_modulated / run_modulated]


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "cython"
    print(f"{chosen}: {'N':>6} {'modulate_vjp':>14} {'tape whole':>12} {'segments':>10} {'modulated':>11}")
    for size in SIZES:
        one, two, three, four = ratios(size, chosen)
        print(f"{chosen}: {size:6} {one:14.1f} {two:12.1f} {three:10.1f} {four:11.1f}")
