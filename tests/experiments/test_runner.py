"""Runs in processes: none lost, none repeated, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spo_fast.experiments import runner
from spo_fast.experiments.records import read

HERE = Path(__file__).resolve().parent
EXECUTE = "work:execute"
RUNS = [{"model": "a", "seed": seed, "steps": 2} for seed in range(5)]

SCRIPT = f"""
import sys
from pathlib import Path
if __name__ == "__main__":
    from spo_fast.experiments import runner
    runs = [{{"model": "a", "seed": seed, "steps": 10}} for seed in range(6)]
    settings = {{"seconds": 0.02}}
    runner.run_all(runs, {EXECUTE!r}, Path(sys.argv[1]), settings=settings, workers=2, progress=False)
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def run_all(path, runs=RUNS, **options):
    return runner.run_all(runs, EXECUTE, path, progress=False, **options)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_run_is_done_once(tmp_path, workers):
    path = tmp_path / "a.jsonl"
    first = run_all(path, RUNS[:2], workers=workers)
    records = run_all(path, workers=workers)
    assert sorted(record["seed"] for record in records) == [0, 1, 2, 3, 4]
    assert all(record["result"] == record["seed"] ** 2 and record["date"] for record in records)
    assert records[:2] == first
    assert run_all(path, workers=workers) == records == read(path)
    assert len({record["pid"] for record in first} | {os.getpid()}) == (1 if workers == 1 else 3)


def test_runs_that_differ_in_anything_are_different():
    records = [RUNS[0] | {"result": 0}]
    assert runner.pending(RUNS, records) == RUNS[1:]
    assert runner.pending([RUNS[0] | {"steps": 3}], records)
    assert runner.pending([RUNS[0] | {"rate": None}], records)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_fails_ends_the_others_and_keeps_what_is_done(tmp_path, workers):
    path = tmp_path / "a.jsonl"
    with pytest.raises((RuntimeError, ValueError), match="this one fails"):
        run_all(path, settings={"fails": 3}, workers=workers)
    assert len(read(path)) >= 2
    assert len(run_all(path, workers=workers)) == 5


def test_a_process_that_dies_is_told(tmp_path):
    with pytest.raises(RuntimeError, match=r"the process of run \{.*'seed': 2.*\} died"):
        run_all(tmp_path / "a.jsonl", settings={"dies": 2}, workers=2)


def test_work_that_cannot_be_loaded_is_told_before_any_process_starts(tmp_path):
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        runner.run_all(RUNS, "nowhere:execute", tmp_path / "a.jsonl", workers=2, progress=False)


def test_progress_counts_the_steps_that_are_left(tmp_path, capsys):
    run_all(tmp_path / "a.jsonl", RUNS[:1])
    runner.run_all(RUNS, EXECUTE, tmp_path / "a.jsonl")
    shown = capsys.readouterr().err
    assert "4 of 5 runs" in shown and "8/8" in shown


def test_a_bar_without_tqdm_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match=r"spo-fast\[progress\]"):
        runner.run_all(RUNS, EXECUTE, tmp_path / "a.jsonl")


def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path):
    path, script = tmp_path / "a.jsonl", tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(path)]
    paths = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    environment = os.environ | {"PYTHONPATH": paths}
    process = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") >= 2):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = path.read_bytes()
    finished = read(path)
    assert 2 <= len(finished) < 6
    with path.open("ab") as file:
        file.write(b'{"model": "a", "seed": 5, "st')  # what a kill during writing leaves
    for pid in {record["pid"] for record in finished}:
        while Path(f"/proc/{pid}").exists():  # workers go when they find their parent gone
            assert time.monotonic() < deadline
            time.sleep(0.005)
    subprocess.run(command, env=environment, check=True, timeout=60)
    records = read(path)
    assert path.read_bytes().startswith(kept)
    assert sorted(record["seed"] for record in records) == [0, 1, 2, 3, 4, 5]
