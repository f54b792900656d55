"""Building libraries of other languages, and finding them again. The toolchains here are shell scripts."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spo_fast import cli
from spo_fast.backends import libraries, registry

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the toolchains of these tests are shell scripts")


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A world with no library and no toolchain in it."""
    monkeypatch.setattr(libraries, "INSTALLED", tmp_path / "installed")
    monkeypatch.setattr(libraries, "CHECKOUT", tmp_path / "elsewhere")
    monkeypatch.setenv("SPO_FAST_LIBRARY_DIR", str(tmp_path / "user"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    source = tmp_path / "elsewhere" / "rust"
    (source / "src").mkdir(parents=True)
    (source / "src" / "lib.rs").write_text("// nothing\n")
    (source / "Cargo.toml").write_text("[package]\n")
    header = tmp_path / "elsewhere" / "csrc" / "include"
    header.mkdir(parents=True)
    (header / "spo_fast.h").write_text("#define SPO_ABI_VERSION 1\n")
    monkeypatch.setattr(libraries, "PACKAGE", tmp_path / "package")
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return tmp_path


def cargo(places, script):
    """A cargo that runs these lines of shell, with the target folder in $7."""
    program = places / "bin" / "cargo"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)


GOOD = 'mkdir -p "$6/release"; echo made >> "$0.log"; echo library > "$6/release/libspo_fast_rust.so"'
GOOD = GOOD.replace(".so", libraries.SUFFIX)


def test_a_library_is_built_found_and_described(places):
    cargo(places, GOOD)
    built = libraries.build("rust")
    assert libraries.find("rust") == built == libraries.user_library("rust")
    assert built.read_text() == "library\n"
    assert json.loads(built.with_suffix(".json").read_text())["level"] is None
    assert libraries.is_current("rust", built)
    assert not [path for path in built.parent.iterdir() if path.is_dir()]  # nothing is left lying about


def test_what_the_user_built_is_preferred(places):
    """Else a library of the installation that does not work could not be replaced."""
    cargo(places, GOOD)
    own = libraries.installed_library("rust")
    assert libraries.build("rust", own) == libraries.find("rust") == own
    assert libraries.build("rust") == libraries.find("rust") == libraries.user_library("rust")


def test_another_version_of_the_sources_does_not_meet_the_old_library(places):
    cargo(places, GOOD)
    old = libraries.build("rust")
    (places / "elsewhere" / "rust" / "src" / "lib.rs").write_text("// something\n")
    with pytest.raises(libraries.Unavailable, match="not built; cargo is at"):
        libraries.find("rust")
    assert not libraries.is_current("rust", old)
    assert libraries.build("rust") != old


def test_no_toolchain_is_told(places):
    with pytest.raises(libraries.Unavailable, match="not built, and no cargo was found"):
        libraries.find("rust")
    with pytest.raises(libraries.Unavailable, match="building the rust backend needs cargo, which was not"):
        libraries.build("rust")


def test_a_failing_toolchain_is_quoted_and_leaves_nothing(places):
    cargo(places, "echo 'error: no linker' >&2; exit 3")
    with pytest.raises(libraries.Unavailable, match=r"building the rust backend failed: .*error: no linker"):
        libraries.build("rust")
    assert not libraries.user_library("rust").exists()
    assert [path.suffix for path in libraries.user_library("rust").parent.iterdir()] == [".lock"]


def test_a_toolchain_that_hangs_is_given_up(places, monkeypatch):
    cargo(places, "exec sleep 60")
    monkeypatch.setattr(libraries, "BUILD_SECONDS", 0.5)
    with pytest.raises(libraries.Unavailable, match="timed out"):
        libraries.build("rust")


def test_a_note_of_the_installation_is_the_reason(places):
    libraries.INSTALLED.mkdir()
    (libraries.INSTALLED / "rust_not_built.txt").write_text("building the rust backend failed: no linker\n")
    with pytest.raises(libraries.Unavailable, match=r"^building the rust backend failed: no linker$"):
        libraries.find("rust")


def test_builders_wait_for_each_other(places):
    """While one is at work nobody sees a part of its library, and another one makes a whole one after it."""
    cargo(places, f"sleep 0.3; {GOOD}")
    built, seen = [], set()
    threads = [threading.Thread(target=lambda: built.append(libraries.build("rust"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        path = libraries.user_library("rust")
        if path.exists():
            seen.add(path.read_text())
    for thread in threads:
        thread.join()
    assert len(built) == 3 and seen == {"library\n"}
    assert (places / "bin" / "cargo.log").read_text() == "made\n" * 3


def test_a_processor_that_lacks_something_is_told(places, monkeypatch):
    cargo(places, GOOD)
    built = libraries.build("rust")
    built.with_suffix(".json").write_text(json.dumps({"level": "x86-64-v3"}))
    has = set(libraries.LEVELS["x86-64-v3"].split())
    monkeypatch.setattr(libraries, "processor_features", lambda: has - {"fma"})
    with pytest.raises(libraries.Unavailable, match="needs fma, which this processor lacks"):
        libraries.find("rust")
    monkeypatch.setattr(libraries, "processor_features", lambda: has)
    assert libraries.find("rust") == built


def test_a_build_that_this_processor_can_run_replaces_one_that_it_cannot(places, monkeypatch):
    cargo(places, GOOD)
    own = libraries.build("rust", libraries.installed_library("rust"))
    own.with_suffix(".json").write_text(json.dumps({"level": "x86-64-v4"}))
    monkeypatch.setattr(libraries, "processor_features", lambda: {"avx2"})
    with pytest.raises(libraries.Unavailable, match="avx512bw"):
        libraries.find("rust")
    assert libraries.build("rust") == libraries.find("rust")


@pytest.mark.parametrize("best", libraries.LEVELS)
def test_the_level_is_the_best_that_the_processor_has(monkeypatch, best):
    monkeypatch.setattr(libraries.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(libraries, "processor_features", lambda: {"sse2", *libraries.LEVELS[best].split()})
    assert libraries.level() == best
    monkeypatch.setattr(libraries.platform, "machine", lambda: "aarch64")
    assert libraries.level() is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"level": "armv9"}', '{"level": 4}', "\x00\xff", None])
def test_a_damaged_description_is_told(places, monkeypatch, text):
    monkeypatch.setattr(registry, "_loaded", {})
    cargo(places, GOOD)
    description = libraries.build("rust").with_suffix(".json")
    description.write_text(text, encoding="latin-1") if text is not None else description.unlink()
    with pytest.raises(libraries.Unavailable, match="describes the library beside it, is missing or damaged"):
        libraries.find("rust")
    assert not libraries.is_current("rust", description.with_suffix(libraries.SUFFIX))
    assert "damaged" in registry.backends()["rust"]


def test_a_folder_that_may_not_be_looked_into_is_a_reason(places, monkeypatch):
    monkeypatch.setattr(Path, "is_file", lambda path: path.stat() and True)
    monkeypatch.setattr(Path, "stat", lambda path: os.listdir("/proc/1/nothing"))
    with pytest.raises(libraries.Unavailable, match="No such file"):
        libraries.find("rust")


def test_a_user_without_a_home_is_told(monkeypatch):
    for name in ("XDG_CACHE_HOME", "SPO_FAST_LIBRARY_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(libraries.Unavailable, match=r"no home directory .* SPO_FAST_LIBRARY_DIR"):
        libraries.user_folder()


def test_a_place_that_cannot_be_written_to_is_told(places, monkeypatch):
    cargo(places, GOOD)
    monkeypatch.setenv("SPO_FAST_LIBRARY_DIR", "/dev/null")
    with pytest.raises(libraries.Unavailable, match=r"cannot be put into /dev/null/rust-.*LIBRARY_DIR"):
        libraries.build("rust")


def test_julia_is_not_built():
    with pytest.raises(ValueError, match="julia needs no building"):
        libraries.build("julia")


def test_an_unknown_language_is_refused():
    with pytest.raises(ValueError, match="name must be one of rust, go, mojo, got 'fortran'"):
        libraries.build("fortran")


def test_an_installation_without_sources_says_so(places):
    with pytest.raises(libraries.Unavailable, match="carries no go sources"):
        libraries.sources("go")


@pytest.mark.parametrize(
    "system, variables, expected",
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/spo_fast"),
        ("linux", {"HOME": "/h"}, "/h/.cache/spo_fast"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Caches/spo_fast"),
        ("linux", {"SPO_FAST_LIBRARY_DIR": "/own"}, "/own"),
    ],
)
def test_the_users_folder(monkeypatch, system, variables, expected):
    for name in ("XDG_CACHE_HOME", "SPO_FAST_LIBRARY_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", system)
    assert libraries.user_folder() == Path(expected)


def test_the_command_builds_and_lists(places, capsys):
    cargo(places, GOOD)
    assert cli.main(["backends", "--build", "rust"]) == 0
    assert capsys.readouterr().out.startswith(f"built {libraries.user_library('rust')}\n")
    cargo(places, "exit 1")
    assert cli.main(["backends", "--build", "rust"]) == cli.FAILURE
    assert "building the rust backend failed" in capsys.readouterr().err


def test_a_library_that_is_built_meanwhile_is_found(places, monkeypatch):
    """A missing library is looked for again, and one that does not open is reported with its reason."""
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(registry, "_failures", {})
    with pytest.raises(RuntimeError, match="no cargo was found; build it: spo-fast backends --build rust"):
        registry.load("rust")
    cargo(places, GOOD)
    libraries.build("rust")
    assert registry.backends()["rust"] == "available"
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        registry.load("rust")
    assert "cannot be loaded" in registry.backends()["rust"]


def test_asking_what_is_there_opens_nothing():
    code = (
        "import spo_fast; spo_fast.backends()\n"
        "maps = open('/proc/self/maps').read()\n"
        "print([name for name in ('fast_rust', 'fast_go', 'fast_mojo', 'libjulia') if name in maps])"
    )
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
