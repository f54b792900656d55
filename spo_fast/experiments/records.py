"""Finished runs as lines of JSON in a file that survives being killed at any moment.

A line is written in one piece and reaches the disk before the next run starts. When the file is opened, a
line without an end, left by a kill, is dropped; its run is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spo_fast.files import lock

Record = dict[str, Any]


def read(path: Path) -> list[Record]:
    """Read the complete lines of a file.

    Parameters
    ----------
    path : Path
        One that does not exist holds none.

    Returns
    -------
    list of dict

    Raises
    ------
    ValueError
        When a complete line is no JSON object.
    OSError
        When the file cannot be read.
    """
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    return [_parse(line, path, number) for number, line in enumerate(lines, 1)]


def _parse(line: bytes, path: Path, number: int) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} of {path} is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"line {number} of {path} must be a JSON object, got {type(record).__name__}")
    return record


class Records:
    """A file of records, open for one writer.

    Parameters
    ----------
    path : Path
        Made when it does not exist.

    Attributes
    ----------
    found : list of dict
        What the file held.

    Raises
    ------
    ValueError
        When a complete line is no JSON object.
    RuntimeError
        When another process has the file open for writing.
    OSError
        When it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        try:
            lock(self._file, path)
            self.found = read(path)
            complete = path.read_bytes().rfind(b"\n") + 1
            self._file.truncate(complete)
        except BaseException:
            self._file.close()
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a line and wait until it is on the disk.

        Parameters
        ----------
        record : mapping
            Of what JSON knows; no NaN, no infinity.
        """
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()
