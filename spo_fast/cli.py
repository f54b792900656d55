"""The ``spo-fast`` command."""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from spo_fast import __version__

if TYPE_CHECKING:
    from spo_fast import Simulation

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
        By ``--help``, ``--version`` and wrong arguments, the last with status 2 and one line.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale without ± or λ must not cost a result
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ImportError, MemoryError, OSError, OverflowError, RuntimeError, ValueError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"spo-fast: error: {message}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        print("spo-fast: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser that tells a mistake in one line; ``--help`` has the usage."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        # A value, not a flag: argparse before Python 3.14 does not know the exponent.
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")

    def error(self, message: str) -> NoReturn:
        self.exit(FAILURE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[_Parser]


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="spo-fast", description="Networks of phase oscillators whose coupling depends on their state."
    )
    parser.add_argument("--version", action="version", version=f"spo-fast {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_simulate(commands)
    _add_demo(commands)
    _add_backends(commands)
    _add_bench(commands)
    _add_ablate(commands)
    _add_experiment(commands)
    return parser


# ---------------------------------------------------------------- options


def _add_simulate(commands: _Commands) -> None:
    command = commands.add_parser(
        "simulate",
        help="simulate a network given in files",
        description="Simulate a network. Arrays come from .csv, .npy or .npz files (FILE.npz:NAME takes one "
        "of several arrays); K may be sparse, as scipy.sparse.save_npz writes it.",
    )
    command.set_defaults(run=_simulate)
    command.add_argument(
        "knm", metavar="K", help="coupling, N rows of N numbers: row i is pulled by its columns"
    )
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="result, .npz or .nc")
    command.add_argument("--plot", type=Path, metavar="PNG", help="picture of R and of the recorded phases")
    _add_network(command.add_argument_group("network"))
    _add_integration(command.add_argument_group("integration"))
    _add_modulation(command.add_argument_group("modulation, which any of these switches on"))
    _add_recording(command.add_argument_group("recording"))


