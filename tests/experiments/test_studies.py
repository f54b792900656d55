"""Studies: what they run, how their claims are judged, the pages made of their records, the command."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spo_fast import cli
from spo_fast.experiments import binding, command, decoding, records, report, runner, summary
from spo_fast.experiments.specs import MODELS, PROTOCOL, PULSES, WIDTHS
from spo_fast.experiments.tasks import TASKS

MACHINE = {"processor": "some", "cores": "2", "numpy": "2", "spo_fast": "0", "torch": "2"}
STUDIES = [command.load(name) for name in command.STUDIES]
ASSOCIATION = command.load("association")
PUBLISHED = {  # model: final, sequences to 95 %, accuracy at 12, 16, 24 pairs
    "softmax": (0.21, None, 0.1),
    "softmax-2": (0.99, 70_400, 0.3),
    "softmax-looped": (1.0, 51_200, 0.5),
    "oscillator": (0.993, 96_000, 0.3),
    "looped": (0.25, None, 0.1),
    "static": (0.993, 96_000, 0.7),
    "static-looped": (0.99, 172_800, 0.7),
    "separate": (0.98, 128_000, 0.7),
    "no-steps": (0.18, None, 0.1),
    "no-lag": (0.89, None, 0.2),
}


def record(model, rate=1e-3, seed=0, steps=4000, task="association", **changes):
    final, reached, other = PUBLISHED.get(model, (0.5, None, 0.5))
    return {
        "task": task,
        "model": model,
        "rate": rate,
        "seed": seed,
        "steps": steps,
        "parameters": 58_000,
        "tested_at": [100, steps],
        "accuracy": [0.1, final],
        "final": final,
        "sequences_to_95": reached,
        "others": {"12": other, "16": other, "24": other},
        "mechanism": {
            "alignment": [0.1, 0.3, 0.55],
            "coupling": [0.1, 0.2, 0.3],
            "spread": [9.0, 7.0, 5.0],
            "heads": [0.0, 0.5, 0.6, 0.0],
            "final": {"answer": 0.25 if model == "static" else 0.11, "key": 0.16, "self": 0.3},
        },
        "seconds": 100.0,
        "implementation": "kernel",
        "machine": MACHINE,
        "date": "2026-11-29",
        **changes,
    }


def published():
    return [record(model, seed=seed) for seed in range(2) for model in PROTOCOL]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_runs_of_a_study(study):
    runs = study.runs()
    assert len(runs) == len(study.models) * len(study.rates) * study.seeds
    assert len({json.dumps(run) for run in runs}) == len(runs)
    seeds = [run["seed"] for run in runs]
    assert seeds == sorted(seeds)
    assert "Criteri" in study.question
    assert study.title
    if study.task:
        assert set(study.models) <= set(PULSES if study.task in WIDTHS else MODELS)
        assert study.task in TASKS


def test_the_protocol():
    runs = ASSOCIATION.runs()
    assert len(runs) == 10 * 2 * 5 and ASSOCIATION.rates == (1e-3, 3e-3)
    assert {run["steps"] for run in runs} == {4000}
    assert len({(run["model"], run["rate"]) for run in runs[:20]}) == 20


def test_studies_of_one_task_share_their_runs():
    done = [run | {"final": 1.0} for run in ASSOCIATION.runs()]
    for name in ("mechanism", "variants", "rates"):
        study = command.load(name)
        assert study.path == ASSOCIATION.path
        left = runner.pending(study.runs(), done)
        assert len(left) < len(study.runs())
        assert not any(run["model"] in PROTOCOL and run["rate"] in ASSOCIATION.rates for run in left)


def test_models_and_rates_that_a_study_has_not_are_refused():
    with pytest.raises(ValueError, match=r"models must be among softmax, .*, got transformer"):
        ASSOCIATION.runs(["transformer"])
    with pytest.raises(ValueError, match="binding has no learning rates"):
        binding.STUDY.runs(rates=[0.1])


def test_the_better_rate_is_that_of_the_better_curve():
    groups = summary.outcomes(
        [
            record("softmax", 1e-3, accuracy=[0.1, 0.6], final=0.6),
            record("softmax", 3e-3, accuracy=[0.5, 0.5], final=0.5),
            record("softmax", 3e-3, steps=300, accuracy=[0.9, 0.9]),
        ],
        ["softmax"],
        [1e-3, 3e-3],
    )
    assert len(groups) == 2
    assert summary.best(groups)["softmax"].rate == 3e-3


def test_half_of_the_seeds_must_get_there():
    reached = [64_000, None, None, 128_000, 96_000]
    outcome = summary.Outcome("softmax", 1e-3, [record("softmax", sequences_to_95=n) for n in reached])
    assert outcome.to_95 == 128_000 and outcome.reached == [64_000, 96_000, 128_000]
    outcome = summary.Outcome("softmax", 1e-3, outcome.records[:4])
    assert outcome.to_95 == float("inf")
    assert summary.thousands(outcome.to_95) == "never"


def verdicts(study, found):
    """The last column of the table of claims."""
    lines = report.claims_table([study], {study.path: found})
    return [line.split("|")[-2].strip() for line in lines[2:]]


def test_the_published_figures_bear_the_claims_out():
    assert verdicts(ASSOCIATION, published()) == ["holds"] * 10
    assert verdicts(command.load("mechanism"), published()) == ["holds"] * 3


@pytest.mark.parametrize(
    "model, changes, differing",
    [
        ("softmax", {"final": 0.4}, [0]),
        ("softmax-looped", {"sequences_to_95": 80_000}, [1]),
        ("oscillator", {"final": 0.97}, [2]),
        ("oscillator", {"sequences_to_95": None}, [2, 4, 5, 9]),
        ("static", {"others": {"12": 0.7, "16": 0.7, "24": 0.4}}, [3, 5]),
        ("static", {"sequences_to_95": 128_000}, [4]),
        ("separate", {"sequences_to_95": 64_000}, [5]),
        ("no-steps", {"final": 0.5}, [6]),
        ("no-lag", {"sequences_to_95": 96_000}, [7]),
        ("looped", {"final": 0.9}, [8]),
        ("static-looped", {"sequences_to_95": 96_000}, [9]),
    ],
)
def test_each_claim_can_fail(model, changes, differing):
    found = [r | changes if r["model"] == model else r for r in published()]
    assert [i for i, verdict in enumerate(verdicts(ASSOCIATION, found)) if verdict == "differs"] == differing


def test_claims_wait_for_their_runs():
    assert set(verdicts(ASSOCIATION, [])) == {""}
    short = [r | {"steps": 300} for r in published()]
    assert set(verdicts(ASSOCIATION, short)) == {""}
    assert verdicts(ASSOCIATION, [record("softmax")])[0] == "holds"


@pytest.mark.parametrize(
    "name, figures, other",
    [
        ("multihop", {"oscillator": (0.97, 1), "softmax": (0.3, None)}, {"softmax": (0.99, 1)}),
        ("multihop", {"oscillator": (0.97, 1), "softmax": (0.3, None)}, {"oscillator": (0.3, None)}),
        ("timing", {"oscillator": (1.0, 6400), "softmax": (1.0, 12800)}, {"softmax": (1.0, 6400)}),
        (
            "pairs16",
            {
                "softmax-looped": (1.0, 6400),
                "softmax-2": (1.0, 7000),
                "separate": (1.0, 8000),
                "oscillator": (1.0, 9000),
                "static": (0.9, None),
            },
            {"separate": (1.0, 9000)},
        ),
    ],
)
def test_criteria_that_nobody_has_published_are_judged(name, figures, other):
    study = command.load(name)
    for chosen, verdict in ((figures, "holds"), (figures | other, "differs")):
        found = [
            record(model, task=study.task, final=final, sequences_to_95=reached)
            for model, (final, reached) in chosen.items()
        ]
        assert verdicts(study, found) == [verdict]


def test_a_third_rate_counts_over_the_seeds_that_have_it():
    study = command.load("rates")
    found = [record(model, rate) for model in PROTOCOL for rate in study.rates]
    assert verdicts(study, found[:-1]) == [""]
    assert verdicts(study, found) == ["holds"]
    better = [
        r | {"accuracy": [1.0, 1.0]} if r["model"] == "looped" and r["rate"] == 1e-2 else r for r in found
    ]
    assert verdicts(study, better) == ["differs"]
    alone = record("looped", 3e-3, seed=1, accuracy=[1.0, 1.0])  # a seed that the third rate has not
    assert verdicts(study, [*better, alone]) == ["differs"]
    assert "for T 1 looped ×4" in "".join(report.claims_table([study], {study.path: better}))


def test_a_mechanism_that_does_not_grow_is_told():
    found = copy.deepcopy(published())
    for r in found:
        r["mechanism"]["alignment"] = [0.1, 0.3, 0.2]
        r["mechanism"]["final"]["answer"] = 0.1
    assert verdicts(command.load("mechanism"), found) == ["differs"] * 3


def test_rhythm_is_judged_by_two_models():
    study = command.load("rhythm")
    others = {"others": {}, "task": "rhythm"}
    found = [
        record("oscillator", final=0.16, **others),
        record("softmax-2", sequences_to_95=32_000, **others),
    ]
    assert verdicts(study, found) == ["holds"] * 2
    found = [record("oscillator", final=0.9, **others), record("softmax-2", sequences_to_95=None, **others)]
    assert verdicts(study, found) == ["differs"] * 2


# ---------------------------------------------------------------- binding and decoding


def test_sides_are_read_from_the_axis_of_two_groups():
    rng = np.random.default_rng(0)
    group = binding.group()
    assert group.sum() == 0 and group[0] != group[1]
    theta = np.where(group > 0, 0.3, 0.3 + np.pi) + 0.2 * rng.standard_normal((4, 32)) + 1.7
    assert (binding.accuracy(binding.sides(theta)) == 1.0).all()
    assert binding.accuracy(-group) == 1.0
    assert binding.accuracy(np.ones(32)) == 0.5
    tossed = rng.choice([-1.0, 1.0], size=(20_000, 32))
    assert binding.accuracy(tossed).mean() == pytest.approx(binding.CHANCE, abs=2e-3)


def test_binding_runs(monkeypatch):
    monkeypatch.setattr(binding, "NETWORKS", 6)
    found = []
    for model in binding.MODELS:
        run = {"task": "binding", "model": model, "rate": None, "seed": 0, "steps": 400}
        found.append(run | binding.execute(run, {}, lambda steps: None) | {"date": "2026-11-29"})
    final = {r["model"]: r["final"] for r in found}
    assert final["coupled"] > 0.85 > 0.7 > max(final["scrambled"], final["uncoupled"])
    assert found[0]["time"][:2] == [0.0, 0.2] and len(found[0]["accuracy"]) == 101
    knm, *_ = binding.networks(0)
    assert (knm == knm.transpose(0, 2, 1)).all() and not np.einsum("mii->mi", knm).any()
    assert len(binding.STUDY.tabulate(found)) == 6
    assert verdicts(binding.STUDY, found)[1] == "holds"


def test_decoding_runs():
    run = {"task": "decoding", "model": "coupled", "rate": 1e-2, "seed": 0, "steps": 3}
    found = run | decoding.execute(run, {}, lambda steps: None) | {"date": "2026-11-29"}
    assert len(found["accuracy"]) == len(found["readout"]) == 11
    assert found["accuracy"][0] <= 0.12 and found["accuracy"][-1] > 0.8 and found["pixels"] > 0.9
    assert "10 % to" in "".join(
        report.claims_table([decoding.STUDY], {"decoding.jsonl": [found | {"steps": 2000}]})
    )


def test_decoding_starts_without_the_picture_and_moves_by_the_sum_over_pairs():
    import torch

    network = decoding.network(0)
    x = torch.rand(2, 64, generator=torch.Generator().manual_seed(0))
    first, second, *_ = network(x).detach()
    assert torch.equal(first[0], first[1])
    omega, k = network.drive(x).detach(), network.coupling.detach()
    pull = (k * (first[:, None, :] - first[:, :, None]).sin()).sum(-1)
    torch.testing.assert_close(second, first + decoding.DT * (omega + pull), rtol=1e-5, atol=1e-5)


def test_missing_scikit_learn_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    run = {"model": "coupled", "rate": 1e-2, "seed": 0, "steps": 1}
    with pytest.raises(ImportError, match=r"scikit-learn: pip install 'spo-fast\[experiments\]'"):
        decoding.execute(run, {}, lambda steps: None)


# ---------------------------------------------------------------- pages


def write(folder, found):
    folder.mkdir(exist_ok=True)
    (folder / "association.jsonl").write_text("".join(json.dumps(r) + "\n" for r in found))


def test_pages_are_made_of_records_alone(tmp_path):
    write(tmp_path / "out", published())
    written = report.write(STUDIES, tmp_path / "out", tmp_path / "docs")
    names = {path.name for path in written}
    assert {"association.md", "association.png", "mechanism.md", "experiments.md", "experiments.png"} <= names
    assert not any(name.startswith(("rhythm", "binding")) for name in names)
    page = (tmp_path / "docs" / "association.md").read_text()
    assert "20 of the 100 runs" in page and "2026-11-29; some, 2 cores" in page
    assert all(MODELS[model].label in page for model in PROTOCOL)
    overview = (tmp_path / "docs" / "experiments.md").read_text()
    assert overview.count("| holds |") == 13 and report.PENDING in overview
    for image in re.findall(r"!\[.*?\]\((.*?)\)", page + overview):
        assert (tmp_path / "docs" / image).stat().st_size > 1000


def test_pages_without_any_record(tmp_path):
    written = report.write(STUDIES, tmp_path, tmp_path / "docs")
    assert [path.name for path in written] == ["experiments.md", "experiments.png"]


# ---------------------------------------------------------------- the command


def test_a_study_runs_from_the_command_line_and_is_not_repeated(tmp_path, capsys, monkeypatch):
    from spo_fast.experiments import tasks

    monkeypatch.setattr(tasks, "TESTED", 20)
    monkeypatch.setattr(tasks, "TESTED_OTHER", 20)
    picture = tmp_path / "picture.png"
    arguments = ["experiment", "association", "--steps", "2", "--seeds", "1", "--models", "softmax,no-steps"]
    arguments += ["--out", str(tmp_path / "out"), "--plot", str(picture), "--rates", "1e-3"]
    assert cli.main(arguments) == 0
    first = capsys.readouterr()
    assert "softmax, 1 layer" in first.out and "not run yet" in first.out
    assert "2 of 2 runs" in first.err
    assert picture.stat().st_size > 1000
    found = records.read(tmp_path / "out" / "association.jsonl")
    assert [r["model"] for r in found] == ["softmax", "no-steps"]
    assert cli.main([*arguments, "--workers", "2", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert records.read(tmp_path / "out" / "association.jsonl") == found


def test_the_report_runs_from_the_command_line(tmp_path, capsys):
    write(tmp_path / "out", published()[:3])
    arguments = ["experiment", "report", "--out", str(tmp_path / "out"), "--docs", str(tmp_path / "docs")]
    assert cli.main(arguments) == 0
    assert all(Path(line).exists() for line in capsys.readouterr().out.split())


def test_the_summary_shows_its_picture_wherever_that_is(tmp_path):
    write(tmp_path / "out", published()[:3])
    picture = tmp_path / "elsewhere" / "summary.png"
    picture.parent.mkdir()
    arguments = ["--out", str(tmp_path / "out"), "--docs", str(tmp_path / "docs"), "--plot", str(picture)]
    assert cli.main(["experiment", "report", *arguments]) == 0
    (link,) = re.findall(r"!\[.*\]\((.*)\)", (tmp_path / "docs" / "experiments.md").read_text("utf-8"))
    assert (tmp_path / "docs" / link).resolve() == picture.resolve()


@pytest.mark.parametrize(
    "arguments",
    [
        ["experiment"],
        ["experiment", "nonsense"],
        ["experiment", "rhythm", "--steps", "0"],
        ["experiment", "rhythm", "--rates", "0"],
        ["experiment", "rhythm", "--rates", "fast"],
        ["experiment", "rhythm", "--implementation", "quick"],
    ],
)
def test_wrong_arguments_are_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ": error: " in line


def test_wrong_models_are_one_line(capsys, tmp_path):
    assert cli.main(["experiment", "rhythm", "--models", "looped", "--out", str(tmp_path)]) == 2
    assert "models must be among softmax" in capsys.readouterr().err


def test_pytorch_is_loaded_by_no_list_of_options():
    script = "import sys; from spo_fast import cli; cli._parser(); print({'torch', 'numba'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr


def test_missing_pytorch_is_one_line(tmp_path):
    script = (
        "import sys; sys.modules['torch'] = None; from spo_fast import cli; "
        f"sys.exit(cli.main(['experiment', 'rhythm', '--out', {str(tmp_path)!r}, '--quiet']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "spo-fast[torch]" in done.stderr and len(done.stderr.splitlines()) == 1
