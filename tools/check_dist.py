"""Install the wheel in a fresh environment and use it from an empty folder; the sdist without a compiler too.

python tools/check_dist.py dist
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PROGRAM = """
import numpy as np
import spo_fast

knm = np.ones((4, 4)) - np.eye(4)
theta = np.array([0.0, 1.0, 2.0, 4.0])
expected = spo_fast.modulate(knm, theta, backend="numpy")
for name, state in spo_fast.backends().items():
    print(f"{name:8} {state}")
for name in ("cython", "numba"):
    assert np.abs(spo_fast.modulate(knm, theta, backend=name) - expected).max() < 1e-13, name
from spo_fast import attention
x = np.random.default_rng(0).normal(size=(1, 1, 5, 4))
exact = attention.causal_attention(x, x, x, backend="numpy")
tokens = {name: x[0, 0, :4] for name in ("W_Q", "W_K", "W_V")}
compiled, plain = (
    attention.context_pulse_attention(x[0], tokens, variant="leaky", backend=name)
    for name in ("cython", "numpy")
)
assert np.abs(attention.causal_attention(x, x, x, backend="cython") - exact).max() < 1e-13
assert np.abs(compiled - plain).max() < 1e-13
from spo_fast import datasets
assert datasets.scpn16().shape == (16, 16)
print("wheel works:", spo_fast.__version__, "from", spo_fast.__file__)
"""

WITHOUT_COMPILER = """
import numpy as np
import spo_fast

reason = spo_fast.backends()["cython"]
assert "not compiled" in reason, reason
spo_fast.modulate(np.ones((4, 4)) - np.eye(4), np.arange(4.0))
print("sdist works without a compiler:", reason)
"""


def main(folder: str) -> None:
    """Check the only wheel and the only sdist of a folder.

    Parameters
    ----------
    folder : str
        Where ``python -m build`` put them.

    Raises
    ------
    SystemExit
        When the wheel, the sdist or a program run from the wheel is missing or fails.
    """
    wheels, sdists = list(Path(folder).glob("*.whl")), list(Path(folder).glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        sys.exit(f"{folder} must hold one wheel and one sdist, got {len(wheels)} and {len(sdists)}")
    with tempfile.TemporaryDirectory() as scratch:
        environment, empty = Path(scratch, "venv"), Path(scratch, "empty")
        empty.mkdir()
        venv.create(environment, with_pip=True)
        python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        _run([*pip, "install", wheels[0].resolve()], empty)
        _run([python, "-c", PROGRAM], empty)
        _run([python.with_name("spo-fast"), "--version"], empty)
        _check_without_compiler(python, sdists[0].resolve(), Path(scratch, "package"), empty)


def _check_without_compiler(python: Path, sdist: Path, target: Path, empty: Path) -> None:
    """Install the sdist where compiling fails: the package must work with what is left.

    This interpreter has what building needs; the fresh one runs it, as no editable install stands in its way.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["install", "--no-build-isolation", "--no-deps", "--target", target]
    _run([*pip, *options, sdist], empty, CC="/bin/false", SPO_FAST_BACKENDS="")
    _run([python, "-c", WITHOUT_COMPILER], empty, PYTHONPATH=str(target))


def _run(command: list[str | Path], folder: Path, **variables: str) -> None:
    """Run a command in a folder, with these variables in place of this environment's Python settings."""
    settings = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | variables
    status = subprocess.run(command, cwd=folder, env=settings, check=False).returncode
    if status:
        sys.exit(f"failed with status {status}: {' '.join(map(str, command[:3]))} ...")


if __name__ == "__main__":
    main(sys.argv[1])
