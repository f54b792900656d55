"""Long runs on disk: what a run needs to go on after it was killed, bit for bit as if it had not been.

A file holds the state of the run, all that it has recorded so far and what tells the run from others, and
ends in a checksum of everything before it. It appears under its name complete or not at all; the one it
replaces is kept beside it. A run is continued only from a file that is sound and that the same run left.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from spo_fast.backends.record import Record
from spo_fast.backends.status import Status
from spo_fast.files import as_path, require_writable
from spo_fast.runs import Follower, Run, advance
from spo_fast.validation import ModulationParameters, Network, SparseCoupling, describe, integer

_MAGIC = b"spo_fast checkpoint 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_BLOCK = 1 << 20  # bytes read at a time for the checksum
_RECORDED = ("theta", "t", "R", "psi", "t_observe")  # fields of a Record

_Content = tuple[dict[str, Any], list[dict[str, np.ndarray]]]  # header, and arrays of each integration


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a run leaves its checkpoints, and how often.

    Attributes
    ----------
    path : Path
        The file.
    every : int
        Steps from one to the next.
    """

    path: Path
    every: int

    @classmethod
    def checked(cls, path: Any, every: Any) -> Checkpoint:
        """Check the arguments of `simulate`, of which one at least was given.

        Raises
        ------
        ValueError
            If one is of the wrong kind, or came without the other.
        OSError
            If the file could not be written.
        """
        if path is None:
            raise ValueError(f"checkpoint_every needs checkpoint, a path, got {describe(every)} without one")
        file = as_path(path, "checkpoint").resolve()
        if every is None:
            raise ValueError("checkpoint needs checkpoint_every, a number of steps, got None")
        count = integer(every, "checkpoint_every", 1)
        require_writable([file])
        return cls(file, count)

    @property
    def previous(self) -> Path:
        """The file that was replaced last."""
        return self.path.with_name(f"{self.path.name}.previous")


# ---------------------------------------------------------------- identity


