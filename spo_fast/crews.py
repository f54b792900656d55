"""Who computes the runs of a sweep: the calling thread, threads of this process, or a cluster."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from spo_fast.validation import describe, package

PATIENCE = 1.0  # seconds that threads get to end after Ctrl-C

Index = tuple[int, ...]
Task = tuple[Index, dict[str, Any]]  # a run's place, and what it is called with
Outcome = tuple[Index, Any, BaseException | None]  # a run's place, and its result or what it raised


class Crew(Protocol):
    """Who computes. Outcomes stay in `finished` until they are kept, so that Ctrl-C loses none."""

    finished: deque[Outcome]

    def wait(self) -> bool:
        """Wait until there is an outcome; False when there will be none."""

    def stop(self) -> None:
        """Give up what is not finished."""


def crew_for(workers: int, client: Any) -> Callable[[Callable[..., Any], list[Task]], Crew]:
    """Return what starts those who compute, when it is given the function and its tasks.

    Raises
    ------
    ValueError
        If `client` is none, or has workers of its own beside `workers`.
    ImportError
        If distributed is missing, naming the extra.
    """
    if client is None:
        return functools.partial(Threads, workers) if workers > 1 else Here
    distributed = package("distributed", "sweep", "studies")
    if not isinstance(client, distributed.Client):
        raise ValueError(f"client must be a dask.distributed.Client, got {describe(client)}")
    if workers != 1:
        raise ValueError(f"workers must be 1 where a client has its own, got {workers}")
    return functools.partial(Cluster, client)


def _outcome(run: Callable[..., Any], task: Task) -> Outcome:
    index, arguments = task
    try:
        return index, run(**arguments), None
    except Exception as error:
        return index, None, error


class Here:
    """One run after the other, in the calling thread."""

    def __init__(self, run: Callable[..., Any], tasks: list[Task]) -> None:
        self.finished: deque[Outcome] = deque()
        self._run, self._tasks = run, iter(tasks)

    def wait(self) -> bool:
        """Make the next run."""
        task = next(self._tasks, None)
        if task is None:
            return False
        self.finished.append(_outcome(self._run, task))
        return True

    def stop(self) -> None:
        """Nothing goes on."""


class Stopped(SystemExit):
    """Raised in a thread that shall end; one that it ends says nothing."""


class Threads:
    """Runs in threads of this process, of which a kill loses no more than one each."""

    def __init__(self, workers: int, run: Callable[..., Any], tasks: list[Task]) -> None:
        self.finished: deque[Outcome] = deque()
        self._run, self._tasks, self._lock = run, iter(tasks), threading.Lock()
        self._ready, self._left = threading.Semaphore(0), len(tasks)
        crew = min(workers, len(tasks))
        self._room = threading.Semaphore(crew)  # for runs that are not kept yet
        self._waited = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(crew)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while True:
            self._room.acquire()
            with self._lock:
                task = next(self._tasks, None)
            if task is None:
                return
            try:
                outcome = _outcome(self._run, task)
            except Stopped:
                return
            except BaseException as error:  # a thread that dies without a word would be waited for
                outcome = (task[0], None, error)
            self.finished.append(outcome)
            self._ready.release()

    def wait(self) -> bool:
        """Wait for a thread; the outcome before is kept."""
        if self._waited:
            self._room.release()
        self._waited = True
        if self._left == 0:
            return False
        while not self._ready.acquire(timeout=0.5):  # with a timeout, so that Ctrl-C is answered everywhere
            pass
        self._left -= 1
        return True

    def stop(self) -> None:
        """End the threads at their next line of Python; kernels come back to it every 50 ms."""
        with self._lock:
            self._tasks = iter(())
        for thread in self._threads:
            self._room.release()
            if thread.is_alive():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stopped)
                )
        for thread in self._threads:
            thread.join(PATIENCE / len(self._threads))


class Cluster:
    """Runs in the processes of a cluster."""

    def __init__(self, client: Any, run: Callable[..., Any], tasks: list[Task]) -> None:
        from distributed import as_completed

        self.finished: deque[Outcome] = deque()
        self._client = client
        futures = client.map(functools.partial(_outcome, run), tasks, pure=False) if tasks else []
        self._places = {future: task[0] for future, task in zip(futures, tasks, strict=True)}
        self._completed = iter(as_completed(futures) if futures else ())

    def wait(self) -> bool:
        """Wait for a future."""
        future = next(self._completed, None)
        if future is None:
            return False
        self._take(future)
        return True

    def _take(self, future: Any) -> None:
        place = self._places.pop(future)
        try:
            self.finished.append(future.result())
        except Exception as error:  # of the cluster: a worker died, a result cannot be sent
            self.finished.append((place, None, error))
        future.release()

    def stop(self) -> None:
        """Fetch what is finished and cancel the rest."""
        done = [future for future in self._places if future.status == "finished"]
        self._client.cancel([future for future in self._places if future not in done])
        for future in done:
            self._take(future)
