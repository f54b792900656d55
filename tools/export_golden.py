"""Write the golden vectors as plain text that the unit tests of every language read without a library.

``python tools/export_golden.py [DIRECTORY]`` (build/golden unless named) makes one file a case,
``KIND/KIND_NNN.txt``. A line is ``NAME RANK SIZE... WORD...``: a number or an array in C order, each entry as
the sixteen hexadecimal digits of its IEEE 754 bits, so that nothing is rounded on the way.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from samples import METHODS, golden_files, load_golden, parity_budget, step_size_doubt  # noqa: E402


def line(name: str, value: object) -> str:
    """One named number or array."""
    array = np.asarray(value, dtype=np.float64)
    words = (struct.pack(">d", entry).hex() for entry in array.ravel())
    return " ".join([name, str(array.ndim), *map(str, array.shape), *words])


def modulate_case(arrays: dict, meta: dict) -> dict:
    """Arguments of ``spo_modulate``, the right answer, and the error that is allowed at each entry."""
    block_size = -1 if meta["block_size"] is None else meta["block_size"]
    temperature = np.broadcast_to(np.asarray(meta["temperature"], dtype=np.float64), meta["n_heads"])
    numbers = {"n": meta["n"], "n_heads": meta["n_heads"], "d_model": meta["d_model"]}
    budget = parity_budget(arrays["expected"], arrays["theta"], meta["d_model"])
    return (
        numbers
        | arrays
        | {
            "block_size": block_size,
            "temperature": temperature,
            "lambda": meta["lambda_"],
            "tolerance": budget,
        }
    )


def step_case(arrays: dict, meta: dict) -> dict:
    """A run of ``steps`` steps: the states 0 ... steps and the step size to be tried after each.

    ``state_tolerance`` is an angle, ``dt_tolerance`` is relative; both hold along the whole run.
    """
    doubt = float(step_size_doubt(meta, arrays).max(initial=0.0))
    numbers = {name: meta[name] for name in ("n", "dt", "zeta", "psi", "steps")}
    return numbers | {
        "method": METHODS.index(meta["method"]),
        "atol": meta.get("atol", 1e-6),
        "rtol": meta.get("rtol", 1e-3),
        "omega": arrays["omegas"],
        "knm": arrays["knm"],
        "alpha": arrays["alpha"],
        "trajectory": arrays["trajectory"],
        "dt_after": arrays["dt_after"],
        "state_tolerance": 1e-11 + doubt,
        "dt_tolerance": 1e-9 + doubt,
    }


def observables_case(arrays: dict, meta: dict) -> dict:
    """Phases and their order parameter."""
    return {"n": meta["n"], "theta": arrays["theta"], "r": meta["R"], "psi": meta["psi"]}


CASES = {"modulate": modulate_case, "step": step_case, "observables": observables_case}


def main() -> int:
    """Write every case; say how many."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "golden"
    for kind, case in CASES.items():
        (target / kind).mkdir(parents=True, exist_ok=True)
        paths = golden_files(kind)
        for path in paths:
            lines = [line(name, value) for name, value in case(*load_golden(path)).items()]
            (target / kind / f"{path.stem}.txt").write_text("\n".join(lines) + "\n")
        print(f"{target / kind}: {len(paths)} cases")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
