"""Tasks on sequences of tokens: endless training batches and fixed test sets, the same for every model.

A training stream depends on its seed alone and the test sets on nothing: every model sees the same sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from spo_fast.experiments.specs import BATCH

VOCABULARY = 64  # 0..31 serve as keys, 32..63 as values
KEYS = 32
TESTED = 2000  # sequences of the test set that is used during training
TESTED_OTHER = 1000  # of the others
TEST_SEED = 20_240_229
STREAM = 1  # keeps training streams apart from everything else that is drawn from the same seed


@dataclass(frozen=True)
class Batch:
    """Sequences of one length and what should be told at their ends, or at every token.

    Attributes
    ----------
    tokens : ndarray of int64, shape (B, N)
    targets : ndarray of int64, shape (B,) or (B, N)
    answers : ndarray of int64, of the same shape, or None
        Where in the sequence the target stands, for tasks that have such a place; -1 where it stands nowhere.
    """

    tokens: np.ndarray
    targets: np.ndarray
    answers: np.ndarray | None = None

    @property
    def known(self) -> np.ndarray | None:
        """Which targets can be known, shape (B, N), where there is one at every token."""
        return None if self.targets.ndim == 1 or self.answers is None else self.answers >= 0

    def __len__(self) -> int:
        return len(self.tokens)


Draw = Callable[[np.random.Generator, int], Batch]


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes
    ----------
    draw : callable
        Draws a training batch: (generator, number of sequences) to Batch.
    others : mapping of str to callable
        What is tested once, after training, besides what is trained.
    parts : tuple of callable
        The test set during training consists of equal parts of these; of ``draw`` alone when there are none.
    batch : int
        Sequences of a training step.
    most : int
        Test sequences at most, for sequences with many targets.
    """

    draw: Draw
    others: Mapping[str, Draw]
    parts: tuple[Draw, ...] = ()
    batch: int = BATCH
    most: int = TESTED

    def stream(self, seed: int, size: int | None = None) -> Iterator[Batch]:
        """Draw fresh training batches without end.

        Parameters
        ----------
        seed : int
        size : int, optional
            Sequences in a batch, ``batch`` by default.

        Yields
        ------
        Batch
        """
        rng = np.random.default_rng([STREAM, seed])
        while True:
            yield self.draw(rng, size or self.batch)

    def test(self) -> list[Batch]:
        """Return the fixed test set, 2,000 sequences or as many as the task has at most.

        Returns
        -------
        list of Batch
        """
        rng = np.random.default_rng([TEST_SEED, 0])
        parts = self.parts or (self.draw,)
        return [draw(rng, min(TESTED, self.most) // len(parts)) for draw in parts]

    def other_tests(self) -> dict[str, list[Batch]]:
        """Return the fixed test sets that are used after training, 1,000 sequences each.

        Returns
        -------
        dict of str to list of Batch
        """
        rngs = (np.random.default_rng([TEST_SEED, place]) for place in range(1, len(self.others) + 1))
        return {
            name: [draw(rng, TESTED_OTHER)]
            for (name, draw), rng in zip(self.others.items(), rngs, strict=True)
        }


def _distinct(rng: np.random.Generator, count: int, chosen: int, total: int) -> np.ndarray:
    """Draw ``chosen`` of ``total`` numbers without repetition, in random order, ``count`` times."""
    return rng.random((count, total)).argsort(axis=1)[:, :chosen]


# ---------------------------------------------------------------- association


def pairs(rng: np.random.Generator, count: int, n_pairs: int) -> Batch:
    """Draw k1 v1 ... kn vn kq: distinct keys, values with repetition, asked for the value of one of the keys.

    Parameters
    ----------
    rng : Generator
    count : int
    n_pairs : int

    Returns
    -------
    Batch
        2 n_pairs + 1 tokens a sequence.
    """
    keys = _distinct(rng, count, n_pairs, KEYS)
    values = KEYS + rng.integers(VOCABULARY - KEYS, size=(count, n_pairs))
    asked = rng.integers(n_pairs, size=count)
    row = np.arange(count)
    shown = np.stack([keys, values], axis=2).reshape(count, 2 * n_pairs)
    tokens = np.concatenate([shown, keys[row, asked, None]], axis=1)
    return Batch(tokens, values[row, asked], 2 * asked + 1)


def association(n_pairs: int = 8, lengths: tuple[int, ...] = (12, 16, 24)) -> Task:
    """Return the task of remembering pairs.

    Parameters
    ----------
    n_pairs : int
        In training.
    lengths : tuple of int
        Other numbers of pairs, which are tested after training.

    Returns
    -------
    Task
    """
    others = {str(length): partial(pairs, n_pairs=length) for length in lengths}
    return Task(partial(pairs, n_pairs=n_pairs), others)


# ---------------------------------------------------------------- two hops


def chains(rng: np.random.Generator, count: int, n_chains: int) -> Batch:
    """Draw pairs A B and B C of several chains in random order, asked for the C of one of the A.

    Parameters
    ----------
    rng : Generator
    count : int
    n_chains : int
        A and B are distinct among 0..31, C with repetition among 32..63.

    Returns
    -------
    Batch
        4 n_chains + 1 tokens a sequence.
    """
    nodes = _distinct(rng, count, 2 * n_chains, KEYS)
    first, second = nodes[:, :n_chains], nodes[:, n_chains:]
    last = KEYS + rng.integers(VOCABULARY - KEYS, size=(count, n_chains))
    edges = np.stack([np.concatenate([first, second], 1), np.concatenate([second, last], 1)], axis=2)
    order = _distinct(rng, count, 2 * n_chains, 2 * n_chains)
    shown = np.take_along_axis(edges, order[:, :, None], axis=1).reshape(count, 4 * n_chains)
    asked = rng.integers(n_chains, size=count)
    row = np.arange(count)
    places = order.argsort(axis=1)[row, n_chains + asked]  # of the pair B C
    tokens = np.concatenate([shown, first[row, asked, None]], axis=1)
    return Batch(tokens, last[row, asked], 2 * places + 1)


def two_hops(n_chains: int = 4, lengths: tuple[int, ...] = (6, 8)) -> Task:
    """Return the task of following two pairs: A to B, B to C.

    Parameters
    ----------
    n_chains : int
        In training; 4 make as many pairs as association has.
    lengths : tuple of int
        Other numbers of chains, which are tested after training.

    Returns
    -------
    Task
    """
    others = {str(length): partial(chains, n_chains=length) for length in lengths}
    return Task(partial(chains, n_chains=n_chains), others)


# ---------------------------------------------------------------- rhythm

CYCLES = (5, 6, 7, 8)
SHOWN = 3  # times


def cycle(rng: np.random.Generator, count: int, length: int) -> Batch:
    """Draw a cycle of distinct tokens, shown three times, then one of them: what follows it is the answer.

    Parameters
    ----------
    rng : Generator
    count : int
    length : int
        Of the cycle.

    Returns
    -------
    Batch
        3 length + 1 tokens a sequence.
    """
    tokens = _distinct(rng, count, length, VOCABULARY)
    asked = rng.integers(length, size=count)
    row = np.arange(count)
    sequence = np.concatenate([np.tile(tokens, SHOWN), tokens[row, asked, None]], axis=1)
    answer = (asked + 1) % length
    return Batch(sequence, tokens[row, answer], (SHOWN - 1) * length + answer)


def _any_cycle(rng: np.random.Generator, count: int) -> Batch:
    return cycle(rng, count, int(rng.choice(CYCLES)))


def rhythm() -> Task:
    """Return the task of going on with a cycle; one length of cycle a batch.

    Returns
    -------
    Task
    """
    parts = tuple(partial(cycle, length=length) for length in CYCLES)
    return Task(_any_cycle, {str(length): partial(cycle, length=length) for length in CYCLES}, parts)


# ---------------------------------------------------------------- timing

PERIODS = (4, 5, 6, 7, 8)
TIMED = 32  # tokens: four beats at least
BEAT = VOCABULARY - 1
FIRST_WAIT = KEYS  # token that means "now"; "in w positions" is FIRST_WAIT + w


def beats(rng: np.random.Generator, count: int) -> Batch:
    """Draw a beat at even intervals among random tokens: the answer is how far the next one is.

    Parameters
    ----------
    rng : Generator
    count : int
        Period among 4..8 and offset are drawn for each sequence; all other tokens are random among 0..31.

    Returns
    -------
    Batch
        32 tokens a sequence; targets 32 (the next position) to 39.
    """
    period = rng.choice(PERIODS, size=(count, 1))
    offset = rng.integers(period)
    tokens = rng.integers(KEYS, size=(count, TIMED))
    tokens[(np.arange(TIMED) - offset) % period == 0] = BEAT
    wait = (offset - TIMED) % period
    return Batch(tokens, FIRST_WAIT + wait[:, 0])


def timing() -> Task:
    """Return the task of keeping time: the rhythm is in when a token comes, not in which.

    Returns
    -------
    Task
    """
    return Task(beats, {})


# ---------------------------------------------------------------- recall

HALF = 16  # tokens


def halves(rng: np.random.Generator, count: int) -> Batch:
    """Draw 16 tokens and the same once more; at each of the first 31 the next one is asked for.

    Parameters
    ----------
    rng : Generator
    count : int

    Returns
    -------
    Batch
        31 tokens; the last 16 targets can be known, each from 15 tokens before.
    """
    half = rng.integers(VOCABULARY, size=(count, HALF))
    tokens = np.concatenate([half, half], axis=1)
    places = np.arange(2 * HALF - 1) - (HALF - 1)
    answers = np.where(places < 0, -1, places)
    return Batch(tokens[:, :-1], tokens[:, 1:], np.tile(answers, (count, 1)))


# ---------------------------------------------------------------- gap copy

COPIED = 256  # tokens
PATTERN = 16  # tokens
BEGIN, END = 0, 1  # all others are noise and pattern


def gaps(rng: np.random.Generator, count: int) -> Batch:
    """Draw a pattern between a start and a stop token, noise, and start and pattern once more, then noise.

    Parameters
    ----------
    rng : Generator
    count : int
        The second start is at a place of its own in each sequence, uniform in 128 ... 238.

    Returns
    -------
    Batch
        255 tokens, at each of which the next one is asked for; 16 targets can be known, those of the pattern
        behind its second start.
    """
    tokens = rng.integers(END + 1, VOCABULARY, size=(count, COPIED))
    tokens[:, 0], tokens[:, PATTERN + 1] = BEGIN, END
    again = rng.integers(COPIED // 2, COPIED - PATTERN - 1, size=(count, 1))
    steps = np.arange(PATTERN)
    rows = np.arange(count)[:, None]
    tokens[rows, again] = BEGIN
    tokens[rows, again + 1 + steps] = tokens[:, 1 : PATTERN + 1]
    answers = np.full((count, COPIED - 1), -1)
    answers[rows, again + steps] = 1 + steps
    return Batch(tokens[:, :-1], tokens[:, 1:], answers)


NEXT_BATCH = 32  # sequences of a training step where every token has a target
NEXT_TESTED = 500

TASKS = {
    "recall": Task(halves, {}, batch=NEXT_BATCH, most=NEXT_TESTED),
    "gap-copy": Task(gaps, {}, batch=NEXT_BATCH, most=NEXT_TESTED),
    "association": association(),
    "association-16": association(16, (8, 24)),
    "two-hops": two_hops(),
    "rhythm": rhythm(),
    "timing": timing(),
}
