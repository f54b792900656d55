"""Training: the protocol's optimiser, records that repeat, and what is measured inside oscillators."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spo_fast.experiments import mechanism, models, speed, tasks, training
from spo_fast.experiments.tasks import Batch

RUN = {"task": "association", "model": "oscillator", "rate": 3e-3, "seed": 0, "steps": 3}


@pytest.fixture
def few(monkeypatch):
    """Test sets of few sequences."""
    monkeypatch.setattr(tasks, "TESTED", 40)
    monkeypatch.setattr(tasks, "TESTED_OTHER", 20)


def train(settings=None, **changes):
    reported = []
    record = training.train(RUN | changes, settings or {}, reported.append)
    assert sum(reported) == (RUN | changes)["steps"] or record["diverged"]
    return record


def test_a_run_gives_the_same_record_again(few):
    first, second = train(), train()
    for record in (first, second):
        del record["seconds"]
    assert first == second
    assert first["parameters"] == 58_248 and first["tested_at"] == [3]
    assert set(first["others"]) == {"12", "16", "24"}
    assert first["implementation"] == "kernel" and "torch" in first["machine"]
    assert train(seed=1)["loss"] != first["loss"]
    assert train(rate=1e-3)["loss"] != first["loss"]


def test_implementations_learn_the_same(few):
    for model in ("softmax", "separate"):
        kernel, eager = (train({"implementation": name}, model=model) for name in ("kernel", "eager"))
        assert eager["implementation"] == "eager" and eager["backend"] == "torch"
        assert abs(kernel["loss"][0] - eager["loss"][0]) < 1e-3


def test_tests_come_at_even_intervals_and_at_the_end(few, monkeypatch):
    monkeypatch.setattr(training, "TEST_EVERY", 2)
    shares = iter([0.5, 0.96, 0.9, 0.1, 0.2, 0.3])
    monkeypatch.setattr(training, "examine", lambda model, batches: {"accuracy": next(shares)})
    record = train(steps=5, model="softmax")
    assert record["tested_at"] == [2, 4, 5]
    assert record["accuracy"] == [0.5, 0.96, 0.9] and record["final"] == 0.9
    assert record["sequences_to_95"] == 4 * 64
    assert record["others"] == {"12": 0.1, "16": 0.2, "24": 0.3}
    assert len(record["loss"]) == 3


@pytest.mark.parametrize("implementation", ["kernel", "eager"])
def test_a_model_that_blows_up_has_a_record(few, monkeypatch, implementation):
    monkeypatch.setattr(training, "TEST_EVERY", 2)
    record = train({"implementation": implementation}, rate=1e30, steps=6)
    assert record["diverged"] and record["final"] == 0.0 and len(record["accuracy"]) == 3
    assert "mechanism" not in record


def test_other_mistakes_are_not_taken_for_divergence(few, monkeypatch):
    def broken(*arguments):
        raise ValueError("broken")

    monkeypatch.setattr(training, "step_once", broken)
    with pytest.raises(ValueError, match="broken"):
        train()


def test_the_number_of_threads_is_left_as_it_was(few):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        train(model="softmax")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_accuracy_counts_the_highest_of_all_outputs():
    def model(tokens):
        return torch.nn.functional.one_hot(tokens[:, -1] + 1, 64).float()

    tokens = np.array([[0, 3], [0, 4], [0, 5]])
    batches = [Batch(tokens, np.array([4, 4, 6])), Batch(tokens, np.array([4, 5, 6]))]
    assert training.examine(model, batches) == {"accuracy": 5 / 6}


def test_what_can_be_known_is_examined_apart():
    """Scores are 1 for the token + 1, else 0: the loss is ln(e + 63), less 1 where that is right."""

    def model(tokens):
        return torch.nn.functional.one_hot(tokens + 1, 64).float()

    tokens = np.array([[0, 3, 9], [0, 4, 9]])
    targets = np.array([[1, 4, 0], [1, 0, 10]])
    answers = np.array([[-1, 0, 0], [-1, 0, 1]])
    found = training.examine(model, [Batch(tokens, targets, answers)])
    wrong = np.log(np.e + 63.0)
    assert found["accuracy"] == 2 / 4
    assert found["loss_known"] == pytest.approx(wrong - 2 / 4, abs=1e-6)
    assert found["loss_rest"] == pytest.approx(wrong - 1, abs=1e-6)


def test_the_optimiser_is_that_of_the_protocol():
    """One step of AdamW written out: x -= rate (weight decay x + m / (sqrt(v) + eps)), m and v corrected."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    before = model.weight.item()
    adamw = training.optimiser(model, 0.01)
    model.weight.grad = torch.full_like(model.weight, 0.3)
    adamw.step()
    m, v = 0.1 * 0.3 / (1 - 0.9), 0.001 * 0.3**2 / (1 - 0.999)
    assert model.weight.item() == pytest.approx(
        before - 0.01 * (0.01 * before + m / (v**0.5 + 1e-8)), abs=1e-12
    )


