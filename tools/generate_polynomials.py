"""Compute the minimax polynomials of csrc/isa/polynomials.h at high precision (mpmath) and write that header.

Run ``python tools/generate_polynomials.py`` to rewrite it, ``--check`` to compare. Each polynomial is found
by the Remez exchange on 2^x, e^x, sin and cos with the leading terms fixed, so that exp2(0) = exp(0) =
cos 0 = 1 and sin 0 = 0 exactly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import mpmath as mp

mp.mp.dps = 60
HEADER = Path(__file__).resolve().parent.parent / "csrc" / "isa" / "polynomials.h"


def remez(f: Callable, weight: Callable, low: mp.mpf, high: mp.mpf, degree: int) -> tuple[list, mp.mpf]:
    """Coefficients of the polynomial of least ``max |weight (p - f)|`` on [low, high], and its error."""
    count = degree + 2
    nodes = [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * k / (count - 1)) for k in range(count)]
    grid = [low + (high - low) * mp.mpf(k) / 4000 for k in range(4001)]
    values = [f(x) for x in grid]
    weights = [weight(x) for x in grid]
    for _ in range(8):
        system = mp.matrix(count, count)
        right = mp.matrix(count, 1)
        for row, x in enumerate(nodes):
            for power in range(degree + 1):
                system[row, power] = x**power
            system[row, degree + 1] = (-1) ** row / weight(x)
            right[row] = f(x)
        solution = mp.lu_solve(system, right)
        coefficients = [solution[k] for k in range(degree + 1)]
        error = [
            w * (mp.polyval(coefficients[::-1], x) - y) for x, y, w in zip(grid, values, weights, strict=True)
        ]
        nodes = alternating_extrema(grid, error, count)
    return coefficients, max(abs(e) for e in error)


def alternating_extrema(grid: list, error: list, count: int) -> list:
    """The largest deviation of each run of equal sign, ``count`` of them."""
    runs: list[int] = []
    for k, e in enumerate(error):
        if runs and mp.sign(e) == mp.sign(error[runs[-1]]):
            if abs(e) > abs(error[runs[-1]]):
                runs[-1] = k
        else:
            runs.append(k)
    while len(runs) > count:
        runs.pop(0 if abs(error[runs[0]]) < abs(error[runs[-1]]) else -1)
    if len(runs) != count:
        raise RuntimeError(f"Remez exchange found {len(runs)} extrema, expected {count}")
    return [grid[k] for k in runs]


def table(name: str, comment: str, coefficients: list) -> str:
    """A C array, lowest power first."""
    lines = "".join(f"    {float(c)!r},\n" for c in coefficients)
    return f"/* {comment} */\nstatic const double {name}[{len(coefficients)}] = {{\n{lines}}};\n"


def header() -> str:
    """The text of polynomials.h."""
    tiny = mp.mpf(10) ** -12
    half_ln2 = mp.log(2) / 2
    quarter = (mp.pi / 4) ** 2
    ln2 = mp.log(2)
    pieces = [
        "/* Made by tools/generate_polynomials.py: do not edit. Coefficients, lowest power first. */\n\n"
    ]

    def add(
        name: str, text: str, f: Callable, weight: Callable, low: mp.mpf, high: mp.mpf, degree: int
    ) -> None:
        coefficients, error = remez(f, weight, low, high, degree)
        pieces.append(table(name, f"{text}; relative error {mp.nstr(error, 2)}", coefficients))

    def slope(x: mp.mpf, rate: mp.mpf) -> mp.mpf:
        return rate if abs(x) < tiny else mp.expm1(rate * x) / x

    add(
        "SPO_EXP2",
        "(2^r - 1) / r on |r| <= 1/2",
        lambda x: slope(x, ln2),
        lambda x: abs(x) * mp.power(2, -x) + tiny,
        mp.mpf(-0.5),
        mp.mpf(0.5),
        10,
    )
    add(
        "SPO_EXP",
        "(e^r - 1) / r on |r| <= ln(2) / 2",
        lambda x: slope(x, mp.mpf(1)),
        lambda x: abs(x) * mp.exp(-x) + tiny,
        -half_ln2,
        half_ln2,
        10,
    )

    def sine(z: mp.mpf) -> mp.mpf:
        r = mp.sqrt(z)
        return mp.mpf(-1) / 6 + z / 120 if z < tiny else (mp.sin(r) - r) / (r * z)

    def cosine(z: mp.mpf) -> mp.mpf:
        return mp.mpf(1) / 24 - z / 720 if z < tiny else (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2

    add(
        "SPO_SIN",
        "(sin r - r) / r^3 in z = r^2, |r| <= pi / 4",
        sine,
        lambda z: z + tiny,
        mp.mpf(0),
        quarter,
        5,
    )
    add(
        "SPO_COS",
        "(cos r - 1 + r^2 / 2) / r^4 in z = r^2, |r| <= pi / 4",
        cosine,
        lambda z: z**2 + tiny,
        mp.mpf(0),
        quarter,
        5,
    )
    return "".join(pieces)


def main() -> int:
    """Write the header, or with ``--check`` say whether it is up to date."""
    text = header()
    if "--check" in sys.argv:
        return int(HEADER.read_text() != text)
    HEADER.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
