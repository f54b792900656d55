"""From which size on two threads are faster than one, job by job: see csrc/isa/shares.h.

Run ``python tools/measure_workers.py [WORKERS]``. Both kinds take turns in short samples, the least time of
each counts, and jobs of all sizes are handed over. Times in microseconds; a ratio above 1 is a gain.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse

import spo_fast
from spo_fast import _core

ROUNDS, SAMPLE_SECONDS = 15, 0.01
SIZES = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
SPARSE_SIZES = (256, 1024, 4096, 16384)
Job = Callable[[int], Callable[[], object]]  # from workers to a call


def coupling(n: int) -> np.ndarray:
    """Return a symmetric matrix with all edges."""
    upper = np.triu(np.random.default_rng(0).uniform(0.1, 1.0, (n, n)) / n, 1)
    return upper + upper.T


def run(n: int, knm: object, walk: str, **keywords: object) -> Job:
    """Steps of a run over the coupling, by one of its walks."""
    theta, steps = np.random.default_rng(1).uniform(0, 6, n), max(4, min(200, 20000 // n))

    def with_workers(workers: int) -> Callable[[], object]:
        def call() -> object:
            _core.prefer_walk(walk)
            given = {"dt": 0.01, "n_steps": steps, "method": "euler", "observe": (), "workers": workers}
            return spo_fast.simulate(theta, 1.0, knm, backend="cython", **(given | keywords))

        call.count = steps
        return call

    return with_workers


def dense(n: int) -> dict[str, Job]:
    """Jobs over a dense coupling."""
    knm, theta, out = coupling(n), np.random.default_rng(1).uniform(0, 6, n), np.empty((n, n))

    def modulator(**keywords: object) -> Job:
        def with_workers(workers: int) -> Callable[[], object]:
            plan = spo_fast.Modulator(knm, workers=workers, backend="cython", **keywords)
            return lambda: plan(theta, out)

        return with_workers

    def factors(algorithm: str) -> Job:
        def with_workers(workers: int) -> Callable[[], object]:
            plan = spo_fast.Modulator(knm, workers=workers, backend="cython", algorithm=algorithm)
            return lambda: plan.factors(theta)

        return with_workers

    lagged = {"alpha": np.random.default_rng(2).uniform(-1, 1, (n, n))}
    return {
        "attention, direct": factors("direct"),
        "attention, moments": factors("moments"),
        "K', moments": modulator(algorithm="moments"),
        "modulate": lambda workers: lambda: spo_fast.modulate(knm, theta, out=out, workers=workers),
        "step, whole": run(n, knm, "whole"),
        "step, kept": run(n, knm, "kept"),
        "step, a lag a pair": run(n, knm, "whole", **lagged),
        "modulated step, fused": run(n, knm, "fused", modulation={}),
        "modulated step, fused, lags": run(n, knm, "fused", modulation={}, **lagged),
        "modulated rk4 step": run(n, knm, "auto", modulation={}, method="rk4"),
    }


def sparse(n: int) -> dict[str, Job]:
    """Jobs over a sparse coupling with ten edges an oscillator."""
    rng = np.random.default_rng(0)
    rows, columns = np.repeat(np.arange(n), 5), rng.integers(0, n, 5 * n)
    keep = rows != columns
    half = scipy.sparse.csr_array((rng.random(keep.sum()), (rows[keep], columns[keep])), shape=(n, n))
    knm = scipy.sparse.csr_array(half + half.T)
    return {
        "sparse step": run(n, knm, "auto"),
        "sparse modulated step": run(n, knm, "auto", modulation={}),
    }


def ensemble(n: int) -> dict[str, Job]:
    """Jobs over 64 members."""
    theta = np.random.default_rng(1).uniform(0, 6, (64, n))

    def with_workers(workers: int) -> Callable[[], object]:
        given = {"dt": 0.01, "n_steps": 50, "observe": (), "workers": workers, "backend": "cython"}
        return lambda: spo_fast.simulate(theta, 1.0, coupling(n), **given)

    return {"ensemble of 64, 50 steps": with_workers}


def least(calls: list[Callable[[], object]]) -> list[float]:
    """Seconds of each call, the least over rounds in which they take turns."""
    found = [1e9] * len(calls)
    for call in calls:
        call()
    for _ in range(ROUNDS):
        for k, call in enumerate(calls):
            end = time.perf_counter() + SAMPLE_SECONDS
            while True:
                start = time.perf_counter()
                call()
                now = time.perf_counter()
                found[k] = min(found[k], (now - start) / getattr(call, "count", 1))
                if now > end:
                    break
    return found


def main() -> int:
    """Measure and print."""
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    _core.split("all")
    for sizes, jobs_of in ((SIZES, dense), (SPARSE_SIZES, sparse), ((8, 16, 64), ensemble)):
        for n in sizes:
            for name, job in jobs_of(n).items():
                one, more = least([job(1), job(workers)])
                print(f"{n:6d} {name:30s} {1e6 * one:10.2f} {1e6 * more:10.2f} {one / more:6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
