"""Write csrc/isa/tableaux.h from the exact ratios of spo_fast/tableaux.py; ``--check`` compares instead."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "csrc" / "isa" / "tableaux.h"


def load_tableaux() -> dict:
    """The tableaux, read from the source file so that the package need not be built."""
    spec = importlib.util.spec_from_file_location("tableaux", ROOT / "spo_fast" / "tableaux.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["tableaux"] = module
    spec.loader.exec_module(module)
    return module.TABLEAUX


def ratio(value) -> str:
    """A ratio as a C expression that the compiler rounds once."""
    return f"{value.numerator}.0 / {value.denominator}" if value.denominator != 1 else str(value.numerator)


def numbers(values) -> str:
    """A braced list of ratios."""
    return "{" + ", ".join(ratio(v) for v in values) + "}"


def header() -> str:
    """The text of tableaux.h."""
    lines = [
        "/* Made by tools/generate_tableaux.py: do not edit. Runge-Kutta methods, by enum spo_method. */",
        "",
        "#define SPO_MAX_STAGES 7",
        "",
        "typedef struct {",
        "    int stages;",
        "    double a[SPO_MAX_STAGES][SPO_MAX_STAGES]; /* strictly lower triangle */",
        "    double b[SPO_MAX_STAGES];                 /* weights of the solution */",
        "    double embedded[SPO_MAX_STAGES];          /* weights of the lower-order solution, or zeros */",
        "} spo_tableau;",
        "",
        "static const spo_tableau spo_tableaux[] = {",
    ]
    for tableau in load_tableaux().values():
        rows = [numbers(row) for row in tableau.a[1:]]
        matrix = "{" + ",\n      ".join(["{0}", *rows]) + "}"
        embedded = "{0}"
        if tableau.error:
            embedded = numbers(b - e for b, e in zip(tableau.b, tableau.error, strict=True))
        lines += [
            f"    /* {tableau.name}: {tableau.reference} */",
            f"    {{{tableau.stages},\n     {matrix},\n     {numbers(tableau.b)},\n     {embedded}}},",
        ]
    return "\n".join([*lines, "};", ""])


def main() -> int:
    """Write the header, or with ``--check`` say whether it is up to date."""
    text = header()
    if "--check" in sys.argv:
        return int(HEADER.read_text() != text)
    HEADER.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
