"""The ``spo-fast experiment`` command: its options, and what they lead to."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spo_fast import files, plotting

if TYPE_CHECKING:
    from spo_fast.experiments.study import Study

STUDIES = (
    "association",
    "mechanism",
    "variants",
    "rates",
    "pairs16",
    "multihop",
    "rhythm",
    "timing",
    "binding",
    "decoding",
    "recall",
    "gap-copy",
    "pulse-ablations",
    "attention-mass",
    "score-maps",
)
IMPLEMENTATIONS = ("kernel", "eager")  # of spo_fast.torch, which is not loaded for a list of options
REPORT, SPEED = "report", "speed"


def load(name: str) -> Study:
    """Load a study.

    Parameters
    ----------
    name : str
        One of `STUDIES`.

    Returns
    -------
    Study
    """
    study: Study = import_module(f"spo_fast.experiments.{name.replace('-', '_')}").STUDY
    return study


def add_options(command: argparse.ArgumentParser, names: Any, positive: Any) -> None:
    """Add the options of the command.

    Parameters
    ----------
    command : ArgumentParser
    names, positive : callable
        Readers of names separated by commas and of whole numbers from 1 on.
    """
    command.add_argument(
        "study",
        choices=(*STUDIES, REPORT, SPEED),
        help=f"what to run; {REPORT} writes the pages of results, {SPEED} times a training step",
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("out/experiments"),
        metavar="DIR",
        help="folder of the records, a line a finished run (%(default)s)",
    )
    command.add_argument("--steps", type=positive, metavar="N", help="of training (each study has its own)")
    command.add_argument("--seeds", type=positive, metavar="N", help="0 ... N-1 (each study has its own)")
    command.add_argument("--models", type=names, metavar="NAME,NAME", help="some of the study's models")
    command.add_argument("--rates", type=_rates, metavar="X,X", help="learning rates (the study's)")
    command.add_argument(
        "--workers", type=positive, default=1, metavar="N", help="processes of one thread each (%(default)s)"
    )
    command.add_argument(
        "--implementation", choices=IMPLEMENTATIONS, help="of the attention (kernel, see spo_fast.torch)"
    )
    command.add_argument("--plot", type=Path, metavar="PNG", help="picture of what is on record")
    command.add_argument(
        "--docs", type=Path, default=Path("docs/results"), metavar="DIR", help="report: pages (%(default)s)"
    )
    command.add_argument("--quiet", action="store_true", help="no progress bar")


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or min(rates) <= 0.0:
        raise argparse.ArgumentTypeError(f"must be positive numbers separated by commas, got {text!r}")
    return rates


def run(options: argparse.Namespace) -> None:
    """Run a study, write the report, or time training steps.

    Parameters
    ----------
    options : Namespace

    Raises
    ------
    ValueError
        For models or rates that the study does not have.
    ImportError
        When an extra is missing, before anything is run.
    OSError
        When a folder cannot be written.
    RuntimeError
        When a worker dies, or another process writes to the same records.
    """
    if options.plot is not None:
        plotting.require_matplotlib()
        files.require_writable([options.plot])
    if options.study == SPEED:
        from spo_fast.experiments import speed

        names = [options.implementation] if options.implementation else IMPLEMENTATIONS
        print("\n\n".join("\n".join(table) for table in speed.tables(options.models, names)))
        return
    if options.study == REPORT:
        from spo_fast.experiments import report

        for path in report.write([load(name) for name in STUDIES], options.out, options.docs, options.plot):
            print(path)
        return
    from spo_fast.experiments import runner

    study = load(options.study)
    runs = study.runs(options.models, options.rates, options.seeds, options.steps)
    if study.needs_torch:
        import_module("spo_fast.torch")  # tells which extra is missing
    options.out.mkdir(parents=True, exist_ok=True)
    records = runner.run_all(
        runs,
        study.execute,
        options.out / study.path,
        settings={"implementation": options.implementation},
        workers=options.workers,
        progress=not options.quiet,
    )
    print("\n".join([*study.tabulate(records), "", *_claims(study, records)]))
    if options.plot is not None:
        draw(study, records, options.plot)


def _claims(study: Study, records: list[dict[str, Any]]) -> list[str]:
    from spo_fast.experiments import report

    return report.claims_table([study], {study.path: records}) if study.claims else []


def draw(study: Study, records: list[dict[str, Any]], path: Path) -> None:
    """Draw a study's picture.

    Parameters
    ----------
    study : Study
    records : list of dict
    path : Path
        PNG, replaced in one piece.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.5), layout="constrained")
    study.draw(records, figure)
    with files.replacing(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
