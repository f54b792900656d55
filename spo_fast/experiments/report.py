"""Pages and the summary picture, made from the records alone, whether all runs are finished or only some."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spo_fast import files, plotting
from spo_fast.experiments import binding, command, decoding, figures, records, runner, summary
from spo_fast.experiments.records import Record
from spo_fast.experiments.specs import PROTOCOL
from spo_fast.experiments.study import RATES, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUMMARY = "experiments"
PENDING = "not run yet"


def write(studies: Sequence[Study], folder: Path, pages: Path, picture: Path | None = None) -> list[Path]:
    """Write a page and a picture for each study that has records, and a summary of all.

    Parameters
    ----------
    studies : sequence of Study
    folder : Path
        Of the records.
    pages : Path
        Where the pages go; pictures go beside them.
    picture : Path, optional
        Of the summary; experiments.png beside the pages by default.

    Returns
    -------
    list of Path
        What was written.
    """
    found = {study.path: records.read(folder / study.path) for study in studies}
    pages.mkdir(parents=True, exist_ok=True)
    picture = picture or pages / f"{SUMMARY}.png"
    written = []
    for study in studies:
        if not _own(study, found[study.path]):
            continue
        page, image = pages / f"{study.name}.md", pages / f"{study.name}.png"
        files.write_text(_page(study, found[study.path], folder), page)
        command.draw(study, found[study.path], image)
        written += [page, image]
    page = pages / f"{SUMMARY}.md"
    files.write_text(_summary(studies, found, folder, pages, picture), page)
    with files.replacing(picture) as temporary:
        draw_summary(found).savefig(temporary, dpi=150, format="png")
    return [*written, page, picture]


def _own(study: Study, found: Iterable[Record]) -> list[Record]:
    """Records of the study's models and rates in a file that it may share."""
    return [r for r in found if r["model"] in study.models and r["rate"] in study.rates]


def _progress(study: Study, own: Sequence[Record]) -> tuple[int, int]:
    """Count the study's own runs that are on record, and all of them."""
    runs = study.runs()
    return len(runs) - len(runner.pending(runs, own)), len(runs)


def _page(study: Study, found: Sequence[Record], folder: Path) -> str:
    own = _own(study, found)
    done, wanted = _progress(study, own)
    parts = [
        f"# {study.title}",
        f"    spo-fast experiment {study.name} --out {folder} --seeds {study.seeds} --workers 2",
        f"{study.question.strip()}",
        f"{_provenance(own)} {done} of the {wanted} runs of the whole study are on record.",
    ]
    if study.claims:
        parts.append("\n".join(claims_table([study], {study.path: list(found)})))
    parts += ["\n".join(study.tabulate(found)), f"![{study.title}]({study.name}.png)"]
    return "\n\n".join(parts) + "\n"


def _provenance(found: Sequence[Record]) -> str:
    """Say in a sentence when and where the runs were made."""
    dates = sorted(record["date"] for record in found)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    machines = sorted(
        {
            ", ".join(
                [f"{r['machine']['processor']}, {r['machine']['cores']} cores"]
                + [
                    f"{name} {r['machine'][name]}"
                    for name in ("spo_fast", "torch", "numpy")
                    if name in r["machine"]
                ]
                + ([f"attention by {r['implementation']}"] if "implementation" in r else [])
            )
            for r in found
        }
    )
    return f"{when}; {'; '.join(machines)}."


def claims_table(studies: Sequence[Study], found: Mapping[str, Sequence[Record]]) -> list[str]:
    """Tabulate claim, published figure, ours, verdict.

    Parameters
    ----------
    studies : sequence of Study
    found : mapping of str to sequence of dict
        Records by file.

    Returns
    -------
    list of str
        Lines.
    """
    rows = []
    for study in studies:
        for claim in study.claims:
            judged = claim.judge([record for record in found[study.path] if record["steps"] >= study.steps])
            ours, verdict = (
                (PENDING, "") if judged is None else (judged[0], "holds" if judged[1] else "differs")
            )
            rows.append([claim.text, claim.published, ours, verdict])
    return summary.table(["claim", "published", "ours", "verdict"], rows, numbers=False)


def _summary(
    studies: Sequence[Study], found: Mapping[str, Sequence[Record]], folder: Path, pages: Path, picture: Path
) -> str:
    lines = [
        "# What the studies found",
        f"    spo-fast experiment report --out {folder}",
        "Made from the records by the command above; every row says what was asked before anything was run.",
        f"![Binding, decoding, association]({os.path.relpath(picture, pages)})",
        "\n".join(claims_table(studies, found)),
        "\n".join(_overview(studies, found)),
    ]
    return "\n\n".join(lines) + "\n"


def _overview(studies: Sequence[Study], found: Mapping[str, Sequence[Record]]) -> list[str]:
    rows = []
    for study in studies:
        own = _own(study, found[study.path])
        name = f"[{study.title}]({study.name}.md)" if own else study.title
        rows.append([name, "{} of {}".format(*_progress(study, own))])
    return summary.table(["study", "runs on record"], rows)


def draw_summary(found: Mapping[str, Sequence[Record]]) -> Figure:
    """Draw three panels: binding, decoding along the dynamics, association with ablations.

    Parameters
    ----------
    found : mapping of str to sequence of dict
        Records by file; what is missing leaves its panel empty.

    Returns
    -------
    Figure
    """
    plotting.require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14.0, 4.5), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.3))
    binding.plot(found.get(binding.STUDY.path, ()), left).set_title("binding by synchrony")
    decoding.plot(found.get(decoding.STUDY.path, ()), middle).set_title("a class in the phases")
    groups = summary.outcomes(found.get("association.jsonl", ()), PROTOCOL, RATES)
    figures.plot_learning(summary.best(groups), right).set_title("remembering pairs, and ablations")
    return figure
