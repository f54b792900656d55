"""The ``spo-fast`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from spo_fast import __version__

FAILURE = 2
INTERRUPTED = 130  # what shells report for a program ended by Ctrl-C: 128 + SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        0, 2 after an error, which is told in one line on standard error, or 130 after Ctrl-C.

    Raises
    ------
    SystemExit
        By ``--help``, ``--version`` and unknown arguments.
    """
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"spo-fast: error: {message}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        print("spo-fast: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spo-fast", description="Networks of phase oscillators whose coupling depends on their state."
    )
    parser.add_argument("--version", action="version", version=f"spo-fast {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_backends(commands)
    _add_bench(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser("demo", help="simulate the 16-layer SCPN network with and without modulation")
    demo.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="folder for demo.png (%(default)s)"
    )
    demo.add_argument(
        "--steps", type=_positive, default=None, metavar="N", help="RK4 steps (20000; 2000 with --quick)"
    )
    demo.add_argument("--quick", action="store_true", help="fewer steps, each run timed once")
    demo.add_argument("--backend", default=None, help="one of those that `spo-fast backends` lists")
    demo.set_defaults(run=_demo)


def _add_backends(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    listing = commands.add_parser("backends", help="list the backends and why one is missing")
    listing.set_defaults(run=_backends)


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser("bench", help="time the backends on this machine")
    bench.add_argument("--json", action="store_true", help="write JSON, times in seconds")
    bench.add_argument(
        "--sizes", type=_sizes, default=None, metavar="N,N", help="numbers of oscillators (16,64,256)"
    )
    bench.add_argument(
        "--backends", type=_names, default=None, metavar="NAME,NAME", help="all available by default"
    )
    bench.add_argument("--rounds", type=_positive, default=None, metavar="N", help="interleaved rounds (7)")
    bench.set_defaults(run=_bench)


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"must be names separated by commas, got {text!r}")
    return names


def _sizes(text: str) -> list[int]:
    return [_positive(part) for part in _names(text)]


def _demo(options: argparse.Namespace) -> None:
    from spo_fast import demo

    steps = options.steps or (demo.QUICK_STEPS if options.quick else demo.STEPS)
    demo.main(options.out, steps, rounds=1 if options.quick else demo.ROUNDS, backend=options.backend)


def _backends(options: argparse.Namespace) -> None:
    from spo_fast import backends

    for name, state in backends().items():
        print(f"{name:8} {state}")


def _bench(options: argparse.Namespace) -> None:
    from spo_fast import bench

    result = bench.measure(
        options.sizes or bench.SIZES, options.backends, rounds=options.rounds or bench.ROUNDS
    )
    print(bench.to_json(result) if options.json else bench.table(result))


if __name__ == "__main__":
    sys.exit(main())
