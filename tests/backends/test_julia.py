"""How Julia is found and started: only what the common tests of libraries and processes do not look at."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import require

from spo_fast.backends import julia

CALL = """
import numpy as np
import spo_fast

knm = np.ones((16, 16)) - np.eye(16)

def call():
    return spo_fast.modulate(knm, np.arange(16.0), backend="julia")
"""


def run(program, **variables):
    """Output of a fresh process that runs the program after `CALL`."""
    text = CALL + textwrap.dedent(program)
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def installation():
    require("julia")
    return julia._installation()


def script(tmp_path, text):
    """An executable file."""
    path = tmp_path / "julia"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


REFUSED = """
try:
    call()
except RuntimeError as error:
    print(error)
print(spo_fast.backends()["julia"])
"""


@pytest.mark.parametrize(
    "text, reason",
    [
        ("exit 0", "asked for its library, says nothing that Julia would"),
        ("echo no such thing >&2; exit 1", "asked for its library, says no such thing"),
        (
            "echo /usr/bin; echo /nowhere/libjulia.so; echo /nowhere/sys.so",
            "names /nowhere/libjulia.so",
        ),
        ("echo /usr/bin; echo $0; echo /nowhere/sys.so", "names /nowhere/sys.so, which does not exist"),
    ],
)
def test_a_program_that_is_no_julia_is_told_and_remembered(tmp_path, text, reason):
    refusal, state = run(REFUSED, SPO_FAST_JULIA=script(tmp_path, text)).splitlines()
    assert refusal.startswith("backend 'julia' cannot be used: ") and reason in refusal
    assert reason in state


def test_a_program_that_is_not_there_is_told(tmp_path):
    refusal, state = run(REFUSED, SPO_FAST_JULIA=str(tmp_path / "none")).splitlines()
    assert "SPO_FAST_JULIA names no program" in refusal and "SPO_FAST_JULIA names no program" in state
    variables = {"PATH": str(tmp_path)}
    refusal, _ = run("import os; os.environ.pop('SPO_FAST_JULIA', None)" + REFUSED, **variables).splitlines()
    assert "there is no program julia on PATH" in refusal and "install Julia" in refusal


def test_a_wrapper_is_asked_where_its_julia_lies(tmp_path, installation):
    real = julia._program()
    out = run("print(call().shape)", SPO_FAST_JULIA=script(tmp_path, f'exec {real} "$@"'))
    assert out == "(16, 16)\n"


STARTED = """
import ctypes
libjulia = ctypes.PyDLL({library!r}, mode=ctypes.RTLD_GLOBAL)
if {started}:
    start = next(n for n in ("jl_init_with_image_file", "jl_init_with_image", "jl_init_with_image__threading")
                 if hasattr(libjulia, n))
    getattr(libjulia, start)({programs!r}.encode(), {image!r}.encode())
    libjulia.jl_eval_string(b"somebody_elses = 41")
expected = spo_fast.modulate(knm, np.arange(16.0), backend="numpy")
print(abs(call() - expected).max() < 1e-13)
if {started}:
    libjulia.jl_unbox_int64.restype = ctypes.c_int64
    libjulia.jl_eval_string.restype = libjulia.jl_unbox_int64.argtypes = None
    libjulia.jl_eval_string.restype = ctypes.c_void_p
    libjulia.jl_unbox_int64.argtypes = [ctypes.c_void_p]
    print(libjulia.jl_unbox_int64(libjulia.jl_eval_string(b"somebody_elses + 1")))
names = set(line.split()[-1] for line in open("/proc/self/maps") if "libjulia" in line)
print(len(names))
"""


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
def test_a_julia_that_is_there_already_is_used(installation, started):
    program = STARTED.format(started=started, **installation._asdict())
    assert run(program).split() == (["True", "42", "1"] if started else ["True", "1"])


STUB = """
import ctypes, sys, types
libjulia = ctypes.PyDLL({library!r}, mode=ctypes.RTLD_GLOBAL)
start = next(n for n in ("jl_init_with_image_file", "jl_init_with_image", "jl_init_with_image__threading")
             if hasattr(libjulia, n))
getattr(libjulia, start)({programs!r}.encode(), {image!r}.encode())
libjulia.jl_eval_string.restype = ctypes.c_void_p
libjulia.jl_unbox_uint64.restype = ctypes.c_uint64
libjulia.jl_unbox_uint64.argtypes = [ctypes.c_void_p]
asked = []

def seval(code):
    asked.append(code)
    return libjulia.jl_unbox_uint64(libjulia.jl_eval_string(code.encode()))

sys.modules["juliacall"] = types.SimpleNamespace(Main=types.SimpleNamespace(seval=seval))
call()
print(len(asked) > 0)
"""


def test_juliacall_is_asked_where_it_runs_julia(installation):
    assert run(STUB.format(**installation._asdict())) == "True\n"


def test_libraries_that_throw_may_be_loaded_after_it(installation):
    pytest.importorskip("matplotlib")
    assert run("call(); import matplotlib.pyplot; print('drawn')") == "drawn\n"
