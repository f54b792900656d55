"""The ablation: what is varied, what the tables say, and what the command prints."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from spo_fast import ablation, cli, physics
from spo_fast.ablation import Variant

SHORT = replace(physics.ONSET, name="short", warm_up=20, measured=10)


@pytest.fixture(scope="module")
def result():
    return ablation.measure(setups=[SHORT], seeds=3)


def test_one_at_a_time_varies_each_parameter_alone():
    variants = ablation.one_at_a_time()
    assert len(variants) == len(set(variants)) == 1 + 4 + 3 + 2 + 2
    for variant in variants:
        changed = [name for name, value in vars(variant).items() if value != getattr(Variant(), name)]
        assert len(changed) <= 1


def test_the_grid_holds_every_combination():
    variants = ablation.grid()
    assert len(variants) == len(set(variants)) == 5 * 4 * 3 * 3
    assert set(ablation.one_at_a_time()) <= set(variants)


def test_lambda_0_drifts_by_exactly_nothing(result):
    (cell,) = [cell for cell in result.cells if cell.variant == Variant(lambda_=0.0)]
    assert cell.drift.mean == cell.drift.smallest == cell.drift.largest == cell.drift.error == 0.0


def test_drift_is_the_ratio_of_means_with_its_error():
    rng = np.random.default_rng(1)
    plain = rng.uniform(0.5, 1.0, 400)
    modulated = plain * 1.1 + rng.normal(0.0, 0.02, 400)
    found = physics.drift(plain, modulated)
    assert found.mean == pytest.approx(10.0, abs=4 * found.error)
    again = [physics.drift(plain, plain * 1.1 + rng.normal(0.0, 0.02, 400)).mean for _ in range(200)]
    assert found.error == pytest.approx(np.std(again), rel=0.25)
    assert found.smallest == pytest.approx(100 * (modulated / plain - 1).min(), rel=1e-12)


def test_a_drift_is_what_two_runs_give(result):
    (cell,) = [cell for cell in result.cells if cell.variant == Variant(n_heads=2)]
    plain = physics.mean_orders(SHORT, None, range(3))
    modulated = physics.mean_orders(SHORT, {"lambda_": 0.5, "n_heads": 2}, range(3))
    assert cell.drift == physics.drift(plain, modulated)


def test_markdown_has_a_table_a_parameter(result):
    text = ablation.markdown(result)
    assert [line[4:] for line in text.splitlines() if line.startswith("### ")] == [
        "lambda",
        "n_heads",
        "block_size",
        "temperature",
    ]
    row = next(line for line in text.splitlines() if line.startswith("| 0.25 |"))
    assert row.startswith("| 0.25 | ~3 | ")
    blocks = text.partition("### block_size")[2].partition("###")[0].splitlines()
    assert [line.split("|")[1].strip() for line in blocks if line.startswith("| ")] == [
        "block_size",
        "---",
        "none",
        "4",
        "2",
    ]


def test_the_grid_is_one_table():
    variants = [Variant(), Variant(lambda_=0.1, n_heads=2)]
    text = ablation.markdown(ablation.measure(variants, [SHORT], seeds=2))
    assert "| 0.1 | 2 | none | 1 |" in text
    assert "### " not in text


def test_the_scan_is_a_row_for_each_coupling(monkeypatch):
    monkeypatch.setattr(physics, "SETTLED", SHORT)
    scanned = ablation.measure([Variant()], [SHORT], couplings=[1.0, 2.5], seeds=2)
    text = ablation.markdown(scanned)
    assert "### mean coupling, 20 + 10 steps" in text
    rows = [line.split("|")[1].strip() for line in text.partition("### mean")[2].splitlines() if "|" in line]
    assert rows == ["mean K", "---", "published", "1/N", "2.5/N"]


def test_json_holds_everything(result):
    data = json.loads(ablation.to_json(result))
    assert len(data["cells"]) == len(result.cells)
    assert data["cells"][0]["setup"]["coupling"] == 1.5
    assert data["published"]["1.0"] == "~11"
    assert data["seeds"] == 3


def test_one_seed_is_refused():
    with pytest.raises(ValueError, match="seeds must be at least 2, got 1"):
        ablation.measure(seeds=1)


def test_criteria_cover_all_five():
    rows = ablation.criteria(seeds=2, sizes=[4])
    assert {what[0] for what, _, _ in rows} == set("12345")
    text = ablation.criteria_markdown(rows, 2)
    assert text.count("\n| ") == len(rows) + 2


def test_the_command_prints_or_writes(result, capsys, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(ablation, "measure", lambda *given, **named: calls.append((given, named)) or result)
    assert cli.main(["ablate"]) == 0
    assert capsys.readouterr().out == ablation.markdown(result)
    path = tmp_path / "ablation.json"
    assert cli.main(["ablate", "--seeds", "3", "--grid", "--json", "--out", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(path.read_text())["seeds"] == 3
    assert calls[0] == ((None,), {"couplings": ablation.COUPLINGS, "seeds": ablation.SEEDS, "backend": None})
    assert calls[1] == ((ablation.grid(),), {"couplings": (), "seeds": 3, "backend": None})


def test_the_command_measures_the_criteria(capsys, monkeypatch):
    monkeypatch.setattr(ablation, "criteria", lambda **options: [("1. a", "2", "3")])
    assert cli.main(["ablate", "--physics", "--seeds", "2"]) == 0
    assert "| 1. a | 2 | 3 |" in capsys.readouterr().out
    assert cli.main(["ablate", "--physics", "--seeds", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["criteria"] == [["1. a", "2", "3"]]


def test_the_command_refuses_one_seed(capsys):
    assert cli.main(["ablate", "--seeds", "1"]) == 2
    assert capsys.readouterr().err == "spo-fast: error: seeds must be at least 2, got 1\n"
