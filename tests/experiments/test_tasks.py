"""Tasks: answers found by reading the sequences, and streams that depend on the seed alone."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from spo_fast.experiments import tasks
from spo_fast.experiments.tasks import TASKS


def batch(name, count=300, seed=0):
    return TASKS[name].draw(np.random.default_rng(seed), count)


@pytest.mark.parametrize("name, n_pairs", [("association", 8), ("association-16", 16)])
def test_pairs(name, n_pairs):
    drawn = batch(name)
    assert drawn.tokens.shape == (300, 2 * n_pairs + 1)
    for sequence, target, answer in zip(drawn.tokens, drawn.targets, drawn.answers, strict=True):
        *shown, asked = sequence.tolist()
        keys, values = shown[::2], shown[1::2]
        assert len(set(keys)) == n_pairs and max(keys) < 32 <= min(values) and max(values) < 64
        assert dict(zip(keys, values, strict=True))[asked] == target == sequence[answer]
        assert sequence[answer - 1] == asked
    assert len(np.unique(drawn.answers)) == n_pairs


def test_two_hops():
    drawn = batch("two-hops")
    assert drawn.tokens.shape == (300, 17)
    for sequence, target, answer in zip(drawn.tokens, drawn.targets, drawn.answers, strict=True):
        *shown, asked = sequence.tolist()
        leads = dict(zip(shown[::2], shown[1::2], strict=True))
        assert len(leads) == 8
        assert leads[leads[asked]] == target == sequence[answer] >= 32
        assert sum(end in leads for end in leads.values()) == 4


def test_rhythm():
    lengths = set()
    for seed in range(12):
        drawn = batch("rhythm", 20, seed)
        length = (drawn.tokens.shape[1] - 1) // 3
        lengths.add(length)
        for sequence, target, answer in zip(drawn.tokens, drawn.targets, drawn.answers, strict=True):
            *shown, last = sequence.tolist()
            assert shown[:length] == shown[length : 2 * length] == shown[2 * length :]
            assert len(set(shown)) == length
            assert shown[shown.index(last) + 1] == target == sequence[answer]
    assert lengths == {5, 6, 7, 8}
    assert [part.tokens.shape for part in TASKS["rhythm"].test()] == [(500, 3 * c + 1) for c in (5, 6, 7, 8)]


def test_timing():
    drawn = batch("timing")
    periods = set()
    for sequence, target in zip(drawn.tokens, drawn.targets, strict=True):
        places = np.flatnonzero(sequence == tasks.BEAT)
        (period,) = set(np.diff(places).tolist())
        periods.add(period)
        assert places[0] < period
        assert len(sequence) + (target - tasks.FIRST_WAIT) == places[-1] + period
    assert periods == set(tasks.PERIODS)
    assert drawn.tokens.max() == tasks.BEAT and np.delete(np.unique(drawn.tokens), -1).max() < 32


def test_recall():
    drawn = batch("recall")
    assert drawn.tokens.shape == drawn.targets.shape == drawn.known.shape == (300, 31)
    for tokens, targets, answers in zip(drawn.tokens, drawn.targets, drawn.answers, strict=True):
        whole = [*tokens.tolist(), targets[-1]]
        assert whole[:16] == whole[16:]
        for place, (target, answer) in enumerate(zip(targets, answers, strict=True)):
            assert target == whole[place + 1]
            assert answer == (place - 15 if place >= 15 else -1)
            assert answer < 0 or tokens[answer] == target
    assert drawn.known.sum() == 300 * 16 and set(np.unique(drawn.tokens)) == set(range(64))


def test_gap_copy():
    drawn = batch("gap-copy", 2000)
    starts = []
    for tokens, targets, answers in zip(drawn.tokens, drawn.targets, drawn.answers, strict=True):
        whole = [*tokens.tolist(), targets[-1]]
        first, again = (place for place, token in enumerate(whole) if token == tasks.BEGIN)
        starts.append(again)
        assert (
            len(whole) == 256 and first == 0 and whole.index(tasks.END) == 17 and whole.count(tasks.END) == 1
        )
        assert whole[1:17] == whole[again + 1 : again + 17]
        np.testing.assert_array_equal(targets, whole[1:])
        asked = np.flatnonzero(answers >= 0)
        np.testing.assert_array_equal(asked, again + np.arange(16))
        np.testing.assert_array_equal(answers[asked], 1 + np.arange(16))
        np.testing.assert_array_equal(tokens[answers[asked]], targets[asked])
    assert min(starts) == 128 and max(starts) == 238
    assert np.unique(drawn.tokens[:, 1:17]).min() == 2 and drawn.tokens.max() == 63


def test_what_can_be_known_is_told_where_every_token_has_a_target():
    assert batch("association").known is None


@pytest.mark.parametrize("name", TASKS)
def test_streams_and_test_sets_are_the_same_every_time(name):
    task = TASKS[name]
    first, again, other = (list(islice(task.stream(seed, 5), 3)) for seed in (0, 0, 1))
    same = [np.array_equal(a.tokens, b.tokens) for a, b in zip(first, again, strict=True)]
    assert all(same)
    assert not all(np.array_equal(a.tokens, b.tokens) for a, b in zip(first, other, strict=True))
    for one, two in zip(task.test(), task.test(), strict=True):
        assert np.array_equal(one.tokens, two.tokens)
    assert sum(map(len, task.test())) == (500 if name in ("recall", "gap-copy") else 2000)
    assert all(sum(map(len, batches)) == 1000 for batches in task.other_tests().values())


def test_other_lengths_of_association():
    sizes = {name: batches[0].tokens.shape for name, batches in TASKS["association"].other_tests().items()}
    assert sizes == {"12": (1000, 25), "16": (1000, 33), "24": (1000, 49)}
