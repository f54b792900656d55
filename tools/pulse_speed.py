"""Time context-pulse attention against the loops it was published with, and the leaky scan against a copy.

Run ``python tools/pulse_speed.py``; one thread, everything in turns in one process, minimum and median. It
takes some two minutes, most of them in the loops.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
import torch

from spo_fast.backends.pulse import load
from spo_fast.context_pulse import VARIANTS, extra_shapes
from spo_fast.torch import pulse_attention

ROUNDS = 15
BATCH, TOKENS = 32, 256  # of gap copy
SHAPES = {"chunked": (4, 16), "alpert": (4, 32)}  # heads and their width; the others have one of 64


def times(calls: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, tuple[float, float]]:
    """Minimum and median seconds of each call, all of them in turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds + 1):
        for name in list(calls)[:: 1 if round_ % 2 else -1]:
            start = perf_counter()
            calls[name]()
            taken[name].append(perf_counter() - start)
    return {name: (min(values[1:]), median(values[1:])) for name, values in taken.items()}


def show(title: str, found: dict[str, tuple[float, float]], against: str) -> None:
    """Print one line for each call, with ratios to one of them."""
    print(title)
    for name, (least, middle) in found.items():
        ratios = "{:.2f} ({:.2f})".format(
            *(a / b for a, b in zip(found[against], (least, middle), strict=True))
        )
        print(f"  {name:10} {1e3 * least:9.2f} ms (median {1e3 * middle:.2f})   {against} / this: {ratios}")


def loop(x: torch.Tensor, decay: float) -> torch.Tensor:
    """The leaky scan as published: a step for each token, each of which looks into the whole input."""
    c, rows = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        c = decay * c + (1 - decay) * x[:, t]
        rows.append(c)
    return torch.stack(rows, 1)


def scan() -> None:
    """Time the leaky scan: at 4096 tokens, and with its reverse at 1024, where the loop is quadratic."""
    parts, _ = load("cython")
    rng = np.random.default_rng(0)
    for dtype in (np.float64, np.float32):
        x = rng.normal(size=(32, 4096, 64)).astype(dtype)
        out = np.zeros_like(x)
        calls = {
            "copy": lambda x=x, out=out: np.copyto(out, x),
            "scan": lambda x=x, out=out: parts.leaky_scan(x, 0.9, out, workers=1),
            "loop": lambda x=x: loop(torch.from_numpy(x), 0.9),
        }
        show(f"leaky scan, 32 x 4096 x 64, {dtype.__name__}", times(calls, 7), "copy")
    x = torch.randn(32, 1024, 64, dtype=torch.float64, requires_grad=True)
    grad = torch.randn_like(x)

    def kernel() -> None:
        entering, out = x.detach().numpy(), np.empty(x.shape)
        parts.leaky_scan(entering, 0.9, out, workers=1)
        parts.leaky_scan_vjp(entering, 0.9, None, grad.numpy(), workers=1)

    calls = {"scan": kernel, "loop": lambda: loop(x, 0.9).backward(grad)}
    show("leaky scan, forward and backward, 32 x 1024 x 64, float64", times(calls, 2), "loop")


def attention() -> None:
    """Time what stands between the projections, forward and backward, float32."""
    torch.manual_seed(0)
    for variant in VARIANTS:
        heads, width = SHAPES.get(variant, (1, 64))
        shape = (BATCH, TOKENS, heads, width)
        q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        extras = extra_shapes(variant, shape)
        tensors = {name: (0.1 * torch.randn(size)).requires_grad_() for name, size in extras.items()}
        grad = torch.randn(shape)

        def run(implementation: str, q=q, k=k, v=v, tensors=tensors, grad=grad, variant=variant) -> None:
            pulse_attention(q, k, v, variant=variant, implementation=implementation, **tensors).backward(grad)

        calls = {name: lambda name=name, run=run: run(name) for name in ("kernel", "eager")}
        show(f"{variant}, {BATCH} x {TOKENS} x {heads} x {width}, float32", times(calls), "eager")


if __name__ == "__main__":
    torch.set_num_threads(1)
    scan()
    attention()
