"""The examples in Cython and C: built by their own commands, run, and compared with the loop in Python."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from processes import compiler, finished

import spo_fast

core = pytest.importorskip("spo_fast._core", reason="the C core is not built")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PORTABLE = Path(spo_fast.get_include(), "spo_fast.h").read_text(encoding="utf-8")
TABLE = Path(spo_fast.get_include(), "spo_fast_api.h").read_text(encoding="utf-8")
RULE = f"""
import sys, numpy as np
sys.path.append({str(EXAMPLES)!r})
from plasticity import DT, RATE, learn_in_python
rng = np.random.default_rng(0)
theta, omega = rng.uniform(0, 6, 9), rng.normal(0, 0.1, 9)
knm = np.triu(rng.uniform(0, 1, (9, 9)), 1)
knm += knm.T
expected = learn_in_python(theta, omega, knm, 40)

def compare(phases, couplings):
    assert np.abs(np.sin(phases - expected[0])).max() < 1e-12
    assert np.abs(couplings - expected[1]).max() < 1e-12
    assert (couplings == couplings.T).all()
    assert np.abs(couplings - knm).max() > 0.05
"""
CYTHON = """
from learning import learn
compare(*learn(theta, omega, knm, 40, DT, RATE))
assert learn(theta, omega, knm, 0)[1].tolist() == knm.tolist()
knm[0, 1] = 2
for arguments, text in (((theta, omega, knm), "status 4"), ((theta[:3], omega, knm), "do not fit")):
    try:
        learn(*arguments, 1)
    except ValueError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
"""
C = """
from learning_c import learn
from spo_fast import default_projections
weights = (*default_projections(), np.ones(4), 40, DT, RATE)
phases, couplings = theta.copy(), knm.copy()
learn(phases, omega, couplings, *weights)
compare(phases, couplings)
knm[0, 1] = 2
for arguments, text in (((theta, omega, knm), "not symmetric"), ((theta, omega[:3], knm), "9 doubles")):
    try:
        learn(*arguments, *weights)
    except ValueError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
"""


@pytest.fixture
def copied(tmp_path):
    """Copies an example, so that nothing is built in the tree."""

    def copy(name):
        compiler()
        return Path(shutil.copytree(EXAMPLES / name, tmp_path / name))

    return copy


@pytest.mark.parametrize(("name", "use"), [("cython_extension", CYTHON), ("c_extension", C)])
def test_an_extension_learns_as_the_loop_in_python(name, use, copied):
    if name == "cython_extension":
        pytest.importorskip("Cython", reason="Cython is not installed")
    folder = copied(name)
    finished([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], folder)
    finished([sys.executable, "-c", RULE + use], folder)


def test_an_extension_for_another_version_is_refused_in_words(copied):
    folder = copied("c_extension")
    source = folder / "learning_c.c"
    stale = '#include "spo_fast.h"\n#undef SPO_ABI_VERSION\n#define SPO_ABI_VERSION 99\n'
    source.write_text(stale + source.read_text(encoding="utf-8"), encoding="utf-8")
    finished([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], folder)
    tried = "try:\n    import learning_c\nexcept ImportError as error:\n    print(error)"
    printed = finished([sys.executable, "-c", tried], folder)
    assert f"version {core.abi_version()} of spo_fast.h" in printed and "version 99" in printed


def test_a_program_in_c_with_the_core_compiled_in(tmp_path):
    """By the command of its first lines, but that nothing is optimised: that takes a tenth of the time."""
    compiler()
    text = (EXAMPLES / "c_program" / "synchronise.c").read_text(encoding="utf-8")
    told = re.search(r"^ \*   (cc .*\\)\n \* +(.*)$", text, flags=re.MULTILINE)
    command = (told[1].removesuffix("\\") + told[2]).replace("-O3", "-O0")
    finished(["sh", "-c", command.replace("-o synchronise", f"-o {tmp_path / 'program'}")], ROOT)
    printed = finished([str(tmp_path / "program")], tmp_path)
    first, last = map(float, re.search(r"^c core: R (\S+) -> (\S+) at t = 50$", printed).groups())
    assert first < 0.1 and last > 0.9
    assert " ".join(f"{told[1]} {told[2]}".split()) in " ".join(
        (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8").split()
    )


def test_the_table_for_extensions_holds_every_portable_function():
    declared = set(re.findall(r"\bspo_(\w+)\(", PORTABLE)) - {"abi_version", "backend_name"}
    assert set(re.findall(r"\(\*(\w+)\)\(", TABLE)) == declared


def test_the_portable_functions_can_be_cimported():
    named = {"order_parameter": "mean_field"}  # the name belongs to a Python function
    declared = set(re.findall(r"\bint32_t spo_(\w+)\(", PORTABLE)) - {"abi_version"}
    offered = set(core.__pyx_capi__)
    assert {named.get(name, name) for name in declared} <= offered
