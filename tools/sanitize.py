"""Build the C core with the address and undefined-behaviour sanitizers, driven by the programs of tests/csrc.

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
POOL = str(ROOT / "csrc" / "pool.c")


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
    core = [str(path) for path in sorted((ROOT / "csrc").rglob("*.c"))]
    compiler = os.environ.get("CC", "cc").split()
    environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=0", UBSAN_OPTIONS="print_stacktrace=1")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "golden.bin"
        dump_golden(dump)
        for name, sources, arguments in (("pool", [POOL], []), ("sanitize", core, [str(dump)])):
            program = str(Path(folder) / name)
            files = [*sources, str(ROOT / "tests" / "csrc" / f"{name}.c")]
            include = f"-I{ROOT / 'csrc' / 'include'}"
            subprocess.run([*compiler, *FLAGS, include, *files, "-lm", "-o", program], check=True)
            failures += subprocess.run([program, *arguments], env=environment, check=False).returncode != 0
    return failures


if __name__ == "__main__":
    sys.exit(main())
