"""Build the C core with the address and undefined-behaviour sanitizers, driven by tests/csrc/sanitize.c.

Run ``python tools/sanitize.py``; the exit status is 0 when no check failed and no sanitizer spoke.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["-std=gnu11", "-O1", "-g", "-ffp-contract=off", "-pthread", "-Wall", "-Wextra", "-Werror"]
FLAGS += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def dump_golden(path: Path) -> None:
    """Write the golden modulate cases as plain numbers, in the order that sanitize.c reads."""
    with path.open("wb") as file:
        for case in sorted((ROOT / "tests" / "golden" / "modulate").glob("*.npz")):
            data = np.load(case)
            meta = json.loads(str(data["meta"]))
            block = -1 if meta["block_size"] is None else meta["block_size"]
            file.write(
                np.array([meta["n"], meta["n_heads"], meta["d_model"], block], dtype=np.int64).tobytes()
            )
            file.write(
                np.array([meta["lambda_"]] + [meta["temperature"]] * meta["n_heads"], dtype=float).tobytes()
            )
            for name in ("w_q", "w_k", "w_v", "w_o", "knm", "theta", "expected"):
                file.write(np.ascontiguousarray(data[name], dtype=float).tobytes())


def main() -> int:
    """Compile, dump, run."""
    sources = [str(path) for path in sorted((ROOT / "csrc").rglob("*.c"))]
    sources.append(str(ROOT / "tests" / "csrc" / "sanitize.c"))
    with tempfile.TemporaryDirectory() as folder:
        program, dump = Path(folder) / "sanitize", Path(folder) / "golden.bin"
        dump_golden(dump)
        compiler = os.environ.get("CC", "cc").split()
        include = f"-I{ROOT / 'csrc' / 'include'}"
        subprocess.run([*compiler, *FLAGS, include, *sources, "-lm", "-o", str(program)], check=True)
        environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=0", UBSAN_OPTIONS="print_stacktrace=1")
        return subprocess.run([str(program), str(dump)], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