# ---------------------------------------------------------------- inside


def by_hand(model, tokens, steps, static):
    """Attention of the last token and its alignment at each step, for one sequence, from the sums."""
    layer = model.blocks[0].attention
    x = model.blocks[0].norm_attention(model.embedding(torch.from_numpy(tokens)))
    n, heads, m = len(tokens), 4, 16
    angle = torch.atan2(x @ layer.W_s.T, x @ layer.W_c.T).view(n, heads, m)
    theta = (angle + torch.arange(n)[:, None, None] * torch.from_numpy(layer.ramp)).double()
    w, alpha = layer.w * layer.beta[:, None] / m, layer.alpha.double()
    asking, course = theta, []
    for step in range(steps + 1):
        asking = asking if static else theta
        difference = asking[:, None] - theta[None] - alpha  # i, j, head, phase
        scores = (w * difference.cos()).sum(-1)
        hidden = torch.ones(n, n).triu(1).bool()
        a = scores.masked_fill(hidden[..., None], -torch.inf).softmax(1)
        course.append((a[-1].T, difference[-1].cos().mean(-1).T))
        if step < steps:
            pull = (a[..., None] * (theta[None] + alpha - theta[:, None]).sin()).sum(1)
            theta = theta + layer.kappa[:, None] * pull
    return course


@pytest.mark.parametrize("name", ["oscillator", "static"])
def test_the_mechanism_is_what_the_sums_say(name):
    model = models.build(name, 0)
    drawn = tasks.pairs(np.random.default_rng(0), 6, 8)
    found = mechanism.measure(model, [drawn])
    with torch.no_grad():
        courses = [by_hand(model, sequence, 4, name == "static") for sequence in drawn.tokens]
    weight = np.array([[a.numpy() for a, _ in course] for course in courses])  # sequence, step, head, token
    aligned = np.array([[c.numpy() for _, c in course] for course in courses])
    rows = np.arange(6)
    close = {"rtol": 0, "atol": 1e-4}
    np.testing.assert_allclose(found["coupling"], weight[rows, :, :, drawn.answers].mean((0, 2)), **close)
    np.testing.assert_allclose(found["alignment"], aligned[rows, :, :, drawn.answers].mean((0, 2)), **close)
    entropy = -(weight * np.log(weight)).sum(-1)
    np.testing.assert_allclose(found["spread"], np.exp(entropy).mean((0, 2)), rtol=1e-4)
    last = weight[:, -1]
    np.testing.assert_allclose(found["final"]["answer"], last[rows, :, drawn.answers].mean(), **close)
    np.testing.assert_allclose(found["final"]["key"], last[rows, :, drawn.answers - 1].mean(), **close)
    np.testing.assert_allclose(found["final"]["self"], last[:, :, -1].mean(), **close)
    most = (last.argmax(-1) == drawn.answers[:, None]).mean(0)
    np.testing.assert_allclose(found["heads"], most, **close)


@pytest.mark.parametrize(
    "name, length",
    [("static-looped", 8), ("first-looped", 8), ("separate", 5), ("no-steps", 1), ("no-lag", 5)],
)
def test_every_oscillator_has_a_mechanism(name, length):
    drawn = tasks.pairs(np.random.default_rng(0), 5, 8)
    found = mechanism.measure(models.build(name, 0), [drawn])
    assert all(len(found[key]) == length for key in ("alignment", "coupling", "spread"))
    assert len(found["heads"]) == 4


def test_speed_of_training_steps_is_laid_out():
    times = speed.measure(["softmax", "layer"], ["kernel"], rounds=1)
    heading, _, *rows = speed.table(times)
    assert heading == "| model | kernel, ms | ratio |"
    assert len(rows) == 2 and "softmax, 1 layer" in rows[0] and rows[0].endswith("1.00 |")
    assert "layer alone" in rows[1]


def test_speed_of_context_pulses_is_that_of_gap_copy(monkeypatch):
    monkeypatch.setattr(speed, "PULSE_ROUNDS", 1)
    monkeypatch.setattr(speed, "STEPS", 1)
    ((heading, _, *rows),) = speed.tables(["standard", "leaky"], ["kernel", "eager"])
    assert heading == "| model | kernel, ms | ratio | eager, ms | ratio | eager / kernel |"
    assert [row.split("|")[1].strip() for row in rows] == ["softmax, no positions", "leaky"]
