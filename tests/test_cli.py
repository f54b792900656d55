"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import spo_fast
from spo_fast import bench, cli, demo


def failure(capsys, *arguments):
    """The single line that a failing command leaves on standard error."""
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"spo-fast {spo_fast.__version__}\n"


def test_the_module_can_be_run():
    command = [sys.executable, "-m", "spo_fast.cli", "--version"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert output.startswith("spo-fast ")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["demo", "--steps", "0"],
        ["demo", "--steps", "ten"],
        ["bench", "--sizes", "16,,64"],
        ["bench", "--sizes", "-4"],
        ["bench", "--rounds", "1.5"],
    ],
)
def test_wrong_arguments_end_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_backends_lists_each_with_its_state(capsys):
    assert cli.main(["backends"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert listed == spo_fast.backends()


def test_demo_passes_its_options_on(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(demo, "main", lambda *given, **options: calls.append((given, options)))
    assert cli.main(["demo", "--out", str(tmp_path)]) == 0
    assert cli.main(["demo", "--quick", "--backend", "numpy"]) == 0
    assert cli.main(["demo", "--quick", "--steps", "7"]) == 0
    assert calls[0] == ((tmp_path, 20_000), {"rounds": 3, "backend": None})
    assert calls[1][0][1] == 2_000
    assert calls[1][1] == {"rounds": 1, "backend": "numpy"}
    assert calls[2][0][1] == 7


def test_an_unwritable_folder_is_one_clear_line(capsys, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert str(blocked) in failure(capsys, "demo", "--out", str(blocked / "out"), "--steps", "1")


def test_an_unknown_backend_is_one_clear_line(capsys):
    assert "abacus" in failure(capsys, "demo", "--backend", "abacus", "--steps", "1")
    assert "abacus" in failure(capsys, "bench", "--backends", "abacus")


def test_missing_matplotlib_is_one_clear_line(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert failure(capsys, "demo", "--steps", "1") == (
        "spo-fast: error: plotting needs Matplotlib: pip install 'spo-fast[plot]'"
    )


def test_ctrl_c_ends_without_a_traceback(capsys, monkeypatch):
    def interrupt(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "main", interrupt)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err == "spo-fast: interrupted\n"


@pytest.fixture(scope="module")
def measured():
    return bench.measure([5, 8], ["numpy"], rounds=2, sample_seconds=1e-4)


def test_bench_prints_a_row_for_each_size(measured, capsys, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda *given, **options: measured)
    assert cli.main(["bench", "--sizes", "5,8", "--backends", "numpy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["5", "numpy"], ["8", "numpy"]]
    assert len({len(line) for line in lines[:3]}) == 1


def test_bench_json_holds_everything(measured, capsys, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda *given, **options: measured)
    assert cli.main(["bench", "--json"]) == 0
    text = capsys.readouterr().out
    assert bench.from_json(text) == measured
    assert json.loads(text)["cells"][0]["plain"]["minimum"] > 0.0


def test_bench_measures_what_it_says(measured):
    for cell in measured.cells:
        assert cell.error == 0.0
        for timing in (cell.plain, cell.modulated, cell.modulate):
            assert 0.0 < timing.minimum <= timing.median
        assert cell.modulated.minimum > cell.plain.minimum
        assert cell.overhead == 100.0 * (cell.modulated.minimum / cell.plain.minimum - 1.0)


def test_every_backend_agrees_with_the_reference(backend):
    assert bench.parity_error(24, backend) <= 1e-13


def test_rounds_turn_the_order_round():
    order = []
    operations = [lambda repeats, name=name: order.append(name) for name in "ab"]
    bench.interleaved(operations, 2, sample_seconds=0.0)
    assert "".join(order).endswith("abba")


def test_the_bound_takes_the_scarcer_of_arithmetic_and_bandwidth():
    assert bench.step_bound(10, peak=1e9, bandwidth=1e12) == pytest.approx(100 * 2e-9)
    assert bench.step_bound(10, peak=1e12, bandwidth=8e9) == pytest.approx(100 * 1e-9)


def test_bench_reports_what_is_missing(monkeypatch):
    state = {"numpy": "available", "cython": "not built"}
    monkeypatch.setattr(bench, "backends", lambda: state)
    result = bench.measure([4], ["numpy", "cython"], rounds=1, sample_seconds=1e-4)
    assert result.missing == {"cython": "not built"}
    assert "cython: not built" in bench.table(result)
    with pytest.raises(ValueError, match="none of the backends asked for is available: cython"):
        bench.measure([4], ["cython"])
    with pytest.raises(ValueError, match="got abacus"):
        bench.measure([4], ["abacus"])
