"""Files of records: what a kill may leave is repaired, anything else is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spo_fast.experiments import records
from spo_fast.experiments.records import Records


def test_what_was_appended_is_found(tmp_path):
    path = tmp_path / "a.jsonl"
    assert records.read(path) == []
    with Records(path) as file:
        file.append({"model": "a", "accuracy": [0.5, None]})
        assert records.read(path) == [{"model": "a", "accuracy": [0.5, None]}]
    with Records(path) as file:
        assert file.found == [{"model": "a", "accuracy": [0.5, None]}]
        file.append({"model": "b"})
    assert [record["model"] for record in records.read(path)] == ["a", "b"]


@pytest.mark.parametrize("torn", [b'{"model": "b", "accu', b'{"model": "b"}', b"\x00\xff"])
def test_a_line_without_an_end_is_dropped(tmp_path, torn):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"model": "a"}\n' + torn)
    assert records.read(path) == [{"model": "a"}]
    with Records(path) as file:
        assert file.found == [{"model": "a"}]
        file.append({"model": "c"})
    assert path.read_bytes() == b'{"model": "a"}\n{"model": "c"}\n'


@pytest.mark.parametrize(
    "line, message", [(b"not JSON", "line 2 of .* is no JSON"), (b"[1]", "must be a JSON object")]
)
def test_a_broken_line_in_the_middle_is_refused_and_left(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    content = b'{"model": "a"}\n' + line + b'\n{"model": "c"}\n'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Records(path)
    assert path.read_bytes() == content


def test_numbers_that_json_has_not_are_refused(tmp_path):
    with Records(tmp_path / "a.jsonl") as file, pytest.raises(ValueError, match="not JSON compliant"):
        file.append({"loss": float("nan")})
    assert records.read(tmp_path / "a.jsonl") == []


def test_a_second_writer_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    script = f"from spo_fast.experiments import records as r; r.Records(r.Path({str(path)!r}))"
    with Records(path):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "RuntimeError: another process is writing to" in done.stderr
    with Records(path):
        pass


def test_folders_that_do_not_exist_are_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Records(tmp_path / "none" / "a.jsonl")
