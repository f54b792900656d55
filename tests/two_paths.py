"""What the tests of both implementations of attention through order parameters share.

The C core and the Numba kernels are held to the same: the same states, the same couplings, and pair by pair
the same K'.
"""

from __future__ import annotations

import numpy as np
from samples import load_golden, parity_budget, same_bits, symmetric

import spo_fast

WEIGHTS = ("w_q", "w_k", "w_v", "w_o")
BUDGET = 1e-13  # of the largest entry of K'

HARD_STATES = {
    "all equal": lambda n: np.full(n, 1.2345),
    "two clusters at pi": lambda n: np.pi * (np.arange(n) % 2) + 0.3,
    "cluster": lambda n: 2.0 + 0.05 * np.sin(np.arange(n)),
    "one far away": lambda n: np.where(np.arange(n) == 7, 4.0, 0.9),
    "far phases": lambda n: 1e5 + 0.1 * np.arange(n),
    "beyond the reduction": lambda n: 1e6 + 0.1 * np.arange(n),
    "spread": lambda n: 2.399963 * np.arange(n),
}


class TwoPaths:
    """The same modulation through order parameters and pair by pair, on one backend."""

    def __init__(self, backend):
        self.backend = backend

    def modulators(self, knm, **keywords):
        return tuple(
            spo_fast.Modulator(knm, algorithm=algorithm, backend=self.backend, **keywords)
            for algorithm in ("moments", "direct")
        )

    def worst(self, knm, theta, **keywords):
        """Largest difference between the two paths, relative to the largest entry."""
        through, pairwise = self.modulators(knm, **keywords)
        a, b = through(theta), pairwise(theta)
        assert np.isfinite(a).all()
        assert same_bits(a, a.T) and not a.diagonal().any()
        return float(np.max(np.abs(a - b), initial=0.0) / max(np.max(np.abs(b), initial=0.0), 1e-300))

    def redone(self, knm, theta, **keywords):
        """Number of rows that were done again pair by pair."""
        return self.modulators(knm, **keywords)[0]._bound.rows_redone(np.asarray(theta, dtype=float))

    def check_golden(self, path):
        """A stored case is right, or refused for a reason that it has."""
        arrays, meta = load_golden(path)
        keywords = {name: meta[name] for name in ("n_heads", "block_size", "temperature", "lambda_")}
        given = (arrays["knm"], arrays["theta"], *(arrays[name] for name in WEIGHTS))
        keywords |= {"algorithm": "moments", "backend": self.backend}
        result, refusal = attempt(lambda: spo_fast.modulate(*given, **keywords))
        if refusal:
            banded = meta["block_size"] is not None and meta["block_size"] < len(arrays["theta"]) - 1
            assert ("block_size" if banded else "logits' range is too large") in refusal
            assert banded or meta["temperature"] < (1.0 if meta["d_model"] > 8 else 0.5)
            return
        error = np.max(np.abs(result - arrays["expected"]), initial=0.0)
        assert error <= parity_budget(arrays["expected"], arrays["theta"], meta["d_model"])
        if meta["lambda_"] > 0:
            assert same_bits(result, result.T) and not result.diagonal().any()
        else:
            assert same_bits(result, arrays["knm"])

    def check_large_weights(self, knm, theta, factors):
        """Queries made longer and longer are refused at last, and right until then."""
        weights = spo_fast.default_projections()
        for factor in factors:
            keywords = dict(zip(WEIGHTS, (factor * weights[0], *weights[1:]), strict=True))
            error, refusal = attempt(lambda given=keywords: self.worst(knm, theta, **given))
            assert "logits' range is too large" in refusal if refusal else error <= BUDGET
            assert factor > 2.0 if refusal else factor < 20.0
            automatic = spo_fast.Modulator(knm, backend=self.backend, **keywords)
            direct = spo_fast.Modulator(knm, algorithm="direct", backend=self.backend, **keywords)
            np.testing.assert_allclose(automatic(theta), direct(theta), rtol=0, atol=BUDGET * 1.5)

    def check_lonely_rows(self, knm, theta, pairs):
        """Rows with one neighbour, and row 12 with none."""
        for lonely, friend in pairs:
            value = knm[lonely, friend]
            knm[lonely, :] = knm[:, lonely] = 0.0
            knm[lonely, friend] = knm[friend, lonely] = value
        knm[12, :] = knm[:, 12] = 0.0
        assert self.worst(knm, theta) <= BUDGET
        units = self.modulators(knm)[0].factors(theta)
        assert not units[12].any()
        lengths = np.linalg.norm(np.delete(units, 12, 0), axis=1)
        np.testing.assert_allclose(lengths, 1.0, rtol=0, atol=1e-10)

    def check_large_crowds(self, seed):
        """Equal phases round alike in every addition: two crowds of them lose no digits."""
        crowds, angles = np.array([2000, 1000]), np.array([0.777, 3.1])
        theta = np.repeat(angles, crowds)
        units = self.modulators(full(theta.size), projection_seed=seed)[0].factors(theta)
        w_q, w_k, w_v, w_o = spo_fast.default_projections(seed=seed)
        x, outputs = embedding(angles), []
        for q, k, v in zip(w_q, w_k, w_v, strict=True):
            share = np.exp(x @ q @ k.T @ x.T / np.sqrt(2)) * (crowds - np.eye(2))
            outputs.append(share @ (x @ v) / share.sum(1, keepdims=True))
        o = np.concatenate(outputs, axis=1) @ w_o
        expected = o / (np.linalg.norm(o, axis=1, keepdims=True) + 1e-12)
        for row, want in ((0, expected[0]), (-1, expected[1])):
            np.testing.assert_allclose(units[row], want, rtol=0, atol=2e-14)


