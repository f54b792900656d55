"""Time ``spo_fast.modulate`` against the SCPN phase orchestrator, which lives in an environment of its own.

    python tools/compare_orchestrator.py --orchestrator-python /path/to/its/bin/python

Both sides run in subprocesses that alternate, the order turned round every other round; each prints seconds a
call and saves its K', and a difference beyond 1e-13 ends the program with status 1. Only public names of the
other package are called: ``attnres_modulate`` and ``spo_kernel.attnres_modulate_rust``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SIZES = (16, 64, 128, 256, 512)
ROUNDS = 5
SAMPLE_SECONDS = 0.1
SAMPLES = 5  # within one subprocess; the fastest counts
PARITY = 1e-13
BACKENDS = ("rust", "go", "julia", "mojo", "numba")  # timed besides the C core, those that are available
THEIRS = ("attnres_modulate", "attnres_modulate_rust")


def problem(n):
    """Seeded symmetric coupling (n, n) and phases (n,), the same on both sides."""
    rng = np.random.default_rng(n)
    upper = np.triu(rng.uniform(0.1, 1.0, (n, n)) / n, 1)
    return upper + upper.T, rng.uniform(0.0, 2.0 * np.pi, n)


def our_calls(knm, theta):
    """Callables of this package by name."""
    from spo_fast import Modulator, backends, modulate

    out, other, modulator = np.empty_like(knm), np.empty_like(knm), Modulator(knm)
    state = backends()
    return {
        "modulate": lambda: modulate(knm, theta),
        "modulate(out=)": lambda: modulate(knm, theta, out=out),
        "Modulator(out=)": lambda: modulator(theta, out=other),
    } | {
        f"modulate(out=), {name}": partial(modulate, knm, theta, out=np.empty_like(knm), backend=name)
        for name in BACKENDS
        if state[name] == "available"
    }


def their_calls(knm, theta):
    """Callables of the other package by name."""
    import spo_kernel
    from scpn_phase_orchestrator.coupling.attention_residuals import attnres_modulate, default_projections

    n, flat = len(theta), knm.ravel()
    weights = [array.ravel() for array in default_projections(4, 0)]
    return {
        "attnres_modulate": lambda: attnres_modulate(knm, theta),
        "attnres_modulate_rust": lambda: spo_kernel.attnres_modulate_rust(
            flat, theta, *weights, n, 4, -1, 1.0, 0.5
        ),
    }


def seconds_a_call(call):
    """Fastest of several samples; the first call may compile and is not counted."""
    call()
    start = time.perf_counter()
    call()
    repeats = max(1, int(SAMPLE_SECONDS / (time.perf_counter() - start)))
    samples = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        samples.append((time.perf_counter() - start) / repeats)
    return min(samples)


def work(side, sizes, folder):
    """Time one side at every size: print the seconds as JSON, save K' of each call."""
    calls = {"ours": our_calls, "theirs": their_calls}[side]
    seconds = {}
    for n in sizes:
        for name, call in calls(*problem(n)).items():
            np.save(Path(folder, f"{name} {n}.npy"), np.reshape(call(), (n, n)))
            seconds[f"{name} {n}"] = seconds_a_call(call)
    print(json.dumps(seconds))


def run_side(python, side, sizes, folder):
    """Run ``work`` in a subprocess of the given interpreter."""
    settings = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    if side == "ours":
        settings["PYTHONPATH"] = str(ROOT)
    command = [python, __file__, "--worker", side, "--sizes", ",".join(map(str, sizes)), "--folder", folder]
    output = subprocess.run(command, env=settings, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def collect(python, sizes, rounds):
    """Alternate both sides; return the seconds of every round by name and size, and the deviation by size."""
    sides = [(sys.executable, "ours"), (python, "theirs")]
    samples = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for interpreter, side in sides:
                for key, value in run_side(interpreter, side, sizes, folder).items():
                    samples.setdefault(key, []).append(value)
            sides.reverse()
        return samples, {n: deviation(folder, n) for n in sizes}


def deviation(folder, n):
    """Largest difference of K' between any call and ``attnres_modulate``, relative to the largest entry."""
    expected = np.load(Path(folder, f"attnres_modulate {n}.npy"))
    results = [np.load(path) for path in Path(folder).glob(f"* {n}.npy")]
    return max(np.abs(result - expected).max() for result in results) / np.abs(expected).max()


def names_of(samples, n):
    """Names of the calls that were timed at one size, the other package's last."""
    names = [key.removesuffix(f" {n}") for key in samples if key.endswith(f" {n}")]
    return [name for name in names if name not in THEIRS] + list(THEIRS)


def show(samples, deviations, rounds):
    """Print the table: microseconds, and each time over that of ``modulate(out=)``."""
    print(f"{'N':>4} {'call':22} {'min, µs':>10} {'median, µs':>11} {'ratio of min':>13} {'of median':>10}")
    for n, error in deviations.items():
        base = samples[f"modulate(out=) {n}"]
        for name in names_of(samples, n):
            times = samples[f"{name} {n}"]
            low, middle = min(times), median(times)
            ratios = f"{low / min(base):13.2f} {middle / median(base):10.2f}"
            print(f"{n:4} {name:22} {low * 1e6:10.2f} {middle * 1e6:11.2f} {ratios}")
        print(f"{'':4} largest relative difference of K': {error:.1e}")
    print(f"{rounds} interleaved rounds of subprocesses; ratio: time over that of modulate(out=)")


def main():
    """Compare, or be one side of the comparison."""
    parser = argparse.ArgumentParser(description="Time modulate against the SCPN phase orchestrator.")
    parser.add_argument("--orchestrator-python", metavar="PATH", help="interpreter that has the orchestrator")
    parser.add_argument(
        "--sizes", default=",".join(map(str, SIZES)), help="numbers of oscillators (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="interleaved rounds (%(default)s)")
    parser.add_argument("--worker", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [int(n) for n in options.sizes.split(",")]
    if options.worker:
        work(options.worker, sizes, options.folder)
        return
    if not options.orchestrator_python:
        parser.error("--orchestrator-python is needed")
    samples, deviations = collect(options.orchestrator_python, sizes, options.rounds)
    show(samples, deviations, options.rounds)
    if max(deviations.values()) > PARITY:
        sys.exit(f"the two packages disagree by more than {PARITY}")


if __name__ == "__main__":
    main()
