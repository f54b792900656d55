"""What modulation adds to a step: the arithmetic of the three figures, and the command that prints them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from spo_fast import bench, cli, overhead

QUICK = {"rounds": 1, "sample_seconds": 1e-4}


@pytest.fixture(scope="module")
def rows():
    return overhead.measure([5], ["euler", "rk45"], backend="numpy", **QUICK)


def timing(seconds):
    return bench.Timing(seconds, seconds)


def a_row(**changes):
    values = {
        "n": 16, "method": "euler", "plain": timing(1e-6), "modulated": timing(4e-6),
        "modulate": timing(2e-6), "attention": timing(1e-6), "bound": 2e-6,
        "rarely": overhead.Rarely(30, 0.09, 1e-3, 2e-3), "shared": timing(1e-6),
        "orchestrator_step": 200e-6, "orchestrator_run": 4e-6,
    }  # fmt: skip
    return overhead.Row(**(values | changes))


def test_rows_hold_what_was_measured(rows):
    assert [(row.n, row.method) for row in rows] == [(5, "euler"), (5, "rk45")]
    for row in rows:
        assert row.overhead == row.modulated.minimum / row.plain.minimum - 1.0
        assert row.rarely.k >= 1 and 0.0 <= row.rarely.radius <= 1.0 and 0.0 <= row.rarely.phase <= np.pi
        assert row.orchestrator_step is None and row.shared.minimum > 0.0


def test_the_table_says_percentages_of_the_other_step():
    cells = overhead.table([a_row()]).splitlines()[2].split(" | ")
    assert cells[2:10] == ["1 %", "50 %", "0.5 %", "25 %", "1", "4", "300 %", "2.00"]
    cells = overhead.table([a_row(bound=None, orchestrator_step=None)]).splitlines()[2].split(" | ")
    assert [k for k, cell in enumerate(cells) if cell == "-"] == [2, 4, 9]
    assert overhead.table([a_row(shared=None)]).count(" - |") == 2


def test_json_holds_everything(rows):
    data = json.loads(overhead.to_json(rows))
    assert data["rows"][1]["method"] == "rk45"
    assert data["machine"]["numpy"] == np.__version__
    assert overhead.from_json(overhead.to_json(rows)) == (rows, data["machine"])


def test_modulating_at_every_step_changes_nothing():
    assert overhead.trajectory_error(1, 6, "rk4") == (0.0, 0.0)
    assert overhead.trajectory_error(1) == (0.0, 0.0)


@pytest.mark.parametrize(
    "a, b, k", [(3.0, 0.0, 30), (3.0, -0.2, 10), (3.0, 0.06, 75), (0.05, 0.0, 1), (9.0, -0.05, 60)]
)
def test_the_smallest_k_is_found(monkeypatch, a, b, k):
    """Steps whose overhead is a / k + b."""
    monkeypatch.setattr(overhead, "_steps", lambda n, method, backend, every: every)
    monkeypatch.setattr(overhead, "trajectory_error", lambda k, *_: (0.0, 0.0))

    def interleaved(operations, rounds, seconds):
        _, every = operations
        return [timing(1e-6), timing(1e-6 * (every * (1.0 + b) + a))]

    monkeypatch.setattr(bench, "interleaved", interleaved)
    found = overhead._rarely(9, "euler", None, a + b, 1, 1e-3)
    assert found.k in (k, k + 1)  # rounding
    assert found.overhead == pytest.approx(a / found.k + b)


def test_a_budget_that_no_k_keeps_is_told(monkeypatch):
    monkeypatch.setattr(overhead, "_steps", lambda n, method, backend, every: every)
    monkeypatch.setattr(overhead, "trajectory_error", lambda k, *_: (0.0, 0.0))
    monkeypatch.setattr(
        bench, "interleaved", lambda ops, *_: [timing(1e-6), timing(1e-6 * (1.2 * ops[1] + 1.0))]
    )
    found = overhead._rarely(9, "euler", None, 1.2, 1, 1e-3)
    assert found.k == 8 * 12 and found.overhead > overhead.BUDGET
    assert overhead.table([a_row(rarely=found)]).splitlines()[2].split(" | ")[10] == "> 96"


def test_keeping_the_coupling_longer_costs_more():
    short, long = (overhead.trajectory_error(k)[0] for k in (2, 16))
    assert 0.0 < short < long < 0.1


def test_the_bound_adds_the_attention_to_the_walk_over_the_coupling(monkeypatch):
    if overhead._bound(16, "euler", 0.0) is None:
        pytest.skip("the C core, which measures the machine, is not built")
    monkeypatch.setattr(bench, "peak_rate", lambda: 1e9)
    monkeypatch.setattr(bench, "read_bandwidth", lambda n: 1e12)
    assert overhead._bound(10, "euler", 1e-6) == pytest.approx(1e-6 + 650e-9)
    assert overhead._bound(10, "rk4", 1e-6) == pytest.approx(1e-6 + 650e-9 + 3 * 200e-9)


def test_an_interpreter_without_the_orchestrator_is_told():
    with pytest.raises(RuntimeError, match=r"orchestrator could not be measured with .*No module named"):
        overhead.measure([4], ["euler"], orchestrator=sys.executable, **QUICK)


def test_the_command_prints_and_draws(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(overhead, "measure", lambda *given, **options: [a_row(), a_row(n=64, bound=None)])
    picture = tmp_path / "steps.png"
    assert cli.main(["bench", "--overhead", "--plot", str(picture)]) == 0
    assert capsys.readouterr().out.startswith("| N | method |")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert cli.main(["bench", "--overhead", "--backends", "numba,cython"]) == cli.FAILURE
    assert "one backend" in capsys.readouterr().err
