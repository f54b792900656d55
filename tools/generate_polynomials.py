"""Compute the minimax polynomials of every language at high precision (mpmath) and write their files.

Run ``python tools/generate_polynomials.py`` to rewrite them, ``--check`` to compare. Each polynomial is found
by the Remez exchange on 2^x, e^x, sin and cos with the leading terms fixed, so that exp2(0) = exp(0) =
cos 0 = 1 and sin 0 = 0 exactly. A language other than C gets the three that the portable header needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mpmath as mp
from generated import write_or_check

mp.mp.dps = 60
BANNER = "Made by tools/generate_polynomials.py: do not edit."
SUBJECT = "Coefficients, lowest power first."


@dataclass(frozen=True)
class Polynomial:
    """What it approximates, how well, and its rounded coefficients, lowest power first."""

    name: str
    meaning: str
    coefficients: list[float]
    portable: bool = True

    def lines(self, indent: str) -> str:
        """The coefficients, one a line, as every one of the languages writes them."""
        return "".join(f"{indent}{c!r},\n" for c in self.coefficients)


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


def approximate(
    name: str, meaning: str, f: Callable, weight: Callable, low: mp.mpf, high: mp.mpf, degree: int, **options
) -> Polynomial:
    """The rounded minimax polynomial of f on [low, high]."""
    coefficients, error = remez(f, weight, low, high, degree)
    meaning = f"{meaning}; relative error {mp.nstr(error, 2)}"
    return Polynomial(name, meaning, [float(c) for c in coefficients], **options)


def polynomials() -> list[Polynomial]:
    """All of them."""
    tiny, zero, half = mp.mpf(10) ** -12, mp.mpf(0), mp.mpf(0.5)
    ln2 = mp.log(2)
    quarter = (mp.pi / 4) ** 2

    def slope(x: mp.mpf, rate: mp.mpf) -> mp.mpf:
        return rate if abs(x) < tiny else mp.expm1(rate * x) / x

    def exp2(x: mp.mpf) -> mp.mpf:
        return slope(x, ln2)

    def exp(x: mp.mpf) -> mp.mpf:
        return slope(x, mp.mpf(1))

    def sine(z: mp.mpf) -> mp.mpf:
        r = mp.sqrt(z)
        return mp.mpf(-1) / 6 + z / 120 if z < tiny else (mp.sin(r) - r) / (r * z)

    def cosine(z: mp.mpf) -> mp.mpf:
        return mp.mpf(1) / 24 - z / 720 if z < tiny else (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2

    def logarithm(z: mp.mpf) -> mp.mpf:
        s = mp.sqrt(z)
        return mp.mpf(2) / 3 + 2 * z / 5 if z < tiny else (2 * mp.atanh(s) - 2 * s) / (s * z)

    def exp2_weight(x: mp.mpf) -> mp.mpf:
        return abs(x) * mp.power(2, -x) + tiny

    def exp_weight(x: mp.mpf) -> mp.mpf:
        return abs(x) * mp.exp(-x) + tiny

    def sine_weight(z: mp.mpf) -> mp.mpf:
        return z + tiny

    def cosine_weight(z: mp.mpf) -> mp.mpf:
        return z**2 + tiny

    texts = {
        "EXP2": "(2^r - 1) / r on |r| <= 1/2",
        "EXP": "(e^r - 1) / r on |r| <= ln(2) / 2",
        "SIN": "(sin r - r) / r^3 in z = r^2, |r| <= pi / 4",
        "COS": "(cos r - 1 + r^2 / 2) / r^4 in z = r^2, |r| <= pi / 4",
        "LOG": "(log((1 + s) / (1 - s)) - 2 s) / s^3 in z = s^2, |s| <= 3 - 2 sqrt 2",
    }
    widest = (3 - 2 * mp.sqrt(2)) ** 2
    return [
        approximate("EXP2", texts["EXP2"], exp2, exp2_weight, -half, half, 10),
        approximate("EXP", texts["EXP"], exp, exp_weight, -ln2 / 2, ln2 / 2, 10, portable=False),
        approximate("SIN", texts["SIN"], sine, sine_weight, zero, quarter, 5),
        approximate("COS", texts["COS"], cosine, cosine_weight, zero, quarter, 5),
        approximate("LOG", texts["LOG"], logarithm, sine_weight, zero, widest, 6, portable=False),
        approximate("EXP2_SINGLE", texts["EXP2"], exp2, exp2_weight, -half, half, 5, portable=False),
        approximate("EXP_SINGLE", texts["EXP"], exp, exp_weight, -ln2 / 2, ln2 / 2, 5, portable=False),
        approximate("SIN_SINGLE", texts["SIN"], sine, sine_weight, zero, quarter, 2, portable=False),
        approximate("COS_SINGLE", texts["COS"], cosine, cosine_weight, zero, quarter, 2, portable=False),
        approximate("LOG_SINGLE", texts["LOG"], logarithm, sine_weight, zero, widest, 2, portable=False),
    ]


def c(tables: list[Polynomial]) -> str:
    """The header that the C core includes."""
    text = f"/* {BANNER} {SUBJECT} */\n\n"
    for p in tables:
        text += f"/* {p.meaning} */\nstatic const double SPO_{p.name}[{len(p.coefficients)}] = {{\n"
        text += p.lines("    ") + "};\n"
    return text


def portable(
    tables: list[Polynomial], head: str, comment: str, opening: str, indent: str, closing: str
) -> str:
    """The text of a language whose declaration opens with ``opening`` (fields NAME, name and COUNT)."""
    text = head
    for p in tables:
        if p.portable:
            names = {"NAME": p.name, "name": p.name.lower(), "COUNT": len(p.coefficients)}
            text += f"\n{comment} {p.meaning}\n{opening.format(**names)}\n{p.lines(indent)}{closing}\n"
    return text


def texts() -> dict[Path, str]:
    """Every file and what it holds."""
    tables = polynomials()
    rust = f"//! {SUBJECT}\n//!\n//! {BANNER}\n"
    go = "// Code generated by tools/generate_polynomials.py. DO NOT EDIT.\n\npackage kernel\n"
    other = f"# {SUBJECT}\n# {BANNER}\n"
    return {
        Path("csrc/isa/polynomials.h"): c(tables),
        Path("rust/src/polynomials.rs"): portable(
            tables, rust, "///", "#[rustfmt::skip]\npub const {NAME}: [f64; {COUNT}] = [", "    ", "];"
        ),
        Path("go/kernel/polynomials.go"): portable(
            tables, go, "//", "var {name}Coefficients = [{COUNT}]float64{{", "\t", "}"
        ),
        Path("julia/src/polynomials.jl"): portable(tables, other, "#", "const {NAME} = (", "    ", ")"),
        Path("mojo/src/polynomials.mojo"): portable(
            tables, other, "#", "comptime {NAME}: Array[Float64, {COUNT}] = [", "    ", "]"
        ),
    }


if __name__ == "__main__":
    raise SystemExit(write_or_check(texts()))
