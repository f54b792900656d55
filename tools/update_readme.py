"""Write the table of measured results into README.md.

spo-fast bench --json > docs/bench.json
python tools/update_readme.py           # rewrites the block between the two markers
python tools/update_readme.py --check   # exit status 1 when the block differs
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spo_fast import bench

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- bench:begin (written by tools/update_readme.py from docs/bench.json) -->"
END = "<!-- bench:end -->"
HEADINGS = (
    "N",
    "backend",
    "step, µs",
    "modulated step, µs",
    "overhead",
    "`modulate`, µs",
    "× direct",
    "error of K′",
    "× bound",
)
LEFT, RIGHT = "---", "---:"


def block(result: bench.Result) -> str:
    """Lay a result out in Markdown, markers included.

    Parameters
    ----------
    result : Result
        What ``spo-fast bench --json`` wrote.

    Returns
    -------
    str
    """
    rules = [LEFT if heading == "backend" else RIGHT for heading in HEADINGS]
    lines = [_line(HEADINGS), _line(rules), *(_line(row) for row in bench.rows(result, with_median=False))]
    return "\n".join([BEGIN, *lines, "", _caption(result), END])


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _caption(result: bench.Result) -> str:
    machine = result.machine
    text = (
        f"`make table` on one core of {machine['processor']}, Python {machine['python']}, "
        f"NumPy {machine['numpy']}: minimum of {result.rounds} interleaved rounds."
    )
    if result.peak is None:
        return text
    return (
        f"{text} The bound of an un-modulated step is what the machine itself needs for two multiply-adds "
        "and eight bytes an entry of K, measured in the same run."
    )


def replaced(readme: str, new: str) -> str:
    """Exchange the block of a README.

    Parameters
    ----------
    readme : str
        Text with both markers.
    new : str
        What ``block`` returned.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        When a marker is missing or stands twice.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"README.md must hold {BEGIN!r} and {END!r} once each")
    before, rest = readme.split(BEGIN)
    return before + new + rest.split(END)[1]


def main() -> int:
    """Rewrite or check README.md.

    Returns
    -------
    int
        1 when ``--check`` finds a difference, else 0.
    """
    parser = argparse.ArgumentParser(description="Write the table of measured results into README.md.")
    parser.add_argument("result", type=Path, nargs="?", default=ROOT / "docs" / "bench.json")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    path = ROOT / "README.md"
    old = path.read_text(encoding="utf-8")
    new = replaced(old, block(bench.from_json(options.result.read_text(encoding="utf-8"))))
    if options.check:
        return int(new != old)
    path.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
