"""Couplings given as triples (row, column, value), a pair perhaps more than once."""

from __future__ import annotations

import math

from .kuramoto import lag


def dense(triples, n):
    """The matrix as nested lists; what stands there twice is added up."""
    knm = [[0.0] * n for _ in range(n)]
    for i, j, value in triples:
        knm[i][j] += float(value)
    return knm


def derivative(i, theta, omega, triples, zeta=0.0, psi=0.0, alpha=None):
    """The slope of oscillator i, from the triples of its row alone."""
    pulls = [k * math.sin(theta[j] - theta[i] - lag(alpha, i, j)) for row, j, k in triples if row == i]
    return math.fsum([float(omega[i]), *pulls, zeta * math.sin(psi - theta[i])])


def lattice(length, width):
    """Pairs (i, j) of neighbours on a grid without wrapping, in both directions."""
    pairs = []
    for x in range(length):
        for y in range(width):
            i = x * width + y
            if y + 1 < width:
                pairs += [(i, i + 1), (i + 1, i)]
            if x + 1 < length:
                pairs += [(i, i + width), (i + width, i)]
    return pairs
