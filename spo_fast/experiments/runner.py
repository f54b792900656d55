"""Runs in worker processes: each once, its record on disk as soon as it is finished.

A worker has a pipe to its parent and computes on one thread. When the parent is gone, however it went, the
worker ends at its next report.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import strftime
from typing import Any

from spo_fast.experiments.records import Record, Records

Run = dict[str, Any]  # what identifies a run: the values of the keys of its record
Report = Callable[[int], None]  # called with a number of steps that are done
Execute = Callable[[Run, Report], Record]


def pending(runs: Sequence[Run], records: Sequence[Record]) -> list[Run]:
    """Leave out the runs that are in the records.

    Parameters
    ----------
    runs : sequence of dict
    records : sequence of dict
        A run is in a record that has the same values under the run's keys.

    Returns
    -------
    list of dict
        In order.
    """
    return [run for run in runs if not any(_describes(record, run) for record in records)]


def _describes(record: Record, run: Run) -> bool:
    return all(key in record and record[key] == value for key, value in run.items())


def run_all(
    runs: Sequence[Run],
    execute: str,
    path: Path,
    *,
    settings: Record | None = None,
    workers: int = 1,
    progress: bool = True,
) -> list[Record]:
    """Execute the runs that are not on file yet and put each on file when it is finished.

    Parameters
    ----------
    runs : sequence of dict
        In the order in which they are started. Each has "steps".
    execute : str
        MODULE:FUNCTION, called with a run, the settings and a callback for the number of steps that were
        done since the last call; returns what is added to the run in its record.
    path : Path
        File of records.
    settings : dict, optional
        What is passed on to every run but does not tell runs apart.
    workers : int
        Processes; 1 computes in this one.
    progress : bool
        Show a bar of the steps.

    Returns
    -------
    list of dict
        All records of the file.

    Raises
    ------
    RuntimeError
        When a worker dies or another process writes to the file. What is on file stays.
    ImportError
        When a bar is wanted and tqdm is missing.
    """
    with Records(path) as records:
        left = pending(runs, records.found)
        found = list(records.found)
        with _bar(left, len(runs), progress) as report:
            for record in _execute_all(left, execute, settings or {}, min(workers, len(left)), report):
                dated = record | {"date": strftime("%Y-%m-%d")}
                records.append(dated)
                found.append(dated)
    return found


@contextmanager
def _bar(left: Sequence[Run], total: int, progress: bool) -> Iterator[Report]:
    if not progress or not left:
        yield lambda steps: None
        return
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("a progress bar needs tqdm: pip install 'spo-fast[progress]'") from error
    steps = sum(run["steps"] for run in left)
    with tqdm(total=steps, unit="step", desc=f"{len(left)} of {total} runs", smoothing=0.02) as bar:
        yield bar.update


def _execute_all(
    runs: Sequence[Run], execute: str, settings: Record, workers: int, report: Report
) -> Iterator[Record]:
    function = _load(execute)  # here too where workers do it: what is missing is told once and early
    if workers > 1:
        yield from _in_workers(runs, execute, settings, workers, report)
        return
    for run in runs:
        yield run | function(run, settings, report)


def _load(name: str) -> Callable[[Run, Record, Report], Record]:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


# ---------------------------------------------------------------- processes


def _in_workers(
    runs: Sequence[Run], execute: str, settings: Record, workers: int, report: Report
) -> Iterator[Record]:
    context = multiprocessing.get_context("spawn")  # a process with threads must not be forked
    waiting = iter(runs)
    busy: dict[Connection, Run] = {}
    processes = []

    def give(pipe: Connection) -> None:
        run = next(waiting, None)
        if run is None:
            pipe.send(None)
            return
        busy[pipe] = run
        pipe.send(run)

    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, execute, settings), daemon=True)
            process.start()
            processes.append(process)
            theirs.close()
            give(ours)
        while busy:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                kind, content = _receive(pipe, busy[pipe])
                if kind == "steps":
                    report(content)
                    continue
                yield busy.pop(pipe) | content
                give(pipe)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _receive(pipe: Connection, run: Run) -> tuple[str, Any]:
    try:
        kind, content = pipe.recv()
    except EOFError as error:
        raise RuntimeError(f"the process of run {run} died") from error
    if kind == "error":
        raise RuntimeError(f"run {run} failed: {content}")
    return kind, content


def _work(pipe: Connection, execute: str, settings: Record) -> None:
    """Execute what comes through the pipe until None comes, or until nobody is at its other end."""
    try:
        function = _load(execute)
        while (run := pipe.recv()) is not None:
            try:
                record = function(run, settings, lambda steps: pipe.send(("steps", steps)))
            except (EOFError, BrokenPipeError, KeyboardInterrupt):
                raise
            except Exception as error:
                pipe.send(("error", f"{type(error).__name__}: {error}"))
                return
            pipe.send(("record", record))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
