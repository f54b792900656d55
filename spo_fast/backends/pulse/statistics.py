"""Means and standard deviations that queries and keys share, from the moments of their tokens.

Everything here is a number for each token and head, in double precision, and the same for every backend; the
passes over whole tokens are the backends' ``token_moments``, ``turn`` and ``unnormalise``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

OVER = ("point", "sample", "running")
NOTHING = "nothing"  # where there is no normalisation
EPSILON = 1e-6  # added to the standard deviation, as published

_Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Statistics of queries and keys; all arrays broadcast to (B, N, H).

    Attributes
    ----------
    over : str
        Which numbers share a mean: those of a token and head ("point"), of a sample ("sample"), of all
        tokens of a sample up to this one ("running"), or none: they stay as they are ("nothing").
    count : ndarray
        How many numbers that is.
    means, deviations : pair of ndarray
        Means and standard deviations (by count - 1) of the queries and of the keys.
    shift, factor : ndarray
        mu and 1 / (sd + epsilon): both become (. - mu) / (sd + epsilon).
    """

    over: str
    count: np.ndarray
    means: _Pair
    deviations: _Pair
    shift: np.ndarray
    factor: np.ndarray


def gather(moments_q: _Pair, moments_k: _Pair, width: int, over: str) -> Statistics:
    """Statistics from the moments of tokens.

    Parameters
    ----------
    moments_q, moments_k : pair of ndarray, shape (B, N, H)
        Mean of each token's numbers in a head, and sum of their squared distances from it.
    width : int
        Numbers of a token in a head.
    over : {"point", "sample", "running", "nothing"}
        Which numbers share a mean.
    """
    if over == NOTHING:
        zero, one = np.array(0.0), np.array(1.0)
        return Statistics(over, one, (zero, zero), (zero, zero), zero, one)
    count, *groups_q = _group(*moments_q, width, over)
    _, *groups_k = _group(*moments_k, width, over)
    return _share(over, count, groups_q, groups_k)


@dataclass(slots=True, eq=False)
class Running:
    """Statistics of all tokens so far, which grow token by token; may be pickled.

    Attributes
    ----------
    seen : int
        Tokens so far.
    means, squares : list of ndarray, shape (B, 1, 1)
        Of the queries and the keys: mean, and sum of squared distances from it.
    """

    seen: int
    means: list[np.ndarray]
    squares: list[np.ndarray]

    @classmethod
    def start(cls, batch: int) -> Running:
        """Statistics of nothing."""
        zeros = np.zeros((batch, 1, 1))
        return cls(0, [zeros, zeros], [zeros, zeros])

    def extend(self, moments_q: _Pair, moments_k: _Pair, width: int) -> Statistics:
        """Take one more token, whose moments are (B, 1, H); return the statistics up to it."""
        self.seen += 1
        for side, moments in enumerate((moments_q, moments_k)):
            mean, squares = _join(*moments, width, (2,))
            away = mean - self.means[side]
            wide = width * moments[0].shape[2]
            self.squares[side] = self.squares[side] + squares + wide * (self.seen - 1) / self.seen * away**2
            self.means[side] = self.means[side] + away / self.seen
        count = np.array(float(wide * self.seen))
        pairs = list(zip(self.means, self.squares, strict=True))
        return _share("running", count, *pairs)


def _share(
    over: str, count: np.ndarray, groups_q: Sequence[np.ndarray], groups_k: Sequence[np.ndarray]
) -> Statistics:
    """Statistics of groups of `count` numbers, given their means and sums of squares."""
    (mean_q, squares_q), (mean_k, squares_k) = groups_q, groups_k
    deviations = np.sqrt(squares_q / (count - 1.0)), np.sqrt(squares_k / (count - 1.0))
    shift = 0.5 * (mean_q + mean_k)
    factor = 1.0 / (0.5 * (deviations[0] + deviations[1]) + EPSILON)
    return Statistics(over, count, (mean_q, mean_k), deviations, shift, factor)


def gather_backwards(statistics: Statistics, slopes: np.ndarray, products: np.ndarray) -> tuple[_Pair, _Pair]:
    """What `unnormalise` adds for the mean and the deviation, for the queries and for the keys.

    Parameters
    ----------
    slopes : ndarray, shape (B, N, H)
        Sum of the gradients at a token's normalised numbers, queries and keys together.
    products : ndarray, shape (B, N, H)
        Sum of these gradients times the normalised numbers.

    Returns
    -------
    alpha, beta : ndarray
        For queries and for keys: the gradient at x is factor (g + alpha + beta (x - mean)), with g
        that at the normalised x.
    """
    if statistics.over == NOTHING:
        zero = np.array(0.0)
        return (zero, zero), (zero, zero)
    axes = {"point": (), "sample": (1, 2), "running": (2,)}[statistics.over]
    slopes, products = (array.sum(axis=axes, keepdims=True) for array in (slopes, products))
    count, factor = statistics.count, statistics.factor
    at_mean = -0.5 * factor * slopes / count
    results = []
    for mean, deviation in zip(statistics.means, statistics.deviations, strict=True):
        bend = -0.5 * factor * products / (count - 1.0)
        at_squares = np.divide(bend, deviation, out=np.zeros_like(bend), where=deviation > 0)
        added = at_mean
        if statistics.over == "running":  # a token is part of the statistics of all later ones
            moved = _from_here_on(at_squares * mean)
            at_squares = _from_here_on(at_squares)
            added = _from_here_on(at_mean) - moved + mean * at_squares
        results.append((added / factor, at_squares / factor))
    return results[0], results[1]


def _group(
    mean: np.ndarray, squares: np.ndarray, width: int, over: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count, mean and sum of squared distances of the numbers that belong together."""
    if over == "point":
        return np.array(float(width)), mean, squares
    _, n, heads = mean.shape
    if over == "sample":
        return np.array(float(n * heads * width)), *_join(mean, squares, width, (1, 2))
    mean, squares = _join(mean, squares, width, (2,))
    width *= heads
    seen = np.arange(1.0, n + 1.0)[:, None]
    running = np.cumsum(mean, axis=1) / seen
    before = np.concatenate([running[:, :1], running[:, :-1]], axis=1)
    grown = squares + width * (seen - 1.0) / seen * (mean - before) ** 2  # no term is negative
    return width * seen, running, np.cumsum(grown, axis=1)


def _join(mean: np.ndarray, squares: np.ndarray, width: int, axes: tuple[int, ...]) -> _Pair:
    """Moments of groups of `width` numbers become those of all groups along the axes."""
    whole = mean.mean(axis=axes, keepdims=True)
    return whole, (squares + width * (mean - whole) ** 2).sum(axis=axes, keepdims=True)


def _from_here_on(terms: np.ndarray) -> np.ndarray:
    """Sum over this token and all later ones."""
    return np.cumsum(terms[:, ::-1], axis=1)[:, ::-1]
