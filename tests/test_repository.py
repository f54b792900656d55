"""The tree itself: links resolve, commands exist, generated text is fresh, some names appear nowhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])

# Written in pieces, so that this file passes its own test. Each machine says where packages come from.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
        ("deb", "debian", "org"),
        ("anaconda", "org"),
    ]
]
# Paths of a single machine mean nothing to a reader.
MACHINE_PATHS = ["/".join(parts) for parts in [("", "work", ""), ("..", "shared", ""), ("", "tmp", "w", "")]]
# Pages that are cited must exist; these never did here.
ABSENT_PAGES = [
    name + ".md" for name in ("CONTRACT", "DESIGN", "MATH", "STYLE", "FIELD", "MACHINE", "ATTENTION")
]
BUILT = {".git", ".venv", "build", "dist", "out"}
TEXT = {".py", ".pyx", ".pxd", ".c", ".h", ".md", ".toml", ".in", ".yaml", ".yml", ".json", ".sh", ".csv", ""}


def tracked_files():
    """Text files that belong to the repository; every one in the tree where git is missing."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        paths = [ROOT / name for name in output.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for path in ROOT.rglob("*") if path.relative_to(ROOT).parts[0] not in BUILT]
    return [path for path in paths if path.is_file() and path.suffix in TEXT]


@pytest.mark.parametrize("word", [*REGISTRY_HOSTS, *MACHINE_PATHS, *ABSENT_PAGES])
def test_no_file_names_a_registry_or_what_a_reader_cannot_open(word):
    found = [path for path in tracked_files() if word in path.read_text(encoding="utf-8", errors="replace")]
    assert not found, f"{word} stands in {found}"


def test_lines_are_at_most_110_characters():
    checked = [path for path in tracked_files() if path.suffix in {".py", ".pyx", ".pxd", ".c", ".h"}]
    assert checked
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in checked
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 110
    ]
    assert not long


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            linked = (page.parent / path) if path else page
            assert linked.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in headings(linked), f"{page.name} links to {target}"


def headings(page):
    """Anchors of a Markdown page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_pages_exist(page):
    targets = set(
        re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, flags=re.MULTILINE)) <= targets
    scripts = re.findall(r"\b((?:tools|asv_benchmarks)/[\w./]+)", text)
    assert all((ROOT / script).exists() for script in scripts), scripts


@pytest.mark.usefixtures("compiled_names")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_of_the_pages_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)


def update_readme():
    """The tool that writes the tables of measured results, loaded as a module."""
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "tools" / "update_readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_in_the_pages_are_the_measured_ones():
    tool = update_readme()
    for name, (block, data, lay_out) in tool.BLOCKS.items():
        page = (ROOT / name).read_text(encoding="utf-8")
        new = lay_out((ROOT / data).read_text(encoding="utf-8"))
        assert tool.replaced(page, block, new) == page, name


def test_a_page_without_its_markers_is_refused():
    tool = update_readme()
    with pytest.raises(ValueError, match="once each"):
        tool.replaced("no table here", "bench", "new")


def test_what_continuous_integration_runs_is_executable_and_made_of_targets():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    steps = re.findall(r"step make (\w+)", text)
    assert steps
    assert all(re.search(rf"^{step}:", makefile, flags=re.MULTILINE) for step in steps)


def test_extras_that_messages_name_exist():
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    named = {
        extra
        for path in tracked_files()
        if path.suffix in {".py", ".md"}
        for extra in re.findall(r"spo-fast\[(\w+)\]", path.read_text(encoding="utf-8"))
    }
    assert named <= set(extras)


def test_there_is_one_version():
    with open(ROOT / "pyproject.toml", "rb") as file, open(ROOT / "rust" / "Cargo.toml", "rb") as crate:
        assert tomllib.load(file)["project"]["version"] == tomllib.load(crate)["package"]["version"]


def test_every_package_is_installed():
    """Those of the tree and those that the build is told of are the same."""
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("spo_fast/**/__init__.py")}
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "packages"
    ]
    without_modules = {"spo_fast.data", "spo_fast.include"}
    assert found == {name for name in listed if ".sources." not in name} - without_modules
