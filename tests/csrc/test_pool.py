"""The pool of threads under the C core, driven by a program of its own: see pool.c beside this file."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_pool(tmp_path):
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if sys.platform == "win32" or not shutil.which(compiler):
        pytest.skip("needs a C compiler and POSIX threads")
    program = tmp_path / "pool"
    sources = [str(ROOT / "csrc" / "pool.c"), str(ROOT / "tests" / "csrc" / "pool.c")]
    flags = ["-std=gnu11", "-O2", "-pthread", f"-I{ROOT / 'csrc' / 'include'}"]
    subprocess.run([compiler, *flags, *sources, "-lm", "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" 0 failed\n")