def attempt(call):
    """The result of a call, and the message of the ValueError that came instead of one."""
    try:
        return call(), ""
    except ValueError as refusal:
        return None, str(refusal)


def full(n):
    return np.ones((n, n)) - np.eye(n)


def edges_missing(rng, n, missing):
    """A full coupling without `missing` random pairs."""
    knm = symmetric(rng, n, low=0.5)
    rows, columns = np.triu_indices(n, 1)
    chosen = rng.permutation(len(rows))[:missing]
    knm[rows[chosen], columns[chosen]] = knm[columns[chosen], rows[chosen]] = 0.0
    return knm


def embedding(theta):
    """cos and sin of the first four multiples, shape (N, 8)."""
    return np.stack([f(m * theta) for m in range(1, 5) for f in (np.cos, np.sin)], axis=1)


def nearly_even(rng, n, noise):
    """Evenly spaced phases, but for some noise."""
    return 2 * np.pi * np.arange(n) / n + noise * rng.standard_normal(n)


def growth_of_roundings(theta, temperature):
    """||v|| / ||O||, by which roundings of the values grow whatever the path, for a full coupling."""
    w_q, w_k, w_v, w_o = spo_fast.default_projections()
    x, seen = embedding(theta), full(theta.size)
    values, means = [x @ v for v in w_v], []
    for q, k, v in zip(w_q, w_k, values, strict=True):
        weights = np.exp(x @ q @ k.T @ x.T / (np.sqrt(2) * temperature)) * seen
        means.append(weights / weights.sum(1, keepdims=True) @ v)
    shortest = np.linalg.norm(np.concatenate(means, 1) @ w_o, axis=1).min()
    return max(np.abs(v).max() for v in values) * np.abs(w_o).max() / shortest


def own_term_alone(n):
    """Phases and keywords of one oscillator far from a crowd that its query hardly sees: nearly all of its
    sum is its own term.
    """
    w_q = np.zeros((1, 2, 2))
    w_q[0, 0, 0] = w_q[0, 1, 1] = 1.0
    weights = dict(zip(WEIGHTS, (w_q, 14.0 * w_q, w_q, np.eye(2)), strict=True))
    return np.where(np.arange(n) == 5, np.pi, 1e-3 * np.arange(n)), weights | {"n_heads": 1}