def identity(
    run: Run,
    net: Network,
    theta: np.ndarray,
    backend: str,
    *,
    omega: np.ndarray | None = None,
    knm: np.ndarray | SparseCoupling | None = None,
    strengths: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return what decides about the bits of a run, under the names of `simulate`; arrays by their digests.

    Parameters
    ----------
    run : Run
        What is done.
    net : Network
        The right-hand side.
    theta : ndarray, shape (N,) or (M, N), radians
        Where the run begins.
    backend : str
        Name of the backend.
    omega, knm, strengths : optional
        Frequencies, couplings and modulation strengths of an ensemble in place of those of `net`.
    """
    values: dict[str, Any] = {
        "theta": _digest(theta),
        "omega": _digest(net.omega if omega is None else omega),
        "knm": _digest(net.knm if knm is None else knm),
        "alpha": net.uniform_alpha if net.alpha is None else _digest(net.alpha),
        "zeta": net.zeta,
        "psi": net.psi,
        "dt": run.dt,
        "method": run.method,
        "record_every": run.every or None,
        "observe": sorted(run.observed),
    }
    if run.method == "rk45":
        values |= {"atol": run.atol, "rtol": run.rtol}
    if net.modulation is not None:
        values |= _modulation(net.modulation, strengths) | {"modulate_every": net.modulate_every}
    return values | _software(backend)


def _modulation(p: ModulationParameters, strengths: np.ndarray | None) -> dict[str, Any]:
    weights = {name: _digest(getattr(p, name)) for name in ("w_q", "w_k", "w_v", "w_o")}
    return weights | {
        "n_heads": p.n_heads,
        "block_size": p.block_size,
        "temperature": p.temperature.tolist(),
        "lambda_": p.lambda_ if strengths is None else _digest(strengths),
        "algorithm": p.algorithm,
    }


def _digest(value: np.ndarray | SparseCoupling) -> str:
    parts = (value.indptr, value.indices, value.data) if isinstance(value, SparseCoupling) else (value,)
    total = hashlib.sha256()
    for part in parts:
        array = np.ascontiguousarray(part)
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(_bytes(array))
    return f"sha256:{total.hexdigest()}"


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _software(backend: str) -> dict[str, Any]:
    """What computes: another version, or another processor's instructions, may round otherwise."""
    import spo_fast

    software = {"backend": backend, "version of spo_fast": spo_fast.__version__}
    if backend == "cython":
        from spo_fast import _core

        return software | {"instruction set": _core.instruction_set()}
    if backend == "numba":
        import llvmlite.binding
        import numba

        return software | {
            "version of numba": numba.__version__,
            "processor": llvmlite.binding.get_host_cpu_name(),
        }
    return software | {"version of numpy": np.__version__} if backend == "numpy" else software


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Tell what differs; empty where nothing does."""
    told = []
    for name in dict.fromkeys((*then, *now)):
        before, after = (json.loads(json.dumps(values.get(name))) for values in (then, now))
        if before == after:
            continue
        plain = not any(str(value).startswith("sha256:") for value in (before, after))
        told.append(f"{name} was {before!r} and is {after!r}" if plain else f"{name} is another one")
    return "; ".join(told)


# ---------------------------------------------------------------- files


class _Damaged(Exception):
    """A file that no run left like this."""


def _write(checkpoint: Checkpoint, header: Mapping[str, Any], pieces: Sequence[np.ndarray]) -> None:
    """Put a file in the place of the last one, which becomes the previous one.

    At any moment there is a complete file under one of the two names, on the disk and not only on its way.
    """
    part = checkpoint.path.with_name(f"{checkpoint.path.name}.part")
    total = hashlib.sha256()
    with part.open("wb") as file:
        blocks: list[bytes | memoryview] = [_MAGIC, json.dumps(header).encode() + b"\n", *map(_bytes, pieces)]
        for block in blocks:
            total.update(block)
            file.write(block)
        file.write(total.digest())
        file.flush()
        os.fsync(file.fileno())
    if checkpoint.path.exists():
        os.replace(checkpoint.path, checkpoint.previous)
    os.replace(part, checkpoint.path)
    _sync_folder(checkpoint.path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> _Content:
    """Return the header and the arrays of a sound file; the arrays stay on the disk until they are used.

    Raises
    ------
    _Damaged
        If it is not sound.
    """
    size = path.stat().st_size - _DIGEST_BYTES
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise _Damaged("it does not begin like a checkpoint of this version")
        if size < len(_MAGIC) or not _is_sound(file, size):
            raise _Damaged("its checksum does not fit")
        file.seek(len(_MAGIC))
        header = json.loads(file.readline())
        offset = file.tell()
    content = np.memmap(path, np.uint8, "r")
    arrays: list[dict[str, np.ndarray]] = [{} for _ in header["steps"]]
    for place, name, kind, shape in header.pop("arrays"):
        end = offset + math.prod(shape) * np.dtype(kind).itemsize
        arrays[place][name] = content[offset:end].view(kind).reshape(shape)
        offset = end
    return header, arrays


def _is_sound(file: BinaryIO, size: int) -> bool:
    file.seek(0)
    total, left = hashlib.sha256(), size
    while left > 0:
        block = file.read(min(_BLOCK, left))
        if not block:
            return False
        total.update(block)
        left -= len(block)
    return file.read() == total.digest()


def _load(checkpoint: Checkpoint) -> _Content | None:
    """Return what the last file holds, or the previous one where a kill came between two renamings.

    Raises
    ------
    ValueError
        If that file is damaged, telling whether the previous one is sound.
    """
    path = checkpoint.path if checkpoint.path.exists() else checkpoint.previous
    if not path.exists():
        return None
    try:
        return _read(path)
    except _Damaged as error:
        raise ValueError(f"checkpoint {path} is damaged: {error}; {_way_out(checkpoint, path)}") from None


def _way_out(checkpoint: Checkpoint, damaged: Path) -> str:
    anew = "delete it to begin anew"
    if damaged != checkpoint.previous and checkpoint.previous.exists():
        try:
            header, _ = _read(checkpoint.previous)
        except _Damaged:
            return f"so is {checkpoint.previous.name}: delete both to begin anew"
        return (
            f"the one before it, {checkpoint.previous.name}, is sound and holds step {max(header['steps'])}: "
            f"move it to {checkpoint.path.name} to go on from there"
        )
    return anew


# ---------------------------------------------------------------- runs


class Keeper(Follower):
    """Follows integrations from one checkpoint to the next.

    Parameters
    ----------
    checkpoint : Checkpoint
        Where and how often.
    arguments : dict
        What `identity` returned.
    n_steps, modulate_every : int
        Steps of the run, and those for which a modulated coupling is kept: a checkpoint waits for the next
        step that modulates anew, and so holds no coupling.
    records : sequence of Record
        What each integration records; one that advances all members of an ensemble together counts as one.

    Raises
    ------
    ValueError
        If there is a checkpoint that is damaged, that another run left, or that is beyond `n_steps`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        arguments: dict[str, Any],
        n_steps: int,
        modulate_every: int,
        records: Sequence[Record],
    ) -> None:
        super().__init__(n_steps, records)
        self._checkpoint, self._arguments = checkpoint, arguments
        self._grain = modulate_every
        self._stride = -(-checkpoint.every // modulate_every) * modulate_every
        self._states: list[dict[str, np.ndarray]] = [{} for _ in records]
        self._steps = [0] * len(records)
        self._saved = 0  # steps of all integrations together
        self._lock = threading.Lock()
        self._take_up()

    def begin(self, place: int, integration: Any) -> None:
        """Put an integration that was started where its checkpoint left it."""
        state = self._states[place]
        if not state:
            return
        integration.start(state["theta"])
        integration.step = self._steps[place]
        for name, value in state.items():
            if name in ("t", "dt"):
                setattr(integration, name, float(value[0]))
            elif name != "theta":
                getattr(integration, name)[:] = value

    def advance(self, place: int, integration: Any, bar: Any) -> int:
        """Advance to the end, with checkpoints on the way; where they fall does not show in the result."""
        record, step = self.records[place], self._steps[place]
        if bar is not None and step:
            bar.update(step)
        if step == self.n_steps:
            return advance(integration, 0, record, bar)
        for stop in self._stops(step):
            status = advance(integration, stop - step, record, bar)
            if status != Status.OK:
                return status
            step = stop
            if step % self._grain == 0:
                self._reached(place, integration, step)
        return int(Status.OK)

    def finish(self) -> None:
        """Leave a last checkpoint, so that the same call returns at once and one for more steps goes on."""
        with self._lock:
            if sum(self._steps) > self._saved:
                self._save()

    def _stops(self, step: int) -> Iterator[int]:
        last = self.n_steps // self._grain * self._grain
        yield from range((step // self._stride + 1) * self._stride, last, self._stride)
        if last > step:
            yield last
        if self.n_steps > last:
            yield self.n_steps

    def _reached(self, place: int, integration: Any, step: int) -> None:
        together = hasattr(integration, "status")  # members of an ensemble, of which each may fail
        state = {"theta": np.array(integration.theta)}
        for name in ("status", "steps") if together else ("t", "dt"):
            state[name] = np.array(getattr(integration, name), ndmin=1)
        with self._lock:  # other threads may follow other members
            self._states[place], self._steps[place] = state, step
            if sum(self._steps) - self._saved >= self._stride * len(self.records):
                self._save()

    def _save(self) -> None:
        arrays, pieces = [], []
        for place, state in enumerate(self._states):
            for name, value in (state | self._recorded(place)).items():
                arrays.append((place, name, value.dtype.str, value.shape))
                pieces.append(np.ascontiguousarray(value))
        header = {"arguments": self._arguments, "steps": self._steps, "arrays": arrays}
        _write(self._checkpoint, header, pieces)
        self._saved = sum(self._steps)

    def _recorded(self, place: int) -> dict[str, np.ndarray]:
        """Views on what an integration has recorded up to its step, which nobody writes to any more."""
        record, step = self.records[place], self._steps[place]
        found = {}
        for name in _RECORDED if step else ():
            array = getattr(record, name)
            if array is not None:
                rows = (step // record.every if record.every else 0) if name in ("theta", "t") else step
                found[f"record.{name}"] = array[: rows + 1]
        return found

    def _take_up(self) -> None:
        content = _load(self._checkpoint)
        if content is None:
            return
        header, arrays = content
        path = self._checkpoint.path
        difference = _differences(header["arguments"], self._arguments)
        if difference:
            raise ValueError(
                f"checkpoint {path} is of another run: {difference}; "
                "give another path, or delete it to begin anew"
            )
        self._steps = header["steps"]
        self._saved, furthest = sum(self._steps), max(self._steps)
        if furthest > self.n_steps:
            raise ValueError(
                f"n_steps must be at least {furthest}, the step of checkpoint {path}, got {self.n_steps}"
            )
        for place, own in enumerate(arrays):
            for name, kept in self._recorded(place).items():
                kept[:] = own.pop(name)
            self._states[place] = {name: np.array(value) for name, value in own.items()}