def _add_network(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--theta", metavar="FILE", help="initial phases; drawn uniformly when not given")
    group.add_argument("--theta-seed", type=int, metavar="N", help="seed of the drawn phases (0)")
    group.add_argument(
        "--members", type=int, metavar="M", help="draw phases for M runs, with seeds from there"
    )
    group.add_argument(
        "--omega", default="0", metavar="FILE|NUMBER", help="natural frequencies (%(default)s)"
    )
    group.add_argument("--alpha", metavar="FILE|NUMBER", help="phase lag (none)")
    group.add_argument("--zeta", type=float, default=0.0, metavar="X", help="strength of the drive (0)")
    group.add_argument("--psi", type=float, default=0.0, metavar="X", help="phase of the drive (0)")


def _add_integration(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dt", type=float, required=True, metavar="X", help="time step; of rk45 the first")
    group.add_argument("--steps", type=int, required=True, metavar="N", help="steps taken")
    group.add_argument("--method", default="rk4", metavar="NAME", help="euler, rk4 or rk45 (%(default)s)")
    group.add_argument("--atol", type=float, default=1e-6, metavar="X", help="of rk45 (%(default)g)")
    group.add_argument("--rtol", type=float, default=1e-3, metavar="X", help="of rk45 (%(default)g)")
    group.add_argument("--backend", metavar="NAME", help="one of those that `spo-fast backends` lists")
    group.add_argument("--workers", type=int, default=1, metavar="N", help="threads (%(default)s)")
    group.add_argument("--progress", action="store_true", help="show a progress bar")
    group.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="where the same command goes on after a kill"
    )
    group.add_argument("--checkpoint-every", type=int, metavar="N", help="steps between two checkpoints")


def _add_modulation(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--lambda",
        dest="lambda_",
        type=_numbers,
        metavar="X",
        help="strength (0.5); X,X,... one a member of an ensemble",
    )
    group.add_argument("--heads", dest="n_heads", type=int, metavar="N", help="attention heads (4)")
    group.add_argument("--block-size", type=int, metavar="N", help="largest |i - j| modulated (no limit)")
    group.add_argument(
        "--temperature", type=_numbers, metavar="X", help="of the softmax (1); X,X,... one a head"
    )
    group.add_argument(
        "--seed", dest="projection_seed", type=int, metavar="N", help="seed of the projections (0)"
    )
    group.add_argument("--algorithm", metavar="NAME", help="how K' is computed (auto)")
    group.add_argument(
        "--modulate-every", type=int, default=1, metavar="K", help="modulate anew each K steps (%(default)s)"
    )


def _add_recording(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--record-every", type=int, metavar="K", help="store each K-th state (first and last)")
    group.add_argument(
        "--observe",
        type=_observables,
        default=("R",),
        metavar="NAMES",
        help="R, psi, both as R,psi, or none: taken at every step (R)",
    )


def _add_demo(commands: _Commands) -> None:
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


def _add_backends(commands: _Commands) -> None:
    listing = commands.add_parser(
        "backends",
        help="list the backends and why one is missing",
        description="List the backends and why one is missing, after building those that are asked for.",
    )
    listing.add_argument(
        "--build", type=_names, default=(), metavar="NAME,NAME", help="build rust, go or mojo for this user"
    )
    listing.set_defaults(run=_backends)


def _add_bench(commands: _Commands) -> None:
    bench = commands.add_parser("bench", help="time the backends on this machine")
    bench.add_argument("--json", action="store_true", help="write JSON, times in seconds")
    bench.add_argument(
        "--sizes", type=_sizes, default=None, metavar="N,N", help="numbers of oscillators (16,64,256)"
    )
    bench.add_argument(
        "--backends", type=_names, default=None, metavar="NAME,NAME", help="all available by default"
    )
    bench.add_argument("--rounds", type=_positive, default=None, metavar="N", help="interleaved rounds (7)")
    bench.add_argument(
        "--first-calls", action="store_true", help="time each backend's first call in a process, too"
    )
    instead = bench.add_mutually_exclusive_group()
    instead.add_argument(
        "--overhead", action="store_true", help="what modulation adds to a step, said three ways, instead"
    )
    instead.add_argument("--scaling", action="store_true", help="how the cost grows with N, instead")
    bench.add_argument(
        "--orchestrator-python", metavar="PATH", help="with --overhead: interpreter that has the orchestrator"
    )
    bench.add_argument("--plot", type=Path, metavar="PNG", help="with --overhead or --scaling: picture")
    bench.set_defaults(run=_bench)


def _add_ablate(commands: _Commands) -> None:
    ablate = commands.add_parser(
        "ablate", help="how the order parameter drifts with the parameters of modulation"
    )
    ablate.add_argument("--seeds", type=_positive, default=None, metavar="N", help="random networks (64)")
    which = ablate.add_mutually_exclusive_group()
    which.add_argument("--grid", action="store_true", help="every combination, not one parameter at a time")
    which.add_argument("--physics", action="store_true", help="the five criteria that the tests assert")
    ablate.add_argument("--json", action="store_true", help="write JSON instead of Markdown")
    ablate.add_argument("--out", type=Path, metavar="FILE", help="file to write; standard output by default")
    ablate.add_argument("--backend", default=None, help="one of those that `spo-fast backends` lists")
    ablate.set_defaults(run=_ablate)


def _add_experiment(commands: _Commands) -> None:
    from spo_fast.experiments import command

    experiment = commands.add_parser(
        "experiment",
        help="run a study of attention, or go on with it",
        description="Run what is missing of a study: each finished run is a line in DIR and is not repeated.",
    )
    command.add_options(experiment, names=_names, positive=_positive)
    experiment.set_defaults(run=command.run)


def _numbers(text: str) -> float | list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number, or numbers separated by commas, got {text!r}"
        ) from None
    return values[0] if len(values) == 1 else values


def _observables(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(_names(text))


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


# ---------------------------------------------------------------- commands


def _simulate(options: argparse.Namespace) -> None:
    from spo_fast import files, plotting, simulate

    targets = [path for path in (options.out, options.plot, options.checkpoint) if path is not None]
    files.require_format(options.out)
    files.require_writable(targets)
    if options.plot is not None:
        if options.plot.suffix.lower() != ".png":
            raise ValueError(f"picture must be a file ending in .png, got {options.plot}")
        if "R" not in options.observe:
            raise ValueError("a picture needs R: add it to --observe")
        plotting.require_matplotlib()
    result = simulate(**_inputs(options))
    files.save(result, options.out, options.plot)
    print(_summary(result, options.out))


_PASSED_ON = (  # options that are keywords of simulate
    "dt",
    "method",
    "zeta",
    "psi",
    "modulate_every",
    "record_every",
    "observe",
    "atol",
    "rtol",
    "backend",
    "workers",
    "progress",
    "checkpoint",
    "checkpoint_every",
)
_MODULATION = ("lambda_", "n_heads", "block_size", "temperature", "projection_seed", "algorithm")


def _inputs(options: argparse.Namespace) -> dict[str, Any]:
    """Read the files that the options name, and gather the keywords of ``simulate``."""
    from spo_fast import files

    knm = files.read(options.knm, "knm")
    given = {name: getattr(options, name) for name in _MODULATION if getattr(options, name) is not None}
    return {
        "theta": _phases(options, knm.shape[-1] if knm.ndim else 0),
        "omega": _number_or_file(options.omega, "omega"),
        "knm": knm,
        "alpha": None if options.alpha is None else _number_or_file(options.alpha, "alpha"),
        "n_steps": options.steps,
        "modulation": given or None,
        **{name: getattr(options, name) for name in _PASSED_ON},
    }


def _phases(options: argparse.Namespace, n: int) -> Any:
    import numpy as np

    from spo_fast import datasets, files

    if options.theta is None:
        first = options.theta_seed or 0
        if first < 0:
            raise ValueError(f"--theta-seed must be at least 0, got {first}")
        if options.members is None:
            return datasets.initial_phases(n, seed=first)
        if options.members < 1:
            raise ValueError(f"--members must be at least 1, got {options.members}")
        return np.array([datasets.initial_phases(n, seed=first + m) for m in range(options.members)])
    if options.theta_seed is not None or options.members is not None:
        raise ValueError("--theta-seed and --members are for drawn phases, not with --theta")
    return files.vector(files.read(options.theta, "theta"), "theta", options.theta)


def _number_or_file(text: str, name: str) -> Any:
    from spo_fast import files

    try:
        return float(text)
    except ValueError:
        array = files.read(text, name)
    return array if name == "alpha" else files.vector(array, name, text)


def _summary(result: Simulation, path: Path) -> str:
    """One line, and one about members of an ensemble that failed."""
    import numpy as np

    status = np.atleast_1d(getattr(result, "status", 0))
    failed = np.flatnonzero(status)
    lines = [f"{path}: {result!r}"]
    if result.R is not None and result.R.ndim == 1:
        lines[0] += f", R {result.R[0]:.4f} -> {result.R[-1]:.4f}"
    if failed.size:
        listed = ", ".join(map(str, failed[:8])) + (", ..." if failed.size > 8 else "")
        lines.append(f"{failed.size} of {status.size} members stopped at a non-finite state: {listed}")
    return "\n".join(lines)


def _demo(options: argparse.Namespace) -> None:
    from spo_fast import demo

    steps = options.steps or (demo.QUICK_STEPS if options.quick else demo.STEPS)
    demo.main(options.out, steps, rounds=1 if options.quick else demo.ROUNDS, backend=options.backend)


def _backends(options: argparse.Namespace) -> None:
    from spo_fast import backends
    from spo_fast.backends import libraries

    for name in options.build:
        print(f"built {libraries.build(name)}")
    for name, state in backends().items():
        print(f"{name:8} {state}")


def _bench(options: argparse.Namespace) -> None:
    from spo_fast import bench

    if options.overhead or options.scaling:
        _curves(options)
        return
    result = bench.measure(
        options.sizes or bench.SIZES,
        options.backends,
        rounds=options.rounds or bench.ROUNDS,
        first_calls=options.first_calls,
    )
    print(bench.to_json(result) if options.json else bench.table(result))


def _curves(options: argparse.Namespace) -> None:
    """Measure one backend over sizes: a table or JSON, and perhaps a picture."""
    from spo_fast import bench, files, overhead, plotting, scaling

    if options.plot is not None:
        plotting.require_matplotlib()
        files.require_writable([options.plot])
    if options.backends and len(options.backends) > 1:
        asked = "--overhead" if options.overhead else "--scaling"
        raise ValueError(f"{asked} measures one backend, got {', '.join(options.backends)}")
    study: Any = overhead if options.overhead else scaling
    more = {"orchestrator": options.orchestrator_python} if options.overhead else {}
    rows = study.measure(
        options.sizes or study.SIZES,
        backend=options.backends[0] if options.backends else None,
        rounds=options.rounds or bench.ROUNDS,
        **more,
    )
    print(study.to_json(rows) if options.json else study.table(rows), end="")
    if options.plot is not None:
        from matplotlib.figure import Figure

        draw: Any = plotting.plot_overhead if options.overhead else plotting.plot_scaling
        with files.replacing(options.plot) as path:
            draw(rows, Figure(layout="constrained").subplots()).figure.savefig(path, dpi=120, format="png")


def _ablate(options: argparse.Namespace) -> None:
    from spo_fast import ablation, files

    if options.out is not None:
        files.require_writable([options.out])
    seeds = options.seeds or ablation.SEEDS
    text = _criteria(options, seeds) if options.physics else _ablation(options, seeds)
    if options.out is None:
        print(text, end="")
    else:
        files.write_text(text, options.out)


def _ablation(options: argparse.Namespace, seeds: int) -> str:
    from spo_fast import ablation

    variants, couplings = (ablation.grid(), ()) if options.grid else (None, ablation.COUPLINGS)
    result = ablation.measure(variants, couplings=couplings, seeds=seeds, backend=options.backend)
    return ablation.to_json(result) + "\n" if options.json else ablation.markdown(result)


def _criteria(options: argparse.Namespace, seeds: int) -> str:
    import json

    from spo_fast import ablation, bench

    rows = ablation.criteria(seeds=seeds, backend=options.backend)
    if options.json:
        data = {"criteria": rows, "seeds": seeds, "machine": bench.machine()}
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    return ablation.criteria_markdown(rows, seeds, options.backend)


if __name__ == "__main__":
    sys.exit(main())
