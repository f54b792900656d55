"""Compare the speed of a commit with that of its parent: ``asv continuous``, and which code it measured.

    python tools/asv_compare.py                                    HEAD against HEAD^, all benchmarks
    python tools/asv_compare.py --base main --profile regular
    python tools/asv_compare.py --bench Modulate --bench Loaded    regular expressions, as asv takes them

Prints asv's table of changes, the full table, the spread, for each commit the hash of the code that
its benchmarks loaded, and the verdict: what asv calls slower is slower if its best sample is, too. A median
can change because another process was busy in more of one commit's rounds than of the other's; the best
sample changes only if every round of one commit was disturbed. All of it is kept under
``asv_benchmarks/.asv``. Exit status: 0 nothing slower, 1 something slower, 2 the comparison itself failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "asv_benchmarks" / ".asv"
CONFIG = ROOT / "asv_benchmarks" / "asv.conf.json"
ASV = [sys.executable, "-m", "asv", "--config", str(CONFIG)]
# What counts as slower, by what a cell times: the first pattern that its name holds. docs/benchmarks.md tells
# the spreads that the factors were chosen from.
FACTORS = {
    "by the clock on the wall": (r"^workers\..*\.time_", 2.0),
    "processes": (r"^startup\.", 1.5),
    "calls of microseconds": (r"^boundary\.|\.time_.*\b16\b", 1.5),
    "kernels": (r"\.time_", 1.3),
    "memory and errors": ("", 1.5),
}
ROW = re.compile(r"^\|\s*(\S?)\s*\|\s*(\S.*?)\s*\|\s*(\S.*?)\s*\|\s*~?([\d.]+|n/a)\s*\|\s*(\S.*?)\s*\|$")


def git(*arguments: str) -> str:
    """Output of a git command in this repository."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def asv(*arguments: str, log: Path, variables: dict[str, str] | None = None) -> int:
    """Run asv, show what it prints and keep it; return its exit status."""
    process = subprocess.Popen(
        [*ASV, *arguments],
        cwd=ROOT,
        env=os.environ | (variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with log.open("a", encoding="utf-8") as file:
        for line in process.stdout:
            print(line, end="", flush=True)
            file.write(line)
    return process.wait()


def loaded(commit: str) -> dict[str, list[str]]:
    """Hashes of the code that benchmarks of a commit loaded, by backend; two hashes mean two builds."""
    path = HOME / "loaded" / f"{commit}.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    hashes: dict[str, list[str]] = {}
    for line in lines:
        hashes.setdefault(line["backend"], []).append(line["sha256"])
    return hashes


def best(commit: str) -> dict[str, float]:
    """Best sample of each timed cell of a commit, by the name that asv gives the cell."""
    found: dict[str, float] = {}
    for path in sorted(HOME.glob(f"results/*/{commit[:8]}-*.json")):
        results = json.loads(path.read_text(encoding="utf-8"))
        for name, values in results["results"].items():
            columns = dict(zip(results["result_columns"], values, strict=False))
            cells = itertools.product(*columns.get("params") or [])
            for cell, samples in zip(cells, columns.get("samples") or [], strict=False):
                if samples:
                    found[f"{name}({', '.join(cell)})" if cell else name] = min(samples)
    return found


def marked(table: str, marks: str) -> list[tuple[str, str]]:
    """Names and ratios of the cells that asv has marked."""
    rows = (ROW.match(line) for line in table.splitlines())
    return [(row[5], row[4]) for row in rows if row and row[1] and row[1] in marks]


def kind(name: str) -> str:
    """Which of `FACTORS` is for a cell."""
    return next(key for key, (pattern, _) in FACTORS.items() if re.search(pattern, name))


def verdict(
    table: str, before: dict[str, float], after: dict[str, float], factor: float | None = None
) -> tuple[bool, list[str]]:
    """Whether something is slower, and lines that say what; cells without samples go by asv's own ratio."""
    slower, lines = False, []
    for name, ratio in marked(table, "+!"):
        limit = factor or FACTORS[kind(name)][1]
        counts, text = ratio == "n/a" or float(ratio) > limit, ""
        if name in before and name in after:
            times = after[name] / before[name]
            counts, text = counts and times > limit, f", best sample {times:.2f}"
        slower = slower or counts
        finding = "SLOWER" if counts else f"not slower by {limit}"
        lines.append(f"{finding}: {name}: median {ratio}{text}")
    return slower, lines or ["nothing is slower"]


def ratios(table: str) -> dict[str, float]:
    """Ratios of the medians of cells in a table of ``asv compare`` that it does not call changed."""
    rows = (ROW.match(line) for line in table.splitlines())
    return {row[5]: float(row[4]) for row in rows if row and not row[1] and row[4] != "n/a"}


def spread(found: dict[str, float], of: str) -> list[str]:
    """Lines on how far ratios lie from 1, one for each kind of cells."""
    lines = []
    for name, (_, factor) in FACTORS.items():
        values = [value for cell, value in found.items() if value > 0.0 and kind(cell) == name]
        if values:
            off = sorted(max(value, 1.0 / value) - 1.0 for value in values)
            middle, high = off[len(off) // 2], off[int(0.9 * (len(off) - 1))]
            lines.append(
                f"spread of {of}, {name} (factor {factor}), {len(off)} unchanged cells: median {middle:.0%}, "
                f"90th percentile {high:.0%}, largest {off[-1]:.0%}"
            )
    return lines or [f"spread of {of}: no unchanged cells"]


def describe(base: str, head: str) -> list[str]:
    """Return lines that tell which code was measured."""
    before, after = loaded(base), loaded(head)
    lines = []
    for backend in sorted(before.keys() | after.keys()):
        pair = [", ".join(hashes.get(backend, ["none"])) for hashes in (before, after)]
        lines.append(f"{backend:8} {pair[0]} -> {pair[1]}  {'same' if pair[0] == pair[1] else 'differs'}")
    return lines


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--base", default="HEAD^", help="commit to compare with (HEAD^)")
    parser.add_argument("--head", default="HEAD", help="commit that is judged (HEAD)")
    parser.add_argument("--profile", default="fast", choices=("fast", "regular"), help="how much to measure")
    parser.add_argument("--factor", type=float, help="what counts as slower, for all (by what a cell times)")
    parser.add_argument("--bench", action="append", default=[], help="benchmarks to run (all)")
    return parser.parse_args(arguments)


def environment(profile: str) -> dict[str, str]:
    """Variables under which commits are built and measured."""
    variables = {"SPO_FAST_ASV_PROFILE": profile}
    # asv looks for a python of this version on the path: let it find this one.
    folders = [Path(sys.executable).parent, ROOT / ".toolchains" / "bin"]
    variables["PATH"] = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    if shutil.which(os.environ.get("CC", "cc")):
        variables["SPO_FAST_BACKENDS"] = "cython"  # a core that does not compile is an error, not a gap
    return variables


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison."""
    options = parse(arguments)
    try:
        base, head = (
            git("rev-parse", "--verify", f"{name}^{{commit}}") for name in (options.base, options.head)
        )
    except subprocess.CalledProcessError as error:
        print(f"asv_compare: {options.base}, {options.head}: {error.stderr.strip()}", file=sys.stderr)
        return 2
    log = HOME / "comparisons" / f"{base[:8]}-{head[:8]}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    # asv asks who this machine is unless it has been told; its questions and default answers are not shown.
    subprocess.run([*ASV, "machine", "--yes"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    least = options.factor or min(limit for _, limit in FACTORS.values())
    factor = ["--factor", str(least)]
    benches = [word for name in options.bench for word in ("--bench", name)]
    commits = [base, head]
    status = asv(
        "continuous", "--interleave-rounds", *factor, *benches, *commits,
        log=log, variables=environment(options.profile),
    )  # fmt: skip
    measured = log.stat().st_size
    if asv("compare", *factor, *commits, log=log):
        return 2
    table = log.read_bytes()[measured:].decode()
    before, after = best(base), best(head)
    slower, findings = verdict(table, before, after, options.factor)
    loaded_code = [f"code loaded by {base[:8]} -> {head[:8]}:", *describe(base, head)]
    changed = {name for name, _ in marked(table, "+-!*")}
    bests = {name: after[name] / before[name] for name in sorted(after.keys() & before.keys() - changed)}
    spreads = [*spread(ratios(table), "medians"), *spread(bests, "best samples")]
    lines = ["", *spreads, *loaded_code, "", *findings]
    with log.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join([*lines, f"kept in {log.relative_to(ROOT)}"]))
    return 2 if status > 1 else int(slower)


if __name__ == "__main__":
    sys.exit(main())
