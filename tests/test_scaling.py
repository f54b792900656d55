"""How the cost grows: the arithmetic of the table and of the fit, and the command that prints them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from spo_fast import cli, scaling

QUICK = {"rounds": 1, "sample_seconds": 1e-4}


def a_row(n):
    return scaling.Row(
        n,
        modulate=2e-9 * n**2,
        attention=1e-7 * n,
        modulated=1e-9 * n**2,
        plain=1e-10 * n**2,
        copy=1e-9 * n**2,
    )


def test_rows_hold_what_was_measured(monkeypatch):
    monkeypatch.setattr(scaling, "STEPS", scaling.LEAST_STEPS)
    first, second = scaling.measure([3, 5], backend="numpy", **QUICK)
    assert (first.n, second.n) == (3, 5)
    assert min(first.modulate, first.attention, first.copy) > 0.0


def test_powers_are_those_of_the_largest_sizes():
    rows = [a_row(n) for n in (1024, 2048, 4096)]
    rows.insert(0, scaling.Row(16, 1.0, 1.0, 1.0, 1.0, 1.0))
    assert scaling.exponent(rows, "modulate") == pytest.approx(2.0)
    assert scaling.exponent(rows, "attention") == pytest.approx(1.0)
    assert math.isnan(scaling.exponent(rows[:2], "attention"))


def test_the_table_holds_ratios():
    lines = scaling.table([a_row(1024), a_row(2048)]).splitlines()
    assert lines[2].split(" | ")[2:5] == ["2.0", "102.4", "100"]
    assert "modulate 2.00, attention 1.00" in lines[-1]


def test_json_holds_everything():
    rows = [a_row(16)]
    text = scaling.to_json(rows)
    assert json.loads(text)["machine"]["numpy"] == np.__version__
    assert scaling.from_json(text)[0] == rows


def test_the_command_prints_and_draws(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(scaling, "measure", lambda *given, **options: [a_row(16), a_row(32)])
    picture = tmp_path / "scaling.png"
    assert cli.main(["bench", "--scaling", "--plot", str(picture)]) == 0
    assert capsys.readouterr().out.startswith("| N |")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert cli.main(["bench", "--scaling", "--backends", "numba,cython"]) == cli.FAILURE
    assert "--scaling measures one backend" in capsys.readouterr().err
