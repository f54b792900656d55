"""Write measured results into README.md (in short) and docs/{backends,overhead,scaling}.md.

spo-fast bench --json --first-calls --sizes 16,64,256,512 > docs/bench.json
spo-fast bench --overhead --json --orchestrator-python PATH > docs/overhead.json   (--plot makes the picture)
spo-fast bench --scaling --json > docs/scaling.json                                (--plot makes the picture)
python tools/update_readme.py           # rewrites the blocks between the markers
python tools/update_readme.py --check   # exit status 1 when a block differs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from spo_fast import bench, overhead, scaling

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- {name}:begin (written by tools/update_readme.py) -->"
END = "<!-- {name}:end -->"
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
SHORT = ("N", "step, µs", "× bound", "modulated step, µs", "overhead")


def short(result: bench.Result) -> str:
    """What the README shows: steps of the C core, and ``modulate`` of every backend.

    Parameters
    ----------
    result : Result
        What ``spo-fast bench --json`` wrote.

    Returns
    -------
    str
        Markdown.
    """
    rows = [dict(zip(HEADINGS, row, strict=True)) for row in bench.rows(result, with_median=False)]
    native = [[row[name] for name in SHORT] for row in rows if row["backend"] == bench.NATIVE]
    names = list(dict.fromkeys(row["backend"] for row in rows))
    times = {(row["N"], row["backend"]): row["`modulate`, µs"] for row in rows}
    by_backend = [[n, *(times[n, name] for name in names)] for n in dict.fromkeys(row["N"] for row in rows)]
    return "\n\n".join(
        [
            "One Euler step inside `simulate`, C core:",
            _table(SHORT, native),
            "One call of `modulate`, µs, by backend:",
            _table(["N", *names], by_backend),
            _caption(result),
        ]
    )


def full(result: bench.Result) -> str:
    """Lay a result out in Markdown, a row for each backend and size; see `short`."""
    parts = [_table(HEADINGS, bench.rows(result, with_median=False)), _caption(result)]
    if result.first_calls:
        seconds = [[f"{times.minimum:.2f}" for times in result.first_calls.values()]]
        parts += [
            "From the start of a process to its first result (N = 16), seconds, NumPy's import included "
            "(`spo-fast bench --first-calls`):",
            _table(list(result.first_calls), seconds),
        ]
    return "\n\n".join(parts)


def overheads(text: str) -> str:
    """Lay out what ``spo-fast bench --overhead --json`` wrote."""
    rows, machine = overhead.from_json(text)
    return f"{overhead.table(rows)}\nOne core of {machine['processor']}, NumPy {machine['numpy']}."


def scalings(text: str) -> str:
    """Lay out what ``spo-fast bench --scaling --json`` wrote."""
    rows, machine = scaling.from_json(text)
    return f"{scaling.table(rows)}\nOne core of {machine['processor']}, NumPy {machine['numpy']}."


BLOCKS = {  # page: name of its block, the data, and what lays them out
    "README.md": ("bench", "docs/bench.json", lambda text: short(bench.from_json(text))),
    "docs/backends.md": ("languages", "docs/bench.json", lambda text: full(bench.from_json(text))),
    "docs/overhead.md": ("overhead", "docs/overhead.json", overheads),
    "docs/scaling.md": ("scaling", "docs/scaling.json", scalings),
}


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(headings)
    rules = ["---" if name == "backend" else "---:" for name in names]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [names, rules, *rows])


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
        "and eight bytes an entry of K, measured in the same run; a large symmetric K is read by half."
    )


def replaced(page: str, name: str, new: str) -> str:
    """Exchange a block of a page.

    Parameters
    ----------
    page : str
        Text with both markers.
    name : str
        Of the block.
    new : str
        What shall stand between the markers.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        When a marker is missing or stands twice.
    """
    begin, end = BEGIN.format(name=name), END.format(name=name)
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must hold {begin!r} and {end!r} once each")
    before, rest = page.split(begin)
    return f"{before}{begin}\n{new}\n{end}{rest.split(end)[1]}"


def main() -> int:
    """Rewrite or check the pages.

    Returns
    -------
    int
        1 when ``--check`` finds a difference, else 0.
    """
    parser = argparse.ArgumentParser(description="Write the measured results into the pages.")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    stale = 0
    for page, (name, data, lay_out) in BLOCKS.items():
        path = ROOT / page
        old = path.read_text(encoding="utf-8")
        new = replaced(old, name, lay_out((ROOT / data).read_text(encoding="utf-8")))
        stale |= new != old
        if not options.check:
            path.write_text(new, encoding="utf-8")
    return int(stale and options.check)


if __name__ == "__main__":
    sys.exit(main())
