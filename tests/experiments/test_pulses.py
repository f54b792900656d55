"""Models of context pulses, what is measured inside them, and their studies."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from oracles import context_pulse as oracle
from oracles.attention import softmax_attention

from spo_fast import cli, context_pulse
from spo_fast.experiments import command, models, pulse_models, pulse_scores, records, report, tasks, training
from spo_fast.experiments.specs import ABLATIONS, MAPPED, PULSES, WIDTHS
from spo_fast.experiments.tasks import TASKS, Batch

RUN = {"task": "recall", "model": "parseval", "rate": 3e-3, "seed": 0, "steps": 3}
STUDIES = [
    command.load(name) for name in ("recall", "gap-copy", "pulse-ablations", "attention-mass", "score-maps")
]


@pytest.fixture
def few(monkeypatch):
    """Test sets of few sequences."""
    monkeypatch.setattr(tasks, "TESTED", 20)


def build(name, task="recall", implementation=None):
    return pulse_models.build(task, name, 0, implementation)


def tokens(count=3, n=31):
    return torch.randint(64, (count, n), generator=torch.Generator().manual_seed(0))


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("name", PULSES)
def test_every_model_learns_with_what_is_not_held(name):
    model = build(name)
    out = model(tokens())
    assert out.shape == (3, 31, 64) and out.dtype == torch.float32
    out.square().mean().backward()
    held = {key for key, p in model.named_parameters() if not p.requires_grad}
    assert held == {f"attention.{key}" for key in PULSES[name].held}
    assert models.parameters(model) == sum(p.numel() for p in model.parameters() if p.requires_grad)
    without = {key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()} - held
    unused = ("jump", "gate") if PULSES[name].layer == "alpert" else ()
    assert all(key.split(".")[1].startswith((*unused, "A")) for key in without)


@pytest.mark.parametrize("name", PULSES)
def test_implementations_agree(name):
    results = []
    for implementation in ("kernel", "eager"):
        model = build(name, implementation=implementation)
        out = model(tokens())
        learned = {key: p for key, p in model.named_parameters() if p.requires_grad}
        grads = torch.autograd.grad(out.square().sum(), list(learned.values()), allow_unused=True)
        results.append([out, *(g for key, g in zip(learned, grads, strict=True) if used(name, key))])
    for kernel, eager in zip(*results, strict=True):
        torch.testing.assert_close(kernel, eager, rtol=1e-3, atol=1e-3 * max(1.0, eager.abs().max().item()))


def used(name, key):
    """Whether a parameter has an effect."""
    return not (PULSES[name].layer == "alpert" and ("jump" in key or "gate" in key))


def test_widths_are_those_of_the_tasks():
    shapes = {
        name: build(name, "gap-copy").embedding.weight.shape[1] for name in ("standard", "chunked", "alpert")
    }
    assert shapes == {"standard": 64, "chunked": 64, "alpert": 128}
    assert build("alpert").embedding.weight.shape[1] == WIDTHS["recall"] == 32
    assert build("chunked").attention.n_heads == 4 and build("chunked").attention.options["chunk_size"] == 16


def test_initial_values_depend_on_the_seed_alone():
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    assert torch.equal(build("alpert")(tokens()), build("alpert")(tokens()))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_unknown_models_are_refused():
    with pytest.raises(ValueError, match=r"model must be one of standard, .*, got 'softmax'"):
        build("softmax")


def test_inverted_roles_by_loops():
    layer = pulse_models.InvertedRoles(6, dtype=torch.float64)
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    q, k, v = ((x @ w.T).detach().numpy()[:, None] for w in (layer.W_Q, layer.W_K, layer.W_V))
    gathered = np.array([[oracle.leaky_scan(sample[0], 0.9)] for sample in k])
    for sample, out in enumerate(layer(x).detach().numpy()):
        expected, _ = softmax_attention(q[sample], gathered[sample], v[sample], scale=6**-0.5, causal=True)
        np.testing.assert_allclose(out, expected[0].real, rtol=1e-12, atol=1e-12)


def inside(name):
    """State of the attention of a model whose parameters all matter."""
    model = build(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.5)
        given = model.attention.projected(model.embedding(tokens()))
    arrays = {key: tensor.detach().numpy() for key, tensor in given.items()}
    return context_pulse.pulse_attention(
        **arrays, variant=model.attention.variant, **model.attention.options
    )[1]


def test_a_part_that_is_held_still_is_out():
    state = inside("no-gate")
    np.testing.assert_array_equal(state.gated, state.given["q"])
    state = inside("no-decay")
    np.testing.assert_array_equal(state.states, state.gated)
    assert not np.array_equal(inside("parseval").states, inside("parseval").gated)
    state = inside("no-norm")
    assert state.shared.shift == 0.0 and state.shared.factor == 1.0
    with torch.no_grad():
        assert pulse_scores.measure(build("no-sink"), TASKS["recall"].test())["mass"]["sink"] == 0.0


def test_the_mask_can_be_taken_away_for_a_while():
    model, bare = build("leaky"), build("leaky-open")
    assert model.may_lose_its_mask and not bare.may_lose_its_mask and not build("parseval").may_lose_its_mask
    with model.without_mask():
        assert torch.equal(model(tokens()), bare(tokens()))
    assert not torch.equal(model(tokens()), bare(tokens()))


# ---------------------------------------------------------------- what attention looks at


@pytest.mark.parametrize("name", PULSES)
def test_scores_and_sink_are_those_of_the_output(name):
    """Weights made of them, times the values, are what the layer returns."""
    model = build(name)
    with torch.no_grad():
        x = model.embedding(tokens())
        scores, sink = pulse_scores._scores(model, tokens())
        later = torch.ones(31, 31, dtype=torch.bool).triu(1) if model.masked else None
        weights = pulse_scores._weights(scores, later, sink)
        given = model.attention.projected(x)
        v = given[2] if isinstance(given, tuple) else given["v"].transpose(1, 2)
        mixed = weights[..., :31] @ v
        if sink is not None:
            mixed = mixed + weights[..., 31:] * given["v_null"][:, None]
        out = mixed.transpose(1, 2).flatten(2)
        last = getattr(model.attention, "W_O", getattr(model.attention, "W_o", None))
        out = out if last is None else out @ last.T
    torch.testing.assert_close(out, model.attention(x), rtol=1e-4, atol=1e-5)


def test_measures_by_loops():
    model = build("parseval")
    drawn = TASKS["recall"].draw(np.random.default_rng(0), 2)
    found = pulse_scores.measure(model, [drawn])
    with torch.no_grad():
        scores, sink = pulse_scores._scores(model, torch.from_numpy(drawn.tokens))
    first, apart, answer, own, past, future = [], [], [], [], [], []
    for sample in range(2):
        for i in range(31):
            row = scores[sample, 0, i].double().numpy()
            shares = np.exp(np.append(row[: i + 1], sink.item()))
            shares /= shares.sum()
            own.append(shares[i])
            past.extend(row[:i])
            future.extend(row[i + 1 :])
            if i:
                first.append(shares[0])
                apart.append(shares[-1])
            if drawn.answers[sample, i] >= 0:
                answer.append(shares[drawn.answers[sample, i]])
    means = {
        "first": first,
        "sink": apart,
        "answer": answer,
        "self": own,
        "even": [1 / n for n in range(2, 32)],
    }
    assert found["mass"] == pytest.approx({name: np.mean(values) for name, values in means.items()}, abs=2e-5)
    for name, values in (("below", past), ("above", future)):
        assert found[name] == pytest.approx([np.mean(values), np.std(values, ddof=1)], abs=2e-5)
    assert found["twist"] == 0.0 and "map" not in found
    assert np.shape(pulse_scores.measure(build("leaky"), [drawn])["map"]) == (31, 31)


# ---------------------------------------------------------------- training


def test_a_run_gives_the_same_record_again(few):
    first, second = (training.train(RUN, {}, lambda steps: None) for _ in range(2))
    for record in (first, second):
        del record["seconds"]
    assert first == second and json.dumps(first, allow_nan=False)
    assert first["tested_at"] == [3] and len(first["loss_known"]) == len(first["loss_rest"]) == 1
    assert (
        set(first["scores"]) == {"before", "after"} and first["scores"]["before"] != first["scores"]["after"]
    )
    assert first["sequences_to_95"] is None and "unmasked" not in first and "mechanism" not in first


def test_the_mask_is_taken_away_of_what_is_mapped(few):
    found = training.train(RUN | {"model": "leaky", "steps": 1}, {}, lambda steps: None)
    assert 0.0 <= found["unmasked"] <= 1.0 and np.shape(found["scores"]["after"]["map"]) == (31, 31)
    found = training.train(RUN | {"model": "leaky", "steps": 1, "task": "gap-copy"}, {}, lambda steps: None)
    assert "map" not in found["scores"]["after"]


def test_a_model_that_blows_up_has_a_record(few):
    found = training.train(RUN | {"rate": 1e30}, {}, lambda steps: None)
    assert found["diverged"] and found["final"] == 0.0 and "scores" not in found


def test_sequences_are_counted_by_the_batches_of_the_task(few, monkeypatch):
    shares = {"accuracy": 0.96, "loss_known": 0.1, "loss_rest": 4.2}
    monkeypatch.setattr(training, "examine", lambda model, batches: shares)
    assert training.train(RUN, {}, lambda steps: None)["sequences_to_95"] == 3 * 32


def test_a_task_that_can_be_solved_is_solved(few):
    """Parseval learns recall within a few hundred steps, softmax without positions does not."""
    found = {
        name: training.train(RUN | {"model": name, "steps": 300}, {}, lambda steps: None)["final"]
        for name in ("parseval", "standard")
    }
    assert found["parseval"] > 0.8 > 0.2 > found["standard"]


# ---------------------------------------------------------------- studies


def record(model, task="recall", steps=4000, seed=0, **changes):
    """A record of a run that bears the publication out."""
    flat = model in ("standard", "standard-open", "rope", "rope-4")
    final = 0.06 if flat else 1.0
    scores = {
        "mass": {
            "first": 0.4 if model == "no-sink" else 0.1,
            "sink": 0.0 if model == "no-sink" or flat else 0.6,
            "answer": 0.2,
            "even": 0.1,
            "self": 0.1,
        },
        "below": [1.0, 4.0],
        "above": [0.0, 1.0],
        "diagonal": [0.0, 1.0],
    }
    if PULSES[model].layer in MAPPED:
        scores["map"] = np.eye(31).tolist()
    return {
        "task": task,
        "model": model,
        "rate": 3e-3,
        "seed": seed,
        "steps": steps,
        "parameters": 7000,
        "tested_at": [100, steps],
        "accuracy": [0.05, final],
        "loss": [4.1, 3.0],
        "loss_known": [4.1, 4.0 if flat else 0.01],
        "loss_rest": [4.2, 4.2],
        "final": final,
        "sequences_to_95": None if flat else 9_600,
        "others": {},
        "diverged": False,
        "scores": {"before": scores, "after": scores},
        "unmasked": final,
        "seconds": 10.0,
        "implementation": "kernel",
        "machine": {"processor": "some", "cores": "2", "numpy": "2", "spo_fast": "0", "torch": "2"},
        "date": "2026-11-29",
        **changes,
    }


def published(study):
    return [record(name, study.task, study.steps, seed) for seed in range(2) for name in study.models]


def verdicts(study, found):
    lines = report.claims_table([study], {study.path: found})
    return [line.split("|")[-2].strip() for line in lines[2:]]


def changed(study, model, **changes):
    return verdicts(study, [r | changes if r["model"] == model else r for r in published(study)])


def test_the_published_figures_bear_the_claims_out():
    recall, gap, ablations, mass, maps = STUDIES
    assert verdicts(recall, published(recall)) == ["holds"] * 6
    assert verdicts(gap, published(gap)) == ["holds"] * 6
    assert verdicts(ablations, published(ablations)) == ["differs"] * 6 + ["holds"] * 3
    assert verdicts(mass, published(mass)) == ["holds"] * 2
    assert verdicts(maps, published(maps)) == ["holds"] * 9
    for study in STUDIES:
        assert set(verdicts(study, [])) == {""}


def test_each_claim_can_fail():
    recall, gap, ablations, mass, maps = STUDIES
    assert changed(recall, "standard", final=0.4)[0] == "differs"
    assert changed(recall, "rope", final=0.99)[1] == "differs"
    assert changed(recall, "leaky", sequences_to_95=64_000)[2] == "differs"
    assert changed(recall, "alpert", final=0.97)[5] == "differs"
    assert changed(gap, "chunked", final=0.9)[2] == "differs"
    assert changed(ablations, "no-gate", final=0.1)[0] == "holds"
    assert changed(ablations, "parseval-causal", final=0.9)[6] == "differs"
    assert changed(ablations, "alpert-causal", sequences_to_95=None)[8] == "differs"
    after = record("no-sink")["scores"]["after"]
    bare = after | {"mass": after["mass"] | {"first": 0.12}}
    assert changed(mass, "no-sink", scores={"before": after, "after": bare}) == ["differs"] * 2
    wide = after | {"above": [0.0, 3.0]}
    assert changed(maps, "leaky", scores={"before": after, "after": wide})[0] == "differs"
    assert changed(maps, "leaky", unmasked=0.9)[1] == "differs"
    assert changed(maps, "leaky-open", loss_rest=[4.0, 2.0])[2] == "differs"


@pytest.mark.parametrize(
    "changes, role",
    [
        ({"final": 0.4, "sequences_to_95": None}, "carries"),
        ({"sequences_to_95": 32_000}, "speeds it up"),
        ({"sequences_to_95": 3_200}, "hinders"),
        ({}, "little"),
    ],
)
def test_roles_of_parts(changes, role):
    study = STUDIES[2]
    found = [r | changes if r["model"] == "no-gate" else r for r in published(study)]
    table = study.tabulate(found)
    assert [line for line in table if line.startswith(f"| {PULSES['no-gate'].label} | {role} |")]
    assert sum("| little |" in line for line in table) >= len(ABLATIONS) - 1


def test_pages_are_made_of_records_alone(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    found = {study.path: {} for study in STUDIES}
    for study in STUDIES:
        found[study.path] |= {(r["model"], r["seed"]): r for r in published(study)}
    blown = {key: value for key, value in record("chunked", seed=2).items() if key != "scores"}
    found["recall.jsonl"]["chunked", 2] = blown | {"loss_known": [], "loss_rest": [], "diverged": True}
    for path, group in found.items():
        (out / path).write_text("".join(json.dumps(r) + "\n" for r in group.values()))
    written = report.write(STUDIES, out, tmp_path / "docs")
    names = {path.name for path in written}
    assert {f"{study.name}.{kind}" for study in STUDIES for kind in ("md", "png")} <= names
    page = (tmp_path / "docs" / "recall.md").read_text()
    assert "15 of the 21 runs" in page and "| holds |" in page and "loss, predictable part" in page
    assert "even attention would give the first token 10.0 %" in page


def test_pages_of_few_records(tmp_path):
    (tmp_path / "recall.jsonl").write_text(json.dumps(record("no-gate")) + "\n")
    (tmp_path / "gap-copy.jsonl").write_text("")
    written = report.write(STUDIES, tmp_path, tmp_path / "docs")
    assert {path.stem for path in written} == {"pulse-ablations", "experiments"}


def test_a_study_runs_from_the_command_line_and_is_not_repeated(tmp_path, capsys, few):
    arguments = ["experiment", "score-maps", "--steps", "2", "--seeds", "1", "--models", "leaky,leaky-open"]
    arguments += ["--out", str(tmp_path), "--plot", str(tmp_path / "a.png")]
    assert cli.main(arguments) == 0
    first = capsys.readouterr()
    assert "leaky, no mask" in first.out and "2 of 2 runs" in first.err
    found = records.read(tmp_path / "recall.jsonl")
    assert cli.main([*arguments, "--quiet"]) == 0
    assert records.read(tmp_path / "recall.jsonl") == found and len(found) == 2


def test_known_targets_need_answers():
    batch = Batch(np.zeros((1, 2), int), np.zeros((1, 2), int))
    assert batch.known is None
