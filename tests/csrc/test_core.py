"""What only the C core has: its generated tables, its own names, and the instruction sets it chooses from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import spo_fast
from spo_fast.backends.status import Status

core = pytest.importorskip("spo_fast._core", reason="the C core is not built")

ROOT = Path(__file__).resolve().parents[2]


def test_the_core_tells_the_version_and_the_texts():
    assert core.abi_version() == 1
    texts = [core.status_text(status) for status in Status]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("generator", ["generate_tableaux.py", "generate_polynomials.py"])
def test_generated_headers_are_up_to_date(generator):
    pytest.importorskip("mpmath")
    assert (
        subprocess.run([sys.executable, str(ROOT / "tools" / generator), "--check"], timeout=300).returncode
        == 0
    )


@pytest.mark.parametrize("name", core.instruction_sets())
def test_instruction_sets_agree(name):
    rng = np.random.default_rng(3)
    knm = rng.random((37, 37))
    knm += knm.T
    np.fill_diagonal(knm, 0.0)
    theta = rng.uniform(0, 6, 37)
    fastest = spo_fast.modulate(knm, theta, backend="cython")
    before = core.instruction_set()
    core.select_instruction_set(name)
    try:
        assert core.instruction_set() == name
        assert (
            np.abs(spo_fast.modulate(knm, theta, backend="cython") - fastest).max()
            <= 1e-13 * np.abs(fastest).max()
        )
    finally:
        core.select_instruction_set(before)


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match=r"name must be one of .*, got 'mmx'"):
        core.select_instruction_set("mmx")


def test_the_environment_may_choose_the_instruction_set():
    code = "from spo_fast import _core; print(_core.instruction_set())"
    lowest = core.instruction_sets()[-1]
    command = [sys.executable, "-c", code]
    environment = {"SPO_FAST_INSTRUCTION_SET": lowest, "PATH": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == lowest
