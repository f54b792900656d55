"""Manners in a process: forks, strange users, shared caches, floating-point mode, what a binary holds."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import spo_fast
from spo_fast.backends import foreign

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
CALL = """
import numpy as np, spo_fast
knm = np.ones((4, 4)) - np.eye(4)
out = spo_fast.modulate(knm, np.arange(4.0), backend={backend!r})
run = spo_fast.simulate(np.arange(4.0), 1.0, knm, dt=0.1, n_steps=3, modulation={{}}, backend={backend!r})
print(repr(float(out.sum())), repr(float(run.R[-1])))
"""


def a_matrix(n=9):
    rng = np.random.default_rng(11)
    knm = rng.random((n, n))
    knm += knm.T
    np.fill_diagonal(knm, 0.0)
    return knm, rng.uniform(0, 6, n)


def modulate_in_child(queue, backend):
    knm, theta = a_matrix()
    queue.put(spo_fast.modulate(knm, theta, backend=backend))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer Pythons warn of forks with threads
def test_a_fork_after_use_works(backend):
    if backend in foreign.NO_FORKS:
        pytest.skip(f"{backend}'s runtime does not survive a fork, which tests/backends holds it to telling")
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this platform has no fork")
    knm, theta = a_matrix()
    expected = spo_fast.modulate(knm, theta, backend=backend)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=modulate_in_child, args=(queue, backend))
    child.start()
    assert np.array_equal(queue.get(timeout=120), expected)
    child.join(timeout=60)
    assert child.exitcode == 0


def run_elsewhere(backend, **options):
    """Standard output of a call in a fresh process; errors and warnings fail."""
    command = [sys.executable, "-W", "error", "-c", CALL.format(backend=backend)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_an_installation_that_nobody_can_write_to(backend, tmp_path):
    """Unwritable package, no home: everything works, uncached where need be, with one warning at most."""
    if sys.platform != "linux" or not shutil.which("setpriv") or os.getuid() != 0:
        pytest.skip("needs Linux, setpriv and root, to give up root's power to write anywhere")
    site = tmp_path / "site"
    shutil.copytree(ROOT / "spo_fast", site / "spo_fast", ignore=shutil.ignore_patterns("__pycache__"))
    for source, target in (("csrc/include", "include"), ("julia", "sources/julia")):
        shutil.copytree(ROOT / source, site / "spo_fast" / target)
    for path in [site, *site.rglob("*")]:
        path.chmod(path.stat().st_mode & 0o555)
    environment = {"PATH": os.environ["PATH"], "HOME": "/proc/none", "PYTHONPATH": str(site)}
    powerless = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override"]
    program = CALL.format(backend=backend) + "print(spo_fast.__file__)"
    command = [*powerless, sys.executable, "-W", "always", "-c", program]
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 300}
    result = subprocess.run(command, check=False, **options)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{run_elsewhere(backend)}{site / 'spo_fast' / '__init__.py'}\n"
    assert result.stderr.count("Warning:") <= 1
    assert not list(site.rglob("__pycache__"))


def test_processes_share_an_empty_cache(tmp_path):
    if spo_fast.backends()["numba"] != "available":
        pytest.skip(spo_fast.backends()["numba"])
    environment = dict(os.environ, NUMBA_CACHE_DIR=str(tmp_path))
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda _: run_elsewhere("numba", env=environment), range(2)))
    assert len(set(outputs)) == 1
    assert run_elsewhere("numba", env=environment) == outputs[0]


def test_the_floating_point_mode_is_left_alone(backend):
    subnormal = np.array([5e-324])
    knm, theta = a_matrix()
    before = np.geterr()
    spo_fast.modulate(knm, theta, backend=backend)
    spo_fast.simulate(theta, 1.0, knm, dt=0.1, n_steps=2, method="rk45", backend=backend)
    assert (subnormal * 1.0)[0] > 0.0
    assert (np.array([2.3e-308]) / 2)[0] > 0.0
    assert np.geterr() == before


def disassembly(source, folder):
    """Disassembled object of one C file, compiled as setup.py compiles it."""
    flags = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC"]
    target = folder / f"{source.stem}.o"
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    subprocess.run(
        [compiler, *flags, f"-I{CSRC / 'include'}", "-c", str(source), "-o", str(target)], check=True
    )
    return subprocess.run(["objdump", "-d", str(target)], capture_output=True, text=True, check=True).stdout


def test_wide_instructions_stand_only_in_the_files_of_their_set(tmp_path):
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if sysconfig.get_platform() != "linux-x86_64" or not (shutil.which(compiler) and shutil.which("objdump")):
        pytest.skip("needs a compiler and objdump for x86-64")
    for source in sorted(CSRC.rglob("*.c")):
        text = disassembly(source, tmp_path)
        assert ("%zmm" in text) == (source.stem == "avx512"), source
        assert ("%ymm" in text) == (source.stem in ("avx512", "avx2")), source
    setup = (ROOT / "setup.py").read_text()
    assert "march=native" not in setup and "fast-math" not in setup
