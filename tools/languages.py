"""Run what each language of the portable interface has for itself: its unit tests, or its format and lint.

    python tools/languages.py test
    python tools/languages.py lint

A language whose toolchain is missing is left out with a word, unless SPO_FAST_REQUIRE_BACKENDS lists it: then
that is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import export_golden

from spo_fast.backends import libraries

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
CARGO = ("--offline", "--quiet", "--manifest-path", "rust/Cargo.toml", "--target-dir", str(BUILD / "rust"))
PROGRAMS = {name: language.program for name, language in libraries.LANGUAGES.items()} | {"julia": "julia"}
TESTS = {
    "rust": [("cargo", "test", "--release", *CARGO)],
    "go": [  # scalar kernels, and those on the vector types of simd/archsimd
        ("GOEXPERIMENT=nosimd", "go", "test", "-C", "go", "./..."),
        ("go", "test", "-C", "go", "./..."),
    ],
    "julia": [("julia", "--startup-file=no", "julia/test/runtests.jl")],
    "mojo": [("mojo", "run", "--fp-mode", "contract=off", "-I", "mojo/src", str(path.relative_to(ROOT)))
             for path in sorted((ROOT / "mojo" / "tests").glob("test_*.mojo"))],
}  # fmt: skip
LINTS = {
    "rust": [
        ("cargo", "fmt", "--check", "--manifest-path", "rust/Cargo.toml"),
        ("cargo", "clippy", "--all-targets", *CARGO, "--", "-D", "warnings"),
    ],
    "go": [("gofmt", "-l", "go"), ("go", "vet", "-C", "go", "./...")],
    "julia": [],
    "mojo": [],
}
SILENT = {"gofmt"}  # programs that tell what is wrong on standard output and end with status 0


def program(name: str) -> str | None:
    """The path of a program; gofmt lies beside the Go that its package carries."""
    found = libraries.program(name)
    if name == "gofmt" and not found:
        go = libraries.program("go")
        root = subprocess.run([go, "env", "GOROOT"], capture_output=True, text=True).stdout.strip()
        found = shutil.which(str(Path(root, "bin", "gofmt")))
    return found


def run(language: str, command: tuple[str, ...]) -> bool:
    """Run one command of a language, which may begin with settings as in a shell; true if it went well."""
    print(f"== {language}: {' '.join(command[:4])}", flush=True)
    settings = [word for word in command if re.fullmatch(r"[A-Z]+=\w+", word)]
    name, *arguments = command[len(settings) :]
    path = program(name)
    if path is None:
        print(f"{name} was not found", file=sys.stderr)
        return False
    variables = libraries.variables(language) if language in libraries.LANGUAGES else dict(os.environ)
    variables |= dict(word.split("=") for word in settings)
    quiet = name in SILENT
    done = subprocess.run([path, *arguments], cwd=ROOT, env=variables, capture_output=quiet, text=quiet)
    if quiet and done.stdout:
        print(done.stdout)
    return done.returncode == 0 and not (quiet and done.stdout)


def main(what: str) -> int:
    """Run the tests or the lint of every language; 1 if one of them fails."""
    if what == "test":
        sys.argv[1:] = []
        export_golden.main()
    required = os.environ.get("SPO_FAST_REQUIRE_BACKENDS", "").split(",")
    good = True
    for language, commands in {"test": TESTS, "lint": LINTS}[what].items():
        if program(PROGRAMS[language]) is None:
            print(f"== {language}: no {PROGRAMS[language]} was found", file=sys.stderr)
            good &= language not in required
            continue
        results = [run(language, command) for command in commands]
        good &= all(results)
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
